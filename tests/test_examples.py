"""The examples run as they are shown, without a warning, and say what they claim."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"

SAYS = {
    "agent": "ended: aborted | still queued: ['And then?']",
    "approvals": 'may delete run with {"path":"home"}?',
    "compaction": "messages of each request: [1, 4, 1]",
    "custom_message": "the model saw: ['user']",
    "custom_transport": "You said: good morning",
    "hooks": "tests: continue (not tested)",
    "first_run": "[shout: HELLO]",
    "httpx2_transport": "It is 5.",
    "mcp_tools": "shop__price: 2.5",
    "over_a_socket": "the same events: True",
    "record_and_resume": "['user: My colour is blue.', 'assistant: Noted: blue.']",
    "records_and_guards": "came through: ('parent', 'child')",
    "retries": "Here I am. (12 s later)",
    "server_sent_events": "['user: 2 + 3?', 'text: It is 5.']",
    "session": "tool_call_output Tool call denied by user.",
    "subagents": "tokens so far, children included: 160",
    "snapshot_test": "the run is as stored",
    "steering_and_abort": "steered by: In French, please.",
}

NEEDS = {"httpx2_transport": "httpx2", "mcp_tools": "mcp"}
"""The package that an example needs beside the core."""
LONGEST = {"httpx2_transport": 125, "server_sent_events": 85}
"""Lines of an example that shows a whole thing: an adapter and its provider, a server and a client that comes back."""


def test_each_example_is_listed() -> None:
    """The table of expected lines names every file in `examples/`, so that none goes untested."""
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_runs(name: str) -> None:
    """It ends with 0, warns of nothing, and prints its line."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"the example needs {NEEDS[name]}, which is not installed")
    command = [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        "Traceback" not in done.stderr
    )  # what is only printed, as an error in a finalizer; a log line may stand there
    assert SAYS[name] in done.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_is_short(name: str) -> None:
    """It has fewer than 40 lines, unless it shows a whole thing."""
    assert len((FOLDER / f"{name}.py").read_text("utf-8").splitlines()) < LONGEST.get(name, 40)
