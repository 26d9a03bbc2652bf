"""`Summarize`, `Discard` and the triggers: when they are due, what they ask, what they take for a summary; in runs and in
traces."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentMessage,
    AssistantMessage,
    CompactionBegin,
    CompactionEnd,
    CompactionState,
    Config,
    Context,
    Event,
    ModelError,
    Retry,
    Run,
    ToolExecutionStart,
    ToolResultMessage,
    UserMessage,
    agent_loop,
    agent_loop_continue,
    assistant,
    compact,
    tool,
    user,
)
from agentloop.compaction import (
    INSTRUCTIONS,
    ContextReaches,
    Discard,
    Manual,
    Summarize,
    Trigger,
    TurnsReach,
    all_of,
    any_of,
    availability,
    mid_task,
    never,
)
from agentloop.convert import make_legal
from agentloop.grammar import check
from agentloop.messages import Text, Usage
from agentloop.model import Finish, ModelRequest, UsageChunk
from agentloop.omni.recorder import record
from agentloop.omni.records import session_meta
from agentloop.omni.resume import reopen
from agentloop.omni.trace import TraceWriter
from agentloop.testing import ScriptedModel, VirtualClock, call, collect

SUMMARY = "[summary]\nTwo files, both read.\n[/summary]"
MARKED = "[context_summary]\nTwo files, both read.\n[/context_summary]"


def usage(tokens: int) -> UsageChunk:
    """What a provider reports of a request."""
    return UsageChunk(Usage(0, tokens, 0))


@tool(replay="safe")
def look() -> str:
    """Look."""
    return "seen"


def state(context: int = 0, turns: int = 0) -> CompactionState:
    """A context of this size."""
    return CompactionState(context, turns, False, ())


def reply(text: str, finish: Any = "stop") -> AssistantMessage:
    """A committed reply."""
    return AssistantMessage((Text(text),), stop_reason="completed", finish_reason=finish)


def texts(messages: Sequence[Any]) -> list[str]:
    """The messages' words."""
    return [message.text for message in messages]


async def played(run: Run) -> tuple[list[Event], AgentEnd]:
    """A whole run, checked against the grammar and its values."""
    events = await collect(run)
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return events, end


def config(model: ScriptedModel, compaction: Any, **changes: Any) -> Config:
    """A config on a clock that takes no time."""
    return Config(model=model, compaction=compaction, clock=VirtualClock(), **changes)


# ---------------------------------------------------------------- when


def test_thresholds_fire_at_equality() -> None:
    """73: due from the number on, not above it only; not below."""
    assert [ContextReaches(100)(state(context=n)) for n in (99, 100, 101)] == [None, "context", "context"]
    assert [TurnsReach(3)(state(turns=n)) for n in (2, 3, 4)] == [None, "turns", "turns"]
    assert never(state(10**9, 10**9)) is None


def test_a_part_of_the_window_is_rounded_up() -> None:
    """The fraction is of the model's window; the threshold is never below it."""
    assert ContextReaches.of_window(200_000) == ContextReaches(160_000)
    assert ContextReaches.of_window(1001, 0.5) == ContextReaches(501)
    for wrong in (0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="fraction: expected"):
            ContextReaches.of_window(1000, wrong)
    for window in (0, True, 1.5, "1000", None):
        with pytest.raises(ValueError, match=r"^window: expected a number of tokens from 1, got "):
            ContextReaches.of_window(window)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [Summarize, Discard])
def test_a_trigger_that_is_none_is_refused(made: Any) -> None:
    """Where it is written, and not when it is asked in the middle of a run."""
    with pytest.raises(
        TypeError, match=rf"^{made.__name__}.when: expected a trigger such as ContextReaches\(…\), got 3$"
    ):
        made(when=3)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
def test_limits_that_are_none_are_refused(wrong: Any) -> None:
    """A threshold is a whole number from 1; the message names the field and what came."""
    for make in (ContextReaches, TurnsReach):
        with pytest.raises(ValueError, match="expected a number from 1, got"):
            make(wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="max_characters: expected"):
            Summarize(max_characters=wrong)
    with pytest.raises(ValueError, match="instructions: expected"):
        Summarize(instructions=" \n")


