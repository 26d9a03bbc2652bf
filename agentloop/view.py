"""The screen's reducer: from a run's events to what a person sees.

    view = View()
    async for event in agent_loop(…):
        for change in view.feed(event, now=clock.now()):
            …  # draw it

`View.items` is the transcript in order: bubbles (prompts, text, thinking), tool cards, turn separators, notices. Beside
it stand the things of which there is one: what goes on (`activity`, for a spinner), the wait before a retry, the open
questions of approval, usage. `feed` says what changed, so that a screen touches nothing else; terminal and page draw
from it alike.

Pure: no input or output, and no clock, the time is handed in (seconds from any origin). Every event costs O(1), a delta
too; a text is put together when somebody reads it. It takes live streams and decoded traces (without partials) alike,
several runs one after the other, and streams that break off; it never raises on the order of events, that is the
grammar's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from agentloop._screen import (
    Activity,
    Bubble,
    Change,
    CompactionCard,
    Item,
    Notice,
    Pieces,
    RetryWait,
    Screen,
    Separator,
    ToolCard,
)
from agentloop.events import (
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnStart,
)
from agentloop.messages import (
    AssistantMessage,
    ContentBlock,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    Usage,
    UserMessage,
)

__all__ = [
    "Activity",
    "Bubble",
    "Change",
    "CompactionCard",
    "Item",
    "Notice",
    "RetryWait",
    "Screen",
    "Separator",
    "ToolCard",
    "View",
]


class View(Screen):
    """A screen that is fed with events. Change it with `feed` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._cards: dict[str, ToolCard] = {}
        self._children: dict[str, tuple[ToolCard, View]] = {}
        self._inner: View | None = None  # of the compaction that goes on
        self._attempt_at: int | None = None  # where the items of an attempt begin that is not committed
        self._blocks = 0  # blocks of the open reply that were seen
        self._summary: UserMessage | None = None
        self._keys = 0

    def feed(self, event: Event, now: float) -> Sequence[Change]:
        """Take the next event, at the time `now`; returns what it changed, in order."""
        if type(event) is MessageUpdate:
            delta = event.delta
            if (type(delta) is TextDelta or type(delta) is ThinkingDelta) and type(self._open) is Bubble:
                self._open._text.add(delta.text)
                return (Change("grew", self._open, delta.text),)
        if self._compaction is not None and type(event) not in _OUTSIDE_COMPACTION:
            if self._inner is not None:
                self._inner.feed(event, now)
            return (Change("changed", self._compaction),)
        handler = _HANDLERS.get(type(event))
        return () if handler is None else handler(self, event, now)

    def _add(self, item: Item) -> Change:
        self.items.append(item)
        return Change("added", item)

    def _drop(self, card: ToolCard) -> Change:
        position = next(n for n in range(len(self.items) - 1, -1, -1) if self.items[n] is card)  # at or near the end
        del self.items[position], self._cards[card.id]
        return Change("dropped", card)

    def _key(self) -> int:
        self._keys += 1
        return self._keys

    # ------------------------------------------------------------ run, turn, request

    def _agent_start(self, event: AgentStart, now: float) -> Sequence[Change]:
        self.end = self.retry = self.turn = self.ended_at = None
        self.usage = Usage()
        self.started_at = now
        self._close_run()
        return ()

    def _agent_end(self, event: AgentEnd, now: float) -> Sequence[Change]:
        self.end, self.ended_at, self.retry = event, now, None
        self.usage = event.usage
        self._close_run()
        if event.stop_reason == "completed":
            return ()
        kind: Literal["aborted", "error"] = "aborted" if event.stop_reason == "aborted" else "error"
        words = event.error_message or event.error_code or event.stop_reason
        return (self._add(Notice(self._key(), kind, words, event.error_code)),)

    def _close_run(self) -> None:
        self._open = self._compaction = self._inner = self._attempt_at = None
        self._requesting = self._connecting = False
        self.approvals.clear()
        self.running.clear()

    def _turn_start(self, event: TurnStart, now: float) -> Sequence[Change]:
        self.turn = event.index
        return (self._add(Separator(self._key(), event.index)),)

    def _request_begin(self, event: RequestBegin, now: float) -> Sequence[Change]:
        self.retry, self._requesting = None, True
        dropped = [] if self._attempt_at is None else self.items[self._attempt_at :]
        if self._attempt_at is not None:
            del self.items[self._attempt_at :]
        self._attempt_at = len(self.items)
        return [Change("dropped", item) for item in dropped]

    def _request_end(self, event: RequestEnd, now: float) -> Sequence[Change]:
        self._requesting, self._open = False, None
        if event.usage is not None:
            self.usage += event.usage
        if event.status == "completed":
            self._attempt_at = None
        elif event.retry_in_ms is not None:
            due = now + event.retry_in_ms / 1000
            self.retry = RetryWait(event.attempt + 1, due, event.error_code, event.error_message)
        return ()

    def _token_usage(self, event: TokenUsage, now: float) -> Sequence[Change]:
        self.usage += event.request
        self.session_usage = event.session
        self.context_tokens = event.request.total
        return ()

    # ------------------------------------------------------------ messages

    def _message_start(self, event: MessageStart, now: float) -> Sequence[Change]:
        self._blocks = 0
        return ()

    def _message_update(self, event: MessageUpdate, now: float) -> Sequence[Change]:
        delta = event.delta
        kind = type(delta)
        if kind is TextDelta or kind is ThinkingDelta:
            return ()  # a piece without its bubble: the stream has a hole, or came in another order
        if kind is ToolCallDelta:
            if type(self._open) is not ToolCard:
                return ()
            self._open._arguments.add(delta.text)  # type: ignore[union-attr]
            return (Change("grew", self._open, delta.text),)  # type: ignore[union-attr]
        if kind is TextStart or kind is ThinkingStart:
            self._open = Bubble(self._key(), "text" if kind is TextStart else "thinking", open=True)
        elif kind is ToolCallStart:
            self._open = self._new_card(delta.id, delta.name)  # type: ignore[union-attr]
        elif kind is BlockAdded:
            return self._block(delta.block)  # type: ignore[union-attr]
        else:
            return self._block_end(delta)  # type: ignore[arg-type]
        self._blocks += 1
        return (self._add(self._open),)

    def _block_end(self, delta: TextEnd | ThinkingEnd | ToolCallEnd) -> Sequence[Change]:
        item, self._open = self._open, None
        if item is None:
            return ()
        cut = delta.stop_reason != "completed"
        if isinstance(item, ToolCard):
            if cut:  # half a call is no part of the message
                return (self._drop(item),)
            item.state = "queued"
        else:
            item.open, item.cut, item.content = False, cut, delta.block
        return (Change("changed", item),)

    def _block(self, block: ContentBlock) -> Sequence[Change]:
        """A block that comes whole."""
        self._blocks += 1
        if isinstance(block, ToolCall):
            card = self._new_card(block.id, block.name)
            card.state, card._arguments = "queued", Pieces(block.arguments)
            return (self._add(card),)
        if isinstance(block, Text | Thinking):
            text = block.text if isinstance(block, Text) else block.thinking
            if not text:
                return ()  # a provider's own block, or thinking that is not shown
            kind: Any = "text" if isinstance(block, Text) else "thinking"
            return (self._add(Bubble(self._key(), kind, content=block, text=Pieces(text))),)
        return (self._add(Bubble(self._key(), "data", content=block)),)

    def _message_end(self, event: MessageEnd, now: float) -> Sequence[Change]:
        message = event.message
        if isinstance(message, ToolResultMessage):
            return self._result(message, now)
        if isinstance(message, AssistantMessage):
            return self._reply_end(message)
        if not isinstance(message, UserMessage):
            return (self._add(Bubble(self._key(), "custom", content=message)),)
        summary = message == self._summary
        self._summary = None
        text = Pieces(message.text)
        return (self._add(Bubble(self._key(), "summary" if summary else "user", content=message, text=text)),)

    def _reply_end(self, message: AssistantMessage) -> Sequence[Change]:
        self._open = None
        unseen = () if self._blocks else message.content  # a source without partials
        changes = [change for block in unseen for change in self._block(block)]
        if message.stop_reason == "completed" or self._attempt_at is None:
            return changes
        for item in self.items[self._attempt_at :]:
            if isinstance(item, Bubble) and not item.cut:
                item.cut = True
                changes.append(Change("changed", item))
        return changes

    def _result(self, message: ToolResultMessage, now: float) -> Sequence[Change]:
        """A result message; it says something new only where no end of the call was seen."""
        card = self._cards.get(message.tool_call_id)
        if card is not None and card.state == "locked":
            return ()
        result = ToolResult(message.content, message.details, message.structured, message.is_error)
        end = ToolExecutionEnd(message.tool_call_id, message.tool_name, result, message.is_error, message.stop_reason)
        return self._tool_end(end, now)

    # ------------------------------------------------------------ tools

    def _new_card(self, id: str, name: str) -> ToolCard:
        card = self._cards[id] = ToolCard(self._key(), id, name)
        return card

    def _card(self, id: str, name: str) -> tuple[ToolCard, list[Change]]:
        """The card of a call; a new one for a call whose reply was not seen."""
        card = self._cards.get(id)
        if card is not None and card.state != "locked":
            return card, []
        card = self._new_card(id, name)
        return card, [self._add(card)]

    def _approval_request(self, event: ApprovalRequest, now: float) -> Sequence[Change]:
        card, changes = self._card(event.tool_call_id, event.tool_name)
        card.state, card._arguments = "waiting_for_approval", Pieces(event.arguments)
        self.approvals[card.id] = card
        return [*changes, Change("changed", card)]

    def _approval_decision(self, event: ApprovalDecision, now: float) -> Sequence[Change]:
        self.approvals.pop(event.tool_call_id, None)
        card = self._cards.get(event.tool_call_id)
        if card is None or card.state == "locked":
            return ()
        card.state, card.decision = "queued", event.decision
        return (Change("changed", card),)

    def _tool_start(self, event: ToolExecutionStart, now: float) -> Sequence[Change]:
        card, changes = self._card(event.tool_call_id, event.tool_name)
        card.state, card.started_at, card._arguments = "running", now, Pieces(event.arguments)
        self.running[card.id] = card
        return [*changes, Change("changed", card)]

    def _tool_update(self, event: ToolExecutionUpdate, now: float) -> Sequence[Change]:
        card = self.running.get(event.tool_call_id)
        if card is None:
            return ()
        if event.delta is not None:
            card._output.add(event.delta)
            return (Change("grew", card, event.delta),)
        card.result = event.partial_result
        return (Change("changed", card),)

    def _tool_end(self, event: ToolExecutionEnd, now: float) -> Sequence[Change]:
        card, changes = self._card(event.tool_call_id, event.tool_name)
        self.approvals.pop(card.id, None)
        self.running.pop(card.id, None)
        card.state, card.ended_at, card.result = "locked", now, event.result
        card.is_error, card.stop_reason, card.error_code = event.is_error, event.stop_reason, event.error_code
        return [*changes, Change("changed", card)]

    def _subagent(self, event: SubagentStarted, now: float) -> Sequence[Change]:
        card = self.running.get(event.tool_call_id or "")
        if card is None:
            return ()
        view = card.children[event.session_id] = View()
        self._children[event.session_id] = (card, view)
        return (Change("changed", card),)

    def _child_event(self, event: ChildEvent, now: float) -> Sequence[Change]:
        if not event.origin:
            return ()
        session, inner = event.origin[0], event.origin[1:]
        if session not in self._children:
            return ()
        card, view = self._children[session]
        changes = view.feed(attrs.evolve(event, origin=inner) if inner else event.event, now)
        nested = [Change(change.kind, change.item, change.text, (session, *change.origin)) for change in changes]
        return [*nested, Change("changed", card)]

    # ------------------------------------------------------------ around them

    def _mcp_begin(self, event: McpConnectBegin, now: float) -> Sequence[Change]:
        self._connecting = True
        return ()

    def _mcp_end(self, event: McpConnectEnd, now: float) -> Sequence[Change]:
        self._connecting = False
        failed = [server for server in event.results if server.status != "completed"]
        return [
            self._add(Notice(self._key(), "mcp", f"{s.server}: {s.error_message or s.status}", s.error_code))
            for s in failed
        ]

    def _hook(self, event: Hook, now: float) -> Sequence[Change]:
        words = [f"{event.hook} hook {event.name}", event.decision or "", event.reason or ""]
        return (self._add(Notice(self._key(), "hook", ": ".join(word for word in words if word))),)

    def _compaction_begin(self, event: CompactionBegin, now: float) -> Sequence[Change]:
        self._inner = View()
        self._inner.started_at = now
        self._compaction = CompactionCard(self._key(), event.mode, event.reason, self._inner)
        return (self._add(self._compaction),)

    def _compaction_end(self, event: CompactionEnd, now: float) -> Sequence[Change]:
        card, self._compaction, self._inner = self._compaction, None, None
        self._summary = event.summary
        if card is None:
            return ()
        self.usage += card.inner.usage
        card.status, card.inner.ended_at = event.status, now
        return (Change("changed", card),)


_OUTSIDE_COMPACTION = frozenset({AgentStart, CompactionEnd, AgentEnd})
_HANDLERS: Mapping[type, Callable[[View, Any, float], Sequence[Change]]] = {
    AgentStart: View._agent_start,
    AgentEnd: View._agent_end,
    TurnStart: View._turn_start,
    RequestBegin: View._request_begin,
    RequestEnd: View._request_end,
    TokenUsage: View._token_usage,
    MessageStart: View._message_start,
    MessageUpdate: View._message_update,
    MessageEnd: View._message_end,
    ApprovalRequest: View._approval_request,
    ApprovalDecision: View._approval_decision,
    ToolExecutionStart: View._tool_start,
    ToolExecutionUpdate: View._tool_update,
    ToolExecutionEnd: View._tool_end,
    SubagentStarted: View._subagent,
    ChildEvent: View._child_event,
    McpConnectBegin: View._mcp_begin,
    McpConnectEnd: View._mcp_end,
    Hook: View._hook,
    CompactionBegin: View._compaction_begin,
    CompactionEnd: View._compaction_end,
}
