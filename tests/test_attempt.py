"""One attempt: the request as callbacks may change it, the stream as it is read, and how its end is told."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import attrs
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    Config,
    Context,
    CustomMessage,
    Event,
    MessageStart,
    MessageUpdate,
    ModelError,
    RequestBegin,
    RequestEnd,
    Retry,
    TextDelta,
    TokenUsage,
    ToolResultMessage,
    agent_loop,
    assistant,
    running,
    tool,
    user,
)
from agentloop.grammar import check
from agentloop.messages import AssistantMessage, ToolCall, Usage
from agentloop.model import Finish, ModelRequest, UsageChunk
from agentloop.testing import STALL, ScriptedModel, VirtualClock, call, collect, sleep, wait_all_blocked
from tests.deaf import deaf_until

pytestmark = pytest.mark.anyio


async def played(model: Any, context: Context | None = None, prompts: Any = ("go",), **changes: Any) -> list[Event]:
    config = Config(**{"model": model, "clock": VirtualClock(), "retry": None, **changes})
    with anyio.fail_after(10):
        events = await collect(agent_loop(prompts, context or Context(), config))
    check(events)
    return events


def ends(events: list[Event]) -> list[RequestEnd]:
    return [event for event in events if isinstance(event, RequestEnd)]


def told(events: list[Event]) -> list[tuple[str, str | None, str | None]]:
    return [(end.status, end.error_code, end.error_message) for end in ends(events)]


def replies(events: list[Event]) -> list[AssistantMessage]:
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return [message for message in end.messages if isinstance(message, AssistantMessage)]


# ---------------------------------------------------------------- the request


@tool
async def work() -> str:
    """Work."""
    return "ok"


async def test_prepare_request_changes_one_request() -> None:
    """System prompt, messages (made legal) and options are its own; tools and signal stay; the history knows nothing of it."""
    signals = []

    def prepare(request: ModelRequest) -> ModelRequest | None:
        signals.append(request.abort)
        if len(signals) > 1:
            return None
        messages = (user("other"), assistant(ToolCall("x", "gone", "{}")))
        return ModelRequest("B", messages, (), {"t": 1}, AbortSignal(), request.model)

    model = ScriptedModel([[call("work")], "done"])
    await played(model, Context("A", tools=[work]), prepare_request=prepare, options={"t": 0})
    first, second = model.requests
    assert (first.system_prompt, first.options, first.abort is signals[0]) == ("B", {"t": 1}, True)
    assert [type(message).__name__ for message in first.messages] == [
        "UserMessage", "AssistantMessage", "ToolResultMessage",
    ]  # fmt: skip
    assert [spec.name for spec in first.tools] == ["work"]
    assert (second.system_prompt, second.options) == ("A", {"t": 0})
    assert [message.text for message in second.messages] == ["go", "", "ok"]


async def test_a_prepared_request_without_a_message_asks_nobody() -> None:
    """What cannot be made legal ends the attempt, whoever made it so."""
    model = ScriptedModel(["never"])
    events = await played(model, prepare_request=lambda request: attrs.evolve(request, messages=()))
    assert [(status, code) for status, code, _ in told(events)] == [("fatal", "invalid_input")]
    assert model.asked == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("prepare_request", 5, "prepare_request: expected a ModelRequest or None, got int"),
        ("transform_context", "text", "transform_context: expected a sequence of messages, got str"),
        ("transform_context", b"bytes", "transform_context: expected a sequence of messages, got bytes"),
        ("transform_context", {"a": 1}, "transform_context: expected a sequence of messages, got dict"),
        ("convert_to_llm", None, "convert_to_llm: expected a sequence of messages, got NoneType"),
        ("convert_to_llm", 5, "convert_to_llm: expected a sequence of messages, got int"),
    ],
)
async def test_nonsense_of_a_callback_ends_the_attempt(name: str, value: Any, words: str) -> None:
    """It is told what was expected and what came; the model is not asked, and no retry follows."""
    model = ScriptedModel(["never"])
    changes: dict[str, Any] = {name: lambda given: value}
    events = await played(model, retry=Retry(waits=(1,)), **changes)
    assert told(events) == [("fatal", "callback_failed", words)]
    assert model.asked == 0


@pytest.mark.parametrize("name", ["prepare_request", "transform_context", "convert_to_llm"])
async def test_a_callback_that_fails_is_named(name: str) -> None:
    """By its setting and its own name, with what it raised; the model is not asked, and no retry follows."""

    def change(given: Any) -> Any:
        raise KeyError("nowhere")

    model, changes = ScriptedModel(["never"]), {name: change}
    events = await played(model, retry=Retry(waits=(1,)), **changes)
    assert told(events) == [("fatal", "callback_failed", f"{name} (change) raised KeyError: 'nowhere'")]
    assert model.asked == 0


async def test_a_sequence_may_be_any_iterable() -> None:
    """Callbacks may give a generator; one that breaks ends the attempt with its words."""
    model = ScriptedModel(["done"])
    await played(model, transform_context=lambda messages: (m for m in [user("first"), *messages]))
    assert [message.text for message in model.requests[0].messages] == ["first", "go"]

    def broken() -> Any:
        yield user("first")
        raise ValueError("broken")

    events = await played(ScriptedModel(["never"]), convert_to_llm=lambda messages: broken())
    assert told(events) == [("fatal", "callback_failed", "convert_to_llm raised ValueError: broken")]


@attrs.define
class Noted(CustomMessage):
    """A message that notes when it is copied."""

    role: ClassVar[str] = "noted"
    copies: list[str]

    def __deepcopy__(self, memo: Any) -> Noted:
        self.copies.append("copied")
        return self


async def test_nothing_is_prepared_after_an_abort() -> None:
    """The abort comes with `RequestBegin`: messages are neither copied nor looked at, the attempt is `aborted`."""
    signal, copies, events = AbortSignal(), list[str](), []
    model = ScriptedModel(["never"])
    config = Config(model=model, abort=signal, transform_context=lambda messages: messages)
    async for event in agent_loop([Noted(copies)], Context(), config):
        events.append(event)
        if isinstance(event, RequestBegin):
            signal.abort("enough")
    check(events)
    assert told(events) == [("aborted", "user_abort", "enough")]
    assert (copies, model.asked) == ([], 0)


async def test_a_reply_bears_the_names_of_the_model_that_was_asked() -> None:
    """Those of the request's own model where `prepare_request` replaced it; a name that is no text, or fails, is none."""

    class Model:
        provider: Any = "p"
        model: Any = "m"

        def __call__(self, request: ModelRequest) -> AsyncIterator[Any]:
            return ScriptedModel(["hi"])(request)

    class Odd(Model):
        provider = 5

        @property
        def model(self) -> Any:
            raise ZeroDivisionError

    other = ScriptedModel(["hi"], provider="q", model="n")
    for model, prepare, names in (
        (Model(), None, ("p", "m")),
        (Odd(), None, (None, None)),
        (Model(), lambda request: attrs.evolve(request, model=other), ("q", "n")),
        (Model(), lambda request: request, ("p", "m")),
    ):
        (reply,) = replies(await played(model, prepare_request=prepare))
        assert (reply.provider, reply.model) == names


