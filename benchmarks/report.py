"""From the processes' figures to rows: medians, ratios to `floor2`, growth, and the limits they are held against."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

import attrs

FLOORS = ("floor", "floor2")
MIB = 2**20

LIMITS: dict[tuple[str, str], float] = {
    ("W1", "str"): 2.5,
    ("W1", "TextChunk"): 3.0 if sys.version_info < (3, 12) else 2.5,
    ("W2", "agentloop"): 6.0,
    ("W3", "agentloop"): 3.0,
    ("W4", "agentloop"): 6.0,
    ("W5", "milliseconds"): 180.0,
    ("W8", "idle run"): 40 * 1_024,
}
"""What must hold: ratios to `floor2`; milliseconds beyond bare Python; bytes."""

GOALS: dict[tuple[str, str], float] = {
    ("W1", "str"): 2.2 if sys.version_info < (3, 12) else 1.8,
    ("W1", "TextChunk"): 2.2,
    ("W2", "agentloop"): 4.0,
    ("W3", "agentloop"): 2.2,
    ("W4", "agentloop"): 4.0,
    ("W5", "milliseconds"): 130.0,
    ("W8", "idle run"): 14 * 1_024,
}
"""What we want to reach."""

GROWTH = 1.1
"""Cost of a unit at ten times the size over that at the size: the same, but for noise."""


@attrs.frozen
class Row:
    """One line of the table. `value` is in `unit`; `ratio` is to `floor2`."""

    workload: str
    variant: str
    size: int
    value: float
    unit: str
    floor: float | None = None
    floor2: float | None = None
    ratio: float | None = None
    growth: float | None = None
    limit: float | None = None
    goal: float | None = None
    ok: bool | None = None


def timing_rows(workload: str, runs: Sequence[dict[str, Any]]) -> list[Row]:
    """Rows of W1 to W4 from the lines of `benchmarks.timing`: medians; ratios and growths are taken in each process."""
    rows = []
    sizes = list(runs[0]["us"])
    for variant in (name for name in runs[0]["us"][sizes[0]] if name not in FLOORS):
        for place, size in enumerate(sizes):
            costs = [run["us"][size] for run in runs]
            growth = None
            if place:
                growth = statistics.median(
                    run["us"][size][variant] / run["us"][sizes[place - 1]][variant] for run in runs
                )
            ratio = statistics.median(cost[variant] / cost["floor2"] for cost in costs)
            limit = LIMITS[workload, variant]
            rows.append(
                Row(
                    workload,
                    variant,
                    int(size),
                    statistics.median(cost[variant] for cost in costs),
                    "µs",
                    statistics.median(cost["floor"] for cost in costs),
                    statistics.median(cost["floor2"] for cost in costs),
                    ratio,
                    growth,
                    limit,
                    GOALS[workload, variant],
                    place + 1 < len(sizes) or (ratio <= limit and (growth or 0) <= GROWTH),
                )
            )
    return rows


def import_rows(run: dict[str, Any]) -> list[Row]:
    """Rows of W5."""
    limit, goal = LIMITS["W5", "milliseconds"], GOALS["W5", "milliseconds"]
    took, floor = run["ms"]["agentloop"], run["ms"]["floor"]
    modules, total = run["modules"], sum(run["bytes"].values())
    return [
        Row("W5", "import", 1, took, "ms", floor, ratio=None, limit=limit, goal=goal, ok=took <= limit),
        Row("W5", "import, CPU", 1, run["cpu_ms"]["agentloop"], "ms", run["cpu_ms"]["floor"]),
        Row("W5", "modules", 1, modules["agentloop"], "modules", modules["floor"], ok=not run["unwanted"]),
        Row("W5", "install size", 1, total, "bytes"),
    ]


def memory_rows(figures: dict[tuple[str, str, int], list[int]]) -> list[Row]:
    """Rows of W8: (workload, variant, size) to the bytes that each process grew by."""
    grown = {key: statistics.median(values) for key, values in figures.items()}
    rows = []
    for (workload, variant, size), value in grown.items():
        if variant == "floor2":
            continue
        floor2 = grown[workload, "floor2", size]
        smaller = [other for name, kind, other in grown if (name, kind) == (workload, variant) and other < size]
        growth = value / size / (grown[workload, variant, max(smaller)] / max(smaller)) if smaller else None
        if workload == "idle":
            limit, goal = LIMITS["W8", "idle run"], GOALS["W8", "idle run"]
            each = value / size
            rows.append(
                Row(
                    "W8", "idle run", size, each, "bytes", None, floor2 / size, limit=limit, goal=goal, ok=each <= limit
                )
            )
        elif workload == "W1":
            text = 8 * size
            limit, goal = 3 * text + 4 * MIB, 2 * text + 2 * MIB
            rows.append(
                Row("W8", "W1, all", size, value, "bytes", None, floor2, limit=limit, goal=goal, ok=value <= limit)
            )
        else:
            ok = None if growth is None else growth <= GROWTH
            rows.append(Row("W8", "W2, a turn", size, value / size, "bytes", None, floor2 / size, growth=growth, ok=ok))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ("", "", "size", "value", "", "floor", "floor2", "× floor2", "growth", "limit", "goal", "")
    cells = [head] + [
        (
            row.workload,
            row.variant,
            f"{row.size:,}",
            _number(row.value),
            row.unit,
            _number(row.floor),
            _number(row.floor2),
            _number(row.ratio),
            _number(row.growth),
            _number(row.limit),
            _number(row.goal),
            "over the limit" if row.ok is False else "",
        )
        for row in rows
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(head))]
    left = (0, 1, 4, 11)
    lines = (
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
