"""What stands around `httpx2`: a client for adapters without an SDK, a request, and its answer as pieces of bytes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from agentloop.errors import ModelError
from agentloop.models._errors import MAX_PARSED, response_error
from agentloop.models._sdk import END, KeptClient, SdkStream, default_certificates
from agentloop.models._shared import load_sdk

CONNECT_TIMEOUT: Final = 10.0
READ_TIMEOUT: Final = 600.0
"""Seconds; how long a silence a run bears is for `Config.idle_timeout`, which counts only while it waits."""

TRAILING_BOUND: Final = 5.0
"""Longest wait in seconds for what may come behind the end of a reply."""


class HttpClient(KeptClient):
    """Where an adapter gets its `httpx2.AsyncClient`. Proxies and certificates are those of the environment; a client
    made here neither retries nor follows redirects: keys in headers of a provider's own would go along.

    `extra` is the extra that brings the package, `timeout` a number of seconds or an `httpx2.Timeout`. Raises
    `MissingExtra` without the package, `TypeError` for a client of the caller's that is not asynchronous.
    """

    def __init__(self, given: Any, extra: str, *, timeout: Any = None) -> None:
        super().__init__(given)
        self._httpx = load_sdk("httpx2", extra)
        if given is not None and not hasattr(given, "__aenter__"):
            raise TypeError(f"client: expected an asynchronous client (AsyncClient), got {type(given).__name__}")
        if timeout is None:
            timeout = self._httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        self._timeout = timeout

    def _new(self) -> Any:
        return self._httpx.AsyncClient(verify=default_certificates("httpx2"), timeout=self._timeout)

    def _closing(self, client: Any) -> Callable[[], Awaitable[object]]:
        closing: Callable[[], Awaitable[object]] = client.aclose
        return closing


async def post(client: Any, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> SdkStream:
    """Send a JSON body; the answer, whose `next` gives pieces of its decoded bytes. Close it with `close`.

    Raises `ModelError` for an answer that is no success, with the connection closed, and for a body that JSON cannot
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


async def next_piece(answer: SdkStream, *, ended: bool) -> Any:
    """The next piece of the body, `END` at its end. Once the reply has ended, a connection that breaks or stays open
    ends as well: a whole reply is not given up for what follows it."""
    if not ended:
        return await answer.next()
    with anyio.move_on_after(TRAILING_BOUND), contextlib.suppress(Exception):
        return await answer.next()
    return END


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
