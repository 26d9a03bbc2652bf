"""`collect`: everything that a run yields, as a list."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import TypeVar

import anyio

from agentloop._host import in_event_loop
from agentloop.events import Event

__all__ = ["collect", "collect_sync"]

T = TypeVar("T")


async def collect(events: AsyncIterable[T], *, until: Callable[[T], bool] | None = None) -> list[T]:
    """All events, in order. With `until` the run is left after the first event for which it holds, and closed."""
    seen: list[T] = []
    async for event in events:
        seen.append(event)
        if until is not None and until(event):
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()
            break
    return seen


def collect_sync(events: AsyncIterable[Event], *, backend: str = "asyncio") -> list[Event]:
    """The same from synchronous code: `collect_sync(agent_loop(…))`. `backend` is `asyncio` or `trio`.

    A run starts with its first step, so that one may be made before the event loop is.

    Raises `RuntimeError` inside a running event loop.
    """
    if in_event_loop():
        raise RuntimeError("collect_sync: expected no event loop in this thread, found one; use await collect(…)")
    return anyio.run(collect, events, backend=backend)
