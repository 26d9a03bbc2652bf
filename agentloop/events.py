"""Every event of a run, what it says, and what stands before and after it.

The union `Event` is closed. Wire names (`type`) are the snake case of the class names; `subagent` is the one exception.
All events are frozen values. `grammar.py` holds their legal order as data. The parts of a reply are *deltas*, carried
by `MessageUpdate`; `Partial` puts them together again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import attrs

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
    "Partial",
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
    """A piece of the open text, possibly empty. The joined pieces are the block's text."""

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
    """A thinking block opens. Before and after as with `TextStart`."""

    type: ClassVar[str] = "thinking_start"
    index: int


@frozen
class ThinkingDelta:
    """A piece of the open thinking, possibly empty."""

    type: ClassVar[str] = "thinking_delta"
    index: int
    text: str


@frozen
class ThinkingEnd:
    """The open thinking is final."""

    type: ClassVar[str] = "thinking_end"
    index: int
    block: Thinking
    stop_reason: StopReason = "completed"


@frozen
class ToolCallStart:
    """A call opens: its id and name are known. After: fragments of its arguments, then `ToolCallEnd`."""

    type: ClassVar[str] = "tool_call_start"
    index: int
    id: str
    name: str


@frozen
class ToolCallDelta:
    """A fragment of the open call's arguments (JSON text), possibly empty."""

    type: ClassVar[str] = "tool_call_delta"
    index: int
    text: str


@frozen
class ToolCallEnd:
    """The open call ends. It is *complete* if `stop_reason` is `completed`; else it is left out of the message."""

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
DELTA_OF: Mapping[type, type] = {
    Text: TextDelta, Thinking: ThinkingDelta, ToolCall: ToolCallDelta,
}  # fmt: skip
END_OF: Mapping[type, type] = {
    Text: TextEnd, Thinking: ThinkingEnd, ToolCall: ToolCallEnd,
}  # fmt: skip

_STARTS = frozenset({TextStart, ThinkingStart, ToolCallStart})
_ENDS = frozenset({TextEnd, ThinkingEnd, ToolCallEnd})
_JOIN_AT = 512  # a plain list of a million pieces costs ten times the text


class Partial:
    """A reply in the making: applies deltas, and gives its message as it stood after any of them.

    `update(delta)` applies one and returns its `MessageUpdate`, whose `message` is built only when somebody reads it:
    a snapshot is a count of blocks and of characters in the open one. Deltas must come in legal order.
    """

    __slots__ = ("_chunks", "_length", "_open", "_pieces", "_slots", "header")

    def __init__(self, header: AssistantMessage) -> None:
        self.header = header
        """The message as `MessageStart` showed it (no content)."""
        self._slots: list[ContentBlock | None] = []  # blocks that have ended; None: a call that was not complete
        self._open: list[Any] = []  # per index, of every block: its start, then its whole text once it has ended
        self._pieces: list[str] | None = None
        self._chunks: list[str] = []  # of the open block: pieces that were joined, `_JOIN_AT` at a time
        self._length = 0

    def grow(self, delta: TextDelta | ThinkingDelta | ToolCallDelta) -> MessageUpdate:
        """Apply a piece of the open block. The hot path: `update` without its dispatch."""
        pieces = self._pieces
        assert pieces is not None, "a delta needs an open block"
        text = delta.text
        pieces.append(text)
        self._length = length = self._length + len(text)
        if len(pieces) >= _JOIN_AT:
            self._chunks.append("".join(pieces))
            pieces.clear()
        return MessageUpdate(delta, (self, len(self._slots), length))

    def update(self, delta: Delta) -> MessageUpdate:
        """Apply any delta and return its event."""
        kind = type(delta)
        if kind in _STARTS:
            self._pieces, self._chunks, self._length = [], [], 0
            self._open.append((delta, None))
            return MessageUpdate(delta, (self, len(self._slots), 0))
        if kind in _ENDS:
            self._open[-1] = (self._open[-1][0], self._ended_text(delta.block))  # type: ignore[union-attr]
            self._pieces, self._chunks = None, []
            complete = kind is not ToolCallEnd or delta.stop_reason == "completed"  # type: ignore[union-attr]
            self._slots.append(delta.block if complete else None)  # type: ignore[union-attr]
        elif kind is BlockAdded:
            self._open.append((delta, None))
            self._slots.append(delta.block)  # type: ignore[union-attr]
        else:
            return self.grow(delta)  # type: ignore[arg-type]
        return MessageUpdate(delta, (self, len(self._slots), -1))

    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks that have ended and count, in order."""
        return tuple([block for block in self._slots if block is not None])

    @property
    def text(self) -> str:
        """The text of the open block so far; empty when none is open."""
        return "" if self._pieces is None else "".join([*self._chunks, *self._pieces])

    def _ended_text(self, block: ContentBlock) -> str:
        """The text of the block that ends: the block's own if its pieces say the same, since a copy may be large."""
        text = _text_of(block)
        if len(text) == self._length:
            at = 0
            for piece in (*self._chunks, *(self._pieces or ())):
                if not text.startswith(piece, at):
                    return self.text
                at += len(piece)
            return text
        return self.text

    def message(self) -> AssistantMessage:
        """The message as it stands now."""
        return self._at(len(self._slots), -1 if self._pieces is None else self._length)

    def _at(self, ended: int, length: int) -> AssistantMessage:
        blocks = [block for block in self._slots[:ended] if block is not None]
        if length >= 0:
            start, text = self._open[ended]
            blocks.append(_block_so_far(start, (self.text if text is None else text)[:length]))
        return attrs.evolve(self.header, content=tuple(blocks))


