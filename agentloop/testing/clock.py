"""`VirtualClock`: a clock for tests, on which an hour passes in no time."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import anyio.lowlevel

__all__ = ["VirtualClock", "wait_all_blocked"]

_QUIET_TURNS = 4
"""Turns of the asyncio loop in which no task could run, before all are taken to wait: a wake-up may still be under way
as a bare callback, which no list of tasks shows, for a turn or two."""

_watchers: set[asyncio.Task[Any]] = set()
"""asyncio tasks that wait for all others to wait: two clocks in one loop must not wait for each other."""


class VirtualClock:
    """A `Clock` (see `agentloop.config`) whose time stands still while anything works and jumps when everything waits.

    As soon as every task of the event loop waits for something, the time jumps to the earliest end of a sleep. So retry
    waits, time limits and deadlines cost nothing and come in their true order, on asyncio, uvloop and trio alike.
    `autojump_threshold` is how long (real seconds) everything must have waited before a jump. A task that waits for a
    thread, a socket or real time looks idle like any other: where a test has such, give a threshold longer than their
    work, or None, which leaves the time to `jump` and `advance`.

    A sleep that is cancelled leaves nothing behind. One clock may serve several event loops, one after the other.
    """

    def __init__(self, start: float = 0.0, *, autojump_threshold: float | None = 0.0) -> None:
        self._now = start
        self._threshold = autojump_threshold
        self._sleepers: dict[_Sleeper, None] = {}
        self._leading = False

    def __repr__(self) -> str:
        return f"<VirtualClock at {self._now:g} s, {len(self._sleepers)} asleep>"

    def now(self) -> float:
        """Seconds; starts at `start`."""
        return self._now

    @property
    def asleep(self) -> int:
        """How many sleeps are under way."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock shows `seconds` more than now; at least one checkpoint. Cancellable."""
        await anyio.lowlevel.checkpoint()
        if seconds <= 0:
            return
        sleeper = _Sleeper(self._now + seconds)
        self._sleepers[sleeper] = None
        try:
            while not sleeper.awake:
                if self._leading or self._next_due() in (None, math.inf):
                    await sleeper.wait()
                else:
                    await self._lead(sleeper)
        finally:
            self._sleepers.pop(sleeper, None)
            self._find_leader()

    def jump(self, seconds: float) -> None:
        """Move the time at once; whoever is due by then wakes when it next runs, in the order of the sleeps' ends."""
        self._now += seconds
        for sleeper in sorted(self._sleepers, key=_Sleeper.end):
            if sleeper.due <= self._now:
                del self._sleepers[sleeper]
                sleeper.wake()

    async def advance(self, seconds: float) -> None:
        """Move the time by steps: at each end of a sleep on the way, let everything run until it waits again."""
        target = self._now + seconds
        await wait_all_blocked()
        while (due := min(map(_Sleeper.end, self._sleepers), default=math.inf)) <= target:
            self.jump(due - self._now)
            await wait_all_blocked()
        self.jump(target - self._now)

    def _next_due(self) -> float | None:
        """When the time is to jump to; None when it does not move by itself."""
        return None if self._threshold is None else min(map(_Sleeper.end, self._sleepers))

    async def _lead(self, own: _Sleeper) -> None:
        """Be the one sleeper that moves the time, until it is its own turn to wake."""
        self._leading = True
        try:
            while not own.awake:
                await wait_all_blocked(self._threshold or 0.0)
                if not own.awake:
                    self.jump(min(map(_Sleeper.end, self._sleepers)) - self._now)
        finally:
            self._leading = False

    def _find_leader(self) -> None:
        """Rouse one sleeper to lead in the place of one that woke or was cancelled."""
        if not self._leading and self._threshold is not None and self._sleepers:
            min(self._sleepers, key=_Sleeper.end).rouse()


class _Sleeper:
    """One sleep under way."""

    __slots__ = ("_event", "awake", "due")

    def __init__(self, due: float) -> None:
        self.due = due
        self.awake = False
        self._event = anyio.Event()

    def end(self) -> float:
        return self.due

    async def wait(self) -> None:
        """Return when it is awake, or was roused to lead."""
        await self._event.wait()
        self._event = anyio.Event()

    def rouse(self) -> None:
        self._event.set()

    def wake(self) -> None:
        self.awake = True
        self._event.set()


async def wait_all_blocked(cushion: float = 0.0) -> None:
    """Return when every other task of this event loop waits for something, and has done so for `cushion` seconds."""
    if not hasattr(anyio.lowlevel.current_token().native_token, "call_soon_threadsafe"):
        import trio.testing

        await trio.testing.wait_all_tasks_blocked(cushion)
        return
    task = asyncio.current_task()
    assert task is not None
    _watchers.add(task)
    try:
        await _asyncio_blocked(cushion)
    finally:
        _watchers.discard(task)


async def _asyncio_blocked(cushion: float) -> None:
    loop = asyncio.get_running_loop()
    quiet, since = 0, loop.time()
    while quiet < _QUIET_TURNS or loop.time() - since < cushion:
        await asyncio.sleep(min(cushion / 8, 0.001))
        if all(map(_waits, asyncio.all_tasks() - _watchers)):
            quiet += 1
        else:
            quiet, since = 0, loop.time()


def _waits(task: asyncio.Task[Any]) -> bool:
    """Whether the task waits for a future that is not done. asyncio has no public word for it; anyio reads the same."""
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is not None and not waiter.done()
