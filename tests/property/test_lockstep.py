"""G12 and G13: effects wait for the consumer, nothing else does, and nothing runs far ahead."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    ApprovalDecision,
    ApprovalRequest,
    ChildEvent,
    Config,
    Context,
    Event,
    MessageUpdate,
    RequestBegin,
    TextDelta,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    agent_loop,
    tool,
)
from agentloop.grammar import check
from agentloop.model import Finish
from agentloop.subagent import subagent
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked

from .world import Plan, World, plans

pytestmark = pytest.mark.anyio


@given(plan=plans())
async def test_g12_no_effect_before_the_consumer_came_back(plan: Plan) -> None:
    """Requests, polls, hooks and questions begin while the consumer waits for more; a tool once its start was consumed and
    the consumer had come back after it."""
    world = World(plan)
    await world.play()
    requests = [n for n, event in enumerate(world.events) if isinstance(event, RequestBegin)]
    starts = {e.tool_call_id: n for n, e in enumerate(world.events) if isinstance(e, ToolExecutionStart)}
    asked = {e.tool_call_id: n for n, e in enumerate(world.events) if isinstance(e, ApprovalRequest)}
    for kind, subject, seen, waiting in world.effects:
        if kind == "tool":
            assert seen > starts[subject]
            assert seen > starts[subject] + 1 or waiting
            continue
        assert waiting, f"{kind} began while the consumer was busy"
        if kind == "request":
            assert seen - 1 in requests
        elif kind == "approve":
            assert seen > asked[subject]


async def test_g12_a_log_that_is_written_first_is_ahead_of_every_effect() -> None:
    """A consumer that stores each event before it asks for the next has stored the start before the tool runs."""
    stored: list[Any] = []
    witnessed = []

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look at the log."""
        witnessed.append([e.tool_call_id for e in stored if isinstance(e, ToolExecutionStart)])
        return "ok"

    model = ScriptedModel([[call("look", id="a"), call("look", id="b")], "done"])
    async for event in agent_loop(["go"], Context(tools=[look]), Config(model=model)):
        stored.append(event)
        await wait_all_blocked()  # whatever could run ahead has run
    assert witnessed == [["a", "b"], ["a", "b"]]


async def test_g12_a_hook_waits_although_its_tool_ends_while_the_consumer_is_busy() -> None:
    """The buffer is empty and a tool returns, but the consumer has not come back: `after_tool_call` does not begin."""
    gate = anyio.Event()
    asked: list[str] = []

    @tool
    async def work(ctx: ToolContext) -> str:
        """Report, then wait."""
        ctx.progress("begun")
        await gate.wait()
        return "ok"

    def after(invocation: Any, result: Any) -> None:
        asked.append(invocation.id)

    model = ScriptedModel([[call("work", id="a")], "done"])
    async for event in agent_loop(["go"], Context(tools=[work]), Config(model=model, after_tool_call=after)):
        if isinstance(event, ToolExecutionUpdate):
            gate.set()
            await wait_all_blocked()
            assert asked == []
    assert asked == ["a"]


@pytest.mark.parametrize("kind", ["after_tool_call", "approve"])
async def test_g12_what_came_of_one_call_is_taken_before_the_next_callback_begins(kind: str) -> None:
    """Both calls wait for their hook, or for an answer, that a plain function gives at once: the second begins when the
    consumer has come back after the first one's end, or decision."""
    stored: list[str] = []
    witnessed: list[list[str]] = []

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    def callback(*args: Any) -> Any:
        witnessed.append(list(stored))
        return "allow" if kind == "approve" else None

    model = ScriptedModel([[call("work", id="a"), call("work", id="b")], "done"])
    config = Config(model=model, approval_order="all_at_once", **{kind: callback})
    async for event in agent_loop(["go"], Context(tools=[work]), config):
        if isinstance(event, ToolExecutionEnd if kind == "after_tool_call" else ApprovalDecision):
            stored.append(event.tool_call_id)
    assert witnessed == [[], ["a"]]


