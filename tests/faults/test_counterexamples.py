"""What broke the driver once, each by itself; and hostile values of every kind that it has to bear."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop import (
    AbortSignal,
    Agent,
    AgentEnd,
    AgentStart,
    AssistantMessage,
    Config,
    Context,
    Event,
    McpConnectEnd,
    MessageEnd,
    ModelError,
    RequestEnd,
    Retry,
    ToolExecutionEnd,
    ToolResultMessage,
    agent_loop,
    assistant,
    tool,
    user,
)
from agentloop._awaiting import close_unstarted
from agentloop._session.door import Door
from agentloop.context import compose
from agentloop.grammar import Checker, check
from agentloop.messages import Text, ToolCall, Usage
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.omni import codec
from agentloop.omni.recorder import record
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked
from tests.deaf import deaf_until
from tests.leftovers import nothing_left

from .bench import Bad, Hostile, HostileError, Worse, outcome

pytestmark = pytest.mark.anyio


async def play(model: Any, tools: Any = (), messages: Any = ("go",), **config: Any) -> list[Event]:
    """A whole run on a virtual clock, checked; it must end by itself and be writable."""
    values = {"clock": VirtualClock(), "retry": None, "abort_grace": 0.01, **config}
    with anyio.fail_after(20):
        events = await collect(agent_loop(messages, Context(tools=tools), Config(model=model, **values)))
    check(events)
    for record in codec.encode(events):
        codec.jsonl(record)
    return events


def results(events: list[Event]) -> list[ToolExecutionEnd]:
    """The ends of the calls."""
    return [event for event in events if isinstance(event, ToolExecutionEnd)]


# ---------------------------------------------------------------- KeyboardInterrupt and SystemExit


def _in_thread(error: BaseException) -> Any:
    @tool(name="leave")
    def leave() -> None:
        """Leave."""
        raise error

    return leave


def _in_task(error: BaseException) -> Any:
    @tool(name="leave")
    async def leave() -> None:
        """Leave."""
        await anyio.lowlevel.checkpoint()
        raise error

    return leave


def _in_group(error: BaseException) -> Any:
    @tool(name="leave")
    async def leave() -> None:
        """Leave, out of a group of tasks."""
        raise BaseExceptionGroup("tasks", [BaseExceptionGroup("inner", [error, Bad("other")])])

    return leave


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("make", [_in_thread, _in_task, _in_group])
async def test_an_order_to_leave_reaches_the_consumer(make: Any, kind: type[BaseException]) -> None:
    """`KeyboardInterrupt` and `SystemExit` of a tool, from wherever, are raised by the step, bare (G18)."""
    error = kind("now")
    async with nothing_left():
        seen = []
        run = agent_loop(["go"], Context(tools=[make(error)]), Config(model=ScriptedModel([[call("leave")]])))
        with pytest.raises(kind) as caught:
            async for event in run:
                seen.append(event)
        assert caught.value is error
        assert not any(isinstance(event, AgentEnd | ToolExecutionEnd) for event in seen)
        with pytest.raises(StopAsyncIteration):
            await anext(run)


# ---------------------------------------------------------------- ids


@pytest.mark.parametrize("made", ["x", "", None, 5, "\ud800"])
async def test_ids_are_made_whatever_the_maker_gives(made: Any) -> None:
    """A `new_id` that repeats itself, or gives none, does not hang the run; ids stay unique (G07)."""
    model = ScriptedModel([[call("a", id=""), call("a", id=""), call("a", id="x")], "done"])
    events = await play(model, new_id=lambda: made)
    ids = [end.tool_call_id for end in results(events)]
    assert len(set(ids)) == 3
    assert all(isinstance(id, str) and id for id in ids)
    assert outcome(events) == ("completed", None)


@pytest.mark.parametrize("broken_off", [False, True])
async def test_a_maker_of_ids_that_fails(broken_off: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A `new_id` that raises ends nothing: the calls are named `call`, `call#2`; also where the reply fails later on. The log
    says so for each of them."""

    def fail() -> str:
        raise OSError("no entropy")

    first = [call("a", id=""), call("a", id="")]
    script: list[Any] = [[*first, ModelError("network", "gone")], first, "done"] if broken_off else [first, "done"]
    events = await play(ScriptedModel(script), new_id=fail, retry=Retry(waits=(0.0,)))
    assert [end.tool_call_id for end in results(events)][-2:] == (
        ["call#3", "call#4"] if broken_off else ["call", "call#2"]
    )
    assert outcome(events) == ("completed", None)
    failures = [record for record in caplog.records if record.exc_info and record.exc_info[0] is OSError]
    assert [record.getMessage() for record in failures] == [
        "new_id failed; a call without an id is named by the kernel"
    ] * (4 if broken_off else 2)


