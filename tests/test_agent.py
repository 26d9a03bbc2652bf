"""`Agent`: prompts, the history, what requests are made with, and its state at every event."""

from __future__ import annotations

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
    AgentStart,
    CompactionState,
    Image,
    MessageEnd,
    MessageUpdate,
    RequestBegin,
    Retry,
    Text,
    TokenUsage,
    Tool,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolResultMessage,
    TurnEnd,
    TurnStart,
    UserMessage,
    assistant,
    user,
)
from agentloop.agent import Agent, AgentState
from agentloop.grammar import check
from agentloop.messages import ToolCall, Usage
from agentloop.model import Finish, UsageChunk
from agentloop.testing import CUT, STALL, ScriptedModel, VirtualClock, call, wait_all_blocked
from agentloop.testing.strategies import model_scripts, streams

pytestmark = pytest.mark.anyio


def named(name: str) -> Tool:
    async def execute(arguments: dict[str, Any]) -> str:
        return f"{name} ran"

    return Tool(name, f"The tool {name}.", {"type": "object"}, execute)


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def facts(state: AgentState) -> dict[str, Any]:
    names = ("messages", "is_streaming", "stream_message", "pending_tool_calls", "error", "usage", "session_usage")
    return {name: getattr(state, name) for name in (*names, "pending_summary")}


# ---------------------------------------------------------------- prompts and the history


async def test_prompts_join_one_history() -> None:
    """Each run begins with what the runs before left; `prompt` returns the run's end."""
    model = ScriptedModel(["one", "two"])
    agent = Agent(model, system_prompt="Be brief.", messages=["before", assistant("noted")])
    end = await agent.prompt("first")
    assert isinstance(end, AgentEnd)
    assert texts(end.messages) == ["first", "one"]
    await agent.prompt("second")
    assert texts(agent.state.messages) == ["before", "noted", "first", "one", "second", "two"]
    assert texts(model.requests[1].messages) == ["before", "noted", "first", "one", "second"]
    assert {request.system_prompt for request in model.requests} == {"Be brief."}
    assert (agent.is_running, agent.state.is_streaming, agent.state.error) == (False, False, None)


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ("text", (user("text"),)),
        (Text("block"), (user("block"),)),
        (Image("https://example.org/a.png"), (user(Image("https://example.org/a.png")),)),
        (["See", Image("https://example.org/a.png")], (user("See", Image("https://example.org/a.png")),)),
        (user("message", sender="someone"), (user("message", sender="someone"),)),
        (["two", "texts"], (user("two"), user("texts"))),
        ([user("two"), "mixed"], (user("two"), user("mixed"))),
    ],
)
async def test_what_can_be_said(content: Any, messages: tuple[UserMessage, ...]) -> None:
    """Text, a block, blocks (one message), a message, messages."""
    agent = Agent(ScriptedModel(["yes"]))
    await agent.prompt(content)
    assert agent.messages[:-1] == messages


@pytest.mark.parametrize(
    ("content", "place"),
    [(7, "content"), (b"bytes", "content"), ([Text("a"), user("b")], r"content\[1\]"), (["a", 3], r"messages\[1\]")],
)
async def test_what_cannot_be_said(content: Any, place: str) -> None:
    """Anything else is a TypeError that names the place, and leaves the agent as it was."""
    agent = Agent(ScriptedModel(["yes"]))
    with pytest.raises(TypeError, match=place):
        await agent.prompt(content)
    with pytest.raises(TypeError, match=place):
        agent.steer(content)
    assert (agent.is_running, agent.messages, agent.queued("steering")) == (False, (), ())
    assert (await agent.prompt("go")).stop_reason == "completed"


@pytest.mark.parametrize(
    ("model", "words"), [("openai:gpt", "resolve\\('openai:gpt'\\) gives one"), (None, "got None")]
)
async def test_what_is_no_model_is_refused_at_once(model: Any, words: str) -> None:
    """A name or nothing in the model's place is no failed request that is asked again."""
    with pytest.raises(TypeError, match=f"Config.model: expected a callable.*{words}"):
        Agent(model)


async def test_a_lone_tool_is_no_list_of_tools() -> None:
    """It is said in the words of a context's."""
    for tools in (named("work"), None):
        with pytest.raises(TypeError, match=f"^tools: expected a list of tools, got {type(tools).__name__}$"):
            Agent(ScriptedModel(), tools=tools)  # type: ignore[arg-type]


