"""Chat Completions in: from the provider's chunks to ours, whatever dialect it speaks. No I/O.

One block for reasoning, one for text, one for each call, in order of their first content, by index; the kernel puts in
order what a provider interleaves. Reasoning ends when anything else begins, so that the answer is shown as it comes.

What the fidelity of a block holds, for `_chat_body` to send back:

- thinking: `field`, the name that the reasoning came under (`reasoning_content`, `reasoning`, `reasoning_text`, or
  `content` where it stood in a list of parts); `reasoning_details`, merged; `reasoning_opaque`
- a call: `extra_content` (a signature that belongs to it)
- text: `annotations`; `refusal: true`; of an empty text: `parts`, parts of a content list that we have no word for
- spoken audio, whose transcript is the text: `audio`, with its `id` and when it expires
- the message: `reasoning_details` that came when the thinking had ended; what a provider adds beside the reply
  (`citations`, `search_results`, `executed_tools`)
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.errors import FinishReason, ModelError
from agentloop.messages import InlineData, Usage
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
from agentloop.models._shared import compact_json, kept_json, split_data_url

FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "safety": "content_filter",
    "refusal": "refusal",
}
"""Words for the end of a reply; others are `unknown`."""

FAILURES: Mapping[str, str] = {
    "error": "network",
    "network_error": "network",
    "insufficient_system_resource": "overloaded",
}
"""Words for the end of a reply that say that it failed, and the error codes they mean."""

EXTRAS = ("citations", "search_results", "executed_tools")

TRANSCRIPT, THINKING, TEXT, REFUSAL = -1, 0, 1, 2


class Reader:
    """Feed it each chunk of a stream as a JSON object, then `end`. A reader serves one stream.

    `text_ends_at_call`: see `ChatQuirks`; `audio_format`: the one that the request asked for.
    """

    def __init__(self, *, text_ends_at_call: bool = False, audio_format: str | None = None) -> None:
        self.finish_reason: str | None = None
        """The provider's word for the end of the reply; None while none came."""
        self._native_reason: str | None = None  # what a gateway quotes of it in the words of whom it asked
        self._text_ends_at_call = text_ends_at_call
        self._out: list[ModelChunk] = []
        self._open: set[int] = set()  # blocks that may go on
        self._fidelity: dict[int, dict[str, Any]] = {}  # what is still to be said of them
        self._thinking_ended = False
        self._streamed = False
        self._extras: dict[str, Any] = {}
        self._calls = _Calls()
        self._others: dict[str, int] = {}  # kinds of parts without a word of ours -> index
        self._audio = _Audio(audio_format)
        self._usage: Usage | None = None

    def read(self, chunk: Any) -> list[ModelChunk]:
        """The chunks that one event of the stream gives. Raises `ModelError` for errors that the stream tells of, and
        (`malformed`) for anything that is not a chunk."""
        if not isinstance(chunk, Mapping):
            raise _malformed("an object", chunk)
        choices = chunk.get("choices")
        if chunk.get("error") or chunk.get("object") == "error" or (choices is None and _refuses(chunk)):
            raise payload_error(chunk)
        self._out = []
        for choice in _list(choices, "choices"):
            if not isinstance(choice, Mapping):
                raise _malformed("an object in choices", choice)
            if not choice.get("index"):  # of several alternatives the first counts
                self._choice(choice)
        self._read_usage(chunk)
        self._extras.update({name: chunk[name] for name in EXTRAS if chunk.get(name)})
        return self._out

    def end(self, *, marked: bool = False) -> list[ModelChunk]:
        """The last chunks, when the stream has ended. Nothing when it was cut: no reason came, and no end mark
        (`marked`: the provider sent `[DONE]`). Raises `ModelError` when the reason was a failure."""
        reason = (self.finish_reason or "").lower()
        if not reason and not marked and not self._audio.is_whole:
            return []
        if self.failed:
            raise self._failure(reason)
        self._out = []
        if (spoken := self._audio.block()) is not None:
            self._begin(self._calls.new_index())
            self._out.append(BlockChunk(spoken))
        late = self._fidelity.get(THINKING, {})
        if self._thinking_ended and THINKING not in self._open and "reasoning_details" in late:
            self._extras["reasoning_details"] = merge_details(late.pop("reasoning_details"))
        for index in sorted(self._fidelity):
            self._tell_fidelity(index)
        finish = FINISH_REASONS.get(reason, "stop" if self._audio.is_whole and not reason else "unknown")
        if REFUSAL in self._open and finish in ("stop", "unknown"):
            finish = "refusal"
        self._out.append(Finish(finish, kept_json(self._extras) or None))
        return self._out

    @property
    def failed(self) -> bool:
        """Whether the word for the end of the reply says that it failed."""
        return (self.finish_reason or "").lower() in FAILURES

    def _failure(self, reason: str) -> ModelError:
        """The error that such a word stands for, where no error object came: by the word a gateway quotes, else by ours."""
        words = f"the provider ended its reply with finish_reason {reason!r}"
        native = self._native_reason
        if native is None or native.lower() == reason:
            return ModelError(FAILURES[reason], words)
        error = payload_error({"message": f"{words}, native_finish_reason {native!r}", "code": native})
        return error if error.code != "network" else ModelError(FAILURES[reason], error.message)

    # ------------------------------------------------------------ choices

    def _choice(self, choice: Mapping[str, Any]) -> None:
        if choice.get("error"):
            raise payload_error(choice["error"])
        delta = choice.get("delta")
        if delta is None and not self._streamed:  # an answer that came whole although a stream was asked for; after a
            delta = choice.get("message")  # stream it only says again what came
        if delta is not None:
            self._streamed = True
            if not isinstance(delta, Mapping):
                raise _malformed("an object as delta", delta)
            self._delta(delta)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        self._native_reason = _word(choice.get("native_finish_reason")) or self._native_reason

    def _delta(self, delta: Mapping[str, Any]) -> None:
        self._reasoning(delta)
        content = delta.get("content")
        if isinstance(content, str):
            self._text(TEXT, content)
        elif content is not None:
            for part in _list(content, "content"):
                self._part(part)
        if isinstance(delta.get("refusal"), str):
            self._text(REFUSAL, delta["refusal"])
        if delta.get("annotations"):
            noted = self._fidelity.setdefault(TEXT, {}).setdefault("annotations", [])
            noted.extend(_list(delta["annotations"], "annotations"))
        for image in _list(delta.get("images"), "images"):
            self._image(image)
        if isinstance(delta.get("audio"), Mapping):
            self._audio.add(delta["audio"])
            if isinstance(said := delta["audio"].get("transcript"), str):
                self._text(TRANSCRIPT, said)
        for call in _list(delta.get("tool_calls"), "tool_calls"):
            self._call(call)
        if isinstance(delta.get("function_call"), Mapping):  # what calls were before there could be several
            self._call({"index": "function_call", "function": delta["function_call"]})
        self._extras.update({name: delta[name] for name in EXTRAS if delta.get(name)})

    # ------------------------------------------------------------ reasoning

    def _reasoning(self, delta: Mapping[str, Any]) -> None:
        first = delta.get("reasoning_content")
        self._thinking("reasoning_content", first)
        if not (isinstance(first, str) and first):  # else the same text under two names
            self._thinking("reasoning", delta.get("reasoning"))
        details = delta.get("reasoning_details")
        if details:
            noted = self._fidelity.setdefault(THINKING, {}).setdefault("reasoning_details", [])
            noted.extend(_list(details, "reasoning_details"))
        text, opaque = delta.get("reasoning_text"), delta.get("reasoning_opaque")
        if text or opaque:
            self._open.add(THINKING)
            self._thinking("reasoning_text", text or "")
            if isinstance(opaque, str):
                self._fidelity.setdefault(THINKING, {}).setdefault("reasoning_opaque", []).append(opaque)

    def _thinking(self, field: str, text: Any) -> None:
        if not isinstance(text, str) or (text == "" and THINKING not in self._open):
            return
        self._open.add(THINKING)
        self._fidelity.setdefault(THINKING, {}).setdefault("field", field)
        self._out.append(ThinkingChunk(text, THINKING))

    # ------------------------------------------------------------ text and parts

    def _text(self, index: int, text: str) -> None:
        if index not in self._open:
            if not text:  # an empty piece opens no block
                return
            self._begin(index)
            if index == REFUSAL:
                self._fidelity[REFUSAL] = {"refusal": True}
        self._out.append(TextChunk(text, index))

    def _part(self, part: Any) -> None:
        """One part of a content list: text, thinking (a text or a list of parts), or what we have no word for."""
        if not isinstance(part, Mapping):
            raise _malformed("an object in content", part)
        kind = part.get("type")
        if kind == "text":
            self._text(TEXT, str(part.get("text") or ""))
        elif kind == "thinking":
            thinking = part.get("thinking")
            if isinstance(thinking, list):
                thinking = "".join(str(piece.get("text") or "") for piece in thinking if isinstance(piece, Mapping))
            self._thinking("content", thinking or "")
        else:
            index = self._others.get(str(kind))
            if index is None:
                index = self._others[str(kind)] = self._calls.new_index()
                self._begin(index)
                self._out.append(TextChunk("", index))
            self._fidelity.setdefault(index, {}).setdefault("parts", []).append(part)

    def _image(self, image: Any) -> None:
        """A picture that the model made. Its data is the block; an address alone is kept as it came."""
        address = image.get("image_url") if isinstance(image, Mapping) else None
        url = address.get("url") if isinstance(address, Mapping) else None
        data = split_data_url(url) if isinstance(url, str) else None
        if data is None:
            self._part({"type": "image", "image": image})
            return
        self._begin(self._calls.new_index())
        self._out.append(BlockChunk(InlineData(data[1], data[0])))

    # ------------------------------------------------------------ calls

    def _call(self, call: Any) -> None:
        if not isinstance(call, Mapping):
            raise _malformed("an object in tool_calls", call)
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        own_id, name = _word(call.get("id")), _word(function.get("name"))
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = compact_json(arguments)
        index = self._calls.index_of(call.get("index"), own_id, name, arguments)
        if index not in self._open:
            self._begin(index)
            if self._text_ends_at_call and TEXT in self._open:
                self._tell_fidelity(TEXT)
                self._out.append(BlockEnd(TEXT))
                self._open.discard(TEXT)
        extra = call.get("extra_content")
        fidelity = {"extra_content": kept_json(extra)} if isinstance(extra, Mapping) and extra else None
        self._out.append(ToolCallChunk(arguments, own_id, name, index, fidelity))

    # ------------------------------------------------------------ blocks

    def _begin(self, index: int) -> None:
        self._leave_thinking()
        self._open.add(index)

    def _leave_thinking(self) -> None:
        """Reasoning is over when something else begins, unless it never was in front."""
        if THINKING in self._fidelity and self._open <= {THINKING}:
            self._tell_fidelity(THINKING)
            self._out.append(BlockEnd(THINKING))
            self._open.discard(THINKING)
            self._thinking_ended = True

    def _tell_fidelity(self, index: int) -> None:
        fidelity = self._fidelity.pop(index, None)
        if fidelity:
            if "reasoning_details" in fidelity:
                fidelity["reasoning_details"] = merge_details(fidelity["reasoning_details"])
            if "reasoning_opaque" in fidelity:
                fidelity["reasoning_opaque"] = "".join(fidelity["reasoning_opaque"])
            made = ThinkingChunk if index == THINKING else TextChunk
            self._out.append(made("", index, kept_json(fidelity)))

    # ------------------------------------------------------------ usage

    def _read_usage(self, chunk: Mapping[str, Any]) -> None:
        usage = chunk.get("usage")
        extension = chunk.get("x_groq")
        if usage is None and isinstance(extension, Mapping):
            usage = extension.get("usage")
        read = read_usage(usage)
        if read is not None and read != self._usage:
            self._usage = read
            self._out.append(UsageChunk(read))


