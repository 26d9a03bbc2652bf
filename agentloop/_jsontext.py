"""The JSON text of a call's arguments: read exactly, written compactly.

`orjson` is the fast path. It is left where it is not exact: integers beyond 64 bits become floats there, and lone
surrogates, which models do send as escapes, are refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

from agentloop._values import MAX_JSON_DEPTH, nesting, valid_text

_LONG_NUMBER = re.compile("[0-9]{19}")
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"


def parse_json(text: str) -> Any:
    """The value of a JSON text: integers exact, the last of equal keys, lone surrogates as U+FFFD.

    Raises `ValueError` with the reason for anything else, NaN, numbers beyond a double and nesting beyond
    `MAX_JSON_DEPTH` included.
    """
    if _LONG_NUMBER.search(text) is None:
        try:
            value = orjson.loads(text)
        except ValueError:
            value = _parse_exactly(text)
    else:
        value = _parse_exactly(text)
    if text.count("{") + text.count("[") > MAX_JSON_DEPTH and nesting(value) > MAX_JSON_DEPTH:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels")
    return value


def _parse_exactly(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH} levels") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # the interpreter's own limit on the digits of an integer
        if "digits" in str(error):
            raise ValueError("a number has too many digits") from None
        raise
    return _repaired(value) if nesting(value) <= MAX_JSON_DEPTH else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return {valid_text(key): _repaired(item) for key, item in value.items()}
    return value


def json_text(value: Any) -> str:
    """The compact JSON text of a JSON value whose text is valid Unicode."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def number_in(text: str) -> int | float | None:
    """The number that a text spells in JSON's own way, blanks around it allowed; None if it spells none."""
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped) is None:
        return None
    try:
        return parse_json(stripped)  # type: ignore[no-any-return]
    except ValueError:  # too large or too long
        return None
