"""One call by hand: what stands before its run, in which order, and in which words it is refused."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import (
    AbortSignal,
    ApprovalDecision,
    ApprovalRequest,
    Block,
    Config,
    Context,
    HookAnswer,
    Hooks,
    MessageUpdate,
    ToolCallEnd,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolResult,
    agent_loop,
    tool,
)
from agentloop.grammar import check
from agentloop.model import Finish
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked
from tests.deaf import deaf_until

pytestmark = pytest.mark.anyio

ran: list[str] = []


@tool
async def work(text: str = "") -> str:
    """Work."""
    ran.append(text)
    return "ok"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


async def played(*calls: Any, tools: Any = (work,), **changes: Any) -> list[Any]:
    model = ScriptedModel([list(calls), "done"])
    events = await collect(agent_loop(["go"], Context(tools=tools), Config(model=model, **changes)))
    check(events)
    return list(events)


def ends(events: list[Any]) -> list[tuple[str | None, str, str]]:
    """(error code, stop reason, text) of each call."""
    return [(e.error_code, e.stop_reason, e.result.text) for e in events if isinstance(e, ToolExecutionEnd)]


def order(events: list[Any]) -> list[str]:
    """What was told of each call up to its start, as letters: request, decision, start."""
    letters = {ApprovalRequest: "ask", ApprovalDecision: "say", ToolExecutionStart: "run"}
    return [f"{letters[type(e)]} {e.tool_call_id}" for e in events if type(e) in letters]


@pytest.mark.parametrize(
    ("finish", "text"),
    [
        ("length",
         "Not run: the reply was cut off by the output limit, so this call may be incomplete. Try a shorter one."),
        ("refusal", "Not run: the reply was refused."),
        ("content_filter", "Not run: the reply was stopped by a content filter."),
    ],
)  # fmt: skip
async def test_calls_of_a_reply_that_must_not_run_say_why(finish: Any, text: str) -> None:
    """Each is answered `cut_off`, `fatal`, in the words of its reply's end; nothing ran."""
    events = await played(call("work", id="a"), call("work", id="b"), Finish(finish))
    assert ends(events) == [("cut_off", "fatal", text)] * 2
    assert all(e.is_error and e.result.is_error for e in events if isinstance(e, ToolExecutionEnd))
    assert ran == []


async def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    """By name, sorted; `none` where there is none."""

    @tool
    async def add() -> str:
        """Add."""
        return "ok"

    unknown = ("unknown_tool", "fatal", "There is no tool named 'x'. Tools: add, work.")
    assert ends(await played(call("x"), tools=(work, add))) == [unknown]
    assert ends(await played(call("x"), tools=())) == [
        ("unknown_tool", "fatal", "There is no tool named 'x'. Tools: none.")
    ]


@pytest.mark.parametrize(
    ("answer", "end", "text"),
    [
        (None, (None, "completed", "ok"), "sent"),
        ({"text": "other"}, (None, "completed", "ok"), "other"),
        (Block("not now"), ("blocked", "aborted", "not now"), None),
        (Block(""), ("blocked", "aborted", "The call was blocked."), None),
        (Block(" "), ("blocked", "aborted", "blocked"), None),
        (7, ("blocked", "aborted", "before_tool_call: expected None, a Block or a dict, got int"), None),
    ],
)
async def test_what_before_tool_call_may_answer(
    answer: Any, end: tuple[str | None, str, str], text: str | None
) -> None:
    """None lets it run, a dict are other arguments, a Block its reason; all else blocks it. What runs is asked about."""
    events = await played(call("work", {"text": "sent"}), before_tool_call=lambda _: answer, approve=lambda _: "allow")
    assert ends(events) == [end]
    assert ran == ([] if text is None else [text])
    assert len([e for e in events if isinstance(e, ApprovalRequest)]) == len(ran)
    shown = [json.loads(e.arguments) for e in events if isinstance(e, ToolExecutionStart)]
    assert shown == [{"text": text or "sent"}]


