"""Adapters without an SDK, over `httpx2`: their client, a request, and its answer as pieces of bytes and as chunks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol

from agentloop.errors import ModelError
from agentloop.model import ModelChunk, ModelRequest
from agentloop.models._adapter import Adapter, Exchange
from agentloop.models._errors import MAX_PARSED, response_error
from agentloop.models._framing import EventBytes
from agentloop.models._sdk import END, KeptClient, SdkStream, default_certificates, load_sdk

CONNECT_TIMEOUT: Final = 10.0
READ_TIMEOUT: Final = 600.0
"""Seconds; how long a silence a run bears is for `Config.idle_timeout`, which counts only while it waits."""


class HttpClient(KeptClient):
    """Where an adapter gets its `httpx2.AsyncClient`. Proxies and certificates are those of the environment; a client
    made here neither retries nor follows redirects: keys in headers of a provider's own would go along.

    `extra` is the extra that brings the package, `timeout` a number of seconds or an `httpx2.Timeout`. Raises
    `MissingExtra` without the package, `TypeError` for a client of the caller's that is not asynchronous.
    """

    closer = "aclose"

    def __init__(self, given: Any, extra: str, *, timeout: Any = None) -> None:
        self._httpx = load_sdk("httpx2", extra)
        super().__init__(given, "AsyncClient")
        if timeout is None:
            timeout = self._httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        self._timeout = timeout

    def _new(self) -> Any:
        return self._httpx.AsyncClient(verify=default_certificates("httpx2"), timeout=self._timeout)


async def post(client: Any, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> SdkStream:
    """Send a JSON body; the answer, whose `next` gives pieces of its decoded bytes. Close it with `close`.

    Raises `ModelError` for an answer that is not a success, with the connection closed, and for a body that JSON cannot
    say; what `httpx2` raises goes through.
    """
    try:
        content = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError("invalid_input", f"the request is no JSON: {error}") from error
    request = client.build_request(
        "POST", url, content=content, headers={"content-type": "application/json", **headers}
    )
    answer = SdkStream(_Bytes(await client.send(request, stream=True)))
    if answer.response.is_success:
        return answer
    try:
        raise await _refusal(answer)
    finally:
        await answer.close()


class _Bytes:
    """A response in the shape of an SDK's stream."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self._pieces = response.aiter_bytes()

    async def __anext__(self) -> bytes:
        piece: bytes = await anext(self._pieces)
        return piece

    async def close(self) -> None:
        await self.response.aclose()


async def _refusal(answer: SdkStream) -> ModelError:
    """The error that an answer stands for. As much of its body as came counts."""
    response = answer.response
    if response.is_redirect:
        place = response.headers.get("location", "")[:200]
        return ModelError(
            "rejected", f"HTTP {response.status_code}: redirected to {place!r}; give that as the base_url"
        )
    pieces: list[bytes] = []
    size = 0
    with contextlib.suppress(Exception):
        while size < MAX_PARSED and (piece := await answer.next()) is not END:
            pieces.append(piece)
            size += len(piece)
    return response_error(response.status_code, response.headers, b"".join(pieces))


class Reader(Protocol):
    """Events of one answer, as JSON, to chunks: `feed` each, then `end`."""

    @property
    def settled(self) -> bool:
        """Whether the reply is whole whatever follows."""

    def feed(self, event: Any) -> Iterable[ModelChunk]:
        """The chunks of one event, in order."""

    def end(self) -> Iterable[ModelChunk]:
        """The chunks due when the stream has ended."""


def _read(events: Iterable[Any], reader: Reader) -> Iterator[ModelChunk]:
    """The chunks of events. What is none after a whole reply is passed over, as a stream that breaks there is."""
    left = iter(events)
    while True:
        try:
            for event in left:
                yield from reader.feed(event)
            return
        except ModelError:
            if not reader.settled:
                raise


class HttpAdapter(Adapter):
    """An adapter whose request is one POST of JSON, and whose answer is a stream of JSON events."""

    home: ClassVar[str]
    """The provider that answers where no address is given."""
    extra: ClassVar[str]
    """The extra that brings `httpx2`."""

    def __init__(
        self,
        model: str,
        client: Any,
        base_url: str | None,
        api_key: str | None,
        provider: str,
        headers: Mapping[str, str] | None,
        timeout: Any,
        options: Mapping[str, Any] | None,
    ) -> None:
        if provider != self.home and base_url is None:
            raise ValueError(f"base_url: expected the address of {provider!r}, got None")
        super().__init__(model, provider, options)
        self._base_url = base_url
        self._key = api_key
        self._headers = dict(headers or {})
        self._client = HttpClient(client, self.extra, timeout=timeout)

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        body, reader = self._body(request), self._reader(request)
        events = EventBytes()
        async with Exchange(self._client) as exchange:
            url, headers = self._url(), {**self._key_header(), **self._headers}
            answer = exchange.hold(await post(exchange.client(), url, body, headers))
            ended = False
            while (piece := await answer.next(ended=ended)) is not END:
                for chunk in _read(events.feed(piece), reader):
                    if ended:
                        answer.goes_on(chunk)
                    yield chunk
                ended = reader.settled
            for chunk in _read(events.end(), reader):
                yield chunk
            for chunk in reader.end():
                yield chunk

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        """The body of a request. Raises `ModelError` (`invalid_input`, `unsupported`)."""
        raise NotImplementedError

    def _reader(self, request: ModelRequest) -> Reader:
        raise NotImplementedError

    def _url(self) -> str:
        """Where a request goes."""
        raise NotImplementedError

    def _find_key(self, *variables: str) -> str:
        """The key that was given; where no address was, also the first that `variables` hold. Empty: there is none."""
        key = self._key
        if key is None and self._base_url is None:
            key = next((value for name in variables if (value := os.environ.get(name, "").strip())), None)
        return (key or "").strip()

    def _key_header(self) -> dict[str, str]:
        """The header that holds the key, if there is one. Raises `ModelError` (`auth`) where there has to be."""
        raise NotImplementedError
