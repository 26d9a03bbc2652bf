"""The shape of every event's payload: the protocol's twelve, and the lifecycle that we add."""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from agentloop.errors import FinishReason, StopReason
from agentloop.omni._types import Extra, Opaque

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
    """The compaction is over. `completed` closes the context, and its trace file. `x.summary` is the summary's text,
    `x.nested_usage` as in an `agent_end`, which may not follow in that file."""

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
    nested_usage: NotRequired[TokenCounts]
    """Tokens of nested runs that no `token_usage` of this one tells, since none came after them, and no `compaction_end`."""
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
