"""The order of events: every pair of state and event, every rule, generated streams and their mutations."""

from __future__ import annotations

import copy
import re
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Config, Context, agent_loop
from agentloop.errors import GrammarError
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Foreign,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
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
from agentloop.grammar import (
    BLOCK_STATES,
    CALL_STATES,
    EVENT_RULES,
    ORDER,
    ORDER_RULES,
    RULES,
    VALUE_RULES,
    Checker,
    ValueChecker,
    check,
    picture,
)
from agentloop.messages import AssistantMessage, Text, ToolCall, ToolResult, ToolResultMessage, Usage, assistant, user
from agentloop.model import BlockEnd, ToolCallChunk
from agentloop.omni.codec import trace_view
from agentloop.testing import CUT, ScriptedModel, collect_sync
from agentloop.testing.strategies import streams

HI = user("hi")
DRAFT = AssistantMessage(())
ZERO = Usage()

# ---------------------------------------------------------------- a shorthand for events

SHORT: dict[str, Event] = {
    "agent<": AgentStart(),
    "agent>": AgentEnd(),
    "turn<0": TurnStart(0),
    "turn<1": TurnStart(1),
    "turn>": TurnEnd(),
    "in<": MessageStart(HI),
    "in>": MessageEnd(HI),
    "mcp<": McpConnectBegin(("files",)),
    "mcp>": McpConnectEnd("completed"),
    "tools": ToolListReady(()),
    "ask<1": RequestBegin(1),
    "ask<2": RequestBegin(2),
    "ask>1": RequestEnd("completed", 1),
    "fail>1": RequestEnd("fatal", 1),
    "wait>1": RequestEnd("retryable", 1, 2000),
    "reply<": MessageStart(DRAFT),
    "block": MessageUpdate(BlockAdded(0, Text("a"))),
    "calls": MessageUpdate(BlockAdded(0, ToolCall("c1", "look", "{}"))),
    "calls2": MessageUpdate(BlockAdded(1, ToolCall("c2", "look", "{}"))),
    "reply>": MessageEnd(assistant("a")),
    "usage": TokenUsage(ZERO, ZERO),
    "hook.prompt": Hook("user_prompt", "h"),
    "hook.stop": Hook("stop", "h"),
    "compact<": CompactionBegin("turns", "summarize"),
    "compact>": CompactionEnd("turns", "summarize"),
    "compact!": CompactionEnd("turns", "summarize", "fatal"),
    "abort": Abort("user_abort"),
}
for _id in ("c1", "c2"):
    _result = ToolResultMessage(_id, "look", "x")
    SHORT |= {
        f"hook.{_id}": Hook("pre_tool_use", "h", tool_call_id=_id),
        f"may.{_id}": ApprovalRequest(_id, "look", "{}"),
        f"yes.{_id}": ApprovalDecision("allow", _id),
        f"run<{_id}": ToolExecutionStart(_id, "look", "{}"),
        f"run.{_id}": ToolExecutionUpdate(_id, "look", delta="x"),
        f"run>{_id}": ToolExecutionEnd(_id, "look", ToolResult("x")),
        f"out<{_id}": MessageStart(_result),
        f"out>{_id}": MessageEnd(_result),
        f"sub.{_id}": SubagentStarted("k", _id),
    }
SHORT["child"] = ChildEvent(("k",), AgentStart())


def spell(words: str) -> list[Event]:
    """Events from their shorthand."""
    return [SHORT[word] for word in words.split()]


def fed(events: Iterable[Event]) -> Checker:
    """A checker that has taken these events."""
    checker = Checker()
    for event in events:
        checker.feed(event)
    return checker


def broken_rule(events: Sequence[Event], *, trace: bool = False) -> str | None:
    """The rule that a stream breaks, None if it is legal and complete."""
    try:
        check(events, values=False, trace=trace)
    except GrammarError as error:
        return error.rule
    return None


# ---------------------------------------------------------------- every state, every event

FIRST = "agent< turn<0 "
ASKED = FIRST + "in< in> tools ask<1 "
CALLED = ASKED + "reply< calls calls2 reply> ask>1 "
SQUEEZED = "agent< compact< in< in> tools ask<1 "
SQUEEZED_CALLED = SQUEEZED + "reply< calls calls2 reply> ask>1 "
BEGIN1 = "hook.c1 may.c1 yes.c1 run<c1 "
BEGIN2 = "hook.c2 may.c2 yes.c2 run<c2 "
BEGIN = BEGIN1 + BEGIN2
OVER = "abort agent> "
ATTEMPT = "tools ask<1 "

