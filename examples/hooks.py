"""Hooks: one watches calls, one adds to the prompt, one has the run go on until its work is done."""

import asyncio

from agentloop import Config, Context, Hook, HookAnswer, Hooks, ToolInvocation, TurnEnd, UserMessage, agent_loop, tool
from agentloop.testing import ScriptedModel, call


@tool
async def shell(command: str) -> str:
    """Run a command (here: only say so)."""
    return f"ran {command}"


def guard(invocation: ToolInvocation) -> HookAnswer | None:
    """Before each call: deny, allow, or say nothing."""
    return HookAnswer("deny", "no network") if "curl" in invocation.arguments["command"] else None


def remind(prompt: UserMessage) -> HookAnswer:
    """After each prompt: a text that the model reads and nobody typed."""
    return HookAnswer(message="Run the tests before you finish.")


def tested(end: TurnEnd) -> HookAnswer | None:
    """When the run would end: go on, with these words."""
    done = end.message is not None and "tests pass" in end.message.text
    return None if done else HookAnswer("continue", "not tested", "The tests were not run.")


async def main() -> None:
    model = ScriptedModel([[call("shell", {"command": "curl x"})], "Done.", "The tests pass."])
    config = Config(model=model, hooks=[Hooks("guard", guard), Hooks("tests", None, remind, tested)])
    async for event in agent_loop("Fix it.", Context(tools=[shell]), config):
        if isinstance(event, Hook):
            print(f"{event.name}: {event.decision} ({event.reason})")


asyncio.run(main())
