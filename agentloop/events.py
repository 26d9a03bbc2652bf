"""Every event of a run, what it says, and what stands before and after it.

The union `Event` is closed. Wire names (`type`) are the snake case of the class names; `subagent` is the one exception.
All events are frozen values. `grammar.py` holds their legal order as data. The parts of a reply are *deltas*, carried
by `MessageUpdate`; `reply.py` puts them together again.

Fields that recur mean the same in every event:

- `index` of a delta: the block of the reply that it belongs to, counted from 0; `block`: that block, complete.
- `tool_call_id`, `tool_name`: the call that the event is about; in `Hook`, None where it is about no call.
- `arguments`: JSON text of the call's arguments.
- `stop_reason`, `status`: how it ended: `completed`, `aborted`, `retryable` (asking again may help) or `fatal`.
- `error_code`: one of `errors.ERROR_CODES`; `error_message`: the same in words. None where nothing went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from agentloop._frozen import field, frozen
from agentloop._values import as_tuple, frozen_json, frozen_object, valid_text
from agentloop.errors import RunError, StopReason
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    JsonObject,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
)

__all__ = [
    "Abort",
    "AgentEnd",
    "AgentStart",
    "ApprovalDecision",
    "ApprovalRequest",
    "BlockAdded",
    "ChildEvent",
    "CompactionBegin",
    "CompactionEnd",
    "Delta",
    "Event",
    "Foreign",
    "Hook",
    "McpConnectBegin",
    "McpConnectEnd",
    "McpServerStatus",
    "MessageEnd",
    "MessageStart",
    "MessageUpdate",
    "RequestBegin",
    "RequestEnd",
    "SubagentStarted",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ThinkingDelta",
    "ThinkingEnd",
    "ThinkingStart",
    "TokenUsage",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolExecutionEnd",
    "ToolExecutionStart",
    "ToolExecutionUpdate",
    "ToolListReady",
    "TurnEnd",
    "TurnStart",
]

# ---------------------------------------------------------------- deltas: the parts of a reply


@frozen
class TextStart:
    """A text block opens. Before: the reply's start or the end of the block before. After: its deltas, then `TextEnd`."""

    type: ClassVar[str] = "text_start"
    index: int
    """Counts the starts of the reply from 0."""


@frozen
class TextDelta:
    """`text` is a piece of the open text, possibly empty. The joined pieces are the block's text."""

    type: ClassVar[str] = "text_delta"
    index: int
    text: str


@frozen
class TextEnd:
    """The open text is final. After: the next block or the reply's end."""

    type: ClassVar[str] = "text_end"
    index: int
    block: Text
    stop_reason: StopReason = "completed"
    """`completed`, or why the block was closed early; its text stays in the message all the same."""


@frozen
class ThinkingStart:
    """A thinking block opens. Before: as for `TextStart`. After: its deltas, then `ThinkingEnd`."""

    type: ClassVar[str] = "thinking_start"
    index: int


@frozen
class ThinkingDelta:
    """`text` is a piece of the open thinking, possibly empty. The joined pieces are the block's thinking."""

    type: ClassVar[str] = "thinking_delta"
    index: int
    text: str


@frozen
class ThinkingEnd:
    """The open thinking is final. After: the next block or the reply's end."""

    type: ClassVar[str] = "thinking_end"
    index: int
    block: Thinking
    stop_reason: StopReason = "completed"
    """As in `TextEnd`."""


@frozen
class ToolCallStart:
    """A call opens: its `id` and `name` are known. After: fragments of its arguments, then `ToolCallEnd`."""

    type: ClassVar[str] = "tool_call_start"
    index: int
    id: str
    name: str


@frozen
class ToolCallDelta:
    """`text` is a fragment of the open call's arguments (JSON text), possibly empty."""

    type: ClassVar[str] = "tool_call_delta"
    index: int
    text: str


@frozen
class ToolCallEnd:
    """The open call ends. It is *complete* if `stop_reason` is `completed`; else it is left out of the message.
    After: the next block or the reply's end."""

    type: ClassVar[str] = "tool_call_end"
    index: int
    block: ToolCall
    stop_reason: StopReason = "completed"


