"""The memory of the checker: what a guard keeps too long, forgets too early, or says wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentloop.errors import GrammarError
from agentloop.events import (
    BlockAdded,
    ChildEvent,
    Event,
    Hook,
    MessageUpdate,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingStart,
    ToolCallDelta,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
)
from agentloop.grammar import VALUE_RULES, Checker, check
from agentloop.messages import Text, ToolCall, ToolResult
from tests.test_grammar import ASKED, CALLED, CHILD, FIRST, SHORT, SQUEEZED, broken_rule, fed, spell

RAN1, RAN2 = "run<c1 run>c1 out<c1 out>c1 ", "run<c2 run>c2 out<c2 out>c2 "
TURN = "turn<0 in< in> tools ask<1 reply< block reply> usage ask>1 turn> "
ORPHAN = SubagentStarted("k")
CHILD_START = SHORT["child"]

LEGAL: dict[str, list[Event]] = {
    "attempts count anew behind a compaction": spell(SQUEEZED + "ask>1 compact> turn<0 ask<1 ask>1 turn> agent>"),
    "and behind one that failed": spell("agent< " + TURN + "compact< ask<1 fail>1 compact! agent>"),
    "usage of an attempt says nothing of the next": [
        *spell(SQUEEZED + "usage ask>1 ask<2"), RequestEnd("fatal", 2), *spell("compact! agent>"),
    ],
    "nor of that of the next turn": spell("agent< " + TURN + "turn<1 ask<1 fail>1 turn> agent>"),
    "a committed attempt of a compaction may announce a wait": [
        *spell(SQUEEZED), RequestEnd("completed", 1, 2000), *spell("compact> agent>"),
    ],
    "calls of an uncommitted reply of a compaction need no answer": spell(
        SQUEEZED + "reply< calls reply> fail>1 compact! agent>"
    ),
    "calls of a reply are those of one attempt": [
        *spell(ASKED + "reply< block calls2 reply> wait>1 ask<2"), RequestEnd("completed", 2), *spell("turn> agent>"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_over_does_not_bind_what_comes(name: str) -> None:
    """Attempts, usage, announcements and calls are of one turn, one compaction or one attempt."""
    assert broken_rule(LEGAL[name]) is None


BROKEN: dict[str, tuple[str, list[Event]]] = {
    "a hook of an open call without id, first": ("call-known", [*spell(FIRST), Hook("pre_tool_use", "h")]),
    "a hook of an open call without id, later": ("call-known", [*spell(FIRST + "run<c1"), Hook("pre_tool_use", "h")]),
    "another name than an open call began with": (
        "call-known", [*spell(FIRST + "run<c1"), ToolExecutionUpdate("c1", "add", delta="x")],
    ),
    "another name than an open call was asked about by": (
        "call-known", [*spell(FIRST + "may.c1"), ToolExecutionStart("c1", "add", "{}")],
    ),
    "a nested run of no call, in the next turn": (
        "child-place",
        [*spell(CALLED + "run<c1"), ORPHAN, *spell("run>c1 out<c1 out>c1 " + RAN2),
         *spell("turn> turn<1 ask<1 reply<"), MessageUpdate(BlockAdded(0, ToolCall("c3", "look", "{}"))),
         *spell("reply> ask>1"), ToolExecutionStart("c3", "look", "{}"), CHILD_START],
    ),
    "a nested run of no call, while a result of the run between is due": (
        "child-place",
        [*spell(CALLED + "run<c1 sub.c1"),
         *[ChildEvent(("k",), event) for event in [*spell(CALLED + "run<c1 run<c2"), SubagentStarted("l"), SHORT["run>c1"]]],
         ChildEvent(("k", "l"), SHORT["agent<"])],
    ),
    "a nested run goes on after its end": (
        "run-end",
        [*spell(CALLED + "run<c1 sub.c1"), *[ChildEvent(("k",), event) for event in [*CHILD, SHORT["turn<1"]]]],
    ),
    "a nested session that ran twice, after its call": (
        "child-place",
        [*spell(CALLED + "run<c1 run<c2 sub.c2"), *[ChildEvent(("k",), event) for event in [*CHILD, *CHILD]],
         SHORT["run>c2"], CHILD_START],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_no_longer_holds_is_refused(name: str) -> None:
    """Ids, names and nested runs hold as long as their call, their turn and their run, and no longer."""
    rule, events = BROKEN[name]
    fed(events[:-1])
    assert broken_rule(events) == rule


@pytest.mark.parametrize(
    ("opening", "delta_class"),
    [(TextStart(0), TextDelta), (ThinkingStart(0), ThinkingDelta), (ToolCallStart(0, "c1", "look"), ToolCallDelta)],
)
def test_the_open_block_is_told(opening: TextStart | ThinkingStart | ToolCallStart, delta_class: type) -> None:
    """A hot path reads the class of the open block's deltas and its index: None between blocks."""
    checker = fed(spell(ASKED + "reply<"))
    assert checker.open_delta_class is None
    checker.feed(MessageUpdate(opening))
    assert (checker.open_delta_class, checker.open_index) == (delta_class, 0)
    checker = fed([*spell(ASKED + "reply<"), MessageUpdate(TextStart(0)), MessageUpdate(TextEnd(0, Text("")))])
    assert checker.open_delta_class is None


