"""`check`, `replay`, `diff`, `resume` and `run --trace`: what they say about files, good and bad."""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from agentloop import AgentEnd, AssistantMessage, Config, Context, UserMessage, agent_loop, user
from agentloop.cli import main
from agentloop.cli.diff import difference
from agentloop.config import CompactionState
from agentloop.omni.recorder import record
from agentloop.omni.records import session_meta
from agentloop.omni.trace import TraceWriter
from agentloop.testing import ScriptedModel, call, collect_sync

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def stream(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run as `run --json` prints it."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", "what is 2+2, and list the files", "--json"]) == 0
    path = tmp_path / "stream.jsonl"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.fixture
def trace(stream: Path, capsys: Captured) -> Path:
    """The same run as a trace of its own."""
    (stream.parent / "hidden").mkdir()
    stream.rename(stream.parent / "hidden" / "stream.jsonl")
    (stream.parent / "hidden").rename(stream.parent / ".hidden")
    assert main(["run", "what is 2+2, and list the files", "--trace", ".traces"]) == 0
    (path,) = (stream.parent / ".traces").glob("*/*.jsonl")
    assert f"trace: {path.relative_to(stream.parent)}" in capsys.readouterr().err
    (stream.parent / ".hidden" / "stream.jsonl").rename(stream)
    return path


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: list[Any]) -> str:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_text(text)
    return str(path)


def kind(record: dict[str, Any]) -> str:
    return str(record["payload"].get("type", record["type"]))


# ---------------------------------------------------------------- check


def test_what_run_writes_is_in_order(stream: Path, trace: Path, capsys: Captured) -> None:
    """The stream and the trace of a run keep every rule, of the protocol and of the grammar."""
    assert main(["check", str(stream), str(trace)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in out] == [f"{stream}: ok", f"{trace}: ok"]
    assert all("1 run)" in line for line in out)


def test_a_file_without_a_record_hides_no_other(trace: Path, capsys: Captured) -> None:
    """The files beside it are checked and told of, wherever it stands; it is named, with the exit code of a wrong file."""
    empty, odd = write(trace.parent / "empty.jsonl", []), write(trace.parent / "odd.jsonl", ["", "\n"])
    for given in ([empty, str(trace), odd], [str(trace), empty, odd], [empty, odd, str(trace)]):
        assert main(["check", *given]) == 2
        out, err = capsys.readouterr()
        assert [line.partition(" (")[0] for line in out.splitlines()] == [f"{trace}: ok"]
        assert f"agentloop check: {empty}: expected a file of records, got an empty one" in err
        assert f"{odd}: expected a file of records, got " in err
        assert err.count("\n") == 1


def test_a_broken_grammar_is_named(trace: Path, capsys: Captured) -> None:
    """An event that is missing is found at the line that cannot follow, with the grammar's rule."""
    lines = records(trace)
    gone = next(n for n, record in enumerate(lines) if kind(record) == "turn_end")
    broken = write(trace.parent / "broken.jsonl", lines[:gone] + lines[gone + 1 :])
    assert main(["check", "--json", broken]) == 1
    (report,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (report["file"], report["ok"], report["records"]) == (broken, False, len(lines) - 1)
    assert report["findings"][0]["line"] == gone + 1
    assert report["findings"][0]["rule"]


def test_a_broken_value_is_named(stream: Path, capsys: Captured) -> None:
    """A derived value that disagrees is found by the second level."""
    lines = records(stream)
    (end,) = [record for record in lines if kind(record) == "agent_end"]
    end["payload"]["usage"]["output_tokens" if "output_tokens" in end["payload"]["usage"] else "output"] = 999_999
    broken = write(stream.parent / "broken.jsonl", lines)
    assert main(["check", broken]) == 1
    assert f"{broken}: line {len(lines)}: " in capsys.readouterr().out


def test_damage_is_named(trace: Path, capsys: Captured) -> None:
    """A line that is no record is a finding; a last line that was cut is none, but is said."""
    lines: list[Any] = records(trace)
    damaged = write(trace.parent / "damaged.jsonl", [*lines[:3], "no json\n", *lines[3:], '{"timestamp": "2'])
    assert main(["check", damaged]) == 1
    out = capsys.readouterr().out
    assert "line 4: line: expected a record" in out
    assert "the last line was cut" in out
    torn = write(trace.parent / "torn.jsonl", [*lines[:9], '{"timestamp": "2'])
    assert main(["check", torn]) == 0


def test_a_run_that_was_killed_is_no_finding(trace: Path) -> None:
    """Every beginning of a trace that has a record is in order, and so is a run behind one that broke off."""
    lines = records(trace)
    for length in range(1, len(lines)):
        assert main(["check", write(trace.parent / "cut.jsonl", lines[:length])]) == 0
    begun = next(n for n, record in enumerate(lines) if kind(record) == "turn_start") + 1
    assert main(["check", write(trace.parent / "again.jsonl", [*lines[:begun], *lines[1:]])]) == 0


class Once:
    """A compaction before the second turn."""

    mode: Literal["summarize"] = "summarize"

    def due(self, state: CompactionState) -> Literal["turns"] | None:
        return "turns" if state.turns == 1 and not state.at_end else None

    def prompt(self, attempt: int, problem: str | None) -> list[UserMessage]:
        return [user("Summarise.")]

    def accept(self, reply: AssistantMessage) -> str | None:
        return reply.text

    def summary(self, text: str) -> UserMessage:
        return user(f"So far: {text}")


def test_files_of_one_session_are_one(tmp_path: Path, capsys: Captured) -> None:
    """A run that goes on in the next file is checked across both; the second alone is not blamed for its beginning."""
    model = ScriptedModel([call("nothing", {}), "all is well", "done"])
    writer = TraceWriter(tmp_path, session_meta("session-1", provider="p", model_id="m"))
    with writer:
        run = agent_loop("go", Context(), Config(model=model, compaction=Once()))
        events = collect_sync(record(run, writer))
    assert events[-1] == AgentEnd(events[-1].messages, replaces_context=True)  # type: ignore[union-attr]
    first, second = map(str, sorted(tmp_path.glob("*/*.jsonl")))
    assert main(["check", second, first]) == 0
    assert main(["check", second]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in out] == [f"{first}: ok", f"{second}: ok", f"{second}: ok"]
    assert [line.rpartition(", ")[2] for line in out] == ["1 run)", "0 runs)", "0 runs)"]
    assert main(["replay", first, second]) == 0
    assert "compaction (turns): completed" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "replay", "resume"])
