"""Events that are one record each, field for field: the events as payloads. The way back stands in `_plain.py`.

They repeat what the builders write, since a builder asks the clock for each record; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from agentloop.events import (
    Abort,
    ApprovalDecision,
    ApprovalRequest,
    CompactionBegin,
    CompactionEnd,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    McpServerStatus,
    RequestBegin,
    RequestEnd,
    TokenUsage,
    ToolExecutionStart,
    ToolListReady,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import Text, UserMessage
from agentloop.omni._blocks import block_object
from agentloop.omni._build import token_counts, with_fields
from agentloop.omni._build_events import tool_entry
from agentloop.omni._types import Payload


def _turn_start(event: TurnStart) -> Payload:
    return {"type": "turn_start", "index": event.index}


def _turn_end(event: TurnEnd) -> Payload:
    return {"type": "turn_end"}


def _request_begin(event: RequestBegin) -> Payload:
    if event.attempt == 1:
        return {"type": "request_begin"}
    return {"type": "request_begin", "x": {"attempt": event.attempt}}


def _request_end(event: RequestEnd) -> Payload:
    payload: Payload = {"type": "request_end", "status": event.status}
    if event.status == "completed" and event.attempt == 1 and event.error_code is None:
        attempt = None  # a clean first try
    else:
        attempt = event.attempt
        with_fields(payload, error_code=event.error_code, error_message=event.error_message)
    usage = None if event.usage is None else {"usage": token_counts(event.usage)}
    if attempt is None and usage is None and event.retry_in_ms is None:
        return payload
    return with_fields(payload, attempt=attempt, retry_in_ms=event.retry_in_ms, x=usage)


def _token_usage(event: TokenUsage) -> Payload:
    return {
        "type": "token_usage",
        "session": token_counts(event.session),
        "request": token_counts(event.request),
    }


def _tool_execution_start(event: ToolExecutionStart) -> Payload:
    return {
        "type": "tool_execution_start",
        "tool_call_id": event.tool_call_id,
        "tool_name": event.tool_name,
        "arguments": event.arguments,
    }


def _tool_list_ready(event: ToolListReady) -> Payload:
    return {"type": "tool_list_ready", "tools": [tool_entry(tool) for tool in event.tools]}


def _mcp_connect_begin(event: McpConnectBegin) -> Payload:
    return {"type": "mcp_connect_begin", "servers": list(event.servers)}


def _mcp_connect_end(event: McpConnectEnd) -> Payload:
    results = [_server_entry(server) for server in event.results]
    payload: Payload = {"type": "mcp_connect_end", "status": event.status, "results": results}
    return with_fields(payload, error_code=event.error_code, error_message=event.error_message)


def _server_entry(server: McpServerStatus) -> Payload:
    return {name: value for name, value in attrs.asdict(server).items() if value is not None}


def _approval_request(event: ApprovalRequest) -> Payload:
    return {
        "type": "approval_request",
        "tool_call_id": event.tool_call_id,
        "tool_name": event.tool_name,
        "arguments": event.arguments,
    }


def _approval_decision(event: ApprovalDecision) -> Payload:
    payload: Payload = {
        "type": "approval_decision",
        "decision": event.decision,
        "tool_call_id": event.tool_call_id,
    }
    if event.arguments is not None:
        payload["x"] = {"arguments": event.arguments}
    return payload


def _compaction_begin(event: CompactionBegin) -> Payload:
    return {
        "type": "compaction_begin",
        "reason": event.reason,
        "mode": event.mode,
        "context": event.context,
        "turns": event.turns,
    }


def _compaction_end(event: CompactionEnd) -> Payload:
    payload: Payload = {
        "type": "compaction_end",
        "reason": event.reason,
        "mode": event.mode,
        "status": event.status,
    }
    with_fields(payload, attempt=event.attempt, error_code=event.error_code, error_message=event.error_message)
    if event.summary is not None:
        payload["x"] = {"summary": summary_value(event.summary)}
    return payload


def summary_value(summary: UserMessage) -> str | Payload:
    """A summary as its text, or as an object when it is not just one text."""
    content = summary.content
    if len(content) == 1 and type(content[0]) is Text and content[0].fidelity is None and summary.sender is None:
        return content[0].text
    value: Payload = {"content": [block_object(block) for block in content]}
    if summary.sender is not None:
        value["sender"] = summary.sender
    return value


def _abort(event: Abort) -> Payload:
    return with_fields({"type": "abort"}, error_code=event.error_code, error_message=event.error_message)


def _hook(event: Hook) -> Payload:
    payload: Payload = {"type": "hook", "hook": event.hook, "name": event.name}
    with_fields(payload, decision=event.decision, reason=event.reason, output=event.output)
    return with_fields(payload, x=None if event.tool_call_id is None else {"tool_call_id": event.tool_call_id})


PLAIN_PAYLOADS: Final[dict[type, Callable[[Any], Payload]]] = {
    TurnStart: _turn_start,
    TurnEnd: _turn_end,
    RequestBegin: _request_begin,
    RequestEnd: _request_end,
    TokenUsage: _token_usage,
    ToolExecutionStart: _tool_execution_start,
    ToolListReady: _tool_list_ready,
    McpConnectBegin: _mcp_connect_begin,
    McpConnectEnd: _mcp_connect_end,
    ApprovalRequest: _approval_request,
    ApprovalDecision: _approval_decision,
    CompactionBegin: _compaction_begin,
    CompactionEnd: _compaction_end,
    Abort: _abort,
    Hook: _hook,
}
"""The payload of each such event."""
