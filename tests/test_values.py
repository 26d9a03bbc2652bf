"""What values hold: read-only JSON, text that is always valid."""

from __future__ import annotations

import copy
import enum
import math
import pickle
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agentloop._values import (
    MAX_INTEGER_BITS,
    MAX_JSON_DEPTH,
    ReadOnlyDict,
    ReadOnlyList,
    as_tuple,
    errors_of,
    freeze_json,
    frozen_json,
    frozen_object,
    meant,
    order_to_leave,
    plain_text,
    same_json,
    stitch,
    thaw_json,
    valid_text,
)

FROZEN = freeze_json({"a": [1, {"b": None}], "c": 1.5})

CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda d: d.__setitem__("a", 1), "delete": lambda d: d.__delitem__("a"), "clear": lambda d: d.clear(),
    "pop": lambda d: d.pop("a"), "popitem": lambda d: d.popitem(), "setdefault": lambda d: d.setdefault("z", 1),
    "update": lambda d: d.update(z=1), "or": lambda d: d.__ior__({"z": 1}),
    "list set": lambda d: d["a"].__setitem__(0, 1), "list delete": lambda d: d["a"].__delitem__(0),
    "append": lambda d: d["a"].append(1), "extend": lambda d: d["a"].extend([1]),
    "insert": lambda d: d["a"].insert(0, 1), "list pop": lambda d: d["a"].pop(),
    "remove": lambda d: d["a"].remove(1), "list clear": lambda d: d["a"].clear(), "sort": lambda d: d["a"].sort(),
    "reverse": lambda d: d["a"].reverse(), "add": lambda d: d["a"].__iadd__([1]),
    "multiply": lambda d: d["a"].__imul__(2), "inside": lambda d: d["a"][1].clear(),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_json_values_are_read_only(change: str) -> None:
    """Every way to change an object or an array raises, at any depth."""
    with pytest.raises(TypeError, match="read-only"):
        CHANGES[change](FROZEN)
    assert FROZEN == {"a": [1, {"b": None}], "c": 1.5}


def test_copies_of_json_values_can_be_changed() -> None:
    """`copy`, `deepcopy` and `thaw_json` give plain dicts and lists; a shallow copy's parts stay read-only."""
    for made in (copy.deepcopy(FROZEN), thaw_json(FROZEN)):
        assert made == FROZEN
        assert [type(made), type(made["a"]), type(made["a"][1])] == [dict, list, dict]
    assert type(copy.copy(FROZEN)) is dict
    assert type(copy.copy(FROZEN)["a"]) is ReadOnlyList
    assert type(copy.copy(FROZEN["a"])) is list
    assert type(copy.deepcopy(FROZEN["a"])[1]) is dict
    assert thaw_json("text") == "text"


def test_json_values_hash_and_pickle() -> None:
    """Equal ones have one hash, whatever the order of keys; a pickled one comes back read-only."""
    assert hash(freeze_json({"a": 1, "b": [2]})) == hash(freeze_json({"b": [2], "a": 1}))
    assert hash(freeze_json([1, [2]])) == hash(freeze_json([1, [2]])) != hash(freeze_json([1, [3]]))
    assert hash(freeze_json({"a": 1})) != hash(freeze_json({"a": 2}))
    for value in (FROZEN, FROZEN["a"]):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert type(again) is type(value)


class Colour(enum.IntEnum):
    RED = 3


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class OfName:
    """A proxy of a text of a class of its own."""

    @property
    def __class__(self) -> Any:
        return Name

    def __str__(self) -> str:
        return Name("a")


