"""Hooks: `pre_tool_use`, `user_prompt` and `stop`, their `Hook` events, and how a policy stands above them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    ApprovalDecision,
    ApprovalRequest,
    Config,
    Context,
    Event,
    Hook,
    HookAnswer,
    Hooks,
    MessageEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolInvocation,
    TurnStart,
    UserMessage,
    agent_loop,
    tool,
    user,
)
from agentloop.grammar import check
from agentloop.testing import ScriptedModel, call, collect

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What fails here is logged by design."""
    caplog.set_level(logging.CRITICAL + 1, "agentloop")


class Tools:
    """A tool that remembers what it ran with."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool
        async def note(text: str) -> str:
            """Note a text."""
            self.ran.append(text)
            return "noted"

        self.note = note


class Policy:
    """An `approve` that remembers what it was asked; its policy says what it was made with."""

    def __init__(self, verdict: Any = None, answer: Any = "allow") -> None:
        self.verdict = verdict
        self.answer = answer
        self.seen: list[dict[str, Any]] = []
        self.asked: list[str] = []

    def policy(self, invocation: ToolInvocation) -> Any:
        self.seen.append(invocation.arguments)
        if isinstance(self.verdict, BaseException):
            raise self.verdict
        return self.verdict

    async def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request.arguments)
        return self.answer


async def one_call(hooks: list[Hooks], approve: Any = None) -> tuple[Tools, list[Event]]:
    """A run with one call of `note`; its events, which the grammar accepts."""
    tools = Tools()
    model = ScriptedModel([[call("note", {"text": "x"}, id="c")], "done"])
    config = Config(model=model, hooks=hooks, approve=approve)
    events = await collect(agent_loop(["go"], Context(tools=[tools.note]), config))
    check(events)
    assert isinstance(events[-1], AgentEnd)
    assert events[-1].stop_reason == "completed"
    return tools, events


def before_tool(name: str, answer: Any) -> Hooks:
    """A hook that always answers so; an exception is raised."""

    def pre_tool_use(invocation: ToolInvocation) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return Hooks(name, pre_tool_use=pre_tool_use)


def of(events: list[Event], *kinds: type) -> list[Any]:
    """The events of these classes."""
    return [event for event in events if isinstance(event, kinds)]


# ---------------------------------------------------------------- pre_tool_use


async def test_the_first_decision_wins_and_each_answer_is_told() -> None:
    """Three answers, three events in the order of the hooks, right before the decision; the second one decides."""
    hooks = [
        before_tool("notes", HookAnswer(reason="looked at it")),
        before_tool("strict", HookAnswer("deny", "not today")),
        before_tool("lax", HookAnswer("allow")),
    ]
    tools, events = await one_call(hooks)
    assert tools.ran == []
    seen = of(events, Hook, ApprovalRequest, ApprovalDecision, ToolExecutionStart)
    assert seen[:3] == [
        Hook("pre_tool_use", "notes", None, "looked at it", {}, "c"),
        Hook("pre_tool_use", "strict", "deny", "not today", {}, "c"),
        Hook("pre_tool_use", "lax", "allow", None, {}, "c"),
    ]
    assert seen[3:] == [ApprovalDecision("deny", "c", '{"text":"x"}'), ToolExecutionStart("c", "note", '{"text":"x"}')]
    (end,) = of(events, ToolExecutionEnd)
    assert (end.error_code, end.stop_reason) == ("denied", "aborted")
    assert end.result.text == "Tool call denied by the strict hook: not today."


async def test_a_hook_that_allows_skips_the_question() -> None:
    """`allow` runs the call although the person would have denied it: nobody is asked, the decision is told."""
    approve = Policy(answer="deny")
    tools, events = await one_call([before_tool("lax", HookAnswer("allow"))], approve)
    assert (tools.ran, approve.asked) == (["x"], [])
    assert of(events, ApprovalRequest, ApprovalDecision) == [ApprovalDecision("allow", "c", '{"text":"x"}')]


@pytest.mark.parametrize("nothing", [None, HookAnswer()])
async def test_a_hook_that_says_nothing_has_no_event(nothing: Any) -> None:
    """None and an empty answer leave no trace; the call is asked about as without hooks."""
    approve = Policy()
    tools, events = await one_call([before_tool("silent", nothing)], approve)
    assert of(events, Hook) == []
    assert (tools.ran, approve.asked) == (["x"], ['{"text":"x"}'])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (RuntimeError("no disk"), "hook failed: no disk"),
        ("deny", "hook failed: expected a HookAnswer or None, got str"),
        (HookAnswer(reason=5), "hook failed: reason: expected a text or None, got int"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("asked", [True, False])
async def test_a_hook_that_fails_decides_nothing(answer: Any, words: str, asked: bool) -> None:
    """It is an event without a decision; the person decides, and where there is none the door is closed."""
    approve = Policy() if asked else None
    tools, events = await one_call([before_tool("broken", answer)], approve)
    assert of(events, Hook) == [Hook("pre_tool_use", "broken", None, words, {}, "c")]
    assert tools.ran == (["x"] if asked else [])
    assert [event.decision for event in of(events, ApprovalDecision)] == (["allow"] if asked else ["deny"])


async def test_hooks_of_other_kinds_have_no_part_in_a_call() -> None:
    """Nothing is told of them, and they do not keep the call from running."""
    tools, events = await one_call([Hooks("quiet", user_prompt=lambda message: None, stop=lambda end: None)])
    assert of(events, Hook, ApprovalRequest, ApprovalDecision) == []
    assert tools.ran == ["x"]


async def test_a_hook_that_decides_nothing_closes_no_door() -> None:
    """It has said something, and meant to decide nothing: the call runs where nobody else decides."""
    tools, events = await one_call([before_tool("notes", HookAnswer(reason="noted"))])
    assert of(events, Hook) == [Hook("pre_tool_use", "notes", None, "noted", {}, "c")]
    assert tools.ran == ["x"]


async def test_a_hook_that_fails_does_not_undo_another() -> None:
    """A later hook's decision stands, whichever way it goes."""
    for decision, ran in (("allow", ["x"]), ("deny", [])):
        hooks = [before_tool("broken", ValueError("x")), before_tool("whole", HookAnswer(decision))]  # type: ignore[arg-type]
        tools, _ = await one_call(hooks)
        assert tools.ran == ran