# ---------------------------------------------------------------- the stream


async def test_a_model_may_be_a_coroutine_function_that_gives_the_stream() -> None:
    """What it returns is read; what is no stream is `malformed`, in words."""

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        return ScriptedModel(["hi"])(request)

    assert [reply.text for reply in replies(await played(model))] == ["hi"]
    events = await played(lambda request: [Finish("stop")])
    assert told(events) == [("retryable", "malformed", "model: expected an async iterator of chunks, got list")]


async def test_a_stream_that_ends_without_a_finish_was_cut_off() -> None:
    """`truncated`; nobody's exception is logged as if it were the model's."""

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        yield "half"

    events = await played(model)
    assert told(events) == [("retryable", "truncated", "the model's stream ended without saying why (no Finish)")]
    assert [reply.text for reply in replies(events)] == ["half"]


async def test_a_failure_after_the_finish_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The reply is whole; the log has the exception. Where nothing fails it says nothing."""
    error = ValueError("late")
    assert told(await played(ScriptedModel(["hi"]))) == [("completed", None, None)]
    assert caplog.records == []
    events = await played(ScriptedModel([["hi", Finish("stop"), error]]))
    assert told(events) == [("completed", None, None)]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert (record.levelname, record.exc_info[1]) == ("WARNING", error)


@pytest.mark.parametrize("run_ahead", [1, 64, 1_000_000])
@pytest.mark.parametrize("behind", ["more", UsageChunk(Usage(1, 2, 3))])
async def test_a_stream_that_does_not_end_after_its_finish_is_closed(
    behind: Any, run_ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Usage may come there; when nothing but more and more does, the reply is whole all the same, however much is read
    ahead."""
    closed = []

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        try:
            yield "hi"
            yield Finish("stop")
            for _ in range(1000):
                yield behind
            raise AssertionError("read on and on")
        finally:
            closed.append(True)

    events = await played(model, run_ahead=run_ahead)
    assert (told(events), closed) == ([("completed", None, None)], [True])
    assert "malformed: the stream does not end after its Finish" in caplog.text


