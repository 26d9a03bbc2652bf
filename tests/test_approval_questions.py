"""Questions to a person: all visible at once, answered in any order and from any thread, bound to what was shown."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Literal

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    AnswerError,
    ApprovalDecision,
    ApprovalRequest,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolInvocation,
    agent_loop,
    tool,
)
from agentloop.approval import Approvals, Condition, Policy, Question, Rule, Verdict, until_waiting
from agentloop.grammar import check
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, collect_sync

pytestmark = pytest.mark.anyio

Order = Literal["one_at_a_time", "all_at_once"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What fails here is logged by design."""
    caplog.set_level(logging.CRITICAL + 1, "agentloop")


class Desk:
    """A tool that deletes, and a run of some calls of it."""

    def __init__(self, *paths: str, order: Order = "all_at_once", **config: Any) -> None:
        self.ran: list[str] = []

        @tool
        async def delete(path: str) -> str:
            """Delete a file."""
            self.ran.append(path)
            return f"deleted {path}"

        self.tool = delete
        calls = [call("delete", {"path": path}, id=path) for path in paths]
        self.model = ScriptedModel([calls, "done"])
        self.config = Config(model=self.model, approval_order=order, **config)

    def run(self) -> Any:
        return agent_loop(["clean up"], Context(tools=[self.tool]), self.config)


def decisions(events: Sequence[Event]) -> dict[str, str]:
    """What was decided about each call."""
    return {event.tool_call_id: event.decision for event in events if isinstance(event, ApprovalDecision)}


async def pending(approvals: Approvals, count: int) -> tuple[Question, ...]:
    """The questions, once there are so many."""
    while len(approvals.pending) < count:
        await anyio.lowlevel.checkpoint()
    return approvals.pending


async def run_with(desk: Desk, person: Any) -> list[Event]:
    """The run's events, while a person does something."""
    events: list[Event] = []

    async def consume() -> None:
        events.extend(await collect(desk.run()))

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await person()
    check(events)
    assert isinstance(events[-1], AgentEnd)
    return events


# ---------------------------------------------------------------- answers


async def test_all_are_visible_and_answered_in_any_order() -> None:
    """Three questions before any answer; the last is answered first; each answer reaches its own call."""
    approvals = Approvals()
    desk = Desk("a", "b", "c", approve=approvals)

    async def person() -> None:
        a, b, c = await pending(approvals, 3)
        assert [(q.tool_call_id, q.tool_name, q.arguments) for q in (a, b)] == [
            ("a", "delete", '{"path":"a"}'),
            ("b", "delete", '{"path":"b"}'),
        ]
        approvals.answer(c, "allow")
        assert [q.tool_call_id for q in approvals.pending] == ["a", "b"]
        approvals.answer("a", "deny", a.digest)
        approvals.answer(b, "allow")

    events = await run_with(desk, person)
    assert decisions(events) == {"c": "allow", "a": "deny", "b": "allow"}
    assert sorted(desk.ran) == ["b", "c"]
    assert approvals.pending == ()


async def test_one_at_a_time() -> None:
    """The second question opens when the first has its answer."""
    approvals = Approvals()
    desk = Desk("a", "b", order="one_at_a_time", approve=approvals)

    async def person() -> None:
        for id in ("a", "b"):
            (question,) = await approvals.wait()
            assert question.tool_call_id == id
            approvals.answer(question, "allow")
            with pytest.raises(AnswerError, match="expected one answer"):
                approvals.answer(question, "allow")

    await run_with(desk, person)
    assert desk.ran == ["a", "b"]


async def test_approval_of_one_is_not_approval_of_all() -> None:
    """C167: `b` is allowed, `a` runs into the time-out, an answer to an unknown id is its sender's error."""
    clock = VirtualClock()
    approvals = Approvals()
    desk = Desk("a", "b", approve=approvals, approval_timeout=60, clock=clock)

    async def person() -> None:
        a, b = await pending(approvals, 2)
        with pytest.raises(
            AnswerError, match=r"answer to 'z': expected a call that is asked about \('a', 'b'\)"
        ) as caught:
            approvals.answer("z", "allow", a.digest)
        assert caught.value.code == "unknown"
        approvals.answer(b, "allow")

    events = await run_with(desk, person)
    assert desk.ran == ["b"]
    assert decisions(events) == {"b": "allow", "a": "deny"}
    assert clock.now() >= 60
    with pytest.raises(AnswerError) as late:
        approvals.answer("a", "allow", "")
    assert late.value.code == "late"


