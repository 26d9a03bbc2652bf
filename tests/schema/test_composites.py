"""Checks, coercions and values: what a shape takes, what it makes of it, and that its schema says the same."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import re
import uuid
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._schema.composites import Object
from agentloop._schema.shape import Reading, Refused
from agentloop._schema.types import TypeReader


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@attrs.frozen
class Range:
    low: int
    high: int = 9

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None = None


class Options(TypedDict, total=False):
    size: float


class Point(NamedTuple):
    x: int
    y: int = 0


@attrs.frozen
class Circle:
    kind: Literal["circle"]
    radius: float


@attrs.frozen
class Square:
    kind: Literal["square"]
    side: float


@attrs.frozen
class Left:
    next: Left | Right | None = None
    value: int = 0


@attrs.frozen
class Right:
    next: Left | Right | None = None
    value: str = ""


UserId = NewType("UserId", int)


def shape_of(annotation: Any) -> Any:
    return TypeReader("f", dict).shape(annotation)


def read(annotation: Any, value: Any, coerce: bool = True) -> tuple[Any, Any]:
    """The JSON that would run and the Python value made from it."""
    shape, reading = shape_of(annotation), Reading(coerce)
    checked = shape.check(value, None, reading)
    assert not reading.problems.count, reading.problems.text()
    return checked, shape.build(checked, reading)


def problems(annotation: Any, value: Any) -> str:
    reading = Reading()
    shape_of(annotation).check(value, None, reading)
    return reading.problems.text()


@pytest.mark.parametrize(
    ("annotation", "given", "runs", "value"),
    [
        (int, "5", 5, 5),
        (int, " -5 ", -5, -5),
        (int, "5.0", 5, 5),
        (int, 5.0, 5, 5),
        (int, "12345678901234567890123", 12345678901234567890123, 12345678901234567890123),
        (float, "2.5", 2.5, 2.5),
        (float, "1e3", 1000.0, 1000.0),
        (float, "5", 5, 5.0),
        (float, 5, 5, 5.0),
        (bool, "true", True, True),
        (bool, "False", False, False),
        (list[int], '[1, "2"]', [1, 2], [1, 2]),
        (dict[str, int], ' {"a": "1"}', {"a": 1}, {"a": 1}),
        (list[list[int]], '["[1]", [2]]', [[1], [2]], [[1], [2]]),
        (Range, '{"low": "3"}', {"low": 3}, Range(3)),
        (Size, "2", 2, Size.LARGE),
        (Literal[1, 2], "2", 2, 2),
        (Literal[True], "true", True, True),
        (Literal[1, 2], 1.0, 1, 1),
        (decimal.Decimal, 2.5, "2.5", decimal.Decimal("2.5")),
        (decimal.Decimal, " 0.10\n", "0.10", decimal.Decimal("0.10")),
        (UserId, "7", 7, 7),
        (int | None, "5", 5, 5),
        (list[int] | None, "[1]", [1], [1]),
    ],
)
def test_coercions(annotation: Any, given: Any, runs: Any, value: Any) -> None:
    """What models really send becomes what is due, and the JSON that runs shows it."""
    found = read(annotation, given)
    assert found == (runs, value)
    assert (type(found[0]), type(found[1])) == (type(runs), type(value))
    reading = Reading(coerce=False)
    shape_of(annotation).check(given, None, reading)
    assert reading.problems.count or isinstance(given, int | float), "coercions can be turned off"


@pytest.mark.parametrize("coerce", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-0.10",
        "1e5",
        "12E-3",
        " 1.5",
        "1.5\n",
        "\u00a01",
        "+1",
        "01",
        ".5",
        "5.",
        "1_000",
        "\u0665",
        "",
        " ",
        "1 2",
    ],
)
def test_what_is_taken_as_a_decimal_fits_its_pattern(text: str, coerce: bool) -> None:
    """What runs does, whatever blanks a model put around it; what would not is refused."""
    reading = Reading(coerce=coerce)
    runs = shape_of(decimal.Decimal).check(text, None, reading)
    fits = re.search(
        shape_of(decimal.Decimal).schema()["pattern"].replace("$", r"\Z"), text.strip() if coerce else text
    )
    assert (reading.problems.count == 0) is (fits is not None)
    assert reading.problems.count or runs == (text.strip() if coerce else text)


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (str, 5), (str, True), (str, None), (str, ["a"]), (str, {"a": 1}),
        (int, 5.7), (int, "5.7"), (int, "five"), (int, ""), (int, True), (int, None), (int, [5]), (int, "0x5"), (int, "٥"),
        (int, "9007199254740993.0"),
        (float, True), (float, "NaN"), (float, "1e400"), (float, None), (float, 10**400),
        (bool, 1), (bool, 0), (bool, "yes"), (bool, "1"), (bool, "TRUE"), (bool, None),
        (None, "null"), (None, 0), (None, ""),
        (list[str], "abc"), (list[str], "a,b"), (list[str], '{"a": 1}'), (list[str], {"0": "a"}), (list[str], "[1"),
        (dict[str, int], "[]"), (dict[str, int], "{"), (dict[str, int], [["a", 1]]),
        (Range, "Range"), (Range, [1, 2]), (Range, None),
        (Color, "RED"), (Color, "green"), (Color, 1), (Color, ["red"]), (Size, "3"), (Size, True), (Size, "SMALL"),
        (Literal[1], True), (Literal[True], 1), (Literal["1"], 1),
        (tuple[int, int], [1]), (tuple[int, int], [1, 2, 3]), (tuple[()], [1]),
        (datetime.date, "31.1.2026"), (datetime.datetime, 5), (uuid.UUID, "x"), (bytes, "%"), (decimal.Decimal, "Infinity"),
        (decimal.Decimal, "NaN"), (decimal.Decimal, True), (pathlib.Path, 5),
        (int | None, "x"), (int | str, None), (int | list[int], "x"),
    ],
)  # fmt: skip
def test_everything_else_is_strict(annotation: Any, given: Any) -> None:
    """Nothing else is bent until it fits."""
    assert problems(annotation, given)


class _Fenced(pathlib.PurePosixPath):
    """A path of the application's own, which takes no text and says so in its own way."""

    def __init__(self, *parts: str) -> None:
        raise LookupError(*parts)

    __new__ = __init__  # type: ignore[assignment]


