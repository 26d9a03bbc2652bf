"""Arithmetic is exact, bounded, and never runs code."""

from __future__ import annotations

import pytest

from agentloop.cli._arithmetic import evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*7 + 3", "87"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333"),
        ("6/3", "2"),
        ("2^10", "1024"),
        ("2 ** -2", "0.25"),
        ("2 ** 0.5", "1.41421356237"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("5 - -(3)", "8"),
        ("1_000 * 1.5e3", "1500000"),
        ("2 ** 200", str(2**200)),
        ("+1", "1"),
    ],
)
def test_values(expression: str, value: str) -> None:
    """Whole numbers and fractions are exact; what does not end is given to twelve digits."""
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "expected numbers"),
        ("1 +", "expected numbers"),
        ("__import__('os')", "expected numbers"),
        ("e", "expected numbers .*, got 'e'"),
        ("(1)(2)", "expected numbers"),
        ("1if 1else 2", "expected numbers"),
        ("9**9**9", "at most 1000 digits"),
        ("10 ** 100000", "at most 1000 digits"),
        ("1e999", "too large"),
        ("1e400 - 1e400", "too large"),
        ("(-8) ** 0.5", "no real number"),
        ("(" * 300, "at most 200 characters"),
        ("(" * 150, "expected numbers"),
        ("-" * 199 + "x", "expected numbers"),
        ("*".join(["9" * 40] * 4) + "*9**900", "at most 1000 digits"),
        ("1e300 ** 0.5 * 1e300 * 1e300 * 1e300", "at most 1000 digits|too large"),
    ],
)
def test_what_it_refuses(expression: str, words: str) -> None:
    """Anything but bounded arithmetic is refused with a text that says what was expected."""
    with pytest.raises(ValueError, match=words):
        evaluate(expression)


@pytest.mark.parametrize("expression", ["1/0", "1 % 0", "1 // 0.0", "0 ** -1"])
def test_division_by_zero(expression: str) -> None:
    """Whatever divides by zero says so."""
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        evaluate(expression)


def test_deep_signs() -> None:
    """As many signs as an expression may have are no problem."""
    assert evaluate("-" * 198 + "1") == "1"
