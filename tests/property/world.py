"""A small world for runs: scripts, tools of every temper, queues, consumers and stops, drawn at random and logged.

A `Plan` is a value that hypothesis draws; `World(plan)` makes the run of it and notes every effect: what was asked, polled,
run, and whether the consumer was waiting for more at that moment. Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentMessage,
    Config,
    Context,
    Event,
    ModelError,
    Retry,
    Run,
    ToolContext,
    ToolResult,
    agent_loop,
    tool,
    user,
)
from agentloop.grammar import check
from agentloop.messages import Usage
from agentloop.model import Finish, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk
from agentloop.testing import CUT, STALL, ScriptedModel, VirtualClock, call, sleep, text, thinking
from tests.deaf import deaf_until

TOOLS = ("ok", "slow", "boom", "stream", "report", "nothing", "odd", "wait", "alone", "polite", "missing")
"""Tools of the world by temper; `missing` is one that nobody offers, `deaf` and `foreign` are drawn apart."""


class Failure(Exception):
    """What tools and callbacks of the world raise."""


class Nonsense:
    """What no tool should return; its text is the same everywhere."""

    def __repr__(self) -> str:
        return "nonsense"


@attrs.frozen
class Plan:
    """Everything about a run that is drawn."""

    replies: tuple[Any, ...] = ("done",)
    prompts: tuple[str, ...] = ("go",)
    steering: tuple[tuple[int, str], ...] = ()
    """(after so many events, text)"""
    follow_ups: tuple[str, ...] = ()
    abort_after: int | None = None
    deadline: float | None = None
    tool_timeout: float | None = None
    retries: int = 2
    max_turns: int | None = None
    sequential: bool = False
    cap: int | None = None
    run_ahead: int = 64
    asks: str | None = None
    """The answer of `approve`, or None for no callback."""
    at_once: bool = False
    before: str | None = None
    after: str | None = None
    pauses: tuple[int, ...] = ()
    """How many checkpoints the consumer makes before its steps, over and over."""
    wait_for_steering: bool = False
    deaf: bool = False


# ---------------------------------------------------------------- drawing plans

words = st.sampled_from(["", "a", "héllo ", "\ud83d", "\ude00", "line\n", "🙂", "x" * 40])


@st.composite
def calls(draw: st.DrawFn, names: tuple[str, ...] = TOOLS) -> Any:
    """A call of some tool, sometimes with arguments that do not fit, a repeated id or none."""
    name = draw(st.sampled_from(names))
    arguments = draw(st.sampled_from(["{}", "", '{"n": 1}', '{"n": "2"}', "[1]", '{"n": ', '{"n": [3]}']))
    cut = draw(st.integers(0, len(arguments)))
    id = draw(st.sampled_from([None, None, None, "same", ""]))
    return call(name, id=id, pieces=[arguments[:cut], arguments[cut:]])


usages = st.builds(lambda a, b: UsageChunk(Usage(a, 0, b)), st.integers(0, 9), st.integers(0, 9))


@attrs.frozen
class Raise:
    """A step of a script that raises a fresh exception each time it is played."""

    kind: Any
    args: tuple[Any, ...] = ()
    retry_after: float | None = None

    def __call__(self, request: Any) -> None:
        extra = {} if self.retry_after is None else {"retry_after": self.retry_after}
        raise self.kind(*self.args, **extra)


errors = st.sampled_from([
    Raise(ModelError, ("rate_limit", "slow down"), 1.5),
    Raise(ModelError, ("network", "gone")),
    Raise(ModelError, ("rejected", "no")),
    Raise(ModelError, ("overloaded", "busy"), 900),
    Raise(Failure, ("the model broke",)),
    Raise(TimeoutError),
    Raise(asyncio.CancelledError, ("foreign",)),
])  # fmt: skip


@st.composite
def replies(draw: st.DrawFn, names: tuple[str, ...] = TOOLS, broken: bool = True) -> list[Any]:
    """One reply of the script: blocks, usage, and how it ends."""
    block = st.one_of(
        st.lists(words, min_size=1, max_size=3).map(lambda pieces: text(*pieces)),
        st.lists(words, min_size=1, max_size=3).map(lambda pieces: thinking(*pieces, fidelity={"s": 1})),
        calls(names),
        calls(names),
        usages,
        st.just(sleep(0.5)),
    )
    steps = draw(st.lists(block, max_size=5))
    endings = [
        None,
        None,
        None,
        Finish("stop"),
        Finish("length"),
        Finish("pause"),
        Finish("refusal"),
        Finish("unknown"),
    ]
    ending = draw(
        st.one_of(st.sampled_from(endings), st.sampled_from([CUT, STALL]) | errors if broken else st.just(None))
    )
    if ending is not None:
        steps = [*steps, ending]
    return steps


@st.composite
def interleaved(draw: st.DrawFn) -> list[Any]:
    """A reply whose blocks come in pieces of several at once, by the provider's index."""
    chunks: list[Any] = []
    for _ in range(draw(st.integers(1, 8))):
        index = draw(st.integers(0, 2))
        piece = draw(words)
        chunks.append(
            [
                TextChunk(piece, index),
                ThinkingChunk(piece, index=index + 3),
                ToolCallChunk('{"n": 1}' if index == 0 else "", None, "ok" if draw(st.booleans()) else None, index + 6),
            ][draw(st.integers(0, 2))]
        )
    return [*chunks, draw(st.sampled_from([Finish("stop"), CUT]))]