@frozen
class BlockAdded:
    """A block that does not stream (data, or a provider's own block), whole. No block is open before or after it."""

    type: ClassVar[str] = "block_added"
    index: int
    block: ContentBlock


Delta: TypeAlias = (
    TextStart
    | TextDelta
    | TextEnd
    | ThinkingStart
    | ThinkingDelta
    | ThinkingEnd
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | BlockAdded
)
"""What `MessageUpdate.delta` is one of."""

START_OF: Mapping[type, type] = {
    Text: TextStart, Thinking: ThinkingStart, ToolCall: ToolCallStart,
}  # fmt: skip
END_OF: Mapping[type, type] = {
    Text: TextEnd, Thinking: ThinkingEnd, ToolCall: ToolCallEnd,
}  # fmt: skip

# ---------------------------------------------------------------- run and turn


@frozen
class AgentStart:
    """The run begins. The first event of every run, once."""

    type: ClassVar[str] = "agent_start"


@frozen
class AgentEnd:
    """The run is over. The last event of every run, once; after the last `TurnEnd`, compaction or `Abort`."""

    type: ClassVar[str] = "agent_end"
    messages: tuple[AgentMessage, ...] = field(default=(), converter=as_tuple)
    """Inputs, committed replies and their results, in the order of their `MessageEnd`; and the last attempt's reply with
    its results when the run did not end `completed`."""
    stop_reason: StopReason = "completed"
    error_code: str | None = None
    error_message: str | None = None
    usage: Usage = Usage()
    """The sum over the run, each attempt once."""
    replaces_context: bool = False
    """A compaction completed: the caller's old list is void, `messages` stands for all of it."""
    pending_summary: UserMessage | None = None
    """The summary of a compaction that no turn followed: give it as the first message of the next run."""
    exception: BaseException | None = field(default=None, eq=False, repr=False, hash=False)
    """The exception that ended the run, if one did. Not on the wire, and no part of equality."""

    def raise_for_error(self) -> None:
        """Raise the original exception, or `RunError(code, message)`, unless the run ended `completed`."""
        if self.stop_reason == "completed":
            return
        if self.exception is not None:
            raise self.exception
        raise RunError(self.error_code, self.error_message, self.stop_reason)


@frozen
class TurnStart:
    """A turn begins: inputs, then at most one committed reply, then its calls. `index` counts the turns from 0."""

    type: ClassVar[str] = "turn_start"
    index: int


@frozen
class TurnEnd:
    """The turn is over; all its messages and calls have ended. After: polls, then the next turn or the run's end."""

    type: ClassVar[str] = "turn_end"
    message: AssistantMessage | None = None
    """The reply of the last attempt; None when that had none (and in a turn of open calls)."""
    tool_results: tuple[ToolResultMessage, ...] = field(default=(), converter=as_tuple)
    """The turn's results, in call order."""


# ---------------------------------------------------------------- messages


@frozen
class MessageStart:
    """`message` opens. An input or a result is complete already and its `MessageEnd` follows at once. A reply opens, still
    empty, when its first content is there, between `RequestBegin` and `RequestEnd`."""

    type: ClassVar[str] = "message_start"
    message: AgentMessage


@frozen
class MessageUpdate:
    """`delta` is a part of the open reply. Between its `MessageStart` and `MessageEnd`.

    `message` is the partial message as it stood at this event, built when it is read. It takes no part in equality, hash
    and repr.
    """

    type: ClassVar[str] = "message_update"
    __match_args__ = ("delta", "message")
    delta: Delta
    _message: Any = field(default=None, eq=False, repr=False, hash=False)
    """The message; or a `reply.Partial` and where in it this event stands."""

    @property
    def message(self) -> AssistantMessage:
        """The reply so far, this delta included. Raises `AttributeError` for an event that was made without one."""
        held = self._message
        if type(held) is tuple:
            partial, ended, length = held
            return partial.at(ended, length)  # type: ignore[no-any-return]
        if held is None:
            raise AttributeError("this MessageUpdate was built without its message")
        return held  # type: ignore[no-any-return]


