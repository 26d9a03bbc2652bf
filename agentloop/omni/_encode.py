"""Events to records: every record of an event, once.

`Encoder` is stateful in little: the id of the open call (its fragments carry it), which outputs stream, and the ends
whose results have not been shown yet. The frequent records are literals; a test holds them against the builders.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from agentloop._values import same_json, thaw_json
from agentloop.events import (
    AgentEnd,
    AgentStart,
    BlockAdded,
    ChildEvent,
    CompactionEnd,
    Event,
    Foreign,
    MessageEnd,
    MessageStart,
    MessageUpdate,
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
    ToolExecutionUpdate,
)
from agentloop.messages import AssistantMessage, CustomMessage, Text, ToolResultMessage, Usage, UserMessage
from agentloop.omni import _build_events as build
from agentloop.omni._blocks import block_payload, output_images, output_payload, result_object
from agentloop.omni._build import FLOAT_ERROR, partial_tool_call_output, timestamp, token_counts
from agentloop.omni._plain_write import PLAIN_PAYLOADS
from agentloop.omni._types import Clock, Payload, Record
from agentloop.omni.custom import message_data


class Encoder:
    """Turns one session's events, in order, into records.

    `clock` gives the wall clock in seconds since 1970; a record's `timestamp` is when its event was encoded.
    """

    __slots__ = (
        "_children",
        "_clock",
        "_ended",
        "_header",
        "_nested",
        "_open_id",
        "_stamp",
        "_stamp_from",
        "_stamp_to",
        "_streaming",
    )

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._stamp = ""
        self._stamp_from = self._stamp_to = 0.0
        self._children: dict[tuple[str, ...], Encoder] = {}
        self._reset()

    def _reset(self) -> None:
        self._open_id = ""
        """Id of the call whose arguments are open."""
        self._header: AssistantMessage | None = None
        """The open reply as its start showed it."""
        self._streaming: set[str] = set()
        """Calls with an open partial output."""
        self._ended: dict[str, ToolExecutionEnd] = {}
        """By call: its end, until its result message is shown."""
        self._nested: Usage | None = None
        """Tokens of nested runs since the last `TokenUsage`, which tells those before it."""

    def encode(self, event: Event) -> list[Record]:
        """Every record of the event, in order; new dicts, which the caller may keep and change.

        Raises `TypeError` or `ValueError`, with the path, for an application's own message that JSON cannot say.
        """
        if type(event) is MessageUpdate:
            delta = event.delta
            return _DELTAS[type(delta)](self, delta)
        plain = _PLAIN.get(type(event))
        if plain is not None:
            return [{"timestamp": self.stamp(), "type": "event_msg", "payload": plain(event)}]
        return _EVENTS[type(event)](self, event)

    def stamp(self) -> str:
        """The timestamp of now; formatted once a millisecond."""
        now = self._clock()
        if not self._stamp_from <= now < self._stamp_to:
            self._tick(now)
        return self._stamp

    def _tick(self, now: float) -> None:
        """Another millisecond: its text, and when it is over."""
        milliseconds = int(now * 1000 + FLOAT_ERROR)
        self._stamp_from = (milliseconds - FLOAT_ERROR) / 1000
        self._stamp_to = self._stamp_from + 0.001
        self._stamp = timestamp(now)

    def _model(self, payload: Payload) -> Record:
        return {"timestamp": self.stamp(), "type": "model_msg", "payload": payload}

    def _event(self, payload: Payload) -> Record:
        return {"timestamp": self.stamp(), "type": "event_msg", "payload": payload}

    # ------------------------------------------------------------ deltas

    def _text_delta(self, delta: TextDelta) -> list[Record]:
        return [
            {
                "timestamp": self.stamp(),
                "type": "model_msg",
                "payload": {
                    "type": "partial_text",
                    "role": "assistant",
                    "event_type": "delta",
                    "text": delta.text,
                    "stop_reason": "completed",
                },
            }
        ]

    def _thinking_delta(self, delta: ThinkingDelta) -> list[Record]:
        return [
            {
                "timestamp": self.stamp(),
                "type": "model_msg",
                "payload": {
                    "type": "partial_thinking",
                    "role": "assistant",
                    "event_type": "delta",
                    "thinking": delta.text,
                    "stop_reason": "completed",
                },
            }
        ]

    def _tool_call_delta(self, delta: ToolCallDelta) -> list[Record]:
        return [
            {
                "timestamp": self.stamp(),
                "type": "model_msg",
                "payload": {
                    "type": "partial_tool_call",
                    "role": "assistant",
                    "event_type": "delta",
                    "name": "",
                    "arguments": delta.text,
                    "tool_call_id": self._open_id,
                    "stop_reason": "completed",
                },
            }
        ]

    def _text_start(self, delta: TextStart) -> list[Record]:
        return [self._model(_edge("partial_text", "start", "text", "completed"))]

    def _thinking_start(self, delta: ThinkingStart) -> list[Record]:
        return [self._model(_edge("partial_thinking", "start", "thinking", "completed"))]

    def _tool_call_start(self, delta: ToolCallStart) -> list[Record]:
        self._open_call(delta)
        return [self._model(_call_edge("start", delta.name, delta.id, "completed"))]

    def _open_call(self, delta: ToolCallStart) -> None:
        self._open_id = delta.id

    def _text_end(self, delta: TextEnd) -> list[Record]:
        reason = delta.stop_reason
        stop = self._model(_edge("partial_text", "stop", "text", reason))
        return [stop, self._model(block_payload(delta.block, "assistant", reason))]

    def _thinking_end(self, delta: ThinkingEnd) -> list[Record]:
        reason = delta.stop_reason
        stop = self._model(_edge("partial_thinking", "stop", "thinking", reason))
        return [stop, self._model(block_payload(delta.block, "assistant", reason))]

    def _tool_call_end(self, delta: ToolCallEnd) -> list[Record]:
        reason = delta.stop_reason
        stop = self._model(_call_edge("stop", "", self._open_id, reason))
        return [stop, self._model(block_payload(delta.block, "assistant", reason))]

    def _block_added(self, delta: BlockAdded) -> list[Record]:
        return [self._model(block_payload(delta.block, "assistant"))]

    # ------------------------------------------------------------ messages

    def _message_start(self, event: MessageStart) -> list[Record]:
        message = event.message
        if type(message) is AssistantMessage:
            self._header = message
            payload = {"type": "message_start", "role": "assistant"}
            if message.provider is not None:
                payload["provider"] = message.provider
            if message.model is not None:
                payload["model"] = message.model
            return [self._event(payload)]
        if type(message) is ToolResultMessage:
            return self._result_start(message)
        if type(message) is UserMessage:
            return self._user_start(message)
        return self._custom_start(message)  # type: ignore[arg-type]  # the union has no fifth member

    def _user_start(self, message: UserMessage) -> list[Record]:
        sender = message.sender
        told = sender is not None and sender != "user" and any(type(block) is Text for block in message.content)
        records = [build.message_start("user", sender=None if told else sender, clock=self._clock)]
        for block in message.content:
            payload = block_payload(block, "user")
            if told and type(block) is Text:
                payload["sender"] = sender
            records.append(self._model(payload))
        return records

    def _custom_start(self, message: CustomMessage) -> list[Record]:
        data = message_data(message)
        return [
            build.message_start(message.role, clock=self._clock),
            build.custom_message(message.role, data, clock=self._clock),
        ]

    def _result_start(self, message: ToolResultMessage) -> list[Record]:
        """A result that its call's end announced is named only; one that came as an input is written whole."""
        payload: Payload = {"type": "message_start", "role": "tool_result", "tool_call_id": message.tool_call_id}
        ended = self._ended.pop(message.tool_call_id, None)
        if ended is not None and _announced(ended, message):
            return [self._event(payload)]
        payload["tool_name"] = message.tool_name
        payload["is_error"] = message.is_error
        if message.details is not None:
            payload["details"] = message.details
        if message.structured is not None:
            payload["structured"] = message.structured
        output = output_payload(message.tool_call_id, message.content, message.stop_reason)
        return [self._event(payload), self._model(output)]

    def _message_end(self, event: MessageEnd) -> list[Record]:
        message = event.message
        if type(message) is not AssistantMessage:
            return [self._event({"type": "message_end"})]
        payload: Payload = {
            "type": "message_end",
            "stop_reason": message.stop_reason,
            "finish_reason": message.finish_reason,
        }
        if message.usage is not None:
            payload["usage"] = token_counts(message.usage)
        if message.error_code is not None:
            payload["error_code"] = message.error_code
        if message.error_message is not None:
            payload["error_message"] = message.error_message
        if message.fidelity is not None:
            payload["fidelity"] = message.fidelity
        header, self._header = self._header, None
        if header is not None and (header.provider != message.provider or header.model != message.model):
            payload |= {"provider": message.provider, "model": message.model}
        return [self._event(payload)]

    # ------------------------------------------------------------ tools

    def _tool_execution_update(self, event: ToolExecutionUpdate) -> list[Record]:
        call, progress = event.tool_call_id, event.partial_result
        if event.delta is None:
            result = None if progress is None else result_object(progress)
            return [build.tool_execution_update(call, event.tool_name, result, clock=self._clock)]
        records: list[Record] = []
        if call not in self._streaming:
            self._streaming.add(call)
            records.append(partial_tool_call_output("start", call, clock=self._clock))
        records.append(
            {
                "timestamp": self.stamp(),
                "type": "model_msg",
                "payload": {
                    "type": "partial_tool_call_output",
                    "role": "user",
                    "event_type": "delta",
                    "output": event.delta,
                    "tool_call_id": call,
                    "stop_reason": "completed",
                },
            }
        )
        return records

    def _tool_execution_end(self, event: ToolExecutionEnd) -> list[Record]:
        call, result = event.tool_call_id, event.result
        records = self._output_stop(event) if call in self._streaming else []
        records.append(self._model(output_payload(call, result.content, event.stop_reason)))
        payload: Payload = {
            "type": "tool_execution_end",
            "tool_call_id": call,
            "tool_name": event.tool_name,
            "is_error": event.is_error,
        }
        if event.error_code is not None:
            payload["error_code"] = event.error_code
        if result.details is not None:
            payload["details"] = result.details
        if result.structured is not None:
            payload["structured"] = result.structured
        if result.terminate:
            payload["terminate"] = True
        if result.is_error != event.is_error:
            payload["x"] = {"result_is_error": result.is_error}
        records.append(self._event(payload))
        self._ended[call] = event
        return records

    def _output_stop(self, event: ToolExecutionEnd) -> list[Record]:
        """Close the stream of an output: its images in one delta, then the stop."""
        call = event.tool_call_id
        self._streaming.discard(call)
        images = output_images(event.result.content, event.stop_reason)
        records: list[Record] = []
        if images:
            records.append(partial_tool_call_output("delta", call, images=images, clock=self._clock))
        records.append(partial_tool_call_output("stop", call, stop_reason=event.stop_reason, clock=self._clock))
        return records

    # ------------------------------------------------------------ the run

    def _agent_start(self, event: AgentStart) -> list[Record]:
        self._reset()
        return [build.agent_start(clock=self._clock)]

    def _agent_end(self, event: AgentEnd) -> list[Record]:
        nested = self._nested
        self._reset()
        return [
            build.agent_end(
                event.stop_reason,
                error_code=event.error_code,
                error_message=event.error_message,
                usage=event.usage,
                nested_usage=nested,
                replaces_context=event.replaces_context,
                clock=self._clock,
            )
        ]

    # ------------------------------------------------------------ children and strangers

    def _subagent(self, event: SubagentStarted) -> list[Record]:
        meta = event.meta
        pointer = build.subagent(
            event.session_id, tool_call_id=event.tool_call_id, meta_follows=meta is not None, clock=self._clock
        )
        if meta is None:
            return [pointer]
        head = {
            "timestamp": self.stamp(),
            "type": "session_meta",
            "payload": thaw_json(meta),
            "origin": [event.session_id],
        }
        return [pointer, head]

    def count(self, event: ChildEvent) -> None:
        """Take note of what an event of a nested run says of this one's tokens; for who encodes no such events."""
        if type(event.event) is TokenUsage:  # however deep: each is forwarded once
            self._nested = event.event.request if self._nested is None else self._nested + event.event.request

    def _token_usage(self, event: TokenUsage) -> list[Record]:
        self._nested = None
        return [self._event(PLAIN_PAYLOADS[TokenUsage](event))]

    def _compaction_end(self, event: CompactionEnd) -> list[Record]:
        payload = PLAIN_PAYLOADS[CompactionEnd](event)
        if self._nested is not None and event.status == "completed":  # an `agent_end` right after it is in no trace
            payload["x"] = {**payload.get("x", {}), "nested_usage": token_counts(self._nested)}
            self._nested = None
        return [self._event(payload)]

    def _child_event(self, event: ChildEvent) -> list[Record]:
        origin = event.origin
        self.count(event)
        for depth in range(1, len(origin)):  # what it spends is nested in each run above it
            if (above := self._children.get(origin[:depth])) is not None:
                above.count(event)
        child = self._children.get(origin)
        if child is None:
            child = self._children[origin] = Encoder(self._clock)
        records = child.encode(event.event)
        if type(event.event) is AgentEnd:
            del self._children[origin]
        for record in records:
            if type(event.event) is Foreign and record.get("origin") == list(origin):
                continue  # it came with its origin in an unusual place and goes back so
            record["origin"] = [*origin, *record.pop("origin", ())]
        return records

    def _foreign(self, event: Foreign) -> list[Record]:
        return [thaw_json(event.record)]


