"""The stories of the fault matrix: what consumers do with sessions, recorders, agents and approvals, points in all they give.

A story of a session ends with a look at what is left: its trace is read without an error and is a legal one, tells the
messages that its consumer saw and no others, and both the session itself and one that is opened from the trace go on with
legal requests.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from agentloop import (
    AgentEnd,
    Config,
    Context,
    Event,
    HookAnswer,
    Hooks,
    McpConnectEnd,
    MessageEnd,
    ModelError,
    RequestEnd,
    Retry,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    TraceWriteError,
    agent_loop,
    tool,
)
from agentloop.agent import Agent
from agentloop.approval import Approvals, Policy, Rule, until_waiting
from agentloop.cli.check import check_session
from agentloop.compaction import Summarize, TurnsReach
from agentloop.grammar import Checker, check
from agentloop.loop import running
from agentloop.model import Finish, ModelRequest, ToolCallChunk
from agentloop.models.offline import OfflineModel
from agentloop.omni.channel import Channel, join, task_state
from agentloop.omni.reader import trace_files
from agentloop.omni.recorder import record
from agentloop.omni.records import session_meta
from agentloop.omni.sse import Parser
from agentloop.omni.trace import TraceWriter
from agentloop.session import Session
from agentloop.subagent import subagent
from agentloop.testing.machine import illegal, illegal_history

from .scenarios import SCENARIOS, calls, config, model, tools
from .stage import Stage

ID = "s1"


# ---------------------------------------------------------------- sessions, and what is left of them


def options(stage: Stage, **changes: Any) -> dict[str, Any]:
    """What the sessions of the stories have alike."""
    points = stage.points
    shared = attrs.asdict(config(points, []), recurse=False)
    kept = (
        "clock",
        "abort_grace",
        "deadline",
        "tool_timeout",
        "idle_timeout",
        "approval_timeout",
        "retry",
        "max_turns",
    )
    return {**{name: shared[name] for name in kept}, "fsync": "never", **changes}


@asynccontextmanager
async def session(
    stage: Stage,
    replies: list[list[Any]],
    *,
    again: bool = False,
    exact: bool = True,
    once: bool = False,
    **changes: Any,
) -> AsyncIterator[Session]:
    """A session of the story's; what is left of it is looked at when all is over. `exact`: nothing is lost on its way to
    the trace. `once`: it is not gone on with in memory."""
    points = stage.points
    given = {"tools": tools(points), "redact": redact(stage), **options(stage, **changes)}
    make = partial(Session.open, ID, stage.folder) if again else partial(Session.create, stage.folder, session_id=ID)
    async with make(model=model(points, replies), **given) as made:
        before = len(made.history().messages)
        stage.after.append(partial(look_at_trace, stage, before, exact))
        try:
            yield made
        finally:
            points.off = True
            with anyio.CancelScope(shield=True):
                if points.at % 2 and not made.is_running and not made._closed and not once:
                    await go_on(made)
            points.off = False
    assert made.is_running is False, "a run goes on in a closed session"


def redact(stage: Stage) -> Any:
    """A redaction that changes nothing. It is no effect of the run: an abort does not stop what is told of it."""

    def keep(item: Any) -> Any:
        stage.points.hit("redact")
        return item

    return keep


async def go_on(made: Session) -> None:
    """The next run of a session has legal requests and comes to its end."""
    asked: list[Sequence[Any]] = []
    made.configure(model=plain_model(asked), tools=(), hooks=(), compaction=None, tool_source=None, deadline=None)
    async with running(made.run("and then?")) as events:
        _ends_well([event async for event in events], asked)


def plain_model(asked: list[Sequence[Any]]) -> Any:
    """A model that says yes, and notes what it was asked."""

    async def stream(request: ModelRequest) -> AsyncIterator[Any]:
        asked.append(tuple(request.messages))
        yield "yes"
        yield Finish("stop")

    return stream


def _ends_well(events: list[Event], asked: list[Sequence[Any]]) -> None:
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert end.stop_reason == "completed", f"{end.stop_reason}: {end.error_message}"
    assert asked, "nothing was asked"
    for messages in asked:
        assert illegal(messages) is None, illegal(messages)


async def look_at_trace(stage: Stage, before: int, exact: bool) -> None:
    """The trace can be read and is legal, and the session goes on from it."""
    files = [str(file.path) for file in trace_files(stage.folder, ID)]
    if exact:
        _is_legal(files)
    if not files:
        return
    asked: list[Sequence[Any]] = []
    async with Session.open(ID, stage.folder, plain_model(asked), approve=lambda request: "allow") as opened:
        told = [kind(message) for message in opened.history().messages][before:]
        seen = [kind(event.message) for run in stage.runs for event in run if isinstance(event, MessageEnd)]
        assert not exact or told[: len(seen)] == seen, f"the trace tells {told}, the consumer saw {seen}"
        problem = illegal_history(opened.messages)
        assert problem is None or opened.waits, problem
        _ends_well([event async for event in opened.run("and now?")], asked)
    if exact:
        _is_legal([str(file.path) for file in trace_files(stage.folder, ID)])


def kind(message: Any) -> tuple[str, str]:
    """What a trace must tell of a message."""
    return message.role, getattr(message, "text", "")


def _is_legal(files: list[str]) -> None:
    for report in check_session(files):
        assert report.ok, report.to_text()
        assert not report.torn, f"{report.file}: a line is cut"


# ---------------------------------------------------------------- stories of sessions


def asking(stage: Stage, **more: Any) -> dict[str, Any]:
    """Hooks and callbacks around the calls of a session, async."""
    points = stage.points
    hooks = Hooks(
        "h",
        pre_tool_use=points.callback("pre_tool_use"),
        user_prompt=points.callback("user_prompt", HookAnswer()),
        stop=points.callback("stop", HookAnswer()),
    )
    return {"hooks": [hooks], "before_tool_call": points.callback("before"), **more}


async def two_runs(stage: Stage) -> None:
    """A session with hooks, an approval and streamed output, steered in its first run; then a second run."""
    points = stage.points
    replies = [
        calls("work", "stream"),
        ["b", Finish("stop")],
        ["c", Finish("stop")],
        calls("work"),
        ["d", Finish("stop")],
    ]
    approve = points.callback("approve", "allow")
    async with session(stage, replies, **asking(stage)) as made:
        made.steer("steered")
        made.follow_up("more")
        await stage.follow(made.run("go", approve=approve, abort=points.signal))
        await stage.follow(made.run("again", approve=approve, abort=points.signal))


async def interrupted(stage: Stage) -> None:
    """A session that waits in a tool which its own queue interrupts."""
    points = stage.points

    def speak(*args: Any) -> None:
        made.steer("steered")

    hooks = [Hooks("h", pre_tool_use=points.plain("pre_tool_use", speak))]
    async with session(stage, [calls("wait", "alone"), ["b", Finish("stop")]], hooks=hooks) as made:
        await stage.follow(made.run("go", approve=points.callback("approve", "allow"), abort=points.signal))


async def warned(stage: Stage) -> None:
    """A session that bears what cannot be written."""
    points = stage.points
    async with session(stage, [calls("work"), ["b", Finish("stop")]], exact=False, policy="warn") as made:
        await stage.follow(made.run("go", approve=points.plain("approve", "deny"), abort=points.signal))


async def retried(stage: Stage) -> None:
    """A session whose requests fail, one for good; the next run goes on with it."""
    points = stage.points
    replies = [
        ["half", ModelError("network", "gone")],
        calls("work"),
        [ModelError("auth", "no")],
        ["c", Finish("stop")],
    ]
    async with session(stage, replies) as made:
        await stage.follow(made.run("go", approve=points.callback("approve", "forbidden"), abort=points.signal))
        if made.waits:
            await stage.follow(made.run(abort=points.signal))


async def resumed(stage: Stage) -> None:
    """A session that a crash left in the middle of its calls, gone on with."""
    points = stage.points
    points.off = True
    await crash(stage)
    points.off = False
    again = [calls("work"), ["b", Finish("stop")]]
    async with session(stage, again, again=True, **asking(stage)) as made:
        await stage.follow(made.run(approve=points.callback("approve", "allow"), abort=points.signal))


async def crash(stage: Stage) -> None:
    """Leave a trace in which one call has ended, one has started and one was not asked about."""
    held = stage.points.off

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    @tool(replay="safe")
    async def alone() -> None:
        """Never end."""
        await anyio.sleep_forever()

    @tool
    async def stream() -> str:
        """Not begun."""
        return "streamed"

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        for chunk in calls("work", "alone", "stream"):
            yield chunk

    async with Session.create(stage.folder, model, session_id=ID, tools=[work, alone, stream]) as crashed:
        run = crashed.run("go", approve=lambda request: "allow")
        starts = 0
        async for event in run:
            starts += isinstance(event, ToolExecutionStart)
            if starts == 2:
                break
        crashed.close()
        await run.aclose()
    assert held


async def closed_beside(stage: Stage) -> None:
    """A session that another task closes while its run goes on."""
    points = stage.points
    closed = anyio.Event()

    async def close() -> None:
        try:
            await made.aclose()
        except BaseException as error:
            if not points.ours(error):
                raise
        closed.set()

    async def hold() -> str:
        async with points.body("hold"):
            stage.left.add(0)
            points.group.start_soon(close)
            await anyio.sleep_forever()
            return "held"

    holding = tool(hold, name="work", description="Hold.")
    async with session(stage, [calls("work", "missing"), ["b", Finish("stop")]], once=True, tools=[holding]) as made:
        await stage.follow(made.run("go", approve=points.callback("approve", "allow"), abort=points.signal))
        if 0 in stage.left and not points.done:
            await closed.wait()


async def streamed(stage: Stage) -> None:
    """A session's records in a channel, which a late reader joins; what all readers get is parsed."""
    points = stage.points
    channel, parser, seen = Channel(), Parser(), []

    def publish(item: Any) -> Any:
        seen.extend(parser.feed(channel.publish(item).data))
        return item

    def joined() -> None:
        points.off = True
        shown = join([], channel.live(), [(each.id, each.record()) for each in seen])
        assert shown, "a late reader sees something"
        channel.connect(seen[0].id, state=task_state("running"))
        points.off = False

    replies = [calls("stream"), ["b", Finish("stop")]]
    async with session(stage, replies) as made:
        records = made.records("go", approve=points.callback("approve", "allow"), abort=points.signal)
        stage.left.add(0)
        await stage.follow(Published(records, publish, joined))