PLACES: dict[str, tuple[str, str, str]] = {
    # what came before · the state then · what may come now
    "nothing": ("", "start", "agent<"),
    "after the start": ("agent<", "fresh", "turn<0 compact< " + OVER),
    "the first turn": (FIRST, "first", "in< out<c1 out<c2 mcp< tools turn> " + BEGIN),
    "the first turn, listed": (FIRST + "tools", "first listed", "ask<1 turn> " + BEGIN),
    "the first turn, connecting": (FIRST + "mcp<", "first connecting", "mcp>"),
    "the first turn, connected": (FIRST + "mcp< mcp>", "first connected", "tools turn> " + BEGIN),
    "an open call runs": (FIRST + "run<c1 sub.c1", "first calls", "run.c1 run>c1 sub.c1 child " + BEGIN2),
    "an open call has ended": (FIRST + "run<c1 run>c1", "first answer", "out<c1"),
    "an open call's result": (FIRST + "run<c1 run>c1 out<c1", "first answering", "out>c1"),
    "open calls are done": (FIRST + "run<c1 run>c1 out<c1 out>c1", "first calls", "turn> " + BEGIN2),
    "after open calls": (FIRST + "run<c1 run>c1 out<c1 out>c1 turn>", "opened", "turn<1 compact< " + OVER),
    "an input": (FIRST + "in<", "turn input", "in>"),
    "after an input": (FIRST + "in< in>", "turn given", "in< out<c1 out<c2 hook.prompt mcp< tools turn>"),
    "connecting": (FIRST + "in< in> mcp<", "turn connecting", "mcp>"),
    "connected": (FIRST + "in< in> mcp< mcp>", "turn connected", "tools turn>"),
    "listed": (FIRST + "in< in> tools", "turn listed", "ask<1"),
    "asking": (ASKED, "turn asking", "reply< usage ask>1 fail>1 wait>1"),
    "replying": (ASKED + "reply<", "turn replying", "block calls"),
    "replying, with a block": (ASKED + "reply< block", "turn replying", "calls2 reply>"),
    "replied": (ASKED + "reply< block reply>", "turn replied", "usage ask>1 fail>1 wait>1"),
    "counted": (ASKED + "reply< block reply> usage", "turn counted", "ask>1"),
    "committed without calls": (ASKED + "reply< block reply> ask>1", "turn asked", "turn>"),
    "to be retried": (ASKED + "wait>1", "turn asked", "tools ask<2 turn>"),
    "not to be retried": (ASKED + "fail>1", "turn asked", "turn>"),
    "committed with calls": (CALLED, "turn asked", BEGIN),
    "broken off with calls": (ASKED + "reply< calls calls2 reply> fail>1", "turn asked", "run<c1 run<c2"),
    "to be retried, with calls": (
        ASKED + "reply< calls calls2 reply> wait>1", "turn asked", "tools ask<2 run<c1 run<c2",
    ),
    "a call runs": (CALLED + "run<c1 sub.c1", "turn calls", "run.c1 run>c1 sub.c1 child " + BEGIN2),
    "a later call has ended": (CALLED + "run<c2 run>c2", "turn calls", BEGIN1),
    "a call has ended": (CALLED + "run<c1 run>c1", "turn answer", "out<c1"),
    "a result": (CALLED + "run<c1 run>c1 out<c1", "turn answering", "out>c1"),
    "a result, the next is due": (
        CALLED + "run<c2 run>c2 run<c1 run>c1 out<c1 out>c1", "turn answer", "out<c2",
    ),
    "all calls are done": (
        CALLED + "run<c1 run>c1 out<c1 out>c1 run<c2 run>c2 out<c2 out>c2", "turn calls", "turn>",
    ),
    "after a turn": (ASKED + "ask>1 turn>", "between", "hook.stop turn<1 compact< " + OVER),
    "after a turn without a request": (FIRST + "in< in> turn>", "last", "hook.stop compact< " + OVER),
    "compaction after that": (FIRST + "turn> compact< compact>", "closing", OVER),
    "a later turn": (ASKED + "ask>1 turn> turn<1", "turn", "in< out<c1 out<c2 mcp< tools ask<1 turn>"),
    "compaction": ("agent< compact<", "compaction", "mcp< in< out<c1 out<c2 tools compact> compact!"),
    "compaction, connecting": ("agent< compact< mcp<", "compaction connecting", "mcp>"),
    "compaction, connected": (
        "agent< compact< mcp< mcp>", "compaction connected", "in< out<c1 out<c2 tools compact> compact!",
    ),
    "compaction, an input": ("agent< compact< in<", "compaction input", "in>"),
    "compaction, after an input": ("agent< compact< in< in>", "compaction given", "in< out<c1 out<c2 tools"),
    "compaction, listed": ("agent< compact< in< in> tools", "compaction listed", "ask<1"),
    "compaction, asking": (SQUEEZED, "compaction asking", "reply< usage ask>1 fail>1 wait>1"),
    "compaction, replying": (SQUEEZED + "reply< block", "compaction replying", "calls2 reply>"),
    "compaction, replied": (SQUEEZED + "reply< block reply>", "compaction replied", "usage ask>1 fail>1 wait>1"),
    "compaction, counted": (SQUEEZED + "usage", "compaction counted", "ask>1"),
    "compaction, committed": (
        SQUEEZED + "ask>1", "compaction asked", "in< out<c1 out<c2 tools ask<2 compact> compact!",
    ),
    "compaction, failed": (SQUEEZED + "fail>1", "compaction asked", "in< out<c1 out<c2 compact> compact!"),
    "compaction, with calls": (SQUEEZED_CALLED, "compaction asked", BEGIN),
    "compaction, a call runs": (
        SQUEEZED_CALLED + "run<c1 sub.c1", "compaction calls", "run.c1 run>c1 sub.c1 child " + BEGIN2,
    ),
    "compaction, a call has ended": (SQUEEZED_CALLED + "run<c1 run>c1", "compaction answer", "out<c1"),
    "compaction, a result": (SQUEEZED_CALLED + "run<c1 run>c1 out<c1", "compaction answering", "out>c1"),
    "compaction, calls are done": (
        SQUEEZED_CALLED + "run<c1 run>c1 out<c1 out>c1 run<c2 run>c2 out<c2 out>c2",
        "compaction calls",
        "in< tools ask<2 compact> compact!",
    ),
    "after a compaction": ("agent< compact< compact>", "compacted", "turn<0 " + OVER),
    "after one given up": ("agent< compact< compact!", "closing", OVER),
    "after an abort": ("agent< abort", "aborted", "agent>"),
    "the end": ("agent< agent>", "over", ""),
}  # fmt: skip


