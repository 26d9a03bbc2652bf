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
    """Behind each prompt: a text of the harness."""
    return HookAnswer(message="Run the tests before you finish.")


def tested(end: TurnEnd) -> HookAnswer | None:
    """When the run would end: go on, with these words."""
    return (
        None
        if end.message and "tests pass" in end.message.text
        else HookAnswer("continue", "not tested", "The tests were not run.")
    )


async def main() -> None:
    model = ScriptedModel([[call("shell", {"command": "curl x"})], "Done.", "The tests pass."])
    hooks = [Hooks("guard", pre_tool_use=guard), Hooks("tests", user_prompt=remind, stop=tested)]
    async for event in agent_loop("Fix it.", Context(tools=[shell]), Config(model=model, hooks=hooks)):
        if isinstance(event, Hook):
            print(f"{event.name}: {event.decision} ({event.reason})")
    print(f"{len(model.requests)} requests")


asyncio.run(main())