class Half(float):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "frozen_value"),
    [
        ("a\ud83d", "a\ufffd"),
        (None, None),
        (True, True),
        (7, 7),
        (1.0, 1.0),
        (Colour.RED, 3),
        (Name("x"), "x"),
        (Half(0.5), 0.5),
        ((1, (2,)), [1, [2]]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (UserDict(a=[1]), {"a": [1]}),
        ({"\ud83d": 1, Name("k"): 2}, {"\ufffd": 1, "k": 2}),
        ((1 << MAX_INTEGER_BITS) - 1, (1 << MAX_INTEGER_BITS) - 1),
    ],
)
def test_what_json_can_say_enters_as_plain_values(value: Any, frozen_value: Any) -> None:
    """Text valid, subclasses plain, tuples and mappings as arrays and objects, key order and number types kept."""
    made = freeze_json(value)
    assert made == frozen_value
    plain = {dict: ReadOnlyDict, list: ReadOnlyList}
    assert type(made) is plain.get(type(frozen_value), type(frozen_value))
    if isinstance(made, dict):
        assert list(made) == list(frozen_value)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ({"a": [0, math.nan]}, ValueError, "$.a[1]: expected a JSON number, got nan"),
        (math.inf, ValueError, "$: expected a JSON number, got inf"),
        (Half("inf"), ValueError, "$: expected a JSON number, got inf"),
        (1 << MAX_INTEGER_BITS, ValueError, "$: expected an integer of at most 14284 bits, got a longer one"),
        ({1: 2}, TypeError, "$: expected string keys, got 1 (int)"),
        ({"a": {1: 2}}, TypeError, "$.a: expected string keys, got 1 (int)"),
        ([b"x"], TypeError, "$[0]: expected a JSON value, got bytes"),
        (bytearray(), TypeError, "$: expected a JSON value, got bytearray"),
        (memoryview(b""), TypeError, "$: expected a JSON value, got memoryview"),
        ({1, 2}, TypeError, "$: expected a JSON value, got set"),
    ],
)
def test_what_json_cannot_say_is_refused_by_its_place(value: Any, error: type[Exception], words: str) -> None:
    """The error names the path, what was expected and what came."""
    with pytest.raises(error) as caught:
        freeze_json(value)
    assert str(caught.value) == words


def nested(depth: int, as_list: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if as_list else {"a": value}
    return value


@pytest.mark.parametrize("as_list", [True, False])
def test_nesting_is_bounded(as_list: bool) -> None:
    """`MAX_JSON_DEPTH` levels enter, one more does not; the path can be given."""
    assert freeze_json(nested(MAX_JSON_DEPTH, as_list)) == nested(MAX_JSON_DEPTH, as_list)
    with pytest.raises(ValueError, match=r"^details.*: expected at most 200 levels of nesting, got more$"):
        freeze_json(nested(MAX_JSON_DEPTH + 1, as_list), "details")


def test_the_converters_have_the_same_bound() -> None:
    """A field of a value takes what `freeze_json` takes, and no level more."""
    for convert, as_list in ((frozen_object, False), (frozen_json, True), (frozen_json, False)):
        assert convert(nested(MAX_JSON_DEPTH, as_list)) == nested(MAX_JSON_DEPTH, as_list)
        with pytest.raises(ValueError, match="expected at most 200 levels"):
            convert(nested(MAX_JSON_DEPTH + 1, as_list))


@pytest.mark.parametrize("as_list", [True, False])
def test_what_is_frozen_already_counts_with_its_own_nesting(as_list: bool) -> None:
    """A value that is put into another again and again (what each result says of the one before) has the same bound."""
    inner = freeze_json(nested(MAX_JSON_DEPTH - 1, as_list))
    whole = freeze_json([inner])
    assert whole[0] is inner
    assert freeze_json(whole) is whole
    for given in ([whole], {"a": whole}):
        with pytest.raises(ValueError, match=r"^details.*: expected at most 200 levels of nesting, got more$"):
            freeze_json(given, "details")
        with pytest.raises(ValueError, match="expected at most 200 levels"):
            frozen_json(given)


def test_what_is_frozen_is_not_copied_again() -> None:
    """A read-only value is itself."""
    assert freeze_json(FROZEN) is FROZEN
    assert freeze_json([FROZEN["a"]])[0] is FROZEN["a"]


def test_what_may_have_been_meant() -> None:
    """The closest name, at the end of an error's text; nothing where none is close."""
    assert meant("max_turn", ["model", "max_turns"]) == " (did you mean max_turns?)"
    assert meant("colour", {"model": 1, "max_turns": 2}) == ""


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), ({"a": [1]}, {"a": [True]}), ([], {}), ([1], [])]
)
def test_what_only_python_calls_equal_is_not_the_same_json(one: Any, other: Any) -> None:
    """A value is the same as itself and as its copy, whatever the order of its keys."""
    assert not same_json(one, other)
    assert not same_json({"a": one}, {"a": other})
    assert same_json({"a": one, "b": [other]}, freeze_json({"b": [other], "a": one}))


def test_sequences_of_any_kind_become_tuples() -> None:
    """Also what can be read once only."""
    assert as_tuple(iter("ab")) == ("a", "b")


