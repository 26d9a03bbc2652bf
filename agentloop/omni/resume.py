"""Records back to a conversation that can go on: context, what is carried over, counters, calls left open.

`resume` is pure and never raises; `resume_file` and `resume_session` read, `reopen` also takes the writer's lock.
What comes out is legal for every provider, whatever the file lacks: each call has one result or is open, results
stand in call order after their calls, nothing that was not committed is in the history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from agentloop._marks import context_summary, summary_text
from agentloop.errors import TraceReadError
from agentloop.events import CompactionEnd
from agentloop.messages import AgentMessage, AssistantMessage, ToolResultMessage, Usage, UserMessage, user
from agentloop.omni._context import error_result, messages_of, result_of, usage_of
from agentloop.omni._lock import SessionLock
from agentloop.omni._plain import PLAIN
from agentloop.omni._types import Clock, Payload, Record
from agentloop.omni._walk import PLACEHOLDER, Execution, Item, Walk
from agentloop.omni.custom import REGISTRY, MessageRegistry
from agentloop.omni.reader import read, trace_files
from agentloop.omni.records import compaction_end, token_counts, user_text
from agentloop.omni.redact import MASK_START, mask_secrets
from agentloop.omni.trace import Fsync, Redact, TraceWriter

__all__ = [
    "PLACEHOLDER",
    "OpenCall",
    "Resumed",
    "closing_record",
    "reopen",
    "resumable_meta",
    "resume",
    "resume_file",
    "resume_session",
    "summary_text",
    "to_json",
]

UNKNOWN_OUTCOME: Final = (
    "[interrupted: the process ended while this tool ran; whether it took effect is unknown, and it was not run again]"
)
MASKED: Final = "[interrupted: the process ended before this tool ran; its arguments were masked in the record]"

ReplayPolicy = Callable[[str], Literal["never", "safe"]]
"""Whether the tool of a name may run again when its outcome is unknown (`Tool.replay`)."""


def never(name: str) -> Literal["never", "safe"]:
    """The policy of a tool that says nothing."""
    return "never"


@attrs.frozen
class OpenCall:
    """A committed call of the last reply that has no result: its `id`, and the `name` of its tool."""

    id: str
    name: str
    arguments: str
    """JSON text as the model sent it."""
    started: bool
    """Whether it had started, so that nobody knows what it did; else it never ran."""
    approved: str | None
    """The arguments that a recorded `allow` was about; None: nobody has allowed it yet."""
    question: str | None = None
    """The arguments that a person was asked about and gave no answer to (`agentloop.omni.answers`)."""


@attrs.frozen
class Resumed:
    """What the newest file of a session gives back. `session_id` is the id in its meta."""

    meta: Record | None
    """The first `session_meta`; None: the session cannot go on (`resumable_meta` says so)."""
    history: tuple[Record, ...]
    """Protocol records that a model had committed, each call with its output (perhaps a placeholder)."""
    carry_over: tuple[Record, ...]
    """Protocol records that the next request begins with: outputs, then inputs."""
    context_closed: bool
    """A completed compaction ended the context: the next record opens a new file."""
    pending_summary: Record | None
    """The summary that no turn took yet, as a user text."""
    session_tokens: Usage
    """Tokens of the session so far, over all its files."""
    tokens_before: bool
    """Whether this file alone does not tell the tokens of those before it: it has no `token_usage`."""
    last_request_total: int
    """Tokens of the context as its last request reported them; 0 in a context without one."""
    session_turns: int
    """Committed requests of this context."""
    open_compaction: Payload | None
    """The payload of a `compaction_begin` that has no end."""
    ours: bool
    """Whether the file has lifecycle records, as this package writes them: only then can calls be open."""
    messages: tuple[AgentMessage, ...]
    """The history as messages, the results of the last reply included; calls in `calls` have none."""
    inputs: tuple[AgentMessage, ...]
    """Messages that no committed request took: they stand after the results. They are in the trace already."""
    summary: UserMessage | None
    """`pending_summary` as a message."""
    calls: tuple[OpenCall, ...]
    """Calls of the last reply without a result, in call order. Empty for another writer's trace."""
    opening: tuple[Record, ...]
    """The last tool list and MCP pair, for a writer to repeat."""
    has_content: bool
    """Whether the file holds any conversation."""
    call_ids: frozenset[str] = frozenset()
    """Ids of all calls in the file, committed or not: no later one may have one of them."""
    path: Path | None = None
    """The file to go on with."""
    damage: str | None = None
    """What was skipped in reading, in one sentence; None: nothing."""

    @property
    def session_id(self) -> str | None:
        """The id in the meta."""
        value = None if self.meta is None else self.meta["payload"].get("session_id")
        return value if isinstance(value, str) else None

    def settled(self, replay: ReplayPolicy = never) -> tuple[AgentMessage, ...]:
        """`messages`, with an error result for each open call that must not run: one whose outcome is unknown, unless
        its tool may be run again (`safe`), and one whose recorded arguments hold a mask. The others stay open and run
        first."""
        refused = {}
        for call in self.calls:
            if call.started and replay(call.name) != "safe":
                refused[call.id] = error_result(call.id, call.name, UNKNOWN_OUTCOME, "fatal")
            elif MASK_START in call.arguments:
                refused[call.id] = error_result(call.id, call.name, MASKED, "fatal")
        return _with_results(self.messages, refused)


