"""Every wait of the package as a point: each task is stepped by hand, so that a fault may come where it waits or goes on.

A task that waits shows where: from its coroutine down to what it awaits there is a chain of frames, and those of the
package say which of its `await` lines are being waited at. Two points belong to one such wait. *Waits*: the task is about
to wait; from outside the run is aborted, its time runs out, it is closed, the consumer or this very task is cancelled.
*Goes on*: the wait is over; what was awaited raises, or never comes back.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import gc
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import anyio
import anyio.lowlevel
import attrs

import agentloop
from agentloop import _host

from .matrix import DO, FAULTS, Fault, Points

PACKAGE = Path(agentloop.__file__).parent
OTHERS = ("cli/", "testing/")
"""Parts of the package that are programs and test doubles, not what a run goes through."""


# ---------------------------------------------------------------- which awaits there are


@attrs.frozen
class Await:
    """One `await`, `async for` or `async with` of the package."""

    file: str
    line: int
    last: int
    words: str

    def in_(self, lines: Container[tuple[str, int]]) -> bool:
        """Whether one of its lines is among these."""
        return any((self.file, line) in lines for line in range(self.line, self.last + 1))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.words}"


@functools.cache
def awaits() -> tuple[Await, ...]:
    """All of them, as the sources have them."""
    return tuple([found for path in sorted(PACKAGE.rglob("*.py")) for found in _awaits_in(path)])


def _awaits_in(path: Path) -> Iterator[Await]:
    name = path.relative_to(PACKAGE).as_posix()
    if name.startswith(OTHERS):
        return
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Await(lineno=line, end_lineno=last):
                yield Await(name, line, last or line, lines[line - 1].strip())
            case ast.AsyncFor(lineno=line, iter=part):
                yield Await(name, line, part.end_lineno or line, lines[line - 1].strip())
            case ast.AsyncWith(lineno=line, items=items):
                yield Await(name, line, items[-1].context_expr.end_lineno or line, lines[line - 1].strip())


def unreached(waited: Iterable[Spot], faulted: Iterable[Spot]) -> Iterator[str]:
    """What to say of the awaits: how many there are, and one line for each to which no fault came."""
    seen = {(spot.file, spot.line) for spot in waited}
    hurt = {(spot.file, spot.line) for spot in faulted}
    whole = awaits()
    reached = [each for each in whole if each.in_(seen)]
    struck = [each for each in whole if each.in_(hurt)]
    yield f"{len(whole)} awaits in the package: at {len(reached)} a task waited, at {len(struck)} a fault came"
    for each in whole:
        if not each.in_(hurt):
            why = reason(each) or ("among the pairs that were not chosen" if each.in_(seen) else "NO REASON IS WRITTEN")
            yield f"    {each} ({'waited at, no fault came' if each.in_(seen) else 'never waited at'}: {why})"


_SECOND = "it is reached behind a first fault alone, so that a fault here would be a second one"
_NO_WAIT = "what it awaits does not wait, or what waits in it stands in a line of its own"

LEFT_OUT: dict[str, str] = {
    "_mcp/": "the connection to an MCP server lives in a job of its own and in the SDK's groups: `test_mcp_faults`",
    "mcp.py": "servers are processes and sockets: `test_mcp_faults` fails them; a run waits for them in `_toolset`",
    "models/local.py": "the engine computes in a thread and needs weights: `models/test_local` stops it at every token",
    "_stepped.py": "what forwards to an iterator inside, whose own lines are stepped themselves",
    "config.py: await anyio.sleep": "for this clock a run sets timers of the event loop instead",
    "_host.py: await self._trio.sleep": "the backend's own timer, in which nothing raises; it is cancelled with its run",
    "_host.py": "each backend has lines of its own here: the other backends' are not waited at",
    "_agent/queues.py: await news.wait": "a job of the run waits here only for calls that may be interrupted: `interrupted`",
    "_awaiting.py: return await made": "async transforms behind one another: each is awaited as the first one is",
    "_ask.py: await anyio.lowlevel.checkpoint": "a model that never waits and of whose chunks nothing comes: `test_attempt`",
    "_ask.py: await core.cancel_jobs": _SECOND,
    "_ask.py: await close_shielded": _SECOND,
    "_drive.py: await ahead.discard": _SECOND,
    "_drive.py: self.problem = await": "a compaction's `problem`; as `accept` beside it, and sync in the one that ships",
    "_eager.py: await self.ahead.discard": _SECOND,
    "_execute.py: await core.cancel_jobs": _SECOND,
    "_run.py: await self.within_grace": _SECOND,
    "_run.py: await self.cancel_jobs": _SECOND,
    "_run.py: await self.until(lambda: all(": _SECOND,
    "_session/run.py: await self.run.aclose": _SECOND,
    "_session/run.py: await self._close": _SECOND,
    "_sink.py: await anyio.lowlevel.checkpoint": "reports of a run that was left: `test_leaving`",
    "_sink.py: await close_nested": _SECOND,
    "_sink.py: await close_shielded": _SECOND,
    "_toolset.py: await self.core.cancel_jobs": _SECOND,
    "_tool_job.py: return await value if": "a tool that is no coroutine function and returns an awaitable",
    "agent.py: return await self._perform(": "`continue_` by what waits in a queue: the same `_perform` as in `prompt`",
    "agent.py: return await self.prompt(())": "`continue_` forwards to `prompt`",
    "agent.py: await run.aclose": _SECOND,
    "loop.py: await events.aclose": _SECOND,
    "loop.py: await self._close": _SECOND,
    "models/_bounds.py: await close_whole": _NO_WAIT,
    "models/_http.py: await answer.close": _NO_WAIT,
    "models/_sdk.py: await close_whole(self._inside": _NO_WAIT,
    "models/openai_chat.py: await self._bytes.aclose": _NO_WAIT,
    "omni/recorder.py": _SECOND,
    "session.py: await self.aclose": "nothing goes on any more where the block is left, but behind a first fault",
    "subagent.py: await self._events.aclose": _SECOND,
    "tools.py: await self._sink.child(ChildEvent((session_id, *": "an agent below an agent: as one level above",
    "tools.py: await self._sink.close": _SECOND,
}
"""Awaits that no fault comes to, by their file's name and the beginning of their words, and why."""


