"""OpenAI's Responses API: a history becomes input items, and the events of its stream become chunks.

The rules of the file:

- The history goes out whole in each request: nothing is stored at the provider (`store` is false), no
  `previous_response_id`. Reasoning comes encrypted for that and goes back as it came.
- `fidelity` of a block is what its item holds beside the text, call id, name and arguments: id and phase of a message,
  annotations of a text (under `part`), id and namespace of a call. With a `type` it is the whole item: reasoning,
  built-in tools, kinds that nobody knows yet (a `custom_tool_call` has its input as arguments). It goes back in place,
  but only to the provider and model that made it.
- `Text("", fidelity={"type": …})` in a user message is an input item, or a part of the message, of the caller's (the
  answer to a client-side search, a file by its id) and goes out as it is.
- Where a provider does not store, its ids mean nothing to it, and it refuses reasoning whose neighbour was pruned if both
  have ids: OpenAI gets none back then. Reasoning that is neither encrypted nor plain could not be read and is left out.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from agentloop._values import thaw_json
from agentloop.errors import ModelError
from agentloop.messages import (
    AssistantMessage,
    ContentBlock,
    Image,
    InlineData,
    JsonObject,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from agentloop.model import ModelChunk, ModelRequest
from agentloop.models import _shared as shared
from agentloop.models._adapter import Adapter, Exchange
from agentloop.models._responses_events import EventReader, answer_events
from agentloop.models._sdk import END, SdkClient

__all__ = ["Dialect", "OpenAIResponses", "request_body"]

log = logging.getLogger(__name__)

ENCRYPTED: Final = "reasoning.encrypted_content"
"""What `include` asks for where reasoning is to come back to a provider that stores nothing."""

_EFFORTS = {"off": "none", "max": "xhigh"}  # the other levels have the API's names

_NAME = r"[a-zA-Z0-9_-]{1,64}"
_CALL_ID = r"\S{1,64}"

_FORGETFUL = frozenset({"openai", "azure", "azure-openai"})
"""Providers that look an item's id up in their store."""

_NAMED_ITEMS = frozenset({"reasoning", "message", "function_call", "custom_tool_call", "web_search_call"})
"""Items whose id may be left out."""

_MESSAGE_PARTS = frozenset({"input_text", "input_image", "input_file", "input_audio"})


# ---------------------------------------------------------------- the model