def test_a_wish_is_taken_once() -> None:
    """`Manual` is due after a request, once; a wish can be taken back."""
    manual = Manual()
    assert manual(state()) is None
    manual.request()
    manual.request()
    assert [manual(state()), manual(state())] == ["manual", None]
    manual.request()
    assert [manual.withdraw(), manual.withdraw(), manual(state())] == [True, False, None]


def test_composition() -> None:
    """`any_of` names the first that is due and asks no further; `all_of` needs all; both nest; of none, none is due."""
    manual = Manual()
    manual.request()
    either = any_of(TurnsReach(2), ContextReaches(10), manual)
    assert [either(state(10, 2)), either(state(10, 1)), either(state()), either(state())] == [
        "turns",
        "context",
        "manual",
        None,
    ]
    both = all_of(ContextReaches(10), TurnsReach(2))
    assert [both(state(10, 1)), both(state(9, 2)), both(state(10, 2))] == [None, None, "context"]
    assert any_of(both, TurnsReach(5))(state(0, 5)) == "turns"
    assert any_of()(state()) is None
    inside = mid_task(TurnsReach(2))
    assert [inside(state(0, 2)), inside(state(0, 1)), inside(CompactionState(0, 2, True, ()))] == ["turns", None, None]
    assert all_of()(state()) is None


def test_a_reason_that_is_none_is_an_error() -> None:
    """A trigger of one's own that says something else is told so."""
    for compaction in (Summarize(when=lambda state: "soon"), Discard(when=lambda state: True)):  # type: ignore[arg-type,return-value]
        with pytest.raises(ValueError, match="when: expected 'context', 'turns', 'manual' or None, got"):
            compaction.due(state())


# ---------------------------------------------------------------- what is a summary


@pytest.mark.parametrize(
    ("said", "summary"),
    [
        (SUMMARY, "Two files, both read."),
        ("Here: [summary] a [/summary] and [summary] b [/summary]", "a"),
        ("[summary] [/summary][summary]b[/summary]", "b"),
        ("no tags at all ", "no tags at all"),
        ("[summary] never closed", "never closed"),
        ("<summary>old form</summary>", "old form"),
        ("[summary][/summary]", "[summary][/summary]"),
        (" \n ", None),
        ("", None),
    ],
)
def test_extraction(said: str, summary: str | None) -> None:
    """74, section 17: the first block that is not blank, else what is left without tags, else the text; never blank."""
    assert Summarize().accept(reply(said)) == summary


def test_replies_of_no_use() -> None:
    """Refused, filtered, cut off inside the summary, too long: none is taken, and each has its reason."""
    compaction = Summarize(max_characters=5)
    for said, finish, why in [
        ("I cannot", "refusal", "refused"),
        ("I cannot", "content_filter", "refused"),
        ("[summary] and th", "length", "cut off by the output limit"),
        ("123456", "stop", "6 characters; write one of at most 5"),
        (" ", "stop", "no text"),
    ]:
        assert compaction.accept(reply(said, finish)) is None
        assert why in compaction.problem(reply(said, finish))
    assert compaction.accept(reply("[summary]12345[/summary] and mo", "length")) == "12345"


def test_extraction_takes_linear_time() -> None:
    """A hostile reply of many tags is read in one pass; ten times the text is no hundred times the steps."""

    class Counted(str):
        finds = 0

        def find(self, *args: Any) -> int:
            Counted.finds += 1
            return super().find(*args)

    from agentloop._marks import summary_text

    for said, most in [("[summary] [/summary]" * 1000, 2100), ("[summary]" * 5000, 10), ("[/summary]" * 5000, 10)]:
        Counted.finds = 0
        summary_text(Counted(said))
        assert Counted.finds <= most


def test_the_problem_stands_before_the_instructions() -> None:
    """74: the first attempt has the instructions alone; later ones say first what was wrong."""
    compaction = Summarize(instructions="Sum up.")
    assert texts(compaction.prompt(1, None)) == ["Sum up."]
    assert texts(compaction.prompt(2, "it sang")) == [
        "Your last reply cannot be used as a summary: it sang.",
        "Sum up.",
    ]


