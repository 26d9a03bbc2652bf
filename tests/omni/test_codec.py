"""The codec: nothing is lost on the way to records and back, whatever part of the records is there."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import itertools
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Foreign,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    McpServerStatus,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolListReady,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
    user,
)
from agentloop.omni import records as r
from agentloop.omni.codec import (
    Decoder,
    Encoder,
    LineDecoder,
    LineEncoder,
    MessageRegistry,
    decode,
    encode,
    for_stream,
    for_trace,
    from_jsonl,
    jsonl,
    trace_view,
)
from agentloop.omni.jsonl import dumps, loads
from agentloop.reply import Partial
from agentloop.testing.strategies import json_values, streams
from tests.costs import lines

USAGE = Usage(1, 2, 3)
PNG = "data:image/png;base64,AA"

ALL_STREAMS = streams(foreign=True, depth=2)

FIVEFOLD = settings(max_examples=5 * settings().max_examples)
"""The laws of the codec are tried five times as often as the rest: 10,000 examples in the slow profile."""


def clock() -> float:
    return 1_788_228_000.137


def written(events: Iterable[Event]) -> list[bytes]:
    return [dumps(record) for record in encode(events, clock)]


def read(lines: Iterable[bytes]) -> list[Event]:
    return decode(map(loads, lines))


def given_by(records: Iterable[r.Record]) -> list[Event]:
    """What a decoder gives without being told that there is no more."""
    decoder = Decoder()
    return [event for record in records for event in decoder.feed(record)]


def of(events: Iterable[Event], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def said(message: AgentMessage) -> list[Event]:
    return [MessageStart(message), MessageEnd(message)]


def reply(*deltas: Any, header: AssistantMessage | None = None, **end: Any) -> list[Event]:
    """The events of a reply; its message is what the deltas add up to."""
    partial = Partial(header or AssistantMessage(()))
    updates: list[Event] = [partial.update(delta) for delta in deltas]
    fields = {"stop_reason": "completed", "finish_reason": "stop", **end}
    message = attrs.evolve(partial.header, content=partial.content(), **fields)
    return [MessageStart(partial.header), *updates, MessageEnd(message)]


def text(index: int, *pieces: str, fidelity: Any = None, reason: Any = "completed") -> list[Any]:
    whole = Text("".join(pieces), fidelity)
    return [TextStart(index), *[TextDelta(index, piece) for piece in pieces], TextEnd(index, whole, reason)]


def call(index: int, call_id: str, *pieces: str, reason: Any = "completed") -> list[Any]:
    whole = ToolCall(call_id, "look", "".join(pieces))
    return [
        ToolCallStart(index, call_id, "look"),
        *[ToolCallDelta(index, piece) for piece in pieces],
        ToolCallEnd(index, whole, reason),
    ]


def ran(call_id: str, *content: Any, updates: Iterable[Event] = (), **fields: Any) -> list[Event]:
    """A call that ran, and its result."""
    result = ToolResult(
        content, fields.pop("details", None), fields.pop("structured", None), fields.get("is_error", False)
    )
    end = ToolExecutionEnd(call_id, "look", result, **fields)
    message = ToolResultMessage(
        call_id, "look", result.content, result.details, result.structured, end.is_error, end.stop_reason
    )
    return [ToolExecutionStart(call_id, "look", "{}"), *updates, end, *said(message)]


# ---------------------------------------------------------------- the laws


@FIVEFOLD
@given(ALL_STREAMS)
def test_a_stream_comes_back_whole(events: list[Event]) -> None:
    """`decode(encode(events)) == events`, and encoding that again gives the same bytes: no number changed its kind, no
    key its place."""
    lines = written(events)
    back = read(lines)
    assert back == events
    assert written(back) == lines


@FIVEFOLD
@given(ALL_STREAMS, st.data())
def test_a_trace_comes_back_whole(events: list[Event], data: st.DataObject) -> None:
    """What a trace keeps of the records gives what `trace_view` says of the events, and a file that ends anywhere a
    beginning of that."""
    records = list(for_trace(encode(events)))
    view = list(trace_view(events))
    assert decode(records) == view
    cut = decode(records[: data.draw(st.integers(0, len(records)))])
    assert cut == view[: len(cut)]


@FIVEFOLD
@given(ALL_STREAMS)
def test_every_beginning_gives_a_beginning(events: list[Event]) -> None:
    """After each record the events so far are the first of the stream, and no record takes one back."""
    decoder, so_far = Decoder(), 0
    for line in written(events):
        new = decoder.feed(loads(line))
        assert new == events[so_far : so_far + len(new)]
        so_far += len(new)
    assert so_far == len(events)
    assert decoder.finish() == []


@given(ALL_STREAMS)
def test_records_need_not_be_written_to_be_read(events: list[Event]) -> None:
    """Records handed on in the process, read-only values in them, decode the same and stay as they were."""
    records = encode(events, clock)
    before = [dumps(record) for record in records]
    assert decode(records) == events
    assert [dumps(record) for record in records] == before


@given(streams(depth=1))
def test_partial_messages_are_there_on_decoded_events_too(events: list[Event]) -> None:
    """`MessageUpdate.message` of a decoded event is the partial message at that point, read at once or later."""
    back = read(written(events))
    pairs = [(one, other) for one, other in zip(events, back, strict=True) if isinstance(one, MessageUpdate)]
    assert [other.message for _, other in pairs] == [one.message for one, _ in pairs]


@given(streams(foreign=True, depth=2))
def test_lines_are_the_records_as_text(events: list[Event]) -> None:
    """The short way for fragments writes the bytes of the long one, and reads them back, with their newlines or without."""
    lines = [dumps(record) + b"\n" for record in encode(events, clock)]
    assert list(jsonl(events, clock)) == lines
    assert list(from_jsonl(lines)) == events
    assert list(from_jsonl(line[:-1] for line in lines)) == events


@given(ALL_STREAMS, st.lists(st.sampled_from([0.0, 0.0003, 0.001, 10.0, -0.002, -5.0]), min_size=1, max_size=8))
def test_a_record_is_of_the_moment_of_its_event(events: list[Event], steps: list[float]) -> None:
    """Whatever the clock does between the events: each line has the timestamp of the record that the long way gives."""

    def timed(now: Callable[[float], None]) -> Iterator[Event]:
        at = clock()
        for event, step in zip(events, itertools.cycle(steps), strict=False):
            at += step
            now(at)
            yield event

    def moving() -> tuple[Callable[[], float], Iterator[Event]]:
        moments = [clock()]
        return lambda: moments[-1], timed(moments.append)

    time, passing = moving()
    lines = [dumps(record) + b"\n" for record in encode(passing, time)]
    time, passing = moving()
    assert list(jsonl(passing, time)) == lines
    time, passing = moving()
    encoder = LineEncoder(time)
    assert [line for event in passing for line in encoder.lines(event)] == lines


@pytest.mark.parametrize("start", [0.0, 1_788_228_000.0, 4_102_444_800.0])
def test_each_moment_has_the_timestamp_that_the_builders_give(start: float) -> None:
    """Also at the edges of a millisecond, where floats are a little off, and in whatever order the moments come."""
    moments = [start + each / 1000 + beside for each in range(1000) for beside in (-6e-7, 0.0, 6e-7, 5e-4)]
    for given in (moments, moments[::-1]):
        encoder = Encoder(iter(given).__next__)
        stamps = [encoder.encode(TurnStart(0))[0]["timestamp"] for _ in given]
        assert stamps == [r.turn_start(0, clock=lambda at=at: at)["timestamp"] for at in given]  # type: ignore[misc]


@given(ALL_STREAMS)
def test_timestamps_stand_in_the_order_of_the_records(events: list[Event]) -> None:
    """Also of the records of one event, however slowly they are made; what is not ours keeps its own."""
    tick = itertools.count(1_000)
    records = encode((event for event in events if type(event) is not Foreign), lambda: next(tick) / 1000)
    stamps = [record["timestamp"] for record in records if record["timestamp"].startswith("1970-01-01T00:")]
    assert stamps == sorted(stamps)


def test_a_piece_behind_a_pause_has_the_time_after_it() -> None:
    """The first piece of a later reply, in the millisecond of that reply's start, is not of the reply before."""
    said = reply(*text(0, "a", "b"))
    moments: list[float] = []

    def passing() -> Iterator[Event]:
        for at in (0.0, 10.0):
            for event in said:
                moments.append(at)
                yield event

    stamps = [loads(line)["timestamp"] for line in jsonl(passing(), lambda: moments[-1])]
    assert stamps == sorted(stamps)
    assert set(stamps[len(stamps) // 2 :]) == {"1970-01-01T00:00:10.000Z"}


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (text(0, "a"), [ThinkingStart(1), ThinkingDelta(1, "\ud83d"), ThinkingDelta(1, "b")]),
        (call(0, "c1", "a"), [ToolCallStart(1, "c2", "look"), ToolCallDelta(1, "\ud83d"), ToolCallDelta(1, "b")]),
        (call(0, "c1", "a"), [AgentStart(), ToolCallDelta(0, "b")]),
    ],
)
def test_a_piece_is_of_its_own_block_whatever_was_written_before(before: list[Any], then: list[Any]) -> None:
    """Also behind half a character, which takes the long way, and in a run that begins in the middle of a call."""
    events = [part if isinstance(part, AgentStart) else MessageUpdate(part) for part in (*before, *then)]
    lines = [dumps(record) + b"\n" for record in encode(events, clock)]
    assert list(jsonl(events, clock)) == lines
    encoder = LineEncoder(clock)
    assert [line for event in events for line in encoder.lines(event)] == lines


