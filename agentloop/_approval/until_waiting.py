"""Leaving a run when it can go on only with a person's answer, so that it can be resumed once that is there."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Literal

from agentloop._stepped import Wrapper
from agentloop.events import (
    ApprovalDecision,
    ApprovalRequest,
    Event,
    Hook,
    MessageEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnStart,
)
from agentloop.messages import AssistantMessage, ToolCall, ToolResultMessage


class UntilWaiting(Wrapper[Event]):
    """The events of a run up to where it waits for a person and for nothing else; then it is left. Made by `until_waiting`."""

    def __init__(self, events: AsyncIterable[Event], order: str, calls: Iterable[str]) -> None:
        self.waiting: tuple[ApprovalRequest, ...] = ()
        """What it was left with; empty when the run ended by itself."""
        self._events = aiter(events)
        self._batch = _Batch(order == "all_at_once", list(calls))
        self._over = False

    async def __anext__(self) -> Event:
        """The next event. Raises `StopAsyncIteration` after the last, when the run has been left."""
        if self._over or self.waiting:
            await self.aclose()
            raise StopAsyncIteration
        event = await self._events.__anext__()
        self._batch.feed(event)
        self.waiting = self._batch.waits_for()
        return event

    async def aclose(self) -> None:
        """Leave the run, and await its end."""
        self._over = True
        await super().aclose()


def until_waiting(
    events: AsyncIterable[Event],
    *,
    order: Literal["one_at_a_time", "all_at_once"] = "one_at_a_time",
    open_calls: Iterable[ToolCall | str] = (),
) -> UntilWaiting:
    """A run, left as soon as it waits for a person and for nothing else: calls that were allowed have ended and are recorded.

    What is left behind is open, not aborted: recorded (wrap the recording: `until_waiting(record(…))`) and resumed, the run
    goes on with these calls, without a question for those that were answered meanwhile. The `approve` of the run is not
    asked about them; its `policy` is, so a request that comes is one for a person.

    `order` is the run's `approval_order`. A run that begins with calls of its context (`agent_loop_continue`) is told them by
    `open_calls`, calls or their ids: only then is it known when the last of them was shown. Raises `ValueError` for another
    `order`.
    """
    if order not in ("one_at_a_time", "all_at_once"):
        raise ValueError(f"order: expected one_at_a_time or all_at_once, got {order!r}")
    return UntilWaiting(events, order, [call if isinstance(call, str) else call.id for call in open_calls])


class _Batch:
    """The calls of a turn: which have begun, which wait for a person, which have ended."""

    def __init__(self, all_at_once: bool, calls: list[str]) -> None:
        self._all_at_once = all_at_once
        self._calls = calls  # in call order, as far as known
        self._asked: dict[str, ApprovalRequest] = {}
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self._results = 0
        self._turns = 0

    def feed(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case TurnStart():
                self._begin([] if self._turns else self._calls)
            case MessageEnd(message=AssistantMessage() as reply):
                self._begin([call.id for call in reply.tool_calls])
            case MessageEnd(message=ToolResultMessage()):
                self._results += 1
            case ApprovalRequest():
                self._known(event.tool_call_id)
                self._asked[event.tool_call_id] = event
            case ApprovalDecision():
                self._asked.pop(event.tool_call_id, None)
            case ToolExecutionStart():
                self._known(event.tool_call_id)
                self._asked.pop(event.tool_call_id, None)
                self._running.add(event.tool_call_id)
            case ToolExecutionEnd():
                self._running.discard(event.tool_call_id)
                self._ended.add(event.tool_call_id)
            case Hook(tool_call_id=str(id)):
                self._known(id)

    def _begin(self, calls: list[str]) -> None:
        self._turns += 1
        self._calls, self._results = calls, 0
        self._asked, self._running, self._ended = {}, set(), set()

    def _known(self, id: str) -> None:
        if id not in self._calls:
            self._calls.append(id)

    def waits_for(self) -> tuple[ApprovalRequest, ...]:
        """The requests that alone hold the run up; empty while anything else goes on."""
        if not self._asked or self._running:
            return ()
        seen = self._asked.keys() | self._ended
        if self._all_at_once and not all(id in seen for id in self._calls):
            return ()
        first_open = next((n for n, id in enumerate(self._calls) if id not in self._ended), len(self._calls))
        return tuple(self._asked.values()) if self._results == first_open else ()
