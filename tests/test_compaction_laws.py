"""Whatever a script says, whenever compaction is due, whatever fails and wherever a run is aborted: each request is legal,
shows the summary in force once and first, and no input, call or result is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentMessage,
    CompactionBegin,
    CompactionEnd,
    Config,
    Context,
    Event,
    MessageEnd,
    ModelError,
    RequestBegin,
    Retry,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolResultMessage,
    UserMessage,
    agent_loop,
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
    TurnsReach,
    any_of,
    availability,
)
from agentloop.convert import make_legal
from agentloop.grammar import check
from agentloop.messages import Usage
from agentloop.model import Finish, ModelRequest, UsageChunk
from agentloop.omni.codec import Encoder, TraceFilter
from agentloop.omni.records import session_meta
from agentloop.omni.resume import resume
from agentloop.omni.trace import HeadOfFile
from agentloop.testing import CUT, ScriptedModel, VirtualClock, call

pytestmark = pytest.mark.anyio

WORK: dict[str, Any] = {
    "text": ["a word"],
    "call": [call("look")],
    "calls": [call("look"), call("boom"), call("missing")],
    "cut": [call("look"), Finish("length")],
    "pause": ["wait", Finish("pause")],
    "refusal": ["no", Finish("refusal")],
    "broken": ["half", CUT],
    "busy": [ModelError("overloaded", "busy")],
    "fatal": ["half", ModelError("auth", "no key")],
}
SUMMARIES: dict[str, Any] = {
    "good": None,
    "calls": [call("look"), call("look")],
    "blank": [" "],
    "empty": [],
    "refusal": ["no", Finish("refusal")],
    "cut": ["[summary] ha", Finish("length")],
    "broken": ["[summary] ha", CUT],
    "busy": [ModelError("overloaded", "busy")],
    "fatal": [ModelError("context_too_long", "too long")],
}


INPUTS = ("prompt", "steering", "follow-up")
"""How the texts begin that somebody says, outside of compactions."""


@attrs.frozen
class Plan:
    """Everything about two runs and what stands between them that is drawn."""

    work: tuple[tuple[str, int], ...]
    """What the model says in turns, with the tokens that it reports."""
    summaries: tuple[str, ...]
    tokens: int
    turns: int
    discard: bool = False
    steering: tuple[int, ...] = ()
    """After how many events something is said."""
    follow_ups: int = 0
    wish: int | None = None
    """After how many events somebody wishes for a compaction."""
    abort: int | None = None
    by_hand: bool = False
    run_ahead: int = 64
    waits: int = 1


PLANS = st.builds(
    Plan,
    work=st.lists(
        st.tuples(st.sampled_from(["text", *list(WORK), "call", "calls"]), st.integers(0, 120)), max_size=7
    ).map(tuple),
    summaries=st.lists(st.sampled_from(["good", "good", *SUMMARIES]), max_size=5).map(tuple),
    tokens=st.integers(40, 150),
    turns=st.integers(1, 6),
    discard=st.sampled_from([False, False, False, True]),
    steering=st.lists(st.integers(0, 60), max_size=3).map(tuple),
    follow_ups=st.integers(0, 2),
    wish=st.none() | st.integers(0, 40),
    abort=st.none() | st.integers(0, 90),
    by_hand=st.booleans(),
    run_ahead=st.sampled_from([0, 1, 64]),
    waits=st.integers(0, 2),
)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def boom() -> str:
    """Fail."""
    raise RuntimeError("boom")


class Session:
    """Two runs of one conversation, with a plain-list model of what each request has to show."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.work, self.summaries = list(plan.work), list(plan.summaries)
        self.wrote = 0
        self.wish = Manual()
        self.signal = AbortSignal()
        self.queue: list[str] = []
        self.taken: list[str] = []
        self.follow_ups = [f"follow-up {n}" for n in range(plan.follow_ups)]
        self.seen = 0
        self.events: list[Event] = []
        self.messages: tuple[AgentMessage, ...] = ()
        self.pending: UserMessage | None = None
        self.in_force: list[str] = []
        """The summary that every request now shows, if there is one."""
        self.inputs: list[str] = []
        """Inputs since the last completed compaction."""

    # ------------------------------------------------------------ the model

    def model(self, request: ModelRequest) -> AsyncIterator[Any]:
        last = request.messages[-1]
        asked_for_summary = isinstance(last, UserMessage) and last.text.endswith(INSTRUCTIONS)
        self.look_at(request, asked_for_summary)
        steps = self._summary() if asked_for_summary else self._work()
        return ScriptedModel([steps])(request)

    def _work(self) -> list[Any]:
        kind, tokens = self.work.pop(0) if self.work else ("text", 1)
        return [UsageChunk(Usage(0, tokens, 0)), *WORK[kind]]

    def _summary(self) -> list[Any]:
        kind = self.summaries.pop(0) if self.summaries else "good"
        if kind != "good":
            return list(SUMMARIES[kind])
        self.wrote += 1
        return [f"Well: [summary] summary {self.wrote} [/summary]"]

    # ------------------------------------------------------------ what each request has to show

    def look_at(self, request: ModelRequest, asked_for_summary: bool) -> None:
        assert make_legal(request.messages) == tuple(request.messages)
        said = [block for message in request.messages if isinstance(message, UserMessage) for block in message.content]
        texts = [block.text for block in said]  # type: ignore[union-attr]
        assert [text for text in texts if text.startswith("[context_summary]")] == self.in_force
        if self.in_force:
            assert request.messages[0].content[0].text == self.in_force[0]  # type: ignore[union-attr]
        assert [text for text in texts if text in self.inputs] == self.inputs
        if not asked_for_summary:
            assert texts.count(INSTRUCTIONS) <= self.committed_prompts

    @property
    def committed_prompts(self) -> int:
        """Attempts at summaries that were given up or retried: those committed stay in the context."""
        return sum(isinstance(event, CompactionBegin) for event in self.events) * (self.plan.waits + 1)

    def note(self, event: Event) -> None:
        """Keep the plain lists up to date."""
        self.events.append(event)
        if isinstance(event, CompactionEnd) and event.status == "completed":
            self.inputs = []
            self.in_force = [] if event.summary is None else [event.summary.text]
        if isinstance(event, MessageEnd) and isinstance(event.message, UserMessage):
            text = event.message.text
            if text.startswith(INPUTS):
                self.inputs.append(text)

    # ------------------------------------------------------------ runs

    def config(self) -> Config:
        plan = self.plan
        when = any_of(self.wish, ContextReaches(plan.tokens), TurnsReach(plan.turns))
        return Config(
            model=self.model,
            compaction=Discard(when=when) if plan.discard else Summarize(when=when),
            get_steering_messages=self.take_steering,
            get_follow_up_messages=self.take_follow_up,
            clock=VirtualClock(),
            retry=Retry(waits=(1,) * plan.waits),
            run_ahead=plan.run_ahead,
            abort=self.signal,
            max_turns=12,
        )

    def take_steering(self) -> list[str]:
        taken, self.queue = self.queue, []
        self.taken += taken
        return taken

    def take_follow_up(self) -> list[str]:
        taken, self.follow_ups = self.follow_ups[:1], self.follow_ups[1:]
        self.taken += taken
        return taken

    async def run(self, events: AsyncIterator[Event]) -> None:
        own: list[Event] = []
        async for event in events:
            own.append(event)
            self.note(event)
            self.seen += 1
            self._happen()
        check(own)
        self._settle(own)

    def _happen(self) -> None:
        plan = self.plan
        self.queue += [f"steering {n}" for n, after in enumerate(plan.steering) if after == self.seen]
        if self.seen == plan.wish:
            self.wish.request()
        if self.seen == plan.abort:
            self.signal.abort("enough")

    def _settle(self, own: Sequence[Event]) -> None:
        """What every run leaves, however it ended."""
        end = own[-1]
        assert isinstance(end, AgentEnd)
        starts = [event.tool_call_id for event in own if isinstance(event, ToolExecutionStart)]
        ends = [event.tool_call_id for event in own if isinstance(event, ToolExecutionEnd)]
        assert sorted(starts) == sorted(ends)
        opened = sum(isinstance(event, CompactionBegin) for event in own)
        assert opened == sum(isinstance(event, CompactionEnd) for event in own)
        if end.stop_reason == "aborted":
            assert self.signal.aborted
        self.messages = (*(() if end.replaces_context else self.messages), *end.messages)
        self.pending = end.pending_summary or (None if own_turns(own) or end.replaces_context else self.pending)
        shown = [message.text for message in self.messages if isinstance(message, UserMessage)]
        shown += [] if self.pending is None else [self.pending.text]
        assert [text for text in shown if text.startswith("[context_summary]")] == self.in_force
        assert [text for text in shown if text in self.inputs] == self.inputs

    async def play(self) -> None:
        await self.prompt("prompt 1")
        self.signal = AbortSignal()
        if self.plan.by_hand and availability(Context(messages=self.messages), Summarize()) == "ok":
            await self.run(compact(Context(None, self.messages, [look, boom]), self.config()))
        self.signal = AbortSignal()
        await self.prompt("prompt 2")
        messages = [event.message for event in self.events if isinstance(event, MessageEnd)]
        emitted = [m.text for m in messages if isinstance(m, UserMessage) and m.text.startswith(INPUTS)]
        assert sorted(text for text in emitted if not text.startswith("prompt")) == sorted(self.taken)

    async def prompt(self, text: str) -> None:
        prompts = [*([] if self.pending is None else [self.pending]), user(text)]
        await self.run(agent_loop(prompts, Context(None, self.messages, [look, boom]), self.config()))


