"""What a running tool reports: streamed output, long and cut, and progress that nobody has taken yet."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentloop import Config, Context, ToolContext, ToolExecutionEnd, ToolExecutionUpdate, ToolResult, agent_loop, tool
from agentloop.grammar import check
from agentloop.messages import InlineData, Text
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked

pytestmark = pytest.mark.anyio


async def played(work: Any, calls: int = 1, **changes: Any) -> tuple[list[ToolExecutionUpdate], list[ToolExecutionEnd]]:
    """The updates and ends of calls of this tool."""
    model = ScriptedModel([[call("work", id=f"c{number}") for number in range(calls)], "done"])
    events = await collect(agent_loop(["go"], Context(tools=[work]), Config(model=model, **changes)))
    check(events, outputs_kept=True)
    updates = [event for event in events if isinstance(event, ToolExecutionUpdate)]
    return updates, [event for event in events if isinstance(event, ToolExecutionEnd)]


@pytest.mark.parametrize("count", [1, 511, 512, 513, 1100, 1600])
async def test_many_pieces_are_one_text(count: int) -> None:
    """Each is told as it came, and the result's text is all of them in order, however many were joined on the way."""
    pieces = [f"{number} " for number in range(count)]

    @tool
    async def work(ctx: ToolContext) -> None:
        """Work."""
        for piece in pieces:
            await ctx.output(piece)

    updates, (end,) = await played(work)
    assert [update.delta for update in updates] == pieces
    assert end.result.text == "".join(pieces)


@pytest.mark.parametrize(
    ("pieces", "returned", "deltas"),
    [
        (["a\ud83d"], None, ["a", "\ufffd"]),
        (["a\ud83d", "\ude00"], None, ["a", "😀"]),
        (["a\ud83d", "b"], None, ["a", "\ufffdb"]),
        (["a\ud83d"], "a\ufffd!", ["a", "\ufffd", "!"]),
        (["a"], "other", ["a", "\nother"]),
        (["a"], "", ["a", "\n[no output]"]),
    ],
)
async def test_half_a_pair_at_the_end_of_the_output(pieces: list[str], returned: Any, deltas: list[str]) -> None:
    """It becomes the replacement when the output ends without the other half."""

    @tool
    async def work(ctx: ToolContext) -> Any:
        """Work."""
        for piece in pieces:
            await ctx.output(piece)
        return returned

    updates, (end,) = await played(work)
    if returned != "":
        assert [update.delta for update in updates] == deltas
    assert end.result.text == "".join([update.delta or "" for update in updates])


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("given", [5, None, b"x", {"a": 1}])
async def test_output_that_is_no_text_is_the_calls_error(kind: str, given: Any) -> None:
    """Said where it was given, in a worker thread too: neither does the thread wait for ever, nor does the event loop fail."""

    @tool(name="work")
    async def in_a_task(ctx: ToolContext) -> None:
        """Work."""
        await ctx.output("a")
        await ctx.output(given)

    @tool(name="work")
    def in_a_thread(ctx: ToolContext) -> None:
        """Work."""
        ctx.output("a")
        ctx.output(given)

    with anyio.fail_after(10):
        _, (end,) = await played(in_a_task if kind == "async" else in_a_thread)
    assert end.error_code == "tool_error"
    assert end.result.text.startswith(f"a\nexpected text, got {type(given).__name__}")


@pytest.mark.parametrize("kind", ["async", "thread", "generator"])
async def test_output_of_a_class_of_its_own_is_plain_text(kind: str) -> None:
    """A str of another class is told as its text, ASCII or not; a pair that is split is put together."""

    class Piece(str):
        __slots__ = ()

    pieces = [Piece("a"), Piece("é"), Piece("\ud83d"), Piece("\ude00")]

    @tool(name="work")
    async def in_a_task(ctx: ToolContext) -> None:
        """Work."""
        for piece in pieces:
            await ctx.output(piece)

    @tool(name="work")
    def in_a_thread(ctx: ToolContext) -> None:
        """Work."""
        for piece in pieces:
            ctx.output(piece)

    @tool(name="work")
    async def generator() -> AsyncIterator[str]:
        """Work."""
        for piece in pieces:
            yield piece

    updates, (end,) = await played({"async": in_a_task, "thread": in_a_thread, "generator": generator}[kind])
    assert [update.delta for update in updates] == ["a", "é", "", "😀"]
    assert {type(update.delta) for update in updates} == {str}
    assert end.result.text == "aé😀"