@pytest.mark.parametrize(
    ("decision", "digest", "code"),
    [
        ("allow", "0" * 64, "changed"),
        ("allow", None, "invalid"),
        ("forbidden", "right", "invalid"),
        ("yes", "right", "invalid"),
    ],
)
async def test_an_answer_that_does_not_fit_changes_nothing(decision: Any, digest: str | None, code: str) -> None:
    """Another digest, none, another word: an error with its code, and the question stays open."""
    approvals = Approvals()
    desk = Desk("a", approve=approvals)

    async def person() -> None:
        (question,) = await approvals.wait()
        with pytest.raises(AnswerError) as caught:
            approvals.answer("a", decision, question.digest if digest == "right" else digest)
        assert caught.value.code == code
        assert approvals.pending == (question,)
        approvals.answer(question, "deny")

    await run_with(desk, person)
    assert desk.ran == []


async def test_changed_arguments_are_asked_again() -> None:
    """The same id with other arguments in a later run: the answer to what was shown before is refused."""
    approvals = Approvals()
    first = Desk("a", approve=approvals)
    shown: list[Question] = []

    async def leave() -> None:
        run = first.run()
        async with anyio.create_task_group() as group:
            group.start_soon(collect, run)
            shown.extend(await approvals.wait())
            await run.aclose()

    await leave()
    assert approvals.pending == ()
    second = Desk("x", approve=approvals)
    second.config = Config(model=ScriptedModel([[call("delete", {"path": "x"}, id="a")], "done"]), approve=approvals)

    async def person() -> None:
        (question,) = await approvals.wait()
        with pytest.raises(AnswerError) as caught:
            approvals.answer(shown[0], "allow")
        assert caught.value.code == "changed"
        approvals.answer(question, "allow")

    await run_with(second, person)
    assert (first.ran, second.ran) == ([], ["x"])


async def test_answers_from_another_thread() -> None:
    """A thread that sees the question may answer it."""
    approvals = Approvals()
    desk = Desk("a", "b", approve=approvals)

    def answer(question: Question) -> None:
        thread = threading.Thread(target=approvals.answer, args=(question, "allow"))
        thread.start()
        thread.join()

    async def person() -> None:
        for question in await pending(approvals, 2):
            answer(question)

    await run_with(desk, person)
    assert sorted(desk.ran) == ["a", "b"]


async def test_an_abort_takes_the_questions_back() -> None:
    """Open at an abort: no decision, nothing runs, a later answer is late."""
    approvals, abort = Approvals(), AbortSignal()
    desk = Desk("a", "b", approve=approvals, abort=abort)
    shown: list[Question] = []

    async def person() -> None:
        shown.extend(await pending(approvals, 2))
        abort.abort("enough")

    events = await run_with(desk, person)
    assert (decisions(events), desk.ran, approvals.pending) == ({}, [], ())
    for question in shown:
        with pytest.raises(AnswerError) as caught:
            approvals.answer(question, "allow")
        assert caught.value.code == "late"


async def test_a_listener_that_fails_denies() -> None:
    """`on_question` raises: nobody was told, so nobody could answer."""

    def broken(question: Question) -> None:
        raise OSError("no screen")

    approvals = Approvals(on_question=broken)
    desk = Desk("a", approve=approvals)
    events = await collect(desk.run())
    assert (decisions(events), desk.ran, approvals.pending) == ({"a": "deny"}, [], ())


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_listener_may_answer_at_once(asynchronous: bool) -> None:
    """Sync or async, within the call: a person, or a service."""

    def told(question: Question) -> None:
        approvals.answer(question, "allow")

    async def told_later(question: Question) -> None:
        await anyio.lowlevel.checkpoint()
        approvals.answer(question, "allow")

    approvals = Approvals(on_question=told_later if asynchronous else told)
    desk = Desk("a", approve=approvals)
    await collect(desk.run())
    assert desk.ran == ["a"]


# ---------------------------------------------------------------- with a policy


async def test_only_what_a_policy_leaves_open_is_asked() -> None:
    """Allowed, denied and forbidden calls need no question; the one that is asked says which rule asks."""
    rules = [
        Rule(verdict, where=[Condition("path", glob=f"{verdict}*")], reason=verdict)
        for verdict in ("allow", "deny", "forbid", "ask")
    ]
    approvals = Approvals(Policy(rules, default="deny"))
    desk = Desk("allow1", "deny1", "forbid1", "ask1", approve=approvals)

    async def person() -> None:
        (question,) = await approvals.wait()
        assert (question.tool_call_id, question.reason) == ("ask1", "rules[3]: ask")
        approvals.answer(question, "allow")

    events = await run_with(desk, person)
    assert decisions(events) == {"allow1": "allow", "deny1": "deny", "forbid1": "forbidden", "ask1": "allow"}
    assert [event.tool_call_id for event in events if isinstance(event, ApprovalRequest)] == ["ask1"]
    assert sorted(desk.ran) == ["allow1", "ask1"]


