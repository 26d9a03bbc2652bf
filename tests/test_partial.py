"""Arguments that still stream: what is shown of them is the beginning of what they come to."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._jsontext import parse_json
from agentloop._values import MAX_JSON_DEPTH
from agentloop.partial import PartialArguments
from tests.costs import lines

LONG_NUMBER = re.compile("[0-9]{19}")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(['"\\/', "\U0001f600x", "\u2028\u0085", "\b\f\n\r\t\x00"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)
objects = st.dictionaries(texts, values, max_size=4)


def begins(part: Any, whole: Any) -> bool:
    """Whether `part` is what can be known of `whole` at some moment."""
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(part, dict) and isinstance(whole, dict):
        names = list(part)
        return (
            names == list(whole)[: len(names)]
            and all(part[name] == whole[name] for name in names[:-1])
            and all(begins(part[name], whole[name]) for name in names[-1:])
        )
    if isinstance(part, list) and isinstance(whole, list):
        return (
            len(part) <= len(whole)
            and part[:-1] == whole[: max(len(part) - 1, 0)]
            and all(map(begins, part[-1:], whole[len(part) - 1 : len(part)]))
        )
    return type(part) is type(whole) and part == whole


@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_each_beginning_shows_a_beginning(whole: Any, ascii: bool, indent: int | None) -> None:
    """Of each prefix, fed at once, the value is a beginning of the final one, and only the whole is complete."""
    text = json.dumps(whole, ensure_ascii=ascii, indent=indent)
    for end in range(len(text)):
        partial = PartialArguments(text[:end])
        assert partial.problem is None
        assert not partial.complete
        assert begins(partial.value, whole) or (partial.value is None and end == 0)


@given(objects, st.booleans(), st.data())
def test_how_it_is_cut_makes_no_difference(whole: Any, ascii: bool, data: st.DataObject) -> None:
    """Fed piece by piece, with a look after each or not, it shows what the text so far shows when it is read at once."""
    text = json.dumps(whole, ensure_ascii=ascii)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    partial, before = PartialArguments(), None
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        partial.feed(text[start:end])
        if data.draw(st.booleans()):
            assert partial.value == PartialArguments(text[:end]).value
            assert before is None or begins(before, partial.value)
            before = copy.deepcopy(partial.value)
    assert partial.complete
    assert partial.value == whole == parse_json(text)
    if not LONG_NUMBER.search(text):  # orjson reads integers beyond 64 bits as floats
        assert partial.value == orjson.loads(text)


@given(objects, st.integers(0, 200), st.sampled_from('{}[]",:\\x1-\x00 é'))
def test_text_that_is_wrong_is_wrong_here_too(whole: Any, place: int, noise: str) -> None:
    """A text with a character too many is complete exactly if it is JSON all the same, and then its value is right;
    nothing raises, and nothing that comes later heals it."""
    text = json.dumps(whole)
    text = text[:place] + noise + text[place:]
    partial = PartialArguments(text)
    for more in ("", '"}]}', " "):
        text += more
        partial.feed(more)
        try:
            expected = parse_json(text)
        except ValueError:
            assert not partial.complete
        else:
            assert partial.complete
            assert partial.value == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("  ", None),
        ("{", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a": "', {"a": ""}),
        ('{"a": "b', {"a": "b"}),
        ('{"a": "b\\', {"a": "b"}),
        ('{"a": "b\\u00e', {"a": "b"}),
        ('{"a": "b\\ud83d', {"a": "b"}),
        ('{"a": "b\\ud83d\\', {"a": "b"}),
        ('{"a": "b\\ud83d\\ude0', {"a": "b"}),
        ('{"a": "b\\ud83d\\ude00', {"a": "b😀"}),
        ('{"a": "b\\ud83dx', {"a": "b\ufffdx"}),
        ('{"a": "b\\ud83d\\n', {"a": "b\ufffd\n"}),
        ('{"a": "b\\ud83d\\ud83d\\ude00', {"a": "b\ufffd😀"}),
        ('{"a": "\\ude00', {"a": "\ufffd"}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": tru', {}),
        ('{"a": true ', {"a": True}),
        ('{"a": [1, 2', {"a": [1]}),
        ('{"a": [{"b": [', {"a": [{"b": []}]}),
        ('{"a": 18446744073709551617}', {"a": 18446744073709551617}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('"alone', "alone"),
    ],
)
def test_what_is_shown(text: str, value: Any) -> None:
    """Open strings as far as they are certain, open containers; numbers, words and keys once they are whole."""
    partial = PartialArguments(text)
    assert partial.value == value
    assert partial.problem is None


@pytest.mark.parametrize(
    ("text", "value", "problem"),
    [
        ('{"a": 1]', {"a": 1}, "character 7: expected , or end, got ']'"),
        ("{a", {}, "character 1: expected key or }, got 'a'"),
        ('{"a" 1', {}, "character 5: expected :, got '1'"),
        ('{"a": 1,}', {"a": 1}, "character 8: expected key, got '}'"),
        ('{"a": [1,]', {"a": [1]}, "character 9: expected value, got ']'"),
        ('{"a": nul}', {}, "character 6: expected a number, true, false or null, got 'nul'"),
        ('{"a": NaN}', {}, "character 6: expected value, got 'N'"),
        ('{"a": 01}', {}, "character 6: expected a number, true, false or null, got '01'"),
        ('{"a": 1e999}', {}, "character 6: expected a number, true, false or null, got '1e999'"),
        ('{"a": "x\ny"}', {"a": "x"}, "character 8: expected no control character in a string, got '\\n'"),
        ('{"a": "\\x"}', {"a": ""}, "character 7: expected an escape, got '\\\\x'"),
        ('{"a": "\\u12g"}', {"a": ""}, "character 7: expected four hexadecimal digits after \\u, got '12g\"'"),
        ("{} {}", {}, "character 3: expected nothing, got '{'"),
    ],
)
def test_what_is_wrong(text: str, value: Any, problem: str) -> None:
    """The first wrong character is named, the value up to it stays, and nothing after it is read."""
    partial = PartialArguments(text)
    assert partial.problem == problem
    partial.feed('{"b": 2}')
    assert (partial.value, partial.problem, partial.complete) == (value, problem, False)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_is_bounded(opening: str) -> None:
    """As deep as arguments may be, and not one level deeper, without recursion."""
    assert PartialArguments(opening * MAX_JSON_DEPTH).problem is None
    partial = PartialArguments(opening * 100_000)
    assert f"nested deeper than {MAX_JSON_DEPTH} levels" in (partial.problem or "")
    assert repr(partial).startswith("<PartialArguments wrong")


@pytest.mark.parametrize("kind", ["one long string", "many strings", "many numbers", "escapes"])
def test_all_looks_together_are_linear(kind: str) -> None:
    """A look after every delta runs twice as many lines for twice the text, and copies an open string a bounded number
    of times: the interpreter is asked, not the clock."""
    assert steps(kind, 40_000) < 2.5 * steps(kind, 20_000)


def steps(kind: str, size: int) -> int:
    """Lines that ran, and characters copied into an open string."""
    unit = {"one long string": "word ", "many strings": '", "', "many numbers": "0.5, ", "escapes": "\\u00e9"}[kind]
    start = '{"a": [1, ' if kind == "many numbers" else '{"a": ["'
    partial, copied, last = PartialArguments(start), 0, ""

    def look() -> None:
        nonlocal copied, last
        for _ in range(size // len(unit)):
            partial.feed(unit)
            shown = partial.value["a"][-1]
            if isinstance(shown, str) and shown is not last:
                copied += len(shown)
                last = shown

    ran = lines(look)
    return ran + copied


def test_nothing_is_parsed_before_somebody_looks() -> None:
    """Feeding keeps pieces; even text that is wrong is noticed only by a look."""
    partial = PartialArguments()
    for piece in ("{", "x"):
        partial.feed(piece)
    assert partial._pending == ["", "{", "x"]
    assert partial.problem == "character 1: expected key or }, got 'x'"
