"""Cases that once broke a shell, or that no other test would have noticed: each is what somebody may meet on a bad day."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop import (
    AbortSignal,
    Agent,
    AgentEnd,
    ApprovalDecision,
    ApprovalRequest,
    ChildEvent,
    Config,
    Context,
    Event,
    MessageEnd,
    Retry,
    ToolCall,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolResult,
    ToolResultMessage,
    TraceWriteError,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    tool,
    user,
)
from agentloop._digest import shown_digest
from agentloop.compaction import Summarize, TurnsReach
from agentloop.errors import AnswerError
from agentloop.grammar import check
from agentloop.omni.answers import open_questions, store_answer
from agentloop.omni.reader import read, trace_files
from agentloop.omni.records import event_kind
from agentloop.omni.resume import resume_session
from agentloop.session import Session
from agentloop.subagent import subagent
from agentloop.testing import ScriptedModel, wait_all_blocked
from agentloop.testing.machine import illegal
from agentloop.testing.scripted import call
from tests.conftest import BACKENDS

pytestmark = pytest.mark.anyio

TASK = {"prompt": "do it"}


@tool
def work() -> str:
    """Work."""
    return "done"


# ---------------------------------------------------------------- nested runs


@pytest.mark.parametrize("depth", [1, 2])
async def test_g12_the_lockstep_holds_for_the_effects_of_nested_runs(depth: int) -> None:
    """Whoever stores each event before asking for the next has the starts of a child's calls, and the beginnings of its
    requests, before they happen, at any depth; also when it takes its time."""
    seen: list[Event] = []
    early: list[str] = []

    def know(kind: str) -> None:
        if not any(event.type == kind for event in seen):
            early.append(kind)

    @tool
    async def act() -> str:
        """Act."""
        know("tool_execution_start")
        return "done"

    def asked(request: Any) -> None:
        know("request_begin")

    inner = subagent("inner", "Acts.", ScriptedModel([[asked, call("act")], [asked, "done"]]), tools=[act])
    outer = subagent("outer", "Hands over.", ScriptedModel([call("inner", TASK), "done"]), tools=[inner])
    top = outer if depth == 2 else inner
    model = ScriptedModel([call(top.name, TASK), "done"])
    async for event in agent_loop("go", Context(tools=[top]), Config(model=model)):
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        if isinstance(event, ChildEvent) and len(event.origin) == depth:
            seen.append(event.event)
    assert isinstance(event, AgentEnd) and event.stop_reason == "completed"
    assert any(isinstance(each, ToolExecutionEnd) and not each.is_error for each in seen)
    assert early == []


async def test_a_nested_run_goes_no_further_than_its_consumer() -> None:
    """A consumer that stops at the start of a child's call: nothing of that call has run, however long it looks at it."""
    ran = []

    @tool
    def act() -> str:
        """Act."""
        ran.append(True)
        return "done"

    helper = subagent("helper", "Acts.", ScriptedModel([call("act"), "done"]), tools=[act])
    run = agent_loop("go", Context(tools=[helper]), Config(model=ScriptedModel([call("helper", TASK), "done"])))
    async for event in run:
        if isinstance(event, ChildEvent) and isinstance(event.event, ToolExecutionStart):
            break
    for _ in range(50):
        await anyio.lowlevel.checkpoint()
    assert ran == []
    await run.aclose()


# ---------------------------------------------------------------- leaving


