"""A poll that an abort meets half-way."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import AbortSignal, AgentEnd, Config, Context, UserMessage, agent_loop
from agentloop.testing import ScriptedModel, VirtualClock, collect

pytestmark = pytest.mark.anyio


async def test_what_a_poll_took_is_kept_however_long_it_takes_within_the_grace() -> None:
    """The abort comes while it works: it is not cancelled before the grace is over, so nothing that it took is lost."""
    signal, clock = AbortSignal(), VirtualClock()

    async def take() -> Any:
        signal.abort("now")
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        await clock.sleep(0.2)
        return ["taken"]

    config = Config(model=ScriptedModel(), abort=signal, get_steering_messages=take, clock=clock)
    end = (await collect(agent_loop(["go"], Context(), config)))[-1]
    assert isinstance(end, AgentEnd)
    assert [message.text for message in end.messages if isinstance(message, UserMessage)] == ["go", "taken"]
    assert clock.now() == pytest.approx(0.2)


async def test_a_poll_that_hangs_is_cancelled_after_the_grace() -> None:
    """The run ends all the same, its clean-up done."""
    signal, clock = AbortSignal(), VirtualClock()
    cleaned = []

    async def hang() -> Any:
        signal.abort("now")
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(clock.now())

    config = Config(model=ScriptedModel(), abort=signal, get_steering_messages=hang, clock=clock)
    end = (await collect(agent_loop(["go"], Context(), config)))[-1]
    assert isinstance(end, AgentEnd)
    assert end.error_code == "user_abort"
    assert cleaned == [pytest.approx(0.25)]
