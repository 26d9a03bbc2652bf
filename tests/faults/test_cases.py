"""Faults that users of agent frameworks have reported, each by its number; `cases.py` says where the others are tested."""

from __future__ import annotations

import cProfile
import traceback
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    AssistantMessage,
    Block,
    Config,
    Context,
    Event,
    MessageEnd,
    MessageUpdate,
    ModelError,
    RequestBegin,
    RequestEnd,
    Retry,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolContext,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolResultMessage,
    TurnEnd,
    agent_loop,
    tool,
)
from agentloop.errors import TraceWriteError
from agentloop.grammar import check
from agentloop.model import Finish, TextChunk, ThinkingChunk, ToolCallChunk
from agentloop.omni import codec
from agentloop.omni.recorder import record
from agentloop.testing import CUT, ScriptedModel, VirtualClock, call, collect, wait_all_blocked
from tests.leftovers import nothing_left

from .bench import outcome

pytestmark = pytest.mark.anyio


async def play(model: Any, tools: Any = (), **config: Any) -> list[Event]:
    """A whole run on a virtual clock, checked, that leaves nothing."""
    values = {"clock": VirtualClock(), "retry": None, **config}
    async with nothing_left():
        events = await collect(agent_loop(["go"], Context(tools=tools), Config(model=model, **values)))
    check(events)
    return events


def of(events: list[Event], kind: type) -> list[Any]:
    """The events of a class."""
    return [event for event in events if isinstance(event, kind)]


def results(events: list[Event]) -> list[ToolResultMessage]:
    """The result messages."""
    return [event.message for event in of(events, MessageEnd) if isinstance(event.message, ToolResultMessage)]


def replies(events: list[Event]) -> list[AssistantMessage]:
    """The replies."""
    return [event.message for event in of(events, MessageEnd) if isinstance(event.message, AssistantMessage)]


async def test_c001_a_refused_call_does_not_overtake_an_earlier_one() -> None:
    """The end of the refused call may come first; results, `TurnEnd` and the next request are in call order."""
    clock = VirtualClock()
    ran: list[str] = []

    @tool
    async def slow() -> str:
        """Take a while."""
        await clock.sleep(0.1)
        return "slow result"

    @tool
    async def fast() -> str:
        """Never runs here."""
        ran.append("fast")
        return ""

    model = ScriptedModel([[call("slow", id="one"), call("fast", id="two")], "done"])
    events = await play(
        model, [slow, fast], clock=clock, before_tool_call=lambda call: Block("not now") if call.id == "two" else None
    )
    assert [message.tool_call_id for message in results(events)] == ["one", "two"]
    assert [message.tool_call_id for message in of(events, TurnEnd)[0].tool_results] == ["one", "two"]
    shown = model.requests[1].messages
    assert [getattr(message, "tool_call_id", message.role) for message in shown] == ["user", "assistant", "one", "two"]
    assert (results(events)[1].text, results(events)[1].is_error, ran) == ("not now", True, [])
    assert [event.tool_call_id for event in of(events, ToolExecutionEnd)] == ["two", "one"]


async def test_c015_arguments_before_the_name() -> None:
    """Nothing is shown until the name is there; then one call, one id, all arguments."""
    ran: list[int] = []

    @tool
    async def find(q: int) -> int:
        """Find."""
        ran.append(q)
        return q

    fragments = [ToolCallChunk('{"q":', index=0), ToolCallChunk("7}", index=0)]
    whole = [*fragments, ToolCallChunk("", "late", "find", index=0), Finish("tool_use")]
    events = await play(ScriptedModel([whole, "done"]), [find])
    (start,) = [e.delta for e in of(events, MessageUpdate) if isinstance(e.delta, ToolCallStart)]
    (end,) = [e.delta for e in of(events, MessageUpdate) if isinstance(e.delta, ToolCallEnd)]
    said = "".join(e.delta.text for e in of(events, MessageUpdate) if isinstance(e.delta, ToolCallDelta))
    assert (start.id, start.name, end.block.id, said) == ("late", "find", "late", '{"q":7}')
    ids = {e.tool_call_id for e in events if isinstance(e, ToolExecutionStart | ToolExecutionEnd)}
    assert (ids, ran, [message.text for message in results(events)]) == ({"late"}, [7], ["7"])
    nameless = await play(ScriptedModel([[*fragments, Finish("tool_use")]]), [find])
    assert outcome(nameless) == ("retryable", "malformed")
    assert ran == [7]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_c022_a_reply_cut_by_length_runs_no_tool(limit: int) -> None:
    """Not even the complete call of it runs; each is told why, and the run ends after so many such replies in a row."""
    ran: list[str] = []

    @tool
    async def write(t: str) -> None:
        """Write."""
        ran.append(t)

    cut = [call("write", {"t": "whole"}), ToolCallChunk('{"t":"half', "cut", "write"), Finish("length")]
    events = await play(ScriptedModel([cut, "done"]), [write])
    assert outcome(events) == ("completed", None)
    assert [(end.error_code, end.is_error) for end in of(events, ToolExecutionEnd)] == [("cut_off", True)] * 2
    assert all("output limit" in message.text for message in results(events))
    model = ScriptedModel([cut] * 9)
    events = await play(model, [write], max_cut_replies=limit)
    assert (outcome(events), model.asked, ran) == (("fatal", "length_limit"), limit, [])


