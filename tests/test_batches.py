"""Batches of calls: the cap, exclusive calls, late hooks, and the list of tools."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    Config,
    Context,
    Event,
    MessageEnd,
    ModelError,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolListReady,
    ToolResult,
    ToolResultMessage,
    agent_loop,
    tool,
)
from agentloop.grammar import check
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked

pytestmark = pytest.mark.anyio


class Gauge:
    """How many calls run at once."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.now = 0
        self.most = 0

    def tool(self, **options: Any) -> Any:
        @tool(name="work", description="Work.", **options)
        async def work() -> str:
            self.now += 1
            self.most = max(self.most, self.now)
            await self.clock.sleep(1)
            self.now -= 1
            return "ok"

        return work


@given(count=st.integers(1, 6), cap=st.none() | st.integers(1, 4))
async def test_at_most_the_cap_runs_at_once(count: int, cap: int | None) -> None:
    """`max_parallel_tools` calls run beside each other and no more; a start comes when the call really starts."""
    gauge = Gauge()
    model = ScriptedModel([[call("work") for _ in range(count)], "done"])
    config = Config(model=model, max_parallel_tools=cap, clock=gauge.clock)
    events = await collect(agent_loop(["go"], Context(tools=[gauge.tool()]), config))
    check(events)
    assert gauge.most == min(count, cap or count)
    started = most = 0
    for event in events:
        started += isinstance(event, ToolExecutionStart)
        started -= isinstance(event, ToolExecutionEnd)
        most = max(most, started)
    assert most == gauge.most


async def test_a_call_whose_hook_waits_for_the_consumer_counts() -> None:
    """The tool has returned while the consumer was away: the cap lets no other start before its end."""
    gate = anyio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Report, and return when told to."""
        ctx.progress("begun")
        await gate.wait()
        return "ok"

    model = ScriptedModel([[call("work"), call("work")], "done"])
    events: list[Any] = []
    config = Config(model=model, max_parallel_tools=1, after_tool_call=lambda invocation, result: None)
    async for event in agent_loop(["go"], Context(tools=[work]), config):
        events.append(event)
        if isinstance(event, ToolExecutionUpdate):
            gate.set()
            await wait_all_blocked()
    check(events)
    order = [type(e).__name__[13:] for e in events if isinstance(e, ToolExecutionStart | ToolExecutionEnd)]
    assert order == ["Start", "End"] * 2


async def test_a_call_whose_hook_runs_counts() -> None:
    """The first call's hook goes on while the second call reports: the third starts when the first has ended."""
    asked, gate = anyio.Event(), anyio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work; the second call goes on beside the first one's hook, which it then lets go."""
        if ctx.tool_call_id == "b":
            await asked.wait()
            ctx.progress("still here")
            await wait_all_blocked()
            gate.set()
            await anyio.sleep_forever()
        return "ok"

    async def after(invocation: Any, result: ToolResult) -> None:
        if invocation.id == "a":
            asked.set()
            await gate.wait()

    model = ScriptedModel([[call("work", id=id) for id in "abc"], "done"])
    config = Config(model=model, clock=VirtualClock(), max_parallel_tools=2, after_tool_call=after, tool_timeout=60)
    events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    check(events)
    kinds = {ToolExecutionStart: "start", ToolExecutionEnd: "end"}
    order = [f"{kinds[type(e)]} {e.tool_call_id}" for e in events if type(e) in kinds]  # type: ignore[attr-defined]
    assert order == ["start a", "start b", "end a", "start c", "end c", "end b"]


@pytest.mark.parametrize(("options", "changes"), [({"exclusive": True}, {}), ({}, {"tool_execution": "sequential"})])
async def test_exclusive_and_sequential_calls_run_alone(options: Any, changes: Any) -> None:
    """Neither an exclusive tool nor a sequential run has two calls at once; each starts after the end before it."""
    gauge = Gauge()
    model = ScriptedModel([[call("work"), call("work"), call("work")], "done"])
    config = Config(model=model, clock=gauge.clock, **changes)
    events = await collect(agent_loop(["go"], Context(tools=[gauge.tool(**options)]), config))
    check(events)
    assert gauge.most == 1
    order = [type(e).__name__[13:] for e in events if isinstance(e, ToolExecutionStart | ToolExecutionEnd)]
    assert order == ["Start", "End"] * 3


