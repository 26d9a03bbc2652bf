"""The host: what a run needs of its event loop, and the same on each of them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentloop._host import (
    AsyncioHost,
    CancelledJob,
    Job,
    cancelled_by_nobody,
    close_nested,
    close_shielded,
    cut_closing,
    in_event_loop,
    in_thread,
    make_host,
    was_cancelled,
)
from agentloop.testing import wait_all_blocked

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default="unset")


class Kept:
    """Something of the application's, which must not be kept for longer than its work."""


class Gate:
    """An event that can be watched without being held."""

    def __init__(self) -> None:
        self.event = anyio.Event()


class Noted(Job):
    """A job that notes how it stood when it was told to be over."""

    def __init__(self, make: Callable[[], Awaitable[Any]], **more: Any) -> None:
        self.told: list[tuple[bool, Any, BaseException | None]] = []
        super().__init__(lambda job: make(), self._note, **more)

    def _note(self, job: Job) -> None:
        assert job is self
        self.told.append((job.done, job.value, job.error))


@pytest.fixture
def collected_by_hand() -> Any:
    """No garbage collector comes by on its own."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---------------------------------------------------------------- jobs


async def test_a_job_before_it_begins() -> None:
    """It knows what was asked of it, and nothing has happened to it."""

    async def make(job: Job) -> None: ...

    def done(job: Job) -> None: ...

    job = Job(make, done, "tag", None, done)
    assert (job.make, job.tag, job.then) == (make, "tag", done)
    assert (job.done, job.cancel_requested, job.value, job.error) == (False, False, None, None)
    job.finish()


async def test_a_job_keeps_what_was_returned_and_is_told_once() -> None:
    """It is over when it is told, and its value stands."""

    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        return "value"

    job = Noted(work)
    make_host().spawn(job)
    await wait_all_blocked()
    assert job.told == [(True, "value", None)]
    assert not job.cancel_requested


async def test_a_job_that_never_waits() -> None:
    """The same, where it is over in its first step."""

    async def work() -> str:
        return "value"

    job = Noted(work)
    make_host().spawn(job)
    await wait_all_blocked()
    assert job.told == [(True, "value", None)]


async def test_a_job_begins_at_once_on_asyncio_where_python_can() -> None:
    """From Python 3.12 on it runs up to its first wait before `spawn` returns; one that never waits is over by then.
    Elsewhere it begins in a turn of its own."""
    log: list[str] = []

    async def short() -> None:
        log.append("short")

    async def long() -> None:
        log.append("long")
        await anyio.lowlevel.checkpoint()
        log.append("more")

    host = make_host()
    at_once = sys.version_info >= (3, 12) and isinstance(host, AsyncioHost)
    jobs = Noted(short), Noted(long)
    for job in jobs:
        host.spawn(job)
    assert log == (["short", "long"] if at_once else [])
    assert [job.done for job in jobs] == [at_once, False]
    await wait_all_blocked()
    assert sorted(log) == ["long", "more", "short"]
    assert [job.told for job in jobs] == [[(True, None, None)]] * 2


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, BaseExceptionGroup])
async def test_nothing_that_is_raised_leaves_a_job(
    waits: bool, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept on the job, as it is; the event loop goes on and has nothing to complain of."""
    error = kind("all", [ValueError()]) if issubclass(kind, BaseExceptionGroup) else kind()

    async def work() -> None:
        if waits:
            await anyio.lowlevel.checkpoint()
        raise error

    job = Noted(work)
    make_host().spawn(job)
    await wait_all_blocked()
    gc.collect()
    assert [(done, value) for done, value, _ in job.told] == [(True, None)]
    assert job.error is error
    assert caplog.records == []


async def test_what_fails_before_the_first_line_is_kept_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """The question whether a job may begin asks the caller's clock, and making its awaitable is the caller's code."""

    def broken() -> Any:
        raise ZeroDivisionError

    async def work() -> None:
        raise AssertionError("it must not begin")

    jobs = Noted(work, stopped=broken), Noted(broken)
    host = make_host()
    for job in jobs:
        host.spawn(job)
    await wait_all_blocked()
    gc.collect()
    assert [type(job.error) for job in jobs] == [ZeroDivisionError] * 2
    assert [len(job.told) for job in jobs] == [1, 1]
    assert caplog.records == []


