"""Arguments against foreign schemas, with each library and without any."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentloop._schema.raw import SchemaCheck

LIBRARIES = {"jsonschema_rs": (), "jsonschema": ("jsonschema_rs",), "built-in": ("jsonschema_rs", "jsonschema")}


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the libraries before this one absent."""
    if name != "built-in":
        pytest.importorskip(name)
    for absent in LIBRARIES[name]:
        for module in [module for module in sys.modules if module == absent or module.startswith(f"{absent}.")]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, absent, None)
    return name


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each check in turn."""
    return use(request.param, monkeypatch)


@pytest.fixture(params=["jsonschema_rs", "jsonschema"])
def full_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each check that knows all keywords."""
    return use(request.param, monkeypatch)


def problems(schema: Any, arguments: Any) -> list[str]:
    found = SchemaCheck("t", schema).check(arguments)[1]
    return sorted(found.text().splitlines())


SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "mode": {"enum": ["fast", "slow", 1]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "name": {"type": ["string", "null"]},
        "range": {"type": "object", "properties": {"low": {"type": "number"}}, "required": ["low"]},
    },
    "required": ["count", "mode"],
    "additionalProperties": False,
}


def test_every_problem_in_the_same_words(library: str) -> None:
    """Path, expected and got do not depend on what happens to be installed."""
    arguments = {"count": "x", "tags": ["a", 5], "name": 5, "range": {}, "colour": 1, "mode": True}
    found = problems(SCHEMA, arguments)
    assert found == [
        "$.colour: unknown field",
        '$.count: expected an integer, got a string "x"',
        '$.mode: expected one of "fast", "slow", 1, got a boolean true',
        found[3],
        "$.range.low: missing, expected a value",
        "$.tags[1]: expected a string, got an integer 5",
    ]
    assert found[3] in (
        "$.name: expected a string or null, got an integer 5",
        "$.name: expected null or a string, got an integer 5",
    )
    assert problems(SCHEMA, {}) == ["$.count: missing, expected a value", "$.mode: missing, expected a value"]
    assert problems(SCHEMA, {"count": 1, "mode": "fast", "name": None, "range": {"low": 1.5}}) == []


def test_coercion_of_plain_properties(library: str) -> None:
    """At the top level, where a property has one plain type; nowhere else."""
    schema = {
        "properties": {
            "a": {"type": "integer"}, "b": {"type": "number"}, "c": {"type": "boolean"}, "d": {"type": "array"},
            "e": {"type": "object"}, "f": {"type": "string"}, "g": {"type": ["integer", "string"]}, "h": {},
        }
    }  # fmt: skip
    given = {"a": "5", "b": "2.5", "c": "true", "d": "[1]", "e": '{"a": "1"}', "f": "5", "g": "5", "h": "5", "i": "5"}
    checked, found = SchemaCheck("t", schema).check(given)
    assert not found.count
    assert checked == {**given, "a": 5, "b": 2.5, "c": True, "d": [1], "e": {"a": "1"}}
    assert given["a"] == "5", "what was given is not changed"
    assert problems(schema, {"a": "5.7", "f": 5}) == [
        '$.a: expected an integer, got a string "5.7"',
        "$.f: expected a string, got an integer 5",
    ]


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"maxLength": 3}, "long", 'maxLength 3 allows, got a string "long"'),
        ({"minimum": 3}, 1, "minimum 3 allows, got an integer 1"),
        ({"anyOf": [{"type": "null"}, {"type": "array"}]}, "x", 'anyOf allows, got a string "x"'),
        ({"uniqueItems": True}, [{"a": 1}, 2, {"a": 1.0}], "uniqueItems allows, got an array of 3 items"),
        ({"$ref": "#/$defs/N"}, "x", '$.a: expected an integer, got a string "x"'),
        ({"const": 5}, 6, "const 5 allows, got an integer 6"),
    ],
)
def test_other_keywords(full_library: str, schema: Any, value: Any, text: str) -> None:
    """The keyword, its value where that is short, and what came."""
    (line,) = problems({"properties": {"a": schema}, "$defs": {"N": {"type": "integer"}}}, {"a": value})
    assert text in line


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+\\1$", "(.*a){30}x"])
def test_hostile_patterns_do_not_hang(library: str, pattern: str) -> None:
    """They are matched within a bound, or (with jsonschema) not at all; patterns of property names alike."""
    value = "a" * 5_000 + "b"
    SchemaCheck("t", {"properties": {"a": {"pattern": pattern}}}).check({"a": value})
    schema = {"patternProperties": {pattern: {}}, "additionalProperties": False, "unevaluatedProperties": False}
    SchemaCheck("t", {"properties": {"a": schema}}).check({"a": {value: 1}})


