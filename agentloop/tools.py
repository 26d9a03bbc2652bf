"""What a tool is: a typed function with a schema, and what it gets to work with."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import attrs

from agentloop._values import frozen_json, thaw_json
from agentloop.abort import AbortSignal
from agentloop.errors import InvalidArguments
from agentloop.events import AgentEnd, ChildEvent, Event, SubagentStarted
from agentloop.messages import ContentBlock, JsonObject, ToolCall, ToolResult, ToolSpec, content_blocks

ToolKind: TypeAlias = Literal["async", "sync", "stream"]
"""How a tool runs: awaited, in a worker thread, or as an async generator whose pieces are its output."""


@attrs.frozen
class ToolInvocation:
    """One call about to run (or that ran), as hooks see it. `arguments` is a copy of the validated arguments."""

    id: str
    name: str
    arguments: dict[str, Any]
    tool: Tool


class ToolSink(Protocol):
    """Where a call's progress goes; the loop's, or a collecting one in tests. All methods but `child` may be called from any
    thread and at any time: after the call's end they do nothing."""

    def progress(self, result: ToolResult) -> None:
        """Progress for a card; never waits."""
        ...

    def output(self, text: str) -> Awaitable[None]:
        """Take a piece of the output at once; await the result to wait for room (a worker thread has waited already)."""
        ...

    async def child(self, event: SubagentStarted | ChildEvent) -> None:
        """Take an event of a nested run; waits for room."""
        ...

    def closing_bound(self, seconds: float) -> None:
        """A nested run needs up to this long to close after an abort."""
        ...


class ToolContext:
    """What a tool that takes a `ctx` parameter gets: its call's id, an abort signal, and ways to report."""

    __slots__ = ("_sink", "abort", "tool_call_id", "tool_name")

    def __init__(self, tool_call_id: str, tool_name: str, abort: AbortSignal, sink: ToolSink) -> None:
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name
        self.abort = abort
        """Fires when the call is to stop; return soon after it (within `Config.abort_grace`) to have your result kept."""
        self._sink = sink

    def progress(self, partial: ToolResult | str | ContentBlock | Iterable[ContentBlock | str]) -> None:
        """Show progress on the call's card; it replaces the progress before. Never waits, callable from any thread."""
        self._sink.progress(partial if isinstance(partial, ToolResult) else ToolResult(content_blocks(partial)))

    def output(self, text: str) -> Awaitable[None]:
        """Stream a piece of the result's text. `await` it for back-pressure; in a sync tool the call itself waits."""
        return self._sink.output(text)

    async def nested(
        self, events: AsyncIterable[Event], session_id: str, *, meta: JsonObject | None = None, closing_bound: float = 0.0
    ) -> AgentEnd | None:
        """Run a nested run to its end, forwarding its events; returns its `AgentEnd`, None if it had none.

        Emits `SubagentStarted`, then each event as a `ChildEvent` whose origin begins with `session_id`. Give the nested run
        `ctx.abort` as its signal (or one that follows it) and its own closing time as `closing_bound`.
        """
        self._sink.closing_bound(closing_bound)
        await self._sink.child(SubagentStarted(session_id, self.tool_call_id, meta))
        end: AgentEnd | None = None
        async for event in events:
            if isinstance(event, AgentEnd):
                end = event
            if isinstance(event, ChildEvent):
                await self._sink.child(ChildEvent((session_id, *event.origin), event.event))
            else:
                await self._sink.child(ChildEvent((session_id,), event))
        return end


@attrs.frozen
class PreparedCall:
    """Arguments that passed: `arguments` is the JSON object that runs (coerced, defaults not filled in), `text` its JSON
    text; `bind(ctx)` gives a function without parameters that runs the tool on a copy of its own."""

    arguments: dict[str, Any]
    text: str
    bind: Callable[[ToolContext], Callable[[], Any]]


@attrs.frozen
class Tool:
    """A function that a model may call. Make one with `@tool`, or directly from a JSON Schema.

    `execute(arguments, ctx)` gets the arguments object and the context; it may be an async function, a sync function (runs
    in a worker thread), or an async generator function (streams its output).
    """

    name: str
    description: str
    parameters: JsonObject = attrs.field(converter=frozen_json)
    """JSON Schema of the arguments object."""
    execute: Callable[..., Any]
    label: str | None = None
    """A name for people."""
    timeout: float | None = None
    """Seconds; None: `Config.tool_timeout`."""
    exclusive: bool = False
    """Never runs beside another call."""
    interruptible: bool = False
    """A pure wait, which steering may cut short."""
    replay: Literal["never", "safe"] = "never"
    """Whether it may run again when a crash left its outcome unknown."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return ToolSpec(self.name, self.description, self.parameters, self.label)

    @property
    def kind(self) -> ToolKind:
        """How it runs."""
        raise NotImplementedError

    @property
    def takes_context(self) -> bool:
        """Whether it looks at `ctx` (and so may be trusted to stop by itself)."""
        raise NotImplementedError

    def prepare(self, arguments: str | Mapping[str, Any]) -> PreparedCall:
        """Parse, coerce and validate. Raises `InvalidArguments` with a text that the model can act on."""
        raise NotImplementedError
