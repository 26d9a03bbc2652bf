"""How values are built: fast frozen classes, read-only JSON, and text that is always valid Unicode.

The helpers here are the only machinery behind the value classes of this package.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import attrs

C = TypeVar("C")


def as_tuple(items: Iterable[Any]) -> tuple[Any, ...]:
    """attrs converter for a sequence of any kind (typed for checkers, which `tuple` as a converter is not)."""
    return tuple(items)


MAX_JSON_DEPTH = 200
"""Deepest nesting that a JSON value may have: encoders stop a little above it, so what enters can always be written."""

MAX_INTEGER_BITS = 14_284
"""Longest integer of a JSON value: the interpreter refuses to print or read one of more than 4,300 digits."""


if TYPE_CHECKING:
    from attrs import frozen as frozen
else:

    def frozen(cls: type[C]) -> type[C]:
        """`attrs.frozen`, cheaper to import and to make an instance of.

        attrs compiles `__eq__`, `__hash__` and `__repr__` for every class, which was a third of `import agentloop`; here
        one function of each serves all classes. And `__init__` stores through the slots' own setters, where that of
        attrs goes through `object.__setattr__` for every field: on classes made once a delta that is most of the cost.
        What the value classes use is there: defaults, factories, converters, `__attrs_post_init__`; validators are not.
        """
        made = attrs.frozen(init=False, eq=False, repr=False)(cls)
        fields = attrs.fields(made)
        made._compared = _getter([field.name for field in fields if field.eq])
        made._printed = tuple([field.name for field in fields if field.repr])
        for name, method in (("__eq__", _equal), ("__hash__", _hash), ("__repr__", _repr)):
            if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
                setattr(made, name, method)
        made.__init__ = _compiled_init(made, fields)
        return made


def _getter(names: list[str]) -> Any:
    """What is compared of a value: a function that gives it."""
    return staticmethod(operator.attrgetter(*names) if names else lambda value: ())


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    mine = self._compared
    return mine(self) == mine(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, self._compared(self)))


def _repr(self: Any) -> str:
    said = ", ".join([f"{name}={getattr(self, name)!r}" for name in self._printed])
    return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({said})"


def _compiled_init(cls: type, fields: Any) -> Any:
    scope: dict[str, Any] = {"NOTHING": attrs.NOTHING}
    parameters, lines = [], []
    for field in fields:
        name, value = field.name, field.alias or field.name
        scope[f"set_{name}"] = cls.__dict__[name].__set__
        if not field.init:
            continue
        if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
            scope[f"new_{name}"] = field.default.factory
            parameters.append(f"{value}=NOTHING")
            made = f"new_{name}({'self' if field.default.takes_self else ''})"
            value = f"{made} if {value} is NOTHING else {value}"
        elif field.default is not attrs.NOTHING:
            scope[f"default_{name}"] = field.default
            parameters.append(f"{value}=default_{name}")
        else:
            parameters.append(value)
        if field.converter is not None:
            scope[f"convert_{name}"] = field.converter
            value = f"convert_{name}({value})"
        lines.append(f"    set_{name}(self, {value})")
    if hasattr(cls, "__attrs_post_init__"):
        lines.append("    self.__attrs_post_init__()")
    source = f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(lines or ["    pass"])
    exec(source, scope)  # the source is made of field names of our own classes only
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = dict(cls.__attrs_init__.__annotations__)  # type: ignore[attr-defined]
    return init


def _read_only(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("a JSON value of a message or an event is read-only; copy it first, for example dict(value)")


class ReadOnlyDict(dict[str, Any]):
    """A JSON object that cannot be changed; equal to a plain dict with the same content."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _read_only

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return {key: _thaw(value) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze_json, (_thaw(self),))


class ReadOnlyList(list[Any]):
    """A JSON array that cannot be changed; equal to a plain list with the same content."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = sort = reverse = _read_only
    __iadd__ = __imul__ = _read_only

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: object) -> list[Any]:
        return [_thaw(value) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (freeze_json, (_thaw(self),))


def _thaw(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_thaw(item) for item in value]
    return value


def thaw_json(value: Any) -> Any:
    """A plain, changeable copy of a read-only JSON value (dicts and lists of their own)."""
    return _thaw(value)


def freeze_json(value: Any, path: str = "$") -> Any:
    """A read-only deep copy of a JSON value, key order and number types kept.

    Raises `TypeError` or `ValueError`, with the path, for what JSON cannot say: NaN and infinities, keys that are no
    strings, objects of other classes, and nesting beyond `MAX_JSON_DEPTH`.
    """
    return _freeze(value, path, 0)


def _freeze(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return valid_text(value)
    if value is None or kind is bool or kind is ReadOnlyDict or kind is ReadOnlyList:
        return value
    if kind is int:
        if value.bit_length() > MAX_INTEGER_BITS:
            raise ValueError(f"{path}: expected an integer of at most {MAX_INTEGER_BITS} bits, got a longer one")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"{path}: expected a JSON number, got {value!r}")
        return value
    if depth >= MAX_JSON_DEPTH:
        raise ValueError(f"{path}: expected at most {MAX_JSON_DEPTH} levels of nesting, got more")
    if isinstance(value, Mapping):
        frozen = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}: expected string keys, got {key!r} ({type(key).__name__})")
            key = valid_text(str(key))
            frozen[key] = _freeze(item, f"{path}.{key}", depth + 1)
        return ReadOnlyDict(frozen)
    if isinstance(value, str):  # a subclass of str: its text, as a plain string
        return valid_text(str.__str__(value))
    if isinstance(value, bool | int | float):  # subclasses (enums among them) become plain numbers
        return _freeze(int(value) if isinstance(value, int) else float(value), path, depth)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return ReadOnlyList([_freeze(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value)])
    raise TypeError(f"{path}: expected a JSON value, got {kind.__module__}.{kind.__qualname__}")


def frozen_object(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """attrs converter for an optional opaque JSON object; an empty one is None."""
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a JSON object or None, got {type(value).__name__}")
    return _freeze(value, "$", 0)  # type: ignore[no-any-return]


def frozen_json(value: Any) -> Any:
    """attrs converter for any JSON value."""
    return value if value is None else _freeze(value, "$", 0)


def valid_text(text: str) -> str:
    """The text as valid Unicode: split surrogate pairs joined, lone halves replaced by U+FFFD; unchanged text is itself."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def stitch(carry: str, text: str) -> tuple[str, str]:
    """Valid text from a piece of a stream, and half a surrogate pair at its end that waits for the next piece."""
    text = carry + text
    carry = ""
    if "\ud800" <= text[-1:] <= "\udbff":
        text, carry = text[:-1], text[-1]
    return valid_text(text), carry
