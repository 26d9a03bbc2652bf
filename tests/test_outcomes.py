"""How a call ends: the code, the stop reason and the words of each way that a tool may stop."""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Generator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentloop import AbortSignal, Config, Context, ToolContext, ToolExecutionEnd, ToolResult, agent_loop, tool
from agentloop._values import class_name
from agentloop.errors import GrammarError
from agentloop.grammar import check
from agentloop.messages import InlineData, Text
from agentloop.testing import ScriptedModel, VirtualClock, call, collect, wait_all_blocked
from tests.deaf import deaf_until

pytestmark = pytest.mark.anyio

SILENT = "The tool failed without saying why."
STREAMED = "so far"


async def ended(work: Any, *, after: Any = None, **changes: Any) -> ToolExecutionEnd:
    """The end of one call of this tool."""
    model = ScriptedModel([[call("work")], "done"])
    config = Config(model=model, clock=VirtualClock(), after_tool_call=after, **changes)
    events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    check(events, outputs_kept=after is None)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    return end


def said(end: ToolExecutionEnd) -> tuple[str | None, str, bool, str]:
    return end.error_code, end.stop_reason, end.is_error, end.result.text


def returning(value: Any, **options: Any) -> Any:
    @tool(name="work", description="Work.", **options)
    async def work(ctx: ToolContext) -> Any:
        return value

    return work


def told_to_stop(answer: Any, *, stream: bool = False, **options: Any) -> Any:
    """A tool that works until it is told to stop, then returns `answer`, or raises it."""

    @tool(name="work", description="Work.", **options)
    async def work(ctx: ToolContext) -> Any:
        if stream:
            await ctx.output(STREAMED)
        await ctx.abort.wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return work


def deaf(*, stream: bool = False, **options: Any) -> Any:
    """A tool that does not look whether it is told to stop, but can be cancelled."""

    @tool(name="work", description="Work.", **options)
    async def work(ctx: ToolContext) -> str:
        if stream:
            await ctx.output(STREAMED)
        await anyio.sleep(math.inf)
        return "never"

    return work


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ("ok", (None, "completed", False, "ok")),
        ("", (None, "completed", False, "[no output]")),
        (" ", (None, "completed", False, " ")),
        (None, (None, "completed", False, "[no output]")),
        (ToolResult("bad", is_error=True), ("tool_error", "fatal", True, "bad")),
        (ToolResult("", is_error=True), ("tool_error", "fatal", True, SILENT)),
        (ToolResult("\n", is_error=True), ("tool_error", "fatal", True, SILENT)),
    ],
)
async def test_a_value_that_came_in_time(value: Any, outcome: Any) -> None:
    """It is kept; nothing is `[no output]`, an error that is blank says that it did not say why."""
    assert said(await ended(returning(value))) == outcome


async def test_what_a_tool_raises_is_its_error() -> None:
    """`tool_error`, `fatal`, in the error's words."""

    @tool
    async def work() -> str:
        """Work."""
        raise ValueError("broken")

    assert said(await ended(work)) == ("tool_error", "fatal", True, "broken")


async def test_a_tool_that_is_cancelled_from_inside_failed() -> None:
    """A cancellation that nobody asked for is an error of the tool."""

    @tool
    async def work() -> str:
        """Work."""
        raise anyio.get_cancelled_exc_class()

    if _on_trio():
        pytest.skip("trio's cancellation cannot be raised by hand")
    assert said(await ended(work)) == ("tool_error", "fatal", True, "the tool was cancelled from inside")


def _on_trio() -> bool:
    return anyio.get_cancelled_exc_class().__module__.startswith("trio")


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (told_to_stop("half", timeout=5), "half"),
        (told_to_stop(ToolResult("half", is_error=True), timeout=5), "half"),
        (told_to_stop("", timeout=5), "The tool timed out after 5 s."),
        (told_to_stop(" ", timeout=2.5), "The tool timed out after 2.5 s."),
        (told_to_stop("", stream=True, timeout=5), STREAMED),
        (told_to_stop(ValueError("broken"), timeout=5), "The tool timed out after 5 s.\nbroken"),
        (
            told_to_stop(ValueError("broken"), stream=True, timeout=5),
            f"{STREAMED}\nThe tool timed out after 5 s.\nbroken",
        ),
        (deaf(timeout=5), "The tool timed out after 5 s."),
        (deaf(stream=True, timeout=5), f"{STREAMED}\nThe tool timed out after 5 s."),
    ],
)
async def test_a_tool_over_its_time(work: Any, text: str) -> None:
    """What it says in time is the content of a `tool_timeout` error; else the words say how long it had."""
    assert said(await ended(work)) == ("tool_timeout", "fatal", True, text)


