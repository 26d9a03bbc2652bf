"""Builders of metas, messages and fragments.

One function a record, which sets the timestamp and writes the keys in their order. What is absent is not written: no empty
fidelity, no empty image list, no `sender: user`. Every builder ends with `clock`, which gives the time in seconds since 1970
(default: the system's wall clock).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentloop._results import NO_OUTPUT
from agentloop.errors import StopReason
from agentloop.messages import Usage
from agentloop.omni._types import Clock, EventType, Payload, Record

FLOAT_ERROR: Final = 0.001
"""In milliseconds, far above it: 0.137 s are 136.99… ms in floats."""
_MILLISECONDS: Final = tuple(f".{number:03d}Z" for number in range(1000))
_last: tuple[int, str] = (0, "1970-01-01T00:00:00.000Z")


def timestamp(seconds: float) -> str:
    """ISO 8601 UTC with milliseconds and `Z`, from seconds since 1970: `2026-09-01T02:00:00.137Z`."""
    global _last
    milliseconds = int(seconds * 1000 + FLOAT_ERROR)
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


def event(payload: Payload, clock: Clock) -> Record:
    """An `event_msg` of now."""
    return _record("event_msg", payload, clock)


def with_fields(payload: Payload, **optional: Any) -> Payload:
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
    return _record("session_meta", with_fields(payload, source=source), clock)


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
    return _model(with_fields(payload, fidelity=fidelity or None, sender=None if sender == "user" else sender), clock)


def assistant_text(
    text: str,
    *,
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """A text of the model."""
    payload = {"type": "text", "role": "assistant", "text": text, "stop_reason": stop_reason}
    return _model(with_fields(payload, fidelity=fidelity or None), clock)


def thinking(
    thinking: str,
    *,
    stop_reason: StopReason = "completed",
    fidelity: Mapping[str, Any] | None = None,
    clock: Clock = time.time,
) -> Record:
    """Reasoning as text."""
    payload = {"type": "thinking", "role": "assistant", "thinking": thinking, "stop_reason": stop_reason}
    return _model(with_fields(payload, fidelity=fidelity or None), clock)


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
    return _model(with_fields(payload, fidelity=fidelity or None), clock)


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
    return _model(with_fields(payload, fidelity=fidelity or None), clock)


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
    payload: Payload = {"type": "tool_call_output", "role": "user", "output": output or NO_OUTPUT}
    if images:
        payload["images"] = list(images)
    payload |= {"tool_call_id": tool_call_id, "stop_reason": stop_reason}
    return _model(with_fields(payload, x=None if content is None else {"content": list(content)}), clock)


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
    return _model(with_fields(payload, fidelity=fidelity or None), clock)


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