@pytest.mark.parametrize("stopped", [None, False, True])
async def test_g21_a_job_asks_in_its_task_whether_it_may_begin(stopped: bool | None) -> None:
    """What was stopped between the order and the first line does not begin and counts as cancelled."""
    began: list[str] = []

    async def work() -> str:
        began.append("work")
        return "value"

    job = Noted(work, stopped=None if stopped is None else lambda: stopped)
    make_host().spawn(job)
    await wait_all_blocked()
    assert began == ([] if stopped else ["work"])
    assert job.cancel_requested is bool(stopped)
    assert was_cancelled(job.error) is bool(stopped)
    assert len(job.told) == 1


async def test_a_stop_cannot_be_asked_about_twice() -> None:
    """A job whose stop has passed is over all the same: the answer is the one that it got before its first line."""
    answers = [False, True]

    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        return "value"

    job = Noted(work, stopped=lambda: answers.pop(0))
    make_host().spawn(job)
    await wait_all_blocked()
    assert (job.told, answers) == ([(True, "value", None)], [True])


async def test_a_job_that_is_over_lets_go_of_who_asked_for_it(collected_by_hand: None) -> None:
    """No circle leads from it to its owner, who holds it: all of it is freed without the garbage collector."""

    class Owner(Kept):
        def __init__(self) -> None:
            self.job = Job(self.work, self.told, None, self.stopped, self.told)

        async def work(self, job: Job) -> None: ...

        def told(self, job: Job) -> None: ...

        def stopped(self) -> bool:
            return False

    owner = Owner()
    make_host().spawn(owner.job)
    await wait_all_blocked()
    gone = weakref.ref(owner)
    del owner
    assert gone() is None


@pytest.mark.parametrize("kind", ["error", "group", "cancelled"])
async def test_an_error_that_is_kept_holds_no_circle(kind: str, collected_by_hand: None) -> None:
    """Its traceback does not lead back to the job that keeps it."""
    forever = anyio.Event()

    async def work() -> None:
        await anyio.lowlevel.checkpoint()  # Python 3.12: a frame of a task's first step holds those of who spawned it
        if kind == "cancelled":
            await forever.wait()
        raise ValueError if kind == "error" else ExceptionGroup("all", [ValueError()])

    async def play() -> weakref.ref[Kept]:
        kept, host = Kept(), make_host()
        job = Noted(work, tag=kept)
        host.spawn(job)
        await wait_all_blocked()
        host.cancel(job)
        await wait_all_blocked()
        assert job.error is not None
        job.told.clear()
        return weakref.ref(kept)

    gone = await play()
    await anyio.lowlevel.checkpoint()
    assert gone() is None


async def test_g27_a_job_has_a_copy_of_the_runs_context_variables() -> None:
    """It sees them as they stood when the host was made; what it sets is its own."""
    seen: list[str] = []

    async def work() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("of a job")

    VARIABLE.set("of the run")
    host = make_host()
    VARIABLE.set("of the consumer")
    host.spawn(Noted(work))
    await wait_all_blocked()
    host.spawn(Noted(work))
    host.start(work(), lambda: None)
    await wait_all_blocked()
    assert seen == ["of the run"] * 3
    assert VARIABLE.get() == "of the consumer"


