"""A bound on what an SDK may be made to hold: its own readers of streams and of error bodies have none.

It counts the decoded bytes, so a small body that is compressed counts with what it becomes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from agentloop.errors import ModelError

MAX_HELD: Final = 64 * 1024 * 1024
"""Bytes of one event of a stream, or of a whole answer that is no stream."""

_BLANK_LINES: Final = (b"\n\n", b"\r\r", b"\n\r\n")
_LONGEST: Final = 3


async def bound_answer(response: Any) -> None:
    """A hook for the answers of an `AsyncClient`: reading one raises `ModelError` (`malformed`) when more than `MAX_HELD`
    bytes came and no event ended."""
    response.aiter_bytes = _Bounded(response)


class _Bounded:
    """Stands in for the response's own `aiter_bytes`."""

    def __init__(self, response: Any) -> None:
        self._read = response.aiter_bytes
        self._stream = "event-stream" in response.headers.get("content-type", "").lower()

    async def __call__(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        held, tail = 0, b""
        pieces = self._read(chunk_size)
        try:
            async for piece in pieces:
                held += len(piece)
                seen = tail + piece
                if self._stream and any(blank in seen for blank in _BLANK_LINES):
                    held = len(piece) - max(piece.rfind(b"\n"), piece.rfind(b"\r")) - 1
                if held > MAX_HELD:
                    raise ModelError("malformed", f"expected events of at most {MAX_HELD} bytes, got a longer one")
                tail = seen[1 - _LONGEST :]
                yield piece
        finally:
            await pieces.aclose()
