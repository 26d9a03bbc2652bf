"""Traces on disk: an append-only writer for one session, one file a context.

A record is one unbuffered `os.write` of its whole line in the caller's thread; the file stays open. A crash can
therefore cut the last record short and nothing else. A new file appears under its name only when its head is in it,
so that no crash leaves a head without what it is the head of.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from agentloop._results import error_text
from agentloop._values import raise_order
from agentloop.errors import TraceWriteError
from agentloop.omni._lock import SessionLock
from agentloop.omni.jsonl import dumps, dumps_trusted
from agentloop.omni.reader import (
    MAX_LINE,
    TraceFile,
    TraceReader,
    check_session_id,
    latest_file,
    latest_session,
    read,
    trace_files,
    trace_path,
)
from agentloop.omni.records import (
    PARTIALS,
    Clock,
    Record,
    event_kind,
    is_compaction_closed,
    repeated,
)
from agentloop.omni.redact import mask_secrets

__all__ = [
    "Fsync",
    "HeadOfFile",
    "Redact",
    "TraceFile",
    "TraceReader",
    "TraceWriter",
    "check_session_id",
    "is_stored",
    "latest_file",
    "latest_session",
    "read",
    "trace_files",
]

Redact: TypeAlias = Callable[[Record], Record | None]
"""Asked about a record before it is stored: gives what is stored instead; None: nothing is. It leaves the record as it is."""

Fsync: TypeAlias = Literal["never", "milestones", "always"]
"""When the system is told to bring the file to the disk itself (`os.fsync`): `never`, after each record in `MILESTONES`, or
after each one. A process that dies loses nothing with `never` either; a machine that loses power may."""

MILESTONES: Final = frozenset(
    {"request_end", "approval_decision", "tool_execution_start", "tool_execution_end", "compaction_end", "agent_end"}
)

log = logging.getLogger(__name__)

_OPENING: Final = ("mcp_connect_begin", "mcp_connect_end", "tool_list_ready")
_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
"""A link that somebody put in a file's place is not written through."""
_PROGRESS: Final = frozenset({"tool_execution_update"})
_NOTED: Final = frozenset({*_OPENING, *MILESTONES})  # kinds after which there is something to do
_ENVELOPES: Final = frozenset({"session_meta", "model_msg", "event_msg"})


def is_stored(record: Record) -> bool:
    """Whether a record belongs in a trace: a meta, a complete message or an event of the session itself. Fragments,
    progress and everything that came from a child do not."""
    return _stored_kind(record) is not None


def _stored_kind(record: Record) -> str | None:
    """The kind of a record that belongs in a trace (`session_meta`, `text`, `request_end`, …; empty where it has
    none)."""
    envelope = record.get("type")
    if envelope not in _ENVELOPES or record.get("origin"):
        return None
    kind = "session_meta" if envelope == "session_meta" else record["payload"].get("type")
    if type(kind) is not str:
        return ""
    return None if kind in (PARTIALS if envelope == "model_msg" else _PROGRESS) else kind


# ---------------------------------------------------------------- the head of a file


_HELD: Final = frozenset({"agent_start", "turn_start"})
_CONTENT: Final = frozenset({"request_begin", "custom_message", "compaction_begin"})


class HeadOfFile:
    """Which records wait at the head of a file, and which are never written there. Pure.

    A first file: `agent_start` and `turn_start` wait for the first record after them, so that a session in which
    nothing happened has no file. After a completed compaction every event waits for the first content, since the
    newest file of a session must hold its summary; a run that ends before (`agent_end`, perhaps with an `abort`) is
    not written at all.
    """

    __slots__ = ("after_compaction", "at_head", "waiting")

    def __init__(self, *, at_head: bool = True, after_compaction: bool = False) -> None:
        """At the head of a first file, unless said otherwise."""
        self.at_head = at_head
        self.after_compaction = after_compaction
        self.waiting: list[Record] = []

    def take(self, record: Record) -> list[Record]:
        """What is to be written now; empty when the record waits. Call `wrote` when it is written."""
        if not self.at_head:
            return [record]
        kind = event_kind(record)
        if kind == "agent_end" and self.after_compaction:
            self.waiting.clear()
            return []
        waits = kind is not None and kind not in _CONTENT if self.after_compaction else kind in _HELD
        if waits:
            self.waiting.append(record)
            return []
        return [*self.waiting, record]

    def wrote(self, record: Record) -> None:
        """The record, and what waited, is written."""
        if self.waiting:
            self.waiting = []
        self.at_head = self.after_compaction = is_compaction_closed(record)


# ---------------------------------------------------------------- the writer


