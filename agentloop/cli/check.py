"""`agentloop check`: whether files of records keep the protocol, and the runs in them the grammar of events.

Each finding names the file, the line and the rule. A file that merely ends early (a run that was killed) is no finding, nor
is a last line that was cut. An ID means all files of its session. Files of one session are read as one, since a run goes on
in the next file after a compaction; where the first of them is missing, the grammar is checked from the next run on.

Exit codes: 0 nothing was found · 1 something was · 2 a file could not be read, or holds no record; the others are checked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import attrs

from agentloop.cli import UsageError
from agentloop.cli._files import FILE_OR_ID, add_traces_argument, by_session, check_records, files_of, open_file
from agentloop.cli._text import counted, safe, safe_json
from agentloop.errors import GrammarError, TraceReadError
from agentloop.events import AgentEnd, AgentStart, ApprovalDecision, ApprovalRequest, CompactionEnd, Event
from agentloop.grammar import Checker, ValueChecker
from agentloop.omni.check import Finding, ProtocolChecker
from agentloop.omni.codec import Decoder
from agentloop.omni.reader import TraceReader
from agentloop.omni.records import is_meta


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop check`."""
    parser.add_argument("files", nargs="+", metavar="FILE|ID", help=FILE_OR_ID)
    add_traces_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object a file")


def main(arguments: argparse.Namespace) -> int:
    """Check the files; 0 when nothing was found. Raises `UsageError`, after the others, for files that are none of records."""
    paths = [path for name in arguments.files for path in files_of(name, arguments.traces)]
    ok, refused = True, []
    for group in by_session(paths):
        try:
            reports = check_session(group)
        except UsageError as error:
            refused.append(str(error))
            continue
        for report in reports:
            print(safe_json(json.dumps(report.to_json(), ensure_ascii=False)) if arguments.json else report.to_text())
        ok = ok and all(report.ok for report in reports)
    if refused:
        raise UsageError("; ".join(refused))
    return 0 if ok else 1


@attrs.define
class Report:
    """The `findings` in one `file`, and how many `records` it holds."""

    file: str
    findings: list[Finding] = attrs.field(factory=list)
    records: int = 0
    runs: int = 0
    """Runs that begin in it."""
    torn: bool = False
    """Its last line was cut."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, object]:
        """The report as JSON."""
        findings = [attrs.asdict(finding) for finding in self.findings]
        return {
            "file": self.file,
            "ok": self.ok,
            "records": self.records,
            "runs": self.runs,
            "torn": self.torn,
            "findings": findings,
        }

    def to_text(self) -> str:
        """The report as lines for a person."""
        torn = ", the last line was cut" if self.torn else ""
        count = f"{counted(self.records, 'record')}, {counted(self.runs, 'run')}{torn}"
        verdict = "ok" if self.ok else counted(len(self.findings), "finding")
        return "\n".join(
            [*[safe(f"{self.file}: {each}") for each in self.findings], safe(f"{self.file}: {verdict} ({count})")]
        )


def check_session(paths: Sequence[str]) -> list[Report]:
    """Check files that go on one after the other. Raises `UsageError` for one that cannot be read, and where all of them
    hold no record: of the last a process may have been killed that had just made it."""
    runs = _Runs()
    reports = []
    for path in paths:
        try:
            reports.append(_check_file(path, runs))
        except TraceReadError as error:
            raise UsageError(str(error)) from None
    if reports and not any(report.records or report.findings for report in reports):
        check_records(paths[0])
    return reports


def _check_file(path: str, runs: _Runs) -> Report:
    report, reader, protocol = Report(path), open_file(path), ProtocolChecker()
    runs.report = report
    for line, record in reader.numbered():
        report.records += 1
        protocol.feed(line, record)
        runs.trace = runs.trace or is_meta(record)
        for event in runs.decoder.feed(record):
            runs.feed(line, event)
    report.findings = sorted([*report.findings, *protocol.finish(), *_damage(reader)], key=lambda finding: finding.line)
    report.torn = reader.torn
    return report


def _damage(reader: TraceReader) -> list[Finding]:
    return [Finding(line, "line", "expected a record, got something else") for line in reader.damaged_lines]


class _Runs:
    """Holds the runs of a session against the grammar, at both levels."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.trace = False
        """Whether it is a trace, which leaves out what was not committed to it."""
        self.report = Report("")
        self._checkers: tuple[Checker, ValueChecker] | None = None  # None: outside a run, or it broke a rule
        self._asked: set[str | None] = set()  # calls that earlier runs asked about
        self._asks: set[str | None] = set()  # … and this one
        self._late: tuple[Report, Finding] | None = None  # an answer to one of those, late if this run does not go on

    def feed(self, line: int, event: Event) -> None:
        """Take the next event. A run that begins while another has not ended follows one that was killed."""
        if isinstance(event, AgentStart):
            self._checkers = Checker(trace=self.trace), ValueChecker()
            self.report.runs += 1
            self._asked, self._asks, self._late = self._asked | self._asks, set(), None
        if isinstance(event, ApprovalRequest):
            self._asks.add(event.tool_call_id)
        if self.trace and isinstance(event, CompactionEnd) and event.status == "retryable" and event.attempt is None:
            self._checkers = None  # what a resume puts after a compaction in which a run was killed
        elif self._late is not None and not self._is_late_answer(event):
            report, finding = self._late  # the run goes on: somebody had the session
            report.findings.append(finding)
            self._late = None
        if self._checkers is None:
            return
        try:
            for checker in self._checkers:
                checker.feed(event)
        except GrammarError as error:
            finding = Finding(line, error.rule, _words(error))
            if self._is_late_answer(event):
                self._late = self.report, finding
            else:
                self.report.findings.append(finding)
            self._checkers = None  # one broken rule breaks others: the rest of the run would only repeat it
        if isinstance(event, AgentEnd):
            self._checkers = None

    def _is_late_answer(self, event: Event) -> bool:
        """Whether somebody answered an earlier run's question when nobody had the session: the run before was killed."""
        if not (self.trace and isinstance(event, ApprovalDecision)):
            return False
        return event.tool_call_id in self._asked and event.tool_call_id not in self._asks


def _words(error: GrammarError) -> str:
    """The error's words without its position and rule, which are said beside it."""
    return str(error).partition(f"{error.rule}: ")[2]