def refusal(prefix: Iterable[Event], event: Event) -> str | None:
    """The rule by which an event is refused behind others, None if it may come."""
    checker = fed(prefix)
    try:
        checker.feed(event)
    except GrammarError as error:
        return error.rule
    return None


def _legal_in(prefix: Sequence[Event]) -> set[str]:
    refusals = {word: refusal(prefix, event) for word, event in SHORT.items()}
    assert set(refusals.values()) <= {None, *ORDER_RULES}
    return {word for word, rule in refusals.items() if rule is None}


@pytest.mark.parametrize("place", PLACES)
def test_every_event_in_every_state(place: str) -> None:
    """In each state exactly the events may come that a hand-written table says."""
    before, state, may = PLACES[place]
    assert fed(spell(before)).state == state
    assert _legal_in(spell(before)) == set(may.split())


def test_the_places_cover_all_states() -> None:
    """The hand-written table leaves out no state of a run."""
    assert {state for _, state, _ in PLACES.values()} == set(ORDER)


CALL_PLACES = {
    "": ("called", "hook may yes run<"),
    "hook": ("called", "hook may yes run<"),
    "may": ("asked", "yes run<"),
    "yes": ("decided", "run<"),
    "may yes": ("decided", "run<"),
    "run<": ("running", "run. run> sub"),
    "run< run.": ("running", "run. run> sub"),
    "run< sub": ("running", "run. run> sub child"),
    "run< run>": ("ended", "out<"),
    "run< run> out<": ("answering", "out>"),
    "run< run> out< out>": ("answered", ""),
}
CALL_WORDS = {
    "hook": "hook.c1", "may": "may.c1", "yes": "yes.c1", "run<": "run<c1", "run.": "run.c1", "sub": "sub.c1",
    "child": "child", "run>": "run>c1", "out<": "out<c1", "out>": "out>c1",
}  # fmt: skip


@pytest.mark.parametrize("before", CALL_PLACES)
def test_every_event_in_every_state_of_a_call(before: str) -> None:
    """A call is hooks, approval, start, updates, end, result: each event in each of its states."""
    prefix = spell(CALLED + " ".join(CALL_WORDS[word] for word in before.split()))
    _, may = CALL_PLACES[before]
    assert {word for word, short in CALL_WORDS.items() if short in _legal_in(prefix)} == set(may.split())


def test_the_places_cover_all_states_of_a_call() -> None:
    """The hand-written table of calls leaves out no state."""
    assert {state for state, _ in CALL_PLACES.values()} == set(CALL_STATES)


DELTAS: dict[str, Any] = {
    "text<": TextStart, "text.": TextDelta, "text>": TextEnd,
    "think<": ThinkingStart, "think.": ThinkingDelta, "think>": ThinkingEnd,
    "call<": ToolCallStart, "call.": ToolCallDelta, "call>": ToolCallEnd, "whole": BlockAdded,
}  # fmt: skip
BLOCK_PLACES = {
    "closed": ("", "text< think< call< whole"),
    "text": ("text<", "text. text>"),
    "thinking": ("think<", "think. think>"),
    "call": ("call<", "call. call>"),
}


