"""G18 to G23: what goes wrong, how it is told, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    Abort,
    AbortSignal,
    AgentEnd,
    AssistantMessage,
    Config,
    Context,
    MessageUpdate,
    ModelError,
    RequestBegin,
    RequestEnd,
    RunError,
    TextDelta,
    ToolExecutionEnd,
    ToolExecutionUpdate,
    ToolResultMessage,
    agent_loop,
    tool,
)
from agentloop.grammar import check
from agentloop.model import Finish
from agentloop.testing import CUT, STALL, ScriptedModel, VirtualClock, call, collect, sleep, wait_all_blocked
from tests.deaf import deaf_until

from .world import Failure, Plan, World, plans, played

pytestmark = pytest.mark.anyio


def end_of(events: list[Any]) -> AgentEnd:
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return end


@given(plan=plans())
async def test_g18_failures_are_events(plan: Plan) -> None:
    """Nothing that a model, tool, hook or callback raises leaves the run; how it failed is told by stable codes."""
    from agentloop import ERROR_CODES

    world = await played(plan)
    for event in world.of(RequestEnd, ToolExecutionEnd, AgentEnd):
        assert event.error_code is None or event.error_code in ERROR_CODES
        status = event.status if isinstance(event, RequestEnd) else event.stop_reason
        assert (event.error_code is None) == (status == "completed")


@pytest.mark.parametrize(
    "where", ["model", "transform_context", "convert_to_llm", "prepare_request", "steering", "finish_turn"]
)
async def test_g18_the_exception_stays_reachable_and_is_logged_once(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`AgentEnd.exception` is the very object; `raise_for_error` raises it; one log record has its traceback."""
    error = Failure("broken")

    def broken(*args: Any) -> Any:
        raise error

    names = {"steering": "get_steering_messages"}
    changes: dict[str, Any] = {names.get(where, where): broken}
    config = Config(**{"model": ScriptedModel(["fine"]), "retry": None, **changes})
    with caplog.at_level(logging.WARNING, logger="agentloop"):
        events = await collect(agent_loop(["go"], Context(), config))
    check(events)
    end = end_of(events)
    assert end.exception is error
    assert end.stop_reason == ("retryable" if where == "model" else "fatal")
    assert end.error_code == ("network" if where == "model" else "callback_failed")
    with pytest.raises(Failure) as caught:
        end.raise_for_error()
    assert caught.value is error
    assert [r.exc_info[1] for r in caplog.records if r.exc_info] == [error]


async def test_g18_an_error_without_exception_raises_run_error() -> None:
    """`raise_for_error` of a run that ended by a limit raises RunError with its code."""
    events = await collect(agent_loop(["go"], Context(), Config(model=ScriptedModel([[call("x")]]), max_turns=1)))
    with pytest.raises(RunError) as caught:
        end_of(events).raise_for_error()
    assert (caught.value.code, caught.value.stop_reason) == ("max_turns", "fatal")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["tool", "model", "hook"])
async def test_g18_keyboard_interrupt_leaves_by_the_step_after_the_run_was_closed(kind: Any, where: str) -> None:
    """It is raised by the step that the consumer awaits; the sibling's clean-up ran before."""
    cleaned = []

    @tool
    async def sibling() -> str:
        """Wait."""
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(True)
        return ""

    @tool
    async def interrupts() -> str:
        """Interrupt."""
        await anyio.lowlevel.checkpoint()
        raise kind

    def model(request: Any) -> Any:
        if where == "model":
            raise kind
        return ScriptedModel([[call("sibling"), call("interrupts")]])(request)

    def before(invocation: Any) -> Any:
        if where == "hook":
            raise kind

    events = []
    with pytest.raises(kind):
        async for event in agent_loop(
            ["go"], Context(tools=[sibling, interrupts]), Config(model=model, before_tool_call=before)
        ):
            events.append(event)
    assert not any(isinstance(event, AgentEnd) for event in events)
    assert cleaned == ([True] if where == "tool" else [])


