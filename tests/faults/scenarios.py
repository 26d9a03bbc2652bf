"""The runs of the fault matrix: small, and each with points in all that its caller gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio.lowlevel

from agentloop import (
    Config,
    Context,
    HookAnswer,
    Hooks,
    McpConnectEnd,
    ModelError,
    Retry,
    ToolContext,
    agent_loop,
    tool,
    user,
)
from agentloop.messages import Usage
from agentloop.model import Finish, ToolCallChunk, UsageChunk
from agentloop.omni.recorder import record

from .matrix import Points


def model(points: Points, replies: list[list[Any]]) -> Any:
    """A model that plays these chunks, a reply each; a chunk that is an exception is raised."""
    waiting = list(replies)

    async def stream(request: Any) -> Any:
        chunks = waiting.pop(0) if waiting else [Finish("stop")]
        points.begin("request")
        points.open.append("stream")
        try:
            await points.point("the stream begins")
            for chunk in chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
                points.hit("the stream goes on")
            await points.point("the stream ends")
        finally:
            points.open.remove("stream")

    return stream


def calls(*names: str) -> list[Any]:
    """A reply of calls."""
    return ["text", *[ToolCallChunk("{}", f"{name}_id", name) for name in names], Finish("tool_use")]


def tools(points: Points) -> list[Any]:
    """One that returns, one that streams, one that waits and may be interrupted."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        async with points.body("work"):
            ctx.progress("half")
            await ctx.output("out")
            return "output"

    @tool
    async def stream() -> AsyncIterator[str]:
        """Stream."""
        async with points.body("stream tool"):
            yield "one"
            points.hit("the tool streams")
            yield "two"

    @tool(interruptible=True)
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        async with points.body("wait"):
            await ctx.abort.wait()
            return "waited"

    @tool(exclusive=True)
    async def alone() -> None:
        """Work alone, without looking at the context."""
        async with points.body("alone"):
            await anyio.lowlevel.checkpoint()

    return [work, stream, wait, alone]


def config(points: Points, replies: list[list[Any]], **changes: Any) -> Config:
    """What all scenarios share: a virtual clock with limits on it, so that whatever hangs is stopped."""
    values: dict[str, Any] = {
        "model": model(points, replies),
        "clock": points.clock,
        "abort": points.signal,
        "abort_grace": 0.01,
        "deadline": 900,
        "tool_timeout": 50,
        "idle_timeout": 20,
        "approval_timeout": 70,
        "retry": Retry(waits=(2,)),
        "max_turns": 6,
    }
    return Config(**{**values, **changes})


def callbacks(points: Points) -> Any:
    """Calls in parallel, with every callback around them, async."""
    steering = [[user("steer")]]
    follow_ups = [[user("more")]]
    return agent_loop(
        ["go"],
        Context("s", tools=tools(points)),
        config(
            points,
            [calls("work", "stream", "missing"), ["b", Finish("stop")], ["c", Finish("stop")]],
            get_steering_messages=points.callback("steering", lambda: steering.pop() if steering else []),
            get_follow_up_messages=points.callback("follow_up", lambda: follow_ups.pop() if follow_ups else []),
            before_tool_call=points.callback("before"),
            after_tool_call=points.callback("after"),
            finish_turn=points.callback("finish_turn"),
            approve=points.callback("approve", "allow"),
            approval_order="all_at_once",
            hooks=[Hooks("h", stop=points.callback("stop", HookAnswer()), user_prompt=points.callback("prompt"))],
        ),
    )


def sync(points: Points) -> Any:
    """The same with sync callbacks, one call after another, step by step."""
    steering = [[user("steer")]]
    return agent_loop(
        ["go"],
        Context("s", tools=tools(points)),
        config(
            points,
            [calls("alone", "work"), ["b", Finish("stop")]],
            get_steering_messages=points.plain("steering", lambda: steering.pop() if steering else []),
            get_follow_up_messages=points.plain("follow_up"),
            before_tool_call=points.plain("before"),
            after_tool_call=points.plain("after"),
            finish_turn=points.plain("finish_turn"),
            approve=points.plain("approve", "allow"),
            hooks=[Hooks("h", pre_tool_use=points.plain("hook", HookAnswer("allow")))],
            tool_execution="sequential",
            run_ahead=0,
        ),
    )