class Published:
    """Records on their way through a channel."""

    def __init__(self, records: Any, publish: Any, joined: Any) -> None:
        self._records = records
        self._publish = publish
        self._joined = joined
        self.skip_wait = records.skip_wait
        self.keep_alive = records.keep_alive
        self.aclose = records.aclose

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        item = self._publish(await anext(self._records))
        self._joined()
        return item


async def compacted(stage: Stage) -> None:
    """A session with a compaction in its run, its first summary of no use, and one by hand behind it."""
    points = stage.points
    replies = [
        calls("alone"),
        [" ", Finish("stop")],
        ["[summary]short[/summary]", Finish("stop")],
        ["d", Finish("stop")],
        ["[summary]shorter[/summary]", Finish("stop")],
    ]
    async with session(stage, replies, compaction=Summarize(when=TurnsReach(1))) as made:
        await stage.follow(made.run("go", approve=points.callback("approve", "allow"), abort=points.signal))
        if made.messages and not made.waits:
            await stage.follow(made.compact(abort=points.signal))


async def with_agents(stage: Stage) -> None:
    """A session whose tool is an agent with a trace of its own."""
    points = stage.points
    points.late = 1
    inner = [calls("alone"), ["inner", Finish("stop")]]
    own = {name: value for name, value in options(stage, deadline=None).items() if name != "fsync"}
    child = subagent("child", "Does it.", model(points, inner), tools=tools(points), traces=stage.folder / "c", **own)
    call = ["text", ToolCallChunk('{"prompt": "do"}', "child_id", "child"), Finish("tool_use")]
    async with session(stage, [call, ["b", Finish("stop")]], tools=[child]) as made:
        await stage.follow(made.run("go", approve=points.callback("approve", "allow"), abort=points.signal))
    stage.after.append(partial(look_at_children, stage))


