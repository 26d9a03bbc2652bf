"""The text of a record: one line of JSON, both ways without changing a value.

orjson does the work wherever it is exact. What it would round, repair or refuse goes a slower way here: integers beyond
64 bits, lone surrogates (written as the escapes that JSON has for them), deep nesting. What JSON cannot say at all is refused
with its path. Lines end with `\\n` and nothing else: U+2028 and its like are text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any, Final, NoReturn, TypeAlias

import orjson

from agentloop._values import MAX_INTEGER_BITS, class_name

__all__ = ["MAX_DEPTH", "dumps", "loads"]

MAX_DEPTH: Final = 1024
"""Deepest nesting of a line, as orjson reads it."""

_AS_DIGITS: Final = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_LONG_NUMBER: Final = b"0" * 19  # the shortest integer beyond 64 bits has 19 digits
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


# ---------------------------------------------------------------- writing


def dumps(value: Any) -> bytes:
    """The JSON text of a record (or any JSON value), without a newline; keys in their order, non-ASCII text as it is.

    Raises `ValueError` or `TypeError`, with the path, for what JSON cannot say: NaN and infinities, keys that are no
    strings, objects of other classes, nesting beyond `MAX_DEPTH`.
    """
    try:
        line = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return _write(value)
    if line.find(b"null") >= 0:  # NaN and infinities come out as null
        _refuse_not_finite(value)
    return line


def dumps_trusted(value: Any) -> bytes:
    """`dumps` for values of frozen messages and events, in which NaN cannot be."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _write(value)


def _refuse_not_finite(value: Any) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not math.isfinite(item):
            _write(value)  # raises, and knows the path
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item


Children: TypeAlias = Iterator[
    tuple[str, str, Any]
]  # of each child: its step in the path, what stands before it, itself


def _write(value: Any) -> bytes:
    """The exact way: without recursion, and with a path for what is refused."""
    pieces: list[str] = []
    stack: list[tuple[Children, str]] = [(iter([("$", "", value)]), "")]
    steps: list[str] = []
    while stack:
        for step, before, item in stack[-1][0]:
            pieces.append(before)
            steps.append(step)
            try:
                if isinstance(item, dict | list | tuple):
                    if len(stack) > MAX_DEPTH:
                        raise ValueError(f"expected at most {MAX_DEPTH} levels of nesting, got more")
                    stack.append(_open(item, pieces))
                    break
                pieces.append(_scalar(item))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{''.join(steps)}: {error}") from None
            steps.pop()
        else:
            pieces.append(stack.pop()[1])
            if steps:
                steps.pop()
    # Surrogates can stand in strings only, and there the escape that `backslashreplace` writes is JSON's own.
    return "".join(pieces).encode("utf-8", "backslashreplace")


def _open(value: Any, pieces: list[str]) -> tuple[Children, str]:
    """Write the opening bracket; the children to come and the closing one."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"expected string keys, got {key!r} ({type(key).__name__})")
        pieces.append("{")
        commas = chain([""], repeat(","))
        return ((f".{key}", f"{next(commas)}{_string(key)}:", item) for key, item in value.items()), "}"
    pieces.append("[")
    return ((f"[{index}]", "," if index else "", item) for index, item in enumerate(value)), "]"


def _string(text: str) -> str:
    return json.dumps(str.__str__(text), ensure_ascii=False)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(_sane(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected a JSON number, got {value!r}")
        return orjson.dumps(float(value)).decode()
    kind = type(value)
    raise TypeError(f"expected a JSON value, got {class_name(kind)}")


def _sane(value: int) -> int:
    if value.bit_length() > MAX_INTEGER_BITS:
        raise ValueError(f"expected an integer of at most {MAX_INTEGER_BITS} bits, got a longer one")
    return value


# ---------------------------------------------------------------- reading


def loads(line: bytes) -> Any:
    """The value of one line of JSON; integers of any size exact, `1` and `1.0` apart, lone surrogates kept.

    Of two equal keys the last counts. Raises `ValueError` for anything that is not one JSON value in UTF-8: NaN, a
    number too large for a float, more than `MAX_DEPTH` levels.
    """
    if line.translate(_AS_DIGITS).find(_LONG_NUMBER) >= 0:
        return _exact(line)
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        if b"\\u" in line:  # perhaps a lone surrogate, which orjson refuses
            return _exact(line)
        raise


def _exact(line: bytes) -> Any:
    try:
        return json.loads(str(line, "utf-8"), parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"expected at most {MAX_DEPTH} levels of nesting, got more") from None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"expected a JSON number, got {word}")


def _integer(text: str) -> int:
    return _sane(int(text))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected a number that fits a float, got {text[:40]}")
    return value
