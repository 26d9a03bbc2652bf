"""The second level of the grammar: what an event repeats agrees with what came before."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given

from agentloop.errors import GrammarError
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolListReady,
    TurnEnd,
    TurnStart,
)
from agentloop.grammar import VALUE_RULES, ValueChecker, check
from agentloop.messages import (
    AssistantMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    Usage,
    UserMessage,
    user,
)
from agentloop.reply import Partial
from agentloop.testing.strategies import streams

PROMPT = user("hi")
SUMMARY = user("what was said")
ASK_SUMMARY = user("sum up")
USAGE = Usage(1, 2, 3)
LOST = Usage(5, 0, 1)
CALL = ToolCall("c1", "look", '{"a": 1}', {"signature": "s"})
HEADER = AssistantMessage((), provider="scripted", model="m-1")
REPLY = attrs.evolve(
    HEADER,
    content=(Thinking(""), Text("let me look", {"phase": 1}), CALL),
    stop_reason="completed",
    finish_reason="tool_use",
    usage=USAGE,
)
RESULT = ToolResultMessage("c1", "look", "found it", {"n": 1}, [1])
BROKEN = attrs.evolve(HEADER, content=(Text("I th"),), stop_reason="aborted", error_code="network")
DELTAS = (
    ThinkingStart(0), ThinkingEnd(0, Thinking("")),
    TextStart(1), TextDelta(1, "let me "), TextDelta(1, "look"), TextEnd(1, Text("let me look", {"phase": 1})),
    ToolCallStart(2, "c1", "look"), ToolCallDelta(2, '{"a": 1}'), ToolCallEnd(2, CALL),
    ToolCallStart(3, "c2", "look"), ToolCallDelta(3, '{"'), ToolCallEnd(3, ToolCall("c2", "look", '{"'), "aborted"),
)  # fmt: skip


def updates(header: AssistantMessage, deltas: Sequence[Any]) -> list[Event]:
    """Updates with their messages."""
    partial = Partial(header)
    return [partial.update(delta) for delta in deltas]


def run() -> list[Event]:
    """A run with everything that is said twice: a call with approval and output, a compaction, an abort in a reply."""
    return [
        AgentStart(),
        TurnStart(0), MessageStart(PROMPT), MessageEnd(PROMPT), ToolListReady(()), RequestBegin(1),
        MessageStart(HEADER), *updates(HEADER, DELTAS), MessageEnd(REPLY), TokenUsage(USAGE, USAGE), RequestEnd(),
        ApprovalRequest("c1", "look", '{"a": 1}'), ApprovalDecision("allow", "c1", '{"a": 1}'),
        ToolExecutionStart("c1", "look", '{"a": 1}'),
        ToolExecutionUpdate("c1", "look", ToolResult("half")), ToolExecutionUpdate("c1", "look", None, "found"),
        ToolExecutionUpdate("c1", "look", None, " it"),
        ToolExecutionEnd("c1", "look", ToolResult("found it", {"n": 1}, [1])), MessageStart(RESULT), MessageEnd(RESULT),
        TurnEnd(REPLY, (RESULT,)),
        CompactionBegin("turns", "summarize", 6, 1), MessageStart(ASK_SUMMARY), MessageEnd(ASK_SUMMARY),
        RequestBegin(1), RequestEnd(), CompactionEnd("turns", "summarize", "completed", 1, summary=SUMMARY),
        TurnStart(1), MessageStart(SUMMARY), MessageEnd(SUMMARY), RequestBegin(1),
        MessageStart(HEADER), *updates(HEADER, (TextStart(0), TextDelta(0, "I th"), TextEnd(0, Text("I th"), "aborted"))),
        MessageEnd(BROKEN), RequestEnd("aborted", 1, usage=LOST), TurnEnd(BROKEN),
        Abort("user_abort", "enough"),
        AgentEnd((SUMMARY, BROKEN), "aborted", "user_abort", "enough", USAGE + LOST, replaces_context=True),
    ]  # fmt: skip


def changed(kind: type, number: int = 0, **fields: Any) -> list[Event]:
    """The run with some fields of its `number`-th event of a kind changed."""
    events = run()
    place = [place for place, event in enumerate(events) if type(event) is kind][number]
    events[place] = attrs.evolve(events[place], **fields)
    return events


def changed_delta(kind: type, number: int = 0, **fields: Any) -> list[Event]:
    """The run with some fields of a delta changed, and the rest of its reply left as it was."""
    events = run()
    places = [
        place for place, event in enumerate(events) if isinstance(event, MessageUpdate) and type(event.delta) is kind
    ]
    update: Any = events[places[number]]
    events[places[number]] = MessageUpdate(attrs.evolve(update.delta, **fields))
    return events


def evolved(message: Any, **fields: Any) -> Any:
    """A message with other fields."""
    return attrs.evolve(message, **fields)


def without_turns(end: AgentEnd, *events: Event) -> list[Event]:
    """A run of a compaction alone, or of nothing."""
    return [AgentStart(), *events, end]


def not_allowed(*updates_of: Event, stop_reason: Any = "aborted", decision: Any = "deny") -> list[Event]:
    """The run with its call not allowed."""
    events = changed(ApprovalDecision, decision=decision)
    first = next(place for place, event in enumerate(events) if isinstance(event, ToolExecutionUpdate))
    events[first : first + 3] = updates_of
    place = next(place for place, event in enumerate(events) if isinstance(event, ToolExecutionEnd))
    events[place] = ToolExecutionEnd("c1", "look", ToolResult("no", is_error=True), True, stop_reason)
    return events


DELTA = ToolExecutionUpdate("c1", "look", None, "x")
BREAKAGES: dict[str, list[Callable[[], list[Event]]]] = {
    "message-agrees": [
        lambda: changed(MessageEnd, 0, message=user("ho")),
        lambda: changed(MessageEnd, 2, message=evolved(RESULT, content="lost it")),
    ],
    "reply-header": [
        lambda: changed(MessageStart, 1, message=evolved(HEADER, content=(Text("early"),))),
        lambda: changed(MessageStart, 1, message=evolved(HEADER, stop_reason="completed")),
        lambda: changed(MessageEnd, 1, message=evolved(REPLY, model="m-2")),
        lambda: changed(MessageEnd, 1, message=evolved(REPLY, provider=None)),
    ],
    "block-agrees": [
        lambda: changed_delta(TextEnd, block=Text("let me loo")),
        lambda: changed_delta(ThinkingEnd, block=Thinking("hm")),
        lambda: changed_delta(ToolCallEnd, block=ToolCall("c1", "look", '{"a": 2}')),
        lambda: changed_delta(ToolCallEnd, block=ToolCall("c9", "look", '{"a": 1}')),
        lambda: changed_delta(ToolCallEnd, 1, block=ToolCall("c2", "look", "{")),
        lambda: changed_delta(TextDelta, 1, text="loo"),
    ],
    "update-agrees": [
        lambda: changed(MessageUpdate, 3, message=evolved(HEADER, content=(Thinking(""), Text("let me")))),
        lambda: changed(MessageUpdate, 0, message=HEADER),
        lambda: changed(MessageUpdate, 11, message=evolved(HEADER, content=())),
    ],
    "reply-agrees": [
        lambda: changed(MessageEnd, 1, message=evolved(REPLY, content=(Thinking("hm"), *REPLY.content[1:]))),
        lambda: changed(MessageEnd, 1, message=evolved(REPLY, content=(Thinking(""),))),
        lambda: changed(MessageEnd, 5, message=evolved(BROKEN, stop_reason=None)),
    ],
    "request-agrees": [
        lambda: changed(RequestEnd, 2, status="fatal"),
        lambda: changed(RequestEnd, 0, usage=USAGE),
        lambda: changed(RequestEnd, 0, error_code="network"),
    ],
    "usage-agrees": [
        lambda: _with_sum(changed(TokenUsage, request=LOST, session=LOST), LOST + LOST),
        lambda: changed(AgentEnd, usage=USAGE),
        lambda: _with_sum(_with_second_usage(TokenUsage(USAGE, USAGE)), USAGE + USAGE + LOST),
    ],
    "approval-agrees": [
        lambda: changed(ApprovalDecision, arguments="{}"),
        lambda: changed(ToolExecutionStart, arguments="{}"),
        lambda: not_allowed(DELTA),
        lambda: not_allowed(stop_reason="fatal", decision="forbidden"),
    ],
    "progress-agrees": [
        lambda: changed(ToolExecutionUpdate, delta="both"),
        lambda: changed(ToolExecutionUpdate, 1, delta=None),
    ],
    "call-agrees": [
        lambda: changed(ToolExecutionEnd, is_error=True),
        lambda: changed(ToolExecutionEnd, error_code="aborted"),
        lambda: changed(ToolExecutionEnd, error_code="tool_error", stop_reason="aborted"),
        lambda: changed(ToolExecutionEnd, error_code="not_stopped"),
    ],
    "output-agrees": [lambda: changed(ToolExecutionUpdate, 2, delta=" them")],
    "result-agrees": [
        lambda: _with_result(content="found", details={"n": 1}, structured=[1]),
        lambda: _with_result(content="found it", details={"n": 2}, structured=[1]),
        lambda: _with_result(content="found it", details={"n": 1}, structured=None),
        lambda: _with_result(content="found it", details={"n": 1}, structured=[1], is_error=True),
        lambda: _with_result(content="found it", details={"n": 1}, structured=[1], stop_reason="fatal"),
    ],
    "turn-agrees": [
        lambda: changed(TurnEnd, message=None),
        lambda: changed(TurnEnd, tool_results=()),
        lambda: changed(TurnEnd, 1, tool_results=(RESULT,)),
    ],
    "compaction-agrees": [
        lambda: changed(CompactionEnd, reason="context"),
        lambda: changed(CompactionEnd, mode="discard"),
        lambda: changed(CompactionEnd, attempt=2),
        lambda: changed(CompactionEnd, summary=None),
        lambda: changed(CompactionEnd, error_code="malformed"),
        lambda: changed(CompactionEnd, status="fatal"),
    ],
    "summary-first": [
        lambda: changed(MessageStart, 4, message=PROMPT),
        lambda: [event for event in run() if getattr(event, "message", None) is not SUMMARY],
        lambda: changed(AgentEnd, pending_summary=SUMMARY),
        lambda: without_turns(
            AgentEnd(replaces_context=True),
            CompactionBegin("manual", "summarize"),
            ToolListReady(()),
            RequestBegin(),
            RequestEnd(),
            CompactionEnd("manual", "summarize", summary=SUMMARY),
        ),
    ],
    "messages-agree": [
        lambda: changed(AgentEnd, messages=(SUMMARY,)),
        lambda: changed(AgentEnd, messages=(SUMMARY, PROMPT)),
        lambda: changed(AgentEnd, messages=(PROMPT, SUMMARY, BROKEN)),
        lambda: changed(AgentEnd, replaces_context=False),
    ],
    "end-agrees": [
        lambda: changed(AgentEnd, error_code="deadline"),
        lambda: changed(AgentEnd, error_message="because"),
        lambda: changed(AgentEnd, stop_reason="fatal"),
        lambda: [event for event in run() if not isinstance(event, Abort)],
        lambda: without_turns(AgentEnd((), "completed", "max_turns")),
    ],
}


def _with_sum(events: list[Event], usage: Usage) -> list[Event]:
    """The run with another sum at its end."""
    return [*events[:-1], attrs.evolve(events[-1], usage=usage)]


def _with_second_usage(usage: TokenUsage) -> list[Event]:
    """The run with usage in the compaction's request too."""
    events = run()
    place = [place for place, event in enumerate(events) if isinstance(event, RequestEnd)][1]
    return [*events[:place], usage, *events[place:]]


