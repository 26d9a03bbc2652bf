"""One live channel of records, sans-I/O: ids, what to replay to a client that comes back, what a late joiner starts
with.

The host owns the connections. For each new one it calls `connect` and, before anything else is published, begins to
pass on what `publish` and `publish_server_event` return; `unicast` makes a frame for one connection alone. Not
thread-safe: one channel belongs to one event loop.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from agentloop.omni._types import PIECE_FIELDS
from agentloop.omni.jsonl import dumps
from agentloop.omni.records import Record, event_kind, is_complete_model_message, is_partial, origin_of
from agentloop.omni.sse import encode, encode_server_event

__all__ = ["MAX_BYTES", "MAX_EVENTS", "RESYNC_REQUIRED", "Channel", "Frame", "approval_request", "join", "task_state"]

MAX_EVENTS: Final = 10_000
MAX_BYTES: Final = 8 * 2**20

_ID: Final = re.compile(r"([0-9A-Za-z]{1,64})-([0-9]{1,18})")
_JOIN_AT: Final = (
    512  # pieces of a fragment are joined now and then: a long list of short ones costs ten times the text
)


# ---------------------------------------------------------------- what the server says for itself


def task_state(
    state: str, *, queued: int | None = None, pending_steering: Any = None, pending_follow_ups: Any = None
) -> dict[str, Any]:
    """What the session does now: `idle`, `running` or `compacting`; and what waits, where that is known."""
    body: dict[str, Any] = {"type": "task_state", "state": state}
    waiting = {"queued": queued, "pendingSteering": pending_steering, "pendingFollowUps": pending_follow_ups}
    return body | {name: value for name, value in waiting.items() if value is not None}


def approval_request(tool_call: Record, origin: Sequence[str] = ()) -> dict[str, Any]:
    """A call (its record) waits for somebody's decision; `origin` when it is a child's.

    Of a `Question`: `approval_request(records.tool_call(question.tool_name, question.arguments, question.tool_call_id))`.
    """
    body: dict[str, Any] = {"type": "approval_request", "toolCall": tool_call}
    return body | ({"origin": list(origin)} if origin else {})


RESYNC_REQUIRED: Final[Mapping[str, Any]] = {"type": "resync_required"}
"""What was missed cannot be replayed: the client fetches the history and goes on with this connection."""


# ---------------------------------------------------------------- open fragments

FragmentKey: TypeAlias = tuple[tuple[str, ...], str, str | None]
"""Origin, type of the fragment, id of the call: two producers never share one."""


@attrs.define
class _Fragment:
    first: Record  # the start as it came (or the delta that took its place)
    pieces: list[str]
    images: list[str] | None = None

    def add(self, payload: Mapping[str, Any]) -> None:
        text = payload.get(PIECE_FIELDS[payload["type"]])
        if isinstance(text, str) and text:
            self.pieces.append(text)
            if len(self.pieces) >= _JOIN_AT:
                self.pieces[:] = ["".join(self.pieces)]
        if payload.get("images"):  # the later set replaces the earlier one
            self.images = list(payload["images"])

    def start(self) -> Record:
        """One synthetic start that carries everything so far."""
        payload = dict(self.first["payload"])
        content = PIECE_FIELDS[payload["type"]]
        begun: dict[str, Any] = {}
        for name, value in payload.items():
            if name == "images":
                continue
            begun[name] = value
            if name == content:
                begun[name] = "".join(self.pieces)
                if self.images:
                    begun["images"] = self.images
        begun["event_type"] = "start"
        return {**self.first, "payload": begun}


class Fragments:
    """The fragments that are open in a stream of records, each with its content so far.

    A `stop` closes one, and so does its complete record and the start or end of a run; a delta without a start opens
    one.
    """

    def __init__(self) -> None:
        """None are open."""
        self._open: dict[FragmentKey, _Fragment] = {}

    def feed(self, record: Record) -> None:
        """Take the next record of the stream."""
        if is_partial(record):
            self._feed_partial(record)
        elif is_complete_model_message(record):
            payload = record["payload"]
            self._open.pop(_key(record, f"partial_{payload.get('type')}"), None)
        elif event_kind(record) in ("agent_start", "agent_end"):  # a run that was left early closed nothing
            origin = origin_of(record)
            for key in [key for key in self._open if key[0][: len(origin)] == origin]:
                del self._open[key]

    def _feed_partial(self, record: Record) -> None:
        payload = record["payload"]
        key = _key(record, payload["type"])
        kind = payload.get("event_type")
        if kind == "stop":
            self._open.pop(key, None)
            return
        fragment = None if kind == "start" else self._open.get(key)
        if fragment is None:
            self._open.pop(key, None)  # a second start closes the first: the new one stands last
            fragment = self._open[key] = _Fragment(record, [])
        fragment.add(payload)

    def starts(self) -> list[Record]:
        """For each open fragment one `start` with everything so far, in the order in which they opened."""
        return [fragment.start() for fragment in self._open.values()]


def _key(record: Record, kind: str) -> FragmentKey:
    call = record["payload"].get("tool_call_id")
    return origin_of(record), kind, call if isinstance(call, str) else None


# ---------------------------------------------------------------- the channel


@attrs.frozen
class Frame:
    """One server-sent event on its way: its `id`, its bytes (`data`), and `seq`, the number that the id ends with."""

    id: str
    data: bytes
    seq: int


class Channel:
    """Numbers what is sent, keeps the latest of it, and knows what a client that connects gets first.

    Ids are `<epoch>-<seq>`: a random epoch of this object, and a counter from 1. Kept are the latest `max_events`
    frames or `max_bytes` of their data, whichever is reached first; the oldest go first. A frame larger than
    `max_bytes` is not kept.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES, epoch: str | None = None) -> None:
        """An empty channel; `epoch` (letters and digits) is random unless given."""
        self.epoch = epoch or secrets.token_hex(4)
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._kept: deque[Frame] = deque()
        self._bytes = 0
        self._seq = 0
        self._evicted = 0  # the last number that was let go
        self._fragments = Fragments()

    @property
    def cursor(self) -> str:
        """The id of the last event that was given."""
        return f"{self.epoch}-{self._seq}"

    def publish(self, record: Record) -> Frame:
        """A record for every connection."""
        self._fragments.feed(record)
        return self._keep(encode(record, self._next()))

    def publish_server_event(self, body: Mapping[str, Any]) -> Frame:
        """One of the server's own events for every connection."""
        return self._keep(encode_server_event(body, self._next()))

    def unicast(self, body: Mapping[str, Any]) -> Frame:
        """One of the server's own events for one connection: it takes a number and is not replayed."""
        return Frame(self._next(), encode_server_event(body, self.cursor), self._seq)

    def connect(
        self,
        last_event_id: str | None = None,
        *,
        state: Mapping[str, Any],
        pending: Iterable[Mapping[str, Any]] = (),
    ) -> list[Frame]:
        """What a new connection gets first: what it missed (or `resync_required`), the `task_state`, open approvals.

        `last_event_id` is the header `Last-Event-ID`; None or empty for a fresh client, which gets no replay. `state`
        is a `task_state`, `pending` the `approval_request`s that wait.
        """
        frames: list[Frame] = []
        if last_event_id:
            missed = self.missed(last_event_id)
            frames += [self.unicast(RESYNC_REQUIRED)] if missed is None else missed
        return [*frames, self.unicast(state), *[self.unicast(body) for body in pending]]

    def missed(self, last_event_id: str) -> list[Frame] | None:
        """What was published after that id; None when it cannot be told: another epoch, no id of ours, one not given
        yet, or something after it was let go."""
        match = _ID.fullmatch(last_event_id)
        if match is None or match[1] != self.epoch:
            return None
        seq = int(match[2])
        if not self._evicted <= seq <= self._seq:
            return None
        return [frame for frame in self._kept if frame.seq > seq]

    def live(self) -> dict[str, Any]:
        """For the history that a late joiner fetches: the open fragments, each as one start with everything so far,
        and the id up to which they (and that history) hold."""
        return {"cursor": self.cursor, "fragments": self._fragments.starts()}

    def _next(self) -> str:
        self._seq += 1
        return self.cursor

    def _keep(self, data: bytes) -> Frame:
        frame = Frame(self.cursor, data, self._seq)
        self._kept.append(frame)
        self._bytes += len(data)
        while len(self._kept) > self._max_events or self._bytes > self._max_bytes:
            oldest = self._kept.popleft()
            self._bytes -= len(oldest.data)
            self._evicted = oldest.seq
        return frame


def join(history: Iterable[Record], live: Mapping[str, Any], received: Iterable[tuple[str, Record]]) -> list[Record]:
    """What a late joiner shows: the history, the open fragments, and what it `received` (id and record) since it
    connected.

    Fragments up to the cursor are left out, since the starts in `live` carry them; complete records are never left
    out by the cursor, only as duplicates of the history.
    """
    known = list(history)
    told = {dumps(record) for record in known}
    cursor = _number(live["cursor"])
    fresh = []
    for id, record in received:
        if is_partial(record):
            if _number(id) > cursor:
                fresh.append(record)
        elif dumps(record) not in told:
            fresh.append(record)
    return [*known, *live["fragments"], *fresh]


def _number(id: str) -> int:
    return int(id.rpartition("-")[2])
