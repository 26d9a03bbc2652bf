"""The SDK's streamable HTTP transport, with the streams of events that it breaks off ended in order.

After an answer the SDK leaves the generators of its stream to the garbage collector; trio warns of each. The transport is
therefore loaded once more, as a module of our own, in which a stream of events ends with its response. The SDK's own
module stays as it is for others.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx2

from agentloop._mcp.servers import HttpServer

_MODULE: Final = "mcp.client.streamable_http"
_TIMEOUT: Final = 30.0
_BOUND: Final = "agentloop.max_message"
"""The extension of a response that tells how long an event may be: not every version of the SDK has an option."""


@asynccontextmanager
async def http_streams(server: HttpServer, note: Callable[[int], None]) -> AsyncIterator[Any]:
    """The streams to and from a server; `note` hears the status of each answer."""

    async def heard(response: httpx2.Response) -> None:
        response.extensions[_BOUND] = server.max_message
        note(response.status_code)

    # No limit for reading: a server may take its time over a call, whose own limit counts.
    client = httpx2.AsyncClient(
        headers=dict(server.headers),
        auth=server.auth,
        timeout=httpx2.Timeout(_TIMEOUT, read=None),
        event_hooks={"response": [heard]},
    )
    async with client, _transport().streamable_http_client(server.url, http_client=client) as streams:
        yield streams


@functools.cache
def _transport() -> Any:
    """The SDK's module, loaded once more."""
    found = importlib.util.find_spec(_MODULE)
    assert found is not None and found.origin is not None and found.loader is not None
    name = f"{__name__}._transport"
    spec = importlib.util.spec_from_file_location(name, found.origin)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    module.EventSource = _Events
    return module


class _Events(httpx2.EventSource):
    """A stream of events of a bound of our own, whose generators end when its response is closed."""

    def __init__(self, response: httpx2.Response, max_event_size: int | None = None) -> None:
        super().__init__(response, response.extensions.get(_BOUND, max_event_size))

    def __aiter__(self) -> AsyncIterator[httpx2.ServerSentEvent]:
        events: Any = super().__aiter__()
        self._end_with_response(events)
        return events  # type: ignore[no-any-return]

    def _end_with_response(self, events: Any) -> None:
        response: Any = self.response
        close = response.aclose
        closing = False

        async def aclose() -> None:
            nonlocal closing
            if not closing and not events.ag_running:
                closing = True
                # A cancellation goes to the innermost generator and out through all the others.
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    async for _ in events:
                        pass
            await close()

        response.aclose = aclose
