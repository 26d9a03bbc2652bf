"""`Agent`'s listeners and readers, and what becomes of a run when its caller leaves."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import (
    Agent,
    AgentEnd,
    AgentStart,
    MessageUpdate,
    ToolContext,
    ToolExecutionEnd,
    TurnEnd,
    tool,
)
from agentloop.grammar import check
from agentloop.testing import STALL, ScriptedModel, call, wait_all_blocked

pytestmark = pytest.mark.anyio


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


@tool
async def work() -> str:
    """Work."""
    return "worked"


# ---------------------------------------------------------------- listeners


async def test_an_awaited_listener_is_a_barrier() -> None:
    """While it is awaited nothing begins: no request, no tool, no poll; then the run goes on where it stood."""
    log: list[str] = []

    @tool
    async def note() -> str:
        """Note."""
        log.append("tool")
        return "noted"

    def asked(request: Any) -> None:
        log.append("request")

    agent = Agent(ScriptedModel([[asked, call("note")], [asked, "done"]]), tools=[note])

    async def slow(event: Any) -> None:
        log.append(f"in {event.type}")
        await wait_all_blocked()
        log.append(f"out {event.type}")

    agent.subscribe(slow)
    await agent.prompt("go")
    inside = 0
    for entry in log:
        inside += entry.startswith("in ")
        inside -= entry.startswith("out ")
        assert not (inside and entry in ("tool", "request")), f"{entry} began while a listener was awaited"
    assert log.count("tool") == 1
    assert log.count("request") == 2
    assert log.index("out tool_execution_start") < log.index("tool") < log.index("in tool_execution_end")


async def test_what_is_no_listener_is_refused_at_once() -> None:
    """Not at the first event, where it could only be logged and dropped."""
    with pytest.raises(TypeError, match=r"^listener: expected a function that takes an event, got None$"):
        Agent(ScriptedModel()).subscribe(None)  # type: ignore[arg-type]


async def test_listeners_are_told_in_order_sync_and_async() -> None:
    """One after the other, each of every event, in the order in which they subscribed."""
    agent = Agent(ScriptedModel(["done"]))
    told: list[tuple[str, str]] = []

    async def second(event: Any) -> None:
        await anyio.lowlevel.checkpoint()
        told.append(("second", event.type))

    agent.subscribe(lambda event: told.append(("first", event.type)))
    agent.subscribe(second)
    agent.subscribe(lambda event: told.append(("third", event.type)))
    end = await agent.prompt("go")
    kinds = [kind for name, kind in told if name == "first"]
    assert kinds[0] == "agent_start"
    assert kinds[-1] == end.type
    assert told == [(name, kind) for kind in kinds for name in ("first", "second", "third")]


@pytest.mark.parametrize("kind", ["sync", "async", "nonsense"])
async def test_a_failing_listener_is_logged_once_and_dropped(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The run and the other listeners do not notice."""
    agent = Agent(ScriptedModel([[call("work")], "done"]), tools=[work])
    seen: list[Any] = []
    calls: list[str] = []

    def sync(event: Any) -> None:
        calls.append(event.type)
        raise RuntimeError("the listener broke")

    async def later(event: Any) -> None:
        await anyio.lowlevel.checkpoint()
        sync(event)

    broken: Any = {"sync": sync, "async": later, "nonsense": lambda: None}[kind]
    agent.subscribe(broken)
    agent.subscribe(seen.append)
    with caplog.at_level(logging.ERROR, "agentloop"):
        end = await agent.prompt("go")
    check(seen)
    assert (end.stop_reason, seen[-1]) == ("completed", end)
    assert calls == ([] if kind == "nonsense" else ["agent_start"])
    assert [record.message for record in caplog.records] == [f"the listener {broken!r} failed and is dropped"]


async def test_a_foreign_cancellation_in_a_listener_is_its_own_failure() -> None:
    """What a listener awaits may have been cancelled; nobody has cancelled the run."""
    agent = Agent(ScriptedModel(["done"]))

    async def waits_for_a_cancelled_task(event: Any) -> None:
        raise asyncio.CancelledError

    agent.subscribe(waits_for_a_cancelled_task)
    assert (await agent.prompt("go")).stop_reason == "completed"


async def test_unsubscribing_and_subscribing_during_an_event() -> None:
    """Who leaves is not told any more, also of the event under way; who comes is told from the next event on."""
    agent = Agent(ScriptedModel(["done"]))
    told: list[tuple[str, str]] = []

    def late(event: Any) -> None:
        told.append(("late", event.type))

    def first(event: Any) -> None:
        told.append(("first", event.type))
        if isinstance(event, AgentStart):
            leave()
            agent.subscribe(late)
        if isinstance(event, TurnEnd):
            stop()
            stop()

    stop = agent.subscribe(first)
    leave = agent.subscribe(lambda event: told.append(("gone", event.type)))
    await agent.prompt("go")
    kinds = [kind for _, kind in told]
    assert "gone" not in [name for name, _ in told]
    assert [kind for name, kind in told if name == "late"][0] == "turn_start"
    assert [kind for name, kind in told if name == "first"][-1] == "turn_end"
    assert kinds[-1] == "agent_end"


