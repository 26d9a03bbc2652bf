"""A command in this process, where standard input is no terminal."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from agentloop.cli import main

Captured: TypeAlias = pytest.CaptureFixture[str]


def command(capsys: Captured, *words: str) -> tuple[int, str, str]:
    """Its exit code, and what it wrote to standard output and standard error."""
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err