def retry(points: Points) -> Any:
    """A request that fails and is asked again, with transforms."""
    return agent_loop(
        ["go"],
        Context("s", [user("before")]),
        config(
            points,
            [["half", ModelError("network", "gone")], ["whole", Finish("stop")]],
            transform_context=points.callback("transform", lambda messages: messages),
            convert_to_llm=points.callback("convert", lambda messages: messages),
            prepare_request=points.callback("prepare"),
        ),
    )


def interrupt(points: Points) -> Any:
    """Steering that cuts a wait short."""
    steering: list[list[Any]] = [[user("steer")], []]

    async def waits() -> None:
        async with points.body("wait for steering"):
            await anyio.lowlevel.checkpoint()

    return agent_loop(
        ["go"],
        Context("s", tools=tools(points)),
        config(
            points,
            [calls("wait", "work"), ["b", Finish("stop")]],
            wait_for_steering=waits,
            get_steering_messages=points.plain("steering", lambda: steering.pop() if steering else []),
            max_parallel_tools=1,
        ),
    )


def compaction(points: Points) -> Any:
    """A compaction between two turns, its first summary of no use."""

    class Summarise:
        """Due when the context is big."""

        mode = "summarize"

        async def due(self, state: Any) -> Any:
            return await points.callback("due", "context" if state.context > 100 else None)()

        async def prompt(self, attempt: int, problem: str | None) -> Any:
            return await points.callback("compaction prompt", [user("Summarise.")])()

        async def accept(self, reply: Any) -> Any:
            return await points.callback("accept", reply.text if reply.text == "short" else None)()

        async def summary(self, text: str) -> Any:
            return await points.callback("summary", user(text))()

    return agent_loop(
        ["go"],
        Context("s", tools=tools(points)),
        config(
            points,
            [
                [UsageChunk(Usage(0, 200, 1)), *calls("alone")],
                ["no", Finish("stop")],
                ["short", Finish("stop")],
                [UsageChunk(Usage(0, 10, 1)), "d", Finish("stop")],
            ],
            compaction=Summarise(),
        ),
    )


def source(points: Points) -> Any:
    """Tools from a source."""

    class Source:
        """Connects, says what changed, closes."""

        servers = ("s",)

        async def connect(self) -> Any:
            return await points.callback("connect", (McpConnectEnd("completed"), tools(points)))()

        async def changed(self) -> Any:
            return await points.callback("changed")()

        async def close(self) -> None:
            points.open.append("close")
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                points.open.remove("close")

    return agent_loop(
        ["go"], Context("s"), config(points, [calls("alone"), ["b", Finish("stop")]], tool_source=Source())
    )


def nested(points: Points) -> Any:
    """A tool that runs an agent of its own."""
    points.late = 1

    @tool
    async def child(ctx: ToolContext) -> str:
        """Run an agent."""
        async with points.body("child"):
            inner = config(points, [calls("alone"), ["inner", Finish("stop")]], abort=ctx.abort, deadline=None)
            end = await ctx.nested(agent_loop(["do"], Context(tools=tools(points)), inner), "inner", closing_bound=0.1)
            return "nothing" if end is None else str(end.stop_reason)

    return agent_loop(["go"], Context("s", tools=[child]), config(points, [calls("child"), ["b", Finish("stop")]]))


def recorded(points: Points) -> Any:
    """A run whose events are stored before they are seen; the sink's failures are told and borne."""

    async def sink(entry: Any) -> None:
        await anyio.lowlevel.checkpoint()

    run = agent_loop(["go"], Context("s", tools=tools(points)), config(points, [calls("alone"), ["b", Finish("stop")]]))
    return record(run, sink, policy="warn")


SCENARIOS: dict[str, Any] = {
    "callbacks": callbacks,
    "sync": sync,
    "retry": retry,
    "interrupt": interrupt,
    "compaction": compaction,
    "source": source,
    "nested": nested,
    "recorded": recorded,
}