def test_by_hand() -> None:
    """Availability: what a compaction by hand could do, before it is tried."""
    done: list[AgentMessage] = [user("a"), assistant("b")]
    assert availability(Context(messages=done), Summarize()) == "ok"
    assert availability(Context(messages=done), None) == "unsupported"
    assert availability(Context(), Summarize()) == "empty"
    assert availability(Context(messages=[user("a")]), Discard()) == "empty"
    cut = AssistantMessage((Text("b"),), stop_reason="aborted")
    assert availability(Context(messages=[user("a"), cut]), Discard()) == "empty"
    assert availability(Context(messages=[user(MARKED), user("next")]), Summarize()) == "just_compacted"
    assert availability(Context(messages=[user(MARKED), *done]), Summarize()) == "ok"


# ---------------------------------------------------------------- in a run


@pytest.mark.anyio
async def test_mid_task() -> None:
    """72: the results ride the request in call order, the summary alone opens the new context, the task goes on."""
    model = ScriptedModel([[call("look"), call("look"), usage(100)], SUMMARY, "done"])
    context = Context(tools=[look])
    events, end = await played(agent_loop("go", context, config(model, Summarize(when=ContextReaches(100)))))
    asked = model.requests[1].messages
    assert [type(m) for m in asked[2:4]] == [ToolResultMessage, ToolResultMessage]
    assert texts(asked)[-1] == INSTRUCTIONS
    assert model.requests[1].tools == model.requests[0].tools
    assert texts(model.requests[2].messages) == [MARKED]
    assert (end.stop_reason, texts(end.messages), end.pending_summary) == ("completed", [MARKED, "done"], None)
    begins = [event for event in events if isinstance(event, CompactionBegin)]
    assert [(b.reason, b.mode, b.context, b.turns) for b in begins] == [("context", "summarize", 100, 1)]


@pytest.mark.anyio
async def test_a_context_that_goes_on_has_had_its_turns() -> None:
    """Turns and size are the context's, not the run's: replies of earlier runs count, by hand as well."""
    old: list[AgentMessage] = [user("a"), AssistantMessage((Text("b"),), "completed", "stop", Usage(0, 70, 7))]
    model = ScriptedModel(["second", SUMMARY])
    _, end = await played(agent_loop("go", Context(messages=old), config(model, Summarize(when=TurnsReach(2)))))
    assert end.pending_summary == user(MARKED)
    events, _ = await played(compact(Context(messages=old), config(ScriptedModel([SUMMARY]), Summarize())))
    begin = next(event for event in events if isinstance(event, CompactionBegin))
    assert (begin.reason, begin.context, begin.turns) == ("manual", 77, 1)


@pytest.mark.anyio
async def test_a_wish_in_the_middle_of_a_run() -> None:
    """`Manual.request()` while a tool runs: the run compacts before its next turn, and only once."""
    manual = Manual()

    @tool
    def press() -> str:
        """Press the button."""
        manual.request()
        return "pressed"

    model = ScriptedModel([call("press"), SUMMARY, "done"])
    events, end = await played(agent_loop("go", Context(tools=[press]), config(model, Summarize(when=manual))))
    assert [event.reason for event in events if isinstance(event, CompactionEnd)] == ["manual"]
    assert texts(end.messages) == [MARKED, "done"]


@pytest.mark.anyio
async def test_retries_tell_the_problem_and_answer_the_calls() -> None:
    """74: each reply of no use is committed, its calls are answered, and the next request says what was wrong."""
    model = ScriptedModel([["a", usage(9)], call("look"), ["[summary] half", Finish("length")], " ", SUMMARY])
    context = Context(tools=[look])
    events, end = await played(agent_loop("go", context, config(model, Summarize(when=ContextReaches(9)))))
    told = [texts(request.messages)[-2] for request in model.requests[2:]]
    for words, problem in zip(told, ["called a tool", "cut off", "no text"], strict=True):
        assert problem in words
    assert all(make_legal(request.messages) == tuple(request.messages) for request in model.requests)
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    assert (done.status, done.attempt) == ("completed", 4)
    assert end.pending_summary == user(MARKED)