def _delta(word: str, index: int) -> MessageUpdate:
    kind = DELTAS[word]
    rest: dict[str, tuple[Any, ...]] = {
        "text.": ("x",), "think.": ("x",), "call.": ("x",), "call<": (f"c{index}", "look"),
        "text>": (Text("x"),), "think>": (Text("x"),), "call>": (ToolCall(f"c{index}", "look", "x"),),
        "whole": (Text("x"),),
    }  # fmt: skip
    return MessageUpdate(kind(index, *rest.get(word, ())))


@pytest.mark.parametrize("state", BLOCK_PLACES)
def test_every_delta_in_every_state_of_a_block(state: str) -> None:
    """Between blocks one may start, in a block its own deltas and end may come; with the right index only."""
    opened, may = BLOCK_PLACES[state]
    prefix = [*spell(ASKED + "reply<"), _delta("whole", 0), *[_delta(one, 1) for one in opened.split()]]
    refusals = {(word, index): refusal(prefix, _delta(word, index)) for word in DELTAS for index in (0, 1, 2)}
    assert set(refusals.values()) == {None, "block-order", "block-index"}
    legal = {at for at, rule in refusals.items() if rule is None}
    assert legal == {(word, 1) for word in may.split()}
    assert set(BLOCK_PLACES) == set(BLOCK_STATES)


# ---------------------------------------------------------------- rules have names

