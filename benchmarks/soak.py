"""Random runs with random faults for as long as it is told: memory, tasks, threads and open files must be flat at the end.

    python -m benchmarks.soak --minutes 10

The time is shared by the backends. On each a round is a time in which several plays go on at once; after it everything is
waited for, and counted. Exit code 1 if a play failed, something was left, or memory grew from the first third of the rounds on.
`--play SEED` does one play again (its draws are the same, its timing is not).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import statistics
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from agentloop import _host
from agentloop.testing import wait_all_blocked
from benchmarks.soak_plays import Play

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
AT_ONCE = 6
ROUNDS = 12
MIB = 2**20
SHOWN = 5
"""Failures that are printed whole."""


@attrs.frozen
class Level:
    """What there is when nothing goes on."""

    plays: int
    resident: int
    """Bytes; 0 where the system does not tell."""
    blocks: int
    """Memory blocks that Python has allocated."""
    tasks: int
    threads: int
    files: int


@attrs.define
class Soak:
    """The soak of one backend."""

    backend: str
    seed: str
    seconds: float
    plays: int = 0
    events: int = 0
    ended: int = 0
    failures: int = 0
    shown: list[str] = attrs.field(factory=list)
    """The first failures, as text: an exception would keep alive what the soak is to see gone."""
    levels: list[Level] = attrs.field(factory=list)

    async def soak(self) -> None:
        """All rounds."""
        native: Any = anyio.lowlevel.current_token().native_token
        if hasattr(native, "set_exception_handler"):
            native.set_exception_handler(lambda loop, context: self._unseen(context.get("exception"), str(context)))
        sys.unraisablehook = lambda args: self._unseen(args.exc_value, str(args.object))
        tasks = _tasks()
        for _ in range(ROUNDS):
            end = time.monotonic() + self.seconds / ROUNDS
            async with anyio.create_task_group() as group:
                for _ in range(AT_ONCE):
                    group.start_soon(self._worker, end)
            await self._rest(tasks)
            self.levels.append(self._level())
            print(self._line(self.levels[-1]), flush=True)

    def _unseen(self, error: BaseException | None, what: str) -> None:
        self._failed("outside of a play", error or RuntimeError(what))

    def _failed(self, seed: str, error: BaseException) -> None:
        self.failures += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"--play {seed}\n{''.join(traceback.format_exception(error))}")

    async def _worker(self, end: float) -> None:
        while time.monotonic() < end:
            self.plays += 1
            seed = f"{self.seed}:{self.backend}:{self.plays}"
            play = Play(seed)
            try:
                await play.play()
            except Exception as error:
                self._failed(seed, error)
            self.events += play.events
            self.ended += play.ended

    async def _rest(self, tasks: int) -> None:
        """Wait until only the tasks from before are there: what was dropped is closed by the collector, and takes a while."""
        for _ in range(200):
            gc.collect()
            await wait_all_blocked()
            if _tasks() <= tasks:
                return
            await anyio.sleep(0.01)

    def _level(self) -> Level:
        gc.collect()
        return Level(self.plays, _resident(), sys.getallocatedblocks(), _tasks(), threading.active_count(), _files())

    def _line(self, level: Level) -> str:
        return (
            f"{self.backend:8} {level.plays:7,} plays {self.events:10,} events  {level.resident / MIB:6.1f} MiB resident"
            f"  {level.blocks:9,} blocks  {level.tasks} tasks  {level.threads} threads  {level.files} open files"
            f"  {self.failures} failures"
        )

    def grown(self) -> list[str]:
        """What was not flat. The first third of the rounds fills caches and pools."""
        settled, last = self.levels[ROUNDS // 3 :], self.levels[-1]
        found = [
            f"{name}: {getattr(settled[0], name)} after {settled[0].plays} plays, {getattr(last, name)} at the end"
            for name in ("tasks", "files")
            if getattr(last, name) > getattr(settled[0], name)
        ]
        half = len(settled) // 2
        for name, share, constant in (("blocks", 0.02, 5_000), ("resident", 0.05, 4 * MIB)):
            early, late = (
                statistics.median([getattr(level, name) for level in levels])
                for levels in (settled[:half], settled[half:])
            )
            if late > early * (1 + share) + constant:
                found.append(f"{name}: {early:,.0f} in the earlier rounds, {late:,.0f} in the later")
        if _host._tasks:
            found.append(f"tasks held: {len(_host._tasks)}")
        return found


def _tasks() -> int:
    native: Any = anyio.lowlevel.current_token().native_token
    if hasattr(native, "call_soon_threadsafe"):
        return len(asyncio.all_tasks())
    import trio

    return trio.lowlevel.current_statistics().tasks_living


def _resident() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def _files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


def main(argv: list[str] | None = None) -> int:
    """Soak, print, judge. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Random runs with random faults.")
    parser.add_argument("--minutes", type=float, default=1.0, help="in all (default 1)")
    parser.add_argument("--seed", default=str(time.time_ns()), help="default: another one each time; printed")
    parser.add_argument("--backend", choices=list(BACKENDS), action="append", help="default: all that are installed")
    parser.add_argument("--play", metavar="SEED", help="one play again, a seed that was printed")
    given = parser.parse_args(argv)
    if not given.minutes > 0:
        parser.error(f"--minutes: expected more than 0, got {given.minutes:g}")
    with _strict():
        if given.play:
            kind, options = BACKENDS[given.play.split(":")[1]]
            anyio.run(Play(given.play).play, backend=kind, backend_options=options)
            return 0
        return _soak_all(given)


@contextmanager
def _strict() -> Iterator[None]:
    """Nothing is logged, for that is all that a fault may do; a warning (a coroutine that nobody awaited, say) is an error."""
    logger, hook = logging.getLogger("agentloop"), sys.unraisablehook
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("error", ResourceWarning)
            yield
    finally:
        logger.setLevel(level)
        sys.unraisablehook = hook


def _soak_all(given: argparse.Namespace) -> int:
    backends = given.backend or list(BACKENDS)
    print(f"seed {given.seed}, Python {sys.version.split()[0]}, {given.minutes:g} minutes on {', '.join(backends)}")
    failed = False
    for name in backends:
        soak = Soak(name, given.seed, given.minutes * 60 / len(backends))
        anyio.run(soak.soak, backend=BACKENDS[name][0], backend_options=BACKENDS[name][1])
        grown = soak.grown()
        print("\n".join(soak.shown), end="")
        print(
            f"{name}: {soak.plays:,} plays, {soak.events:,} events, {soak.ended:,} runs to their end,"
            f" {soak.failures} failures; {'; '.join(grown) or 'all flat'}"
        )
        failed = failed or soak.failures > 0 or bool(grown)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