async def test_a_result_among_what_a_generator_yields_is_its_other_half() -> None:
    """Its blocks that are no text stand behind the output; the generator is closed before the call ends."""
    closed: list[str] = []
    data = InlineData("QUJD", "text/plain")

    @tool
    async def work() -> AsyncIterator[Any]:
        """Work."""
        try:
            yield "a"
            yield Text("b")
            yield ToolResult((data,), details={"n": 1})
            yield "c"
        finally:
            closed.append("closed")

    updates, (end,) = await played(work)
    assert [update.delta for update in updates] == ["a", "b", "c"]
    assert (end.result.content, end.result.details) == ((Text("abc"), data), {"n": 1})
    assert closed == ["closed"]


@pytest.mark.parametrize(("run_ahead", "bound"), [(0, 8), (8, 8), (12, 12)])
async def test_progress_that_nobody_took_is_replaced_by_the_newest(run_ahead: int, bound: int) -> None:
    """Of what one call reports at once as much as the bound is kept, the newest; the last one always."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        for number in range(30):
            ctx.progress(str(number))
        return "ok"

    updates, _ = await played(work, run_ahead=run_ahead)
    kept = [update.partial_result.text for update in updates if update.partial_result is not None]
    assert kept == [str(number) for number in range(30 - len(kept), 30)]
    assert len(kept) == bound


async def test_progress_replaces_that_of_its_own_call_only() -> None:
    """Another call's progress and all output stay."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        ctx.output("streamed")
        if ctx.tool_call_id == "c0":
            ctx.progress("first")
        else:
            for number in range(30):
                ctx.progress(str(number))
        return "streamed"

    updates, _ = await played(work, 2, run_ahead=0)
    first = [update for update in updates if update.tool_call_id == "c0"]
    assert [update.partial_result.text for update in first if update.partial_result is not None] == ["first"]
    for call_id in ("c0", "c1"):
        deltas = [update.delta for update in updates if update.tool_call_id == call_id and update.delta is not None]
        assert deltas == ["streamed"]


