"""`record`: any stream of events, each on disk before its consumer sees it.

    async for event in record(agent_loop(messages, context, config), trace):
        ...

With the kernel's lockstep (no effect before the consumer has come back for more) this is a write-ahead log: no
`tool_execution_start` on disk, no tool ran. No cancel scope or task group is held across a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Final, Literal, NoReturn, TypeAlias

import anyio

from agentloop._awaiting import is_awaitable
from agentloop._results import error_text
from agentloop._stepped import Wrapper
from agentloop._values import order_to_leave
from agentloop.errors import TraceWriteError
from agentloop.events import (
    ChildEvent,
    Event,
    MessageUpdate,
    TextDelta,
    TextStart,
    ThinkingDelta,
    ThinkingStart,
    ToolCallDelta,
    ToolCallStart,
)
from agentloop.omni._sink_call import GRACE, SinkCall
from agentloop.omni.codec import Encoder, TraceFilter
from agentloop.omni.records import Clock, Record
from agentloop.omni.redact import mask_secrets
from agentloop.omni.trace import Redact, TraceWriter

__all__ = ["Policy", "Recording", "Sink", "record"]

Sink: TypeAlias = Callable[[Record], Awaitable[Any] | None]
"""Takes records, one at a time, to wherever the application keeps them; usually an async function."""

Policy: TypeAlias = Literal["fail", "warn"]
"""What happens when a record cannot be written: `fail` ends the run with `TraceWriteError`; with `warn` it goes on, and a
warning is logged once."""

log = logging.getLogger(__name__)

_PIECES: Final = frozenset({TextStart, TextDelta, ThinkingStart, ThinkingDelta, ToolCallStart, ToolCallDelta})
"""Deltas that a trace leaves out whole: their ends carry the blocks."""


def record(
    events: AsyncIterable[Event],
    trace: TraceWriter | Sink,
    *,
    policy: Policy = "fail",
    write_timeout: float = 5.0,
    redact: Redact | None = mask_secrets,
    clock: Clock = time.time,
) -> Recording:
    """The same events, each recorded before it is handed over. Events of nested runs are not recorded: each has a recorder
    of its own.

    `trace` is a `TraceWriter`, or a sink, a function that is given each record that a trace file would hold after its head
    (`TraceFilter`: whole blocks, no fragments): `decode` makes events of them again, `resume` the conversation. `redact` is
    asked about each record first (a writer has its own). A sink that does not take a record within `write_timeout` seconds
    has failed; it is cancelled, and not asked again.

    With the policy `fail` a record that cannot be written closes the run and raises `TraceWriteError` from the step;
    its event is not handed over, so nothing that follows from it happens. With `warn` the run goes on and a warning
    is logged once. Raises `TypeError` for a `trace` that is neither, `ValueError` for another policy.

    Leaving early (`aclose`, or dropping it) closes the wrapped run. A step that is cancelled while a sink is awaited
    ends the run, as any cancelled step does; inside `running(record(…))` the next step goes on with that very record.
    """
    if policy not in ("fail", "warn"):
        raise ValueError(f"policy: expected fail or warn, got {policy!r}")
    if not isinstance(trace, TraceWriter) and not callable(trace):
        raise TypeError(f"trace: expected a TraceWriter or a function that takes a record, got {trace!r}")
    return Recording(events, trace, policy, write_timeout, redact, clock)


class Recording(Wrapper[Event]):
    """An async iterator of the events that it has recorded. Made by `record`; one step at a time."""

    __slots__ = (
        "__weakref__", "_call", "_closed", "_count", "_encode", "_filter", "_keep", "_next", "_open", "_policy", "_redact",
        "_sink", "_stepping", "_write_timeout", "_writer", "lost",
    )  # fmt: skip

    def __init__(
        self,
        events: AsyncIterable[Event],
        trace: TraceWriter | Sink,
        policy: Policy,
        write_timeout: float,
        redact: Redact | None,
        clock: Clock,
    ) -> None:
        """See `record`."""
        self.lost = 0
        """Records that could not be written."""
        self._events = aiter(events)
        self._next = self._events.__anext__
        encoder = Encoder(clock)
        self._encode, self._count = encoder.encode, encoder.count
        self._writer = trace if isinstance(trace, TraceWriter) else None
        self._sink: Sink | None = None if isinstance(trace, TraceWriter) else trace
        self._filter = TraceFilter()
        self._redact = redact
        self._policy = policy
        self._write_timeout = write_timeout
        self._open: tuple[Event, list[Record]] | None = None  # an event whose records are not all written
        self._call: SinkCall | None = None  # the sink, at the first of those records
        self._stepping = False
        self._closed = False
        self._keep = False

    async def __anext__(self) -> Event:
        """The next event, recorded. Raises `StopAsyncIteration` after the last, and `TraceWriteError` (policy
        `fail`)."""
        if self._closed:
            raise StopAsyncIteration
        if self._stepping:
            raise RuntimeError("this recording is being stepped already: one step at a time")
        self._stepping = True
        try:
            if self._open is None:
                event = await self._next()
                kind = type(event)
                if kind is ChildEvent:
                    self._count(event)  # type: ignore[arg-type]
                    return event
                if kind is MessageUpdate and type(event.delta) in _PIECES:  # type: ignore[union-attr]
                    return event
                try:
                    records = self._encode(event)
                except BaseException as error:
                    # An application's own message that has no form in JSON, or whose own code raises.
                    await self._leave(error)
                    records = []
                    await self._failed(_no_record(error))
                if self._writer is not None:
                    for record in records:
                        try:
                            self._writer.write(record, trusted=True)
                        except TraceWriteError as error:
                            await self._failed(error)
                        except BaseException as error:
                            await self._leave(error)
                            raise
                    return event
                self._open = event, records
            return await self._step_of_sink(*self._open)
        finally:
            self._stepping = False

    async def _failed(self, error: TraceWriteError) -> None:
        """A record could not be written: end the run, or log it once."""
        self.lost += 1
        if self._policy == "fail":
            await self._close()
            raise error
        if self.lost == 1:
            log.warning("the run goes on, but its trace is not complete: %s", error)

    # ------------------------------------------------------------ a sink of one's own

    async def _step_of_sink(self, event: Event, records: list[Record]) -> Event:
        while records:
            try:
                if self._sink is not None:
                    await self._offer(self._sink, records[0])
                elif self._filter.keep(records[0]):
                    raise TraceWriteError("expected a sink, got one that was given up")
            except TraceWriteError as error:
                await self._failed(error)
            del records[0]
        self._open = None
        return event

    async def _offer(self, sink: Sink, record: Record) -> None:
        """Give one record to the sink, or wait further for it to take that which it has."""
        if self._call is None:
            try:
                kept = self._kept(record)
                answer = None if kept is None else sink(kept)
            except BaseException as error:
                await self._refused(error)
            if not is_awaitable(answer):
                return
            self._call = SinkCall(answer)
        await self._await_sink(self._call)

    def _kept(self, record: Record) -> Record | None:
        if not self._filter.keep(record):
            return None
        return record if self._redact is None else self._redact(record)

    async def _await_sink(self, call: SinkCall) -> None:
        try:
            over = await call.wait(self._write_timeout)
        except BaseException:
            if not self._keep:
                await self._close()
            raise
        if self._closed:
            raise StopAsyncIteration
        if not over:
            await self._give_up()
            raise TraceWriteError(f"expected the sink to take a record within {self._write_timeout:g} s, got no answer")
        self._call = None
        if call.error is not None:
            await self._refused(call.error)

    async def _refused(self, error: BaseException) -> NoReturn:
        """A sink raised."""
        await self._leave(error)
        said = f"{type(error).__name__} ({error_text(error)})"
        raise TraceWriteError(f"expected the sink to take a record, got {said}") from error

    async def _leave(self, error: BaseException) -> None:
        """Close the run and raise, whatever the policy, if the error is a `KeyboardInterrupt` or `SystemExit` (perhaps in a
        group); else do nothing."""
        order = order_to_leave(error)
        if order is not None:
            await self._close()
            raise order

    async def _give_up(self) -> None:
        """Cancel what the sink is doing; one that goes on all the same is left alone, and never asked again."""
        self._sink = None
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
            with anyio.CancelScope(shield=True):
                if not await call.wait(GRACE):
                    log.warning("a sink did not stop after its cancellation; it is left to itself")

    # ------------------------------------------------------------ the end

    async def _close(self) -> None:
        self._closed = True
        await self._give_up()
        with anyio.CancelScope(shield=True):
            await super().aclose()

    async def aclose(self) -> None:
        """Close the wrapped run and await its end. What is not written yet is not written. A second call does
        nothing."""
        if not self._closed:
            await self._close()

    def keep_alive(self) -> None:
        """From now on a cancelled step does not end the run. Whoever calls this must close it (`running` does both)."""
        self._keep = True
        super().keep_alive()


def _no_record(error: BaseException) -> TraceWriteError:
    wrapped = TraceWriteError(f"expected an event that can be a record, got {error_text(error)}")
    wrapped.__cause__ = error
    return wrapped