def own_turns(events: Iterable[Event]) -> bool:
    """Whether a turn began."""
    return any(type(event).__name__ == "TurnStart" for event in events)


@given(plan=PLANS)
async def test_requests_stay_legal_and_nothing_is_lost(anyio_backend_name: str, plan: Plan) -> None:
    """The law of this file's first sentence, over two runs and, between them, perhaps a compaction by hand."""
    await Session(plan).play()


# ---------------------------------------------------------------- the same, from the trace


def files_of(events: Sequence[Event]) -> list[list[Any]]:
    """The records as the writer puts them into files, as the lines of each."""
    meta = session_meta("session-1", provider="scripted", model_id="script")
    encoder, keep, head = Encoder(lambda: 0.0), TraceFilter(), HeadOfFile()
    files: list[list[Any]] = []
    for event in events:
        for record in encoder.encode(event):
            if not keep.keep(record):
                continue
            batch, opens = head.take(record), head.at_head
            if not batch:
                continue
            if opens:
                files.append([meta])
            files[-1] += batch
            head.wrote(record)
    return files


@given(plan=PLANS)
def test_every_cut_of_the_trace_gives_it_back(plan: Plan) -> None:
    """Cut behind any record: what the newest file gives back is legal, has the summary in force once, and each input
    that was recorded since."""
    session = Session(plan)
    anyio.run(session.play)
    in_force: list[str] = []
    for records in files_of(session.events):
        for count in range(1, len(records) + 1):
            resumed = resume(records[:count])
            messages = [*resumed.settled(lambda name: "safe"), *resumed.inputs]
            shown = [] if resumed.summary is None else [resumed.summary.text]
            shown += [message.text for message in messages if isinstance(message, UserMessage)]
            last = records[count - 1]["payload"]
            if last.get("type") == "compaction_end" and last["status"] == "completed":
                in_force = [text for text in shown if text.startswith("[context_summary]")]
                assert len(in_force) == (0 if plan.discard else 1)
                assert messages == []
            elif resumed.has_content:
                assert [text for text in shown if text.startswith("[context_summary]")] == in_force
            recorded = [r["payload"].get("text", "") for r in records[:count] if r["payload"].get("role") == "user"]
            inputs = [text for text in recorded if text.startswith(INPUTS)]
            if not resumed.context_closed:
                assert [text for text in shown if text in inputs] == inputs
            legal = make_legal([*messages, user("go on")])
            results = [m.tool_call_id for m in messages if isinstance(m, ToolResultMessage)]
            answered = [m.tool_call_id for m in legal if isinstance(m, ToolResultMessage)]
            assert [id for id in answered if id in results] == results


async def test_the_laws_see_requests_of_both_kinds(anyio_backend_name: str) -> None:
    """The plain-list model is not idle: in this plan it sees a summary given up, one taken mid-task, and one by hand."""
    plan = Plan(
        work=(("call", 50), ("call", 50), ("text", 1), ("text", 1)),
        summaries=("calls", "good", "blank", "good", "good"),
        tokens=50,
        turns=6,
        by_hand=True,
    )
    session = Session(plan)
    await session.play()
    ends = [event for event in session.events if isinstance(event, CompactionEnd)]
    assert [(end.reason, end.status, end.attempt) for end in ends] == [
        ("context", "completed", 2),
        ("context", "completed", 2),
        ("manual", "completed", 1),
    ]
    assert sum(isinstance(event, RequestBegin) for event in session.events) == 4 + 5
