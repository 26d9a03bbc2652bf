"""The events of OpenAI's Responses API, read one by one into chunks: pure, no I/O, no clock.

Events are JSON objects as they came, not the SDK's model classes, so that an item of any kind can go back as it was.
Items are known by `output_index` (ids rotate at one provider); what they hold counts as said by
`response.output_item.done`. What of an item becomes `fidelity` is said in `agentloop.models.openai_responses`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from agentloop.errors import FinishReason
from agentloop.messages import JsonObject, Text, Thinking, Usage
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
from agentloop.models._shared import MISREAD, kept_json, misread, text_or_none

_INCOMPLETE: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that are calls of the caller's tools, and where they keep the arguments."""


_SPOKEN = frozenset({"message", "reasoning", *CALLS})
"""Items that we have words for; all others are opaque."""

MAX_PARTS: Final = 256
"""Parts of one message: each block keeps what its item says beside its text, so many parts of a large item would fill
the memory."""


class _Piecewise:
    """A block that comes in pieces: our index, and whether it has begun and ended."""

    __slots__ = ("begun", "ended", "index", "refusal")

    def __init__(self, index: int, refusal: bool = False) -> None:
        self.index = index
        self.refusal = refusal
        self.begun = False
        self.ended = False


class _Item:
    """An output item: as it was added, and its blocks in the making (a message has one for each content part)."""

    __slots__ = ("annotations", "block", "item", "parts", "place", "section", "whole")

    def __init__(self, item: JsonObject, place: int) -> None:
        self.item = item
        self.place = place
        self.block: _Piecewise | None = None  # thinking or a call
        self.section: tuple[str, Any] | None = None  # which part of a reasoning the last piece belonged to
        self.parts: dict[int, _Piecewise] = {}
        self.annotations: dict[int, list[Any]] = {}
        self.whole = False


