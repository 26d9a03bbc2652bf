"""Reopening: pointers become the children's records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentloop.omni.expand import expand, session_records
from agentloop.omni.jsonl import dumps
from agentloop.omni.reader import trace_path
from agentloop.omni.records import Record, session_meta, subagent, user_text, with_origin


def told(records: list[Record]) -> list[str]:
    return [
        "/".join([*record.get("origin", []), record["payload"].get("text") or f"-> {record['payload']['session_id']}"])
        for record in records
    ]


SESSIONS = {
    "top": [user_text("1"), subagent("mid"), user_text("2"), subagent("gone"), subagent("top")],
    "mid": [user_text("a"), subagent("low"), subagent("top"), user_text("b"), with_origin(user_text("forwarded"), "x")],
    "low": [user_text("deep"), subagent("mid"), subagent("low")],
}


def test_pointers_are_expanded_at_their_place() -> None:
    """84: children stand at their pointer, with the chain put before, at any depth; a missing child, the session
    itself and an ancestor leave their pointer."""
    assert told(list(expand(SESSIONS["top"], SESSIONS.get, session_id="top"))) == [
        "1", "mid/a", "mid/low/deep", "mid/low/-> mid", "mid/low/-> low", "mid/-> top", "mid/b", "mid/x/forwarded", "2",
        "-> gone", "-> top",
    ]  # fmt: skip


def test_a_child_is_shown_once() -> None:
    """84: a second pointer to a child leaves itself, so that what comes out is never more than what the files hold."""
    assert told(list(expand([subagent("low"), subagent("low")], {"low": [user_text("x")]}.get))) == ["low/x", "-> low"]
    sessions = {str(n): [subagent(str(n + 1)), subagent(str(n + 1))] for n in range(60)}
    assert len(list(expand(sessions["0"], sessions.get, session_id="0"))) == 61


def test_a_long_chain_is_no_recursion() -> None:
    """84: a chain of thousands of sessions ends."""
    sessions = {str(n): [subagent(str(n + 1))] for n in range(3_000)}
    (last,) = expand(sessions["0"], sessions.get, session_id="0")
    assert len(last["origin"]) == 2_999


def test_the_sample(shared: Path, tmp_path: Path) -> None:
    """84: the parent of the sample, reopened, shows the child's six records with its origin at the pointer's place."""
    day = tmp_path / "2026-09-01"
    shutil.copytree(shared / "traces" / "16-subagent", day)
    records = list(session_records(tmp_path, "session-2026-09-01-10-16-00-a0001110"))
    origins = [record.get("origin") for record in records]
    child = "session-2026-09-01-10-30-00-c0ffee01"
    assert origins == [None] * 6 + [[child]] * 6 + [None] * 7
    assert records[6]["type"] == "session_meta"
    json.dumps(records)


def test_all_files_of_a_session(tmp_path: Path) -> None:
    """Every file of a session and of its children counts, in order; a pointer that is no name leaves itself."""
    for session, index, text in (("s", 1, "1"), ("s", 2, "2"), ("c", 1, "a"), ("c", 2, "b")):
        path = trace_path(tmp_path, "2026-09-01", session, index)
        path.parent.mkdir(exist_ok=True)
        records = [session_meta(session, provider="p", model_id="m"), user_text(text)]
        if (session, index) == ("s", 1):
            records += [subagent("c"), subagent("../c")]
        path.write_bytes(b"".join(dumps(record) + b"\n" for record in records))
    shown = [record for record in session_records(tmp_path, "s") if record["type"] != "session_meta"]
    assert told(shown) == ["1", "c/a", "c/b", "-> ../c", "2"]
    assert list(session_records(tmp_path, "none")) == []
    with pytest.raises(ValueError, match="session_id"):
        session_records(tmp_path, "../s")
