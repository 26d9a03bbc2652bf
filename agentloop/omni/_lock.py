"""One writer a session: a lock file that the system itself releases when its holder dies.

The lock lies beside the day folders, since a session's files may be spread over several days. It is an advisory
`flock` (on Windows a locked byte), so a file that a dead process left behind locks nobody out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

from agentloop.errors import TraceLocked, TraceWriteError

FOLDER = ".locks"
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has neither

if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try_lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class SessionLock:
    """Held from its making to `release` (or the end of the process).

    Raises `TraceLocked`, naming the holder's process, when another writer has it; `TraceWriteError` when the folder
    cannot be written.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, traces: Path, session_id: str) -> None:
        self._path = traces / FOLDER / f"{session_id}.lock"
        self._fd: int | None = None
        while self._fd is None:
            try:
                self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
                self._fd = _acquire(self._path, session_id)
            except OSError as error:
                raise TraceWriteError(
                    f"{self._path}: expected to lock the session in a folder that can be written, got {error}"
                ) from error

    def release(self) -> None:
        """Give the session free; a second call does nothing. Windows keeps the empty file, which is harmless."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()  # while it is still held: whoever waits for this very file looks again
            os.close(fd)


def _acquire(path: Path, session_id: str) -> int | None:
    """The locked file; None when its holder removed it meanwhile, so that a new one must be made."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        _try_lock(fd)
        if not _is_still(path, fd):
            os.close(fd)
            return None
        os.truncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
    except OSError as error:
        held = error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
        holder = _holder(fd) if held else ""
        os.close(fd)
        if held:
            raise TraceLocked(f"session {session_id}: expected no other writer, got one{holder}") from error
        raise
    return fd


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    with contextlib.suppress(OSError):
        text = os.read(fd, 20)
        if text.isdigit():
            return f" (process {text.decode()})"
    return ""
