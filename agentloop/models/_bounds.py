"""What stands between a server and an SDK: bounds on what it may be made to hold and to do, and a stream in plain form.

Its own readers of streams and of error bodies have no bounds. Decoded bytes count, so a small body that is compressed
counts with what it becomes. One of the SDKs copies all that it holds of an event at each of its lines: what that comes to
is bounded as well.

And its own readers know the grammar of server-sent events by half: a comment after an `id`, a `retry` alone or an event
without data make one raise, a byte order mark costs the first event, a missing blank line the last one. So an SDK gets
each event anew, as its name and one line of data.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final

from agentloop.errors import ModelError
from agentloop.models._errors import read_body
from agentloop.models._framing import SseReader
from agentloop.models._held import Held, close_whole

MAX_HELD: Final = 64 * 1024 * 1024
"""Bytes of one event of a stream, or of a whole answer that is not a stream."""

MAX_COPIED: Final = 4 * 1024 * 1024 * 1024
"""Bytes of one event, each counted once for every line end of the event that comes after it."""

_BLANK_LINES: Final = (b"\n\n", b"\r\r", b"\n\r\n")
_LONGEST: Final = 3
_END: Final = object()


async def bound_answer(response: Any) -> None:
    """A hook for the answers of an `AsyncClient`: reading one raises `ModelError` (`malformed`) when more than `MAX_HELD`
    bytes came and no event ended, and gives a stream's events in plain form."""
    response.aiter_bytes = _Bounded(response)


class _Bounded:
    """Stands in for the response's own `aiter_bytes`."""

    def __init__(self, response: Any) -> None:
        self._read = response.aiter_bytes
        self._stream = "event-stream" in response.headers.get("content-type", "").lower()
        self._stream = self._stream and getattr(response, "is_success", True)
        self._held = self._copied = 0
        self._tail = b""

    async def __call__(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        pieces = self._read(chunk_size)
        inside: list[AsyncGenerator[Any, Any]] = [pieces]
        events = _PlainEvents() if self._stream else None
        try:
            while (piece := await Held(anext(pieces, _END), inside.append)) is not _END:
                self._count(piece)
                for plain in (piece,) if events is None else events.feed(piece):
                    yield plain
            for plain in () if events is None else events.end():
                yield plain
        finally:
            while inside:
                await close_whole(inside.pop().aclose)

    def _count(self, piece: bytes) -> None:
        seen = self._tail + piece
        self._tail = seen[1 - _LONGEST :]
        self._held += len(piece)
        if self._stream:
            self._copied += self._held * (piece.count(b"\n") + piece.count(b"\r"))
            if any(blank in seen for blank in _BLANK_LINES):
                self._held = len(piece) - max(piece.rfind(b"\n"), piece.rfind(b"\r")) - 1
                self._copied = 0
        if self._held > MAX_HELD or self._copied > MAX_COPIED:
            raise ModelError("malformed", f"expected events of at most {MAX_HELD} bytes, got a longer one")


_MARK: Final = b"\xef\xbb\xbf"
_TYPE: Final = re.compile(rb'\s*\{\s*"(?:type"\s*:\s*"([\w.]+)"|(error)"\s*:)')


class _PlainEvents:
    """The bytes of server-sent events, each event as soon as it is whole: a name, one line of data, a blank line.

    An event without a name gets the one that its data begins with: an SDK passes over events without.
    """

    def __init__(self) -> None:
        self._reader = SseReader()
        self._head: bytes | None = b""
        self._marked = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The events that a piece of the body completes. Raises `ModelError` (`malformed`) for one that is too long."""
        if self._head is not None:
            self._head += piece
            if _MARK.startswith(self._head):  # a part of the mark, or nothing yet
                return
            piece, self._head = self._head.removeprefix(_MARK), None
        try:
            for data in self._reader.feed(piece):
                yield from self._done()
                yield self._event(data)
        except ValueError as error:
            raise ModelError("malformed", str(error)) from error
        yield from self._done()

    def end(self) -> Iterator[bytes]:
        """An event that misses no more than its blank line, or an answer that is not a stream in spite of its type."""
        for data in self._reader.end():
            if data[:1] == b"<":
                raise ModelError("malformed", f"expected a stream of events, got {read_body(data).message}")
            if _is_json(data):
                yield self._event(data)
        yield from self._done()

    def _event(self, data: bytes) -> bytes:
        name = self._reader.name
        if not name and (found := _TYPE.match(data)):
            name = found[1] or found[2]
        line = data.replace(b"\n", b" ").replace(b"\r", b" ")
        return b"event: %s\ndata: %s\n\n" % (name, line) if name else b"data: %s\n\n" % line

    def _done(self) -> Iterator[bytes]:
        if self._reader.marked and not self._marked:
            self._marked = True
            yield b"data: [DONE]\n\n"


def _is_json(data: bytes) -> bool:
    """Whether what the end of a body left is whole: what was cut in the middle is left out."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
