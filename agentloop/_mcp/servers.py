"""Which MCP servers to connect to: their descriptions as values, and the `mcpServers` JSON that many programs share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs

from agentloop.messages import json_type

MAX_MESSAGE: Final = 16 * 1024 * 1024
"""Default of the longest message that a server may send, in bytes."""


def _strings(items: Sequence[str]) -> tuple[str, ...]:
    if isinstance(items, str):
        raise TypeError(f"args: expected a list of words, got the text {items!r}")
    return tuple(items)


def _seconds(server: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{server.name}: {attribute.name}: expected seconds above 0, got {value!r}")


def _name(server: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{type(server).__name__}.{attribute.name}: expected a text that is not blank, got {value!r}")


def _count(server: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value < 0:
        raise ValueError(f"{server.name}: {attribute.name}: expected a number from 0, got {value!r}")


def _dict(items: Mapping[str, str] | None) -> dict[str, str]:
    return dict(items or {})


@attrs.frozen(kw_only=True)
class _Server:
    """What both kinds of servers have."""

    connect_timeout: float = attrs.field(default=30.0, validator=_seconds)
    """Seconds for the start, the handshake and the list of tools together."""
    timeout: float | None = attrs.field(default=300.0, validator=_seconds)
    """Seconds that a call may take; None: `Config.tool_timeout`."""
    restarts: int = attrs.field(default=3, validator=_count)
    """How often a server that was connected and is gone is connected to again, by the next call of one of its tools."""
    prefix: str | None = None
    """What stands before the names of its tools; None: the server's name and `__`."""
    only: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(_strings))
    """The tools to offer, by the server's own names; None: all."""
    max_message: int = attrs.field(default=MAX_MESSAGE, validator=_count)
    """Bytes of the longest message that it may send; a longer one ends the connection."""


@attrs.frozen
class StdioServer(_Server):
    """A server that is started as a child process (`command` with `args`, in the folder `cwd`) and speaks over its standard
    input and output. Its `name` stands before those of its tools.

    The process gets the few environment variables that the SDK holds safe (`PATH`, `HOME`, …) and those of `env`, no
    others. It runs in a session of its own: what it starts is ended with it, and Ctrl-C in the terminal is ours alone.
    """

    transport: ClassVar[Literal["stdio"]] = "stdio"
    name: str = attrs.field(validator=_name)
    command: str = attrs.field(validator=_name)
    args: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    env: Mapping[str, str] = attrs.field(factory=dict, converter=_dict, repr=False, hash=False)
    cwd: str | Path | None = None


@attrs.frozen
class HttpServer(_Server):
    """A server that is reached at `url` over streamable HTTP. Its `name` stands before those of its tools; `headers` go with
    each request; `auth` is what `httpx2` takes (its `Auth`), or None. Raises `ValueError` for another kind of address."""

    transport: ClassVar[Literal["http"]] = "http"
    name: str = attrs.field(validator=_name)
    url: str = attrs.field()
    headers: Mapping[str, str] = attrs.field(factory=dict, converter=_dict, repr=False, hash=False)
    auth: Any = attrs.field(default=None, repr=False)

    @url.validator
    def _web_address(self, attribute: attrs.Attribute[str], value: str) -> None:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{self.name}: url: expected an address that begins with http, got {value!r}")


McpServer: TypeAlias = StdioServer | HttpServer
"""A server to connect to."""


# ---------------------------------------------------------------- the shared JSON shape


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_HTTP_TYPES = ("http", "streamable-http", "streamableHttp")


def read_mcp_config(path: str | Path, environment: Mapping[str, str] | None = None) -> tuple[McpServer, ...]:
    """The servers of a JSON file of the shape `{"mcpServers": {NAME: {"command": …} | {"url": …}}}`.

    Raises `ValueError`, naming file and place, for anything else, and `OSError` for a file that cannot be read.
    """
    try:
        config = json.loads(Path(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got text that is not ({error})") from None
    try:
        return mcp_servers(config, environment)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def mcp_servers(config: Any, environment: Mapping[str, str] | None = None) -> tuple[McpServer, ...]:
    """The servers that an `mcpServers` object describes.

    `${NAME}` and `${NAME:-default}` in its texts stand for variables of the environment (default: the process's). A
    server that is `disabled` is left out; fields of other programs that mean nothing here are let pass.
    Raises `ValueError`, naming the place.
    """
    servers = _object(_object(config, "$").get("mcpServers"), "mcpServers")
    known = os.environ if environment is None else environment
    return tuple([_server(name, value, known) for name, value in servers.items() if not _disabled(value)])


def _disabled(value: Any) -> bool:
    return isinstance(value, dict) and value.get("disabled") is True


def _server(name: str, value: Any, environment: Mapping[str, str]) -> McpServer:
    place = f"mcpServers.{name}"
    fields = _object(value, place)
    kind = fields.get("type", "http" if "url" in fields else "stdio")
    if kind == "stdio":
        return StdioServer(
            name,
            _text(fields.get("command"), f"{place}.command", environment),
            _texts(fields.get("args", []), f"{place}.args", environment),
            _pairs(fields.get("env", {}), f"{place}.env", environment),
            _text(fields["cwd"], f"{place}.cwd", environment) if "cwd" in fields else None,
        )
    if kind in _HTTP_TYPES:
        headers = _pairs(fields.get("headers", {}), f"{place}.headers", environment)
        return HttpServer(name, _text(fields.get("url"), f"{place}.url", environment), headers)
    raise ValueError(f"{place}.type: expected stdio or http, got {kind!r}")


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected an object, got {json_type(value)}")
    return value


def _texts(value: Any, place: str, environment: Mapping[str, str]) -> Sequence[str]:
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected an array of strings, got {json_type(value)}")
    return [_text(item, f"{place}[{index}]", environment) for index, item in enumerate(value)]


def _pairs(value: Any, place: str, environment: Mapping[str, str]) -> dict[str, str]:
    return {key: _text(item, f"{place}.{key}", environment) for key, item in _object(value, place).items()}


def _text(value: Any, place: str, environment: Mapping[str, str]) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{place}: expected a string, got {json_type(value)}")

    def replaced(match: re.Match[str]) -> str:
        found = environment.get(match[1], match[2])
        if found is None:
            raise ValueError(f"{place}: the environment variable {match[1]} is not set")
        return found

    return _VARIABLE.sub(replaced, value)


def check_names(servers: Iterable[Any]) -> tuple[McpServer, ...]:
    """The servers as a tuple. Raises `TypeError` for what is none, `ValueError` for two of one name."""
    if not isinstance(servers, Iterable):
        raise TypeError(f"servers: expected a list of servers, got {type(servers).__name__}")
    checked = tuple(servers)
    seen: set[str] = set()
    for index, server in enumerate(checked):
        if not isinstance(server, StdioServer | HttpServer):
            got = type(server).__name__
            raise TypeError(f"servers[{index}]: expected a StdioServer or an HttpServer, got {got}")
        if server.name in seen:
            raise ValueError(f"servers[{index}]: expected servers of different names, got two named {server.name!r}")
        seen.add(server.name)
    return checked
