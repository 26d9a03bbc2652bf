"""`agentloop run` from the outside: what it prints where, its exit codes, signals, pipes and terminals."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentloop import __version__
from agentloop.cli import main
from agentloop.models.offline import HELP
from tests.cli.commands import Captured, command

TOOLS = '''
import anyio
import time


def fail() -> str:
    """Fails."""
    raise RuntimeError("out of order")


async def wait() -> str:
    """Waits."""
    await anyio.sleep(600)
    return "waited"


def block() -> str:
    """Blocks its thread."""
    time.sleep(600)
    return "blocked"


async def deaf() -> str:
    """Never listens."""
    while True:
        try:
            await anyio.sleep(600)
        except BaseException:
            pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two files and a module of tools."""
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "script.py").write_text("print(1)\n")
    (tmp_path / "slow_tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: Captured, *words: str) -> tuple[int, str, str]:
    return command(capsys, "run", *words)


# ---------------------------------------------------------------- in one process


def test_a_run_with_tools(folder: Path, capsys: Captured) -> None:
    """The first run of a newcomer: parallel calls of the example tools, a second turn, the answer; it completes."""
    code, out, err = run(capsys, "what is 12*7 + 3, and how many lines has notes.txt?")
    assert code == 0
    assert '[calculate {"expression":"12*7 + 3"}]\n[measure_file {"path":"notes.txt"}]\n' in out
    assert out.endswith("--- turn 2 ---\n12*7 + 3 = 87\nnotes.txt: 3 lines, 3 words, 14 bytes\n")
    assert "no language model" in err
    assert "completed · 2 turns · " in err


def test_several_words_are_one_prompt(capsys: Captured) -> None:
    """A prompt without quotes is taken as it was meant."""
    assert "1 + 1 = 2" in run(capsys, "what", "is", "1 + 1")[1]


def test_a_prompt_from_standard_input(folder: Path) -> None:
    """`-` reads the prompt; bytes that are no UTF-8 do no harm."""
    ran = subprocess.run([*COMMAND, "-"], input=b"read notes.txt \xff", capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert b"> one\n> two\n> three" in ran.stdout


def quiet(*words: str, **settings: Any) -> tuple[int, bytes, bytes]:
    """The command in a process of its own: its exit code, its answer, its standard error."""
    ran = subprocess.run([*COMMAND, "--quiet", *words], capture_output=True, timeout=60, check=False, **settings)
    return ran.returncode, ran.stdout, ran.stderr


def test_standard_input_behind_a_prompt() -> None:
    """`-` as the last word adds it, a blank line below the words; a `-` among them is one of them."""
    assert quiet("what", "is", "-", input=b"12 * 7") == (0, b"12 * 7 = 84\n", b"")
    assert quiet("what", "is", "9", "-", "2", stdin=subprocess.DEVNULL) == (0, b"9 - 2 = 7\n", b"")
    code, out, err = quiet("what is", "-", input=b" \n")
    assert (code, out) == (2, b"") and b"PROMPT: expected some text from standard input, got none" in err


UNREAD = b"standard input is not read: put - after the prompt to add it\n"


def test_standard_input_that_nobody_asked_for(folder: Path) -> None:
    """It is left alone, for the loop or script around the command, and that is told."""
    with (folder / "notes.txt").open("rb", buffering=0) as file:
        assert quiet("1 + 1", stdin=file) == (0, b"1 + 1 = 2\n", UNREAD)
        assert file.read() == b"one\ntwo\nthree\n"
        assert quiet("1 + 1", stdin=file) == (0, b"1 + 1 = 2\n", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes there")
def test_a_pipe_that_nobody_asked_for() -> None:
    """One that is open and silent hangs nothing and is not spoken of; one that holds something is told and left."""
    theirs, ours = os.pipe()
    try:
        assert quiet("1 + 1", stdin=theirs) == (0, b"1 + 1 = 2\n", b"")
        os.write(ours, b"text")
        assert quiet("1 + 1", stdin=theirs) == (0, b"1 + 1 = 2\n", UNREAD)
        assert os.read(theirs, 10) == b"text"
    finally:
        os.close(theirs)
        os.close(ours)


def test_standard_input_that_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A process without one runs all the same."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(capsys, "--quiet", "1 + 1") == (0, "1 + 1 = 2\n", "")


@pytest.mark.parametrize("words", [[""], ["  "]])
def test_no_prompt(words: list[str], capsys: Captured) -> None:
    """An empty prompt is a wrong command line, not a run."""
    assert run(capsys, *words) == (2, "", "agentloop run: PROMPT: expected some text, got none\n")


def test_wrong_words_are_one_line(capsys: Captured) -> None:
    """What the command line asks for and cannot be had is one line on standard error, and exit code 2."""
    code, out, err = run(capsys, "hi", "--tools", "nowhere:x")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "No module named 'nowhere'" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--max-turns", "0"],
        ["--max-turns", "x"],
        ["--deadline", "0"],
        ["--deadline", "soon"],
        ["--prices", "1"],
        ["--prices", "1,x"],
        ["--prices", "nan,1"],
    ],
)
def test_wrong_numbers(words: list[str], capsys: Captured) -> None:
    """Numbers out of range, and what is no number, are refused by the parser, which says what it expected."""
    with pytest.raises(SystemExit) as caught:
        main(["run", "hi", *words])
    assert caught.value.code == 2
    assert f"argument {words[0]}: expected " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "hi", "--modle", "offline"],
            "agentloop run: error: unrecognized arguments: --modle (did you mean --model?)",
        ),
        (["check", "x", "--jsn=1"], "agentloop check: error: unrecognized arguments: --jsn=1 (did you mean --json?)"),
        (["run", "hi", "-\x1b[2J"], "agentloop run: error: unrecognized arguments: -\u241b[2J"),
        (["--verson"], "agentloop: error: unrecognized arguments: --verson (did you mean --version?)"),
        (
            ["replay", "x", "--speed", "fast"],
            "agentloop replay: error: argument --speed: expected a factor above 0, got fast",
        ),
    ],
)
def test_wrong_options(words: list[str], said: str, capsys: Captured) -> None:
    """The subcommand's own usage, what it does not know, and what may have been meant; nothing a terminal would obey."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == said


def test_resume_without_a_session(capsys: Captured) -> None:
    """Only what is required is asked for: a prompt is not."""
    with pytest.raises(SystemExit):
        main(["resume"])
    assert capsys.readouterr().err.endswith("the following arguments are required: FILE|ID\n")


def test_version_and_help(capsys: Captured) -> None:
    """The version, the list of commands, and a command's own arguments."""
    for words, expected in (
        (["--version"], __version__),
        (["--help"], "run an agent"),
        (["run", "--help"], "--max-turns"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


def test_records(folder: Path, capsys: Captured) -> None:
    """`--json` prints records only, each a line: lifecycle and content, the whole run."""
    code, out, err = run(capsys, "what is 2+2", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert {record["type"] for record in records} == {"event_msg", "model_msg"}
    kinds = [record["payload"]["type"] for record in records]
    assert (kinds[0], kinds[-1]) == ("agent_start", "agent_end")
    assert [record["payload"]["output"] for record in records if record["payload"]["type"] == "tool_call_output"] == [
        "4"
    ]
    assert records[-1]["payload"]["status"] == "completed"


def test_system_prompt_tools_and_limits(folder: Path, capsys: Captured) -> None:
    """Only the chosen tools are offered; a turn too many ends the run for good."""
    code, out, _ = run(capsys, "what is 2+2", "--no-default-tools", "--system", "Be brief.")
    assert (code, "`calculate`, which this run does not offer" in out) == (0, True)
    code, out, err = run(capsys, "call fail", "--tools", "slow_tools.py:fail", "--max-turns", "1")
    assert code == 1
    assert "[fail] failed\n  out of order\n" in out
    assert "fatal (max_turns)" in err


def test_a_deadline(folder: Path, capsys: Captured) -> None:
    """A run that takes too long is aborted, and says so."""
    code, out, err = run(capsys, "call wait", "--tools", "slow_tools.py:wait", "--deadline", "0.05")
    assert code == 130
    assert "[wait] stopped" in out
    assert "aborted (deadline)" in err


def test_prices(capsys: Captured) -> None:
    """With prices the last line says what it cost."""
    code, _, err = run(capsys, "hello", "--prices", "1000000,0")
    assert code == 0
    assert err.splitlines()[-1].endswith("1 token in, 79 out · 1.0000")


def test_the_help_of_the_model(capsys: Captured) -> None:
    """What no rule fits is answered by what the model is and can do."""
    assert HELP in run(capsys, "write a poem")[1]


# ---------------------------------------------------------------- a process of its own

COMMAND = [sys.executable, "-m", "agentloop", "run"]


class Child:
    """The command in a process of its own, its output read as it comes."""

    def __init__(self, *words: str, terminal: bool = False) -> None:
        self.seen = b""
        if terminal:
            ours, theirs = pty.openpty()
            self.process = subprocess.Popen([*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs)
            os.close(theirs)
        else:
            ours, theirs = os.pipe()
            self.process = subprocess.Popen([*COMMAND, *words], stdout=theirs, stderr=theirs)
            os.close(theirs)
        self._fd = ours

    def read_until(self, words: bytes) -> None:
        """Wait until this has been printed."""
        while words not in self.seen:
            assert self._read(), f"ended before {words!r}: {self.seen.decode()}"

    def _read(self) -> bool:
        assert select.select([self._fd], [], [], 60)[0], f"nothing more came: {self.seen.decode()}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # a terminal whose other side is closed
            return False
        self.seen += data
        return bool(data)

    def end(self) -> tuple[int, str]:
        """Read the rest; returns the exit code and all output."""
        while self._read():
            pass
        os.close(self._fd)
        return self.process.wait(60), self.seen.decode()


@pytest.mark.parametrize("name", ["wait", "block", "deaf"])
def test_the_first_ctrl_c_aborts(folder: Path, name: str) -> None:
    """One Ctrl-C ends the run cleanly and the process soon, whatever a tool does: listen, block its thread, ignore all."""
    child = Child(f"call {name}", "--tools", f"slow_tools.py:{name}")
    child.read_until(f"[{name}]\n".encode())
    child.process.send_signal(signal.SIGINT)
    code, output = child.end()
    assert code == 130
    assert f"[{name}] stopped" in output
    assert "aborted (user_abort): interrupted by Ctrl-C" in output
    assert "Traceback" not in output


def test_the_second_ctrl_c_kills(folder: Path) -> None:
    """A second Ctrl-C ends the process by the signal, while the first is still being obeyed."""
    child = Child("call deaf", "--tools", "slow_tools.py:deaf", terminal=True)
    child.read_until(b"running deaf")
    child.process.send_signal(signal.SIGINT)
    child.read_until(b"stopping, Ctrl-C again ends at once")
    child.process.send_signal(signal.SIGINT)
    code, output = child.end()
    assert code == -signal.SIGINT
    assert "\x1b[?25h" in output
    assert "Traceback" not in output


def test_terminated(folder: Path) -> None:
    """SIGTERM aborts in the same way."""
    child = Child("call wait", "--tools", "slow_tools.py:wait")
    child.read_until(b"[wait]\n")
    child.process.send_signal(signal.SIGTERM)
    assert child.end()[0] == 130


def test_a_terminal_is_drawn_in(folder: Path) -> None:
    """In a terminal the run is live: the area moves, cards are locked with a sign, the cursor comes back."""
    child = Child("how many lines has notes.txt?", terminal=True)
    code, output = child.end()
    assert code == 0
    assert "\x1b[J" in output
    assert "✓" in output
    assert "notes.txt: 3 lines, 3 words, 14 bytes" in output
    assert output.rstrip().endswith("\x1b[?25h")


def test_a_dumb_terminal_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that can do nothing gets plain lines."""
    monkeypatch.setenv("TERM", "dumb")
    code, output = Child("what is 1+1", terminal=True).end()
    assert code == 0
    assert "\x1b" not in output
    assert "1+1 = 2" in output


def test_nobody_reads_any_more(folder: Path) -> None:
    """A reader that has left ends the run quietly."""
    read, write = os.pipe()
    os.close(read)
    try:
        ran = subprocess.run(
            [*COMMAND, "list the files"], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(write)
    assert ran.returncode == 141
    assert b"Traceback" not in ran.stderr
    assert b"Exception ignored" not in ran.stderr


def test_an_encoding_that_lacks_characters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the terminal's encoding does not have is written as an escape, our own signs as simpler ones."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    (folder / "notes.txt").write_text("é漢\n" * 10)
    ran = subprocess.run([*COMMAND, "read notes.txt"], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert b"\\xe9\\u6f22" in ran.stdout
    assert b"  ~ 7 more lines" in ran.stdout


class _Api(BaseHTTPRequestHandler):
    """A server that speaks a little Chat Completions."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.headers["authorization"] != "Bearer none":
            self.send_error(401)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for delta, finish in (({"content": "Hello "}, None), ({"content": "there."}, None), ({}, "stop")):
            chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            self.wfile.write(b"data: " + json.dumps({"object": "chat.completion.chunk", **chunk}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def api() -> Iterator[str]:
    """The address of a running server."""
    with HTTPServer(("127.0.0.1", 0), _Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def test_a_model_of_a_provider(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model than the offline one streams through its SDK from an address of one's own."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ["hi", "--model", "openai:tiny", "--base-url", api]
    ran = subprocess.run([*COMMAND, *words], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"Hello there.\n")
    assert b"no language model" not in ran.stderr
