"""Eager tools: calls that begin while their reply still streams, and what becomes of them (`Config.eager_tools`).

`Ahead` belongs to one attempt. It sees each call of the reply as it completes, runs those that may begin (`may_begin`), and
tells nothing: reports are held, results wait. If the reply is committed, `EagerBatch` takes its calls through the usual steps
and, where step 6 would start the tool, takes over the work that has begun: from there on it is a call like any other. So the
events, their order and the grammar are those of a run without eager tools. Whatever else happens, `discard` ends the work.

What begins ahead is the front of the reply's calls, up to the first that may not: reads are never moved before a write that
the model asked for first, and tools begin in call order, as they always do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio

from agentloop._ask import ask
from agentloop._execute import Batch
from agentloop._host import Host, Job, Waiter
from agentloop._outcome import Call, Outcome
from agentloop._run import Core
from agentloop._sink import Sink
from agentloop.abort import AbortSignal
from agentloop.config import Config
from agentloop.errors import InvalidArguments
from agentloop.events import BlockAdded, ChildEvent, Event, MessageUpdate, SubagentStarted, ToolCallEnd
from agentloop.messages import ToolCall
from agentloop.tools import Tool


def is_eager(core: Core) -> bool:
    """Whether calls of the next reply may begin before it has ended.

    Not where anything is asked before a call (`approve`, `before_tool_call`, a `pre_tool_use` hook), not one after another
    (`sequential`), not in a compaction, whose calls never run.
    """
    config = core.config
    return (
        config.eager_tools
        and config.tool_execution == "parallel"
        and config.approve is None
        and config.before_tool_call is None
        and all(hooks.pre_tool_use is None for hooks in config.hooks)
        and core.state.compaction is None
    )


def may_begin(tool: Tool) -> bool:
    """Whether calls of the tool may begin ahead: to run it for nothing, or again, does no harm, and nothing else is special.

    One that is `exclusive` runs beside no other call; one that is `interruptible` is a wait that steering may not even start.
    """
    return tool.replay == "safe" and not tool.exclusive and not tool.interruptible


async def ask_eagerly(core: Core, attempt: int) -> Ahead:
    """Perform one attempt, as `ask` does, with calls that begin meanwhile. What began for a reply that failed has ended."""
    ahead = Ahead(core)
    core.service = ahead.service
    try:
        await ask(core, attempt, ahead.emit)
    except BaseException:  # the consumer has left, or the run breaks off: no batch comes to tell them
        ahead.tell_of_the_end()
        raise
    finally:
        core.service = None
    request = core.state.request
    assert request is not None
    if request.status != "completed":  # a retry may ask for the same calls: it finds none of them at work
        await ahead.discard()
    return ahead


class _Held:
    """Stands for the run while nothing of a call is told: keeps its reports, within the run's own bound."""

    __slots__ = ("_core", "buffer", "closing_bound", "config", "host", "room_waiters")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.config: Config = core.config
        self.host: Host = core.host
        self.buffer: deque[Event] = deque()
        self.room_waiters: list[Waiter] = []
        self.closing_bound = 0.0

    def emit(self, event: Event) -> None:
        """Keep it."""
        self.buffer.append(event)

    emit_update = emit

    @property
    def closing(self) -> bool:
        """Whether the consumer has left."""
        return self._core.closing

    def release(self) -> None:
        """Tell what was kept, and go on: whoever waits for room looks again."""
        core = self._core
        core.closing_bound = max(core.closing_bound, self.closing_bound)
        for event in self.buffer:
            core.emit_update(event)
        for waiter in self.room_waiters:
            waiter.set()


class HeldSink(Sink):
    """The reports of a call that began ahead: held, until `release`."""

    __slots__ = ("_held", "_run", "_starts")

    def __init__(self, core: Core, id: str, name: str, signal: AbortSignal) -> None:
        held = _Held(core)
        super().__init__(held, id, name, signal)
        self._run = core
        self._held: _Held | None = held
        self._starts: list[Waiter] = []

    async def child(self, event: SubagentStarted | ChildEvent) -> None:
        """An event of a nested run, which begins with the call's start: its tools are not this tool's to vouch for."""
        while self._held is not None and not self.deaf:
            start = self._run.host.waiter()
            self._starts.append(start)
            await start.wait()
        await super().child(event)

    def release(self) -> None:
        """The call has started for the consumer too."""
        held, self._held = self._held, None
        assert held is not None
        self._core = self._run
        held.release()
        for start in self._starts:
            start.set()


