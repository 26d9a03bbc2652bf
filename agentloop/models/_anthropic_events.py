"""The events of Anthropic's Messages API, read one by one into chunks: pure, no I/O, no clock.

Events are JSON objects as they came, not the SDK's model classes: those drop the order of keys and reformat dates, and
a signature or a block of an unknown kind must go back as it came. What of a block becomes `fidelity` is said in
`agentloop.models.anthropic`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from agentloop.errors import FinishReason
from agentloop.messages import JsonObject, Text, Thinking, ToolCall, Usage
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.models._errors import payload_error
from agentloop.models._shared import MISREAD, compact_json, count_in, kept_json, misread, text_or_none

log = logging.getLogger("agentloop.models.anthropic")

_FINISH: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_use",
    "pause_turn": "pause",
    "compaction": "pause",  # the provider compacted and waits to be asked again
    "refusal": "refusal",
}

CUT_INPUT: Final = "partial_json"
"""Key of an opaque block for an input that was cut: such a block is shown and stored, never sent back."""


class _Open:
    """A block that has begun: its API object as far as it came whole (`rest`), and what came in pieces, by key."""

    __slots__ = ("begun", "index", "kind", "pieces", "rest")

    def __init__(self, start: dict[str, Any], index: int) -> None:
        self.rest = start
        self.kind: str = text_or_none(start["type"]) or ""
        self.index = index
        self.pieces: dict[str, list[Any]] = {}
        self.begun = False
        """Whether chunks of it are out."""

    def add(self, key: str, value: Any) -> None:
        """A piece more: texts and lists grow, anything else replaces what was there."""
        if not isinstance(value, str | list):
            self.rest[key] = value
            return
        if key not in self.pieces:
            before = self.rest.get(key)
            self.pieces[key] = [before] if isinstance(before, type(value)) else []
        self.pieces[key].append(value)

    def whole(self) -> dict[str, Any]:
        """The API object with its pieces joined (once each: appending to it delta by delta would be quadratic)."""
        for key, parts in self.pieces.items():
            if isinstance(parts[0], str):
                self.rest[key] = "".join(parts)
            else:
                self.rest[key] = [item for part in parts for item in part]
        return self.rest


class EventReader:
    """Events of one stream, as JSON objects, to chunks: `feed` each, then `end`. No I/O, no clock.

    `names` maps the provider's names of tools to ours, where they differ. Raises `ModelError`: what an `error` event
    says, or `malformed` for an event of a known kind that has not its shape. Unknown events are passed over, unknown
    blocks kept whole.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}
        self._open: dict[int | None, _Open] = {}
        self._count = 0
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self.settled = False
        """Whether the reply is whole."""

    def feed(self, event: Any) -> Iterable[ModelChunk]:
        """The chunks of one event, in order."""
        try:
            handle = _HANDLERS.get(event.get("type"))
            return () if handle is None else handle(self, event)
        except MISREAD as error:
            raise misread(event, "an event of the Anthropic API", error) from error

    def end(self) -> Iterable[ModelChunk]:
        """The chunks due when the message is over: none, unless the only stop reason stood in its first event."""
        return self._finish() if self._message.get("stop_reason") is not None else ()

    def _message_start(self, event: JsonObject) -> Iterable[ModelChunk]:
        message = event["message"]
        self._message = {key: value for key, value in message.items() if key in _KEPT and value is not None}
        self._usage = dict(message.get("usage") or {})
        chunks: list[ModelChunk] = [UsageChunk(_usage(self._usage))]
        for block in message.get("content") or ():  # a reply that goes on may begin with blocks, and be whole with them
            chunks += self._block_start({"index": None, "content_block": block})
            chunks += self._block_stop({"index": None})
        return chunks

    def _message_delta(self, event: JsonObject) -> Iterable[ModelChunk]:
        delta = {**event, **(event.get("delta") or {})}
        self._message |= {key: value for key, value in delta.items() if key in _KEPT and value is not None}
        self._usage |= {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        usage = UsageChunk(_usage(self._usage))
        return (usage, *self._finish()) if delta.get("stop_reason") else (usage,)

    def _message_stop(self, event: JsonObject) -> Iterable[ModelChunk]:
        return self.end()

    def _error(self, event: JsonObject) -> NoReturn:
        raise payload_error(event)

    def _finish(self) -> list[ModelChunk]:
        if self.settled:
            return []
        chunks = [chunk for block in self._open.values() for chunk in self._close(block)]
        kept = {**self._message, "usage": self._usage} if self._usage else self._message
        end = Finish(_FINISH.get(self._message["stop_reason"], "unknown"), kept_json(kept))
        self.settled = True
        return [*chunks, end]

    def _block_start(self, event: JsonObject) -> Iterable[ModelChunk]:
        chunks = self._block_stop(event)  # an index that is used again: the earlier block is over
        block = self._open[event["index"]] = _Open(dict(event["content_block"]), self._count)
        self._count += 1
        if block.kind == "tool_use":
            return chunks if block.rest.get("input") else [*chunks, self._call(block)]
        first = block.rest.get(block.kind)  # `text` and `thinking` hold theirs under their own name
        if block.kind in ("text", "thinking") and first:
            return [*chunks, self._piece(block, first)]
        return chunks

    def _call(self, block: _Open) -> ModelChunk:
        block.begun = True
        name = self._name(block)
        return ToolCallChunk("", text_or_none(block.rest["id"]), name, block.index, _beside(block.kind, block.rest))

    def _name(self, block: _Open) -> str | None:
        name = text_or_none(block.rest["name"])
        return self._names.get(name, name) if name else None

    def _block_delta(self, event: JsonObject) -> Iterable[ModelChunk]:
        delta = event["delta"]
        kind = delta["type"]
        block = self._open.get(event["index"])
        if block is None:
            if kind not in ("text_delta", "thinking_delta"):
                log.debug("a %s of a block that never began is passed over", kind)
                return ()
            self._block_start({"index": event["index"], "content_block": {"type": kind.removesuffix("_delta")}})
            block = self._open[event["index"]]
        if kind == "input_json_delta":
            return self._input(block, text_or_none(delta["partial_json"]) or "")
        if kind == f"{block.kind}_delta" and block.kind in ("text", "thinking"):
            return (self._piece(block, delta[block.kind]),)
        if kind == "citations_delta":
            block.add("citations", [delta["citation"]])
            return ()
        for key, value in delta.items():
            if key != "type" and value is not None:
                block.add(key, value)
        return ()

    def _input(self, block: _Open, piece: str) -> Iterable[ModelChunk]:
        if block.kind != "tool_use":
            block.add(CUT_INPUT, piece)
            return ()
        chunk = ToolCallChunk(piece, index=block.index)
        if block.begun or not piece:
            return (chunk,) if block.begun else ()
        return (self._call(block), chunk)

    def _piece(self, block: _Open, sent: Any) -> ModelChunk:
        text = text_or_none(sent) or ""
        block.begun = True
        return TextChunk(text, block.index) if block.kind == "text" else ThinkingChunk(text, block.index)

    def _block_stop(self, event: JsonObject) -> list[ModelChunk]:
        block = self._open.pop(event["index"], None)
        if block is None:
            return []
        chunks = self._close(block)
        return [*chunks, BlockEnd(block.index)] if block.begun else chunks

    def _close(self, block: _Open) -> list[ModelChunk]:
        """What is known of a block only at its end: its fidelity, an opaque block, a call that came whole."""
        if block.kind == "tool_use":
            if block.begun:
                return []
            arguments, beside = compact_json(block.rest["input"]), _beside(block.kind, block.rest)
            call_id, name = text_or_none(block.rest["id"]) or "", self._name(block) or ""
            return [BlockChunk(ToolCall(call_id, name, arguments, beside))]
        whole = block.whole()
        if block.kind not in _STREAMED:
            whole = kept_json(_with_input(whole))
            return [BlockChunk(Thinking("", whole) if block.kind == "redacted_thinking" else Text("", whole))]
        rest = _beside(block.kind, whole)
        if block.begun and not rest:
            return []
        block.begun = True
        return [TextChunk("", block.index, rest) if block.kind == "text" else ThinkingChunk("", block.index, rest)]


def answer_events(answer: JsonObject) -> Iterator[JsonObject]:
    """The events that a whole answer stands for, of a server that does not stream. Raises `ModelError` for any other
    object: an error, then, under a status that says nothing of one."""
    if answer.get("type") != "message":
        raise payload_error(answer)
    yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
    for index, block in enumerate(answer.get("content") or ()):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": answer.get("stop_reason")}}


_KEPT = ("id", "model", "stop_reason", "stop_sequence", "stop_details", "container", "context_management")
"""What of the message is kept as its `fidelity`, beside its usage as sent."""

_STREAMED: Mapping[str, tuple[str, ...]] = {
    "text": ("type", "text"),
    "thinking": ("type", "thinking"),
    "tool_use": ("type", "id", "name", "input"),
}
"""Blocks that become chunks of their own, and which of their keys those say; the rest is fidelity."""

_HANDLERS: Mapping[str, Callable[[EventReader, JsonObject], Iterable[ModelChunk]]] = {
    "message_start": EventReader._message_start,
    "content_block_start": EventReader._block_start,
    "content_block_delta": EventReader._block_delta,
    "content_block_stop": EventReader._block_stop,
    "message_delta": EventReader._message_delta,
    "message_stop": EventReader._message_stop,
    "error": EventReader._error,
}


def _beside(kind: str, block: JsonObject) -> dict[str, Any]:
    """What a streamed block holds beside what its chunks say."""
    beside = {key: value for key, value in block.items() if key not in _STREAMED[kind] and value not in (None, [])}
    return kept_json(beside)  # type: ignore[no-any-return]


def _with_input(block: dict[str, Any]) -> dict[str, Any]:
    text = block.pop(CUT_INPUT, "")
    if not text.strip():
        return block
    try:
        return {**block, "input": json.loads(text)}
    except ValueError:
        return {**block, CUT_INPUT: text}


def _usage(sent: JsonObject) -> Usage:
    other = count_in(sent, "input_tokens") + count_in(sent, "cache_creation_input_tokens")
    return Usage(count_in(sent, "cache_read_input_tokens"), other, count_in(sent, "output_tokens"))
