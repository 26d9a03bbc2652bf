"""A second opinion on the order of events: streams changed at random are refused, or the contract read again allows them.

`second_opinion` judges a whole run at once and slowly, from the contract's grammar as one regular expression and from the
rules in prose, and shares nothing with the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import GrammarError
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    CompactionBegin,
    CompactionEnd,
    Event,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
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
from agentloop.grammar import check
from agentloop.messages import AssistantMessage, ToolCall, ToolResultMessage
from agentloop.testing.strategies import streams

# A turn or compaction as letters; a call's events are `c` each, wherever they interleave.
REPLY = "(?:rv+w)?"
RETRIED = f"L?R{REPLY}G"
INPUTS = "(?:iju*)*"
TURN = f"T{INPUTS}(?:mn)?(?:{RETRIED}c*)*L?R{REPLY}(?:K?E|F|G)c*t"
TURN_WITHOUT_REQUEST = f"T{INPUTS}(?:mn)?t"
OPEN_CALLS = "T(?:mn)?L?c+t"
NO_OPEN_CALL = "T(?:mn)?Lt"
ATTEMPTS = f"(?:mn)?(?:(?:ij)*L?R{REPLY}(?:K?E|G)c*)*"
COMPLETED = f"B{ATTEMPTS}C"
LAST_COMPACTION = f"B{ATTEMPTS}(?:(?:ij)*L?R{REPLY}F)?[CD]"
RUN = re.compile(
    f"A(?:{OPEN_CALLS})?(?:(?:{COMPLETED})?{TURN}s*)*"
    f"(?:(?:{COMPLETED})?{TURN_WITHOUT_REQUEST}s*)?(?:{LAST_COMPACTION})?X?Z"
    f"|A{NO_OPEN_CALL}s*(?:{LAST_COMPACTION})?X?Z"
)
CALL = re.compile("h*q?d?xy*eop")
CALL_NOT_RUN = re.compile("xeop")
BLOCKS = re.compile("(?:ab*c|de*f|gh*i|j)+")

LETTERS: dict[type, str] = {
    AgentStart: "A", AgentEnd: "Z", TurnStart: "T", TurnEnd: "t", McpConnectBegin: "m", McpConnectEnd: "n",
    ToolListReady: "L", RequestBegin: "R", TokenUsage: "K", MessageUpdate: "v", CompactionBegin: "B", Abort: "X",
    ApprovalRequest: "c", ApprovalDecision: "c", ToolExecutionStart: "c", ToolExecutionUpdate: "c", ToolExecutionEnd: "c",
}  # fmt: skip
CALL_LETTERS: dict[type, str] = {
    Hook: "h", ApprovalRequest: "q", ApprovalDecision: "d", ToolExecutionStart: "x", ToolExecutionUpdate: "y",
    ToolExecutionEnd: "e", MessageStart: "o", MessageEnd: "p",
}  # fmt: skip
BLOCK_LETTERS: dict[type, str] = {
    TextStart: "a", TextDelta: "b", TextEnd: "c", ThinkingStart: "d", ThinkingDelta: "e", ThinkingEnd: "f",
    ToolCallStart: "g", ToolCallDelta: "h", ToolCallEnd: "i", BlockAdded: "j",
}  # fmt: skip


def second_opinion(events: Sequence[Event]) -> bool:
    """Whether these are a legal, complete run (without nested runs and foreign records)."""
    try:
        _judge(events)
    except AssertionError:
        return False
    return True


def _judge(events: Sequence[Event]) -> None:
    said = _said(events)
    owned = [id for id, _, _ in said] + _opened(events)
    assert len(owned) == len(set(owned)), "ids are unique"
    line = "".join([_letter(event, set(owned)) for event in events])
    assert RUN.fullmatch(line), "the order of the run"
    assert line.count("m") <= 1, "one connection"
    assert "R" not in line or "L" in line[: line.index("R")], "tools before the first request"
    turns = [event.index for event in events if isinstance(event, TurnStart)]
    assert turns == list(range(len(turns))), "turns count"
    for place, event in enumerate(events):
        _judge_pair(event, events[place + 1 : place + 2], set(owned))
    for part in _parts(events):
        _judge_part(part, set(owned))


def _said(events: Sequence[Event]) -> list[tuple[str, str, bool]]:
    """The calls of the replies: id, name, whether complete."""
    calls: list[tuple[str, str, bool]] = []
    for event in events:
        delta = event.delta if isinstance(event, MessageUpdate) else None
        if isinstance(delta, ToolCallStart):
            calls.append((delta.id, delta.name, False))
        elif isinstance(delta, BlockAdded) and isinstance(delta.block, ToolCall):
            calls.append((delta.block.id, delta.block.name, True))
        elif isinstance(delta, ToolCallEnd) and calls:
            calls[-1] = (*calls[-1][:2], delta.stop_reason == "completed")
    return calls


def _opened(events: Sequence[Event]) -> list[str]:
    """Ids of open calls: those of a first turn that has events of calls before any request."""
    ids: list[str] = []
    for event in events[2:] if len(events) > 2 and isinstance(events[1], TurnStart) else []:
        if isinstance(event, RequestBegin | TurnEnd):
            break
        id = getattr(event, "tool_call_id", None)
        if id is not None and id not in ids:
            ids.append(id)
    return ids


def _letter(event: Any, owned: set[str]) -> str:
    if isinstance(event, Hook):
        return {"stop": "s", "user_prompt": "u", "pre_tool_use": "c"}[event.hook]
    if isinstance(event, RequestEnd):
        return "E" if event.status == "completed" else "F" if event.retry_in_ms is None else "G"
    if isinstance(event, CompactionEnd):
        return "C" if event.status == "completed" else "D"
    if isinstance(event, MessageStart | MessageEnd):
        started = isinstance(event, MessageStart)
        if isinstance(event.message, AssistantMessage):
            return "r" if started else "w"
        if isinstance(event.message, ToolResultMessage) and event.message.tool_call_id in owned:
            return "c"
        return "i" if started else "j"
    return LETTERS[type(event)]


def _judge_pair(event: Any, following: Sequence[Event], owned: set[str]) -> None:
    """The start of an input or a result, and its end right behind it."""
    if not isinstance(event, MessageStart) or isinstance(event.message, AssistantMessage):
        return
    end: Any = following[0] if following else None
    assert isinstance(end, MessageEnd), "a pair"
    assert type(end.message) is type(event.message), "a pair of one kind"
    if isinstance(event.message, ToolResultMessage) and event.message.tool_call_id in owned:
        assert end.message.tool_call_id == event.message.tool_call_id, "a pair of one result"


class Part:
    """What lies from the start of a turn, a compaction or a further attempt to the next such start."""

    def __init__(self, attempt: int, in_turn: bool) -> None:
        self.attempt = attempt
        self.in_turn = in_turn
        self.events: list[Any] = []
        self.retried = False


def _parts(events: Sequence[Event]) -> list[Part]:
    parts = [Part(0, True)]
    for event in events:
        if isinstance(event, TurnStart | CompactionBegin):
            parts.append(Part(0, isinstance(event, TurnStart)))
        elif isinstance(event, RequestBegin):
            before = parts[-1]
            before.retried = before.attempt > 0
            if before.attempt > 0:
                parts.append(Part(before.attempt, before.in_turn))
            parts[-1].attempt += 1
            assert event.attempt == parts[-1].attempt, "attempts count"
        parts[-1].events.append(event)
    return parts


def _judge_part(part: Part, owned: set[str]) -> None:
    """The blocks, the request's end and the calls of one attempt (or of open calls)."""
    deltas = [event.delta for event in part.events if isinstance(event, MessageUpdate)]
    assert not deltas or BLOCKS.fullmatch("".join([BLOCK_LETTERS[type(delta)] for delta in deltas])), "blocks"
    index = -1
    for delta in deltas:
        index += isinstance(delta, TextStart | ThinkingStart | ToolCallStart | BlockAdded)
        assert delta.index == index, "indexes count"
    ends = [event for event in part.events if isinstance(event, RequestEnd)]
    committed = True
    for end in ends:
        committed = end.status == "completed"
        assert end.attempt == part.attempt, "an end repeats its number"
        if end.retry_in_ms is not None:
            assert end.status == "retryable" or (committed and not part.in_turn), "only what is retried is announced"
    if any(isinstance(event, TokenUsage) for event in part.events):
        assert committed, "usage of a committed attempt"
    if part.retried and part.in_turn:
        assert ends, "a request has an end"
        assert ends[-1].retry_in_ms is not None, "a retry was announced"
    _judge_calls(part, owned, committed, opened=not ends)


