"""Plays a *story*, anything that a consumer does with the package, with a fault at one of its points, and looks at what is
left: the events are legal up to where somebody left, nothing of it lives on, all was cleaned up in time; and what the
story asks to be looked at behind it (a trace on disk, a session that goes on).
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import tempfile
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import anyio
import anyio.lowlevel

from agentloop import AgentEnd, Event, TraceWriteError, running
from agentloop.grammar import Checker, check
from agentloop.models import _held
from agentloop.testing import wait_all_blocked
from agentloop.testing._contract_parts import no_generator_left
from tests.leftovers import tasks_alive

from .awaits import AwaitPoints, Spot, leaves, watching
from .matrix import Fault, counted, in_groups

Story: TypeAlias = Callable[["Stage"], Awaitable[None]]
"""What a consumer does. It is played in the consumer's task."""

BOUND = 40.0
"""Real seconds that a replay may take, closing included; on a busy machine too, only a hang exceeds it."""

DEBUG = False
"""Whether each replay is printed as it begins, and what the event loop complains about with its traceback."""

OWN = ("redact", "sink", "listener", "clock")
"""Points in the caller's code that runs in the consumer's own step: what they raise may come out of that."""


class Stage:
    """One play of a story, and what came of it."""

    def __init__(self, story: Story, points: AwaitPoints, folder: Path) -> None:
        self.story = story
        self.points = points
        self.folder = folder
        self.runs: list[list[Event]] = []
        """The events of each run that was followed."""
        self.error: BaseException | None = None
        self.problems: list[Any] = []
        self.overtime = False
        self.after: list[Callable[[], Awaitable[None]]] = []
        """What to look at when all is over."""
        self.left: set[int] = set()
        """Runs, by their number, that somebody may have left."""
        self.talk: Any = None
        """What stands for a run where there is none to step."""

    # ---------------------------------------------------------------- for stories

    async def follow(self, run: Any) -> list[Event]:
        """Step a run to its end, or to where the fault leaves it."""
        points = self.points
        events: list[Event] = []
        self.runs.append(events)
        before = points.done
        points.run = weakref.ref(run)
        try:
            if points.fault is not None and points.fault.name.endswith("running"):
                async with running(run) as bound:
                    await self._steps(bound, events)
            else:
                await self._steps(run, events)
        finally:
            if points.done and not before and self.may_leave:
                self.left.add(len(self.runs) - 1)
        return events

    async def _steps(self, run: Any, events: list[Event]) -> None:
        points, checker = self.points, Checker()
        while True:
            points.hit("before a step", caller=False)
            if points.leaving:
                points.leaving = False
                self.left.add(len(self.runs) - 1)
                return
            with self.step():
                try:
                    event = await anext(run)
                except StopAsyncIteration:
                    return
                if isinstance(event, dict):  # a record
                    continue
                checker.feed(event)
                events.append(event)
            points.hit("after a step", caller=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the consumer, which may time out."""
        points = self.points
        with anyio.CancelScope() as points.step:
            if points.time_out_next:
                points.time_out_next = False
                points.step.cancel()
            yield
        points.step = None

    @property
    def may_leave(self) -> bool:
        """Whether the fault may end a run without its `AgentEnd`."""
        fault, here = self.points.fault, self.points.here
        if fault is None or here is None:
            return False
        in_step = here.role in ("consumer", "driver", "other", "sink call") or here.name.startswith(OWN)
        if in_step and (fault.inside or fault.name.startswith("this task")):
            return True
        return fault.leaves or fault.order or (in_step and fault.error is not None)

    # ---------------------------------------------------------------- the play

    async def play(self) -> None:
        """Play it to wherever it goes, and wait for its clean-up."""
        self.overtime = await in_groups(self.points, self._consume, BOUND)

    async def _consume(self) -> None:
        points = self.points
        native: Any = anyio.lowlevel.current_token().native_token
        points.task = asyncio.current_task() if hasattr(native, "call_soon_threadsafe") else None
        points.consumer = anyio.get_current_task().id
        try:
            await self.story(self)
        except BaseException as error:
            cut = self.may_leave and all(map(_is_told, leaves(error)))
            if not points.ours(error) and not cut:
                raise
            self.error = error
        finally:
            if self.talk is not None and self.may_leave:
                self.left.update(range(len(self.runs)))

    def check(self, where: str) -> None:
        """What must hold always."""
        points, fault = self.points, self.points.fault
        for number, events in enumerate(self.runs):
            if events and isinstance(events[-1], AgentEnd):
                check(events)
            else:
                kinds = [type(event).__name__ for event in events[-3:]]
                assert number in self.left, f"{where}: no AgentEnd in run {number}, after {kinds}"
        if self.error is not None:
            assert self.may_leave, f"{where}: the story raised {self.error!r}"
        if fault is not None and fault.stops and points.done:
            assert points.begun_after <= points.late, f"{where}: {points.begun_after} effects began"


def _is_told(error: BaseException) -> bool:
    """What an agent raises when its run was cancelled from outside, and a recording whose sink failed."""
    no_end = isinstance(error, RuntimeError) and "without its AgentEnd" in str(error)
    return no_end or isinstance(error, TraceWriteError)


async def replay(story: Story, at: int = -1, fault: Fault | None = None, *, callers: bool = True) -> Stage:
    """Play a story with a fault at a point, and check what must hold always."""
    if DEBUG:
        print(at, fault and fault.name, flush=True)
    prepare = getattr(story, "prepare", None)  # what takes its time once in a process, and no time of the play
    if prepare is not None:
        prepare()
    points = AwaitPoints(at, fault)
    points.callers = callers
    with ExitStack() as stack:
        stage = Stage(story, points, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(_quick())
        stack.enter_context(_complaints(stage))
        await wait_all_blocked()
        before = tasks_alive()
        stack.enter_context(no_generator_left())
        with watching(points), counted(points):
            try:
                await stage.play()
            except BaseException:
                points.release.set()
                raise
            if fault is None or fault.name == "break":
                gc.collect()
            late = await _all_over(before, fault)
            points.release.set()
            await wait_all_blocked()
        points.off = True
        await wait_all_blocked()
        here = points.here
        where = f"{fault.name if fault else 'no fault'} at {at} ({said_of(here) if here else 'never'})"
        assert not stage.overtime and not late, f"{where}: hangs"
        assert tasks_alive() == before, f"{where}: tasks are left"
        assert points.open == [], f"{where}: no clean-up of {points.open}"
        assert stage.problems == [], f"{where}: {stage.problems}"
        stage.check(where)
        try:
            for look in stage.after:
                await look()
        except Exception as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
        assert stage.problems == [], f"{where}: {stage.problems}"
    return stage


async def _all_over(before: int, fault: Fault | None) -> bool:
    """Wait for what is on its way out. Whether that took too long."""
    points_deaf = fault is not None and fault.name == "deaf"
    with anyio.move_on_after(BOUND) as late:
        await wait_all_blocked()
        for _ in range(600):  # the wait for a nested run that does not end is bounded by over a second
            if tasks_alive() == before or points_deaf:
                break
            await anyio.sleep(0.005)
    return late.cancelled_caught


def said_of(point: Any) -> str:
    way = " > ".join(f"{spot.file}:{spot.line}" for spot in point.spots)
    return f"{point.name}, {point.role}{': ' if way else ''}{way}"


@contextmanager
def _quick() -> Iterator[None]:
    """Bounds in real time that no test wants to wait for; and the same shuffles of tasks in each play."""
    random.seed(0)
    trio_run = sys.modules.get("trio._core._run")
    if trio_run is not None:
        trio_run._r.seed(0)
    with (
        mock.patch.object(_held.close_shielded, "__defaults__", (0.05,)),
        mock.patch("agentloop.omni.recorder.GRACE", 0.02),
        mock.patch("agentloop.models._sdk.TRAILING_BOUND", 0.02),
    ):
        yield


@contextmanager
def _complaints(stage: Stage) -> Iterator[None]:
    """What the event loop and the interpreter have to complain about."""
    native: Any = anyio.lowlevel.current_token().native_token
    loop = native if hasattr(native, "call_soon_threadsafe") else None
    kept = loop.get_exception_handler() if loop is not None else None

    def heard(loop: Any, context: Any) -> None:
        if not stage.points.ours(context.get("exception")):
            if DEBUG:
                traceback.print_exception(context.get("exception"))
            stage.problems.append(context)

    if loop is not None:
        loop.set_exception_handler(heard)
    try:
        with mock.patch.object(
            sys, "unraisablehook", lambda told: stage.problems.append((told.exc_value, told.object))
        ):
            yield
    finally:
        if loop is not None:
            loop.set_exception_handler(kept)


class Tried:
    """What came of many replays."""

    def __init__(self) -> None:
        self.points = 0
        self.pairs = 0
        self.failures: list[str] = []
        self.waited: set[Spot] = set()
        """Lines at which a task was seen to wait."""
        self.faulted: set[Spot] = set()
        """Lines at which a fault came while a task waited."""


async def pairs(story: Story, *, callers: bool = True, stride: int = 1, first: int = 0) -> Tried:
    """Every `stride`-th pair of a point and a fault."""
    tried = Tried()
    whole = await replay(story, callers=callers)
    native: Any = anyio.lowlevel.current_token().native_token
    on_trio = not hasattr(native, "call_soon_threadsafe")
    tried.points, number = len(whole.points.points), 0
    tried.waited.update(whole.points.waited)
    for at, point in enumerate(whole.points.points):
        for fault in point.faults(on_trio):
            number += 1
            if (number + first) % stride:
                continue
            try:
                stage = await replay(story, at, fault, callers=callers)
            except (Exception, BaseExceptionGroup) as error:
                said = (
                    error
                    if isinstance(error, AssertionError)
                    else f"{fault.name} at {at} ({said_of(point)}): {leaves(error)!r}"
                )
                tried.failures.append(f"{type(error).__name__}: {said}")
                tried.pairs += 1
            else:
                tried.pairs += stage.points.done
                tried.waited.update(stage.points.waited)
                if stage.points.done and stage.points.here is not None:
                    tried.faulted.update(stage.points.here.spots)
    return tried
