"""Compaction as the loop runs it: before a turn, after the last one, alone; given up, interrupted, dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    AssistantMessage,
    CompactionBegin,
    CompactionEnd,
    CompactionState,
    Config,
    Context,
    CustomMessage,
    MessageUpdate,
    RequestEnd,
    Retry,
    ToolCallEnd,
    ToolExecutionEnd,
    ToolResultMessage,
    UserMessage,
    agent_loop,
    assistant,
    compact,
    user,
)
from agentloop.grammar import check
from agentloop.messages import Usage
from agentloop.model import Finish, UsageChunk
from agentloop.testing import ScriptedModel, VirtualClock, call, collect

pytestmark = pytest.mark.anyio


@attrs.define
class Summarise:
    """A compaction that is due from so many tokens on."""

    threshold: int = 100
    mode: Any = "summarize"
    asked: list[tuple[int, bool]] = attrs.field(factory=list)

    def due(self, state: CompactionState) -> Any:
        self.asked.append((state.context, state.at_end))
        return "context" if state.context >= self.threshold else None

    def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
        return [user(f"Summarise{'' if problem is None else ': ' + problem}")]

    def accept(self, reply: AssistantMessage) -> str | None:
        return reply.text or None

    def summary(self, text: str) -> UserMessage:
        return user(f"[summary] {text}")


BIG = UsageChunk(Usage(0, 100, 0))


async def played(model: ScriptedModel, compaction: Any, **changes: Any) -> tuple[list[Any], AgentEnd]:
    config = Config(model=model, compaction=compaction, clock=VirtualClock(), **changes)
    events = await collect(agent_loop(["go"], Context(), config))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return events, end


def texts(messages: Sequence[Any]) -> list[str]:
    return [message.text for message in messages]


async def test_before_a_turn_the_summary_alone_starts_the_new_context() -> None:
    """Mid-task: the old context is asked with the results, the next request shows the summary alone, the task goes on."""
    model = ScriptedModel([[call("x"), BIG], ["short"], "done"])
    events, end = await played(model, Summarise())
    assert texts(model.requests[1].messages)[-1] == "Summarise"
    assert isinstance(model.requests[1].messages[2], ToolResultMessage)
    assert texts(model.requests[2].messages) == ["[summary] short"]
    assert (end.stop_reason, end.replaces_context, end.pending_summary) == ("completed", True, None)
    assert texts(end.messages) == ["[summary] short", "done"]
    assert [type(e).__name__ for e in events].count("CompactionEnd") == 1


async def test_after_the_last_turn_the_summary_is_pending() -> None:
    """At the end nobody takes the summary: AgentEnd hands it on."""
    model = ScriptedModel([["answer", BIG], "short"])
    _, end = await played(model, Summarise())
    assert end.stop_reason == "completed"
    assert end.pending_summary == user("[summary] short")
    assert end.messages == ()
    assert end.replaces_context


async def test_it_fires_at_equality_and_not_below() -> None:
    """A threshold of 101 is not reached by 100 tokens; the check was made with the figure and at the end."""
    compaction = Summarise(threshold=101)
    events, end = await played(ScriptedModel([["answer", BIG]]), compaction)
    assert compaction.asked == [(100, True)]
    assert not [e for e in events if isinstance(e, CompactionBegin)]
    assert not end.replaces_context


async def test_discard_waits_for_the_end_and_asks_nobody() -> None:
    """Mid-task nothing happens; at the end the context is dropped without a request."""
    model = ScriptedModel([[call("x"), BIG], ["done", BIG]])
    events, end = await played(model, Summarise(mode="discard"))
    kinds = [type(e).__name__ for e in events]
    assert kinds[kinds.index("CompactionBegin") + 1] == "CompactionEnd"
    assert kinds.index("CompactionBegin") > kinds.index("TurnEnd", kinds.index("TurnEnd") + 1)
    assert (len(model.requests), end.messages, end.pending_summary) == (2, (), None)


async def test_an_unusable_reply_is_asked_again_and_its_calls_are_answered() -> None:
    """A call in place of a summary gets an error result; the next prompt says what was wrong; the retry's summary counts."""
    model = ScriptedModel([["answer", BIG], [call("x", id="c")], "short"])
    events, end = await played(model, Summarise())
    assert "called a tool" in texts(model.requests[2].messages)[-1]
    done = [e for e in events if isinstance(e, CompactionEnd)]
    assert [(e.status, e.attempt) for e in done] == [("completed", 2)]
    (refused,) = [e for e in events if isinstance(e, ToolExecutionEnd)]
    assert (refused.error_code, refused.stop_reason, refused.result.text) == (
        "cut_off",
        "fatal",
        "Not run: no tools are used while the conversation is summarised.",
    )
    assert end.pending_summary == user("[summary] short")


