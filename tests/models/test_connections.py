"""What holds for every adapter that asks somebody: connections, clients, keys, exceptions, options. One row an adapter."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from agentloop.errors import REQUEST_CODES, MissingExtra, ModelError
from agentloop.messages import user
from agentloop.model import ModelRequest
from agentloop.models.anthropic import Anthropic
from agentloop.models.gemini import Gemini
from agentloop.models.ollama import Ollama
from agentloop.models.openai_chat import OpenAIChat
from agentloop.models.openai_responses import OpenAIResponses
from agentloop.testing.wire import Play, WireServer, run_model
from tests import adapters

REQUEST = ModelRequest(None, (user("x"),), (), {})

Parts = tuple[bytes, bytes]
"""The content of a reply ("Hi" several times) as its provider streams it, and the end of the stream."""


def sse(*events: Any) -> bytes:
    """Server-sent events, with their type as their name where they have one."""
    names = (f"event: {event['type']}\n" if "type" in event else "" for event in events)
    return "".join(f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(names, events, strict=True)).encode()


def anthropic_parts(count: int) -> Parts:
    content = sse(
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}] * count,
    )
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}}
    return content, sse({"type": "content_block_stop", "index": 0}, end)


def responses_parts(count: int) -> Parts:
    item = {"id": "m", "type": "message", "role": "assistant", "content": []}
    whole = {**item, "content": [{"type": "output_text", "text": "Hi" * count}]}
    content = sse(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *[{"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"}] * count,
    )
    response = {"id": "r", "status": "completed", "output": [whole]}
    return content, sse(
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": response},
    )


def chat_parts(count: int) -> Parts:
    def event(delta: Any, reason: str | None = None) -> Any:
        return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    return sse(*[event({"content": "Hi"})] * count), sse(event({}, "stop")) + b"data: [DONE]\n\n"


def gemini_parts(count: int) -> Parts:
    event = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}], "responseId": "r"}
    return sse(*[event] * count), sse({**event, "candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]})


def ollama_parts(count: int) -> Parts:
    line = json.dumps({"message": {"content": "Hi"}, "done": False}) + "\n"
    return line.encode() * count, b'{"done": true, "done_reason": "stop"}\n'


@attrs.frozen
class Row:
    """One adapter: what its provider streams, the library that it stands on and its client, its extra and its key."""

    adapter: Any
    parts: Callable[[int], Parts]
    package: str
    client: str
    extra: str
    variable: str
    kind: str = "text/event-stream"

    def model(self, address: str, **options: Any) -> Any:
        return self.adapter("m", **{"base_url": address, "api_key": "key", **options})

    def play(self, count: int = 3, **how: Any) -> Play:
        return Play(b"".join(self.parts(count)), headers={"content-type": self.kind}, **how)

    def stalled(self, count: int) -> Play:
        """The content, and then silence."""
        return self.play(count, stall_at=len(self.parts(count)[0]))

    def own_client(self, address: str) -> Any:
        """A client of the caller's, which says so in a header and would ask again by itself where it can."""
        made = getattr(importlib.import_module(self.package), self.client)
        if self.package == "httpx2":
            return made(headers={"x-mine": "1"})
        return made(base_url=address, api_key="own", default_headers={"x-mine": "1"}, max_retries=5)


ROWS = [
    Row(Anthropic, anthropic_parts, "anthropic", "AsyncAnthropic", "anthropic", "ANTHROPIC_API_KEY"),
    Row(OpenAIResponses, responses_parts, "openai", "AsyncOpenAI", "openai", "OPENAI_API_KEY"),
    Row(OpenAIChat, chat_parts, "openai", "AsyncOpenAI", "openai", "OPENAI_API_KEY"),
    Row(Gemini, gemini_parts, "httpx2", "AsyncClient", "gemini", "GEMINI_API_KEY"),
    Row(Ollama, ollama_parts, "httpx2", "AsyncClient", "ollama", "OLLAMA_API_KEY", "application/x-ndjson"),
]
every = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.adapter.__name__)


async def closed(server: WireServer) -> bool:
    """Whether the client closes the connection of the last request."""
    return await anyio.to_thread.run_sync(server.requests[-1].client_closed.wait, 5)


# ---------------------------------------------------------------- connections


@pytest.mark.anyio
@every
@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_leaving_early_closes_the_connection(server: WireServer, row: Row, steps: int) -> None:
    """However far a reply was read, closing the iterator closes the connection and leaves nothing to the collector."""
    chunks = row.model(server.play(row.stalled(6)))(REQUEST)
    for _ in range(steps):
        await anext(chunks)
    await chunks.aclose()
    if steps:
        assert await closed(server)