async def test_c031_a_real_cancellation_is_no_failure_of_a_tool() -> None:
    """The consumer's task is cancelled while two tools run: the cancellation leaves, and no event blames a tool."""
    begun = anyio.Event()
    cleaned: list[str] = []
    events: list[Event] = []

    async def body(name: str) -> str:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            cleaned.append(name)
        return ""

    @tool
    async def one() -> str:
        """Wait."""
        return await body("one")

    @tool
    async def two() -> str:
        """Wait."""
        return await body("two")

    async with nothing_left():
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    await begun.wait()
                    await wait_all_blocked()
                    scope.cancel()

                group.start_soon(cancel)
                model = ScriptedModel([[call("one"), call("two")]])
                async for event in agent_loop("go", Context(tools=[one, two]), Config(model=model)):
                    events.append(event)
        assert scope.cancelled_caught
        assert sorted(cleaned) == ["one", "two"]
        assert not of(events, ToolExecutionEnd)


async def test_c036_no_update_after_the_end_of_a_call() -> None:
    """A progress function that was kept is harmless for ever: no event, no error, no wait."""
    kept: list[ToolContext] = []

    @tool
    async def late(ctx: ToolContext) -> str:
        """Keep the context."""
        ctx.progress("while it runs")
        kept.append(ctx)
        return "ok"

    async with nothing_left():
        events = []
        async for event in agent_loop(
            "go", Context(tools=[late]), Config(model=ScriptedModel([[call("late")], "done"]))
        ):
            events.append(event)
            if isinstance(event, ToolExecutionEnd):
                kept[0].progress("too late")
                await kept[0].output("too late")
        await anyio.to_thread.run_sync(kept[0].progress, "far too late")
        await anyio.to_thread.run_sync(kept[0].output, "far too late")
    check(events)
    assert len(of(events, ToolExecutionUpdate)) == 1
    assert outcome(events) == ("completed", None)


async def test_c041_one_failing_sibling_leaves_the_others_alone() -> None:
    """Results in call order, the good ones untouched, nothing raised."""
    clock = VirtualClock()
    ran: list[str] = []

    @tool
    async def good(v: int) -> int:
        """Succeed, later."""
        await clock.sleep(0.1)
        ran.append(f"good {v}")
        return v

    @tool
    async def bad() -> None:
        """Fail at once."""
        ran.append("bad")
        raise ValueError("boom")

    model = ScriptedModel([[call("good", {"v": 1}), call("bad"), call("good", {"v": 2})], "done"])
    events = await play(model, [good, bad], clock=clock)
    assert [(message.text, message.is_error) for message in results(events)] == [
        ("1", False),
        ("boom", True),
        ("2", False),
    ]
    assert sorted(ran) == ["bad", "good 1", "good 2"]


@pytest.mark.parametrize("exclusive", [True, False])
async def test_c045_an_exclusive_tool_is_not_run_beside_others(exclusive: bool) -> None:
    """Nothing between its first and last line; its start is emitted when it really starts. Off, all three overlap."""
    clock = VirtualClock()
    lines: list[str] = []

    async def body(name: str) -> None:
        lines.append(f"{name} begins")
        await clock.sleep(0.1)
        lines.append(f"{name} ends")

    @tool
    async def read() -> None:
        """Read."""
        await body("read")

    @tool(exclusive=exclusive)
    async def write() -> None:
        """Write."""
        await body("write")

    events = await play(
        ScriptedModel([[call("read"), call("write"), call("read")], "done"]), [read, write], clock=clock
    )
    if exclusive:
        assert lines == ["read begins", "read ends", "write begins", "write ends", "read begins", "read ends"]
        order = [type(event) for event in events if isinstance(event, ToolExecutionStart | ToolExecutionEnd)]
        assert order == [ToolExecutionStart, ToolExecutionEnd] * 3
    else:
        assert sorted(lines[:3]) == ["read begins", "read begins", "write begins"]  # trio shuffles


