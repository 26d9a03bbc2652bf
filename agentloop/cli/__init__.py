"""The command `agentloop`: its subcommands, each in a file of its own that is loaded only when it is used.

Exit codes of all of them, beside their own: 74 the output could not be written · 130 Ctrl-C · 141 nobody reads the output any
more. A standard stream that was closed beforehand takes everything and keeps nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TextIO, cast

from agentloop._values import meant

COMMANDS: Final[Mapping[str, str]] = {
    "run": "run an agent on a prompt and show what it does",
    "replay": "show a recorded run as it was",
    "check": "check that recorded runs keep the protocol and the grammar",
    "diff": "compare two recorded runs, event by event",
    "resume": "show what a recorded session gives back, and go on with it",
}
"""Subcommands, with a line each. A subcommand is the module `agentloop.cli.NAME`."""

USAGE_ERROR = 2
OUTPUT_LOST = 74
INTERRUPTED = 130  # 128 and the number of the signal, as shells count it
BROKEN_PIPE = 141
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What an output says that takes nothing more. Files of records are written and read elsewhere, with errors of their own."""


class UsageError(Exception):
    """The command line asks for something that cannot be; its text is one line."""


class Command(Protocol):
    """What the module of a subcommand has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the arguments."""
        ...

    def main(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit code."""
        ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's own) and return its exit code; 2 for a wrong one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _replace_closed_streams()
    try:
        try:
            return _main(given, own_process=arguments is None)
        finally:
            sys.stdout.flush()  # while it can still be told what becomes of it
    except BrokenPipeError:
        _forget(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        _forget(sys.stdout)
        with contextlib.suppress(OSError):
            print(f"agentloop: the output cannot be written: {error.strerror}", file=sys.stderr)
        _forget(sys.stderr)  # it may be the one
        return OUTPUT_LOST
    except KeyboardInterrupt:  # a run that goes on has its own way to be interrupted
        return INTERRUPTED


def _main(given: list[str], *, own_process: bool) -> int:
    chosen = given[0] if given and given[0] in COMMANDS else None
    parser, subparser = _parser(chosen)
    parsed = _parsed(parser, subparser, given)
    parsed.own_process = own_process  # then a tool that hangs need not hold up its end
    if parsed.command is None:
        parser.print_help()
        return USAGE_ERROR
    try:
        return _load(parsed.command).main(parsed)
    except UsageError as error:
        print(_harmless(f"agentloop {parsed.command}: {error}"), file=sys.stderr)
        return USAGE_ERROR


def _parsed(
    parser: argparse.ArgumentParser, subparser: argparse.ArgumentParser, given: list[str]
) -> argparse.Namespace:
    """The arguments. Words of the prompt may stand after options too, which argparse by itself does not take."""
    parsed, rest = parser.parse_known_args(given)
    words = getattr(parsed, "prompt", None)
    if rest:
        options = [word for word in rest if word.startswith("-") and word != "-"]
        if words is None or options:
            subparser.error(_unrecognized(options or rest, subparser))
        words.extend(rest)
    return parsed


def _unrecognized(words: list[str], subparser: argparse.ArgumentParser) -> str:
    """What is wrong with words that the subcommand does not know, and what may have been meant."""
    known = [word for action in subparser._actions for word in action.option_strings]
    return _harmless(f"unrecognized arguments: {' '.join(words)}") + meant(words[0].partition("=")[0], known)


def _load(name: str) -> Command:
    return cast(Command, importlib.import_module(f"agentloop.cli.{name}"))


def _parser(chosen: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser, and that of the chosen subcommand (itself if none is): only its module is loaded to describe arguments."""
    from agentloop import __version__

    parser = argparse.ArgumentParser(prog="agentloop", description="The agent loop, from the command line.")
    parser.add_argument("--version", action="version", version=f"agentloop {__version__}")
    found = parser
    subcommands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, line in COMMANDS.items():
        subparser = subcommands.add_parser(name, help=line, description=line.capitalize() + ".")
        if name == chosen:
            _load(name).add_arguments(subparser)
            found = subparser
    return parser, found


def _harmless(text: str) -> str:
    """It may quote a file's name, or what stands in a file."""
    from agentloop.cli._text import safe

    return safe(text)


def _replace_closed_streams() -> None:
    """Python has None for a stream that was closed before it began; what is said there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (as long as the process)


def _forget(stream: TextIO) -> None:
    """Nobody reads it any more: let what is still buffered go nowhere, so that the interpreter's end says nothing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
