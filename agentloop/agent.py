"""`Agent`: a conversation that keeps its own history, queues and listeners, and runs the loop for you.

    agent = Agent(model, system_prompt="Be brief.", tools=[search])
    agent.subscribe(lambda event: print(event.type))
    end = await agent.prompt("Find it.")

`await agent.prompt(…)` does the work in the caller's own task: an agent has no task of its own, and nothing happens that
nobody awaits. Everything else (`events`, `wait_for_idle`, `steer`, `abort`) is for the tasks and threads beside it. An
agent is a user of the kernel's public interface: whatever it does can be done with `agent_loop` by hand.

If the caller's await is cancelled (or interrupted from the keyboard), the run is aborted, its remaining events are passed on
to listeners and readers up to `AgentEnd`, bounded in time, and the cancellation goes on its way.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import attrs

from agentloop._agent.input import AgentInput, input_messages
from agentloop._agent.listeners import Listener, Listeners
from agentloop._agent.queues import QUEUES, MessageQueues, QueueMode, QueueName
from agentloop._agent.reader import EventReader
from agentloop._agent.state import AgentState
from agentloop._agent.thread import in_a_thread
from agentloop._awaiting import Then, is_awaitable
from agentloop._host import in_event_loop
from agentloop.abort import AbortSignal
from agentloop.config import Config, check_settings
from agentloop.context import Context, different_tools
from agentloop.events import AgentEnd, Event, MessageEnd
from agentloop.loop import Run, agent_loop, agent_loop_continue, compact
from agentloop.messages import AgentMessage, AssistantMessage, ToolResultMessage
from agentloop.model import Model, ModelRequest
from agentloop.tools import Tool

__all__ = [
    "Agent",
    "AgentInput",
    "AgentState",
    "EventReader",
    "Listener",
]

log = logging.getLogger(__name__)

_Make: TypeAlias = Callable[[Context, Config], Run]

_OWN: Final = ("get_steering_messages", "get_follow_up_messages", "wait_for_steering", "get_tools")
"""Settings of `Config` that the agent gives itself."""

_CLOSING: Final = 2.0
"""Seconds, beside the run's own graces, that a cancelled run has to come to its `AgentEnd`: for listeners."""


