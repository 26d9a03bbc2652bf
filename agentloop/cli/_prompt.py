"""PROMPT: its words, and what a pipe adds to them.

Standard input is read only where `-` asks for it. A command that reads it unasked hangs in a job whose input nobody closes,
and eats what a loop or a script around it still reads from there. Input that waits and is not asked for is told.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys

from agentloop.cli import UsageError
from agentloop.cli._streams import Output

_ADDS = "- as the last word adds standard input, as in: cat FILE | agentloop"


def add_prompt_argument(parser: argparse.ArgumentParser, command: str, what: str, *, optional: bool = False) -> None:
    """The argument PROMPT of a command; `what` it says, and with `optional` it may be left out."""
    parser.add_argument(
        "prompt",
        nargs="*" if optional else "+",
        default=[],  # without it argparse calls a missing FILE|ID a missing PROMPT as well
        metavar="PROMPT",
        help=f'{what}; {_ADDS} {command} "shorten this:" -',
    )


def read_prompt(words: list[str]) -> str:
    """The text of PROMPT; `-` as its last word stands for standard input. Raises `UsageError` when there is none."""
    asked = words[-1:] == ["-"]
    parts = [" ".join(words[:-1] if asked else words)]
    if asked:
        source = getattr(sys.stdin, "buffer", None)
        parts.append(sys.stdin.read() if source is None else source.read().decode("utf-8", "replace"))
        if not parts[1].strip():
            raise UsageError("PROMPT: expected some text from standard input, got none")
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise UsageError("PROMPT: expected some text, got none")
    return text


def tell_unread_input(output: Output) -> bool:
    """Say so on standard error when text stands on standard input that nobody reads. Never waits, takes nothing."""
    waits = _waiting()
    if waits:
        output.note("standard input is not read: put - after the prompt to add it\n")
    return waits


def _waiting() -> bool:
    """Whether bytes stand on standard input; False where that cannot be told without waiting."""
    try:
        number = sys.stdin.fileno()
        about = os.fstat(number)
        if stat.S_ISREG(about.st_mode):
            return os.lseek(number, 0, os.SEEK_CUR) < about.st_size
        if not (stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode)):
            return False
        import fcntl
        import termios

        return any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
    except (AttributeError, ImportError, OSError, ValueError):  # no such stream, or a system that does not tell
        return False
