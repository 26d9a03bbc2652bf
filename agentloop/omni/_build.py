"""Builders: one function a record, which sets the timestamp and writes the keys in their order.

What is absent is not written: no empty fidelity, no empty image list, no `sender: user`. Every builder ends with
`clock`, which gives the time in seconds since 1970 (default: the system's wall clock).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentloop.errors import FinishReason, StopReason
from agentloop.messages import ToolSpec, Usage
from agentloop.omni._types import Clock, CompactionMode, CompactionReason, EventType, Payload, Record

_MILLISECONDS: Final = tuple(f".{number:03d}Z" for number in range(1000))
_last: tuple[int, str] = (0, "1970-01-01T00:00:00.000Z")


def timestamp(seconds: float) -> str:
    """ISO 8601 UTC with milliseconds and `Z`, from seconds since 1970: `2026-09-01T02:00:00.137Z`."""
    global _last
    milliseconds = int(seconds * 1000 + 0.001)  # 0.137 s are 136.99… ms in floats
    held = _last  # one tuple, so that threads never see half of it
    if held[0] == milliseconds:
        return held[1]
    whole = milliseconds // 1000
    if whole == held[0] // 1000:
        text = held[1][:19] + _MILLISECONDS[milliseconds % 1000]
    else:
        year, month, day, hour, minute, second, *_ = time.gmtime(whole)
        date = f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}"
        text = date + _MILLISECONDS[milliseconds % 1000]
    _last = (milliseconds, text)
    return text


def _record(kind: str, payload: Payload, clock: Clock) -> Record:
    return {"timestamp": timestamp(clock()), "type": kind, "payload": payload}


def _model(payload: Payload, clock: Clock) -> Record:
    return _record("model_msg", payload, clock)


def _event(payload: Payload, clock: Clock) -> Record:
    return _record("event_msg", payload, clock)


def _with(payload: Payload, **optional: Any) -> Payload:
    """Add the fields that are there (not None), in the order given."""
    for name, value in optional.items():
        if value is not None:
            payload[name] = value
    return payload


def token_counts(usage: Usage) -> Payload:
    """The four numbers as an object."""
    return {
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "output": usage.output,
        "total": usage.total,
    }


# ---------------------------------------------------------------- session


def session_meta(
    session_id: str,
    *,
    provider: str,
    model_id: str,
    model_context_window: int | str = "unknown",
    system_prompt: str = "",
    agent_state: str = "",
    workspace: str = "",
    source: str | None = None,
    clock: Clock = time.time,
) -> Record:
    """The head of a model context. `source` is None for a person's session, `subagent` for a child's, …"""
    payload = {
        "session_id": session_id,
        "provider": provider,
        "model_id": model_id,
        "model_context_window": model_context_window,
        "system_prompt": system_prompt,
        "agent_state": agent_state,
        "workspace": workspace,
    }
    return _record("session_meta", _with(payload, source=source), clock)


# ---------------------------------------------------------------- complete messages


def user_text(
    text: str,
    *,
    sender: str | None = None,
    fidelity: Mapping[str, Any] | None = None,
    stop_reason: StopReason = "completed",
    clock: Clock = time.time,
) -> Record:
    """A text of the user. `sender` is who speaks for a person; None or `user`, which is not written: a person."""
    payload = {"type": "text", "role": "user", "text": text, "stop_reason": stop_reason}
    return _model(_with(payload, fidelity=fidelity or None, sender=None if sender == "user" else sender), clock)


def assistant_text(
    text: str,
    *,
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """A text of the model."""
    payload = {"type": "text", "role": "assistant", "text": text, "stop_reason": stop_reason}
    return _model(_with(payload, fidelity=fidelity or None), clock)


def thinking(
    thinking: str,
    *,
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """Reasoning as text."""
    payload = {"type": "thinking", "role": "assistant", "thinking": thinking, "stop_reason": stop_reason}
    return _model(_with(payload, fidelity=fidelity or None), clock)


def inline_thinking(
    data: str,
    mime_type: str,
    *,
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """Reasoning as data; `data` is base64."""
    payload = {
        "type": "inline_thinking",
        "role": "assistant",
        "data": data,
        "mime_type": mime_type,
        "stop_reason": stop_reason,
    }
    return _model(_with(payload, fidelity=fidelity or None), clock)


def tool_call(
    name: str,
    arguments: str,
    tool_call_id: str,
    *,
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """A call. `arguments` is JSON text; the id is unique in the session."""
    payload = {
        "type": "tool_call",
        "role": "assistant",
        "name": name,
        "arguments": arguments,
        "tool_call_id": tool_call_id,
        "stop_reason": stop_reason,
    }
    return _model(_with(payload, fidelity=fidelity or None), clock)


def tool_call_output(
    tool_call_id: str,
    output: str,
    *,
    images: Sequence[str] = (),
    stop_reason: StopReason = "completed",
    content: Sequence[Payload] | None = None,
    clock: Clock = time.time,
) -> Record:
    """The output of a call. An empty `output` becomes `[no output]`.

    `images` are `data:` URLs, for a completed output only.
    `content` holds the result's blocks where output and images do not say them all; it stands under `x`.
    """
    payload: Payload = {"type": "tool_call_output", "role": "user", "output": output or "[no output]"}
    if images:
        payload["images"] = list(images)
    payload |= {"tool_call_id": tool_call_id, "stop_reason": stop_reason}
    return _model(_with(payload, x=None if content is None else {"content": list(content)}), clock)


def image_url(url: str, *, role: str = "user", clock: Clock = time.time) -> Record:
    """An image: a web address or a `data:` URL."""
    return _model({"type": "image_url", "role": role, "image_url": url, "stop_reason": "completed"}, clock)


def inline_data(
    data: str,
    mime_type: str,
    *,
    role: str = "user",
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """Data of a MIME type; `data` is base64."""
    payload = {"type": "inline_data", "role": role, "data": data, "mime_type": mime_type, "stop_reason": stop_reason}
    return _model(_with(payload, fidelity=fidelity or None), clock)


# ---------------------------------------------------------------- partials


def partial_text(
    event_type: EventType, text: str = "", *, stop_reason: StopReason = "completed", clock: Clock = time.time
) -> Record:
    """Start, piece or stop of a text."""
    payload = {
        "type": "partial_text",
        "role": "assistant",
        "event_type": event_type,
        "text": text,
        "stop_reason": stop_reason,
    }
    return _model(payload, clock)


def partial_thinking(
    event_type: EventType, thinking: str = "", *, stop_reason: StopReason = "completed", clock: Clock = time.time
) -> Record:
    """Start, piece or stop of a thinking."""
    payload = {
        "type": "partial_thinking",
        "role": "assistant",
        "event_type": event_type,
        "thinking": thinking,
        "stop_reason": stop_reason,
    }
    return _model(payload, clock)


def partial_tool_call(
    event_type: EventType,
    tool_call_id: str,
    *,
    name: str = "",
    arguments: str = "",
    stop_reason: StopReason = "completed",
    clock: Clock = time.time,
) -> Record:
    """Start (with the name), fragment of the arguments, or stop of a call."""
    payload = {
        "type": "partial_tool_call",
        "role": "assistant",
        "event_type": event_type,
        "name": name,
        "arguments": arguments,
        "tool_call_id": tool_call_id,
        "stop_reason": stop_reason,
    }
    return _model(payload, clock)


def partial_tool_call_output(
    event_type: EventType,
    tool_call_id: str,
    output: str = "",
    *,
    images: Sequence[str] = (),
    stop_reason: StopReason = "completed",
    clock: Clock = time.time,
) -> Record:
    """Start, piece or stop of a call's output; or, before the stop, one delta with all its images."""
    payload: Payload = {
        "type": "partial_tool_call_output",
        "role": "user",
        "event_type": event_type,
        "output": output,
    }
    if images:
        payload["images"] = list(images)
    payload |= {"tool_call_id": tool_call_id, "stop_reason": stop_reason}
    return _model(payload, clock)


