"""Shapes: for each kind of type its JSON Schema, its check of a JSON value, and the Python value made from it.

A check is told the value, its path and the `Reading`; it returns the JSON value to use (coerced where the text below
says so) and notes in the reading what does not fit. Building happens only after a check without problems.

Coerced, in this direction only: text that spells a JSON number where a number is due; `5.0` where an integer is due;
`"true"` and `"false"` where a boolean is due; text that holds a JSON array or object where one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from agentloop._jsontext import nesting, number_in, parse_json
from agentloop._problems import Path, Problems, counted, missing, one_of, unknown_field
from agentloop._results import error_text
from agentloop._values import MAX_JSON_DEPTH, thaw_json

JsonSchema = dict[str, Any]

BOOLEAN_TEXTS = {"true": True, "True": True, "false": False, "False": False}
_EXACT_INTEGERS = 2**53  # up to here a double holds every integer
_DOUBLE_RANGE = 2**1023
_MAX_REASON = 300


class Refused(Exception):
    """A class would not be made from fields that fit its schema."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path
        self.text = text


class Reading:
    """One check of one call's arguments: what was found wrong, and the choices that building repeats."""

    __slots__ = ("_attempts", "_decoded", "chosen", "coerce", "places", "problems")

    def __init__(self, coerce: bool = True) -> None:
        self.coerce = coerce
        self.problems = Problems()
        self.chosen: dict[tuple[int, int], Shape] = {}
        """Which member of a union a container is, by the identities of union and container."""
        self.places: dict[int, Path] = {}
        """Where a container stands from which a class is made, by its identity."""
        self._attempts: dict[tuple[int, int, bool], tuple[Any, Problems, Any]] | None = None
        self._decoded: dict[int, tuple[Any, str]] | None = None

    def decode(self, text: str, path: Path, kind: type) -> Any:
        """The array or object that a text holds as JSON; None if it holds none or would nest too deep."""
        if not self.coerce or not text.lstrip().startswith("[" if kind is list else "{"):
            return None
        if self._decoded is None:
            self._decoded = {}
        if id(text) not in self._decoded:
            try:
                value = parse_json(text)
            except ValueError:
                value = None
            self._decoded[id(text)] = (value, text)  # the text is kept so that its identity stays its own
        value = self._decoded[id(text)][0]
        return value if type(value) is kind and nesting(value) + _length(path) <= MAX_JSON_DEPTH else None

    def attempt(self, shape: Shape, value: Any, path: Path, coerce: bool) -> tuple[Any, Problems]:
        """Check without touching the problems found so far.

        A value is tried with a shape once only, however the unions around it nest: else their tries would multiply.
        """
        if self._attempts is None:
            self._attempts = {}
        key = (id(value), id(shape), coerce)
        known = self._attempts.get(key) if isinstance(value, list | dict | str) else None
        if known is None:
            before = self.problems, self.coerce
            self.problems, self.coerce = Problems(), coerce
            result = shape.check(value, path, self)
            known = (result, self.problems, value)
            self.problems, self.coerce = before
            self._attempts[key] = known
        return known[0], known[1]


def _length(path: Path) -> int:
    count = 0
    while path is not None:
        path, count = path[0], count + 1
    return count


class Shape:
    """A kind of type."""

    __slots__ = ()

    @property
    def expected(self) -> str:
        """The words for what is due: `an integer`."""
        raise NotImplementedError

    @property
    def exact(self) -> frozenset[type]:
        """The Python types of the JSON values that need no coercion."""
        raise NotImplementedError

    @property
    def plain(self) -> bool:
        """Whether the JSON value is the Python value."""
        return True

    @property
    def fallible(self) -> bool:
        """Whether building can fail after a check without problems."""
        return False

    def schema(self) -> JsonSchema:
        """The JSON Schema."""
        raise NotImplementedError

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        """The JSON value to use; problems go to the reading."""
        raise NotImplementedError

    def build(self, value: Any, reading: Reading) -> Any:
        """The Python value, of its own, from a checked JSON value."""
        return value


@attrs.frozen(eq=False)
class Anything(Shape):
    """Any JSON value."""

    expected = "any value"
    exact = frozenset({type(None), bool, int, float, str, list, dict})
    plain = False

    def schema(self) -> JsonSchema:
        return {}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        return value

    def build(self, value: Any, reading: Reading) -> Any:
        return thaw_json(value)