@frozen
class MessageEnd:
    """`message` is final. Nothing of it comes after this."""

    type: ClassVar[str] = "message_end"
    message: AgentMessage


# ---------------------------------------------------------------- tools


@frozen
class ToolExecutionStart:
    """A call starts: its hooks and approvals are over. After: its updates, then its end. The events of calls that run
    side by side interleave."""

    type: ClassVar[str] = "tool_execution_start"
    tool_call_id: str
    tool_name: str
    arguments: str = field(converter=valid_text)
    """JSON text of what runs; of a call that cannot be parsed, as the model sent it."""


@frozen
class ToolExecutionUpdate:
    """Progress of a running call: either `partial_result`, which replaces the one before, or `delta`, a piece of its
    output itself."""

    type: ClassVar[str] = "tool_execution_update"
    tool_call_id: str
    tool_name: str
    partial_result: ToolResult | None = None
    delta: str | None = None


@frozen
class ToolExecutionEnd:
    """A call is over with `result`; these events come in the order in which calls end. The message with the result follows
    in call order: as soon as those of all earlier calls are out. `is_error`: the call failed or did not run."""

    type: ClassVar[str] = "tool_execution_end"
    tool_call_id: str
    tool_name: str
    result: ToolResult
    is_error: bool = False
    stop_reason: StopReason = "completed"
    error_code: str | None = None


# ---------------------------------------------------------------- around them


@frozen
class ToolListReady:
    """`tools` are those that the next request offers. Before the first request, and before each whose list differs."""

    type: ClassVar[str] = "tool_list_ready"
    tools: tuple[ToolSpec, ...] = field(converter=as_tuple)


@frozen
class McpConnectBegin:
    """The servers of tools named in `servers` are being connected. After the first turn's inputs; `McpConnectEnd` follows."""

    type: ClassVar[str] = "mcp_connect_begin"
    servers: tuple[str, ...] = field(converter=as_tuple)


@frozen
class McpServerStatus:
    """What became of one server: its `status` is `completed`, `fatal` or `aborted`."""

    server: str
    """Its name."""
    transport: Literal["stdio", "http", "sse"]
    """How it is reached."""
    status: StopReason
    duration_ms: int
    """How long connecting took, in milliseconds."""
    tools: int | None = None
    """How many tools it offers; None if it is not connected."""
    error_code: str | None = None
    error_message: str | None = None


@frozen
class McpConnectEnd:
    """Connecting is over. `completed`: all servers are connected; `fatal`: some failed, and the run goes on without them;
    `aborted`: the run was stopped meanwhile. `results` holds one entry for each server."""

    type: ClassVar[str] = "mcp_connect_end"
    status: StopReason
    results: tuple[McpServerStatus, ...] = field(default=(), converter=as_tuple)
    error_code: str | None = None
    error_message: str | None = None


@frozen
class RequestBegin:
    """The model is about to be asked. `attempt` counts from 1 in each turn. After: the reply, usage, `RequestEnd`."""

    type: ClassVar[str] = "request_begin"
    attempt: int = 1


@frozen
class RequestEnd:
    """The request is over. `completed` if and only if the reply is committed. A retry follows if `retry_in_ms` is set.
    `attempt` is that of its `RequestBegin`."""

    type: ClassVar[str] = "request_end"
    status: StopReason = "completed"
    attempt: int = 1
    retry_in_ms: int | None = None
    """The wait before the next attempt, in milliseconds; None: no retry within this run."""
    error_code: str | None = None
    error_message: str | None = None
    usage: Usage | None = None
    """What an attempt that was not committed had reported; None for a committed one (see `TokenUsage`)."""


@frozen
class ApprovalRequest:
    """Somebody is asked whether a call may run with these arguments. Before its `ApprovalDecision`."""

    type: ClassVar[str] = "approval_request"
    tool_call_id: str
    tool_name: str
    arguments: str = field(converter=valid_text)