@pytest.mark.parametrize(
    ("messages", "context", "error"),
    [((), Context(), ValueError), ([3], Context(), TypeError), (["go"], "context", TypeError)],
)
async def test_g18_arguments_that_cannot_be_a_run(messages: Any, context: Any, error: Any) -> None:
    """The first step raises; nothing was asked."""
    model = ScriptedModel(["never"])
    run = agent_loop(messages, context, Config(model=model))
    with pytest.raises(error, match=r"messages|context"):
        await anext(run)
    assert model.asked == 0
    with pytest.raises(StopAsyncIteration):
        await anext(run)


@given(plan=plans(after=None))
async def test_g19_a_result_is_never_empty(plan: Plan) -> None:
    """Every result says something; `[no output]` is no error."""
    world = await played(plan)
    for event in world.of(ToolExecutionEnd):
        text = event.result.text
        assert text.strip() if event.is_error else text
        if text == "[no output]":
            assert not event.is_error
        assert event.is_error == event.result.is_error


CASES: list[tuple[str, str, str, str | None]] = [
    # tool, text, stop_reason, error_code
    ("raises", "exact  text\n", "fatal", "tool_error"),
    ("blank", "Failure", "fatal", "tool_error"),
    ("nothing", "[no output]", "completed", None),
    ("empty", "[no output]", "completed", None),
    ("after_output", "one\ntwo\nbroke", "fatal", "tool_error"),
    ("too_long", "The tool timed out after 1 s.", "fatal", "tool_timeout"),
    ("fine", "fine", "completed", None),
]


async def test_g19_every_temper_of_a_tool_gives_its_result_and_the_next_turn_follows() -> None:
    """Raises, blank, None, empty, after output, hangs: each its defined result; siblings are not touched."""
    clock = VirtualClock()

    @tool
    async def raises() -> str:
        """."""
        raise Failure("exact  text\n")

    @tool
    async def blank() -> str:
        """."""
        raise Failure("  ")

    @tool
    async def nothing() -> None:
        """."""

    @tool
    async def empty() -> str:
        """."""
        return ""

    @tool
    async def after_output() -> Any:
        """."""
        yield "one\n"
        yield "two"
        raise Failure("broke")

    @tool(timeout=1)
    async def too_long() -> str:
        """."""
        await clock.sleep(100)
        return "never"

    @tool
    async def fine() -> str:
        """."""
        await clock.sleep(0.5)
        return "fine"

    tools = [raises, blank, nothing, empty, after_output, too_long, fine]
    model = ScriptedModel([[call(t.name) for t in tools], "done"])
    events = await collect(agent_loop(["go"], Context(tools=tools), Config(model=model, clock=clock)))
    check(events)
    ends = {e.tool_name: e for e in events if isinstance(e, ToolExecutionEnd)}
    assert [
        (n, e.result.text, e.stop_reason, e.error_code) for n, e in ((t.name, ends[t.name]) for t in tools)
    ] == CASES
    streamed = [e.delta for e in events if isinstance(e, ToolExecutionUpdate)]
    assert streamed == ["one\n", "two", "\nbroke"]
    assert end_of(events).stop_reason == "completed"


async def test_g19_a_foreign_cancellation_is_the_tools_own_error(anyio_backend_name: str) -> None:
    """A `CancelledError` that nobody asked for is an error result; the sibling runs on (case C031, A)."""

    @tool
    async def odd() -> str:
        """."""
        raise asyncio.CancelledError

    @tool
    async def ok() -> str:
        """."""
        await anyio.lowlevel.checkpoint()
        return "fine"

    model = ScriptedModel([[call("odd"), call("ok")], "done"])
    events = await collect(agent_loop(["go"], Context(tools=[odd, ok]), Config(model=model)))
    check(events)
    ends = {e.tool_name: e for e in events if isinstance(e, ToolExecutionEnd)}
    assert (ends["odd"].error_code, ends["ok"].result.text) == ("tool_error", "fine")
    assert ends["odd"].result.text.strip()
    assert model.asked == 2


async def test_g19_a_tool_that_ignores_its_cancellation_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """After the time-out and two graces it is left to itself: `not_stopped`, its late value dropped, the run goes on."""
    world = World(Plan(replies=([call("deaf", id="d")], "done"), tool_timeout=1.0, deaf=True))
    with caplog.at_level(logging.WARNING, logger="agentloop"):
        await world.play()
    end = world.of(ToolExecutionEnd)[0]
    assert (end.error_code, end.stop_reason, end.is_error) == ("not_stopped", "fatal", True)
    assert "did not stop" in end.result.text
    assert world.end.stop_reason == "completed"
    assert any("did not stop" in record.getMessage() for record in caplog.records)
    world.release.set()
    await wait_all_blocked()
    assert world.cleaned == ["d"]


