"""What the adapter battery is made of: the replies that it wants played, who plays them, and one adapter's stream read."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

import anyio
import attrs

from agentloop.errors import FinishReason, ModelError
from agentloop.messages import ToolCall, Usage
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    Model,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.testing._wire_server import Play, WireServer

CHUNKS = (TextChunk, ThinkingChunk, ToolCallChunk, BlockEnd, BlockChunk, UsageChunk, Finish, str)


class ContractBroken(AssertionError):
    """An adapter does not keep the contract; the text says what was expected and what came."""


class CannotPlay(Exception):
    """Raised by `Provider.model`: this provider never answers like that, so there is nothing to check."""


def broken(expected: str, got: str) -> NoReturn:
    """Raise `ContractBroken`, which says what is wrong."""
    raise ContractBroken(f"expected {expected}, got {got}")


@attrs.frozen
class Reply:
    """What a provider answers to one request: text in pieces, then calls, then how it ends."""

    text: Sequence[str] = ()
    """The pieces of one block of text, each sent on its own."""
    calls: Sequence[ToolCall] = ()
    """Whole calls; a provider without ids may leave theirs out."""
    usage: Usage = Usage(0, 11, 7)
    """The tokens that the provider reports."""
    finish: FinishReason = "stop"
    """Why the reply ends."""
    end: Literal["whole", "cut", "broken", "stall", "garbage"] = "whole"
    """`whole`: as `usage` and `finish` say. All others end after the content: `cut`, properly, but without the
    provider's mark of an end; `broken`, by a connection that fails; `stall`, it stays open and nothing more comes;
    `garbage`, by bytes that are not of the provider's format."""
    error: str | None = None
    """Refuse the request instead; the error code that the adapter must give."""
    retry_after: float | None = None
    """With `error`: the wait that the provider asks for, in seconds."""


class Provider:
    """Plays replies to the adapter that is checked. Subclass it, or `WireProvider` for one that speaks HTTP."""

    exact = True
    """Whether it says what a `Reply` holds. False for a model that says what it likes (fixed rules, real weights): then
    only the form of its replies is checked."""

    def model(self, *replies: Reply) -> Model:
        """A new adapter, whose requests get these replies, one after the other, the last one again and again.

        Raises `CannotPlay` for a reply that this provider never gives.
        """
        raise NotImplementedError(f"{type(self).__name__}.model: expected a method of your own")

    def open_streams(self) -> int:
        """How many of the provider's streams are open: begun, not at their end, and not left by the adapter."""
        raise NotImplementedError(f"{type(self).__name__}.open_streams: expected a method of your own")

    def sent(self) -> Sequence[str] | None:
        """What was asked so far, a text each request, in order; None: this provider cannot tell."""
        return None


_STATUS = {
    "auth": 401, "rejected": 400, "rate_limit": 429, "overloaded": 503, "network": 500, "context_too_long": 400,
}  # fmt: skip


class WireProvider(Provider):
    """A provider on a loopback server. Say how the adapter is made and how a reply looks as bytes:

        class Acme(WireProvider):
            def adapter(self, address): return AcmeModel("m", base_url=address, api_key="k")
            def body(self, reply): return events_of(reply), b"data: [DONE]"

    It is a context manager; leaving it stops the server.
    """

    headers: Mapping[str, str] = {"content-type": "text/event-stream"}
    """Of an answer that is a stream."""
    chop = "random:1"
    """Where writes end, as in `Play`: within characters too."""

    def __init__(self) -> None:
        self.server = WireServer()

    def __enter__(self) -> Any:
        self.server.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.server.__exit__(*exc_info)

    def adapter(self, address: str) -> Model:
        """A new adapter that asks at this address."""
        raise NotImplementedError(f"{type(self).__name__}.adapter: expected a method of your own")

    def body(self, reply: Reply) -> tuple[bytes, bytes]:
        """The bytes of a reply: of its text and calls, and of how it ends."""
        raise NotImplementedError(f"{type(self).__name__}.body: expected a method of your own")

    def refusal(self, reply: Reply) -> Play:
        """The answer for `reply.error`: here the usual status, words and header. Raises `CannotPlay`."""
        if reply.error not in _STATUS:
            raise CannotPlay(reply.error)
        long = reply.error == "context_too_long"
        words = b"maximum context length is 8 tokens" if long else str(reply.error).encode()
        code = b', "code": "context_length_exceeded"' if long else b""
        wait = {} if reply.retry_after is None else {"retry-after": f"{reply.retry_after:g}"}
        body = b'{"error": {"message": "%s"%s}}' % (words, code)
        return Play(body, _STATUS[reply.error], {"content-type": "application/json", **wait})

    def play(self, reply: Reply) -> Play:
        """The answer to one request."""
        if reply.error is not None:
            return self.refusal(reply)
        content, ending = self.body(reply)
        if reply.end == "whole":
            return Play(content + ending, headers=self.headers, chop=self.chop)
        if reply.end == "garbage":
            content += b"data: {\xff\x00 this is no JSON\n\n"
        whole = Play(content + b"?", headers=self.headers, chop=self.chop)
        cut: dict[str, Any] = {{"stall": "stall_at", "broken": "drop_at"}.get(reply.end, "end_at"): len(content)}
        return attrs.evolve(whole, **cut)

    def model(self, *replies: Reply) -> Model:
        """The adapter at an address that plays these replies."""
        return self.adapter(self.server.play(*[self.play(reply) for reply in replies]))

    def open_streams(self) -> int:
        """Answers that the server still has in hand."""
        return sum(not request.answered.is_set() for request in list(self.server.requests))

    def sent(self) -> Sequence[str]:
        """The bodies of the requests."""
        return [request.body.decode("utf-8", "replace") for request in list(self.server.requests)]


