"""Tools from MCP servers: `Config(tool_source=McpServers([StdioServer(…), HttpServer(…)]))`.

Needs the extra `mcp` (the official SDK), which is loaded at the first connection.

- Each server is connected in the run's first turn, all at once; one that fails costs only its own tools.
- A tool is named `SERVER__TOOL` (see `_mcp.names`), its schema is passed on as it is. A tool whose schema no provider would
  take is left out, with a line in the log.
- A call that is aborted, timed out or cancelled is cancelled at the server. A server that dies in a call gives an error
  result, with its exit code and the end of its standard error; its next call starts it again (`restarts`).
- A new list of tools is offered with the next request after it is known.
- `async with McpServers([…]) as servers:` keeps the servers connected over several runs, which may be parallel; without
  it, the last run that uses them disconnects them when it ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from agentloop._host import Job, make_host
from agentloop._mcp.names import Names
from agentloop._mcp.servers import (
    HttpServer,
    McpServer,
    StdioServer,
    check_names,
    mcp_servers,
    read_mcp_config,
)
from agentloop.errors import MissingExtra, ToolDefinitionError
from agentloop.events import McpConnectEnd, McpServerStatus
from agentloop.tools import Tool, ToolContext

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

    from agentloop._mcp.connection import Connection

__all__ = ["HttpServer", "McpServer", "McpServers", "StdioServer", "mcp_servers", "read_mcp_config"]

log = logging.getLogger("agentloop.mcp")

_IN_ORDER: Final = 1.8
"""Seconds that the connections have to close by themselves when nobody uses the servers any more."""
_AT_ONCE: Final = 0.7
"""Seconds that they have after that, once they were cancelled."""
_LIST_WAIT: Final = 2.0
"""Seconds that a request waits for a list of tools that is under way."""
_MAX_REASON: Final = 300
"""Characters of what is said about a schema that is not valid."""


class _Served:
    """A connection and the job that owns it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.offered: tuple[ListedTool, ...] = ()
        self.tools: tuple[Tool, ...] = ()
        """What `offered` was made into."""
        self.done = anyio.Event()
        self.job = Job(
            lambda job: connection.own(), lambda job: self.done.set(), f"the MCP server {connection.server.name}"
        )


