"""G01 to G11: the order of events, by drawn runs on every backend."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentEnd,
    AgentStart,
    AssistantMessage,
    BlockAdded,
    Config,
    Context,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolResultMessage,
    TurnEnd,
    TurnStart,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    user,
)
from agentloop.events import END_OF, START_OF
from agentloop.grammar import check
from agentloop.model import BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk
from agentloop.testing import ScriptedModel, collect

from .world import Plan, World, plans, played

pytestmark = pytest.mark.anyio


@given(plan=plans())
async def test_g01_one_start_first_one_end_last(plan: Plan) -> None:
    """Whatever happens between, AgentStart is first, AgentEnd last, each once."""
    world = await played(plan)
    assert type(world.events[0]) is AgentStart
    assert type(world.events[-1]) is AgentEnd
    assert [type(event) for event in world.of(AgentStart, AgentEnd)] == [AgentStart, AgentEnd]


PAIRS = [(TurnStart, TurnEnd), (MessageStart, MessageEnd), (RequestBegin, RequestEnd)]


@given(plan=plans())
async def test_g02_every_start_has_its_end(plan: Plan) -> None:
    """Turns, messages and requests open and close in turn; calls by id; turns count from 0."""
    world = await played(plan)
    for start, end in PAIRS:
        kinds = [type(event) for event in world.of(start, end)]
        assert kinds == [start, end] * (len(kinds) // 2)
    started = [event.tool_call_id for event in world.of(ToolExecutionStart)]
    ended = [event.tool_call_id for event in world.of(ToolExecutionEnd)]
    assert sorted(started) == sorted(ended)
    assert [event.index for event in world.of(TurnStart)] == list(range(len(world.of(TurnStart))))


def replies_of(events: list[Any]) -> list[tuple[list[Any], AssistantMessage]]:
    """(deltas, final message) of each reply."""
    found: list[tuple[list[Any], AssistantMessage]] = []
    deltas: list[Any] = []
    for event in events:
        if isinstance(event, MessageUpdate):
            deltas.append(event.delta)
        elif isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
            found.append((deltas, event.message))
            deltas = []
    return found


def assert_blocks_in_order(deltas: list[Any]) -> None:
    starts, ends = set(START_OF.values()), set(END_OF.values())
    expected, open_index = 0, None
    for delta in deltas:
        if type(delta) in starts or type(delta) is BlockAdded:
            assert open_index is None
            assert delta.index == expected
            expected += 1
            open_index = None if type(delta) is BlockAdded else delta.index
        else:
            assert delta.index == open_index
            if type(delta) in ends:
                open_index = None
    assert open_index is None


@given(plan=plans())
async def test_g03_blocks_do_not_overlap_and_count_from_zero(plan: Plan) -> None:
    """In each reply a block starts, grows and ends before the next one starts; indexes count the starts."""
    for deltas, _ in replies_of((await played(plan)).events):
        assert_blocks_in_order(deltas)


async def test_g03_interleaved_blocks_are_put_in_order_and_the_shown_one_is_not_held_back() -> None:
    """While two blocks of a provider interleave, the first goes on as it comes; the other follows, nothing is lost."""
    gate = anyio.Event()
    model = ScriptedModel([
        [TextChunk("a", 0), TextChunk("x", 1), TextChunk("b", 0), gate, BlockEnd(0), TextChunk("y", 1), Finish("stop")]
    ])  # fmt: skip
    run = agent_loop(["go"], Context(), Config(model=model))
    shown = []
    async for event in run:
        if isinstance(event, MessageUpdate):
            shown.append(event.delta)
            if event.delta == TextDelta(0, "b"):
                gate.set()  # nothing ended it yet: it was not held back
    assert [delta for delta in shown if isinstance(delta, TextDelta)] == [
        TextDelta(0, "a"), TextDelta(0, "b"), TextDelta(1, "x"), TextDelta(1, "y"),
    ]  # fmt: skip


async def test_g03_what_was_held_when_a_reply_breaks_off_comes_as_start_delta_end() -> None:
    """Held text is kept; half a held call is dropped."""
    model = ScriptedModel([
        [TextChunk("a", 0), ThinkingChunk("t", index=1), ThinkingChunk("u", index=1), ToolCallChunk("{", "c", "ok", 2)]
    ])  # fmt: skip
    model.replies[0].append(RuntimeError("gone"))
    events = await collect(agent_loop(["go"], Context(), Config(model=model, retry=None)))
    ((deltas, message),) = replies_of(events)
    assert [type(delta).__name__ for delta in deltas] == [
        "TextStart", "TextDelta", "TextEnd", "ThinkingStart", "ThinkingDelta", "ThinkingEnd",
    ]  # fmt: skip
    assert deltas[4] == ThinkingDelta(1, "tu")
    assert [delta.stop_reason for delta in (deltas[2], deltas[5])] == ["retryable", "retryable"]
    assert message.tool_calls == ()


@given(plan=plans())
async def test_g04_deltas_reassemble_exactly(plan: Plan) -> None:
    """Joined deltas are the block's text; the blocks that count, in order, are the final content."""
    for deltas, message in replies_of((await played(plan)).events):
        texts: dict[int, list[str]] = {}
        blocks = []
        for delta in deltas:
            if isinstance(delta, TextDelta | ThinkingDelta | ToolCallDelta):
                texts.setdefault(delta.index, []).append(delta.text)
            elif type(delta) in END_OF.values():
                block = delta.block
                text = "".join(texts.get(delta.index, []))
                said = (
                    getattr(block, "text", None) or getattr(block, "thinking", None) or getattr(block, "arguments", "")
                )
                assert text == said
                if not isinstance(delta, ToolCallEnd) or delta.stop_reason == "completed":
                    blocks.append(block)
            elif isinstance(delta, BlockAdded):
                blocks.append(delta.block)
        assert tuple(blocks) == message.content


