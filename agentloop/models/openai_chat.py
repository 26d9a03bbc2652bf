"""OpenAI Chat Completions, and everybody who speaks it, through the official SDK's plain event iterator.

    model = OpenAIChat("gpt-5-mini")                                     # key from OPENAI_API_KEY
    model = OpenAIChat("qwen3", base_url="http://localhost:8000/v1", provider="vllm", api_key="none")

Works on asyncio and trio. The SDK's own retries are off: the loop owns them. Without a `client` each request has a
connection of its own, closed with it, so that nothing is left when a run ends; inside `async with model:` the
connections are kept and shared, and a `client` that was given is the caller's to close.

Options of a request are the common ones (`docs/configuration.md`, Options) and, in its body, all others; what is special
about a provider is a value of `ChatQuirks`. The parts: `_chat_body` (messages out), `_chat_reader` (events in), `_errors`
(failures).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentloop.errors import ModelError
from agentloop.model import ModelChunk, ModelRequest
from agentloop.models._adapter import Adapter, Exchange
from agentloop.models._chat_body import request_body
from agentloop.models._chat_quirks import OPENAI, ChatQuirks
from agentloop.models._chat_reader import Reader
from agentloop.models._sdk import END, SdkClient, SdkStream

__all__ = ["ChatQuirks", "OpenAIChat", "Reader", "request_body"]

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


class OpenAIChat(Adapter):
    """A model behind a Chat Completions API.

    `client` is an `openai.AsyncOpenAI` (or Azure's) of the caller's; `base_url`, `api_key`, `headers` and `timeout`
    (seconds, or the HTTP library's own) are for the one made here, with the SDK's defaults. `provider` names who
    answers: it goes into the replies, and thinking goes back only to the same provider and model. `quirks` says what is
    special about it. `options` are defaults for those of a request.

    Raises `MissingExtra` when the SDK is not installed, `ValueError` without a model's name and for another provider
    than OpenAI without its address. A missing key fails the first request (`auth`).
    """

    def __init__(
        self,
        model: str,
        *,
        client: Any = None,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        quirks: ChatQuirks | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, provider, options)
        self.quirks = quirks or (OPENAI if provider == "openai" else ChatQuirks())
        self._client = SdkClient(
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
        body = request_body(request, model=self.model, provider=self.provider, quirks=self.quirks)
        reader = Reader(text_ends_at_call=self.quirks.text_ends_at_call, audio_format=_audio_format(body))
        async with Exchange(self._client) as exchange:
            stream = exchange.hold(SdkStream(await _ask(exchange.client(), body)))
            await stream.take_whole(lambda answer: [answer])
            mark = _EndMark(stream.response)
            ended = False
            while (event := await stream.next(ended=ended, failed=reader.failed)) is not END:
                for chunk in _read(event, reader):
                    if ended:
                        stream.goes_on(chunk)
                    yield chunk
                ended = reader.finish_reason is not None
            for chunk in reader.end(marked=mark.seen):
                yield chunk


async def _ask(client: Any, body: Mapping[str, Any]) -> Any:
    """Send the request; what the SDK has no parameter for goes into its extra body like all the rest."""
    if getattr(client, "max_retries", 0):  # a client of the caller's: the loop owns retries
        client = client.with_options(max_retries=0)
    extra = {key: value for key, value in body.items() if key not in ("model", "messages", "stream")}
    return await client.chat.completions.create(
        model=body["model"], messages=body["messages"], stream=True, extra_body=extra
    )


def _read(event: Any, reader: Reader) -> list[ModelChunk]:
    """The chunks of an event. What is none after a whole reply is passed over, as a stream that breaks there is."""
    try:
        return reader.read(_plain(event))
    except ModelError:
        if reader.finish_reason is None or reader.failed:
            raise
        return []


def _audio_format(body: Mapping[str, Any]) -> str | None:
    """The format that speech was asked in, if it was."""
    audio = body.get("audio")
    format = audio.get("format") if isinstance(audio, Mapping) else None
    return format if isinstance(format, str) else None


def _plain(value: Any) -> Any:
    """An event as JSON, with every field that came, known to the SDK or not. Its own `to_dict` cannot do half a
    surrogate pair, and deltas are cut anywhere."""
    if hasattr(value, "model_fields_set"):
        sent = value.model_fields_set | (value.model_extra or {}).keys()
        return {name: _plain(item) for name, item in value if name in sent}
    return [_plain(item) for item in value] if isinstance(value, list) else value


class _EndMark:
    """Sees whether `data: [DONE]` came, which the SDK swallows. Where a provider names no reason for the end of a reply
    nothing else tells a whole reply from a cut one. It stands in for the response's own reading of bytes."""

    def __init__(self, response: Any) -> None:
        self._read = response.aiter_bytes
        self._tail = b""
        response.aiter_bytes = self._start

    @property
    def seen(self) -> bool:
        return _DONE.search(self._tail) is not None

    def _start(self, *args: Any) -> _EndMark:
        self._bytes = self._read(*args)
        return self

    def __aiter__(self) -> _EndMark:
        return self

    async def __anext__(self) -> bytes:
        piece: bytes = await anext(self._bytes)
        self._tail = (self._tail + piece[-256:])[-256:]
        return piece

    async def aclose(self) -> None:
        await self._bytes.aclose()