class EventReader:
    """Events of one stream, as JSON objects, to chunks: iterate `feed(event)` for each. No I/O, no clock.

    `names` maps the provider's names of tools to ours, where they differ. Raises `ModelError`: what an `error` event or
    a failed response says, or `malformed` for an event of a known kind that has not its shape. Unknown events are passed
    over, unknown items kept whole.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}
        self._items: dict[int, _Item] = {}
        self._count = 0
        self._last = 0
        self._called = False
        self._refused = False
        self._told: set[int] = set()  # blocks that have begun
        self._opaque: list[int] = []  # a heap: places of opaque items that are not out
        self._waiting: dict[int, JsonObject] = {}  # those of them that are whole
        self.settled = False
        """Whether the reply is whole."""

    def feed(self, event: Any) -> Iterator[ModelChunk]:
        """The chunks of one event, in order."""
        try:
            handle = _HANDLERS.get(event.get("type"))
            if handle is not None:
                for chunk in handle(self, event):
                    if self._begins(chunk) and self._waiting:
                        yield from self._release()
                    yield chunk
        except MISREAD as error:
            raise misread(event, "an event of the Responses API", error) from error

    # ------------------------------------------------------------ items

    def _at(self, event: JsonObject) -> int:
        self._last = event.get("output_index", self._last)
        return self._last

    def _added(self, event: JsonObject) -> Iterable[ModelChunk]:
        entry = self._enter(self._at(event), event["item"])
        return self._open_call(entry) if entry.item.get("type") in CALLS else ()

    def _enter(self, place: int, item: JsonObject) -> _Item:
        entry = self._items[place] = _Item(item, place)
        if item.get("type") not in _SPOKEN:
            heapq.heappush(self._opaque, place)
        return entry

    def _item(self, event: JsonObject, kind: str) -> _Item:
        index = self._at(event)
        if index not in self._items:  # pieces of an item that was never announced
            self._enter(index, {"type": kind})
        return self._items[index]

    def _begins(self, chunk: ModelChunk) -> bool:
        """Whether a chunk is the first of its block, or the last of all: what is whole before it cannot wait longer."""
        if isinstance(chunk, UsageChunk) or (isinstance(chunk, BlockChunk) and _is_opaque(chunk)):
            return False
        index = getattr(chunk, "index", None)
        known = index in self._told
        if index is not None:
            self._told.add(index)
        return not known

    def _release(self) -> list[ModelChunk]:
        """All opaque items that are whole, in their order."""
        places = sorted(self._waiting)
        return [BlockChunk(Text("", kept_json(self._waiting.pop(place)))) for place in places]

    def _finish_opaque(self, place: int, item: JsonObject) -> list[ModelChunk]:
        """Tools of the provider's run at once and end in any order: one waits for those that stand before it."""
        self._waiting[place] = item
        chunks: list[ModelChunk] = []
        while self._opaque and self._items[self._opaque[0]].whole:
            whole = self._waiting.pop(heapq.heappop(self._opaque), None)
            if whole is not None:
                chunks.append(BlockChunk(Text("", kept_json(whole))))
        return chunks

    def _new_block(self, refusal: bool = False) -> _Piecewise:
        self._count += 1
        return _Piecewise(self._count - 1, refusal)

    def _open_call(self, entry: _Item) -> list[ModelChunk]:
        item = entry.item
        self._called = True
        entry.block = self._new_block()
        name = text_or_none(item.get("name"))
        name = self._names.get(name, name) if name else None
        return [ToolCallChunk("", text_or_none(item.get("call_id")), name, entry.block.index, _beside(item))]

    # ------------------------------------------------------------ pieces

    def _arguments(self, event: JsonObject) -> Iterable[ModelChunk]:
        entry = self._item(event, "function_call")
        opening = [] if entry.block else self._open_call(entry)
        assert entry.block is not None
        entry.block.begun = True
        return [*opening, ToolCallChunk(text_or_none(event.get("delta")) or "", index=entry.block.index)]

    def _text(self, event: JsonObject) -> Iterable[ModelChunk]:
        entry = self._item(event, "message")
        chunks, part = self._part(entry, event.get("content_index", 0), "refusal" in event["type"])
        part.begun = True
        return [*chunks, TextChunk(text_or_none(event.get("delta")) or "", part.index)]

    def _part(self, entry: _Item, number: int, refusal: bool) -> tuple[list[ModelChunk], _Piecewise]:
        part = entry.parts.get(number)
        if part is not None:
            return [], part
        chunks = []
        for earlier in entry.parts.values():  # a part ends where the next begins: it need not hold that one back
            if earlier.begun and not earlier.ended:
                chunks += self._end_part(earlier, entry.item, {})
        if len(entry.parts) == MAX_PARTS:
            raise ValueError(f"a message of more than {MAX_PARTS} parts")
        part = entry.parts[number] = self._new_block(refusal)
        self._refused = self._refused or refusal
        return chunks, part

    def _part_added(self, event: JsonObject) -> Iterable[ModelChunk]:
        kind = (event.get("part") or {}).get("type")
        if kind not in ("output_text", "refusal"):
            return ()
        return self._part(self._item(event, "message"), event.get("content_index", 0), kind == "refusal")[0]

    def _annotation(self, event: JsonObject) -> Iterable[ModelChunk]:
        entry = self._item(event, "message")
        entry.annotations.setdefault(event.get("content_index", 0), []).append(event["annotation"])
        return ()

    def _summary(self, event: JsonObject) -> Iterable[ModelChunk]:
        return self._reasoning(event, ("summary", event.get("summary_index", 0)))

    def _reasoning_text(self, event: JsonObject) -> Iterable[ModelChunk]:
        return self._reasoning(event, ("text", None))

    def _reasoning(self, event: JsonObject, section: tuple[str, Any]) -> Iterable[ModelChunk]:
        """A piece of a summary, whose parts are set apart by a blank line, or of the text where there is no summary."""
        entry = self._item(event, "reasoning")
        if entry.section is not None and entry.section[0] != section[0]:
            return ()  # one of the two is shown; the item keeps both
        piece = text_or_none(event.get("delta")) or ""
        if entry.section not in (None, section):
            piece = "\n\n" + piece
        entry.section = section
        entry.block = entry.block or self._new_block()
        entry.block.begun = True
        return (ThinkingChunk(piece, entry.block.index),)

    # ------------------------------------------------------------ whole items

    def _done(self, event: JsonObject) -> Iterable[ModelChunk]:
        item = event["item"]
        entry = self._item(event, item.get("type"))
        return self._finish_item(entry, item)

    def _finish_item(self, entry: _Item, item: JsonObject) -> list[ModelChunk]:
        """What is known of an item only at its end: fidelity, what had not come in pieces, an opaque item itself."""
        if entry.whole:
            return []
        entry.whole = True
        kind = item.get("type")
        if kind == "message":
            return self._finish_message(entry, item)
        if kind == "reasoning":
            return self._finish_reasoning(entry, item)
        if kind in CALLS:
            return self._finish_call(entry, item)
        return self._finish_opaque(entry.place, item)

    def _finish_message(self, entry: _Item, item: JsonObject) -> list[ModelChunk]:
        chunks: list[ModelChunk] = []
        for number, content in enumerate(item.get("content") or ()):
            opening, part = self._part(entry, number, content.get("type") == "refusal")
            chunks += opening
            if part.ended:
                continue
            if not part.begun:
                part.begun = True
                text = text_or_none(content.get("text")) or text_or_none(content.get("refusal")) or ""
                chunks.append(TextChunk(text, part.index))
            chunks += self._end_part(part, item, self._extras(entry, number, content))
        return chunks

    def _extras(self, entry: _Item, number: int, content: JsonObject) -> dict[str, Any]:
        extras = {key: value for key, value in content.items() if key not in ("type", "text", "refusal")}
        if number in entry.annotations and not extras.get("annotations"):
            extras["annotations"] = entry.annotations[number]
        return extras

    def _end_part(self, part: _Piecewise, item: JsonObject, extras: dict[str, Any]) -> list[ModelChunk]:
        part.ended = True
        if part.refusal:
            extras = {"type": "refusal", **extras}
        fidelity = {key: value for key, value in item.items() if key not in ("type", "role", "content")}
        if extras:
            fidelity["part"] = extras
        return [TextChunk("", part.index, kept_json(fidelity)), BlockEnd(part.index)]

    def _finish_reasoning(self, entry: _Item, item: JsonObject) -> list[ModelChunk]:
        block = entry.block
        if block is not None:
            return [ThinkingChunk("", block.index, kept_json(item)), BlockEnd(block.index)]
        text = "\n\n".join(part.get("text") or "" for part in item.get("summary") or ())
        text = text or "".join(part.get("text") or "" for part in item.get("content") or ())
        return [BlockChunk(Thinking(text, kept_json(item)))]

    def _finish_call(self, entry: _Item, item: JsonObject) -> list[ModelChunk]:
        before, entry.item = entry.item, item
        if entry.block is None:
            chunks = self._open_call(entry)
        elif _beside(item) != _beside(before):
            chunks = [ToolCallChunk("", text_or_none(item.get("call_id")), None, entry.block.index, _beside(item))]
        else:
            chunks = []
        assert entry.block is not None
        index, arguments = entry.block.index, text_or_none(item.get(CALLS[item["type"]]))
        if arguments and not entry.block.begun:
            chunks.append(ToolCallChunk(arguments, index=index))
        return [*chunks, BlockEnd(index)]

    # ------------------------------------------------------------ the end

    def _completed(self, event: JsonObject) -> Iterable[ModelChunk]:
        response = event["response"]
        chunks = self._rest(response.get("output") or ())
        reason: FinishReason = "stop"
        if event["type"] == "response.incomplete" or response.get("status") == "incomplete":
            reason = _INCOMPLETE.get(str((response.get("incomplete_details") or {}).get("reason")), "unknown")
        elif self._refused:
            reason = "refusal"
        elif self._called:
            reason = "tool_use"
        kept = {key: response[key] for key in _KEPT if response.get(key) is not None}
        ended = [*chunks, *_usage(response), Finish(reason, kept_json(kept))]
        self.settled = True
        return ended

    def _rest(self, output: Iterable[JsonObject]) -> list[ModelChunk]:
        """The items that the stream itself did not finish, or never told of, as the final response has them."""
        chunks: list[ModelChunk] = []
        known = {entry.item.get("id") for entry in self._items.values()} - {None}
        for index, item in enumerate(output):
            entry = self._items.get(index)
            if entry is None and item.get("id") not in known:
                entry = self._enter(index, item)
            if entry is not None and entry.item.get("type") == item.get("type"):
                chunks += self._finish_item(entry, item)
        return chunks

    def _failed(self, event: JsonObject) -> Iterator[ModelChunk]:
        response = event["response"]
        yield from _usage(response)
        raise payload_error(response.get("error") or {}, message="the response failed without a reason")

    def _error(self, event: JsonObject) -> Iterator[ModelChunk]:
        error = event.get("error")
        raise payload_error(error if isinstance(error, Mapping) else event)


