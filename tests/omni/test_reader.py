"""Reading traces: any damage is borne and reported, in constant memory; names and places."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import TraceReadError
from agentloop.omni.jsonl import dumps
from agentloop.omni.reader import (
    TraceFile,
    TraceReader,
    check_session_id,
    latest_file,
    latest_session,
    read,
    trace_files,
    trace_path,
)
from agentloop.omni.records import assistant_text, request_begin, session_meta, user_text

META = session_meta("s1", provider="p", model_id="m")
RECORDS = [META, user_text("a\u2028b"), request_begin(), assistant_text("é😀")]


def lines(*records: object) -> bytes:
    return b"".join(dumps(record) + b"\n" for record in records)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s1_001.jsonl"
    path.write_bytes(lines(*RECORDS))
    return path


def test_reads_what_stands_there(file: Path) -> None:
    """8: every record comes back as it was, with its line number; foreign line separators are text; again and again."""
    reader = read(file)
    assert list(reader) == RECORDS
    assert list(reader.numbered()) == list(enumerate(RECORDS, 1))
    assert (reader.damaged, reader.torn, reader.report()) == (0, False, None)


def test_samples_read_as_their_own_reader_does(shared: Path) -> None:
    """28, 29: each sample file gives as many records as expected, and the damage that is expected."""
    damage = {}
    for path in sorted((shared / "traces").glob("*/session-*.jsonl")):
        reader = read(path)
        raw = [line for line in path.read_bytes().split(b"\n") if line]
        assert len(list(reader)) == len(raw) - reader.damaged - reader.torn
        damage[path.parent.name[:2]] = (reader.damaged_lines, reader.torn)
    assert {name: found for name, found in damage.items() if found != ((), False)} == {
        "21": ((), True),
        "23": ((10,), False),
    }


def test_torn_last_line_at_every_byte(file: Path) -> None:
    """28, C127: cut at any byte, inside a character too, a file gives all its complete records; a complete last record
    without its newline is kept; nothing is reported as damage."""
    whole = file.read_bytes()
    for end in range(len(whole) + 1):
        file.write_bytes(whole[:end])
        reader = read(file)
        records = list(reader)
        complete = [n for n in range(len(RECORDS) + 1) if len(lines(*RECORDS[:n])) - (n > 0) <= end][-1]
        assert records == RECORDS[:complete]
        assert reader.damaged == 0
        assert reader.torn == (len(lines(*RECORDS[:complete])) < end)


def test_damaged_middle_lines(file: Path) -> None:
    """29: a bad line in the middle is skipped and reported by its number, every other record is kept; strict mode
    fails."""
    file.write_bytes(lines(META) + b'{"half":\n' + lines(RECORDS[1]) + b"\xff\xfe\n\n" + lines(RECORDS[2]))
    reader = read(file)
    assert list(reader) == [META, RECORDS[1], RECORDS[2]]
    assert reader.damaged_lines == (2, 4)
    assert reader.report() == f"{file}: skipped 2 damaged lines: 2, 4"
    with pytest.raises(TraceReadError, match="line 2: expected a record, got no JSON"):
        list(read(file, strict=True))


def test_strict_bears_a_torn_tail(file: Path) -> None:
    """29: strict mode too drops a torn last line."""
    file.write_bytes(lines(META) + b'{"half":')
    assert list(read(file, strict=True)) == [META]


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"3",
        b"-0.5",
        b'"x"',
        b"[]",
        b"true",
        b"{}",
        b'{"type":"event_msg"}',
        b'{"type":1,"payload":{}}',
        b'{"payload":{}}',
        b'{"type":"event_msg","payload":null}',
        b'{"type":"event_msg","payload":[]}',
    ],
)
def test_json_that_is_no_record_is_damage(file: Path, line: bytes) -> None:
    """31: null, numbers, arrays, envelopes without a payload or a type are damage, not a crash; at the end as well."""
    for tail in (lines(RECORDS[1]), b""):
        file.write_bytes(lines(META) + line + b"\n" + tail)
        reader = read(file)
        assert list(reader) == [META, *([RECORDS[1]] if tail else [])]
        assert reader.damaged_lines == (2,)


def test_a_report_names_twenty(file: Path) -> None:
    """30: thousands of bad lines are counted in one pass; the report names at most 20 of them."""
    count = 50_000
    file.write_bytes(lines(META) + b'{"bad": [1, 2,\n' * count + lines(RECORDS[1]))
    reader = read(file)
    assert list(reader) == [META, RECORDS[1]]
    assert reader.damaged == count
    assert reader.damaged_lines == tuple(range(2, 22))
    assert "skipped 50000 damaged lines: 2, 3," in (reader.report() or "")


def test_byte_order_mark_blank_lines_and_carriage_returns(file: Path) -> None:
    """A byte order mark at the start, blank lines, blanks around a record and CRLF are borne; a mark later is
    damage."""
    first, second = dumps(META), dumps(RECORDS[1])
    file.write_bytes(b"\xef\xbb\xbf" + first + b"\r\n\r\n  \n " + second + b" \r\n\xef\xbb\xbf" + second + b"\n")
    reader = read(file)
    assert list(reader) == [META, RECORDS[1]]
    assert reader.damaged_lines == (5,)


def test_unknown_kinds_are_kept(file: Path) -> None:
    """9: unknown envelope types, kinds and fields are no damage."""
    strange = [
        {"type": "new_msg", "payload": {}, "y": 1},
        {"timestamp": "x", "type": "event_msg", "payload": {"type": "later", "a": [1.0, 2**70]}},
        {"type": "event_msg", "payload": {}},
    ]
    file.write_bytes(lines(*strange))
    assert list(read(file)) == strange


def test_deep_json_is_damage(file: Path) -> None:
    """A line that nests without end is damage, not a crash."""
    file.write_bytes(b'{"type":"x","payload":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n" + lines(META))
    reader = read(file)
    assert list(reader) == [META]
    assert reader.damaged_lines == (1,)


def test_lines_beyond_the_limit_are_not_held(file: Path) -> None:
    """A line that is longer than any record may be is skipped in pieces and reported; lines at the limit are read."""
    record = user_text("x" * 100)
    limit = len(lines(record))
    for excess in (1, limit, 3 * limit):
        file.write_bytes(lines(record) + b"y" * (limit + excess) + b"\n" + lines(record))
        reader = TraceReader(file, max_line=limit + 1)
        assert list(reader) == [record, record]
        assert reader.damaged_lines == (2,)


def test_large_files_take_constant_memory(file: Path) -> None:
    """Records are given one by one: a file of many megabytes does not raise the peak by its size."""
    with file.open("wb") as out:
        for _ in range(400):
            out.write(lines(user_text("x" * 100_000)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in read(file)) == 400
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 20_000_000


@given(st.lists(st.binary(max_size=20) | st.sampled_from([lines(record) for record in RECORDS]), max_size=12))
def test_any_bytes_are_borne(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Whatever a file holds, reading it does not crash, and whole lines that are records are kept in order."""
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    data = b"".join(pieces)
    path.write_bytes(data)
    known = [dumps(record) for record in RECORDS]
    expected = [text for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if (text := line.strip()) in known]
    found = [dumps(record) for record in read(path)]
    assert [line for line in found if line in known] == expected


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder are clear errors."""
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TraceReadError, match="expected a readable file"):
            list(read(path))


# ---------------------------------------------------------------- names and places


def put(traces: Path, day: str, session: str, index: int, *records: object) -> Path:
    path = trace_path(traces, day, session, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines(*records))
    return path


@pytest.mark.parametrize("bad", ["", "../x", "a/b", "a b", "a.b", "ä", "x" * 129, "a\n", "a\0", None, 3])
def test_session_ids_that_are_no_names(tmp_path: Path, bad: object) -> None:
    """12: an id that could lead out of the folder, or is no name, is refused before anything is touched."""
    with pytest.raises(ValueError, match="session_id: expected 1 to 128"):
        check_session_id(bad)
    with pytest.raises(ValueError, match="session_id"):
        latest_file(tmp_path, bad or "")  # type: ignore[arg-type]


def test_names() -> None:
    """22, 32: a trace's name is session, `_`, at least three digits, `.jsonl`; anything else is no trace."""
    assert TraceFile.of("t/2026-09-01/a_b_007.jsonl") == TraceFile(
        "a_b", 7, "2026-09-01", Path("t/2026-09-01/a_b_007.jsonl")
    )
    for name in (
        "a_01.jsonl",
        "a_0001.jsonl",
        "a.jsonl",
        "a_001.json",
        "a_001.jsonl.new",
        ".a_001.jsonl.new",
        "a_00x.jsonl",
    ):
        assert TraceFile.of(name) is None
    assert trace_path(Path("t"), "d", "a", 12) == Path("t/d/a_012.jsonl")
    later = TraceFile.of(trace_path(Path("t"), "d", "a", 1000))
    assert later is not None
    assert later.index == 1000


