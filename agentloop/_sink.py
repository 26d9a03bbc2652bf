"""Where a running call reports: progress, streamed output, events of nested runs; from any thread."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Protocol

import anyio.lowlevel
import attrs

from agentloop._frozen import frozen
from agentloop._host import Host, Job, Waiter, close_nested, close_shielded
from agentloop._results import cut_note, cut_result, cut_text
from agentloop._values import REPLACEMENT, is_kind, plain_text, stitch, valid_text
from agentloop.abort import AbortSignal
from agentloop.config import Config
from agentloop.events import ChildEvent, Event, MessageUpdate, SubagentStarted, ToolExecutionUpdate
from agentloop.messages import Text, ToolResult, text_of
from agentloop.tools import as_result

_PIECES = (MessageUpdate, ToolExecutionUpdate)
"""Events of a nested run behind which no effect begins: what they come from goes on already."""
_PROGRESS_BOUND = 8
"""Reports of progress that may wait for the consumer, however little of a model's stream is read ahead."""


class Outlet(Protocol):
    """Where reports go: the run, or what stands for it while nothing of a call is told."""

    config: Config
    host: Host
    buffer: deque[Event]
    room_waiters: list[Waiter]
    closing_bound: float

    @property
    def closing(self) -> bool:
        """Whether the consumer has left: nothing is told any more."""
        ...

    def emit(self, event: Event) -> None:
        """Tell, and fold."""
        ...

    def emit_update(self, event: Event) -> None:
        """Tell what the fold leaves out."""
        ...


