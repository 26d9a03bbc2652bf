"""A live channel: ids, replay, what a new connection gets first, what a late joiner starts with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.omni.channel import Channel, Fragments, Frame, approval_request, join, task_state
from agentloop.omni.records import (
    agent_end,
    agent_start,
    assistant_text,
    partial_text,
    partial_thinking,
    partial_tool_call,
    partial_tool_call_output,
    tool_call,
    user_text,
    with_origin,
)
from agentloop.omni.sse import Parser, ServerSentEvent

IDLE = task_state("idle")


def read(frames: list[Frame]) -> list[ServerSentEvent]:
    parser = Parser()
    return [event for frame in frames for event in parser.feed(frame.data)]


def kinds(frames: list[Frame]) -> list[str]:
    return [event.record().get("type", "") for event in read(frames)]


def texts(frames: list[Frame]) -> list[str]:
    return [event.record()["payload"]["text"] for event in read(frames) if event.event == "message"]


def test_ids_grow() -> None:
    """80: ids are `<epoch>-<seq>`, the seq counts from 1, and the frame's id is what the client reads."""
    channel = Channel(epoch="abcd")
    frames = [channel.publish(user_text(str(n))) for n in range(3)]
    assert [frame.id for frame in frames] == ["abcd-1", "abcd-2", "abcd-3"]
    assert [event.id for event in read(frames)] == ["abcd-1", "abcd-2", "abcd-3"]


def test_epochs_differ() -> None:
    """80: each channel has a random epoch, so that ids of an earlier one miss."""
    first, second = Channel(), Channel()
    assert first.epoch != second.epoch
    assert len(first.epoch) == 8
    first.publish(user_text("a"))
    second.publish(user_text("a"))
    assert second.missed(first.cursor) is None


def test_replay_is_exact() -> None:
    """80: after each id exactly what came later is replayed; after the latest nothing, which is still a hit."""
    channel = Channel()
    frames = [channel.publish(user_text(str(n))) for n in range(5)]
    for at, frame in enumerate(frames):
        assert channel.missed(frame.id) == frames[at + 1 :]
    assert channel.missed(f"{channel.epoch}-0") == frames


@pytest.mark.parametrize(
    "id", ["", "x", "{e}-", "{e}-x", "{e}-1.0", "{e}--1", "{e}-٣", "other-1", "{e}-4", "{e}-" + "9" * 5000, "-1", "1"]
)
def test_misses(id: str) -> None:
    """80: a malformed, foreign or future id misses, however long it is."""
    channel = Channel()
    for n in range(3):
        channel.publish(user_text(str(n)))
    assert channel.missed(id.replace("{e}", channel.epoch)) is None


def test_eviction_by_count() -> None:
    """80: beyond the number of events the oldest go; an id before the last that went misses, that one itself hits."""
    channel = Channel(max_events=3)
    frames = [channel.publish(user_text(str(n))) for n in range(5)]
    assert channel.missed(frames[0].id) is None
    assert channel.missed(frames[1].id) == frames[2:]
    assert channel.missed(frames[3].id) == frames[4:]


def test_eviction_by_bytes() -> None:
    """80: beyond the bytes the oldest go, and a frame that is larger than the buffer is sent but not kept."""
    channel = Channel(max_bytes=1000)
    frames = [channel.publish(user_text("x" * 300)) for _ in range(4)]
    assert channel.missed(frames[0].id) is None
    assert channel.missed(frames[1].id) == frames[2:]
    large = channel.publish(user_text("x" * 2000))
    assert channel.missed(frames[3].id) is None
    assert channel.missed(large.id) == []


def test_unicast_is_not_replayed() -> None:
    """80: what goes to one connection takes a number, is in no replay, and its id hits."""
    channel = Channel()
    first = channel.publish(user_text("a"))
    only = channel.unicast(IDLE)
    second = channel.publish(user_text("b"))
    assert [first.seq, only.seq, second.seq] == [1, 2, 3]
    assert channel.missed(first.id) == [second]
    assert channel.missed(only.id) == [second]


def test_fresh_connection() -> None:
    """81: without `Last-Event-ID` nothing is replayed: `task_state` first, then the approvals that wait."""
    channel = Channel()
    channel.publish(user_text("a"))
    pending = [
        approval_request(tool_call("run", "{}", "c1")),
        approval_request(tool_call("run", "{}", "c2"), ["child"]),
    ]
    frames = channel.connect(state=task_state("running", queued=2), pending=pending)
    assert kinds(frames) == ["task_state", "approval_request", "approval_request"]
    assert read(frames)[0].record() == {"type": "task_state", "state": "running", "queued": 2}
    assert read(frames)[2].record()["origin"] == ["child"]
    assert kinds(channel.connect("", state=IDLE)) == ["task_state"]


def test_reconnection() -> None:
    """81: what was missed comes first, then `task_state`, then approvals; a miss begins with `resync_required`
    instead."""
    channel = Channel(max_events=2)
    frames = [channel.publish(user_text(text)) for text in "abc"]
    assert kinds(channel.connect(frames[1].id, state=IDLE)) == ["model_msg", "task_state"]
    assert texts(channel.connect(frames[1].id, state=IDLE)) == ["c"]
    channel.publish(user_text("d"))
    request = approval_request(tool_call("run", "{}", "c1"))
    missed = channel.connect(frames[0].id, state=IDLE, pending=[request])
    assert kinds(missed) == ["resync_required", "task_state", "approval_request"]
    assert {event.event for event in read(missed)} == {"server_event"}


