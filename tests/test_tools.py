"""`@tool` and `Tool`: what is offered to a model, what is made of the arguments that it sends, and how the tool runs."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any, Optional

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.abort import AbortSignal
from agentloop.errors import InvalidArguments, ToolDefinitionError
from agentloop.events import AgentEnd, AgentStart, ChildEvent, SubagentStarted
from agentloop.messages import Text, ToolResult
from agentloop.tools import Tool, ToolContext, tool

if TYPE_CHECKING:
    from agentloop.tools import ToolContext as Context  # seen by type checkers only

pytestmark = pytest.mark.anyio


class Sink:
    """Collects what a tool reports."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def progress(self, result: ToolResult) -> None:
        self.said.append(result)

    async def output(self, text: str) -> None:
        self.said.append(text)

    async def child(self, event: Any) -> None:
        self.said.append(event)

    async def close(self, close: Any) -> None:
        await close()

    def closing_bound(self, seconds: float) -> None:
        self.said.append(seconds)


def context(sink: Sink | None = None) -> ToolContext:
    return ToolContext("c1", "t", AbortSignal(), sink or Sink())


def refusal(made: Tool, arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        made.prepare(arguments)
    return str(caught.value)


@attrs.frozen
class Range:
    low: int
    high: int = 9


@tool
async def find(query: Annotated[str, "What to look for."], limit: int = 10, range: Range | None = None) -> str:
    """Find things.

    Looks everywhere.

    Args:
        query: Not used, the annotation says it.
        limit: At most this many.

    Returns:
        The things.
    """
    return f"{query} {limit} {range}"


# ---------------------------------------------------------------- what is offered


def test_name_description_and_schema_come_from_the_function() -> None:
    """The sections of the docstring are not in the description; the annotation's text wins over the docstring's."""
    assert find.name == "find"
    assert find.description == "Find things.\n\nLooks everywhere."
    assert find.spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "description": "At most this many.", "default": 10},
            "range": {"anyOf": [{"$ref": "#/$defs/Range"}, {"type": "null"}]},
        },
        "required": ["query"],
        "additionalProperties": False,
        "$defs": {
            "Range": {
                "type": "object",
                "properties": {"low": {"type": "integer"}, "high": {"type": "integer", "default": 9}},
                "required": ["low"],
                "additionalProperties": False,
            }
        },
    }
    assert list(find.parameters["properties"]) == ["query", "limit", "range"]


def test_options_of_the_decorator() -> None:
    """Every field can be given, and wins over what the function says."""

    @tool(
        name="other",
        description="",
        label="Other",
        timeout=2.5,
        exclusive=True,
        interruptible=True,
        replay="safe",
    )
    def f() -> None:
        """Not this."""

    assert (f.name, f.description, f.label, f.timeout) == ("other", "", "Other", 2.5)
    assert (f.exclusive, f.interruptible, f.replay) == (True, True, "safe")
    assert f.spec.label == "Other"
    assert f.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    direct = tool(f.execute.function, name="direct")  # type: ignore[attr-defined]
    assert (direct.name, direct.description) == ("direct", "Not this.")


def test_the_decorator_names_its_options() -> None:
    """`help(tool)` shows them, with the defaults of the fields; one that does not exist is an error where it is written."""
    options = inspect.signature(tool).parameters
    for name in ("label", "timeout", "exclusive", "interruptible", "replay"):
        assert options[name].default == getattr(attrs.fields(Tool), name).default
    with pytest.raises(TypeError, match=r"^tool\(\) got an unexpected keyword argument 'timout'"):
        tool(timout=3)  # type: ignore[call-overload]


