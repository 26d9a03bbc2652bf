"""What the same work costs with no framework at all (`floor`), and with the smallest honest one (`floor2`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs


@attrs.frozen
class Delta:
    text: str


@attrs.frozen
class CallDelta:
    id: str
    name: str
    text: str


@attrs.frozen
class TurnStart:
    index: int


@attrs.frozen
class MessageStart:
    index: int


@attrs.frozen
class MessageEnd:
    message: dict[str, Any]


@attrs.frozen
class ToolStart:
    id: str
    name: str
    arguments: dict[str, Any]


@attrs.frozen
class ToolEnd:
    id: str
    result: str


@attrs.frozen
class TurnEnd:
    index: int


Turns = Callable[[int], AsyncIterator[Any]]
Tools = dict[str, Callable[..., Awaitable[str]]]


async def floor(model: Turns, tools: Tools) -> list[dict[str, Any]]:
    """A hand-written loop: no events, `asyncio.gather` over the calls."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    turn = 0
    while True:
        text: list[str] = []
        calls: dict[str, tuple[str, list[str]]] = {}
        async for chunk in model(turn):
            if type(chunk) is Delta:
                text.append(chunk.text)
            else:
                calls.setdefault(chunk.id, (chunk.name, []))[1].append(chunk.text)
        history.append({"role": "assistant", "content": "".join(text), "calls": calls})
        if not calls:
            return history
        results = await asyncio.gather(*(tools[name](**json.loads("".join(args))) for name, args in calls.values()))
        for id, result in zip(calls, results, strict=True):
            history.append({"role": "tool", "id": id, "content": result})
        turn += 1


async def floor2(model: Turns, tools: Tools) -> AsyncIterator[Any]:
    """Two layers: the model is a generator, and a loop generator accumulates and yields typed events."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    turn = 0
    while True:
        yield TurnStart(turn)
        yield MessageStart(turn)
        text: list[str] = []
        calls: dict[str, tuple[str, list[str]]] = {}
        async for chunk in model(turn):
            if type(chunk) is Delta:
                text.append(chunk.text)
                yield Delta(chunk.text)
            else:
                calls.setdefault(chunk.id, (chunk.name, []))[1].append(chunk.text)
                yield CallDelta(chunk.id, chunk.name, chunk.text)
        todo = [(id, name, json.loads("".join(args))) for id, (name, args) in calls.items()]
        message = {"role": "assistant", "content": "".join(text), "calls": todo}
        history.append(message)
        yield MessageEnd(message)
        for call in todo:
            yield ToolStart(*call)
        results = await asyncio.gather(*(tools[name](**arguments) for _, name, arguments in todo))
        for (id, _, _), result in zip(todo, results, strict=True):
            history.append({"role": "tool", "id": id, "content": result})
            yield ToolEnd(id, result)
        yield TurnEnd(turn)
        if not todo:
            return
        turn += 1