@pytest.mark.parametrize("what", ["job", "driver"])
async def test_a_task_lives_although_nobody_holds_it(what: str) -> None:
    """asyncio holds its tasks weakly: one that waits for what only it knows would be collected."""
    gates: list[weakref.ref[Gate]] = []
    log: list[str] = []

    async def work() -> None:
        gate = Gate()
        gates.append(weakref.ref(gate))
        try:
            await gate.event.wait()
            log.append("woken")
        finally:
            log.append("over")

    def begin() -> None:
        host = make_host()
        if what == "job":
            host.spawn(Job(lambda job: work(), lambda job: log.append("told")))
        else:
            host.start(work(), lambda: log.append("told"))

    begin()
    await wait_all_blocked()
    gc.collect()
    gate = gates[0]()
    assert (log, gate is not None) == ([], True)
    assert gate is not None
    gate.event.set()
    await wait_all_blocked()
    assert log == ["woken", "over", "told"]


@pytest.mark.parametrize("what", ["job", "driver"])
async def test_a_task_that_is_over_is_held_no_longer(what: str) -> None:
    """Nor is what it had set in its context."""
    kept: list[weakref.ref[Kept]] = []

    async def work() -> None:
        own = Kept()
        kept.append(weakref.ref(own))
        VARIABLE.set(own)
        await anyio.lowlevel.checkpoint()

    host = make_host()
    if what == "job":
        host.spawn(Noted(work))
    else:
        host.start(work(), lambda: None)
    await wait_all_blocked()
    gc.collect()
    assert kept[0]() is None


# ---------------------------------------------------------------- cancelling them


async def test_a_cancelled_job_cleans_up_and_counts_as_cancelled() -> None:
    """It has no value, and is told once its clean-up is over."""
    forever, cleaned = anyio.Event(), list[str]()

    async def work() -> str:
        try:
            await forever.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            cleaned.append("work")
        return "never"

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    assert (job.done, job.told) == (False, [])
    host.cancel(job)
    assert (job.cancel_requested, job.done) == (True, False)
    await wait_all_blocked()
    assert cleaned == ["work"]
    ((done, value, error),) = job.told
    assert (done, value, was_cancelled(error)) == (True, None, True)


async def test_a_job_that_is_cancelled_before_its_first_step() -> None:
    """It never begins (where tasks start at once it has begun), asks nobody whether it may, and is told to be over."""
    forever, began = anyio.Event(), list[str]()

    async def work() -> None:
        began.append("work")
        await forever.wait()

    def stopped() -> bool:
        began.append("asked")
        return False

    host, job = make_host(), Noted(work, stopped=stopped)
    host.spawn(job)
    at_once = list(began)
    host.cancel(job)
    await wait_all_blocked()
    assert began == at_once
    assert (len(job.told), was_cancelled(job.error)) == (1, True)


async def test_a_job_that_is_cancelled_in_its_own_first_step() -> None:
    """It ends at its next wait, also where its task begins before `spawn` could note which one it is."""
    forever, ended = anyio.Event(), list[str]()
    host = make_host()

    async def work() -> None:
        host.cancel(job)
        try:
            await forever.wait()
        finally:
            ended.append("work")

    job = Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    assert ended == ["work"]
    assert was_cancelled(job.error)


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_returned_in_the_step_of_the_cancellation_is_kept(waits: bool) -> None:
    """A result is a result: the cancellation found no wait to cut."""
    host = make_host()

    async def work() -> str:
        if waits:
            await anyio.lowlevel.checkpoint()
        host.cancel(job)
        return "value"

    job = Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    assert job.told == [(True, "value", None)]


async def test_what_is_raised_in_the_step_of_the_cancellation_is_kept() -> None:
    """It says more than that the job was cancelled."""
    host = make_host()

    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        host.cancel(job)
        raise ZeroDivisionError

    job = Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    assert (len(job.told), type(job.error)) == (1, ZeroDivisionError)


@pytest.mark.parametrize("taken_back", [False, True])
async def test_a_second_cancel_does_not_cut_the_clean_up(taken_back: bool) -> None:
    """A job is cancelled once, whether or not the task takes the cancellation back (`uncancel`) and lives on."""
    forever, gate, cleaned = anyio.Event(), anyio.Event(), list[str]()

    async def work() -> None:
        try:
            await forever.wait()
        finally:
            if taken_back and isinstance(host, AsyncioHost):
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
            with anyio.CancelScope(shield=True):
                await gate.wait()
            cleaned.append("work")

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    for _ in range(2):
        host.cancel(job)
        await wait_all_blocked()
        assert not job.done
    gate.set()
    await wait_all_blocked()
    assert (job.done, cleaned) == (True, ["work"])