def fragment_line(said_: bytes, stamp: bytes = b"2026-09-01T02:00:00.137Z", end: bytes = b"}}") -> bytes:
    return (
        b'{"timestamp":"' + stamp + b'","type":"model_msg","payload":{"type":"partial_text","role":"assistant",'
        b'"event_type":"delta","text":' + said_ + b',"stop_reason":"completed"' + end
    )


def fed_line_by_line(line: bytes) -> list[Event]:
    decoder = LineDecoder()
    for before in (r.message_start("assistant"), r.partial_text("start"), r.partial_text("delta", "a", clock=clock)):
        decoder.feed_line(dumps(before))
    return decoder.feed_line(line)


@pytest.mark.parametrize(
    "line",
    [
        fragment_line(b'"x"'),
        fragment_line(b'"\\u00e9\\ud83d\\ude00"'),
        fragment_line(b'"x"', b"2031-01-01T00:00:00.000Z"),
        fragment_line(b'"x"', b'a","b":1,"c":"dddddddddd'),
        fragment_line(b'"x","more":1'),
        fragment_line(b'"x","text":"y"'),
        fragment_line(b" 5 "),
        fragment_line(b"null"),
        fragment_line(b'"x"', end=b"}}  "),
        fragment_line(b'"x"', end=b"}}\n"),
        fragment_line(b'"x"', end=b"}}\n\n"),
        fragment_line(b'"x"', end=b'},"origin":["s1"]}'),
    ],
)
def test_the_short_way_reads_what_the_long_one_reads(line: bytes) -> None:
    """Whatever stands in a line that looks like a fragment of the open block."""
    decoder = Decoder()
    for before in (r.message_start("assistant"), r.partial_text("start"), r.partial_text("delta", "a", clock=clock)):
        decoder.feed(before)
    assert fed_line_by_line(line) == decoder.feed(loads(line))


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_fragment_takes_the_short_way_with_and_without_its_newline(end: bytes) -> None:
    """Lines of a file keep their newline, those of a splitter do not: both are most of a stream."""
    decoder = LineDecoder()
    for record in (r.message_start("assistant"), r.partial_text("start"), r.partial_text("delta", "a", clock=clock)):
        decoder.feed_line(dumps(record))
    event = decoder.fragment(fragment_line(b'"b"') + end)
    assert event is not None
    assert event.delta == TextDelta(0, "b")
    assert event.message.text == "ab"


def test_a_half_that_waits_is_not_forgotten_by_the_short_way() -> None:
    """The piece behind half a character comes after what became of that half."""
    decoder = LineDecoder()
    for record in (r.message_start("assistant"), r.partial_text("start"), r.partial_text("delta", "a", clock=clock)):
        decoder.feed_line(dumps(record))
    lines = [fragment_line(b'"b\\ud83d"'), fragment_line(b'"c"')]
    assert [event.delta.text for line in lines for event in decoder.feed_line(line)] == ["b", "\ufffdc"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        fragment_line(b'"x'),
        fragment_line(b'"x" "y"'),
        fragment_line(b"\xff"),
        fragment_line(b'"x"', b'"""""""""""""""""""""""Z'),
        fragment_line(b'"x"')[:-1],
    ],
)
def test_the_short_way_refuses_what_the_long_one_refuses(line: bytes) -> None:
    """A damaged line is damage, also where its beginning and its end look right."""
    with pytest.raises(ValueError):  # noqa: PT011  # the words are the JSON library's
        fed_line_by_line(line)


@given(streams(depth=2))
def test_every_record_of_ours_is_right(events: list[Event]) -> None:
    """The check of one record finds nothing wrong with what the encoder writes; metas are the children's own."""
    for record in encode(events, clock):
        if not r.is_meta(record):
            assert r.check_record(record) == []


@given(streams(depth=2))
def test_segments_keep_their_discipline(events: list[Event]) -> None:
    """Of every producer: start, pieces, stop, and at once the complete record with the joined pieces and the same stop
    reason; only the stop and the complete record say that a segment was closed early."""
    records = encode(events)
    open_segments: dict[Any, list[str]] = {}
    for number, record in enumerate(records):
        payload = record["payload"]
        if not r.is_partial(record):
            continue
        kind = payload["type"].removeprefix("partial_")
        key = (r.origin_of(record), kind, payload.get("tool_call_id"))
        field = {"tool_call": "arguments", "tool_call_output": "output"}.get(kind, kind)
        if payload["event_type"] == "start":
            assert key not in open_segments
            open_segments[key] = []
        elif payload["event_type"] == "delta":
            open_segments[key].append(payload[field])
        if payload["event_type"] != "stop":
            assert payload["stop_reason"] == "completed"
            continue
        whole = records[number + 1]["payload"]
        assert payload[field] == ""
        assert (whole["type"], whole["stop_reason"]) == (kind, payload["stop_reason"])
        pieces = "".join(open_segments.pop(key))
        assert pieces == whole[field] or (kind == "tool_call_output" and "x" in whole)


# ---------------------------------------------------------------- what the encoder writes

SPEC = ToolSpec("a", "d", {"type": "object"}, "A")
RESULT = ToolResult("out", {"d": 1}, [2], is_error=True, terminate=True)

