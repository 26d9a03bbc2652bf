"""What a tool is: a typed function with a schema, and what it gets to work with."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, overload

from agentloop._frozen import field, frozen
from agentloop._jsontext import json_text, parse_json
from agentloop._results import NO_OUTPUT as NO_OUTPUT
from agentloop._results import as_result
from agentloop._results import error_text as error_text
from agentloop._schema.keywords import check_arguments_schema
from agentloop._schema.problems import Problems
from agentloop._schema.raw import SchemaCheck
from agentloop._schema.shape import Reading
from agentloop._schema.signature import (
    ToolKind,
    TypedFunction,
    context_parameter,
    display_name,
    docstring_of,
    kind_of,
    plain_copy,
    read_function,
)
from agentloop._values import freeze_json, is_kind, thaw_json
from agentloop.abort import AbortSignal
from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.events import AgentEnd, ApprovalRequest, ChildEvent, Event, SubagentStarted
from agentloop.messages import ContentBlock, JsonObject, ToolResult, ToolSpec, content_blocks, json_type

__all__ = [
    "PreparedCall",
    "Tool",
    "ToolContext",
    "ToolInvocation",
    "ToolKind",
    "ToolSink",
    "as_result",
    "tool",
]

_NAME = r"[A-Za-z0-9_-]+"


@frozen
class ToolInvocation:
    """One call that is about to run, or that ran, as callbacks and hooks see it."""

    id: str
    """The call's id, as in its events."""
    name: str
    """What the model called."""
    arguments: dict[str, Any]
    """A copy of the validated arguments: changing it changes nothing."""
    tool: Tool
    """What will run, or ran."""


class ToolSink(Protocol):
    """Where a call's progress goes; the loop's, or a collecting one in tests.

    All methods but `child` and `close` may be called from any thread and at any time: after the call's end they do nothing.
    """

    def progress(self, result: ToolResult) -> None:
        """Progress for a card; never waits."""
        ...

    def output(self, text: str) -> Awaitable[None]:
        """Take a piece of the output at once; await the result to wait for room (a worker thread has waited)."""
        ...

    async def child(self, event: SubagentStarted | ChildEvent) -> None:
        """Take an event of a nested run; waits until the consumer has room for it."""
        ...

    async def close(self, close: Callable[[], Awaitable[Any]]) -> None:
        """Await the clean-up of a nested run; a cancellation of the tool does not cut it short."""
        ...

    def closing_bound(self, seconds: float) -> None:
        """Say that a nested run may need so many seconds to close after an abort."""
        ...


class ToolContext:
    """What a tool that takes a `ctx` parameter gets: the id of its call and the name of its tool, `abort`, ways to report.

    `abort` fires when the call is to stop; what is returned within `Config.abort_grace` seconds after that is kept. For a
    nested run there are `approve` (the run's; None: all calls run) and `run_abort` (the run's `Config.abort`, which fires
    at once, where `abort` waits until the run has noticed).
    """

    __slots__ = ("_sink", "abort", "approve", "run_abort", "tool_call_id", "tool_name")

    def __init__(
        self,
        tool_call_id: str,
        tool_name: str,
        abort: AbortSignal,
        sink: ToolSink,
        approve: Callable[[ApprovalRequest], Any] | None = None,
        run_abort: AbortSignal | None = None,
    ) -> None:
        """Made by the loop for each call."""
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name
        self.abort = abort
        self.approve = approve
        self.run_abort = run_abort
        self._sink = sink

    def progress(self, partial: ToolResult | str | ContentBlock | Iterable[ContentBlock | str]) -> None:
        """Show progress on a screen; it replaces the progress before. Not to be awaited; callable from any thread."""
        given: Any = partial
        self._sink.progress(given if is_kind(given, ToolResult) else ToolResult(content_blocks(given)))

    def output(self, text: str) -> Awaitable[None]:
        """Stream a piece of the result's text. `await` it, so that the tool goes no faster than its consumer; in a sync tool
        the call itself waits."""
        return self._sink.output(text)

    async def nested(
        self,
        events: AsyncIterable[Event],
        session_id: str,
        *,
        meta: JsonObject | None = None,
        closing_bound: float = 0.0,
    ) -> AgentEnd | None:
        """Run a nested run to its end, forwarding its events; returns its `AgentEnd`, None if it had none.

        Emits `SubagentStarted`, then each event as a `ChildEvent` whose origin begins with `session_id`. Give the
        nested run `ctx.abort` as its signal (or one that follows it) and its own closing time as `closing_bound`. The
        nested run is closed and waited for whenever this returns or raises, a cancellation of the tool included.
        """
        self._sink.closing_bound(closing_bound)
        end: AgentEnd | None = None
        try:
            await self._sink.child(SubagentStarted(session_id, self.tool_call_id, meta))
            async for event in events:
                if isinstance(event, AgentEnd):
                    end = event
                if isinstance(event, ChildEvent):
                    await self._sink.child(ChildEvent((session_id, *event.origin), event.event))
                else:
                    await self._sink.child(ChildEvent((session_id,), event))
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await self._sink.close(close)
        return end