async def test_progress_replaces_no_event_of_another_kind() -> None:
    """While the consumer is away another call ends: what waits of that stays, whatever is reported meanwhile."""
    first, second = anyio.Event(), anyio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Wait to be let go, then report."""
        if ctx.tool_call_id == "c0":
            await first.wait()
            return "ok"
        ctx.progress("begun")
        await second.wait()
        for number in range(30):
            ctx.progress(str(number))
        return "ok"

    model = ScriptedModel([[call("work", id="c0"), call("work", id="c1")], "done"])
    events: list[Any] = []
    async for event in agent_loop(["go"], Context(tools=[work]), Config(model=model, run_ahead=0)):
        events.append(event)
        if isinstance(event, ToolExecutionUpdate) and not second.is_set():
            first.set()
            await wait_all_blocked()
            second.set()
            await wait_all_blocked()
    check(events)
    assert [e.error_code for e in events if isinstance(e, ToolExecutionEnd)] == [None, None]


async def test_reports_keep_their_order() -> None:
    """Progress and output of a task come as they were made, at once."""

    @tool
    async def work(ctx: ToolContext) -> None:
        """Work."""
        ctx.progress("one")
        ctx.output("two")
        ctx.progress("three")

    updates, _ = await played(work)
    assert [u.delta or u.partial_result.text for u in updates if u.delta or u.partial_result] == ["one", "two", "three"]


async def test_a_thread_reports_while_the_consumer_waits() -> None:
    """Its progress wakes the consumer, who waits for more."""
    seen = threading.Event()

    @tool
    def work(ctx: ToolContext) -> str:
        """Report, and wait until that was seen."""
        ctx.progress("begun")
        return "seen" if seen.wait(20) else "not seen"

    model = ScriptedModel([[call("work")], "done"])
    texts: list[str] = []
    async for event in agent_loop(["go"], Context(tools=[work]), Config(model=model)):
        if isinstance(event, ToolExecutionUpdate):
            seen.set()
        if isinstance(event, ToolExecutionEnd):
            texts.append(event.result.text)
    assert texts == ["seen"]


async def test_output_may_be_awaited_in_an_event_loop_of_a_threads_own() -> None:
    """There it has waited already: awaiting it costs nothing."""

    @tool
    def work(ctx: ToolContext) -> None:
        """Run an event loop in the thread."""

        async def inner() -> None:
            await ctx.output("a")
            await ctx.output("b")

        anyio.run(inner)

    updates, (end,) = await played(work)
    assert [update.delta for update in updates] == ["a", "b"]
    assert end.result.text == "ab"


@pytest.mark.parametrize(("run_ahead", "ahead"), [(0, 1), (1, 1), (2, 2), (4, 4)])
@pytest.mark.parametrize("kind", ["task", "stream"])
async def test_how_much_output_waits_for_the_consumer(kind: str, run_ahead: int, ahead: int) -> None:
    """While the consumer is busy with the first piece, `run_ahead` more wait for it, at least one; the tool waits too."""
    given: list[int] = []

    async def task(ctx: ToolContext) -> None:
        """Work."""
        for number in range(9):
            given.append(number)
            await ctx.output(f"{number} ")

    async def stream() -> AsyncIterator[str]:
        """Work."""
        for number in range(9):
            given.append(number)
            yield f"{number} "

    work = tool(name="work")(task if kind == "task" else stream)
    counts: list[int] = []
    config = Config(model=ScriptedModel([[call("work")], "done"]), run_ahead=run_ahead)
    async for event in agent_loop(["go"], Context(tools=[work]), config):
        if isinstance(event, ToolExecutionUpdate):
            await wait_all_blocked()
            counts.append(len(given))
    assert counts[0] == ahead
    assert given == list(range(9))


async def test_a_thread_waits_for_the_consumer() -> None:
    """With the buffer full, `ctx.output` returns when the consumer has come back."""
    written: list[int] = []

    @tool
    def work(ctx: ToolContext) -> None:
        """Work."""
        for number in range(3):
            ctx.output(f"{number} ")
            written.append(number)

    counts: list[int] = []
    run = agent_loop(["go"], Context(tools=[work]), Config(model=ScriptedModel([[call("work")], "done"]), run_ahead=1))
    async for event in run:
        if isinstance(event, ToolExecutionUpdate) and not counts:
            while not run._core.room_waiters:  # until the thread waits
                await anyio.lowlevel.checkpoint()
            counts.append(len(written))
    assert counts == [0]
    assert written == [0, 1, 2]


async def test_a_thread_does_not_wait_when_its_call_is_over() -> None:
    """The call is given up while its output waits for the consumer, who stays away: the thread goes on."""
    clock = VirtualClock(autojump_threshold=None)
    over = threading.Event()

    @tool(timeout=5)
    def work(ctx: ToolContext) -> None:
        """Work."""
        for number in range(3):
            ctx.output(f"{number} ")
        over.set()

    config = Config(model=ScriptedModel([[call("work")], "done"]), run_ahead=1, clock=clock)
    run = agent_loop(["go"], Context(tools=[work]), config)
    events: list[Any] = []
    async for event in run:
        events.append(event)
        if isinstance(event, ToolExecutionUpdate) and not over.is_set():
            while not run._core.room_waiters:  # until the thread waits
                await anyio.lowlevel.checkpoint()
            for seconds in (5, config.abort_grace):
                clock.jump(seconds)
                await wait_all_blocked()
            assert await anyio.to_thread.run_sync(over.wait, 20)
    check(events, outputs_kept=True)
    assert [e.error_code for e in events if isinstance(e, ToolExecutionEnd)] == ["not_stopped"]


async def test_a_stream_that_is_cut_short_is_closed_in_its_own_task() -> None:
    """It waits for the consumer when its time is over; its clean-up is part of the call, and not left to the collector."""
    clock = VirtualClock()
    tasks: list[int] = []

    @tool(timeout=5)
    async def work() -> AsyncIterator[str]:
        """Work."""
        tasks.append(anyio.get_current_task().id)
        try:
            for number in range(9):
                yield f"{number} "
        finally:
            await clock.sleep(1)
            tasks.append(anyio.get_current_task().id)

    config = Config(model=ScriptedModel([[call("work")], "done"]), run_ahead=1, clock=clock, abort_grace=5)
    events: list[Any] = []
    async for event in agent_loop(["go"], Context(tools=[work]), config):
        events.append(event)
        if isinstance(event, ToolExecutionUpdate) and len(tasks) < 2:
            await clock.sleep(60)
    check(events, outputs_kept=True)
    assert len(tasks) == 2
    assert tasks[0] == tasks[1]
    assert [e.error_code for e in events if isinstance(e, ToolExecutionEnd)] == ["tool_timeout"]
