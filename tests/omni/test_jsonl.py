"""The text of a record: what survives the round trip, what is refused, and that neither way is quadratic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._values import freeze_json
from agentloop.omni.jsonl import MAX_DEPTH, dumps, dumps_trusted, loads
from agentloop.testing.strategies import json_values
from tests.costs import lines


def exactly(one: Any, other: Any) -> bool:
    """Equal, and the numbers of the same kind: Python finds `1 == 1.0 == True`, JSON does not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(exactly(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(exactly, one, other))
    return one == other


@given(json_values(8) | st.recursive(st.text(), st.lists))
def test_any_json_value_survives(value: Any) -> None:
    """Integers of any size, floats that look like integers, any key in its order: what is read is what was written."""
    assert exactly(loads(dumps(value)), value)
    assert dumps_trusted(freeze_json(value)) == dumps(value)


@given(json_values(8))
def test_what_is_written_is_what_others_write(value: Any) -> None:
    """No spaces, non-ASCII text as it is: the standard library reads the same value from it."""
    line = dumps(value)
    assert exactly(json.loads(line), value)
    assert b"\n" not in line


@pytest.mark.parametrize(
    "value",
    [2**63, 2**64, -(2**63) - 1, 10**18, 10**19, 2**14_283, {"a": [1, {"b": 2**70}], "c": 1.5, "d": [True, None]}],
)
def test_integers_beyond_64_bits_are_exact(value: Any) -> None:
    """Both ways, at any depth, and what stands beside them keeps its kind."""
    assert exactly(loads(dumps(value)), value)


@pytest.mark.parametrize("number", ["1", "1.0", "-1", "0.1", "1e400"[:3] + "5", "123456789012345678901234567890.5"])
def test_numbers_keep_their_kind(number: str) -> None:
    """`1` is an integer and `1.0` is not; a long run of digits before a point is still a float."""
    assert exactly(loads(number.encode()), json.loads(number))


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\udc00\ud83d", "é\ud83d\u2028"])
@pytest.mark.parametrize("place", ["value", "key"])
def test_lone_surrogates_survive(text: str, place: str) -> None:
    """They are written as the escapes that JSON has for them, in valid UTF-8, and come back the same."""
    value = {"a": text} if place == "value" else {text: 1}
    line = dumps(value)
    line.decode("utf-8")
    assert loads(line) == value
    assert dumps(loads(line)) == line


def test_split_pairs_become_one_character() -> None:
    """Two halves beside each other mean one character, in whatever way they were written."""
    assert loads(dumps(["\ud83d\ude00"])) == ["😀"]
    assert loads(b'"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize("text", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b", "\x00\x1f\x7f", "</script>", '"\\/'])
def test_odd_characters_stay_in_one_line(text: str) -> None:
    """Whatever some libraries take for a line end is text here."""
    line = dumps({"a": text})
    assert loads(line) == {"a": text}
    assert line.count(b"\n") == line.count(b"\r") == 0


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"a": [0, {"b": float("nan")}]}, ValueError, r"\$\.a\[1\]\.b: expected a JSON number, got nan"),
        ([float("inf")], ValueError, r"\$\[0\]: expected a JSON number, got inf"),
        ([2**70, -float("inf")], ValueError, r"\$\[1\]: expected a JSON number, got -inf"),
        ({"a": {1: 2}}, TypeError, r"\$\.a: expected string keys, got 1 \(int\)"),
        ({"a": [b"x"]}, TypeError, r"\$\.a\[0\]: expected a JSON value, got bytes"),
        ([2**14_284], ValueError, r"\$\[0\]: expected an integer of at most 14284 bits"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_path(value: Any, kind: type[Exception], words: str) -> None:
    """Nothing is repaired or turned into null without a word."""
    with pytest.raises(kind, match=words):
        dumps(value)


def test_null_is_no_number() -> None:
    """A null beside numbers, and the word in a text, are no reason to refuse."""
    value = {"a": None, "b": "null", "c": [1.5, None]}
    assert loads(dumps(value)) == value


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def test_deep_values_are_written_and_read() -> None:
    """As deep as a line may be, where the fast library stops at 253; one more is refused in words."""
    deep = nested(MAX_DEPTH)
    line = dumps(deep)
    assert line == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH
    assert dumps(loads(line)) == line
    with pytest.raises(ValueError, match="expected at most 1024 levels of nesting, got more"):
        dumps([deep])


def test_no_depth_overflows_the_stack() -> None:
    """A hundred thousand levels are an error of the line, also where the slow way reads it."""
    deep = 100_000
    for leaf in (b"1", b"9" * 30):
        with pytest.raises(ValueError, match=r"depth|levels"):
            loads(b"[" * deep + leaf + b"]" * deep)
    with pytest.raises(ValueError, match="levels"):
        dumps(nested(5_000))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"[NaN,11111111111111111111]",
        b"[1e999,11111111111111111111]",
        b"1e400",
        b'{"a":1,}',
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\xff11111111111111111111"',
        b'"\\ud83d" \xff',
        b'"\\ud83d" trailing',
        b'"\n"',
        b"01",
        b"9" * 4_400,
    ],
)
def test_what_is_no_line_is_a_value_error(line: bytes) -> None:
    """One kind of error for all damage, also where the slow way reads."""
    with pytest.raises(ValueError):  # noqa: PT011  # the words are the JSON library's
        loads(line)


def test_of_two_equal_keys_the_last_counts() -> None:
    """On the fast way and on the slow one."""
    assert loads(b'{"a":1,"a":2}') == {"a": 2}
    assert loads(b'{"a":1,"a":18446744073709551616}') == {"a": 2**64}


def test_key_order_is_kept() -> None:
    """Also of keys that look like numbers."""
    text = b'{"b":1,"10":2,"a":3,"2":4}'
    assert dumps(loads(text)) == text


def test_both_ways_of_writing_give_the_same_bytes() -> None:
    """Floats and escapes do not depend on what else stands in the line."""
    value = {
        "f": [1e16, 1e-7, 0.1, -0.0, 1.5e300, 5e-324],
        "t": '\x00\x1f\x7f"\\/é😀\u2028',
        "n": None,
        "e": {},
        "l": [],
    }
    slow = dumps([value, 2**70])
    assert slow == b"[" + dumps(value) + b"," + str(2**70).encode() + b"]"


def test_every_line_of_the_sample_traces_comes_back_the_same(shared: Path) -> None:
    """Bytes out equal bytes in."""
    seen = 0
    for path in sorted((shared / "traces").glob("*/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                record = loads(line)
            except ValueError:
                continue
            assert dumps(record) == line, path
            seen += 1
    assert seen > 400


def test_hostile_lines_take_linear_time() -> None:
    """Counted in steps of the interpreter, not in seconds: ten times the line, about ten times the steps."""

    def wide(size: int) -> Any:
        return {"k" * size: [2**70] * size}

    small, large = lines(lambda: dumps(wide(300))), lines(lambda: dumps(wide(3_000)))
    assert large < 12 * small


def test_what_could_not_be_written_does_not_enter() -> None:
    """An integer too long for any line is refused where JSON enters a message, not when a record is written."""
    assert loads(dumps(freeze_json({"a": 2**14_283}))) == {"a": 2**14_283}
    with pytest.raises(ValueError, match=r"\$\.a: expected an integer of at most 14284 bits"):
        freeze_json({"a": 2**14_284})
