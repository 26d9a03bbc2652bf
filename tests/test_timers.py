"""The timers of a run: many of them behind one alarm, which is set to the next time that is still to come."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from agentloop._host import make_host
from agentloop._timers import _MOMENT, Timers
from agentloop.config import SystemClock

pytestmark = pytest.mark.anyio


class Alarms:
    """A clock that stands where it is put, the alarms that were set on it (seconds, what becomes of them) and the rings."""

    def __init__(self) -> None:
        self.time = 0.0
        self.set: list[list[object]] = []
        self.rings = 0
        self._over: Callable[[], None] | None = None
        self.timers = Timers(self, make_host(), self._ring, self._set)

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def _ring(self) -> None:
        self.rings += 1

    def _set(self, seconds: float, over: Callable[[], None]) -> Callable[[], None]:
        alarm: list[object] = [seconds, "set"]
        self.set.append(alarm)
        self._over = over

        def cancel() -> None:
            assert alarm[1] == "set", f"expected to cancel an alarm that is set, this one is {alarm[1]}"
            alarm[1] = "cancelled"

        return cancel

    def go_off(self, at: float) -> None:
        """The alarm that is set goes off when the clock shows `at`."""
        assert self.set[-1][1] == "set"
        self.time = at
        self.set[-1][1] = "over"
        assert self._over is not None
        self._over()


async def test_the_alarm_is_set_to_the_earliest_timer() -> None:
    """A timer that is no sooner than it costs nothing; a sooner one takes its place, counted from now."""
    alarms = Alarms()
    alarms.timers.set("a", 5)
    alarms.timers.set("b", 7)
    alarms.timers.set("c", 5)
    assert alarms.set == [[5, "set"]]
    alarms.time = 1
    alarms.timers.set("d", 3)
    assert alarms.set == [[5, "cancelled"], [2, "set"]]
    assert (alarms.rings, alarms.timers.soon) == (0, False)


async def test_it_rings_at_each_time_once() -> None:
    """It goes on to the next time, also past timers that are still there because nobody has looked; then it is silent."""
    alarms = Alarms()
    for key, at in (("a", 5), ("b", 7), ("c", 7)):
        alarms.timers.set(key, at)
    alarms.go_off(5)
    assert (alarms.rings, alarms.set) == (1, [[5, "over"], [2, "set"]])
    alarms.go_off(7.5)
    assert (alarms.rings, alarms.set) == (2, [[5, "over"], [2, "over"]])
    alarms.timers.set("d", 9)
    assert alarms.set[2:] == [[1.5, "set"]]


async def test_an_alarm_that_comes_early_is_set_again() -> None:
    """The driver is rung and finds nothing; what is left of the time is waited for."""
    alarms = Alarms()
    alarms.timers.set("a", 5)
    alarms.go_off(4.75)
    assert not alarms.timers.expired("a")
    assert (alarms.rings, alarms.set) == (1, [[5, "over"], [0.25, "set"]])


async def test_a_timer_has_expired_from_its_time_on() -> None:
    """At the very time it has; whether or not an alarm went off."""
    alarms = Alarms()
    alarms.timers.set("a", 5)
    alarms.time = 4.5
    assert not alarms.timers.expired("a")
    alarms.time = 5
    assert alarms.timers.expired("a")


async def test_a_timer_whose_time_has_come_when_it_is_set_rings_in_a_moment() -> None:
    """No alarm goes off for it, and whoever set it may have looked. Once, however many there are; again for the next."""
    rings: list[anyio.Event] = [anyio.Event()]
    alarms, host = Alarms(), make_host()

    def ring() -> None:
        rings[-1].set()
        rings.append(anyio.Event())

    alarms.timers = Timers(alarms, host, ring, alarms._set)
    alarms.time = 5
    for number in (1, 2):
        assert not alarms.timers.soon
        alarms.timers.set("now", 5)
        alarms.timers.set("before", 3)
        assert (len(rings), alarms.timers.soon) == (number, True)
        later = anyio.Event()
        host.timer(2 * _MOMENT, later.set)
        with anyio.fail_after(10):
            await rings[number - 1].wait()
            await later.wait()
        assert len(rings) == number + 1
    assert alarms.set == []
    alarms.timers.stop()


async def test_a_timer_whose_time_has_come_rings_though_another_is_still_to_come() -> None:
    """The alarm is set to the one to come, and goes off too late for the other."""
    rung = anyio.Event()
    alarms = Alarms()
    alarms.timers = Timers(alarms, make_host(), rung.set, alarms._set)
    alarms.time = 5
    alarms.timers.set("later", 9)
    alarms.timers.set("now", 5)
    with anyio.fail_after(10):
        await rung.wait()
    assert alarms.set == [[4, "cancelled"], [4, "set"]]
    alarms.timers.stop()


async def test_nobody_is_rung_after_the_stop() -> None:
    """Not for a timer whose moment was still to come either, and nothing is left that waits for it."""
    alarms, host = Alarms(), make_host()
    alarms.timers = Timers(alarms, host, alarms._ring, alarms._set)
    alarms.time = 5
    alarms.timers.set("now", 5)
    alarms.timers.stop()
    later = anyio.Event()
    host.timer(2 * _MOMENT, later.set)
    with anyio.fail_after(10):
        await later.wait()
    assert alarms.rings == 0


async def test_a_timer_that_is_cleared_takes_its_alarm_along() -> None:
    """On a caller's clock no sleep is left behind for it; others, and keys that are unknown, change nothing."""
    alarms = Alarms()
    for key, at in (("a", 5), ("b", 7), ("c", 9)):
        alarms.timers.set(key, at)
    alarms.timers.clear("c")
    alarms.timers.clear("nobody")
    assert alarms.set == [[5, "set"]]
    alarms.timers.clear("a")
    assert alarms.set == [[5, "cancelled"], [7, "set"]]
    alarms.timers.clear("b")
    assert alarms.set == [[5, "cancelled"], [7, "cancelled"]]
    alarms.timers.clear("nobody")
    assert not alarms.timers
    alarms.timers.set("d", 8)
    assert alarms.timers
    assert alarms.set[2:] == [[8, "set"]]


