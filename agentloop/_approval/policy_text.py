"""Policies as plain data and as TOML: read strictly, with errors that say where, what was expected and what came."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from agentloop._approval.conditions import UNSET, Condition
from agentloop._approval.rules import Rule, Word, checked_word
from agentloop.errors import PolicyError

Place: TypeAlias = Callable[[str], str]
"""A path in the data (`rules[1].verdict`) as people find it (`policy.toml, line 7, rules[1].verdict`)."""

MAX_TEXT: Final = 200_000
"""Characters of a policy."""

MAX_DOTS: Final = 100
"""Dots of a line outside of quotes: `tomllib` takes cubic time in the parts of a dotted key."""

_TOP: Final = ("default", "rules")
_RULE: Final = ("verdict", "tools", "where", "unless", "reason")
_CONDITION: Final = ("argument", "equals", "glob", "regex", "within")


def _as_it_is(path: str) -> str:
    return path


# ---------------------------------------------------------------- plain data


def from_plain(data: Any, place: Place = _as_it_is) -> tuple[tuple[Rule, ...], Word]:
    """The rules and the default in plain data. Raises `PolicyError`."""
    reader = _Reader(place)
    table = reader.table(data, "", _TOP)
    rules = [reader.rule(each, f"rules[{n}]") for n, each in enumerate(reader.array(table.get("rules", ()), "rules"))]
    return tuple(rules), reader.made("default", lambda: checked_word(table.get("default", "ask"), "default"))


def to_plain(rules: Sequence[Rule], default: Word) -> dict[str, Any]:
    """What `from_plain` reads. Raises `PolicyError` for a function."""
    return {"default": default, "rules": [_plain_rule(rule, f"rules[{n}]") for n, rule in enumerate(rules)]}


def _plain_rule(rule: Rule, path: str) -> dict[str, Any]:
    if rule.when is not None:
        raise PolicyError(f"{path}.when: expected a rule of data, got one with a function")
    plain: dict[str, Any] = {"verdict": rule.verdict, "tools": list(rule.tools)}
    for key, conditions in (("where", rule.where), ("unless", rule.unless)):
        if conditions:
            plain[key] = [_plain_condition(condition) for condition in conditions]
    return plain if rule.reason is None else {**plain, "reason": rule.reason}


def _plain_condition(condition: Condition) -> dict[str, Any]:
    values = {key: getattr(condition, key) for key in _CONDITION}
    return {
        key: value for key, value in values.items() if value is not UNSET and (value is not None or key == "equals")
    }


class _Reader:
    """Reads plain data; each error names its place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def wrong(self, path: str, problem: str) -> PolicyError:
        """The error of a place."""
        return PolicyError(": ".join([part for part in (self._place(path), problem) if part]))

    def made(self, path: str, make: Callable[[], Any]) -> Any:
        """What `make` gives; its `ValueError` as one of this place, in which a path may be said already."""
        try:
            return make()
        except (ValueError, TypeError) as error:
            key, colon, rest = str(error).partition(": ")
            if colon and key.isidentifier() and key != path:
                raise self.wrong(f"{path}.{key}", rest) from None
            raise self.wrong(path, rest if colon and key == path else str(error)) from None

    def table(self, value: Any, path: str, known: tuple[str, ...]) -> Mapping[str, Any]:
        """A table with no other keys than these."""
        if not isinstance(value, Mapping):
            raise self.wrong(path, f"expected a table, got {_kind(value)}")
        for key in value:
            if key not in known:
                where = f"{path}.{key}" if path else str(key)
                raise self.wrong(where, f"expected one of the keys {', '.join(known)}, got {key!r}")
        return value

    def array(self, value: Any, path: str) -> Sequence[Any]:
        """An array."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(path, f"expected an array, got {_kind(value)}")
        return value

    def text(self, value: Any, path: str) -> str:
        """A text."""
        if not isinstance(value, str):
            raise self.wrong(path, f"expected a text, got {_kind(value)}")
        return value

    def rule(self, value: Any, path: str) -> Rule:
        """A rule."""
        table = self.table(value, path, _RULE)
        if "verdict" not in table:
            raise self.wrong(f"{path}.verdict", "expected allow, ask, deny or forbid, got nothing")
        names = table.get("tools", "*")
        if not isinstance(names, str):
            names = [self.text(name, f"{path}.tools[{n}]") for n, name in enumerate(self.array(names, f"{path}.tools"))]
        where, unless = [self.conditions(table.get(key, ()), f"{path}.{key}") for key in ("where", "unless")]
        reason = self.text(table["reason"], f"{path}.reason") if "reason" in table else None
        return self.made(path, lambda: Rule(table["verdict"], names, where, unless, reason))  # type: ignore[no-any-return]

    def conditions(self, value: Any, path: str) -> list[Condition]:
        """The conditions of a rule."""
        return [self.condition(each, f"{path}[{n}]") for n, each in enumerate(self.array(value, path))]

    def condition(self, value: Any, path: str) -> Condition:
        """One condition."""
        table = self.table(value, path, _CONDITION)
        if "argument" not in table:
            raise self.wrong(f"{path}.argument", "expected a path into the arguments, got nothing")
        for key in table:
            if key != "equals":
                self.text(table[key], f"{path}.{key}")
        return self.made(path, lambda: Condition(**table))  # type: ignore[no-any-return]


def _kind(value: Any) -> str:
    names = {dict: "a table", list: "an array", str: "a text", bool: "a truth value", type(None): "nothing"}
    name = names.get(type(value))
    return f"{value!r}" if type(value) in (int, float) else name or f"a {type(value).__name__}"


# ---------------------------------------------------------------- TOML


def read_toml(source: str | Path) -> tuple[Any, Place]:
    """The data in a TOML file (a `Path`) or text, and where its parts are. Raises `PolicyError`; `OSError` for a file."""
    name = str(source) if isinstance(source, Path) else ""
    text = _text_of(source, name)
    if len(text) > MAX_TEXT:
        raise PolicyError(f"{name or 'TOML'}: expected at most {MAX_TEXT} characters, got more")
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS and _QUOTED.sub("", line).count(".") > MAX_DOTS:
            raise PolicyError(
                f"{name or 'TOML'}: expected at most {MAX_DOTS} dots in a line, got more in line {number}"
            )
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # a `TOMLDecodeError`, or a number of more digits than the interpreter reads
        hint = "; a file is given as a Path" if not name and text.endswith(".toml") else ""
        raise PolicyError(f"{name or 'TOML'}: expected TOML, got an error: {error}{hint}") from None
    except RecursionError:
        raise PolicyError(f"{name or 'TOML'}: expected TOML, got values nested too deep") from None
    lines = _Lines(text)
    return data, lambda path: ", ".join([part for part in (name, lines.words(path), path) if part])


def _text_of(source: str | Path, name: str) -> str:
    if not isinstance(source, Path):
        return source
    with source.open("rb") as file:
        data = file.read(4 * MAX_TEXT + 4)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise PolicyError(
            f"{name}: expected text in UTF-8, got byte {data[error.start]:#04x} at {error.start}"
        ) from None


class _Lines:
    """Where the tables and keys of a policy stand: the lines of `[[rules]]`, and of keys after them."""

    def __init__(self, text: str) -> None:
        self._places: dict[str, int] = {}
        table, rules, quote = "", -1, ""
        for number, line in enumerate(text.split("\n"), 1):
            if not quote:
                if _RULES.match(line):
                    rules += 1
                    table = f"rules[{rules}]"
                    self._places.setdefault(table, number)
                elif (key := _KEY.match(line)) is not None:
                    self._places.setdefault(f"{table}.{key[1]}" if table else key[1], number)
            quote = _open_quote(line, quote)

    def words(self, path: str) -> str:
        """`line 7` of the nearest place that is known, or ""."""
        while path:
            if path in self._places:
                return f"line {self._places[path]}"
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return ""


_QUOTED: Final = re.compile(r"""\"(?:[^\"\\]|\\.)*\"|'[^']*'""")
_RULES: Final = re.compile(r"\s*\[\[\s*[\"']?rules[\"']?\s*\]\]")
_KEY: Final = re.compile(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=")


def _open_quote(line: str, quote: str) -> str:
    """Which quotes of several lines are open after a line."""
    at = 0
    while at < len(line):
        if quote:
            end = line.find(quote, at)
            if end < 0:
                return quote
            at, quote = end + 3, ""
        else:
            found = [(place, marks) for marks in ('"""', "'''") if (place := line.find(marks, at)) >= 0]
            if not found:
                return ""
            at, quote = min(found)[0] + 3, min(found)[1]
    return quote
