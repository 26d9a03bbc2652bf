"""Anthropic's Messages API: a history becomes a request, and the events of its stream become chunks.

The rules of the file:

- `fidelity` of a block is what its API object holds beside the text, thinking, id, name and input: citations of a text,
  the signature of a thinking, the caller of a call. With a `type` it is the whole object: redacted thinking, server
  tools and their results, MCP and compaction blocks, kinds that nobody knows yet. It goes back as it came, in place,
  but only to the provider and model that made it.
- `Text("", fidelity={"type": …})` in a user message or a tool result is an API object of the caller's (a document with
  citations, a search result) and goes out as it is.
- A request is a function of the history: the same messages give the same bytes in each turn, so that caches hit.
- Two rules are the provider's, not ours: a text of white space needs another text with more in its message, and a reply
  neither ends with thinking nor, where it is the last message, with white space.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

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
from agentloop.models._anthropic_events import CUT_INPUT, EventReader, answer_events
from agentloop.models._sdk import END, SdkClient

__all__ = ["Anthropic", "Cache", "request_body"]

log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS: Final = 8_192
"""Longest answer where `max_tokens` is not given (the API wants a number), thinking not counted."""

THINKING_BUDGETS: Final = {"minimal": 1_024, "low": 4_096, "medium": 10_240, "high": 16_384, "max": 23_808}
"""Tokens for thinking by level. With the default answer `max` just fits the 32,000 that Claude Opus 4 may write."""

LEAST_BUDGET: Final = 1_024
"""The API takes no smaller one."""

_EFFORTS = {"minimal": "low"}  # the levels' names are the API's, but for this one

_ID = r"[a-zA-Z0-9_-]{1,128}"  # calls and tools share an alphabet
_CLAUDE = re.compile(
    r"claude-(?:(?P<old>\d+)(?:[-.]\d)?-)?(?P<family>[a-z]+)(?:-(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d))?"
)
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

Cache: TypeAlias = Literal["5m", "1h"] | bool | None
"""Whether the stable part of a request is marked for the provider's cache, and for how long it stays there."""


# ---------------------------------------------------------------- the model


