"""`agentloop replay`: a recorded run, shown as `agentloop run` would have shown it.

An ID means all files of its session, one after the other. Where the record ends before its run does (the process was killed,
or the run was left), the last line says so.

Exit codes: 0 shown to its end · 2 a file could not be read · 130 left with Ctrl-C · 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import time

from agentloop.cli import UsageError
from agentloop.cli._files import FILE_OR_ID, add_traces_argument, events_of, files_of
from agentloop.cli._streams import Output, ScreenPrinter
from agentloop.cli._words import interrupted_words

_LONGEST_PAUSE = 5.0
"""Seconds that a replay waits at most, however long nothing happened."""
_FRAME = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop replay`."""
    parser.add_argument("files", nargs="+", metavar="FILE|ID", help=f"{FILE_OR_ID}; several go on one after the other")
    add_traces_argument(parser)
    parser.add_argument(
        "--speed",
        type=_speed,
        metavar="FACTOR",
        help="replay in time, this many times as fast as it was (default: at once)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Show the files; returns the exit code."""
    paths = [path for name in arguments.files for path in files_of(name, arguments.traces)]
    output = Output()
    screen = ScreenPrinter(output, output.drawing(prompts=True))
    skipped: list[str] = []
    try:
        for event, now in events_of(paths, skipped.append):
            if arguments.speed is not None:
                _wait(screen, now, arguments.speed)
            screen.show(event, now)
    except KeyboardInterrupt:
        screen.close()
        return 130
    except UsageError:
        if screen.now is not None:
            screen.close()
        raise
    screen.close()
    for words in (*skipped, interrupted_words(screen.view)):
        if words:
            output.remark(words)
    return 0


def _wait(screen: ScreenPrinter, until: float, speed: float) -> None:
    """Wait for the recorded time, the screen alive meanwhile."""
    left = min((until - (screen.now or until)) / speed, _LONGEST_PAUSE)
    while left > 0:
        step = min(left, _FRAME)
        time.sleep(step)
        left -= step
        screen.tick(until - left * speed)


def _speed(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e9:
        raise argparse.ArgumentTypeError(f"expected a factor above 0, got {text}")
    return factor