async def test_each_callback_has_arguments_of_its_own() -> None:
    """What one does to them is seen neither by the next nor by the tool; calls are told by id, name and tool."""
    told: list[Any] = []

    def look(invocation: Any) -> None:
        told.append((invocation.id, invocation.name, dict(invocation.arguments), invocation.tool.name))
        invocation.arguments["text"] = "changed"

    hooks = [Hooks("guard", pre_tool_use=look)]
    events = await played(call("work", {"text": "sent"}, id="a"), before_tool_call=look, hooks=hooks)
    assert told[0] == ("a", "work", {"text": "sent"}, "work")
    assert len(told) == 2
    assert ends(events) == [(None, "completed", "ok")]
    assert ran == ["sent"]


@pytest.mark.parametrize("terminate", [True, False])
async def test_a_block_may_end_the_run(terminate: bool) -> None:
    """`Block.terminate` is that of a result."""
    events = await played(call("work"), before_tool_call=lambda _: Block("no", terminate=terminate))
    assert [e.result.terminate for e in events if isinstance(e, ToolExecutionEnd)] == [terminate]


def raises(_: Any) -> Any:
    raise ValueError("broken")


class Anything:
    """Equals whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


DENIED = ("denied", "aborted", "Tool call denied by user.")
NOT_ASKED = ("denied", "aborted", "Tool call denied: asking for approval failed.")
FORBIDDEN = ("forbidden", "aborted", "Tool call denied by policy.")


@pytest.mark.parametrize(
    ("approve", "decision", "end", "got"),
    [
        (lambda _: "allow", "allow", (None, "completed", "ok"), None),
        (lambda _: "deny", "deny", DENIED, None),
        (lambda _: "forbidden", "forbidden", FORBIDDEN, None),
        (lambda _: "perhaps", "deny", NOT_ASKED, "'perhaps'"),
        (lambda _: None, "deny", NOT_ASKED, "NoneType"),
        (lambda _: ["allow"], "deny", NOT_ASKED, "list"),
        (lambda _: Anything(), "deny", NOT_ASKED, "Anything"),
    ],
)
async def test_what_approve_may_answer(
    approve: Any, decision: str, end: Any, got: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The three words; all else denies, and the log says what came in their place."""
    events = await played(call("work"), approve=approve)
    assert [e.decision for e in events if isinstance(e, ApprovalDecision)] == [decision]
    assert ends(events) == [end]
    expected = f"approve: expected 'allow', 'deny' or 'forbidden', got {got}; the call is denied"
    assert caplog.messages == ([] if got is None else [expected])


class Policy:
    """An `approve` that says `answer` before anybody is asked, and allows what is asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def policy(self, invocation: Any) -> Any:
        return self.answer(invocation) if callable(self.answer) else self.answer

    def __call__(self, request: ApprovalRequest) -> str:
        return "allow"


@pytest.mark.parametrize(
    ("answer", "decision", "got"),
    [
        (None, "allow", None),
        ("allow", "allow", None),
        ("deny", "deny", None),
        ("forbidden", "forbidden", None),
        ("perhaps", "forbidden", "'perhaps'"),
        (7, "forbidden", "int"),
        (Anything(), "forbidden", "Anything"),
    ],
)
async def test_what_a_policy_may_answer(
    answer: Any, decision: str, got: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """None leaves the question open, the three words answer it; all else forbids, and the log says what came."""
    events = await played(call("work", id="a"), approve=Policy(answer))
    assert order(events) == [*(["ask a"] if answer is None else []), "say a", "run a"]
    assert [e.decision for e in events if isinstance(e, ApprovalDecision)] == [decision]
    assert bool(ran) is (decision == "allow")
    expected = f"policy: expected None, 'allow', 'deny' or 'forbidden', got {got}; the call is forbidden"
    assert caplog.messages == ([] if got is None else [expected])


@pytest.mark.parametrize(
    ("answers", "decision", "text"),
    [
        (["deny", "allow"], "deny", "Tool call denied by the one hook: because."),
        ([None, "deny"], "deny", "Tool call denied by the two hook: because."),
        (["allow", "deny"], "allow", "ok"),
    ],
)
async def test_the_first_hook_that_decides_decides(answers: list[Any], decision: str, text: str) -> None:
    """One that only says something decides nothing; the reason is that of the one that did."""
    hooks = [
        Hooks(name, pre_tool_use=lambda _, answer=answer: HookAnswer(answer, reason="because"))
        for name, answer in zip(("one", "two"), answers, strict=True)
    ]
    events = await played(call("work", id="a"), hooks=hooks)
    assert [e.decision for e in events if isinstance(e, ApprovalDecision)] == [decision]
    assert ends(events)[0][2] == text


async def test_a_denial_without_a_reason_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The words name the hook; a denial is no failure, so the log says nothing."""
    hooks = [Hooks("guard", pre_tool_use=lambda _: HookAnswer("deny"))]
    events = await played(call("work"), hooks=hooks)
    assert ends(events) == [("denied", "aborted", "Tool call denied by the guard hook: no reason given.")]
    assert caplog.records == []