@pytest.mark.anyio
async def test_given_up_with_useless_replies() -> None:
    """The budget is that of `Config.retry`; the old context stays in force, what was committed inside included."""
    model = ScriptedModel([["a", usage(9)], call("look"), call("look"), "next"])
    changes: Any = {"retry": Retry(waits=(1,))}
    context = Context(tools=[look])
    events, end = await played(agent_loop("go", context, config(model, Summarize(when=ContextReaches(9)), **changes)))
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    assert (done.status, done.error_code, done.attempt) == ("retryable", "malformed", 2)
    assert (end.stop_reason, end.replaces_context, end.pending_summary) == ("completed", False, None)
    await played(agent_loop("more", Context(messages=end.messages, tools=[look]), config(model, None)))
    asked = model.requests[-1].messages
    assert make_legal(asked) == tuple(asked)
    assert [text for text in texts(asked) if text in ("go", "a", "more")] == ["go", "a", "more"]
    assert sum(isinstance(message, ToolResultMessage) for message in asked) == 2


@pytest.mark.anyio
async def test_a_prompt_that_nothing_answered_is_no_part_of_the_conversation() -> None:
    """Empty replies commit nothing: nobody is asked later to write that summary after all, and the grammar agrees."""
    model = ScriptedModel([["a", usage(9)], [Finish("stop")], [Finish("stop")], "next"])
    changes: Any = {"retry": Retry(waits=(1,))}
    setting = config(model, Summarize(when=ContextReaches(9)), **changes)
    events, end = await played(agent_loop("go", Context(), setting))
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    assert (done.status, done.error_code) == ("retryable", "malformed")
    check(events)
    assert texts(end.messages) == ["go", "a"]
    await played(agent_loop("more", Context(messages=end.messages), config(model, None)))
    assert texts(model.requests[-1].messages) == ["go", "a", "more"]


@pytest.mark.anyio
async def test_too_long_for_the_model_ends_the_compaction_at_once() -> None:
    """A fatal failure of the request is not retried; before a further turn the run ends as the compaction did."""
    model = ScriptedModel([[call("look"), usage(9)], ModelError("context_too_long", "too long")])
    context = Context(tools=[look])
    _, end = await played(agent_loop("go", context, config(model, Summarize(when=ContextReaches(9)))))
    assert (end.stop_reason, end.error_code, len(model.requests)) == ("fatal", "context_too_long", 2)
    assert [type(message).__name__ for message in end.messages] == [
        "UserMessage",
        "AssistantMessage",
        "ToolResultMessage",
    ]


@pytest.mark.anyio
async def test_steering_waits_behind_the_summary() -> None:
    """76: what was said meanwhile is delivered right behind the summary, in the new context's first turn."""
    waiting: list[str] = []

    def arrive(request: ModelRequest) -> str:
        waiting.append("in French")
        return SUMMARY

    def take() -> list[str]:
        taken, waiting[:] = waiting[:], []
        return taken

    model = ScriptedModel([[call("look"), usage(9)], arrive, "done"])
    compaction = Summarize(when=ContextReaches(9))
    run = agent_loop("go", Context(tools=[look]), config(model, compaction, get_steering_messages=take))
    _, end = await played(run)
    assert texts(model.requests[2].messages) == [MARKED, "in French"]
    assert texts(end.messages) == [MARKED, "in French", "done"]


@pytest.mark.anyio
async def test_a_follow_up_is_never_stranded_by_a_compaction_that_fails() -> None:
    """Compaction is checked before the polls: what was taken from a queue gets its turn, and then the check comes."""
    follow_ups = ["and now this"]
    model = ScriptedModel([["a", usage(9)], ["b", usage(9)], ModelError("auth", "no key")])
    changes: Any = {"get_follow_up_messages": lambda: [follow_ups.pop()] if follow_ups else []}
    _, end = await played(agent_loop("go", Context(), config(model, Summarize(when=ContextReaches(9)), **changes)))
    assert (end.stop_reason, texts(end.messages)) == ("completed", ["go", "a", "and now this", "b"])