async def look_at_children(stage: Stage) -> None:
    """The traces of children are legal too."""
    for path in sorted((stage.folder / "c").rglob("*.jsonl")):
        _is_legal([str(path)])


async def with_source(stage: Stage) -> None:
    """A session with a source of tools, whose list changes."""
    points = stage.points
    lists = [None, tools(points)[:2]]

    class Source:
        servers = ("s",)

        async def connect(self) -> Any:
            return await points.callback("connect", (McpConnectEnd("completed"), tools(points)))()

        async def changed(self) -> Any:
            return await points.callback("changed", lambda: lists.pop() if lists else None)()

        async def close(self) -> None:
            points.open.append("close")
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                points.open.remove("close")

    replies = [calls("work"), calls("stream"), ["b", Finish("stop")]]
    async with session(stage, replies, tools=(), tool_source=Source()) as made:
        await stage.follow(made.run("go", approve=points.callback("approve", "allow"), abort=points.signal))


# ---------------------------------------------------------------- recorded runs, and their sinks


def sink(stage: Stage, stored: list[Any]) -> Any:
    """A sink that waits, and keeps what it is given."""
    points = stage.points

    async def keep(item: Any) -> None:
        points.open.append("sink")  # it is no effect of the run: it may begin after an abort
        try:
            await points.point("sink begins")
            stored.append(item)
            await points.point("sink ends")
        finally:
            points.open.remove("sink")

    return keep