async def stopped(work: Any, reason: str | None, by: str) -> ToolExecutionEnd:
    """The end of one call that an abort or the deadline stops."""
    clock, signal = VirtualClock(), AbortSignal()
    deadline = 5.0 if by == "deadline" else None
    config = Config(model=ScriptedModel([[call("work")]]), clock=clock, abort=signal, deadline=deadline)
    events: list[Any] = []
    async with anyio.create_task_group() as group:

        async def abort() -> None:
            await clock.sleep(3)
            signal.abort(reason)

        if by == "abort":
            group.start_soon(abort)
        events += await collect(agent_loop(["go"], Context(tools=[work]), config))
    check(events, outputs_kept=True)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    return end


@pytest.mark.parametrize("by", ["abort", "deadline"])
@pytest.mark.parametrize(
    ("answer", "is_error", "text"),
    [
        ("half", False, "half"),
        ("", False, "[no output]"),
        (ToolResult("half", is_error=True), True, "half"),
        (ToolResult("", is_error=True), True, SILENT),
        (ValueError("broken"), True, "broken"),
    ],
)
async def test_what_a_stopped_tool_says_in_time(answer: Any, is_error: bool, text: str, by: str) -> None:
    """It is kept as it was returned, `is_error` too; the call is `aborted`."""
    assert said(await stopped(told_to_stop(answer), "enough", by)) == ("aborted", "aborted", is_error, text)


@pytest.mark.parametrize(
    ("reason", "text"), [("enough", "The tool was aborted: enough"), (None, "The tool was aborted.")]
)
async def test_a_stopped_tool_that_is_cancelled(reason: str | None, text: str) -> None:
    """The words give the reason of the abort, if there is one, behind what was streamed."""
    assert said(await stopped(deaf(), reason, "abort")) == ("aborted", "aborted", True, text)
    assert said(await stopped(deaf(stream=True), reason, "abort")) == (
        "aborted",
        "aborted",
        True,
        f"{STREAMED}\n{text}",
    )


@pytest.mark.parametrize(("by", "stop_reason"), [("abort", "aborted"), ("timeout", "fatal")])
async def test_a_tool_that_does_not_stop(by: str, stop_reason: str) -> None:
    """It is left to itself; nobody knows what it does, and the call ends as what stopped it."""
    release = anyio.Event()

    @tool(timeout=5 if by == "timeout" else None)
    async def work(ctx: ToolContext) -> str:
        """Work."""
        await deaf_until(release)
        return "late"

    try:
        end = await (stopped(work, None, "abort") if by == "abort" else ended(work))
    finally:
        release.set()
    text = "The tool did not stop when it was told to; its outcome is unknown."
    assert said(end) == ("not_stopped", stop_reason, True, text)


@pytest.mark.parametrize(
    ("value", "answer", "outcome"),
    [
        ("ok", None, (None, "completed", False, "ok")),
        ("ok", ToolResult("other"), (None, "completed", False, "other")),
        ("ok", ToolResult(""), (None, "completed", False, "[no output]")),
        ("ok", ToolResult("bad", is_error=True), ("tool_error", "fatal", True, "bad")),
        ("ok", ToolResult(" ", is_error=True), ("tool_error", "fatal", True, SILENT)),
        ("ok", "x", ("tool_error", "fatal", True, "after_tool_call: expected a ToolResult or None, got str")),
        (ToolResult("bad", is_error=True), ToolResult("fine"), (None, "completed", False, "fine")),
        (ToolResult("bad", is_error=True), ToolResult("worse", is_error=True), ("tool_error", "fatal", True, "worse")),
    ],
)
async def test_what_after_tool_call_makes_of_it(value: Any, answer: Any, outcome: Any) -> None:
    """Its content and `is_error` are the result's; the code follows."""
    assert said(await ended(returning(value), after=lambda invocation, result: answer)) == outcome


async def test_after_tool_call_keeps_the_code_of_an_error() -> None:
    """A time-out stays one, whatever result takes its place."""
    end = await ended(told_to_stop("half", timeout=5), after=lambda invocation, result: ToolResult("x", is_error=True))
    assert said(end) == ("tool_timeout", "fatal", True, "x")


