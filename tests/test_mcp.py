"""MCP servers that behave, over stdio and loopback HTTP: what their tools do in a run, on all backends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from agentloop import (
    AbortSignal,
    Config,
    Context,
    Event,
    Image,
    InlineData,
    McpConnectBegin,
    McpConnectEnd,
    MessageEnd,
    RequestBegin,
    Text,
    ToolExecutionEnd,
    ToolExecutionUpdate,
    ToolListReady,
    agent_loop,
    running,
    tool,
)
from agentloop.errors import MissingExtra
from agentloop.mcp import HttpServer, McpServers
from agentloop.testing import ScriptedModel, call, collect
from tests.mcp_support import (
    FOLDER,
    connected,
    end,
    lists,
    marked,
    needs_mcp,
    nothing_left,
    polite,
    results,
    rude,
    run,
    texts,
)

needs_mcp()
pytestmark = pytest.mark.anyio


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The polite server over HTTP, from when it listens."""
    process = subprocess.Popen([sys.executable, str(FOLDER / "polite.py"), str(port)])
    try:
        for _ in range(2000):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the polite server is."""
    port = free_port()
    with serving(port):
        yield f"http://127.0.0.1:{port}/mcp"


# ---------------------------------------------------------------- over stdio


async def test_a_server_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run with a real server: connecting, schemas, calls, progress, structured content, an error, a new list."""
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    first = [
        call("polite__add", {"a": 1, "b": 2}),
        call("polite__add", {"a": 1, "b": -2}),
        call("polite__fail"),
        call("polite__environment"),
        call("polite__media"),
        call("polite__files_read-all"),
    ]
    with nothing_left():
        replies = [first, [call("polite__grow")], [call("polite__grown")], "Done."]
        events = await collect(run([polite(env={"GIVEN": "1"})], replies))
    assert end(events).stop_reason == "completed"

    begin = next(index for index, event in enumerate(events) if isinstance(event, McpConnectBegin))
    assert events[begin] == McpConnectBegin(("polite",))
    assert isinstance(events[begin - 1], MessageEnd)
    connect_end, ready = events[begin + 1 : begin + 3]
    assert isinstance(connect_end, McpConnectEnd) and isinstance(ready, ToolListReady)
    assert connect_end.status == "completed"
    status = connect_end.results[0]
    assert (status.server, status.transport, status.status, status.tools) == ("polite", "stdio", "completed", 8)

    names = ["add", "environment", "media", "fail", "grow", "hang", "long", "files_read-all"]
    assert lists(events) == [[f"polite__{name}" for name in names], [f"polite__{name}" for name in [*names, "grown"]]]
    adder = ready.tools[0]
    assert (adder.label, adder.description) == ("Adder", "Add two numbers.")
    assert adder.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 0}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }

    ends = results(events)
    assert (ends[0].result.text, ends[0].result.structured) == ("3", {"sum": 3})
    update = next(event for event in events if isinstance(event, ToolExecutionUpdate))
    assert update.tool_call_id == "call_1" and update.partial_result is not None
    assert update.partial_result.text == "adding (1 of 2)"
    assert update.partial_result.structured == {"progress": 1, "total": 2}
    assert ends[1].error_code == "invalid_arguments"
    assert (ends[2].result.text, ends[2].error_code) == ("no such row", "tool_error")
    environment = ends[3].result
    assert environment.text.startswith('{"names":') and "SECRET_TOKEN" not in environment.text
    assert {"GIVEN", "PATH"} <= set(environment.structured["names"])
    assert ends[5].result.text == "done"
    assert ends[7].result.text == "grown up"

    media = ends[4].result
    picture, sound = media.content[1:3]
    assert isinstance(picture, Image) and picture.url.startswith("data:image/png;base64,iVBORw0KGgo")
    assert sound == InlineData("AAEC", "audio/wav")
    assert [block.text for block in media.content if isinstance(block, Text)] == [
        "look:",
        "[image of the type image/png: its data is not base64]",
        "[resource a: file:///a (text/plain, 6 bytes)]",
        "[resource file:///a.txt]\ninside",
        "[resource file:///a.bin of the type application/zip, 3 bytes, not shown]",
    ]
    assert media.details == {
        "content": [
            {"mime_type": "image/png", "data": "not base64!"},
            {"mime_type": "application/zip", "data": "AAEC"},
        ],
        "meta": {"took": 3},
    }