async def test_waiting_for_idle_inside_a_listener_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """It would wait for itself; elsewhere it waits for the last listener's last event."""
    agent = Agent(ScriptedModel(["done"]))
    order: list[str] = []

    begun = anyio.Event()

    async def impossible(event: Any) -> None:
        begun.set()
        await agent.wait_for_idle()

    async def slow(event: Any) -> None:
        if isinstance(event, AgentEnd):
            await wait_all_blocked()
            order.append("told")

    agent.subscribe(impossible)
    agent.subscribe(slow)
    await agent.wait_for_idle()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.prompt, "go")
        await begun.wait()
        assert agent.is_running
        await agent.wait_for_idle()
        order.append("idle")
    assert order == ["told", "idle"]
    assert "cannot wait for its end" in caplog.text


# ---------------------------------------------------------------- readers


async def test_several_readers_see_every_event() -> None:
    """Each reads on its own; the iteration ends with the run."""
    agent = Agent(ScriptedModel([[call("work")], "done"]), tools=[work])
    told: list[Any] = []
    agent.subscribe(told.append)
    read: dict[int, list[Any]] = {0: [], 1: []}

    async def reader(number: int) -> None:
        async for event in agent.events():
            read[number].append(event)
            for _ in range(number * 3):
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader, 0)
        tasks.start_soon(reader, 1)
        await wait_all_blocked()
        await agent.prompt("go")
    check(told)
    assert read == {0: told, 1: told}


async def test_a_reader_that_leaves_hurts_nobody() -> None:
    """By break, by close (also while it waits), or by being dropped; and it is forgotten."""
    agent = Agent(ScriptedModel([["a", "b", call("work")], "done"]), tools=[work])
    whole: list[Any] = []
    held = [agent.events(follow=True)]

    async def leaves() -> None:
        async for _ in agent.events():
            break

    async def reads() -> None:
        async for event in agent.events():
            whole.append(event)

    async def waits() -> None:
        async for _ in held[0]:
            pass

    dropped = agent.events()
    async with anyio.create_task_group() as tasks:
        for task in (leaves, reads, waits):
            tasks.start_soon(task)
        await wait_all_blocked()
        del dropped
        end = await agent.prompt("go")
        await wait_all_blocked()
        await held[0].aclose()
    assert whole[-1] == end
    assert [event async for event in held[0]] == []
    held.clear()
    gc.collect()
    assert agent._readers == ()


async def test_a_reader_made_during_a_run_reads_from_there() -> None:
    """Before the first step, in the middle, and after the end (then it gets the next run)."""
    agent = Agent(ScriptedModel(["one", "two"]))
    made: list[Any] = []
    agent.subscribe(lambda event: made.append(agent.events()) if isinstance(event, TurnEnd) else None)
    await agent.prompt("go")
    after = agent.events()
    following = agent.events(follow=True)
    assert [event.type async for event in made[0]] == ["agent_end"]
    await agent.prompt("on")
    kinds = [event.type async for event in after]
    assert (kinds[0], kinds[-1]) == ("agent_start", "agent_end")
    assert [(await anext(following)).type for _ in kinds] == kinds


async def test_readers_end_also_when_the_run_could_not_begin() -> None:
    """A prompt that is refused ends the iteration instead of leaving it to wait for ever."""
    agent = Agent(ScriptedModel([]))
    reader = agent.events()
    with pytest.raises(ValueError, match="expected messages"):
        await agent.prompt(())
    assert [event async for event in reader] == []


@pytest.mark.parametrize("queue", ["steer", "follow_up"])
@pytest.mark.parametrize("said", ["", "hello"], ids=["empty", "complete"])
async def test_readers_see_a_run_on_what_waits_in_a_queue(queue: str, said: str) -> None:
    """Where the history has nothing to go on with `continue_` is still one run, and its events are the next ones."""
    agent = Agent(ScriptedModel(["one", "two"]))
    if said:
        await agent.prompt(said)
    getattr(agent, queue)("more")
    reader = agent.events()
    await agent.continue_()
    kinds = [event.type async for event in reader]
    assert (kinds[0], kinds[-1]) == ("agent_start", "agent_end")


