"""Records that are one event each, field for field: their payloads as events.

Everything here is a plain function of one payload whose fields have been found to fit; what needs to know more than that
stands in `_decode.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from agentloop.events import (
    Abort,
    ApprovalDecision,
    ApprovalRequest,
    CompactionBegin,
    CompactionEnd,
    Event,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    McpServerStatus,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TokenUsage,
    ToolExecutionUpdate,
    ToolListReady,
)
from agentloop.messages import Text, ToolSpec, Usage, UserMessage
from agentloop.omni._blocks import block_from, result_from
from agentloop.omni._check import predicate_of
from agentloop.omni._event_types import TokenCounts
from agentloop.omni._types import Payload

_are_counts = predicate_of(TokenCounts)


def usage_from(counts: Payload) -> Usage:
    """The four numbers of an object."""
    return Usage(counts["cache_read"], counts["cache_write"], counts["output"], counts["total"])


def extra(payload: Payload, name: str, kind: type = object) -> Any:
    """What stands under `x`, or None. Raises `TypeError` for another type: of what stands there the protocol knows nothing."""
    values = payload.get("x")
    value = values.get(name) if values else None
    if value is not None and kind is not object and type(value) is not kind:
        raise TypeError(f"x.{name}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _request_begin(payload: Payload) -> Event:
    return RequestBegin(extra(payload, "attempt", int) or 1)


def _request_end(payload: Payload) -> Event:
    counts = extra(payload, "usage", dict)
    if counts is not None and not _are_counts(counts):
        raise TypeError("x.usage: expected the four numbers of a usage")
    return RequestEnd(
        payload["status"],
        payload.get("attempt") or 1,
        payload.get("retry_in_ms"),
        payload.get("error_code"),
        payload.get("error_message"),
        None if counts is None else usage_from(counts),
    )


def _token_usage(payload: Payload) -> Event:
    return TokenUsage(usage_from(payload["session"]), usage_from(payload["request"]))


def _tool_list_ready(payload: Payload) -> Event:
    return ToolListReady(map(_tool_spec, payload["tools"]))


def _tool_spec(entry: Payload) -> ToolSpec:
    return ToolSpec(entry["name"], entry["description"], entry.get("parameters") or {}, extra(entry, "label", str))


def _mcp_connect_begin(payload: Payload) -> Event:
    return McpConnectBegin(payload["servers"])


def _mcp_connect_end(payload: Payload) -> Event:
    servers = tuple(map(_server, payload["results"]))
    return McpConnectEnd(payload["status"], servers, payload.get("error_code"), payload.get("error_message"))


def _server(entry: Payload) -> McpServerStatus:
    return McpServerStatus(
        entry["server"],
        entry["transport"],
        entry["status"],
        entry["duration_ms"],
        entry.get("tools"),
        entry.get("error_code"),
        entry.get("error_message"),
    )


def _approval_request(payload: Payload) -> Event:
    return ApprovalRequest(payload["tool_call_id"], payload["tool_name"], payload["arguments"])


def _approval_decision(payload: Payload) -> Event:
    return ApprovalDecision(payload["decision"], payload["tool_call_id"], extra(payload, "arguments", str))


def _compaction_begin(payload: Payload) -> Event:
    return CompactionBegin(payload["reason"], payload["mode"], payload["context"], payload["turns"])


def _compaction_end(payload: Payload) -> Event:
    summary = extra(payload, "summary")
    return CompactionEnd(
        payload["reason"],
        payload["mode"],
        payload["status"],
        payload.get("attempt"),
        payload.get("error_code"),
        payload.get("error_message"),
        None if summary is None else _summary(summary),
    )


def _summary(value: str | Payload) -> UserMessage:
    if isinstance(value, str):
        return UserMessage((Text(value),))
    sender = value.get("sender")
    if sender is not None and type(sender) is not str:
        raise TypeError(f"x.summary.sender: expected str, got {type(sender).__name__}")
    return UserMessage(tuple(map(block_from, value["content"])), sender)


def _abort(payload: Payload) -> Event:
    return Abort(payload.get("error_code"), payload.get("error_message"))


def _subagent(payload: Payload) -> Event:
    meta = extra(payload, "meta")  # true in the record; the decoder puts the meta that follows in its place
    return SubagentStarted(
        payload["session_id"], extra(payload, "tool_call_id", str), meta if isinstance(meta, dict) else None
    )


def _hook(payload: Payload) -> Event:
    return Hook(
        payload["hook"],
        payload["name"],
        payload.get("decision"),
        payload.get("reason"),
        payload.get("output"),
        extra(payload, "tool_call_id", str),
    )


def _tool_execution_update(payload: Payload) -> Event:
    progress = payload.get("partial_result")
    result = None if progress is None else result_from(progress)
    return ToolExecutionUpdate(payload["tool_call_id"], payload["tool_name"], result)


PLAIN: Final[dict[str, Callable[[Payload], Event]]] = {
    "request_begin": _request_begin,
    "request_end": _request_end,
    "token_usage": _token_usage,
    "tool_list_ready": _tool_list_ready,
    "mcp_connect_begin": _mcp_connect_begin,
    "mcp_connect_end": _mcp_connect_end,
    "approval_request": _approval_request,
    "approval_decision": _approval_decision,
    "compaction_begin": _compaction_begin,
    "compaction_end": _compaction_end,
    "abort": _abort,
    "subagent": _subagent,
    "hook": _hook,
    "tool_execution_update": _tool_execution_update,
}
"""The event of each such kind."""