TABLE: list[tuple[Event, list[r.Record]]] = [
    (AgentStart(), [r.agent_start(clock=clock)]),
    (
        AgentEnd((user("x"),), "fatal", "auth", "m", USAGE, True, user("s"), ValueError("not on the wire")),
        [
            r.agent_end(
                "fatal", error_code="auth", error_message="m", usage=USAGE, replaces_context=True, clock=clock
            )
        ],
    ),
    (TurnStart(2), [r.turn_start(2, clock=clock)]),
    (TurnEnd(AssistantMessage("x")), [r.turn_end(clock=clock)]),
    (RequestBegin(), [r.request_begin(clock=clock)]),
    (RequestBegin(3), [r.request_begin(3, clock=clock)]),
    (RequestEnd(), [r.request_end(clock=clock)]),
    (RequestEnd("completed", 2), [r.request_end(attempt=2, clock=clock)]),
    (
        RequestEnd("retryable", 1, 2000, "network", "m", USAGE),
        [
            r.request_end(
                "retryable", retry_in_ms=2000, error_code="network", error_message="m", usage=USAGE, clock=clock
            )
        ],
    ),
    (TokenUsage(USAGE, Usage(4)), [r.token_usage(USAGE, Usage(4), clock=clock)]),
    (ToolListReady((SPEC,)), [r.tool_list_ready([SPEC], clock=clock)]),
    (McpConnectBegin(("s", "t")), [r.mcp_connect_begin(["s", "t"], clock=clock)]),
    (
        McpConnectEnd("fatal", (McpServerStatus("s", "http", "completed", 5, 2),), "connect_failed", "m"),
        [
            r.mcp_connect_end(
                "fatal",
                [{"server": "s", "transport": "http", "status": "completed", "duration_ms": 5, "tools": 2}],
                error_code="connect_failed",
                error_message="m",
                clock=clock,
            )
        ],
    ),
    (ApprovalRequest("c", "look", "{}"), [r.approval_request("c", "look", "{}", clock=clock)]),
    (ApprovalDecision("deny", "c", "{}"), [r.approval_decision("deny", "c", arguments="{}", clock=clock)]),
    (ToolExecutionStart("c", "look", "{}"), [r.tool_execution_start("c", "look", "{}", clock=clock)]),
    (
        ToolExecutionUpdate("c", "look", ToolResult("x")),
        [r.tool_execution_update("c", "look", {"content": [{"type": "text", "text": "x"}]}, clock=clock)],
    ),
    (
        ToolExecutionUpdate("c", "look", None, "piece"),
        [
            r.partial_tool_call_output("start", "c", clock=clock),
            r.partial_tool_call_output("delta", "c", "piece", clock=clock),
        ],
    ),
    (
        ToolExecutionEnd("c", "look", RESULT, True, "fatal", "tool_error"),
        [
            r.tool_call_output("c", "out", stop_reason="fatal", clock=clock),
            r.tool_execution_end(
                "c",
                "look",
                is_error=True,
                error_code="tool_error",
                details={"d": 1},
                structured=[2],
                terminate=True,
                clock=clock,
            ),
        ],
    ),
    (
        MessageStart(user("hi", Image("https://e.org/a"), sender="harness")),
        [
            r.message_start("user", clock=clock),
            r.user_text("hi", sender="harness", clock=clock),
            r.image_url("https://e.org/a", clock=clock),
        ],
    ),
    (MessageEnd(user("hi")), [r.message_end(clock=clock)]),
    (
        MessageStart(OpaqueMessage("notice", {"a": 1})),
        [r.message_start("notice", clock=clock), r.custom_message("notice", {"a": 1}, clock=clock)],
    ),
    (
        MessageStart(AssistantMessage((), provider="p", model="m")),
        [r.message_start("assistant", provider="p", model="m", clock=clock)],
    ),
    (
        MessageEnd(AssistantMessage("x", "fatal", None, USAGE, None, None, "auth", "m", {"k": 1})),
        [
            r.reply_end(
                "fatal", None, usage=USAGE, error_code="auth", error_message="m", fidelity={"k": 1}, clock=clock
            )
        ],
    ),
    (MessageUpdate(TextStart(0)), [r.partial_text("start", clock=clock)]),
    (MessageUpdate(TextDelta(0, "t")), [r.partial_text("delta", "t", clock=clock)]),
    (
        MessageUpdate(TextEnd(0, Text("t", {"k": 1}), "aborted")),
        [
            r.partial_text("stop", stop_reason="aborted", clock=clock),
            r.assistant_text("t", stop_reason="aborted", fidelity={"k": 1}, clock=clock),
        ],
    ),
    (MessageUpdate(ThinkingStart(0)), [r.partial_thinking("start", clock=clock)]),
    (MessageUpdate(ThinkingDelta(0, "t")), [r.partial_thinking("delta", "t", clock=clock)]),
    (
        MessageUpdate(ThinkingEnd(0, Thinking("t"))),
        [r.partial_thinking("stop", clock=clock), r.thinking("t", clock=clock)],
    ),
    (MessageUpdate(ToolCallStart(0, "c", "look")), [r.partial_tool_call("start", "c", name="look", clock=clock)]),
    (
        MessageUpdate(BlockAdded(0, InlineData("AA", "audio/wav", {"k": 1}))),
        [r.inline_data("AA", "audio/wav", role="assistant", fidelity={"k": 1}, clock=clock)],
    ),
    (
        MessageUpdate(BlockAdded(0, InlineThinking("AA", "image/png"))),
        [r.inline_thinking("AA", "image/png", clock=clock)],
    ),
    (MessageUpdate(BlockAdded(0, ToolCall("c", "look", "{}"))), [r.tool_call("look", "{}", "c", clock=clock)]),
    (
        CompactionBegin("turns", "discard", 5, 6),
        [r.compaction_begin("turns", "discard", context=5, turns=6, clock=clock)],
    ),
    (
        CompactionEnd("manual", "summarize", "completed", 2, summary=user("s")),
        [r.compaction_end("manual", "summarize", "completed", attempt=2, summary="s", clock=clock)],
    ),
    (Abort("user_abort", "m"), [r.abort("user_abort", "m", clock=clock)]),
    (
        Hook("stop", "h", "continue", "why", {"n": 1}, "c"),
        [
            r.hook(
                "stop", "h", decision="continue", reason="why", output={"n": 1}, tool_call_id="c", clock=clock
            )
        ],
    ),
    (SubagentStarted("s1", "c"), [r.subagent("s1", tool_call_id="c", clock=clock)]),
    (Foreign({"b": 1, "a": [2.0]}), [{"b": 1, "a": [2.0]}]),
]  # fmt: skip


@pytest.mark.parametrize(("event", "records"), TABLE, ids=lambda value: type(value).__name__)
def test_events_become_what_their_builders_build(event: Event, records: list[r.Record]) -> None:
    """The encoder's own literals are the builders' records, byte for byte."""
    assert [dumps(record) for record in Encoder(clock).encode(event)] == [dumps(record) for record in records]


def test_each_event_class_is_in_the_table() -> None:
    """Nothing that a run yields is forgotten; children are tested below."""
    classes = {type(event) for event, _ in TABLE} | {ChildEvent}
    assert classes == set(Event.__args__)  # type: ignore[attr-defined]


def test_fragments_of_a_call_carry_its_id() -> None:
    """The id stands on every fragment, the name on the start only."""
    payloads = [record["payload"] for record in encode(reply(*call(0, "c1", "{", "}")))[1:-2]]
    assert [payload["tool_call_id"] for payload in payloads] == ["c1"] * 4
    assert [payload["name"] for payload in payloads] == ["look", "", "", ""]