def test_a_prompt_outside_of_an_event_loop_leaves_the_agent_idle() -> None:
    """It is refused before the agent is taken, and the next one runs."""
    agent = Agent(ScriptedModel(["yes"]))
    with pytest.raises(RuntimeError, match="event loop"):
        agent.prompt("go").send(None)
    assert not agent.is_running
    assert agent.run_sync("go").stop_reason == "completed"


async def test_a_second_prompt_is_an_error_that_names_steer() -> None:
    """One run at a time; the run that goes on is not hurt."""
    agent = Agent(ScriptedModel(["yes"]))
    errors: list[str] = []

    async def again(event: Any) -> None:
        for start in (lambda: agent.prompt("now"), agent.continue_, agent.compact):
            with pytest.raises(RuntimeError, match="steer") as caught:
                await start()
            errors.append(str(caught.value))
        with pytest.raises(RuntimeError, match="steer"):
            agent.run_sync("now")
        with pytest.raises(RuntimeError, match="running"):
            agent.reset()

    agent.subscribe(again)
    end = await agent.prompt("go")
    assert (end.stop_reason, texts(agent.messages)) == ("completed", ["go", "yes"])
    assert len(errors) == 3 * 14, "one of them was not refused: the listener was dropped"


async def test_nothing_to_run_is_a_value_error_and_leaves_the_agent_usable() -> None:
    """An empty prompt on an empty history; `continue_` with nothing to do; `compact` without a compaction."""
    agent = Agent(ScriptedModel(["yes"]))
    for start in (lambda: agent.prompt(()), agent.continue_, agent.compact):
        with pytest.raises(ValueError, match="expected"):
            await start()
    assert not agent.is_running
    await agent.prompt("go")
    with pytest.raises(ValueError, match="complete reply"):
        await agent.continue_()
    assert texts(agent.messages) == ["go", "yes"]


def test_a_setting_is_no_attribute() -> None:
    """Set on the agent it would do nothing; the settings are in `config`. A subclass may have attributes of its own."""
    agent: Any = Agent(ScriptedModel([]))
    for name, value in (("max_turns", 3), ("retry", None), ("max_turn", 3), ("abort_signal", AbortSignal())):
        with pytest.raises(AttributeError, match=name):
            setattr(agent, name, value)
    agent.config = attrs.evolve(agent.config, max_turns=3)
    assert agent.config.max_turns == 3

    class Named(Agent):
        """With a name."""

    named: Any = Named(ScriptedModel([]))
    named.name = "Ada"
    assert named.name == "Ada"


async def test_settings_are_checked() -> None:
    """Unknown ones, those that the agent gives itself, modes and doubled tools are refused where they are given."""
    model = ScriptedModel([])
    with pytest.raises(TypeError, match=r"^Agent: expected a field of Config, got 'nonsense'$"):
        Agent(model, nonsense=1)
    with pytest.raises(TypeError, match=r"got 'max_turn' \(did you mean max_turns\?\)$"):
        Agent(model, max_turn=1)
    with pytest.raises(TypeError, match=r"got 'system' \(did you mean system_prompt\?\)$"):
        Agent(model, system="Be brief.")
    for name in ("get_steering_messages", "get_follow_up_messages", "wait_for_steering", "get_tools"):
        with pytest.raises(TypeError, match="the agent gives this itself"):
            Agent(model, **{name: lambda: None})
    with pytest.raises(ValueError, match="steering_mode: expected"):
        Agent(model, steering_mode="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two named 'a'"):
        Agent(model, tools=[named("a"), named("a")])
    with pytest.raises(TypeError, match="system_prompt: expected a text or None, got int"):
        Agent(model, system_prompt=5)  # type: ignore[arg-type]
    agent = Agent(model)
    with pytest.raises(TypeError, match="system_prompt: expected a text or None, got int"):
        agent.system_prompt = 5  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        agent.state = None  # type: ignore[misc,assignment]
    with pytest.raises(AttributeError):
        agent.state.messages = ()  # type: ignore[misc]


# ---------------------------------------------------------------- continue_


async def test_continue_asks_again_after_a_failure() -> None:
    """A reply that was cut short stays visible in the history, is in no request, and is asked again."""
    model = ScriptedModel([["half", CUT], "whole", "next"])
    agent = Agent(model, retry=None)
    end = await agent.prompt("go")
    assert (end.error_code, agent.state.error) == ("truncated", end.error_message)
    assert [getattr(m, "stop_reason", None) for m in agent.messages] == [None, "retryable"]
    await agent.continue_()
    assert agent.state.error is None
    assert texts(model.requests[1].messages) == ["go"]
    assert texts(agent.messages) == ["go", "half", "whole"]
    await agent.prompt("more")
    assert texts(model.requests[2].messages) == ["go", "whole", "more"]