# ---------------------------------------------------------------- waits


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        (math.nan, 2000),
        (-5.0, 0),
        (math.inf, None),
        (-math.inf, 0),
        ("3", 2000),
        (True, 1000),
        (10**400, None),
        (1e-9, 0),
        ([], 2000),
    ],
)
@pytest.mark.parametrize("limit", [60.0, math.inf])
async def test_absurd_waits_of_a_provider(asked: Any, waited: int | None, limit: float) -> None:
    """A `retry_after` that is no number of seconds is passed over; one that has no end ends the run (G20)."""
    model = ScriptedModel([ModelError("rate_limit", "wait", retry_after=asked), "done"])
    events = await play(model, retry=Retry(waits=(2,), max_wait=limit))
    first = next(event for event in events if isinstance(event, RequestEnd))
    assert first.retry_in_ms == waited
    assert outcome(events) == (("completed", None) if waited is not None else ("retryable", "rate_limit"))


@pytest.mark.parametrize("deadline", [0, -1, -math.inf])
async def test_a_deadline_that_is_now(deadline: float) -> None:
    """No turn, nothing asked, nothing emitted of the prompts."""
    model = ScriptedModel(["done"])
    events = await play(model, deadline=deadline)
    assert [type(event) for event in events] == [AgentStart, AgentEnd]
    assert outcome(events) == ("aborted", "deadline")
    assert model.asked == 0


async def test_a_deadline_that_never_comes() -> None:
    """An infinite deadline is none."""
    assert outcome(await play(ScriptedModel(["done"]), deadline=math.inf)) == ("completed", None)


# ---------------------------------------------------------------- cancellation


async def test_a_cancelled_call_that_returns_none_is_the_same_everywhere() -> None:
    """A call that finished its work under a shield and returned None was not cut, on any backend (G28)."""
    signal = AbortSignal()
    begun = anyio.Event()

    @tool(name="careful")
    async def careful() -> None:
        """Finish what was begun."""
        with anyio.CancelScope(shield=True):
            begun.set()
            await VirtualClock().sleep(0)
            for _ in range(5):
                try:
                    await anyio.lowlevel.checkpoint()
                except asyncio.CancelledError:
                    pass

    async def stop(*args: Any) -> None:
        await begun.wait()
        signal.abort("enough")

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        events = await play(ScriptedModel([[call("careful")]]), [careful], abort=signal)
    (end,) = results(events)
    assert (end.result.content, end.is_error, end.stop_reason) == ((Text("[no output]"),), False, "aborted")


@pytest.mark.parametrize(
    "name", ["before_tool_call", "approve", "get_steering_messages", "finish_turn", "prepare_request"]
)
async def test_a_callback_that_aborts_and_returns_a_coroutine(name: str) -> None:
    """What it returned is closed without a step: no warning that it was never awaited."""
    signal = AbortSignal()

    async def late() -> None:
        pytest.fail("runs after the abort")

    def callback(*args: Any) -> Any:
        signal.abort("no more")
        return late()

    @tool(name="a")
    async def a() -> str:
        """Return."""
        return "a"

    events = await play(ScriptedModel([[call("a"), call("a")]]), [a], abort=signal, **{name: callback})
    assert outcome(events) == ("aborted", "user_abort")


@pytest.mark.parametrize(
    "name", ["get_steering_messages", "finish_turn", "before_tool_call", "after_tool_call", "transform_context"]
)
async def test_a_callback_that_closes_its_own_run(name: str) -> None:
    """The run ends there, and the driver does not turn on the spot."""
    runs: list[Any] = []

    def callback(*args: Any) -> Any:
        runs[0]._core.close()  # what `aclose` does first: in an eager task it happens here and now
        return {"finish_turn": "end"}.get(name)

    @tool(name="a")
    async def a() -> str:
        """Return."""
        return "a"

    model = ScriptedModel([[call("a")], "done"])
    runs.append(agent_loop(["go"], Context(tools=[a]), Config(model=model, **{name: callback})))
    checker = Checker()
    with anyio.fail_after(10):
        async for event in runs[0]:
            checker.feed(event)
            assert not isinstance(event, AgentEnd)


