"""G29 and G30: steering and follow-ups."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given

from agentloop import (
    AbortSignal,
    AgentEnd,
    Config,
    Context,
    MessageEnd,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnStart,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    tool,
    user,
)
from agentloop.grammar import check
from agentloop.messages import ToolCall
from agentloop.testing import ScriptedModel, call, collect, wait_all_blocked

from .world import Plan, World, plans

pytestmark = pytest.mark.anyio


@given(plan=plans())
async def test_g29_what_was_taken_is_emitted_and_kept_once(plan: Plan) -> None:
    """Every message that a poll took has its events and stands in AgentEnd, in order; what was not taken stays queued."""
    world = World(plan)
    await world.play()
    inputs = [e.message.text for e in world.of(MessageEnd) if isinstance(e.message, UserMessage)]
    prompts = list(plan.prompts) if world.of(TurnStart) else []
    assert inputs == [*prompts, *world.taken]
    assert [m.text for m in world.end.messages if isinstance(m, UserMessage)] == inputs
    joined = [text for _, text in plan.steering[: world.joined]]
    assert sorted([*world.taken, *world.steering, *world.follow_ups]) == sorted([*joined, *plan.follow_ups])


async def polls_of(
    replies: list[Any], steering: list[Any], follow_up: list[Any], **changes: Any
) -> tuple[list[str], list[Any]]:
    """The order of requests and polls of a run; each poll takes the next entry of its list."""
    order: list[str] = []
    script = ScriptedModel(replies, past_end="stop")

    def model(request: Any) -> Any:
        order.append("request")
        return script(request)

    def poll(name: str, entries: list[Any]) -> Any:
        order.append(name)
        return entries.pop(0) if entries else None

    config = Config(
        model=model,
        get_steering_messages=lambda: poll("steering", steering),
        get_follow_up_messages=lambda: poll("follow_up", follow_up),
        **{"retry": None, **changes},
    )
    events = await collect(agent_loop(["go"], Context(), config))
    check(events)
    return order, events


async def test_g29_when_the_queues_are_polled() -> None:
    """Steering before the first request and after each turn; follow-ups when the run would end; then steering once more."""
    assert (await polls_of(["a"], [], []))[0] == ["steering", "request", "steering", "follow_up", "steering"]
    assert (await polls_of([[call("x")], "b"], [], []))[0] == [
        "steering", "request", "steering", "request", "steering", "follow_up", "steering",
    ]  # fmt: skip
    assert (await polls_of(["a", "b"], [None, None, ["late"]], []))[0] == [
        "steering", "request", "steering", "follow_up", "steering", "request", "steering", "follow_up", "steering",
    ]  # fmt: skip
    assert (await polls_of(["a", "b"], [], [["more"]]))[0] == [
        "steering", "request", "steering", "follow_up", "request", "steering", "follow_up", "steering",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "replies"),
    [
        ({"finish_turn": lambda turn: "end"}, ["a"]),
        ({"max_turns": 1}, ["a"]),
        ({}, [RuntimeError("gone")]),
    ],
)
async def test_g29_no_poll_after_the_end_is_decided(changes: dict[str, Any], replies: list[Any]) -> None:
    """After finish_turn's end, a limit or a failure nothing is polled: the queues keep what they have."""
    steering: list[Any] = [None, ["kept"]]
    order, _ = await polls_of(replies, steering, [["kept too"]], **changes)
    assert order == ["steering", "request"]
    assert steering == [["kept"]]


async def test_g29_finish_turn_may_ask_for_one_more_request() -> None:
    """`ask` goes on without an input, then steering is polled as ever."""
    verdicts = iter(["ask", None])
    order, events = await polls_of(["a", "b"], [], [], finish_turn=lambda turn: next(verdicts))
    assert order == ["steering", "request", "steering", "request", "steering", "follow_up", "steering"]
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert [m.text for m in end.messages] == ["go", "a", "b"]  # type: ignore[union-attr]