async def test_always_is_for_that_tool_and_never_over_a_policy() -> None:
    """After `always` nobody is asked about the tool again; what the policy denies or forbids stays so."""
    rules = [
        Rule("forbid", where=[Condition("path", equals="etc")]),
        Rule("deny", where=[Condition("path", equals="home")]),
    ]
    approvals = Approvals(Policy(rules, default="ask"))
    desk = Desk("a", "b", "etc", "home", order="one_at_a_time", approve=approvals)

    async def person() -> None:
        (question,) = await approvals.wait()
        approvals.answer(question, "allow", always=True)

    events = await run_with(desk, person)
    assert decisions(events) == {"a": "allow", "b": "allow", "etc": "forbidden", "home": "deny"}
    assert desk.ran == ["a", "b"]


async def test_a_policy_of_ones_own_that_fails_forbids() -> None:
    """It raises: forbidden, also over a hook's `allow`, and nobody is asked."""

    class Broken:
        def decide(self, name: str, arguments: Any) -> Verdict:
            raise OSError("rules are gone")

    hooks = [Hooks("lax", pre_tool_use=lambda invocation: HookAnswer("allow"))]
    for hooked in ([], hooks):
        desk = Desk("a", approve=Approvals(Broken()), hooks=hooked)
        events = await collect(desk.run())
        assert (decisions(events), desk.ran) == ({"a": "forbidden"}, [])


async def test_a_policy_alone_denies_what_it_would_ask() -> None:
    """There is nobody to ask."""
    desk = Desk("a", approve=Policy())
    events = await collect(desk.run())
    assert (decisions(events), desk.ran) == ({"a": "deny"}, [])


async def test_answers_that_were_given_before() -> None:
    """An approved call runs without a question if its arguments are the same; another one, or another text, is asked."""
    for shown, asked in (('{"path":"a"}', False), ('{"path":"b"}', True)):
        approvals = Approvals(approved={"a": shown})
        desk = Desk("a", approve=approvals)
        left = until_waiting(desk.run(), order="all_at_once")
        events = await collect(left)
        assert bool(left.waiting) is asked
        assert desk.ran == ([] if asked else ["a"])
        assert decisions(events) == ({} if asked else {"a": "allow"})
    approvals = Approvals(approved={"a": '{"path":"a"}'})
    for asked in (False, True):  # an answer is for one call: the same id in a second run is asked about
        left = until_waiting(Desk("a", approve=approvals).run(), order="all_at_once")
        await collect(left)
        assert bool(left.waiting) is asked
    approvals = Approvals(Policy([Rule("forbid")]), approved={"a": '{"path":"a"}'})
    desk = Desk("a", approve=approvals)
    assert decisions(await collect(desk.run())) == {"a": "forbidden"}


# ---------------------------------------------------------------- nested runs


@attrs.frozen
class ChildRequest(ApprovalRequest):
    """A question of a nested run."""

    origin: tuple[str, ...] = attrs.field(kw_only=True)


async def test_questions_of_nested_runs_say_where_they_come_from() -> None:
    """Two children with equal call ids: questions with their origins, each answer to its own; `always` of one is not the
    other's."""
    approvals = Approvals()
    requests = {
        "first": ChildRequest("c", "delete", "{}", origin=("s1",)),
        "second": ChildRequest("c", "delete", "{}", origin=("s2", "s3")),
        "own": ApprovalRequest("c", "delete", "{}"),
    }
    answers: dict[str, str] = {}

    async def ask(name: str) -> None:
        answers[name] = await approvals(requests[name])

    async with anyio.create_task_group() as group:
        for name in requests:
            group.start_soon(ask, name)
        questions = {question.origin: question for question in await pending(approvals, 3)}
        assert set(questions) == {("s1",), ("s2", "s3"), ()}
        approvals.answer(questions["s1",], "allow", always=True)
        approvals.answer("c", "deny", questions[()].digest)
        approvals.answer("c", "deny", questions[()].digest, origin=("s2", "s3"))
    assert answers == {"first": "allow", "second": "deny", "own": "deny"}
    assert await approvals(ChildRequest("d", "delete", "{}", origin=("s1",))) == "allow"
    assert approvals.policy(ToolInvocation("e", "delete", {}, Desk().tool)) is None


def test_a_policy_that_is_none_is_refused() -> None:
    """Where it is given; each call would be forbidden, later."""
    with pytest.raises(TypeError, match=r"^policy: expected a Policy, or what has its decide\(\), got int$"):
        Approvals(3)  # type: ignore[arg-type]


