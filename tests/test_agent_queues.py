"""`Agent`'s queues: what is said while it works, and that nothing queued is ever lost."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentloop import (
    Agent,
    Block,
    McpConnectEnd,
    MessageEnd,
    MessageUpdate,
    Tool,
    ToolContext,
    ToolExecutionStart,
    UserMessage,
    assistant,
    tool,
    user,
)
from agentloop.grammar import check
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, wait_all_blocked

pytestmark = pytest.mark.anyio


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


@tool
async def work() -> str:
    """Work."""
    return "worked"


async def test_what_is_queued_while_idle_comes_behind_the_next_prompt() -> None:
    """It is in the first request, once (case C122); a follow-up comes when the run would end."""
    model = ScriptedModel(["a", "b"])
    agent = Agent(model)
    agent.follow_up("and then")
    agent.steer("by the way")
    assert (texts(agent.queued("steering")), texts(agent.queued("follow_up"))) == (["by the way"], ["and then"])
    await agent.prompt("go")
    assert texts(model.requests[0].messages) == ["go", "by the way"]
    assert texts(agent.messages) == ["go", "by the way", "a", "and then", "b"]
    assert (agent.queued("steering"), agent.queued("follow_up")) == ((), ())


@pytest.mark.parametrize(
    ("mode", "history"),
    [
        ("one_at_a_time", ["go", "1", "a", "2", "b", "3", "c"]),
        ("all", ["go", "1", "2", "3", "a"]),
    ],
)
async def test_steering_one_at_a_time_or_all(mode: Any, history: list[str]) -> None:
    """The mode says how much a poll takes."""
    agent = Agent(ScriptedModel(["a", "b", "c"]), steering_mode=mode)
    agent.steer(["1", "2", "3"])
    await agent.prompt("go")
    assert texts(agent.messages) == history


@pytest.mark.parametrize(
    ("mode", "history"),
    [
        ("one_at_a_time", ["go", "a", "1", "b", "2", "c"]),
        ("all", ["go", "a", "1", "2", "b"]),
    ],
)
async def test_follow_ups_one_at_a_time_or_all(mode: Any, history: list[str]) -> None:
    """The same for follow-ups; the mode may be changed at any time."""
    agent = Agent(ScriptedModel(["a", "b", "c"]))
    assert (agent.steering_mode, agent.follow_up_mode) == ("one_at_a_time", "one_at_a_time")
    agent.follow_up_mode = mode
    agent.steering_mode = "all"
    agent.follow_up("1")
    agent.follow_up("2")
    await agent.prompt("go")
    assert texts(agent.messages) == history


async def test_steering_comes_before_follow_ups_and_after_the_calls() -> None:
    """Steering waits for the batch that runs and is in the next request; follow-ups wait for the end."""
    model = ScriptedModel([[call("work"), call("work")], "b", "c"])
    agent = Agent(model, tools=[work])

    def say(event: Any) -> None:
        if isinstance(event, ToolExecutionStart) and not agent.queued("steering"):
            agent.follow_up("later")
            agent.steer("now")

    stop = agent.subscribe(say)
    agent.subscribe(lambda event: stop() if isinstance(event, ToolExecutionStart) else None)
    await agent.prompt("go")
    assert texts(agent.messages) == ["go", "", "worked", "worked", "now", "b", "later", "c"]


async def test_an_abort_leaves_the_queues() -> None:
    """A message queued while a tool runs is still there after the abort, and not in the history (case C049)."""
    started = anyio.Event()

    @tool
    async def long() -> str:
        """Wait."""
        started.set()
        await anyio.sleep_forever()
        return "never"

    model = ScriptedModel([[call("long")], "answer"])
    agent = Agent(model, tools=[long])
    ends: list[Any] = []

    async def drive() -> None:
        ends.append(await agent.prompt("go"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drive)
        await started.wait()
        agent.steer("second")
        agent.follow_up("third")
        assert agent.abort("enough") is True
        await agent.wait_for_idle()
        assert agent.is_running is False
    assert (ends[0].stop_reason, ends[0].error_message, model.asked) == ("aborted", "enough", 1)
    assert (texts(agent.queued("steering")), texts(agent.queued("follow_up"))) == (["second"], ["third"])
    assert [m.role for m in agent.messages] == ["user", "assistant", "tool_result"]  # type: ignore[union-attr]
    assert texts(agent.take_back()) == ["second", "third"]
    assert agent.take_back() == ()
    agent.clear_queue()
    assert (await agent.prompt("on")).stop_reason == "completed"


async def test_take_back_and_clear() -> None:
    """One queue or both, steering first; a message that a run took is gone from here."""
    agent = Agent(ScriptedModel([["a", STALL]]))
    agent.steer(["s1", "s2", "s3"])
    agent.follow_up(["f1", "f2"])
    back: list[Any] = []

    def watch(event: Any) -> None:
        if isinstance(event, MessageUpdate) and not back:
            back.append(agent.take_back("steering"))
            agent.clear_queue("follow_up")
            agent.abort()

    agent.subscribe(watch)
    await agent.prompt("go")
    assert texts(back[0]) == ["s2", "s3"]
    assert texts(agent.messages)[:2] == ["go", "s1"]
    assert agent.take_back() == ()


@pytest.mark.parametrize("how", ["failure", "callback", "limit", "block"])
async def test_what_waits_survives_every_end(how: str) -> None:
    """A model's failure, a callback that raises, a limit: what was taken is in the history, the rest still waits."""
    settings: dict[str, Any] = {
        "failure": {"retry": None},
        "callback": {"finish_turn": lambda turn: 1 / 0},
        "limit": {"max_turns": 1},
        "block": {"before_tool_call": lambda call: Block("no", terminate=True), "finish_turn": lambda turn: "end"},
    }[how]
    reply: Any = {"failure": RuntimeError("broken"), "callback": "a", "limit": [call("work")], "block": [call("work")]}[
        how
    ]
    agent = Agent(ScriptedModel([reply]), tools=[work], **settings)
    agent.steer(["s1", "s2"])
    agent.follow_up("f1")
    await agent.prompt("go")
    said = [m.text for m in agent.messages if isinstance(m, UserMessage)]
    assert (said, texts(agent.take_back())) == (["go", "s1"], ["s2", "f1"])