class OpenAIResponses(Adapter):
    """A model callable for OpenAI's Responses API and for what speaks it, on asyncio and trio.

    `client` is an `openai.AsyncOpenAI` (or `AsyncAzureOpenAI`) of the caller's, who also closes it; `base_url`,
    `api_key`, `headers` and `timeout` (seconds) are for the one made here, with the SDK's defaults. It lives as long as a
    request; inside `async with` one is kept, connections included. The SDK's own retries are off. `provider` names who
    answers: it goes into the replies, and reasoning goes back only to the same provider and model.

    `store=None` leaves the word out of requests. `encrypted_reasoning` asks for reasoning to send back; None: unless the
    model is known to have none, since those refuse the question. `summary` is how reasoning is shown when a thinking
    level is set; None: not.

    `options` are defaults for those of a request. Beside the common ones (`docs/configuration.md`, Options) there are
    `store`, `include` (added to ours) and `provider_tools` (the API's own tool objects; one with the name of a tool
    stands in for its description). All others go into the body. `stop` and `seed` are `unsupported`.

    Raises `MissingExtra` without the SDK, `TypeError` for a client that is not asynchronous, `ValueError` without a
    model's name and for another provider without its address. A missing key fails the first request (`auth`).
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        store: bool | None = False,
        encrypted_reasoning: bool | None = None,
        summary: str | None = "auto",
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, provider, options)
        self._dialect = Dialect(provider, store, encrypted_reasoning, summary)
        self._client: SdkClient = SdkClient(
            "openai",
            "AsyncOpenAI",
            client,
            provider=provider,
            base_url=base_url,
            api_key=api_key,
            headers=headers,
            timeout=timeout,
        )

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        body = request_body(request, model=self.model, dialect=self._dialect)
        reader = EventReader({sent: name for name, sent in tool_names(request).items()})
        async with Exchange(self._client) as exchange:
            stream = exchange.hold(await self._client.post(exchange.client(), "/responses", body))
            await stream.take_whole(answer_events)
            while (event := await stream.next(ended=reader.settled)) is not END:
                for chunk in reader.feed(event):
                    yield chunk


# ---------------------------------------------------------------- history out


@attrs.frozen
class Dialect:
    """What differs between those that speak this API; see `OpenAIResponses`, whose parameters these are: `provider`, `store`,
    `encrypted_reasoning`, `summary`."""

    provider: str = "openai"
    store: bool | None = False
    encrypted_reasoning: bool | None = None
    summary: str | None = "auto"

    def asks_encrypted(self, model: str) -> bool:
        """Whether `include` asks for encrypted reasoning."""
        if self.encrypted_reasoning is not None:
            return self.encrypted_reasoning
        return not model.rpartition("/")[2].startswith(("gpt-3.5", "gpt-4", "chatgpt-"))

    def keeps_ids(self) -> bool:
        """Whether ids of items go back."""
        return bool(self.store) or self.provider not in _FORGETFUL


def request_body(request: ModelRequest, *, model: str, dialect: Dialect | None = None) -> dict[str, Any]:
    """The body of a streaming request. Raises `ModelError` (`invalid_input`, `unsupported`), naming the place."""
    options, own = _split_options(request.options)
    dialect = attrs.evolve(dialect or Dialect(), **({"store": own["store"]} if "store" in own else {}))
    names = tool_names(request)
    body: dict[str, Any] = {"model": model}
    if request.system_prompt:
        body["instructions"] = request.system_prompt
    body["input"] = _input(request, model, dialect, names)
    if tools := _tools(request, names, own.get("provider_tools") or ()):
        body["tools"] = tools
        body["tool_choice"] = _tool_choice(options.tool_choice, names)
        body["parallel_tool_calls"] = options.parallel_tool_calls
    body["temperature"] = options.temperature
    body["top_p"] = options.top_p
    body["max_output_tokens"] = options.max_tokens
    body["reasoning"] = _reasoning(options.thinking, dialect)
    include = [ENCRYPTED] if dialect.asks_encrypted(model) else []
    body["include"] = list(dict.fromkeys([*include, *(own.get("include") or ())])) or None
    body["store"] = dialect.store
    body = {key: value for key, value in body.items() if value is not None}
    return {**body, "stream": True, **thaw_json(dict(options.extra))}


_OWN_OPTIONS = frozenset({"store", "include", "provider_tools"})


def _split_options(options: Mapping[str, Any]) -> tuple[shared.CommonOptions, dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in _OWN_OPTIONS and value is not None}
    common = shared.common_options({name: value for name, value in options.items() if name not in _OWN_OPTIONS})
    for name, value in (("seed", common.seed), ("stop", common.stop or None)):
        if value is not None:
            raise shared.unsupported_option(name, value, "the Responses API")
    return common, own


def _reasoning(level: str | None, dialect: Dialect) -> dict[str, Any] | None:
    if level is None:
        return None
    reasoning = {"effort": _EFFORTS.get(level, level)}
    if dialect.summary and level != "off":
        reasoning["summary"] = dialect.summary
    return reasoning


def _tool_choice(choice: str | Mapping[str, str] | None, names: Mapping[str, str]) -> Any:
    if isinstance(choice, Mapping):
        return {"type": "function", "name": names.get(choice["name"], choice["name"])}
    return choice


def tool_names(request: ModelRequest) -> dict[str, str]:
    """The provider's name for each tool: its own where it is legal, else one made of it (a reply's is mapped back)."""
    return shared.legal_ids(shared.tool_names(request), _NAME, length=64)


def _tools(request: ModelRequest, names: Mapping[str, str], own: Iterable[JsonObject]) -> list[dict[str, Any]]:
    given = [thaw_json(tool) for tool in own]
    named = {tool["name"]: tool for tool in given if "name" in tool}
    tools: list[dict[str, Any]] = []
    for tool in request.tools:
        entry: dict[str, Any] = {"type": "function", "name": names[tool.name], "description": tool.description}
        entry["parameters"] = thaw_json(tool.parameters) or {"type": "object", "properties": {}}
        entry["strict"] = False  # the API's default is true, which few schemas satisfy
        if not tool.description:
            del entry["description"]
        tools.append(named.get(tool.name, entry))
    mine = {tool.name for tool in request.tools}
    return tools + [tool for tool in given if tool.get("name") not in mine]


# ---------------------------------------------------------------- input items


def _input(request: ModelRequest, model: str, dialect: Dialect, names: Mapping[str, str]) -> list[dict[str, Any]]:
    ids = shared.legal_ids(shared.call_ids(request.messages), _CALL_ID, length=64)
    items: list[dict[str, Any]] = []
    custom: set[str] = set()
    for position, message in enumerate(request.messages):
        where = f"messages[{position}]"
        if isinstance(message, AssistantMessage):
            same = shared.same_model(message, dialect.provider, model)
            reply = [item for block in message.content for item in _reply_item(block, same, ids, names)]
            custom |= {item["call_id"] for item in reply if item.get("type") == "custom_tool_call"}
            items += _legal_reply(_join_parts(reply), dialect)
        elif isinstance(message, ToolResultMessage):
            items.append(_result_item(message, ids[message.tool_call_id], custom, where))
        elif isinstance(message, UserMessage):
            items += _user_items(message.content, where)
        else:
            raise shared.wrong_message(message, where)
    return items


def _reply_item(
    block: ContentBlock, same: bool, ids: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The item of a block of a reply, if there is one. `same`: the reply came from this provider and model."""
    kept: dict[str, Any] = thaw_json(getattr(block, "fidelity", None) or {}) if same else {}
    if isinstance(block, ToolCall):
        yield _call_item(block, kept, ids[block.id], names[block.name])
    elif isinstance(block, Thinking):
        if kept.get("type") == "reasoning":
            yield kept
    elif kept.get("type"):
        yield kept
    elif isinstance(block, Text):
        if block.text:
            yield _message_item(block.text, kept)
    else:
        log.debug("a %s block of a reply is left out: this API knows no such block", block.type)