async def test_one_id_is_asked_about_once_at_a_time() -> None:
    """Two runs on one object with the same call id: the second is refused, so that no answer can reach the wrong one."""
    approvals = Approvals()
    request = ApprovalRequest("c", "delete", "{}")
    async with anyio.create_task_group() as group:
        group.start_soon(approvals, request)
        (question,) = await approvals.wait()
        with pytest.raises(ValueError, match="'c': expected an id that is not asked about already"):
            await approvals(request)
        approvals.answer(question, "deny")


# ---------------------------------------------------------------- leaving a run that waits


@pytest.mark.parametrize("order", ["one_at_a_time", "all_at_once"])
async def test_a_run_that_waits_is_left(order: Order) -> None:
    """Allowed calls run to their end first; what is left is what a person must decide; no result is made up for it."""
    approvals = Approvals(Policy([Rule("allow", where=[Condition("path", glob="ok*")])]))
    desk = Desk("ok1", "a", "ok2", "b", order=order, approve=approvals)
    left = until_waiting(desk.run(), order=order)
    events = await collect(left)
    assert [request.tool_call_id for request in left.waiting] == (["a"] if order == "one_at_a_time" else ["a", "b"])
    assert desk.ran == (["ok1"] if order == "one_at_a_time" else ["ok1", "ok2"])
    ended = [event.tool_call_id for event in events if isinstance(event, ToolExecutionEnd)]
    assert sorted(ended) == desk.ran
    assert approvals.pending == ()
    assert not any(isinstance(event, AgentEnd) for event in events)


async def test_a_run_that_does_not_wait_ends_as_ever() -> None:
    """All its events, and nothing is waited for."""
    desk = Desk("a", approve=Policy(default="allow"))
    left = until_waiting(desk.run())
    events = await collect(left)
    check(events)
    assert (desk.ran, left.waiting) == (["a"], ())


# ---------------------------------------------------------------- the law

VERDICTS = st.sampled_from(["allow", "ask", "deny", "forbid"])
ANSWERS = st.sampled_from(["allow", "deny", "raise", "nonsense", "never"])
HOOKS = st.sampled_from([None, "allow", "deny", "raise"])


@given(
    st.lists(st.tuples(VERDICTS, VERDICTS, ANSWERS, HOOKS), min_size=1, max_size=4),
    st.sampled_from(["one_at_a_time", "all_at_once"]),
)
def test_no_call_runs_without_allow_for_exactly_its_arguments(
    plan: list[tuple[str, str, str, str | None]], order: Order
) -> None:
    """Whatever policies, hooks and persons do: what ran was allowed, right before its start, with these very arguments; and
    what one policy forbids never ran."""
    first = Policy([Rule(p[0], where=[Condition("path", equals=str(n))]) for n, p in enumerate(plan)], default="deny")
    second = Policy([Rule(p[1], where=[Condition("path", equals=str(n))]) for n, p in enumerate(plan)], default="deny")

    def answer(question: Question) -> None:
        said = plan[int(question.tool_call_id)][2]
        if said == "raise":
            raise RuntimeError("no answer")
        if said == "nonsense":
            approvals.answer(question, "perhaps")  # type: ignore[arg-type]
        elif said != "never":
            approvals.answer(question, said)  # type: ignore[arg-type]

    def hook(invocation: Any) -> HookAnswer | None:
        said = plan[int(invocation.id)][3]
        invocation.arguments["path"] = "changed"
        if said == "raise":
            raise RuntimeError("broken")
        return None if said is None else HookAnswer(said)  # type: ignore[arg-type]

    approvals = Approvals(first & second, on_question=answer)
    desk = Desk(
        *[str(n) for n in range(len(plan))],
        order=order,
        approve=approvals,
        approval_timeout=5,
        clock=VirtualClock(),
        hooks=[Hooks("h", pre_tool_use=hook)],
    )
    events = collect_sync(desk.run())
    check(events)
    allowed: dict[str, str | None] = {}
    for event in events:
        if isinstance(event, ApprovalDecision) and event.decision == "allow":
            allowed[event.tool_call_id] = event.arguments
        if isinstance(event, ToolExecutionStart) and event.tool_call_id in desk.ran:
            assert allowed[event.tool_call_id] == event.arguments == f'{{"path":"{event.tool_call_id}"}}'
    for n, (one, other, said, hooked) in enumerate(plan):
        forbidden = "forbid" in (one, other)
        strictest = "deny" if "deny" in (one, other) else "ask" if "ask" in (one, other) else "allow"
        runs = hooked == "allow" or (strictest == "allow" or (strictest == "ask" and said == "allow"))
        assert (str(n) in desk.ran) is (runs and not forbidden and hooked != "deny")
