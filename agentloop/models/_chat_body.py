"""Chat Completions out: a request of ours to the body of a provider's. No I/O.

What goes back of a reply is what came: its text, its calls with the arguments as they were sent, and of the same
provider and model also its reasoning, under the name that it came under and byte for byte. Refusals are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentloop._values import thaw_json
from agentloop.errors import ModelError
from agentloop.messages import (
    AssistantMessage,
    ContentBlock,
    Image,
    InlineData,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from agentloop.model import ModelRequest
from agentloop.models._chat_quirks import ChatQuirks
from agentloop.models._chat_reader import merge_details
from agentloop.models._shared import (
    CommonOptions,
    arguments_text,
    call_ids,
    common_options,
    data_url,
    legal_ids,
    same_model,
    sayable,
    unsupported_option,
    wrong_message,
)

AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


class _Target(NamedTuple):
    """Who is asked."""

    provider: str
    model: str
    quirks: ChatQuirks
    ids: Mapping[str, str]


def request_body(request: ModelRequest, *, model: str, provider: str, quirks: ChatQuirks) -> dict[str, Any]:
    """The JSON body of a streaming request.

    Raises `ModelError`: `invalid_input` for an option of a wrong type, `unsupported` for what this provider cannot do.
    """
    options = common_options(request.options)
    rule = quirks.call_id
    ids = legal_ids(call_ids(request.messages), rule.pattern, alphabet=rule.alphabet, length=rule.length)
    target = _Target(provider, model, quirks, ids)
    body: dict[str, Any] = {"model": model, "messages": _messages(request, target), "stream": True}
    if quirks.usage_option:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
    body.update(_options(options, provider, quirks))
    body.update(thaw_json(dict(options.extra)))
    return body


def _tool(spec: ToolSpec) -> dict[str, Any]:
    parameters = thaw_json(spec.parameters) or {"type": "object", "properties": {}}
    function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return {"type": "function", "function": {name: value for name, value in function.items() if value != ""}}


# ---------------------------------------------------------------- options


def _options(options: CommonOptions, provider: str, quirks: ChatQuirks) -> Iterator[tuple[str, Any]]:
    """The common options in the provider's words. Raises `ModelError` (`unsupported`)."""
    choice = options.tool_choice
    values: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "stop": list(options.stop) or None,
        "tool_choice": choice if choice is None or isinstance(choice, str) else _one_tool(choice["name"]),
        "parallel_tool_calls": options.parallel_tool_calls,
    }
    for name, value in values.items():
        if value is None:
            continue
        own_name = quirks.names.get(name, name)
        if own_name is None:
            raise unsupported_option(name, value, provider)
        yield own_name, value
    if options.thinking is not None:
        yield from _thinking(options.thinking, provider, quirks).items()


def _one_tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _thinking(level: str, provider: str, quirks: ChatQuirks) -> Mapping[str, Any]:
    fragment = quirks.thinking.get(level)
    if fragment is None:
        known = ", ".join(quirks.thinking) or "none; the model alone decides"
        raise unsupported_option("thinking", level, provider, f"its levels are {known}")
    return dict(fragment)


# ---------------------------------------------------------------- messages


def _messages(request: ModelRequest, target: _Target) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.system_prompt:
        messages.append({"role": target.quirks.system_role, "content": request.system_prompt})
    pictures: list[dict[str, Any]] = []  # of tool results: they may only follow the last result of a batch
    for position, message in enumerate(request.messages):
        if pictures and not isinstance(message, ToolResultMessage):
            messages.append({"role": "user", "content": pictures})
            pictures = []
        match message:
            case UserMessage(content=content):
                messages.append({"role": "user", "content": _user_content(content)})
            case AssistantMessage():
                messages.extend(_assistant(message, target))
            case ToolResultMessage():
                messages.append(_tool_result(message, target, pictures))
            case _:
                raise wrong_message(message, f"messages[{position}]")
    if pictures:
        messages.append({"role": "user", "content": pictures})
    return messages


def _user_content(content: Sequence[ContentBlock]) -> str | list[dict[str, Any]]:
    if len(content) == 1 and isinstance(content[0], Text):
        return content[0].text
    return [_part(block) for block in content]


