"""What of an encoder's records goes where: the trace keeps no fragments, the stream no compaction's own exchange.

Both filters look at one record at a time and change none.
"""

from __future__ import annotations

from agentloop.omni._types import PARTIALS, Payload, Record
from agentloop.omni.records import origin_of


def _payload(record: Record) -> Payload:
    payload = record.get("payload")
    return payload if isinstance(payload, dict) and isinstance(payload.get("type", ""), str) else {}


class TraceFilter:
    """Which records a session's trace file holds."""

    def __init__(self) -> None:
        """A filter at the head of a file."""
        self._closed = False

    def keep(self, record: Record) -> bool:
        """Whether it is written: no fragment, no progress, nothing of a child.

        An `agent_end`, with an `abort` before it, is left out directly after a completed compaction: that must be the
        last record of its file.
        """
        if "origin" in record:
            return False
        payload, closed = _payload(record), self._closed
        kind = payload.get("type")
        if record.get("type") == "model_msg":
            if kind in PARTIALS:
                return False
        elif kind == "tool_execution_update":
            return False
        elif closed and kind in ("abort", "agent_end"):
            self._closed = kind == "abort"
            return False
        self._closed = kind == "compaction_end" and payload.get("status") == "completed"
        return True


class StreamFilter:
    """Which records a consumer of the run is shown."""

    def __init__(self) -> None:
        """A filter at the beginning of a stream."""
        self._compacting: dict[tuple[str, ...], set[str]] = {}
        """By session, while it compacts: which kinds of block were shown as fragments."""

    def keep(self, record: Record) -> bool:
        """Whether it is shown: all but `subagent` and what a compaction says to its model.

        Of a compaction's reply the thinking and the text are shown once: as fragments, or complete when nothing streamed.
        """
        kind = _payload(record).get("type")
        if kind == "subagent":
            return False
        origin = origin_of(record)
        if kind == "compaction_begin":
            self._compacting[origin] = set()
        elif kind == "compaction_end":
            self._compacting.pop(origin, None)
        elif origin in self._compacting:
            return self._keep_inside(record, self._compacting[origin])
        return True

    def _keep_inside(self, record: Record, shown: set[str]) -> bool:
        payload = _payload(record)
        kind = payload.get("type")
        if record.get("type") != "model_msg":
            return kind not in _EXCHANGE
        if kind in ("partial_text", "partial_thinking"):
            shown.add(kind.removeprefix("partial_"))
            return True
        if kind not in ("text", "thinking") or payload.get("role") != "assistant":
            return False
        streamed = kind in shown
        shown.discard(kind)
        return not streamed


_EXCHANGE = frozenset({
    "request_begin", "request_end", "message_start", "message_end", "custom_message", "tool_execution_start",
    "tool_execution_update", "tool_execution_end", "approval_request", "approval_decision", "hook",
})  # fmt: skip
"""Events that belong to what a compaction says to its model."""
