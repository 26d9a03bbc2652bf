"""What the kernel does in each handed scenario, line for line. `docs/scenarios.md` says where it differs from its peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentloop.testing.scenarios import load, run_scenario

EXPECTED = Path(__file__).parent / "expected"
NAMES = sorted(path.stem for path in EXPECTED.glob("*.jsonl"))


def test_every_scenario_has_its_output(shared: Path) -> None:
    """No scenario is left out, and no output is left over."""
    assert sorted(path.stem for path in (shared / "scenarios/scenarios").glob("*.json")) == NAMES


def settled(lines: list[dict[str, Any]]) -> list[Any]:
    """The lines without what trio shuffles: which of the calls that begin or end at one moment does so first.

    A call's own lines keep their order among themselves.
    """
    shuffled = ("tool_invoked", "tool_execution_end")
    kept: list[Any] = [
        {**line, "executed": sorted(line["executed"])} if line["type"] == "result" else line
        for line in lines
        if line["type"] not in shuffled
    ]
    return kept + sorted((line for line in lines if line["type"] in shuffled), key=lambda line: str(line["call"]))


@pytest.mark.anyio
@pytest.mark.parametrize("name", NAMES)
async def test_expected(name: str, shared: Path, anyio_backend_name: str) -> None:
    """The scenario's output is exactly what is stored; on trio but for the order within one moment."""
    expected = [json.loads(line) for line in (EXPECTED / f"{name}.jsonl").read_text().split("\n") if line]
    lines: list[dict[str, Any]] = []
    await run_scenario(load(shared / f"scenarios/scenarios/{name}.json"), lines.append)
    seen = json.loads(json.dumps(lines))
    if anyio_backend_name == "trio":
        assert settled(seen) == settled(expected)
    else:
        assert seen == expected