def reason(each: Await) -> str | None:
    """Why no fault comes to an await."""
    said = f"{each.file}: {each.words}"
    return next((why for start, why in LEFT_OUT.items() if said.startswith(start)), None)


# ---------------------------------------------------------------- where a task waits


class Spot(NamedTuple):
    """A line of the package in the chain of what a task awaits."""

    file: str
    line: int
    function: str


_ROOT = f"{PACKAGE}/"


def spots(awaited: Any) -> tuple[Spot, ...]:
    """The lines of the package at which a coroutine waits, outermost first."""
    found: list[Spot] = []
    while awaited is not None:
        frame, inner = _frame(awaited)
        if frame is not None and frame.f_code.co_filename.startswith(_ROOT):
            found.append(Spot(frame.f_code.co_filename[len(_ROOT) :], frame.f_lineno, frame.f_code.co_name))
        if inner is None and frame is not None:  # a generator that steps another by hand
            inner = frame.f_locals.get("steps")
        awaited = inner
    return tuple(found)


def _frame(awaited: Any) -> tuple[Any, Any]:
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, GeneratorType):
        return awaited.gi_frame, awaited.gi_yieldfrom
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, Watched):
        return None, awaited.inner
    inside = [each for each in gc.get_referents(awaited) if isinstance(each, _STEPPED)]  # `anext()` of a generator
    return None, inside[0] if inside else None


_STEPPED = (CoroutineType, GeneratorType, AsyncGeneratorType)


def role(found: tuple[Spot, ...]) -> str:
    """What a task is for, by its outermost line of the package."""
    first = found[0]
    if (first.file, first.function) in (("_run.py", "_main"), ("_host.py", "driver")):
        return "driver"
    return "job" if first.file == "_host.py" and first.function != "sleep" else "other"


# ---------------------------------------------------------------- the points

_ERRORS = tuple([fault for fault in FAULTS if fault.error is not None])
_OUTSIDE = tuple([fault for fault in FAULTS if fault.error is None and not fault.inside and fault.name != "break"])
THIS = Fault("this task cancelled")
WAKING = Fault("this task cancelled, waking")
"""Cancelled when what it waits for is there already, and before it has gone on."""
HANG = next(fault for fault in FAULTS if fault.name == "hang")

