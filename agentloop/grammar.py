"""The legal order of events as tables, and the checker that reads them.

A run is in one of the states of `RUN`, `TURN` and `COMPACTION`; each of its calls in one of `CALL`; an open reply in
one of `BLOCK`. A line is `state  rule  event > next state, …`: `rule` is broken when another event comes (`.`: the rule
that `EVENT_RULES` has for that event); `a | b` are two states that an event may lead to. What no table can say
(indexes, ids, the order of results) is in `_grammar.guards`; that derived values agree is the second level, `ValueChecker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, NoReturn

from agentloop._grammar.agreement import VALUE_RULES, ValueChecker
from agentloop._grammar.guards import GUARDS, Guards
from agentloop._grammar.tables import EVENTS, Key, State, Step, read_rows, read_states, spelled
from agentloop._values import class_name
from agentloop.events import Event, Foreign, Hook, MessageEnd, MessageStart
from agentloop.messages import AssistantMessage, ToolResultMessage

__all__ = [
    "BLOCK_STATES",
    "CALL_STATES",
    "EVENT_RULES",
    "ORDER",
    "ORDER_RULES",
    "RULES",
    "VALUE_RULES",
    "Checker",
    "ValueChecker",
    "check",
    "picture",
]

# ---------------------------------------------------------------- the tables

RUN: Final = """
start       run-start    AgentStart > fresh
fresh       .            CompactionBegin > compaction, TurnStart > first, Abort > aborted, AgentEnd > over
between     .            Hook(stop) > between, TurnStart > turn, CompactionBegin > compaction
between     .            Abort > aborted, AgentEnd > over
opened      .            TurnStart > turn, CompactionBegin > compaction, Abort > aborted, AgentEnd > over
compacted   .            TurnStart > turn, Abort > aborted, AgentEnd > over
last        turn-last    Hook(stop) > last, CompactionBegin > compaction, Abort > aborted, AgentEnd > over
closing     turn-last    Abort > aborted, AgentEnd > over
aborted     abort-last   AgentEnd > over
over        run-end
"""
"""`fresh`: right after the start; `opened`: after a turn of open calls; `last`: after a turn without a request;
`closing`: after a compaction that no turn may follow."""

TURN: Final = """
first             .             MessageStart(input) > turn input, McpConnectBegin > first connecting
first             .             ToolListReady > first listed, RequestBegin > turn asking
first             .             CallBegins > first calls, TurnEnd > last
first connecting  connect-pair  McpConnectEnd > first connected
first connected   .             ToolListReady > first listed, RequestBegin > turn asking
first connected   .             CallBegins > first calls, TurnEnd > last
first listed      .             RequestBegin > turn asking, CallBegins > first calls, TurnEnd > last
first calls       .             TurnEnd > opened
turn              .             MessageStart(input) > turn input, McpConnectBegin > turn connecting
turn              .             ToolListReady > turn listed, RequestBegin > turn asking, TurnEnd > last
turn input        message-pair  MessageEnd(input) > turn given
turn given        .             MessageStart(input) > turn input, Hook(user_prompt) > turn given
turn given        .             McpConnectBegin > turn connecting, ToolListReady > turn listed
turn given        .             RequestBegin > turn asking, TurnEnd > last
turn connecting   connect-pair  McpConnectEnd > turn connected
turn connected    .             ToolListReady > turn listed, RequestBegin > turn asking, TurnEnd > last
turn asked        .             ToolListReady > turn listed, RequestBegin > turn asking
turn asked        .             CallBegins > turn calls, TurnEnd > between
turn calls        .             TurnEnd > between
"""
"""`first` is the turn right after `AgentStart`: it may run the context's open calls without a request."""

