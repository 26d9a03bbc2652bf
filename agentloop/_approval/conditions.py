"""Conditions on the arguments of a call, decided in bounded time, with a third answer where they cannot be decided.

A rule that allows must be certain: its conditions must hold for everything that they look at. For a rule that asks,
denies or forbids one hit is enough, or a value that cannot be judged.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs

from agentloop._approval.automaton import Budget, Pattern, TooCostly
from agentloop._approval.patterns import glob, regex
from agentloop._jsontext import json_text
from agentloop._values import freeze_json

Step: TypeAlias = str | int | None
"""A key, an index (negative: from the end), or None for everything inside."""

_STEP: Final = re.compile(r"""\.?([^.\[\]"*\s]+)|\[(-?[0-9]{1,9})\]|\[(\*)\]|\["([^"]*)"\]""")
_EVERYWHERE: Final = "**"
_TESTS: Final = ("equals", "glob", "regex", "within")


class _Unset:
    """The default of `equals`: every JSON value, None too, may be compared with."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        """The same one in a copy, or in another process: a second one would be a value to compare with."""
        return "UNSET"


UNSET: Final = _Unset()


def _frozen_value(value: Any) -> Any:
    return value if value is UNSET else freeze_json(value)


@attrs.frozen
class Condition:
    """One place in the arguments, and a test of what stands there.

    `argument` is a path: `command`, `options.depth`, `files[0]`, `files[*]` (each), `["odd.key"]`, `**` (every value but
    objects and arrays, wherever it stands). Exactly one test is given:

    - `equals`: this JSON value (`1` is `1.0`, but neither `true` nor `"1"`);
    - `glob`, `regex`: a pattern for the whole text (`agentloop.approval` says which); what is not a text is its JSON text;
    - `within`: a path below this folder (or the folder), by its words alone: `..` is worked out, symbolic links are not.

    Raises `ValueError` for a path or a pattern that cannot be read.
    """

    argument: str
    equals: Any = attrs.field(default=UNSET, converter=_frozen_value)
    glob: str | None = None
    regex: str | None = None
    within: str | None = None
    _path: tuple[Step, ...] | None = attrs.field(init=False, eq=False, repr=False)
    _pattern: Pattern | None = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read path and pattern, once."""
        given = [name for name in _TESTS if getattr(self, name) is not (UNSET if name == "equals" else None)]
        if len(given) != 1:
            raise ValueError(f"expected one of {', '.join(_TESTS)}, got {' and '.join(given) or 'none'}")
        object.__setattr__(self, "_path", _read_path(self.argument))
        object.__setattr__(self, "_pattern", self._compiled())

    def _compiled(self) -> Pattern | None:
        for name, compiled in (("glob", glob), ("regex", regex)):
            text = getattr(self, name)
            if text is not None:
                try:
                    return compiled(text)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        if self.within is not None and not _is_folder(self.within):
            raise ValueError(
                f"within: expected a folder with / and without ~, not above the working one, got {self.within!r}"
            )
        return None

    def holds(self, arguments: Mapping[str, Any], budget: Budget, *, surely: bool) -> bool:
        """Whether it holds: for every value at the place and for one at least (`surely`), or perhaps for one of them.
        Never raises."""
        hit = False
        try:
            for value in self._values(arguments, budget):
                answer = self._test(value, budget)
                if surely and answer is not True:
                    return False
                if not surely and answer is not False:
                    return True
                hit = hit or answer is True
        except TooCostly:
            return not surely
        return hit

    def _values(self, arguments: Mapping[str, Any], budget: Budget) -> Iterable[Any]:
        if self._path is None:
            return _leaves(arguments, budget)
        values: list[Any] = [arguments]
        for step in self._path:
            budget.take(len(values))
            values = [inner for value in values for inner in _inside(value, step, budget)]
        return values

    def _test(self, value: Any, budget: Budget) -> bool | None:
        """True, False, or None: it cannot be told."""
        if self.equals is not UNSET:
            return _same(value, self.equals)
        if self.within is not None:
            return _is_within(value, self.within, budget)
        assert self._pattern is not None
        return self._pattern.matches(value if isinstance(value, str) else json_text(value), budget)


def _read_path(text: str) -> tuple[Step, ...] | None:
    """The steps of a path; None: everywhere."""
    if text == _EVERYWHERE:
        return None
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (match[1] and (text[at] == ".") != (at > 0)):
            break
        key, index, each, quoted = match.groups()
        steps.append(None if each else int(index) if index else key if key is not None else quoted)
        at = match.end()
    if at < len(text) or not steps:
        raise ValueError(f"argument: expected a path such as options.files[0], files[*] or **, got {text!r}")
    return tuple(steps)


def _inside(value: Any, step: Step, budget: Budget) -> Iterable[Any]:
    if step is None:
        inner = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        budget.take(len(inner))
        return inner
    if isinstance(step, str):
        return (value[step],) if isinstance(value, Mapping) and step in value else ()
    if isinstance(value, list | tuple) and -len(value) <= step < len(value):
        return (value[step],)
    return ()


def _leaves(value: Any, budget: Budget) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        budget.take(1)
        value = waiting.pop()
        if isinstance(value, Mapping | list | tuple):
            waiting += _inside(value, None, budget)
        else:
            yield value


def _same(left: Any, right: Any) -> bool:
    """Equality of JSON values: truth values are no numbers."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(key in left and _same(left[key], right[key]) for key in right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _is_within(value: Any, folder: str, budget: Budget) -> bool | None:
    """Whether a path is below a folder, by its words; None where only the file system knows."""
    if not isinstance(value, str):
        return None if isinstance(value, Mapping | list | tuple) else False
    budget.take(len(value))
    if "\0" in value or "\\" in value:  # whether it separates folders depends on the system that the tool runs on
        return None
    path, base = _normal(value), _normal(folder)
    if posixpath.isabs(path) != posixpath.isabs(base) or ":" in path.partition("/")[0]:
        return None  # it depends on where the working folder is, or on a drive
    if path.startswith(("../", "~")) or path == "..":
        return None
    return base in (".", path) or path.startswith(base.rstrip("/") + "/")


def _is_folder(path: str) -> bool:
    return path != "" and _is_within(path, path, Budget(len(path))) is True


def _normal(path: str) -> str:
    normal = posixpath.normpath(path)
    # POSIX leaves the meaning of two leading slashes to the system; all that we know take them as one.
    return normal[1:] if normal.startswith("//") else normal
