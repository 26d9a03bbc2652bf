"""`agent_loop`: a run as an async iterator of its events.

The front only takes events from a buffer; the work is done by background tasks that the first step starts. No cancel scope,
task group, lock or context variable token is held across a step (PEP 789), so a run may be stepped under a time-out, from
several tasks in turn, or dropped. The front holds the run's core, never the reverse: a run that nobody holds any more is
collected, and stops.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from agentloop._decide import Outcomes
from agentloop._drive import Driver
from agentloop._host import make_host
from agentloop._run import Core
from agentloop._stepped import Stepped
from agentloop._values import is_kind
from agentloop.config import Config
from agentloop.context import Context, agent_messages, different_tools
from agentloop.events import Event
from agentloop.messages import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage

__all__ = [
    "Run",
    "agent_loop",
    "agent_loop_continue",
    "compact",
    "running",
]

R = TypeVar("R", bound=AsyncGenerator[Event, None])


def agent_loop(messages: Iterable[AgentMessage | str] | str, context: Context, config: Config) -> Run:
    """Run an agent on new messages. The run yields every event, in one total order.

    With empty `messages` the model is asked from the context as it stands. Nothing happens before the first step, which
    raises `ValueError` or `TypeError` for arguments that cannot be a run (an empty context without messages, two tools of
    one name). Every other failure is an event. Leave early with `aclose()`, or use `async with running(…)`.
    """
    return Run(lambda: _new_run(messages, context, config))


def agent_loop_continue(context: Context, config: Config, messages: Iterable[AgentMessage | str] | str = ()) -> Run:
    """Go on from the context as it stands: after a failure, an abort, a pause, or with calls that have no result yet.

    A last reply that was not committed is left out, with its results, and asked for again. Calls of a committed last reply
    that have no result run first, in a turn of their own; `messages` are the prompts of the turn after it. The first step
    raises `ValueError` when there is nothing to do: no messages and an empty context, or a last reply that is complete and
    not paused; also where the open calls must not run, since their reply was cut off or refused.
    """
    return Run(lambda: _continued_run(context, config, messages))


def compact(context: Context, config: Config) -> Run:
    """A run that only compacts the context (reason `manual`), as `config.compaction` says.

    The first step raises `ValueError` without a compaction, or with an empty context.
    """

    def prepare() -> tuple[Context, Config, Outcomes]:
        if is_kind(config, Config) and config.compaction is None:  # anything else is refused as what it is
            raise ValueError("config.compaction: expected a compaction, got None")
        if not _checked(context).messages:
            raise ValueError("context.messages: expected messages to compact, got none")
        return context, config, Outcomes(manual=True)

    return Run(prepare)


@asynccontextmanager
async def running(events: R) -> AsyncIterator[R]:
    """The same run, bound to an `async with` block: however the block is left, the run is closed and its end awaited.

    Inside the block a step that is cancelled or times out leaves the run alive: the next step goes on where it stood.
    """
    keep = getattr(events, "keep_alive", None)
    if keep is not None:
        keep()
    try:
        yield events
    finally:
        await events.aclose()


class Run(Stepped[Event]):
    """A run: an async iterator of its events. Made by `agent_loop`, `agent_loop_continue`, `compact`.

    One step at a time; a step that is cancelled ends the run cleanly (inside `running(…)` it does not).
    """

    __slots__ = ("__weakref__", "_buffer", "_busy", "_closed", "_core", "_keep", "_prepare", "_stepping")

    def __init__(self, prepare: Callable[[], tuple[Context, Config, Outcomes]]) -> None:
        self._prepare: Callable[[], tuple[Context, Config, Outcomes]] | None = prepare
        self._core: Core | None = None
        self._buffer: Any = ()
        self._busy = False  # a step waits, or the run is closed
        self._stepping = False
        self._closed = False
        self._keep = False

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return f"<Run {'closed' if self._closed else 'not started'}>"
        return f"<Run {'closed' if self._closed else 'ended' if core.ended else 'alive'}, {core.state.turns} turns>"

    async def __anext__(self) -> Event:
        """The next event. Raises `StopAsyncIteration` after the last."""
        if self._buffer and not self._busy:
            return self._buffer.popleft()  # type: ignore[no-any-return]
        return await self._step()

    async def _step(self) -> Event:
        if self._stepping:
            raise RuntimeError("this run is being stepped already: one step at a time")
        if self._closed:
            raise StopAsyncIteration
        core = self._core or self._start()
        self._busy = self._stepping = True
        try:
            while not self._buffer:
                if core.ended or self._closed:
                    self._closed = True
                    error, core.error = core.error, None
                    if error is not None:
                        raise error
                    raise StopAsyncIteration
                await core.park().wait()
            return self._buffer.popleft()  # type: ignore[no-any-return]
        except StopAsyncIteration:
            raise
        except BaseException:
            if not self._keep:
                await self._close()
            raise
        finally:
            core.unpark()
            self._stepping = False
            self._busy = self._closed

    def _start(self) -> Core:
        assert self._prepare is not None
        prepare, self._prepare = self._prepare, None
        self._closed = self._busy = True  # until it stands: arguments may be wrong
        context, config, outcomes = prepare()
        if not is_kind(config, Config):
            raise TypeError(f"config: expected a Config, got {type(config).__name__}")
        core = Core(context, config, outcomes, make_host())
        core.start(Driver(core, context.tools).drive)
        self._core, self._buffer = core, core.buffer
        self._closed = self._busy = False
        return core

    async def _close(self) -> None:
        self._closed = self._busy = True
        self._prepare = None
        core = self._core
        if core is None:
            return
        core.close()
        if core.taker is not None:
            core.taker.set()
        await core.host.shielded(core.end_waiter(), core.bound + 1.0)

    async def aclose(self) -> None:
        """End the run: model stream and tools are stopped, their clean-up awaited, bounded. Events not taken are dropped.

        May be called at any time, from any task, also while a step waits: that step then ends the iteration. A second call
        does nothing. Raises a `KeyboardInterrupt` or `SystemExit` that a tool raised and no step has raised yet.
        """
        await self._close()
        core = self._core
        if core is not None and core.error is not None:
            error, core.error = core.error, None
            raise error

    def skip_wait(self) -> bool:
        """End a retry's wait now; False when none is going on. May be called from any thread."""
        core = self._core
        if core is None or not core.waiting:
            return False
        core.skipped = True
        core.ring_soon()
        return True

    def keep_alive(self) -> None:
        """From now on a cancelled step does not end the run. Whoever calls this must close it (`running` does both)."""
        self._keep = True

    def __del__(self) -> None:
        core = self._core
        if core is not None and not core.ended:
            core.host.soon(core.close)  # from whatever thread collects it


