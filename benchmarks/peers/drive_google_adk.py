"""google-adk through `Runner.run_async` in its SSE mode; sessions in memory, made before the clock, no limit on calls."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from run_peer import Block, Play, Seen, Turn, echo, noop

DISTRIBUTIONS = ("google-adk", "google-genai", "pydantic")

logging.disable(logging.WARNING)

SCRIPTS: dict[str, Iterator[Turn]] = {}
"""By the text of the first message: the runner has one model for all runs."""


def _response(parts: list[types.Part], partial: bool) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=parts), partial=partial)


def _delta(block: Block, piece: str) -> types.Part:
    if not block.id:
        return types.Part(text=piece)
    argument = types.PartialArg(json_path="$.s", string_value=piece)
    call = types.FunctionCall(id=block.id, name=block.name, partial_args=[argument], will_continue=True)
    return types.Part(function_call=call)


def _whole(block: Block) -> types.Part:
    said = "".join(block.pieces)
    if not block.id:
        return types.Part(text=said)
    return types.Part(function_call=types.FunctionCall(id=block.id, name=block.name, args=json.loads(said)))


class Scripted(BaseLlm):
    suspend: bool = False

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        turn = next(SCRIPTS[llm_request.contents[0].parts[0].text])
        for block in turn:
            for piece in block.pieces:
                if self.suspend:
                    await asyncio.sleep(0)
                yield _response([_delta(block, piece)], True)
        yield _response([_whole(block) for block in turn], False)


def prepare(suspend: bool, runs: int) -> Play:
    agent = LlmAgent(name="a", model=Scripted(model="scripted", suspend=suspend), tools=[noop, echo])
    runner, numbers = InMemoryRunner(agent=agent, app_name="benchmark"), itertools.count()
    config = RunConfig(streaming_mode=StreamingMode.SSE, max_llm_calls=0)

    async def sessions() -> None:
        for number in range(runs):
            await runner.session_service.create_session(app_name="benchmark", user_id="u", session_id=f"s{number}")

    asyncio.run(sessions())

    def play(turns: list[Turn]) -> AsyncIterator[Any]:
        session = f"s{next(numbers)}"
        SCRIPTS[f"go {session}"] = iter(turns)
        message = types.Content(role="user", parts=[types.Part(text=f"go {session}")])
        return runner.run_async(user_id="u", session_id=session, new_message=message, run_config=config)

    return play


def look(event: Any, seen: Seen) -> None:
    for part in event.content.parts if event.content else ():
        if event.partial and part.text:
            seen.characters += len(part.text)
        elif part.function_response:
            seen.results += 1
