"""The fault matrix: a run is played once to count its points, then again for each point with each fault at it.

A *point* is a place where something may go wrong: inside each piece of the caller's code (model, tools, hooks, polls,
transforms, sinks), before and after each step of the consumer, and before each wait of the front and of the driver. A
*fault* raises there, never returns, aborts, lets the time run out, closes the run, cancels or times out the consumer's step,
drops the run, or cancels the driver from outside. After each replay the same must hold: the events are legal up to
where the consumer left, a run that was not left ended with its `AgentEnd`, what was begun was cleaned up, no task is
left, and everything returned in time.

`awaits` and `stage` widen it to every wait of the package, `stories` and `adapters` to sessions, recorders, agents and
adapters. `python -m faults.matrix` in the folder `tests` plays all pairs of both and prints how many there were, and which
waits no fault came to.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import attrs

from agentloop import AbortSignal, AgentEnd, Event, loop, running
from agentloop._host import make_host
from agentloop.grammar import Checker, check
from agentloop.testing import VirtualClock, wait_all_blocked
from tests.deaf import deaf_until
from tests.leftovers import tasks_alive

from .bench import Bad, Worse

BOUND = 10.0
"""Real seconds that a replay may take, closing included; far above what is needed, so that only a hang exceeds it."""


@attrs.frozen
class Fault:
    """What goes wrong. `error` makes what is raised; only the caller's own code can raise it."""

    name: str
    error: Callable[[], BaseException] | None = None
    leaves: bool = False
    """The consumer leaves, or is made to; else the run ends by itself with its `AgentEnd`."""
    inside: bool = False
    """Happens only in the caller's own code, which awaits there."""
    order: bool = False
    """`KeyboardInterrupt` or `SystemExit`: raised by the step."""
    stops: bool = False
    """After it nothing begins."""


def _foreign() -> BaseException:
    return asyncio.CancelledError("foreign")


FAULTS = (
    Fault("Exception", lambda: Bad("raised")),
    Fault("BaseException", lambda: Worse("raised")),
    Fault("CancelledError", _foreign),
    Fault("ExceptionGroup", lambda: ExceptionGroup("group", [Bad("one"), ExceptionGroup("inner", [Bad("two")])])),
    Fault("BaseExceptionGroup", lambda: BaseExceptionGroup("group", [Worse("one"), _foreign()])),
    Fault("KeyboardInterrupt", lambda: KeyboardInterrupt("now"), order=True),
    Fault("SystemExit", lambda: BaseExceptionGroup("group", [SystemExit(3)]), order=True),
    Fault("hang", inside=True),
    Fault("deaf", inside=True),
    Fault("abort", stops=True),
    Fault("abort in a thread", stops=True),
    Fault("time runs out"),
    Fault("close", leaves=True),
    Fault("cancel", leaves=True),
    Fault("task cancel", leaves=True),
    Fault("step times out", leaves=True),
    Fault("step times out, running"),
    Fault("break", leaves=True),
    Fault("driver cancelled", leaves=True),
)


