"""A crash between any two records, and in the middle of any: the session goes on, legal, complete, nothing run twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentEnd, AssistantMessage
from agentloop.cli.check import check_session
from agentloop.omni.trace import trace_files
from agentloop.session import Session
from tests.session_world import KEYS, Told, World, check_legal, count, options, texts_of


async def record_session(traces: Path, compacting: bool) -> None:
    world = World()
    given = options(compacting)
    async with Session.create(traces, world.model, tools=world.tools, session_id="s1", **given) as session:
        for task in "AB":
            async for _ in session.run(f"Do task {task}", approve=world.approve):
                pass
    assert sorted(world.ran) == ["A1", "A2", "A3", "B1", "B2"]


@pytest.fixture(scope="module", params=[False, True], ids=["one context", "compacting"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A session of two runs, with and without compactions."""
    traces = tmp_path_factory.mktemp("recorded")
    anyio.run(record_session, traces, request.param)
    return traces, request.param


def crash(traces: Path, lines: int, into: Path, torn: bool = False) -> bool:
    """What the disk holds if the process ends after so many records (all files together); whether there is anything."""
    left = lines
    for file in trace_files(traces, "s1"):
        parts = file.path.read_bytes().splitlines(keepends=True)
        kept = b"".join(parts[:left])
        if torn and left < len(parts):
            kept += parts[left][: len(parts[left]) // 2]
        if left > 0:
            target = into / file.path.parent.name / file.path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(kept)
        left -= len(parts)
        if left <= 0:
            break
    return lines > 0


async def go_on(traces: Path, compacting: bool, prompts: Sequence[str], stop_after: int | None = None) -> World:
    """Another process takes the session up, to the end of the run or up to an event of it."""
    world = World()
    async with world.open(traces, **options(compacting)) as session:
        run, number = session.run(list(prompts), approve=world.approve), 0
        async for event in run:
            number += 1
            if number == stop_after:
                break
            if isinstance(event, AgentEnd):
                assert event.stop_reason == "completed", event
                check_legal(session.messages)
        await run.aclose()
    return world


async def waits(traces: Path, compacting: bool) -> bool:
    """Whether the conversation ends in a reply that asks for nothing."""
    async with World().open(traces, **options(compacting)) as session:
        last = session.messages[-1:]
        ended = not last or (isinstance(last[0], AssistantMessage) and not last[0].tool_calls)
        return session.pending_summary is not None or not ended


def hold(before: Told, after: Told, world: World, prompts: Sequence[str]) -> None:
    """What a resume promises."""
    tasks = before.tasks | {prompt[-1] for prompt in prompts}
    keys = {key for task in tasks for key in KEYS[task]}
    assert not set(world.ran) & before.started, "a call that had started ran again"
    assert len(world.ran) == len(set(world.ran)), "a call ran twice"
    unknown = before.started - before.ended
    assert before.ended | set(world.ran) | unknown == keys, "a call, or a task, was lost"
    assert not set(world.asked) & (before.allowed - before.started), "what was allowed was asked about again"
    told = texts_of(world.shown[-1])
    assert all(f"{key} is done" in told for key in before.ended | set(world.ran)), "a result was lost"
    assert after.tasks == tasks


@pytest.mark.parametrize("torn", [False, True], ids=["between records", "in a record"])
def test_a_crash_at_every_record(recorded: tuple[Path, bool], torn: bool, tmp_path: Path) -> None:
    """Cut after each line (and in the next one) of all files together: open, go on with one more task to its end. No call
    runs twice, none is lost, no input and no result is lost, every request is legal, and the trace stays a legal one."""
    traces, compacting = recorded
    total = count(traces)
    assert total > 80
    for lines in range(2, total + 1):
        copy = tmp_path / str(lines)
        crash(traces, lines, copy, torn)
        before = Told.of(copy)
        world = anyio.run(go_on, copy, compacting, ["Do task C"])
        hold(before, Told.of(copy), world, ["Do task C"])
        if not torn:
            reports = check_session([str(file.path) for file in trace_files(copy, "s1")])
            assert [finding for report in reports for finding in report.findings] == []


def test_a_crash_at_every_record_and_nothing_new(recorded: tuple[Path, bool], tmp_path: Path) -> None:
    """The same without a prompt: what waits is gone on with, or it is said that nothing does; opening alone changes
    nothing in the files but the end of an open compaction."""
    traces, compacting = recorded
    went_on = 0
    for lines in range(2, count(traces) + 1):
        copy = tmp_path / str(lines)
        crash(traces, lines, copy)
        before = Told.of(copy)
        if not anyio.run(waits, copy, compacting):
            with pytest.raises(ValueError, match="nothing in the conversation waits"):
                anyio.run(go_on, copy, compacting, [])
            assert {key for task in before.tasks for key in KEYS[task]} == before.ended
        else:
            world = anyio.run(go_on, copy, compacting, [])
            hold(before, Told.of(copy), world, [])
            went_on += 1
    assert went_on > 40


@given(data=st.data())
def test_a_crash_again_while_it_goes_on(recorded: tuple[Path, bool], tmp_path: Path, data: st.DataObject) -> None:
    """Two crashes in a row, the second one anywhere in the run that went on: still nothing runs twice or is lost."""
    traces, compacting = recorded
    total = count(traces)
    first = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    lines = data.draw(st.integers(2, total))
    crash(traces, lines, first)
    anyio.run(go_on, first, compacting, ["Do task C"])
    grown = count(first)
    second = first / "again"
    crash(first, data.draw(st.integers(lines, grown)), second, data.draw(st.booleans()))
    before = Told.of(second)
    world = anyio.run(go_on, second, compacting, ["Do task C"] if "C" not in before.tasks else ["Go on."])
    after = Told.of(second)
    hold(before, after, world, ["Do task C"])
    assert before.ended <= after.ended, "what had ended is no longer told of"
