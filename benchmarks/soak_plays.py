"""Random runs with random faults: what one play of the soak does, drawn from its seed."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentMessage,
    AssistantMessage,
    Block,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    ModelError,
    Retry,
    ToolContext,
    ToolResult,
    ToolResultMessage,
    Usage,
    agent_loop,
    running,
    tool,
    user,
)
from agentloop.compaction import Summarize, TurnsReach
from agentloop.grammar import Checker, check
from agentloop.model import BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk
from agentloop.omni.reader import trace_files
from agentloop.omni.recorder import record
from agentloop.session import Session

BOUND = 30.0
"""Real seconds that a play may take; only a hang takes so long."""
TOOLS = ("quick", "thread", "stream", "slow", "raises", "hangs", "deaf", "leaves", "nested", "huge", "missing")


class Broken(Exception):
    """What the soak's models, tools and callbacks raise."""


class Worse(BaseException):
    """What nobody should raise."""


def legal(messages: Iterable[AgentMessage]) -> None:
    """Each call has its result, in call order, right behind its reply. Raises `AssertionError`."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            assert waiting and waiting.pop(0) == message.tool_call_id, "a result without its call, or out of order"
            continue
        assert not waiting, "a call without its result"
        if isinstance(message, AssistantMessage):
            waiting = [call.id for call in message.tool_calls]
    assert not waiting, "a call without its result"


class Play:
    """One play: everything that it gives to a run, and how it consumes it. All drawn from `seed`."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.faults = self.random.choice([0.0, 0.05, 0.3])
        self.depth = 0
        self.events = 0
        self.ended = 0
        self.problems: list[BaseException] = []

    # ------------------------------------------------------------ what goes wrong

    def chance(self, probability: float) -> bool:
        """Whether something that is so likely happens."""
        return self.random.random() < probability

    def maybe_raise(self) -> None:
        """Raise something, now and then."""
        if self.chance(self.faults):
            raise self.random.choice(
                [
                    Broken("broken"),
                    Worse("worse"),
                    asyncio.CancelledError("foreign"),
                    TimeoutError(),
                    ExceptionGroup("group", [Broken("one"), Broken("two")]),
                    ModelError("rate_limit", "slow down", retry_after=0.001),
                    ModelError("rejected", "no"),
                ]
            )

    async def pause(self) -> None:
        """A wait of some kind, most often none."""
        if self.chance(0.6):
            return
        if self.chance(0.8):
            await anyio.lowlevel.checkpoint()
        else:
            await anyio.sleep(self.random.random() * 0.004)

    # ------------------------------------------------------------ the model

    async def model(self, request: Any) -> AsyncIterator[Any]:
        """A reply of random blocks, which may break anywhere."""
        try:
            legal(request.messages)
        except AssertionError as error:
            self.problems.append(error)
        await self.pause()
        self.maybe_raise()
        for number in range(self.random.randrange(6)):
            for chunk in self._block(number):
                yield chunk
                await self.pause()
                self.maybe_raise()
        if self.chance(0.3):
            yield UsageChunk(Usage(1, 2, 3))
        if self.chance(self.faults):
            if self.chance(0.5):
                await anyio.sleep_forever()
            return
        yield Finish(self.random.choice(["stop", "tool_use", "stop", "tool_use", "length", "pause", "refusal"]))

    def _block(self, number: int) -> list[Any]:
        kind = self.random.choice(["text", "thinking", "call", "call"])
        if kind == "call":
            name, id = self.random.choice(TOOLS), self.random.choice([None, "same", f"call_{number}"])
            arguments = self.random.choice(["}", '"n": 1}', '"n": "two"}', ""])
            return [ToolCallChunk("{", id, name, number), ToolCallChunk(arguments, index=number), BlockEnd(number)]
        chunk = TextChunk("text é🙂 ") if kind == "text" else ThinkingChunk("thought ")
        return [chunk] * self.random.choice([1, 3, 200]) + [BlockEnd()]

    # ------------------------------------------------------------ the tools

    def tools(self) -> list[Any]:
        """One of every temper."""

        @tool(replay="safe")
        async def quick(n: int = 0) -> Any:
            """Return something."""
            await self.pause()
            self.maybe_raise()
            return self.random.choice(["ok", None, {"a": [n]}, b"\xff", object(), ToolResult("", is_error=True)])

        @tool
        def thread(ctx: ToolContext) -> str:
            """Work in a thread."""
            ctx.output("from a thread")
            time.sleep(0.001)
            return "done"

        @tool
        async def stream(ctx: ToolContext) -> AsyncIterator[str]:
            """Stream."""
            for number in range(self.random.choice([1, 5, 300])):
                ctx.progress(f"{number}")
                yield "piece\ud83d"
                await self.pause()
                self.maybe_raise()

        @tool(interruptible=True)
        async def slow(ctx: ToolContext) -> str:
            """Wait until told to stop, or not that long."""
            with anyio.move_on_after(0.02):
                await ctx.abort.wait()
            return "waited"

        @tool
        async def raises() -> str:
            """Raise."""
            await self.pause()
            raise Broken("")

        @tool
        async def hangs() -> str:
            """Hang, until it is cancelled."""
            await anyio.sleep_forever()
            return ""

        @tool(exclusive=True)
        async def deaf() -> str:
            """Ignore cancellation for a while."""
            until = time.monotonic() + 0.04
            with anyio.CancelScope(shield=True):
                while time.monotonic() < until:
                    try:
                        await anyio.sleep(0.005)
                    except asyncio.CancelledError:
                        pass
            return "at last"

        @tool
        async def leaves() -> str:
            """Order the program to end, rarely."""
            if self.chance(0.1):
                raise SystemExit(3)
            return "stayed"

        @tool
        async def nested(ctx: ToolContext) -> str:
            """Run an agent."""
            if self.depth > 1:
                return "deep enough"
            self.depth += 1
            try:
                inner = agent_loop("inner", Context(tools=self.tools()), self.config(abort=ctx.abort))
                end = await ctx.nested(inner, "child", closing_bound=0.1)
                return "left" if end is None else end.stop_reason
            finally:
                self.depth -= 1

        @tool
        async def huge() -> str:
            """Return a lot."""
            return "x" * 100_000

        return [quick, thread, stream, slow, raises, hangs, deaf, leaves, nested, huge]

    # ------------------------------------------------------------ the callbacks

    def callback(self, *values: Any) -> Callable[..., Any]:
        """An async callback that gives one of these, or fails."""

        async def call(*args: Any) -> Any:
            await self.pause()
            self.maybe_raise()
            return self.random.choice(values)

        return call

    def config(self, **fixed: Any) -> Config:
        """A config of random limits and callbacks."""
        draw = self.random.choice
        values: dict[str, Any] = {
            "model": self.model,
            "retry": draw([None, Retry(waits=(0.001, 0.002))]),
            "idle_timeout": 0.05,
            "abort_grace": 0.01,
            "tool_timeout": 0.03,
            "deadline": draw([None, None, 0.05]),
            "max_turns": draw([2, 5, 10]),
            "max_parallel_tools": draw([None, None, 2]),
            "tool_execution": draw(["parallel", "parallel", "sequential"]),
            "run_ahead": draw([0, 1, 64]),
            "max_result_characters": draw([None, 1_000]),
            "approve": draw([None, self.callback("allow", "allow", "deny", "forbidden")]),
            "approval_order": draw(["one_at_a_time", "all_at_once"]),
            "approval_timeout": draw([None, 0.01]),
            "before_tool_call": draw([None, None, self.callback(None, None, Block("blocked"), {})]),
            "after_tool_call": draw([None, None, self.callback(None, ToolResult("changed"))]),
            "get_steering_messages": draw([None, self.callback((), (), [user("left")])]),
            "get_follow_up_messages": draw([None, self.callback((), [user("more")])]),
            "finish_turn": draw([None, None, self.callback(None, "end", "ask")]),
            "transform_context": draw([None, None, lambda messages: list(messages)[-20:]]),
            "hooks": draw([(), [Hooks("h", self.callback(None, HookAnswer("allow"), HookAnswer("deny")))]]),
            "compaction": draw([None, None, Summarize(when=TurnsReach(3))]),
        }
        return Config(**{**values, **fixed})

    # ------------------------------------------------------------ the consumer

    async def play(self) -> None:
        """Play. Raises what should not have happened."""
        with anyio.fail_after(BOUND):
            await (self._session() if self.chance(0.25) else self._run())
        if self.problems:
            raise self.problems[0]

    async def _run(self) -> None:
        signal = AbortSignal()
        run: Any = agent_loop("go", Context("soak", tools=self.tools()), self.config(abort=signal))
        if self.chance(0.2):
            run = record(run, lambda entry: self.pause(), policy="warn")
        await self.consume(run, signal)

    async def consume(self, run: Any, signal: AbortSignal) -> None:
        """Take the events in one of the ways there are, and check them."""
        way = self.random.choice(["end", "end", "abort", "thread", "close", "break", "cancel", "running", "gone"])
        after = self.random.choice([0, 1, 5, 20, 100, 400])
        seen: list[Event] = []
        if way == "cancel":
            with anyio.move_on_after(self.random.random() * 0.05):
                await self._take(run, seen, None)
        elif way == "running":
            try:
                async with running(run) as events:
                    await self._take(events, seen, after)
            except SystemExit:  # a tool ordered it
                pass
        elif way in ("close", "break"):
            await self._take(run, seen, after)
            if way == "close":
                await _close(run)
        elif way == "gone":
            async with anyio.create_task_group() as group:
                group.start_soon(self._take, run, seen, None)
                await anyio.sleep(self.random.random() * 0.02)
                await _close(run)
        else:
            await self._take(run, seen, after if way in ("abort", "thread") else None)
            if way == "abort":
                signal.abort("the soak says so")
            elif way == "thread":
                thread = threading.Thread(target=signal.abort, args=("a thread says so",))
                thread.start()
                await self._take(run, seen, 2)
                thread.join()
            await self._take(run, seen, None)
        self._judge(seen)

    async def _take(self, run: Any, seen: list[Event], limit: int | None) -> None:
        left = limit
        while left is None or left > 0:
            await self.pause()
            try:
                seen.append(await anext(run))
            except (StopAsyncIteration, SystemExit):
                return
            if left is not None:
                left -= 1

    def _judge(self, seen: Sequence[Event]) -> None:
        self.events += len(seen)
        checker = Checker()
        for event in seen:
            checker.feed(event)
        if seen and isinstance(seen[-1], AgentEnd):
            self.ended += 1
            check(seen, outputs_kept=False)

    # ------------------------------------------------------------ sessions

    async def _session(self) -> None:
        """Several runs of a recorded session, closed and opened again in between."""
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            known: dict[str, Any] = {"tools": self.tools(), "retry": None, "idle_timeout": 0.05, "abort_grace": 0.01}
            known |= {"tool_timeout": 0.03, "max_turns": 4, "approve": self.callback("allow", "deny")}
            session = Session.create(folder, self.model, session_id="soak", **known)
            for number in range(self.random.choice([1, 2, 4])):
                if (
                    number and self.chance(0.7) and trace_files(Path(folder), "soak")
                ):  # a run left at once wrote nothing
                    await session.aclose()
                    session = Session.open("soak", folder, self.model, **known)
                signal = AbortSignal()
                run = session.run(f"go {number}", abort=signal)
                await self.consume(run, signal)
                await _close(run)
            await session.aclose()


async def _close(run: Any) -> None:
    """Close a run; an order to leave that a tool gave is no news here."""
    try:
        await run.aclose()
    except SystemExit:
        pass