def _with_results(messages: Sequence[AgentMessage], added: dict[str, ToolResultMessage]) -> tuple[AgentMessage, ...]:
    """The messages with results put to the calls of the last reply, in call order."""
    last = max((n for n, message in enumerate(messages) if isinstance(message, AssistantMessage)), default=-1)
    if last < 0 or not added:
        return tuple(messages)
    reply = messages[last]
    assert isinstance(reply, AssistantMessage)
    results = {m.tool_call_id: m for m in messages[last + 1 :] if isinstance(m, ToolResultMessage)} | added
    rest = [message for message in messages[last + 1 :] if not isinstance(message, ToolResultMessage)]
    answers = [results[call.id] for call in reply.tool_calls if call.id in results]
    return (*messages[: last + 1], *answers, *rest)


# ---------------------------------------------------------------- records to a conversation


def resume(records: Iterable[Record], registry: MessageRegistry = REGISTRY) -> Resumed:
    """What the records of one file give back. Never raises; a file without a meta, or with nothing, gives what it has.

    `registry` knows the classes of an application's own messages.
    """
    walk = Walk()
    for record in records:
        walk.feed(record)
    walk.finish()
    summary = _summary(walk)
    closed = walk.closed is not None and (summary is not None or walk.closed["payload"].get("mode") == "discard")
    if closed:
        walk.forget_context()
    calls, results = _outcomes(walk)
    return Resumed(
        meta=walk.meta,
        history=_protocol_records(walk.history),
        carry_over=_protocol_records(walk.carried),
        context_closed=closed,
        pending_summary=_summary_record(walk, summary) if closed else None,
        session_tokens=usage_of(walk.session_usage) + walk.nested_usage,
        tokens_before=usage_of(walk.session_usage) == Usage(),
        last_request_total=walk.request_total,
        session_turns=walk.turns,
        open_compaction=walk.span,
        ours=walk.ours,
        messages=(*messages_of(walk.history, walk, registry), *results),
        inputs=tuple(messages_of([item for item in walk.carried if not item.is_output], walk, registry)),
        summary=summary if closed else None,
        calls=tuple(calls),
        opening=tuple(walk.opening.values()),
        has_content=walk.has_content,
        call_ids=frozenset(walk.call_ids),
    )


def _protocol_records(items: Iterable[Item]) -> tuple[Record, ...]:
    """Without an application's own messages, which the protocol does not know."""
    return tuple([item.record for item in items if item.record["type"] == "model_msg"])


def _outcomes(walk: Walk) -> tuple[list[OpenCall], list[ToolResultMessage]]:
    """The calls of the last reply: those that are open, and the results of the others, both in call order."""
    calls: list[OpenCall] = []
    results: list[ToolResultMessage] = []
    for item in walk.carried:
        if item.call is None:
            continue
        if not item.placeholder or not walk.ours:
            results.append(result_of(item))
            continue
        call, execution = item.call, walk.executions.get(item.call.written, Execution())
        if execution.decision in ("deny", "forbidden"):
            results.append(error_result(call.id, call.name, _denial(execution), "aborted"))
        else:
            approved = execution.shown if execution.decision == "allow" else None
            open_call = OpenCall(call.id, call.name, call.arguments, execution.started, approved, execution.question)
            calls.append(open_call)
    return calls, results


def _denial(execution: Execution) -> str:
    if execution.denied_by is not None and not execution.asked:
        return f"Tool call denied by {execution.denied_by}."
    return f"Tool call denied by {'policy' if execution.decision == 'forbidden' else 'user'}."


# ---------------------------------------------------------------- the summary of a closed context


def _summary(walk: Walk) -> UserMessage | None:
    """The message that stands for the context: as recorded, else made from the last reply. None: there is none."""
    if walk.closed is None or walk.closed["payload"].get("mode") == "discard":
        return None
    recorded = _recorded_summary(walk.closed["payload"])
    if recorded is not None and recorded.text.strip():
        return recorded
    texts = [item.payload["text"] for item in walk.last_reply if item.payload["type"] == "text"]
    words = summary_text("".join(texts))
    return user(context_summary(words)) if words else None


def _recorded_summary(payload: Payload) -> UserMessage | None:
    try:
        event = PLAIN["compaction_end"](payload)
    except (TypeError, ValueError, KeyError, AttributeError):  # what stands under `x` may be anybody's
        return None
    return event.summary if isinstance(event, CompactionEnd) else None


def _summary_record(walk: Walk, summary: UserMessage | None) -> Record | None:
    if summary is None or walk.closed is None:
        return None
    return {**user_text(summary.text, sender=summary.sender), "timestamp": walk.closed.get("timestamp")}


# ---------------------------------------------------------------- files


