"""`run --session` and `resume` that goes on: made, continued, refused; exit codes by how the run ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import pytest

from agentloop.models.offline import OfflineModel
from agentloop.omni.reader import read, trace_files
from agentloop.session import Session
from agentloop.testing import ScriptedModel, collect
from tests.cli.commands import Captured, command

pytestmark = pytest.mark.usefixtures("folder")


def texts(path: Path) -> list[str]:
    payloads = [record["payload"] for record in read(path)]
    return [payload["text"] for payload in payloads if payload.get("type") == "text"]


def cut_before(path: Path, kind: str) -> None:
    """What the disk holds if the process ends right before the last record of this kind."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if json.loads(line)["payload"].get("type") == kind)
    path.write_bytes(b"".join(lines[:last]))


def test_a_session_is_made_and_gone_on_with(folder: Path, capsys: Captured) -> None:
    """The first run makes it, the second goes on in the same file; where it lies is said; the tools may run."""
    assert command(capsys, "run", "--session", "s1", "what is 2 + 3?")[0] == 0
    code, out, err = command(capsys, "run", "--session", "s1", "and 4 * 5?")
    (file,) = trace_files("traces", "s1")
    assert code == 0 and "4 * 5 = 20" in out and f"session s1: {file.path}" in err
    assert [text for text in texts(file.path) if text.endswith("?")] == ["what is 2 + 3?", "and 4 * 5?"]


def test_resume_goes_on_with_a_prompt(folder: Path, capsys: Captured) -> None:
    """By its id and by its newest file, in another folder too, with the recorded model."""
    command(capsys, "run", "--session", "s1", "--traces", "elsewhere", "what is 2 + 3?")
    assert command(capsys, "resume", "s1", "--traces", "elsewhere", "what is 6 * 7?")[0] == 0
    (file,) = trace_files("elsewhere", "s1")
    code, out, _ = command(capsys, "resume", str(file.path), "what is 1 + 1?")
    assert code == 0 and out.endswith("1 + 1 = 2\n")
    assert [text for text in texts(file.path) if text.endswith("?")] == [
        "what is 2 + 3?", "what is 6 * 7?", "what is 1 + 1?",
    ]  # fmt: skip


def test_resume_that_prints_the_answer_alone(folder: Path, capsys: Captured) -> None:
    """`--quiet` is for a pipe here as it is with `run`: with a prompt, and with what waits."""
    command(capsys, "run", "--session", "s1", "what is 2 + 3?")
    assert command(capsys, "resume", "s1", "--quiet", "what is 6 * 7?") == (0, "6 * 7 = 42\n", "")
    (file,) = trace_files("traces", "s1")
    cut_before(file.path, "approval_decision")
    assert command(capsys, "resume", "s1", "--quiet", "--continue") == (0, "6 * 7 = 42\n", "")


def test_resume_of_a_model_that_the_command_does_not_know(folder: Path, capsys: Captured) -> None:
    """A session of a program, with a model of its own: it says whose model that is, and which option helps."""

    async def program() -> None:
        async with Session.create("traces", ScriptedModel(["Noted."]), session_id="s1") as session:
            await collect(session.run("My colour is blue."))

    anyio.run(program)
    code, out, err = command(capsys, "resume", "s1", "1 + 1?")
    assert (code, out) == (2, "")
    said = "agentloop resume: the session had scripted:script (--model chooses another): --model: unknown provider"
    assert err.startswith(said)
    words = ("resume", "s1", "--model", "offline", "--quiet", "1 + 1?")
    assert command(capsys, *words) == (0, "1 + 1 = 2\n", "")


def test_resume_goes_on_with_what_waits(folder: Path, capsys: Captured) -> None:
    """A call that a crash left before its start runs first, under its own id; with nothing that waits it says so."""
    command(capsys, "run", "--session", "s1", "what is 2 + 3?")
    (file,) = trace_files("traces", "s1")
    cut_before(file.path, "approval_decision")
    assert "(not started, runs first)" in command(capsys, "resume", "s1")[1]
    code, out, _ = command(capsys, "resume", "s1", "--continue")
    assert code == 0 and out.endswith("2 + 3 = 5\n")
    code, _, err = command(capsys, "resume", "s1", "--continue")
    assert code == 2 and "expected a PROMPT: nothing in it waits" in err


def test_the_exit_code_is_the_runs(folder: Path, capsys: Captured) -> None:
    """A run that reached its limit of turns ends with 1, recorded, and the session goes on."""
    assert command(capsys, "run", "--session", "s1", "--max-turns", "1", "what is 2 + 3?")[0] == 1
    assert command(capsys, "resume", "s1", "--continue")[0] == 0


def test_denied_on_the_command_line(folder: Path, capsys: Captured) -> None:
    """`--approve deny` holds in a session as without one."""
    command(capsys, "run", "--session", "s1", "--approve", "deny", "what is 2 + 3?")
    (file,) = trace_files("traces", "s1")
    outputs = [r["payload"]["output"] for r in read(file.path) if r["payload"].get("type") == "tool_call_output"]
    assert len(outputs) == 1 and outputs[0].startswith("Tool call denied")


def test_what_cannot_be_gone_on_with(folder: Path, capsys: Captured) -> None:
    """One line on standard error, exit code 2: a session that somebody else writes, names that lead away, no session, two
    places, an older file, a file of another name, two wishes at once."""
    command(capsys, "run", "--session", "s1", "what is 2 + 3?")
    (file,) = trace_files("traces", "s1")
    copy = folder / "copy.jsonl"
    shutil.copy(file.path, copy)
    newer = file.path.with_name("s1_002.jsonl")
    shutil.copy(file.path, newer)
    held = Session.open("s1", "traces", OfflineModel())
    wrong = {
        ("run", "--session", "s1", "x"): "expected no other writer",
        ("run", "--session", "../up", "x"): "expected 1 to 128 of",
        ("run", "--session", "s1", "--trace", "d", "x"): "expected no --trace beside it",
        ("resume", "s2", "x"): "session s2: expected a trace",
        ("resume", str(file.path), "x"): "expected the newest file of its session",
        ("resume", str(copy), "x"): "this one can only be shown",
        ("resume", "s1", "--json", "x"): "expected one of PROMPT, --continue and --json",
        ("resume", "s1", "--quiet"): "--quiet: expected a PROMPT or --continue beside it",
    }
    for words, reason in wrong.items():
        code, out, err = command(capsys, *words)
        said = [line for line in err.splitlines() if not line.startswith("offline model")]
        assert (code, out, len(said)) == (2, "", 1) and reason in said[0], (words, err)
    held.close()