async def test_an_abort_after_the_finish_is_no_failure_of_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    """The stream is closed, and nothing is logged."""
    signal = AbortSignal()
    model = ScriptedModel([["hi", Finish("stop"), lambda request: signal.abort("enough"), STALL]])
    events = await played(model, abort=signal)
    assert told(events) == [("completed", None, None)]
    assert (model.open_streams, caplog.records) == (0, [])


@pytest.mark.parametrize("ahead", [1, 3, 5])
async def test_g13_what_may_be_read_ahead_is_read_ahead(ahead: int) -> None:
    """While the consumer is busy, exactly `run_ahead` chunks more than it had when it last came back for more."""
    read = [0]

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        for _ in range(15):
            read[0] += 1
            yield "x"
        yield Finish("stop")

    seen = []
    async for event in agent_loop(["go"], Context(), Config(model=model, run_ahead=ahead)):
        if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
            await wait_all_blocked()
            seen.append(read[0])
    assert seen == [number // ahead * ahead + ahead for number in range(15)]


async def test_g13_chunks_that_say_nothing_are_read_ahead_of_a_busy_consumer_no_further() -> None:
    """It has taken every event and not come back: the stream is read `run_ahead` chunks far, also without a new event."""
    read, busy = [0], anyio.Event()

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        yield "x"
        await busy.wait()
        for _ in range(15):
            read[0] += 1
            yield UsageChunk(Usage(0, 0, 1))
        yield Finish("stop")

    async for event in agent_loop(["go"], Context(), Config(model=model, run_ahead=4)):
        if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
            busy.set()
            await wait_all_blocked()
            assert read == [3]
    assert read == [15]


async def test_g21_nothing_is_read_after_an_abort_of_a_consumer_that_was_waited_for() -> None:
    """The stream waits for room; the consumer aborts and comes back: the stream is not asked for another chunk."""
    signal, asked = AbortSignal(), list[bool]()

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        for _ in range(20):
            asked.append(signal.aborted)
            yield "x"
        yield Finish("stop")

    async for event in agent_loop(["go"], Context(), Config(model=model, abort=signal, run_ahead=1)):
        if isinstance(event, MessageUpdate) and len(asked) == 5:
            signal.abort("enough")
    assert asked == [False] * 5


class Deaf:
    """A stream that gives a chunk, hears no cancellation, and gives many more once it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.release = anyio.Event()

    async def __call__(self, request: ModelRequest) -> AsyncIterator[Any]:
        with anyio.CancelScope(shield=True):
            for _ in range(20):
                self.asked += 1
                yield UsageChunk(Usage(0, 0, 1)) if self.release.is_set() else "x"
                if self.asked > 1:
                    continue
                await deaf_until(self.release)


async def test_of_a_stream_that_was_given_up_nothing_more_is_read() -> None:
    """After a time-out that it ignored the request is asked again; what the old stream still gives is dropped unread."""
    deaf = Deaf()
    other = ScriptedModel([[lambda request: deaf.release.set(), sleep(0), "whole"]])

    def model(request: ModelRequest) -> Any:
        return other(request) if deaf.asked else deaf(request)

    try:
        events = await played(model, retry=Retry(waits=(1,)), idle_timeout=20, abort_grace=0.01)
    finally:
        deaf.release.set()
        await wait_all_blocked()
    assert told(events) == [("retryable", "timeout", "the model sent nothing for 20 s"), ("completed", None, None)]
    assert [reply.text for reply in replies(events)] == ["whole"]
    assert deaf.asked == 2


async def test_g24_of_a_stream_that_is_left_nothing_more_is_read() -> None:
    """The consumer leaves; a stream that ignores it is not asked for another chunk once it gives one."""
    deaf = Deaf()
    run = agent_loop(["go"], Context(), Config(model=deaf, abort=AbortSignal(), abort_grace=0.01))
    async for event in run:
        if isinstance(event, MessageUpdate):
            break
    await run.aclose()
    deaf.release.set()
    await wait_all_blocked()
    assert deaf.asked == 2


# ---------------------------------------------------------------- silence


async def silent_at(*steps: Any, consumer: Callable[[Event], Any] | None = None, **changes: Any) -> list[float]:
    """When, on a virtual clock, the requests of a run end whose model plays these steps."""
    clock = VirtualClock()
    model = ScriptedModel([list(steps)], clock=clock)
    config = Config(model=model, clock=clock, retry=None, idle_timeout=20, **changes)
    found = []
    with anyio.fail_after(10):
        async for event in agent_loop(["go"], Context(), config):
            if isinstance(event, RequestEnd):
                found.append(clock.now())
                assert event.error_code in ("timeout", None)
            if consumer is not None:
                await consumer(event)
    return found


async def test_silence_is_counted_from_the_last_chunk() -> None:
    """Each chunk begins it anew; the request ends when it has lasted `idle_timeout` seconds, not sooner and not later."""
    assert await silent_at(STALL) == [20]
    assert await silent_at("a", sleep(15), "b", STALL) == [35]
    assert await silent_at(*[sleep(15), "a"] * 5, sleep(15)) == [90]


async def test_no_idle_timeout_waits_for_ever() -> None:
    """None: no silence is too long."""
    clock = VirtualClock()
    events = await played(ScriptedModel([["a", sleep(10_000), "b"]], clock=clock), clock=clock, idle_timeout=None)
    assert (told(events), clock.now()) == ([("completed", None, None)], 10_000)


async def test_the_time_of_a_busy_consumer_is_no_silence_of_the_stream() -> None:
    """While the consumer is away the stream is read ahead, and each chunk counts; also where it waits for room."""
    for ahead in (1, 64):
        clock = VirtualClock()
        model = ScriptedModel([[*["a", sleep(15)] * 20, "b"]], clock=clock)
        config = Config(model=model, clock=clock, retry=None, idle_timeout=20, run_ahead=ahead)
        events = []
        with anyio.fail_after(10):
            async for event in agent_loop(["go"], Context(), config):
                events.append(event)
                if isinstance(event, MessageStart) and event.message.role == "assistant":
                    await clock.sleep(250)
        check(events)
        assert told(events) == [("completed", None, None)]


async def test_a_chunk_that_came_while_the_consumer_was_away_is_counted_when_it_is_back() -> None:
    """It came a second before the time-out of the one before, and the consumer in between: that was no silence."""
    clock = VirtualClock()
    model = ScriptedModel([["a", sleep(19), "b", sleep(19), "c"]], clock=clock)
    config = Config(model=model, clock=clock, retry=None, idle_timeout=20)
    events = []
    with anyio.fail_after(10):
        async for event in agent_loop(["go"], Context(), config):
            events.append(event)
            if isinstance(event, MessageUpdate) and event.delta == TextDelta(0, "a"):
                await clock.sleep(19.5)
    assert told(events) == [("completed", None, None)]


async def test_a_stream_that_falls_silent_while_the_consumer_is_away_is_closed() -> None:
    """It is found out although nobody waits, within twice the time-out."""
    clock = VirtualClock()
    model = ScriptedModel([["a", sleep(15), "b", STALL]], clock=clock)
    config = Config(model=model, clock=clock, retry=None, idle_timeout=20)
    events = []
    with anyio.fail_after(10):
        async for event in agent_loop(["go"], Context(), config):
            events.append(event)
            if isinstance(event, MessageStart) and event.message.role == "assistant":
                await clock.sleep(39)
                assert model.open_streams == 1
                await clock.sleep(16)
                assert model.open_streams == 0
    assert told(events) == [("retryable", "timeout", "the model sent nothing for 20 s")]


@pytest.mark.parametrize(
    ("steps", "ends"), [([STALL], 20), ([sleep(5), UsageChunk(Usage(0, 0, 1)), STALL], 40)], ids=["silent", "a chunk"]
)
async def test_a_step_that_was_cut_short_is_no_chunk(steps: list[Any], ends: float) -> None:
    """Inside `running` a step times out before anything came: the silence goes on from the request's begin. A chunk that comes
    then is found when silence is next looked for, like any that comes while the consumer is away."""
    clock = VirtualClock(autojump_threshold=None)
    model = ScriptedModel([steps], clock=clock)
    config = Config(model=model, clock=clock, retry=None, idle_timeout=20)
    async with running(agent_loop(["go"], Context(), config)) as run:
        async for event in run:
            if isinstance(event, RequestBegin):
                break
        async with anyio.create_task_group() as group:

            async def step() -> None:
                await anext(run)

            group.start_soon(step)
            await wait_all_blocked()
            group.cancel_scope.cancel()
        assert (model.open_streams, clock.now()) == (1, 0)
        await clock.advance(ends - 1)
        assert model.open_streams == 1
        await clock.advance(2)
        await wait_all_blocked()
        assert model.open_streams == 0


async def test_a_consumer_that_comes_back_late_finds_its_stream() -> None:
    """It was waited for much longer than the time-out; in the moment in which it comes back that is no silence."""
    for _ in range(8):  # on trio it is chance who has the first turn
        clock = VirtualClock(autojump_threshold=None)
        model = ScriptedModel([["a", "b", "c"]])
        config = Config(model=model, clock=clock, retry=None, idle_timeout=20, run_ahead=1)
        events = []
        async for event in agent_loop(["go"], Context(), config):
            events.append(event)
            if isinstance(event, MessageUpdate):
                await wait_all_blocked()
                clock.jump(500)
        assert told(events) == [("completed", None, None)]


async def test_silence_is_found_out_by_a_clock_that_jumps() -> None:
    """A clock that is moved by hand, far past the limit, and then stands still: it has said that the time is over."""
    clock, ends = VirtualClock(autojump_threshold=None), []

    async def model(request: Any) -> AsyncIterator[Any]:
        await anyio.sleep_forever()
        yield "never"

    async def run() -> None:
        config = Config(model=model, clock=clock, retry=None, idle_timeout=60)
        ends.extend([event async for event in agent_loop(["go"], Context(), config)])

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await wait_all_blocked()
            clock.jump(100)
    assert told(ends) == [("retryable", "timeout", "the model sent nothing for 60 s")]


@pytest.mark.parametrize("relays", [0, 1, 5])
async def test_a_consumer_that_blocks_the_event_loop_finds_what_came_meanwhile(relays: int) -> None:
    """Other tasks hand it on: the alarm rings in the turn in which they go on, and is no sign of silence. One who sent nothing
    is found out all the same."""
    for comes in [True, False] * 8:  # on trio it is chance who has the first turn
        clock = VirtualClock()
        ends = [anyio.create_memory_object_stream[str](9) for _ in range(relays + 1)]

        async def pass_on(source: Any, target: Any) -> None:
            async for piece in source:
                target.send_nowait(piece)

        async def provide(comes: bool = comes, clock: VirtualClock = clock, target: Any = ends[0][0]) -> None:
            target.send_nowait("a")
            await clock.sleep(5)
            if comes:
                target.send_nowait("b")

        async def model(request: Any, pieces: Any = ends[-1][1]) -> AsyncIterator[Any]:
            async for piece in pieces:
                yield piece
                if piece == "b":
                    yield Finish("stop")
                    return

        config = Config(model=model, clock=clock, retry=None, idle_timeout=20)
        events = []
        async with anyio.create_task_group() as group:
            for (_, source), (target, _) in itertools.pairwise(ends):
                group.start_soon(pass_on, source, target)
            group.start_soon(provide)
            with anyio.fail_after(10):
                async for event in agent_loop(["go"], Context(), config):
                    events.append(event)
                    if isinstance(event, MessageUpdate) and event.delta == TextDelta(0, "a"):
                        clock.jump(500)
            group.cancel_scope.cancel()
        for end in itertools.chain(*ends):
            end.close()
        silent = ("retryable", "timeout", "the model sent nothing for 20 s")
        assert told(events) == [("completed", None, None) if comes else silent]


async def test_the_alarm_of_a_stream_ends_with_it() -> None:
    """Nothing sleeps any more on the caller's clock while a tool runs."""
    clock, asleep = VirtualClock(autojump_threshold=None), list[int]()

    @tool
    async def look() -> str:
        """Look at the clock."""
        await wait_all_blocked()
        asleep.append(clock.asleep)
        return "ok"

    await played(ScriptedModel([[call("look")], "done"]), Context(tools=[look]), clock=clock)
    assert asleep == [0]


async def test_a_stream_that_timed_out_is_closed_before_the_next_attempt() -> None:
    """Two streams of one run are never open at once."""
    clock, still_open = VirtualClock(), list[int]()
    model = ScriptedModel([STALL])
    model.replies.append([lambda request: still_open.append(model.open_streams), "done"])
    await played(model, retry=Retry(waits=(1,)), clock=clock)
    assert still_open == [1]


# ---------------------------------------------------------------- the end


class HttpError(Exception):
    """An error with a status, as a client of a provider's raises."""

    def __init__(self, status_code: Any, text: str = "failed") -> None:
        super().__init__(text)
        self.status_code = status_code


class SlowHttpError(HttpError, TimeoutError):
    """Both."""


class Unsayable:
    """Fails to say what it is."""

    @property
    def __class__(self) -> Any:
        raise LookupError("gone")


class Unordered(int):
    """A number that fails when it is compared."""

    def __ge__(self, other: object) -> bool:
        raise LookupError("gone")


class Odd(Exception):
    """Has a status that fails in no usual way."""

    @property
    def status_code(self) -> int:
        raise BaseExceptionGroup("gone", [GeneratorExit()])


class Forgetful(ModelError):
    """Never calls what it is made from."""

    def __init__(self, words: str) -> None:
        self.words = words


class Brief(ModelError):
    """Says of itself only what it is told."""

    def __init__(self, **said: Any) -> None:
        self.__dict__.update(said)


class Stranger(Exception):
    """Has a code of somebody else's."""

    code = "auth"
    message = "theirs"


class OwnGroup(ExceptionGroup[Exception]):
    """Has something else where groups have their errors."""

    @property
    def exceptions(self) -> Any:
        return (HttpError(400),)


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (ModelError("auth", "no key"), "fatal", "auth", "no key"),
        (ModelError("auth", "once more", retryable=True), "retryable", "auth", "once more"),
        (ModelError("network", "never", retryable=False), "fatal", "network", "never"),
        (HttpError(500), "retryable", "network", "failed"),
        (HttpError(429), "retryable", "rate_limit", "failed"),
        (HttpError(400), "fatal", "rejected", "failed"),
        (SlowHttpError(400), "fatal", "rejected", "failed"),
        (SlowHttpError(399), "retryable", "timeout", "failed"),
        (HttpError(302), "retryable", "network", "failed"),
        (HttpError("400"), "retryable", "network", "failed"),
        (HttpError(None, " "), "retryable", "network", "HttpError"),
        (HttpError(Unsayable()), "retryable", "network", "failed"),
        (HttpError(Unordered(429)), "retryable", "rate_limit", "failed"),
        (Odd("odd"), "retryable", "network", "odd"),
        (Forgetful("odd"), "retryable", "network", "odd"),
        (Stranger("odd"), "retryable", "network", "odd"),
        (Brief(code="rate_limit"), "retryable", "rate_limit", "Brief"),
        (Brief(code="auth", message=401), "fatal", "auth", "Brief"),
        (Brief(code=429, message="wait"), "retryable", "network", "Brief"),
        (Brief(code="auth", message="once more", retryable=True), "retryable", "auth", "once more"),
        (Brief(code="network", message="gone", retryable=Unsayable()), "retryable", "network", "gone"),
        (Brief(code="network", message=Unsayable(), retry_after=Unsayable()), "retryable", "network", "Brief"),
        (TimeoutError("slow"), "retryable", "timeout", "slow"),
        (json.JSONDecodeError("bad", "{", 0), "retryable", "malformed", "bad: line 1 column 1 (char 0)"),
        (UnicodeError("odd"), "retryable", "malformed", "odd"),
        (ValueError("odd"), "retryable", "network", "odd"),
        (ExceptionGroup("g", [ExceptionGroup("h", [HttpError(400)])]), "fatal", "rejected", "failed"),
        (ExceptionGroup("g", [HttpError(400), HttpError(400)]), "retryable", "network", "g (2 sub-exceptions)"),
        (OwnGroup("own", [HttpError(400), HttpError(400)]), "retryable", "network", "own (2 sub-exceptions)"),
        (asyncio.CancelledError("foreign"), "retryable", "network", "the model's stream was cancelled from inside"),
    ],
)  # fmt: skip
async def test_what_a_failure_of_the_model_is(error: BaseException, status: str, code: str, words: str) -> None:
    """Its own word, else its status, else a time-out or bad data, else `network`; a group of one is that one."""
    events = await played(ScriptedModel([error]))
    assert told(events) == [(status, code, words)]
    end = events[-1]
    assert isinstance(end, AgentEnd)
    inner: Any = error
    while type(inner) is ExceptionGroup and len(inner.exceptions) == 1:
        (inner,) = inner.exceptions
    assert end.exception is inner