async def into_a_sink(stage: Stage, policy: Any) -> None:
    """A run, recorded into a sink of the caller's."""
    points = stage.points
    stored: list[Any] = []
    run = agent_loop(["go"], Context("s", tools=tools(points)), config(points, [calls("work"), ["b", Finish("stop")]]))
    made = record(run, sink(stage, stored), policy=policy, write_timeout=0.3, redact=redact(stage))
    try:
        await stage.follow(made)
    except TraceWriteError:
        if not points.done:
            raise
        stage.left.add(0)
    ends = sum(isinstance(event, MessageEnd) for event in stage.runs[0])
    kept = sum(item["payload"].get("role") is not None or "text" in item["payload"] for item in stored)
    assert policy == "warn" or kept >= min(ends, 1), "an event was handed over that is not stored"


async def into_a_file(stage: Stage) -> None:
    """A run, recorded into a file, with calls to go on with; left as soon as it waits for a person."""
    points = stage.points
    meta = session_meta(ID, provider="p", model_id="m")
    approvals = Approvals(
        Policy([Rule("allow", tools="alone")], default="ask"), on_question=points.callback("on_question")
    )
    given = config(points, [calls("alone", "work"), ["b", Finish("stop")]], approve=approvals)
    run = agent_loop(["go"], Context("s", tools=tools(points)), given)
    stage.left.add(0)
    with TraceWriter(stage.folder, meta, redact=redact(stage)) as writer:
        try:
            await stage.follow(until_waiting(record(run, writer)))
        except TraceWriteError:
            if not points.done:
                raise
    _is_legal([str(file.path) for file in trace_files(stage.folder, ID)])


# ---------------------------------------------------------------- agents


