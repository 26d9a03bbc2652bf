"""`State`: what each event adds to it, field by field; and what it says of a run at any point."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.events import (
    AgentEnd,
    AgentStart,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Foreign,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    TextDelta,
    TextStart,
    TokenUsage,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AssistantMessage, Text, ToolCall, ToolResult, ToolResultMessage, Usage, assistant, user
from agentloop.reducer import State

A, B = ToolCall("a", "work", "{}"), ToolCall("b", "work", "{}")
FAILED = RequestEnd("retryable", 1, 5, "network", "gone", Usage(0, 1, 1, 2))
COMMITTED = RequestEnd()
BEGIN = CompactionBegin("context", "summarize")
END = CompactionEnd("context", "summarize", summary=user("so far"))
GIVEN_UP = CompactionEnd("context", "summarize", "fatal", 1, "auth")


def fold(*events: Event, state: State | None = None) -> State:
    state = state or State()
    for event in events:
        state.apply(event)
    return state


def said(*content: Any, finish: Any = "stop", status: Any = "completed") -> AssistantMessage:
    return AssistantMessage(content or "text", status, finish)


def attempt(*content: Any, finish: Any = "stop", number: int = 1) -> tuple[Event, ...]:
    return RequestBegin(number), MessageEnd(said(*content, finish=finish)), RequestEnd("completed", number)


def answer(call: ToolCall, terminate: bool = False) -> tuple[Event, ...]:
    end = ToolExecutionEnd(call.id, call.name, ToolResult("ok", terminate=terminate))
    return ToolExecutionStart(call.id, call.name, "{}"), end, MessageEnd(ToolResultMessage(call.id, call.name, "ok"))


def turn(index: int, *inside: Event) -> tuple[Event, ...]:
    return TurnStart(index), *inside, TurnEnd()


def test_a_fresh_state_has_seen_nothing() -> None:
    """No run, no turn, no request, no tokens; the batch without results has asked for nothing else than its end."""
    state = State()
    numbers = (state.turns, state.requests, state.attempt, state.pauses, state.cut_replies, state.context_tokens)
    assert (*numbers, state.context_turns, state.context_length, state.uncommitted_at) == (0,) * 9
    flags = (state.started, state.in_turn, state.compacted, state.asks_for_more, state.is_streaming)
    assert flags == (False,) * 5
    assert state.terminate is True
    empty: tuple[Any, ...] = (state.messages, state.uncommitted, state.held, state.results, state.running)
    assert not any([*empty, state.open_calls, state.pending_tool_calls, state.all_messages])
    nothing = (state.end, state.error, state.request, state.reply, state.failure, state.summary, state.compaction)
    assert (*nothing, state.compaction_end, state.stream_message) == (None,) * 9
    assert state.usage == state.session_usage == Usage()
    assert state.open_calls == ()


def test_a_context_that_goes_on_has_had_turns_and_a_size() -> None:
    """Committed replies count as turns; the size is what the last of them that reported one said, whatever came before."""
    first = AssistantMessage("1", "completed", "stop", Usage(1, 2, 3, 6))
    second = AssistantMessage("2", "completed", "stop", Usage(5, 5, 5, 15))
    silent = AssistantMessage("3", "completed", "stop")
    broken = AssistantMessage("4", "fatal", None, Usage(9, 9, 9, 27))
    state = State([user("a"), first, user("b"), second, silent, user("c"), broken], Usage(7, 0, 0, 7))
    assert (state.context_turns, state.context_tokens, state.context_length) == (3, 15, 7)
    assert state.session_usage == Usage(7, 0, 0, 7)
    assert State([first, silent]).context_tokens == 6
    assert State([silent]).context_tokens == 0
    assert state.new_messages == ()


def test_a_run_streams_from_its_start_to_its_end() -> None:
    """`is_streaming` holds between AgentStart and AgentEnd; the end clears what was running."""
    state = fold(AgentStart(), TurnStart(0), ToolExecutionStart("a", "work", "{}"))
    assert (state.is_streaming, state.pending_tool_calls) == (True, ("a",))
    end = AgentEnd((), "aborted")
    fold(end, state=state)
    assert (state.is_streaming, state.pending_tool_calls, state.end) == (False, (), end)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (AgentEnd(), None),
        (AgentEnd((), "completed", "code", "words"), None),
        (AgentEnd((), "fatal", "auth", "no key"), "no key"),
        (AgentEnd((), "fatal", "auth"), "auth"),
        (AgentEnd((), "fatal"), "fatal"),
    ],
)
def test_the_error_in_words(end: AgentEnd, error: str | None) -> None:
    """The message, else the code, else the stop reason; none of a run that completed."""
    assert fold(AgentStart(), end).error == error


def test_turns_and_requests_are_counted() -> None:
    """Each turn counts; as a request counts each turn with one, however many attempts, and none inside a compaction."""
    state = fold(AgentStart(), TurnStart(0))
    assert (state.turns, state.requests, state.in_turn) == (1, 0, True)
    fold(RequestBegin(1), FAILED, state=state)
    assert (state.attempt, state.requests, state.request) == (1, 1, FAILED)
    fold(RequestBegin(2), state=state)
    assert (state.attempt, state.requests, state.request) == (2, 1, None)
    fold(MessageEnd(said()), RequestEnd("completed", 2), TurnEnd(), state=state)
    assert (state.attempt, state.in_turn, state.context_turns) == (2, False, 1)
    fold(BEGIN, state=state)
    assert (state.attempt, state.request, state.reply) == (0, None, None)
    fold(RequestBegin(1), MessageEnd(said()), COMMITTED, GIVEN_UP, state=state)
    assert (state.requests, state.context_turns, state.turns) == (1, 1, 1)
    fold(TurnStart(1), state=state)
    assert (state.attempt, state.request, state.reply, state.turns) == (0, None, None, 2)


def test_the_open_reply_is_followed() -> None:
    """`stream_message` is the reply so far while it is open; updates without an open reply change nothing."""
    state = fold(AgentStart(), TurnStart(0), MessageStart(user("hi")), MessageUpdate(TextStart(0)))
    assert state.stream_message is None
    fold(MessageStart(AssistantMessage(())), MessageUpdate(TextStart(0)), state=state)
    fold(MessageUpdate(TextDelta(0, "he")), MessageUpdate(TextDelta(0, "llo")), state=state)
    assert state.stream_message == AssistantMessage((Text("hello"),))
    fold(MessageEnd(assistant("hello")), state=state)
    assert (state.stream_message, state.reply) == (None, assistant("hello"))


def test_calls_run_from_their_start_to_their_end() -> None:
    """`pending_tool_calls` in order of starts; an end of a call that did not start is taken as it comes."""
    state = fold(AgentStart(), *(ToolExecutionStart(id, "work", "{}") for id in "abc"))
    assert state.pending_tool_calls == ("a", "b", "c")
    fold(ToolExecutionEnd("b", "work", ToolResult("ok")), ToolExecutionEnd("x", "work", ToolResult("ok")), state=state)
    assert state.pending_tool_calls == ("a", "c")


def test_open_calls_are_those_without_a_result() -> None:
    """In call order; none before there is a reply."""
    state = fold(AgentStart(), TurnStart(0), *attempt(A, B))
    assert state.open_calls == (A, B)
    fold(*answer(A), state=state)
    assert state.open_calls == (B,)
    fold(*answer(B), state=state)
    assert state.open_calls == ()


@pytest.mark.parametrize(
    ("inside", "more"),
    [
        (attempt(), False),
        ((RequestBegin(1), RequestEnd("fatal")), False),
        (attempt(finish="pause"), True),
        ((*attempt(A), *answer(A)), True),
        ((*attempt(A), *answer(A, terminate=True)), False),
        ((*attempt(A, B), *answer(A, terminate=True), *answer(B)), True),
        ((*attempt(A, B), *answer(A), *answer(B, terminate=True)), True),
        ((*attempt(A, B), *answer(A, terminate=True), *answer(B, terminate=True)), False),
        ((*attempt(A, finish="refusal"), *answer(A)), False),
        ((*attempt(A, finish="content_filter"), *answer(A)), False),
        ((*attempt(A, finish="length"), *answer(A)), True),
        ((*attempt(A, finish="pause"), *answer(A, terminate=True)), False),
        (answer(A), True),
        (answer(A, terminate=True), False),
    ],
)
def test_what_makes_a_run_go_on_by_itself(inside: tuple[Event, ...], more: bool) -> None:
    """A pause; or results of which one did not ask to end, of a reply that was neither refused nor filtered."""
    assert fold(AgentStart(), *turn(0, *inside)).asks_for_more is more


def test_a_new_batch_starts_without_the_verdict_of_the_old() -> None:
    """`terminate` and the results are of one turn, one attempt, one compaction attempt."""
    for begin in ((TurnEnd(), TurnStart(1)), (RequestBegin(2),), (TurnEnd(), BEGIN)):
        state = fold(AgentStart(), TurnStart(0), *attempt(A), *answer(A))
        assert (state.terminate, len(state.results)) == (False, 1)
        fold(*begin, state=state)
        assert (state.terminate, state.results, state.reply, state.request) == (True, [], None, None)


def test_the_failure_is_that_of_the_last_turn() -> None:
    """The end of its last attempt, if that failed; a later turn that does not fail clears it."""
    broken = RequestEnd("fatal", 1, None, "auth")
    state = fold(AgentStart(), *turn(0, RequestBegin(1), broken))
    assert state.failure == broken
    fold(*turn(1, *attempt()), state=state)
    assert state.failure is None
    assert fold(AgentStart(), *turn(0)).failure is None


def test_pauses_and_cut_replies_count_in_a_row() -> None:
    """A pause without calls, a reply with calls cut off by length; any other committed reply ends the row."""
    state = fold(AgentStart(), *turn(0, *attempt(finish="pause")), *turn(1, *attempt(finish="pause")))
    assert (state.pauses, state.cut_replies) == (2, 0)
    fold(*turn(2, *attempt(A, finish="pause"), *answer(A)), state=state)
    assert (state.pauses, state.cut_replies) == (0, 0)
    fold(*turn(3, *attempt(A, finish="length")), *turn(4, *attempt(A, finish="length")), state=state)
    assert (state.pauses, state.cut_replies) == (0, 2)
    fold(*turn(5, *attempt(finish="length")), state=state)
    assert state.cut_replies == 0
    fold(*turn(6, *attempt(A, finish="length")), *turn(7, *attempt(A, finish="stop")), state=state)
    assert state.cut_replies == 0
    fold(*turn(8, *attempt(finish="pause")), *turn(9, RequestBegin(1), COMMITTED), state=state)
    assert state.pauses == 0


def test_a_pause_inside_a_compaction_does_not_count() -> None:
    """Pauses and turns of the context are those of turns."""
    state = fold(AgentStart(), *turn(0, *attempt(finish="pause")), BEGIN, *attempt(finish="pause"))
    assert (state.pauses, state.context_turns) == (1, 1)


def test_usage_counts_each_attempt_once() -> None:
    """The run's sum: of a committed attempt its TokenUsage, else what its RequestEnd says; the session's as reported."""
    one, two = Usage(1, 2, 3, 6), Usage(2, 2, 2, 6)
    state = fold(AgentStart(), TurnStart(0), RequestBegin(1), FAILED, RequestBegin(2))
    assert state.usage == Usage(0, 1, 1, 2)
    fold(MessageEnd(said()), TokenUsage(Usage(9, 9, 9, 27), one), RequestEnd("completed", 2, usage=two), state=state)
    assert state.usage == Usage(1, 3, 4, 8)
    assert (state.session_usage, state.context_tokens) == (Usage(9, 9, 9, 27), 6)
    fold(TurnEnd(), *turn(1, RequestBegin(1), MessageEnd(said()), COMMITTED), state=state)
    assert state.usage == Usage(1, 3, 4, 8)


def test_a_nested_runs_tokens_are_the_sessions() -> None:
    """Each nested request adds to the session's sum and to nothing else; other nested events add nothing."""
    inner = TokenUsage(Usage(5, 5, 5, 15), Usage(1, 1, 1, 3))
    state = fold(
        AgentStart(), ChildEvent(("k",), inner), ChildEvent(("k",), AgentStart()), ChildEvent(("k", "l"), inner)
    )
    assert state.session_usage == Usage(2, 2, 2, 6)
    assert (state.usage, state.context_tokens, state.turns) == (Usage(), 0, 0)