class Points:
    """The points of one play: counts them, and does the fault at one of them."""

    def __init__(self, at: int = -1, fault: Fault | None = None) -> None:
        self.at = at
        self.fault = fault
        self.seen: list[tuple[str, bool, bool]] = []
        """(name, whether it is the caller's code, whether that may wait there)"""
        self.done = False
        self.begun_after = 0
        self.late = 0
        """Effects that may begin after an abort: a nested run hears of it only when its parent has looked."""
        self.open: list[str] = []
        """What of the caller's code was begun and not ended."""
        self.clock = VirtualClock()
        self.signal = AbortSignal()
        self.release = anyio.Event()
        self.run: Callable[[], Any] = lambda: None
        self.group: Any = None
        self.step: Any = None
        self.outer: Any = None
        self.task: Any = None
        self.driver: Callable[[], Any] | None = None
        self.leaving = False
        self.time_out_next = False

    def hit(self, name: str, caller: bool = True, waits: bool = False) -> bool:
        """A point is reached. True: hang here."""
        here = len(self.seen)
        self.seen.append((name, caller, waits))
        fault = self.fault
        if here != self.at or fault is None or (fault.error and not caller) or (fault.inside and not waits):
            return False
        self.done = True
        if fault.error is not None:
            raise fault.error()
        if fault.inside:
            return True
        DO[fault.name](self)
        return False

    async def point(self, name: str) -> None:
        """A point in async code of the caller's, then a checkpoint, then another point."""
        if self.hit(name, waits=True):
            await self._hang()
        await anyio.lowlevel.checkpoint()
        if self.hit(f"{name}, later", waits=True):
            await self._hang()

    async def _hang(self) -> None:
        assert self.fault is not None
        if self.fault.name == "hang":
            await anyio.sleep_forever()
        await deaf_until(self.release)

    @asynccontextmanager
    async def body(self, name: str) -> AsyncIterator[None]:
        """A piece of the caller's code that must be cleaned up."""
        self.begin(name)
        self.open.append(name)
        try:
            await self.point(f"{name} begins")
            yield
            await self.point(f"{name} ends")
        finally:
            self.open.remove(name)

    def begin(self, name: str) -> None:
        """An effect begins: after an abort none may."""
        if self.done:
            self.begun_after += 1

    def callback(self, name: str, value: Any = None) -> Callable[..., Any]:
        """An async callback that gives a value, with points in it."""

        async def call(*args: Any) -> Any:
            async with self.body(name):
                return value(*args) if callable(value) else value

        return call

    def plain(self, name: str, value: Any = None) -> Callable[..., Any]:
        """The same, sync."""

        def call(*args: Any) -> Any:
            self.begin(name)
            self.hit(name)
            return value(*args) if callable(value) else value

        return call


# ---------------------------------------------------------------- what the faults do from outside


def _abort_in_thread(points: Points) -> None:
    thread = threading.Thread(target=points.signal.abort, args=("a thread says so",))
    thread.start()
    thread.join()


def _close(points: Points) -> None:
    run = points.run()
    if run is not None:
        points.group.start_soon(run.aclose)


def _time_out(points: Points) -> None:
    if points.step is not None:
        points.step.cancel()
    else:
        points.time_out_next = True


def _task_cancel(points: Points) -> None:
    if points.task is not None:
        points.task.cancel()
    else:
        points.outer.cancel()


def _leave(points: Points) -> None:
    points.leaving = True


def _cancel_driver(points: Points) -> None:
    if points.driver is None:
        points.leaving = True
    else:
        points.driver()


DO: dict[str, Callable[[Points], Any]] = {
    "abort": lambda points: points.signal.abort("the test says so"),
    "abort in a thread": _abort_in_thread,
    "time runs out": lambda points: points.clock.jump(1000),
    "close": _close,
    "cancel": lambda points: points.outer.cancel(),
    "task cancel": _task_cancel,
    "step times out": _time_out,
    "step times out, running": _time_out,
    "break": _leave,
    "driver cancelled": _cancel_driver,
}


# ---------------------------------------------------------------- the waits of front and driver


class CountingHost:
    """A host each wait of which is a point."""

    def __init__(self, points: Points) -> None:
        self._host = make_host()
        self._points = points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def waiter(self) -> Any:
        """A waiter that counts."""
        return CountingWaiter(self._host.waiter(), self._points)

    async def shielded(self, waiter: Any, bound: float) -> None:
        """The wait for the end is no point: whoever waits there has left."""
        await self._host.shielded(waiter.inner, bound)

    def start(self, main: Any, ended: Any) -> None:
        """Keep how to cancel the first driver, the outer run's."""
        points = self._points
        native: Any = anyio.lowlevel.current_token().native_token
        if points.driver is not None:
            self._host.start(main, ended)
        elif hasattr(native, "call_soon_threadsafe"):
            points.driver = lambda: None

            async def watched() -> None:
                task = asyncio.current_task()
                assert task is not None
                points.driver = lambda: None if task.cancelling() else task.cancel()
                await main

            self._host.start(watched(), ended)
        else:
            import trio

            scope = trio.CancelScope()
            points.driver = scope.cancel

            async def scoped() -> None:
                with scope:
                    await main

            self._host.start(scoped(), ended)


