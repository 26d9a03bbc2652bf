"""A small world for tests of sessions: a tool that leaves a mark, and a model that is a function of what it is shown.

The model works off the keys of each task that it finds in the texts before it (prompts, what an interrupted turn is retold
as, the summary of an earlier context), a pair at a time: whatever a session loses or doubles shows in what it does.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs

from agentloop import AgentMessage, AssistantMessage, ToolResultMessage, Usage, UserMessage, tool
from agentloop.compaction import INSTRUCTIONS, Summarize, TurnsReach
from agentloop.model import Finish, ModelRequest, TextChunk, ToolCallChunk, UsageChunk
from agentloop.omni.trace import read, trace_files
from agentloop.session import Session

KEYS = {"A": ("A1", "A2", "A3"), "B": ("B1", "B2"), "C": ("C1",)}


class World:
    """One session's outside: what its tool did, and what its model was shown."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.asked: list[str] = []
        self.shown: list[Sequence[AgentMessage]] = []

        @tool
        async def work(key: str) -> str:
            """Do one piece of work."""
            self.ran.append(key)
            await anyio.lowlevel.checkpoint()
            return f"{key} is done"

        self.tools = (work,)

    def approve(self, request: Any) -> str:
        """Allow, and note what was asked."""
        self.asked.append(json.loads(request.arguments)["key"])
        return "allow"

    async def model(self, request: ModelRequest) -> AsyncIterator[Any]:
        """The next pair of keys that nobody has called for; a summary where one is asked for; else the end."""
        check_legal(request.messages)
        self.shown.append(tuple(request.messages))
        last = request.messages[-1]
        compacting = isinstance(last, UserMessage) and last.text == INSTRUCTIONS
        called = re.findall(r'"key": ?"(\w\d)"', calls_of(request.messages)) + re.findall(
            r"called (\w\d)", texts_of(request.messages)
        )
        tasks = sorted(set(re.findall(r"task (\w)", texts_of(request.messages))))
        waiting = [key for task in tasks for key in KEYS[task] if key not in called]
        yield UsageChunk(Usage(1, 2, 3))
        if compacting:
            results = " ".join(re.findall(r"\w\d is done|unknown", texts_of(request.messages)))
            tasks_told = " ".join(f"task {task}" for task in tasks)
            yield TextChunk(f"[summary]{tasks_told} {' '.join(f'called {key}' for key in called)} {results}[/summary]")
        for key in [] if compacting else waiting[:2]:
            yield ToolCallChunk(json.dumps({"key": key}), id=f"{key}-{uuid.uuid4().hex[:8]}", name="work")
        if not waiting and not compacting:
            yield TextChunk("All done.")
        yield Finish("tool_use" if waiting and not compacting else "stop")

    def open(self, traces: Path, **options: Any) -> Session:
        """The session again, as another process would."""
        return Session.open("s1", traces, self.model, tools=self.tools, **options)


def check_legal(messages: Iterable[AgentMessage]) -> None:
    """Each call has its result, in call order, right behind its reply; nothing else has one."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolResultMessage):
            assert waiting and waiting.pop(0) == message.tool_call_id, "a result without its call, or out of order"
            continue
        assert waiting == [], "a call without its result"
        if isinstance(message, AssistantMessage):
            assert message.stop_reason == "completed"
            waiting = [call.id for call in message.tool_calls]
    assert waiting == []


def texts_of(messages: Iterable[AgentMessage]) -> str:
    return "\n".join(
        getattr(message, "text", "") for message in messages if getattr(message, "text", "") != INSTRUCTIONS
    )


def calls_of(messages: Iterable[AgentMessage]) -> str:
    replies = [message for message in messages if isinstance(message, AssistantMessage)]
    return " ".join(call.arguments for reply in replies for call in reply.tool_calls)


@attrs.frozen
class Told:
    """What the lines of a trace say."""

    tasks: set[str]
    started: set[str]
    ended: set[str]
    allowed: set[str]

    @classmethod
    def of(cls, traces: Path) -> Told:
        """Read it from the records themselves, without the reader of sessions."""
        tasks, started, ended, allowed = set(), set(), set(), set()
        for file in trace_files(traces, "s1"):
            for record in read(file.path):
                payload = record["payload"]
                call = str(payload.get("tool_call_id", ""))[:2]
                match payload.get("type"):
                    case "text" if payload["role"] == "user" and payload["text"].startswith("Do task"):
                        tasks.add(payload["text"][-1])
                    case "tool_execution_start":
                        started.add(call)
                    case "tool_call_output":
                        ended.add(call)
                    case "approval_decision" if payload["decision"] == "allow":
                        allowed.add(call)
        return cls(tasks, started, ended, allowed)


def options(compacting: bool) -> dict[str, Any]:
    return {"compaction": Summarize(when=TurnsReach(2))} if compacting else {}


def count(traces: Path) -> int:
    return sum(len(file.path.read_bytes().splitlines()) for file in trace_files(traces, "s1"))
