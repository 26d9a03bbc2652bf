"""One MCP server from the first connection to the last: one task owns the SDK's session, others call through it.

The SDK's session and transports hold task groups, which must be entered and left in one task. That task is `own`, a job of
its own beside the run: a step that is broken off, a call that is cancelled and a run that is left cannot take it apart.

A *life* is one connection. It ends when the server ends it, breaks a bound or cannot be understood. The call that meets the
end gets an error and is never sent twice, for nobody knows how far the server came; the next call of one of its tools begins
another life, up to `restarts` times, after which the tools are withdrawn.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agentloop import __version__
from agentloop._mcp.http import http_streams
from agentloop._mcp.process import ServerProcess
from agentloop._mcp.results import progress_of, result_of
from agentloop._mcp.servers import HttpServer, McpServer
from agentloop.messages import ToolResult
from agentloop.tools import ToolContext

log = logging.getLogger("agentloop.mcp")

_MAX_PAGES: Final = 100
"""Pages of a list of tools; a list that never ends must not hold up the run."""
_MAX_WORDS: Final = 2_000
_CLOSED: Final = "Connection closed"
"""The SDK's words for an end of which the process itself can tell more."""
_CLOSING: Final = 1.0
"""Seconds for taking leave of a server over HTTP; what a process gets is its own."""
_OURSELVES: Final = types.Implementation(name="agentloop", version=__version__)
_Answer: Final = TypeAdapter[types.CallToolResult | types.InputRequiredResult](
    types.CallToolResult | types.InputRequiredResult
)


class McpCallError(Exception):
    """A call that a server did not answer as it should; the text says which server and why."""


class _Life:
    """One connection of a server."""

    def __init__(self) -> None:
        self.settled = anyio.Event()
        """It is connected, or has failed."""
        self.ended = anyio.Event()
        """It is closed, and `problem` is complete."""
        self.session: ClientSession | None = None
        self.over = False
        """Nothing more can come of it."""
        self.problem = ""
        self.process: ServerProcess | None = None
        self.http_status: int | None = None
        """Of the last answer of an HTTP server, if that was a refusal."""

    def answered(self, status: int) -> None:
        """Note the status of an answer."""
        self.http_status = status if status >= 400 else None