async def test_g29_the_first_poll_comes_after_the_prompts_and_joins_their_turn() -> None:
    """A message queued while idle is in the first request, behind the prompt (case C122)."""
    model = ScriptedModel(["done"])
    polls = iter([["queued while idle"]])
    config = Config(model=model, get_steering_messages=lambda: next(polls, None))
    events = await collect(agent_loop(["go"], Context(), config))
    check(events)
    assert [m.text for m in model.requests[0].messages] == ["go", "queued while idle"]  # type: ignore[union-attr]
    assert len([e for e in events if isinstance(e, TurnStart)]) == 1


async def test_g29_steering_follows_open_calls() -> None:
    """A continued run executes open calls, then takes waiting steering, then asks the model."""

    @tool
    async def ok() -> str:
        """."""
        return "ok"

    context = Context(messages=[user("go"), assistant(ToolCall("a", "ok", "{}"))], tools=[ok])
    model = ScriptedModel(["done"])
    polls = iter([["left"]])
    config = Config(model=model, get_steering_messages=lambda: next(polls, None))
    events = await collect(agent_loop_continue(context, config))
    check(events)
    assert [type(m).__name__ for m in model.requests[0].messages] == [
        "UserMessage", "AssistantMessage", "ToolResultMessage", "UserMessage",
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["first", "between", "follow_up"])
@pytest.mark.parametrize("late", [False, True])
async def test_g29_what_a_poll_took_as_the_run_was_aborted_is_emitted_and_kept(place: str, late: bool) -> None:
    """The abort comes inside the poll that takes a message: it gets its events and stands in AgentEnd; nothing is asked."""
    signal = AbortSignal()
    polls = [0]

    async def take() -> Any:
        polls[0] += 1
        if polls[0] != (1 if place == "first" else 2):
            return None
        signal.abort("now")
        if late:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
        return ["taken"]

    async def follow_up() -> Any:
        signal.abort("now")
        return ["taken"]

    config = Config(
        model=ScriptedModel(["a"]),
        abort=signal,
        get_steering_messages=None if place == "follow_up" else take,
        get_follow_up_messages=follow_up if place == "follow_up" else None,
    )
    events = await collect(agent_loop(["go"], Context(), config))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert end.stop_reason == "aborted"
    assert [m.text for m in end.messages if isinstance(m, UserMessage)] == ["go", "taken"]
    assert config.model.asked == (0 if place == "first" else 1)  # type: ignore[attr-defined]


