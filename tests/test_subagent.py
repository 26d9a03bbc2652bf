"""`subagent`: nested sessions as tools: what comes back, what is shown, recorded, counted, asked, aborted, limited."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    ApprovalRequest,
    ChildEvent,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    ModelError,
    SubagentStarted,
    TokenUsage,
    Tool,
    ToolContext,
    ToolDefinitionError,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolResult,
    agent_loop,
    tool,
)
from agentloop._session.door import Door
from agentloop.approval import Approvals, Question
from agentloop.compaction import Discard, Summarize, TurnsReach
from agentloop.grammar import check
from agentloop.messages import Usage
from agentloop.model import Finish, UsageChunk
from agentloop.omni.codec import encode
from agentloop.omni.expand import session_records
from agentloop.omni.reader import trace_files
from agentloop.omni.recorder import record
from agentloop.omni.records import session_meta
from agentloop.omni.resume import resume_session
from agentloop.omni.trace import TraceWriter
from agentloop.reducer import State
from agentloop.session import Session
from agentloop.subagent import ChildApprovalRequest, subagent
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, collect

pytestmark = pytest.mark.anyio

TASK = {"prompt": "do it"}


def spent(tokens: int) -> UsageChunk:
    """What a provider reports of a request."""
    return UsageChunk(Usage(0, tokens, 0))


def child(replies: Iterable[Any], name: str = "helper", **options: Any) -> Tool:
    """A subagent that plays a script, its sessions numbered."""
    numbers = iter(range(1, 1000))
    options.setdefault("make_session_id", lambda: f"{name}-{next(numbers)}")
    return subagent(name, "Helps.", ScriptedModel(replies), **options)


async def played(tools: Iterable[Tool], replies: Iterable[Any], **changes: Any) -> list[Event]:
    """A run of a parent with these tools, checked at both levels."""
    model = ScriptedModel(replies)
    events = await collect(agent_loop("go", Context(tools=tools), Config(model=model, **changes)))
    check(events)
    return events


def of(events: Iterable[Event], kind: Any, origin: tuple[str, ...] = ()) -> list[Any]:
    """The events of a kind of the session at that chain; of the parent itself when empty."""
    if not origin:
        return [event for event in events if isinstance(event, kind)]
    return [e.event for e in events if isinstance(e, ChildEvent) and e.origin == origin and isinstance(e.event, kind)]


def result(events: Iterable[Event]) -> ToolExecutionEnd:
    """The one call's end."""
    (end,) = of(events, ToolExecutionEnd)
    assert isinstance(end, ToolExecutionEnd)
    return end


def text(end: ToolExecutionEnd) -> str:
    """A result's words."""
    return "".join(block.text for block in end.result.content)  # type: ignore[union-attr]


# ---------------------------------------------------------------- what comes back


async def test_the_last_words_come_back() -> None:
    """77: the parent's model sees the child's last reply and nothing else of it; the child sees only its task."""
    helper = child([["thinking aloud", call("missing")], "the answer"], system_prompt="Help.")
    parent = ScriptedModel([call("helper", TASK), "done"])
    events = await collect(agent_loop("go", Context(tools=[helper]), Config(model=parent)))
    check(events)
    assert text(result(events)) == "the answer"
    assert [message.role for message in parent.requests[1].messages] == ["user", "assistant", "tool_result"]
    assert "thinking aloud" not in repr(parent.requests[1].messages)
    end = result(events)
    assert end.result.details is not None
    assert (end.result.details["session_id"], end.result.details["stop_reason"]) == ("helper-1", "completed")
    started = of(events, SubagentStarted)
    assert [(each.session_id, each.tool_call_id) for each in started] == [("helper-1", "call_1")]
    assert started[0].meta["source"] == "subagent"
    assert started[0].meta["system_prompt"] == "Help."
    first = of(events, object, ("helper-1",))
    assert (type(first[0]).__name__, type(first[-1]).__name__) == ("AgentStart", "AgentEnd")


