"""Eager tools: the work begins while the reply streams, and nothing else about a run changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    AssistantMessage,
    Block,
    ChildEvent,
    CompactionState,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    ModelError,
    RequestBegin,
    RequestEnd,
    Retry,
    SubagentStarted,
    Tool,
    ToolCallEnd,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolResult,
    ToolResultMessage,
    TurnEnd,
    UserMessage,
    agent_loop,
    tool,
    user,
)
from agentloop.grammar import check
from agentloop.messages import InlineData, ToolCall, text_of
from agentloop.model import BlockChunk, BlockEnd, Finish
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, collect, sleep, wait_all_blocked
from tests.deaf import deaf_until
from tests.leftovers import nothing_left

from .world import Plan, World, plans

pytestmark = pytest.mark.anyio

SAFE = ("ok", "slow", "boom", "stream", "report", "nothing", "odd", "alone", "wait", "polite")


def tools_of(world: World, safe: frozenset[str]) -> list[Tool]:
    """The world's tools, those named marked as safe to run again."""
    return [attrs.evolve(one, replay="safe") if one.name in safe else one for one in world.tools()]


async def play(world: World, safe: frozenset[str], eager: bool) -> list[Event]:
    """The world's run, both levels of the grammar checked."""
    world.start(Context("be brief", tools=tools_of(world, safe)), eager_tools=eager)
    while await world.step() is not None:
        pass
    check(world.events)
    return world.events


def without_timing(events: list[Event]) -> tuple[Any, ...]:
    """What does not depend on when the calls of a batch end: everything in order but the calls; the starts in order; the
    result messages in order; each call's output and end, by id. Progress is left out: over its bound it is replaced."""
    rest: list[Event] = []
    starts, results, calls = [], [], {}
    output: dict[str, str] = {}
    for event in events:
        match event:
            case ToolExecutionStart():
                starts.append(event)
            case ToolExecutionUpdate():
                output[event.tool_call_id] = output.get(event.tool_call_id, "") + (event.delta or "")
            case ToolExecutionEnd():
                calls[event.tool_call_id] = event
            case MessageStart(message=ToolResultMessage()) | MessageEnd(message=ToolResultMessage()):
                results.append(event)
            case _:
                rest.append(event)
    return rest, starts, results, calls, {id: text for id, text in output.items() if text}


@given(
    plan=plans(abort_after=None, deadline=None, steering=(), wait_for_steering=False, at_once=False),
    safe=st.frozensets(st.sampled_from(SAFE)),
)
async def test_eager_tools_change_no_event(plan: Plan, safe: frozenset[str]) -> None:
    """Whatever the script and its timing, the run says the same with and without, up to when calls end."""
    on, off = World(plan), World(plan)
    assert without_timing(await play(on, safe, True)) == without_timing(await play(off, safe, False))


@given(plan=plans(), safe=st.frozensets(st.sampled_from(SAFE)))
async def test_only_safe_tools_begin_early_and_only_when_the_consumer_came_back(
    plan: Plan, safe: frozenset[str]
) -> None:
    """Also with aborts, deadlines and steering: a tool without its start is a safe one, nobody had to be asked, its
    `ToolCallEnd` was consumed and the consumer had come back. The cap holds, an exclusive call is alone, nothing is left."""
    async with nothing_left():
        world = World(plan)
        await play(world, safe, True)
    starts = {event.tool_call_id: at for at, event in enumerate(world.events) if isinstance(event, ToolExecutionStart)}
    for kind, id, seen, waiting in world.effects:
        if kind != "tool" or starts.get(id, len(world.events)) < seen:
            continue
        assert not (plan.asks or plan.before or plan.sequential)
        ends = {d.block.id: (at, d.block) for at, d in deltas(world.events[:seen]) if isinstance(d, ToolCallEnd)}
        assert id in ends, "a tool began before its call was complete for the consumer"
        at, block = ends[id]
        assert block.name in safe - {"alone", "wait"}
        assert seen > at + 1 or waiting
    assert world.overlap <= (1 if plan.sequential else plan.cap or world.overlap)
    assert not world.alone_broken
    begun = [id for kind, id, _, _ in world.effects if kind == "tool"]
    assert sorted(world.cleaned) == sorted(begun)


def said(event: Event) -> str:
    """The text of a call's end, of its result message, or of its progress."""
    match event:
        case ToolExecutionEnd(result=result) | ToolExecutionUpdate(partial_result=ToolResult() as result):
            return text_of(result.content)
        case MessageEnd(message=ToolResultMessage(content=content)):
            return text_of(content)
    raise AssertionError(event)


