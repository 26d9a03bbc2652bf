"""Records: what builders write, what guards tell apart, what the check finds, what of the old spelling is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from agentloop.messages import ToolSpec, Usage
from agentloop.omni import records as r

AT = 1_788_228_000.137  # 2026-09-01T02:00:00.137Z


def clock() -> float:
    return AT


USAGE = Usage(1, 2, 3)
SPEC = ToolSpec("look", "Looks.", {"type": "object"}, "Look")

BUILT: dict[str, r.Record] = {
    "text": r.user_text("hi", sender="harness", fidelity={"a": 1}, clock=clock),
    "thinking": r.thinking("hm", fidelity={"signature": "x"}, clock=clock),
    "inline_thinking": r.inline_thinking("AA==", "image/png", fidelity={"a": 1}, clock=clock),
    "tool_call": r.tool_call("look", "{}", "c1", fidelity={"a": 1}, clock=clock),
    "tool_call_output": r.tool_call_output("c1", "out", images=["data:image/png;base64,AA"], content=[], clock=clock),
    "image_url": r.image_url("https://example.org/a.png", clock=clock),
    "inline_data": r.inline_data("AA==", "audio/wav", fidelity={"a": 1}, clock=clock),
    "partial_text": r.partial_text("delta", "h", clock=clock),
    "partial_thinking": r.partial_thinking("start", clock=clock),
    "partial_tool_call": r.partial_tool_call("delta", "c1", arguments="{", clock=clock),
    "partial_tool_call_output": r.partial_tool_call_output("delta", "c1", "x", images=["data:,"], clock=clock),
    "tool_list_ready": r.tool_list_ready([SPEC], clock=clock),
    "mcp_connect_begin": r.mcp_connect_begin(["s"], clock=clock),
    "mcp_connect_end": r.mcp_connect_end("fatal", [], error_code="connect_failed", error_message="m", clock=clock),
    "request_begin": r.request_begin(2, clock=clock),
    "request_end": r.request_end(
        "retryable", attempt=1, retry_in_ms=2000, error_code="network", error_message="m", usage=USAGE, clock=clock
    ),
    "approval_decision": r.approval_decision("deny", "c1", arguments="{}", clock=clock),
    "token_usage": r.token_usage(USAGE, USAGE, clock=clock),
    "compaction_begin": r.compaction_begin("context", "summarize", context=9, turns=2, clock=clock),
    "compaction_end": r.compaction_end(
        "context",
        "summarize",
        "fatal",
        attempt=2,
        error_code="malformed",
        error_message="m",
        summary="s",
        clock=clock,
    ),
    "abort": r.abort("user_abort", "m", clock=clock),
    "subagent": r.subagent("s1", tool_call_id="c1", meta_follows=True, clock=clock),
    "hook": r.hook(
        "pre_tool_use", "h", decision="deny", reason="no", output={"n": 1}, tool_call_id="c1", clock=clock
    ),
    "agent_start": r.agent_start(clock=clock),
    "agent_end": r.agent_end(
        "aborted", error_code="user_abort", error_message="m", usage=USAGE, replaces_context=True, clock=clock
    ),
    "turn_start": r.turn_start(3, clock=clock),
    "turn_end": r.turn_end(clock=clock),
    "message_start": r.message_start("x", provider="p", model="m", sender="s", tool_call_id="c1", clock=clock),
    "message_end": r.reply_end(
        "fatal", None, usage=USAGE, error_code="auth", error_message="m", fidelity={"a": 1}, clock=clock
    ),
    "custom_message": r.custom_message("notice", {"a": 1}, clock=clock),
    "tool_execution_start": r.tool_execution_start("c1", "look", "{}", clock=clock),
    "tool_execution_update": r.tool_execution_update("c1", "look", {"content": []}, clock=clock),
    "tool_execution_end": r.tool_execution_end(
        "c1", "look", is_error=True, error_code="tool_error", details=1, structured=2, terminate=True, clock=clock
    ),
    "approval_request": r.approval_request("c1", "look", "{}", clock=clock),
}  # fmt: skip
"""Of each kind one record with every field that its builder can write."""


# ---------------------------------------------------------------- builders


def test_each_kind_that_we_know_has_a_builder() -> None:
    """Seven complete messages, four partials, twelve events of the protocol and our own: each is built here."""
    assert (len(r.COMPLETE), len(r.PARTIALS), len(r.PROTOCOL_EVENTS)) == (7, 4, 12)
    assert set(BUILT) == {*r.COMPLETE, *r.PARTIALS, *r.EVENTS}


@pytest.mark.parametrize("kind", BUILT)
def test_builders_write_envelope_and_keys_in_their_order(kind: str) -> None:
    """Timestamp, type and payload in this order; the payload's keys in the order of its type, and of the right kind."""
    record = BUILT[kind]
    assert list(record) == ["timestamp", "type", "payload"]
    assert record["timestamp"] == "2026-09-01T02:00:00.137Z"
    assert record["type"] == ("event_msg" if kind in r.EVENTS else "model_msg")
    assert record["payload"]["type"] == kind
    order = list(get_type_hints({**r.COMPLETE, **r.PARTIALS, **r.EVENTS}[kind]))
    assert list(record["payload"]) == [name for name in order if name in record["payload"]]


