"""The fuzz targets: their corpus passes, their mutator finds what is broken, and what once broke stays mended."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import mutate
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_and_a_few_changes_of_it(name: str) -> None:
    """Each target takes its corpus, and fifty random changes of it, without breaking a promise."""
    seeds, generator = mutate.corpus(name), random.Random(0)
    assert len(seeds) >= 2
    for data in [*seeds, *[mutate.mutated(generator, seeds)[:2_048] for _ in range(50)]]:
        TARGETS[name](data)


def test_every_folder_of_the_corpus_is_a_target() -> None:
    """No target without a corpus, no corpus without a target."""
    assert {path.name for path in mutate.CORPUS.iterdir()} == set(TARGETS)


def test_the_command() -> None:
    """`python -m fuzz --plain` runs a target for a moment and says how many inputs it took."""
    command = [sys.executable, "-m", "fuzz", "docstring", "--plain", "--seconds", "0.2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "nothing broke" in done.stdout


def test_what_is_broken_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target that breaks ends the run with exit code 1, and the input that did it is kept."""
    from fuzz import __main__ as command

    def broken(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError("broken")

    monkeypatch.setattr(command, "HERE", tmp_path)
    monkeypatch.setattr("fuzz.targets.TARGETS", {"sse": broken})
    assert command.run_plain("sse", 10.0) == 1
    [kept] = (tmp_path / "found" / "sse").iterdir()
    assert b"\xff" in kept.read_bytes()