@pytest.mark.parametrize(("asked", "count"), [(None, 0), (lambda _: "allow", 1)])
async def test_a_hook_that_fails_denies_where_nobody_is_asked(asked: Any, count: int) -> None:
    """Where somebody is, the question stays open."""
    events = await played(call("work"), hooks=[Hooks("guard", pre_tool_use=raises)], approve=asked)
    text = "ok" if asked else "Tool call denied: a hook that decides about it failed."
    assert ends(events)[0][2] == text
    assert len([e for e in events if isinstance(e, ApprovalRequest)]) == count


@pytest.mark.parametrize(
    ("approval_order", "told"),
    [
        ("one_at_a_time", ["ask a", "say a", "run a", "ask b", "say b", "run b"]),
        ("all_at_once", ["ask a", "ask b", "say a", "run a", "say b", "run b"]),
    ],
)
async def test_the_order_of_questions(approval_order: Any, told: list[str]) -> None:
    """One at a time: a call's start is behind it before the next is asked about; else all are asked first."""
    events = await played(
        call("work", id="a"), call("work", id="b"), approve=lambda _: "allow", approval_order=approval_order
    )
    assert order(events) == told


async def test_the_order_of_questions_that_take_their_time() -> None:
    """One at a time: while an answer is awaited nothing of the next call begins."""

    async def approve(request: ApprovalRequest) -> str:
        await anyio.lowlevel.checkpoint()
        return "allow"

    told = order(await played(call("work", id="a"), call("work", id="b"), approve=approve))
    assert told == ["ask a", "say a", "run a", "ask b", "say b", "run b"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("plain", "alone"), ["run 0", "end 0", "run 1", "end 1"]),
        (("alone", "plain"), ["run 0", "end 0", "run 1", "end 1"]),
        (("plain", "plain"), ["run 0", "run 1", "end 0", "end 1"]),
        (("plain", "alone", "plain"), ["run 0", "end 0", "run 1", "end 1", "run 2", "end 2"]),
    ],
)
async def test_an_exclusive_call_runs_alone_wherever_it_stands(names: tuple[str, ...], told: list[str]) -> None:
    """It waits for the calls before it, and those behind it wait for it."""
    clock = VirtualClock()

    @tool
    async def plain(number: int) -> str:
        """Work beside others."""
        await clock.sleep(number + 1)
        return "ok"

    @tool(exclusive=True)
    async def alone(number: int) -> str:
        """Work alone."""
        await clock.sleep(number + 1)
        return "ok"

    calls = [call(name, {"number": number}, id=str(number)) for number, name in enumerate(names)]
    events = await played(*calls, tools=(plain, alone), clock=clock)
    kinds = {ToolExecutionStart: "run", ToolExecutionEnd: "end"}
    assert [f"{kinds[type(e)]} {e.tool_call_id}" for e in events if type(e) in kinds] == told


async def test_no_call_fails_without_a_word() -> None:
    """An error result says what failed, or that it did not say."""

    @tool
    async def silent() -> str:
        """Fail."""
        raise ValueError

    ((code, stop_reason, text),) = ends(await played(call("silent"), tools=(silent,)))
    assert (code, stop_reason) == ("tool_error", "fatal")
    assert "ValueError" in text