@pytest.mark.parametrize("decision", ["continue", "stop", "Allow", "yes", 1])
async def test_a_decision_that_such_a_hook_has_not_is_dropped(decision: Any) -> None:
    """The answer is told without it, and the person decides."""
    approve = Policy(answer="deny")
    tools, events = await one_call([before_tool("odd", HookAnswer(decision, "because"))], approve)
    assert of(events, Hook) == [Hook("pre_tool_use", "odd", None, "because", {}, "c")]
    assert (tools.ran, len(approve.asked)) == ([], 1)


@pytest.mark.parametrize("decision", ["block", "stop", "Deny", 1])
async def test_where_nobody_else_decides_such_a_decision_closes_the_door(decision: Any) -> None:
    """Whoever said it meant to decide, so the call is denied as with a hook that fails; another hook may still allow it."""
    tools, events = await one_call([before_tool("odd", HookAnswer(decision))])
    assert of(events, Hook) == [Hook("pre_tool_use", "odd", None, None, {}, "c")]
    assert (tools.ran, [event.decision for event in of(events, ApprovalDecision)]) == ([], ["deny"])
    tools, _ = await one_call([before_tool("odd", HookAnswer(decision)), before_tool("sure", HookAnswer("allow"))])
    assert tools.ran == ["x"]


async def test_only_scalars_of_the_output_are_kept() -> None:
    """Objects, numbers that JSON cannot say and keys that are no text are left out; nothing of it hurts the run."""
    output: Any = {"id": "s1", "n": 1, "f": 1.5, "t": True, "z": None, "o": {}, "l": [1], "nan": float("nan"), 5: 5}
    output["huge"] = 1 << 20_000
    _, events = await one_call([before_tool("spawner", HookAnswer(output=output))])
    (hook,) = of(events, Hook)
    assert hook.output == {"id": "s1", "n": 1, "f": 1.5, "t": True, "z": None}


