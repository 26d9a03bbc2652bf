"""What the tests of MCP share: the two servers of `mcp_servers/`, a run to its end, and the check that no process is left."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentEnd, Config, Context, Event, McpConnectEnd, ToolExecutionEnd, ToolListReady, agent_loop
from agentloop.mcp import McpServers, StdioServer
from agentloop.testing import ScriptedModel

FOLDER = Path(__file__).parent / "mcp_servers"
MARK = "AGENTLOOP_TEST_MARK"
_numbers = itertools.count()


def polite(name: str = "polite", **fields: Any) -> StdioServer:
    """The server that behaves."""
    return _server(name, ["polite.py"], fields)


def rude(how: str, name: str = "rude", **fields: Any) -> StdioServer:
    """The server that misbehaves."""
    return _server(name, ["rude.py", how], fields)


def _server(name: str, words: Sequence[str], fields: dict[str, Any]) -> StdioServer:
    script, *rest = words
    env = {MARK: mark(), **fields.pop("env", {})}
    return StdioServer(name, sys.executable, [str(FOLDER / script), *rest], env, **fields)


def mark() -> str:
    """What marks the processes of this test run, and what they start."""
    return f"mark-{os.getpid()}"


def marked() -> list[int]:
    """The processes that bear the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark()}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has ended meanwhile, or is another user's
                continue
    return found


def zombies() -> list[int]:
    """Our children that have ended and were not reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """No process of a server, nor of its children, is there after the block; none is a zombie."""
    yield
    if Path("/proc").is_dir():
        assert zombies() == []
        for _ in range(500):  # a grandchild that was killed is not ours to wait for; the kernel takes a moment
            if not marked():
                break
            time.sleep(0.01)
        assert marked() == []


def run(servers: Any, replies: Sequence[Any], **config: Any) -> Any:
    """A run with these servers and a scripted model."""
    source = servers if isinstance(servers, McpServers) else McpServers(servers)
    return agent_loop("Go.", Context(), Config(model=ScriptedModel(list(replies)), tool_source=source, **config))


def connected(events: Sequence[Event]) -> McpConnectEnd:
    """How connecting ended."""
    return next(event for event in events if isinstance(event, McpConnectEnd))


def problem(events: Sequence[Event]) -> str:
    """Why the first server did not connect."""
    result = connected(events).results[0]
    assert (result.status, result.error_code, result.tools) == ("fatal", "connect_failed", None)
    return result.error_message or ""


def results(events: Sequence[Event]) -> list[ToolExecutionEnd]:
    """The ends of the calls, in the order of their ids."""
    ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
    return sorted(ends, key=lambda end: int(end.tool_call_id.rpartition("_")[2]))


def texts(events: Sequence[Event]) -> list[str]:
    """The texts of the calls' results."""
    return [end.result.text for end in results(events)]


def lists(events: Sequence[Event]) -> list[list[str]]:
    """The names in each list of tools."""
    return [[tool.name for tool in event.tools] for event in events if isinstance(event, ToolListReady)]


def end(events: Sequence[Event]) -> AgentEnd:
    """The end of the run."""
    last = events[-1]
    assert isinstance(last, AgentEnd)
    return last


def needs_mcp() -> None:
    """Skip the module where the SDK is not installed."""
    pytest.importorskip("mcp", reason="needs the official MCP SDK: pip install 'agentloop[mcp]'")


async def forever(events: AsyncIterator[Event]) -> None:
    """Take all events."""
    async for _ in events:
        pass