async def test_stop_forgets_all() -> None:
    """No sleep is left behind."""
    alarms = Alarms()
    alarms.timers.set("a", 5)
    alarms.timers.set("b", 7)
    alarms.timers.stop()
    assert (bool(alarms.timers), alarms.set) == (False, [[5, "cancelled"]])
    alarms.timers.stop()
    assert alarms.set == [[5, "cancelled"]]


async def test_the_systems_clock_rings_by_the_event_loops_own_alarm() -> None:
    """Nothing sleeps for it; where its timer was cleared it still goes off, and is then set to the next one."""
    clock, rung = SystemClock(), anyio.Event()
    timers = Timers(clock, make_host(), rung.set, _no_sleep)
    timers.set("soon", clock.now() + 0.01)
    timers.set("far", clock.now() + 1000)
    timers.clear("soon")
    with anyio.fail_after(10):
        await rung.wait()
    assert not timers.expired("far")
    timers.stop()


async def test_the_event_loops_alarm_is_cancelled() -> None:
    """A sooner timer moves it; after `stop` no task is left that waits for it, on any backend."""
    clock, rung = SystemClock(), anyio.Event()
    timers = Timers(clock, make_host(), rung.set, _no_sleep)
    timers.set("far", clock.now() + 1000)
    timers.set("soon", clock.now() + 0.01)
    with anyio.fail_after(10):
        await rung.wait()
    timers.stop()
    assert not timers


def _no_sleep(seconds: float, over: Callable[[], None]) -> Callable[[], None]:
    raise AssertionError("expected no sleep on the system's clock")
