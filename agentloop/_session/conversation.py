"""`Conversation`: what a session knows between two runs, and how a run's events change it.

Pure: it takes events, and can say at any moment what the next run starts from, also when this one just stops coming. What
it holds then is what the trace of the same events gives back, but for the interruption carry-over, which lives in memory
alone (`omni.carry`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from agentloop._agent.queues import MessageQueues
from agentloop._results import result_message
from agentloop.events import (
    AgentEnd,
    BlockAdded,
    CompactionBegin,
    CompactionEnd,
    Event,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    TurnStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agentloop.omni.carry import carried_over
from agentloop.omni.redact import MASK_START
from agentloop.omni.resume import Resumed
from agentloop.reducer import State
from agentloop.tools import Tool


class Conversation:
    """The messages, the summary that no turn took, and the tokens of a session. Changed by `begin`, `feed`, `settle`."""

    def __init__(
        self,
        messages: Iterable[AgentMessage] = (),
        summary: UserMessage | None = None,
        usage: Usage = Usage(),
        call_ids: Iterable[str] = (),
    ) -> None:
        self.messages = tuple(messages)
        """As the next run's context has them."""
        self.summary = summary
        """Leads the next run's prompts."""
        self.usage = usage
        """The session's tokens, over all contexts."""
        self.call_ids = set(call_ids)
        """Of all calls that the trace of this context tells, also of replies that the messages only retell."""
        self.open_compaction: CompactionBegin | None = None
        """A compaction that was left without an end."""
        self.queues = MessageQueues("one_at_a_time", "one_at_a_time")
        """What waits to be said; a message that a run took and did not show goes back to its place."""
        self._state: State | None = None

    def begin(self, messages: Iterable[AgentMessage] | None = None) -> None:
        """A run starts, on these messages where it was given others than there are."""
        self._state = State(self.messages if messages is None else messages, self.usage)
        self._summary = self.summary
        self._drafting = False
        self._new_request()

    def _new_request(self) -> None:
        self._input: AgentMessage | None = None  # shown, its end not yet
        self._update: MessageUpdate | None = None  # the last one of an open reply
        self._ended: dict[str, ToolResultMessage] = {}  # calls that ended, their results not shown yet

    def feed(self, event: Event) -> None:
        """Take the next event of the run."""
        state, kind = self._state, type(event)
        if state is None:
            return
        if isinstance(event, MessageUpdate):
            self._update = event
            block = event.delta.block if isinstance(event.delta, ToolCallEnd | BlockAdded) else None
            if isinstance(block, ToolCall):
                self.call_ids.add(block.id)
            return
        state.apply(event)
        if kind in _LOOKED_AT:
            self._look(event)

    def _look(self, event: Event) -> None:
        """What `State` does not keep."""
        match event:
            case MessageStart(message=message):
                self._update = None
                if not isinstance(message, AssistantMessage | ToolResultMessage):
                    self._input = message
                    self.queues.emitted(message)
                    if message == self._summary:
                        self._summary = None
            case MessageEnd(message=message):
                self._input = self._update = None
                if isinstance(message, ToolResultMessage):
                    self._ended.pop(message.tool_call_id, None)
            case ToolExecutionEnd():
                self._ended[event.tool_call_id] = result_message(event)
            case TurnStart() | RequestBegin():
                self._drafting = self._drafting and not isinstance(event, TurnStart)
                self._new_request()
            case CompactionBegin():
                self._drafting = True
                self._new_request()
            case CompactionEnd(status="completed", summary=summary):
                self._summary = summary
                self.call_ids.clear()  # the next record opens another file

    def settle(self) -> bool:
        """The run is over, or no more of it will come. Whether it had begun."""
        self.queues.give_back()
        state, self._state = self._state, None
        if state is None or not state.started:  # it could not begin: nothing was interrupted
            return False
        if self._input is not None and state.compaction is None:
            state.messages.append(self._input)
        messages = list(state.messages)
        if not self._drafting:
            at, uncommitted = self._uncommitted(state)
            messages[at:at] = uncommitted
        messages += self._ended.values()
        self.messages = carried_over(messages)
        self.summary = self._summary
        self.usage = state.session_usage
        self.open_compaction = state.compaction if state.end is None else None
        return True

    def _uncommitted(self, state: State) -> tuple[int, list[AgentMessage]]:
        """The reply that was not committed, with its results, and where it would stand."""
        if state.uncommitted:
            said = any(message.content for message in state.uncommitted if isinstance(message, AssistantMessage))
            return state.uncommitted_at, state.uncommitted if said else []  # half a call is nothing to tell
        if state.request is not None:
            return 0, []
        reply = state.reply or _so_far(self._update)
        return len(state.messages), [] if reply is None else [attrs.evolve(reply, stop_reason="aborted")]


_LOOKED_AT = frozenset({
    MessageStart, MessageEnd, ToolExecutionEnd, TurnStart, RequestBegin, CompactionBegin, CompactionEnd, AgentEnd,
})  # fmt: skip


def _so_far(update: MessageUpdate | None) -> AssistantMessage | None:
    """A reply that broke off, without the call that was open."""
    if update is None:
        return None
    message = update.message
    if isinstance(update.delta, ToolCallStart | ToolCallDelta):
        message = attrs.evolve(message, content=message.content[:-1])
    return message if message.content else None


# ---------------------------------------------------------------- what a trace gives


def resumed_prompt(resumed: Resumed, given: str | None) -> str | None:
    """An open context keeps the prompt that it has, unless secrets were masked in it; else the one that is given counts."""
    recorded = None if resumed.meta is None else resumed.meta["payload"].get("system_prompt")
    known = recorded if isinstance(recorded, str) and recorded else None
    if resumed.has_content and not resumed.context_closed and not (known and MASK_START in known):
        return known
    return known if given is None else given


def resumed_messages(resumed: Resumed, tools: Iterable[Tool]) -> tuple[AgentMessage, ...]:
    """The context as the first run has it. Calls stay open only where nothing came after them and they may run."""
    replay = {tool.name: tool.replay for tool in tools}
    messages = resumed.settled(lambda name: replay.get(name, "never"))
    reply = next((message for message in reversed(messages) if isinstance(message, AssistantMessage)), None)
    if resumed.inputs or (reply is not None and reply.finish_reason in _CUT_OFF):
        messages = carried_over(messages)
    return (*messages, *resumed.inputs)


_CUT_OFF: Final = ("length", "refusal", "content_filter")
"""Finish reasons of replies whose calls do not run (G22)."""


def waits(messages: tuple[AgentMessage, ...]) -> bool:
    """Whether a conversation can go on without anything new."""
    if not messages:
        return False
    last = messages[-1]
    return not isinstance(last, AssistantMessage) or bool(last.tool_calls) or last.finish_reason == "pause"