def test_optional_objects() -> None:
    """None and an empty object are None; what is no object is refused; any other JSON value has a converter of its own."""
    empty: Mapping[str, Any] = {}
    assert frozen_object(None) is None
    assert frozen_object(empty) is None
    assert type(frozen_object({"a": 1})) is ReadOnlyDict
    wrong: Any = [1]
    with pytest.raises(TypeError, match="expected a JSON object or None, got list"):
        frozen_object(wrong)
    with pytest.raises(ValueError, match=r"^\$\.a: "):
        frozen_object({"a": math.nan})
    assert frozen_json(None) is None
    assert type(frozen_json([])) is ReadOnlyList
    with pytest.raises(ValueError, match=r"^\$\[0\]: "):
        frozen_json([math.nan])


def test_text_is_made_valid() -> None:
    """Split pairs are joined, lone halves replaced; text that is valid is itself, whether ASCII or not."""
    for text in ("abc", "äö😀", ""):
        assert valid_text(text) is text
    assert valid_text("a\ud83d\ude00b\ude00\ud83dc") == "a😀b\ufffd\ufffdc"
    own: list[Any] = [Name("a"), OfName()]
    assert [(type(valid_text(text)), valid_text(text)) for text in own] == [(str, "a")] * 2
    for value in (b"abc", bytearray(b"abc"), None, 7):
        with pytest.raises(TypeError, match=f"expected text, got {type(value).__name__}"):
            valid_text(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected text, got dict; json\.dumps\(…\) makes JSON text of it$"):
        valid_text({"a": 1})  # type: ignore[arg-type]  # as the arguments of a call


@pytest.mark.parametrize(
    ("carry", "text", "made"),
    [
        ("", "ab", ("ab", "")),
        ("", "a\ud83d", ("a", "\ud83d")),
        ("", "a" + chr(0xD800), ("a", chr(0xD800))),
        ("", "a" + chr(0xDBFF), ("a", chr(0xDBFF))),
        ("", "a\udc00", ("a\ufffd", "")),
        ("", "a\ud7ff", ("a\ud7ff", "")),
        ("\ud83d", "\ude00", ("😀", "")),
        ("\ud83d", "b", ("\ufffdb", "")),
        ("\ud83d", "", ("", "\ud83d")),
        ("\ud83d", "\ud83d", ("\ufffd", "\ud83d")),
        ("", "", ("", "")),
    ],
)
def test_half_a_pair_at_the_end_waits(carry: str, text: str, made: tuple[str, str]) -> None:
    """The first half of a pair is carried to the next piece; anything else is valid text at once."""
    assert stitch(carry, text) == made


def test_the_order_to_leave_that_a_group_holds() -> None:
    """However deep it stands among other errors; the first of several; None where there is none."""
    keyboard, leave = KeyboardInterrupt(), SystemExit()
    assert order_to_leave(None) is None
    assert order_to_leave(ValueError()) is None
    assert order_to_leave(keyboard) is keyboard
    assert order_to_leave(leave) is leave
    inner = BaseExceptionGroup("inner", [ValueError(), keyboard])
    assert order_to_leave(BaseExceptionGroup("outer", [ValueError(), inner, leave])) is keyboard
    assert order_to_leave(BaseExceptionGroup("outer", [leave, inner])) is leave
    assert order_to_leave(ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError()])])) is None


@pytest.mark.parametrize("says", ["gone", None, "itself"])
def test_a_group_of_a_class_of_its_own_holds_what_it_was_made_of(says: str | None) -> None:
    """Whatever it has under the name by which groups say that: it may fail, be none, or lead back to the group for ever."""

    class Own(BaseExceptionGroup[BaseException]):
        @property
        def exceptions(self) -> Any:
            if says == "gone":
                raise LookupError(says)
            return (self,) if says else None

    keyboard = KeyboardInterrupt()
    assert errors_of(Own("own", [keyboard])) == (keyboard,)
    assert order_to_leave(Own("own", [ValueError(), keyboard])) is keyboard
    assert order_to_leave(Own("own", [ValueError()])) is None


def test_a_text_of_a_class_of_its_own_is_a_plain_one() -> None:
    """None for what is no text, also what only passes for one."""

    class Loud(str):
        def __str__(self) -> str:
            return self.upper()

    class Passes:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            return str

    said = plain_text(Loud("a"))
    assert (said, type(said)) == ("a", str)
    assert [plain_text(value) for value in ("b", "", None, 5, b"b", Passes())] == ["b", "", None, None, None, None]