async def test_a_job_whose_task_the_event_loop_has_cancelled_is_not_cancelled_again() -> None:
    """An event loop that ends cancels every task (trio's ends its system tasks itself): the run, which hears of it, does
    not cut their clean-up."""
    forever, gate, cleaned = anyio.Event(), anyio.Event(), list[str]()
    tasks: list[asyncio.Task[Any]] = []
    host = make_host()

    async def work() -> None:
        if isinstance(host, AsyncioHost):
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
        try:
            await forever.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await gate.wait()
            cleaned.append("work")

    job = Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    for task in tasks:
        task.cancel()
    await wait_all_blocked()
    host.cancel(job)
    await wait_all_blocked()
    assert (job.cancel_requested, job.done) == (True, False)
    gate.set()
    await wait_all_blocked()
    assert cleaned == ["work"]
    assert was_cancelled(job.error)


async def test_a_job_that_is_over_is_not_cancelled() -> None:
    """Nothing says afterwards that it had been."""

    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        return "value"

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    host.cancel(job)
    assert (job.cancel_requested, job.value, job.error) == (False, "value", None)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_group_of_tasks_in_a_job(fails: bool) -> None:
    """Of what its tasks raised the cancellations are left out; if there was nothing else, it was cancelled."""
    forever = anyio.Event()

    async def child(fails: bool) -> None:
        try:
            await forever.wait()
        finally:
            if fails:
                raise ZeroDivisionError

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child, fails)
            group.start_soon(child, False)

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    host.cancel(job)
    await wait_all_blocked()
    error = job.error
    if fails:
        assert isinstance(error, ExceptionGroup)  # not a BaseExceptionGroup: no cancellation is in it
        assert [type(each) for each in error.exceptions] == [ZeroDivisionError]
    else:
        assert was_cancelled(error)


async def test_a_job_that_wraps_its_cancellation_in_a_group(anyio_backend_name: str) -> None:
    """As trio's nurseries do, or did: a group of nothing but cancellations is one."""
    if anyio_backend_name == "asyncio":
        pytest.skip("asyncio's groups raise a plain cancellation")
    forever = anyio.Event()

    async def work() -> None:
        try:
            await forever.wait()
        except anyio.get_cancelled_exc_class() as error:
            raise BaseExceptionGroup("all", [error]) from None

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    host.cancel(job)
    await wait_all_blocked()
    assert len(job.told) == 1
    assert was_cancelled(job.error)


async def test_a_cancelled_job_whose_group_fails_to_make_its_parts(anyio_backend_name: str) -> None:
    """What it raised is kept as it is; out of a task of trio's it would end the event loop."""
    if anyio_backend_name == "asyncio":
        pytest.skip("asyncio's groups raise a plain cancellation")

    class Own(BaseExceptionGroup[BaseException]):
        def derive(self, excs: Any, /) -> Any:
            raise LookupError("gone")

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as error:
            raise Own("own", [error, ZeroDivisionError()]) from None

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    host.cancel(job)
    await wait_all_blocked()
    assert type(job.error) is Own


async def test_what_counts_as_cancelled() -> None:
    """asyncio's own error, ours that stands for trio's, and no other."""
    assert was_cancelled(asyncio.CancelledError())
    assert was_cancelled(CancelledJob())
    assert not was_cancelled(None)
    assert not was_cancelled(TimeoutError())
    assert not was_cancelled(KeyboardInterrupt())


# ---------------------------------------------------------------- waiting


async def test_a_waiter_wakes_the_task_that_waits() -> None:
    """And only when it is set; one that is set before lets it pass."""
    host, log = make_host(), list[str]()
    waiter = host.waiter()

    async def wait() -> None:
        await waiter.wait()
        log.append("woken")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await wait_all_blocked()
        assert log == []
        waiter.set()
        waiter.set()
        await wait_all_blocked()
        group.cancel_scope.cancel()
    assert log == ["woken"]
    early = host.waiter()
    early.set()
    with anyio.fail_after(5):
        await early.wait()