@pytest.mark.parametrize(
    ("replies", "is_error", "words"),
    [
        ([[]], False, ["[no output]"]),
        ([" \n"], False, ["[no output]"]),
        ([ModelError("auth", "no key")], True, ["failed (auth): no key"]),
        ([["half", ModelError("auth", "no key")]], True, ["failed (auth): no key", "so far:\nhalf"]),
        ([["never", Finish("refusal")]], True, ["refused the task", "never"]),
        ([["long", Finish("length")]], True, ["cut off by the output limit", "long"]),
        ([["found it", call("missing")], ModelError("auth", "no key")], True, ["so far:\nfound it"]),
    ],
)
async def test_every_end_has_its_text(replies: list[Any], is_error: bool, words: list[str]) -> None:
    """A child that fails, is refused, is cut off or says nothing: a defined text, never blank, and the parent goes on."""
    events = await played([child(replies, retry=None)], [call("helper", TASK), "done"])
    end = result(events)
    assert end.is_error == is_error
    assert all(each in text(end) for each in words)
    assert events[-1].stop_reason == "completed"  # type: ignore[union-attr]


async def test_a_retried_reply_is_not_the_answer() -> None:
    """Only the last attempt counts, also when it is empty; the words of one that failed do not stand in for it."""
    clock = VirtualClock()
    helper = child([["half", ModelError("overloaded", "busy")], []], clock=clock)
    assert text(result(await played([helper], [call("helper", TASK), "done"]))) == "[no output]"


async def test_a_child_that_compacts_at_its_end_still_answers() -> None:
    """The answer is what it said last outside of compactions, though its context is void by then."""
    helper = child(["the answer", "[summary]short[/summary]"], compaction=Summarize(when=TurnsReach(1)))
    assert text(result(await played([helper], [call("helper", TASK), "done"]))) == "the answer"


async def test_a_blank_task_starts_nothing() -> None:
    """A blank prompt is an error that says so; no session begins."""
    events = await played([child([])], [call("helper", {"prompt": " "}), "done"])
    assert "no task" in text(result(events))
    assert of(events, SubagentStarted) == []


async def test_children_run_side_by_side() -> None:
    """Two calls of one reply: each child's model is asked before either answers; results stand in call order."""
    both = anyio.Event()
    asked: list[str] = []

    def answer(name: str) -> Callable[[Any], Any]:
        async def play(request: Any) -> str:
            asked.append(name)
            if len(asked) == 2:
                both.set()
            await both.wait()
            return name

        return play

    helpers = [child([answer(name)], name) for name in ("one", "two")]
    with anyio.fail_after(10):
        events = await played(helpers, [[call("one", TASK), call("two", TASK)], "done"])
    assert sorted(asked) == ["one", "two"]
    results = [m.text for m in events[-1].messages if m.role == "tool_result"]  # type: ignore[union-attr]
    assert results == ["one", "two"]


# ---------------------------------------------------------------- chains, traces, tokens


async def three_deep(**changes: Any) -> list[Event]:
    """A parent, a child, a grandchild; each spends tokens."""
    inner = child([["deep", spent(5)]], "inner")
    outer = child([[call("inner", TASK), spent(3)], ["middle", spent(4)]], "outer", tools=[inner])
    return await played([outer], [[call("outer", TASK), spent(1)], ["top", spent(2)]], **changes)


async def test_chains_to_any_depth() -> None:
    """7: each hop goes to the front; every event of the grandchild has both ids; none stands in the parent's own text."""
    events = await three_deep()
    chains = [event.origin for event in events if isinstance(event, ChildEvent)]
    assert set(chains) == {("outer-1",), ("outer-1", "inner-1")}
    assert [each.session_id for each in of(events, SubagentStarted)] == ["outer-1"]
    assert [each.session_id for each in of(events, SubagentStarted, ("outer-1",))] == ["inner-1"]
    inner = of(events, object, ("outer-1", "inner-1"))
    check(inner)


async def test_tokens_are_counted_once_at_every_level() -> None:
    """The session total holds each request of each descendant once; `AgentEnd.usage` is the run's own."""
    events = await three_deep(session_usage=Usage(0, 100, 0))
    totals = [each.session.total for each in of(events, TokenUsage)]
    assert totals == [101, 101 + 3 + 5 + 4 + 2]
    assert [each.session.total for each in of(events, TokenUsage, ("outer-1",))] == [3, 3 + 5 + 4]
    assert events[-1].usage.total == 3  # type: ignore[union-attr]
    state = State((), Usage(0, 100, 0))
    for event in events:
        state.apply(event)
    assert state.session_usage.total == 115


