"""`LoopMachine`: a rule-based state machine (hypothesis) that plays with the loop and holds it against plain lists.

    TestLoop = LoopMachine.TestCase            # in a test module; pytest and unittest run it

Model, tools and approvals do only what a rule tells them to, and after each rule everything runs until it waits. So
hypothesis finds interleavings: steering while a call waits for approval, an abort during a retry's wait, a run that is left
between two calls, a second run after a failed one. Held after every step: the grammar, at both levels; that no message is
lost or doubled; that each request is legal; that no call runs twice, unseen or unapproved; that nothing begins after an abort.
Needs the extra `testing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from agentloop.errors import MissingExtra

try:
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "hypothesis":
        raise  # it is there but broken: its own words help more
    raise MissingExtra("hypothesis", "testing") from error

from agentloop.abort import AbortSignal
from agentloop.config import Config, Decision
from agentloop.context import Context
from agentloop.errors import ModelError
from agentloop.events import (
    AgentEnd,
    ApprovalDecision,
    ApprovalRequest,
    Event,
    MessageEnd,
    ToolExecutionStart,
    TurnStart,
)
from agentloop.grammar import Checker, ValueChecker
from agentloop.loop import Run, agent_loop
from agentloop.messages import AgentMessage, AssistantMessage, ToolResultMessage, UserMessage
from agentloop.model import BlockEnd, Finish, ModelRequest, TextChunk, ToolCallChunk
from agentloop.testing.clock import VirtualClock, wait_all_blocked
from agentloop.tools import Tool, ToolContext

__all__ = ["LoopMachine"]

_REASONS = st.sampled_from(["stop", "tool_use", "length", "pause", "refusal", "unknown"])
_CODES = st.sampled_from(["overloaded", "network", "auth", "context_too_long"])
_ARGUMENTS = st.sampled_from(["", "{}", '{"x": 1}', '{"x"', "[]"])


class LoopMachine(RuleBasedStateMachine):
    """The machine. Subclass it to run on another backend, or with other configurations."""

    backend = "asyncio"
    backend_options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._exit = ExitStack()
        portal = anyio.from_thread.start_blocking_portal(self.backend, self.backend_options)
        self._call = self._exit.enter_context(portal).call
        self.world = World()
        self._count = 0

    def teardown(self) -> None:
        """End whatever goes on; nothing may be left."""
        try:
            self._call(self.world.leave)
            self._call(self.world.check_closed)
        finally:
            self._exit.close()

    def _text(self, kind: str) -> str:
        self._count += 1
        return f"{kind} {self._count}"

    # ------------------------------------------------------------ what may happen

    @initialize(
        sequential=st.booleans(),
        all_at_once=st.booleans(),
        approval=st.booleans(),
        run_ahead=st.sampled_from([0, 1, 64]),
        max_turns=st.sampled_from([None, None, 3]),
    )
    def configure(
        self, sequential: bool, all_at_once: bool, approval: bool, run_ahead: int, max_turns: int | None
    ) -> None:
        """Choose how runs go."""
        self.world.options = {
            "tool_execution": "sequential" if sequential else "parallel",
            "approval_order": "all_at_once" if all_at_once else "one_at_a_time",
            "approve": self.world.approve if approval else None,
            "run_ahead": run_ahead,
            "max_turns": max_turns,
        }

    @precondition(lambda self: not self.world.alive)
    @rule(count=st.integers(0, 2))
    def begin(self, count: int) -> None:
        """Start a run on the conversation so far."""
        self._call(self.world.begin, [self._text("prompt") for _ in range(count or not self.world.history)])

    @precondition(lambda self: self.world.streaming)
    @rule()
    def say(self) -> None:
        """The model sends a piece of text."""
        self._call(self.world.send, TextChunk(self._text("text")))

    @precondition(lambda self: self.world.streaming)
    @rule(id=st.sampled_from(["a", "b", None]), name=st.sampled_from(["work", "work", "nothing"]), arguments=_ARGUMENTS)
    def ask_for_a_call(self, id: str | None, name: str, arguments: str) -> None:
        """The model sends a whole call."""
        self._call(self.world.send, ToolCallChunk(arguments, id, name), BlockEnd())

    @precondition(lambda self: self.world.streaming)
    @rule(count=st.integers(1, 3))
    def ask_for_work(self, count: int) -> None:
        """The model sends calls that can run, and ends its reply."""
        items: list[Any] = [ToolCallChunk("{}", self._text("call"), "work") for _ in range(count)]
        items += [Finish("tool_use"), None]
        self._call(self.world.send, *items)

    @precondition(lambda self: self.world.streaming)
    @rule(reason=_REASONS)
    def finish(self, reason: Any) -> None:
        """The model ends its reply."""
        self._call(self.world.send, Finish(reason), None)

    @precondition(lambda self: self.world.streaming)
    @rule(code=_CODES)
    def fail(self, code: str) -> None:
        """The model fails."""
        self._call(self.world.send, ModelError(code, code))

    @precondition(lambda self: self.world.asleep)
    @rule()
    def wait(self) -> None:
        """Time passes: a retry's wait is over."""
        self._call(self.world.pass_time)

    @precondition(lambda self: self.world.working)
    @rule(choice=st.integers(0, 9), outcome=st.sampled_from(["ok", "", "raise"]))
    def end_a_call(self, choice: int, outcome: str) -> None:
        """A tool that runs comes to its end."""
        self._call(self.world.end_call, choice, outcome)

    @precondition(lambda self: self.world.asking)
    @rule(choice=st.integers(0, 9), answer=st.sampled_from(["allow", "allow", "deny", "forbidden"]))
    def answer(self, choice: int, answer: Decision) -> None:
        """Somebody answers a question of approval."""
        self._call(self.world.answer, choice, answer)

    @rule(queue=st.sampled_from(["steering", "follow_up"]))
    def queue_message(self, queue: str) -> None:
        """A message joins a queue; it may be taken by this run, a later one, or none."""
        self.world.queues[queue].append(self._text(queue))

    @precondition(lambda self: self.world.alive)
    @rule(chance=st.integers(0, 5))
    def abort(self, chance: int) -> None:
        """The user aborts the run; one time in six, so that runs get somewhere."""
        if chance == 5:
            self._call(self.world.abort)

    @precondition(lambda self: self.world.alive)
    @rule(chance=st.integers(0, 5))
    def leave(self, chance: int) -> None:
        """The consumer leaves; one time in six."""
        if chance == 5:
            self._call(self.world.leave)

    # ------------------------------------------------------------ what must hold

    @invariant()
    def holds(self) -> None:
        """Everything that is said in the module's text."""
        self.world.check()