class Anthropic(Adapter):
    """A model callable for Claude and for what speaks its API, on asyncio and trio.

    `client` is an `anthropic.AsyncAnthropic` (or its Bedrock, Vertex or Foundry kin) of the caller's, who also closes
    it; `base_url`, `api_key`, `headers` and `timeout` (seconds) are for the one made here, with the SDK's defaults. It
    lives as long as a request; inside `async with` one is kept, connections included. The SDK's own retries are off.
    `provider` names who answers: it goes into the replies, and thinking goes back only to the same provider and model.

    `options` are defaults for those of a request. Beside the common ones (`docs/configuration.md`, Options) there are
    `cache`, `betas` (names for the `anthropic-beta` header) and `provider_tools` (the API's own tool objects; one with
    the name of a tool stands in for its description). `thinking` may also be the API's object. All others go into the
    body. `seed` is `unsupported`.

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
        provider: str = "anthropic",
        max_tokens: int = DEFAULT_MAX_TOKENS,
        cache: Cache = None,
        betas: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, provider, {"cache": cache, "betas": tuple(betas) or None, **(options or {})})
        self.max_tokens = max_tokens
        self._client: SdkClient = SdkClient(
            "anthropic",
            "AsyncAnthropic",
            client,
            provider=provider,
            base_url=base_url,
            api_key=api_key,
            headers=headers,
            timeout=timeout,
        )

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        body = request_body(request, model=self.model, provider=self.provider, max_tokens=self.max_tokens)
        reader = EventReader({sent: name for name, sent in tool_names(request).items()})
        async with Exchange(self._client) as exchange:
            headers = request_headers(request.options)
            stream = exchange.hold(await self._client.post(exchange.client(), "/v1/messages", body, headers))
            await stream.take_whole(answer_events)
            while (event := await stream.next(ended=reader.settled)) is not END:
                for chunk in reader.feed(event):
                    yield chunk
            for chunk in reader.end():
                yield chunk


# ---------------------------------------------------------------- history out


def request_body(
    request: ModelRequest, *, model: str, provider: str = "anthropic", max_tokens: int = DEFAULT_MAX_TOKENS
) -> dict[str, Any]:
    """The body of a streaming request. Raises `ModelError` (`invalid_input`, `unsupported`), naming the place."""
    options, own = _split_options(request.options)
    names = tool_names(request)
    body: dict[str, Any] = {"model": model, "max_tokens": options.max_tokens or max_tokens}
    if request.system_prompt and request.system_prompt.strip():
        body["system"] = [{"type": "text", "text": request.system_prompt}]
    if tools := _tools(request, names, own.get("provider_tools") or ()):
        body["tools"] = tools
    body["messages"] = _messages(request, model, provider, names)
    body |= _sampling(options, names, bool(tools))
    body |= _thinking(own.get("thinking"), options, model, body["max_tokens"])
    if container := _open_container(request, model, provider):
        body["container"] = container
    body["stream"] = True
    _mark_cached(body, own.get("cache"))
    return {**body, **thaw_json(dict(options.extra))}


def request_headers(options: Mapping[str, Any]) -> dict[str, str]:
    """The header that `betas` asks for."""
    betas = options.get("betas") or ()
    return {"anthropic-beta": betas if isinstance(betas, str) else ",".join(betas)} if betas else {}


_OWN_OPTIONS = frozenset({"cache", "betas", "provider_tools"})


def _split_options(options: Mapping[str, Any]) -> tuple[shared.CommonOptions, dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in _OWN_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    if isinstance(rest.get("thinking"), Mapping):
        own["thinking"] = dict(rest.pop("thinking"))
    common = shared.common_options(rest)
    if common.seed is not None:
        raise shared.unsupported_option("seed", common.seed, "the Anthropic API")
    return common, own


def _sampling(options: shared.CommonOptions, names: Mapping[str, str], tools: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"temperature": options.temperature, "top_p": options.top_p}
    body["stop_sequences"] = list(options.stop) or None
    if tools:
        body["tool_choice"] = _tool_choice(options, names)
    return {key: value for key, value in body.items() if value is not None}


def _tool_choice(options: shared.CommonOptions, names: Mapping[str, str]) -> dict[str, Any] | None:
    choice, parallel = options.tool_choice, options.parallel_tool_calls
    if choice is None and parallel is None:
        return None
    if isinstance(choice, Mapping):
        result: dict[str, Any] = {"type": "tool", "name": names.get(choice["name"], choice["name"])}
    else:
        result = {"type": "any" if choice == "required" else choice or "auto"}
    if parallel is not None and result["type"] != "none":
        result["disable_parallel_tool_use"] = not parallel
    return result


def _thinking(given: JsonObject | None, options: shared.CommonOptions, model: str, max_tokens: int) -> dict[str, Any]:
    """The `thinking` of a request, with the `max_tokens` that it needs (the API counts thinking as output)."""
    level = options.thinking
    if given is not None or level is None:
        return {} if given is None else {"thinking": given}
    if level == "off":
        return {"thinking": {"type": "disabled"}}
    budget = THINKING_BUDGETS[level]
    if options.max_tokens is None:
        max_tokens += budget
    if thinks_adaptively(model):
        adaptive = {"type": "adaptive", "display": "summarized"}  # several models would show nothing without it
        return {"thinking": adaptive, "output_config": {"effort": _EFFORTS.get(level, level)}, "max_tokens": max_tokens}
    if max_tokens <= LEAST_BUDGET:
        raise shared.invalid_option("max_tokens", f"more than {LEAST_BUDGET} with thinking", max_tokens)
    budget = min(budget, max(LEAST_BUDGET, max_tokens * 3 // 4))
    return {"thinking": {"type": "enabled", "budget_tokens": budget}, "max_tokens": max_tokens}


def thinks_adaptively(model: str) -> bool:
    """Whether a model takes an effort instead of a budget: Claude from 4.6 on, and families without a number.

    The newest refuse a budget, the older an effort, and the API tells neither before it is asked.
    """
    name = _CLAUDE.search(model)
    if name is None or name["old"]:
        return False
    return name["major"] is None or (int(name["major"]), int(name["minor"] or 0)) >= (4, 6)


def tool_names(request: ModelRequest) -> dict[str, str]:
    """The provider's name for each tool: its own where it is legal, else one made of it (a reply's is mapped back)."""
    return shared.legal_ids(shared.tool_names(request), _ID, length=64)


def _tools(request: ModelRequest, names: Mapping[str, str], own: Iterable[JsonObject]) -> list[dict[str, Any]]:
    provided = {tool.get("name"): thaw_json(tool) for tool in own}
    tools: list[dict[str, Any]] = []
    for tool in request.tools:
        schema = thaw_json(tool.parameters) or {"type": "object", "properties": {}}
        entry = {"name": names[tool.name], "description": tool.description, "input_schema": schema}
        if not tool.description:
            del entry["description"]
        tools.append(provided.pop(tool.name, entry))
    return tools + list(provided.values())


def _open_container(request: ModelRequest, model: str, provider: str) -> str | None:
    """The sandbox that waits for the results of calls which its code made; the API wants it named then."""
    for message in reversed(request.messages):
        if not isinstance(message, AssistantMessage):
            continue
        kept = (message.fidelity or {}).get("container")
        waits = message.finish_reason == "pause" or any(map(_called_by_code, message.tool_calls))
        if isinstance(kept, Mapping) and waits and shared.same_model(message, provider, model):
            return kept.get("id")
        return None
    return None


def _called_by_code(call: ToolCall) -> bool:
    caller = (call.fidelity or {}).get("caller")
    return isinstance(caller, Mapping) and caller.get("type") != "direct"


def _mark_cached(body: dict[str, Any], cache: Cache) -> None:
    """Mark what stays the same from turn to turn: tools and system prompt, and the history up to the last two inputs.

    Two inputs, because a lookup goes back 20 blocks only and a batch of calls may hold more.
    """
    if not cache:
        return
    if cache not in (True, "5m", "1h"):
        raise shared.invalid_option("cache", "true, 5m or 1h", cache)
    mark = {"type": "ephemeral"} if cache is True else {"type": "ephemeral", "ttl": cache}
    stable = [part[-1] for part in (body.get("system"), body.get("tools")) if part][:1]
    inputs = [message["content"][-1] for message in body["messages"] if message["role"] == "user"]
    for block in stable + inputs[-2:]:
        block.setdefault("cache_control", dict(mark))


# ---------------------------------------------------------------- messages out


def _messages(request: ModelRequest, model: str, provider: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    ids = shared.legal_ids(shared.call_ids(request.messages), _ID, length=64)
    turns: list[dict[str, Any]] = []
    for position, message in enumerate(request.messages):
        where = f"messages[{position}]"
        if isinstance(message, AssistantMessage):
            same = shared.same_model(message, provider, model)
            signed = "claude" in model
            parts = [part for block in message.content for part in _reply_part(block, same, signed, ids, names)]
            if turns and turns[-1]["role"] == "assistant":  # it stood last in the request that this reply answered
                _trim_reply(turns[-1]["content"], last=True)
            _extend(turns, "assistant", parts)
        elif isinstance(message, ToolResultMessage):
            _extend(turns, "user", [_result_part(message, ids, where)])
        elif isinstance(message, UserMessage):
            _extend(turns, "user", list(_input_parts(message.content, where)))
        else:
            raise shared.wrong_message(message, where)
    merged: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == "assistant":
            _trim_reply(turn["content"], last=turn is turns[-1])
        _extend(merged, turn["role"], turn["content"])
    if not merged:
        raise shared.no_messages()
    return merged


def _extend(turns: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Add a message, to the turn before if the role is the same: results of one batch must stand in one message."""
    if not any(part["type"] == "text" and part.get("text", "").strip() for part in parts):
        parts = [part for part in parts if part["type"] != "text"]
    if not parts:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += parts
    else:
        turns.append({"role": role, "content": parts})