def _call_item(call: ToolCall, kept: dict[str, Any], call_id: str, name: str) -> dict[str, Any]:
    if kept.get("type") == "custom_tool_call":
        return {"input": call.arguments, **kept, "call_id": call_id, "name": name}
    kept.pop("type", None)
    arguments = shared.arguments_text(call.arguments)
    return {"type": "function_call", **kept, "call_id": call_id, "name": name, "arguments": arguments}


def _message_item(text: str, kept: dict[str, Any]) -> dict[str, Any]:
    if not kept:
        return {"role": "assistant", "content": text}
    part = kept.pop("part", {})
    kind = part.pop("type", "output_text")
    content = {"type": kind, "refusal" if kind == "refusal" else "text": text, **part}
    return {"type": "message", "role": "assistant", **kept, "content": [content]}


def _join_parts(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of one message back in one message: they have its id."""
    joined: list[dict[str, Any]] = []
    for item in items:
        last = joined[-1] if joined else {}
        if item.get("type") == last.get("type") == "message" and item.get("id") and item["id"] == last.get("id"):
            last["content"] += item["content"]
        else:
            joined.append(item)
    return joined


def _legal_reply(items: list[dict[str, Any]], dialect: Dialect) -> list[dict[str, Any]]:
    """Reasoning stays only where it can be read and what it led to follows; ids only where they mean something."""
    kept: list[dict[str, Any]] = []
    for item in reversed(items):
        if item.get("type") == "reasoning":
            follower = kept[-1] if kept else None
            readable = item.get("encrypted_content") or item.get("content")
            if follower is None or not (readable or (dialect.store and follower.get("id"))):
                continue
            if dialect.store and not follower.get("id"):
                item.pop("id", None)
        if not dialect.keeps_ids() and item.get("type") in _NAMED_ITEMS:
            item.pop("id", None)
            if item["type"] == "message":
                item.pop("status", None)
        kept.append(item)
    return kept[::-1]


def _result_item(message: ToolResultMessage, call_id: str, custom: set[str], where: str) -> dict[str, Any]:
    said = shared.sayable(message.content, lambda block: list(_parts((block,), "result")))
    parts = list(_parts(said, where))
    single = len(parts) == 1 and parts[0]["type"] == "input_text"
    kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
    return {"type": kind, "call_id": call_id, "output": parts[0]["text"] if single else parts}


def _user_items(content: Sequence[ContentBlock], where: str) -> list[dict[str, Any]]:
    """A message of its parts, and the caller's own items where they stand."""
    items: list[dict[str, Any]] = []
    for part in _parts(content, where):
        if part["type"] not in _MESSAGE_PARTS:
            items.append(part)
        elif items and items[-1].get("role") == "user":
            items[-1]["content"].append(part)
        else:
            items.append({"role": "user", "content": [part]})
    return items


def _parts(content: Sequence[ContentBlock], where: str) -> Iterator[dict[str, Any]]:
    for position, block in enumerate(content):
        place = f"{where}.content[{position}]"
        if isinstance(block, Text):
            if block.text:
                yield {"type": "input_text", "text": block.text}
            elif block.fidelity and block.fidelity.get("type"):
                yield thaw_json(block.fidelity)
        elif isinstance(block, Image):
            if not block.url.startswith(("https://", "http://", "data:")):
                raise shared.wrong_address(block.url, place)
            yield {"type": "input_image", "image_url": block.url, "detail": "auto"}
        elif isinstance(block, InlineData):
            yield _data_part(block.data, block.mime_type, place)
        else:
            raise shared.wrong_block(block, place)


def _data_part(data: str, mime_type: str, place: str) -> dict[str, Any]:
    kind = mime_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return {"type": "input_image", "image_url": shared.data_url(data, kind), "detail": "auto"}
    if kind.startswith(("audio/", "video/")):
        raise ModelError("unsupported", f"{place}: the Responses API takes text, images and files, got {mime_type}")
    name = f"file.{kind.partition('/')[2]}" if kind != "text/plain" else "file.txt"  # the API wants a name
    return {"type": "input_file", "filename": name, "file_data": shared.data_url(data, kind)}
