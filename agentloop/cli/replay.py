"""`agentloop replay`: a recorded run, shown as `agentloop run` would have shown it.

Exit codes: 0 shown to its end · 2 a file could not be read · 130 left with Ctrl-C · 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import time

from agentloop.cli._files import events_of, open_file
from agentloop.cli._streams import Output, ScreenPrinter

_LONGEST_PAUSE = 5.0
"""Seconds that a replay waits at most, however long nothing happened."""
_FRAME = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop replay`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a trace or a stream; several go on one after the other"
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        metavar="FACTOR",
        help="replay in time, this many times as fast as it was (default: at once)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Show the files; returns the exit code."""
    for path in arguments.files:
        open_file(path)  # what is no file is told before anything is shown
    output = Output()
    screen = ScreenPrinter(output, output.drawing(prompts=True))
    try:
        for event, now in events_of(arguments.files):
            if arguments.speed is not None:
                _wait(screen, now, arguments.speed)
            screen.show(event, now)
    except KeyboardInterrupt:
        return 130
    finally:
        screen.close()
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
    factor = float(text)
    if not 0 < factor < 1e9:
        raise argparse.ArgumentTypeError(f"expected a factor above 0, got {text}")
    return factor
