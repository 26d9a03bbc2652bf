"""`Core`: what the front and the background of a run share: the hand-over buffer, the choke point, jobs, time and stops.

One deque goes between the two. `emit` checks an event against the grammar, folds it and appends it; it never waits. The front
takes events and *parks* when there is none; the front being parked on an empty deque is exactly "the consumer has asked for the
event after", which is what `barrier` waits for before an effect. The driver itself waits in one place, `until`, on a bell
that jobs that end, timers and an abort ring, and the front where something waits for it. Nothing here holds the front, so that
a run that is dropped is collected and stops.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import anyio

from agentloop._awaiting import close_unstarted, is_awaitable
from agentloop._callbacks import CallbackFailed, Closed, Stopped, looked_at
from agentloop._decide import Outcomes, Stop
from agentloop._host import Host, Job, Waiter, cut_closing
from agentloop._timers import Timers
from agentloop._values import is_kind, order_to_leave, plain_text, raise_order, valid_text
from agentloop.abort import AbortSignal
from agentloop.config import Config
from agentloop.context import Context
from agentloop.convert import LegalHistory
from agentloop.events import Event, MessageUpdate
from agentloop.grammar import Checker
from agentloop.messages import ToolSpec
from agentloop.reducer import State
from agentloop.tools import Tool, error_text

log = logging.getLogger("agentloop")


class Core:
    """One run. The front calls `park`, `close`, reads `buffer`; the driver everything else. One thread, but for `ring_soon`."""

    __slots__ = (
        "_awaits_rest",
        "_bell",
        "_end_waiters",
        "_rung",
        "_unsubscribe",
        "_watched",
        "buffer",
        "checker",
        "claimed",
        "clock",
        "closing",
        "closing_bound",
        "config",
        "deadline",
        "ended",
        "error",
        "failure",
        "history",
        "host",
        "jobs",
        "outcomes",
        "parked",
        "room_waiters",
        "service",
        "signal",
        "skipped",
        "specs",
        "state",
        "system_prompt",
        "taker",
        "timers",
        "tools",
        "tools_changed",
        "waiting",
    )

    def __init__(self, context: Context, config: Config, outcomes: Outcomes, host: Host) -> None:
        self.config = config
        self.state = State(context.messages, config.session_usage)
        self.outcomes = outcomes
        self.host = host
        self.system_prompt = context.system_prompt
        self.history = LegalHistory(context.messages)
        """What a request without callbacks shows."""
        self.claimed: dict[str, int] = dict.fromkeys([*self.history.call_ids, *config.taken_ids], 1)
        """How often each id of a call was claimed."""
        self.tools: dict[str, Tool] = {}
        self.tools_changed = True
        self.specs: tuple[ToolSpec, ...] | None = None
        """The tools as the last request offered them."""
        self.failure: BaseException | None = None
        """What made the last attempt fail."""
        self.clock = config.clock
        self.checker = Checker()
        self.buffer: deque[Event] = deque()
        self.parked = False
        """The front waits for an event."""
        self.room_waiters: list[Waiter] = []
        """Jobs that wait for the buffer to empty."""
        self.jobs: set[Job] = set()
        self.signal = AbortSignal()
        """The run's own signal, for requests: fires at any stop and when the consumer leaves."""
        self.deadline: float | None = None
        self._watched = config.abort is not None or config.deadline is not None
        """There is something that may stop the run from outside."""
        self.closing = False
        self.ended = False
        self.error: BaseException | None = None
        """What the step that ends the iteration raises."""
        self.closing_bound = 0.0
        """What nested runs need to close, beyond the grace."""
        self.waiting = False
        """A retry's wait is going on."""
        self.skipped = False
        self.service: Callable[[], None] | None = None
        """Called before each look at a condition: settles calls while something else is awaited."""
        self.taker: Waiter | None = None
        self._awaits_rest = False
        """The driver waits for the consumer to come back."""
        self._bell: Waiter | None = None
        self._rung = False
        self._end_waiters: list[Waiter] = []
        self.timers = Timers(config.clock, host, self.ring, self._sleep)
        self._unsubscribe: Callable[[], None] | None = None

    # ------------------------------------------------------------ events out

    def emit(self, event: Event) -> None:
        """The choke point: check, fold, hand over. Never waits."""
        if self.closing:
            return
        self.checker.feed(event)
        self.state.apply(event)
        self.buffer.append(event)
        taker = self.taker
        if taker is not None:
            self.taker = None
            taker.set()

    def emit_update(self, event: Event) -> None:
        """`emit` for parts of a reply and progress of calls, which the driver's fold leaves out."""
        if self.closing:
            return
        self.checker.feed(event)
        self.buffer.append(event)
        taker = self.taker
        if taker is not None:
            self.taker = None
            taker.set()

    def emit_delta(self, event: MessageUpdate) -> None:
        """`emit` for a piece of the open block: the grammar's self-loop, tested in place."""
        delta = event.delta
        checker = self.checker
        if type(delta) is not checker.open_delta_class or delta.index != checker.open_index:
            self.emit_update(event)
            return
        if self.closing:
            return
        checker.position += 1
        self.buffer.append(event)
        taker = self.taker
        if taker is not None:
            self.taker = None
            taker.set()

    def park(self) -> Waiter:
        """The front has taken everything and waits: whoever waits for that may go on.

        Nobody else is woken: while a reply streams the front comes back for each piece, and the driver need not know.
        """
        self.taker = waiter = self.host.waiter()
        self.parked = True
        if self.room_waiters:
            waiters, self.room_waiters = self.room_waiters, []
            for room in waiters:
                room.set()
        if self._awaits_rest or self.service is not None:
            self.ring()
        return waiter

    def unpark(self) -> None:
        """The front's step is over."""
        self.taker = None
        self.parked = False

    @property
    def at_rest(self) -> bool:
        """The consumer has come back for more after the last event."""
        return self.parked and not self.buffer

    # ------------------------------------------------------------ the driver's one wait

    def ring(self) -> None:
        """Make the driver look again."""
        self._rung = True
        if self._bell is not None:
            self._bell.set()

    def ring_soon(self) -> None:
        """`ring` from any thread or signal handler."""
        self.host.soon(self.ring)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises `Closed` when the consumer has left."""
        while True:
            if self.closing:
                raise Closed
            self._rung = False
            if self.service is not None:
                self.service()
            if condition():
                return
            if self._rung:
                continue
            self._bell = bell = self.host.waiter()
            await bell.wait()

    async def barrier(self) -> None:
        """Before an effect: wait until the consumer has come back, or a stop makes effects impossible (G12)."""
        if not (self.parked and not self.buffer) or self.closing:
            self._awaits_rest = True
            try:
                await self.until(lambda: self.at_rest or self.look())
            finally:
                self._awaits_rest = False

    # ------------------------------------------------------------ stops

    def look(self) -> bool:
        """Whether the run is to stop; notices an abort and the deadline (the abort wins)."""
        if self.outcomes.stop is not None:
            return True
        if not self._watched:
            return False
        abort = self.config.abort
        if abort is not None and abort.aborted:
            self.stop(Stop("aborted", "user_abort", abort.reason, abort=True))
            return True
        if self.deadline is not None and self.clock.now() >= self.deadline:
            self.stop(Stop("aborted", "deadline", f"the run's deadline of {self.config.deadline:g} s has passed"))
            return True
        return False

    def stop(self, stop: Stop) -> None:
        """Nothing more is to begin; the first reason stays."""
        if self.outcomes.stop is None:
            self.outcomes.stop = stop
            self.signal.abort(stop.error_message)

    def fail(self, error: BaseException, what: str, text: str | None = None) -> None:
        """A callback of the caller's failed outside of an attempt or a call: the run ends. `text`: what is told of it."""
        log.error("%s failed; the run ends", what, exc_info=error)
        text = f"{what}: {error_text(error)}" if text is None else text
        self.stop(Stop("fatal", "callback_failed", text, exception=error))

    # ------------------------------------------------------------ ids

    def claim_id(self, id: str | None) -> str:
        """A call's id, unique in the context and the run: the first owner keeps it, then `id#2`, …; a missing one is made."""
        id = id or self._made_id()
        count = self.claimed.get(id, 1)
        unique = id
        while unique in self.claimed:
            count += 1
            unique = f"{id}#{count}"
        self.claimed[id] = count
        self.claimed.setdefault(unique, 1)
        return unique

    def _made_id(self) -> str:
        """One that `new_id` makes. A maker that repeats itself, makes none or fails must not hang the run or end it."""
        for _ in range(8):
            try:
                made = plain_text(self.guard(self.config.new_id))
            except CallbackFailed as error:
                log.error("new_id failed; a call without an id is named by the kernel", exc_info=error.error)
                break
            if made and made not in self.claimed:
                return valid_text(made)
        return "call"

    # ------------------------------------------------------------ jobs and callbacks

    def spawn(
        self,
        make: Callable[[Job], Awaitable[Any]],
        done: Callable[[Job], None] | None = None,
        tag: Any = None,
        effect: bool = True,
    ) -> Job:
        """Start a job; `done` is called in its event loop right when it is over, before the driver looks again.

        An `effect` does not begin after a stop, or when the consumer has left, also between this call and the job's first step.
        """

        job = Job(make, self._finished, tag, self.too_late if effect else None, done)
        self.jobs.add(job)
        self.host.spawn(job)
        return job

    def too_late(self) -> bool:
        """Whether nothing may begin any more: a stop came, or the consumer has left."""
        return self.closing or self.look()

    def _finished(self, job: Job) -> None:
        self.jobs.discard(job)
        order = None if job.error is None else order_to_leave(job.error)
        if order is not None:
            self.error = self.error or order
            self.close()
        if job.then is not None:
            try:
                job.then(job)
            except BaseException as error:
                # A clock that fails: out of here it would end trio, and asyncio takes no notice.
                self.error = self.error or error
                self.close()
        self.ring()

    async def call(self, function: Callable[..., Any], *args: Any, keep: bool = False) -> Any:
        """Call one of the caller's callbacks, an awaitable one in a job of its own.

        Raises `CallbackFailed` with what it raised, `Stopped` when a stop came first. With `keep`, what an interrupted
        callback still returns within the grace is returned (a poll has taken it).
        """
        await self.barrier()
        if self.look():
            raise Stopped
        value = self.guard(function, *args)
        if not is_awaitable(value):
            return self.guard(looked_at, value)
        job = self.spawn(lambda job: value, lambda job: close_unstarted(value))
        await self.until(lambda: job.done or self.look())
        if not job.done and keep:  # a cancellation might lose what it has taken, whatever shield it stands under
            await self.within_grace((job,))
        if not job.done:
            await self.cancel_jobs((job,))
        if job.error is None and (keep or not self.look()):
            return self.guard(looked_at, job.value)
        if self.look():
            raise Stopped
        assert job.error is not None
        raise CallbackFailed(job.error)

    def guard(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the caller's code here and now; whatever it raises is a `CallbackFailed`."""
        try:
            return function(*args)
        except BaseException as error:
            raise_order(error)
            raise CallbackFailed(error) from error

    async def cancel_jobs(self, jobs: Iterable[Job]) -> None:
        """Cancel jobs and wait for their clean-up, at most the grace; what is left is given up."""
        jobs = [job for job in jobs if not job.done]
        for job in jobs:
            self.host.cancel(job)
        if all(job.done for job in jobs):
            return
        await self.within_grace(jobs)
        for job in jobs:
            if not job.done:
                self.give_up(job)

    async def within_grace(self, jobs: Iterable[Job]) -> None:
        """Wait until the jobs are over, at most the grace; without any for a moment, in which what was cancelled can end."""
        key, timers = object(), self.timers
        timers.set(key, self.clock.now() + self.config.abort_grace)
        try:
            await self.until(lambda: all(job.done for job in jobs) or (timers.expired(key) and not timers.soon))
        finally:
            timers.clear(key)

    def give_up(self, job: Job) -> None:
        """Stop waiting for a job that ignores its cancellation, or whose clean-up does not end."""
        self.jobs.discard(job)
        cut_closing(job, self.bound)
        log.warning("%s did not stop within its bound and is left to itself", job.tag or "a callback")

    # ------------------------------------------------------------ lifetime

    def _sleep(self, seconds: float, over: Callable[[], None]) -> Callable[[], None]:
        """Call back after a while on the caller's clock; the returned function cancels."""

        def slept(job: Job) -> None:
            if job.cancel_requested:
                return
            if job.error is None:
                over()
            else:
                self.fail(job.error, "the clock")

        job = self.spawn(lambda job: self.clock.sleep(seconds), slept, "the clock", effect=False)
        return lambda: self.host.cancel(job)

    def start(self, drive: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the driver in the background."""
        config = self.config
        if config.deadline is not None:
            self.deadline = self.clock.now() + config.deadline
            self.timers.set("deadline", self.deadline)
        if config.abort is not None:
            self._unsubscribe = config.abort.subscribe(self.ring_soon)
        self.host.start(self._main(drive), self._on_end)

    async def _main(self, drive: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await drive()
        except Closed:
            pass
        except BaseException as error:
            self.close()
            if not (is_kind(error, GeneratorExit) or is_kind(error, anyio.get_cancelled_exc_class())):
                self.error = error  # else: the event loop ends us
        finally:
            self.signal.abort("the run is over")
            self.timers.stop()
            if self.jobs:
                with anyio.CancelScope(shield=True):
                    await self._join()

    async def _join(self) -> None:
        """End every job that is left, and wait for their clean-up, bounded in real time."""
        for job in list(self.jobs):
            self.host.cancel(job)
        over = [False]

        def bound() -> None:
            over[0] = True
            self.ring()

        cancel = self.host.timer(self.bound, bound)
        while self.jobs and not over[0]:
            self._bell = bell = self.host.waiter()
            await bell.wait()
        cancel()
        for job in list(self.jobs):
            self.give_up(job)

    @property
    def bound(self) -> float:
        """How long closing may take, in seconds."""
        return max(2 * self.config.abort_grace, 0.1) + self.closing_bound

    def _on_end(self) -> None:
        self.ended = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        waiters, self._end_waiters = self._end_waiters, []
        if self.taker is not None:
            waiters.append(self.taker)
        for waiter in waiters:
            waiter.set()

    def close(self) -> None:
        """The consumer has left: drop what waits and end the driver. Does not wait."""
        if self.ended:
            return
        self.closing = True
        self.buffer.clear()
        self.signal.abort("the consumer has left")
        waiters, self.room_waiters = self.room_waiters, []
        for waiter in waiters:
            waiter.set()
        self.ring()

    def end_waiter(self) -> Waiter:
        """Something to await the driver's end with."""
        waiter = self.host.waiter()
        if self.ended:
            waiter.set()
        else:
            self._end_waiters.append(waiter)
        return waiter