class InterruptedOnce:
    """A source of tools that is interrupted from the keyboard, once: after a poll, before the message's events."""

    servers = ()
    asked = 0

    async def connect(self) -> Any:
        return McpConnectEnd("completed"), ()

    async def changed(self) -> None:
        self.asked += 1
        if self.asked == 1:
            raise KeyboardInterrupt

    async def close(self) -> None:
        return


async def test_what_was_taken_and_not_emitted_waits_again_in_its_place() -> None:
    """A run that is cut off between the poll and the message gives the message back, in front, in order."""
    agent = Agent(ScriptedModel(["a", "b", "c"]), steering_mode="all", tool_source=InterruptedOnce())

    def say(event: Any) -> None:
        if event.type == "request_end":
            agent.steer(["s1", "s2"])
        if event.type == "turn_end":
            agent.follow_up("f1")

    stop = agent.subscribe(say)
    with pytest.raises(KeyboardInterrupt):
        await agent.prompt("go")
    stop()
    assert texts(agent.queued("steering")) == ["s1", "s2"]
    assert texts(agent.queued("follow_up")) == ["f1"]
    assert (agent.is_running, agent.state.is_streaming, texts(agent.messages)) == (False, False, ["go", "a"])
    agent.steer("s3")
    await agent.prompt("on")
    assert texts(agent.messages) == ["go", "a", "on", "s1", "s2", "s3", "b", "f1", "c"]


@pytest.mark.parametrize("count", range(1, 16))
async def test_a_cancellation_at_any_event_loses_and_doubles_nothing(count: int) -> None:
    """Each message is either in the history or in its queue, whatever event the caller was cancelled at."""
    agent = Agent(ScriptedModel([[call("work")], "b", "c", "d", "e"]), tools=[work], clock=VirtualClock())
    agent.steer(["s1", "s2"])
    agent.follow_up(["f1", "f2"])
    events: list[Any] = []

    with anyio.CancelScope() as scope:

        async def cancel(event: Any) -> None:
            events.append(event)
            if len(events) == count:
                scope.cancel()
            await anyio.lowlevel.checkpoint()

        agent.subscribe(cancel)
        await agent.prompt("go")
    assert scope.cancelled_caught
    check(events)
    assert events[-1].stop_reason == "aborted"
    said = [m.text for m in agent.messages if isinstance(m, UserMessage)]
    assert said[:1] == (["go"] if said else [])
    left = texts(agent.queued("steering")) + texts(agent.queued("follow_up"))
    assert said[1:] + left == ["s1", "s2", "f1", "f2"]
    assert (agent.is_running, agent.state.is_streaming, agent.state.error) == (False, False, "the caller was cancelled")


