"""Batches of calls: the cap, exclusive calls, late hooks, and the list of tools."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    Config,
    Context,
    MessageEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolListReady,
    ToolResult,
    ToolResultMessage,
    agent_loop,
    tool,
)
from agentloop.grammar import check
from agentloop.testing import ScriptedModel, VirtualClock, call, collect

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