def _judge_calls(part: Part, owned: set[str], committed: bool, *, opened: bool) -> None:
    calls = {id: name for id, name, complete in _said(part.events) if complete}
    by_id: dict[str, list[Any]] = {}
    for event in part.events:
        id = _call_of(event, owned)
        if id is not None:
            by_id.setdefault(id, []).append(event)
    if opened:
        starts = [event for event in part.events if isinstance(event, ToolExecutionStart)]
        calls = {start.tool_call_id: start.tool_name for start in starts}
    answered = not ((part.retried and part.in_turn and not committed) or (not committed and not part.in_turn))
    assert set(by_id) == (set(calls) if answered else set()), "calls are answered, all or none"
    pattern = CALL if committed else CALL_NOT_RUN
    for id, events in by_id.items():
        assert pattern.fullmatch("".join([CALL_LETTERS[type(event)] for event in events])), "the order of a call"
        names = [
            getattr(event, "tool_name", None) or getattr(getattr(event, "message", None), "tool_name", None)
            for event in events
        ]
        assert {name for name in names if name is not None} <= {calls[id]}, "its name"
    _judge_results(part, list(calls) if answered else [])
    asked = [list(calls).index(event.tool_call_id) for event in part.events if isinstance(event, ApprovalRequest) or (
        isinstance(event, Hook) and event.hook == "pre_tool_use")]  # fmt: skip
    assert opened or asked == sorted(asked), "hooks and requests keep call order"


