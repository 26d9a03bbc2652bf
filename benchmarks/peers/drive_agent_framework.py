"""agent-framework through `Agent.run(…, stream=True)`; a client composed of the layers of the ones that it ships."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    tool,
)
from agent_framework.observability import ChatTelemetryLayer
from run_peer import Play, Seen, Turn, echo, noop

DISTRIBUTIONS = ("agent-framework-core", "pydantic")


class Bare(BaseChatClient):
    turns: Any = iter(())
    numbers: Any = itertools.count()
    suspend = False

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **named: Any) -> Any:
        return self._build_response_stream(self.updates(next(self.turns), f"m{next(self.numbers)}"))

    async def updates(self, turn: Turn, message: str) -> AsyncIterator[ChatResponseUpdate]:
        for block in turn:
            if block.id:
                head = Content.from_function_call(block.id, block.name, arguments="")
                yield ChatResponseUpdate(role="assistant", contents=[head], message_id=message)
            for piece in block.pieces:
                if self.suspend:
                    await asyncio.sleep(0)
                part = (
                    Content.from_function_call(block.id, "", arguments=piece) if block.id else Content.from_text(piece)
                )
                yield ChatResponseUpdate(role="assistant", contents=[part], message_id=message)


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, Bare):
    pass


def prepare(suspend: bool, runs: int) -> Play:
    tools = [tool(function, approval_mode="never_require") for function in (noop, echo)]

    def agent() -> Agent:
        client = Scripted(function_invocation_configuration={"max_iterations": 10**6})
        client.suspend = suspend
        return Agent(client, name="a", tools=tools)

    agents = [agent() for _ in range(runs)]

    async def play(turns: list[Turn]) -> AsyncIterator[Any]:
        one = agents.pop()
        one.client.turns = iter(turns)
        async for event in one.run("go", stream=True):
            yield event

    return play


def look(event: Any, seen: Seen) -> None:
    for content in event.contents:
        if content.type == "text":
            seen.characters += len(content.text)
        elif content.type == "function_result":
            seen.results += 1
