"""A tree of agents, aborted or left after any event: inner ones end first, nothing stays open, each token counts once, each
trace goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AbortSignal,
    AgentEnd,
    AgentStart,
    ChildEvent,
    Config,
    Context,
    Event,
    ModelError,
    RequestBegin,
    Retry,
    TokenUsage,
    ToolExecutionEnd,
    ToolExecutionStart,
    agent_loop,
    tool,
)
from agentloop.convert import make_legal
from agentloop.grammar import check
from agentloop.messages import Usage
from agentloop.model import ModelRequest, UsageChunk
from agentloop.omni.reader import trace_files
from agentloop.omni.resume import resume_session
from agentloop.reducer import State
from agentloop.subagent import subagent
from agentloop.testing import ScriptedModel, call

pytestmark = pytest.mark.anyio

TASK = {"prompt": "do it"}


@tool
async def work() -> str:
    """Work a little."""
    await anyio.lowlevel.checkpoint()
    return "worked"


STEPS: dict[str, Any] = {
    "text": ["said"],
    "work": [call("work"), call("work")],
    "down": [call("down", TASK)],
    "both": [call("down", TASK), call("work"), call("down", TASK)],
    "busy": ["half", ModelError("overloaded", "busy")],
    "fatal": [ModelError("auth", "no key")],
}


@attrs.frozen
class Plan:
    """What each level says, one reply after another; and where it stops."""

    levels: tuple[tuple[str, ...], ...]
    abort: int | None
    leave: int | None
    run_ahead: int
    recorded: bool


PLANS = st.builds(
    Plan,
    levels=st.tuples(*[st.lists(st.sampled_from([*STEPS, "both", "down"]), max_size=4).map(tuple)] * 3),
    abort=st.none() | st.integers(1, 120),
    leave=st.none() | st.none() | st.integers(1, 120),
    run_ahead=st.sampled_from([0, 1, 64]),
    recorded=st.booleans(),
)


class Tree:
    """A run of three levels, with what its models were asked."""

    def __init__(self, plan: Plan, traces: Path) -> None:
        self.plan = plan
        self.signal = AbortSignal()
        self.events: list[Event] = []
        self.models: list[ScriptedModel] = []
        self.late = 0
        self.sessions = 0
        tools = [work]
        config: dict[str, Any] = {"retry": Retry(waits=(0,)), "run_ahead": plan.run_ahead}
        for level in (2, 1):
            down = subagent(
                "down",
                "Goes one deeper.",
                self.model(level),
                tools=tools,
                traces=traces if plan.recorded else None,
                make_session_id=self.session_id,
                **config,
            )
            tools = [work, down]
        self.run = agent_loop("go", Context(tools=tools), Config(model=self.model(0), abort=self.signal, **config))

    def session_id(self) -> str:
        self.sessions += 1
        return f"session-{self.sessions}"

    def model(self, level: int) -> ScriptedModel:
        script = list(self.plan.levels[level])

        def play(request: ModelRequest) -> Any:
            self.late += self.signal.aborted
            assert make_legal(request.messages) == tuple(request.messages)
            return [UsageChunk(Usage(0, 10**level, 0)), *STEPS[script.pop(0) if script else "text"]]

        model = ScriptedModel([play] * 200)
        self.models.append(model)
        return model

    async def play(self) -> None:
        async for event in self.run:
            self.events.append(event)
            if len(self.events) == self.plan.abort:
                self.signal.abort("enough")
            if len(self.events) == self.plan.leave:
                break
        await self.run.aclose()


def chain(event: Event) -> tuple[str, ...]:
    """Where an event comes from."""
    return event.origin if isinstance(event, ChildEvent) else ()


def bare(event: Event) -> Event:
    """The event as its own session has it."""
    return event.event if isinstance(event, ChildEvent) else event


@given(plan=PLANS)
async def test_any_tree_ends_well(anyio_backend_name: str, plan: Plan) -> None:
    """The law of this file's first sentence."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(plan, Path(folder))
        with anyio.fail_after(20):
            await tree.play()
        assert [model.open_streams for model in tree.models] == [0, 0, 0]
        assert tree.late == 0
        if isinstance(tree.events[-1], AgentEnd):
            look_at_a_whole(tree)
        if plan.recorded:
            for number in range(1, tree.sessions + 1):
                if trace_files(folder, f"session-{number}"):
                    resumed = resume_session(folder, f"session-{number}")
                    assert resumed.messages or resumed.inputs or not resumed.has_content


def look_at_a_whole(tree: Tree) -> None:
    """What holds for every run that was followed to its end."""
    events = tree.events
    check(events)
    open_agents: list[tuple[str, ...]] = []
    for event in events:
        inner, origin = bare(event), chain(event)
        if isinstance(inner, AgentStart):
            assert origin[:-1] in open_agents or not origin
            open_agents.append(origin)
        if isinstance(inner, AgentEnd):
            open_agents.remove(origin)
            assert not [other for other in open_agents if other[: len(origin)] == origin]
    assert open_agents == []
    spent = Usage()
    state = State()
    for event in events:
        state.apply(event)
        if isinstance(bare(event), TokenUsage):
            spent += bare(event).request  # type: ignore[union-attr]
    assert state.session_usage == spent
    own = [event for event in events if isinstance(event, TokenUsage)]
    assert not own or own[-1].session.total <= spent.total
    starts = [event for event in events if isinstance(bare(event), ToolExecutionStart)]
    ends = [event for event in events if isinstance(bare(event), ToolExecutionEnd)]
    assert len(starts) == len(ends)


async def test_the_law_sees_three_levels(anyio_backend_name: str, tmp_path: Path) -> None:
    """The plans are not idle: this one has two children at once and grandchildren in each."""
    plan = Plan((("both", "text"), ("down", "text", "down", "text"), ("work", "text")), None, None, 64, True)
    tree = Tree(plan, tmp_path)
    await tree.play()
    look_at_a_whole(tree)
    depths = {len(chain(event)) for event in tree.events if isinstance(bare(event), RequestBegin)}
    assert depths == {0, 1, 2}
    assert tree.sessions >= 4