def _call_of(event: Any, owned: set[str]) -> str | None:
    """The call that an event is of; a result of a call of the context is an input."""
    if isinstance(event, MessageStart | MessageEnd):
        id = getattr(event.message, "tool_call_id", None)
        return id if id in owned else None
    if isinstance(event, Hook) and event.hook != "pre_tool_use":
        return None
    return getattr(event, "tool_call_id", None)


def _judge_results(part: Part, order: list[str]) -> None:
    """Results come in call order, each at once when its call and all earlier ones have ended."""
    ended: set[str] = set()
    due = 0
    for event in part.events:
        if due < len(order) and order[due] in ended:
            assert isinstance(event, MessageStart | MessageEnd), "a result is due"
            assert getattr(event.message, "tool_call_id", None) == order[due], "the next call's result"
            due += isinstance(event, MessageEnd)
        elif isinstance(event, ToolExecutionEnd):
            ended.add(event.tool_call_id)
    assert due == len(order), "all results"


# ---------------------------------------------------------------- changing streams


def _swapped(events: list[Event], one: int, other: int) -> list[Event]:
    changed = list(events)
    changed[one], changed[other] = changed[other], changed[one]
    return changed


MUTATIONS: dict[str, Callable[[list[Event], int, int], list[Event]]] = {
    "neighbours swapped": lambda events, one, _: _swapped(events, one, min(one + 1, len(events) - 1)),
    "two swapped": _swapped,
    "one twice in a row": lambda events, one, _: [*events[: one + 1], *events[one:]],
    "one again elsewhere": lambda events, one, other: [*events[:other], events[one], *events[other:]],
    "one left out": lambda events, one, _: [*events[:one], *events[one + 1 :]],
    "one moved": lambda events, one, other: (
        [*(rest := [*events[:one], *events[one + 1 :]])[:other], events[one], *rest[other:]]
    ),
}


def accepted(events: Sequence[Event]) -> bool:
    """What the checker says."""
    try:
        check(events, values=False)
    except GrammarError:
        return False
    return True


@given(streams(depth=0))
def test_the_second_opinion_accepts_legal_streams(events: list[Event]) -> None:
    """The oracle of this file is no stricter than the grammar."""
    _judge(events)


@given(streams(depth=0), st.data())
def test_changed_streams_are_refused_or_legal(events: list[Event], data: st.DataObject) -> None:
    """Two events swapped, one doubled, moved or left out: the checker says what the contract says."""
    places = st.integers(0, len(events) - 1)
    for name, mutate in MUTATIONS.items():
        for _ in range(3):
            changed = mutate(events, data.draw(places), data.draw(places))
            assert accepted(changed) == second_opinion(changed), name


@given(streams(depth=0), streams(depth=0), st.data())
def test_streams_spliced_are_refused_or_legal(one: list[Event], other: list[Event], data: st.DataObject) -> None:
    """The beginning of one run with the end of another: the checker says what the contract says."""
    cut = data.draw(st.integers(0, len(one)))
    for start in range(0, len(other), max(1, len(other) // 6)):
        spliced = one[:cut] + other[start:]
        assert accepted(spliced) == second_opinion(spliced)
