"""Runs the workloads in fresh processes and prints what they cost."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from benchmarks import baseline, report

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 5

SIZES: dict[str, tuple[int, ...]] = {
    "W1": (10_000, 100_000, 1_000_000),
    "W2": (50, 500, 5_000),
    "W3": (10_000, 100_000),
    "W4": (100, 1_000),
    "W7": (10_000, 100_000),
}
QUICK_SIZES: dict[str, tuple[int, ...]] = {
    "W1": (1_000, 10_000),
    "W2": (20, 200),
    "W3": (1_000, 10_000),
    "W4": (20, 200),
    "W7": (1_000, 10_000),
}
RECORDS: dict[str, tuple[int, ...]] = {"deltas": (10_000, 100_000), "turns": (50, 500)}
QUICK_RECORDS: dict[str, tuple[int, ...]] = {"deltas": (1_000, 10_000), "turns": (5, 50)}
MEMORY = (
    ("W1", "TextChunk", 1_000_000),
    ("W2", "agentloop", 625),
    ("W2", "agentloop", 1_250),
    ("W2", "agentloop", 5_000),
    ("idle", "agentloop", 10_000),
)
QUICK_MEMORY = (
    ("W1", "TextChunk", 100_000),
    ("W2", "agentloop", 250),
    ("W2", "agentloop", 500),
    ("idle", "agentloop", 1_000),
)
WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8")


def child(*arguments: Any) -> dict[str, Any]:
    """What one fresh process measured."""
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def rows_of(workload: str, quick: bool, processes: int, tell: Callable[[str], None]) -> list[report.Row]:
    """Measure one workload."""
    tell(workload)
    if workload == "W5":
        return report.import_rows(child("benchmarks.imports", 5 if quick else 25))
    if workload == "W6":
        return [
            row
            for stream, sizes in (QUICK_RECORDS if quick else RECORDS).items()
            for row in report.record_rows([child("benchmarks.records", stream, *sizes) for _ in range(processes)])
        ]
    if workload == "W8":
        figures: dict[tuple[str, str, int], list[int]] = {}
        for name, variant, size in QUICK_MEMORY if quick else MEMORY:
            for who in (variant, "floor2"):
                runs = [child("benchmarks.memory", name, who, size) for _ in range(processes)]
                figures[name, who, size] = [run["bytes"] for run in runs]
        return report.memory_rows(figures)
    sizes = (QUICK_SIZES if quick else SIZES)[workload]
    return report.timing_rows(workload, [child("benchmarks.timing", workload, *sizes) for _ in range(processes)])


def parse() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the loop itself costs.")
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, one process each")
    parser.add_argument("--processes", type=int, help=f"fresh processes of each (default {PROCESSES}, quick 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--check", action="store_true", help="exit 1 if something is over its limit")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help=f"exit 1 if a ratio is more than {baseline.TOLERANCE:.0%}% above the one recorded there, measured twice",
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the ratios there, for --against")
    given = parser.parse_args()
    if unknown := sorted(set(given.workloads) - set(WORKLOADS)):
        parser.error(f"expected workloads of {', '.join(WORKLOADS)}, got {', '.join(unknown)}")
    if given.processes is None:
        given.processes = 1 if given.quick else PROCESSES
    if given.processes < 1:
        parser.error(f"--processes: expected at least 1, got {given.processes}")
    try:
        given.recorded = None if given.against is None else baseline.read(given.against)
        if given.record is not None and given.record.exists():
            baseline.read(given.record)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"no baseline: {error!r}")
    return given


def tell(workload: str) -> None:
    """Say to a person what is being measured."""
    if sys.stderr.isatty():
        print(f"measuring {workload} …", file=sys.stderr)


def slower(rows: list[report.Row], recorded: baseline.Baseline, quick: bool, processes: int) -> list[str]:
    """What has become slower than recorded: what seems so is measured once more, and must seem so again."""
    if not baseline.compared(rows, recorded):
        raise SystemExit("--against: none of the rows is in that baseline (was it recorded at these sizes?)")
    first = baseline.regressions(rows, recorded)
    suspects = [workload for workload in WORKLOADS if any(name.split()[0] == workload for name in first)]
    again = [row for workload in suspects for row in rows_of(workload, quick, processes, tell)]
    second = baseline.regressions(again, recorded)
    return [f"{text}; again: {second[name].partition(': ')[2]}" for name, text in first.items() if name in second]


def main() -> int:
    """Measure and print. Returns the exit code."""
    given = parse()
    rows = [row for name in given.workloads or WORKLOADS for row in rows_of(name, given.quick, given.processes, tell)]
    machine = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "processes": given.processes,
        "packages": {name: importlib.metadata.version(name) for name in ("anyio", "attrs")},
    }
    if given.json:
        print(json.dumps({**machine, "rows": [attrs.asdict(row) for row in rows]}, ensure_ascii=False))
    else:
        place = f"{machine['platform']}, {machine['cores']} cores"
        print(f"Python {machine['python']}, {place}, medians of {given.processes} processes")
        print(report.table(rows))
    if given.record is not None:
        baseline.write(given.record, rows)
    slow = [] if given.recorded is None else slower(rows, given.recorded, given.quick, given.processes)
    for line in slow:
        print(f"slower: {line}", file=sys.stderr)
    return int(bool(slow) or (given.check and any(row.over for row in rows)))


if __name__ == "__main__":
    sys.exit(main())
