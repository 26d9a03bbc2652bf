"""What the front and the background of a run share: ids, callbacks, jobs, time and the end of it all."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    AssistantMessage,
    Block,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    MessageEnd,
    MessageUpdate,
    ModelError,
    Retry,
    TextDelta,
    Tool,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolResult,
    TurnEnd,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    running,
    tool,
    user,
)
from agentloop._callbacks import attribute
from agentloop._host import make_host
from agentloop.errors import GrammarError
from agentloop.events import ThinkingDelta
from agentloop.grammar import check
from agentloop.messages import ToolCall, ToolResultMessage
from agentloop.model import Finish, ModelRequest, TextChunk
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, collect, wait_all_blocked
from tests.deaf import deaf_until

pytestmark = pytest.mark.anyio


async def played(model: Any, tools: Any = (), **changes: Any) -> list[Event]:
    config = Config(**{"model": model, "clock": VirtualClock(), "retry": None, **changes})
    with anyio.fail_after(10):
        events = await collect(agent_loop(["go"], Context(tools=tools), config))
    check(events)
    return events


def failed(events: list[Event]) -> tuple[str, str | None, str | None]:
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return end.stop_reason, end.error_code, end.error_message


# ---------------------------------------------------------------- orders to leave


@pytest.mark.parametrize("order", [None, KeyboardInterrupt("now"), SystemExit("now")])
async def test_an_attribute_that_fails_is_none_but_an_order_to_leave_is_one(order: BaseException | None) -> None:
    """Also one out of a group; what a foreign object does not have, or cannot say, is None."""

    class Odd:
        there = 1

        @property
        def fails(self) -> Any:
            raise BaseExceptionGroup("several", [ValueError("broken"), *([] if order is None else [order])])

    assert (attribute(Odd(), "there"), attribute(Odd(), "not_there")) == (1, None)
    if order is None:
        assert attribute(Odd(), "fails") is None
        return
    with pytest.raises(type(order)) as caught:
        attribute(Odd(), "fails")
    assert caught.value is order


@pytest.mark.parametrize("order", [KeyboardInterrupt("now"), SystemExit("now")])
async def test_an_order_to_leave_of_a_tool_in_a_thread_is_raised(order: BaseException) -> None:
    """It is no error of the tool's: it ends the run, and leaves by the step, itself."""

    @tool
    def leave() -> str:
        """Leave."""
        raise order

    run = agent_loop(["go"], Context(tools=[leave]), Config(model=ScriptedModel([[call("leave")]])))
    with pytest.raises(type(order)) as caught:
        await collect(run)
    assert caught.value is order
    await run.aclose()


async def test_the_first_of_two_orders_to_leave_is_raised() -> None:
    """A second one, of a tool that is stopped for the first, does not take its place."""

    @tool
    async def first() -> str:
        """Leave."""
        await anyio.lowlevel.checkpoint()
        raise KeyboardInterrupt("first")

    @tool
    async def second() -> str:
        """Leave when cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            raise SystemExit("second")

    run = agent_loop(
        ["go"], Context(tools=[first, second]), Config(model=ScriptedModel([[call("second"), call("first")]]))
    )
    with pytest.raises(KeyboardInterrupt, match="first"):
        await collect(run)
    await run.aclose()


async def test_a_callback_that_raises_a_group_with_an_order_to_leave() -> None:
    """The order leaves by the step, bare."""
    error = SystemExit("now")

    def poll() -> None:
        raise BaseExceptionGroup("group", [ValueError(), error])

    with pytest.raises(SystemExit) as caught:
        await collect(agent_loop(["go"], Context(), Config(model=ScriptedModel(), get_steering_messages=poll)))
    assert caught.value is error


# ---------------------------------------------------------------- what only passes for an answer


class Passes:
    """Passes for another class and has nothing of what that has, as a mock may that was made to its specification."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind


