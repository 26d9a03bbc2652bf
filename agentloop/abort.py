"""`AbortSignal`: how a caller, from any thread, tells a run to stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel

__all__ = [
    "AbortSignal",
]


_lock = threading.RLock()
"""Of all signals: each call of a tool has one, and holds this for a moment. A signal handler may abort while its very thread
subscribes."""


class AbortSignal:
    """A one-way switch with a reason.

    `abort(reason)` may be called from any thread, any number of times; the first reason stays. A signal is meant for one
    run, or for several that are to stop together; it cannot be reset. Callbacks run in the thread that aborts.
    """

    __slots__ = ("_callbacks", "aborted", "reason")

    def __init__(self) -> None:
        self.aborted = False
        """Whether the signal has fired."""
        self.reason: str | None = None
        """The reason that was given with the first abort, or None."""
        self._callbacks: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<AbortSignal {'aborted: ' + repr(self.reason) if self.aborted else 'open'}>"

    def abort(self, reason: str | None = None) -> None:
        """Fire the signal. Never raises and never waits."""
        with _lock:
            if self.aborted:
                return
            self.reason = reason
            self.aborted = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when the signal fires, or right now if it has fired. The returned function unsubscribes it.

        The callback must not raise and must be safe to call from any thread.
        """
        key = object()
        with _lock:
            if not self.aborted:
                self._callbacks[key] = callback
                return lambda: self._unsubscribe(key)
        callback()
        return lambda: None

    def _unsubscribe(self, key: object) -> None:
        with _lock:
            self._callbacks.pop(key, None)

    async def wait(self) -> None:
        """Return when the signal fires, in whatever thread it does. May be cancelled; nothing is kept then."""
        if self.aborted:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        native: Any = anyio.lowlevel.current_token().native_token
        soon = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon  # asyncio's, trio's

        def fire() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop ended meanwhile: nobody waits any more
                soon(event.set)

        unsubscribe = self.subscribe(fire)
        try:
            await event.wait()
        finally:
            unsubscribe()
