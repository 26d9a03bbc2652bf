"""`subagent`: a nested session as a tool.

    research = subagent("research", "Looks things up.", model, tools=[search], traces="traces")
    agent_loop("Compare the two.", Context(tools=[research]), Config(model=model))

Each call is a session of its own: its own context, model and trace. The parent sees its events as `ChildEvent`s with the
chain of session ids (outermost first) and gets the child's last words as the call's result; calls of one reply run side by
side. An abort reaches the innermost agent first, questions of approval go up to the outermost callback, and the tokens count
in the session totals of every agent above, once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from agentloop._stepped import Stepped
from agentloop.abort import AbortSignal
from agentloop.config import Config, check_settings
from agentloop.context import Context
from agentloop.errors import ToolDefinitionError, TraceReadError, TraceWriteError
from agentloop.events import (
    AgentEnd,
    ApprovalRequest,
    CompactionBegin,
    CompactionEnd,
    Event,
    MessageEnd,
    RequestBegin,
)
from agentloop.loop import agent_loop
from agentloop.messages import AssistantMessage, Text, ToolResult, user
from agentloop.model import Model
from agentloop.omni.recorder import record
from agentloop.omni.records import Record, model_identity, new_session_id, session_meta
from agentloop.omni.redact import mask_secrets
from agentloop.omni.trace import Redact, TraceWriter
from agentloop.tools import Tool, ToolContext, ToolInvocation, tool

__all__ = ["ChildApprovalRequest", "ChildToolInvocation", "Tools", "subagent"]

Tools: TypeAlias = Iterable[Tool] | Callable[[], Iterable[Tool]]
"""The tools of a child: a list, or a function that is asked for it at each call (so an agent may offer itself)."""

_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "prompt": {
            "type": "string",
            "description": "The whole task. The agent sees nothing of this conversation: say all that it has to know.",
        }
    },
    "required": ["prompt"],
    "additionalProperties": False,
}

_NOT_OPTIONS: Final = ("model", "abort", "session_usage")
"""Fields of `Config` that the tool itself fills in."""


@attrs.frozen
class ChildApprovalRequest(ApprovalRequest):
    """A question of a nested run, as the callback of the run above gets it: the same, and where it comes from."""

    origin: tuple[str, ...] = attrs.field(kw_only=True)
    """Session ids of the agents below the one whose callback is asked, outermost first."""


@attrs.frozen
class ChildToolInvocation(ToolInvocation):
    """A call of a nested run, as the policy of the run above sees it: the same, and where it comes from.

    Call ids are unique in their own run only: a policy that knows calls by their ids looks at `origin` too.
    """

    origin: tuple[str, ...] = attrs.field(kw_only=True)
    """As in `ChildApprovalRequest`."""


def subagent(
    name: str,
    description: str,
    model: Model,
    *,
    tools: Tools = (),
    system_prompt: str | None = None,
    traces: str | Path | None = None,
    max_depth: int = 3,
    max_running: int = 8,
    max_descendants: int = 32,
    label: str | None = None,
    timeout: float | None = None,
    make_session_id: Callable[[], str] = new_session_id,
    redact: Redact | None = mask_secrets,
    **config: Any,
) -> Tool:
    """A tool that hands a task (`prompt`) to an agent of its own and gives back the agent's last words.

    `traces`: the folder in which each child has its trace (None: none is kept). `config`: any field of `Config` but
    `model`, `abort` and `session_usage`; without an `approve` of its own a child asks the callback of the run above, which
    gets a `ChildApprovalRequest`, perhaps several at a time. `timeout` (seconds) is the tool's.

    Limits, each an error result that the model can read: `max_depth` agents below one another, the first one included;
    `max_running` calls of this tool at a time; `max_descendants` agents below the one that a run outside of all children
    has called, that one included. The outermost tool's depth and number count for the whole tree.

    What the call gives back: the last reply's text (`[no output]` if it has none). A child that failed, was refused, was
    aborted or timed out: an error that says how it ended, then what it had said so far. `details` holds `session_id`,
    `stop_reason`, `error_code` and the child's own token counts. Raises `ToolDefinitionError` or `TypeError` for what
    cannot be such a tool.
    """
    for key, value in (("max_depth", max_depth), ("max_running", max_running), ("max_descendants", max_descendants)):
        if value < 1:
            raise ToolDefinitionError(f"{name}: {key}: expected a number from 1, got {value!r}")
    check_settings(name, config, ("system_prompt", "max_running"))
    for key in _NOT_OPTIONS:
        if key in config:
            raise TypeError(f"{name}: expected fields of Config that a child may have, got {key!r}")
    if isinstance(tools, Tool) or not callable(tools):
        tools = Context(tools=tools).tools  # type: ignore[arg-type]  # a lone tool is refused there
    child = _Subagent(
        name=name,
        context=Context(system_prompt),
        config=Config(model=model, **config),
        tools=tools,
        traces=traces,
        max_depth=max_depth,
        max_running=max_running,
        max_descendants=max_descendants,
        make_session_id=make_session_id,
        redact=redact,
    )
    return tool(child.call, name=name, description=description, parameters=_PARAMETERS, label=label, timeout=timeout)


@attrs.define
class _Family:
    """The tree of agents below one call of a run that is not a child itself."""

    max_depth: int
    max_descendants: int
    started: int = 0


_place: ContextVar[tuple[_Family, int] | None] = ContextVar("agentloop_subagent", default=None)
"""In a nested run: its family, and how many agents stand above its tools."""


class _Refused(Exception):
    """The child may not start; the text is for the model."""


@attrs.define(kw_only=True, eq=False)
class _Subagent:
    """What stands behind the tool."""

    name: str
    context: Context
    config: Config
    tools: tuple[Tool, ...] | Callable[[], Iterable[Tool]]
    traces: str | Path | None
    max_depth: int
    max_running: int
    max_descendants: int
    make_session_id: Callable[[], str]
    redact: Redact | None
    running: int = 0

    async def call(self, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        """Run a child to its end, whatever that is."""
        prompt = arguments["prompt"]
        if not prompt.strip():
            return _error("The agent was given no task: the prompt is blank.")
        try:
            family, depth = self._admit()
        except _Refused as refused:
            return _error(str(refused))
        _place.set((family, depth))  # this task's own: the child's run starts with a copy
        self.running += 1
        try:
            return await self._run(prompt, ctx, family.max_depth - depth)
        finally:
            self.running -= 1

    def _admit(self) -> tuple[_Family, int]:
        family, depth = _place.get() or (_Family(self.max_depth, self.max_descendants), 0)
        if depth >= min(family.max_depth, self.max_depth):
            raise _Refused(f"Not started: agents may stand at most {depth} deep. Do this part yourself.")
        if self.running >= self.max_running:
            raise _Refused(
                f"Not started: {self.running} agents of this kind run already, which is the limit. Call again when one has"
                " ended."
            )
        if family.started >= family.max_descendants:
            raise _Refused(f"Not started: this task has had its {family.started} agents. Do this part yourself.")
        family.started += 1
        return family, depth + 1

    async def _run(self, prompt: str, ctx: ToolContext, levels: int) -> ToolResult:
        session_id = self.make_session_id()
        tools = tuple(self._tools())
        meta = self._meta(session_id)
        try:
            writer = None if self.traces is None else TraceWriter(self.traces, meta, redact=self.redact)
        except (TraceWriteError, TraceReadError, OSError) as error:
            return _error(f"The agent could not start, its trace cannot be written: {error}")
        signal = AbortSignal()  # fires in the moment of the outermost abort: no level begins anything after it
        sources = [source for source in (ctx.run_abort, ctx.abort) if source is not None]
        unsubscribe = [source.subscribe(partial(_follow, signal, source)) for source in sources]
        failed: str | None = None
        try:
            heard = _Heard(self._events(prompt, ctx.approve, signal, session_id, tools, writer))
            bound = _closing_bound(self.config, tools, levels)
            await ctx.nested(heard, session_id, meta=meta["payload"], closing_bound=bound)
        except TraceWriteError as error:
            failed = f"The agent was stopped, its trace cannot be written: {error}"
        finally:
            for take_back in unsubscribe:
                take_back()
            if writer is not None:
                writer.close()
        return _result(heard, session_id, failed)

    def _tools(self) -> Iterable[Tool]:
        return self.tools() if callable(self.tools) else self.tools

    def _events(
        self,
        prompt: str,
        above: Callable[[ApprovalRequest], Any] | None,
        signal: AbortSignal,
        session_id: str,
        tools: Sequence[Tool],
        writer: TraceWriter | None,
    ) -> AsyncGenerator[Event, None]:
        approve = self.config.approve
        if approve is None and above is not None:
            approve = _Upwards(above, session_id)
        config = attrs.evolve(self.config, approve=approve, abort=signal)
        context = attrs.evolve(self.context, tools=tools)
        run = agent_loop([user(prompt, sender="parent_agent")], context, config)
        return run if writer is None else record(run, writer)

    def _meta(self, session_id: str) -> Record:
        return session_meta(
            session_id,
            **model_identity(self.config.model),
            system_prompt=self.context.system_prompt or "",
            workspace=str(Path.cwd()),
            source="subagent",
        )


def _follow(signal: AbortSignal, source: AbortSignal) -> None:
    signal.abort(source.reason)


class _Upwards:
    """The approval of a child: the callback of the run above, told where the question comes from."""

    def __init__(self, approve: Callable[[ApprovalRequest], Any], session_id: str) -> None:
        self._approve = approve
        self._session_id = session_id
        self._policy = getattr(approve, "policy", None)

    def policy(self, call: ToolInvocation) -> Any:
        """What the run above says without a question holds below it, if it says so about this call, origin and all."""
        if self._policy is None:
            return None
        return self._policy(
            ChildToolInvocation(call.id, call.name, call.arguments, call.tool, origin=self._origin(call))
        )

    def __call__(self, request: ApprovalRequest) -> Any:
        return self._approve(
            ChildApprovalRequest(
                request.tool_call_id, request.tool_name, request.arguments, origin=self._origin(request)
            )
        )

    def _origin(self, below: object) -> tuple[str, ...]:
        return (self._session_id, *getattr(below, "origin", ()))


def _closing_bound(config: Config, tools: Iterable[Tool], levels: int) -> float:
    """How long a child may take to close after an abort (seconds): its own two graces, and what its children need."""
    own = max(2 * config.abort_grace, 0.1)
    if levels <= 0:
        return own
    owners = [getattr(tool.execute, "__self__", None) for tool in tools]
    below = [owner for owner in owners if isinstance(owner, _Subagent)]
    return own + max((_closing_bound(each.config, each._tools(), levels - 1) for each in below), default=0.0)


# ---------------------------------------------------------------- what the call gives back


class _Heard(Stepped[Event]):
    """The child's events as they pass, with its end and its last words kept."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self.end: AgentEnd | None = None
        self.words = ""
        """The last reply's text that is not blank."""
        self.last: AssistantMessage | None = None
        """The last attempt's reply; what a compaction had written is none."""
        self._summarised = False

    async def __anext__(self) -> Event:
        event = await self._events.__anext__()
        match event:
            case AgentEnd():
                self.end = event
            case CompactionBegin() | CompactionEnd():
                self._summarised = isinstance(event, CompactionBegin)
            case RequestBegin() if not self._summarised:
                self.last = None
            case MessageEnd(message=AssistantMessage() as reply) if not self._summarised:
                self.last = reply
                self.words = reply.text if reply.text.strip() else self.words
        return event

    async def aclose(self) -> None:
        await self._events.aclose()


