"""Contexts, and transforms of the history before a request."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, ClassVar

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config import Config
from agentloop.context import (
    Context,
    agent_messages,
    compose,
    different_tools,
    drop_thinking,
    inject,
    keep_last_turns,
    map_role,
    turn_starts,
    within_tokens,
)
from agentloop.convert import default_convert
from agentloop.events import AgentEnd, Event
from agentloop.loop import agent_loop
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    CustomMessage,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    assistant,
    user,
)
from agentloop.model import Finish, ModelChunk, ModelRequest, ToolCallChunk
from agentloop.testing import ScriptedModel
from agentloop.tools import Tool, tool
from tests.costs import lines


@attrs.frozen
class Notice(CustomMessage):
    role: ClassVar[str] = "notice"
    text: str = "disk almost full"


@attrs.frozen
class Loud(Notice):
    role: ClassVar[str] = "loud"


def call(id: str) -> ToolCall:
    return ToolCall(id, "find", "{}")


def result(id: str, text: str = "found") -> ToolResultMessage:
    return ToolResultMessage(id, "find", text)


A, B, C = user("a"), user("b"), user("c")
TURN_A = (A, assistant("1"))
TURN_B = (B, assistant(call("x")), result("x"), assistant("2"))
TURN_C = (C, assistant("3"))


def one_each(message: AgentMessage) -> int:
    return 1


# ---------------------------------------------------------------- contexts


def test_agent_messages_takes_what_callers_write() -> None:
    """A text, a message, a custom message, any iterable of them."""
    assert agent_messages("a") == agent_messages(A) == agent_messages(["a"]) == agent_messages(iter([A])) == (A,)
    assert agent_messages(Notice()) == (Notice(),)
    assert agent_messages([]) == ()


def test_agent_messages_names_the_place_of_what_is_no_message() -> None:
    """With its index and type."""
    with pytest.raises(TypeError, match=r"messages\[1\]: expected a message or text, got dict"):
        agent_messages(["a", {"role": "user"}])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"got dict; user\(…\) and assistant\(…\) make messages$"):
        agent_messages([{"role": "user"}])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"got int$"):
        agent_messages([1])  # type: ignore[list-item]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"role": "user", "content": "hi"}, "dict; user(…) and assistant(…) make messages"),
        (b"hi", "bytes"),
        (None, "NoneType"),
    ],
)
async def test_what_is_no_list_of_messages_is_not_taken_apart(value: Any, words: str) -> None:
    """The keys of a dict are no texts that a model is asked with: not as a history, and not as prompts."""
    expected = re.escape(f"messages: expected messages or text, got {words}")
    with pytest.raises(TypeError, match=rf"^{expected}$"):
        Context(messages=value)
    model = ScriptedModel(["never"])
    with pytest.raises(TypeError, match=rf"^{expected}$"):
        await anext(agent_loop(value, Context(), Config(model=model)))
    assert model.asked == 0


def test_a_system_prompt_is_a_text() -> None:
    """Anything else is refused when the context is made, and not by a provider."""
    assert Context("Be brief.").system_prompt == "Be brief."
    with pytest.raises(TypeError, match=r"^system_prompt: expected a text or None, got list$"):
        Context(["Be brief."])  # type: ignore[arg-type]


def test_a_context_takes_copies_and_checks_them() -> None:
    """Later changes of the caller's list change nothing; what is no tool is named."""
    messages = [A]
    context = Context("be brief", messages)
    messages.append(B)
    assert context.messages == (A,)
    with pytest.raises(TypeError, match=r"^messages: expected messages or text, got int$"):
        Context(messages=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^tools: expected a list of tools, got Tool$"):
        Context(tools=Tool("a", "", {}, print))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tools\[0\]: expected a Tool \(use @tool\), got function"):
        Context(tools=[one_each])


def test_tools_that_are_offered_together_have_different_names() -> None:
    """They come back as a tuple, in their order; a name that comes twice is named, and where."""
    first, second = Tool("a", "", {}, print), Tool("b", "", {}, print)
    assert different_tools([second, first]) == (second, first)
    with pytest.raises(ValueError, match=r"^tools: expected one tool of each name, got two named 'b'$"):
        different_tools([second, first, second])
    with pytest.raises(ValueError, match=r"^here: expected one tool of each name, got two named 'a'$"):
        different_tools([first, first], "here")


# ---------------------------------------------------------------- turns


@pytest.mark.parametrize(
    ("messages", "starts"),
    [
        ((), []),
        ((*TURN_A, *TURN_B, *TURN_C), [0, 2, 6]),
        ((assistant("hello"), *TURN_A, *TURN_B), [0, 3]),  # what stands before the first turn goes with it
        ((Notice(), A, assistant("1"), Notice(), B), [0, 4]),
        ((A, B, Notice(), C, assistant("1"), A), [0, 5]),  # several user messages in a row
        ((A, assistant(call("x"), call("y")), result("x"), B, result("y"), C, assistant("1")), [0, 5]),
        ((A, assistant(call("x")), B, assistant("1")), [0, 2]),  # never answered: nothing to keep together
        ((A, assistant(call("x")), result("x"), B, assistant(call("x")), result("x"), C), [0, 3, 6]),  # one id for all
        ((A, assistant(call("x")), B, assistant(call("y")), C, result("y"), result("x"), A), [0, 7]),
        ((A, assistant(call("x")), assistant(call("y")), result("y"), B, result("x"), C), [0, 6]),
        ((result("x"), A, assistant(call("x")), B), [0, 3]),
    ],
)
def test_turn_starts(messages: tuple[Any, ...], starts: list[int]) -> None:
    """A turn begins at a user message; not between a call and its result."""
    assert turn_starts(messages) == starts


def test_turns_of_a_long_history_take_linear_time() -> None:
    """Ten times the messages, ten times the steps."""

    def steps(turns: int) -> int:
        messages = TURN_B * turns
        return lines(lambda: within_tokens(10**9, one_each)(messages))

    assert steps(500) < 10.5 * steps(50)


# ---------------------------------------------------------------- pruning


@pytest.mark.parametrize(
    ("count", "kept"),
    [(1, TURN_C), (2, TURN_B + TURN_C), (3, TURN_A + TURN_B + TURN_C), (99, TURN_A + TURN_B + TURN_C)],
)
def test_keep_last_turns(count: int, kept: tuple[Any, ...]) -> None:
    """Whole turns from the end."""
    assert keep_last_turns(count)([*TURN_A, *TURN_B, *TURN_C]) == kept


def test_keep_last_turns_refuses_no_turn() -> None:
    """There would be nothing to ask."""
    with pytest.raises(ValueError, match="at least 1 turn, got 0"):
        keep_last_turns(0)


@pytest.mark.parametrize(
    ("budget", "kept"),
    [(8, TURN_A + TURN_B + TURN_C), (7, TURN_B + TURN_C), (6, TURN_B + TURN_C), (5, TURN_C), (2, TURN_C), (0, TURN_C)],
)
def test_within_tokens(budget: int, kept: tuple[Any, ...]) -> None:
    """The newest turns that fit; the last one even if it does not."""
    assert within_tokens(budget, one_each)([*TURN_A, *TURN_B, *TURN_C]) == kept


def test_within_tokens_leaves_no_gap() -> None:
    """A small old turn does not come back where a big newer one did not fit."""
    sizes = {"a": 1, "b": 100, "c": 1}
    kept = within_tokens(10, lambda message: sizes.get(getattr(message, "text", ""), 0))
    assert kept([*TURN_A, *TURN_B, *TURN_C]) == TURN_C


def test_within_tokens_counts_no_more_than_it_must() -> None:
    """Each message at most once, and none beyond the turn that no longer fits."""
    counted: list[AgentMessage] = []

    def count(message: AgentMessage) -> int:
        counted.append(message)
        return 1

    within_tokens(3, count)([*TURN_A * 100, *TURN_B, *TURN_C])
    assert sorted(map(repr, counted)) == sorted(map(repr, TURN_B + TURN_C))


def test_within_tokens_of_nothing_is_nothing() -> None:
    """An empty history stays empty; a negative budget is an error when it is made."""
    assert within_tokens(5, one_each)([]) == ()
    with pytest.raises(ValueError, match="expected a number of tokens, got -1"):
        within_tokens(-1, one_each)


IDS = st.sampled_from("xyz")
MESSAGES = st.one_of(
    st.sampled_from([A, B, C, Notice()]),
    st.builds(result, IDS),
    st.builds(lambda ids: assistant("text", *map(call, ids)), st.lists(IDS, unique=True, max_size=2)),
)


@given(st.lists(MESSAGES, max_size=14), st.integers(1, 4), st.integers(0, 14))
def test_pruning_never_parts_a_call_from_its_result(messages: list[Any], turns: int, budget: int) -> None:
    """Whatever the history: what is kept is its end, begins a turn, and holds both halves of a pair or neither."""
    for prune in (keep_last_turns(turns), within_tokens(budget, one_each)):
        kept = prune(messages)
        cut = len(messages) - len(kept)
        assert list(kept) == messages[cut:]
        assert not messages or cut in turn_starts(messages)
        owners: dict[str, int] = {}
        for index, message in enumerate(messages):
            if isinstance(message, AssistantMessage):
                owners.update((block.id, index) for block in message.tool_calls)
            elif isinstance(message, ToolResultMessage) and message.tool_call_id in owners:
                assert (owners[message.tool_call_id] < cut) == (index < cut)


# ---------------------------------------------------------------- adding, leaving out, mapping


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("start", ("N", *TURN_A, *TURN_B)),
        ("end", (*TURN_A, *TURN_B, "N")),
        ("before_last_user", (*TURN_A, "N", *TURN_B)),
    ],
)
def test_inject(position: Any, expected: tuple[Any, ...]) -> None:
    """At the start, at the end, before the last turn's user message."""
    assert inject("N", position)([*TURN_A, *TURN_B]) == tuple(user("N") if m == "N" else m for m in expected)


