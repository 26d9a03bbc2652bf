"""The bytes of a streamed answer to its JSON events: server-sent events, JSON one after another, or one array. No I/O.

Which of the three a body is, its first byte tells: `{` and `[` begin JSON (Ollama's lines; Gemini without `alt=sse`; a
server that does not stream), anything else is read as server-sent events by the WHATWG grammar, on bytes: lines end with
CRLF, LF or CR, and the Unicode separators that `str.splitlines` takes for line ends are text.

All readers take linear time, however the bytes are cut, and give each event as soon as its last byte is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from agentloop.errors import ModelError
from agentloop.models._errors import MAX_PARSED, read_body

MAX_EVENT: Final = 256 * 1024 * 1024
"""Longest event in bytes; a made video fits, a stream without an end does not fill the memory."""

_BOM = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"


class EventBytes:
    """`feed` it the body as it comes, then `end` it; both give the events that are whole, parsed.

    Raises `ModelError` (`malformed`) for text that is not JSON, after the events before it. An event that the end of the body
    cut off is left out: a stream that ends inside of one says by its missing stop reason that it was cut.
    """

    def __init__(self) -> None:
        self._head = b""
        self._reader: _Reader | None = None

    def feed(self, piece: bytes) -> Iterator[Any]:
        """The events that this piece completes. Behind what is no JSON between them it goes on."""
        if self._reader is None:
            piece = self._begin(self._head + piece)
        return iter(()) if self._reader is None else map(_parsed, self._checked(piece))

    def end(self) -> Iterator[Any]:
        """The events that only the end of the body completes."""
        if self._reader is None:
            return
        for payload in self._reader.end():
            if payload.lstrip(_BLANKS)[:1] == b"<":
                raise _malformed(payload)
            try:
                yield json.loads(payload)
            except (ValueError, RecursionError):
                return

    def _begin(self, head: bytes) -> bytes:
        """Choose the reader, once there is a byte to choose by; the bytes that it shall read."""
        if _BOM.startswith(head):  # a part of the mark, or nothing yet
            self._head = head
            return b""
        head = head.removeprefix(_BOM).lstrip(_BLANKS)
        self._head = b""
        if head:
            self._reader = JsonReader() if head[:1] in (b"{", b"[") else SseReader()
        return head

    def _checked(self, piece: bytes) -> Iterator[bytes]:
        assert self._reader is not None
        try:
            yield from self._reader.feed(piece)
        except ValueError as error:
            raise ModelError("malformed", str(error)) from error


class _Reader(Protocol):
    def feed(self, piece: bytes) -> Iterator[bytes]: ...
    def end(self) -> Iterator[bytes]: ...


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise _malformed(payload) from None


def _malformed(payload: bytes) -> ModelError:
    return ModelError("malformed", f"expected an event in JSON, got {read_body(payload[:MAX_PARSED]).message}")


class _Buffer:
    """Pieces of something that is not whole yet; joined once."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_EVENT:
            raise ValueError(f"expected events of at most {MAX_EVENT} bytes, got a longer one")
        if piece:
            self._pieces.append(piece)

    def take(self) -> bytes:
        whole = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return whole


# ---------------------------------------------------------------- server-sent events

_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = frozenset({b"data", b"event", b"id", b"retry"})


class SseReader:
    """Server-sent events to the data of each, while `name` is its name. The marker `[DONE]` is no event.

    Lines that the grammar does not know are kept aside: Gemini ends a stream that fails with a plain JSON error, and
    proxies with a page of HTML. They come at the end, if they look like one of the two.
    """

    def __init__(self) -> None:
        self.name = b""
        self.marked = False
        """Whether the marker came."""
        self._line = _Buffer()
        self._named = b""
        self._data: list[bytes] = []
        self._data_size = 0
        self._stray: list[bytes] = []
        self._stray_size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The data of the events that this piece completes. Raises `ValueError` for an event that is too long."""
        if self._after_cr and piece:  # the other half of a CRLF ends no further line
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        *lines, rest = _LINE_END.split(piece)
        self._after_cr = piece.endswith(b"\r")
        for line in lines:
            self._line.add(line)
            yield from self._take_line(self._line.take())
        self._line.add(rest)

    def end(self) -> Iterator[bytes]:
        """An event that misses its blank line, and what stood outside of all events."""
        yield from self._take_line(self._line.take())
        yield from self._dispatch()
        stray = b"\n".join(self._stray).strip(_BLANKS)
        if stray[:1] in (b"{", b"[", b"<"):
            yield stray

    def _take_line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            yield from self._dispatch()
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data_size += len(value) + 1  # an empty line takes memory too
            if self._data_size > MAX_EVENT:
                raise ValueError(f"expected events of at most {MAX_EVENT} bytes, got a longer one")
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._named = value.removeprefix(b" ")
        elif field and field not in _FIELDS and self._stray_size < MAX_PARSED:
            self._stray_size += len(line)
            self._stray.append(line)

    def _dispatch(self) -> Iterator[bytes]:
        data = b"\n".join(self._data)
        self._data.clear()
        self._data_size = 0
        self.name, self._named = self._named, b""
        bare = data.strip(_BLANKS)
        self.marked = self.marked or bare == b"[DONE]"
        if bare not in (b"", b"[DONE]"):
            yield data


# ---------------------------------------------------------------- JSON

_BETWEEN = re.compile(rb"[\s,]*")
_OUTSIDE = re.compile(rb"[\"{}\[\]]")
_INSIDE = re.compile(rb"[\"\\]")


class JsonReader:
    """JSON objects one after another, with or without an array around them, to the bytes of each.

    It only counts brackets and skips strings; whether an object is JSON its parser tells.
    """

    def __init__(self) -> None:
        self._value = _Buffer()
        self._depth = 0
        self._in_array = False
        self._in_string = False
        self._escaped = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The objects that this piece completes. Raises `ValueError` for anything else than an object."""
        position = 0
        while position < len(piece):
            if self._depth == 0:
                position = self._between(piece, position)
                if self._depth == 0:
                    continue
                begin, position = position, position + 1
            else:
                begin = position
            position = self._inside(piece, position)
            self._value.add(piece[begin:position])
            if self._depth == 0:
                yield self._value.take()

    def end(self) -> Iterator[bytes]:
        """Nothing: an object that is not whole was cut."""
        return iter(())

    def _between(self, piece: bytes, position: int) -> int:
        """Go to the next object and enter it, or to the end of the piece."""
        found = _BETWEEN.match(piece, position)
        assert found is not None
        position = found.end()
        byte = piece[position : position + 1]
        if byte == b"{":
            self._depth = 1
        elif byte == b"[" and not self._in_array:
            self._in_array = True
            position += 1
        elif byte == b"]" and self._in_array:
            self._in_array = False
            position += 1
        elif byte:
            shown = piece[position : position + 80].decode("utf-8", "replace")
            raise ValueError(f"expected a JSON object, got {shown!r}")
        return position

    def _inside(self, piece: bytes, position: int) -> int:
        """After the end of the object, or to the end of the piece."""
        while position < len(piece) and self._depth:
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(piece, position)
            if found is None:
                return len(piece)
            position = found.end()
            self._meet(found.group())
        return position

    def _meet(self, byte: bytes) -> None:
        if byte == b'"':
            self._in_string = not self._in_string
        elif byte == b"\\":
            self._escaped = True
        elif byte in (b"{", b"["):
            self._depth += 1
        else:
            self._depth -= 1