class Talk:
    """An agent in the place of a run: what a consumer of it can do."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def aclose(self) -> None:
        """Stop it, and wait."""
        self.agent.abort("closed")
        await self.agent.wait_for_idle()


def agent(stage: Stage, replies: list[list[Any]], given: Sequence[Any] = (), **changes: Any) -> Agent:
    """An agent with a listener that waits, and one that checks."""
    points = stage.points
    made = Agent(
        model(points, replies),
        tools=given or tools(points),
        abort=points.signal,
        **{name: value for name, value in options(stage, **changes).items() if name != "fsync"},
    )

    def heard(event: Any) -> None:
        if type(event).__name__ == "AgentStart":
            stage.runs.append([])
            heard.checker = Checker()  # type: ignore[attr-defined]
        heard.checker.feed(event)  # type: ignore[attr-defined]
        stage.runs[-1].append(event)

    async def waits(event: Any) -> None:
        if isinstance(event, RequestEnd | ToolExecutionStart | ToolExecutionEnd | AgentEnd):
            points.open.append("listener")
            try:
                points.hit("listener begins")  # it may not hang: an agent waits for it, whatever stops the run
                await anyio.lowlevel.checkpoint()
                points.hit("listener ends")
            finally:
                points.open.remove("listener")

    made.subscribe(heard)
    made.subscribe(waits)
    made.subscribe(lambda event: waits(event))
    stage.after.append(partial(look_at_agent, stage, made))
    talk = Talk(made)
    stage.talk = talk
    points.run = lambda: talk
    return made


async def look_at_agent(stage: Stage, made: Agent) -> None:
    """It is idle, its history is legal, and it goes on."""
    assert not made.is_running
    asked: list[Sequence[Any]] = []
    made.config = Config(model=plain_model(asked))
    made.tools = ()
    made.clear_queue()
    end = await made.prompt("and now?")
    assert end.stop_reason == "completed", end
    for messages in asked:
        assert illegal(messages) is None, illegal(messages)


async def prompted(stage: Stage) -> None:
    """An agent that is steered, told more, read beside, waited for, and goes on after a failure."""
    points = stage.points
    replies = [calls("work", "stream"), ["b", Finish("stop")], [ModelError("auth", "no")], ["c", Finish("stop")]]
    made = agent(stage, replies, prepare_request=points.callback("prepare"), max_turns=9)
    reader, idle = made.events(), anyio.Event()

    async def read_on() -> None:
        checker = Checker()
        async for event in reader:
            checker.feed(event)

    async def wait() -> None:
        await made.wait_for_idle()
        idle.set()

    async with anyio.create_task_group() as group:
        group.start_soon(read_on)
        try:
            made.steer("steered")
            made.follow_up("more")
            group.start_soon(wait)
            with stage.step():
                await made.prompt("go")
            with stage.step(), suppress(ValueError):  # after a fault there may be nothing to go on with
                await made.continue_()
        finally:
            await reader.aclose()


async def aborted(stage: Stage) -> None:
    """An agent that somebody else aborts in a tool that waits; then a compaction."""
    made = agent(stage, [calls("wait", "alone"), ["[summary]s[/summary]", Finish("stop")]], compaction=Summarize())

    def stop(event: Any) -> None:
        if isinstance(event, ToolExecutionStart) and len(stage.runs) == 1:
            made.abort("enough")

    made.subscribe(stop)
    with stage.step():
        await made.prompt("go")
    if made.state.messages:  # one that was aborted before its first turn has nothing to compact
        with stage.step():
            await made.compact()


# ---------------------------------------------------------------- leaving: the waits of a clean-up


def slow(stage: Stage) -> list[Any]:
    """Tools that take their time to end: one that heeds its signal late, one that streams, one that cleans up."""
    points = stage.points

    @tool
    async def heeds(ctx: ToolContext) -> str:
        """Wait for the signal."""
        async with points.body("heeds"):
            await ctx.abort.wait()
            await anyio.lowlevel.checkpoint()
            return "heeded"

    @tool
    async def streams() -> AsyncIterator[str]:
        """Stream, and clean up."""
        points.open.append("streams")
        try:
            yield "piece"
            await anyio.sleep_forever()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
            finally:
                points.open.remove("streams")

    @tool
    async def cleans() -> None:
        """Clean up."""
        points.open.append("cleans")
        try:
            await anyio.sleep_forever()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
            finally:
                points.open.remove("cleans")

    return [heeds, streams, cleans]


SLOW = calls("heeds", "streams", "cleans")


async def begun(stage: Stage, run: Any) -> None:
    """Step a run until its three tools have started."""
    starts = 0
    stage.left.add(len(stage.runs))
    stage.runs.append([])
    while starts < 3:
        with stage.step():
            try:
                event = await anext(run)
            except StopAsyncIteration:
                return
            stage.runs[-1].append(event)
            starts += isinstance(event, ToolExecutionStart)


async def left_early(stage: Stage) -> None:
    """A session's run that its consumer closes while tools work; the next one is cancelled in a step."""
    points = stage.points
    async with session(stage, [SLOW, SLOW], tools=slow(stage)) as made:
        run = made.run("go", approve=lambda request: "allow", abort=points.signal)
        points.run = weakref.ref(run)
        await begun(stage, run)
        await run.aclose()
        records = made.records("again", approve=lambda request: "allow", abort=points.signal)
        await begun(stage, records.run)
        with anyio.CancelScope() as scope:
            scope.cancel()
            async for _ in records:
                pass
        await records.aclose()


