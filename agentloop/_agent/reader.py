"""`EventReader`: the events of a run for one of several readers, who neither wait for nor hurt each other."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

from agentloop.abort import AbortSignal
from agentloop.events import Event

__all__ = [
    "EventReader",
]


class EventReader(AsyncIterator[Event]):
    """The events of a run, as one reader sees them. Made by `Agent.events`."""

    __slots__ = ("__weakref__", "_buffer", "_closed", "_follow", "_news")

    def __init__(self, follow: bool) -> None:
        self._buffer: deque[Event] = deque()
        self._follow = follow
        self._closed = False
        self._news: AbortSignal | None = None  # somebody waits; an event may come from another thread

    def __aiter__(self) -> EventReader:
        return self

    async def __anext__(self) -> Event:
        """The next event; waits for it. Raises `StopAsyncIteration` when the run is over, or this was closed."""
        while True:
            if self._buffer:
                return self._buffer.popleft()
            if self._closed:
                raise StopAsyncIteration
            news = self._news = self._news or AbortSignal()
            if not self._buffer and not self._closed:
                await news.wait()

    async def aclose(self) -> None:
        """Leave: nothing more is kept, and whoever waits for the next event gets the end."""
        self._close()
        self._buffer.clear()

    def give(self, event: Event) -> None:
        """The agent's: keep an event for this reader. From any thread."""
        if not self._closed:
            self._buffer.append(event)
            self._wake()

    def run_is_over(self) -> None:
        """The agent's: nothing more comes, unless this one follows all runs."""
        if not self._follow:
            self._close()

    def _close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.abort()
