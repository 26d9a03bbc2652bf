"""A small terminal for tests: obeys the few sequences that the printer may use, and fails on every other one."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"\x1b\[\d*[A-Za-z]|\x1b\[\?25[hl]|[\s\S]")


class FakeTerminal:
    """What a person sees: rows of text, the scrollback included. Lines that are too long wrap, as in a real one."""

    def __init__(self, columns: int = 40) -> None:
        self.columns = columns
        self.rows = [""]
        self.row = 0
        self.column = 0
        self.cursor_shown = True
        self.raw = ""

    def write(self, text: str) -> None:
        self.raw += text
        for token in _TOKENS.findall(text):
            self._obey(token)

    def _obey(self, token: str) -> None:
        if token == "\n":
            self._down()
        elif token == "\r":
            self.column = 0
        elif token.startswith("\x1b[?25"):
            self.cursor_shown = token.endswith("h")
        elif token.startswith("\x1b["):
            self._sequence(token[-1], int(token[2:-1] or "1"))
        else:
            assert token.isprintable(), f"a control character got through: {token!r}"
            self._put(token)

    def _sequence(self, kind: str, number: int) -> None:
        if kind == "A":
            assert number <= self.row, "the cursor would leave the screen"
            self.row -= number
        elif kind == "J":
            del self.rows[self.row + 1 :]
            self.rows[self.row] = self.rows[self.row][: self.column]
        else:
            assert kind == "m", f"an unexpected sequence: {kind!r}"

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append("")

    def _put(self, character: str) -> None:
        if self.column >= self.columns:
            self._down()
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    @property
    def text(self) -> str:
        return "\n".join(self.rows).rstrip("\n")