class Sink:
    """The reports of one call. After its end, and when the run is left (`closed`), everything is dropped."""

    __slots__ = (
        "_carry",
        "_core",
        "_given",
        "_id",
        "_limit",
        "_name",
        "_told",
        "bound",
        "closed",
        "job",
        "signal",
        "streamed",
    )

    def __init__(self, core: Outlet, id: str, name: str, signal: AbortSignal) -> None:
        self._core: Outlet = core
        self._id = id
        self._name = name
        self.signal = signal
        self.closed = False
        self.job: Job | None = None
        """The call's, once its tool runs."""
        self.streamed = False
        """Whether any output was streamed."""
        self.bound = 0.0
        """What nested runs need to close."""
        self._told: io.StringIO | None = None  # made for the few calls that stream
        self._carry = ""
        self._limit = core.config.max_result_characters
        self._given = 0
        """Characters of output, those over the limit as well."""

    # ------------------------------------------------------------ the contract of ToolSink

    def progress(self, result: ToolResult) -> None:
        """Progress for the card; never waits. Over the buffer's bound it replaces the oldest undelivered one (G13)."""
        if threading.get_ident() != self._core.host.thread:
            self._core.host.soon(lambda: self._progress(result))
        else:
            self._progress(result)

    def output(self, text: str) -> Awaitable[None]:
        """A piece of the output, taken at once; awaiting waits for room. In a worker thread the call itself waits."""
        if type(text) is not str and not self.closed:
            text = _plain(text)  # here: what is no text is the tool's failure, and not the event loop's
        if threading.get_ident() != self._core.host.thread:
            self._from_thread(text)
            return _NOTHING_TO_WAIT_FOR
        self._output(text)
        return _Room(self)

    async def child(self, event: SubagentStarted | ChildEvent) -> None:
        """An event of a nested run. Behind a piece of a reply, or of a call's output, it waits for room, behind all else for
        the consumer to come back: then only the nested run is stepped again, so its effects keep the lockstep too (G12)."""
        if self.deaf:
            await anyio.lowlevel.checkpoint()  # where a cancellation gets in
            return
        self._core.emit(event)  # the fold adds up its tokens
        if isinstance(event, ChildEvent) and type(event.event) in _PIECES:
            await _Room(self)
            return
        waiter = self._core.host.waiter()
        self._core.room_waiters.append(waiter)
        unsubscribe = self.signal.subscribe(waiter.set)  # then nothing begins any more: its end is not held up
        try:
            await waiter.wait()
        finally:
            unsubscribe()

    async def close(self, close: Callable[[], Awaitable[Any]]) -> None:
        """Await a nested run's clean-up; whoever gives the call up cuts it."""
        assert self.job is not None
        await close_nested(close, self.job)

    def closing_bound(self, seconds: float) -> None:
        """A nested run needs this long to close."""
        self.bound = max(self.bound, seconds)
        self._core.closing_bound = max(self._core.closing_bound, seconds)

    # ------------------------------------------------------------ for the batch

    async def stream(self, pieces: AsyncGenerator[Any, None], job: Job) -> Any:
        """Stream what an async generator yields; a `ToolResult` among it is the result's other half."""
        final: Any = None
        try:
            async for piece in pieces:
                if is_kind(piece, ToolResult):
                    final = piece
                    await anyio.lowlevel.checkpoint()  # nothing comes of it, but the others are to have their turn
                else:
                    text = plain_text(piece)
                    self._output(text_of(as_result(piece).content) if text is None else text)
                    await _Room(self)
        finally:
            await close_shielded(pieces.aclose, job)
        return final

    def merge(self, result: ToolResult) -> ToolResult:
        """The result with the streamed output as its text; what the value adds to it is streamed too.

        What is over the limit is cut: of the output, and of a text that does not just repeat it.
        """
        if not self.streamed:
            return cut_result(result, self._limit)
        self._flush()
        said = self._said
        text = text_of(result.content)
        if not text.startswith(said):
            self._tell_cut()
            if text:
                self._tell(f"\n{cut_text(text, self._limit)}")
        else:
            if self.cut:
                self._given = max(self._given, len(text))
            elif rest := text[len(said) :]:
                self._give(rest)
            self._tell_cut()
        others = [block for block in result.content if not isinstance(block, Text)]
        streamed = self._said
        return attrs.evolve(result, content=(*([Text(streamed)] if streamed else []), *others))

    def note(self, text: str) -> str:
        """Words of the kernel's own that stand for an empty output."""
        if self.streamed:
            self._tell(text)
        return text

    def with_note(self, text: str) -> str:
        """The output so far and the kernel's own words behind it, streamed as a last delta; as one text."""
        if not self.streamed:
            return valid_text(text)
        self._flush()
        self._tell_cut()
        self._tell(f"\n{valid_text(text)}" if self._said else valid_text(text))
        return self._said

    # ------------------------------------------------------------ inside

    def _progress(self, result: ToolResult) -> None:
        core = self._core
        if self.closed:
            return
        if len(core.buffer) >= max(core.config.run_ahead, _PROGRESS_BOUND):
            self._drop_oldest_progress()
        core.emit_update(ToolExecutionUpdate(self._id, self._name, result))

    def _drop_oldest_progress(self) -> None:
        buffer = self._core.buffer
        for index, event in enumerate(buffer):
            if type(event) is ToolExecutionUpdate and event.delta is None and event.tool_call_id == self._id:
                del buffer[index]
                return

    def _output(self, text: str) -> None:
        if self.closed:
            return
        if self._carry or not text.isascii():
            text, self._carry = stitch(self._carry, text)
        self._give(text)

    def _give(self, text: str) -> None:
        """Output of the tool's own, as far as the limit goes."""
        before = self._given
        self._given += len(text)
        if self._limit is None:
            self._tell(text)
        elif before < self._limit:
            self._tell(text[: self._limit - before])

    @property
    def _said(self) -> str:
        """The output as it was told."""
        return "" if self._told is None else self._told.getvalue()

    @property
    def cut(self) -> bool:
        """Whether output was dropped, since it is over the limit."""
        return self._limit is not None and self._given > self._limit

    def _tell_cut(self) -> None:
        """Say that output was dropped."""
        if self._limit is not None and self._given > self._limit:
            self._tell(f"\n{cut_note(self._limit, self._given)}")

    def _tell(self, text: str) -> None:
        self.streamed = True
        self._told = self._told or io.StringIO()
        self._told.write(text)
        self._core.emit_update(ToolExecutionUpdate(self._id, self._name, None, text))

    def _flush(self) -> None:
        """Half a surrogate pair that waits for its other half at the end of the output."""
        if self._carry:
            self._give(REPLACEMENT)

    def _from_thread(self, text: str) -> None:
        room = threading.Event()

        def take() -> None:
            self._output(text)
            if self.full:
                self._core.room_waiters.append(_Flag(room.set))
            else:
                room.set()

        self._core.host.soon(take)
        while not room.wait(0.1) and not self.closed:
            pass

    @property
    def deaf(self) -> bool:
        """Whether reports are dropped, since the call or the run is over."""
        return self.closed or self._core.closing

    @property
    def full(self) -> bool:
        """Whether output has to wait for the consumer."""
        core = self._core
        return len(core.buffer) >= max(core.config.run_ahead, 1) and not self.closed

    async def wait_for_room(self) -> None:
        """Return when the consumer has caught up."""
        while self.full:
            waiter = self._core.host.waiter()
            self._core.room_waiters.append(waiter)
            await waiter.wait()


def _plain(text: str) -> str:
    """A text of a class of its own as a plain one. Raises `TypeError` for what is no text."""
    plain = plain_text(text)
    if plain is None:
        raise TypeError(f"expected text, got {type(text).__name__}")
    return plain


@frozen
class _Flag:
    """A thread's event among the waiters of a run."""

    set: Callable[[], None]

    def wait(self) -> Awaitable[Any]:
        raise TypeError("a thread waits for itself")


class _Room:
    """Awaited, it waits for room; not awaited, it costs nothing and warns of nothing."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __await__(self) -> Generator[Any, None, None]:
        if self._sink.full:
            yield from self._sink.wait_for_room().__await__()
        elif self._sink.cut or self._sink.deaf:  # what is dropped fills nothing; a cancellation and the others get in
            yield from anyio.lowlevel.checkpoint().__await__()


class _Nothing:
    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_NOTHING_TO_WAIT_FOR = _Nothing()
