"""What every shape is: the checks and the building that it offers, and the reading that a check writes to."""

from __future__ import annotations

from typing import Any

from agentloop._jsontext import parse_json
from agentloop._schema.problems import Path, Problems
from agentloop._values import MAX_JSON_DEPTH, nesting

JsonSchema = dict[str, Any]


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
            self._decoded[id(text)] = (value, text)  # the text is kept alive so that no other object gets its id
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
