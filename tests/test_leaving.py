"""Leaving a run while tools run: each of them hears of it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentStart,
    ChildEvent,
    Config,
    Context,
    Event,
    McpConnectEnd,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestEnd,
    Run,
    SubagentStarted,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionUpdate,
    ToolInvocation,
    ToolResult,
    TurnStart,
    agent_loop,
    tool,
    user,
)
from agentloop.model import BlockEnd, Finish, ModelRequest, ToolCallChunk
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, collect, wait_all_blocked

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


async def test_g24_a_pending_step_does_not_wait_for_the_clean_up() -> None:
    """It ends the iteration as soon as another task closes the run; `aclose` is what waits for the tool."""
    began, release = anyio.Event(), anyio.Event()
    order: list[str] = []

    @tool
    async def work() -> str:
        """Work, and take long to stop."""
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()
                order.append("cleaned")
        return ""

    run = agent_loop(["go"], Context(tools=[work]), Config(model=ScriptedModel([[call("work")]]), abort_grace=60))

    async def step() -> None:
        await collect(run)
        order.append("stepped")
        release.set()

    async def close() -> None:
        await run.aclose()
        order.append("closed")

    async with anyio.create_task_group() as group:
        group.start_soon(step)
        await began.wait()
        with anyio.fail_after(10):
            await close()
    assert order == ["stepped", "cleaned", "closed"]


async def test_a_run_that_is_closed_before_it_began_keeps_nothing() -> None:
    """Not what it would have started from."""
    model = ScriptedModel(["never"])
    kept = weakref.ref(model)
    run = agent_loop(["go"], Context(), Config(model=model))
    del model
    assert kept() is not None
    await run.aclose()
    gc.collect()
    assert kept() is None


async def test_g18_an_order_to_leave_that_no_step_met_is_raised_by_the_close() -> None:
    """A tool's `KeyboardInterrupt` comes while the consumer is busy: `aclose` raises it, once."""
    gate = anyio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Report, then be interrupted."""
        ctx.progress("on it")
        await gate.wait()
        raise KeyboardInterrupt("now")

    run = agent_loop(["go"], Context(tools=[work]), Config(model=ScriptedModel([[call("work")]])))
    async for event in run:
        if isinstance(event, ToolExecutionUpdate):
            break
    gate.set()
    await wait_all_blocked()
    with pytest.raises(KeyboardInterrupt, match="now"):
        await run.aclose()
    await run.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(run)


async def test_g24_a_tool_that_waits_for_room_under_a_shield_is_let_go() -> None:
    """Its output filled the buffer, and no cancellation reaches it (trio): when the consumer leaves it waits no more."""
    ended: list[str] = []

    @tool
    async def work(ctx: ToolContext) -> str:
        """Write more than is read."""
        try:
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await ctx.output("piece")
        finally:
            ended.append("work")
        return ""

    config = Config(model=ScriptedModel([[call("work")]]), run_ahead=1, abort_grace=60)
    run = agent_loop(["go"], Context(tools=[work]), config)
    async for event in run:
        if isinstance(event, ToolExecutionUpdate):
            await wait_all_blocked()
            break
    assert ended == []
    with anyio.fail_after(10):
        await run.aclose()
    assert ended == ["work"]


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


@pytest.mark.parametrize("eager", [False, True])
async def test_g24_a_thread_hears_of_a_run_that_breaks_off(eager: bool) -> None:
    """Its clock fails, which ends the run with that error: nobody has left or stopped it, and the call is told all the same."""
    began, ended, broken = threading.Event(), threading.Event(), [False]

    class Clock(VirtualClock):
        def now(self) -> float:
            if broken[0]:
                raise ZeroDivisionError
            return super().now()

    @tool(replay="safe")
    def poll(ctx: ToolContext) -> str:
        """Break the clock, then poll until told to stop."""
        broken[0] = True
        began.set()
        ctx.progress("on it")  # the driver looks at the time
        while not ctx.abort.aborted and not ended.wait(0.001):
            pass
        ended.set()
        return "stopped"

    async def until_begun(request: ModelRequest) -> None:
        if eager:
            assert await anyio.to_thread.run_sync(began.wait, 20)

    model = ScriptedModel([[call("poll"), BlockEnd(), until_begun, "text"]])
    clock = Clock(autojump_threshold=None)
    config = Config(model=model, eager_tools=eager, clock=clock, deadline=60, abort_grace=0.05)
    try:
        with pytest.raises(ZeroDivisionError):
            await collect(agent_loop(["go"], Context(tools=[poll]), config))
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


@pytest.mark.parametrize("eager", [False, True])
async def test_g24_no_tool_begins_after_another_has_closed_the_run(eager: bool) -> None:
    """Both were let go in one turn: the second looks before its first line, as it does for a stop."""
    runs: list[Run] = []
    began: list[str] = []

    @tool(replay="safe")
    async def work() -> str:
        """Work."""
        began.append("work")
        runs[0]._core.close()  # what `aclose` does first
        return "ok"

    model = ScriptedModel([[call("work"), call("work"), BlockEnd(), *([STALL] if eager else [])]])
    config = Config(model=model, eager_tools=eager, run_ahead=64)
    runs.append(agent_loop(["go"], Context(tools=[work]), config))
    with anyio.fail_after(10):
        async for _ in runs[0]:
            pass
    assert began == ["work"]


class Kept:
    """Something of the application's that a tool and a model hold."""


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("how", ["to its end", "left in a reply", "left in a call"])
async def test_a_run_that_is_over_is_freed_at_once(how: str, eager: bool) -> None:
    """No circle of references holds it, its calls and what they hold until the garbage collector comes by."""

    async def play() -> weakref.ref[Kept]:
        kept, count = Kept(), 0

        @tool(replay="safe")
        async def work(ctx: ToolContext) -> str:
            """Work, and say so."""
            ctx.progress(f"{kept}")
            return "done"

        async def model(request: ModelRequest) -> AsyncIterator[Any]:
            nonlocal count
            count += 1
            if count == 1:
                yield ToolCallChunk("{}", id="a", name="work")
                yield ToolCallChunk("{}", id="b", name="work")
            yield f"text {kept}"
            yield Finish("tool_use" if count == 1 else "stop")

        config = Config(model=model, eager_tools=eager, before_tool_call=None if eager else lambda invocation: None)
        run = agent_loop(["go"], Context(tools=[work]), config)
        async for event in run:
            if how == "left in a reply" and isinstance(event, MessageUpdate):
                break
            if how == "left in a call" and isinstance(event, ToolExecutionUpdate):
                break
        await run.aclose()
        return weakref.ref(kept)

    gc.collect()
    gc.disable()
    try:
        gone = await play()
        await wait_all_blocked()
        assert gone() is None
    finally:
        gc.enable()


