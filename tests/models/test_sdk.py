"""What stands around an SDK: loading it, and closing what it leaves."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
import pytest

from agentloop import AgentEnd, Config, Context, agent_loop, user
from agentloop.errors import MissingExtra
from agentloop.model import ModelRequest, TextChunk, UsageChunk
from agentloop.models import _held, _sdk
from agentloop.models._held import close_shielded
from agentloop.models._sdk import load_sdk
from agentloop.models.gemini import Gemini
from agentloop.models.openai_chat import OpenAIChat
from agentloop.testing import collect


def test_a_broken_sdk_is_not_a_missing_one(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK that is not there names the extra; one that fails to import says why itself."""
    with pytest.raises(MissingExtra, match=r"agentloop\[some\]"):
        load_sdk("no_such_sdk_here", "some")
    (tmp_path / "broken_sdk_here.py").write_text("import what_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        load_sdk("broken_sdk_here", "some")
    assert "broken_sdk_here" not in sys.modules


@pytest.mark.anyio
async def test_closing_is_shielded_bounded_and_silent() -> None:
    """A close runs also while its task is cancelled, gives up after its bound, and its failure is nobody's."""
    closed = []

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        closed.append(True)

    async def fail() -> None:
        raise OSError("gone")

    with anyio.CancelScope() as scope:
        scope.cancel()
        await close_shielded(close)
    assert closed == [True]
    await close_shielded(fail)
    await close_shielded(anyio.sleep_forever, bound=0.01)


class _NeverClosed(httpx2.AsyncByteStream):
    """A whole reply, whose connection takes for ever to close."""

    def __init__(self) -> None:
        self.closing, self.release = anyio.Event(), anyio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        choice = {"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}
        yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\ndata: [DONE]\n\n"

    async def aclose(self) -> None:
        self.closing.set()
        await self.release.wait()


@pytest.mark.anyio
async def test_what_an_sdk_closes_behind_a_shield_of_its_own_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cancellation gets there: the reply would never end, and on trio it would outlast the event loop."""
    monkeypatch.setattr(_held.close_shielded, "__defaults__", (0.05,))
    body = _NeverClosed()
    try:
        assert await _said(body) == ["go", "Hello"]
    finally:
        body.release.set()
    assert body.closing.is_set()


class _NeverEnding(httpx2.AsyncByteStream):
    """A whole reply, behind which more and more comes that says nothing."""

    def __init__(self, choices: list[Any]) -> None:
        self.more = json.dumps({"choices": choices}).encode()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        choice = {"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}
        yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        while True:
            await anyio.lowlevel.checkpoint()
            yield b"data: " + self.more + b"\n\n"


@pytest.mark.anyio
@pytest.mark.parametrize("choices", [[], [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]])
async def test_what_goes_on_and_on_behind_a_whole_reply_is_bounded(
    choices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is for all of it: one for each piece would never come, and a time-out would give up the reply."""
    monkeypatch.setattr(_sdk, "TRAILING_BOUND", 0.05)
    assert await _said(_NeverEnding(choices)) == ["go", "Hello"]


class _Pieces(httpx2.AsyncByteStream):
    """Events of a reply, each with a reason for its end, and each but the first after a `wait` of seconds on a clock of its
    own; `deadlines` tells until when it was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait: int, *deltas: dict[str, Any]) -> None:
        self.deltas = deltas
        self.deadlines: list[float] = []
        self.wait = wait
        self.passed = 0
        real = anyio.current_time
        monkeypatch.setattr(anyio, "current_time", lambda: real() + self.passed)

    def event(self, count: int, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"completion_tokens": count}}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for count, delta in enumerate(self.deltas):
            yield b"data: " + json.dumps(self.event(count, delta)).encode() + b"\n\n"
            if len(self.deadlines) < len(self.deltas):  # closing reads it once more
                self.deadlines.append(anyio.current_effective_deadline())
                self.passed += self.wait
        yield b"data: [DONE]\n\n"

    def later(self) -> list[float]:
        """How much later than the first each deadline is."""
        return [round(deadline - self.deadlines[0], -1) for deadline in self.deadlines]


@pytest.mark.anyio
async def test_a_reply_that_goes_on_behind_its_end_has_the_bound_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers send a reason with every event: a long reply is not cut where the bound of its first event is over."""
    deltas = [{"content": "a"}, {"content": "b"}, {"content": ""}, {"reasoning_content": "c"}, {"content": "d"}]
    body = _Pieces(monkeypatch, 10, *deltas)
    assert await _said(body) == ["go", "abd"]
    assert body.later() == [0, 10, 10, 30, 40]


class _PiecesOfGemini(_Pieces):
    def event(self, count: int, delta: dict[str, Any]) -> dict[str, Any]:
        parts = [{"text": text, "thought": kind != "content"} for kind, text in delta.items()]
        candidate = {"content": {"parts": parts}, "finishReason": "STOP"}
        return {"responseId": "r", "candidates": [candidate]}


@pytest.mark.anyio
async def test_so_has_one_of_an_adapter_without_an_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is that of all adapters whose reader takes what comes behind a reason."""
    deltas = [{"content": "a"}, {"content": "b"}, {"content": ""}, {"reasoning": "c"}, {"content": "d"}]
    body = _PiecesOfGemini(monkeypatch, 10, *deltas)
    async with _http(body) as http:
        request = ModelRequest(None, (user("go"),), (), {})
        said = [chunk async for chunk in Gemini("m", client=http, api_key="mine")(request)]
    assert "".join(chunk.text for chunk in said if isinstance(chunk, TextChunk)) == "abd"
    assert body.later() == [0, 10, 10, 30, 40]


@pytest.mark.anyio
async def test_the_time_of_whoever_reads_is_no_wait_for_what_trails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is for the provider: what is there when a slow reader comes back is still read."""
    body = _Pieces(monkeypatch, 0, {"content": "a"}, {}, {})
    async with _model(body) as model:
        async for chunk in model(ModelRequest(None, (user("go"),), (), {})):
            if isinstance(chunk, UsageChunk):
                body.passed += 10
    assert body.later() == [0, 10, 20]


@contextlib.asynccontextmanager
async def _http(body: httpx2.AsyncByteStream) -> AsyncIterator[httpx2.AsyncClient]:
    """A client to which this is answered."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        yield http


@contextlib.asynccontextmanager
async def _model(body: httpx2.AsyncByteStream) -> AsyncIterator[OpenAIChat]:
    """A model that streams this."""
    async with _http(body) as http:
        yield OpenAIChat(
            "m", client=openai.AsyncOpenAI(api_key="mine", base_url="http://127.0.0.1:9", http_client=http)
        )


async def _said(body: httpx2.AsyncByteStream) -> list[str]:
    """The texts of a run whose model streams this."""
    with anyio.fail_after(10):
        async with _model(body) as model:
            events = await collect(agent_loop(["go"], Context(), Config(model=model, idle_timeout=None)))
    assert isinstance(events[-1], AgentEnd)
    return [message.text for message in events[-1].messages]
