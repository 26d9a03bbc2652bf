"""What a run may begin with: new messages, a context to go on from, a compaction alone; and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import (
    Config,
    Context,
    ToolExecutionStart,
    ToolResultMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    compact,
    tool,
    user,
)
from agentloop.compaction import Summarize
from agentloop.grammar import check
from agentloop.messages import AssistantMessage, ToolCall
from agentloop.testing import ScriptedModel, collect

pytestmark = pytest.mark.anyio

GO = user("go")
A, B = ToolCall("a", "work", "{}"), ToolCall("b", "work", "{}")
DONE = ToolResultMessage("a", "work", "done")


@tool
async def work() -> str:
    """Work."""
    return "ok"


async def continued(*messages: Any, prompts: Any = ()) -> tuple[list[Any], list[Any]]:
    """The events of a run that goes on from these messages, and the messages of its first request."""
    model = ScriptedModel(["done"])
    events = await collect(agent_loop_continue(Context(None, messages, (work,)), Config(model=model), prompts))
    check(events)
    return list(events), list(model.requests[0].messages)


def started(events: list[Any]) -> list[str]:
    return [event.tool_call_id for event in events if isinstance(event, ToolExecutionStart)]


async def test_a_reply_that_was_not_committed_is_asked_again() -> None:
    """It and its results are left out; what stood before stays."""
    cut = assistant("cut", A, stop_reason="retryable")
    events, asked = await continued(GO, cut, DONE)
    assert (asked, started(events)) == ([GO], [])
    events, asked = await continued(GO, cut)
    assert (asked, started(events)) == ([GO], [])


@pytest.mark.parametrize(("results", "runs"), [((), ["a", "b"]), ((DONE,), ["b"])])
async def test_open_calls_of_the_last_reply_run_first(results: tuple[Any, ...], runs: list[str]) -> None:
    """Those without a result, in call order; an input behind them waits for its turn."""
    reply = assistant("both", A, B)
    events, asked = await continued(GO, reply, *results, prompts="more")
    assert started(events) == runs
    assert asked[:2] == [GO, reply]
    assert [message.tool_call_id for message in asked[2:4]] == ["a", "b"]
    assert asked[4:] == [user("more")]


async def test_answered_calls_pauses_and_inputs_are_something_to_go_on_with() -> None:
    """The model is asked from the context as it stands, with the new messages behind it."""
    pause = AssistantMessage("wait", "completed", "pause")
    both = (assistant("both", A, B), DONE, ToolResultMessage("b", "work", "done"))
    for messages, prompts in (
        ((GO, assistant(A), DONE), ()),
        ((GO, *both), ()),
        (both, ()),
        ((GO, pause), ()),
        ((GO, AssistantMessage("cut", "completed", "length")), "2"),
        ((GO,), ()),
        ((GO, assistant("1")), "2"),
    ):
        events, asked = await continued(*messages, prompts=prompts)
        assert started(events) == []
        assert asked == [*messages, *([user(prompts)] if prompts else [])]


async def test_an_earlier_reply_is_none_to_go_on_with() -> None:
    """Calls that an input left behind are answered in the request only, and a reply that was cut stays where it stood."""
    events, _ = await continued(GO, assistant(A), user("never mind"))
    assert started(events) == []
    _, asked = await continued(GO, assistant("1"), user("more"))
    assert asked == [GO, assistant("1"), user("more")]


async def test_new_messages_alone_may_begin_a_context() -> None:
    """An empty context with prompts is a run as any other."""
    _, asked = await continued(prompts=["hello"])
    assert asked == [user("hello")]


MODEL = Config(model=ScriptedModel(["never"]))


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (lambda: agent_loop_continue(Context(), MODEL), ValueError,
         "context.messages: expected messages to go on from, got none"),
        (lambda: agent_loop_continue(Context(messages=[assistant("cut", stop_reason="fatal")]), MODEL), ValueError,
         "context.messages: expected messages to go on from, got none"),
        (lambda: agent_loop_continue(Context(messages=[GO, assistant("1")]), MODEL), ValueError,
         "context.messages[1]: expected something to go on with, got a complete reply; use agent_loop with a new message"),
        *[(lambda finish=finish: agent_loop_continue(
            Context(messages=[GO, AssistantMessage((A,), "completed", finish)]), MODEL), ValueError,
           "context.messages[1]: expected calls that may run, got calls of a reply that ended in"
           f" {finish!r}; use agent_loop with a new message") for finish in ("length", "refusal", "content_filter")],
        (lambda: agent_loop_continue(
            Context(messages=[GO, AssistantMessage("cut", "completed", "length")]), MODEL), ValueError,
         "context.messages[1]: expected something to go on with, got a complete reply; use agent_loop with a new message"),
        (lambda: agent_loop([], Context(), MODEL), ValueError,
         "messages: expected messages, or a context that has some; got neither"),
        (lambda: agent_loop([GO, assistant("1")], Context(), MODEL), TypeError,
         "messages[1]: expected an input, got a reply; what was said stands in the context"),
        (lambda: agent_loop(["go"], Context(tools=[work, work]), MODEL), ValueError,
         "context.tools: expected one tool of each name, got two named 'work'"),
        (lambda: agent_loop(["go"], [GO], MODEL), TypeError, "context: expected a Context, got list"),  # type: ignore[arg-type]
        (lambda: agent_loop(None, Context(), MODEL), TypeError, "messages: expected messages or text, got NoneType"),  # type: ignore[arg-type]
        (lambda: agent_loop(["go"], Context(), None), TypeError, "config: expected a Config, got NoneType"),  # type: ignore[arg-type]
        (lambda: compact(Context(messages=[GO]), MODEL), ValueError,
         "config.compaction: expected a compaction, got None"),
        (lambda: compact(Context(), Config(model=ScriptedModel([]), compaction=Summarize())), ValueError,
         "context.messages: expected messages to compact, got none"),
        (lambda: compact(Context(messages=[GO]), None), TypeError, "config: expected a Config, got NoneType"),  # type: ignore[arg-type]
        (lambda: compact([GO], Config(model=ScriptedModel([]), compaction=Summarize())), TypeError,  # type: ignore[arg-type]
         "context: expected a Context, got list"),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_run_is_refused_by_its_first_step(run: Any, error: type[Exception], words: str) -> None:
    """With the place, what was expected and what came; the model is not asked."""
    with pytest.raises(error) as caught:
        await anext(run())
    assert words in str(caught.value)


async def test_a_run_says_where_it_is() -> None:
    """Not started, alive, ended, closed; with the turns that its loop has begun (events are handed over in batches)."""
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["done"])))
    assert repr(run) == "<Run not started>"
    await anext(run)
    assert repr(run) == "<Run alive, 1 turns>"
    async for _ in run:
        pass
    assert repr(run) == "<Run closed, 1 turns>"
    await run.aclose()
    assert repr(run) == "<Run closed, 1 turns>"
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["done"])))
    await run.aclose()
    assert repr(run) == "<Run closed>"


async def test_no_messages_ask_from_the_context_as_it_stands() -> None:
    """An empty list is no error where the context has messages."""
    model = ScriptedModel(["done"])
    check(await collect(agent_loop([], Context(messages=[GO]), Config(model=model))))
    assert list(model.requests[0].messages) == [GO]


async def test_nothing_is_sent_into_a_run() -> None:
    """It is stepped like an async generator, but takes no values; what is thrown into it comes out and ends it."""
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["done"])))
    with pytest.raises(TypeError, match="expected None, got int: nothing can be sent in"):
        await run.asend(1)  # type: ignore[arg-type]
    assert await run.asend(None) is not None
    with pytest.raises(KeyError):
        await run.athrow(KeyError("thrown"))
    assert repr(run) == "<Run closed, 1 turns>"
    with pytest.raises(StopAsyncIteration):
        await anext(run)
    with pytest.raises(KeyError, match=r"^$"):
        await run.athrow(KeyError)
    with pytest.raises(KeyError, match="'thrown'"):
        await run.athrow(KeyError, "thrown")


async def test_there_is_no_wait_to_skip_where_none_goes_on() -> None:
    """Neither before the first step, nor in a turn, nor at the end."""
    run = agent_loop(["go"], Context(), Config(model=ScriptedModel(["done"])))
    assert run.skip_wait() is False
    async for _ in run:
        assert run.skip_wait() is False
    assert run.skip_wait() is False