class McpServers:
    """A `ToolSource` of MCP servers. Of one event loop at a time.

    Raises `MissingExtra` without the SDK, `ValueError` for two servers of one name, `TypeError` for anything else than servers.
    """

    closing_bound = _IN_ORDER + _AT_ONCE + 0.5
    """Seconds that `close` may take: a process gets the chance to leave by itself."""

    def __init__(self, servers: Iterable[McpServer]) -> None:
        self._described = check_names(servers)
        if importlib.util.find_spec("mcp") is None:
            raise MissingExtra("mcp", "mcp")
        self.servers: Sequence[str] = tuple(server.name for server in self._described)
        """Their names."""
        self._served: list[_Served] = []
        self._names = Names()
        self._tools: tuple[Tool, ...] | None = None
        self._revision = 0
        self._holders: dict[object, int] = {}  # who uses the servers, and the revision of the list that each was given
        self._loop: Any = None

    async def __aenter__(self) -> Self:
        """Keep the servers connected until the block is left. A server that fails is tried again by the next run."""
        try:
            await self._hold(self)
        except BaseException:
            await self._let_go(self)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Disconnect them, if no run uses them any more."""
        await self._let_go(self)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools as they are now; none before a connection."""
        if self._tools is None:
            self._tools = tuple([tool for served in self._served for tool in self._tools_of(served)])
        return self._tools

    # ------------------------------------------------------------ as a tool source

    async def connect(self) -> tuple[McpConnectEnd, Sequence[Tool]]:
        """Connect to all servers, or find them connected; those that failed before are tried again."""
        holder = _this_task()
        results = await self._hold(holder)
        self._holders[holder] = self._revision
        failed = [result for result in results if result.status != "completed"]
        if not failed:
            return McpConnectEnd("completed", results), self.tools
        words = "; ".join(f"{result.server}: {result.error_message}" for result in failed)
        return McpConnectEnd("fatal", results, "connect_failed", words), self.tools

    async def changed(self) -> Sequence[Tool] | None:
        """The new list of tools, if it changed since this run got one; else None. Waits at most 2 s for a list under way."""
        with anyio.move_on_after(_LIST_WAIT):
            for served in self._served:
                await served.connection.fresh()
        holder = _this_task()
        if self._holders.get(holder) == self._revision:
            return None
        self._holders[holder] = self._revision
        return self.tools

    async def close(self) -> None:
        """Disconnect, if nobody else uses the servers. All processes are ended and reaped when it returns."""
        await self._let_go(_this_task())

    # ------------------------------------------------------------ connections

    async def _hold(self, holder: object) -> tuple[McpServerStatus, ...]:
        token = anyio.lowlevel.current_token()
        if self._holders and token != self._loop:
            raise RuntimeError("McpServers: expected one event loop at a time, got a run in a second one")
        self._loop = token
        self._holders[holder] = -1
        # Loading the SDK takes a second, which other runs of this event loop need not wait.
        await anyio.to_thread.run_sync(_load, abandon_on_cancel=True)
        if not self._served:
            self._start()
        results: dict[str, McpServerStatus] = {}
        async with anyio.create_task_group() as group:
            for served in self._served:
                group.start_soon(self._status, served, results)
        return tuple(results[name] for name in self.servers)

    def _start(self) -> None:
        from agentloop._mcp.connection import Connection

        host = make_host()
        self._served = [_Served(Connection(server, self._list_changed)) for server in self._described]
        for served in self._served:
            host.spawn(served.job)

    async def _status(self, served: _Served, results: dict[str, McpServerStatus]) -> None:
        server, began = served.connection.server, anyio.current_time()
        problem = await served.connection.connected()
        milliseconds = round((anyio.current_time() - began) * 1000)
        if problem is None:
            count = len(self._tools_of(served))
            results[server.name] = McpServerStatus(server.name, server.transport, "completed", milliseconds, count)
        else:
            results[server.name] = McpServerStatus(
                server.name, server.transport, "fatal", milliseconds, None, "connect_failed", problem
            )

    async def _let_go(self, holder: object) -> None:
        self._holders.pop(holder, None)
        if self._holders:
            return
        served, self._served = self._served, []
        self._tools = None
        for each in served:
            each.connection.stop()
        if not await _over(served, _IN_ORDER):
            for each in served:
                each.connection.cancel()
            if not await _over(served, _AT_ONCE):
                self._give_up([each.job for each in served if not each.job.done])

    def _give_up(self, jobs: Sequence[Job]) -> None:
        host = make_host()
        for job in jobs:
            log.warning("%s did not close within its bound", job.tag)
            host.cancel(job)

    # ------------------------------------------------------------ tools

    def _list_changed(self) -> None:
        self._tools = None
        self._revision += 1

    def _tools_of(self, served: _Served) -> tuple[Tool, ...]:
        offered = served.connection.offered
        if offered is not served.offered:
            served.offered, served.tools = offered, self._made(served.connection, offered)
        return served.tools

    def _made(self, connection: Connection, offered: Iterable[ListedTool]) -> tuple[Tool, ...]:
        server = connection.server
        made: dict[str, Tool] = {}
        for listed in offered:
            if server.only is not None and listed.name not in server.only:
                continue
            name = self._names.give(server.name, listed.name, server.prefix)
            try:
                if name in made:
                    raise ToolDefinitionError("it is listed twice; the first one counts")
                made[name] = _tool(name, listed, connection)
            except ToolDefinitionError as error:
                log.warning("the tool %r of the MCP server %s is left out: %s", listed.name, server.name, error)
        return tuple(made.values())


def _load() -> None:
    for module in ("agentloop._mcp.connection", "jsonschema.validators"):
        importlib.import_module(module)


def _tool(name: str, listed: ListedTool, connection: Connection) -> Tool:
    """The tool. Raises `ToolDefinitionError`."""

    async def execute(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        return await connection.call(listed.name, arguments, ctx)

    _check_schema(listed.input_schema)
    label = listed.title or (listed.annotations.title if listed.annotations is not None else None)
    timeout = connection.server.timeout
    return Tool(name, listed.description or "", listed.input_schema, execute, label=label, timeout=timeout)


def _check_schema(schema: dict[str, Any]) -> None:
    """Raise `ToolDefinitionError` for a schema that would have providers refuse every request that it stands in."""
    if schema.get("type") != "object":
        raise ToolDefinitionError(f"its schema: type: expected 'object', got {schema.get('type')!r}")
    validators: Any = importlib.import_module("jsonschema.validators")  # comes with the SDK
    try:
        validators.validator_for(schema, default=validators.Draft202012Validator).check_schema(schema)
    except Exception as error:  # whatever the schema makes of the checker
        words = getattr(error, "message", None) or type(error).__name__
        raise ToolDefinitionError(f"its schema is not valid: {words}"[:_MAX_REASON]) from None


def _this_task() -> object:
    return ("task", anyio.get_current_task().id)


async def _over(served: Sequence[_Served], seconds: float) -> bool:
    """Whether all jobs are over within this time."""
    with anyio.move_on_after(seconds, shield=True):
        for each in served:
            await each.done.wait()
    return all(each.job.done for each in served)
