"""From a model's chunks to the starts, deltas and ends of blocks: the discipline that no adapter has to keep.

One block is shown at a time. Chunks of other blocks are held until it ends, then come as start, one delta and what follows.
The hot path is a piece of the open block; everything else is in slow functions. Nothing here waits or knows a clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, get_args

import attrs

from agentloop._values import REPLACEMENT, class_name, is_kind, plain_text, stitch, valid_text
from agentloop.errors import FinishReason, ModelError, StopReason
from agentloop.events import (
    END_OF,
    START_OF,
    BlockAdded,
    Event,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
)
from agentloop.messages import AssistantMessage, ContentBlock, Text, Thinking, ToolCall, Usage, content_blocks
from agentloop.model import BlockChunk, BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk
from agentloop.reply import Partial

log = logging.getLogger("agentloop")


class _Block:
    """One block in the making: the open one, or one that waits for its turn."""

    __slots__ = (
        "call_id",
        "carry",
        "complete",
        "delta",
        "fidelity",
        "held",
        "key",
        "kind",
        "name",
        "number",
        "sent_id",
        "whole",
    )

    def __init__(self, kind: type, key: int | None) -> None:
        self.kind = kind
        self.key = key  # the provider's index, None where it gives none
        self.delta: Any = _DELTAS.get(kind)
        self.number = -1  # our index, once it is shown
        self.sent_id: str | None = None  # a call's id as the provider sent it
        self.call_id = ""  # the same, made unique when it is shown
        self.name: str | None = None
        self.held: list[str] = []  # what came before it could be shown
        self.carry = ""  # half a surrogate pair that waits for the other half
        self.fidelity: dict[str, Any] = {}
        self.complete = False
        self.whole: ContentBlock | None = None  # a block that does not stream

    @property
    def showable(self) -> bool:
        return self.kind is not ToolCall or self.name is not None


_DELTAS: dict[type, type] = {Text: TextDelta, Thinking: ThinkingDelta, ToolCall: ToolCallDelta}
_PIECES: dict[type, str] = {
    Text: "TextChunk.text", Thinking: "ThinkingChunk.thinking", ToolCall: "ToolCallChunk.arguments",
}  # fmt: skip
_TRAILING = 256
"""Chunks after a reply's `Finish` that are read in the hope that the stream ends: usage comes there."""


