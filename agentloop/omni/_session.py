"""Records of one session to its events.

A record of ours says which message it belongs to (`message_start` … `message_end`). Other writers' records do not: there a
message opens at the first block of a role and ends at the next record of another role or an event, and no run or turn is
invented. A record that does not fit its kind becomes `Foreign`: decoding never raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from agentloop._results import result_message
from agentloop._values import valid_text
from agentloop.errors import StopReason
from agentloop.events import (
    AgentEnd,
    AgentStart,
    CompactionBegin,
    CompactionEnd,
    Event,
    Foreign,
    MessageEnd,
    MessageStart,
    RequestBegin,
    RequestEnd,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    OpaqueMessage,
    ToolResult,
    ToolResultMessage,
    UserMessage,
)
from agentloop.omni._blocks import READERS, output_content
from agentloop.omni._check import predicate
from agentloop.omni._event_types import EVENTS, OWN_EVENTS
from agentloop.omni._input import Desk, Input
from agentloop.omni._legacy import OLD_REASONS, modernise, needs_following
from agentloop.omni._plain import PLAIN, extra, usage_from
from agentloop.omni._reply import ReplyReader, fragment_fields
from agentloop.omni._types import COMPLETE, Payload, Record
from agentloop.omni.custom import MessageRegistry
from agentloop.reducer import State

log = logging.getLogger("agentloop.omni.codec")

Events: TypeAlias = list[Event]

_UNFIT: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What a record that does not fit its kind makes a reader raise."""