@given(turns=st.lists(st.integers(0, 5), min_size=6, max_size=6), busy=st.lists(st.integers(0, 3), min_size=1))
async def test_g12_calls_side_by_side_begin_behind_what_announced_them(turns: list[int], busy: list[int]) -> None:
    """However the turns of their tasks fall: a callback is called while the consumer waits for more; the first line of what
    is async, and of a nested run's request, comes when the consumer has come back after the event that announced it."""
    taken: list[Any] = []
    waiting = [False]

    def came_back(announced: Callable[[Any], bool]) -> None:
        places = [place for place, event in enumerate(taken) if announced(event)]
        assert places and (waiting[0] or places[-1] < len(taken) - 1)

    async def pause(count: int) -> None:
        for _ in range(count):
            await anyio.lowlevel.checkpoint()

    @tool
    async def work(pauses: int, ctx: ToolContext) -> str:
        """Report in the midst of it."""
        came_back(lambda e: isinstance(e, ToolExecutionStart) and e.tool_call_id == ctx.tool_call_id)
        await pause(pauses)
        ctx.progress("half")
        await pause(pauses)
        return "ok"

    def approve(request: ApprovalRequest) -> Any:
        assert waiting[0]

        async def answer() -> str:
            came_back(lambda e: isinstance(e, ApprovalRequest) and e.tool_call_id == request.tool_call_id)
            return "allow"

        return answer()

    async def nested(request: Any) -> AsyncIterator[Any]:
        came_back(lambda e: isinstance(e, ChildEvent) and isinstance(e.event, RequestBegin))
        yield "done"
        yield Finish("stop")

    calls = [call("work", {"pauses": count}) for count in turns]
    calls.insert(2, call("helper", {"prompt": "go"}))
    config = Config(model=ScriptedModel([calls, "done"]), approve=approve)
    run = agent_loop(["go"], Context(tools=[work, subagent("helper", "Help.", nested)]), config)
    waiting[0] = True
    async for event in run:
        waiting[0] = False
        taken.append(event)
        await pause(busy[len(taken) % len(busy)])
        waiting[0] = True
    ends = [event for event in taken if isinstance(event, ToolExecutionEnd)]
    assert [end.error_code for end in ends] == [None] * 7


@given(ahead=st.sampled_from([0, 1, 5, 64]), stop=st.integers(1, 40))
async def test_g13_at_most_run_ahead_chunks_are_read_ahead(ahead: int, stop: int) -> None:
    """While the consumer is busy the model's stream is read at most `run_ahead` chunks further, also if they say nothing."""
    read = [0]
    done = [0]

    async def model(request: Any) -> AsyncIterator[Any]:
        for n in range(200):
            read[0] = n + 1
            yield f"{n} "
        yield Finish("stop")

    run = agent_loop(["go"], Context(), Config(model=model, run_ahead=ahead))
    async for event in run:
        if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
            done[0] += 1
            await wait_all_blocked()
            # one chunk is being read (asked for), the others were read ahead of this delta
            assert read[0] <= done[0] + max(ahead, 1)
            if done[0] == stop:
                break
    await run.aclose()


async def test_g13_between_effects_nothing_waits() -> None:
    """Events between two effects are handed over in batches: a chatty reply costs few turns of the event loop."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await anyio.lowlevel.checkpoint()

    async def model(request: Any) -> AsyncIterator[Any]:
        for _ in range(6400):
            yield "x"
        yield Finish("stop")

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        events = await collect(agent_loop(["go"], Context(), Config(model=model)))
        group.cancel_scope.cancel()
    assert len(events) > 6400
    assert turns[0] < 6400 / 64 * 8


async def test_g13_progress_over_the_bound_replaces_the_oldest_of_the_same_call() -> None:
    """A burst of progress keeps the newest; the other call's progress stays."""

    @tool
    async def burst(name: str, ctx: ToolContext) -> str:
        """Report a lot."""
        for n in range(50):
            ctx.progress(f"{name}{n}")
        return "ok"

    model = ScriptedModel([[call("burst", {"name": "a"}, id="a"), call("burst", {"name": "b"}, id="b")], "done"])
    events = []
    async for event in agent_loop(["go"], Context(tools=[burst]), Config(model=model, run_ahead=8)):
        events.append(event)
        await wait_all_blocked()
    check(events)
    for id in "ab":
        seen = [e.partial_result.text for e in events if isinstance(e, ToolExecutionUpdate) and e.tool_call_id == id]
        assert seen[-1] == f"{id}49"
        assert len(seen) <= 9


