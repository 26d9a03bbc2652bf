"""Leaving: the process ends although a tool that was given up does not.

A tool that ignores being cancelled keeps the event loop from closing, and a thread that is stuck keeps the interpreter from
ending. The run has ended all the same, and has told so: then nothing is lost by ending the process without them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

_PATIENCE = 1.0
"""Seconds that an event loop may take to close after its run has ended."""


class LastResort:
    """Ends the process with an exit code where it would not end by itself. Does nothing unless `enabled`."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    @contextlib.contextmanager
    def armed(self) -> Iterator[Fuse]:
        """A block that may hang at its end: `light` the fuse in it, and the process ends if it is not left in time."""
        fuse = Fuse(self._enabled)
        try:
            yield fuse
        finally:
            fuse.put_out()

    def leave(self, code: int) -> int:
        """The exit code; ends the process at once if threads are left that would hold it up."""
        held = [
            thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon
        ]
        if self._enabled and held:
            _end_process(code)
        return code


class Fuse:
    """Burns for a second once it is lit."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._timer: threading.Timer | None = None

    def light(self, code: int) -> None:
        """End the process with this code in a second."""
        if self._enabled:
            self._timer = threading.Timer(_PATIENCE, _end_process, (code,))
            self._timer.daemon = True
            self._timer.start()

    def put_out(self) -> None:
        """Not needed any more."""
        if self._timer is not None:
            self._timer.cancel()


def _end_process(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