@pytest.mark.parametrize(
    ("setting", "kind", "outcome"),
    [
        ("get_steering_messages", UserMessage, ("fatal", "callback_failed", None)),
        ("get_follow_up_messages", UserMessage, ("fatal", "callback_failed", None)),
        ("get_tools", Tool, ("fatal", "callback_failed", None)),
        ("transform_context", UserMessage, ("fatal", "invalid_input", None)),
        ("convert_to_llm", AssistantMessage, ("fatal", "invalid_input", None)),
        ("prepare_request", ModelRequest, ("fatal", "callback_failed", None)),
        ("before_tool_call", Block, ("completed", None, "blocked")),
        ("before_tool_call", dict, ("completed", None, "blocked")),
        ("after_tool_call", ToolResult, ("completed", None, "tool_error")),
        ("approve", str, ("completed", None, "denied")),
        ("hooks", HookAnswer, ("completed", None, "denied")),
        ("finish_turn", str, ("fatal", "callback_failed", None)),
    ],
)
async def test_g18_what_only_passes_for_an_answer_is_none(
    setting: str, kind: type, outcome: tuple[str, str | None, str | None]
) -> None:
    """The run ends as it does where a callback answers nonsense, with its events legal."""

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    def give(*_: Any) -> Any:
        return [Passes(kind)] if issubclass(kind, UserMessage | AssistantMessage | Tool) else Passes(kind)

    given: Any = (Hooks("odd", pre_tool_use=give),) if setting == "hooks" else give
    events = await played(ScriptedModel([[call("work")], "done"]), [work], **{setting: given})
    codes = [event.error_code for event in events if isinstance(event, ToolExecutionEnd)]
    (stop_reason, code, _), call_code = failed(events), outcome[2]
    assert (stop_reason, code, codes[0] if call_code else None) == outcome


async def test_arguments_that_fail_when_they_are_read_block_the_call() -> None:
    """As what `before_tool_call` raises: a mapping of the caller's may hold what cannot be looked at."""

    @tool
    async def work(place: str) -> str:
        """Work."""
        return place

    class Gone(dict[str, Any]):
        def items(self) -> Any:
            raise LookupError("gone")

    events = await played(
        ScriptedModel([[call("work", {"place": "here"})], "done"]),
        [work],
        before_tool_call=lambda call: Gone(place="there"),
    )
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (end.error_code, end.result.text) == ("blocked", "gone")
    assert failed(events)[0] == "completed"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", [ToolResult, ToolCall, str])
async def test_g19_what_only_passes_for_a_result_is_any_other_object(kind: type, streams: bool) -> None:
    """Its text is the result, and the next turn follows."""

    @tool(name="work")
    async def work() -> Any:
        """Work."""
        return Passes(kind)

    @tool(name="work")
    async def stream() -> Any:
        """Work."""
        yield Passes(kind)

    events = await played(ScriptedModel([[call("work")], "done"]), [stream if streams else work])
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (end.is_error, "Passes object at" in end.result.text, failed(events)[0]) == (False, True, "completed")


@pytest.mark.parametrize("sync", [False, True])
async def test_what_only_passes_for_a_result_is_no_progress(sync: bool) -> None:
    """It is the call's error: its update could not be written."""

    @tool(name="work")
    async def work(ctx: ToolContext) -> None:
        """Work."""
        ctx.progress(Passes(ToolResult))  # type: ignore[arg-type]

    @tool(name="work")
    def thread(ctx: ToolContext) -> None:
        """Work."""
        ctx.progress(Passes(ToolResult))  # type: ignore[arg-type]

    events = await played(ScriptedModel([[call("work")], "done"]), [thread if sync else work])
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert (end.error_code, end.result.text) == ("tool_error", "content: expected text or content blocks, got Passes")
    assert not any(isinstance(event, ToolExecutionUpdate) for event in events)


@pytest.mark.parametrize("kind", [str, TextChunk, Finish])
async def test_what_only_passes_for_a_chunk_is_malformed(kind: type) -> None:
    """So is a piece that only passes for a text."""

    async def model(request: ModelRequest) -> Any:
        yield "half"
        yield Passes(kind)

    async def pieces(request: ModelRequest) -> Any:
        chunk = TextChunk("half")
        object.__setattr__(chunk, "text", Passes(str))
        yield chunk

    for each in (model, pieces):
        assert failed(await played(each))[:2] == ("retryable", "malformed")


# ---------------------------------------------------------------- ids