def _announced(end: ToolExecutionEnd, message: ToolResultMessage) -> bool:
    """Whether a result message says what its call's end said, and so need not be written again."""
    result = end.result
    return (
        end.tool_name == message.tool_name
        and result.content == message.content
        and same_json(result.details, message.details)
        and same_json(result.structured, message.structured)
        and end.is_error == message.is_error
        and end.stop_reason == message.stop_reason
    )


def _edge(kind: str, event_type: str, field: str, stop_reason: str) -> Payload:
    """Start or stop of a text or a thinking."""
    return {"type": kind, "role": "assistant", "event_type": event_type, field: "", "stop_reason": stop_reason}


def _call_edge(event_type: str, name: str, tool_call_id: str, stop_reason: str) -> Payload:
    """Start or stop of a call."""
    return {
        "type": "partial_tool_call",
        "role": "assistant",
        "event_type": event_type,
        "name": name,
        "arguments": "",
        "tool_call_id": tool_call_id,
        "stop_reason": stop_reason,
    }


_DELTAS: Final[dict[type, Callable[[Encoder, Any], list[Record]]]] = {
    TextStart: Encoder._text_start,
    TextDelta: Encoder._text_delta,
    TextEnd: Encoder._text_end,
    ThinkingStart: Encoder._thinking_start,
    ThinkingDelta: Encoder._thinking_delta,
    ThinkingEnd: Encoder._thinking_end,
    ToolCallStart: Encoder._tool_call_start,
    ToolCallDelta: Encoder._tool_call_delta,
    ToolCallEnd: Encoder._tool_call_end,
    BlockAdded: Encoder._block_added,
}

_EVENTS: Final[dict[type, Callable[[Encoder, Any], list[Record]]]] = {
    AgentStart: Encoder._agent_start,
    AgentEnd: Encoder._agent_end,
    TokenUsage: Encoder._token_usage,
    CompactionEnd: Encoder._compaction_end,
    MessageStart: Encoder._message_start,
    MessageEnd: Encoder._message_end,
    ToolExecutionUpdate: Encoder._tool_execution_update,
    ToolExecutionEnd: Encoder._tool_execution_end,
    SubagentStarted: Encoder._subagent,
    ChildEvent: Encoder._child_event,
    Foreign: Encoder._foreign,
}
"""The events that take or change state, or that are several records."""

_PLAIN: Final = {kind: payload for kind, payload in PLAIN_PAYLOADS.items() if kind not in _EVENTS}
