"""The descriptions of MCP servers, the names of their tools, and the blocks of their results, without a server."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._mcp.names import Names
from agentloop.mcp import HttpServer, McpServers, StdioServer, mcp_servers, read_mcp_config
from agentloop.testing import collect_sync
from tests.mcp_support import lists, needs_mcp, nothing_left, rude, run

ENVIRONMENT = {"HOME": "/home/me", "TOKEN": "s3cret"}


def test_the_shared_shape(tmp_path: Path) -> None:
    """Commands and addresses, variables with and without a default, what is disabled, and what others put there."""
    config = {
        "mcpServers": {
            "files": {"command": "${HOME}/bin/files", "args": ["--root", "${ROOT:-.}"], "env": {"T": "${TOKEN}"}},
            "off": {"command": "x", "disabled": True},
            "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
            "plain": {"url": "http://localhost:1/mcp", "icon": "a.png"},
            "here": {"type": "stdio", "command": "y", "cwd": "${HOME}"},
        },
        "inputs": [],
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(config))
    servers = read_mcp_config(file, ENVIRONMENT)
    assert servers == mcp_servers(config, ENVIRONMENT)
    assert servers == (
        StdioServer("files", "/home/me/bin/files", ["--root", "."], {"T": "s3cret"}),
        HttpServer("web", "https://example.com/mcp", {"Authorization": "Bearer s3cret"}),
        HttpServer("plain", "http://localhost:1/mcp"),
        StdioServer("here", "y", cwd="/home/me"),
    )
    assert "s3cret" not in repr(servers)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], r"\$: expected an object, got an array"),
        ({}, "mcpServers: expected an object, got null"),
        ({"mcpServers": {"a": 1}}, "mcpServers.a: expected an object, got a number"),
        ({"mcpServers": {"a": {}}}, "mcpServers.a.command: expected a string, got null"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "mcpServers.a.args: expected an array of strings"),
        ({"mcpServers": {"a": {"command": "x", "args": [1]}}}, r"mcpServers.a.args\[0\]: expected a string"),
        ({"mcpServers": {"a": {"command": "${NONE}"}}}, "mcpServers.a.command: the environment variable NONE is not"),
        ({"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}, "mcpServers.a.type: expected stdio or http, got"),
        ({"mcpServers": {"a": {"url": "ftp://x"}}}, "a: url: expected an address that begins with http"),
    ],
)
def test_a_wrong_shape(config: Any, says: str, tmp_path: Path) -> None:
    """The error names the place."""
    with pytest.raises(ValueError, match=says):
        mcp_servers(config, ENVIRONMENT)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{re.escape(str(file))}: .*{says}"):
        read_mcp_config(file, ENVIRONMENT)


def test_text_that_is_no_json(tmp_path: Path) -> None:
    """The error names the file."""
    file = tmp_path / "mcp.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="expected JSON, got text that is not"):
        read_mcp_config(file)


def test_descriptions_are_checked() -> None:
    """A blank name, a text for the arguments, a wrong time or number: an error where the server is described."""
    with pytest.raises(ValueError, match=r"StdioServer.name: expected a text that is not blank"):
        StdioServer(" ", "x")
    with pytest.raises(TypeError, match="args: expected a list of words, got the text 'a b'"):
        StdioServer("a", "x", "a b")
    with pytest.raises(ValueError, match="a: connect_timeout: expected seconds above 0, got 0"):
        StdioServer("a", "x", connect_timeout=0)
    with pytest.raises(ValueError, match="a: restarts: expected a number from 0, got -1"):
        HttpServer("a", "http://x", restarts=-1)


# ---------------------------------------------------------------- names


@given(st.lists(st.tuples(st.sampled_from(["a", "b.c", "b_c", "ü"]), st.text(max_size=90)), max_size=20), st.booleans())
def test_names_are_legal_and_distinct(tools: list[tuple[str, str]], bare: bool) -> None:
    """Whatever servers and tools are called: names that every provider takes, one for each tool, the same in any order."""
    names = Names()
    given_names = {key: names.give(*key, "" if bare else None) for key in tools}
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", name) for name in given_names.values())
    assert len(set(given_names.values())) == len(given_names)
    assert {key: names.give(*key, "" if bare else None) for key in reversed(tools)} == given_names


def test_names_and_schemas_in_a_run() -> None:
    """Long and colliding names end in a hash; a tool that is listed twice counts once."""
    needs_mcp()
    with nothing_left():
        events = collect_sync(run([rude("names", "r")], ["Done."]))
    long, longer, first, second = lists(events)[0]
    assert re.fullmatch(r"r__x{52}_[0-9a-f]{8}", long) and re.fullmatch(r"r__x{52}_[0-9a-f]{8}", longer)
    assert long != longer
    assert first == "r__a_b" and re.fullmatch(r"r__a_b_[0-9a-f]{8}", second)


def test_only_some_tools() -> None:
    """`only` names the tools to offer, `prefix` what stands before their names."""
    needs_mcp()
    with nothing_left():
        events = collect_sync(run([rude("names", "r", only=["a.b"], prefix="my-")], ["Done."]))
    assert lists(events) == [["my-a_b"]]


def test_servers_are_checked() -> None:
    """Two servers of one name, and what is no server, are errors that name the place."""
    needs_mcp()
    with pytest.raises(ValueError, match=r"servers\[1\]: expected servers of different names, got two named 'a'"):
        McpServers([StdioServer("a", "x"), HttpServer("a", "http://x")])
    with pytest.raises(TypeError, match=r"servers\[0\]: expected a StdioServer or an HttpServer, got str"):
        McpServers(["npx server"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="servers: expected a list of servers, got StdioServer"):
        McpServers(StdioServer("a", "x"))  # type: ignore[arg-type]


def test_describing_servers_loads_no_sdk() -> None:
    """The SDK is loaded at the first connection and not before."""
    import subprocess

    code = "import sys, agentloop.mcp as m; m.StdioServer('a', 'x'); print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# ---------------------------------------------------------------- results


def test_results() -> None:
    """What `structured` cannot keep is said; structured content alone becomes text; an unknown shape of progress too."""
    needs_mcp()
    import mcp_types as types

    from agentloop._mcp.results import progress_of, result_of

    alone = result_of(types.CallToolResult(content=[], structured_content={"a": [1, None]}))
    assert (alone.text, alone.structured) == ('{"a":[1,null]}', {"a": [1, None]})
    odd = result_of(types.CallToolResult(content=[], structured_content={"a": float("nan")}, is_error=True))
    assert odd.structured is None and "cannot be kept" in odd.text and odd.is_error
    assert result_of(types.CallToolResult(content=[])).content == ()

    picture = types.ImageContent(type="image", data="AAEC", mime_type="image/svg+xml")
    assert result_of(types.CallToolResult(content=[picture])).text == (
        "[image of the type image/svg+xml, 3 bytes, not shown]"
    )

    assert progress_of(1.0, None, None).text == "1"
    assert progress_of(0.5, 2.0, "half").text == "half (0.5 of 2)"
    assert progress_of(float("nan"), None, "odd").text == "odd"
    assert progress_of(float("nan"), float("inf"), None).structured == {}
