"""Resume: what was committed comes back, legal for every provider, whatever a file lacks."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import TraceLocked, TraceReadError
from agentloop.messages import (
    AssistantMessage,
    CustomMessage,
    Image,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
    user,
)
from agentloop.omni.custom import MessageRegistry
from agentloop.omni.jsonl import dumps
from agentloop.omni.records import (
    Record,
    abort,
    agent_end,
    agent_start,
    approval_decision,
    approval_request,
    assistant_text,
    compaction_begin,
    compaction_end,
    custom_message,
    hook,
    image_url,
    message_end,
    message_start,
    reply_end,
    request_begin,
    request_end,
    session_meta,
    thinking,
    token_usage,
    tool_call,
    tool_call_output,
    tool_execution_end,
    tool_execution_start,
    tool_list_ready,
    turn_end,
    turn_start,
    user_text,
    with_origin,
)
from agentloop.omni.resume import (
    MASKED,
    PLACEHOLDER,
    UNKNOWN_OUTCOME,
    OpenCall,
    Resumed,
    closing_record,
    reopen,
    resumable_meta,
    resume,
    resume_file,
    resume_session,
    summary_text,
    to_json,
)
from agentloop.omni.trace import TraceWriter, read, trace_path

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
META = session_meta("s1", provider="p", model_id="m", workspace="")
PROMPT = user_text("Do it.")
BEGIN, END = request_begin(), request_end()
FAILED = request_end("retryable", attempt=1, retry_in_ms=2000, error_code="network")
CALLS = [BEGIN, tool_call("read", '{"n":1}', "a"), tool_call("list", "{}", "b"), END]


def sketch(records: Iterable[Record]) -> list[str]:
    """One short line a record: `user: text`, `call a`, `a= output`."""
    lines = []
    for item in records:
        p = item["payload"]
        kind = p["type"]
        if kind == "tool_call":
            lines.append(f"call {p['tool_call_id']}")
        elif kind == "tool_call_output":
            lines.append(f"{p['tool_call_id']}= {'…' if p['output'] == PLACEHOLDER else p['output']}")
        else:
            lines.append(f"{p['role']}: {p.get('text') or p.get('thinking') or p.get('image_url')}")
    return lines


def out(call: str, text: str = "out") -> Record:
    return tool_call_output(call, text)


def usage(session: int, request: int) -> Record:
    return token_usage(Usage(cache_write=session), Usage(cache_write=request))


def sketched(*records: Record) -> tuple[list[str], list[str]]:
    resumed = resume(records)
    return sketch(resumed.history), sketch(resumed.carry_over)


# ---------------------------------------------------------------- what their own reader makes of the samples


def objects(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        value, at = decoder.raw_decode(text, at)
        while at < len(text) and text[at].isspace():
            at += 1
        yield value


def sample_files(shared: Path) -> list[Path]:
    return sorted((shared / "traces").glob("*/session-*.jsonl"))


def test_samples(shared: Path) -> None:
    """33 to 48, 52: every sample gives what is expected: history and carry-over (as sets; ours stand in call order),
    closure, summary and counters."""
    expected = {}
    for path in (shared / "traces").glob("*/expected.json"):
        expected |= {(path.parent.name, value["file"]): value["resume"] for value in objects(path.read_text())}
    assert len(sample_files(shared)) >= 14
    for path in sample_files(shared):
        got, want = to_json(resume_file(path)), expected[path.parent.name, path.name]
        for key in ("context_closed", "session_turns", "session_tokens", "last_request_total"):
            assert got[key] == want[key], (path, key)
        for key in ("history", "carry_over"):
            rows = [sorted(json.dumps(item["payload"], sort_keys=True) for item in side[key]) for side in (got, want)]
            assert rows[0] == rows[1], (path, key)
        told = [side["pending_summary"] and side["pending_summary"]["payload"] for side in (got, want)]
        assert told[0] == told[1], path


def test_the_object_is_json(shared: Path) -> None:
    """`to_json` is one JSON object whose records are the file's own bytes, but for what was made for a missing
    output."""
    for path in sample_files(shared):
        lines = set(path.read_bytes().split(b"\n"))
        value = to_json(resume_file(path))
        dumps(value)
        for item in value["history"] + value["carry_over"]:
            assert dumps(item) in lines or item["payload"]["output"] == PLACEHOLDER


# ---------------------------------------------------------------- legality, whatever is missing


def check_legal(resumed: Resumed) -> None:
    """40: no orphan output, no unanswered call, no double answer; outputs behind their calls, in call order, before
    inputs."""
    waiting: list[str] = []
    seen: set[str] = set()
    for item in [*resumed.history, *resumed.carry_over]:
        payload = item["payload"]
        if payload["type"] == "tool_call":
            assert payload["tool_call_id"] not in seen
            seen.add(payload["tool_call_id"])
            waiting.append(payload["tool_call_id"])
        elif payload["type"] == "tool_call_output":
            assert waiting.pop(0) == payload["tool_call_id"]
        elif payload["role"] == "user":
            assert waiting == []
    assert waiting == []
    check_messages(resumed)


def check_messages(resumed: Resumed) -> None:
    """The same of the messages: each call has one result or is open, results stand behind their reply in call order."""
    unanswered: list[str] = []
    for message in [*resumed.messages, *resumed.inputs]:
        if isinstance(message, ToolResultMessage):
            assert message.tool_call_id in unanswered
            del unanswered[: unanswered.index(message.tool_call_id) + 1]
        elif isinstance(message, AssistantMessage):
            assert message.content
            unanswered = [call.id for call in message.tool_calls]
    reply = next((m for m in reversed(resumed.messages) if isinstance(m, AssistantMessage)), None)
    calls = [call.id for call in reply.tool_calls] if reply else []
    answered = [m.tool_call_id for m in resumed.messages if isinstance(m, ToolResultMessage)]
    assert [call.id for call in resumed.calls] == [call for call in calls if call not in answered]
    settled = [m.tool_call_id for m in resumed.settled(lambda name: "never") if isinstance(m, ToolResultMessage)]
    runnable = {call.id for call in resumed.calls if not call.started}
    assert [call for call in calls if call not in runnable] == settled[len(settled) - (len(calls) - len(runnable)) :]


def full_run() -> list[Record]:
    """A run of ours by hand: a retry, two calls of which one is denied, steering with an image, a given-up
    compaction, an aborted reply."""
    return [
        META, agent_start(), turn_start(0), message_start("user"), PROMPT, message_end(),
        tool_list_ready([ToolSpec("read"), ToolSpec("list")]),
        request_begin(), message_start("assistant", provider="p", model="m"), assistant_text("Half", stop_reason="retryable"),
        tool_call("read", "{}", "z"), reply_end("retryable", None, error_code="network"), FAILED,
        request_begin(2), message_start("assistant", provider="p", model="m"), thinking("Hm.", fidelity={"sig": 1.0}),
        tool_call("read", '{"n":1}', "a"), tool_call("list", "{}", "b"),
        reply_end("completed", "tool_use", usage=Usage(output=3)),
        usage(10, 10), request_end(attempt=2),
        approval_request("a", "read", '{"n":1}'), approval_decision("allow", "a", arguments='{"n":1}'),
        tool_execution_start("a", "read", '{"n":1}'),
        approval_request("b", "list", "{}"), approval_decision("deny", "b", arguments="{}"),
        tool_execution_start("b", "list", "{}"),
        tool_call_output("b", "Tool call denied by user.", stop_reason="aborted"),
        tool_execution_end("b", "list", is_error=True, error_code="denied"),
        out("a", "one"), tool_execution_end("a", "read", details={"took": 1}),
        message_start("tool_result", tool_call_id="a"), message_end(), message_start("tool_result", tool_call_id="b"),
        message_end(), turn_end(),
        turn_start(1), message_start("user"), user_text("[user_steering]\nFast.\n[/user_steering]"),
        image_url("data:image/png;base64,AA"), message_end(), request_begin(),
        message_start("assistant", provider="p", model="m"), assistant_text("Done."), reply_end("completed", "stop"),
        usage(30, 20), request_end(), turn_end(),
        compaction_begin("context", "summarize", context=20, turns=2), message_start("user"), user_text("Summarise."),
        message_end(), request_begin(), message_start("assistant", provider="p", model="m"), tool_call("read", "{}", "c"),
        reply_end("completed", "tool_use"), usage(60, 30), request_end(), tool_execution_start("c", "read", "{}"),
        tool_call_output("c", "no tools here", stop_reason="fatal"), tool_execution_end("c", "read", is_error=True),
        message_start("tool_result", tool_call_id="c"), message_end(),
        compaction_end("context", "summarize", "retryable", attempt=1, error_code="malformed"), agent_end(),
        agent_start(), turn_start(0), message_start("user"), user_text("More."), message_end(), request_begin(),
        message_start("assistant", provider="p", model="m"), assistant_text("Mo", stop_reason="aborted"),
        reply_end("aborted", None, error_code="user_abort"), request_end("aborted", attempt=1), turn_end(),
        abort("user_abort"), agent_end("aborted", error_code="user_abort"),
    ]  # fmt: skip


def test_any_line_may_be_missing(shared: Path) -> None:
    """40: drop any one line of any sample, any two, or cut anywhere: still legal."""
    for path in sample_files(shared):
        records = list(read(path))
        for gap in range(len(records)):
            check_legal(resume(records[:gap]))
            check_legal(resume(records[:gap] + records[gap + 1 :]))
            for second in range(gap, len(records), 3):
                check_legal(resume(records[:gap] + records[gap + 1 : second] + records[second + 1 :]))


def test_any_line_of_ours_may_be_missing() -> None:
    """40: the same of a run of ours, with its lifecycle."""
    records = full_run()
    for gap in range(len(records)):
        check_legal(resume(records[:gap]))
        check_legal(resume(records[:gap] + records[gap + 1 :]))
        for second in range(gap, len(records), 5):
            check_legal(resume(records[:gap] + records[gap + 1 : second] + records[second + 1 :]))


def test_cut_at_every_byte(shared: Path, tmp_path: Path) -> None:
    """21, C127: each sample, cut anywhere (at every byte in the slow profile), is resumed without a crash, and what was
    complete is kept."""
    for path in sample_files(shared):
        data = path.read_bytes()
        cut = tmp_path / path.name
        known: dict[int, Any] = {}
        for end in range(0, len(data) + 1, 1 if SLOW else 53):
            cut.write_bytes(data[:end])
            resumed = resume_file(cut)
            check_legal(resumed)
            complete = len(list(read(cut)))
            value = known.setdefault(complete, to_json(resumed))
            assert value == to_json(resumed)


_POOL = [
    *full_run(), *CALLS, out("a"), out("b"), out("a", "again"), out("zz"), request_end("aborted"),
    compaction_begin("turns", "discard"), compaction_end("turns", "discard", "completed"),
    compaction_end("context", "summarize", "completed"), tool_call("read", "{}", "a", stop_reason="aborted"),
    with_origin(user_text("child"), "s2"), custom_message("note", {"n": 1}),
]  # fmt: skip


@given(st.lists(st.sampled_from(_POOL), max_size=40))
def test_any_records_in_any_order(records: list[Record]) -> None:
    """40: whatever stands in a file, in whatever order, what comes out is legal; and twice the same."""
    resumed = resume(records)
    check_legal(resumed)
    assert to_json(resume(records)) == to_json(resumed)


_KEYS = st.sampled_from(["type", "role", "x", "tools", "session", "content", "summary", "arguments"])
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_hostile_fields(data: st.DataObject) -> None:
    """31, 40: fields of the wrong type, anywhere in any record, are no crash."""
    records = [json.loads(dumps(item)) for item in full_run()]
    for _ in range(data.draw(st.integers(1, 4))):
        payload = data.draw(st.sampled_from(records))["payload"]
        payload[data.draw(st.sampled_from([*payload, "x", "fidelity", "sender", "images"]))] = data.draw(_JUNK)
    check_legal(resume(records))


@pytest.mark.parametrize("content", [None, "0", 5, [5], [None], [{}], {"a": 1}, [{"type": "text"}], [{"type": []}]])
def test_blocks_of_an_output_that_make_no_sense(content: object) -> None:
    """What another writer put under `x.content`: the output's own text stands."""
    records = [json.loads(dumps(item)) for item in full_run()]
    outputs = [record["payload"] for record in records if record["payload"].get("type") == "tool_call_output"]
    for payload in outputs:
        payload["x"] = {"content": content}
    resumed = resume(records)
    check_legal(resumed)
    said = [message.text for message in resumed.messages if isinstance(message, ToolResultMessage)]
    assert [payload["output"] for payload in outputs if payload["output"] in said] == [p["output"] for p in outputs]


