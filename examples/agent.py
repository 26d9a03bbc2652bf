"""An agent: it keeps the history, takes what is said meanwhile, and tells listeners what happens."""

import asyncio

from agentloop import Agent, MessageUpdate, ToolExecutionStart, tool
from agentloop.testing import STALL, ScriptedModel, call


@tool
async def search(words: str) -> str:
    """Search."""
    return f"42 results for {words}"


async def main() -> None:
    model = ScriptedModel([[call("search", {"words": "owls"})], "D'accord.", ["Let me think", STALL], "Owls."])
    agent = Agent(model, system_prompt="Be brief.", tools=[search])

    def watch(event: object) -> None:
        if isinstance(event, ToolExecutionStart):
            agent.steer("In French, please.")
        elif isinstance(event, MessageUpdate) and event.message.text == "Let me think":
            agent.abort("the user pressed Escape")

    agent.subscribe(watch)
    await agent.prompt("Find owls.")
    print("said:", [message.text for message in agent.messages if message.role == "user"])

    agent.follow_up("And then?")
    end = await agent.prompt("Summarise.")
    print("ended:", end.stop_reason, "| still queued:", [message.text for message in agent.queued("follow_up")])

    agent.clear_queue()
    await agent.continue_()
    print("last:", agent.messages[-1].text)


asyncio.run(main())
