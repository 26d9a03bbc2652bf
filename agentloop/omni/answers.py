"""Answers to a run that is not there: questions that a recorded session was left with, answered from any process.

A run that waited for a person and was left (or died) leaves its calls open, with an `approval_request` each. An answer is an
`approval_decision` record after it, for exactly the arguments that were shown. The session then goes on with these calls:
an allowed one runs without a further question if its arguments are still the same, a denied one has its fixed result.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import attrs

from agentloop._digest import shown_digest
from agentloop.errors import AnswerError
from agentloop.omni._build_events import approval_decision
from agentloop.omni._types import Clock
from agentloop.omni.custom import REGISTRY, MessageRegistry
from agentloop.omni.redact import mask_secrets
from agentloop.omni.resume import Resumed, reopen, resume_session
from agentloop.omni.trace import Fsync, Redact

__all__ = ["StoredQuestion", "approved_calls", "open_questions", "store_answer"]


@attrs.frozen
class StoredQuestion:
    """A question in a trace that has no answer: whether the call `tool_call_id` of the tool `tool_name` may run."""

    tool_call_id: str
    tool_name: str
    arguments: str
    """JSON text, as it was shown."""

    @property
    def digest(self) -> str:
        """What an answer is bound to; the same as of the question while the run waited."""
        return shown_digest(self.tool_name, self.arguments)


def open_questions(resumed: Resumed) -> tuple[StoredQuestion, ...]:
    """What a session's person is still asked, in call order."""
    return tuple(
        [StoredQuestion(call.id, call.name, call.question) for call in resumed.calls if call.question is not None]
    )


def approved_calls(resumed: Resumed) -> dict[str, str]:
    """The open calls that were allowed, with the arguments that were shown: for `Approvals(approved=…)`.

    A `Session` does this itself.
    """
    return {call.id: call.approved for call in resumed.calls if call.approved is not None and not call.started}


def store_answer(
    traces: str | Path,
    session_id: str,
    tool_call_id: str,
    decision: Literal["allow", "deny"],
    digest: str,
    *,
    fsync: Fsync = "always",
    redact: Redact | None = mask_secrets,
    clock: Clock = time.time,
    registry: MessageRegistry = REGISTRY,
) -> None:
    """Record the answer to a question of a session that nobody runs at present.

    `digest` is that of the question as it was shown. Raises `AnswerError` when it fits no open question, and then nothing is
    written: `unknown` (no such call is open), `duplicate` (it has its answer), `changed` (other arguments were shown),
    `late` (the call has started or was never asked about), `invalid`; `TraceLocked` while a run has the session: then it is
    the run that takes the answer; `TraceReadError`, `TraceWriteError` as `reopen` and its writer.
    """
    if decision not in ("allow", "deny"):
        raise AnswerError("invalid", f"answer to {tool_call_id!r}: expected 'allow' or 'deny', got {decision!r}")
    _checked(resume_session(traces, session_id, registry), tool_call_id, digest)
    resumed, writer = reopen(
        traces, session_id, redact=redact, fsync=fsync, clock=clock, registry=registry
    )  # what is read now stays
    with writer:
        arguments = _checked(resumed, tool_call_id, digest).arguments
        writer.write(approval_decision(decision, tool_call_id, arguments=arguments, clock=clock))


def _checked(resumed: Resumed, id: str, digest: str) -> StoredQuestion:
    """The question that the answer is for. Raises `AnswerError`."""
    question = next((each for each in open_questions(resumed) if each.tool_call_id == id), None)
    if question is not None:
        if question.digest != digest:
            raise AnswerError("changed", f"answer to {id!r}: expected one to the arguments as they were shown")
        return question
    call = next((each for each in resumed.calls if each.id == id), None)
    if call is None:
        known = ", ".join(repr(each.tool_call_id) for each in open_questions(resumed)) or "none"
        raise AnswerError("unknown", f"answer to {id!r}: expected a call that is asked about ({known})")
    if call.approved is not None and not call.started:
        raise AnswerError("duplicate", f"answer to {id!r}: expected one answer, got another")
    state = "has started" if call.started else "was not asked about"
    raise AnswerError("late", f"answer to {id!r}: expected a call that waits for one, but it {state}")
