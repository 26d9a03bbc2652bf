"""The shape of every record: the envelope, metas, messages and fragments as types; events are in `_event_types.py`.

At run time a record is a plain dict; keys stand in the order of these classes. The builders write that order and
`check_record` reads these classes, so that a field is described in one place. Everything of ours that stands on a record
of the protocol stands under the one key `x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from agentloop.errors import StopReason

Record: TypeAlias = dict[str, Any]
"""One OmniMessage as it is at run time: a plain JSON object (`Envelope` says its fields)."""

Payload: TypeAlias = dict[str, Any]
"""The `payload` of a record."""

Clock: TypeAlias = Callable[[], float]
"""Gives the wall clock: seconds since 1970-01-01 UTC, as `time.time` does."""

Extra: TypeAlias = dict[str, Any]
"""What stands under `x`: our additions, which other readers ignore."""

Opaque: TypeAlias = dict[str, Any]
"""A JSON object that is kept and given back verbatim."""


class Envelope(TypedDict):
    """One record: a `payload` of the kind that `type` says."""

    timestamp: str
    """ISO 8601 UTC with milliseconds and `Z`: when the record was built."""
    type: Literal["session_meta", "model_msg", "event_msg"]
    payload: dict[str, Any]
    origin: NotRequired[list[str]]
    """Child session ids, outermost first; absent for the main session, never empty."""


class SessionMetaPayload(TypedDict):
    """The configuration of one model context; the first record of every trace file.

    `session_id` is that of the file's name; `system_prompt`, `agent_state` and `workspace` (a folder) as the session was
    given them.
    """

    session_id: str
    provider: NotRequired[str]
    """Absent only in old traces, which cannot be resumed."""
    model_id: NotRequired[str]
    """As `provider`."""
    model_context_window: NotRequired[int | str]
    """Tokens, or `unknown`."""
    system_prompt: NotRequired[str]
    agent_state: NotRequired[str]
    workspace: NotRequired[str]
    source: NotRequired[str]
    """Who started the session; absent: a person."""
    x: NotRequired[Extra]


# ---------------------------------------------------------------- complete messages


class TextPayload(TypedDict):
    """A text of the user or the model."""

    type: Literal["text"]
    role: str
    text: str
    stop_reason: NotRequired[StopReason]
    fidelity: NotRequired[Opaque]
    sender: NotRequired[str]
    """Who speaks on a person's behalf: `parent_agent`, `harness`, `server`. Absent: a person."""
    x: NotRequired[Extra]


class ThinkingPayload(TypedDict):
    """The model's reasoning as text."""

    type: Literal["thinking"]
    role: str
    thinking: str
    stop_reason: NotRequired[StopReason]
    fidelity: NotRequired[Opaque]
    x: NotRequired[Extra]


class InlineThinkingPayload(TypedDict):
    """The model's reasoning as data (base64)."""

    type: Literal["inline_thinking"]
    role: str
    data: str
    mime_type: str
    stop_reason: NotRequired[StopReason]
    fidelity: NotRequired[Opaque]
    x: NotRequired[Extra]


class ToolCallPayload(TypedDict):
    """The model asks for a tool. `arguments` is JSON text."""

    type: Literal["tool_call"]
    role: str
    name: str
    arguments: str
    tool_call_id: str
    stop_reason: NotRequired[StopReason]
    fidelity: NotRequired[Opaque]
    x: NotRequired[Extra]


class ToolCallOutputPayload(TypedDict):
    """What a call gave back. `output` is never empty; `images` are `data:` URLs, only on a completed output."""

    type: Literal["tool_call_output"]
    role: str
    output: str
    images: NotRequired[list[str]]
    tool_call_id: str
    stop_reason: NotRequired[StopReason]
    x: NotRequired[Extra]
    """`content`: the blocks, where they are not one text followed by `data:` images."""


class ImageUrlPayload(TypedDict):
    """An image of the user's: a web address or a `data:` URL."""

    type: Literal["image_url"]
    role: str
    image_url: str
    stop_reason: NotRequired[StopReason]
    x: NotRequired[Extra]


class InlineDataPayload(TypedDict):
    """Data of a MIME type (base64), of the user or the model."""

    type: Literal["inline_data"]
    role: str
    data: str
    mime_type: str
    stop_reason: NotRequired[StopReason]
    fidelity: NotRequired[Opaque]
    x: NotRequired[Extra]


# ---------------------------------------------------------------- partials

EventType: TypeAlias = Literal["start", "delta", "stop"]


class PartialTextPayload(TypedDict):
    """A piece of a text. Start and stop are empty; the complete record follows the stop."""

    type: Literal["partial_text"]
    role: str
    event_type: EventType
    text: str
    stop_reason: NotRequired[StopReason]
    x: NotRequired[Extra]


class PartialThinkingPayload(TypedDict):
    """A piece of a thinking."""

    type: Literal["partial_thinking"]
    role: str
    event_type: EventType
    thinking: str
    stop_reason: NotRequired[StopReason]
    x: NotRequired[Extra]


class PartialToolCallPayload(TypedDict):
    """A piece of a call's arguments. The name stands on the start only; later ones have an empty one."""

    type: Literal["partial_tool_call"]
    role: str
    event_type: EventType
    name: str
    arguments: str
    tool_call_id: str
    stop_reason: NotRequired[StopReason]
    x: NotRequired[Extra]


class PartialToolCallOutputPayload(TypedDict):
    """A piece of a call's output, or its whole set of images in one delta before the stop."""

    type: Literal["partial_tool_call_output"]
    role: str
    event_type: EventType
    output: str
    images: NotRequired[list[str]]
    tool_call_id: str
    stop_reason: NotRequired[StopReason]
    x: NotRequired[Extra]


# ---------------------------------------------------------------- the closed lists

COMPLETE: Final[dict[str, type]] = {
    "text": TextPayload,
    "thinking": ThinkingPayload,
    "inline_thinking": InlineThinkingPayload,
    "tool_call": ToolCallPayload,
    "tool_call_output": ToolCallOutputPayload,
    "image_url": ImageUrlPayload,
    "inline_data": InlineDataPayload,
}
"""The seven complete messages."""

PARTIALS: Final[dict[str, type]] = {
    "partial_text": PartialTextPayload,
    "partial_thinking": PartialThinkingPayload,
    "partial_tool_call": PartialToolCallPayload,
    "partial_tool_call_output": PartialToolCallOutputPayload,
}
"""The four partials. The list is closed: any other `model_msg` counts as complete."""

PIECE_FIELDS: Final[dict[str, str]] = {
    "partial_text": "text",
    "partial_thinking": "thinking",
    "partial_tool_call": "arguments",
    "partial_tool_call_output": "output",
}
"""The field of each partial in which its piece stands."""
