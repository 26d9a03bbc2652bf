"""What every adapter does alike: options, ids in a provider's alphabet, data URLs, errors of what it sends and reads.

Options of a request (`Config.options`, `ModelRequest.options`) fall in two groups. The common ones, which every adapter
maps to its provider's words or refuses with `unsupported`:

    temperature   number                       max_tokens    longest reply in tokens, thinking included
    top_p         number                       stop          a text, or several, at which the reply ends
    seed          integer                      thinking      off · minimal · low · medium · high · max
    tool_choice   auto · none · required · {"name": "one_tool"}
    parallel_tool_calls   whether one reply may hold several calls

All others go into the request's body as they are, under the key and with the value given, over what the adapter itself
would send. An option that is None counts as not given.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from agentloop.errors import ModelError
from agentloop.messages import AgentMessage, AssistantMessage, ContentBlock, Text, ToolCall, ToolResultMessage
from agentloop.model import ModelRequest

# ---------------------------------------------------------------- options

ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "max"]
THINKING_LEVELS: tuple[str, ...] = get_args(ThinkingLevel)


@attrs.frozen
class CommonOptions:
    """The common options, checked; None where not given. `extra` holds the others, for the request's body."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    thinking: ThinkingLevel | None = None
    tool_choice: str | Mapping[str, str] | None = None
    """`auto`, `none`, `required`, or `{"name": …}`."""
    parallel_tool_calls: bool | None = None
    extra: Mapping[str, Any] = attrs.field(factory=dict)


def common_options(options: Mapping[str, Any]) -> CommonOptions:
    """Check the common options, set the others aside. Raises `ModelError` (`invalid_input`) that names the option."""
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        check = _CHECKS.get(name)
        if check is None:
            extra[name] = value
        else:
            values[name] = check(name, value)
    return CommonOptions(**values, extra=extra)


def invalid_option(name: str, expected: str, value: Any) -> ModelError:
    """The error of an option whose value nobody could use."""
    return ModelError("invalid_input", f"options[{name!r}]: expected {expected}, got {value!r}")


