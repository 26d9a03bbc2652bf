"""What is asked around the turns: verdicts, polls, hooks, tools, waits; what nonsense and stops in them come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    MessageStart,
    ModelError,
    RequestBegin,
    Retry,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    tool,
    user,
)
from agentloop.events import Hook
from agentloop.grammar import check
from agentloop.messages import ToolCall
from agentloop.model import ModelRequest
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked

pytestmark = pytest.mark.anyio


async def played(model: Any, prompts: Any = ("go",), context: Context | None = None, **changes: Any) -> list[Event]:
    config = Config(**{"model": model, "clock": VirtualClock(), "retry": None, **changes})
    with anyio.fail_after(10):
        events = await collect(agent_loop(prompts, context or Context(), config))
    check(events)
    return events


def end_of(events: list[Event]) -> AgentEnd:
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return end


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def failed(events: list[Event]) -> tuple[str, str | None, str | None]:
    end = end_of(events)
    return end.stop_reason, end.error_code, end.error_message


# ---------------------------------------------------------------- nonsense, in words


class Incomparable:
    """What cannot even be compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError


@pytest.mark.parametrize(
    ("verdict", "got"),
    [("stop", "'stop'"), (5, "int"), (True, "bool"), (["end"], "list"), ("", "''"), (Incomparable(), "Incomparable")],
)
async def test_a_verdict_that_is_none(verdict: Any, got: str) -> None:
    """`finish_turn` may say None, `end` or `ask`; anything else ends the run with a `TypeError` that says what came."""
    events = await played(ScriptedModel([[call("x")], "never"]), finish_turn=lambda turn: verdict)
    words = f"finish_turn: expected None, 'end' or 'ask', got {got}"
    assert failed(events) == ("fatal", "callback_failed", words)
    assert isinstance(end_of(events).exception, TypeError)
    assert kinds(events)[-2:] == ["TurnEnd", "AgentEnd"]


async def test_finish_turn_ends_the_run_or_asks_once_more() -> None:
    """It sees each turn's end; `end` completes the run although calls were answered, `ask` goes on although nothing is open."""
    seen: list[TurnEnd] = []
    verdicts = iter(["ask", None, "end"])

    def finish(turn: TurnEnd) -> str | None:
        seen.append(turn)
        return next(verdicts)

    model = ScriptedModel(["one", [call("x")], [call("x")], "never"])
    events = await played(model, finish_turn=finish)
    assert (failed(events), model.asked) == (("completed", None, None), 3)
    assert seen == [event for event in events if isinstance(event, TurnEnd)]


@pytest.mark.parametrize("queue", ["steering", "follow_up"])
async def test_a_poll_that_gives_what_is_no_input(queue: str) -> None:
    """It is named with its place; what came before it is emitted and kept."""
    gives: list[Any] = [("taken", user("too"), 5, "lost")]
    changes: dict[str, Any] = {f"get_{queue}_messages": lambda: gives.pop() if gives else None}
    events = await played(ScriptedModel(["done"]), **changes)
    words = f"get_{queue}_messages: messages[2]: expected an input or text, got int"
    assert failed(events) == ("fatal", "callback_failed", words)
    assert [m.text for m in end_of(events).messages if isinstance(m, UserMessage)] == ["go", "taken", "too"]


@pytest.mark.parametrize("queue", ["steering", "follow_up"])
@pytest.mark.parametrize(("given", "got"), [({"role": "user"}, "dict"), (b"hi", "bytes"), (5, "int")])
async def test_a_poll_that_gives_no_list_of_inputs(queue: str, given: Any, got: str) -> None:
    """It is told what was expected and what came; the keys of a dict are no inputs."""
    changes: dict[str, Any] = {f"get_{queue}_messages": lambda: given}
    events = await played(ScriptedModel(["done"]), **changes)
    words = f"get_{queue}_messages: expected inputs or text, got {got}"
    assert failed(events) == ("fatal", "callback_failed", words)
    assert [m.text for m in end_of(events).messages if isinstance(m, UserMessage)] == ["go"]


@pytest.mark.parametrize("given", ["alone", user("alone")])
async def test_a_poll_may_give_one_input_alone(given: Any) -> None:
    """A text or a message is that one input, not a sequence of them."""
    gives = [given]
    events = await played(ScriptedModel(["done"]), get_steering_messages=lambda: gives.pop() if gives else None)
    assert [m.text for m in end_of(events).messages if isinstance(m, UserMessage)] == ["go", "alone"]