@pytest.mark.parametrize("kind", BUILT)
def test_what_is_built_is_right(kind: str) -> None:
    """The check finds nothing wrong with a built record, and with the same one without its optional fields' values."""
    assert r.check_record(BUILT[kind]) == []


def test_roles() -> None:
    """Outputs and images are the user's, the model's blocks the assistant's."""
    roles = {kind: BUILT[kind]["payload"]["role"] for kind in (*r.COMPLETE, *r.PARTIALS)}
    assistant = {"thinking", "inline_thinking", "tool_call", "partial_text", "partial_thinking", "partial_tool_call"}
    assert {kind for kind, role in roles.items() if role == "assistant"} == assistant
    assert r.assistant_text("x")["payload"]["role"] == "assistant"


def test_complete_messages_always_say_their_stop_reason() -> None:
    """`completed` by default, on each of the seven."""
    for kind in r.COMPLETE:
        assert BUILT[kind]["payload"]["stop_reason"] == "completed"


def test_what_is_absent_is_not_written() -> None:
    """No empty fidelity, no empty image list, no `sender: user`, no error that is not there."""
    plain = ["type", "role", "text", "stop_reason"]
    assert list(r.user_text("x", sender="user", fidelity={})["payload"]) == plain
    assert "images" not in r.tool_call_output("c", "x", images=[])["payload"]
    assert "images" not in r.partial_tool_call_output("delta", "c", "x", images=[])["payload"]
    assert r.abort()["payload"] == {"type": "abort"}
    assert r.tool_list_ready([ToolSpec("a")])["payload"]["tools"] == [{"name": "a", "description": ""}]


def test_an_output_is_never_empty() -> None:
    """A silent tool gives `[no output]`."""
    assert r.tool_call_output("c", "")["payload"]["output"] == "[no output]"


def test_attempts() -> None:
    """Absent on a clean first try, there on every request that did not complete or needed retries."""
    assert r.request_begin()["payload"] == {"type": "request_begin"}
    assert r.request_begin(2)["payload"]["x"] == {"attempt": 2}
    assert r.request_end()["payload"] == {"type": "request_end", "status": "completed"}
    assert r.request_end(attempt=3)["payload"]["attempt"] == 3
    assert r.request_end("fatal")["payload"]["attempt"] == 1


def test_an_output_with_images_survives_json() -> None:
    """What was built and what is read back are the same."""
    record = r.tool_call_output("c", "x", images=["data:image/png;base64,AA"])
    assert json.loads(json.dumps(record)) == record


def test_token_counts_add_up() -> None:
    """Adding counts adds each of the four numbers."""
    total = r.token_counts(Usage(1, 2, 3, 7) + Usage(10, 20, 30, 70))
    assert total == {"cache_read": 11, "cache_write": 22, "output": 33, "total": 77}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (0.999, "1970-01-01T00:00:00.999Z"),
        (1.001, "1970-01-01T00:00:01.001Z"),  # times 1,000 it is 1,000.9999…
        (AT, "2026-09-01T02:00:00.137Z"),
        (AT + 0.0004, "2026-09-01T02:00:00.137Z"),
        (AT + 0.9, "2026-09-01T02:00:01.037Z"),
        (951_782_400.5, "2000-02-29T00:00:00.500Z"),
    ],
)
def test_timestamps(seconds: float, text: str) -> None:
    """UTC with milliseconds and `Z`, cut and not rounded up, in any order of the times asked for."""
    assert r.timestamp(seconds) == text
    assert r.timestamp(12.25) == "1970-01-01T00:00:12.250Z"
    assert r.timestamp(seconds) == text