def test_what_is_no_file(command: str, tmp_path: Path, capsys: Captured) -> None:
    """A missing file and a folder are one line on standard error, and exit code 2."""
    for path in (tmp_path / "missing.jsonl", tmp_path):
        assert main([command, str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"agentloop {command}: ")
        assert err.count("\n") == 1


def test_sample_traces(shared: Path, capsys: Captured) -> None:
    """Traces of another writer keep the protocol; of the damaged one the damage is found."""
    for path in sorted((shared / "traces").glob("*/*.jsonl")):
        assert main(["check", str(path)]) == (1 if path.parent.name.startswith("23-") else 0), path


# ---------------------------------------------------------------- replay


def test_a_replay_shows_what_the_run_showed(stream: Path, trace: Path, capsys: Captured) -> None:
    """Stream and trace replay to the same, which is what the run showed and its prompt."""
    shown = []
    for path in (stream, trace):
        assert main(["replay", str(path)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0].startswith("> what is 2+2, and list the files\nthinking: I am")
    assert "[calculate] done\n  4\n" in shown[0]
    assert shown[0].endswith("\n2+2 = 4\nThere is nothing in this folder.\n")


def test_a_replay_of_damage(stream: Path, capsys: Captured) -> None:
    """A damaged file is shown as far as it can be."""
    lines = records(stream)
    damaged = write(stream.parent / "damaged.jsonl", [lines[0], "?\n", "[]\n", {"type": 7}, *lines[1:30]])
    assert main(["replay", damaged]) == 0
    out, err = capsys.readouterr()
    assert "thinking: I am" in out
    assert "not finished" in err


@pytest.mark.parametrize("content", ["", "hello\n", "[]\n{}\n", "\x00\x01"])
@pytest.mark.parametrize("command", ["replay", "diff"])
def test_what_holds_no_records(command: str, content: str, stream: Path, capsys: Captured) -> None:
    """A file without a record is no run that did nothing: one line, exit code 2, and nothing is shown of it."""
    other = write(stream.parent / "other.txt", [content])
    assert main([command, *([str(stream)] if command == "diff" else []), other]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"agentloop {command}: {other}: expected a file of records, got ")


def test_what_is_skipped_is_told(stream: Path, capsys: Captured) -> None:
    """Lines that are no record are named once the rest was shown or compared."""
    lines: list[Any] = records(stream)
    damaged = write(stream.parent / "damaged.jsonl", [*lines[:9], "?\n", *lines[9:]])
    assert main(["replay", damaged]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"{damaged}: skipped 1 damaged line: 10"
    assert main(["diff", str(stream), damaged]) == 0
    assert capsys.readouterr().err == f"{damaged}: skipped 1 damaged line: 10\n"


def test_a_replay_in_time(stream: Path, capsys: Captured) -> None:
    """With a speed the recorded times are waited for; whatever they are, damaged ones included."""
    lines = records(stream)[:6]
    for n, line in enumerate(lines):
        line["timestamp"] = ["2026-01-01T00:00:00Z", "yesterday", 7, "9" * 40, "2025-01-01T00:00:00Z", None][n]
    assert main(["replay", "--speed", "1e6", write(stream.parent / "odd.jsonl", lines)]) == 0
    assert "> what is 2+2" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["replay", "--speed", "0", str(stream)])


def test_the_sample_traces_replay(shared: Path, capsys: Captured) -> None:
    """Another writer's files are shown as well."""
    for path in sorted((shared / "traces").glob("*/*.jsonl")):
        assert main(["replay", str(path)]) == 0, path
    assert "\x1b" not in capsys.readouterr().out


# ---------------------------------------------------------------- diff


def test_stream_and_trace_are_the_same_run(stream: Path, trace: Path, capsys: Captured) -> None:
    """Times, ids and fragments make no difference."""
    assert main(["diff", str(stream), str(trace)]) == 0
    assert capsys.readouterr().out == ""


def test_a_difference_is_shown(stream: Path, capsys: Captured) -> None:
    """One event more is one line of a unified diff, with its place."""
    lines = records(stream)
    hook = {"timestamp": "2026-01-01T00:00:00Z", "type": "event_msg", "payload": {"type": "news", "x": 1}}
    place = next(n for n, record in enumerate(lines) if kind(record) == "turn_end")
    other = write(stream.parent / "other.jsonl", [*lines[:place], hook, *lines[place:]])
    assert main(["diff", str(stream), other]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [f"--- {stream}", f"+++ {other}"]
    assert [line.split()[:2] for line in out if line.startswith("+ ")] == [["+", "foreign"]]
    assert not [line for line in out if line.startswith("- ")]


def test_differences() -> None:
    """Lines are numbered as in the whole, at both ends, and a difference in the middle of much is found at once."""
    same = [f"line {n}" for n in range(10_000)]
    assert difference(same, list(same)) == []
    assert difference([], []) == []
    changed = [*same[:5000], "other", *same[5001:]]
    assert difference(same, changed)[2:] == [
        "@@ -4998,7 +4998,7 @@",
        *[f" line {n}" for n in (4997, 4998, 4999)],
        "-line 5000",
        "+other",
        *[f" line {n}" for n in (5001, 5002, 5003)],
    ]
    assert difference(["a"], [])[3:] == ["-a"]
    assert difference(["a", "a"], ["a"])[-1] in ("-a", " a")
    assert difference(["a"], ["a", "b"])[-1] == "+b"
    assert difference(["b", "a"], ["a"])[3:] == ["-b", " a"]


def test_a_difference_in_everything_is_bounded() -> None:
    """Two long runs without a common line are compared in part, and it is said."""
    lines = difference([f"a{n}" for n in range(20_000)], [f"b{n}" for n in range(20_000)])
    assert lines[-1] == "… 17,000 further lines not compared"


# ---------------------------------------------------------------- resume


def test_resume_gives_the_conversation_back(trace: Path, capsys: Captured) -> None:
    """By file or by id: history and counters, as JSON or in a few words."""
    session = records(trace)[0]["payload"]["session_id"]
    given = []
    for words in ([str(trace)], [session, "--traces", ".traces"]):
        assert main(["resume", "--json", *words]) == 0
        given.append(json.loads(capsys.readouterr().out))
    assert given[0] == given[1]
    assert set(given[0]) == {
        "history",
        "carry_over",
        "context_closed",
        "pending_summary",
        "session_tokens",
        "last_request_total",
        "session_turns",
    }
    assert main(["resume", session, "--traces", ".traces"]) == 0
    assert f"session: {session}\nhistory: 5 messages" in capsys.readouterr().out


def test_resume_of_a_run_that_was_killed(trace: Path, capsys: Captured) -> None:
    """Calls that had not started, or whose outcome is unknown, are said to be open."""
    lines = records(trace)
    started = next(n for n, record in enumerate(lines) if kind(record) == "tool_execution_start") + 1
    assert main(["resume", write(trace.parent / "killed.jsonl", lines[:started])]) == 0
    out = capsys.readouterr().out
    assert 'open call: calculate {"expression": "2+2"} (started, its outcome is unknown)' in out
    assert 'open call: list_files {"pattern": "*"} (not started, runs first)' in out


@pytest.mark.parametrize("name", ["nobody", "../../etc/passwd", "a b", "x.jsonl"])
def test_no_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """A session that is not there, and an id that cannot be one, are one clear line."""
    monkeypatch.chdir(tmp_path)
    assert main(["resume", name]) == 2
    assert capsys.readouterr().err.startswith("agentloop resume: ")


def test_a_trace_that_cannot_be_written(tmp_path: Path, capsys: Captured) -> None:
    """A folder that is none is a wrong command line, and no run begins."""
    (tmp_path / "file").touch()
    assert main(["run", "1+1", "--trace", str(tmp_path / "file")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"agentloop run: --trace {tmp_path / 'file'}: " in err


def test_a_trace_that_is_cut_short(tmp_path: Path) -> None:
    """When the disk takes no more, the run ends with one line and a code of its own, and no further tool runs."""
    command = [sys.executable, "-m", "agentloop", "run", "what is 2+2", "--trace", "traces"]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1500, 1500))
    ran = subprocess.run(command, cwd=tmp_path, preexec_fn=limit, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 74
    errors = [line for line in ran.stderr.decode().splitlines() if line.startswith("agentloop: ")]
    assert len(errors) == 1
    assert "expected to write a record" in errors[0]
    assert b"Traceback" not in ran.stderr
    assert b"[calculate] done" not in ran.stdout