async def test_a_failed_attempt_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An error with its traceback where nothing follows; where a retry does, a warning that says when, without one."""
    caplog.set_level(logging.DEBUG, logger="agentloop")
    error = ModelError("network", "gone")
    await played(ScriptedModel([ModelError("network", "away"), error]), retry=Retry(waits=(1.5,)))
    assert [(r.levelname, r.getMessage(), r.exc_info and r.exc_info[1]) for r in caplog.records] == [
        ("WARNING", "the model's request failed (network: away); the next attempt comes in 1500 ms", None),
        ("ERROR", "the model's request failed (network: gone)", error),
    ]


async def test_what_is_no_number_is_no_wait_that_a_provider_asked_for() -> None:
    """What fails to say what it is, too; a number of a class of its own is one."""

    class Own(float):
        def __float__(self) -> float:
            raise LookupError("gone")

    for asks, waits in ((Unsayable(), 1000), ("7", 1000), (Own(7), 7000), (Unordered(7), 7000)):
        failure = Brief(code="rate_limit", retry_after=asks)
        events = await played(ScriptedModel([failure, "done"]), retry=Retry(waits=(1,), max_wait=60))
        assert ends(events)[0].retry_in_ms == waits


@pytest.mark.parametrize(("error", "shown"), [(ModelError("auth", "no key"), False), (KeyError("choices"), True)])
async def test_a_refusal_is_one_line_in_the_log(
    error: Exception, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Above DEBUG a `ModelError` shows no traceback: a missing key is no riddle. What nobody expected shows its own."""
    caplog.set_level(logging.INFO, logger="agentloop")
    await played(ScriptedModel([error]), retry=None)
    (logged,) = caplog.records
    assert (logged.levelname, bool(logged.exc_info)) == ("ERROR", shown)