def test_a_label_stands_under_x() -> None:
    """The protocol's fields of a tool first, ours under the one key."""
    [record] = encode([ToolListReady((ToolSpec("a", "d", {"type": "object"}, "A"), ToolSpec("b")))])
    assert record["payload"]["tools"] == [
        {"name": "a", "description": "d", "parameters": {"type": "object"}, "x": {"label": "A"}},
        {"name": "b", "description": ""},
    ]


def test_the_exception_is_not_on_the_wire() -> None:
    """It takes no part in equality, and no record tells of it."""
    [start, end] = [AgentStart(), AgentEnd(stop_reason="fatal", exception=ValueError("secret"))]
    lines = written([start, end])
    assert b"secret" not in b"".join(lines)
    assert read(lines)[1].exception is None  # type: ignore[union-attr]


def test_timestamps_tell_when_an_event_was_encoded() -> None:
    """The clock is asked for each event; events of one millisecond share its text."""
    times = iter([0.0, 0.0001, 0.0015, 5.0])
    encoder = Encoder(lambda: next(times))
    stamps = [encoder.encode(TurnEnd())[0]["timestamp"][-7:] for _ in range(4)]
    assert stamps == ["00.000Z", "00.000Z", "00.001Z", "05.000Z"]


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    "message",
    [
        UserMessage(()),
        user("a", "b", sender="parent_agent"),
        UserMessage((Image(PNG),), sender="server"),
        user("x", sender="user"),
        user("x", sender=""),
        user(Text("x", {"k": 1}), InlineData("AA", "application/pdf", {"k": 2})),
        UserMessage((Thinking("t"), ToolCall("c", "look", "{}", {"k": 1}), Text("x"))),
        OpaqueMessage("notice", {"a": [1, 1.0, None]}),
        ToolResultMessage("c0", "look", "given", {"d": 1}, False, True, "fatal"),
        ToolResultMessage("c0", "look", (Image("https://e.org/a"),)),
    ],
    ids=repr,
)
def test_every_input_comes_back(message: AgentMessage) -> None:
    """Also what no other writer has: a sender without a text, blocks of the model, a result that nothing announced."""
    events = [AgentStart(), TurnStart(0), *said(message)]
    assert read(written(events)) == events


def test_a_persons_sender_is_never_written_on_a_text() -> None:
    """`user` stands on our own `message_start` alone; another sender on each text."""
    named = encode(said(user("a", "b", sender="harness")))
    assert [record["payload"].get("sender") for record in named] == [None, "harness", "harness", None]
    person = encode(said(user("a", sender="user")))
    assert [record["payload"].get("sender") for record in person] == ["user", None, None]


def test_a_stranger_may_stand_inside_an_input() -> None:
    """A record of an unknown kind between start and end of an input keeps its place."""
    hi = user("hi")
    events = [AgentStart(), MessageStart(hi), Foreign({"type": "news"}), MessageEnd(hi)]
    assert read(written(events)) == events


@pytest.mark.parametrize(
    "message",
    [
        user("hi"),
        user("a", Image("https://x/y.png"), sender="harness"),
        ToolResultMessage("c1", "look", "seen", details={"a": 1}),
        OpaqueMessage("notice", {"a": 1}),
    ],
)
def test_an_input_is_whole_whatever_stands_inside_it(message: Any) -> None:
    """Another writer may put a record of an unknown kind before a block: start and end have all blocks nevertheless, and the
    record stays between them."""
    records = encode([AgentStart(), TurnStart(0), MessageStart(message), MessageEnd(message)])
    strange = {"type": "news", "payload": {}}
    for place in range(3, len(records)):
        events = decode([*records[:place], strange, *records[place:]])
        expected = [MessageStart(message), Foreign(strange), MessageEnd(message)]
        assert events == [AgentStart(), TurnStart(0), *expected]


@pytest.mark.parametrize("origin", [(), ("a",)])
@pytest.mark.parametrize(
    "behind",
    [
        [],
        [r.agent_start()],
        [r.agent_end()],
        [r.message_start("user"), r.user_text("b"), r.message_end()],
        [r.message_start("tool_result", tool_call_id="nobody's")],
        [r.assistant_text("b")],
        [r.turn_end()],
        [r.request_end(status="retryable", error_code="network")],
    ],
)
def test_what_stands_inside_an_input_that_is_cut_is_not_lost(behind: list[Any], origin: tuple[str, ...]) -> None:
    """Whatever comes instead of the input's end, or nothing more."""
    strange = {"type": "news", "payload": {}}
    records = [r.agent_start(), r.message_start("user"), strange, *behind]
    named = [{**record, "origin": list(origin)} for record in records] if origin else records
    events = [event.event if isinstance(event, ChildEvent) else event for event in decode(named)]
    assert of(events, Foreign)[0] == Foreign(strange)


def test_children_side_by_side_keep_their_order() -> None:
    """Events of other sessions between start and end of an input keep their place too."""
    hi = user("hi")
    events: list[Event] = [
        ChildEvent(("a",), AgentStart()),
        ChildEvent(("b",), AgentStart()),
        ChildEvent(("a",), MessageStart(hi)),
        ChildEvent(("b",), MessageStart(hi)),
        ChildEvent(("a",), MessageEnd(hi)),
        ChildEvent(("b",), MessageEnd(hi)),
    ]
    assert read(written(events)) == events


# ---------------------------------------------------------------- replies


def test_blocks_keep_order_fidelity_and_gaps() -> None:
    """Thinking, text, thinking stay three; text behind a call is not lost; a cut call leaves a gap in the indexes."""
    fidelity = {"signature": "s", "z": {"b": 1.0, "a": [None, 2**70, "é"]}, "empty": {}}
    deltas = [
        ThinkingStart(0), ThinkingDelta(0, "hm"), ThinkingEnd(0, Thinking("hm", fidelity)),
        *text(1, "so", fidelity={"phase": "commentary"}),
        ThinkingStart(2), ThinkingEnd(2, Thinking("", fidelity)),
        *call(3, "c1", '{"a"', ": 1}"),
        *text(4, "and"),
        BlockAdded(5, Text("", fidelity)),
        *call(6, "c2", '{"a"', reason="aborted"),
        *text(7, "cut", reason="aborted"),
    ]  # fmt: skip
    header = AssistantMessage((), provider="p", model="m")
    events = [AgentStart(), TurnStart(0), *reply(*deltas, header=header, stop_reason="aborted", finish_reason=None)]
    assert read(written(events)) == events
    blocks = [event.delta for event in decode(for_trace(encode(events))) if isinstance(event, MessageUpdate)]
    assert [delta.index for delta in blocks] == [0, 1, 2, 3, 4, 5, 7]
    assert blocks[2].block.fidelity == fidelity


@pytest.mark.parametrize(
    ("start", "end"),
    [((None, None), ("p", "m")), (("p", "m"), (None, None)), (("p", None), ("p", "m-2")), (("p", "m"), ("p", "m"))],
)
def test_provider_and_model_of_a_reply(start: tuple[Any, Any], end: tuple[Any, Any]) -> None:
    """They stand at its start, and at its end only where they differ there."""
    events = [
        MessageStart(AssistantMessage((), provider=start[0], model=start[1])),
        MessageEnd(AssistantMessage((), "fatal", provider=end[0], model=end[1])),
    ]
    records = encode(events)
    assert ("provider" in records[1]["payload"]) == (start != end)
    assert decode(records) == events


