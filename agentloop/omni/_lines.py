"""Events to lines of JSON, with a short way for fragments: they are most of a stream and differ in one text.

The short way writes the same bytes as the long one: its frames are cut from a record that a builder made.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from agentloop.events import Event, MessageUpdate, TextDelta, ThinkingDelta, ToolCallDelta
from agentloop.omni import _build as build
from agentloop.omni._encode import Encoder
from agentloop.omni._types import Record
from agentloop.omni.jsonl import dumps_trusted

_STAMP: Final = build.timestamp(0).encode()


def _frame(record: Record) -> tuple[bytes, ...]:
    """What stands before, between and behind the timestamp and the places marked `TEXT` and `CALL`."""
    line = dumps_trusted(record) + b"\n"
    pieces = []
    for mark in (_STAMP, b'"TEXT"', b'"CALL"'):
        before, found, behind = line.partition(mark)
        if found:
            pieces.append(before)
            line = behind
    return (*pieces, line)


_HEAD, _TEXT, _TAIL = _frame(build.partial_text("delta", "TEXT", clock=lambda: 0.0))
_, _THINKING, _THINKING_TAIL = _frame(build.partial_thinking("delta", "TEXT", clock=lambda: 0.0))
_, _CALL, _CALL_ID, _CALL_TAIL = _frame(build.partial_tool_call("delta", "CALL", arguments="TEXT", clock=lambda: 0.0))


class LineEncoder(Encoder):
    """An encoder whose records are lines, each with its newline."""

    __slots__ = ()

    def lines(self, event: Event) -> list[bytes]:
        """The lines of the event's records, in order."""
        if type(event) is MessageUpdate:
            line = self._fragment(event.delta)
            if line is not None:
                return [line]
        return [dumps_trusted(record) + b"\n" for record in self.encode(event)]

    def _fragment(self, delta: Any) -> bytes | None:
        kind = type(delta)
        try:
            if kind is TextDelta:
                return b"".join((_HEAD, self.stamp().encode(), _TEXT, orjson.dumps(delta.text), _TAIL))
            if kind is ToolCallDelta:
                call, text = orjson.dumps(self._open_id), orjson.dumps(delta.text)
                return b"".join((_HEAD, self.stamp().encode(), _CALL, text, _CALL_ID, call, _CALL_TAIL))
            if kind is ThinkingDelta:
                return b"".join((_HEAD, self.stamp().encode(), _THINKING, orjson.dumps(delta.text), _THINKING_TAIL))
        except TypeError:  # a lone surrogate: the long way knows its escape
            return None
        return None
