"""What a hostile trace, folder of traces or session id can do."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloop.cli import main
from agentloop.errors import TraceError, TraceReadError, TraceWriteError
from agentloop.messages import ToolResultMessage
from agentloop.omni.channel import Channel
from agentloop.omni.reader import TraceReader, latest_file, trace_files
from agentloop.omni.records import session_meta, user_text
from agentloop.omni.redact import MaskLog
from agentloop.omni.resume import reopen, resume_file, resume_session
from agentloop.omni.trace import TraceWriter
from agentloop.session import Session
from agentloop.testing.scripted import ScriptedModel

POSIX = pytest.mark.skipif(os.name == "nt", reason="links and modes as POSIX has them")
KEY = "sk-ant-" + "a1b2" * 8
META = session_meta("s", provider="p", model_id="m", system_prompt="", workspace="w")
BAD_IDS = [
    "../../evil",
    "/no/such/passwd",
    "a/b",
    "..",
    "",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "s_001.jsonl",
    "a" * 129,
    "ｓ",
    "a\u202eb",
]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_session_ids_cannot_lead_anywhere(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only letters, digits, `_` and `-` make a session id: others are refused wherever one comes in, and nothing is made."""
    traces = tmp_path / "traces"
    with pytest.raises(ValueError, match="session_id"):
        TraceWriter(traces, session_meta(bad, provider="p", model_id="m", system_prompt="", workspace="w"))
    with pytest.raises(ValueError, match="session_id"):
        latest_file(traces, bad)
    with pytest.raises((ValueError, TraceReadError)):
        resume_session(traces, bad)
    with pytest.raises((ValueError, TraceError)):
        Session.open(bad, traces, ScriptedModel([]))
    with pytest.raises((ValueError, TraceError)):
        Session.create(traces, ScriptedModel([]), session_id=bad)
    assert main(["resume", "--traces", str(traces), "--", bad]) == 2
    assert "\x1b" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def begun(traces: Path) -> Path:
    with TraceWriter(traces, META) as writer:
        writer.write(user_text("a"))
    assert writer.file is not None
    return writer.file


