"""Adapters on `httpx2` itself: clients, refusals, and that no exception and no connection of it is left behind."""

from __future__ import annotations

import builtins
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx2
import pytest

from agentloop.errors import MissingExtra, ModelError
from agentloop.messages import user
from agentloop.model import ModelRequest
from agentloop.models.gemini import Gemini
from agentloop.models.ollama import Ollama
from agentloop.testing.wire import Play, WireServer, run_model

REQUEST = ModelRequest(None, (user("x"),), (), {})
LINE = {"message": {"content": "Hi"}, "done": False}
EVENT = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}], "responseId": "r"}


def gemini_stream(count: int) -> bytes:
    ended = {**EVENT, "candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in [EVENT] * count + [ended])


def ollama_stream(count: int) -> bytes:
    return b"".join(
        json.dumps(line).encode() + b"\n" for line in [LINE] * count + [{"done": True, "done_reason": "stop"}]
    )


ADAPTERS: list[Any] = [
    pytest.param(Gemini, gemini_stream, id="gemini"),
    pytest.param(Ollama, ollama_stream, id="ollama"),
]
both = pytest.mark.parametrize(("adapter", "stream"), ADAPTERS)
Stream = Callable[[int], bytes]


def made(adapter: Any, address: str, **options: Any) -> Any:
    return adapter("m", base_url=address, api_key="key", **options)


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running


async def closed(server: WireServer) -> bool:
    """Whether the client closes the connection of the last request."""
    return await anyio.to_thread.run_sync(server.requests[-1].client_closed.wait, 5)


# ---------------------------------------------------------------- connections


@pytest.mark.anyio
@both
@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_leaving_early_closes_the_connection(
    server: WireServer, adapter: Any, stream: Stream, steps: int
) -> None:
    """However far a reply was read, closing the iterator closes the connection and leaves nothing to the collector."""
    body = stream(6)
    address = server.play(Play(body, stall_at=len(body) - len(stream(0))))
    chunks = made(adapter, address)(REQUEST)
    for _ in range(steps):
        await anext(chunks)
    await chunks.aclose()
    if steps:
        assert await closed(server)


@pytest.mark.anyio
@both
async def test_cancelling_a_stalled_stream_closes_the_connection(
    server: WireServer, adapter: Any, stream: Stream
) -> None:
    """A cancellation in the middle of a wait for the provider ends the request at once."""
    chunks = made(adapter, server.play(Play(stream(3), stall_at=len(stream(2)) - len(stream(1)))))(REQUEST)
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            async for _ in chunks:
                waiting.set()

        waiting = anyio.Event()
        group.start_soon(ask)
        await waiting.wait()
        assert await anyio.to_thread.run_sync(server.requests[-1].stalled.wait, 5)
        group.cancel_scope.cancel()
    await chunks.aclose()
    assert await closed(server)


@pytest.mark.anyio
@both
async def test_one_client_is_kept_inside_async_with(server: WireServer, adapter: Any, stream: Stream) -> None:
    """Inside `async with` the connection serves further requests; leaving closes it. Without, each has its own."""
    address = server.play(Play(stream(1)))
    async with made(adapter, address) as model:
        await run_model(model)
        first = server.requests[-1]
        outcome = await run_model(model)
        assert outcome.committed
        assert not first.client_closed.is_set()
    assert await closed(server)
    await run_model(made(adapter, address))
    assert await closed(server)


@pytest.mark.anyio
@both
async def test_a_client_of_the_caller_is_used_and_stays_open(server: WireServer, adapter: Any, stream: Stream) -> None:
    """As it is, its headers included; a failed request is asked once."""
    import httpx2

    async with httpx2.AsyncClient(headers={"x-mine": "1"}) as client:
        outcome = await run_model(made(adapter, server.play(Play(stream(1))), client=client, headers={"x-too": "2"}))
        assert outcome.committed
        assert (server.requests[-1].headers["x-mine"], server.requests[-1].headers["x-too"]) == ("1", "2")
        count = len(server.requests)
        outcome = await run_model(made(adapter, server.play(Play(b"{}", 503)), client=client))
        assert outcome.error is not None
        assert (outcome.error.code, len(server.requests)) == ("overloaded", count + 1)
        assert not client.is_closed


@pytest.mark.anyio
@both
async def test_a_proxy_of_the_environment_is_asked(
    server: WireServer, adapter: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`HTTP_PROXY` gets the request, with the address of whom it is for."""
    address = server.play(Play(stream(1)))
    monkeypatch.setenv("HTTP_PROXY", address.rpartition("/")[0])
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    outcome = await run_model(made(adapter, "http://model.invalid/" + address.rpartition("/")[2]))
    assert outcome.committed
    assert server.requests[-1].headers["host"] == "model.invalid"


@pytest.mark.anyio
@both
async def test_a_silence_beyond_the_timeout(server: WireServer, adapter: Any, stream: Stream) -> None:
    """The client's own bound, for those who ask without a run."""
    play = Play(stream(1), stall_at=len(stream(1)) - len(stream(0)))
    outcome = await run_model(made(adapter, server.play(play), timeout=0.2))
    assert outcome.error is not None
    assert outcome.error.code == "timeout"


# ---------------------------------------------------------------- answers


@pytest.mark.anyio
@both
@pytest.mark.parametrize(
    ("play", "code", "wait"),
    [
        (Play(b"<html><body>Sign in</body></html>", headers={"content-type": "text/html"}), "malformed", None),
        (Play(b"<html>504 Gateway Time-out</html>", 504), "network", None),
        (Play(b"", 500), "network", None),
        (Play(b"{}", 429, {"retry-after": "7"}), "rate_limit", 7.0),
        (Play(b'[{"error": {"code": 429, "details": [{"retryDelay": "3s"}]}}]', 429), "rate_limit", 3.0),
        (Play(b'{"error": {"message": "busy"}}', 503, gzip=True), "overloaded", None),
        (Play(b'{"error": {"message": "the error is cut', 503, drop_at=30), "overloaded", None),
        (Play(b"x" * 3_000_000, 400), "rejected", None),
        (Play(b"", 308, {"location": "https://elsewhere.example/"}), "rejected", None),
        (Play(b"", 204), None, None),
        (Play(b""), None, None),
    ],
)
async def test_answers_that_are_no_stream(
    server: WireServer, adapter: Any, stream: Stream, play: Play, code: str | None, wait: float | None
) -> None:
    """Pages, refusals of every shape, redirects that would carry the key away, nothing at all."""
    outcome = await run_model(made(adapter, server.play(play)))
    assert not outcome.committed
    error = outcome.error
    assert (error and error.code, error and error.retry_after) == (code, wait)
    assert error is None or len(error.message) < 3_000


@pytest.mark.anyio
@both
async def test_a_stream_that_is_compressed(server: WireServer, adapter: Any, stream: Stream) -> None:
    """Content coding changes nothing."""
    outcome = await run_model(made(adapter, server.play(Play(stream(3), gzip=True, chop="7"))))
    assert outcome.message is not None
    assert outcome.message.text == "HiHiHi"


# ---------------------------------------------------------------- exceptions


def library_exceptions() -> list[Any]:
    """An instance of each exception class of the library, and of its transport underneath."""
    import httpcore2
    import httpx2

    request = httpx2.Request("POST", "http://127.0.0.1/")
    values = {"request": request, "response": httpx2.Response(418, request=request)}
    found = []
    for module in (httpx2, httpcore2):
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if not issubclass(cls, Exception) or issubclass(cls, Warning) or cls.__module__ == "builtins":
                continue
            wanted = list(inspect.signature(cls.__init__).parameters.values())[1:]
            needed = [p for p in wanted if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            words = [values.get(p.name, "it broke") for p in needed if p.kind is not p.KEYWORD_ONLY]
            named = {p.name: values.get(p.name, "it broke") for p in needed if p.kind is p.KEYWORD_ONLY}
            found.append(pytest.param(cls(*words, **named), id=f"{module.__name__}.{name}"))
    return found


class Broken:
    """A client whose every request raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def __aenter__(self) -> Broken:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def build_request(self, *args: Any, **options: Any) -> None:
        return None

    async def send(self, *args: Any, **options: Any) -> Any:
        raise self.error


@both
@pytest.mark.parametrize(
    "error",
    [*library_exceptions(), OSError("gone"), UnicodeError("odd"), anyio.BrokenResourceError(), RuntimeError("odd")],
)
def test_no_exception_of_the_library_crosses(adapter: Any, stream: Stream, error: Exception) -> None:
    """Each class comes out as a `ModelError` that names the original as its cause."""

    async def ask() -> None:
        async for _ in made(adapter, "http://127.0.0.1:9", client=Broken(error))(REQUEST):
            pass

    with pytest.raises(ModelError) as caught:
        anyio.run(ask)
    assert caught.value.__cause__ is error
    expected = {"ReadTimeout": "timeout", "ConnectTimeout": "timeout", "PoolTimeout": "timeout", "ConnectError": "network",
                "RemoteProtocolError": "network", "ReadError": "network", "DecodingError": "malformed",
                "UnsupportedProtocol": "rejected", "InvalidURL": "rejected"}  # fmt: skip
    wanted = expected.get(type(error).__name__)
    assert wanted is None or caught.value.code == wanted


@pytest.mark.anyio
@both
@pytest.mark.parametrize(
    ("address", "code"), [("http://127.0.0.1:9", "network"), ("nonsense", "rejected"), ("ftp://127.0.0.1", "rejected")]
)
async def test_addresses_where_nobody_is(adapter: Any, stream: Stream, address: str, code: str) -> None:
    """Nobody listens: the network. No address at all: the caller's mistake."""
    outcome = await run_model(made(adapter, address))
    assert outcome.error is not None
    assert outcome.error.code == code


@both
@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_an_option_that_json_cannot_say(adapter: Any, stream: Stream, value: Any) -> None:
    """Refused before anything is sent, and not worth another try."""

    async def ask() -> None:
        async for _ in made(adapter, "http://127.0.0.1:9")(ModelRequest(None, (user("x"),), (), {"odd": value})):
            pass

    with pytest.raises(ModelError) as caught:
        anyio.run(ask)
    assert caught.value.code == "invalid_input"


# ---------------------------------------------------------------- making one


@both
def test_a_missing_library_says_what_to_install(adapter: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making an adapter without it names the extra."""
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "httpx2":
            raise ModuleNotFoundError("No module named 'httpx2'", name="httpx2")
        return real(name, *args, **options)

    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=rf"agentloop\[{adapter.__name__.lower()}\]"):
        made(adapter, "http://127.0.0.1:9")


@both
def test_a_wrong_client_is_refused_at_once(adapter: Any, stream: Stream) -> None:
    """A synchronous client would block the event loop."""
    import httpx2

    with httpx2.Client() as client, pytest.raises(TypeError, match="asynchronous"):
        made(adapter, "http://127.0.0.1:9", client=client)


@pytest.mark.anyio
@pytest.mark.parametrize("adapter", [Gemini, Ollama])
async def test_a_connection_that_closes_badly(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no `Exception` goes through, and the client is closed all the same."""
    closed: list[str] = []

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b""

        async def aclose(self) -> None:
            closed.append("answer")
            raise SystemExit(3)

    class Wire(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, stream=Body())

        async def aclose(self) -> None:
            closed.append("client")

    monkeypatch.setattr(httpx2.AsyncClient, "_init_transport", lambda self, **options: Wire())
    with pytest.raises(SystemExit):
        async for _ in made(adapter, "http://127.0.0.1:9")(REQUEST):
            pass
    assert closed[-1] == "client"
    assert "answer" in closed
