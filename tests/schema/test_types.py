"""From annotations to JSON Schema: every type that a tool may have, and the refusal of every other."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import pathlib
import sys
import typing
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict, TypeVar

import attrs
import pytest

from agentloop._schema.types import TypeReader
from agentloop.errors import ToolDefinitionError
from agentloop.tools import ToolContext, tool

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Range:
    """From low to high.

    Attributes:
        low: The lower end.
    """

    low: int
    _high: Annotated[int, "The upper end."] = 9
    width: int = attrs.field(init=False, default=0)


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)
    parent: Node | None = None


class Base(TypedDict):
    always: str


class Options(Base, total=False):
    sometimes: int
    must: Required[bool]


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Pair(Generic[T]):
    pass


@attrs.frozen
class Box(Generic[T]):
    item: T


UserId = NewType("UserId", int)


def schema_of(annotation: Any) -> Any:
    return TypeReader("f", dict).shape(annotation).schema()


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (collections.abc.Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (typing.List[int], {"type": "array", "items": {"type": "integer"}}),  # noqa: UP006
        (typing.Sequence, {"type": "array"}),
        (typing.Tuple, {"type": "array"}),  # noqa: UP006
        (typing.Dict, {"type": "object"}),  # noqa: UP006
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (frozenset[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (tuple[()], {"type": "array", "maxItems": 0}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (collections.abc.Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (typing.Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (typing.Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}),
        (Literal["a", 1, True, None], {"enum": ["a", 1, True, None]}),
        (Literal[Color.BLUE], {"type": "string", "enum": ["blue"]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (pathlib.Path, {"type": "string"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (UserId, {"type": "integer"}),
        (list[Annotated[str, "a tag", 5]], {"type": "array", "items": {"type": "string", "description": "a tag"}}),
        (Annotated[int, object()], {"type": "integer"}),
    ],
)
def test_schema_of_a_type(annotation: Any, schema: Any) -> None:
    """Each type has one schema: order kept, no titles, nothing that says nothing."""
    assert schema_of(annotation) == schema
    assert list(map(str, schema_of(annotation))) == list(schema)


@pytest.mark.parametrize("module", [None, property(str), "pathlib.more"])
def test_a_class_may_say_anything_of_its_module(module: Any) -> None:
    """Classes that are made by code need not have a name there."""
    made = dataclasses.make_dataclass("Made", [("n", int)])
    made.__module__ = module
    assert schema_of(made) == {"$ref": "#/$defs/Made"}


def test_a_decimal_is_text_with_a_pattern() -> None:
    """Decimals are exact, so they are not JSON numbers."""
    assert schema_of(decimal.Decimal)["type"] == "string"


def test_a_docstring_that_is_no_text_says_nothing() -> None:
    """A class may say anything of itself; from Python 3.15 on dataclasses leaves an object that makes the text."""

    @dataclasses.dataclass
    class Odd:
        a: int

    Odd.__doc__ = 5  # type: ignore[assignment]

    def f(odd: Odd) -> None: ...

    assert "description" not in tool(f).parameters["$defs"]["Odd"]


def test_named_classes_stand_in_defs_and_may_be_recursive() -> None:
    """A class is defined once, by its name, in the order of appearance; a recursive one refers to itself."""

    def f(node: Node, range: Range, other: Range | None = None) -> None: ...

    schema = tool(f).parameters
    assert schema["properties"] == {
        "node": {"$ref": "#/$defs/Node"},
        "range": {"$ref": "#/$defs/Range"},
        "other": {"anyOf": [{"$ref": "#/$defs/Range"}, {"type": "null"}]},
    }
    assert list(schema["$defs"]) == ["Node", "Range"]
    assert "description" not in schema["$defs"]["Node"], "what dataclasses write as docstring says nothing"
    assert schema["$defs"]["Node"]["properties"]["children"] == {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert schema["$defs"]["Range"] == {
        "type": "object",
        "description": "From low to high.",
        "properties": {
            "low": {"type": "integer", "description": "The lower end."},
            "high": {"type": "integer", "description": "The upper end.", "default": 9},
        },
        "required": ["low"],
        "additionalProperties": False,
    }


def test_required_keys_of_a_typed_dict() -> None:
    """`Required`, `total=False` and inheritance count, though the annotations of this file are text."""

    def f(options: Options) -> None: ...

    definition = tool(f).parameters["$defs"]["Options"]
    assert set(definition["required"]) == {"always", "must"}
    assert set(definition["properties"]) == {"always", "sometimes", "must"}

    class Loose(TypedDict):
        here: int
        perhaps: NotRequired[str]

    def g(loose: Loose) -> None: ...

    assert tool(g).parameters["$defs"]["Loose"]["required"] == ["here"]


def test_a_named_tuple_is_an_object_with_its_names() -> None:
    """Names say more to a model than positions."""

    def f(point: Point) -> None: ...

    definition = tool(f).parameters["$defs"]["Point"]
    assert definition["properties"] == {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}}
    assert definition["required"] == ["x"]


def test_two_classes_of_one_name_are_kept_apart() -> None:
    """The second gets a number."""

    def make(annotation: Any) -> type:
        return attrs.make_class("Thing", {"a": attrs.field(type=annotation)})

    def f(one, two) -> None: ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"one": make(int), "two": make(str)}
    definitions = tool(f).parameters["$defs"]
    assert definitions["Thing"]["properties"] == {"a": {"type": "integer"}}
    assert definitions["Thing2"]["properties"] == {"a": {"type": "string"}}


def test_defaults_are_shown_where_json_can_say_them() -> None:
    """None says nothing that `required` does not say, and a class instance is no JSON."""

    one = Range(1)

    def f(a: int = 3, b: str | None = None, c: Color = Color.RED, d: Range = one, e: list[int] = [1]) -> None: ...  # noqa: B006

    schema = tool(f).parameters
    assert {name: part.get("default") for name, part in schema["properties"].items()} == {
        "a": 3, "b": None, "c": "red", "d": None, "e": [1],
    }  # fmt: skip
    assert "default" not in schema["properties"]["b"]
    assert "required" not in schema


def test_types_defined_inside_a_function() -> None:
    """Local classes work although annotations are text here, also where one refers to another or to itself."""

    @attrs.frozen
    class Inner:
        n: int

    @attrs.frozen
    class Outer:
        inner: Inner
        next: Outer | None = None

    def factory() -> Any:
        @tool
        def f(outer: Outer, ctx: ToolContext) -> None: ...

        return f

    assert set(factory().parameters["$defs"]) == {"Inner", "Outer"}


UNSUPPORTED: list[tuple[Any, str]] = [
    (complex, "unsupported type complex"),
    (datetime.timedelta, "unsupported type timedelta"),
    (Pair, "unsupported type Pair"),
    (Box[int], "unsupported type"),
    (T, "unsupported type"),
    (type, "unsupported type type"),
    (collections.abc.Callable[[], int], "unsupported type"),
    (dict[int, str], "keys of a JSON object are strings"),
    (dict[Literal["a"], str], "keys of a JSON object are strings"),
    (list[complex], "unsupported type complex"),
    (complex | None, "unsupported type complex"),
    (set[list[int]], "must be hashable"),
    (set[Node], "must be hashable"),
    (Literal[b"x"], "no JSON string, number, boolean or null"),
    (enum.Enum("Odd", {"A": (1, 2)}), "no JSON string, number, boolean or null"),
    (enum.Enum("Empty", {}), "unsupported type"),
    (5, "unsupported type 5"),
    ([int], "unsupported type"),
]


@pytest.mark.parametrize(("annotation", "reason"), UNSUPPORTED)
def test_what_json_cannot_say_is_refused(annotation: Any, reason: str) -> None:
    """At definition, with the function, the parameter and what could have stood there."""

    def lookup(good: int, bad) -> None: ...  # type: ignore[no-untyped-def]

    lookup.__annotations__ = {"good": int, "bad": annotation}
    with pytest.raises(ToolDefinitionError, match=r"^lookup: parameter 'bad': ") as caught:
        tool(lookup)
    assert reason in str(caught.value)


def test_a_refused_field_is_named_with_its_class() -> None:
    """The place leads from the function to the field."""

    @attrs.frozen
    class Wrong:
        inner: list[complex]

    def lookup(filter: Wrong) -> None: ...

    with pytest.raises(
        ToolDefinitionError, match=r"parameter 'filter': class .*Wrong: field 'inner': unsupported type"
    ):
        tool(lookup)


def test_an_init_only_field_is_refused() -> None:
    """`InitVar` has no value afterwards, so nothing could be told about it."""

    @dataclasses.dataclass
    class Odd:
        a: int
        b: dataclasses.InitVar[int]

    def f(odd: Odd) -> None: ...

    with pytest.raises(ToolDefinitionError, match="InitVar"):
        tool(f)


def test_annotations_that_cannot_be_resolved_are_named() -> None:
    """A name that is nowhere is an error with the name in it."""

    def f(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ToolDefinitionError, match=r"f: parameter 'x': the annotation 'Nowhere' cannot be resolved"):
        tool(f)

    @attrs.frozen
    class Broken:
        y: Nowhere  # type: ignore[name-defined]  # noqa: F821

    def g(x: Broken) -> None: ...

    with pytest.raises(ToolDefinitionError, match=r"class .*Broken: its annotations cannot be resolved"):
        tool(g)


def test_a_type_alias_of_the_backport() -> None:
    """`TypeAliasType`: in place where it is plain, in `$defs` where it is recursive."""
    extensions = pytest.importorskip("typing_extensions")
    Ids = extensions.TypeAliasType("Ids", list[int])
    Json = extensions.TypeAliasType("Json", "None | int | list[Json] | dict[str, Json]")

    def f(ids, json) -> None: ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"ids": Ids, "json": Ids | None}
    assert tool(f).parameters["properties"]["json"]["anyOf"][0] == {"type": "array", "items": {"type": "integer"}}
    assert tool(f).parameters["properties"]["ids"] == {"type": "array", "items": {"type": "integer"}}
    f.__annotations__ = {"ids": Ids, "json": Json}
    with pytest.raises(ToolDefinitionError, match="unsupported type"):  # its text was never evaluated
        tool(f)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_a_type_statement() -> None:
    """`type` aliases, recursive ones included; one that contains nothing but itself is refused."""
    names: dict[str, Any] = {"tool": tool}
    source = (
        "type Ids = list[int]\n"
        "type Json = None | bool | int | float | str | list[Json] | dict[str, Json]\n"
        "type Endless = Endless | int\n"
        "def f(ids: Ids, json: Json, more: Json): ...\n"
        "def g(x: Endless): ...\n"
    )
    exec(source, names)
    made = tool(names["f"])
    assert made.parameters["properties"]["ids"] == {"type": "array", "items": {"type": "integer"}}
    assert made.parameters["properties"]["json"] == made.parameters["properties"]["more"] == {"$ref": "#/$defs/Json"}
    assert made.parameters["$defs"]["Json"]["anyOf"][5] == {"type": "array", "items": {"$ref": "#/$defs/Json"}}
    assert made.prepare('{"ids": ["1"], "json": [{"a": [1.5]}], "more": "x"}').arguments["ids"] == [1]
    with pytest.raises(ToolDefinitionError, match="nothing but itself"):
        tool(names["g"])
