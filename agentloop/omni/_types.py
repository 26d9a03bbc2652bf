"""The shape of every record: the envelope and its payloads as types.

At run time a record is a plain dict; keys stand in the order of these classes. The builders write that order and
`check_record` reads these classes, so that a field is described in one place. Everything of ours that stands on a record
of the protocol stands under the one key `x`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from agentloop.errors import FinishReason, StopReason

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
    """One record."""

    timestamp: str
    """ISO 8601 UTC with milliseconds and `Z`: when the record was built."""
    type: Literal["session_meta", "model_msg", "event_msg"]
    payload: dict[str, Any]
    origin: NotRequired[list[str]]
    """Child session ids, outermost first; absent for the main session, never empty."""


class SessionMetaPayload(TypedDict):
    """The configuration of one model context; the first record of every trace file."""

    session_id: str
    provider: NotRequired[str]
    """Absent only in old traces, which cannot be resumed."""
    model_id: NotRequired[str]
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


# ---------------------------------------------------------------- the protocol's events


class ToolEntry(TypedDict):
    """A tool in `tool_list_ready`. `parameters` is a JSON Schema; `x.label` a name for people."""

    name: str
    description: str
    parameters: NotRequired[Opaque]
    x: NotRequired[Extra]


class ToolListReadyPayload(TypedDict):
    """The tools that the next request offers."""

    type: Literal["tool_list_ready"]
    tools: list[ToolEntry]
    x: NotRequired[Extra]


class McpConnectBeginPayload(TypedDict):
    """Servers are being connected."""

    type: Literal["mcp_connect_begin"]
    servers: list[str]
    x: NotRequired[Extra]


class McpServerEntry(TypedDict):
    """What became of one server."""

    server: str
    transport: Literal["stdio", "http", "sse"]
    status: StopReason
    duration_ms: int
    tools: NotRequired[int]
    error_code: NotRequired[str]
    error_message: NotRequired[str]


class McpConnectEndPayload(TypedDict):
    """Connecting is over."""

    type: Literal["mcp_connect_end"]
    status: StopReason
    results: list[McpServerEntry]
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    x: NotRequired[Extra]


class RequestBeginPayload(TypedDict):
    """The model is about to be asked. `x.attempt` when it is not the first."""

    type: Literal["request_begin"]
    x: NotRequired[Extra]


class RequestEndPayload(TypedDict):
    """The request is over; `completed` if and only if the reply is committed. `x.usage`: what a failed one reported."""

    type: Literal["request_end"]
    status: StopReason
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    attempt: NotRequired[int]
    """From 1; absent on a clean first try."""
    retry_in_ms: NotRequired[int]
    """Only when a retry follows: the wait in milliseconds."""
    x: NotRequired[Extra]


class ApprovalDecisionPayload(TypedDict):
    """The answer about one call; the arguments that were shown stand under `x`."""

    type: Literal["approval_decision"]
    decision: Literal["allow", "deny", "forbidden"]
    tool_call_id: str
    x: NotRequired[Extra]


class TokenCounts(TypedDict):
    """Tokens; `total` is the sum of the other three."""

    cache_read: int
    cache_write: int
    output: int
    total: int


class TokenUsagePayload(TypedDict):
    """Tokens of the request that is about to complete, and of the session so far with it."""

    type: Literal["token_usage"]
    session: TokenCounts
    request: TokenCounts
    x: NotRequired[Extra]


CompactionReason: TypeAlias = Literal["context", "turns", "manual"]
CompactionMode: TypeAlias = Literal["summarize", "discard"]


class CompactionBeginPayload(TypedDict):
    """A compaction starts; tokens and turns of the context as they stand."""

    type: Literal["compaction_begin"]
    reason: CompactionReason
    mode: CompactionMode
    context: int
    turns: int
    x: NotRequired[Extra]


class CompactionEndPayload(TypedDict):
    """The compaction is over. `completed` closes the context, and its trace file. `x.summary` is the summary's text."""

    type: Literal["compaction_end"]
    reason: CompactionReason
    mode: CompactionMode
    status: StopReason
    attempt: NotRequired[int]
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    x: NotRequired[Extra]


class AbortPayload(TypedDict):
    """A user's interruption, and nothing else."""

    type: Literal["abort"]
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    x: NotRequired[Extra]


class SubagentPayload(TypedDict):
    """Points to a direct child's session. `x`: the `tool_call_id` that runs it; `meta`: true when its meta follows."""

    type: Literal["subagent"]
    session_id: str
    x: NotRequired[Extra]


class HookPayload(TypedDict):
    """A hook's answer. `output` is an object of scalars; `x.tool_call_id` the call it decides."""

    type: Literal["hook"]
    hook: Literal["stop", "pre_tool_use", "user_prompt"]
    name: str
    decision: NotRequired[Literal["continue", "stop", "allow", "deny"]]
    reason: NotRequired[str]
    output: NotRequired[Opaque]
    x: NotRequired[Extra]


# ---------------------------------------------------------------- our own events


