"""One process of W8: how much the resident memory grows over a workload; one JSON line. Linux, or macOS with less precision.

python -m benchmarks.memory W1 agentloop 1000000
python -m benchmarks.memory idle floor2 10000
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agentloop import Config, Context, agent_loop
from benchmarks import floors
from benchmarks.timing import VARIANTS, drain

_STATUS = Path("/proc/self/status")


def _now() -> int:
    if not _STATUS.exists():
        return _peak()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    if _STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")


async def _grown_by_workload(workload: str, variant: str, size: int) -> int:
    play = VARIANTS[workload][variant]
    await drain(play(workload, max(size // 1_000, 1)))  # what is made once is made now
    gc.collect()
    _reset_peak()
    before = _now()
    await drain(play(workload, size))
    return _peak() - before


async def _grown_by_idle_runs(variant: str, count: int) -> int:
    """Runs that wait for their model's first word, each with a task that steps it."""
    never, arrived = asyncio.Event(), asyncio.Event()
    expected = 0

    async def model(request: Any) -> AsyncIterator[Any]:
        nonlocal expected
        expected -= 1
        if not expected:
            arrived.set()
        await never.wait()
        yield "never"

    def run() -> AsyncIterator[Any]:
        return floors.floor2(model, {}) if variant == "floor2" else agent_loop("go", Context(), Config(model=model))

    async def start(number: int) -> list[asyncio.Task[None]]:
        nonlocal expected
        expected = number
        arrived.clear()
        tasks = [asyncio.create_task(drain(run())) for _ in range(number)]
        await arrived.wait()
        return tasks

    first = await start(10)
    gc.collect()
    before = _now()
    tasks = await start(count)
    gc.collect()
    grown = _now() - before
    for task in (*first, *tasks):
        task.cancel()
    await asyncio.gather(*first, *tasks, return_exceptions=True)
    return grown


def main(workload: str, variant: str, size: str) -> None:
    """Measure and print."""
    work = _grown_by_idle_runs(variant, int(size)) if workload == "idle" else None
    grown = asyncio.run(work or _grown_by_workload(workload, variant, int(size)))
    print(json.dumps({"workload": workload, "variant": variant, "size": int(size), "bytes": grown}))


if __name__ == "__main__":
    main(*sys.argv[1:])
