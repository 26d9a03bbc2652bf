"""The legal order of events as tables, and the checker that reads them.

A run is in one state of `ORDER`, each of its calls in one of `CALL`, an open reply in one of `BLOCK`. A row of a table is
`state  rule  event > next state, …`; `rule` is broken when another event comes (`.`: the rule of that event, `EVENT_RULES`).
`a | b` are the two states that an event may lead to, by the condition in its guard. What no table can say (indexes, ids, the
order of results) is in the guards of `Checker`. That derived values agree is the second level, `ValueChecker`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, get_args

from agentloop.errors import GrammarError
from agentloop.events import (
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    Delta,
    Event,
    Foreign,
    Hook,
    McpConnectBegin,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AssistantMessage, ToolCall, ToolResultMessage

# ---------------------------------------------------------------- the tables

RUN: Final = """
start       run-start    AgentStart > fresh
fresh       .            TurnStart > first, CompactionBegin > compaction, Abort > aborted, AgentEnd > over
between     .            Hook(stop) > between, TurnStart > turn, CompactionBegin > compaction, Abort > aborted, AgentEnd > over
opened      .            TurnStart > turn, CompactionBegin > compaction, Abort > aborted, AgentEnd > over
compacted   .            TurnStart > turn, Abort > aborted, AgentEnd > over
last        turn-last    Hook(stop) > last, CompactionBegin > compaction, Abort > aborted, AgentEnd > over
closing     turn-last    Abort > aborted, AgentEnd > over
aborted     abort-last   AgentEnd > over
over        run-end
"""
"""`fresh`: nothing but the start; `opened`: after a turn of open calls; `last`: after a turn without a request; `closing`:
after a compaction that no turn may follow."""

TURN: Final = """
first             .             MessageStart(input) > turn input, McpConnectBegin > first connecting
first             .             ToolListReady > first listed, RequestBegin > turn asking, CallBegins > first calls, TurnEnd > last
first connecting  connect-pair  McpConnectEnd > first connected
first connected   .             ToolListReady > first listed, RequestBegin > turn asking, CallBegins > first calls, TurnEnd > last
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
turn asked        .             ToolListReady > turn listed, RequestBegin > turn asking, CallBegins > turn calls, TurnEnd > between
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
ended      call-order  MessageStart(result) > answered
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

RULES: Final[Mapping[str, str]] = {
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
    "connect-place": "Servers are connected once in a run, after a turn's inputs and before its tool list and requests.",
    "connect-pair": "McpConnectEnd follows directly on McpConnectBegin.",
    "tools-place": "ToolListReady stands before the first request, and before a later one right before its RequestBegin.",
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
    "call-place": "Calls are executed after the RequestEnd of the turn's last attempt (or are the first turn's open calls).",
    "call-unique": "The id of a call is its own in the whole run.",
    "call-known": "Events of a call name a complete call of the last reply, by its id and name.",
    "call-order": "A call is: hooks, a request for approval, a decision, start, updates, end, result; each once at most but hooks and updates.",
    "call-turns": "Hooks and approval requests come in call order.",
    "call-unrun": "A call of a reply that was not committed has start, end and result alone: it does not run.",
    "call-answered": "Every complete call has start, end and result before its turn, or its compaction attempt, is over.",
    "result-place": "Results come in call order, each at once when its call and all earlier ones have ended.",
    "hook-place": "A Hook stands before what it decides: pre_tool_use in a call, user_prompt after an input, stop after a turn.",
    "child-place": "Events of a nested run come while the call runs that announced it with SubagentStarted.",
}
"""Every rule that `Checker` names, with its sentence."""

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

# ---------------------------------------------------------------- reading the tables

Key: TypeAlias = type | tuple[type, str]
"""What a state looks an event up by: its class, with the role of its message or the kind of its hook."""

_CLASSES: Final = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Delta))}
_ROLES: Final = {AssistantMessage: "reply", ToolResultMessage: "result"}


