"""Trace files on disk: their names, which is the newest, and a reader that bears damage.

A line is bytes up to `\\n` and nothing else. Reading takes constant memory and linear time, whatever the file holds:
a line that is not a record is skipped and counted, a last line without its newline that does not parse was cut by a
crash and is dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from agentloop.errors import TraceReadError
from agentloop.messages import json_type
from agentloop.omni.jsonl import loads
from agentloop.omni.records import Record, is_meta

__all__ = [
    "MAX_LINE",
    "TraceFile",
    "TraceReader",
    "check_session_id",
    "latest_file",
    "latest_session",
    "read",
    "trace_files",
    "trace_path",
]

MAX_LINE: Final = 256 * 2**20
"""Longest line that is read or written, in bytes: a longer one is damage."""

MAX_NAMED: Final = 20
"""How many damaged lines a report names; all are counted."""

_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NAME: Final = re.compile(r"([A-Za-z0-9_-]{1,128})_([0-9]{3}|[1-9][0-9]{3,6})\.jsonl")
_BOM: Final = b"\xef\xbb\xbf"


# ---------------------------------------------------------------- names and places


def check_session_id(session_id: object) -> str:
    """The id, when it can be part of a file's name: 1 to 128 letters, digits, `_` and `-`. Raises `ValueError`
    otherwise."""
    if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"session_id: expected 1 to 128 of A-Z a-z 0-9 _ -, got {_short(session_id)}")
    return session_id


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


@attrs.frozen(order=True)
class TraceFile:
    """A trace file at `path`, by what its name says. Compared by `session_id`, `index`, `day`: the largest of a session is the
    newest."""

    session_id: str
    index: int
    """Which file of the session, from 1; each context has one."""
    day: str
    """The folder that it is in, `yyyy-mm-dd`."""
    path: Path

    @classmethod
    def of(cls, path: str | Path) -> TraceFile | None:
        """The trace file at a path; None where its name is not that of a trace."""
        path = Path(path)
        match = _NAME.fullmatch(path.name)
        return None if match is None else cls(match[1], int(match[2]), path.parent.name, path)


def trace_path(traces: Path, day: str, session_id: str, index: int) -> Path:
    """`<traces>/<yyyy-mm-dd>/<session_id>_<index, three digits>.jsonl`. Indexes above 999 take as many as they need."""
    return traces / day / f"{session_id}_{index:03}.jsonl"


def trace_files(traces: str | Path, session_id: str | None = None) -> list[TraceFile]:
    """The files of a session (or of all) over all day folders, the oldest first. A folder that is not there has
    none. Links, pipes and devices among them are none of ours."""
    if session_id is not None:
        check_session_id(session_id)
    found = []
    for folder in _entries(Path(traces)):
        if folder.name.startswith(".") or not folder.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(Path(folder.path)):
            file = TraceFile.of(entry.path) if entry.is_file(follow_symlinks=False) else None
            if file is not None and (session_id is None or file.session_id == session_id):
                found.append(file)
    return sorted(found)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise TraceReadError(f"{folder}: expected a readable folder, got {error}") from error


def latest_file(traces: str | Path, session_id: str) -> Path | None:
    """The newest file of a session: the highest index over all day folders. None when it has none.

    Raises `ValueError` for an id that cannot be part of a file's name.
    """
    files = trace_files(traces, session_id)
    return files[-1].path if files else None


def latest_session(traces: str | Path) -> str | None:
    """The id of the newest session, by name, that holds more than a `session_meta`; None without one."""
    for file in reversed(trace_files(traces)):
        if any(not is_meta(record) for record in read(file.path)):
            return file.session_id
    return None


# ---------------------------------------------------------------- reading


def read(path: str | Path, *, strict: bool = False) -> TraceReader:
    """The records of a file, to be iterated (again and again, each time from its start).

    `strict` raises `TraceReadError` at the first damaged line; a torn last one is borne all the same.
    """
    return TraceReader(Path(path), strict=strict)


class TraceReader:
    """Iterable over the records of one file. After an iteration it says what was skipped."""

    def __init__(self, path: Path, *, strict: bool = False, max_line: int = MAX_LINE) -> None:
        """Nothing is opened before the first record is asked for."""
        self.path = path
        self.damaged = 0
        """Lines that are no record."""
        self.damaged_lines: tuple[int, ...] = ()
        """The numbers, from 1, of the first 20 of them."""
        self.torn = False
        """Whether the last line was cut and is left out."""
        self._strict = strict
        self._max_line = max_line

    def __iter__(self) -> Iterator[Record]:
        """The records, in order; each iteration reads the file anew."""
        for _, record in self.numbered():
            yield record

    def numbered(self) -> Iterator[tuple[int, Record]]:
        """The records, each with the number of its line from 1.

        Raises `TraceReadError` when the file cannot be read, and with `strict` when a line is damaged.
        """
        self.damaged, self.damaged_lines, self.torn = 0, (), False
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(_lines(file, self._max_line), 1):
                    record = self._record(number, line)
                    if record is not None:
                        yield number, record
        except OSError as error:
            raise TraceReadError(f"{self.path}: expected a readable file, got {error}") from error

    def _record(self, number: int, line: bytes | None) -> Record | None:
        if line is None:
            self._damage(number, f"more than {self._max_line} bytes")
            return None
        text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
        if not text:
            return None
        try:
            record = loads(text)
        except (ValueError, RecursionError) as error:
            if line.endswith(b"\n"):
                self._damage(number, f"no JSON ({error})")
            else:
                self.torn = True
            return None
        problem = _no_record(record)
        if problem is not None:
            self._damage(number, problem)
            return None
        return record  # type: ignore[no-any-return]

    def _damage(self, number: int, got: str) -> None:
        if self._strict:
            raise TraceReadError(f"{self.path}: line {number}: expected a record, got {got}")
        self.damaged += 1
        if len(self.damaged_lines) < MAX_NAMED:
            self.damaged_lines += (number,)

    def report(self) -> str | None:
        """What was skipped, in one sentence; None when nothing was damaged. A torn last line is no damage."""
        if not self.damaged:
            return None
        lines = "line" if self.damaged == 1 else "lines"
        named = ", ".join(map(str, self.damaged_lines))
        more = ", …" if self.damaged > len(self.damaged_lines) else ""
        return f"{self.path}: skipped {self.damaged} damaged {lines}: {named}{more}"


def _no_record(value: object) -> str | None:
    """Why a JSON value is no record; None when it is one."""
    if not isinstance(value, dict):
        return json_type(value)
    if not isinstance(value.get("payload"), dict):
        return "an object without a payload"
    return None if isinstance(value.get("type"), str) else "an object without a type"


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """The lines with their newlines; None for one that is longer than `limit`, which is not held."""
    while line := file.readline(limit):
        if len(line) < limit or line.endswith(b"\n"):
            yield line
            continue
        while (piece := file.readline(limit)) and not piece.endswith(b"\n"):
            pass
        yield None
