"""A session: recorded runs behind an approval, as events and as records; then gone on with as another process would."""

import asyncio
import tempfile

from agentloop import MessageUpdate, TextDelta, ToolExecutionEnd, tool
from agentloop.models.offline import OfflineModel
from agentloop.omni.records import is_complete_model_message, user_text
from agentloop.session import Session


@tool
def calculate(expression: str) -> str:
    """Work out a sum of two numbers."""
    first, second = expression.split("+")
    return str(int(first) + int(second))


async def main() -> None:
    with tempfile.TemporaryDirectory() as traces:
        async with Session.create(traces, OfflineModel(), tools=[calculate]) as session:
            async for event in session.run("what is 2+3?", approve=lambda request: "allow"):
                match event:
                    case MessageUpdate(delta=TextDelta(text=piece)):
                        print(piece, end="")
                    case ToolExecutionEnd(tool_name=name, result=result):
                        print(f"[{name}: {result.text}]")
            print()
        async with Session.open(session.id, traces, OfflineModel(), tools=[calculate]) as session:
            async for record in session.records([user_text("what is 4+5?")]):  # nobody to ask: the call is denied
                if is_complete_model_message(record):
                    print(record["payload"]["type"], record["payload"].get("output", ""))
            print(len(session.history().messages), "messages,", session.usage.total, "tokens")


asyncio.run(main())
