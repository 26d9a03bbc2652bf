"""`agentloop resume`: what a recorded session gives back.

FILE means that file alone; an ID means the session's newest file in the folder of traces. `--json` prints one object with
`history`, `carry_over`, `context_closed`, `pending_summary`, `session_tokens`, `last_request_total`, `session_turns`.

Exit codes: 0 it can be read · 2 it cannot.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agentloop.cli import UsageError
from agentloop.cli._text import counted, one_line, safe
from agentloop.cli._words import usage_words
from agentloop.errors import TraceReadError
from agentloop.omni.resume import Resumed, resume_file, resume_session, to_json

DEFAULT_TRACES = "traces"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop resume`."""
    parser.add_argument("session", metavar="FILE|ID", help="a trace file, or the id of a session")
    parser.add_argument(
        "--traces", default=DEFAULT_TRACES, metavar="DIR", help=f"where sessions are (default: {DEFAULT_TRACES})"
    )
    parser.add_argument("--json", action="store_true", help="print what is given back as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Show what the session gives back."""
    resumed = find(arguments.session, arguments.traces)
    if resumed.damage:
        print(safe(resumed.damage), file=sys.stderr)
    print(json.dumps(to_json(resumed), ensure_ascii=False) if arguments.json else _words(resumed))
    return 0


def find(name: str, traces: str) -> Resumed:
    """The session of a FILE or an ID. Raises `UsageError` when there is none, or it cannot be read."""
    try:
        if Path(name).is_file():
            return resume_file(name)
        if name.endswith(".jsonl") or "/" in name:
            raise UsageError(f"{name}: expected a trace file, got nothing")
        return resume_session(traces, name)
    except (TraceReadError, ValueError) as error:
        raise UsageError(str(error)) from None


def _words(resumed: Resumed) -> str:
    """The session in a few lines."""
    lines = [
        f"session: {safe(resumed.session_id or 'unknown')}",
        f"history: {counted(len(resumed.messages), 'message')}, {counted(resumed.session_turns, 'turn')}",
        f"tokens: {usage_words(resumed.session_tokens)}",
    ]
    if resumed.context_closed:
        lines.append("the context was compacted; the next run begins with the summary")
    for message in resumed.inputs:
        lines.append(f"waiting: {one_line(getattr(message, 'text', message.role))}")
    for call in resumed.calls:
        state = "started, its outcome is unknown" if call.started else "not started, runs first"
        lines.append(f"open call: {one_line(call.name)} {one_line(call.arguments)} ({state})")
    return "\n".join(lines)