async def test_an_attempt_that_was_stopped_is_not_logged_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Neither an abort nor a deadline is the model's failure, and no retry is announced for it."""
    events = await played(ScriptedModel([["half", STALL]]), retry=Retry(waits=(1,)), deadline=5)
    assert told(events) == [("aborted", "deadline", "the run's deadline of 5 s has passed")]
    assert (ends(events)[0].retry_in_ms, caplog.records) == (None, [])


async def test_the_failure_of_an_attempt_is_forgotten_with_the_next_that_completes() -> None:
    """A limit that ends the run later has no exception of the model's."""
    model = ScriptedModel([ModelError("network", "gone"), [call("x")]])
    events = await played(model, retry=Retry(waits=(1,)), max_turns=1)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert (end.error_code, end.exception) == ("max_turns", None)


async def test_the_longest_wait_is_still_waited() -> None:
    """A wait of exactly `max_wait` seconds is one; one above it ends the run."""
    for asks, waits in ((7, 7000), (7.5, None)):
        failure = ModelError("rate_limit", "slow down", retry_after=asks)
        events = await played(ScriptedModel([failure, "done"]), retry=Retry(waits=(1,), max_wait=7))
        assert ends(events)[0].retry_in_ms == waits


async def test_a_stop_that_comes_while_a_failure_is_looked_at_announces_no_wait() -> None:
    """The error's own code aborts the run: what is told of the attempt is its failure, and nothing is to be waited for."""
    signal = AbortSignal()

    class Aborting(Exception):
        @property
        def status_code(self) -> int:
            signal.abort("enough")
            return 500

    events = await played(ScriptedModel([Aborting("failed")]), retry=Retry(waits=(1,)), abort=signal)
    assert (told(events), ends(events)[0].retry_in_ms) == ([("retryable", "network", "failed")], None)
    assert isinstance(events[-1], AgentEnd) and events[-1].error_code == "user_abort"