# ---------------------------------------------------------------- what a run starts from


def _checked(context: Context) -> Context:
    if not is_kind(context, Context):
        raise TypeError(f"context: expected a Context, got {type(context).__name__}")
    different_tools(context.tools, "context.tools")
    return context


def _new_run(
    messages: Iterable[AgentMessage | str] | str, context: Context, config: Config
) -> tuple[Context, Config, Outcomes]:
    prompts = agent_messages(messages)
    for index, message in enumerate(prompts):
        if isinstance(message, AssistantMessage):
            raise TypeError(f"messages[{index}]: expected an input, got a reply; what was said stands in the context")
    context = _checked(context)
    if not prompts and not context.messages:
        raise ValueError("messages: expected messages, or a context that has some; got neither")
    return context, config, Outcomes(prompts)


def _continued_run(
    context: Context, config: Config, new: Iterable[AgentMessage | str] | str
) -> tuple[Context, Config, Outcomes]:
    prompts = list(agent_messages(new))
    messages = list(_checked(context).messages)
    index = _last_reply(messages)
    if index is not None and _reply(messages, index).stop_reason != "completed":
        del messages[index:]  # it was not committed, nor were its results: ask again
        index = None
    if not messages and not prompts:
        raise ValueError("context.messages: expected messages to go on from, got none")
    open_calls: tuple[ToolCall, ...] = ()
    if index is not None:
        open_calls = _open_calls(messages, index, prompts)
    context = Context(context.system_prompt, tuple(messages), context.tools)
    return context, config, Outcomes(prompts, open_calls)


def _last_reply(messages: list[AgentMessage]) -> int | None:
    """Where the last reply stands, if nothing but its results comes after it."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage):
            return index
        if not isinstance(message, ToolResultMessage):
            return None
    return None


def _reply(messages: list[AgentMessage], index: int) -> AssistantMessage:
    reply = messages[index]
    assert isinstance(reply, AssistantMessage)
    return reply


def _open_calls(messages: list[AgentMessage], index: int, prompts: Sequence[AgentMessage]) -> tuple[ToolCall, ...]:
    """The last reply's calls without a result. Raises `ValueError` when there is nothing to go on with."""
    reply = _reply(messages, index)
    answered = {message.tool_call_id for message in messages[index + 1 :] if isinstance(message, ToolResultMessage)}
    waiting = tuple([call for call in reply.tool_calls if call.id not in answered])
    if waiting and reply.finish_reason in ("length", "refusal", "content_filter"):
        raise ValueError(
            f"context.messages[{index}]: expected calls that may run, got calls of a reply that ended in"
            f" {reply.finish_reason!r}; use agent_loop with a new message"
        )
    if not reply.tool_calls and reply.finish_reason != "pause" and not prompts:
        raise ValueError(
            f"context.messages[{index}]: expected something to go on with, got a complete reply; use agent_loop with a"
            " new message"
        )
    return waiting
