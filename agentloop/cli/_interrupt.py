"""Ctrl-C: the first one aborts the run, the second one ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from agentloop.abort import AbortSignal

_REASONS = {signal.SIGINT: "interrupted by Ctrl-C", signal.SIGTERM: "terminated"}


@contextmanager
def interrupts(abort: AbortSignal, before_kill: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM fire `abort`; a second one kills the process by that very signal.

    `before_kill` puts the terminal in order; it may only do what a signal handler may. Does nothing outside the main
    thread, where Python handles no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            before_kill()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        seen = True
        abort.abort(_REASONS[signal.Signals(number)])

    before: dict[signal.Signals, Any] = {number: signal.signal(number, handle) for number in _REASONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
