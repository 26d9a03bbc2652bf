"""`agentloop resume`: what a recorded session gives back, and to go on with it.

FILE means that file alone; an ID means the session's newest file in the folder of traces. With a PROMPT, or `--continue`
for what waits (calls and inputs that a crash left), the session goes on, recorded as ever. Without, it is only shown:
`--json` prints one object with `history`, `carry_over`, `context_closed`, `pending_summary`, `session_tokens`,
`last_request_total`, `session_turns`.

Exit codes: shown, 0 · a wrong command line, or no such session, 2 · gone on with, those of `agentloop run`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agentloop.cli import UsageError
from agentloop.cli._files import add_traces_argument, check_records, files_of, is_file
from agentloop.cli._prompt import add_prompt_argument, read_prompt
from agentloop.cli._quiet import add_quiet_argument
from agentloop.cli._text import counted, one_line, safe, safe_json
from agentloop.cli._words import usage_words
from agentloop.cli.run import add_run_arguments, run_prompt
from agentloop.errors import TraceReadError
from agentloop.models.offline import OfflineModel
from agentloop.omni.resume import Resumed, resumable_meta, resume_file, resume_session, to_json
from agentloop.omni.trace import TraceFile, latest_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop resume`."""
    parser.add_argument("session", metavar="FILE|ID", help="a trace file, or the id of a session")
    add_prompt_argument(parser, "resume ID", "what to ask next; without, show only", optional=True)
    parser.add_argument("--continue", action="store_true", dest="go_on", help="go on with what waits, without a prompt")
    add_traces_argument(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--json", action="store_true", help="print what is given back as one JSON object, and go on with nothing"
    )
    add_quiet_argument(shown)
    add_run_arguments(parser, model=None)


def main(arguments: argparse.Namespace) -> int:
    """Show what the session gives back, or go on with it. Raises `UsageError` for options that exclude each other."""
    resumed = find(arguments.session, arguments.traces)
    if resumed.damage:
        print(safe(resumed.damage), file=sys.stderr)
    if not arguments.prompt and not arguments.go_on:
        if arguments.quiet:
            raise UsageError("--quiet: expected a PROMPT or --continue beside it (there is no reply to print)")
        print(safe_json(json.dumps(to_json(resumed), ensure_ascii=False)) if arguments.json else _words(resumed))
        return 0
    if arguments.json or (arguments.prompt and arguments.go_on):
        raise UsageError("expected one of PROMPT, --continue and --json, got two")
    prompt = read_prompt(arguments.prompt) if arguments.prompt else None
    arguments.session, arguments.traces = _place(arguments.session, arguments.traces)
    chosen, arguments.trace = arguments.model, None
    arguments.model = chosen or _recorded_model(resumed)
    try:
        return run_prompt(arguments, prompt)
    except UsageError as error:
        if chosen is None and str(error).startswith("--model"):  # which nobody wrote
            raise UsageError(f"the session had {arguments.model} (--model chooses another): {error}") from None
        raise


def find(name: str, traces: str) -> Resumed:
    """The session of a FILE or an ID. Raises `UsageError` when there is none, or it cannot be read."""
    try:
        if is_file(name):
            check_records(name)
            return resume_file(name)
        files_of(name, traces)  # says why a name means nothing
        return resume_session(traces, name)
    except (TraceReadError, ValueError) as error:
        raise UsageError(str(error)) from None


def _place(name: str, traces: str) -> tuple[str, str]:
    """The session's id and its folder. A FILE must be where a session's newest file is: only that can be gone on with."""
    path = Path(name)
    if not is_file(name):
        return name, traces
    file = TraceFile.of(path.resolve())
    if file is None:
        raise UsageError(
            f"{name}: expected a file DIR/DAY/SESSION_NUMBER.jsonl to go on with; this one can only be shown"
        )
    folder = file.path.parent.parent
    newest = latest_file(folder, file.session_id)
    if newest != file.path:
        raise UsageError(f"{name}: expected the newest file of its session to go on with, which is {newest}")
    return file.session_id, str(folder)


def _recorded_model(resumed: Resumed) -> str:
    """The words of `--model` for the model that the session had."""
    try:
        meta = resumable_meta(resumed)["payload"]
    except TraceReadError as error:
        raise UsageError(str(error)) from None
    provider = meta["provider"]
    return "offline" if provider == OfflineModel.provider else f"{provider}:{meta['model_id']}"


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
