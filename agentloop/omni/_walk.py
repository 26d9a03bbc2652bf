"""The walk over a trace's records: which of them a model had committed, which still wait, what was left open.

The rules are the protocol's (one request at a time, committed by its `request_end`), with these of our own: outputs
stand in call order, after their calls and before any input; each call has exactly one, whatever a file lacks or
repeats; a call that was cut is not in the history; a prompt of a compaction is no conversation, and what waited
before it is not lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from agentloop.messages import Usage
from agentloop.omni._check import predicate
from agentloop.omni._event_types import TokenCounts
from agentloop.omni._legacy import modernise
from agentloop.omni._plain import usage_from
from agentloop.omni.records import (
    COMPLETE,
    EVENTS,
    Payload,
    Record,
    event_kind,
    is_meta,
    is_partial,
    tool_call_output,
)

PLACEHOLDER: Final = "[interrupted: process exited before the tool finished]"
"""The output of a committed call for which a file has none."""

_FITS: Final = {kind: predicate(kind) for kind in (*COMPLETE, *EVENTS)}
_COUNTS: Final = tuple(TokenCounts.__annotations__)
_OF_ASSISTANT: Final = frozenset({"tool_call", "thinking", "inline_thinking"})
_OF_USER: Final = frozenset({"tool_call_output"})


@attrs.define(eq=False)
class Message:
    """What the lifecycle records around a message say; empty for a writer who has none."""

    start: Payload = attrs.field(factory=dict)
    end: Payload = attrs.field(factory=dict)
    usage: Payload | None = None


@attrs.define(eq=False)
class Call:
    """A committed call. `id` is unique in the history; `written` is the id in the file."""

    id: str
    written: str
    name: str
    arguments: str


@attrs.define(eq=False)
class Item:
    """One record of the conversation."""

    record: Record
    message: Message
    """The message that it is a block of."""
    in_span: bool = False
    """Recorded inside a compaction."""
    call: Call | None = None
    """Of an output in the history: the call that it answers."""
    end: Payload | None = None
    """Of an output: the `tool_execution_end` after it."""
    placeholder: bool = False

    @property
    def payload(self) -> Payload:
        """The payload, as written."""
        return self.record["payload"]  # type: ignore[no-any-return]

    @property
    def is_output(self) -> bool:
        """Whether it is a call's output."""
        return self.payload.get("type") == "tool_call_output"


@attrs.define(eq=False)
class _Request:
    """A request that has begun and not ended."""

    mark: int
    """How much of what waits was there when it began: its input."""
    reply: Message = attrs.field(factory=Message)
    outputs: list[Item] = attrs.field(factory=list)


@attrs.define
class Execution:
    """What a file says about the way of one call to its output."""

    started: bool = False
    asked: bool = False
    question: str | None = None
    """The arguments of a question that has no answer, and may still get one."""
    decision: str | None = None
    shown: str | None = None
    """The arguments that the decision was about."""
    denied_by: str | None = None
    """The words of a hook that denied it."""