# ---------------------------------------------------------------- the protocol's events


def _tool_entry(tool: ToolSpec) -> Payload:
    entry: Payload = {"name": tool.name, "description": tool.description}
    return _with(entry, parameters=tool.parameters or None, x=None if tool.label is None else {"label": tool.label})


def tool_list_ready(tools: Sequence[ToolSpec], *, clock: Clock = time.time) -> Record:
    """The tools that the next request offers."""
    return _event({"type": "tool_list_ready", "tools": [_tool_entry(tool) for tool in tools]}, clock)


def mcp_connect_begin(servers: Sequence[str], *, clock: Clock = time.time) -> Record:
    """Servers are being connected."""
    return _event({"type": "mcp_connect_begin", "servers": list(servers)}, clock)


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
    return _event(_with(payload, error_code=error_code, error_message=error_message), clock)


def request_begin(attempt: int = 1, *, clock: Clock = time.time) -> Record:
    """The model is about to be asked; `attempt` counts from 1 and is written, under `x`, when it is not the first."""
    payload: Payload = {"type": "request_begin"}
    return _event(_with(payload, x=None if attempt == 1 else {"attempt": attempt}), clock)


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
    _with(payload, error_code=error_code, error_message=error_message, attempt=None if clean else attempt)
    return _event(
        _with(payload, retry_in_ms=retry_in_ms, x=None if usage is None else {"usage": token_counts(usage)}), clock
    )


def approval_decision(
    decision: str, tool_call_id: str, *, arguments: str | None = None, clock: Clock = time.time
) -> Record:
    """The answer about one call: `allow`, `deny` or `forbidden`; `arguments` (under `x`) are those that were shown."""
    payload: Payload = {"type": "approval_decision", "decision": decision, "tool_call_id": tool_call_id}
    return _event(_with(payload, x=None if arguments is None else {"arguments": arguments}), clock)


