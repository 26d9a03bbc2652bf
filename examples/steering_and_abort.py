"""Steering and abort: a message that arrives while a tool runs, and a signal that ends a run cleanly."""

import asyncio

from agentloop import AbortSignal, AgentEnd, Config, Context, MessageUpdate, agent_loop, tool
from agentloop.testing import STALL, ScriptedModel, call

waiting: list[str] = []


@tool
async def search() -> str:
    """Search; meanwhile the person types."""
    waiting.append("In French, please.")
    return "42 results"


def take() -> list[str]:
    """Give what waits, once."""
    taken, waiting[:] = waiting[:], []
    return taken


async def main() -> None:
    model = ScriptedModel([[call("search")], "D'accord."])
    async for _ in agent_loop("Find it.", Context(tools=[search]), Config(model=model, get_steering_messages=take)):
        pass
    print("steered by:", model.requests[1].messages[-1].text)

    signal = AbortSignal()
    config = Config(model=ScriptedModel([["Let me think", STALL]]), abort=signal)
    async for event in agent_loop("Go.", Context(), config):
        if isinstance(event, MessageUpdate):
            signal.abort("the user pressed Escape")
        elif isinstance(event, AgentEnd):
            print("ended:", event.stop_reason)


asyncio.run(main())