@pytest.mark.anyio
@every
async def test_cancelling_a_stalled_stream_closes_the_connection(server: WireServer, row: Row) -> None:
    """A cancellation in the middle of a wait for the provider ends the request at once."""
    chunks = row.model(server.play(row.stalled(2)))(REQUEST)
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
@every
async def test_one_client_is_kept_inside_async_with(server: WireServer, row: Row) -> None:
    """Inside `async with` the connection serves further requests; leaving closes it. Without, each has its own."""
    address = server.play(row.play())
    async with row.model(address) as model:
        await run_model(model)
        first = server.requests[-1]
        outcome = await run_model(model)
        assert outcome.committed
        assert not first.client_closed.is_set()
    assert await closed(server)
    await run_model(model)
    assert await closed(server)


@pytest.mark.anyio
@every
async def test_a_client_of_the_caller_is_used_and_stays_open(server: WireServer, row: Row) -> None:
    """As it is, its headers included, without its own retries, and closed by nobody but its owner."""
    good, bad = server.play(row.play()), server.play(Play(b"{}", 503))
    count = len(server.requests)
    for address, code in ((good, None), (bad, "overloaded")):
        async with row.own_client(address) as client:
            where = {"base_url": address} if row.package == "httpx2" else {}
            outcome = await run_model(row.adapter("m", client=client, **where, **({"api_key": "k"} if where else {})))
            assert (outcome.error.code if outcome.error else None) == code
            assert server.requests[-1].headers["x-mine"] == "1"
            is_closed = client.is_closed
            assert not (is_closed() if callable(is_closed) else is_closed)
    assert len(server.requests) == count + 2


@pytest.mark.anyio
@every
async def test_a_stream_that_is_compressed(server: WireServer, row: Row) -> None:
    """A reply in gzip reads as the same reply without it."""
    outcome = await run_model(row.model(server.play(row.play(gzip=True, chop="7"))))
    assert outcome.message is not None
    assert outcome.message.text == "HiHiHi"


# ---------------------------------------------------------------- answers


@pytest.mark.anyio
@every
@pytest.mark.parametrize(
    ("play", "code"),
    [
        (Play(b"<html><body>Sign in</body></html>", headers={"content-type": "text/html"}), "malformed"),
        (Play(b"<html>504 Gateway Time-out</html>", 504), "network"),
        (Play(b"", 500), "network"),
        (Play(b"{}", 429, {"retry-after": "7"}), "rate_limit"),
        ({"drop_at": 60}, "network"),
        ({"drop_at": 60, "reset": True}, "network"),
        ({"end_at": 60}, None),
        ({"end_at": 0}, None),
    ],
)
async def test_answers_that_are_no_reply(server: WireServer, row: Row, play: Any, code: str | None) -> None:
    """Pages, refusals, nothing at all, a broken connection, a cut stream: each has its code."""
    outcome = await run_model(row.model(server.play(play if isinstance(play, Play) else row.play(**play))))
    assert not outcome.committed
    error = outcome.error
    assert (error and error.code, error and error.retry_after) == (code, 7.0 if code == "rate_limit" else None)


# ---------------------------------------------------------------- exceptions


def library_exceptions(package: str) -> list[Any]:
    """One of each exception class that the library, or the one underneath it, may raise; and some of nobody's."""
    import httpcore2
    import httpx2

    modules = {importlib.import_module(package), httpx2, httpcore2}
    strange = [OSError("gone"), UnicodeError("odd"), anyio.BrokenResourceError(), RuntimeError("odd")]
    found = adapters.exceptions_of(*sorted(modules, key=str), address="http://127.0.0.1/")
    return [*found, *[pytest.param(error, id=type(error).__name__) for error in strange]]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        pytest.param(row, *case.values, id=f"{row.adapter.__name__}-{case.id}")
        for row in ROWS
        for case in library_exceptions(row.package)
    ],
)
def test_no_exception_of_the_library_crosses(row: Row, error: Exception) -> None:
    """Each class comes out as a `ModelError` with a code, and names the original as its cause."""

    async def ask() -> None:
        async for _ in row.model("http://127.0.0.1:9", client=adapters.Broken(error))(REQUEST):
            pass

    with pytest.raises(ModelError) as caught:
        anyio.run(ask)
    assert caught.value.code in REQUEST_CODES
    assert caught.value.__cause__ is error
    expected = {
        "RateLimitError": "rate_limit", "AuthenticationError": "auth", "OverloadedError": "overloaded",
        "APITimeoutError": "timeout", "ReadTimeout": "timeout", "ConnectTimeout": "timeout", "PoolTimeout": "timeout",
        "ConnectError": "network", "RemoteProtocolError": "network", "ReadError": "network", "DecodingError": "malformed",
        "UnsupportedProtocol": "rejected", "InvalidURL": "rejected",
    }  # fmt: skip
    assert caught.value.code == expected.get(type(error).__name__, caught.value.code)


# ---------------------------------------------------------------- making one