def refused(events: Sequence[Event]) -> str:
    """The words of the error that the last event brings."""
    checker: Checker = fed(events[:-1])
    with pytest.raises(GrammarError) as caught:
        checker.feed(events[-1])
    return str(caught.value)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (spell(CALLED + RAN1 + "turn>"), "TurnEnd: expected first the results of 'c2'"),
        (spell(CALLED + RAN1 + "agent>"), "got AgentEnd (state 'turn calls'; 1 turns so far; calls without result: 'c2')"),
        ([*spell(ASKED + "reply<"), MessageUpdate(TextDelta(0, "x"))], "between blocks: expected TextStart"),
        ([*spell(ASKED + "reply<"), MessageUpdate(TextStart(0)), MessageUpdate(TextStart(1))],
         "in block 0 (text): expected TextDelta, TextEnd, got TextStart"),
        ([*spell(ASKED + "reply<"), MessageUpdate(TextStart(0)), SHORT["reply>"]],
         "expected TextDelta, TextEnd in block 0"),
        ([*spell(ASKED + "reply<"), MessageUpdate(TextStart(0)), SHORT["agent>"]],
         "(state 'turn replying'; 1 turns so far; block 0 is open)"),
        ([*spell(CALLED + RAN1), ToolExecutionEnd("c1", "look", ToolResult("x"))],
         "call 'c1' (answered): expected nothing, got ToolExecutionEnd"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_open(events: list[Event], words: str) -> None:
    """The calls that miss their results and no others; the block that is open, or that none is."""
    assert words in refused(events)


def test_the_checks_are_strict_unless_they_are_told_otherwise() -> None:
    """Values are checked, and nothing that only a trace leaves out is let pass, by `Checker` and by `check`."""
    empty_reply = spell(ASKED + "reply< reply>")
    with pytest.raises(GrammarError, match="reply-content"):
        fed_by_default(empty_reply)
    with pytest.raises(GrammarError, match="run-end"):
        check(spell("agent< compact< in< in> tools ask<1 usage ask>1 compact>"), values=False)
    wrong_value = spell("agent< " + TURN + "agent>")
    check(wrong_value, values=False)
    with pytest.raises(GrammarError) as caught:
        check(wrong_value)
    assert caught.value.rule in VALUE_RULES


def fed_by_default(events: Sequence[Event]) -> None:
    checker = Checker()
    for event in events:
        checker.feed(event)


def test_the_end_of_a_stream_is_the_place_behind_its_last_event() -> None:
    """Counted from 0, as all places are."""
    with pytest.raises(GrammarError) as caught:
        check(spell(FIRST), values=False)
    assert (caught.value.rule, caught.value.position) == ("run-end", 2)