def _text_of(block: ContentBlock) -> str:
    if isinstance(block, ToolCall):
        return block.arguments
    return block.thinking if isinstance(block, Thinking) else getattr(block, "text", "")


def _block_so_far(start: Any, text: str) -> ContentBlock:
    if type(start) is ToolCallStart:
        return ToolCall(start.id, start.name, text)
    return Text(text) if type(start) is TextStart else Thinking(text)


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
    """A summary that no turn took: give it first next time."""
    exception: BaseException | None = field(default=None, eq=False, repr=False, hash=False)
    """What was raised, if anything was. Not on the wire, no part of equality."""

    def raise_for_error(self) -> None:
        """Raise the original exception, or `RunError(code, message)`, unless the run ended `completed`."""
        if self.stop_reason == "completed":
            return
        if self.exception is not None:
            raise self.exception
        raise RunError(self.error_code, self.error_message, self.stop_reason)


@frozen
class TurnStart:
    """A turn begins: inputs, then at most one committed reply, then its calls. `index` counts 0, 1, 2, …"""

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
    """A message opens. An input or a result is whole already and its `MessageEnd` follows at once; a reply has no content
    yet and opens with its first content, between `RequestBegin` and `RequestEnd`."""

    type: ClassVar[str] = "message_start"
    message: AgentMessage


@frozen
class MessageUpdate:
    """A part of the open reply. Between its `MessageStart` and `MessageEnd`.

    `message` is the partial message as it stood at this event: a value of its own, built when it is read. It takes no part
    in equality, hash and repr.
    """

    type: ClassVar[str] = "message_update"
    __match_args__ = ("delta", "message")
    delta: Delta
    _message: Any = field(default=None, eq=False, repr=False, hash=False)

    @property
    def message(self) -> AssistantMessage:
        """The reply so far, this delta included."""
        held = self._message
        if type(held) is tuple:
            partial, ended, length = held
            return partial._at(ended, length)  # type: ignore[no-any-return]
        if held is None:
            raise AttributeError("this MessageUpdate was built without its message")
        return held  # type: ignore[no-any-return]


@frozen
class MessageEnd:
    """The message is final. Nothing of it comes after this."""

    type: ClassVar[str] = "message_end"
    message: AgentMessage


# ---------------------------------------------------------------- tools


@frozen
class ToolExecutionStart:
    """A call starts: all hooks and approvals are behind it. After: its updates, then its end. Calls interleave."""

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
    """A call is over, in order of completion. Its result message follows as soon as all earlier calls' are out."""

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
    """The tools that the next request offers. Before the first request, and before each whose list differs."""

    type: ClassVar[str] = "tool_list_ready"
    tools: tuple[ToolSpec, ...] = field(converter=as_tuple)