class TraceWriter:
    """Writes the records of one session. Threads may share it: records never interleave and stand in the order of the
    calls.

    The place is `<traces>/<yyyy-mm-dd>/<session_id>_<index>.jsonl`, with the local date on which the file is made.
    After a completed compaction the next record goes to the next file, after the meta and a repetition of the
    records of opening. Only one writer may have a session: it is locked until `close`, the end of a `with`, or the
    end of the process.

    `meta` is the `session_meta` that heads the next new file; its session has no file yet, or goes on with `after`.
    `rotate`: the context of `after` is closed, so the next record opens the next file, repeating the records of
    `opening`. `redact` is asked about every record before it is stored (None: nothing is masked). `lock` is the
    session's, where the caller has it already.
    """

    def __init__(
        self,
        traces: str | Path,
        meta: Record,
        *,
        after: str | Path | None = None,
        rotate: bool = False,
        opening: Iterable[Record] = (),
        redact: Redact | None = mask_secrets,
        fsync: Fsync = "never",
        clock: Clock = time.time,
        lock: SessionLock | None = None,
    ) -> None:
        """Nothing is written before the first record. Raises `TraceLocked` when the session has another writer,
        `TypeError` for a `meta` that is none, `ValueError` when its id cannot be part of a file's name, or for another
        `fsync`, `TraceWriteError` when the folder cannot be written or the session is not a new one.
        """
        if not isinstance(meta, Mapping) or not isinstance(meta.get("payload"), Mapping):
            raise TypeError(f"meta: expected a record that session_meta(…) makes, got {type(meta).__name__}")
        self.session_id = check_session_id(meta["payload"].get("session_id"))
        if fsync not in get_args(Fsync):  # a misspelt word must not mean `never`
            raise ValueError(f"fsync: expected one of {', '.join(get_args(Fsync))}, got {fsync!r}")
        self.file: Path | None = None if after is None else Path(after)
        """The file that records go to, or went last; None before there is one."""
        self._traces = Path(traces)
        self._meta = meta
        self._opening = {kind: record for record in opening if (kind := event_kind(record)) in _OPENING}
        self._redact = redact
        self._dumps_trusted = dumps_trusted if redact in (None, mask_secrets) else dumps
        self._fsync = fsync
        self._clock = clock
        self._head = HeadOfFile(at_head=after is None or rotate, after_compaction=rotate)
        self._fd: int | None = None
        self._torn = False
        self._closed = False
        self._mutex = threading.Lock()
        self._lock = lock or SessionLock(self._traces, self.session_id)
        if after is None:
            self._expect_new()

    def _expect_new(self) -> None:
        try:
            if known := latest_file(self._traces, self.session_id):
                raise TraceWriteError(
                    f"session {self.session_id}: expected a new session, got one with files ({known})"
                )
        except BaseException:  # whoever has the error would keep the lock
            self.close()
            raise

    # ---------------------------------------------------------------- for callers

    def write(self, record: Record, *, trusted: bool = False) -> None:
        """Store a record, if it is of a kind that is stored. When this returns it is written (or waits at a head).

        `trusted`: it comes from an encoder, so that NaN cannot be in it and need not be looked for. Raises
        `TraceWriteError` when the record could not be written; the next one may be written all the same.
        """
        kind = _stored_kind(record)
        if kind is None or kind == "session_meta":
            return
        with self._mutex:
            if self._closed:
                raise TraceWriteError(f"session {self.session_id}: expected an open writer, got a closed one")
            if self._head.at_head:
                stored = self._write_head(record)
            else:
                line = self._line(record, self._dumps_trusted if trusted else dumps)
                stored = line is not None
                if line is not None:
                    self._append(line)
            if stored and (kind in _NOTED or self._fsync == "always"):
                self._note(kind, record)

    def rotate(self, meta: Record | None = None) -> None:
        """The context ends here: the next record opens the next file, headed by `meta` if given (as after a model
        switch)."""
        with self._mutex:
            if meta is not None:
                self._meta = meta
            self._head.at_head = True

    def set_meta(self, meta: Record) -> None:
        """The `session_meta` that heads the next new file, whenever that is opened; the present file keeps its own."""
        with self._mutex:
            self._meta = meta

    def close(self) -> None:
        """Close the file and unlock the session. What waits at a head is dropped. A second call does nothing."""
        with self._mutex:
            self._closed = True
            self._close_file()
            self._lock.release()

    def __enter__(self) -> Self:
        """Itself, to be closed at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """A writer that was forgotten does not keep its session."""
        if hasattr(self, "_lock"):
            self.close()

    def __repr__(self) -> str:
        """Session and file."""
        return f"<TraceWriter {self.session_id} {self.file or '(no file yet)'}>"

    # ---------------------------------------------------------------- one record, or the head of a file

    def _write_head(self, record: Record) -> bool:
        """Begin the next file with what waited and this record, unless it waits too. Whether it was written."""
        batch = self._head.take(record)
        lines = [line for item in batch if (line := self._line(item)) is not None]  # a redaction may leave nothing
        if not lines:
            return False
        try:
            self._begin_file(lines)
        except OSError as error:
            raise self._failure(error) from error
        self._head.wrote(record)
        return True

    def _note(self, kind: str, record: Record) -> None:
        """What a record that is written means for those after it."""
        if kind in _OPENING:
            self._opening[kind] = record
        elif kind == "compaction_end":
            self._head.wrote(record)
        if self._fsync == "always" or (self._fsync == "milestones" and kind in MILESTONES):
            try:
                os.fsync(self._open_file())
            except OSError as error:
                raise self._failure(error) from error

    def _failure(self, error: OSError) -> TraceWriteError:
        return TraceWriteError(f"{self.file or self._traces}: expected to write a record, got {error}")

    def _line(self, record: Record, dump: Callable[[Any], bytes] = dumps) -> bytes | None:
        try:
            kept = record if self._redact is None else self._redact(record)
            if kept is None:
                return None
            line = dump(kept) + b"\n"
        except BaseException as error:  # a redaction of the caller's may raise anything; nothing is stored unredacted
            raise_order(error)
            said = f"{type(error).__name__} ({error_text(error)})"
            raise TraceWriteError(f"session {self.session_id}: expected a record in JSON, got {said}") from error
        if len(line) > MAX_LINE:
            raise TraceWriteError(f"expected a record of at most {MAX_LINE} bytes, got {len(line)}")
        return line

    def _append(self, data: bytes) -> None:
        try:
            if self._fd is None or self._torn:
                self._append_behind(data)
            elif (written := os.write(self._fd, data)) != len(data):
                self._torn = written > 0
                _write_all(self._fd, data, written)
                self._torn = False
        except _ShortWrite as short:
            self._torn = self._torn or short.written > 0
            raise self._failure(short) from short
        except OSError as error:
            raise self._failure(error) from error

    def _append_behind(self, data: bytes) -> None:
        """The first append to a file that is there, or one after a torn line: that is given its end first."""
        fd = self._open_file()
        if self._torn:
            _write_all(fd, b"\n")
            self._torn = False
        _write_all(fd, data)

    def _open_file(self) -> int:
        """The file that is written to; its tail is looked at once, when it is opened."""
        if self._fd is None:
            assert self.file is not None, "a file to go on with"
            self._fd = os.open(self.file, os.O_RDWR | os.O_APPEND | _FLAGS)
            if os.lseek(self._fd, 0, os.SEEK_END) > 0:
                os.lseek(self._fd, -1, os.SEEK_END)
                self._torn = os.read(self._fd, 1) != b"\n"
            if self._torn:
                log.warning("%s: the last line had no end; it is given one, the next record stands after it", self.file)
        return self._fd

    def _begin_file(self, lines: list[bytes]) -> None:
        """Make the next file with its head and these lines in it, then give it its name."""
        path = self._next_path()
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        unborn = path.with_name(f".{path.name}.new")
        try:
            fd = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
            try:
                _write_all(fd, b"".join([*self._head_lines(), *lines]))
                if self._fsync != "never":
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(unborn, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unborn)
            raise
        self._close_file()
        self.file, self._torn = path, False
        if self._fsync != "never":
            _sync_folder(path.parent)

    def _head_lines(self) -> list[bytes]:
        meta = self._line(self._meta)
        if meta is None:
            raise TraceWriteError(
                f"session {self.session_id}: expected the redaction to keep the session_meta, got None"
            )
        opening = [self._line(repeated(self._opening[kind])) for kind in _OPENING if kind in self._opening]
        return [meta, *[line for line in opening if line is not None]]

    def _next_path(self) -> Path:
        files = trace_files(self._traces, self.session_id)
        index = files[-1].index + 1 if files else 1
        day = time.strftime("%Y-%m-%d", time.localtime(self._clock()))
        return trace_path(self._traces, day, self.session_id, index)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class _ShortWrite(OSError):
    """A write stopped after `written` bytes, for the reason of `error`."""

    def __init__(self, written: int, error: OSError) -> None:
        super().__init__(*error.args)
        self.written = written


def _write_all(fd: int, data: bytes, written: int = 0) -> None:
    """The rest of the data: one write in almost every case."""
    while written < len(data):
        try:
            count = os.write(fd, memoryview(data)[written:])
            if count == 0:
                raise OSError(errno.EIO, "the write made no progress")
        except OSError as error:
            raise _ShortWrite(written, error) from error
        written += count


def _sync_folder(folder: Path) -> None:
    """A file's name is on the disk only when its folder is; systems that cannot do it are left alone."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
