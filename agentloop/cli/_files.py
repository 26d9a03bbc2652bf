"""Files of records: read, decoded, and put in the order of their sessions."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentloop.cli import UsageError
from agentloop.errors import TraceReadError
from agentloop.events import Event
from agentloop.omni.codec import Decoder
from agentloop.omni.reader import TraceFile, TraceReader, read
from agentloop.omni.records import Record


def open_file(path: str) -> TraceReader:
    """A reader for a file that exists. Raises `UsageError` for one that is none."""
    if not Path(path).is_file():
        got = "got a folder" if Path(path).is_dir() else "found none of that name"
        raise UsageError(f"{path}: expected a file of records, {got} (a session's are TRACES/DAY/ID_001.jsonl, …)")
    return read(path)


def events_of(paths: Iterable[str]) -> Iterator[tuple[Event, float]]:
    """The events of files that go on one after the other, each with its time (seconds since 1970, as recorded)."""
    decoder, now = Decoder(), 0.0
    for path in paths:
        for record in records_of(path):
            now = time_of(record, now)
            yield from [(event, now) for event in decoder.feed(record)]
    yield from [(event, now) for event in decoder.finish()]


def records_of(path: str) -> Iterator[Record]:
    """The records of a file. Raises `UsageError` when it cannot be read."""
    try:
        yield from open_file(path)
    except TraceReadError as error:
        raise UsageError(str(error)) from None


def time_of(record: Record, before: float) -> float:
    """When a record was made; the time before it where it does not say."""
    stamp = record.get("timestamp")
    if not isinstance(stamp, str):
        return before
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return before


def by_session(paths: Sequence[str]) -> list[list[str]]:
    """The files in the order given, those of one session together, the oldest first: a run may span several."""
    groups: dict[object, list[tuple[int, str]]] = {}
    for path in paths:
        name = TraceFile.of(path)
        key: object = path if name is None else (name.path.parent.parent, name.session_id)
        groups.setdefault(key, []).append((0 if name is None else name.index, path))
    return [[path for _, path in sorted(group)] for group in groups.values()]