class _Panic(BaseException):
    """What a library raises that is no `Exception`."""


class _Worse(pathlib.PurePosixPath):
    """A path of a library that fails worse than an exception should."""

    def __init__(self, *parts: str) -> None:
        raise _Panic(*parts)

    __new__ = __init__  # type: ignore[assignment]


@dataclasses.dataclass
class _Fragile:
    path: str

    def __post_init__(self) -> None:
        raise _Panic("it broke")


@pytest.mark.parametrize("path", [_Fenced, _Worse])
def test_a_class_of_the_applications_own_may_raise_anything(path: type) -> None:
    """A text that it does not take is one that does not fit, whatever it raises."""
    assert "expected a path" in problems(path, "a/b")


def test_a_class_of_fields_may_raise_anything() -> None:
    """Values that it does not take are refused with its words, whatever it raises."""
    shape, reading = shape_of(_Fragile), Reading()
    with pytest.raises(Refused) as caught:
        shape.build(shape.check({"path": "a"}, None, reading), reading)
    assert caught.value.text == "refused by _Fragile: it broke"


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [
        (datetime.datetime, "2026-01-31T09:30:00Z", datetime.datetime(2026, 1, 31, 9, 30, tzinfo=datetime.UTC)),
        (datetime.date, "2026-01-31", datetime.date(2026, 1, 31)),
        (datetime.time, "09:30", datetime.time(9, 30)),
        (uuid.UUID, "12345678-1234-5678-1234-567812345678", uuid.UUID("12345678123456781234567812345678")),
        (pathlib.Path, "a/b", pathlib.Path("a/b")),
        (pathlib.PurePosixPath, "a/b", pathlib.PurePosixPath("a/b")),
        (decimal.Decimal, "0.10", decimal.Decimal("0.10")),
        (bytes, "aGk=", b"hi"),
        (Color, "red", Color.RED),
        (Literal[Color.BLUE, 3], "blue", Color.BLUE),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[Color, ...], ["red"], (Color.RED,)),
        (set[int], [1, 2, 1], {1, 2}),
        (frozenset[Color], ["red"], frozenset({Color.RED})),
        (Options, {"size": 1}, {"size": 1.0}),
        (Point, {"x": 1}, Point(1)),
        (Node, {"value": 1, "next": {"value": 2}}, Node(1, Node(2))),
        (dict[str, Range], {"a": {"low": 1}}, {"a": Range(1)}),
        (Circle | Square, {"kind": "square", "side": 2}, Square("square", 2.0)),
        (list[Circle | Square | None], [None, {"kind": "circle", "radius": 1}], [None, Circle("circle", 1.0)]),
        (datetime.date | Color | int, "blue", Color.BLUE),
        (datetime.date | Color | int, "2026-01-31", datetime.date(2026, 1, 31)),
        (datetime.date | Color | int, "5", 5),
    ],
)
def test_python_values(annotation: Any, given: Any, value: Any) -> None:
    """The function gets instances, members and containers of the types that it names."""
    _, found = read(annotation, given)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [
        (int | str, "5", "5"),
        (str | int, 5, 5),
        (float | int, 5, 5),
        (int | float, 5.0, 5.0),
        (float | str, 5, 5.0),
        (bool | int, 1, 1),
        (int | bool, True, True),
        (str | list[str], '["a"]', '["a"]'),
        (list[str] | dict[str, str], '{"a": "b"}', {"a": "b"}),
        (list[int] | list[str], ["1"], ["1"]),
        (list[int] | list[bool], ["true"], [True]),
        (Any | int, "5", "5"),
        (Left | Right, {"value": "5"}, Right(None, "5")),
        (Left | Right, {"value": 5}, Left(None, 5)),
        (Right | Left, {"value": 5, "next": {"value": "a"}}, Left(Right(None, "a"), 5)),
    ],
)
def test_in_a_union_the_exact_type_wins(annotation: Any, given: Any, value: Any) -> None:
    """Coercion is tried only after no member takes the value as it is."""
    _, found = read(annotation, given)
    assert (found, type(found)) == (value, type(value))


