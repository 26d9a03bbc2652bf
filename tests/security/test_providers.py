"""What a hostile provider can send: lines and bodies without end, bombs, and events that cost more than they weigh."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from agentloop.errors import ModelError
from agentloop.messages import user
from agentloop.model import Finish, ModelRequest, ThinkingChunk
from agentloop.models import _bounds, _framing
from agentloop.models._chat_reader import Reader
from agentloop.models._errors import response_error
from agentloop.models._framing import EventBytes
from agentloop.models._responses_events import MAX_PARTS, EventReader
from agentloop.models.anthropic import Anthropic
from agentloop.models.gemini import Gemini
from agentloop.models.ollama import Ollama
from agentloop.models.openai_chat import OpenAIChat
from agentloop.models.openai_responses import OpenAIResponses

REQUEST = ModelRequest(None, (user("x"),), (), {})
HEAD = b"HTTP/1.1 %d x\r\ncontent-type: %s\r\n%s\r\n"
BLOCK = b"x" * 65_536
MANY = 64


@contextlib.contextmanager
def endless(status: int, kind: bytes, begin: bytes, block: bytes = BLOCK, more: bytes = b"") -> Iterator[str]:
    """A server whose answer begins so and goes on with one block far beyond the bound, or until the client leaves."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(HEAD % (status, kind, more) + begin)
                for _ in range(MANY if block else 0):
                    connection.sendall(block)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):  # until the client leaves: closed before, its last bytes would be lost
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(10)


SDKS = [OpenAIChat, OpenAIResponses, Anthropic]
OURS = [Gemini, Ollama]
all_adapters = pytest.mark.parametrize("adapter", [*SDKS, *OURS], ids=lambda adapter: adapter.__name__)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bounds, "MAX_HELD", 300_000)
    monkeypatch.setattr(_bounds, "MAX_COPIED", 30_000_000)
    monkeypatch.setattr(_framing, "MAX_EVENT", 300_000)


async def refusal(adapter: Any, address: str) -> ModelError:
    chunks = adapter("m", base_url=address, api_key="k")(REQUEST)
    with pytest.raises(ModelError) as caught:
        async for _ in chunks:
            pass
    return caught.value


@pytest.mark.anyio
@all_adapters
async def test_a_stream_without_a_line_end(adapter: Any) -> None:
    """A stream that never ends its line is given up within the bound (`malformed`), by every adapter, connection closed."""
    with endless(200, b"text/event-stream", b"data: {") as address:
        error = await refusal(adapter, address)
    assert error.code == "malformed"
    assert "300000 bytes" in str(error)


@pytest.mark.anyio
@all_adapters
async def test_an_event_without_an_end(adapter: Any) -> None:
    """An event of data lines without end, each of them short or empty, is given up as well."""
    with endless(200, b"text/event-stream", b"", b"data:\n" * 8_192) as address:
        assert (await refusal(adapter, address)).code == "malformed"


@pytest.mark.anyio
@all_adapters
async def test_an_answer_and_an_error_without_an_end(adapter: Any) -> None:
    """A JSON answer, or the body of an error, that never ends: an error in bounded memory."""
    for status in (200, 500):
        with endless(status, b"application/json", b'{"a":"') as address:
            assert (await refusal(adapter, address)).code in ("malformed", "network")


@pytest.mark.anyio
@all_adapters
async def test_a_body_that_is_a_bomb(adapter: Any) -> None:
    """A small compressed body that becomes a large one, twice over, counts with what it becomes."""
    bomb = gzip.compress(gzip.compress(b"data: {" + b"x" * 5_000_000, 9), 9)
    more = b"content-encoding: gzip, gzip\r\n"
    assert len(bomb) < 10_000
    with endless(200, b"text/event-stream", bomb, b"", more) as address:
        assert (await refusal(adapter, address)).code == "malformed"


@pytest.mark.anyio
async def test_many_events_are_no_long_one() -> None:
    """The bound is for one event: a stream of many, of any length in all, goes through, however it is cut."""

    class Response:
        headers: ClassVar[dict[str, str]] = {"content-type": "text/event-stream"}

        async def aiter_bytes(self, chunk_size: int | None = None) -> Any:
            for _ in range(30):  # of 200 kB each
                for piece in (b"data: " + b"x" * 200_000, b"\r", b"\n\r", b"\n", b"data: y\n", b"\n"):
                    yield piece

    response: Any = Response()
    await _bounds.bound_answer(response)
    assert sum([len(piece) async for piece in response.aiter_bytes()]) > 6_000_000


def test_parts_of_a_message_are_bounded() -> None:
    """Every part of a message keeps what its item says: more than a few hundred parts are refused as `malformed`."""
    reader = EventReader()
    event = {"type": "response.output_text.delta", "output_index": 0, "delta": "x"}
    for number in range(MAX_PARTS):
        list(reader.feed({**event, "content_index": number}))
    with pytest.raises(ModelError, match="parts"):
        list(reader.feed({**event, "content_index": MAX_PARTS}))


def test_opaque_reasoning_in_many_pieces() -> None:
    """Opaque reasoning that comes in pieces is joined once, at its end, whole."""
    reader = Reader()
    for number in range(1_000):
        reader.read({"choices": [{"delta": {"reasoning_opaque": f"{number};"}}]})
    reader.read({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    told = [chunk for chunk in reader.end() if isinstance(chunk, ThinkingChunk) and chunk.fidelity]
    assert told[0].fidelity is not None
    assert told[0].fidelity["reasoning_opaque"] == "".join(f"{number};" for number in range(1_000))


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"choices":' + b"[" * 50_000 + b"\n\n",
        b'data: {"choices":[{"delta":{"content":' + b"9" * 5_000 + b"}}]}\n\n",
        b'data: {"usage":{"prompt_tokens":1e999,"completion_tokens":NaN,"total_tokens":-5}}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ud800"}}],"choices":[{"delta":{"content":"b\\udc00"}}]}\n\n',
        b'data: {"__proto__":{"error":1},"choices":[{"delta":{"__class__":"x","tool_calls":[{"index":true}]}}]}\n\n',
    ],
    ids=["deep", "huge", "no numbers", "surrogates, doubled keys", "odd keys"],
)
def test_hostile_events(body: bytes) -> None:
    """Deep, huge, split, doubled and odd values in an event: chunks or `malformed`, nothing else."""
    reader, framing = Reader(), EventBytes()
    try:
        chunks = [chunk for event in framing.feed(body) for chunk in reader.read(event)]
    except ModelError as error:
        assert error.code == "malformed"  # noqa: PT017
    else:
        assert not any(isinstance(chunk, Finish) for chunk in chunks)


@pytest.mark.parametrize("text", ["try again in " + "9" * 1_500 + "s", "retry" * 10_000, "api key " * 10_000])
def test_hostile_words_of_an_error(text: str) -> None:
    """Words of an error without end: bounded, and no wait that is no number of seconds."""
    error = response_error(429, {"retry-after": "9" * 5_000}, json.dumps({"error": {"message": text}}).encode())
    assert len(str(error)) < 3_000
    assert error.retry_after is None or error.retry_after < float("inf")