async def test_a_waiter_may_be_set_when_nobody_waits_any_more() -> None:
    """The task that waited was cancelled."""
    waiter = make_host().waiter()

    async def wait() -> None:
        await waiter.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await wait_all_blocked()
        group.cancel_scope.cancel()
    waiter.set()
    late = make_host().waiter()
    late.set()
    with anyio.move_on_after(5) as bound:
        await late.wait()
    assert not bound.cancelled_caught, "another waiter of the same loop still works"


class Shielded:
    """A task that waits under the shield, in a scope of its own, and what it said."""

    def __init__(self, bound: float) -> None:
        self.host = make_host()
        self.waiter = self.host.waiter()
        self.scope = anyio.CancelScope()
        self.bound = bound
        self.log: list[str] = []
        self.task: asyncio.Task[Any] | None = None

    async def wait(self) -> None:
        if isinstance(self.host, AsyncioHost):
            self.task = asyncio.current_task()
        with self.scope:
            try:
                await self.host.shielded(self.waiter, self.bound)
            except asyncio.CancelledError:
                self.log.append("raised")
                raise
            self.log.append("over")
            await anyio.lowlevel.checkpoint()
            self.log.append("went on")


async def test_a_shielded_wait_ends_when_the_waiter_is_set() -> None:
    """At once, long before its bound."""
    waits = Shielded(10)
    async with anyio.create_task_group() as group:
        group.start_soon(waits.wait)
        await wait_all_blocked()
        assert waits.log == []
        waits.waiter.set()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert waits.log == ["over", "went on"]
        with anyio.fail_after(5):  # that was already set
            await waits.host.shielded(waits.waiter, 10)


async def test_a_shielded_wait_ends_at_its_bound() -> None:
    """Whether or not the waiter is ever set."""
    waits = Shielded(0.05)
    over = anyio.Event()

    async def wait() -> None:
        await waits.wait()
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        try:
            with anyio.fail_after(5):
                await over.wait()
        finally:
            waits.waiter.set()
    assert waits.log == ["over", "went on"]


async def test_a_shielded_wait_is_not_cut_by_a_scope() -> None:
    """The cancellation comes when it is over; until then the task rests (it is not woken again and again)."""
    waits = Shielded(10)
    async with anyio.create_task_group() as group:
        group.start_soon(waits.wait)
        await wait_all_blocked()
        waits.scope.cancel()
        try:
            with anyio.fail_after(5):
                await wait_all_blocked()
            assert waits.log == []
        finally:
            waits.waiter.set()
        await wait_all_blocked()
    assert waits.log == ["over"]


async def test_a_shielded_wait_is_not_cut_by_a_native_cancel() -> None:
    """asyncio's `Task.cancel` goes through anyio's shield: it is waited out, however often, and raised when the wait is over.
    Trio knows scopes only."""
    waits = Shielded(10)
    task = None
    async with anyio.create_task_group() as group:
        group.start_soon(waits.wait)
        await wait_all_blocked()
        task = waits.task
        for _ in range(2):
            if task is not None:
                task.cancel()
            await wait_all_blocked()
            assert waits.log == []
        waits.waiter.set()
    assert waits.log == (["over", "went on"] if task is None else ["raised"])