class Assembler:
    """Feed it chunks; it emits the reply's events. `close` ends whatever is open.

    `emit_message` takes the start and end of the message, `emit` its updates, `emit_delta` those updates whose delta is a
    piece of the open block (the choke point's fast path). `claim_id` makes a call's id unique, or makes one.
    """

    __slots__ = (
        "_blocks",
        "_claim_id",
        "_emit",
        "_emit_delta",
        "_emit_message",
        "_ended_calls",
        "_fidelity",
        "_header",
        "_index",
        "_open",
        "_trailing",
        "_waiting",
        "finish_reason",
        "partial",
        "usage",
    )

    def __init__(
        self,
        header: AssistantMessage,
        emit: Callable[[Event], None],
        emit_delta: Callable[[MessageUpdate], None],
        claim_id: Callable[[str | None], str],
        emit_message: Callable[[Event], None],
    ) -> None:
        self._header = header
        self._emit = emit
        self._emit_delta = emit_delta
        self._claim_id = claim_id
        self._emit_message = emit_message
        self.partial: Partial | None = None
        """The reply in the making; None until it has content."""
        self.finish_reason: FinishReason | None = None
        """Why the reply ended; None while no `Finish` was read."""
        self.usage: Usage | None = None
        """The last usage that was reported."""
        self._trailing = 0  # chunks that came after the reply's `Finish`
        self._fidelity: Any = None
        self._index = 0
        self._open: _Block | None = None
        self._waiting: deque[_Block] | tuple[()] = ()  # an empty deque takes 760 bytes
        self._ended_calls: dict[int | None, None] = {}

    def name(self, provider: str | None, model: str | None) -> None:
        """Say who answers; before the first chunk."""
        self._header = attrs.evolve(self._header, provider=provider, model=model)

    def feed(self, chunk: Any) -> None:
        """Take one chunk. Raises `ModelError` (`malformed`) for what makes no sense, and when no end comes."""
        if self.finish_reason is None:
            handler = _HANDLERS.get(type(chunk)) or _handler(chunk)
            handler(self, chunk)
            return
        self._trailing += 1
        if self._trailing > _TRAILING:
            raise ModelError("malformed", "the stream does not end after its Finish")
        if is_kind(chunk, UsageChunk):
            self._usage(chunk)
        else:
            log.warning("dropped a %s that came after the model's Finish", type(chunk).__name__)

    # ------------------------------------------------------------ chunks

    def _plain(self, chunk: str) -> None:
        block = self._open
        if block is not None and block.kind is Text and block.number >= 0 and not block.carry and chunk.isascii():
            self._emit_delta(self.partial.grow(TextDelta(block.number, chunk)))  # type: ignore[union-attr]
        else:
            self._piece(Text, chunk, None, None)

    def _text(self, chunk: TextChunk) -> None:
        block, text, index = self._open, chunk.text, chunk.index
        if (
            block is not None
            and block.kind is Text
            and (index is None or index == block.key)
            and chunk.fidelity is None
            and block.number >= 0
            and not block.carry
            and type(text) is str
            and text.isascii()
        ):
            self._emit_delta(self.partial.grow(TextDelta(block.number, text)))  # type: ignore[union-attr]
        else:
            self._piece(Text, text, index, chunk.fidelity)

    def _thinking(self, chunk: ThinkingChunk) -> None:
        self._piece(Thinking, chunk.thinking, chunk.index, chunk.fidelity)

    def _piece(self, kind: type, text: str, index: int | None, fidelity: Any) -> None:
        block = self._find(kind, index) or self._begin(kind, index)
        if fidelity:
            block.fidelity.update(fidelity)
        self._grow(block, text)

    def _call(self, chunk: ToolCallChunk) -> None:
        id = None if chunk.id is None else _text_of(chunk.id, "ToolCallChunk.id")
        name = None if chunk.name is None else _text_of(chunk.name, "ToolCallChunk.name")
        block = self._find(ToolCall, chunk.index)
        if block is not None and chunk.index is None and id and block.sent_id not in (None, id):
            block = None
        if block is None:
            if self._belongs_to_ended(chunk.index, id or name):
                raise ModelError("malformed", "a fragment came for a tool call that had ended")
            block = self._begin(ToolCall, chunk.index)
        block.sent_id = block.sent_id or id
        block.name = block.name or name
        if chunk.fidelity:
            block.fidelity.update(chunk.fidelity)
        if block is self._open and block.number < 0 and block.showable:
            self._show(block)
            if not chunk.arguments:  # an empty first fragment only opens the call
                return
        self._grow(block, chunk.arguments)

    def _belongs_to_ended(self, index: int | None, said: str | None) -> bool:
        """Whether a fragment is of a call that has ended; `said`: its id or name, which a new one begins with."""
        if index is not None:
            return index in self._ended_calls
        return bool(self._ended_calls) and not said

    def _block(self, chunk: BlockChunk) -> None:
        try:
            (whole,) = content_blocks([chunk.block])
        except (TypeError, ValueError) as error:
            raise ModelError("malformed", f"BlockChunk.block: {error}") from None
        if type(whole) is ToolCall:
            id, name = _text_of(whole.id, "ToolCall.id"), _text_of(whole.name, "ToolCall.name")
            if name is None:
                raise ModelError("malformed", "a tool call came without a name")
            whole = ToolCall(id or "", name, whole.arguments, whole.fidelity)
        block = self._begin(type(whole), None, whole)
        if block is self._open:
            self._end_open()

    def _block_end(self, chunk: BlockEnd) -> None:
        block = self._open
        waiting = [held for held in self._waiting if held.key == chunk.index and not held.complete]
        if block is not None and (block.key == chunk.index or (chunk.index is None and not waiting)):
            self._end_open()
        elif waiting:
            waiting[0].complete = True

    def _usage(self, chunk: UsageChunk) -> None:
        usage: Any = chunk.usage
        expected = "UsageChunk.usage: expected a Usage of whole numbers"
        if type(usage) is not Usage:
            raise ModelError("malformed", f"{expected}, got {class_name(type(usage))}")
        counts: list[Any] = [usage.cache_read, usage.cache_write, usage.output, usage.total]
        if not all(is_kind(count, int) and int.bit_length(count) < _COUNT_BITS for count in counts):
            raise ModelError("malformed", f"{expected}, got Usage({', '.join(map(_count, counts))})")
        self.usage = usage if all(type(count) is int for count in counts) else Usage(*map(int.__int__, counts))

    def _finish(self, chunk: Finish) -> None:
        reason = plain_text(chunk.reason)
        if reason not in _REASONS:
            got = type(chunk.reason).__name__ if reason is None else reason
            raise ModelError("malformed", f"Finish.reason: expected one of {', '.join(_REASONS)}, got {got}")
        for block in self._waiting:
            block.complete = True
        if self._open is not None:
            self._end_open()
        self.finish_reason = reason  # type: ignore[assignment]  # one of them
        self._fidelity = chunk.fidelity

    # ------------------------------------------------------------ blocks

    def _find(self, kind: type, index: int | None) -> _Block | None:
        """The block that a chunk goes on with."""
        block = self._open
        if block is not None and block.kind is kind and (index is None or block.key == index):
            return block
        for held in self._waiting:
            if held.kind is kind and held.key == index and not held.complete:
                return held
        return None

    def _begin(self, kind: type, index: int | None, whole: ContentBlock | None = None) -> _Block:
        """A new block. It completes a block that has no index of the provider: such blocks come one after another."""
        if index is not None and not isinstance(index, int):
            raise ModelError("malformed", f"index: expected a whole number or None, got {type(index).__name__}")
        block = _Block(kind, index)
        block.whole, block.complete = whole, whole is not None
        for held in self._waiting:
            held.complete = held.complete or held.key is None
        if self._open is not None and self._open.key is None:
            self._end_open()
        if self._open is not None:
            self._waiting = self._waiting or deque()
            self._waiting.append(block)
            return block
        self._open = block
        if block.showable and kind in _DELTAS:
            self._show(block)
        return block

    def _plain_piece(self, block: _Block, text: object) -> str:
        plain = plain_text(text)
        if plain is None:
            raise ModelError("malformed", f"{_PIECES[block.kind]}: expected a text, got {type(text).__name__}")
        return plain

    def _grow(self, block: _Block, text: str) -> None:
        if type(text) is not str:
            text = self._plain_piece(block, text)
        if block.number < 0:
            block.held.append(text)
            return
        if block.carry or not text.isascii():
            text, block.carry = stitch(block.carry, text)
        assert self.partial is not None
        self._emit_delta(self.partial.grow(block.delta(block.number, text)))

    def _show(self, block: _Block) -> None:
        """Give the block its number and its start, and what was held of it as one delta. A whole call keeps its own events."""
        if block.whole is not None:
            return
        partial = self._reply()
        block.number = self._index
        self._index += 1
        if block.kind is ToolCall:
            block.call_id = self._claim_id(block.sent_id)
            self._emit(partial.update(ToolCallStart(block.number, block.call_id, block.name or "")))
        else:
            self._emit(partial.update(START_OF[block.kind](block.number)))
        if block.held:
            text = "".join(block.held)
            block.held.clear()
            self._grow(block, text)

    def _reply(self) -> Partial:
        if self.partial is None:
            self.partial = Partial(self._header)
            self._emit_message(MessageStart(self._header))
        return self.partial

    def _end_open(self) -> None:
        """End the open block, then show what waits, as far as it goes."""
        while (block := self._open) is not None:
            self._end(block, "completed")
            self._open = block = self._waiting.popleft() if self._waiting else None
            if block is None:
                return
            if block.showable and block.kind in _DELTAS:
                self._show(block)
            if not block.complete:
                return

    def _end(self, block: _Block, stop_reason: StopReason) -> None:
        partial = self.partial
        if block.whole is not None:
            self._add_whole(block.whole)
            return
        if block.number < 0:  # a call that never got a name
            if stop_reason == "completed":
                raise ModelError("malformed", "a tool call ended without a name")
            return
        assert partial is not None
        if block.carry:
            block.carry = ""
            self._emit_delta(partial.grow(block.delta(block.number, REPLACEMENT)))
        fidelity, text = block.fidelity or None, partial.text
        if block.kind is ToolCall:
            made: Any = ToolCall(block.call_id, block.name or "", text, fidelity)
            self._ended_calls[block.key] = None
        else:
            made = block.kind(text, fidelity)
        self._emit(partial.end(END_OF[block.kind](block.number, made, stop_reason), text))

    def _add_whole(self, whole: ContentBlock) -> None:
        partial = self._reply()
        if type(whole) is ToolCall:
            whole = ToolCall(self._claim_id(whole.id or None), whole.name, whole.arguments, whole.fidelity)
        self._emit(partial.update(BlockAdded(self._index, whole)))
        self._index += 1

    # ------------------------------------------------------------ the end

    def close(
        self, stop_reason: StopReason, error_code: str | None = None, error_message: str | None = None
    ) -> AssistantMessage | None:
        """End the reply, whatever is open, and return it; None when it had no content.

        What was held comes as start, delta, end; calls that are not whole are dropped.
        """
        if self._open is not None:
            self._close_blocks(stop_reason)
        partial = self.partial
        if partial is None:
            return None
        committed = stop_reason == "completed"
        header = self._header
        message = AssistantMessage(
            partial.content(),
            stop_reason,
            self.finish_reason if committed else None,
            self.usage,
            header.provider,
            header.model,
            error_code,
            error_message,
            self._fidelity,
        )
        self._emit_message(MessageEnd(message))
        return message

    def _close_blocks(self, stop_reason: StopReason) -> None:
        block = self._open
        assert block is not None
        self._open = None
        self._end(block, stop_reason)
        for held in self._waiting:
            if held.kind is ToolCall and not held.complete:
                continue
            if held.showable and held.kind in _DELTAS:
                self._show(held)
            if held.number >= 0 or held.whole is not None:
                self._end(held, "completed" if held.complete else stop_reason)
        self._waiting = ()


