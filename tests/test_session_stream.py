"""What a session streams and what it stores, record by record: order, interruption, approvals. Numbers name expectations of
the protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop import AbortSignal, AgentEnd, CustomMessage, McpConnectEnd, ModelError, Usage, tool, user
from agentloop.compaction import Summarize, TurnsReach
from agentloop.model import TextChunk, ToolCallChunk, UsageChunk
from agentloop.omni.records import Record, event_kind, is_complete_model_message, is_meta, is_partial
from agentloop.omni.resume import resume_session
from agentloop.session import Session
from agentloop.testing import ScriptedModel, VirtualClock
from agentloop.testing.scripted import STALL, call, text, thinking
from tests.session_world import World, options

pytestmark = pytest.mark.anyio


def kind(record: Record) -> str:
    return str(record["payload"].get("type", record["type"]))


def allow(request: Any) -> str:
    return "allow"


async def collect(records: Any) -> list[Record]:
    return [record async for record in records]


def conversation(records: Sequence[Record]) -> list[tuple[str, Any]]:
    """The complete messages among them: what they are, and how they ended."""
    return [(kind(r), r["payload"]["stop_reason"]) for r in records if is_complete_model_message(r)]


@pytest.mark.parametrize("order", [None, SystemExit("now")])
async def test_a_message_that_fails_to_be_a_record_is_left_out_of_the_stream(
    tmp_path: Path, order: SystemExit | None
) -> None:
    """However it fails, with words that fail as well; an order to leave closes the run and leaves it."""

    class Wordless(BaseException):
        def __str__(self) -> str:
            raise LookupError("gone")

    class Odd(CustomMessage):
        @property
        def role(self) -> str:  # type: ignore[override]
            raise BaseExceptionGroup("several", [Wordless(), *([order] if order else [])])

    async with Session.create(tmp_path, ScriptedModel(["done"]), policy="warn") as session:
        records = session.records([Odd(), user("Go.")])
        if order is None:
            assert ("text", "completed") in conversation(await collect(records))
            return
        with pytest.raises(SystemExit) as caught:
            await collect(records)
        assert caught.value is order
        assert not session.is_running


async def test_interrupted_segments_are_closed_with_the_reason(tmp_path: Path) -> None:
    """16: aborted in the middle of a text: its `stop` and its complete record say `aborted`, the thinking before it keeps
    `completed`, no tokens are told, and the half call of another reply is closed and not in the message."""
    abort = AbortSignal()
    model = ScriptedModel([[thinking("Hm."), TextChunk("Half"), STALL]])
    async with Session.create(tmp_path, model) as session:
        shown = []
        async for record in session.records("Go.", abort=abort):
            shown.append(record)
            if kind(record) == "partial_text" and record["payload"]["text"]:
                abort.abort()
        stored = session.history().records
    assert conversation(shown) == [("text", "completed"), ("thinking", "completed"), ("text", "aborted")]
    assert conversation(stored) == conversation(shown)
    stops = [r["payload"] for r in shown if is_partial(r) and r["payload"]["event_type"] == "stop"]
    assert [(stop["type"], stop["stop_reason"]) for stop in stops] == [
        ("partial_thinking", "completed"), ("partial_text", "aborted"),
    ]  # fmt: skip
    assert "token_usage" not in map(kind, shown)


@pytest.mark.parametrize("compacting", [False, True], ids=["one context", "compacting"])
async def test_trace_order_is_stream_order(compacting: bool, tmp_path: Path) -> None:
    """53 (ours): with calls that run side by side, approvals, several runs and compactions, the complete records of stream
    and trace are the same, in the same order, the prompt too; each side leaves out only what belongs to the other."""
    world, ticks = World(), count(1_700_000_000_000)
    shown: list[Record] = []
    given = options(compacting) | {"wall_clock": lambda: next(ticks) / 1000}  # no two events at one time
    async with Session.create(tmp_path, world.model, tools=world.tools, **given) as session:
        for task in "AB":
            shown += await collect(session.records(f"Do task {task}", approve=world.approve))
        stored = [record for record in session.history().records if not is_meta(record)]
    complete = [record for record in shown if not is_partial(record)]
    stream_only = [record for record in complete if record not in stored]
    trace_only = [record for record in stored if record not in complete]
    assert [r for r in complete if r in stored] == [r for r in stored if r in complete]
    assert {kind(record) for record in stream_only} <= {"agent_end"}, "the end of a run right behind a compaction"
    assert trace_only == [] if not compacting else {kind(record) for record in trace_only} <= {
        "text", "message_start", "message_end", "request_begin", "request_end", "tool_list_ready",
    }  # fmt: skip


class Source:
    """Tools that need a connection."""

    servers = ("files",)

    async def connect(self) -> Any:
        """At once."""
        return McpConnectEnd("completed"), ()

    async def changed(self) -> None:
        """Never."""

    async def close(self) -> None:
        """Nothing to do."""


async def test_the_prompt_comes_first_then_the_servers_then_the_tools(tmp_path: Path) -> None:
    """54 (ours): prompt, MCP pair, tool list, request; in the stream as in the trace."""
    async with Session.create(tmp_path, ScriptedModel(["ok"]), tool_source=Source()) as session:
        shown = await collect(session.records("Go."))
        stored = session.history().records
    order = [
        "agent_start", "turn_start", "message_start", "text", "message_end", "mcp_connect_begin", "mcp_connect_end",
        "tool_list_ready", "request_begin",
    ]  # fmt: skip
    assert list(map(kind, shown))[: len(order)] == order
    assert list(map(kind, stored))[: len(order) + 1] == ["session_meta", *order]


async def test_two_calls(tmp_path: Path) -> None:
    """55, 56 (ours): the second call is decided on while the first one runs; outputs come as they are ready, the model gets
    them in call order, and no request begins before both are there."""
    first_may_end = anyio.Event()

    @tool
    async def slow() -> str:
        """End when told."""
        await first_may_end.wait()
        return "slow"

    @tool
    async def quick() -> str:
        """End at once."""
        return "quick"

    model = ScriptedModel([[call("slow", id="c1"), call("quick", id="c2")], "both"])
    seen: list[tuple[str, str]] = []
    async with Session.create(tmp_path, model, tools=[slow, quick]) as session:
        async for record in session.records("Both.", approve=allow):
            if kind(record) in ("approval_decision", "tool_call_output", "request_begin"):
                seen.append((kind(record), record["payload"].get("tool_call_id", "")))
                if seen[-1] == ("tool_call_output", "c2"):
                    first_may_end.set()
    assert seen == [
        ("request_begin", ""), ("approval_decision", "c1"), ("approval_decision", "c2"),
        ("tool_call_output", "c2"), ("tool_call_output", "c1"), ("request_begin", ""),
    ]  # fmt: skip
    assert [message.text for message in model.requests[1].messages[2:]] == ["slow", "quick"]


async def test_whoever_fails_to_decide_denies(tmp_path: Path) -> None:
    """58: a callback that raises denies; each complete call is asked about once, and the turn goes on."""
    asked: list[str] = []

    def approve(request: Any) -> str:
        asked.append(request.tool_call_id)
        raise RuntimeError("no idea")

    @tool
    async def forbidden() -> str:
        """Must not run."""
        raise AssertionError("it ran")

    model = ScriptedModel([[call("forbidden", id="c1"), call("forbidden", id="c2")], "so be it"])
    async with Session.create(tmp_path, model, tools=[forbidden]) as session:
        shown = await collect(session.records("Go.", approve=approve))
    decisions = [r["payload"]["decision"] for r in shown if kind(r) == "approval_decision"]
    outputs = [r["payload"]["stop_reason"] for r in shown if kind(r) == "tool_call_output"]
    assert (asked, decisions, outputs) == (["c1", "c2"], ["deny", "deny"], ["aborted", "aborted"])
    assert session.messages[-1].text == "so be it"


@pytest.mark.parametrize("order", ["one_at_a_time", "all_at_once"])
async def test_an_abort_while_a_question_is_open(order: str, tmp_path: Path) -> None:
    """83 (ours): no decision is told or stored for what was being asked; each call ends `aborted` without running; and a
    session opened again neither runs nor asks about it."""
    abort, asked = AbortSignal(), anyio.Event()

    async def approve(request: Any) -> str:
        asked.set()
        await anyio.sleep_forever()
        return "allow"

    @tool
    async def act() -> str:
        """Must not run."""
        raise AssertionError("it ran")

    model = ScriptedModel([[call("act", id="c1"), call("act", id="c2")], "later"])
    shown: list[Record] = []
    async with Session.create(tmp_path, model, tools=[act], session_id="s1", approval_order=order) as session:

        async def run() -> None:
            shown.extend(await collect(session.records("Go.", approve=approve, abort=abort)))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await asked.wait()
            with pytest.raises(RuntimeError, match="one at a time"):  # 83: one task a session
                session.run("another")
            abort.abort("enough")
        stored = session.history().records
    for records in (shown, stored):
        assert "approval_decision" not in map(kind, records)
        outputs = [r["payload"] for r in records if kind(r) == "tool_call_output"]
        assert [(o["tool_call_id"], o["stop_reason"]) for o in outputs] == [("c1", "aborted"), ("c2", "aborted")]
        assert [kind(record) for record in records][-2:] == ["abort", "agent_end"]
    assert resume_session(tmp_path, "s1").calls == ()


async def test_half_a_call_is_asked_about_by_nobody(tmp_path: Path) -> None:
    """61: a call that an abort cut in its arguments is not asked about, does not run, and has no output."""
    abort = AbortSignal()

    async def cut(request: Any) -> Any:
        abort.abort()
        return STALL

    model = ScriptedModel([[ToolCallChunk('{"a": ', id="c1", name="act"), cut]])
    async with Session.create(tmp_path, model) as session:
        shown = await collect(session.records("Go.", approve=allow, abort=abort))
    assert [r["payload"]["stop_reason"] for r in shown if kind(r) == "tool_call"] == ["aborted"]
    assert not {"approval_request", "approval_decision", "tool_call_output"} & set(map(kind, shown))
    assert session.messages == (user("Go."),)


async def test_the_limit_of_turns_is_said_by_the_end(tmp_path: Path) -> None:
    """63 (ours): no notice among the messages; `agent_end` says it, the outputs are there, and a run without a prompt goes
    on with them."""

    @tool
    async def act() -> str:
        """Act."""
        return "acted"

    model = ScriptedModel([call("act"), "seen"])
    async with Session.create(tmp_path, model, tools=[act], max_turns=1) as session:
        shown = await collect(session.records("Go.", approve=allow))
        end = next(r["payload"] for r in shown if kind(r) == "agent_end")
        assert (end["status"], end["error_code"]) == ("fatal", "max_turns")
        assert [name for name, _ in conversation(shown)] == ["text", "tool_call", "tool_call_output"]
        assert [event.stop_reason async for event in session.run() if isinstance(event, AgentEnd)] == ["completed"]
    assert [message.text for message in model.requests[1].messages][-1] == "acted"


async def test_a_failed_request_ends_the_run_without_an_abort(tmp_path: Path) -> None:
    """65: given up: the request's end without a wait is the last of it, no `abort` follows, the input is carried over."""
    model = ScriptedModel([ModelError("rejected", "no")])
    async with Session.create(tmp_path, model, session_id="s1") as session:
        shown = await collect(session.records("Go."))
    end = next(r["payload"] for r in shown if kind(r) == "request_end")
    assert (end["status"], "retry_in_ms" in end) == ("fatal", False)
    assert "abort" not in map(kind, shown)
    assert [getattr(message, "text", "") for message in resume_session(tmp_path, "s1").inputs] == ["Go."]