# ---------------------------------------------------------------- turns, one rule at a time


def test_committed_turns_and_trailing_input() -> None:
    """33: committed turns make up the history; what follows is carried over."""
    assert sketched(META, PROMPT, BEGIN, assistant_text("Yes."), END, user_text("And?")) == (
        ["user: Do it.", "assistant: Yes."],
        ["user: And?"],
    )


def test_a_failed_turn_leaves_no_trace() -> None:
    """34: the input of a turn that was retried stands once, before the retry's answer; the half answer is gone."""
    assert sketched(PROMPT, BEGIN, assistant_text("Ye"), FAILED, BEGIN, FAILED, BEGIN, assistant_text("Yes."), END) == (
        ["user: Do it.", "assistant: Yes."],
        [],
    )


def test_a_request_without_an_end() -> None:
    """35: not committed: its input is carried over, what it had produced is lost; a next `request_begin` drops it
    too."""
    assert sketched(PROMPT, BEGIN, assistant_text("Ye")) == ([], ["user: Do it."])
    assert sketched(PROMPT, BEGIN, assistant_text("Ye"), BEGIN, assistant_text("Yes."), END)[0] == [
        "user: Do it.",
        "assistant: Yes.",
    ]


def test_outputs_survive_a_later_failed_turn() -> None:
    """36: outputs that answer a committed call come back when the turn they were sent with failed."""
    assert sketched(PROMPT, *CALLS, out("a"), out("b"), BEGIN, assistant_text("Hm"), request_end("aborted"))[1] == [
        "a= out",
        "b= out",
    ]


