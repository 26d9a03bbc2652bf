"""What a library leaves behind: connections, closed in bounded time, and async generators, held from their first step."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, TypeAlias

import anyio

Hold: TypeAlias = Callable[[AsyncGenerator[Any, Any]], None]

CLOSE_BOUND = 5.0
"""Longest time that closing a connection may take, in seconds."""


async def close_shielded(close: Callable[[], Awaitable[object]], bound: float = CLOSE_BOUND) -> None:
    """Await `close()` also while cancelled, for at most `bound` seconds; its failures are of no interest any more.

    Streams of an SDK are closed with it even when they were read to their end: what is left to the garbage collector
    warns.
    """
    with anyio.move_on_after(bound, shield=True):
        try:
            await close()
        except Exception:  # the connection is gone either way
            return


async def close_whole(close: Callable[[], Awaitable[object]]) -> None:
    """`close_shielded`, which a cancellation that comes through the shield does not cut either.

    On uvloop the time limit of an SDK's own clean-up comes out of it as a `CancelledError`; without this the rest would be
    left to the garbage collector. A cancellation of the task's own is under way already: closing is its clean-up.
    """
    with contextlib.suppress(asyncio.CancelledError):
        await close_shielded(close)


class Held:
    """Awaits something; `hold` gets each async generator that is first iterated meanwhile, by this task.

    The interpreter's hooks belong to a thread, so they are set for each step of the awaited alone and put back before
    anybody else runs. A generator keeps those that it met first: with ours there is no finaliser.
    """

    __slots__ = ("_awaitable", "_hold")

    def __init__(self, awaitable: Awaitable[Any], hold: Hold) -> None:
        self._awaitable = awaitable
        self._hold = hold

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._awaitable.__await__()
        step, given = steps.send, None
        while True:
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(firstiter=self._hold, finalizer=None)
            try:
                asked = step(given)
            except StopIteration as stop:
                return stop.value
            finally:
                sys.set_asyncgen_hooks(*hooks)
            try:
                step, given = steps.send, (yield asked)
            except BaseException as error:  # a cancellation, on its way into the awaited
                step, given = steps.throw, error