@pytest.mark.anyio
async def test_calls_of_a_summary_that_was_aborted_get_nothing() -> None:
    """G07: a call of an attempt that was not committed is neither started nor answered inside a compaction."""
    signal = AbortSignal()
    cut = [call("look"), lambda request: signal.abort("enough"), "more"]
    model = ScriptedModel([["a", usage(9)], cut])
    compaction = Summarize(when=ContextReaches(9))
    run = agent_loop("go", Context(tools=[look]), config(model, compaction, abort=signal, run_ahead=0))
    events, end = await played(run)
    assert (end.stop_reason, end.error_code) == ("aborted", "compaction_interrupted")
    assert not [event for event in events if isinstance(event, ToolExecutionStart)]


@pytest.mark.anyio
async def test_discard_forgets_at_the_end_only() -> None:
    """73: mid-task nothing is dropped; then all is, without a request."""
    model = ScriptedModel([[call("look"), usage(9)], ["done", usage(9)]])
    context = Context(tools=[look])
    events, end = await played(agent_loop("go", context, config(model, Discard(when=ContextReaches(9)))))
    assert (len(model.requests), end.messages, end.replaces_context, end.pending_summary) == (2, (), True, None)
    (done,) = [event for event in events if isinstance(event, CompactionEnd)]
    assert (done.mode, done.status, done.summary, done.attempt) == ("discard", "completed", None, None)
    _, end = await played(compact(Context(messages=[user("a")]), config(model, Discard())))
    assert (end.replaces_context, end.messages, len(model.requests)) == (True, (), 2)


@pytest.mark.anyio
async def test_an_abort_keeps_the_context() -> None:
    """An abort while the summary streams: `compaction_interrupted`, and the old context goes on in the next run."""
    signal = AbortSignal()
    half = ["[summary] ha", lambda request: signal.abort("enough"), "lf"]
    model = ScriptedModel([[call("look"), usage(9)], half, "next"])
    context = Context(tools=[look])
    _, end = await played(agent_loop("go", context, config(model, Summarize(when=ContextReaches(9)), abort=signal)))
    assert (end.stop_reason, end.error_code, end.replaces_context) == ("aborted", "compaction_interrupted", False)
    await played(agent_loop("more", Context(messages=end.messages, tools=[look]), config(model, None)))
    assert texts(model.requests[-1].messages) == ["go", "", "seen", "more"]


@pytest.mark.anyio
async def test_a_trigger_that_raises_is_an_event() -> None:
    """What a trigger of one's own raises ends the run with `callback_failed`; nothing leaves it."""

    def broken(state: CompactionState) -> Any:
        raise ZeroDivisionError("when")

    _, end = await played(agent_loop("go", Context(), config(ScriptedModel(["a"]), Summarize(when=broken))))
    assert (end.stop_reason, end.error_code) == ("fatal", "callback_failed")
    assert isinstance(end.exception, ZeroDivisionError)


# ---------------------------------------------------------------- in traces

ENDLESS: Trigger = any_of(ContextReaches(50), TurnsReach(4))

SCRIPTS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "mid_task": (
        lambda: Summarize(when=ContextReaches(50)),
        [[call("look"), call("look"), usage(50)], SUMMARY, call("look"), "done"],
    ),
    "at_the_end": (lambda: Summarize(when=ContextReaches(50)), [["a", usage(50)], SUMMARY, "b"]),
    "twice": (
        lambda: Summarize(when=ENDLESS),
        [[call("look"), usage(50)], SUMMARY, [call("look"), usage(60)], "[summary]second[/summary]", "done"],
    ),
    "retried": (
        lambda: Summarize(when=ContextReaches(50)),
        [[call("look"), usage(50)], ["half", ModelError("network", "gone")], call("look"), SUMMARY, "done"],
    ),
    "given_up": (
        lambda: Summarize(when=ContextReaches(50)),
        [["a", usage(50)], call("look"), " ", " ", "b"],
    ),
    "discarded": (lambda: Discard(when=ContextReaches(50)), [[call("look"), usage(50)], ["a", usage(50)], "b"]),
}