@given(plan=plans(), late=st.booleans())
async def test_g05_the_snapshot_is_the_message_rebuilt_from_the_deltas(plan: Plan, late: bool) -> None:
    """`MessageUpdate.message` is what the deltas up to it make, read at once or after the run."""
    world = World(plan)
    world.start()
    early = []
    while (event := await world.step()) is not None:
        if isinstance(event, MessageUpdate) and not late:
            early.append(event.message)
    header, blocks, at = None, [], 0
    for event in world.events:
        if isinstance(event, MessageStart) and isinstance(event.message, AssistantMessage):
            header, blocks = event.message, []
        elif isinstance(event, MessageUpdate):
            blocks = rebuilt(blocks, event.delta)
            message = event.message if late else early[at]
            at += 1
            assert header is not None
            assert message == AssistantMessage(
                tuple(block for block in blocks if block is not None), provider=header.provider, model=header.model
            )


def rebuilt(blocks: list[Any], delta: Any) -> list[Any]:
    """An independent, slow fold of one delta."""
    from agentloop import Text, Thinking

    fresh = {"TextStart": lambda: Text(""), "ThinkingStart": lambda: Thinking("")}
    name = type(delta).__name__
    if name in fresh:
        return [*blocks, fresh[name]()]
    if name == "ToolCallStart":
        return [*blocks, ToolCall(delta.id, delta.name, "")]
    if name == "BlockAdded":
        return [*blocks, delta.block]
    *before, last = blocks
    if name == "TextDelta":
        return [*before, Text(last.text + delta.text)]
    if name == "ThinkingDelta":
        return [*before, Thinking(last.thinking + delta.text)]
    if name == "ToolCallDelta":
        return [*before, ToolCall(last.id, last.name, last.arguments + delta.text)]
    return [*before, delta.block if name != "ToolCallEnd" or delta.stop_reason == "completed" else None]


