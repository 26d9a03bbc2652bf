"""One process of W1 to W4, or W7: each variant at each size, variants in turn, one JSON line.

    python -m benchmarks.timing W1 10000 100000

Each variant is first played once and looked at: one that does not give each delta and each result is no measurement.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agentloop import Agent, AgentEnd, AssistantMessage, Config, Context, agent_loop, tool, user
from agentloop.events import MessageUpdate, TextDelta, ToolCallDelta, ToolExecutionEnd
from agentloop.model import Finish, TextChunk, ToolCallChunk
from agentloop.view import View
from benchmarks import floors, scripts

Variant = Callable[[str, int], AsyncIterator[Any]]
"""Plays a workload of a size and gives its events; of W4, those of the run with that number."""

WARM_UP = {"W1": 1_000, "W2": 10, "W3": 1_000, "W4": 20, "W7": 1_000}
ROUNDS = 5
SECONDS_FOR_ROUNDS = 2.0


# ---------------------------------------------------------------- the variants


async def _noop(x: int) -> str:
    """Do nothing."""
    return "ok"


async def _echo(s: str) -> str:
    """Take one long string, and say how long it is."""
    return str(len(s))


TOOLS: floors.Tools = {"noop": _noop, "echo": _echo}


def play_floor(workload: str, size: int) -> AsyncIterator[Any]:
    """A bare generator (W1, W3), or a loop without events (W2, W4)."""
    model = scripts.script(workload, size)
    return _bare(model, workload) if workload in ("W1", "W3", "W7") else _without_events(model)


async def _bare(model: scripts.Turns, workload: str) -> AsyncIterator[Any]:
    for turn in (0, 1) if workload == "W3" else (0,):
        async for delta in model(turn):
            yield delta


async def _without_events(model: scripts.Turns) -> AsyncIterator[Any]:
    yield await floors.floor(model, TOOLS)


def play_floor2(workload: str, size: int) -> AsyncIterator[Any]:
    """The smallest honest kernel."""
    return floors.floor2(scripts.script(workload, size), TOOLS)


def _call_chunk(id: str, name: str, arguments: str) -> ToolCallChunk:
    return ToolCallChunk(arguments, id=id, name=name)


def player(text: Callable[[str], Any] | None) -> Variant:
    """agentloop, with the text chunks that `text` makes (None: plain strings)."""
    context = Context(tools=[tool(_noop, name="noop"), tool(_echo, name="echo")])
    ends = (Finish("stop"), Finish("tool_use"))

    def play(workload: str, size: int) -> AsyncIterator[Any]:
        turns, numbers = scripts.script(workload, size, text, _call_chunk, ends), itertools.count()
        return agent_loop([user("go")], context, Config(model=lambda request: turns(next(numbers))))

    return play


def play_run(workload: str, size: int) -> AsyncIterator[Any]:
    """W1 itself: what the shells of W7 are held against."""
    return player(TextChunk)("W1", size)


async def play_agent(workload: str, size: int) -> AsyncIterator[Any]:
    """W1 through an `Agent` with two subscribers; gives the reply."""
    turns = scripts.script("W1", size, TextChunk, _call_chunk, (Finish("stop"), Finish("tool_use")))
    agent, seen = Agent(lambda request: turns(0)), [0, 0]

    def first(event: Any) -> None:
        seen[0] += 1

    def second(event: Any) -> None:
        seen[1] += 1

    agent.subscribe(first)
    agent.subscribe(second)
    end = await agent.prompt("go")
    if seen[0] != seen[1] or seen[0] < size:
        raise SystemExit(f"W7 Agent {size}: the subscribers saw {seen} events")
    yield end.messages[-1]


async def play_view(workload: str, size: int) -> AsyncIterator[Any]:
    """W1 drawn by the screen's reducer; gives the reply."""
    view, end = View(), None
    async for event in player(TextChunk)("W1", size):
        view.feed(event, 0.0)
        end = event
    assert isinstance(end, AgentEnd)
    yield end.messages[-1]


VARIANTS: dict[str, dict[str, Variant]] = {
    "W1": {"floor": play_floor, "floor2": play_floor2, "str": player(None), "TextChunk": player(TextChunk)},
    **{
        workload: {"floor": play_floor, "floor2": play_floor2, "agentloop": player(TextChunk)}
        for workload in ("W2", "W3", "W4")
    },
    "W7": {"floor": play_floor, "floor2": play_run, "Agent": play_agent, "view": play_view},
}