def _with_result(**fields: Any) -> list[Event]:
    message = ToolResultMessage("c1", "look", **fields)
    events = run()
    for place, event in enumerate(events):
        if isinstance(event, MessageStart | MessageEnd) and event.message == RESULT:
            events[place] = type(event)(message)
    return events


CASES = [(rule, number, make) for rule, cases in BREAKAGES.items() for number, make in enumerate(cases)]


def test_the_run_agrees() -> None:
    """The run that the breakages start from passes both levels, its output held against its result."""
    check(run(), outputs_kept=True)


@pytest.mark.parametrize(("rule", "number", "make"), CASES, ids=[f"{rule}-{number}" for rule, number, _ in CASES])
def test_a_value_that_disagrees_names_its_rule(rule: str, number: int, make: Callable[[], list[Event]]) -> None:
    """One value changed: refused by the name of its rule, with what was expected and what came."""
    with pytest.raises(GrammarError) as caught:
        check(make(), outputs_kept=True)
    assert caught.value.rule == rule
    assert re.search(r"expected .*, got |which was not allowed", str(caught.value), re.DOTALL)


def test_a_second_usage_that_adds_up_is_legal() -> None:
    """The session's usage grows by each request's."""
    check(_with_sum(_with_second_usage(TokenUsage(USAGE + USAGE, USAGE)), USAGE + USAGE + LOST))


