"""The soak: it plays, and what is not flat or not as it should be is told."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("benchmarks", reason="needs the folder benchmarks/, run as `python -m pytest`")

from benchmarks import soak as soaking
from benchmarks.soak import ROUNDS, Level, Soak, main

FLAT = {"plays": 100, "resident": 50_000_000, "blocks": 100_000, "tasks": 1, "threads": 1, "files": 9}


def soak_with(name: str | None = None, growth: float = 0.0) -> Soak:
    """A soak whose levels are flat but for one figure, which grows with each round by a share of itself."""
    soak = Soak("asyncio", "0", 1.0)
    for number in range(ROUNDS):
        figures: dict[str, Any] = dict(FLAT)
        if name is not None:
            figures[name] += round(figures[name] * growth * number)
        soak.levels.append(Level(**figures))
    return soak


def test_flat_is_flat() -> None:
    """Nothing is said of levels that stay."""
    assert soak_with().grown() == []


@pytest.mark.parametrize(("name", "growth"), [("blocks", 0.05), ("resident", 0.1), ("tasks", 1), ("files", 1)])
def test_growth_is_told(name: str, growth: float) -> None:
    """Each figure that goes on growing is named."""
    assert [line.split(":")[0] for line in soak_with(name, growth).grown()] == [name]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_short_soak(backend: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It plays random runs, none of which fails, and says how many there were."""
    monkeypatch.setattr(soaking, "ROUNDS", 3)
    main(["--minutes", "0.01", "--backend", backend, "--seed", "7"])  # too short to judge memory by
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("seed 7, ")
    assert " 0 failures; " in told[-1], "\n".join(told)
    assert "tasks" not in told[-1]


def test_a_play_that_fails_is_told_with_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed plays it again; the exit code is 1."""

    class Failing:
        def __init__(self, seed: str) -> None:
            self.events = self.ended = 0

        async def play(self) -> None:
            raise AssertionError("not as it should be")

    monkeypatch.setattr(soaking, "ROUNDS", 3)
    monkeypatch.setattr(soaking, "Play", Failing)
    assert main(["--minutes", "0.0005", "--backend", "asyncio", "--seed", "7"]) == 1
    told = capsys.readouterr().out
    assert "--play 7:asyncio:1\n" in told
    assert "not as it should be" in told