async def ids_of(*sent: str, **changes: Any) -> list[str]:
    events = await played(ScriptedModel([[call("x", id=id) for id in sent], "done"]), **changes)
    messages = [event.message for event in events if isinstance(event, MessageEnd)]
    return [message.tool_call_id for message in messages if isinstance(message, ToolResultMessage)]


async def test_g07_the_first_owner_keeps_its_id() -> None:
    """Then `id#2`, `id#3`, whatever stands in their way."""
    assert await ids_of("a", "a", "a") == ["a", "a#2", "a#3"]
    assert await ids_of("a", "a", "a#2", "a#2", "a") == ["a", "a#2", "a#2#2", "a#2#3", "a#3"]
    assert await ids_of("a#2", "a", "a", "a") == ["a#2", "a", "a#3", "a#4"]


async def test_g07_ids_of_the_context_have_their_owners() -> None:
    """A new call does not take an id that stands in the context."""
    context = Context(messages=[user("go"), assistant(ToolCall("a", "x", "{}")), ToolResultMessage("a", "x", "ok")])
    events = await collect(
        agent_loop(["go"], context, Config(model=ScriptedModel([[call("x", id="a"), call("x", id="a")], "done"])))
    )
    check(events)
    assert [e.tool_call_id for e in events if isinstance(e, ToolExecutionStart)] == ["a#2", "a#3"]


async def test_g07_a_missing_id_is_made() -> None:
    """The maker is asked until it gives one that is free, eight times at most; then the id is made of `call`."""
    given = iter(["a", "", None, "b", "c"])
    assert await ids_of("a", "", "", new_id=lambda: next(given)) == ["a", "b", "c"]
    asked = []

    def stubborn() -> str:
        asked.append(True)
        return "a"

    assert await ids_of("a", "", "", new_id=stubborn) == ["a", "call", "call#2"]
    assert len(asked) == 16
    late = iter(["a"] * 6 + ["b"])
    assert await ids_of("a", "", new_id=lambda: next(late)) == ["a", "b"]
    assert await ids_of("", new_id=lambda: "\ud800") == ["\ufffd"]


# ---------------------------------------------------------------- callbacks


async def test_a_callback_that_is_cut_by_an_abort_is_cancelled() -> None:
    """The callback's clean-up has run when the run ends; what it would have raised is not the run's failure."""
    for error in (None, ValueError("late")):
        signal, left = AbortSignal(), list[str]()

        async def callback(*args: Any, error: Any = error, signal: AbortSignal = signal, left: Any = left) -> None:
            signal.abort("enough")
            try:
                await anyio.sleep_forever()
            finally:
                left.append("cleaned")
                if error is not None:
                    raise error

        events = await played(ScriptedModel(["never"]), abort=signal, transform_context=callback)
        assert (failed(events), left) == (("aborted", "user_abort", "enough"), ["cleaned"])


async def test_what_a_callback_returns_after_an_abort_is_not_taken() -> None:
    """A transform that aborts and returns: nobody is asked with what it gave."""
    signal = AbortSignal()

    async def transform(messages: Any) -> Any:
        signal.abort("enough")
        return messages

    model = ScriptedModel(["never"])
    events = await played(model, abort=signal, transform_context=transform)
    assert (failed(events), model.asked) == (("aborted", "user_abort", "enough"), 0)


async def test_g29_a_poll_is_given_the_grace_to_return_what_it_took() -> None:
    """At an abort it is not cancelled before the grace has passed; then it is, and what it took is its own loss."""
    for needs, taken in ((0.2, ["go", "taken"]), (0.3, ["go"])):
        clock, signal = VirtualClock(), AbortSignal()

        async def poll(clock: VirtualClock = clock, signal: AbortSignal = signal, needs: float = needs) -> list[str]:
            signal.abort("enough")
            await clock.sleep(needs)
            return ["taken"]

        events = await played(
            ScriptedModel(["never"]), clock=clock, abort=signal, abort_grace=0.25, get_steering_messages=poll
        )
        end = events[-1]
        assert isinstance(end, AgentEnd)
        assert ([m.text for m in end.messages], clock.now()) == (taken, min(needs, 0.25))


