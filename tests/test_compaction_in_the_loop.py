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
    MessageEnd,
    RequestEnd,
    Retry,
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
    model = ScriptedModel([["answer", BIG], [call("x"), Finish("tool_use"), lambda request: signal.abort("enough")]])
    events, _ = await played(model, Summarise(), abort=signal)
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
    assert "notice" in (end.error_message or "").lower()


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


# ---------------------------------------------------------------- what the callbacks are told, and what they may say


class Incomparable:
    """What cannot even be compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError


class LikeText:
    """Passes for a text, and is none."""

    @property
    def __class__(self) -> Any:
        return str


@pytest.mark.parametrize("reason", ["context", "turns", "manual"])
async def test_the_reason_is_told(reason: Any) -> None:
    """What `due` gave stands in both events; a run of its own is `manual`."""

    class Due(Summarise):
        def due(self, state: CompactionState) -> Any:
            return reason

    events, _ = await played(ScriptedModel([["answer", BIG], "short"]), Due())
    told = [event.reason for event in events if isinstance(event, CompactionBegin | CompactionEnd)]
    assert told == [reason, reason]
    alone = compact(Context(messages=[user("a")]), Config(model=ScriptedModel(["short"]), compaction=Due()))
    told = [event.reason for event in await collect(alone) if isinstance(event, CompactionBegin | CompactionEnd)]
    assert told == ["manual", "manual"]


async def test_due_sees_the_context_as_it_stands() -> None:
    """Tokens, committed requests and the messages since the last compaction; whether the run would end."""
    seen = []

    class Watching(Summarise):
        def due(self, state: CompactionState) -> Any:
            seen.append((state.context, state.turns, state.at_end, texts(state.messages)))
            return "turns" if state.turns == 2 else None

    model = ScriptedModel([[call("x"), BIG], [call("x"), BIG], "short", ["done", UsageChunk(Usage(0, 7, 0))]])
    events, end = await played(model, Watching())
    (gone,) = [message.text for message in model.requests[1].messages if isinstance(message, ToolResultMessage)]
    assert seen == [
        (100, 1, False, ["go", "", gone]),
        (100, 2, False, ["go", "", gone, "", gone]),
        (7, 1, True, ["[summary] short", "done"]),
    ]
    (begin,) = [event for event in events if isinstance(event, CompactionBegin)]
    assert begin == CompactionBegin("turns", "summarize", 100, 2)
    assert texts(end.messages) == ["[summary] short", "done"]


async def test_each_prompt_knows_its_attempt_and_what_was_wrong_before() -> None:
    """From 1, and from None; the words for an empty reply, a call, no summary, a blank one; the next compaction begins anew."""
    asked: list[tuple[int, str | None]] = []

    class Strict(Summarise):
        def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
            asked.append((attempt, problem))
            return super().prompt(attempt, problem)

        def accept(self, reply: AssistantMessage) -> str | None:
            return {"no": None, "blank": " "}.get(reply.text, reply.text)

    compaction = [Finish("stop"), [call("x")], "no", "blank", "no", "short"]
    model = ScriptedModel([[call("x"), BIG], *compaction, [call("x"), BIG], "short", "done"])
    events, _ = await played(model, Strict())
    assert asked == [
        (1, None),
        (2, "the reply was empty"),
        (3, "the reply called a tool"),
        (4, "the reply held no summary"),
        (5, "the reply held no summary"),
        (6, "the reply held no summary"),
        (1, None),
    ]
    done = [event for event in events if isinstance(event, CompactionEnd)]
    assert [(event.status, event.attempt) for event in done] == [("completed", 6), ("completed", 1)]


async def test_a_compaction_may_say_itself_what_was_wrong() -> None:
    """Its `problem` is asked about a reply that it did not accept, and about no other."""
    judged: list[str] = []
    prompted: list[str | None] = []

    class Explaining(Summarise):
        def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
            prompted.append(problem)
            return super().prompt(attempt, problem)

        def accept(self, reply: AssistantMessage) -> str | None:
            return None if reply.text == "no" else reply.text

        def problem(self, reply: AssistantMessage) -> str:
            judged.append(reply.text)
            return f"{reply.text} is too short"

    await played(ScriptedModel([["answer", BIG], [call("x")], "no", "short"]), Explaining())
    assert judged == ["no"]
    assert prompted == [None, "the reply called a tool", "no is too short"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("due", "now", "the compaction's due: expected None, 'context', 'turns' or 'manual', got 'now'"),
        ("due", True, "the compaction's due: expected None, 'context', 'turns' or 'manual', got bool"),
        (
            "due",
            Incomparable(),
            "the compaction's due: expected None, 'context', 'turns' or 'manual', got Incomparable",
        ),
        ("prompt", 5, "the compaction's prompt: expected inputs or text, got int"),
        ("prompt", [user("lost"), 5], "the compaction's prompt: messages[1]: expected an input or text, got int"),
        ("accept", 5, "the compaction's accept: expected a str, got int"),
        pytest.param("accept", LikeText(), "the compaction's accept: expected a str, got LikeText", id="like"),
        ("problem", 5, "the compaction's problem: expected a str, got int"),
        ("summary", "text", "the compaction's summary: expected a UserMessage, got str"),
    ],
)
async def test_nonsense_of_a_compaction_ends_the_run(name: str, value: Any, words: str) -> None:
    """It says what was expected and what came; the context stays, and no prompt of the compaction is kept."""

    class Odd(Summarise):
        def accept(self, reply: AssistantMessage) -> str | None:
            return None if name == "problem" else reply.text

    changed = type("Changed", (Odd,), {name: staticmethod(lambda *args: value)})
    events, end = await played(ScriptedModel([["answer", BIG], "short"]), changed())
    assert (end.stop_reason, end.error_code, end.error_message) == ("fatal", "callback_failed", words)
    assert isinstance(end.exception, TypeError)
    assert texts(end.messages)[:2] == ["go", "answer"]
    assert not end.replaces_context
    told = [event.message.text for event in events if isinstance(event, MessageEnd) and event.message.role == "user"]
    assert "lost" not in told


async def test_a_prompt_that_says_nothing_asks_the_context_alone() -> None:
    """None is no input; the model is asked all the same."""

    class Silent(Summarise):
        def prompt(self, attempt: int, problem: str | None) -> Any:
            return None

    model = ScriptedModel([["answer", BIG], "short"])
    _, end = await played(model, Silent())
    assert texts(model.requests[1].messages) == ["go", "answer"]
    assert end.pending_summary == user("[summary] short")


async def test_a_summary_that_nobody_makes_is_none() -> None:
    """`summary` gives None: the compaction is given up when its attempts are used up, and the context stays."""

    class Silent(Summarise):
        def summary(self, text: str) -> Any:
            return None

    model = ScriptedModel([["answer", BIG], "short", "short"])
    events, end = await played(model, Silent(), retry=Retry(waits=(1,)))
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    assert (done.status, done.error_code, done.error_message) == (
        "retryable", "malformed", "the model gave no usable summary",
    )  # fmt: skip
    assert (end.stop_reason, end.replaces_context) == ("completed", False)


# ---------------------------------------------------------------- how it ends


async def test_a_context_that_is_dropped_had_no_attempt() -> None:
    """`CompactionEnd` of a `discard` has no attempt and no summary."""
    events, _ = await played(ScriptedModel([["answer", BIG]]), Summarise(mode="discard"))
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    assert done == CompactionEnd("context", "discard", "completed")


@pytest.mark.parametrize("where", ["mid task", "at the end", "alone"])
async def test_the_exception_of_a_compaction_that_was_given_up(where: str) -> None:
    """It is what a run raises that ended by it (G18); one that completed all the same has none."""
    error = ConnectionError("gone")
    if where == "alone":
        context = Context(messages=[user("a"), assistant("b")])
        events: list[Any] = await collect(
            compact(context, Config(model=ScriptedModel([error]), compaction=Summarise(), retry=None))
        )
        check(events)
        end = events[-1]
    else:
        first = [call("x"), BIG] if where == "mid task" else ["answer", BIG]
        events, end = await played(ScriptedModel([first, error]), Summarise(), retry=None)
    if where == "at the end":
        assert (end.stop_reason, end.exception) == ("completed", None)
        end.raise_for_error()
    else:
        assert (end.stop_reason, end.error_code, end.exception) == ("retryable", "network", error)
        with pytest.raises(ConnectionError, match="gone"):
            end.raise_for_error()


async def test_an_abort_in_the_wait_of_a_compaction_is_compaction_interrupted() -> None:
    """Not `backoff_interrupted`: it is any abort inside one."""
    signal = AbortSignal()
    events = []
    model = ScriptedModel([["answer", BIG], ConnectionError("gone"), "never"])
    config = Config(model=model, compaction=Summarise(), clock=VirtualClock(), abort=signal)
    inside = False
    async for event in agent_loop(["go"], Context(), config):
        events.append(event)
        inside = inside or isinstance(event, CompactionBegin)
        if inside and isinstance(event, RequestEnd):
            signal.abort("enough")
    check(events)
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    end = events[-1]
    assert isinstance(end, AgentEnd)
    assert (done.error_code, end.error_code, end.exception) == (
        "compaction_interrupted", "compaction_interrupted", None,
    )  # fmt: skip


async def test_an_abort_while_due_is_asked_begins_no_compaction() -> None:
    """Nor does anything else: the run ends."""
    signal = AbortSignal()

    class Aborting(Summarise):
        def due(self, state: CompactionState) -> Any:
            signal.abort("enough")
            return "context"

    events, end = await played(ScriptedModel([["answer", BIG]]), Aborting(), abort=signal)
    assert not [event for event in events if isinstance(event, CompactionBegin)]
    assert (end.stop_reason, end.error_code) == ("aborted", "user_abort")


@pytest.mark.parametrize("where", ["prompt", "get_tools"])
@pytest.mark.parametrize("how", ["aborts", "fails"])
async def test_a_stop_behind_the_prompt_emits_no_input(where: str, how: str) -> None:
    """An input of a compaction stands before its attempt (grammar): where a stop forbids that, it is not shown either."""
    signal = AbortSignal()
    inside = [False]

    def stop() -> None:
        if how == "fails":
            raise ValueError("broken")
        signal.abort("enough")

    class Stopping(Summarise):
        def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
            inside[0] = True
            if where == "prompt":
                stop()
            return super().prompt(attempt, problem)

    def get_tools() -> None:
        if inside[0]:
            stop()

    model = ScriptedModel([["answer", BIG], "never"])
    events, end = await played(model, Stopping(), abort=signal, get_tools=get_tools)
    kinds = [type(event).__name__ for event in events]
    assert kinds[kinds.index("CompactionBegin") + 1] == "CompactionEnd"
    assert model.asked == 1
    assert end.error_code == ("callback_failed" if how == "fails" else "compaction_interrupted")
    assert texts(end.messages) == ["go", "answer"]