def test_every_problem_is_named_with_path_expected_and_got() -> None:
    """All at once, so that a model repairs a call in one try."""

    @attrs.frozen
    class Filter:
        range: Range
        mode: Color
        tags: list[str]

    text = problems(Filter, {"range": {"low": "x", "hi": 1}, "mode": "green", "tags": ["a", 5], "Odd key": None})
    assert text.splitlines() == [
        '$.range.low: expected an integer, got a string "x"',
        "$.range.hi: unknown field, expected one of low, high",
        '$.mode: expected one of "red", "blue", got a string "green"',
        "$.tags[1]: expected a string, got an integer 5",
        '$["Odd key"]: unknown field, expected one of range, mode, tags',
    ]
    assert problems(Filter, {"range": {"low": 1}}).splitlines() == [
        '$.mode: missing, expected one of "red", "blue"',
        "$.tags: missing, expected an array",
    ]


def test_a_union_of_classes_reports_the_closest() -> None:
    """Of several objects, the one with the fewest problems is what was meant."""
    assert problems(Circle | Square, {"kind": "square", "side": "wide"}) == (
        '$.side: expected a number, got a string "wide"'
    )
    assert problems(int | list[int] | None, "x") == '$: expected an integer or an array or null, got a string "x"'


@attrs.frozen
class ByName:
    by: Literal["name"]
    value: str


@attrs.frozen
class ByNumber:
    by: Literal["number", "index"]
    value: int


@pytest.mark.parametrize("union", [ByName | ByNumber, ByNumber | ByName, ByName | ByNumber | list[int] | None])
def test_a_word_tells_which_class_is_meant(union: Any) -> None:
    """The word of a tagged object counts more than how much of the rest fits: else the model is told to change the word."""
    assert problems(union, {"by": "name", "value": 5}) == "$.value: expected a string, got an integer 5"
    assert problems(union, {"by": "index", "value": "a", "more": 1}).splitlines() == [
        '$.value: expected an integer, got a string "a"',
        "$.more: unknown field, expected one of by, value",
    ]


def test_a_word_of_no_class_is_answered_with_all_words() -> None:
    """Not with those of one class."""
    assert problems(ByName | ByNumber, {"by": "color", "value": "a"}) == (
        '$.by: expected "name" or one of "number", "index", got a string "color"'
    )
    assert problems(list[ByName | ByNumber], [{"by": None}]) == (
        '$[0].by: expected "name" or one of "number", "index", got null'
    )


def test_a_class_that_refuses_its_fields() -> None:
    """What a validator of the class says is told, with the place of the object."""
    shape, reading = shape_of(list[Range]), Reading()
    checked = shape.check([{"low": 1}, {"low": 11}], None, reading)
    assert not reading.problems.count
    with pytest.raises(Refused) as caught:
        shape.build(checked, reading)
    assert (caught.value.path, caught.value.text) == ((None, 1), "refused by Range: low must not be above high")
    assert shape.fallible
    assert not shape_of(list[int]).fallible


def test_items_of_a_set_that_have_no_hash() -> None:
    """They are refused like a class's fields, not raised as a `TypeError`."""
    shape, reading = shape_of(set[Any]), Reading()
    checked = shape.check([1, [2]], None, reading)
    with pytest.raises(Refused, match="unhashable"):
        shape.build(checked, reading)


def test_values_are_copies() -> None:
    """What a tool does to its arguments changes nobody else's."""
    for annotation in (Any, list, dict[str, Any], list[list[int]], Options):
        given = {"size": 1} if annotation in (Options, dict[str, Any]) else [[1]]
        shape, reading = shape_of(annotation), Reading()
        checked = shape.check(given, None, reading)
        first, second = shape.build(checked, reading), shape.build(checked, reading)
        first.clear()
        assert second == checked == given


def test_text_inside_text_nests_no_deeper_than_json_may() -> None:
    """A coerced text counts with the depth of its place: what runs can always be written down."""
    deep: Any = "[" * 150 + "]" * 150
    nested: Any = list[Any]
    for level in range(60):
        if level == 49:
            assert not problems(nested, deep)
        nested, deep = list[nested], [deep]
    assert "expected an array, got a string" in problems(nested, deep)


