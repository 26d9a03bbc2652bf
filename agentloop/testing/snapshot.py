"""`snapshot`: a run's events as short lines of text that read well in a stored snapshot.

One line an event, indented by layer (run, turn, what a turn holds, parts of a reply): its wire name, what tells it
apart, then every field that is not at its default, texts as JSON strings. A list of `str` suits syrupy (`assert
snapshot(events) == stored`), inline-snapshot, and a plain `==` alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from agentloop.events import (
    AgentEnd,
    AgentStart,
    BlockAdded,
    ChildEvent,
    Event,
    Foreign,
    McpConnectEnd,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolListReady,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import (
    AssistantMessage,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    Usage,
    UserMessage,
)

__all__ = ["snapshot"]

_PIECES = (TextDelta, ThinkingDelta, ToolCallDelta)


def snapshot(events: Iterable[Event], *, merge_deltas: bool = True, stable_ids: bool = True) -> list[str]:
    """The events as lines.

    `merge_deltas` joins neighbouring pieces of one block or output, so that a snapshot does not depend on how a reply
    was cut; `stable_ids` writes the ids of calls and nested runs as `#1`, `#2`, … in the order of their appearance, so
    that it does not depend on random ones.
    """
    writer = _Writer(stable_ids)
    return [writer.line(event) for event in (_merged(events) if merge_deltas else events)]


def _merged(events: Iterable[Event]) -> list[Event]:
    """The events with neighbouring pieces of one thing joined; pieces are collected, not added up one by one."""
    merged: list[Event] = []
    pieces: list[str] = []
    for event in events:
        held = merged[-1] if merged else None
        if held is not None and _same_thing(held, event):
            pieces.append(_piece(event))
            continue
        _put_together(merged, pieces)
        merged.append(event)
        pieces = [_piece(event)]
    _put_together(merged, pieces)
    return merged


def _place(event: Event) -> tuple[Any, ...] | None:
    """What a piece belongs to; None for an event that is not a piece."""
    if isinstance(event, ChildEvent):
        inner = _place(event.event)
        return None if inner is None else (*event.origin, *inner)
    if isinstance(event, MessageUpdate) and isinstance(event.delta, _PIECES):
        return (type(event.delta), event.delta.index)
    if isinstance(event, ToolExecutionUpdate) and event.delta is not None:
        return ("output", event.tool_call_id)
    return None


def _same_thing(first: Event, second: Event) -> bool:
    place = _place(first)
    return place is not None and place == _place(second)


def _piece(event: Event) -> str:
    if isinstance(event, ChildEvent):
        return _piece(event.event)
    if isinstance(event, MessageUpdate) and isinstance(event.delta, _PIECES):
        return event.delta.text
    return (isinstance(event, ToolExecutionUpdate) and event.delta) or ""


def _put_together(merged: list[Event], pieces: list[str]) -> None:
    if len(pieces) > 1:
        merged[-1] = _with_text(merged[-1], "".join(pieces))


def _with_text(event: Event, text: str) -> Event:
    if isinstance(event, ChildEvent):
        return attrs.evolve(event, event=_with_text(event.event, text))
    if isinstance(event, MessageUpdate):
        return MessageUpdate(attrs.evolve(event.delta, text=text))  # type: ignore[arg-type]  # a delta with text, by _place
    return attrs.evolve(event, delta=text)  # type: ignore[arg-type]  # an output update, by _place


class _Writer:
    """Writes lines, and knows the ids that it has written."""

    def __init__(self, stable_ids: bool) -> None:
        self._stable = stable_ids
        self._ids: dict[str, str] = {}

    def line(self, event: Event) -> str:
        if isinstance(event, ChildEvent):
            return f"      {'/'.join(map(self._id, event.origin))}> {self.line(event.event).lstrip()}"
        write = _LINES.get(type(event))
        words = write(self, event) if write else [event.type, *self._fields(event)]
        return _INDENT.get(type(event), "    ") + " ".join(word for word in words if word)

    def _id(self, id: str) -> str:
        return self._ids.setdefault(id, f"#{len(self._ids) + 1}") if self._stable else id

    def _fields(self, event: Any, *leave_out: str) -> list[str]:
        """The fields that differ from their default; ids and positions without their name."""
        words = []
        for field in attrs.fields(type(event)):
            value = getattr(event, field.name)
            if field.name in leave_out or value == field.default:
                continue
            if field.name in ("tool_call_id", "session_id"):
                words.append(self._id(value))
            elif field.name in ("index", "tool_name", "attempt", "decision", "hook", "name", "status"):
                words.append(str(value))
            else:
                words.append(f"{field.name}={self._value(value)}")
        return words

    def _value(self, value: Any) -> str:
        if isinstance(value, Usage):
            cached = f" ({value.cache_read} cached)" if value.cache_read else ""
            return f"{value.cache_read + value.cache_write}{cached} in {value.output} out"
        if isinstance(value, ToolResult):
            return " ".join([self.content(value.content), *self._fields(value, "content")])
        if attrs.has(type(value)):
            return self.message(value)
        if isinstance(value, tuple):
            return f"[{', '.join(map(self._value, value))}]"
        return json.dumps(value, ensure_ascii=False, default=repr)

    def message(self, message: Any) -> str:
        """A whole message in a line."""
        if isinstance(message, UserMessage):
            return " ".join(["user", self.content(message.content), *self._fields(message, "content")])
        if isinstance(message, ToolResultMessage):
            fields = self._fields(message, "content", "tool_call_id", "tool_name")
            return " ".join(["tool_result", self._id(message.tool_call_id), self.content(message.content), *fields])
        if isinstance(message, AssistantMessage):
            ends = [message.stop_reason, message.finish_reason]
            fields = self._fields(message, "content", "stop_reason", "finish_reason", "provider", "model")
            return " ".join(["assistant", self.content(message.content), *[end for end in ends if end], *fields])
        if isinstance(message, CustomMessage):
            return f"{message.role} {message!r}"
        return repr(message)

    def content(self, content: Iterable[Any]) -> str:
        """Blocks, each as its kind and what it says; a text is its JSON string alone."""
        return ", ".join(map(self.block, content)) or "[]"

    def block(self, block: Any) -> str:
        fidelity = f" fidelity={self._value(block.fidelity)}" if getattr(block, "fidelity", None) else ""
        match block:
            case Text(text=text):
                return self._value(text) + fidelity
            case Thinking(thinking=text):
                return f"thinking {self._value(text)}{fidelity}"
            case ToolCall(id=id, name=name, arguments=arguments):
                return f"call {self._id(id)} {name}({arguments}){fidelity}"
            case Image(url=url):
                return f"image {url if len(url) <= 60 else url[:57] + '...'}"
            case InlineData(data=data, mime_type=kind) | InlineThinking(data=data, mime_type=kind):
                return f"{block.type} {kind} {len(data)} base64 characters{fidelity}"
        return repr(block)


def _start(writer: _Writer, event: MessageStart) -> list[str]:
    return [event.type, event.message.role]


def _end(writer: _Writer, event: MessageEnd) -> list[str]:
    return [event.type, writer.message(event.message)]


def _update(writer: _Writer, event: MessageUpdate) -> list[str]:
    delta = event.delta
    if isinstance(delta, _PIECES):
        return [delta.type, str(delta.index), writer._value(delta.text)]
    if isinstance(delta, BlockAdded):
        return [delta.type, str(delta.index), writer.block(delta.block)]
    id = getattr(delta, "id", None)
    words = [writer._id(id), delta.name] if id is not None else []  # type: ignore[union-attr]
    return [delta.type, str(delta.index), *words, *writer._fields(delta, "index", "block", "id", "name")]


def _tool_start(writer: _Writer, event: ToolExecutionStart) -> list[str]:
    return [event.type, writer._id(event.tool_call_id), f"{event.tool_name}({event.arguments})"]


def _tool_update(writer: _Writer, event: ToolExecutionUpdate) -> list[str]:
    if event.partial_result is None:
        return [event.type, writer._id(event.tool_call_id), f"output {writer._value(event.delta)}"]
    return [event.type, writer._id(event.tool_call_id), f"progress {writer._value(event.partial_result)}"]


def _tool_end(writer: _Writer, event: ToolExecutionEnd) -> list[str]:
    said = ("is_error",) if event.is_error == event.result.is_error else ()  # by the result
    fields = writer._fields(event, "tool_call_id", "tool_name", "result", *said)
    return [event.type, writer._id(event.tool_call_id), writer._value(event.result), *fields]


def _tools(writer: _Writer, event: ToolListReady) -> list[str]:
    return [event.type, ", ".join(tool.name for tool in event.tools)]


def _turn_end(writer: _Writer, event: TurnEnd) -> list[str]:
    results = ", ".join(writer._id(result.tool_call_id) for result in event.tool_results)
    return [event.type, results and f"results {results}"]


def _agent_end(writer: _Writer, event: AgentEnd) -> list[str]:
    count = f"{len(event.messages)} message{'' if len(event.messages) == 1 else 's'}"
    return [event.type, event.stop_reason, count, *writer._fields(event, "messages", "stop_reason", "exception")]


def _connected(writer: _Writer, event: McpConnectEnd) -> list[str]:
    servers = [f"{server.server}={server.error_code or server.status}" for server in event.results]
    return [event.type, *servers, *writer._fields(event, "results")]  # durations are left out: they differ each time


def _foreign(writer: _Writer, event: Foreign) -> list[str]:
    return [event.type, json.dumps(event.record, ensure_ascii=False)]


_LINES: Mapping[type, Callable[[_Writer, Any], list[str]]] = {
    MessageStart: _start,
    MessageEnd: _end,
    MessageUpdate: _update,
    ToolExecutionStart: _tool_start,
    ToolExecutionUpdate: _tool_update,
    ToolExecutionEnd: _tool_end,
    ToolListReady: _tools,
    TurnEnd: _turn_end,
    AgentEnd: _agent_end,
    McpConnectEnd: _connected,
    Foreign: _foreign,
}
_INDENT: Mapping[type, str] = {
    AgentStart: "",
    AgentEnd: "",
    TurnStart: "  ",
    TurnEnd: "  ",
    MessageUpdate: "      ",
    ToolExecutionUpdate: "      ",
}
