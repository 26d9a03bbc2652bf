"""langchain's `create_agent` through its cheapest stream, `stream_mode=["messages"]`; one graph for all runs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from run_peer import Play, Seen, Turn, echo, noop

DISTRIBUTIONS = ("langchain", "langchain-core", "langgraph", "pydantic")

SCRIPTS: dict[str, Iterator[Turn]] = {}
"""By the text of the first message: the graph has one model for all runs."""


def _part(index: int, piece: str, id: str | None = None, name: str | None = None) -> ChatGenerationChunk:
    part = {"type": "tool_call_chunk", "index": index, "id": id, "name": name, "args": piece}
    return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))


class Scripted(BaseChatModel):
    suspend: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **named: Any) -> Any:
        return self

    def _generate(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError

    async def _astream(self, messages: Any, *given: Any, **named: Any) -> AsyncIterator[ChatGenerationChunk]:
        for index, block in enumerate(next(SCRIPTS[messages[0].content])):
            if block.id:
                yield _part(index, "", block.id, block.name)
            for piece in block.pieces:
                if self.suspend:
                    await asyncio.sleep(0)
                yield _part(index, piece) if block.id else ChatGenerationChunk(message=AIMessageChunk(content=piece))


def prepare(suspend: bool, runs: int) -> Play:
    graph, numbers = create_agent(Scripted(suspend=suspend), tools=[noop, echo]), itertools.count()

    async def play(turns: list[Turn]) -> AsyncIterator[Any]:
        key = f"go {next(numbers)}"
        SCRIPTS[key] = iter(turns)
        asked = {"messages": [("user", key)]}
        async for event in graph.astream(asked, {"recursion_limit": 10**6}, stream_mode=["messages"]):
            yield event

    return play


def look(event: Any, seen: Seen) -> None:
    message = event[1][0]
    if isinstance(message, AIMessageChunk):
        seen.characters += len(message.content)
    elif isinstance(message, ToolMessage):
        seen.results += 1