async def test_each_has_a_trace_of_its_own(tmp_path: Path) -> None:
    """77: nothing of a child stands in the parent's file but one pointer; the child's resumes alone; `expand` joins all."""
    inner = child([["deep", spent(5)]], "inner", traces=tmp_path)
    outer = child([[call("inner", TASK), spent(3)], ["middle", spent(4)]], "outer", tools=[inner], traces=tmp_path)
    model = ScriptedModel([[call("outer", TASK), spent(1)], ["top", spent(2)]])
    meta = session_meta("parent", provider="scripted", model_id="script")
    with TraceWriter(tmp_path, meta) as writer:
        await collect(record(agent_loop("go", Context(tools=[outer]), Config(model=model)), writer))
    files = {name: records_of(tmp_path, name) for name in ("parent", "outer-1", "inner-1")}
    for name, pointers in [("parent", ["outer-1"]), ("outer-1", ["inner-1"]), ("inner-1", [])]:
        told = [each["payload"]["session_id"] for each in files[name] if each["payload"].get("type") == "subagent"]
        assert told == pointers
        assert not [each for each in files[name] if each.get("origin")]
    assert "deep" not in json.dumps(files["parent"])
    resumed = resume_session(tmp_path, "inner-1")
    assert [message.text for message in resumed.messages] == ["do it", "deep"]  # type: ignore[union-attr]
    assert resumed.messages[0].sender == "parent_agent"  # type: ignore[union-attr]
    assert resume_session(tmp_path, "parent").session_tokens.total == 15


def records_of(traces: Path, session_id: str) -> list[Any]:
    """A session's records, as they stand in its newest file."""
    path = trace_files(traces, session_id)[-1].path
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def test_a_session_as_parent_counts_its_children(tmp_path: Path) -> None:
    """The totals of a `Session` hold the children's tokens, and so does its next run's first `TokenUsage`."""
    helper = child([["a", spent(10)]], traces=tmp_path)
    model = ScriptedModel([[call("helper", TASK), spent(1)], ["b", spent(2)], ["c", spent(4)]])
    async with Session.create(tmp_path, model, tools=[helper], approve=lambda request: "allow") as session:
        await collect(session.run("go"))
        assert session.usage.total == 13
        events = await collect(session.run("more"))
    assert [each.session.total for each in of(events, TokenUsage)] == [17]


async def test_a_session_that_is_opened_again_counts_its_children(tmp_path: Path) -> None:
    """Also those behind whom it asked no more, and theirs; each once, however often it is opened."""
    inner = child([["deep", spent(20)]], "inner")
    helper = child([[call("inner", TASK), spent(10)], ["a", spent(30)]], "helper", tools=[inner])
    model = ScriptedModel([[call("helper", TASK), spent(1)]])
    session = Session.create(tmp_path, model, tools=[helper], approve=lambda request: "allow", max_turns=1)
    async with session:
        (end,) = of(await collect(session.run("go")), AgentEnd)
        assert (end.error_code, end.usage.total) == ("max_turns", 1)  # type: ignore[attr-defined]
        assert session.usage.total == 61
    for _ in range(2):
        assert Session.open(session.id, tmp_path, model).usage.total == 61
    model = ScriptedModel([["b", spent(2)]])
    async with Session.open(session.id, tmp_path, model) as session:
        events = await collect(session.run("more"))
    assert [each.session.total for each in of(events, TokenUsage)] == [63]  # type: ignore[attr-defined]
    assert Session.open(session.id, tmp_path, model).usage.total == 63