class _Stuck:
    """A clean-up that never comes back, and what it hears."""

    def __init__(self) -> None:
        self.begun, self.over = anyio.Event(), anyio.Event()

    async def wait(self) -> None:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.over.set()


class _StuckStream:
    """A model's stream whose `aclose` never comes back."""

    def __init__(self, stuck: _Stuck) -> None:
        self.aclose = stuck.wait

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        await anyio.lowlevel.checkpoint()
        return "a"


class _StuckSource:
    """A tool source that never says it is closed."""

    servers = ("s",)

    def __init__(self, stuck: _Stuck) -> None:
        self.close = stuck.wait

    async def connect(self) -> Any:
        return McpConnectEnd("completed", ()), ()

    async def changed(self) -> None:
        return None


@pytest.mark.parametrize("where", ["model", "tool", "source", "nested"])
async def test_g24_a_clean_up_that_never_ends_is_cut_when_the_run_gives_it_up(where: str) -> None:
    """A shield keeps cancellations from it, and on trio one that stayed would outlast the event loop itself."""
    stuck = _Stuck()
    leave_at: dict[str, type] = {
        "model": MessageUpdate, "tool": ToolExecutionUpdate, "source": RequestEnd, "nested": SubagentStarted,
    }  # fmt: skip
    source: Any = _StuckSource(stuck) if where == "source" else None

    @tool
    async def work() -> AsyncIterator[str]:
        """Say more than anybody takes, and never come back from the clean-up."""
        try:
            while True:
                yield "some"
        finally:
            await stuck.wait()

    @tool(name="work")
    async def nested(ctx: ToolContext) -> None:
        """Ask another agent, which never comes back from its clean-up."""
        await ctx.nested(_StuckStream(stuck), "child")

    model: Any = ScriptedModel([[call("work")], "done"])
    config = Config(
        model=(lambda request: _StuckStream(stuck)) if where == "model" else model,
        tool_source=source,
        clock=VirtualClock(),
        abort_grace=0.05,
    )
    run = agent_loop(["go"], Context(tools=[nested if where == "nested" else work]), config)
    with anyio.fail_after(20):
        async for event in run:
            if isinstance(event, leave_at[where]):
                break
        await run.aclose()
        assert stuck.begun.is_set()
        await stuck.over.wait()


