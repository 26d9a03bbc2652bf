"""One process of one peer, in the peer's own environment: one workload at one size, one JSON line.

    python benchmarks/peers/run_peer.py drive_agno W1 10000

It needs the standard library alone. A driver is a module beside this one with

    DISTRIBUTIONS                what to name with its version
    prepare(suspend, runs)       makes what that many plays need, outside the clock; gives `play`
    play(turns)                  the events of one run, through the peer's own public stream
    look(event, seen)            what a consumer can see of an event

The model of a driver says the turns it is given, whatever the history; with `suspend` it yields to the scheduler before
each delta. Each workload is first played at a small size and looked at: a peer that does not give each delta and each
result is not timed. The timed plays are drained, their events and calls counted.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

PIECE = 8
DELTAS_IN_W4 = 20
CALLS = 4
ARGUMENTS = '{"x": 3}'
WARM_UP = {"W1": 1_000, "W2": 10, "W3": 1_000, "W4": 20}
ROUNDS = 5
SECONDS_FOR_ROUNDS = 1.0


class Block(NamedTuple):
    """A text, or with an id a tool call, as the pieces that it arrives in."""

    pieces: list[str]
    id: str = ""
    name: str = ""


Turn = list[Block]


def pieces(text: str) -> list[str]:
    """Fresh strings of eight characters."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def words(count: int) -> Block:
    """A text of that many deltas."""
    return Block(pieces("abcdefgh" * count))


def calls(prefix: str) -> Turn:
    """Four calls of the tool that does nothing, one delta each."""
    return [Block([ARGUMENTS], f"{prefix}-{number}", "noop") for number in range(CALLS)]


def turns(workload: str, size: int) -> list[Turn]:
    """What the model says, turn by turn; of W4, in the run with that number."""
    if workload == "W1":
        return [[words(size)]]
    if workload == "W2":
        return [*(calls(f"t{turn}") for turn in range(size)), [words(1)]]
    if workload == "W3":
        body = json.dumps({"s": "x" * (PIECE * size - len('{"s": ""}'))})
        return [[Block(pieces(body), "c0", "echo")], [words(1)]]
    return [[words(DELTAS_IN_W4), *calls(f"r{size}")], [words(DELTAS_IN_W4)]]


class Done:
    """What the tools did."""

    calls = 0
    characters = 0


async def noop(x: int) -> str:
    """Do nothing."""
    Done.calls += 1
    return "ok"


async def echo(s: str) -> str:
    """Take one long string, and say how long it is."""
    Done.calls += 1
    Done.characters += len(s)
    return str(len(s))


class Seen:
    """What a consumer saw: characters of text, results."""

    characters = 0
    results = 0


Play = Callable[[list[Turn]], AsyncIterator[Any]]


async def looked_at(play: Play, script: list[Turn], look: Callable[[Any, Seen], None]) -> Seen:
    """Play and look at everything."""
    seen = Seen()
    async for event in play(script):
        look(event, seen)
    return seen


async def drained(play: Play, script: list[Turn]) -> int:
    """Play and keep nothing but the number of events."""
    count = 0
    async for _ in play(script):
        count += 1
    return count


def expected(workload: str, size: int) -> tuple[int, int]:
    """Characters of text and calls of one play."""
    return {
        "W1": (PIECE * size, 0),
        "W2": (PIECE, CALLS * size),
        "W3": (PIECE, 1),
        "W4": (PIECE * DELTAS_IN_W4 * 2, CALLS),
    }[workload]


def check(driver: Any, workload: str) -> None:
    """Play a small size and look at it. Raises `SystemExit` if the work was not done or not shown."""
    size = WARM_UP[workload]
    Done.calls = Done.characters = 0
    play = driver.prepare(workload == "W4", 1)
    seen = asyncio.run(looked_at(play, turns(workload, size), driver.look))
    characters, count = expected(workload, size)
    if (seen.characters, seen.results, Done.calls) != (characters, count, count):
        raise SystemExit(f"{workload}: saw {seen.characters} characters, {seen.results} results of {Done.calls} calls")


async def _timed(play: Play, scripts: list[list[Turn]]) -> tuple[float, int]:
    gc.collect()
    start = time.process_time()
    if len(scripts) == 1:
        count = await drained(play, scripts[0])
    else:
        count = sum(await asyncio.gather(*(drained(play, script) for script in scripts)))
    return time.process_time() - start, count


def once(driver: Any, workload: str, size: int) -> float:
    """Seconds of CPU of one play on an event loop of its own. Raises `SystemExit` if calls or events are missing."""
    scripts = [turns("W4", number) for number in range(size)] if workload == "W4" else [turns(workload, size)]
    play = driver.prepare(workload == "W4", len(scripts))
    Done.calls = Done.characters = 0
    seconds, events = asyncio.run(_timed(play, scripts))
    _, count = expected(workload, size)
    least = size if workload == "W1" else 1
    if events < least or Done.calls != count * (size if workload == "W4" else 1):
        raise SystemExit(f"{workload} {size}: {events} events, {Done.calls} calls")
    return seconds


def measure(driver: Any, workload: str, size: int) -> list[float]:
    """Seconds of CPU of each round; one that takes long has one."""
    rounds: list[float] = []
    while len(rounds) < ROUNDS and sum(rounds) < SECONDS_FOR_ROUNDS:
        rounds.append(once(driver, workload, size))
    return rounds


def _start_of_peak() -> None:
    if (clear := Path("/proc/self/clear_refs")).exists():
        clear.write_text("5")


def _peak() -> float | None:
    """MiB resident at most since then; None where the system does not tell."""
    if not (status := Path("/proc/self/status")).exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1_024


def main(name: str, workload: str, size: str) -> None:
    """Check, warm up, measure, print."""
    driver = importlib.import_module(name)
    check(driver, workload)
    once(driver, workload, min(WARM_UP[workload], int(size)))
    _start_of_peak()
    rounds = measure(driver, workload, int(size))
    print(
        json.dumps(
            {
                "us": min(rounds) / int(size) * 1e6,
                "first_us": rounds[0] / int(size) * 1e6,
                "seconds": min(rounds),
                "rounds": len(rounds),
                "mib": _peak(),
                "runtime": f"Python {platform.python_version()}",
                "versions": {name: importlib.metadata.version(name) for name in driver.DISTRIBUTIONS},
            }
        )
    )


if __name__ == "__main__":
    # Through the module that the drivers import: its counters are the ones that they count in.
    importlib.import_module("run_peer").main(*sys.argv[1:])