def test_every_rule_of_values_has_a_breakage() -> None:
    """No rule is only a name."""
    assert set(BREAKAGES) == set(VALUE_RULES)


@given(streams(depth=2))
def test_generated_streams_agree(events: list[Event]) -> None:
    """What the strategies make is consistent, outputs and nested runs included."""
    check(events, outputs_kept=True)


def test_replaced_content_is_taken_unless_nothing_can_replace_it() -> None:
    """Output that differs from the result is legal where an `after_tool_call` may have replaced it."""
    events = changed(ToolExecutionUpdate, 2, delta=" them")
    check(events)
    with pytest.raises(GrammarError, match="output-agrees"):
        check(events, outputs_kept=True)


def test_output_of_an_aborted_call_is_never_replaced() -> None:
    """After an abort no `after_tool_call` begins: what was streamed is the result, whoever asks."""
    end = ToolExecutionEnd("c1", "look", ToolResult("other", is_error=True), True, "aborted", "aborted")
    events = [end if isinstance(event, ToolExecutionEnd) else event for event in run()]
    with pytest.raises(GrammarError, match="output-agrees"):
        check(events)


def test_an_update_without_its_message_is_passed_over() -> None:
    """A decoder of single records may leave the partial message out; then there is nothing to compare."""
    check([MessageUpdate(event.delta) if isinstance(event, MessageUpdate) else event for event in run()])