class Waiting:
    """A steering queue with its bell."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.bell = anyio.Event()

    def put(self, text: str) -> None:
        self.queue.append(text)
        self.bell.set()

    def take(self) -> list[str]:
        texts, self.queue = self.queue, []
        self.bell = anyio.Event()
        return texts

    async def wait(self) -> None:
        await self.bell.wait()


@pytest.mark.parametrize("takes_context", [True, False])
async def test_g30_only_pure_waits_are_cut_short(takes_context: bool) -> None:
    """Steering cuts the interruptible call; the working one runs to its end; what a cut call returns is its real result."""
    steering = Waiting()
    working = anyio.Event()

    @tool
    async def work() -> str:
        """Work."""
        await working.wait()
        return "worked"

    async def with_context(ctx: ToolContext) -> str:
        await ctx.abort.wait()
        return "slept a little"

    async def without() -> str:
        await anyio.sleep_forever()
        return ""

    nap = tool(name="nap", description="Sleep.", interruptible=True)(with_context if takes_context else without)
    model = ScriptedModel([[call("nap", id="n"), call("work", id="w")], "done"])
    config = Config(model=model, get_steering_messages=steering.take, wait_for_steering=steering.wait)
    events: list[Any] = []
    async for event in agent_loop(["go"], Context(tools=[nap, work]), config):
        events.append(event)
        if isinstance(event, ToolExecutionStart) and event.tool_name == "work":
            steering.put("left")
        if isinstance(event, ToolExecutionEnd) and event.tool_name == "nap":
            working.set()
    check(events)
    ends = {e.tool_call_id: e for e in events if isinstance(e, ToolExecutionEnd)}
    assert ends["w"].result.text == "worked"
    if takes_context:
        assert (ends["n"].result.text, ends["n"].stop_reason, ends["n"].error_code) == (
            "slept a little",
            "completed",
            None,
        )
    else:
        assert (ends["n"].stop_reason, ends["n"].error_code) == ("aborted", "aborted")
    assert [m.text for m in model.requests[1].messages][-1] == "left"  # type: ignore[union-attr]


async def test_g30_a_wait_that_was_not_started_is_answered_without_running() -> None:
    """With steering waiting, a later interruptible call does not start; a later working call does."""
    steering = Waiting()
    ran = []

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep."""
        ran.append("nap")
        return ""

    @tool
    async def work() -> str:
        """Work."""
        ran.append("work")
        steering.put("left")
        await wait_all_blocked()  # whoever waits for steering has noticed
        return "worked"

    model = ScriptedModel([[call("work"), call("nap"), call("work")], "done"])
    config = Config(
        model=model, get_steering_messages=steering.take, wait_for_steering=steering.wait, tool_execution="sequential"
    )
    events = await collect(agent_loop(["go"], Context(tools=[nap, work]), config))
    check(events)
    assert ran == ["work", "work"]
    (skipped,) = [e for e in events if isinstance(e, ToolExecutionEnd) and e.tool_name == "nap"]
    assert (skipped.error_code, skipped.stop_reason) == ("aborted", "aborted")


@pytest.mark.parametrize("names", [["nap"], ["work", "nap"], ["nap", "nap"]])
async def test_g30_steering_that_waits_already_cuts_every_wait(names: list[str]) -> None:
    """`wait_for_steering` has nothing to wait for and returns at once, while the calls of the batch still begin."""
    steering = Waiting()

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep."""
        await anyio.sleep_forever()
        return ""

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    def put(request: Any) -> None:
        steering.put("left")

    async def wait() -> None:
        assert steering.queue

    model = ScriptedModel([[put, *[call(name) for name in names]], "done"])
    config = Config(model=model, get_steering_messages=steering.take, wait_for_steering=wait)
    events = await collect(agent_loop(["go"], Context(tools=[nap, work]), config))
    check(events)
    ends = [(e.tool_name, e.error_code) for e in events if isinstance(e, ToolExecutionEnd)]
    assert sorted(ends) == sorted((name, "aborted" if name == "nap" else None) for name in names)


async def test_g30_a_wait_whose_start_was_told_is_not_started_any_more() -> None:
    """Steering comes after its `ToolExecutionStart` and before the consumer came back: it is answered without running."""
    steering = Waiting()
    ran: list[str] = []
    gate = anyio.Event()

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep."""
        ran.append("nap")
        await anyio.sleep_forever()
        return ""

    @tool
    async def work() -> str:
        """Work."""
        ran.append("work")
        await gate.wait()
        return "worked"

    async def before(invocation: Any) -> None:
        if invocation.name == "nap":
            await wait_all_blocked()  # the call before it runs, and steering is waited for

    model = ScriptedModel([[call("work"), call("nap")], "done"])
    config = Config(
        model=model,
        get_steering_messages=steering.take,
        wait_for_steering=steering.wait,
        before_tool_call=before,
    )
    events: list[Any] = []
    async for event in agent_loop(["go"], Context(tools=[nap, work]), config):
        events.append(event)
        if isinstance(event, ToolExecutionStart) and event.tool_name == "nap":
            steering.put("left")
            await wait_all_blocked()
            gate.set()
    check(events)
    assert ran == ["work"]
    (end,) = [e for e in events if isinstance(e, ToolExecutionEnd) and e.tool_name == "nap"]
    assert (end.error_code, end.result.text) == ("aborted", "Not started: a new message from the user is waiting.")