class Store:
    """A place."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def keep(self, number: int) -> int:
        """Keep a number."""
        self.kept.append(number)
        return len(self.kept)

    @staticmethod
    async def fixed(number: int) -> int:
        return number


class Caller:
    """Class text."""

    async def __call__(self, number: int, ctx: ToolContext) -> int:
        """Call text."""
        return number


class Streamer:
    async def __call__(self) -> AsyncIterator[str]:
        yield "a"


async def pieces(count: int) -> AsyncIterator[str]:
    """Stream pieces."""
    for number in range(count):
        yield str(number)


async def scaled(unit: str, number: float, ctx: ToolContext, factor: float = 2) -> str:
    """Scale."""
    return f"{number * factor} {unit}"


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "name", "kind", "takes_context", "properties"),
    [
        (Store().keep, "keep", "sync", False, ["number"]),
        (Store.fixed, "fixed", "async", False, ["number"]),
        (Caller(), "Caller", "async", True, ["number"]),
        (Streamer(), "Streamer", "stream", False, []),
        (pieces, "pieces", "stream", False, ["count"]),
        (functools.partial(pieces, 3), "pieces", "stream", False, []),
        (scaled, "scaled", "async", True, ["unit", "number", "factor"]),
        (functools.partial(scaled, "m"), "scaled", "async", True, ["number", "factor"]),
        (functools.partial(scaled, unit="m", factor=3), "scaled", "async", True, ["number"]),
        (functools.partial(functools.partial(Store().keep)), "keep", "sync", False, ["number"]),
        (wrapped(scaled), "scaled", "async", True, ["unit", "number", "factor"]),
    ],
)
def test_what_may_be_a_tool(function: Any, name: str, kind: str, takes_context: bool, properties: list[str]) -> None:
    """Functions, bound methods, partials (what they fill in is not asked for), objects with `__call__`, wrappers."""
    made = tool(function)
    assert (made.name, made.kind, made.takes_context) == (name, kind, takes_context)
    assert list(made.parameters["properties"]) == properties


def test_docstrings_of_objects_and_partials() -> None:
    """The text is that of the code that runs."""
    assert tool(Caller()).description == "Call text."
    assert tool(functools.partial(pieces, 3)).description == "Stream pieces."
    assert tool(Store().keep).description == "Keep a number."


class Undescribed:
    """An object that has no text to say of itself."""

    __doc__ = 5  # type: ignore[assignment]

    def __call__(self, x: int) -> None: ...


def both(arguments: dict[str, Any], unit: str) -> None:
    """Take both."""


@pytest.mark.parametrize(
    ("function", "description"),
    [(Caller(), "Call text."), (functools.partial(both, unit="m"), "Take both."), (Undescribed(), "")],
)
def test_docstrings_beside_a_schema_of_ones_own(function: Any, description: str) -> None:
    """With `parameters=`, the text is that of the code that runs as well, not what `functools` says of its partials."""
    assert tool(function, name="t", parameters={"type": "object"}).description == description


def test_the_context_parameter() -> None:
    """By annotation, also in a union, as text, or imported for type checkers only; by the name `ctx` without annotation."""

    def a(x: int, somewhere: ToolContext) -> None: ...
    def b(ctx, x: int) -> None: ...  # type: ignore[no-untyped-def]
    def c(x: int, ctx: Optional[ToolContext] = None) -> None: ...  # noqa: UP045
    def d(x: int, *, ctx: Annotated[ToolContext, "text"]) -> None: ...
    def plain(x: int, context: int) -> None: ...
    def named(x: int, ctx: str) -> None: ...

    for function in (a, b, c, d):
        made = tool(function)
        assert made.takes_context
        assert list(made.parameters["properties"]) == ["x"]
    assert not tool(plain).takes_context
    assert list(tool(named).parameters["properties"]) == ["x", "ctx"]

    names: dict[str, Any] = {"tool": tool}
    exec("@tool\nasync def f(x: int, c: 'ToolContext'): ...", names)
    assert names["f"].takes_context


def test_names_that_only_type_checkers_see_are_named_in_the_error() -> None:
    """An alias of the context that does not exist at run time cannot be told from any other missing name."""

    def f(ctx: Context) -> None: ...

    with pytest.raises(ToolDefinitionError, match="f: parameter 'ctx': the annotation 'Context' cannot be resolved"):
        tool(f)


def var_positional(*names: str) -> None: ...
def var_keyword(**names: str) -> None: ...
def positional_only(name: str, /) -> None: ...
def two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (var_positional, r"var_positional: parameter 'names': \*names cannot be described to a model"),
        (var_keyword, r"var_keyword: parameter 'names': \*\*names cannot be described to a model"),
        (positional_only, r"positional_only: parameter 'name': name is positional-only"),
        (two_contexts, r"two_contexts: parameter 'b': a second context; 'a' is one already"),
        (Store.keep, r"keep: parameter 'self': a method of no object"),
        (generator, r"generator: a sync generator cannot stream"),
        (lambda: None, r"<lambda>: expected a name of the letters"),
        (5, r"tool: expected a function, got int"),
        (print, r"print: parameter '(args|objects)'"),
    ],
)
def test_what_cannot_be_a_tool(function: Any, error: str) -> None:
    """Refused when it is defined, with the function, the parameter and the reason."""
    with pytest.raises(ToolDefinitionError, match=error):
        tool(function)


CYCLIC: dict[str, Any] = {}
CYCLIC["not"] = CYCLIC


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, "name: expected a text that is not empty"),
        ({"parameters": []}, "parameters: expected a JSON Schema object, got list"),
        ({"parameters": {"default": float("nan")}}, "parameters.default: expected a JSON number"),
        ({"parameters": CYCLIC}, "^parameters.not.not.{1,90}: expected at most 200 levels of nesting, got more"),
        ({"parameters": {"type": "objekt"}}, 't: parameters.type: expected one of .*, got a string "objekt"'),
        (
            {"parameters": {"properties": {"a": 5}}},
            "t: parameters.properties.a: expected a schema .*, got an integer 5",
        ),
        ({"execute": 5}, "t: execute: expected a function, got int"),
        ({"execute": lambda: None}, "expected a function of \\(arguments, ctx\\)"),
        ({"timeout": 0}, "timeout: expected seconds above 0"),
        ({"timeout": "5"}, "t: timeout: expected seconds above 0 or None, got '5'"),
        ({"replay": "always"}, "replay: expected 'never' or 'safe'"),
    ],
)
def test_fields_that_make_no_tool(fields: dict[str, Any], error: str) -> None:
    """A `Tool` that could not work cannot be made."""
    good: dict[str, Any] = {"name": "t", "description": "", "parameters": {}, "execute": lambda arguments: None}
    with pytest.raises(ToolDefinitionError, match=error):
        Tool(**{**good, **fields})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("search", "tool: expected a function, got str; a name is given as @tool(name='search')"),
        (3, "tool: expected a function, got int"),
        (tool(name="one")(lambda: None), "tool: expected a function, got the Tool 'one', which is one already"),
    ],
)
def test_what_is_no_function(given: Any, error: str) -> None:
    """`@tool("name")` and a tool made twice are told what to write, not what their signature is."""
    with pytest.raises(ToolDefinitionError, match=f"^{re.escape(error)}$"):
        tool(given)


@pytest.mark.parametrize("name", [3, ""])
def test_what_is_no_name(name: Any) -> None:
    """It is called by what it is: there is no name to call it by."""
    with pytest.raises(ToolDefinitionError, match=f"^name: expected a text that is not empty, got {name!r}$"):
        tool(name=name)(lambda: None)


# ---------------------------------------------------------------- what is made of arguments


async def test_a_call_from_text_to_values() -> None:
    """The arguments that run are coerced JSON; the function gets instances; defaults are the function's own."""
    prepared = find.prepare('{"query": "x", "range": "{\\"low\\": \\"3\\"}"}')
    assert prepared.arguments == {"query": "x", "range": {"low": 3}}
    assert prepared.text == '{"query":"x","range":{"low":3}}'
    assert await prepared.bind(context())() == "x 10 Range(low=3, high=9)"


