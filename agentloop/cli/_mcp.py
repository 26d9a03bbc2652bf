"""`--mcp COMMAND|URL` and `--mcp-config FILE`: tools from MCP servers."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from agentloop.cli import UsageError
from agentloop.config import ToolSource
from agentloop.errors import MissingExtra
from agentloop.mcp import HttpServer, McpServer, McpServers, StdioServer, read_mcp_config

_LAUNCHERS: Final = (
    "npx",
    "bunx",
    "uvx",
    "uv",
    "pipx",
    "node",
    "bun",
    "deno",
    "python",
    "python3",
    "docker",
    "env",
    "sh",
)
"""Programs that say nothing about the server that they start."""


def add_mcp_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name MCP servers."""
    parser.add_argument(
        "--mcp",
        action="append",
        default=[],
        metavar="COMMAND|URL",
        help="offer the tools of an MCP server, named SERVER__TOOL: a command that starts it, in quotes, or its address",
    )
    parser.add_argument(
        "--mcp-config",
        action="append",
        default=[],
        metavar="FILE",
        help="the same for a JSON file with mcpServers, which also names them",
    )


def mcp_source(words: Sequence[str], files: Sequence[str]) -> ToolSource | None:
    """The source of the tools of these servers; None without any. Raises `UsageError`."""
    servers: list[McpServer] = []
    for file in files:
        try:
            servers += read_mcp_config(file)
        except OSError as error:
            raise UsageError(f"--mcp-config: expected a JSON file, got {file} ({error.strerror})") from None
        except ValueError as error:
            raise UsageError(f"--mcp-config: {error}") from None
    for word in words:
        servers.append(_server(word, {server.name for server in servers}))
    if not servers:
        return None
    for name in ("mcp", "client"):  # the SDK's: what it says about a server, our events say
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        return McpServers(servers)
    except (MissingExtra, ValueError) as error:
        raise UsageError(f"--mcp: {error}") from None


def _server(words: str, taken: set[str]) -> McpServer:
    if words.startswith(("http://", "https://")):
        return HttpServer(_free(urlsplit(words).hostname or "http", taken), words)
    try:
        parts = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--mcp: expected a command or an address, got {words!r} ({error})") from None
    if not parts or not parts[0]:
        raise UsageError(f"--mcp: expected a command or an address, got {words!r}")
    command, *arguments = parts
    return StdioServer(_free(_name(command, arguments), taken), command, arguments)


def _name(command: str, arguments: Sequence[str]) -> str:
    """A name for the server of a command: its program, or what a launcher is told to run."""
    words = [word for word in (command, *arguments) if not word.startswith("-") and "=" not in word]
    programs = [PurePath(word.rstrip("/")).stem for word in words if word not in ("run", "exec", "tool")]
    telling = [program for program in programs if re.sub(r"[\d.]+$", "", program) not in _LAUNCHERS]
    name = (telling or programs or ["server"])[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-") or "server"


def _free(name: str, taken: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    number = 1
    free = name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    return free