LADDER = (2, 4, 8, 16, 30)


@given(failures=st.integers(0, 7), after=st.sampled_from([None, 1.5, 59, 61]))
async def test_g20_the_ladder_is_announced_and_waited(failures: int, after: float | None) -> None:
    """Waits are 2, 4, 8, 16, 30 s, `retry_after` wins, above max_wait the run ends; the announced wait is the real one."""
    clock = VirtualClock()
    asked: list[float] = []
    left = [failures]

    async def model(request: Any) -> Any:
        asked.append(clock.now())
        if left[0]:
            left[0] -= 1
            yield "half"
            raise ModelError("overloaded", "busy", retry_after=after)
        yield "whole"
        yield Finish("stop")

    events = await collect(agent_loop(["go"], Context(), Config(model=model, clock=clock)))
    check(events)
    ends = [e for e in events if isinstance(e, RequestEnd)]
    waits = [e.retry_in_ms for e in ends if e.retry_in_ms is not None]
    given_up = failures > 0 and (after == 61 or failures > 5)
    expected = [] if after == 61 else [(s if after is None else after) * 1000 for s in LADDER[: min(failures, 5)]]
    assert waits == expected
    assert [round((b - a) * 1000) for a, b in zip(asked, asked[1:], strict=False)] == waits
    assert [e.attempt for e in ends] == list(range(1, len(ends) + 1))
    assert end_of(events).stop_reason == ("retryable" if given_up else "completed")
    assert [m.text for m in end_of(events).messages] == ["go", "half" if given_up else "whole"]  # type: ignore[union-attr]


async def test_g20_a_retry_adds_nothing_and_runs_no_tool_twice() -> None:
    """The request of a retry equals the one before; tools of the failed reply did not run."""
    world = World(
        Plan(replies=([call("ok"), ModelError("network", "gone")], [call("ok")], [ModelError("network", "x")], "done"))
    )
    await world.play()
    first, second, third, fourth = world.model.requests
    assert first.messages == second.messages
    assert third.messages == fourth.messages
    assert [kind for kind, *_ in world.effects].count("tool") == 1


async def test_g20_a_wait_can_be_skipped() -> None:
    """`skip_wait` ends the wait once, is False when none goes on, and counts no attempt."""
    clock = VirtualClock(autojump_threshold=None)
    model = ScriptedModel([ModelError("network", "gone"), "done"])
    run = agent_loop(["go"], Context(), Config(model=model, clock=clock))
    assert run.skip_wait() is False
    events = []
    async with anyio.create_task_group() as group:

        async def read() -> None:
            events.extend(await collect(run))

        group.start_soon(read)
        await wait_all_blocked()
        assert model.asked == 1
        assert run.skip_wait() is True
    assert run.skip_wait() is False
    assert [e.attempt for e in events if isinstance(e, RequestBegin)] == [1, 2]
    assert clock.now() == 0


@given(plan=plans(deadline=None), data=st.data())
async def test_g21_an_abort_closes_everything_and_begins_nothing(plan: Plan, data: st.DataObject) -> None:
    """After the abort no effect begins; every pair is closed; `Abort` and `AgentEnd(aborted)` carry the reason; queues stay."""
    abort_after = data.draw(st.integers(0, 60), label="abort_after")
    world = World(attrs_evolve(plan, abort_after=abort_after))
    world.start()
    effects_at_abort = None
    while await world.step() is not None:
        if len(world.events) >= abort_after and effects_at_abort is None:
            world.signal.abort("the test says so")
            effects_at_abort = len(world.effects)
            queued = list(world.steering)
    check(world.events)
    if abort_after == 0:
        assert [type(e).__name__ for e in world.events] == ["AgentStart", "Abort", "AgentEnd"]
        assert world.end.messages == ()
    if world.end.stop_reason == "aborted":
        assert world.end.error_code in ("user_abort", "backoff_interrupted")
        assert world.end.error_message == "the test says so"
        (abort,) = world.of(Abort)
        assert (abort.error_code, abort.error_message) == (world.end.error_code, world.end.error_message)
        assert world.events[-2] is abort
        if effects_at_abort is not None:
            assert world.effects[effects_at_abort:] == []
            assert world.steering[: len(queued)] == queued
    else:
        assert world.of(Abort) == []


