"""The strategies: what they make is legal, consistent and wide enough."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from agentloop._values import freeze_json
from agentloop.errors import FinishReason, MissingExtra, ModelError, StopReason
from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    CompactionEnd,
    Delta,
    Event,
    Foreign,
    Hook,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    ToolCallEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
)
from agentloop.grammar import check
from agentloop.messages import (
    AssistantMessage,
    CustomMessage,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.testing import CUT, ScriptedModel
from agentloop.testing.strategies import (
    assistant_messages,
    custom_messages,
    deltas,
    json_objects,
    json_values,
    messages,
    model_replies,
    model_scripts,
    replies,
    streams,
    tool_results,
    usages,
)

SAMPLE = settings(
    deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)  # fmt: skip


def sample(strategy: st.SearchStrategy[Any], max_examples: int, number: int = 0) -> list[Any]:
    """Many examples, the same ones for the same number."""
    made: list[Any] = []

    @seed(number)
    @settings(SAMPLE, max_examples=max_examples)
    @given(strategy)
    def collect(value: Any) -> None:
        made.append(value)

    collect()
    return made


class Pool:
    """Examples of a strategy; when a look for something rare finds nothing, more are made (hypothesis varies one example for
    a while, so that a single batch may miss a corner)."""

    def __init__(self, strategy: st.SearchStrategy[Any], batch: int) -> None:
        self.strategy = strategy
        self.batch = batch
        self.batches = [sample(strategy, batch)]

    def has(self, holds: Callable[[Any], bool]) -> bool:
        """Whether something holds for one of the examples, of which there are at most eight batches."""
        for number in range(8):
            if number == len(self.batches):
                self.batches.append(sample(self.strategy, self.batch, number))
            if any(holds(example) for example in self.batches[number]):
                return True
        return False


@pytest.fixture(scope="module")
def many_streams() -> Pool:
    """Streams with nested runs and foreign records."""
    return Pool(streams(foreign=True, depth=2), 200)


# ---------------------------------------------------------------- streams


@given(streams())
def test_a_stream_is_a_whole_run(events: list[Event]) -> None:
    """A stream is legal, complete and consistent; by default without records of unknown kinds."""
    check(events, outputs_kept=True)
    assert isinstance(events[0], AgentStart)
    assert isinstance(events[-1], AgentEnd)
    assert not any(isinstance(event, Foreign) for event in events)


@given(streams(depth=0, custom=False))
def test_what_a_caller_leaves_out_is_left_out(events: list[Event]) -> None:
    """`depth=0` has no nested runs, `custom=False` no custom messages."""
    assert not any(isinstance(event, ChildEvent) for event in events)
    assert not any(isinstance(event, MessageEnd) and isinstance(event.message, CustomMessage) for event in events)


def test_streams_are_short_enough_to_be_many(many_streams: Pool) -> None:
    """The median stream has some thirty events; the longest are a few hundred."""
    lengths = sorted(len(events) for events in many_streams.batches[0])
    assert 10 <= lengths[len(lengths) // 2] <= 60
    assert lengths[-1] < 1500


@pytest.mark.parametrize("kind", get_args(Event))
def test_streams_have_every_event(many_streams: Pool, kind: type) -> None:
    """No kind of event is left out."""
    assert many_streams.has(lambda events: kind in map(type, events))


@pytest.mark.parametrize("kind", get_args(Delta))
def test_streams_have_every_delta(many_streams: Pool, kind: type) -> None:
    """No kind of delta is left out."""
    assert many_streams.has(_any(MessageUpdate, lambda event: type(event.delta) is kind))


@pytest.mark.parametrize("depth", [1, 2])
def test_streams_have_nested_runs(many_streams: Pool, depth: int) -> None:
    """Nested runs come to their end, at each depth, and some are cut."""
    ended = _any(ChildEvent, lambda event: len(event.origin) == depth and isinstance(event.event, AgentEnd))
    assert many_streams.has(ended)
    assert many_streams.has(lambda events: _any(SubagentStarted)(events) and not ended(events))


def _calls_side_by_side(events: list[Event]) -> bool:
    running = 0
    for event in events:
        running += isinstance(event, ToolExecutionStart)
        running -= isinstance(event, ToolExecutionEnd)
        if running > 1:
            return True
    return False


def _results_wait(events: list[Event]) -> bool:
    """A later call ended first, so that its result had to wait."""
    return any(
        isinstance(one, ToolExecutionEnd) and not isinstance(other, MessageStart) for one, other in pairwise(events)
    )


def _last(events: list[Event]) -> AgentEnd:
    return next(event for event in reversed(events) if isinstance(event, AgentEnd))


def _any(kind: type, holds: Callable[[Any], bool] = lambda event: True) -> Callable[[list[Event]], bool]:
    return lambda events: any(isinstance(event, kind) and holds(event) for event in events)


def _ends_with_a_call_in_the_wait(events: list[Event]) -> bool:
    """An abort during an announced wait: the last attempt's calls are answered all the same."""
    waits = [
        place for place, event in enumerate(events) if isinstance(event, RequestEnd) and event.retry_in_ms is not None
    ]
    return bool(waits) and isinstance(events[min(waits[-1] + 1, len(events) - 1)], ToolExecutionStart)


