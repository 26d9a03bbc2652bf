"""The Chat Completions adapter through the real SDK against a server on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from agentloop.config import Config
from agentloop.context import Context
from agentloop.events import AgentEnd, MessageUpdate, RequestEnd
from agentloop.loop import agent_loop, running
from agentloop.messages import (
    AssistantMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from agentloop.model import ModelRequest
from agentloop.models import _sdk
from agentloop.models._chat_quirks import ChatQuirks
from agentloop.models.openai_chat import OpenAIChat, Reader, request_body
from agentloop.testing.wire import Case, Outcome, Play, WireServer, load_cases, pieces, play_case, run_folder, run_model

BROKEN_OFF = 30_000 if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else 1_100
"""Longest recorded stream that is broken off after each of its events."""

EVENT_STREAM = {"content-type": "text/event-stream"}


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    chunk = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunk["choices"] = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return b"data: " + json.dumps(chunk | more).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
PIECES = [
    event({"role": "assistant", "reasoning": "Let me "}),
    event({"reasoning": "see ☃."}),
    event({"content": "Grüße, "}),
    event({"content": "world"}),
    event({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
    event({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
    event(finish="tool_calls"),
    b"data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}).encode() + b"\n\n",
    DONE,
]
BODY = b": hello\n\n" + b"".join(PIECES)


def model_at(address: str, **options: Any) -> OpenAIChat:
    return OpenAIChat("m", base_url=f"{address}/v1", api_key="k", **options)


async def ask(play: Play, **options: Any) -> tuple[Outcome, Any]:
    """The outcome of one play, and the request that the server saw."""
    with WireServer() as server:
        outcome = await run_model(model_at(server.play(play), **options))
        return outcome, server.requests[-1]


def stream(body: bytes = BODY, **options: Any) -> Play:
    return Play(body, headers=EVENT_STREAM, **options)


def assert_whole(outcome: Outcome) -> None:
    assert outcome.error is None
    assert outcome.committed
    assert outcome.message is not None
    assert outcome.message.content == (
        Thinking("Let me see ☃.", {"field": "reasoning"}),
        Text("Grüße, world"),
        ToolCall("c1", "f", '{"a": 1}'),
    )
    assert outcome.message.finish_reason == "tool_use"
    assert outcome.message.usage == Usage(0, 5, 7)


# ---------------------------------------------------------------- streams


@pytest.mark.anyio
@pytest.mark.parametrize("options", [{}, {"gzip": True}, {"framing": "length"}, {"framing": "close"}], ids=str)
async def test_a_stream_whole(options: dict[str, Any]) -> None:
    """Blocks, end and usage come through the SDK and the loop, whatever the framing and coding."""
    outcome, request = await ask(stream(**options))
    assert_whole(outcome)
    assert outcome.message is not None
    assert (outcome.message.provider, outcome.message.model) == ("openai", "m")
    assert request.path == "/v1/chat/completions"
    assert request.json["stream"] is True
    assert request.headers["authorization"] == "Bearer k"


@pytest.mark.anyio
@pytest.mark.parametrize("chop", ["event", "line", "1", "7", "random:1"])
async def test_a_stream_chopped(chop: str) -> None:
    """Where the bytes are cut makes no difference."""
    outcome, _ = await ask(stream(chop=chop))
    assert_whole(outcome)


@pytest.mark.anyio
async def test_a_stream_with_other_line_ends() -> None:
    """CRLF and an event without its closing blank line are read."""
    outcome, _ = await ask(stream(BODY.replace(b"\n", b"\r\n").rstrip()))
    assert_whole(outcome)


@pytest.mark.anyio
async def test_what_was_not_sent_is_not_made_up() -> None:
    """The SDK's objects have fields that never came: an empty usage behind a real one is none."""
    outcome, _ = await ask(stream(BODY.replace(DONE, b'data: {"choices":[],"usage":{}}\n\n' + DONE)))
    assert_whole(outcome)


@pytest.mark.anyio
async def test_half_a_character_in_a_delta() -> None:
    """A surrogate pair that is cut between two deltas is one character of the reply."""
    body = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'
    body += b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00"},"finish_reason":"stop"}]}\n\n'
    outcome, _ = await ask(stream(body))
    assert outcome.committed
    assert outcome.message is not None
    assert outcome.message.text == "😀"


