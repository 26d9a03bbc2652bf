"""`Partial`: a reply in the making, and its message as it stood after any of its deltas."""

from __future__ import annotations

from typing import Any

import attrs

from agentloop.events import (
    BlockAdded,
    Delta,
    MessageUpdate,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from agentloop.messages import AssistantMessage, ContentBlock, Text, Thinking, ToolCall

__all__ = ["Partial"]

_STARTS = frozenset({TextStart, ThinkingStart, ToolCallStart})
_ENDS = frozenset({TextEnd, ThinkingEnd, ToolCallEnd})
_JOIN_AT = 512  # a plain list of a million pieces costs ten times the text


class Partial:
    """A reply in the making: applies deltas, and gives its message as it stood after any of them.

    `update(delta)` applies one and returns its `MessageUpdate`, whose `message` is built only when somebody reads it:
    a snapshot is a count of blocks and of characters in the open one. Deltas must come in legal order.
    """

    __slots__ = ("_chunks", "_length", "_open", "_pieces", "_slots", "header")

    def __init__(self, header: AssistantMessage) -> None:
        self.header = header
        """The message as `MessageStart` showed it (no content)."""
        self._slots: list[ContentBlock | None] = []  # blocks that have ended; None: a call that was not complete
        self._open: list[Any] = []  # per index, of every block: its start, then its whole text once it has ended
        self._pieces: list[str] | None = None
        self._chunks: list[str] = []  # of the open block: pieces that were joined, `_JOIN_AT` at a time
        self._length = 0

    def grow(self, delta: TextDelta | ThinkingDelta | ToolCallDelta) -> MessageUpdate:
        """Apply a piece of the open block. The hot path: `update` without its dispatch."""
        pieces = self._pieces
        assert pieces is not None, "a delta needs an open block"
        text = delta.text
        pieces.append(text)
        self._length = length = self._length + len(text)
        if len(pieces) >= _JOIN_AT:
            self._chunks.append("".join(pieces))
            pieces.clear()
        return MessageUpdate(delta, (self, len(self._slots), length))

    def update(self, delta: Delta) -> MessageUpdate:
        """Apply any delta and return its event."""
        kind = type(delta)
        if kind in _STARTS:
            self._pieces, self._chunks, self._length = [], [], 0
            self._open.append((delta, None))
            return MessageUpdate(delta, (self, len(self._slots), 0))
        if kind in _ENDS:
            return self.end(delta, self._ended_text(delta.block))  # type: ignore[arg-type, union-attr]
        if kind is BlockAdded:
            self._open.append((delta, None))
            self._slots.append(delta.block)  # type: ignore[union-attr]
            return MessageUpdate(delta, (self, len(self._slots), -1))
        return self.grow(delta)  # type: ignore[arg-type]

    def end(self, delta: TextEnd | ThinkingEnd | ToolCallEnd, text: str) -> MessageUpdate:
        """Apply the end of the open block, whose deltas add up to `text`: `update` for who knows that already."""
        self._open[-1] = (self._open[-1][0], text)
        self._pieces, self._chunks = None, []
        complete = type(delta) is not ToolCallEnd or delta.stop_reason == "completed"
        self._slots.append(delta.block if complete else None)
        return MessageUpdate(delta, (self, len(self._slots), -1))

    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks that have ended and count, in order."""
        return tuple([block for block in self._slots if block is not None])

    @property
    def text(self) -> str:
        """The text of the open block so far; empty when none is open."""
        return "" if self._pieces is None else "".join([*self._chunks, *self._pieces])

    def _ended_text(self, block: ContentBlock) -> str:
        """The text of the block that ends: the block's own if its pieces say the same, since a copy may be large."""
        text = _text_of(block)
        if len(text) == self._length:
            at = 0
            for piece in (*self._chunks, *(self._pieces or ())):
                if not text.startswith(piece, at):
                    return self.text
                at += len(piece)
            return text
        return self.text

    def message(self) -> AssistantMessage:
        """The message as it stands now."""
        return self.at(len(self._slots), -1 if self._pieces is None else self._length)

    def at(self, ended: int, length: int) -> AssistantMessage:
        """The message as it stood with `ended` blocks over and `length` characters in the open one (-1: none was open)."""
        blocks = [block for block in self._slots[:ended] if block is not None]
        if length >= 0:
            start, text = self._open[ended]
            blocks.append(_block_so_far(start, (self.text if text is None else text)[:length]))
        return attrs.evolve(self.header, content=tuple(blocks))


def _text_of(block: ContentBlock) -> str:
    if isinstance(block, ToolCall):
        return block.arguments
    return block.thinking if isinstance(block, Thinking) else getattr(block, "text", "")


def _block_so_far(start: Any, text: str) -> ContentBlock:
    if type(start) is ToolCallStart:
        return ToolCall(start.id, start.name, text)
    return Text(text) if type(start) is TextStart else Thinking(text)
