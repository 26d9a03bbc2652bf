"""Makes the environments, measures, prints the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import attrs

from benchmarks.peers.environments import PEERS, Absent, Environment, Peer, environment
from benchmarks.peers.measuring import CELLS, FLOOR, QUICK_CELLS, first_plays, measure, number, table

PROCESSES = 5
TIMEOUT = 600.0


def tell(line: str) -> None:
    """A line of progress, apart from the table."""
    print(line, file=sys.stderr, flush=True)


def chosen(only: str | None) -> list[Peer]:
    """The peers of which a part of the name is given, and always the floor and ourselves."""
    wanted = [part.strip() for part in (only or "").split(",") if part.strip()]
    missing = [part for part in wanted if not any(part in peer.name for peer in PEERS)]
    if missing:
        raise SystemExit(
            f"--only: expected names of {', '.join(peer.name for peer in PEERS)}, got {', '.join(missing)}"
        )
    ours = (FLOOR, "agentloop")
    return [peer for peer in PEERS if not wanted or peer.name in ours or any(part in peer.name for part in wanted)]


def made(peers: list[Peer], newest: bool) -> tuple[list[Environment], dict[str, str]]:
    """The environments of those that can be had, and why the others cannot."""
    environments, absent = [], {}
    for peer in peers:
        tell(f"environment of {peer.name}")
        try:
            environments.append(environment(peer, newest))
        except Absent as error:
            absent[peer.name] = str(error)
    return environments, absent


def main() -> int:
    """Parse, install, measure, print. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="The same work in other loops.")
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"of {', '.join(CELLS)}; default: all")
    parser.add_argument("--only", metavar="NAMES", help="parts of names of peers, with commas")
    parser.add_argument("--quick", action="store_true", help="small sizes, one process each")
    parser.add_argument("--processes", type=int, help=f"fresh processes of each (default {PROCESSES}, quick 1)")
    parser.add_argument("--newest", action="store_true", help="the newest releases instead of the pinned ones")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of one process (default %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there too")
    given = parser.parse_args()
    if unknown := sorted(set(given.workloads) - set(CELLS)):
        parser.error(f"expected workloads of {', '.join(CELLS)}, got {', '.join(unknown)}")
    processes = given.processes if given.processes is not None else 1 if given.quick else PROCESSES
    if processes < 1:
        parser.error(f"--processes: expected at least 1, got {processes}")

    environments, absent = made(chosen(given.only), given.newest)
    sizes = QUICK_CELLS if given.quick else CELLS
    cells = [(workload, size) for workload in given.workloads or CELLS for size in sizes[workload]]
    rows, versions = measure(environments, cells, processes, given.timeout, tell)

    machine = {"python": platform.python_version(), "platform": platform.platform(), "cores": os.cpu_count()}
    print(f"Python {machine['python']}, {machine['platform']}, {machine['cores']} cores; ratios of CPU time to {FLOOR}")
    print(table(rows))
    print("The first play of a process after a small warm-up, where the above is the least of up to five:")
    print(table(first_plays(rows)))
    for row in rows:
        if row.failure:
            print(f"{row.peer}, {row.workload} {row.size:,}: {row.failure}")
        elif row.peer == FLOOR and row.value is not None:
            print(f"{FLOOR}, {row.workload} {row.size:,}: {number(row.value)} {row.unit}")
    for name, reason in absent.items():
        print(f"left out: {name}: {reason}")
    if given.json is not None:
        whole = {**machine, "versions": versions, "absent": absent, "rows": [attrs.asdict(row) for row in rows]}
        given.json.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
