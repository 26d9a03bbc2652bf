"""What stands around an official SDK: its client, and its stream of events closed without a trace.

An SDK's stream is a chain of async generators, one inside the other down to the socket. Closing the response ends the
connection, but not the generators: those that are left when the reply is broken off, when an `error` event makes the SDK
raise out of its own loop, or when it stops at `[DONE]`, are found by the garbage collector. Trio then warns of each, and
asyncio starts a task for each. So every generator that begins while the SDK runs is held here, and closed in the end.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import anyio

from agentloop.errors import MissingExtra, ModelError
from agentloop.model import BlockChunk, ModelChunk, TextChunk, ThinkingChunk, ToolCallChunk
from agentloop.models._bounds import bound_answer
from agentloop.models._errors import exception_error, read_body
from agentloop.models._held import Held, close_shielded, close_whole

END: Final = object()
"""What `SdkStream.next` gives at the end."""

TRAILING_BOUND: Final = 5.0
"""Seconds for all that may come after the end of a reply (usage, the end of the stream)."""

_PIECES: Mapping[type, str] = {TextChunk: "text", ThinkingChunk: "thinking", ToolCallChunk: "arguments"}


def load_sdk(package: str, extra: str) -> Any:
    """Import an SDK when its adapter is made. Raises `MissingExtra` when it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise  # the SDK is there but broken: its own words help more
        raise MissingExtra(package, extra) from error


class KeptClient:
    """A client of the caller's, or one made for each request and closed after it, so that nothing stays open; between
    `keep` and `close` one is made and kept, connections included."""

    closer: ClassVar[str] = "close"
    """The method that closes such a client."""

    def __init__(self, given: Any, name: str) -> None:
        if given is not None and not hasattr(given, "__aenter__"):
            raise TypeError(f"client: expected an asynchronous client ({name}), got {type(given).__name__}")
        self._given = given
        self._keeps = False
        self._kept: Any = None

    def get(self) -> Any:
        """A client for a request; give it back with `release`."""
        if self._given is not None:
            return self._given
        if self._keeps and self._kept is None:
            self._kept = self._new()
        return self._new() if self._kept is None else self._kept

    async def release(self, client: Any, stream: SdkStream | None = None) -> None:
        """Close the stream of a request, then the client if it was made for this request alone (None: there is neither).
        Shielded and bounded; raises nothing but what is not an `Exception`, and then too both are closed."""
        try:
            if stream is not None:
                await stream.close()
        finally:
            if client is not None and client is not self._given and client is not self._kept:
                await close_shielded(getattr(client, self.closer))

    def keep(self) -> None:
        """From now on one client serves all requests. The first makes it: what it lacks is a failure of that request."""
        self._keeps = True

    async def close(self) -> None:
        """Close the kept client, if there is one; the caller's own stays open."""
        self._keeps = False
        kept, self._kept = self._kept, None
        if kept is not None:
            await close_shielded(getattr(kept, self.closer))

    def explained(self, error: Exception) -> ModelError:
        """What something means that was raised during a request."""
        return exception_error(error)

    def _new(self) -> Any:
        raise NotImplementedError