@st.composite
def plans(draw: st.DrawFn, **fixed: Any) -> Plan:
    """A whole run. Fields given by name are fixed."""
    maybe = st.booleans()
    drawn: dict[str, Any] = {
        "replies": tuple(draw(st.lists(st.one_of(replies(), interleaved()), max_size=4))),
        "prompts": tuple(draw(st.lists(st.sampled_from(["go", "and this"]), min_size=1, max_size=2))),
        "steering": tuple(
            draw(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["left", "right"])), max_size=2))
        ),
        "follow_ups": tuple(draw(st.lists(st.sampled_from(["more", "yet more"]), max_size=1))),
        "abort_after": draw(st.none() | st.integers(0, 40)),
        "deadline": draw(st.sampled_from([None, None, None, 0.7, 3.0, -1.0])),
        "tool_timeout": draw(st.sampled_from([None, None, 1.0])),
        "retries": draw(st.sampled_from([0, 1, 2])),
        "max_turns": draw(st.sampled_from([None, None, 1, 2])),
        "sequential": draw(maybe),
        "cap": draw(st.sampled_from([None, None, 1, 2])),
        "run_ahead": draw(st.sampled_from([0, 1, 3, 64])),
        "asks": draw(st.sampled_from([None, None, "allow", "deny", "forbidden", "raise", "nonsense", "slow"])),
        "at_once": draw(maybe),
        "before": draw(st.sampled_from([None, None, "pass", "block", "replace", "raise", "bad"])),
        "after": draw(st.sampled_from([None, None, "pass", "replace", "raise"])),
        "pauses": tuple(draw(st.lists(st.integers(0, 3), max_size=3))),
        "wait_for_steering": draw(maybe),
    }
    return Plan(**{**drawn, **fixed})


# ---------------------------------------------------------------- the world