def test_outputs_of_a_dropped_turn_never_come_back() -> None:
    """37: outputs of calls that were not committed are gone, whether they landed before or after the end of their
    turn; also when the retry's call has the same id."""
    half = [BEGIN, tool_call("read", "{}", "a")]
    assert sketched(PROMPT, *half, out("a", "old"), FAILED) == ([], ["user: Do it."])
    assert sketched(PROMPT, *half, FAILED, out("a", "old")) == ([], ["user: Do it."])
    for early in ([out("a", "old"), FAILED], [FAILED, out("a", "old")]):
        history, carried = sketched(PROMPT, *half, *early, *half, END, out("a", "new"))
        assert (history, carried) == (["user: Do it.", "call a"], ["a= new"])
    late = [BEGIN, out("a", "old"), *half[1:], END, out("a", "new")]
    assert sketched(PROMPT, *half, FAILED, *late)[1] == ["a= new"]


def test_missing_outputs_get_placeholders() -> None:
    """38, 41: a committed call without an output gets one placeholder, `aborted`, in its place in call order: in the
    history when a later turn was committed, else carried over."""
    assert sketched(PROMPT, *CALLS, out("b"))[1] == ["a= …", "b= out"]
    history, carried = sketched(PROMPT, *CALLS, out("b"), BEGIN, assistant_text("Ok."), END, out("a", "late"))
    assert history[3:] == ["a= …", "b= out", "assistant: Ok."]
    assert carried == []
    placeholder = resume([PROMPT, *CALLS]).carry_over[0]
    assert placeholder["payload"]["stop_reason"] == "aborted"
    assert placeholder["timestamp"] == CALLS[1]["timestamp"]


def test_input_between_begin_and_end_belongs_to_the_next_request() -> None:
    """39: what a user says, or a tool gives, while a request runs goes with the next one."""
    history, carried = sketched(
        PROMPT,
        BEGIN,
        tool_call("read", "{}", "a"),
        out("a"),
        user_text("Wait."),
        END,
        BEGIN,
        assistant_text("Ok."),
        END,
    )
    assert history == ["user: Do it.", "call a", "a= out", "user: Wait.", "assistant: Ok."]
    assert carried == []