async def test_a_result_waits_for_the_hook_of_an_earlier_call() -> None:
    """The first call's hook still runs when the second has ended: its result comes first all the same, as the hook left it."""
    gate = anyio.Event()

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    async def after(invocation: Any, result: Any) -> ToolResult | None:
        if invocation.id == "a":
            await gate.wait()
            return ToolResult("replaced")
        return None

    model = ScriptedModel([[call("work", id="a"), call("work", id="b")], "done"])
    events: list[Any] = []
    async for event in agent_loop(["go"], Context(tools=[work]), Config(model=model, after_tool_call=after)):
        events.append(event)
        if isinstance(event, ToolExecutionEnd) and event.tool_call_id == "b":
            gate.set()
    check(events)
    assert [e.tool_call_id for e in events if isinstance(e, ToolExecutionEnd)] == ["b", "a"]
    results = [e.message for e in events if isinstance(e, MessageEnd) and isinstance(e.message, ToolResultMessage)]
    assert [(m.tool_call_id, m.text) for m in results] == [("a", "replaced"), ("b", "ok")]


async def test_the_list_of_tools_is_told_once_while_it_stays() -> None:
    """ToolListReady stands before the first request, also when it is empty, and not again before one with the same list."""
    for tools in ([], [Gauge().tool()]):
        model = ScriptedModel([[call("x")], "done"])
        events = await collect(agent_loop(["go"], Context(tools=tools), Config(model=model)))
        check(events)
        lists = [e for e in events if isinstance(e, ToolListReady)]
        assert [[spec.name for spec in e.tools] for e in lists] == [[t.name for t in tools]]


@pytest.mark.parametrize(("asks", "requests"), [((True, True), 1), ((True, False), 2)])
async def test_a_batch_ends_the_run_only_if_every_result_asks(asks: tuple[bool, bool], requests: int) -> None:
    """`terminate` of each result ends the run `completed`; one that does not ask keeps it going."""

    @tool
    async def work(last: bool) -> ToolResult:
        """Work."""
        return ToolResult("ok", terminate=last)

    model = ScriptedModel([[call("work", {"last": last}) for last in asks], "done"])
    events = await collect(agent_loop(["go"], Context(tools=[work]), Config(model=model)))
    check(events)
    assert (model.asked, events[-1].stop_reason) == (requests, "completed")  # type: ignore[union-attr]


async def test_steering_that_waits_is_answered_after_a_batch_that_ends_the_run() -> None:
    """The user is heard although every result asked to end the run."""

    @tool
    async def work() -> ToolResult:
        """Work."""
        return ToolResult("ok", terminate=True)

    model = ScriptedModel([[call("work")], "heard"])
    polls = iter([None, ["wait"]])
    config = Config(model=model, get_steering_messages=lambda: next(polls, None))
    events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    check(events)
    assert model.asked == 2


@pytest.mark.parametrize(
    ("returned", "text", "deltas"),
    [
        (None, "one two", ["one ", "two"]),
        ("one two", "one two", ["one ", "two"]),
        ("one two three", "one two three", ["one ", "two", " three"]),
        ("other", "one two\nother", ["one ", "two", "\nother"]),
    ],
)
async def test_streamed_output_is_the_results_text(returned: str | None, text: str, deltas: list[str]) -> None:
    """What a tool returns beside its streamed output is added as a last delta; what was streamed already is not repeated."""

    @tool
    async def work(ctx: ToolContext) -> str | None:
        """Work."""
        await ctx.output("one ")
        await ctx.output("two")
        return returned

    model = ScriptedModel([[call("work")], "done"])
    events = await collect(agent_loop(["go"], Context(tools=[work]), Config(model=model)))
    check(events, outputs_kept=True)
    assert [e.delta for e in events if isinstance(e, ToolExecutionUpdate)] == deltas
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == [text]


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "fails"])
@pytest.mark.parametrize("setting", ["approve", "after_tool_call"])
async def test_g21_none_is_asked_after_one_that_aborts(setting: str, fails: bool) -> None:
    """Of callbacks that are due together those behind an abort do not begin, whatever became of the one that aborted."""
    abort = AbortSignal()
    asked: list[str] = []

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    def callback(call: Any, *_: Any) -> str | None:
        asked.append(call.tool_call_id if setting == "approve" else call.id)
        abort.abort("enough")
        if fails:
            raise ValueError("no answer")
        return "allow" if setting == "approve" else None

    model = ScriptedModel([[call("work"), call("work"), call("work")]])
    config: dict[str, Any] = {setting: callback, "approval_order": "all_at_once"}
    events = await collect(agent_loop("go", Context(tools=[work]), Config(model=model, abort=abort, **config)))
    check(events)
    assert len(asked) == 1
    assert isinstance(events[-1], AgentEnd) and events[-1].error_code == "user_abort"


