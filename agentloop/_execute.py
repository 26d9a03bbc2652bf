"""A batch of calls, each by the same steps: validate, hooks, approval, start, run, hook, end, result.

Admission (steps up to the start) goes call by call in the driver; everything after it is driven by `service`, which the
driver's wait calls whenever something happened, so a call settles while another one is still being asked about. Effects begin
only while the consumer waits for more (`Core.at_rest`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import anyio

from agentloop._awaiting import called, close_unstarted, is_awaitable
from agentloop._callbacks import CallbackFailed, Stopped, looked_at, shown
from agentloop._host import Job
from agentloop._outcome import NOT_STARTED, Call, Cause, Outcome, not_stopped, outcome_of, stopped_text, with_answer
from agentloop._permission import verdict_on
from agentloop._results import result_message
from agentloop._run import Core
from agentloop._sink import Sink
from agentloop._tool_job import run_tool
from agentloop._values import is_kind, plain_text
from agentloop.abort import AbortSignal
from agentloop.config import Block
from agentloop.errors import ABORTED_CALL_CODES, FinishReason, InvalidArguments, StopReason
from agentloop.events import (
    ApprovalDecision,
    ApprovalRequest,
    MessageEnd,
    MessageStart,
    ToolExecutionEnd,
    ToolExecutionStart,
)
from agentloop.messages import Text, ToolCall, ToolResult
from agentloop.tools import Tool, error_text

log = logging.getLogger("agentloop")

_BUSY = ("starting", "running", "returned", "after")

_NOT_ASKED = "Tool call denied: asking for approval failed."
"""Nobody said no, and whoever reads that a user did looks for one."""

_CUT_OFF: dict[FinishReason | None, str] = {
    "length": "Not run: the reply was cut off by the output limit, so this call may be incomplete. Try a shorter one.",
    "refusal": "Not run: the reply was refused.",
    "content_filter": "Not run: the reply was stopped by a content filter.",
}


class Batch:
    """The calls of one reply. `run` executes them, `refuse_all` answers them without."""

    def __init__(self, core: Core, calls: Sequence[ToolCall]) -> None:
        self.core = core
        self.calls = [Call(call) for call in calls]
        self.next_result = 0
        self.ready: deque[Call] = deque()
        self.active: list[Call] = []  # begun and not ended
        self.returned: deque[Call] = deque()
        self.interrupted = False
        self.watcher: Job | None = None
        self.limiter: anyio.CapacityLimiter | None = None

    async def run(self) -> None:
        """Run all calls; returns when each has its result."""
        core = self.core
        core.service = self.service
        try:
            for call in self.calls:
                await self._admit(call)
            await core.until(lambda: self.next_result == len(self.calls))
        finally:
            core.service = None
            self.tell_of_the_end()
        if self.watcher is not None:
            await core.cancel_jobs((self.watcher,))

    def tell_of_the_end(self) -> None:
        """Whoever still runs is to stop, for the consumer has left (or an order to leave ends the run); a thread hears of
        nothing else (G24)."""
        for call in self.active:
            if call.sink is not None:
                call.sink.closed = True
                call.sink.signal.abort("the consumer has left")

    def refuse_all(self, error_code: Literal["aborted", "cut_off"]) -> None:
        """Answer all calls without running them."""
        state = self.core.state
        if error_code == "aborted":
            text = stopped_text(self.core.outcomes.stop)
        elif state.compaction is not None:
            text = "Not run: no tools are used while the conversation is summarised."
        else:
            assert state.reply is not None
            text = _CUT_OFF.get(state.reply.finish_reason, "Not run: the model's reply failed before it was complete.")
        for call in self.calls:
            self._refuse(call, error_code, text)

    # ------------------------------------------------------------ admission: steps 1 to 5

    async def _admit(self, call: Call) -> None:
        core = self.core
        config = core.config
        if config.tool_execution == "sequential":
            await core.until(lambda: not self.active)
        if not self._prepare(call):
            return
        assert call.tool is not None
        beside = self.active[0].tool if self.active else None  # an exclusive one would stand alone
        if call.tool.exclusive or (beside is not None and beside.exclusive):
            await core.until(lambda: not self.active)
        if not self._may_begin(call):
            return
        self.active.append(call)
        try:
            asks = (config.before_tool_call is None or await self._before(call)) and (
                (not config.hooks and config.approve is None) or await self._hooks(call)
            )
        except Stopped:
            self._refuse(call, "aborted", stopped_text(self.core.outcomes.stop))
            return
        if asks and config.approve is not None:
            core.emit(ApprovalRequest(call.call.id, call.call.name, call.text))
            call.stage = "asking"
        else:
            self._permit(call)
        if config.approval_order == "one_at_a_time" or call.stage == "ready":
            await core.until(lambda: call.stage not in ("asking", "asked", "ready"))

    def _prepare(self, call: Call) -> bool:
        """Step 1: find the tool, validate."""
        tools = self.core.tools
        call.tool = tool = tools.get(call.call.name)
        if tool is None:
            known = ", ".join(sorted(tools)) or "none"
            self._refuse(call, "unknown_tool", f"There is no tool named {call.call.name!r}. Tools: {known}.")
            return False
        return self._validate(call, tool, call.call.arguments)

    def _validate(self, call: Call, tool: Tool, arguments: str | dict[str, Any]) -> bool:
        try:
            prepared = self.core.guard(tool.prepare, arguments)
        except CallbackFailed as error:  # a mapping of the caller's may fail in any way when it is looked at
            invalid = is_kind(error.error, InvalidArguments)
            self._refuse(call, "invalid_arguments" if invalid else "blocked", error.text)
            return False
        call.prepared, call._invocation = prepared, None
        return True

    def _may_begin(self, call: Call) -> bool:
        assert call.tool is not None
        if self.core.look():
            self._refuse(call, "aborted", stopped_text(self.core.outcomes.stop))
        elif self.interrupted and call.tool.interruptible:
            self._refuse(call, "aborted", NOT_STARTED)
        else:
            return True
        return False

    async def _before(self, call: Call) -> bool:
        """Step 2. False: the call has ended."""
        hook = self.core.config.before_tool_call
        assert call.tool is not None and hook is not None
        try:
            answer = await self.core.call(hook, call.invocation)
        except CallbackFailed as error:
            log.error("before_tool_call failed; the call is blocked", exc_info=error.error)
            self._refuse(call, "blocked", error.text)
            return False
        if is_kind(answer, Block):
            self._refuse(call, "blocked", answer.reason or "The call was blocked.", answer.terminate)
        elif isinstance(answer, dict):
            return self._validate(call, call.tool, answer)
        elif answer is None:
            return True
        else:
            got = type(answer).__name__
            self._refuse(call, "blocked", f"before_tool_call: expected None, a Block or a dict, got {got}")
        return False

    async def _hooks(self, call: Call) -> bool:
        """Step 3, and what a policy says. Whether approval is still to be asked; the call may have ended."""
        verdict = await verdict_on(self.core, call)
        if verdict is not None:
            self._decide(call, *verdict)
        return verdict is None

    def _decide(self, call: Call, decision: Any, text: str | None = None) -> None:
        """Step 4 is over: tell, and act on it."""
        said = plain_text(decision)
        if said not in ("allow", "deny", "forbidden"):
            log.error("approve: expected 'allow', 'deny' or 'forbidden', got %s; the call is denied", shown(decision))
            said, text = "deny", _NOT_ASKED
        self.core.emit(ApprovalDecision(said, call.call.id, call.text))  # type: ignore[arg-type]  # one of these
        if said == "allow":
            self._permit(call)
        elif said == "deny":
            self._refuse(call, "denied", text or "Tool call denied by user.")
        else:
            self._refuse(call, "forbidden", "Tool call denied by policy.")

    def _permit(self, call: Call) -> None:
        """Let it run; one that has ended, or was permitted already, is left alone."""
        if call.stage in ("new", "asked"):
            call.stage = "ready"
            self.ready.append(call)
            self._pump()

    def _pump(self) -> None:
        """Step 5: start what may run, as far as the cap goes."""
        cap = self.core.config.max_parallel_tools
        while self.ready:
            if cap is not None and sum(call.stage in _BUSY for call in self.active) >= cap:
                return
            call = self.ready.popleft()
            if self._may_begin(call):
                call.stage = "starting"
                self.core.emit(ToolExecutionStart(call.call.id, call.call.name, call.text))

    # ------------------------------------------------------------ service: what happened meanwhile

    def service(self) -> None:
        """Settle what has returned, stop what must stop, begin what may begin."""
        core = self.core
        while self.returned:
            self._returned(self.returned.popleft())
        if not self.active:
            return
        if core.look():
            self._stop_all()
        if core.timers:
            self._check_timers()
        if self.ready:
            self._pump()
        if core.at_rest:
            self._begin_effects()

    def _begin_effects(self) -> None:
        """While the consumer has come back: questions, tools and hooks that wait may begin, in call order."""
        core = self.core
        for call in list(self.active):
            if not core.at_rest or core.too_late():  # what came of the one before may be told (G12), or be a stop (G21)
                return
            if call.stage == "starting":
                if self._may_begin(call):
                    self._launch(call)
            elif call.stage == "asking":
                self._question(call)
            elif call.stage == "returned":
                self._after(call)

    def _question(self, call: Call) -> None:
        core, config = self.core, self.core.config
        call.stage = "asked"
        if config.approval_timeout is not None:
            core.timers.set(call, core.clock.now() + config.approval_timeout)
        assert config.approve is not None
        self._callback(
            call, config.approve, (ApprovalRequest(call.call.id, call.call.name, call.text),), self._answered
        )

    def _callback(self, call: Call, function: Any, args: tuple[Any, ...], done: Any) -> None:
        """Call the caller's code; `done(call, value, error)` follows, at once or when its job is over."""
        core = self.core

        def told(value: Any, error: BaseException | None = None) -> None:
            try:
                core.guard(looked_at, value)
            except CallbackFailed as failed:
                value, error = None, failed.error
            done(call, value, error)

        try:
            value = core.guard(function, *args)
        except CallbackFailed as error:
            done(call, None, error.error)
            return
        if is_awaitable(value):

            def over(job: Job) -> None:
                close_unstarted(value)
                told(job.value, job.error)

            call.job = core.spawn(lambda job: value, over)
        else:
            told(value)

    def _answered(self, call: Call, decision: Any, error: BaseException | None) -> None:
        if call.stage != "asked" or self.core.closing or self.core.look():  # too late: timed out, left or stopped
            return
        self.core.timers.clear(call)
        if error is None:
            self._decide(call, decision)
        else:
            log.error("approve failed; the call is denied", exc_info=error)
            self._decide(call, "deny", _NOT_ASKED)

    def _launch(self, call: Call) -> None:
        """Step 6: run the tool."""
        core, tool = self.core, call.tool
        assert tool is not None
        call.stage = "running"
        call.sink = self._sink(call)
        call.timeout = tool.timeout if tool.timeout is not None else core.config.tool_timeout
        if call.timeout is not None:
            core.timers.set(call, core.clock.now() + call.timeout)
        call.job = core.spawn(
            lambda job: run_tool(call, job, core.config, self.threads),
            lambda job: self._over(call),
            f"tool {tool.name}",
        )
        self._watch_steering()

    def _sink(self, call: Call) -> Sink:
        return Sink(self.core, call.call.id, call.call.name, AbortSignal())

    def threads(self) -> anyio.CapacityLimiter:
        """What bounds the worker threads of a batch; those of the event loop may be used up by the application."""
        if self.limiter is None:
            self.limiter = anyio.CapacityLimiter(40)
        return self.limiter

    def _over(self, call: Call) -> None:
        assert call.sink is not None
        call.sink.closed = True
        if call.stage == "running":
            self.returned.append(call)

    def _watch_steering(self) -> None:
        wait = self.core.config.wait_for_steering
        if wait is None or self.watcher is not None or not any(c.tool and c.tool.interruptible for c in self._known()):
            return
        self.watcher = self.core.spawn(lambda job: called(wait), self._steering)

    def _known(self) -> list[Call]:
        for call in self.calls:
            if call.tool is None:
                call.tool = self.core.tools.get(call.call.name)
        return self.calls

    def _steering(self, job: Job) -> None:
        if job.cancel_requested:
            return
        if job.error is not None:
            what = "wait_for_steering"
            told = CallbackFailed(job.error).of(what, self.core.config.wait_for_steering)
            self.core.fail(job.error, what, told.text)
            return
        self.interrupted = True
        for call in list(self.active):
            assert call.tool is not None
            if call.tool.interruptible and call.stage == "running":
                self._stop(call, "interrupt")

    # ------------------------------------------------------------ stopping

    def _stop_all(self) -> None:
        for call in list(self.active):
            if call.stage == "running":
                if call.cause is None:
                    self._stop(call, "abort")
            elif call.stage in ("returned", "after"):
                self._end(call)
            elif call.stage != "new":  # such a call is the driver's: what it awaits for it raises Stopped
                if call.job is not None:
                    self.core.host.cancel(call.job)
                self._refuse(call, "aborted", stopped_text(self.core.outcomes.stop))

    def _stop(self, call: Call, cause: Cause) -> None:
        """Ask a running call to stop; cancel it after the grace, at once if it does not look."""
        core, tool, job, sink = self.core, call.tool, call.job, call.sink
        assert tool is not None and job is not None and sink is not None
        call.cause = cause
        core.timers.set(call, core.clock.now() + core.config.abort_grace + sink.bound)
        sink.signal.abort(None if core.outcomes.stop is None else core.outcomes.stop.error_message)
        if call.cancellable and (not tool.takes_context or tool.kind == "sync"):
            call.cancelled = True
            core.host.cancel(job)

    def _check_timers(self) -> None:
        for call in list(self.active):
            if call.stage == "asked" and self.core.config.approval_timeout is not None:
                if self.core.timers.expired(call):
                    assert call.job is not None
                    self.core.host.cancel(call.job)
                    self._decide(call, "deny", "Tool call denied: nobody answered in time.")
            elif (
                call.stage == "running" and (call.cause or call.timeout is not None) and self.core.timers.expired(call)
            ):
                self._too_long(call)

    def _too_long(self, call: Call) -> None:
        core, tool, job = self.core, call.tool, call.job
        assert tool is not None and job is not None
        if call.cause is None:
            self._stop(call, "timeout")
        elif not call.cancelled and tool.kind != "sync":
            call.cancelled = True
            core.host.cancel(job)
            core.timers.set(call, core.clock.now() + core.config.abort_grace)
        else:
            assert call.sink is not None
            call.sink.closed = True
            core.host.cancel(job)  # a thread's job; a task's was cancelled before
            core.give_up(job)
            self._settle(call, not_stopped(call))

    # ------------------------------------------------------------ what came of it

    def _returned(self, call: Call) -> None:
        """The tool's job is over: make its result, and have the hook look at it."""
        if call.stage == "running":
            self.core.timers.clear(call)
            self._settle(call, outcome_of(call, self.core.outcomes.stop, self.core.config.max_result_characters))

    def _settle(self, call: Call, outcome: Outcome) -> None:
        call.value = outcome
        call.stage = "returned"
        if self.core.config.after_tool_call is None or not call.began or self.core.look():
            self._end(call)

    def _after(self, call: Call) -> None:
        """Step 7."""
        assert call.value is not None
        call.stage = "after"
        self._callback(call, self.core.config.after_tool_call, (call.invocation, call.value.result), self._replaced)

    def _replaced(self, call: Call, answer: Any, error: BaseException | None) -> None:
        outcome = call.value
        assert outcome is not None
        if call.stage != "after" or (error is not None and (self.core.closing or self.core.look())):
            return  # what was stopped keeps its real result
        if answer is not None and not is_kind(answer, ToolResult):
            error = TypeError(f"after_tool_call: expected a ToolResult or None, got {type(answer).__name__}")
        if error is not None:
            log.error("after_tool_call failed; the call's result is an error", exc_info=error)
            call.value = Outcome(ToolResult((Text(error_text(error)),), is_error=True), "tool_error", "fatal")
        elif answer is not None:
            call.value = with_answer(outcome, answer, self.core.config.max_result_characters)
        self._end(call)

    def _end(self, call: Call) -> None:
        """Step 8."""
        assert call.value is not None and call.job is not None
        self.core.host.cancel(call.job)  # a hook's that a stop cuts short; any other is over, or was cancelled before
        self._emit_end(call, call.value)

    def _refuse(self, call: Call, code: str, text: str, terminate: bool = False) -> None:
        """End a call that does not run."""
        core = self.core
        if call.stage != "starting":
            core.emit(ToolExecutionStart(call.call.id, call.call.name, call.text))
        stop: StopReason = "aborted" if code in ABORTED_CALL_CODES else "fatal"
        result = ToolResult((Text(text if text.strip() else code),), is_error=True, terminate=terminate)
        self._emit_end(call, Outcome(result, code, stop))

    def _emit_end(self, call: Call, outcome: Outcome) -> None:
        call.value, call.stage = outcome, "ended"
        if call in self.active:
            self.active.remove(call)
        if call in self.ready:
            self.ready.remove(call)
        self.core.timers.clear(call)
        asked, result = call.call, outcome.result
        call.end = ToolExecutionEnd(
            asked.id, asked.name, result, result.is_error, outcome.stop_reason, outcome.error_code
        )
        self.core.emit(call.end)
        self._release()

    def _release(self) -> None:
        """Result messages in call order, each as soon as all earlier ones are out (G08)."""
        core, calls = self.core, self.calls
        while self.next_result < len(calls) and (end := calls[self.next_result].end) is not None:
            message = result_message(end)
            self.next_result += 1
            request = core.state.request
            if request is None or request.status == "completed":
                core.history.append(message)
            core.emit(MessageStart(message))
            core.emit(MessageEnd(message))