COMPACTION: Final = """
compaction             .             McpConnectBegin > compaction connecting, MessageStart(input) > compaction input
compaction             .             ToolListReady > compaction listed, RequestBegin > compaction asking
compaction             .             CompactionEnd > compacted | closing
compaction connecting  connect-pair  McpConnectEnd > compaction connected
compaction connected   .             MessageStart(input) > compaction input, ToolListReady > compaction listed
compaction connected   .             RequestBegin > compaction asking, CompactionEnd > compacted | closing
compaction input       message-pair  MessageEnd(input) > compaction given
compaction given       .             MessageStart(input) > compaction input, ToolListReady > compaction listed
compaction given       .             RequestBegin > compaction asking
compaction asked       .             MessageStart(input) > compaction input, ToolListReady > compaction listed
compaction asked       .             RequestBegin > compaction asking, CallBegins > compaction calls
compaction asked       .             CompactionEnd > compacted | closing
compaction calls       .             MessageStart(input) > compaction input, ToolListReady > compaction listed
compaction calls       .             RequestBegin > compaction asking, CompactionEnd > compacted | closing
"""

ATTEMPT: Final = """
* listed    tools-place   RequestBegin > * asking
* asking    request-pair  MessageStart(reply) > * replying, TokenUsage > * counted, RequestEnd > * asked
* replying  reply-open    MessageUpdate > * replying, MessageEnd(reply) > * replied
* replied   request-pair  TokenUsage > * counted, RequestEnd > * asked
* counted   usage-place   RequestEnd > * asked
"""
"""`*` is `turn` or `compaction`."""

CALLS: Final = """
* calls      .             CallBegins > * calls, CallRuns > * calls, ToolExecutionEnd > * calls | * answer
* answer     result-place  MessageStart(result) > * answering
* answering  message-pair  MessageEnd(result) > * calls | * answer
"""
"""`*` is `first`, `turn` or `compaction`; `answer`: the next call's result is due at once."""

CALL: Final = """
called     call-order  Hook > called, ApprovalRequest > asked, ApprovalDecision > decided, ToolExecutionStart > running
asked      call-order  ApprovalDecision > decided, ToolExecutionStart > running
decided    call-order  ToolExecutionStart > running
running    call-order  ToolExecutionUpdate > running, SubagentStarted > running, ChildEvent > running
running    call-order  ToolExecutionEnd > ended
ended      call-order  MessageStart(result) > answering
answering  call-order  MessageEnd(result) > answered
answered   call-order
"""

BLOCK: Final = """
closed     block-order  TextStart > text, ThinkingStart > thinking, ToolCallStart > call, BlockAdded > closed
text       block-order  TextDelta > text, TextEnd > closed
thinking   block-order  ThinkingDelta > thinking, ThinkingEnd > closed
call       block-order  ToolCallDelta > call, ToolCallEnd > closed
"""

GROUPS: Final = {
    "CallBegins": ("Hook(pre_tool_use)", "ApprovalRequest", "ApprovalDecision", "ToolExecutionStart"),
    "CallRuns": ("ToolExecutionUpdate", "SubagentStarted", "ChildEvent"),
}