async def test_g21_a_call_that_waits_for_a_thread_does_not_begin_after_an_abort() -> None:
    """A sync tool looks again before its first line, and is answered as one that was aborted."""
    abort = AbortSignal()
    go = threading.Event()
    begun: list[bool] = []

    @tool
    def work() -> str:
        """Work in a thread; the last for whom there is one aborts the run."""
        begun.append(abort.aborted)
        if len(begun) == 40:
            abort.abort("enough")
            go.set()
        go.wait()
        return "ok"

    model = ScriptedModel([[call("work") for _ in range(41)]])
    config = Config(model=model, abort=abort, abort_grace=30)
    events = await collect(agent_loop("go", Context(tools=[work]), config))
    check(events)
    assert begun == [False] * 40
    ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
    waited = [end for end in ends if end.result.text != "ok"]
    assert [(end.error_code, end.stop_reason, end.result.is_error) for end in waited] == [("aborted", "aborted", True)]
    assert [end.result.text for end in waited] == ["Not run: enough"]


async def test_g21_a_call_that_waits_for_a_thread_is_answered_at_once_though_none_becomes_free() -> None:
    """It never began: that it did not stop, and that its outcome is unknown, is not true of it."""
    abort = AbortSignal()
    go = threading.Event()
    begun: list[int] = []

    @tool
    def work() -> str:
        """Keep a thread until the call that has none was answered; the last for whom there is one aborts the run."""
        begun.append(1)
        if len(begun) == 40:
            abort.abort("enough")
        go.wait()
        return "ok"

    model = ScriptedModel([[call("work") for _ in range(41)]])
    config = Config(model=model, abort=abort, abort_grace=5)
    events: list[Event] = []
    async for event in agent_loop("go", Context(tools=[work]), config):
        events.append(event)
        if isinstance(event, ToolExecutionEnd):
            go.set()
    check(events)
    assert len(begun) == 40
    ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (ends[0].error_code, ends[0].result.text) == ("aborted", "Not run: enough")
    assert [end.result.text for end in ends[1:]] == ["ok"] * 40


@pytest.mark.parametrize("by", ["timeout", "interrupt"])
async def test_a_call_that_no_thread_became_free_for_says_that_it_was_not_run(by: str) -> None:
    """Its time counts from its start, so that threads that hang let no call wait for ever; what never ran is no matter for
    `after_tool_call`."""
    clock = VirtualClock(autojump_threshold=None)
    full, go = anyio.Event(), threading.Event()
    begun: list[int] = []
    looked_at: list[str] = []

    @tool(timeout=5, interruptible=True)
    def work(number: int) -> str:
        """Keep a thread until the call that has none was answered."""
        begun.append(number)
        if len(begun) == 40:
            anyio.from_thread.run_sync(full.set)
        go.wait()
        return "ok"

    async def steered() -> None:
        await (full.wait() if by == "interrupt" else anyio.sleep_forever())

    async def late() -> None:
        await full.wait()
        await wait_all_blocked()
        clock.jump(5)

    def after(call: Any, result: ToolResult) -> None:
        looked_at.append(result.text)

    model = ScriptedModel([[call("work", {"number": number}) for number in range(41)], "done"])
    config = Config(model=model, clock=clock, wait_for_steering=steered, after_tool_call=after, abort_grace=9)
    ends: list[ToolExecutionEnd] = []
    async with anyio.create_task_group() as group:
        if by == "timeout":
            group.start_soon(late)
        async for event in agent_loop("go", Context(tools=[work]), config):
            if isinstance(event, ToolExecutionEnd):
                ends.append(event)
                go.set()
        group.cancel_scope.cancel()
    assert len(begun) == 40
    text, code = {
        "timeout": ("Not run: it could not begin within 5 s.", "tool_timeout"),
        "interrupt": ("Not started: a new message from the user is waiting.", "aborted"),
    }[by]
    assert (ends[0].result.text, ends[0].error_code) == (text, code)
    assert [end.result.text for end in ends[1:]] == ["ok"] * 40
    assert looked_at == ["ok"] * 40


async def test_an_early_call_that_waits_for_a_thread_is_not_left_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Where its reply fails it can be cancelled, as what has no thread yet can."""
    full, go = anyio.Event(), threading.Event()
    begun: list[int] = []

    @tool(replay="safe")
    def work() -> str:
        """Keep a thread to the end of the test."""
        begun.append(1)
        if len(begun) == 40:
            anyio.from_thread.run_sync(full.set)
        go.wait()
        return "ok"

    model = ScriptedModel([[*[call("work") for _ in range(41)], full, ModelError("rejected", "no")]])
    config = Config(model=model, eager_tools=True, abort_grace=0)
    events = await collect(agent_loop("go", Context(tools=[work]), config))
    go.set()
    check(events)
    assert len(begun) == 40
    assert sum("left to itself" in record.message for record in caplog.records) == 40