def token_usage(session: Usage, request: Usage, *, clock: Clock = time.time) -> Record:
    """Tokens of the request that is about to complete, and of the session so far with it."""
    return _event({"type": "token_usage", "session": token_counts(session), "request": token_counts(request)}, clock)


def compaction_begin(
    reason: CompactionReason,
    mode: CompactionMode,
    *,
    context: int = 0,
    turns: int = 0,
    clock: Clock = time.time,
) -> Record:
    """A compaction starts; `context` tokens and `turns` as they stand."""
    return _event(
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
    clock: Clock = time.time,
) -> Record:
    """The compaction is over.

    `summary` (under `x`) is its text, or an object of `content` and `sender` when it is not one text.
    """
    payload: Payload = {"type": "compaction_end", "reason": reason, "mode": mode, "status": status}
    _with(payload, attempt=attempt, error_code=error_code, error_message=error_message)
    return _event(_with(payload, x=None if summary is None else {"summary": summary}), clock)


def abort(error_code: str | None = None, error_message: str | None = None, *, clock: Clock = time.time) -> Record:
    """A user's interruption: `user_abort`, `backoff_interrupted` or `compaction_interrupted`."""
    return _event(_with({"type": "abort"}, error_code=error_code, error_message=error_message), clock)


def subagent(
    session_id: str, *, tool_call_id: str | None = None, meta_follows: bool = False, clock: Clock = time.time
) -> Record:
    """Points to a direct child. `meta_follows`: the next record is the child's `session_meta`, with its origin."""
    extra = _with({}, tool_call_id=tool_call_id, meta=meta_follows or None)
    return _event(_with({"type": "subagent", "session_id": session_id}, x=extra or None), clock)


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
    _with(payload, decision=decision, reason=reason, output=output or None)
    return _event(_with(payload, x=None if tool_call_id is None else {"tool_call_id": tool_call_id}), clock)


# ---------------------------------------------------------------- our own events


def agent_start(*, clock: Clock = time.time) -> Record:
    """A run begins."""
    return _event({"type": "agent_start"}, clock)


def agent_end(
    status: StopReason = "completed",
    *,
    error_code: str | None = None,
    error_message: str | None = None,
    usage: Usage | None = None,
    replaces_context: bool = False,
    clock: Clock = time.time,
) -> Record:
    """A run is over; `usage` is its sum (None: zero)."""
    payload: Payload = {"type": "agent_end", "status": status}
    _with(payload, error_code=error_code, error_message=error_message, usage=token_counts(usage or Usage()))
    return _event(_with(payload, replaces_context=replaces_context or None), clock)


def turn_start(index: int, *, clock: Clock = time.time) -> Record:
    """A turn begins; `index` counts from 0."""
    return _event({"type": "turn_start", "index": index}, clock)


def turn_end(*, clock: Clock = time.time) -> Record:
    """A turn is over."""
    return _event({"type": "turn_end"}, clock)


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
    return _event(_with(payload, provider=provider, model=model, sender=sender, tool_call_id=tool_call_id), clock)


def message_end(*, clock: Clock = time.time) -> Record:
    """A message of the user, a custom message or a result is final."""
    return _event({"type": "message_end"}, clock)


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
    return _event(
        _with(payload, usage=counts, error_code=error_code, error_message=error_message, fidelity=fidelity or None),
        clock,
    )


def custom_message(role: str, data: Any, *, clock: Clock = time.time) -> Record:
    """The content of an application's own message."""
    return _event({"type": "custom_message", "role": role, "data": data}, clock)


def tool_execution_start(tool_call_id: str, tool_name: str, arguments: str, *, clock: Clock = time.time) -> Record:
    """A call starts, with the arguments (JSON text) that run."""
    payload = {
        "type": "tool_execution_start",
        "tool_call_id": tool_call_id,
        "tool_name": tool_name,
        "arguments": arguments,
    }
    return _event(payload, clock)


def tool_execution_update(
    tool_call_id: str, tool_name: str, partial_result: Payload | None = None, *, clock: Clock = time.time
) -> Record:
    """Progress of a running call; `partial_result` is an object as `ToolResultObject` says."""
    payload: Payload = {"type": "tool_execution_update", "tool_call_id": tool_call_id, "tool_name": tool_name}
    return _event(_with(payload, partial_result=partial_result), clock)


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
    _with(payload, error_code=error_code, details=details, structured=structured, terminate=terminate or None)
    return _event(payload, clock)


def approval_request(tool_call_id: str, tool_name: str, arguments: str, *, clock: Clock = time.time) -> Record:
    """Somebody is asked whether a call may run, with the arguments (JSON text) as shown."""
    payload = {
        "type": "approval_request",
        "tool_call_id": tool_call_id,
        "tool_name": tool_name,
        "arguments": arguments,
    }
    return _event(payload, clock)