KINDS: dict[str, tuple[Fault, ...]] = {
    "inside": FAULTS,
    "caller": tuple([fault for fault in FAULTS if not fault.inside]),
    "step": tuple([fault for fault in FAULTS if not fault.inside and fault.error is None]),
    "waits": (*_OUTSIDE, THIS, WAKING),
    "goes on": (*_ERRORS, HANG),
}
"""What may go wrong at a point of each kind."""

NOTHING_RAISES = ("sleep", "_join")
"""Functions that wait for nothing but the time or a bell of the run's own, by the backend's means, where nothing stands
around that would hear of it: neither raises."""

ON_ASYNCIO = ("task cancel", THIS.name, WAKING.name)


@attrs.frozen
class Point:
    """One of a play."""

    name: str
    kind: str
    role: str = "caller"
    spots: tuple[Spot, ...] = ()

    def faults(self, on_trio: bool) -> list[Fault]:
        """What may go wrong at it."""
        return [fault for fault in KINDS[self.kind] if self._has(fault) and not (on_trio and fault.name in ON_ASYNCIO)]

    def _has(self, fault: Fault) -> bool:
        if fault is HANG and self.kind == "goes on":
            return self.role == "job"  # nothing but the caller's own code never comes back
        if (
            self.role == "other" and fault.order
        ):  # out of a task of the caller's own it stops asyncio's loop past everybody
            return False
        if self.kind == "goes on" and self.spots[-1].function in NOTHING_RAISES:
            return False
        return fault is not THIS or self.role in ("job", "sink call", "other")


class AwaitPoints(Points):
    """The points of one play, waits included."""

    def __init__(self, at: int = -1, fault: Fault | None = None) -> None:
        super().__init__(at, fault)
        self.points: list[Point] = []
        self.off = False
        """What is played now is not part of the play."""
        self.callers = True
        """Whether points of the caller's code count (else: waits alone)."""
        self.here: Point | None = None
        """Where the fault was done."""
        self.thrown: BaseException | None = None
        self.consumer: int | None = None
        """The id of the consumer's task."""
        self.waited: Counter[Spot] = Counter()

    def _is_here(self, point: Point) -> Fault | None:
        if self.off or (not self.callers and point.kind in ("inside", "caller", "step")):
            return None
        self.points.append(point)
        if len(self.points) - 1 != self.at or self.fault is None:
            return None
        if self.fault not in KINDS[point.kind] or not point._has(self.fault):  # with threads, plays may differ
            return None
        self.here = point
        return self.fault

    def hit(self, name: str, caller: bool = True, waits: bool = False) -> bool:
        """A point in the caller's code, or of the consumer. True: hang here."""
        if name == "a wait":  # of the host, known here by its line
            return False
        fault = self._is_here(Point(name, "inside" if waits else "caller" if caller else "step"))
        if fault is None:
            return False
        self.done = True
        if fault.error is not None:
            self.thrown = fault.error()
            raise self.thrown
        if fault.inside:
            return True
        DO[fault.name](self)
        return False

    def waits(self, found: tuple[Spot, ...], what: str, asked: Any) -> None:
        """A task is about to wait."""
        fault = self._is_here(Point("waits", "waits", what, found))
        self.waited.update(found)
        if fault is WAKING:
            self._cancel_when_woken(asked)
        elif fault is not None:
            self.done = True
            if fault is THIS:
                _this_task().cancel()
            else:
                DO[fault.name](self)

    def goes_on(self, found: tuple[Spot, ...], what: str, cancelled: bool) -> BaseException | None:
        """A wait is over, or `cancelled`. What is to be raised there, if anything."""
        fault = self._is_here(Point("goes on", "goes on", what, found))
        if fault is None or (fault is HANG and cancelled):  # the one cancellation that comes would be, or is, used up
            return None
        self.done = True
        self.thrown = None if fault.error is None else fault.error()
        return self.thrown or _Hang()

    def _cancel_when_woken(self, asked: Any) -> None:
        if not hasattr(asked, "add_done_callback"):
            return
        task = _this_task()

        def woken(_: Any) -> None:
            self.done = True
            task.cancel()

        asked.add_done_callback(woken)

    def ours(self, error: BaseException | None) -> bool:
        """Whether an exception is what was raised, or says so."""
        if error is None or self.thrown is None:
            return False
        if error is self.thrown or error in leaves(self.thrown):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(map(self.ours, error.exceptions))
        return self.ours(error.__cause__) or self.ours(error.__context__)