def attrs_evolve(plan: Plan, **changes: Any) -> Plan:
    import attrs

    return attrs.evolve(plan, **changes)


@pytest.mark.parametrize("deaf", ["tool", "provider"])
async def test_g21_the_deaf_are_given_up_within_the_bound(deaf: str) -> None:
    """An abort ends the run within two graces, also when a tool or a provider ignores it; finished calls keep their results."""
    world = World(Plan(replies=([call("ok", id="a"), call("deaf", id="b")], "never"), deaf=True))

    async def stubborn(request: Any) -> Any:
        yield "text"
        await deaf_until(world.release)
        yield "late"

    world.start(**({"model": stubborn} if deaf == "provider" else {}))
    when = ToolExecutionEnd if deaf == "tool" else MessageUpdate
    began = None
    while (event := await world.step()) is not None:
        if isinstance(event, when) and began is None:
            world.signal.abort("enough")
            began = world.clock.now()
    check(world.events)
    assert began is not None
    assert world.clock.now() - began <= 0.5
    assert (world.end.stop_reason, world.end.error_code) == ("aborted", "user_abort")
    if deaf == "tool":
        ends = {e.tool_call_id: e for e in world.of(ToolExecutionEnd)}
        assert (ends["a"].result.text, ends["b"].error_code, ends["b"].stop_reason) == (
            "ok 0",
            "not_stopped",
            "aborted",
        )
    else:
        assert not any(isinstance(e.delta, TextDelta) and e.delta.text == "late" for e in world.of(MessageUpdate))
    world.release.set()
    await wait_all_blocked()


async def test_g21_a_reply_whose_finish_was_read_before_the_abort_is_complete() -> None:
    """The abort comes while the stream is still open after Finish: the reply is committed, its calls are not run."""
    signal = AbortSignal()
    finished = anyio.Event()

    async def model(request: Any) -> Any:
        for chunk in ("whole", Finish("stop")):
            yield chunk
        finished.set()
        await anyio.sleep_forever()

    events = []
    async with anyio.create_task_group() as group:

        async def stop() -> None:
            await finished.wait()
            signal.abort("now")

        group.start_soon(stop)
        async for event in agent_loop(["go"], Context(), Config(model=model, abort=signal)):
            events.append(event)
    check(events)
    assert [e.status for e in events if isinstance(e, RequestEnd)] == ["completed"]
    assert end_of(events).stop_reason == "aborted"
    assert end_of(events).messages[-1].stop_reason == "completed"  # type: ignore[union-attr]


async def test_g21_a_deadline_is_the_same_without_abort_event() -> None:
    """Code `deadline`, no `Abort`; a deadline in the past: no turn, the prompts are not emitted."""
    world = World(Plan(replies=([call("polite", id="a")],), deadline=3.0))
    await world.play()
    assert (world.end.stop_reason, world.end.error_code) == ("aborted", "deadline")
    assert world.of(Abort) == []
    (end,) = world.of(ToolExecutionEnd)
    assert (end.result.text, end.stop_reason, end.is_error) == ("stopped politely", "aborted", False)
    past = World(Plan(deadline=-1.0))
    await past.play()
    assert [type(e).__name__ for e in past.events] == ["AgentStart", "AgentEnd"]


async def test_g21_an_abort_during_the_wait_and_the_question() -> None:
    """In a retry's wait the code is `backoff_interrupted`, complete calls of the failed reply get results; an open question
    gets no decision."""
    clock = VirtualClock(autojump_threshold=None)
    for place in ("wait", "question"):
        signal = AbortSignal()

        async def approve(request: Any) -> Any:
            await anyio.sleep_forever()

        @tool
        async def ok() -> str:
            """."""
            return "ok"

        reply = [call("ok", id="a"), *([ModelError("network", "gone")] if place == "wait" else [])]
        config = Config(model=ScriptedModel([reply]), clock=clock, abort=signal, approve=approve)
        events: list[Any] = []
        async with anyio.create_task_group() as group:

            async def read(config: Config = config, events: list[Any] = events) -> None:
                events.extend(await collect(agent_loop(["go"], Context(tools=[ok]), config)))

            group.start_soon(read)
            await wait_all_blocked()
            signal.abort("stop")
        check(events)
        assert end_of(events).error_code == ("backoff_interrupted" if place == "wait" else "user_abort")
        (end,) = [e for e in events if isinstance(e, ToolExecutionEnd)]
        assert (end.error_code, end.stop_reason) == ("aborted", "aborted")
        assert not any(type(e).__name__ == "ApprovalDecision" for e in events)
        assert isinstance(end_of(events).messages[-1], ToolResultMessage)