async def test_a_summary_streams_once_between_the_pair(tmp_path: Path) -> None:
    """75: the summary's fragments come between begin and end of the compaction, each character once; the rest of its exchange
    is in the trace alone."""
    model = ScriptedModel(["one", text("[summary]", "short", "[/summary]")])
    compaction = Summarize(when=TurnsReach(1))
    async with Session.create(tmp_path, model, compaction=compaction) as session:
        shown = await collect(session.records("Go."))
        stored = list(map(kind, session.history().records))
    kinds = list(map(kind, shown))
    inside = shown[kinds.index("compaction_begin") + 1 : kinds.index("compaction_end")]
    assert {kind(record) for record in inside} <= {"partial_text", "token_usage"}
    pieces = [record["payload"]["text"] for record in inside if kind(record) == "partial_text"]
    assert "".join(pieces) == "[summary]short[/summary]"
    assert stored.count("request_begin") == 2 and kinds.count("request_begin") == 1


async def test_a_model_switch(tmp_path: Path) -> None:
    """79 (ours): compacted by the old model, then switched; the new file, headed by the new model, opens with the next
    record, and says enough to be resumed from that file alone. (Not at once: a head alone would be a context of nothing.)"""
    old = ScriptedModel(["one", "[summary]short[/summary]"], model="old")
    new = ScriptedModel(["two"], model="new")
    async with Session.create(tmp_path, old, session_id="s1", compaction=Summarize()) as session:
        async for _ in session.run("Go."):
            pass
        async for _ in session.compact():
            pass
        before = session.path
        session.configure(model=new)
        async for _ in session.run("On."):
            pass
        after = session.path
    assert before != after
    resumed = resume_session(tmp_path, "s1")
    assert resumed.meta is not None and resumed.meta["payload"]["model_id"] == "new"
    assert [getattr(m, "text", "") for m in resumed.messages] == [
        "[context_summary]\nshort\n[/context_summary]", "On.", "two",
    ]  # fmt: skip
    assert [event_kind(r) for r in session.history().records].count("compaction_end") == 1