# ---------------------------------------------------------------- arguments that cannot be a run


@pytest.mark.parametrize(
    "make",
    [
        lambda: agent_loop("x", None, Config(model=ScriptedModel())),  # type: ignore[arg-type]
        lambda: agent_loop("x", Context(), None),  # type: ignore[arg-type]
        lambda: agent_loop("x", Context(), {"model": ScriptedModel()}),  # type: ignore[arg-type]
        lambda: agent_loop([5], Context(), Config(model=ScriptedModel())),  # type: ignore[list-item]
        lambda: agent_loop(None, Context(), Config(model=ScriptedModel())),  # type: ignore[arg-type]
        lambda: agent_loop([assistant("a reply is no input")], Context(), Config(model=ScriptedModel())),
        lambda: agent_loop([], Context(), Config(model=ScriptedModel())),
    ],
)
async def test_arguments_that_cannot_be_a_run(make: Callable[[], Any]) -> None:
    """The first step raises `ValueError` or `TypeError`; the second ends; nothing is left."""
    async with nothing_left():
        run = make()
        with pytest.raises((ValueError, TypeError)):
            await anext(run)
        with pytest.raises(StopAsyncIteration):
            await anext(run)
        await run.aclose()


@pytest.mark.parametrize("bad", [assistant("a reply"), 5, Hostile()])
@pytest.mark.parametrize("name", ["get_steering_messages", "get_follow_up_messages"])
async def test_a_poll_that_gives_more_than_inputs(name: str, bad: Any) -> None:
    """What is no input ends the run; the messages before it were taken, and are emitted and kept (G29)."""
    given = [[user("taken"), bad]]
    model = ScriptedModel(["done", "never"])
    events = await play(model, **{name: lambda: given.pop() if given else ()})
    assert outcome(events) == ("fatal", "callback_failed")
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert user("taken") in end.messages


# ---------------------------------------------------------------- hostile models


def chunks(given: Callable[[], Any]) -> Any:
    """A model that makes and yields these, and then is done."""

    async def model(request: Any) -> Any:
        for chunk in given():
            yield chunk

    return model


CHUNKS: dict[str, Any] = {
    "no chunk": lambda: [5],
    "None": lambda: [None],
    "text that is none": lambda: [TextChunk(5)],  # type: ignore[arg-type]
    "held text that is none": lambda: ["a", TextChunk("b", 0), TextChunk(5, 1), TextChunk("c", 0)],  # type: ignore[arg-type]
    "thinking that is none": lambda: [ThinkingChunk(None)],  # type: ignore[arg-type]
    "arguments that are none": lambda: [ToolCallChunk({"a": 1}, "id", "a")],  # type: ignore[arg-type]
    "a name that is none": lambda: [ToolCallChunk("{}", "id", ["a"]), Finish("tool_use")],  # type: ignore[arg-type]
    "a number for a name": lambda: [ToolCallChunk("{}", "id", 5), Finish("tool_use")],  # type: ignore[arg-type]
    "a number for an id": lambda: [ToolCallChunk("{}", 5, "a"), Finish("tool_use")],  # type: ignore[arg-type]
    "an id that is none": lambda: [ToolCallChunk("{}", ["id"], "a"), Finish("tool_use")],  # type: ignore[arg-type]
    "an index that is none": lambda: [
        TextChunk("a", ["x"]),
        ToolCallChunk("{}", "i", "a", ["x"]),
        BlockEnd(["x"]),
        Finish("stop"),
    ],  # type: ignore[arg-type]
    "fidelity that is none": lambda: [TextChunk("a", fidelity=[1]), Finish("stop")],  # type: ignore[arg-type]
    "fidelity that cannot be written": lambda: [TextChunk("a", fidelity={"a": object()}), Finish("stop")],
    "fidelity of the end": lambda: ["a", Finish("stop", fidelity={"a": object()})],
    "usage that is none": lambda: ["a", UsageChunk("usage"), Finish("stop")],  # type: ignore[arg-type]
    "usage of texts": lambda: ["a", UsageChunk(Usage("a", "b", "c")), Finish("stop")],  # type: ignore[arg-type]
    "no reason": lambda: ["a", Finish(None)],  # type: ignore[arg-type]
    "an unknown reason": lambda: ["a", Finish("because")],  # type: ignore[arg-type]
    "a hostile reason": lambda: ["a", Finish(Hostile())],  # type: ignore[arg-type]
    "a block that is none": lambda: [BlockChunk(5), Finish("stop")],  # type: ignore[arg-type]
    "a call without a name": lambda: [BlockChunk(ToolCall("a", "", "{}")), Finish("stop")],
    "half surrogates": lambda: ["\ud83d", ToolCallChunk('{"a": "\ud83d"}', "\udc00", "\ud800"), Finish("tool_use")],
    "an end of nothing": lambda: [BlockEnd(7), BlockEnd(), Finish("stop")],
    "chunks after the end": lambda: [
        "a",
        Finish("stop"),
        "b",
        Hostile(),
        ToolCallChunk("{}", "i", "n"),
        Finish("length"),
    ],
    "hostile": lambda: [Hostile()],
}


