"""The stories of the adapters: their requests go through the real SDKs to a transport in this process, with points in it.

Each asks three times: a whole stream, a refusal that is worth a retry, an answer that is no stream. Whatever happens, what
the transport opened (connection, answer, client) is closed, and no async generator is left to the garbage collector.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest import mock

import anyio.lowlevel
import httpx2

from agentloop import Context, agent_loop
from agentloop.testing import VirtualClock
from tests.streams import APIS, Api

from .scenarios import config
from .stage import Stage

REFUSED = json.dumps({"error": {"message": "busy", "type": "overloaded_error", "code": 503}}).encode()


class Wire(httpx2.AsyncBaseTransport):
    """Answers in place of a network."""

    def __init__(self, stage: Stage, answers: list[httpx2.Response], kept: bool) -> None:
        self._points = stage.points
        self._closes = "listener: the client closes" if kept else "the client closes"  # kept, the consumer closes it
        self._answers = answers
        self._points.open.append("client")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request."""
        async with self._points.body("connection"):
            answer = self._answers.pop(0)
        self._points.open.append("answer")
        return answer

    async def aclose(self) -> None:
        """The client is closed."""
        try:
            self._points.hit(self._closes)
            await anyio.lowlevel.checkpoint()
        finally:
            self._points.open.remove("client")


class Body(httpx2.AsyncByteStream):
    """The pieces of an answer, each of which may fail to come."""

    def __init__(self, stage: Stage, pieces: list[bytes]) -> None:
        self._points = stage.points
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await self._points.point("a piece")
            yield piece

    async def aclose(self) -> None:
        """The answer is closed."""
        try:
            self._points.hit("the answer closes")
            await anyio.lowlevel.checkpoint()
        finally:
            self._points.open.remove("answer")


def answers(stage: Stage, api: Api) -> list[httpx2.Response]:
    """A stream, a refusal, an answer that is no stream."""
    half = len(api.body) // 2
    stream = Body(stage, [api.body[:half], api.body[half:]])
    told = {"content-type": "application/json"}
    return [
        httpx2.Response(200, headers={"content-type": api.content_type}, stream=stream),
        httpx2.Response(503, headers=told, stream=Body(stage, [REFUSED])),
        httpx2.Response(200, headers=told, stream=Body(stage, [REFUSED])),
        *(httpx2.Response(400, headers=told, stream=Body(stage, [b"{}"])) for _ in range(9)),
    ]


async def asked(stage: Stage, api: Api, kept: bool) -> None:
    """Two turns of an adapter, with a client for each request or one that is kept."""
    points = stage.points
    points.clock = VirtualClock(autojump_threshold=0.03)  # an SDK asks a thread for the name of the system
    points.late = 9  # a request that has begun may still come to its connection
    given = answers(stage, api)

    def transport(self: Any, *proxy: Any, **options: Any) -> Wire:
        return Wire(stage, given, kept)

    client = httpx2.AsyncClient
    with (
        mock.patch.object(client, "_init_transport", transport),
        mock.patch.object(client, "_init_proxy_transport", transport),
    ):
        model: Any = api.make("http://127.0.0.1:9")
        if kept:
            async with model:
                await stage.follow(agent_loop(["go"], Context(), config(points, [], model=model, max_turns=1)))
        else:
            await stage.follow(agent_loop(["go"], Context(), config(points, [], model=model)))


def story(api: Api, kept: bool) -> Any:
    """The story of an adapter, whose SDK is loaded before it."""
    made: Any = partial(asked, api=api, kept=kept)
    made.prepare = partial(api.make, "http://127.0.0.1:9")
    return made


ADAPTERS: dict[str, Any] = {
    f"{api.name}{', kept' if kept else ''}": story(api, kept) for kept in (False, True) for api in APIS
}