async def test_each_call_has_its_own_copy() -> None:
    """A tool that changes its arguments changes neither a second run nor what was prepared."""

    @tool
    async def take(items: list[Any], more: dict[str, Any]) -> Any:
        items.append("changed")
        items[0]["a"] = "changed"
        more.clear()
        return items, more

    text = '{"items":[{"a":1}],"more":{"b":2}}'
    prepared = take.prepare(text)
    first = await prepared.bind(context())()
    second = await prepared.bind(context())()
    assert first == second == ([{"a": "changed"}, "changed"], {})
    assert prepared.arguments == json.loads(text)
    raw = tool(lambda arguments: arguments.pop("a"), name="raw", parameters={"type": "object"}).prepare({"a": 1})
    assert [raw.bind(context())(), raw.bind(context())()] == [1, 1]


async def test_the_three_kinds_run() -> None:
    """Awaited, called, iterated; the context goes where the function asks for it."""
    assert await tool(scaled).prepare({"unit": "m", "number": 2}).bind(context())() == "4.0 m"
    assert tool(Store().keep).prepare({"number": 5}).bind(context())() == 1
    assert [piece async for piece in tool(pieces).prepare('{"count": 2}').bind(context())()] == ["0", "1"]
    seen = context()

    @tool
    async def who(ctx: ToolContext) -> Any:
        return ctx

    assert await who.prepare("").bind(seen)() is seen


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "{}", " {} ", {}])
def test_blank_text_is_no_arguments(blank: Any) -> None:
    """Models send all of these for a tool without parameters."""

    @tool
    def noarg() -> str:
        return "ok"

    prepared = noarg.prepare(blank)
    assert (prepared.arguments, prepared.text) == ({}, "{}")
    assert prepared.bind(context())() == "ok"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("null", "$: expected a JSON object, got null"),
        ("5", "$: expected a JSON object, got a number"),
        ('"{}"', "$: expected a JSON object, got a string"),
        ("[1]", "$: expected a JSON object, got an array"),
        ("true", "$: expected a JSON object, got a boolean"),
        (
            '{"a": 1} junk',
            "$: expected a JSON object, got text that is not JSON (Extra data: line 1 column 10 (char 9))",
        ),
        ('{"a": 1', "got text that is not JSON"),
        ('{"a": NaN}', "got text that is not JSON (NaN is no JSON number)"),
        ('{"a":' + "[" * 5000, "got text that is not JSON"),
        ('{"a":' + "[" * 300 + "]" * 300 + "}", "nested deeper than 200 levels"),
        ([1], "$: expected a JSON object, got an array"),
        ({"a": float("inf")}, "$.a: expected a JSON number, got inf"),
        ({5: 1}, "$: expected string keys, got 5 (int)"),
        ({"a": object()}, "$.a: expected a JSON value"),
        (None, "$: expected a JSON object, got null"),
    ],
)
@pytest.mark.parametrize("parameters", [None, {"type": "object"}])
def test_what_is_no_object_is_an_error_that_says_so(parameters: Any, arguments: Any, reason: str) -> None:
    """It names the tool and the reason, for typed and raw tools alike."""

    def noarg(arguments: Any = None) -> str:
        return "ok"

    text = refusal(tool(noarg, parameters=parameters), arguments)
    assert text.startswith("noarg: invalid arguments\n$")
    assert reason in text