@pytest.mark.parametrize("kind", list(CHUNKS))
async def test_hostile_chunks(kind: str) -> None:
    """Chunks that no adapter should yield end the attempt with an event; the run stays legal and can be recorded."""
    events = await play(chunks(CHUNKS[kind]), max_turns=2)
    assert isinstance(events[-1], AgentEnd)


class Stream:
    """A model and its stream in one, wrong in one place."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong
        self.sent = 0

    @property
    def provider(self) -> str:
        if self.wrong == "provider":
            raise Bad("provider")
        return "p"

    def __call__(self, request: Any) -> Any:
        if self.wrong == "call":
            raise HostileError
        if self.wrong == "nothing":
            return None
        return self

    def __aiter__(self) -> Any:
        if self.wrong == "aiter":
            raise Bad("aiter")
        return None if self.wrong == "no iterator" else self

    def __anext__(self) -> Any:
        if self.wrong == "not awaitable":
            return 5
        return self._next()

    async def _next(self) -> Any:
        self.sent += 1
        if self.sent == 1:
            return "a"
        if self.wrong == "raise":
            raise HostileError
        if self.wrong == "group":
            raise ExceptionGroup("g", [HostileError(), Bad("x")])
        if self.sent == 2:
            return Finish("stop")
        raise StopAsyncIteration

    @property
    def aclose(self) -> Any:
        match self.wrong:
            case "no close":
                raise AttributeError
            case "close raises":
                return lambda: (_ for _ in ()).throw(Bad("close"))
            case "close is a number":
                return 5
            case "close is not async":
                return lambda: 5
            case "close fails":
                return self._fail
            case "close leaves":
                return self._leave
        return self._fine

    async def _fine(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def _fail(self) -> None:
        raise Bad("close")

    async def _leave(self) -> None:
        raise Worse("close")


WRONG = (
    "provider", "call", "nothing", "aiter", "no iterator", "not awaitable", "raise", "group", "no close", "close raises",
    "close is a number", "close is not async", "close fails", "close leaves",
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
async def test_hostile_streams(wrong: str) -> None:
    """A stream that is wrong in any one place ends the attempt with an event; after its `Finish` it changes nothing."""
    async with nothing_left():
        events = await play(Stream(wrong))
        completed = wrong in ("no close", "provider") or wrong.startswith("close")
        assert (outcome(events)[0] == "completed") == completed


async def test_a_model_that_yields_when_it_is_closed() -> None:
    """`aclose` returns, nothing more is shown, and the abort is told as such."""
    signal = AbortSignal()

    async def model(request: Any) -> Any:
        try:
            yield "a"
            yield "b"
        finally:
            yield "c"

    async with nothing_left():
        run = agent_loop("go", Context(), Config(model=model, abort=signal, run_ahead=0))
        events = []
        async for event in run:
            events.append(event)
            if type(event).__name__ == "MessageUpdate":
                signal.abort("enough")
        check(events)
        assert outcome(events) == ("aborted", "user_abort")
        (message,) = [
            e.message for e in events if isinstance(e, MessageEnd) and isinstance(e.message, AssistantMessage)
        ]
        assert "c" not in message.text


@pytest.mark.parametrize("idle", [None, 5.0])
async def test_a_stream_whose_close_never_returns(idle: float | None) -> None:
    """The reply that was read is whole; the stream is given up after the idle time-out, or at an abort."""
    signal = AbortSignal()
    release = anyio.Event()

    class Sticky(Stream):
        async def _fine(self) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

    async with anyio.create_task_group() as group:
        if idle is None:

            async def later() -> None:
                await wait_all_blocked()
                signal.abort("enough")

            group.start_soon(later)
        events = await play(Sticky(""), idle_timeout=idle, abort=signal)
        release.set()
    ends = [event.status for event in events if isinstance(event, RequestEnd)]
    assert ends == ["completed"]


# ---------------------------------------------------------------- hostile calls


@pytest.mark.parametrize(
    "arguments",
    ["[" * 100_000, '{"a":' * 100_000, '{"a":"' + "x" * 10_000_000 + '"}', "{" * 3, '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}",
     '{"a": NaN}', '"' * 3, "null", "\x00", "\ud800", '{"a":1}{"b":2}', "\ufeff{}", '{"__proto__": 1, "a": 1, "a": 2}'],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)  # fmt: skip
async def test_hostile_arguments(arguments: str) -> None:
    """Any text of any size is either arguments or an error result; the next turn follows."""

    @tool(name="a")
    async def a(a: str = "") -> str:
        """Return."""
        return f"{len(a)}"

    events = await play(ScriptedModel([[call("a", arguments)], "done"]), [a])
    assert outcome(events) == ("completed", None)
    assert len(results(events)) == 1


@pytest.mark.parametrize("name", ["", " ", "\ud800", "ünïcode", "a" * 100_000, "a\nb", "\x00", "a"])
async def test_hostile_names_of_calls(name: str) -> None:
    """A call of a tool that nobody has is answered; a call without a name fails its attempt."""
    model = chunks(lambda: [ToolCallChunk("{}", "id", name), Finish("tool_use")])
    events = await play(model, max_turns=1)
    assert outcome(events)[1] == ("malformed" if not name else "max_turns")


@pytest.mark.parametrize(
    "ids",
    [
        ["", "", ""],
        ["a", "a", "a#2"],
        ["a#2", "a", "a"],
        ["a", "a#2", "a"],
        ["\ud800", "\ud801", "\ufffd"],
        ["x" * 100_000] * 3,
    ],
)
async def test_hostile_ids_of_calls(ids: list[str]) -> None:
    """Ids are unique in the run, whatever came; every call has its own result."""
    events = await play(ScriptedModel([[call("a", id=id) for id in ids], "done"]))
    seen = [end.tool_call_id for end in results(events)]
    assert len(set(seen)) == 3
    messages = [
        e.message.tool_call_id for e in events if isinstance(e, MessageEnd) and isinstance(e.message, ToolResultMessage)
    ]
    assert sorted(messages) == sorted(seen)


async def test_two_tools_of_one_name() -> None:
    """Such a context cannot be a run."""

    @tool(name="a")
    async def a() -> None:
        """Nothing."""

    with pytest.raises(ValueError, match="one tool of each name"):
        await anext(agent_loop("go", Context(tools=[a, a]), Config(model=ScriptedModel())))


@pytest.mark.parametrize("value", [0, -1])
async def test_no_turn_at_all_is_no_limit(value: int) -> None:
    """`max_turns` is at least one: a run of no turn is refused when the config is made."""
    with pytest.raises(ValueError, match="max_turns"):
        Config(model=ScriptedModel(), max_turns=value)


async def test_a_tool_that_steps_its_own_run() -> None:
    """It is told that the run is being stepped already, and the run goes on."""
    runs: list[Any] = []

    @tool(name="a")
    async def a() -> str:
        """Step."""
        await anext(runs[0])
        return "no"

    model = ScriptedModel([[call("a")], "done"])
    runs.append(agent_loop("go", Context(tools=[a]), Config(model=model)))
    events = await collect(runs[0])
    check(events)
    (end,) = results(events)
    assert (end.error_code, "one step at a time" in end.result.content[0].text) == ("tool_error", True)  # type: ignore[union-attr]


async def test_a_tool_that_closes_its_own_run() -> None:
    """`aclose` from inside a call returns within its bound, and the run is over."""
    runs: list[Any] = []
    returned = anyio.Event()

    @tool(name="a")
    async def a() -> str:
        """Close."""
        try:
            await runs[0].aclose()
        finally:
            returned.set()
        return "no"

    async with nothing_left():
        config = Config(model=ScriptedModel([[call("a")], "done"]), abort_grace=0.01)
        runs.append(agent_loop("go", Context(tools=[a]), config))
        with anyio.fail_after(10):
            events = await collect(runs[0])
            await returned.wait()
        assert not isinstance(events[-1], AgentEnd)


class Unhappy:
    """A clock that fails at one of its two."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong
        self.asked = 0

    def now(self) -> float:
        self.asked += 1
        if self.wrong == "now" and self.asked > 5:
            raise Bad("now")
        return 5.0

    async def sleep(self, seconds: float) -> None:
        if self.wrong == "sleep":
            raise Bad("sleep")
        await anyio.sleep_forever()