class CountingWaiter:
    """One wait."""

    def __init__(self, inner: Any, points: Points) -> None:
        self.inner = inner
        self._points = points

    def set(self) -> None:
        """Wake it."""
        self.inner.set()

    def wait(self) -> Awaitable[Any]:
        """A point, then the wait."""
        self._points.hit("a wait", caller=False)
        return self.inner.wait()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- one play

Scenario = Callable[[Points], Any]
"""Makes the run (or a wrapper of one, a recording say) with points in everything that it is given."""


async def in_groups(points: Any, consume: Callable[[], Awaitable[None]], bound: float) -> bool:
    """Run a consumer where its points can cancel it from outside; returns whether it took longer than the bound (seconds)."""
    with anyio.move_on_after(bound) as scope:
        async with anyio.create_task_group() as points.group, anyio.create_task_group() as group:
            points.outer = group.cancel_scope
            group.start_soon(consume)
    points.group = None
    return scope.cancelled_caught


class Play:
    """One play of a scenario, and what came of it."""

    def __init__(self, scenario: Scenario, points: Points) -> None:
        self.scenario = scenario
        self.points = points
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.problems: list[Any] = []
        self.overtime = False

    async def play(self) -> None:
        """Play it to wherever it goes, and wait for its clean-up."""
        self.overtime = await in_groups(self.points, self._consume, BOUND)

    async def _consume(self) -> None:
        points = self.points
        native: Any = anyio.lowlevel.current_token().native_token
        points.task = asyncio.current_task() if hasattr(native, "call_soon_threadsafe") else None
        run = self.scenario(points)
        points.run = weakref.ref(run)
        try:
            if points.fault is not None and points.fault.name.endswith("running"):
                async with running(run) as events:
                    await self._steps(events)
            else:
                await self._steps(run)
        except (Bad, Worse, KeyboardInterrupt, SystemExit) as error:
            self.error = error

    async def _steps(self, run: Any) -> None:
        points, checker = self.points, Checker()
        while True:
            points.hit("before a step", caller=False)
            if points.leaving:
                return
            with anyio.CancelScope() as points.step:
                if points.time_out_next:
                    points.time_out_next = False
                    points.step.cancel()
                try:
                    event = await anext(run)
                except StopAsyncIteration:
                    return
                checker.feed(event)
                self.events.append(event)
            points.step = None
            points.hit("after a step", caller=False)


@contextmanager
def counted(points: Points) -> Iterator[None]:
    """Runs that begin here have a host that counts."""
    with mock.patch.object(loop, "make_host", functools.partial(CountingHost, points)):
        yield


async def replay(scenario: Scenario, at: int = -1, fault: Fault | None = None) -> Play:
    """Play a scenario with a fault at a point, and check what must hold always."""
    points = Points(at, fault)
    play = Play(scenario, points)
    native: Any = anyio.lowlevel.current_token().native_token
    asyncio_loop = native if hasattr(native, "call_soon_threadsafe") else None
    if asyncio_loop is not None:
        asyncio_loop.set_exception_handler(lambda loop, context: play.problems.append(context))
    await wait_all_blocked()
    before = tasks_alive()
    with counted(points):
        await play.play()
        if fault is not None and fault.name == "break":
            gc.collect()
        with anyio.move_on_after(BOUND) as late:
            await wait_all_blocked()
            for _ in range(200):
                if tasks_alive() == before or (fault is not None and fault.name == "deaf"):
                    break
                await anyio.sleep(0.005)
        points.release.set()
        await wait_all_blocked()
    where = f"{fault.name if fault else 'no fault'} at {at} ({points.seen[at][0] if 0 <= at < len(points.seen) else 'never'})"
    assert not play.overtime and not late.cancelled_caught, f"{where}: hangs"
    assert play.problems == [], f"{where}: {play.problems}"
    assert tasks_alive() == before, f"{where}: tasks are left"
    assert points.open == [], f"{where}: no clean-up of {points.open}"
    _check(play, where)
    return play


