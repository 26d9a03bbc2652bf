"""Whether the derived values of a stream agree: the second level of the grammar.

`ValueChecker` is fed events that `grammar.Checker` has accepted. What an event repeats (a reply put together from its
deltas, a turn's results, a run's messages and usage) it rebuilds and compares. A long reply is looked at again and
again, but at growing distances, so that the cost stays linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from agentloop.errors import ABORTED_CALL_CODES, GrammarError
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Foreign,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    TextEnd,
    ThinkingEnd,
    TokenUsage,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    text_of,
)
from agentloop.reply import Partial

VALUE_RULES: Final[Mapping[str, str]] = {
    "message-agrees": "The start of an input or a result holds the same message as its end.",
    "reply-header": "A reply starts without content, reasons and usage; its end keeps provider and model.",
    "block-agrees": "A block's end holds what its start and its joined deltas say.",
    "update-agrees": "MessageUpdate.message is the reply rebuilt from the deltas so far, whenever it is read.",
    "reply-agrees": "The content of a reply's end is its blocks in order, without calls that are not complete.",
    "request-agrees": "RequestEnd has its reply's stop_reason; a committed one has no error and no usage of its own.",
    "usage-agrees": "TokenUsage.request is its reply's usage; the session's grows by it; AgentEnd.usage is the sum.",
    "approval-agrees": "Decision and start repeat the arguments that were shown; what was not allowed does not run.",
    "progress-agrees": "A ToolExecutionUpdate carries a partial result or a piece of output, one of the two.",
    "call-agrees": "The end of a call repeats its result's is_error, and has the stop_reason that its error code says.",
    "output-agrees": "The pieces of a call's output are its result's text.",
    "result-agrees": "A result message repeats what its ToolExecutionEnd said.",
    "turn-agrees": "TurnEnd repeats the last attempt's reply (None without one) and the turn's results.",
    "compaction-agrees": "CompactionEnd repeats reason and mode, counts attempts, has a summary if it made one.",
    "summary-first": "A compaction's summary is the first thing in the next turn, or AgentEnd.pending_summary.",
    "messages-agree": "AgentEnd.messages is what the run added: inputs, committed replies, results, what broke off.",
    "end-agrees": "An aborted AgentEnd repeats its Abort's error, or is the deadline's; a completed run has none.",
}
"""Every rule that `ValueChecker` names, with its sentence."""

_LOOK_AT_ALL = 64
"""As many updates of a reply are all looked at; of the later ones fewer and fewer."""

_ENDS = (TextEnd, ThinkingEnd, ToolCallEnd)


class _Reply:
    """An open reply, put together from its deltas."""

    __slots__ = ("call", "count", "kept", "last", "look_at", "partial")

    def __init__(self, header: AssistantMessage) -> None:
        self.partial = Partial(header)
        self.call: ToolCallStart | None = None  # the start of the open or last call
        self.count = 0
        self.look_at = 1
        self.last: MessageUpdate | None = None
        self.kept: list[tuple[MessageUpdate, AssistantMessage]] = []  # to be read once more at the end

    def due(self) -> bool:
        """Whether to look at this update."""
        self.count += 1
        if self.count < self.look_at:
            return False
        self.look_at = self.count + 1 + (self.count // 4 if self.count >= _LOOK_AT_ALL else 0)
        return True


class ValueChecker:
    """Rebuilds what a run's events repeat, and compares.

    `feed` raises `GrammarError` with one of `VALUE_RULES`. `outputs_kept=True` says that no `after_tool_call` can have
    replaced a result: then the streamed output of every call is held against its result. Memory: references to the
    run's messages, and that of the open turn.
    """

    def __init__(self, *, outputs_kept: bool = False) -> None:
        """A checker at the start of a run."""
        self.outputs_kept = outputs_kept
        self.position = -1
        self._started: AgentMessage | None = None
        self._open: _Reply | None = None
        self._reply: AssistantMessage | None = None
        self._results: list[ToolResultMessage] = []
        self._attempt = 0
        self._committed = True
        self._counted: Usage | None = None
        self._usage = Usage()
        self._session: Usage | None = None
        self._messages: list[AgentMessage] = []
        self._held: list[AgentMessage] = []  # a compaction's inputs that no committed reply has answered
        self._broken: list[AgentMessage] = []  # the last attempt's reply and results, if it is not committed
        self._broken_at = 0
        self._shown: dict[str, str] = {}
        self._decided: dict[str, str] = {}
        self._output: dict[str, list[str]] = {}
        self._ended: dict[str, ToolExecutionEnd] = {}
        self._compaction: CompactionBegin | None = None
        self._replaced = False
        self._summary: UserMessage | None = None
        self._summary_due = False
        self._abort: Abort | None = None
        self._children: dict[tuple[str, ...], ValueChecker] = {}

    def feed(self, event: Event) -> None:
        """Take the next event, which the order allows. Raises `GrammarError` if a value of it disagrees."""
        self.position += 1
        kind = type(event)
        if kind is Foreign:
            return
        if self._summary_due:
            self._take_summary(event)
        look = _LOOKS.get(kind)
        if look is not None:
            look(self, event)

    def finish(self) -> None:
        """The stream is over. What is open then is the business of `Checker.finish`."""

    # ------------------------------------------------------------ comparing

    def _fail(self, rule: str, message: str) -> NoReturn:
        raise GrammarError(rule, message, self.position)

    def _agree(self, rule: str, place: str, expected: Any, got: Any) -> None:
        if expected is not got and (type(expected) is not type(got) or expected != got):
            self._fail(rule, f"{place}: expected {_short(expected)}, got {_short(got)}")

    # ------------------------------------------------------------ messages

    def _message_start(self, event: MessageStart) -> None:
        message = event.message
        self._started = message
        if type(message) is not AssistantMessage:
            return
        said = (message.content, message.stop_reason, message.finish_reason, message.usage)
        self._agree("reply-header", "MessageStart.message of a reply", ((), None, None, None), said)
        self._open = _Reply(message)

    def _message_update(self, event: MessageUpdate) -> None:
        reply = self._open
        if reply is None:
            return
        delta = event.delta
        if type(delta) in _ENDS:
            self._block_end(delta, reply)
        elif type(delta) is ToolCallStart:
            reply.call = delta
        reply.partial.update(delta)
        reply.last = event
        if reply.due():
            self._snapshot(event, reply)

    def _block_end(self, delta: Any, reply: _Reply) -> None:
        text = reply.partial.text
        made: Any = Thinking(text)
        if type(delta) is TextEnd:
            made = Text(text)
        elif type(delta) is ToolCallEnd and reply.call is not None:
            made = ToolCall(reply.call.id, reply.call.name, text)
        self._agree("block-agrees", f"the end of block {delta.index}", made, _without_fidelity(delta.block))

    def _snapshot(self, event: MessageUpdate, reply: _Reply) -> None:
        try:
            got = event.message
        except AttributeError:  # built without its message, as a decoder of single records may
            return
        expected = reply.partial.message()
        self._agree("update-agrees", f"MessageUpdate.message after {type(event.delta).__name__}", expected, got)
        if reply.count in (1, 8, 64, 512, 4096):
            reply.kept.append((event, expected))

    def _message_end(self, event: MessageEnd) -> None:
        message = event.message
        if type(message) is AssistantMessage:
            self._reply_end(message)
            return
        self._agree("message-agrees", "MessageEnd.message", self._started, message)
        if type(message) is ToolResultMessage and message.tool_call_id in self._ended:
            self._result(message, self._ended.pop(message.tool_call_id))
        elif self._compaction is not None:
            self._held.append(message)
        else:
            self._messages.append(message)

    def _reply_end(self, message: AssistantMessage) -> None:
        reply = self._open
        if reply is None:
            return
        self._open = None
        if reply.last is not None:
            self._snapshot(reply.last, reply)
        for update, expected in reply.kept:
            self._agree("update-agrees", "MessageUpdate.message, read at the reply's end", expected, update.message)
        self._agree("reply-agrees", "MessageEnd.message.content", reply.partial.content(), message.content)
        header = reply.partial.header
        kept = (message.provider, message.model)
        self._agree("reply-header", "provider and model of MessageEnd", (header.provider, header.model), kept)
        if message.stop_reason is None:
            self._fail("reply-agrees", "MessageEnd.message.stop_reason: expected one of the four, got None")
        self._reply = message

    # ------------------------------------------------------------ attempts

    def _request_begin(self, event: RequestBegin) -> None:
        self._attempt = event.attempt
        self._reply = None
        self._counted = None
        self._broken = []

    def _token_usage(self, event: TokenUsage) -> None:
        if self._reply is not None:
            self._agree("usage-agrees", "TokenUsage.request", self._reply.usage, event.request)
        if self._session is not None and event.session.total < self._session.total + event.request.total:
            least = self._session.total + event.request.total
            got = event.session.total
            self._fail("usage-agrees", f"TokenUsage.session.total: expected at least {least}, got {got}")
        self._session = event.session
        self._counted = event.request

    def _request_end(self, event: RequestEnd) -> None:
        reply = self._reply
        if reply is not None:
            self._agree("request-agrees", "RequestEnd.status", reply.stop_reason, event.status)
        self._committed = event.status == "completed"
        if self._committed:
            self._agree("request-agrees", "error and usage", (None, None), (event.error_code, event.usage))
            if reply is not None:
                self._messages += self._held
                self._messages.append(reply)
            self._held = []
        else:
            self._broken = [] if reply is None else [reply]
            self._broken_at = len(self._messages)
        spent = self._counted or event.usage
        if spent is not None:
            self._usage += spent

    # ------------------------------------------------------------ calls

    def _approval_request(self, event: ApprovalRequest) -> None:
        self._shown[event.tool_call_id] = event.arguments

    def _approval_decision(self, event: ApprovalDecision) -> None:
        id = event.tool_call_id
        shown = self._shown.get(id, event.arguments)
        if event.arguments is not None:
            self._agree("approval-agrees", f"ApprovalDecision.arguments of {id!r}", shown, event.arguments)
        if shown is not None:
            self._shown[id] = shown
        self._decided[id] = event.decision

    def _call_start(self, event: ToolExecutionStart) -> None:
        id = event.tool_call_id
        if self._decided.get(id) == "allow" and id in self._shown:
            place = f"ToolExecutionStart.arguments of {id!r}"
            self._agree("approval-agrees", place, self._shown[id], event.arguments)

    def _call_update(self, event: ToolExecutionUpdate) -> None:
        if (event.partial_result is None) == (event.delta is None):
            self._fail("progress-agrees", "ToolExecutionUpdate: expected partial_result or delta, got both or neither")
        if event.delta is not None:
            self._output.setdefault(event.tool_call_id, []).append(event.delta)
        if self._decided.get(event.tool_call_id, "allow") != "allow":
            self._fail("approval-agrees", f"ToolExecutionUpdate of {event.tool_call_id!r}, which was not allowed")

    def _call_end(self, event: ToolExecutionEnd) -> None:
        id, code = event.tool_call_id, event.error_code
        self._agree("call-agrees", f"ToolExecutionEnd.is_error of {id!r}", event.result.is_error, event.is_error)
        if code is not None and (code != "not_stopped" or event.stop_reason not in ("aborted", "fatal")):
            meant = "aborted" if code in ABORTED_CALL_CODES else "fatal"
            self._agree("call-agrees", f"ToolExecutionEnd.stop_reason of {id!r} ({code})", meant, event.stop_reason)
        if self._decided.get(id, "allow") != "allow":
            self._agree("approval-agrees", f"the end of {id!r}, not allowed", "aborted", event.stop_reason)
        pieces = self._output.pop(id, None)
        if pieces is not None and (self.outputs_kept or code == "aborted"):
            # After an abort no after_tool_call begins; else it may have replaced the content.
            self._agree("output-agrees", f"the text of {id!r}'s result", "".join(pieces), text_of(event.result.content))
        self._ended[id] = event

    def _result(self, message: ToolResultMessage, end: ToolExecutionEnd) -> None:
        result = end.result
        expected = (result.content, result.details, result.structured, end.is_error, end.stop_reason)
        got = (message.content, message.details, message.structured, message.is_error, message.stop_reason)
        self._agree("result-agrees", f"the result message of {message.tool_call_id!r}", expected, got)
        self._results.append(message)
        (self._messages if self._committed else self._broken).append(message)

    # ------------------------------------------------------------ turns and compactions

    def _turn_start(self, event: TurnStart) -> None:
        self._summary_due = self._summary is not None

    def _take_summary(self, event: Event) -> None:
        got = event.message if type(event) is MessageStart else event
        self._agree("summary-first", "the turn's first input", self._summary, got)
        self._summary = None
        self._summary_due = False

    def _turn_end(self, event: TurnEnd) -> None:
        self._agree("turn-agrees", "TurnEnd.message", self._reply, event.message)
        self._agree("turn-agrees", "TurnEnd.tool_results", tuple(self._results), event.tool_results)
        self._forget()

    def _forget(self) -> None:
        self._reply = None
        self._committed = True
        self._attempt = 0
        self._results = []
        for memory in (self._shown, self._decided, self._output, self._ended, self._children):
            memory.clear()

    def _compaction_begin(self, event: CompactionBegin) -> None:
        self._compaction = event

    def _compaction_end(self, event: CompactionEnd) -> None:
        begin = self._compaction
        if begin is not None:
            same = (event.reason, event.mode)
            self._agree("compaction-agrees", "CompactionEnd's reason and mode", (begin.reason, begin.mode), same)
        if event.attempt is not None:
            self._agree("compaction-agrees", "CompactionEnd.attempt", self._attempt, event.attempt)
        completed = event.status == "completed"
        made = completed and event.mode == "summarize"
        self._agree("compaction-agrees", "whether CompactionEnd has a summary", made, event.summary is not None)
        self._compaction = None
        self._held = []
        if completed:
            self._agree("compaction-agrees", "CompactionEnd.error_code", None, event.error_code)
            self._messages, self._broken, self._broken_at = [], [], 0
            self._replaced = True
            self._summary = event.summary
        self._forget()

    def _abort_event(self, event: Abort) -> None:
        self._abort = event

    def _agent_end(self, event: AgentEnd) -> None:
        cut = self._broken_at
        broken = [] if event.stop_reason == "completed" else self._broken
        expected = (*self._messages[:cut], *broken, *self._messages[cut:])
        self._same_messages(expected, event.messages)
        self._agree("usage-agrees", "AgentEnd.usage", self._usage, event.usage)
        self._agree("messages-agree", "AgentEnd.replaces_context", self._replaced, event.replaces_context)
        self._agree("summary-first", "AgentEnd.pending_summary", self._summary, event.pending_summary)
        if self._abort is not None:
            said = (self._abort.error_code, self._abort.error_message, "aborted")
            got = (event.error_code, event.error_message, event.stop_reason)
            self._agree("end-agrees", "AgentEnd's error and stop_reason", said, got)
        elif event.stop_reason == "aborted":
            self._agree("end-agrees", "AgentEnd.error_code without an Abort", "deadline", event.error_code)
        elif event.stop_reason == "completed":
            self._agree("end-agrees", "AgentEnd.error_code", None, event.error_code)

    def _same_messages(self, expected: tuple[AgentMessage, ...], got: tuple[AgentMessage, ...]) -> None:
        for place, (one, other) in enumerate(zip(expected, got, strict=False)):
            self._agree("messages-agree", f"AgentEnd.messages[{place}]", one, other)
        self._agree("messages-agree", "the number of AgentEnd.messages", len(expected), len(got))

    # ------------------------------------------------------------ nested runs

    def _child(self, event: ChildEvent) -> None:
        origin, inner = event.origin, event.event
        if type(inner) is AgentStart:
            self._children[origin] = ValueChecker(outputs_kept=self.outputs_kept)
        child = self._children.get(origin)
        if child is None:
            return
        try:
            child.feed(inner)
        except GrammarError as error:
            self._fail(error.rule, f"in the nested run {'/'.join(origin)}: {error}")
        if type(inner) is AgentEnd:
            del self._children[origin]


def _without_fidelity(block: Any) -> Any:
    """The block as its deltas alone say it."""
    if type(block) is Text:
        return Text(block.text)
    if type(block) is Thinking:
        return Thinking(block.thinking)
    return ToolCall(block.id, block.name, block.arguments) if type(block) is ToolCall else block


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:200] + " … " + text[-80:]


_LOOKS: Final[Mapping[type, Callable[[ValueChecker, Any], None]]] = {
    MessageStart: ValueChecker._message_start,
    MessageUpdate: ValueChecker._message_update,
    MessageEnd: ValueChecker._message_end,
    RequestBegin: ValueChecker._request_begin,
    TokenUsage: ValueChecker._token_usage,
    RequestEnd: ValueChecker._request_end,
    ApprovalRequest: ValueChecker._approval_request,
    ApprovalDecision: ValueChecker._approval_decision,
    ToolExecutionStart: ValueChecker._call_start,
    ToolExecutionUpdate: ValueChecker._call_update,
    ToolExecutionEnd: ValueChecker._call_end,
    TurnStart: ValueChecker._turn_start,
    TurnEnd: ValueChecker._turn_end,
    CompactionBegin: ValueChecker._compaction_begin,
    CompactionEnd: ValueChecker._compaction_end,
    Abort: ValueChecker._abort_event,
    AgentEnd: ValueChecker._agent_end,
    ChildEvent: ValueChecker._child,
}
