"""The smallest honest kernel: what ratios are taken to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from run_peer import Play, Seen, Turn, echo, noop

from benchmarks.floors import CallDelta, Delta, ToolEnd, floor2

DISTRIBUTIONS = ("attrs",)


def prepare(suspend: bool, runs: int) -> Play:
    async def model(turn: Turn) -> AsyncIterator[Any]:
        for block in turn:
            for piece in block.pieces:
                if suspend:
                    await asyncio.sleep(0)
                yield CallDelta(block.id, block.name, piece) if block.id else Delta(piece)

    def play(turns: list[Turn]) -> AsyncIterator[Any]:
        return floor2(lambda number: model(turns[number]), {"noop": noop, "echo": echo})

    return play


def look(event: Any, seen: Seen) -> None:
    if isinstance(event, Delta):
        seen.characters += len(event.text)
    elif isinstance(event, ToolEnd):
        seen.results += 1