class _Calls:
    """Which call a fragment belongs to: by its index, else by its id, else the last one."""

    def __init__(self) -> None:
        self._next = 3
        self._by_key: dict[object, int] = {}
        self._ids: dict[int, str] = {}
        self._named: dict[int, bool] = {}  # index -> whether arguments came after the name
        self._last: int | None = None

    def new_index(self) -> int:
        self._next += 1
        return self._next - 1

    def index_of(self, key: Any, own_id: str | None, name: str | None, arguments: str) -> int:
        index = self._by_key.get(key) if isinstance(key, int | str) else self._unnumbered(own_id, name)
        known_id = self._ids.get(index) if index is not None else None
        if known_id and own_id and own_id != known_id and name:  # an index used again, with an id and a name of its own
            index = None
        if index is None:
            # arguments alone begin no call: some count them otherwise than their calls
            index = self.new_index() if own_id or name or self._last is None else self._last
            if isinstance(key, int | str):
                self._by_key[key] = index
        if own_id:
            self._ids.setdefault(index, own_id)
            self._by_key.setdefault(("id", own_id), index)
        if name or index in self._named:
            self._named[index] = self._named.get(index, False) or arguments != ""
        self._last = index
        return index

    def _unnumbered(self, own_id: str | None, name: str | None) -> int | None:
        if own_id:
            return self._by_key.get(("id", own_id))
        if name and self._last is not None and self._named.get(self._last):
            return None  # a second name after arguments: another call
        return self._last


