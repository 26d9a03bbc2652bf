"""`agentloop run`: one prompt, live in the terminal, plain in a pipe, or as records.

Exit codes: 0 the run completed · 1 it failed for good · 2 the command line was wrong · 74 its trace or the output could not be
written · 75 it failed in a way that may pass (try again) · 130 it was aborted · 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncGenerator
from typing import Final, Protocol

import anyio

from agentloop.abort import AbortSignal
from agentloop.cli._approve import add_approve_argument, choose_approval
from agentloop.cli._interrupt import interrupts
from agentloop.cli._leave import Fuse, LastResort
from agentloop.cli._mcp import add_mcp_arguments, mcp_source
from agentloop.cli._prompt import add_prompt_argument, read_prompt, tell_unread_input
from agentloop.cli._quiet import add_quiet_argument
from agentloop.cli._session import add_session_arguments, recorded
from agentloop.cli._streams import Output
from agentloop.cli._text import safe
from agentloop.cli.choose import MODELS_HELP, choose_model, choose_tools
from agentloop.compaction import ContextReaches, Summarize, TurnsReach, all_of, mid_task
from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import TraceWriteError
from agentloop.events import AgentEnd, Event
from agentloop.loop import running
from agentloop.omni.redact import MaskLog

EXIT_CODES: Final = {"completed": 0, "fatal": 1, "retryable": 75, "aborted": 130}
TRACE_FAILED: Final = 74
_PACE = 0.02
"""Seconds between chunks of the offline model, where somebody watches."""


class Printer(Protocol):
    """What shows a run."""

    def show(self, event: Event) -> None:
        """Take the next event."""
        ...

    def tick(self) -> None:
        """Bring up to date what moves by itself."""
        ...

    def stopping(self) -> None:
        """The run was told to stop; may be called from a signal handler."""
        ...

    def close(self) -> None:
        """The run is over: say how, and leave the terminal in order."""
        ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `agentloop run`."""
    add_prompt_argument(parser, "run", "what to ask")
    add_run_arguments(parser)
    add_session_arguments(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print records, one JSON object a line")
    add_quiet_argument(shown)


def add_run_arguments(parser: argparse.ArgumentParser, model: str | None = "offline") -> None:
    """What every command that runs an agent takes. `model` is the one without `--model`; None: the session's."""
    default = "the session's" if model is None else model
    parser.add_argument("--model", default=model, metavar="MODEL", help=f"{MODELS_HELP} (default: {default})")
    parser.add_argument("--base-url", metavar="URL", help="the address of the API, for a server of your own")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="offer a tool, a function or a list of them; MODULE may be a FILE.py",
    )
    parser.add_argument("--no-default-tools", action="store_true", help="do not offer the example tools")
    add_mcp_arguments(parser)
    add_approve_argument(parser)
    parser.add_argument("--max-turns", type=_at_least_one, metavar="N", help="end after this many turns")
    parser.add_argument(
        "--compact-at",
        type=_at_least_one,
        metavar="TOKENS",
        help="have the conversation summarised in the middle of a task, once a request comes to this many tokens",
    )
    parser.add_argument("--deadline", type=_seconds, metavar="SECONDS", help="end after this time")
    parser.add_argument(
        "--prices",
        type=_prices,
        metavar="IN,OUT[,CACHED]",
        help="prices of a million tokens, to show what the run costs",
    )
    parser.add_argument("--verbose", action="store_true", help="show the log on standard error")


def main(arguments: argparse.Namespace) -> int:
    """Run the prompt; returns the exit code that the run's end stands for."""
    return run_prompt(arguments, read_prompt(arguments.prompt))


def run_prompt(arguments: argparse.Namespace, prompt: str | None) -> int:
    """Run as the arguments say; None: on what waits in the session. Returns the exit code that the run's end stands for."""
    _set_up_log(arguments.verbose)
    output = Output()
    abort = AbortSignal()
    on_screen = not (arguments.json or arguments.quiet)
    model = choose_model(arguments.model, arguments.base_url, pace=_PACE if output.live and on_screen else 0.0)
    tools = choose_tools(arguments.tools, examples=not arguments.no_default_tools)
    printer = output.printer(as_json=arguments.json, quiet=arguments.quiet, prices=arguments.prices)
    config = Config(
        model=model,
        approve=choose_approval(arguments.approve, output, printer, on_screen=on_screen),
        abort=abort,
        max_turns=arguments.max_turns,
        deadline=arguments.deadline,
        compaction=_compaction(arguments.compact_at),
        tool_source=mcp_source(arguments.mcp, arguments.mcp_config),
    )
    abort.subscribe(printer.stopping)
    last_resort = LastResort(arguments.own_process)
    context = Context(arguments.system, tools=tools)
    with interrupts(abort, output.in_order), recorded(arguments, config, context, output) as start:
        told = tell_unread_input(output)
        if arguments.model == "offline" and on_screen:
            output.remark("offline model: fixed rules, no language model (--model chooses another)")
        code = run_to_end(start(prompt), printer, last_resort)
        if not told:
            tell_unread_input(output)  # it may have come late
    return last_resort.leave(code)


def run_to_end(events: AsyncGenerator[Event, None], printer: Printer, last_resort: LastResort) -> int:
    """Show a run to its end, from synchronous code; returns the exit code that its end stands for."""
    with last_resort.armed() as fuse:
        try:
            return anyio.run(_show, events, printer, fuse)
        except BaseException as error:
            only = _only(error)
            if not isinstance(only, TraceWriteError):
                raise only from None
            print(f"agentloop: {safe(str(only))}", file=sys.stderr)
            return TRACE_FAILED


async def _show(events: AsyncGenerator[Event, None], printer: Printer, fuse: Fuse) -> int:
    code = EXIT_CODES["fatal"]  # for a stream that breaks off
    try:
        async with anyio.create_task_group() as group, running(events):
            group.start_soon(_tick, printer)
            async for event in events:
                printer.show(event)
                if isinstance(event, AgentEnd):
                    code = EXIT_CODES[event.stop_reason]
            group.cancel_scope.cancel()
    finally:
        printer.close()
    fuse.light(code)
    return code


async def _tick(printer: Printer) -> None:
    while True:
        await anyio.sleep(0.1)
        printer.tick()


def _only(error: BaseException) -> BaseException:
    """The one error in groups of one; else the first that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _set_up_log(verbose: bool) -> None:
    """The log goes to standard error if it was asked for, else nowhere: the events say what went wrong."""
    handler: logging.Handler = logging.StreamHandler() if verbose else logging.NullHandler()
    handler.addFilter(MaskLog())
    handler.setFormatter(_Harmless())
    logger = logging.getLogger("agentloop")
    logger.addHandler(handler)
    if verbose:
        logger.setLevel(logging.INFO)


class _Harmless(logging.Formatter):
    """A record quotes what others sent."""

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


def _compaction(tokens: int | None) -> Summarize | None:
    """Not at the end of a run, from which nobody goes on; and a context has a second turn, however large it begins."""
    return None if tokens is None else Summarize(when=mid_task(all_of(ContextReaches(tokens), TurnsReach(2))))


def _at_least_one(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {text}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return number


def _prices(text: str) -> tuple[float, float, float]:
    try:
        numbers = [float(part) for part in text.split(",")]
        price_in, price_out, *cached = numbers
    except ValueError:
        numbers, cached = [], []
    if not 2 <= len(numbers) <= 3 or not all(0 <= number < 1e9 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected two or three numbers such as 3,15 or 3,15,0.3, got {text!r}")
    return price_in, price_out, cached[0] if cached else price_in