async def test_continue_never_uses_the_id_of_a_call_again() -> None:
    """A call of a reply that was cut short stays in the history; what the retry calls is told apart from it."""
    model = ScriptedModel([[call("work", id="c"), CUT], [call("work", id="c")], "done"])
    agent = Agent(model, retry=None, tools=[named("work")])
    await agent.prompt("go")
    await agent.continue_()
    results = [m.tool_call_id for m in agent.messages if isinstance(m, ToolResultMessage)]
    assert results == ["c", "c#2"]
    assert texts(agent.messages)[-1] == "done"


async def test_continue_runs_open_calls() -> None:
    """Calls of a committed last reply that have no result run first."""
    model = ScriptedModel(["done"])
    agent = Agent(model, messages=["go", assistant(ToolCall("c1", "work"))], tools=[named("work")])
    await agent.continue_()
    assert texts(agent.messages) == ["go", "", "work ran", "done"]


@pytest.mark.parametrize("queue", ["steering", "follow_up"])
async def test_continue_goes_on_with_what_waits(queue: Any) -> None:
    """Where the history asks for nothing, a queue gives the prompt, by its mode."""
    model = ScriptedModel(["a", "b", "c"])
    agent = Agent(model, messages=["go", assistant("done")])
    say = agent.steer if queue == "steering" else agent.follow_up
    say(["one", "two"])
    await agent.continue_()
    assert texts(agent.messages) == ["go", "done", "one", "a", "two", "b"]
    assert agent.queued(queue) == ()


# ---------------------------------------------------------------- what a request is made with


async def test_changes_take_effect_with_the_next_request() -> None:
    """Model, system prompt, options and tools that change while a call runs are in the request behind it."""
    second = ScriptedModel([[call("new")], "done"], provider="other", model="m2")
    first = ScriptedModel([[call("old")], "never"], provider="one", model="m1")
    agent = Agent(first, system_prompt="A", options={"thinking": "low"}, tools=[named("old")])

    def change(event: Any) -> None:
        if isinstance(event, ToolExecutionEnd) and event.tool_name == "old":
            agent.model, agent.system_prompt, agent.tools = second, "B", [named("new")]
            agent.options = {"thinking": "high"}

    agent.subscribe(change)
    await agent.prompt("go")
    asked = [first.requests[0], *second.requests]
    assert [(r.system_prompt, r.options["thinking"], [spec.name for spec in r.tools]) for r in asked] == [
        ("A", "low", ["old"]),
        ("B", "high", ["new"]),
        ("B", "high", ["new"]),
    ]
    assert texts(agent.messages) == ["go", "", "old ran", "", "new ran", "done"]
    replies = [m for m in agent.messages if m.role == "assistant"]  # type: ignore[union-attr]
    assert [(m.provider, m.model) for m in replies] == [("one", "m1"), ("other", "m2"), ("other", "m2")]  # type: ignore[union-attr]
    assert first.asked == 1


@pytest.mark.parametrize("where", [AgentStart, TurnStart, MessageEnd])
async def test_a_change_before_the_first_request_is_in_it(where: type) -> None:
    """Also what a listener changes when the run has begun already."""
    model = ScriptedModel(["done"])
    agent = Agent(ScriptedModel([]), tools=[named("old")])

    def change(event: Any) -> None:
        if isinstance(event, where):
            agent.model, agent.tools, agent.system_prompt = model, (named("new"),), "B"

    agent.subscribe(change)
    await agent.prompt("go")
    assert ([spec.name for spec in model.requests[0].tools], model.requests[0].system_prompt) == (["new"], "B")


async def test_a_change_during_a_retry_is_in_the_next_attempt() -> None:
    """A failing model can be exchanged while the retry is waited for."""
    good = ScriptedModel(["fine"])
    agent = Agent(ScriptedModel([ConnectionError("gone")]), clock=VirtualClock())

    def change(event: Any) -> None:
        if event.type == "request_end":
            agent.model = good

    agent.subscribe(change)
    assert (await agent.prompt("go")).stop_reason == "completed"
    assert texts(agent.messages) == ["go", "fine"]


