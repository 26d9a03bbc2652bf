"""Bounds on what an SDK may be made to hold and to do: its own readers of streams and of error bodies have none.

Decoded bytes count, so a small body that is compressed counts with what it becomes. One of the SDKs copies all that it
holds of an event at each of its lines: what that comes to is bounded as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from agentloop.errors import ModelError
from agentloop.models._held import Held, close_whole

MAX_HELD: Final = 64 * 1024 * 1024
"""Bytes of one event of a stream, or of a whole answer that is no stream."""

MAX_COPIED: Final = 4 * 1024 * 1024 * 1024
"""Bytes of one event, each counted once for every line end of the event that comes behind it."""

_BLANK_LINES: Final = (b"\n\n", b"\r\r", b"\n\r\n")
_LONGEST: Final = 3
_END: Final = object()


async def bound_answer(response: Any) -> None:
    """A hook for the answers of an `AsyncClient`: reading one raises `ModelError` (`malformed`) when more than `MAX_HELD`
    bytes came and no event ended."""
    response.aiter_bytes = _Bounded(response)


class _Bounded:
    """Stands in for the response's own `aiter_bytes`."""

    def __init__(self, response: Any) -> None:
        self._read = response.aiter_bytes
        self._stream = "event-stream" in response.headers.get("content-type", "").lower()
        self._held = self._copied = 0
        self._tail = b""

    async def __call__(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        pieces = self._read(chunk_size)
        inside: list[AsyncGenerator[Any, Any]] = [pieces]
        try:
            while (piece := await Held(anext(pieces, _END), inside.append)) is not _END:
                self._count(piece)
                yield piece
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
