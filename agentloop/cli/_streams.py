"""Where a run is shown: a terminal, a pipe, or records for a program."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol, TextIO

from agentloop.cli._quiet import QuietPrinter
from agentloop.cli._text import safe, safe_json
from agentloop.cli.plain import PlainPrinter
from agentloop.cli.terminal import SHOW_CURSOR, TerminalPrinter
from agentloop.events import Event
from agentloop.omni.codec import Encoder, StreamFilter
from agentloop.omni.jsonl import dumps
from agentloop.view import Change, View

_SYMBOLS: Final[Mapping[int, int]] = str.maketrans("…·✓✗■─⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "~-+x#-\\|/-\\|/-\\|")
"""What stands for our symbols where the terminal's encoding has none of them."""


class Output:
    """Standard output and standard error, as they are when the command begins."""

    def __init__(self) -> None:
        self._out: TextIO = sys.stdout
        self._notes: TextIO = sys.stderr
        self.live = _is_live(self._out)
        """Whether a person watches a terminal that can be drawn in."""
        for stream in (self._out, self._notes):
            reconfigure: Any = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        self._plain_symbols = not _can_write("…✓─⠋", self._out)

    def printer(
        self, *, as_json: bool = False, quiet: bool = False, prices: Sequence[float] | None = None
    ) -> JsonPrinter | QuietPrinter | ScreenPrinter:
        """What shows a run here: records, the answer alone, a live screen, or plain lines."""
        if as_json:
            return JsonPrinter(self._out)
        return QuietPrinter(self.write, self.note) if quiet else ScreenPrinter(self, self.drawing(prices=prices))

    def drawing(self, *, prompts: bool = False, prices: Sequence[float] | None = None) -> Drawing:
        """What draws a view here: live, or in plain lines."""
        if not self.live:
            return PlainPrinter(self.write, self.note, prompts=prompts, prices=prices)
        colours = not os.environ.get("NO_COLOR")
        return TerminalPrinter(self.write, shutil.get_terminal_size, colours=colours, prompts=prompts, prices=prices)

    def write(self, text: str) -> None:
        """Write to standard output."""
        self._out.write(text.translate(_SYMBOLS) if self._plain_symbols else text)

    def note(self, text: str) -> None:
        """Write to standard error, after what standard output has so far."""
        self._out.flush()
        self._notes.write(text)
        self._notes.flush()

    def remark(self, text: str) -> None:
        """Tell a person something about the run, before it begins."""
        if self.live:
            self.write(f"{safe(text)}\n")
        else:
            self.note(f"{safe(text)}\n")

    def flush(self) -> None:
        """Send what was written."""
        self._out.flush()

    def in_order(self) -> None:
        """Leave the terminal as it was; may be called from a signal handler."""
        if self.live:
            os.write(self._out.fileno(), f"{SHOW_CURSOR}\n".encode())


class Drawing(Protocol):
    """What draws a view: `TerminalPrinter` or `PlainPrinter`."""

    hint: str

    def show(self, view: View, changes: Sequence[Change], now: float) -> None:
        """Draw what one event changed."""
        ...

    def tick(self, view: View, now: float) -> None:
        """Draw what moves by itself."""
        ...

    def close(self, view: View, now: float) -> None:
        """Say how the run ended."""
        ...

    def pause(self) -> None:
        """Leave the terminal to somebody else."""
        ...

    def go_on(self) -> None:
        """Draw again."""
        ...


class ScreenPrinter:
    """A view and its drawing. Times are those of the clock, or as they are given, for a run of another time."""

    def __init__(self, output: Output, drawing: Drawing) -> None:
        self.view = View()
        self.now: float | None = None
        """The time of the last event, or tick."""
        self._output = output
        self._drawing = drawing

    def show(self, event: Event, now: float | None = None) -> None:
        """Take the next event."""
        self.now = now = time.monotonic() if now is None else now
        self._drawing.show(self.view, self.view.feed(event, now), now)
        self._output.flush()

    def tick(self, now: float | None = None) -> None:
        """Bring up to date what moves by itself."""
        self.now = now = time.monotonic() if now is None else now
        self._drawing.tick(self.view, now)
        self._output.flush()

    def stopping(self) -> None:
        """The run was told to stop; may be called from a signal handler."""
        self._drawing.hint = "stopping, Ctrl-C again ends at once"

    def close(self) -> None:
        """Say how the run ended."""
        self._drawing.close(self.view, time.monotonic() if self.now is None else self.now)
        self._output.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which nothing is drawn: somebody else writes to the terminal."""
        self._drawing.pause()
        self._output.flush()
        try:
            yield
        finally:
            self._drawing.go_on()


class JsonPrinter:
    """Every record of the stream as a line of JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out.buffer
        self._watched = out.isatty()  # then nothing in a record may be a command to the terminal
        self._encoder = Encoder()
        self._filter = StreamFilter()

    def show(self, event: Event) -> None:
        """Print the event's records."""
        for record in self._encoder.encode(event):
            if self._filter.keep(record):
                line = dumps(record)
                self._out.write((safe_json(line.decode()).encode() if self._watched else line) + b"\n")
        self._out.flush()

    def tick(self) -> None:
        """Nothing moves here."""

    def stopping(self) -> None:
        """The records will say so."""

    def close(self) -> None:
        """The records have said everything."""

    def paused(self) -> AbstractContextManager[None]:
        """Records and questions do not meet: these go to standard error."""
        return nullcontext()


def _is_live(stream: TextIO) -> bool:
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return os.name != "nt" or "WT_SESSION" in os.environ  # older consoles do not take escape sequences


def _can_write(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True
