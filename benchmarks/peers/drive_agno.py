"""agno through `Agent.arun(…, stream=True, stream_events=True)`; no database, no telemetry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse
from run_peer import Play, Seen, Turn, echo, noop

DISTRIBUTIONS = ("agno", "pydantic")


class Scripted(Model):
    def __init__(self, turns: list[Turn], suspend: bool) -> None:
        super().__init__(id="scripted")
        self.turns, self.suspend = iter(turns), suspend

    async def ainvoke_stream(self, *given: Any, **named: Any) -> AsyncIterator[ModelResponse]:
        metrics = getattr(named.get("assistant_message"), "metrics", None)
        if metrics is not None:
            metrics.start_timer()
        for block in next(self.turns):
            for piece in block.pieces:
                if self.suspend:
                    await asyncio.sleep(0)
                if block.id:
                    yield ModelResponse(tool_calls=[{"id": block.id, "name": block.name, "arguments": piece}])
                else:
                    yield ModelResponse(role="assistant", content=piece)
        if metrics is not None:
            metrics.stop_timer()

    def parse_tool_calls(self, tool_calls_data: list[dict[str, str]]) -> list[dict[str, Any]]:
        names = {part["id"]: part["name"] for part in tool_calls_data}
        parts: dict[str, list[str]] = {id: [] for id in names}
        for part in tool_calls_data:
            parts[part["id"]].append(part["arguments"])
        return [
            {"id": id, "type": "function", "function": {"name": name, "arguments": "".join(parts[id])}}
            for id, name in names.items()
        ]

    def _unused(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError

    invoke = ainvoke = invoke_stream = _parse_provider_response = _parse_provider_response_delta = _unused


def prepare(suspend: bool, runs: int) -> Play:
    agents = [Agent(tools=[noop, echo], telemetry=False) for _ in range(runs)]

    def play(turns: list[Turn]) -> AsyncIterator[Any]:
        agent = agents.pop()
        agent.model = Scripted(turns, suspend)
        return agent.arun("go", stream=True, stream_events=True)

    return play


def look(event: Any, seen: Seen) -> None:
    if event.event == "RunContent" and event.content:
        seen.characters += len(event.content)
    elif event.event == "ToolCallCompleted":
        seen.results += 1
