"""G24 to G28: leaving, stepping from anywhere, context variables, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import textwrap
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentEnd,
    AgentStart,
    Config,
    Context,
    MessageUpdate,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    agent_loop,
    running,
    tool,
)
from agentloop.grammar import Checker, check
from agentloop.model import Finish
from agentloop.testing import ScriptedModel, call, collect, wait_all_blocked
from tests.leftovers import nothing_left

from .world import Plan, World, plans

pytestmark = pytest.mark.anyio


class Busy:
    """A run with a tool that never ends by itself and a model whose clean-up is noted."""

    def __init__(self) -> None:
        self.cleaned: list[str] = []
        self.started = anyio.Event()
        busy = self

        @tool
        async def forever(ctx: ToolContext) -> str:
            """Wait for ever, with a clean-up of its own that awaits."""
            busy.started.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                    busy.cleaned.append("tool")
            return ""

        @tool
        async def ok() -> str:
            """Return."""
            return "ok"

        async def model(request: Any) -> Any:
            try:
                yield "text"
                yield " more"
                if len(request.messages) == 1:
                    from agentloop.model import ToolCallChunk

                    yield ToolCallChunk("{}", "a", "ok")
                    yield ToolCallChunk("{}", "b", "forever")
                    yield Finish("tool_use")
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                    busy.cleaned.append("model")

        self.run = agent_loop(["go"], Context(tools=[forever, ok]), Config(model=model))


EVENTS = 30


@given(plan=plans(abort_after=None, deadline=None), stop=st.integers(1, EVENTS))
async def test_g24_leaving_early_leaves_nothing(plan: Plan, stop: int) -> None:
    """After any number of events, `aclose` ends model and tools, runs their clean-up, and leaves no task."""
    async with nothing_left():
        world = World(plan)
        world.start()
        checker = Checker()
        for _ in range(stop):
            event = await world.step()
            if event is None:
                break
            checker.feed(event)
        assert world.run is not None
        await world.run.aclose()
        assert world.running == set()
        assert world.model.open_streams == 0
        effects = len(world.effects)
        with pytest.raises(StopAsyncIteration):
            await anext(world.run)
        await wait_all_blocked()
        assert len(world.effects) == effects
        await world.run.aclose()


@pytest.mark.parametrize("stop", [*range(1, 17), None])
async def test_g24_a_plain_break_starts_the_clean_up_at_once(stop: int | None) -> None:
    """`break` and nothing else: dropping the run stops its work, whatever event it was dropped at (case C064)."""
    async with nothing_left():
        busy = Busy()
        run: Any = busy.run
        busy.run = None  # type: ignore[assignment]
        seen = 0
        async for _ in run:
            seen += 1
            if seen == stop or (stop is None and busy.started.is_set()):
                break
        del run
        gc.collect()
        await wait_all_blocked()
        assert busy.cleaned == {None: ["model", "tool"]}.get(stop, busy.cleaned)
        assert "tool" in busy.cleaned or not busy.started.is_set()


async def test_g24_collected_in_another_thread() -> None:
    """A run that is dropped by another thread stops in its own event loop."""
    async with nothing_left():
        busy = Busy()
        box = [busy.run]
        busy.run = None  # type: ignore[assignment]
        async for _ in box[0]:
            if busy.started.is_set():
                break
        await busy.started.wait()
        thread = threading.Thread(target=box.clear)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        gc.collect()
        await anyio.to_thread.run_sync(lambda: None)
        await wait_all_blocked()
        assert busy.cleaned == ["model", "tool"]


async def test_g24_an_exception_in_the_consumer() -> None:
    """An error in the loop's body ends the run once it is dropped; with `running`, before the error leaves."""
    async with nothing_left():
        busy = Busy()
        with pytest.raises(ZeroDivisionError):
            async with running(busy.run) as events:
                async for event in events:
                    if isinstance(event, ToolExecutionStart) and event.tool_name == "forever":
                        await anext(events)
                        await busy.started.wait()
                        raise ZeroDivisionError
        assert busy.cleaned == ["model", "tool"]


async def test_g24_aclose_while_a_step_is_pending() -> None:
    """The pending step ends the iteration; `aclose` returns."""
    async with nothing_left():
        busy = Busy()
        ended = []

        async def read() -> None:
            async for _ in busy.run:
                pass
            ended.append("read")

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await busy.started.wait()
            await wait_all_blocked()
            await busy.run.aclose()
            ended.append("closed")
        assert sorted(ended) == ["closed", "read"]
        assert busy.cleaned == ["model", "tool"]


