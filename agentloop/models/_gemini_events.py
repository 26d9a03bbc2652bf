"""The events of Gemini's streamGenerateContent, read one by one into chunks: pure, no I/O, no clock.

An event is a `GenerateContentResponse`: parts of one reply as far as they came since the last one. Consecutive texts of
one kind are one block, any other part is a block of its own. What of a part becomes `fidelity` is said in
`agentloop.models.gemini`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.errors import FinishReason, ModelError
from agentloop.messages import InlineData, InlineThinking, JsonObject, Text, ToolCall, Usage
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

log = logging.getLogger("agentloop.models.gemini")

_FINISH: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}

_FAILED: Mapping[str, str] = {
    "MALFORMED_FUNCTION_CALL": "malformed",  # the reply is empty then, and often fine when asked again
    "MALFORMED_RESPONSE": "malformed",
    "UNEXPECTED_TOOL_CALL": "malformed",
    "MISSING_THOUGHT_SIGNATURE": "rejected",
}
"""Finish reasons that say that the reply failed, and how."""

_JOINED = frozenset({"groundingMetadata", "citationMetadata", "urlContextMetadata", "logprobsResult"})
"""What of a candidate comes in pieces, a few entries an event; of all else the last one counts."""


class EventReader:
    """Events of one stream, as JSON, to chunks: `feed` each, then `end`. No I/O, no clock.

    `names` maps the provider's names of tools to ours, where they differ. Raises `ModelError`: what an error in the
    stream says, `content_filter` for a blocked prompt, or `malformed` for an event that has not its shape.
    """

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}
        self._kind: type[TextChunk] | type[ThinkingChunk] | None = None
        self._length = 0
        self._entries: list[dict[str, Any]] = []
        self._call: _StreamedCall | None = None
        self._called = False
        self._message: dict[str, Any] = {}

    @property
    def settled(self) -> bool:
        """Whether the reply is whole whatever follows.

        Gemini 1 gave each event a finish reason; its events had no `responseId`.
        """
        return "finishReason" in self._message and "responseId" in self._message

    def feed(self, event: Any) -> Iterator[ModelChunk]:
        """The chunks of one event, in order."""
        return _guarded(self._read(event), event)

    def end(self) -> Iterator[ModelChunk]:
        """The chunks due when the stream has ended; without a finish reason it was cut, and there are none."""
        return _guarded(self._finish(), self._message)

    def _finish(self) -> Iterator[ModelChunk]:
        reason = self._message.get("finishReason")
        if reason is None:
            return
        if reason in _FAILED:
            words = self._message.get("finishMessage") or "the provider ended the reply with this reason"
            raise ModelError(_FAILED[reason], f"{reason}: {words}")
        yield from self._close()
        finish = _FINISH.get(reason, "unknown")
        if finish == "stop" and self._called:
            finish = "tool_use"
        yield Finish(finish, kept_json(self._message))

    # ------------------------------------------------------------ events

    def _read(self, event: Any) -> Iterator[ModelChunk]:
        if isinstance(event, list):
            for item in event:
                yield from self._response(item)
        else:
            yield from self._response(event)

    def _response(self, event: JsonObject) -> Iterator[ModelChunk]:
        if event.get("error"):
            raise payload_error(event)
        self._message |= {key: value for key, value in event.items() if key != "candidates" and value is not None}
        if usage := event.get("usageMetadata"):
            yield UsageChunk(_usage(usage))
        for candidate in event.get("candidates") or ():
            if candidate.get("index"):  # of several alternatives the first counts
                log.debug("an alternative reply is passed over")
            else:
                yield from self._candidate(candidate)
        feedback = event.get("promptFeedback") or {}
        if feedback.get("blockReason"):
            words = feedback.get("blockReasonMessage") or "the provider refused the prompt"
            raise ModelError("content_filter", f"{feedback['blockReason']}: {words}")

    def _candidate(self, candidate: JsonObject) -> Iterator[ModelChunk]:
        for part in (candidate.get("content") or {}).get("parts") or ():
            yield from self._part(part)
        for key, value in candidate.items():
            if key in ("content", "index") or value in (None, ""):
                continue
            before = self._message.get(key)
            if key in _JOINED and isinstance(before, dict) and isinstance(value, dict):
                _join(before, value)
            else:
                self._message[key] = value

    # ------------------------------------------------------------ parts

    def _part(self, part: JsonObject) -> Iterator[ModelChunk]:
        part = {key: value for key, value in part.items() if value is not None}
        if isinstance(part.get("text"), str):
            yield from self._text(part)
            return
        if "functionCall" in part:
            yield from self._close_text()
            yield from self._function_call(part)
        elif part.keys() - {"thought"}:  # else an empty part, which says nothing
            yield from self._close()
            yield BlockChunk(_data(part) or Text("", kept_json(part)))

    def _text(self, part: JsonObject) -> Iterator[ModelChunk]:
        text = part["text"]
        kind: type[TextChunk] | type[ThinkingChunk] = ThinkingChunk if part.get("thought") else TextChunk
        beside = {key: value for key, value in part.items() if key not in ("text", "thought")}
        if kind is not self._kind:
            if not text and not beside:
                return
            yield from self._close()
            self._kind = kind
        length = len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
        if beside:
            self._entries.append({"start": self._length, "end": self._length + length, **beside})
        self._length += length
        yield kind(text)

    def _close(self) -> Iterator[ModelChunk]:
        """End whatever is open: what else comes begins a new block."""
        yield from self._close_call()
        yield from self._close_text()

    def _close_text(self) -> Iterator[ModelChunk]:
        if self._kind is not None and self._entries:
            yield self._kind("", fidelity=kept_json({"parts": self._entries}))
        self._kind, self._length, self._entries = None, 0, []

    def _function_call(self, part: JsonObject) -> Iterator[ModelChunk]:
        call = part["functionCall"]
        beside: dict[str, Any] = {key: value for key, value in part.items() if key != "functionCall"}
        name = text_or_none(call.get("name"))
        if self._call is not None and not name:
            self._call.add(call, beside)
        else:
            yield from self._close_call()
            self._call = _StreamedCall(call, beside)
        if not call.get("willContinue"):
            yield from self._close_call()

    def _close_call(self) -> Iterator[ModelChunk]:
        call, self._call = self._call, None
        if call is None:
            return
        self._called = True
        name = text_or_none(call.kept.get("name"))
        if not name:
            raise ValueError("a call without a name")
        rest = {key: value for key, value in call.kept.items() if key not in _TOLD}
        fidelity = kept_json({**call.beside, "functionCall": rest} if rest else call.beside)
        own_id, name = text_or_none(call.kept.get("id")) or "", self._names.get(name, name)
        arguments = compact_json(call.arguments())
        if call.in_pieces:
            yield BlockChunk(ToolCall(own_id, name, arguments, fidelity))
        else:
            yield ToolCallChunk(arguments, own_id or None, name, fidelity=fidelity)
            yield BlockEnd()


def _guarded(chunks: Iterator[ModelChunk], shown: Any) -> Iterator[ModelChunk]:
    try:
        yield from chunks
    except MISREAD as error:
        raise misread(shown, "an event of the Gemini API", error) from error


_TOLD = frozenset({"name", "args", "partialArgs", "willContinue"})
"""What of a `functionCall` its chunk says."""


class _StreamedCall:
    """A call: whole, or in the making where arguments are streamed as values at paths (`partialArgs`)."""

    def __init__(self, call: JsonObject, beside: dict[str, Any]) -> None:
        self.kept: dict[str, Any] = {}
        self.beside: dict[str, Any] = {}
        self.in_pieces = "partialArgs" in call or "willContinue" in call
        self._paths = _Paths()
        self.add(call, beside)

    def add(self, call: JsonObject, beside: JsonObject) -> None:
        """Take a part of it."""
        self.kept |= {key: value for key, value in call.items() if value is not None}
        self.beside |= beside
        for argument in call.get("partialArgs") or ():
            self._paths.add(argument)

    def arguments(self) -> Any:
        """Its arguments as JSON. Their text is known only now: the values may come in any order."""
        whole = self.kept.get("args")
        if self._paths.root:
            return {**(whole or {}), **self._paths.build()}
        return {} if whole is None else whole


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,9})\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")
_MAX_STEPS = 150


class _Paths:
    """A JSON object from values at paths (`$.a.list[0].b`); texts come in pieces. Linear in what is added."""

    def __init__(self) -> None:
        self.root: dict[str | int, Any] = {}

    def add(self, argument: JsonObject) -> None:
        """Put a value where it belongs. Raises `ValueError` for a path of another form."""
        *way, last = _steps(argument["jsonPath"])
        place = self.root
        for step in way:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise ValueError(f"a value stands where {argument['jsonPath']!r} goes through")
        if "stringValue" in argument or argument.get("willContinue"):
            pieces = place.setdefault(last, [])
            pieces.append(text_or_none(argument.get("stringValue")) or "")
        elif "numberValue" in argument or "boolValue" in argument:
            place[last] = argument.get("numberValue", argument.get("boolValue"))
        elif "nullValue" in argument:
            place[last] = None

    def build(self) -> dict[str, Any]:
        """The object."""
        return {str(key): _built(value) for key, value in self.root.items()}


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    position = 1
    while position < len(path) and len(steps) < _MAX_STEPS:
        found = _STEP.match(path, position)
        if found is None:
            break
        name, index, quoted, double = found.groups()
        steps.append(
            int(index) if index is not None else next(text for text in (name, quoted, double) if text is not None)
        )
        position = found.end()
    if not path.startswith("$") or position < len(path) or not steps or isinstance(steps[0], int):
        raise ValueError(f"expected a path like $.name[0], got {path[:200]!r}")
    return steps


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return "".join(value)
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, int) for key in value):
        return [_built(value[key]) for key in sorted(value)]
    return {str(key): _built(item) for key, item in value.items()}


def _data(part: JsonObject) -> InlineData | InlineThinking | None:
    """Data that the model made, or None for another part."""
    blob = part.get("inlineData")
    if not isinstance(blob, dict):
        return None
    data, mime_type = blob.get("data"), blob.get("mimeType")
    if not isinstance(data, str) or not isinstance(mime_type, str):
        return None
    beside = {key: value for key, value in part.items() if key != "inlineData"}
    if rest := {key: value for key, value in blob.items() if key not in ("data", "mimeType")}:
        beside["inlineData"] = rest
    return (InlineThinking if part.get("thought") else InlineData)(data, mime_type, kept_json(beside))


def _join(before: dict[str, Any], more: JsonObject) -> None:
    """Add what came later: lists grow, unless the later one says the earlier anew."""
    for key, value in more.items():
        known = before.get(key)
        if isinstance(known, list) and isinstance(value, list) and value[: len(known)] != known:
            known.extend(value)
        else:
            before[key] = value


def _usage(sent: JsonObject) -> Usage:
    cached = count_in(sent, "cachedContentTokenCount")
    other = count_in(sent, "promptTokenCount") + count_in(sent, "toolUsePromptTokenCount") - cached
    output = count_in(sent, "candidatesTokenCount") + count_in(sent, "thoughtsTokenCount")
    return Usage(cached, max(other, 0), output)
