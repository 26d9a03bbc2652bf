"""What tools return: every value becomes something defined."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import uuid
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._results import NO_OUTPUT, as_result, error_text, object_text
from agentloop.messages import Image, InlineData, Text, ToolResult


class Color(enum.Enum):
    RED = "red"


class Name(enum.StrEnum):
    A = "a"


@attrs.frozen
class Place:
    name: str
    at: tuple[int, int] = (1, 2)


@dataclasses.dataclass
class Stay:
    place: Place
    nights: int


class Pair(NamedTuple):
    a: int
    b: str


class Silent:
    def __str__(self) -> str:
        return " \n"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NotText:
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class BrokenDump:
    def model_dump(self, mode: str) -> dict[str, Any]:
        raise RuntimeError("no dump")

    def __str__(self) -> str:
        return "a model"


class Dumps:
    def model_dump(self, mode: str) -> dict[str, Any]:
        return {"mode": mode}


circular: list[Any] = [1]
circular.append(circular)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ((), ()),
        ("text", (Text("text"),)),
        ("\x00\x1b[31m", (Text("\x00\x1b[31m"),)),
        ("a\ud800b", (Text("a\ufffdb"),)),
        ("\ud83d\ude00", (Text("\U0001f600"),)),
        (Name.A, (Text("a"),)),
        (Text("t"), (Text("t"),)),
        (Image("https://example.org/a.png"), (Image("https://example.org/a.png"),)),
        ([Text("a"), "b", InlineData("AAAA", "image/png")], (Text("a"), Text("b"), InlineData("AAAA", "image/png"))),
        ((Text("a"),), (Text("a"),)),
        (["a", "b"], (Text('["a","b"]'),)),
        ([1, None, {"a": 2.5}], (Text('[1,null,{"a":2.5}]'),)),
        (5, (Text("5"),)),
        (10**30, (Text("1" + "0" * 30),)),
        pytest.param(10**5000, (Text("int"),), id="too many digits"),
        (True, (Text("true"),)),
        (2.5, (Text("2.5"),)),
        (float("nan"), (Text("nan"),)),
        (b"text", (Text("text"),)),
        (bytearray("é".encode()), (Text("é"),)),
        (b"\xff\x00", (Text("[binary data, 2 bytes]"),)),
        (Color.RED, (Text("red"),)),
        (datetime.date(2026, 1, 31), (Text("2026-01-31"),)),
        (pathlib.PurePosixPath("a/b"), (Text("a/b"),)),
        (decimal.Decimal("0.10"), (Text("0.10"),)),
        ({8, 1}, (Text("[1,8]"),)),
        (uuid.UUID(int=1), (Text("00000000-0000-0000-0000-000000000001"),)),
        (circular, (Text('[1,"[circular]"]'),)),
        (Silent(), (Text("Silent"),)),
        (Broken(), (Text("Broken"),)),
        (NotText(), (Text("NotText"),)),
        (BrokenDump(), (Text("a model"),)),
        (Color, (Text("<enum 'Color'>"),)),
    ],
)
def test_values_become_content(value: Any, content: Any) -> None:
    """Text, blocks, JSON, or what an object says of itself; no error, whatever it is."""
    assert as_result(value) == ToolResult(content)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({}, {}),
        ({"a": [1, "é"]}, {"a": [1, "é"]}),
        ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "null": "b", "[1,2]": "c"}),
        (Place("x"), {"name": "x", "at": [1, 2]}),
        (Stay(Place("x"), 2), {"place": {"name": "x", "at": [1, 2]}, "nights": 2}),
        (Pair(1, "b"), {"a": 1, "b": "b"}),
        (Dumps(), {"mode": "json"}),
        ({"when": datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)}, {"when": "2026-01-31T00:00:00+00:00"}),
        (
            {"bytes": b"hi", "object": Silent(), "inf": float("inf")},
            {"bytes": "aGk=", "object": "Silent", "inf": "inf"},
        ),
        ({"k\ud800": "v\ud800"}, {"k\ufffd": "v\ufffd"}),
    ],
)
def test_objects_are_json_and_structured(value: Any, data: Any) -> None:
    """An object is text for the model and data for the application."""
    result = as_result(value)
    assert result.structured == data
    assert json.loads(result.text) == data
    assert not result.is_error


def test_a_result_is_itself() -> None:
    """What is a result already is not touched."""
    result = ToolResult("t", details={"a": 1}, terminate=True)
    assert as_result(result) is result


def test_a_block_that_is_none_is_told_and_the_good_ones_stay() -> None:
    """Nothing of what the tool said is lost, and nobody takes the rest for what it is not."""
    result = as_result([Text("good part"), {"type": "video", "url": "x"}, Broken()])
    assert result.is_error
    assert [block.text for block in result.content if isinstance(block, Text)] == [
        "good part",
        "content[1]: expected a content block or text, got dict: {'type': 'video', 'url': 'x'}",
        "content[2]: expected a content block or text, got Broken: Broken",
    ]
    assert len(as_result([Text("a"), ["x" * 1000]]).text) < 500


def test_a_returned_exception_is_an_error() -> None:
    """Its text unchanged; its class name where it says nothing."""
    assert as_result(ValueError(" no such file\n")) == ToolResult(" no such file\n", is_error=True)
    assert as_result(KeyError()) == ToolResult("KeyError", is_error=True)


def test_texts_of_exceptions() -> None:
    """Never blank, never raising, always valid Unicode."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert [error_text(error) for error in (Mute(), ValueError("  "), ValueError("\ud800"), KeyError("a"))] == [
        "Mute", "ValueError", "\ufffd", "'a'",
    ]  # fmt: skip
    assert object_text(object()).startswith("<object object at")


def test_very_deep_values() -> None:
    """Values deeper than JSON may be are cut where they are, and deeper than Python can follow named."""
    deep: Any = "end"
    for _ in range(250):
        deep = [deep]
    assert json.loads(as_result(deep).text)
    assert "[nested too deep]" in as_result(deep).text
    for _ in range(100_000):
        deep = [deep]
    assert as_result(deep).text


def test_an_empty_result_is_left_to_the_loop() -> None:
    """The words for it stand here, the loop uses them."""
    assert NO_OUTPUT == "[no output]"
    assert as_result(None).content == ()


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), lambda inner: st.lists(inner)
       | st.dictionaries(st.text() | st.integers(), inner) | st.frozensets(st.integers()), max_leaves=8))  # fmt: skip
def test_any_data_gives_valid_text(value: Any) -> None:
    """Encodable as UTF-8, the structured part JSON that reads back."""
    result = as_result(value)
    result.text.encode()
    if result.structured is not None:
        assert json.loads(result.text) == json.loads(json.dumps(result.structured))


def test_an_awaitable_inside_a_value_is_an_error_in_its_place() -> None:
    """Not the `repr` of a coroutine, with an address, as if it were data; nor is there a warning that nobody awaited it."""

    async def fetch() -> int:
        return 1

    words = "expected a value, got a coroutine that nobody awaited"
    listed = as_result([1, fetch()])
    assert (listed.text, listed.is_error) == (f'[1,"{words}"]', True)
    named = as_result({"a": {"b": fetch()}})
    assert (named.structured, named.is_error) == ({"a": {"b": words}}, True)
    blocks = as_result([Text("a"), fetch()])
    assert ([block.text for block in blocks.content], blocks.is_error) == (["a", f"content[1]: {words}"], True)  # type: ignore[union-attr]