@pytest.mark.anyio
async def test_the_end_mark_alone_ends_a_reply() -> None:
    """A provider that names no reason but marks the end gave a whole reply; the words of the mark in a text do not."""
    outcome, _ = await ask(stream(event({"content": "4"}) + DONE, chop="3"))
    assert outcome.committed
    assert outcome.message is not None
    assert outcome.message.finish_reason == "unknown"
    outcome, _ = await ask(stream(event({"content": "\ndata: [DONE]"})))
    assert not outcome.committed


@pytest.mark.anyio
async def test_an_answer_that_is_no_stream() -> None:
    """A whole answer under status 200 is a reply, an error object an error, a page `malformed`."""
    answer = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    outcome, _ = await ask(Play(json.dumps(answer).encode(), headers={"content-type": "application/json"}))
    assert outcome.message is not None
    assert outcome.message.text == "hi"
    error = {"error": {"message": "busy", "code": 503}}
    outcome, _ = await ask(Play(json.dumps(error).encode(), headers={"content-type": "application/json"}))
    assert outcome.error is not None
    assert outcome.error.code == "overloaded"
    outcome, _ = await ask(Play(b"<html><body>Log in</body></html>", headers={"content-type": "text/html"}))
    assert outcome.error is not None
    assert outcome.error.code == "malformed"
    outcome, _ = await ask(Play(BODY, headers={"content-type": "application/json"}))
    assert_whole(outcome)


# ---------------------------------------------------------------- faults


@pytest.mark.anyio
@pytest.mark.parametrize("cut", range(len(PIECES)))
@pytest.mark.parametrize("how", ["end_at", "drop_at"])
async def test_a_stream_that_breaks_off(cut: int, how: str) -> None:
    """Cut at any event, cleanly or not: what had come is there and nothing else; after the reason the reply is whole."""
    at = len(b": hello\n\n") + sum(len(piece) for piece in PIECES[:cut])
    outcome, _ = await ask(stream(**{how: at}, reset=how == "drop_at" and cut % 2 == 1))
    if cut > 6:
        assert outcome.committed
        return
    assert not outcome.committed
    text = "".join(["", "", "", "Grüße, ", "world", "", ""][: cut + 1])
    assert (outcome.message.text if outcome.message else "") == text
    if how == "drop_at":
        assert outcome.error is not None
        assert outcome.error.code == "network"
    assert outcome.message is None or not outcome.message.tool_calls