async def test_g21_a_callback_that_ignores_its_cancellation_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """After the grace it is left to itself, and a warning says so; the run ends."""
    clock, signal, release = VirtualClock(), AbortSignal(), anyio.Event()

    async def deaf(messages: Any) -> Any:
        signal.abort("enough")
        await deaf_until(release)

    events = await played(ScriptedModel(["never"]), clock=clock, abort=signal, abort_grace=0.25, transform_context=deaf)
    took = clock.now()
    release.set()
    await wait_all_blocked()
    assert (failed(events), took) == (("aborted", "user_abort", "enough"), 0.25)
    assert [record.getMessage() for record in caplog.records] == [
        "a callback did not stop within its bound and is left to itself"
    ]


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_failing_callback_is_logged_with_its_traceback(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once, as an error, by name; whether or not it had to be awaited."""
    error = ValueError("broken")

    def poll() -> Any:
        if how == "async":
            return late()
        raise error

    async def late() -> None:
        raise error

    events = await played(ScriptedModel(["never"]), get_steering_messages=poll)
    assert failed(events) == ("fatal", "callback_failed", "get_steering_messages (poll) raised ValueError: broken")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert (record.levelno, record.getMessage(), record.exc_info[1]) == (
        logging.ERROR, "get_steering_messages (poll) failed; the run ends", error,
    )  # fmt: skip


# ---------------------------------------------------------------- stops and time


async def test_the_requests_signal_fires_at_any_stop() -> None:
    """With the stop's words at a stop; when the consumer leaves, and at the end, with words of its own."""
    seen: list[Any] = []

    async def model(request: ModelRequest) -> Any:
        seen.append(request.abort)
        yield "half"
        if len(seen) < 3:
            await anyio.sleep_forever()
        yield Finish("stop")

    signal = AbortSignal()
    events = agent_loop(["go"], Context(), Config(model=model, abort=signal))
    async for event in events:
        if isinstance(event, MessageUpdate):
            signal.abort("enough")
    run = agent_loop(["go"], Context(), Config(model=model))
    async for event in run:
        if isinstance(event, MessageUpdate):
            assert not seen[1].aborted
            await run.aclose()
            break
    await played(model)
    assert [each.reason for each in seen] == ["enough", "the consumer has left", "the run is over"]


async def test_an_abort_wins_over_a_deadline_and_the_first_over_both() -> None:
    """Both have come when they are looked at: it is told as an abort; a deadline that was noticed stays one."""
    signal, clock = AbortSignal(), VirtualClock()

    def both(*args: Any) -> None:
        clock.jump(10)
        signal.abort("enough")

    events = await played(ScriptedModel(["never"]), clock=clock, deadline=5, abort=signal, get_steering_messages=both)
    assert failed(events) == ("aborted", "user_abort", "enough")

    later = AbortSignal()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Abort when the deadline has come."""
        await ctx.abort.wait()
        later.abort("too late")
        return "ok"

    events = await played(ScriptedModel([[call("work")]]), [work], deadline=5, abort=later)
    assert failed(events) == ("aborted", "deadline", "the run's deadline of 5 s has passed")


async def test_a_deadline_counts_from_the_first_step() -> None:
    """And ends the run at its very moment, whatever is waited for."""
    clock = VirtualClock(start=100)
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel([STALL]), clock=clock, deadline=5))
    clock.jump(50)
    with anyio.fail_after(10):
        events = await collect(run)
    assert failed(events) == ("aborted", "deadline", "the run's deadline of 5 s has passed")
    assert clock.now() == 155


class SleeplessClock(VirtualClock):
    """A clock that cannot sleep."""

    async def sleep(self, seconds: float) -> None:
        raise OSError("no sleep")


async def test_a_clock_that_cannot_sleep_ends_the_run() -> None:
    """Like a callback that failed: with its words, not in silence."""
    events = await played(ScriptedModel([["a", STALL]]), clock=SleeplessClock(), deadline=5)
    assert failed(events) == ("fatal", "callback_failed", "the clock: no sleep")


class Timeless(VirtualClock):
    """A clock that cannot tell the time."""

    def now(self) -> float:
        raise OSError("no time")


async def test_a_run_that_could_not_start_is_closed_at_once() -> None:
    """Nothing of it runs that could be waited for."""
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(), clock=Timeless(), deadline=5))
    with pytest.raises(OSError, match="no time"):
        await anext(run)
    with pytest.raises(StopIteration):  # it returns without giving way to anybody
        run.aclose().send(None)
    with pytest.raises(StopAsyncIteration):
        await anext(run)


class Panic(BaseException):
    """What a library raises that is no `Exception`."""


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic])
async def test_a_clock_that_cannot_tell_the_time_ends_no_event_loop(error: type[BaseException]) -> None:
    """It may be asked in a background task, before its first line: whatever it raises meets the step, and nobody else."""

    class Stopped(VirtualClock):
        def __init__(self, good: int) -> None:
            super().__init__()
            self.good = good

        def now(self) -> float:
            self.good -= 1
            if self.good < 0:
                raise error
            return super().now()

    @tool
    async def work() -> str:
        """Work."""
        await anyio.lowlevel.checkpoint()
        return "ok"

    for good in itertools.count():
        clock = Stopped(good)
        try:
            await played(ScriptedModel([[call("work")], "done"]), [work], clock=clock, deadline=5)
        except error:
            continue
        assert clock.good >= 0  # it was never asked in vain
        break
    assert good > 20


@pytest.mark.parametrize("asks", [False, True])
async def test_a_clock_that_fails_when_its_alarm_goes_off_ends_no_event_loop(asks: bool) -> None:
    """The next alarm is set, and calls are settled, where a sleep or an answer has ended: in the background as well."""

    class Failing(VirtualClock):
        asked = 0

        def __init__(self, fails_at: int) -> None:
            super().__init__()
            self.fails_at = fails_at

        def now(self) -> float:
            self.asked += 1
            if self.asked == self.fails_at:
                raise ZeroDivisionError
            return super().now()

    @tool(timeout=3)
    async def endless(ctx: ToolContext) -> None:
        """Never end."""
        await anyio.sleep_forever()

    async def approve(request: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return "allow"

    failed = 0
    for fails_at in itertools.count(1):
        clock = Failing(fails_at)
        model = ScriptedModel([ModelError("network", "gone"), [call("endless")], "done"])
        changes = {"approve": approve, "approval_timeout": 5} if asks else {}
        try:
            await played(model, [endless], clock=clock, deadline=50, retry=Retry(waits=(1,)), **changes)
        except ZeroDivisionError:
            failed += 1
        if clock.asked < fails_at:
            break
    assert failed > 25


# ---------------------------------------------------------------- steps and their end


async def test_the_run_counts_its_events() -> None:
    """Its checker has come to the last of them, counted from 0, also past the pieces of a block, which it does not look at."""
    run: Any = agent_loop(["go"], Context(), Config(model=ScriptedModel([["a", "b", "c", call("x")], "done"])))
    events = await collect(run)
    assert run._core.checker.position == len(events) - 1


async def test_pieces_of_a_block_pass_the_choke_point_as_well() -> None:
    """A piece of another block, or of another kind, is refused there by the grammar; one of the open block is handed over."""
    run: Any = agent_loop(["go"], Context(), Config(model=ScriptedModel([["a", STALL]])))
    async for event in run:
        if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
            break
    for stray in (TextDelta(1, "b"), ThinkingDelta(0, "b")):
        with pytest.raises(GrammarError):
            run._core.emit_delta(attrs.evolve(event, delta=stray))
    piece = attrs.evolve(event, delta=TextDelta(0, "b"))
    run._core.emit_delta(piece)
    assert await anext(run) == piece
    await run.aclose()


async def test_a_signal_that_outlives_its_runs_holds_none_of_them() -> None:
    """Neither one that ended nor one that was left; nor does any alarm of the event loop."""
    signal = AbortSignal()
    for leave in (False, True):
        model = ScriptedModel([["a", STALL if leave else "b"]])
        kept = weakref.ref(model)
        run = agent_loop(["go"], Context(), Config(model=model, abort=signal, deadline=1000, abort_grace=60))
        async for event in run:
            if leave and isinstance(event, MessageUpdate):
                await run.aclose()
        del run, model, event
        gc.collect()
        await wait_all_blocked()
        gc.collect()
        assert kept() is None


async def test_g24_events_that_were_not_taken_are_dropped_when_the_consumer_leaves() -> None:
    """The next step ends the iteration although there were more."""
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel([["a", "b", "c"]])))
    async for event in run:
        if isinstance(event, MessageUpdate):
            break
    await wait_all_blocked()
    await run.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(run)


async def test_g24_a_stream_that_waits_for_room_is_ended_when_the_consumer_leaves() -> None:
    """The consumer is busy and the stream full; it is closed like any other."""
    model = ScriptedModel([["a"] * 20])
    run = agent_loop(["go"], Context(), Config(model=model, run_ahead=1))
    async for event in run:
        if isinstance(event, MessageUpdate):
            await wait_all_blocked()
            break
    assert model.open_streams == 1
    await run.aclose()
    assert model.open_streams == 0


async def test_g24_a_call_that_is_deaf_is_given_up_when_the_consumer_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """`aclose` returns after its bound, in real time, also on a clock that stands still; a warning names the call's job."""
    release, began = anyio.Event(), anyio.Event()

    @tool
    async def deaf() -> str:
        """Hear nothing."""
        began.set()
        await deaf_until(release)
        return "late"

    config = Config(
        model=ScriptedModel([[call("deaf")]]), clock=VirtualClock(autojump_threshold=None), abort_grace=0.01
    )
    run = agent_loop(["go"], Context(tools=[deaf]), config)
    async with anyio.create_task_group() as group:
        group.start_soon(collect, run)
        await began.wait()
        with anyio.fail_after(10):
            await run.aclose()
        release.set()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].getMessage().endswith("did not stop within its bound and is left to itself")


