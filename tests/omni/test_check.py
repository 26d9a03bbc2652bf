"""The protocol's rules: each is broken by one small example, and the samples break none."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentloop.messages import Usage
from agentloop.omni.check import RULES, check_protocol
from agentloop.omni.jsonl import dumps
from agentloop.omni.reader import read
from agentloop.omni.records import (
    Record,
    abort,
    agent_start,
    approval_decision,
    assistant_text,
    compaction_begin,
    compaction_end,
    custom_message,
    mcp_connect_begin,
    mcp_connect_end,
    message_end,
    message_start,
    partial_text,
    partial_tool_call,
    partial_tool_call_output,
    request_begin,
    request_end,
    session_meta,
    subagent,
    token_usage,
    tool_call,
    tool_call_output,
    user_text,
    with_origin,
)

META = session_meta("s1", provider="p", model_id="m")
PROMPT, BEGIN, END = user_text("Go."), request_begin(), request_end()
USED = token_usage(Usage(), Usage())
HEAD = [META, PROMPT]
CALL = [BEGIN, tool_call("t", "{}", "a"), END]
OUT = tool_call_output("a", "x")
YES = [BEGIN, assistant_text("Yes."), USED, END]
STREAMED = [
    partial_text("start"),
    partial_text("delta", "Ye"),
    partial_text("delta", "s."),
    partial_text("stop"),
    assistant_text("Yes."),
]


def rules(*records: Record) -> list[str]:
    return [finding.rule for finding in check_protocol(records)]


def odd(record: Record, **fields: object) -> Record:
    return {**record, "payload": {**record["payload"], **fields}}


def test_samples_keep_the_rules(shared: Path) -> None:
    """4, 10, 12: every sample, file and stream, keeps them; the one with a damaged line lacks the output that was on
    it."""
    found = {}
    for path in sorted((shared / "traces").glob("*/*.jsonl")):
        for finding in check_protocol(read(path)):
            found[path.parent.name[:2], finding.line] = finding.rule
    assert found == {("23", 14): "calls_answered"}


BROKEN: dict[str, list[Record]] = {
    "record": [*HEAD, odd(PROMPT, text=3), *YES],
    "meta_first": [PROMPT, *YES],
    "one_meta": [*HEAD, *YES, META],
    "no_fragments": [*HEAD, BEGIN, *STREAMED, END],
    "no_origin": [*HEAD, with_origin(PROMPT, "s2"), *YES],
    "closed_context": [*HEAD, compaction_begin("manual", "discard"), compaction_end("manual", "discard", "completed"), abort()],
    "input_first": [META, *YES],
    "request_pairs": [*HEAD, BEGIN, *YES],
    "inside_request": [*HEAD, assistant_text("Stray."), *YES],
    "usage_last": [*HEAD, BEGIN, USED, assistant_text("Late."), END],
    "usage_committed": [*HEAD, BEGIN, USED, request_end("fatal")],
    "attempt_counts": [*HEAD, BEGIN, request_end("retryable", retry_in_ms=5), BEGIN, request_end("retryable")],
    "retry_of_failed": [*HEAD, BEGIN, odd(END, retry_in_ms=5)],
    "abort_is_users": [*HEAD, BEGIN, request_end("fatal"), abort("user_abort")],
    "call_id_unique": [*HEAD, *CALL, OUT, *CALL],
    "output_of_call": [*HEAD, OUT, *YES],
    "output_once": [*HEAD, *CALL, OUT, OUT],
    "calls_answered": [*HEAD, *CALL, *YES],
    "approval_of_call": [*HEAD, *CALL, OUT, approval_decision("allow", "a")],
    "approval_once": [*HEAD, *CALL, approval_decision("allow", "a"), approval_decision("deny", "a"), OUT],
    "compaction_pairs": [*HEAD, compaction_begin("manual", "discard"), compaction_end("turns", "discard", "fatal")],
    "mcp_pairs": [*HEAD, mcp_connect_end("completed"), *YES],
    "fragment_start": [BEGIN, *STREAMED[1:], END],
    "fragment_edges": [BEGIN, partial_text("start", "Yes."), *STREAMED[3:], END],
    "fragment_content": [BEGIN, *STREAMED[:2], *STREAMED[3:], END],
    "fragment_reason": [BEGIN, *STREAMED[:4], assistant_text("Yes.", stop_reason="aborted"), END],
    "fragment_followed": [
        BEGIN, *STREAMED[:4], partial_tool_call("start", "a", name="t"), *STREAMED[4:], partial_tool_call("stop", "a"),
        tool_call("t", "", "a"), END,
    ],
    "fragment_closed": [BEGIN, *STREAMED[:3], END],
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_can_be_broken(rule: str) -> None:
    """Each rule finds the example that breaks it, and no other rule does; the finding names the rule and a line."""
    findings = check_protocol(BROKEN[rule])
    assert {finding.rule for finding in findings} == {rule}
    assert str(findings[0]).startswith(f"line {findings[0].line}: {rule}: ")
    assert 1 <= findings[0].line <= len(BROKEN[rule])


def test_what_is_no_finding() -> None:
    """Interleaved producers, retries, late outputs, hidden exchanges of a compaction, a file that ends early, old
    spelling."""
    out = [
        partial_tool_call_output("start", "a"),
        partial_tool_call_output("delta", "a", "x"),
        partial_tool_call_output("stop", "a"),
    ]
    span = [
        compaction_begin("turns", "summarize"),
        *STREAMED[:4],
        USED,
        compaction_end("turns", "summarize", "completed"),
    ]
    stream = [*CALL[:2], out[0], *STREAMED[:2], *out[1:], *STREAMED[2:], USED, END, OUT, *YES, *span, *YES]
    assert rules(*stream) == []
    retried = [
        BEGIN,
        request_end("retryable", retry_in_ms=5),
        BEGIN,
        request_end("retryable", attempt=2, retry_in_ms=5),
    ]
    assert rules(*HEAD, *retried, BEGIN, assistant_text("Yes."), request_end(attempt=3)) == []
    assert (
        rules(*HEAD, mcp_connect_begin(["m"]), mcp_connect_end("completed"), *CALL, approval_decision("allow", "a"))
        == []
    )
    assert rules(*HEAD, BEGIN) == []
    old = [odd(request_end("fatal"), status="failed"), odd(abort(), reason="llm request error: 403")]
    assert rules(*HEAD, BEGIN, *old) == []
    assert rules(*HEAD, BEGIN, agent_start(), PROMPT, *YES) == []


def test_an_input_may_be_a_message_of_the_application() -> None:
    """One alone, which its `convert_to_llm` shows to the model: the protocol has no record of it. A reply is no input."""
    given = [message_start("notice"), custom_message("notice", {"text": "now"}), message_end()]
    assert rules(META, agent_start(), *given, *YES) == []
    assert rules(META, agent_start(), message_start("assistant"), *YES) == ["input_first"]


def test_children_are_sessions_of_their_own() -> None:
    """8: in a stream each origin is checked for itself."""
    child = [
        with_origin(record, "s2") for record in (session_meta("s2", provider="p", model_id="m"), BEGIN, *STREAMED, END)
    ]
    merged = [record for pair in zip([BEGIN, *STREAMED, subagent("s2"), END], child, strict=True) for record in pair]
    assert rules(*merged) == []
    assert rules(*merged[:-3]) == []
    assert set(rules(*[record for record in merged if record is not child[4]])) == {"fragment_content"}


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    """A finding names the line of the file, damaged and blank lines counted."""
    path = tmp_path / "s1_001.jsonl"
    lines = [dumps(record) for record in (META, PROMPT)]
    path.write_bytes(b"\n".join([lines[0], b"", b"{broken", lines[1], dumps(OUT), b""]))
    assert [(finding.line, finding.rule) for finding in check_protocol(read(path))] == [(5, "output_of_call")]


@pytest.mark.parametrize("record", [{}, {"type": "x"}, {"payload": 3}, {"payload": {}, "type": 3}, None, 3, []])
def test_what_is_no_record(record: object) -> None:
    """What is no record at all is a finding, not a crash."""
    assert "record" in rules(META, record, PROMPT)  # type: ignore[arg-type]


def test_linear_time() -> None:
    """Many open fragments and calls are no search."""
    fragments = [partial_tool_call_output("start", str(n)) for n in range(4_000)]
    stops = [partial_tool_call_output("stop", str(n)) for n in range(4_000)]
    assert len(check_protocol([*fragments, *stops])) == 0