async def test_g30_a_question_about_a_wait_is_left_to_be_answered() -> None:
    """Steering that comes meanwhile withdraws no question; the wait that was allowed is then cut short."""
    steering = Waiting()
    asked = []

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep."""
        await anyio.sleep_forever()
        return ""

    async def approve(request: Any) -> Any:
        asked.append(request.tool_name)
        steering.put("left")
        await wait_all_blocked()  # whoever waits for steering has noticed
        return "allow"

    config = Config(
        model=ScriptedModel([[call("nap")], "done"]),
        get_steering_messages=steering.take,
        wait_for_steering=steering.wait,
        approve=approve,
    )
    events = await collect(agent_loop(["go"], Context(tools=[nap]), config))
    check(events)
    assert asked == ["nap"]
    (end,) = [e for e in events if isinstance(e, ToolExecutionEnd)]
    assert (end.stop_reason, end.error_code) == ("aborted", "aborted")
    assert [e.message.text for e in events if isinstance(e, MessageEnd)][-2:] == ["left", "done"]


async def test_g30_who_waits_for_steering_is_let_go_with_the_batch() -> None:
    """It is asked once a batch, only for one that has a pure wait in it, and has ended before the next request."""
    log: list[str] = []

    @tool(interruptible=True)
    async def nap() -> str:
        """Return when nothing else goes on."""
        await wait_all_blocked()
        return "slept"

    @tool
    async def work() -> str:
        """Return when nothing else goes on."""
        await wait_all_blocked()
        return "worked"

    async def wait() -> None:
        log.append("wait")
        try:
            await anyio.sleep_forever()
        finally:
            log.append("over")

    def asked(request: Any) -> None:
        log.append("asked")

    model = ScriptedModel(
        [
            [asked, call("work"), call("unknown")],
            [asked, call("nap"), call("nap")],
            [asked, call("work"), call("nap")],
            [asked, "done"],
        ]
    )
    config = Config(model=model, wait_for_steering=wait, max_parallel_tools=1)
    events = await collect(agent_loop(["go"], Context(tools=[nap, work]), config))
    check(events)
    assert log == ["asked", "asked", "wait", "over", "asked", "wait", "over", "asked"]
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert end.stop_reason == "completed"


async def test_g30_a_pure_wait_needs_nobody_who_waits_for_steering() -> None:
    """Without `wait_for_steering` it runs to its end like any other call."""

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep a little."""
        await wait_all_blocked()
        return "slept"

    events = await collect(
        agent_loop(["go"], Context(tools=[nap]), Config(model=ScriptedModel([[call("nap")], "done"])))
    )
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert end.stop_reason == "completed"
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == ["slept"]


async def test_g30_who_waits_for_steering_and_fails_ends_the_run() -> None:
    """A callback that fails is the run's failure, told by its name; the pure wait is told to stop."""

    @tool(interruptible=True)
    async def nap() -> str:
        """Sleep."""
        await anyio.sleep_forever()
        return ""

    def wait() -> Any:
        raise ValueError("broken")

    config = Config(model=ScriptedModel([[call("nap")]]), wait_for_steering=wait)
    events = await collect(agent_loop(["go"], Context(tools=[nap]), config))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert (end.stop_reason, end.error_code, end.error_message) == (
        "fatal",
        "callback_failed",
        "wait_for_steering (wait) raised ValueError: broken",
    )


@given(plan=plans(wait_for_steering=False))
async def test_g30_without_the_callback_nothing_is_cut(plan: Plan) -> None:
    """Steering alone never ends a call early: only aborts, deadlines and time-outs do."""
    world = World(plan)
    await world.play()
    if world.end.stop_reason != "aborted" and plan.tool_timeout is None:
        assert not [e for e in world.of(ToolExecutionEnd) if e.error_code == "aborted"]
