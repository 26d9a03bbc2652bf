"""From the processes' figures to rows: medians, ratios to `floor2`, growth, and the limits they are held against."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

import attrs

from benchmarks.scripts import PIECE

FLOORS = ("floor", "floor2")
MIB = 2**20

LIMITS: dict[tuple[str, str], float] = {
    ("W1", "str"): 2.5,
    ("W1", "TextChunk"): 3.0 if sys.version_info < (3, 12) else 2.5,
    ("W2", "agentloop"): 6.0,
    ("W3", "agentloop"): 3.0,
    ("W4", "agentloop"): 6.0,
    ("W6", "encode"): 3.0,
    ("W6", "decode"): 4.0,
    ("W6", "record"): 4.0,
    ("W7", "Agent"): 2.0,
    ("W7", "view"): 2.0,
    ("W5", "milliseconds"): 180.0,
    ("W8", "idle run"): 40 * 1_024,
}
"""What must hold: ratios to `floor2` (of W6 to its own floor, of W7 to W1); milliseconds beyond bare Python; bytes."""

GOALS: dict[tuple[str, str], float] = {
    ("W1", "str"): 2.2 if sys.version_info < (3, 12) else 1.8,
    ("W1", "TextChunk"): 2.2,
    ("W2", "agentloop"): 4.0,
    ("W3", "agentloop"): 2.2,
    ("W4", "agentloop"): 4.0,
    ("W6", "encode"): 2.0,
    ("W6", "decode"): 3.0,
    ("W6", "record"): 2.5,
    ("W7", "Agent"): 1.5,
    ("W7", "view"): 1.5,
    ("W5", "milliseconds"): 130.0,
    ("W8", "idle run"): 14 * 1_024,
}
"""What we want to reach."""

GROWTH = 1.1
"""Cost of a unit at ten times the size over that at the size, W4 excepted: the same, but for noise.

A run that keeps ten times as much pays for it in caches and in the collector, and so does `floor2`, which keeps its history
too: what that one grows by is not held against the loop.
"""

RECORD_GROWTH = 1.5
"""The same of W6, whose files grow with the disk's caches."""

MEMORY_GROWTH = 2.0
"""Bytes of a further turn later over earlier: about 1 if linear (tables double now and then), 3.3 if quadratic."""


@attrs.frozen(kw_only=True)
class Row:
    """One line of the table. `value` and the floors are in `unit`; `ratio` is to `floor2`; `over` names what is over."""

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
    over: str = ""


def timing_rows(workload: str, runs: Sequence[dict[str, Any]]) -> list[Row]:
    """Rows of W1 to W4 from the lines of `benchmarks.timing`: medians; ratios and growths are taken in each process."""
    sizes = list(runs[0]["us"])
    variants = [name for name in runs[0]["us"][sizes[0]] if name not in FLOORS]
    return [_timing_row(workload, variant, place, sizes, runs) for variant in variants for place in range(len(sizes))]


def _timing_row(workload: str, variant: str, place: int, sizes: list[str], runs: Sequence[dict[str, Any]]) -> Row:
    costs = [run["us"][sizes[place]] for run in runs]
    ratio = statistics.median(cost[variant] / cost["floor2"] for cost in costs)
    growth, beyond = None, 0.0
    if place:
        smaller = [run["us"][sizes[place - 1]] for run in runs]
        growth = statistics.median(_growths(variant, costs, smaller))
        beyond = growth / max(statistics.median(_growths("floor2", costs, smaller)), 1.0)
    limit = LIMITS[workload, variant]
    over = []
    if place == len(sizes) - 1:
        over = ["ratio"] * (ratio > limit) + ["growth"] * (workload != "W4" and beyond > GROWTH)
    return Row(
        workload=workload,
        variant=variant,
        size=int(sizes[place]),
        value=statistics.median(cost[variant] for cost in costs),
        unit="µs",
        floor=statistics.median(cost["floor"] for cost in costs),
        floor2=statistics.median(cost["floor2"] for cost in costs),
        ratio=ratio,
        growth=growth,
        limit=limit,
        goal=GOALS[workload, variant],
        over=", ".join(over),
    )


def _growths(variant: str, costs: Sequence[dict[str, float]], smaller: Sequence[dict[str, float]]) -> list[float]:
    return [cost[variant] / before[variant] for cost, before in zip(costs, smaller, strict=True)]


def record_rows(runs: Sequence[dict[str, Any]]) -> list[Row]:
    """Rows of W6 from the lines of `benchmarks.records`. The limits are for the stream of deltas; turns are shown."""
    stream, sizes = runs[0]["stream"], list(runs[0]["us"])
    names = [name for name in runs[0]["us"][sizes[0]] if not name.endswith("floor")]
    return [_record_row(stream, name, place, sizes, runs) for name in names for place in range(len(sizes))]