@frozen
class PreparedCall:
    """Arguments that passed their check."""

    arguments: dict[str, Any]
    """The JSON object that runs: coerced, defaults not filled in. Not to be changed."""
    text: str
    """Its JSON text."""
    bind: Callable[[ToolContext], Callable[[], Any]]
    """Gives a function without parameters that runs the tool, on a copy of its own of the arguments."""


@frozen
class _Plan:
    """What is found out about a tool once: how it runs, and how its arguments are prepared."""

    kind: ToolKind
    takes_context: bool
    prepare: Callable[[str | Mapping[str, Any]], PreparedCall]


def _schema_of(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ToolDefinitionError(f"parameters: expected a JSON Schema object, got {type(value).__name__}")
    try:
        return freeze_json(value, "parameters")
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(str(error)) from None


@frozen
class Tool:
    """A function that a model may call. Make one with `@tool`, or directly from a JSON Schema.

    `execute(arguments, ctx)` gets the arguments object and the context; it may be an async function, a sync function
    (runs in a worker thread), or an async generator function (streams its output). One that has no second parameter
    gets the arguments alone. Raises `ToolDefinitionError` for what cannot be a tool.
    """

    name: str
    """What the model calls it. Providers take letters, digits, `_` and `-`."""
    description: str
    """What the model is told about it."""
    parameters: JsonObject = field(converter=_schema_of)
    """JSON Schema of the arguments object."""
    execute: Callable[..., Any]
    """What runs; see above."""
    label: str | None = None
    """A name for people; never sent to a model."""
    timeout: float | None = None
    """Longest time of a call, in seconds; None: `Config.tool_timeout`."""
    exclusive: bool = False
    """Whether it never runs beside another call."""
    interruptible: bool = False
    """Whether it only waits for something, so that steering may cut it short."""
    replay: Literal["never", "safe"] = "never"
    """Whether it may run again (`safe`) when a crash left its outcome unknown."""
    _plan: _Plan = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Check the fields and find out how the tool runs."""
        _check_fields(self)
        object.__setattr__(self, "_plan", _plan_of(self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that the tool was made from, as if it had never become a tool."""
        function = self.execute.function if isinstance(self.execute, TypedFunction) else self.execute
        return function(*args, **kwargs)

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return ToolSpec(self.name, self.description, self.parameters, self.label)

    @property
    def kind(self) -> ToolKind:
        """How it runs."""
        return self._plan.kind

    @property
    def takes_context(self) -> bool:
        """Whether it looks at `ctx` (and so may be trusted to stop by itself)."""
        return self._plan.takes_context

    def prepare(self, arguments: str | Mapping[str, Any]) -> PreparedCall:
        """Parse, coerce and validate. Raises `InvalidArguments` with a text that the model can act on.

        Blank text is no arguments. Every problem is named with its path, what was expected and what came.
        """
        return self._plan.prepare(arguments)


def _check_fields(tool: Tool) -> None:
    _check_name(tool.name)
    if not callable(tool.execute):
        raise ToolDefinitionError(f"{tool.name}: execute: expected a function, got {type(tool.execute).__name__}")
    if tool.timeout is not None and not _above_zero(tool.timeout):
        raise ToolDefinitionError(f"{tool.name}: timeout: expected seconds above 0 or None, got {tool.timeout!r}")
    if tool.replay not in ("never", "safe"):
        raise ToolDefinitionError(f"{tool.name}: replay: expected 'never' or 'safe', got {tool.replay!r}")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ToolDefinitionError(f"name: expected a text that is not empty, got {name!r}")


def _above_zero(seconds: Any) -> bool:
    try:
        return bool(seconds > 0)
    except TypeError:  # no number at all: a text, say
        return False


def _plan_of(tool: Tool) -> _Plan:
    if isinstance(tool.execute, TypedFunction):
        return _typed_plan(tool.name, tool.execute)
    try:
        check_arguments_schema(tool.parameters, "parameters")
    except ValueError as error:
        raise ToolDefinitionError(f"{tool.name}: {error}") from None
    return _raw_plan(tool.name, tool.execute, SchemaCheck(tool.name, tool.parameters))


def _typed_plan(name: str, function: TypedFunction) -> _Plan:
    def prepare(given: str | Mapping[str, Any]) -> PreparedCall:
        reading = Reading()
        arguments = _checked(name, given, lambda value: (function.check(value, reading), reading.problems))

        def bind(context: ToolContext) -> Callable[[], Any]:
            return functools.partial(function.call, arguments, reading, context)

        return PreparedCall(arguments, json_text(arguments), bind)

    return _Plan(function.kind, function.context is not None, prepare)


def _raw_plan(name: str, execute: Callable[..., Any], schema: SchemaCheck) -> _Plan:
    context_as = context_parameter(execute)

    def prepare(given: str | Mapping[str, Any]) -> PreparedCall:
        arguments = _checked(name, given, schema.check)

        def bind(context: ToolContext) -> Callable[[], Any]:
            own = thaw_json(arguments)
            if context_as == "second":
                return functools.partial(execute, own, context)
            return functools.partial(execute, own, ctx=context) if context_as else functools.partial(execute, own)

        return PreparedCall(arguments, json_text(arguments), bind)

    return _Plan(kind_of(execute), context_as is not None, prepare)


def _checked(
    name: str,
    given: str | Mapping[str, Any],
    check: Callable[[dict[str, Any]], tuple[dict[str, Any], Problems]],
) -> dict[str, Any]:
    """The arguments that run. Raises `InvalidArguments`."""
    try:
        arguments, problems = check(_arguments_object(name, given))
    except RecursionError:
        raise _invalid(name, "$: nested too deep") from None
    if problems.count:
        raise _invalid(name, problems.text())
    return arguments


def _invalid(name: str, problems: object) -> InvalidArguments:
    return InvalidArguments(f"{name}: invalid arguments\n{problems}")


def _arguments_object(name: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The arguments object of its own that a text or a mapping holds. Raises `InvalidArguments`."""
    if not isinstance(given, str):
        try:
            return plain_copy(given)
        except InvalidArguments as error:
            raise _invalid(name, error) from None
    if not given or given.isspace():
        return {}
    try:
        value = parse_json(given)
    except ValueError as error:
        raise _invalid(name, f"$: expected a JSON object, got text that is not JSON ({error})") from None
    if type(value) is not dict:
        raise _invalid(name, f"$: expected a JSON object, got {json_type(value)}")
    return value


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    label: str | None = None,
    timeout: float | None = None,
    exclusive: bool = False,
    interruptible: bool = False,
    replay: Literal["never", "safe"] = "never",
    parameters: JsonObject | None = None,
) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    label: str | None = None,
    timeout: float | None = None,
    exclusive: bool = False,
    interruptible: bool = False,
    replay: Literal["never", "safe"] = "never",
    parameters: JsonObject | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    label: str | None = None,
    timeout: float | None = None,
    exclusive: bool = False,
    interruptible: bool = False,
    replay: Literal["never", "safe"] = "never",
    parameters: JsonObject | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a `Tool` from a function: `@tool`, `@tool(name="…", timeout=30)` or `tool(instance.method)`.

    The schema comes from the signature, the descriptions of the parameters from `Annotated[…, "text"]` or the
    docstring, the tool's description from the docstring. A parameter annotated `ToolContext`, or named `ctx` without
    annotation, gets the context and is not in the schema. With `parameters` (a JSON Schema) the signature is not read:
    the function gets the arguments object as its first argument, and the context as its second if it has one.

    Where a parameter is a class of yours, an instance is made twice: once to see whether the class takes the arguments
    (what it raises is told to the model), once for the call.

    The other settings are fields of the `Tool`. Raises `ToolDefinitionError`, naming function and parameter, for a signature
    that JSON arguments cannot fill.
    """
    settings = {
        "label": label, "timeout": timeout, "exclusive": exclusive, "interruptible": interruptible, "replay": replay,
    }  # fmt: skip
    make = functools.partial(_make, name, description, parameters, settings)
    return make if function is None else make(function)


def _make(
    name: str | None,
    description: str | None,
    parameters: JsonObject | None,
    settings: Mapping[str, Any],
    function: Callable[..., Any],
) -> Tool:
    """What `tool` makes; `settings` are further fields of `Tool`, by name."""
    _check_function(function)
    if parameters is not None:
        described = docstring_of(function).description if description is None else description
        return Tool(_tool_name(name, function), described, parameters, function, **settings)
    typed = read_function(function, ToolContext)
    described = typed.description if description is None else description
    return Tool(_tool_name(name, function), described, typed.schema, typed, **settings)


def _check_function(function: object) -> None:
    if isinstance(function, Tool):
        raise ToolDefinitionError(f"tool: expected a function, got the Tool {function.name!r}, which is one already")
    if not callable(function):
        hint = f"; a name is given as @tool(name={function!r})" if isinstance(function, str) else ""
        raise ToolDefinitionError(f"tool: expected a function, got {type(function).__name__}{hint}")


def _tool_name(name: str | None, function: Callable[..., Any]) -> str:
    found = display_name(function) if name is None else name
    _check_name(found)
    if not re.fullmatch(_NAME, found):
        raise ToolDefinitionError(
            f"{found}: expected a name of the letters A to Z, digits, `_` and `-`, as providers take it; pass name="
        )
    return found