async def test_leaving_a_run_that_asks_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A run that is left while a person is asked, or while `after_tool_call` works, logs no error: nothing failed."""

    async def never(*args: Any) -> Any:
        await anyio.sleep_forever()

    cases: list[tuple[Any, dict[str, Any]]] = [
        (ApprovalRequest, {"approve": never}),
        (ToolExecutionStart, {"after_tool_call": never}),
    ]
    for kind, settings in cases:
        run = agent_loop("go", Context(tools=[work]), Config(model=ScriptedModel([call("work")]), **settings))
        with anyio.move_on_after(5):
            async for event in run:
                if isinstance(event, kind):
                    break
            with anyio.move_on_after(0.05):
                await anext(run)
        await run.aclose()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


# ---------------------------------------------------------------- the next step


async def test_prompts_behind_open_calls_are_not_lost_when_these_end_the_batch() -> None:
    """Calls of the context run first; that all their results say `terminate` does not end the run before its prompts."""

    @tool
    def last() -> ToolResult:
        """The end of a batch."""
        return ToolResult("over", terminate=True)

    context = Context(messages=[user("go"), assistant(ToolCall("1", "last", "{}"))], tools=[last])
    model = ScriptedModel(["hello"])
    events = [event async for event in agent_loop_continue(context, Config(model=model), "And now?")]
    said = [e.message.text for e in events if isinstance(e, MessageEnd) and isinstance(e.message, UserMessage)]
    assert said == ["And now?"]
    assert len(model.requests) == 1


# ---------------------------------------------------------------- approvals


async def test_a_callback_whose_policy_cannot_be_read_is_a_closed_door() -> None:
    """`policy` may be a property that raises: the call is forbidden, nobody is asked, the run goes on."""
    asked = []

    class Approve:
        @property
        def policy(self) -> Any:
            raise OSError("the rules are gone")

        def __call__(self, request: ApprovalRequest) -> Any:
            asked.append(request)
            return "allow"

    model = ScriptedModel([call("work"), "done"])
    run = agent_loop("go", Context(tools=[work]), Config(model=model, approve=Approve()))
    events = [event async for event in run]
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["forbidden"]
    assert asked == [] and isinstance(events[-1], AgentEnd) and events[-1].stop_reason == "completed"


# ---------------------------------------------------------------- the trace


async def test_nothing_stands_behind_a_completed_compaction(tmp_path: Path) -> None:
    """A run that compacts at its end: its `agent_end` is in no file, neither behind the compaction, where it would open the
    closed context again, nor at the head of the next file, where it would end a run that has not begun."""
    model = ScriptedModel(["one", "[summary]short[/summary]", "two", "[summary]shorter[/summary]"])
    compaction = Summarize(when=TurnsReach(1))
    async with Session.create(tmp_path, model, session_id="s1", compaction=compaction) as session:
        for prompt in ("Go.", "On."):
            events = [event async for event in session.run(prompt)]
            assert isinstance(events[-1], AgentEnd)
            assert session.path is not None
            lines = [json.loads(line) for line in session.path.read_text("utf-8").splitlines()]
            assert event_kind(lines[-1]) == "compaction_end"
            assert [event_kind(line) for line in lines].count("agent_end") == 0
            assert [event_kind(line) for line in lines][1:2] != ["agent_end"]


# ---------------------------------------------------------------- a session that is opened again with calls left open


async def crashed_with_an_open_call(traces: Path) -> None:
    """A session whose call was allowed and had not started when its process ended."""
    model = ScriptedModel([call("work", id="x")])
    session = Session.create(traces, model, tools=[work], session_id="s1")
    async for event in session.run("go", approve=lambda request: "allow"):
        if isinstance(event, ApprovalDecision):
            break
    session.close()


async def test_a_run_that_cannot_begin_interrupts_nothing(tmp_path: Path) -> None:
    """A first step that raises (no compaction to compact by; two tools of one name): the open call stays open, and what was
    allowed stays allowed; then it runs, once, without a question."""
    await crashed_with_an_open_call(tmp_path)
    ran: list[bool] = []

    @tool(name="work")
    def again() -> str:
        """Work."""
        ran.append(True)
        return "done"

    async with Session.open("s1", tmp_path, ScriptedModel(["fine"]), tools=[again, again]) as session:
        before = session.messages
        for run in (session.compact(), session.run(), session.run("more")):
            with pytest.raises(ValueError, match=r"config\.compaction|context\.tools"):
                await anext(run)
            assert session.messages == before
        session.configure(tools=[again])
        events = [event async for event in session.run()]
    assert ran == [True]
    assert not any(isinstance(event, ApprovalRequest) for event in events)


async def test_a_question_is_over_when_its_call_ends_without_an_answer(tmp_path: Path) -> None:
    """Aborted while a person is asked, and the process ends between the start and the end that the call gets for it: an
    answer that is stored now comes late; behind the start there is no place for it."""
    abort = AbortSignal()
    session = Session.create(tmp_path, ScriptedModel([call("work", id="x")]), tools=[work], session_id="s1")

    async def ask(request: ApprovalRequest) -> Any:
        abort.abort("enough")
        await anyio.sleep_forever()

    async for event in session.run("go", approve=ask, abort=abort):
        if isinstance(event, ToolExecutionStart):
            break
    session.close()
    assert open_questions(resume_session(tmp_path, "s1")) == ()
    digest = shown_digest("work", "{}")
    with pytest.raises(AnswerError, match="has started") as caught:
        store_answer(tmp_path, "s1", "x", "allow", digest)
    assert caught.value.code == "late"


async def test_a_compaction_that_is_given_up_leaves_no_call_without_a_result(tmp_path: Path) -> None:
    """Compacted by hand with a call open: that is told as interrupted; when the model gives no summary, the conversation has
    the replies that it gave instead, and each call before them its result, in memory as in what is asked next."""
    await crashed_with_an_open_call(tmp_path)
    model = ScriptedModel([call("work"), "after"])
    settings: dict[str, Any] = {"compaction": Summarize(), "retry": Retry(waits=())}
    async with Session.open("s1", tmp_path, model, tools=[work], **settings) as session:
        events = [event async for event in session.compact()]
        assert isinstance(events[-1], AgentEnd) and events[-1].error_code == "malformed"
        assert illegal(session.messages) is None
        assert [m.tool_call_id for m in session.messages if isinstance(m, ToolResultMessage)] == ["x", "call_1"]
        async for _ in session.run("on"):
            pass
    assert list(model.requests[-1].messages) == list(session.messages[:-1])


# ---------------------------------------------------------------- an agent whose run was closed before its end


@pytest.mark.parametrize("left", [ToolExecutionStart, ToolExecutionEnd])
@pytest.mark.parametrize("again", ["continue", "open calls", "prompt"])
async def test_a_call_that_had_begun_is_not_run_again(left: Any, again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is cancelled while a listener hangs, for longer than is waited: the run is closed without its end. What the
    call came to, or that nobody knows it, is in the history, and going on does not run the call a second time; also where
    that run had itself begun with the call."""
    monkeypatch.setattr("agentloop.agent._CLOSING", 0.02)
    ran: list[bool] = []

    @tool
    async def once() -> str:
        """Do it once."""
        ran.append(True)
        if left is ToolExecutionStart:
            await anyio.sleep_forever()
        return "done"

    history: Any = [user("go"), assistant(ToolCall("x", "once", "{}"))] if again == "open calls" else ()
    script: list[Any] = ["fine"] if again == "open calls" else [call("once", id="x"), "fine"]
    model = ScriptedModel(script)
    agent = Agent(model, messages=history, tools=[once], abort_grace=0.01)

    async def hang(event: Event) -> None:
        if ran and not isinstance(event, ToolExecutionStart):
            await anyio.sleep_forever()

    undo = agent.subscribe(hang)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def drive() -> None:
                await (agent.continue_() if again == "open calls" else agent.prompt("go"))

            group.start_soon(drive)
            await wait_all_blocked()
            assert ran
            scope.cancel()
    undo()
    assert agent.state.error == "the run was closed before its end"
    (result,) = [message for message in agent.messages if isinstance(message, ToolResultMessage)]
    assert result.is_error or (left is ToolExecutionEnd and result.text == "done")
    end = await (agent.prompt("on") if again == "prompt" else agent.continue_())
    assert (end.stop_reason, len(ran)) == ("completed", 1)
    assert illegal(model.requests[-1].messages) is None and illegal(agent.messages) is None


