"""What values hold: read-only JSON, and text that is always valid Unicode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeGuard, TypeVar

T = TypeVar("T")


def as_tuple(items: Iterable[Any]) -> tuple[Any, ...]:
    """attrs converter for a sequence of any kind (typed for checkers, which `tuple` as a converter is not)."""
    return tuple(items)


def meant(word: str, words: Iterable[str]) -> str:
    """The end of an error's text about an unknown word: ` (did you mean …?)`, or nothing if no known word is like it."""
    import difflib  # here, since it would cost every start a millisecond

    close = difflib.get_close_matches(word, list(words), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def class_name(kind: type) -> str:
    """A class as people write it: with its module, unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_kind(value: object, kind: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """`isinstance` by the type alone. `isinstance` reads `__class__`, which may fail in a foreign object, and which a proxy or
    a mock with a `spec` sets to a class whose attributes it need not have."""
    return issubclass(type(value), kind)


def plain_text(value: object) -> str | None:
    """A text as a plain `str`, since a subclass may fail in any of its methods; None for anything that is not a text."""
    return str.__str__(value) if is_kind(value, str) else None


def order_to_leave(error: BaseException | None) -> KeyboardInterrupt | SystemExit | None:
    """The `KeyboardInterrupt` or `SystemExit` that an error is, or that a group of errors holds."""
    if error is None:
        return None
    errors = [error]
    while errors:
        error = errors.pop()
        if is_kind(error, KeyboardInterrupt) or is_kind(error, SystemExit):
            return error
        if is_kind(error, BaseExceptionGroup):
            errors += reversed(errors_of(error))
    return None


def raise_order(error: BaseException) -> None:
    """Raise the order to leave that an error is or holds, if it is one: no failure of the caller's code goes over it."""
    order = order_to_leave(error)
    if order is not None:
        raise order from None


def errors_of(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    """The exceptions in a group, whatever a subclass has under the name `exceptions`."""
    held: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(group)
    return held


MAX_JSON_DEPTH = 200
"""Deepest nesting that a JSON value may have: encoders stop a little above it, so what enters can always be written."""

MAX_INTEGER_BITS = 14_284
"""Longest integer of a JSON value: the interpreter refuses to print or read one of more than 4,300 digits."""


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
    if value is None or kind is bool:
        return value
    if (kind is ReadOnlyDict or kind is ReadOnlyList) and (
        depth == 0 or depth + nesting(value) <= MAX_JSON_DEPTH  # else the copy finds the place that is too deep
    ):
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
        raise ValueError(f"{path[:80]}…: expected at most {MAX_JSON_DEPTH} levels of nesting, got more")
    if isinstance(value, Mapping):
        frozen = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}: expected string keys, got {key!r} ({type(key).__name__})")
            key = valid_text(key)
            frozen[key] = _freeze(item, f"{path}.{key}", depth + 1)
        return ReadOnlyDict(frozen)
    if isinstance(value, str):  # a subclass of str: its text, as a plain string
        return valid_text(str.__str__(value))
    if isinstance(value, bool | int | float):  # subclasses (enums among them) become plain numbers
        return _freeze(int(value) if isinstance(value, int) else float(value), path, depth)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return ReadOnlyList([_freeze(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value)])
    raise TypeError(f"{path}: expected a JSON value, got {class_name(kind)}")


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same as JSON has it: to Python `true`, `1` and `1.0` are equal."""
    if one is other:
        return True
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same_json(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same_json, one, other))
    return type(one) is type(other) and bool(one == other)


def nesting(value: Any) -> int:
    """How many arrays and objects stand inside each other at the deepest place; a scalar has 0."""
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        depth += 1
        children = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in children if isinstance(child, dict | list)]
    return depth


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


def _hint_for(value: object) -> str:
    return "; json.dumps(…) makes JSON text of it" if isinstance(value, Mapping) else ""


def valid_text(text: str) -> str:
    """The text as valid Unicode: split surrogate pairs joined, lone halves replaced by U+FFFD; unchanged text is itself, and
    that of a class of its own a plain one.

    Raises `TypeError` for anything that is not a text.
    """
    if type(text) is not str:
        if not isinstance(text, str):
            raise TypeError(f"expected text, got {type(text).__name__}{_hint_for(text)}")
        text = str.__str__(text if is_kind(text, str) else str(text))  # the other is a proxy
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
