"""Record a run on disk, then go on with it as another process would."""

import asyncio
import tempfile

from agentloop import AgentEnd, Config, Context, agent_loop
from agentloop.omni.recorder import record
from agentloop.omni.records import new_session_id, session_meta
from agentloop.omni.resume import resume_session
from agentloop.omni.trace import TraceWriter
from agentloop.testing import ScriptedModel


async def main() -> None:
    session = new_session_id()
    meta = session_meta(session, provider="scripted", model_id="script")
    with tempfile.TemporaryDirectory() as traces:
        with TraceWriter(traces, meta) as writer:
            config = Config(model=ScriptedModel(["Noted: blue."]))
            async for _ in record(agent_loop("My colour is blue.", Context(), config), writer):
                pass
        resumed = resume_session(traces, session)
    print([f"{message.role}: {message.text}" for message in resumed.messages])

    config = Config(model=ScriptedModel(["Blue."]))
    async for event in agent_loop("Which colour?", Context(messages=resumed.settled()), config):
        if isinstance(event, AgentEnd):
            print(event.messages[-1].text)


asyncio.run(main())