def test_inject_before_the_last_user_message_in_odd_histories() -> None:
    """Without one at the start; never between a call and its result; before the first of several in a row."""
    put = inject([Notice()], "before_last_user")
    assert put([]) == (Notice(),)
    assert put([assistant("1")]) == (Notice(), assistant("1"))
    assert put([assistant("1"), A, B]) == (assistant("1"), Notice(), A, B)
    assert put([A, assistant(call("x")), B, result("x")])[0] == Notice()


def test_inject_refuses_unknown_positions_and_wrong_messages() -> None:
    """When it is made, not at the first request."""
    with pytest.raises(ValueError, match="start, end or before_last_user, got 'middle'"):
        inject("N", "middle")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"messages\[0\]"):
        inject([5])  # type: ignore[list-item]


THINKING = Thinking("hm", {"signature": "s"})
DRAWN = InlineThinking("eA==", "image/png")


@pytest.mark.parametrize(
    ("turns", "first", "second", "third"),
    [
        (0, (), (assistant("1"),), (assistant(call("x")),)),
        (1, (), (assistant("1"),), (assistant(THINKING, call("x")),)),
        (2, (), (assistant(THINKING, "1"),), (assistant(THINKING, call("x")),)),
        (3, (assistant(DRAWN),), (assistant(THINKING, "1"),), (assistant(THINKING, call("x")),)),
        (9, (assistant(DRAWN),), (assistant(THINKING, "1"),), (assistant(THINKING, call("x")),)),
    ],
)
def test_drop_thinking(turns: int, first: Any, second: Any, third: Any) -> None:
    """Older turns lose it, a reply of thinking alone goes; the last turns keep theirs unchanged."""
    history = [
        A,
        assistant(DRAWN),
        B,
        assistant(THINKING, "1"),
        Notice(),
        C,
        assistant(THINKING, call("x")),
        result("x"),
    ]
    assert drop_thinking(turns)(history) == (A, *first, B, *second, Notice(), C, *third, result("x"))