class _Audio:
    """Speech, as its base64 comes: in pieces of one text, or each piece a text of its own."""

    def __init__(self, format: str | None) -> None:
        self._mime_type = "audio/pcm" if format in (None, "pcm16") else f"audio/{format}"
        self._pieces: list[str] = []
        self._beside: dict[str, Any] = {}

    def add(self, audio: Mapping[str, Any]) -> None:
        """Take what a delta says of it."""
        if _word(audio.get("data")):
            self._pieces.append(audio["data"])
        self._beside.update({name: audio[name] for name in ("id", "expires_at") if audio.get(name) is not None})

    @property
    def is_whole(self) -> bool:
        """Whether its end was told: a stream of speech may end with that, and name no reason."""
        return "expires_at" in self._beside

    def block(self) -> InlineData | None:
        """All of it; None if there was none. Raises `ModelError` (`malformed`) for anything that is not base64."""
        if not self._pieces:
            return None
        data = "".join(self._pieces)
        try:
            if "=" in data.rstrip("="):
                whole = b"".join([base64.b64decode(piece, validate=True) for piece in self._pieces])
                data = base64.b64encode(whole).decode()
            else:
                data += "=" * (-len(data) % 4)  # RFC 4648 lets a sender leave the padding out
                base64.b64decode(data, validate=True)
        except ValueError as error:
            raise ModelError(
                "malformed", f"delta.audio.data: expected base64, got text that is none ({error})"
            ) from None
        return InlineData(data, self._mime_type, {"audio": self._beside} if self._beside else None)


