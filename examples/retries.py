"""Retries: two failed attempts and their waits, on a clock that jumps instead of waiting."""

import asyncio

from agentloop import AgentEnd, Config, Context, ModelError, RequestEnd, Retry, agent_loop
from agentloop.testing import ScriptedModel, VirtualClock


async def main() -> None:
    clock = VirtualClock()
    busy, limited = ModelError("overloaded", "busy"), ModelError("rate_limit", "slow down", retry_after=10.0)
    model = ScriptedModel([busy, limited, "Here I am."])
    config = Config(model=model, retry=Retry(waits=(2.0, 4.0)), clock=clock)
    async for event in agent_loop("Are you there?", Context(), config):
        match event:
            case RequestEnd(attempt=attempt, status=status, retry_in_ms=wait):
                print(f"attempt {attempt}: {status}, next in {wait} ms")
            case AgentEnd(messages=messages):
                print(f"{messages[-1].text} ({clock.now():g} s later)")


asyncio.run(main())
