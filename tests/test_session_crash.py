"""A crash between any two records, and in the middle of any: the session goes on, legal, complete, nothing run twice.

The model here is a function of what it is shown. It works off the keys of each task that it finds in the texts before it
(prompts, or the summary of an earlier context), a pair at a time, so that whatever a resume loses or doubles shows in what
it does.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentEnd, AgentMessage, AssistantMessage, ToolResultMessage, UserMessage, tool
from agentloop.cli.check import check_session
from agentloop.compaction import INSTRUCTIONS, Summarize, TurnsReach
from agentloop.messages import Usage
from agentloop.model import Finish, ModelRequest, TextChunk, ToolCallChunk, UsageChunk
from agentloop.omni.trace import read, trace_files
from agentloop.session import Session

KEYS = {"A": ("A1", "A2", "A3"), "B": ("B1", "B2"), "C": ("C1",)}


class World:
    """One session's outside: what its tool did, and what its model was shown."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.asked: list[str] = []
        self.shown: list[Sequence[AgentMessage]] = []

        @tool
        async def work(key: str) -> str:
            """Do one piece of work."""
            self.ran.append(key)
            await anyio.lowlevel.checkpoint()
            return f"{key} is done"

        self.tools = (work,)

    def approve(self, request: Any) -> str:
        """Allow, and note what was asked."""
        self.asked.append(json.loads(request.arguments)["key"])
        return "allow"

    async def model(self, request: ModelRequest) -> AsyncIterator[Any]:
        """The next pair of keys that nobody has called for; a summary where one is asked for; else the end."""
        check_legal(request.messages)
        self.shown.append(tuple(request.messages))
        last = request.messages[-1]
        compacting = isinstance(last, UserMessage) and last.text == INSTRUCTIONS
        called = re.findall(r'"key": ?"(\w\d)"', calls_of(request.messages)) + re.findall(
            r"called (\w\d)", texts_of(request.messages)
        )
        tasks = sorted(set(re.findall(r"task (\w)", texts_of(request.messages))))
        waiting = [key for task in tasks for key in KEYS[task] if key not in called]
        yield UsageChunk(Usage(1, 2, 3))
        if compacting:
            results = " ".join(re.findall(r"\w\d is done|unknown", texts_of(request.messages)))
            tasks_told = " ".join(f"task {task}" for task in tasks)
            yield TextChunk(f"[summary]{tasks_told} {' '.join(f'called {key}' for key in called)} {results}[/summary]")
        for key in [] if compacting else waiting[:2]:
            yield ToolCallChunk(json.dumps({"key": key}), id=f"{key}-{uuid.uuid4().hex[:8]}", name="work")
        if not waiting and not compacting:
            yield TextChunk("All done.")
        yield Finish("tool_use" if waiting and not compacting else "stop")

    def open(self, traces: Path, **options: Any) -> Session:
        """The session again, as another process would."""
        return Session.open("s1", traces, self.model, tools=self.tools, **options)


def check_legal(messages: Iterable[AgentMessage]) -> None:
    """Each call has its result, in call order, right behind its reply; nothing else has one."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            assert waiting and waiting.pop(0) == message.tool_call_id, "a result without its call, or out of order"
            continue
        assert waiting == [], "a call without its result"
        if isinstance(message, AssistantMessage):
            assert message.stop_reason == "completed"
            waiting = [call.id for call in message.tool_calls]
    assert waiting == []


def texts_of(messages: Iterable[AgentMessage]) -> str:
    return "\n".join(
        getattr(message, "text", "") for message in messages if getattr(message, "text", "") != INSTRUCTIONS
    )


def calls_of(messages: Iterable[AgentMessage]) -> str:
    replies = [message for message in messages if isinstance(message, AssistantMessage)]
    return " ".join(call.arguments for reply in replies for call in reply.tool_calls)


@attrs.frozen
class Told:
    """What the lines of a trace say."""

    tasks: set[str]
    started: set[str]
    ended: set[str]
    allowed: set[str]

    @classmethod
    def of(cls, traces: Path) -> Told:
        """Read it from the records themselves, without the reader of sessions."""
        tasks, started, ended, allowed = set(), set(), set(), set()
        for file in trace_files(traces, "s1"):
            for record in read(file.path):
                payload = record["payload"]
                call = str(payload.get("tool_call_id", ""))[:2]
                match payload.get("type"):
                    case "text" if payload["role"] == "user" and payload["text"].startswith("Do task"):
                        tasks.add(payload["text"][-1])
                    case "tool_execution_start":
                        started.add(call)
                    case "tool_call_output":
                        ended.add(call)
                    case "approval_decision" if payload["decision"] == "allow":
                        allowed.add(call)
        return cls(tasks, started, ended, allowed)


def options(compacting: bool) -> dict[str, Any]:
    return {"compaction": Summarize(when=TurnsReach(2))} if compacting else {}


async def record_session(traces: Path, compacting: bool) -> None:
    world = World()
    given = options(compacting)
    async with Session.create(traces, world.model, tools=world.tools, session_id="s1", **given) as session:
        for task in "AB":
            async for _ in session.run(f"Do task {task}", approve=world.approve):
                pass
    assert sorted(world.ran) == ["A1", "A2", "A3", "B1", "B2"]


@pytest.fixture(scope="module", params=[False, True], ids=["one context", "compacting"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A session of two runs, with and without compactions."""
    traces = tmp_path_factory.mktemp("recorded")
    anyio.run(record_session, traces, request.param)
    return traces, request.param