ORDER_RULES: Final[Mapping[str, str]] = {
    "known-event": "Everything in a stream is an event of agentloop.events, every delta one of its deltas.",
    "run-start": "AgentStart comes first, and once.",
    "run-end": "AgentEnd comes last, between turns; a stream without it is not complete.",
    "abort-last": "Abort stands right before AgentEnd, not in a turn or compaction.",
    "turn-place": "Turns neither nest nor overlap; each has one TurnStart and one TurnEnd.",
    "turn-index": "TurnStart.index counts 0, 1, 2, …",
    "turn-last": "A turn without a request is the last; no turn follows a compaction that was given up.",
    "compaction-place": "A compaction stands before a turn, after the last, or alone; two are never adjacent.",
    "message-pair": "The end of an input or a result follows directly on its start.",
    "input-place": "Inputs come first in a turn, and right before an attempt in a compaction.",
    "connect-place": "Servers are connected once in a run: after a turn's inputs, before its tool list and requests.",
    "connect-pair": "McpConnectEnd follows directly on McpConnectBegin.",
    "tools-place": "ToolListReady stands before the run's first RequestBegin; before any other, right before it.",
    "request-place": "A request begins in a turn or compaction, after its inputs, before its calls.",
    "request-pair": "Between RequestBegin and RequestEnd stand one reply and its TokenUsage, or less.",
    "attempt-number": "Attempts count 1, 2, 3, … in each turn and compaction; a RequestEnd repeats the number.",
    "retry-announced": "In a turn a further attempt follows only on a `retryable` RequestEnd with its retry_in_ms.",
    "usage-place": "TokenUsage stands right before a RequestEnd(completed).",
    "reply-place": "A reply opens once in a request, before its TokenUsage.",
    "reply-open": "Between a reply's start and its end stand its MessageUpdates alone, and nowhere else.",
    "reply-content": "A reply opens with its first content: it has at least one block.",
    "block-order": "A block is its start, deltas of its kind, its end; blocks do not overlap.",
    "block-index": "Block indexes count the starts of a reply from 0; deltas and ends carry that of the open block.",
    "call-place": "Calls come after the RequestEnd of their reply, the turn's last, or are open calls of the context.",
    "call-unique": "The id of a call is its own in the whole run.",
    "call-known": "Events of a call name a complete call of the last reply, by its id and name.",
    "call-order": "A call is hooks, request for approval, decision, start, updates, end, result, in this order.",
    "call-turns": "Hooks and approval requests come in call order.",
    "call-unrun": "A call of a reply that was not committed has start, end and result alone: it does not run.",
    "call-answered": "Every complete call has start, end and result before its turn or compaction attempt is over.",
    "result-place": "Results come in call order, each at once when its call and all earlier ones have ended.",
    "hook-place": "A Hook is pre_tool_use at the head of a call, user_prompt after an input, or stop after a turn.",
    "child-place": "Events of a nested run come while the call runs that announced it with SubagentStarted.",
}
"""Every rule that `Checker` names, with its sentence."""

RULES: Final[Mapping[str, str]] = {**ORDER_RULES, **VALUE_RULES}
"""Every rule of both levels."""

EVENT_RULES: Final = {
    "AgentStart": "run-start", "AgentEnd": "run-end", "Abort": "abort-last",
    "TurnStart": "turn-place", "TurnEnd": "turn-place",
    "CompactionBegin": "compaction-place", "CompactionEnd": "compaction-place",
    "MessageStart(input)": "input-place", "MessageEnd(input)": "message-pair",
    "MessageStart(reply)": "reply-place", "MessageUpdate": "reply-open", "MessageEnd(reply)": "reply-open",
    "MessageStart(result)": "result-place", "MessageEnd(result)": "message-pair",
    "McpConnectBegin": "connect-place", "McpConnectEnd": "connect-pair", "ToolListReady": "tools-place",
    "RequestBegin": "request-place", "RequestEnd": "request-pair", "TokenUsage": "usage-place",
    "Hook": "hook-place", "ApprovalRequest": "call-place", "ApprovalDecision": "call-place",
    "ToolExecutionStart": "call-place", "ToolExecutionUpdate": "call-place", "ToolExecutionEnd": "call-place",
    "SubagentStarted": "call-place", "ChildEvent": "child-place",
}  # fmt: skip
"""The rule that an event breaks by standing where its state has no row for it."""

# ---------------------------------------------------------------- the states

_ORDER_ROWS: Final = (
    read_rows(RUN)
    + read_rows(TURN)
    + read_rows(COMPACTION)
    + [row for owner in ("turn", "compaction") for row in read_rows(ATTEMPT, owner)]
    + [row for owner in ("first", "turn", "compaction") for row in read_rows(CALLS, owner)]
)

ORDER: Final = read_states(_ORDER_ROWS, GROUPS, GUARDS)
"""The states of a run by name."""
CALL_STATES: Final = read_states(read_rows(CALL), GROUPS, {})
"""The states of a call by name."""
BLOCK_STATES: Final = read_states(read_rows(BLOCK), GROUPS, {})
"""The states of an open reply by name."""

_MESSAGES: Final[Mapping[type, Mapping[type, str]]] = {
    kind: {AssistantMessage: f"{kind.__name__}(reply)", ToolResultMessage: f"{kind.__name__}(result)"}
    for kind in (MessageStart, MessageEnd)
}
_INPUTS: Final[Mapping[type, str]] = {kind: f"{kind.__name__}(input)" for kind in _MESSAGES}


# ---------------------------------------------------------------- the checker


