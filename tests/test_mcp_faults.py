"""MCP servers that misbehave: each costs its own tools, says clearly why, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agentloop import RequestEnd, ToolExecutionUpdate
from agentloop.mcp import McpServers, StdioServer
from agentloop.testing import call, collect
from tests.mcp_support import connected, end, lists, needs_mcp, nothing_left, problem, results, rude, run, texts

needs_mcp()
pytestmark = pytest.mark.anyio

on_asyncio = pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
"""For what does not touch the event loop in a way of its own."""


def act(do: str, name: str = "rude") -> Any:
    """A call of the rude server's tool."""
    return call(f"{name}__act", {"do": do})


# ---------------------------------------------------------------- connecting


async def test_servers_that_fail_to_connect_cost_only_their_own_tools() -> None:
    """Beside a server that works: one that exits, one that is not there, one that never answers, one whose list is no
    list, one that floods its output and one whose line never ends. All are tried at once; each failure says why."""
    servers = [
        rude("kept"),
        rude("exit", "exits"),
        StdioServer("missing", "/no/such/program"),
        rude("hang", "hangs", connect_timeout=0.6),
        rude("bad-list", "bad"),
        rude("flood", "floods"),
        rude("endless", "endless", max_message=100_000),
    ]
    with nothing_left():
        events = await collect(run(servers, [[act("")], "Done."]))
    told = connected(events)
    assert (told.status, told.error_code) == ("fatal", "connect_failed")
    words = {result.server: result.error_message or "" for result in told.results}
    assert [result.status for result in told.results] == ["completed", *["fatal"] * 6]
    assert words["exits"] == (
        "ended with exit code 7; its standard error ends:\nstarting as exit\nno  [31mlicence [0m found"
    )
    assert words["missing"] == "cannot be started: No such file or directory: /no/such/program"
    assert words["hangs"] == "did not answer within 0.6 s; its standard error ends:\nstarting as hang"
    assert words["bad"].startswith("tools.0.inputSchema: ")
    assert words["floods"].startswith("wrote more than 1048576 bytes that are no MCP messages; on its standard output")
    assert "no message" in words["floods"]
    assert words["endless"].startswith("sent a message of more than 100000 bytes")
    assert "missing: cannot be started" in (told.error_message or "")
    assert lists(events) == [["rude__act"]]
    assert texts(events) == ["done"]
    assert end(events).stop_reason == "completed"


async def test_noise_on_standard_output_is_borne() -> None:
    """Lines that are no messages, among them JSON, blanks and bytes that are not UTF-8, are let pass."""
    with nothing_left():
        events = await collect(run([rude("noisy")], [[act("noise")], "Done."]))
    assert connected(events).status == "completed"
    assert texts(events) == ["heard"]


@on_asyncio
async def test_messages_in_pieces() -> None:
    """Messages that come byte by byte, with carriage returns and blank lines between them, are whole."""
    with nothing_left():
        events = await collect(run([rude("trickle")], [[act("pid")], "Done."]))
    assert texts(events)[0].isdigit()


@on_asyncio
async def test_a_server_of_the_newer_protocol() -> None:
    """One that refuses the older handshake is spoken to in the newer way."""
    with nothing_left():
        events = await collect(run([rude("modern")], [[act("pid")], "Done."]))
    assert connected(events).status == "completed"
    assert texts(events)[0].isdigit()


@on_asyncio
async def test_a_failed_server_is_tried_again_by_the_next_run() -> None:
    """Servers that are kept: one that did not connect in the first run is tried again in the second."""
    with nothing_left():
        async with McpServers([rude("exit")]) as servers:
            for _ in range(2):
                assert problem(await collect(run(servers, ["Done."]))).startswith("ended with exit code 7")


# ---------------------------------------------------------------- calls


async def test_a_server_that_dies_in_a_call_is_started_again_by_the_next() -> None:
    """The call that meets the end is an error with exit code and last words, and is not repeated; the next one of its
    tools meets a new process; a sibling of another server is not touched."""
    replies = [
        [act("pid"), act("pid", "other")],
        [act("die"), act("pid", "other")],
        [act("pid"), act("pid", "other")],
        "Done.",
    ]
    with nothing_left():
        events = await collect(run([rude("kept"), rude("kept", "other")], replies))
    first, other, death, other_then, second, other_now = texts(events)
    assert death == (
        "The MCP server rude failed during the call: ended with exit code 3; its standard error ends:\n"
        "starting as kept\nout of memory"
    )
    assert results(events)[2].error_code == "tool_error"
    assert first.isdigit() and second.isdigit() and first != second
    assert other == other_then == other_now
    assert len(lists(events)) == 1


