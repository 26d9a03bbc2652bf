"""Bytes of a streamed answer become events: three framings, cut anywhere, in linear time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ModelError
from agentloop.models import _framing
from agentloop.models._framing import EventBytes, JsonReader, SseReader

EVENTS = [{"text": "Grüß \u2028 dich", "a": [1, {"b": '}"]['}]}, {"x": "\\"}, {"😀": {}}]
BODIES = {
    "sse": b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in EVENTS),
    "sse with everything": b"\xef\xbb\xbf: hello\r\n\r\nevent: x\rid: 1\r\rretry: 5\n"
    + b"\r\n:\r\n\r\n".join(b"data:" + json.dumps(event).encode() + b"\r\n" for event in EVENTS)
    + b"\r\ndata: [DONE]\r\n\r\n",
    "lines": b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS),
    "array": json.dumps(EVENTS, indent=2, ensure_ascii=False).encode(),
    "array, CRLF, mark": b"\xef\xbb\xbf\r\n" + json.dumps(EVENTS, indent=1).replace("\n", "\r\n").encode() + b"\r\n",
    "side by side": b"".join(json.dumps(event).encode() for event in EVENTS),
}


def read(*pieces: bytes) -> list[Any]:
    events = EventBytes()
    found = [event for piece in pieces for event in events.feed(piece)]
    return [*found, *events.end()]


# ---------------------------------------------------------------- whole and cut


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_every_framing_cut_after_each_byte(body: bytes) -> None:
    """The events do not depend on where the bytes were cut, a character, a CRLF or the byte order mark included."""
    assert read(body) == EVENTS
    assert read(*[bytes([byte]) for byte in body]) == EVENTS
    for cut in range(len(body)):
        assert read(body[:cut], body[cut:]) == EVENTS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=4),
    st.sampled_from(["sse", "lines", "array"]),
    st.sampled_from([None, 1]),
    st.randoms(use_true_random=False),
)
def test_whatever_the_events_and_the_cuts(events: list[Any], framing: str, indent: int | None, chance: Any) -> None:
    """JSON of any content comes out as it went in, in each framing, from pieces of any size."""
    if framing == "sse":
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    elif framing == "lines":
        body = b"\n".join(json.dumps(event, indent=indent, ensure_ascii=False).encode() for event in events)
    else:
        body = json.dumps(events, indent=indent, ensure_ascii=False).encode()
    cuts = sorted(chance.randint(0, len(body)) for _ in range(5))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read(*pieces) == events


def test_an_event_comes_with_its_last_byte() -> None:
    """Nothing is held back: an object is given when its bracket closes, an event at its blank line."""
    lines, array, sse = EventBytes(), EventBytes(), EventBytes()
    assert list(lines.feed(b'{"a":1}')) == [{"a": 1}]
    assert list(array.feed(b'[{"a":1}')) == [{"a": 1}]
    assert list(sse.feed(b'data: {"a":1}\r\n\r')) == [{"a": 1}]
    assert list(sse.feed(b"\n")) == []


def test_events_before_a_broken_one_are_given() -> None:
    """What was whole is read before the error is told."""
    for body in (b'data: {"a":1}\n\ndata: {\n\n', b'{"a":1}\nbroken', b'[{"a":1},{"b":}]'):
        events = EventBytes()
        found = events.feed(body)
        assert next(found) == {"a": 1}
        with pytest.raises(ModelError) as caught:
            next(found)
        assert caught.value.code == "malformed"


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("body", [BODIES["sse"], BODIES["lines"], BODIES["array"]], ids=["sse", "lines", "array"])
def test_a_cut_body_is_no_error(body: bytes) -> None:
    """Wherever a body ends, the events before are given and no half one is made up."""
    for end in range(len(body)):
        found = read(body[:end])
        assert found == EVENTS[: len(found)]


def test_an_event_without_its_blank_line_counts() -> None:
    """At the end of the body, if it is whole."""
    assert read(b'data: {"a":1}') == [{"a": 1}]
    assert read(b'data: {"a":1}\n') == [{"a": 1}]
    assert read(b'data: {"a":') == []


def test_data_on_several_lines_is_one_event() -> None:
    """Joined with a line feed, as the grammar says; one blank behind the colon is none of the data."""
    body = b"data:  a\r\ndata\r\ndata:b\r\n\r\n"
    for cut in range(len(body)):
        reader = SseReader()
        assert [*reader.feed(body[:cut]), *reader.feed(body[cut:])] == [b" a\n\nb"]


def test_a_plain_error_behind_the_events() -> None:
    """Gemini ends a stream that fails with JSON that is no event."""
    error = json.dumps({"error": {"code": 503, "message": "busy"}}, indent=2).encode()
    assert read(b'data: {"a":1}\r\n\r\n' + error.replace(b"\n", b"\r\n") + b"\r\n") == [
        {"a": 1},
        {"error": {"code": 503, "message": "busy"}},
    ]
    assert read(b'data: {"a":1}\n\n' + error[:40]) == [{"a": 1}]


def test_a_page_of_html_is_malformed_with_its_words() -> None:
    """A proxy answers with a page; its text is told, its tags are not."""
    with pytest.raises(ModelError, match=r"an HTML page\) Sign in") as caught:
        read(b"<!doctype html>\n<html><body>Sign in</body></html>")
    assert caught.value.code == "malformed"


def test_lines_that_nobody_knows_are_passed_over() -> None:
    """Unknown fields, as the grammar wants it."""
    assert read(b'colour: red\nnonsense\ndata: {"a":1}\n\n') == [{"a": 1}]


def test_nothing_at_all() -> None:
    """An empty body, blanks, comments, a lone byte order mark."""
    assert (
        read() == read(b"") == read(b" \n\r\n") == read(b": ping\n\n") == read(b"\xef\xbb\xbf") == read(b"\xef") == []
    )


# ---------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "body",
    [
        b"[1, 2]", b'["a"]', b"{}x", b"[[1], 2]", b"[{}]]", b"data: {]}\n\n", b"data: \xff\n\n", b'{"a": \xff}',
        b"data: " + b"[" * 100_000 + b"]" * 100_000 + b"\n\n",
    ],
)  # fmt: skip
def test_what_is_no_event_is_malformed(body: bytes) -> None:
    """Scalars where an object is due, broken JSON, bytes that are no UTF-8, nesting without a bound."""
    with pytest.raises(ModelError) as caught:
        read(body)
    assert caught.value.code == "malformed"


@pytest.mark.parametrize("begin", [b"data: ", b'data: {"a": "', b"data: x\n", b'{"a": "', b"junk "])
def test_an_event_without_an_end_does_not_fill_the_memory(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound it is malformed, also when it comes line by line."""
    monkeypatch.setattr(_framing, "MAX_EVENT", 10_000)
    more = begin if begin.endswith(b"\n") else b"x" * 1_000
    with pytest.raises(ModelError, match="at most 10000 bytes"):
        read(begin, *[more] * 20_000)


@pytest.mark.parametrize("reader", [SseReader, JsonReader])
def test_small_pieces_cost_no_more_than_their_sum(reader: Any) -> None:
    """A long event in pieces of one byte is joined once; copying it piece by piece would take minutes."""
    count = 200_000
    body = b'{"a": "' + b"x" * count + b'"}'
    made = reader()
    pieces = [b"data: " if reader is SseReader else b"", *(bytes([byte]) for byte in body), b"\n\n"]
    (event,) = [event for piece in pieces for event in made.feed(piece)]
    assert event == body