def crash(traces: Path, lines: int, into: Path, torn: bool = False) -> bool:
    """What the disk holds if the process ends after so many records (all files together); whether there is anything."""
    left = lines
    for file in trace_files(traces, "s1"):
        parts = file.path.read_bytes().splitlines(keepends=True)
        kept = b"".join(parts[:left])
        if torn and left < len(parts):
            kept += parts[left][: len(parts[left]) // 2]
        if left > 0:
            target = into / file.path.parent.name / file.path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(kept)
        left -= len(parts)
        if left <= 0:
            break
    return lines > 0


async def go_on(traces: Path, compacting: bool, prompts: Sequence[str], stop_after: int | None = None) -> World:
    """Another process takes the session up, to the end of the run or up to an event of it."""
    world = World()
    async with world.open(traces, **options(compacting)) as session:
        run, number = session.run(list(prompts), approve=world.approve), 0
        async for event in run:
            number += 1
            if number == stop_after:
                break
            if isinstance(event, AgentEnd):
                assert event.stop_reason == "completed", event
                check_legal(session.messages)
        await run.aclose()
    return world


async def waits(traces: Path, compacting: bool) -> bool:
    """Whether the conversation ends in a reply that asks for nothing."""
    async with World().open(traces, **options(compacting)) as session:
        last = session.messages[-1:]
        ended = not last or (isinstance(last[0], AssistantMessage) and not last[0].tool_calls)
        return session.pending_summary is not None or not ended


def count(traces: Path) -> int:
    return sum(len(file.path.read_bytes().splitlines()) for file in trace_files(traces, "s1"))


def hold(before: Told, after: Told, world: World, prompts: Sequence[str]) -> None:
    """What a resume promises."""
    tasks = before.tasks | {prompt[-1] for prompt in prompts}
    keys = {key for task in tasks for key in KEYS[task]}
    assert not set(world.ran) & before.started, "a call that had started ran again"
    assert len(world.ran) == len(set(world.ran)), "a call ran twice"
    unknown = before.started - before.ended
    assert before.ended | set(world.ran) | unknown == keys, "a call, or a task, was lost"
    assert not set(world.asked) & (before.allowed - before.started), "what was allowed was asked about again"
    told = texts_of(world.shown[-1])
    assert all(f"{key} is done" in told for key in before.ended | set(world.ran)), "a result was lost"
    assert after.tasks == tasks


@pytest.mark.parametrize("torn", [False, True], ids=["between records", "in a record"])
def test_a_crash_at_every_record(recorded: tuple[Path, bool], torn: bool, tmp_path: Path) -> None:
    """Cut after each line (and in the next one) of all files together: open, go on with one more task to its end. No call
    runs twice, none is lost, no input and no result is lost, every request is legal, and the trace stays a legal one."""
    traces, compacting = recorded
    total = count(traces)
    assert total > 80
    for lines in range(2, total + 1):
        copy = tmp_path / str(lines)
        crash(traces, lines, copy, torn)
        before = Told.of(copy)
        world = anyio.run(go_on, copy, compacting, ["Do task C"])
        hold(before, Told.of(copy), world, ["Do task C"])
        if not torn:
            reports = check_session([str(file.path) for file in trace_files(copy, "s1")])
            assert [finding for report in reports for finding in report.findings] == []


def test_a_crash_at_every_record_and_nothing_new(recorded: tuple[Path, bool], tmp_path: Path) -> None:
    """The same without a prompt: what waits is gone on with, or it is said that nothing does; opening alone changes
    nothing in the files but the end of an open compaction."""
    traces, compacting = recorded
    went_on = 0
    for lines in range(2, count(traces) + 1):
        copy = tmp_path / str(lines)
        crash(traces, lines, copy)
        before = Told.of(copy)
        if not anyio.run(waits, copy, compacting):
            with pytest.raises(ValueError, match="nothing in the conversation waits"):
                anyio.run(go_on, copy, compacting, [])
            assert {key for task in before.tasks for key in KEYS[task]} == before.ended
        else:
            world = anyio.run(go_on, copy, compacting, [])
            hold(before, Told.of(copy), world, [])
            went_on += 1
    assert went_on > 40


@given(data=st.data())
def test_a_crash_again_while_it_goes_on(recorded: tuple[Path, bool], tmp_path: Path, data: st.DataObject) -> None:
    """Two crashes in a row, the second one anywhere in the run that went on: still nothing runs twice or is lost."""
    traces, compacting = recorded
    total = count(traces)
    first = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    lines = data.draw(st.integers(2, total))
    crash(traces, lines, first)
    anyio.run(go_on, first, compacting, ["Do task C"])
    grown = count(first)
    second = first / "again"
    crash(first, data.draw(st.integers(lines, grown)), second, data.draw(st.booleans()))
    before = Told.of(second)
    world = anyio.run(go_on, second, compacting, ["Do task C"] if "C" not in before.tasks else ["Go on."])
    hold(before, Told.of(second), world, ["Do task C"])