@given(plan=plans(asks=None))
async def test_g06_a_tool_runs_only_after_its_reply_is_committed(plan: Plan) -> None:
    """When a tool's first line runs, RequestEnd(completed) of its reply has been consumed."""
    world = await played(plan)
    for kind, id, seen, _ in world.effects:
        if kind != "tool":
            continue
        before = world.events[:seen]
        committed = [
            [call.id for call in message.tool_calls]
            for event in before
            if isinstance(event, MessageEnd) and isinstance(message := event.message, AssistantMessage)
            and message.stop_reason == "completed"
        ]  # fmt: skip
        assert any(id in ids for ids in committed)
        assert isinstance([e for e in before if isinstance(e, RequestBegin | RequestEnd)][-1], RequestEnd)


@given(plan=plans())
async def test_g07_every_complete_call_is_answered_once_in_its_turn(plan: Plan) -> None:
    """Of the last attempt's reply each complete call has one start, one end, one result; all ids are unique."""
    world = await played(plan)
    turns: list[list[Any]] = []
    for event in world.events:
        if isinstance(event, TurnStart):
            turns.append([])
        elif turns:
            turns[-1].append(event)
    for turn in turns:
        replies = [reply for _, reply in replies_of(turn)]
        ends = [event for event in turn if isinstance(event, RequestBegin)]
        last = replies[-1] if replies and len(replies) == len(ends) else None
        wanted = _calls_of_last_attempt(turn) if last is None else [call.id for call in last.tool_calls]
        for kind in (ToolExecutionStart, ToolExecutionEnd):
            assert Counter(e.tool_call_id for e in turn if isinstance(e, kind)) == Counter(wanted)
        results = [
            e.message.tool_call_id
            for e in turn
            if isinstance(e, MessageEnd) and isinstance(e.message, ToolResultMessage)
        ]
        assert results == wanted
    ids = [event.delta.id for event in world.of(MessageUpdate) if isinstance(event.delta, ToolCallStart)]
    assert len(ids) == len(set(ids))


def _calls_of_last_attempt(turn: list[Any]) -> list[str]:
    """The last attempt had no reply, or no attempt was made."""
    begins = [n for n, event in enumerate(turn) if isinstance(event, RequestBegin)]
    after = turn[begins[-1] :] if begins else []
    return [call.id for _, reply in replies_of(after) for call in reply.tool_calls]


async def test_g07_the_first_owner_keeps_its_id() -> None:
    """Repeated ids become id#2, id#3, …, also against the context; a missing one is made."""
    calls = [ToolCallChunk("{}", id, "ok", index) for index, id in enumerate(["z", "z", "", "c"])]
    model = ScriptedModel([[*calls, Finish("tool_use")], "done"])
    context = Context(messages=[user("hi"), assistant(ToolCall("c", "gone", "{}"))])
    config = Config(model=model, new_id=iter(["c", "fresh"]).__next__)
    events = await collect(agent_loop(["go"], context, config))
    check(events)
    reply = next(m for _, m in replies_of(events))
    assert [call.id for call in reply.tool_calls] == ["z", "z#2", "fresh", "c#2"]
    shown = model.requests[1].messages
    assert [m.tool_call_id for m in shown if isinstance(m, ToolResultMessage)] == ["c", "z", "z#2", "fresh", "c#2"]


@given(plan=plans())
async def test_g08_ends_by_completion_results_in_call_order(plan: Plan) -> None:
    """Result messages come in call order, each right after the end that released it."""
    world = await played(plan)
    order: list[str] = []
    ended: set[str] = set()
    answered: list[str] = []
    for event in world.events:
        if isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
            order, ended, answered = [call.id for call in event.message.tool_calls], set(), []
        elif isinstance(event, ToolExecutionEnd):
            assert answered == _released(order, ended), "a result came late"
            ended.add(event.tool_call_id)
        elif isinstance(event, MessageStart) and isinstance(event.message, ToolResultMessage):
            answered.append(event.message.tool_call_id)
            assert answered == order[: len(answered)]


def _released(order: list[str], ended: set[str]) -> list[str]:
    out: list[str] = []
    for id in order:
        if id not in ended:
            break
        out.append(id)
    return out


async def test_g08_completion_order() -> None:
    """The call that ends first has its end first, whatever the call order."""
    world = World(Plan(replies=([*map(_call, ("slow", "ok"))], "done")))
    await world.play()
    assert [e.tool_name for e in world.of(ToolExecutionEnd)] == ["ok", "slow"]
    results = [e.message.tool_name for e in world.of(MessageEnd) if isinstance(e.message, ToolResultMessage)]
    assert results == ["slow", "ok"]


