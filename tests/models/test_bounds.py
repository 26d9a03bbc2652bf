"""A stream in plain form: what an SDK's own reader of server-sent events would fall over reaches it all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ModelError
from agentloop.models._bounds import _PlainEvents
from agentloop.testing._wire_server import Play, WireServer
from agentloop.testing.wire import make_adapter, run_model


def plain(body: bytes, *cuts: int) -> bytes:
    events, ends = _PlainEvents(), [0, *sorted(cuts), len(body)]
    pieces = [body[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    return b"".join([part for piece in pieces for part in events.feed(piece)] + list(events.end()))


BODIES = [
    (b'data: {"a":1}\n\n', b'data: {"a":1}\n\n'),
    (b'event: x\ndata: {"a":1}\n\n', b'event: x\ndata: {"a":1}\n\n'),
    (b'\xef\xbb\xbfdata:{"a":1}\r\n\r\n', b'data: {"a":1}\n\n'),
    (b'id: 7\nretry: 9\n\n: hm\n\nevent: x\n\ndata:\n\ndata: {"a":1}\r\r', b'data: {"a":1}\n\n'),
    (b'data: {"a":\ndata: 1}\n\n', b'data: {"a": 1}\n\n'),
    (b'data: {"type":"ping"}\n\n', b'event: ping\ndata: {"type":"ping"}\n\n'),
    (b'data: {"error": {}}\n\n', b'event: error\ndata: {"error": {}}\n\n'),
    # ends
    (b'data: {"a":1}', b'data: {"a":1}\n\n'),
    (b'data: {"a":1}\n', b'data: {"a":1}\n\n'),
    (b'data: {"a":1', b""),
    (b'data: {"a":1}\n\ndata: [DONE]', b'data: {"a":1}\n\ndata: [DONE]\n\n'),
    (b'data: [DONE]\n\ndata: {"a":1}\n\ndata: [DONE]\n\n', b'data: [DONE]\n\ndata: {"a":1}\n\n'),
    (b'{"error":\n{"message": "no"}}', b'event: error\ndata: {"error": {"message": "no"}}\n\n'),
    (b"", b""),
    (b"\xef\xbb\xbf", b""),
]


@pytest.mark.parametrize(("body", "wanted"), BODIES)
@given(st.lists(st.integers(0, 60), max_size=4))
def test_plain_form(body: bytes, wanted: bytes, cuts: list[int]) -> None:
    """Each event is a name, where there is one, and one line of data, however the bytes are cut. Comments, ids and
    events without data are none; what misses only its blank line is one; what was cut is not."""
    assert plain(body, *[min(cut, len(body)) for cut in cuts]) == wanted


def test_a_page_under_the_name_of_a_stream() -> None:
    """A page of HTML that calls itself a stream is malformed."""
    with pytest.raises(ModelError, match="Sign in"):
        plain(b"<html><body>Sign in</body></html>")


CHAT = [
    {"choices": [{"index": 0, "delta": {"content": "a"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
RESPONSES = [
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a"},
    {"type": "response.completed", "response": {"status": "completed", "output": []}},
]
MESSAGES = [
    {"type": "message_start", "message": {}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("api", "events"),
    [("openai_chat", CHAT), ("openai_responses", RESPONSES), ("anthropic_messages", MESSAGES)],
    ids=["chat", "responses", "messages"],
)
async def test_odd_streams_through_the_sdk(api: str, events: list[Any]) -> None:
    """A mark in front, ids, waits, comments and empty events in between, names left out, no blank line at the end."""
    body = b"\xef\xbb\xbfid: 1\nretry: 5\n\n: hm\n\ndata:\n\n"
    body += b"\n\n: hm\n\n".join(b"id: 2\ndata: " + json.dumps(event).encode() for event in events)
    with WireServer() as server:
        address = server.play(Play(body, headers={"content-type": "text/event-stream"}, chop="5"))
        outcome = await run_model(make_adapter(api, address))
    assert outcome.error is None
    assert outcome.message is not None
    assert (outcome.message.text, outcome.message.finish_reason) == ("a", "stop")
