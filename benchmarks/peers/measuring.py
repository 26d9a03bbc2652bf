"""Runs the peers in turn, each cell in fresh processes, and makes ratios to `floor2` of the same round."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from benchmarks.peers.environments import ROOT, Environment

Cell = tuple[str, int]
"""A workload and its size."""

CELLS: dict[str, tuple[int, ...]] = {
    "W1": (10_000, 100_000),
    "W2": (100, 500),
    "W3": (10_000,),
    "W4": (1_000,),
    "import": (1,),
}
QUICK_CELLS: dict[str, tuple[int, ...]] = {"W1": (2_000,), "W2": (20,), "W3": (2_000,), "W4": (50,), "import": (1,)}
LONG = 5.0
"""Seconds of CPU of one play from which on one process is enough: it is far from where a few percent matter."""

FLOOR = "floor2"


@attrs.frozen(kw_only=True)
class Row:
    """One peer in one cell: of several plays the least, and the first after a small warm-up.

    `value` is in `unit`; `ratio` and `first_ratio` are to `floor2`; `failure` says why there is none of them."""

    peer: str
    workload: str
    size: int
    value: float | None = None
    unit: str = "µs"
    ratio: float | None = None
    first_ratio: float | None = None
    mib: float | None = None
    processes: int = 0
    failure: str = ""


def one_process(environment: Environment, cell: Cell, timeout: float) -> dict[str, Any]:
    """What one fresh process says, or `{"failure": why}`."""
    workload, size = cell
    if workload == "import":
        return _import(environment, timeout)
    command = [*environment.command, workload, str(size)]
    process = subprocess.Popen(
        command,
        cwd=environment.folder or ROOT,
        env=environment.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"failure": f"over {timeout:g} s"}
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        return {"failure": _reason(err)}
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def _reason(err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()] or ["no output"]
    named = [line for line in lines if "Error" in line.partition(":")[0]]
    return (named or lines)[-1][:160]


def _import(environment: Environment, timeout: float) -> dict[str, Any]:
    """Milliseconds of CPU of an import beyond an empty process; the first one writes the byte code."""

    def cpu(nothing: bool) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            environment.importing(nothing),
            cwd=environment.folder or ROOT,
            env=environment.variables(),
            check=True,
            timeout=timeout,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    try:
        cpu(False)
        least = [min(cpu(nothing) for _ in range(3)) for nothing in (False, True)]
    except subprocess.CalledProcessError as error:
        return {"failure": _reason(error.stderr.decode(errors="replace"))}
    except subprocess.TimeoutExpired:
        return {"failure": f"over {timeout:g} s"}
    return {"us": (least[0] - least[1]) * 1e6, "seconds": least[0], "mib": None}


def measure(
    environments: Sequence[Environment],
    cells: Sequence[Cell],
    processes: int,
    timeout: float,
    tell: Callable[[str], None],
) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """All cells of all peers, and each peer's versions. In each round a cell is played by all, before the next one is."""
    runs: dict[tuple[str, Cell], list[tuple[int, dict[str, Any]]]] = {}
    versions: dict[str, dict[str, Any]] = {}
    for round_number in range(processes):
        for cell in cells:
            for environment in environments:
                name = environment.peer.name
                done = runs.setdefault((name, cell), [])
                if done and ("failure" in done[-1][1] or done[-1][1]["seconds"] > LONG):
                    continue
                start = time.monotonic()
                said = one_process(environment, cell, timeout)
                done.append((round_number, said))
                if "versions" in said:
                    versions[name] = {"runtime": said["runtime"], **said["versions"]}
                shown = said.get("failure") or f"{said['us']:,.2f} µs"
                took = time.monotonic() - start
                tell(f"round {round_number + 1}  {cell[0]} {cell[1]:,}  {name}: {shown} ({took:.1f} s)")
    rows = [_row(environment.peer.name, cell, runs) for cell in cells for environment in environments]
    return rows, versions


def _row(name: str, cell: Cell, runs: dict[tuple[str, Cell], list[tuple[int, dict[str, Any]]]]) -> Row:
    workload, size = cell
    done = runs[name, cell]
    if failures := [said["failure"] for _, said in done if "failure" in said]:
        return Row(peer=name, workload=workload, size=size, processes=len(done), failure=failures[0])
    floors = {number: said for number, said in runs.get((FLOOR, cell), []) if "us" in said}
    played = [(said, floors[number]) for number, said in done if number in floors]
    sizes = [said["mib"] for _, said in done if said["mib"] is not None]
    scale, unit = (1e-3, "ms") if workload == "import" else (1.0, "µs")
    return Row(
        peer=name,
        workload=workload,
        size=size,
        value=statistics.median(said["us"] for _, said in done) * scale,
        unit=unit,
        ratio=_median([said["us"] / floor["us"] for said, floor in played]),
        first_ratio=_median([said["first_us"] / floor["first_us"] for said, floor in played if "first_us" in said]),
        mib=statistics.median(sizes) if sizes else None,
        processes=len(done),
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def table(rows: Sequence[Row]) -> str:
    """Peers down, cells across: ratios to `floor2`, of imports milliseconds, of W4 the peak of memory too."""
    cells = list(dict.fromkeys((row.workload, row.size) for row in rows))
    names = list(dict.fromkeys(row.peer for row in rows))
    found = {(row.peer, (row.workload, row.size)): row for row in rows}
    head = ["", *(_title(cell) for cell in cells)]
    lines = [head, *([name, *(_shown(found[name, cell]) for cell in cells)] for name in names)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def first_plays(rows: Sequence[Row]) -> list[Row]:
    """The same cells with what the first play took: compilers at run time have seen little of it. Imports are left out."""
    return [attrs.evolve(row, ratio=row.first_ratio, mib=None) for row in rows if row.workload != "import"]


def _title(cell: Cell) -> str:
    workload, size = cell
    return "import, ms" if workload == "import" else f"{workload} {size:,}" + (", MiB" if workload == "W4" else "")


def _shown(row: Row) -> str:
    if row.failure:
        return row.failure if len(row.failure) <= 20 else f"{row.failure[:19]}…"
    if row.workload == "import":
        return f"{row.value:,.0f}"
    ratio = "–" if row.ratio is None else f"{number(row.ratio)} ×"
    return f"{ratio}, {row.mib:,.0f}" if row.workload == "W4" and row.mib else ratio


def number(value: float) -> str:
    """Three figures of it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
