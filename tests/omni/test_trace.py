"""Writing traces: one write a record, rotation, torn tails, full disks, one writer a session."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import TraceLocked, TraceReadError, TraceWriteError
from agentloop.messages import ToolSpec, Usage
from agentloop.omni.jsonl import dumps
from agentloop.omni.records import (
    Record,
    abort,
    agent_end,
    agent_start,
    assistant_text,
    compaction_begin,
    compaction_end,
    hook,
    is_repeated,
    mcp_connect_begin,
    mcp_connect_end,
    message_end,
    message_start,
    partial_text,
    request_begin,
    request_end,
    session_meta,
    subagent,
    token_usage,
    tool_execution_update,
    tool_list_ready,
    turn_end,
    turn_start,
    user_text,
    with_origin,
)
from agentloop.omni.trace import HeadOfFile, TraceWriter, latest_file, read, trace_files
from tests.costs import file_size_limit

META = session_meta("s1", provider="p", model_id="m")
CLOSED = compaction_end("context", "summarize", "completed", attempt=1)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs limits and devices of Linux")


def kinds(path: Path) -> list[str]:
    return [record["payload"].get("type", record["type"]) for record in read(path)]


def files(traces: Path) -> list[Path]:
    return [file.path for file in trace_files(traces)]


def write(trace: TraceWriter, *records: Record) -> None:
    for record in records:
        trace.write(record)


# ---------------------------------------------------------------- what is written, and where


def test_place_and_content(tmp_path: Path) -> None:
    """22: `<traces>/<local day>/<session>_001.jsonl`, headed by the meta, then the records as one line each."""
    records = [user_text("é\u2028\n"), request_begin(), assistant_text("b")]
    with TraceWriter(tmp_path, META, clock=lambda: 1_788_000_000) as trace:
        write(trace, *records)
        assert trace.file == tmp_path / "2026-08-29" / "s1_001.jsonl"
    assert trace.file.read_bytes() == b"".join(dumps(record) + b"\n" for record in [META, *records])


def test_what_is_recorded(tmp_path: Path) -> None:
    """21: complete messages and events, in order; fragments, progress, foreign envelopes and what has an origin are
    left out; the pointer to a child is recorded."""
    child = with_origin(session_meta("s2", provider="p", model_id="m"), "s2")
    kept = [user_text("a"), subagent("s2"), {"type": "event_msg", "payload": {"type": "later", "new": 1}}]
    with TraceWriter(tmp_path, META) as trace:
        write(trace, kept[0], partial_text("start"), kept[1], child, with_origin(user_text("b"), "s2"))
        write(trace, tool_execution_update("c", "t"), {"type": "strange", "payload": {}}, kept[2])
    assert list(read(trace.file or tmp_path)) == [META, *kept]


def test_each_record_is_there_when_write_returns(tmp_path: Path) -> None:
    """A record can be read by somebody else as soon as `write` has returned: nothing is buffered."""
    with TraceWriter(tmp_path, META) as trace:
        for number in range(5):
            trace.write(user_text(str(number)))
            assert len(list(read(trace.file or tmp_path))) == number + 2


def test_nothing_is_made_before_the_first_record(tmp_path: Path) -> None:
    """A session in which nothing happened has no file."""
    with TraceWriter(tmp_path, META) as trace:
        write(trace, agent_start(), turn_start(0))
        assert files(tmp_path) == []
    assert files(tmp_path) == []


# ---------------------------------------------------------------- the head of a file


def test_head_of_the_first_file(tmp_path: Path) -> None:
    """`session_meta`, `agent_start` and `turn_start` wait for the first record after them."""
    with TraceWriter(tmp_path, META) as trace:
        write(trace, agent_start(), turn_start(0))
        assert trace.file is None
        trace.write(message_start("user"))
        assert kinds(trace.file or tmp_path) == ["session_meta", "agent_start", "turn_start", "message_start"]


def test_later_runs_are_not_held(tmp_path: Path) -> None:
    """In a file that has content a later run's start is written at once."""
    with TraceWriter(tmp_path, META) as trace:
        write(trace, user_text("a"), agent_end(), agent_start())
        assert kinds(trace.file or tmp_path) == ["session_meta", "text", "agent_end", "agent_start"]