async def test_a_timer_rings_once_and_a_wait_that_never_ends_rings_never() -> None:
    """An infinite deadline is none, also where the run has to wait."""
    clock = VirtualClock()
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["a"]), clock=clock, deadline=math.inf))
    events = await collect(run)
    check(events)
    assert (failed(events), clock.now()) == (("completed", None, None), 0)


async def test_g12_a_callback_begins_when_the_consumer_came_back() -> None:
    """A poll after a turn has its `TurnEnd` stored before it; also one that is asked while others wait."""
    stored, began = list[Event](), list[str]()

    def poll() -> None:
        began.append(type(stored[-1]).__name__)

    config = Config(model=ScriptedModel([[call("x")], "done"]), get_steering_messages=poll)
    async for event in agent_loop(["go"], Context(), config):
        await wait_all_blocked()
        stored.append(event)
    assert began == ["MessageEnd", "TurnEnd", "TurnEnd", "TurnEnd"]


async def test_g12_nothing_that_happens_meanwhile_lets_a_callback_begin() -> None:
    """The consumer has taken everything and is busy; an alarm goes off: the poll still waits for it to come back."""

    class Early(VirtualClock):
        alarm: anyio.Event | None = None

        async def sleep(self, seconds: float) -> None:
            self.alarm = anyio.Event()
            await self.alarm.wait()

    clock, busy, began = Early(), [False], list[bool]()
    config = Config(
        model=ScriptedModel([[call("x")], "done"]),
        clock=clock,
        idle_timeout=None,
        deadline=1000,
        get_steering_messages=lambda: began.append(busy[0]),
    )
    async for event in agent_loop(["go"], Context(), config):
        busy[0] = True
        if isinstance(event, TurnEnd):
            assert clock.alarm is not None
            clock.alarm.set()
        await wait_all_blocked()
        busy[0] = False
    assert began == [False] * 4


