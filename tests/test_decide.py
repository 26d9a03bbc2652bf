"""`decide`: one row for each rule: what has happened, what was found out, and the one step that follows."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import _decide
from agentloop._decide import (
    COMPLETED,
    MAX_PAUSES,
    Ask,
    AskFinishTurn,
    AskStopHooks,
    CheckCompaction,
    CloseCompaction,
    CloseTurn,
    Connect,
    Finish,
    Inputs,
    JudgeSummary,
    Limits,
    OpenCompaction,
    OpenTurn,
    Outcomes,
    Poll,
    PromptCompaction,
    RefuseCalls,
    RunCalls,
    Start,
    Stop,
    Wait,
)
from agentloop.events import (
    AgentEnd,
    AgentStart,
    CompactionBegin,
    CompactionEnd,
    Event,
    MessageEnd,
    RequestBegin,
    RequestEnd,
    ToolExecutionEnd,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AssistantMessage, ToolCall, ToolResult, ToolResultMessage, user
from agentloop.reducer import State

A, B = ToolCall("a", "work", "{}"), ToolCall("b", "work", "{}")
ABORT = Stop("aborted", "user_abort", "enough", abort=True)
DEADLINE = Stop("aborted", "deadline", "too late")
COMMITTED = RequestEnd()
BROKEN = RequestEnd("fatal", 1, None, "auth", "no key")
AGAIN = RequestEnd("retryable", 1, 70, "network", "gone")
GIVEN_UP = RequestEnd("retryable", 1, None, "network", "gone")


def fold(*events: Event) -> State:
    state = State()
    for event in events:
        state.apply(event)
    return state


def reply(*calls: ToolCall, finish: Any = "stop", stop_reason: Any = "completed") -> MessageEnd:
    return MessageEnd(AssistantMessage(calls or "text", stop_reason, finish))


def result(call: ToolCall) -> tuple[Event, ...]:
    message = ToolResultMessage(call.id, call.name, "ok")
    return ToolExecutionEnd(call.id, call.name, ToolResult("ok")), MessageEnd(message)


def attempt(*calls: ToolCall, finish: Any = "stop", end: RequestEnd = COMMITTED) -> tuple[Event, ...]:
    return RequestBegin(end.attempt), reply(*calls, finish=finish, stop_reason=end.status), end


def last(call: ToolCall) -> tuple[Event, ...]:
    """A result that asks to end the run."""
    return ToolExecutionEnd(call.id, call.name, ToolResult("ok", terminate=True)), *result(call)[1:]


def turn(index: int, *inside: Event) -> tuple[Event, ...]:
    return TurnStart(index), *inside, TurnEnd()


def limits(**changes: Any) -> Limits:
    given: dict[str, Any] = {
        "max_turns": None, "max_cut_replies": 3, "attempts": 2, "finish_turn": False, "tool_source": False,
        "stop_hooks": False, "compaction": None,
    }  # fmt: skip
    return Limits(**{**given, **changes})


def found(**values: Any) -> Outcomes:
    """Outcomes of a run that is under way."""
    outcomes = Outcomes()
    for name, value in values.items():
        setattr(outcomes, name, value)
    return outcomes


def said(outcomes: Outcomes) -> dict[str, Any]:
    return {name: getattr(outcomes, name) for name in Outcomes.__slots__}


def decide(events: tuple[Event, ...], outcomes: dict[str, Any], given: dict[str, Any]) -> Any:
    return _decide.decide(fold(AgentStart(), *events), found(**outcomes), limits(**given))


START = (TurnStart(0),)
LATER = (*turn(0, *attempt()), TurnStart(1))
TAKEN = {"inputs": [user("more")]}
SOURCE = {"tool_source": True}
ASKED = {"steering": 1}


@pytest.mark.parametrize(
    ("events", "outcomes", "given", "step"),
    [
        # what waits as an input comes before all else, and only until a request has begun
        (START, {**TAKEN, "stop": ABORT}, {}, Inputs()),
        ((*START, *attempt()), TAKEN, {}, CloseTurn()),
        # a first turn polls once, connects once, asks
        (START, {}, SOURCE, Poll("steering")),
        (START, ASKED, SOURCE, Connect()),
        (START, {**ASKED, "connected": True}, SOURCE, Ask(1)),
        (START, ASKED, {}, Ask(1)),
        (LATER, {}, {}, Ask(1)),
        (LATER, {}, SOURCE, Connect()),
        # a stop closes the turn; calls without a result are answered
        (START, {"stop": ABORT}, SOURCE, CloseTurn()),
        ((*START, *attempt(A, B), *result(A)), {"stop": DEADLINE}, {}, RefuseCalls((B,), "aborted")),
        ((*START, *attempt(A), *result(A)), {"stop": DEADLINE}, {}, CloseTurn()),
        ((*START, *attempt(A, end=AGAIN)), {"stop": ABORT}, {}, RefuseCalls((A,), "aborted")),
        # open calls of the context run behind the connection, each once
        (START, {"open_calls": (A, B)}, SOURCE, Connect()),
        (START, {"open_calls": (A, B), "connected": True}, SOURCE, RunCalls((A, B))),
        (START, {"open_calls": (A, B)}, {}, RunCalls((A, B))),
        ((*START, *result(A)), {"open_calls": (A, B)}, {}, RunCalls((B,))),
        ((*START, *result(A), *result(B)), {"open_calls": (A, B)}, {}, CloseTurn()),
        # a failed attempt: the announced wait, then the next number; or the end of the turn
        ((*START, *attempt(end=AGAIN)), {}, {}, Wait(70)),
        ((*START, *attempt(A, end=AGAIN)), {"waited": True}, {}, Ask(2)),
        ((*START, *attempt(end=GIVEN_UP)), {}, {}, CloseTurn()),
        ((*START, *attempt(A, end=BROKEN)), {}, {}, RefuseCalls((A,), "cut_off")),
        ((*START, *attempt(A, end=BROKEN), *result(A)), {}, {}, CloseTurn()),
        # a committed one: its calls run, unless it was cut off, refused or filtered (G22)
        ((*START, *attempt()), {}, {}, CloseTurn()),
        ((*START, *attempt(A, B, finish="tool_use")), {}, {}, RunCalls((A, B))),
        ((*START, *attempt(A, finish="stop")), {}, {}, RunCalls((A,))),
        ((*START, *attempt(A, finish="length")), {}, {}, RefuseCalls((A,), "cut_off")),
        ((*START, *attempt(A, finish="refusal")), {}, {}, RefuseCalls((A,), "cut_off")),
        ((*START, *attempt(A, finish="content_filter")), {}, {}, RefuseCalls((A,), "cut_off")),
        ((*START, *attempt(A), *result(A)), {}, {}, CloseTurn()),
    ],
)  # fmt: skip
def test_a_step_within_a_turn(
    events: tuple[Event, ...], outcomes: dict[str, Any], given: dict[str, Any], step: Any
) -> None:
    """Inputs, stop, open calls, polls, connection, attempt, calls, end: in this order, each once."""
    assert decide(events, outcomes, given) == step


TALK = turn(0, *attempt())
WORK = turn(0, *attempt(A), *result(A))
PAUSE = turn(0, *attempt(finish="pause"))
CUT = turn(0, *attempt(A, finish="length"), *result(A))
QUIET = {"steering": 2, "follow_up": True}
HOOKS = {"stop_hooks": True}
COMPACTS = {"compaction": "summarize"}
LIMIT = Stop("fatal", "max_turns", "the run reached its limit of 1 turn")


@pytest.mark.parametrize(
    ("events", "outcomes", "given", "step"),
    [
        # before the first turn
        ((), {"steering": 1}, {"finish_turn": True, "max_turns": 0, "max_cut_replies": 0, **COMPACTS}, OpenTurn()),
        ((), {"stop": ABORT}, {}, Finish(ABORT)),
        # a stop, then a failure, come before every question; what was taken is emitted first (G29)
        (TALK, {"stop": ABORT}, {"finish_turn": True}, Finish(ABORT)),
        (TALK, {"stop": ABORT, **TAKEN}, {}, OpenTurn()),
        (turn(0, *attempt(end=BROKEN)), {}, {"finish_turn": True}, Finish(Stop("fatal", "auth", "no key"))),
        (turn(0, *attempt(end=BROKEN)), {"stop": DEADLINE}, {}, Finish(DEADLINE)),
        (turn(0, *attempt(end=GIVEN_UP)), {"verdict": "ask"}, {}, Finish(Stop("retryable", "network", "gone"))),
        # `finish_turn` is asked once after each turn, before the limits
        (WORK, {}, {"finish_turn": True, "max_turns": 1}, AskFinishTurn()),
        (WORK, {"verdict": "none", **ASKED}, {"finish_turn": True}, OpenTurn()),
        (WORK, {"verdict": "end"}, {"finish_turn": True, "max_turns": 1}, Finish(COMPLETED)),
        (TALK, {"verdict": "end"}, {}, Finish(COMPLETED)),
        (TALK, {"verdict": "none"}, {}, Poll("steering")),
        (TALK, {"verdict": "ask", **ASKED}, {}, OpenTurn()),
        # the limits
        (WORK, ASKED, {"max_turns": 1}, Finish(LIMIT)),
        (TALK, {}, {"max_turns": 1}, Finish(COMPLETED)),
        (TALK, {"verdict": "ask"}, {"max_turns": 1}, Finish(COMPLETED)),
        (WORK, ASKED, {"max_turns": 2}, OpenTurn()),
        (WORK, TAKEN, {"max_turns": 1}, OpenTurn()),
        (CUT, {}, {"max_cut_replies": 1},
         Finish(Stop("fatal", "length_limit", "1 replies in a row were cut off by the output limit"))),
        (CUT, ASKED, {"max_cut_replies": 2}, OpenTurn()),
        (PAUSE * MAX_PAUSES, ASKED, {}, OpenTurn()),
        (PAUSE * (MAX_PAUSES + 1), ASKED, {}, Finish(Stop("fatal", "pause_limit", "the model paused 9 times in a row"))),
        # the compaction is looked at before the polls if the task goes on, at the very end if not
        (WORK, {}, COMPACTS, CheckCompaction(at_end=False)),
        (TALK, {"verdict": "ask"}, COMPACTS, CheckCompaction(at_end=False)),
        (turn(0, *last(A)), {"prompts": [user("go")], "open_calls": (A,)}, COMPACTS, CheckCompaction(at_end=False)),
        (WORK, {"checked": "before"}, COMPACTS, Poll("steering")),
        (WORK, {"checked": "before", "due": "context"}, COMPACTS, OpenCompaction()),
        (WORK, {"checked": "before", "due": "context", **TAKEN}, COMPACTS, OpenCompaction()),
        (TALK, {}, COMPACTS, Poll("steering")),
        (TALK, QUIET, COMPACTS, CheckCompaction(at_end=True)),
        (TALK, {**QUIET, "checked": "before"}, COMPACTS, CheckCompaction(at_end=True)),
        (TALK, {**QUIET, "checked": "end"}, COMPACTS, Finish(COMPLETED)),
        (TALK, {**QUIET, "checked": "end", "due": "turns"}, COMPACTS, OpenCompaction()),
        # steering, follow-ups, steering again, hooks, the end
        (TALK, TAKEN, {}, OpenTurn()),
        (WORK, {}, {}, Poll("steering")),
        (WORK, ASKED, {}, OpenTurn()),
        (PAUSE, ASKED, {}, OpenTurn()),
        (turn(0, *last(A)), {**ASKED, "prompts": [user("go")]}, {}, OpenTurn()),
        (TALK, ASKED, HOOKS, Poll("follow_up")),
        (TALK, {**ASKED, "follow_up": True}, HOOKS, Poll("steering")),
        (TALK, QUIET, HOOKS, AskStopHooks()),
        (TALK, {**QUIET, "stop_hooks": True}, HOOKS, Finish(COMPLETED)),
        (TALK, QUIET, {**HOOKS, **COMPACTS}, AskStopHooks()),
        (TALK, QUIET, {}, Finish(COMPLETED)),
        # a compaction alone
        ((), {"manual": True, "due": "manual"}, COMPACTS, OpenCompaction()),
        ((CompactionBegin("manual", "discard"), CompactionEnd("manual", "discard")), {"manual": True}, COMPACTS,
         Finish(COMPLETED)),
        ((CompactionBegin("manual", "summarize"), CompactionEnd("manual", "summarize", "fatal", 1, "auth", "no key")),
         {"manual": True}, COMPACTS, Finish(Stop("fatal", "auth", "no key"))),
    ],
)  # fmt: skip
def test_a_step_between_turns(
    events: tuple[Event, ...], outcomes: dict[str, Any], given: dict[str, Any], step: Any
) -> None:
    """Stop or failure, `finish_turn`, limits, compaction if the task goes on, polls, `stop` hooks, compaction at the end."""
    assert decide(events, outcomes, given) == step


BEGUN = (*TALK, CompactionBegin("context", "summarize"))
THROWN = (*TALK, CompactionBegin("context", "discard"))
PROMPTED = {"prompted": True}


@pytest.mark.parametrize(
    ("events", "outcomes", "given", "step"),
    [
        (THROWN, {}, SOURCE, CloseCompaction("completed")),
        (BEGUN, {}, {}, PromptCompaction()),
        (BEGUN, {}, SOURCE, Connect()),
        (BEGUN, {"connected": True}, SOURCE, PromptCompaction()),
        (BEGUN, PROMPTED, {}, Ask(1)),
        (BEGUN, PROMPTED, {"attempts": 0}, Ask(1)),
        # an attempt that failed is retried as announced, or ends the compaction
        ((*BEGUN, *attempt(end=AGAIN)), PROMPTED, {}, Wait(70)),
        ((*BEGUN, *attempt(end=AGAIN)), {**PROMPTED, "waited": True}, {}, Ask(2)),
        ((*BEGUN, *attempt(end=BROKEN)), PROMPTED, {}, CloseCompaction("fatal", "auth", "no key")),
        # a committed one is judged once, its calls refused first; then the next attempt, as often as is allowed
        ((*BEGUN, *attempt(A, B), *result(A)), PROMPTED, {}, RefuseCalls((B,), "cut_off")),
        ((*BEGUN, *attempt(A), *result(A)), PROMPTED, {}, JudgeSummary()),
        ((*BEGUN, *attempt()), {"judged": True, "summary": "so far"}, {}, CloseCompaction("completed")),
        ((*BEGUN, *attempt()), {"judged": True}, {}, PromptCompaction()),
        ((*BEGUN, *attempt()), {"judged": True, **PROMPTED}, {}, Ask(2)),
        ((*BEGUN, *attempt()), {"judged": True, **PROMPTED}, {"attempts": 1},
         CloseCompaction("retryable", "malformed", "the model gave no usable summary")),
        # a stop answers the calls of a committed attempt (G07), then says what it was
        (BEGUN, {"stop": ABORT}, {}, CloseCompaction("aborted", "compaction_interrupted", "enough")),
        (BEGUN, {"stop": DEADLINE}, {}, CloseCompaction("aborted", "deadline", "too late")),
        ((*BEGUN, *attempt(A)), {"stop": DEADLINE}, {}, RefuseCalls((A,), "aborted")),
        ((*BEGUN, *attempt(A, end=BROKEN)), {"stop": DEADLINE}, {}, CloseCompaction("aborted", "deadline", "too late")),
        ((*BEGUN, *attempt()), {"stop": DEADLINE}, {}, CloseCompaction("aborted", "deadline", "too late")),
        ((*BEGUN, RequestBegin(), reply(A)), {"stop": DEADLINE}, {},
         CloseCompaction("aborted", "deadline", "too late")),
    ],
)  # fmt: skip
def test_a_step_within_a_compaction(
    events: tuple[Event, ...], outcomes: dict[str, Any], given: dict[str, Any], step: Any
) -> None:
    """Stop, discard or summary, retry, judgement, the limit of attempts, prompt, question: in this order."""
    assert decide(events, outcomes, given) == step


def test_a_run_begins_and_ends_once() -> None:
    """Before `AgentStart` the only step is `Start`; after `AgentEnd` there is none, whatever else holds."""
    assert _decide.decide(State(), found(stop=ABORT), limits()) == Start()
    assert _decide.decide(fold(AgentStart(), *START, AgentEnd()), Outcomes(), limits()) is None


def test_a_new_turn_forgets_what_was_asked_since_the_one_before() -> None:
    """Verdict, polls, hooks, check and wait are of one turn; what was taken, the stop and the connection stay."""
    kept: dict[str, Any] = {"inputs": [user("more")], "stop": ABORT, "connected": True, "due": "turns"}
    asked = found(verdict="ask", steering=2, follow_up=True, stop_hooks=True, checked="before", waited=True, **kept)
    asked.new_turn()
    assert said(asked) == said(found(**kept))


def test_nothing_was_found_out_when_a_run_begins() -> None:
    """A fresh `Outcomes` has asked, taken, connected and waited for nothing; a `Stop` is no abort unless it says so."""
    fresh = Outcomes()
    assert not any([fresh.manual, fresh.connected, fresh.waited, fresh.steering, fresh.follow_up, fresh.stop_hooks])
    assert not any([fresh.prompted, fresh.judged, fresh.verdict, fresh.checked, fresh.summary, fresh.due, fresh.stop])
    assert not fresh.prompts and not fresh.inputs and not fresh.open_calls
    assert not COMPLETED.abort and not DEADLINE.abort
