"""Recording: each event is on disk before it is seen, no disk and no sink can hang a run, nothing is left behind."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import TraceWriteError
from agentloop.events import (
    AgentEnd,
    AgentStart,
    ChildEvent,
    Event,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    SubagentStarted,
    ToolExecutionStart,
    TurnStart,
)
from agentloop.loop import agent_loop, agent_loop_continue, running
from agentloop.messages import CustomMessage, ToolResultMessage, user
from agentloop.omni.codec import decode, trace_view
from agentloop.omni.recorder import Recording, record
from agentloop.omni.records import Record, session_meta
from agentloop.omni.resume import resume_file
from agentloop.omni.trace import TraceWriter, read, trace_files
from agentloop.testing.scripted import ScriptedModel, call, text
from agentloop.tools import tool
from tests.costs import file_size_limit

pytestmark = pytest.mark.anyio
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")
META = session_meta("s1", provider="p", model_id="m")


def kinds(path: Path | None) -> list[str]:
    assert path is not None
    return [record["payload"].get("type", record["type"]) for record in read(path)]


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


class Lookup:
    """A tool that says when it runs, and a run with one call of it and a reply."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.ran = 0
        self.model = ScriptedModel([call("lookup", {"q": "x"}), text("Found ", "it.")])

        @tool
        async def lookup(q: str) -> str:
            """Look something up."""
            check()
            self.ran += 1
            return f"{q}: 7"

        self.context = Context("Be brief.", (), (lookup,))

    def run(self, **options: Any) -> Any:
        return agent_loop("Look up x.", self.context, Config(model=self.model, **options))


# ---------------------------------------------------------------- write-ahead


async def test_each_event_is_on_disk_before_it_is_seen(tmp_path: Path) -> None:
    """Whatever a consumer has seen can be read from the file at that moment; only what waits at the head is not there
    yet."""
    seen: list[Event] = []
    with TraceWriter(tmp_path, META) as trace:
        async for event in record(Lookup().run(), trace):
            seen.append(event)
            if trace.file is None:
                assert {type(event) for event in seen} <= {AgentStart, TurnStart}
                continue
            told = decode(read(trace.file))
            expected = list(trace_view(seen))
            waiting = type(event) is MessageStart and event.message.role == "user"  # its end tells it
            assert told == (expected[:-1] if waiting else expected)
    assert decode(read(trace.file or tmp_path)) == list(trace_view(seen))


async def test_no_effect_before_its_intent_is_on_disk(tmp_path: Path) -> None:
    """G12: when a tool runs, its `tool_execution_start` is on disk; when the model is asked, its `request_begin` is."""
    trace = TraceWriter(tmp_path, META)
    found: list[str] = []
    lookup = Lookup(lambda: found.append(kinds(trace.file)[-1]))
    asked: list[str] = []

    async def model(request: Any) -> AsyncIterator[Any]:
        asked.append(kinds(trace.file)[-1])
        async for chunk in lookup.model(request):
            yield chunk

    run = agent_loop("Look up x.", lookup.context, Config(model=model))
    with trace:
        await collect(record(run, trace))
    assert found == ["tool_execution_start"]
    assert asked == ["request_begin", "request_begin"]


async def test_events_pass_unchanged(tmp_path: Path) -> None:
    """The recorded stream is the stream: same events, same order, same partial messages."""
    plain = await collect(Lookup().run())
    with TraceWriter(tmp_path, META) as trace:
        recorded = await collect(record(Lookup().run(), trace))
    assert recorded == plain
    updates = [event for event in recorded if isinstance(event, MessageUpdate)]
    assert updates[-1].message.text == "Found it."


async def test_head_of_a_file(tmp_path: Path) -> None:
    """54 (ours): meta, lifecycle, the prompt, the tool list, then the request; the file comes with the first input."""
    with TraceWriter(tmp_path, META) as trace:
        events = record(Lookup().run(), trace)
        assert type(await anext(events)) is AgentStart
        assert type(await anext(events)) is TurnStart
        assert trace.file is None
        await collect(events)
    assert kinds(trace.file)[:8] == [
        "session_meta", "agent_start", "turn_start", "message_start", "text", "message_end", "tool_list_ready", "request_begin",
    ]  # fmt: skip


async def test_replayed_equals_sent_and_received(tmp_path: Path) -> None:
    """50: what was recorded, resumed, is what the model was sent and what it said."""
    lookup = Lookup()
    with TraceWriter(tmp_path, META) as trace:
        events = await collect(record(lookup.run(), trace))
    resumed = resume_file(trace.file or tmp_path)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert resumed.messages == end.messages
    assert lookup.model.requests[-1].messages == resumed.messages[:-1]
    assert (resumed.inputs, resumed.calls) == ((), ())