async def test_a_failing_callback_is_named() -> None:
    """By its setting, and by its own name where it has one of its own; what it raised is named with its class."""

    class Nameless:
        def __call__(self, *args: Any) -> Any:
            raise ValueError("broken")

    def my_poll() -> Any:
        raise KeyError("colour")

    def get_steering_messages() -> Any:
        raise ValueError

    for function, words in (
        (Nameless(), "get_steering_messages raised ValueError: broken"),
        (my_poll, "get_steering_messages (my_poll) raised KeyError: 'colour'"),
        (get_steering_messages, "get_steering_messages raised ValueError"),
    ):
        events = await played(ScriptedModel(["never"]), get_steering_messages=function)
        assert failed(events) == ("fatal", "callback_failed", words)


@pytest.mark.parametrize(
    "setting", ["transform_context", "convert_to_llm", "prepare_request", "get_tools", "finish_turn"]
)
async def test_a_failing_setting_is_named(setting: str) -> None:
    """Whichever setting it is, the words say it beside the function that stands there."""

    def mine(*args: Any) -> Any:
        raise ValueError("broken")

    changes: dict[str, Any] = {setting: mine}
    events = await played(ScriptedModel(["done"]), **changes)
    assert failed(events) == ("fatal", "callback_failed", f"{setting} (mine) raised ValueError: broken")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_order_to_leave_inside_what_a_poll_gave(kind: type[BaseException]) -> None:
    """A generator that raises it while its messages are taken: it leaves by the step (G18)."""

    def messages() -> Any:
        yield "taken"
        raise kind("now")

    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["never"]), get_steering_messages=messages))
    with pytest.raises(kind, match="now"):
        await collect(run)


# ---------------------------------------------------------------- stops


def stopping(how: str, signal: AbortSignal) -> Callable[..., None]:
    """A callback that aborts, or fails."""

    def callback(*args: Any) -> None:
        if how == "fails":
            raise ValueError("broken")
        signal.abort("enough")

    return callback


@pytest.mark.parametrize("how", ["aborts", "fails"])
@pytest.mark.parametrize("name", ["finish_turn", "get_steering_messages"])
async def test_g21_no_turn_begins_after_a_stop_in_a_callback(name: str, how: str) -> None:
    """A synchronous callback stops the run after a turn that asks for more: the next thing is its end."""
    signal = AbortSignal()
    stop = stopping(how, signal)
    turns = [0]

    def callback(*args: Any) -> None:
        turns[0] += 1
        if name == "finish_turn" or turns[0] == 2:
            stop()

    changes: dict[str, Any] = {name: callback}
    events = await played(ScriptedModel([[call("x")], "never"]), abort=signal, **changes)
    after = kinds(events)[kinds(events).index("TurnEnd") + 1 :]
    assert after == (["Abort", "AgentEnd"] if how == "aborts" else ["AgentEnd"])


@pytest.mark.parametrize("how", ["aborts", "fails"])
async def test_g21_no_request_begins_after_a_stop_in_get_tools(how: str) -> None:
    """The turn is closed without an attempt."""
    signal = AbortSignal()
    events = await played(ScriptedModel(["never"]), abort=signal, get_tools=stopping(how, signal))
    assert not [event for event in events if isinstance(event, RequestBegin)]
    assert [event for event in events if isinstance(event, TurnEnd)] == [TurnEnd()]


async def test_g21_no_hook_is_asked_after_an_abort_in_another() -> None:
    """Neither the next hook of this prompt nor one of the next prompt; the prompts are emitted and kept."""
    for name in ("user_prompt", "stop"):
        signal, asked = AbortSignal(), list[str]()

        def hook(who: str, signal: AbortSignal = signal, asked: list[str] = asked) -> Any:
            def callback(value: Any) -> HookAnswer:
                asked.append(who)
                signal.abort("enough")
                return HookAnswer("continue", message="never")

            return callback

        hooks: Any = [Hooks("a", **{name: hook("a")}), Hooks("b", **{name: hook("b")})]
        events = await played(ScriptedModel(["done"]), ["one", "two"], hooks=hooks, abort=signal)
        assert (asked, failed(events)) == (["a"], ("aborted", "user_abort", "enough"))
        assert [m.text for m in end_of(events).messages if isinstance(m, UserMessage)][:2] == ["one", "two"]