BREAKAGES: dict[str, list[tuple[str, list[Event] | str]]] = {
    "known-event": [
        ("not an event", [AgentStart(), object()]),  # type: ignore[list-item]
        ("not a delta", [*spell(ASKED + "reply<"), MessageUpdate("text")]),  # type: ignore[arg-type]
    ],
    "run-start": [("no start", "turn<0"), ("a second start", "agent< agent<"), ("only foreign", "turn>")],
    "run-end": [
        ("after the end", "agent< agent> agent>"),
        ("no end", "agent<"),
        ("an end in a turn", FIRST + "agent>"),
        ("cut in a reply", ASKED + "reply< block"),
    ],
    "abort-last": [("an abort in a turn", FIRST + "abort"), ("a turn after it", "agent< abort turn<0")],
    "turn-place": [("nested turns", FIRST + "in< in> turn<1"), ("an end too many", "agent< turn>")],
    "turn-index": [("from one", "agent< turn<1"), ("twice the same", ASKED + "ask>1 turn> turn<0")],
    "turn-last": [
        ("after a turn without a request", FIRST + "in< in> turn> turn<1"),
        ("after a given up compaction", "agent< compact< compact! turn<0"),
    ],
    "compaction-place": [
        ("in a turn", FIRST + "compact<"),
        ("two adjacent", "agent< compact< compact> compact<"),
        ("an end without begin", "agent< compact>"),
    ],
    "message-pair": [
        ("an input without end", FIRST + "in< tools"),
        ("an end without start", FIRST + "in>"),
        ("a result without end", CALLED + "run<c1 run>c1 out<c1 run<c2"),
        ("another result's end", CALLED + "run<c1 run<c2 run>c1 out<c1 out>c2"),
    ],
    "input-place": [
        ("after connecting", FIRST + "mcp< mcp> in<"),
        ("after a request", ASKED + "ask>1 in<"),
        ("between turns", "agent< in<"),
    ],
    "connect-place": [
        ("twice", "agent< compact< mcp< mcp> compact> turn<0 mcp<"),
        ("after a request", ASKED + "ask>1 mcp<"),
    ],
    "connect-pair": [("no end", FIRST + "mcp< tools"), ("no begin", FIRST + "mcp>")],
    "tools-place": [
        ("never", FIRST + "in< in> ask<1"),
        ("no request behind", FIRST + "in< in> tools turn>"),
        ("between turns", "agent< tools"),
    ],
    "request-place": [("between turns", "agent< ask<1"), ("after calls", CALLED + "run<c1 ask<2")],
    "request-pair": [
        ("no end", ASKED + "turn>"), ("no begin", FIRST + "ask>1"), ("twice", ASKED + "ask<1"),
        ("a tool runs in it", ASKED + "reply< calls reply> run<c1"),
    ],
    "attempt-number": [
        ("begins at two", FIRST + "tools ask<2"),
        ("counts on", ASKED + "wait>1 ask<1"),
        ("another's end", [*spell(ASKED), RequestEnd("completed", 2)]),
    ],
    "retry-announced": [
        ("after a commit", ASKED + "ask>1 ask<2"),
        ("not announced", ASKED + "fail>1 tools"),
        ("announced by a commit", [*spell(ASKED), RequestEnd("completed", 1, 2000)]),
        ("announced by an abort", [*spell(ASKED), RequestEnd("aborted", 1, 2000)]),
        ("in a compaction", [*spell(SQUEEZED), RequestEnd("fatal", 1, 2000)]),
    ],
    "usage-place": [
        ("before a failure", ASKED + "usage fail>1"),
        ("something between", ASKED + "usage turn>"),
        ("outside", FIRST + "usage"),
    ],
    "reply-place": [("outside of a request", FIRST + "reply<"), ("between turns", "agent< reply<")],
    "reply-open": [
        ("not closed", ASKED + "reply< block ask>1"),
        ("an update outside", FIRST + "block"),
        ("an end outside", FIRST + "reply>"),
    ],
    "reply-content": [("empty", ASKED + "reply< reply>")],
    "block-order": [
        ("not closed", [*spell(ASKED + "reply<"), _delta("text<", 0), SHORT["reply>"]]),
        ("another's delta", [*spell(ASKED + "reply<"), _delta("text<", 0), _delta("think.", 0)]),
        ("two at once", [*spell(ASKED + "reply<"), _delta("text<", 0), _delta("text<", 1)]),
    ],
    "block-index": [
        ("from one", [*spell(ASKED + "reply<"), _delta("text<", 1)]),
        ("a gap", [*spell(ASKED + "reply< block"), _delta("text<", 2)]),
        ("another's delta", [*spell(ASKED + "reply< block"), _delta("text<", 1), _delta("text.", 0)]),
        ("another's end", [*spell(ASKED + "reply< block"), _delta("text<", 1), _delta("text>", 0)]),
    ],
    "call-place": [
        ("after inputs", FIRST + "in< in> run<c1"),
        ("between turns", "agent< run<c1"),
    ],
    "call-unique": [
        ("twice in a reply", [*spell(ASKED + "reply< calls"), MessageUpdate(BlockAdded(1, ToolCall("c1", "look")))]),
        ("that of a cut call", [*spell(ASKED + "reply<"), *[_delta("call<", 0), MessageUpdate(
            ToolCallEnd(0, ToolCall("c0", "look"), "aborted"))], MessageUpdate(ToolCallStart(1, "c0", "look"))]),
        ("that of an open call", FIRST + "run<c1 run>c1 out<c1 out>c1 turn> turn<1 tools ask<1 reply< calls"),
    ],
    "call-known": [
        ("of no reply", [*spell(CALLED), ToolExecutionStart("c9", "look", "{}")]),
        ("another name", [*spell(CALLED), ToolExecutionStart("c1", "add", "{}")]),
        ("another name at the end", [*spell(CALLED + "run<c1"), ToolExecutionEnd("c1", "add", ToolResult("x"))]),
        ("another name in a question", [*spell(CALLED), ApprovalRequest("c1", "add", "{}")]),
        ("another name in progress", [*spell(CALLED + "run<c1"), ToolExecutionUpdate("c1", "add", delta="x")]),
        ("another name in its result", [*spell(CALLED + "run<c1 run>c1"),
                                        MessageStart(ToolResultMessage("c1", "add", "x"))]),
        ("another name at its result's end", [*spell(CALLED + "run<c1 run>c1 out<c1"),
                                              MessageEnd(ToolResultMessage("c1", "add", "x"))]),
        ("a hook of no call", [*spell(CALLED), Hook("pre_tool_use", "h")]),
        ("a cut call", [*spell(ASKED + "reply<"), _delta("call<", 0), MessageUpdate(
            ToolCallEnd(0, ToolCall("c0", "look"), "aborted")), *spell("reply> fail>1"),
            ToolExecutionStart("c0", "look", "")]),
        ("an earlier attempt's", [*spell(ASKED + "reply< calls reply> wait>1 ask<2"), RequestEnd("completed", 2),
                                  SHORT["run<c1"]]),
        ("an open call that never began", FIRST + "run<c1 run.c2"),
    ],
    "call-order": [
        ("not started", CALLED + "may.c1 run.c1"),
        ("started twice", CALLED + "run<c1 run<c1"),
        ("a hook after the start", CALLED + "run<c1 hook.c1"),
        ("an update after the end", CALLED + "run<c1 run<c2 run>c2 run.c2"),
        ("a nested run of none", [*spell(CALLED + "hook.c1"), SubagentStarted("k")]),
    ],
    "call-turns": [("a later call first", CALLED + "may.c2 may.c1"), ("a hook too late", CALLED + "hook.c2 hook.c1")],
    "call-unrun": [
        ("asked", ASKED + "reply< calls reply> fail>1 may.c1"),
        ("progress", ASKED + "reply< calls reply> fail>1 run<c1 run.c1"),
    ],
    "call-answered": [
        ("not at all", CALLED + "turn>"),
        ("not all", CALLED + "run<c1 run>c1 out<c1 out>c1 turn>"),
        ("of a reply that broke off", ASKED + "reply< calls reply> fail>1 turn>"),
        ("in the wait", ASKED + "reply< calls reply> wait>1 turn>"),
        ("in a compaction", SQUEEZED_CALLED + "in<"),
        ("before a compaction's end", SQUEEZED_CALLED + "compact>"),
        ("an open call that was asked about", FIRST + "may.c1 turn>"),
    ],
    "result-place": [
        ("too early", CALLED + "run<c1 out<c1"),
        ("too late", CALLED + "run<c1 run<c2 run>c1 run.c2"),
        ("not in order", CALLED + "run<c1 run<c2 run>c1 out<c2"),
        ("twice", CALLED + "run<c1 run>c1 out<c1 out>c1 out<c1"),
        ("in a compaction, twice", SQUEEZED + "reply< calls reply> ask>1 run<c1 run>c1 out<c1 out>c1 out<c1"),
    ],
    "hook-place": [
        ("a prompt's without one", FIRST + "hook.prompt"),
        ("at the run's end", "agent< hook.stop"),
        ("a call's after the turn", ASKED + "ask>1 turn> hook.c1"),
        ("after open calls", FIRST + "run<c1 run>c1 out<c1 out>c1 turn> hook.stop"),
    ],
    "child-place": [
        ("not announced", CALLED + "run<c1 child"),
        ("after its call", CALLED + "run<c1 run<c2 sub.c2 run>c2 child"),
        ("no origin", [*spell(CALLED + "run<c1 sub.c1"), ChildEvent((), AgentStart())]),
        ("another's", CALLED + "run<c1 run<c2 sub.c1 sub.c2"),
        ("not flat", [*spell(CALLED + "run<c1 sub.c1"), ChildEvent(("k",), ChildEvent(("l",), AgentStart()))]),
        ("outside of calls", "agent< child"),
    ],
}  # fmt: skip
CASES = [(rule, name, events) for rule, cases in BREAKAGES.items() for name, events in cases]


