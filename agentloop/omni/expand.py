"""A session's records as a screen wants them back: each pointer to a child replaced by what the child recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from agentloop.omni.reader import read, trace_files
from agentloop.omni.records import Record, event_kind, origin_of

__all__ = ["expand", "session_records"]

Children = Callable[[str], Iterable[Record] | None]
"""The records of a session by its id; None when there is no such session."""


def expand(records: Iterable[Record], children: Children, *, session_id: str | None = None) -> Iterator[Record]:
    """The records, with each `subagent` pointer replaced by the child's records, the chain of ids put before them, at
    any depth.

    A child that is missing leaves its pointer, and so does one that was shown already: the session itself
    (`session_id`), an ancestor, one that a second pointer names. Children are read as their place comes.
    """
    shown = {session_id}
    open_sessions: list[tuple[list[str], Iterator[Record]]] = [([], iter(records))]
    while open_sessions:
        origin, rest = open_sessions[-1]
        record = next(rest, None)
        if record is None:
            open_sessions.pop()
            continue
        child = record["payload"].get("session_id") if event_kind(record) == "subagent" else None
        if isinstance(child, str) and not record.get("origin") and child not in shown:
            inner = children(child)
            if inner is not None:
                shown.add(child)
                open_sessions.append(([*origin, child], iter(inner)))
                continue
        yield {**record, "origin": [*origin, *origin_of(record)]} if origin else record


def session_records(traces: str | Path, session_id: str) -> Iterator[Record]:
    """All records of a session, over all its files, children expanded; nothing for a session that is not there.

    Raises `ValueError` for an id that cannot be part of a file's name, `TraceReadError` when a file cannot be read.
    """

    def files(wanted: str) -> Iterable[Record] | None:
        try:
            found = trace_files(traces, wanted)
        except ValueError:  # a pointer may hold anything
            return None
        return chain.from_iterable(read(file.path) for file in found) if found else None

    own = chain.from_iterable(read(file.path) for file in trace_files(traces, session_id))
    return expand(own, files, session_id=session_id)
