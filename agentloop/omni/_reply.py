"""A reply in the reading: fragments and complete blocks become starts, deltas, ends and added blocks.

A complete record ends the open block of its kind, or adds a block that did not stream. It is the authority: where
fragments are missing, repeated or never closed, the block is what the complete record says.
"""

from __future__ import annotations

from typing import Any, Final

from agentloop._values import valid_text
from agentloop.errors import StopReason
from agentloop.events import (
    BlockAdded,
    Delta,
    Event,
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
from agentloop.messages import AssistantMessage, Text, Thinking, ToolCall
from agentloop.omni._types import Payload
from agentloop.reply import Partial

_GROW: Final[dict[str, Any]] = {"text": TextDelta, "thinking": ThinkingDelta, "tool_call": ToolCallDelta}
_ENDS: Final[dict[str, Any]] = {"text": TextEnd, "thinking": ThinkingEnd, "tool_call": ToolCallEnd}


class ReplyReader:
    """One reply, from its first record to its last."""

    __slots__ = ("call_id", "call_name", "explicit", "grow", "half", "index", "kind", "partial", "stop_reason")

    def __init__(self, header: AssistantMessage, explicit: bool) -> None:
        self.partial = Partial(header)
        self.explicit = explicit
        """Whether a `message_start` opened it."""
        self.index = 0
        """Of the open block, or of the next one."""
        self.kind: str | None = None
        """Of the open block: `text`, `thinking` or `tool_call`."""
        self.grow: Any = None
        """The delta class of the open block."""
        self.call_id = self.call_name = ""
        self.half = ""
        """A high surrogate that waits for its other half in the next delta."""
        self.stop_reason: StopReason = "completed"
        """Why the last block was closed that was closed early."""

    def is_open(self, kind: str, call_id: str) -> bool:
        """Whether the open block is of the kind, and of the call if it is one."""
        return self.kind == kind and (kind != "tool_call" or call_id == self.call_id)

    def piece(self, text: Any) -> Event:
        """A fragment of the open block."""
        return self.partial.grow(self.grow(self.index, self.clean(text)))

    def clean(self, text: Any) -> str:
        """Valid text; what is split between two fragments is put together in the second."""
        if type(text) is not str:
            raise TypeError(f"expected a string, got {type(text).__name__}")
        if text.isascii() and not self.half:
            return text
        text = self.half + text
        self.half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self.half = text[-1]
            text = text[:-1]
        return valid_text(text)

    def start(self, kind: str, call_id: str, name: str) -> list[Event]:
        """A block opens; one that was never closed is closed before."""
        events = [] if self.kind is None else self.close("aborted")
        self.kind, self.grow, self.call_id, self.call_name = kind, _GROW[kind], call_id, name
        events.append(self.partial.update(self._start()))
        return events

    def _start(self) -> Delta:
        if self.kind == "tool_call":
            return ToolCallStart(self.index, self.call_id, self.call_name)
        return TextStart(self.index) if self.kind == "text" else ThinkingStart(self.index)

    def close(self, stop_reason: StopReason) -> list[Event]:
        """End a block whose complete record did not come, with what it has; nothing when none is open."""
        if self.kind is None:
            return []
        events = self._flush_half()
        text = self.partial.text
        block: Any = ToolCall(self.call_id, self.call_name, text)
        if self.kind != "tool_call":
            block = Text(text) if self.kind == "text" else Thinking(text)
        return events + self._end(block, stop_reason)

    def block(self, kind: str, block: Any, stop_reason: StopReason) -> list[Event]:
        """The complete record of a block. A call that was cut takes an index and nothing else."""
        if stop_reason != "completed":
            self.stop_reason = stop_reason
        if self.kind == kind and (kind != "tool_call" or block.id == self.call_id):
            if self.half:
                return self._flush_half() + self._end(block, stop_reason)
            return self._end(block, stop_reason)
        events = self.close("aborted")
        if kind != "tool_call" or stop_reason == "completed":
            events.append(self.partial.update(BlockAdded(self.index, block)))
        self.index += 1
        return events

    def _flush_half(self) -> list[Event]:
        if not self.half:
            return []
        self.half = ""
        return [self.partial.grow(self.grow(self.index, "\ufffd"))]

    def _end(self, block: Any, stop_reason: StopReason) -> list[Event]:
        assert self.kind is not None
        end = self.partial.update(_ENDS[self.kind](self.index, block, stop_reason))
        self.kind = self.grow = None
        self.index += 1
        return [end]

    def message(self) -> AssistantMessage:
        """The reply of a writer who does not say how it ended."""
        return AssistantMessage(self.partial.content(), self.stop_reason)


def fragment_fields(payload: Payload) -> tuple[str, str, str]:
    """`event_type`, call id and name of a fragment. Raises `TypeError` for what does not fit."""
    event_type = payload["event_type"]
    call_id, name = payload.get("tool_call_id", ""), payload.get("name", "")
    if event_type not in ("start", "delta", "stop") or type(call_id) is not str or type(name) is not str:
        raise TypeError("expected start, delta or stop, and strings")
    return event_type, call_id, name