async def test_one_id_for_every_call(tmp_path: Path) -> None:
    """C101: a provider that gives every call one id: the recorded run, resumed, has each result behind its own call,
    and the events of the two turns are told apart."""
    lookup = Lookup()
    lookup.model = ScriptedModel(
        [call("lookup", {"q": "1"}, id="Z"), call("lookup", {"q": "2"}, id="Z"), text("Done.")]
    )
    with TraceWriter(tmp_path, META) as trace:
        events = await collect(record(lookup.run(), trace))
    resumed = resume_file(trace.file or tmp_path)
    results = [(m.tool_call_id, m.text) for m in resumed.messages if isinstance(m, ToolResultMessage)]
    assert results == [("Z", "1: 7"), ("Z#2", "2: 7")]
    assert isinstance(events[-1], AgentEnd)
    assert resumed.messages == events[-1].messages
    assert lookup.model.requests[-1].messages == resumed.messages[:-1]


async def test_runs_of_one_session_go_to_one_file(tmp_path: Path) -> None:
    """A writer serves run after run; each context has one file."""
    with TraceWriter(tmp_path, META) as trace:
        for _ in range(2):
            await collect(record(Lookup().run(), trace))
    assert kinds(trace.file).count("agent_start") == 2
    assert len(trace_files(tmp_path)) == 1


async def test_children_are_pointers(tmp_path: Path) -> None:
    """21, 77: events of a child are handed over and not recorded; the pointer to it is, once."""
    inner = MessageStart(user("child"))
    stream = [
        SubagentStarted("s2", "c1", {"session_id": "s2"}),
        ChildEvent(("s2",), inner),
        ChildEvent(("s2", "s3"), inner),
    ]

    async def events() -> AsyncIterator[Event]:
        for event in stream:
            yield event

    with TraceWriter(tmp_path, META) as trace:
        assert await collect(record(events(), trace)) == stream
    assert kinds(trace.file) == ["session_meta", "subagent"]


# ---------------------------------------------------------------- the bad day of a disk