def test_a_nested_run_agrees_too() -> None:
    """Values of a nested run are held against its own, and the error names its origin."""
    events = run()
    inner = [ChildEvent(("k",), event) for event in run()]
    place = next(place for place, event in enumerate(events) if isinstance(event, ToolExecutionUpdate))
    events[place:place] = [SubagentStarted("k", "c1"), *inner]
    check(events)
    wrong = [ChildEvent(("k",), event) for event in changed(AgentEnd, usage=USAGE)]
    events[place + 1 : place + 1 + len(inner)] = wrong
    with pytest.raises(GrammarError, match=r"in the nested run k: event \d+: usage-agrees"):
        check(events)


def test_a_snapshot_that_changes_later_is_found() -> None:
    """G05: a message that was right when the update came and is another when it is read again is refused."""
    events = run()
    place = next(place for place, event in enumerate(events) if isinstance(event, MessageUpdate))
    held = AssistantMessage((Thinking(""),), provider="scripted", model="m-1")
    events[place] = MessageUpdate(ThinkingStart(0), held)
    checker = ValueChecker()
    for event in events[: place + 1]:
        checker.feed(event)
    object.__setattr__(held, "content", (Thinking("later"),))
    end = next(place for place, event in enumerate(events) if isinstance(event, MessageEnd) and event.message is REPLY)
    for event in events[place + 1 : end]:
        checker.feed(event)
    with pytest.raises(GrammarError, match="read at the reply's end"):
        checker.feed(events[end])


def test_a_long_reply_is_checked_in_linear_time() -> None:
    """A hundred thousand deltas, all with snapshots: looked at now and then, or this would take hours."""
    partial = Partial(HEADER)
    piece = TextDelta(0, "0123456789")
    checker = ValueChecker()
    for event in (AgentStart(), TurnStart(0), RequestBegin(), MessageStart(HEADER), partial.update(TextStart(0))):
        checker.feed(event)
    for _ in range(100_000):
        checker.feed(partial.update(piece))
    text = Text(partial.text)
    checker.feed(partial.update(TextEnd(0, text)))
    message = attrs.evolve(HEADER, content=(text,), stop_reason="completed", finish_reason="stop")
    checker.feed(MessageEnd(message))
    with pytest.raises(GrammarError, match="turn-agrees"):
        checker.feed(TurnEnd())


def test_a_summary_is_of_the_user() -> None:
    """The summary of a completed compaction that no turn took is `pending_summary`, and `messages` starts anew."""
    events = [
        AgentStart(),
        CompactionBegin("manual", "summarize"),
        MessageStart(ASK_SUMMARY),
        MessageEnd(ASK_SUMMARY),
        ToolListReady(()),
        RequestBegin(),
        RequestEnd(),
        CompactionEnd("manual", "summarize", summary=SUMMARY),
        AgentEnd((), replaces_context=True, pending_summary=SUMMARY),
    ]
    check(events)
    assert isinstance(events[-1], AgentEnd)
    assert isinstance(events[-1].pending_summary, UserMessage)