async def test_a_prompt_out_of_the_queue_is_given_back_too() -> None:
    """`continue_` that takes its prompt from a queue and is stopped before its first turn puts it back."""
    from agentloop import AbortSignal

    fired = AbortSignal()
    fired.abort("not now")
    agent = Agent(ScriptedModel([]), messages=["go", assistant("done")], abort=fired)
    agent.follow_up(["f1", "f2"])
    assert (await agent.continue_()).error_message == "not now"
    assert (texts(agent.messages), texts(agent.queued("follow_up"))) == (["go", "done"], ["f1", "f2"])


async def test_the_same_message_may_be_queued_twice() -> None:
    """Each entry counts, whatever it holds."""
    same = user("again")
    agent = Agent(ScriptedModel(["a", "b", "c"]))
    agent.steer([same, same])
    agent.follow_up(same)
    await agent.prompt(same)
    assert texts(m for m in agent.messages if m is same) == ["again"] * 4
    assert agent.take_back() == ()


async def test_an_interruptible_wait_ends_when_somebody_steers() -> None:
    """From the event loop's own thread or another."""
    waits = anyio.Event()

    async def wait(arguments: dict[str, Any], ctx: ToolContext) -> str:
        waits.set()
        await ctx.abort.wait()
        return "interrupted"

    pause = Tool("pause", "Wait.", {"type": "object"}, wait, interruptible=True)
    agent = Agent(ScriptedModel([[call("pause")], "b", [call("pause")], "d"]), tools=[pause])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.prompt, "go")
        await waits.wait()
        waits = anyio.Event()
        agent.steer("here")
        await agent.wait_for_idle()
        tasks.start_soon(agent.prompt, "on")
        await waits.wait()
        await anyio.to_thread.run_sync(agent.steer, "from a thread")
    assert texts(agent.messages) == [
        "go", "", "interrupted", "here", "b", "on", "", "interrupted", "from a thread", "d",
    ]  # fmt: skip


async def test_queues_and_abort_from_many_threads() -> None:
    """Threads that queue at once lose nothing; each thread's messages stay in their order."""
    agent = Agent(ScriptedModel(past_end="stop", keep_requests=False), steering_mode="all")
    threads = [
        threading.Thread(target=lambda n=n: [agent.steer(f"{n} {i}") for i in range(20)])  # type: ignore[misc]
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await agent.prompt("go")
    await agent.prompt("go")
    said = [m.text for m in agent.messages if isinstance(m, UserMessage) and m.text != "go"]
    assert sorted(said) == sorted(f"{n} {i}" for n in range(4) for i in range(20))
    for n in range(4):
        assert [text for text in said if text.startswith(f"{n} ")] == [f"{n} {i}" for i in range(20)]


async def test_abort_from_a_thread_ends_the_run() -> None:
    """`abort` may be called from anywhere; the reason is the first that was given."""
    agent = Agent(ScriptedModel([["a", STALL]]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.prompt, "go")
        await wait_all_blocked()
        assert await anyio.to_thread.run_sync(agent.abort, "from a thread") is True
        agent.abort("too late")
    assert agent.state.error == "from a thread"


async def test_events_of_queued_messages_come_once() -> None:
    """Each has its start and end."""
    agent = Agent(ScriptedModel(["a", "b"]))
    ends: list[str] = []
    agent.subscribe(lambda event: ends.append(event.message.text) if isinstance(event, MessageEnd) else None)
    agent.steer("s")
    agent.follow_up("f")
    await agent.prompt("go")
    assert ends == ["go", "s", "a", "f", "b"]
