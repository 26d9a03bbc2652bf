"""Compaction: when the context grows too large the model writes a summary, which then stands for it."""

import asyncio

from agentloop import AgentEnd, CompactionEnd, Config, Context, agent_loop, tool
from agentloop.compaction import ContextReaches, Summarize
from agentloop.messages import Usage
from agentloop.model import UsageChunk
from agentloop.testing import ScriptedModel, call


@tool
async def read(name: str) -> str:
    """Read a file."""
    return f"{name}: 1, 2, 3"


async def main() -> None:
    model = ScriptedModel(
        [
            [call("read", {"name": "a.csv"}), UsageChunk(Usage(0, 900, 100))],  # what the provider reports: 1000 tokens
            "[summary]a.csv holds 1, 2, 3; their sum was asked for.[/summary]",
            "The sum is 6.",
        ]
    )
    config = Config(model=model, compaction=Summarize(when=ContextReaches.of_window(1250, 0.8)))
    async for event in agent_loop("Sum the numbers in a.csv.", Context(tools=[read]), config):
        if isinstance(event, CompactionEnd):
            print(f"compacted ({event.reason}): {event.status}")
        elif isinstance(event, AgentEnd):
            print([message.text for message in event.messages])
    print("messages of each request:", [len(request.messages) for request in model.requests])


asyncio.run(main())