async def test_a_server_that_keeps_dying_is_withdrawn() -> None:
    """After `restarts` new starts its tools are in no further request, and a call of one is one of an unknown tool."""
    replies = [[act("kill")], [act("die")], [act("pid")], "Done."]
    with nothing_left():
        events = await collect(run([rude("kept", restarts=1)], replies))
    killed, died, gone = results(events)
    assert killed.result.text.startswith("The MCP server rude failed during the call: was ended by SIGKILL")
    assert died.result.text.startswith("The MCP server rude failed during the call: ended with exit code 3")
    assert gone.error_code == "unknown_tool"
    assert lists(events) == [["rude__act"], []]
    assert end(events).stop_reason == "completed"


async def test_an_end_that_the_pipes_do_not_tell() -> None:
    """A server that dies while a child of its own keeps its pipes open is noticed, and the child is ended with it."""
    with nothing_left(), anyio.fail_after(10):
        events = await collect(run([rude("orphan")], [[act("die")], "Done."]))
    assert texts(events)[0].startswith("The MCP server rude failed during the call: ended with exit code 3")


@on_asyncio
async def test_withdrawn_tools_come_back_with_the_next_run() -> None:
    """Servers that are kept: what one run saw die is started anew by the next, with all its restarts."""
    with nothing_left():
        async with McpServers([rude("kept", restarts=0)]) as servers:
            for _ in range(2):
                events = await collect(run(servers, [[act("die")], [act("pid")], "Done."]))
                assert lists(events) == [["rude__act"], []]
                assert [each.error_code for each in results(events)] == ["tool_error", "unknown_tool"]


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server() -> None:
    """The call's own time-out ends it with a clear result; the server is told, and goes on to serve."""
    with nothing_left():
        replies = [[act("hang")], [act("pid")], [act("die")], "Done."]
        events = await collect(run([rude("kept", timeout=0.2)], replies))
    late, after, death = results(events)
    assert late.error_code == "tool_timeout"
    assert late.result.text == ("The tool timed out after 0.2 s.\nThe MCP server rude was told to cancel the call.")
    assert after.result.text.isdigit()
    assert "\ncancelled " in death.result.text  # the server wrote down what it was told


@on_asyncio
async def test_answers_that_are_refusals_or_nonsense() -> None:
    """An error of the protocol and a result that is none are error results; the server stays."""
    with nothing_left():
        events = await collect(run([rude("kept")], [[act("refuse"), act("nonsense"), act("")], "Done."]))
    refused, nonsense, fine = results(events)
    assert refused.result.text == "The MCP server rude refused the call: unknown row"
    assert nonsense.result.text.startswith("The MCP server rude sent a result that is not MCP: ")
    assert [each.error_code for each in (refused, nonsense, fine)] == ["tool_error", "tool_error", None]


@on_asyncio
async def test_an_answer_over_the_bound() -> None:
    """A message longer than `max_message` ends the connection, not the run; within the bound it comes whole."""
    servers = [rude("kept", max_message=100_000), rude("kept", "wide")]
    with nothing_left():
        events = await collect(run(servers, [[act("huge"), act("huge", "wide")], [act("pid")], "Done."]))
    narrow, wide, after = results(events)
    assert narrow.result.text.startswith(
        "The MCP server rude failed during the call: sent a message of more than 100000 bytes"
    )
    assert wide.result.text == "x" * 200_000
    assert after.result.text.isdigit()


# ---------------------------------------------------------------- leaving


async def test_a_server_that_will_not_end_is_ended() -> None:
    """One that ignores its closed input and SIGTERM, and whose child holds its pipes: both are gone when the run is."""
    with nothing_left(), anyio.fail_after(10):
        events = await collect(run([rude("deaf")], [[act("")], "Done."]))
    assert texts(events) == ["done"]


@on_asyncio
async def test_many_calls_at_once_and_a_death_between_them() -> None:
    """All calls that are open when a server dies get an error result, none is lost, and the run goes on."""
    calls = [act("hang") for _ in range(20)]
    with nothing_left():
        events = await collect(run([rude("kept")], [[*calls, act("die")], "Done."]))
    assert len(texts(events)) == 21
    assert all("failed during the call: ended with exit code 3" in text for text in texts(events))
    assert [event.status for event in events if isinstance(event, RequestEnd)] == ["completed", "completed"]
    assert any(isinstance(event, ToolExecutionUpdate) for event in events)