def answer_events(answer: JsonObject) -> Iterator[JsonObject]:
    """The event that a whole answer stands for, of a server that does not stream. Raises `ModelError` for any other
    object: an error, then, under a status that says nothing of one."""
    if answer.get("status") not in ("completed", "incomplete", "failed"):
        raise payload_error(answer)
    yield {"type": f"response.{answer['status']}", "response": answer}


_KEPT = ("id", "model", "status", "incomplete_details", "service_tier", "usage")
"""What of the response is kept as the message's `fidelity`."""

_HANDLERS: Mapping[str, Callable[[EventReader, JsonObject], Iterable[ModelChunk]]] = {
    "response.output_item.added": EventReader._added,
    "response.output_item.done": EventReader._done,
    "response.content_part.added": EventReader._part_added,
    "response.output_text.delta": EventReader._text,
    "response.output_text.annotation.added": EventReader._annotation,
    "response.refusal.delta": EventReader._text,
    "response.reasoning_summary_text.delta": EventReader._summary,
    "response.reasoning_text.delta": EventReader._reasoning_text,
    "response.function_call_arguments.delta": EventReader._arguments,
    "response.custom_tool_call_input.delta": EventReader._arguments,
    "response.completed": EventReader._completed,
    "response.incomplete": EventReader._completed,
    "response.failed": EventReader._failed,
    "error": EventReader._error,
}


def _is_opaque(chunk: BlockChunk) -> bool:
    return isinstance(chunk.block, Text)


def _beside(item: JsonObject) -> dict[str, Any]:
    """What a call's item holds beside what its chunks say. Its status is a state of the stream, not of the call. The input
    of a custom call is kept as well: it is no JSON, which is all that a history's arguments may be."""
    kept = {key: value for key, value in item.items() if key not in ("call_id", "name", "arguments", "status")}
    if kept.get("type") == "function_call":
        del kept["type"]
    return kept_json(kept)  # type: ignore[no-any-return]


def _usage(response: JsonObject) -> list[ModelChunk]:
    sent = response.get("usage")
    if not sent:
        return []
    details = sent.get("input_tokens_details") or {}
    given = sent.get("input_tokens") or 0
    cached = min(details.get("cached_tokens") or 0, given)
    return [UsageChunk(Usage(cached, given - cached, sent.get("output_tokens") or 0))]