async def stopped(stage: Stage) -> None:
    """An abort while tools work that take their time, a source of tools is connected and a sink is slow."""
    points = stage.points
    stored: list[Any] = []

    async def finish_turn(end: Any) -> None:
        await anyio.lowlevel.checkpoint()

    run = agent_loop(["go"], Context("s", tools=slow(stage)), config(points, [SLOW], finish_turn=finish_turn))
    recording = record(run, sink(stage, stored), write_timeout=0.3)
    points.run = weakref.ref(recording)
    await begun(stage, recording)
    points.signal.abort("enough")
    async for _ in recording:
        pass


async def hung_sink(stage: Stage) -> None:
    """A sink that never takes its second record: it is given up, and the run closed."""
    points = stage.points
    stored: list[Any] = []

    async def keep(item: Any) -> None:
        stored.append(item)
        if len(stored) > 1:
            await anyio.sleep_forever()

    run = agent_loop(["go"], Context("s", tools=slow(stage)), config(points, [SLOW]))
    stage.left.add(0)
    with suppress(TraceWriteError):
        await stage.follow(record(run, keep, write_timeout=0.01))


async def cancelled_agent(stage: Stage) -> None:
    """An agent whose caller is cancelled while its tools work: the rest is told to a listener that waits."""
    made = agent(stage, [SLOW, ["b", Finish("stop")]], slow(stage))
    starts = []

    with anyio.CancelScope() as scope:

        def cancel(event: Any) -> None:
            starts.append(event) if isinstance(event, ToolExecutionStart) else None
            if len(starts) == 3:
                scope.cancel()

        made.subscribe(cancel)
        with stage.step():
            await made.prompt("go")
    stage.left.update(range(len(stage.runs)))
    made.steer("more")
    with stage.step(), suppress(ValueError):
        await made.continue_()


# ---------------------------------------------------------------- more of the driver


async def eager(stage: Stage) -> None:
    """Tools that begin while their reply streams, one of them with a nested run."""
    points = stage.points
    points.late = 2

    @tool(replay="safe")
    async def ahead(ctx: ToolContext) -> str:
        """Begin ahead."""
        async with points.body("ahead"):
            await ctx.output("out")
            return "done"

    @tool(replay="safe")
    async def child(ctx: ToolContext) -> str:
        """Run an agent."""
        async with points.body("child"):
            inner = config(points, [["inner", Finish("stop")]], abort=ctx.abort, deadline=None)
            await ctx.nested(agent_loop(["do"], Context(), inner), "inner", closing_bound=0.1)
            return "done"

    replies = [
        ["t", ToolCallChunk("{}", "a1", "ahead"), ToolCallChunk("{}", "c1", "child"), ModelError("network", "gone")],
        ["t", ToolCallChunk("{}", "a2", "ahead"), ToolCallChunk("{}", "c2", "child"), Finish("tool_use")],
        ["b", Finish("stop")],
    ]
    context = Context("s", tools=[ahead, child])
    await stage.follow(agent_loop(["go"], context, config(points, replies, eager_tools=True)))


