"""`agentloop diff`: two recorded runs, event by event.

Times do not count, nor do the ids of calls, unless `--ids` says so; neighbouring pieces of a text count as one. If only one of
the two has fragments (a stream against a trace), both are compared as traces.

Exit codes: 0 the same · 1 different · 2 a file could not be read.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence

from agentloop.cli._files import FILE_OR_ID, add_traces_argument, events_of, files_of
from agentloop.cli._text import counted, safe
from agentloop.events import BlockAdded, Event, MessageUpdate
from agentloop.omni.codec import trace_view
from agentloop.testing.snapshot import snapshot

_CONTEXT = 3
_COMPARE_AT_MOST = 3_000
"""Lines between the common beginning and the common end that are compared in any order; comparing more would take too long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop diff`."""
    parser.add_argument("first", metavar="A", help=FILE_OR_ID)
    parser.add_argument("second", metavar="B", help="the one that it is held against")
    add_traces_argument(parser)
    parser.add_argument("--ids", action="store_true", help="compare the ids of calls and nested runs as well")


def main(arguments: argparse.Namespace) -> int:
    """Compare; prints a unified diff."""
    names = (arguments.first, arguments.second)
    files = [files_of(name, arguments.traces) for name in names]
    first, second = _comparable(*[[event for event, _ in events_of(paths, _told)] for paths in files])
    stable = not arguments.ids
    lines = difference(snapshot(first, stable_ids=stable), snapshot(second, stable_ids=stable), *names)
    for line in lines:
        print(safe(line))
    return 1 if lines else 0


def _told(words: str) -> None:
    print(safe(words), file=sys.stderr)


def _comparable(first: list[Event], second: list[Event]) -> tuple[list[Event], list[Event]]:
    if _has_fragments(first) == _has_fragments(second):
        return first, second
    return list(trace_view(first)), list(trace_view(second))


def _has_fragments(events: list[Event]) -> bool:
    return any(isinstance(event, MessageUpdate) and not isinstance(event.delta, BlockAdded) for event in events)


def difference(first: Sequence[str], second: Sequence[str], name: str = "A", other: str = "B") -> list[str]:
    """The lines of a unified diff; none when the two are the same."""
    start = _common(first, second)
    if start == len(first) == len(second):
        return []
    limit = min(len(first), len(second)) - start
    end = min(_common(first[:start:-1], second[:start:-1]), max(0, limit - 1))
    start = max(0, start - _CONTEXT)
    end = max(0, end - _CONTEXT)
    left, right = first[start : len(first) - end], second[start : len(second) - end]
    rest = max(len(left), len(right)) - _COMPARE_AT_MOST
    lines = [
        *difflib.unified_diff(left[:_COMPARE_AT_MOST], right[:_COMPARE_AT_MOST], name, other, "", "", _CONTEXT, "")
    ]
    lines = [line if not line.startswith("@@") else _moved(line, start) for line in lines]
    return [*lines, f"… {counted(rest, 'further line')} not compared"] if rest > 0 else lines


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many lines the two have in common at the beginning."""
    shorter = min(len(first), len(second))
    return next((n for n in range(shorter) if first[n] != second[n]), shorter)


def _moved(header: str, by: int) -> str:
    """A `@@ -a,b +c,d @@` whose lines are counted from further up."""
    parts = header.split()
    for n in (1, 2):
        line, comma, count = parts[n][1:].partition(",")
        parts[n] = f"{parts[n][0]}{int(line) + by}{comma}{count}"
    return " ".join(parts)