@pytest.mark.parametrize("kind", ["sync", "async", "none"])
async def test_prepare_request_sees_the_request_as_it_will_be(kind: str) -> None:
    """The application's own callback comes last, and may still replace."""
    seen: list[Any] = []

    def sync(request: Any) -> Any:
        seen.append(request.system_prompt)
        return None if kind == "none" else attrs.evolve(request, system_prompt="C")

    async def later(request: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return sync(request)

    model = ScriptedModel(["done"])
    agent = Agent(model, system_prompt="A", prepare_request=later if kind == "async" else sync)
    agent.subscribe(lambda event: setattr(agent, "system_prompt", "B"))
    await agent.prompt("go")
    assert seen == ["B"]
    assert model.requests[0].system_prompt == ("B" if kind == "none" else "C")


async def test_config_changes_with_the_next_run() -> None:
    """What is no part of a request (limits, approval, …) is that of the run's start."""
    agent = Agent(ScriptedModel([[call("work")], [call("work")], "x", [call("work")]]), tools=[named("work")])
    agent.subscribe(lambda event: setattr(agent, "config", attrs.evolve(agent.config, max_turns=1)))
    assert (await agent.prompt("go")).stop_reason == "completed"
    assert (await agent.prompt("go")).error_code == "max_turns"


# ---------------------------------------------------------------- tokens


async def test_tokens_are_counted_once() -> None:
    """The session's sum has every attempt once, the failed and the aborted too; `TokenUsage` says the committed ones."""

    def used(count: int) -> UsageChunk:
        return UsageChunk(Usage(0, count, 0))

    model = ScriptedModel([
        [used(1), "a", used(2)],
        [used(10), "b", CUT],
        [used(20), "b"],
        [used(100), "c", STALL],
        [used(1000), "d"],
    ])  # fmt: skip
    agent = Agent(model, clock=VirtualClock(), session_usage=Usage(0, 5, 0), idle_timeout=None)
    said: list[tuple[int, int]] = []

    def watch(event: Any) -> None:
        if isinstance(event, TokenUsage):
            said.append((event.session.total, event.request.total))
        if isinstance(event, MessageUpdate) and getattr(event.delta, "text", "") == "c":
            agent.abort()

    agent.subscribe(watch)
    sums = []
    for prompt in ("1", "2", "3", "4"):
        sums.append(
            ((await agent.prompt(prompt)).usage.total, agent.state.usage.total, agent.state.session_usage.total)
        )
    assert said == [(7, 2), (27, 20), (1027, 1000)]
    assert sums == [(2, 7, 7), (30, 37, 27), (100, 137, 27), (1000, 1137, 1027)]


async def test_tokens_are_those_of_the_moment() -> None:
    """During a run the sum grows with each request's end."""
    model = ScriptedModel([[call("x"), UsageChunk(Usage(1, 2, 3))], [UsageChunk(Usage(0, 0, 4)), "done"]])
    agent = Agent(model)
    totals: list[int] = []
    agent.subscribe(lambda event: totals.append(agent.state.usage.total) if isinstance(event, TurnEnd) else None)
    await agent.prompt("go")
    assert totals == [6, 10]


# ---------------------------------------------------------------- compaction


class Short:
    """A compaction that is due at the end of each run that has used tokens."""

    mode = "summarize"

    def due(self, state: CompactionState) -> Any:
        return "context" if state.at_end and state.context >= 100 else None

    def prompt(self, attempt: int, problem: str | None) -> list[UserMessage]:
        return [user("Summarise")]

    def accept(self, reply: Any) -> str | None:
        return reply.text or None

    def summary(self, text: str) -> UserMessage:
        return user(f"[summary] {text}")


async def test_a_pending_summary_opens_the_next_run() -> None:
    """It is given first, once, also when a run in between was stopped before its first turn; `continue_` takes it too."""
    big = UsageChunk(Usage(0, 100, 0))
    model = ScriptedModel([["long", big], "short", "next", ["long", big], "shorter", "on"])
    agent = Agent(model, compaction=Short())
    await agent.prompt("go")
    assert agent.messages == ()
    assert agent.state.pending_summary == user("[summary] short")
    settings, fired = agent.config, AbortSignal()
    fired.abort()
    agent.config = attrs.evolve(settings, abort=fired)
    assert (await agent.prompt("lost")).stop_reason == "aborted"
    agent.config = settings
    assert (agent.messages, agent.state.pending_summary) == ((), user("[summary] short"))
    await agent.prompt("and?")
    assert texts(model.requests[2].messages) == ["[summary] short", "and?"]
    assert agent.state.pending_summary is None
    await agent.prompt("more")
    await agent.continue_()
    assert texts(agent.messages) == ["[summary] shorter", "on"]


async def test_a_manual_compaction() -> None:
    """`compact` is a run of its own; the history is the summary that the next run begins with."""
    model = ScriptedModel(["a", "short", "b"])
    agent = Agent(model, compaction=Short())
    await agent.prompt("go")
    end = await agent.compact()
    assert (end.replaces_context, end.pending_summary) == (True, user("[summary] short"))
    await agent.prompt("on")
    assert texts(agent.messages) == ["[summary] short", "on", "b"]


async def test_reset() -> None:
    """A new conversation: messages as given, no tokens, no summary, no error; the queues stay."""
    agent = Agent(ScriptedModel([["x", UsageChunk(Usage(1, 1, 1)), CUT], "fresh"]), retry=None)
    await agent.prompt("go")
    agent.follow_up("later")
    agent.reset(["before"])
    assert (texts(agent.messages), agent.state.error, agent.state.usage) == (["before"], None, Usage())
    assert texts(agent.queued("follow_up")) == ["later"]


# ---------------------------------------------------------------- the state is the fold


@given(runs=st.lists(streams(), min_size=1, max_size=3))
def test_the_state_is_the_kernels_fold(runs: list[Any]) -> None:
    """Over any legal streams: history is what came before, and AgentEnd.messages behind or in its place."""
    state = AgentState()
    history: tuple[Any, ...] = ()
    spent = Usage()
    for events in runs:
        for event in events:
            state.apply(event)
            assert state.is_streaming == (not isinstance(event, AgentEnd))
        end = next(event for event in reversed(events) if isinstance(event, AgentEnd))
        history = end.messages if end.replaces_context else history + end.messages
        spent += end.usage
        assert (state.messages, state.usage) == (history, spent)
        assert (state.stream_message, state.pending_tool_calls) == (None, ())
        assert (state.error is None) == (end.stop_reason == "completed")


@given(script=model_scripts(), prompts=st.lists(st.sampled_from(["go", "on"]), min_size=1, max_size=3), data=st.data())
async def test_the_state_is_what_an_observer_rebuilds(script: list[Any], prompts: list[str], data: Any) -> None:
    """At every event of several runs, some of them aborted, it equals the fold of the events over the same beginning."""
    model = ScriptedModel(script, past_end="stop")
    agent = Agent(model, tools=[named("look"), named("add")], retry=Retry(waits=(1,)), clock=VirtualClock())
    observer = AgentState()
    events: list[Any] = []
    stop_at = data.draw(st.integers(0, 60))

    def watch(event: Any) -> None:
        observer.apply(event)
        events.append(event)
        assert facts(agent.state) == facts(observer)
        if len(events) == stop_at:
            agent.abort("enough")

    agent.subscribe(watch)
    for prompt in prompts:
        events.clear()
        await agent.prompt(prompt)
        check(events)
        assert len(agent._listeners) == 1, "the observer was dropped: a difference was seen"
        assert facts(agent.state) == facts(observer)


async def test_the_open_reply_and_running_calls() -> None:
    """`stream_message` grows with the deltas; `pending_tool_calls` holds what has started and not ended."""
    agent = Agent(ScriptedModel([["a", "b", call("work", id="c1"), Finish("tool_use")], "done"]), tools=[named("work")])
    seen: list[Any] = []

    def watch(event: Any) -> None:
        message = agent.state.stream_message
        if isinstance(event, MessageUpdate):
            assert message == event.message
        elif isinstance(event, RequestBegin):
            assert message is None
        elif isinstance(event, ToolExecutionStart | ToolExecutionEnd):
            seen.append(agent.state.pending_tool_calls)

    agent.subscribe(watch)
    await agent.prompt("go")
    assert seen == [("c1",), ()]
    assert len(agent._listeners) == 1


async def test_an_outer_signal_stops_the_runs() -> None:
    """The setting `abort` is a signal for all runs; the agent's own abort leaves it alone."""
    signal = AbortSignal()
    agent = Agent(ScriptedModel([["a", STALL], ["b", STALL]]), abort=signal)
    stop = agent.subscribe(lambda event: isinstance(event, MessageUpdate) and agent.abort("mine"))
    assert (await agent.prompt("go")).error_message == "mine"
    assert not signal.aborted
    stop()
    agent.subscribe(lambda event: isinstance(event, MessageUpdate) and signal.abort("theirs"))
    assert (await agent.prompt("go")).error_message == "theirs"
    assert (await agent.prompt("go")).error_message == "theirs"
    assert agent.abort() is False


async def test_skip_wait() -> None:
    """A retry's wait can be ended; there is nothing to end when idle."""
    agent = Agent(ScriptedModel([ConnectionError("gone"), "done"]), clock=VirtualClock(autojump_threshold=None))
    assert agent.skip_wait() is False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.prompt, "go")
        await wait_all_blocked()
        assert agent.skip_wait() is True
    assert texts(agent.messages) == ["go", "done"]
