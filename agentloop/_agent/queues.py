"""`MessageQueues`: what waits to be said to a running agent. Nothing leaves it but to be emitted or taken back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias

from agentloop.abort import AbortSignal
from agentloop.messages import AgentMessage

__all__ = [
    "MessageQueues",
    "QueueMode",
    "QueueName",
]

QueueName: TypeAlias = Literal["steering", "follow_up"]
QueueMode: TypeAlias = Literal["one_at_a_time", "all"]

QUEUES: tuple[QueueName, ...] = ("steering", "follow_up")


class MessageQueues:
    """Two queues, and what a run has taken from them and not emitted yet. May be used from any thread.

    A message that a run takes is *owed* until its `MessageEnd` was seen. What is still owed when the run is over, however it
    ended, goes back to the front of its queue.
    """

    def __init__(self, steering: QueueMode, follow_up: QueueMode) -> None:
        self._modes: dict[QueueName, QueueMode] = {}
        self.set_mode("steering", steering)
        self.set_mode("follow_up", follow_up)
        self._waiting: dict[QueueName, deque[AgentMessage]] = {"steering": deque(), "follow_up": deque()}
        self._owed: deque[tuple[QueueName, AgentMessage]] = deque()
        self._lock = threading.RLock()
        self._news = AbortSignal()  # a one-way switch that any thread may set: fires when steering comes

    def mode(self, queue: QueueName) -> QueueMode:
        """How many messages a poll of this queue takes."""
        return self._modes[queue]

    def set_mode(self, queue: QueueName, mode: QueueMode) -> None:
        """Change it. Raises `ValueError` for a mode that there is not."""
        if mode not in ("one_at_a_time", "all"):
            raise ValueError(f"{queue}_mode: expected 'one_at_a_time' or 'all', got {mode!r}")
        self._modes[queue] = mode

    def waiting(self, queue: QueueName) -> tuple[AgentMessage, ...]:
        """What waits, the next one first."""
        with self._lock:
            return tuple(self._waiting[queue])

    def add(self, queue: QueueName, messages: Iterable[AgentMessage]) -> None:
        """Put messages at the end of a queue."""
        with self._lock:
            self._waiting[queue].extend(messages)
            news = self._news
        if queue == "steering":
            news.abort()

    def poll(self, queue: QueueName) -> list[AgentMessage]:
        """What a run takes: the next message, or all of them. They are owed from here on."""
        with self._lock:
            waiting = self._waiting[queue]
            count = len(waiting) if self._modes[queue] == "all" else min(len(waiting), 1)
            taken = [waiting.popleft() for _ in range(count)]
            self._owed.extend((queue, message) for message in taken)
            return taken

    def take_back(self, queue: QueueName | None = None) -> tuple[AgentMessage, ...]:
        """Remove and return what waits in one queue, or in both (steering first)."""
        with self._lock:
            taken: list[AgentMessage] = []
            for name in QUEUES if queue is None else (queue,):
                taken += self._waiting[name]
                self._waiting[name].clear()
            return tuple(taken)

    def emitted(self, message: AgentMessage) -> None:
        """A run has emitted this message, whosever it is. A run emits what it took in the order in which it took it."""
        if self._owed and self._owed[0][1] is message:
            self._owed.popleft()

    def give_back(self) -> None:
        """The run is over: what it took and did not emit waits again, in its old place."""
        with self._lock:
            while self._owed:
                queue, message = self._owed.pop()
                self._waiting[queue].appendleft(message)

    async def wait_for_steering(self) -> None:
        """Return when steering waits; takes nothing."""
        while True:
            with self._lock:
                if self._news.aborted:
                    self._news = AbortSignal()
                news = self._news
                if self._waiting["steering"]:
                    return
            await news.wait()