def test_a_character_split_between_fragments_is_one() -> None:
    """Another writer may cut a surrogate pair in two: events never hold half of one, and the pieces still join up."""
    lone = [r.partial_text("start"), r.partial_text("delta", "a\ud83d"), r.partial_text("delta", "\ude00b")]
    events = given_by(lone)
    assert [event.delta.text for event in of(events, MessageUpdate)[1:]] == ["a", "😀b"]
    cut = [*lone[:2], r.partial_text("stop"), r.assistant_text("a\ud83d")]
    deltas = [event.delta for event in of(given_by(cut), MessageUpdate)]
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == deltas[-1].block.text == "a\ufffd"


# ---------------------------------------------------------------- results


def content(*blocks: ContentBlock) -> tuple[ContentBlock, ...]:
    return blocks


@pytest.mark.parametrize(
    ("blocks", "reason", "images", "extra"),
    [
        (content(Text("x")), "completed", None, False),
        (content(Text("x")), "fatal", None, False),
        (content(Text("[no output]")), "completed", None, False),
        (content(Text("x"), Image(PNG), Image(PNG)), "completed", [PNG, PNG], False),
        (content(Text("x"), Image(PNG)), "aborted", None, True),
        (content(Text("x"), Image("https://e.org/a")), "completed", None, True),
        (content(Image(PNG), Text("x")), "completed", [PNG], True),
        (content(Text("x"), Text("y")), "completed", None, True),
        (content(Text("x", {"k": 1})), "completed", None, True),
        (content(Text("x"), InlineData("AA", "image/png")), "completed", [PNG], True),
        (content(), "completed", None, True),
        (content(Text("")), "completed", None, True),
    ],
)
def test_outputs_say_what_the_protocol_can_say(
    blocks: tuple[ContentBlock, ...], reason: Any, images: list[str] | None, extra: bool
) -> None:
    """One text, then `data:` images on a completed output, need nothing of ours; any other content stands under `x`
    as well. The output is never empty, and the content comes back in all cases."""
    events = [AgentStart(), TurnStart(0), *ran("c1", *blocks, stop_reason=reason)]
    records = encode(events)
    [output] = [record["payload"] for record in records if record["payload"]["type"] == "tool_call_output"]
    assert output["output"]
    assert output.get("images") == images
    assert ("x" in output) == extra
    assert decode(map(loads, map(dumps, records))) == events


def test_streamed_output_is_closed_before_it_is_complete() -> None:
    """Start with the first piece, images in one delta before the stop, then the complete output with the same reason."""
    progress = [ToolExecutionUpdate("c1", "look", ToolResult("half")), ToolExecutionUpdate("c1", "look", None, "o")]
    events = [
        AgentStart(),
        *ran("c1", "out", Image(PNG), updates=[*progress, ToolExecutionUpdate("c1", "look", None, "ut")]),
    ]
    payloads = [record["payload"] for record in encode(events)]
    partial = [p for p in payloads if p["type"] == "partial_tool_call_output"]
    assert [(p["event_type"], p["output"], p.get("images")) for p in partial] == [
        ("start", "", None),
        ("delta", "o", None),
        ("delta", "ut", None),
        ("delta", "", [PNG]),
        ("stop", "", None),
    ]
    assert decode(encode(events)) == events


def test_a_result_says_no_more_than_its_calls_end_did() -> None:
    """`message_start` names the call; only a result that differs from the end is written whole."""
    events = [AgentStart(), *ran("c1", "out", details={"d": 1}, is_error=True, stop_reason="fatal")]
    start = next(record["payload"] for record in encode(events) if record["payload"].get("role") == "tool_result")
    assert start == {"type": "message_start", "role": "tool_result", "tool_call_id": "c1"}
    same = events[-1].message  # type: ignore[union-attr]
    for field, value in {
        "tool_name": "other", "content": "x", "details": None, "structured": 1, "is_error": False, "stop_reason": "aborted",
    }.items():  # fmt: skip
        mixed = [*events[:-2], *said(attrs.evolve(same, **{field: value}))]
        assert decode(encode(mixed)) == mixed, field
    told = [*events[:-2], *said(attrs.evolve(same, details={"d": True}))]
    assert repr(read(written(told))) == repr(told), "to Python 1 and true are equal"


def test_an_end_may_disagree_with_its_result() -> None:
    """The result's own `is_error` is kept where it is not the end's."""
    end = ToolExecutionEnd("c1", "look", ToolResult("x", is_error=True), False)
    events = [AgentStart(), ToolExecutionStart("c1", "look", "{}"), end]
    assert decode(encode(events)) == events


# ---------------------------------------------------------------- compactions, and what derived values are


@pytest.mark.parametrize(
    "summary",
    [user("short"), user("a", "b"), user(Text("x", {"k": 1})), user("x", sender="harness"), UserMessage((Image(PNG),))],
    ids=repr,
)
def test_a_summary_comes_back(summary: UserMessage) -> None:
    """As its text where it is one text, else as its blocks; `pending_summary` is the last that no turn took."""
    compaction = [CompactionBegin("manual", "summarize"), CompactionEnd("manual", "summarize", summary=summary)]
    pending = [AgentStart(), *compaction, AgentEnd(replaces_context=True, pending_summary=summary)]
    taken = [AgentStart(), *compaction, TurnStart(0), TurnEnd(), AgentEnd(replaces_context=True)]
    assert read(written(pending)) == pending
    assert read(written(taken)) == taken


def test_nothing_stands_behind_a_completed_compaction_in_a_file() -> None:
    """Neither the end of the run nor the abort before it: their reader would open the closed context again. Anything
    else does, and after any other end of a compaction so do they."""
    done, failed = (
        [CompactionBegin("manual", "discard"), CompactionEnd("manual", "discard", status)]
        for status in ("completed", "fatal")
    )
    end = [Abort("user_abort"), AgentEnd((), "aborted", "user_abort")]
    kinds = [r.event_kind(record) for record in for_trace(encode([AgentStart(), *done, *end]))]
    assert kinds == ["agent_start", "compaction_begin", "compaction_end"]
    assert [type(event) for event in trace_view([AgentStart(), *done, *end])] == [
        AgentStart, CompactionBegin, CompactionEnd,
    ]  # fmt: skip
    assert len(list(for_trace(encode([AgentStart(), *failed, *end])))) == 5
    later = [AgentStart(), *done, TurnStart(0), TurnEnd(), *end]
    assert len(list(for_trace(encode(later)))) == 7


def compacting() -> list[Event]:
    """A run whose compaction first gets a call, then a summary."""
    first = reply(*call(0, "c9", "{}"), finish_reason="tool_use")
    second = reply(*text(0, "[summary]", "so far[/summary]"))
    usage = TokenUsage(USAGE, USAGE)
    return [
        AgentStart(),
        CompactionBegin("manual", "summarize", 9, 1),
        *said(user("Summarise.")),
        RequestBegin(), *first, usage, RequestEnd(),
        *ran("c9", "no tools now", stop_reason="fatal", is_error=True),
        RequestBegin(2), *second, usage, RequestEnd("completed", 2),
        CompactionEnd("manual", "summarize", summary=user("so far")),
        AgentEnd(replaces_context=True, pending_summary=user("so far")),
    ]  # fmt: skip