class Checker(Guards):
    """Holds one run's events against the grammar, one at a time, each in constant time.

    `feed` raises `GrammarError`, which names the broken rule (one of `RULES`); after that the checker is of no more
    use. It keeps the details of the open turn, and the ids of the run's calls. `trace=True` allows what a trace leaves
    out: cut calls, so that a reply may lack blocks or all of them, and the end of a run after a completed compaction.

    For a hot path: an update whose delta is of exactly `open_delta_class` and has `open_index` is legal and changes
    nothing but `position`. Who tests that inline adds 1 to `position` instead of calling `feed`.
    """

    __slots__ = ()
    called: ClassVar[State] = CALL_STATES["called"]
    closed: ClassVar[State] = BLOCK_STATES["closed"]

    def __init__(self, *, trace: bool = False) -> None:
        """A checker at the start of a run."""
        super().__init__(ORDER["start"], trace)

    @property
    def state(self) -> str:
        """The name of the run's state in the tables."""
        return self._state.name

    def feed(self, event: Event) -> None:
        """Take the next event. Raises `GrammarError` if it may not stand here."""
        self.position += 1
        kind = type(event)
        step = self._state.get(kind)
        if step is None:
            if kind is Foreign:
                return
            step = self._looked_up(event, kind)
        self._state, other, guard = step
        if guard is not None:
            guard(self, event, other)

    def finish(self) -> None:
        """The stream is over. Raises `GrammarError` (`run-end`), which says what is open, if it is not complete."""
        name = self._state.name
        if name != "over" and not (self.trace and name == "compacted"):
            self.position += 1
            self._fail("run-end", f"expected {self._state.expected()}, got the end of the stream ({self._situation()})")

    def _looked_up(self, event: Any, kind: type) -> Step:
        """The step of an event that its class alone does not find. Raises when there is none."""
        state = self._state
        key: Key = kind
        roles = _MESSAGES.get(kind)
        if roles is not None:
            key = roles.get(type(event.message), _INPUTS[kind])
        elif kind is Hook:
            key = f"Hook({event.hook})"
        step = state.get(key)
        if step is None and roles is not None and type(event.message) is ToolResultMessage:
            step = state.get(_INPUTS[kind])  # in the place of an input it answers a call of the context
        if step is None:
            self._refuse(event, key)
        return step

    def _refuse(self, event: Any, key: Key) -> NoReturn:
        kind = type(event)
        if kind not in EVENTS:
            self._fail("known-event", f"expected an event, got {class_name(kind)}")
        rule = self._state.rule or EVENT_RULES.get(spelled(key)) or EVENT_RULES[kind.__name__]
        self._fail(rule, f"expected {self._state.expected()}, got {spelled(key)} ({self._situation()})")

    def _situation(self) -> str:
        """Where the run is and what is open, in words."""
        open_parts = [f"state {self._state.name!r}", f"{self._turns} turns so far"]
        if self.open_delta_class is not None:
            open_parts.append(f"block {self.open_index} is open")
        missing = [repr(call.id) for call in self._calls.values() if call.state.name != "answered"]
        if missing:
            open_parts.append(f"calls without result: {', '.join(missing)}")
        return "; ".join(open_parts)

    def _child_checker(self) -> Checker:
        return Checker(trace=self.trace)


def check(events: Iterable[Event], values: bool = True, *, trace: bool = False, outputs_kept: bool = False) -> None:
    """Hold a whole run against the grammar, and with `values` its derived values against each other.

    Raises `GrammarError` at the first event that breaks a rule. `trace` is that of `Checker`, `outputs_kept` that of
    `ValueChecker`.
    """
    checker = Checker(trace=trace)
    agreement = ValueChecker(outputs_kept=outputs_kept)
    for event in events:
        checker.feed(event)
        if values:
            agreement.feed(event)
    checker.finish()


def picture() -> str:
    """The order of events as a drawing, made from the tables; the README shows it."""
    from agentloop._grammar.picture import draw  # seldom wanted, so not loaded with the checker

    return draw(ORDER, CALL_STATES, BLOCK_STATES, GROUPS["CallBegins"])
