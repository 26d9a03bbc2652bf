"""The virtual clock jumps only when everything waits, and wakes sleepers in the order of their ends."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from agentloop.testing import VirtualClock, wait_all_blocked

pytestmark = pytest.mark.anyio


async def test_sleepers_wake_in_order_and_at_their_time() -> None:
    """Hours pass at once; each sleeper wakes exactly when the clock shows its end, the earliest first."""
    clock, woke = VirtualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woke.append((seconds, clock.now()))
        await clock.sleep(seconds)
        woke.append((seconds, clock.now()))

    async with anyio.create_task_group() as group:
        for seconds in (7200.0, 1.0, 60.0):
            group.start_soon(sleeper, seconds)
    assert woke == [(1, 1), (1, 2), (60, 60), (60, 120), (7200, 7200), (7200, 14400)]
    assert clock.asleep == 0


async def test_time_stands_still_while_a_task_works() -> None:
    """A task that keeps running, however many steps it takes, is not overtaken by a sleep."""
    clock, seen = VirtualClock(), []

    async def worker() -> None:
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        seen.append(clock.now())

    async with anyio.create_task_group() as group:
        group.start_soon(worker)
        await clock.sleep(5)
        seen.append(clock.now())
    assert seen == [0, 5]


async def test_hand_over_between_tasks_counts_as_work() -> None:
    """Two tasks that wake each other in turn are work, although at any moment one of them waits."""
    clock, seen = VirtualClock(), []
    there, back = anyio.create_memory_object_stream[int](0)

    async def producer() -> None:
        async with there:
            for n in range(100):
                await there.send(n)

    async with anyio.create_task_group() as group, back:
        group.start_soon(producer)
        group.start_soon(clock.sleep, 1)
        async for n in back:
            seen.append((n, clock.now()))
    assert seen == [(n, 0) for n in range(100)]
    assert clock.now() == 1


@pytest.mark.parametrize("victim", [1.0, 9.0])
async def test_a_cancelled_sleep_leaves_the_others(victim: float) -> None:
    """Whoever is cancelled, the leading sleeper or another, the rest wake in time and nothing is left behind."""
    clock, woke = VirtualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woke.append(clock.now())

    async with anyio.create_task_group() as group:
        for seconds in (2.0, 3.0):
            group.start_soon(sleeper, seconds)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await clock.sleep(victim)
    assert woke == [2, 3]
    assert clock.asleep == 0


async def test_leader_cancelled_while_leading() -> None:
    """A sleeper that moves the time and is cancelled by what it woke hands the lead on."""
    clock, woke = VirtualClock(), []
    scope = anyio.CancelScope()

    async def leader() -> None:
        with scope:
            await clock.sleep(10)

    async def other(seconds: float, *, cancel: bool) -> None:
        await clock.sleep(seconds)
        woke.append(clock.now())
        if cancel:
            scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(leader)
        group.start_soon(lambda: other(4, cancel=True))
        group.start_soon(lambda: other(20, cancel=False))
    assert scope.cancelled_caught
    assert woke == [4, 20]


async def test_two_clocks_do_not_wait_for_each_other() -> None:
    """Two clocks in one event loop both go on."""
    first, second = VirtualClock(), VirtualClock(100)
    async with anyio.create_task_group() as group:
        group.start_soon(first.sleep, 5)
        group.start_soon(second.sleep, 7)
    assert (first.now(), second.now()) == (5, 107)


async def test_by_hand() -> None:
    """Without a threshold the time moves only when told; `advance` stops at each end on the way."""
    clock, woke = VirtualClock(autojump_threshold=None), []

    async def ticker() -> None:
        for _ in range(3):
            await clock.sleep(1)
            woke.append(clock.now())

    async with anyio.create_task_group() as group:
        group.start_soon(ticker)
        await clock.advance(2.5)
        assert (woke, clock.now()) == ([1, 2], 2.5)
        clock.jump(10)
    assert woke == [1, 2, 12.5]


async def test_threshold_waits_for_a_thread() -> None:
    """With a threshold longer than a thread's work, the time does not run away under it."""
    clock, seen = VirtualClock(autojump_threshold=0.2), []
    go = threading.Event()

    async def work() -> None:
        await anyio.to_thread.run_sync(go.wait)
        seen.append(clock.now())

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        group.start_soon(clock.sleep, 3)
        await wait_all_blocked()
        go.set()
    assert seen == [0]
    assert clock.now() == 3


async def test_endless_sleep_does_not_move_the_time() -> None:
    """A sleep without end never makes the clock jump there, and can be cancelled."""
    clock = VirtualClock()
    async with anyio.create_task_group() as group:
        group.start_soon(clock.sleep, float("inf"))
        await clock.sleep(1)
        assert clock.now() == 1
        await clock.advance(1)
        group.cancel_scope.cancel()
    assert clock.now() == 2


async def test_no_sleep_is_a_checkpoint() -> None:
    """Zero and negative sleeps return at the same time, after a checkpoint."""
    clock = VirtualClock(3)
    await clock.sleep(0)
    await clock.sleep(-1)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await clock.sleep(0)
        pytest.fail("no checkpoint")
    assert clock.now() == 3
