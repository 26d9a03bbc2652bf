"""Many, long and heavy runs: all of it arrives, memory grows no faster than what is kept, and nobody is starved.

Small by default; `HYPOTHESIS_PROFILE=slow python -m pytest -s tests/load` plays the full sizes and prints the figures.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import (
    AgentEnd,
    Config,
    Context,
    MessageUpdate,
    TextDelta,
    TextEnd,
    ThinkingEnd,
    ToolCallEnd,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolResult,
    agent_loop,
    tool,
)
from agentloop.messages import ToolResultMessage
from agentloop.model import Finish, TextChunk, ThinkingChunk, ToolCallChunk
from agentloop.testing import VirtualClock

pytestmark = pytest.mark.anyio

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
RUNS = 10_000 if SLOW else 100
TURNS = 20_000 if SLOW else 150
DELTAS = 1_000_000 if SLOW else 10_000
CALLS = 1_000 if SLOW else 100
MIB = 2**20


class Memory:
    """What Python has allocated since the block was entered, in bytes."""

    def __init__(self) -> None:
        gc.collect()
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    def now(self) -> int:
        """What is alive."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - self._before

    def peak(self) -> int:
        """The most that ever was."""
        return tracemalloc.get_traced_memory()[1] - self._before


@contextmanager
def measured() -> Iterator[Memory]:
    """Measure allocations inside."""
    tracemalloc.start()
    try:
        yield Memory()
    finally:
        tracemalloc.stop()


def tell(what: str) -> None:
    """A figure, in the long profile."""
    if SLOW:
        print(f"\n    {what}")


async def finished(run: Any) -> AgentEnd:
    """Take every event and keep none but the last."""
    last = None
    async for event in run:
        last = event
    assert isinstance(last, AgentEnd)
    return last


@tool
async def nothing(x: int) -> str:
    """Do nothing."""
    return "ok"


def call_chunk(number: int, name: str = "nothing", arguments: str = '{"x": 3}') -> ToolCallChunk:
    return ToolCallChunk(arguments, id=f"call_{number}", name=name)


async def test_many_runs_at_once() -> None:
    """All are alive at the same time; each ends with its own answer; what one costs while it waits is bounded."""
    waiting, everybody = 0, anyio.Event()
    answers: dict[int, str] = {}

    async def model(request: Any) -> AsyncIterator[Any]:
        nonlocal waiting
        name = request.messages[0].text
        if len(request.messages) == 1:
            yield ToolCallChunk('{"x": 3}', id=name, name="nothing")
            yield Finish("tool_use")
            return
        waiting += 1
        if waiting == RUNS:
            everybody.set()
        await everybody.wait()
        yield f"answer {name}"
        yield Finish("stop")

    context, config = Context(tools=[nothing]), Config(model=model)

    async def play(number: int) -> None:
        end = await finished(agent_loop(f"{number}", context, config))
        assert end.stop_reason == "completed"
        answers[number] = end.messages[-1].text  # type: ignore[union-attr]

    with measured() as memory:
        async with anyio.create_task_group() as group:
            for number in range(RUNS):
                group.start_soon(play, number)
            await everybody.wait()
            each = memory.now() / RUNS
    tell(f"{RUNS:,} runs at once: {each / 1024:.1f} KiB a run")
    assert answers == {number: f"answer {number}" for number in range(RUNS)}
    assert each < 64 * 1024


