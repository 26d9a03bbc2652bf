"""`agentloop run --approve`: asked in the terminal, denied where nobody can be asked, policies from files."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.approval import Question
from agentloop.cli import main
from agentloop.cli._approve import shown, visible
from tests.cli.commands import Captured, command

PROMPT = "what is 12*7 + 3, and how many lines has notes.txt?"
COMMAND = [sys.executable, "-W", "error", "-m", "agentloop", "run"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file and some policies."""
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "sums.toml").write_text("default = 'deny'\n[[rules]]\nverdict = 'allow'\ntools = 'calculate'\n")
    (tmp_path / "careful.toml").write_text("[[rules]]\nverdict = 'allow'\ntools = 'calculate'\n")
    (tmp_path / "wrong.toml").write_text("default = 'allow'\n[[rules]]\nverdict = 'perhaps'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: Captured, *words: str) -> tuple[int, str, str]:
    return command(capsys, "run", *words)


# ---------------------------------------------------------------- where nobody can be asked


def test_the_default_runs_what_was_offered(folder: Path, capsys: Captured) -> None:
    """Without the option, and with `allow`, all calls run."""
    for words in ([], ["--approve", "allow"]):
        code, out, _ = run(capsys, PROMPT, *words)
        assert code == 0
        assert "[calculate] done" in out
        assert "[measure_file] done" in out


def test_deny_runs_nothing(folder: Path, capsys: Captured) -> None:
    """Every call is denied, and the run goes on to its end."""
    code, out, err = run(capsys, PROMPT, "--approve", "deny")
    assert code == 0
    assert "[calculate] denied" in out
    assert "[measure_file] denied" in out
    assert "terminal" not in err


def test_ask_without_a_terminal_denies_and_says_so(folder: Path, capsys: Captured) -> None:
    """One line on standard error, and nothing runs."""
    code, out, err = run(capsys, PROMPT, "--approve", "ask")
    assert code == 0
    assert "approval: there is no terminal to ask in, so every call that would be asked about is denied\n" in err
    assert "[calculate] denied" in out


def test_a_policy_from_a_file(folder: Path, capsys: Captured) -> None:
    """What it allows runs, what it denies does not; nobody needs to be asked."""
    code, out, err = run(capsys, PROMPT, "--approve", "sums.toml")
    assert code == 0
    assert "[calculate] done" in out
    assert "[measure_file] denied" in out
    assert "terminal" not in err
    assert "terminal" in run(capsys, PROMPT, "--approve", "careful.toml")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "wrong.toml",
            "--approve wrong.toml, line 3, rules[0].verdict: expected one of allow, ask, deny, forbid, got 'perhaps'",
        ),
        (
            "none.toml",
            "--approve: expected allow, ask, deny or the file of a policy, got none.toml (No such file or directory)",
        ),
        ("yes", "--approve: expected allow, ask, deny or the file of a policy, got yes"),
        (".", "--approve: expected allow, ask, deny or the file of a policy, got . (Is a directory)"),
    ],
)
def test_a_policy_that_cannot_be_read(folder: Path, capsys: Captured, words: str, said: str) -> None:
    """A wrong command line: 2, one line, no run."""
    code, out, err = run(capsys, PROMPT, "--approve", words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_records_tell_the_decisions(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """With --json the decisions are records, and a policy's need no request."""
    assert main(["run", PROMPT, "--json", "--approve", "sums.toml"]) == 0
    records = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    payloads = [record["payload"] for record in records]
    assert [p["decision"] for p in payloads if p["type"] == "approval_decision"] == ["allow", "deny"]
    assert not any(p["type"] == "approval_request" for p in payloads)


# ---------------------------------------------------------------- in a terminal


class Typist:
    """A person at a terminal: standard input, error and (unless piped) output."""

    def __init__(self, folder: Path, *words: str, piped: bool = False) -> None:
        self._ours, theirs = pty.openpty()
        out = subprocess.DEVNULL if piped else theirs
        environment = {**os.environ, "TERM": "dumb" if piped else "xterm"}
        self.process = subprocess.Popen(
            [*COMMAND, *words], stdin=theirs, stdout=out, stderr=theirs, cwd=folder, env=environment
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, words: str) -> str:
        """Read until this is shown; returns what stood before it, and forgets both."""
        while words not in self.seen:
            assert self._read(), f"ended before {words!r}: {self.seen}"
        before, _, self.seen = self.seen.partition(words)
        return before

    def type(self, text: str) -> None:
        """Type it."""
        os.write(self._ours, text.encode())

    def _read(self) -> bool:
        assert select.select([self._ours], [], [], 60)[0], f"nothing more came: {self.seen}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        self.seen += data.decode()
        return bool(data)

    def end(self) -> tuple[int, str]:
        """The exit code, and the rest of what is shown."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(60), self.seen


CALCULATE = "run it? [y]es, [n]o, [a]lways calculate in this run: "
MEASURE = "run it? [y]es, [n]o, [a]lways measure_file in this run: "


@pytest.mark.parametrize("piped", [False, True])
def test_a_person_is_asked(folder: Path, piped: bool) -> None:
    """Tool and arguments are shown; yes runs, no denies; another word asks again; with output piped away the question is on
    standard error."""
    person = Typist(folder, PROMPT, "--approve", "ask", piped=piped)
    assert '? calculate {"expression":"12*7 + 3"}' in person.wait_for(CALCULATE)
    person.type("maybe\n")
    person.wait_for(CALCULATE)
    person.type("\n")
    person.wait_for(CALCULATE)
    person.type("Y\n")
    assert '? measure_file {"path":"notes.txt"}' in person.wait_for(MEASURE)
    person.type("no\n")
    code, rest = person.end()
    assert code == 0
    if not piped:
        assert "denied" in rest
        assert "\x1b[?25h" in rest


def test_always_is_for_one_tool(folder: Path) -> None:
    """After `always` the same tool is not asked about again, another one is."""
    person = Typist(folder, "what is 1+1, what is 2+2, and how many lines has notes.txt?", "--approve", "ask")
    person.wait_for(CALCULATE)
    person.type("a\n")
    assert "2+2" not in person.wait_for(MEASURE).split("? measure_file")[1]
    person.type("y\n")
    code, rest = person.end()
    assert code == 0
    assert "2+2 = 4" in rest
    assert CALCULATE not in rest


def test_a_policy_asks_only_what_it_leaves_open(folder: Path) -> None:
    """The allowed call runs unasked."""
    person = Typist(folder, PROMPT, "--approve", "careful.toml")
    assert CALCULATE not in person.wait_for(MEASURE)
    person.type("y\n")
    code, rest = person.end()
    assert code == 0
    assert "3 lines" in rest


def test_ctrl_c_at_a_question_aborts(folder: Path) -> None:
    """The run ends aborted, the cursor is shown, nothing ran."""
    person = Typist(folder, PROMPT, "--approve", "ask")
    person.wait_for(CALCULATE)
    person.process.send_signal(signal.SIGINT)
    code, rest = person.end()
    assert code == 130
    assert "interrupted by Ctrl-C" in rest
    assert rest.rindex("\x1b[?25h") > rest.rfind("\x1b[?25l")
    assert "= 87" not in rest


def test_the_end_of_input_denies_all(folder: Path) -> None:
    """Ctrl-D: this call and all later ones are denied, without asking again."""
    person = Typist(folder, PROMPT, "--approve", "ask")
    person.wait_for(CALCULATE)
    person.type("\x04")
    code, rest = person.end()
    assert code == 0
    assert "no answer: denied" in rest
    assert MEASURE not in rest
    assert "= 87" not in rest


def test_what_was_typed_before_is_no_answer(folder: Path) -> None:
    """Keys that were pressed before a question do not approve it."""
    person = Typist(folder, PROMPT, "--approve", "ask")
    person.type("y\ny\ny\n")
    person.wait_for(CALCULATE)
    person.type("n\n")
    person.wait_for(MEASURE)
    person.type("n\n")
    code, rest = person.end()
    assert code == 0
    assert "= 87" not in rest


# ---------------------------------------------------------------- what is shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain äöü 漢", "plain äöü 漢"),
        ("\x1b[2J\r\n\t\x9b", "\\u001b[2J\\u000d\\u000a\\u0009\\u009b"),
        ("a\u202eb\u200bc\u2066\ufeff\u00ad", "a\\u202eb\\u200bc\\u2066\\ufeff\\u00ad"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_is_hidden(text: str, seen: str) -> None:
    """Control characters, those that turn the direction, and those that take no room stand as escapes."""
    assert visible(text) == seen


def test_a_question_in_full() -> None:
    """Origin, tool, arguments, the rule that asks; long arguments are cut, and said to be, until all are asked for."""
    question = Question("c", "sh\x07", '{"a":"\u202e"}', ("child\n",), "rules[1]: dangerous")
    assert shown(question) == '? child\\u000a: sh\\u0007 {"a":"\\u202e"}\n  (rules[1]: dangerous)\n'
    long = Question("c", "sh", "x" * 5_000)
    assert shown(long) == f"? sh {'x' * 2_000}… (5,000 characters, v shows all)\n"
    assert shown(long, whole=True) == f"? sh {'x' * 5_000}\n"
