"""The scripts that the models play, in the floors' own terms and in agentloop's. A fresh string for each delta."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks.floors import CallDelta, Delta

PIECE = 8
_TEXT = "abcdefgh" * 1_024
ARGUMENTS = '{"x": 3}'
DELTAS_IN_W4 = 20
CALLS = 4

Turns = Callable[[int], AsyncIterator[Any]]
"""The model of a script: the number of the turn to its chunks."""


def long_argument(count: int) -> str:
    """A JSON object of `count` pieces with one string in it."""
    return json.dumps({"s": "x" * (PIECE * count - len('{"s": ""}'))})


async def texts(
    count: int, chunk: Callable[[str], Any] | None, suspend: bool = False, end: Any = None
) -> AsyncIterator[Any]:
    """Deltas of a text; without `chunk` as plain strings. `end`, if there is one, is the last chunk."""
    for number in range(count):
        if suspend:
            await asyncio.sleep(0)
        start = (number & 1_023) * PIECE
        piece = _TEXT[start : start + PIECE]
        yield piece if chunk is None else chunk(piece)
    if end is not None:
        yield end


async def calls(turn: str, chunk: Callable[[str, str, str], Any], end: Any = None) -> AsyncIterator[Any]:
    """Calls of the no-op tool, one delta each."""
    for number in range(CALLS):
        yield chunk(f"{turn}-{number}", "noop", ARGUMENTS)
    if end is not None:
        yield end


async def argument(count: int, chunk: Callable[[str, str, str], Any], end: Any = None) -> AsyncIterator[Any]:
    """One call whose argument comes in pieces."""
    body = long_argument(count)
    for start in range(0, len(body), PIECE):
        yield chunk("c0", "echo", body[start : start + PIECE])
    if end is not None:
        yield end


async def text_and_calls(
    turn: str, text: Callable[[str], Any] | None, call: Callable[..., Any], end: Any = None
) -> AsyncIterator[Any]:
    """Both, with a look at the scheduler before each delta."""
    for number in range(DELTAS_IN_W4):
        await asyncio.sleep(0)
        piece = _TEXT[number * PIECE : (number + 1) * PIECE]
        yield piece if text is None else text(piece)
    for number in range(CALLS):
        await asyncio.sleep(0)
        yield call(f"{turn}-{number}", "noop", ARGUMENTS)
    if end is not None:
        yield end


def script(
    workload: str,
    size: int,
    text: Callable[[str], Any] | None = Delta,
    call: Callable[..., Any] = CallDelta,
    ends: tuple[Any, Any] = (None, None),
) -> Turns:
    """The model of a workload: W1, W3 and W7 with `size` deltas, W2 with `size` turns, W4 of the run number `size`.

    `ends` are the last chunks of a turn without and with calls.
    """
    stop, use = ends
    if workload in ("W1", "W7"):
        return lambda turn: texts(size, text, False, stop)
    if workload == "W2":
        return lambda turn: calls(str(turn), call, use) if turn < size else texts(1, text, False, stop)
    if workload == "W3":
        return lambda turn: texts(1, text, False, stop) if turn else argument(size, call, use)
    return lambda turn: texts(DELTAS_IN_W4, text, True, stop) if turn else text_and_calls(f"r{size}", text, call, use)