async def test_a_long_run() -> None:
    """Each turn is like the one before; memory is linear in the messages that are kept."""
    asked, kept = 0, []

    async def model(request: Any) -> AsyncIterator[Any]:
        nonlocal asked
        asked += 1
        if asked in (TURNS // 2, TURNS):
            kept.append(memory.now())
        if asked < TURNS:
            yield call_chunk(asked)
        yield Finish("tool_use" if asked < TURNS else "stop")

    with measured() as memory:
        end = await finished(agent_loop("go", Context(tools=[nothing]), Config(model=model)))
    half, whole = kept
    tell(f"{TURNS:,} turns: {whole / TURNS / 1024:.2f} KiB a turn; {whole / half:.2f} times as much as after half")
    assert end.stop_reason == "completed"
    assert len(end.messages) == 2 * TURNS - 1  # the prompt, a reply and a result each; the last reply is empty
    assert whole < 2.3 * half + MIB


async def test_a_reply_of_many_deltas() -> None:
    """Not one is lost; the peak is at most twice the text and a constant."""
    piece, seen = "abcdefgh", 0

    async def model(request: Any) -> AsyncIterator[Any]:
        for number in range(DELTAS):
            yield piece[: number % 8] + piece[number % 8 :]
        yield Finish("stop")

    last: Any = None
    with measured() as memory:
        async for event in agent_loop("go", Context(), Config(model=model)):
            seen += type(event) is MessageUpdate and type(event.delta) is TextDelta
            last = event
        peak = memory.peak()
    tell(f"{DELTAS:,} deltas, {8 * DELTAS / MIB:.1f} MiB of text: a peak of {peak / MIB:.1f} MiB")
    assert seen == DELTAS
    assert last.messages[-1].text == piece * DELTAS
    assert peak < 2 * 8 * DELTAS + 2 * MIB


@pytest.mark.parametrize("kind", ["text", "thinking", "arguments"])
async def test_a_heavy_block_is_held_twice_at_most(kind: str) -> None:
    """In its pieces and as the block that they are: 20 MiB of text take no third copy, whoever keeps its last event."""
    piece, count = 200_000, 100
    make = {"text": TextChunk, "thinking": ThinkingChunk, "arguments": lambda text: ToolCallChunk(text, "c", "missing")}

    async def model(request: Any) -> AsyncIterator[Any]:
        for number in range(count if len(request.messages) == 1 else 0):
            yield make[kind](chr(97 + number % 26) * piece)
        yield Finish("stop")

    end: Any = None
    with measured() as memory:
        async for event in agent_loop("go", Context(), Config(model=model)):
            if type(event) is MessageUpdate and type(event.delta) in (TextEnd, ThinkingEnd, ToolCallEnd):
                end, peak = event, memory.peak()
        kept = memory.now()
    assert peak < 2 * piece * count + 2 * MIB
    assert kept < piece * count + 2 * MIB
    [block] = end.message.content
    assert block == end.delta.block


@pytest.mark.parametrize("cap", [None, 7])
async def test_many_parallel_calls(cap: int | None) -> None:
    """Without a cap all run at the same time, with one never more than that; the results stand in call order."""
    running = most = 0
    everybody = anyio.Event()

    @tool
    async def work(x: int) -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == CALLS:
            everybody.set()
        await (everybody.wait() if cap is None else anyio.lowlevel.checkpoint())
        running -= 1
        return f"did {x}"

    async def model(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) == 1:
            for number in range(CALLS):
                yield call_chunk(number, "work", f'{{"x": {number}}}')
            yield Finish("tool_use")
        else:
            yield Finish("stop")

    starts = ends = 0
    last: Any = None
    config = Config(model=model, max_parallel_tools=cap)
    async for event in agent_loop("go", Context(tools=[work]), config):
        starts += type(event) is ToolExecutionStart
        ends += type(event) is ToolExecutionEnd
        last = event
    assert (starts, ends, running) == (CALLS, CALLS, 0)
    assert most == (cap or CALLS)
    results = [message.text for message in last.messages if isinstance(message, ToolResultMessage)]
    assert results == [f"did {number}" for number in range(CALLS)]


@pytest.mark.parametrize("where", ["reply", "output", "progress"])
async def test_a_consumer_that_stalls_for_an_hour(where: str) -> None:
    """The producer waits, or replaces what nobody took: nothing piles up, no silence is blamed on it, nothing is lost."""
    clock = VirtualClock()
    made = taken = ahead = 0
    count, stalled_at, run_ahead = 2_000, 700, 16

    def produce() -> str:
        nonlocal made, ahead
        made += 1
        ahead = max(ahead, made - taken)
        return "x"

    @tool
    async def chatty(ctx: ToolContext) -> str:
        """Report."""
        for _ in range(count):
            if where == "progress":
                ctx.progress(ToolResult(str(made)))
                produce()
            else:
                await ctx.output(produce())
        return "done" if where == "progress" else ""

    async def model(request: Any) -> AsyncIterator[Any]:
        if where == "reply" or len(request.messages) > 1:
            for _ in range(count if where == "reply" else 1):
                yield produce() if where == "reply" else "y"
            yield Finish("stop")
        else:
            yield ToolCallChunk("{}", id="c", name="chatty")
            yield Finish("tool_use")

    last, stalled, updates = None, 0, 0
    config = Config(model=model, clock=clock, idle_timeout=120, run_ahead=run_ahead)
    with measured() as memory:
        async for event in agent_loop("go", Context(tools=[chatty]), config):
            last = event
            if type(event) is ToolExecutionUpdate or (type(event) is MessageUpdate and type(event.delta) is TextDelta):
                taken += 1
                updates += type(event) is ToolExecutionUpdate
                if taken == stalled_at or (where == "progress" and taken == 1):
                    await clock.sleep(3_600)
                    stalled = memory.peak()
    assert isinstance(last, AgentEnd)
    assert last.stop_reason == "completed"
    assert clock.now() == 3_600
    assert made == count
    if where == "progress":
        assert updates <= run_ahead + 1
    else:
        assert taken == count + (where == "output")
        assert ahead <= 2 * run_ahead + 1
    assert stalled < MIB


@pytest.mark.parametrize("who", ["reply", "output"])
async def test_a_chatty_run_does_not_hold_up_its_neighbours(who: str) -> None:
    """Between two turns of a neighbour at most two bounds of deltas go by, though neither model nor consumer ever waits."""
    run_ahead, seen, most = 64, 0, 0
    begun = anyio.Event()

    @tool
    async def chatty() -> AsyncIterator[str]:
        """Stream without a wait."""
        for _ in range(DELTAS // 4):
            yield "x"

    async def model(request: Any) -> AsyncIterator[Any]:
        if who == "output" and len(request.messages) == 1:
            yield ToolCallChunk("{}", id="c", name="chatty")
            yield Finish("tool_use")
            return
        for _ in range(DELTAS // 4):
            yield "x"
        yield Finish("stop")

    async def consume() -> None:
        nonlocal seen
        async for event in agent_loop("go", Context(tools=[chatty]), Config(model=model, run_ahead=run_ahead)):
            seen += type(event) in (MessageUpdate, ToolExecutionUpdate)
            begun.set()

    async def neighbour() -> None:
        nonlocal most
        await begun.wait()
        before = seen
        while True:
            await anyio.lowlevel.checkpoint()
            most, before = max(most, seen - before), seen

    async with anyio.create_task_group() as group:
        group.start_soon(neighbour)
        await consume()
        group.cancel_scope.cancel()
    tell(f"{who}: at most {most} of {seen:,} deltas between two turns of a neighbour")
    assert seen >= DELTAS // 4
    assert most <= 2 * run_ahead


async def test_runs_finish_in_the_order_of_their_work() -> None:
    """A short run beside chatty ones ends while they are still at it: it needs no more of their deltas than of its own."""
    done: list[str] = []

    def model(count: int) -> Any:
        async def play(request: Any) -> AsyncIterator[Any]:
            for _ in range(count):
                yield "x"
            yield Finish("stop")

        return play

    async def play(name: str, count: int) -> None:
        await finished(agent_loop("go", Context(), Config(model=model(count))))
        done.append(name)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(play, f"long {number}", DELTAS // 10)
        for number in range(5):
            group.start_soon(play, f"short {number}", 200)
    assert sorted(done[:5]) == [f"short {number}" for number in range(5)]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_huge_result_is_cut_and_leaves_no_memory_behind(streamed: bool) -> None:
    """What is over the limit is dropped as it comes: neither history nor buffer holds it."""
    pieces = DELTAS // 4

    @tool
    async def at_once() -> str:
        """Return a lot."""
        return "x" * (100 * pieces)

    @tool
    async def in_pieces() -> AsyncIterator[str]:
        """Stream a lot."""
        for _ in range(pieces):
            yield "x" * 100

    work = in_pieces if streamed else at_once

    async def model(request: Any) -> AsyncIterator[Any]:
        if len(request.messages) == 1:
            yield ToolCallChunk("{}", id="c", name=work.name)
            yield Finish("tool_use")
        else:
            yield Finish("stop")

    config = Config(model=model, max_result_characters=10_000)
    with measured() as memory:
        end = await finished(agent_loop("go", Context(tools=[work]), config))
        kept, peak = memory.now(), memory.peak()
    result = end.messages[2]
    assert isinstance(result, ToolResultMessage)
    assert result.text.startswith("x" * 10_000 + "\n[Cut off")
    assert str(100 * pieces) in result.text
    assert kept < MIB
    assert peak < MIB or not streamed