async def test_g24_two_steps_at_once_are_a_clear_error() -> None:
    """The second step raises, the first goes on."""
    busy = Busy()
    async with anyio.create_task_group() as group:

        async def read() -> None:
            async for _ in busy.run:
                pass

        group.start_soon(read)
        await busy.started.wait()
        await wait_all_blocked()
        with pytest.raises(RuntimeError, match="one step at a time"):
            await anext(busy.run)
        await busy.run.aclose()


async def test_g24_aclose_returns_although_a_tool_is_deaf() -> None:
    """A tool that ignores its cancellation does not hold up `aclose`."""
    world = World(Plan(replies=([call("deaf", id="d")],), deaf=True))
    world.start()
    while not world.running:
        event = await world.step()
        if isinstance(event, ToolExecutionStart):
            break
    async with anyio.create_task_group() as group:
        group.start_soon(world.step)
        await wait_all_blocked()
        assert world.running
        assert world.run is not None
        await world.run.aclose()
    world.release.set()
    await wait_all_blocked()
    assert world.cleaned == ["d"]


HOST_CANCELLED = {
    "asyncio": """
        import asyncio, gc
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is no complaint
            run = make()
            async for event in run:
                if isinstance(event, ToolExecutionUpdate): break
            asyncio.get_running_loop().kept = run  # nobody closes it: asyncio.run cancels what is left
        asyncio.run(main())
    """,
    "trio": """
        import trio
        kept = []
        async def main():
            run = make()
            async for event in run:
                if isinstance(event, ToolExecutionUpdate): break
            kept.append(run)
        trio.run(main)
    """,
}


@pytest.mark.parametrize("backend", list(HOST_CANCELLED))
def test_g24_the_end_of_the_event_loop_ends_the_run(backend: str) -> None:
    """A run that is kept past the end of main: exit code 0, clean-up ran, nothing on stderr."""
    source = """
        import anyio
        from agentloop import *
        from agentloop.testing import ScriptedModel, call
        @tool
        async def forever(ctx: ToolContext) -> str:
            "Wait."
            ctx.progress("on")
            try:
                await anyio.sleep_forever()
            finally:
                print("cleaned")
        def make():
            return agent_loop(["go"], Context(tools=[forever]), Config(model=ScriptedModel([[call("forever")]])))
    """
    code = textwrap.dedent(source).lstrip() + textwrap.dedent(HOST_CANCELLED[backend])
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "cleaned", "")


async def test_g25_each_step_in_a_task_of_its_own() -> None:
    """Steps from different tasks in turn, each under a time-out of the caller, and the close from another one."""
    async with nothing_left():
        world = World(Plan(replies=(["a", "b", call("ok")], "done")))
        world.start()
        done = [False]

        async def one() -> None:
            with anyio.fail_after(30):
                done[0] = await world.step() is None

        while not done[0]:
            async with anyio.create_task_group() as group:
                group.start_soon(one)
        check(world.events)
        busy = Busy()
        async with anyio.create_task_group() as group:

            async def first_step() -> None:
                await anext(busy.run)

            group.start_soon(first_step)
        async with anyio.create_task_group() as group:
            group.start_soon(busy.run.aclose)


@given(first=plans(), second=plans())
async def test_g25_two_runs_interleaved(first: Plan, second: Plan) -> None:
    """Stepping two runs in turn gives each the events it gives alone."""
    alone = []
    for plan in (first, second):
        world = World(plan)
        alone.append([type(e) for e in await world.play() if not isinstance(e, MessageUpdate)])
    worlds = [World(first), World(second)]
    for world in worlds:
        world.start()
    going = list(worlds)
    while going:
        for world in list(going):
            if await world.step() is None:
                going.remove(world)
    for world in worlds:
        check(world.events)


async def test_g25_a_model_that_holds_a_scope_across_its_yields() -> None:
    """The provider's stream is entered, stepped and closed by one task: its scopes do not break (case C066)."""
    tasks: set[int] = set()

    async def model(request: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
            with anyio.move_on_after(60):
                for piece in "abc":
                    tasks.add(anyio.get_current_task().id)
                    yield piece
                yield Finish("stop")
        tasks.add(anyio.get_current_task().id)

    for stop in (None, 8):
        async with nothing_left():
            tasks.clear()
            run = agent_loop(["go"], Context(), Config(model=model, run_ahead=0))
            events = []
            async for event in run:
                events.append(event)
                if len(events) == stop:
                    break
            await run.aclose()
            assert len(tasks) <= 1 or stop is not None
            if stop is None:
                end = events[-1]
                assert isinstance(end, AgentEnd)
                assert end.messages[-1].text == "abc"  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["move_on_after", "cancel", "wait_for", "timeout"])