def test_outputs_come_in_call_order_before_inputs() -> None:
    """41 (ours): outputs stand in call order, whatever the order in the file, and before any input."""
    records = [PROMPT, *CALLS, user_text("Steer."), out("b"), out("a")]
    assert sketched(*records)[1] == ["a= out", "b= out", "user: Steer."]
    assert sketched(*records, BEGIN, assistant_text("Ok."), END)[0][3:] == [
        "a= out",
        "b= out",
        "user: Steer.",
        "assistant: Ok.",
    ]


def test_two_outputs_for_one_call() -> None:
    """40 (ours): of two outputs for one call the first counts."""
    assert sketched(PROMPT, *CALLS, out("a", "first"), out("a", "second"), out("b"))[1] == ["a= first", "b= out"]


def test_an_id_that_returns() -> None:
    """C101 (ours): calls of several turns with one id, as another writer may have them, pair each with its own
    output, and are told apart in what comes back."""
    turn = [BEGIN, tool_call("t", "{}", "Z"), END]
    history, carried = sketched(PROMPT, *turn, out("Z", "1"), *turn, out("Z", "2"), BEGIN, assistant_text("Done."), END)
    assert history == ["user: Do it.", "call Z", "Z= 1", "call Z#2", "Z#2= 2", "assistant: Done."]
    history, carried = sketched(PROMPT, BEGIN, tool_call("t", "{}", "Z"), tool_call("t", "{}", "Z"), END, out("Z", "1"))
    assert (history[1:], carried) == (["call Z", "call Z#2"], ["Z= 1", "Z#2= …"])


def test_calls_that_are_not_complete() -> None:
    """5 of "what theirs gets less right" (ours): a call without a stop_reason counts as complete and is answered; one
    that was cut is not in the history."""
    bare = tool_call("read", "{}", "a")
    del bare["payload"]["stop_reason"]
    assert sketched(PROMPT, BEGIN, bare, tool_call("list", "{", "b", stop_reason="aborted"), END) == (
        ["user: Do it.", "call a"],
        ["a= …"],
    )


def test_what_is_not_of_the_session() -> None:
    """8 (origin), 9: records with an origin, fragments, unknown events and messages outside a request say nothing."""
    strange: Record = {"type": "event_msg", "payload": {"type": "later", "status": "completed", "role": "user"}}
    child = [
        with_origin(item, "s2")
        for item in (user_text("x"), BEGIN, assistant_text("y"), END, session_meta("s2", provider="p", model_id="m"))
    ]
    assert sketched(
        *child,
        META,
        PROMPT,
        *child,
        strange,
        BEGIN,
        *child,
        assistant_text("Yes."),
        strange,
        END,
        assistant_text("Stray."),
    ) == (
        ["user: Do it.", "assistant: Yes."],
        [],
    )
    assert resume([*child, META]).session_id == "s1"


def test_steering_replays_as_input() -> None:
    """47: steering texts and the images behind them are ordinary input; trailing ones are carried over as they are."""
    steering = [user_text("[user_steering]\nFast.\n[/user_steering]"), image_url("data:image/png;base64,AA")]
    resumed = resume([PROMPT, BEGIN, assistant_text("Ok."), END, *steering])
    assert sketch(resumed.carry_over) == [
        "user: [user_steering]\nFast.\n[/user_steering]",
        "user: data:image/png;base64,AA",
    ]
    assert resumed.inputs == (
        UserMessage((Text("[user_steering]\nFast.\n[/user_steering]"), Image("data:image/png;base64,AA"))),
    )


def test_counters() -> None:
    """48: turns are committed requests outside compactions; tokens and the context's size are those of the last
    report, with what nested runs spent after it; a second meta is not the session's."""
    span = [user_text("S"), BEGIN, assistant_text("[summary][/summary]"), usage(25, 15), END]
    turn = [META, PROMPT, BEGIN, assistant_text("A"), usage(10, 10), END]
    compaction = [compaction_begin("turns", "summarize"), *span, compaction_end("turns", "summarize", "fatal")]
    records = [*turn, *compaction, session_meta("other", provider="p", model_id="m")]
    resumed = resume(records)
    assert (resumed.session_turns, resumed.session_tokens, resumed.last_request_total) == (1, Usage(cache_write=25), 15)
    assert resumed.session_id == "s1"
    nested = Usage(1, 2, 3)
    for spent in (
        agent_end("fatal", nested_usage=nested),
        compaction_end("turns", "discard", "completed", nested_usage=nested),
    ):
        assert resume([*turn, spent]).session_tokens == Usage(cache_write=10) + nested
        assert resume([*turn, spent, usage(30, 10)]).session_tokens == Usage(cache_write=30)
        counts = {"cache_read": 1, "cache_write": 2, "output": 3, "total": 6}
        for odd in ({**counts, "cost": "5"}, {**counts, "total": "6"}, {"total": 6}, 6, None):
            payload = {**spent["payload"], "nested_usage": odd}
            if spent["payload"]["type"] == "compaction_end":
                payload = {**spent["payload"], "x": {"nested_usage": odd}}
            told = nested if isinstance(odd, dict) and "cost" in odd else Usage()
            assert resume([*turn, {**spent, "payload": payload}]).session_tokens == Usage(cache_write=10) + told
    empty = resume([])
    assert (empty.session_turns, empty.session_tokens, empty.last_request_total, empty.meta) == (0, Usage(), 0, None)


# ---------------------------------------------------------------- compactions


def closed(*behind: Record, summary: str = "[summary]S[/summary]", mode: Any = "summarize", **options: Any) -> Resumed:
    span = [
        compaction_begin("context", mode),
        user_text("Summarise."),
        BEGIN,
        assistant_text(summary),
        usage(30, 20),
        END,
    ]
    end = compaction_end("context", mode, "completed", **options)
    return resume(
        [
            META,
            PROMPT,
            BEGIN,
            assistant_text("A"),
            usage(10, 10),
            END,
            *(span if mode == "summarize" else []),
            end,
            *behind,
        ]
    )