async def test_a_hook_that_waits_is_cut_by_an_abort() -> None:
    """The abort comes while a `user_prompt` hook is awaited: nothing is told of it, and no other is asked."""
    signal, asked = AbortSignal(), list[str]()

    async def first(message: UserMessage) -> HookAnswer:
        signal.abort("enough")
        await anyio.sleep_forever()
        raise AssertionError

    def second(message: UserMessage) -> None:
        asked.append(message.text)

    hooks = [Hooks("a", user_prompt=first), Hooks("b", user_prompt=second)]
    events = await played(ScriptedModel(["never"]), hooks=hooks, abort=signal)
    assert (asked, [event for event in events if isinstance(event, Hook)]) == ([], [])
    assert failed(events) == ("aborted", "user_abort", "enough")


# ---------------------------------------------------------------- hooks


async def test_hooks_of_other_kinds_are_passed_over() -> None:
    """A set of hooks need not have each kind; one that says nothing does not keep the next from being asked."""
    asked: list[str] = []

    def prompted(message: UserMessage) -> HookAnswer:
        asked.append("prompted")
        return HookAnswer(message="" if len(asked) == 1 else "added")

    def stopped(turn: TurnEnd) -> HookAnswer | None:
        asked.append("stopped")
        return None if len(asked) == 4 else HookAnswer("continue") if len(asked) == 5 else None

    hooks = [
        Hooks("a", stop=stopped),
        Hooks("b", user_prompt=prompted),
        Hooks("c", user_prompt=prompted),
        Hooks("d", user_prompt=prompted, stop=stopped),
    ]
    model = ScriptedModel(["one", "two"])
    events = await played(model, hooks=hooks)
    assert asked[:5] == ["prompted"] * 3 + ["stopped"] * 2
    inputs = [m.text for m in end_of(events).messages if isinstance(m, UserMessage)]
    assert inputs == ["go", "added", "added", "Continue."]
    assert [(e.name, e.decision, e.reason) for e in events if isinstance(e, Hook)] == [("d", "continue", None)]


# ---------------------------------------------------------------- waits


async def test_a_wait_that_was_skipped_does_not_skip_the_next() -> None:
    """Each is skipped by a call of its own; no alarm of one that was skipped is left."""
    clock = VirtualClock(autojump_threshold=None)
    model = ScriptedModel([ModelError("network", "gone"), ModelError("network", "gone"), "done"])
    run = agent_loop(["go"], Context(), Config(model=model, clock=clock, retry=Retry(waits=(5, 7)), idle_timeout=None))
    async with anyio.create_task_group() as group:
        group.start_soon(collect, run)
        await wait_all_blocked()
        assert (model.asked, clock.asleep) == (1, 1)
        assert run.skip_wait()
        await wait_all_blocked()
        assert (model.asked, clock.asleep) == (2, 1)
        await clock.advance(6)
        assert model.asked == 2
        await clock.advance(1)
        await wait_all_blocked()
        assert (model.asked, clock.asleep) == (3, 0)


async def test_no_alarm_is_left_of_a_wait_that_was_skipped() -> None:
    """While the next attempt's tools run nothing sleeps on the caller's clock."""
    clock, asleep = VirtualClock(autojump_threshold=None), list[int]()

    @tool
    async def look() -> str:
        """Look at the clock."""
        await wait_all_blocked()
        asleep.append(clock.asleep)
        return "ok"

    model = ScriptedModel([ModelError("network", "gone"), [call("look")], "done"])
    run = agent_loop(["go"], Context(tools=[look]), Config(model=model, clock=clock))
    async with anyio.create_task_group() as group:
        group.start_soon(collect, run)
        await wait_all_blocked()
        assert run.skip_wait()
    assert asleep == [0]


async def test_a_retry_waits_as_long_as_it_says() -> None:
    """To the millisecond, on the caller's clock; once that is over there is no wait to skip."""
    clock, moments, skips = VirtualClock(), list[float](), list[bool]()
    script = ScriptedModel([ModelError("network", "gone"), ModelError("network", "gone"), "done"])

    def model(request: ModelRequest) -> Any:
        moments.append(clock.now())
        return script(request)

    run = agent_loop(
        ["go"], Context(), Config(model=model, clock=clock, retry=Retry(waits=(5, 2.5)), idle_timeout=None)
    )
    async for event in run:
        if isinstance(event, MessageStart):
            skips.append(run.skip_wait())
    assert moments == [0.0, 5.0, 7.5]
    assert skips == [False, False]