@frozen
class ApprovalDecision:
    """The answer about a call, for exactly these arguments. Before the call's start."""

    type: ClassVar[str] = "approval_decision"
    decision: Literal["allow", "deny", "forbidden"]
    """`forbidden` is a policy's veto, which no hook or person overrides."""
    tool_call_id: str
    arguments: str | None = None
    """As they were shown; None only in records of other writers."""


@frozen
class TokenUsage:
    """Tokens of the `request` that is about to complete, and of the `session` so far, this request included. Right before
    `RequestEnd`."""

    type: ClassVar[str] = "token_usage"
    session: Usage
    request: Usage


@frozen
class CompactionBegin:
    """A compaction starts. After a `TurnEnd`, or first in a run of its own."""

    type: ClassVar[str] = "compaction_begin"
    reason: Literal["context", "turns", "manual"]
    """What made it due: the tokens or the turns of the context, or somebody who asked for it."""
    mode: Literal["summarize", "discard"]
    """Whether a summary replaces the context, or nothing does."""
    context: int = 0
    """Tokens of the context as it stands."""
    turns: int = 0
    """Turns of the context as it stands."""


@frozen
class CompactionEnd:
    """The compaction is over; `reason` and `mode` repeat those of its `CompactionBegin`. `completed`: the history is void and
    `summary` is the next turn's first input. Any other `status`: the history stays as it was."""

    type: ClassVar[str] = "compaction_end"
    reason: Literal["context", "turns", "manual"]
    mode: Literal["summarize", "discard"]
    status: StopReason = "completed"
    attempt: int | None = None
    """How many requests for a summary there were; None: none."""
    error_code: str | None = None
    error_message: str | None = None
    summary: UserMessage | None = None


@frozen
class Abort:
    """A user's abort, and nothing else. Right before `AgentEnd`."""

    type: ClassVar[str] = "abort"
    error_code: str | None = None
    """`user_abort`, `backoff_interrupted` or `compaction_interrupted`."""
    error_message: str | None = None
    """The caller's reason."""


@frozen
class SubagentStarted:
    """A running call opened the child session `session_id`. Among that call's updates, before the child's events."""

    type: ClassVar[str] = "subagent"
    session_id: str
    tool_call_id: str | None = None
    meta: JsonObject | None = field(default=None, converter=frozen_object)
    """The `session_meta` of the child, where it is known."""


@frozen
class Hook:
    """A hook gave an answer. Right before what it decides: an approval, a call, the next turn; after an input for
    `user_prompt`."""

    type: ClassVar[str] = "hook"
    hook: Literal["stop", "pre_tool_use", "user_prompt"]
    """Which hook it was."""
    name: str
    """The `config.Hooks.name` of the set that it belongs to."""
    decision: Literal["continue", "stop", "allow", "deny"] | None = None
    """None: it failed, or only recorded something."""
    reason: str | None = None
    """Why, in the hook's words; `hook failed: …` if it raised."""
    output: JsonObject | None = field(default=None, converter=frozen_object)
    """What the hook wants recorded beside its answer."""
    tool_call_id: str | None = None


@frozen
class ChildEvent:
    """`event` is one of a nested run, among the updates of the call that runs it. `origin` holds the ids of the sessions
    that it came through, outermost first."""

    type: ClassVar[str] = "child_event"
    origin: tuple[str, ...] = field(converter=as_tuple)
    event: Event


@frozen
class Foreign:
    """A record of a kind that this version does not know. Only a decoder gives it, never a run. It may stand anywhere and is
    written back as it came."""

    type: ClassVar[str] = "foreign"
    record: JsonObject = field(converter=frozen_json)
    """All of it, its envelope included."""


Event: TypeAlias = (
    AgentStart
    | AgentEnd
    | TurnStart
    | TurnEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | ToolExecutionStart
    | ToolExecutionUpdate
    | ToolExecutionEnd
    | ToolListReady
    | McpConnectBegin
    | McpConnectEnd
    | RequestBegin
    | RequestEnd
    | ApprovalRequest
    | ApprovalDecision
    | TokenUsage
    | CompactionBegin
    | CompactionEnd
    | Abort
    | SubagentStarted
    | Hook
    | ChildEvent
    | Foreign
)
"""Everything that a run yields."""
