"""The provider of a scenario: its replies, chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.abc

from agentloop.errors import ModelError
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelChunk,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from agentloop.testing._scenario_lines import Line
from agentloop.testing._scenario_messages import Fields, block_of, deltas_of, signature
from agentloop.testing._scenario_stage import Stage


class Provider:
    """The scripted model: the n-th request gets the n-th response; past the end an empty `stop`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._responses = stage.scenario.get("responses") or []

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Note the request, then stream its response."""
        stage = self._stage
        stage.requests = number = stage.requests + 1
        line: Line = {"type": "request", "n": number}
        if request.system_prompt is not None:
            line["system"] = request.system_prompt
        line["tools"] = [tool.name for tool in request.tools]
        line["messages"] = [stage.lines.message(message) for message in request.messages]
        stage.write(line)
        stage.reach("request", response=number)
        if number > len(self._responses):
            stage.write({"type": "script_exhausted"})
            return self._stream({}, number)
        response = self._responses[number - 1]
        if response.get("end") == "fail_start":
            raise ModelError("rejected", response.get("error", ""), retryable=False)
        return self._stream(response, number)

    async def _stream(self, response: Fields, number: int) -> AsyncIterator[ModelChunk]:
        stage, gap = self._stage, response.get("gap_ms")
        whole = bool(response.get("no_start"))
        steps = [("start", None), *[step for block in response.get("blocks") or [] for step in _steps(block, whole)]]
        for kind, chunk in steps:
            stage.reach("model_event", response=number, type=kind, kind=kind)
            if chunk is not None:
                yield chunk
            await stage.pause(gap)
        if response.get("end") == "stall":
            await anyio.sleep_forever()
        stage.reach("model_end", response=number)
        if response.get("end") == "raise" or response.get("stop") in ("error", "aborted"):
            raise ModelError("rejected", response.get("error", ""), retryable=False)
        if response.get("end") != "no_done":
            yield Finish(response.get("stop", "stop"))


def _steps(block: Fields, whole: bool) -> list[tuple[str, ModelChunk | None]]:
    """The provider's events for a block, each with the chunk that an adapter makes of it."""
    if whole:
        return [(block["type"], BlockChunk(block_of(block)))]
    kind = block["type"]
    steps: list[tuple[str, ModelChunk | None]] = [(f"{kind}_start", None)]
    deltas = deltas_of(block) or [""]
    for n, delta in enumerate(deltas):
        steps.append((f"{kind}_delta", _chunk(block, delta, first=n == 0, last=n == len(deltas) - 1)))
    if not block.get("incomplete"):
        steps.append((f"{kind}_end", BlockEnd()))
    return steps


def _chunk(block: Fields, delta: str, *, first: bool, last: bool) -> ModelChunk:
    match block["type"]:
        case "text":
            return TextChunk(delta)
        case "thinking":
            return ThinkingChunk(delta, fidelity=signature(block) if last else None)
    return ToolCallChunk(delta, block.get("id") if first else None, block["tool"] if first else None)