async def test_the_servers_may_be_kept_over_several_runs() -> None:
    """Within `async with` two runs, one after the other and side by side, meet one process; it ends with the block."""
    who = [[call("rude__act", {"do": "pid"})], "Done."]
    seen: list[list[str]] = []
    with nothing_left():
        async with McpServers([rude("kept")]) as servers:
            seen.append(texts(await collect(run(servers, who))))

            async def another() -> None:
                seen.append(texts(await collect(run(servers, who))))

            async with anyio.create_task_group() as group:
                group.start_soon(another)
                group.start_soon(another)
            assert [each.name for each in servers.tools] == ["rude__act"]
    assert len(seen) == 3 and seen[0] == seen[1] == seen[2]
    assert seen[0][0].isdigit()


async def test_kept_servers_give_plain_tools() -> None:
    """Within the block `tools` may be given to a run like any others; behind it a call says that the server was
    disconnected, and does not wait."""
    with nothing_left():
        async with McpServers([rude("kept")]) as servers:
            tools = servers.tools
            inside = await collect(agent_loop("Go.", Context(tools=tools), Config(model=_asks("pid"))))
        behind = await collect(agent_loop("Go.", Context(tools=tools), Config(model=_asks("pid"))))
    assert texts(inside)[0].isdigit()
    assert texts(behind) == ["The MCP server rude was disconnected."]


def _asks(do: str) -> ScriptedModel:
    return ScriptedModel([[call("rude__act", {"do": do})], "Done."])


async def test_the_callers_own_tools_come_first() -> None:
    """A tool of the caller's keeps its name before a server's; the others of the server are offered."""

    @tool(name="act")
    async def own() -> str:
        return "mine"

    model = ScriptedModel([[call("act")], "Done."])
    config = Config(model=model, tool_source=McpServers([rude("names", prefix="")]))
    with nothing_left():
        events = await collect(agent_loop("Go.", Context(tools=[own]), config))
    assert texts(events) == ["mine"]
    assert lists(events)[0][0] == "act"


# ---------------------------------------------------------------- over HTTP


async def test_a_server_over_http(address: str) -> None:
    """The same over streamable HTTP: calls, progress, structured content, an error, a long result."""
    calls = [call("web__add", {"a": 2, "b": 3}), call("web__fail"), call("web__long", {"size": 3_000_000})]
    events = await collect(run([HttpServer("web", address)], [calls, "Done."]))
    status = connected(events).results[0]
    assert (status.transport, status.status) == ("http", "completed")
    ends = results(events)
    assert (ends[0].result.text, ends[0].result.structured) == ("5", {"sum": 5})
    assert (ends[1].result.text, ends[1].error_code) == ("no such row", "tool_error")
    assert len(ends[2].result.text) == 3_000_000


async def test_an_aborted_call_is_cancelled_at_a_server_over_http(address: str, tmp_path: Path) -> None:
    """After an abort the server hears of it, and the call's result says so."""
    abort = AbortSignal()
    file = tmp_path / "hang"
    seen = []
    source = McpServers([HttpServer("web", address)])
    async for event in run(source, [[call("web__hang", {"file": str(file)})]], abort=abort):
        seen.append(event)
        if isinstance(event, ToolExecutionUpdate):
            abort.abort("enough")
    assert texts(seen) == ["The MCP server web was told to cancel the call."]
    assert results(seen)[0].error_code == "aborted"
    with anyio.fail_after(5):
        while not file.exists():  # noqa: ASYNC110  # another process writes it
            await anyio.sleep(0.01)