def text_of_summary(resumed: Resumed) -> Any:
    assert resumed.pending_summary is not None
    assert resumed.summary is not None
    assert resumed.summary.text == resumed.pending_summary["payload"]["text"]
    return resumed.summary.text


def test_a_file_that_ends_with_a_summary() -> None:
    """42: history empty, turns and context size 0, tokens go on, the summary is rebuilt; with discard nothing is
    pending."""
    resumed = closed()
    assert (resumed.context_closed, resumed.history, resumed.carry_over) == (True, (), ())
    assert (resumed.session_turns, resumed.last_request_total, resumed.session_tokens) == (0, 0, Usage(cache_write=30))
    assert text_of_summary(resumed) == "[context_summary]\nS\n[/context_summary]"
    resumed = closed(mode="discard")
    assert (resumed.context_closed, resumed.pending_summary, resumed.history, resumed.messages) == (True, None, (), ())


def test_what_may_stand_behind_a_closure() -> None:
    """43 (ours): events behind a completed compaction do not undo it; a request, a message or a meta does."""
    events: list[Record] = [
        hook("stop", "h"),
        abort("user_abort"),
        agent_end(),
        {"type": "event_msg", "payload": {"type": "later"}},
    ]
    assert closed(*events).context_closed
    for record in (BEGIN, user_text("x"), META, custom_message("note", {})):
        assert not closed(*events, record).context_closed


def test_an_empty_summary_is_no_closure() -> None:
    """44: a completed compaction without any text leaves the old context in force."""
    resumed = closed(summary=" \n")
    assert not resumed.context_closed
    assert sketch(resumed.history)[:2] == ["user: Do it.", "assistant: A"]
    assert resumed.pending_summary is None


def test_a_recorded_summary_counts() -> None:
    """`x.summary` is the summary's text, as it was; where it is of no use the reply's text is taken."""
    end = compaction_end("context", "summarize", "completed", summary="As it was.")
    resumed = resume([META, PROMPT, BEGIN, assistant_text("A"), END, end])
    assert text_of_summary(resumed) == "As it was."
    for junk in (3, [], {"content": 3}, {"content": [{"type": 3}]}):
        end["payload"]["x"] = {"summary": junk}
        assert (
            text_of_summary(resume([META, PROMPT, BEGIN, assistant_text("A"), END, end]))
            == "[context_summary]\nA\n[/context_summary]"
        )


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("[summary]a[/summary]", "a"),
        ("x [summary] \n [/summary] y [summary]\nb\n[/summary] z", "b"),
        ("<summary>c</summary>", "c"),
        ("[summary]half", "half"),
        ("plain", "plain"),
        ("[summary][/summary]", "[summary][/summary]"),
        (" \n ", ""),
        ("[/summary]d[summary]", "d"),
    ],
)
def test_summary_text(text: str, summary: str) -> None:
    """17: the first block that is not blank, else the text without tags, else the text."""
    assert summary_text(text) == summary


def test_an_abandoned_compaction() -> None:
    """45: a prompt that was not committed is not in the history, nor (ours) one whose request never began; a rejected
    attempt that was committed is, with the answers to its calls; neither counts a turn. What waited before is kept
    (ours)."""
    before = [META, PROMPT, BEGIN, assistant_text("A"), END, user_text("Waits.")]
    span = [compaction_begin("manual", "summarize"), user_text("Summarise.")]
    given_up = compaction_end("manual", "summarize", "retryable")
    failed = [BEGIN, assistant_text("S"), FAILED, given_up]
    for inside in ([], [given_up], failed, [BEGIN]):
        resumed = resume([*before, *span, *inside])
        assert sketch(resumed.history) == ["user: Do it.", "assistant: A"]
        assert sketch(resumed.carry_over) == ["user: Waits."]
        assert resumed.session_turns == 1
    rejected = [BEGIN, tool_call("read", "{}", "c"), END, tool_call_output("c", "no tools", stop_reason="fatal")]
    resumed = resume([*before, *span, *rejected, user_text("Again."), given_up])
    assert sketch(resumed.history)[2:] == ["user: Waits.", "user: Summarise.", "call c"]
    assert sketch(resumed.carry_over) == ["c= no tools"]
    assert resumed.session_turns == 1


def test_an_open_compaction_is_closed_once(tmp_path: Path) -> None:
    """46, 49: an open compaction is reported, its draft dropped; going on closes it once, as `retryable`, before
    anything else; resuming writes nothing else."""
    with TraceWriter(tmp_path, META) as trace:
        draft = [compaction_begin("turns", "summarize"), user_text("S"), BEGIN, assistant_text("dra")]
        for record in (PROMPT, BEGIN, assistant_text("A"), END, *draft):
            trace.write(record)
    assert trace.file is not None
    before = trace.file.read_bytes()
    resumed = resume_session(tmp_path, "s1")
    assert sketch(resumed.history) == ["user: Do it.", "assistant: A"]
    assert (resumed.carry_over, resumed.context_closed) == ((), False)
    assert trace.file.read_bytes() == before
    for _ in range(2):
        _, writer = reopen(tmp_path, "s1")
        writer.close()
    added = [json.loads(line)["payload"] for line in trace.file.read_bytes()[len(before) :].splitlines()]
    assert added == [{"type": "compaction_end", "reason": "turns", "mode": "summarize", "status": "retryable"}]
    assert closing_record(resume_session(tmp_path, "s1")) is None
    assert sketch(resume_session(tmp_path, "s1").history) == ["user: Do it.", "assistant: A"]


