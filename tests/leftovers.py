"""What a test left behind: tasks while its event loop still runs; threads and sockets after it."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import math
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from agentloop.testing import wait_all_blocked

_ROUNDS = 50
"""Rounds of the event loop in which a task that is on its way out may end."""
_SECONDS = 5.0
"""How long a thread that is on its way out may take; nothing waits so long unless it is stuck."""
_TEST_SECONDS = math.inf if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else 120.0
"""How long an async test (or an example of one) may take: far more than any needs, so that one which hangs is named."""
_POOLS = ("AnyIO worker thread", "Trio thread", "asyncio_", "ThreadPoolExecutor")
"""Idle threads that belong to a backend's pool."""

OPEN_FILES = Path("/proc/self/fd")


def ends_with_no_task(test: Callable[..., Any]) -> Callable[..., Any]:
    """The same async test, which fails if it hangs, or if a task that it started still lives at its end."""

    @functools.wraps(test)
    async def checked(*args: Any, **kwargs: Any) -> None:
        before = _tasks()
        with anyio.fail_after(_TEST_SECONDS):
            await test(*args, **kwargs)
        left: dict[int, str] = {}
        for _ in range(_ROUNDS):
            left = {id: name for id, name in _tasks().items() if id not in before}
            if not left:
                return
            await anyio.lowlevel.checkpoint()
        raise AssertionError(f"expected no task at the test's end, got {sorted(left.values())}")

    return checked


def _tasks() -> dict[int, str]:
    return {task.id: task.name or "" for task in anyio.get_running_tasks()}


def tasks_alive() -> int:
    """How many tasks the event loop has, those of the backend itself on trio included."""
    native: Any = anyio.lowlevel.current_token().native_token
    if hasattr(native, "call_soon_threadsafe"):
        return len(asyncio.all_tasks())
    import trio

    return trio.lowlevel.current_statistics().tasks_living


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """The block leaves no task behind, and gives the event loop nothing to complain about."""
    complaints: list[Any] = []
    native: Any = anyio.lowlevel.current_token().native_token
    asyncio_loop = native if hasattr(native, "call_soon_threadsafe") else None
    if asyncio_loop is not None:
        kept = asyncio_loop.get_exception_handler()
        asyncio_loop.set_exception_handler(lambda loop, context: complaints.append(context))
    await wait_all_blocked()
    before = tasks_alive()
    try:
        yield
        await wait_all_blocked()
        assert tasks_alive() == before, "tasks are left"
        assert complaints == []
    finally:
        if asyncio_loop is not None:
            asyncio_loop.set_exception_handler(kept)


def wrap(item: Any) -> None:
    """Make a collected async test check its tasks; one that hypothesis drives checks them at each example."""
    driven = getattr(item.obj, "hypothesis", None)
    if driven is not None:
        if inspect.iscoroutinefunction(driven.inner_test) and not hasattr(driven.inner_test, "__wrapped__"):
            driven.inner_test = ends_with_no_task(driven.inner_test)
    elif inspect.iscoroutinefunction(item.obj):
        item.obj = ends_with_no_task(item.obj)


@contextmanager
def no_thread_and_no_socket() -> Iterator[None]:
    """Fails if a thread or an open socket is there at the end that was not there before."""
    threads, sockets = set(threading.enumerate()), _sockets()
    yield
    for thread in set(threading.enumerate()) - threads:
        if not thread.name.startswith(_POOLS):
            thread.join(_SECONDS)
            assert not thread.is_alive(), f"expected no thread at the test's end, got {thread.name}"
    if _sockets() - sockets:
        gc.collect()  # a cycle may hold one
        left = _sockets() - sockets
        assert not left, f"expected no open socket at the test's end, got {sorted(left)}"


def _sockets() -> set[str]:
    """The open sockets of this process, where the system tells."""
    names = set()
    if OPEN_FILES.is_dir():
        for entry in os.listdir(OPEN_FILES):
            try:
                name = os.readlink(OPEN_FILES / entry)
            except OSError:  # closed meanwhile (the listing itself was one)
                continue
            if name.startswith("socket:"):
                names.add(name)
    return names
