"""Machines of states that say whether a text matches, in time in proportion to the text.

`re` backtracks: `(a+)+b` against forty letters never ends, and both may come from strangers. Here a pattern is a machine
(Thompson's construction) that is in all its possible states at once, so each character is looked at once. A machine has a
greatest number of states, and every match draws on a `Budget` of steps: one that is used up raises `TooCostly`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

MAX_STATES: Final = 2_000
"""States of a machine, repetitions written out."""

Test: TypeAlias = Callable[[str], bool]
"""Whether a character fits."""


class TooCostly(Exception):
    """The steps allowed for a decision are used up; whether the text matches is not known."""


class Budget:
    """Steps that may still be made."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self, steps: int) -> None:
        """Use some. Raises `TooCostly` when there are not that many."""
        self.left -= steps
        if self.left < 0:
            raise TooCostly


@attrs.frozen
class Pattern:
    """A machine that says whether a whole text matches."""

    tests: tuple[Test | None, ...]
    """For each state, the character that it takes; None: it takes none."""
    ways: tuple[tuple[int, ...], ...]
    """For each state, where it leads: after its character, or at once where it takes none. State 0 is the end."""
    start: int

    def matches(self, text: str, budget: Budget) -> bool:
        """Whether the pattern describes all of the text. Raises `TooCostly`."""
        known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        states = self._reached((self.start,), budget)
        for character in text:
            key = (states, character)
            after = known.get(key)
            if after is None:
                after = known[key] = self._step(states, character, budget)
            budget.take(1)
            if not after:
                return False
            states = after
        return 0 in states

    def _step(self, states: frozenset[int], character: str, budget: Budget) -> frozenset[int]:
        budget.take(len(states))
        tests = self.tests
        taken = [state for state in states if (test := tests[state]) is not None and test(character)]
        return self._reached([way for state in taken for way in self.ways[state]], budget)

    def _reached(self, states: tuple[int, ...] | list[int], budget: Budget) -> frozenset[int]:
        """The states that take a character (and the end) that can be reached without taking one."""
        seen, open_states = set(states), list(states)
        while open_states:
            state = open_states.pop()
            if self.tests[state] is None:
                new = [way for way in self.ways[state] if way not in seen]
                seen.update(new)
                open_states += new
        budget.take(len(seen))
        return frozenset([state for state in seen if state == 0 or self.tests[state] is not None])


# ---------------------------------------------------------------- parts of a pattern


@attrs.frozen
class One:
    """One character."""

    test: Test


@attrs.frozen
class Sequence:
    """One part after the other."""

    parts: tuple[Part, ...]


@attrs.frozen
class Choice:
    """One of the parts."""

    parts: tuple[Part, ...]


@attrs.frozen
class Repeat:
    """A part from `least` to `most` times; None: any number."""

    part: Part
    least: int
    most: int | None


Part: TypeAlias = One | Sequence | Choice | Repeat


class Builder:
    """Makes the machine from its end to its start."""

    def __init__(self) -> None:
        self.tests: list[Test | None] = [None]
        self.ways: list[tuple[int, ...]] = [()]
        self.visits = 0

    def state(self, test: Test | None, ways: tuple[int, ...]) -> int:
        """A new state. Raises `ValueError` when there are too many."""
        if len(self.tests) >= MAX_STATES:
            raise ValueError(f"expected a pattern of at most {MAX_STATES} states, got more (large repetitions count)")
        self.tests.append(test)
        self.ways.append(ways)
        return len(self.tests) - 1

    def before(self, part: Part, after: int) -> int:
        """The first state of a part that leads to `after`."""
        self.visits += 1
        if self.visits > 10 * MAX_STATES:  # repetitions of nothing make no states, and take their time all the same
            raise ValueError(f"expected a pattern of at most {MAX_STATES} states, got repetitions of repetitions")
        match part:
            case One(test):
                return self.state(test, (after,))
            case Sequence(parts):
                for inner in reversed(parts):
                    after = self.before(inner, after)
                return after
            case Choice(parts):
                return self.state(None, tuple([self.before(inner, after) for inner in parts]))
            case Repeat():
                return self._repeated(part, after)

    def _repeated(self, part: Repeat, after: int) -> int:
        if part.most is None:
            loop = self.state(None, ())
            self.ways[loop] = (self.before(part.part, loop), after)
            after = loop
        else:
            end = after
            for _ in range(part.most - part.least):
                after = self.state(None, (self.before(part.part, after), end))
        for _ in range(part.least):
            after = self.before(part.part, after)
        return after
