"""What the grammar's tables cannot say: indexes and attempts count, ids are unique, results come in call order.

`Guards` is the lower half of `grammar.Checker`. A guard runs after its event was found in the table and the next state
was set; it raises by `_fail`, naming the rule, or chooses the step's other state.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from agentloop._grammar.tables import DELTAS, Guard, State
from agentloop._values import class_name
from agentloop.errors import GrammarError
from agentloop.events import (
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    Event,
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
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import ToolCall, ToolResultMessage

_BEGINNINGS = frozenset({Hook, ApprovalRequest, ApprovalDecision, ToolExecutionStart})
_OF_UNRUN = frozenset({ToolExecutionStart, ToolExecutionEnd})
_DELTA_IN = {"text": TextDelta, "thinking": ThinkingDelta, "call": ToolCallDelta}
_OF_CALLS = frozenset({ToolCallStart, ToolCallEnd, BlockAdded})


class Call:
    """A complete call: where it stands in the table of calls, and in the order of its reply."""

    __slots__ = ("id", "name", "place", "state")

    def __init__(self, id: str, name: str, place: int, state: State) -> None:
        self.id = id
        self.name = name
        self.place = place
        self.state = state


class Guards:
    """The memory of a checker (that of a turn, and the ids of the run's calls) and the guards that keep it."""

    __slots__ = (
        "_answered",
        "_asked",
        "_attempt",
        "_block",
        "_blocks",
        "_calls",
        "_children",
        "_committed",
        "_connected",
        "_counted",
        "_given",
        "_ids",
        "_listed",
        "_no_turn",
        "_opened",
        "_order",
        "_retry",
        "_said",
        "_state",
        "_turns",
        "open_delta_class",
        "open_index",
        "position",
        "trace",
    )

    called: ClassVar[State]
    """The first state of a call."""
    closed: ClassVar[State]
    """The state of a reply between its blocks."""

    def __init__(self, state: State, trace: bool) -> None:
        self.trace = trace
        self.position = -1
        """Place of the last event that was fed, counted from 0."""
        self.open_delta_class: type | None = None
        """The delta class of the open block, None while none is open."""
        self.open_index = -1
        self._state = state
        self._turns = 0
        self._no_turn = self._connected = self._listed = self._counted = False
        self._attempt = 0
        self._retry = self._committed = True
        self._given: type = object  # the class of the open input
        self._ids: dict[str, None] = {}  # an empty set takes 150 bytes more
        self._block = self.closed
        self._blocks = 0
        self._opened: ToolCallStart | None = None
        self._said: list[Call] = []  # the complete calls of the open or last reply
        self._calls: dict[str, Call] = {}  # those that are to be answered
        self._order: list[Call] = []  # the same in call order
        self._answered = 0
        self._asked = -1
        self._children: dict[str, tuple[str | None, Guards]] = {}

    def feed(self, event: Event) -> None:
        """Take the next event."""
        raise NotImplementedError

    def _fail(self, rule: str, message: str) -> NoReturn:
        raise GrammarError(rule, message, self.position)

    # ------------------------------------------------------------ run, turn, compaction

    def _turn_start(self, event: TurnStart, other: State) -> None:
        if event.index != self._turns:
            self._fail("turn-index", f"TurnStart.index: expected {self._turns}, got {event.index!r}")
        self._turns += 1

    def _turn_end(self, event: TurnEnd, other: State) -> None:
        self._settled(event)
        self._no_turn = self._state.name == "last"
        self._forget()

    def _compaction_end(self, event: Any, other: State) -> None:
        self._settled(event)
        if event.status != "completed" or self._no_turn:
            self._state = other
        self._forget()

    def _forget(self) -> None:
        self._attempt = 0
        self._retry = self._committed = True
        self._said = []
        self._drop_calls()

    def _drop_calls(self) -> None:
        if self._calls:
            self._calls, self._order = {}, []
            self._answered, self._asked = 0, -1
            self._children.clear()

    def _settled(self, event: Event) -> None:
        if self._answered != len(self._calls):
            missing = ", ".join([repr(call.id) for call in self._calls.values() if call.state.name != "answered"])
            self._fail("call-answered", f"{type(event).__name__}: expected first the results of {missing}")

    def _input(self, event: MessageStart, other: State) -> None:
        self._settled(event)
        message = event.message
        if type(message) is ToolResultMessage and message.tool_call_id in self._ids:
            self._fail("result-place", f"a result of this run's call {message.tool_call_id!r} in the place of an input")
        self._given = type(message)

    def _input_end(self, event: MessageEnd, other: State) -> None:
        if type(event.message) is not self._given:
            got = type(event.message).__name__
            self._fail("message-pair", f"MessageEnd.message: expected a {self._given.__name__}, got a {got}")

    def _connect(self, event: McpConnectBegin, other: State) -> None:
        if self._connected:
            self._fail("connect-place", "McpConnectBegin: expected one in a run, got a second")
        self._connected = True

    # ------------------------------------------------------------ attempts

    def _tools(self, event: Event, other: State) -> None:
        self._further(event)
        self._listed = True

    def _further(self, event: Event) -> None:
        """Another attempt may begin."""
        if not self._retry:
            self._fail("retry-announced", f"{type(event).__name__}: the RequestEnd before announced no further attempt")
        if self._committed:
            self._settled(event)

    def _request_begin(self, event: RequestBegin, other: State) -> None:
        self._further(event)
        if not self._listed:
            self._fail("tools-place", "the run's first RequestBegin has no ToolListReady before it")
        self._attempt += 1
        if event.attempt != self._attempt:
            self._fail("attempt-number", f"RequestBegin.attempt: expected {self._attempt}, got {event.attempt!r}")
        self._counted = False
        self._said = []
        self._drop_calls()

    def _usage(self, event: Event, other: State) -> None:
        self._counted = True

    def _request_end(self, event: RequestEnd, other: State) -> None:
        status = event.status
        committed = self._committed = status == "completed"
        if self._counted and not committed:
            self._fail("usage-place", f"RequestEnd.status: expected 'completed' after TokenUsage, got {status!r}")
        if event.attempt != self._attempt:
            self._fail("attempt-number", f"RequestEnd.attempt: expected {self._attempt}, got {event.attempt!r}")
        in_turn = self._state.name == "turn asked"
        announced = event.retry_in_ms is not None
        if announced and status != "retryable" and (in_turn or not committed):
            self._fail("retry-announced", f"RequestEnd.retry_in_ms: expected None with status {status!r}")
        self._retry = announced or (committed and not in_turn)
        if self._said and (in_turn or committed):
            self._order = self._said
            self._calls = {call.id: call for call in self._said}

    # ------------------------------------------------------------ replies

    def _reply_start(self, event: MessageStart, other: State) -> None:
        self._blocks = 0

    def _reply_end(self, event: MessageEnd, other: State) -> None:
        if self._block is not self.closed:
            self._fail("block-order", f"MessageEnd: expected {self._block.expected()} in block {self.open_index}")
        if self._blocks == 0 and not self.trace:
            self._fail("reply-content", "MessageEnd: expected at least one block before it")

    def _update(self, event: MessageUpdate, other: State) -> None:
        delta: Any = event.delta
        kind = type(delta)
        if kind is self.open_delta_class and delta.index == self.open_index:
            return
        block = self._block
        step = block.get(kind)
        if step is None:
            self._fail_block(kind)
        due = self.open_index
        if block is self.closed:
            due = self._blocks
            if self.trace and kind is BlockAdded and type(delta.index) is int:
                due = max(due, delta.index)  # a cut call in front of it has its index, and is not in a trace
            self._blocks = due + 1
        if delta.index != due:
            self._fail("block-index", f"{kind.__name__}.index: expected {due}, got {delta.index!r}")
        if kind in _OF_CALLS:
            self._call_said(delta, kind)
        self._block = step[0]
        self.open_delta_class = _DELTA_IN.get(step[0].name)
        self.open_index = due

    def _fail_block(self, kind: type) -> NoReturn:
        if kind not in DELTAS:
            got = class_name(kind)
            self._fail("known-event", f"MessageUpdate.delta: expected a delta, got {got}")
        block = self._block
        where = "between blocks" if block is self.closed else f"in block {self.open_index} ({block.name})"
        self._fail("block-order", f"{where}: expected {block.expected()}, got {kind.__name__}")

    def _call_said(self, delta: Any, kind: type) -> None:
        """Keep the id of a call that opens, and the call when it is complete."""
        if kind is ToolCallStart:
            self._own(delta.id)
            self._opened = delta
        elif kind is ToolCallEnd:
            opened = self._opened
            if opened is not None and delta.stop_reason == "completed":
                self._said.append(Call(opened.id, opened.name, len(self._said), self.called))
        elif kind is BlockAdded and type(delta.block) is ToolCall:
            self._own(delta.block.id)
            self._said.append(Call(delta.block.id, delta.block.name, len(self._said), self.called))

    def _own(self, id: str) -> None:
        if id in self._ids:
            self._fail("call-unique", f"expected a new id, got {id!r} a second time")
        self._ids[id] = None

    # ------------------------------------------------------------ calls

    def _move(self, event: Any, kind: type) -> Call:
        """The call that an event names, moved on in its table."""
        call = self._calls.get(event.tool_call_id) or self._open_call(event, kind)
        state = call.state
        step = state.get(kind)
        if step is None:
            where = f"call {call.id!r} ({state.name})"
            self._fail("call-order", f"{where}: expected {state.expected()}, got {kind.__name__}")
        if not self._committed and kind not in _OF_UNRUN:
            self._fail("call-unrun", f"{kind.__name__} of call {call.id!r}, whose reply was not committed")
        call.state = step[0]
        return call

    def _open_call(self, event: Any, kind: type) -> Call:
        """A call of the context, as the first turn's events name it: it is in no reply of this run."""
        id = event.tool_call_id
        if self._state.name != "first calls" or kind not in _BEGINNINGS or id is None:
            place = f"{kind.__name__}.tool_call_id"
            self._fail("call-known", f"{place}: expected a complete call of the last reply, got {id!r}")
        self._own(id)
        call = self._calls[id] = Call(id, "", -1, self.called)
        # What names it first (a question, a start) comes in call order; starts come as answers do.
        self._order.append(call)
        return call

    def _named(self, event: Any, call: Call) -> None:
        """Another name than the call's: a call of the context has none yet."""
        if call.name:
            place = f"tool_name of call {call.id!r}"
            self._fail("call-known", f"{place}: expected {call.name!r}, got {event.tool_name!r}")
        call.name = event.tool_name

    def _hook(self, event: Hook, other: State) -> None:
        self._in_turn(self._move(event, Hook), Hook)

    def _approval(self, event: ApprovalRequest, other: State) -> None:
        call = self._move(event, ApprovalRequest)
        if event.tool_name != call.name:
            self._named(event, call)
        self._in_turn(call, ApprovalRequest)

    def _in_turn(self, call: Call, kind: type) -> None:
        if call.place < self._asked:
            self._fail("call-turns", f"{kind.__name__} of call {call.id!r} after one of a later call")
        self._asked = call.place

    def _decision(self, event: ApprovalDecision, other: State) -> None:
        self._move(event, ApprovalDecision)

    def _call_start(self, event: ToolExecutionStart, other: State) -> None:
        call = self._move(event, ToolExecutionStart)
        if event.tool_name != call.name:
            self._named(event, call)

    def _call_update(self, event: ToolExecutionUpdate, other: State) -> None:
        call = self._move(event, ToolExecutionUpdate)
        if event.tool_name != call.name:
            self._named(event, call)

    def _call_end(self, event: ToolExecutionEnd, other: State) -> None:
        call = self._move(event, ToolExecutionEnd)
        if event.tool_name != call.name:
            self._named(event, call)
        if self._children:  # what a nested run left open is cut
            self._children = {name: child for name, child in self._children.items() if child[0] != call.id}
        if self._order[self._answered] is call:
            self._state = other

    def _result_start(self, event: Any, other: State) -> None:
        call = self._order[self._answered]
        id = event.message.tool_call_id
        if id != call.id:
            self._fail("result-place", f"expected the result of call {call.id!r}, got that of {id!r}")
        if event.message.tool_name != call.name:
            self._named(event.message, call)
        call.state = call.state["MessageStart(result)"][0]

    def _result_end(self, event: Any, other: State) -> None:
        call = self._order[self._answered]
        id = event.message.tool_call_id
        if id != call.id:
            self._fail("message-pair", f"expected the end of the result of {call.id!r}, got that of {id!r}")
        if event.message.tool_name != call.name:
            self._named(event.message, call)
        call.state = call.state["MessageEnd(result)"][0]
        self._answered += 1
        if self._answered < len(self._order) and self._order[self._answered].state.name == "ended":
            self._state = other

    # ------------------------------------------------------------ nested runs

    def _subagent(self, event: SubagentStarted, other: State) -> None:
        owner = event.tool_call_id
        if owner is not None:
            self._move(event, SubagentStarted)
        elif not self._any_running():
            self._fail("call-order", "SubagentStarted names no call, and none is running")
        held = self._children.get(event.session_id)
        if held is not None and held[0] != owner:
            self._fail("child-place", f"the nested run {event.session_id!r} belongs to the running call {held[0]!r}")
        self._children[event.session_id] = (owner, self._child_checker())

    def _child_checker(self) -> Guards:
        raise NotImplementedError

    def _any_running(self) -> bool:
        return any(call.state.name == "running" for call in self._calls.values())

    def _child(self, event: ChildEvent, other: State) -> None:
        level: Guards = self
        parent = self
        for name in event.origin:  # a loop, not recursion: a chain is as long as the stream makes it
            owner, child = level._children.get(name, (None, None))
            if child is None or ChildEvent not in level._state or (owner is None and not level._any_running()):
                self._fail("child-place", f"origin {list(event.origin)}: no running call has announced {name!r}")
            parent, level = level, child
        inner = event.event
        if level is self or type(inner) is ChildEvent:
            got = f"{type(inner).__name__} with origin {list(event.origin)}"
            self._fail("child-place", f"expected an origin and an event that is not nested, got {got}")
        if type(inner) is AgentStart and level._state.name == "over":  # the nested session's next run
            level = self._child_checker()
            parent._children[event.origin[-1]] = (parent._children[event.origin[-1]][0], level)
        try:
            level.feed(inner)
        except GrammarError as error:
            self._fail(error.rule, f"in the nested run {'/'.join(event.origin)}: {error}")


GUARDS: dict[str, Guard] = {
    "TurnStart": Guards._turn_start,
    "TurnEnd": Guards._turn_end,
    "CompactionEnd": Guards._compaction_end,
    "MessageStart(input)": Guards._input,
    "MessageEnd(input)": Guards._input_end,
    "McpConnectBegin": Guards._connect,
    "ToolListReady": Guards._tools,
    "RequestBegin": Guards._request_begin,
    "TokenUsage": Guards._usage,
    "RequestEnd": Guards._request_end,
    "MessageStart(reply)": Guards._reply_start,
    "MessageUpdate": Guards._update,
    "MessageEnd(reply)": Guards._reply_end,
    "Hook(pre_tool_use)": Guards._hook,
    "ApprovalRequest": Guards._approval,
    "ApprovalDecision": Guards._decision,
    "ToolExecutionStart": Guards._call_start,
    "ToolExecutionUpdate": Guards._call_update,
    "ToolExecutionEnd": Guards._call_end,
    "MessageStart(result)": Guards._result_start,
    "MessageEnd(result)": Guards._result_end,
    "SubagentStarted": Guards._subagent,
    "ChildEvent": Guards._child,
}
"""The guard of each event that has one, by its spelling in the tables."""