def _call(name: str) -> Any:
    from agentloop.testing import call

    return call(name)


@given(plan=plans())
async def test_g09_nothing_of_a_call_after_its_end(plan: Plan) -> None:
    """No update after the end, also when the tool goes on reporting."""
    world = await played(plan)
    over: set[str] = set()
    for event in world.events:
        if isinstance(event, ToolExecutionUpdate):
            assert event.tool_call_id not in over
        elif isinstance(event, ToolExecutionEnd):
            over.add(event.tool_call_id)


async def test_g09_late_reports_are_dropped() -> None:
    """A kept context reports after the end of its call and of the run: dropped, without an error or a wait."""
    from agentloop import ToolContext, tool

    kept: list[ToolContext] = []

    @tool
    async def keeps(ctx: ToolContext) -> str:
        """Keep the context."""
        kept.append(ctx)
        ctx.progress("in time")
        return "ok"

    model = ScriptedModel([[_call("keeps"), _call("keeps")], "done"])
    events = []
    async for event in agent_loop(["go"], Context(tools=[keeps]), Config(model=model)):
        events.append(event)
        if isinstance(event, ToolExecutionEnd):
            for ctx in kept:
                ctx.progress("late")
                await ctx.output("late")
    kept[0].progress("later still")
    await kept[0].output("later still")
    check(events)
    updates = [e for e in events if isinstance(e, ToolExecutionUpdate)]
    ends = {e.tool_call_id: n for n, e in enumerate(events) if isinstance(e, ToolExecutionEnd)}
    assert [u.partial_result.text for u in updates if u.partial_result] == ["in time", "in time"]
    assert all(n < ends[e.tool_call_id] for n, e in enumerate(events) if isinstance(e, ToolExecutionUpdate))


@given(plan=plans(max_turns=None))
async def test_g10_completed_if_and_only_if_committed(plan: Plan) -> None:
    """RequestEnd says completed exactly when the reply is; uncommitted replies are in no later request."""
    world = await played(plan)
    reply: AssistantMessage | None = None
    uncommitted: list[AssistantMessage] = []
    for event in world.events:
        if isinstance(event, RequestBegin):
            reply = None
        elif isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
            reply = event.message
        elif isinstance(event, RequestEnd):
            if reply is not None:
                assert (event.status == "completed") == (reply.stop_reason == "completed")
            if event.status != "completed" and reply is not None:
                uncommitted.append(reply)
    for request in world.model.requests:
        assert all(m.stop_reason == "completed" for m in request.messages if isinstance(m, AssistantMessage))
    if world.end.stop_reason == "completed":
        assert not [m for m in world.end.messages if m in uncommitted]


@given(plan=plans())
async def test_g11_agent_end_lists_what_was_kept(plan: Plan) -> None:
    """Inputs, committed replies with their results, and the last attempt's when the run did not complete; in order."""
    world = await played(plan)
    kept: list[Any] = []
    attempt: list[Any] = []
    committed = True
    for event in world.events:
        if isinstance(event, RequestBegin):
            attempt, committed = [], False
        elif isinstance(event, MessageEnd):
            (kept if committed else attempt).append(event.message)
        elif isinstance(event, RequestEnd) and event.status == "completed":
            kept += attempt
            attempt, committed = [], True
        elif isinstance(event, TurnEnd):
            if world.end.stop_reason != "completed" and not committed:
                kept += attempt
            attempt, committed = [], True
    assert list(world.end.messages) == kept


async def test_g11_prompts_of_the_caller_are_the_first() -> None:
    """A continued run reports only what it added."""
    context = Context(messages=[user("a"), assistant("b", finish_reason="pause")])
    events = await collect(agent_loop_continue(context, Config(model=ScriptedModel(["c"]))))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert [type(m) for m in end.messages] == [AssistantMessage]
    assert isinstance(context.messages[0], UserMessage)
