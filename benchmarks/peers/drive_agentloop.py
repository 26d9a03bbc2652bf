"""agentloop: `agent_loop` with chunks as an adapter makes them, everything on that is on by default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from run_peer import Play, Seen, Turn, echo, noop

from agentloop import Config, Context, agent_loop, tool, user
from agentloop.events import MessageUpdate, TextDelta, ToolExecutionEnd
from agentloop.model import Finish, TextChunk, ToolCallChunk

DISTRIBUTIONS = ("anyio", "attrs")


def prepare(suspend: bool, runs: int) -> Play:
    context = Context(tools=[tool(noop), tool(echo)])

    async def model(turn: Turn) -> AsyncIterator[Any]:
        for block in turn:
            for piece in block.pieces:
                if suspend:
                    await asyncio.sleep(0)
                yield ToolCallChunk(piece, id=block.id, name=block.name) if block.id else TextChunk(piece)
        yield Finish("tool_use" if turn[-1].id else "stop")

    def play(turns: list[Turn]) -> AsyncIterator[Any]:
        said = iter(turns)
        return agent_loop([user("go")], context, Config(model=lambda request: model(next(said))))

    return play


def look(event: Any, seen: Seen) -> None:
    if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
        seen.characters += len(event.delta.text)
    elif isinstance(event, ToolExecutionEnd):
        seen.results += 1
