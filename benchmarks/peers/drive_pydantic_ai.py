"""pydantic-ai through `Agent.run_stream_events`, with its own `FunctionModel`; no limit on requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, FunctionToolResultEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.usage import UsageLimits
from run_peer import Play, Seen, Turn, echo, noop

DISTRIBUTIONS = ("pydantic-ai-slim", "pydantic")


def _model(turns: list[Turn], suspend: bool) -> FunctionModel:
    said = iter(turns)

    async def stream(messages: Any, info: Any) -> AsyncIterator[Any]:
        for index, block in enumerate(next(said)):
            if block.id:
                yield {index: DeltaToolCall(name=block.name, tool_call_id=block.id)}
            for piece in block.pieces:
                if suspend:
                    await asyncio.sleep(0)
                yield {index: DeltaToolCall(json_args=piece)} if block.id else piece

    return FunctionModel(stream_function=stream, model_name="scripted")


def prepare(suspend: bool, runs: int) -> Play:
    agent, limits = Agent(tools=[noop, echo]), UsageLimits(request_limit=None)

    async def play(turns: list[Turn]) -> AsyncIterator[Any]:
        async with agent.run_stream_events("go", model=_model(turns, suspend), usage_limits=limits) as events:
            async for event in events:
                yield event

    return play


def look(event: Any, seen: Seen) -> None:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        seen.characters += len(event.part.content)
    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        seen.characters += len(event.delta.content_delta)
    elif isinstance(event, FunctionToolResultEvent):
        seen.results += 1
