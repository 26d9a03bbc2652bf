"""Answers later and from another process: a run that waits for a person stops, and goes on with exactly what was approved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop import (
    AnswerError,
    ApprovalDecision,
    ApprovalRequest,
    Config,
    Context,
    MessageEnd,
    ToolExecutionStart,
    TraceLocked,
    agent_loop,
    tool,
)
from agentloop.approval import Approvals, Policy, Rule, until_waiting
from agentloop.cli import main
from agentloop.cli.check import check_session
from agentloop.omni.answers import approved_calls, open_questions, store_answer
from agentloop.omni.resume import resume_session
from agentloop.omni.trace import trace_files
from agentloop.session import Session
from agentloop.testing import ScriptedModel, call, collect

pytestmark = pytest.mark.anyio

WORKER = Path(__file__).with_name("approval_worker.py")
ID = "waits_for_a_person"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A process that does this."""
    command = [sys.executable, "-W", "error", str(WORKER), str(folder), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def done(folder: Path, *words: str) -> Any:
    """What a process says in the end."""
    process = start(folder, *words)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def ran(folder: Path) -> list[str]:
    """What was deleted, in order, over all processes."""
    path = folder / "ran.txt"
    return path.read_text().split() if path.exists() else []


# ---------------------------------------------------------------- real processes


def test_a_run_is_left_answered_elsewhere_and_goes_on(tmp_path: Path) -> None:
    """One process runs until it waits, two others answer, a fourth goes on: what was allowed runs once, what was denied
    never, nobody is asked again, and the model gets the results in call order."""
    assert done(tmp_path, "wait") == {"waiting": ["a", "b"]}
    assert ran(tmp_path) == ["ok"]
    assert done(tmp_path, "allow", "b") == {"answered": "b", "shown": '{"path":"b"}'}
    done(tmp_path, "deny", "a")
    after = done(tmp_path, "go_on")
    assert ran(tmp_path) == ["ok", "b"]
    assert after["waiting"] == []
    assert "ApprovalRequest" not in after["events"]
    assert after["messages"][2:] == ["Tool call denied by user.", "deleted ok", "deleted b", "all done"]
    assert main(["check", *map(str, (tmp_path / "traces").rglob("*.jsonl"))]) == 0


def test_a_process_that_dies_while_it_waits(tmp_path: Path) -> None:
    """Killed with both questions open: an answer to one makes that one run, and the other is asked again."""
    process = start(tmp_path, "hang")
    assert process.stdout is not None
    assert sorted(json.loads(process.stdout.readline())["asked"] for _ in range(2)) == ["a", "b"]
    with pytest.raises(TraceLocked):  # whoever runs it takes the answers
        question = open_questions(resume_session(tmp_path / "traces", ID))[0]
        store_answer(tmp_path / "traces", ID, "a", "allow", question.digest)
    process.kill()
    process.communicate()
    done(tmp_path, "allow", "a")
    assert done(tmp_path, "go_on")["waiting"] == ["b"]
    assert sorted(ran(tmp_path)) == ["a", "ok"]
    done(tmp_path, "allow", "b")
    assert done(tmp_path, "go_on")["messages"][-1] == "all done"
    assert sorted(ran(tmp_path)) == ["a", "b", "ok"]
    assert main(["check", *map(str, (tmp_path / "traces").rglob("*.jsonl"))]) == 0


# ---------------------------------------------------------------- in one process, on every backend


class Desk:
    """A session whose model calls `delete` once, with its run left at the question."""

    def __init__(self, folder: Path) -> None:
        self.traces = folder / "traces"
        self.ran: list[str] = []

        @tool
        async def delete(path: str, force: bool = False) -> str:
            """Delete a file."""
            self.ran.append(path)
            return "deleted"

        self.delete = delete

    async def leave(self) -> None:
        """Run until a person is needed."""
        model = ScriptedModel([[call("delete", {"path": "a"}, id="c")]])
        async with Session.create(self.traces, model, tools=[self.delete], session_id=ID) as session:
            left = until_waiting(session.run("go", approve=Approvals()))
            await collect(left)
            assert [request.tool_call_id for request in left.waiting] == ["c"]

    def digest(self) -> str:
        """Of the question."""
        (question,) = open_questions(resume_session(self.traces, ID))
        return question.digest

    async def go_on(self, approve: Any, leave: bool = True, **options: Any) -> list[Any]:
        """What happens about the call when the session goes on (left at a question)."""
        model = ScriptedModel(["done"])
        async with Session.open(ID, self.traces, model, tools=[self.delete], **options) as session:
            run = session.run(approve=approve)
            events = await collect(until_waiting(run) if leave else run)
        return [e for e in events if isinstance(e, ApprovalRequest | ApprovalDecision | ToolExecutionStart)]


async def test_exactly_the_approved_call_runs(tmp_path: Path) -> None:
    """The decision is told again without a request, with the arguments that were shown."""
    desk = Desk(tmp_path)
    await desk.leave()
    store_answer(desk.traces, ID, "c", "allow", desk.digest())
    assert approved_calls(resume_session(desk.traces, ID)) == {"c": '{"path":"a"}'}
    decision, start = await desk.go_on(Approvals())
    assert decision == ApprovalDecision("allow", "c", '{"path":"a"}')
    assert isinstance(start, ToolExecutionStart)
    assert desk.ran == ["a"]


async def test_what_would_run_now_is_not_what_was_shown(tmp_path: Path) -> None:
    """A hook changes the arguments after the answer: they are asked about, and nothing runs on the old answer."""
    desk = Desk(tmp_path)
    await desk.leave()
    store_answer(desk.traces, ID, "c", "allow", desk.digest())
    changed = await desk.go_on(Approvals(), before_tool_call=lambda invocation: {"path": "b"})
    assert changed == [ApprovalRequest("c", "delete", '{"path":"b"}')]
    assert desk.ran == []


async def test_an_answer_stands_under_the_policy_of_today(tmp_path: Path) -> None:
    """What was allowed yesterday and is forbidden today does not run."""
    desk = Desk(tmp_path)
    await desk.leave()
    store_answer(desk.traces, ID, "c", "allow", desk.digest())
    decision, _ = await desk.go_on(Approvals(Policy([Rule("forbid")])))
    assert (decision.decision, desk.ran) == ("forbidden", [])


async def test_without_an_answer_it_is_asked_again(tmp_path: Path) -> None:
    """The run goes on to the same question, and without anybody to ask it is denied."""
    desk = Desk(tmp_path)
    await desk.leave()
    assert await desk.go_on(Approvals()) == [ApprovalRequest("c", "delete", '{"path":"a"}')]
    _, decision, _ = await desk.go_on(Policy(), leave=False)
    assert (decision.decision, desk.ran) == ("deny", [])


async def test_an_approve_that_fails_to_say_whether_it_has_a_policy_forbids(tmp_path: Path) -> None:
    """As one whose policy fails: a lazy proxy whose object cannot be had breaks no run off."""

    class Unbound:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("there is no object")

        def __call__(self, request: ApprovalRequest) -> str:
            raise AssertionError("nothing is asked of it")

    desk = Desk(tmp_path)
    model = ScriptedModel([[call("delete", {"path": "a"}, id="c")], "fine"])
    async with Session.create(desk.traces, model, tools=[desk.delete], session_id=ID) as session:
        events = await collect(session.run("go", approve=Unbound()))  # type: ignore[arg-type]
    assert [event.decision for event in events if isinstance(event, ApprovalDecision)] == ["forbidden"]
    assert (events[-1].stop_reason, desk.ran) == ("completed", [])  # type: ignore[union-attr]


async def test_a_stored_deny_is_final(tmp_path: Path) -> None:
    """Its result is the fixed one, nobody is asked, and the call does not run, whatever today's policy allows."""
    desk = Desk(tmp_path)
    await desk.leave()
    store_answer(desk.traces, ID, "c", "deny", desk.digest())
    assert await desk.go_on(Policy(default="allow")) == []
    assert desk.ran == []


async def test_an_answer_behind_a_later_run_that_was_left_is_no_finding(tmp_path: Path) -> None:
    """The run that asked is gone, and the one that stands open knows nothing of the call: the trace is still a legal one."""
    desk = Desk(tmp_path)
    model = ScriptedModel([[call("delete", {"path": "a"}, id="c")], "never asked for"])
    async with Session.create(desk.traces, model, tools=[desk.delete], session_id=ID) as session:
        await collect(until_waiting(session.run("go", approve=Approvals())))
        run = session.run("something else", approve=Approvals())
        async for event in run:
            if isinstance(event, MessageEnd):
                break
        await run.aclose()
    store_answer(desk.traces, ID, "c", "allow", desk.digest())
    (report,) = check_session([str(file.path) for file in trace_files(desk.traces, ID)])
    assert report.ok, report.to_text()
    assert report.runs == 2


async def test_an_answer_in_the_middle_of_a_run_that_goes_on_is_a_finding(tmp_path: Path) -> None:
    """Somebody had the session then; and it hides nothing of what is wrong behind it."""
    desk = Desk(tmp_path)
    model = ScriptedModel([[call("delete", {"path": "a"}, id="c")], "fine"])
    async with Session.create(desk.traces, model, tools=[desk.delete], session_id=ID) as session:
        await collect(until_waiting(session.run("go", approve=Approvals())))
        await collect(session.run("something else", approve=Approvals()))
    (file,) = trace_files(desk.traces, ID)
    assert check_session([str(file.path)])[0].ok
    lines = file.path.read_bytes().splitlines(keepends=True)
    (asked,) = [json.loads(line) for line in lines if b'"approval_request"' in line]
    asked["payload"] = {"type": "approval_decision", "decision": "allow", "tool_call_id": "c"}
    file.path.write_bytes(b"".join([*lines[:-2], json.dumps(asked).encode() + b"\n", *lines[-1:]]))
    (report,) = check_session([str(file.path)])
    assert [(finding.line, finding.rule) for finding in report.findings] == [(len(lines) - 1, "call-known")]


async def test_answers_that_fit_no_question(tmp_path: Path) -> None:
    """Unknown, changed, invalid, duplicate, and one to a call that was never asked about: an error, and nothing is written."""
    desk = Desk(tmp_path)
    await desk.leave()
    digest = desk.digest()
    files = {path: path.read_bytes() for path in desk.traces.rglob("*.jsonl")}
    for id, decision, given, code in (
        ("z", "allow", digest, "unknown"),
        ("c", "allow", "0" * 64, "changed"),
        ("c", "forbidden", digest, "invalid"),
    ):
        with pytest.raises(AnswerError) as caught:
            store_answer(desk.traces, ID, id, decision, given)  # type: ignore[arg-type]
        assert caught.value.code == code
    assert {path: path.read_bytes() for path in desk.traces.rglob("*.jsonl")} == files
    store_answer(desk.traces, ID, "c", "allow", digest)
    with pytest.raises(AnswerError) as caught:
        store_answer(desk.traces, ID, "c", "deny", digest)
    assert caught.value.code == "duplicate"
    assert open_questions(resume_session(desk.traces, ID)) == ()
    await desk.go_on(Approvals())
    with pytest.raises(AnswerError) as caught:
        store_answer(desk.traces, ID, "c", "deny", digest)
    assert caught.value.code == "unknown"


async def test_a_call_that_was_not_reached_is_late(tmp_path: Path) -> None:
    """One at a time: the second call was not asked about yet, so there is nothing to answer."""
    desk = Desk(tmp_path)
    model = ScriptedModel([[call("delete", {"path": "a"}, id="c"), call("delete", {"path": "b"}, id="d")]])
    async with Session.create(desk.traces, model, tools=[desk.delete], session_id=ID) as session:
        await collect(until_waiting(session.run("go", approve=Approvals())))
    with pytest.raises(AnswerError) as caught:
        store_answer(desk.traces, ID, "d", "allow", desk.digest())
    assert caught.value.code == "late"


async def test_the_digest_is_that_of_the_live_question(tmp_path: Path) -> None:
    """What a person was shown while the run waited can still be answered after it was left."""
    desk = Desk(tmp_path)
    shown: list[str] = []
    approvals = Approvals(on_question=lambda question: shown.append(question.digest))
    model = ScriptedModel([[call("delete", {"path": "ä\n"}, id="c")]])
    async with Session.create(desk.traces, model, tools=[desk.delete], session_id=ID) as session:
        run = session.run("go", approve=approvals)
        async with anyio.create_task_group() as group:
            group.start_soon(collect, run)
            await approvals.wait()
            await run.aclose()
    assert shown == [desk.digest()]
    store_answer(desk.traces, ID, "c", "allow", shown[0])
    await desk.go_on(Approvals())
    assert desk.ran == ["ä\n"]


async def test_an_order_that_there_is_not() -> None:
    """It is refused, and does not pass for `one_at_a_time`."""
    run = agent_loop("go", Context(), Config(model=ScriptedModel(["fine"])))
    with pytest.raises(ValueError, match="order: expected one_at_a_time or all_at_once, got 'all'"):
        until_waiting(run, order="all")  # type: ignore[arg-type]