def test_a_compactions_exchange_is_not_streamed() -> None:
    """Between the pair a consumer sees the summary's fragments and the usage, each character once, and not the prompt,
    the requests, the calls or the complete text; the trace has those."""
    records = encode(compacting())
    kinds = [record["payload"]["type"] for record in for_stream(records)]
    assert kinds == [
        "agent_start", "compaction_begin", "token_usage",
        *["partial_text"] * 4, "token_usage", "compaction_end", "agent_end",
    ]  # fmt: skip
    shown = "".join(record["payload"].get("text", "") for record in for_stream(records))
    assert shown == "[summary]so far[/summary]"
    whole = [record for record in records if not r.is_partial(record)]
    assert [record["payload"].get("text") for record in for_stream(whole)].count(shown) == 1
    assert decode(records) == compacting()


def test_pointers_are_not_streamed() -> None:
    """The child's own meta tells a consumer of the stream; a reader of the stream hears of the child by it."""
    meta = {"session_id": "s1", "provider": "p"}
    events = [AgentStart(), SubagentStarted("s1", "c1", meta), ChildEvent(("s1",), AgentStart())]
    streamed = list(for_stream(encode(events)))
    assert [record["payload"].get("type") for record in streamed] == ["agent_start", None, "agent_start"]
    assert decode(streamed) == [AgentStart(), SubagentStarted("s1", None, meta), events[2]]


# ---------------------------------------------------------------- children


def test_children_of_children() -> None:
    """Each record carries the whole chain, outermost first; the metas stand where the children begin."""
    events: list[Event] = [
        AgentStart(),
        ToolExecutionStart("c1", "look", "{}"),
        SubagentStarted("s1", "c1", {"session_id": "s1", "n": 1.0}),
        ChildEvent(("s1",), AgentStart()),
        ChildEvent(("s1",), SubagentStarted("s2", None, {"session_id": "s2"})),
        ChildEvent(("s1", "s2"), AgentStart()),
        ChildEvent(("s1", "s2"), SubagentStarted("s3")),
        ChildEvent(("s1", "s2"), AgentEnd()),
        ChildEvent(("s1",), AgentEnd()),
    ]
    records = encode(events)
    assert decode(records) == events
    assert records[3]["origin"] == ["s1"]
    assert [record["origin"] for record in records if r.is_meta(record)] == [["s1"], ["s1", "s2"]]
    assert [record.get("origin") for record in for_trace(records)] == [None] * 3


def test_a_pointer_waits_for_the_meta_behind_it() -> None:
    """It is given with the meta, or without it as soon as another record or the end of the file is there."""
    [pointer, meta] = encode([SubagentStarted("s1", "c1", {"session_id": "s1"})])
    assert given_by([pointer]) == []
    assert given_by([pointer, meta]) == [SubagentStarted("s1", "c1", {"session_id": "s1"})]
    assert given_by([pointer, r.turn_end()]) == [SubagentStarted("s1", "c1"), TurnEnd()]
    assert decode([pointer]) == [SubagentStarted("s1", "c1")]


def test_a_child_starts_once() -> None:
    """A second meta of a child, of another model say, is no second start; whether a pointer told of it or its meta."""
    first, second = (
        r.with_origin(r.session_meta("s1", provider="p", model_id=model), "s1") for model in ("m-1", "m-2")
    )
    pointer = r.subagent("s1", meta_follows=True)
    for records in ([pointer, first, second], [first, second]):
        assert decode(records) == [SubagentStarted("s1", None, first["payload"])]


def test_a_stranger_in_a_child_comes_back_as_it_came() -> None:
    """Wherever its `origin` stood among its keys."""
    for line in (b'{"type":"news","payload":1,"origin":["s1"]}', b'{"origin":["s1"],"type":"news","payload":1}'):
        [event] = read([line])
        assert isinstance(event, ChildEvent)
        assert isinstance(event.event, Foreign)
        assert written([event]) == [line]


@pytest.mark.parametrize("origin", [5, "s1", [1], {}])
def test_a_damaged_origin_is_nobodys(origin: Any) -> None:
    """Such a record is a stranger: it never mixes with the session's own."""
    record = {**r.turn_start(0), "origin": origin}
    assert decode([record]) == [Foreign(record)]


# ---------------------------------------------------------------- files of ours


def test_what_a_rotation_repeats_is_dropped() -> None:
    """Opening records marked as repeated tell of an earlier file."""
    tools = r.tool_list_ready([ToolSpec("a")])
    assert decode([r.session_meta("s", provider="p", model_id="m"), r.repeated(tools), tools]) == [
        ToolListReady((ToolSpec("a"),))
    ]


def test_a_file_that_begins_in_the_middle_of_a_run_decodes() -> None:
    """After a rotation: no `agent_start`, yet turns and the end say what the file holds."""
    hi = user("hi")
    answer = reply(*text(0, "yes"))
    tail: list[Event] = [
        TurnStart(1),
        *said(hi),
        RequestBegin(),
        *answer,
        RequestEnd(),
        TurnEnd(answer[-1].message),  # type: ignore[union-attr]
        AgentEnd((hi, answer[-1].message), replaces_context=True),  # type: ignore[union-attr]
    ]
    assert decode(encode(tail)) == tail


def test_a_file_cut_in_a_run_is_followed_by_the_next_run() -> None:
    """A crash leaves things open; the next `agent_start` begins anew, and no end is invented."""
    cut = encode(
        [AgentStart(), TurnStart(0), ToolExecutionStart("c1", "look", "{}"), MessageStart(AssistantMessage(()))]
    )
    again: list[Event] = [AgentStart(), TurnStart(0), TurnEnd(), AgentEnd()]
    events = decode([*cut, *encode(again)])
    assert events[-4:] == again
    assert of(events, MessageEnd, ToolExecutionEnd) == []


# ---------------------------------------------------------------- other writers


def samples(shared: Path, name: str) -> list[r.Record]:
    return [loads(line) for line in (shared / "traces" / name).read_bytes().splitlines()]


def messages_of(events: Iterable[Event]) -> list[Any]:
    return [event.message for event in of(events, MessageEnd)]


def test_other_writers_traces_give_messages_and_no_runs(shared: Path) -> None:
    """No run, turn or tool event is invented; every message has its start; nothing is unknown."""
    seen = 0
    for path in sorted((shared / "traces").glob("*/*.jsonl")):
        if "damaged" in str(path) or "torn" in str(path):
            continue
        events = read(path.read_bytes().splitlines())
        assert of(events, AgentStart, AgentEnd, TurnStart, TurnEnd, ToolExecutionStart, ToolExecutionEnd, Foreign) == []
        assert len(of(events, MessageStart)) == len(of(events, MessageEnd)) > 0
        seen += 1
    assert seen > 20


def test_an_other_writers_message_ends_at_another_role_or_an_event() -> None:
    """Blocks of one role in a row are one message; another sender starts another; a result knows its tool's name."""
    trace = [
        r.user_text("a"),
        r.image_url("https://e.org/a"),
        r.user_text("b", sender="harness"),
        r.request_begin(),
        r.thinking("hm"),
        r.tool_call("look", "{}", "c1"),
        r.tool_call_output("c1", "out", stop_reason="fatal"),
        r.tool_call("look", "{", "c2", stop_reason="aborted"),
        r.request_end("aborted"),
        r.assistant_text("late"),
    ]
    assert messages_of(decode(trace)) == [
        UserMessage((Text("a"), Image("https://e.org/a"))),
        user("b", sender="harness"),
        AssistantMessage((Thinking("hm"), ToolCall("c1", "look", "{}")), "completed"),
        ToolResultMessage("c1", "look", "out", None, None, True, "fatal"),
        AssistantMessage((), "aborted"),
        AssistantMessage("late", "completed"),
    ]
    assert messages_of(given_by(trace))[-1] == AssistantMessage((), "aborted")


