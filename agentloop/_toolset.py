"""The tools of a run as they stand: its own, those that `get_tools` gave instead, and those of a tool source."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from agentloop._callbacks import CallbackFailed, Stopped, attribute
from agentloop._host import Job, Waiter, close_shielded
from agentloop._run import Core
from agentloop._values import is_kind, raise_order, same_json
from agentloop.config import ToolSource
from agentloop.context import Context, different_tools
from agentloop.events import McpConnectBegin, McpConnectEnd
from agentloop.messages import ToolSpec
from agentloop.tools import Tool

log = logging.getLogger("agentloop")


class Toolset:
    """Keeps `Core.tools`. Of two tools of one name the run's own counts, then the first."""

    def __init__(self, core: Core, tools: Sequence[Tool]) -> None:
        self.core = core
        self._own = tools
        self._sourced: Sequence[Tool] = ()
        self._source: _Source | None = None
        core.tools = {tool.name: tool for tool in tools}

    def replace(self, given: Any) -> None:
        """Take the tools that `get_tools` gave instead of the run's own; None: they stay. Nonsense ends the run."""
        if given is None:
            return
        try:
            tools = self.core.guard(different_tools, given)
        except CallbackFailed as error:
            self.core.fail(error.error, "get_tools")
            return
        if not _equal(tools, tuple(self._own)):
            self._own = tools
            self._set(self._sourced)

    async def connect(self) -> None:
        """Connect the source, between its two events."""
        core, source = self.core, self.core.config.tool_source
        assert source is not None
        try:
            servers = core.guard(_servers, source)
        except CallbackFailed as error:
            log.error("the tool source failed to name its servers", exc_info=error.error)
            core.emit(McpConnectBegin(()))
            core.emit(McpConnectEnd("fatal", (), "connect_failed", error.text))
            return
        core.emit(McpConnectBegin(servers))
        await core.barrier()
        if core.look():
            core.emit(McpConnectEnd("aborted"))
            return
        self._source = _Source(core, source)
        try:
            end, tools = core.guard(_connected, await self._source.ask("connect"))
        except CallbackFailed as error:
            log.error("connecting the tool source failed", exc_info=error.error)
            core.emit(McpConnectEnd("fatal", (), "connect_failed", error.text))
        except Stopped:
            core.emit(McpConnectEnd("aborted"))
        else:
            self._set(tools)
            core.emit(end)

    async def look(self) -> None:
        """Ask the source whether its tools have changed, if there is one and it is connected."""
        if self._source is None:
            return
        try:
            tools = await self._source.ask("changed")
            tools = None if tools is None else self.core.guard(_tools, tools)
        except CallbackFailed as error:
            log.warning("the tool source failed to say what changed; its tools stay", exc_info=error.error)
        except Stopped:
            pass
        else:
            if tools is not None:
                self._set(tools)

    def _set(self, tools: Iterable[Tool]) -> None:
        self._sourced = tools = tuple(tools)
        known = {tool.name: tool for tool in self._own}
        for tool in tools:
            if tool.name in known:
                log.warning("two tools are named %r; the first one counts", tool.name)
            known.setdefault(tool.name, tool)
        self.core.tools = known
        self.core.tools_changed = True

    async def close(self) -> None:
        """Have the source disconnect; bounded."""
        if self._source is not None:
            await self._source.close()


def _servers(source: ToolSource) -> tuple[str, ...]:
    servers = tuple(source.servers)
    for index, name in enumerate(servers):
        if not isinstance(name, str):
            raise TypeError(f"servers[{index}]: expected a name, got {type(name).__name__}")
    return servers


def _tools(given: Iterable[Tool]) -> tuple[Tool, ...]:
    return Context(tools=tuple(given)).tools


def _equal(tools: tuple[Tool, ...], own: tuple[Tool, ...]) -> bool:
    try:
        return same_tools(tools, own)
    except BaseException as error:
        raise_order(error)
        return False  # a tool's function is any object that can be called; one that cannot be compared is another one


def same_tools(tools: Sequence[Tool | ToolSpec], others: Sequence[Tool | ToolSpec]) -> bool:
    """Whether they are equal, their schemas as JSON has it: there `1` and `true` are two things."""
    return tools == others and all(same_json(a.parameters, b.parameters) for a, b in zip(tools, others, strict=True))


def _connected(answer: Any) -> tuple[McpConnectEnd, tuple[Tool, ...]]:
    if not isinstance(answer, tuple) or len(answer) != 2 or not is_kind(answer[0], McpConnectEnd):
        raise TypeError(f"connect: expected a McpConnectEnd and tools, got {type(answer).__name__}")
    return answer[0], _tools(answer[1])


def _seconds(core: Core, said: Any) -> float:
    """How long a source's `close` may take beyond the grace; what is not a finite number says nothing."""
    try:
        seconds: float = core.guard(float, said)
    except CallbackFailed:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


class _Source:
    """A tool source in one job of its own, from `connect` to `close`: such a source may hold scopes open in between."""

    def __init__(self, core: Core, source: ToolSource) -> None:
        self.core = core
        self.source = source
        self.requests: deque[str] = deque()
        self.answer: tuple[Any, BaseException | None] | None = None
        self.waiter: Waiter | None = None
        self.busy = self.over = False
        core.closing_bound = max(core.closing_bound, _seconds(core, attribute(source, "closing_bound")))
        self.job = core.spawn(self._serve, tag="the tool source")

    async def ask(self, what: str) -> Any:
        """`connect` or `changed`. Raises `CallbackFailed`, or `Stopped` when a stop came first."""
        core = self.core
        self._send(what)
        await core.until(lambda: self.answer is not None or self.job.done or core.look())
        if self.answer is None:
            if core.look():
                raise Stopped
            assert self.job.error is not None
            raise CallbackFailed(self.job.error)
        value, error = self.answer
        if error is not None:
            raise CallbackFailed(error)
        return value

    async def close(self) -> None:
        """Have it disconnect; bounded. What it is still busy with is wanted no more."""
        self.over = True
        if not self.job.done:
            if self.busy:
                self.core.host.cancel(self.job)
            else:
                self._send("close")
            key = object()
            self.core.timers.set(key, self.core.clock.now() + self.core.bound)
            await self.core.until(lambda: self.job.done or self.core.timers.expired(key))
            await self.core.cancel_jobs((self.job,))

    def _send(self, what: str) -> None:
        self.answer = None
        self.requests.append(what)
        if self.waiter is not None:
            self.waiter.set()

    async def _serve(self, job: Job) -> None:
        await self._next()
        if self.core.look():  # nothing begins after a stop, nor has it to be closed; whoever asked hears of it
            return
        try:
            await self._perform(self.source.connect)
            while not (self.over or self.core.closing) and await self._next() == "changed":
                if not self.core.look():
                    await self._perform(self.source.changed)
        finally:
            await close_shielded(self.source.close, job)

    async def _perform(self, function: Callable[[], Awaitable[Any]]) -> None:
        self.busy = True
        try:
            self.answer = await function(), None
        except Exception as error:
            self.answer = None, error
        self.busy = False
        self.core.ring()

    async def _next(self) -> str:
        while not self.requests:
            self.waiter = self.core.host.waiter()
            await self.waiter.wait()
        return self.requests.popleft()