def test_drop_thinking_keeps_untouched_replies_as_they_are() -> None:
    """No copy where there is no thinking."""
    reply = assistant("1")
    assert drop_thinking(0)([A, reply])[1] is reply
    with pytest.raises(ValueError, match="0 or more, got -1"):
        drop_thinking(-1)


def test_drop_thinking_leaves_the_turn_that_goes_on_alone_by_default() -> None:
    """Providers want its thinking back; that of the turn before goes."""
    before, now = assistant(THINKING, "1"), assistant(THINKING, call("x"))
    assert drop_thinking()([A, before, B, now]) == (A, assistant("1"), B, now)


def test_map_role_by_role_and_by_class() -> None:
    """By role only that role; by class its subclasses too; a text, several messages, nothing."""
    history = [A, Notice("one"), Loud("two")]
    assert map_role("notice", lambda notice: f"[{notice.text}]")(history) == (A, user("[one]"), Loud("two"))
    assert map_role(Notice, lambda notice: [notice.text, B])(history) == (A, user("one"), B, user("two"), B)
    assert map_role(Loud, lambda _: None)(history) == (A, Notice("one"))


def test_map_role_never_touches_the_models_own_messages() -> None:
    """Even where the role is called like one of theirs."""
    assert map_role("user", lambda _: None)([A, assistant("1")]) == (A, assistant("1"))


# ---------------------------------------------------------------- together


def test_compose_of_sync_transforms_is_sync() -> None:
    """From the first to the last, without a coroutine in between; of none it is the identity."""
    both = compose(keep_last_turns(1), inject("N", "start"), default_convert)
    assert both([*TURN_A, Notice(), *TURN_C]) == (user("N"), *TURN_C)
    assert compose()(TURN_A) == TURN_A