def test_a_span_whose_end_is_missing() -> None:
    """A turn of ours ends a compaction that was left open: what is said in it is conversation again, and counts."""
    crashed = [PROMPT, BEGIN, assistant_text("A"), END, compaction_begin("turns", "summarize"), user_text("S"), BEGIN]
    resumed = resume([META, *crashed, agent_start(), turn_start(0), user_text("New."), BEGIN, assistant_text("B"), END])
    assert sketch(resumed.history) == ["user: Do it.", "assistant: A", "user: New.", "assistant: B"]
    assert resumed.session_turns == 2


def test_legacy_spelling() -> None:
    """52: old stop reasons, a reason on abort, old places in the meta and `goal_finished` are read; records stay as
    they are."""
    meta = {**META, "payload": {**META["payload"], "tools": [], "thinking_level": "high"}}
    old_end: Record = {
        "type": "event_msg",
        "payload": {"type": "request_end", "status": "failed", "error_message": "x", "attempt": 1},
    }
    goal: Record = {"type": "event_msg", "payload": {"type": "goal_finished", "outcome": "done", "rounds": 1}}
    failed = tool_call_output("a", "boom", stop_reason="failed")  # type: ignore[arg-type]
    old_abort: Record = {"type": "event_msg", "payload": {"type": "abort", "reason": "aborted by user"}}
    resumed = resume(
        [
            meta,
            PROMPT,
            BEGIN,
            assistant_text("x"),
            old_end,
            goal,
            BEGIN,
            tool_call("t", "{}", "a"),
            END,
            failed,
            old_abort,
        ]
    )
    assert sketch(resumed.history) == ["user: Do it.", "call a"]
    assert resumed.carry_over == (failed,)
    assert resumed.messages[-1] == ToolResultMessage("a", "t", "boom", is_error=True, stop_reason="fatal")


# ---------------------------------------------------------------- messages


def test_messages_of_another_writer() -> None:
    """Blocks of one side without an event between are one message; the meta says whose the replies are; an event or
    another sender begins a new one."""
    inputs = [user_text("a"), image_url("http://x/i.png"), user_text("b", sender="harness"), tool_list_ready([])]
    reply = [thinking("t", fidelity={"s": 1.0}), assistant_text("d"), tool_call("r", "{}", "q"), usage(5, 5)]
    resumed = resume([META, *inputs, user_text("c"), BEGIN, *reply, END, out("q")])
    assert resumed.messages == (
        UserMessage((Text("a"), Image("http://x/i.png"))),
        UserMessage("b", "harness"),
        UserMessage("c"),
        AssistantMessage(
            (Thinking("t", {"s": 1.0}), Text("d"), ToolCall("q", "r", "{}")),
            "completed", "tool_use", Usage(cache_write=5), "p", "m",
        ),
        ToolResultMessage("q", "r", "out"),
    )  # fmt: skip
    assert (resumed.ours, resumed.calls, resumed.inputs) == (False, (), ())


def test_messages_of_ours() -> None:
    """What the lifecycle records say comes back: provider, model, finish, usage, details, sender, blocks under `x`."""
    resumed = resume(full_run())
    replies = [m for m in resumed.messages if isinstance(m, AssistantMessage)]
    assert replies[0] == AssistantMessage(
        (Thinking("Hm.", {"sig": 1.0}), ToolCall("a", "read", '{"n":1}'), ToolCall("b", "list", "{}")),
        "completed", "tool_use", Usage(output=3), "p", "m",
    )  # fmt: skip
    results = [m for m in resumed.messages if isinstance(m, ToolResultMessage)]
    assert [(m.tool_call_id, m.tool_name, m.details, m.is_error, m.stop_reason) for m in results] == [
        ("a", "read", {"took": 1}, False, "completed"),
        ("b", "list", None, True, "aborted"),
        ("c", "read", None, True, "fatal"),
    ]
    assert resumed.inputs == (user("More."),)
    assert resumed.ours
    assert [item["payload"]["type"] for item in resumed.opening] == ["tool_list_ready"]


@attrs.frozen
class Note(CustomMessage):
    role: ClassVar[str] = "note"
    text: str


def test_custom_messages_walk_like_inputs() -> None:
    """records.md: a custom message comes back in its place, as its class or opaque; the protocol's records are
    without it."""
    note = [message_start("note"), custom_message("note", {"text": "hi"}), message_end()]
    records = [
        META,
        agent_start(),
        turn_start(0),
        message_start("user"),
        PROMPT,
        message_end(),
        *note,
        BEGIN,
        assistant_text("A"),
        END,
        *note,
    ]
    registry = MessageRegistry()
    registry.register(Note)
    resumed = resume(records, registry)
    assert resumed.messages[:2] == (user("Do it."), Note("hi"))
    assert resumed.inputs == (Note("hi"),)
    assert sketch(resumed.history) == ["user: Do it.", "assistant: A"]
    assert resumed.carry_over == ()
    assert resume(records).inputs == (OpaqueMessage("note", {"text": "hi"}),)


# ---------------------------------------------------------------- calls that a crash left open

OURS = [META, agent_start(), turn_start(0), message_start("user"), PROMPT, message_end(), *CALLS]


def asked(call: str, decision: str, shown: str | None = "{}") -> list[Record]:
    return [approval_request(call, "t", shown or "{}"), approval_decision(decision, call, arguments=shown)]


