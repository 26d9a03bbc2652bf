"""Events to lines of JSON and back, with a short way for fragments: they are most of a stream and differ in one text.

The short way writes and reads the same bytes as the long one: its frames are cut from a record that a builder made. A line
that is not exactly such a frame around one JSON string takes the long way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from agentloop.events import Event, MessageUpdate, TextDelta, ThinkingDelta, ToolCallDelta, ToolCallStart
from agentloop.omni import _build as build
from agentloop.omni._decode import Decoder
from agentloop.omni._encode import Encoder
from agentloop.omni._types import Clock, Record
from agentloop.omni.custom import REGISTRY, MessageRegistry
from agentloop.omni.jsonl import dumps_trusted, loads

_STAMP: Final = build.timestamp(0).encode()


def _frame(record: Record) -> tuple[bytes, ...]:
    """What stands before, between and after the timestamp and the places marked `TEXT` and `CALL`."""
    line = dumps_trusted(record) + b"\n"
    pieces = []
    for mark in (_STAMP, b'"TEXT"', b'"CALL"'):
        before, found, behind = line.partition(mark)
        if found:
            pieces.append(before)
            line = behind
    return (*pieces, line)


_HEAD, _TEXT, _TEXT_TAIL = _frame(build.partial_text("delta", "TEXT", clock=lambda: 0.0))
_, _THINKING, _THINKING_TAIL = _frame(build.partial_thinking("delta", "TEXT", clock=lambda: 0.0))
_, _CALL, _CALL_ID, _CALL_TAIL = _frame(build.partial_tool_call("delta", "CALL", arguments="TEXT", clock=lambda: 0.0))


class LineEncoder(Encoder):
    """An encoder whose records are lines, each with its newline."""

    __slots__ = ("_before", "_behind", "_kind")

    def __init__(self, clock: Clock = time.time) -> None:
        super().__init__(clock)
        self._kind: type | None = None
        """Of the last fragment: its class; None when another millisecond, call or run has begun since."""
        self._before = self._behind = b""
        """What stood before its text and after it."""

    def lines(self, event: Event) -> list[bytes]:
        """The lines of the event's records, in order."""
        if type(event) is MessageUpdate:
            line = self.fragment(event)
            if line is not None:
                return [line]
        return [dumps_trusted(record) + b"\n" for record in self.encode(event)]

    def fragment(self, event: MessageUpdate) -> bytes | None:
        """The line of a piece of text, thinking or arguments; None for what takes the long way."""
        now, delta = self._clock(), event.delta
        if not self._stamp_from <= now < self._stamp_to:
            self._tick(now)
        if type(delta) is not self._kind and not self._reframe(type(delta)):
            return None
        try:
            return self._before + orjson.dumps(delta.text) + self._behind  # type: ignore[union-attr]  # a piece's
        except TypeError:  # a lone surrogate: the long way knows its escape
            return None

    def _reframe(self, kind: type) -> bool:
        """Make the frame of such a fragment; False for what is none."""
        head = _HEAD + self._stamp.encode()
        if kind is TextDelta:
            self._before, self._behind = head + _TEXT, _TEXT_TAIL
        elif kind is ThinkingDelta:
            self._before, self._behind = head + _THINKING, _THINKING_TAIL
        elif kind is ToolCallDelta:
            self._before, self._behind = head + _CALL, _CALL_ID + dumps_trusted(self._open_id) + _CALL_TAIL
        else:
            return False
        self._kind = kind
        return True

    def _reset(self) -> None:
        super()._reset()
        self._kind = None

    def _tick(self, now: float) -> None:
        super()._tick(now)
        self._kind = None

    def _open_call(self, delta: ToolCallStart) -> None:
        super()._open_call(delta)
        self._kind = None