async def test_nobody_is_asked_about_a_call_that_cannot_run() -> None:
    """Unknown, or with arguments that do not fit, as sent or as `before_tool_call` made them: it is refused right there."""
    asked: list[str] = []

    def before(invocation: Any) -> Any:
        asked.append("before")
        return {"text": []}

    def hook(invocation: Any) -> None:
        asked.append("hook")

    def approve(request: ApprovalRequest) -> str:
        asked.append("approve")
        return "allow"

    asking: dict[str, Any] = {"hooks": [Hooks("guard", pre_tool_use=hook)], "approve": approve}
    refused = (
        "invalid_arguments",
        "fatal",
        "work: invalid arguments\n$.text: expected a string, got an array of 0 items",
    )
    ((code, _, _),) = ends(await played(call("x"), before_tool_call=before, **asking))
    assert (code, asked) == ("unknown_tool", [])
    assert ends(await played(call("work", {"text": []}), before_tool_call=before, **asking)) == [refused]
    assert asked == []
    assert ends(await played(call("work"), before_tool_call=before, **asking)) == [refused]
    assert (asked, ran) == (["before"], [])


@pytest.mark.parametrize(
    ("kind", "end", "logged"),
    [
        ("before_tool_call", ("blocked", "aborted", "broken"), "before_tool_call failed; the call is blocked"),
        ("pre_tool_use", ("denied", "aborted", "Tool call denied: a hook that decides about it failed."),
         "the pre_tool_use hook guard failed"),
        ("policy", FORBIDDEN, "the approval policy failed; the call is forbidden"),
        ("no policy", FORBIDDEN, "the approval policy failed; the call is forbidden"),
        ("approve", NOT_ASKED, "approve failed; the call is denied"),
        ("after_tool_call", ("tool_error", "fatal", "broken"),
         "after_tool_call failed; the call's result is an error"),
    ],
)  # fmt: skip
async def test_a_failure_of_who_is_asked_is_logged_once(
    kind: str, end: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The call ends so that nothing runs that nobody allowed; the log has the exception, which no event holds."""

    class Lost:
        """An `approve` whose policy cannot even be had."""

        @property
        def policy(self) -> Any:
            raise ValueError("broken")

        def __call__(self, request: ApprovalRequest) -> str:
            return "allow"

    asking: dict[str, dict[str, Any]] = {
        "before_tool_call": {"before_tool_call": raises},
        "pre_tool_use": {"hooks": [Hooks("guard", pre_tool_use=raises)]},
        "policy": {"approve": Policy(raises)},
        "no policy": {"approve": Lost()},
        "approve": {"approve": raises},
        "after_tool_call": {"after_tool_call": lambda invocation, result: raises(result)},
    }
    events = await played(call("work"), **asking[kind])
    assert ends(events) == [end]
    assert all(e.is_error and e.result.is_error for e in events if isinstance(e, ToolExecutionEnd))
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == logged
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "broken"


@pytest.mark.parametrize("kind", ["before_tool_call", "pre_tool_use", "policy"])
async def test_an_abort_while_somebody_is_asked(kind: str) -> None:
    """The call ends `aborted` with the reason and nothing of it runs; the calls behind it as well."""
    signal = AbortSignal()

    async def asked(_: Any) -> None:
        signal.abort("enough")
        await anyio.sleep_forever()

    asking: dict[str, dict[str, Any]] = {
        "before_tool_call": {"before_tool_call": asked},
        "pre_tool_use": {"hooks": [Hooks("guard", pre_tool_use=asked)]},
        "policy": {"approve": Policy(asked)},
    }
    events = await played(call("work"), call("work"), abort=signal, **asking[kind])
    assert ends(events) == [("aborted", "aborted", "Not run: enough")] * 2
    assert ran == []


@pytest.mark.parametrize(("reason", "text"), [("enough", "enough"), (None, "the run was stopped")])
async def test_a_complete_reply_that_is_aborted_runs_no_call(reason: str | None, text: str) -> None:
    """Its calls are answered with the reason, not with the words for a reply that failed."""
    signal = AbortSignal()
    events: list[Any] = []
    model = ScriptedModel([[call("work")]])
    async for event in agent_loop(["go"], Context(tools=[work]), Config(model=model, abort=signal)):
        events.append(event)
        if isinstance(event, MessageUpdate) and isinstance(event.delta, ToolCallEnd):
            signal.abort(reason)
    check(events)
    assert ends(events) == [("aborted", "aborted", f"Not run: {text}")]
    assert ran == []


@pytest.mark.parametrize("approval_order", ["one_at_a_time", "all_at_once"])
async def test_the_next_call_comes_when_this_one_has_started(approval_order: Any) -> None:
    """Nothing begins for a call while the one before it waits for the cap, whatever the order of questions."""
    log: list[str] = []

    @tool
    async def wait() -> str:
        """Return when nothing else can go on."""
        await wait_all_blocked()
        return "ok"

    def before(invocation: Any) -> None:
        log.append(f"before {invocation.id}")

    config = Config(
        model=ScriptedModel([[call("wait", id=id) for id in "abc"], "done"]),
        before_tool_call=before,
        max_parallel_tools=1,
        approval_order=approval_order,
    )
    async for event in agent_loop(["go"], Context(tools=[wait]), config):
        if isinstance(event, ToolExecutionEnd):
            log.append(f"end {event.tool_call_id}")
    assert log == ["before a", "before b", "end a", "before c", "end b", "end c"]


@pytest.mark.parametrize("awaited", [True, False])
async def test_an_answer_that_comes_with_an_abort_is_too_late(awaited: bool) -> None:
    """The question is open at the abort: no decision is told, and the call ends `aborted` although it was allowed."""
    signal = AbortSignal()

    def approve(request: ApprovalRequest) -> Any:
        signal.abort("enough")
        return "allow"

    async def approve_later(request: ApprovalRequest) -> Any:
        return approve(request)

    events = await played(call("work", id="a"), abort=signal, approve=approve_later if awaited else approve)
    assert order(events) == ["ask a", "run a"]
    assert ends(events) == [("aborted", "aborted", "Not run: enough")]
    assert ran == []


async def test_a_question_that_was_answered_leaves_no_timer() -> None:
    """While the tool runs nothing sleeps on the caller's clock, and `approval_timeout` does not end it."""
    clock = VirtualClock(autojump_threshold=None)
    asleep: list[int] = []

    @tool
    async def look() -> str:
        """Look at the clock when nothing else goes on."""
        await wait_all_blocked()
        asleep.append(clock.asleep)
        clock.jump(10)
        await wait_all_blocked()
        return "ok"

    events = await played(call("look"), tools=(look,), clock=clock, approve=lambda _: "allow", approval_timeout=5)
    assert ends(events) == [(None, "completed", "ok")]
    assert asleep == [0]


@pytest.mark.parametrize("kind", ["approve", "after_tool_call"])
async def test_an_abort_takes_a_question_back_at_once(kind: str) -> None:
    """Who was asked is let go when the abort comes, not when the call beside it has stopped."""
    signal, clock = AbortSignal(), VirtualClock()
    ended: list[float] = []

    @tool
    async def slow(ctx: ToolContext) -> str:
        """Take two seconds to stop."""
        await ctx.abort.wait()
        await clock.sleep(2)
        return "stopped"

    async def asked(about: Any, *_: Any) -> Any:
        if isinstance(about, ApprovalRequest) and about.tool_name == "slow":
            return "allow"
        try:
            await clock.sleep(1)
            signal.abort("enough")
            await anyio.sleep_forever()
        finally:
            ended.append(clock.now())

    events = await played(
        call("slow"), call("work"), tools=(slow, work), clock=clock, abort=signal, abort_grace=5, **{kind: asked}
    )
    real = (None, "completed", "ok") if kind == "after_tool_call" else ("aborted", "aborted", "Not run: enough")
    assert ends(events) == [real, ("aborted", "aborted", "stopped")]
    assert (ended, clock.now()) == ([1.0], 3.0)


@pytest.mark.parametrize("kind", [ApprovalRequest, ToolExecutionStart])
async def test_an_abort_before_the_consumer_came_back(kind: type) -> None:
    """A call whose question, or start, was told and nothing more is answered; it has one start."""
    signal = AbortSignal()
    events: list[Any] = []
    asked: list[str] = []

    def approve(request: ApprovalRequest) -> str:
        asked.append(request.tool_call_id)
        return "allow"

    config = Config(model=ScriptedModel([[call("work", id="a")]]), abort=signal, approve=approve)
    async for event in agent_loop(["go"], Context(tools=[work]), config):
        events.append(event)
        if isinstance(event, kind):
            signal.abort("enough")
    check(events)
    assert ends(events) == [("aborted", "aborted", "Not run: enough")]
    assert (asked, ran) == ([] if kind is ApprovalRequest else ["a"], [])


@pytest.mark.parametrize("begun", [True, False])
async def test_an_abort_beside_a_hook_keeps_the_real_result(begun: bool) -> None:
    """`after_tool_call` runs, or waits for the consumer, when the abort comes: the result is what the tool gave."""
    signal = AbortSignal()
    gate = anyio.Event()
    events: list[Any] = []
    asked: list[str] = []

    @tool
    async def report(ctx: ToolContext) -> str:
        """Report, and return when told to."""
        ctx.progress("begun")
        await gate.wait()
        return "real"

    async def after(invocation: Any, result: ToolResult) -> ToolResult:
        asked.append(invocation.id)
        signal.abort("enough")
        await anyio.sleep_forever()
        return ToolResult("replaced")

    config = Config(model=ScriptedModel([[call("report", id="a")]]), abort=signal, after_tool_call=after)
    async for event in agent_loop(["go"], Context(tools=[report]), config):
        events.append(event)
        if isinstance(event, ToolExecutionUpdate):
            gate.set()
            await wait_all_blocked()
            if not begun:
                signal.abort("enough")
    check(events)
    assert ends(events) == [(None, "completed", "real")]
    assert asked == (["a"] if begun else [])


async def test_a_question_that_nobody_answers_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """`approval_timeout` denies the call and lets go of who was asked; the next call is asked about, in its own time."""
    clock = VirtualClock()
    ended: list[tuple[str, float]] = []

    async def approve(request: ApprovalRequest) -> str:
        try:
            await clock.sleep(3600 if request.tool_call_id == "a" else 4)
        finally:
            ended.append((request.tool_call_id, clock.now()))
        return "allow"

    calls = call("work", id="a"), call("work", id="b")
    events = await played(*calls, clock=clock, approve=approve, approval_timeout=5)
    assert order(events) == ["ask a", "say a", "run a", "ask b", "say b", "run b"]
    assert [e.decision for e in events if isinstance(e, ApprovalDecision)] == ["deny", "allow"]
    denied = ("denied", "aborted", "Tool call denied: nobody answered in time.")
    assert ends(events) == [denied, (None, "completed", "ok")]
    assert ended == [("a", 5.0), ("b", 9.0)]
    assert caplog.records == []


@pytest.mark.parametrize("virtual", [True, False])
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"tool_timeout": 0}, "tool_timeout"),
        ({"tool_timeout": 0, "abort_grace": 0}, "tool_timeout"),
        ({"tool_timeout": 0.01, "abort_grace": 0}, "tool_timeout"),
        ({"tool_timeout": 0.01, "abort_grace": 0, "deaf": True}, "not_stopped"),
        ({"approve": True, "approval_timeout": 0}, "denied"),
    ],
)
async def test_a_limit_of_no_time_at_all_is_kept(limits: dict[str, Any], code: str, virtual: bool) -> None:
    """What never ends is ended: a time that has come when its timer is set needs no alarm to be noticed. What hears its
    cancellation has stopped, also without any grace."""
    release, deaf = anyio.Event(), "deaf" in limits

    @tool
    async def endless(ctx: ToolContext) -> str:
        """Never end."""
        while not release.is_set():
            try:
                with anyio.CancelScope(shield=deaf):
                    await release.wait()
            except anyio.get_cancelled_exc_class():
                if not deaf:
                    raise
        return "late"

    async def nobody(request: ApprovalRequest) -> str:
        await release.wait()
        return "allow"

    changes = {name: value for name, value in limits.items() if name != "deaf"}
    if "approve" in changes:
        changes["approve"] = nobody
    if virtual:
        changes["clock"] = VirtualClock()
    try:
        with anyio.fail_after(5):
            events = await played(call("endless"), tools=(endless,), **changes)
    finally:
        release.set()
    assert [end[0] for end in ends(events)] == [code]


