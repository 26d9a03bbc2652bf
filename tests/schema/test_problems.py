"""The words of what is wrong: bounded, and naming the place."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop._schema.problems import MAX_PROBLEMS, Problems, describe, missing, one_of, path_text, unknown_field


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (None, "$"),
        (((None, "a"), "b"), "$.a.b"),
        (((None, "items"), 3), "$.items[3]"),
        (((None, "odd key"), "x.y"), '$["odd key"]["x.y"]'),
        ((None, ""), '$[""]'),
        ((None, "ключ"), '$["ключ"]'),
        ((None, 'a"\n'), '$["a\\"\\n"]'),
    ],
)
def test_paths(path: Any, text: str) -> None:
    """Dots for plain names, brackets for everything else; no key can break out of its line."""
    assert path_text(path) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "a boolean true"),
        (5, "an integer 5"),
        (5.5, "a number 5.5"),
        ("x\n", 'a string "x\\n"'),
        ([], "an array of 0 items"),
        ([1], "an array of 1 item"),
        ({"a": 1, "b": 2}, "an object with 2 fields"),
    ],
)
def test_what_came(value: Any, text: str) -> None:
    """The JSON type, and as much of the value as helps."""
    assert describe(value) == text


def test_long_values_are_cut() -> None:
    """However much came, a problem is told in a line of bounded length."""
    assert describe("x" * 1_000_000) == f'a string "{"x" * 80}"… (1000000 characters)'
    assert len(describe(int("9" * 4000))) < 200
    assert len(path_text((None, "k" * 1_000_000))) < 200
    assert len(one_of(["v" * 1000] * 1000)) < 4_000
    assert len(unknown_field([str(number) for number in range(1000)])) < 300


def test_the_words() -> None:
    """What is allowed is listed in order."""
    assert one_of(["a"]) == '"a"'
    assert one_of(["b", 1, None]) == 'one of "b", 1, null'
    assert missing("an integer") == "missing, expected an integer"
    assert unknown_field(["a"]) == "unknown field, expected a"
    assert unknown_field(["b", "a"]) == "unknown field, expected one of b, a"
    assert unknown_field([]) == "unknown field, expected no fields"


def test_many_problems_are_counted() -> None:
    """The first are written out, the rest is a number, also when an attempt's are taken over."""
    problems, other = Problems(), Problems()
    for number in range(MAX_PROBLEMS - 1):
        problems.mismatch((None, number), "an integer", "x")
    for number in range(5):
        other.add(None, f"other {number}")
    problems.include(other)
    problems.unknown(None, ["a"])
    problems.mismatch(None, "an integer", "x")
    lines = problems.text().splitlines()
    assert problems.count == MAX_PROBLEMS + 6
    assert lines[-2:] == ["$: other 0", "and 6 more"]
    assert len(lines) == MAX_PROBLEMS + 1
