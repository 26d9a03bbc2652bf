"""What is a JSON Schema, held against the schemas of the drafts themselves."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop._schema.keywords import check_arguments_schema, check_schema

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2.0, 2.5, "", "x", "string", "objekt", [], {}, [{}], [5], ["x"], ["x", 5], ["string", "null"],
    ["string", 5], [True], [None], {"a": {}}, {"a": True}, {"a": 5}, {"a": None}, {"a": []}, {"a": ["x"]}, {"a": [5]},
    {"type": "objekt"}, {"a": {"type": "objekt"}}, [{"type": "objekt"}], {"a": {"properties": {"b": {"type": 5}}}}, {"a": "x"},
]  # fmt: skip

KEYWORDS = [
    "type", "not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "additionalItems", "allOf",
    "unevaluatedItems", "unevaluatedProperties", "anyOf", "oneOf", "prefixItems", "items", "properties", "patternProperties",
    "definitions", "dependentSchemas", "dependencies", "dependentRequired", "required", "enum", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties", "uniqueItems", "title", "description", "format", "pattern", "$schema", "default", "const", "x-ours",
]  # fmt: skip


def drafts_that_know(keyword: str) -> list[Any]:
    validators = pytest.importorskip("jsonschema.validators")
    drafts = [getattr(validators, f"Draft{name}Validator") for name in ("4", "6", "7", "201909", "202012")]
    return [d for d in drafts if keyword in d.VALIDATORS or keyword in d.META_SCHEMA.get("properties", {})]


def refusal(schema: Any) -> str:
    try:
        check_schema(schema, "parameters")
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_as_strict_as_the_mildest_draft(keyword: str) -> None:
    """A value is refused if and only if every draft that knows the keyword refuses it, and the place is the keyword's."""
    drafts = drafts_that_know(keyword)
    assert len(drafts) > 0 or keyword == "x-ours"
    for value in VALUES:
        if keyword == "items" and value == []:
            continue  # the one thing that all of them refuse and we do not
        beside = {"minimum": 1, "maximum": 1}  # without which the fourth draft takes no `exclusiveMinimum`
        schema = {"type": "object", "properties": {"p": {**beside, keyword: value}}}
        taken = [not list(draft(draft.META_SCHEMA).iter_errors(schema)) for draft in drafts]
        refused = refusal(schema)
        assert bool(refused) is (bool(drafts) and not any(taken)), (value, refused)
        assert refused == "" or refused.startswith(f"parameters.properties.p.{keyword}")


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "objekt"}, 'parameters.type: expected one of array, .*, string, got a string "objekt"'),
        ({"type": ["object", "nil"]}, r'parameters.type\[1\]: expected one of .*, got a string "nil"'),
        ({"type": "string"}, 'parameters.type: expected "object" .arguments are one., got a string "string"'),
        ({"type": ["string", "null"]}, 'parameters.type: expected "object" .*, got an array of 2 items'),
        ({"properties": 5}, "parameters.properties: expected an object, got an integer 5"),
        ({"properties": {"a": 5}}, r"parameters.properties.a: expected a schema .*, got an integer 5"),
        ({"properties": {"a": {"type": "str"}}}, 'parameters.properties.a.type: expected .*, got a string "str"'),
        ({"properties": {"a": {"required": True}}}, "parameters.properties.a.required: expected an array of strings"),
        ({"required": "a"}, 'parameters.required: expected an array of strings, got a string "a"'),
        ({"required": ["a", 5]}, r"parameters.required\[1\]: expected a string, got an integer 5"),
        ({"anyOf": []}, "parameters.anyOf: expected an array of at least one schema, got an array of 0 items"),
        (
            {"anyOf": [{}, {"minLength": "3"}]},
            r"parameters.anyOf\[1\].minLength: expected an integer from 0, got a string",
        ),
        ({"items": [{"enum": "a"}]}, r'parameters.items\[0\].enum: expected an array, got a string "a"'),
        ({"dependencies": {"a": 5}}, "parameters.dependencies.a: expected a schema"),
        ({"$defs": {"N": None}}, "parameters.[$]defs.N: expected a schema .an object, true or false., got null"),
    ],
)
def test_the_words(schema: Any, error: str) -> None:
    """Where, what was expected, what came."""
    with pytest.raises(ValueError, match=f"^{error}"):
        check_arguments_schema(schema, "parameters")


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": ["object", "null"]},
        {"properties": {"type": {"type": "string"}, "properties": {"type": "integer"}, "required": True}},
        {"properties": {"a": {"default": {"type": "objekt"}, "const": {"properties": 5}, "enum": [{"type": 1}]}}},
        {"properties": {"a": {"exclusiveMinimum": True, "minimum": 0}}},
        {"properties": {"a": {"x-unit": 5, "nullable": True, "examples": "odd"}}},
    ],
)
def test_what_only_looks_wrong(schema: Any) -> None:
    """Properties that are named like keywords, values inside values, an older draft's words, words of one's own."""
    check_arguments_schema(schema, "parameters")
