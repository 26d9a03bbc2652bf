"""The timers of a run: any number of them behind one alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from agentloop._host import Host
from agentloop.config import Clock, SystemClock

Sleep: TypeAlias = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls back after so many seconds of the caller's clock; what it returns cancels."""

_MOMENT = 0.01
"""Seconds, real ones: what was cancelled without any grace gets them to end."""


class Timers:
    """Rings the driver's bell when the clock reads what a timer is set to; whoever set it looks whether it has `expired`."""

    __slots__ = ("_at", "_cancel", "_clock", "_host", "_late", "_ring", "_sleep", "_system", "_times")

    def __init__(self, clock: Clock, host: Host, ring: Callable[[], None], sleep: Sleep) -> None:
        self._clock = clock
        self._host = host
        self._ring = ring
        self._sleep = sleep
        self._system = type(clock) is SystemClock
        self._times: dict[object, float] = {}
        self._at: float | None = None
        self._cancel: Callable[[], None] | None = None
        self._late: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return bool(self._times)

    def set(self, key: object, at: float) -> None:
        """Ring when the clock reads `at`; if it does already, in a moment: others have their turn first."""
        self._times[key] = at
        if self._at is None or at < self._at:
            self._arm()
            past = self._at is None or at < self._at
            if past and self._late is None:  # no alarm goes off for it, and whoever set it may have looked before
                self._late = self._host.timer(_MOMENT, self._again)

    def clear(self, key: object) -> None:
        """Forget a timer. The system's alarm stays: it finds out when it rings, which costs less than to set it anew."""
        at = self._times.pop(key, None)
        if at == self._at and not self._system:
            self._arm()

    def expired(self, key: object) -> bool:
        """Whether a timer's time has come."""
        return self._clock.now() >= self._times[key]

    @property
    def soon(self) -> bool:
        """Whether a timer whose time had come when it was set is still to ring."""
        return self._late is not None

    def stop(self) -> None:
        """Forget all of them, and the run that they were for (it holds this)."""
        self._times.clear()
        self._arm()
        if self._late is not None:
            self._late()
        self._ring, self._sleep = _nothing, self._host.timer  # an alarm may be on its way

    def _arm(self) -> None:
        """Set the alarm to the next timer; those whose time has come wait for whoever set them to look."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._at = None
        if not self._times:
            return
        now = self._clock.now()
        self._at = at = min((at for at in self._times.values() if at > now), default=None)
        if at is None:
            return
        if self._system:
            self._cancel = self._host.timer(at - now, self._alarm)
        else:
            self._cancel = self._sleep(at - now, self._alarm)

    def _again(self) -> None:
        self._late = None
        self._ring()

    def _alarm(self) -> None:
        self._cancel = None
        self._arm()
        self._ring()


def _nothing() -> None:
    """Rings nobody's bell."""