async def test_a_clean_up_that_is_shielded_is_not_cut() -> None:
    """It is awaited to its end although the task is cancelled."""
    log: list[str] = []

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        log.append("closed")

    with anyio.CancelScope() as scope:
        scope.cancel()
        await close_shielded(close, Job(lambda job: close(), lambda job: None))
        await anyio.lowlevel.checkpoint()
        log.append("not cancelled")
    assert log == ["closed"]


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_clean_up_in_a_job_that_has_begun_is_not_cut(at_once: bool) -> None:
    """Whoever cancels the job then, be it in the step in which its clean-up begins: it runs to its end."""
    gate, log = anyio.Event(), list[str]()
    host = make_host()

    async def close() -> None:
        if at_once:
            host.cancel(job)
        await gate.wait()
        log.append("closed")

    async def work() -> str:
        await close_shielded(close, job)
        return "value"

    job = Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    host.cancel(job)
    await wait_all_blocked()
    assert not job.done
    gate.set()
    await wait_all_blocked()
    assert log == ["closed"]
    assert (job.done, job.cancel_requested) == (True, True)


async def test_the_clean_up_of_a_nested_run_is_not_cut_by_the_scopes_around_it() -> None:
    """It is awaited to its end; what holds it then holds no shield any more."""
    log: list[str] = []

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        log.append(f"closed behind {len(job.shields)}")

    job = Job(lambda job: close(), lambda job: None)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await close_nested(close, job)
        log.append(f"behind {len(job.shields)}")
        await anyio.lowlevel.checkpoint()
        log.append("not cancelled")
    assert log == ["closed behind 1", "behind 0"]


@pytest.mark.parametrize("close_it", [close_shielded, close_nested])
async def test_a_clean_up_that_never_ends_is_cut_when_it_is_given_up(close_it: Any) -> None:
    """Behind its shield it would outlast even the end of trio. Several at once are all cut."""
    forever, log = anyio.Event(), list[str]()
    together = 1 if close_it is close_shielded else 3

    async def close() -> None:
        try:
            await forever.wait()
        finally:
            log.append("cut")

    async def work() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(together):
                group.start_soon(close_it, close, job)

    host, job = make_host(), Noted(work)
    host.spawn(job)
    await wait_all_blocked()
    assert log == []
    cut_closing(job, 0.0)
    await wait_all_blocked()
    assert (log, job.done, job.shields) == (["cut"] * together, True, ())


@pytest.mark.parametrize("close_it", [close_shielded, close_nested])
async def test_a_clean_up_that_begins_after_it_was_given_up_is_bounded(close_it: Any) -> None:
    """Nobody waits for it any more: with no time it is cut at its first wait, with some it comes to its end."""
    forever, log = anyio.Event(), list[str]()

    async def close() -> None:
        try:
            await forever.wait()
        finally:
            log.append("cut")

    async def quick() -> None:
        await anyio.lowlevel.checkpoint()
        log.append("closed")

    for bound, clean_up in ((0.0, close), (1000.0, quick)):
        job = Job(lambda job: quick(), lambda job: None)
        cut_closing(job, bound)
        await close_it(clean_up, job)
    assert log == ["cut", "closed"]


# ---------------------------------------------------------------- threads and time


async def test_a_call_back_from_any_thread_comes_in_the_event_loop() -> None:
    """In the thread that the host belongs to."""
    host, threads, called = make_host(), list[int](), anyio.Event()

    def callback() -> None:
        threads.append(threading.get_ident())
        called.set()

    assert host.thread == threading.get_ident()
    await anyio.to_thread.run_sync(host.soon, callback)
    with anyio.fail_after(10):
        await called.wait()
    host.soon(callback)
    assert len(threads) == 1
    await wait_all_blocked()
    assert threads == [host.thread] * 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_back_after_the_event_loop_has_ended_never_comes(backend: str) -> None:
    """Whoever asks for it is not told: it may be a destructor, or a thread that was left to itself."""
    called: list[str] = []

    async def main() -> Any:
        return make_host()

    host = anyio.run(main, backend=backend)
    host.soon(lambda: called.append("called"))
    assert called == []


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_timer_of_no_time_goes_off_at_once(seconds: float) -> None:
    """As soon as the event loop comes round, also one that is late already."""
    called: list[str] = []
    cancel = make_host().timer(seconds, lambda: called.append("called"))
    assert called == []
    await wait_all_blocked()
    assert called == ["called"]
    cancel()
    await wait_all_blocked()
    assert called == ["called"]


