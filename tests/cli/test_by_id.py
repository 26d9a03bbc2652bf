"""`check`, `replay`, `diff` and `resume` by the id of a session; and what a replay says of a record without an end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from agentloop.omni.reader import trace_files
from tests.cli.commands import Captured, command

pytestmark = pytest.mark.usefixtures("folder")


def recorded(capsys: Captured, session: str, traces: str = "traces") -> Path:
    """A session with one run of two turns; its file."""
    assert command(capsys, "run", "--session", session, "--traces", traces, "what is 2 + 3?")[0] == 0
    (file,) = trace_files(traces, session)
    return file.path


def cut_behind(path: Path, kind: str) -> None:
    """What the disk holds if the process ends right behind the last record of this kind."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if json.loads(line)["payload"].get("type") == kind)
    path.write_bytes(b"".join(lines[: last + 1]))


@pytest.mark.parametrize("words", [[], ["--traces", "elsewhere"]])
def test_an_id_means_what_its_file_means(words: list[str], capsys: Captured) -> None:
    """Each command says of an id, below `traces` or the given folder, what it says of the session's file."""
    file = str(recorded(capsys, "s1", words[-1] if words else "traces"))
    assert command(capsys, "check", "s1", *words) == command(capsys, "check", file)
    assert command(capsys, "replay", "s1", *words) == command(capsys, "replay", file)
    assert command(capsys, "resume", "s1", *words) == command(capsys, "resume", file)
    assert command(capsys, "diff", "s1", file, *words) == (0, "", "")


def test_an_id_means_all_files_of_its_session(capsys: Captured) -> None:
    """They are checked and shown one after the other, the oldest first, over the days."""
    first = recorded(capsys, "s1")
    day = first.parent.parent / "2001-01-01"
    day.mkdir()
    shutil.copy(first, day / "s1_002.jsonl")
    out = command(capsys, "check", "s1")[1].splitlines()
    assert [line.partition(":")[0] for line in out] == [str(first), str(day / "s1_002.jsonl")]
    once = command(capsys, "replay", str(first))[1]
    assert command(capsys, "replay", "s1")[1].count(once.splitlines()[0]) == 2
    assert command(capsys, "diff", "s1", str(first))[0] == 1


@pytest.mark.parametrize("name", ["check", "replay", "diff", "resume"])
def test_a_file_wins(name: str, folder: Path, capsys: Captured) -> None:
    """A file here whose name is also the id of a session is what is meant."""
    recorded(capsys, "s1")
    (folder / "s1").write_text("no record\n")
    words = [name, "s1", "s1"] if name == "diff" else [name, "s1"]
    code, out, _ = command(capsys, *words)
    assert "2 + 3" not in out
    if name == "check":
        assert (code, out.splitlines()[-1]) == (1, "s1: 1 finding (0 records, 0 runs)")


@pytest.mark.parametrize("name", ["check", "replay", "diff", "resume"])
def test_what_is_neither(name: str, folder: Path, capsys: Captured) -> None:
    """One line on standard error and exit code 2: no session of that id, ids that lead out of the folder or are none, a
    folder, a file that is not there, a name longer than a file may have."""
    file = str(recorded(capsys, "s1"))
    shutil.copytree("traces", "s2")
    hidden = folder / "up_001.jsonl"
    shutil.copy(file, hidden)
    for wrong in ("nobody", "../up", "..", "traces/../s1", "a b", "s1\x1b[2J", "s2", "x.jsonl", "a" * 300, "", "."):
        words = [name, file, wrong] if name == "diff" else [name, wrong]
        code, out, err = command(capsys, *words, "--traces", "traces")
        assert (code, out, err.count("\n")) == (2, "", 1), wrong
        assert err.startswith(f"agentloop {name}: "), wrong
        assert "\x1b" not in err


@pytest.mark.parametrize("name", ["check", "replay", "diff", "resume"])
def test_why_a_name_is_no_file(name: str, folder: Path, capsys: Captured) -> None:
    """What stands there in a file's place is said: a folder, a pipe, nothing."""
    file = str(recorded(capsys, "s1"))
    os.mkfifo("pipe")
    for wrong, words in (
        ("traces", "expected a trace in traces, got none, and that name is a folder"),
        (
            ".",
            "expected a file of records or the id of a session (letters, digits, _ and -), and that name is a folder",
        ),
        (
            str(folder / "pipe"),
            "expected a file of records or the id of a session, and that name is a pipe or a device",
        ),
        ("pipe", "expected a trace in traces, got none, and that name is a pipe or a device"),
        ("none.jsonl", "expected a file of records or the id of a session, and there is no file of that name"),
    ):
        code, _, err = command(capsys, name, *([file] if name == "diff" else []), wrong, "--traces", "traces")
        assert (code, err.rstrip().endswith(words)) == (2, True), err


@pytest.mark.parametrize("name", ["check", "replay", "resume"])
def test_a_file_without_a_record(name: str, folder: Path, capsys: Captured) -> None:
    """It is no session that holds nothing: nothing is shown of it, and the exit code says so."""
    for text, got in (
        ("", "an empty one"),
        ("\ufeff\r\n \n", "an empty one"),
        ('{"type":', "1 line of something else"),
    ):
        Path("file.jsonl").write_text(text)
        code, out, err = command(capsys, name, "file.jsonl")
        assert (code, out) == (2, "")
        assert err == f"agentloop {name}: file.jsonl: expected a file of records, got {got}\n"


def test_a_session_whose_newest_file_is_empty_is_checked(capsys: Captured) -> None:
    """The process was killed that had just made the file: that its record ends there is no finding."""
    path = recorded(capsys, "s1")
    path.with_name("s1_999.jsonl").touch()
    code, out, err = command(capsys, "check", "s1")
    assert (code, err, out.count(": ok (")) == (0, "", 2)


def test_links_are_no_sessions(folder: Path, capsys: Captured) -> None:
    """A link among the traces leads nowhere by its id."""
    file = recorded(capsys, "s1")
    os.symlink(file, file.with_name("s2_001.jsonl"))
    assert command(capsys, "check", "s2")[0] == 2


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("turn_start", "in turn 2 (working)"),
        ("request_begin", "in turn 2 (waiting for the model)"),
        ("tool_execution_start", "in turn 1 (running calculate)"),
        ("turn_end", "in turn 2 (working)"),
    ],
)
def test_a_record_without_an_end(kind: str, where: str, capsys: Captured) -> None:
    """The last line of a replay says that the record ends before its run does, and where."""
    cut_behind(recorded(capsys, "s1"), kind)
    code, _, err = command(capsys, "replay", "s1")
    assert code == 0
    assert err.splitlines()[-1] == f"interrupted: the record ends {where}; the run has no end in it"


def test_a_record_with_an_end(capsys: Captured) -> None:
    """Nothing of the kind is said of a run that ended, nor of one that was cut off and gone on with."""
    path = recorded(capsys, "s1")
    assert "interrupted" not in command(capsys, "replay", "s1")[2]
    cut_behind(path, "tool_execution_end")
    assert "interrupted" in command(capsys, "replay", "s1")[2]
    assert command(capsys, "resume", "s1", "--continue")[0] == 0
    assert "interrupted" not in command(capsys, "replay", "s1")[2]