def resume_file(path: str | Path, registry: MessageRegistry = REGISTRY) -> Resumed:
    """What one file gives back, that file alone. Writes nothing. Raises `TraceReadError` when it cannot be read."""
    reader = read(path)
    resumed = resume(reader, registry)
    return attrs.evolve(resumed, path=reader.path, damage=reader.report())


def resume_session(traces: str | Path, session_id: str, registry: MessageRegistry = REGISTRY) -> Resumed:
    """What a session's newest file gives back. Writes nothing.

    Where that file holds a head and no conversation (a crash right after a rotation), the file before it tells what
    there was; token counts that it does not have yet come from the files before it.

    Raises `TraceReadError` when there is no such session or its file cannot be read, `ValueError` for an id that
    cannot be part of a file's name.
    """
    files = _files(traces, session_id)
    newest = resumed = resume_file(files.pop(), registry)
    while files and not resumed.has_content:
        resumed = resume_file(files.pop(), registry)
    if resumed is not newest and resumed.context_closed:
        resumed = attrs.evolve(resumed, path=newest.path)  # the next record opens the file after the newest
    earlier = resumed
    while files and earlier.tokens_before:
        earlier = resume_file(files.pop(), registry)
        resumed = attrs.evolve(resumed, session_tokens=resumed.session_tokens + earlier.session_tokens)
    return resumed


def _files(traces: str | Path, session_id: str) -> list[Path]:
    files = [file.path for file in trace_files(traces, session_id)]
    if not files:
        raise TraceReadError(f"session {session_id}: expected a trace in {traces}, got none")
    return files


def closing_record(resumed: Resumed, clock: Clock = time.time) -> Record | None:
    """The end of a compaction that was left open, to be appended before anything else; None when none is open."""
    begin = resumed.open_compaction
    if begin is None:
        return None
    return compaction_end(begin["reason"], begin["mode"], "retryable", clock=clock)


def reopen(
    traces: str | Path,
    session_id: str,
    *,
    meta: Record | None = None,
    redact: Redact | None = mask_secrets,
    fsync: Fsync = "never",
    clock: Clock = time.time,
    registry: MessageRegistry = REGISTRY,
) -> tuple[Resumed, TraceWriter]:
    """Lock a session, resume it, and give the writer that goes on with its file.

    Writes nothing but the end of a compaction that was left open, once. `meta` heads the next new file (assembled
    afresh for a closed context); by default the recorded one does.

    Raises `TraceLocked` when the session has a writer, and what `resume_session` and `resumable_meta` raise.
    """
    _files(traces, session_id)  # before the lock, which would make the folder
    lock = SessionLock(Path(traces), session_id)
    try:
        resumed = resume_session(traces, session_id, registry)
        recorded = resumable_meta(resumed)
        writer = TraceWriter(
            traces,
            meta or recorded,
            after=resumed.path,
            rotate=resumed.context_closed,
            opening=resumed.opening,
            redact=redact,
            fsync=fsync,
            clock=clock,
            lock=lock,
        )
    except BaseException:
        lock.release()
        raise
    _append_first(writer, closing_record(resumed, clock))
    return resumed, writer


def _append_first(writer: TraceWriter, closing: Record | None) -> None:
    if closing is not None:
        try:
            writer.write(closing)
        except BaseException:
            writer.close()
            raise


def resumable_meta(
    resumed: Resumed, *, knows_model: Callable[[str, str], bool] | None = None, workspace: bool = False
) -> Record:
    """The meta of a session that can go on. Raises `TraceReadError`, with the reason, for one that cannot.

    Reasons: no `session_meta`; a meta without provider or model (an old one); with `workspace`, a working folder that
    is gone; a model that `knows_model(provider, model_id)` does not know.
    """
    where = str(resumed.path or resumed.session_id or "records")
    if resumed.meta is None:
        raise TraceReadError(f"{where}: expected a session_meta, got none")
    payload = resumed.meta["payload"]
    provider, model = payload.get("provider"), payload.get("model_id")
    for name, value in (("session_id", resumed.session_id), ("provider", provider), ("model_id", model)):
        if not isinstance(value, str) or not value:
            raise TraceReadError(f"{where}: expected a session_meta with a {name}, got none")
    folder = payload.get("workspace")
    if workspace and folder and not Path(str(folder)).is_dir():
        raise TraceReadError(f"{where}: expected the workspace {folder}, which is gone")
    if knows_model is not None and not knows_model(str(provider), str(model)):
        raise TraceReadError(f"{where}: expected a model that is configured, got {provider}:{model}")
    return resumed.meta


def to_json(resumed: Resumed) -> dict[str, Any]:
    """One JSON object of protocol records and counters, as other readers of such traces give it."""
    return {
        "history": list(resumed.history),
        "carry_over": list(resumed.carry_over),
        "context_closed": resumed.context_closed,
        "pending_summary": resumed.pending_summary,
        "session_tokens": token_counts(resumed.session_tokens),
        "last_request_total": resumed.last_request_total,
        "session_turns": resumed.session_turns,
    }
