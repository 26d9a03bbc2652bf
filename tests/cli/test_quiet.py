"""`agentloop run --quiet`: the last reply's text on standard output and nothing else; errors on standard error."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from agentloop import Config, Context, ModelError, agent_loop, tool
from agentloop.cli._quiet import QuietPrinter
from agentloop.compaction import Summarize, TurnsReach
from agentloop.config import Retry
from agentloop.testing import ScriptedModel, call, collect_sync
from tests.cli.commands import Captured, command

pytestmark = pytest.mark.usefixtures("folder")


def run(capsys: Captured, *words: str) -> tuple[int, str, str]:
    return command(capsys, "run", "--quiet", *words)


@tool
async def look() -> str:
    """Look."""
    return "seen"


def printed(model: ScriptedModel, **config: object) -> tuple[str, str]:
    out: list[str] = []
    err: list[str] = []
    printer = QuietPrinter(out.append, err.append)
    retry = Retry(waits=(0,))
    for event in collect_sync(agent_loop("go", Context(tools=[look]), Config(model=model, retry=retry, **config))):  # type: ignore[arg-type]
        printer.show(event)
    printer.close()
    return "".join(out), "".join(err)


@pytest.mark.parametrize("words", [[], ["--trace", "d"], ["--session", "s1"]])
def test_only_the_answer(words: list[str], capsys: Captured) -> None:
    """Thinking, calls, results, turns, the remark about the model, the place of the record: nothing of it is printed."""
    assert run(capsys, "what is 12*7 + 3?", *words) == (0, "12*7 + 3 = 87\n", "")


def test_what_fails(capsys: Captured) -> None:
    """A run that does not complete prints no half answer: one line of error, and the exit code as ever."""
    code, out, err = run(capsys, "what is 2+2?", "--max-turns", "1")
    assert (code, out) == (1, "")
    assert err == "fatal (max_turns): the run reached its limit of 1 turn\n"
    assert run(capsys, " ")[0] == 2


def test_waits_are_told() -> None:
    """A pipe that waits for a provider says why, on standard error."""
    model = ScriptedModel([ModelError("network", "gone"), "Here."])
    assert printed(model) == ("Here.\n", "gone · attempt 2 in 0 s\n")


def test_not_with_records(capsys: Captured) -> None:
    """Records and the answer alone exclude each other."""
    with pytest.raises(SystemExit) as caught:
        run(capsys, "hi", "--json")
    assert caught.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_the_last_reply_counts() -> None:
    """What was said before a call, in a failed attempt or inside a compaction is not the answer."""
    model = ScriptedModel([["First I look.", call("look")], ["It", ModelError("network", "gone")], "It is green."])
    assert printed(model)[0] == "It is green.\n"
    model = ScriptedModel(["The answer.", "[summary]The summary.[/summary]"])
    assert printed(model, compaction=Summarize(when=TurnsReach(1))) == ("The answer.\n", "")


class NoServers:
    """A tool source that cannot connect."""

    servers = ("files",)

    async def connect(self) -> Any:
        raise OSError("no such command")

    async def changed(self) -> None:
        return None

    async def close(self) -> None:
        return None


def test_servers_that_are_missing_are_told() -> None:
    """An answer that was given without the tools of a server comes with a line of error."""
    assert printed(ScriptedModel(["Fine."]), tool_source=NoServers()) == ("Fine.\n", "mcp: no such command\n")


def test_harmless_and_whole() -> None:
    """No escape sequence gets through; a line end is not doubled; a reply without text prints nothing."""
    assert printed(ScriptedModel(["a\x1b[2Jb\n"])) == ("a\u241b[2Jb\n", "")
    assert printed(ScriptedModel([["First I look.", call("look")], []])) == ("", "")
    assert printed(ScriptedModel([ModelError("auth", "no\x1b[2J")]))[1] == "fatal (auth): no\u241b[2J\n"


def test_in_a_pipe() -> None:
    """Standard output holds the answer, to its last byte."""
    command = [sys.executable, "-m", "agentloop", "run", "--quiet", "-"]
    ran = subprocess.run(command, input=b"what is 6*7?", capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"6*7 = 42\n", b"")
