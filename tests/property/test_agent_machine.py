"""A state machine that plays with an `Agent` and holds it against plain lists, on each backend.

What meets what is drawn: steering, follow-ups, taking back, approvals, an abort, a cancelled caller, retries, compactions
(due or by hand), another model, other tools, a continuation. Held after every step: the grammar at both levels; that each
message that was handed in is in exactly one place, in its order; that each request is legal and shows the history as it
stands; that no call runs twice or without its approval; that the state is the fold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar

import anyio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from agentloop import (
    Agent,
    AgentEnd,
    AgentMessage,
    ApprovalDecision,
    AssistantMessage,
    CompactionEnd,
    CompactionState,
    MessageEnd,
    ToolExecutionStart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentloop.agent import AgentState
from agentloop.grammar import Checker, ValueChecker
from agentloop.model import ModelRequest
from agentloop.testing.clock import wait_all_blocked
from agentloop.testing.machine import LoopMachine, World, _spawn, illegal, illegal_history
from agentloop.tools import Tool

FACTS = ("messages", "is_streaming", "stream_message", "pending_tool_calls", "error", "usage", "pending_summary")


class AgentWorld(World):
    """Around the agent: models, a tool, a person, a caller; and the plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.agent: Any = None
        self.handed: dict[str, list[str]] = {"prompt": [], "steering": [], "follow_up": []}
        """Every text that was handed in, in order, by the door that it came through."""
        self.taken_back: list[str] = []
        self.emitted: list[str] = []
        """The texts of people that had their events, over all runs."""
        self.due: Any = None
        self.observer = AgentState()
        self.current = "a"
        self.finished = False
        self.nothing_to_do = False
        self._checkers = Checker(), ValueChecker()

    # ------------------------------------------------------------ the compaction

    mode = "summarize"

    def compaction_due(self, state: CompactionState) -> Any:
        due, self.due = self.due, None
        return due

    def prompt(self, attempt: int, problem: str | None) -> list[UserMessage]:
        return [user("Summarise.", sender="harness")]

    def accept(self, reply: AssistantMessage) -> str | None:
        return reply.text or None

    def summary(self, text: str) -> UserMessage:
        return user(f"[summary] {text}", sender="harness")

    # ------------------------------------------------------------ the agent

    def make(self, **settings: Any) -> None:
        """Make the agent; its compaction is this world."""
        compaction = Summaries(self)
        options = {name: value for name, value in self.options.items() if name != "approve" or value is not None}
        self.agent = Agent(
            self.named_model("a"),
            tools=[Tool("work", "Work.", {"type": "object"}, self.work)],
            clock=self.clock,
            idle_timeout=None,
            compaction=compaction,
            **settings,
            **options,
        )
        self.agent.subscribe(self.watch)

    def named_model(self, name: str) -> Any:
        async def ask(request: ModelRequest) -> AsyncIterator[Any]:
            self.note(name, request)
            stream = self.model(request)
            try:
                async for item in stream:
                    yield item
            finally:
                await stream.aclose()  # type: ignore[attr-defined]

        return ask

    def note(self, name: str, request: ModelRequest) -> None:
        """Look at a request; what is wrong with it fails the machine, not only the attempt."""
        said = [message.text for message in request.messages if isinstance(message, UserMessage)]
        shown = [message.text for message in self.agent.messages if isinstance(message, UserMessage)]
        problems = [illegal(request.messages)]
        if name != self.current:
            problems.append(f"model {name} was asked, {self.current} is set")
        if said not in (shown, [*shown, "Summarise."]):
            problems.append(f"the request says {said}, the history {shown}")
        if [spec.name for spec in request.tools] != [tool.name for tool in self.agent.tools]:
            problems.append("other tools are offered than are set")
        found = [problem for problem in problems if problem]
        if found and self._problem is None:
            self._problem = AssertionError("; ".join(found))

    def watch(self, event: Any) -> None:
        """The listener. A listener that raises is dropped, so what it finds is kept apart."""
        try:
            self._watch(event)
        except Exception as problem:
            self._problem = self._problem or problem

    def _watch(self, event: Any) -> None:
        self.events.append(event)
        for checker in self._checkers:
            checker.feed(event)
        self.observer.apply(event)
        for name in FACTS:
            mine, seen = getattr(self.agent.state, name), getattr(self.observer, name)
            assert mine == seen, f"{name}: the agent says {mine!r}, its events {seen!r}"
        if isinstance(event, MessageEnd) and isinstance(event.message, UserMessage) and event.message.sender is None:
            self.emitted.append(event.message.text)
        elif isinstance(event, CompactionEnd) and event.status == "completed":
            self.begun = []  # ids of a context that is gone may come again
        elif isinstance(event, AgentEnd):
            self.finished = True
            self.history = event.messages if event.replaces_context else self.history + event.messages

    async def start(self, action: Callable[[], Awaitable[AgentEnd]]) -> None:
        """Let a caller of its own call the agent."""
        self.events, self._checkers = [], (Checker(), ValueChecker())
        self._effects_at_abort = None
        self.finished = self.nothing_to_do = False
        self._run = self.agent
        _spawn(self._drive, action)
        await wait_all_blocked()

    async def _drive(self, action: Callable[[], Awaitable[AgentEnd]]) -> None:
        with anyio.CancelScope() as self._reader:
            try:
                end = await action()
                assert end == self.events[-1], "what the prompt returned is not the last event"
            except ValueError:
                self.nothing_to_do = True
            except Exception as problem:
                self._problem = self._problem or problem
        self._run = None

    async def abort(self) -> None:
        """Abort; the run ends by itself, and begins nothing more."""
        self._effects_at_abort = self._effects
        assert self.agent.abort("enough")
        await wait_all_blocked()
        self._ended("enough")

    async def leave(self) -> None:
        """The caller is cancelled: the run comes to its end all the same."""
        if self._run is not None:
            assert self._reader is not None
            self._effects_at_abort = self._effects
            self._reader.cancel()
            await wait_all_blocked()
            self._ended("the caller was cancelled")

    def _ended(self, reason: str) -> None:
        assert not self.alive, "the run went on"
        end = self.events[-1]
        assert isinstance(end, AgentEnd), end
        assert (end.stop_reason, end.error_message) == ("aborted", reason), end

    def hand_in(self, door: str, text: str) -> None:
        """Queue a text."""
        self.handed[door].append(text)
        (self.agent.steer if door == "steering" else self.agent.follow_up)(text)

    def take_back(self, queue: Any) -> None:
        """Take what waits out of a queue."""
        self.taken_back += [message.text for message in self.agent.take_back(queue)]

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Hold the agent against the lists."""
        if self._problem is not None:
            raise self._problem
        if self.agent is None:
            return
        self._check_calls()
        self._check_messages()
        if self._effects_at_abort is not None:
            assert self._effects == self._effects_at_abort, "something began after the abort"
        assert self.agent.is_running == self.alive
        if self.alive or not self.events:
            return
        assert self.finished or self.nothing_to_do, "a run was over without its end"
        for checker in self._checkers:
            checker.finish()
        assert self.agent.messages == self.history, "the history is not what the ends of the runs say"
        problem = illegal_history(answered(self.history))
        assert problem is None, problem

    def _check_calls(self) -> None:
        starts = [event.tool_call_id for event in self.events if isinstance(event, ToolExecutionStart)]
        assert len(set(self.begun)) == len(self.begun), f"a call ran twice: {self.begun}"
        assert set(self._calls) <= set(starts), "a tool runs whose start was not seen"
        if self.options.get("approve") is not None:
            allowed = {e.tool_call_id for e in self.events if isinstance(e, ApprovalDecision) and e.decision == "allow"}
            assert set(self._calls) <= allowed, "a tool runs that was not allowed"

    def _check_messages(self) -> None:
        waiting = {
            name: [message.text for message in self.agent.queued(name)]  # type: ignore[arg-type]
            for name in ("steering", "follow_up")
        }
        places = [*self.emitted, *self.taken_back, *waiting["steering"], *waiting["follow_up"]]
        queued = [*self.handed["steering"], *self.handed["follow_up"]]
        assert len(set(places)) == len(places), f"a message is in two places: {places}"
        assert set(queued) <= set(places), f"a message is lost: {set(queued) - set(places)}"
        assert set(places) <= set(queued) | set(self.handed["prompt"]), "a message came from nowhere"
        for name, texts in waiting.items():
            said = [text for text in self.emitted if text in self.handed[name]]
            gone = {text for text in self.taken_back if text in self.handed[name]}
            assert said + texts == [text for text in self.handed[name] if text not in gone], "the order was changed"


def answered(history: Sequence[AgentMessage]) -> list[AgentMessage]:
    """The history without the calls that need no result: of a compaction's reply that was not committed (G07)."""
    results = {message.tool_call_id for message in history if isinstance(message, ToolResultMessage)}
    kept: list[AgentMessage] = []
    for message in history:
        if isinstance(message, AssistantMessage) and message.stop_reason != "completed":
            calls = {call.id for call in message.tool_calls}
            if not calls & results:
                continue
            assert calls <= results, "some calls of a reply were answered, others not"
        kept.append(message)
    return kept


