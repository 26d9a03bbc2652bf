"""Collecting a run: whole, in part, and from synchronous code."""

from __future__ import annotations

import anyio
import pytest

from agentloop import AgentEnd, AgentStart, Config, Context, MessageUpdate, ModelError, TextDelta, agent_loop
from agentloop.grammar import check
from agentloop.testing import STALL, ScriptedModel, collect, collect_sync


@pytest.mark.anyio
async def test_all_events() -> None:
    """A run is collected from its start to its end, in order."""
    events = await collect(agent_loop("go", Context(), Config(model=ScriptedModel(["hi"]))))
    assert isinstance(events[0], AgentStart)
    assert isinstance(events[-1], AgentEnd)
    check(events)


@pytest.mark.anyio
async def test_until_an_event() -> None:
    """A run that is left at an event is closed: the model's stream is over, although it never ends by itself."""
    model = ScriptedModel([["one", STALL]])
    seen = await collect(
        agent_loop("go", Context(), Config(model=model)),
        until=lambda event: isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta),
    )
    assert isinstance(seen[-1], MessageUpdate)
    assert model.open_streams == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_from_synchronous_code(backend: str) -> None:
    """A run that was made outside an event loop runs in one of its own."""
    events = collect_sync(agent_loop("go", Context(), Config(model=ScriptedModel(["hi"]))), backend=backend)
    assert isinstance(events[-1], AgentEnd)


def test_what_a_run_raises_has_no_other_error_behind_it() -> None:
    """A traceback of the run shows nothing of how `collect_sync` looked for an event loop."""
    model = ScriptedModel([ModelError("auth", "no key")])
    end = collect_sync(agent_loop("go", Context(), Config(model=model)))[-1]
    assert isinstance(end, AgentEnd)
    assert isinstance(end.exception, ModelError)
    assert end.exception.__context__ is None


def test_not_inside_an_event_loop() -> None:
    """Within a running event loop there is a clear error."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"use await collect\("):
            collect_sync(agent_loop("go", Context(), Config(model=ScriptedModel(["hi"]))))

    anyio.run(main)
