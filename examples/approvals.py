"""Approvals: a policy decides what it can, a person is asked about the rest, and what is denied becomes an error result."""

import asyncio

from agentloop import ApprovalDecision, Config, Context, ToolExecutionEnd, agent_loop, tool
from agentloop.approval import Approvals, Condition, Policy, Question, Rule
from agentloop.testing import ScriptedModel, call

RULES = [
    Rule("allow", tools="delete", where=[Condition("path", within="tmp")]),
    Rule("forbid", where=[Condition("path", glob="*.key")], reason="keys are never touched"),
]


@tool
async def delete(path: str) -> str:
    """Delete a file (here: only say so)."""
    return f"deleted {path}"


def ask(question: Question) -> None:
    """A person would see this and answer later, from anywhere: `approvals.pending`, `approvals.answer`."""
    print(f"may {question.tool_name} run with {question.arguments}?")
    approvals.answer(question, "deny")


approvals = Approvals(Policy(RULES, default="ask"), on_question=ask)


async def main() -> None:
    model = ScriptedModel([[call("delete", {"path": path}) for path in ("tmp/a", "tmp/b.key", "home")], "Done."])
    async for event in agent_loop("Clean up.", Context(tools=[delete]), Config(model=model, approve=approvals)):
        if isinstance(event, ApprovalDecision | ToolExecutionEnd):
            print(event.decision if isinstance(event, ApprovalDecision) else f"  {event.result.text}")


asyncio.run(main())