class Summaries:
    """The world's compaction, as the setting wants it."""

    mode = "summarize"

    def __init__(self, world: AgentWorld) -> None:
        self.due = world.compaction_due
        self.prompt, self.accept, self.summary = world.prompt, world.accept, world.summary


class AgentMachine(LoopMachine):
    """The loop's machine, with an agent between it and the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.world: AgentWorld = AgentWorld()

    @initialize(
        steering=st.sampled_from(["one_at_a_time", "all"]),
        follow_up=st.sampled_from(["one_at_a_time", "all"]),
        all_at_once=st.booleans(),
        approval=st.booleans(),
        run_ahead=st.sampled_from([0, 1, 64]),
    )
    def configure(self, steering: Any, follow_up: Any, all_at_once: bool, approval: bool, run_ahead: int) -> None:
        """Choose how the agent goes."""
        world = self.world
        world.options = {
            "approval_order": "all_at_once" if all_at_once else "one_at_a_time",
            "approve": world.approve if approval else None,
            "run_ahead": run_ahead,
        }
        world.make(steering_mode=steering, follow_up_mode=follow_up)

    @precondition(lambda self: not self.world.alive)
    @rule(count=st.integers(0, 2))
    def begin(self, count: int) -> None:
        """Prompt."""
        world = self.world
        texts = [self._text("prompt") for _ in range(count or not world.history)]
        world.handed["prompt"] += texts
        self._call(world.start, lambda: world.agent.prompt(texts))

    @precondition(lambda self: not self.world.alive)
    @rule()
    def go_on(self) -> None:
        """Continue; there may be nothing to do, but not while something waits or the last reply was not committed."""
        world = self.world
        waits = world.agent.queued("steering") or world.agent.queued("follow_up") or world.agent.state.pending_summary
        last = world.agent.state.messages[
            -1:
        ]  # a compaction that failed, or a late abort, leaves a complete reply last
        complete = any(isinstance(m, AssistantMessage) and m.stop_reason == "completed" for m in last)
        failed = world.agent.state.error is not None and last and not complete
        self._call(world.start, lambda: world.agent.continue_())
        if world.nothing_to_do:
            assert not (waits or failed), "there was something to do"

    @precondition(lambda self: not self.world.alive and self.world.history)
    @rule()
    def compact(self) -> None:
        """Compact by hand."""
        world = self.world
        self._call(world.start, lambda: world.agent.compact())

    @rule()
    def make_a_compaction_due(self) -> None:
        """The next time that the compaction is asked, it is due."""
        self.world.due = "context"

    @rule(queue=st.sampled_from(["steering", "follow_up"]))
    def queue_message(self, queue: str) -> None:
        """Steer, or follow up."""
        text = self._text(queue)

        async def hand_in() -> None:
            self.world.hand_in(queue, text)
            await wait_all_blocked()

        self._call(hand_in)

    @rule(queue=st.sampled_from(["steering", "follow_up", None]), chance=st.integers(0, 3))
    def take_back(self, queue: Any, chance: int) -> None:
        """Take back what waits; one time in four."""
        if chance == 3:
            self.world.take_back(queue)

    @rule(name=st.sampled_from(["a", "b"]))
    def switch_model(self, name: str) -> None:
        """Another model, from the next request on."""
        if self.world.streaming:
            return  # the one that is being asked stays the one that is checked
        self.world.current = name
        self.world.agent.model = self.world.named_model(name)

    @rule(more=st.booleans())
    def switch_tools(self, more: bool) -> None:
        """Other tools, from the next request on."""
        work = self.world.agent.tools[0]
        extra = Tool("extra", "More.", {"type": "object"}, self.world.work)
        self.world.agent.tools = [work, extra] if more else [work]

    @precondition(lambda self: self.world.asleep)
    @rule()
    def skip(self) -> None:
        """A retry's wait is cut short."""

        async def skip() -> None:
            assert self.world.agent.skip_wait()
            await wait_all_blocked()

        self._call(skip)


class UvloopMachine(AgentMachine):
    backend_options: ClassVar[dict[str, Any]] = {"use_uvloop": True}


class TrioMachine(AgentMachine):
    backend = "trio"


class TestOnAsyncio(AgentMachine.TestCase):
    """The machine finds nothing on asyncio."""


class TestOnUvloop(UvloopMachine.TestCase):
    """The machine finds nothing on uvloop."""


class TestOnTrio(TrioMachine.TestCase):
    """The machine finds nothing on trio."""


TestOnAsyncio.settings = TestOnUvloop.settings = TestOnTrio.settings = settings(
    settings.default, stateful_step_count=30
)
