"""`agentloop run --mcp`: servers on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.cli import main
from agentloop.cli._mcp import _free, _name
from tests.mcp_support import FOLDER, MARK, mark, needs_mcp, nothing_left

needs_mcp()

PYTHON = sys.executable


def test_a_command_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tools of both are offered beside the example tools; a server that fails is a remark on standard error, where
    nothing of what servers say themselves appears."""
    config = tmp_path / "servers.json"
    broken = {"command": PYTHON, "args": [str(FOLDER / "rude.py"), "exit"]}
    noisy = {"command": PYTHON, "args": [str(FOLDER / "rude.py"), "noisy"]}
    config.write_text(json.dumps({"mcpServers": {"broken": broken, "noisy": noisy}}))
    with nothing_left():
        code = main(["run", "--mcp", f"{PYTHON} {FOLDER / 'rude.py'} kept", "--mcp-config", str(config), PROMPT])
    out, err = capsys.readouterr()
    assert code == 0
    assert "noisy__act answered: heard" in out
    assert "mcp: broken: ended with exit code 7" in err
    assert "starting as kept" not in err and "debug: here" not in out + err


PROMPT = 'call noisy__act {"do": "noise"}'


def test_an_interrupt_ends_run_and_server() -> None:
    """Ctrl-C in the middle of a call: exit code 130, and the server's process is gone."""
    command = [PYTHON, "-W", "error", "-m", "agentloop", "run", "--json"]
    command += ["--mcp", f"env {MARK}={mark()} {PYTHON} {FOLDER / 'rude.py'} kept", 'call rude__act {"do": "hang"}']
    with nothing_left():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            for line in process.stdout:
                if '"tool_execution_update"' in line:
                    os.kill(process.pid, signal.SIGINT)
                    break
            rest, said = process.stdout.read(), process.stderr.read()
        assert process.wait() == 130
    assert '"agent_end"' in rest and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mcp", ""], "--mcp: expected a command or an address, got ''"),
        (["--mcp", "say 'hello"], '--mcp: expected a command or an address, got "say \'hello"'),
        (["--mcp-config", "/no/such/file"], "--mcp-config: "),
    ],
)
def test_wrong_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be a server is an error of the command line."""
    assert main(["run", *words, "hello"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/server-files --root .", "server-files"),
        ("npx -y @acme/server.maps", "server"),
        ("python3.12 tools/weather.py --port 1", "weather"),
        ("uv run weather", "weather"),
        ("node", "node"),
        ("env A=b python -u serve.py", "serve"),
        ("./-", "server"),
    ],
)
def test_names(command: str, name: str) -> None:
    """A server is named after its program, or after what a launcher is told to run; a second of a name gets a number."""
    program, *arguments = command.split()
    assert _name(program, arguments) == name
    assert _free(name, {name, f"{name}2"}) == f"{name}3"