# ---------------------------------------------------------------- was it all done?


class Seen:
    """What a consumer has seen: characters of deltas (of texts and arguments), results, the last result's text."""

    def __init__(self) -> None:
        self.characters = self.results = 0
        self.last = ""

    def look(self, event: Any) -> None:
        """Take one event of any variant."""
        if isinstance(event, MessageUpdate):
            event = event.delta
        if isinstance(event, floors.Delta | floors.CallDelta | TextDelta | ToolCallDelta | AssistantMessage):
            self.characters += len(event.text)
        elif isinstance(event, floors.ToolEnd | ToolExecutionEnd):
            self._result(event.result if isinstance(event, floors.ToolEnd) else event.result.text)
        elif isinstance(event, list):  # the history of the floor without events
            for message in event:
                if message["role"] == "tool":
                    self._result(message["content"])

    def _result(self, text: str) -> None:
        self.results += 1
        self.last = text


def check(workload: str, name: str, size: int) -> None:
    """Play once and look at everything. Raises `SystemExit` if the variant did not do the work."""
    seen = Seen()

    async def consume() -> None:
        async for event in VARIANTS[workload][name](workload, size):
            seen.look(event)

    asyncio.run(consume())
    texts, arguments = scripts.PIECE * scripts.DELTAS_IN_W4 * 2, len(scripts.ARGUMENTS) * scripts.CALLS
    characters, results, last = {
        "W1": (scripts.PIECE * size, 0, ""),
        "W2": (arguments * size + scripts.PIECE, scripts.CALLS * size, "ok"),
        "W3": (scripts.PIECE * (size + 1), 1, str(scripts.PIECE * size - len('{"s": ""}'))),
        "W4": (texts + arguments, scripts.CALLS, "ok"),
        "W7": (scripts.PIECE * size, 0, ""),
    }[workload]
    if name == "floor":  # it shows its deltas or its results, not both
        shown = (seen.characters == characters) if workload in ("W1", "W3", "W7") else (seen.results == results)
    else:
        shown = (seen.characters, seen.results, seen.last) == (characters, results, last)
    if not shown:
        raise SystemExit(f"{workload} {name} {size}: saw {seen.characters} characters and {seen.results} results")


# ---------------------------------------------------------------- the clock


async def drain(events: AsyncIterator[Any]) -> None:
    """Consume, and keep nothing."""
    async for _ in events:
        pass


def cpu_time(variant: Variant, workload: str, size: int) -> float:
    """Seconds of CPU that it takes, on an event loop of its own, after a garbage collection."""

    async def timed() -> float:
        gc.collect()
        start = time.process_time()
        if workload == "W4":
            await asyncio.gather(*(drain(variant(workload, number)) for number in range(size)))
        else:
            await drain(variant(workload, size))
        return time.process_time() - start

    return asyncio.run(timed())


def measure(workload: str, sizes: Sequence[int], rounds: int = ROUNDS) -> dict[int, dict[str, float]]:
    """Size to variant to microseconds a unit: the least of some rounds, in which sizes and variants take turns.

    A machine that gets slower meanwhile so hits all of them alike. Sizes that take long have two rounds.
    """
    best: dict[int, dict[str, float]] = {size: {} for size in sizes}
    spent = dict.fromkeys(sizes, 0.0)
    for number in range(rounds):
        for size in sizes:
            if number > 1 and spent[size] > SECONDS_FOR_ROUNDS:
                continue
            for name, variant in VARIANTS[workload].items():
                seconds = cpu_time(variant, workload, size)
                best[size][name] = min(best[size].get(name, seconds), seconds)
                spent[size] += seconds
    return {size: {name: seconds / size * 1e6 for name, seconds in costs.items()} for size, costs in best.items()}


def main(workload: str, *sizes: str) -> None:
    """Check, measure, print."""
    for name in VARIANTS[workload]:
        check(workload, name, WARM_UP[workload])
    measure(workload, [WARM_UP[workload]], 1)
    print(json.dumps({"workload": workload, "us": measure(workload, [int(size) for size in sizes])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