def _result(heard: _Heard, session_id: str, failed: str | None) -> ToolResult:
    end = heard.end
    details: dict[str, Any] = {"session_id": session_id, "stop_reason": "fatal", "error_code": None}
    if end is not None:
        details |= {"stop_reason": end.stop_reason, "error_code": end.error_code, "usage": attrs.asdict(end.usage)}
    problem = failed or _problem(end, heard.last)
    if problem is None:
        last = "" if heard.last is None else heard.last.text
        return ToolResult((Text(last),) if last.strip() else (), details=details)
    said = f"\n\nWhat it had said so far:\n{heard.words}" if heard.words else ""
    return attrs.evolve(_error(problem + said), details=details)


def _problem(end: AgentEnd | None, last: AssistantMessage | None) -> str | None:
    """How a child ended, unless it ended well."""
    if end is None:
        return "The agent broke off without an end."
    if end.stop_reason != "completed":
        why = f": {end.error_message}" if end.error_message else "."
        kind = "was aborted" if end.stop_reason == "aborted" else "failed"
        return f"The agent {kind} ({end.error_code or end.stop_reason}){why}"
    if last is not None and last.finish_reason in ("refusal", "content_filter"):
        return "The agent's model refused the task."
    if last is not None and last.finish_reason == "length":
        return "The agent's last reply was cut off by the output limit."
    return None


def _error(text: str) -> ToolResult:
    return ToolResult((Text(text),), is_error=True)