@pytest.mark.parametrize("ending", [Finish("length"), Finish("refusal"), Finish("content_filter"), CUT])
async def test_g22_calls_of_a_cut_reply_are_not_executed(ending: Any) -> None:
    """Complete calls get an error that says why; a reply cut by length stays in the history."""
    world = World(
        Plan(replies=([call("ok", id="a"), call("ok", id="b", pieces=['{"n": 1']), ending], "done"), retries=0)
    )
    await world.play()
    assert not [e for e in world.effects if e[0] == "tool"]
    ends = world.of(ToolExecutionEnd)
    assert [e.error_code for e in ends] == ["cut_off"] * len(ends)
    assert [e.tool_call_id for e in ends] == ["a", "b"]
    if ending == Finish("length"):
        assert "output limit" in ends[0].result.text
        assert len(world.model.requests) == 2
        kept = [m for m in world.model.requests[1].messages if isinstance(m, AssistantMessage)]
        assert [c.id for m in kept for c in m.tool_calls] == ["a", "b"]
    else:
        assert len(world.model.requests) == 1


REASONS: list[tuple[Any, int, str, str | None]] = [
    # reply, requests, stop_reason, error_code
    ([Finish("pause")], 1, "completed", None),  # an empty reply is like a stop: the next request would be the same
    (["x", Finish("pause")], 9, "fatal", "pause_limit"),
    ([call("ok"), Finish("length")], 3, "fatal", "length_limit"),
    (["x", Finish("length")], 1, "completed", None),
    (["x", Finish("tool_use")], 1, "completed", None),
    ([Finish("stop")], 1, "completed", None),
    (["x", Finish("refusal")], 1, "completed", None),
    (["x", Finish("content_filter")], 1, "completed", None),
    (["x", Finish("unknown")], 1, "completed", None),
]


@pytest.mark.parametrize(("reply", "requests", "stop", "code"), REASONS)
async def test_g23_nothing_loops_by_itself(reply: list[Any], requests: int, stop: str, code: str | None) -> None:
    """Each finish reason goes on as long as it may, and no longer."""
    world = World(Plan(replies=(reply,) * 20))
    await world.play()
    assert (world.model.asked, world.end.stop_reason, world.end.error_code) == (requests, stop, code)


@pytest.mark.parametrize("reason", ["stop", "unknown", "pause", "tool_use"])
async def test_g23_calls_run_under_other_reasons(reason: Any) -> None:
    """Calls under stop, unknown or pause do run."""
    world = World(Plan(replies=([call("ok"), Finish(reason)], "done")))
    await world.play()
    assert [e.result.text for e in world.of(ToolExecutionEnd)] == ["ok 0"]
    assert world.model.asked == 2


async def test_g23_a_silent_stream_times_out() -> None:
    """No chunk for `idle_timeout` seconds is a `timeout`, retried; a slow consumer is not the provider's silence."""
    clock = VirtualClock()
    model = ScriptedModel([["half", STALL], [sleep(15), "a", sleep(15), "b"]], clock=clock)
    events = []
    run = agent_loop(["go"], Context(), Config(model=model, clock=clock, idle_timeout=20, run_ahead=1))
    async for event in run:
        events.append(event)
        if isinstance(event, MessageUpdate) and event.delta == TextDelta(0, "a"):
            await clock.sleep(500)
    check(events)
    ends = [e for e in events if isinstance(e, RequestEnd)]
    assert [(e.status, e.error_code) for e in ends] == [("retryable", "timeout"), ("completed", None)]
    assert clock.now() == 20 + 2 + 15 + 500 + 15
