"""`--quiet`: of a run only its last reply's text, for pipes; what went wrong goes to standard error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from agentloop.cli._text import one_line, safe
from agentloop.cli._words import failure_words
from agentloop.events import (
    AgentEnd,
    CompactionBegin,
    CompactionEnd,
    Event,
    McpConnectEnd,
    MessageEnd,
    RequestBegin,
    RequestEnd,
)
from agentloop.messages import AssistantMessage


class _Arguments(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, name: str, *, action: str, help: str) -> object:
        """Add an argument."""
        ...


def add_quiet_argument(parser: _Arguments) -> None:
    """The argument `--quiet`."""
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="print the text of the last reply and nothing else, for pipes; errors go to standard error",
    )


class QuietPrinter:
    """Prints at the run's end: the text of the last reply through `write`, or why there is none through `note`.

    A run that did not complete has no last reply: half an answer in a pipe would pass for a whole one.
    """

    def __init__(self, write: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._write = write
        self._note = note
        self._text = ""
        self._compacts = False  # what is said inside a compaction is no answer

    def show(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case MessageEnd(message=AssistantMessage(stop_reason="completed") as reply) if not self._compacts:
                self._text = reply.text
            case RequestBegin() if not self._compacts:
                self._text = ""  # an empty reply is no message
            case CompactionBegin() | CompactionEnd():
                self._compacts = isinstance(event, CompactionBegin)
            case McpConnectEnd(status="fatal", error_message=words):
                self._note(f"mcp: {one_line(words or 'no reason given')}\n")
            case RequestEnd(retry_in_ms=int(wait)):  # a pipe that is silent for a minute looks like one that hangs
                why = one_line(event.error_message or event.error_code or "the request failed")
                self._note(f"{why} · attempt {event.attempt + 1} in {wait / 1000:.0f} s\n")
            case AgentEnd(stop_reason="completed"):
                text = safe(self._text)
                self._write(text if text.endswith("\n") or not text else f"{text}\n")
            case AgentEnd():
                self._note(f"{failure_words(event)}\n")

    def tick(self) -> None:
        """Nothing moves here."""

    def stopping(self) -> None:
        """The end will say so."""

    def close(self) -> None:
        """The end has said everything."""

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is drawn."""
        return nullcontext()
