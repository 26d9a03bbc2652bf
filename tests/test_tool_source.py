"""`Config.tool_source`: connected in the first turn, asked between turns what changed, closed at the end; what may go wrong."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import anyio
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    Config,
    Context,
    Event,
    McpConnectBegin,
    McpConnectEnd,
    MessageEnd,
    RequestBegin,
    Tool,
    ToolExecutionEnd,
    ToolListReady,
    TurnStart,
    agent_loop,
    agent_loop_continue,
    assistant,
    user,
)
from agentloop._host import make_host
from agentloop.events import McpServerStatus
from agentloop.grammar import check
from agentloop.messages import ToolCall
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, collect, wait_all_blocked
from tests.deaf import deaf_until

pytestmark = pytest.mark.anyio

CONNECTED = McpConnectEnd("completed", (McpServerStatus("s", "stdio", "completed", 1),))


def named(name: str, says: str = "ran") -> Tool:
    async def execute(arguments: dict[str, Any]) -> str:
        return f"{name} {says}"

    return Tool(name, f"The tool {name}.", {"type": "object"}, execute)


class Source:
    """A source of tools that notes what it is asked. Each answer is given, raised, or called and awaited."""

    servers: Any = ("s",)

    def __init__(self, connect: Any = (CONNECTED, ()), changed: Any = ()) -> None:
        self.asked: list[str] = []
        self._connect = connect
        self._changed = list(changed)

    async def connect(self) -> Any:
        return await self._answer("connect", self._connect)

    async def changed(self) -> Any:
        return await self._answer("changed", self._changed.pop(0) if self._changed else None)

    async def close(self) -> None:
        self.asked.append("close")

    async def _answer(self, what: str, answer: Any) -> Any:
        self.asked.append(what)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def played(source: Any, replies: Any, tools: Any = (), **changes: Any) -> tuple[list[Event], ScriptedModel]:
    model = ScriptedModel(replies)
    config = Config(**{"model": model, "clock": VirtualClock(), "tool_source": source, **changes})
    with anyio.fail_after(20):
        events = await collect(agent_loop(["go"], Context(tools=tools), config))
    check(events)
    return events, model


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


def connection(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, McpConnectBegin | McpConnectEnd)]


def ended(events: list[Event]) -> tuple[str, str | None]:
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return end.stop_reason, end.error_code


# ---------------------------------------------------------------- what it gives


async def test_its_tools_are_offered_from_the_first_request_on() -> None:
    """It is connected once, asked before each further turn, and closed; its end is told as it gave it."""
    source, clock = Source((CONNECTED, [named("a")])), VirtualClock()
    events, model = await played(source, [[call("a")], [call("a")], "done"], clock=clock)
    assert clock.now() == 0
    assert connection(events) == [McpConnectBegin(("s",)), CONNECTED]
    assert offered(model) == [["a"]] * 3
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == ["a ran"] * 2
    assert source.asked == ["connect", "changed", "changed", "close"]


async def test_a_list_that_changed_takes_the_place_of_the_one_before() -> None:
    """Told once, where it changed; None leaves it as it is, an empty one leaves none."""
    source = Source((CONNECTED, [named("a")]), [None, [named("b"), named("c")], ()])
    replies = [[call("a")], [call("a")], [call("a"), call("b")], "done"]
    events, model = await played(source, replies, [named("own")])
    assert offered(model) == [["own", "a"], ["own", "a"], ["own", "b", "c"], ["own"]]
    assert [[spec.name for spec in e.tools] for e in events if isinstance(e, ToolListReady)] == [
        ["own", "a"], ["own", "b", "c"], ["own"],
    ]  # fmt: skip
    assert [e.error_code for e in events if isinstance(e, ToolExecutionEnd)] == [None, None, "unknown_tool", None]


async def test_of_two_tools_of_one_name_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    """The run's own before those of the source, in whose list again the first; a warning names each that is left out."""
    source = Source((CONNECTED, [named("a", "of the source"), named("b", "first"), named("b", "second"), named("c")]))
    with caplog.at_level(logging.WARNING, logger="agentloop"):
        events, model = await played(source, [[call("a"), call("b")], "done"], [named("a", "itself")])
    assert offered(model)[0] == ["a", "b", "c"]
    assert {e.result.text for e in events if isinstance(e, ToolExecutionEnd)} == {"a itself", "b first"}
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["a", "b"]