@attrs.frozen(eq=False)
class Null(Shape):
    """`null`."""

    expected = "null"
    exact = frozenset({type(None)})

    def schema(self) -> JsonSchema:
        return {"type": "null"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        if value is not None:
            reading.problems.mismatch(path, self.expected, value)
        return value


@attrs.frozen(eq=False)
class Boolean(Shape):
    """`true` or `false`."""

    expected = "a boolean"
    exact = frozenset({bool})

    def schema(self) -> JsonSchema:
        return {"type": "boolean"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        if type(value) is bool:
            return value
        if type(value) is str and reading.coerce and value in BOOLEAN_TEXTS:
            return BOOLEAN_TEXTS[value]
        reading.problems.mismatch(path, self.expected, value)
        return value


@attrs.frozen(eq=False)
class Integer(Shape):
    """An integer, also one written as `5.0` (JSON Schema counts that as an integer)."""

    expected = "an integer"
    exact = frozenset({int})

    def schema(self) -> JsonSchema:
        return {"type": "integer"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        kind = type(value)
        if kind is int:
            return value
        if kind is float and value.is_integer():
            return int(value)
        if kind is str and reading.coerce:
            number = number_in(value)
            if type(number) is int:
                return number
            if number is not None and abs(number) < _EXACT_INTEGERS and number == int(number):
                return int(number)
        reading.problems.mismatch(path, self.expected, value)
        return value


@attrs.frozen(eq=False)
class Number(Shape):
    """A number; in Python a float."""

    expected = "a number"
    exact = frozenset({float})
    plain = False

    def schema(self) -> JsonSchema:
        return {"type": "number"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        number = number_in(value) if type(value) is str and reading.coerce else value
        if type(number) is float or (type(number) is int and abs(number) < _DOUBLE_RANGE):
            return number
        reading.problems.mismatch(path, self.expected, value)
        return value

    def build(self, value: Any, reading: Reading) -> Any:
        return float(value)


@attrs.frozen(eq=False)
class String(Shape):
    """Text, and nothing else: a number never becomes one."""

    expected = "a string"
    exact = frozenset({str})

    def schema(self) -> JsonSchema:
        return {"type": "string"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        if type(value) is not str:
            reading.problems.mismatch(path, self.expected, value)
        return value


@attrs.frozen(eq=False)
class ParsedText(Shape):
    """Text from which a Python value is parsed: a date, a path, a decimal number.

    `numeric`: a JSON number is taken as well, as its text.
    """

    expected: str
    keywords: Mapping[str, str]
    parse: Callable[[str], Any]
    numeric: bool = False
    exact = frozenset({str})
    plain = False

    def schema(self) -> JsonSchema:
        return {"type": "string", **self.keywords}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        if self.numeric and reading.coerce and type(value) in (int, float):
            value = repr(value)
        if type(value) is str:
            try:
                self.parse(value)
                return value
            except (ValueError, ArithmeticError):
                pass
        reading.problems.mismatch(path, self.expected, value)
        return value

    def build(self, value: Any, reading: Reading) -> Any:
        return self.parse(value)


def _choice_key(value: Any) -> tuple[type, Any]:
    if type(value) is float and value.is_integer():
        return int, int(value)
    return type(value), value


class Choice(Shape):
    """One of listed values. `choices` pairs each JSON value with its Python value."""

    __slots__ = ("_by_key", "_exact", "_expected", "_plain", "_values")

    def __init__(self, choices: Sequence[tuple[Any, Any]]) -> None:
        self._values = [value for value, _ in choices]
        self._by_key = {_choice_key(value): (value, result) for value, result in choices}
        self._expected = one_of(self._values)
        self._exact = frozenset(type(value) for value in self._values)
        self._plain = all(result is value for value, result in choices)

    @property
    def expected(self) -> str:
        return self._expected

    @property
    def exact(self) -> frozenset[type]:
        return self._exact

    @property
    def plain(self) -> bool:
        return self._plain

    def schema(self) -> JsonSchema:
        types = [_SCALAR_TYPES[kind] for kind in dict.fromkeys(type(value) for value in self._values)]
        return {"type": types[0], "enum": self._values} if len(types) == 1 else {"enum": self._values}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        if not isinstance(value, list | dict):
            found = self._by_key.get(_choice_key(value))
            if found is None and reading.coerce and type(value) is str:
                spelled = BOOLEAN_TEXTS.get(value, number_in(value))
                found = None if spelled is None else self._by_key.get(_choice_key(spelled))
            if found is not None:
                return found[0]
        reading.problems.mismatch(path, self.expected, value)
        return value

    def build(self, value: Any, reading: Reading) -> Any:
        return self._by_key[_choice_key(value)][1]


_SCALAR_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}


def _elements(value: Any, path: Path, reading: Reading) -> list[Any] | None:
    if type(value) is list:
        return value
    found: list[Any] | None = reading.decode(value, path, list) if type(value) is str else None
    return found


def _members(value: Any, path: Path, reading: Reading) -> dict[str, Any] | None:
    if type(value) is dict:
        return value
    found: dict[str, Any] | None = reading.decode(value, path, dict) if type(value) is str else None
    return found


@attrs.frozen(eq=False)
class Array(Shape):
    """An array of any length; `make` turns a list into the Python container."""

    item: Shape
    make: Callable[[list[Any]], Any] = list
    expected = "an array"
    exact = frozenset({list})
    plain = False

    @property
    def fallible(self) -> bool:
        return self.item.fallible or self.make not in (list, tuple)  # what goes into a set must have a hash

    def schema(self) -> JsonSchema:
        item = self.item.schema()
        return {"type": "array", "items": item} if item else {"type": "array"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        elements = _elements(value, path, reading)
        if elements is None:
            reading.problems.mismatch(path, self.expected, value)
            return value
        check = self.item.check
        checked = []
        for index, element in enumerate(elements):
            checked.append(check(element, (path, index), reading))
        if self.make is not list:
            reading.places[id(checked)] = path
        return checked

    def build(self, value: Any, reading: Reading) -> Any:
        build = self.item.build
        elements = value if self.item.plain else [build(element, reading) for element in value]
        try:
            return self.make(elements)
        except TypeError as error:
            raise Refused(reading.places.get(id(value)), f"refused: {error}") from error


@attrs.frozen(eq=False)
class FixedArray(Shape):
    """An array with a type for each position."""

    items: tuple[Shape, ...]
    exact = frozenset({list})
    plain = False

    @property
    def expected(self) -> str:
        return f"an array of {counted(len(self.items), 'item')}"

    @property
    def fallible(self) -> bool:
        return any(item.fallible for item in self.items)

    def schema(self) -> JsonSchema:
        count = len(self.items)
        size = {"minItems": count, "maxItems": count}
        return {"type": "array", "prefixItems": [item.schema() for item in self.items], **size} if count else {
            "type": "array", "maxItems": 0,
        }  # fmt: skip

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        elements = _elements(value, path, reading)
        if elements is None or len(elements) != len(self.items):
            reading.problems.mismatch(path, self.expected, value if elements is None else elements)
            return value
        checked = []
        for index, (item, element) in enumerate(zip(self.items, elements, strict=True)):
            checked.append(item.check(element, (path, index), reading))
        return checked

    def build(self, value: Any, reading: Reading) -> Any:
        return tuple([item.build(element, reading) for item, element in zip(self.items, value, strict=True)])


@attrs.frozen(eq=False)
class Dictionary(Shape):
    """An object with any keys, its values of one type."""

    value: Shape
    expected = "an object"
    exact = frozenset({dict})
    plain = False

    @property
    def fallible(self) -> bool:
        return self.value.fallible

    def schema(self) -> JsonSchema:
        value = self.value.schema()
        return {"type": "object", "additionalProperties": value} if value else {"type": "object"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        members = _members(value, path, reading)
        if members is None:
            reading.problems.mismatch(path, self.expected, value)
            return value
        check = self.value.check
        checked = {}
        for key, member in members.items():
            checked[key] = check(member, (path, key), reading)
        return checked

    def build(self, value: Any, reading: Reading) -> Any:
        build = self.value.build
        return {key: build(member, reading) for key, member in value.items()}


@attrs.frozen
class Field:
    """A named part of an object. `keywords` go into its schema: a description, a default."""

    shape: Shape
    required: bool = True
    keywords: Mapping[str, Any] = attrs.field(factory=dict)


class Object(Shape):
    """An object with named fields and no others; `make` gets them as keyword arguments, None keeps a dict."""

    __slots__ = ("_builders", "_checks", "_required", "description", "fields", "make")
    expected = "an object"
    exact = frozenset({dict})
    plain = False

    def __init__(
        self, fields: Mapping[str, Field], make: Callable[..., Any] | None = None, description: str | None = None
    ) -> None:
        self.fields = dict(fields)
        self.make = make
        self.description = description
        self._checks = {name: field.shape.check for name, field in fields.items()}
        self._required = [name for name, field in fields.items() if field.required]
        self._builders: list[tuple[str, Shape]] | None = None

    @property
    def fallible(self) -> bool:
        return self.make is not None or any(field.shape.fallible for field in self.fields.values())

    def schema(self) -> JsonSchema:
        schema: JsonSchema = {"type": "object"}
        if self.description:
            schema["description"] = self.description
        schema["properties"] = {name: {**field.shape.schema(), **field.keywords} for name, field in self.fields.items()}
        if self._required:
            schema["required"] = list(self._required)
        schema["additionalProperties"] = False
        return schema

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        members = _members(value, path, reading)
        if members is None:
            reading.problems.mismatch(path, self.expected, value)
            return value
        checks = self._checks
        checked = {}
        for name, member in members.items():
            check = checks.get(name)
            if check is None:
                reading.problems.add((path, name), unknown_field(self.fields))
            else:
                checked[name] = check(member, (path, name), reading)
        for name in self._required:
            if name not in members:
                reading.problems.add((path, name), missing(self.fields[name].shape.expected))
        if self.make is not None:
            reading.places[id(checked)] = path
        return checked

    def build(self, value: Any, reading: Reading) -> Any:
        if self._builders is None:  # not before all recursive types are there
            self._builders = [(name, field.shape) for name, field in self.fields.items() if not field.shape.plain]
        fields = dict(value)
        for name, shape in self._builders:
            if name in fields:
                fields[name] = shape.build(fields[name], reading)
        if self.make is None:
            return fields
        try:
            return self.make(**fields)
        except Exception as error:
            name = getattr(self.make, "__name__", "the type")
            reason = error_text(error)[:_MAX_REASON]
            raise Refused(reading.places.get(id(value)), f"refused by {name}: {reason}") from error


class Union(Shape):
    """One of several types. The type that fits exactly wins over one that would coerce; then the first in order."""

    __slots__ = ("_exact", "members")

    def __init__(self, members: Sequence[Shape]) -> None:
        self.members = tuple(members)
        self._exact: frozenset[type] | None = None

    @property
    def exact(self) -> frozenset[type]:
        if self._exact is None:
            self._exact = frozenset().union(*[member.exact for member in self.members])
        return self._exact

    @property
    def expected(self) -> str:
        return " or ".join(dict.fromkeys(member.expected for member in self.members))

    @property
    def plain(self) -> bool:
        return all(member.plain for member in self.members)

    @property
    def fallible(self) -> bool:
        return any(member.fallible for member in self.members)

    def schema(self) -> JsonSchema:
        return {"anyOf": [member.schema() for member in self.members]}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        kind = type(value)
        fitting = [member for member in self.members if kind in member.exact]
        if len(fitting) == 1 and (kind is dict or kind is list):  # nothing else can take a container
            return self._choose(fitting[0], fitting[0].check(value, path, reading), reading)
        others = [member for member in self.members if kind not in member.exact]
        best: Problems | None = None
        for coerce in (False, True) if reading.coerce else (False,):
            for member in [*fitting, *others]:
                result, problems = reading.attempt(member, value, path, coerce)
                if not problems.count:
                    return self._choose(member, result, reading)
                if coerce is reading.coerce and kind in member.exact and (best is None or problems.count < best.count):
                    best = problems
        if best is not None and (kind is dict or kind is list):
            reading.problems.include(best)
        else:
            reading.problems.mismatch(path, self.expected, value)
        return value

    def _choose(self, member: Shape, result: Any, reading: Reading) -> Any:
        if isinstance(result, dict | list):
            reading.chosen[id(self), id(result)] = member
        return result

    def build(self, value: Any, reading: Reading) -> Any:
        if isinstance(value, dict | list):
            return reading.chosen[id(self), id(value)].build(value, reading)
        for exact in (True, False):
            for member in self.members:
                if exact is (type(value) in member.exact) and self._takes(member, value):
                    return member.build(value, reading)
        raise AssertionError(f"no member of the union takes {value!r}, though the check found one")

    @staticmethod
    def _takes(member: Shape, value: Any) -> bool:
        reading = Reading(coerce=False)
        member.check(value, None, reading)
        return not reading.problems.count


class Reference(Shape):
    """A named type, by its name; `target` is set when its definition is complete."""

    __slots__ = ("_asked", "name", "target")

    def __init__(self, name: str) -> None:
        self.name = name
        self.target: Shape = Anything()
        self._asked = False

    @property
    def expected(self) -> str:
        return self.target.expected

    @property
    def exact(self) -> frozenset[type]:
        return self.target.exact

    @property
    def plain(self) -> bool:
        return False

    @property
    def fallible(self) -> bool:
        if self._asked:  # a recursive type: the answer is found elsewhere in it
            return False
        self._asked = True
        try:
            return self.target.fallible
        finally:
            self._asked = False

    def schema(self) -> JsonSchema:
        return {"$ref": f"#/$defs/{self.name}"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        return self.target.check(value, path, reading)

    def build(self, value: Any, reading: Reading) -> Any:
        return self.target.build(value, reading)


class Described(Shape):
    """A type with a description of its own, inside another type."""

    __slots__ = ("_shape", "_text")

    def __init__(self, shape: Shape, text: str) -> None:
        self._shape = shape
        self._text = text

    @property
    def expected(self) -> str:
        return self._shape.expected

    @property
    def exact(self) -> frozenset[type]:
        return self._shape.exact

    @property
    def plain(self) -> bool:
        return self._shape.plain

    @property
    def fallible(self) -> bool:
        return self._shape.fallible

    def schema(self) -> JsonSchema:
        return {**self._shape.schema(), "description": self._text}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        return self._shape.check(value, path, reading)

    def build(self, value: Any, reading: Reading) -> Any:
        return self._shape.build(value, reading)