# ---------------------------------------------------------------- guards


def test_guards_tell_the_four_apart() -> None:
    """Complete message, partial, event and meta: each record is exactly one of them; a kind of model message that we
    do not know counts as complete, as the list of partials is closed."""
    meta = r.session_meta("s", provider="p", model_id="m")
    strange = {"timestamp": "", "type": "model_msg", "payload": {"type": "partial_video", "role": "assistant"}}
    for record in [*BUILT.values(), meta, strange]:
        found = [r.is_meta(record), r.is_event(record), r.is_partial(record), r.is_complete_model_message(record)]
        assert sum(found) == 1
    assert r.is_complete_model_message(strange)
    assert r.is_partial(BUILT["partial_text"])
    assert r.is_meta(meta)
    assert r.event_kind(BUILT["hook"]) == "hook"
    assert r.event_kind(BUILT["text"]) is None


@pytest.mark.parametrize("damaged", [{}, {"type": "model_msg"}, {"type": "event_msg", "payload": None}])
def test_guards_bear_damage(damaged: Any) -> None:
    """A record without a payload makes no guard raise."""
    assert not r.is_partial(damaged)
    assert r.event_kind(damaged) is None
    assert not r.is_compaction_closed(damaged)
    assert not r.is_repeated(damaged)


def test_the_end_of_a_context() -> None:
    """Only a compaction that completed closes it."""
    closed = r.compaction_end("manual", "discard", "completed")
    assert r.is_compaction_closed(closed)
    assert not r.is_compaction_closed(BUILT["compaction_end"])


def test_repetitions_are_marked_under_x() -> None:
    """The mark joins what stands under `x` already, and the record itself is not changed."""
    again = r.repeated(BUILT["request_begin"])
    assert r.is_repeated(again)
    assert again["payload"]["x"] == {"attempt": 2, "repeated": True}
    assert not r.is_repeated(BUILT["request_begin"])


# ---------------------------------------------------------------- origin, ids, markers


def test_each_hop_goes_to_the_front() -> None:
    """Outermost first, last key of the record; a record of the session itself has no such field."""
    record = BUILT["text"]
    twice = r.with_origin(r.with_origin(record, "inner"), "outer")
    assert twice["origin"] == ["outer", "inner"]
    assert list(twice)[-1] == "origin"
    assert r.origin_of(twice) == ("outer", "inner")
    assert "origin" not in record
    assert r.origin_of(record) == ()


@pytest.mark.parametrize("origin", [None, "s1", [], [1], {"a": 1}])
def test_a_chain_that_is_none_counts_as_none(origin: Any) -> None:
    """A damaged origin names no session."""
    assert r.origin_of({"origin": origin}) == ()


def test_session_ids_sort_by_time() -> None:
    """`session-YYYY-MM-DD-HH-mm-ss-<8 hex>`, zero-padded, in local time; two of the same second differ."""
    first, second = r.new_session_id(clock), r.new_session_id(lambda: AT + 61)
    assert re.fullmatch(r"session-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d-[0-9a-f]{8}", first)
    assert first < second
    assert r.new_session_id(clock) != first
    assert r.new_session_id(clock, "00c0ffee").endswith("-00c0ffee")


def test_markers_old_and_new() -> None:
    """Blocks are written with brackets; with angle brackets they are read as well, and nothing else is."""
    assert r.marked("summary", "short") == "[summary]\nshort\n[/summary]"
    assert r.marked_text("summary", "so: [summary]\nshort\n[/summary] end") == "short"
    assert r.marked_text("summary", "<summary> old </summary>") == "old"
    assert r.marked_text("summary", "[summary] never closed") is None
    assert r.marked_text("summary", "no block") is None


# ---------------------------------------------------------------- the check of one record


def problems(record: Any) -> list[str]:
    return [str(problem) for problem in r.check_record(record)]


