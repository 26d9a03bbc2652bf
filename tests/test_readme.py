"""The README's Python blocks run, one after another, as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_every_example_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks, joined, run and print what their models say; the session's trace is in the current folder."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 7
    exec(compile("\n".join(blocks), str(README), "exec"), {"__name__": "readme"})
    said = "The sum is 5.\nLes hiboux volent.\nuser What did I ask?\nassistant You asked for a sum.\n"
    assert capsys.readouterr().out == said
    assert len(list((tmp_path / "traces").rglob("*.jsonl"))) == 1


def test_it_is_short() -> None:
    """A reader is through in a few minutes."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < 230