async def test_c049_an_abort_during_a_tool_leaves_the_queue() -> None:
    """One request, one aborted result, one end; what was queued is neither taken nor lost."""
    signal = AbortSignal()
    queue = ["queued while it runs"]
    polls: list[int] = []

    def poll() -> list[str]:
        polls.append(len(queue))
        return []

    @tool
    async def long() -> None:
        """Take for ever."""
        signal.abort("enough")
        await anyio.sleep_forever()

    model = ScriptedModel([[call("long")], "never"])
    events = await play(model, [long], abort=signal, get_steering_messages=poll)
    assert (model.asked, outcome(events), len(polls), queue) == (
        1, ("aborted", "user_abort"), 1, ["queued while it runs"],
    )  # fmt: skip
    assert [(end.error_code, end.stop_reason) for end in of(events, ToolExecutionEnd)] == [("aborted", "aborted")]


@pytest.mark.parametrize("chunks", [[], [TextChunk("  \n")], [ThinkingChunk("hm")]])
async def test_c059_an_abort_before_any_content_leaves_no_empty_message(chunks: list[Any]) -> None:
    """The next run on the same messages shows the model nothing empty and nothing of the aborted reply."""
    signal = AbortSignal()

    async def stop(request: Any) -> None:
        await anyio.lowlevel.checkpoint()
        signal.abort("enough")
        await anyio.sleep_forever()

    events = await play(ScriptedModel([[*chunks, stop]]), abort=signal)
    assert outcome(events) == ("aborted", "user_abort")
    assert all(message.content for message in replies(events))
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert [event.status for event in of(events, RequestEnd)] == ["aborted"]
    model = ScriptedModel(["done"])
    again = await collect(agent_loop("go on", Context(messages=end.messages), Config(model=model)))
    check(again)
    assert outcome(again) == ("completed", None)
    assert [message.role for message in model.requests[0].messages] == ["user", "user"]


@pytest.mark.parametrize("kind", ["text", "arguments"])
async def test_c082_the_cost_of_many_tiny_fragments_is_linear(kind: str) -> None:
    """Four times the fragments are four times the calls of functions, and others get their turns meanwhile."""

    async def cost(count: int) -> int:
        beats: list[int] = []

        async def model(request: Any) -> Any:
            if len(request.messages) > 1:
                yield Finish("stop")
                return
            if kind == "arguments":
                yield ToolCallChunk('{"t": "', "id", "w")
            for _ in range(count):
                yield "x" if kind == "text" else ToolCallChunk("x")
            if kind == "arguments":
                yield ToolCallChunk('"}')
            yield Finish("tool_use")

        async def heart() -> None:
            while True:
                beats.append(1)
                await anyio.lowlevel.checkpoint()

        profile = cProfile.Profile()
        async with anyio.create_task_group() as group:
            group.start_soon(heart)
            await anyio.lowlevel.checkpoint()
            beaten = len(beats)
            profile.enable()
            async for event in agent_loop("go", Context(), Config(model=model)):
                if isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
                    block = event.message.content[0]
                    said = block.text if kind == "text" else block.parse()["t"]  # type: ignore[union-attr]
                    assert said == "x" * count
            profile.disable()
            group.cancel_scope.cancel()
        assert len(beats) - beaten > count / 200
        return sum(entry.callcount for entry in profile.getstats() if "heart" not in str(entry.code))

    small, large = await cost(500), await cost(2000)
    assert large < 4.6 * small


async def test_c088_a_failure_after_visible_output_is_not_doubled() -> None:
    """The attempts are bracketed: a screen that drops what an uncommitted attempt showed has the text once."""
    model = ScriptedModel([["Here is", ModelError("network", "gone")], "Here is the plan"])
    events = await play(model, retry=Retry(waits=(0.01,)))
    shown = ""
    for event in events:
        if isinstance(event, RequestBegin):
            shown = ""
        elif isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
            shown += event.delta.text
    assert shown == "Here is the plan"
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert [message.role for message in end.messages] == ["user", "assistant"]
    assert end.messages[-1] == replies(events)[-1]
    given_up = await play(ScriptedModel([["Here is", ModelError("network", "gone")]]))
    assert (outcome(given_up), replies(given_up)[0].text) == (("retryable", "network"), "Here is")