class World:
    """The run of a plan, and what happened in it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self.signal = AbortSignal()
        self.model = ScriptedModel(plan.replies, past_end="stop", clock=self.clock)
        self.events: list[Event] = []
        self.effects: list[tuple[str, Any, int, bool]] = []
        """(kind, subject, events consumed, whether the consumer was waiting for more)"""
        self.inside = False
        self.steering: list[str] = []
        self.taken: list[str] = []
        self.joined = 0
        self.news = anyio.Event()
        self.follow_ups = list(plan.follow_ups)
        self.running: set[str] = set()
        self.overlap = 0
        self.alone_broken = False
        self.release = anyio.Event()
        self.cleaned: list[str] = []
        self.run: Run | None = None

    def note(self, kind: str, subject: Any = None) -> None:
        """Write an effect down, at its first line."""
        self.effects.append((kind, subject, len(self.events), self.inside))

    # ---------------------------------------------------------- tools

    def tools(self) -> list[Any]:
        """One tool of every temper."""
        world = self

        @asynccontextmanager
        async def body(name: str, ctx: ToolContext) -> AsyncIterator[None]:
            world.note("tool", ctx.tool_call_id)
            if "alone" in (name, *[key.split()[0] for key in world.running]) and world.running:
                world.alone_broken = True
            key = f"{name} {ctx.tool_call_id}"
            world.running.add(key)
            world.overlap = max(world.overlap, len(world.running))
            try:
                yield
            finally:
                world.running.discard(key)
                world.cleaned.append(ctx.tool_call_id)

        async def until_told(ctx: ToolContext) -> None:
            """Return when the call is to stop; after an hour where the plan's abort waits for an event that never comes."""
            async with anyio.create_task_group() as group:

                async def an_hour() -> None:
                    await world.clock.sleep(3600)
                    group.cancel_scope.cancel()

                group.start_soon(an_hour)
                await ctx.abort.wait()
                group.cancel_scope.cancel()

        @tool
        async def ok(ctx: ToolContext, n: int = 0) -> str:
            async with body("ok", ctx):
                return f"ok {n}"

        @tool
        async def slow(ctx: ToolContext, n: int = 0) -> str:
            async with body("slow", ctx):
                await world.clock.sleep(2)
                return "slow done"

        @tool
        async def boom(ctx: ToolContext, n: int = 0) -> str:
            async with body("boom", ctx):
                await anyio.lowlevel.checkpoint()
                raise Failure("" if n == 1 else "boom!")

        @tool
        async def stream(ctx: ToolContext, n: int = 0) -> AsyncIterator[str]:
            async with body("stream", ctx):
                for piece in ("one\n", "two\ud83d", "\ude00"):
                    yield piece
                if n == 1:
                    raise Failure("broke")
                await world.clock.sleep(1.5)

        @tool
        async def report(ctx: ToolContext, n: int = 0) -> ToolResult:
            async with body("report", ctx):
                for step in range(3):
                    ctx.progress(f"{step}")
                    await anyio.lowlevel.checkpoint()
                await ctx.output("out")
                return ToolResult("put", details={"n": n}, terminate=n == 1)

        @tool
        async def nothing(ctx: ToolContext, n: int = 0) -> None:
            async with body("nothing", ctx):
                return

        @tool
        async def odd(ctx: ToolContext, n: int = 0) -> Any:
            async with body("odd", ctx):
                return [Nonsense(), b"\xff"] if n == 1 else ToolResult("   ", is_error=True)

        @tool(interruptible=True)
        async def wait(ctx: ToolContext, n: int = 0) -> str:
            async with body("wait", ctx):
                await until_told(ctx)
                return "waited"

        @tool(exclusive=True)
        async def alone(ctx: ToolContext, n: int = 0) -> str:
            async with body("alone", ctx):
                await anyio.lowlevel.checkpoint()
                return "alone"

        @tool
        async def polite(ctx: ToolContext, n: int = 0) -> str:
            async with body("polite", ctx):
                await until_told(ctx)
                return "stopped politely"

        @tool
        async def deaf(ctx: ToolContext, n: int = 0) -> str:
            async with body("deaf", ctx):
                await deaf_until(world.release)
                return "too late"

        found = [ok, slow, boom, stream, report, nothing, odd, alone]
        if self.plan.tool_timeout is not None or self.plan.deadline is not None or self.plan.abort_after is not None:
            found += [wait, polite]  # they end only when they are told to
        if self.plan.deaf:
            found.append(deaf)
        return found

    # ---------------------------------------------------------- callbacks

    async def get_steering(self) -> list[AgentMessage]:
        self.note("poll", "steering")
        await anyio.lowlevel.checkpoint()
        texts, self.steering = self.steering, []
        self.taken += texts
        self.news = anyio.Event()
        return [user(text) for text in texts]

    def get_follow_ups(self) -> list[AgentMessage]:
        self.note("poll", "follow_up")
        texts, self.follow_ups = self.follow_ups[:1], self.follow_ups[1:]
        self.taken += texts
        return [user(text) for text in texts]

    async def wait_for_steering(self) -> None:
        while not self.steering:
            await self.news.wait()

    async def before(self, invocation: Any) -> Any:
        self.note("before", invocation.id)
        from agentloop import Block

        match self.plan.before:
            case "block":
                return Block("" if len(invocation.id) % 2 else "blocked by the test")
            case "replace":
                return {"n": 7}
            case "bad":
                return {"n": "seven"}
            case "raise":
                await anyio.lowlevel.checkpoint()
                raise Failure("before")
        return None

    def after(self, invocation: Any, result: ToolResult) -> Any:
        self.note("after", invocation.id)
        if self.plan.after == "raise":
            raise Failure("after")
        return ToolResult("replaced") if self.plan.after == "replace" else None

    async def approve(self, request: Any) -> Any:
        self.note("approve", request.tool_call_id)
        if self.plan.asks == "raise":
            raise Failure("approve")
        if self.plan.asks == "slow":
            await self.clock.sleep(0.3)
            return "allow"
        return self.plan.asks

    def config(self, **changes: Any) -> Config:
        """The config of the plan."""
        plan = self.plan

        def model(request: Any) -> Any:
            self.note("request", request)
            return self.model(request)

        values: dict[str, Any] = {
            "model": model,
            "get_steering_messages": self.get_steering,
            "get_follow_up_messages": self.get_follow_ups,
            "wait_for_steering": self.wait_for_steering if plan.wait_for_steering else None,
            "before_tool_call": self.before if plan.before else None,
            "after_tool_call": self.after if plan.after else None,
            "approve": self.approve if plan.asks else None,
            "approval_order": "all_at_once" if plan.at_once else "one_at_a_time",
            "tool_execution": "sequential" if plan.sequential else "parallel",
            "max_parallel_tools": plan.cap,
            "tool_timeout": plan.tool_timeout,
            "retry": Retry(waits=(2, 4)[: plan.retries]),
            "idle_timeout": 20,
            "deadline": plan.deadline,
            "max_turns": plan.max_turns,
            "abort": self.signal,
            "run_ahead": plan.run_ahead,
            "clock": self.clock,
            "new_id": iter(f"made_{n}" for n in range(10_000)).__next__,
        }
        return Config(**{**values, **changes})

    def start(self, context: Context | None = None, **changes: Any) -> Run:
        """Make the run (nothing happens yet)."""
        context = context or Context("be brief", tools=self.tools())
        self.run = agent_loop([user(prompt) for prompt in self.plan.prompts], context, self.config(**changes))
        return self.run

    # ---------------------------------------------------------- the consumer

    def between(self) -> None:
        """What the outside does before a step: steering joins, the abort fires."""
        plan = self.plan
        for at, text in plan.steering[self.joined :]:
            if at > len(self.events):
                break
            self.joined += 1
            self.steering.append(text)
            self.news.set()
        if plan.abort_after is not None and len(self.events) >= plan.abort_after:
            self.signal.abort("the test says so")

    async def step(self) -> Event | None:
        """One step of the consumer; None at the end."""
        plan = self.plan
        self.between()
        if plan.pauses:
            for _ in range(plan.pauses[len(self.events) % len(plan.pauses)]):
                await anyio.lowlevel.checkpoint()
        assert self.run is not None
        self.inside = True
        try:
            event = await anext(self.run)
        except StopAsyncIteration:
            return None
        finally:
            self.inside = False
        self.events.append(event)
        return event

    async def play(self, **changes: Any) -> list[Event]:
        """The whole run, with both levels of the grammar checked."""
        self.start(**changes)
        while await self.step() is not None:
            pass
        check(self.events)
        return self.events

    @property
    def end(self) -> AgentEnd:
        """The run's last event."""
        event = self.events[-1]
        assert isinstance(event, AgentEnd), event
        return event

    def of(self, *kinds: type) -> list[Any]:
        """The events of some classes, in order."""
        return [event for event in self.events if isinstance(event, kinds)]


async def played(plan: Plan) -> World:
    """The world behind a whole run."""
    world = World(plan)
    await world.play()
    return world