async def test_no_hook_begins_for_a_tool_that_ignores_an_abort() -> None:
    """It is given up within its bound, and its end is not shown to `after_tool_call`."""
    signal, clock, release = AbortSignal(), VirtualClock(), anyio.Event()
    asked: list[str] = []

    @tool
    async def deaf() -> str:
        """Ignore everything."""
        signal.abort("enough")
        await deaf_until(release)
        return "late"

    def after(invocation: Any, result: ToolResult) -> None:
        asked.append(invocation.id)

    try:
        events = await played(call("deaf"), tools=(deaf,), clock=clock, abort=signal, after_tool_call=after)
    finally:
        release.set()
    ((code, stop_reason, _),) = ends(events)
    assert (code, stop_reason, asked) == ("not_stopped", "aborted", [])


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("fails", [True, False])
async def test_what_a_hook_says_as_the_abort_comes(
    awaited: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What `after_tool_call` made of the result counts; if it fails then, the result is the tool's own and no failure."""
    signal = AbortSignal()

    def after(invocation: Any, result: ToolResult) -> ToolResult:
        signal.abort("enough")
        if fails:
            raise ValueError("broken")
        return ToolResult("replaced")

    async def after_later(invocation: Any, result: ToolResult) -> ToolResult:
        return after(invocation, result)

    events = await played(call("work"), abort=signal, after_tool_call=after_later if awaited else after)
    assert ends(events) == [(None, "completed", "ok" if fails else "replaced")]
    assert caplog.records == []


async def test_an_abort_answers_a_call_that_waits_for_the_cap_once() -> None:
    """It is refused at once; that the others stop one after the other makes room for nothing."""
    signal, clock = AbortSignal(), VirtualClock()

    @tool
    async def stop(ctx: ToolContext, seconds: int) -> str:
        """Stop so many seconds after the abort."""
        await clock.sleep(1)
        signal.abort("enough")
        await clock.sleep(seconds)
        return "stopped"

    calls = call("stop", {"seconds": 1}), call("stop", {"seconds": 2}), call("work")
    events = await played(*calls, tools=(stop, work), clock=clock, abort=signal, abort_grace=5, max_parallel_tools=2)
    refused, stopped = ("aborted", "aborted", "Not run: enough"), ("aborted", "aborted", "stopped")
    assert ends(events) == [refused, stopped, stopped]
    assert ran == []


async def test_questions_beside_other_timers() -> None:
    """Without `approval_timeout` an answer may take its time, whatever else is timed."""
    clock = VirtualClock()

    async def approve(request: ApprovalRequest) -> str:
        await clock.sleep(1 if request.tool_call_id == "a" else 20)
        return "allow"

    calls = call("work", id="a"), call("work", id="b")
    events = await played(
        *calls, clock=clock, approve=approve, approval_order="all_at_once", deadline=100, tool_timeout=5
    )
    assert ends(events) == [(None, "completed", "ok")] * 2


async def test_the_time_of_a_question_is_not_that_of_its_call() -> None:
    """A call that was allowed in time has the time of a tool, and ends as one."""
    clock = VirtualClock()

    @tool
    async def slow() -> str:
        """Sleep for an hour."""
        await clock.sleep(3600)
        return "never"

    events = await played(
        call("slow"), tools=(slow,), clock=clock, approve=lambda _: "allow", approval_timeout=3, tool_timeout=7
    )
    assert ends(events) == [("tool_timeout", "fatal", "The tool timed out after 7 s.")]
    assert clock.now() == 7.0


async def test_what_a_hook_says_after_the_abort_is_dropped() -> None:
    """It ignores that it was let go, and answers while the call beside it still stops: its call has ended."""
    signal, clock = AbortSignal(), VirtualClock()

    @tool
    async def slow(ctx: ToolContext) -> str:
        """Take two seconds to stop."""
        await ctx.abort.wait()
        await clock.sleep(2)
        return "stopped"

    async def after(invocation: Any, result: ToolResult) -> ToolResult:
        signal.abort("enough")
        with anyio.CancelScope(shield=True):
            for _ in range(2):
                try:
                    await clock.sleep(1)
                except anyio.get_cancelled_exc_class():
                    continue
        return ToolResult("late")

    calls = call("slow"), call("work")
    events = await played(*calls, tools=(slow, work), clock=clock, abort=signal, abort_grace=5, after_tool_call=after)
    assert ends(events) == [(None, "completed", "ok"), ("aborted", "aborted", "stopped")]
