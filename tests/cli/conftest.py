"""What the tests of the command get: a place to run it in."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
