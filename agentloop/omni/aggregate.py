"""Fragments folded into complete records, for readers who want only those.

Everything that is not a fragment passes through unchanged, in order. Fragments are kept apart by origin, kind and call, so
that a parent's and a child's text, or the outputs of two tools, never mix.
"""

from __future__ import annotations

from agentloop._results import NO_OUTPUT
from agentloop._values import valid_text
from agentloop.omni._types import PARTIALS, PIECE_FIELDS, Payload, Record
from agentloop.omni.records import origin_of

__all__ = ["Aggregator", "Key", "Segment"]

Key = tuple[tuple[str, ...], str, str]
"""What tells the open segments of a stream apart: origin, kind of fragment, id of the call (empty without one)."""


class Segment:
    """The fragments of one text, thinking, call or output so far, added up."""

    __slots__ = ("images", "name", "pieces", "record", "stop_reason")

    def __init__(self, record: Record) -> None:
        self.record = record
        """The latest fragment; the complete record gets its timestamp."""
        self.pieces: list[str] = []
        self.images: list[str] = []
        self.name = ""
        self.stop_reason = "completed"
        """As the latest fragment that says one has it."""

    def add(self, record: Record) -> None:
        """Add a fragment. Raises `KeyError`, `TypeError` or `AttributeError` for a record without the shape of one."""
        payload = record["payload"]
        text, name, images = payload[PIECE_FIELDS[payload["type"]]], payload.get("name", ""), payload.get("images", [])
        if type(text) is not str or type(name) is not str or not isinstance(images, list):
            raise TypeError("expected strings, and an array of images")
        self.record = record
        self.pieces.append(text)
        self.name = self.name or name
        self.images = images or self.images
        self.stop_reason = payload.get("stop_reason", self.stop_reason)

    def complete(self, stop_reason: str) -> Record:
        """The complete record of the segment."""
        record = self.record
        payload = record["payload"]
        text = valid_text("".join(self.pieces))
        whole: Record = {
            "timestamp": record["timestamp"],
            "type": "model_msg",
            "payload": self._payload(payload, text, stop_reason),
        }
        if "origin" in record:
            whole["origin"] = record["origin"]
        return whole

    def _payload(self, payload: Payload, text: str, stop_reason: str) -> Payload:
        kind = payload["type"].removeprefix("partial_")
        whole: Payload = {"type": kind, "role": payload["role"]}
        if kind == "tool_call":
            whole |= {"name": self.name, "arguments": text, "tool_call_id": payload["tool_call_id"]}
        elif kind == "tool_call_output":
            whole["output"] = text or NO_OUTPUT
            if self.images and stop_reason == "completed":
                whole["images"] = self.images
            whole["tool_call_id"] = payload["tool_call_id"]
        else:
            whole[kind] = text
        whole["stop_reason"] = stop_reason
        return whole


class Aggregator:
    """Takes records one at a time and gives complete ones.

    A `stop` gives the complete record of its segment. A second `start` first ends the segment that is open; a piece whose
    start was never seen opens one. With `swap` the stream holds the complete records too (as ours do): then the record
    itself, which alone has the fidelity, stands in for the fold, and a fold is given only where none follows.
    """

    def __init__(self, *, swap: bool = False) -> None:
        """An aggregator at the beginning of a stream."""
        self._swap = swap
        self._open: dict[Key, Segment] = {}
        self._stopped: dict[Key, Record] = {}
        """With `swap`: folds whose complete record may still come."""

    def feed(self, record: Record) -> list[Record]:
        """The complete records that this one gives. A fragment that does not fit its kind passes through."""
        payload = record.get("payload")
        if not isinstance(payload, dict):
            return [record]
        try:
            kind = payload.get("type")
            if record["type"] == "model_msg" and kind in PARTIALS:
                return self._fragment(record, payload, _key(record, payload))
        except (KeyError, TypeError, AttributeError):
            return [record]
        return [*self._before(record, payload), record] if self._stopped else [record]

    def _fragment(self, record: Record, payload: Payload, key: Key) -> list[Record]:
        event_type = payload["event_type"]
        if event_type not in ("start", "delta", "stop"):
            raise TypeError("expected start, delta or stop")
        segment = self._open.get(key)
        begun = Segment(record) if segment is None or event_type == "start" else segment
        begun.add(record)
        given = self._before(record, payload) if self._stopped else []
        if segment is not None and begun is not segment:
            del self._open[key]  # so that it is the latest in opening order
            given.append(segment.complete(_cut(segment)))
        self._open[key] = begun
        if event_type == "stop":
            del self._open[key]
            whole = begun.complete(begun.stop_reason)
            if not self._swap:
                return [*given, whole]
            self._stopped[key] = whole
        return given

    def _before(self, record: Record, payload: Payload) -> list[Record]:
        """The folds whose own record does not come any more, now that this one is here."""
        own = (origin_of(record), f"partial_{payload.get('type')}", payload.get("tool_call_id", ""))
        given: list[Record] = []
        for key in list(self._stopped):
            if record.get("type") == "model_msg" and key == own:
                del self._stopped[key]  # the record itself stands in for it
            elif key[0] == own[0] and _same_producer(key, record, payload):
                given.append(self._stopped.pop(key))
        return given

    def flush(self) -> list[Record]:
        """What is open, in opening order, cut: `aborted`, unless its fragments gave another reason."""
        given = [*self._stopped.values(), *[open_.complete(_cut(open_)) for open_ in self._open.values()]]
        self._open.clear()
        self._stopped.clear()
        return given


def _key(record: Record, payload: Payload) -> Key:
    call = payload.get("tool_call_id", "")
    if type(call) is not str:
        raise TypeError("expected a string")
    return origin_of(record), payload["type"], call


def _same_producer(key: Key, record: Record, payload: Payload) -> bool:
    """Whether the record is by the producer of the fold, the model or one tool; others' may come before its record."""
    call, of_a_tool = payload.get("tool_call_id"), key[1] == "partial_tool_call_output"
    if record.get("type") != "model_msg":
        return key[2] == call if of_a_tool else call is None
    output = payload.get("type") in ("tool_call_output", "partial_tool_call_output")
    return of_a_tool == output and (not output or key[2] == call)


def _cut(segment: Segment) -> str:
    return "aborted" if segment.stop_reason == "completed" else segment.stop_reason