async def test_a_timer_that_is_cancelled_does_not_go_off() -> None:
    """Nor does one whose time has not come; nothing is left of it."""
    called: list[str] = []
    host = make_host()
    host.timer(0, lambda: called.append("cancelled"))()
    later = host.timer(60, lambda: called.append("later"))
    await wait_all_blocked()
    assert called == []
    later()
    await wait_all_blocked()
    assert called == []


async def test_a_timer_goes_off_after_its_time() -> None:
    """It rings when so many seconds of real time have passed, and not before."""
    rang, began = anyio.Event(), anyio.current_time()
    make_host().timer(0.02, rang.set)
    with anyio.fail_after(10):
        await rang.wait()
    assert anyio.current_time() - began >= 0.019  # uvloop counts milliseconds


async def test_a_thread_is_left_to_itself_when_its_task_is_cancelled() -> None:
    """Its value is returned, within the limit that is given; a cancellation does not wait for it."""
    limiter = anyio.CapacityLimiter(1)
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def block() -> int:
        began.set()
        release.wait(5)
        ended.set()
        return limiter.borrowed_tokens

    async def cancelled() -> None:
        with anyio.CancelScope() as scope:
            group.start_soon(stop, scope)
            await in_thread(block, limiter)

    async def stop(scope: anyio.CancelScope) -> None:
        assert await anyio.to_thread.run_sync(began.wait, 5)
        scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(cancelled)
        assert not ended.is_set()
    finally:
        release.set()
    assert await in_thread(block, limiter) == 1


# ---------------------------------------------------------------- the driver, and which host it is


async def test_the_end_of_the_driver_is_told() -> None:
    """Once, when it is over."""
    gate, log = anyio.Event(), list[str]()

    async def main() -> None:
        await gate.wait()
        log.append("main")

    make_host().start(main(), lambda: log.append("told"))
    await wait_all_blocked()
    assert log == []
    gate.set()
    await wait_all_blocked()
    assert log == ["main", "told"]


async def test_the_host_is_that_of_the_event_loop(anyio_backend_name: str) -> None:
    """asyncio's for uvloop as well."""
    expected = {"asyncio": "AsyncioHost", "trio": "TrioHost"}[anyio_backend_name]
    assert type(make_host()).__name__ == expected


def test_outside_of_an_event_loop_there_is_no_host() -> None:
    """That is a clear error."""
    with pytest.raises(RuntimeError):
        make_host()


# ---------------------------------------------------------------- where we are


async def test_an_event_loop_runs_here_and_not_in_its_threads() -> None:
    """Asked in a task, and in a worker thread of the same loop."""
    assert in_event_loop() is True
    assert await anyio.to_thread.run_sync(in_event_loop) is False


def test_no_event_loop_runs_here() -> None:
    """Asked from synchronous code, where no task is that somebody could cancel."""
    assert in_event_loop() is False
    assert cancelled_by_nobody(asyncio.CancelledError()) is True


async def test_a_cancellation_out_of_what_was_awaited_is_nobodys() -> None:
    """Somebody cancelled that, and not this task; on trio nobody cancels a task like this at all."""
    assert cancelled_by_nobody(asyncio.CancelledError()) is True
    assert cancelled_by_nobody(ValueError()) is False
    assert cancelled_by_nobody(CancelledJob()) is False


async def test_a_cancellation_of_the_task_itself_is_somebodys(anyio_backend_name: str) -> None:
    """Whoever cancels it is to have it; outside of a task nobody can tell, and it is not taken for nobody's."""
    if anyio_backend_name == "trio":
        pytest.skip("asyncio's own cancellation")
    answers: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError as error:
            answers.append(cancelled_by_nobody(error))
            raise

    task = asyncio.ensure_future(work())
    await wait_all_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    told = asyncio.Event()

    def outside() -> None:
        told.set()
        answers.append(cancelled_by_nobody(asyncio.CancelledError()))

    asyncio.get_running_loop().call_soon(outside)
    await told.wait()
    assert answers == [False, False]
