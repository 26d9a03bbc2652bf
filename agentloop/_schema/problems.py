"""What is wrong with a call's arguments, in words that a model can act on.

Every text is bounded, however large or many the wrong values are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

Path: TypeAlias = "tuple[Path, str | int] | None"
"""Where a value stands: its container's path and its key or position there; None is the arguments object itself."""

MAX_PROBLEMS = 20
"""How many problems are written out; the rest is counted."""

_MAX_VALUE = 80
_MAX_NAMES = 30
_PLAIN_KEY = r"[A-Za-z_][A-Za-z0-9_-]*"


class Problems:
    """The problems found so far: the first `MAX_PROBLEMS` as lines, and the count of all."""

    __slots__ = ("count", "lines")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def add(self, path: Path, text: str) -> None:
        """Note one problem."""
        self.count += 1
        if len(self.lines) < MAX_PROBLEMS:
            self.lines.append(f"{path_text(path)}: {text}")

    def mismatch(self, path: Path, expected: str, value: Any) -> None:
        """Note a value that is not what was expected."""
        if self.count < MAX_PROBLEMS:  # those beyond it are only counted
            self.add(path, f"expected {expected}, got {describe(value)}")
        else:
            self.count += 1

    def unknown(self, path: Path, names: Iterable[str]) -> None:
        """Note a field that nobody asked for; `names` are those that exist."""
        if self.count < MAX_PROBLEMS:
            self.add(path, unknown_field(names))
        else:
            self.count += 1

    def include(self, other: Problems) -> None:
        """Take over the problems of an attempt."""
        self.count += other.count
        self.lines.extend(other.lines[: MAX_PROBLEMS - len(self.lines)])

    def text(self) -> str:
        """All lines, and how many more there were."""
        more = self.count - len(self.lines)
        return "\n".join([*self.lines, f"and {more} more"] if more else self.lines)


def path_text(path: Path) -> str:
    """A path as people write it: `$.filter.range.low`, `$.items[3]`, `$["odd key"]`."""
    parts: list[str] = []
    while path is not None:
        path, key = path
        if isinstance(key, str) and re.fullmatch(_PLAIN_KEY, key) and len(key) <= _MAX_VALUE:
            parts.append(f".{key}")
        else:
            parts.append(f"[{shortened(key)}]")
    return "$" + "".join(reversed(parts))


def shortened(value: Any) -> str:
    """A scalar as JSON, cut when it is long."""
    if isinstance(value, str) and len(value) > _MAX_VALUE:
        return f"{json.dumps(value[:_MAX_VALUE], ensure_ascii=False)}… ({len(value)} characters)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 2 * _MAX_VALUE else f"{text[:_MAX_VALUE]}… ({len(text)} characters)"


def describe(value: Any) -> str:
    """What came, with its JSON type: `a string "x"`, `an array of 3 items`, `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"a boolean {shortened(value)}"
    if isinstance(value, int):
        return f"an integer {shortened(value)}"
    if isinstance(value, float):
        return f"a number {shortened(value)}"
    if isinstance(value, str):
        return f"a string {shortened(value)}"
    if isinstance(value, list):
        return f"an array of {counted(len(value), 'item')}"
    return f"an object with {counted(len(value), 'field')}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 item`, `2 items`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_of(values: Iterable[Any]) -> str:
    """Allowed values, in order: `"fast"`, `one of "fast", "slow"`; cut when there are many."""
    texts = [shortened(value) for value in values]
    return texts[0] if len(texts) == 1 else f"one of {listed(texts)}"


def listed(texts: Iterable[str]) -> str:
    """Texts joined by commas; cut when there are many."""
    texts = list(texts)
    more = len(texts) - _MAX_NAMES
    return ", ".join(texts[:_MAX_NAMES]) + (f", and {more} more" if more > 0 else "")


def missing(expected: str) -> str:
    """The words for a field that is not there."""
    return f"missing, expected {expected}"


def unknown_field(names: Iterable[str]) -> str:
    """The words for a field that nobody asked for."""
    names = list(names)
    return (
        f"unknown field, expected {'one of ' if len(names) > 1 else ''}{listed(names)}"
        if names
        else ("unknown field, expected no fields")
    )