async def test_the_last_report_of_a_request_counts(tmp_path: Path) -> None:
    """20: of several reports within one request the last one; over requests and runs the session's total adds up."""
    reports = [UsageChunk(Usage(1, 1, 1)), UsageChunk(Usage(2, 2, 2))]
    model = ScriptedModel([["one", *reports], ["two", *reports]])
    async with Session.create(tmp_path, model) as session:
        shown = await collect(session.records("Go.")) + await collect(session.records("On."))
    told = [r["payload"] for r in shown if kind(r) == "token_usage"]
    assert [(usage["request"]["total"], usage["session"]["total"]) for usage in told] == [(6, 6), (6, 12)]


async def test_fidelity_goes_back_as_it_came_after_a_resume(tmp_path: Path) -> None:
    """19: nested objects, key order, floats, nulls and other scripts come back to the model just as it sent them, by way of
    the file."""
    fidelity = {"z": [1.0, 1, None, {"b": "日本", "a": 1e300}], "10": "ten", "2": True, "big": 2**70}
    model = ScriptedModel([thinking("Hm.", fidelity=fidelity) + text("Yes.")])
    async with Session.create(tmp_path, model, session_id="s1") as session:
        await collect(session.records("Go."))
    again = ScriptedModel(["ok"])
    async with Session.open("s1", tmp_path, again) as session:
        await collect(session.records("On."))
    block = again.requests[0].messages[1].content[0]
    assert json.dumps(block.fidelity) == json.dumps(fidelity)