def _check(play: Play, where: str) -> None:
    fault, points = play.points.fault, play.points
    ended = bool(play.events) and isinstance(play.events[-1], AgentEnd)
    if ended:
        check(play.events)
    if fault is None or not points.done:
        assert ended, f"{where}: no AgentEnd"
        assert play.error is None, f"{where}: {play.error!r}"
    elif fault.order:
        assert isinstance(play.error, KeyboardInterrupt | SystemExit), f"{where}: the step raised {play.error!r}"
        assert not ended, f"{where}: went on"
    elif fault.leaves:
        assert play.error is None, f"{where}: {play.error!r}"
    else:
        assert play.error is None, f"{where}: {play.error!r}"
        assert ended, f"{where}: no AgentEnd after {[type(event).__name__ for event in play.events[-3:]]}"
    if fault is not None and fault.stops and points.done:
        assert points.begun_after <= points.late, f"{where}: {points.begun_after} effects began"


async def pairs(scenario: Scenario, *, stride: int = 1, first: int = 0) -> tuple[int, list[str]]:
    """Every `stride`-th pair of a point and a fault: how many were tried, and what did not hold."""
    failures: list[str] = []
    whole = await replay(scenario)
    native: Any = anyio.lowlevel.current_token().native_token
    on_trio = not hasattr(native, "call_soon_threadsafe")
    tried = number = 0
    for at, (_, caller, waits) in enumerate(whole.points.seen):
        for fault in FAULTS:
            if (
                (fault.error and not caller)
                or (fault.inside and not waits)
                or (on_trio and fault.name == "task cancel")
            ):
                continue
            number += 1
            if (number + first) % stride:
                continue
            try:
                play = await replay(scenario, at, fault)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
                tried += 1
            else:
                tried += play.points.done
    return tried, failures


def main(argv: list[str] | None = None) -> int:
    """Play all pairs of all scenarios and stories on the backends, and print the numbers; then the waits of the package at
    which no fault came."""
    from .adapters import ADAPTERS
    from .awaits import unreached
    from .scenarios import SCENARIOS
    from .stage import Tried
    from .stage import pairs as pairs_of_story
    from .stories import RUNS, STORIES

    stories = {**{f"waits of {name}": story for name, story in RUNS.items()}, **STORIES, **ADAPTERS}
    parser = argparse.ArgumentParser(prog="faults.matrix", description="Every fault at every point of every scenario.")
    parser.add_argument("--backend", choices=["asyncio", "uvloop", "trio"], action="append")
    parser.add_argument("--scenario", choices=sorted([*SCENARIOS, *stories]), action="append")
    parser.add_argument("--stride", type=int, default=1, help="only every n-th pair")
    parser.add_argument("--first", type=int, default=0, help="the pair to begin with, below the stride")
    options = parser.parse_args(argv)
    total = failed = 0
    whole = Tried()
    logging.getLogger("agentloop").setLevel(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # a replay that lets a run go collects: what was imported need not be looked through each time
    for backend in options.backend or ["asyncio", "uvloop", "trio"]:
        kind = "trio" if backend == "trio" else "asyncio"
        more = {} if backend == "trio" else {"use_uvloop": backend == "uvloop"}
        points_here = pairs_here = 0
        for name in options.scenario or [*SCENARIOS, *stories]:
            if name in SCENARIOS:
                of_run = functools.partial(pairs, SCENARIOS[name], stride=options.stride, first=options.first)
                points, (tried, failures) = 0, anyio.run(of_run, backend=kind, backend_options=more)
            else:
                callers = not name.startswith("waits of ")
                of_story = functools.partial(
                    pairs_of_story, stories[name], callers=callers, stride=options.stride, first=options.first
                )
                result = anyio.run(of_story, backend=kind, backend_options=more)
                points, tried, failures = result.points, result.pairs, result.failures
                whole.waited |= result.waited
                whole.faulted |= result.faulted
            points_here += points
            pairs_here += tried
            failed += len(failures)
            print(f"{backend:8} {name:20} {points or '':6} points, {tried:6} pairs, {len(failures)} failed", flush=True)
            print("".join(f"    {failure.splitlines()[0]}\n" for failure in failures), end="", flush=True)
        total += pairs_here
        print(f"{backend:8} {'in all':20} {points_here:6} points, {pairs_here:6} pairs", flush=True)
    for line in unreached(whole.waited, whole.faulted):
        print(line)
    print(f"{total} pairs of a point and a fault in all, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
