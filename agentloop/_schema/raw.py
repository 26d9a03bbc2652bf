"""Arguments against a JSON Schema that somebody else wrote (MCP tools, `parameters=`).

Checked with `jsonschema_rs` where it is installed (0.52 or newer), else with `jsonschema`, else with a small check of `type`,
`required`, `properties`, `enum`, `additionalProperties` and `items`. Nothing is ever fetched: a `$ref` to another
document is an error of the schema. A schema that cannot be used is logged, and its tool is offered with no check but
that the arguments are an object.

Patterns: `jsonschema_rs` matches them within a bound. `jsonschema` would match them with `re`, which a hostile pattern
can keep busy for ever; with it `pattern` and `patternProperties` (with `additionalProperties` beside it) and
`unevaluatedProperties` are therefore not checked.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import logging
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from agentloop._schema import composites, scalars
from agentloop._schema.problems import MAX_PROBLEMS, Path, Problems, missing, one_of, shortened
from agentloop._schema.shape import Reading, Shape
from agentloop._values import thaw_json

log = logging.getLogger("agentloop.tools")

Check: TypeAlias = Callable[[dict[str, Any], Problems], None]
"""Notes what does not fit a schema."""

_PLAIN: dict[str, Shape] = {
    "integer": scalars.Integer(),
    "number": scalars.Number(),
    "boolean": scalars.Boolean(),
    "array": composites.Array(scalars.Anything()),
    "object": composites.Dictionary(scalars.Anything()),
}
_TYPES: dict[str, Shape] = {**_PLAIN, "string": scalars.String(), "null": scalars.Null()}
_FACTS = ("types", "options", "property", "unexpected", "limit", "pattern", "multiple_of", "expected_value")
"""Where `jsonschema_rs` puts a keyword's value."""
_MAX_MESSAGE = 300


class SchemaCheck:
    """The check of one schema, compiled when it is first used."""

    __slots__ = ("_check", "_coerced", "_name", "_schema")

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self._name = name
        self._schema: dict[str, Any] = thaw_json(schema)
        self._coerced = _coerced_properties(self._schema)
        self._check: Check | None = None

    def check(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], Problems]:
        """The arguments, coerced at the top level where a property has one plain type, and what does not fit."""
        if self._check is None:
            self._check = _compiled(self._name, self._schema)
        coerced = {name: self._coerce(name, value) for name, value in arguments.items()}
        problems = Problems()
        try:
            self._check(coerced, problems)
        except _Unusable as error:
            self._check = _unchecked(self._name, error)
            problems = Problems()
        return coerced, problems

    def _coerce(self, name: str, value: Any) -> Any:
        shape = self._coerced.get(name)
        if shape is None or type(value) in shape.exact:
            return value
        return shape.check(value, None, Reading())  # what does not fit comes back as it is


class _Unusable(Exception):
    """The schema cannot be used; the text says why."""


def _coerced_properties(schema: Mapping[str, Any]) -> dict[str, Shape]:
    properties = schema.get("properties")
    found: dict[str, Shape] = {}
    if isinstance(properties, dict):
        for name, part in properties.items():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in _PLAIN:
                found[name] = _PLAIN[kind]
    return found


def _compiled(name: str, schema: dict[str, Any]) -> Check:
    for compile_with in (_with_jsonschema_rs, _with_jsonschema):
        try:
            return compile_with(schema)
        except ImportError:
            continue
        except _Unusable as error:
            return _unchecked(name, error)
    return lambda arguments, problems: _built_in(schema, arguments, None, problems)


def _unchecked(name: str, error: _Unusable) -> Check:
    log.warning("tool %s: its JSON Schema cannot be used, so its arguments are not checked: %s", name, error)
    return lambda arguments, problems: None


def _with_jsonschema_rs(schema: dict[str, Any]) -> Check:
    library = importlib.import_module("jsonschema_rs")
    try:
        bounds = {"offline": True, "pattern_options": library.FancyRegexOptions(backtrack_limit=100_000)}
        library.validator_for(True, **bounds)
    except (AttributeError, TypeError) as error:  # older than 0.52: it might fetch what a schema names
        raise ImportError(f"jsonschema_rs: {error}") from error
    try:
        validator = library.validator_for(schema, validate_formats=False, **bounds)
    except (ValueError, TypeError) as error:
        raise _Unusable(str(error)[:_MAX_MESSAGE]) from error

    def check(arguments: dict[str, Any], problems: Problems) -> None:
        _note(
            ((e.instance_path, e.kind.name, _fact(e.kind), e.instance) for e in validator.iter_errors(arguments)),
            problems,
        )

    return check


def _fact(kind: Any) -> Any:
    facts = kind.as_dict()
    return next((facts[name] for name in _FACTS if name in facts), None)


def _with_jsonschema(schema: dict[str, Any]) -> Check:
    validators = importlib.import_module("jsonschema.validators")
    exceptions = importlib.import_module("jsonschema.exceptions")
    registry = importlib.import_module("referencing").Registry()  # an empty one, which fetches nothing
    draft = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        draft.check_schema(schema)
    except exceptions.SchemaError as error:
        raise _Unusable(error.message[:_MAX_MESSAGE]) from error
    _check_addresses(schema)
    bounded = _bounded_keywords(draft.VALIDATORS, exceptions.ValidationError)
    validator = validators.extend(draft, bounded)(schema, registry=registry)

    def check(arguments: dict[str, Any], problems: Problems) -> None:
        errors = validator.iter_errors(arguments)
        try:
            _note(((e.absolute_path, e.validator, _value_of(e), e.instance) for e in errors), problems)
        except exceptions._WrappedReferencingError as error:
            raise _Unusable(str(error)[:_MAX_MESSAGE]) from error
        except (ArithmeticError, ValueError) as error:
            # A number beyond its reach. That is the call's fault: a model must not switch the check off.
            problems.add(None, f"cannot be held against the schema ({type(error).__name__})")

    return check


