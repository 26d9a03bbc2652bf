"""The old spelling, read and never written: four stop reasons, a `reason` on `abort`, fields that moved out of the meta.

Nothing here touches a file: `modernise` gives a copy where something is old, and the record itself where nothing is.
"""

from __future__ import annotations

from typing import Any, Final

from agentloop.omni._types import Payload, Record

OLD_REASONS: Final = frozenset({"timeout", "malformed", "failed", "auth"})
_SOURCES: Final = frozenset({"user", "api", "schedule", "subagent", "cli", "company"})
_ABORTS: Final = {
    "aborted by user": "user_abort",
    "user": "user_abort",
    "aborted during reconnect backoff": "backoff_interrupted",
    "aborted during compaction": "compaction_interrupted",
}
_REFUSED: Final = "llm request error:"


def modernise(record: Record, following: Record | None = None) -> Record:
    """The record in today's spelling.

    `following` is the record after it in the file, where it is known: an old `request_end` with `failed` was a
    definite refusal (`fatal`, `rejected`) when an `abort` with `llm request error: …` stands there, else it was worth a
    retry.
    """
    payload = record.get("payload")
    if not isinstance(payload, dict):
        return record
    if record.get("type") == "session_meta":
        changed = _meta(payload)
    elif record.get("type") == "model_msg":
        changed = _message(payload)
    else:
        changed = _event(payload, following)
    return record if changed is payload else {**record, "payload": changed}


def needs_following(record: Record) -> bool:
    """Whether only the record after it tells what it means."""
    payload = record.get("payload")
    return isinstance(payload, dict) and payload.get("type") == "request_end" and payload.get("status") == "failed"


def _meta(payload: Payload) -> Payload:
    source = payload.get("source")
    strange = source is not None and (not isinstance(source, str) or source not in _SOURCES)
    dropped = {"tools", "thinking_level"} | ({"source"} if strange else set())
    if dropped.isdisjoint(payload):
        return payload
    return {key: value for key, value in payload.items() if key not in dropped}


def _is_old(value: Any) -> bool:
    return type(value) is str and value in OLD_REASONS


def _message(payload: Payload) -> Payload:
    reason = payload.get("stop_reason")
    if not _is_old(reason):
        return payload
    of_a_tool = payload.get("type") in ("tool_call_output", "partial_tool_call_output")
    return {**payload, "stop_reason": "fatal" if of_a_tool or reason == "auth" else "retryable"}


def _event(payload: Payload, following: Record | None) -> Payload:
    kind = payload.get("type")
    if kind == "abort":
        return _abort(payload) if "reason" in payload else payload
    if kind == "mcp_connect_end":
        return _mcp(payload)
    if not _is_old(payload.get("status")):
        return payload
    if kind == "request_end":
        status, code = _request(payload, following)
        return _failed(payload, status, code)
    if kind == "compaction_end":
        return {**payload, "status": "retryable"}
    return payload


def _failed(payload: Payload, status: str, code: str) -> Payload:
    """The status in its place and the code after it, where none is there yet."""
    changed: Payload = {}
    for key, value in payload.items():
        changed[key] = status if key == "status" else value
        if key == "status" and payload.get("error_code") is None:
            changed["error_code"] = code
    return changed


def _request(payload: Payload, following: Record | None) -> tuple[str, str]:
    status = payload["status"]
    if status == "timeout":
        return "retryable", "network" if payload.get("error_message") else "timeout"
    if status == "malformed":
        return "retryable", "malformed"
    if status == "auth":
        return "fatal", "auth"
    return ("fatal", "rejected") if following is not None and _is_refusal(following) else ("retryable", "network")


def _is_refusal(record: Record) -> bool:
    payload = record.get("payload")
    if not isinstance(payload, dict) or payload.get("type") != "abort":
        return False
    reason = payload.get("reason")
    return isinstance(reason, str) and reason.startswith(_REFUSED)


def _abort(payload: Payload) -> Payload:
    """A known reason becomes a code; any other was a failure's, and its text is kept without one."""
    changed = {key: value for key, value in payload.items() if key != "reason"}
    reason = payload["reason"]
    if isinstance(reason, str):
        code = _ABORTS.get(reason)
        if code is not None:
            changed.setdefault("error_code", code)
        else:
            changed.setdefault("error_message", reason)
    return changed


def _mcp(payload: Payload) -> Payload:
    results = payload.get("results")
    if not isinstance(results, list) or not any(_is_old_server(entry) for entry in results):
        return {**payload, "status": "fatal"} if _is_old(payload.get("status")) else payload
    changed = {**payload, "results": [_server(entry) if _is_old_server(entry) else entry for entry in results]}
    if _is_old(payload.get("status")):
        changed["status"] = "fatal"
    return changed


def _is_old_server(entry: Any) -> bool:
    return isinstance(entry, dict) and (_is_old(entry.get("status")) or "error" in entry)


def _server(entry: Payload) -> Payload:
    changed = _failed(entry, "fatal", "connect_failed") if _is_old(entry.get("status")) else dict(entry)
    if "error" in changed:
        message = changed.pop("error")
        if isinstance(message, str):
            changed.setdefault("error_message", message)
    return changed