def test_an_other_writers_stream_gives_its_fragments() -> None:
    """Fragments open a reply; a piece whose start nobody saw opens its block; the complete record has the last word."""
    stream = [
        r.request_begin(),
        r.partial_text("delta", "He"),
        r.partial_text("stop"),
        r.assistant_text("Hello"),
        r.partial_tool_call("start", "c1", name="look"),
        r.partial_tool_call("delta", "c1", arguments="{}"),
        r.partial_tool_call("stop", "c1"),
        r.request_end(),
    ]
    events = decode(stream)
    assert [type(event.delta) for event in of(events, MessageUpdate)] == [
        TextStart, TextDelta, TextEnd, ToolCallStart, ToolCallDelta, ToolCallEnd,
    ]  # fmt: skip
    assert messages_of(events) == [AssistantMessage((Text("Hello"), ToolCall("c1", "look", "{}")), "completed")]


def test_attempts_of_other_writers_are_counted_from_their_ends() -> None:
    """Their `request_begin` does not say which attempt it is; the announced retry before it does."""
    failed = r.request_end("retryable", attempt=4, retry_in_ms=16_000)
    events = decode([r.request_begin(), failed, r.request_begin(), r.request_end(attempt=5), r.request_begin()])
    assert [event.attempt for event in of(events, RequestBegin)] == [1, 5, 1]


def test_the_old_spelling_is_read(shared: Path) -> None:
    """Six stop reasons become four, with the codes that they stood for; the reason of an abort is its text."""
    events = decode(samples(shared, "24-legacy-six-values/session-2026-09-01-10-24-00-a0001998_001.jsonl"))
    ends = [(event.status, event.error_code) for event in of(events, RequestEnd)]
    assert ends == [
        ("retryable", "network"),
        ("retryable", "malformed"),
        ("retryable", "network"),
        ("completed", None),
        ("fatal", "auth"),
    ]
    assert of(events, Abort) == [Abort(None, "llm request error: 401 bad key")]
    assert [m.stop_reason for m in messages_of(events) if isinstance(m, ToolResultMessage)] == ["fatal"]
    old = b"".join(written(events))
    assert not [word for word in (b'"failed"', b'"auth"}', b'"malformed",', b'"reason"') if b'"status":' + word in old]


def test_an_old_failure_waits_for_what_follows() -> None:
    """Only the record behind it tells a refusal from a failure that was worth a retry."""
    failed = {**r.request_end(), "payload": {"type": "request_end", "status": "failed", "error_message": "403"}}
    refusal = {**r.abort(), "payload": {"type": "abort", "reason": "llm request error: 403"}}
    assert given_by([failed]) == []
    assert [event.error_code for event in of(decode([failed, refusal]), RequestEnd)] == ["rejected"]
    assert [event.error_code for event in of(decode([failed]), RequestEnd)] == ["network"]


def test_unknown_roles_and_kinds_survive() -> None:
    """A role that nobody knows is an opaque message, a kind that nobody knows a record; both are written back."""
    strange = r.user_text("x")
    strange["payload"]["role"] = "critic"
    assert messages_of(decode([strange])) == [OpaqueMessage("critic", strange["payload"])]
    for record in (
        {"type": "event_msg", "payload": {"type": "goal_finished", "outcome": "met"}},
        {"type": "model_msg", "payload": {"type": "video", "role": "assistant"}},
        {"type": "model_msg", "payload": {"type": "partial_video", "event_type": "delta"}},
        {"type": "news", "payload": {}},
        {"type": "event_msg", "payload": {"no": "type"}},
        {"no": "envelope"},
    ):
        assert decode([record]) == [Foreign(record)]
        assert encode(decode([record])) == [record]


# ---------------------------------------------------------------- hostile and damaged


PAYLOADS = {
    record["payload"]["type"]: record["payload"]
    for event in [*[event for event, _ in TABLE], MessageUpdate(ToolCallDelta(0, "{}"))]
    if not isinstance(event, Foreign)
    for record in Encoder(clock).encode(event)
}
"""Of each kind a payload that fits."""


@pytest.mark.parametrize("kind", [*r.COMPLETE, *r.PARTIALS, *r.EVENTS])
def test_a_field_of_another_type_makes_a_stranger(kind: str) -> None:
    """Whatever one field of a known kind is, decoding goes on; what comes out is a record that is kept, or an event
    whose every field has the type that it must have."""
    envelope = "event_msg" if kind in r.EVENTS else "model_msg"
    for field in [*PAYLOADS[kind], "x"]:
        for value in (None, 5, 1.5, [], [5], {}, {"content": 5, "usage": 5, "attempt": 5}, True):
            record = {**r.abort(), "type": envelope, "payload": {**PAYLOADS[kind], field: value}}
            for before in ([], [r.agent_start()], [r.message_start("assistant")], [r.message_start("notice")]):
                events = decode([*before, record, r.message_end()])
                known = [event for event in events if not isinstance(event, Foreign)]
                assert [problem for made in encode(known) for problem in r.check_record(made)] == []


ODD_BLOCKS = [
    5,
    [5],
    [{"type": "image_url", "image_url": 5}],
    [{"type": "inline_data", "data": "AA==", "mime_type": []}],
]
ODD_EXTRAS: list[tuple[str, str, list[Any]]] = [
    ("hook", "tool_call_id", [5, [{}], {}]),
    ("subagent", "tool_call_id", [5, [{}], {}]),
    ("approval_decision", "arguments", [5, [{}], {}]),
    ("request_begin", "attempt", ["2", 1.5, [1], True]),
    ("request_end", "usage", [5, {}, dict.fromkeys(("cache_read", "cache_write", "output", "total"), "1")]),
    ("compaction_end", "summary", [5, {"content": [], "sender": 5}, *[{"content": blocks} for blocks in ODD_BLOCKS]]),
    ("tool_call_output", "content", ODD_BLOCKS),
]


@pytest.mark.parametrize(("kind", "name", "values"), ODD_EXTRAS)
def test_what_is_of_another_type_under_x_makes_a_stranger(kind: str, name: str, values: list[Any]) -> None:
    """The protocol knows nothing of what stands there: no event has a field of another type by it, which would break those
    who look at the event."""
    envelope = "event_msg" if kind in r.EVENTS else "model_msg"
    for value in values:
        record = {**r.abort(), "type": envelope, "payload": {**PAYLOADS[kind], "x": {name: value}}}
        assert decode([record]) == [Foreign(record)]


@pytest.mark.parametrize("value", [5, [{}], {}])
def test_a_label_of_another_type_makes_a_stranger(value: Any) -> None:
    """An `x` inside of a payload is looked at like that of the record: a wrong type makes the record `Foreign`."""
    record = r.tool_list_ready([ToolSpec("a", "A.")])
    record["payload"]["tools"][0]["x"] = {"label": value}
    assert decode([record]) == [Foreign(record)]


