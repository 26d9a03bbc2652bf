"""Snapshots are short, stable and readable."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
from inline_snapshot import snapshot as inline
from syrupy.assertion import SnapshotAssertion

from agentloop.events import (
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    Event,
    Foreign,
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
    AssistantMessage,
    CustomMessage,
    Image,
    InlineData,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    ToolSpec,
    Usage,
    user,
)
from agentloop.testing import snapshot
from agentloop.testing import snapshot as event_lines


def run(id: str) -> list[Event]:
    """A whole run by hand: one call, one answer, with a call id of the caller's."""
    call = ToolCall(id, "add", '{"a": 1}')
    asked = AssistantMessage((call,), "completed", "tool_use", Usage(0, 5, 2))
    result = ToolResultMessage(id, "add", "3")
    return [
        AgentStart(),
        TurnStart(0),
        MessageStart(user("go")),
        MessageEnd(user("go")),
        ToolListReady((ToolSpec("add"), ToolSpec("sub"))),
        RequestBegin(),
        MessageStart(AssistantMessage(())),
        MessageUpdate(ToolCallStart(0, id, "add")),
        MessageUpdate(ToolCallDelta(0, '{"a"')),
        MessageUpdate(ToolCallDelta(0, ": 1}")),
        MessageUpdate(ToolCallEnd(0, call)),
        MessageEnd(asked),
        TokenUsage(Usage(0, 5, 2), Usage(0, 5, 2)),
        RequestEnd(),
        ToolExecutionStart(id, "add", '{"a": 1}'),
        ToolExecutionUpdate(id, "add", ToolResult("half")),
        ToolExecutionEnd(id, "add", ToolResult("3", terminate=True)),
        MessageStart(result),
        MessageEnd(result),
        TurnEnd(asked, (result,)),
        AgentEnd((user("go"), asked, result), usage=Usage(0, 5, 2)),
    ]


def test_a_run_reads_well() -> None:
    """The lines of a whole run, with all that tells one run from another."""
    assert snapshot(run("call_abc")) == [
        "agent_start",
        "  turn_start 0",
        "    message_start user",
        '    message_end user "go"',
        "    tool_list_ready add, sub",
        "    request_begin",
        "    message_start assistant",
        "      tool_call_start 0 #1 add",
        '      tool_call_delta 0 "{\\"a\\": 1}"',
        "      tool_call_end 0",
        '    message_end assistant call #1 add({"a": 1}) completed tool_use usage=5 in 2 out',
        "    token_usage session=5 in 2 out request=5 in 2 out",
        "    request_end",
        '    tool_execution_start #1 add({"a": 1})',
        '      tool_execution_update #1 progress "half"',
        '    tool_execution_end #1 "3" terminate=true',
        "    message_start tool_result",
        '    message_end tool_result #1 "3"',
        "  turn_end results #1",
        "agent_end completed 3 messages usage=5 in 2 out",
    ]


def test_ids_do_not_matter() -> None:
    """Two runs that differ only in random ids have one snapshot; with `stable_ids=False` they have not."""
    assert snapshot(run("call_abc")) == snapshot(run("xyz"))
    assert snapshot(run("call_abc"), stable_ids=False) != snapshot(run("xyz"), stable_ids=False)


def test_chopping_does_not_matter() -> None:
    """Neighbouring pieces of a text are one line, unless told otherwise; pieces of two things are not joined."""
    text: list[Event] = [
        MessageUpdate(TextStart(0)),
        MessageUpdate(TextDelta(0, "a\n")),
        MessageUpdate(TextDelta(0, "b")),
    ]
    output: list[Event] = [
        ToolExecutionUpdate(id, "f", delta=piece) for id, piece in (("x", "1"), ("x", "2"), ("y", "3"))
    ]
    assert snapshot([*text, *output]) == [
        "      text_start 0",
        '      text_delta 0 "a\\nb"',
        '      tool_execution_update #1 output "12"',
        '      tool_execution_update #2 output "3"',
    ]
    assert len(snapshot([*text, *output], merge_deltas=False)) == 6


def test_children_stand_under_their_origin() -> None:
    """A nested run's lines carry where they come from, and its pieces are joined too."""
    inner: list[Any] = [MessageUpdate(TextDelta(0, piece)) for piece in "ab"]
    events: list[Event] = [SubagentStarted("s-1", "c"), *[ChildEvent(("s-1", "s-2"), event) for event in inner]]
    assert snapshot(events) == ["    subagent #1 #2", '      #1/#3> text_delta 0 "ab"']


@attrs.frozen
class Notice(CustomMessage):
    role: ClassVar[str] = "notice"
    text: str


def test_the_rest() -> None:
    """Failures, approvals, data, custom messages and unknown records each have their line."""
    events: list[Event] = [
        RequestEnd("retryable", 2, 4000, "overloaded", "busy"),
        ApprovalRequest("c", "rm", "{}"),
        ApprovalDecision("deny", "c", "{}"),
        ToolExecutionEnd("c", "rm", ToolResult("no"), True, "aborted", "denied"),
        ToolExecutionEnd("c", "rm", ToolResult("no", is_error=True), True, "fatal", "tool_error"),
        MessageUpdate(TextEnd(0, Text("cut"), "aborted")),
        MessageUpdate(BlockAdded(1, Thinking("", {"redacted": True}))),
        MessageEnd(user("see", Image("https://example.com/a.png"), InlineData("AAAA", "image/png"))),
        MessageEnd(Notice("disk full")),
        McpConnectEnd(
            "fatal", (McpServerStatus("db", "stdio", "fatal", 17, error_code="connect_failed"),), "connect_failed"
        ),
        Foreign({"type": "news"}),
        AgentEnd((), "fatal", "auth", "no key"),
    ]
    assert snapshot(events) == [
        '    request_end retryable 2 retry_in_ms=4000 error_code="overloaded" error_message="busy"',
        '    approval_request #1 rm arguments="{}"',
        '    approval_decision deny #1 arguments="{}"',
        '    tool_execution_end #1 "no" is_error=true stop_reason="aborted" error_code="denied"',
        '    tool_execution_end #1 "no" is_error=true stop_reason="fatal" error_code="tool_error"',
        '      text_end 0 stop_reason="aborted"',
        '      block_added 1 thinking "" fidelity={"redacted": true}',
        '    message_end user "see", image https://example.com/a.png, inline_data image/png 4 base64 characters',
        "    message_end notice Notice(text='disk full')",
        '    mcp_connect_end db=connect_failed fatal error_code="connect_failed"',
        '    foreign {"type": "news"}',
        'agent_end fatal 0 messages error_code="auth" error_message="no key"',
    ]


def test_with_the_snapshot_libraries(snapshot: SnapshotAssertion) -> None:
    """The lines are plain values for inline-snapshot and for syrupy alike."""
    lines = event_lines(run("call_abc"))[:4]
    assert lines == inline(
        [
            "agent_start",
            "  turn_start 0",
            "    message_start user",
            '    message_end user "go"',
        ]
    )
    assert lines == snapshot