async def test_a_tool_that_reports_while_the_consumer_is_away_wakes_nobody_twice() -> None:
    """Progress, results and the stream's pieces wake a step that waits, and the events come in one order."""
    gate = anyio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Report."""
        ctx.progress("one")
        await gate.wait()
        ctx.progress("two")
        return "ok"

    events = []
    model = ScriptedModel([[call("work")], "done"])
    async for event in agent_loop(["go"], Context(tools=[work]), Config(model=model)):
        events.append(event)
        if isinstance(event, ToolExecutionUpdate):
            gate.set()
    check(events)
    progress = [e.partial_result.text for e in events if isinstance(e, ToolExecutionUpdate) and e.partial_result]
    assert progress == ["one", "two"]
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == ["ok"]


async def test_open_calls_keep_their_ids() -> None:
    """A run that goes on from them claims none of them anew."""

    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    context = Context(messages=[user("go"), assistant(ToolCall("a", "work", "{}"))], tools=[work])
    model = ScriptedModel([[call("work", id="a")], "done"])
    events = await collect(agent_loop_continue(context, Config(model=model)))
    check(events)
    assert [e.tool_call_id for e in events if isinstance(e, ToolExecutionStart)] == ["a", "a#2"]


async def test_an_alarm_is_set_for_what_is_waited_for_and_no_longer() -> None:
    """The idle time-out, the grace of the stream that is cancelled, the wait: each has its own on the caller's clock."""

    class Noting(VirtualClock):
        asked: list[float]

        async def sleep(self, seconds: float) -> None:
            self.asked.append(seconds)
            await super().sleep(seconds)

    clock = Noting()
    clock.asked = []
    events = await played(
        ScriptedModel([STALL, STALL]), clock=clock, retry=Retry(waits=(2,)), idle_timeout=20, abort_grace=0.25
    )
    assert failed(events) == ("retryable", "timeout", "the model sent nothing for 20 s")
    assert clock.asked == [20, 0.25, 2, 20, 0.25]


