"""Server-sent events: every way to chop them, every line end, nothing injected, nothing quadratic."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import SseError
from agentloop.omni.records import assistant_text, user_text
from agentloop.omni.sse import (
    PING,
    Parser,
    ServerSentEvent,
    encode,
    encode_comment,
    encode_event,
    encode_server_event,
)


def parse(*pieces: bytes, **options: int) -> list[ServerSentEvent]:
    parser = Parser(**options)
    return [event for piece in pieces for event in parser.feed(piece)]


def bytewise(data: bytes) -> list[ServerSentEvent]:
    return parse(*[data[n : n + 1] for n in range(len(data))])


HOSTILE = [
    "a\u2028b\u2029c\u0085d",
    "\v\f\x1c\x1d\x1e",
    "lone\rreturn",
    "both\r\nends",
    " leading space",
    "trailing newline\n",
    "",
    "data: not a field",
    ": not a comment",
    "\n\nid: 9\nevent: forged\ndata: forged\n\n",
    "\ufeffbom",
    "nul\0",
    "é€😀",
]


def test_every_text_survives_every_split() -> None:
    """C145: records with foreign line separators, line ends, leading spaces and field names in their text come back
    equal, wherever the bytes are split in two; and byte by byte."""
    records = [assistant_text(text) for text in HOSTILE]
    data = b"".join(encode(record, f"e-{n}") for n, record in enumerate(records, 1))
    for at in range(len(data) + 1):
        events = parse(data[:at], data[at:])
        assert [event.record() for event in events] == records, f"split at {at}"
        assert [event.id for event in events] == [f"e-{n}" for n in range(1, len(records) + 1)]
    assert [event.record() for event in bytewise(data)] == records


@given(st.lists(st.text(max_size=30), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_any_texts_any_chopping(texts: list[str], cuts: list[int]) -> None:
    """Any texts, chopped anywhere, come back as they were, once each."""
    records = [user_text(text) for text in texts]
    data = b"".join(encode(record) for record in records)
    places = sorted({0, len(data), *[cut % (len(data) + 1) for cut in cuts]})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert [event.record() for event in parse(*pieces)] == records


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=60))
def test_plain_text_round_trip(text: str) -> None:
    """Text without CR comes back as it was, empty text and many lines included."""
    assert [event.data for event in bytewise(encode_event(text))] == [text]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_line_ends(end: str) -> None:
    """LF, CR and CRLF each end a line; an empty line ends the event."""
    text = end.join(["event: x", "id: 7", "data: a", "data: b", "", "data: c", "", ""])
    expected = [ServerSentEvent("a\nb", "x", "7"), ServerSentEvent("c", "message", "7")]
    assert parse(text.encode()) == expected
    assert bytewise(text.encode()) == expected


def test_nothing_else_ends_a_line() -> None:
    """U+2028, U+2029, U+0085, VT, FF and the separators are text."""
    assert parse("data: a\u2028b\u2029c\u0085d\ve\ff\x1cg\n\n".encode())[0].data == "a\u2028b\u2029c\u0085d\ve\ff\x1cg"


def test_mixed_line_ends_make_no_extra_event() -> None:
    """A CRLF that is split between two pieces is one line end, not two."""
    assert [event.data for event in parse(b"data: a\r", b"\ndata: b\r", b"", b"\n\r", b"\n")] == ["a\nb"]


def test_byte_order_mark() -> None:
    """One byte order mark at the start is ignored, also when it comes in pieces; anywhere else it is text."""
    stream = b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n"
    assert [event.data for event in bytewise(stream)] == ["a", "\ufeffb"]
    assert parse(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n") == []


def test_comments_and_unknown_fields() -> None:
    """Comments, fields that nobody knows and a field's name without a colon do not disturb; `data` alone is an empty
    line."""
    events = parse(b": hello\nfoo: bar\ndatas: no\ndata\ndata: x\nDATA: no\n\n" + PING + b"data:\n\n")
    assert [event.data for event in events] == ["\nx", ""]


def test_only_one_space_is_taken() -> None:
    """One space after the colon belongs to the format, a second one to the value."""
    assert [event.data for event in parse(b"data:a\ndata: b\ndata:  c\n\n")] == ["a\nb\n c"]


def test_ids() -> None:
    """An id stays for later events, is emptied by an empty one, ignored with a NUL, and counts once its event has
    ended."""
    parser = Parser()
    events = parser.feed(b"id: 1\ndata: a\n\ndata: b\n\nid: 2\0\ndata: c\n\nid\ndata: d\n\nid: 5\n\nid: 6\ndata: e\n")
    assert [event.id for event in events] == ["1", "1", "1", ""]
    assert parser.last_event_id == "5"


def test_retry() -> None:
    """`retry` is taken when it is all ASCII digits, else ignored."""
    parser = Parser()
    parser.feed("retry: 1500\nretry: 1.5\nretry: ٣\nretry: -1\nretry:\nretry: 9999999999999999999999\n".encode())
    assert parser.retry == 1500


def test_unfinished_event_is_dropped() -> None:
    """What has no blank line behind it is no event."""
    assert parse(b"data: a\n\ndata: b\n") == [ServerSentEvent("a")]


def test_event_without_data_is_none() -> None:
    """A name without data gives nothing, and does not stick to the next event."""
    assert parse(b"event: x\n\ndata: a\n\n") == [ServerSentEvent("a")]


def test_not_utf8() -> None:
    """Bytes that are no UTF-8 become U+FFFD; the events around them are whole."""
    assert [event.data for event in bytewise(b"data: \xff\xe2\x82\n\ndata: b\n\n")] == ["\ufffd\ufffd", "b"]


def test_buffer_is_bounded() -> None:
    """An event beyond the limit is a clear error, in one line or in many, and the parser stays closed."""
    for stream in (b"data: " + b"x" * 100, b"data: x\n" * 20):
        parser = Parser(max_bytes=100)
        with pytest.raises(SseError, match="at most 100 bytes"):
            parser.feed(stream)
        with pytest.raises(SseError, match="stream is lost"):
            parser.feed(b"\n\ndata: a\n\n")


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("large", [b"data: " + b"x" * 200 + b"\n\ndata: c\n\n", b"data: x\n" * 40 + b"\n"])
def test_what_came_whole_before_an_event_that_is_too_large_is_given(size: int, large: bytes) -> None:
    """However the stream is cut, and what comes behind is not."""
    stream = b"data: a\n\ndata: b\nid: 2\n\n" + large
    parser, got = Parser(max_bytes=100), list[str]()
    with pytest.raises(SseError, match="at most 100 bytes"):
        for start in range(0, len(stream) + size, size):
            got += [event.data for event in parser.feed(stream[start : start + size])]
    assert (got, parser.last_event_id) == (["a", "b"], "2")


def test_comments_do_not_fill_the_buffer() -> None:
    """Pings without end, also without blank lines between, never reach the limit; nor do many events."""
    parser = Parser(max_bytes=100)
    for _ in range(1000):
        assert parser.feed(b": ping\nunknown: field\n") == []
    for _ in range(100):
        assert len(parser.feed(b"data: 0123456789\n\n")) == 1


def test_byte_by_byte_is_linear() -> None:
    """A large event that comes byte by byte is not searched or copied again for each byte."""
    event = encode(user_text("x" * 300_000))
    assert len(bytewise(event)) == 1


def test_injection_is_refused() -> None:
    """No id, name or retry can make a line of its own."""
    for id in ("1\ndata: x", "1\r", "1\0"):
        with pytest.raises(ValueError, match="id: expected text without line ends"):
            encode({}, id)
    for name in ("a\nb", "a\rb"):
        with pytest.raises(ValueError, match="event: expected text without line ends"):
            encode_event("x", event=name)
    with pytest.raises(ValueError, match="carriage returns"):
        encode_event("a\rb")
    with pytest.raises(ValueError, match="retry"):
        encode_event("a", retry=-1)


@given(st.text(max_size=60))
def test_comments_cannot_carry_events(text: str) -> None:
    """Whatever stands in a comment, a client sees nothing of it."""
    assert parse(encode_comment(text), b"data: a\n\n") == [ServerSentEvent("a")]


def test_half_surrogates() -> None:
    """C155: no encoder raises on a half of a surrogate pair: in a record it goes as the escape that JSON has for it,
    in plain text it is replaced. (Events hold none: text is made valid where it enters.)"""
    record = assistant_text("a \udc00")
    (event,) = parse(encode(record))
    assert event.data.isascii()
    assert event.record() == record
    assert parse(encode_event("\ud800"))[0].data == "\ufffd"


def test_server_events() -> None:
    """The server's own events have a name of their own, records none."""
    (event,) = parse(encode_server_event({"type": "resync_required"}, "e-1"))
    assert event == ServerSentEvent('{"type":"resync_required"}', "server_event", "e-1")
    assert event.record() == {"type": "resync_required"}


@pytest.mark.parametrize("data", ["", "{", "null", "3", "[]", '"x"'])
def test_data_that_is_no_record(data: str) -> None:
    """What is no JSON object is a clear error, not a crash."""
    with pytest.raises(SseError, match="expected"):
        ServerSentEvent(data).record()


def test_a_record_is_one_line_verbatim() -> None:
    """The data is the envelope as it is stored: one line of JSON, key order kept, non-ASCII unescaped."""
    record = user_text("é\n")
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    assert encode(record, "a-1") == b"id: a-1\ndata: " + line + b"\n\n"