async def test_g26_a_cancelled_step_ends_the_run_cleanly(how: str, anyio_backend_name: str) -> None:
    """A step that times out or is cancelled closes the run: tools cleaned up, the cancellation goes on to the caller."""
    if how in ("wait_for", "timeout") and anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own time-outs")
    async with nothing_left():
        busy = Busy()
        while not busy.started.is_set():
            event = await anext(busy.run)
            if isinstance(event, ToolExecutionEnd):
                await busy.started.wait()
                for _ in range(2):
                    await anext(busy.run)
        if how == "move_on_after":
            with anyio.move_on_after(0.01) as scope:
                await anext(busy.run)
            assert scope.cancelled_caught
        elif how == "cancel":
            async with anyio.create_task_group() as group:

                async def step() -> None:
                    await anext(busy.run)

                group.start_soon(step)
                await wait_all_blocked()
                group.cancel_scope.cancel()
        elif how == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(busy.run), 0.01)
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(busy.run)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        assert busy.cleaned == ["model", "tool"]
        with pytest.raises(StopAsyncIteration):
            await anext(busy.run)


async def test_g26_inside_running_a_timed_out_step_leaves_the_run_alive() -> None:
    """The next step goes on; nothing is lost; leaving the block ends it."""
    gate = anyio.Event()
    model = ScriptedModel([["a", gate, "b"]])
    async with nothing_left():
        events = []
        async with running(agent_loop(["go"], Context(), Config(model=model))) as run:
            timed_out = 0
            while True:
                with anyio.move_on_after(0.02) as scope:
                    try:
                        events.append(await anext(run))
                    except StopAsyncIteration:
                        break
                if scope.cancelled_caught:
                    timed_out += 1
                    gate.set()
        check(events)
        assert timed_out == 1
        end = events[-1]
        assert isinstance(end, AgentEnd)
        assert end.messages[-1].text == "ab"  # type: ignore[union-attr]


async def test_g27_nothing_happens_before_the_first_step() -> None:
    """Made and dropped, closed, or entered and left: no request, no hook, no warning (case C071)."""
    model = ScriptedModel(["never"])
    polled = []
    config = Config(model=model, get_steering_messages=lambda: polled.append(1))
    async with nothing_left():
        agent_loop(["go"], Context(), config)
        run = agent_loop(["go"], Context(), config)
        await run.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(run)
        async with running(agent_loop(["go"], Context(), config)):
            pass
        gc.collect()
    assert (model.asked, polled) == (0, [])


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_g27_context_variables_are_those_of_the_first_step() -> None:
    """Tools, hooks and model see the value at the first step; what a tool sets does not leak (case C076)."""
    seen = []

    @tool
    async def look() -> str:
        """Look and change."""
        seen.append(("tool", VARIABLE.get()))
        VARIABLE.set("from the tool")
        return "ok"

    @tool
    def look_in_thread() -> str:
        """Look."""
        seen.append(("thread", VARIABLE.get()))
        return "ok"

    async def before(invocation: Any) -> None:
        seen.append(("hook", VARIABLE.get()))
        VARIABLE.set("from the hook")

    async def model(request: Any) -> Any:
        seen.append(("model", VARIABLE.get()))
        async for chunk in script(request):
            yield chunk

    script = ScriptedModel([[call("look"), call("look_in_thread"), call("look")], "done"])
    VARIABLE.set("when it was made")
    run = agent_loop(["go"], Context(tools=[look, look_in_thread]), Config(model=model, before_tool_call=before))
    VARIABLE.set("at the first step")
    async for event in run:
        if isinstance(event, AgentStart):
            VARIABLE.set("the consumer's own")
    assert {value for _, value in seen} == {"at the first step"}
    assert sorted({place for place, _ in seen}) == ["hook", "model", "thread", "tool"]
    assert VARIABLE.get() == "the consumer's own"


@given(plan=plans(abort_after=None, asks=None, deadline=None))
def test_g28_the_same_events_on_every_backend(plan: Plan) -> None:
    """The same plan gives the same events on asyncio, uvloop and trio, but for the order of calls that end in one tick."""
    streams = []
    for backend, options in (("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})):

        async def main() -> list[Any]:
            return await World(plan).play()

        events = anyio.run(main, backend=backend, backend_options=options)
        streams.append([event for event in events if not _of_a_call(event)])
    assert streams[0] == streams[1] == streams[2]


def _of_a_call(event: Any) -> bool:
    """Events whose place among those of other calls depends on completion."""
    from agentloop import ToolExecutionUpdate, ToolResultMessage

    if isinstance(event, ToolExecutionStart | ToolExecutionUpdate | ToolExecutionEnd):
        return True
    return isinstance(getattr(event, "message", None), ToolResultMessage) or type(event).__name__.startswith("Approval")


async def test_collect_is_enough_for_everybody_else() -> None:
    """A plain `async for` to the end needs no closing."""
    async with nothing_left():
        events = await collect(agent_loop(["go"], Context(), Config(model=ScriptedModel(["hi"]))))
        assert len(events) > 5