def _check_addresses(schema: Any) -> None:
    """`jsonschema` reads an address when arguments first come to it. Raises `_Unusable` for what is none."""
    left = [schema]
    while left:
        part = left.pop()
        left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        for keyword in ("$id", "$ref", "$dynamicRef") if isinstance(part, dict) else ():
            address = part.get(keyword)
            try:
                urllib.parse.urlsplit(address if isinstance(address, str) else "")
            except ValueError as error:
                raise _Unusable(f"{keyword}: {error}"[:_MAX_MESSAGE]) from error


def _canonical(value: Any) -> Any:
    """A hashable twin of a JSON value, equal for values that JSON Schema calls equal."""
    if isinstance(value, dict):
        return "object", frozenset((key, _canonical(item)) for key, item in value.items())
    if isinstance(value, list):
        return "array", tuple([_canonical(item) for item in value])
    return (isinstance(value, bool), value)


def _bounded_keywords(keywords: Mapping[str, Any], error: Callable[[str], Exception]) -> dict[str, Any]:
    """The keywords of `jsonschema` that match patterns or may take quadratic time, replaced."""

    def ignored(validator: Any, value: Any, instance: Any, schema: Any) -> None:
        return None

    def unless_patterns(name: str) -> Any:
        original = keywords.get(name, ignored)

        def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            return None if "patternProperties" in schema else original(validator, value, instance, schema)

        return keyword

    def unique(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if value and isinstance(instance, list) and len({_canonical(item) for item in instance}) < len(instance):
            yield error("an item occurs more than once")

    return {
        "pattern": ignored,
        "patternProperties": ignored,
        "unevaluatedProperties": ignored,
        "additionalProperties": unless_patterns("additionalProperties"),
        "uniqueItems": unique,
    }


def _value_of(error: Any) -> Any:
    if error.validator == "required":  # the message is the only place that says which one
        return ast.literal_eval(error.message.removesuffix(" is a required property"))
    if error.validator == "additionalProperties" and error.validator_value is False:
        return [name for name in error.instance if name not in error.schema.get("properties", {})]
    return error.validator_value


def _note(errors: Iterable[tuple[Iterable[str | int], str, Any, Any]], problems: Problems) -> None:
    """Put a library's errors (path, keyword, the keyword's value, what came) into our words.

    Beyond our limit the library is not even asked for more.
    """
    for position, keyword, value, instance in itertools.islice(errors, MAX_PROBLEMS):
        path: Path = None
        for key in position:
            path = (path, key)
        if keyword == "type":
            problems.mismatch(path, _expected(value), instance)
        elif keyword == "enum" and isinstance(value, list) and value:
            problems.mismatch(path, one_of(value), instance)
        elif keyword == "required" and isinstance(value, str):
            problems.add((path, value), missing("a value"))
        elif keyword == "additionalProperties" and isinstance(value, list):
            for name in value[:MAX_PROBLEMS]:
                problems.add((path, name), "unknown field")
        else:
            plain = isinstance(value, str | int | float) and not isinstance(value, bool)
            rule = f" {shortened(value)}" if plain else ""
            problems.mismatch(path, f"what the schema's {keyword}{rule} allows", instance)


def _expected(kinds: Any) -> str:
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    return " or ".join(_TYPES[name].expected if name in _TYPES else str(name) for name in names)


def _built_in(schema: Any, value: Any, path: Path, problems: Problems) -> None:
    """The small check, for where neither library is installed. What it does not know it lets pass."""
    if not isinstance(schema, dict):
        return
    kinds = schema.get("type")
    allowed = [kind for kind in _list([kinds] if isinstance(kinds, str) else kinds) if isinstance(kind, str)]
    if allowed and all(kind in _TYPES and _misfit(_TYPES[kind], value) for kind in allowed):
        problems.mismatch(path, _expected(allowed), value)
        return
    options = _list(schema.get("enum"))
    if options and not any(_same(value, option) for option in options):
        problems.mismatch(path, one_of(options), value)
    if isinstance(value, dict):
        _built_in_object(schema, value, path, problems)
    if isinstance(value, list):
        for index, item in enumerate(value):
            _built_in(schema.get("items"), item, (path, index), problems)


def _built_in_object(schema: dict[str, Any], value: dict[str, Any], path: Path, problems: Problems) -> None:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in properties:
            _built_in(properties[name], item, (path, name), problems)
        elif others is False:
            problems.add((path, name), "unknown field")
        else:
            _built_in(others, item, (path, name), problems)
    for name in _list(schema.get("required")):
        if isinstance(name, str) and name not in value:
            problems.add((path, name), missing("a value"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _misfit(shape: Shape, value: Any) -> bool:
    reading = Reading(coerce=False)
    shape.check(value, None, reading)
    return reading.problems.count > 0


def _same(value: Any, option: Any) -> bool:
    return isinstance(value, bool) is isinstance(option, bool) and bool(value == option)
