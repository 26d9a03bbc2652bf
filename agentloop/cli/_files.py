"""Files of records: found by name or session, read, decoded, and put in the order of their sessions."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from agentloop.cli import UsageError
from agentloop.cli._text import counted
from agentloop.errors import TraceReadError
from agentloop.events import Event
from agentloop.omni.codec import Decoder
from agentloop.omni.reader import TraceFile, TraceReader, check_session_id, read, trace_files
from agentloop.omni.records import Record

DEFAULT_TRACES: Final = "traces"

FILE_OR_ID: Final = "a trace, a stream as `run --json` prints it, or the id of a session below --traces"


def add_traces_argument(parser: argparse.ArgumentParser) -> None:
    """Where sessions are."""
    parser.add_argument(
        "--traces", default=DEFAULT_TRACES, metavar="DIR", help=f"where sessions are (default: {DEFAULT_TRACES})"
    )


def is_file(name: str) -> bool:
    """Whether there is a file of that name; whatever the name, this raises nothing."""
    return os.path.isfile(name)


def files_of(name: str, traces: str) -> list[str]:
    """The files that a FILE or an ID on the command line means, the oldest first. A name that is both means the file.

    Raises `UsageError` for what is neither.
    """
    if is_file(name):
        return [name]
    check_id(name)
    try:
        files = [str(file.path) for file in trace_files(traces, name)]
    except TraceReadError as error:
        raise UsageError(str(error)) from None
    if not files:
        raise UsageError(f"session {name}: expected a trace in {traces}, got none, and {_no_file(name)}")
    return files


def _no_file(name: str) -> str:
    """Why a name means no file."""
    if os.path.isdir(name):
        return "that name is a folder"
    return "that name is a pipe or a device" if os.path.exists(name) else "there is no file of that name"


def check_id(name: str) -> None:
    """Raises `UsageError` for a name that is not a file's and cannot be the id of a session."""
    expected = f"{name}: expected a file of records or the id of a session"
    if name.endswith(".jsonl") or os.path.basename(name) != name:
        raise UsageError(f"{expected}, and {_no_file(name)}")
    try:
        check_session_id(name)
    except ValueError:
        raise UsageError(f"{expected} (letters, digits, _ and -), and {_no_file(name)}") from None


def open_file(path: str) -> TraceReader:
    """A reader for a file that exists. Raises `UsageError` for one that is none."""
    if not is_file(path):
        raise UsageError(f"{path}: expected a file of records, found none of that name")
    return read(path)


def events_of(
    paths: Iterable[str], skipped: Callable[[str], object] = lambda words: None
) -> Iterator[tuple[Event, float]]:
    """The events of files that go on one after the other, each with its time (seconds since 1970, as recorded).

    `skipped` is told of each file in which lines are no records. Raises `UsageError` for one that cannot be read, or has
    nothing but such lines.
    """
    decoder, now = Decoder(), 0.0
    for path in paths:
        for record in _records_of(path, skipped):
            now = time_of(record, now)
            yield from [(event, now) for event in decoder.feed(record)]
    yield from [(event, now) for event in decoder.finish()]


def check_records(path: str) -> None:
    """Raises `UsageError` for a file without a single record: nothing could be told of it, or gone on with."""
    next(_records_of(path, lambda words: None), None)


def _records_of(path: str, skipped: Callable[[str], object]) -> Iterator[Record]:
    reader, found = open_file(path), False
    try:
        for record in reader:
            found = True
            yield record
    except TraceReadError as error:
        raise UsageError(str(error)) from None
    if not found:
        lines = reader.damaged + reader.torn
        got = f"{counted(lines, 'line')} of something else" if lines else "an empty one"
        raise UsageError(f"{path}: expected a file of records, got {got}")
    report = reader.report()
    if report is not None:
        skipped(report)


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
