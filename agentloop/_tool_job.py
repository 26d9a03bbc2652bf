"""The tool of one call, as its job runs it: awaited, streamed, or called in a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from agentloop._awaiting import is_awaitable
from agentloop._host import Job, in_thread
from agentloop._outcome import NOT_BEGUN, Call, Raised
from agentloop._values import order_to_leave
from agentloop.abort import AbortSignal
from agentloop.config import Config
from agentloop.tools import ToolContext


async def run_tool(call: Call, job: Job, config: Config, threads: Callable[[], anyio.CapacityLimiter]) -> Any:
    """What the tool returns; of one that raised in its thread, `Raised`, of one that a stop kept from its thread,
    `NOT_BEGUN`. `threads` gives what bounds the worker threads."""
    tool, sink, prepared = call.tool, call.sink, call.prepared
    assert tool is not None and sink is not None and prepared is not None
    sink.job = job
    run = prepared.bind(ToolContext(call.call.id, call.call.name, sink.signal, sink, config.approve, config.abort))
    call.began = tool.kind != "sync"
    if tool.kind == "async":
        value = await run()
        return await value if is_awaitable(value) else value  # a forgotten `await`, or a wrapper's
    if tool.kind == "stream":
        return await sink.stream(run(), job)
    stops = [sink.signal] if config.abort is None else [sink.signal, config.abort]
    outcome = await in_thread(lambda: _caught(call, run, stops), threads())
    if isinstance(outcome, Raised):
        order = order_to_leave(outcome.error)
        if order is not None:
            raise order
        return outcome
    if outcome is NOT_BEGUN:
        return outcome
    (value,) = outcome
    return await value if is_awaitable(value) else value


def _caught(call: Call, run: Callable[[], Any], stops: Iterable[AbortSignal]) -> Any:
    call.has_thread = True  # before the look: whoever stops it signals, then asks for this
    if any(stop.aborted for stop in stops):  # it has waited for a thread meanwhile
        return NOT_BEGUN
    call.began = True
    try:
        return (run(),)  # trio takes no bare coroutine out of a thread
    except BaseException as error:
        return Raised(error)