@pytest.mark.parametrize("wrong", ["now", "sleep"])
async def test_a_clock_that_fails(wrong: str) -> None:
    """The run ends with its event, or the failure is told by the step; in no case does it hang."""
    async with nothing_left():
        config = Config(model=ScriptedModel([["a", "b"], "done"]), clock=Unhappy(wrong), deadline=100, max_turns=3)
        checker = Checker()
        with anyio.fail_after(10):
            try:
                async for event in agent_loop("go", Context(), config):
                    checker.feed(event)
            except Bad:
                return  # that is the clock's own
            checker.finish()


async def test_a_tool_source_that_is_deaf_is_closed_when_it_returns() -> None:
    """A source that ignored its cancellation is closed once it comes back, and its task ends."""
    release = anyio.Event()
    closed = []

    class Source:
        servers = ("s",)

        async def connect(self) -> Any:
            await deaf_until(release)
            return McpConnectEnd("completed"), []

        async def changed(self) -> None:
            return None

        async def close(self) -> None:
            closed.append(True)

    async with nothing_left():
        events = await play(ScriptedModel(["done"]), tool_source=Source(), deadline=5)
        early = list(closed)
        release.set()
        await wait_all_blocked()
        assert outcome(events) == ("aborted", "deadline")
        assert (early, closed) == ([], [True])


