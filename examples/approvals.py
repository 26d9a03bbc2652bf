"""Approvals: each call is asked about before it runs; a denied one gets an error result that the model sees."""

import asyncio

from agentloop import ApprovalDecision, ApprovalRequest, Config, Context, Decision, ToolExecutionEnd, agent_loop, tool
from agentloop.testing import ScriptedModel, call


@tool
async def delete(path: str) -> str:
    """Delete a file (here: only say so)."""
    return f"deleted {path}"


async def approve(request: ApprovalRequest) -> Decision:
    """Allow what is in tmp/; a person could be asked here."""
    return "allow" if '"tmp/' in request.arguments else "deny"


async def main() -> None:
    calls = [call("delete", {"path": "tmp/a"}), call("delete", {"path": "home"})]
    model = ScriptedModel([calls, "Done."])
    async for event in agent_loop("Clean up.", Context(tools=[delete]), Config(model=model, approve=approve)):
        match event:
            case ApprovalDecision(decision=decision, tool_call_id=id):
                print(f"{id}: {decision}")
            case ToolExecutionEnd(tool_call_id=id, result=result, error_code=code):
                print(f"{id} ended ({code}): {result.text}")


asyncio.run(main())