@pytest.mark.parametrize(("rule", "name", "events"), CASES, ids=[f"{rule}: {name}" for rule, name, _ in CASES])
def test_a_breakage_names_its_rule(rule: str, name: str, events: list[Event] | str) -> None:
    """What breaks a rule is refused by the name of that rule."""
    assert broken_rule(spell(events) if isinstance(events, str) else events) == rule


def test_every_rule_has_a_breakage() -> None:
    """No rule is only a name: each has a stream that breaks it, and every name that a table uses is a rule."""
    assert set(BREAKAGES) == set(ORDER_RULES)
    assert set(EVENT_RULES.values()) <= set(ORDER_RULES)
    assert {state.rule for state in ORDER.values() if state.rule} <= set(ORDER_RULES)
    assert set(RULES) == set(ORDER_RULES) | set(VALUE_RULES)


def test_every_event_has_a_rule_for_standing_anywhere() -> None:
    """An event that is out of place is refused by a rule whatever the state, none by an accident."""
    for kind in set(get_args(Event)) - {Foreign}:
        spellings = {kind.__name__, f"{kind.__name__}(input)", f"{kind.__name__}(reply)"}
        assert spellings & set(EVENT_RULES), kind


def test_the_error_says_what_was_expected_what_came_and_where() -> None:
    """An error is of use to who reads it: position, state, expected and got, and the calls that are open."""
    with pytest.raises(GrammarError) as caught:
        check(spell(CALLED + "run<c1 agent>"), values=False)
    assert caught.value.position == 12
    text = str(caught.value)
    assert "event 12: run-end: expected " in text
    assert "got AgentEnd" in text
    assert "'turn calls'" in text
    assert "calls without result: 'c1', 'c2'" in text


# ---------------------------------------------------------------- one event left out (C003)

LOOK = "let me look"
CALL = ToolCall("c1", "look", "{}")


def _with_a_tool() -> list[Event]:
    """Two turns: text and a call, then text."""
    deltas = [
        TextStart(0), TextDelta(0, LOOK), TextEnd(0, Text(LOOK)),
        ToolCallStart(1, "c1", "look"), ToolCallDelta(1, "{}"), ToolCallEnd(1, CALL),
    ]  # fmt: skip
    return [
        *spell("agent< turn<0 in< in> tools ask<1 reply<"),
        *[MessageUpdate(delta) for delta in deltas],
        MessageEnd(assistant(LOOK, CALL)),
        *spell("usage ask>1 run<c1 run>c1 out<c1 out>c1 turn> turn<1 ask<1 reply<"),
        *[MessageUpdate(delta) for delta in (TextStart(0), TextDelta(0, "done"), TextEnd(0, Text("done")))],
        *spell("reply> ask>1 turn> agent>"),
    ]


def starts_or_ends(event: Event) -> bool:
    """Whether an event opens or closes something."""
    name = type(event.delta if isinstance(event, MessageUpdate) else event).__name__
    return name.endswith(("Start", "Begin", "End"))


