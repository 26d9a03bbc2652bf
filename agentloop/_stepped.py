"""Async iterators with the interface of an async generator: what is the same for every run and its wrappers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Generic, Self, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Stepped(AsyncGenerator[T_co, None], Generic[T_co]):
    """An async iterator with the rest of an async generator's methods. A subclass has `__anext__` and `aclose`."""

    __slots__ = ()

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def asend(self, value: None) -> T_co:
        """The same as `__anext__`; nothing can be sent in."""
        if value is not None:
            raise TypeError(f"expected None, got {type(value).__name__}: nothing can be sent in")
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> T_co:
        """Close it, then raise the given exception."""
        await self.aclose()
        if isinstance(typ, BaseException):
            raise typ
        raise typ() if val is None else typ(val)


class Wrapper(Stepped[T_co]):
    """Steps another iterator, which may be a run, and passes on to it what a run can do besides."""

    __slots__ = ("_events",)
    _events: AsyncIterator[T_co]

    async def aclose(self) -> None:
        """Close the wrapped iterator, if it can be closed, and await its end."""
        close = getattr(self._events, "aclose", None)
        if close is not None:
            await close()

    def keep_alive(self) -> None:
        """From now on a cancelled step does not end the run. Whoever calls this must close it (`running` does both)."""
        keep = getattr(self._events, "keep_alive", None)
        if keep is not None:
            keep()

    def skip_wait(self) -> bool:
        """End a retry's wait of the wrapped run now; False when none is going on (or it is no run)."""
        skip = getattr(self._events, "skip_wait", None)
        return bool(skip()) if skip is not None else False