async def test_tools_that_are_given_in_the_place_of_the_runs_own_leave_the_sources() -> None:
    """What `get_tools` gives replaces the context's tools alone, and comes before the source's."""
    lists = iter([[named("new"), named("a", "itself")], None])
    source = Source((CONNECTED, [named("a", "of the source"), named("b")]))
    events, model = await played(source, [[call("a")], "done"], [named("old")], get_tools=lambda: next(lists))
    assert offered(model) == [["new", "a", "b"]] * 2
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == ["a itself"]


async def test_open_calls_find_the_tools_of_the_source() -> None:
    """A run that goes on from calls without a result connects first; it is asked before the turn behind them."""
    source = Source((CONNECTED, [named("a")]))
    context = Context(messages=[user("go"), assistant(ToolCall("1", "a", "{}"))])
    events = await collect(agent_loop_continue(context, Config(model=ScriptedModel(["done"]), tool_source=source)))
    check(events)
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == ["a ran"]
    assert source.asked == ["connect", "changed", "close"]


async def test_g12_connecting_begins_when_the_consumer_came_back() -> None:
    """A consumer that stores each event before it asks for the next has stored the announcement."""
    stored, began = list[Event](), list[bool]()

    async def connect() -> Any:
        began.append(isinstance(stored[-1], McpConnectBegin))
        return CONNECTED, ()

    config = Config(model=ScriptedModel(["done"]), tool_source=Source(connect))
    async for event in agent_loop(["go"], Context(), config):
        await wait_all_blocked()  # whatever could run ahead has run
        stored.append(event)
    assert began == [True]


# ---------------------------------------------------------------- what goes wrong