async def test_a_sink_that_is_cancelled_before_its_first_step() -> None:
    """The recording is closed by another task at that very moment: what the sink returned is closed, not forgotten."""
    recordings: list[Any] = []

    async def late() -> None:
        await anyio.lowlevel.checkpoint()

    async with nothing_left(), anyio.create_task_group() as group:

        def sink(entry: Any) -> Any:
            group.start_soon(recordings[0].aclose)
            return late()

        run = agent_loop("go", Context(), Config(model=ScriptedModel(["done"])))
        recordings.append(record(run, sink))
        await collect(recordings[0])
    gc.collect()


def _as_prepare(then: Any) -> Any:
    agent = Agent(ScriptedModel(["done"]), prepare_request=then)
    return agent._run_config(agent.config, AbortSignal()).prepare_request


WRAPPERS: dict[str, Any] = {
    "prepare_request of an agent": lambda then: _as_prepare(lambda request: then()),
    "transforms in a row": lambda then: compose(lambda messages: (), lambda messages: then()),
    "the policy of a session": lambda then: Door(type("Asks", (), {"policy": lambda self, call: then()})(), {}).policy,
}


@pytest.mark.parametrize("name", list(WRAPPERS))
async def test_what_was_put_around_a_callback_and_never_begins(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """What the caller's callback returned is closed with it: no warning that it was never awaited."""

    async def answer() -> None:
        raise AssertionError("it is not to begin")

    request: Any = attrs.evolve(ModelRequest(None, (), (), {}), model=None)
    value = WRAPPERS[name](answer)(request)
    close_unstarted(value)
    del value
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


async def test_an_agent_that_is_aborted_where_its_callback_would_begin() -> None:
    """The same in a run: an abort comes between the making of a callback's awaitable and its first step."""
    begun: list[str] = []

    async def answer() -> None:
        begun.append("")

    def prepare(request: ModelRequest) -> Any:
        agent.abort("now")
        return answer()

    agent = Agent(ScriptedModel(["done"]), prepare_request=prepare)
    end = await agent.prompt("go")
    gc.collect()
    assert (end.error_code, begun) == ("user_abort", [])
