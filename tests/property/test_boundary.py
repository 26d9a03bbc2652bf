"""G14 to G17: what the model sees, and what comes back to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentEnd,
    AssistantMessage,
    Config,
    Context,
    CustomMessage,
    MessageEnd,
    ModelError,
    RequestBegin,
    RequestEnd,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    agent_loop,
    assistant,
    user,
)
from agentloop.grammar import check
from agentloop.model import BlockChunk, Finish, ThinkingChunk
from agentloop.testing import ScriptedModel, call, collect, thinking

from .world import Plan, World, plans

pytestmark = pytest.mark.anyio


@attrs.frozen
class Notice(CustomMessage):
    """A message for the screen."""

    role: ClassVar[str] = "notice"
    text: str


@attrs.define
class Mutable(CustomMessage):
    """A custom message that can be changed."""

    role: ClassVar[str] = "mutable"
    tags: list[str] = attrs.field(factory=list)


@given(plan=plans())
async def test_g14_transforms_once_an_attempt_and_in_order(plan: Plan) -> None:
    """`transform_context`, then `convert_to_llm`, once for each attempt that got that far."""
    world = World(plan)
    asked: list[str] = []

    def transform(messages: Sequence[Any]) -> Sequence[Any]:
        asked.append("transform")
        return messages

    async def convert(messages: Sequence[Any]) -> Sequence[Any]:
        asked.append("convert")
        return messages

    await world.play(transform_context=transform, convert_to_llm=convert)
    attempts = len(world.of(RequestBegin))
    assert asked == ["transform", "convert"] * (len(asked) // 2) + ["transform"] * (len(asked) % 2)
    assert asked.count("convert") <= asked.count("transform") <= attempts
    if world.end.stop_reason != "aborted":
        assert asked.count("transform") == attempts


async def test_g14_transforms_work_on_copies() -> None:
    """What a transform does to its list and to a custom message changes neither history, nor events, nor the caller's."""
    mine = Mutable(["kept"])
    context = Context(messages=[user("one"), mine, assistant("two")])

    def transform(messages: Any) -> Any:
        for message in messages:
            if isinstance(message, Mutable):
                message.tags.append("changed")
        messages.clear()
        return [user("rewritten")]

    model = ScriptedModel(["a", "b"])
    config = Config(model=model, transform_context=transform, get_follow_up_messages=iter([["again"], None]).__next__)
    events = await collect(agent_loop(["go"], context, config))
    check(events)
    assert [[m.text for m in request.messages] for request in model.requests] == [["rewritten"], ["rewritten"]]  # type: ignore[union-attr]
    assert mine.tags == ["kept"]
    assert context == Context(messages=[user("one"), mine, assistant("two")])
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert [m.text for m in end.messages] == ["go", "a", "again", "b"]  # type: ignore[union-attr]


async def test_g14_without_a_callback_requests_share_the_history() -> None:
    """A request is a view of the history as it stood: it does not grow afterwards."""
    views = []

    async def model(request: Any) -> Any:
        views.append(request.messages)
        yield "reply"
        yield Finish("stop")

    config = Config(model=model, get_follow_up_messages=iter([["more"], None]).__next__)
    await collect(agent_loop(["go"], Context(), config))
    assert [len(view) for view in views] == [1, 3]
    with pytest.raises((TypeError, AttributeError)):
        views[0][0] = user("changed")


async def test_g15_a_custom_message_is_shown_and_kept_but_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """It is in events and AgentEnd; in a request only if convert_to_llm put it there; each dropped role is logged once."""
    notice = Notice("hello")
    for convert, sent in ((None, ["go"]), (lambda ms: [user(m.text) for m in ms], ["hello", "go"])):
        model = ScriptedModel(["a"])
        with caplog.at_level(logging.INFO, logger="agentloop"):
            events = await collect(agent_loop([notice, "go"], Context(), Config(model=model, convert_to_llm=convert)))
        check(events)
        assert [m.text for m in model.requests[0].messages] == sent  # type: ignore[union-attr]
        assert [e.message for e in events if isinstance(e, MessageEnd)][0] == notice
        end = events[-1]
        assert isinstance(end, AgentEnd)
        assert end.messages[0] == notice


