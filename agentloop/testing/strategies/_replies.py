"""Replies for generated streams: blocks, their deltas, and the finished message, all in agreement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentloop.errors import StopReason
from agentloop.events import (
    BlockAdded,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from agentloop.messages import AssistantMessage, Text, Thinking, ToolCall, Usage
from agentloop.reply import Partial
from agentloop.testing.strategies import values

_TEXTS = values.texts()
_NAMES = values.names()
_ARGUMENTS = values.argument_texts()
_FIDELITIES = values.fidelities()
_WHOLE = values.whole_blocks()
_STREAMED: dict[type, Any] = {
    Text: (TextStart, TextDelta, TextEnd),
    Thinking: (ThinkingStart, ThinkingDelta, ThinkingEnd),
}


class ReplyMaker:
    """Makes replies as events. `new_id` gives each call an id of its own in the run."""

    def __init__(self, draw: Callable[[Any], Any], pick: Callable[..., Any], new_id: Callable[[], str]) -> None:
        self.draw = draw
        self.pick = pick
        self.new_id = new_id
        self.with_calls = False
        """Whether replies are to be mostly calls."""

    def reply(self, status: StopReason, usage: Usage | None, error: tuple[str | None, str | None]) -> list[Any]:
        """The events of one reply, from its start to its end. Not committed: its last blocks may be closed early."""
        provider = self.pick(None, None, "scripted")
        header = AssistantMessage((), provider=provider, model=None if provider is None else self.pick("m-1", "m-2"))
        partial = Partial(header)
        count = self.pick(2, 3) if self.with_calls else self.pick(1, 3, 1, 2)
        whole = count if status == "completed" else self.pick(*range(count, -1, -1))
        updates: list[MessageUpdate] = []
        for index in range(count):
            updates += self._block(partial, index, "completed" if index < whole else status)
        content = partial.content()
        message = AssistantMessage(
            content,
            status,
            self._finish(content) if status == "completed" else None,
            usage,
            header.provider,
            header.model,
            *error,
            fidelity=self.draw(_FIDELITIES) if self.pick(False, False, True) else None,
        )
        return [MessageStart(header), *updates, MessageEnd(message)]

    def _finish(self, content: Any) -> Any:
        calls = any(isinstance(block, ToolCall) for block in content)
        return self.pick("tool_use" if calls else "stop", *values.FINISH_REASONS)

    def _block(self, partial: Partial, index: int, stop_reason: StopReason) -> list[MessageUpdate]:
        kind: Any = ToolCall
        if not self.with_calls or self.pick(False, True, False):
            kind = self.pick(Text, ToolCall, Thinking, BlockAdded, Text, ToolCall)
        if kind is ToolCall and stop_reason == "completed" and self.pick(*[False] * 7, True):
            call = ToolCall(self.new_id(), self.draw(_NAMES), self.draw(_ARGUMENTS), self.draw(_FIDELITIES))
            return [partial.update(BlockAdded(index, call))]
        if kind is BlockAdded:
            return [partial.update(BlockAdded(index, self.draw(_WHOLE)))]
        if kind is ToolCall:
            return self._call(partial, index, stop_reason)
        start, delta, end = _STREAMED[kind]
        updates = [partial.update(start(index))]
        updates += [partial.update(delta(index, self.draw(_TEXTS))) for _ in range(self.pick(0, 1, 1, 2, 3))]
        block = kind(partial.text, self.draw(_FIDELITIES))
        return [*updates, partial.update(end(index, block, stop_reason))]

    def _call(self, partial: Partial, index: int, stop_reason: StopReason) -> list[MessageUpdate]:
        id, name = self.new_id(), self.draw(_NAMES)
        text = self.draw(_ARGUMENTS)
        cut = self.pick(*range(min(len(text), 8) + 1))
        updates = [partial.update(ToolCallStart(index, id, name))]
        updates += [
            partial.update(ToolCallDelta(index, piece)) for piece in (text[:cut], text[cut:]) if piece or cut == 1
        ]
        block = ToolCall(id, name, partial.text, self.draw(_FIDELITIES))
        return [*updates, partial.update(ToolCallEnd(index, block, stop_reason))]