def test_all_problems_in_one_error() -> None:
    """Path, expected, got, one line each."""
    assert refusal(find, '{"limit": "many", "range": {"low": 1.5}, "colour": "red"}').splitlines() == [
        "find: invalid arguments",
        '$.limit: expected an integer, got a string "many"',
        "$.range.low: expected an integer, got a number 1.5",
        "$.colour: unknown field, expected one of query, limit, range",
        "$.query: missing, expected a string",
    ]


def test_a_class_that_refuses_is_the_models_error() -> None:
    """What `__post_init__` or a validator raises comes before the tool runs, with its place; bare exceptions by name."""

    @attrs.frozen
    class Even:
        n: int = attrs.field()

        @n.validator
        def _check(self, attribute: Any, value: int) -> None:
            if value % 2:
                raise ValueError("n must be even")
            if value > 10:
                raise RuntimeError

    def take(numbers: list[Even]) -> str:
        return str(numbers)

    assert refusal(tool(take), '{"numbers": [{"n": 2}, {"n": 3}]}').endswith(
        "$.numbers[1]: refused by Even: n must be even"
    )
    assert refusal(tool(take), '{"numbers": [{"n": 12}]}').endswith("$.numbers[0]: refused by Even: RuntimeError")


def test_items_that_no_set_can_hold() -> None:
    """What only shows when the set is made is the model's error, too."""

    def take(things: set[Any]) -> str:
        return str(things)

    assert tool(take).prepare('{"things": [1, 1.0]}').bind(context())() == "{1}"
    refused = refusal(tool(take), '{"things": [1, [2]]}')
    assert "$.things: refused: " in refused
    assert "unhashable type: 'list'" in refused  # newer Pythons put words around it