def assert_legal(messages: Sequence[Any]) -> None:
    """Each call is followed by its result in call order; no orphan, nothing empty, arguments are objects."""
    assert messages
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            assert waiting, "an orphan"
            assert waiting.pop(0) == message.tool_call_id
        else:
            assert not waiting, "a call without its result"
            assert isinstance(message, UserMessage | AssistantMessage)
        assert any(
            getattr(b, "text", "x").strip() or b.fidelity for b in message.content if not isinstance(b, Text)
        ) or any(b.text.strip() or b.fidelity for b in message.content if isinstance(b, Text))
        if isinstance(message, AssistantMessage):
            assert message.stop_reason == "completed"
            assert message.finish_reason not in ("refusal", "content_filter")
            for block in message.tool_calls:
                assert isinstance(json.loads(block.arguments), dict)
            waiting = [block.id for block in message.tool_calls]
    assert not waiting


blocks = st.sampled_from(
    [Text(""), Text("hi"), Thinking("t"), Text("", {"k": 1}), ToolCall("a", "ok", "{}"), ToolCall("b", "ok", "[")]
)
messages = st.one_of(
    st.builds(UserMessage, st.lists(st.sampled_from([Text(""), Text("u")]), max_size=2)),
    st.builds(
        AssistantMessage, st.lists(blocks, max_size=3),
        st.sampled_from(["completed", "completed", "aborted", None]), st.sampled_from(["stop", "tool_use", "refusal", None]),
    ),
    st.builds(ToolResultMessage, st.sampled_from(["a", "b"]), st.just("ok"), st.sampled_from(["", "r"])),
    st.builds(Notice, st.just("n")),
)  # fmt: skip


@given(history=st.lists(messages, max_size=6), plan=plans(), prune=st.integers(0, 3))
async def test_g16_every_request_is_legal(history: list[Any], plan: Plan, prune: int) -> None:
    """Whatever the context holds, the transform drops and the run goes through."""
    world = World(plan)
    context = Context(messages=history, tools=world.tools())
    transform = (lambda ms: list(ms)[prune:]) if prune else None
    world.start(context, transform_context=transform)
    while await world.step() is not None:
        pass
    check(world.events)
    for request in world.model.requests:
        assert_legal(request.messages)
        assert [spec.name for spec in request.tools] == [tool.name for tool in context.tools]


async def test_g16_what_cannot_be_made_legal_asks_nobody() -> None:
    """A transform that leaves nothing ends the attempt `fatal`, `invalid_input`, without a call of the model."""
    model = ScriptedModel(["never"])
    events = await collect(agent_loop(["go"], Context(), Config(model=model, transform_context=lambda messages: [])))
    check(events)
    ends = [e for e in events if isinstance(e, RequestEnd)]
    assert [(e.status, e.error_code) for e in ends] == [("fatal", "invalid_input")]
    assert model.requests == []
    end = events[-1]
    assert isinstance(end, AgentEnd)
    with pytest.raises(ModelError):
        end.raise_for_error()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(fidelity=st.dictionaries(st.text(max_size=4), json_values, min_size=1, max_size=4))
async def test_g17_fidelity_comes_back_deep_equal(fidelity: dict[str, Any]) -> None:
    """Key order and number types included, through blocks, the message, a tool round and a retry."""
    model = ScriptedModel([
        [
            thinking("t", fidelity=fidelity),
            BlockChunk(Text("", fidelity)),
            call("gone", fidelity=fidelity),
            Finish("tool_use", fidelity),
        ],
        ModelError("network", "gone"),
        [ThinkingChunk("x"), "done"],
    ])  # fmt: skip
    from agentloop import Retry

    events = await collect(agent_loop(["go"], Context(), Config(model=model, retry=Retry(waits=(0,)))))
    check(events)
    wanted = json.dumps(fidelity)
    for request in model.requests[1:]:
        reply = next(m for m in request.messages if isinstance(m, AssistantMessage))
        sent = [block.fidelity for block in reply.content if not isinstance(block, type(None))]  # type: ignore[union-attr]
        assert [json.dumps(value) for value in (*sent, reply.fidelity)] == [wanted] * 4
