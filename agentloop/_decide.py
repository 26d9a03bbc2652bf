"""`decide`: what a run does next, as a pure function of what has happened.

What has happened is the folded `State` (the events) and `Outcomes` (the results of steps that have no event of their own: a
poll that found nothing, a verdict, a wait that is over). The driver performs the step and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from agentloop._frozen import frozen
from agentloop.errors import StopReason
from agentloop.messages import AgentMessage, ToolCall
from agentloop.reducer import State

MAX_PAUSES = 8
"""Pauses in a row that are continued; the next one ends the run (G23)."""

CUT_OFF = ("length", "refusal", "content_filter")
"""Finish reasons of replies whose calls are not executed (G22)."""


@frozen
class Limits:
    """The parts of a `Config` that decide what comes next."""

    max_turns: int | None
    max_cut_replies: int
    attempts: int
    finish_turn: bool
    tool_source: bool
    stop_hooks: bool
    compaction: Literal["summarize", "discard"] | None


@frozen
class Stop:
    """Why nothing more is to begin."""

    stop_reason: StopReason
    error_code: str | None
    error_message: str | None
    abort: bool = False
    """A user's abort: it gets an `Abort` event."""
    exception: BaseException | None = None


class Outcomes:
    """The results of steps that leave no event."""

    __slots__ = (
        "checked", "connected", "due", "follow_up", "inputs", "judged", "manual", "open_calls", "prompted", "prompts",
        "steering", "stop", "stop_hooks", "summary", "verdict", "waited",
    )  # fmt: skip

    def __init__(
        self, prompts: Iterable[AgentMessage] = (), open_calls: Sequence[ToolCall] = (), manual: bool = False
    ) -> None:
        self.prompts = list(prompts)
        """What starts the run; not emitted when it is stopped before its first turn."""
        self.inputs: list[AgentMessage] = []
        """Taken from a queue (or a hook) and not emitted yet."""
        self.open_calls = open_calls
        """Calls of the context that run first, in a turn of their own."""
        self.manual = manual
        """The run is a compaction alone."""
        self.stop: Stop | None = None
        self.connected = False
        self.due: Literal["context", "turns", "manual"] | None = None
        self.prompted = False
        """The next compaction attempt has its inputs."""
        self.summary: str | None = None
        """An accepted summary."""
        self.judged = False
        """The last compaction attempt's reply was looked at."""
        self.new_turn()

    def new_turn(self) -> None:
        """Forget what was asked since the turn before."""
        self.waited = False
        """The announced wait is over."""
        self.verdict: Literal["", "none", "end", "ask"] = ""
        """What `finish_turn` said after the last turn."""
        self.steering = 0
        """Polls of steering since the last turn."""
        self.follow_up = False
        """Follow-ups were polled since the last turn."""
        self.stop_hooks = False
        self.checked: Literal["", "before", "end"] = ""
        """Which compaction check was made since the last turn."""


# ---------------------------------------------------------------- steps


@frozen
class Start:
    """Begin the run."""


@frozen
class OpenTurn:
    """Begin a turn and emit what waits as its inputs."""


@frozen
class Inputs:
    """Emit what a poll has taken."""


@frozen
class Poll:
    """Ask a queue."""

    queue: Literal["steering", "follow_up"]


@frozen
class Connect:
    """Connect the tool source."""


@frozen
class Ask:
    """Ask the model."""

    attempt: int


@frozen
class Wait:
    """Wait before a retry."""

    milliseconds: int


@frozen
class RunCalls:
    """Run the calls."""

    calls: Sequence[ToolCall]


@frozen
class RefuseCalls:
    """Answer the calls without running them."""

    calls: Sequence[ToolCall]
    error_code: Literal["aborted", "cut_off"]


@frozen
class CloseTurn:
    """End the turn."""


@frozen
class AskFinishTurn:
    """Ask `finish_turn`."""


@frozen
class AskStopHooks:
    """Ask the `stop` hooks."""


@frozen
class CheckCompaction:
    """Ask the compaction whether it is due."""

    at_end: bool


@frozen
class OpenCompaction:
    """Begin the compaction that is due."""


@frozen
class PromptCompaction:
    """Emit the inputs of the next compaction attempt."""


@frozen
class JudgeSummary:
    """Ask the compaction whether the reply is a summary."""


@frozen
class CloseCompaction:
    """End the compaction."""

    status: StopReason
    error_code: str | None = None
    error_message: str | None = None


@frozen
class Finish:
    """End the run."""

    stop: Stop


Step: TypeAlias = (
    Start
    | OpenTurn
    | Inputs
    | Poll
    | Connect
    | Ask
    | Wait
    | RunCalls
    | RefuseCalls
    | CloseTurn
    | AskFinishTurn
    | AskStopHooks
    | CheckCompaction
    | OpenCompaction
    | PromptCompaction
    | JudgeSummary
    | CloseCompaction
    | Finish
)

COMPLETED = Stop("completed", None, None)


def decide(state: State, outcomes: Outcomes, limits: Limits) -> Step | None:
    """The next step, or None when the run is over."""
    if state.end is not None:
        return None
    if not state.started:
        return Start()
    if state.in_turn:
        return _in_turn(state, outcomes, limits)
    if state.compaction is not None:
        return _in_compaction(state, outcomes, limits)
    return _between_turns(state, outcomes, limits)