def test_texts_of_errors_are_bounded() -> None:
    """Megabytes of wrong values make a short error."""

    def take(numbers: list[int], name: bool) -> None: ...

    huge = json.dumps(
        {"numbers": ["x" * 10_000] * 500, "name": "y" * 1_000_000, "k" * 10_000: 1, "n" * 5000: int("9" * 4000)}
    )
    for made in (tool(take), tool(lambda a: a, name="raw", parameters=tool(take).parameters)):
        text = refusal(made, huge)
        assert len(text) < 8_000
        assert "more" in text or made.name == "raw"


@given(st.text(max_size=40) | st.text(alphabet='{}[]":,1ae\\u dnultr', max_size=40))
def test_no_text_does_anything_but_pass_or_be_refused(text: str) -> None:
    """Whatever a model sends, the answer is a prepared call or `InvalidArguments`."""
    try:
        prepared = find.prepare(text)
    except InvalidArguments as error:
        refused = str(error)
    else:
        refused = ""
        assert set(prepared.arguments) <= {"query", "limit", "range"}
    assert refused == "" or refused.startswith("find: invalid arguments\n$")


def test_big_integers_are_exact() -> None:
    """Ids of more than 53 or 64 bits arrive digit by digit, in the arguments and in their text."""

    def take(id: int, any: Any) -> tuple[int, Any]:
        return id, any

    prepared = tool(take).prepare('{"id": 12345678901234567890123, "any": [9007199254740993]}')
    assert prepared.bind(context())() == (12345678901234567890123, [9007199254740993])
    assert prepared.text == '{"id":12345678901234567890123,"any":[9007199254740993]}'


def test_lone_surrogates_never_reach_a_tool() -> None:
    """Neither as escapes nor as raw text, in text or mapping: what runs can be written as UTF-8."""

    def take(s: str) -> str:
        return s

    for arguments in ('{"s": "\\udc00"}', '{"s": "\udc00"}', {"s": "\udc00"}):
        prepared = tool(take).prepare(arguments)
        assert prepared.bind(context())() == "\ufffd"
        assert prepared.text.encode() == '{"s":"\ufffd"}'.encode()


# ---------------------------------------------------------------- raw tools


@pytest.mark.parametrize(
    ("execute", "takes_context", "expected"),
    [
        (lambda arguments: arguments, False, {"a": 1}),
        (lambda arguments, ctx: (arguments, ctx.tool_call_id), True, ({"a": 1}, "c1")),
        (lambda arguments, ctx=None: (arguments, ctx.tool_call_id), True, ({"a": 1}, "c1")),
        (lambda arguments, *, ctx: (arguments, ctx.tool_call_id), True, ({"a": 1}, "c1")),
        (lambda *both: (both[0], both[1].tool_call_id), True, ({"a": 1}, "c1")),
        (lambda arguments, limit=5: (arguments, limit), False, ({"a": 1}, 5)),
    ],
)
def test_a_tool_made_directly(execute: Any, takes_context: bool, expected: Any) -> None:
    """`execute` gets the arguments as one dict, and the context where it has room for it."""
    made = Tool("t", "Text.", {"type": "object"}, execute)
    assert (made.takes_context, made.kind) == (takes_context, "sync")
    assert made.prepare('{"a":1}').bind(context())() == expected