def test_patterns_are_checked_where_that_is_safe(library: str) -> None:
    """Only `jsonschema_rs` bounds the time of a match."""
    found = problems({"properties": {"a": {"pattern": "^b$"}}}, {"a": "x"})
    assert bool(found) is (library == "jsonschema_rs")


@pytest.mark.parametrize("number", [10**400, 10**5000], ids=["400 digits", "5000 digits"])
def test_no_argument_switches_the_check_off(full_library: str, number: int, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers that a library cannot reckon with are refused, and so are the wrong arguments of the next call."""
    check = SchemaCheck("t", {"properties": {"a": {"multipleOf": 0.5}, "b": {"type": "string"}}})
    assert check.check({"a": number, "b": 5})[1].count >= 1
    assert check.check({"a": 1, "b": 5})[1].lines == ["$.b: expected a string, got an integer 5"]
    assert caplog.records == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"type": "no such type"},
        {"properties": {"a": {"minimum": 1, "exclusiveMinimum": True}}},
        {"properties": {"a": {"type": 5}}, "required": "a", "enum": {}, "items": 5},
        {"$id": "http://[bad", "properties": {"a": {"$ref": "x"}}},
    ],
)
def test_a_schema_that_cannot_be_used(full_library: str, schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The tool stays usable without a check, once warned of; nothing is fetched from anywhere."""
    check = SchemaCheck("odd", schema)
    with caplog.at_level(logging.WARNING, logger="agentloop.tools"):
        assert check.check({"a": 5})[1].count == 0
        assert check.check({"a": "x"})[1].count == 0
    assert [
        record.getMessage().startswith("tool odd: its JSON Schema cannot be used") for record in caplog.records
    ] == [True]


def test_nothing_is_fetched(full_library: str, tmp_path: Path) -> None:
    """A reference to a file that is there is not followed either."""
    (tmp_path / "integer.json").write_text('{"type": "integer"}')
    schema = {"properties": {"a": {"$ref": (tmp_path / "integer.json").as_uri()}}}
    assert problems(schema, {"a": "x"}) == []


def test_unique_items_take_linear_time(full_library: str) -> None:
    """Comparing each of 50,000 objects with each other would not end."""
    schema = {"properties": {"a": {"uniqueItems": True}}}
    items: list[Any] = [{"n": [number]} for number in range(50_000)]
    assert problems(schema, {"a": items}) == []
    assert len(problems(schema, {"a": [*items, {"n": [5.0]}]})) == 1


def test_a_library_that_is_too_old_is_like_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its bounds it is not used; the next check is, and not none at all."""

    def validator_for(schema: Any, *, validate_formats: Any = None, pattern_options: Any = None) -> Any:
        raise AssertionError("never asked")

    old = SimpleNamespace(FancyRegexOptions=lambda backtrack_limit: None, validator_for=validator_for)
    for library in (old, SimpleNamespace(validator_for=validator_for)):
        monkeypatch.setitem(sys.modules, "jsonschema_rs", library)  # type: ignore[arg-type]
        assert problems({"properties": {"a": {"type": "integer"}}}, {"a": "x"}) == [
            '$.a: expected an integer, got a string "x"'
        ]


def test_the_small_check_survives_any_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a library, what it does not understand it lets pass."""
    for absent in ("jsonschema_rs", "jsonschema"):
        monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError):
        importlib.import_module("jsonschema")
    for odd in (5, None, [], "x", [[]], {"a": 1}, True):
        for keyword in ("type", "enum", "required", "properties", "items", "additionalProperties", "patternProperties"):
            SchemaCheck("t", {keyword: odd, "properties": {"a": {keyword: odd}}}).check({"a": [1], "b": {"c": 1}})


def test_huge_arguments_have_bounded_errors(library: str) -> None:
    """However much is wrong, the list of it is short."""
    schema = {"properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}
    found = SchemaCheck("t", schema).check({"a": [{"n": str(number)} for number in range(30_000)]})[1]
    assert len(found.text()) < 4_000
    assert found.count >= 20


def test_deep_arguments(library: str) -> None:
    """Arguments as deep as JSON may be pass a recursive schema, or are refused; they never raise anything else."""
    from agentloop.errors import InvalidArguments
    from agentloop.tools import Tool

    schema = {"properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"properties": {"n": {"$ref": "#/$defs/N"}}}}}
    value: Any = {}
    for _ in range(199):
        value = {"n": value}
    made = Tool("t", "", schema, print)
    try:
        text = made.prepare(json.dumps(value)).text
    except InvalidArguments as error:
        text = str(error)
    assert text in (json.dumps(value, separators=(",", ":")), "t: invalid arguments\n$: nested too deep")