async def narrow(stage: Stage) -> None:
    """Output, streamed output and a nested run's text through a buffer of one."""
    points = stage.points
    points.late = 1

    @tool
    async def speak(ctx: ToolContext) -> str:
        """Say much."""
        async with points.body("speak"):
            for _ in range(3):
                await ctx.output("word ")
            return "said"

    @tool
    async def over(ctx: ToolContext) -> AsyncIterator[str]:
        """Say more than is kept."""
        async with points.body("over"):
            for _ in range(3):
                yield "x" * 40

    @tool
    async def child(ctx: ToolContext) -> str:
        """Run an agent."""
        async with points.body("child"):
            inner = config(points, [["in", "ner", Finish("stop")]], abort=ctx.abort, deadline=None)
            await ctx.nested(agent_loop(["do"], Context(), inner), "inner", closing_bound=0.1)
            return "done"

    replies = [calls("speak", "over", "child"), ["a", "b", "c", Finish("stop")]]
    given = config(points, replies, run_ahead=1, max_result_characters=60)
    await stage.follow(agent_loop(["go"], Context("s", tools=[speak, over, child]), given))


async def questions(stage: Stage) -> None:
    """A person who answers in a task beside, all questions at once, one by a policy."""
    points = stage.points
    policy = Policy([Rule("allow", tools="alone")], default="ask")
    approvals = Approvals(policy, on_question=points.callback("on_question"))

    async def person() -> None:
        for decision in ("allow", "deny"):
            pending = await approvals.wait()
            approvals.answer(pending[0], decision)  # type: ignore[arg-type]

    answering = model(points, [calls("alone", "work", "stream"), ["b", Finish("stop")]])

    async def awaited(request: ModelRequest) -> Any:
        await points.point("the model is asked")
        return answering(request)

    given = config(
        points,
        [],
        model=awaited,
        approve=approvals,
        approval_order="all_at_once",
        before_tool_call=points.callback("before"),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(person)
        try:
            await stage.follow(agent_loop(["go"], Context("s", tools=tools(points)), given))
        finally:
            group.cancel_scope.cancel()


async def on_the_clock(stage: Stage) -> None:
    """The clock that counts when none is given: a retry's wait; a tool in a thread; the offline model."""
    points = stage.points

    @tool
    def thread() -> str:
        """Work in a thread."""
        return "from a thread"

    answering = model(points, [[ModelError("network", "gone")], calls("thread")])
    offline = OfflineModel(pace=0.0001)
    asked = 0

    def either(request: ModelRequest) -> Any:
        nonlocal asked
        asked += 1
        return answering(request) if asked <= 2 else offline(request)

    given = Config(model=either, abort=points.signal, abort_grace=0.01, retry=Retry(waits=(0.001,)), max_turns=4,
                   idle_timeout=0.5, tool_timeout=0.5)  # fmt: skip
    await stage.follow(agent_loop(["go"], Context("s", tools=[thread]), given))


def of_a_run(make: Any) -> Any:
    """The story of a run that is stepped to its end."""

    async def story(stage: Stage) -> None:
        await stage.follow(make(stage.points))

    return story


RUNS: dict[str, Any] = {name: of_a_run(make) for name, make in SCENARIOS.items()}
"""The runs of the other matrix: here their waits alone are points."""

STORIES: dict[str, Any] = {
    "two_runs": two_runs,
    "interrupted": interrupted,
    "warned": warned,
    "retried": retried,
    "resumed": resumed,
    "closed_beside": closed_beside,
    "streamed": streamed,
    "compacted": compacted,
    "with_agents": with_agents,
    "with_source": with_source,
    "into_a_sink": partial(into_a_sink, policy="fail"),
    "into_a_sink_warned": partial(into_a_sink, policy="warn"),
    "into_a_file": into_a_file,
    "prompted": prompted,
    "aborted": aborted,
    "left_early": left_early,
    "stopped": stopped,
    "hung_sink": hung_sink,
    "cancelled_agent": cancelled_agent,
    "eager": eager,
    "narrow": narrow,
    "questions": questions,
    "on_the_clock": on_the_clock,
}