async def test_what_nested_runs_spent_before_a_last_compaction_is_counted(tmp_path: Path) -> None:
    """No `agent_end` follows a completed compaction in its file; and a file without a sum adds to those before it."""

    @tool
    async def last(ctx: ToolContext) -> ToolResult:
        """A nested run, after which the run ends."""
        inner = agent_loop("do it", Context(), Config(model=ScriptedModel([["a", spent(20)]])))
        await ctx.nested(inner, "inner")
        return ToolResult("done", terminate=True)

    def options(replies: list[Any]) -> dict[str, Any]:
        discard = Discard(when=TurnsReach(1))
        return {
            "model": ScriptedModel(replies),
            "tools": [last],
            "approve": lambda request: "allow",
            "compaction": discard,
        }

    session = Session.create(tmp_path, **options([[call("last"), spent(1)]]), session_id="s")
    for replies, total in (
        ([[call("last")]], 21),
        ([[call("last")]], 41),
        (["no tokens told"], 61),
        ([["b", spent(2)]], 61),
    ):
        async with session:
            await collect(session.run("go"))
            assert session.usage.total == total
        session = Session.open("s", tmp_path, **options(replies))
        assert session.usage.total == total
    session.close()


async def test_a_stream_tells_what_was_spent_below_each_child() -> None:
    """The end of a child says the same of the runs below it in its parent's stream as in its own trace."""
    inner = child([["deep", spent(20)]], "inner")
    helper = child([[call("inner", TASK), spent(10)]], "helper", tools=[inner], max_turns=1)
    events = await played([helper], [[call("helper", TASK), spent(1)]], max_turns=1)
    ends = [record for record in encode(events) if record["payload"].get("type") == "agent_end"]
    told = {tuple(end.get("origin", ())): end["payload"].get("nested_usage", {}).get("total") for end in ends}
    assert told == {("helper-1", "inner-1"): None, ("helper-1",): 20, (): 30}


# ---------------------------------------------------------------- approvals


async def test_questions_go_up_with_their_origin() -> None:
    """77: the parent's callback is asked about the grandchild's call, told the whole chain; its no is a no down there."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    def approve(request: ApprovalRequest) -> Any:
        asked.append((request.tool_name, getattr(request, "origin", ())))
        return "deny" if request.tool_name == "work" else "allow"

    inner = child([call("work"), "could not"], "inner", tools=[work])
    outer = child([call("inner", TASK), "middle"], "outer", tools=[inner])
    events = await played([outer], [call("outer", TASK), "done"], approve=approve)
    assert asked == [("outer", ()), ("inner", ("outer-1",)), ("work", ("outer-1", "inner-1"))]
    ends = of(events, ToolExecutionEnd, ("outer-1", "inner-1"))
    assert [end.error_code for end in ends] == ["denied"]
    assert len(of(events, ApprovalRequest, ("outer-1", "inner-1"))) == 1


@tool
def work() -> str:
    """Work."""
    return "worked"


async def test_a_child_may_have_an_approval_of_its_own() -> None:
    """Then nobody above is asked; where nobody asks at all, all calls run without a question."""
    asked: list[tuple[str, bool]] = []

    def own(request: ApprovalRequest) -> Any:
        asked.append((request.tool_name, isinstance(request, ChildApprovalRequest)))
        return "allow"

    helper = child([call("work"), "x"], tools=[work], approve=own)
    events = await played([helper], [call("helper", TASK), "done"], approve=lambda request: "allow")
    assert asked == [("work", False)]
    assert [end.is_error for end in of(events, ToolExecutionEnd, ("helper-1",))] == [False]
    free = await played([child([call("work"), "x"], tools=[work])], [call("helper", TASK), "done"])
    assert of(free, ApprovalRequest, ("helper-1",)) == []
    assert [end.is_error for end in of(free, ToolExecutionEnd, ("helper-1",))] == [False]


async def test_a_veto_from_above_holds_below() -> None:
    """A policy of the callback above outranks a hook's yes in the child; what it allows needs no question there either. It
    is told where the call comes from: an answer about a call of its own, by its id, is none about a child's."""

    class Approve:
        verdict: Any = "forbidden"

        def policy(self, call: Any) -> Any:
            return self.verdict if call.name == "work" else None

        async def __call__(self, request: ApprovalRequest) -> Any:
            return "deny" if request.tool_name == "work" else "allow"

    approve = Approve()
    yes = Hooks("yes", pre_tool_use=lambda call: HookAnswer("allow"))
    helper = child([call("work"), "x", call("work"), "y"], tools=[work], hooks=[yes])
    plain = child([call("work"), "z"], "plain", tools=[work])
    events = await played([helper], [call("helper", TASK), "done"], approve=approve)
    assert [end.error_code for end in of(events, ToolExecutionEnd, ("helper-1",))] == ["forbidden"]
    approve.verdict = "allow"
    events = await played([plain], [call("plain", TASK), "done"], approve=approve)
    assert [end.error_code for end in of(events, ToolExecutionEnd, ("plain-1",))] == [None]
    assert of(events, ApprovalRequest, ("plain-1",)) == []


