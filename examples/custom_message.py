"""A message of the application's own: the interface shows it, and the model never sees it."""

import asyncio
from typing import ClassVar

import attrs

from agentloop import Config, Context, CustomMessage, MessageEnd, agent_loop, user
from agentloop.testing import ScriptedModel


@attrs.frozen
class Notice(CustomMessage):
    """A line for the person who watches."""

    role: ClassVar[str] = "notice"
    text: str


async def main() -> None:
    model = ScriptedModel(["Hello."])
    async for event in agent_loop([Notice("Connected."), user("Hi")], Context(), Config(model=model)):
        if isinstance(event, MessageEnd):
            print(f"{event.message.role}: {event.message.text}")
    print("the model saw:", [message.role for message in model.requests[0].messages])


asyncio.run(main())
