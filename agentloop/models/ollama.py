"""Ollama's own API (`/api/chat`): a history becomes a request, and the lines of its stream become chunks.

The rules of the file:

- Thinking of the same model goes back as the message's `thinking`: models that think between calls want it.
- `fidelity` of a call is what it holds beside name and arguments (an id, its place in the batch). It goes back to the
  provider and model that made it; an id that was made up here stays here, and the result names its tool.
- Calls come whole and text may go on after them, so a text stays one block until the reply ends.
- Pictures that a model makes are data of the reply. What else a message holds is kept in the reply's `fidelity`, under
  `message`: a list of all that came under a name.
- A reply is whole with `done`; one whose stream ends before was cut. Errors come as a line of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from agentloop._values import thaw_json
from agentloop.errors import FinishReason, ModelError
from agentloop.messages import (
    AssistantMessage,
    ContentBlock,
    Image,
    InlineData,
    JsonObject,
    Text,
    Thinking,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelChunk,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.models import _shared as shared
from agentloop.models._errors import payload_error
from agentloop.models._http import HttpAdapter

__all__ = ["Ollama", "request_body"]

BASE_URL: Final = "http://localhost:11434"

HOST_VARIABLE: Final = "OLLAMA_HOST"
"""The environment variable that may hold the server's address, as Ollama's own programs read it."""

KEY_VARIABLE: Final = "OLLAMA_API_KEY"
"""The environment variable that may hold the key of a server that wants one; for the address of the environment alone."""

_THINK: Mapping[str, bool | str] = {
    "off": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
}

_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}

_READ: Final = ("role", "content", "thinking", "tool_calls", "images")
_PICTURES: Mapping[str, str] = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lGO": "image/gif", "UklGR": "image/webp"}
"""What their data begins with, in base64: the API does not say what a picture is."""


# ---------------------------------------------------------------- the model


class Ollama(HttpAdapter):
    """A model callable for Ollama's own API, on asyncio and trio.

    `base_url` is the server's address without a path, by default that of `OLLAMA_HOST`, else this machine's; `api_key`
    is for servers that want one (`https://ollama.com`). `client` is an `httpx2.AsyncClient` of the caller's, who also
    closes it; `timeout` (seconds) is for the one made here. It lives as long as a request; inside `async with` one is
    kept, connections included. `provider` names who answers: it goes into the replies, and thinking goes back only to
    the same provider and model.

    `options` are defaults for those of a request: the common ones (`docs/configuration.md`, Options); all others go into
    the body (`keep_alive`, `format`, …), and `options` is laid over the model parameters that are sent anyway
    (`{"options": {"num_ctx": 8192}}`). A tool choice other than `auto` and `none` is `unsupported`, and so is
    `parallel_tool_calls` off.

    Raises `MissingExtra` without `httpx2`, `TypeError` for a client that is not asynchronous, `ValueError` without a
    model's name and for another provider without its address.
    """

    home = "ollama"
    extra = "ollama"

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "ollama",
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, client, base_url, api_key, provider, headers, timeout, options)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        return request_body(request, model=self.model, provider=self.provider)

    def _reader(self, request: ModelRequest) -> EventReader:
        return EventReader()

    def _url(self) -> str:
        base = self._base_url or host_address(os.environ.get(HOST_VARIABLE, ""))
        return f"{base.rstrip('/')}/api/chat"

    def _key_header(self) -> dict[str, str]:
        key = self._find_key(KEY_VARIABLE)
        return {"authorization": f"Bearer {key}"} if key else {}


def host_address(host: str) -> str:
    """The address that a value of `OLLAMA_HOST` stands for: `host`, `host:port` or a URL; blank is this machine.

    `0.0.0.0` is where a server listens; it is asked at `127.0.0.1`.
    """
    host = host.strip().rstrip("/")
    if not host:
        return BASE_URL
    address = urlsplit(host if "://" in host else f"http://{host}")
    name = "127.0.0.1" if address.hostname in (None, "0.0.0.0") else address.hostname
    port = address.port or {"http": 80, "https": 443}.get(address.scheme if "://" in host else "", 11434)
    name = f"[{name}]" if name and ":" in name else name
    return f"{address.scheme}://{name}:{port}{address.path}"


# ---------------------------------------------------------------- history out


def request_body(request: ModelRequest, *, model: str, provider: str = "ollama") -> dict[str, Any]:
    """The body of a streaming request. Raises `ModelError` (`invalid_input`, `unsupported`), naming the place."""
    options = shared.common_options(request.options)
    _check_supported(options)
    body: dict[str, Any] = {"model": model, "messages": _messages(request, model, provider)}
    if request.tools and options.tool_choice != "none":
        body["tools"] = [_tool(tool.name, tool.description, tool.parameters) for tool in request.tools]
    if options.thinking is not None:
        body["think"] = _THINK[options.thinking]
    extra: dict[str, Any] = thaw_json(dict(options.extra))
    if parameters := {**_parameters(options), **(extra.pop("options", None) or {})}:
        body["options"] = parameters
    return {**body, "stream": True, **extra}


def _check_supported(options: shared.CommonOptions) -> None:
    if options.tool_choice not in (None, "auto", "none"):
        raise shared.unsupported_option("tool_choice", options.tool_choice, "Ollama", "the model chooses")
    if options.parallel_tool_calls is False:
        raise shared.unsupported_option("parallel_tool_calls", False, "Ollama")


def _parameters(options: shared.CommonOptions) -> dict[str, Any]:
    parameters = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "num_predict": options.max_tokens,
        "seed": options.seed,
        "stop": list(options.stop) or None,
    }
    return {key: value for key, value in parameters.items() if value is not None}


def _tool(name: str, description: str, parameters: JsonObject) -> dict[str, Any]:
    schema = thaw_json(parameters) or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _messages(request: ModelRequest, model: str, provider: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.system_prompt and request.system_prompt.strip():
        messages.append({"role": "system", "content": request.system_prompt})
    ids: dict[str, str] = {}
    for position, message in enumerate(request.messages):
        where = f"messages[{position}]"
        if isinstance(message, AssistantMessage):
            reply = _reply(message, shared.same_model(message, provider, model), ids)
            if len(reply) > 2 or reply["content"]:
                messages.append(reply)
        elif isinstance(message, ToolResultMessage):
            own_id = ids.get(message.tool_call_id)
            named = {"tool_name": message.tool_name, **({"tool_call_id": own_id} if own_id else {})}
            said = shared.sayable(message.content, lambda block: _input((block,), "result"))
            messages.append({"role": "tool", **_input(said, where), **named})
        elif isinstance(message, UserMessage):
            messages.append({"role": "user", **_input(message.content, where)})
        else:
            raise shared.wrong_message(message, where)
    if not any(message["role"] != "system" for message in messages):
        raise shared.no_messages()
    return messages


def _reply(message: AssistantMessage, same: bool, ids: dict[str, str]) -> dict[str, Any]:
    # what a model made can be said, not shown, on its own side
    made = [f"[{block.mime_type}]" for block in message.content if isinstance(block, InlineData)]
    reply: dict[str, Any] = {"role": "assistant", "content": "\n".join(filter(None, [message.text, *made]))}
    thinking = "".join(block.thinking for block in message.content if isinstance(block, Thinking))
    if same and thinking:
        reply["thinking"] = thinking
    calls = []
    for call in message.tool_calls:
        kept: dict[str, Any] = thaw_json(call.fidelity or {}) if same else {}
        if isinstance(kept.get("id"), str):
            ids[call.id] = kept["id"]
        function = {**kept.pop("function", {}), "name": call.name, "arguments": shared.arguments_object(call)}
        calls.append({**kept, "function": function})
    if calls:
        reply["tool_calls"] = calls
    return reply


def _input(content: Sequence[ContentBlock], where: str) -> dict[str, Any]:
    """Text and pictures of a message; the API has one place for each."""
    texts, images = [], []
    for position, block in enumerate(content):
        place = f"{where}.content[{position}]"
        if isinstance(block, Text):
            texts.append(block.text)
        elif isinstance(block, Image):
            images.append(_image(*(shared.split_data_url(block.url) or ("", block.url)), place))
        elif isinstance(block, InlineData):
            images.append(_image(block.mime_type, block.data, place))
        else:
            raise shared.wrong_block(block, place, "text or an image")
    message: dict[str, Any] = {"content": "\n".join(text for text in texts if text)}
    return {**message, "images": images} if images else message


def _image(mime_type: str, data: str, place: str) -> str:
    if not mime_type.startswith("image/"):
        got = mime_type or f"the address {data[:80]!r}"
        raise ModelError("unsupported", f"{place}: Ollama takes images as data and nothing else, got {got}")
    return data


# ---------------------------------------------------------------- chunks in


class EventReader:
    """Lines of one stream, as JSON, to chunks: `feed` each. No I/O, no clock.

    Raises `ModelError`: what an error in the stream says, or `malformed` for a line that has not its shape.
    """

    def __init__(self) -> None:
        self._count = 0
        self._open: tuple[type[TextChunk] | type[ThinkingChunk], int] | None = None
        self._called = False
        self._beside: dict[str, list[Any]] = {}
        self.settled = False
        """Whether the reply is whole."""

    def feed(self, event: Any) -> Iterator[ModelChunk]:
        """The chunks of one line, in order."""
        try:
            yield from self._read(event)
        except shared.MISREAD as error:
            raise shared.misread(event, "a line of Ollama's API", error) from error

    def end(self) -> Iterable[ModelChunk]:
        """Nothing: a reply that is whole said so in its last line."""
        return ()

    def _read(self, event: JsonObject) -> Iterator[ModelChunk]:
        if event.get("error"):
            raise payload_error(event)
        message = event.get("message") or {}
        yield from self._piece(ThinkingChunk, shared.text_or_none(message.get("thinking")))
        yield from self._piece(TextChunk, shared.text_or_none(message.get("content")))
        for call in message.get("tool_calls") or ():
            yield from self._call(call)
        images = message.get("images") or ()
        for data in (images,) if isinstance(images, str) else images:
            yield BlockChunk(InlineData(data, _picture_type(data)))
        for key, value in message.items():
            if key not in _READ and value not in (None, "", [], {}):
                self._beside.setdefault(key, []).append(value)
        if event.get("done") and not self.settled:
            yield UsageChunk(_usage(event))
            reason = _FINISH.get(shared.text_or_none(event.get("done_reason")) or "", "unknown")
            told = {key: value for key, value in event.items() if key != "message"}
            told |= {"message": self._beside} if self._beside else {}
            end = Finish("tool_use" if reason == "stop" and self._called else reason, shared.kept_json(told))
            self.settled = True  # not before: what is no end is an error
            yield end

    def _piece(self, kind: type[TextChunk] | type[ThinkingChunk], text: str | None) -> Iterator[ModelChunk]:
        """A piece of a block. An empty one counts only where its block is open: all lines have a `content`."""
        if self._open is not None and self._open[0] is kind:
            if text is not None:
                yield kind(text, self._open[1])
        elif text:
            if self._open is not None:
                yield BlockEnd(self._open[1])
            self._open = (kind, self._next())
            yield kind(text, self._open[1])

    def _call(self, call: JsonObject) -> Iterator[ModelChunk]:
        function = call["function"]
        arguments = function.get("arguments")
        if not isinstance(arguments, str):  # text, as in OpenAI's API, was seen of servers that speak this one
            arguments = shared.compact_json({} if arguments is None else arguments)
        beside = {key: value for key, value in call.items() if key != "function" and value not in (None, "")}
        if rest := {key: value for key, value in function.items() if key not in ("name", "arguments")}:
            beside["function"] = rest
        self._called = True
        index = self._next()
        own_id, name = shared.text_or_none(call.get("id")) or None, shared.text_or_none(function["name"])
        yield ToolCallChunk(arguments, own_id, name, index, shared.kept_json(beside))
        yield BlockEnd(index)

    def _next(self) -> int:
        self._count += 1
        return self._count - 1


def _picture_type(data: str) -> str:
    return next((kind for start, kind in _PICTURES.items() if data.startswith(start)), "application/octet-stream")


def _usage(sent: JsonObject) -> Usage:
    return Usage(0, shared.count_in(sent, "prompt_eval_count"), shared.count_in(sent, "eval_count"))