@pytest.mark.anyio
async def test_a_cut_stream_is_truncated() -> None:
    """A stream that just stops is the retryable `truncated` of its request."""
    with WireServer() as server:
        config = Config(model=model_at(server.play(stream(end_at=len(BODY) // 2))), retry=None)
        async with running(agent_loop("x", Context(), config)) as events:
            (end,) = [event async for event in events if isinstance(event, RequestEnd)]
    assert (end.status, end.error_code) == ("retryable", "truncated")


BROKEN = {
    b'data: {"error": {"message": "busy", "code": 503}}\n\n': "overloaded",
    b'event: error\ndata: {"message": "no", "code": 400}\n\n': "rejected",
    b"data: {not json\n\n": "malformed",
    b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n': "malformed",
    b"data: 5\n\n": "malformed",
    event(finish="error"): "network",
}


@pytest.mark.anyio
@pytest.mark.parametrize(("broken", "code"), BROKEN.items(), ids=lambda value: str(value)[:30])
async def test_an_error_after_some_content(broken: bytes, code: str) -> None:
    """An error object, or what is no event, ends the attempt with its code; what had come is there."""
    outcome, _ = await ask(stream(event({"content": "some"}) + broken + event({"content": "never"})))
    assert outcome.error is not None
    assert outcome.error.code == code
    assert outcome.message is not None
    assert outcome.message.text.startswith("some")


@pytest.mark.anyio
async def test_errors_before_the_stream() -> None:
    """An error answer has its code and its wait, and the SDK asks only once."""
    body = b'{"error": {"message": "Slow down.", "type": "requests"}}'
    with WireServer() as server:
        model = model_at(server.play(Play(body, 429, {"retry-after": "7", "content-type": "application/json"})))
        outcome = await run_model(model)
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retry_after) == ("rate_limit", 7.0)
        assert isinstance(outcome.error.__cause__, openai.RateLimitError)
        assert len(server.requests) == 1


@pytest.mark.anyio
async def test_nobody_answers() -> None:
    """A refused connection is the network's failure, and the text tells more than the SDK's."""
    with WireServer() as server:
        address = server.play()
    outcome = await run_model(model_at(address))
    assert outcome.error is not None
    assert outcome.error.code == "network"
    assert "connect" in outcome.error.message.lower()


@pytest.mark.anyio
async def test_a_stream_that_stalls() -> None:
    """The loop's idle timeout ends the attempt, and the server sees the connection closed."""
    with WireServer() as server:
        model = model_at(server.play(stream(stall_at=len(BODY) // 2)))
        config = Config(model=model, retry=None, idle_timeout=0.5)
        async with running(agent_loop("x", Context(), config)) as events:
            (end,) = [event async for event in events if isinstance(event, RequestEnd)]
        assert (end.status, end.error_code) == ("retryable", "timeout")
        assert await closed(server)


@pytest.mark.anyio
async def test_a_stream_that_stays_open_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the reason came, a server that neither marks the end nor closes costs a bounded wait, not the reply."""
    monkeypatch.setattr(_sdk, "TRAILING_BOUND", 0.05)
    body = b"".join(PIECES[:7])
    with WireServer() as server:
        outcome = await run_model(model_at(server.play(stream(body + b": more", stall_at=len(body)))))
        assert outcome.committed
        assert await closed(server)


@pytest.mark.anyio
async def test_what_comes_behind_a_word_for_a_failure_may_say_which() -> None:
    """That word ends no whole reply: an error behind it is told."""
    for late in (
        b'data: {"object": "error", "message": "full", "code": 503}\n\n',
        b'data: {"error": {"message": "full", "code": 503}}\n\n',  # which the SDK raises
    ):
        with WireServer() as server:
            outcome = await run_model(model_at(server.play(stream(event({"content": "x"}, "error") + late + DONE))))
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == ("overloaded", "full")


@pytest.mark.anyio
async def test_a_word_for_a_failure_stands_where_nothing_more_comes() -> None:
    """A connection that breaks behind it says less."""
    body = event({"content": "x"}, "insufficient_system_resource")
    with WireServer() as server:
        outcome = await run_model(model_at(server.play(stream(body + DONE, drop_at=len(body)))))
    assert outcome.error is not None
    assert outcome.error.code == "overloaded"


@pytest.mark.anyio
@pytest.mark.parametrize(("pieces", "whole"), [(1, True), (2, False), (3, False)])
async def test_a_reply_that_breaks_where_every_event_has_a_reason(pieces: int, whole: bool) -> None:
    """Once one has gone on behind its reason, no reason says any more that it is whole, and a break is one."""
    body = b"".join(event({"content": str(n)}, "stop") for n in range(pieces))
    with WireServer() as server:
        outcome = await run_model(model_at(server.play(stream(body + DONE, drop_at=len(body)))))
        assert outcome.committed is whole
        assert outcome.message is not None
        assert outcome.message.text == "012"[:pieces]
        if not whole:
            assert outcome.error is not None
            assert outcome.error.code == "network"
        outcome = await run_model(model_at(server.play(stream(body + DONE))))
        assert outcome.committed


async def closed(server: WireServer) -> bool:
    return await anyio.to_thread.run_sync(server.requests[-1].client_closed.wait, 5)


@pytest.mark.anyio
@pytest.mark.parametrize("leave", ["break", "cancel"])
async def test_leaving_closes_the_connection(leave: str) -> None:
    """However a run is left in the middle of a reply, the server sees the connection closed, and nothing warns."""
    with WireServer() as server:
        config = Config(model=model_at(server.play(stream(stall_at=len(BODY) // 2))), retry=None)
        with anyio.CancelScope() as scope:
            async with running(agent_loop("x", Context(), config)) as events:
                async for event in events:
                    if isinstance(event, MessageUpdate):
                        if leave == "break":
                            break
                        scope.cancel()
        assert await closed(server)


@pytest.mark.anyio
async def test_a_retry_of_the_loop_asks_again() -> None:
    """The loop's own retry comes after the provider's wait; the second reply is the run's."""
    refused = Play(b"{}", 429, {"retry-after-ms": "1"})
    with WireServer() as server:
        config = Config(model=model_at(server.play(refused, stream(event({"content": "hi"}, "stop")))))
        async with running(agent_loop("x", Context(), config)) as events:
            seen = [event async for event in events]
    ends = [event for event in seen if isinstance(event, RequestEnd)]
    assert [(end.status, end.error_code) for end in ends] == [("retryable", "rate_limit"), ("completed", None)]
    assert ends[0].retry_in_ms == 1
    assert isinstance(seen[-1], AgentEnd)
    assert seen[-1].messages[-1].text == "hi"


# ---------------------------------------------------------------- the SDK


def test_importing_loads_no_sdk() -> None:
    """The adapter's module can be imported without its SDK being loaded."""
    code = "import sys, agentloop.models.openai_chat; print('openai' in sys.modules, 'httpx2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.anyio
async def test_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing key is `auth`, as a wrong one is."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    outcome = await run_model(OpenAIChat("m"))
    assert outcome.error is not None
    assert outcome.error.code == "auth"


# ---------------------------------------------------------------- recorded responses


def test_recorded_responses(shared: Path) -> None:
    """Every recorded stream and error of this API comes out as its expectation says, through the SDK and the loop."""
    results = run_folder(shared / "wire", api="openai_chat")
    assert len(results) > 90
    assert [result.line for result in results if not result.ok] == []


@pytest.mark.parametrize(
    ("backend", "chop", "longest"),
    [
        ("trio", "", 2_000),
        ("uvloop", "", 1_300),
        ("asyncio", "1", 1_000),
        ("asyncio", "event", 1_300),
        ("trio", "random:2", 1_300),
    ],
)
def test_recorded_responses_otherwise(shared: Path, backend: str, chop: str, longest: int) -> None:
    """The same for small ones on the other backends, cut at every byte, at every event, anywhere."""
    results = run_folder(shared / "wire", api="openai_chat", backend=backend, chop=chop, longest=longest)
    assert len(results) >= 10
    assert [result.line for result in results if not result.ok] == []


@pytest.mark.anyio
async def test_recorded_streams_that_break_off(shared: Path) -> None:
    """Recorded streams dropped and ended after every event: what came is a prefix, and the code says how it broke."""
    cases = load_cases(shared / "wire", api="openai_chat", kinds=["stream"], longest=BROKEN_OFF)
    assert len(cases) >= 5
    with WireServer() as server:
        for case in cases:
            expected = case.expected
            text = expected["text"] + "".join(
                block["text"] for block in expected["blocks"] if block.get("kind") == "refusal"
            )
            ends = [0]
            for piece in pieces(case.body, "event")[:-1]:
                ends.append(ends[-1] + len(piece))
            for end in ends:
                for how in ("drop_at", "end_at"):
                    outcome = await play_case(case, server, **{how: end})
                    assert text.startswith(outcome.message.text if outcome.message else ""), (case.name, how, end)
                    if not outcome.committed:
                        assert outcome.message is None or outcome.message.stop_reason == "retryable" or outcome.error
                        assert outcome.error is None or outcome.error.code in ("network", "rejected"), (case.name, end)
                        assert how == "end_at" or outcome.error is not None


# ---------------------------------------------------------------- follow-ups


def conversations(shared: Path) -> dict[str, list[Case]]:
    """The recorded conversations, turns in order."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in load_cases(shared / "wire", api="openai_chat", kinds=("stream", "json")):
        conversation = case.meta.get("conversation")
        if conversation and case.meta["request"].get("body"):
            found[f"{case.name.partition('/')[0]}/{conversation['id']}"].append(case)
    return {name: sorted(cases, key=lambda case: case.meta["conversation"]["turn"]) for name, cases in found.items()}


async def replies_of(cases: list[Case], server: WireServer) -> list[AssistantMessage | None]:
    """What the adapter makes of each turn; of a recorded whole answer too."""
    replies = []
    for case in cases:
        outcome = await play_case(case, server)
        replies.append(outcome.message if outcome.committed else None)
    return replies


def rebuilt(recorded: list[dict[str, Any]], replies: list[AssistantMessage | None]) -> list[Any]:
    """The recorded history with our replies in the place of the recorded ones."""
    messages: list[Any] = []
    names: dict[str, str] = {}
    waiting = list(replies)
    for message in recorded:
        match message["role"]:
            case "user":
                messages.append(UserMessage(message["content"]))
            case "assistant":
                reply = waiting.pop(0)
                assert reply is not None
                messages.append(reply)
                names |= {call.id: call.name for call in reply.tool_calls}
            case "tool":
                own_id = message["tool_call_id"]
                messages.append(ToolResultMessage(own_id, names[own_id], message["content"]))
    return messages


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what does not matter: null, empty or no content, blanks in arguments, null keys."""
    result = {"role": message["role"], "content": message.get("content") or ""}
    if message["role"] == "tool":
        result["tool_call_id"] = message["tool_call_id"]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        result.setdefault("tool_calls", []).append((call["id"], function["name"], json.loads(function["arguments"])))
    return result


def reasoning_texts(message: dict[str, Any]) -> set[str]:
    return {message[name] for name in ("reasoning_content", "reasoning", "reasoning_text") if message.get(name)}


def holds_detail(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether our message has a recorded reasoning detail, null keys aside. One of the recorded clients made up entries
    of `unknown` format from the text, without its first piece."""
    if theirs.get("format") == "unknown":
        return any(text.endswith(theirs["text"]) for text in reasoning_texts(mine))
    theirs = {key: value for key, value in theirs.items() if value is not None}
    return any(theirs.items() <= detail.items() for detail in mine.get("reasoning_details", ()))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_recorded_follow_ups(shared: Path) -> None:
    """Each recorded follow-up request is rebuilt from the replies that the adapter made of the turns before."""
    compared = 0
    with WireServer() as server:
        for name, cases in conversations(shared).items():
            replies = await replies_of(cases, server)
            for turn, case in enumerate(cases):
                lacks = case.meta["conversation"].get("request_lacks_from_previous_turn") or []
                recorded = case.meta["request"]["body"]["messages"]
                said = [message for message in recorded if message["role"] == "assistant"]
                if turn == 0 or None in replies[: len(said)]:  # a reply that failed is in no later request
                    continue
                compared += 1
                ours = body_of(case, rebuilt(recorded, replies))["messages"]
                for mine, theirs in zip(ours, recorded, strict=True):
                    if "text" in lacks and theirs["role"] == "assistant":
                        theirs = theirs | {"content": mine["content"]}
                    assert comparable(mine) == comparable(theirs), name
                    assert reasoning_texts(theirs) <= reasoning_texts(mine), name
                    details = theirs.get("reasoning_details") or []
                    assert all(holds_detail(mine, detail) for detail in details), name
    assert compared >= 20


def body_of(case: Case, messages: list[Any]) -> dict[str, Any]:
    recorded = case.meta["request"]["body"]
    system = [message["content"] for message in recorded["messages"] if message["role"] == "system"]
    tools = [
        ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {}))
        for function in (tool["function"] for tool in recorded.get("tools", ()))
    ]
    request = ModelRequest(system[0] if system else None, messages, tools, {})
    provider = case.name.partition("/")[0]
    return request_body(request, model=str(case.entry["model"]), provider=provider, quirks=ChatQuirks())


def test_the_parts_can_be_used_alone() -> None:
    """Reader and body are public: both work without the SDK and without a network."""
    reader = Reader()
    chunks = reader.read({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}) + reader.end()
    assert [type(chunk).__name__ for chunk in chunks] == ["TextChunk", "Finish"]
    request = ModelRequest(None, (UserMessage("x"),), (), {})
    assert request_body(request, model="m", provider="p", quirks=ChatQuirks())["model"] == "m"
