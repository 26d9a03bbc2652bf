"""Whether records keep the protocol: each by itself, in the order of a stream, in a trace file.

For the traces and streams of other writers, and for ours beside the grammar of events. Each finding names a line and
a rule; `RULES` says what each rule wants. The old spelling is no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from agentloop.omni._check import check_record
from agentloop.omni._legacy import modernise
from agentloop.omni.reader import TraceReader
from agentloop.omni.records import (
    PARTIALS,
    Payload,
    Record,
    event_kind,
    is_compaction_closed,
    is_complete_model_message,
    is_meta,
    is_partial,
    origin_of,
)

__all__ = ["RULES", "Finding", "ProtocolChecker", "check_protocol"]

RULES: Final[dict[str, str]] = {
    "record": "every record has the fields of its kind, with their types",
    "meta_first": "the first record of a file is its session_meta",
    "one_meta": "a file has one session_meta",
    "no_fragments": "a file holds no fragments",
    "no_origin": "a file holds no records of children",
    "closed_context": "nothing stands behind a completed compaction: the next record goes to the next file",
    "input_first": "the input is written before its request_begin",
    "fragment_start": "a fragment opens with one start, before its deltas and its stop",
    "fragment_edges": "start and stop are empty, and only a start names the tool",
    "fragment_content": "the deltas, put together, are the complete record's content",
    "fragment_reason": "stop and complete record have the same stop_reason",
    "fragment_followed": "a stop is followed by its complete record before anything else of its producer",
    "fragment_closed": "every fragment is closed",
    "request_pairs": "every request_begin has one request_end, and requests do not overlap",
    "inside_request": "what a model says stands between request_begin and request_end",
    "usage_last": "token_usage is the last of a model's stream, once",
    "usage_committed": "a request that did not complete has no token_usage",
    "attempt_counts": "after an announced retry the attempt is one more",
    "retry_of_failed": "a completed request announces no retry",
    "abort_is_users": "no abort follows a request that failed by itself",
    "call_id_unique": "the id of a call is used once in a session",
    "output_of_call": "an output answers a call that stands before it",
    "output_once": "a call has one output",
    "calls_answered": "every committed call has its output before the next request begins",
    "approval_of_call": "a decision stands behind its call and before its output",
    "approval_once": "a call is decided on once",
    "compaction_pairs": "every compaction_begin has one compaction_end, of the same reason and mode",
    "mcp_pairs": "mcp_connect_begin and mcp_connect_end stand in pairs",
}
"""What each rule wants."""

_FILE_RULES: Final = frozenset({"meta_first", "one_meta", "no_fragments", "no_origin", "closed_context", "input_first"})
_CONTENT: Final = {
    "partial_text": "text",
    "partial_thinking": "thinking",
    "partial_tool_call": "arguments",
    "partial_tool_call_output": "output",
}


@attrs.frozen
class Finding:
    """A rule that a record breaks. `line` counts from 1 (of the file, or of the records)."""

    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        """Line, rule and what is wrong."""
        return f"line {self.line}: {self.rule}: {self.message}"


def check_protocol(records: Iterable[Record]) -> list[Finding]:
    """The findings on a trace file (`read(path)`, which keeps the file's line numbers) or a stream of records, in
    order.

    What is no trace (no meta at its head, but fragments or records of children) is checked as a stream: without the
    rules of files. A file that merely ends early is no finding.
    """
    checker = ProtocolChecker()
    numbered = records.numbered() if isinstance(records, TraceReader) else enumerate(records, 1)
    for line, record in numbered:
        checker.feed(line, record)
    return checker.finish()


class ProtocolChecker:
    """Takes records one by one; `finish` gives the findings."""

    def __init__(self) -> None:
        """Before the first record."""
        self._findings: list[Finding] = []
        self._sessions: dict[tuple[str, ...], _Session] = {}
        self._line = 0
        self._first: Record | None = None
        self._metas = 0
        self._closed = False
        self._like_a_stream = False

    def feed(self, line: int, record: Record) -> None:
        """Take the next record."""
        self._line = line
        problems = check_record(record)
        for problem in problems:
            self.say("record", str(problem))
        if type(record) is not dict or type(record.get("payload")) is not dict:
            return
        self._file(record)
        if problems:  # what does not fit is told; its order cannot be judged
            return
        origin = origin_of(record)
        if origin not in self._sessions:
            self._sessions[origin] = _Session(self.say)
        old = "reason" in record["payload"] and event_kind(record) == "abort"  # then it may mark any failure
        self._sessions[origin].feed(line, modernise(record), old)

    def say(self, rule: str, message: str, line: int | None = None) -> None:
        """Note a finding on this line, or an earlier one."""
        self._findings.append(Finding(self._line if line is None else line, rule, message))

    def finish(self) -> list[Finding]:
        """All findings, by line."""
        for session in self._sessions.values():
            session.finish()
        is_stream = self._like_a_stream and not (self._first is not None and is_meta(self._first))
        kept = [finding for finding in self._findings if not (is_stream and finding.rule in _FILE_RULES)]
        return sorted(kept, key=lambda finding: finding.line)

    def _file(self, record: Record) -> None:
        """The rules of trace files, whether it is one or not: `finish` knows."""
        if self._closed:
            self.say("closed_context", "a record behind a completed compaction")
        if origin_of(record):
            self._like_a_stream = True
            self.say("no_origin", f"a record of {'/'.join(origin_of(record))}")
            return
        if is_partial(record):
            self._like_a_stream = True
            self.say("no_fragments", f"a {record['payload']['type']}")
        if self._first is None:
            self._first = record
            if not is_meta(record):
                self.say("meta_first", f"the first record is {record['payload'].get('type', record.get('type'))}")
        self._metas += is_meta(record)
        if self._metas > 1 and is_meta(record):
            self.say("one_meta", "a further session_meta")
        self._closed = is_compaction_closed(record)


# ---------------------------------------------------------------- the order of one session's records


@attrs.define
class _Fragment:
    line: int
    pieces: list[str] = attrs.field(factory=list)
    stop_reason: str | None = None
    """Of its stop."""


@attrs.define
class _Call:
    line: int
    committed: bool = False
    decided: bool = False
    answered: bool = False


Say = Callable[..., None]


class _Session:
    """What the order of one session's records is held against."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._line = 0
        self._fragments: dict[tuple[str, str], _Fragment] = {}  # open, by type and id of the call
        self._due: dict[tuple[str, str], _Fragment] = {}  # stopped: their complete record comes next
        self._calls: dict[str, _Call] = {}
        self._open: list[str] = []  # committed calls that may lack an output
        self._left: list[str] = []  # those that earlier runs were left with
        self._attempted: list[str] = []  # calls of the open request
        self._request: int | None = None  # the line on which it began
        self._span: Payload | None = None
        self._connecting = False
        self._input = False
        self._used = False
        self._expected_attempt: int | None = None
        self._failed_before = False  # the record before is a request that failed for good

    def feed(self, line: int, record: Record, old: bool) -> None:
        self._line = line
        payload = record["payload"]
        kind = payload.get("type")
        failed, self._failed_before = self._failed_before, False
        if is_partial(record):
            self._partial(kind, payload)
        elif is_complete_model_message(record):
            self._complete(kind, payload)
        elif event_kind(record) == "abort" and failed and not old:
            self._say("abort_is_users", "an abort behind a request that failed by itself")
        elif event_kind(record) in _EVENTS:
            _EVENTS[str(kind)](self, payload)

    def finish(self) -> None:
        for (kind, call), fragment in self._fragments.items():
            self._say("fragment_closed", f"{kind} {call}".strip() + " was never stopped", fragment.line)

    # ------------------------------------------------------------ messages

    def _partial(self, kind: str, payload: Payload) -> None:
        key = (kind, payload.get("tool_call_id", ""))
        content, step = payload[_CONTENT[kind]], payload["event_type"]
        self._nothing_due(kind, key)
        fragment = self._fragments.get(key)
        if (step == "start") == (fragment is not None):
            self._say("fragment_start", f"a {step} of {kind} {key[1]} that is {'open' if fragment else 'not open'}")
        if step != "delta" and content:
            self._say("fragment_edges", f"a {step} with content")
        if step != "start" and payload.get("name"):
            self._say("fragment_edges", f"a {step} with a name")
        if fragment is None or step == "start":
            fragment = self._fragments[key] = _Fragment(self._line)
        fragment.pieces.append(content)
        if step == "stop":
            fragment.stop_reason = payload.get("stop_reason", "completed")
            del self._fragments[key]
            if self._span is None or kind not in ("partial_text", "partial_thinking"):
                self._due[key] = fragment  # else a compaction's own words, which are not shown again as a whole
        if kind != "partial_tool_call_output":
            self._inside(kind, payload)

    def _nothing_due(self, kind: str, key: tuple[str, str]) -> None:
        """A stop waits for its complete record; nothing else of the same producer (the model, or one call) may come
        between. At most one of a model's can wait, so this is no search."""
        output = "partial_tool_call_output"
        late = [key] if kind == output else [other for other in self._due if other[0] != output][:1]
        for other in late:
            if self._due.pop(other, None) is not None:
                self._say("fragment_followed", f"{kind} before the complete record of {other[0]}")

    def _complete(self, kind: str, payload: Payload) -> None:
        key = (f"partial_{kind}", payload.get("tool_call_id", ""))
        fragment = self._due.pop(key, None) or self._fragments.pop(key, None)
        if fragment is not None:
            self._compare(key[0], fragment, payload)
        if kind == "tool_call_output":
            self._output(payload)
        elif payload.get("role") == "user":
            self._input = True
        elif payload.get("role") == "assistant":
            self._nothing_due(kind, key)
            self._inside(kind, payload)
            if kind == "tool_call":
                self._call(payload)

    def _compare(self, kind: str, fragment: _Fragment, payload: Payload) -> None:
        if fragment.stop_reason is None:
            self._say("fragment_closed", f"{kind} is complete before its stop")
        elif fragment.stop_reason != payload.get("stop_reason", "completed"):
            self._say("fragment_reason", f"stop says {fragment.stop_reason}, the record {payload.get('stop_reason')}")
        if "".join(fragment.pieces) != payload[_CONTENT[kind]]:
            self._say("fragment_content", f"the deltas of {kind} are not its content")

    def _inside(self, kind: str, payload: Payload) -> None:
        """A model speaks inside a request; a notice (`fatal`), and what a stream shows of a compaction, may stand
        outside."""
        if self._request is None and self._span is None and payload.get("stop_reason") != "fatal":
            if not (kind in PARTIALS and payload.get("event_type") != "start"):
                self._say("inside_request", f"a model's {kind} outside a request")
        elif self._used and self._request is not None:
            self._say("usage_last", f"a model's {kind} behind token_usage")

    # ------------------------------------------------------------ calls

    def _call(self, payload: Payload) -> None:
        call = payload["tool_call_id"]
        if call in self._calls:
            self._say("call_id_unique", f"{call} was used before, on line {self._calls[call].line}")
        self._calls[call] = _Call(self._line)
        if payload.get("stop_reason", "completed") == "completed":
            self._attempted.append(call)

    def _output(self, payload: Payload) -> None:
        call = self._calls.get(payload["tool_call_id"])
        if call is None:
            self._say("output_of_call", f"an output for {payload['tool_call_id']}, which nobody called")
        elif call.answered:
            self._say("output_once", f"a further output for {payload['tool_call_id']}")
        else:
            call.answered = True

    def _approval_decision(self, payload: Payload) -> None:
        call = self._calls.get(payload["tool_call_id"])
        if call is None or call.answered:
            where = "which nobody called" if call is None else "which has its output already"
            self._say("approval_of_call", f"a decision on {payload['tool_call_id']}, {where}")
        elif call.decided:
            self._say("approval_once", f"a further decision on {payload['tool_call_id']}")
        else:
            call.decided = True

    # ------------------------------------------------------------ requests

    def _request_begin(self, payload: Payload) -> None:
        if self._request is not None:
            self._say("request_pairs", f"a request begins while that of line {self._request} is open")
        if not self._input:
            self._say("input_first", "a request without any input before it")
        for call in self._open:
            if not self._calls[call].answered:
                self._say("calls_answered", f"{call} (line {self._calls[call].line}) has no output yet")
        self._open = []
        self._request, self._attempted, self._used = self._line, [], False

    def _request_end(self, payload: Payload) -> None:
        if self._request is None and self._span is None:
            self._say("request_pairs", "a request_end without its request_begin")
        self._request = None
        status, attempt = payload["status"], payload.get("attempt")
        if self._expected_attempt is not None and (attempt or 1) != self._expected_attempt:
            self._say("attempt_counts", f"attempt {attempt or 1}, expected {self._expected_attempt}")
        retried = payload.get("retry_in_ms") is not None
        self._expected_attempt = (attempt or 1) + 1 if retried else None
        if status == "completed":
            self._open += self._attempted
            if retried:
                self._say("retry_of_failed", "a completed request with retry_in_ms")
        elif self._used:
            self._say("usage_committed", f"token_usage on a request that ended {status}")
        self._attempted = []
        self._failed_before = status in ("retryable", "fatal") and not retried

    def _token_usage(self, payload: Payload) -> None:
        if self._request is not None and self._used:
            self._say("usage_last", "a further token_usage")
        self._used = True

    # ------------------------------------------------------------ pairs

    def _compaction_begin(self, payload: Payload) -> None:
        if self._span is not None:
            self._say("compaction_pairs", "a compaction begins inside another")
        self._span = payload

    def _compaction_end(self, payload: Payload) -> None:
        if self._span is None:
            self._say("compaction_pairs", "a compaction_end without its compaction_begin")
        elif any(self._span[name] != payload[name] for name in ("reason", "mode")):
            self._say("compaction_pairs", "reason or mode differ from compaction_begin")
        self._span = None

    def _mcp_connect_begin(self, payload: Payload) -> None:
        if self._connecting:
            self._say("mcp_pairs", "connecting begins twice")
        self._connecting = True

    def _mcp_connect_end(self, payload: Payload) -> None:
        if not self._connecting:
            self._say("mcp_pairs", "connecting ends without a begin")
        self._connecting = False

    def _agent_start(self, payload: Payload) -> None:
        """A run of ours: what a crash left open before it is no finding."""
        self._request, self._connecting, self._expected_attempt = None, False, None
        self._fragments.clear()
        self._due.clear()
        self._left = [call for call in (*self._left, *self._open) if not self._calls[call].answered]
        for call in self._left:  # it goes through all its steps again, or is answered in memory alone
            self._calls[call].decided = False
        self._open = []


_EVENTS: Final[dict[str, Callable[[_Session, Payload], Any]]] = {
    "approval_decision": _Session._approval_decision,
    "request_begin": _Session._request_begin,
    "request_end": _Session._request_end,
    "token_usage": _Session._token_usage,
    "compaction_begin": _Session._compaction_begin,
    "compaction_end": _Session._compaction_end,
    "mcp_connect_begin": _Session._mcp_connect_begin,
    "mcp_connect_end": _Session._mcp_connect_end,
    "agent_start": _Session._agent_start,
}
