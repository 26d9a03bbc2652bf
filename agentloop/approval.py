"""Approvals: which calls may run, by rules as data (`Policy`) and by a person's answers (`Approvals`).

A policy gives each call one of four verdicts. The strictest rule that matches wins, whatever its place: `forbid`, `deny`,
`ask`, `allow`; without a match, `default`. So no rule can open what another one closes, and policies that are put together
(`first & second`) are as strict as the strictest. An exception is written where it belongs, as the `unless` of a rule.

    policy = Policy([
        Rule("allow", tools="read_*", where=[Condition("path", within="src")]),
        Rule("forbid", tools="shell", where=[Condition("command", regex="sudo.*")]),
    ], default="ask")
    config = Config(model=model, approve=Approvals(policy))

`allow`, `deny` and `forbid` need no question; `forbid` outranks a hook's `allow` as well. A policy alone as
`Config.approve` denies what it would ask about: there is nobody to ask.

Nothing here takes more than linear time in pattern and arguments: patterns are matched without backtracking (globs, and
regular expressions without back references and lookarounds), and the steps for one call are counted. What cannot be decided
within them, or by words alone, counts as a hit of a rule that closes and as none of a rule that allows. Patterns are about
the *whole* text; they do not understand shells, encodings or file systems. What a rule allows should be what it lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from agentloop._approval.automaton import Budget
from agentloop._approval.conditions import Condition
from agentloop._approval.policy_text import from_plain, read_toml, to_plain
from agentloop._approval.questions import Approvals, PolicyLike, Question, decided
from agentloop._approval.rules import STEPS, Rule, Verdict, Word, checked_word, strictest, tuple_of
from agentloop._approval.until_waiting import UntilWaiting, until_waiting
from agentloop._jsontext import parse_json
from agentloop._values import as_tuple
from agentloop.config import Decision
from agentloop.events import ApprovalRequest
from agentloop.tools import ToolInvocation

__all__ = [
    "Approvals",
    "Condition",
    "Policies",
    "Policy",
    "PolicyLike",
    "Question",
    "Rule",
    "UntilWaiting",
    "Verdict",
    "until_waiting",
]

_DECISIONS: Final[Mapping[Word, Decision]] = {"allow": "allow", "ask": "deny", "deny": "deny", "forbid": "forbidden"}


def _default(value: Any) -> Word:
    return checked_word(value, "default")


class _Approves:
    """What makes a policy fit `Config.approve`."""

    def decide(self, name: str, arguments: Mapping[str, Any]) -> Verdict:
        """See `PolicyLike`."""
        raise NotImplementedError  # pragma: no cover  (each subclass has its own)

    def policy(self, call: ToolInvocation) -> Decision | None:
        """The verdict about a call, which the loop asks for first; None: somebody is to be asked."""
        verdict = self.decide(call.name, call.arguments)
        return None if verdict.word == "ask" else _DECISIONS[verdict.word]

    def __call__(self, request: ApprovalRequest) -> Decision:
        """The answer where somebody is to be asked. There is nobody here: what is not allowed is denied."""
        try:
            arguments = parse_json(request.arguments)
        except ValueError:
            return "deny"
        if not isinstance(arguments, dict):
            return "deny"
        return _DECISIONS[self.decide(request.tool_name, arguments).word]

    def __and__(self, other: PolicyLike) -> Policies:
        """Both: the strictest of the two verdicts."""
        return Policies((self, other))


def _rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple_of(Rule, "Policy.rules", rules)


@attrs.frozen
class Policy(_Approves):
    """`rules`, of which the strictest that matches wins, and the verdict where none matches (`default`).

    Usable as `Config.approve`, which denies what it would `ask` about, or within `Approvals` where a person is to be
    asked. Immutable; one serves many runs.
    """

    rules: tuple[Rule, ...] = attrs.field(default=(), converter=_rules)
    default: Word = attrs.field(default="ask", converter=_default)

    def decide(self, name: str, arguments: Mapping[str, Any]) -> Verdict:
        """The verdict about a call. Never raises: a rule that fails forbids."""
        budget = Budget(STEPS)
        verdicts = [self._of_rule(number, rule, name, arguments, budget) for number, rule in enumerate(self.rules)]
        found = [verdict for verdict in verdicts if verdict is not None]
        return strictest(found) if found else Verdict(self.default, "no rule is about this call")

    def _of_rule(
        self, number: int, rule: Rule, name: str, arguments: Mapping[str, Any], budget: Budget
    ) -> Verdict | None:
        where = f"rules[{number}]"
        try:
            if not rule.matches(name, arguments, budget):
                return None
        except Exception as error:
            return Verdict("forbid", f"{where} failed: {type(error).__name__}: {error}")
        return Verdict(rule.verdict, f"{where}: {rule.reason}" if rule.reason else where)

    @classmethod
    def from_toml(cls, source: str | Path) -> Policy:
        """The policy in a TOML file (a `Path`) or text. Raises `PolicyError` with line and key, `OSError` for the file.

        default = "ask"

        [[rules]]
        verdict = "allow"                     # allow, ask, deny, forbid
        tools = ["read_*", "list_files"]      # globs; one text, or several
        where = [{ argument = "path", within = "src" }]
        unless = [{ argument = "path", glob = "*.key" }]
        reason = "sources may be read"
        """
        plain, place = read_toml(source)
        return cls(*from_plain(plain, place))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Policy:
        """The policy in plain data, as `to_data` gives it. Raises `PolicyError` with the path."""
        return cls(*from_plain(data))

    def to_data(self) -> dict[str, Any]:
        """Plain data that JSON and TOML can say. Raises `PolicyError` for a rule with a function (`when`)."""
        return to_plain(self.rules, self.default)


@attrs.frozen
class Policies(_Approves):
    """Several policies at once (`members`): the strictest verdict of all counts. Raises `ValueError` when there is none."""

    members: tuple[PolicyLike, ...] = attrs.field(converter=as_tuple)

    def __attrs_post_init__(self) -> None:
        """Refuse an empty list: nobody would decide."""
        if not self.members:
            raise ValueError("members: expected a policy at least, got none")

    def decide(self, name: str, arguments: Mapping[str, Any]) -> Verdict:
        """The strictest verdict; a member that fails forbids. Never raises."""
        return strictest([decided(member, name, arguments) for member in self.members])
