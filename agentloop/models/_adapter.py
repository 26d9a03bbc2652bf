"""The skeleton of an adapter: a callable with a provider and a model, which may keep its client open between requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import attrs

from agentloop.model import ModelChunk, ModelRequest


class Adapter:
    """`async with` it to keep its connections between requests; without, each request has its own."""

    model: str
    provider: str
    options: Mapping[str, Any]
    """Defaults for the options of a request."""
    _client: Any
    """A `KeptClient` of the adapter's own kind."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, provider={self.provider!r})"

    async def __aenter__(self) -> Self:
        self._client.keep()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Ask; the iterator must be closed by the task that steps it. Raises `ModelError` only."""
        return self._chunks(attrs.evolve(request, options={**self.options, **request.options}))

    def _chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        raise NotImplementedError