class Step(NamedTuple):
    """Where an event leads: to `next`, or to `other` if its guard says so."""

    next: State
    other: State
    guard: Guard | None


class State(dict[Key, Step]):
    """What may come in a state, and where it leads."""

    __slots__ = ("name", "rule")

    def __init__(self, name: str, rule: str) -> None:
        super().__init__()
        self.name = name
        self.rule = None if rule == "." else rule


def _key(text: str) -> Key:
    name, _, detail = text.rstrip(")").partition("(")
    return (_CLASSES[name], detail) if detail else _CLASSES[name]


def spelled(key: Key) -> str:
    """A key as the tables write it."""
    return f"{key[0].__name__}({key[1]})" if isinstance(key, tuple) else key.__name__


def rows(table: str, owner: str = "") -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The rows of a table: state, rule, and pairs of event and what it leads to; groups spelled out, `*` replaced."""
    result = []
    for line in table.replace("* ", f"{owner} ").strip().splitlines():
        name, rule, *rest = [part.strip() for part in line.split("  ") if part.strip()]
        steps = [(event.strip(), to.strip()) for event, to in (step.split(" > ") for step in "".join(rest).split(",") if step)]
        result.append((name, rule, [(each, to) for event, to in steps for each in GROUPS.get(event, (event,))]))
    return result


def _all_rows() -> list[tuple[str, str, list[tuple[str, str]]]]:
    result = rows(RUN) + rows(TURN) + rows(COMPACTION)
    for owner in ("turn", "compaction"):
        result += rows(ATTEMPT, owner)
    for owner in ("first", "turn", "compaction"):
        result += rows(CALLS, owner)
    return result


def _states(table: list[tuple[str, str, list[tuple[str, str]]]], guards: Mapping[str, Guard]) -> dict[str, State]:
    states: dict[str, State] = {}
    for name, rule, _ in table:
        states.setdefault(name, State(name, rule))
    for name, _, steps in table:
        for event, to in steps:
            main, _, other = to.partition(" | ")
            states[name][_key(event)] = Step(states[main], states[other or main], guards.get(event))
    return states


# ---------------------------------------------------------------- the checker


class _Call:
    """A call that is to be executed: where it stands in `CALL`, and in the order of calls."""

    __slots__ = ("id", "name", "place", "state")

    def __init__(self, id: str, name: str, place: int) -> None:
        self.id = id
        self.name = name
        self.place = place
        self.state = _CALLED


class Checker:
    """Holds one run's events against the grammar, one at a time, in constant time each.

    `feed` raises `GrammarError`, which names the broken rule (one of `RULES`); after that the checker is of no more use.
    Its memory is that of the turn, and the ids of the run's calls. `trace=True` allows what a trace leaves out: a reply
    whose only blocks were cut calls, and the end of a run that a completed compaction closed.

    For the hot path: while a block is open, an update whose delta is of exactly `open_delta_class` and has `open_index`
    is legal and changes nothing but `position`. Who tests that inline adds 1 to `position` instead of calling `feed`.
    """

    __slots__ = (
        "_answered",
        "_attempt",
        "_block",
        "_blocks",
        "_call_block",
        "_calls",
        "_children",
        "_committed",
        "_connected",
        "_counted",
        "_ids",
        "_last_asked",
        "_listed",
        "_no_turn",
        "_order",
        "_reply_calls",
        "_retry",
        "_state",
        "_turns",
        "open_delta_class",
        "open_index",
        "position",
        "trace",
    )

    def __init__(self, *, trace: bool = False) -> None:
        self.trace = trace
        self.position = -1
        """Place of the last event that was fed, counted from 0."""
        self.open_delta_class: type | None = None
        """The delta class of the open block, None while none is open."""
        self.open_index = -1
        self._state = ORDER["start"]
        self._turns = 0
        self._no_turn = False
        self._connected = self._listed = self._counted = False
        self._ids: set[str] = set()
        self._new_exchange()

    def _new_exchange(self) -> None:
        self._attempt = 0
        self._retry = True
        self._committed = True
        self._block = _CLOSED
        self._blocks = 0
        self._call_block: ToolCallStart | None = None
        self._reply_calls: dict[str, str] = {}
        self._set_calls({})
        self._children: dict[str, tuple[str | None, Checker]] = {}

    def _set_calls(self, calls: Mapping[str, str]) -> None:
        self._order = list(calls)
        self._calls = {id: _Call(id, name, place) for place, (id, name) in enumerate(calls.items())}
        self._answered = 0
        self._last_asked = -1

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
            step = self._refined(event, kind)
        self._state, other, guard = step
        if guard is not None:
            guard(self, event, other)

    def finish(self) -> None:
        """The stream is over. Raises `GrammarError` (`run-end`), naming what is open, if it is not complete."""
        name = self._state.name
        if name == "over" or (self.trace and name == "compacted"):
            return
        self._fail("run-end", f"the stream ends while {self._open()}; expected {_expected(self._state)}")

    # ------------------------------------------------------------ refusing

    def _fail(self, rule: str, message: str) -> NoReturn:
        raise GrammarError(rule, message, self.position)

    def _refined(self, event: Any, kind: type) -> Step:
        """The step of an event that is looked up by more than its class. Raises when there is none."""
        state = self._state
        key: Key = kind
        if kind is MessageStart or kind is MessageEnd:
            role = _ROLES.get(type(event.message), "input")
            key = (kind, role)
            if role == "result" and key not in state:
                # A result in the place of an input answers a call of the context; elsewhere it stays a result.
                key = (kind, "input") if (kind, "input") in state else key
        elif kind is Hook:
            key = (kind, event.hook)
        step = state.get(key)
        if step is None:
            self._misfit(event, key)
        return step

    def _misfit(self, event: Any, key: Key) -> NoReturn:
        state = self._state
        kind = type(event)
        if kind not in _EVENTS:
            self._fail("known-event", f"expected an event, got {kind.__module__}.{kind.__qualname__}")
        rule = state.rule or EVENT_RULES.get(spelled(key)) or EVENT_RULES[kind.__name__]
        self._fail(rule, f"expected {_expected(state)}, got {spelled(key)} ({self._open()})")

    def _open(self) -> str:
        """What is open, in words."""
        missing = self._order[self._answered :]
        waiting = f", without result: {', '.join(map(repr, missing))}" if missing else ""
        block = f", block {self.open_index} is open" if self.open_delta_class else ""
        return f"the run is at {self._state.name!r}, turns so far: {self._turns}{block}{waiting}"

    # ------------------------------------------------------------ guards: run, turn, attempt

    def _turn_start(self, event: TurnStart, other: State) -> None:
        if self._no_turn:
            self._fail("turn-last", "the turn before had no request, so no turn may follow")
        if event.index != self._turns:
            self._fail("turn-index", f"TurnStart.index: expected {self._turns}, got {event.index!r}")
        self._turns += 1
        self._new_exchange()

    def _turn_end(self, event: TurnEnd, other: State) -> None:
        self._settled(event)
        self._no_turn = self._state is ORDER["last"]
        self._new_exchange()

    def _compaction_begin(self, event: Event, other: State) -> None:
        self._new_exchange()

    def _compaction_end(self, event: Any, other: State) -> None:
        self._settled(event)
        if event.status != "completed" or self._no_turn:
            self._state = other
        self._new_exchange()

    def _settled(self, event: Event) -> None:
        """Every call that is due has been answered."""
        if self._answered != len(self._calls):
            missing = [id for id, call in self._calls.items() if call.state is not _ANSWERED]
            names = ", ".join(map(repr, missing))
            self._fail("call-answered", f"{type(event).__name__} came, but these calls have no result yet: {names}")

    def _input(self, event: MessageStart, other: State) -> None:
        self._settled(event)
        message = event.message
        if type(message) is ToolResultMessage and message.tool_call_id in self._ids:
            self._fail("result-place", f"a second result of call {message.tool_call_id!r}, in the place of an input")

    def _connect(self, event: McpConnectBegin, other: State) -> None:
        if self._connected:
            self._fail("connect-place", "the run's servers were connected before")
        self._connected = True

    def _tools(self, event: Event, other: State) -> None:
        self._next_attempt(event)
        self._listed = True

    def _next_attempt(self, event: Event) -> None:
        if not self._retry:
            self._fail("retry-announced", f"{type(event).__name__} came, but the last RequestEnd announced no retry")
        if self._committed:
            self._settled(event)

    def _request_begin(self, event: RequestBegin, other: State) -> None:
        self._next_attempt(event)
        if not self._listed:
            self._fail("tools-place", "the first RequestBegin has no ToolListReady before it")
        self._attempt += 1
        if event.attempt != self._attempt:
            self._fail("attempt-number", f"RequestBegin.attempt: expected {self._attempt}, got {event.attempt!r}")
        self._counted = False
        self._reply_calls = {}
        self._set_calls({})

    def _usage(self, event: Event, other: State) -> None:
        self._counted = True

    def _request_end(self, event: RequestEnd, other: State) -> None:
        if event.attempt != self._attempt:
            self._fail("attempt-number", f"RequestEnd.attempt: expected {self._attempt}, got {event.attempt!r}")
        if self._counted and event.status != "completed":
            self._fail("usage-place", f"expected RequestEnd(completed) after TokenUsage, got status {event.status!r}")
        in_turn = self._state is ORDER["turn asked"]
        self._committed = event.status == "completed"
        announced = event.retry_in_ms is not None
        if announced and event.status != "retryable" and (in_turn or not self._committed):
            self._fail("retry-announced", f"RequestEnd.retry_in_ms: expected None with status {event.status!r}")
        self._retry = announced or (self._committed and not in_turn)
        self._set_calls(self._reply_calls if in_turn or self._committed else {})

    # ------------------------------------------------------------ guards: replies

    def _reply_start(self, event: MessageStart, other: State) -> None:
        self._block = _CLOSED
        self._blocks = 0

    def _reply_end(self, event: MessageEnd, other: State) -> None:
        if self._block is not _CLOSED:
            self._fail("block-order", f"the reply ends, but its block {self.open_index} has no end")
        if self._blocks == 0 and not self.trace:
            self._fail("reply-content", "the reply ends without a block")

    def _update(self, event: MessageUpdate, other: State) -> None:
        delta: Any = event.delta
        kind = type(delta)
        if kind is self.open_delta_class and delta.index == self.open_index:
            return
        step = self._block.get(kind)
        if step is None:
            rule = "block-order" if kind in _DELTAS else "known-event"
            self._fail(rule, f"expected {_expected(self._block)} ({self._block.name}), got {kind.__name__}")
        self._take_block(delta, kind)
        self._block = step.next
        self.open_delta_class = _DELTA_IN.get(step.next.name)
        self.open_index = delta.index

    def _take_block(self, delta: Any, kind: type) -> None:
        due = self._blocks if self._block is _CLOSED else self.open_index
        if delta.index != due:
            self._fail("block-index", f"{kind.__name__}.index: expected {due}, got {delta.index!r}")
        if self._block is _CLOSED:
            self._blocks += 1
            if kind is ToolCallStart:
                self._own_id(delta.id)
                self._call_block = delta
            elif kind is BlockAdded and type(delta.block) is ToolCall:
                self._own_id(delta.block.id)
                self._reply_calls[delta.block.id] = delta.block.name
        elif kind is ToolCallEnd and delta.stop_reason == "completed" and self._call_block is not None:
            self._reply_calls[self._call_block.id] = self._call_block.name

    def _own_id(self, id: str) -> None:
        if id in self._ids:
            self._fail("call-unique", f"a second call with the id {id!r}")
        self._ids.add(id)

    # ------------------------------------------------------------ guards: calls

    def _call_of(self, event: Any, kind: type) -> _Call:
        """The call that an event names, moved on in `CALL`."""
        call = self._calls.get(event.tool_call_id)
        if call is None:
            call = self._open_call(event)
        if kind not in call.state:
            self._fail("call-order", f"{kind.__name__} of call {call.id!r} ({call.state.name}): expected {_expected(call.state)}")
        if not self._committed and kind not in _OF_UNRUN:
            self._fail("call-unrun", f"{kind.__name__} of call {call.id!r}, whose reply was not committed")
        call.state = call.state[kind].next
        return call

    def _open_call(self, event: Any) -> _Call:
        """A call of the context, as the first turn's events name it (they may run without a reply of this run)."""
        id = event.tool_call_id
        if self._state is not _FIRST_CALLS or type(event) not in _BEGINNINGS or id is None:
            self._fail("call-known", f"{type(event).__name__} names {id!r}, no complete call of the last reply")
        self._own_id(id)
        call = self._calls[id] = _Call(id, getattr(event, "tool_name", ""), -1)
        return call

    def _named(self, event: Any, call: _Call) -> None:
        if event.tool_name != call.name:
            if call.name:
                self._fail("call-known", f"tool_name of call {call.id!r}: expected {call.name!r}, got {event.tool_name!r}")
            call.name = event.tool_name

    def _permission(self, event: Any, other: State) -> None:
        kind = type(event)
        call = self._call_of(event, kind)
        if kind is ApprovalRequest:
            self._named(event, call)
        if self._state is not _FIRST_CALLS and kind is not ApprovalDecision:
            if call.place < self._last_asked:
                self._fail("call-turns", f"{kind.__name__} of call {call.id!r} after that of a later call")
            self._last_asked = call.place

    def _call_start(self, event: ToolExecutionStart, other: State) -> None:
        call = self._call_of(event, ToolExecutionStart)
        self._named(event, call)
        if self._state is _FIRST_CALLS:
            self._order.append(call.id)

    def _call_update(self, event: Any, other: State) -> None:
        self._named(event, self._call_of(event, type(event)))

    def _call_end(self, event: Any, other: State) -> None:
        call = self._call_of(event, type(event))
        self._named(event, call)
        for name in [name for name, (owner, _) in self._children.items() if owner == call.id]:
            del self._children[name]  # a nested run may be cut
        if self._order[self._answered] == call.id:
            self._state = other

    def _result_start(self, event: Any, other: State) -> None:
        due = self._order[self._answered]
        id = event.message.tool_call_id
        if id != due:
            self._fail("result-place", f"expected the result of call {due!r}, got that of {id!r}")
        call = self._calls[id]
        call.state = call.state[_RESULT].next
        self._named(event.message, call)

    def _result_end(self, event: Any, other: State) -> None:
        due = self._order[self._answered]
        if event.message.tool_call_id != due:
            self._fail("message-pair", f"expected the end of {due!r}'s result, got that of {event.message.tool_call_id!r}")
        self._answered += 1
        if self._answered < len(self._order) and self._calls[self._order[self._answered]].state is _ENDED:
            self._state = other

    # ------------------------------------------------------------ guards: nested runs

    def _subagent(self, event: SubagentStarted, other: State) -> None:
        if event.tool_call_id is not None:
            self._call_of(event, SubagentStarted)
        elif not self._running():
            self._fail("call-order", "SubagentStarted names no call, and none runs")
        held = self._children.get(event.session_id)
        if held is not None and held[0] != event.tool_call_id:
            self._fail("child-place", f"the nested run {event.session_id!r} belongs to call {held[0]!r}, which still runs")
        self._children[event.session_id] = (event.tool_call_id, Checker(trace=self.trace))

    def _running(self) -> bool:
        return any(call.state is _RUNNING for call in self._calls.values())

    def _child(self, event: ChildEvent, other: State) -> None:
        level: Checker = self
        for name in event.origin:
            owner, child = level._children.get(name, ("", None))
            if child is None or ChildEvent not in level._state or (owner is None and not level._running()):
                self._fail("child-place", f"origin {event.origin!r}: no running call has announced {name!r}")
            parent, level = level, child
        if level is self or type(event.event) is ChildEvent:
            self._fail("child-place", f"expected an origin and an event that is not nested, got {event.origin!r}")
        if level.state == "over" and type(event.event) is AgentStart:  # a nested session's next run
            parent._children[name] = (parent._children[name][0], level := Checker(trace=self.trace))
        try:
            level.feed(event.event)
        except GrammarError as error:
            self._fail(error.rule, f"in the nested run {'/'.join(event.origin)}: {error}")