async def test_a_failure_in_the_last_moment_of_a_stop_announces_no_wait() -> None:
    """The model fails on its own in answer to the abort: the attempt is `aborted`, and nothing is to be waited for."""
    signal = AbortSignal()

    def fail(request: ModelRequest) -> None:
        signal.abort("enough")
        raise ModelError("network", "gone")

    events = await played(ScriptedModel([["half", fail]]), abort=signal, retry=Retry(waits=(1,)))
    assert told(events) == [("aborted", "user_abort", "enough")]
    assert ends(events)[0].retry_in_ms is None


async def test_usage_is_told_with_the_attempt_that_had_it() -> None:
    """A committed one adds to the session's; one that failed says it in its end; none says nothing."""
    spent = UsageChunk(Usage(1, 2, 3))
    model = ScriptedModel([[spent, ModelError("network", "gone")], [call("x"), spent], "done"])
    events = await played(model, retry=Retry(waits=(1,)), session_usage=Usage(10, 20, 30))
    assert [end.usage for end in ends(events)] == [Usage(1, 2, 3), None, None]
    assert [event for event in events if isinstance(event, TokenUsage)] == [
        TokenUsage(Usage(11, 22, 33), Usage(1, 2, 3))
    ]
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert end.usage == Usage(2, 4, 6)


