"""The skeleton of an adapter: a callable with a provider and a model, and the exchange that one request of it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import attrs

from agentloop.errors import ModelError
from agentloop.model import ModelChunk, ModelRequest
from agentloop.models._sdk import KeptClient, SdkStream


class Adapter:
    """`async with` it to keep its connections between requests; without, each request has its own."""

    _client: KeptClient

    def __init__(self, model: str, provider: str, options: Mapping[str, Any] | None) -> None:
        if not isinstance(model, str) or not model:
            raise ValueError(f"model: expected the name of a model, got {model!r}")
        self.model = model
        self.provider = provider
        self.options: Mapping[str, Any] = dict(options or {})
        """Defaults for the options of a request."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, provider={self.provider!r})"

    async def __aenter__(self) -> Self:
        self._client.keep()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that are kept; a client of the caller's stays open."""
        await self._client.close()

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Ask; the iterator must be closed by the task that steps it. Raises `ModelError` only."""
        return self._chunks(attrs.evolve(request, options={**self.options, **request.options}))

    def _chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        raise NotImplementedError


class Exchange:
    """A request and its answer, by `async with`: whatever fails inside leaves as a `ModelError`, and on every path the
    stream is closed and the client given back, shielded and bounded."""

    def __init__(self, clients: KeptClient) -> None:
        self._clients = clients
        self._client: Any = None
        self._stream: SdkStream | None = None

    def client(self) -> Any:
        """The client of this request."""
        self._client = self._clients.get()
        return self._client

    def hold(self, stream: SdkStream) -> SdkStream:
        """The same stream, closed with the exchange."""
        self._stream = stream
        return stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, ModelError):
                raise self._clients.explained(error) from error
        finally:
            await self._clients.release(self._client, self._stream)
