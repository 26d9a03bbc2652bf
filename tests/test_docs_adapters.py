"""The page about adapters: its Python blocks run as written, and what it lists is what there is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop.testing.contract import CHECKS, check_model

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def page() -> dict[str, Any]:
    """What the page's blocks define, one after another; the adapter that its battery holds is the example's."""
    pytest.importorskip("httpx2", reason="the page's adapter is the example over httpx2, which is not installed")
    example = runpy.run_path(str(ROOT / "examples" / "httpx2_transport.py"))
    names: dict[str, Any] = {"__name__": "adapters", "SmallChat": example["SmallChat"]}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), "docs/adapters.md", "exec"), names)
    return names


def test_the_battery_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks run, and the adapter keeps every rule by the provider that the page writes."""
    anyio.run(page()["hold"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"kept    {check.name}" for check in CHECKS]


def test_what_a_small_transport_keeps_and_what_not() -> None:
    """The three-line transport runs through the battery as well: it is fine but for what it does not do."""
    findings = anyio.run(check_model, page()["EchoProvider"]())
    assert {finding.check for finding in findings if finding.outcome == "broken"} >= {"streams", "ending"}
    assert {finding.check for finding in findings if finding.outcome == "kept"} >= {"names", "text", "chunks"}


def test_each_check_is_listed() -> None:
    """The table at the page's end names every check, and nothing else."""
    table = PAGE.split("| check | rule |")[1]
    assert {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    } == {check.name for check in CHECKS}