def test_recursive_types_take_the_deepest_arguments() -> None:
    """A chain of 199 objects is checked and built without a `RecursionError`."""
    value: Any = {"value": 0}
    for number in range(198):
        value = {"value": number, "next": value}
    _, node = read(Node, value)
    assert node.value == 197
    length = 0
    while node is not None:
        node, length = node.next, length + 1
    assert length == 199


def test_hostile_nesting_of_unions_takes_linear_time() -> None:
    """Two recursive classes that any object may be: trying both at each level would take 2 to the power of the depth."""
    for wrong in (5.5, "x"):
        value: Any = {"value": wrong, "next": 5}
        for _ in range(60):
            value = {"value": wrong, "next": value}
        assert problems(Left | Right, value)
    text = '{"value": []}'
    for _ in range(8):
        text = '{"next": ' + json.dumps(text) + "}"
    assert problems(Left | Right, text)


# ---------------------------------------------------------------- laws


def _record(fields: dict[str, Any]) -> Any:
    names = [f"f{index}" for index in range(len(fields))]
    made = zip(names, fields.items(), strict=True)
    return attrs.make_class(
        "Record",
        {
            name: attrs.field(type=annotation, **({} if key.startswith("r") else {"default": None}))
            for name, (key, annotation) in made
        },
        kw_only=True,
    )


literals = st.lists(
    st.sampled_from(["a", "b", 0, 1, True, False, None]),
    min_size=1,
    max_size=3,
    unique_by=lambda value: (type(value), value),
).map(lambda values: Literal[tuple(values)])
scalars = st.sampled_from([int, float, str, bool, None, Any, Color, Size]) | literals
annotations = st.recursive(
    scalars,
    lambda inner: st.one_of(
        inner.map(lambda item: list[item]),
        inner.map(lambda item: dict[str, item]),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        st.tuples(inner, inner).map(
            lambda pair: pair[0] | pair[1] if pair[0] is not None or pair[1] is not None else None
        ),
        st.dictionaries(st.sampled_from(["r1", "r2", "o1", "o2"]), inner, max_size=3).map(_record),
    ),
    max_leaves=5,
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**70, 0.0, 1.0, -2.5, 1e30])
    | st.sampled_from(["a", "b", "red", "1", "2.0", "true", "", "[1]", '{"f0": "1"}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["f0", "f1", "a"]), inner, max_size=3),
    max_leaves=6,
)


def _full_schema(reader: TypeReader, shape: Any) -> dict[str, Any]:
    return {**shape.schema(), "$defs": reader.definitions()}


@given(annotations, json_values)
def test_without_coercions_the_check_accepts_exactly_what_the_schema_says(annotation: Any, value: Any) -> None:
    """What the model is told and what is checked are one thing; an independent validator is the judge."""
    library = pytest.importorskip("jsonschema_rs")
    reader = TypeReader("f", dict)
    shape, reading = reader.shape(annotation), Reading(coerce=False)
    checked = shape.check(value, None, reading)
    valid = library.validator_for(_full_schema(reader, shape), offline=True).is_valid(value)
    assert valid is (reading.problems.count == 0), reading.problems.text()
    if valid:
        assert checked == value


@given(annotations, json_values)
def test_what_runs_fits_the_schema_and_is_stable(annotation: Any, value: Any) -> None:
    """Coerced arguments fit the schema, coercing them again changes nothing, and they can be built."""
    library = pytest.importorskip("jsonschema_rs")
    reader = TypeReader("f", dict)
    shape, reading = reader.shape(annotation), Reading()
    checked = shape.check(value, None, reading)
    if reading.problems.count:
        assert reading.problems.text()
        return
    assert library.validator_for(_full_schema(reader, shape), offline=True).is_valid(checked)
    again = Reading(coerce=False)
    assert shape.check(checked, None, again) == checked
    assert not again.problems.count
    shape.build(checked, reading)


@given(annotations, json_values)
def test_coercion_only_adds(annotation: Any, value: Any) -> None:
    """What fits as it is stays as it is."""
    shape, strict, lenient = shape_of(annotation), Reading(coerce=False), Reading()
    shape.check(value, None, strict)
    if not strict.problems.count:
        assert shape.check(value, None, lenient) == value
        assert not lenient.problems.count


def test_an_object_keeps_the_order_in_which_fields_were_sent() -> None:
    """The text that shows what runs reads like what was sent."""
    shape = Object(
        {
            "a": TypeReader("f", dict).field(int, None, True, None),
            "b": TypeReader("f", dict).field(int, None, True, None),
        }
    )
    assert list(shape.check({"b": 1, "a": 2}, None, Reading())) == ["b", "a"]
