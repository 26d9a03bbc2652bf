"""`in_a_thread`: an event loop of its own for a run, where this thread already has one and cannot run another."""

from __future__ import annotations

import contextvars
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = [
    "in_a_thread",
]

T = TypeVar("T")


def in_a_thread(run: Callable[[], T], abort: Callable[[], object]) -> T:
    """Call `run` in a new thread, with this thread's context variables, and wait; returns or raises what it does.

    On `KeyboardInterrupt` here `abort` is called until the thread has come to its end, then the interrupt is raised.
    """
    outcome: list[Any] = []
    over = threading.Event()  # not `Thread.join`, which takes the thread for ended once an interrupt has cut it short
    context = contextvars.copy_context()
    if (sniffio := sys.modules.get("sniffio")) is not None:  # it keeps in a context variable which loop runs "here"
        context.run(sniffio.current_async_library_cvar.set, None)

    def work() -> None:
        try:
            outcome[:] = [context.run(run), None]
        except BaseException as error:
            outcome[:] = [None, error]
        finally:
            over.set()

    threading.Thread(target=work, name="agentloop run_sync", daemon=True).start()
    try:
        with _interruptible():
            over.wait()
    except KeyboardInterrupt:
        abort()
        while not over.wait(0.05):  # its run may not have begun when it was told
            abort()
        raise
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interrupt from the keyboard raise here: an event loop's own handler would only make a note for the loop, which
    this thread is holding up."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
