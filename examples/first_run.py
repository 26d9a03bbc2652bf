"""A first run: the offline model asks for a tool, and the loop yields each event as it happens."""

import asyncio

from agentloop import Config, Context, MessageUpdate, TextDelta, ToolExecutionEnd, agent_loop, tool
from agentloop.models.offline import OfflineModel


@tool
async def shout(text: str) -> str:
    """Put a text in capitals."""
    return text.upper()


async def main() -> None:
    events = agent_loop('call shout {"text": "hello"}', Context(tools=[shout]), Config(model=OfflineModel()))
    async for event in events:
        match event:
            case MessageUpdate(delta=TextDelta(text=text)):
                print(text, end="")
            case ToolExecutionEnd(tool_name=name, result=result):
                print(f"[{name}: {result.text}]")
    print()


asyncio.run(main())
