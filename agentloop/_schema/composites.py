"""Shapes made of other shapes: arrays, objects, unions, named types.

A check returns the JSON value to use, coerced where its parts are, and notes in the reading what does not fit; a text that
holds a JSON array or object is taken where one is due. Building happens only after a check without problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop._frozen import field, frozen
from agentloop._results import error_text
from agentloop._schema.problems import Path, Problems, counted, missing
from agentloop._schema.scalars import Anything, Choice
from agentloop._schema.shape import JsonSchema, Reading, Refused, Shape

_MAX_REASON = 300


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


@frozen(eq=False)
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


@frozen(eq=False)
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


@frozen(eq=False)
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


@frozen
class Field:
    """A named part of an object. `keywords` go into its schema: a description, a default."""

    shape: Shape
    required: bool = True
    keywords: Mapping[str, Any] = field(factory=dict)


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
                reading.problems.unknown((path, name), self.fields)
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
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
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
        likeness = 0
        for coerce in (False, True) if reading.coerce else (False,):
            for member in [*fitting, *others]:
                result, problems = reading.attempt(member, value, path, coerce)
                if not problems.count:
                    return self._choose(member, result, reading)
                if coerce is reading.coerce and kind in member.exact:
                    like = _likeness(_words(member), value) if kind is dict else 0
                    if best is None or like > likeness or (like == likeness and problems.count < best.count):
                        best, likeness = problems, like
        if kind is dict and not likeness and self._no_such_word(fitting, value, path, reading):
            return value
        if best is not None and (kind is dict or kind is list):
            reading.problems.include(best)
        else:
            reading.problems.mismatch(path, self.expected, value)
        return value

    def _no_such_word(self, members: Sequence[Shape], value: Any, path: Path, reading: Reading) -> bool:
        """Say which words there are, where a field that tells all members apart holds none of them."""
        words = [_words(member) for member in members]
        for name in words[0] if len(words) > 1 else ():
            if name in value and all(name in each for each in words):
                expected = dict.fromkeys(each[name].expected for each in words)
                reading.problems.mismatch((path, name), " or ".join(expected), value[name])
                return True
        return False

    def _choose(self, member: Shape, result: Any, reading: Reading) -> Any:
        if isinstance(result, dict | list):
            reading.chosen[id(self), id(result)] = member
        return result

    def build(self, value: Any, reading: Reading) -> Any:
        if isinstance(value, dict | list):
            return reading.chosen[id(self), id(value)].build(value, reading)
        for exact in (True, False):
            for member in self.members:
                if exact is (type(value) in member.exact) and _fits(member, value):
                    return member.build(value, reading)
        raise AssertionError(f"no member of the union takes {value!r}, though the check found one")


def _words(member: Shape) -> dict[str, Choice]:
    """The fields of a class that hold a word from a list: what tells the members of a tagged union apart."""
    while isinstance(member, _Delegate):
        member = member.target
    fields = member.fields if isinstance(member, Object) else {}
    return {name: field.shape for name, field in fields.items() if isinstance(field.shape, Choice)}


def _likeness(words: Mapping[str, Choice], value: Any) -> int:
    """How many of these words stand in an object: the problems to tell are those of the type that is meant."""
    return sum([name in value and _fits(shape, value[name]) for name, shape in words.items()])


def _fits(shape: Shape, value: Any) -> bool:
    reading = Reading(coerce=False)
    shape.check(value, None, reading)
    return not reading.problems.count


class _Delegate(Shape):
    """Another shape, with something said about it."""

    __slots__ = ("target",)
    target: Shape

    @property
    def expected(self) -> str:
        return self.target.expected

    @property
    def exact(self) -> frozenset[type]:
        return self.target.exact

    @property
    def plain(self) -> bool:
        return self.target.plain

    @property
    def fallible(self) -> bool:
        return self.target.fallible

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        return self.target.check(value, path, reading)

    def build(self, value: Any, reading: Reading) -> Any:
        return self.target.build(value, reading)


class Described(_Delegate):
    """A type with a description of its own, inside another type."""

    __slots__ = ("_text",)

    def __init__(self, target: Shape, text: str) -> None:
        self.target = target
        self._text = text

    def schema(self) -> JsonSchema:
        return {**self.target.schema(), "description": self._text}


class Reference(_Delegate):
    """A named type, by its name; `target` is set when its definition is complete."""

    __slots__ = ("_asked", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.target = Anything()
        self._asked = False

    @property
    def plain(self) -> bool:
        return False  # without asking the target, which may be recursive and unfinished

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