async def test_a_raw_schema_on_a_function() -> None:
    """The signature is not read; docstring and name are."""

    @tool(parameters={"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]})
    async def echo(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Say it again.

        Args:
            arguments: not shown
        """
        return arguments

    assert (echo.name, echo.description, echo.kind, echo.takes_context) == ("echo", "Say it again.", "async", True)
    prepared = echo.prepare('{"a": "5", "b": 1}')
    assert prepared.text == '{"a":5,"b":1}'
    assert await prepared.bind(context())() == {"a": 5, "b": 1}
    assert refusal(echo, {"b": 99}).endswith("$.a: missing, expected a value")


# ---------------------------------------------------------------- as a value


async def test_a_tool_can_be_called_like_its_function() -> None:
    """For unit tests: the arguments are Python's, nothing is checked."""
    assert await find("x", range=Range(1)) == "x 10 Range(low=1, high=9)"
    assert tool(Store().keep)(3) == 1
    assert Tool("t", "", {}, lambda arguments: arguments)({"a": 1}) == {"a": 1}


async def test_execute_takes_arguments_and_context_for_every_tool() -> None:
    """So a tool can be wrapped without knowing how it was made; checks happen then, too."""
    assert await find.execute({"query": "x", "range": {"low": "3"}}, None) == "x 10 Range(low=3, high=9)"
    with pytest.raises(InvalidArguments, match=r"find: invalid arguments\n\$.query: missing"):
        find.execute({}, None)

    async def louder(arguments: dict[str, Any], ctx: ToolContext) -> str:
        return (await find.execute(arguments, ctx)).upper()

    changed = attrs.evolve(find, name="louder", execute=louder)
    assert await changed.prepare('{"query": "x", "limit": "3"}').bind(context())() == "X 3 NONE"
    assert refusal(changed, "{}") == "louder: invalid arguments\n$.query: missing, expected a value"
    assert refusal(attrs.evolve(find, name="renamed"), "{}").startswith("renamed: invalid arguments")


def test_a_tool_is_a_value() -> None:
    """Equal to itself and its copies, hashable, read-only, and its caller's schema is not its own."""
    schema = {"type": "object", "properties": {"a": {}}}
    made = Tool("t", "", schema, print)
    before = copy.deepcopy(schema)
    schema["properties"]["b"] = {}  # type: ignore[index]
    assert made.parameters == before
    assert made == attrs.evolve(made)
    assert hash(made) == hash(attrs.evolve(made))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.name = "u"  # type: ignore[misc]


async def test_what_a_context_reports() -> None:
    """Progress becomes a result of blocks; output is passed on."""
    sink = Sink()
    ctx = context(sink)
    ctx.progress("half")
    ctx.progress([Text("a"), "b"])
    ctx.progress(ToolResult("done", details={"n": 1}))
    await ctx.output("piece")
    assert sink.said == [
        ToolResult("half"), ToolResult((Text("a"), Text("b"))), ToolResult("done", details={"n": 1}), "piece",
    ]  # fmt: skip


async def test_a_nested_run_is_forwarded_with_its_origin() -> None:
    """First who starts, then each event under the session's name, deeper ones below it; the nested end comes back."""
    sink = Sink()
    ends = [AgentEnd((), "completed"), AgentEnd((), "fatal", "max_turns", "text")]

    async def events() -> AsyncIterator[Any]:
        yield AgentStart()
        yield ChildEvent(("deeper",), ends[1])
        yield ends[0]

    end = await context(sink).nested(events(), "child", meta={"a": 1}, closing_bound=2.0)
    assert end is ends[0]
    assert sink.said == [
        2.0,
        SubagentStarted("child", "c1", {"a": 1}),
        ChildEvent(("child",), AgentStart()),
        ChildEvent(("child", "deeper"), ends[1]),
        ChildEvent(("child",), ends[0]),
    ]


async def test_a_nested_run_is_closed_when_its_tool_is_stopped() -> None:
    """Also when the stop finds the tool while it waits for room: the clean-up of the nested run is awaited."""
    closed = []

    class Full(Sink):
        async def child(self, event: Any) -> None:
            if isinstance(event, ChildEvent):
                scope.cancel()
            await anyio.lowlevel.checkpoint()

    async def events() -> AsyncIterator[Any]:
        try:
            yield AgentStart()
            yield AgentStart()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            closed.append(True)

    with anyio.CancelScope() as scope:
        await context(Full()).nested(events(), "child")
    assert scope.cancelled_caught
    assert closed == [True]


def test_importing_tools_is_light() -> None:
    """No cattrs, no validator library, nothing optional is loaded before a raw schema is used."""
    source = (
        "import agentloop.tools, sys; "
        "print([name for name in ('cattrs', 'jsonschema', 'jsonschema_rs', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
