"""The order of one session's records: fragments, requests, calls, and what stands in pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from agentloop.omni._types import PIECE_FIELDS
from agentloop.omni.records import PARTIALS, Payload, Record, event_kind, is_complete_model_message, is_partial


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


class SessionOrder:
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
            self._say("abort_is_users", "an abort after a request that failed by itself")
        elif event_kind(record) in _EVENTS:
            _EVENTS[str(kind)](self, payload)

    def finish(self) -> None:
        for (kind, call), fragment in self._fragments.items():
            self._say("fragment_closed", f"{kind} {call}".strip() + " was never stopped", fragment.line)

    # ------------------------------------------------------------ messages

    def _partial(self, kind: str, payload: Payload) -> None:
        key = (kind, payload.get("tool_call_id", ""))
        content, step = payload[PIECE_FIELDS[kind]], payload["event_type"]
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
        if "".join(fragment.pieces) != payload[PIECE_FIELDS[kind]]:
            self._say("fragment_content", f"the deltas of {kind} are not its content")

    def _inside(self, kind: str, payload: Payload) -> None:
        """A model speaks inside a request; a notice (`fatal`), and what a stream shows of a compaction, may stand
        outside."""
        if self._request is None and self._span is None and payload.get("stop_reason") != "fatal":
            if not (kind in PARTIALS and payload.get("event_type") != "start"):
                self._say("inside_request", f"a model's {kind} outside a request")
        elif self._used and self._request is not None:
            self._say("usage_last", f"a model's {kind} after token_usage")

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

    def _message_start(self, payload: Payload) -> None:
        """An input may be a message of the application's own alone, of which the protocol has no record."""
        self._input = self._input or payload.get("role") not in ("assistant", "tool_result")

    def _agent_start(self, payload: Payload) -> None:
        """A run of ours: what a crash left open before it is no finding."""
        self._request, self._connecting, self._expected_attempt = None, False, None
        self._fragments.clear()
        self._due.clear()
        self._left = [call for call in (*self._left, *self._open) if not self._calls[call].answered]
        for call in self._left:  # it goes through all its steps again, or is answered in memory alone
            self._calls[call].decided = False
        self._open = []


_EVENTS: Final[dict[str, Callable[[SessionOrder, Payload], Any]]] = {
    "approval_decision": SessionOrder._approval_decision,
    "request_begin": SessionOrder._request_begin,
    "request_end": SessionOrder._request_end,
    "token_usage": SessionOrder._token_usage,
    "compaction_begin": SessionOrder._compaction_begin,
    "compaction_end": SessionOrder._compaction_end,
    "mcp_connect_begin": SessionOrder._mcp_connect_begin,
    "mcp_connect_end": SessionOrder._mcp_connect_end,
    "message_start": SessionOrder._message_start,
    "agent_start": SessionOrder._agent_start,
}
