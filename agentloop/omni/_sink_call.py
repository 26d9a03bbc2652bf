"""What an async sink is doing with one record, waited for with a bound that it cannot break.

It runs in a job of its own, so that a caller's function which ignores its cancellation is given up instead of waited
for.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio

from agentloop._awaiting import close_unstarted
from agentloop._host import Job, Waiter, make_host

GRACE = 0.25
"""Seconds that a cancelled call gets to end."""


class SinkCall:
    """An awaitable of a sink, under way: in the running event loop, with a copy of the context variables."""

    __slots__ = ("_awaitable", "_host", "_job", "_waiters")

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self._waiters: list[Waiter] = []
        self._host = make_host()
        self._job = Job(lambda job: awaitable, self._over)
        self._host.spawn(self._job)

    @property
    def error(self) -> BaseException | None:
        """What it raised, once it is over."""
        return self._job.error

    async def wait(self, seconds: float) -> bool:
        """Wait at most so long; whether it is over. A cancelled wait leaves the call alone. Several tasks may wait."""
        if not self._job.done:
            waiter = self._host.waiter()
            self._waiters.append(waiter)
            try:
                with anyio.move_on_after(seconds):
                    await waiter.wait()
            finally:
                self._waiters.remove(waiter)
        return self._job.done

    def cancel(self) -> None:
        """Ask it to end; harmless when it is over."""
        self._host.cancel(self._job)

    def _over(self, job: Job) -> None:
        close_unstarted(self._awaitable)
        for waiter in self._waiters:
            waiter.set()
