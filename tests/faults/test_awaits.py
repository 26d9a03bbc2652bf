"""Faults at every wait of sessions, recorders, agents and adapters: by default a few pairs of each, slow every fortieth."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import anyio.lowlevel
import pytest

from agentloop import Config, Context, agent_loop
from agentloop.model import Finish

from .adapters import ADAPTERS
from .awaits import LEFT_OUT, awaits, reason
from .stage import Stage, pairs, replay
from .stories import RUNS, STORIES

pytestmark = pytest.mark.anyio

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"

ALL: dict[str, Any] = {**STORIES, **ADAPTERS}
TESTED = [name for name in ALL if SLOW or name in ("chat, kept", "gemini, kept") or not name.endswith("kept")]
"""By default one adapter of each kind keeps its client; the matrix itself plays all."""


@pytest.mark.parametrize("name", TESTED)
async def test_every_fault_at_every_wait(name: str) -> None:
    """Legal to where somebody left, cleaned up, nothing left, in time; what is stored is read, legal and gone on with."""
    tried = await pairs(ALL[name], stride=40 if SLOW else 3999, first=2999 - 31 * len(name))
    assert tried.failures == []
    assert tried.waited


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"] if SLOW else ["asyncio"])
@pytest.mark.parametrize("name", list(RUNS))
async def test_every_fault_at_every_wait_of_a_run(name: str) -> None:
    """The runs of the other matrix, their waits alone."""
    tried = await pairs(RUNS[name], callers=False, stride=40 if SLOW else 1499, first=997 - 31 * len(name))
    assert tried.failures == []
    assert tried.points > 50


async def test_a_wait_is_known_by_its_line() -> None:
    """From the front of a run down to what it waits for, and from a job down to the stream that it reads."""
    seen: set[Any] = set()

    async def model(request: Any) -> AsyncIterator[Any]:
        await anyio.lowlevel.checkpoint()
        yield "a"
        yield Finish("stop")

    async def story(stage: Stage) -> None:
        await stage.follow(agent_loop(["go"], Context(), Config(model=model)))

    for point in (await replay(story)).points.points:
        seen.update((point.role, spot.file, spot.function) for spot in point.spots)
    assert seen >= {
        ("consumer", "loop.py", "_step"),
        ("driver", "_run.py", "until"),
        ("job", "_ask.py", "_stream"),
    }


def test_what_is_left_out_is_there() -> None:
    """Each reason is about awaits that there are."""
    for start in LEFT_OUT:
        assert any(f"{each.file}: {each.words}".startswith(start) for each in awaits()), start
    assert any(reason(each) is None for each in awaits())