class Agent:
    """A conversation with a model. One run at a time; usable in one event loop after another.

    `settings` are fields of `Config` by name (`approve`, `retry`, `options`, …). With `abort` every run also stops when that
    signal fires. `steering_mode` and `follow_up_mode` say whether one of the queued messages is taken at a time
    (`one_at_a_time`) or `all`. Raises `TypeError` and `ValueError` for wrong settings. They are changed in `config`, not on
    the agent.
    """

    __slots__ = (
        "__weakref__", "_began", "_claim", "_config", "_listeners", "_over", "_queues", "_readers", "_run", "_signal", "_state",
        "_system_prompt", "_task", "_tools",
    )  # fmt: skip

    def __init__(
        self,
        model: Model,
        *,
        system_prompt: str | None = None,
        messages: AgentInput = (),
        tools: Iterable[Tool] = (),
        steering_mode: QueueMode = "one_at_a_time",
        follow_up_mode: QueueMode = "one_at_a_time",
        **settings: Any,
    ) -> None:
        check_settings("Agent", settings, ("system_prompt", "messages", "tools", "steering_mode", "follow_up_mode"))
        self.config = Config(model=model, **settings)
        self.system_prompt = system_prompt
        self.tools = tools
        self._state = AgentState(input_messages(messages), self._config.session_usage)
        self._queues = MessageQueues(steering_mode, follow_up_mode)
        self._listeners = Listeners()
        self._began = False  # the run that is made has given an event
        self._readers: tuple[weakref.ref[EventReader], ...] = ()
        self._signal: AbortSignal | None = None  # while a run goes on: its own
        self._over = AbortSignal()  # a one-way switch that any thread may wait for: fires when the run is over
        self._run: Run | None = None
        self._task: int | None = None
        self._claim = threading.Lock()

    def __repr__(self) -> str:
        return f"<Agent {'running' if self.is_running else 'idle'}, {len(self._state.messages)} messages>"

    # ------------------------------------------------------------ where it stands

    @property
    def state(self) -> AgentState:
        """The events so far, folded. A listener sees it as it stands at its event."""
        return self._state

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """The history: the same as `state.messages`."""
        return self._state.messages

    @property
    def is_running(self) -> bool:
        """Whether a run goes on: from the call of `prompt` until the last listener was told of its end."""
        return self._signal is not None

    async def wait_for_idle(self) -> None:
        """Return when no run goes on and the listeners have been told of its end. From any task or event loop.

        Raises `RuntimeError` in the task that drives the run (a listener): it would wait for itself.
        """
        if self._task is not None and self._task == anyio.get_current_task().id:
            raise RuntimeError("wait_for_idle: a listener is a part of the run and cannot wait for its end")
        await anyio.lowlevel.checkpoint()
        while self.is_running:
            await self._over.wait()

    # ------------------------------------------------------------ what the next request is made with

    @property
    def config(self) -> Config:
        """The settings. Assign another to change them: `model` and `options` from the next request on, also in a run
        that goes on; the rest from the next run on."""
        return self._config

    @config.setter
    def config(self, config: Config) -> None:
        for name in _OWN:
            if getattr(config, name) is not None:
                raise TypeError(f"{name}: the agent gives this itself; use steer, follow_up or tools")
        self._config = config

    @property
    def model(self) -> Model:
        """The model that is asked, from the next request on."""
        return self._config.model

    @model.setter
    def model(self, model: Model) -> None:
        self._config = attrs.evolve(self._config, model=model)

    @property
    def options(self) -> Mapping[str, Any]:
        """Parameters for the adapter, from the next request on: `agent.options = {"thinking": "high"}`."""
        return self._config.options

    @options.setter
    def options(self, options: Mapping[str, Any]) -> None:
        self._config = attrs.evolve(self._config, options=options)

    @property
    def system_prompt(self) -> str | None:
        """What the next request begins with."""
        return self._system_prompt

    @system_prompt.setter
    def system_prompt(self, system_prompt: str | None) -> None:
        self._system_prompt = Context(system_prompt).system_prompt

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model may call, from the next request on."""
        return self._tools

    @tools.setter
    def tools(self, tools: Iterable[Tool]) -> None:
        self._tools = different_tools(tools)

    def reset(self, messages: AgentInput = ()) -> None:
        """Begin anew from these messages, with no tokens spent. What waits in the queues stays.

        Raises `RuntimeError` while a run goes on.
        """
        if self.is_running:
            raise RuntimeError("reset: the agent is running; abort it and wait_for_idle first")
        self._state = AgentState(input_messages(messages), self._config.session_usage)

    # ------------------------------------------------------------ runs

    async def prompt(self, content: AgentInput) -> AgentEnd:
        """Say something and run until nothing is left to do. Returns the end; `end.raise_for_error()` raises if it failed.

        With no messages (`()`) the model is asked from the history as it stands. Prompts of a run that was stopped before
        its first turn are not in the history. Raises `RuntimeError` while a run goes on, `ValueError` and `TypeError` for
        prompts, history or tools that cannot make a run, and a `KeyboardInterrupt` or `SystemExit` that a tool raised.

        If the caller's task is cancelled, the run is aborted, listeners and readers get its last events, and the
        cancellation is raised. The same holds for `continue_` and `compact`.
        """
        prompts = input_messages(content)
        return await self._perform(lambda context, config: agent_loop(self._opening(prompts), context, config))

    async def continue_(self) -> AgentEnd:
        """Go on without a prompt: after a failure or an abort, a pause, with open calls, or with what waits in the queues.

        A last reply that was not committed is asked for again. Where the history leaves nothing to do, queued steering
        messages are the prompt, else queued follow-ups. Raises as `prompt` does; `ValueError` if nothing is queued either.
        """
        if self._state.pending_summary is not None or _is_uncommitted(self._state.messages):
            return await self.prompt(())
        return await self._perform(agent_loop_continue, self._queued_run)

    def _queued_run(self) -> _Make | None:
        """Where there is nothing to go on with: a run on what waits."""
        queue = next((name for name in QUEUES if self._queues.waiting(name)), None)
        if queue is None:
            return None
        if queue == "steering" and self._state.messages:
            return lambda context, config: agent_loop((), context, config)  # its first poll takes what the mode says
        return lambda context, config: agent_loop(self._opening(self._queues.poll(queue)), context, config)

    async def compact(self) -> AgentEnd:
        """A run that only compacts, as the setting `compaction` says. Raises `ValueError` without that setting or a history."""
        return await self._perform(compact)

    def run_sync(self, content: AgentInput, *, backend: str = "asyncio") -> AgentEnd:
        """`prompt` for code that is not async. `backend` is `asyncio` or `trio`.

        Where an event loop runs in this thread already (a notebook), the run has a worker thread with a loop of its own, and
        this thread waits. An interrupt from the keyboard aborts the run, waits for its end, and is raised.
        """
        self._check_idle()
        run = partial(anyio.run, self.prompt, content, backend=backend)
        return in_a_thread(run, partial(self.abort, "interrupted")) if in_event_loop() else run()

    def abort(self, reason: str | None = None) -> bool:
        """Stop the run; False if none goes on. Does not wait for its end; from any thread. What is queued stays queued."""
        signal = self._signal
        if signal is None:
            return False
        signal.abort(reason)
        return True

    def skip_wait(self) -> bool:
        """End a retry's wait now; False when none is going on. From any thread."""
        run = self._run
        return run is not None and run.skip_wait()

    # ------------------------------------------------------------ queues

    def steer(self, content: AgentInput) -> None:
        """Queue what the model shall hear soon: after the present turn, or right after the next prompt. From any thread."""
        self._queues.add("steering", input_messages(content))

    def follow_up(self, content: AgentInput) -> None:
        """Queue what the model shall hear when the run would end otherwise: it then goes on. From any thread."""
        self._queues.add("follow_up", input_messages(content))

    def queued(self, queue: QueueName) -> tuple[AgentMessage, ...]:
        """The messages that wait in the queue `steering` or `follow_up`, the next one first."""
        return self._queues.waiting(queue)

    def take_back(self, queue: QueueName | None = None) -> tuple[AgentMessage, ...]:
        """Remove and return the messages that wait in one queue, or in both, steering first; not what a run has taken."""
        return self._queues.take_back(queue)

    def clear_queue(self, queue: QueueName | None = None) -> None:
        """Drop what waits in one queue, or in both."""
        self._queues.take_back(queue)

    @property
    def steering_mode(self) -> QueueMode:
        """How much of the steering a turn takes: `one_at_a_time` or `all`."""
        return self._queues.mode("steering")

    @steering_mode.setter
    def steering_mode(self, mode: QueueMode) -> None:
        self._queues.set_mode("steering", mode)

    @property
    def follow_up_mode(self) -> QueueMode:
        """How many follow-ups are taken when the run would end: `one_at_a_time` or `all`."""
        return self._queues.mode("follow_up")

    @follow_up_mode.setter
    def follow_up_mode(self, mode: QueueMode) -> None:
        self._queues.set_mode("follow_up", mode)

    # ------------------------------------------------------------ observers

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event from the next one on; the returned function unsubscribes it.

        Listeners are called one after the other, in the order in which they subscribed. What one returns is awaited if it
        can be; until then the run waits at this event: no request and no tool begins (and an abort does not cut the
        listener short). One that raises is logged and unsubscribed; the run and the other listeners go on. Raises
        `TypeError` for a listener that cannot be called.
        """
        if not callable(listener):
            raise TypeError(f"listener: expected a function that takes an event, got {listener!r}")
        return self._listeners.add(listener)

    def events(self, *, follow: bool = False) -> EventReader:
        """The events from here on, as an async iterator for other tasks than the one that awaits `prompt`.

        It ends with the present run, or, if none goes on, with the next one; with `follow` it never ends. There may be many
        readers, in any event loop. No run waits for a reader: what it has not read yet is kept, without a bound, for as long
        as somebody holds the reader. Where the run must not get ahead, subscribe an async listener.
        """
        reader = EventReader(follow)
        self._readers = (*self._readers, weakref.ref(reader, self._forget))
        return reader

    def _forget(self, gone: weakref.ref[EventReader]) -> None:
        self._readers = tuple([ref for ref in self._readers if ref is not gone])

    # ------------------------------------------------------------ one run, from its first step to its last

    def _check_idle(self) -> None:
        if self.is_running:
            raise RuntimeError(
                "the agent is running, and one run at a time is all there is: use steer(…) to say something now, follow_up(…)"
                " to say it when the run would end, or wait_for_idle() first"
            )

    async def _perform(self, make: _Make, spare: Callable[[], _Make | None] = lambda: None) -> AgentEnd:
        """One run, for the readers too: where the one that is made cannot begin, it is the one that `spare` gives."""
        task = anyio.get_current_task().id  # raises where no event loop runs: nothing is taken yet
        with self._claim:  # prompts from two threads
            self._check_idle()
            signal = self._signal = AbortSignal()
            self._over = AbortSignal()
        self._began = False
        given = self._config.abort
        unlink = None if given is None else given.subscribe(lambda: signal.abort(given.reason))
        self._task = task
        try:
            instead = None
            try:
                end = await self._read(make, signal)
            except ValueError:
                instead = None if self._began else spare()
                if instead is None:
                    raise
            if instead is not None:
                end = await self._read(instead, signal)
        finally:
            if unlink is not None:
                unlink()
            self._finish()
        if end is None:
            raise RuntimeError("the run ended without its AgentEnd: its event loop is going down")
        return end

    def _opening(self, prompts: Iterable[AgentMessage]) -> tuple[AgentMessage, ...]:
        summary = self._state.pending_summary
        return (*prompts,) if summary is None else (summary, *prompts)

    async def _read(self, make: _Make, signal: AbortSignal) -> AgentEnd | None:
        context = Context(self.system_prompt, self._state.messages, self._tools)
        run = self._run = make(context, self._run_config(self._config, signal))
        run.keep_alive()
        listeners = self._listeners
        event: Event | None = None
        try:
            async for event in run:
                self._take(event)
                if listeners.audience and (answer := listeners.next_answer()) is not None:
                    await listeners.answered(answer)
                    await listeners.tell()
        except GeneratorExit:  # nobody can await any more: the run is dropped, and closes itself
            raise
        except BaseException as error:
            began = event is not None or not isinstance(error, ValueError)
            if began:  # else the signal is still good
                await self._close(run, signal)
            raise
        return event if isinstance(event, AgentEnd) else None

    async def _close(self, run: Run, signal: AbortSignal) -> None:
        """Bring a run whose caller is leaving to its end, whatever cancels the caller meanwhile."""
        signal.abort("the caller was cancelled")
        bound = anyio.current_time() + _CLOSING + 4 * self._config.abort_grace
        survived = (Exception, KeyboardInterrupt, SystemExit)  # one is on its way already
        try:
            with anyio.CancelScope(shield=True, deadline=bound):
                await self._listeners.tell(survived)
                async for event in run:
                    self._take(event)
                    await self._listeners.tell(survived)
        finally:
            await run.aclose()

    def _finish(self) -> None:
        self._queues.give_back()
        self._state.close()
        self._run = self._task = None
        for reader in self._living_readers():
            reader.run_is_over()
        self._signal = None
        self._over.abort()

    def _take(self, event: Event) -> None:
        """Fold an event and hand it to the readers; the listeners are to be told of it next."""
        self._state.apply(event)
        if type(event) is MessageEnd:
            self._queues.emitted(event.message)
        for reader in self._living_readers() if self._readers else ():
            reader.give(event)
        self._began = True
        self._listeners.pass_on(event)

    def _living_readers(self) -> list[EventReader]:
        return [reader for ref in self._readers if (reader := ref()) is not None]

    # ------------------------------------------------------------ what the run asks of us

    def _run_config(self, config: Config, signal: AbortSignal) -> Config:
        return attrs.evolve(
            config,
            abort=signal,
            session_usage=self._state.session_usage,
            get_steering_messages=partial(self._queues.poll, "steering"),
            get_follow_up_messages=partial(self._queues.poll, "follow_up"),
            wait_for_steering=self._queues.wait_for_steering,
            get_tools=lambda: self._tools,
            prepare_request=partial(self._prepare, config.prepare_request),
        )

    def _prepare(self, then: Callable[[ModelRequest], Any] | None, request: ModelRequest) -> Any:
        """Put the model, system prompt and options of this moment into a request, then ask the application's own callback."""
        config = self._config
        same = request.model is config.model and request.options is config.options
        if not same or request.system_prompt != self.system_prompt:
            request = attrs.evolve(
                request, model=config.model, options=config.options, system_prompt=self.system_prompt
            )
        answer = None if then is None else then(request)
        if is_awaitable(answer):
            return Then(answer, lambda given: request if given is None else given)
        return request if answer is None else answer


def _is_uncommitted(messages: tuple[AgentMessage, ...]) -> bool:
    """Whether the history ends with a reply that was not committed (with its results)."""
    for message in reversed(messages):
        if not isinstance(message, ToolResultMessage):
            return isinstance(message, AssistantMessage) and message.stop_reason != "completed"
    return False
