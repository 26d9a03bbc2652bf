"""The JSON text of arguments: exact, finite, bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._jsontext import json_text, number_in, parse_json
from agentloop._values import nesting

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_a_value_survives_the_way_out_and_back(value: object) -> None:
    """What is written reads back equal, integers of any size and all doubles included."""
    assert parse_json(json_text(value)) == json.loads(json.dumps(value))


@pytest.mark.parametrize("number", [2**63, 2**64, 10**40, -(10**30), 12345678901234567890])
def test_integers_beyond_64_bits_stay_exact(number: int) -> None:
    """No integer of arguments ever becomes a float."""
    value = parse_json(f'{{"n": {number}}}')
    assert value == {"n": number}
    assert type(value["n"]) is int
    assert json_text(value) == f'{{"n":{number}}}'


def test_the_last_of_equal_keys_counts() -> None:
    """Duplicates are no error, on the fast path and on the exact one."""
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}
    assert parse_json('{"a": 1, "a": 12345678901234567890123}') == {"a": 12345678901234567890123}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no JSON number"),
        ('{"a": 1e400}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ('{"a": 1} junk', "Extra data"),
        ("{'a': 1}", "Expecting property name"),
        ('{"a": 1', "Expecting"),
        ("[" * 201 + "]" * 201, "deeper than 200 levels"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "deeper than 200 levels"),
        ('{"a":' * 100_000, "deeper than 200 levels"),
        ('{"n": 12345678901234567890, "a":' + "[" * 300 + "]" * 300 + "}", "deeper than 200 levels"),
    ],
)
def test_what_is_no_json_is_refused_with_its_reason(text: str, reason: str) -> None:
    """A `ValueError` in every case, never a `RecursionError`, never a value that is not what was sent."""
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_the_deepest_nesting_that_is_allowed() -> None:
    """200 levels pass; brackets inside text do not count."""
    assert nesting(parse_json("[" * 200 + "]" * 200)) == 200
    assert parse_json('{"a": "' + "[" * 500 + '"}') == {"a": "[" * 500}


def test_lone_surrogates_become_the_replacement_character() -> None:
    """In values and keys, as escapes and as raw text; a pair in two escapes is one character."""
    assert parse_json('{"s": "\\udc00"}') == {"s": "\ufffd"}
    assert parse_json('{"\\ud800k": ["\ud800"]}') == {"\ufffdk": ["\ufffd"]}
    assert parse_json('{"s": "\\ud83d\\ude00 12345678901234567890"}') == {"s": "\U0001f600 12345678901234567890"}


@pytest.mark.parametrize(
    ("text", "number"),
    [("5", 5), (" -5 ", -5), ("5.0", 5.0), ("1e3", 1000.0), ("12345678901234567890123", 12345678901234567890123)],
)
def test_text_that_spells_a_number(text: str, number: float) -> None:
    """A JSON number, blanks around it allowed, its own type kept."""
    found = number_in(text)
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    "text", ["", "x", "5 apples", "05", "+5", "0x10", "1_000", "٥", "NaN", "Infinity", "1e999", "9" * 5000]
)
def test_text_that_spells_none(text: str) -> None:
    """What JSON would not call a number is none."""
    assert number_in(text) is None


@pytest.mark.parametrize("piece", ["[],", "123456789012345678 ,", '"\\ud800",', "12345678901234567890,"])
def test_long_texts_are_read(piece: str) -> None:
    """Texts made of what the checks look for are read at once; a reader of quadratic time would not end on them."""
    assert len(parse_json(f"[{piece * 200_000}0]")) == 200_001
