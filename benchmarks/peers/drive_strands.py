"""strands-agents through `Agent.stream_async`; no printing, no retries, and a manager that keeps all of the history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from run_peer import Play, Seen, Turn, echo, noop
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model

DISTRIBUTIONS = ("strands-agents", "pydantic")


class Scripted(Model):
    turns: Any = iter(())
    suspend = False

    def update_config(self, **model_config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *given: Any, **named: Any) -> AsyncIterator[dict[str, Any]]:
        turn: Turn = next(self.turns)
        yield {"messageStart": {"role": "assistant"}}
        for block in turn:
            start = {"toolUse": {"toolUseId": block.id, "name": block.name}} if block.id else {}
            yield {"contentBlockStart": {"start": start}}
            for piece in block.pieces:
                if self.suspend:
                    await asyncio.sleep(0)
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": piece}} if block.id else {"text": piece}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if turn[-1].id else "end_turn"}}
        usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


def prepare(suspend: bool, runs: int) -> Play:
    tools = [tool(noop), tool(echo)]

    def agent() -> Agent:
        model = Scripted()
        model.suspend = suspend
        manager = NullConversationManager()
        return Agent(model=model, tools=tools, callback_handler=None, retry_strategy=None, conversation_manager=manager)

    agents = [agent() for _ in range(runs)]

    def play(turns: list[Turn]) -> AsyncIterator[Any]:
        one = agents.pop()
        one.model.turns = iter(turns)
        return one.stream_async("go")

    return play


def look(event: Any, seen: Seen) -> None:
    if "data" in event:
        seen.characters += len(event["data"])
    elif "message" in event and event["message"]["role"] == "user":
        seen.results += sum("toolResult" in block for block in event["message"]["content"])
