"""One rule about calls, and the verdicts: allow, ask, deny, forbid, from the mildest to the strictest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from agentloop._approval.automaton import Budget, Pattern, TooCostly
from agentloop._approval.conditions import Condition
from agentloop._approval.patterns import glob

Word: TypeAlias = Literal["allow", "ask", "deny", "forbid"]
WORDS: Final[tuple[Word, ...]] = get_args(Word)
"""From the mildest to the strictest."""

STEPS: Final = 1_000_000
"""Steps that all patterns of a policy together may take for one call: well under a second."""


@attrs.frozen
class Verdict:
    """What a policy says about one call (`word`), and why."""

    word: Word
    reason: str
    """For people: which rule, and its own reason."""


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """The strictest of them; of equal ones the first. Raises `ValueError` when there is none."""
    return max(verdicts, key=lambda verdict: WORDS.index(verdict.word))


def checked_word(value: Any, where: str = "verdict") -> Word:
    """The value, if it is a verdict's word. Raises `ValueError`."""
    if not isinstance(value, str) or value not in WORDS:
        raise ValueError(f"{where}: expected one of {', '.join(WORDS)}, got {value!r}")
    return value


def tuple_of(kind: type, where: str, items: Any) -> tuple[Any, ...]:
    """A sequence of one class, for converters. Raises `TypeError`, naming the place, for anything else."""
    if not isinstance(items, Iterable):
        one = f"; write [{kind.__name__}(…)]" if isinstance(items, kind) else ""
        raise TypeError(f"{where}: expected a list of {kind.__name__}, got {type(items).__name__}{one}")
    given = tuple(items)
    for index, item in enumerate(given):
        if not isinstance(item, kind):
            raise TypeError(f"{where}[{index}]: expected a {kind.__name__}, got {type(item).__name__}")
    return given


def _names(tools: str | Iterable[str]) -> tuple[str, ...]:
    return (tools,) if isinstance(tools, str) else tuple(tools)


def _where(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    return tuple_of(Condition, "Rule.where", conditions)


def _unless(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    return tuple_of(Condition, "Rule.unless", conditions)


@attrs.frozen
class Rule:
    """A `verdict` for the calls of some tools, under some conditions; `reason` is for people.

    It matches a call if one of `tools` (globs of names) does, all of `where` hold and none of `unless`, and `when` returns
    True: a sync function of the tool's name and the arguments. What that raises, or returns beside True and False, forbids
    the call. A rule that allows must be certain to match; for any other a doubt is enough (see `Condition`).

    Raises `ValueError` for a verdict or a pattern that cannot be read, `TypeError` for anything but conditions.
    """

    verdict: Word = attrs.field(converter=checked_word)
    tools: tuple[str, ...] = attrs.field(default=("*",), converter=_names)
    where: tuple[Condition, ...] = attrs.field(default=(), converter=_where)
    unless: tuple[Condition, ...] = attrs.field(default=(), converter=_unless)
    reason: str | None = None
    when: Callable[[str, Mapping[str, Any]], bool] | None = None
    _tools: tuple[Pattern, ...] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read the names, once."""
        try:
            patterns = tuple([glob(name) for name in self.tools])
        except (ValueError, TypeError) as error:
            raise ValueError(f"tools: {error}") from None
        if not patterns:
            raise ValueError("tools: expected a name at least, got none")
        object.__setattr__(self, "_tools", patterns)

    @property
    def opens(self) -> bool:
        """Whether it allows."""
        return self.verdict == "allow"

    def matches(self, name: str, arguments: Mapping[str, Any], budget: Budget) -> bool:
        """Whether it is about this call. Raises what `when` raises, and `TypeError` for what it returns else."""
        surely = self.opens
        if not self._names(name, budget):
            return False
        if not all(condition.holds(arguments, budget, surely=surely) for condition in self.where):
            return False
        if any(condition.holds(arguments, budget, surely=not surely) for condition in self.unless):
            return False
        return self.when is None or _said(self.when(name, arguments))

    def _names(self, name: str, budget: Budget) -> bool:
        try:
            return any(pattern.matches(name, budget) for pattern in self._tools)
        except TooCostly:
            return not self.opens


def _said(value: Any) -> bool:
    if value is True or value is False:
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(f"when: expected True or False, got {type(value).__name__}")