async def test_c095_the_end_of_a_stream_without_a_stop_is_an_error() -> None:
    """The text is kept, the call is answered and does not run, the reason says that the stream ended early."""

    @tool
    async def never() -> None:
        """Never runs."""
        pytest.fail("ran")

    events = await play(ScriptedModel([["partial", call("never"), CUT]]), [never])
    assert outcome(events) == ("retryable", "truncated")
    (reply,) = replies(events)
    assert (reply.text, reply.stop_reason, reply.error_code) == ("partial", "retryable", "truncated")
    assert [end.error_code for end in of(events, ToolExecutionEnd)] == ["cut_off"]
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert "Finish" in (end.error_message or "")
    model = ScriptedModel(["done"])
    await collect(agent_loop("again", Context(messages=end.messages), Config(model=model)))
    assert [message.role for message in model.requests[0].messages] == ["user", "user"]


async def test_c101_one_id_for_every_call_of_a_conversation() -> None:
    """Each call runs and has its own result behind it; the second is told apart in events, history and request."""

    @tool
    async def echo(n: int) -> int:
        """Say it."""
        return n

    model = ScriptedModel([[call("echo", {"n": 1}, id="Z")], [call("echo", {"n": 2}, id="Z")], "done"])
    events = await play(model, [echo])
    assert [(message.tool_call_id, message.text) for message in results(events)] == [("Z", "1"), ("Z#2", "2")]
    shown = [message for message in model.requests[2].messages if message.role != "user"]
    pairs = [
        message.tool_calls[0].id if isinstance(message, AssistantMessage) else getattr(message, "tool_call_id", "")
        for message in shown
    ]
    assert pairs == ["Z", "Z", "Z#2", "Z#2"]


async def test_c155_half_a_surrogate_pair() -> None:
    """Two halves in a row become one character, a lone one a replacement, and everything can be encoded."""

    @tool
    async def t(s: str) -> str:
        """Return half a pair."""
        assert s == "\ufffd"
        return "bad \ud800 tail"

    model = ScriptedModel(
        [["\ud83d", "\ude00 ok", call("t", '{"s": "\\udc00"}'), call("t", '{"s": "\udc00"}')], "done"]
    )
    events = await play(model, [t])
    assert replies(events)[0].text == "\U0001f600 ok"
    assert [message.text for message in results(events)] == ["bad \ufffd tail"] * 2
    assert repr(model.requests[1].messages).encode()
    lines = b"".join(codec.jsonl(events)).splitlines()
    assert [message.text for message in replies(list(codec.from_jsonl(lines)))][:1] == ["\U0001f600 ok"]


async def test_c162_empty_blank_null_and_other_arguments() -> None:
    """Nothing and `{}` run; null, numbers, texts, lists and trailing junk are errors that name the tool and the reason."""
    ran: list[int] = []

    @tool
    async def plain() -> str:
        """Take nothing."""
        ran.append(1)
        return "ok"

    given = ["", "  \n", "{}", "null", "5", '"{}"', "[]", '{"a":1} junk']
    model = ScriptedModel([[call("plain", pieces=[text]) for text in given], "done"])
    events = await play(model, [plain])
    said = results(events)
    assert [message.is_error for message in said] == [False] * 3 + [True] * 5
    assert all("plain" in message.text and "expected a JSON object" in message.text for message in said[3:])
    assert len(ran) == 3
    reply = model.requests[1].messages[1]
    assert isinstance(reply, AssistantMessage)
    assert all(isinstance(call.parse(), dict) for call in reply.tool_calls)


class Own(Exception):
    """An error of the application."""


def fail(*args: Any) -> Any:
    """The application's own line."""
    raise Own("bug")


async def test_c195_errors_leave_bare() -> None:
    """What the model, a transform or a recorder raised is handed out as the original object, with its own traceback."""
    for name in ("model", "transform_context", "get_steering_messages"):
        model = ScriptedModel([fail]) if name == "model" else ScriptedModel(["done"])
        events = await play(model, **({} if name == "model" else {name: fail}))
        end = events[-1]
        assert isinstance(end, AgentEnd)
        assert isinstance(end.exception, Own), name
        with pytest.raises(Own, match="bug") as caught:
            end.raise_for_error()
        assert caught.value is end.exception
        assert "in fail" in "".join(traceback.format_exception(caught.value))

    @tool
    async def broken() -> None:
        """Fail."""
        fail()

    events = await play(ScriptedModel([[call("broken"), call("broken")], "done"]), [broken], before_tool_call=None)
    assert outcome(events) == ("completed", None)
    assert [message.text for message in results(events)] == ["bug", "bug"]
    events = await play(ScriptedModel([[call("broken")], "done"]), [broken], before_tool_call=fail)
    assert (outcome(events), results(events)[0].text) == (("completed", None), "bug")
    run = record(agent_loop("go", Context(), Config(model=ScriptedModel(["done"]))), fail)
    with pytest.raises(TraceWriteError) as failed:
        await collect(run)
    assert isinstance(failed.value.__cause__, Own)