async def test_g18_nothing_more_is_told_after_an_order_to_leave() -> None:
    """A callback raises it while a tool runs: what the tool still reports as it is cut off is dropped."""
    cleaned: list[str] = []

    @tool
    async def slow(ctx: ToolContext) -> str:
        """Report at the end."""
        try:
            await anyio.sleep_forever()
        finally:
            ctx.progress("cut off")
            cleaned.append("slow")
        return ""

    @tool
    async def quick() -> str:
        """Return."""
        await anyio.lowlevel.checkpoint()
        return "ok"

    def after(invocation: Any, result: Any) -> None:
        raise KeyboardInterrupt("now")

    model = ScriptedModel([[call("slow"), call("quick")]])
    seen = []
    with pytest.raises(KeyboardInterrupt, match="now"):
        async for event in agent_loop(["go"], Context(tools=[slow, quick]), Config(model=model, after_tool_call=after)):
            seen.append(event)
    assert cleaned == ["slow"]
    assert not [event for event in seen if isinstance(event, ToolExecutionUpdate)]


async def test_g18_an_order_to_leave_of_a_call_that_was_given_up() -> None:
    """It comes when the run is over, before the consumer took its last events: it gets them, then the order."""
    release, clock = anyio.Event(), VirtualClock()

    @tool(timeout=1)
    async def deaf() -> str:
        """Hear nothing, then leave."""
        await deaf_until(release)
        raise KeyboardInterrupt("late")

    model = ScriptedModel([[call("deaf")], "done"])
    config = Config(model=model, clock=clock, abort_grace=0.25)
    seen = []
    with pytest.raises(KeyboardInterrupt, match="late"):
        async for event in agent_loop(["go"], Context(tools=[deaf]), config):
            seen.append(event)
            if isinstance(event, TurnEnd) and event.message is not None and event.message.text == "done":
                await wait_all_blocked()  # no poll waits for the consumer: the run ends
                release.set()
                await wait_all_blocked()
    check(seen)
    assert failed(seen) == ("completed", None, None)


async def test_g12_a_hook_waits_for_a_consumer_whose_step_was_cut_short() -> None:
    """Inside `running` the step ends while a hook is awaited: the next hook is asked when the consumer comes back."""
    gate, asked = anyio.Event(), list[str]()

    async def first(message: UserMessage) -> None:
        asked.append("first")
        await gate.wait()

    def second(message: UserMessage) -> None:
        asked.append("second")

    hooks = [Hooks("a", user_prompt=first), Hooks("b", user_prompt=second)]
    config = Config(model=ScriptedModel(["done"]), hooks=hooks)
    async with running(agent_loop(["go"], Context(), config)) as run:
        async with anyio.create_task_group() as group:
            group.start_soon(collect, run)
            await wait_all_blocked()
            group.cancel_scope.cancel()
        gate.set()
        await wait_all_blocked()
        assert asked == ["first"]
        events = await collect(run)
    assert asked == ["first", "second"]
    assert failed(events) == ("completed", None, None)


