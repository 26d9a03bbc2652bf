"""A run that asks every callback there is, each of which a test may replace by a bad one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from agentloop import (
    AbortSignal,
    AgentEnd,
    Config,
    Context,
    CustomMessage,
    Event,
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
from agentloop.grammar import check
from agentloop.messages import Usage
from agentloop.model import UsageChunk
from agentloop.testing import ScriptedModel, VirtualClock, call, collect


class Bad(Exception):
    """What an application raises."""


class Worse(BaseException):
    """What nobody should raise, and some do."""


class Hostile:
    """An object every look at which fails."""

    def __eq__(self, other: object) -> bool:
        raise Bad("compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise Bad("asked for its truth")

    def __repr__(self) -> str:
        raise Bad("printed")

    def __iter__(self) -> Any:
        raise Bad("iterated")


class HostileText(str):
    """A text every look at which fails."""

    def __eq__(self, other: object) -> bool:
        raise Bad("compared")

    def __hash__(self) -> int:
        raise Bad("hashed")

    def __len__(self) -> int:
        raise Bad("asked for its length")

    def __str__(self) -> str:
        raise Bad("printed")

    __repr__ = __str__

    def isascii(self) -> bool:
        """Whether it is ASCII alone."""
        raise Bad("asked for its characters")


class HostileError(Exception):
    """An exception every look at which fails."""

    def __str__(self) -> str:
        raise Bad("printed")

    __repr__ = __str__

    @property
    def status_code(self) -> int:
        raise Bad("asked for its status")


class UnprintableError(Exception):
    """An exception whose words fail worse than it."""

    def __str__(self) -> str:
        raise Worse("printed")

    __repr__ = __str__


class NamelessError(Exception):
    """An exception that fails to say what it is."""

    @property
    def __class__(self) -> Any:  # type: ignore[misc]
        raise Bad("asked for its class")


class Unprintable:
    """An object whose words fail worse than an exception should."""

    def __str__(self) -> str:
        raise Worse("printed")

    __repr__ = __str__


class Proxy:
    """A lazy proxy whose object cannot be had: it fails to say what it is."""

    def __getattribute__(self, name: str) -> Any:
        raise Bad(f"asked for {name}")


class BadOutput(dict[str, Any]):
    """A mapping that fails to say what it holds."""

    def items(self) -> Any:
        raise Bad("asked for its items")


def broken_generator() -> Any:
    """Some items, then a failure."""
    yield user("taken")
    raise Bad("the generator broke")


async def async_generator() -> Any:
    """No sequence."""
    yield user("taken")


class BrokenAwaitable:
    """Says that it can be awaited, and cannot."""

    def __await__(self) -> Any:
        return 5


class LateFailure:
    """An awaitable that fails in its first step."""

    def __await__(self) -> Any:
        raise Bad("awaited")
        yield


NONSENSE: dict[str, Any] = {
    "a number": lambda: 5,
    "not a number": lambda: float("nan"),
    "a text": lambda: "text",
    "bytes": lambda: b"bytes",
    "an object": object,
    "a hostile object": Hostile,
    "a hostile text": lambda: HostileText("allow"),
    "a hook's hostile texts": lambda: HookAnswer(HostileText("deny"), HostileText("why"), HostileText("more")),  # type: ignore[arg-type]
    "a proxy of nothing": Proxy,
    "an unprintable object": Unprintable,
    "a list of proxies of nothing": lambda: [Proxy()],
    "a hook's proxy of nothing": lambda: HookAnswer(Proxy(), Proxy(), Proxy(), Proxy()),  # type: ignore[arg-type]
    "a hook's hostile decision": lambda: HookAnswer(Hostile()),  # type: ignore[arg-type]
    "a hook's broken output": lambda: HookAnswer(output=BadOutput(a=1)),
    "an exception": lambda: Bad("returned"),
    "a class": lambda: Bad,
    "a list of None": lambda: [None],
    "a list of hostile objects": lambda: [Hostile()],
    "a generator that breaks": broken_generator,
    "an async generator": async_generator,
    "a broken awaitable": BrokenAwaitable,
    "an awaitable that fails": LateFailure,
    "a message": lambda: user("a message"),
    "a dict": lambda: {"a": 1},
    "an empty tuple": tuple,
    "True": lambda: True,
}

RAISED: dict[str, Any] = {
    "Exception": lambda: Bad("raised"),
    "BaseException": lambda: Worse("raised"),
    "CancelledError": lambda: asyncio.CancelledError("foreign"),
    "ExceptionGroup": lambda: ExceptionGroup("group", [Bad("one"), ExceptionGroup("inner", [Bad("two")])]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("group", [Worse("one"), asyncio.CancelledError()]),
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(5),
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": TimeoutError,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "a hostile error": HostileError,
    "an unprintable error": UnprintableError,
    "ModelError": lambda: ModelError("network", "raised"),
}


@attrs.define
class Notice(CustomMessage):
    """A message of the application's own."""

    text: str = ""
    role = "notice"