async def test_a_blank_block_beside_another_says_something() -> None:
    """Text that is empty is nothing; any other block is something."""
    data = InlineData("QUJD", "text/plain")
    end = await ended(returning(ToolResult((data,), is_error=True)))
    assert end.result.content == (data,)
    end = await ended(returning(ToolResult((Text(""), Text("x")))))
    assert end.result.text == "x"


async def test_a_tool_that_a_new_message_interrupts() -> None:
    """It is cancelled after its grace, behind what it streamed, and the words say why."""
    steered = anyio.Event()

    @tool(interruptible=True)
    async def work(ctx: ToolContext) -> str:
        """Work."""
        steered.set()
        await anyio.sleep(math.inf)
        return "never"

    assert said(await ended(work, wait_for_steering=steered.wait)) == (
        "aborted",
        "aborted",
        True,
        "Stopped waiting: a new message from the user is there.",
    )


async def test_an_output_that_a_callback_replaced_is_legal_unless_it_cannot_be() -> None:
    """Only who knows that no `after_tool_call` replaces contents can hold the streamed output against the result."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        await ctx.output(STREAMED)
        return STREAMED

    config = Config(
        model=ScriptedModel([[call("work")], "done"]), after_tool_call=lambda _, result: ToolResult("other")
    )
    events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    check(events)
    with pytest.raises(GrammarError):
        check(events, outputs_kept=True)


async def test_half_a_pair_before_a_note_becomes_the_replacement() -> None:
    """The kernel's own words stand behind all that was streamed."""

    @tool(timeout=5)
    async def work(ctx: ToolContext) -> str:
        """Work."""
        await ctx.output("a\ud83d")
        await anyio.sleep(math.inf)
        return "never"

    assert (await ended(work)).result.text == "a\ufffd\nThe tool timed out after 5 s."


async def test_a_blank_output_is_told_to_be_none() -> None:
    """What was streamed stays; the words come as a last delta."""

    @tool
    async def work(ctx: ToolContext) -> ToolResult:
        """Work."""
        await ctx.output("\n")
        return ToolResult("\n", is_error=True)

    assert (await ended(work)).result.text.endswith(SILENT)


async def test_what_a_plain_function_returns_or_raises() -> None:
    """Its value is the result, an awaitable one when it was awaited; what it raises is its error, `StopIteration` too."""

    async def later() -> str:
        return "later"

    def plain(value: Any) -> Any:
        @tool(name="work")
        def work() -> Any:
            """Work in a thread."""
            if isinstance(value, BaseException):
                raise value
            return value

        return work

    assert said(await ended(plain("ok"))) == (None, "completed", False, "ok")
    assert said(await ended(plain(later()))) == (None, "completed", False, "later")
    for error in (ValueError("broken"), StopIteration("broken")):
        assert said(await ended(plain(error))) == ("tool_error", "fatal", True, "broken")


async def test_an_awaitable_that_an_async_function_returns_is_awaited() -> None:
    """A forgotten `await` gives its value, or its error, and not the name of an object in memory."""

    async def later(words: str) -> str:
        if words == "broken":
            raise ValueError(words)
        return words

    def work(words: str) -> Any:
        @tool(name="work")
        async def work() -> Any:
            """Forget to await."""
            return later(words)

        return work

    assert said(await ended(work("later"))) == (None, "completed", False, "later")
    assert said(await ended(work("broken"))) == ("tool_error", "fatal", True, "broken")


@pytest.mark.parametrize("in_a_thread", [True, False])
async def test_an_awaitable_of_an_awaitable_is_the_tools_error(in_a_thread: bool) -> None:
    """It is awaited once; what comes of that and is one again (some give themselves, for ever) is no value, nor is its name
    in memory. Nothing warns that it was never awaited."""

    class Itself:
        def __await__(self) -> Generator[Any, Any, Any]:
            yield from anyio.lowlevel.checkpoint().__await__()
            return self

    async def inner() -> str:
        return "later"

    async def outer() -> Any:
        return inner()

    def work(make: Any) -> Any:
        async def later() -> Any:
            """Work."""
            return make()

        def now() -> Any:
            """Work."""
            return make()

        return tool(name="work")(now if in_a_thread else later)

    for make, name in ((outer, "coroutine"), (Itself, class_name(Itself))):
        words = f"expected a value, got a {name} that nobody awaited"
        assert said(await ended(work(make))) == ("tool_error", "fatal", True, words)