def test_calls_that_did_not_start() -> None:
    """records.md: a committed call without a `tool_execution_start` did not run: it stays open; a recorded `allow` is
    kept with the arguments that were shown. The protocol's records have placeholders."""
    resumed = resume([*OURS, *asked("a", "allow", '{"n":2}')])
    assert resumed.calls == (
        OpenCall("a", "read", '{"n":1}', False, '{"n":2}'),
        OpenCall("b", "list", "{}", False, None),
    )
    assert isinstance(resumed.messages[-1], AssistantMessage)
    assert resumed.settled() == resumed.messages
    assert sketch(resumed.carry_over) == ["a= …", "b= …"]


def test_calls_whose_outcome_is_unknown() -> None:
    """records.md: started without an output: `never` gives an error result in its place, `safe` leaves the call
    open."""
    resumed = resume([*OURS, tool_execution_start("a", "read", "{}"), out("b"), tool_execution_end("b", "list")])
    assert [(call.id, call.started) for call in resumed.calls] == [("a", True)]
    unknown = ToolResultMessage("a", "read", UNKNOWN_OUTCOME, is_error=True, stop_reason="fatal")
    assert resumed.settled()[-2:] == (unknown, ToolResultMessage("b", "list", "out"))
    assert resumed.settled(lambda name: "safe" if name == "read" else "never") == resumed.messages


def test_a_finished_call_does_not_run_again() -> None:
    """A call whose output is on disk is done, even if the crash came before its end was written."""
    resumed = resume([*OURS, tool_execution_start("a", "read", "{}"), out("a")])
    assert [call.id for call in resumed.calls] == ["b"]
    assert resumed.messages[-1] == ToolResultMessage("a", "read", "out")


def test_recorded_denials() -> None:
    """records.md: a recorded `deny` or `forbidden` gives its fixed output, also when the crash came behind the start;
    a hook's has the hook's words."""
    for decision, words in (("deny", "user"), ("forbidden", "policy")):
        for behind in ([], [tool_execution_start("a", "read", "{}")]):
            resumed = resume([*OURS, *asked("a", decision), *behind])
            assert resumed.messages[-1] == ToolResultMessage(
                "a", "read", f"Tool call denied by {words}.", is_error=True, stop_reason="aborted"
            )
            assert [call.id for call in resumed.calls] == ["b"]
    denied = [
        hook("pre_tool_use", "guard", decision="deny", reason="not today", tool_call_id="b"),
        approval_decision("deny", "b"),
    ]
    assert resume([*OURS, *denied]).messages[-1].text == "Tool call denied by the guard hook: not today."  # type: ignore[union-attr]


def test_a_question_that_was_asked_again_counts() -> None:
    """A later question voids an earlier answer."""
    resumed = resume([*OURS, *asked("a", "allow"), approval_request("a", "t", '{"other":1}')])
    assert resumed.calls[0].approved is None


def test_masked_arguments_do_not_run() -> None:
    """A call whose recorded arguments hold a mask is not run with it: it gets an error result."""
    resumed = resume([META, agent_start(), PROMPT, BEGIN, tool_call("t", '{"k":"[masked api key]"}', "a"), END])
    assert resumed.settled()[-1] == ToolResultMessage("a", "t", MASKED, is_error=True, stop_reason="fatal")


def test_calls_of_another_writer_get_placeholders() -> None:
    """Without lifecycle records nobody can say what ran: placeholders, and no open calls."""
    resumed = resume([META, PROMPT, *CALLS, *asked("a", "allow")[1:]])
    assert resumed.calls == ()
    assert [m.text for m in resumed.messages if isinstance(m, ToolResultMessage)] == [PLACEHOLDER] * 2


# ---------------------------------------------------------------- files and sessions


def put(traces: Path, index: int, *records: Record, day: str = "2026-09-01") -> Path:
    path = trace_path(traces, day, "s1", index)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dumps(item) + b"\n" for item in records))
    return path


def test_a_session_is_its_newest_file(tmp_path: Path) -> None:
    """13: the highest index alone counts, over all day folders."""
    put(tmp_path, 1, META, user_text("old"))
    newest = put(tmp_path, 2, META, user_text("new"), day="2026-08-01")
    resumed = resume_session(tmp_path, "s1")
    assert (sketch(resumed.carry_over), resumed.path) == (["user: new"], newest)


SUMMARY = [
    META,
    PROMPT,
    BEGIN,
    assistant_text("[summary]S[/summary]"),
    usage(30, 20),
    END,
    compaction_end("manual", "summarize", "completed"),
]


def test_a_head_without_conversation(tmp_path: Path) -> None:
    """A newest file with a head alone (a crash right behind a rotation) does not lose the summary that the file
    before holds; the next record opens the file behind it."""
    first = put(tmp_path, 1, *SUMMARY)
    second = put(tmp_path, 2, META, tool_list_ready([]), agent_start())
    resumed = resume_session(tmp_path, "s1")
    assert text_of_summary(resumed) == "[context_summary]\nS\n[/context_summary]"
    _, writer = reopen(tmp_path, "s1")
    with writer:
        writer.write(user_text("[context_summary]\nS\n[/context_summary]"))
    assert writer.file is not None
    assert writer.file.name == "s1_003.jsonl"
    assert sketch(resume_session(tmp_path, "s1").carry_over) == ["user: [context_summary]\nS\n[/context_summary]"]
    assert first.exists()
    assert second.exists()


def test_a_head_behind_an_open_context(tmp_path: Path) -> None:
    """Where the file before is not closed either, it is gone on with."""
    first = put(tmp_path, 1, META, user_text("old"))
    put(tmp_path, 2, META)
    resumed, writer = reopen(tmp_path, "s1")
    with writer:
        writer.write(user_text("new"))
    assert resumed.path == writer.file == first
    assert sketch(resume_session(tmp_path, "s1").carry_over) == ["user: old", "user: new"]