@pytest.mark.parametrize("kind", ["async", "sync", "stream"])
async def test_g13_output_waits_for_the_consumer(kind: str) -> None:
    """Streamed output is never dropped: the tool waits, a worker thread blocks."""
    written = [0]

    async def awaited(ctx: ToolContext) -> None:
        for n in range(100):
            await ctx.output(f"{n},")
            written[0] = n + 1

    def blocked(ctx: ToolContext) -> None:
        for n in range(100):
            ctx.output(f"{n},")
            written[0] = n + 1

    async def streamed(ctx: ToolContext) -> AsyncIterator[str]:
        for n in range(100):
            yield f"{n},"
            written[0] = n + 1

    writer = tool(name="writer", description="Write.")({"async": awaited, "sync": blocked, "stream": streamed}[kind])
    model = ScriptedModel([[call("writer")], "done"])
    events = []
    seen = 0
    async for event in agent_loop(["go"], Context(tools=[writer]), Config(model=model, run_ahead=4)):
        events.append(event)
        if isinstance(event, ToolExecutionUpdate):
            seen += 1
            assert written[0] <= seen + 5
    check(events)
    said = "".join(e.delta for e in events if isinstance(e, ToolExecutionUpdate) and e.delta)
    assert said == "".join(f"{n}," for n in range(100))
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert end.messages[2].text == said  # type: ignore[union-attr]
    assert threading.active_count() < 50


# ---------------------------------------------------------------- nested runs


def nested(model: Any, *tools: Any, **config: Any) -> Any:
    """A tool that runs another run, whose answer it gives."""

    @tool
    async def delegate(ctx: ToolContext) -> str:
        """Ask another agent."""
        run = agent_loop(["go"], Context(tools=tools), Config(model=model, abort=ctx.abort, **config))
        end = await ctx.nested(run, "child")
        assert end is not None
        assert not ctx.abort._callbacks  # nothing of it is left on the call's signal
        return end.stop_reason

    return delegate


async def test_g12_effects_of_a_nested_run_wait_for_the_consumer_too() -> None:
    """Its tool, and each of its requests, begins when the consumer of the outer run has stored all of its events so far."""
    stored: list[Event] = []
    told: list[list[str]] = []

    def kinds() -> list[str]:
        return [type(event.event).__name__ for event in stored if isinstance(event, ChildEvent)]

    def note(request: Any) -> None:
        told.append(kinds()[-1:])

    @tool
    async def look() -> str:
        """Look at what is stored."""
        told.append(kinds()[-1:])
        return "ok"

    inner = ScriptedModel([[note, call("look")], [note, "done"]])
    outer = ScriptedModel([[call("delegate")], "done"])
    async for event in agent_loop(["go"], Context(tools=[nested(inner, look)]), Config(model=outer)):
        await wait_all_blocked()  # whatever could run ahead has run
        stored.append(event)
    assert told == [["RequestBegin"], ["ToolExecutionStart"], ["RequestBegin"]]
    assert [event.result.text for event in stored if isinstance(event, ToolExecutionEnd)] == ["completed"]


@pytest.mark.parametrize("ahead", [1, 4, 64])
async def test_g13_a_nested_reply_streams_ahead_of_the_consumer(ahead: int) -> None:
    """Pieces of a nested reply do not wait one by one, and no more of them wait than `run_ahead` of the outer run."""
    read: list[int] = []

    async def model(request: Any) -> AsyncIterator[Any]:
        for number in range(30):
            read.append(number)
            yield f"{number} "
        yield Finish("stop")

    config = Config(model=ScriptedModel([[call("delegate")], "done"]), run_ahead=ahead)
    counts: list[int] = []
    async for event in agent_loop(["go"], Context(tools=[nested(model, run_ahead=0)]), config):
        piece = event.event if isinstance(event, ChildEvent) else None
        if isinstance(piece, MessageUpdate) and isinstance(piece.delta, TextDelta) and not counts:
            await wait_all_blocked()
            counts.append(len(read))
    assert len(read) == 30
    assert counts[0] == 30 if ahead == 64 else counts[0] <= ahead + 1


async def test_g21_the_end_of_a_nested_run_is_not_held_up() -> None:
    """The abort comes and the consumer is away for longer than the grace: the nested run ends in time, as its own words say."""
    clock, signal = VirtualClock(), AbortSignal()

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait to be told to stop."""
        await ctx.abort.wait()
        return "stopped"

    inner = ScriptedModel([[call("wait")]])
    config = Config(model=ScriptedModel([[call("delegate")]]), clock=clock, abort=signal)
    events: list[Event] = []
    async for event in agent_loop(["go"], Context(tools=[nested(inner, wait, clock=clock)]), config):
        events.append(event)
        piece = event.event if isinstance(event, ChildEvent) else None
        if isinstance(piece, ToolExecutionStart):
            await wait_all_blocked()
        if isinstance(piece, ToolExecutionUpdate | ToolExecutionStart) and not signal.aborted:
            signal.abort("enough")
            await clock.sleep(60)
    check(events)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (end.error_code, end.result.text) == ("aborted", "aborted")