def deltas(events: list[Event]) -> list[tuple[int, Any]]:
    return [(at, event.delta) for at, event in enumerate(events) if isinstance(event, MessageUpdate)]


@given(plan=plans(abort_after=None), safe=st.frozensets(st.sampled_from(SAFE)), stop=st.integers(0, 60))
async def test_leaving_at_any_event_leaves_nothing(plan: Plan, safe: frozenset[str], stop: int) -> None:
    """After `aclose`, at whatever event, each tool that began has cleaned up and no task lives."""
    async with nothing_left():
        world = World(plan)
        run = world.start(Context(tools=tools_of(world, safe)), eager_tools=True)
        while len(world.events) < stop and await world.step() is not None:
            pass
        await run.aclose()
        begun = [id for kind, id, _, _ in world.effects if kind == "tool"]
        assert sorted(world.cleaned) == sorted(begun)


# ---------------------------------------------------------------- by hand: a reply that is held open


class Stage:
    """A reply with calls that stays open until everything else waits, and what the tools had noted by then."""

    def __init__(self, *calls: Any, end: Any = "tool_use") -> None:
        self.early: list[Any] = []
        self.noted: list[Any] = []
        self.events: list[Event] = []
        steps = [step for one in calls for step in (one, BlockEnd())]
        last = end if end is STALL else Finish(end)
        self.clock = VirtualClock()
        self.model = ScriptedModel([[*steps, self._look, last]], clock=self.clock, past_end="stop")

    async def _look(self, request: Any) -> None:
        await wait_all_blocked()
        self.early += self.noted

    def tool(self, name: str = "look", **fields: Any) -> Tool:
        """A tool that notes that it ran."""

        async def run(arguments: dict[str, Any]) -> str:
            self.noted.append(name)
            return f"{name} saw it"

        fields = {"replay": "safe", **fields}
        return Tool(name, "Look.", {"type": "object"}, run, **fields)

    async def play(self, *tools: Tool, **config: Any) -> None:
        """Play the run."""
        values = {"model": self.model, "eager_tools": True, "clock": self.clock, **config}
        async for event in agent_loop(["go"], Context(tools=tools), Config(**values)):
            self.events.append(event)
        check(self.events)

    def of(self, *kinds: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


async def test_a_safe_call_begins_while_its_reply_streams() -> None:
    """It has run before the reply ends; its events come after `RequestEnd`, as ever."""
    stage = Stage(call("look", id="a"))
    await stage.play(stage.tool())
    assert stage.early == ["look"] == stage.noted
    kinds = [type(event) for event in stage.events]
    assert kinds.index(ToolExecutionStart) > kinds.index(RequestEnd)
    (end,) = stage.of(ToolExecutionEnd)
    assert (end.is_error, said(end)) == (False, "look saw it")


async def test_it_is_off_by_default() -> None:
    """Without the switch nothing begins before the reply is committed."""
    stage = Stage(call("look"))
    await stage.play(stage.tool(), eager_tools=Config(model=stage.model).eager_tools)
    assert (stage.early, stage.noted) == ([], ["look"])


CANNOT_FIELDS: dict[str, dict[str, Any]] = {
    "not_safe": {"replay": "never"},
    "exclusive": {"exclusive": True},
    "interruptible": {"interruptible": True},
}


@pytest.mark.parametrize("fields", CANNOT_FIELDS.values(), ids=list(CANNOT_FIELDS))
async def test_such_tools_wait_and_so_does_what_comes_behind_them(fields: dict[str, Any]) -> None:
    """A tool that is not safe, exclusive, or interruptible begins with its start; a safe call behind it as well."""
    stage = Stage(call("look"), call("other"), call("look"))
    await stage.play(stage.tool(), stage.tool("other", **fields))
    assert stage.early == ["look"]
    assert sorted(stage.noted) == ["look", "look", "other"]


def _approve(request: Any) -> str:
    return "allow"


def _approve_by_policy(request: Any) -> str:
    raise AssertionError("the policy has decided")


_approve_by_policy.policy = lambda invocation: "allow"  # type: ignore[attr-defined]

CANNOT_CONFIG: dict[str, dict[str, Any]] = {
    "approve": {"approve": _approve},
    "approve_at_once": {"approve": _approve, "approval_order": "all_at_once"},
    "policy": {"approve": _approve_by_policy},
    "before_tool_call": {"before_tool_call": lambda invocation: None},
    "pre_tool_use": {"hooks": [Hooks("guard", pre_tool_use=lambda invocation: HookAnswer("allow"))]},
    "sequential": {"tool_execution": "sequential"},
}


@pytest.mark.parametrize("config", CANNOT_CONFIG.values(), ids=list(CANNOT_CONFIG))
async def test_nothing_begins_early_where_something_is_asked_first(config: dict[str, Any]) -> None:
    """An approval (also one that a policy gives), a hook, `before_tool_call`, or one call after another: all as without."""
    stage = Stage(call("look"), call("look"))
    await stage.play(stage.tool(), **config)
    assert (stage.early, stage.noted) == ([], ["look", "look"])


async def test_nothing_begins_in_a_compaction() -> None:
    """Its calls never run, so none of them begins while the summary streams."""
    noted: list[str] = []

    class Summarise:
        """A compaction that is due once, after the last turn."""

        mode = "summarize"

        def due(self, state: CompactionState) -> str | None:
            return "turns" if state.at_end and state.turns == 1 else None

        def prompt(self, attempt: int, problem: str | None) -> list[UserMessage]:
            return [user("Summarise.")]

        def accept(self, reply: AssistantMessage) -> str:
            return reply.text

        def summary(self, text: str) -> UserMessage:
            return user(text)

    @tool(replay="safe")
    async def look() -> str:
        """Look."""
        noted.append("look")
        return "ok"

    async def pause(request: Any) -> None:
        await wait_all_blocked()

    model = ScriptedModel(["answer", [call("look"), BlockEnd(), pause], "short"])
    config = Config(model=model, eager_tools=True, compaction=Summarise(), clock=VirtualClock())
    events = await collect(agent_loop(["go"], Context(tools=[look]), config))
    check(events)
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["cut_off"]
    assert noted == []


@pytest.mark.parametrize("verdict", ["deny", "forbidden"])
async def test_what_is_denied_never_runs(verdict: str) -> None:
    """Approvals hold without exception: a call that is denied, blocked or vetoed by a hook leaves no trace."""
    veto = Hooks("guard", pre_tool_use=lambda invocation: HookAnswer("deny", "no"))
    for config in (
        {"approve": lambda request: verdict},
        {"before_tool_call": lambda invocation: Block("no")},
        {"hooks": [veto]},
    ):
        stage = Stage(call("look"), call("look"))
        await stage.play(stage.tool(), **config)
        assert stage.noted == []


async def test_hooks_that_do_not_stand_before_calls_hold_up_nothing() -> None:
    """`user_prompt`, `stop` and `after_tool_call` come at their own places; the last one sees the early result, later."""
    asked: list[str] = []
    stage = Stage(call("look"))

    def after(invocation: Any, result: ToolResult) -> ToolResult:
        asked.append(type(stage.events[-1]).__name__)
        return ToolResult("looked over")

    hooks = Hooks("quiet", user_prompt=lambda message: None, stop=lambda end: None)
    await stage.play(stage.tool(), hooks=[hooks], after_tool_call=after)
    assert stage.early == ["look"]
    assert asked == ["ToolExecutionStart"]
    assert said(stage.of(ToolExecutionEnd)[0]) == "looked over"


async def test_unknown_and_invalid_calls_hold_up_nothing() -> None:
    """They never run; what comes behind them begins."""
    stage = Stage(call("nobody"), call("strict", {"n": "x"}), call("look"))

    @tool(replay="safe")
    async def strict(n: int) -> str:
        """Take a number."""
        raise AssertionError("its arguments are wrong")

    await stage.play(stage.tool(), strict)
    assert stage.early == ["look"]
    assert [end.error_code for end in stage.of(ToolExecutionEnd)] == ["unknown_tool", "invalid_arguments", None]


async def test_the_write_ahead_log_has_the_call_before_a_safe_tool_runs() -> None:
    """What is weaker than without: no start on disk, yet the tool ran. What stays: its complete call is on disk, and while the
    consumer is busy (storing that, say) nothing begins."""
    stored: list[Event] = []
    witnessed: list[tuple[bool, bool]] = []
    gate = anyio.Event()

    @tool(replay="safe")
    async def look(ctx: ToolContext) -> str:
        """Look at the log."""
        known = any(isinstance(delta, ToolCallEnd) for _, delta in deltas(stored))
        witnessed.append((known, any(isinstance(event, ToolExecutionStart) for event in stored)))
        gate.set()
        return "ok"

    model = ScriptedModel([[call("look"), BlockEnd(), gate], "done"])
    async for event in agent_loop(["go"], Context(tools=[look]), Config(model=model, eager_tools=True)):
        await wait_all_blocked()  # whatever could run ahead has run
        stored.append(event)
    assert witnessed == [(True, False)]


async def test_the_cap_is_kept_while_the_reply_streams() -> None:
    """With a cap of 2 two calls run, and the third begins when one of them is over; none waits for the batch."""
    running: list[int] = []
    most = [0]
    clock = VirtualClock()

    @tool(replay="safe")
    async def work(ctx: ToolContext, n: int) -> int:
        """Work for a second, and report on the way."""
        running.append(n)
        most[0] = max(most[0], len(running))
        await clock.sleep(0.75)
        ctx.progress("soon")
        await clock.sleep(0.25)
        running.remove(n)
        return n

    model = ScriptedModel([[*[call("work", {"n": n}) for n in range(8)], BlockEnd(), sleep(2.5)], "done"], clock=clock)
    config = Config(model=model, eager_tools=True, max_parallel_tools=2, clock=clock)
    events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    check(events)
    assert most == [2]
    assert clock.now() == 4.0  # two at a time from the first second on, beside a reply of 2.5 s
    results = [said(e) for e in events if isinstance(e, MessageEnd) and isinstance(e.message, ToolResultMessage)]
    assert results == ["0", "1", "2", "3", "4", "5", "6", "7"]


# ---------------------------------------------------------------- by hand: the reply is not kept


async def test_a_retry_asks_again_and_runs_again() -> None:
    """The early result of attempt 1 is dropped and its tool has ended before attempt 2 begins; one start, one result."""
    log: list[str] = []
    clock = VirtualClock()

    @tool(replay="safe")
    async def look() -> str:
        """Look, for long the first time."""
        log.append("begin")
        try:
            if log.count("begin") == 1:
                await anyio.sleep_forever()
        finally:
            log.append("end")
        return f"look {log.count('begin')}"

    fail = [call("look", id="a"), BlockEnd(), sleep(1), ModelError("network", "gone", retryable=True)]
    model = ScriptedModel([fail, [call("look", id="a"), BlockEnd(), sleep(1)], "done"], clock=clock)
    events = []
    config = Config(model=model, eager_tools=True, clock=clock, retry=Retry((1.0,)))
    async for event in agent_loop(["go"], Context(tools=[look]), config):
        events.append(event)
        if isinstance(event, RequestBegin):
            log.append(f"attempt {event.attempt}")
    check(events)
    assert log == ["attempt 1", "begin", "end", "attempt 2", "begin", "end", "attempt 1"]
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert said(end) == "look 2"


@pytest.mark.parametrize("finish", ["length", "refusal", "content_filter"])
async def test_calls_of_a_reply_that_is_cut_off_are_answered_as_ever(finish: str) -> None:
    """What began is stopped, before its turn ends, and its result dropped: the call's end says that it was not run."""
    ended: list[int] = []
    stage = Stage(call("look"), end=finish)

    @tool(replay="safe")
    async def look() -> str:
        """Look for ever."""
        stage.noted.append("look")
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(len(stage.of(TurnEnd)))
        return "never"

    await stage.play(look, max_cut_replies=1)
    assert (stage.early, stage.noted, ended) == (["look"], ["look"], [0])
    (end,) = stage.of(ToolExecutionEnd)
    assert end.error_code == "cut_off"
    assert said(end).startswith("Not run: ")


@pytest.mark.parametrize("polite", [True, False])
async def test_an_abort_ends_what_began_and_nobody_hears_of_it(polite: bool) -> None:
    """Also of a tool that looks at its signal: it hears of the abort, and its clean-up is over before the run ends."""
    signal = AbortSignal()
    log: list[str] = []

    @tool(replay="safe")
    async def look(ctx: ToolContext) -> str:
        """Look until told to stop."""
        try:
            log.append("begin")
            signal.abort("enough")
            if polite:
                await ctx.abort.wait()
                log.append("heard")
            await anyio.sleep_forever()
        finally:
            log.append("end")
        return "never"

    stage = Stage(call("look"), call("look"), end=STALL)
    async with nothing_left():
        events = await collect(
            agent_loop(["go"], Context(tools=[look]), Config(model=stage.model, eager_tools=True, abort=signal))
        )
        assert log[0] == "begin"
        assert log[-1] == "end"
        assert log.count("begin") == 1
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert (end.stop_reason, end.error_code) == ("aborted", "user_abort")
    ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert [event.error_code for event in ends] == ["aborted", "aborted"]
    assert all(said(event) == "Not run: enough" for event in ends)


async def test_a_deadline_ends_what_began() -> None:
    """The same with the clock: nothing of the call but its refusal."""
    stage = Stage(call("look"), end=STALL)
    ended: list[float] = []

    @tool(replay="safe")
    async def look() -> str:
        """Look for an hour."""
        try:
            await stage.clock.sleep(3600)
        finally:
            ended.append(stage.clock.now())
        return "never"

    config = Config(model=stage.model, eager_tools=True, clock=stage.clock, deadline=5.0)
    events = await collect(agent_loop(["go"], Context(tools=[look]), config))
    check(events)
    assert ended == [5.0]
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["aborted"]


async def test_the_time_out_counts_from_when_the_tool_began() -> None:
    """It is stopped in time although its reply still streams, and the call's end says so when it comes."""
    clock = VirtualClock()
    ended: list[float] = []

    @tool(replay="safe", timeout=2)
    async def look() -> str:
        """Look for an hour."""
        try:
            await clock.sleep(3600)
        finally:
            ended.append(clock.now())
        return "never"

    model = ScriptedModel([[call("look"), BlockEnd(), sleep(10)], "done"], clock=clock)
    events = await collect(
        agent_loop(["go"], Context(tools=[look]), Config(model=model, eager_tools=True, clock=clock))
    )
    check(events)
    assert (ended, clock.now()) == ([2.0], 10.0)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (end.error_code, said(end)) == ("tool_timeout", "The tool timed out after 2 s.")


async def test_the_time_out_holds_while_the_consumer_is_away() -> None:
    """Between the reply's end and the call's start the consumer may take its time: the tool does not run on."""
    clock = VirtualClock()
    ended: list[float] = []

    @tool(replay="safe", timeout=2)
    async def look() -> str:
        """Look for an hour."""
        try:
            await clock.sleep(3600)
        finally:
            ended.append(clock.now())
        return "never"

    model = ScriptedModel([[call("look"), BlockEnd(), sleep(1)], "done"], clock=clock)
    events = []
    async for event in agent_loop(["go"], Context(tools=[look]), Config(model=model, eager_tools=True, clock=clock)):
        events.append(event)
        if isinstance(event, ToolExecutionStart):
            await clock.sleep(60)
            assert ended == [2.0]
    check(events)
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["tool_timeout"]


@pytest.mark.parametrize("ending", ["committed", "fails at once", "fails later"])
async def test_a_tool_that_does_not_stop_is_given_up(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its reply fails, or its time is up: the run goes on within the bound, and says once in the log, before the call is
    answered, what is left to itself. One that was given up is not waited for again, and what it returns is dropped."""
    clock = VirtualClock()
    release = anyio.Event()

    @tool(replay="safe", timeout=1)
    async def deaf() -> str:
        """Ignore everything."""
        await deaf_until(release)
        return "too late"

    def let_go(request: Any) -> None:
        release.set()

    error = ModelError("rejected", "no")
    steps = {"committed": [sleep(8), let_go, sleep(1)], "fails at once": [error], "fails later": [sleep(9), error]}[
        ending
    ]
    model = ScriptedModel([[call("deaf"), BlockEnd(), sleep(0.5), *steps], "done"], clock=clock)
    config = Config(model=model, eager_tools=True, clock=clock)
    events: list[Event] = []
    warned: list[list[str]] = []
    with caplog.at_level(logging.WARNING, "agentloop"):
        async for event in agent_loop(["go"], Context(tools=[deaf]), config):
            events.append(event)
            if isinstance(event, ToolExecutionEnd):
                warned.append([record.getMessage() for record in caplog.records if record.levelname == "WARNING"])
    release.set()
    await wait_all_blocked()
    check(events)
    assert warned == [["tool deaf did not stop within its bound and is left to itself"]]
    assert clock.now() == (0.5 + config.abort_grace if ending == "fails at once" else 9.5)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert end.error_code == ("not_stopped" if ending == "committed" else "cut_off")


async def test_a_sync_tool_hears_that_its_reply_failed() -> None:
    """A thread cannot be cancelled: it has the grace to stop by itself, and has stopped before the next attempt."""
    log: list[str] = []
    begun = threading.Event()

    @tool(replay="safe")
    def look(ctx: ToolContext) -> str:
        """Look until told to stop, the first time."""
        if begun.is_set():
            return "again"
        begun.set()
        while not ctx.abort.aborted:
            ctx.output("x")
            begun.wait(0.001)
        log.append("stopped")
        return "first"

    async def until_begun(request: Any) -> None:
        await anyio.to_thread.run_sync(begun.wait)

    fail = [call("look"), BlockEnd(), until_begun, ModelError("network", "gone", retryable=True)]
    model = ScriptedModel([fail, [call("look"), BlockEnd()], "done"])
    events = []
    config = Config(model=model, eager_tools=True, retry=Retry((0.0,)), abort_grace=5.0)
    async for event in agent_loop(["go"], Context(tools=[look]), config):
        events.append(event)
        if isinstance(event, RequestBegin):
            log.append(f"attempt {event.attempt}")
    check(events)
    assert log == ["attempt 1", "stopped", "attempt 2", "attempt 1"]
    assert [said(e) for e in events if isinstance(e, ToolExecutionEnd)] == ["again"]


async def test_an_order_to_leave_in_an_early_tool_leaves_by_the_step() -> None:
    """`SystemExit` out of a tool that began early is raised by the consumer's step, and closes the run."""
    stage = Stage(call("look"), end=STALL)

    @tool(replay="safe")
    async def look() -> str:
        """Leave."""
        raise SystemExit(3)

    async with nothing_left():
        with pytest.raises(SystemExit):
            await collect(agent_loop(["go"], Context(tools=[look]), Config(model=stage.model, eager_tools=True)))


# ---------------------------------------------------------------- by hand: reports


@pytest.mark.parametrize("ahead", [0, 3, 64])
async def test_what_a_call_reports_early_is_held_within_its_bound(ahead: int) -> None:
    """Progress over the bound replaces the oldest, output waits for room; both come between the start and the end."""
    stage = Stage(call("look"))
    given: list[int] = []

    @tool(replay="safe")
    async def look(ctx: ToolContext) -> str:
        """Say a lot."""
        for n in range(200):
            ctx.progress(f"step {n}")
        for n in range(200):
            await ctx.output(f"{n} ")
            given.append(n)
        return ""

    stage.noted = given
    await stage.play(look, run_ahead=ahead)
    bound = max(ahead, 8)
    assert len(stage.early) <= bound
    assert len(given) == 200
    updates = stage.of(ToolExecutionUpdate)
    first, last = stage.events.index(updates[0]), stage.events.index(updates[-1])
    kinds = [type(event) for event in stage.events]
    assert kinds.index(ToolExecutionStart) < first
    assert last < kinds.index(ToolExecutionEnd)
    progress = [said(event) for event in updates if event.partial_result is not None]
    assert progress == [f"step {n}" for n in range(200 - len(progress), 200)]
    assert len(progress) <= bound
    assert "".join(event.delta or "" for event in updates) == "".join(f"{n} " for n in range(200))


async def test_a_nested_run_begins_with_the_calls_start() -> None:
    """A safe tool may begin early; the run inside it waits, so that none of its effects comes before its events."""
    stage = Stage(call("delegate"))
    requests: list[int] = []

    async def child(request: Any) -> AsyncIterator[Any]:
        requests.append(len(stage.events))
        yield "inner"
        yield Finish("stop")

    @tool(replay="safe")
    async def delegate(ctx: ToolContext) -> str:
        """Ask another agent."""
        stage.noted.append("begun")
        await ctx.nested(agent_loop(["go"], Context(), Config(model=child)), "child")
        return "delegated"

    await stage.play(delegate)
    assert stage.early == ["begun"]
    started = [type(event) for event in stage.events].index(SubagentStarted)
    assert isinstance(stage.events[started - 1], ToolExecutionStart)
    assert requests[0] >= started
    assert len(stage.of(ChildEvent)) > 5


async def test_a_nested_run_of_a_call_that_was_let_go_waits_for_no_start() -> None:
    """Its tool heard a cancellation and goes on nevertheless: there will be no start, so its reports are dropped at once."""
    began, over, tried = anyio.Event(), anyio.Event(), list[str]()

    @tool(replay="safe")
    async def stubborn(ctx: ToolContext) -> str:
        """Ask another agent, and again."""
        for _ in range(2):
            began.set()
            try:
                await ctx.nested(agent_loop(["go"], Context(), Config(model=ScriptedModel(["fine"]))), "child")
                tried.append("ended")
            except anyio.get_cancelled_exc_class():
                tried.append("cancelled")
        over.set()
        return "late"

    async def model(request: Any) -> AsyncIterator[Any]:
        if tried:
            yield "done"
            yield Finish("stop")
            return
        yield BlockChunk(ToolCall("c1", "stubborn"))
        await began.wait()
        await wait_all_blocked()
        raise ModelError("network", "gone")

    config = Config(model=model, eager_tools=True, retry=Retry(waits=(0,)), abort_grace=0.05)
    with anyio.fail_after(10):
        events = await collect(agent_loop(["go"], Context(tools=[stubborn]), config))
        await over.wait()
    assert [event.status for event in events if isinstance(event, RequestEnd)] == ["retryable", "completed"]
    assert tried[0] == "cancelled"


async def test_a_whole_call_and_one_that_waits_for_its_turn_begin_too() -> None:
    """A call that does not stream (`BlockChunk`) is complete at once."""
    stage = Stage(BlockChunk(ToolCall("a", "look", "{}")))
    await stage.play(stage.tool())
    assert stage.early == ["look"]


async def test_nothing_begins_early_while_the_consumer_is_busy() -> None:
    """The driver has its turn (another call ends), but the consumer is still at the event that completes the second call."""

    async def pause(request: Any) -> None:
        await wait_all_blocked()

    stage = Stage(call("first"), pause, call("look"))
    gate = anyio.Event()

    @tool(replay="safe")
    async def first() -> str:
        """End when the consumer says so."""
        stage.noted.append("first")
        await gate.wait()
        return "ok"

    config = Config(model=stage.model, eager_tools=True, run_ahead=1)
    async for event in agent_loop(["go"], Context(tools=[first, stage.tool()]), config):
        if isinstance(event, MessageUpdate) and isinstance(event.delta, ToolCallEnd):
            await wait_all_blocked()
            if event.delta.block.name == "look":
                gate.set()
                await wait_all_blocked()
                assert stage.noted == ["first"]
    assert stage.early == ["first", "look"]


@pytest.mark.parametrize(("eager", "told"), [(True, False), (True, True), (False, True)])
async def test_a_nested_runs_time_to_close_is_the_runs_when_the_call_is_told(eager: bool, told: bool) -> None:
    """As long as its start is not told the nested run has not begun, and the run closes without its time."""
    stage = Stage(call("delegate"))
    bounds: list[float] = []

    async def nothing() -> AsyncIterator[Event]:
        """A nested run without an event."""
        return
        yield

    @tool(replay="safe")
    async def delegate(ctx: ToolContext) -> str:
        """Ask another agent."""
        await ctx.nested(nothing(), "child", closing_bound=0.5)
        return "delegated"

    run = agent_loop(["go"], Context(tools=[delegate]), Config(model=stage.model, eager_tools=eager))
    async for event in run:
        if isinstance(event, SubagentStarted if told else RequestEnd):
            bounds.append(run._core.closing_bound)
    assert bounds[0] == (0.5 if told else 0.0)


@pytest.mark.parametrize("left", [True, False])
async def test_output_in_a_clean_up_waits_for_nobody(left: bool, caplog: pytest.LogCaptureFixture) -> None:
    """What the call reported fills its bound when the consumer leaves, or its reply fails: its last words, under a shield,
    find nobody who would make room."""
    log: list[str] = []
    began = anyio.Event()

    @tool(replay="safe")
    async def look(ctx: ToolContext) -> str:
        """Say a lot, and a word at the end."""
        try:
            ctx.output("a")
            began.set()
            await ctx.output("b")
        finally:
            with anyio.CancelScope(shield=True):
                await ctx.output("bye")
            log.append("ended")
        return "never"

    steps = [STALL] if left else [began, ModelError("rejected", "no")]
    model = ScriptedModel([[call("look"), BlockEnd(), *steps]])
    async with nothing_left():
        run = agent_loop(["go"], Context(tools=[look]), Config(model=model, eager_tools=True, run_ahead=1))

        async def consume() -> None:
            async for _ in run:
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await began.wait()
            if left:
                await run.aclose()
    assert log == ["ended"]
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_an_abort_is_heard_while_the_models_stream_still_closes() -> None:
    """What began is told to stop at the abort, not when the attempt is over."""
    signal, clock = AbortSignal(), VirtualClock()
    ended: list[float] = []

    async def slow_to_close(request: Any) -> AsyncIterator[Any]:
        try:
            await clock.sleep(1)
            signal.abort("enough")
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await clock.sleep(2)
        yield "never"

    @tool(replay="safe")
    async def look() -> str:
        """Look for ever."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(clock.now())
        return "never"

    model = ScriptedModel([[call("look"), BlockEnd(), slow_to_close]], clock=clock)
    config = Config(model=model, eager_tools=True, clock=clock, abort=signal, abort_grace=5)
    events = await collect(agent_loop(["go"], Context(tools=[look]), config))
    check(events)
    assert (ended, clock.now()) == ([1.0], 3.0)


async def test_what_was_dropped_leaves_no_timer() -> None:
    """The reply fails before the call's time is over: while the next attempt streams nothing sleeps on the clock."""
    clock = VirtualClock(autojump_threshold=None)
    asleep: list[int] = []

    @tool(replay="safe", timeout=5)
    async def look() -> str:
        """Look for ever."""
        await anyio.sleep_forever()
        return "never"

    async def pause(request: Any) -> None:
        await wait_all_blocked()
        asleep.append(clock.asleep)

    fail = [call("look"), BlockEnd(), pause, ModelError("network", "gone", retryable=True)]
    config = Config(
        model=ScriptedModel([fail, [pause, "done"]]),
        eager_tools=True,
        clock=clock,
        retry=Retry((0.0,)),
        idle_timeout=None,
    )
    check(await collect(agent_loop(["go"], Context(tools=[look]), config)))
    assert asleep == [1, 0]


@pytest.mark.parametrize("timeout", [None, 5])
async def test_a_thread_that_does_not_stop_leaves_no_task(
    timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its reply fails, or its time was over before, and it does not listen: the run ends without it, and no task waits
    for it."""
    began, release = threading.Event(), threading.Event()

    @tool(replay="safe", timeout=timeout)
    def deaf() -> str:
        """Wait to be let go."""
        began.set()
        release.wait(20)
        return "too late"

    async def until_begun(request: Any) -> None:
        await anyio.to_thread.run_sync(began.wait)
        while timeout is not None and not caplog.messages:  # until it is given up
            clock.jump(timeout)
            await anyio.lowlevel.checkpoint()

    model = ScriptedModel([[call("deaf"), BlockEnd(), until_begun, ModelError("rejected", "no")]])
    clock = VirtualClock(autojump_threshold=None)
    own: dict[str, Any] = {} if timeout is None else {"clock": clock, "idle_timeout": None}
    config = Config(model=model, eager_tools=True, abort_grace=0.05, **own)
    try:
        async with nothing_left():
            events = await collect(agent_loop(["go"], Context(tools=[deaf]), config))
    finally:
        release.set()
    check(events)
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["cut_off"]


async def test_an_abort_after_the_reply_waits_for_what_began() -> None:
    """The reply is kept and its call has not started: it is refused, and its clean-up is over before the run ends."""
    signal, clock = AbortSignal(), VirtualClock()
    log: list[str] = []

    @tool(replay="safe")
    async def look() -> str:
        """Look for ever, and take a second to stop."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await clock.sleep(1)
            log.append("cleaned up")
        return "never"

    async def pause(request: Any) -> None:
        await wait_all_blocked()

    model = ScriptedModel([[call("look"), BlockEnd(), pause]])
    config = Config(model=model, eager_tools=True, clock=clock, abort=signal, abort_grace=5)
    events: list[Event] = []
    async for event in agent_loop(["go"], Context(tools=[look]), config):
        events.append(event)
        if isinstance(event, RequestEnd):
            signal.abort("enough")
        if isinstance(event, ToolExecutionEnd | AgentEnd):
            log.append(type(event).__name__)
    check(events)
    assert log == ["ToolExecutionEnd", "cleaned up", "AgentEnd"]
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["aborted"]


async def test_steering_is_waited_for_beside_a_call_that_began_early() -> None:
    """The pure wait behind it waits for the cap: it is not started when a message comes meanwhile."""
    began, steered, over = anyio.Event(), anyio.Event(), anyio.Event()
    ran: list[str] = []

    @tool(replay="safe")
    async def look() -> str:
        """Look until the message has been noticed."""
        began.set()
        await over.wait()
        return "seen"

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep."""
        ran.append("nap")
        await anyio.sleep_forever()
        return ""

    model = ScriptedModel([[call("look"), BlockEnd(), began, call("nap")], "done"])
    config = Config(model=model, eager_tools=True, max_parallel_tools=1, wait_for_steering=steered.wait)
    events: list[Event] = []

    async def steer() -> None:
        await wait_all_blocked()  # the early call is told, and the consumer waits for more
        steered.set()
        await wait_all_blocked()
        over.set()

    async with anyio.create_task_group() as group:
        async for event in agent_loop(["go"], Context(tools=[look, nap]), config):
            events.append(event)
            if isinstance(event, ToolExecutionStart) and event.tool_name == "look":
                group.start_soon(steer)
    check(events)
    ends = [(event.tool_name, event.error_code) for event in events if isinstance(event, ToolExecutionEnd)]
    assert (ends, ran) == ([("look", None), ("nap", "aborted")], [])


async def test_a_block_that_is_no_call_begins_nothing() -> None:
    """A block that comes whole, of another kind, is passed on like any."""
    stage = Stage(BlockChunk(InlineData("QUJD", "text/plain")), call("look"))
    await stage.play(stage.tool())
    assert stage.early == ["look"]
