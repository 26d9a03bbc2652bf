"""The result of a call: what a tool returns as a `ToolResult`, and that as a message. Nothing here raises."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import math
from collections.abc import Mapping
from typing import Any, Final

import attrs

from agentloop._awaiting import close_unstarted, is_awaitable
from agentloop._jsontext import json_text
from agentloop._schema.problems import counted
from agentloop._values import MAX_JSON_DEPTH, class_name, is_kind, valid_text
from agentloop.events import ToolExecutionEnd
from agentloop.messages import (
    ContentBlock,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
)

NO_OUTPUT: Final = "[no output]"
"""What stands for an empty result, in what a model is shown and in records: neither knows an empty one. `as_result` leaves an
empty result empty."""

_BLOCKS: Final[tuple[type[ContentBlock], ...]] = (Text, Thinking, InlineThinking, ToolCall, Image, InlineData)
_MAX_REPR = 200


def result_message(end: ToolExecutionEnd) -> ToolResultMessage:
    """What the model is told of a call that ended so."""
    said = end.result
    return ToolResultMessage(
        end.tool_call_id,
        end.tool_name,
        said.content,
        said.details,
        said.structured,
        end.is_error,
        end.stop_reason,
    )


def as_result(value: Any) -> ToolResult:
    """The result that a returned value stands for.

    A `ToolResult` is itself. `None`, an empty text and an empty list are an empty result. A text, a block, and a list
    that holds a block, are content; what is not a block in such a list becomes a text that says so, and the result an
    error. An exception is an error with its text. Bytes are their text, or a note of their size if they are no UTF-8.
    Anything that JSON can say (mappings, lists, numbers, dataclasses, attrs classes, dates, enums, pydantic models)
    becomes compact JSON text, an object also `structured`. An awaitable, also inside of these, is an error that says so:
    where it comes here it was awaited once, or yielded. Any other object becomes its `str()`. Text becomes valid Unicode,
    control characters stay.
    """
    if type(value) is str:
        return ToolResult(value)
    try:
        return _from_value(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a foreign object may fail in any way when it is looked at
        return ToolResult(object_text(value))


def _from_value(value: Any) -> ToolResult:
    if is_kind(value, ToolResult):
        return value
    if value is None:
        return ToolResult()
    if isinstance(value, str):
        return ToolResult(str.__str__(value))
    if is_kind(value, _BLOCKS):
        return ToolResult((value,))
    if isinstance(value, BaseException):
        return ToolResult(error_text(value), is_error=True)
    if isinstance(value, bytes | bytearray | memoryview):
        return ToolResult(_bytes_text(bytes(value)))
    if is_awaitable(value):
        return ToolResult(_unawaited(value), is_error=True)
    return _from_data(value)


def _from_data(value: Any) -> ToolResult:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        if not value:
            return ToolResult()
        if any(is_kind(item, _BLOCKS) for item in value):
            return _from_blocks(value)
    reading = _Json()
    data = reading.convert(value)
    if isinstance(data, str):
        return ToolResult(data)
    return ToolResult(json_text(data), None, data if isinstance(data, dict) else None, is_error=reading.unawaited)


def _unawaited(value: Any) -> str:
    close_unstarted(value)
    return f"expected a value, got a {class_name(type(value))} that nobody awaited"


def _from_blocks(items: list[Any] | tuple[Any, ...]) -> ToolResult:
    blocks: list[ContentBlock] = []
    is_error = False
    for index, item in enumerate(items):
        if is_kind(item, _BLOCKS):
            blocks.append(item)
        elif isinstance(item, str):
            blocks.append(Text(str.__str__(item)))
        else:
            is_error = True
            words = f"expected a content block or text, got {type(item).__name__}: {_shown(item)}"
            blocks.append(Text(f"content[{index}]: {_unawaited(item) if is_awaitable(item) else words}"))
    return ToolResult(tuple(blocks), is_error=is_error)


def _shown(value: Any) -> str:
    text = object_text(value)
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}…"


def cut_text(text: str, limit: int | None) -> str:
    """The text; of one longer than `limit` characters its beginning, and a line that says so."""
    return text if limit is None or len(text) <= limit else f"{text[:limit]}\n{cut_note(limit, len(text))}"


def cut_note(limit: int, total: int) -> str:
    """What a text that was cut ends with."""
    return f"[Cut off: these are the first {limit} of {total} characters.]"


def cut_result(result: ToolResult, limit: int | None) -> ToolResult:
    """The result with no more than `limit` characters of text, all its text blocks together; its other parts stay."""
    if limit is None:
        return result
    total = sum([len(block.text) for block in result.content if isinstance(block, Text)])
    if total <= limit:
        return result
    content: list[ContentBlock] = []
    left, cut = limit, False
    for block in result.content:
        if not isinstance(block, Text):
            content.append(block)
        elif len(block.text) <= left:
            content.append(block)
            left -= len(block.text)
        elif not cut:
            cut = True
            note = cut_note(limit, total)
            content.append(attrs.evolve(block, text=f"{block.text[:left]}\n{note}" if left else note))
            left = 0
    return attrs.evolve(result, content=tuple(content))


def error_text(error: BaseException) -> str:
    """An exception's text, unchanged but for invalid Unicode; its class name where that is blank or fails."""
    return object_text(error)


def object_text(value: Any) -> str:
    """The `str()` of any object; its class name where that is blank or fails."""
    try:
        text = valid_text(str.__str__(str(value)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        text = ""
    return text if text.strip() else type(value).__name__


def _bytes_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"[binary data, {counted(len(data), 'byte')}]"


class _Json:
    """The JSON of a Python value; raises nothing but what the value's own code raises."""

    def __init__(self) -> None:
        self._open: set[int] = set()  # identities of the containers around a value
        self.unawaited = False
        """Whether an awaitable stood in it."""

    def convert(self, value: Any) -> Any:
        """The value as JSON. What JSON has no word for is text."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, enum.Enum):
            return self.convert(value.value)
        if isinstance(value, str):
            return valid_text(str.__str__(value))
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))  # JSON has no NaN
        if isinstance(value, datetime.date | datetime.time):
            return value.isoformat()
        if isinstance(value, bytes | bytearray | memoryview):
            return base64.b64encode(bytes(value)).decode()
        return self._container(value)

    def _container(self, value: Any) -> Any:
        if id(value) in self._open:
            return "[circular]"
        if len(self._open) >= MAX_JSON_DEPTH:
            return "[nested too deep]"
        self._open.add(id(value))
        try:
            if isinstance(value, Mapping):
                return {self._key(key): self.convert(item) for key, item in value.items()}
            if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
                return [self.convert(item) for item in value]
            if isinstance(value, set | frozenset):  # their order is chance
                return sorted([self.convert(item) for item in value], key=json_text)
            fields = _fields_of(value)
            if fields is not None:
                return {name: self.convert(item) for name, item in fields.items()}
        finally:
            self._open.discard(id(value))
        if is_awaitable(value):
            self.unawaited = True
            return _unawaited(value)
        return object_text(value)

    def _key(self, key: Any) -> str:
        converted = self.convert(key)
        return converted if isinstance(converted, str) else json_text(converted)


def _fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of an instance of a class with fields; None for any other object."""
    if isinstance(value, type):
        return None
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        named: dict[str, Any] = value._asdict()  # type: ignore[attr-defined]
        return named
    dump = getattr(value, "model_dump", None)  # pydantic's
    if callable(dump):
        dumped: dict[str, Any] = dump(mode="json")
        return dumped
    return None
