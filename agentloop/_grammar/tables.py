"""Tables of states as text, and their reading into dicts that are looked up once an event.

A line of a table is `state  rule  event > next state, event > next state`, its columns two or more spaces apart; a
state may have several lines. `a | b` are two states that an event may lead to, by its guard. `*` stands for the owner
of the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args

from agentloop.events import Delta, Event

Key: TypeAlias = type | str
"""What a state looks an event up by: its class; or `Class(detail)`, with the role of its message or its kind of hook
(a text, whose hash is kept)."""

Guard: TypeAlias = Callable[[Any, Any, Any], None]
"""`guard(checker, event, other)`: raises, or lets the event pass, or puts the checker into `other`."""

EVENTS = frozenset(get_args(Event))
DELTAS = frozenset(get_args(Delta))
_CLASSES = {kind.__name__: kind for kind in EVENTS | DELTAS}


Step: TypeAlias = "tuple[State, State, Guard | None]"
"""Where an event leads: to the first, or to the second if the guard says so. A plain tuple: that unpacks fastest."""


class State(dict[Key, Step]):
    """What may come in a state, and where it leads. `rule` is broken by other events; None: the rule of the event."""

    __slots__ = ("name", "rule")

    def __init__(self, name: str, rule: str) -> None:
        """A state without steps yet."""
        super().__init__()
        self.name = name
        self.rule = None if rule == "." else rule

    def __repr__(self) -> str:
        return f"<State {self.name}: {self.expected()}>"

    def __deepcopy__(self, memo: object) -> State:
        """Itself: a checker that is copied looks its events up in the same tables."""
        return self

    def expected(self) -> str:
        """What may come, as the tables spell it."""
        return ", ".join([spelled(key) for key in self]) or "nothing"


class Row(NamedTuple):
    """A line of a table."""

    state: str
    rule: str
    steps: Sequence[tuple[str, str]]
    """Pairs of an event and the state (or `a | b`) that it leads to."""


def read_rows(table: str, owner: str = "") -> list[Row]:
    """The lines of a table, `*` replaced by its owner."""
    result = []
    for line in table.strip().splitlines():
        state, rule, *steps = re.split(r" {2,}", line.replace("* ", owner + " ").strip())
        pairs = [step.split(" > ") for step in ", ".join(steps).split(", ") if step]
        result.append(Row(state, rule, [(event, to) for event, to in pairs]))
    return result


def read_states(
    lines: Iterable[Row], groups: Mapping[str, Sequence[str]], guards: Mapping[str, Guard]
) -> dict[str, State]:
    """The states of a table by name; a group's name stands for each of its events."""
    lines = list(lines)
    states: dict[str, State] = {}
    for line in lines:
        states.setdefault(line.state, State(line.state, line.rule))
    for line in lines:
        for name, to in line.steps:
            first, _, second = to.partition(" | ")
            for event in groups.get(name, (name,)):
                states[line.state][key_of(event)] = (states[first], states[second or first], guards.get(event))
    return states


def key_of(text: str) -> Key:
    """The key of what a table spells `Class` or `Class(detail)`."""
    return text if "(" in text else _CLASSES[text]


def spelled(key: Key) -> str:
    """A key as the tables write it."""
    return key if isinstance(key, str) else key.__name__