def unsupported_option(name: str, value: Any, who: str, instead: str = "") -> ModelError:
    """The error of an option that this provider or model cannot do."""
    return ModelError("unsupported", f"options[{name!r}]: {who} cannot do {value!r}{instead and ': ' + instead}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_option(name, "a number", value)
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid_option(name, "a positive integer", value)
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid_option(name, "an integer", value)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid_option(name, "true or false", value)
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise invalid_option(name, "a text or a list of texts, none empty", value)
    return tuple(texts)


def _level(name: str, value: Any) -> str:
    if value not in THINKING_LEVELS:
        raise invalid_option(name, f"one of {', '.join(THINKING_LEVELS)}", value)
    return str(value)


def _choice(name: str, value: Any) -> str | dict[str, str]:
    if value in ("auto", "none", "required"):
        return str(value)
    if isinstance(value, Mapping) and isinstance(value.get("name"), str) and len(value) == 1:
        return {"name": value["name"]}
    raise invalid_option(name, 'auto, none, required or {"name": TOOL}', value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "temperature": _number,
    "top_p": _number,
    "max_tokens": _count,
    "seed": _integer,
    "stop": _texts,
    "thinking": _level,
    "tool_choice": _choice,
    "parallel_tool_calls": _flag,
}


# ---------------------------------------------------------------- history out


def same_model(message: AssistantMessage, provider: str, model: str) -> bool:
    """Whether a reply came from this provider and model, so that its thinking and fidelity may go back.

    Neither crosses models: a signature of another one is refused, and foreign thinking is somebody else's.
    """
    return message.provider == provider and message.model == model


def call_ids(messages: Iterable[AgentMessage]) -> list[str]:
    """The ids of all calls and results, in order of first appearance."""
    ids: dict[str, None] = {}
    for message in messages:
        if isinstance(message, AssistantMessage):
            ids.update((block.id, None) for block in message.content if isinstance(block, ToolCall))
        elif isinstance(message, ToolResultMessage):
            ids[message.tool_call_id] = None
    return list(ids)


def legal_ids(ids: Iterable[str], pattern: str, *, alphabet: str = "0-9A-Za-z_-", length: int = 40) -> dict[str, str]:
    """A provider-legal id for each id: itself where it matches `pattern` whole, else one made of it.

    No two ids share one, and the same id always gets the same one as long as no other takes it: requests stay equal
    from turn to turn (caches depend on it). `alphabet` (inside of a character class) and `length` say what a made one
    may hold; `length` below 16 gives a hash alone.
    """
    legal = re.compile(pattern)
    ids = list(ids)
    taken = {own for own in ids if legal.fullmatch(own)}
    result: dict[str, str] = {}
    for own in ids:
        if own in taken:
            result[own] = own
            continue
        for attempt in range(len(taken) + 1):
            made = _made_id(own, attempt, alphabet, length)
            if made not in taken:
                break
        taken.add(made)
        result[own] = made
    return result


def _made_id(own: str, attempt: int, alphabet: str, length: int) -> str:
    digest = hashlib.sha256(f"{own}\0{attempt}".encode("utf-8", "surrogatepass")).hexdigest()
    if length < 16:
        return digest[:length]
    kept = re.sub(f"[^{alphabet}]", "_", own)[: length - 9]
    return f"{kept}_{digest[:8]}"


def tool_names(request: ModelRequest) -> Iterable[str]:
    """The names of all tools of a request, offered and called, each once."""
    called = [
        block.name
        for message in request.messages
        if isinstance(message, AssistantMessage)
        for block in message.content
        if isinstance(block, ToolCall)
    ]
    return dict.fromkeys([*(tool.name for tool in request.tools), *called])


def arguments_text(arguments: str) -> str:
    """The arguments of a call as a provider takes them: JSON text, `{}` where the model sent nothing."""
    return arguments if arguments.strip() else "{}"


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call for a provider that takes them as JSON; `{}` where they are no object that JSON can say."""
    try:
        return (
            json.loads(call.arguments, parse_constant=_no_number, parse_float=_number_in_range) if call.parse() else {}
        )
    except ValueError:
        return {}


def _number_in_range(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def sayable(content: Iterable[ContentBlock], convert: Callable[[ContentBlock], object]) -> tuple[ContentBlock, ...]:
    """The content of a tool's result in which each block that `convert` refuses is a text that says so.

    A person can be told that a message cannot go out; a tool's result stands in the history for good, and must not end
    every request to come.
    """
    return tuple([block if isinstance(block, Text) else _said(block, convert) for block in content])


def _said(block: ContentBlock, convert: Callable[[ContentBlock], object]) -> ContentBlock:
    try:
        convert(block)
    except ModelError as error:
        kind = getattr(block, "mime_type", None) or block.type
        return Text(f"[left out, {kind}: {error.message.removeprefix('result.content[0]: ')}]")
    return block


def wrong_message(message: AgentMessage, where: str) -> ModelError:
    """The error of a message that no model takes."""
    got = type(message).__name__
    return ModelError("invalid_input", f"{where}: expected a user, assistant or tool result message, got {got}")


def wrong_block(block: ContentBlock, place: str, expected: str = "text, an image or data") -> ModelError:
    """The error of a block that has no place in a message to this provider."""
    return ModelError("invalid_input", f"{place}: expected {expected}, got a {block.type} block")


def wrong_address(url: str, place: str) -> ModelError:
    """The error of an image whose address nobody could open."""
    return ModelError("invalid_input", f"{place}: expected a web or data URL, got {url[:80]!r}")


def no_messages() -> ModelError:
    """The error of a request that has nothing to say."""
    return ModelError("invalid_input", "messages: expected at least one with content, got none")


# ---------------------------------------------------------------- events in

MISREAD = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading an event raises that has not the shape of its kind."""


def misread(event: Any, expected: str, error: Exception) -> ModelError:
    """The error of such an event."""
    return ModelError("malformed", f"expected {expected}, got {str(event)[:200]} ({error!r})")


def count_in(sent: Mapping[str, Any], key: str) -> int:
    """A number of tokens that a provider may have sent."""
    value = sent.get(key)
    return value if isinstance(value, int) else 0


def kept_json(value: Any) -> Any:
    """JSON that stands beside a reply, to be kept as its fidelity: null for NaN and infinities, which servers in Python may
    write and no JSON value can hold. No reply is given up for them."""
    if isinstance(value, dict):
        return {key: kept_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [kept_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_or_none(value: Any) -> str | None:
    """A text that a provider sent, or null. Raises `TypeError` for anything else: it would fail later, and further away."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"expected a text, got {type(value).__name__}")


def compact_json(value: Any) -> str:
    """JSON without blanks, not escaped to ASCII."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---------------------------------------------------------------- data URLs

_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*?);base64,", re.IGNORECASE)


def data_url(data: str, mime_type: str) -> str:
    """A `data:` URL of base64 data."""
    return f"data:{mime_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """MIME type and base64 data of a `data:` URL, or None for any other address."""
    found = _DATA_URL.match(url[:1_000])
    return (found.group(1) or "application/octet-stream", url[found.end() :]) if found else None