def test_server_events_are_replayed_when_published() -> None:
    """80: a server event for everybody is replayed like a record."""
    channel = Channel()
    start = channel.cursor
    channel.publish_server_event({"type": "session_title", "title": "t"})
    assert kinds(channel.missed(start) or []) == ["session_title"]


# ---------------------------------------------------------------- late joiners


def test_fragments_hold_everything_so_far() -> None:
    """82: one synthetic start for each open fragment, with all its content so far, in opening order."""
    fragments = Fragments()
    for record in [
        partial_thinking("start"),
        partial_thinking("delta", "hm"),
        partial_thinking("stop"),
        partial_text("start"),
        partial_text("delta", "One "),
        partial_tool_call_output("start", "c1"),
        partial_text("delta", "two"),
        partial_tool_call_output("delta", "c1", "out"),
        partial_tool_call_output("delta", "c1", images=["data:image/png;base64,AA"]),
        partial_tool_call_output("delta", "c1", images=["data:image/png;base64,BB"]),
    ]:
        fragments.feed(record)
    first, second = fragments.starts()
    assert (first["payload"]["event_type"], first["payload"]["text"]) == ("start", "One two")
    assert second["payload"]["output"] == "out"
    assert second["payload"]["images"] == ["data:image/png;base64,BB"]
    assert list(second["payload"]) == ["type", "role", "event_type", "output", "images", "tool_call_id", "stop_reason"]


def test_fragments_of_two_origins_do_not_mix() -> None:
    """82, 14: a parent's and a child's open texts are two fragments."""
    fragments = Fragments()
    for record in [partial_text("start"), partial_text("delta", "parent")]:
        fragments.feed(record)
        fragments.feed(with_origin(with_origin({**record, "payload": {**record["payload"]}}, "inner"), "outer"))
    fragments.feed(partial_text("delta", "!"))
    assert [start["payload"]["text"] for start in fragments.starts()] == ["parent!", "parent"]
    assert fragments.starts()[1]["origin"] == ["outer", "inner"]


def test_what_closes_a_fragment() -> None:
    """82: a stop, the complete record, a second start, and the end of the run; a delta without a start opens one."""
    fragments = Fragments()
    fragments.feed(partial_tool_call("delta", "c1", arguments="{"))
    assert [start["payload"]["arguments"] for start in fragments.starts()] == ["{"]
    fragments.feed(tool_call("run", "{}", "c1"))
    assert fragments.starts() == []
    for text in ("a", "b"):
        fragments.feed(partial_text("start"))
        fragments.feed(partial_text("delta", text))
    assert [start["payload"]["text"] for start in fragments.starts()] == ["b"]
    fragments.feed(with_origin(agent_end(), "child"))
    assert len(fragments.starts()) == 1
    fragments.feed(agent_end())
    assert fragments.starts() == []
    fragments.feed(with_origin(partial_text("start"), "child"))
    fragments.feed(agent_start())
    assert fragments.starts() == []


def test_live_is_taken_at_the_cursor() -> None:
    """82: fragments and cursor belong to the same instant."""
    channel = Channel()
    channel.publish(partial_text("start"))
    last = channel.publish(partial_text("delta", "Hel"))
    live = channel.live()
    channel.publish(partial_text("delta", "lo"))
    assert live["cursor"] == last.id
    assert [start["payload"]["text"] for start in live["fragments"]] == ["Hel"]


def _text(text: str) -> list[dict[str, Any]]:
    pieces = [partial_text("delta", character) for character in text]
    return [partial_text("start"), *pieces, partial_text("stop"), assistant_text(text)]


def _stream() -> list[dict[str, Any]]:
    """Two texts of the session and one of a child, interleaved, with their complete records."""
    child = [with_origin(record, "child") for record in _text("xyz")]
    merged = [record for pair in zip(_text("abcd"), [*child, user_text("steer")], strict=True) for record in pair]
    return [*merged, *_text("e")]


def _shown(records: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """What a screen holds: complete messages as they are, and the characters of each open fragment."""
    done: list[tuple[str, ...]] = []
    open_texts: dict[tuple[str, ...], str] = {}
    for record in records:
        payload, origin = record["payload"], tuple(record.get("origin", ()))
        if payload["type"] == "partial_text":
            if payload["event_type"] == "stop":  # its complete record follows at once
                del open_texts[origin]
            elif payload["event_type"] == "start":
                open_texts[origin] = payload["text"]
            else:
                open_texts[origin] += payload["text"]
        else:
            open_texts.pop(origin, None) if payload["role"] == "assistant" else None
            done.append((*origin, payload["text"]))
    return [*done, *[(*origin, "open", text) for origin, text in open_texts.items()]]


@given(st.data())
def test_a_late_joiner_sees_every_character_once(data: st.DataObject) -> None:
    """82: whenever a client connects, fetches and looks, it shows what one shows that was there from the start."""
    stream = _stream()
    connects = data.draw(st.integers(0, len(stream)))
    fetches = data.draw(st.integers(connects, len(stream)))
    looks = data.draw(st.integers(fetches, len(stream)))
    channel = Channel()
    received = []
    history: list[dict[str, Any]] = []
    live = channel.live()
    for at, record in enumerate([*stream, user_text("end")]):
        if at == fetches:
            live = channel.live()
            history = [record for record in stream[:at] if not record["payload"]["type"].startswith("partial")]
        if at == looks:
            break
        frame = channel.publish(record)
        if at >= connects:
            received.append((frame.id, read([frame])[0].record()))
    shown = _shown(join(history, live, received))
    assert sorted(shown) == sorted(_shown(stream[:looks]))