def changed(kind: str, **fields: Any) -> r.Record:
    return {**BUILT[kind], "payload": {**BUILT[kind]["payload"], **fields}}


@pytest.mark.parametrize("wrong", [None, 3, "x", [], True])
def test_what_is_no_object_is_no_record(wrong: Any) -> None:
    """The problem names what came."""
    [problem] = problems(wrong)
    assert problem.startswith("record: expected an object, got ")


def test_problems_name_path_expected_and_got() -> None:
    """A nested field is named by its path."""
    record = r.tool_list_ready([SPEC])
    record["payload"]["tools"] = [{"name": 5}]
    assert problems(record) == [
        "payload.tools[0].name: expected a string, got 5",
        "payload.tools[0].description: expected a value, got nothing",
    ]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({**BUILT["text"], "timestamp": "2026-09-01T02:00:00Z"}, "timestamp: expected UTC with milliseconds"),
        ({**BUILT["text"], "origin": []}, "origin: expected at least one session id, or no such field, got an array"),
        ({**BUILT["text"], "payload": None}, "payload: expected an object, got null"),
        ({"timestamp": BUILT["text"]["timestamp"], "type": "event_msg"}, "payload: expected an object, got nothing"),
        (changed("request_end", status="done"), "payload.status: expected one of completed, aborted"),
        (changed("request_end", attempt="1"), "payload.attempt: expected an integer, got '1'"),
        (changed("request_end", attempt=True), "payload.attempt: expected an integer, got true"),
        (changed("text", text=None), "payload.text: expected a string, got null"),
        (changed("text", fidelity={}), "payload.fidelity: expected an object that is not empty"),
        (changed("image_url", fidelity={"a": 1}), "payload.fidelity: expected nothing on this kind"),
        (changed("tool_call_output", images=[]), "payload.images: expected at least one image"),
        (changed("tool_call_output", stop_reason="fatal"), "payload.images: expected nothing on an output"),
        (changed("tool_call_output", output=""), "payload.output: expected a text that is not empty"),
        (changed("request_end", status="completed"), "payload.error_code: expected nothing on a completed record"),
        (changed("message_end", finish_reason="done"), "payload.finish_reason: expected one of stop, length"),
        (changed("custom_message", role=1), "payload.role: expected a string, got 1"),
        (
            {"timestamp": BUILT["text"]["timestamp"], "type": "model_msg", "payload": {}},
            "payload.type: expected a string, got nothing",
        ),
    ],
)
def test_what_the_check_finds(record: r.Record, problem: str) -> None:
    """Each broken rule is told first and in words."""
    assert problems(record)[0].startswith(problem)


@pytest.mark.parametrize(
    "record",
    [
        {**BUILT["text"], "type": "news"},
        {**BUILT["text"], "seen": 1},
        changed("text", mood="good"),
        changed("text", role="critic"),
        {**BUILT["abort"], "payload": {"type": "goal_finished", "outcome": "met"}},
        {**BUILT["abort"], "payload": {"no": "type"}},
        {**BUILT["text"], "payload": {"type": "video", "role": "assistant"}},
    ],
)
def test_what_we_do_not_know_is_no_problem(record: r.Record) -> None:
    """Unknown envelopes, kinds, fields and roles are kept, and so are right."""
    assert problems(record) == []


