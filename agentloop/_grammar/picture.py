"""The order of events as a drawing, made from the tables of states.

A line is an event; two, if the second always follows directly; or several that may come in any order (`|`). In front
stands how often it comes within what it is indented under: once (nothing), at most once (`?`), any number of times (`*`).
Made once, for people: nothing here is quick.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from agentloop._grammar.tables import State, spelled

Edge: TypeAlias = tuple[str, str, str]
"""A state, an event as the tables spell it, and the state that it leads to."""
States: TypeAlias = Mapping[str, State]


def edges_of(states: Iterable[State]) -> list[Edge]:
    """Every step of a table."""
    return [(state.name, spelled(key), to.name) for state in states for key, step in state.items() for to in step[:2]]


def reached(edges: Sequence[Edge], starts: Iterable[str], without: Collection[str] = ()) -> set[str]:
    """The states that can be reached, the starts among them."""
    found = set(starts)
    before = -1
    while before != len(found):
        before = len(found)
        found |= {to for state, key, to in edges if state in found and key not in without}
    return found


class Stretch:
    """The events from an opening one to a closing one."""

    def __init__(self, edges: Sequence[Edge], opening: str, closing: str) -> None:
        self.entries = {to for _, key, to in edges if key == opening}
        inside = reached(edges, self.entries, without=(closing,))
        self.closing = closing
        self.ends = {state for state, key, _ in edges if key == closing and state in inside}
        self.edges = [edge for edge in edges if edge[0] in inside and edge[1] != closing]

    def mark(self, key: str) -> str:
        """How often the event comes."""
        after = reached(self.edges, [to for _, each, to in self.edges if each == key])
        if any(state in after for state, each, _ in self.edges if each == key):
            return "*"
        return "?" if self.ends & reached(self.edges, self.entries, without=(key,)) else " "

    def in_order(self) -> list[str]:
        """The events, each behind those that can only come before it; else as the tables list them."""
        rest = list(dict.fromkeys(key for _, key, _ in self.edges))
        later = {key: self._later(key) for key in rest}
        result: list[str] = []
        while rest:
            free = (key for key in rest if not any(key in later[one] and one not in later[key] for one in rest))
            result.append(next(free, rest[0]))
            rest.remove(result[-1])
        return result

    def _later(self, key: str) -> set[str]:
        after = reached(self.edges, [to for _, each, to in self.edges if each == key])
        return {each for state, each, _ in self.edges if state in after}

    def partner(self, key: str) -> str | None:
        """The event that always follows directly on this one, and only on it."""
        targets = {to for _, each, to in self.edges if each == key}
        following = {each for state, each, _ in self.edges if state in targets}
        if targets & self.ends or len(following) != 1:
            return None
        (second,) = following
        sources = {state for state, each, _ in self.edges if each == second}
        return second if sources <= targets and {each for _, each, to in self.edges if to in sources} == {key} else None

    def lines(self, inside: Mapping[str, Sequence[str]], briefly: Mapping[str, str] | None = None) -> list[str]:
        """The stretch behind its opening event, which is not among the lines.

        `inside` has the lines behind other openings; `briefly` what to say of those that are only named.
        """
        brief = briefly or {}
        keys = self.in_order()
        chains = {key: [key] if key in inside else self._chain(key) for key in keys}
        seconds = {key for chain in chains.values() for key in chain[1:]}
        result = []
        for key in keys:
            alike = [one for one in keys if self._steps(one) == self._steps(key)]
            if key in seconds or key != alike[0]:
                continue
            rest = [f"… {brief[key]}"] if key in brief else chains[key][1:]
            result.append("  ".join([f"  {self.mark(key)} {' | '.join(alike)}", *rest]))
            result += ["  " + line for line in inside.get(key, ()) if key not in brief]
        return [*result, f"    {self.closing}"] if self.closing else result

    def _chain(self, key: str) -> list[str]:
        chain = [key]
        while (second := self.partner(chain[-1])) is not None:
            chain.append(second)
        return chain

    def _steps(self, key: str) -> set[tuple[str, str]]:
        return {(state, to) for state, each, to in self.edges if each == key}


def folded(edges: Sequence[Edge], opening: str, closing: str) -> list[Edge]:
    """The edges with the stretch between two events as one event, the opening one."""
    result = []
    for state, key, to in edges:
        if key == opening:
            inside = reached(edges, [to], without=(closing,))
            result += [(state, key, end) for before, each, end in edges if each == closing and before in inside]
        elif key != closing:
            result.append((state, key, to))
    return list(dict.fromkeys(result))


def draw(order: States, calls: States, blocks: States, call_begins: Collection[str]) -> str:
    """The drawing. In a run, a call's beginnings stand for the whole call, which is drawn by itself: calls interleave."""
    goes_on = {key for _, key, _ in edges_of(calls.values())} - set(call_begins)
    edges = [
        (state, "call" if key in call_begins else key, to)
        for state, key, to in edges_of(order.values())
        if not (state.endswith((" calls", " answer", " answering")) and key in goes_on)
    ]
    inside = {"MessageUpdate": _block_lines(blocks), "call": _call_lines(calls)}
    return "\n".join(_drawn(edges, inside))


def _drawn(edges: list[Edge], inside: dict[str, list[str]]) -> list[str]:
    for opening, closing, briefly in (
        ("MessageStart(reply)", "MessageEnd(reply)", {}),
        ("RequestBegin", "RequestEnd", {}),
        ("CompactionBegin", "CompactionEnd", {"RequestBegin": "RequestEnd", "call": "as in a turn"}),
        ("TurnStart", "TurnEnd", {}),
    ):
        inside[opening] = Stretch(edges, opening, closing).lines(inside, briefly)
        edges = folded(edges, opening, closing)
    legend = "(? at most once   * any number of times   | one of them   calls run side by side)"
    return ["    AgentStart", *Stretch(edges, "AgentStart", "AgentEnd").lines(inside), legend]


def _call_lines(calls: States) -> list[str]:
    edges = [("", "call", "called"), *edges_of(calls.values()), ("answered", "", "")]
    return Stretch(edges, "call", "").lines({})


def _block_lines(blocks: States) -> list[str]:
    result = []
    for key, (to, _, _) in blocks["closed"].items():
        parts = [spelled(key)]
        parts += [
            spelled(one) + (" …" if after is to else "") for one, (after, _, _) in to.items() if to.name != "closed"
        ]
        result.append("    | " + "  ".join(parts))
    return result