def test_messages_are_kept_in_the_order_of_their_ends() -> None:
    """Inputs, committed replies, results; `new_messages` leaves the context out."""
    hi, old = user("hi"), user("old")
    state = fold(AgentStart(), TurnStart(0), MessageEnd(hi), *attempt(A), *answer(A), TurnEnd(), state=State([old]))
    new = (hi, said(A), ToolResultMessage("a", "work", "ok"))
    assert state.messages == [old, *new]
    assert state.new_messages == state.all_messages == new
    assert [m.tool_call_id for m in state.results] == ["a"]


def test_an_uncommitted_reply_stands_in_its_place_among_all_messages() -> None:
    """With its results, before inputs that came later; it is in no history, and the next attempt forgets it (G10)."""
    hi, late = user("hi"), user("late")
    cut = said(A, status="retryable")
    start = (AgentStart(), TurnStart(0), MessageEnd(hi), RequestBegin(1), MessageEnd(cut), FAILED, *answer(A))
    state = fold(*start, TurnEnd(), TurnStart(1), MessageEnd(late), state=State([user("old")]))
    result = ToolResultMessage("a", "work", "ok")
    assert (state.new_messages, state.uncommitted) == ((hi, late), [cut, result])
    assert state.all_messages == (hi, cut, result, late)
    fold(RequestBegin(1), state=state)
    assert state.all_messages == (hi, late)
    assert fold(AgentStart(), TurnStart(0), RequestBegin(1), FAILED).uncommitted == []