def test_every_line_of_the_sample_traces_is_right(shared: Path) -> None:
    """The old spelling among them: nobody else's good record is called wrong."""
    seen = 0
    for path in sorted((shared / "traces").glob("*/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            assert problems(record) == [], path
            seen += 1
    assert seen > 400


# ---------------------------------------------------------------- the old spelling


def event(**payload: Any) -> r.Record:
    return {"timestamp": BUILT["text"]["timestamp"], "type": "event_msg", "payload": payload}


REFUSED = event(type="abort", reason="llm request error: 403 no")


@pytest.mark.parametrize(
    ("old", "following", "new"),
    [
        ({"status": "timeout"}, None, ("retryable", "timeout")),
        ({"status": "timeout", "error_message": "socket hang up"}, None, ("retryable", "network")),
        ({"status": "malformed"}, None, ("retryable", "malformed")),
        ({"status": "auth"}, None, ("fatal", "auth")),
        ({"status": "failed"}, None, ("retryable", "network")),
        ({"status": "failed"}, event(type="request_begin"), ("retryable", "network")),
        ({"status": "failed"}, event(type="abort", reason="aborted by user"), ("retryable", "network")),
        ({"status": "failed"}, REFUSED, ("fatal", "rejected")),
        ({"status": "failed", "error_code": "kept"}, None, ("retryable", "kept")),
        ({"status": "completed"}, None, ("completed", None)),
        ({"status": "aborted"}, REFUSED, ("aborted", None)),
    ],
)
def test_old_ends_of_requests(old: dict[str, Any], following: r.Record | None, new: tuple[str, str | None]) -> None:
    """Six values become four, and the code says what the old value said."""
    payload = r.modernise(event(type="request_end", **old, attempt=2), following)["payload"]
    assert (payload["status"], payload.get("error_code")) == new
    assert payload["attempt"] == 2


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("text", "timeout", "retryable"),
        ("text", "malformed", "retryable"),
        ("partial_text", "failed", "retryable"),
        ("thinking", "auth", "fatal"),
        ("tool_call_output", "timeout", "fatal"),
        ("tool_call_output", "failed", "fatal"),
        ("tool_call_output", "aborted", "aborted"),
    ],
)
def test_old_stop_reasons_of_messages(kind: str, old: str, new: str) -> None:
    """A message's reason is worth a retry or not; a tool's failure never is."""
    assert r.modernise(changed(kind, stop_reason=old))["payload"]["stop_reason"] == new


@pytest.mark.parametrize(
    ("reason", "pair"),
    [
        ("aborted by user", ("user_abort", None)),
        ("user", ("user_abort", None)),
        ("aborted during reconnect backoff", ("backoff_interrupted", None)),
        ("aborted during compaction", ("compaction_interrupted", None)),
        ("llm request error: 401", (None, "llm request error: 401")),
        ("gave up after 5 retries", (None, "gave up after 5 retries")),
        (None, (None, None)),
    ],
)
def test_old_reasons_of_aborts(reason: str | None, pair: tuple[str | None, str | None]) -> None:
    """A user's abort gets its code; what was a failure keeps its text and gets none."""
    payload = r.modernise(event(type="abort", reason=reason))["payload"]
    assert (payload.get("error_code"), payload.get("error_message")) == pair
    assert "reason" not in payload


def test_old_compactions_and_connections() -> None:
    """A failed compaction was worth another try; a server that failed did not connect, its `error` is the message."""
    assert r.modernise(event(type="compaction_end", status="failed"))["payload"]["status"] == "retryable"
    server = {"server": "s", "transport": "stdio", "status": "failed", "duration_ms": 1, "error": "gone"}
    payload = r.modernise(event(type="mcp_connect_end", status="failed", results=[server]))["payload"]
    assert payload["status"] == "fatal"
    [entry] = payload["results"]
    assert (entry["status"], entry["error_code"], entry["error_message"]) == ("fatal", "connect_failed", "gone")
    assert "error" not in entry


def test_old_fields_of_a_meta_are_ignored() -> None:
    """The tool list and the thinking level moved out; a source that nobody knows is dropped, one that is known stays."""
    meta = r.session_meta("s", provider="p", model_id="m", source="schedule")
    assert r.modernise(meta) is meta
    old = {**meta, "payload": {**meta["payload"], "tools": [], "thinking_level": "high", "source": "moon"}}
    assert set(meta["payload"]) - set(r.modernise(old)["payload"]) == {"source"}
    assert "tools" in old["payload"]


@pytest.mark.parametrize("kind", BUILT)
def test_what_is_new_stays_the_same_object(kind: str) -> None:
    """Nothing that we write is in the old spelling."""
    assert r.modernise(BUILT[kind]) is BUILT[kind]


@pytest.mark.parametrize("payload", [{"type": "goal_finished", "outcome": "met"}, {"status": ["failed"]}, {"type": []}])
def test_what_cannot_be_read_is_left_alone(payload: dict[str, Any]) -> None:
    """Kinds of an earlier time that have no later one, and damage, come back as they are."""
    record = event(**payload)
    assert r.modernise(record) is record
