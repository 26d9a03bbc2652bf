"""From annotations to shapes: which Python types a tool's parameters may have, and what each becomes.

Named classes stand in `$defs` and may be recursive. What has no clear meaning in JSON is refused when the tool is
made, with the place where it stands.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from agentloop._schema import composites, scalars
from agentloop._schema.docstring import read_docstring
from agentloop._schema.shape import JsonSchema, Shape
from agentloop._values import freeze_json, plain_text, thaw_json
from agentloop.errors import ToolDefinitionError

_ARRAYS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    set: set,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
}
_DICTIONARIES = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})
_WRAPPERS = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})


_WRITTEN_AS_TEXT = ("datetime", "decimal", "pathlib", "uuid")
"""Modules that `_schema.parsed` loads: seldom needed, and a tenth of the time that the package takes to load."""


def _parsed_text(annotation: type) -> Shape | None:
    if not any(str(base.__module__).partition(".")[0] in _WRITTEN_AS_TEXT for base in annotation.__mro__):
        return None
    from agentloop._schema.parsed import parsed_text

    return parsed_text(annotation)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_SCALARS: dict[Any, Shape] = {
    Any: scalars.Anything(),
    object: scalars.Anything(),
    inspect.Parameter.empty: scalars.Anything(),
    None: scalars.Null(),
    type(None): scalars.Null(),
    bool: scalars.Boolean(),
    int: scalars.Integer(),
    float: scalars.Number(),
    str: scalars.String(),
    typing.LiteralString: scalars.String(),
    bytes: scalars.ParsedText("base64 text", {"contentEncoding": "base64"}, _bytes),
}


class TypeReader:
    """Reads the annotations of one function. `owner` names it in errors; `local_names` are the names around it."""

    def __init__(self, owner: str, local_names: Callable[[], Mapping[str, Any]]) -> None:
        self.local_names = local_names
        self._place = [owner]
        self._references: dict[Any, composites.Reference] = {}
        self._open: set[Any] = set()
        self._definitions: dict[str, Shape | None] = {}

    def definitions(self) -> JsonSchema:
        """The `$defs` of all named types read so far."""
        return {name: shape.schema() for name, shape in self._definitions.items() if shape is not None}

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Name the place that errors inside are about."""
        self._place.append(place)
        try:
            yield
        finally:
            self._place.pop()

    def refuse(self, reason: str) -> ToolDefinitionError:
        """The error to raise, with its place."""
        return ToolDefinitionError(f"{': '.join(self._place)}: {reason}")

    def field(self, annotation: Any, default: Any, required: bool, description: str | None) -> composites.Field:
        """A named part of an object. The annotation's own description wins over the given one."""
        annotation, own = described(annotation)
        shape = self.shape(annotation)
        keywords: dict[str, Any] = {}
        if own or description:
            keywords["description"] = own or description
        shown = None if required else _json_default(default)
        if shown is not None:
            keywords["default"] = shown
        return composites.Field(shape, required, keywords)

    def shape(self, annotation: Any) -> Shape:
        """The shape of a type. Raises `ToolDefinitionError` for one that has no meaning here."""
        annotation, text = described(annotation)
        if text is not None:
            return composites.Described(self.shape(annotation), text)
        try:
            if annotation in _SCALARS:
                return _SCALARS[annotation]
        except TypeError:  # an annotation without a hash
            raise self._unsupported(annotation) from None
        if hasattr(annotation, "__supertype__"):
            return self.shape(annotation.__supertype__)
        if type(annotation).__name__ == "TypeAliasType":
            return self._alias(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None or (not arguments and annotation != tuple[()]):  # the latter: `typing.List` and its like
            return self._bare(origin or annotation)
        return self._generic(annotation, origin, arguments)

    def _unsupported(self, annotation: Any) -> ToolDefinitionError:
        name = annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)
        return self.refuse(
            f"unsupported type {name}; expected str, int, float, bool, None, list, tuple, set, dict, Literal, Enum, "
            "a dataclass, attrs class, TypedDict or NamedTuple, a date, time, UUID, Path, Decimal or bytes, or a union"
        )

    def _generic(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Shape:
        if origin is typing.Union or origin is types.UnionType:
            return composites.Union([self.shape(argument) for argument in arguments])
        if origin is typing.Literal:
            return scalars.Choice([self._choice(value) for value in arguments])
        if origin is tuple:
            return self._tuple(arguments)
        if origin in _ARRAYS:
            return self._array(arguments[0], _ARRAYS[origin])
        if origin in _DICTIONARIES:
            if arguments[0] not in (str, Any):
                raise self.refuse(f"the keys of a JSON object are strings; expected dict[str, …], got {annotation!r}")
            return composites.Dictionary(self.shape(arguments[1]))
        raise self._unsupported(annotation)

    def _bare(self, annotation: Any) -> Shape:
        if annotation in _ARRAYS:
            return composites.Array(scalars.Anything(), _ARRAYS[annotation])
        if annotation is tuple:
            return composites.Array(scalars.Anything(), tuple)
        if annotation in _DICTIONARIES:
            return composites.Dictionary(scalars.Anything())
        if not isinstance(annotation, type):
            raise self._unsupported(annotation)
        if issubclass(annotation, enum.Enum) and len(annotation):
            return scalars.Choice([self._choice(member) for member in annotation])
        parsed = _parsed_text(annotation)
        if parsed is not None:
            return parsed
        if _is_record(annotation):
            return self._class(annotation)
        raise self._unsupported(annotation)

    def _tuple(self, arguments: tuple[Any, ...]) -> Shape:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._array(arguments[0], tuple)
        return composites.FixedArray(tuple([self.shape(argument) for argument in arguments]))

    def _array(self, item: Any, make: Callable[[list[Any]], Any]) -> Shape:
        inner = described(item)[0]
        unhashable = (typing.get_origin(inner) or inner) in (list, dict, set) or getattr(inner, "__hash__", 0) is None
        if make in (set, frozenset) and unhashable:
            raise self.refuse(f"the items of a set must be hashable, and {inner!r} is not; use list")
        return composites.Array(self.shape(item), make)

    def _choice(self, value: Any) -> tuple[Any, Any]:
        written = value.value if isinstance(value, enum.Enum) else value
        if isinstance(written, str):
            written = str.__str__(written)
        if type(written) not in (type(None), bool, int, float, str) or (
            type(written) is float and not math.isfinite(written)
        ):
            raise self.refuse(f"the value {value!r} is no JSON string, number, boolean or null")
        return written, (value if isinstance(value, enum.Enum) else written)

    def _alias(self, alias: Any) -> Shape:
        reference = self._references.get(alias)
        if reference is not None:
            if alias in self._open:  # recursive, so it needs a name
                self._definitions.setdefault(reference.name, None)
            return reference if reference.name in self._definitions else reference.target
        reference = self._references[alias] = composites.Reference(self._free_name(alias.__name__))
        self._open.add(alias)
        with self.at(f"type {alias.__name__}"):
            try:
                value = alias.__value__
            except NameError as error:
                raise self.refuse(f"cannot be resolved ({error})") from error
            reference.target = self.shape(value)
            try:
                _ = reference.exact
            except RecursionError:
                raise self.refuse("contains nothing but itself") from None
        self._open.discard(alias)
        if reference.name not in self._definitions:
            return reference.target
        self._definitions[reference.name] = reference.target
        return reference

    def _free_name(self, name: str) -> str:
        taken = {reference.name for reference in self._references.values()}
        free, number = name, 2
        while free in taken:
            free, number = f"{name}{number}", number + 1
        return free

    def _class(self, cls: type) -> Shape:
        reference = self._references.get(cls)
        if reference is not None:
            return reference
        reference = self._references[cls] = composites.Reference(self._free_name(cls.__name__))
        self._definitions[reference.name] = None  # keeps its place in the order
        with self.at(f"class {cls.__qualname__}"):
            hints = self._class_hints(cls)
            docstring = read_docstring(_written(cls))
            fields = {}
            for name, annotation, default, required in _record_fields(cls, hints):
                with self.at(f"field {name!r}"):
                    if isinstance(annotation, dataclasses.InitVar):
                        raise self.refuse("InitVar is not supported")
                    fields[name] = self.field(annotation, default, required, docstring.parameters.get(name))
        make = None if _is_typed_dict(cls) else cls
        reference.target = composites.Object(fields, make, docstring.description or None)
        self._definitions[reference.name] = reference.target
        return reference

    def _class_hints(self, cls: type) -> dict[str, Any]:
        local_names = dict(self.local_names()) if "<locals>" in cls.__qualname__ else None
        try:
            return typing.get_type_hints(cls, localns=local_names, include_extras=True)
        except Exception as error:  # evaluating an annotation runs the caller's text
            raise self.refuse(f"its annotations cannot be resolved ({error})") from error


def described(annotation: Any) -> tuple[Any, str | None]:
    """A type without `Annotated`, and the first text (or `Doc`) among its metadata."""
    text: str | None = None
    while typing.get_origin(annotation) is typing.Annotated:
        for item in annotation.__metadata__:
            found = item if isinstance(item, str) else getattr(item, "documentation", None)
            if text is None and isinstance(found, str):
                text = found
        annotation = annotation.__origin__
    return annotation, text


def _written(cls: type) -> str | None:
    """A class's own docstring; None where dataclasses made it (from Python 3.15 on when somebody reads it, not before)."""
    text = plain_text(cls.__dict__.get("__doc__"))
    return None if text is None or text.startswith(f"{cls.__name__}(") else text


def _is_typed_dict(cls: type) -> bool:
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_field_defaults")


def _is_record(cls: type) -> bool:
    return attrs.has(cls) or dataclasses.is_dataclass(cls) or _is_typed_dict(cls) or _is_named_tuple(cls)


def _record_fields(cls: Any, hints: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, annotation, default and whether it is required, of each field that makes an instance."""
    if attrs.has(cls):
        for attribute in attrs.fields(cls):
            if attribute.init:
                name = attribute.alias or attribute.name
                annotation = hints.get(attribute.name, attribute.type)
                yield (
                    name,
                    Any if annotation is None else annotation,
                    attribute.default,
                    attribute.default is attrs.NOTHING,
                )
    elif dataclasses.is_dataclass(cls):
        if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
            yield next(
                (name, hint, None, True) for name, hint in hints.items() if isinstance(hint, dataclasses.InitVar)
            )
        for field in dataclasses.fields(cls):
            if field.init:
                required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
                yield field.name, hints[field.name], field.default, required
    elif _is_typed_dict(cls):
        for name, hint in hints.items():
            annotation, required = _unwrapped(hint, name in cls.__required_keys__)
            yield name, annotation, None, required
    else:
        for name in cls._fields:
            yield name, hints.get(name, Any), cls._field_defaults.get(name), name not in cls._field_defaults


def _unwrapped(annotation: Any, required: bool) -> tuple[Any, bool]:
    """A TypedDict's annotation without `Required`, `NotRequired` and `ReadOnly`, and whether the key must be there.

    `__required_keys__` alone is wrong for annotations that are strings.
    """
    while getattr(typing.get_origin(annotation), "_name", None) in _WRAPPERS:
        name = typing.get_origin(annotation)._name
        required = {"Required": True, "NotRequired": False}.get(name, required)
        annotation = typing.get_args(annotation)[0]
    return annotation, required


def _json_default(default: Any) -> Any:
    """A default as the schema shows it; None for one that is None or that JSON cannot say."""
    try:
        return thaw_json(freeze_json(default.value if isinstance(default, enum.Enum) else default))
    except (TypeError, ValueError):
        return None