# ---------------------------------------------------------------- one adapter's stream


@attrs.define
class Reading:
    """What came out of an adapter for one request."""

    chunks: list[Any] = attrs.field(factory=list)
    error: ModelError | None = None

    @property
    def text(self) -> str:
        """The text, joined."""
        return "".join(text_of(chunk) for chunk in self.chunks)


def text_of(chunk: Any) -> str:
    """The text that a chunk adds; that of a call or of thinking is none."""
    return chunk if isinstance(chunk, str) else chunk.text if isinstance(chunk, TextChunk) else ""


async def chunks_of(model: Model, request: ModelRequest) -> AsyncIterator[Any]:
    """The chunks, one by one, closed like the kernel does it. `ModelError` passes, any other exception is a breach."""
    stream = model(request)
    if not hasattr(stream, "__anext__"):
        broken("an async iterator of chunks", type(stream).__name__)
    try:
        async for chunk in stream:
            yield chunk
    except (ModelError, ContractBroken):
        raise
    except Exception as error:
        broken("a ModelError", f"{type(error).__name__}: {error}")
    finally:
        await close(stream)


async def close(stream: Any) -> None:
    """Close an iterator, if it can be closed."""
    if hasattr(stream, "aclose"):
        await stream.aclose()


async def read(model: Model, request: ModelRequest) -> Reading:
    """One reply to its end, without the kernel."""
    reading = Reading()
    stream = chunks_of(model, request)
    try:
        async for chunk in stream:
            reading.chunks.append(chunk)
    except ModelError as error:
        reading.error = error
    finally:
        await close(stream)
    return reading


CLOSE_BOUND = 5.0
"""Longest time, in seconds, between leaving a stream and the provider seeing it closed."""


async def all_closed(provider: Provider, after: str) -> None:
    """Wait until no stream is open; breach if one stays."""
    with anyio.move_on_after(CLOSE_BOUND):
        while provider.open_streams():  # noqa: ASYNC110  # a provider may see it by its socket alone: no event to wait for
            await anyio.sleep(0.005)
    if still := provider.open_streams():
        broken(f"the provider's stream to be closed after {after}", f"{still} still open after {CLOSE_BOUND:g} s")


@contextmanager
def no_generator_left() -> Iterator[None]:
    """Breach if an async generator that began inside is not at its end when the block is left: the garbage collector
    would have to close it, which warns on trio and starts a task on asyncio."""
    begun: list[AsyncGenerator[Any, Any]] = []
    hooks = sys.get_asyncgen_hooks()

    def first(generator: AsyncGenerator[Any, Any]) -> None:
        begun.append(generator)
        if hooks.firstiter is not None:
            hooks.firstiter(generator)

    sys.set_asyncgen_hooks(firstiter=first, finalizer=hooks.finalizer)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
    left = [getattr(each, "__qualname__", "?") for each in begun if getattr(each, "ag_frame", None) is not None]
    if left:
        broken("every async generator to be closed with the stream", f"{', '.join(left)} left open")
