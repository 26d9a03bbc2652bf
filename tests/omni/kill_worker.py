"""A recorded run that goes on from its trace, to be killed at any moment. Used by `test_kill.py`.

usage: kill_worker.py TRACES EFFECTS. Prints a line for each event after it was recorded; exits 0 when the task is done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio

from agentloop.config import Config
from agentloop.context import Context
from agentloop.events import MessageEnd
from agentloop.loop import agent_loop, agent_loop_continue
from agentloop.messages import AgentMessage, AssistantMessage, ToolResultMessage
from agentloop.model import Finish, TextChunk, ToolCallChunk
from agentloop.omni.recorder import record
from agentloop.omni.records import session_meta
from agentloop.omni.resume import reopen
from agentloop.omni.trace import TraceWriter, latest_file
from agentloop.tools import tool

TRACES, EFFECTS = Path(sys.argv[1]), sys.argv[2]
TURNS = 5


@tool
async def append(key: str) -> str:
    """Leave a line that no crash takes back."""
    fd = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{key}\n".encode())
    os.close(fd)
    await anyio.lowlevel.checkpoint()
    return f"{key} is written"


def check_legal(messages: Sequence[AgentMessage]) -> None:
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            assert waiting.pop(0) == message.tool_call_id
            continue
        assert waiting == [], "a call without its result"
        if isinstance(message, AssistantMessage):
            waiting = [call.id for call in message.tool_calls]
    assert waiting == []


async def model(request: Any) -> AsyncIterator[Any]:
    """The next reply is a function of the history: a few turns of two calls, then a text."""
    check_legal(request.messages)
    turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
    if turn < TURNS:
        for name in "ab":
            yield ToolCallChunk(f'{{"key": "{turn}{name}"}}', id=f"call_{turn}{name}", name="append")
        yield Finish("tool_use")
        return
    for piece in ("All ", "done."):
        yield TextChunk(piece)
    yield Finish("stop")


def begin() -> tuple[Any, TraceWriter] | None:
    """The run that comes next, and its writer; None when the task is done."""
    config = Config(model=model)
    if latest_file(TRACES, "s1") is None:
        trace = TraceWriter(TRACES, session_meta("s1", provider="p", model_id="m"))
        return agent_loop("Write.", Context("", (), (append,)), config), trace
    resumed, trace = reopen(TRACES, "s1")
    messages = resumed.settled()
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage) and not last.tool_calls:
        trace.close()
        return None
    if resumed.inputs:
        return agent_loop([], Context("", (*messages, *resumed.inputs), (append,)), config), trace
    if not messages:
        return agent_loop("Write.", Context("", (), (append,)), config), trace
    return agent_loop_continue(Context("", messages, (append,)), config), trace


async def main() -> None:
    begun = begin()
    if begun is None:
        return
    events, trace = begun
    with trace:
        async for event in record(events, trace):
            told = event.message if isinstance(event, MessageEnd) else None
            done = told.tool_call_id if isinstance(told, ToolResultMessage) else ""
            os.write(1, f"{event.type} {done}\n".encode())


anyio.run(main)