async def test_a_reader_in_another_thread_with_its_own_loop() -> None:
    """Readers may live in any event loop; so may those who wait for the end."""
    agent = Agent(ScriptedModel([["a", *["b"] * 200], "done"]))
    read: list[Any] = []
    reader = agent.events()

    async def elsewhere() -> None:
        async for event in reader:
            read.append(event)
        await agent.wait_for_idle()

    thread = threading.Thread(target=lambda: anyio.run(elsewhere))
    thread.start()
    told: list[Any] = []
    agent.subscribe(told.append)
    await agent.prompt("go")
    await anyio.to_thread.run_sync(thread.join)
    assert read == told


# ---------------------------------------------------------------- the caller leaves


async def test_a_cancelled_prompt_closes_its_run_properly() -> None:
    """Every pair is closed, listeners and readers see `AgentEnd`, tools are cleaned up, and the cancellation goes on."""
    cleaned: list[str] = []
    started = anyio.Event()

    @tool
    async def long(ctx: ToolContext) -> str:
        """Wait."""
        started.set()
        try:
            await ctx.abort.wait()
            return "stopped politely"
        finally:
            cleaned.append("long")

    model = ScriptedModel([["a", call("long")], "after"])
    agent = Agent(model, tools=[long])
    told: list[Any] = []

    async def listener(event: Any) -> None:
        await anyio.lowlevel.checkpoint()
        told.append(event)

    agent.subscribe(listener)
    reader = agent.events()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await started.wait()
                scope.cancel()

            tasks.start_soon(cancel)
            await agent.prompt("go")
    assert scope.cancelled_caught
    check(told)
    end = told[-1]
    assert (end.stop_reason, end.error_message, cleaned) == ("aborted", "the caller was cancelled", ["long"])
    assert [event async for event in reader] == told
    assert texts(agent.messages) == ["go", "a", "stopped politely"]
    assert (model.open_streams, agent.is_running) == (0, False)
    assert (await agent.prompt("on")).stop_reason == "completed"


async def test_a_time_out_around_a_prompt() -> None:
    """It is a time-out, and nothing else; the open reply stands in the history as what it is."""
    agent = Agent(ScriptedModel([["half", STALL], "whole"]))
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.05):
            await agent.prompt("go")
    assert [getattr(m, "stop_reason", None) for m in agent.messages] == [None, "aborted"]
    assert (await agent.continue_()).stop_reason == "completed"
    assert texts(agent.messages) == ["go", "half", "whole"]


async def test_a_listener_that_was_not_reached_is_told_of_the_event_after_all() -> None:
    """A cancellation in the first listener's await does not take the event from the second."""
    agent = Agent(ScriptedModel(["done"]))
    told: list[Any] = []
    with anyio.CancelScope() as scope:

        async def hangs(event: Any) -> None:
            if isinstance(event, MessageUpdate) and not scope.cancel_called:
                scope.cancel()
                await anyio.sleep_forever()

        agent.subscribe(hangs)
        agent.subscribe(told.append)
        await agent.prompt("go")
    check(told)
    assert told[-1].stop_reason == "aborted"


async def test_a_native_cancel_leaves_no_count(anyio_backend_name: str) -> None:
    """asyncio's own time-out works: its cancellation is passed on, once."""
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own cancellation")
    agent = Agent(ScriptedModel([["a", STALL], ["a", STALL]]))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await agent.prompt("go")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    running = asyncio.create_task(agent.prompt("on"))
    await wait_all_blocked()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (agent.is_running, agent.state.error) == (False, "the caller was cancelled")


