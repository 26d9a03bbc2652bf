"""Server-sent events, sans-I/O: bytes to events, and records to bytes that can be nothing but one event.

The format is WHATWG's "server-sent events". Lines end with CR, LF or CRLF and with nothing else: U+2028, U+0085, form
feeds and their like are text. Nothing here waits, opens or sends; `channel.py` keeps what a client that comes back
has missed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from agentloop._values import valid_text
from agentloop.errors import SseError
from agentloop.omni.jsonl import dumps, loads
from agentloop.omni.records import Record

__all__ = [
    "MAX_EVENT_BYTES",
    "PING",
    "SERVER_EVENT",
    "Parser",
    "ServerSentEvent",
    "encode",
    "encode_comment",
    "encode_event",
    "encode_server_event",
]

MAX_EVENT_BYTES: Final = 64 * 2**20
"""Longest event that a `Parser` takes by default, in bytes: a record may carry several images."""

SERVER_EVENT: Final = "server_event"
"""The event name of what the server says for itself; a record has none."""

PING: Final = b": ping\n\n"
"""The heartbeat: a comment, which every client ignores."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BREAKS: Final = re.compile(r"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


# ---------------------------------------------------------------- bytes to events


@attrs.frozen
class ServerSentEvent:
    """One event as a client gets it."""

    data: str
    """The data lines, joined with `\\n`."""
    event: str = "message"
    """Its name; `message` when the server gave none."""
    id: str = ""
    """The last id that the stream gave, with this event or before it."""

    def record(self) -> Record:
        """The data as a JSON object: a record, or with the name `server_event` one of the server's own.

        Raises `SseError` when the data is anything else.
        """
        try:
            value = loads(self.data.encode())
        except ValueError as error:
            raise SseError(f"event {self.id or '(no id)'}: expected data in JSON, got {error}") from error
        if not isinstance(value, dict):
            raise SseError(f"event {self.id or '(no id)'}: expected a JSON object, got {type(value).__name__}")
        return value


_LOST: Final = "expected no further bytes: an event before was too large, the stream is lost"


class Parser:
    """Takes a stream of bytes in pieces of any size and gives its events.

    Pieces may end anywhere, inside a character or between CR and LF. What stands after the last blank line when the
    stream ends is not an event: so the format says. The work is linear in the bytes. An event that grows beyond
    `max_bytes` raises `SseError`, and so does every `feed` after it: the stream cannot be trusted any more. Events that
    came whole in the same piece before it are given first, and only the next `feed` raises; so call `feed(b"")` at the
    end of the stream.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        """For one stream, from its first byte; a reconnect needs a new one."""
        self.last_event_id = ""
        """To be sent as `Last-Event-ID` after a reconnect; empty when there was none."""
        self.retry: int | None = None
        """How long to wait before a reconnect, in milliseconds, if the server said it."""
        self._max_bytes = max_bytes
        self._size = 0  # bytes held for the event in the making
        self._line: list[bytes] = []  # pieces of the line that has not ended
        self._first = True  # a byte order mark may still come
        self._after_cr = False  # a LF that comes next belongs to the CR before
        self._data: list[str] = []
        self._event = ""
        self._id = ""
        self._problem: str | None = None  # what the next `feed` raises

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Take the next piece; give the events that it completes. An empty piece gives nothing."""
        self._check()
        if self._after_cr and data:
            data = data[1:] if data[:1] == b"\n" else data
            self._after_cr = False
        events: list[ServerSentEvent] = []
        start = 0
        for match in _LINE_END.finditer(data):
            self._hold(data[start : match.start()])
            if self._problem is not None:
                break
            start = match.end()
            event = self._end_line()
            if event is not None:
                events.append(event)
        else:
            self._hold(data[start:])
        if not events:
            self._check()
        self._after_cr = self._after_cr or data[-1:] == b"\r"
        return events

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._problem = f"expected events of at most {self._max_bytes} bytes, got more in one event"
            self._line.clear()
        else:
            self._line.append(piece)

    def _check(self) -> None:
        if self._problem is not None:
            problem, self._problem = self._problem, _LOST
            raise SseError(problem)

    def _end_line(self) -> ServerSentEvent | None:
        line = b"".join(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        # Line ends are ASCII, so a character that is cut by one is damaged already: decoding by the line changes
        # nothing.
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if name in ("data", "event", "id", "retry"):
            self._field(name, value[1:] if value[:1] == " " else value)
        else:  # a comment or a field that the format does not know: nothing of it is held
            self._size -= len(line)
        return None

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 19:
            self.retry = int(value)

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        self.last_event_id = self._id
        return ServerSentEvent("\n".join(data), event or "message", self._id) if data else None


# ---------------------------------------------------------------- records to bytes


def encode(record: Mapping[str, Any], id: str | None = None) -> bytes:
    """A record as one unnamed event: its envelope, verbatim, as one line of JSON (which holds no line end).

    Raises `ValueError` for an id that holds a line end or NUL, and what `dumps` raises for anything that is not JSON.
    """
    return _head(None, id) + b"data: " + dumps(record) + b"\n\n"


def encode_server_event(body: Mapping[str, Any], id: str | None = None) -> bytes:
    """What the server says for itself (`task_state`, `approval_request`, …), as an event of the name `server_event`."""
    return _head(SERVER_EVENT, id) + b"data: " + dumps(body) + b"\n\n"


def encode_event(data: str, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """Any text as one event. `retry` is in milliseconds.

    Raises `ValueError` where the format cannot carry it: a CR in the data (it would come back as LF), a line end in the
    name, a line end or NUL in the id, a `retry` below 0. A half of a surrogate pair becomes U+FFFD.
    """
    if "\r" in data:
        raise ValueError("data: expected text without carriage returns, which the format cannot carry; send it as JSON")
    if retry is not None and retry < 0:
        raise ValueError(f"retry: expected milliseconds of 0 or more, got {retry}")
    head = _head(event, id) + (b"" if retry is None else b"retry: %d\n" % retry)
    return head + b"".join(b"data: %s\n" % line.encode() for line in valid_text(data).split("\n")) + b"\n"


def encode_comment(text: str) -> bytes:
    """A comment, which clients ignore; each of its lines is one."""
    return b"".join(b": %s\n" % line.encode() for line in _BREAKS.split(valid_text(text))) + b"\n"


def _head(event: str | None, id: str | None) -> bytes:
    head = b""
    if id is not None:
        if _BREAKS.search(id) or "\0" in id:
            raise ValueError(f"id: expected text without line ends and NUL, got {id!r}")
        head += b"id: %s\n" % valid_text(id).encode()
    if event is not None:
        if _BREAKS.search(event):
            raise ValueError(f"event: expected text without line ends, got {event!r}")
        head += b"event: %s\n" % valid_text(event).encode()
    return head
