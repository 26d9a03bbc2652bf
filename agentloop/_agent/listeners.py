"""`Listeners`: whoever is told of each event of an agent's runs, one after the other, and awaited if they want to be."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from agentloop._awaiting import is_awaitable
from agentloop._host import cancelled_by_nobody
from agentloop._values import is_kind
from agentloop.events import Event

log = logging.getLogger("agentloop.agent")

Listener: TypeAlias = Callable[[Event], Awaitable[object] | object]
"""Called with each event; what it returns is awaited if it can be."""

Answer: TypeAlias = tuple[object, Listener, Awaitable[object]]
"""A listener's key, itself, and what it wants awaited."""

Errors: TypeAlias = tuple[type[BaseException], ...]
"""What a listener may raise without ending more than its own subscription."""


class Listeners:
    """Tells listeners of one event at a time: `pass_on` it, then `tell`. One that raises is logged and dropped."""

    __slots__ = ("_by_key", "_due", "_event", "audience")

    def __init__(self) -> None:
        self._by_key: dict[object, Listener] = {}
        self.audience: tuple[tuple[object, Listener], ...] = ()
        """All of them, as they stood when one last came or went."""
        self._due: Iterable[tuple[object, Listener]] = ()  # who has not been told of the event yet
        self._event: Any = None

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell it of each event from the next one on; the returned function ends that."""
        key = object()
        self._by_key[key] = listener
        self.audience = tuple(self._by_key.items())
        return lambda: self._remove(key)

    def _remove(self, key: object) -> None:
        self._by_key.pop(key, None)
        self.audience = tuple(self._by_key.items())

    def pass_on(self, event: Event) -> None:
        """The event that all are to be told of."""
        self._event = event
        self._due = iter(self.audience)

    async def tell(self, survived: Errors = (Exception,)) -> None:
        """Tell those that were not told yet. After a cancellation, whoever is left is told when this is called again."""
        while (answer := self.next_answer(survived)) is not None:
            await self.answered(answer, survived)

    def next_answer(self, survived: Errors = (Exception,)) -> Answer | None:
        """Tell them until an answer is to be awaited. Most answer at once, and no coroutine is made for those."""
        for key, listener in self._due:
            if key not in self._by_key:
                continue
            try:
                answer = listener(self._event)
                if is_awaitable(answer):
                    return key, listener, answer
            except BaseException as error:
                self._failed(key, listener, error, survived)
        return None

    async def answered(self, answer: Answer, survived: Errors = (Exception,)) -> None:
        """Await what a listener wants awaited."""
        key, listener, awaitable = answer
        try:
            await awaitable
        except BaseException as error:
            self._failed(key, listener, error, survived)

    def _failed(self, key: object, listener: Listener, error: BaseException, survived: Errors) -> None:
        """Drop the listener. Raises the error where it is more than the listener's own failure."""
        if not is_kind(error, survived) and not cancelled_by_nobody(error):
            raise error
        self._remove(key)
        log.error("the listener %r failed and is dropped", listener, exc_info=error)