class SessionReader:
    """The events of one session's records, without those of its children."""

    def __init__(self, registry: MessageRegistry, desk: Desk, origin: tuple[str, ...] = ()) -> None:
        self.origin = origin
        self._registry = registry
        self._desk = desk
        self._ours = False
        """Whether a record of ours was seen: then an output waits for the end of its call."""
        self._state: State | None = None
        """What `turn_end` and `agent_end` do not repeat: folded from the events of the run."""
        self.reply: ReplyReader | None = None
        """The open reply."""
        self._input: Input | None = None
        self._inside: Events = []
        """Records of unknown kinds that stand in the open input, whose start is not out: its content may come behind them."""
        self._names: dict[str, str] = {}
        """Tool names of the calls that run (ours), or that nobody answered (other writers')."""
        self._outputs: dict[str, tuple[tuple[ContentBlock, ...], StopReason]] = {}
        """What calls gave back, until their end or their message comes."""
        self._results: dict[str, ToolResultMessage] = {}
        self._attempt = 1
        """The next request's, where only the end before it tells."""

    # ------------------------------------------------------------ one record

    def feed(self, record: Record, behind: Record | None = None, last: bool = False) -> Events:
        """The events of the record; never raises.

        `behind` is the record after it, if it was held for that; `last`: there is none.
        """
        try:
            kind = record["payload"].get("type")
            if record["type"] == "event_msg":
                if behind is None and kind in _DEPENDENT and not last and _depends(record, kind):
                    self._desk.hold(record)
                    return []
                return self._event(record, kind, behind)
            if record["type"] == "model_msg":
                read = _FRAGMENTS.get(kind)
                return self._complete(record, kind) if read is None else read(self, record["payload"])
            if record["type"] == "session_meta":
                return self.folded(self.finish())
        except _UNFIT:
            pass
        return self.foreign(record)

    def _complete(self, record: Record, kind: Any) -> Events:
        payload = record["payload"]
        if payload.get("stop_reason") in OLD_REASONS:
            payload = modernise(record)["payload"]
        if not _COMPLETE_FITS[kind](payload):
            raise TypeError("a field does not fit")
        if kind == "tool_call_output":
            return self.folded(self._output(payload))
        return self._block(kind, payload)

    def _event(self, record: Record, kind: str, behind: Record | None) -> Events:
        payload = record["payload"]
        fits, plain, own = _EVENT_KINDS[kind]
        if kind in _RESPELT or payload.get("status") in OLD_REASONS:
            payload = modernise(record, behind)["payload"]
        if not fits(payload):
            raise TypeError("a field does not fit")
        if "x" in payload and extra(payload, "repeated") is True:
            return []
        if own:
            self._ours = True
        events = [] if plain is None else [plain(payload)]
        if not self._ours and kind in _REQUESTS:
            events = [self._counted(events[0])]
        if (self.reply is not None or self._input is not None) and kind != "message_end":
            events = self.finish() + events
        if plain is None:
            try:
                events += _READERS[kind](self, payload)
            except _UNFIT:
                return self.folded(events) + self.foreign(record)
        return self.folded(events)

    def _counted(self, event: Event) -> Event:
        """A request of another writer, whose begin does not say which attempt it is: the end before it does."""
        if isinstance(event, RequestEnd):
            self._attempt = 1 if event.retry_in_ms is None else event.attempt + 1
            return event
        return event if isinstance(event, RequestBegin) and event.attempt > 1 else RequestBegin(self._attempt)

    def folded(self, events: Events) -> Events:
        """The events, folded into what later ends are derived from."""
        state = self._state
        if state is not None:
            for event in events:
                if type(event) in _FOLDED:
                    state.apply(event)
        return events

    def foreign(self, record: Record) -> Events:
        """The record as it came, after the end of a message that it ends; in an input after its start."""
        ended = self.folded(self.finish())
        try:
            event = Foreign(record)
        except _UNFIT as error:
            log.warning("a record that no event can hold was left out: %s", error)
            return ended
        if self._waits():
            self._inside.append(event)
            return ended
        return [*self._taken(), *ended, event]

    # ------------------------------------------------------------ messages without a start of their own

    def finish(self) -> Events:
        """The end of a message that only the next record would have ended; nothing else."""
        reply, given = self.reply, self._input
        if reply is not None and not reply.explicit:
            self.reply = None
            return [*reply.close(reply.stop_reason), MessageEnd(reply.message())]
        if given is not None and not given.explicit:
            self._input = None
            message = UserMessage(tuple(given.blocks), given.sender)
            return [MessageStart(message), MessageEnd(message)]
        return []

    def last(self) -> Events:
        """What is due when there are no more records."""
        return self.folded(self.finish()) + (self.give_start() if self._inside else [])

    def _taken(self) -> Events:
        inside, self._inside = self._inside, []
        return inside

    def _waits(self) -> bool:
        """Whether the start of an open input is not out yet."""
        return self._input is not None and self._input.explicit and not self._input.given

    def _in_reply(self) -> tuple[ReplyReader, Events]:
        """The open reply; one without a start opens here."""
        if self.reply is not None:
            return self.reply, []
        ended = self.finish() + self._taken()
        self._input = None
        header = AssistantMessage(())
        self.reply = ReplyReader(header, explicit=False)
        return self.reply, [*ended, MessageStart(header)]

    def _in_input(self, payload: Payload) -> tuple[Input, Events]:
        """The open message of the user; one without a start opens here, also where the sender changes."""
        given = self._input
        if given is not None:
            if given.explicit and given.role == "user":
                return given, []
            if not given.explicit and (payload["type"] != "text" or given.sender == payload.get("sender")):
                return given, []
        ended = self.finish() + self._taken()
        self.reply = None
        self._input = Input("user", None)
        return self._input, ended

    # ------------------------------------------------------------ messages

    def _message_start(self, payload: Payload) -> Events:
        self.reply = self._input = None  # one that was not ended is cut: a reader invents no end
        role = payload["role"]
        if role == "assistant":
            header = AssistantMessage((), provider=payload.get("provider"), model=payload.get("model"))
            self.reply = ReplyReader(header, explicit=True)
            return [*self._taken(), MessageStart(header)]
        given = Input(role, payload)
        if role == "tool_result" and "tool_name" not in payload:
            given.message = result = self._results.pop(payload["tool_call_id"])
            given.given = True
            self._input = given
            return [*self._taken(), MessageStart(result)]
        self._input = given
        self._desk.owe(self)
        return self._taken()

    def give_start(self) -> Events:
        """The start of an open input, before something else happens: all that it holds has been read by then."""
        given = self._input
        if given is None or not self._waits():
            return []
        message = self._input_message(given)
        if message is None:
            return self._taken()
        given.given = True
        return [MessageStart(message), *self._taken()]

    def _message_end(self, payload: Payload) -> Events:
        if self.reply is not None:
            return self._reply_end(self.reply, payload)
        given = self._input
        if given is None:
            return []
        if not given.given:
            self._desk.clear()
        message, self._input = self._input_message(given), None
        if message is None:
            raise ValueError("a message without its content")
        return [MessageEnd(message)] if given.given else [MessageStart(message), *self._taken(), MessageEnd(message)]

    def _input_message(self, given: Input) -> AgentMessage | None:
        """An input as it has been read so far; None when its content is missing."""
        if given.message is None and given.role == "tool_result":
            given.message = self._whole_result(given.header)
        if given.message is None and given.role == "user":
            return UserMessage(tuple(given.blocks), given.sender)
        return given.message

    def _reply_end(self, reply: ReplyReader, payload: Payload) -> Events:
        self.reply = None
        header, counts = reply.partial.header, payload.get("usage")
        stop_reason = payload.get("stop_reason", reply.stop_reason)
        events = reply.close(stop_reason or "aborted")
        message = AssistantMessage(
            reply.partial.content(),
            stop_reason,
            payload.get("finish_reason"),
            None if counts is None else usage_from(counts),
            payload.get("provider", header.provider),
            payload.get("model", header.model),
            payload.get("error_code"),
            payload.get("error_message"),
            payload.get("fidelity"),
        )
        return [*events, MessageEnd(message)]

    def _whole_result(self, header: Payload) -> ToolResultMessage | None:
        """A result that came as an input: its own output stands between its start and its end."""
        output = self._outputs.pop(header.get("tool_call_id", ""), None)
        if output is None:
            return None
        return ToolResultMessage(
            header["tool_call_id"],
            header["tool_name"],
            output[0],
            header.get("details"),
            header.get("structured"),
            header.get("is_error") is True,
            output[1],
        )

    def _custom_message(self, payload: Payload) -> Events:
        given = self._input
        if given is None or given.role != payload["role"]:
            raise ValueError("a custom message outside its start and end")
        given.message = self._registry.message(payload["role"], payload["data"])
        return []

    def _block(self, kind: str, payload: Payload) -> Events:
        role = payload["role"]
        if role == "assistant":
            block: Any = READERS[kind](payload)
            if kind == "tool_call" and not self._ours:
                self._names[block.id] = block.name
            reason: StopReason = payload.get("stop_reason") or "completed"
            if self.reply is not None:
                return self.reply.block(kind, block, reason)
            reply, events = self._in_reply()
            return self.folded(events) + reply.block(kind, block, reason)
        if role == "user":
            block = READERS[kind](payload)
            given, events = self._in_input(payload)
            given.blocks.append(block)
            if given.sender is None:
                given.sender = payload.get("sender")
            return self.folded(events)
        message = OpaqueMessage(role, payload)
        return self.folded([*self.finish(), MessageStart(message), MessageEnd(message)])

    # ------------------------------------------------------------ fragments

    def _partial_text(self, payload: Payload) -> Events:
        reply, text = self.reply, payload["text"]
        if reply is None or reply.grow is not TextDelta or payload["event_type"] != "delta":
            return self._edge("text", payload, text)
        if type(text) is not str or reply.half or not text.isascii():
            text = reply.clean(text)
        return [reply.partial.grow(TextDelta(reply.index, text))]

    def _partial_thinking(self, payload: Payload) -> Events:
        reply, text = self.reply, payload["thinking"]
        if reply is None or reply.grow is not ThinkingDelta or payload["event_type"] != "delta":
            return self._edge("thinking", payload, text)
        if type(text) is not str or reply.half or not text.isascii():
            text = reply.clean(text)
        return [reply.partial.grow(ThinkingDelta(reply.index, text))]

    def _partial_tool_call(self, payload: Payload) -> Events:
        reply, text = self.reply, payload["arguments"]
        if reply is None or reply.grow is not ToolCallDelta or payload["event_type"] != "delta":
            return self._edge("tool_call", payload, text)
        if payload["tool_call_id"] != reply.call_id:
            return self._edge("tool_call", payload, text)
        if type(text) is not str or reply.half or not text.isascii():
            text = reply.clean(text)
        return [reply.partial.grow(ToolCallDelta(reply.index, text))]

    def _edge(self, kind: str, payload: Payload, text: Any) -> Events:
        """A start, a stop, or a piece of a block whose start was never seen."""
        event_type, call_id, name = fragment_fields(payload)
        reason = payload.get("stop_reason") if event_type == "stop" else None
        if type(text) is not str or (reason is not None and type(reason) is not str):
            raise TypeError("expected strings")
        reply = self.reply
        events: Events = []
        if reply is None:
            reply, events = self._in_reply()
            self.folded(events)
        if event_type == "start" or not reply.is_open(kind, call_id):
            events += reply.start(kind, call_id, name)
        if text:
            events.append(reply.piece(text))
        if reason is not None and reason != "completed":
            reply.stop_reason = modernise({"type": "model_msg", "payload": payload})["payload"]["stop_reason"]
        return events

    def _partial_output(self, payload: Payload) -> Events:
        text = payload["output"]
        event_type, call, _ = fragment_fields(payload)
        if type(text) is not str:
            raise TypeError("expected a string")
        if event_type != "delta" or "images" in payload or not self._ours or call not in self._names:
            return []
        return [ToolExecutionUpdate(call, self._names[call], None, valid_text(text))]

    # ------------------------------------------------------------ tools

    def _output(self, payload: Payload) -> Events:
        call = payload["tool_call_id"]
        content = output_content(payload)
        stop_reason: StopReason = payload.get("stop_reason") or "completed"
        if self._ours:
            self._outputs[call] = (content, stop_reason)
            return []
        name = self._names.pop(call, "")
        message = ToolResultMessage(call, name, content, None, None, stop_reason != "completed", stop_reason)
        return [*self.finish(), MessageStart(message), MessageEnd(message)]

    def _tool_execution_start(self, payload: Payload) -> Events:
        call, name = payload["tool_call_id"], payload["tool_name"]
        self._names[call] = name
        return [ToolExecutionStart(call, name, payload["arguments"])]

    def _tool_execution_end(self, payload: Payload) -> Events:
        call, name, is_error = payload["tool_call_id"], payload["tool_name"], payload["is_error"]
        content, stop_reason = self._outputs.pop(call)
        failed = extra(payload, "result_is_error")
        result = ToolResult(
            content,
            payload.get("details"),
            payload.get("structured"),
            is_error if failed is None else failed,
            payload.get("terminate") is True,
        )
        self._names.pop(call, None)
        end = ToolExecutionEnd(call, name, result, is_error, stop_reason, payload.get("error_code"))
        self._results[call] = result_message(end)
        return [end]

    # ------------------------------------------------------------ run and turn

    def _agent_start(self, payload: Payload) -> Events:
        self.reply = self._input = None
        self._state = State()
        self._names.clear()
        self._outputs.clear()
        self._results.clear()
        return [*self._taken(), AgentStart()]

    def _agent_end(self, payload: Payload) -> Events:
        state, self._state = self._state or State(), None
        status = payload["status"]
        return [
            *self._taken(),
            AgentEnd(
                state.new_messages if status == "completed" else state.all_messages,
                status,
                payload.get("error_code"),
                payload.get("error_message"),
                usage_from(payload["usage"]),
                payload.get("replaces_context") is True,
                state.summary,
            ),
        ]

    def _turn_start(self, payload: Payload) -> Events:
        if self._state is None:  # a file that a rotation began in the middle of a run
            self._state = State()
        return [TurnStart(payload["index"])]

    def _turn_end(self, payload: Payload) -> Events:
        state = self._state or State()
        return [TurnEnd(state.reply, tuple(state.results))]