def test_a_text_block_closes_before_a_tool_starts() -> None:
    """C003: the stream is legal, and with any one start or end taken out it is not."""
    events = _with_a_tool()
    assert broken_rule(events) is None
    places = [place for place, event in enumerate(events) if starts_or_ends(event)]
    assert len(places) == 26
    assert [place for place in places if broken_rule(events[:place] + events[place + 1 :]) is None] == []


@given(streams(), st.data())
def test_no_start_or_end_can_be_left_out(events: list[Event], data: st.DataObject) -> None:
    """Of any legal stream: without one of its starts or ends it is refused."""
    places = [place for place, event in enumerate(events) if starts_or_ends(event)]
    place = data.draw(st.sampled_from(places))
    assert broken_rule(events[:place] + events[place + 1 :]) in ORDER_RULES


# ---------------------------------------------------------------- generated streams


@given(streams(foreign=True, depth=2))
def test_generated_streams_are_legal(events: list[Event]) -> None:
    """What the strategies make passes, with nested runs and unknown records; and so does every beginning of it."""
    assert broken_rule(events) is None
    for place in range(0, len(events), 7):
        complete = any(isinstance(event, AgentEnd) for event in events[:place])
        assert broken_rule(events[:place]) == (None if complete else "run-end")


@given(streams(), st.data())
def test_a_copied_checker_goes_on_by_itself(events: list[Event], data: st.DataObject) -> None:
    """A deep copy at any point: what is fed to one is nothing to the other, and both know what may come."""
    at = data.draw(st.integers(0, len(events)))
    for made in (Checker(), ValueChecker()):
        for event in events[:at]:
            made.feed(event)
        for checker in (copy.deepcopy(made), made):
            for event in events[at:]:
                checker.feed(event)
            checker.finish()


@given(streams())
def test_the_inline_test_of_a_hot_path_is_the_table(events: list[Event]) -> None:
    """Who lets deltas of the open block pass by the two public attributes loses and gains nothing."""
    checker, inline = Checker(), Checker()
    for event in events:
        delta = event.delta if isinstance(event, MessageUpdate) else None
        if delta is not None and type(delta) is inline.open_delta_class and delta.index == inline.open_index:
            inline.position += 1
        else:
            inline.feed(event)
        checker.feed(event)
        seen = (checker.state, checker.position, checker.open_delta_class, checker.open_index)
        assert (inline.state, inline.position, inline.open_delta_class, inline.open_index) == seen
    inline.finish()


# ---------------------------------------------------------------- nested runs, traces, memory, picture

CHILD = spell("agent< turn<0 in< in> tools ask<1 reply< block reply> ask>1 turn> agent>")


def _nested(*streams_of: tuple[tuple[str, ...], Sequence[Event]]) -> list[Event]:
    inner = [ChildEvent(origin, event) for origin, events in streams_of for event in events]
    return [*spell(CALLED + "run<c2 run<c1 sub.c1"), *inner]


def test_a_nested_run_obeys_the_grammar_too() -> None:
    """Each origin's own stream is checked; the error names origin and rule."""
    checker = fed(_nested((("k",), CHILD)))
    checker.feed(SHORT["run>c1"])
    with pytest.raises(GrammarError, match=r"in the nested run k: event 2: turn-place") as caught:
        fed(_nested((("k",), spell("agent< turn<0 turn<1"))))
    assert caught.value.rule == "turn-place"


def test_a_nested_run_may_be_cut_and_may_run_again() -> None:
    """A call's end cuts its nested runs; a nested session may run again, but only after its end."""
    fed([*_nested((("k",), CHILD[:5])), SHORT["run>c1"]])
    fed(_nested((("k",), CHILD), (("k",), CHILD)))
    with pytest.raises(GrammarError, match="got AgentStart"):
        fed(_nested((("k",), CHILD[:5]), (("k",), CHILD)))


def test_nested_runs_of_nested_runs() -> None:
    """An origin is a chain, outermost first; each link was announced in the run before it."""
    below = [SubagentStarted("l", "c1")]
    above = spell(CALLED + "run<c1")
    fed(_nested((("k",), [*above, *below]), (("k", "l"), CHILD), (("k",), spell("run>c1"))))
    with pytest.raises(GrammarError, match="no running call has announced 'l'"):
        fed(_nested((("k",), above), (("k", "l"), CHILD)))
    with pytest.raises(GrammarError, match="in the nested run k/l: event 0: run-start"):
        fed(_nested((("k",), [*above, *below]), (("k", "l"), CHILD[1:])))


def test_a_long_chain_of_origins_needs_no_recursion() -> None:
    """A stream that nests hundreds deep, each link announced, is checked like any other."""
    opening = spell(CALLED + "run<c1 sub.c1")
    checker = fed(opening)
    for level in range(1, 600):
        for event in opening:
            checker.feed(ChildEvent(("k",) * level, event))