def jsonl(events: Iterable[Event], clock: Clock = time.time) -> Iterator[bytes]:
    """The records of the events as lines of JSON, each with its newline, as the events come."""
    encoder, dumps = LineEncoder(clock), orjson.dumps
    kind: Any = None
    since, until, before, behind = 0.0, 0.0, b"", b""
    for event in events:
        if type(event) is MessageUpdate:
            delta: Any = event.delta
            if type(delta) is kind and since <= clock() < until:
                try:  # what `fragment` does: the call and its look-ups are a fifth of what a line costs
                    line = before + dumps(delta.text) + behind
                except TypeError:
                    pass
                else:
                    yield line
                    continue
            piece = encoder.fragment(event)
            if piece is not None:
                kind, before, behind = encoder._kind, encoder._before, encoder._behind
                since, until = encoder._stamp_from, encoder._stamp_to
                yield piece
                continue
        for record in encoder.encode(event):
            yield dumps_trusted(record) + b"\n"
        kind = None  # `fragment` may have made another frame before it gave this one up


_FROM: Final = len(_HEAD)
_TO: Final = _FROM + len(_STAMP)
_NEWLINE: Final = 10
_IS_STAMP: Final = re.compile(rb"[-0-9T:.]{23}Z").fullmatch


class LineDecoder(Decoder):
    """A decoder that is fed lines, with or without their newline."""

    def __init__(self, registry: MessageRegistry = REGISTRY) -> None:
        super().__init__(registry)
        self._kind: object = None
        self._call_id = ""
        self._before, self._behind = b"", (b"", b"")
        """What stood around the text of the last fragment, its timestamp included: the next one's is often the same."""
        self._start = self._stop = 0

    def feed_line(self, line: bytes) -> list[Event]:
        """The events that this line completes. Raises `ValueError` for a line that is not JSON."""
        event = self.fragment(line)
        return self.feed(loads(line)) if event is None else [event]

    def fragment(self, line: bytes) -> MessageUpdate | None:
        """The event of a line that is a piece of the open block; None for what takes the long way."""
        reply = self._own.reply
        if reply is None or reply.grow is None or reply.half or self._desk.busy:
            return None
        kind = reply.grow
        same = self._kind is kind and self._call_id == reply.call_id and line.startswith(self._before)
        if not ((same or self._reframe(line, kind, reply.call_id)) and line.endswith(self._behind)):
            return None
        stop = self._stop - 1 if line[-1] == _NEWLINE else self._stop
        try:
            text = orjson.loads(line[self._start : stop])
        except ValueError:  # the long way says what it is, or why it is nothing
            return None
        return reply.partial.grow(kind(reply.index, text)) if type(text) is str else None

    def _reframe(self, line: bytes, kind: type, call_id: str) -> bool:
        """Learn what stands around the text of such a fragment; whether the line begins so."""
        before, behind = _reading_frame(kind, call_id)
        if not (line.startswith(_HEAD) and _IS_STAMP(line, _FROM, _TO) and line.startswith(before, _TO)):
            return False
        self._kind, self._call_id = kind, call_id
        self._before, self._behind = line[:_TO] + before, (behind, behind + b"\n")
        self._start, self._stop = len(self._before), -len(behind)
        return True


def _reading_frame(kind: type, call_id: str) -> tuple[bytes, bytes]:
    if kind is TextDelta:
        return _TEXT, _TEXT_TAIL[:-1]
    if kind is ThinkingDelta:
        return _THINKING, _THINKING_TAIL[:-1]
    return _CALL, _CALL_ID + dumps_trusted(call_id) + _CALL_TAIL[:-1]


def from_jsonl(lines: Iterable[bytes], registry: MessageRegistry = REGISTRY) -> Iterator[Event]:
    """The events of lines of JSON, as they come. Raises `ValueError` at a line that is not JSON."""
    decoder = LineDecoder(registry)
    fragment = decoder.fragment
    for line in lines:
        event = fragment(line)
        if event is None:
            yield from decoder.feed(loads(line))
        else:
            yield event
    yield from decoder.finish()