async def test_an_http_server_that_is_not_there(address: str) -> None:
    """It costs only its tools; where something answers, its HTTP status is told. Headers are in no text."""
    nowhere = f"http://127.0.0.1:{free_port()}/mcp"
    headers = {"Authorization": "Bearer s3cret"}
    servers = [
        HttpServer("gone", nowhere, headers),
        HttpServer("wrong", address.replace("/mcp", "/elsewhere"), headers),
        HttpServer("web", address, headers),
    ]
    events = await collect(run(servers, [[call("web__add", {"a": 1, "b": 1})], "Done."]))
    told = connected(events)
    assert (told.status, told.error_code) == ("fatal", "connect_failed")
    assert [result.status for result in told.results] == ["fatal", "fatal", "completed"]
    assert "failed" in (told.results[0].error_message or "")
    assert "404" in (told.results[1].error_message or "")
    assert "s3cret" not in repr((told, servers))
    assert texts(events) == ["2"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_http_server_that_dies_in_a_call_and_comes_back(tmp_path: Path) -> None:
    """The call that meets the end is an error; one that finds nobody says so; the next finds the new server."""
    port = free_port()
    first, second = serving(port), serving(port)
    process = first.__enter__()
    hang = call("web__hang", {"file": str(tmp_path / "hang")})
    add = call("web__add", {"a": 1, "b": 1})
    seen: list[Event] = []
    try:
        async for event in run([HttpServer("web", f"http://127.0.0.1:{port}/mcp")], [[hang], [add], [add], "Done."]):
            seen.append(event)
            if isinstance(event, ToolExecutionUpdate) and event.tool_name == "web__hang":
                process.kill()
            if isinstance(event, ToolExecutionEnd) and event.tool_call_id == "call_2":
                second.__enter__()
    finally:
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
    lost, nobody, found = texts(seen)
    assert lost.startswith("The MCP server web failed during the call: ")
    assert nobody.startswith("The MCP server web could not be connected to again: ")
    assert found == "2"


# ---------------------------------------------------------------- leaving


@pytest.mark.parametrize("how", ["break", "running", "cancel", "abort"])
async def test_leaving_in_a_call_leaves_nothing(how: str) -> None:
    """However a run is left while a server works on a call: its process is ended and reaped, nothing warns."""
    abort = AbortSignal()
    events = run([rude("kept")], [[call("rude__act", {"do": "hang"})]], abort=abort)
    with nothing_left():
        if how == "break":
            async for event in events:
                if isinstance(event, ToolExecutionUpdate):
                    break
            await events.aclose()
        elif how == "running":
            async with running(events) as stepped:
                async for event in stepped:
                    if isinstance(event, ToolExecutionUpdate):
                        break
        elif how == "cancel":
            with anyio.CancelScope() as scope:
                async for event in events:
                    if isinstance(event, ToolExecutionUpdate):
                        scope.cancel()
            await events.aclose()
        else:
            seen = []
            async for event in events:
                seen.append(event)
                if isinstance(event, ToolExecutionUpdate):
                    abort.abort("enough")
            assert end(seen).error_code == "user_abort"


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_leaving_while_a_server_hangs_in_its_start(how: str) -> None:
    """A server that never answers does not hold up an abort or a cancellation: it is ended at once, long before its
    time-out and without waiting for the time that closing may take."""
    abort = AbortSignal()
    source = McpServers([rude("hang")])
    source.closing_bound = 60.0
    events = run(source, ["Never."], abort=abort)
    seen: list[Event] = []
    with nothing_left(), anyio.fail_after(20):
        async with anyio.create_task_group() as group:

            async def leave() -> None:
                while not marked():  # noqa: ASYNC110  # until the process is there
                    await anyio.sleep(0.01)
                abort.abort() if how == "abort" else group.cancel_scope.cancel()

            group.start_soon(leave)
            async for event in events:
                seen.append(event)
        await events.aclose()
    if how == "abort":
        assert connected(seen) == McpConnectEnd("aborted")
        assert end(seen).error_code == "user_abort"
    assert not any(isinstance(event, RequestBegin) for event in seen)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_that_ends_leaves_no_process(backend: str) -> None:
    """A script that breaks off and ends its event loop without closing anything leaves no process and says nothing."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import anyio
from tests.mcp_support import nothing_left, rude, run
from agentloop import ToolExecutionUpdate
from agentloop.testing import call

async def main():
    async for event in run([rude("kept")], [[call("rude__act", {{"do": "hang"}})]]):
        if isinstance(event, ToolExecutionUpdate):
            break

with nothing_left():
    anyio.run(main, backend={backend!r})
print("nothing left")
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert (done.stdout, done.stderr) == ("nothing left\n", "")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK the error names the extra, when the servers are described and not in the middle of a run."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agentloop\[mcp\]'"):
        McpServers([rude("kept")])
