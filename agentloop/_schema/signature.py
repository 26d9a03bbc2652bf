"""A function as a tool sees it: how it runs, which parameters a model fills in, and the call with real values."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from agentloop._frozen import frozen
from agentloop._schema.composites import Field, Object
from agentloop._schema.docstring import Docstring, read_docstring
from agentloop._schema.shape import JsonSchema, Reading, Refused
from agentloop._schema.types import TypeReader, described
from agentloop._values import freeze_json, plain_text, thaw_json
from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.messages import json_type

ToolKind: TypeAlias = Literal["async", "sync", "stream"]
"""How a tool runs: awaited, in a worker thread, or as an async generator whose pieces are its output."""

_NOT_FOR_TOOLS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*{} cannot be described to a model; take a list",
    inspect.Parameter.VAR_KEYWORD: "**{} cannot be described to a model; take a dict or name the parameters",
    inspect.Parameter.POSITIONAL_ONLY: "{} is positional-only; arguments of a tool are named",
}
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@frozen(eq=False)
class TypedFunction:
    """A function whose parameters are a tool's. `context` names the parameter that takes the context.

    Called as every `Tool.execute` is, with the arguments object and the context, it checks and converts them first.
    """

    function: Callable[..., Any]
    name: str
    description: str
    kind: ToolKind
    parameters: Object
    schema: JsonSchema
    context: str | None
    fallible: bool
    """Whether a class of the caller's may refuse arguments that fit the schema."""

    def __call__(self, arguments: Mapping[str, Any], context: Any = None) -> Any:
        """Check, convert and call. Raises `InvalidArguments`."""
        reading = Reading()
        checked = self.check(plain_copy(arguments), reading)
        if reading.problems.count:
            raise InvalidArguments(f"{self.name}: invalid arguments\n{reading.problems.text()}")
        return self.call(checked, reading, context)

    def check(self, arguments: dict[str, Any], reading: Reading) -> dict[str, Any]:
        """The arguments to use, coerced; what does not fit is noted in the reading."""
        checked: dict[str, Any] = self.parameters.check(arguments, None, reading)
        if self.fallible and not reading.problems.count:
            try:
                self.parameters.build(checked, reading)
            except Refused as refusal:
                reading.problems.add(refusal.path, refusal.text)
        return checked

    def call(self, arguments: Mapping[str, Any], reading: Reading, context: Any) -> Any:
        """Call the function with Python values made from checked arguments."""
        values = self.parameters.build(arguments, reading)
        if self.context is not None:
            values[self.context] = context
        return self.function(**values)