async def test_g24_no_hook_is_asked_of_a_run_that_was_left() -> None:
    """The consumer leaves while a hook is asked: the next one is not."""
    runs, asked = list[Any](), list[str]()

    def hook(message: UserMessage) -> None:
        asked.append(message.text)
        runs[0]._core.close()  # what `aclose` does first

    config = Config(model=ScriptedModel(["never"]), hooks=[Hooks("a", user_prompt=hook), Hooks("b", user_prompt=hook)])
    runs.append(agent_loop(["go"], Context(), config))
    with anyio.fail_after(10):
        await collect(runs[0])
    assert asked == ["go"]


async def test_the_requests_signal_fires_although_the_consumer_is_busy() -> None:
    """An abort is noticed while a callback waits for the consumer to come back."""
    signal, seen = AbortSignal(), list[AbortSignal]()

    async def model(request: ModelRequest) -> Any:
        seen.append(request.abort)
        yield "done"
        yield Finish("stop")

    config = Config(model=model, abort=signal, get_steering_messages=list)
    async for event in agent_loop(["go"], Context(), config):
        if isinstance(event, TurnEnd):
            signal.abort("enough")
            await wait_all_blocked()
            assert seen[0].reason == "enough"


async def test_g24_a_callback_that_closes_its_run_while_another_tool_works() -> None:
    """It is asked in the middle of the driver's look at its calls: the driver looks again, and ends the other tool."""
    runs, ended = list[Any](), list[str]()

    @tool
    async def slow() -> str:
        """Work for ever."""
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("slow")
        return ""

    @tool
    async def quick() -> str:
        """Return."""
        return "ok"

    def after(invocation: Any, result: Any) -> None:
        runs[0]._core.close()  # what `aclose` does first

    model = ScriptedModel([[call("slow"), call("quick")]])
    config = Config(model=model, after_tool_call=after)
    runs.append(agent_loop(["go"], Context(tools=[slow, quick]), config))
    with anyio.fail_after(10):
        await collect(runs[0])
    assert ended == ["slow"]


async def test_g21_a_callback_does_not_begin_after_an_abort_that_came_before_its_first_step() -> None:
    """The abort comes between the call, which gives a coroutine, and that coroutine's first line."""
    signal, late = AbortSignal(), list[bool]()

    async def waiting(messages: Any) -> Any:
        late.append(signal.aborted)
        return messages

    def transform(messages: Any) -> Any:
        make_host().soon(signal.abort)
        return waiting(messages)

    events = await played(ScriptedModel([["a", STALL]]), abort=signal, transform_context=transform)
    assert failed(events) == ("aborted", "user_abort", None)
    assert not any(late)


async def test_g18_events_that_were_not_taken_are_dropped_by_an_order_to_leave() -> None:
    """The next step raises it, whatever was to be told before."""
    gate = anyio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Report, then leave."""
        ctx.progress("one")
        await gate.wait()
        ctx.progress("two")
        raise KeyboardInterrupt("now")

    seen = []
    with pytest.raises(KeyboardInterrupt, match="now"):
        async for event in agent_loop(["go"], Context(tools=[work]), Config(model=ScriptedModel([[call("work")]]))):
            if isinstance(event, ToolExecutionUpdate):
                seen.append(event)
                gate.set()
                await wait_all_blocked()
    assert len(seen) == 1


async def test_events_that_were_not_taken_are_dropped_when_the_run_breaks_off() -> None:
    """Its clock fails while the consumer is busy: the next step raises that, whatever was to be told before."""
    gate, broken = anyio.Event(), [False]

    class Clock(VirtualClock):
        def now(self) -> float:
            if broken[0]:
                raise ZeroDivisionError
            return super().now()

    @tool
    async def work(ctx: ToolContext) -> str:
        """Report, and break the clock."""
        ctx.progress("one")
        await gate.wait()
        ctx.progress("two")
        broken[0] = True
        return "ok"

    seen = []
    config = Config(model=ScriptedModel([[call("work")]]), clock=Clock(autojump_threshold=None), deadline=60)
    with pytest.raises(ZeroDivisionError):
        async for event in agent_loop(["go"], Context(tools=[work]), config):
            if isinstance(event, ToolExecutionUpdate):
                seen.append(event)
                gate.set()
                await wait_all_blocked()
    assert len(seen) == 1
