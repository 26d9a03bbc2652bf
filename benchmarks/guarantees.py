"""What some of the guarantees cost of a turn of W2: each is switched off in turn, then all of them.

    python -m benchmarks.guarantees

Only here can they be switched off. Ratios are to `floor2` of the same process, which has none of them; each figure is the
least of some plays that take turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from agentloop import tools
from agentloop.convert import LegalHistory
from agentloop.grammar import Checker
from benchmarks import timing

TURNS = 500
ROUNDS = 9


def _unchecked(self: Checker, event: Any) -> None:
    pass


def _as_it_came(self: LegalHistory, message: Any) -> None:
    self._kept.append(message)
    self._builder.out.append(message)


def _parsed(name: str, given: Any, check: Callable[..., Any]) -> Any:
    return json.loads(given)


GUARANTEES: dict[str, tuple[Any, str, Any]] = {
    "the grammar check (G01 to G08)": (Checker, "feed", _unchecked),
    "a history that every provider takes": (LegalHistory, "append", _as_it_came),
    "arguments held against their schema": (tools, "_checked", _parsed),
}
"""What is switched off: where it stands, its name, what stands in for it."""


def off(names: Iterable[str]) -> ExitStack:
    """A block in which these are switched off."""
    block = ExitStack()
    for name in names:
        block.enter_context(mock.patch.object(*GUARANTEES[name]))
    return block


def measure(turns: int = TURNS, rounds: int = ROUNDS) -> dict[str, float]:
    """Microseconds a turn: of `floor2`, of all, without each, without all."""
    floor, whole = timing.VARIANTS["W2"]["floor2"], timing.VARIANTS["W2"]["agentloop"]
    left_out: dict[str, tuple[str, ...]] = {"floor2": (), "all": (), **{name: (name,) for name in GUARANTEES}}
    left_out["all three"] = tuple(GUARANTEES)
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, without in left_out.items():
            with off(without):
                seconds = timing.cpu_time(floor if name == "floor2" else whole, "W2", turns)
            best[name] = min(best.get(name, seconds), seconds)
    return {name: seconds / turns * 1e6 for name, seconds in best.items()}


def main() -> None:
    """Print the table."""
    figures = measure()
    floor = figures.pop("floor2")
    print(f"{'W2 without':40}{'µs a turn':>12}{'× floor2':>10}")
    for name, cost in figures.items():
        print(f"{'— (all of them on)' if name == 'all' else name:40}{cost:12.0f}{cost / floor:10.2f}")


if __name__ == "__main__":
    main()