class AgentStartPayload(TypedDict):
    """A run begins."""

    type: Literal["agent_start"]
    x: NotRequired[Extra]


class AgentEndPayload(TypedDict):
    """A run is over."""

    type: Literal["agent_end"]
    status: StopReason
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    usage: TokenCounts
    replaces_context: NotRequired[bool]
    x: NotRequired[Extra]


class TurnStartPayload(TypedDict):
    """A turn begins. `index` counts from 0 in each run."""

    type: Literal["turn_start"]
    index: int
    x: NotRequired[Extra]


class TurnEndPayload(TypedDict):
    """A turn is over."""

    type: Literal["turn_end"]
    x: NotRequired[Extra]


class MessageStartPayload(TypedDict):
    """A message opens: its blocks, or for a custom role one `custom_message`, follow until `message_end`."""

    type: Literal["message_start"]
    role: str
    provider: NotRequired[str]
    model: NotRequired[str]
    sender: NotRequired[str]
    """Of a user message whose texts do not say it."""
    tool_call_id: NotRequired[str]
    """Of a result: its content is the output of that call."""
    tool_name: NotRequired[str]
    """This and the next three: of a result that came as an input, with its own output before `message_end`."""
    is_error: NotRequired[bool]
    details: NotRequired[Any]
    structured: NotRequired[Any]
    x: NotRequired[Extra]


class MessageEndPayload(TypedDict):
    """The message is final. Only a reply's end has fields."""

    type: Literal["message_end"]
    stop_reason: NotRequired[StopReason | None]
    finish_reason: NotRequired[FinishReason | None]
    usage: NotRequired[TokenCounts]
    error_code: NotRequired[str]
    error_message: NotRequired[str]
    fidelity: NotRequired[Opaque]
    provider: NotRequired[str | None]
    """This and `model`: only where they are not those of `message_start`."""
    model: NotRequired[str | None]
    x: NotRequired[Extra]


class CustomMessagePayload(TypedDict):
    """A message of an application's own role."""

    type: Literal["custom_message"]
    role: str
    data: Any
    x: NotRequired[Extra]


class ToolExecutionStartPayload(TypedDict):
    """A call starts, with the arguments that run."""

    type: Literal["tool_execution_start"]
    tool_call_id: str
    tool_name: str
    arguments: str
    x: NotRequired[Extra]


class ToolResultObject(TypedDict):
    """A tool's result as an object. `content` is a list of blocks."""

    content: list[Opaque]
    details: NotRequired[Any]
    structured: NotRequired[Any]
    is_error: NotRequired[bool]
    terminate: NotRequired[bool]


class ToolExecutionUpdatePayload(TypedDict):
    """Progress of a running call; replaces the one before."""

    type: Literal["tool_execution_update"]
    tool_call_id: str
    tool_name: str
    partial_result: NotRequired[ToolResultObject]
    x: NotRequired[Extra]


class ToolExecutionEndPayload(TypedDict):
    """A call is over; its content is the `tool_call_output` before."""

    type: Literal["tool_execution_end"]
    tool_call_id: str
    tool_name: str
    is_error: bool
    error_code: NotRequired[str]
    details: NotRequired[Any]
    structured: NotRequired[Any]
    terminate: NotRequired[bool]
    x: NotRequired[Extra]


class ApprovalRequestPayload(TypedDict):
    """Somebody is asked whether a call may run, with the arguments as shown."""

    type: Literal["approval_request"]
    tool_call_id: str
    tool_name: str
    arguments: str
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

PROTOCOL_EVENTS: Final[dict[str, type]] = {
    "tool_list_ready": ToolListReadyPayload,
    "mcp_connect_begin": McpConnectBeginPayload,
    "mcp_connect_end": McpConnectEndPayload,
    "request_begin": RequestBeginPayload,
    "request_end": RequestEndPayload,
    "approval_decision": ApprovalDecisionPayload,
    "token_usage": TokenUsagePayload,
    "compaction_begin": CompactionBeginPayload,
    "compaction_end": CompactionEndPayload,
    "abort": AbortPayload,
    "subagent": SubagentPayload,
    "hook": HookPayload,
}
"""The twelve events of the protocol."""

OWN_EVENTS: Final[dict[str, type]] = {
    "agent_start": AgentStartPayload,
    "agent_end": AgentEndPayload,
    "turn_start": TurnStartPayload,
    "turn_end": TurnEndPayload,
    "message_start": MessageStartPayload,
    "message_end": MessageEndPayload,
    "custom_message": CustomMessagePayload,
    "tool_execution_start": ToolExecutionStartPayload,
    "tool_execution_update": ToolExecutionUpdatePayload,
    "tool_execution_end": ToolExecutionEndPayload,
    "approval_request": ApprovalRequestPayload,
}
"""The lifecycle events that we add; other readers ignore them."""

EVENTS: Final[dict[str, type]] = {**PROTOCOL_EVENTS, **OWN_EVENTS}
"""Every `event_msg` that we know."""