@given(st.data(), streams(depth=1))
@settings(suppress_health_check=list(HealthCheck))
def test_damage_never_raises(data: st.DataObject, events: list[Event]) -> None:
    """Records dropped, doubled, swapped or changed in one field: decoding ends, and what it gives can be looked at."""
    records = [loads(line) for line in written(events)]
    for _ in range(data.draw(st.integers(1, 4))):
        place, other = (data.draw(st.integers(0, len(records) - 1)) for _ in range(2))
        damage = data.draw(st.sampled_from(("drop", "double", "swap", "field", "payload")))
        if damage == "drop" and len(records) > 1:
            del records[place]
        elif damage == "double":
            records.insert(other % len(records), copy.deepcopy(records[place]))
        elif damage == "swap":
            records[place], records[other] = records[other], records[place]
        elif damage == "payload":
            records[place]["payload"] = data.draw(json_values())
        elif isinstance(records[place].get("payload"), dict):
            payload = records[place]["payload"]
            key = data.draw(st.sampled_from([*payload, "x", "origin"]))
            payload[key] = data.draw(json_values())
    for event in decode(records):
        repr(event)
        if isinstance(event, MessageUpdate):
            assert isinstance(event.message, AssistantMessage)


@pytest.mark.parametrize("record", [None, 5, "x", [], [1]])
def test_what_is_no_object_gives_nothing(record: Any) -> None:
    """A reader that let it through meets no exception here."""
    assert decode([r.turn_start(0), record, r.turn_end()]) == [TurnStart(0), TurnEnd()]


def test_a_record_too_deep_for_an_event_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """It is told in the log; the rest is read."""
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    assert decode([{"type": "news", "payload": deep}, r.turn_end()]) == [TurnEnd()]
    assert "left out" in caplog.text


# ---------------------------------------------------------------- an application's own messages


@attrs.frozen
class Notice(CustomMessage):
    """A message of a test application."""

    role: ClassVar[str] = "notice"
    text: str
    level: int = 0
    blocks: tuple[ContentBlock, ...] = ()
    marks: frozenset[str] = frozenset()


NOTICE = Notice("hi", 2, (Text("a", {"k": 1}), Image(PNG)), frozenset({"x"}))


def test_registered_messages_come_back_as_their_class() -> None:
    """Fields of any type that cattrs knows, content blocks among them; also in the end of the run."""
    registry = MessageRegistry()
    assert registry.register(Notice) is Notice
    events = [AgentStart(), TurnStart(0), *said(NOTICE), TurnEnd(), AgentEnd((NOTICE,))]
    lines = written(events)
    assert decode(map(loads, lines), registry) == events
    record = next(record for record in map(loads, lines) if record["payload"]["type"] == "custom_message")
    assert record["type"] == "event_msg"


@pytest.mark.parametrize(
    "data",
    [{"text": "x", "level": "high"}, {"level": 1}, {"text": "x", "added_later": 1}, [], "x", None],
    ids=repr,
)
def test_data_that_does_not_fit_its_class_stays_opaque(data: Any) -> None:
    """Also a field of a later version: it must not vanish."""
    registry = MessageRegistry()
    registry.register(Notice)
    records = [r.message_start("notice"), r.custom_message("notice", data), r.message_end()]
    assert messages_of(decode(records, registry)) == [OpaqueMessage("notice", data)]
    assert encode(decode(records, registry), clock)[1] == r.custom_message("notice", data, clock=clock)


class Color(enum.Enum):
    RED = "red"


@attrs.frozen
class Stamped(CustomMessage):
    """A message with fields that have no JSON of their own."""

    role: ClassVar[str] = "stamped"
    at: datetime.datetime
    day: datetime.date
    hour: datetime.time | None
    id: uuid.UUID
    costs: Mapping[str, decimal.Decimal]
    color: Color
    colors: list[Color]


def test_dates_enums_and_their_like_come_back() -> None:
    """As the values that they were, zone and digits included."""
    registry = MessageRegistry()
    registry.register(Stamped)
    zone = datetime.timezone(datetime.timedelta(hours=2))
    at = datetime.datetime(2026, 1, 31, 9, 30, 0, 5, zone)
    stamped = Stamped(
        at, at.date(), at.timetz(), uuid.UUID(int=7), {"all": decimal.Decimal("1.50")}, Color.RED, [Color.RED]
    )
    (back,) = messages_of(decode([loads(line) for line in written(said(stamped))], registry))
    assert back == stamped
    assert isinstance(back, Stamped) and str(back.costs["all"]) == "1.50"


def test_messages_that_nobody_registered_survive() -> None:
    """They come back opaque, and are written again as they were."""
    records = encode(said(NOTICE), clock)
    back = decode(records, MessageRegistry())
    assert [type(message) for message in messages_of(back)] == [OpaqueMessage]
    assert encode(back, clock) == records


def test_registering_refuses_what_cannot_work() -> None:
    """No role, a role that is taken, a class whose fields nobody can list; the same class twice is fine."""
    registry = MessageRegistry()
    registry.register(Notice)
    registry.register(Notice)

    @attrs.frozen
    class Other(CustomMessage):
        role: ClassVar[str] = "notice"

    class Plain(CustomMessage):
        role = "plain"

    with pytest.raises(ValueError, match="the role 'notice' is taken by Notice"):
        registry.register(Other)
    with pytest.raises(TypeError, match="attrs class or a dataclass"):
        registry.register(Plain)
    with pytest.raises(TypeError, match="a subclass of CustomMessage with a role"):
        registry.register(str)  # type: ignore[type-var]


def test_fields_that_json_cannot_say_are_refused_with_their_path() -> None:
    """At the edge where they enter, and not as null in a file."""

    @attrs.frozen
    class Reading(CustomMessage):
        role: ClassVar[str] = "reading"
        values: list[float]

    with pytest.raises(ValueError, match=r"reading\.values\[1\]: expected a JSON number, got nan"):
        encode(said(Reading([1.0, float("nan")])))


def test_a_plain_class_is_written_by_its_attributes() -> None:
    """Without attrs its attributes are its fields; without those it is refused."""

    class Plain(CustomMessage):
        role = "plain"

        def __init__(self) -> None:
            self.a = 1

    class Bare(CustomMessage):
        __slots__ = ()
        role = "bare"

    assert encode(said(Plain()))[1]["payload"]["data"] == {"a": 1}

    class Nameless(CustomMessage):
        pass

    with pytest.raises(TypeError, match="bare: expected an attrs class"):
        encode(said(Bare()))
    with pytest.raises(TypeError, match=r"Nameless\.role: expected a name, got None"):
        encode(said(Nameless()))


# ---------------------------------------------------------------- cost


def test_a_long_reply_takes_linear_time_both_ways() -> None:
    """Counted in lines of Python that run, not in seconds: ten times the pieces, about ten times the work."""

    def steps(pieces: int) -> int:
        return lines(lambda: list(from_jsonl(jsonl([AgentStart(), *reply(*text(0, *["é"] * pieces))]))))

    assert steps(1_000) < 11 * steps(100)


def test_no_message_of_ones_own_no_cattrs() -> None:
    """What most runs never need is not loaded with the codec."""
    code = "import sys, agentloop.omni.codec; sys.exit('cattrs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_children_that_have_ended_leave_nothing_behind() -> None:
    """A session with thousands of children keeps no state of each."""
    encoder, decoder = Encoder(), Decoder()
    for number in range(50):
        for event in (AgentStart(), TurnStart(0), TurnEnd(), AgentEnd()):
            for record in encoder.encode(ChildEvent((f"s{number}",), event)):
                decoder.feed(record)
    assert encoder._children == {}
    assert decoder._children == {}
    for event in ran("c1", "ab", updates=[ToolExecutionUpdate("c1", "look", None, "ab")]):
        encoder.encode(event)
    assert encoder._streaming == set()
    assert encoder._ended == {}