@every
def test_a_missing_library_says_what_to_install(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making an adapter without it names the extra."""
    adapters.take_away(row.package, monkeypatch)
    with pytest.raises(MissingExtra, match=rf"agentloop\[{row.extra}\]"):
        row.model("http://127.0.0.1:9")


@every
def test_a_wrong_client_is_refused_at_once(row: Row) -> None:
    """A synchronous client would block the event loop."""
    made = getattr(importlib.import_module(row.package), row.client.removeprefix("Async"))
    keys = {} if row.package == "httpx2" else {"api_key": "x"}
    with made(**keys) as client, pytest.raises(TypeError, match="asynchronous"):
        row.model("http://127.0.0.1:9", client=client)


@pytest.mark.anyio
@every
async def test_another_provider_needs_its_address_and_gets_no_key_of_the_environment(
    server: WireServer, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name alone says nothing of where it is; and the variable holds the key of somebody else."""
    with pytest.raises(ValueError, match="base_url"):
        row.adapter("m", provider="somebody")
    monkeypatch.setenv(row.variable, "secret-key")
    await run_model(row.adapter("m", provider="somebody", base_url=server.play(row.play())))
    assert "secret-key" not in str(server.requests[-1].headers)


KEYED = [row for row in ROWS if row.adapter is not Ollama]
NO_KEY = {
    "openai": "no key: set OPENAI_API_KEY, or give api_key",
    "anthropic": "no key: set ANTHROPIC_API_KEY, or give api_key",
    "gemini": "no key: set GEMINI_API_KEY or GOOGLE_API_KEY, or give api_key",
}


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing in the environment that an SDK or an adapter takes for a key."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "OLLAMA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # where one SDK looks for a profile


@pytest.mark.anyio
@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize("row", KEYED, ids=lambda row: row.adapter.__name__)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("given", "held"), [(None, None), ("", None), (" ", None), (None, ""), (None, " \n")])
async def test_without_a_key_the_request_says_which_variable_holds_one(
    monkeypatch: pytest.MonkeyPatch, row: Row, kept: bool, given: str | None, held: str | None
) -> None:
    """In the same words whatever the SDK says, `async with` it or not; one that is empty or blank is none."""
    if held is not None:
        monkeypatch.setenv(row.variable, held)
    model = row.adapter("m", api_key=given)
    if kept:
        async with model:
            outcome = await run_model(model)
    else:
        outcome = await run_model(model)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("auth", NO_KEY[row.extra])


@pytest.mark.anyio
@pytest.mark.usefixtures("no_keys")
@every
@pytest.mark.parametrize("given", [None, "", " "])
async def test_a_key_at_an_address_of_the_callers(server: WireServer, row: Row, given: str | None) -> None:
    """Where the SDK wants one the request fails without being sent; somebody else's server is asked without."""
    address = server.play(row.play())
    count = len(server.requests)
    outcome = await run_model(row.adapter("m", base_url=address, api_key=given))
    if row.package == "httpx2":
        assert outcome.committed
    else:
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == ("auth", NO_KEY[row.extra])
        assert len(server.requests) == count
    assert (await run_model(row.adapter("m", provider="somebody", base_url=address, api_key=given))).committed


@pytest.mark.anyio
@pytest.mark.usefixtures("no_keys")
@every
async def test_a_key_is_sent_without_the_blanks_around_it(
    server: WireServer, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    """One that was read from a file ends with a newline, which no header can hold."""
    address = server.play(row.play())
    assert (await run_model(row.adapter("m", base_url=address, api_key=" mine\n"))).committed
    sent = server.requests[-1].headers
    assert {"mine", "Bearer mine"} & {sent.get(name) for name in ("authorization", "x-api-key", "x-goog-api-key")}
    monkeypatch.setenv(row.variable, "held\n")
    if row.package != "httpx2":
        assert (await run_model(row.adapter("m", base_url=address))).committed
        sent = server.requests[-1].headers
        assert {"held", "Bearer held"} & {sent.get(name) for name in ("authorization", "x-api-key")}


@pytest.mark.anyio
@pytest.mark.usefixtures("no_keys")
async def test_a_credential_that_is_there_and_broken_is_told_in_the_words_of_the_sdk(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for a key would hide what is wrong."""
    monkeypatch.setenv("ANTHROPIC_PROFILE", "nowhere")
    outcome = await run_model(Anthropic("m", base_url=server.play(ROWS[0].play())))
    assert outcome.error is not None
    assert "nowhere" in outcome.error.message
    assert "no key" not in outcome.error.message


@pytest.mark.anyio
@every
async def test_options_of_the_adapter_are_defaults(server: WireServer, row: Row) -> None:
    """Each request has them; its own stand over them."""
    model = row.model(server.play(row.play()), options={"temperature": 0.5, "odd": "mine"})
    await run_model(model, options={"odd": "yours"})
    sent = server.requests[-1].json
    assert sent["odd"] == "yours"
    assert '"temperature": 0.5' in json.dumps(sent)


@every
def test_the_callable_says_who_it_is(row: Row) -> None:
    """Provider and model are attributes, and its text names both."""
    model = row.model("http://127.0.0.1:1", provider="somebody")
    assert (model.provider, model.model) == ("somebody", "m")
    assert repr(model) == f"{row.adapter.__name__}('m', provider='somebody')"