async def two_runs(traces: Path, compaction: Any, script: list[Any]) -> str:
    """A session of two prompts, recorded; the id."""
    model = ScriptedModel(script, past_end="stop")
    meta = session_meta("session-1", provider="scripted", model_id="script")
    settings = config(model, compaction, retry=Retry(waits=(1, 1)))
    context: tuple[AgentMessage, ...] = ()
    pending: UserMessage | None = None
    with TraceWriter(traces, meta) as writer:
        for prompt in ("first", "second"):
            prompts = [*([] if pending is None else [pending]), user(prompt)]
            events = [e async for e in record(agent_loop(prompts, Context(None, context, [look]), settings), writer)]
            end = events[-1]
            assert isinstance(end, AgentEnd)
            context = (*(() if end.replaces_context else context), *end.messages)
            pending = end.pending_summary
    return "session-1"


def files_of(traces: Path) -> list[str]:
    """What stands in the session's files, oldest first."""
    return [file.read_text("utf-8") for file in sorted(traces.rglob("*.jsonl"))]


def cut_after(traces: Path, into: Path, count: int) -> list[str]:
    """The trace as a crash behind its record number `count` leaves it; the records' lines."""
    shutil.rmtree(into, ignore_errors=True)
    kept: list[str] = []
    for file in sorted(traces.rglob("*.jsonl")):
        lines = file.read_text("utf-8").splitlines(keepends=True)[: count - len(kept)]
        if lines:
            copy = into / file.relative_to(traces)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text("".join(lines), "utf-8")
        kept += lines
    return kept


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(SCRIPTS))
async def test_resumable_at_every_point(name: str, tmp_path: Path) -> None:
    """71, 72, 74: cut behind any record, the session reopens: the next request is legal, shows the summary of the last
    completed compaction once and first (or none), and every prompt since then in order."""
    make, script = SCRIPTS[name]
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    session = await two_runs(whole, make(), script)
    count = sum(len(text.splitlines()) for text in files_of(whole))
    for cut in range(1, count + 1):
        lines = cut_after(whole, copy, cut)
        summaries, prompts = expected(lines)
        resumed, writer = reopen(copy, session)
        model = ScriptedModel([], past_end="stop")
        messages = (*resumed.settled(lambda name: "safe"), *resumed.inputs)
        prompt = [*([] if resumed.summary is None else [resumed.summary]), user("go on")]
        with writer:
            if resumed.calls and not resumed.inputs:
                resuming = agent_loop_continue(Context(None, messages, [look]), Config(model=model))
                check(await collect(record(resuming, writer)))
            else:
                run = agent_loop(prompt, Context(None, messages, [look]), Config(model=model))
                check(await collect(record(run, writer)))
                prompts.append("go on")
        asked = model.requests[0].messages
        assert make_legal(asked) == tuple(asked)
        assert [text for text in texts(asked) if text.startswith("[context_summary]")] == summaries
        assert not summaries or texts(asked)[0] == summaries[0]
        assert [text for text in texts(asked) if text in ("first", "second", "go on")] == prompts


def expected(lines: list[str]) -> tuple[list[str], list[str]]:
    """By a plain reading of the records: the summary in force, and the prompts that were recorded since."""
    summaries: list[str] = []
    prompts: list[str] = []
    for line in lines:
        payload = json.loads(line)["payload"]
        if payload.get("type") == "compaction_end" and payload["status"] == "completed":
            prompts = []
            summary = payload.get("x", {}).get("summary")
            summaries = [] if summary is None else [summary if isinstance(summary, str) else summary["text"]]
        elif payload.get("role") == "user" and payload.get("text") in ("first", "second"):
            prompts.append(payload["text"])
    return summaries, prompts


@pytest.mark.anyio
async def test_one_context_one_file(tmp_path: Path) -> None:
    """71: the exchange stands in the old file, the next record opens a new one, which begins with the summary."""
    make, script = SCRIPTS["at_the_end"]
    await two_runs(tmp_path, make(), script)
    old, new = files_of(tmp_path)
    assert old.splitlines()[-1].count('"compaction_end"') == 1
    assert new.count("[context_summary]") == 1
    assert new.index("[context_summary]") < new.index("second")
