"""The aggregator: fragments fold into complete records, whoever sent them, and nothing else is touched."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from agentloop.omni import records as r
from agentloop.omni.aggregate import Aggregator
from agentloop.omni.codec import encode
from agentloop.omni.jsonl import loads
from agentloop.testing.strategies import streams


def fold(records: list[r.Record], *, swap: bool = False) -> list[r.Record]:
    aggregator = Aggregator(swap=swap)
    return [*chain.from_iterable(map(aggregator.feed, records)), *aggregator.flush()]


def told(records: list[r.Record]) -> list[tuple[Any, ...]]:
    """Of each record: kind, what it says, call, stop reason."""
    rows = []
    for record in records:
        payload = record["payload"]
        said = next((payload[key] for key in ("text", "thinking", "arguments", "output") if key in payload), None)
        rows.append((payload["type"], said, payload.get("tool_call_id"), payload.get("stop_reason")))
    return rows


def text(*pieces: str, reason: Any = "completed") -> list[r.Record]:
    return [
        r.partial_text("start"),
        *[r.partial_text("delta", piece) for piece in pieces],
        r.partial_text("stop", stop_reason=reason),
    ]


def output(call: str, *pieces: str, images: tuple[list[str], ...] = (), reason: Any = "completed") -> list[r.Record]:
    return [
        r.partial_tool_call_output("start", call),
        *[r.partial_tool_call_output("delta", call, piece) for piece in pieces],
        *[r.partial_tool_call_output("delta", call, images=some) for some in images],
        r.partial_tool_call_output("stop", call, stop_reason=reason),
    ]


def test_a_text_is_its_pieces() -> None:
    """One complete record, equal to what was streamed."""
    [whole] = fold(text("He", "", "llo"))
    assert whole["payload"] == r.assistant_text("Hello")["payload"]
    assert r.check_record(whole) == []


def test_a_thinking_is_its_pieces() -> None:
    """The fragments of a thinking become one complete record."""
    [whole] = fold([r.partial_thinking("start"), r.partial_thinking("delta", "hm"), r.partial_thinking("stop")])
    assert whole["payload"] == r.thinking("hm")["payload"]


def test_a_call_keeps_id_and_name_of_its_start() -> None:
    """Later fragments have an empty name."""
    records = [
        r.partial_tool_call("start", "c1", name="look"),
        r.partial_tool_call("delta", "c1", arguments='{"a"'),
        r.partial_tool_call("delta", "c1", arguments=":1}"),
        r.partial_tool_call("stop", "c1"),
    ]
    [whole] = fold(records)
    assert whole["payload"] == r.tool_call("look", '{"a":1}', "c1")["payload"]


def test_images_fold_in_and_the_later_set_wins() -> None:
    """Images are not incremental: a later non-empty set replaces an earlier one."""
    [whole] = fold(output("c1", "x", images=(["data:,a"], ["data:,b", "data:,c"], [])))
    assert whole["payload"] == r.tool_call_output("c1", "x", images=["data:,b", "data:,c"])["payload"]


def test_an_output_without_text_says_so() -> None:
    """No complete output is empty, and none that failed has images."""
    assert told(fold(output("c1", reason="fatal", images=(["data:,a"],)))) == [
        ("tool_call_output", "[no output]", "c1", "fatal")
    ]


def test_two_tools_fold_apart() -> None:
    """Interleaved fragments of two calls, with an event between them that passes through unchanged."""
    one, two = output("c1", "a", "b"), output("c2", "x", "y")
    between = r.request_begin()
    mixed = [record for pair in zip(one, two, strict=True) for record in (pair[0], between, pair[1])]
    given = fold(mixed)
    assert [record for record in given if record is between] == [between] * 4
    assert told([record for record in given if record is not between]) == [
        ("tool_call_output", "ab", "c1", "completed"),
        ("tool_call_output", "xy", "c2", "completed"),
    ]


def test_two_sessions_fold_apart() -> None:
    """A parent's and a child's text, open at the same time, never mix; a fold keeps the origin of its pieces."""
    parent, child = text("a", "b"), [r.with_origin(record, "s1") for record in text("x", "y")]
    mixed = [record for pair in zip(parent, child, strict=True) for record in pair]
    own, other = fold(mixed)
    assert told([own, other]) == [("text", "ab", None, "completed"), ("text", "xy", None, "completed")]
    assert "origin" not in own
    assert other["origin"] == ["s1"]


def test_what_was_never_stopped_is_flushed_cut() -> None:
    """In opening order, as `aborted`: nobody said that it was whole."""
    records = [*output("c1", "a")[:2], *text("b")[:2]]
    assert told(fold(records)) == [("tool_call_output", "a", "c1", "aborted"), ("text", "b", None, "aborted")]
    assert fold([]) == []


def test_a_second_start_ends_the_first_segment() -> None:
    """What was open is given cut, then the new one folds by itself."""
    assert told(fold([*text("a")[:2], *text("b")])) == [
        ("text", "a", None, "aborted"),
        ("text", "b", None, "completed"),
    ]


@pytest.mark.parametrize("event_type", ["delta", "stop"])
def test_a_piece_without_a_start_opens_a_segment(event_type: Any) -> None:
    """A reader that joined late sees what it can."""
    assert told(fold([r.partial_text(event_type, "late")]))[0][:2] == ("text", "late")


def test_the_last_reason_counts() -> None:
    """A segment that was closed early says why."""
    assert told(fold(text("a", reason="retryable"))) == [("text", "a", None, "retryable")]


def test_a_character_split_between_fragments_is_one() -> None:
    """Two halves of a surrogate pair in two fragments."""
    assert told(fold(text("a\ud83d", "\ude00b")))[0][1] == "a😀b"


@pytest.mark.parametrize(
    "record",
    [
        {"type": "model_msg"},
        {"type": "model_msg", "payload": {"type": "partial_text"}},
        {"type": "model_msg", "payload": {"type": "partial_text", "event_type": "pause", "text": ""}},
        {"type": "model_msg", "payload": {"type": "partial_text", "event_type": "delta", "text": 5}},
        {"type": "model_msg", "payload": {"type": ["partial_text"]}},
        {"type": "model_msg", "payload": {"type": "partial_video", "event_type": "start"}},
        {"type": "event_msg", "payload": {"type": "partial_text", "event_type": "start", "text": ""}},
    ],
)
def test_what_does_not_fit_passes_through(record: r.Record) -> None:
    """Damage and strangers come out as they came in, and leave no segment open."""
    assert fold([record]) == [record]
    assert fold([record], swap=True) == [record]


# ---------------------------------------------------------------- with complete records in the stream


def complete(records: list[r.Record]) -> list[r.Record]:
    return [record for record in records if not r.is_partial(record)]


@given(streams(depth=2))
def test_of_our_streams_just_the_complete_records_stay(events: list[Any]) -> None:
    """With `swap` every complete record stands in for its fold, fidelity included, and nothing comes twice."""
    records = encode(events)
    aggregator = Aggregator(swap=True)
    given = [one for record in records for one in aggregator.feed(record)]
    assert [id(record) for record in given] == [id(record) for record in complete(records)]
    assert {record["payload"]["stop_reason"] for record in aggregator.flush()} <= {"aborted"}  # of children cut short


@given(streams(depth=2))
def test_every_fold_is_its_complete_record(events: list[Any]) -> None:
    """Every segment of every producer: start, pieces, stop, and then a complete record that says the same (fidelity and
    our own additions aside), before that producer's next."""
    records = encode(events)
    known = {id(record) for record in records}
    aggregator = Aggregator()
    folds = [one for record in records for one in aggregator.feed(record) if id(one) not in known]
    streamed = iter(complete(records))
    for whole in folds:
        found = next(other for other in streamed if said(other) == said(whole))
        assert found.get("origin") == whole.get("origin")