class Nameless(Source):
    """A source that cannot say what it connects."""

    def __init__(self, servers: Any) -> None:
        super().__init__()
        self._servers = servers

    @property
    def servers(self) -> Any:
        if isinstance(self._servers, BaseException):
            raise self._servers
        return self._servers


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        (ValueError("no list"), "no list"),
        (["a", 5], "servers[1]: expected a name, got int"),
        (5, "'int' object is not iterable"),
    ],
)
async def test_a_source_that_cannot_name_its_servers_is_not_connected(
    servers: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """That is a connection that failed, of no servers; the run goes on without it, and it has nothing to close."""
    source = Nameless(servers)
    events, model = await played(source, [[call("a")], "done"], [named("a")])
    assert connection(events) == [McpConnectBegin(()), McpConnectEnd("fatal", (), "connect_failed", words)]
    assert (offered(model), ended(events)) == ([["a"], ["a"]], ("completed", None))
    assert source.asked == []
    assert [record.getMessage() for record in caplog.records] == ["the tool source failed to name its servers"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ValueError("refused"), "refused"),
        (5, "connect: expected a McpConnectEnd and tools, got int"),
        ([CONNECTED, ()], "connect: expected a McpConnectEnd and tools, got list"),
        ((CONNECTED,), "connect: expected a McpConnectEnd and tools, got tuple"),
        (((), CONNECTED), "connect: expected a McpConnectEnd and tools, got tuple"),
        ((CONNECTED, ["a"]), "tools[0]: expected a Tool (use @tool), got str"),
        ((CONNECTED, None), "'NoneType' object is not iterable"),
    ],
)
async def test_a_connection_that_fails_costs_its_tools_only(
    answer: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told and logged, the run goes on with its own tools, and the source may still come with some later."""
    source = Source(answer, [None, [named("late")]])
    events, model = await played(source, [[call("a")], [call("a")], "done"], [named("a")])
    begin, end = connection(events)
    assert begin == McpConnectBegin(("s",))
    assert isinstance(end, McpConnectEnd)
    assert (end.status, end.results, end.error_code) == ("fatal", (), "connect_failed")
    assert words in (end.error_message or "")
    assert offered(model) == [["a"], ["a"], ["a", "late"]]
    assert source.asked == ["connect", "changed", "changed", "close"]
    assert [record.getMessage() for record in caplog.records] == ["connecting the tool source failed"]


@pytest.mark.parametrize("answer", [ValueError("broken"), 5, ["a"]])
async def test_a_source_that_fails_to_say_what_changed_keeps_its_tools(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning is logged, the list stays as it was, and the source is asked again."""
    source = Source((CONNECTED, [named("a")]), [answer, [named("b")]])
    events, model = await played(source, [[call("a")], [call("a")], "done"])
    assert (offered(model), ended(events)) == ([["a"], ["a"], ["b"]], ("completed", None))
    assert source.asked == ["connect", "changed", "changed", "close"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class Worse(BaseException):
    """What no source should raise."""


async def test_a_source_that_breaks_down_is_closed_at_once() -> None:
    """After what is no `Exception` it is asked no more; the words of that are told, and its tools stay."""
    source = Source(Worse("broken down"))
    events, model = await played(source, [[call("a")], "done"], [named("a")])
    assert connection(events)[1] == McpConnectEnd("fatal", (), "connect_failed", "broken down")
    assert (offered(model), ended(events)) == ([["a"], ["a"]], ("completed", None))
    assert source.asked == ["connect", "close"]


# ---------------------------------------------------------------- stops


async def test_an_abort_before_it_connects() -> None:
    """The abort comes with the event that announces it: nothing begins, so there is nothing to close."""
    signal, source, events = AbortSignal(), Source(), []
    model = ScriptedModel(["never"])
    async for event in agent_loop(["go"], Context(), Config(model=model, tool_source=source, abort=signal)):
        events.append(event)
        if isinstance(event, McpConnectBegin):
            signal.abort("enough")
    check(events)
    assert connection(events) == [McpConnectBegin(("s",)), McpConnectEnd("aborted")]
    assert (ended(events), source.asked, model.asked) == (("aborted", "user_abort"), [], 0)


async def test_an_abort_while_it_connects_cancels_it() -> None:
    """The connection ends `aborted`, its clean-up has run and the source is closed before the run's end."""
    signal, left = AbortSignal(), []

    async def connect() -> None:
        signal.abort("enough")
        try:
            await anyio.sleep_forever()
        finally:
            left.append("connect")

    source = Source(connect)
    source.closing_bound = 1000.0  # type: ignore[attr-defined]
    events, model = await played(source, ["never"], abort=signal)
    assert connection(events) == [McpConnectBegin(("s",)), McpConnectEnd("aborted")]
    assert (ended(events), model.asked, left) == (("aborted", "user_abort"), 0, ["connect"])
    assert source.asked == ["connect", "close"]


async def test_an_abort_between_turns_keeps_what_was_taken() -> None:
    """While it is asked what changed an abort ends the run: without a turn, or with one for a message that was taken."""
    for queue, turns in (([], 1), ([["more"]], 2)):
        signal = AbortSignal()

        async def changed(signal: AbortSignal = signal) -> None:
            signal.abort("enough")
            await anyio.sleep_forever()

        source = Source(changed=[changed])
        given = [[], *queue]
        events, model = await played(
            source,
            [[call("a")], "never"],
            [named("a")],
            abort=signal,
            get_steering_messages=lambda given=given: given.pop(0) if given else [],
        )
        assert [event.index for event in events if isinstance(event, TurnStart)] == list(range(turns))
        assert (ended(events), model.asked) == (("aborted", "user_abort"), 1)
        told = [e.message.text for e in events if isinstance(e, MessageEnd) and e.message.role == "user"]
        assert told == ["go", *[text for texts in queue for text in texts]]
        assert source.asked == ["connect", "changed", "close"]


async def test_nothing_of_it_begins_after_an_abort_that_comes_as_it_is_asked_to_connect() -> None:
    """The abort comes when the consumer has come back, and before the source's task hears anything: it is not closed either,
    wherever a task begins at once (asyncio from Python 3.12 on)."""
    signal, source, host, events = AbortSignal(), Source(), make_host(), []
    config = Config(model=ScriptedModel(["never"]), tool_source=source, abort=signal)
    async for event in agent_loop(["go"], Context(), config):
        events.append(event)
        if isinstance(event, McpConnectBegin):
            host.soon(lambda: host.soon(signal.abort))
    check(events)
    assert connection(events)[1:] in ([McpConnectEnd("aborted")], [CONNECTED])
    assert ended(events) == ("aborted", "user_abort")
    assert source.asked == (["connect", "close"] if connection(events)[1] == CONNECTED else [])


async def test_nothing_of_it_begins_after_an_abort() -> None:
    """The abort comes between the moment that the driver asks and the moment that the source's task hears it (G21)."""
    signal, late = AbortSignal(), []

    class Watched(Source):
        async def changed(self) -> None:
            late.append(signal.aborted)

    def poll() -> list[str]:
        if source.asked:  # behind the first turn: right before it is asked what changed
            make_host().soon(signal.abort)
        return []

    source = Watched()
    events, _ = await played(source, [[call("a")], "done"], [named("a")], abort=signal, get_steering_messages=poll)
    assert ended(events) == ("aborted", "user_abort")
    assert not any(late)
    assert source.asked == ["connect", "close"]


# ---------------------------------------------------------------- closing


@pytest.mark.parametrize(("asks", "grace", "bound"), [(None, 0.25, 0.75), (30.0, 0.25, 30.75), (None, 0, 0.1)])
async def test_a_source_is_given_the_time_to_close_that_it_asks_for(
    asks: float | None, grace: float, bound: float, caplog: pytest.LogCaptureFixture
) -> None:
    """`closing_bound` seconds beyond those of every run (two graces, a tenth of a second at least, and one behind its
    cancellation); then it is given up."""
    clock, release = VirtualClock(), anyio.Event()

    class Deaf(Source):
        async def close(self) -> None:
            await deaf_until(release)

    source = Deaf()
    if asks is not None:
        source.closing_bound = asks  # type: ignore[attr-defined]
    config = Config(model=ScriptedModel(["done"]), tool_source=source, clock=clock, abort_grace=grace)
    check(await collect(agent_loop(["go"], Context(), config)))
    took = clock.now()
    release.set()
    await wait_all_blocked()
    assert took == bound
    assert [record.getMessage() for record in caplog.records] == [
        "the tool source did not stop within its bound and is left to itself"
    ]


@pytest.mark.parametrize("asks", [LookupError("gone"), "long", math.nan, math.inf, 10**400])
async def test_what_is_no_number_of_seconds_asks_for_no_time_to_close(asks: Any) -> None:
    """Nor does an attribute that fails when it is looked at: the run goes on with the bound of every run."""

    class Odd(Source):
        @property
        def closing_bound(self) -> Any:
            if isinstance(asks, BaseException):
                raise asks
            return asks

        async def close(self) -> None:
            await anyio.sleep_forever()

    source, clock = Odd(), VirtualClock()
    config = Config(model=ScriptedModel(["done"]), tool_source=source, clock=clock)
    check(await collect(agent_loop(["go"], Context(), config)))
    assert clock.now() == 0.75


async def test_what_a_source_is_busy_with_is_cut_when_the_run_ends() -> None:
    """It is cancelled at once, whatever time it asks for: what it would say is wanted no more."""
    clock = VirtualClock()

    async def changed() -> None:
        await clock.sleep(1000)

    source = Source(changed=[changed])
    source.closing_bound = 100.0  # type: ignore[attr-defined]
    model = ScriptedModel([[call("a")], "never"])
    config = Config(model=model, tool_source=source, clock=clock, deadline=5)
    events = await collect(agent_loop(["go"], Context(tools=[named("a")]), config))
    check(events)
    assert ended(events) == ("aborted", "deadline")
    assert (source.asked, clock.now()) == (["connect", "changed", "close"], 5)


async def test_it_is_closed_although_the_consumer_leaves() -> None:
    """A run that is closed in the middle of a reply closes its source, once."""
    source = Source()
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel([["a", STALL]]), tool_source=source))
    async for event in run:
        if isinstance(event, RequestBegin):
            break
    await run.aclose()
    assert source.asked == ["connect", "close"]


async def test_one_that_ignored_its_cancellation_is_closed_when_the_consumer_has_left() -> None:
    """It hears nothing while it connects; once it comes back it is closed, and its task ends."""
    release, begun = anyio.Event(), anyio.Event()

    async def connect() -> Any:
        begun.set()
        await deaf_until(release)
        return CONNECTED, ()

    source = Source(connect)
    config = Config(model=ScriptedModel(["never"]), tool_source=source, abort_grace=0.01)
    run = agent_loop(["go"], Context(), config)
    async with anyio.create_task_group() as group:
        group.start_soon(collect, run)
        await begun.wait()
        await run.aclose()
    before = list(source.asked)
    release.set()
    await wait_all_blocked()
    assert (before, source.asked) == (["connect"], ["connect", "close"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # where a task knows that it was cancelled
async def test_a_source_that_is_not_busy_is_closed_without_a_cancellation() -> None:
    """What it does to disconnect need not be done in a task that was cancelled."""
    cancelled: list[int] = []

    class Tidy(Source):
        async def close(self) -> None:
            task = asyncio.current_task()
            assert task is not None
            cancelled.append(task.cancelling())

    await played(Tidy((CONNECTED, [named("a")])), [[call("a")], "done"])
    assert cancelled == [0]