async def test_a_slow_tool_costs_its_own_time(tmp_path: Path) -> None:
    """62: calls side by side take as long as the slowest, and the loop adds nothing (on a clock of its own)."""
    clock = VirtualClock()

    @tool
    async def rest(seconds: float) -> str:
        """Take a while."""
        await clock.sleep(seconds)
        return "rested"

    model = ScriptedModel([[call("rest", {"seconds": seconds}) for seconds in (1, 7, 3)], "ok"])
    async with Session.create(tmp_path, model, tools=[rest], clock=clock) as session:
        began = clock.now()
        await collect(session.records("Go.", approve=allow))
    assert clock.now() - began == 7


async def test_steering_is_recorded_and_kept(tmp_path: Path) -> None:
    """76: what is said while a task runs comes behind the results, is recorded like a prompt, and belongs to the history of
    a session opened again."""
    said = ["In French."]

    @tool
    async def act() -> str:
        """Act."""
        return "acted"

    def steering() -> list[str]:
        return [said.pop()] if said and model.asked == 1 else []

    model = ScriptedModel([call("act"), "Oui."])
    async with Session.create(tmp_path, model, tools=[act], session_id="s1", get_steering_messages=steering) as session:
        await collect(session.records("Go.", approve=allow))
    async with Session.open("s1", tmp_path, model) as session:
        told = [getattr(message, "text", "") for message in session.messages]
    assert told == ["Go.", "", "acted", "In French.", "Oui."]


async def test_stopped_before_it_began(tmp_path: Path) -> None:
    """A signal that fired before the first step: nothing is said, asked or taken; a pending summary still leads the next
    run."""
    gone = AbortSignal()
    gone.abort("too late")
    model = ScriptedModel(["one", "[summary]short[/summary]", "two"])
    async with Session.create(tmp_path, model, compaction=Summarize()) as session:
        await collect(session.records("Go."))
        async for _ in session.compact():
            pass
        shown = await collect(session.records("Not said.", abort=gone))
        assert list(map(kind, shown)) == ["agent_start", "abort", "agent_end"]
        assert session.pending_summary is not None and session.messages == ()
        await collect(session.records("On."))
    assert [message.text for message in model.requests[2].messages] == [
        "[context_summary]\nshort\n[/context_summary]", "On.",
    ]  # fmt: skip


async def test_an_event_that_is_no_record_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message that JSON cannot say, where the trace need not be complete: the stream goes on as the run does."""

    class Odd(CustomMessage):
        role = "odd"

        def __init__(self) -> None:
            self.value = {1, 2}

    async with Session.create(tmp_path, ScriptedModel(["Fine."]), policy="warn") as session:
        shown = await collect(session.records([Odd(), "Go."]))
        assert not session.is_running
    assert ("text", "completed") in conversation(shown) and kind(shown[-1]) == "agent_end"
    assert "left out of the stream: odd.value" in caplog.text