FEATURES: dict[str, Callable[[list[Event]], bool]] = {
    "a retry": _any(RequestBegin, lambda event: event.attempt > 1),
    "an abort": _any(Abort),
    "a deadline": lambda events: _last(events).error_code == "deadline",
    "a limit": lambda events: _last(events).error_code == "max_turns",
    "a failure": lambda events: _last(events).stop_reason == "retryable",
    "an abort in a compaction": lambda events: _last(events).error_code == "compaction_interrupted",
    "an abort in the wait": _ends_with_a_call_in_the_wait,
    "an uncommitted reply in the messages": lambda events: any(
        isinstance(message, AssistantMessage) and message.stop_reason != "completed"
        for message in _last(events).messages
    ),
    "a completed compaction": lambda events: _last(events).replaces_context,
    "a compaction given up": _any(CompactionEnd, lambda event: event.status != "completed"),
    "a pending summary": lambda events: _last(events).pending_summary is not None,
    "calls side by side": _calls_side_by_side,
    "a result that waits": _results_wait,
    "a cut call": _any(
        MessageUpdate, lambda event: isinstance(event.delta, ToolCallEnd) and event.delta.stop_reason != "completed"
    ),
    "a whole call": _any(
        MessageUpdate, lambda event: isinstance(event.delta, BlockAdded) and isinstance(event.delta.block, ToolCall)
    ),
    "an empty delta": _any(MessageUpdate, lambda event: isinstance(event.delta, TextDelta) and event.delta.text == ""),
    "a denied call": _any(ToolExecutionEnd, lambda event: event.error_code == "denied"),
    "a forbidden call": _any(ToolExecutionEnd, lambda event: event.error_code == "forbidden"),
    "an invalid call": _any(ToolExecutionEnd, lambda event: event.error_code == "invalid_arguments"),
    "a call cut off": _any(ToolExecutionEnd, lambda event: event.error_code == "cut_off"),
    "an aborted call": _any(ToolExecutionEnd, lambda event: event.error_code == "aborted"),
    "a call that asks to end": _any(ToolExecutionEnd, lambda event: event.result.terminate),
    "a question without an answer": lambda events: bool(
        {event.tool_call_id for event in events if isinstance(event, ApprovalRequest)}
        - {event.tool_call_id for event in events if isinstance(event, ApprovalDecision)}
    ),
    "a pause": _any(MessageEnd, lambda event: getattr(event.message, "finish_reason", None) == "pause"),
    "a custom message": _any(MessageEnd, lambda event: isinstance(event.message, CustomMessage)),
    "a prompt's hook": _any(Hook, lambda event: event.hook == "user_prompt"),
    "open calls": lambda events: (
        isinstance(events[-1], AgentEnd)
        and any(isinstance(event, TurnEnd) and event.message is None and event.tool_results for event in events)
    ),
    "a turn without a request": _any(TurnEnd, lambda event: event.message is None and not event.tool_results),
    "a run without a turn": lambda events: not any(isinstance(event, TurnEnd) for event in events),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_streams_come_to_every_corner(many_streams: Pool, feature: str) -> None:
    """Each odd thing that a run may do is among a few hundred streams."""
    holds = FEATURES[feature]
    assert many_streams.has(lambda events: holds([event for event in events if not isinstance(event, Foreign)]))


# ---------------------------------------------------------------- replies and values


@given(st.sampled_from(get_args(StopReason)), st.data())
def test_a_reply_is_its_deltas(status: StopReason, data: st.DataObject) -> None:
    """A generated reply has the status that was asked for, and its updates add up to it."""
    first, *updates, last = data.draw(replies(status))
    assert isinstance(first, MessageStart)
    assert isinstance(last, MessageEnd)
    assert isinstance(last.message, AssistantMessage)
    assert last.message.stop_reason == status
    assert updates
    final: Any = updates[-1]
    assert final.message.content == last.message.content


@given(json_values() | json_objects())
def test_json_values_can_be_written(value: Any) -> None:
    """Generated JSON is JSON: it may enter a message, and comes back from text as it was."""
    assert freeze_json(value) == value
    assert json.loads(json.dumps(value)) == value


@given(st.one_of(messages(), assistant_messages(), custom_messages(), tool_results(), usages(), deltas()))
def test_values_are_valid(value: Any) -> None:
    """Generated values hold no half surrogates and are equal to themselves built again."""
    repr(value).encode()
    assert attrs.evolve(value) == value


def test_messages_are_of_every_kind() -> None:
    """All four kinds of messages come, replies of every outcome among them."""
    made = sample(messages(), 200)
    assert {type(message) for message in made if not isinstance(message, CustomMessage)} == {
        UserMessage,
        AssistantMessage,
        ToolResultMessage,
    }
    assert any(isinstance(message, CustomMessage) for message in made)
    assert {message.stop_reason for message in made if isinstance(message, AssistantMessage)} == set(
        get_args(StopReason)
    )


# ---------------------------------------------------------------- scripts of models

CHUNKS = (str, TextChunk, ThinkingChunk, ToolCallChunk, BlockEnd, BlockChunk, UsageChunk, Finish)


@given(model_scripts(max_size=3))
def test_a_script_is_replies_of_chunks(script: list[list[Any]]) -> None:
    """A script holds what `ScriptedModel` plays, each reply has an end, and the last is a plain one."""
    assert 1 <= len(script) <= 3
    assert script[-1] == ["done", Finish("stop")]
    for reply in script:
        assert all(isinstance(step, (*CHUNKS, BaseException)) or step is CUT for step in reply)
        assert sum(isinstance(step, Finish | BaseException) or step is CUT for step in reply) == 1


@given(model_scripts(broken=False))
def test_a_script_that_is_not_broken_finishes(script: list[list[Any]]) -> None:
    """`broken=False`: no exception, no cut, nothing behind the end."""
    assert all(isinstance(reply[-1], Finish) for reply in script)


def _indexes(reply: list[Any]) -> list[int]:
    indexed = (TextChunk, ThinkingChunk, ToolCallChunk)
    return [step.index for step in reply if isinstance(step, indexed) and step.index is not None]


def _ids(reply: list[Any]) -> list[str]:
    return [step.id for step in reply if isinstance(step, ToolCallChunk) and step.id]


def _is_half(step: Any) -> bool:
    text = step if isinstance(step, str) else getattr(step, "text", "")
    return any("\ud800" <= letter <= "\udfff" for letter in text)


SCRIPT_FEATURES: dict[str, Callable[[list[Any]], bool]] = {
    "blocks that interleave": lambda reply: _indexes(reply) != sorted(_indexes(reply)),
    "an id twice": lambda reply: len(_ids(reply)) != len(set(_ids(reply))),
    "a call without an id": lambda reply: any(isinstance(step, ToolCallChunk) and not step.id for step in reply),
    "a call of no tool": lambda reply: any(getattr(step, "name", None) == "no_such_tool" for step in reply),
    "half a surrogate pair": lambda reply: any(_is_half(step) for step in reply),
    "an empty piece": lambda reply: "" in reply,
    "a chunk behind the end": lambda reply: any(isinstance(step, Finish) for step in reply[:-1]),
    "a provider's failure": lambda reply: isinstance(reply[-1], ModelError),
    "another's exception": lambda reply: isinstance(reply[-1], BaseException) and not isinstance(reply[-1], ModelError),
    "a cut": lambda reply: reply[-1] is CUT,
    "a failure before any content": lambda reply: len(reply) == 1 and isinstance(reply[0], BaseException),
}


@pytest.fixture(scope="module")
def many_replies() -> Pool:
    """Replies as scripts have them."""
    return Pool(model_replies(), 300)


@pytest.mark.parametrize("feature", SCRIPT_FEATURES)
def test_scripts_come_to_every_corner(many_replies: Pool, feature: str) -> None:
    """Each odd thing that a model may send is among a few hundred replies."""
    assert many_replies.has(SCRIPT_FEATURES[feature])


@pytest.mark.parametrize("kind", CHUNKS)
def test_scripts_have_every_chunk(many_replies: Pool, kind: type) -> None:
    """No kind of chunk is left out."""
    assert many_replies.has(lambda reply: kind in map(type, reply))


@pytest.mark.parametrize("reason", get_args(FinishReason))
def test_scripts_have_every_reason(many_replies: Pool, reason: str) -> None:
    """No reason to finish is left out."""
    assert many_replies.has(lambda reply: any(isinstance(step, Finish) and step.reason == reason for step in reply))


@pytest.mark.anyio
async def test_a_script_can_be_played() -> None:
    """`ScriptedModel` plays generated scripts step by step, failures included."""
    for script in sample(model_scripts(), 20):
        model = ScriptedModel(script)
        for reply in script:
            played = []
            stream = model(ModelRequest(None, [], [], {}))
            try:
                async for chunk in stream:
                    played.append(chunk)
            except Exception as error:
                assert error is reply[-1]  # noqa: PT017
            whole = [step for step in reply if not isinstance(step, BaseException) and step is not CUT]
            assert played == whole


@pytest.mark.parametrize("name", ["agentloop.testing.strategies", "agentloop.testing.machine"])
def test_without_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hypothesis the import's error names the extra."""
    for module in ("hypothesis", "hypothesis.stateful"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'agentloop\[testing\]'"):
        importlib.import_module(name)


@pytest.mark.parametrize("name", ["agentloop.testing.strategies", "agentloop.testing.machine"])
def test_a_broken_extra_is_not_a_missing_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hypothesis that is there and fails to import says why itself."""
    (tmp_path / "hypothesis.py").write_text("import what_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.partition(".")[0] == "hypothesis"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        importlib.import_module(name)