def said(record: r.Record) -> dict[str, Any]:
    return {key: value for key, value in record["payload"].items() if key not in ("fidelity", "x")}


def test_a_fold_is_given_where_no_complete_record_follows() -> None:
    """With `swap`, as inside a compaction: before the producer's next record; another producer's does not hurry it."""
    usage = r.with_origin(r.turn_end(), "s1")
    end = r.compaction_end("manual", "summarize", "completed")
    assert told(fold([*text("sum"), usage, end], swap=True)) == [
        ("turn_end", None, None, None),
        ("text", "sum", None, "completed"),
        ("compaction_end", None, None, None),
    ]
    late = r.assistant_text("a", fidelity={"k": 1})
    tool = output("c1", "x")
    whole = r.tool_call_output("c1", "x")
    assert fold([*text("a"), *tool, late, whole], swap=True) == [late, whole]
    assert told(fold([*text("a"), *tool, r.partial_text("start")], swap=True)) == [
        ("text", "a", None, "completed"),
        ("tool_call_output", "x", "c1", "completed"),
        ("text", "", None, "aborted"),
    ]


def test_the_sample_streams_fold_as_expected(shared: Path) -> None:
    """As their own reader folds them, but for two sessions at once, which it mixes, and the spelling of old reasons."""
    seen = 0
    for path in sorted((shared / "traces").glob("*/stream.jsonl")):
        records = [loads(line) for line in path.read_bytes().splitlines()]
        folds = [record for record in fold(records) if all(record is not other for other in records)]
        expected = expected_folds(path)
        ours = [short(record) for record in folds]
        assert sorted(ours) == sorted(expected), path
        seen += 1
    assert seen >= 10


def expected_folds(path: Path) -> list[str]:
    text, decoder, place = (path.parent / "expected.json").read_text(), json.JSONDecoder(), 0
    while True:
        value, place = decoder.raw_decode(text, place)
        if value["file"] == "stream.jsonl":
            return value["aggregate"]["closed"]  # type: ignore[no-any-return]
        place = text.index("{", place)


def short(record: r.Record) -> str:
    payload = record["payload"]
    kind, said_, call, reason = told([record])[0]
    head = f"{payload['role']} {kind}" + (f" {call}" if call else "")
    return head + ("" if reason == "completed" else f" {{{reason}}}") + f": {json.dumps(said_, ensure_ascii=False)}"
