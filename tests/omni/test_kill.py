"""A recorded run, killed at random moments, goes on from its trace until it is done."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentloop.messages import ToolResultMessage
from agentloop.omni.resume import UNKNOWN_OUTCOME, resume_session

KILLS = 300 if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else 4
WORKER = Path(__file__).with_name("kill_worker.py")


def live(traces: Path, effects: Path, lines: int) -> tuple[int, list[str]]:
    """One life: killed when it has told so many events. Its exit status, and what it had told."""
    told: list[str] = []
    process = subprocess.Popen([sys.executable, str(WORKER), str(traces), str(effects)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        while len(told) < lines and (line := process.stdout.readline()):
            told.append(line.decode())
        process.kill()
    return process.returncode, told


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Killed again and again: every life resumes, every request is legal, no tool runs twice, nothing that was told
    is lost, and the task gets done."""
    chance = random.Random(7)
    kills = sessions = 0
    while kills < KILLS:
        sessions += 1
        traces, effects = tmp_path / f"traces{sessions}", tmp_path / f"effects{sessions}"
        status, told = -9, ["first life"]
        while status != 0:
            status, told = live(traces, effects, chance.randint(1, 70))
            assert status in (0, -9), "a life ended by itself, with an error"
            kills += status == -9
            if not list(traces.glob("*/*.jsonl")):
                continue
            resumed = resume_session(traces, "s1")
            known = {m.tool_call_id for m in resumed.messages if isinstance(m, ToolResultMessage)}
            acknowledged = {
                line.split()[1] for line in told if line.startswith("message_end") and len(line.split()) == 2
            }
            assert acknowledged <= known
        ran = Counter(effects.read_text().split())
        assert set(ran.values()) == {1}, "a call ran twice"
        results = {m.tool_call_id: m.text for m in resumed.messages if isinstance(m, ToolResultMessage)}
        for turn in range(5):
            for name in "ab":
                key = f"{turn}{name}"
                assert results[f"call_{key}"] in (
                    f"{key} is written",
                    UNKNOWN_OUTCOME,
                    "[interrupted: process exited before the tool finished]",
                )
                assert key in ran or results[f"call_{key}"] != f"{key} is written"
