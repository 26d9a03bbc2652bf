"""Plain output of a run: for pipes, files and terminals that cannot do more. No escape sequence is ever written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentloop.cli._text import one_line, safe
from agentloop.cli._words import call_words, failure_words, outcome_words, result_lines, retry_words, summary_words
from agentloop.view import Bubble, Change, CompactionCard, Item, Notice, RetryWait, Separator, ToolCard, View


class PlainPrinter:
    """Prints what a view changes, line by line: the conversation through `write`, what is about the run through `note`.

    Text appears as it streams; a card is two lines, one when it starts and one when it is locked.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        note: Callable[[str], None],
        *,
        prompts: bool = False,
        prices: Sequence[float] | None = None,
    ) -> None:
        self.hint = ""
        """Not shown: there is no line that could change."""
        self._out = write
        self._notes = note
        self._prompts = prompts
        self._prices = prices
        self._open: Item | None = None  # whose line is not ended
        self._started: set[int] = set()  # keys of cards that were told of
        self._retry: RetryWait | None = None

    def show(self, view: View, changes: Sequence[Change], now: float) -> None:
        """Print what one event changed."""
        for change in changes:
            if not change.origin:
                self._change(view, change, now)
        if view.retry is not self._retry:
            self._retry = view.retry
            if view.retry is not None:
                self._end_line()
                self._note(f"{retry_words(view, now)}\n")

    def tick(self, view: View, now: float) -> None:
        """Nothing moves here."""

    def close(self, view: View, now: float) -> None:
        """End the last line and say how the run ended."""
        self._end_line()
        failure = failure_words(view.end)
        if failure:
            self._note(f"{failure}\n")
        self._note(f"{summary_words(view, now, self._prices)}\n")

    def pause(self) -> None:
        """Somebody else writes: end the line."""
        self._end_line()

    def go_on(self) -> None:
        """Nothing was held back."""

    def _change(self, view: View, change: Change, now: float) -> None:
        item = change.item
        match item:
            case Bubble():
                self._bubble(item, change)
            case ToolCard():
                self._card(item, change)
            case Separator(index=index) if index > 0 and change.kind == "added":
                self._line(f"--- turn {index + 1} ---")
            case Notice(kind="mcp" | "hook") if change.kind == "added":
                self._end_line()
                self._note(f"{item.kind}: {safe(item.text)}\n")
            case CompactionCard() if change.kind == "added" or item.status is not None:
                self._end_line()
                self._note(f"compaction ({item.reason}): {item.status or 'begins'}\n")

    def _bubble(self, bubble: Bubble, change: Change) -> None:
        if bubble.kind in ("user", "summary"):
            if self._prompts and change.kind == "added":
                self._line("\n".join(f"> {line}" for line in safe(bubble.text).split("\n")))
        elif bubble.kind in ("custom", "data"):
            if change.kind == "added":
                self._line(f"[{one_line(getattr(bubble.content, 'role', None) or bubble.kind)}]")
        elif change.kind == "added":
            self._end_line()
            self._write(("thinking: " if bubble.kind == "thinking" else "") + safe(bubble.text))
            self._open = bubble
        elif change.kind == "grew":
            self._write(safe(change.text))
        elif change.kind == "dropped" and bubble.text:
            self._end_line()
            self._note("the reply above failed and is void\n")
        elif not bubble.open and self._open is bubble:
            self._end_line()

    def _card(self, card: ToolCard, change: Change) -> None:
        if change.kind != "changed":
            return
        if card.state == "running" and card.key not in self._started:
            self._started.add(card.key)
            self._line(f"[{call_words(card)}]")
        elif card.state == "locked":
            self._line(f"[{safe(card.name)}] {outcome_words(card)}")
            for line in result_lines(card):
                self._line(f"  {line}")

    def _write(self, text: str) -> None:
        self._out(safe(text))  # whatever it is made of: this is the last door

    def _note(self, text: str) -> None:
        self._notes(safe(text))

    def _line(self, text: str) -> None:
        self._end_line()
        self._write(f"{text}\n")

    def _end_line(self) -> None:
        if self._open is not None:
            self._open = None
            self._write("\n")