SPAN = [
    compaction_begin("context", "summarize"),
    user_text("Summarise."),
    request_begin(),
    assistant_text("[summary]s[/summary]"),
    request_end(),
    CLOSED,
]


def test_rotation_waits_for_content(tmp_path: Path) -> None:
    """22, 24: after a completed compaction the old file is left as it is; the next context's first content opens
    `_002`, with the meta, the records of opening (marked as repeated), and what waited."""
    tools = tool_list_ready([ToolSpec("t")])
    with TraceWriter(tmp_path, META) as trace:
        write(trace, agent_start(), turn_start(0), user_text("a"), mcp_connect_begin(["m"]))
        write(trace, mcp_connect_end("completed"), tools, turn_end(), *SPAN)
        (first,) = files(tmp_path)
        before = first.read_bytes()
        write(trace, turn_start(1), message_start("user"))
        assert files(tmp_path) == [first]
        write(trace, user_text("[context_summary]\ns\n[/context_summary]"), message_end())
    old, new = files(tmp_path)
    assert old.read_bytes() == before
    assert new.name == "s1_002.jsonl"
    opening = ["mcp_connect_begin", "mcp_connect_end", "tool_list_ready"]
    assert kinds(new) == ["session_meta", *opening, "turn_start", "message_start", "text", "message_end"]
    assert [is_repeated(record) for record in read(new)] == [False, True, True, True, False, False, False, False]
    assert next(iter(read(new))) == META


def test_the_end_of_a_run_behind_a_completed_compaction(tmp_path: Path) -> None:
    """Neither `agent_end` nor the `abort` before it is written behind a completed compaction, nor do they open a
    file; nor does a later run that ends before its first input, nor a hook."""
    with TraceWriter(tmp_path, META) as trace:
        write(trace, user_text("a"), *SPAN)
        write(trace, abort("user_abort"), agent_end("aborted"))
        write(trace, agent_start(), turn_start(0), abort("user_abort"), agent_end("aborted"))
        write(trace, hook("stop", "h"))
        (first,) = files(tmp_path)
        assert kinds(first)[-1] == "compaction_end"
        write(trace, agent_start(), turn_start(0), user_text("b"))
        assert kinds(files(tmp_path)[1]) == ["session_meta", "hook", "agent_start", "turn_start", "text"]


def test_a_given_up_compaction_does_not_rotate(tmp_path: Path) -> None:
    """Any end but `completed` keeps context and file."""
    with TraceWriter(tmp_path, META) as trace:
        write(trace, user_text("a"), compaction_end("context", "summarize", "retryable"), agent_end(), user_text("b"))
    assert len(files(tmp_path)) == 1


def test_a_model_switch_opens_the_next_file(tmp_path: Path) -> None:
    """79: `rotate` gives the next file a meta of its own, and the next record opens it."""
    other = session_meta("s1", provider="p", model_id="other")
    with TraceWriter(tmp_path, META) as trace:
        write(trace, user_text("a"), *SPAN)
        trace.rotate(other)
        trace.write(user_text("[context_summary]\ns\n[/context_summary]"))
    assert [next(iter(read(path)))["payload"]["model_id"] for path in files(tmp_path)] == ["m", "other"]


def test_head_rules_are_pure() -> None:
    """The rule of the head, without a disk: what was not written still waits, and goes with the next record."""
    head = HeadOfFile()
    start, text, again = agent_start(), user_text("a"), user_text("b")
    assert head.take(start) == []
    assert head.take(text) == [start, text]  # the write failed: nothing is confirmed
    assert head.take(again) == [start, again]
    head.wrote(again)
    assert head.take(text) == [text]


