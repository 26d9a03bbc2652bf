"""Whether a JSON Schema is one: what each keyword has to say, in any draft from the fourth on.

Small on purpose, and the same whatever is installed: no draft that knows a keyword takes what is refused here. What needs more
than a look at the keyword (a `$ref` to nothing, a pattern that cannot be read) shows when the schema is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias

from agentloop._schema.problems import describe, listed

Rule: TypeAlias = Callable[[Any, str], None]
"""Checks what a keyword says, found at a place. Raises `ValueError`, with the place, what was expected and what came."""

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def check_arguments_schema(schema: Mapping[str, Any], place: str) -> None:
    """The same for a tool's arguments, which are an object whatever its schema says. Raises `ValueError`."""
    check_schema(schema, place)
    if "object" not in schema.get("type", "object"):
        _refuse(f"{place}.type", '"object" (arguments are one)', schema["type"])


def check_schema(schema: Any, place: str) -> None:
    """Raise `ValueError`, with the place, what was expected and what came, for what is no JSON Schema."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        _refuse(place, "a schema (an object, true or false)", schema)
    for keyword, value in schema.items():
        rule = _RULES.get(keyword)
        if rule is not None:
            rule(value, f"{place}.{keyword}")


def _refuse(place: str, expected: str, value: Any) -> NoReturn:
    raise ValueError(f"{place}: expected {expected}, got {describe(value)}")


def _one_type(value: Any, place: str) -> None:
    if not isinstance(value, str) or value not in _TYPES:
        _refuse(place, f"one of {listed(_TYPES)}", value)


def _types(value: Any, place: str) -> None:
    if isinstance(value, list) and value:
        for index, item in enumerate(value):
            _one_type(item, f"{place}[{index}]")
    else:
        _one_type(value, place)


def _schema_or_list(value: Any, place: str) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_schema(item, f"{place}[{index}]")
    else:
        check_schema(value, place)


def _schemas(value: Any, place: str) -> None:
    if not isinstance(value, list) or not value:
        _refuse(place, "an array of at least one schema", value)
    _schema_or_list(value, place)


def _texts(value: Any, place: str) -> None:
    if not isinstance(value, list):
        _refuse(place, "an array of strings", value)
    for index, item in enumerate(value):
        _text(item, f"{place}[{index}]")


def _schema_or_texts(value: Any, place: str) -> None:
    (_texts if isinstance(value, list) else check_schema)(value, place)


def _named(rule: Rule) -> Rule:
    """An object of which every field follows the rule."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _refuse(place, "an object", value)
        for name, item in value.items():
            rule(item, f"{place}.{name}")

    return check


def _kind(expected: str, fits: Callable[[Any], bool]) -> Rule:
    def check(value: Any, place: str) -> None:
        if not fits(value):
            _refuse(place, expected, value)

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_text = _kind("a string", lambda value: isinstance(value, str))
_flag = _kind("true or false", lambda value: isinstance(value, bool))
_list = _kind("an array", lambda value: isinstance(value, list))
_number = _kind("a number", _is_number)
_above_zero = _kind("a number above 0", lambda value: _is_number(value) and value > 0)
_bound = _kind("a number", lambda value: _is_number(value) or isinstance(value, bool))  # a boolean in the fourth draft
_count = _kind("an integer from 0", lambda value: _is_number(value) and value >= 0 and value == int(value))


def _each(rule: Rule, keywords: str) -> Iterable[tuple[str, Rule]]:
    return ((keyword, rule) for keyword in keywords.split())


_RULES: dict[str, Rule] = dict(
    [
        *_each(_types, "type"),
        *_each(check_schema, "not if then else contains propertyNames additionalProperties additionalItems"),
        *_each(check_schema, "unevaluatedItems unevaluatedProperties"),
        *_each(_schemas, "allOf anyOf oneOf prefixItems"),
        *_each(_schema_or_list, "items"),
        *_each(_named(check_schema), "properties patternProperties $defs definitions dependentSchemas"),
        *_each(_named(_schema_or_texts), "dependencies"),
        *_each(_named(_texts), "dependentRequired"),
        *_each(_texts, "required"),
        *_each(_list, "enum"),
        *_each(_number, "minimum maximum"),
        *_each(_bound, "exclusiveMinimum exclusiveMaximum"),
        *_each(_above_zero, "multipleOf"),
        *_each(_count, "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains"),
        *_each(_flag, "uniqueItems"),
        *_each(_text, "title description format pattern $schema $ref"),
    ]
)