class Walk:
    """Takes the records of one file in order; `finish` settles what was open."""

    def __init__(self) -> None:
        """Before the first record."""
        self.meta: Record | None = None
        self.history: list[Item] = []
        self.pending: list[Item] = []
        """User-side records that belong to no committed request."""
        self.carried: list[Item] = []
        """After `finish`: outputs (in call order), then inputs, that the next request begins with."""
        self.turns = 0
        self.session_usage: Payload | None = None
        self.nested_usage = Usage()
        """What nested runs spent after that."""
        self.request_total = 0
        self.last_reply: list[Item] = []
        """The reply of the last request that was committed."""
        self.span: Payload | None = None
        """The `compaction_begin` without an end."""
        self.closed: Record | None = None
        """A completed `compaction_end` with nothing of a conversation after it."""
        self.ours = False
        """Whether the file has lifecycle records."""
        self.has_content = False
        """Whether it holds more than metas, openings and lifecycle."""
        self.opening: dict[str, Record] = {}
        self.executions: dict[str, Execution] = {}
        self._request: _Request | None = None
        self._unanswered: dict[str, deque[Call]] = {}  # by written id: committed calls of the last reply
        self._uses: dict[str, int] = {}  # by id: how often it was written, so that each call gets one of its own
        self._dropped: set[str] = set()  # written ids of calls that were never committed
        self.call_ids: set[str] = set()  # written ids of all calls
        self._message: Message | None = None  # between message_start and message_end
        self._loose: Message | None = None  # an input of a writer without lifecycle
        self._last_usage: Payload | None = None
        self._outputs: dict[str, Item] = {}  # by written id: the last output, until its end was read

    def feed(self, record: Record) -> None:
        """Take the next record. One of a child, a fragment, and one whose fields do not fit say nothing."""
        if record.get("origin") or is_partial(record):
            return
        if is_meta(record):
            self.meta = self.meta or record
            self.closed = None
        elif record.get("type") == "model_msg":
            self._model_message(record)
        elif (kind := event_kind(record)) is not None and kind in _READERS:
            payload = modernise(record)["payload"]
            if _FITS[kind](payload):
                _READERS[kind](self, record, payload)
        if record.get("type") != "model_msg":
            self._loose = None

    def finish(self) -> None:
        """The file is over: an open request is dropped, outputs are put to their calls."""
        if self._request is not None:
            self._drop(self._request)
        self._forget_prompts()
        self.carried = [*self._answers(self.pending), *[item for item in self.pending if not item.is_output]]

    def forget_context(self) -> None:
        """A completed compaction closed it: nothing of it goes on but the session's tokens."""
        self.history, self.carried, self.turns, self.request_total = [], [], 0, 0

    # ------------------------------------------------------------ messages

    def _model_message(self, record: Record) -> None:
        payload = record["payload"]
        kind, role = payload.get("type"), payload.get("role")
        fits = _FITS.get(kind) if isinstance(kind, str) else None
        if not isinstance(kind, str) or (fits is not None and not fits(payload)):
            return
        self.closed = None
        self.has_content = True
        if role == "user" and kind not in _OF_ASSISTANT:
            self._user_side(record, kind)
        elif role == "assistant" and kind not in _OF_USER:
            self._loose = None
            if self._request is not None:
                if kind == "tool_call":
                    self._dropped.discard(payload["tool_call_id"])
                    self.call_ids.add(payload["tool_call_id"])
                self._request.outputs.append(Item(record, self._told("assistant") or self._request.reply))

    def _told(self, *roles: str) -> Message | None:
        """The message that is open, if it is of such a role."""
        return self._message if self._message is not None and self._message.start["role"] in roles else None

    def _user_side(self, record: Record, kind: str) -> None:
        message = self._told("user", "tool_result")
        if kind == "tool_call_output":
            self._loose = None
            call = record["payload"]["tool_call_id"]
            if call in self._dropped and call not in self._unanswered:
                return
        elif message is None:
            self._loose = message = self._loose if self._continues(record) else Message()
        item = Item(record, message or Message(), self.span is not None)
        self.pending.append(item)
        if item.is_output:
            self._outputs[item.payload["tool_call_id"]] = item

    def _continues(self, record: Record) -> bool:
        """Whether a record without lifecycle is a further block of the message before it: same sender, nothing
        between."""
        last = self.pending[-1] if self.pending else None
        return (
            self._loose is not None
            and last is not None
            and (record["payload"]["type"] != "text" or record["payload"].get("sender") == last.payload.get("sender"))
        )

    def _custom_message(self, record: Record, payload: Payload) -> None:
        self.ours = self.has_content = True
        self.closed = None
        self.pending.append(Item(record, self._message or Message(), self.span is not None))

    def _message_start(self, record: Record, payload: Payload) -> None:
        self.ours = True
        self._message = Message(payload)

    def _message_end(self, record: Record, payload: Payload) -> None:
        if self._message is not None:
            self._message.end = payload
            self._message = None

    # ------------------------------------------------------------ requests

    def _request_begin(self, record: Record, payload: Payload) -> None:
        if self._request is not None:
            self._drop(self._request)
        self.closed = None
        self.has_content = True
        self._last_usage = None
        self._request = _Request(len(self.pending))

    def _request_end(self, record: Record, payload: Payload) -> None:
        request = self._request
        if request is None:
            return
        if payload["status"] == "completed":
            self._commit(request)
        else:
            self._drop(request)

    def _commit(self, request: _Request) -> None:
        self._request = None
        request.reply.usage = self._last_usage
        taken, self.pending = self.pending[: request.mark], self.pending[request.mark :]
        self.history += self._answers(taken)
        self.history += [item for item in taken if not item.is_output]
        self.last_reply = self._one_reply(request)
        for item in self.last_reply:
            if item.payload["type"] != "tool_call":
                self.history.append(item)
            elif item.payload.get("stop_reason", "completed") == "completed":
                self.history.append(self._committed_call(item))
        if self.span is None:
            self.turns += 1

    def _one_reply(self, request: _Request) -> list[Item]:
        """The blocks that were committed, as one message. Where lines are missing two attempts may look like one
        request: what the lifecycle says was not committed is left out."""
        committed: list[Item] = []
        for item in request.outputs:
            if item.message.end.get("stop_reason") in (None, "completed"):
                committed.append(item)
            elif item.payload["type"] == "tool_call":
                self._dropped.add(item.payload["tool_call_id"])
        for item in committed:
            item.message = committed[-1].message
        return committed

    def _committed_call(self, item: Item) -> Item:
        payload = item.payload
        written = payload["tool_call_id"]
        id = written
        while id in self._uses:
            self._uses[written] += 1
            id = f"{written}#{self._uses[written]}"
        self._uses[id] = 1
        item.call = Call(id, written, payload["name"], payload["arguments"])
        self._unanswered.setdefault(written, deque()).append(item.call)
        item.record = _with_call_id(item.record, id)
        return item

    def _answers(self, items: Iterable[Item]) -> list[Item]:
        """For every call without an answer its output among the items, or a placeholder; in call order."""
        found: dict[str, Item] = {}
        waiting = {written: deque(calls) for written, calls in self._unanswered.items()}
        for item in items:
            calls = waiting.get(item.payload["tool_call_id"]) if item.is_output else None
            if calls:
                item.call = calls.popleft()
                item.record = _with_call_id(item.record, item.call.id)
                found[item.call.id] = item
        calls_in_order = [item.call for item in self.last_reply if item.call is not None]
        self._unanswered = {}
        return [found.get(call.id) or self._placeholder(call) for call in calls_in_order]

    def _placeholder(self, call: Call) -> Item:
        record = tool_call_output(call.id, PLACEHOLDER, stop_reason="aborted", clock=lambda: 0.0)
        stamp = next(item.record.get("timestamp") for item in self.last_reply if item.call is call)
        return Item({**record, "timestamp": stamp}, Message(), call=call, placeholder=True)

    def _drop(self, request: _Request) -> None:
        """Not committed: its input waits again, what it produced is lost, and so are the outputs of its calls."""
        self._request = None
        calls = {item.payload["tool_call_id"] for item in request.outputs if item.payload["type"] == "tool_call"}
        self._dropped |= calls - self._unanswered.keys()
        self._forget_prompts()

    def _forget_prompts(self) -> None:
        """Inputs that were recorded inside a compaction are no conversation. They stand last, if there are any."""
        inside = 0
        while inside < len(self.pending) and self.pending[-1 - inside].in_span:
            inside += 1
        if inside:
            self.pending[-inside:] = [item for item in self.pending[-inside:] if item.is_output]

    # ------------------------------------------------------------ compactions

    def _compaction_begin(self, record: Record, payload: Payload) -> None:
        self.span = payload

    def _compaction_end(self, record: Record, payload: Payload) -> None:
        self._leave_span()
        if payload["status"] == "completed":
            self.closed = record
            self._nested((payload.get("x") or {}).get("nested_usage"))

    def _leave_span(self) -> None:
        if self._request is not None:
            self._drop(self._request)
        self._forget_prompts()
        self.span = None

    # ------------------------------------------------------------ counters, and the way of a call

    def _token_usage(self, record: Record, payload: Payload) -> None:
        self.session_usage, self._last_usage = payload["session"], payload["request"]
        self.nested_usage = Usage()
        self.request_total = payload["request"]["total"]

    def _opening(self, record: Record, payload: Payload) -> None:
        self.opening[payload["type"]] = record

    def _execution(self, call: str) -> Execution:
        return self.executions.setdefault(call, Execution())

    def _approval_request(self, record: Record, payload: Payload) -> None:
        execution = self._execution(payload["tool_call_id"])
        execution.asked, execution.decision, execution.shown = True, None, None
        execution.question = payload["arguments"]

    def _approval_decision(self, record: Record, payload: Payload) -> None:
        execution = self._execution(payload["tool_call_id"])
        shown = (payload.get("x") or {}).get("arguments")
        execution.decision, execution.shown = payload["decision"], shown if isinstance(shown, str) else None
        execution.question = None

    def _hook(self, record: Record, payload: Payload) -> None:
        call = (payload.get("x") or {}).get("tool_call_id")
        if payload.get("decision") == "deny" and isinstance(call, str):
            reason = payload.get("reason")
            execution = self._execution(call)
            execution.denied_by = execution.denied_by or f"the {payload['name']} hook: {reason or 'no reason given'}"

    def _tool_execution_start(self, record: Record, payload: Payload) -> None:
        self.ours = True
        execution = self._execution(payload["tool_call_id"])
        execution.started, execution.question = True, None  # nobody is waited for any more

    def _tool_execution_end(self, record: Record, payload: Payload) -> None:
        self.ours = True
        output = self._outputs.pop(payload["tool_call_id"], None)
        if output is not None:
            output.end = payload

    def _agent_end(self, record: Record, payload: Payload) -> None:
        self.ours = True
        self._nested(payload.get("nested_usage"))

    def _nested(self, counts: Any) -> None:
        """Tokens that no `token_usage` tells. What stands under `x` may be anybody's."""
        if isinstance(counts, dict) and all(type(counts.get(name)) is int for name in _COUNTS):
            self.nested_usage += usage_from(counts)

    def _lifecycle(self, record: Record, payload: Payload) -> None:
        self.ours = True

    def _begin(self, record: Record, payload: Payload) -> None:
        """A run or a turn begins: whatever was open before was left open by a crash."""
        self.ours = True
        self._message = None
        if self.span is not None:
            self._leave_span()


def _with_call_id(record: Record, id: str) -> Record:
    payload = record["payload"]
    return record if payload["tool_call_id"] == id else {**record, "payload": {**payload, "tool_call_id": id}}


_READERS: Final[dict[str, Callable[[Walk, Record, Payload], Any]]] = {
    "request_begin": Walk._request_begin,
    "request_end": Walk._request_end,
    "token_usage": Walk._token_usage,
    "compaction_begin": Walk._compaction_begin,
    "compaction_end": Walk._compaction_end,
    "message_start": Walk._message_start,
    "message_end": Walk._message_end,
    "custom_message": Walk._custom_message,
    "approval_request": Walk._approval_request,
    "approval_decision": Walk._approval_decision,
    "hook": Walk._hook,
    "tool_execution_start": Walk._tool_execution_start,
    "tool_execution_end": Walk._tool_execution_end,
    "tool_list_ready": Walk._opening,
    "mcp_connect_begin": Walk._opening,
    "mcp_connect_end": Walk._opening,
    "agent_start": Walk._begin,
    "turn_start": Walk._begin,
    "turn_end": Walk._lifecycle,
    "agent_end": Walk._agent_end,
}