@pytest.mark.parametrize("mid_task", [True, False])
async def test_given_up(mid_task: bool) -> None:
    """The context stays; before a further turn the run ends as the compaction did, after the last one it changes nothing."""
    first = [call("x"), BIG] if mid_task else ["answer", BIG]
    model = ScriptedModel([first, RuntimeError("gone"), RuntimeError("gone")])
    events, end = await played(model, Summarise(), retry=Retry(waits=(1,)))
    done = [e for e in events if isinstance(e, CompactionEnd)]
    assert [(e.status, e.error_code) for e in done] == [("retryable", "network")]
    assert end.stop_reason == ("retryable" if mid_task else "completed")
    assert not end.replaces_context
    assert texts(end.messages)[0] == "go"
    assert "Summarise" not in texts(end.messages)


async def test_an_abort_inside_is_compaction_interrupted() -> None:
    """The compaction, the abort and the run's end carry the code; the context stays."""
    signal = AbortSignal()

    def stop(request: Any) -> None:
        signal.abort("enough")

    model = ScriptedModel([["answer", BIG], ["half", stop, "more"]])
    events, end = await played(model, Summarise(), abort=signal)
    done = [e for e in events if isinstance(e, CompactionEnd)]
    assert [(e.status, e.error_code) for e in done] == [("aborted", "compaction_interrupted")]
    assert (end.stop_reason, end.error_code) == ("aborted", "compaction_interrupted")
    assert texts(end.messages)[:2] == ["go", "answer"]


async def test_an_abort_inside_answers_the_calls_of_its_reply() -> None:
    """The reply was whole when the abort came: its call is told of the abort, not of the summary."""
    signal = AbortSignal()
    events: list[Any] = []
    config = Config(model=ScriptedModel([["answer", BIG], call("x")]), compaction=Summarise(), abort=signal)
    async for event in agent_loop(["go"], Context(), config):
        events.append(event)
        if isinstance(event, MessageUpdate) and isinstance(event.delta, ToolCallEnd):
            signal.abort("enough")
    check(events)
    (refused,) = [e for e in events if isinstance(e, ToolExecutionEnd)]
    assert (refused.error_code, refused.stop_reason, refused.result.text) == ("aborted", "aborted", "Not run: enough")


async def test_a_run_of_its_own() -> None:
    """`compact` is a run without a turn; it raises where there is nothing to do."""
    model = ScriptedModel(["short"])
    context = Context(messages=[user("a"), assistant("b")])
    events = await collect(compact(context, Config(model=model, compaction=Summarise())))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert (end.stop_reason, end.replaces_context, end.pending_summary) == ("completed", True, user("[summary] short"))
    assert not [e for e in events if type(e).__name__ == "TurnStart"]
    for broken in (
        compact(context, Config(model=model)),
        compact(Context(), Config(model=model, compaction=Summarise())),
    ):
        with pytest.raises(ValueError, match="expected"):
            await anext(broken)


async def test_a_callback_of_the_compaction_that_raises_ends_the_run() -> None:
    """`due` that fails is `callback_failed`; nothing leaves the run."""

    class Broken(Summarise):
        def due(self, state: CompactionState) -> Any:
            raise ZeroDivisionError("due")

    _, end = await played(ScriptedModel([["answer", BIG]]), Broken())
    assert (end.stop_reason, end.error_code) == ("fatal", "callback_failed")
    assert isinstance(end.exception, ZeroDivisionError)


async def test_a_custom_message_that_convert_left_in_is_an_error_and_not_lost() -> None:
    """What `convert_to_llm` returns goes to the model or is refused: a custom message in it is `invalid_input`."""

    @attrs.frozen
    class Notice(CustomMessage):
        role: ClassVar[str] = "notice"
        text: str

    config = Config(model=ScriptedModel(["never"]), convert_to_llm=lambda messages: messages)
    events = await collect(agent_loop([Notice("x"), "go"], Context(), config))
    check(events)
    (end,) = [e for e in events if isinstance(e, RequestEnd)]
    assert (end.status, end.error_code) == ("fatal", "invalid_input")
    assert "notice" in (end.error_message or "").lower() or "Notice" in (end.error_message or "")


async def test_nothing_is_read_after_an_abort_that_the_stream_itself_saw() -> None:
    """With any read-ahead, no chunk after the abort is shown (G21)."""
    signal = AbortSignal()

    async def model(request: Any) -> Any:
        yield "a"
        signal.abort("now")
        yield "b"
        yield Finish("stop")

    events = await collect(agent_loop(["go"], Context(), Config(model=model, abort=signal)))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert texts(end.messages) == ["go", "a"]
    assert end.stop_reason == "aborted"
