"""What a test may ask of the machine without asking for time: how many steps work takes, and no room on the disk."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def _make_inits() -> None:
    """The first instance of a class of values costs more than the others: its `__init__` is made then."""
    for name, module in list(sys.modules.items()):
        if name.startswith("agentloop"):
            for value in list(vars(module).values()):
                if isinstance(value, type):
                    value.__init__  # noqa: B018  # looking at it makes it


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing but the work runs: classes are made, and the garbage collector calls nobody back."""
    _make_inits()
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def lines(work: Callable[[], object], file: str = "") -> int:
    """How many lines of Python the work runs (those of one file alone, where its name is given), on any machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(file):
            return None
        count += event == "line"
        return trace

    _watched(work, trace, sys.gettrace, sys.settrace)
    return count


def calls(work: Callable[[], object]) -> int:
    """How many calls of functions (Python's and C's) the work takes, on any machine."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    _watched(work, profile, sys.getprofile, sys.setprofile)
    return count


def _watched(
    work: Callable[[], object], watch: Callable[..., Any], before: Callable[[], Any], use: Callable[[Any], None]
) -> None:
    with _undisturbed():
        was = before()
        use(watch)
        try:
            work()
        finally:
            use(was)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the write that would is short, the next one fails (as on a full disk)."""
    import resource  # there is none on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