async def test_an_empty_reply_is_no_message_of_the_history() -> None:
    """It completes the request, and later requests do not show it."""
    polls = iter([[], ["more"]])
    model = ScriptedModel([Finish("stop"), "done"])
    events = await played(model, get_steering_messages=lambda: next(polls, []))
    assert [message.text for message in model.requests[1].messages] == ["go", "more"]
    assert not any(isinstance(message, ToolResultMessage) for message in replies(events))


async def test_g21_a_stream_that_is_opened_after_an_abort_is_not_stepped() -> None:
    """A model may take its time to give its stream; the provider is asked by the first step of many."""
    abort, begun, closed = AbortSignal(), list[str](), list[str]()

    class Stream:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            begun.append("step")
            return Finish("stop")

        async def aclose(self) -> None:
            closed.append("closed")

    async def model(request: ModelRequest) -> Any:
        abort.abort("enough")
        return Stream()

    events = await played(model, abort=abort)
    assert told(events) == [("aborted", "user_abort", "enough")]
    assert (begun, closed) == ([], ["closed"])


async def test_a_stream_that_is_opened_after_its_attempt_is_not_stepped() -> None:
    """It heard no cancellation and was given up; the next attempt has the provider to itself."""
    go, closed, begun = anyio.Event(), anyio.Event(), list[int]()

    class Stream:
        def __init__(self, number: int) -> None:
            self.number = number

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            if self.number in begun:
                raise StopAsyncIteration
            begun.append(self.number)
            return Finish("stop")

        async def aclose(self) -> None:
            if self.number == 1:
                closed.set()

    attempts = iter([1, 2])

    async def model(request: ModelRequest) -> Any:
        number = next(attempts)
        while number == 1 and not go.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await go.wait()
            except anyio.get_cancelled_exc_class():
                pass
        if number == 2:
            go.set()
            await closed.wait()
        return Stream(number)

    clock = VirtualClock(autojump_threshold=None)
    config = Config(model=model, clock=clock, retry=Retry(waits=(1,)), idle_timeout=20, abort_grace=0.05)
    events: list[Event] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                events.extend(await collect(agent_loop(["go"], Context(), config)))

            group.start_soon(run)
            await clock.advance(30)
    assert (begun, [end.status for end in ends(events)]) == ([2], ["retryable", "completed"])


