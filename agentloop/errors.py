"""The exceptions of this package, by whose fault it is, and the stable error codes.

The tree:

    AgentLoopError                 base of all
    ├── RunError                   a run did not end `completed`; raised by `AgentEnd.raise_for_error()` only
    ├── ModelError                 the provider's: raised by a model callable, becomes events, never leaves a run
    ├── InvalidArguments           the model's: a call's arguments do not fit the tool; becomes an error result
    ├── ToolDefinitionError        the caller's: a function that cannot be made into a tool
    ├── SessionBusy                the caller's: a session has one run at a time
    ├── PolicyError                the caller's: rules about calls that cannot be read
    ├── AnswerError                the answerer's: an answer that fits no open question
    ├── MissingExtra               the caller's: an optional dependency is not installed
    ├── TraceError                 what stands in or belongs to a trace
    │   ├── TraceWriteError        the disk's: a record could not be written
    │   ├── TraceReadError         the file's: it cannot be read or resumed
    │   └── TraceLocked            the caller's: another writer holds the session
    ├── SseError                   the sender's: a stream of server-sent events that cannot be read
    └── GrammarError               ours: an event that the grammar does not allow here
"""

from __future__ import annotations

from typing import Any, Final, Literal

__all__ = [
    "ABORTED_CALL_CODES",
    "CALL_CODES",
    "ERROR_CODES",
    "MCP_CODES",
    "REQUEST_CODES",
    "RETRYABLE_CODES",
    "RUN_CODES",
    "AgentLoopError",
    "AnswerError",
    "FinishReason",
    "GrammarError",
    "InvalidArguments",
    "MissingExtra",
    "ModelError",
    "PolicyError",
    "RunError",
    "SessionBusy",
    "StopReason",
    "ToolDefinitionError",
    "TraceError",
    "TraceLocked",
    "TraceReadError",
    "TraceWriteError",
    "code_for_status",
]

StopReason = Literal["completed", "aborted", "retryable", "fatal"]
"""How something ended: as it should; stopped by somebody; failed, and asking again may help; failed for good. Used by
messages, blocks, requests, calls and runs alike."""

FinishReason = Literal["stop", "length", "tool_use", "refusal", "content_filter", "pause", "unknown"]
"""Why the provider ended its reply; its own word, translated into one of these."""

REQUEST_CODES: Final = frozenset({
    "auth", "rejected", "rate_limit", "overloaded", "context_too_long", "content_filter", "timeout", "network",
    "malformed", "truncated", "unsupported", "invalid_input",
})  # fmt: skip
RUN_CODES: Final = frozenset({
    "user_abort", "backoff_interrupted", "compaction_interrupted", "deadline", "max_turns", "length_limit",
    "pause_limit", "callback_failed",
})  # fmt: skip
CALL_CODES: Final = frozenset({
    "unknown_tool", "invalid_arguments", "tool_error", "tool_timeout", "blocked", "denied", "forbidden", "aborted",
    "cut_off", "not_stopped", "unknown_outcome",
})  # fmt: skip
MCP_CODES: Final = frozenset({"connect_failed"})
ERROR_CODES: Final = REQUEST_CODES | RUN_CODES | CALL_CODES | MCP_CODES

RETRYABLE_CODES: Final = frozenset({"rate_limit", "overloaded", "timeout", "network", "malformed", "truncated"})
"""Codes of a failed request for which asking again may help."""

ABORTED_CALL_CODES: Final = frozenset({"blocked", "denied", "forbidden", "aborted"})
"""Codes of a call whose `stop_reason` is `aborted`. With any other code it is `fatal`, but for `not_stopped`, where it is
that of what stopped the call."""


class AgentLoopError(Exception):
    """Base of every exception that this package defines. All of them can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without calling the class: by default it would be called with its text alone, and some take a code as well."""
        return _made_again, (type(self), self.args, dict(self.__dict__))


def _made_again(kind: type[AgentLoopError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AgentLoopError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class RunError(AgentLoopError):
    """A run did not end `completed`. `code`, `message` and `stop_reason` are those of its `AgentEnd`."""

    def __init__(self, code: str | None, message: str | None, stop_reason: str | None = None) -> None:
        super().__init__(f"{code or 'error'}: {message or 'the run did not complete'}")
        self.code = code
        self.message = message
        self.stop_reason = stop_reason


class ModelError(AgentLoopError):
    """A model's request failed. Raise it from a model callable; the loop turns it into events.

    `code` is one of `REQUEST_CODES`; any other raises `ValueError`. `retryable` defaults to whether the code is one of
    `RETRYABLE_CODES`. `retry_after` is the wait in seconds that the provider asked for, or None.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool | None = None, retry_after: float | None = None
    ) -> None:
        if code not in REQUEST_CODES:
            raise ValueError(f"code: expected one of {', '.join(sorted(REQUEST_CODES))}, got {code!r}")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = code in RETRYABLE_CODES if retryable is None else retryable
        self.retry_after = retry_after


class InvalidArguments(AgentLoopError, ValueError):
    """A call's arguments do not fit its tool. The text names each place, what was expected and what came."""


class ToolDefinitionError(AgentLoopError, TypeError):
    """A function or schema cannot be made into a tool. The text names the function and the parameter."""


class SessionBusy(AgentLoopError, RuntimeError):
    """A session has one run at a time, and another one is going on."""


class PolicyError(AgentLoopError, ValueError):
    """Rules about calls cannot be read. The text names file, line and key where known, what was expected and what came."""


class AnswerError(AgentLoopError, ValueError):
    """An answer fits no open question. `code` is `unknown` (there is no such question), `duplicate` (it was answered already),
    `late` (the run no longer waits), `changed` (it was about other arguments), `invalid` (neither `allow` nor `deny`, or
    without the digest of what was shown)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class MissingExtra(AgentLoopError, ImportError):
    """An optional dependency is not installed. The text names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'agentloop[{extra}]'")
        self.package = package
        self.extra = extra


class TraceError(AgentLoopError):
    """Something about a trace is wrong: its file, its records or its lock."""


class TraceWriteError(TraceError):
    """A record could not be written; the cause is the operating system's own error."""


class TraceReadError(TraceError):
    """A trace cannot be read or resumed; the text names the file, the line and the reason."""


class TraceLocked(TraceError):
    """Another writer holds this session."""


class SseError(AgentLoopError, ValueError):
    """A stream of server-sent events cannot be read: an event that is too large, or data that is not a record."""


class GrammarError(AgentLoopError):
    """An event stands where the grammar does not allow it. `rule` names the broken rule, `position` counts events from 0."""

    def __init__(self, rule: str, message: str, position: int | None = None) -> None:
        where = "" if position is None else f"event {position}: "
        super().__init__(f"{where}{rule}: {message}")
        self.rule = rule
        self.position = position


def code_for_status(status: int) -> str:
    """The error code of an HTTP status of a failed request, where the body says nothing more precise."""
    if status in (429, 425):
        return "rate_limit"
    if status == 408:
        return "timeout"
    if status in (503, 529):
        return "overloaded"
    if status == 401:
        return "auth"
    if 400 <= status < 500:
        return "rejected"
    return "network"