def test_latest_file(tmp_path: Path) -> None:
    """32: the highest index over all day folders, whatever the day; other sessions and other names do not count."""
    put(tmp_path, "2026-09-03", "a", 1)
    newest = put(tmp_path, "2026-09-01", "a", 2)
    put(tmp_path, "2026-09-02", "a_002", 5)
    put(tmp_path, "2026-09-02", "ab", 9)
    put(tmp_path, ".locks", "a", 9)
    (tmp_path / "2026-09-02" / "a_9.jsonl").write_bytes(b"")
    (tmp_path / "a_009.jsonl").write_bytes(b"")
    assert latest_file(tmp_path, "a") == newest
    assert latest_file(tmp_path, "none") is None
    assert latest_file(tmp_path / "none", "a") is None
    assert [file.index for file in trace_files(tmp_path, "a")] == [1, 2]


def test_latest_session(tmp_path: Path) -> None:
    """32: the newest session by name that holds more than a meta; one with a meta alone, or with nothing, does not
    count."""
    assert latest_session(tmp_path) is None
    put(tmp_path, "2026-09-01", "session-2026-09-01-10-00-00-a", 1, META, RECORDS[1])
    put(tmp_path, "2026-09-02", "session-2026-09-02-10-00-00-b", 1, META, RECORDS[1])
    put(tmp_path, "2026-09-02", "session-2026-09-02-10-00-00-b", 2, META)
    put(tmp_path, "2026-09-03", "session-2026-09-03-10-00-00-c", 1, META)
    put(tmp_path, "2026-09-03", "session-2026-09-04-10-00-00-d", 1)
    assert latest_session(tmp_path) == "session-2026-09-02-10-00-00-b"
