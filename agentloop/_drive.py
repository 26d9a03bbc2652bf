"""The driver: performs one step after another, as `decide` says, until the run is over."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from agentloop import _decide as steps
from agentloop._ask import ask
from agentloop._callbacks import CallbackFailed, Closed, Stopped, named, shown
from agentloop._decide import Limits, Stop, decide
from agentloop._eager import Ahead, EagerBatch, ask_eagerly, is_eager
from agentloop._execute import Batch
from agentloop._hooks import hook_answer, hook_event
from agentloop._run import Core
from agentloop._toolset import Toolset
from agentloop._values import is_kind, plain_text, raise_order
from agentloop.config import CompactionState, Config, HookAnswer
from agentloop.context import agent_messages
from agentloop.convert import LegalHistory
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    CompactionBegin,
    CompactionEnd,
    MessageEnd,
    MessageStart,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AgentMessage, CustomMessage, ToolResultMessage, UserMessage, user
from agentloop.tools import Tool

log = logging.getLogger("agentloop")

T = TypeVar("T")
_INPUTS: Final[tuple[type[str | AgentMessage], ...]] = (str, UserMessage, ToolResultMessage, CustomMessage)


def limits_of(config: Config) -> Limits:
    """What `decide` needs of a config."""
    return Limits(
        max_turns=config.max_turns,
        max_cut_replies=config.max_cut_replies,
        attempts=1 + len(config.retry.waits),
        finish_turn=config.finish_turn is not None,
        tool_source=config.tool_source is not None,
        stop_hooks=any(hooks.stop is not None for hooks in config.hooks),
        compaction=None if config.compaction is None else config.compaction.mode,
    )


class Driver:
    """Performs the steps of one run."""

    def __init__(self, core: Core, tools: Sequence[Tool]) -> None:
        self.core = core
        self.toolset = Toolset(core, tools)
        self.ahead: Ahead | None = None  # calls of the last reply that began while it came
        self.turn_end = TurnEnd()
        self.prompts: Sequence[AgentMessage] = ()  # inputs of a compaction's next attempt
        self.problem: str | None = None  # what was wrong with the last attempt at a summary
        self.summary: UserMessage | None = None

    async def drive(self) -> None:
        """Run to the end."""
        core = self.core
        limits = limits_of(core.config)
        while True:
            if core.closing:  # nothing is folded any more: the same step would come again and again
                raise Closed
            step = decide(core.state, core.outcomes, limits)
            if step is None:
                break
            try:
                await _PERFORM[type(step)](self, step)
            except Stopped:
                pass  # the stop is in the outcomes: the next decision knows
            core.look()
        await self.toolset.close()

    # ------------------------------------------------------------ run and turn

    async def _start(self, step: steps.Start) -> None:
        self.core.emit(AgentStart())

    async def _open_turn(self, step: steps.OpenTurn) -> None:
        core = self.core
        state, outcomes = core.state, core.outcomes
        await self.toolset.look()
        if core.look() and not outcomes.inputs:
            return
        summary = state.summary
        core.emit(TurnStart(state.turns))
        if outcomes.open_calls:  # such a turn has no inputs: they wait for the next
            return
        prompts, outcomes.prompts = outcomes.prompts, []
        inputs, outcomes.inputs = outcomes.inputs, []
        if summary is not None:
            self._input(summary)
        for message in prompts:
            self._input(message)
            await self._user_prompt_hooks(message)
        for message in inputs:
            self._input(message)

    async def _inputs(self, step: steps.Inputs) -> None:
        inputs, self.core.outcomes.inputs = self.core.outcomes.inputs, []
        for message in inputs:
            self._input(message)

    def _input(self, message: AgentMessage) -> None:
        core = self.core
        if core.state.compaction is None:
            core.history.append(message)
        core.emit(MessageStart(message))
        core.emit(MessageEnd(message))

    async def _close_turn(self, step: steps.CloseTurn) -> None:
        state, outcomes = self.core.state, self.core.outcomes
        outcomes.open_calls = ()
        outcomes.new_turn()
        self.turn_end = TurnEnd(state.reply, tuple(state.results))
        self.core.emit(self.turn_end)

    async def _finish(self, step: steps.Finish) -> None:
        core, state, stop = self.core, self.core.state, step.stop
        if stop.abort:
            core.emit(Abort(stop.error_code, stop.error_message))
        completed = stop.stop_reason == "completed"
        failed = core.failure if core.outcomes.stop is None and not completed else stop.exception
        core.emit(
            AgentEnd(
                state.new_messages if completed else state.all_messages,
                stop.stop_reason,
                stop.error_code,
                stop.error_message,
                state.usage,
                state.compacted,
                state.summary,
                failed,
            )
        )

    # ------------------------------------------------------------ model and calls

    async def _ask(self, step: steps.Ask) -> None:
        if self.core.config.get_tools is not None:
            self.toolset.replace(await self._call("get_tools", self.core.config.get_tools))
            if self.core.look():
                return
        prompts, self.prompts = self.prompts, ()
        for message in prompts:  # nothing may come between them and their attempt, not even a stop
            self._input(message)
        if is_eager(self.core):
            self.ahead = await ask_eagerly(self.core, step.attempt)
        else:
            await ask(self.core, step.attempt)

    async def _connect(self, step: steps.Connect) -> None:
        self.core.outcomes.connected = True
        await self.toolset.connect()

    async def _wait(self, step: steps.Wait) -> None:
        core = self.core
        core.waiting, core.skipped = True, False
        core.timers.set("wait", core.clock.now() + step.milliseconds / 1000)
        try:
            await core.until(lambda: core.skipped or core.look() or core.timers.expired("wait"))
        finally:
            core.waiting = False
            core.timers.clear("wait")
        stop = core.outcomes.stop
        if stop is None:
            core.outcomes.waited = True
        elif stop.abort:
            core.outcomes.stop = attrs.evolve(stop, error_code="backoff_interrupted")

    async def _run_calls(self, step: steps.RunCalls) -> None:
        ahead, self.ahead = self.ahead, None
        await (Batch(self.core, step.calls) if ahead is None else EagerBatch(self.core, step.calls, ahead)).run()

    async def _refuse_calls(self, step: steps.RefuseCalls) -> None:
        Batch(self.core, step.calls).refuse_all(step.error_code)
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            await ahead.discard()

    # ------------------------------------------------------------ callbacks between the turns

    async def _poll(self, step: steps.Poll) -> None:
        outcomes, config = self.core.outcomes, self.core.config
        steering = step.queue == "steering"
        if steering:
            outcomes.steering += 1
        else:
            outcomes.follow_up = True
        function = config.get_steering_messages if steering else config.get_follow_up_messages
        if function is None:
            return
        setting = f"get_{step.queue}_messages"
        taken = await self._call(setting, function, keep=True)
        if taken is not None:
            outcomes.inputs += self._messages(taken, setting)

    def _messages(self, given: Any, what: str) -> list[AgentMessage]:
        """What a callback gave, as far as it is inputs: those are kept, and anything else ends the run."""
        found: list[AgentMessage] = []
        try:
            alone = is_kind(given, _INPUTS)
            if not alone and (isinstance(given, bytes | Mapping) or not isinstance(given, Iterable)):
                raise TypeError(f"expected inputs or text, got {type(given).__name__}")
            for index, item in enumerate((given,) if alone else given):
                if not is_kind(item, _INPUTS):
                    raise TypeError(f"messages[{index}]: expected an input or text, got {type(item).__name__}")
                found += agent_messages(item)
        except BaseException as error:
            raise_order(error)
            self.core.fail(error, what)
        return found

    async def _call(self, setting: str, function: Callable[..., Any], *args: Any, keep: bool = False) -> Any:
        """A callback whose failure ends the run; None when it failed."""
        try:
            return await self.core.call(function, *args, keep=keep)
        except CallbackFailed as error:
            self.core.fail(error.error, named(setting, function), error.of(setting, function).text)
            return None

    async def _ask_finish_turn(self, step: steps.AskFinishTurn) -> None:
        core = self.core
        assert core.config.finish_turn is not None
        verdict = await self._call("finish_turn", core.config.finish_turn, self.turn_end)
        said = plain_text(verdict)
        if said in ("end", "ask"):
            core.outcomes.verdict = said  # type: ignore[assignment]
            return
        core.outcomes.verdict = "none"
        if verdict is not None:
            core.fail(TypeError(f"expected None, 'end' or 'ask', got {shown(verdict)}"), "finish_turn")

    async def _user_prompt_hooks(self, message: AgentMessage) -> None:
        core = self.core
        if not isinstance(message, UserMessage) or message.sender is not None:
            return
        for hooks in core.config.hooks:
            if hooks.user_prompt is None:
                continue
            try:
                answer = hook_answer(await core.call(hooks.user_prompt, message))
            except CallbackFailed as error:
                self._hook_failed("user_prompt", hooks.name, error)
            except Stopped:
                return
            else:
                if answer is not None and answer.message:
                    core.outcomes.inputs.append(user(answer.message, sender="harness"))

    async def _ask_stop_hooks(self, step: steps.AskStopHooks) -> None:
        core = self.core
        core.outcomes.stop_hooks = True
        for hooks in core.config.hooks:
            if hooks.stop is None:
                continue
            try:
                answer = hook_answer(await core.call(hooks.stop, self.turn_end))
            except CallbackFailed as error:
                self._hook_failed("stop", hooks.name, error)
                continue
            if answer is None:
                continue
            core.emit(hook_event("stop", hooks.name, answer))
            if answer.decision == "continue" and not core.outcomes.inputs:
                core.outcomes.inputs.append(user(answer.message or "Continue.", sender="harness"))

    def _hook_failed(self, kind: str, name: str, error: CallbackFailed) -> None:
        log.error("the %s hook %s failed", kind, name, exc_info=error.error)
        self.core.emit(hook_event(kind, name, HookAnswer(reason=f"hook failed: {error.text}")))

    # ------------------------------------------------------------ compaction

    async def _check_compaction(self, step: steps.CheckCompaction) -> None:
        core, state, compaction = self.core, self.core.state, self.core.config.compaction
        assert compaction is not None
        core.outcomes.checked = "end" if step.at_end else "before"
        if compaction.mode == "discard" and not step.at_end:
            return
        view = CompactionState(state.context_tokens, state.context_turns, step.at_end, core.history.messages)
        due = await self._call("the compaction's due", compaction.due, view)
        said = plain_text(due)
        if due is None or said in ("context", "turns", "manual"):
            core.outcomes.due = said  # type: ignore[assignment]
        else:
            error = f"expected None, 'context', 'turns' or 'manual', got {shown(due)}"
            core.fail(TypeError(error), "the compaction's due")

    async def _open_compaction(self, step: steps.OpenCompaction) -> None:
        core, state, outcomes = self.core, self.core.state, self.core.outcomes
        assert core.config.compaction is not None
        reason = outcomes.due or "manual"
        outcomes.due = outcomes.summary = None
        outcomes.prompted = False
        self.problem = self.summary = None
        core.emit(CompactionBegin(reason, core.config.compaction.mode, state.context_tokens, state.context_turns))

    async def _prompt_compaction(self, step: steps.PromptCompaction) -> None:
        core = self.core
        assert core.config.compaction is not None
        what, prompt = "the compaction's prompt", core.config.compaction.prompt
        messages = await self._call(what, prompt, core.state.attempt + 1, self.problem)
        core.outcomes.prompted = True
        self.prompts = self._messages(() if messages is None else messages, what)

    async def _judge_summary(self, step: steps.JudgeSummary) -> None:
        core, reply = self.core, self.core.state.reply
        compaction = core.config.compaction
        assert compaction is not None
        core.outcomes.judged = True
        text = None
        if reply is None:
            self.problem = "the reply was empty"
        elif reply.tool_calls:
            self.problem = "the reply called a tool"
        else:
            text = await self._given(str, "accept", reply)
            self.problem = "the reply held no summary"
            if text is None and hasattr(compaction, "problem"):
                self.problem = await self._given(str, "problem", reply)
        if text and text.strip():
            self.summary = await self._given(UserMessage, "summary", text)
            core.outcomes.summary = text if self.summary is not None else None
        else:
            core.outcomes.prompted = False

    async def _given(self, kind: type[T], name: str, *args: Any) -> T | None:
        """What a method of the compaction gave; None when it gave nothing, or failed."""
        what = f"the compaction's {name}"
        value = await self._call(what, getattr(self.core.config.compaction, name), *args)
        if is_kind(value, str):
            value = plain_text(value)
        if value is None or is_kind(value, kind):
            return value
        error = TypeError(f"expected a {kind.__name__}, got {type(value).__name__}")
        self.core.fail(error, what)
        return None

    async def _close_compaction(self, step: steps.CloseCompaction) -> None:
        core, outcomes, begin = self.core, self.core.outcomes, self.core.state.compaction
        assert begin is not None
        completed = step.status == "completed"
        if outcomes.stop is not None and outcomes.stop.abort:
            outcomes.stop = attrs.evolve(outcomes.stop, error_code="compaction_interrupted")
        if not completed and outcomes.checked == "before":
            core.stop(Stop(step.status, step.error_code, step.error_message, exception=core.failure))
        attempt = core.state.attempt or None
        summary = self.summary if completed else None
        core.emit(
            CompactionEnd(begin.reason, begin.mode, step.status, attempt, step.error_code, step.error_message, summary)
        )
        if completed:
            core.history = LegalHistory()


_PERFORM: dict[type, Callable[[Driver, Any], Awaitable[None]]] = {
    steps.Start: Driver._start,
    steps.OpenTurn: Driver._open_turn,
    steps.Inputs: Driver._inputs,
    steps.Poll: Driver._poll,
    steps.Connect: Driver._connect,
    steps.Ask: Driver._ask,
    steps.Wait: Driver._wait,
    steps.RunCalls: Driver._run_calls,
    steps.RefuseCalls: Driver._refuse_calls,
    steps.CloseTurn: Driver._close_turn,
    steps.AskFinishTurn: Driver._ask_finish_turn,
    steps.AskStopHooks: Driver._ask_stop_hooks,
    steps.CheckCompaction: Driver._check_compaction,
    steps.OpenCompaction: Driver._open_compaction,
    steps.PromptCompaction: Driver._prompt_compaction,
    steps.JudgeSummary: Driver._judge_summary,
    steps.CloseCompaction: Driver._close_compaction,
    steps.Finish: Driver._finish,
}
