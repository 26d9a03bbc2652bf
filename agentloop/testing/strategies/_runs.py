"""Whole runs for generated streams: turns, attempts, calls, compactions, and every derived value as the contract says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agentloop.errors import StopReason
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    McpServerStatus,
    MessageEnd,
    MessageStart,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TokenUsage,
    ToolListReady,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AgentMessage, AssistantMessage, Text, ToolCall, ToolResultMessage, Usage, UserMessage
from agentloop.testing.strategies import values
from agentloop.testing.strategies._calls import CallPlan, CallPlanner, Manner
from agentloop.testing.strategies._replies import ReplyMaker

_USAGES = values.usages()
_USER = values.user_messages()
_CUSTOM = values.custom_messages()
_SPECS = values.tool_specs()
_TEXTS = values.texts()
_JSON = values.json_objects()
_NAMES = values.names()
_ARGUMENTS = values.argument_texts()


class Outcome(NamedTuple):
    """How a run ends."""

    stop_reason: StopReason = "completed"
    code: str | None = None
    message: str | None = None
    abort: bool = False


COMPLETED = Outcome()
_OUTCOMES = (
    COMPLETED,
    COMPLETED,
    COMPLETED,
    Outcome("aborted", "user_abort", "stopped by the user", abort=True),
    Outcome("aborted", "user_abort", None, abort=True),
    Outcome("aborted", "deadline", "the deadline passed"),
    Outcome("retryable", "network", "connection reset"),
    Outcome("fatal", "rejected", "bad request ☕"),
    Outcome("fatal", "max_turns", "the limit of 2 turns"),
)
_ABORTED = Outcome("aborted", "user_abort", "stopped by the user", abort=True)
_THEMES: tuple[str | None, ...] = (None, "beside", "asked", "nested", "wait", None, "squeezed", "summary", None)
"""Corners that would be rare by chance: calls side by side; an abort while a call is asked about, in an announced wait, in a
compaction; a summary that no turn took; runs in runs in runs."""
_LIMITS = ("max_turns", "length_limit", "pause_limit", "callback_failed")
_STOP_REASONS: tuple[StopReason, ...] = ("completed", "aborted", "retryable")
_BROKEN_OFF: dict[str | None, tuple[StopReason, ...]] = {"asked": ("completed",), "wait": ("retryable",)}
_UNRUN = ("length", "refusal", "content_filter")


class RunMaker:
    """Makes the events of one run, legal and consistent. `depth` is how deep nested runs may go."""

    def __init__(self, draw: Callable[[Any], Any], pick: Callable[..., Any], *, depth: int, custom: bool) -> None:
        self.draw = draw
        self.pick = pick
        self.depth = depth
        self.custom = custom
        self.theme: str | None = pick(*_THEMES)
        self.events: list[Event] = []
        self.ids: set[str] = set()
        self.replies = ReplyMaker(draw, pick, self.new_id)
        self.planner = CallPlanner(draw, pick, self.nested)
        self.turns = 0
        self.connected = self.listed = self.replaced = False
        self.messages: list[AgentMessage] = []
        self.broken: list[AgentMessage] = []
        self.broken_at = 0
        self.summary: UserMessage | None = None
        self.usage = Usage()
        self.session = draw(_USAGES)
        self.results: list[ToolResultMessage] = []

    def new_id(self) -> str:
        """An id that no call of this run has."""
        base: str = self.pick("call_1", "toolu_01", "fn", "é")
        id, number = base, 2
        while id in self.ids:
            id, number = f"{base}#{number}", number + 1
        self.ids.add(id)
        return id

    def seldom(self) -> bool:
        """True once in five times."""
        return bool(self.pick(False, False, True, False, False))

    # ------------------------------------------------------------ the run

    def run(self) -> list[Event]:
        """The events from `AgentStart` to `AgentEnd`."""
        self.events.append(AgentStart())
        theme = self.theme
        outcome: Outcome = _ABORTED if theme in ("asked", "wait", "squeezed") else self.pick(*_OUTCOMES)
        outcome = COMPLETED if theme in ("beside", "summary", "nested") else outcome
        self.replies.with_calls = theme in ("beside", "asked", "wait", "nested")
        self.planner.left_open = theme == "asked"
        turns = 1 if theme == "nested" else self.pick(1, 2) if self.replies.with_calls else self.pick(1, 1, 3, 0, 2, 1)
        may_squeeze = theme is None and (turns == 0 or outcome.abort or outcome.stop_reason == "completed")
        squeezed = theme in ("squeezed", "summary") or (may_squeeze and self.seldom())
        if self.seldom():
            self.open_calls(outcome if turns == 0 else COMPLETED)
        for number in range(turns):
            if self.seldom() and not self.compaction(self.pick("completed", "retryable", "fatal", "completed")):
                return self.end(self.given_up())
            last = number == turns - 1
            self.turn(outcome if last and not squeezed else COMPLETED, last)
            for _ in range(self.pick(0, 0, 0, 1, 2)):
                self.stop_hook()
        return self.end(self.last_compaction(outcome) if squeezed else outcome)

    def last_compaction(self, outcome: Outcome) -> Outcome:
        """A compaction after the last turn, or alone; given up it changes nothing, unless it was aborted."""
        if not outcome.abort:
            self.compaction("completed" if self.theme == "summary" else self.pick("completed", "retryable", "fatal"))
            return outcome
        self.compaction("aborted")
        return Outcome("aborted", "compaction_interrupted", outcome.message, abort=True)

    def given_up(self) -> Outcome:
        """How a run ends after a compaction that was given up before a turn."""
        end: Any = self.events[-1]
        return Outcome(end.status, end.error_code, end.error_message)

    def end(self, outcome: Outcome) -> list[Event]:
        """The run's end, with everything that it sums up."""
        if outcome.abort:
            self.events.append(Abort(outcome.code, outcome.message))
        broken = [] if outcome.stop_reason == "completed" else self.broken
        cut = self.broken_at
        self.events.append(
            AgentEnd(
                (*self.messages[:cut], *broken, *self.messages[cut:]),
                outcome.stop_reason,
                outcome.code,
                outcome.message,
                self.usage,
                self.replaced,
                self.summary,
            )
        )
        return self.events

    def stop_hook(self) -> None:
        """A hook's answer after a turn."""
        output = self.draw(_JSON) if self.seldom() else None
        self.events.append(
            Hook("stop", "reviewer", self.pick(None, "continue", "stop"), self.pick(None, "more"), output)
        )

    # ------------------------------------------------------------ turns

    def open_turn(self) -> None:
        """A turn's start."""
        self.events.append(TurnStart(self.turns))
        self.turns += 1
        self.results = []

    def open_calls(self, outcome: Outcome) -> None:
        """A turn that runs calls of the context."""
        self.open_turn()
        self.connect("completed")
        if self.pick(True, True, False):
            self.list_tools()
        calls = [
            ToolCall(self.new_id(), self.draw(_NAMES), self.draw(_ARGUMENTS)) for _ in range(self.pick(1, 1, 2, 3))
        ]
        manner: Manner = "aborted" if outcome.stop_reason == "aborted" else "run"
        self.calls(calls, self.messages, [manner] * len(calls), opened=True)
        self.events.append(TurnEnd(None, tuple(self.results)))

    def turn(self, outcome: Outcome, last: bool) -> None:
        """A turn with inputs, attempts and calls that ends as `outcome` says; the last may come without a request."""
        self.open_turn()
        if self.summary is not None:
            self.input(self.summary, self.messages)
            self.summary = None
        for _ in range(self.pick(1, 1, 0, 2)):
            self.input(self.draw(_CUSTOM if self.custom and self.seldom() else _USER), self.messages)
            if self.seldom():
                self.events.append(
                    Hook("user_prompt", "context", self.pick(None, "stop"), None, self.pick(None, {"n": 1}))
                )
        stopped = outcome.stop_reason == "aborted"
        connected = self.connect(
            self.pick("completed", "fatal", "aborted") if stopped else self.pick("completed", "fatal")
        )
        if not connected or (last and outcome.stop_reason in ("aborted", "completed") and self.seldom()):
            self.events.append(TurnEnd())
            return
        number = 1
        for _ in range(self.pick(0, 0, 0, 1, 2)):
            self.attempt(number, "retryable", retry=self.pick(0, 2000, 4000))
            number += 1
        reply, calls = self.last_attempt(number, outcome)
        self.answer(reply, calls, outcome)
        self.events.append(TurnEnd(reply, tuple(self.results)))

    def input(self, message: AgentMessage, into: list[AgentMessage]) -> None:
        """An input's start and end."""
        self.events += [MessageStart(message), MessageEnd(message)]
        into.append(message)

    def connect(self, status: StopReason) -> bool:
        """Perhaps a connection, once in a run; False if it was aborted."""
        if self.connected or not self.seldom():
            return True
        self.connected = True
        servers = self.pick(("files",), ("files", "web"))
        self.events.append(McpConnectBegin(servers))
        if status == "aborted":
            self.events.append(McpConnectEnd("aborted"))
            return False
        failed = status == "fatal"
        results = [McpServerStatus(name, self.pick("stdio", "http"), "completed", 12, 3) for name in servers[failed:]]
        if failed:
            results.append(McpServerStatus(servers[0], "sse", "fatal", 0, None, "connect_failed", "no such file"))
        error = ("connect_failed", "1 server failed") if failed else (None, None)
        self.events.append(McpConnectEnd(status, tuple(results), *error))
        return True

    def list_tools(self) -> None:
        """The tools that are offered."""
        self.listed = True
        self.events.append(ToolListReady(tuple([self.draw(_SPECS) for _ in range(self.pick(0, 1, 1, 2))])))

    # ------------------------------------------------------------ attempts

    def last_attempt(self, number: int, outcome: Outcome) -> tuple[AssistantMessage | None, list[ToolCall]]:
        """A turn's last attempt."""
        if outcome.stop_reason == "completed" or outcome.code in _LIMITS:
            return self.attempt(number, "completed")
        if outcome.stop_reason == "aborted":
            how: StopReason = self.pick(*_BROKEN_OFF.get(self.theme, _STOP_REASONS))
            # `retryable`: stopped in the wait that was announced
            return self.attempt(number, how, retry=2000 if how == "retryable" else None)
        return self.attempt(number, outcome.stop_reason)

    def attempt(
        self, number: int, status: StopReason, retry: int | None = None, held: Sequence[AgentMessage] = ()
    ) -> tuple[AssistantMessage | None, list[ToolCall]]:
        """One request: its reply, and the complete calls of it."""
        if not self.listed or self.seldom():
            self.list_tools()
        self.events.append(RequestBegin(number))
        usage = self.draw(_USAGES) if self.pick(True, True, False) else None
        error: tuple[str | None, str | None]
        failed = status in ("retryable", "fatal")
        error = self.pick(("network", "reset"), ("truncated", None), ("timeout", "")) if failed else (None, None)
        silent = not self.replies.with_calls and self.seldom()
        events = [] if silent else self.replies.reply(status, usage, error)
        self.events += events
        reply = events[-1].message if events else None
        if status == "completed" and usage is not None:
            self.session += usage
            self.events.append(TokenUsage(self.session, usage))
        spent = None if status == "completed" else usage
        self.events.append(RequestEnd(status, number, retry, error[0], error[1], spent))
        self.usage += usage or Usage()
        self.broken, self.broken_at = [], len(self.messages)
        if status == "completed":
            self.messages += [] if reply is None else [*held, reply]
        elif reply is not None:
            self.broken = [reply]
        return reply, list(reply.tool_calls) if reply is not None else []

    # ------------------------------------------------------------ calls

    def answer(self, reply: AssistantMessage | None, calls: list[ToolCall], outcome: Outcome) -> None:
        """The calls of a turn's last reply."""
        if reply is None or not calls:
            return
        if reply.stop_reason != "completed":
            self.calls(calls, self.broken, ["cut_off"] * len(calls))
            return
        manners: list[Manner] = []
        stopped = False
        for _ in calls:
            stopped = stopped or (outcome.stop_reason == "aborted" and self.pick(True, False, True))
            manners.append("aborted" if stopped else self.pick("run", "run", "run", "refused"))
        self.calls(calls, self.messages, ["cut_off"] * len(calls) if reply.finish_reason in _UNRUN else manners)

    def calls(
        self, calls: Sequence[ToolCall], into: list[AgentMessage], manners: Sequence[Manner], *, opened: bool = False
    ) -> None:
        """Calls that run beside each other; results as soon as all earlier ones are out.

        Open calls of the context start in call order: their starts make it.
        """
        plans = [self.planner.plan(call, manner) for call, manner in zip(calls, manners, strict=True)]
        left = [deque(plan.events) for plan in plans]
        side_by_side = len(plans) > 1 and (self.theme == "beside" or self.pick(True, False, True))
        kept = [plan.starting if opened else plan.asking for plan in plans]
        answered = 0
        while answered < len(plans):
            ready = [n for n in range(len(plans)) if left[n] and self.in_order(plans, left, kept, n)]
            self.events.append(left[self.pick(*ready) if side_by_side else ready[0]].popleft())
            while answered < len(plans) and not left[answered]:
                message = plans[answered].result
                self.input(message, into)
                self.results.append(message)
                answered += 1

    def in_order(
        self, plans: Sequence[CallPlan], left: Sequence[deque[Event]], kept: Sequence[int], place: int
    ) -> bool:
        """Whether the next event of a call may come now: the first `kept` events of each call keep call order."""
        done = [len(plan.events) - len(rest) for plan, rest in zip(plans, left, strict=True)]
        return done[place] >= kept[place] or all(done[n] >= kept[n] for n in range(place))

    def nested(self, call_id: str) -> list[Event]:
        """A nested run of a call, as its parent sees it; now and then cut short."""
        often = self.theme == "nested" and self.depth > 1
        if self.depth <= 0 or not self.pick(often, False, True):
            return []
        session = f"child-{call_id}-{self.pick('a', 'b')}"  # ids of calls are unique, so no two nested runs share one
        child = RunMaker(self.draw, self.pick, depth=self.depth - 1, custom=self.custom)
        child.theme = "nested" if often else child.theme
        events = child.run()
        if self.seldom():
            events = events[: self.pick(*range(min(len(events), 12)))]
        meta = self.draw(_JSON) if self.seldom() else None
        return [SubagentStarted(session, call_id, meta), *[_nested(session, event) for event in events]]

    # ------------------------------------------------------------ compactions

    def prompt(self) -> list[AgentMessage]:
        """The inputs of a compaction's attempt."""
        held: list[AgentMessage] = []
        for _ in range(self.pick(1, 1, 2)):
            self.input(self.draw(_USER), held)
        return held

    def compaction(self, status: StopReason) -> bool:
        """A compaction that ends with `status`; whether it completed."""
        mode: Any = self.pick("summarize", "summarize", "discard") if status == "completed" else "summarize"
        reason = self.pick("context", "turns", "manual")
        self.events.append(CompactionBegin(reason, mode, self.pick(0, 120_000), self.pick(0, 12)))
        attempt = None
        if mode == "summarize":
            attempt = self.asked_for_summary(status)
        error: tuple[str | None, str | None]
        error = (None, None) if status == "completed" else self.pick(("malformed", "no summary"), ("network", None))
        summary = None
        if status == "completed":
            self.messages, self.broken, self.broken_at = [], [], 0
            self.replaced = True
            self.summary = summary = self.new_summary() if mode == "summarize" else None
        self.events.append(
            CompactionEnd(reason, mode, status, self.pick(attempt, attempt, None), error[0], error[1], summary)
        )
        self.results = []
        return status == "completed"

    def new_summary(self) -> UserMessage:
        """A summary that a completed compaction made."""
        text = self.pick("[context_summary]\nsaid\n[/context_summary]", "short", self.draw(_TEXTS) or "short")
        return UserMessage((Text(text),), self.pick(None, None, "harness"))

    def asked_for_summary(self, status: StopReason) -> int | None:
        """The attempts of a compaction: unusable replies first, then failures; their number."""
        self.connect("completed")
        number = 0
        for _ in range(self.pick(0, 0, 0, 1)):
            number += 1
            self.useless_summary(number)
        if status == "aborted" and self.seldom():
            return number or None
        for _ in range(self.pick(0, 0, 1)):
            number += 1
            self.prompt()
            self.attempt(number, "retryable", retry=2000)
        number += 1
        held = self.prompt()
        calls = self.attempt(number, status, held=held)[1]
        if status == "completed" and calls:
            self.calls(calls, self.messages, ["refused"] * len(calls))
        return number

    def useless_summary(self, number: int) -> None:
        """A committed reply that gives no summary; its calls are answered."""
        held = self.prompt()
        _, calls = self.attempt(number, "completed", self.pick(None, 2000), held=held)
        self.calls(calls, self.messages, ["refused"] * len(calls))


def _nested(session: str, event: Event) -> Event:
    if isinstance(event, ChildEvent):
        return ChildEvent((session, *event.origin), event.event)
    return ChildEvent((session,), event)
