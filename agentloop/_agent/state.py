"""`AgentState`: where a conversation of several runs stands, folded from their events and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from agentloop._results import result_message
from agentloop.events import AgentStart, CompactionEnd, Event, MessageEnd, MessageUpdate, ToolExecutionEnd
from agentloop.messages import AgentMessage, AssistantMessage, Text, ToolCall, ToolResultMessage, Usage, UserMessage
from agentloop.reducer import State

__all__ = [
    "AgentState",
]


class AgentState:
    """The kernel's `State` folded over one run after another. Read its attributes; only its owner calls `apply`.

    An observer that starts with the same messages and folds the same events knows the same at every event, also in another
    process. Each run begins with the messages that the run before left: its context, and its `AgentEnd.messages` after
    (in the place of it after a compaction).
    """

    __slots__ = ("_cut_short", "_ended", "_left", "_run", "_summary", "_usage")

    def __init__(self, messages: Iterable[AgentMessage] = (), session_usage: Usage = Usage()) -> None:
        self._run = State(messages, session_usage)
        self._usage = session_usage  # of the runs before this one
        self._summary: UserMessage | None = None
        self._cut_short = False
        self._ended: dict[str, ToolExecutionEnd] = {}  # calls whose end came and whose result did not yet
        self._left: tuple[AgentMessage, ...] = ()  # results of calls that had begun when the run was cut short

    def __repr__(self) -> str:
        streaming = "streaming" if self.is_streaming else "idle"
        return f"<AgentState {streaming}, {len(self.messages)} messages>"

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """The history. While a run goes on, committed replies only; after it, also what it left uncommitted (a reply cut
        short by an abort, say, by its `stop_reason`), which no request shows."""
        run = self._run
        if run.end is not None:
            return (*run.messages[: run.context_length], *run.end.messages)
        if self._cut_short:
            return (*run.messages[: run.context_length], *run.all_messages, *self._left)
        return tuple(run.messages)

    @property
    def is_streaming(self) -> bool:
        """Whether a run has started and not ended."""
        return self._run.is_streaming and not self._cut_short

    @property
    def stream_message(self) -> AssistantMessage | None:
        """The open reply as it stands at this event, None when none is open."""
        return self._run.stream_message if self.is_streaming else None

    @property
    def pending_tool_calls(self) -> tuple[str, ...]:
        """Ids of the calls that have started and not ended, in order of their starts."""
        return self._run.pending_tool_calls if self.is_streaming else ()

    @property
    def error(self) -> str | None:
        """How the last run failed or was stopped, in words; None while it goes on and when it completed."""
        return "the run was closed before its end" if self._cut_short else self._run.error

    @property
    def usage(self) -> Usage:
        """Tokens of the session: every attempt of every run once, those that failed or were aborted too."""
        return self._usage + self._run.usage

    @property
    def session_usage(self) -> Usage:
        """`TokenUsage.session` as it was last said: committed requests only."""
        return self._run.session_usage

    @property
    def pending_summary(self) -> UserMessage | None:
        """A compaction's summary that no turn has taken yet: the next run begins with it."""
        return self._summary

    def apply(self, event: Event) -> None:
        """Fold one event. An `AgentStart` begins the next run."""
        kind = type(event)
        if kind is MessageUpdate:  # nearly all events of a run
            self._run.apply(event)
            return
        if kind is AgentStart and (self._run.started or self._cut_short):
            self._begin()
        elif isinstance(event, MessageEnd):
            if event.message is self._summary:
                self._summary = None
            elif isinstance(event.message, ToolResultMessage):
                self._ended.pop(event.message.tool_call_id, None)
        elif isinstance(event, ToolExecutionEnd):
            self._ended[event.tool_call_id] = event
        self._run.apply(event)
        if isinstance(event, CompactionEnd) and event.status == "completed":
            self._summary = event.summary

    def _begin(self) -> None:
        messages, self._usage = self.messages, self.usage
        self._run = State(messages, self._run.session_usage)
        self._cut_short, self._left = False, ()
        self._ended.clear()

    def close(self) -> None:
        """Say that the run was left without its `AgentEnd`; nothing if it had one, or none goes on.

        Calls that had begun get their results then: what they did is done, and nobody runs them again.
        """
        run = self._run
        if not run.is_streaming or self._cut_short:
            return
        self._cut_short = True
        calls = next((m.tool_calls for m in reversed(self.messages) if isinstance(m, AssistantMessage)), ())
        begun = [call for call in calls if call.id in self._ended or call.id in run.running]
        self._left = tuple([self._result(call) for call in begun])

    def _result(self, call: ToolCall) -> ToolResultMessage:
        end = self._ended.get(call.id)
        if end is not None:
            return result_message(end)
        text = "[unknown outcome: the run was closed while this tool ran]"
        return ToolResultMessage(call.id, call.name, (Text(text),), is_error=True, stop_reason="fatal")