async def test_a_piece_of_a_reply_does_not_wake_whoever_watches_the_stream() -> None:
    """However slowly they come: the clock is read once for each, by the reader. (Read again, somebody else looked round.)"""

    class CountingClock(VirtualClock):
        read = 0

        def now(self) -> float:
            self.read += 1
            return super().now()

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        for _ in range(int(request.messages[-1].text)):
            await anyio.lowlevel.checkpoint()
            yield "a"
        yield Finish("stop")

    read = []
    for pieces in ("10", "110"):
        clock = CountingClock()
        await played(model, prompts=[pieces], clock=clock, idle_timeout=60)
        read.append(clock.read)
    assert read[1] - read[0] <= 110


async def test_a_model_of_whose_chunks_nothing_comes_gives_the_others_their_turn() -> None:
    """Also when it never waits: an abort gets in."""
    abort, begun = AbortSignal(), anyio.Event()

    async def model(request: ModelRequest) -> AsyncIterator[Any]:
        begun.set()
        while True:
            yield UsageChunk(Usage(output=1))

    events: list[Event] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            events.extend(await played(model, abort=abort))

        group.start_soon(run)
        await begun.wait()
        abort.abort("enough")
    assert told(events) == [("aborted", "user_abort", "enough")]


async def test_a_stream_that_wraps_a_generator_is_closed_when_that_has_ended() -> None:
    """It may have more to clean up than the generator whose attributes it shows."""
    closed = list[str]()

    async def pieces() -> AsyncIterator[Any]:
        yield "a"
        yield Finish("stop")

    class Wrapped:
        def __init__(self) -> None:
            self.pieces = pieces()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.pieces, name)

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            return await anext(self.pieces)

        async def aclose(self) -> None:
            closed.append("closed")

    events = await played(lambda request: Wrapped())
    assert (told(events), closed) == ([("completed", None, None)], ["closed"])


async def test_g24_a_stream_that_is_being_closed_when_the_run_is_stopped_is_closed_to_the_end() -> None:
    """Its clean-up has begun by itself, and hears no cancellation within its bound."""
    abort, closing, go, log = AbortSignal(), anyio.Event(), anyio.Event(), list[str]()

    class Stream:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closing.set()
            try:
                await go.wait()
                log.append("closed")
            except anyio.get_cancelled_exc_class():
                log.append("cut")
                raise

    events: list[Event] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            events.extend(await played(lambda request: Stream(), abort=abort, abort_grace=10))

        group.start_soon(run)
        await closing.wait()
        abort.abort("enough")
        await wait_all_blocked()
        go.set()
    assert (told(events), log) == ([("aborted", "user_abort", "enough")], ["closed"])


class Iterated:
    """A stream that is iterated and knows nothing else: no `aclose`."""

    def __init__(self, request: ModelRequest) -> None:
        self.chunks = iter(["a", Finish("stop")])

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        for chunk in self.chunks:
            return chunk
        raise StopAsyncIteration


async def test_a_class_may_be_a_model_if_its_values_are_streams_or_give_one() -> None:
    """One that is iterated, and one that is awaited first; any other class is a model that was not made."""

    class Opened(Awaitable[Any]):
        def __init__(self, request: ModelRequest) -> None:
            self.request = request

        def __await__(self) -> Generator[Any, Any, Any]:
            yield from anyio.lowlevel.checkpoint().__await__()
            return Iterated(self.request)

    assert told(await played(Iterated)) == [("completed", None, None)]
    assert told(await played(Opened)) == [("completed", None, None)]


async def test_a_stream_need_not_have_an_aclose(caplog: pytest.LogCaptureFixture) -> None:
    """Any async iterator will do, and nothing is said of it."""

    events = await played(Iterated)
    assert (told(events), caplog.records) == ([("completed", None, None)], [])