# ---------------------------------------------------------------- the tables, read

Guard: TypeAlias = Callable[[Checker, Any, State], None]

_EVENTS: Final = frozenset(get_args(Event))
_DELTAS: Final = frozenset(get_args(Delta))
_RESULT: Final = (MessageStart, "result")
_OF_UNRUN: Final = frozenset({ToolExecutionStart, ToolExecutionEnd})
_BEGINNINGS: Final = frozenset({Hook, ApprovalRequest, ApprovalDecision, ToolExecutionStart})

_GUARDS: Final[dict[str, Guard]] = {
    "TurnStart": Checker._turn_start,
    "TurnEnd": Checker._turn_end,
    "CompactionBegin": Checker._compaction_begin,
    "CompactionEnd": Checker._compaction_end,
    "MessageStart(input)": Checker._input,
    "McpConnectBegin": Checker._connect,
    "ToolListReady": Checker._tools,
    "RequestBegin": Checker._request_begin,
    "RequestEnd": Checker._request_end,
    "TokenUsage": Checker._usage,
    "MessageStart(reply)": Checker._reply_start,
    "MessageEnd(reply)": Checker._reply_end,
    "MessageUpdate": Checker._update,
    "Hook(pre_tool_use)": Checker._permission,
    "ApprovalRequest": Checker._permission,
    "ApprovalDecision": Checker._permission,
    "ToolExecutionStart": Checker._call_start,
    "ToolExecutionUpdate": Checker._call_update,
    "ToolExecutionEnd": Checker._call_end,
    "MessageStart(result)": Checker._result_start,
    "MessageEnd(result)": Checker._result_end,
    "SubagentStarted": Checker._subagent,
    "ChildEvent": Checker._child,
}

ORDER: Final = _states(_all_rows(), _GUARDS)
"""The states of a run, by name."""
CALL_STATES: Final = _states(rows(CALL), {})
"""The states of a call."""
BLOCK_STATES: Final = _states(rows(BLOCK), {})
"""The states of an open reply."""

_FIRST_CALLS: Final = ORDER["first calls"]
_CALLED: Final = CALL_STATES["called"]
_RUNNING: Final = CALL_STATES["running"]
_ENDED: Final = CALL_STATES["ended"]
_ANSWERED: Final = CALL_STATES["answered"]
_CLOSED: Final = BLOCK_STATES["closed"]
_DELTA_IN: Final = {"text": TextDelta, "thinking": ThinkingDelta, "call": ToolCallDelta}


def _expected(state: State) -> str:
    return ", ".join(spelled(key) for key in state) or "nothing"


def check(events: Iterable[Event], *, trace: bool = False) -> None:
    """Hold a whole run against the grammar. Raises `GrammarError` at the first event that breaks a rule."""
    checker = Checker(trace=trace)
    for event in events:
        checker.feed(event)
    checker.finish()