class World:
    """Around the loop: a model, a tool, a person, a consumer; and the lists that the loop is held against.

    All coroutines run in the machine's event loop and return when everything waits again.
    """

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.queues: dict[str, list[str]] = {"steering": [], "follow_up": []}
        self.history: tuple[AgentMessage, ...] = ()
        """What the caller keeps: of each run that ended, `AgentEnd.messages`."""
        self.events: list[Event] = []
        """Of the last run."""
        self.begun: list[str] = []
        """Ids of the calls whose tool really ran, in the last run and in those that its context tells of."""
        self.clock = VirtualClock(autojump_threshold=None)
        self._run: Run | None = None
        self._checkers = Checker(), ValueChecker()
        self._reader: anyio.CancelScope | None = None
        self._said: list[str] = []  # the user texts that the run must have emitted
        self._stream: _Handover | None = None
        self._calls: dict[str, _Handover] = {}
        self._questions: dict[str, _Handover] = {}
        self._signal = AbortSignal()
        self._effects = 0
        self._effects_at_abort: int | None = None
        self._problem: BaseException | None = None

    # ------------------------------------------------------------ where it stands

    @property
    def alive(self) -> bool:
        """Whether a run goes on."""
        return self._run is not None

    @property
    def streaming(self) -> bool:
        """Whether the model is being waited for."""
        return self._stream is not None

    @property
    def working(self) -> bool:
        """Whether a tool runs."""
        return bool(self._calls)

    @property
    def asking(self) -> bool:
        """Whether a question of approval is open."""
        return bool(self._questions)

    @property
    def asleep(self) -> bool:
        """Whether a retry is being waited for."""
        return self.alive and self.clock.asleep > 0 and not (self.streaming or self.working or self.asking)

    # ------------------------------------------------------------ what the machine does

    async def begin(self, prompts: Sequence[str]) -> None:
        """Start a run and read it in a task of its own."""
        self._signal, self._effects_at_abort = AbortSignal(), None
        self.events, self._said, self._checkers = [], list(prompts), (Checker(), ValueChecker())
        told = {message.tool_call_id for message in self.history if isinstance(message, ToolResultMessage)}
        self.begun = [id for id in self.begun if id in told]  # a run that was left is in no context: its ids come again
        config = Config(
            model=self.model,
            abort=self._signal,
            clock=self.clock,
            idle_timeout=None,
            get_steering_messages=lambda: self._poll("steering"),
            get_follow_up_messages=lambda: self._poll("follow_up"),
            **self.options,
        )
        tool = Tool("work", "Work.", {"type": "object"}, self.work)
        self._run = agent_loop(prompts, Context("system", self.history, (tool,)), config)
        _spawn(self._read, self._run)
        await wait_all_blocked()

    async def _read(self, run: Run) -> None:
        with anyio.CancelScope() as self._reader:
            try:
                async for event in run:
                    self.events.append(event)
                    for checker in self._checkers:
                        checker.feed(event)
                    if isinstance(event, AgentEnd):
                        self.history += event.messages
            except Exception as problem:
                self._problem = problem
        self._run = None

    async def send(self, *items: Any) -> None:
        """The model sends chunks; None ends its stream, an exception is raised."""
        assert self._stream is not None
        self._stream.give(*items)
        await wait_all_blocked()

    async def end_call(self, choice: int, outcome: str) -> None:
        """One of the running tools returns, or raises."""
        ids = list(self._calls)
        self._calls[ids[choice % len(ids)]].give(outcome)
        await wait_all_blocked()

    async def answer(self, choice: int, decision: Decision) -> None:
        """One of the open questions is answered."""
        ids = list(self._questions)
        self._questions[ids[choice % len(ids)]].give(decision)
        await wait_all_blocked()

    async def pass_time(self) -> None:
        """A minute passes."""
        self.clock.jump(60)
        await wait_all_blocked()

    async def abort(self) -> None:
        """Abort; the run must end by itself, without beginning anything more."""
        self._effects_at_abort = self._effects
        self._signal.abort("enough")
        await wait_all_blocked()
        assert not self.alive, "an abort did not end the run"
        end = self.events[-1]
        assert isinstance(end, AgentEnd), end
        assert (end.stop_reason, end.error_message) == ("aborted", "enough"), end

    async def leave(self) -> None:
        """Close the run, as a consumer that has seen enough."""
        if self._run is not None:
            await self._run.aclose()
            await wait_all_blocked()
        assert not self.alive, "a closed run went on"

    # ------------------------------------------------------------ what the loop is given

    async def model(self, request: ModelRequest) -> AsyncIterator[Any]:
        """A model that sends what the machine says. Raises `AssertionError` for a request that is not legal."""
        self._effects += 1
        problem = illegal(request.messages)
        if problem:
            raise AssertionError(f"an illegal request: {problem}")
        self._stream = stream = _Handover()
        try:
            while (item := await stream.take()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._stream = None

    async def work(self, arguments: dict[str, Any], ctx: ToolContext) -> str:
        """A tool that ends when the machine says so, at once when it is to stop. Raises `RuntimeError` when told to fail."""
        self._effects += 1
        self.begun.append(ctx.tool_call_id)
        self._calls[ctx.tool_call_id] = handover = _Handover()
        unsubscribe = ctx.abort.subscribe(lambda: handover.give("aborted"))
        try:
            outcome = await handover.take()
        finally:
            unsubscribe()
            del self._calls[ctx.tool_call_id]
        if outcome == "raise":
            raise RuntimeError("the tool failed")
        return str(outcome)

    async def approve(self, request: ApprovalRequest) -> Decision:
        """A person who answers when the machine says so."""
        self._effects += 1
        self._questions[request.tool_call_id] = handover = _Handover()
        try:
            return await handover.take()  # type: ignore[no-any-return]
        finally:
            del self._questions[request.tool_call_id]

    def _poll(self, name: str) -> list[str]:
        self._effects += 1
        taken, self.queues[name] = self.queues[name], []
        self._said += taken
        return taken

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Hold the last run against the lists."""
        if self._problem is not None:
            raise self._problem
        starts = [event.tool_call_id for event in self.events if isinstance(event, ToolExecutionStart)]
        assert len(set(self.begun)) == len(self.begun), f"a call ran twice: {self.begun}"
        assert set(self._calls) <= set(starts), "a tool runs whose start was not seen"
        if self.options.get("approve") is not None:
            allowed = {e.tool_call_id for e in self.events if isinstance(e, ApprovalDecision) and e.decision == "allow"}
            assert set(self._calls) <= allowed, "a tool runs that was not allowed"
        if self._effects_at_abort is not None:
            assert self._effects == self._effects_at_abort, "something began after the abort"
        opened = any(isinstance(event, TurnStart) for event in self.events)
        assert self._emitted() == (self._said if opened else []), "a message was lost, doubled or out of order"
        assert illegal_history(self.history) is None, illegal_history(self.history)

    def _emitted(self) -> list[str]:
        ends = [event.message for event in self.events if isinstance(event, MessageEnd)]
        return [message.text for message in ends if isinstance(message, UserMessage)]

    async def check_closed(self) -> None:
        """Nothing of a run is left."""
        await wait_all_blocked()
        assert (self._stream, self._calls, self._questions) == (None, {}, {}), "something outlived its run"
        assert self.clock.asleep == 0, "a timer outlived its run"


class _Handover:
    """Things on their way to somebody who waits for them."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._event = anyio.Event()

    def give(self, *items: Any) -> None:
        self._items += items
        self._event.set()

    async def take(self) -> Any:
        while not self._items:
            self._event = anyio.Event()
            await self._event.wait()
        return self._items.pop(0)


def illegal(messages: Sequence[AgentMessage]) -> str | None:
    """Why a provider would refuse these messages, in words; None: it would not. Written apart from the loop's own rules."""
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolResultMessage):
            if not open_calls or open_calls.pop(0) != message.tool_call_id:
                return f"messages[{index}]: a result that answers no call here"
        elif open_calls:
            return f"messages[{index}]: {open_calls} are not answered"
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.tool_calls]
            if message.stop_reason != "completed" or message.finish_reason in ("refusal", "content_filter"):
                return f"messages[{index}]: a reply that does not count"
            for call in message.tool_calls:
                call.parse()
        if not isinstance(message, ToolResultMessage) and not message.content:  # type: ignore[union-attr]
            return f"messages[{index}]: an empty message"
    return f"{open_calls} are not answered" if open_calls else None


def illegal_history(messages: Sequence[AgentMessage]) -> str | None:
    """What is wrong with a history: a call without its result, a result without its call, an id twice; None: nothing."""
    calls = [call.id for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls]
    results = [message.tool_call_id for message in messages if isinstance(message, ToolResultMessage)]
    if calls != results:
        return f"calls {calls}, results {results}"
    return f"an id twice: {calls}" if len(set(calls)) != len(calls) else None


def _spawn(function: Any, *arguments: Any) -> None:
    """Run a coroutine function beside everything, in the event loop that this is called in."""
    token = anyio.lowlevel.current_token().native_token
    if hasattr(token, "create_task"):
        _tasks.add(task := token.create_task(function(*arguments)))
        task.add_done_callback(_tasks.discard)
    else:
        import trio

        trio.lowlevel.spawn_system_task(function, *arguments)


_tasks: set[Any] = set()
"""asyncio holds its tasks weakly."""