def test_results_of_the_contexts_calls_are_committed() -> None:
    """A turn of open calls has no request: its results go into the history."""
    state = fold(AgentStart(), TurnStart(0), *answer(A))
    assert state.new_messages == (ToolResultMessage("a", "work", "ok"),)


def test_a_compactions_inputs_wait_for_a_committed_attempt() -> None:
    """They enter the history before the reply that took them (G11); else they are dropped with the compaction."""
    prompt = user("sum up")
    begun = (AgentStart(), *turn(0, *attempt()), BEGIN, MessageEnd(prompt))
    state = fold(*begun)
    assert (state.held, state.messages, state.compaction) == ([prompt], [said()], BEGIN)
    fold(RequestBegin(1), FAILED, state=state)
    assert state.messages == [said()]
    fold(RequestBegin(2), MessageEnd(said("short")), RequestEnd("completed", 2), state=state)
    assert (state.held, state.messages) == ([], [said(), prompt, said("short")])
    fold(MessageEnd(prompt), GIVEN_UP, state=state)
    assert (state.held, state.messages) == ([], [said(), prompt, said("short")])
    assert (state.compacted, state.compaction, state.compaction_end, state.summary) == (False, None, GIVEN_UP, None)
    state = fold(*begun, BEGIN)
    assert state.held == []


