"""Leaving a run while tools run: each of them hears of it."""

from __future__ import annotations

import threading
import time
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentloop import (
    Config,
    Context,
    RequestEnd,
    Run,
    ToolContext,
    ToolInvocation,
    ToolResult,
    agent_loop,
    tool,
)
from agentloop.model import BlockEnd, ModelRequest
from agentloop.testing import STALL, ScriptedModel, call

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("eager", [False, True])
async def test_g24_a_thread_that_looks_at_its_signal_ends_when_the_consumer_leaves(eager: bool) -> None:
    """A thread cannot be cancelled: `ctx.abort` is all that it hears, also where nobody aborts the run."""
    began, ended, reasons = threading.Event(), threading.Event(), list[str | None]()

    @tool(replay="safe")
    def poll(ctx: ToolContext) -> str:
        """Poll until told to stop."""
        began.set()
        while not ctx.abort.aborted:
            time.sleep(0.001)
        reasons.append(ctx.abort.reason)
        ended.set()
        return "stopped"

    run = agent_loop(
        ["go"],
        Context(tools=[poll]),
        Config(model=ScriptedModel([[call("poll")], "done"]), eager_tools=eager, abort_grace=0.05),
    )

    async def consume() -> None:
        async for _ in run:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        assert await anyio.to_thread.run_sync(began.wait, 20)
        await run.aclose()
    assert await anyio.to_thread.run_sync(ended.wait, 20)
    assert reasons == ["the consumer has left"]


async def test_g24_an_early_call_hears_of_it_while_its_reply_streams() -> None:
    """With `eager_tools`, also before its start was told."""
    began, ended = threading.Event(), threading.Event()

    @tool(replay="safe")
    def poll(ctx: ToolContext) -> str:
        """Poll until told to stop."""
        began.set()
        while not ctx.abort.aborted:
            time.sleep(0.001)
        ended.set()
        return "stopped"

    config = Config(model=ScriptedModel([[call("poll"), STALL]]), eager_tools=True, abort_grace=0.05)
    run = agent_loop(["go"], Context(tools=[poll]), config)

    async def consume() -> None:
        async for _ in run:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        assert await anyio.to_thread.run_sync(began.wait, 20)
        await run.aclose()
    assert await anyio.to_thread.run_sync(ended.wait, 20)


async def test_g24_an_early_call_hears_of_it_between_its_reply_and_its_start() -> None:
    """Its reply is kept, and the consumer leaves before it takes the call's start: the thread is told all the same."""
    began, ended = threading.Event(), threading.Event()

    @tool(replay="safe")
    def poll(ctx: ToolContext) -> str:
        """Poll until told to stop."""
        began.set()
        while not ctx.abort.aborted and not ended.wait(0.001):
            pass
        ended.set()
        return "stopped"

    async def until_begun(request: ModelRequest) -> None:
        assert await anyio.to_thread.run_sync(began.wait, 20)

    model = ScriptedModel([[call("poll"), BlockEnd(), until_begun]])
    config = Config(model=model, eager_tools=True, run_ahead=0, abort_grace=0.05)
    run = agent_loop(["go"], Context(tools=[poll]), config)
    try:
        async for event in run:
            if isinstance(event, RequestEnd):
                break
        await run.aclose()
        assert await anyio.to_thread.run_sync(ended.wait, 5)
    finally:
        ended.set()


async def test_g24_a_thread_hears_of_an_order_to_leave_that_a_callback_gives() -> None:
    """`SystemExit` out of a callback ends the run from inside: the call beside it, in a thread, is told as well."""
    began, ended = threading.Event(), threading.Event()

    @tool
    def poll(ctx: ToolContext) -> str:
        """Poll until told to stop."""
        began.set()
        while not ctx.abort.aborted and not ended.wait(0.001):
            pass
        ended.set()
        return "stopped"

    @tool
    async def quick() -> str:
        """Return when the other one runs."""
        await anyio.to_thread.run_sync(began.wait)
        return "ok"

    def after(invocation: ToolInvocation, result: ToolResult) -> None:
        raise SystemExit(3)

    model = ScriptedModel([[call("poll"), call("quick")]])
    config = Config(model=model, after_tool_call=after, abort_grace=0.05)
    try:
        with pytest.raises(SystemExit):
            async for _ in agent_loop(["go"], Context(tools=[poll, quick]), config):
                pass
        assert await anyio.to_thread.run_sync(ended.wait, 5)
    finally:
        ended.set()


@pytest.mark.parametrize("kind", ["after_tool_call", "approve", "before_tool_call"])
async def test_g24_a_callback_that_waits_is_left_without_a_word(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is cancelled, which is no failure of it: the log says nothing of the call."""
    asked, ended = anyio.Event(), anyio.Event()

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    async def callback(*args: Any) -> None:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    config = Config(model=ScriptedModel([[call("work")]]), **{kind: callback})
    run = agent_loop(["go"], Context(tools=[work]), config)

    async def consume() -> None:
        async for _ in run:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await asked.wait()
        await run.aclose()
    assert ended.is_set()
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["after_tool_call", "approve"])
async def test_g24_nothing_begins_after_a_callback_has_closed_the_run(kind: str) -> None:
    """The second call's hook, or question, waits its turn, which does not come any more."""
    runs: list[Run] = []
    asked: list[str] = []

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    def callback(*args: Any) -> Any:
        asked.append(kind)
        runs[0]._core.close()  # what `aclose` does first
        return "allow" if kind == "approve" else None

    model = ScriptedModel([[call("work"), call("work")]])
    config = Config(model=model, approval_order="all_at_once", **{kind: callback})
    runs.append(agent_loop(["go"], Context(tools=[work]), config))
    async for _ in runs[0]:
        pass
    assert asked == [kind]