class Ahead(Batch):
    """The calls of a reply that still streams, as far as they have begun. Its calls are told by nobody."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, ())
        self.heir: Batch | None = None
        self.waiting: deque[Call] = deque()  # complete, and not begun
        self.begun: dict[str, Call] = {}  # by id, until they are told or discarded; `active` are those that still run
        self.dropped: list[Job] = []
        self.open = True  # further calls may begin

    def emit(self, event: Event) -> None:
        """Pass on an update of the reply; a call that it completes may begin when the consumer comes back after it."""
        self.core.emit_update(event)
        call = _completed_call(event)
        if call is not None and self.open:
            self._consider(call)

    def _consider(self, block: ToolCall) -> None:
        tool = self.core.tools.get(block.name)
        if tool is None:  # it never runs, and holds up nothing
            return
        if not may_begin(tool):
            self.open = False
            return
        call = Call(block)
        call.tool = tool
        self.waiting.append(call)

    def service(self) -> None:
        """Begin what may begin, see to time-outs, keep results; after a stop end everything."""
        core = self.core
        self._keep_results()
        if core.look():
            self.drop()
            return
        if core.timers:
            self._check_timers()
        if core.at_rest:
            self._pump()

    def _pump(self) -> None:
        cap = self.core.config.max_parallel_tools
        while self.waiting and (cap is None or len(self.active) < cap):
            call = self.waiting.popleft()
            assert call.tool is not None
            try:
                call.prepared = call.tool.prepare(call.call.arguments)
            except InvalidArguments:  # nor does this one ever run; the batch says what is wrong
                continue
            self.active.append(call)
            self.begun[call.call.id] = call
            self._launch(call)

    def _sink(self, call: Call) -> Sink:
        return HeldSink(self.core, call.call.id, call.call.name, AbortSignal())

    def _over(self, call: Call) -> None:
        if call in self.active or self.heir is None:
            super()._over(call)
        else:
            self.heir._over(call)

    def _keep_results(self) -> None:
        while self.returned:
            self._returned(self.returned.popleft())

    def _settle(self, call: Call, outcome: Outcome) -> None:
        """The work is over; its result waits for the call to be told."""
        call.value = outcome
        call.stage = "returned"
        self.active.remove(call)

    def hand_over(self, call: Call) -> Call | None:
        """The work that began for a call, if it did: from now on the heir sees to it."""
        found = self.begun.pop(call.call.id, None)
        if found in self.active:
            self.active.remove(found)
        return found

    def leave_to(self, heir: Batch) -> None:
        """The reply is committed and its calls are run: nothing more begins here."""
        self.heir = heir
        self.waiting.clear()

    def drop(self) -> None:
        """Nobody will hear of what has begun: tell it to stop. Does not wait."""
        stop = self.core.outcomes.stop
        reason = "the reply was not kept" if stop is None else stop.error_message
        for call in self.begun.values():
            call.stage = "ended"
            assert call.sink is not None and call.job is not None
            call.sink.closed = True
            self.core.timers.clear(call)
            if call in self.active:
                self.dropped.append(call.job)
                call.sink.signal.abort(reason)
                if call.cancellable:
                    self.core.host.cancel(call.job)
        self.begun.clear()

    async def discard(self) -> None:
        """`drop`, and wait for the clean-up, at most the grace; what does not stop is given up."""
        self.drop()
        core = self.core
        jobs = [job for job in self.dropped if not job.done]
        self.dropped.clear()
        if jobs:
            await core.within_grace(jobs)
        for job in jobs:
            if not job.done:
                core.host.cancel(job)  # a thread's job; a task's was cancelled before
                core.give_up(job)


def _completed_call(event: Event) -> ToolCall | None:
    """The call that an update of a reply completes."""
    delta = event.delta if type(event) is MessageUpdate else None
    if type(delta) is ToolCallEnd:
        return delta.block if delta.stop_reason == "completed" else None
    return delta.block if type(delta) is BlockAdded and type(delta.block) is ToolCall else None


class EagerBatch(Batch):
    """The calls of a committed reply, some of which have begun."""

    def __init__(self, core: Core, calls: Sequence[ToolCall], ahead: Ahead) -> None:
        super().__init__(core, calls)
        self.ahead = ahead
        ahead.leave_to(self)

    async def run(self) -> None:
        """Run all calls; what began for one that is refused after all (a stop came) has ended as well."""
        try:
            await super().run()
        finally:
            self.ahead.heir = None  # a reference cycle otherwise
        await self.ahead.discard()  # where the batch is left instead, the run's end stops every job

    def threads(self) -> anyio.CapacityLimiter:
        """Those of what began early count as well."""
        return self.ahead.threads()

    def tell_of_the_end(self) -> None:
        """Also to what nobody was told of yet."""
        super().tell_of_the_end()
        self.ahead.tell_of_the_end()

    def service(self) -> None:
        """See to what nobody was told of yet, then to the rest."""
        self.ahead.service()
        super().service()

    def _prepare(self, call: Call) -> bool:
        """Step 1, with the arguments of what has begun: they are those that run."""
        begun = self.ahead.begun.get(call.call.id)
        if begun is None:
            return super()._prepare(call)
        call.tool, call.prepared = begun.tool, begun.prepared
        return True

    def _launch(self, call: Call) -> None:
        """Step 6, unless that is done: then what has begun takes the call's place."""
        begun = self.ahead.hand_over(call)
        if begun is None:
            super()._launch(call)
            return
        self.calls[self.calls.index(call)] = begun
        self.active[self.active.index(call)] = begun
        self._watch_steering()
        assert isinstance(begun.sink, HeldSink)
        begun.sink.release()
        if begun.value is not None:
            self.returned.append(begun)
            self.core.ring()

    def _returned(self, call: Call) -> None:
        if call.value is not None:  # it was over before it was told
            self._settle(call, call.value)
        else:
            super()._returned(call)