def _part(block: ContentBlock) -> dict[str, Any]:
    """A block of the user's side. Raises `ModelError` (`unsupported`) for what this API has no place for."""
    match block:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Image(url=url):
            return {"type": "image_url", "image_url": {"url": url}}
        case InlineData(data=data, mime_type=mime_type):
            if mime_type.startswith("image/"):
                return {"type": "image_url", "image_url": {"url": data_url(data, mime_type)}}
            if mime_type in AUDIO_FORMATS:
                return {"type": "input_audio", "input_audio": {"data": data, "format": AUDIO_FORMATS[mime_type]}}
            if mime_type == "application/pdf":
                return {"type": "file", "file": {"filename": "file.pdf", "file_data": data_url(data, mime_type)}}
            raise ModelError("unsupported", f"chat completions take no {mime_type} in a message")
        case _:
            raise ModelError("unsupported", f"chat completions take no {block.type} block in a user's message")


def _tool_result(message: ToolResultMessage, target: _Target, pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """The result as text; its pictures are set aside with a line that says whose they are."""
    content = sayable(message.content, _part)
    texts = [block.text for block in content if isinstance(block, Text)]
    others = [_part(block) for block in content if not isinstance(block, Text)]
    if others:
        texts.append(f"[{len(others)} attached: see the next user message]")
        pictures.append({"type": "text", "text": f"Attached to the result of {message.tool_name}:"})
        pictures.extend(others)
    return {
        "role": "tool",
        "tool_call_id": target.ids[message.tool_call_id],
        "content": "\n".join(text for text in texts if text),
    }


# ---------------------------------------------------------------- replies


def _assistant(message: AssistantMessage, target: _Target) -> Iterator[dict[str, Any]]:
    own = same_model(message, target.provider, target.model) and target.quirks.echo_reasoning
    result: dict[str, Any] = {"role": "assistant", "content": _reply_content(message.content, own)}
    if own:
        result.update(_reasoning(message))
    calls = [_call(block, target, own) for block in message.content if isinstance(block, ToolCall)]
    if calls:
        result["tool_calls"] = calls
    if result["content"] or len(result) > 2:  # nothing of it may be left: another model's thinking alone
        yield result


def _reply_content(content: Sequence[ContentBlock], own: bool) -> str | list[Any] | None:
    """The text of a reply; a list of parts where the provider sent one and takes it back. None: there is none."""
    parts: list[Any] = []
    as_list = False
    for block in content:
        fidelity: Mapping[str, Any] = getattr(block, "fidelity", None) or {}
        match block:
            case Text(text=text) if text and not fidelity.get("refusal"):
                parts.append({"type": "text", "text": text})
            case Text() if own and fidelity.get("parts"):
                parts.extend(thaw_json(part) for part in fidelity["parts"] if part.get("type") != "image")
                as_list = True
            case Thinking(thinking=thinking) if own and fidelity.get("field") == "content":
                parts.append({"type": "thinking", "thinking": [{"type": "text", "text": thinking}]})
                as_list = True
            case InlineData() if fidelity.get("audio") and any(isinstance(each, Text) for each in content):
                pass  # the text is its transcript; its id goes back for an hour alone
            case InlineData(mime_type=mime_type):  # what a model made can be said, not shown, on its own side
                parts.append({"type": "text", "text": f"[{mime_type}]"})
            case _:
                pass
    if as_list:
        return parts
    return "".join(part["text"] for part in parts) or None


def _reasoning(message: AssistantMessage) -> dict[str, Any]:
    """The reasoning of a reply under the names that it came under."""
    result: dict[str, Any] = {}
    details: list[Any] = []
    for block in message.content:
        if not isinstance(block, Thinking):
            continue
        fidelity = block.fidelity or {}
        field = fidelity.get("field")
        if field and field != "content":
            result[field] = result.get(field, "") + block.thinking
        if fidelity.get("reasoning_opaque"):
            result["reasoning_opaque"] = result.get("reasoning_opaque", "") + fidelity["reasoning_opaque"]
        details.extend(thaw_json(fidelity.get("reasoning_details") or []))
    details.extend(thaw_json((message.fidelity or {}).get("reasoning_details") or []))
    if details:
        result["reasoning_details"] = merge_details(details)
    return result


def _call(block: ToolCall, target: _Target, own: bool) -> dict[str, Any]:
    call: dict[str, Any] = {
        "id": target.ids[block.id],
        "type": "function",
        "function": {"name": block.name, "arguments": arguments_text(block.arguments)},
    }
    if own and block.fidelity and "extra_content" in block.fidelity:
        call["extra_content"] = thaw_json(block.fidelity["extra_content"])
    return call
