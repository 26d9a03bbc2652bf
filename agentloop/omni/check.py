"""Whether records keep the protocol: each by itself, in the order of a stream, in a trace file.

For the traces and streams of other writers, and for ours beside the grammar of events. Each finding names a line and
a rule; `RULES` says what each rule wants. The old spelling is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from agentloop.omni._check import check_record
from agentloop.omni._legacy import modernise
from agentloop.omni._order import SessionOrder
from agentloop.omni.reader import TraceReader
from agentloop.omni.records import Record, event_kind, is_compaction_closed, is_meta, is_partial, origin_of

__all__ = ["RULES", "Finding", "ProtocolChecker", "check_protocol"]

RULES: Final[dict[str, str]] = {
    "record": "every record has the fields of its kind, with their types",
    "meta_first": "the first record of a file is its session_meta",
    "one_meta": "a file has one session_meta",
    "no_fragments": "a file holds no fragments",
    "no_origin": "a file holds no records of children",
    "closed_context": "nothing stands after a completed compaction: the next record goes to the next file",
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
    "approval_of_call": "a decision stands after its call and before its output",
    "approval_once": "a call is decided on once",
    "compaction_pairs": "every compaction_begin has one compaction_end, of the same reason and mode",
    "mcp_pairs": "mcp_connect_begin and mcp_connect_end stand in pairs",
}
"""What each rule wants."""

_FILE_RULES: Final = frozenset({"meta_first", "one_meta", "no_fragments", "no_origin", "closed_context", "input_first"})


@attrs.frozen
class Finding:
    """A record that breaks `rule`; `message` says what is wrong. `line` counts from 1: the line of the file, or the place among
    the records."""

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
        self._sessions: dict[tuple[str, ...], SessionOrder] = {}
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
            self._sessions[origin] = SessionOrder(self.say)
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
            self.say("closed_context", "a record after a completed compaction")
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