class Plain:
    """Every callback of a run, harmless. A test puts a bad one in the place of one of them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.signal = AbortSignal()
        self.steering = [["steer"]]
        self.follow_ups = [["more"]]
        self.replaced: dict[str, Any] = {}
        self.called: list[str] = []
        self.model = ScriptedModel(
            [
                [UsageChunk(Usage(0, 10, 1)), "a", call("work", id="a"), call("stream", id="b")],
                ModelError("network", "gone"),
                [UsageChunk(Usage(0, 200, 1)), "b"],
                ["the summary"],
                ["c", UsageChunk(Usage(0, 10, 1))],
            ],
            past_end="stop",
            clock=self.clock,
        )

    def do(self, name: str, default: Any, *args: Any) -> Any:
        """Call the callback of that name: the test's, or the harmless one."""
        self.called.append(name)
        function = self.replaced.get(name)
        return default if function is None else function(*args)

    # ---------------------------------------------------------- the parts

    def tools(self) -> list[Any]:
        """A tool that returns, and one that streams."""

        @tool
        async def work(ctx: ToolContext) -> Any:
            """Work."""
            ctx.progress("on it")
            value = self.do("tool", "worked", ctx)
            return await value if hasattr(type(value), "__await__") else value

        @tool
        async def stream() -> AsyncIterator[Any]:
            """Stream."""
            yield "piece"
            yield self.do("piece", " of work")

        @tool
        def thread() -> Any:
            """Work in a thread."""
            return self.do("thread", "from a thread")

        return [work, stream, thread]

    def policy(self, invocation: Any) -> Any:
        """Of the approval."""
        return self.do("policy", None, invocation)

    def hooks(self) -> Hooks:
        """Hooks of every kind."""
        return Hooks(
            "h",
            pre_tool_use=lambda call: self.do("pre_tool_use", HookAnswer("allow" if call.id == "a" else None), call),
            user_prompt=lambda message: self.do("user_prompt", HookAnswer(message="by the hook"), message),
            stop=lambda end: self.do("stop", HookAnswer(), end),
        )

    def config(self, **changes: Any) -> Config:
        """All of them."""
        plain = self

        class Source:
            """A source of tools."""

            @property
            def servers(self) -> Any:
                return plain.do("servers", ["s"])

            async def connect(self) -> Any:
                return await _value(plain.do("connect", (McpConnectEnd("completed"), [])))

            async def changed(self) -> Any:
                return await _value(plain.do("changed", None))

            async def close(self) -> Any:
                return await _value(plain.do("close", None))

        class Compacting:
            """A compaction that is due once."""

            mode = "summarize"

            def due(self, state: Any) -> Any:
                return plain.do("due", "context" if state.context > 100 else None, state)

            def prompt(self, attempt: int, problem: str | None) -> Any:
                return plain.do("prompt", [user("Summarise.")], attempt, problem)

            def accept(self, reply: Any) -> Any:
                return plain.do("accept", reply.text, reply)

            def summary(self, text: str) -> Any:
                return plain.do("summary", user(text), text)

        class Approve:
            """Asks, with a policy."""

            def __call__(self, request: Any) -> Any:
                return plain.do("approve", "allow", request)

            def policy(self, invocation: Any) -> Any:
                return plain.policy(invocation)

        def model(request: Any) -> Any:
            return self.do("model", None, request) or self.model(request)

        values: dict[str, Any] = {
            "model": model,
            "transform_context": lambda messages: self.do("transform_context", messages, messages),
            "convert_to_llm": lambda messages: self.do(
                "convert_to_llm", [m for m in messages if not isinstance(m, CustomMessage)], messages
            ),
            "prepare_request": lambda request: self.do("prepare_request", None, request),
            "get_steering_messages": lambda: self.do(
                "get_steering_messages", self.steering.pop() if self.steering else []
            ),
            "get_follow_up_messages": lambda: self.do(
                "get_follow_up_messages", self.follow_ups.pop() if self.follow_ups else []
            ),
            "before_tool_call": lambda call: self.do("before_tool_call", None, call),
            "after_tool_call": lambda call, result: self.do("after_tool_call", None, call, result),
            "finish_turn": lambda end: self.do("finish_turn", None, end),
            "approve": Approve(),
            "hooks": [self.hooks()],
            "compaction": Compacting(),
            "tool_source": Source(),
            "retry": Retry(waits=(1,)),
            "abort": self.signal,
            "abort_grace": 0.01,
            "clock": self.clock,
            "max_turns": 12,
            "deadline": 900,
        }
        return Config(**{**values, **changes})

    def run(self, **changes: Any) -> Any:
        """The run, not begun."""
        context = Context("be brief", [Notice("seen by no model"), user("before")], self.tools())
        return agent_loop(["go"], context, self.config(**changes))

    async def play(self, **changes: Any) -> list[Event]:
        """The whole run, grammar checked."""
        with anyio.fail_after(20):
            events = await collect(self.run(**changes))
        check(events)
        assert isinstance(events[-1], AgentEnd)
        return events


async def _value(value: Any) -> Any:
    return await value if hasattr(type(value), "__await__") else value


def outcome(events: Sequence[Event]) -> tuple[Any, Any]:
    """How a run ended."""
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return end.stop_reason, end.error_code