def merge_details(details: Iterable[Any]) -> list[dict[str, Any]]:
    """The entries of `reasoning_details` with the pieces of each joined: those of one type, index, format and id.

    A piece without an id goes on with the first entry. Texts, summaries, data and signatures are concatenated; of other
    keys the first value stays. Joining what was joined changes nothing.
    """
    merged: list[dict[str, Any]] = []
    pieces: list[dict[str, list[str]]] = []
    known: dict[str, int] = {}
    for detail in details:
        if not isinstance(detail, Mapping):
            continue
        key = compact_json([detail.get("type"), detail.get("index"), detail.get("format")])
        own_key = compact_json([key, detail.get("id")])
        at = known.get(key if detail.get("id") is None else own_key)
        if at is None:
            at = len(merged)
            merged.append({})
            pieces.append({})
        known.setdefault(key, at)
        known.setdefault(own_key, at)
        for name, value in detail.items():
            if name in ("text", "summary", "data", "signature") and isinstance(value, str):
                merged[at].setdefault(name, "")  # its place among the keys
                pieces[at].setdefault(name, []).append(value)
            elif merged[at].get(name) is None:
                merged[at][name] = value
    for entry, parts in zip(merged, pieces, strict=True):
        entry.update({name: "".join(texts) for name, texts in parts.items()})
    return merged


def read_usage(usage: Any) -> Usage | None:
    """Tokens of a usage object, None when it is none.

    `completion_tokens` leaves reasoning out with some providers: a larger total shows it, or more reasoning than
    completion. Cached tokens beyond the prompt (seen) are cut to it.
    """
    if not isinstance(usage, Mapping) or not usage:
        return None
    prompt, completion = _number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens"))
    details, spent = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = _number(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    cached = cached or _number(usage.get("prompt_cache_hit_tokens")) or _number(usage.get("cached_tokens"))
    reasoning = _number(spent.get("reasoning_tokens")) if isinstance(spent, Mapping) else 0
    beyond = _number(usage.get("total_tokens")) - prompt - completion
    output = completion + max(beyond, reasoning if reasoning > completion else 0, 0)
    return Usage(min(cached, prompt), prompt - min(cached, prompt), output)


def _refuses(chunk: Mapping[str, Any]) -> bool:
    """Whether a chunk without choices tells of an error: in words, or by a number beside them that is not zero."""
    status = chunk.get("base_resp")
    return "message" in chunk or bool(isinstance(status, Mapping) and status.get("status_code"))


def _number(value: Any) -> int:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
    return int(value) if usable else 0


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _malformed(f"a list as {what}", value)
    return value


def _malformed(expected: str, value: Any) -> ModelError:
    return ModelError("malformed", f"stream: expected {expected}, got {type(value).__name__} {str(value)[:80]!r}")
