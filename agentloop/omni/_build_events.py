"""Builders of events: the protocol's twelve, and our own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.errors import FinishReason, StopReason
from agentloop.messages import ToolSpec, Usage
from agentloop.omni._build import event, token_counts, with_fields
from agentloop.omni._event_types import CompactionMode, CompactionReason
from agentloop.omni._types import Clock, Payload, Record

# ---------------------------------------------------------------- the protocol's events


def tool_entry(tool: ToolSpec) -> Payload:
    """A tool as its object; our label stands under `x`."""
    entry: Payload = {"name": tool.name, "description": tool.description}
    return with_fields(
        entry, parameters=tool.parameters or None, x=None if tool.label is None else {"label": tool.label}
    )


def tool_list_ready(tools: Sequence[ToolSpec], *, clock: Clock = time.time) -> Record:
    """The tools that the next request offers."""
    return event({"type": "tool_list_ready", "tools": [tool_entry(tool) for tool in tools]}, clock)


def mcp_connect_begin(servers: Sequence[str], *, clock: Clock = time.time) -> Record:
    """Servers are being connected."""
    return event({"type": "mcp_connect_begin", "servers": list(servers)}, clock)


def mcp_connect_end(
    status: StopReason,
    results: Sequence[Payload] = (),
    *,
    error_code: str | None = None,
    error_message: str | None = None,
    clock: Clock = time.time,
) -> Record:
    """Connecting is over. `results` are objects as `McpServerEntry` says."""
    payload: Payload = {"type": "mcp_connect_end", "status": status, "results": list(results)}
    return event(with_fields(payload, error_code=error_code, error_message=error_message), clock)


def request_begin(attempt: int = 1, *, clock: Clock = time.time) -> Record:
    """The model is about to be asked; `attempt` counts from 1 and is written, under `x`, when it is not the first."""
    payload: Payload = {"type": "request_begin"}
    return event(with_fields(payload, x=None if attempt == 1 else {"attempt": attempt}), clock)


def request_end(
    status: StopReason = "completed",
    *,
    attempt: int = 1,
    retry_in_ms: int | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
    usage: Usage | None = None,
    clock: Clock = time.time,
) -> Record:
    """The request is over. The attempt is left out of a clean first try; `usage` is what a failed one had reported."""
    payload: Payload = {"type": "request_end", "status": status}
    clean = status == "completed" and attempt == 1
    with_fields(payload, error_code=error_code, error_message=error_message, attempt=None if clean else attempt)
    return event(
        with_fields(payload, retry_in_ms=retry_in_ms, x=None if usage is None else {"usage": token_counts(usage)}),
        clock,
    )


def approval_decision(
    decision: str, tool_call_id: str, *, arguments: str | None = None, clock: Clock = time.time
) -> Record:
    """The answer about one call: `allow`, `deny` or `forbidden`; `arguments` (under `x`) are those that were shown."""
    payload: Payload = {"type": "approval_decision", "decision": decision, "tool_call_id": tool_call_id}
    return event(with_fields(payload, x=None if arguments is None else {"arguments": arguments}), clock)


def token_usage(session: Usage, request: Usage, *, clock: Clock = time.time) -> Record:
    """Tokens of the request that is about to complete, and of the session so far with it."""
    return event({"type": "token_usage", "session": token_counts(session), "request": token_counts(request)}, clock)


def compaction_begin(
    reason: CompactionReason,
    mode: CompactionMode,
    *,
    context: int = 0,
    turns: int = 0,
    clock: Clock = time.time,
) -> Record:
    """A compaction starts; `context` tokens and `turns` as they stand."""
    return event(
        {"type": "compaction_begin", "reason": reason, "mode": mode, "context": context, "turns": turns}, clock
    )


def compaction_end(
    reason: CompactionReason,
    mode: CompactionMode,
    status: StopReason,
    *,
    attempt: int | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
    summary: str | Payload | None = None,
    nested_usage: Usage | None = None,
    clock: Clock = time.time,
) -> Record:
    """The compaction is over.

    `summary` (under `x`) is its text, or an object of `content` and `sender` when it is not one text. `nested_usage` (there
    too) is as in `agent_end`.
    """
    payload: Payload = {"type": "compaction_end", "reason": reason, "mode": mode, "status": status}
    with_fields(payload, attempt=attempt, error_code=error_code, error_message=error_message)
    spent = None if nested_usage is None else token_counts(nested_usage)
    return event(with_fields(payload, x=with_fields({}, summary=summary, nested_usage=spent) or None), clock)


def abort(error_code: str | None = None, error_message: str | None = None, *, clock: Clock = time.time) -> Record:
    """A user's interruption: `user_abort`, `backoff_interrupted` or `compaction_interrupted`."""
    return event(with_fields({"type": "abort"}, error_code=error_code, error_message=error_message), clock)


def subagent(
    session_id: str, *, tool_call_id: str | None = None, meta_follows: bool = False, clock: Clock = time.time
) -> Record:
    """Points to a direct child. `meta_follows`: the next record is the child's `session_meta`, with its origin."""
    extra = with_fields({}, tool_call_id=tool_call_id, meta=meta_follows or None)
    return event(with_fields({"type": "subagent", "session_id": session_id}, x=extra or None), clock)