async def test_a_listener_that_hangs_cannot_hold_a_cancelled_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closing is bounded; then the run is left without its `AgentEnd`, and the state says so."""
    monkeypatch.setattr("agentloop.agent._CLOSING", 0.05)
    agent = Agent(ScriptedModel([["a", STALL], "b"]), abort_grace=0.01)

    async def hangs(event: Any) -> None:
        if isinstance(event, MessageUpdate):
            await anyio.sleep_forever()

    stop = agent.subscribe(hangs)
    with anyio.move_on_after(0.02) as scope:
        await agent.prompt("go")
    assert scope.cancelled_caught
    assert (agent.is_running, agent.state.is_streaming, agent.state.stream_message) == (False, False, None)
    assert agent.state.error == "the run was closed before its end"
    stop()
    await agent.prompt("on")
    assert (texts(agent.messages), agent.state.error) == (["go", "on", "b"], None)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_in_a_listener_or_a_tool_leaves(kind: type[BaseException]) -> None:
    """It is raised by the prompt; the run is over, and the agent can go on."""

    @tool
    async def stops() -> str:
        """Stop."""
        raise kind

    agent = Agent(ScriptedModel([["a"], [call("stops")], "c"]), tools=[stops])
    told: list[Any] = []

    def listener(event: Any) -> None:
        if isinstance(event, MessageUpdate):
            raise kind  # also while the run is closed

    stop = agent.subscribe(listener)
    agent.subscribe(told.append)
    with pytest.raises(kind):
        await agent.prompt("go")
    check(told)
    assert told[-1].stop_reason == "aborted"
    stop()
    with pytest.raises(kind):
        await agent.prompt("on")
    assert not agent.is_running
    assert (await agent.prompt("more")).stop_reason == "completed"


async def test_a_prompt_that_is_dropped_half_way_is_over(anyio_backend_name: str) -> None:
    """A coroutine that is closed by hand cannot await; the agent is free again, and the run closes itself."""
    if anyio_backend_name == "trio":
        pytest.skip("trio's coroutines cannot be stepped by hand")
    agent = Agent(ScriptedModel(["a", "b"]))
    going = agent.prompt("go")
    going.send(None)
    assert agent.is_running
    going.close()
    assert not agent.is_running
    gc.collect()
    assert (await agent.prompt("on")).stop_reason == "completed"


# ---------------------------------------------------------------- run_sync

where: contextvars.ContextVar[str] = contextvars.ContextVar("where")


async def test_run_sync_inside_a_running_loop(anyio_backend_name: str) -> None:
    """It works in a worker thread, with this thread's context variables, and this loop is not touched."""
    seen: list[Any] = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append((where.get(), threading.current_thread() is not threading.main_thread()))
        return "looked"

    where.set("here")
    agent = Agent(ScriptedModel([[call("look")], "done", "more"]), tools=[look])
    end = agent.run_sync("go", backend=anyio_backend_name)
    assert (end.stop_reason, seen) == ("completed", [("here", True)])
    assert agent.run_sync("on").stop_reason == "completed"
    with pytest.raises(TypeError, match="content"):
        agent.run_sync(7)  # type: ignore[arg-type]
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_run_sync_without_a_loop(backend: str) -> None:
    """A script needs no async line; one agent may run under several loops, one after the other."""
    agent = Agent(ScriptedModel([[call("work")], "done", "more"]), tools=[work])
    assert agent.run_sync("go", backend=backend).stop_reason == "completed"
    agent.steer("s")
    agent.run_sync("on")
    assert texts(agent.messages) == ["go", "", "worked", "done", "on", "s", "more"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_run_sync_raises_has_no_context_of_ours(backend: str) -> None:
    """That there was no event loop is no part of the story of what went wrong later."""
    with pytest.raises(TypeError) as caught:
        Agent(ScriptedModel([])).run_sync(7, backend=backend)  # type: ignore[arg-type]
    assert not isinstance(caught.value.__context__, RuntimeError)


SCRIPT = """
import os, signal, sys, threading, time
import anyio
from agentloop import Agent, MessageUpdate
from agentloop.testing import STALL, ScriptedModel

agent = Agent(ScriptedModel([["a", STALL], "b"]))
agent.subscribe(lambda event: print(event.type, flush=True))
signals = []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with it ignored

def interrupt(event):
    if isinstance(event, MessageUpdate) and not signals:
        signals.append(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)))
        signals[0].start()

agent.subscribe(interrupt)

def go():
    try:
        agent.run_sync("go", backend=sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted", agent.is_running, agent.state.error is not None, len(agent.messages))

if sys.argv[1] == "inside":
    async def main():
        go()
    anyio.run(main)
else:
    go()
print(agent.run_sync("on").stop_reason)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("place", ["outside", "inside"])
def test_an_interrupt_from_the_keyboard_aborts_cleanly(place: str, backend: str) -> None:
    """The run comes to its end, then `KeyboardInterrupt` is raised, and the agent can go on."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, place, backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines.index("abort") < lines.index("agent_end") < lines.index("interrupted False True 2")
    assert lines[-2] == "completed"
    assert done.stderr == ""


async def test_the_result_of_a_call_is_kept_when_its_prompt_is_cancelled_late() -> None:
    """A cancellation between a call's end and its result's message loses neither."""
    agent = Agent(ScriptedModel([[call("work"), call("work")], "b"]), tools=[work])
    with anyio.CancelScope() as scope:
        agent.subscribe(lambda event: scope.cancel() if isinstance(event, ToolExecutionEnd) else None)
        agent.subscribe(lambda event: anyio.lowlevel.checkpoint())
        await agent.prompt("go")
    assert scope.cancelled_caught
    assert [m.text for m in agent.messages if m.role == "tool_result"][0] == "worked"  # type: ignore[union-attr]
    assert [m.role for m in agent.messages] == ["user", "assistant", "tool_result", "tool_result"]  # type: ignore[union-attr]