# ---------------------------------------------------------------- a disk that fills up


class FullDisk:
    """`os.write` on a disk that takes so many writes; the next one may take half of its data."""

    def __init__(self, writes: int, half: bool, again: bool) -> None:
        self.room, self.half, self.again = writes, half, again
        self.write = os.write

    def __call__(self, fd: int, data: Any) -> int:
        self.room -= 1
        if self.room >= 0 or (self.room < -1 and self.again):
            return self.write(fd, data)
        if self.half and self.room == -1:
            return self.write(fd, memoryview(data)[: max(len(data) // 2, 1)])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("policy", ["fail", "warn"])
async def test_a_disk_that_fills_up_at_any_write(
    policy: Any, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """Two runs with calls and compactions; each write in turn finds no room, or half of it, for once or for good. `fail`:
    nothing runs whose start is not on the disk; `warn`: the runs come to their ends. Either way the session is idle, and what
    the disk holds is opened again and gone on with: legal, and (`fail`) without running anything twice."""
    stride = 8 if anyio_backend == BACKENDS["asyncio"] else 48
    writes = first
    while True:
        ran: list[int] = []

        @tool
        async def act(n: int) -> str:
            """Act."""
            ran.append(n)  # noqa: B023
            return f"did {n}"

        model = ScriptedModel([
            [call("act", {"n": 1}), call("act", {"n": 2})], "fine", "[summary]s[/summary]",
            call("act", {"n": 3}), "more", "[summary]t[/summary]",
        ])  # fmt: skip
        traces, disk = tmp_path / str(writes), FullDisk(writes, bool(writes & 1), bool(writes & 2))
        settings: dict[str, Any] = {"policy": policy, "compaction": Summarize(when=TurnsReach(2))}
        async with Session.create(traces, model, tools=[act], session_id="s1", **settings) as session:
            with monkeypatch.context() as patch:
                patch.setattr("agentloop.omni.trace.os.write", disk)
                ended = await both_runs(session, policy)
            assert not session.is_running
        started = [
            json.loads(record["payload"]["arguments"])["n"]
            for file in trace_files(traces, "s1")
            for record in read(file.path)
            if event_kind(record) == "tool_execution_start"
        ]
        assert policy == "warn" or set(ran) <= set(started)
        if trace_files(traces, "s1"):
            again = ScriptedModel([["ok"]] * 3)
            async with Session.open("s1", traces, again, tools=[act]) as session:
                end = [event async for event in session.run("three", approve=lambda request: "allow")][-1]
                assert isinstance(end, AgentEnd) and end.stop_reason == "completed"
                assert illegal(session.messages) is None
            assert policy == "warn" or len(set(ran)) == len(ran)
        if disk.room >= 0:
            assert ended and ran[:3] == [1, 2, 3]
            break
        writes += stride


async def both_runs(session: Session, policy: str) -> bool:
    """Whether they came to their ends; with `warn` they must."""
    for prompt in ("one", "two"):
        try:
            events = [event async for event in session.run(prompt, approve=lambda request: "allow")]
        except TraceWriteError:
            assert policy == "fail"
            return False
        assert isinstance(events[-1], AgentEnd) and events[-1].stop_reason == "completed"
    return True


# ---------------------------------------------------------------- a server that dies while a person is asked about its tool


@pytest.mark.parametrize("restarts", [1, 0])
async def test_a_server_that_dies_while_its_call_is_asked_about(restarts: int, anyio_backend: Any) -> None:
    """What was allowed then runs at the server that is started anew; where there are no more starts, or its end is noticed
    only in the call, it fails with the reason, and the run goes on to its end."""
    if anyio_backend == BACKENDS["uvloop"]:
        pytest.skip("as on asyncio")
    pytest.importorskip("mcp", reason="needs the official MCP SDK: pip install 'agentloop[mcp]'")
    from tests import mcp_support

    async def ask(request: ApprovalRequest) -> Any:
        for process in mcp_support.marked():
            os.kill(process, signal.SIGKILL)
        while mcp_support.marked():  # noqa: ASYNC110  (the end of a process is nobody's event here)
            await anyio.sleep(0.01)
        return "allow"

    with mcp_support.nothing_left():
        script = [call("polite__add", {"a": 1, "b": 2}), "done"]
        run = mcp_support.run([mcp_support.polite(restarts=restarts)], script, approve=ask)
        events = [event async for event in run]
    (text,) = mcp_support.texts(events)
    assert (text == "3" and restarts) or text.startswith("The MCP server polite "), text
    assert mcp_support.end(events).stop_reason == "completed"


# ---------------------------------------------------------------- open calls, all asked about at once


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
@pytest.mark.parametrize(
    "answers", [("allow", "allow", "allow"), ("deny", "allow", "deny"), ("allow", "deny", "allow")]
)
async def test_open_calls_are_answered_in_any_order(order: tuple[int, ...], answers: tuple[str, ...]) -> None:
    """Calls of the context, all shown at once, decided in any order: starts come as answers do, results in call order."""
    gates = [anyio.Event() for _ in order]

    async def ask(request: ApprovalRequest) -> Any:
        number = int(request.tool_call_id)
        await gates[number].wait()
        return answers[number]

    context = Context(
        messages=[user("go"), assistant(*[ToolCall(str(n), "work", "{}") for n in range(3)])], tools=[work]
    )
    config = Config(model=ScriptedModel(["fine"]), approve=ask, approval_order="all_at_once")
    events: list[Event] = []

    async def drive() -> None:
        events.extend([event async for event in agent_loop_continue(context, config)])

    async with anyio.create_task_group() as group:
        group.start_soon(drive)
        for number in order:
            await wait_all_blocked()
            gates[number].set()
    check(events)
    assert [e.tool_call_id for e in events if isinstance(e, ToolExecutionStart)] == [str(number) for number in order]
    results = [e.message for e in events if isinstance(e, MessageEnd) and isinstance(e.message, ToolResultMessage)]
    assert [(each.tool_call_id, each.is_error) for each in results] == [
        (str(n), answers[n] == "deny") for n in range(3)
    ]
    assert isinstance(events[-1], AgentEnd) and events[-1].stop_reason == "completed"