def test_tokens_go_on_over_files(tmp_path: Path) -> None:
    """48: a session's tokens go on across compactions, also while the new file has no report yet."""
    put(tmp_path, 1, *SUMMARY)
    put(tmp_path, 2, META, user_text("[context_summary]\nS\n[/context_summary]"))
    assert resume_session(tmp_path, "s1").session_tokens == Usage(cache_write=30)


def test_going_on_with_a_closed_context(tmp_path: Path) -> None:
    """22: the next record of a closed context opens the next file, with a meta assembled afresh and the tool list
    again."""
    put(tmp_path, 1, META, tool_list_ready([ToolSpec("t")]), *SUMMARY[1:])
    fresh = session_meta("s1", provider="p", model_id="m", system_prompt="afresh")
    resumed, writer = reopen(tmp_path, "s1", meta=fresh)
    with writer:
        assert resumed.context_closed
        writer.write(user_text("next"))
    assert writer.file is not None
    records = list(read(writer.file))
    assert (writer.file.name, records[0]) == ("s1_002.jsonl", fresh)
    assert [item["payload"]["type"] for item in records[1:]] == ["tool_list_ready", "text"]


def test_going_on_twice_at_once_is_refused(tmp_path: Path) -> None:
    """One writer a session: the second is refused, and gets it when the first has closed."""
    put(tmp_path, 1, META, PROMPT)
    _, writer = reopen(tmp_path, "s1")
    with pytest.raises(TraceLocked):
        reopen(tmp_path, "s1")
    writer.close()
    reopen(tmp_path, "s1")[1].close()


def test_refusals(tmp_path: Path) -> None:
    """51: no session, no meta, no provider, a workspace that is gone, a model that is gone: each refusal names its
    reason, and makes nothing."""
    with pytest.raises(TraceReadError, match=r"session s1: expected a trace in .*, got none"):
        reopen(tmp_path / "none", "s1")
    assert not (tmp_path / "none").exists()
    put(tmp_path, 1, PROMPT)
    with pytest.raises(TraceReadError, match="expected a session_meta, got none"):
        reopen(tmp_path, "s1")
    bare = {**META, "payload": {"session_id": "s1", "model_id": "m", "workspace": str(tmp_path / "gone")}}
    put(tmp_path, 1, bare, PROMPT)
    with pytest.raises(TraceReadError, match="expected a session_meta with a provider, got none"):
        reopen(tmp_path, "s1")
    bare["payload"]["provider"] = "p"
    resumed = resume([bare])
    resumable_meta(resumed)
    with pytest.raises(TraceReadError, match=r"workspace .*gone, which is gone"):
        resumable_meta(resumed, workspace=True)
    with pytest.raises(TraceReadError, match="expected a model that is configured, got p:m"):
        resumable_meta(resumed, knows_model=lambda provider, model: False)
    resumable_meta(resumed, knows_model=lambda provider, model: (provider, model) == ("p", "m"))
    put(tmp_path, 1, META, PROMPT)
    reopen(tmp_path, "s1")[1].close()  # no refusal has kept the lock


def test_resuming_twice_gives_the_same(tmp_path: Path) -> None:
    """49: reading changes nothing; damage is reported."""
    path = put(tmp_path, 1, *full_run())
    path.write_bytes(path.read_bytes() + b"{broken\n" + dumps(user_text("x")))
    before = path.read_bytes()
    first, second = resume_file(path), resume_file(path)
    assert first == second
    assert path.read_bytes() == before
    assert first.damage is not None
    assert "skipped 1 damaged line: " in first.damage


def test_linear_time() -> None:
    """10 times the failed prompts, calls and outputs is no more than that many times the work: a hundred thousand
    end."""
    records = [META, agent_start()]
    for number in range(1_500):
        records += [user_text("x"), BEGIN, assistant_text("half"), request_end("fatal")]
        records += [
            user_text("y"),
            BEGIN,
            tool_call("t", "{}", f"c{number}"),
            END,
            tool_execution_start(f"c{number}", "t", "{}"),
        ]
        records += [out(f"c{number}"), tool_execution_end(f"c{number}", "t")]
    records += [record for _ in range(8_000) for record in (BEGIN, tool_call("t", "{}", "Z"), END)]
    failed = list(itertools.chain.from_iterable([user_text("x"), BEGIN, request_end("fatal")] for _ in range(8_000)))
    assert resume([*records, *failed]).session_turns == 9_500


def test_damaged_files(tmp_path: Path) -> None:
    """Fuzz: bit flips, cuts, swaps and foreign JSON in a trace: reading and resuming never crash, and stay legal."""
    chance = random.Random(1)
    whole = b"".join(dumps(item) + b"\n" for item in full_run())
    path = tmp_path / "s1_001.jsonl"
    for _ in range(20_000 if SLOW else 300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            at, kind = chance.randrange(len(data) or 1), chance.randrange(4)
            if kind == 0 and data:
                data[at] ^= 1 << chance.randrange(8)
            elif kind == 1:
                del data[at : at + chance.randrange(400)]
            elif kind == 2:
                other = chance.randrange(len(data) or 1)
                data[at : at + 50], data[other : other + 50] = data[other : other + 50], data[at : at + 50]
            else:
                data[at:at] = chance.choice(
                    [
                        b"null\n",
                        b"[]\n",
                        b'{"payload":{}}\n',
                        b"\n",
                        b"\x00" * 9,
                        b'{"type":"event_msg","payload":{"type":"request_end"}}\n',
                    ]
                )
        path.write_bytes(data)
        check_legal(resume_file(path))