def _depends(record: Record, kind: Any) -> bool:
    """Whether the record after it says something about it: a child's meta, or what an old failure was."""
    if kind == "subagent":
        return extra(record["payload"], "meta") is True
    return kind == "request_end" and needs_following(record)


_FOLDED: Final = frozenset({
    TurnStart, TurnEnd, MessageEnd, RequestBegin, RequestEnd, CompactionBegin, CompactionEnd,
})  # fmt: skip
"""All that the messages of a turn and of a run depend on."""

_FRAGMENTS: Final[dict[Any, Callable[[SessionReader, Payload], Events]]] = {
    "partial_text": SessionReader._partial_text,
    "partial_thinking": SessionReader._partial_thinking,
    "partial_tool_call": SessionReader._partial_tool_call,
    "partial_tool_call_output": SessionReader._partial_output,
}

_READERS: Final[dict[str, Callable[[SessionReader, Payload], Events]]] = {
    kind: getattr(SessionReader, f"_{kind}") for kind in EVENTS if kind not in PLAIN
}

_DEPENDENT: Final = ("subagent", "request_end")

_REQUESTS: Final = ("request_begin", "request_end")

_RESPELT: Final = ("abort", "mcp_connect_end")
"""Events whose old spelling does not show in the status."""

_COMPLETE_FITS: Final = {kind: predicate(kind) for kind in COMPLETE}

_EVENT_KINDS: Final = {kind: (predicate(kind), PLAIN.get(kind), kind in OWN_EVENTS) for kind in EVENTS}
"""Of each event: whether its fields fit, how it becomes an event by itself, whether only we write it."""
