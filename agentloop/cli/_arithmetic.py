"""`evaluate`: arithmetic from a text, without running it as code."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

_LONGEST = 200
"""Characters of an expression; also what bounds the nesting."""
_MOST_DIGITS = 1_000
"""Digits of a result, and of every step on the way to it."""
_WRITTEN_WITH = re.compile(r"[0-9\s.+\-*/%^()eE_]*")
_EXPECTED = "expected numbers and + - * / // % ** ( )"

Number = Fraction | float

_BINARY: Mapping[type, Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


def evaluate(expression: str) -> str:
    """The value as text: exact for whole numbers and fractions that end, else with twelve digits.

    `^` is a power, as people write it. Raises `ValueError` or `ZeroDivisionError`, saying what was wrong.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"expression: expected at most {_LONGEST} characters, got {len(expression)}")
    if not _WRITTEN_WITH.fullmatch(expression):  # keeps whatever is no arithmetic away from the parser
        raise ValueError(f"expression: {_EXPECTED}, got {expression!r}")
    try:
        tree = ast.parse(expression.replace("^", "**").strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"expression: {_EXPECTED}, got {expression!r}") from None
    return _written(_value(tree.body))


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(Fraction(str(value)) if math.isfinite(value) else value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _divided(_BINARY[type(op)], _value(left), _value(right))
    raise ValueError(f"expression: {_EXPECTED}, got {ast.unparse(node)!r}")


def _divided(operation: Callable[[Number, Number], Number], left: Number, right: Number) -> Number:
    try:
        return _bounded(operation(left, right))
    except ZeroDivisionError:
        raise ZeroDivisionError("division by zero") from None


def _power(base: Number, exponent: Number) -> Number:
    whole = isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1
    if whole and _digits(base) * abs(int(exponent)) > _MOST_DIGITS:
        raise ValueError(f"expression: expected a result of at most {_MOST_DIGITS} digits, got a larger power")
    try:
        value = base**exponent if whole else float(base) ** float(exponent)
    except ZeroDivisionError:
        raise ZeroDivisionError("division by zero") from None
    except OverflowError:
        raise ValueError("expression: the result is too large") from None
    if isinstance(value, complex):
        raise ValueError("expression: the result is no real number")
    return _bounded(value)


def _digits(value: Number) -> int:
    """About how many digits it takes to write the number down."""
    if isinstance(value, float):
        return 1
    return (max(abs(value.numerator), value.denominator).bit_length() * 302) // 1000 + 1


def _bounded(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expression: the result is too large")
    if _digits(value) > _MOST_DIGITS:
        raise ValueError(f"expression: expected at most {_MOST_DIGITS} digits on the way, got more")
    return value


def _written(value: Number) -> str:
    if isinstance(value, Fraction) and value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError:
        raise ValueError("expression: the result is too large") from None