@POSIX
def test_only_the_owner_reads_traces(tmp_path: Path) -> None:
    """Files of traces and locks are the owner's alone, and so are the folders that are made for them, whatever the umask."""
    before = os.umask(0)
    try:
        with TraceWriter(tmp_path / "traces", META) as writer:
            writer.write(user_text("a"))
            made = list((tmp_path / "traces").rglob("*"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
    finally:
        os.umask(before)
    assert len(made) == 4
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes


@POSIX
def test_a_link_in_place_of_a_trace_is_not_written_through(tmp_path: Path) -> None:
    """A link that somebody put where the session's file was: the writer refuses, and what it leads to stays as it is."""
    traces, prey = tmp_path / "traces", tmp_path / "prey"
    prey.write_text("mine\n")
    file = begun(traces)
    file.unlink()
    file.symlink_to(prey)
    with TraceWriter(traces, META, after=file) as writer, pytest.raises(TraceWriteError):
        writer.write(user_text("b"))
    assert prey.read_text() == "mine\n"


@POSIX
def test_links_for_the_next_file_and_the_lock(tmp_path: Path) -> None:
    """Links where the new file, its unborn twin or the lock will be: what they lead to is neither cut nor written."""
    for name in ("{day}/s_001.jsonl", "{day}/.s_001.jsonl.new", ".locks/s.lock"):
        traces, prey = tmp_path / name.replace("/", "-"), tmp_path / "prey"
        prey.write_text("mine\n")
        link = traces / name.format(day=time.strftime("%Y-%m-%d"))
        link.parent.mkdir(parents=True)
        link.symlink_to(prey)
        try:
            begun(traces)
        except TraceWriteError:
            pass
        assert prey.read_text() == "mine\n", name


@POSIX
@pytest.mark.parametrize("kind", ["link", "pipe", "folder link"])
def test_links_and_pipes_among_traces_are_no_traces(kind: str, tmp_path: Path) -> None:
    """A link, a pipe or a linked day folder among the traces is not taken for a session's file, and nothing waits for it."""
    traces, outside = tmp_path / "traces", tmp_path / "outside"
    day = traces / "2026-01-02"
    file = begun(outside)
    if kind == "folder link":
        traces.mkdir()
        day.symlink_to(file.parent)
    else:
        day.mkdir(parents=True)
        (day / "s_001.jsonl").symlink_to(file) if kind == "link" else os.mkfifo(day / "s_001.jsonl")
    assert trace_files(traces) == []
    with pytest.raises((TraceReadError, FileNotFoundError)):
        resume_session(traces, "s")


def test_a_meta_of_another_name(tmp_path: Path) -> None:
    """A trace whose meta names a path as its session: it is read, but nothing goes on with it, and nothing is made."""
    file = begun(tmp_path / "traces")
    lines = file.read_text().replace('"session_id":"s"', '"session_id":"../../../evil"')
    file.write_text(lines)
    assert resume_file(file).session_id == "../../../evil"
    with pytest.raises(ValueError, match="session_id"):
        reopen(tmp_path / "traces", "s")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_one_endless_line_is_not_held(tmp_path: Path) -> None:
    """A file of one line without an end is read in bounded memory, as damage."""
    file = tmp_path / "s_001.jsonl"
    file.write_bytes(b'{"a":"' + b"x" * 100_000)
    reader = TraceReader(file, max_line=1_000)
    assert list(reader) == []
    assert reader.damaged == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"x","payload":' + "[" * 100_000,
        '{"type":"x","payload":{"a":' + "[" * 1_000 + "]" * 1_000 + "}}",
        '{"type":"x","payload":{"a":' + "9" * 100_000 + "}}",
        '{"type":"x","payload":{"a":1e999999999}}',
        '{"type":"x","payload":{"a":NaN}}',
        '{"type":"event_msg","payload":{"type":"turn_start","index":' + "9" * 4_000 + "}}",
        '{"type":"event_msg","payload":{"type":"agent_end","stop_reason":"completed","stop_reason":"fatal"}}',
        '{"type":"model_msg","payload":{"type":"text","role":"user","text":"\\ud800\\udc00\\udc00"}}',
        '{"type":"event_msg","origin":["a"],"payload":{"type":"__class__","__proto__":{"__init__":1}}}',
        '{"type":"event_msg","origin":'
        + json.dumps([str(n) for n in range(500)])
        + ',"payload":{"type":"agent_start"}}',
    ],
    ids=lambda text: text[:60],
)
def test_hostile_records_go_through_every_command(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deep, huge, doubled, split and odd values: each command says or shows something, and ends."""
    file = tmp_path / "s.jsonl"
    file.write_text("\n".join([json.dumps(META), text, text, json.dumps(user_text("after"))]) + "\n")
    assert main(["check", str(file)]) in (0, 1)
    assert main(["replay", str(file)]) == 0
    assert main(["diff", str(file), str(file)]) == 0
    assert main(["resume", "--json", str(file)]) == 0
    assert "after" in capsys.readouterr().out


# ---------------------------------------------------------------- secrets


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.addFilter(MaskLog())
    logger = logging.getLogger("agentloop.test")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, text
    logger.removeHandler(handler)
    logger.propagate = True


def test_secrets_in_log_records(log: tuple[logging.Logger, io.StringIO]) -> None:
    """`MaskLog` on a handler masks words, arguments, tracebacks and stacks; what is no secret stays."""
    logger, text = log
    try:
        raise ValueError(f"refused: {KEY}")
    except ValueError as error:
        logger.error("the key %s of %d%% failed", KEY, 5, exc_info=error)
    logger.error("plain %s", "words", stack_info=True)
    assert KEY not in text.getvalue()
    assert text.getvalue().count("[masked anthropic key]") == 2
    assert "of 5% failed" in text.getvalue()
    assert "ValueError: refused" in text.getvalue()
    assert "plain words" in text.getvalue()


def test_a_secret_in_a_result_is_not_stored(tmp_path: Path) -> None:
    """A tool that prints a key: the file does not hold it, the run's own message does."""
    message = ToolResultMessage("c", "t", KEY)
    with TraceWriter(tmp_path, META) as writer:
        writer.write(user_text(f"here: {KEY}"))
    assert writer.file is not None
    assert KEY not in writer.file.read_text()
    assert message.text == KEY


# ---------------------------------------------------------------- clients of the stream

FORGED = [
    "e-1",
    "-1",
    "x" * 100_000,
    "0-" + "9" * 100_000,
    "{epoch}-999999",
    "{epoch}--1",
    "{epoch}-1\n",
    "{epoch}-١",
    "{epoch}-1e3",
]


@pytest.mark.parametrize("id", FORGED, ids=lambda id: id[:20])
def test_a_forged_last_event_id_replays_nothing(id: str) -> None:
    """An id that this channel never gave: the client is told to fetch the history, and gets no frame of it."""
    channel = Channel()
    for number in range(3):
        channel.publish(user_text(str(number)))
    assert channel.missed(id.format(epoch=channel.epoch)) is None


def test_the_replay_buffer_is_bounded() -> None:
    """However much is published and however large one record is, the buffer keeps within its bounds."""
    channel = Channel(max_events=10, max_bytes=1_000)
    first = channel.cursor
    for size in (10, 10_000, 100, 100, 100):
        channel.publish(user_text("x" * size))
    kept = channel.missed(channel.cursor)
    assert kept == []
    assert channel.missed(first) is None
    frames = [channel.publish(user_text("y")) for _ in range(50)]
    assert channel.missed(frames[0].id) is None
    assert len(channel.missed(frames[-5].id) or ()) == 4