# ---------------------------------------------------------------- the policy above them


@pytest.mark.parametrize("hooked", [None, "allow"])
async def test_forbidden_outranks_a_hook_and_is_not_asked(hooked: Any) -> None:
    """A policy's veto is decided before anybody is asked, also over a hook's `allow`."""
    approve = Policy("forbidden")
    tools, events = await one_call([before_tool("lax", HookAnswer(hooked))], approve)
    assert (tools.ran, approve.asked) == ([], [])
    assert [event.decision for event in of(events, ApprovalDecision)] == ["forbidden"]
    (end,) = of(events, ToolExecutionEnd)
    assert (end.error_code, end.result.text) == ("forbidden", "Tool call denied by policy.")


@pytest.mark.parametrize(("verdict", "ran"), [("allow", ["x"]), ("deny", [])])
async def test_what_a_policy_decides_needs_no_question(verdict: str, ran: list[str]) -> None:
    """`allow` and `deny` of a policy are told as decisions without a request."""
    approve = Policy(verdict)
    tools, events = await one_call([], approve)
    assert (tools.ran, approve.asked) == (ran, [])
    assert of(events, ApprovalRequest, ApprovalDecision) == [ApprovalDecision(verdict, "c", '{"text":"x"}')]  # type: ignore[arg-type]


async def test_a_policy_that_leaves_it_open_is_followed_by_the_question() -> None:
    """None of the policy: a request, the question, the decision."""
    approve = Policy(None, "deny")
    tools, events = await one_call([], approve)
    assert (tools.ran, approve.asked) == ([], ['{"text":"x"}'])
    assert [type(event) for event in of(events, ApprovalRequest, ApprovalDecision)] == [
        ApprovalRequest,
        ApprovalDecision,
    ]


@pytest.mark.parametrize("hooked", [None, "allow"])
@pytest.mark.parametrize("verdict", [RuntimeError("rules lost"), "Forbidden", "ask", True, ["allow"]])
async def test_a_policy_that_fails_closes_the_door(hooked: Any, verdict: Any) -> None:
    """It raises, or says what is no verdict: the call is forbidden, whatever a hook or a person would say."""
    approve = Policy(verdict)
    tools, events = await one_call([before_tool("lax", HookAnswer(hooked))], approve)
    assert (tools.ran, approve.asked) == ([], [])
    assert [event.decision for event in of(events, ApprovalDecision)] == ["forbidden"]


async def test_a_policy_judges_what_runs() -> None:
    """A hook that changes the arguments that it was shown changes neither what the policy sees nor what runs."""

    def meddle(invocation: ToolInvocation) -> None:
        invocation.arguments["text"] = "harmless"

    approve = Policy("allow")
    tools, _ = await one_call([Hooks("meddler", pre_tool_use=meddle)], approve)
    assert approve.seen == [{"text": "x"}]
    assert tools.ran == ["x"]


# ---------------------------------------------------------------- user_prompt


async def test_a_prompt_hook_adds_a_text_behind_the_prompt() -> None:
    """Its message is a harness's input of the same turn and no event; one that fails is an event behind the prompt."""

    def weather(prompt: UserMessage) -> HookAnswer:
        return HookAnswer(message=f"{prompt.text}: it rains", decision="stop")

    def broken(prompt: UserMessage) -> None:
        raise RuntimeError("no sensor")

    model = ScriptedModel(["ok"])
    hooks = [Hooks("weather", user_prompt=weather), Hooks("broken", user_prompt=broken)]
    events = await collect(agent_loop(["go"], Context(), Config(model=model, hooks=hooks)))
    check(events)
    assert of(events, Hook) == [Hook("user_prompt", "broken", None, "hook failed: no sensor", {})]
    inputs = [event.message for event in of(events, MessageEnd)][:2]
    assert inputs == [user("go"), user("go: it rains", sender="harness")]
    assert list(model.requests[0].messages) == inputs


