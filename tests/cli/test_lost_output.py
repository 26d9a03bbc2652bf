"""An output that takes nothing: a reader that has left, a full disk, a closed stream; and Ctrl-C where no run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.cli import main

COMMANDS = {
    "run": ["run", "what is 1+1"],
    "run --json": ["run", "--json", "what is 1+1"],
    "run --quiet": ["run", "--quiet", "what is 1+1"],
    "check": ["check", "one.jsonl"],
    "replay": ["replay", "one.jsonl"],
    "resume": ["resume", "one.jsonl"],
    "diff": ["diff", "one.jsonl", "two.jsonl"],
    "help": ["--help"],
    "version": ["--version"],
}
SOME = ["run", "run --json", "check", "help"]
"""One that streams, one that writes bytes, one that prints, and what the parser of the command line says."""

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two different traces."""
    monkeypatch.chdir(tmp_path)
    for name, prompt in (("one", "what is 1+1"), ("two", "what is 2+2")):
        assert main(["run", "--quiet", "--trace", "traces", prompt]) == 0
        (trace,) = Path("traces").glob("*/*.jsonl")
        trace.rename(f"{name}.jsonl")
    return tmp_path


def ended(words: list[str], stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "agentloop", *words],
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=BUFFERED, timeout=60, check=False,
    )  # fmt: skip
    return ran.returncode, (ran.stderr or b"").decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_that_has_left_ends_every_command_quietly(folder: Path, name: str) -> None:
    """Also one whose few lines are sent only at its end."""
    read, write = os.pipe()
    os.close(read)
    try:
        code, said = ended(COMMANDS[name], write)
    finally:
        os.close(write)
    assert code == 141
    assert "Error" not in said and "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("name", SOME)
def test_an_output_that_is_full_is_said_in_one_line(folder: Path, name: str) -> None:
    """No traceback, and an exit code of its own."""
    with open("/dev/full", "wb") as full:
        code, said = ended(COMMANDS[name], full.fileno())
    assert code == 74
    assert said.splitlines()[-1] == "agentloop: the output cannot be written: No space left on device"
    assert "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_standard_error_that_is_full(folder: Path) -> None:
    """Nobody can be told; the exit code tells it."""
    with open("/dev/full", "wb") as full:
        code, _ = ended(["run", "what is 1+1"], subprocess.DEVNULL, full.fileno())
    assert code == 74


@pytest.mark.parametrize("name", SOME)
def test_an_output_that_was_closed_beforehand(folder: Path, name: str) -> None:
    """Nothing is shown, and everything else is as ever; what is for standard error does not come to standard output either."""
    command = [sys.executable, "-m", "agentloop", *COMMANDS[name]]
    for closing in (">&-", "2>&-"):
        ran = subprocess.run(
            ["sh", "-c", f'exec "$@" {closing}', "sh", *command], capture_output=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr.decode()
        assert b"Traceback" not in ran.stderr
    wrong = [sys.executable, "-m", "agentloop", "check", "missing"]
    ran = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *wrong], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, b"")


def _interruptible() -> None:
    """What a shell's background job starts is born deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_before_the_run(folder: Path) -> None:
    """While tools are loaded, say: the command ends at once, without a traceback."""
    Path("slow.py").write_text("import sys\nprint('loading', flush=True)\nsys.stdin.read()\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "agentloop", "run", "--tools", "slow.py:x", "hello"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_interruptible,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")