def leaves(error: BaseException) -> list[BaseException]:
    """What a group of groups holds in the end."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class _Hang(BaseException):
    """Stands for a wait that does not end."""


class Watched(Coroutine[Any, Any, Any]):
    """A task's coroutine, each wait of which is two points."""

    def __init__(self, inner: Any, points: AwaitPoints) -> None:
        self.inner = inner
        self._points = points
        self._waiting: tuple[Spot, ...] = ()
        self._role = ""
        self._hanging: Any = None
        self._cancelled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __await__(self) -> Any:
        raise TypeError("a task steps it")

    def send(self, value: Any) -> Any:
        """A step."""
        return self._step(self.inner.send, value)

    def throw(self, *error: Any) -> Any:
        """A step that raises."""
        return self._step(self.inner.throw, error[0] if len(error) == 1 else error[1] or error[0])

    def close(self) -> None:
        """The end."""
        if self._hanging is not None:
            self._hanging.close()
        self.inner.close()

    def _step(self, step: Callable[[Any], Any], given: Any) -> Any:
        if self._hanging is not None:
            return self._hang(step, given)
        waiting, self._waiting = self._waiting, ()
        if step == self.inner.throw or type(given).__name__ == "Error":  # trio sends an outcome
            self._cancelled = True
        if waiting:
            error = self._points.goes_on(waiting, self._role, self._cancelled)
            if isinstance(error, _Hang):
                self._hanging = anyio.sleep_forever()
                return self._hanging.send(None)
            if error is not None:
                step, given = self.inner.throw, error
        asked = step(given)
        found = spots(self.inner)
        if found and not any(spot.file == "testing/clock.py" for spot in found):  # it counts its turns by real time
            self._waiting = found
            self._role = role(found)
            if self._role == "other" and self._is_consumer():
                self._role = "consumer"
            elif self._role == "job" and self._is_sink_call():
                self._role = "sink call"
            self._points.waits(found, self._role, asked)
        return asked

    def _hang(self, step: Callable[[Any], Any], given: Any) -> Any:
        """Wait on, until a cancellation comes: it comes to where the wait was."""
        try:
            return (self._hanging.send if step == self.inner.send else self._hanging.throw)(given)
        except StopIteration:
            error: BaseException = RuntimeError("it waits for ever")
        except BaseException as raised:
            error = raised
        self._hanging = None
        return self._step(self.inner.throw, error)

    def _is_sink_call(self) -> bool:
        frame = _frame(self.inner)[0]
        make = getattr(frame.f_locals.get("job"), "make", None)
        return getattr(make, "__module__", None) == "agentloop.omni._sink_call"

    def _is_consumer(self) -> bool:
        return self._points.consumer == anyio.get_current_task().id


@contextmanager
def watching(points: AwaitPoints) -> Iterator[None]:
    """Tasks that begin here are stepped by hand."""
    native: Any = anyio.lowlevel.current_token().native_token
    with _on_asyncio(points, native) if hasattr(native, "call_soon_threadsafe") else _on_trio(points):
        yield


@contextmanager
def _on_asyncio(points: AwaitPoints, loop: Any) -> Iterator[None]:
    def task(coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Watched(coroutine, points), **options)

    class Module(SimpleNamespace):
        Task = staticmethod(task)

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

    kept = loop.get_task_factory()
    loop.set_task_factory(lambda loop, coroutine, **options: task(coroutine, loop=loop, **options))
    try:
        with mock.patch.object(_host, "asyncio", Module()):
            yield
    finally:
        loop.set_task_factory(kept)


@contextmanager
def _on_trio(points: AwaitPoints) -> Iterator[None]:
    import trio

    class Watcher(trio.abc.Instrument):
        def task_spawned(self, task: Any) -> None:
            task.coro = Watched(task.coro, points)

    watcher = Watcher()
    trio.lowlevel.add_instrument(watcher)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(watcher)
