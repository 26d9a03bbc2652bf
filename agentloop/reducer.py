"""`State`: what a run's events add up to, folded one event at a time.

The loop folds its own events to decide what comes next; an observer folds the same events and so knows the same. Nothing
else is needed to rebuild it: no clock, no configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from agentloop.events import (
    AgentEnd,
    AgentStart,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    TokenUsage,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage, Usage, UserMessage
from agentloop.reply import Partial

__all__ = [
    "State",
]


class State:
    """The folded state of a run. Read its attributes; change it with `apply` only.

    Start it with the messages of the run's context. `MessageUpdate`s may be left out by whoever needs no open message.
    """

    __slots__ = (
        "_deltas",
        "_message_usage",
        "_open",
        "asks_for_more",
        "attempt",
        "compacted",
        "compaction",
        "compaction_end",
        "context_length",
        "context_tokens",
        "context_turns",
        "cut_replies",
        "end",
        "failure",
        "held",
        "in_turn",
        "messages",
        "pauses",
        "reply",
        "request",
        "requests",
        "results",
        "running",
        "session_usage",
        "started",
        "summary",
        "terminate",
        "turns",
        "uncommitted",
        "uncommitted_at",
        "usage",
    )

    def __init__(self, messages: Iterable[AgentMessage] = (), session_usage: Usage = Usage()) -> None:
        self.messages: list[AgentMessage] = list(messages)
        """The history: the context, inputs, committed replies and their results."""
        self.context_length = len(self.messages)
        """How many of `messages` were there before the run (0 after a completed compaction)."""
        self.uncommitted: list[AgentMessage] = []
        """The reply of the last attempt with its results, while it is not committed."""
        self.uncommitted_at = 0
        """Where in `messages` they would stand."""
        self.held: list[AgentMessage] = []
        """A compaction's inputs that no committed reply has answered yet."""
        self.started = False
        self.end: AgentEnd | None = None
        """The run's end, when it has ended."""
        self.in_turn = False
        self.turns = 0
        """Turns begun."""
        self.requests = 0
        """Turns with a request."""
        self.compaction: CompactionBegin | None = None
        """The compaction that is going on."""
        self.compaction_end: CompactionEnd | None = None
        """The last compaction's end, while no turn came after it."""
        self.compacted = False
        """Whether a compaction of this run has completed."""
        self.summary: UserMessage | None = None
        """A summary that no turn has taken."""
        self.attempt = 0
        """Attempts of this turn or compaction."""
        self.request: RequestEnd | None = None
        """The end of the last attempt of this turn or compaction; None while one is going on, or before the first."""
        self.reply: AssistantMessage | None = None
        """The last attempt's reply."""
        self.results: list[ToolResultMessage] = []
        """This turn's (or compaction attempt's) results, in call order."""
        self.running: dict[str, ToolExecutionStart] = {}
        """Calls that have started and not ended, by id, in order of their starts."""
        self.terminate = True
        """Whether every result of the batch so far asked to end the run."""
        self.asks_for_more = False
        """Whether the last turn makes the run go on by itself: results to show, or a pause."""
        self.failure: RequestEnd | None = None
        """The end of the last turn's last attempt, if it failed."""
        self.pauses = 0
        """Replies in a row that ended in a pause."""
        self.cut_replies = 0
        """Replies in a row whose calls were cut off by length."""
        self.usage = Usage()
        """The run's sum, each attempt once."""
        self.session_usage = session_usage
        self.context_tokens = 0
        """`total` of the last completed request of this context."""
        self.context_turns = 0
        """Committed requests of this context, those inside a compaction left out."""
        self._open: MessageStart | MessageUpdate | None = None
        self._deltas: Partial | None = None  # of a reply whose updates were built without their messages
        self._message_usage: Usage | None = None
        self._count_context()

    def _count_context(self) -> None:
        """A context that goes on has had turns, and the size that the last of its replies reported."""
        for message in reversed(self.messages):
            if type(message) is AssistantMessage and message.stop_reason == "completed":
                self.context_turns += 1
                if self.context_tokens == 0 and message.usage is not None:
                    self.context_tokens = message.usage.total

    # ------------------------------------------------------------ views

    @property
    def is_streaming(self) -> bool:
        """Whether the run has started and not ended."""
        return self.started and self.end is None

    @property
    def stream_message(self) -> AssistantMessage | None:
        """The open reply as it stands, None when none is open."""
        return None if self._open is None else self._open.message  # type: ignore[return-value]  # of a reply

    @property
    def pending_tool_calls(self) -> tuple[str, ...]:
        """Ids of the calls that have started and not ended."""
        return tuple(self.running)

    @property
    def error(self) -> str | None:
        """How the run failed, in words; None while it has not."""
        end = self.end
        if end is None or end.stop_reason == "completed":
            return None
        return end.error_message or end.error_code or end.stop_reason

    @property
    def new_messages(self) -> tuple[AgentMessage, ...]:
        """What `AgentEnd.messages` says of a run that ends `completed` here (G11)."""
        return tuple(self.messages[self.context_length :])

    @property
    def all_messages(self) -> tuple[AgentMessage, ...]:
        """`new_messages` with the last attempt's uncommitted reply and results in their place (G10)."""
        if not self.uncommitted:
            return self.new_messages
        cut = self.uncommitted_at
        return (*self.messages[self.context_length : cut], *self.uncommitted, *self.messages[cut:])

    @property
    def open_calls(self) -> Sequence[ToolCall]:
        """The complete calls of the last attempt's reply that have no result yet, in order."""
        if self.reply is None:
            return ()
        return self.reply.tool_calls[len(self.results) :]

    # ------------------------------------------------------------ the fold

    def apply(self, event: Event) -> None:
        """Fold one event."""
        fold = FOLDS.get(type(event))
        if fold is not None:
            fold(self, event)

    def _agent_start(self, event: AgentStart) -> None:
        self.started = True

    def _agent_end(self, event: AgentEnd) -> None:
        self.end = event
        self.running.clear()

    def _turn_start(self, event: TurnStart) -> None:
        self.in_turn = True
        self.turns += 1
        self.summary = None  # the turn's first input
        self.compaction_end = None
        self._new_requests()

    def _new_requests(self) -> None:
        self.attempt = 0
        self.request = self.reply = None
        self.results = []
        self.terminate = True

    def _turn_end(self, event: TurnEnd) -> None:
        self.in_turn = False
        finish = None if self.reply is None else self.reply.finish_reason
        if self.results:
            self.asks_for_more = not self.terminate and finish not in ("refusal", "content_filter")
        else:
            self.asks_for_more = finish == "pause"
        failed = self.request is not None and self.request.status != "completed"
        self.failure = self.request if failed else None

    def _message_start(self, event: MessageStart) -> None:
        if type(event.message) is AssistantMessage:
            self._open, self._deltas = event, None

    def _message_update(self, event: MessageUpdate) -> None:
        if self._open is None:
            return
        if event._message is None:
            self._deltas = self._deltas or Partial(self._open.message)  # type: ignore[arg-type]  # of a reply
            event = self._deltas.update(event.delta)
        self._open = event

    def _message_end(self, event: MessageEnd) -> None:
        message = event.message
        if type(message) is AssistantMessage:
            self._open = self._deltas = None
            self.reply = message
            return
        if type(message) is ToolResultMessage:
            self.results.append(message)
            committed = self.request is None or self.request.status == "completed"
            (self.messages if committed else self.uncommitted).append(message)
        elif self.compaction is not None:
            self.held.append(message)
        else:
            self.messages.append(message)

    def _request_begin(self, event: RequestBegin) -> None:
        if self.compaction is None and self.attempt == 0:
            self.requests += 1
        self.attempt = event.attempt
        self.request = self.reply = None
        self.results = []
        self.terminate = True
        self.uncommitted = []
        self._message_usage = None

    def _token_usage(self, event: TokenUsage) -> None:
        self.session_usage = event.session
        self._message_usage = event.request
        self.context_tokens = event.request.total

    def _child_event(self, event: ChildEvent) -> None:
        if type(event.event) is TokenUsage:  # of a nested run, however deep: each is forwarded once
            self.session_usage += event.event.request

    def _request_end(self, event: RequestEnd) -> None:
        self.request = event
        if event.status == "completed":
            self._commit()
        elif self.reply is not None:
            self.uncommitted = [self.reply]
            self.uncommitted_at = len(self.messages)
        spent = self._message_usage or event.usage
        if spent is not None:
            self.usage += spent

    def _commit(self) -> None:
        reply = self.reply
        if self.compaction is None:
            self.context_turns += 1
            finish = None if reply is None else reply.finish_reason
            calls = reply is not None and reply.tool_calls
            self.pauses = self.pauses + 1 if finish == "pause" and not calls else 0
            self.cut_replies = self.cut_replies + 1 if finish == "length" and calls else 0
        else:
            if reply is not None:  # a prompt that nothing answered is no part of the conversation
                self.messages += self.held
            self.held = []
        if reply is not None:
            self.messages.append(reply)

    def _tool_execution_start(self, event: ToolExecutionStart) -> None:
        self.running[event.tool_call_id] = event

    def _tool_execution_end(self, event: ToolExecutionEnd) -> None:
        self.running.pop(event.tool_call_id, None)
        if not event.result.terminate:
            self.terminate = False

    def _compaction_begin(self, event: CompactionBegin) -> None:
        self.compaction = event
        self.held = []
        self._new_requests()

    def _compaction_end(self, event: CompactionEnd) -> None:
        self.compaction = None
        self.compaction_end = event
        self.held = []
        if event.status == "completed":
            self.messages = []
            self.context_length = self.uncommitted_at = 0
            self.uncommitted = []
            self.compacted = True
            self.summary = event.summary
            self.context_tokens = self.context_turns = 0


FOLDS: Final[Mapping[type, Callable[[State, Any], None]]] = {
    AgentStart: State._agent_start,
    AgentEnd: State._agent_end,
    TurnStart: State._turn_start,
    TurnEnd: State._turn_end,
    MessageStart: State._message_start,
    MessageUpdate: State._message_update,
    MessageEnd: State._message_end,
    RequestBegin: State._request_begin,
    RequestEnd: State._request_end,
    TokenUsage: State._token_usage,
    ChildEvent: State._child_event,
    ToolExecutionStart: State._tool_execution_start,
    ToolExecutionEnd: State._tool_execution_end,
    CompactionBegin: State._compaction_begin,
    CompactionEnd: State._compaction_end,
}