async def test_a_prompt_hook_is_not_asked_about_others_inputs() -> None:
    """Inputs that a hook, a parent or a queue added are no prompts of the user."""
    asked: list[str] = []
    queue = [[user("steer")], []]

    def hook(prompt: UserMessage) -> HookAnswer:
        asked.append(prompt.text)
        return HookAnswer(message="added")

    config = Config(
        model=ScriptedModel(["ok", "ok"]),
        hooks=[Hooks("h", user_prompt=hook)],
        get_steering_messages=lambda: queue.pop() if queue else None,
    )
    check(await collect(agent_loop(["go", user("child", sender="parent_agent")], Context(), config)))
    assert asked == ["go"]


# ---------------------------------------------------------------- stop


async def test_a_stop_hook_drives_another_task() -> None:
    """The first `continue` wins: its words are a harness's input of a further turn of the same run; all answers are told
    before it, the words in none of them."""
    answers = [HookAnswer("continue", "tests fail", "Fix the tests."), HookAnswer("continue", message="Another.")]
    hooks = [
        Hooks("tests", stop=lambda end: answers[0] if end.message is not None and end.message.text == "one" else None),
        Hooks("other", stop=lambda end: answers[1] if end.message is not None and end.message.text == "one" else None),
    ]
    model = ScriptedModel(["one", "two"])
    events = await collect(agent_loop(["go"], Context(), Config(model=model, hooks=hooks)))
    check(events)
    told = of(events, Hook)
    assert told == [Hook("stop", "tests", "continue", "tests fail", {}), Hook("stop", "other", "continue", None, {})]
    assert events[events.index(told[-1]) + 1] == TurnStart(1)
    assert model.requests[1].messages[-1] == user("Fix the tests.", sender="harness")
    assert [message.text for message in events[-1].messages] == ["go", "one", "Fix the tests.", "two"]  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [HookAnswer("stop", "enough"), HookAnswer("allow"), RuntimeError("x"), 5])
async def test_other_answers_of_a_stop_hook_end_the_run(answer: Any) -> None:
    """`stop`, a decision that it has not, a failure and nonsense are told and decide nothing: the run completes."""

    def stop(end: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    events = await collect(
        agent_loop(["go"], Context(), Config(model=ScriptedModel(["one"]), hooks=[Hooks("h", stop=stop)]))
    )
    check(events)
    (hook,) = of(events, Hook)
    assert hook.decision == ("stop" if isinstance(answer, HookAnswer) and answer.decision == "stop" else None)
    assert events[-1].stop_reason == "completed"  # type: ignore[union-attr]


async def test_no_stop_hook_after_an_interruption() -> None:
    """An abort, and a turn limit with more to do, ask none: `continue` never runs on after one."""
    asked: list[Any] = []
    hooks = [Hooks("h", stop=lambda end: asked.append(end) or HookAnswer("continue"))]  # type: ignore[func-returns-value]
    abort = AbortSignal()
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["one", "two"]), hooks=hooks, abort=abort))
    async for event in run:
        if isinstance(event, MessageEnd) and event.message.role == "assistant":
            abort.abort("enough")
    tools = Tools()
    model = ScriptedModel([[call("note", {"text": "x"})], "two"])
    config = Config(model=model, hooks=hooks, max_turns=1)
    events = await collect(agent_loop(["go"], Context(tools=[tools.note]), config))
    assert events[-1].error_code == "max_turns"  # type: ignore[union-attr]
    assert asked == []


async def test_a_stop_hook_that_never_has_enough_is_bounded_by_the_limit() -> None:
    """`continue` each time ends at `max_turns`."""
    hooks = [Hooks("h", stop=lambda end: HookAnswer("continue"))]
    model = ScriptedModel(["one", "two", "three", "four"])
    events = await collect(agent_loop(["go"], Context(), Config(model=model, hooks=hooks, max_turns=3)))
    check(events)
    assert len(of(events, TurnStart)) == 3
    assert model.requests[1].messages[-1] == user("Continue.", sender="harness")
