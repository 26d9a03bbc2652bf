"""One call on its way, and what came of it: the result, its error code, its stop reason."""

from __future__ import annotations

import logging
from typing import Any, Final, Literal

import attrs

from agentloop._decide import Stop
from agentloop._frozen import frozen
from agentloop._host import Job, was_cancelled
from agentloop._results import cut_result, cut_text
from agentloop._sink import Sink
from agentloop._values import thaw_json
from agentloop.errors import ABORTED_CALL_CODES, StopReason
from agentloop.events import ToolExecutionEnd
from agentloop.messages import Text, ToolCall, ToolResult
from agentloop.tools import NO_OUTPUT, PreparedCall, Tool, ToolInvocation, as_result, error_text

log = logging.getLogger("agentloop")

Cause = Literal["abort", "timeout", "interrupt"]
"""What stops a running call; `abort` is any stop of the run."""


NOT_STARTED: Final = "Not started: a new message from the user is waiting."

NOT_BEGUN: Final = object()
"""The value of a sync tool that was stopped before a thread was free for it."""


@frozen
class Raised:
    """What a sync tool raised in its thread, carried out of it (a StopIteration cannot be raised in a coroutine)."""

    error: BaseException


class Call:
    """One call on its way; its timer has the call itself as its key."""

    __slots__ = (
        "_invocation", "began", "call", "cancelled", "cause", "end", "has_thread", "job", "prepared", "sink", "stage",
        "timeout", "tool", "value",
    )  # fmt: skip

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.tool: Tool | None = None
        self.prepared: PreparedCall | None = None
        self._invocation: ToolInvocation | None = None
        self.stage: Literal["new", "asking", "asked", "ready", "starting", "running", "returned", "after", "ended"] = (
            "new"
        )
        self.job: Job | None = None
        self.sink: Sink | None = None
        self.cause: Cause | None = None
        self.cancelled = False
        self.began = False
        """The tool's own code was called."""
        self.has_thread = False
        """A sync tool's: it has waited for a thread, and got one."""
        self.timeout: float | None = None
        self.value: Outcome | None = None
        self.end: ToolExecutionEnd | None = None
        """The event of its end, once there is one."""

    @property
    def invocation(self) -> ToolInvocation:
        """What callbacks are told of it, made when the first one is; with a copy of the arguments of their own."""
        made = self._invocation
        if made is None:
            assert self.prepared is not None and self.tool is not None
            arguments = thaw_json(self.prepared.arguments)
            made = self._invocation = ToolInvocation(self.call.id, self.call.name, arguments, self.tool)
        return made

    @property
    def cancellable(self) -> bool:
        """Whether a cancellation ends it: a thread cannot be cancelled, only waited for."""
        assert self.tool is not None
        return self.tool.kind != "sync" or not self.has_thread

    @property
    def text(self) -> str:
        """The arguments as its start shows them."""
        return self.call.arguments if self.prepared is None else self.prepared.text


@frozen
class Outcome:
    """How a call ended."""

    result: ToolResult
    error_code: str | None = None
    stop_reason: StopReason = "completed"


def outcome_of(call: Call, stop: Stop | None, limit: int | None) -> Outcome:
    """What came of a tool whose job is over; texts longer than `limit` are cut."""
    job = call.job
    assert job is not None
    if job.value is NOT_BEGUN:
        return _cut(call, stop)
    error: BaseException | None = job.value.error if type(job.value) is Raised else job.error
    if error is None:
        return _value(call, job.value)
    if was_cancelled(error):
        if job.cancel_requested:
            return _cut(call, stop)
        error = RuntimeError("the tool was cancelled from inside")
    text = cut_text(error_text(error), limit)
    if call.cause == "timeout":
        return _noted(call, f"{_timeout_text(call)}\n{text}", "tool_timeout")
    log.debug("tool %s raised", call.call.name, exc_info=error)
    aborted = call.cause == "abort"
    return _noted(call, text, "aborted" if aborted else "tool_error")


def _value(call: Call, value: Any) -> Outcome:
    """A value came back, in time."""
    sink = call.sink
    assert sink is not None
    result = sink.merge(as_result(value))
    is_error = result.is_error or call.cause == "timeout"
    if result.is_error is not is_error:
        result = attrs.evolve(result, is_error=is_error)
    if not _says_something(result):
        text = (
            (_timeout_text(call) if call.cause == "timeout" else "The tool failed without saying why.")
            if is_error
            else NO_OUTPUT
        )
        said = result.content if sink.streamed else ()  # what is there is blank; what was streamed stays
        result = attrs.evolve(result, content=(*said, Text(sink.note(text))))
    if call.cause == "abort":
        return Outcome(result, "aborted", "aborted")
    if call.cause == "timeout":
        return Outcome(result, "tool_timeout", "fatal")
    return Outcome(result, "tool_error", "fatal") if is_error else Outcome(result)


def _cut(call: Call, stop: Stop | None) -> Outcome:
    """It was cancelled, and stopped; or never began."""
    if call.cause == "timeout":
        late = f"Not run: it could not begin within {call.timeout:g} s."
        return _noted(call, _timeout_text(call) if call.began else late, "tool_timeout")
    if call.cause == "interrupt":
        cut = "Stopped waiting: a new message from the user is there."
        return _noted(call, cut if call.began else NOT_STARTED, "aborted")
    if not call.began:
        return _noted(call, stopped_text(stop), "aborted")
    why = f": {stop.error_message}" if stop is not None and stop.error_message else "."
    return _noted(call, f"The tool was aborted{why}", "aborted")


def stopped_text(stop: Stop | None) -> str:
    """What is said of a call that a stop kept from running."""
    return f"Not run: {(stop and stop.error_message) or 'the run was stopped'}"


def not_stopped(call: Call) -> Outcome:
    """What is said of a tool that is left to itself."""
    outcome = _noted(call, "The tool did not stop when it was told to; its outcome is unknown.", "not_stopped")
    return attrs.evolve(outcome, stop_reason="fatal" if call.cause == "timeout" else "aborted")


def _noted(call: Call, text: str, code: str) -> Outcome:
    """An error result: the output so far, then the words as a last delta."""
    sink = call.sink
    assert sink is not None
    result = ToolResult((Text(sink.with_note(text)),), is_error=True)
    return Outcome(result, code, "aborted" if code in ABORTED_CALL_CODES else "fatal")


def _timeout_text(call: Call) -> str:
    return f"The tool timed out after {call.timeout:g} s." if call.timeout is not None else "The tool timed out."


def _says_something(result: ToolResult) -> bool:
    """Whether a result has content; of an error, text that is not blank."""
    for block in result.content:
        if not isinstance(block, Text) or (block.text.strip() if result.is_error else block.text):
            return True
    return False


def with_answer(outcome: Outcome, answer: ToolResult, limit: int | None) -> Outcome:
    """The result after the hook: its content (cut at `limit`), details, `is_error`, `terminate`; the rest stays."""
    answer = cut_result(answer, limit)
    if not _says_something(answer):
        text = "The tool failed without saying why." if answer.is_error else NO_OUTPUT
        answer = attrs.evolve(answer, content=(Text(text),))
    if not answer.is_error:
        return Outcome(answer)
    if outcome.result.is_error:
        return attrs.evolve(outcome, result=answer)
    return Outcome(answer, "tool_error", "fatal")
