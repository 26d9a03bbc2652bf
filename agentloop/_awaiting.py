"""Awaitables that may be dropped before their first step without a warning that nobody awaited them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType, GeneratorType
from typing import Any, TypeGuard


class Then(Awaitable[Any]):
    """What a function makes of an awaitable's value, which may be another awaitable. Unlike a coroutine around it, it can
    be dropped before its first step without leaving the one inside to warn that nobody awaited it: see `close`."""

    __slots__ = ("_awaitable", "_make")

    def __init__(self, awaitable: Awaitable[Any], make: Callable[[Any], Any]) -> None:
        self._awaitable = awaitable
        self._make = make

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._made().__await__()

    async def _made(self) -> Any:
        made = self._make(await self._awaitable)
        return await made if is_awaitable(made) else made

    def close(self) -> None:
        """It will not be awaited (any more)."""
        close_unstarted(self._awaitable)


async def called(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives, awaited if it is an awaitable."""
    value = function(*args)
    return await value if is_awaitable(value) else value


def is_awaitable(value: Any) -> TypeGuard[Awaitable[Any]]:
    """As `inspect.isawaitable`, but by the type alone: a foreign object may fail when its `__class__` is read."""
    kind = type(value)
    if kind is GeneratorType:  # a coroutine that a decorator made of a generator
        return bool(value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return getattr(kind, "__await__", None) is not None  # a class may set it to None to say that it has none


def close_unstarted(value: Any) -> None:
    """Close a coroutine whose job was stopped before its first step, which else warns that nobody awaited it."""
    if isinstance(value, CoroutineType | Then):
        value.close()
