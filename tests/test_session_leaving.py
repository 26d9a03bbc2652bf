"""A run that is left, cancelled or aborted at any event: what it leaves is carried over, the next run goes on with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentMessage,
    BlockAdded,
    Event,
    MessageStart,
    MessageUpdate,
    ModelError,
    ToolCall,
    ToolCallEnd,
    ToolExecutionStart,
    ToolResultMessage,
    running,
    tool,
)
from agentloop.cli.check import check_session
from agentloop.model import BlockChunk, Finish, TextChunk, ToolCallChunk
from agentloop.omni.carry import INTERRUPTED
from agentloop.omni.trace import trace_files
from agentloop.session import Session, SessionRun
from agentloop.testing import ScriptedModel, call, collect
from tests.conftest import BACKENDS
from tests.session_world import KEYS, Told, World, check_legal, options, texts_of

pytestmark = pytest.mark.anyio

WAYS = ("close", "drop", "cancel", "abort", "raise")


async def step(run: SessionRun, events: int) -> list[Event]:
    """Take so many events, or as many as there are."""
    taken = []
    while len(taken) < events:
        try:
            taken.append(await anext(run))
        except StopAsyncIteration:
            break
    return taken


async def leave(session: Session, world: World, way: str, events: int) -> list[Event]:
    """Run, and go away after so many events."""
    abort = AbortSignal()
    run = session.run("Do task A", approve=world.approve, abort=abort)
    taken = await step(run, events)
    if way == "close":
        await run.aclose()
    elif way == "drop":
        del run  # nothing else refers to it: its end is noticed at once
    elif way == "cancel":
        with anyio.CancelScope() as scope:
            scope.cancel()
            async for event in run:
                taken.append(event)
        await run.aclose()
    elif way == "abort":
        abort.abort("enough")
        taken += [event async for event in run]
    else:
        with pytest.raises(ZeroDivisionError):
            async with running(run):
                1 / 0  # noqa: B018
    assert not session.is_running
    return taken


def interrupted(messages: Sequence[AgentMessage]) -> set[str]:
    """Keys of the calls whose results say that they were interrupted."""
    results = [message for message in messages if isinstance(message, ToolResultMessage)]
    return {
        result.tool_call_id[:2] for result in results if INTERRUPTED in result.text or result.stop_reason == "aborted"
    }


@pytest.mark.parametrize("compacting", [False, True], ids=["one context", "compacting"])
@pytest.mark.parametrize("way", WAYS)
async def test_left_at_every_event(way: str, compacting: bool, tmp_path: Path, anyio_backend: Any) -> None:
    """After each number of events: the next run of the same session has the task, legal requests, and runs no call twice;
    what was interrupted is told as such; and the files, opened again, give a legal conversation that goes on."""
    events, ended = 0, False
    stride = 1 if anyio_backend == BACKENDS["asyncio"] else 9  # the others must only agree
    while not ended:
        events += stride
        world, traces = World(), tmp_path / str(events)
        given = options(compacting)
        async with Session.create(traces, world.model, tools=world.tools, session_id="s1", **given) as session:
            taken = await leave(session, world, way, events)
            ended = len(taken) < events or (isinstance(taken[-1], AgentEnd) and taken[-1].stop_reason == "completed")
            said = [event.message for event in taken if isinstance(event, MessageStart)]
            told_of_a = "Do task A" in texts_of(said)
            assert told_of_a == ("task A" in texts_of([*session.messages, *filter(None, [session.pending_summary])]))
            after_leaving = session.messages
            async for event in session.run("Do task C", approve=world.approve):
                if isinstance(event, AgentEnd):
                    assert event.stop_reason == "completed"
            check_legal(session.messages)
            told = interrupted(after_leaving)
            keys = {key for task in ("A" if told_of_a else "") + "C" for key in KEYS[task]}
            assert len(world.ran) == len(set(world.ran)), "a call ran twice"
            assert keys - told <= set(world.ran) | (told if compacting else set()), "a call, or a task, was lost"
        before = Told.of(traces)
        findings = [
            f for r in check_session([str(file.path) for file in trace_files(traces, "s1")]) for f in r.findings
        ]
        assert findings == []
        again = World()
        async with again.open(traces, **given) as session:
            async for _ in session.run("Do task B", approve=again.approve):
                pass
            check_legal(session.messages)
        assert not set(again.ran) & before.started
        assert set(KEYS["B"]) <= set(again.ran)
    assert events > 40


@pytest.mark.parametrize("came", [ToolCallChunk("{}", "call_0", "work"), BlockChunk(ToolCall("call_0", "work", "{}"))])
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("way", ["close", "fail"])
async def test_an_id_of_a_call_that_was_only_retold(came: Any, way: str, reopened: bool, tmp_path: Path) -> None:
    """A provider that numbers its calls anew uses the id of a reply that was not committed once more: the new call gets
    another one, so that the trace tells two calls apart; also where the first had come whole, and not in pieces."""

    @tool(name="work")
    async def work() -> str:
        """Work."""
        return "worked"

    replies: list[list[Any]] = [
        [came, TextChunk("and"), ModelError("auth", "no")],
        [ToolCallChunk("{}", "call_0", "work"), Finish("tool_use")],
        [TextChunk("done"), Finish("stop")],
    ]

    async def model(request: Any) -> Any:
        for chunk in replies.pop(0):
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    session = Session.create(tmp_path, model, session_id="s1", tools=[work])
    async with session:
        run = session.run("go", approve=lambda request: "allow")
        async for event in run:
            if (
                way == "close"
                and isinstance(event, MessageUpdate)
                and isinstance(event.delta, ToolCallEnd | BlockAdded)
            ):
                await run.aclose()
        if not reopened:
            events = [event async for event in session.run("again", approve=lambda request: "allow")]
    if reopened:
        async with Session.open("s1", tmp_path, model, tools=[work]) as session:
            events = [event async for event in session.run("again", approve=lambda request: "allow")]
    (start,) = [event for event in events if isinstance(event, ToolExecutionStart)]
    assert start.tool_call_id == "call_0#2"
    (report,) = check_session([str(file.path) for file in trace_files(tmp_path, "s1")])
    assert report.ok, report.to_text()


async def test_what_a_tool_left_to_be_raised_does_not_keep_the_session(tmp_path: Path) -> None:
    """`aclose` raises it, and gives the session free all the same."""
    started = anyio.Event()

    @tool
    async def stubborn() -> None:
        """Leave in the worst way."""
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise SystemExit(3)

    session = Session.create(tmp_path, ScriptedModel([[call("stubborn")]]), tools=[stubborn], session_id="s1")
    async with anyio.create_task_group() as group:
        group.start_soon(collect, session.run("go", approve=lambda request: "allow"))
        await started.wait()
        with pytest.raises(SystemExit):
            await session.aclose()
    Session.open("s1", tmp_path, ScriptedModel([])).close()