@pytest.mark.parametrize("virtual", [True, False])
@pytest.mark.parametrize("where", ["model", "callback", "eager tool"])
async def test_g24_what_hears_its_cancellation_has_ended_also_without_any_grace(
    where: str, virtual: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not given up in the moment in which it is cancelled: its clean-up is waited for, and nothing is logged."""
    abort, log = AbortSignal(), list[str]()

    async def endless(*args: Any) -> None:
        log.append("begun")
        try:
            abort.abort("enough")
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            log.append("ended")

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        yield ToolCallChunk("{}", "c1", "work")
        yield BlockEnd()
        await (endless() if where == "model" else anyio.sleep_forever())

    @tool(replay="safe")
    async def work() -> None:
        """Work."""
        await endless()

    changes: dict[str, Any] = {"clock": VirtualClock()} if virtual else {}
    if where == "callback":
        changes["transform_context"] = endless
    config = Config(model=model, abort=abort, abort_grace=0, eager_tools=where == "eager tool", **changes)
    with anyio.fail_after(10):
        events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    assert isinstance(events[-1], AgentEnd) and events[-1].error_code == "user_abort"
    assert log == ["begun", "ended"]
    assert caplog.records == []


class _Deaf:
    """Work that hears no cancellation until it is let go, and a clean-up that comes back when it is."""

    servers = ("s",)

    def __init__(self) -> None:
        self.begun, self.go, self.over, self.end = anyio.Event(), anyio.Event(), anyio.Event(), anyio.Event()

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        await self.connect()
        raise StopAsyncIteration

    async def connect(self) -> Any:
        self.begun.set()
        while not self.go.is_set():
            with contextlib.suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
                await self.go.wait()
        return McpConnectEnd("completed", ()), ()

    async def changed(self) -> None:
        return None

    async def aclose(self) -> None:
        try:
            await self.end.wait()
        finally:
            self.over.set()

    close = aclose


@pytest.mark.parametrize("where", ["model", "source"])
async def test_g24_a_clean_up_that_begins_after_its_work_was_given_up_is_cut_as_well(where: str) -> None:
    """Nobody waits for it any more: behind its shield it would outlast the event loop, which waits for it at its end."""
    deaf = _Deaf()
    source: Any = deaf if where == "source" else None
    model: Any = ScriptedModel(["done"]) if where == "source" else lambda request: deaf
    run = agent_loop(["go"], Context(), Config(model=model, tool_source=source, clock=VirtualClock(), abort_grace=0.05))
    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(collect, run)
                await deaf.begun.wait()
                await run.aclose()
            assert not deaf.over.is_set(), "its clean-up has not begun: it still hears nothing"
            deaf.go.set()
            await deaf.over.wait()
            assert not deaf.end.is_set(), "it was cut, nobody let it go"
    finally:
        deaf.go.set()
        deaf.end.set()
        await wait_all_blocked()


async def test_g21_a_tool_that_yields_results_without_end_hears_an_abort() -> None:
    """Nothing is told of such a piece, so nothing throttles it; each still lets a cancellation in."""
    abort, yielded = AbortSignal(), list[int]()

    @tool
    async def restless() -> AsyncIterator[ToolResult]:
        """Think better of it, again and again."""
        abort.abort("enough")
        for number in range(10_000):
            yielded.append(number)
            yield ToolResult(f"{number}")

    config = Config(model=ScriptedModel([[call("restless")]]), abort=abort)
    events = await collect(agent_loop(["go"], Context(tools=[restless]), config))
    assert isinstance(events[-1], AgentEnd) and events[-1].error_code == "user_abort"
    assert len(yielded) < 100


@pytest.mark.parametrize("way", ["yields", "awaits", "child"])
async def test_g24_a_tool_that_reports_without_end_is_stopped_when_the_consumer_leaves(way: str) -> None:
    """Nothing throttles it any more then; each report still lets the cancellation in."""
    over = anyio.Event()

    @tool
    async def yields() -> AsyncIterator[str]:
        """Say more than anybody takes."""
        try:
            while True:
                yield "some"
        finally:
            over.set()

    @tool
    async def awaits(ctx: ToolContext) -> str:
        """Say more than anybody takes."""
        try:
            while True:
                await ctx.output("some")
        finally:
            over.set()

    async def inputs() -> AsyncIterator[Event]:
        yield AgentStart()
        yield TurnStart(0)
        while True:
            yield MessageStart(user("more"))
            yield MessageEnd(user("more"))

    @tool
    async def child(ctx: ToolContext) -> str:
        """Tell of a nested run without end."""
        try:
            await ctx.nested(inputs(), "nested")
        finally:
            over.set()
        return ""

    config = Config(model=ScriptedModel([[call(way)], "done"]), abort_grace=0.05)
    run = agent_loop(["go"], Context(tools=[yields, awaits, child]), config)
    with anyio.fail_after(20):
        async for event in run:
            if isinstance(event, ToolExecutionUpdate | ChildEvent):
                break
        assert not over.is_set()
        await run.aclose()
    assert over.is_set(), "the close waits for its clean-up"


async def test_g24_a_model_that_never_waits_is_stopped_when_another_task_closes_the_run() -> None:
    """Although the consumer waits for more just then, and an abort signal of the caller's says nothing."""
    held: list[Any] = []
    over = anyio.Event()

    async def model(request: ModelRequest) -> AsyncIterator[str]:
        try:
            for number in itertools.count():
                if number == 20:
                    held[1].start_soon(held[0].aclose)
                yield "a"
        finally:
            over.set()

    run = agent_loop(["go"], Context(), Config(model=model, abort=AbortSignal(), abort_grace=0.05))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            held += [run, group]
            kinds = [type(event) async for event in run]
    assert over.is_set(), "the close waits for the stream's clean-up"
    assert AgentEnd not in kinds, "a run that is left has no end"


async def test_g19_a_tool_that_was_given_up_and_reports_without_end_holds_nobody_up() -> None:
    """Its reports are dropped, and each lets the others have their turn: the run goes on to its end."""
    told, over = anyio.Event(), anyio.Event()

    @tool(timeout=1)
    async def reports(ctx: ToolContext) -> str:
        """Say more than anybody takes, whatever comes."""
        while not told.is_set():
            try:
                await ctx.output("some")
            except BaseException:
                pass
        over.set()
        return ""

    clock = VirtualClock(autojump_threshold=None)
    config = Config(model=ScriptedModel([[call("reports")], "done"], clock=clock), clock=clock, abort_grace=0.05)
    events: list[Event] = []
    with anyio.fail_after(20):
        async for event in agent_loop(["go"], Context(tools=[reports]), config):
            events.append(event)
            if isinstance(event, ToolExecutionUpdate):
                clock.jump(1)
        told.set()
        await over.wait()
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (end.error_code, events[-1].stop_reason) == ("not_stopped", "completed")  # type: ignore[union-attr]
