"""`SessionRun`: one run of a session, stepped like the kernel's `Run`; and the same run as records.

Each event is on disk before it is handed over, and folded into the session's conversation. However the run ends (its end,
an error, a cancelled step, `aclose`, or being dropped), the conversation is settled, so that the next run can start. No
cancel scope, task group or lock is held across a step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from agentloop._results import error_text
from agentloop._session.conversation import Conversation
from agentloop._stepped import Stepped
from agentloop._values import is_kind, order_to_leave
from agentloop.events import AgentEnd, Event
from agentloop.omni.codec import Encoder, StreamFilter
from agentloop.omni.recorder import Recording
from agentloop.omni.records import Clock, Record

log = logging.getLogger("agentloop.session")


class Slot(Protocol):
    """What a run needs of its session: to be the only one that goes on, and to say when it is over."""

    conversation: Conversation

    def take(self, run: SessionRun) -> None:
        """The run begins. Raises `SessionBusy` when another one is going on."""
        ...

    def give_back(self, run: SessionRun) -> None:
        """The run is over; a second call does nothing."""
        ...


class OneMoment:
    """A clock that stands still while the records of one event are made: trace and stream tell the same time."""

    __slots__ = ("_clock", "_now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now: float | None = None

    def __call__(self) -> float:
        if self._now is None:
            self._now = self._clock()
        return self._now

    def forget(self) -> None:
        """The next event comes."""
        self._now = None


class SessionRun(Stepped[Event]):
    """A run of a session: an async iterator of its events. Made by `Session.run` and `Session.compact`.

    As the kernel's `Run`: one step at a time; a step that is cancelled ends the run cleanly, inside `running(…)` it does
    not; `aclose` awaits the end of model stream and tools.
    """

    def __init__(self, slot: Slot, start: Callable[[Clock], Recording], clock: Clock) -> None:
        self.clock = OneMoment(clock)
        self._slot = slot
        self._start: Callable[[Clock], Recording] | None = start
        self._recording: Recording | None = None
        self._stepping = False
        self._keep = False
        self._over = False

    def __repr__(self) -> str:
        state = "over" if self._over else "not started" if self._recording is None else "alive"
        return f"<SessionRun {state}>"

    async def __anext__(self) -> Event:
        """The next event, recorded. Raises `StopAsyncIteration` after the last; `TraceWriteError` for a record that could
        not be written (policy `fail`); at the first step `SessionBusy`, and `ValueError` when there is nothing to do."""
        if self._stepping:
            raise RuntimeError("this run is being stepped already: one step at a time")
        if self._over and self._recording is None:
            raise StopAsyncIteration
        self._stepping = True
        try:
            recording = self._recording or self._begin()
            self.clock.forget()
            event = await recording.__anext__()
        except StopAsyncIteration:
            self._settle()
            raise
        except BaseException as error:
            if not (self._keep and is_kind(error, anyio.get_cancelled_exc_class())):
                await self._close()
            raise
        finally:
            self._stepping = False
        self._slot.conversation.feed(event)
        if type(event) is AgentEnd:
            self._settle()
        return event

    def _begin(self) -> Recording:
        assert self._start is not None
        start, self._start = self._start, None
        self._over = True  # until the session has taken it
        self._slot.take(self)
        self._over = False
        recording = self._recording = start(self.clock)
        if self._keep:
            recording.keep_alive()
        return recording

    def _settle(self) -> None:
        self._over, self._start = True, None
        self._slot.give_back(self)

    async def _close(self) -> None:
        recording = self._recording
        try:
            if recording is not None:
                with anyio.CancelScope(shield=True):
                    await recording.aclose()
        finally:
            self._settle()

    async def aclose(self) -> None:
        """End the run: model stream and tools are stopped, their clean-up awaited, bounded; events not taken are dropped.

        The next run goes on with what was handed over; a reply that broke off is told to the model as text. May be called
        at any time, from any task; a second call does nothing.
        """
        await self._close()

    def skip_wait(self) -> bool:
        """End a retry's wait now; False when none is going on. May be called from any thread."""
        return self._recording is not None and self._recording.skip_wait()

    def keep_alive(self) -> None:
        """From now on a cancelled step does not end the run. Whoever calls this must close it (`running` does both)."""
        self._keep = True
        if self._recording is not None:
            self._recording.keep_alive()

    def __del__(self) -> None:
        if getattr(self, "_recording", None) is not None and not self._over:
            self._settle()


class SessionRecords(Stepped[Record]):
    """A run of a session as its OmniMessage records, as streamed. Made by `Session.records`; stepped like `SessionRun`."""

    def __init__(self, run: SessionRun) -> None:
        self.run = run
        """The run itself: `skip_wait`, …"""
        self._encode = Encoder(run.clock).encode
        self._keep = StreamFilter().keep
        self._waiting: deque[Record] = deque()

    async def __anext__(self) -> Record:
        """The next record. Raises what `SessionRun` raises."""
        while not self._waiting:
            event = await self.run.__anext__()
            try:
                records = self._encode(event)
            except BaseException as error:
                # An application's own message that has no form in JSON; the trace lacks it as well (policy `warn`).
                order = order_to_leave(error)
                if order is not None:
                    await self.aclose()
                    raise order from None
                log.warning("an event that can be no record is left out of the stream: %s", error_text(error))
            else:
                self._waiting.extend(filter(self._keep, records))
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """End the run, as `SessionRun.aclose`; records not taken are dropped."""
        self._waiting.clear()
        await self.run.aclose()

    def skip_wait(self) -> bool:
        """As `SessionRun.skip_wait`."""
        return self.run.skip_wait()

    def keep_alive(self) -> None:
        """As `SessionRun.keep_alive`."""
        self.run.keep_alive()
