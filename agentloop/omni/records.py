"""OmniMessage records: what each looks like, how to build one, how to tell one from another.

A record is a plain dict as `json.loads` would give it. The types of the payloads are in `Envelope` and its neighbours,
the builders (`user_text`, `tool_call`, `request_end`, …) write them, `check_record` says what is wrong with one, and
`modernise` reads the old spelling.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, TypedDict

from agentloop._marks import marked, marked_text
from agentloop.omni._build import (
    assistant_text,
    image_url,
    inline_data,
    inline_thinking,
    partial_text,
    partial_thinking,
    partial_tool_call,
    partial_tool_call_output,
    session_meta,
    thinking,
    timestamp,
    token_counts,
    tool_call,
    tool_call_output,
    user_text,
)
from agentloop.omni._build_events import (
    abort,
    agent_end,
    agent_start,
    approval_decision,
    approval_request,
    compaction_begin,
    compaction_end,
    custom_message,
    hook,
    mcp_connect_begin,
    mcp_connect_end,
    message_end,
    message_start,
    reply_end,
    request_begin,
    request_end,
    subagent,
    token_usage,
    tool_execution_end,
    tool_execution_start,
    tool_execution_update,
    tool_list_ready,
    turn_end,
    turn_start,
)
from agentloop.omni._check import check_record
from agentloop.omni._event_types import EVENTS, OWN_EVENTS, PROTOCOL_EVENTS
from agentloop.omni._legacy import modernise
from agentloop.omni._types import COMPLETE, PARTIALS, Clock, Envelope, Payload, Record, SessionMetaPayload

__all__ = [
    "COMPLETE",
    "EVENTS",
    "OWN_EVENTS",
    "PARTIALS",
    "PROTOCOL_EVENTS",
    "Clock",
    "Envelope",
    "ModelIdentity",
    "Payload",
    "Record",
    "SessionMetaPayload",
    "abort",
    "agent_end",
    "agent_start",
    "approval_decision",
    "approval_request",
    "assistant_text",
    "check_record",
    "compaction_begin",
    "compaction_end",
    "custom_message",
    "event_kind",
    "hook",
    "image_url",
    "inline_data",
    "inline_thinking",
    "is_compaction_closed",
    "is_complete_model_message",
    "is_event",
    "is_meta",
    "is_partial",
    "is_repeated",
    "marked",
    "marked_text",
    "mcp_connect_begin",
    "mcp_connect_end",
    "message_end",
    "message_start",
    "model_identity",
    "modernise",
    "new_session_id",
    "origin_of",
    "partial_text",
    "partial_thinking",
    "partial_tool_call",
    "partial_tool_call_output",
    "repeated",
    "reply_end",
    "request_begin",
    "request_end",
    "session_meta",
    "subagent",
    "thinking",
    "timestamp",
    "token_counts",
    "token_usage",
    "tool_call",
    "tool_call_output",
    "tool_execution_end",
    "tool_execution_start",
    "tool_execution_update",
    "tool_list_ready",
    "turn_end",
    "turn_start",
    "user_text",
    "with_origin",
]

# ---------------------------------------------------------------- guards


def _kind(record: Record) -> Any:
    payload = record.get("payload")
    return payload.get("type") if isinstance(payload, dict) else None


def is_meta(record: Record) -> bool:
    """Whether it is the head of a context."""
    return record.get("type") == "session_meta"


def is_event(record: Record) -> bool:
    """Whether it is an event, of a kind that we know or not."""
    return record.get("type") == "event_msg"


def event_kind(record: Record) -> str | None:
    """The kind of an event (`request_end`, …); None for anything else."""
    kind = _kind(record) if record.get("type") == "event_msg" else None
    return kind if isinstance(kind, str) else None


def is_partial(record: Record) -> bool:
    """Whether it is a fragment: one of the four `partial_*`."""
    kind = _kind(record)
    return record.get("type") == "model_msg" and isinstance(kind, str) and kind in PARTIALS


def is_complete_model_message(record: Record) -> bool:
    """Whether it is a message of the model's conversation that is not a fragment.

    The list of fragments is closed, so a kind that we do not know counts as complete.
    """
    return record.get("type") == "model_msg" and not is_partial(record)


def is_compaction_closed(record: Record) -> bool:
    """Whether it ends its context: a `compaction_end` that completed. What follows belongs to the next file."""
    return event_kind(record) == "compaction_end" and record["payload"].get("status") == "completed"


def is_repeated(record: Record) -> bool:
    """Whether it only repeats, at the head of a later file, what an earlier file of the session says."""
    payload = record.get("payload")
    extra = payload.get("x") if isinstance(payload, dict) else None
    return isinstance(extra, dict) and extra.get("repeated") is True


def repeated(record: Record) -> Record:
    """A copy marked as a repetition: a decoder drops it."""
    payload = record["payload"]
    return {**record, "payload": {**payload, "x": {**(payload.get("x") or {}), "repeated": True}}}


# ---------------------------------------------------------------- origin


def origin_of(record: Record) -> tuple[str, ...]:
    """The child sessions that it came through, outermost first; empty for the session's own."""
    origin = record.get("origin")
    if isinstance(origin, list) and all(isinstance(hop, str) for hop in origin):
        return tuple(origin)
    return ()


def with_origin(record: Record, hop: str) -> Record:
    """A copy as one more session forwards it: `hop` goes to the front of the chain, which stands last in the record."""
    forwarded = {key: value for key, value in record.items() if key != "origin"}
    forwarded["origin"] = [hop, *origin_of(record)]
    return forwarded


# ---------------------------------------------------------------- session ids


class ModelIdentity(TypedDict):
    """Who a model is, as a `session_meta` has it: `provider` and `model_id`."""

    provider: str
    model_id: str


def model_identity(model: object) -> ModelIdentity:
    """Provider and name of a model callable as a meta has them: `unknown` where it has no such attribute."""
    return {
        "provider": getattr(model, "provider", None) or "unknown",
        "model_id": getattr(model, "model", None) or "unknown",
    }


def new_session_id(clock: Clock = time.time, token: str | None = None) -> str:
    """`session-YYYY-MM-DD-HH-mm-ss-<8 hex>` in local time: names sort by time. `token` is the random part."""
    moment = time.strftime("%Y-%m-%d-%H-%M-%S", time.localtime(clock()))
    return f"session-{moment}-{token or secrets.token_hex(4)}"
