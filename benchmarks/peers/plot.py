"""The picture of what `--json` wrote: ratios to `floor2` as bars on a logarithmic scale, one panel a cell, as SVG.

python -m benchmarks.peers.plot benchmarks/peers/results.json > docs/performance.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.peers.measuring import FLOOR, number

TITLES = {
    "W1": "W1: one text of {size:,} deltas",
    "W2": "W2: {size:,} turns of four calls",
    "W3": "W3: one argument in {size:,} deltas",
    "W4": "W4: {size:,} runs at once",
}
WIDTH, MARGIN, NAMES, VALUES, BAR, GAP, HEAD = 860, 16, 120, 70, 15, 5, 46
COLUMN = (WIDTH - 3 * MARGIN) // 2
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600}.g{stroke:#ddd}.a{fill:#999;font-size:10px}"
    ".b{fill:#9db2c6}.us{fill:#c2571a}.f{fill:#777}.n{text-anchor:end}.m{text-anchor:middle}"
)

Row = dict[str, Any]


def panels(rows: Sequence[Row]) -> list[list[Row]]:
    """The largest size of each workload, the floor left out: it is the left edge."""
    found = []
    for workload in TITLES:
        sizes = [row["size"] for row in rows if row["workload"] == workload]
        if sizes:
            cell = (workload, max(sizes))
            found.append([row for row in rows if (row["workload"], row["size"]) == cell and row["peer"] != FLOOR])
    return found


def drawn(rows: Sequence[Row], decades: int, left: int, top: int) -> Iterator[str]:
    """One panel."""
    first, length = left + NAMES, COLUMN - NAMES - VALUES
    bottom = top + HEAD + len(rows) * (BAR + GAP)
    title = TITLES[rows[0]["workload"]].format(size=rows[0]["size"])
    yield f'<text class="t" x="{left}" y="{top + 16}">{escape(title)}</text>'
    for power in range(decades + 1):
        x = first + length * power // decades
        yield f'<line class="g" x1="{x}" x2="{x}" y1="{top + HEAD - 6}" y2="{bottom}"/>'
        yield f'<text class="a m" x="{x}" y="{top + HEAD - 10}">{10**power:,} ×</text>'
    ordered = sorted(rows, key=lambda row: (row["ratio"] is None, row["ratio"]))
    for place, row in enumerate(ordered):
        y = top + HEAD + place * (BAR + GAP)
        yield f'<text class="n" x="{first - 6}" y="{y + 12}">{escape(row["peer"])}</text>'
        if row["ratio"] is None:
            yield f'<text class="f" x="{first + 4}" y="{y + 12}">{escape(row["failure"][:48])}</text>'
            continue
        wide = max(length * math.log10(max(row["ratio"], 1.0)) / decades, 1.0)
        kind = "us" if row["peer"] == "agentloop" else "b"
        yield f'<rect class="{kind}" x="{first}" y="{y}" width="{wide:.1f}" height="{BAR}"/>'
        yield f'<text x="{first + wide + 5:.1f}" y="{y + 12}">{number(row["ratio"])} ×</text>'


def picture(rows: Sequence[Row]) -> str:
    """The whole SVG."""
    found = panels(rows)
    highest = max(row["ratio"] or 1.0 for panel in found for row in panel)
    decades = max(math.ceil(math.log10(highest)), 1)
    height = HEAD + max(len(panel) for panel in found) * (BAR + GAP) + MARGIN
    total = MARGIN + height * math.ceil(len(found) / 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}">',
        "<title>CPU time of agent loops as ratios to the least honest kernel, logarithmic; shorter is faster</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{total}" fill="#fff"/>',
    ]
    for place, panel in enumerate(found):
        lines += drawn(panel, decades, MARGIN + (place % 2) * (COLUMN + MARGIN), MARGIN + (place // 2) * height)
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    print(picture(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"]))
