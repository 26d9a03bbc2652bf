"""Google's Gemini API: a history becomes a request, and the events of its stream become chunks.

The rules of the file:

- `fidelity` of a text or thinking is `{"parts": […]}`: for each part of it that held more than text, where it stands
  (`start` and `end` in UTF-16 units) and what else it held, the thought signature above all. A part with a signature
  goes back as a part of its own, an empty one too: Google wants signed and unsigned text not to be merged.
- `fidelity` of a call is what its part holds beside name and arguments: its signature, and its id under
  `functionCall`. Only an id that the API gave goes back, with the call and its result; one that was made up here stays
  here, and such calls and results belong together by their order.
- A part of another kind (executable code and its result, the API's own tool calls, kinds that nobody knows yet) is a
  text block without text whose fidelity is the whole part. It goes back as it came, in place.
- All this goes only to the provider and model that made it. Thinking without a signature is a summary for people and
  is not sent back; the calls of another model get the mark that Google gives for histories without signatures.
- `Text("", fidelity={…})` in a user message is a part of the caller's (`fileData`, say) and goes out as it is.
- A request is a function of the history: the same messages give the same bytes in each turn, so that caches hit.
"""

from __future__ import annotations

import logging
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from agentloop._values import thaw_json
from agentloop.messages import (
    AssistantMessage,
    ContentBlock,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from agentloop.model import ModelRequest
from agentloop.models import _shared as shared
from agentloop.models._gemini_events import EventReader
from agentloop.models._gemini_schema import function_schema
from agentloop.models._http import HttpAdapter
from agentloop.models._sdk import missing_key

__all__ = ["Gemini", "request_body"]

log = logging.getLogger(__name__)

BASE_URL: Final = "https://generativelanguage.googleapis.com/v1beta"

KEY_VARIABLES: Final = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
"""Environment variables that may hold the key; the first one that is set counts, and for `BASE_URL` alone."""

THINKING_BUDGETS: Final = {"minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576, "max": 24_576}
"""Tokens for thinking by level, for Gemini 2.5, which knows no levels."""

LARGEST_PRO_BUDGET: Final = 32_768

NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""What Gemini 3 wants as the signature of a call that has none because another model made it."""

_NAME = r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"
_GENERATION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_WEB = ("https://", "http://", "gs://")


# ---------------------------------------------------------------- the model


class Gemini(HttpAdapter):
    """A model callable for Gemini, on asyncio and trio.

    `base_url` ends with the API's version; Vertex AI is asked at `…/v1/projects/P/locations/L/publishers/google`
    with a token in `headers`, or by a client whose `auth` renews it. `client` is an `httpx2.AsyncClient` of the
    caller's, who also closes it; `timeout` (seconds) is for the one made here. It lives as long as a request;
    inside `async with` one is kept, connections included. `provider` names who answers: it goes into the replies,
    and signatures go back only to the same provider and model.

    `options` are defaults for those of a request. Beside the common ones (`docs/configuration.md`, Options) there is
    `provider_tools` (the API's own tool objects: `{"googleSearch": {}}`). `thinking` may also be the API's object. All
    others go into the body (`safetySettings`, `cachedContent`, …); `generationConfig` and `toolConfig` are laid over
    what is sent anyway. `parallel_tool_calls` off is `unsupported`.

    Raises `MissingExtra` without `httpx2`, `TypeError` for a client that is not asynchronous, `ValueError` without a
    model's name and for another provider without its address. A missing key fails the first request (`auth`).
    """

    home = "google"
    extra = "gemini"

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "google",
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, client, base_url, api_key, provider, headers, timeout, options)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        return request_body(request, model=self.model, provider=self.provider)

    def _reader(self, request: ModelRequest) -> EventReader:
        return EventReader({sent: name for name, sent in tool_names(request).items()})

    def _url(self) -> str:
        return request_url(self.model, self._base_url)

    def _key_header(self) -> dict[str, str]:
        key = self._find_key(*KEY_VARIABLES)
        if not key and self._base_url is None and not self._headers:
            raise missing_key(*KEY_VARIABLES)
        return {"x-goog-api-key": key} if key else {}


def request_url(model: str, base_url: str | None = None) -> str:
    """Where a streaming request goes. A model with a slash (`tunedModels/mine`) says its collection itself."""
    path = quote(model if "/" in model else f"models/{model}", safe="/:@")
    return f"{(base_url or BASE_URL).rstrip('/')}/{path}:streamGenerateContent?alt=sse"


# ---------------------------------------------------------------- history out


def request_body(request: ModelRequest, *, model: str, provider: str = "google") -> dict[str, Any]:
    """The body of a request. Raises `ModelError` (`invalid_input`, `unsupported`), naming the place."""
    options, own = _split_options(request.options)
    names = tool_names(request)
    body: dict[str, Any] = {"contents": _Contents(request, model, provider, names).build()}
    if request.system_prompt and request.system_prompt.strip():
        body["systemInstruction"] = {"parts": [{"text": request.system_prompt}]}
    tools = _tools(request, names)
    if tools:
        body["toolConfig"] = _tool_config(options, names)
    if tools or own.get("provider_tools"):
        body["tools"] = tools + [thaw_json(tool) for tool in own.get("provider_tools") or ()]
    body["generationConfig"] = _generation_config(options, own.get("thinking"), model)
    extra: dict[str, Any] = thaw_json(dict(options.extra))
    for key in ("generationConfig", "toolConfig"):
        body[key] = {**body.get(key, {}), **(extra.pop(key, None) or {})}
    return {key: value for key, value in {**body, **extra}.items() if value != {}}


def _split_options(options: Mapping[str, Any]) -> tuple[shared.CommonOptions, dict[str, Any]]:
    rest = dict(options)
    own = {"provider_tools": rest.pop("provider_tools", None)}
    if isinstance(rest.get("thinking"), Mapping):
        own["thinking"] = dict(rest.pop("thinking"))
    common = shared.common_options(rest)
    if common.parallel_tool_calls is False:
        raise shared.unsupported_option("parallel_tool_calls", False, "the Gemini API")
    return common, own


def _generation_config(options: shared.CommonOptions, thinking: Any, model: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "temperature": options.temperature,
        "topP": options.top_p,
        "maxOutputTokens": options.max_tokens,
        "stopSequences": list(options.stop) or None,
        "seed": options.seed,
        "thinkingConfig": thinking or (_thinking(options.thinking, model) if options.thinking else None),
    }
    return {key: value for key, value in config.items() if value is not None}


def _thinking(level: str, model: str) -> dict[str, Any] | None:
    """The `thinkingConfig` of a level: a budget for Gemini 2.5, a level for later ones and for names that tell nothing."""
    generation = _generation(model)
    if generation < (2, 5):
        if level == "off":
            return None
        raise shared.unsupported_option("thinking", level, model, "it does not think")
    if level == "off":
        if generation > (2, 5) or "pro" in model:
            raise shared.unsupported_option("thinking", level, model, "it always thinks; the least is minimal")
        return {"thinkingBudget": 0}
    if generation == (2, 5):
        budget = LARGEST_PRO_BUDGET if level == "max" and "pro" in model else THINKING_BUDGETS[level]
        return {"includeThoughts": True, "thinkingBudget": budget}
    levels = _levels(model)
    wanted = {"minimal": levels[0], "max": levels[-1]}.get(level, level)
    if wanted not in levels:
        raise shared.unsupported_option("thinking", level, model, f"its levels are {', '.join(levels)}")
    return {"includeThoughts": True, "thinkingLevel": wanted}


def _generation(model: str) -> tuple[int, int]:
    """The generation that a model's name tells; one that tells nothing counts as new."""
    found = _GENERATION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


def _levels(model: str) -> tuple[str, ...]:
    if "gemini-3-pro" in model:
        return ("low", "high")
    return ("low", "medium", "high") if "pro" in model else ("minimal", "low", "medium", "high")


def tool_names(request: ModelRequest) -> dict[str, str]:
    """The provider's name for each tool: its own where it is legal, else one made of it (a reply's is mapped back)."""
    legal = shared.legal_ids(shared.tool_names(request), _NAME, length=62)
    return {name: made if re.match(r"[a-zA-Z_]", made) else f"_{made}" for name, made in legal.items()}


def _tools(request: ModelRequest, names: Mapping[str, str]) -> list[dict[str, Any]]:
    functions: list[dict[str, Any]] = []
    for tool in request.tools:
        function: dict[str, Any] = {"name": names[tool.name], "description": tool.description}
        if tool.parameters:
            function["parametersJsonSchema"] = function_schema(tool.parameters)
        functions.append(function)
    return [{"functionDeclarations": functions}] if functions else []


def _tool_config(options: shared.CommonOptions, names: Mapping[str, str]) -> dict[str, Any]:
    choice = options.tool_choice
    if choice is None:
        return {}
    if isinstance(choice, Mapping):
        allowed = [names.get(choice["name"], choice["name"])]
        return {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": allowed}}
    return {"functionCallingConfig": {"mode": {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice]}}


# ---------------------------------------------------------------- messages out


class _Contents:
    """The `contents` of a request."""

    def __init__(self, request: ModelRequest, model: str, provider: str, names: Mapping[str, str]) -> None:
        self._request = request
        self._model = model
        self._provider = provider
        self._names = names
        self._newest = _generation(model) >= (3, 0)
        """Gemini 3 takes pictures inside of results, and refuses calls without a signature."""
        self._ids: dict[str, str | None] = {}
        """Our id of a call to the API's own."""
        self._contents: list[dict[str, Any]] = []
        self._media: list[dict[str, Any]] = []
        """Of results: they may only follow the last result of a batch."""

    def build(self) -> list[dict[str, Any]]:
        for position, message in enumerate(self._request.messages):
            where = f"messages[{position}]"
            if isinstance(message, ToolResultMessage):
                self._extend("user", [self._result(message, where)])
                continue
            self._flush_media()
            if isinstance(message, AssistantMessage):
                self._extend("model", list(self._reply(message)))
            elif isinstance(message, UserMessage):
                self._extend("user", list(_input_parts(message.content, where)))
            else:
                raise shared.wrong_message(message, where)
        self._flush_media()
        if not self._contents:
            raise shared.no_messages()
        return self._contents

    def _extend(self, role: str, parts: list[dict[str, Any]]) -> None:
        """Add a message, to the content before if the role is the same: results of one batch must stand in one."""
        if parts and self._contents and self._contents[-1]["role"] == role:
            self._contents[-1]["parts"] += parts
        elif parts:
            self._contents.append({"role": role, "parts": parts})

    def _flush_media(self) -> None:
        media, self._media = self._media, []
        self._extend("user", media)

    def _reply(self, message: AssistantMessage) -> Iterator[dict[str, Any]]:
        same = shared.same_model(message, self._provider, self._model)
        unsigned = self._newest and not same
        for block in message.content:
            if isinstance(block, ToolCall):
                part = self._call(block, same)
                if unsigned:  # the first call of a reply must have one, those beside it need none
                    part["thoughtSignature"] = NO_SIGNATURE
                    unsigned = False
                yield part
            else:
                yield from _own_parts(block) if same else _foreign_parts(block)

    def _call(self, block: ToolCall, same: bool) -> dict[str, Any]:
        kept: dict[str, Any] = thaw_json(block.fidelity or {}) if same else {}
        beside = kept.pop("functionCall", {})
        self._ids[block.id] = beside.get("id")
        call = {**beside, "name": self._names[block.name], "args": shared.arguments_object(block)}
        return {"functionCall": call, **kept}

    def _result(self, message: ToolResultMessage, where: str) -> dict[str, Any]:
        texts, media = [], []
        said = shared.sayable(message.content, lambda block: list(_input_parts((block,), "result")))
        for part in _input_parts(said, where):
            if "text" in part:
                texts.append(part["text"])
            else:
                media.append(part)
        inside = [part for part in media if self._newest and _may_stand_inside(part)]
        beside = [part for part in media if not (self._newest and _may_stand_inside(part))]
        if beside:
            texts.append(f"[{len(beside)} attached: see below]")
            self._media += [{"text": f"Attached to the result of {message.tool_name}:"}, *beside]
        response: dict[str, Any] = {"name": self._names.get(message.tool_name, message.tool_name)}
        if (own_id := self._ids.get(message.tool_call_id)) is not None:
            response = {"id": own_id, **response}
        text = "\n".join(text for text in texts if text)
        response["response"] = {"error" if message.is_error else "output": text}
        if inside:
            response["parts"] = inside
        return {"functionResponse": response}


def _may_stand_inside(part: Mapping[str, Any]) -> bool:
    """Whether Gemini 3 takes it inside of a result."""
    kind = part.get("inlineData", {}).get("mimeType", "")
    return kind.startswith("image/") or kind in ("application/pdf", "text/plain")


def _own_parts(block: ContentBlock) -> Iterator[dict[str, Any]]:
    """The parts that a block of this model's came as."""
    kept: dict[str, Any] = thaw_json(getattr(block, "fidelity", None) or {})
    if isinstance(block, Text):
        if "parts" in kept:
            yield from _split(block.text, kept["parts"], {})
        elif block.text:
            yield {"text": block.text}
        elif kept:
            yield kept
    elif isinstance(block, Thinking):
        if "parts" in kept:
            yield from _split(block.thinking, kept["parts"], {"thought": True})
    elif isinstance(block, InlineData | InlineThinking):
        blob = {"mimeType": block.mime_type, "data": block.data, **kept.pop("inlineData", {})}
        yield {"inlineData": blob, **kept}


def _split(text: str, entries: Iterable[dict[str, Any]], mark: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A text as the parts it came as; unmarked stretches between them as one part each."""
    units = text.encode("utf-16-le")
    position = 0

    def stretch(start: int, end: int) -> str:
        return units[2 * start : 2 * end].decode("utf-16-le", "replace")

    for entry in entries:
        start, end = entry.pop("start"), entry.pop("end")
        if start > position:
            yield {"text": stretch(position, start), **mark}
        yield {"text": stretch(start, end), **mark, **entry}
        position = end
    if 2 * position < len(units):
        yield {"text": stretch(position, len(units) // 2), **mark}


def _foreign_parts(block: ContentBlock) -> Iterator[dict[str, Any]]:
    """What another model's block is to this one: its text, and a word for what can only be said."""
    if isinstance(block, Text) and block.text:
        yield {"text": block.text}
    elif isinstance(block, InlineData):
        yield {"text": f"[{block.mime_type}]"}
    elif not isinstance(block, Text | Thinking | InlineThinking):
        log.debug("a %s block of a reply is left out: this API knows no such block", block.type)


def _input_parts(content: Sequence[ContentBlock], where: str) -> Iterator[dict[str, Any]]:
    for position, block in enumerate(content):
        place = f"{where}.content[{position}]"
        if isinstance(block, Text):
            if block.text:
                yield {"text": block.text}
            elif block.fidelity:
                yield thaw_json(block.fidelity)
        elif isinstance(block, Image):
            yield _image_part(block.url, place)
        elif isinstance(block, InlineData):
            yield {"inlineData": {"mimeType": block.mime_type, "data": block.data}}
        else:
            raise shared.wrong_block(block, place)


def _image_part(url: str, place: str) -> dict[str, Any]:
    inline = shared.split_data_url(url)
    if inline:
        return {"inlineData": {"mimeType": inline[0], "data": inline[1]}}
    if not url.startswith(_WEB):
        raise shared.wrong_address(url, place)
    kind, _ = mimetypes.guess_type(url.partition("?")[0])
    return {"fileData": {"fileUri": url, **({"mimeType": kind} if kind else {})}}
