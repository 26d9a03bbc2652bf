"""The background tasks of a run: of kernel, shells and records the only file that imports asyncio or trio.

A *job* is a detached task that runs one awaitable of the caller's (a model's stream, a tool, a hook) and never lets anything
out: what it returned or raised is kept on the job. Not a task group: a group cannot be left while a child ignores its
cancellation, and costs several times as much. `Waiter` is a one-shot event for one task.

Hazards that the details here avoid (each met on one backend or both): asyncio holds tasks weakly; a task cancelled before its
first step never runs its body; a second cancel cuts a job's own clean-up; `KeyboardInterrupt` in a task stops the event loop
past everybody; an exception out of a trio system task ends `trio.run`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.lowlevel import current_token

_tasks: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references


class Job:
    """One awaitable of the caller's in a task of its own."""

    __slots__ = (
        "_done_callback", "_handle", "_stopped", "cancel_requested", "closing", "done", "error", "make", "shields", "tag",
        "then", "value",
    )  # fmt: skip

    def __init__(
        self,
        make: Callable[[Job], Awaitable[Any]],
        done: Callable[[Job], None],
        tag: Any = None,
        stopped: Callable[[], bool] | None = None,
        then: Callable[[Job], None] | None = None,
    ) -> None:
        self.make = make
        self._stopped = stopped
        self._done_callback = done
        self.then = then
        """What the one who asked for the job does when it is over."""
        self.tag = tag
        self._handle: Any = None
        self.cancel_requested = False
        self.closing: anyio.CancelScope | float = math.inf
        """What shields the clean-up that it awaits (see `close_shielded`); before, how many seconds that may take."""
        self.shields: tuple[anyio.CancelScope, ...] = ()
        """What shields the clean-up of nested runs (see `close_nested`): any number, and work goes on behind it."""
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def may_begin(self) -> bool:
        """Asked in the task, before its first line: what was stopped since the job was made never begins (G21)."""
        if self._stopped is not None and not self.cancel_requested and self._stopped():
            self.cancel_requested = True
        return not self.cancel_requested

    def finish(self) -> None:
        """Called once by the backend when the task is over."""
        if not self.done:
            self.done = True
            self._done_callback(self)
            # They lead back to whoever holds this job: such a circle would stay until the garbage collector comes by.
            del self.make, self.then, self._done_callback, self._stopped


class Waiter(Protocol):
    """A one-shot event that one task awaits."""

    def wait(self) -> Awaitable[Any]:
        """Await the result of this."""
        ...

    def set(self) -> None:
        """Wake the task; harmless when nobody waits any more."""
        ...


