"""An application's own messages on the wire: which class a role stands for, and its fields as JSON.

Register a class once; without that its messages are written all the same and come back as an `OpaqueMessage`.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import attrs

from agentloop._values import freeze_json
from agentloop.messages import (
    ContentBlock,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
)
from agentloop.omni._blocks import block_from, block_object

__all__ = ["REGISTRY", "MessageRegistry", "message_data", "register_message"]

M = TypeVar("M", bound=type[CustomMessage])


class MessageRegistry:
    """Roles and their classes. A codec takes one; `REGISTRY` is the one that it takes by itself."""

    def __init__(self) -> None:
        """An empty registry."""
        self._classes: dict[str, type[CustomMessage]] = {}

    def register(self, cls: M) -> M:
        """Make messages of the class's role come back as this class; usable as a decorator.

        The class is an attrs class or a dataclass with a `role` of its own; its fields may be what cattrs can turn into
        JSON and back, dates, times, UUIDs, decimal numbers, enums, and content blocks. Raises `TypeError` for anything else,
        `ValueError` for a role that is taken.
        """
        role = getattr(cls, "role", None)
        if not isinstance(cls, type) or not issubclass(cls, CustomMessage) or not isinstance(role, str):
            raise TypeError(f"register: expected a subclass of CustomMessage with a role, got {cls!r}")
        if not _has_fields(cls):
            raise TypeError(f"register: expected an attrs class or a dataclass, got {cls.__qualname__}")
        taken = self._classes.setdefault(role, cls)
        if taken is not cls:
            raise ValueError(f"register: the role {role!r} is taken by {taken.__qualname__}")
        return cls

    def message(self, role: str, data: Any) -> CustomMessage:
        """The message that was written as `data`; opaque when nobody knows the role or its fields no longer fit."""
        cls = self._classes.get(role)
        if cls is None:
            return OpaqueMessage(role, data)
        try:
            return _converter().structure(data, cls)  # type: ignore[no-any-return]
        except Exception:  # whatever a class of the application raises: the message itself must survive
            return OpaqueMessage(role, data)


REGISTRY: Final = MessageRegistry()
"""Where `register_message` puts classes, and where codecs look by default."""


def register_message(cls: M) -> M:
    """Register an application's message class for every codec of this process; usable as a decorator."""
    return REGISTRY.register(cls)


def message_data(message: CustomMessage) -> Any:
    """The fields of an application's message as JSON.

    Raises `TypeError` or `ValueError`, with the path, for fields that JSON cannot say.
    """
    if type(message) is OpaqueMessage:
        return message.data
    cls = type(message)
    role = getattr(message, "role", None)
    if not isinstance(role, str) or not role:
        raise TypeError(f"{cls.__qualname__}.role: expected a name, got {role!r}")
    if _has_fields(cls):
        fields = _converter().unstructure(message)
    elif hasattr(message, "__dict__"):
        fields = dict(vars(message))
    else:
        raise TypeError(f"{role}: expected an attrs class or a dataclass, got {cls.__qualname__}")
    return freeze_json(fields, role)


def _has_fields(cls: type) -> bool:
    return attrs.has(cls) or hasattr(cls, "__dataclass_fields__")


@cache
def _converter() -> Any:
    """cattrs costs more to import than the rest of this package; most runs have no message of their own."""
    from cattrs.preconf.orjson import make_converter

    converter = make_converter(forbid_extra_keys=True)  # a field of a newer version must not vanish: rather opaque
    write: Callable[[Any], Any] = block_object
    for kind in (Text, Thinking, InlineThinking, ToolCall, Image, InlineData):
        converter.register_unstructure_hook(kind, write)
        converter.register_structure_hook(kind, lambda value, _: block_from(value))
    converter.register_structure_hook_func(lambda kind: kind == ContentBlock, lambda value, _: block_from(value))
    converter.register_unstructure_hook_func(_is_enum, lambda member: member.value)
    for cls, as_text, of_text in _TEXTS:
        converter.register_unstructure_hook(cls, as_text)
        converter.register_structure_hook(cls, _reader(of_text))
    return converter


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _reader(of_text: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, kind: of_text(value)


_TEXTS: Final[tuple[tuple[type, Callable[[Any], str], Callable[[str], Any]], ...]] = (
    (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    (uuid.UUID, str, uuid.UUID),
    (decimal.Decimal, str, decimal.Decimal),
)
"""What cattrs leaves to `orjson`, or does not know, each with its text and back."""
