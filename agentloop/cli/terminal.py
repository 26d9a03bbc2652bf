"""Live output of a run in a terminal: what is final goes up into the scrollback, what moves stays in a small area below.

The area holds the line that is being written, the open tool cards and a status line. A few times a second everything is
brought up to date in one piece: the cursor goes up over the area's rows, the screen is cleared from there, what has become
final is printed, and the area drawn again below it. Each line is cut to the width, so that a line is a row. Only these
sequences are used: cursor up, clear to the end, hide and show the cursor, bold, dim, colours of the basic eight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentloop.cli._text import cut, one_line, row, safe, seconds, width_of, wrapped
from agentloop.cli._words import (
    call_words,
    doing_words,
    failure_words,
    outcome_words,
    result_lines,
    retry_words,
    summary_words,
    usage_words,
)
from agentloop.view import Bubble, Change, CompactionCard, Notice, Separator, ToolCard, View

HIDE_CURSOR = "\x1b[?25l"
SHOW_CURSOR = "\x1b[?25h"
_CLEAR_BELOW = "\x1b[J"
_FRAME = 0.08
"""Seconds between two drawings of the area."""
_STYLES = {"dim": "\x1b[2m", "bold": "\x1b[1m", "red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m"}
_SIGNS = {"done": "✓", "failed": "✗", "stopped": "■"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class TerminalPrinter:
    """Draws a view in a terminal.

    `write` takes text for the terminal; `size` gives its columns and rows as they are now; without `colours` it uses no
    styles. `prompts` shows the user's side as well; `prices` are those of `usage_words`.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], tuple[int, int]],
        *,
        colours: bool = True,
        prompts: bool = False,
        prices: Sequence[float] | None = None,
    ) -> None:
        self._write = write
        self._size = size
        self._colours = colours
        self._prompts = prompts
        self._prices = prices
        self.hint = ""
        """Words for the end of the status line; may be set from a signal handler."""
        self._rows = 0  # of the area as it stands
        self._final: list[str] = []  # rows that have become final since it was drawn
        self._drawn_at: float | None = None
        self._bubble: Bubble | None = None
        self._line = ""  # of the open bubble: what is not final yet
        self._printed: set[int] = set()  # keys of bubbles of which something is final
        self._paused = False

    # ------------------------------------------------------------ what a run does

    def show(self, view: View, changes: Sequence[Change], now: float) -> None:
        """Draw what one event changed."""
        for change in changes:
            if not change.origin:
                self._change(change, now)
        self.tick(view, now)

    def tick(self, view: View, now: float) -> None:
        """Draw what moves by itself: spinner, times, countdown. Cheap when it is too early for that."""
        if not self._paused and (self._drawn_at is None or now - self._drawn_at >= _FRAME):
            self._drawn_at = now
            self._draw(self._area(view, now))

    def close(self, view: View, now: float) -> None:
        """Clear the area and say how the run ended."""
        self._end_line()
        failure = failure_words(view.end)
        if failure:
            self._print(failure, "red" if view.end is not None and view.end.stop_reason != "aborted" else "yellow")
        self._print(summary_words(view, now, self._prices), "dim")
        self._draw([])
        self._write(SHOW_CURSOR)

    def pause(self) -> None:
        """Clear the area and leave the terminal to somebody else; what becomes final meanwhile is printed afterwards."""
        self._draw([])
        self._write(SHOW_CURSOR)
        self._paused = True

    def go_on(self) -> None:
        """Draw again, from the next tick on."""
        self._paused = False

    def _change(self, change: Change, now: float) -> None:
        match change.item:
            case Bubble() as bubble:
                self._bubble_changed(bubble, change)
            case ToolCard() as card if change.kind == "changed" and card.state == "locked":
                self._locked(card, now)
            case Separator(index=index) if index > 0 and change.kind == "added":
                self._print(self._rule(f" turn {index + 1} "), "dim")
            case Notice(kind="mcp" | "hook") as notice if change.kind == "added":
                self._print(one_line(f"{notice.kind}: {notice.text}"), "yellow")
            case CompactionCard() as compaction if compaction.status is not None:
                self._print(f"compaction ({compaction.reason}): {compaction.status}", "dim")

    # ------------------------------------------------------------ what is final

    def _bubble_changed(self, bubble: Bubble, change: Change) -> None:
        if bubble.kind in ("user", "summary"):
            if self._prompts and change.kind == "added":
                for line in safe(bubble.text).split("\n"):
                    self._print(f"> {line}", "bold")
        elif bubble.kind in ("custom", "data"):
            if change.kind == "added":
                self._print(f"[{getattr(bubble.content, 'role', None) or bubble.kind}]", "dim")
        elif change.kind == "added":
            self._end_line()
            self._bubble = bubble
            self._grow(bubble.text)
            if not bubble.open:
                self._end_line()
        elif change.kind == "grew":
            self._grow(change.text)
        elif change.kind == "dropped":
            self._dropped(bubble)
        elif not bubble.open and self._bubble is bubble:
            self._end_line()

    def _grow(self, piece: str) -> None:
        """Text was added to the open bubble: all rows but its last are final."""
        *whole, self._line = (self._line + safe(piece).replace("\t", "    ")).split("\n")
        columns = self._columns()
        for line in whole:
            self._finish_rows(wrapped(line, columns))
        *rows, self._line = wrapped(self._line, columns)
        self._finish_rows(rows)

    def _finish_rows(self, rows: Sequence[str]) -> None:
        if rows and self._bubble is not None:
            self._printed.add(self._bubble.key)
        self._final += [self._styled(row, self._bubble_style()) for row in rows]

    def _end_line(self) -> None:
        """The open bubble is whole."""
        if self._line:
            self._finish_rows([self._line])
        self._line, self._bubble = "", None

    def _bubble_style(self) -> str:
        return "dim" if self._bubble is not None and self._bubble.kind == "thinking" else ""

    def _dropped(self, bubble: Bubble) -> None:
        if bubble.key in self._printed:
            self._print("the reply above failed and is void", "yellow")

    def _locked(self, card: ToolCard, now: float) -> None:
        colour = {"done": "green", "failed": "red"}.get(card.outcome or "", "yellow")
        words = cut(row(outcome_words(card)), self._columns() // 2)
        how = seconds(card.elapsed(now)) if words == "done" else f"{words} · {seconds(card.elapsed(now))}"
        sign = self._styled(_SIGNS[card.outcome or "failed"], colour)
        name = self._styled(cut(call_words(card), self._columns() - width_of(how) - 5), "bold")
        self._final.append(f"{sign} {name} {self._styled(f'· {how}', 'dim')}")
        for line in result_lines(card):
            self._print(f"  {line}", "dim")
        for id, child in card.children.items():
            self._print(f"  {one_line(id)}: {child.end.stop_reason if child.end else 'not finished'}", "dim")

    def _print(self, text: str, style: str = "") -> None:
        """A line of its own, cut to the width."""
        self._final.append(self._styled(cut(row(text), self._columns()), style))

    # ------------------------------------------------------------ what moves

    def _draw(self, area: Sequence[str]) -> None:
        """Print what has become final, and the area below it."""
        up = f"\x1b[{self._rows - 1}A" if self._rows > 1 else ""
        clear = f"\r{up}{_CLEAR_BELOW}" if self._rows else ""
        final = "".join([f"{row}\n" for row in self._final])
        below = HIDE_CURSOR + "\n".join(area) if area else ""
        if clear or final or below:
            self._write(clear + final + below)
        self._final.clear()
        self._rows = len(area)

    def _area(self, view: View, now: float) -> list[str]:
        columns, rows = self._columns(), self._size()[1]
        lines = [self._styled(self._line, self._bubble_style())] if self._line else []
        cards = [item for item in _last_cards(view) if item.state != "locked"]
        shown = cards[: max(1, rows - 4)]
        for card in shown:
            lines += [self._styled(cut(row(line), columns), style) for line, style in self._card_lines(card, now)]
        if len(cards) > len(shown):
            lines.append(self._styled(f"  and {len(cards) - len(shown)} more", "dim"))
        if view.activity != "idle":
            lines.append(self._styled(cut(row(self._status(view, now)), columns), "dim"))
        return lines[-max(1, rows - 1) :]

    def _card_lines(self, card: ToolCard, now: float) -> list[tuple[str, str]]:
        if card.state == "running":
            lines = [(f"{_spin(now)} {call_words(card)} · {seconds(card.elapsed(now))}", "")]
            lines += [(f"  {line}", "dim") for line in _progress(card)]
            return lines + [(f"  {one_line(id)}: {doing_words(child)}", "dim") for id, child in card.children.items()]
        sign = "?" if card.state == "waiting_for_approval" else "·"
        return [(f"{sign} {call_words(card)}", "dim" if card.state == "written" else "")]

    def _status(self, view: View, now: float) -> str:
        if view.retry is not None:
            parts = [retry_words(view, now)]
        else:
            parts = [doing_words(view), seconds(view.elapsed(now))]
            parts += [usage_words(view.usage, self._prices)] if view.usage.total else []
        return f"{_spin(now)} {' · '.join([self.hint, *parts] if self.hint else parts)}"

    # ------------------------------------------------------------ how it looks

    def _columns(self) -> int:
        return max(10, self._size()[0] - 1)  # a full last column wraps in some terminals

    def _styled(self, text: str, style: str) -> str:
        return f"{_STYLES[style]}{text}\x1b[0m" if style and text and self._colours else text

    def _rule(self, title: str) -> str:
        return f"──{title}{'─' * max(0, min(self._columns(), 60) - width_of(title) - 2)}"


def _spin(now: float) -> str:
    return _SPINNER[int(now * 10) % len(_SPINNER)]


def _last_cards(view: View) -> list[ToolCard]:
    """The cards of the last turn, which alone can be open."""
    cards: list[ToolCard] = []
    for item in reversed(view.items):
        if isinstance(item, Separator):
            break
        if isinstance(item, ToolCard):
            cards.append(item)
    return cards[::-1]


def _progress(card: ToolCard) -> list[str]:
    """The newest line that a running card has to show."""
    text = (card.output if card.result is None else card.result.text)[-2_000:]
    lines = safe(text).rstrip("\n").split("\n")
    return [lines[-1]] if lines[-1] else []