def _in_turn(state: State, outcomes: Outcomes, limits: Limits) -> Step:
    if outcomes.inputs and state.attempt == 0:
        return Inputs()
    if outcomes.stop is not None:
        return _close_stopped(state)
    if outcomes.open_calls:
        if limits.tool_source and not outcomes.connected:
            return Connect()
        waiting = outcomes.open_calls[len(state.results) :]
        return RunCalls(waiting) if waiting else CloseTurn()
    if state.attempt == 0:
        if state.turns == 1 and not outcomes.steering:
            return Poll("steering")
        return Connect() if limits.tool_source and not outcomes.connected else Ask(1)
    request = state.request
    assert request is not None, "an attempt is over when a step is decided"
    if request.status != "completed":
        if request.retry_in_ms is not None:
            return Ask(state.attempt + 1) if outcomes.waited else Wait(request.retry_in_ms)
        return RefuseCalls(state.open_calls, "cut_off") if state.open_calls else CloseTurn()
    calls = state.open_calls
    if not calls:
        return CloseTurn()
    assert state.reply is not None
    return RefuseCalls(calls, "cut_off") if state.reply.finish_reason in CUT_OFF else RunCalls(calls)


def _close_stopped(state: State) -> Step:
    return RefuseCalls(state.open_calls, "aborted") if state.open_calls else CloseTurn()


def _between_turns(state: State, outcomes: Outcomes, limits: Limits) -> Step:
    stop = outcomes.stop or _failure(state)
    if stop is None and state.turns and outcomes.verdict == "" and limits.finish_turn:
        return AskFinishTurn()
    if stop is None:
        stop = COMPLETED if outcomes.verdict == "end" else _limit(state, limits)
    if stop is not None:  # a message that was taken is always emitted (G29)
        return OpenTurn() if outcomes.inputs else Finish(stop)
    if outcomes.manual:
        return _manual(state)
    if state.turns == 0:
        return OpenTurn()
    goes_on = outcomes.verdict == "ask" or state.asks_for_more or bool(outcomes.prompts)  # left behind open calls
    if goes_on and limits.compaction and outcomes.checked == "":  # before the polls: no turn follows one given up
        return CheckCompaction(at_end=False)
    if outcomes.due is not None:
        return OpenCompaction()
    if outcomes.inputs:
        return OpenTurn()
    return _poll(state, outcomes, limits, goes_on)


def _poll(state: State, outcomes: Outcomes, limits: Limits, goes_on: bool) -> Step:
    if outcomes.steering == 0:
        return Poll("steering")
    if goes_on:
        return OpenTurn()
    if not outcomes.follow_up:
        return Poll("follow_up")
    if outcomes.steering == 1:
        return Poll("steering")
    if limits.stop_hooks and not outcomes.stop_hooks:
        return AskStopHooks()
    if limits.compaction and outcomes.checked != "end":
        return CheckCompaction(at_end=True)
    return Finish(COMPLETED)


def _manual(state: State) -> Step:
    if state.compaction_end is None:
        return OpenCompaction()
    end = state.compaction_end
    return Finish(Stop(end.status, end.error_code, end.error_message))


def _failure(state: State) -> Stop | None:
    failed = state.failure
    return None if failed is None else Stop(failed.status, failed.error_code, failed.error_message)


def _limit(state: State, limits: Limits) -> Stop | None:
    if state.turns == 0:
        return None
    if limits.max_turns is not None and state.requests >= limits.max_turns:
        if state.asks_for_more:
            turns = "1 turn" if limits.max_turns == 1 else f"{limits.max_turns} turns"
            return Stop("fatal", "max_turns", f"the run reached its limit of {turns}")
        return COMPLETED
    if state.pauses > MAX_PAUSES:
        return Stop("fatal", "pause_limit", f"the model paused {state.pauses} times in a row")
    if state.cut_replies >= limits.max_cut_replies:
        return Stop("fatal", "length_limit", f"{state.cut_replies} replies in a row were cut off by the output limit")
    return None


def _in_compaction(state: State, outcomes: Outcomes, limits: Limits) -> Step:
    stop = outcomes.stop
    if stop is not None:
        if state.open_calls and state.request is not None and state.request.status == "completed":  # G07
            return RefuseCalls(state.open_calls, "aborted")
        code = "compaction_interrupted" if stop.abort else stop.error_code
        return CloseCompaction(stop.stop_reason, code, stop.error_message)
    assert state.compaction is not None
    if state.compaction.mode == "discard" or outcomes.summary is not None:
        return CloseCompaction("completed")
    request = state.request
    if request is not None and request.status != "completed":
        if request.retry_in_ms is None:
            return CloseCompaction(request.status, request.error_code, request.error_message)
        return Ask(state.attempt + 1) if outcomes.waited else Wait(request.retry_in_ms)
    if request is not None and not outcomes.judged:
        return RefuseCalls(state.open_calls, "cut_off") if state.open_calls else JudgeSummary()
    if request is not None and state.attempt >= limits.attempts:
        return CloseCompaction("retryable", "malformed", "the model gave no usable summary")
    if not outcomes.prompted:
        if limits.tool_source and not outcomes.connected:
            return Connect()
        return PromptCompaction()
    return Ask(state.attempt + 1)
