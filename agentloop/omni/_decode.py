"""Records of a stream to events: a reader for each session in it, told apart by `origin`."""

from __future__ import annotations

from typing import TypeAlias

from agentloop.events import AgentEnd, ChildEvent, Event, Foreign
from agentloop.omni._input import Desk
from agentloop.omni._session import Events, SessionReader
from agentloop.omni._types import Record
from agentloop.omni.custom import REGISTRY, MessageRegistry
from agentloop.omni.records import origin_of

Origin: TypeAlias = tuple[str, ...]


class Decoder:
    """Turns records, in the order of their stream or file, into events.

    Events of a child come as `ChildEvent`; sessions are kept apart by `origin`. A record that the one after it explains
    (a child's pointer before its meta) is held until that comes, or until `finish`. `registry` knows the classes of an
    application's own messages.
    """

    def __init__(self, registry: MessageRegistry = REGISTRY) -> None:
        self._registry = registry
        self._desk = Desk()
        self._own = SessionReader(registry, self._desk)
        self._children: dict[Origin, SessionReader] = {}
        self._known: set[Origin] = set()
        """Children whose start was told."""

    def feed(self, record: Record) -> list[Event]:
        """The events that this record completes: often one, often none. Never raises; what is not an object gives nothing."""
        if not isinstance(record, dict):
            return []  # type: ignore[unreachable]  # a reader of foreign lines may let it through
        if self._desk.busy:
            return self._attended(record)
        return self._child(record) if "origin" in record else self._own.feed(record)

    def finish(self) -> list[Event]:
        """What only waited for a further record, when there is none: the end of another writer's message."""
        events: Events = []
        held = self._desk.clear()
        if held is not None:
            events += self._explained(held, None)
        events += self._own.last()
        for origin, reader in self._children.items():
            events += _as_child(origin, reader.last())
        return events

    def _attended(self, record: Record) -> Events:
        """Feed a record that something waits for."""
        desk = self._desk
        if desk.held is not None:
            return self._after_held(desk.held, record)
        reader = desk.owing
        assert reader is not None
        if origin_of(record) == reader.origin:
            return self._child(record) if "origin" in record else self._own.feed(record)
        desk.clear()
        return _as_child(reader.origin, reader.give_start()) + self.feed(record)

    def _after_held(self, held: Record, record: Record) -> Events:
        self._desk.clear()
        session_id = held["payload"].get("session_id")
        if record.get("type") == "session_meta" and origin_of(record) == (*origin_of(held), session_id):
            self._known.add(origin_of(record))
            meta = {**held["payload"]["x"], "meta": record.get("payload")}
            return self._explained({**held, "payload": {**held["payload"], "x": meta}}, record)
        return self._explained(held, record) + self.feed(record)

    def _explained(self, held: Record, behind: Record | None) -> Events:
        origin = origin_of(held)
        return _as_child(origin, self._reader(origin).feed(held, behind, last=behind is None))

    def _reader(self, origin: Origin) -> SessionReader:
        if not origin:
            return self._own
        reader = self._children.get(origin)
        if reader is None:
            reader = self._children[origin] = SessionReader(self._registry, self._desk, origin)
        return reader

    def _child(self, record: Record) -> Events:
        origin = origin_of(record)
        if not origin:
            return self._own.feed(record) if record["origin"] == [] else self._own.foreign(record)
        if record.get("type") == "session_meta":
            return self._child_meta(origin, record)
        events = self._reader(origin).feed(record)
        if events and type(events[-1]) is AgentEnd:
            del self._children[origin]
        return _as_child(origin, events)

    def _child_meta(self, origin: Origin, record: Record) -> Events:
        """A child opens; in a stream without pointers its meta is the first that is heard of it."""
        if origin in self._known:
            return []
        self._known.add(origin)
        pointer = {"type": "subagent", "session_id": origin[-1], "x": {"meta": record.get("payload")}}
        parent = self._reader(origin[:-1])
        return _as_child(origin[:-1], parent.feed({"type": "event_msg", "payload": pointer}, record))


def _as_child(origin: Origin, events: Events) -> Events:
    """The events as those of a child. A foreign record keeps its own `origin` only where that does not stand last."""
    if not origin:
        return events
    return [ChildEvent(origin, _without_origin(event) if type(event) is Foreign else event) for event in events]


def _without_origin(event: Foreign) -> Foreign:
    record = dict(event.record)
    if next(reversed(record), None) == "origin":
        del record["origin"]
    return Foreign(record)
