"""The contract of a model adapter as a battery of checks, for adapters of one's own and for ours.

    class Acme(WireProvider):                     # how the adapter is made, and how a reply looks on its wire
        ...

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_contract(check):
        with Acme() as provider:
            await check(provider)                 # raises ContractBroken; unittest.SkipTest where there is nothing to check

Without pytest, `await check_model(provider)` gives a list of findings. A `Provider` plays what a check wants answered; a
check drives the adapter, mostly through the loop, and holds what comes against the contract of `agentloop.model`.
docs/adapters.md tells the contract in prose. Importing this needs nothing but the core.
"""

from __future__ import annotations

import unittest
from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio
import attrs

from agentloop.testing import _contract_checks as checks
from agentloop.testing._contract_parts import CannotPlay, ContractBroken, Provider, Reply, WireProvider, broken

__all__ = [
    "CHECKS",
    "CannotPlay",
    "Check",
    "ContractBroken",
    "Finding",
    "Provider",
    "Reply",
    "WireProvider",
    "check_model",
]

LIMIT = 20.0
"""Longest time of one check, in seconds."""


@attrs.frozen
class Check:
    """One rule of the contract, by its `name`. Awaiting `check(provider)` checks it; `run` is the check itself.

    Raises `ContractBroken` when the adapter breaks it, `unittest.SkipTest` (which pytest takes for a skip as well) when
    the provider cannot play what it takes.
    """

    name: str
    rule: str
    """The rule, a sentence."""
    run: Callable[[Provider], Awaitable[None]] = attrs.field(repr=False)

    def __str__(self) -> str:
        return self.name

    async def __call__(self, provider: Provider, /, *, limit: float = LIMIT) -> None:
        """Check one adapter; `limit` is the longest time, in seconds."""
        try:
            with anyio.move_on_after(limit) as scope:
                await self.run(provider)
            if scope.cancelled_caught:
                broken("an end", f"none within {limit:g} s")
        except CannotPlay as reason:
            raise unittest.SkipTest(f"{self.name}: this provider never does that ({reason})") from None
        except ContractBroken as error:
            raise ContractBroken(f"{self.name}: {error}. {self.rule}") from error.__cause__

    def words(self, said: BaseException) -> str:
        """What a breach or a skip says, without the name that it begins with."""
        return str(said).removeprefix(f"{self.name}: ")


def _check(run: Callable[[Provider], Awaitable[None]]) -> Check:
    return Check(run.__name__, " ".join((run.__doc__ or "").split()), run)


CHECKS: Sequence[Check] = tuple(map(_check, checks.ALL))
"""All checks, the simple ones first."""


@attrs.frozen
class Finding:
    """What the check of this name (`check`) came to; `words` say why it was not kept."""

    check: str
    outcome: str
    """`kept`, `broken` or `skipped`."""
    words: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:8}{self.check}{': ' if self.words else ''}{self.words}"


async def check_model(provider: Provider, only: Iterable[Check] = CHECKS) -> list[Finding]:
    """Hold an adapter against the checks; never raises for a breach."""
    findings = []
    for check in only:
        try:
            await check(provider)
        except ContractBroken as error:
            findings.append(Finding(check.name, "broken", check.words(error)))
        except unittest.SkipTest as reason:
            findings.append(Finding(check.name, "skipped", check.words(reason)))
        else:
            findings.append(Finding(check.name, "kept"))
    return findings
