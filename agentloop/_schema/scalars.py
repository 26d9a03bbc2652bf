"""Shapes of single values: their JSON Schema, their check, and the Python value made from them.

Coerced, in this direction only: text that spells a JSON number where a number is due; `5.0` where an integer is due;
`"true"` and `"false"` where a boolean is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop._frozen import frozen
from agentloop._jsontext import number_in
from agentloop._schema.problems import Path, one_of
from agentloop._schema.shape import JsonSchema, Reading, Shape
from agentloop._values import thaw_json

_BOOLEAN_TEXTS = {"true": True, "True": True, "false": False, "False": False}
_EXACT_INTEGERS = 2**53  # up to here a double holds every integer
_DOUBLE_RANGE = 2**1023


@frozen(eq=False)
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


@frozen(eq=False)
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


@frozen(eq=False)
class Boolean(Shape):
    """`true` or `false`."""

    expected = "a boolean"
    exact = frozenset({bool})

    def schema(self) -> JsonSchema:
        return {"type": "boolean"}

    def check(self, value: Any, path: Path, reading: Reading) -> Any:
        if type(value) is bool:
            return value
        if type(value) is str and reading.coerce and value in _BOOLEAN_TEXTS:
            return _BOOLEAN_TEXTS[value]
        reading.problems.mismatch(path, self.expected, value)
        return value


@frozen(eq=False)
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


@frozen(eq=False)
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


@frozen(eq=False)
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


@frozen(eq=False)
class ParsedText(Shape):
    """Text from which a Python value is parsed: a date, a path, a decimal number.

    `numeric`: it spells a number; a JSON number is taken as well, as its text, and so are blanks around it, without them.
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
        if self.numeric and reading.coerce:
            if type(value) in (int, float):
                value = repr(value)
            elif type(value) is str:
                value = value.strip()
        if type(value) is str:
            try:
                self.parse(value)
                return value
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # a class of the application's own, of a path say, may raise anything
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
                spelled = _BOOLEAN_TEXTS.get(value, number_in(value))
                found = None if spelled is None else self._by_key.get(_choice_key(spelled))
            if found is not None:
                return found[0]
        reading.problems.mismatch(path, self.expected, value)
        return value

    def build(self, value: Any, reading: Reading) -> Any:
        return self._by_key[_choice_key(value)][1]


_SCALAR_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}
