"""The stage of one scenario: its clock, the points in time at which something happens, its queues, and what it counts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.abc
import attrs

from agentloop.abort import AbortSignal
from agentloop.messages import AgentMessage
from agentloop.testing._scenario_lines import Line, Lines
from agentloop.testing._scenario_messages import Fields, message_of
from agentloop.testing.clock import VirtualClock

_FILTERS = ("call", "tool", "response", "type", "kind", "role")


class Stage:
    """The harness of one run: its clock, its output, its triggers, and what it counts."""

    def __init__(self, scenario: Fields, clock: VirtualClock, lines: Lines, write: Callable[[Line], None]) -> None:
        self.scenario = scenario
        self.clock = clock
        self.lines = lines
        self.write = write
        self.abort = AbortSignal()
        self.queues: dict[str, Queue] = {name: Queue(self, name) for name in ("steering", "follow_up")}
        self.executed: list[str] = []
        self.running = 0
        self.requests = 0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._triggers = [
            *self._aborts(),
            *self._joins("steering", "steering"),
            *self._joins("follow_ups", "follow_up"),
        ]

    def _aborts(self) -> list[_Trigger]:
        given = self.scenario.get("abort") or []
        aborts = [given] if isinstance(given, Mapping) else given
        return [_Trigger(each["at"], functools.partial(self._abort, each.get("reason"))) for each in aborts]

    def _abort(self, reason: str | None) -> None:
        self.write({"type": "abort_called"})
        self.abort.abort(reason)

    def _joins(self, field: str, name: str) -> list[_Trigger]:
        join = self.queues[name].join
        joins = self.scenario.get(field) or []
        return [_Trigger(each["at"], functools.partial(join, each["messages"])) for each in joins]

    def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        """Take the group that delayed triggers run in, and pass the point `start`."""
        self._tasks = tasks
        self.reach("start")

    def reach(self, point: str, **facts: Any) -> None:
        """Pass a point: whatever waits for it happens, now or after its delay."""
        for trigger in self._triggers:
            if trigger.matches(point, facts):
                self.later(trigger.at.get("delay_ms"), trigger.action)

    def asks_for(self, point: str) -> bool:
        """Whether a trigger waits for this point."""
        return any(trigger.at.get("point") == point for trigger in self._triggers)

    def later(self, delay_ms: float | None, action: Callable[[], None]) -> None:
        """Do something after a delay, None: at once."""
        if delay_ms is None or self._tasks is None:
            action()
            return

        async def wait() -> None:
            await self.pause(delay_ms)
            action()

        self._tasks.start_soon(wait)

    async def pause(self, milliseconds: float | None) -> None:
        """Wait on the scenario's clock."""
        if milliseconds:
            await self.clock.sleep(milliseconds / 1000)


@attrs.define
class _Trigger:
    """Something that happens once, at the n-th passing of a point."""

    at: Fields
    action: Callable[[], None]
    seen: int = 0

    def matches(self, point: str, facts: Fields) -> bool:
        if self.at.get("point") != point:
            return False
        if any(name in self.at and self.at[name] != facts.get(name) for name in _FILTERS):
            return False
        self.seen += 1
        return bool(self.seen == self.at.get("n", 1))


class Queue:
    """A queue of messages that the loop polls."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._one = stage.scenario.get(f"{name}_mode") == "one_at_a_time"
        self._fails: Fields = (stage.scenario.get("hooks") or {}).get(f"{name}_poll_raises") or {}
        self._polls = 0
        self._arrived = anyio.Event()
        self.waiting: list[AgentMessage] = []

    def join(self, messages: list[Any]) -> None:
        """Messages join the queue."""
        self.waiting += map(message_of, messages)
        self._arrived.set()

    async def wait(self) -> None:
        """Return when something waits; takes nothing."""
        while not self.waiting:
            self._arrived = anyio.Event()
            await self._arrived.wait()

    def poll(self) -> list[AgentMessage]:
        """Take what waits, as much as one poll takes."""
        self._polls += 1
        line = {"type": "poll", "queue": self._name, "n": self._polls}
        self._stage.reach(f"{self._name}_poll")
        if self._fails.get("n") == self._polls:
            self._stage.write({**line, "raises": True})
            raise RuntimeError(self._fails.get("message", ""))
        count = 1 if self._one else len(self.waiting)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self._stage.write({**line, "returned": len(taken)})
        return taken
