"""A transport of one's own: any async generator function of a request is a model."""

import asyncio
from collections.abc import AsyncIterator

from agentloop import AgentEnd, Config, Context, Usage, agent_loop
from agentloop.model import Finish, ModelChunk, ModelRequest, UsageChunk


async def echo(request: ModelRequest) -> AsyncIterator[ModelChunk]:
    """Say the last prompt again, a word at a time."""
    words = request.messages[-1].text.split()
    yield "You said:"
    for word in words:
        yield f" {word}"
    yield UsageChunk(Usage(output=2 + len(words), total=2 + 2 * len(words)))
    yield Finish("stop")


async def main() -> None:
    async for event in agent_loop("good morning", Context(), Config(model=echo)):
        if isinstance(event, AgentEnd):
            print(event.messages[-1].text)
            print(f"{event.stop_reason}, {event.usage.total} tokens")


asyncio.run(main())