# ---------------------------------------------------------------- open calls, history, ends


async def test_prompts_behind_open_calls_begin_the_turn_after() -> None:
    """The turn of the open calls has no inputs; the `user_prompt` hooks are asked about the prompts when they are given."""
    asked: list[str] = []

    def prompted(message: UserMessage) -> HookAnswer:
        asked.append(message.text)
        return HookAnswer(message="added")

    @tool
    async def work() -> str:
        """Work."""
        asked.append("work")
        return "ok"

    context = Context(messages=[user("go"), assistant(ToolCall("a", "work", "{}"))], tools=[work])
    model = ScriptedModel(["done"])
    config = Config(model=model, hooks=[Hooks("h", user_prompt=prompted)])
    events = await collect(agent_loop_continue(context, config, ["more"]))
    check(events)
    assert asked == ["work", "more"]
    assert [type(e).__name__ for e in events if isinstance(e, TurnStart | ToolExecutionStart | RequestBegin)] == [
        "TurnStart", "ToolExecutionStart", "TurnStart", "RequestBegin",
    ]  # fmt: skip
    assert [m.text for m in model.requests[0].messages[3:]] == ["more", "added"]


async def test_a_run_that_completed_has_no_exception() -> None:
    """Whatever failed on the way."""
    events = await played(ScriptedModel([ModelError("network", "gone"), "done"]), retry=Retry(waits=(1,)))
    assert (failed(events), end_of(events).exception) == (("completed", None, None), None)


async def test_a_run_that_did_not_complete_keeps_what_was_not_committed() -> None:
    """The reply of the last attempt and the results of its calls stand in `AgentEnd`; where it completed they do not."""
    half = ["half", ModelError("network", "gone")]
    events = await played(ScriptedModel([half, half]), retry=Retry(waits=(1,)))
    assert [getattr(m, "text", None) for m in end_of(events).messages] == ["go", "half"]
    events = await played(ScriptedModel([half, "whole"]), retry=Retry(waits=(1,)))
    assert [getattr(m, "text", None) for m in end_of(events).messages] == ["go", "whole"]


async def test_an_abort_after_a_turn_has_no_exception_of_an_earlier_failure() -> None:
    """The model failed and was asked again; the abort's end has nothing to raise but its own code."""
    signal = AbortSignal()
    events = []
    model = ScriptedModel([ModelError("network", "gone"), "never"])
    config = Config(model=model, clock=VirtualClock(autojump_threshold=None), abort=signal)
    async for event in agent_loop(["go"], Context(), config):
        events.append(event)
        if type(event).__name__ == "RequestEnd":
            signal.abort("enough")
    check(events)
    assert (failed(events), end_of(events).exception) == (("aborted", "backoff_interrupted", "enough"), None)


async def test_a_hook_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """By kind and name, with its traceback; the event says it without one."""
    for kind in ("user_prompt", "stop"):
        caplog.clear()
        error = RuntimeError("broken")

        def hook(value: Any, error: Exception = error) -> None:
            raise error

        hooks: Any = [Hooks("mine", **{kind: hook})]
        events = await played(ScriptedModel(["done"]), hooks=hooks)
        told = [event for event in events if isinstance(event, Hook)]
        assert told == [Hook(kind, "mine", None, "hook failed: broken", {})]
        (record,) = caplog.records
        assert record.exc_info is not None
        assert (record.levelname, record.getMessage(), record.exc_info[1]) == (
            "ERROR", f"the {kind} hook mine failed", error,
        )  # fmt: skip


async def test_g21_a_verdict_is_not_waited_for_after_an_abort() -> None:
    """A poll is given the grace, since it may have taken something; `finish_turn` is cancelled at once."""
    signal, clock = AbortSignal(), VirtualClock()

    async def finish(turn: TurnEnd) -> str:
        signal.abort("enough")
        await clock.sleep(0.1)
        return "end"

    events = await played(ScriptedModel(["done"]), finish_turn=finish, abort=signal, clock=clock, abort_grace=0.25)
    assert (failed(events), clock.now()) == (("aborted", "user_abort", "enough"), 0)