_HANDLERS: dict[type, Callable[[Assembler, Any], None]] = {
    str: Assembler._plain,
    TextChunk: Assembler._text,
    ThinkingChunk: Assembler._thinking,
    ToolCallChunk: Assembler._call,
    BlockEnd: Assembler._block_end,
    BlockChunk: Assembler._block,
    UsageChunk: Assembler._usage,
    Finish: Assembler._finish,
}


_REASONS = get_args(FinishReason)
_COUNT_BITS = 64
"""A count of tokens has fewer: what is longer no sum and no record of it need be able to hold."""


def _count(value: Any) -> str:
    """A count in the words of an error: one that may be, or the class of what may not."""
    return repr(value) if type(value) is int and value.bit_length() < _COUNT_BITS else class_name(type(value))


def _text_of(value: Any, where: str) -> str | None:
    """A text that has characters, made valid; None for none. Raises `ModelError` for anything that is not a text."""
    text = plain_text(value)
    if value is not None and text is None:
        raise ModelError("malformed", f"{where}: expected a text or None, got {type(value).__name__}")
    return valid_text(text) if text else None


def _of_own_class(assembler: Assembler, chunk: str) -> None:
    """A text of a class of its own, whose methods may say anything: it never takes the short way."""
    assembler._piece(Text, chunk, None, None)


def _handler(chunk: Any) -> Callable[[Assembler, Any], None]:
    """The handler of an instance of a subclass. Raises `ModelError` for anything that is not a chunk."""
    for base, handler in _HANDLERS.items():
        if issubclass(type(chunk), base):
            return _of_own_class if base is str else handler
    kind = type(chunk)
    raise ModelError("malformed", f"expected a model chunk or text, got {class_name(kind)}")