async def test_an_awaitable_that_is_yielded_is_no_output() -> None:
    """Its place in the output says so, and nothing warns that it was never awaited."""

    async def later() -> str:
        return "later"

    @tool
    async def work() -> Any:
        """Work."""
        yield "so far, "
        yield later()

    assert (await ended(work)).result.text == "so far, expected a value, got a coroutine that nobody awaited"


class SaysThatItIsNone:
    """A value with the word for what cannot be awaited."""

    __await__ = None

    def __str__(self) -> str:
        return "a value"


@types.coroutine
def of_the_old_kind() -> Generator[Any, Any, str]:
    yield from anyio.lowlevel.checkpoint().__await__()
    return "later"


@pytest.mark.parametrize("in_a_thread", [True, False])
async def test_what_can_be_awaited_is_what_python_awaits(in_a_thread: bool) -> None:
    """A coroutine of a generator is; a class that sets `__await__` to None has none, and gives its value."""

    def work(value: Any) -> Any:
        async def later() -> Any:
            """Work."""
            return value

        def now() -> Any:
            """Work."""
            return value

        return tool(name="work")(now if in_a_thread else later)

    assert said(await ended(work(of_the_old_kind()))) == (None, "completed", False, "later")
    assert said(await ended(work(SaysThatItIsNone()))) == (None, "completed", False, "a value")


@pytest.mark.parametrize("eager", [False, True])
async def test_plain_functions_have_threads_of_their_own(eager: bool) -> None:
    """They run although the application uses up all threads of the event loop, up to 40 of a batch at once: also if some
    of them began while the reply streamed."""
    lock, full, release = threading.Lock(), threading.Event(), threading.Event()
    running: list[int] = []

    def work(number: int) -> str:
        """Wait for the others."""
        with lock:
            running.append(number)
            if len(running) == 40:
                full.set()
        release.wait(20)
        return "ok"

    async def let_go() -> None:
        assert await anyio.to_thread.run_sync(full.wait, 20, limiter=anyio.CapacityLimiter(1))
        await wait_all_blocked()
        at_once.append(len(running))
        release.set()

    at_once: list[int] = []
    tools = [tool(name="early", replay="safe")(work), tool(name="late")(work)]
    calls = [call("early" if number < 21 else "late", {"number": number}) for number in range(42)]
    config = Config(model=ScriptedModel([calls, "done"]), eager_tools=eager)
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    async with limiter, anyio.create_task_group() as group:
        group.start_soon(let_go)
        with anyio.fail_after(20):
            events = await collect(agent_loop(["go"], Context(tools=tools), config))
    assert at_once == [40]
    assert sorted(running) == list(range(42))
    assert [e.result.text for e in events if isinstance(e, ToolExecutionEnd)] == ["ok"] * 42


