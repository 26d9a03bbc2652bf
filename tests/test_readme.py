"""The README's Python blocks run, one after another, as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks, joined, run and print what the first one's model says."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    exec(compile("\n".join(blocks), str(README), "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == "The sum is 5."


def test_it_is_short() -> None:
    """A reader is through in a few minutes."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < 170