class Connection:
    """A server and what it offers. `changed` is called when its list of tools is another one."""

    def __init__(self, server: McpServer, changed: Callable[[], None]) -> None:
        self.server = server
        self._changed = changed
        self._listed: tuple[types.Tool, ...] = ()
        self._life = _Life()
        self._left = server.restarts
        self._bell = anyio.Event()
        self._stopping = False
        self._stale = False
        self._fresh = anyio.Event()
        self._fresh.set()
        self._work: anyio.CancelScope | None = None
        self._scope = anyio.CancelScope()

    # ------------------------------------------------------------ what others ask

    @property
    def offered(self) -> tuple[types.Tool, ...]:
        """The tools as the server last listed them; none when it is gone for good."""
        return () if self._life.over and not self._left else self._listed

    async def connected(self) -> str | None:
        """Wait until it is connected, or has failed; why it failed, or None. Begins another life if the last is over."""
        if self._life.over:
            self._begin()
            if not self._left:
                self._changed()  # what was withdrawn is offered again
        self._left = self.server.restarts
        life = self._life
        await life.settled.wait()
        return life.problem if life.session is None else None

    async def fresh(self) -> None:
        """Wait until no new list of tools is under way."""
        await self._fresh.wait()

    async def call(self, tool: str, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        """Run a tool of the server. Raises `McpCallError`. When cancelled or aborted, the server is told to cancel."""
        outcome: list[ToolResult | Exception] = []
        async with anyio.create_task_group() as group:

            async def look() -> None:
                await ctx.abort.wait()
                group.cancel_scope.cancel()

            group.start_soon(look)
            try:
                outcome.append(await self._called(tool, arguments, ctx))
            except Exception as error:  # carried out, so that the group does not wrap it
                outcome.append(error)
            group.cancel_scope.cancel()
        if not outcome:
            raise McpCallError(f"{self._named} was told to cancel the call.")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def stop(self) -> None:
        """Have `own` end, in order."""
        self._stopping = True
        if self._work is not None:
            self._work.cancel()
        self._ring()

    def cancel(self) -> None:
        """Have `own` end at once."""
        self._scope.cancel()

    # ------------------------------------------------------------ calls

    async def _called(self, tool: str, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        life = await self._alive()
        assert life.session is not None

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            ctx.progress(progress_of(progress, total, message))

        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        try:
            answer = await life.session.send_request(request, _Answer, progress_callback=progress)
        except MCPError as error:
            raise McpCallError(await self._refusal(life, error)) from None
        except ValidationError as error:
            raise McpCallError(f"{self._named} sent a result that is not MCP: {_words(error)}") from None
        if isinstance(answer, types.InputRequiredResult):
            raise McpCallError(f"{self._named} asked for input of a person, which cannot be given here.")
        return result_of(answer)

    async def _alive(self) -> _Life:
        """A life that is connected, begun anew if need be. Raises `McpCallError`."""
        if self._stopping:
            raise McpCallError(f"{self._named} was disconnected.")
        if self._life.over:
            if not self._left:
                raise McpCallError(f"{self._named} is gone: {self._life.problem}")
            self._left -= 1
            self._begin()
        life = self._life
        await life.settled.wait()
        if life.session is None:
            raise McpCallError(f"{self._named} could not be connected to again: {life.problem}")
        return life

    async def _refusal(self, life: _Life, error: MCPError) -> str:
        """Why a call failed; where the connection is lost with it, after its end is known."""
        lost = error.code == types.CONNECTION_CLOSED or error.message == "Session terminated"
        if lost or life.over:
            self._lose(life, _words(error))
            await life.ended.wait()
            return f"{self._named} failed during the call: {life.problem}"
        status = f" (HTTP {life.http_status})" if life.http_status is not None else ""
        return f"{self._named} refused the call: {_words(error)}{status}"

    @property
    def _named(self) -> str:
        return f"The MCP server {self.server.name}"

    # ------------------------------------------------------------ the one task

    async def own(self) -> None:
        """Connect, stay connected, connect again when asked, until stopped."""
        with self._scope:
            while not self._stopping:
                life = self._life
                try:
                    await self._live(life)
                finally:
                    life.over, life.session = True, None
                    life.settled.set()
                    life.ended.set()
                    self._fresh.set()
                if not self._left and self._listed:
                    self._changed()
                while self._life is life and not self._stopping:
                    await self._rung()

    def _begin(self) -> None:
        self._life = _Life()
        self._ring()

    def _ring(self) -> None:
        self._bell.set()

    async def _rung(self) -> None:
        await self._bell.wait()
        self._bell = anyio.Event()

    def _lose(self, life: _Life, problem: str = "") -> None:
        """Nothing more can come of a life: have it closed."""
        if not life.over:
            life.over, life.problem = True, problem
            if self._work is not None:
                self._work.cancel()
            self._ring()

    async def _live(self, life: _Life) -> None:
        try:
            with anyio.CancelScope() as closing:
                async with self._streams(life) as streams:
                    try:
                        await self._converse(life, *streams)
                    finally:
                        closing.deadline = anyio.current_time() + _CLOSING
        except Exception as error:
            life.problem = life.problem or _words(error)
        if life.process is not None:
            life.problem = life.process.account(life.problem.removeprefix(_CLOSED))
        elif life.http_status is not None:
            life.problem += f" (HTTP {life.http_status})"

    async def _converse(self, life: _Life, incoming: Any, outgoing: Any) -> None:
        async with ClientSession(incoming, outgoing, message_handler=self._heard, client_info=_OURSELVES) as session:
            await self._within_time(lambda: self._greet(session))
            if not life.over and not self._stopping:
                life.session = session
                life.settled.set()
                await self._stay(life, session)

    async def _within_time(self, work: Callable[[], Any]) -> None:
        """Do something that the server has a part in. Raises `TimeoutError`; returns early when stopped."""
        try:
            with anyio.fail_after(self.server.connect_timeout) as self._work:
                await work()
        except TimeoutError:
            raise TimeoutError(f"did not answer within {self.server.connect_timeout:g} s") from None
        finally:
            self._work = None

    async def _greet(self, session: ClientSession) -> None:
        """The handshake as most servers speak it, the newer one where a server knows no other; then the list."""
        try:
            await session.initialize()
        except MCPError as error:
            if error.code not in (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND):
                raise
            await session.discover()
        await self._list(session)

    async def _list(self, session: ClientSession) -> None:
        tools: list[types.Tool] = []
        cursor: str | None = None
        capabilities = session.server_capabilities
        if capabilities is not None and capabilities.tools is not None:
            for _ in range(_MAX_PAGES):
                page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        if tuple(tools) != self._listed:
            self._listed = tuple(tools)
            self._changed()

    async def _stay(self, life: _Life, session: ClientSession) -> None:
        """Until it is over: hear of new lists, and fetch them."""
        async with anyio.create_task_group() as group:
            if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                group.start_soon(self._listen, session)
            while not life.over and not self._stopping:
                if self._stale:
                    self._stale = False
                    await self._list_again(session)
                    continue
                self._fresh.set()
                await self._rung()
            group.cancel_scope.cancel()

    async def _list_again(self, session: ClientSession) -> None:
        try:
            await self._within_time(lambda: self._list(session))
        except (MCPError, ValidationError, TimeoutError) as error:
            log.warning("%s: the new list of tools did not come, the old one stays: %s", self._named, _words(error))

    async def _listen(self, session: ClientSession) -> None:
        """Newer servers tell of new lists only whom they were asked by; what they tell goes to `_heard`."""
        try:
            async with listen(session, tools_list_changed=True) as subscription:
                async for _ in subscription:
                    pass
        except Exception as error:
            log.info("%s: no news of its list of tools: %s", self._named, _words(error))

    async def _heard(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True
            if self._fresh.is_set():
                self._fresh = anyio.Event()
            self._ring()

    # ------------------------------------------------------------ transports

    def _streams(self, life: _Life) -> AbstractAsyncContextManager[Any]:
        if isinstance(self.server, HttpServer):
            return http_streams(self.server, life.answered)
        if os.name == "nt":
            raise McpCallError("servers over standard input and output need pipes that can be watched: not on Windows")
        try:
            life.process = ServerProcess(self.server, lambda: self._lose(life))
        except (OSError, ValueError) as error:
            raise McpCallError(f"cannot be started: {_words(error)}") from None
        return life.process.streams()


def _words(error: BaseException) -> str:
    """What an error of the SDK, the network or the system says, in a line or two."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        text = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    elif isinstance(error, MCPError):
        text = error.message
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename}" if error.filename else "")
    else:
        text = str(error)
    return text[:_MAX_WORDS] if text.strip() else type(error).__name__
