"""A state machine that plays with a `Session`, crashes it, opens it again from its trace, and holds it against plain lists.

What meets what is drawn: prompts, steering, follow-ups, approvals (answered, left open, stored for later), an abort, a consumer
that leaves or is cancelled, retries, compactions (due or by hand, completed or given up), nested agents, another model, and a
crash at any line of the trace. Held throughout: each text of a person is in each request exactly once, in its order, and so
is every result; each request is legal; no call runs without an answer that was about its very arguments, twice, or after its
output was written; nothing begins after an abort; the tokens add up; the trace is a legal one, and what it tells of the
messages is what its consumer saw.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.from_thread
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentMessage,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    CompactionState,
    Event,
    MessageEnd,
    MessageStart,
    ModelError,
    TokenUsage,
    ToolExecutionEnd,
    ToolExecutionStart,
    Usage,
    UserMessage,
)
from agentloop.cli.check import check_session
from agentloop.compaction import INSTRUCTIONS, Summarize
from agentloop.grammar import Checker, ValueChecker
from agentloop.model import Finish, ModelRequest, TextChunk, ToolCallChunk, UsageChunk
from agentloop.omni.answers import open_questions, store_answer
from agentloop.omni.reader import read, trace_files
from agentloop.omni.resume import resume_session
from agentloop.session import Session
from agentloop.subagent import ChildApprovalRequest, subagent
from agentloop.testing.clock import VirtualClock, wait_all_blocked
from agentloop.testing.machine import _Handover, _spawn, illegal
from agentloop.tools import Tool, ToolContext

_TOLD = re.compile(r"\b(?:prompt|steering|follow_up)_\d+\b")
_TOKENS = Usage(1, 1, 1)


def told_in(messages: Sequence[AgentMessage]) -> list[str]:
    """The texts of a person that stand in messages, in order; a compaction's instructions are nobody's."""
    texts = [message.text for message in messages if isinstance(message, UserMessage)]
    return [found for text in texts for found in _TOLD.findall(text)]


def number_of(arguments: str) -> int:
    """The number that each call has in its arguments, so that what runs is known by them alone."""
    said = json.loads(arguments)
    return int(said["n"] if "n" in said else said["prompt"])


class _Stream(_Handover):
    """A request of the model that is being answered."""

    def __init__(self, compacting: bool, told: Sequence[str], child: bool) -> None:
        super().__init__()
        self.compacting, self.told, self.child = compacting, told, child
        self.said = False


class SessionWorld:
    """Around the session: a disk, a model, tools, a person, a consumer; and the plain lists.

    All coroutines run in the machine's event loop and return when everything waits again.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="session-machine-"))
        self.life = 0
        self.options: dict[str, Any] = {}
        self.modes: dict[Any, Any] = {}
        self.session: Any = None
        self.clock = VirtualClock(autojump_threshold=None)
        self.due: Any = None
        self.torn = False
        self.compacting = False
        self.current = "a"
        self.streams: list[_Stream] = []
        self.calls: dict[int, _Handover] = {}
        self.questions: dict[int, _Handover] = {}
        # What happened outside of the process, with the number of lines that the trace had then.
        self.ran: list[tuple[int, int]] = []
        self.seen: list[tuple[int, AgentMessage]] = []
        # What the consumer knows of this conversation.
        self.told: list[str] = []
        self.allowed: set[int] = set()
        self.denied: set[int] = set()
        self.said: set[int] = set()
        """What a person said yes to, whatever came of it."""
        self.unasked: set[int] = set()
        """Calls that were allowed before a crash and had not started: nobody is asked again."""
        self.outputs: set[int] = set()
        """Calls whose output is on the disk."""
        self.numbers: dict[str, int] = {}
        self.of_child: set[int] = set()
        """Calls of nested agents."""
        self.nothing_to_do = False
        self.usage = Usage()
        self.handed: list[str] = []
        self.taken_back: list[str] = []
        self.run: Any = None
        self._signal = AbortSignal()
        self._scope: anyio.CancelScope | None = None
        self._checkers: tuple[Any, ...] = ()
        self._effects = 0
        self._effects_at_abort: int | None = None
        self._problem: BaseException | None = None

    # ------------------------------------------------------------ where it stands

    @property
    def traces(self) -> Path:
        """The disk of this life."""
        return self.root / str(self.life)

    @property
    def files(self) -> list[str]:
        return [str(file.path) for file in trace_files(self.traces, "s1")]

    def lines(self) -> int:
        """How many lines the session's files have, a torn one too."""
        return sum(len(Path(file).read_bytes().splitlines()) for file in self.files)

    @property
    def up(self) -> bool:
        return self.session is not None

    @property
    def alive(self) -> bool:
        return self.run is not None

    @property
    def idle(self) -> bool:
        return self.up and not self.alive

    @property
    def asleep(self) -> bool:
        return self.alive and self.clock.asleep > 0 and not (self.streams or self.calls or self.questions)

    # ------------------------------------------------------------ the session

    def tools(self) -> list[Tool]:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        work = Tool("work", "Work.", schema, self.work)
        again = Tool("again", "Work that may be done twice.", schema, self.work, replay="safe")
        child = subagent(
            "child",
            "Hand a task over.",
            self.model_of("child"),
            tools=[work],
            traces=self.traces / "children",
            clock=self.clock,
            idle_timeout=None,
            **{key: value for key, value in self.options.items() if key == "approval_order"},
        )
        return [work, again, child]

    def made(self, how: Any, *args: Any) -> Any:
        session = how(
            *args,
            self.model_of(self.current),
            tools=self.tools(),
            clock=self.clock,
            idle_timeout=None,
            compaction=Summarize(when=self.compaction_due),
            **self.options,
        )
        for queue, mode in self.modes.items():
            session.set_queue_mode(queue, mode)
        return session

    def create(self) -> None:
        self.session = self.made(lambda *args, **more: Session.create(*args, session_id="s1", **more), self.traces)

    def open(self) -> None:
        """As another process would; what was allowed is not asked again."""
        self.session = self.made(Session.open, "s1", self.traces)
        assert told_in(self.conversation()) == self.told, (told_in(self.conversation()), self.told)

    def conversation(self) -> list[AgentMessage]:
        summary = self.session.pending_summary
        return [*([] if summary is None else [summary]), *self.session.messages]

    def compaction_due(self, state: CompactionState) -> Any:
        due, self.due = self.due, None
        return due

    async def begin(self, prompts: Sequence[str], compact: bool = False) -> None:
        """Start a run and read it in a task of its own."""
        self._signal, self._effects_at_abort = AbortSignal(), None
        self._checkers = Checker(), ValueChecker()
        if compact:
            self.run = self.session.compact(abort=self._signal)
        else:
            self.run = self.session.run(list(prompts), approve=self.approve, abort=self._signal)
        _spawn(self._read, self.run)
        await wait_all_blocked()

    async def _read(self, run: Any) -> None:
        self.nothing_to_do = False
        end: Event | None = None
        with anyio.CancelScope() as self._scope:
            try:
                async for end in run:
                    self.watch(end)
            except ValueError as problem:
                self.nothing_to_do = end is None
                self._problem = self._problem or (None if end is None else problem)
            except Exception as problem:
                self._problem = self._problem or problem
        if isinstance(end, AgentEnd):
            for checker in self._checkers:
                checker.finish()
        self.run = None

    def watch(self, event: Event, child: bool = False) -> None:
        """The consumer."""
        if not child:
            for checker in self._checkers:
                checker.feed(event)
        match event:
            case CompactionBegin() | CompactionEnd() | AgentStart() if not child:
                self.compacting = isinstance(event, CompactionBegin)
            case ChildEvent():
                self.watch(event.event, child=True)
            case MessageStart(message=UserMessage() as message) if not child and message.text != INSTRUCTIONS:
                self.told += [text for text in told_in([message]) if text not in self.told]
            case MessageEnd() if not child:
                self.seen.append((self.lines(), event.message))
            case ApprovalRequest():
                assert number_of(event.arguments) not in self.unasked, "what was allowed is asked about again"
                self.numbers[event.tool_call_id] = number_of(event.arguments)
            case ApprovalDecision():
                assert event.arguments is not None
                assert event.decision != "allow" or number_of(event.arguments) in self.said, "nobody allowed this"
                (self.allowed if event.decision == "allow" else self.denied).add(number_of(event.arguments))
            case ToolExecutionStart():
                self.numbers[event.tool_call_id] = number_of(event.arguments)
            case ToolExecutionEnd():
                self.outputs.add(self.numbers[event.tool_call_id])
            case TokenUsage():
                self.usage += event.request
                assert child or event.session == self.usage, f"the session says {event.session}, it was {self.usage}"

    # ------------------------------------------------------------ what the session is given

    def model_of(self, name: str) -> Any:
        async def model(request: ModelRequest) -> AsyncIterator[Any]:
            self._effects += 1
            told = told_in(request.messages)
            self.look(name, request, told)
            stream = _Stream(self.compacting and name != "child", told, name == "child")
            self.streams.append(stream)
            try:
                while (item := await stream.take()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
            finally:
                self.streams.remove(stream)

        return model

    def look(self, name: str, request: ModelRequest, told: list[str]) -> None:
        """What is wrong with a request fails the machine, not only the attempt."""
        problems = [illegal(request.messages)]
        if name != "child":
            if told != self.told:
                problems.append(f"the request says {told}, the person said {self.told}")
            if name != self.current:
                problems.append(f"model {name} was asked, {self.current} is set")
        found = [problem for problem in problems if problem]
        if found:
            self._problem = self._problem or AssertionError("; ".join(found))

    async def work(self, arguments: dict[str, Any], ctx: ToolContext) -> str:
        """A tool that ends when the machine says so, at once when it is to stop."""
        self._effects += 1
        number = arguments["n"]
        self.began(number, ctx.tool_name)
        self.calls[number] = handover = _Handover()
        unsubscribe = ctx.abort.subscribe(lambda: handover.give("aborted"))
        try:
            outcome = await handover.take()
        finally:
            unsubscribe()
            del self.calls[number]
        if outcome == "raise":
            raise RuntimeError("the tool failed")
        return str(outcome)

    def began(self, number: int, name: str) -> None:
        before = [each for _, each in self.ran]
        problem = None
        if number not in self.allowed:
            problem = f"call {number} runs and was not allowed"
        elif number in self.outputs:
            problem = f"call {number} runs again although it had ended"
        elif number in before and name != "again":
            problem = f"call {number} runs twice"
        if problem:
            self._problem = self._problem or AssertionError(problem)
        self.ran.append((self.lines(), number))

    async def approve(self, request: ApprovalRequest) -> Any:
        """A person who answers when the machine says so."""
        self._effects += 1
        number = number_of(request.arguments)
        assert isinstance(request, ChildApprovalRequest) == (number in self.of_child)
        self.questions[number] = handover = _Handover()
        try:
            return await handover.take()
        finally:
            del self.questions[number]

    # ------------------------------------------------------------ what the machine does

    async def send(self, stream: _Stream, *items: Any) -> None:
        """The model sends chunks; None ends its stream, an exception is raised."""
        stream.give(*items)
        await wait_all_blocked()

    async def give(self, handover: _Handover, item: Any) -> None:
        """A tool returns, or a person answers."""
        handover.give(item)
        await wait_all_blocked()

    async def settle(self) -> None:
        await wait_all_blocked()

    async def pass_time(self) -> None:
        self.clock.jump(60)
        await wait_all_blocked()

    async def abort(self, also_answer: bool) -> None:
        """Abort; the run ends by itself and begins nothing more, also when an answer comes in the same moment."""
        self._effects_at_abort = self._effects
        questions = list(self.questions.values())
        self._signal.abort("enough")
        if also_answer:
            for question in questions:
                question.give("allow")
            self.said |= self.questions.keys()
        await wait_all_blocked()
        assert not self.alive, "an abort did not end the run"
        if not self.nothing_to_do:
            assert self._effects == self._effects_at_abort, "something began after the abort"

    async def leave(self, way: str) -> None:
        """The consumer goes away."""
        if self.run is not None:
            if way == "cancel":
                assert self._scope is not None
                self._scope.cancel()
            else:
                await self.run.aclose()
            await wait_all_blocked()
        assert not self.alive, "a run that was left went on"

    async def crash(self, lost: int, torn: bool) -> None:
        """The process ends; of the trace the last lines are gone, and whatever happened behind them has not happened."""
        old, kept = self.traces, max(self.lines() - lost, 1)
        self.life, self.torn = self.life + 1, self.torn or torn
        shutil.copytree(old, self.traces, ignore=shutil.ignore_patterns("*.lock"), dirs_exist_ok=True)
        await self.session.aclose()
        await wait_all_blocked()
        assert not self.alive
        self.session = None
        self._cut(kept, torn)
        self._remember(kept)

    async def close(self) -> None:
        """The process ends in good order."""
        await self.session.aclose()
        self.session = None
        self._remember(self.lines())

    def _cut(self, kept: int, torn: bool) -> None:
        for file in [Path(each) for each in self.files]:
            lines = file.read_bytes().splitlines(keepends=True)
            content = b"".join(lines[: max(kept, 0)])
            if torn and 0 < kept < len(lines):
                content += lines[kept][: len(lines[kept]) // 2]
            if kept > 0:
                file.write_bytes(content)
            else:
                file.unlink()
            kept -= len(lines)

    def _remember(self, kept: int) -> None:
        """What is known once only the disk tells."""
        self.ran = [each for each in self.ran if each[0] <= kept]
        self.seen = [each for each in self.seen if each[0] <= kept]
        self.told, self.usage = [], Usage()
        allowed, denied, started, self.outputs = set[int](), set[int](), set[int](), set[int]()
        numbers: dict[str, int] = {}
        for record in [record for file in self.files for record in read(file)]:
            payload = record["payload"]
            match payload.get("type"):
                case "text" if payload["role"] == "user" and payload["text"] != INSTRUCTIONS:
                    self.told += [text for text in _TOLD.findall(payload["text"]) if text not in self.told]
                case "approval_request" | "tool_execution_start":
                    numbers[payload["tool_call_id"]] = number_of(payload["arguments"])
                    if payload["type"] == "tool_execution_start":
                        started.add(number_of(payload["arguments"]))
                case "approval_decision":
                    decided = allowed if payload["decision"] == "allow" else denied
                    decided.add(number_of(payload["x"]["arguments"]))
                case "tool_call_output" if payload["tool_call_id"] in numbers:
                    self.outputs.add(numbers[payload["tool_call_id"]])
                case "token_usage":
                    session = payload["session"]
                    self.usage = Usage(session["cache_read"], session["cache_write"], session["output"])
        self.unasked = allowed - self.outputs
        self.denied = {number for number in self.denied if number in self.of_child} | denied
        self.allowed = {number for number in self.allowed if number in self.of_child} | allowed

    def store(self, choice: int, decision: Any) -> bool:
        """Somebody answers a question of a run that is gone; whether there was one."""
        questions = open_questions(resume_session(self.traces, "s1"))
        if not questions:
            return False
        question = questions[choice % len(questions)]
        store_answer(self.traces, "s1", question.tool_call_id, decision, question.digest)
        if decision == "allow":
            self.said.add(number_of(question.arguments))
        self._remember(self.lines())
        return True

    def hand_in(self, queue: str, text: str) -> None:
        self.handed.append(text)
        (self.session.steer if queue == "steering" else self.session.follow_up)(text)

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Hold the session against the lists."""
        if self._problem is not None:
            raise self._problem
        assert not {number for _, number in self.ran} & self.denied, "what was denied ran"
        if not self.up:
            return
        waiting = [m.text for queue in ("steering", "follow_up") for m in self.session.queued(queue)]
        places = [text for text in self.told if text in self.handed] + self.taken_back + waiting
        assert len(set(places)) == len(places), f"a message is in two places: {places}"
        if not self.alive:
            assert sorted(places) == sorted(self.handed), f"a message is lost: {set(self.handed) - set(places)}"
            self._check_idle()

    def _check_idle(self) -> None:
        assert not self.session.is_running
        assert told_in(self.conversation()) == self.told, (told_in(self.conversation()), self.told)
        assert self.session.usage == self.usage, (self.session.usage, self.usage)
        if self.session.path is not None:
            assert self.session.history().messages == tuple([message for _, message in self.seen])
            found = [finding for report in check_session(self.files) for finding in report.findings]
            found = [finding for finding in found if finding.rule != "line" or not self.torn]
            assert not found, found

    async def end(self) -> None:
        """Leave, close; nothing is left."""
        if self.session is not None:
            await self.leave("close")
            await self.session.aclose()
        await wait_all_blocked()
        assert (self.streams, self.calls, self.questions) == ([], {}, {}), "something outlived its run"
        assert self.clock.asleep == 0, "a timer outlived its run"
        for life in range(self.life + 1):
            for child in sorted((self.root / str(life) / "children").rglob("*.jsonl")):
                found = [finding for report in check_session([str(child)]) for finding in report.findings]
                assert not found, f"the trace of a nested agent: {found}"


class SessionMachine(RuleBasedStateMachine):
    """The machine."""

    backend = "asyncio"
    backend_options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._exit = ExitStack()
        portal = anyio.from_thread.start_blocking_portal(self.backend, self.backend_options)
        self._call = self._exit.enter_context(portal).call
        self.world = SessionWorld()
        self._exit.callback(shutil.rmtree, self.world.root, ignore_errors=True)
        self._count = 0

    def teardown(self) -> None:
        """End whatever goes on; nothing may be left."""
        try:
            self._call(self.world.end)
        finally:
            self._exit.close()

    def _text(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _stream(self, choice: int) -> _Stream:
        return self.world.streams[choice % len(self.world.streams)]

    @initialize(
        steering=st.sampled_from(["one_at_a_time", "all"]),
        sequential=st.booleans(),
        all_at_once=st.booleans(),
        run_ahead=st.sampled_from([0, 1, 64]),
        max_turns=st.sampled_from([None, None, 3]),
    )
    def configure(
        self, steering: str, sequential: bool, all_at_once: bool, run_ahead: int, max_turns: int | None
    ) -> None:
        """Choose how the session goes."""
        world = self.world
        world.modes = {"steering": steering, "follow_up": "one_at_a_time"}
        world.options = {
            "tool_execution": "sequential" if sequential else "parallel",
            "approval_order": "all_at_once" if all_at_once else "one_at_a_time",
            "run_ahead": run_ahead,
            "max_turns": max_turns,
        }
        world.create()

    # ------------------------------------------------------------ runs

    @precondition(lambda self: self.world.idle)
    @rule(count=st.integers(0, 2))
    def begin(self, count: int) -> None:
        """Prompt, or go on with what waits."""
        world = self.world
        waits = world.session.waits or world.session.queued("steering") or world.session.queued("follow_up")
        self._call(world.begin, [self._text("prompt") for _ in range(count)])
        assert world.nothing_to_do == (count == 0 and not waits), "whether there is something to do is not known"

    @precondition(lambda self: self.world.idle and self.world.session.messages)
    @rule()
    def compact(self) -> None:
        """Compact by hand."""
        self._call(self.world.begin, [], True)

    @precondition(lambda self: self.world.up)
    @rule(
        what=st.sampled_from(["due", "due", "model", "steering", "follow_up", None]), name=st.sampled_from(["a", "b"])
    )
    def change_something(self, what: Any, name: str) -> None:
        """The next compaction that is asked for is due; another model, from the next run on; what waits is taken back."""
        world = self.world
        if what == "due":
            world.due = "context"
        elif what != "model":
            world.taken_back += [message.text for message in world.session.take_back(what)]
        elif world.idle:
            world.current = name
            world.session.configure(model=world.model_of(name))

    @precondition(lambda self: self.world.up)
    @rule(queue=st.sampled_from(["steering", "follow_up"]))
    def queue_message(self, queue: str) -> None:
        """Steer, or follow up."""
        text = self._text(queue)

        async def hand_in() -> None:
            self.world.hand_in(queue, text)
            await wait_all_blocked()

        self._call(hand_in)

    # ------------------------------------------------------------ the model

    @precondition(lambda self: self.world.streams)
    @rule(choice=st.integers(0, 9))
    def say(self, choice: int) -> None:
        """The model sends a piece of text; where a summary is asked for, one that keeps everything."""
        self._say(choice)

    def _say(self, choice: int) -> None:
        stream = self._stream(choice)
        text = self._text("text")
        if stream.compacting:
            text = "" if stream.said else f"[summary]{' '.join(stream.told)}[/summary]"
            stream.said = True
        self._call(self.world.send, stream, TextChunk(text))

    @precondition(lambda self: self.world.streams)
    @rule(choice=st.integers(0, 9), tools=st.lists(st.sampled_from(["work", "work", "again", "child"]), max_size=3))
    def ask_for_work(self, choice: int, tools: list[str]) -> None:
        """The model sends calls that can run, and ends its reply."""
        self._ask_for_work(choice, tools)

    def _ask_for_work(self, choice: int, tools: list[str]) -> None:
        stream = self._stream(choice)
        items: list[Any] = []
        for tool in tools or ["work"]:
            self._count += 1
            if stream.child:
                self.world.of_child.add(self._count)
            tool = "work" if stream.child else tool
            arguments = {"prompt": str(self._count)} if tool == "child" else {"n": self._count}
            items.append(ToolCallChunk(json.dumps(arguments), f"call_{self._count}", tool))
        self._call(self.world.send, stream, *items, UsageChunk(_TOKENS), Finish("tool_use"), None)

    @precondition(lambda self: self.world.streams)
    @rule(choice=st.integers(0, 9), reason=st.sampled_from(["stop", "stop", "length", "pause", "refusal"]))
    def finish(self, choice: int, reason: Any) -> None:
        """The model ends its reply."""
        self._finish(choice, reason)

    def _finish(self, choice: int, reason: Any) -> None:
        self._call(self.world.send, self._stream(choice), UsageChunk(_TOKENS), Finish(reason), None)

    @precondition(lambda self: self.world.streams)
    @rule(choice=st.integers(0, 9), code=st.sampled_from(["overloaded", "network", "auth", "context_too_long"]))
    def fail(self, choice: int, code: str) -> None:
        """The model fails."""
        self._call(self.world.send, self._stream(choice), ModelError(code, code))

    @precondition(lambda self: self.world.asleep)
    @rule(skip=st.booleans())
    def wait(self, skip: bool) -> None:
        """A retry's wait is over, or cut short."""
        if skip:
            self.world.run.skip_wait()
        self._call(self.world.settle if skip else self.world.pass_time)

    # ------------------------------------------------------------ calls

    @precondition(lambda self: self.world.calls)
    @rule(choice=st.integers(0, 9), outcome=st.sampled_from(["ok", "", "raise"]))
    def end_a_call(self, choice: int, outcome: str) -> None:
        """A tool that runs comes to its end."""
        self._end_a_call(choice, outcome)

    def _end_a_call(self, choice: int, outcome: str) -> None:
        calls = list(self.world.calls.values())
        self._call(self.world.give, calls[choice % len(calls)], outcome)

    @precondition(lambda self: self.world.questions)
    @rule(choice=st.integers(0, 9), answer=st.sampled_from(["allow", "allow", "allow", "deny", "forbidden"]))
    def answer(self, choice: int, answer: Any) -> None:
        """Somebody answers a question of approval."""
        self._answer(choice, answer)

    def _answer(self, choice: int, answer: Any) -> None:
        numbers = list(self.world.questions)
        number = numbers[choice % len(numbers)]
        if answer == "allow":
            self.world.said.add(number)
        self._call(self.world.give, self.world.questions[number], answer)

    # ------------------------------------------------------------ what usually happens

    @precondition(lambda self: self.world.alive)
    @rule(choices=st.lists(st.integers(0, 9), min_size=1, max_size=4), chance=st.integers(0, 3))
    def go_well(self, choices: list[int], chance: int) -> None:
        """The run gets on: calls are asked for, allowed and done, a summary is written, a reply ends."""
        world = self.world
        for choice in choices:
            if world.asleep:
                self._call(world.pass_time)
            elif world.questions and (choice % 3 or not world.calls):
                self._answer(choice, "allow")
            elif world.calls:
                self._end_a_call(choice, "ok")
            elif world.streams and self._stream(choice).compacting:
                self._say(choice)
                self._finish(choice, "stop")
            elif world.streams and chance:
                self._ask_for_work(choice, [["work"], ["work", "again"], ["child", "work"]][chance - 1])
            elif world.streams:
                self._finish(choice, "stop")

    # ------------------------------------------------------------ ends

    @precondition(lambda self: self.world.alive)
    @rule(chance=st.integers(0, 5), also_answer=st.booleans())
    def abort(self, chance: int, also_answer: bool) -> None:
        """The user aborts the run; one time in six, so that runs get somewhere."""
        if chance == 5:
            self._call(self.world.abort, also_answer)

    @precondition(lambda self: self.world.alive)
    @rule(chance=st.integers(0, 5), way=st.sampled_from(["close", "cancel"]))
    def leave(self, chance: int, way: str) -> None:
        """The consumer leaves; one time in six."""
        if chance == 5:
            self._call(self.world.leave, way)

    @precondition(lambda self: self.world.up and self.world.session.path is not None)
    @rule(chance=st.integers(0, 2), lost=st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8, 13, 21]), torn=st.booleans())
    def crash(self, chance: int, lost: int, torn: bool) -> None:
        """The process ends, anywhere; one time in three."""
        if chance == 2:
            world = self.world
            self._call(world.crash, lost, torn)
            world.handed, world.taken_back = list(world.told), []

    @precondition(lambda self: self.world.idle and self.world.session.path is not None)
    @rule(chance=st.integers(0, 3))
    def close(self, chance: int) -> None:
        """The process ends, in good order; one time in four."""
        if chance == 3:
            world = self.world
            self._call(world.close)
            world.handed, world.taken_back = list(world.told), []

    @precondition(lambda self: not self.world.up)
    @rule(choice=st.integers(0, 3), decision=st.sampled_from(["allow", "deny"]))
    def store_an_answer(self, choice: int, decision: str) -> None:
        """Somebody answers a question while no process has the session."""
        self.world.store(choice, decision)

    @precondition(lambda self: not self.world.up)
    @rule()
    def open(self) -> None:
        """Another process takes it up."""
        self._call_sync(self.world.open)

    def _call_sync(self, function: Any) -> None:
        async def call() -> None:
            function()

        self._call(call)

    # ------------------------------------------------------------ what must hold

    @invariant()
    def holds(self) -> None:
        """Everything that is said in the module's text."""
        self.world.check()


class UvloopMachine(SessionMachine):
    backend_options: ClassVar[dict[str, Any]] = {"use_uvloop": True}


class TrioMachine(SessionMachine):
    backend = "trio"


class TestOnAsyncio(SessionMachine.TestCase):
    """The machine finds nothing on asyncio."""


class TestOnTrio(TrioMachine.TestCase):
    """The machine finds nothing on trio."""


TestOnAsyncio.settings = TestOnTrio.settings = settings(settings.default, stateful_step_count=40)