def hook(
    hook: str,
    name: str,
    *,
    decision: str | None = None,
    reason: str | None = None,
    output: Mapping[str, Any] | None = None,
    tool_call_id: str | None = None,
    clock: Clock = time.time,
) -> Record:
    """A hook's answer: `hook` is `stop`, `pre_tool_use` or `user_prompt`, `name` the hook's own."""
    payload: Payload = {"type": "hook", "hook": hook, "name": name}
    with_fields(payload, decision=decision, reason=reason, output=output or None)
    return event(with_fields(payload, x=None if tool_call_id is None else {"tool_call_id": tool_call_id}), clock)


# ---------------------------------------------------------------- our own events


def agent_start(*, clock: Clock = time.time) -> Record:
    """A run begins."""
    return event({"type": "agent_start"}, clock)


def agent_end(
    status: StopReason = "completed",
    *,
    error_code: str | None = None,
    error_message: str | None = None,
    usage: Usage | None = None,
    nested_usage: Usage | None = None,
    replaces_context: bool = False,
    clock: Clock = time.time,
) -> Record:
    """A run is over; `usage` is its sum (None: zero), `nested_usage` what nested runs spent that no record before it tells."""
    payload: Payload = {"type": "agent_end", "status": status}
    with_fields(payload, error_code=error_code, error_message=error_message, usage=token_counts(usage or Usage()))
    with_fields(payload, nested_usage=None if nested_usage is None else token_counts(nested_usage))
    return event(with_fields(payload, replaces_context=replaces_context or None), clock)


def turn_start(index: int, *, clock: Clock = time.time) -> Record:
    """A turn begins; `index` counts from 0."""
    return event({"type": "turn_start", "index": index}, clock)


def turn_end(*, clock: Clock = time.time) -> Record:
    """A turn is over."""
    return event({"type": "turn_end"}, clock)


def message_start(
    role: str,
    *,
    provider: str | None = None,
    model: str | None = None,
    sender: str | None = None,
    tool_call_id: str | None = None,
    clock: Clock = time.time,
) -> Record:
    """A message opens. `sender`: of a user message whose texts do not say it; `tool_call_id`: of a result."""
    payload: Payload = {"type": "message_start", "role": role}
    return event(with_fields(payload, provider=provider, model=model, sender=sender, tool_call_id=tool_call_id), clock)


def message_end(*, clock: Clock = time.time) -> Record:
    """A message of the user, a custom message or a result is final."""
    return event({"type": "message_end"}, clock)


def reply_end(
    stop_reason: StopReason | None = "completed",
    finish_reason: FinishReason | None = None,
    *,
    usage: Usage | None = None,
    error_code: str | None = None,
    error_message: str | None = None,
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """The `message_end` of a reply."""
    payload: Payload = {"type": "message_end", "stop_reason": stop_reason, "finish_reason": finish_reason}
    counts = None if usage is None else token_counts(usage)
    return event(
        with_fields(
            payload, usage=counts, error_code=error_code, error_message=error_message, fidelity=fidelity or None
        ),
        clock,
    )


def custom_message(role: str, data: Any, *, clock: Clock = time.time) -> Record:
    """The content of an application's own message."""
    return event({"type": "custom_message", "role": role, "data": data}, clock)


def tool_execution_start(tool_call_id: str, tool_name: str, arguments: str, *, clock: Clock = time.time) -> Record:
    """A call starts, with the arguments (JSON text) that run."""
    payload = {
        "type": "tool_execution_start",
        "tool_call_id": tool_call_id,
        "tool_name": tool_name,
        "arguments": arguments,
    }
    return event(payload, clock)


def tool_execution_update(
    tool_call_id: str, tool_name: str, partial_result: Payload | None = None, *, clock: Clock = time.time
) -> Record:
    """Progress of a running call; `partial_result` is an object as `ToolResultObject` says."""
    payload: Payload = {"type": "tool_execution_update", "tool_call_id": tool_call_id, "tool_name": tool_name}
    return event(with_fields(payload, partial_result=partial_result), clock)


def tool_execution_end(
    tool_call_id: str,
    tool_name: str,
    *,
    is_error: bool = False,
    error_code: str | None = None,
    details: Any = None,
    structured: Any = None,
    terminate: bool = False,
    clock: Clock = time.time,
) -> Record:
    """A call is over; its content is the `tool_call_output` before."""
    payload: Payload = {
        "type": "tool_execution_end",
        "tool_call_id": tool_call_id,
        "tool_name": tool_name,
        "is_error": is_error,
    }
    with_fields(payload, error_code=error_code, details=details, structured=structured, terminate=terminate or None)
    return event(payload, clock)


def approval_request(tool_call_id: str, tool_name: str, arguments: str, *, clock: Clock = time.time) -> Record:
    """Somebody is asked whether a call may run, with the arguments (JSON text) as shown."""
    payload = {
        "type": "approval_request",
        "tool_call_id": tool_call_id,
        "tool_name": tool_name,
        "arguments": arguments,
    }
    return event(payload, clock)