@LINUX
@pytest.mark.parametrize("policy", ["fail", "warn"])
async def test_a_full_disk(tmp_path: Path, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    """C140: with `fail` the run is closed, the step raises `TraceWriteError`, and no tool runs whose start could not be
    written; with `warn` the run completes, with one diagnostic. `agent_end` comes at most once."""
    lookup = Lookup()
    seen: list[Event] = []
    with TraceWriter(tmp_path, META) as trace:
        events = record(lookup.run(), trace, policy=policy)
        async for event in events:
            seen.append(event)
            if isinstance(event, MessageEnd) and event.message.role == "assistant":
                break
        assert trace.file is not None
        with file_size_limit(trace.file.stat().st_size):
            if policy == "fail":
                with pytest.raises(TraceWriteError, match="File too large"):
                    seen += await collect(events)
            else:
                seen += await collect(events)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert lookup.model.open_streams == 0
    assert lookup.ran == (policy == "warn")
    assert [type(event) for event in seen].count(AgentEnd) == (policy == "warn")
    diagnostics = [entry for entry in caplog.records if "not complete" in entry.message]
    assert len(diagnostics) == (policy == "warn")
    assert events.lost > 0


@LINUX
async def test_space_comes_back(tmp_path: Path) -> None:
    """25: with `warn` a record that could not be written is lost alone; what comes later is written again."""
    with TraceWriter(tmp_path, META) as trace:
        events = record(Lookup().run(), trace, policy="warn")
        async for event in events:
            if isinstance(event, MessageEnd) and event.message.role == "assistant":
                break
        assert trace.file is not None
        with file_size_limit(trace.file.stat().st_size):
            await anext(events)
        await collect(events)
    assert events.lost == 1
    assert kinds(trace.file)[-1] == "agent_end"
    assert resume_file(trace.file).session_turns > 0


async def test_a_redaction_that_raises(tmp_path: Path) -> None:
    """What cannot be redacted is not stored: the policy decides."""

    def redact(record: Record) -> Record:
        raise RuntimeError("broken")

    with TraceWriter(tmp_path, META, redact=redact) as trace, pytest.raises(TraceWriteError, match="broken"):
        await collect(record(Lookup().run(), trace))
    assert trace_files(tmp_path) == []


class Odd(CustomMessage):
    """A message that JSON cannot say."""

    role = "odd"

    def __init__(self) -> None:
        self.value = {1, 2}


class Nameless(CustomMessage):
    """A message without a role."""


class Broken(CustomMessage):
    """A message whose own code fails."""

    @property
    def role(self) -> str:  # type: ignore[override]
        raise KeyError("nobody told")


@pytest.mark.parametrize("message", [Odd(), Nameless(), Broken()], ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("policy", ["fail", "warn"])
async def test_an_event_that_is_no_record(tmp_path: Path, policy: Any, message: CustomMessage) -> None:
    """A message of an application that JSON cannot say, or that fails to say itself, goes by the policy too."""
    run = agent_loop([message, user("Hi.")], Context(), Config(model=ScriptedModel([text("Hello.")])))
    with TraceWriter(tmp_path, META) as trace:
        if policy == "fail":
            with pytest.raises(TraceWriteError, match="expected an event that can be a record"):
                await collect(record(run, trace))
        else:
            assert isinstance((await collect(record(run, trace, policy=policy)))[-1], AgentEnd)


def test_policies_are_two() -> None:
    """Another policy is refused at once."""
    with pytest.raises(ValueError, match="expected fail or warn"):
        record(Lookup().run(), lambda record: None, policy="ignore")  # type: ignore[arg-type]


def test_what_takes_no_record() -> None:
    """A folder's name, say, in the place of a writer is refused before the run begins."""
    with pytest.raises(
        TypeError, match=r"^trace: expected a TraceWriter or a function that takes a record, got 'traces'$"
    ):
        record(Lookup().run(), "traces")  # type: ignore[arg-type]


# ---------------------------------------------------------------- a sink of one's own


async def test_a_sink_gets_what_a_trace_holds() -> None:
    """A sink, async or not, gets each record of the trace, masked, before its event is seen."""
    for asynchronous in (True, False):
        stored: list[Record] = []

        async def take(record: Record, stored: list[Record] = stored) -> None:
            await anyio.lowlevel.checkpoint()
            stored.append(record)

        def put(record: Record, stored: list[Record] = stored) -> None:
            stored.append(record)

        seen: list[Event] = []
        async for event in record(Lookup().run(), take if asynchronous else put):
            seen.append(event)
            assert decode(stored)[: len(list(trace_view(seen)))] == list(trace_view(seen))[: len(decode(stored))]
        assert decode(stored) == list(trace_view(seen))
    secret = "ghp_" + "a1" * 18
    stored = []
    model = ScriptedModel([text(secret)])
    await collect(record(agent_loop(secret, Context(), Config(model=model)), put_into(stored)))
    assert secret not in str(stored)


@pytest.mark.parametrize("policy", ["fail", "warn"])
async def test_a_sink_that_answers_what_fails_to_say_what_it_is(policy: Any) -> None:
    """Nothing is awaited, and the record is taken: a sink's answer means nothing."""

    class Unsayable:
        @property
        def __class__(self) -> Any:
            raise LookupError("gone")

    recording = record(Lookup().run(), lambda record: Unsayable(), policy=policy)  # type: ignore[arg-type, return-value]
    events = await collect(recording)
    assert (isinstance(events[-1], AgentEnd), recording.lost) == (True, 0)


def put_into(stored: list[Record]) -> Callable[[Record], None]:
    return stored.append


@pytest.mark.parametrize("policy", ["fail", "warn"])
@pytest.mark.parametrize("kind", ["raises", "raises at once", "blocks", "is deaf"])
async def test_a_sink_that_fails(policy: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """C140: a sink that raises on its third record, or never answers, or ignores its cancellation, cannot hang the
    stream: `fail` ends the run before any tool ran, `warn` completes it with one diagnostic."""
    caplog.set_level(logging.WARNING)
    lookup = Lookup()
    calls = 0
    released = anyio.Event()

    async def wait_for_ever() -> None:
        while kind == "is deaf" and not released.is_set():
            with anyio.CancelScope(shield=True), suppress(anyio.get_cancelled_exc_class()):
                await released.wait()
        if kind == "blocks":
            await anyio.sleep_forever()

    def sink(record: Record) -> Any:
        nonlocal calls
        calls += 1
        if calls < 3:
            return None
        if kind == "raises at once":
            raise OSError("no space")
        return failing() if kind == "raises" else wait_for_ever()

    async def failing() -> None:
        raise OSError("no space")

    events = record(lookup.run(), sink, policy=policy, write_timeout=0.05)
    with anyio.fail_after(20):
        if policy == "fail":
            with pytest.raises(TraceWriteError, match="expected the sink to take a record"):
                await collect(events)
        else:
            seen = await collect(events)
            assert [type(event) for event in seen].count(AgentEnd) == 1
    released.set()
    assert lookup.ran == (policy == "warn")
    assert lookup.model.open_streams == 0
    diagnostics = [entry for entry in caplog.records if "not complete" in entry.message]
    assert len(diagnostics) == (policy == "warn")
    if "raises" not in kind:
        assert calls == 3, "a sink that did not answer is not asked again"


class Wordless(Exception):
    """Has no words for itself."""

    def __repr__(self) -> str:
        raise LookupError("no words")

    __str__ = __repr__


def sink_that_raises(error: BaseException, at_once: bool) -> Any:
    async def later() -> None:
        raise error

    def sink(record: Record) -> Any:
        if at_once:
            raise error
        return later()

    return sink


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("policy", ["fail", "warn"])
@pytest.mark.parametrize("order", [KeyboardInterrupt(), SystemExit(3), BaseExceptionGroup("of tasks", [SystemExit(3)])])
async def test_an_order_to_leave_out_of_a_sink_closes_the_run(order: BaseException, policy: Any, at_once: bool) -> None:
    """It is raised from the step whatever the policy, also out of a group, and nothing of the run goes on."""
    lookup = Lookup()
    run = lookup.run()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        await collect(record(run, sink_that_raises(order, at_once), policy=policy))
    with pytest.raises(StopAsyncIteration):
        await anext(run)
    assert (lookup.ran, lookup.model.asked) == (0, 0)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("error", [Wordless(), GeneratorExit(), BaseExceptionGroup("of tasks", [GeneratorExit()])])
async def test_whatever_else_a_sink_raises_is_a_record_that_it_did_not_take(
    error: BaseException, at_once: bool
) -> None:
    """Also what is no `Exception`, and what fails when it is shown: the policy is asked, as for a full disk."""
    lookup = Lookup()
    sink = sink_that_raises(error, at_once)
    with pytest.raises(TraceWriteError, match=f"expected the sink to take a record, got {type(error).__name__}"):
        await collect(record(lookup.run(), sink))
    assert lookup.ran == 0
    seen = await collect(record(lookup.run(), sink, policy="warn"))
    assert isinstance(seen[-1], AgentEnd)
    assert lookup.ran == 1


def redaction_that_raises(error: BaseException) -> Any:
    def redact(record: Record) -> Record:
        if record["payload"].get("type") == "agent_start":
            raise error
        return record

    return redact


@pytest.mark.parametrize("order", [KeyboardInterrupt(), BaseExceptionGroup("of tasks", [SystemExit(3)])])
async def test_an_order_to_leave_out_of_a_redaction_closes_the_run(order: BaseException, tmp_path: Path) -> None:
    """A trace's own redaction is the application's code too."""
    lookup = Lookup()
    run = lookup.run()
    with (
        TraceWriter(tmp_path, META, redact=redaction_that_raises(order)) as trace,
        pytest.raises((KeyboardInterrupt, SystemExit)),
    ):
        await collect(record(run, trace))
    with pytest.raises(StopAsyncIteration):
        await anext(run)
    assert (lookup.ran, lookup.model.asked) == (0, 0)


@pytest.mark.parametrize("error", [Wordless(), GeneratorExit()])
async def test_whatever_else_a_redaction_raises_stores_nothing(error: BaseException, tmp_path: Path) -> None:
    """Such a record is one that could not be written."""
    lookup = Lookup()
    with (
        TraceWriter(tmp_path, META, redact=redaction_that_raises(error)) as trace,
        pytest.raises(TraceWriteError, match=rf"expected a record in JSON, got {type(error).__name__} "),
    ):
        await collect(record(lookup.run(), trace))
    assert lookup.ran == 0


# ---------------------------------------------------------------- lifetime


async def test_leaving_early_closes_the_run(tmp_path: Path) -> None:
    """`aclose` ends the wrapped run and awaits it; the recording then is over; closing twice is none."""
    lookup = Lookup()
    with TraceWriter(tmp_path, META) as trace:
        events = record(lookup.run(run_ahead=0), trace)
        async for event in events:
            if isinstance(event, MessageUpdate):
                break
        assert lookup.model.open_streams == 1
        await events.aclose()
        await events.aclose()
        assert lookup.model.open_streams == 0
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert resume_file(trace.file or tmp_path).inputs == (user("Look up x."),)


async def test_a_plain_break(tmp_path: Path) -> None:
    """A `break` that drops the recording drops the run, which then stops by itself."""
    lookup = Lookup()
    with TraceWriter(tmp_path, META) as trace:
        async for event in record(lookup.run(run_ahead=0), trace):
            if isinstance(event, MessageUpdate):
                assert lookup.model.open_streams == 1
                break
        with anyio.fail_after(5):
            while lookup.model.open_streams:
                await anyio.lowlevel.checkpoint()


async def test_any_iterable_of_events(tmp_path: Path) -> None:
    """Plain async iterators without `aclose`, and native generators, can be recorded and left."""

    class Plain:
        def __init__(self) -> None:
            self.left = [AgentStart(), TurnStart(0)]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> Event:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    closed = []

    async def native() -> AsyncIterator[Event]:
        try:
            while True:
                yield TurnStart(0)
        finally:
            closed.append(True)

    with TraceWriter(tmp_path, META) as trace:
        assert await collect(record(Plain(), trace)) == [AgentStart(), TurnStart(0)]
        await record(Plain(), trace).aclose()
        events = record(native(), trace)
        await anext(events)
        await events.aclose()
    assert closed == [True]


async def test_what_the_run_raises_is_raised(tmp_path: Path) -> None:
    """Arguments that cannot be a run raise at the first step, as without a recording."""
    with TraceWriter(tmp_path, META) as trace, pytest.raises(ValueError, match="expected messages to go on from"):
        await collect(record(agent_loop_continue(Context(), Config(model=ScriptedModel([]))), trace))
    assert trace_files(tmp_path) == []


async def test_two_steps_at_once() -> None:
    """Two steps at once are a clear error."""
    entered = anyio.Event()

    async def sink(record: Record) -> None:
        entered.set()
        await anyio.sleep_forever()

    events = record(Lookup().run(), sink, write_timeout=60)

    async def first() -> None:
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await entered.wait()
        with pytest.raises(RuntimeError, match="one step at a time"):
            await anext(events)
        await events.aclose()  # while a step waits: that step ends the iteration


@pytest.mark.parametrize("bound", [False, True])
async def test_a_step_that_times_out_in_a_sink(bound: bool) -> None:
    """A step cancelled while the sink is awaited ends the run cleanly; inside `running` the next step goes on with
    the same event, and the sink gets each record once."""
    lookup = Lookup()
    stored: list[Record] = []
    gate = anyio.Event()
    entered = anyio.Event()

    async def sink(record: Record) -> None:
        if record["payload"].get("type") == "tool_execution_start":
            entered.set()
            await gate.wait()
        stored.append(record)

    async def consume(events: Any, seen: list[Event]) -> None:
        async for event in events:
            seen.append(event)

    seen: list[Event] = []
    events = record(lookup.run(), sink, write_timeout=60)

    async def until_cut(source: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(consume, source, seen)
            await entered.wait()
            group.cancel_scope.cancel()

    if not bound:
        await until_cut(events)
        assert lookup.ran == 0
        assert lookup.model.open_streams == 0
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        return
    async with running(events) as source:
        await until_cut(source)
        gate.set()
        await consume(source, seen)
    assert lookup.ran == 1
    assert [type(event) for event in seen].count(ToolExecutionStart) == 1
    assert isinstance(seen[-1], AgentEnd)
    assert decode(stored) == list(trace_view(seen))


async def test_the_runs_own_ways_are_passed_on(tmp_path: Path) -> None:
    """`skip_wait`, `asend` and `athrow` reach the run."""
    with TraceWriter(tmp_path, META) as trace:
        events: Recording = record(Lookup().run(), trace)
        assert events.skip_wait() is False
        assert type(await events.asend(None)) is AgentStart
        with pytest.raises(TypeError):
            await events.asend(1)  # type: ignore[arg-type]
        with pytest.raises(KeyError):
            await events.athrow(KeyError("x"))
        assert await collect(events) == []


async def test_crash_at_every_point_never_runs_a_finished_tool_twice(tmp_path: Path) -> None:
    """Cut at every record: what comes back pairs, a call whose result is on disk is not open, a call that never
    started is open, and one that started and did not end is unknown."""
    with TraceWriter(tmp_path, META) as trace:
        await collect(record(Lookup().run(), trace))
    records = list(read(trace.file or tmp_path))
    for end in range(len(records) + 1):
        path = tmp_path / "cut_001.jsonl"
        with TraceWriter(tmp_path / str(end), META, redact=None) as cut:
            for item in records[1:end]:
                cut.write(item)
        if cut.file is None:
            continue
        resumed = resume_file(cut.file)
        names = [item["payload"].get("type") for item in records[:end]]
        committed = "request_end" in names
        finished = "tool_call_output" in names
        assert [(c.id, c.started) for c in resumed.calls] == (
            [("call_1", "tool_execution_start" in names)] if committed and not finished else []
        ), path
