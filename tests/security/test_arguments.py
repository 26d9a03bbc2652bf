"""What a hostile model, or the author of a tool's schema, can send for arguments; and a hostile policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from agentloop.approval import Policy
from agentloop.errors import InvalidArguments, PolicyError
from agentloop.partial import PartialArguments
from agentloop.tools import Tool, tool


@attrs.frozen
class Place:
    """A place."""

    name: str


@tool
async def typed(place: Place, extra: dict[str, Any] | None = None, count: int = 0) -> str:
    """Typed."""
    return f"{place} {extra}"


raw = Tool("raw", "Raw.", {"type": "object", "properties": {"n": {"type": "integer"}}}, lambda arguments: "x")
ODD = ["__class__", "__proto__", "__dict__", "__init__", "constructor", "self", "ctx", "{0.__class__}", "%s%n", "$ref"]


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_are_only_keys(key: str) -> None:
    """Keys that mean something to an interpreter are data in a free object, and refused where fields are fixed; braces and
    percent signs are said as they came."""
    text = f'{{"place":{{"name":"a"}},"extra":{{"{key}":1}}}}'
    assert typed.prepare(text).arguments["extra"] == {key: 1}
    assert raw.prepare(f'{{"{key}":1}}').arguments == {key: 1}
    for wrong in (f'{{"place":{{"name":"a","{key}":1}}}}', f'{{"place":{{"name":"a"}},"{key}":1}}'):
        with pytest.raises(InvalidArguments) as caught:
            typed.prepare(wrong)
        assert key in str(caught.value)


def test_doubled_keys() -> None:
    """Of equal keys the last counts, everywhere alike: in what runs, and in what is shown while it streams."""
    text = '{"n":1,"n":2}'
    assert raw.prepare(text).arguments == {"n": 2}
    assert raw.prepare(text).text == '{"n":2}'
    assert PartialArguments(text).value == {"n": 2}


@pytest.mark.parametrize("each", [typed, raw], ids=["typed", "raw"])
@pytest.mark.parametrize(
    "text",
    [
        '{"count":' + "9" * 100_000 + "}",
        '{"count":1e999999999}',
        '{"count":"' + "9" * 100_000 + '"}',
        '{"n":' + "[" * 100_000,
        '{"extra":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}",
        '{"place":"' + "[" * 100_000 + '"}',
        '{"place":{"name":"\\ud800\\ud800"}}',
        "[" * 100_000,
        "{" + ",".join(f'"k{n}":"x"' for n in range(20_000)) + "}",
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_huge_and_deep_arguments(each: Tool, text: str) -> None:
    """Numbers, nesting and counts beyond all measure: prepared, or refused in bounded words; the stack holds."""
    before = sys.getrecursionlimit()
    try:
        prepared = each.prepare(text)
        assert len(prepared.text) < 1_000_000
    except InvalidArguments as error:
        assert len(str(error)) < 10_000  # noqa: PT017
    assert sys.getrecursionlimit() == before


BOMBS = {
    "dotted key": "a." * 60_000 + "a=1",
    "dotted header": "[" + "a." * 60_000 + "a]",
    "quoted dotted key": '"a".' * 40_000 + "a=1",
    "nested arrays": "a=" + "[" * 150_000,
    "nested tables": "a=" + "{a=" * 50_000,
    "huge number": "a=" + "9" * 150_000,
    "open text": "a='''" + "'" * 150_000,
    "too long": "#" * 200_001,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_policy_that_is_a_bomb(name: str) -> None:
    """TOML that would take its parser minutes, or its stack, is refused as a policy, and says so."""
    with pytest.raises(PolicyError):
        Policy.from_toml(BOMBS[name])


def test_dots_in_quotes_are_text() -> None:
    """The bound on dots is for keys: globs and reasons may hold as many as they like."""
    globs = ", ".join(f'"a.{n}.*"' for n in range(200))
    policy = Policy.from_toml(f"[[rules]]\nverdict = 'deny'\ntools = [{globs}]\nreason = '{'.' * 500}'\n")
    assert policy.decide("a.7.x", {}).word == "deny"


def test_a_policy_file_that_is_no_file(tmp_path: Path) -> None:
    """A file that is not UTF-8, or far too long, is refused; no more than the bound is read of it."""
    file = tmp_path / "policy.toml"
    for data in (b"\xff\xfe", b"#" * 2_000_000):
        file.write_bytes(data)
        with pytest.raises(PolicyError):
            Policy.from_toml(file)