# ---------------------------------------------------------------- going on with a file


def begun(tmp_path: Path, tail: bytes = b"") -> Path:
    with TraceWriter(tmp_path, META) as trace:
        trace.write(user_text("a"))
    assert trace.file is not None
    with trace.file.open("ab") as out:
        out.write(tail)
    return trace.file


@pytest.mark.parametrize(
    "tail",
    [b"", b"\n", b'{"timestamp":"x', b'{"a":"\xc3', dumps(user_text("whole"))],
    ids=["nothing", "an empty line", "half a record", "half a character", "a record without its newline"],
)
def test_torn_tails_are_healed_once(tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """26, 27, C127: going on with a file whose last byte is no newline puts one first, once, and says so; a clean
    file gets none; all complete records are kept, a complete one without its newline too, and new ones read back."""
    path = begun(tmp_path, tail)
    before = path.read_bytes()
    with TraceWriter(tmp_path, META, after=path) as trace:
        assert path.read_bytes() == before
        write(trace, user_text("b"), user_text("c"))
        added = path.read_bytes()[len(before) :]
    torn = not before.endswith(b"\n")
    assert added.startswith(b"\n{") == torn
    assert added.count(b"\n") == 2 + torn
    assert ("the last line had no end" in caplog.text) == torn
    texts = [record["payload"].get("text") for record in read(path)][1:]
    assert texts == ["a", *(["whole"] if b"whole" in tail else []), "b", "c"]


def test_crash_and_go_on_three_times(tmp_path: Path) -> None:
    """C127: crash inside a record, go on, crash again: every complete record of every life is kept, each fragment is
    one damaged line."""
    path = begun(tmp_path)
    for life in range(3):
        with path.open("ab") as out:
            out.write(dumps(user_text("lost é"))[: 40 + life])
        with TraceWriter(tmp_path, META, after=path) as trace:
            trace.write(user_text(f"life {life}"))
    reader = read(path)
    assert [record["payload"].get("text") for record in reader] == [None, "a", "life 0", "life 1", "life 2"]
    assert reader.damaged_lines == (3, 5, 7)


def test_an_empty_file_gets_no_newline(tmp_path: Path) -> None:
    """27: an empty file is clean."""
    path = begun(tmp_path)
    path.write_bytes(b"")
    with TraceWriter(tmp_path, META, after=path) as trace:
        trace.write(user_text("b"))
    assert path.read_bytes().startswith(b"{")


def test_going_on_after_a_closed_context(tmp_path: Path) -> None:
    """`rotate` at going on: the next record opens the next file in today's folder, with the meta that was given."""
    path = begun(tmp_path)
    tools = tool_list_ready([ToolSpec("t")])
    meta = session_meta("s1", provider="p", model_id="m", system_prompt="afresh")
    with TraceWriter(tmp_path, meta, after=path, rotate=True, opening=[tools], clock=lambda: 0.0) as trace:
        write(trace, agent_start(), user_text("b"))
    assert trace.file == tmp_path / "1970-01-01" / "s1_002.jsonl"
    assert kinds(trace.file) == ["session_meta", "tool_list_ready", "agent_start", "text"]
    assert next(iter(read(trace.file)))["payload"]["system_prompt"] == "afresh"
    assert latest_file(tmp_path, "s1") == trace.file


def test_a_new_session_must_be_new(tmp_path: Path) -> None:
    """A session that has files is not begun again; its lock is given back."""
    path = begun(tmp_path)
    with pytest.raises(TraceWriteError, match="expected a new session, got one with files"):
        TraceWriter(tmp_path, META)
    TraceWriter(tmp_path, META, after=path).close()


# ---------------------------------------------------------------- the bad day


@LINUX
def test_full_disk(tmp_path: Path) -> None:
    """A disk that is full is a clear error that names the file and the system's reason; the next record is tried
    again."""
    path = Path("/dev/full")
    with TraceWriter(tmp_path, META, after=path) as trace:
        for _ in range(2):
            with pytest.raises(TraceWriteError, match=rf"{path}.*No space left on device") as failure:
                trace.write(user_text("b"))
            assert isinstance(failure.value.__cause__, OSError)
            assert failure.value.__cause__.errno == errno.ENOSPC


@LINUX
def test_a_partly_written_record(tmp_path: Path) -> None:
    """25, 26: a record that was cut by the end of the space fails for its own caller only; the next one starts on a
    fresh line and is whole."""
    path = begun(tmp_path)
    size = path.stat().st_size
    with TraceWriter(tmp_path, META, after=path) as trace:
        with file_size_limit(size + 50):
            for _ in range(2):
                with pytest.raises(TraceWriteError, match="File too large"):
                    trace.write(user_text("lost" * 100))
        assert path.stat().st_size == size + 50
        trace.write(user_text("b"))
    reader = read(path)
    assert [record["payload"].get("text") for record in reader] == [None, "a", "b"]
    assert reader.damaged_lines == (3,)


@LINUX
def test_no_space_for_a_head(tmp_path: Path) -> None:
    """A head that does not fit leaves nothing behind, and is tried again with the next record; what waited is not
    lost."""
    with TraceWriter(tmp_path, META) as trace:
        write(trace, agent_start(), turn_start(0))
        with file_size_limit(20), pytest.raises(TraceWriteError):
            trace.write(user_text("lost"))
        assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
        trace.write(user_text("b"))
    assert kinds(trace.file or tmp_path) == ["session_meta", "agent_start", "turn_start", "text"]


def test_a_write_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """26: a write that makes no progress gives up, leaves nothing behind and does not hang."""
    path = begun(tmp_path)
    before = path.read_bytes()
    with TraceWriter(tmp_path, META, after=path) as trace:
        trace.write(user_text("b"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: 0)
            with pytest.raises(TraceWriteError, match="no progress"):
                trace.write(user_text("lost"))
        trace.write(user_text("c"))
    assert path.read_bytes().startswith(before)
    assert [record["payload"].get("text") for record in read(path)][1:] == ["a", "b", "c"]
    assert read(path).damaged == 0


def test_one_write_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """23: each record, also one of several megabytes, is one single write of its whole line."""
    sizes: list[int] = []
    real = os.write

    def counting(fd: int, data: Any) -> int:
        sizes.append(len(data))
        return real(fd, data)

    path = begun(tmp_path)
    with TraceWriter(tmp_path, META, after=path) as trace:
        monkeypatch.setattr(os, "write", counting)
        write(trace, user_text("b"), user_text("x" * 5_000_000))
        monkeypatch.undo()
    assert sizes == [len(dumps(user_text("b"))) + 1, len(dumps(user_text(""))) + 1 + 5_000_000]


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the system cuts short without an error is finished: the line is whole."""
    path = begun(tmp_path)
    real = os.write
    with TraceWriter(tmp_path, META, after=path) as trace:
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        trace.write(user_text("b"))
        monkeypatch.undo()
    assert [record["payload"].get("text") for record in read(path)][1:] == ["a", "b"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A place that is no folder is a clear error when the writer is made."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TraceWriteError, match="expected to lock the session"):
        TraceWriter(tmp_path / "file", META)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """Going on with a file that is not there is a clear error; no headless file is made."""
    gone = tmp_path / "2026-09-01" / "s1_001.jsonl"
    with TraceWriter(tmp_path, META, after=gone) as trace, pytest.raises(TraceWriteError, match="No such file"):
        trace.write(user_text("a"))
    assert files(tmp_path) == []


def test_what_is_no_json(tmp_path: Path) -> None:
    """A record that JSON cannot say is refused with its path; the file is untouched."""
    path = begun(tmp_path)
    before = path.read_bytes()
    with TraceWriter(tmp_path, META, after=path) as trace, pytest.raises(TraceWriteError, match=r"payload\.x"):
        trace.write({"type": "event_msg", "payload": {"x": {1}}})
    assert path.read_bytes() == before


def test_a_closed_writer(tmp_path: Path) -> None:
    """Writing after `close` is a clear error; closing twice is none."""
    trace = TraceWriter(tmp_path, META)
    trace.close()
    trace.close()
    with pytest.raises(TraceWriteError, match="expected an open writer"):
        trace.write(user_text("a"))


def test_bad_session_ids(tmp_path: Path) -> None:
    """A session id that could lead out of the folder is refused, and nothing is made."""
    for bad in ("../s", "a/b", "", "x" * 129):
        with pytest.raises(ValueError, match="session_id"):
            TraceWriter(tmp_path / "t", session_meta(bad, provider="p", model_id="m"))
    assert not (tmp_path / "t").exists()


# ---------------------------------------------------------------- one writer a session


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """A session has one writer: the second is refused with the holder's process; after the first has closed it may."""
    first = TraceWriter(tmp_path, META)
    first.write(user_text("a"))
    with pytest.raises(TraceLocked, match=rf"session s1: expected no other writer, got one \(process {os.getpid()}\)"):
        TraceWriter(tmp_path, META, after=first.file)
    TraceWriter(tmp_path, session_meta("s2", provider="p", model_id="m")).close()
    first.close()
    TraceWriter(tmp_path, META, after=first.file).close()
    assert list((tmp_path / ".locks").iterdir()) == []


def test_a_session_that_was_refused_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the error does not keep the session with it: one that has files, and one whose folder cannot be read."""

    def unreadable(folder: Any) -> Any:
        raise PermissionError("not yours")

    with TraceWriter(tmp_path, META) as first:
        first.write(user_text("a"))
    with pytest.raises(TraceWriteError, match="expected a new session") as known:
        TraceWriter(tmp_path, META)
    TraceWriter(tmp_path, META, after=first.file).close()
    with monkeypatch.context() as patch, pytest.raises(TraceReadError, match="not yours") as unread:
        patch.setattr(os, "scandir", unreadable)
        TraceWriter(tmp_path, META)
    TraceWriter(tmp_path, META, after=first.file).close()
    assert known.value is not unread.value


def test_a_forgotten_writer_gives_its_session_back(tmp_path: Path) -> None:
    """A writer that nobody holds any more locks nobody out."""
    TraceWriter(tmp_path, META).write(user_text("a"))
    TraceWriter(tmp_path, META, after=latest_file(tmp_path, "s1")).close()
    assert list((tmp_path / ".locks").iterdir()) == []


def test_another_process(tmp_path: Path) -> None:
    """The lock holds between processes, and dies with its holder, however that dies."""
    script = (
        "import sys\n"
        "from agentloop.omni.records import session_meta, user_text\n"
        "from agentloop.omni.trace import TraceWriter\n"
        "trace = TraceWriter(sys.argv[1], session_meta('s1', provider='p', model_id='m'))\n"
        "trace.write(user_text('a'))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        path = latest_file(tmp_path, "s1")
        with pytest.raises(TraceLocked, match=rf"process {holder.pid}"):
            TraceWriter(tmp_path, META, after=path)
        holder.kill()
    with TraceWriter(tmp_path, META, after=path) as trace:
        trace.write(user_text("b"))
    assert kinds(path or tmp_path) == ["session_meta", "text", "text"]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    """23, 24: records of several threads never interleave, large ones among small ones, over a rotation too; each
    thread's own order is kept."""
    with TraceWriter(tmp_path, META) as trace:

        def work(name: int) -> None:
            for number in range(60):
                trace.write(user_text(f"{name}:{number}:" + "x" * (200_000 if number % 20 == 0 else 10)))
                if name == 0 and number == 30:
                    trace.write(CLOSED)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    old, new = files(tmp_path)
    assert kinds(old)[-1] == "compaction_end"
    seen: dict[str, list[int]] = {}
    for path in (old, new):
        reader = read(path)
        for record in reader:
            if record["payload"].get("type") == "text":
                name, number, _ = record["payload"]["text"].split(":")
                seen.setdefault(name, []).append(int(number))
        assert reader.damaged == 0
    assert seen == {str(name): list(range(60)) for name in range(4)}


# ---------------------------------------------------------------- redaction and fsync


def test_secrets_are_masked_by_default(tmp_path: Path) -> None:
    """Before anything is stored, known secret shapes are masked: in the meta, in records; None switches it off."""
    secret = "ghp_" + "a1" * 18
    for number, redact in enumerate(({}, {"redact": None})):
        meta = session_meta(f"s{number}", provider="p", model_id="m", system_prompt=secret)
        with TraceWriter(tmp_path, meta, **redact) as trace:
            trace.write(user_text(secret))
        assert trace.file is not None
        assert trace.file.read_bytes().count(secret.encode()) == 2 * number


def test_a_redaction_of_ones_own(tmp_path: Path) -> None:
    """A redaction may change or drop records; one that raises stores nothing and is a clear error."""

    def redact(record: Record) -> Record | None:
        text = record["payload"].get("text")
        if text == "raise":
            raise RuntimeError("no")
        return None if text == "drop" else {**record, "seen": True}

    with TraceWriter(tmp_path, META, redact=redact) as trace:
        write(trace, user_text("drop"), user_text("a"))
        with pytest.raises(TraceWriteError, match="no"):
            trace.write(user_text("raise"))
        write(trace, user_text("drop"), user_text("b"))
    records = list(read(trace.file or tmp_path))
    assert [record["payload"].get("text") for record in records] == [None, "a", "b"]
    assert all(record["seen"] for record in records)


@pytest.mark.parametrize(
    ("meta", "got"), [("s1", "str"), ({}, "dict"), ({"payload": "s1"}, "dict"), (None, "NoneType")]
)
def test_a_meta_that_is_none(meta: Any, got: str, tmp_path: Path) -> None:
    """It is said what makes one, and nothing is made in the folder."""
    with pytest.raises(TypeError, match=rf"^meta: expected a record that session_meta\(…\) makes, got {got}$"):
        TraceWriter(tmp_path, meta)
    assert list(tmp_path.iterdir()) == []


def test_a_word_for_fsync_that_there_is_not(tmp_path: Path) -> None:
    """It is refused, and does not pass for `never`; the session stays free."""
    with pytest.raises(ValueError, match="fsync: expected one of never, milestones, always, got 'milestone'"):
        TraceWriter(tmp_path, META, fsync="milestone")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`never` asks the system for nothing, `milestones` after what must not be forgotten, `always` after each
    record."""
    calls: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(fd), real(fd))[1])
    usage = token_usage(Usage(), Usage())
    counts = []
    for fsync in ("never", "milestones", "always"):
        calls.clear()
        with TraceWriter(tmp_path, session_meta(fsync, provider="p", model_id="m"), fsync=fsync) as trace:  # type: ignore[arg-type]
            trace.write(user_text("a"))
            head = len(calls)
            write(trace, request_begin(), usage, request_end())
        counts.append((head > 0, len(calls) - head))
    assert counts == [(False, 0), (True, 1), (True, 3)]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions bind nobody who is root: a test of them is somebody else for a while."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a system with users")
def test_a_read_only_folder(tmp_path: Path) -> None:
    """A defined outcome: an error that names the folder; the session does not begin, and nothing is left there."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    try:
        with unprivileged(), pytest.raises(TraceWriteError, match="home"):
            TraceWriter(home / "traces", META)
        assert list(home.iterdir()) == []
    finally:
        home.chmod(0o755)
