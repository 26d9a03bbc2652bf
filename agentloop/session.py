"""`Session`: a conversation that goes on over many runs and processes, each event on disk before it is handed over.

    async with Session.create("traces", model, tools=[list_files]) as session:
        async for event in session.run("Which files are there?", approve=ask_me):
            ...

It is the guarded way to the loop: without an `approve` callback every call is denied. One run at a time. What a run that
ended early had shown is carried over into the next one; after a crash `Session.open` goes on from the trace.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs

from agentloop._session.conversation import Conversation, resumed_messages, resumed_prompt, waits
from agentloop._session.door import Approve, Door, without_summary
from agentloop._session.prompts import Prompt, Prompts, prompt_messages
from agentloop._session.queues import WithQueues
from agentloop._session.run import SessionRecords, SessionRun
from agentloop.abort import AbortSignal
from agentloop.config import Config, check_settings
from agentloop.context import Context
from agentloop.errors import SessionBusy, TraceWriteError
from agentloop.events import MessageEnd
from agentloop.loop import agent_loop_continue, compact
from agentloop.messages import AgentMessage, Usage, UserMessage
from agentloop.model import Model
from agentloop.omni.carry import carried_over, first_input
from agentloop.omni.codec import Decoder
from agentloop.omni.custom import REGISTRY, MessageRegistry
from agentloop.omni.reader import read, trace_files
from agentloop.omni.recorder import Policy, Recording, record
from agentloop.omni.records import (
    Clock,
    Record,
    compaction_end,
    is_repeated,
    model_identity,
    new_session_id,
    session_meta,
    timestamp,
)
from agentloop.omni.redact import mask_secrets
from agentloop.omni.resume import reopen
from agentloop.omni.trace import Fsync, Redact, TraceWriter
from agentloop.tools import Tool

__all__ = ["Approve", "History", "Prompt", "Prompts", "Session", "SessionRecords", "SessionRun"]

log = logging.getLogger(__name__)

PER_RUN: Final = {
    "abort": "belongs to one run: session.run(…, abort=…)",
    "session_usage": "the session counts itself",
    "taken_ids": "the session knows itself",
}
"""Fields of `Config` that the session itself fills in."""


@attrs.frozen
class History:
    """A session from its beginning, over all its files."""

    messages: tuple[AgentMessage, ...]
    """Every message that had an event, in order; also replies that were not committed, and contexts before a compaction."""
    records: tuple[Record, ...]
    """Every record, in order; what a later file only repeats is left out."""


class Session(WithQueues):
    """A conversation with a model, recorded. Made by `create` and `open`; close it with `async with` or `aclose`.

    Not to be shared between threads, except for `AbortSignal.abort` and `skip_wait`. What may be changed is changed with
    `configure`; `session.max_turns = 3` is an `AttributeError`.
    """

    __slots__ = (
        "__weakref__", "_approved", "_closed", "_config", "_context", "_holder", "_meta", "_policy", "_registry", "_run",
        "_traces", "_wall_clock", "_writer", "conversation",
    )  # fmt: skip

    def __init__(
        self,
        writer: TraceWriter,
        conversation: Conversation,
        config: Config,
        context: Context,
        meta: Record,
        *,
        traces: Path,
        policy: Policy,
        wall_clock: Clock,
        registry: MessageRegistry,
    ) -> None:
        """See `create` and `open`."""
        self.conversation = conversation
        """What the next run starts from; to be read only."""
        self._writer = writer
        self._config = config
        self._context = context
        self._meta = meta
        self._traces = traces
        self._policy: Policy = policy
        self._wall_clock = wall_clock
        self._registry = registry
        self._approved: dict[str, str] = {}  # calls of the trace that were allowed, with the arguments that were shown
        self._run: weakref.ref[SessionRun] | None = None
        self._holder: int | None = None  # the id of the run that goes on; it may be collected before it has said so
        self._closed = False

    # ---------------------------------------------------------------- making one

    @classmethod
    def create(
        cls,
        traces: str | Path,
        model: Model,
        *,
        tools: Iterable[Tool] = (),
        system_prompt: str | None = None,
        session_id: str | None = None,
        workspace: str | Path | None = None,
        agent_state: str = "",
        context_window: int | None = None,
        source: str | None = None,
        policy: Policy = "fail",
        redact: Redact | None = mask_secrets,
        fsync: Fsync = "never",
        wall_clock: Clock = time.time,
        registry: MessageRegistry = REGISTRY,
        **config: Any,
    ) -> Self:
        """A new session in the folder `traces`. Nothing but its lock is written before its first run.

        `session_id`: letters, digits, `_` and `-`, made by `new_session_id` when None. `workspace` (default: the
        working folder), `agent_state`, `context_window` (tokens) and `source` go into the `session_meta` at the head of its
        files. `policy`: where a record cannot be written, the run ends (`fail`), or goes on and a warning is logged once
        (`warn`). `redact` may change or drop each record before it is stored, `fsync` says when the system is told to bring
        it to the disk, `wall_clock` dates it (seconds since 1970). `registry` knows the application's own messages.
        `config`: any field of `Config` (`hooks`, `compaction`, `max_turns`, `options`, …) but `abort`, `session_usage` and
        `taken_ids`; an `approve` here is for every run that is given none of its own.

        Raises `ValueError` for an id that cannot be part of a file's name, `TraceLocked` when another writer has the
        session, `TraceWriteError` when it exists already or the folder cannot be written, `TypeError` for options that do
        not exist.
        """
        prepared, context = _config(model, config), Context(system_prompt, tools=tools)
        checked = _policy(policy)  # before the lock is taken, which whoever has the error would keep
        meta = session_meta(
            new_session_id(wall_clock) if session_id is None else session_id,
            **model_identity(model),
            model_context_window="unknown" if context_window is None else context_window,
            system_prompt=system_prompt or "",
            agent_state=agent_state,
            workspace=str(Path.cwd() if workspace is None else workspace),
            source=source,
            clock=wall_clock,
        )
        writer = TraceWriter(traces, meta, redact=redact, fsync=fsync, clock=wall_clock)
        return cls(
            writer,
            Conversation(),
            prepared,
            context,
            meta,
            traces=Path(traces),
            policy=checked,
            wall_clock=wall_clock,
            registry=registry,
        )

    @classmethod
    def open(
        cls,
        session_id: str,
        traces: str | Path,
        model: Model | None = None,
        *,
        resolve: Callable[[str], Model] | None = None,
        tools: Iterable[Tool] = (),
        system_prompt: str | None = None,
        policy: Policy = "fail",
        redact: Redact | None = mask_secrets,
        fsync: Fsync = "never",
        wall_clock: Clock = time.time,
        registry: MessageRegistry = REGISTRY,
        **config: Any,
    ) -> Self:
        """Go on with a session from its newest file. Writes nothing, but the end of a compaction that a crash left open.

        `model` None: `resolve("provider:model")` gives the recorded one. `system_prompt` is for a context that begins
        anew; an open one keeps its recorded prompt (`configure` changes it). Calls that a crash left open are settled by
        the first run. One that had not started runs first; if it was allowed with these very arguments, nobody is asked
        again. One that had started, so that nobody knows what it did, runs again only if its tool says `replay="safe"`;
        else the model is told.

        Raises `TraceReadError` when there is no such session or it cannot go on, `TraceLocked` when another writer has
        it, `ValueError` for an id that cannot be part of a file's name or without a model, `TypeError` for options that
        do not exist.
        """
        offered = Context(system_prompt, tools=tools)
        resumed, writer = reopen(traces, session_id, redact=redact, fsync=fsync, clock=wall_clock, registry=registry)
        if resumed.damage is not None:
            log.warning("%s", resumed.damage)
        try:
            recorded = resumed.meta
            assert recorded is not None, "a session without a meta is refused"
            prepared = _config(model or _resolved(recorded["payload"], resolve), config)
            context = attrs.evolve(offered, system_prompt=resumed_prompt(resumed, system_prompt))
            session = cls(
                writer,
                Conversation(
                    resumed_messages(resumed, context.tools),
                    resumed.summary,
                    resumed.session_tokens,
                    () if resumed.context_closed else resumed.call_ids,
                ),
                prepared,
                context,
                recorded,
                traces=Path(traces),
                policy=_policy(policy),
                wall_clock=wall_clock,
                registry=registry,
            )
            session._approved = {call.id: call.approved for call in resumed.calls if call.approved is not None}
            session._head()
        except BaseException:
            writer.close()
            raise
        return session

    # ---------------------------------------------------------------- what it is

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self.is_running else "idle"
        return f"<Session {self.id} {state}, {len(self.messages)} messages>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._writer.session_id

    @property
    def meta(self) -> Record:
        """The `session_meta` at the head of the next file that is opened (of a new session: its first)."""
        return self._meta

    @property
    def messages(self) -> tuple[AgentMessage, ...]:
        """The conversation as the next run has it; while one goes on, as it was before."""
        return self.conversation.messages

    @property
    def pending_summary(self) -> UserMessage | None:
        """The summary of a compaction that no run has taken yet: it becomes the first of the next run's prompts."""
        return self.conversation.summary

    @property
    def usage(self) -> Usage:
        """The session's tokens over all its runs, up to the end of the last one."""
        return self.conversation.usage

    @property
    def model(self) -> Model:
        """The model that the next run asks."""
        return self._config.model

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the next run offers."""
        return self._context.tools

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the next run."""
        return self._context.system_prompt

    @property
    def path(self) -> Path | None:
        """The newest file; None before there is one."""
        return self._writer.file

    @property
    def waits(self) -> bool:
        """Whether a run without prompts has something to go on with in the conversation; what is queued does not count."""
        return self.pending_summary is not None or waits(self.messages)

    @property
    def is_running(self) -> bool:
        """Whether a run goes on."""
        return self._holder is not None

    def history(self) -> History:
        """The session from its beginning, read from its files. Raises `TraceReadError` when one cannot be read."""
        decoder = Decoder(self._registry)
        records = [
            record
            for file in trace_files(self._traces, self.id)
            for record in read(file.path)
            if not is_repeated(record)
        ]
        events = [event for record in records for event in decoder.feed(record)] + decoder.finish()
        return History(tuple([event.message for event in events if isinstance(event, MessageEnd)]), tuple(records))

    # ---------------------------------------------------------------- runs

    def run(
        self, prompts: Prompts = (), *, approve: Approve | None = None, abort: AbortSignal | None = None
    ) -> SessionRun:
        """A run on these prompts: text, blocks, messages, records (`user_text("…")`); yields the kernel's events.

        Without prompts it goes on with what waits: calls and inputs that a crash left, a summary, a failed or aborted
        request; else with what is queued. `approve` is asked about each call; with none here and none in the session every
        call is denied. Prompts that had no event yet when the run was stopped are not part of the conversation.

        Raises `SessionBusy` while another run goes on (here and at the first step), `TypeError` and `ValueError` for
        anything that cannot be a prompt; from the first step `ValueError` when there is nothing to do; from any step
        `TraceWriteError` (policy `fail`). All other failures are events.
        """
        self._check_free()
        messages = prompt_messages(prompts, self._registry)

        def start(clock: Clock) -> Recording:
            return self._begin(self._events(messages, approve, abort), clock)

        return SessionRun(self, start, self._wall_clock)

    def records(
        self, prompts: Prompts = (), *, approve: Approve | None = None, abort: AbortSignal | None = None
    ) -> SessionRecords:
        """The same run as `run`, as OmniMessage records: all that a stream shows, fragments included."""
        return SessionRecords(self.run(prompts, approve=approve, abort=abort))

    def compact(self, *, abort: AbortSignal | None = None) -> SessionRun:
        """A run that is a compaction alone, by the session's `compaction`; the next run begins with its summary.

        The first step raises `ValueError` without a compaction, or when there is nothing to compact.
        """
        self._check_free()

        def start(clock: Clock) -> Recording:
            context = attrs.evolve(self._context, messages=carried_over(self.messages))
            return self._begin(compact(context, self._run_config(None, abort)), clock, context.messages)

        return SessionRun(self, start, self._wall_clock)

    def configure(self, **changes: Any) -> None:
        """Change `model`, `tools`, `system_prompt`, or any field of `Config` (`options`, `max_turns`, …) for the runs to
        come.

        The trace shows the tools by the next run's `tool_list_ready`, the model by its replies, and both model and
        system prompt at the head of the next file, which a compaction opens. Raises `SessionBusy` while a run goes on,
        `TypeError` for a setting that does not exist.
        """
        self._check_free()
        context = {name: changes.pop(name) for name in ("tools", "system_prompt") if name in changes}
        _check_options(changes)
        config = attrs.evolve(self._config, **changes)
        self._context = attrs.evolve(self._context, **context)
        self._config = config
        self._head()

    async def aclose(self) -> None:
        """End the run that goes on, if one does, and unlock the session for other writers. A second call does nothing.

        The end of the run is awaited, bounded in time, also under a cancellation. Raises a `KeyboardInterrupt`
        or `SystemExit` that a tool raised and no step has raised yet; the session is unlocked all the same.
        """
        self._closed = True
        run = None if self._run is None else self._run()
        try:
            if run is not None:
                await run.aclose()
        finally:
            self.close()

    def close(self) -> None:
        """Unlock the session, for synchronous code: a run that goes on is not awaited, and its next record fails."""
        self._closed = True
        self._writer.close()

    async def __aenter__(self) -> Self:
        """Itself, to be closed at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    # ---------------------------------------------------------------- the one run's place

    def take(self, run: SessionRun) -> None:
        """For `SessionRun`: it begins. Raises `SessionBusy` when another one is going on."""
        self._check_free()
        self._holder = id(run)
        self._run = weakref.ref(run)

    def give_back(self, run: SessionRun) -> None:
        """For `SessionRun`: it is over."""
        if self._holder == id(run):
            self._holder = None
            if self.conversation.settle():
                self._approved = {}  # they were about open calls, and ids may come again

    def _check_free(self) -> None:
        if self._closed:
            raise ValueError(f"session {self.id}: expected an open session, got a closed one")
        if self._holder is not None:
            raise SessionBusy(
                f"session {self.id}: expected to be idle, got a second run while one goes on (one at a time: await its"
                " end or its aclose, or steer it)"
            )

    # ---------------------------------------------------------------- what a run starts from

    def _events(self, messages: tuple[AgentMessage, ...], approve: Approve | None, abort: AbortSignal | None) -> Any:
        conversation = self.conversation
        if not messages and not self.waits:
            messages = self._queued_first()
        first = first_input(messages, summary=conversation.summary)
        if not first and not self.waits:
            raise ValueError(
                "prompts: expected some, got none, and nothing in the conversation waits to be gone on with"
            )
        context = attrs.evolve(self._context, messages=conversation.messages)
        return agent_loop_continue(context, self._run_config(approve, abort), first)

    def _begin(self, events: Any, clock: Clock, messages: Iterable[AgentMessage] | None = None) -> Recording:
        self._close_compaction()
        self.conversation.begin(messages)
        return record(events, self._writer, policy=self._policy, clock=clock)

    def _run_config(self, approve: Approve | None, abort: AbortSignal | None) -> Config:
        config = self._with_queues(self._config)
        return attrs.evolve(
            config,
            approve=Door(approve or config.approve, self._approved),
            abort=abort,
            session_usage=self.usage,
            taken_ids=frozenset(self.conversation.call_ids),
            hooks=without_summary(config.hooks, self.pending_summary),
        )

    def _close_compaction(self) -> None:
        """Record the end of a compaction that a run left open, before anything else is written."""
        begin, self.conversation.open_compaction = self.conversation.open_compaction, None
        if begin is None:
            return
        try:
            self._writer.write(compaction_end(begin.reason, begin.mode, "retryable", clock=self._wall_clock))
        except TraceWriteError as error:
            if self._policy == "fail":
                raise
            log.warning("the end of a compaction could not be written: %s", error)

    def _head(self) -> None:
        """Put the present model and system prompt into the `session_meta` of the next file."""
        payload = {**self._meta["payload"], **model_identity(self.model), "system_prompt": self.system_prompt or ""}
        if payload != self._meta["payload"]:
            self._meta = {**self._meta, "timestamp": timestamp(self._wall_clock()), "payload": payload}
            self._writer.set_meta(self._meta)


# ---------------------------------------------------------------- what the caller gives


def _config(model: Model, options: dict[str, Any]) -> Config:
    _check_options(options)
    return Config(model=model, **options)


def _check_options(options: Mapping[str, Any]) -> None:
    check_settings("Session", options, ("system_prompt", "tools", "traces", "session_id", "context_window", "redact"))
    for name in PER_RUN:
        if name in options:
            raise TypeError(f"{name}: expected a setting that a session may be given, got one that {PER_RUN[name]}")


def _policy(policy: Policy) -> Policy:
    if policy not in ("fail", "warn"):
        raise ValueError(f"policy: expected fail or warn, got {policy!r}")
    return policy


def _resolved(meta: Mapping[str, Any], resolve: Callable[[str], Model] | None) -> Model:
    words = f"{meta['provider']}:{meta['model_id']}"
    if resolve is None:
        raise ValueError(f"model: expected a model, or a function that gives {words}, got neither")
    return resolve(words)