async def test_a_plain_function_that_takes_no_context_is_waited_for_as_well() -> None:
    """It hears of nothing, but nothing can cancel it either: what it returns within the grace is kept."""
    clock = VirtualClock(autojump_threshold=None)
    began, release = threading.Event(), threading.Event()

    @tool(timeout=5)
    def work() -> str:
        """Work until it is let go."""
        began.set()
        release.wait(20)
        return "half"

    async def late() -> None:
        assert await anyio.to_thread.run_sync(began.wait, 20)
        clock.jump(5)
        await wait_all_blocked()
        release.set()

    config = Config(model=ScriptedModel([[call("work")], "done"]), clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(late)
        events = await collect(agent_loop(["go"], Context(tools=[work]), config))
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert said(end) == ("tool_timeout", "fatal", True, "half")


@pytest.mark.parametrize("returns", ["in time", "late", "after the run"])
async def test_a_plain_function_over_its_time_is_waited_for(returns: str, caplog: pytest.LogCaptureFixture) -> None:
    """A thread cannot be cancelled: what it returns within the grace is kept; then it is left to itself, and neither a
    task nor a word of it is left in the run."""
    clock = VirtualClock(autojump_threshold=None)
    began, release, over = threading.Event(), threading.Event(), threading.Event()

    @tool(timeout=5)
    def work(ctx: ToolContext) -> str:
        """Work until it is let go."""
        began.set()
        release.wait(20)
        ctx.output("half")
        over.set()
        return "half"

    async def late() -> None:
        assert await anyio.to_thread.run_sync(began.wait, 20)
        clock.jump(5)
        await wait_all_blocked()
        if returns == "in time":
            release.set()
        else:
            clock.jump(config.abort_grace)

    config = Config(model=ScriptedModel([[call("work")], "done"]), clock=clock)
    events: list[Any] = []
    tasks = len(anyio.get_running_tasks())
    async with anyio.create_task_group() as group:
        group.start_soon(late)
        async for event in agent_loop(["go"], Context(tools=[work]), config):
            events.append(event)
            if isinstance(event, ToolExecutionEnd) and returns == "late":
                release.set()
                assert await anyio.to_thread.run_sync(over.wait, 20)
    await wait_all_blocked()
    assert len(anyio.get_running_tasks()) == tasks
    release.set()
    check(events, outputs_kept=True)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    left = "The tool did not stop when it was told to; its outcome is unknown."
    outcome = ("tool_timeout", "half") if returns == "in time" else ("not_stopped", left)
    assert said(end) == (outcome[0], "fatal", True, outcome[1])
    warned = "tool work did not stop within its bound and is left to itself"
    assert caplog.messages == ([] if returns == "in time" else [warned])


@pytest.mark.parametrize(("looks", "cancelled", "given_up"), [(True, 6.0, 7.0), (False, 5.0, 6.0)])
@pytest.mark.parametrize("obeys", [True, False])
async def test_how_long_a_tool_over_its_time_has(looks: bool, cancelled: float, given_up: float, obeys: bool) -> None:
    """One that looks at `ctx` has the grace to stop by itself; any other is cancelled at once. From then on the clean-up
    has the grace, and one that ignores that too is given up."""
    clock, release = VirtualClock(), anyio.Event()
    log: list[float] = []
    said_late: list[str] = []

    async def wait(say: Any = None) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            log.append(clock.now())
            if not obeys:
                with anyio.CancelScope(shield=True):
                    await release.wait()
                if say is not None:
                    say("late")
                    said_late.append("late")  # it is dropped, which is no error
        return "never"

    async def with_context(ctx: ToolContext) -> str:
        return await wait(ctx.output)

    async def without() -> str:
        return await wait()

    work = tool(name="work", description="Work.", timeout=5)(with_context if looks else without)
    events: list[Any] = []
    ended_at: list[float] = []
    config = Config(model=ScriptedModel([[call("work")], "done"]), clock=clock, abort_grace=1)
    try:
        async for event in agent_loop(["go"], Context(tools=[work]), config):
            events.append(event)
            if isinstance(event, ToolExecutionEnd):
                ended_at.append(clock.now())
                assert event.error_code == ("tool_timeout" if obeys else "not_stopped")
                release.set()
                await wait_all_blocked()
    finally:
        release.set()
    assert said_late == (["late"] if looks and not obeys else [])
    check(events, outputs_kept=True)  # also: nothing of the call came after its end
    assert (log, ended_at) == ([cancelled], [cancelled if obeys else given_up])


async def test_the_time_of_a_tool_is_over_when_it_has_returned() -> None:
    """While `after_tool_call` takes longer than the tool had, nothing is stopped any more, whatever other timers there are."""
    clock = VirtualClock()

    async def after(invocation: Any, result: ToolResult) -> ToolResult:
        await clock.sleep(60)
        return ToolResult("looked over")

    config = Config(
        model=ScriptedModel([[call("work")], "done"]), clock=clock, after_tool_call=after, deadline=100, tool_timeout=5
    )
    events = await collect(agent_loop(["go"], Context(tools=[returning("ok")]), config))
    check(events)
    (end,) = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert said(end) == (None, "completed", False, "looked over")


async def test_a_tool_that_has_returned_leaves_no_timer() -> None:
    """While `after_tool_call` looks at its result nothing sleeps on the caller's clock."""
    clock = VirtualClock(autojump_threshold=None)
    asleep: list[int] = []

    async def after(invocation: Any, result: ToolResult) -> None:
        await wait_all_blocked()
        asleep.append(clock.asleep)

    config = Config(model=ScriptedModel([[call("work")], "done"]), clock=clock, after_tool_call=after, tool_timeout=5)
    await collect(agent_loop(["go"], Context(tools=[returning("ok")]), config))
    assert asleep == [0]