@pytest.mark.anyio
async def test_compose_mixes_sync_and_async() -> None:
    """Wherever the async ones stand, the order holds."""

    async def tag(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        return [*messages, user(f"tag{len(messages)}")]

    given = compose(inject("x"), tag, inject("y"), tag, tag, inject("z"))([A])
    assert isinstance(given, Awaitable)
    assert [m.text for m in await given if isinstance(m, UserMessage)] == ["a", "x", "tag2", "y", "tag4", "tag5", "z"]


@pytest.mark.anyio
async def test_compose_names_the_transform_that_returns_something_else() -> None:
    """None is what comes from a function that changed its list; sync and async alike."""

    def forget(messages: Any) -> Any:
        messages.clear()

    async def forget_later(messages: Any) -> Any:
        return "text"

    with pytest.raises(TypeError, match=r"transforms\[1\] \(forget\): expected a sequence of messages, got NoneType"):
        compose(list, forget)([A])
    with pytest.raises(TypeError, match=r"transforms\[0\] \(forget_later\): .* got str"):
        await compose(forget_later, list)([A])


@given(st.lists(MESSAGES, max_size=14))
def test_transforms_do_not_change_what_they_are_given(messages: list[Any]) -> None:
    """Neither the list nor what stands in it; and each gives a tuple of messages."""
    before = copy.deepcopy(messages)
    for transform in (
        keep_last_turns(2),
        within_tokens(3, one_each),
        inject(["N", Notice()], "before_last_user"),
        drop_thinking(),
        map_role("notice", lambda notice: notice.text),
    ):
        assert isinstance(transform(messages), tuple)
        assert messages == before


def test_messages_cannot_be_changed_by_a_transform() -> None:
    """Cases C020 and C109: whoever gets a message may try."""
    message = assistant(Text("a", {"k": [1]}))
    for change in (
        lambda: setattr(message, "content", ()),
        lambda: setattr(message.content[0], "text", "b"),
        lambda: message.content[0].fidelity.update(k=2),  # type: ignore[union-attr]
        lambda: message.content[0].fidelity["k"].append(2),  # type: ignore[index,union-attr]
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()
    assert message == assistant(Text("a", {"k": [1]}))


# ---------------------------------------------------------------- in a run


class Find:
    """A model that asks for the tool once, then says that it is done; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[AgentMessage, ...]] = []

    async def __call__(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        self.asked.append(tuple(request.messages))
        if any(isinstance(message, ToolResultMessage) for message in request.messages):
            yield "done"
            yield Finish("stop")
        else:
            yield ToolCallChunk("{}", id="x", name="find")
            yield Finish("tool_use")


@tool
async def find() -> str:
    """Find it."""
    return "found"


async def end_of(events: AsyncIterator[Event]) -> AgentEnd:
    last = [event async for event in events][-1]
    assert isinstance(last, AgentEnd)
    return last


def shout(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
    """Changes the list that it was given, and puts other objects into it."""
    assert isinstance(messages, list)
    del messages[:-2]
    for index, message in enumerate(messages):
        if isinstance(message, UserMessage | ToolResultMessage):
            with contextlib.suppress(AttributeError):
                message.content = ()  # type: ignore[misc]
            messages[index] = attrs.evolve(message, content=message.text.upper())
    return messages


@pytest.mark.anyio
async def test_a_transform_changes_the_request_and_nothing_else() -> None:
    """Case C109: requests show the rewritten text; the record and the caller's messages are the original ones."""
    model, mine = Find(), [user("old"), assistant("fine")]
    context = Context(messages=mine, tools=[find])
    end = await end_of(agent_loop([user("go")], context, Config(model=model, transform_context=shout)))
    reply, found = assistant(call("x")), result("x")
    assert [m.text for m in model.asked[0] if isinstance(m, UserMessage)] == ["GO"]
    assert [m.text for m in model.asked[1] if isinstance(m, ToolResultMessage)] == ["FOUND"]
    assert end.messages == (user("go"), reply, found, assistant("done"))
    assert context == Context(messages=[user("old"), assistant("fine")], tools=[find])
    assert mine == [user("old"), assistant("fine")]


@pytest.mark.anyio
async def test_one_context_and_config_serve_many_runs() -> None:
    """Case C113: nothing of the caller's is changed; a second run, and two at once, are like the first."""
    prompts, context = [user("go")], Context("be brief", [user("old"), assistant("fine")], [find])
    config = Config(model=Find(), transform_context=compose(keep_last_turns(1), inject("brief!")))
    before = copy.deepcopy(prompts), attrs.evolve(context), attrs.evolve(config)
    ends = [await end_of(agent_loop(prompts, context, config)) for _ in range(2)]

    async def another() -> None:
        ends.append(await end_of(agent_loop(prompts, context, config)))

    async with anyio.create_task_group() as group:
        group.start_soon(another)
        group.start_soon(another)
    assert len(ends) == 4
    assert all(end.messages == ends[0].messages and end.stop_reason == "completed" for end in ends)
    assert (prompts, context, config) == before
