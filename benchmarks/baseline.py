"""What was measured before, as ratios to the floors, and which workloads have become slower than that."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Row

TOLERANCE = 0.15
"""How much of a ratio may be added before it counts: less than that is noise."""

Baseline = dict[str, float]
"""The name of a row to its ratio."""


def name_of(row: Row) -> str:
    """What a row is found again by: `W1 str 100000`."""
    return f"{row.workload} {row.variant} {row.size}"


def ratio_of(row: Row) -> float | None:
    """What is compared: the ratio to the floor; of memory the bytes themselves. None: a floor alone, or no figure."""
    if row.unit in ("bytes", "modules"):
        return row.value
    floor = row.floor2 or row.floor
    return row.ratio if row.ratio is not None else row.value / floor if floor else None


def python_version() -> str:
    """The part of it that ratios depend on: `3.13`."""
    return ".".join(platform.python_version_tuple()[:2])


def _ratios(rows: Sequence[Row]) -> Baseline:
    return {name_of(row): ratio for row in rows if (ratio := ratio_of(row)) is not None}


def write(path: Path, rows: Sequence[Row]) -> None:
    """Record the rows; those of other workloads that the file has already, for the same Python, stay."""
    before = read(path) if path.exists() else {}
    ratios = {name: round(ratio, 3) for name, ratio in (before | _ratios(rows)).items()}
    text = json.dumps({"python": python_version(), "ratios": ratios}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> Baseline:
    """The ratios of a file. Raises `ValueError` if it is of another Python, `OSError` if it cannot be read."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    if whole["python"] != python_version():
        raise ValueError(f"{path}: expected a baseline of Python {python_version()}, got one of {whole['python']}")
    return {str(name): float(ratio) for name, ratio in whole["ratios"].items()}


def compared(rows: Sequence[Row], baseline: Baseline) -> int:
    """How many of the rows the baseline knows."""
    return len(_ratios(rows).keys() & baseline.keys())


def regressions(rows: Sequence[Row], baseline: Baseline) -> dict[str, str]:
    """The rows whose ratio is above the recorded one by more than `TOLERANCE`: name to what is said of it."""
    return {
        name: f"{name}: {ratio:.4g}, recorded {baseline[name]:.4g} ({ratio / baseline[name] - 1:+.0%})"
        for name, ratio in _ratios(rows).items()
        if name in baseline and ratio > baseline[name] * (1 + TOLERANCE)
    }