def test_a_nested_run_without_a_known_call() -> None:
    """A record that does not say which call opened the nested run is taken while any call runs."""
    events = [*spell(CALLED + "run<c1"), SubagentStarted("k"), SHORT["child"]]
    fed(events)
    with pytest.raises(GrammarError, match="child-place"):
        fed([*events, *spell("run>c1 out<c1 out>c1 run<c2 run>c2 out<c2 out>c2"), SHORT["child"]])


def test_foreign_records_may_stand_anywhere() -> None:
    """A record of an unknown kind breaks nothing, not even a pair."""
    events = _with_a_tool()
    strewn = [each for event in events for each in (Foreign({"type": "x"}), event)]
    assert broken_rule([*strewn, Foreign({})]) is None


def test_a_trace_may_lack_what_it_leaves_out() -> None:
    """In a trace a reply of cut calls alone is empty, and a completed compaction may be the last record."""
    empty = spell(ASKED + "reply< reply> fail>1 turn> agent>")
    closed = spell("agent< compact< compact>")
    assert [broken_rule(empty), broken_rule(closed)] == ["reply-content", "run-end"]
    assert [broken_rule(empty, trace=True), broken_rule(closed, trace=True)] == [None, None]
    assert broken_rule(spell("agent< compact< compact!"), trace=True) == "run-end"


def test_in_a_trace_the_place_of_a_cut_call_may_be_a_gap() -> None:
    """A call that was cut has an index and no record; whole ones may stand behind it, where a provider interleaves calls."""
    behind = ASKED + "reply< calls2 reply> fail>1 run<c2 run>c2 out<c2 out>c2 turn> agent>"
    assert [broken_rule(spell(behind)), broken_rule(spell(behind), trace=True)] == ["block-index", None]
    assert broken_rule(spell(ASKED + "reply< calls2 calls"), trace=True) == "block-index"

    cut = [ToolCallChunk('{"a"', "c1", "look", 0), ToolCallChunk("{}", "c2", "look", 1), BlockEnd(1), CUT]
    events = collect_sync(agent_loop("go", Context(), Config(model=ScriptedModel([cut]), retry=None)))
    check(events)
    check(trace_view(events), trace=True)


def test_memory_is_that_of_a_turn() -> None:
    """A thousand turns more leave nothing in the checker but the ids of their calls."""
    checker = fed([AgentStart()])
    turn = spell("in< in> tools ask<1 reply< block reply> usage ask>1 turn>")

    def turns(first: int, count: int) -> None:
        for index in range(first, first + count):
            checker.feed(TurnStart(index))
            for event in turn:
                checker.feed(event)

    turns(0, 100)
    tracemalloc.start()
    turns(100, 1000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 4000


def test_a_turn_s_end_forgets_its_calls() -> None:
    """What was kept of a turn with a thousand calls is let go at its end."""
    ids = [f"call_{number}" for number in range(1000)]
    checker = fed(spell(ASKED + "reply<"))
    tracemalloc.start()
    for index, id in enumerate(ids):
        checker.feed(MessageUpdate(BlockAdded(index, ToolCall(id, "look"))))
    for event in spell("reply> ask>1"):
        checker.feed(event)
    for id in ids:
        result = ToolResultMessage(id, "look", "x")
        end = ToolExecutionEnd(id, "look", ToolResult("x"))
        for event in (ToolExecutionStart(id, "look", ""), end, MessageStart(result), MessageEnd(result)):
            checker.feed(event)
    during, _ = tracemalloc.get_traced_memory()
    checker.feed(SHORT["turn>"])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert during - after > 50_000


def test_the_picture_names_every_event_of_the_tables() -> None:
    """The drawing has all events of the three tables, at most 36 lines, and marks what is optional and what repeats."""
    lines = picture().splitlines()
    assert len(lines) <= 36
    words = set(re.findall(r"[A-Z][A-Za-z]+", picture()))
    assert {kind.__name__ for kind in get_args(Event)} - words == {"Foreign"}
    assert {kind.__name__ for kind in DELTAS.values()} <= words
    assert "    AgentStart" in lines
    assert "  * TurnStart" in lines
    assert "  ? Abort" in lines
    assert "    ? McpConnectBegin  McpConnectEnd" in lines
    assert "        ToolExecutionStart" in lines


def test_the_readme_shows_the_picture() -> None:
    """The README's copy of the event order is the one made from the tables."""
    readme = Path(__file__).resolve().parents[1] / "README.md"
    if not readme.exists() or "<!-- event-order -->" not in readme.read_text(encoding="utf-8"):
        pytest.skip("README.md has no block between <!-- event-order --> and <!-- /event-order --> yet")
    block = readme.read_text(encoding="utf-8").split("<!-- event-order -->")[1].split("<!-- /event-order -->")[0]
    assert picture() in block
