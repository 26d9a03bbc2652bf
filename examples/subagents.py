"""Subagents: a task is handed to two agents at once; each is a session of its own, its events shown with its origin."""

import asyncio

from agentloop import ChildEvent, Config, Context, TokenUsage, Tool, ToolExecutionEnd, agent_loop
from agentloop.messages import Usage
from agentloop.model import UsageChunk
from agentloop.subagent import subagent
from agentloop.testing import ScriptedModel, call


def agent(name: str, answer: str) -> Tool:
    """An agent that answers with a fixed text."""
    model = ScriptedModel([[answer, UsageChunk(Usage(0, 40, 10))]])
    return subagent(name, "Looks one thing up.", model, max_running=2, make_session_id=lambda: f"session-{name}")


async def main() -> None:
    tools = [agent("north", "It rains."), agent("south", "The sun shines.")]
    tasks = [call(name, {"prompt": f"How is the weather in the {name}?"}) for name in ("north", "south")]
    parent = ScriptedModel(
        [[*tasks, UsageChunk(Usage(0, 20, 5))], ["Take an umbrella north.", UsageChunk(Usage(0, 30, 5))]]
    )
    origins = set()
    async for event in agent_loop("What do I pack?", Context(tools=tools), Config(model=parent)):
        match event:
            case ChildEvent(origin=origin):
                origins.add(origin)
            case ToolExecutionEnd(tool_name=name, result=result):
                print(f"{name}: {result.text}")
            case TokenUsage(session=session):
                print("tokens so far, children included:", session.total)
    print(sorted(origins))


asyncio.run(main())