@frozen
class McpConnectBegin:
    """Servers are being connected. After the inputs of the first turn; `McpConnectEnd` follows."""

    type: ClassVar[str] = "mcp_connect_begin"
    servers: tuple[str, ...] = field(converter=as_tuple)


@frozen
class McpServerStatus:
    """What became of one server: its `status` is `completed`, `fatal` or `aborted`."""

    server: str
    transport: Literal["stdio", "http", "sse"]
    status: StopReason
    duration_ms: int
    tools: int | None = None
    error_code: str | None = None
    error_message: str | None = None


@frozen
class McpConnectEnd:
    """Connecting is over: `completed` all connected, `fatal` some failed (the run goes on without them), `aborted`."""

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
    """The request is over. `completed` if and only if the reply is committed. A retry follows if `retry_in_ms` is set."""

    type: ClassVar[str] = "request_end"
    status: StopReason = "completed"
    attempt: int = 1
    retry_in_ms: int | None = None
    """The wait before the next attempt, really waited; None: no retry within this run."""
    error_code: str | None = None
    error_message: str | None = None
    usage: Usage | None = None
    """What an attempt that was not committed had reported; None for a committed one (see `TokenUsage`)."""


@frozen
class ApprovalRequest:
    """Somebody is asked whether a call may run, with the arguments as shown. Before its `ApprovalDecision`."""

    type: ClassVar[str] = "approval_request"
    tool_call_id: str
    tool_name: str
    arguments: str = field(converter=valid_text)


@frozen
class ApprovalDecision:
    """The answer, for exactly these arguments. `forbidden` is a policy's veto. Before the call's start."""

    type: ClassVar[str] = "approval_decision"
    decision: Literal["allow", "deny", "forbidden"]
    tool_call_id: str
    arguments: str | None = None


@frozen
class TokenUsage:
    """Tokens of the request that is about to complete, and of the session so far with it. Right before `RequestEnd`."""

    type: ClassVar[str] = "token_usage"
    session: Usage
    request: Usage


@frozen
class CompactionBegin:
    """A compaction starts: `context` tokens and `turns` as they stand. After a `TurnEnd`, or first in a run of its own."""

    type: ClassVar[str] = "compaction_begin"
    reason: Literal["context", "turns", "manual"]
    mode: Literal["summarize", "discard"]
    context: int = 0
    turns: int = 0


@frozen
class CompactionEnd:
    """The compaction is over. `completed`: the history is void and `summary` is the next turn's first input."""

    type: ClassVar[str] = "compaction_end"
    reason: Literal["context", "turns", "manual"]
    mode: Literal["summarize", "discard"]
    status: StopReason = "completed"
    attempt: int | None = None
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
    """A running call opened a child session. Among that call's updates, before the child's events."""

    type: ClassVar[str] = "subagent"
    session_id: str
    tool_call_id: str | None = None
    meta: JsonObject | None = field(default=None, converter=frozen_object)
    """The child's session meta, where it is known."""


@frozen
class Hook:
    """A hook gave an answer. Right before what it decides: an approval, a call, the next turn; after an input for
    `user_prompt`."""

    type: ClassVar[str] = "hook"
    hook: Literal["stop", "pre_tool_use", "user_prompt"]
    name: str
    decision: Literal["continue", "stop", "allow", "deny"] | None = None
    reason: str | None = None
    output: JsonObject | None = field(default=None, converter=frozen_object)
    tool_call_id: str | None = None


@frozen
class ChildEvent:
    """An event of a nested run, among the updates of the call that runs it. `origin` is outermost first."""

    type: ClassVar[str] = "child_event"
    origin: tuple[str, ...] = field(converter=as_tuple)
    event: Event


@frozen
class Foreign:
    """A record of a kind that we do not know, only out of a decoder. It may stand anywhere and is written back as it came."""

    type: ClassVar[str] = "foreign"
    record: JsonObject = field(converter=frozen_json)


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