def plain_copy(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A plain JSON object of its own. Raises `InvalidArguments` for what is none."""
    if not isinstance(arguments, Mapping):
        raise InvalidArguments(f"$: expected a JSON object, got {json_type(arguments)}")
    try:
        return thaw_json(freeze_json(arguments))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise InvalidArguments(str(error)) from None


def inner_function(function: Any) -> Any:
    """The plain function inside partials, bound methods and objects with `__call__`."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType | staticmethod):
            function = function.__func__
        elif isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
            return function
        elif isinstance(getattr(type(function), "__call__", None), types.FunctionType):  # noqa: B004
            return type(function).__call__
        else:
            return function


def kind_of(function: Callable[..., Any]) -> ToolKind:
    """How a function runs. Raises `ToolDefinitionError` for a sync generator function."""
    inner = inner_function(function)
    if inspect.isasyncgenfunction(inner):
        return "stream"
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(function):
        return "async"
    if inspect.isgeneratorfunction(inner):
        raise ToolDefinitionError(f"{display_name(function)}: a sync generator cannot stream; use `async def`")
    return "sync"


def display_name(function: Any) -> str:
    """A name for errors and, where none is given, for the tool."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def read_function(function: Callable[..., Any], context_type: type) -> TypedFunction:
    """Read a function's signature and docstring. Raises `ToolDefinitionError`, naming function and parameter."""
    name = display_name(function)
    kind = kind_of(function)
    reader = TypeReader(name, lambda: _names_around(inner_function(function)))
    docstring = docstring_of(function)
    fields: dict[str, Field] = {}
    context: str | None = None
    for parameter in _parameters(function, name):
        with reader.at(f"parameter {parameter.name!r}"):
            annotation = _annotation(parameter, inner_function(function), reader, context_type)
            if _is_context(parameter, annotation, context_type):
                if context is not None:
                    raise reader.refuse(f"a second context; {context!r} is one already")
                context = parameter.name
            else:
                fields[parameter.name] = _field(parameter, annotation, reader, docstring)
    parameters = Object(fields)
    schema = parameters.schema()
    definitions = reader.definitions()
    if definitions:
        schema["$defs"] = definitions
    return TypedFunction(function, name, docstring.description, kind, parameters, schema, context, parameters.fallible)


def docstring_of(function: Any) -> Docstring:
    """What is written about a function, or about an object's `__call__`; of a partial, about what it fills."""
    while isinstance(function, functools.partial):
        function = function.func
    text = function.__doc__
    if not isinstance(function, types.FunctionType | types.MethodType):
        text = inner_function(function).__doc__ or text  # an object with `__call__`
    return read_docstring(plain_text(text))


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ToolDefinitionError(f"{name}: its signature cannot be read ({error}); pass parameters=") from error
    filled = function.keywords if isinstance(function, functools.partial) else {}
    parameters = [parameter for key, parameter in signature.parameters.items() if key not in filled]
    for index, parameter in enumerate(parameters):
        refusal = _NOT_FOR_TOOLS.get(parameter.kind)
        if refusal is not None:
            reason = refusal.format(parameter.name)
        elif index == 0 and parameter.name in ("self", "cls") and parameter.annotation is inspect.Parameter.empty:
            reason = "a method of no object; make the tool from the bound method, tool(instance.method)"
        else:
            continue
        raise ToolDefinitionError(f"{name}: parameter {parameter.name!r}: {reason}")
    return parameters


def _field(parameter: inspect.Parameter, annotation: Any, reader: TypeReader, docstring: Docstring) -> Field:
    required = parameter.default is inspect.Parameter.empty
    return reader.field(annotation, parameter.default, required, docstring.parameters.get(parameter.name))


def _annotation(parameter: inspect.Parameter, function: Any, reader: TypeReader, context_type: type) -> Any:
    """The parameter's annotation with its text evaluated, forward references inside it included."""
    if parameter.annotation is inspect.Parameter.empty:
        return parameter.annotation
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    function = inspect.unwrap(function)
    names = getattr(function, "__globals__", {})
    local_names = dict(reader.local_names()) if "<locals>" in getattr(function, "__qualname__", "") else {}
    if context_type.__name__ not in names:  # it may be imported for type checkers only
        local_names.setdefault(context_type.__name__, context_type)
    try:
        return typing.get_type_hints(holder, names, local_names, include_extras=True)[parameter.name]
    except Exception as error:  # evaluating an annotation runs the caller's text
        raise reader.refuse(
            f"the annotation {parameter.annotation!r} cannot be resolved ({error}); define its types at module level, "
            "or pass parameters="
        ) from error


def _is_context(parameter: inspect.Parameter, annotation: Any, context_type: type) -> bool:
    if annotation is inspect.Parameter.empty:
        return parameter.name == "ctx"
    annotation = described(annotation)[0]
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    return any(isinstance(member, type) and issubclass(member, context_type) for member in members)


def context_parameter(execute: Callable[..., Any]) -> Literal["second", "keyword"] | None:
    """How an `execute(arguments, ctx)` takes its context: as second argument, as the keyword `ctx`, or not at all.

    A second parameter with a default is taken for the context only if its name or annotation says so.
    """
    try:
        parameters = inspect.signature(execute).parameters.values()
    except (TypeError, ValueError, NameError):  # a built-in: it gets what every tool may get
        return "second"
    by_position = [parameter for parameter in parameters if parameter.kind in _BY_POSITION]
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return "second"
    if not by_position:
        raise ToolDefinitionError(f"{display_name(execute)}: expected a function of (arguments, ctx) or (arguments)")
    if len(by_position) > 1:
        second = by_position[1]
        says_so = second.name in ("ctx", "context") or "ToolContext" in str(second.annotation)
        if second.default is inspect.Parameter.empty or says_so:
            return "second"
    keyword = any(p.name == "ctx" and p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters)
    return "keyword" if keyword else None


def _names_around(function: Any) -> dict[str, Any]:
    """The local names that a function's annotations may use: what it closes over, and the frames that make the tool."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe()
    module = getattr(function, "__globals__", None)
    frames = []
    while frame is not None:
        if frame.f_globals is module and frame.f_locals is not module:
            frames.append(frame)
        frame = frame.f_back
    for outer in reversed(frames):  # inner frames win
        names.update(outer.f_locals)
    if isinstance(function, types.FunctionType) and function.__closure__:
        for key, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            try:
                names[key] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    return names