def _trim_reply(parts: list[dict[str, Any]], *, last: bool) -> None:
    """The API takes no thinking at the end of a reply, and no white space at the end of the last message."""
    while parts and (
        parts[-1]["type"] in ("thinking", "redacted_thinking")
        or (last and parts[-1]["type"] == "text" and not parts[-1]["text"].strip())
    ):
        parts.pop()
    if last and parts and parts[-1]["type"] == "text":
        parts[-1]["text"] = parts[-1]["text"].rstrip()


def _reply_part(
    block: ContentBlock, same: bool, signed: bool, ids: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The API object of a block of a reply, if there is one.

    `same`: the reply came from this provider and model. `signed`: only signed thinking goes back; Claude signs what is
    whole, others that speak this API never sign and want theirs back all the same.
    """
    kept: dict[str, Any] = thaw_json(getattr(block, "fidelity", None) or {}) if same else {}
    if kept.get("type"):
        if CUT_INPUT not in kept:
            yield kept
    elif isinstance(block, Text):
        if block.text:
            yield {"type": "text", "text": block.text, **kept}
    elif isinstance(block, ToolCall):
        arguments = shared.arguments_object(block)
        yield {"type": "tool_use", "id": ids[block.id], "name": names[block.name], "input": arguments, **kept}
    elif isinstance(block, Thinking) and same and (kept.get("signature") or not signed):
        yield {"type": "thinking", "thinking": block.thinking, **kept}
    elif not isinstance(block, Thinking):
        log.debug("a %s block of a reply is left out: this API knows no such block", block.type)


def _result_part(message: ToolResultMessage, ids: Mapping[str, str], where: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "tool_result", "tool_use_id": ids[message.tool_call_id]}
    said = shared.sayable(message.content, lambda block: list(_input_parts((block,), "result")))
    if content := list(_input_parts(said, where)):
        part["content"] = content
    if message.is_error:
        part["is_error"] = True
    return part


def _input_parts(content: Sequence[ContentBlock], where: str) -> Iterator[dict[str, Any]]:
    for position, block in enumerate(content):
        place = f"{where}.content[{position}]"
        if isinstance(block, Text):
            if block.text:
                yield {"type": "text", "text": block.text}
            elif block.fidelity and block.fidelity.get("type"):
                yield thaw_json(block.fidelity)
        elif isinstance(block, Image):
            yield _image_part(block.url, place)
        elif isinstance(block, InlineData):
            yield _data_part(block.data, block.mime_type, place)
        else:
            raise shared.wrong_block(block, place)


def _image_part(url: str, place: str) -> dict[str, Any]:
    inline = shared.split_data_url(url)
    if inline:
        return _data_part(inline[1], inline[0], place)
    if not url.startswith(("https://", "http://")):
        raise shared.wrong_address(url, place)
    return {"type": "image", "source": {"type": "url", "url": url}}


def _data_part(data: str, mime_type: str, place: str) -> dict[str, Any]:
    kind = mime_type.partition(";")[0].strip().lower()
    if kind in _IMAGE_TYPES:
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    if kind == "application/pdf":
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}}
    if not kind.startswith("text/"):
        raise ModelError("unsupported", f"{place}: the Anthropic API takes images, PDF and text, got {mime_type}")
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ModelError(
            "invalid_input", f"{place}: expected base64 of UTF-8 text, got something else ({error})"
        ) from None
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}}
