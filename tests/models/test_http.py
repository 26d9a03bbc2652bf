"""Adapters on `httpx2` itself: clients, refusals, and that no exception and no connection of it is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest

from agentloop.errors import ModelError
from agentloop.messages import Usage, user
from agentloop.model import ModelChunk, ModelRequest, UsageChunk
from agentloop.models._framing import EventBytes
from agentloop.models._gemini_events import EventReader
from agentloop.models._http import _read
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


# ---------------------------------------------------------------- connections


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


# ---------------------------------------------------------------- exceptions


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


# ---------------------------------------------------------------- the end


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


# ---------------------------------------------------------------- behind a whole reply


@pytest.mark.parametrize("junk", [b"{", b"\xff", b"null", b'{"candidates": 3}', b'{"error": {"code": 503}}'])
def test_usage_behind_what_is_no_event_counts_however_the_bytes_are_cut(junk: bytes) -> None:
    """Of a piece only what is no event is passed over, and not what came with it."""
    usage = b'data: {"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 5}}\n\n'
    body = gemini_stream(1) + b"data: " + junk + b"\n\n" + usage

    def chunks_of(*pieces: bytes) -> list[ModelChunk]:
        events, reader = EventBytes(), EventReader()
        found = [chunk for piece in pieces for chunk in _read(events.feed(piece), reader)]
        return [*found, *_read(events.end(), reader), *reader.end()]

    whole = chunks_of(body)
    assert UsageChunk(Usage(0, 3, 5)) in whole
    assert whole == chunks_of(*[bytes([byte]) for byte in body])
    for cut in range(len(body)):
        assert whole == chunks_of(body[:cut], body[cut:])