class SdkClient(KeptClient):
    """Where an adapter gets its SDK's client.

    `name` is the client's class in the SDK. Raises `MissingExtra` without the SDK, `TypeError` for a client of the
    caller's that is not asynchronous, `ValueError` for another `provider` than the SDK's own without its address.
    """

    def __init__(
        self,
        package: str,
        name: str,
        given: Any,
        *,
        provider: str,
        base_url: str | None,
        api_key: str | None,
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
    ) -> None:
        self.sdk = load_sdk(package, package)
        foreign = given is None and provider != package
        if foreign and base_url is None:
            raise ValueError(f"base_url: expected the address of {provider!r}, got None")
        if foreign and _is_blank(api_key):
            api_key = "none"  # else the SDK would send the key in its environment to somebody else
        super().__init__(given, name)
        self._class = getattr(self.sdk, name)
        self._key = api_key
        self._variable = f"{package.upper()}_API_KEY"
        self._options: dict[str, Any] = {"base_url": base_url, "default_headers": headers}
        if timeout is not None:
            self._options["timeout"] = timeout

    def explained(self, error: Exception) -> ModelError:
        """In words of ours where there is no key: the SDK's name what can be given to its client alone. It has no class
        for that; errors that have one tell of a credential that was found."""
        made = exception_error(error)
        lacks = self._given is None and made.code == "auth" and type(error).__name__ in ("OpenAIError", "TypeError")
        return missing_key(self._variable) if lacks else made

    def _new(self) -> Any:
        key = self._key if self._key is not None else os.environ.get(self._variable) or None
        if isinstance(key, str):  # None: the SDK may know another way
            key = key.strip()
            if not key:  # it would be sent as it is
                raise missing_key(self._variable)
        http = self.sdk.DefaultAsyncHttpxClient
        base = next(cls for cls in http.__mro__ if cls.__name__ == "AsyncClient")
        certificates = default_certificates(base.__module__.partition(".")[0])
        # the SDK's own inner client would start a task when it is collected
        client = http(verify=certificates, event_hooks={"response": [bound_answer]})
        return self._class(http_client=client, max_retries=0, api_key=key, **self._options)

    async def post(
        self, client: Any, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> SdkStream:
        """Send a request; its events come as JSON. The SDK's own calls would make model objects of them, and warn of old
        models and of budgets for thinking."""
        options = {"max_retries": 0, **({"headers": headers} if headers else {})}
        events = self.sdk.AsyncStream[object]
        return SdkStream(
            await client.post(path, cast_to=object, body=body, options=options, stream=True, stream_cls=events)
        )


def missing_key(*variables: str) -> ModelError:
    """What a request fails with where there is no key, with the environment variables that may hold it."""
    return ModelError("auth", f"no key: set {' or '.join(variables)}, or give api_key")


def _is_blank(key: Any) -> bool:
    return key is None or (isinstance(key, str) and not key.strip())


@functools.cache
def default_certificates(library: str) -> Any:
    """The HTTP library's default trust, read once a process: it is nearly all that making a client costs (25 ms)."""
    return sys.modules[library].create_ssl_context()


class SdkStream:
    """An SDK's stream of events, and a hold on every async generator inside. To be stepped and closed by one task."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # the SDK closes it behind a shield of its own, which no cancellation gets through
        stream.response.aclose = functools.partial(close_shielded, stream.response.aclose)
        self._inside: list[AsyncGenerator[Any, Any]] = []
        self._whole: Iterator[Any] | None = None
        self._left: float | None = None
        self._went_on = False

    @property
    def response(self) -> Any:
        """The HTTP response."""
        return self._stream.response

    async def next(self, *, ended: bool = False, failed: bool = False) -> Any:
        """The next event, `END` at the end. Raises what the SDK raises.

        Once the reply has `ended`, a stream that breaks, stays open or goes on and on ends as well: what comes then is usage
        at most, and a whole reply is not given up for it. What is bounded is the wait, not the time of whoever reads.
        All the same it raises a break where the reply has gone on behind an end before (none says then that it is whole), and
        an error that the stream tells of where the end says that the reply `failed`.
        """
        if self._whole is not None:
            return next(self._whole, END)
        if not ended:
            return await self._next()
        begun, left = anyio.current_time(), TRAILING_BOUND if self._left is None else self._left
        try:
            with anyio.CancelScope(deadline=begun + left):
                return await self._next()
        except Exception as error:
            if self._went_on or (failed and getattr(error, "body", None)):
                raise
        finally:
            self._left = left - (anyio.current_time() - begun)
        return END

    def goes_on(self, chunk: ModelChunk) -> None:
        """A chunk came after the end of its reply. If it says something that was not the end (some servers send a reason
        with every event): the bound begins anew, and a break is one."""
        if isinstance(chunk, BlockChunk) or getattr(chunk, _PIECES.get(type(chunk), ""), None):
            self._left, self._went_on = None, True

    async def _next(self) -> Any:
        try:
            return await Held(self._stream.__anext__(), self._inside.append)
        except StopAsyncIteration:
            return END

    async def close(self) -> None:
        """Close the connection, then all generators; shielded and bounded, raises nothing but what is not an `Exception`."""
        try:
            await close_whole(self._stream.close)
        finally:
            while self._inside:
                await close_whole(self._inside.pop().aclose)

    async def take_whole(self, events: Callable[[Any], Iterable[Any]]) -> None:
        """Where the answer is JSON and no stream (an error under status 200, a server that does not stream), give the
        `events` that it stands for.

        Call it before the first `next`. Raises `ModelError` (`malformed`) for a page of HTML.
        """
        response = self._stream.response
        kind = response.headers.get("content-type", "").lower()
        if "json" not in kind and "html" not in kind:
            return
        text = (await response.aread()).strip()
        if text[:1] == b"{":
            self._whole = iter(events(json.loads(text)))
        elif text[:1] == b"<":
            raise ModelError("malformed", f"expected a stream of events, got {kind}: {read_body(text).message}")
        # else a stream under a wrong name; the SDK reads on from what was read