def _record_row(stream: str, name: str, place: int, sizes: list[str], runs: Sequence[dict[str, Any]]) -> Row:
    costs = [run["us"][sizes[place]] for run in runs]
    ratio = statistics.median(cost[name] / cost[f"{name} floor"] for cost in costs)
    growth = None
    if place:
        before = [run["us"][sizes[place - 1]] for run in runs]
        growth = statistics.median(cost[name] / small[name] for cost, small in zip(costs, before, strict=True))
    limit = LIMITS.get(("W6", name)) if stream == "deltas" else None
    over = ["ratio"] * (limit is not None and place == len(sizes) - 1 and ratio > limit)
    return Row(
        workload="W6",
        variant=f"{name}, {stream}",
        size=int(sizes[place]),
        value=statistics.median(cost[name] for cost in costs),
        unit="µs",
        floor=statistics.median(cost[f"{name} floor"] for cost in costs),
        ratio=ratio,
        growth=growth,
        limit=limit,
        goal=GOALS.get(("W6", name)) if stream == "deltas" else None,
        over=", ".join(over + ["growth"] * ((growth or 0) > RECORD_GROWTH)),
    )


def import_rows(run: dict[str, Any]) -> list[Row]:
    """Rows of W5 from the line of `benchmarks.imports`; the floor imports asyncio, attrs and anyio."""
    limit, goal = LIMITS["W5", "milliseconds"], GOALS["W5", "milliseconds"]
    took, cpu, modules = run["ms"], run["cpu_ms"], run["modules"]
    return [
        Row(
            workload="W5",
            variant="import",
            size=1,
            value=took["agentloop"],
            unit="ms",
            floor=took["floor"],
            limit=limit,
            goal=goal,
            over="time" if took["agentloop"] > limit else "",
        ),
        Row(workload="W5", variant="import, CPU", size=1, value=cpu["agentloop"], unit="ms", floor=cpu["floor"]),
        Row(
            workload="W5",
            variant="modules",
            size=1,
            value=modules["agentloop"],
            unit="modules",
            floor=modules["floor"],
            over=", ".join(run["unwanted"]),
        ),
        Row(workload="W5", variant="install size", size=1, value=sum(run["bytes"].values()), unit="bytes"),
    ]


MEMORY_NAMES = {"W1": "W1, all of it", "W2": "W2, a turn", "idle": "an idle run"}


def memory_rows(figures: dict[tuple[str, str, int], list[int]]) -> list[Row]:
    """Rows of W8: (workload, variant, size) to the bytes that each process grew by; three sizes of W2, ascending.

    The growth of W2 is that of what further turns cost: the first ones find memory that the import has freed.
    """
    grown = {key: statistics.median(values) for key, values in figures.items()}
    rows = []
    for (workload, variant, size), value in grown.items():
        if variant == "floor2":
            continue
        same = [(key[2], grown[key]) for key in grown if key[:2] == (workload, variant) and key[2] <= size]
        rows.append(_memory_row(workload, size, value, grown[workload, "floor2", size], _growth(same)))
    return rows


def _growth(grown: Sequence[tuple[int, float]]) -> float | None:
    """What a further unit costs between the last two sizes over that between the two before."""
    if len(grown) < 3:
        return None
    (size0, bytes0), (size1, bytes1), (size2, bytes2) = grown[-3:]
    earlier, later = (bytes1 - bytes0) / (size1 - size0), (bytes2 - bytes1) / (size2 - size1)
    return later / earlier if earlier > 0 else None


def _memory_row(workload: str, size: int, value: float, floor2: float, growth: float | None) -> Row:
    limit: float | None = None
    goal: float | None = None
    if workload == "W1":
        text = PIECE * size
        limit, goal = 3 * text + 4 * MIB, 2 * text + 2 * MIB
    else:
        value, floor2 = value / size, floor2 / size
    if workload == "idle":
        limit, goal = LIMITS["W8", "idle run"], GOALS["W8", "idle run"]
    over = ["bytes"] * (limit is not None and value > limit) + ["growth"] * ((growth or 0) > MEMORY_GROWTH)
    return Row(
        workload="W8",
        variant=MEMORY_NAMES[workload],
        size=size,
        value=value,
        unit="bytes",
        floor2=floor2,
        growth=growth,
        limit=limit,
        goal=goal,
        over=", ".join(over),
    )


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
            f"over: {row.over}" if row.over else "",
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
