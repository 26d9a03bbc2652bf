"""Every fault at every point of small runs; by default a few pairs of each, in the slow profile every fifth."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from agentloop import Config, Context, agent_loop, tool
from agentloop.testing import ScriptedModel, call, collect

from .matrix import FAULTS, Points, counted, pairs, replay
from .scenarios import SCENARIOS

pytestmark = pytest.mark.anyio

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"


@pytest.mark.parametrize("name", list(SCENARIOS))
async def test_every_fault_at_every_point(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Legal to where the consumer left, ended if it did not leave, cleaned up, nothing left, all in time."""
    tried, failures = await pairs(SCENARIOS[name], stride=5 if SLOW else 307, first=len(name))
    with capsys.disabled():
        if SLOW:
            print(f" {name}: {tried} pairs")
    assert failures == []
    assert tried >= 1


@pytest.mark.parametrize("name", list(SCENARIOS))
async def test_without_a_fault_a_scenario_is_whole(name: str) -> None:
    """Each scenario ends by itself and has points of all kinds, so that the matrix is not empty."""
    play = await replay(SCENARIOS[name])
    kinds = {(caller, waits) for _, caller, waits in play.points.seen}
    assert kinds == {(False, False), (True, False), (True, True)}
    assert len(play.points.seen) > 50
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("at", range(0, 40, 2))
async def test_an_abort_between_a_job_and_its_first_line(at: int) -> None:
    """A tool, a hook or a request that was scheduled before the abort looks before its first line (G21)."""
    points = Points()
    begun: list[bool] = []
    waits = itertools.count()

    def hit(name: str, caller: bool = True) -> None:
        if next(waits) == at:
            points.signal.abort("now")

    def begin(*args: Any) -> None:
        begun.append(points.signal.aborted)

    @tool(name="a")
    async def a() -> str:
        """Begin."""
        begin()
        return ""

    async def before(invocation: Any) -> None:
        begin()

    points.hit = hit  # type: ignore[assignment,method-assign]
    with counted(points):
        model = ScriptedModel([[begin, call("a"), call("a")], "done"])
        await collect(
            agent_loop("go", Context(tools=[a]), Config(model=model, abort=points.signal, before_tool_call=before))
        )
    assert True not in begun
