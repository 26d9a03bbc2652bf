"""OpenAI Chat Completions, and everybody who speaks it, through the official SDK's plain event iterator.

    model = OpenAIChat("gpt-5-mini")                                     # key from OPENAI_API_KEY
    model = OpenAIChat("qwen3", base_url="http://localhost:8000/v1", provider="vllm", api_key="none")

Works on asyncio and trio. The SDK's own retries are off: the loop owns them. Without a `client` each request has a
connection of its own, closed with it, so that nothing is left when a run ends; inside `async with model:` the
connections are kept and shared, and a `client` that was given is the caller's to close.

Options of a request are those of `agentloop.models._shared`; what is special about a provider is a value of
`ChatQuirks`. The parts: `_chat_body` (messages out), `_chat_reader` (events in), `_errors` (failures).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import anyio

from agentloop.errors import ModelError
from agentloop.model import ModelChunk, ModelRequest
from agentloop.models._chat_body import request_body
from agentloop.models._chat_quirks import OPENAI, ChatQuirks
from agentloop.models._chat_reader import Reader
from agentloop.models._errors import exception_error
from agentloop.models._sdk import END, SdkClient, SdkStream

__all__ = ["ChatQuirks", "OpenAIChat", "Reader", "request_body"]

TRAILING_BOUND = 5.0
"""Seconds that a server may take, after it named the end of the reply, to send usage and end the stream."""

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


class OpenAIChat:
    """A model behind a Chat Completions API.

    `client` is an `openai.AsyncOpenAI` (or Azure's) of the caller's; `base_url`, `api_key`, `headers` and `timeout`
    (seconds, or the HTTP library's own) are for the one made here, with the SDK's defaults. `provider` names who
    answers: it goes into the replies, and thinking goes back only to the same provider and model. `quirks` says what is
    special about it.

    Raises `MissingExtra` when the SDK is not installed, `ValueError` for another provider than OpenAI without its
    address.
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
    ) -> None:
        self.model = model
        self.provider = provider
        self.quirks = quirks or (OPENAI if provider == "openai" else ChatQuirks())
        self._clients = SdkClient(
            "openai",
            "AsyncOpenAI",
            client,
            provider=provider,
            base_url=base_url,
            api_key=api_key,
            headers=headers,
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, provider={self.provider!r})"

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Ask; the iterator must be closed by the task that steps it. Raises `ModelError` only."""
        return self._chunks(request)

    async def __aenter__(self) -> OpenAIChat:
        self._clients.keep()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are kept; a client of the caller's stays open."""
        await self._clients.close()

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        body = request_body(request, model=self.model, provider=self.provider, quirks=self.quirks)
        reader = Reader(text_ends_at_call=self.quirks.text_ends_at_call)
        client = stream = None
        try:
            client = self._clients.get()
            response = await _ask(client, body)
            stream = SdkStream(response)
            if (answer := await stream.answer()) is not None:
                for chunk in reader.read(answer):
                    yield chunk
            mark = _EndMark(response.response)
            while answer is None and (event := await _next(stream, reader.finish_reason is not None)) is not END:
                for chunk in reader.read(_plain(event)):
                    yield chunk
            for chunk in reader.end(marked=mark.seen):
                yield chunk
        except ModelError:
            raise
        except Exception as error:
            raise exception_error(error) from error
        finally:
            await self._clients.release(client, stream)


async def _ask(client: Any, body: Mapping[str, Any]) -> Any:
    """Send the request; what the SDK has no parameter for goes into its extra body like all the rest."""
    if getattr(client, "max_retries", 0):  # a client of the caller's: the loop owns retries
        client = client.with_options(max_retries=0)
    extra = {key: value for key, value in body.items() if key not in ("model", "messages", "stream")}
    return await client.chat.completions.create(
        model=body["model"], messages=body["messages"], stream=True, extra_body=extra
    )


async def _next(stream: SdkStream, ended: bool) -> Any:
    """The next event, `END` at the end. Once the reply has ended, a stream that breaks or stays open ends as well: what
    comes then is usage at most, and a whole reply is not given up for it."""
    if not ended:
        return await stream.next()
    with anyio.move_on_after(TRAILING_BOUND), contextlib.suppress(Exception):
        return await stream.next()
    return END


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