class Host(Protocol):
    """What a run needs of a backend. Made inside a running event loop; belongs to its thread."""

    thread: int

    def waiter(self) -> Waiter:
        """A new one-shot event."""
        ...

    def spawn(self, job: Job) -> None:
        """Start a job with a copy of the run's context variables."""
        ...

    def cancel(self, job: Job) -> None:
        """Cancel a job, at most once."""
        ...

    def start(self, main: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        """Start the run's driver; `ended` is called when it is over, however it ended."""
        ...

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the event loop; from any thread, also after the loop has ended (then never)."""
        ...

    def timer(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after a while of real time; the returned function cancels."""
        ...

    async def shielded(self, waiter: Waiter, bound: float) -> None:
        """Wait, whatever cancels the caller, at most `bound` seconds; then re-raise the cancellation, if there was one."""
        ...


class _AsyncioWaiter:
    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future = loop.create_future()

    def wait(self) -> Awaitable[Any]:
        return self._future

    def set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class AsyncioHost:
    """The run's tasks on asyncio, whatever the loop (uvloop included)."""

    __slots__ = ("_context", "_eager", "loop", "thread")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._context = contextvars.copy_context()
        self._eager: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

    def waiter(self) -> Waiter:
        return _AsyncioWaiter(self.loop)

    def spawn(self, job: Job) -> None:
        job.error = asyncio.CancelledError()  # stands where the task is cancelled before its first line
        # An eager task runs up to its first real wait right here, which saves a round of the event loop.
        task = asyncio.Task(_asyncio_job(job), loop=self.loop, context=self._context.copy(), **self._eager)
        if task.done():
            job.finish()
            return
        job._handle = task
        if job.cancel_requested and isinstance(job.closing, float):  # while it ran up to here, without a handle
            task.cancel()
        _tasks.add(task)
        task.add_done_callback(functools.partial(_asyncio_done, job))

    def cancel(self, job: Job) -> None:
        if job.cancel_requested or job.done:
            return
        job.cancel_requested = True
        task = job._handle
        if task is not None and not task.cancelling() and isinstance(job.closing, float):
            task.cancel()  # in a clean-up that has begun it would go through the shield

    def start(self, main: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        task = asyncio.Task(main, loop=self.loop, context=self._context.copy())
        _tasks.add(task)
        task.add_done_callback(functools.partial(_asyncio_ended, ended))

    def soon(self, callback: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            pass

    def timer(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        return self.loop.call_later(max(seconds, 0), callback).cancel

    async def shielded(self, waiter: Waiter, bound: float) -> None:
        assert isinstance(waiter, _AsyncioWaiter)
        cancelled: asyncio.CancelledError | None = None
        end = self.loop.time() + bound
        with anyio.CancelScope(shield=True):
            while not waiter._future.done() and (left := end - self.loop.time()) > 0:
                try:  # asyncio.wait does not cancel what it waits for; wait_for would
                    await asyncio.wait([waiter._future], timeout=left)
                except asyncio.CancelledError as error:  # a native cancel goes through an anyio shield
                    cancelled = error
        if cancelled is not None:
            raise cancelled


async def _asyncio_job(job: Job) -> None:
    try:
        if not job.may_begin():
            return
        job.error = None
        job.value = await job.make(job)
    except BaseException as error:
        job.error = error
        del job  # the error's traceback holds this frame


def _asyncio_ended(ended: Callable[[], None], task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    ended()


def _asyncio_done(job: Job, task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    job.finish()


class _TrioWaiter:
    __slots__ = ("_event",)

    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> Awaitable[Any]:
        return self._event.wait()  # type: ignore[no-any-return]

    def set(self) -> None:
        self._event.set()


class TrioHost:
    """The run's tasks on trio, as system tasks: they end with `trio.run`."""

    __slots__ = ("_context", "_token", "_trio", "thread")

    def __init__(self) -> None:
        import trio  # loaded already: we run inside it

        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self.thread = threading.get_ident()
        self._context = contextvars.copy_context()

    def waiter(self) -> Waiter:
        return _TrioWaiter(self._trio.Event())

    def spawn(self, job: Job) -> None:
        scope = job._handle = self._trio.CancelScope()
        self._system_task(self._job, job, scope)

    def _system_task(self, function: Callable[..., Any], *args: Any) -> None:
        self._trio.lowlevel.spawn_system_task(function, *args, context=self._context.copy())

    async def _job(self, job: Job, scope: Any) -> None:
        returned = False
        try:
            with scope:
                await self._body(job)
                returned = True
        finally:
            if not returned:
                job.error = CancelledJob()
            job.finish()
            del job  # from Python 3.12 on the frames in an error's traceback hold this one

    async def _body(self, job: Job) -> None:
        try:
            if not job.may_begin():  # else the body would run to its first checkpoint
                raise CancelledJob
            job.value = await job.make(job)
        except self._trio.Cancelled:
            raise
        except BaseExceptionGroup as group:
            job.error = _without(self._trio.Cancelled, group)
            if job.error is None:
                raise
            del job  # the error's traceback holds this frame
        except BaseException as error:
            job.error = error
            del job

    def cancel(self, job: Job) -> None:
        if not job.done:
            job.cancel_requested = True
            job._handle.cancel()  # a scope is cancelled once, however often it is told

    def start(self, main: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        async def driver() -> None:
            try:
                await main
            finally:
                ended()

        self._system_task(driver)

    def soon(self, callback: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(callback)
        except self._trio.RunFinishedError:
            pass

    def timer(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        scope = self._trio.CancelScope()

        async def sleep() -> None:
            with scope:
                await self._trio.sleep(max(seconds, 0))
                callback()

        self._system_task(sleep)
        return scope.cancel

    async def shielded(self, waiter: Waiter, bound: float) -> None:
        with self._trio.CancelScope(shield=True, deadline=self._trio.current_time() + bound):
            await waiter.wait()


def _without(kind: type[BaseException], group: BaseExceptionGroup[Any]) -> BaseException | None:
    """A group without its exceptions of a class; None where nothing is left of it."""
    try:
        taken, rest = group.split(kind)
    except BaseException:  # a subclass may override how its parts are made, and fail
        return group
    return group if taken is None else rest


class CancelledJob(BaseException):
    """Stands for trio's `Cancelled`, which user code cannot make, on a job that was cancelled."""


def was_cancelled(error: BaseException | None) -> bool:
    """Whether an error is a backend's cancellation."""
    # `isinstance` would read its `__class__`, which may fail.
    return issubclass(type(error), asyncio.CancelledError | CancelledJob)


def cancelled_by_nobody(error: BaseException) -> bool:
    """Whether it is a cancellation although nobody cancels this task: what the task awaited was cancelled."""
    if not issubclass(type(error), asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not on asyncio: nobody can cancel us like this
        return True
    return task is not None and not task.cancelling()


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread. Apart from its caller: what that raises below would show what is caught
    here as its context."""
    try:
        current_token()
    except RuntimeError:
        return False
    return True


def make_host() -> Host:
    """The host of the running event loop. Raises `RuntimeError` outside of one."""
    backend = current_token().backend_class.__module__
    return TrioHost() if "trio" in backend else AsyncioHost()


async def in_thread(function: Callable[[], Any], limiter: anyio.CapacityLimiter) -> Any:
    """Run in a worker thread; on cancellation the thread is left to itself and its value dropped."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)


async def close_shielded(close: Callable[[], Awaitable[Any]], job: Job) -> None:
    """Await a clean-up that a cancellation must not cut, in a job; whoever gives the job up cuts it after all."""
    bound = job.closing if isinstance(job.closing, float) else math.inf
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + bound) as job.closing:
        await close()


async def close_nested(close: Callable[[], Awaitable[Any]], job: Job) -> None:
    """The same in the midst of a job's work, several at once perhaps. There asyncio's own cancellation cuts it, too: held
    back, it would never come to what the job does behind it."""
    bound = job.closing if isinstance(job.closing, float) else math.inf
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + bound) as scope:
        job.shields += (scope,)
        try:
            await close()
        finally:
            job.shields = tuple([each for each in job.shields if each is not scope])


def cut_closing(job: Job, bound: float) -> None:
    """Cancel a clean-up that takes too long: behind its shield it would outlast even the end of trio. One that begins only
    now that nobody waits for it any more may take `bound` seconds."""
    for shield in job.shields:
        shield.cancel()
    if isinstance(job.closing, float):
        job.closing = bound
    else:
        job.closing.cancel()
