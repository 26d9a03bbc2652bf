"""One awaitable of somebody else's, waited for with a bound that it cannot break.

It runs in a task of its own, so that a caller's function which ignores its cancellation is given up instead of waited
for.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable
from types import CoroutineType
from typing import Any, Protocol

import anyio
from anyio.lowlevel import current_token

GRACE = 0.25
"""Seconds that a cancelled call gets to end."""

_tasks: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references


class Call(Protocol):
    """An awaitable under way."""

    error: BaseException | None
    """What it raised, once it is over."""

    async def wait(self, seconds: float) -> bool:
        """Wait at most so long; whether it is over. A cancelled wait leaves the call alone."""
        ...

    def cancel(self) -> None:
        """Ask it to end; harmless when it is over."""
        ...


class _AsyncioCall:
    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.error: BaseException | None = None
        self._task = asyncio.ensure_future(self._run(awaitable))
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)
        if isinstance(awaitable, CoroutineType):  # cancelled before its first step, nobody would ever await it
            self._task.add_done_callback(lambda _: awaitable.close())

    async def _run(self, awaitable: Awaitable[Any]) -> None:
        try:
            await awaitable
        except BaseException as error:  # kept for whoever waits, so that no task ends with an error that nobody read
            self.error = error

    async def wait(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        return bool(done)

    def cancel(self) -> None:
        self._task.cancel()


class _TrioCall:
    def __init__(self, awaitable: Awaitable[Any]) -> None:
        import trio

        self.error: BaseException | None = None
        self._cancelled: type[BaseException] = trio.Cancelled
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        trio.lowlevel.spawn_system_task(self._run, awaitable, context=contextvars.copy_context())

    async def _run(self, awaitable: Awaitable[Any]) -> None:
        try:
            with self._scope:
                await awaitable
        except self._cancelled:
            raise
        except BaseException as error:  # an exception out of a system task would end the event loop
            self.error = error
        finally:
            self._over.set()

    async def wait(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._over.wait()
        return self._over.is_set()

    def cancel(self) -> None:
        self._scope.cancel()


def start_call(awaitable: Awaitable[Any]) -> Call:
    """Start it, in the running event loop, with a copy of the caller's context variables."""
    native = current_token().native_token
    return _AsyncioCall(awaitable) if isinstance(native, asyncio.AbstractEventLoop) else _TrioCall(awaitable)