def test_a_completed_compaction_empties_the_history() -> None:
    """Messages, context and its counts are void; the summary waits for the next turn, which takes it."""
    usage = TokenUsage(Usage(), Usage(1, 1, 1, 3))
    reply = MessageEnd(said())
    begun = (AgentStart(), TurnStart(0), RequestBegin(1), reply, usage, COMMITTED, TurnEnd(), BEGIN)
    state = fold(
        *begun, RequestBegin(1), MessageEnd(said(status="fatal")), FAILED, state=State([user("old"), assistant("1")])
    )
    assert state.all_messages == (said(), said(status="fatal"))
    assert (state.context_tokens, state.context_turns, state.uncommitted_at) == (3, 2, 3)
    fold(END, state=state)
    assert (state.messages, state.uncommitted, state.all_messages) == ([], [], ())
    assert (state.context_length, state.uncommitted_at) == (0, 0)
    assert (state.context_tokens, state.context_turns) == (0, 0)
    assert (state.compacted, state.compaction, state.compaction_end, state.summary) == (True, None, END, END.summary)
    fold(TurnStart(1), MessageEnd(user("so far")), state=state)
    assert (state.summary, state.compaction_end, state.new_messages) == (None, None, (user("so far"),))


def test_events_that_say_nothing_of_the_state_are_passed_over() -> None:
    """An unknown record changes nothing."""
    state = fold(AgentStart(), TurnStart(0), *attempt())
    before = {name: getattr(state, name) for name in State.__slots__}
    fold(Foreign({"type": "weather"}), state=state)
    assert {name: getattr(state, name) for name in State.__slots__} == before