@pytest.mark.parametrize("kind", ["door", "approvals"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_an_answer_about_a_call_is_none_about_a_childs(depth: int, kind: str) -> None:
    """The parent's call was allowed before, and its child's has the very same id, tool and arguments: that one is asked
    about, with its origin. So with `Approvals` and with the door of a session."""
    asked: list[Any] = []

    def note(name: str, origin: tuple[str, ...]) -> None:
        if name == "work":
            asked.append(origin)

    async def ask(request: Any) -> Any:
        note(request.tool_name, getattr(request, "origin", ()))
        return "allow"

    def answer(question: Question) -> None:
        note(question.tool_name, question.origin)
        approvals.answer(question, "allow")

    approvals = Approvals(approved={"same": "{}"}, on_question=answer)
    top = child([call("work", id="same"), "x"], "inner", tools=[work])
    if depth == 2:
        top = child([call("inner", TASK), "y"], "outer", tools=[top])
    script = [call(top.name, TASK, id="top"), call("work", id="same"), "done"]
    await played([top, work], script, approve=Door(ask, {"same": "{}"}) if kind == "door" else approvals)
    assert asked == [[("inner-1",), ("outer-1", "inner-1")][depth - 1]]


# ---------------------------------------------------------------- abort and leaving


async def test_c181_abort_reaches_the_grandchild_first() -> None:
    """C181: grandchild, child, parent end in this order, all aborted; nobody is asked again; the result tells what there
    was."""
    signal = AbortSignal()

    @tool
    async def long(ctx: ToolContext) -> str:
        """Take half a minute."""
        signal.abort("enough")
        await anyio.sleep(30)
        return "late"

    inner_model = ScriptedModel([["digging", call("long")]])
    inner = subagent("inner", "Digs.", inner_model, tools=[long], make_session_id=lambda: "inner-1")
    outer_model = ScriptedModel([["asking", call("inner", TASK)]])
    outer = subagent("outer", "Asks.", outer_model, tools=[inner], make_session_id=lambda: "outer-1")
    with anyio.fail_after(5):
        events = await played([outer], [call("outer", TASK)], abort=signal)
    ends = [e.event if isinstance(e, ChildEvent) else e for e in events]
    order = [
        event.origin if isinstance(event, ChildEvent) else ()
        for event, inner_event in zip(events, ends, strict=True)
        if isinstance(inner_event, AgentEnd)
    ]
    assert order == [("outer-1", "inner-1"), ("outer-1",), ()]
    assert {event.stop_reason for event in ends if isinstance(event, AgentEnd)} == {"aborted"}
    assert (inner_model.asked, outer_model.asked) == (1, 1)
    end = result(events)
    assert (end.stop_reason, end.error_code, end.is_error) == ("aborted", "aborted", True)
    assert "asking" in text(end)
    (below,) = of(events, ToolExecutionEnd, ("outer-1",))
    assert "digging" in text(below)


async def test_a_child_that_hangs_is_timed_out() -> None:
    """The tool's time limit ends a child whose model never answers; its stream is closed, the parent goes on."""
    model = ScriptedModel([["so far", STALL]])
    helper = subagent("helper", "Hangs.", model, timeout=0.05, abort_grace=0.05)
    with anyio.fail_after(10):
        events = await played([helper], [call("helper", TASK), "done"])
    end = result(events)
    assert (end.error_code, end.is_error, model.open_streams) == ("tool_timeout", True, 0)
    assert "so far" in text(end)
    assert events[-1].stop_reason == "completed"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["aclose", "cancel"])
async def test_leaving_closes_every_level(how: str, tmp_path: Path) -> None:
    """A consumer that breaks off or is cancelled: no stream stays open, each child's trace is free again and resumes."""
    model = ScriptedModel([["deep", STALL]])
    inner = subagent("inner", "Waits.", model, traces=tmp_path, make_session_id=lambda: "inner-1")
    outer = child([call("inner", TASK)], "outer", tools=[inner], traces=tmp_path)
    run = agent_loop("go", Context(tools=[outer]), Config(model=ScriptedModel([call("outer", TASK)])))

    def is_deep(event: Event) -> bool:
        return isinstance(event, ChildEvent) and len(event.origin) == 2 and type(event.event).__name__ == "MessageStart"

    with anyio.fail_after(10):
        seen = 0
        with anyio.CancelScope() as scope:
            async for event in run:
                seen += is_deep(event)
                if seen == 2:
                    if how == "cancel":
                        scope.cancel()
                        await anyio.lowlevel.checkpoint()
                    break
        await run.aclose()
    assert model.open_streams == 0
    for session_id in ("outer-1", "inner-1"):
        async with Session.open(session_id, tmp_path, ScriptedModel([])) as session:
            assert session.messages
    del run
    gc.collect()


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The child does not start, its model is not asked, and the result says why; the parent goes on."""
    (tmp_path / "file").write_text("")
    model = ScriptedModel(["never"])
    events = await played(
        [subagent("helper", "Helps.", model, traces=tmp_path / "file")], [call("helper", TASK), "done"]
    )
    assert "trace cannot be written" in text(result(events))
    assert (model.asked, result(events).is_error, of(events, SubagentStarted)) == (0, True, [])


async def test_a_trace_that_fails_on_the_way(tmp_path: Path) -> None:
    """A record that cannot be written stops the child before anything follows from it; the parent goes on."""

    def redact(record: Any) -> Any:
        if record["payload"].get("type") == "tool_execution_start":
            raise OSError("disk full")
        return record

    ran: list[str] = []

    @tool
    def work() -> str:
        """Work."""
        ran.append("work")
        return "worked"

    helper = child([["before", call("work")], "never"], tools=[work], traces=tmp_path, redact=redact)
    events = await collect(
        agent_loop("go", Context(tools=[helper]), Config(model=ScriptedModel([call("helper", TASK), "done"])))
    )
    assert "disk full" in text(result(events))
    assert "before" in text(result(events))
    assert ran == []
    assert events[-1].stop_reason == "completed"  # type: ignore[union-attr]


async def test_an_id_that_is_taken(tmp_path: Path) -> None:
    """Two sessions never share a trace: the second with the same id does not start."""
    helper = child(["a", "b"], traces=tmp_path, make_session_id=lambda: "same")
    events = await played([helper], [call("helper", TASK), call("helper", TASK), "done"])
    first, second = of(events, ToolExecutionEnd)
    assert (text(first), second.is_error) == ("a", True)


# ---------------------------------------------------------------- limits


async def test_depth_is_limited() -> None:
    """An agent that offers itself: so deep and no deeper; the innermost is told, each level above ends."""
    model = ScriptedModel([])

    def play(request: Any) -> Any:
        last = request.messages[-1]
        return "end" if last.role == "tool_result" else call("self", TASK)

    model.replies = [play] * 20
    offered: list[Tool] = []
    offered.append(subagent("self", "Calls itself.", model, tools=lambda: offered, max_depth=2))
    events = await played(offered, [call("self", TASK), "done"])
    chains = {len(event.origin) for event in events if isinstance(event, ChildEvent)}
    assert chains == {1, 2}
    refused = [
        e.event
        for e in events
        if isinstance(e, ChildEvent) and len(e.origin) == 2 and isinstance(e.event, ToolExecutionEnd)
    ]
    assert [end.is_error for end in refused] == [True]
    assert "at most 2 deep" in text(refused[0])


async def test_running_children_are_limited() -> None:
    """Of three calls at once two run, the third is told to wait; later calls run again."""
    refused = anyio.Event()

    async def hold(request: Any) -> None:
        await refused.wait()

    together: list[Any] = [call("helper", TASK) for _ in range(3)]
    helper = child([[hold, "a"], [hold, "b"], "c"], max_running=2)
    config = Config(model=ScriptedModel([together, call("helper", TASK), "done"]))
    events: list[Event] = []
    async for event in agent_loop("go", Context(tools=[helper]), config):
        events.append(event)
        if isinstance(event, ToolExecutionEnd) and event.is_error:
            refused.set()
    check(events)
    ends = of(events, ToolExecutionEnd)
    assert sorted(end.is_error for end in ends) == [False, False, False, True]
    assert "limit" in text(next(end for end in ends if end.is_error))
    assert len(of(events, SubagentStarted)) == 3


async def test_the_tree_is_limited() -> None:
    """All agents below one call of the outermost run count together; its next call has a tree of its own."""
    inner = child(["leaf"] * 9, "inner")
    script: list[Any] = [[call("inner", TASK) for _ in range(3)], "enough"]
    outer = child([*script, *script], "outer", tools=[inner], max_descendants=3)
    events = await played([outer], [call("outer", TASK), call("outer", TASK), "done"])
    for session in ("outer-1", "outer-2"):
        ends = of(events, ToolExecutionEnd, (session,))
        assert [end.is_error for end in ends].count(True) == 1
        assert "has had its 3 agents" in text(next(end for end in ends if end.is_error))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_depth": 0}, ToolDefinitionError),
        ({"max_running": 0}, ToolDefinitionError),
        ({"max_descendants": 0}, ToolDefinitionError),
        ({"abort": AbortSignal()}, TypeError),
        ({"no_such_field": 1}, TypeError),
        ({"tools": [print]}, TypeError),
        ({"tools": tool(len, parameters={"type": "object"})}, TypeError),
        ({"system_prompt": ["Be brief."]}, TypeError),
    ],
)
async def test_what_cannot_be_a_subagent(options: dict[str, Any], error: type[Exception]) -> None:
    """Limits below one and options that a child may not have are refused when the tool is made, by name."""
    with pytest.raises(error, match=next(iter(options))):
        child([], **options)
    with pytest.raises(TypeError, match=r"expected a field of Config, got 'max_turn' \(did you mean max_turns\?\)$"):
        child([], max_turn=1)


async def test_a_subagent_has_a_name_that_providers_take() -> None:
    """As every tool made by `tool`: else the first request would be refused."""
    with pytest.raises(ToolDefinitionError, match="look up: expected a name of the letters"):
        subagent("look up", "Looks things up.", ScriptedModel([]))


async def test_starts_of_grandchildren_are_on_the_parents_stream_in_order() -> None:
    """A call's start, its child's whole life, its end: nothing of a child stands outside of its call."""
    events = await three_deep()
    kinds = [type(event) for event in events]
    start, end = kinds.index(ToolExecutionStart), kinds.index(ToolExecutionEnd)
    places = [place for place, event in enumerate(events) if isinstance(event, ChildEvent | SubagentStarted)]
    assert start < places[0] <= places[-1] < end
    assert len(places) == end - start - 1


async def test_reading_puts_the_children_back(tmp_path: Path) -> None:
    """84: the parent's pointer opens into the child's records, and those of the grandchild in them, chains put before."""
    await test_each_has_a_trace_of_its_own(tmp_path)
    origins = {tuple(each.get("origin", ())) for each in session_records(tmp_path, "parent")}
    assert origins == {(), ("outer-1",), ("outer-1", "inner-1")}


async def test_a_child_that_cannot_be_made_holds_nothing(tmp_path: Path) -> None:
    """What its tools should be is none: the call is an error, and then the child's session is free, and the run's signal
    tells nobody of it any more."""
    offered: list[Any] = ["no tool"]
    abort = AbortSignal()
    helper = child(["found"], traces=tmp_path, make_session_id=lambda: "helper-1", tools=lambda: tuple(offered))
    events = await played([helper], [call("helper", TASK), "done"], abort=abort)
    assert [end.error_code for end in events if isinstance(end, ToolExecutionEnd)] == ["tool_error"]
    assert abort._callbacks == {}
    offered.clear()
    events = await played([helper], [call("helper", TASK), "done"], abort=abort)
    assert [end.result.text for end in events if isinstance(end, ToolExecutionEnd)] == ["found"]
