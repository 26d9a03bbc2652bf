"""openai-agents through `Runner.run_streamed(…).stream_events()`; tracing off, no limit on turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, RunConfig, Runner, function_tool, set_tracing_disabled
from openai.types import responses
from run_peer import Block, Play, Seen, Turn, echo, noop

DISTRIBUTIONS = ("openai-agents", "openai", "pydantic")

set_tracing_disabled(True)


def _item(block: Block, place: int, whole: bool) -> Any:
    said = "".join(block.pieces) if whole else ""
    if block.id:
        return responses.ResponseFunctionToolCall(
            id=block.id, call_id=block.id, name=block.name, arguments=said, type="function_call"
        )
    text = responses.ResponseOutputText(text=said, annotations=[], type="output_text")
    return responses.ResponseOutputMessage(
        id=f"m{place}",
        content=[text] if whole else [],
        role="assistant",
        status="completed" if whole else "in_progress",
        type="message",
    )


def _delta(block: Block, piece: str, place: int, number: int) -> Any:
    if block.id:
        return responses.ResponseFunctionCallArgumentsDeltaEvent(
            delta=piece,
            item_id=block.id,
            output_index=place,
            sequence_number=number,
            type="response.function_call_arguments.delta",
        )
    return responses.ResponseTextDeltaEvent(
        delta=piece,
        item_id=f"m{place}",
        content_index=0,
        output_index=place,
        sequence_number=number,
        logprobs=[],
        type="response.output_text.delta",
    )


class Scripted(Model):
    def __init__(self, turns: list[Turn], suspend: bool) -> None:
        self.turns, self.suspend = iter(turns), suspend

    async def get_response(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError

    async def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        number, output = 0, []
        for place, block in enumerate(next(self.turns)):
            yield responses.ResponseOutputItemAddedEvent(
                item=_item(block, place, False),
                output_index=place,
                sequence_number=number,
                type="response.output_item.added",
            )
            for piece in block.pieces:
                if self.suspend:
                    await asyncio.sleep(0)
                number += 1
                yield _delta(block, piece, place, number)
            output.append(_item(block, place, True))
            yield responses.ResponseOutputItemDoneEvent(
                item=output[-1], output_index=place, sequence_number=number, type="response.output_item.done"
            )
        reply = responses.Response(
            id="r",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield responses.ResponseCompletedEvent(response=reply, sequence_number=number + 1, type="response.completed")


def prepare(suspend: bool, runs: int) -> Play:
    tools, config = [function_tool(noop), function_tool(echo)], RunConfig(tracing_disabled=True)

    def play(turns: list[Turn]) -> AsyncIterator[Any]:
        agent = Agent(name="a", tools=tools, model=Scripted(turns, suspend))
        return Runner.run_streamed(agent, "go", max_turns=None, run_config=config).stream_events()

    return play


def look(event: Any, seen: Seen) -> None:
    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
        seen.characters += len(event.data.delta)
    elif event.type == "run_item_stream_event" and event.name == "tool_output":
        seen.results += 1
