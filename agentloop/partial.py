"""`PartialArguments`: what the arguments of a call come to so far, while they still stream.

    partial = PartialArguments()
    async for event in run:
        match event:
            case MessageUpdate(delta=ToolCallDelta(text=text)):
                partial.feed(text)              # only kept: nothing is parsed
        ...
    partial.value                               # parsed now, from where the last look ended

Nothing is invented: an open string is shown as far as it is certain (half an escape waits), an open list or object with
what it holds; a number, `true`, `false` or `null` only once its end has come, a key only with its value. So at every moment the
value is the beginning of the final one, and the final one is what a tool gets.

All looks together take time linear in the text, however often one looks: each character is read once, finished parts
are never touched again, and an open string of more than `FRESH` characters is brought up to date when it has grown by
a sixteenth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from agentloop._jsontext import parse_json
from agentloop._values import MAX_JSON_DEPTH

__all__ = ["PartialArguments"]

FRESH: Final = 4096
"""Characters of an open string up to which each look shows it to its last character."""

_BLANKS = re.compile(r"[ \t\n\r]*")
_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_HEX = re.compile(r"\\u([0-9A-Fa-f]{4})")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_NOTHING: Final = object()


class _Wrong(Exception):
    """The text is no JSON; the words say what was expected."""


class PartialArguments:
    """JSON text that comes in pieces, and its value so far.

    `feed` may be called from an event's handler for each delta: it costs nothing. The properties parse what came since
    the last look. Not for use by several threads at once.
    """

    __slots__ = (
        "_key", "_length", "_mode", "_next", "_opens_key", "_pending", "_pieces", "_position", "_problem", "_root",
        "_shown", "_stack", "_tail",
    )  # fmt: skip

    def __init__(self, text: str = "") -> None:
        self._pending = [text]
        self._tail = ""
        self._position = 0
        self._problem: str | None = None
        self._root: Any = _NOTHING
        self._stack: list[Any] = []
        self._key = ""
        self._mode: Callable[[str, int], int] = self._between
        self._next = "value"
        self._pieces: list[str] = []
        self._length = 0
        self._shown = 0
        self._opens_key = False

    def __repr__(self) -> str:
        return f"<PartialArguments {'wrong' if self.problem else 'whole' if self.complete else 'open'}: {self._position} read>"

    def feed(self, text: str) -> None:
        """Add the next piece of the text. Nothing is parsed."""
        self._pending.append(text)

    @property
    def value(self) -> Any:
        """The value so far; None before there is one. Of text that turns out wrong: the value up to there.

        It is the one that grows, not a copy: read it, do not change it, and copy what is to be kept.
        """
        self._read()
        self._show()
        return None if self._root is _NOTHING else self._root

    @property
    def complete(self) -> bool:
        """Whether the text is one whole JSON value (a number alone is so only after a blank)."""
        self._read()
        return self._problem is None and self._next == "nothing" and self._mode == self._between

    @property
    def problem(self) -> str | None:
        """Why the text is no JSON and where, or None. What comes after it is not read."""
        self._read()
        return self._problem

    # ---------------------------------------------------------------- reading

    def _read(self) -> None:
        if not self._pending:
            return
        text = self._tail + "".join(self._pending)
        self._pending.clear()
        if self._problem is not None:
            return
        place = 0
        try:
            while place < len(text):
                end = self._mode(text, place)
                if end < 0:  # half an escape
                    break
                place = end
        except _Wrong as wrong:
            self._problem = f"character {self._position + place}: {wrong}"
        self._tail = text[place:] if self._problem is None else ""
        self._position += place

    def _between(self, text: str, place: int) -> int:
        """Blanks, or one mark of structure."""
        blanks = _BLANKS.match(text, place)
        if blanks is not None and blanks.end() > place:
            return blanks.end()
        mark = text[place]
        if self._next in ("value", "value or ]"):
            return self._begin(mark, place)
        if self._next in ("key", "key or }") and mark == '"':
            self._open_string(key=True)
        elif self._next == ":" and mark == ":":
            self._next = "value"
        elif self._next == ", or end" and mark == ",":
            self._next = "key" if isinstance(self._stack[-1], dict) else "value"
        elif self._next in (", or end", "key or }") and mark == ("}" if isinstance(self._stack[-1], dict) else "]"):
            self._close()
        else:
            raise _Wrong(f"expected {self._next}, got {mark!r}")
        return place + 1

    def _begin(self, mark: str, place: int) -> int:
        """A value begins, or a list ends that holds none."""
        if mark in "{[":
            if len(self._stack) == MAX_JSON_DEPTH:
                raise _Wrong(f"nested deeper than {MAX_JSON_DEPTH} levels")
            self._put({} if mark == "{" else [])
        elif mark == '"':
            self._open_string(key=False)
        elif mark == "]" and self._next == "value or ]":
            self._close()
        elif mark in "-0123456789tfn":
            self._mode, self._pieces = self._scalar, []
            return place
        else:
            raise _Wrong(f"expected {self._next}, got {mark!r}")
        return place + 1

    def _put(self, value: Any) -> None:
        """A value takes its place; a list or an object is then the open one."""
        if not self._stack:
            self._root = value
        elif isinstance(self._stack[-1], dict):
            self._stack[-1][self._key] = value
        else:
            self._stack[-1].append(value)
        if isinstance(value, dict | list):
            self._stack.append(value)
            self._next = "key or }" if isinstance(value, dict) else "value or ]"
        else:
            self._after()

    def _close(self) -> None:
        self._stack.pop()
        self._after()

    def _after(self) -> None:
        self._next = ", or end" if self._stack else "nothing"

    def _scalar(self, text: str, place: int) -> int:
        """A number or a word, up to what cannot belong to it."""
        end = _SCALAR.match(text, place).end()  # type: ignore[union-attr]
        self._pieces.append(text[place:end])
        if end < len(text):
            try:
                value = parse_json("".join(self._pieces))
            except ValueError:
                raise _Wrong(f"expected a number, true, false or null, got {''.join(self._pieces)[:40]!r}") from None
            self._mode = self._between
            self._put(value)
        return end

    # ---------------------------------------------------------------- strings

    def _open_string(self, *, key: bool) -> None:
        self._mode, self._pieces, self._length, self._shown = self._string, [], 0, 0
        self._opens_key = key
        if not key:
            self._put("")

    def _string(self, text: str, place: int) -> int:
        """A run of characters, an escape, or the end of a string; -1: half an escape."""
        end = _RUN.match(text, place).end()  # type: ignore[union-attr]
        if end > place:
            return self._add(text[place:end], end)
        if text[place] == '"':
            whole = "".join(self._pieces)
            self._mode = self._between
            if self._opens_key:
                self._key, self._next = whole, ":"
            else:
                self._replace(whole)
            return place + 1
        if text[place] != "\\":
            raise _Wrong(f"expected no control character in a string, got {text[place]!r}")
        return self._escape(text, place)

    def _escape(self, text: str, place: int) -> int:
        kind = text[place + 1 : place + 2]
        if kind in _ESCAPES:
            return self._add(_ESCAPES[kind], place + 2)
        if kind not in ("", "u"):
            raise _Wrong(f"expected an escape, got {text[place : place + 2]!r}")
        code = self._code(text, place)
        if code is None:
            return -1
        if not 0xD800 <= code < 0xDC00:
            return self._add("\ufffd" if 0xDC00 <= code < 0xE000 else chr(code), place + 6)
        return self._pair(code, text, place + 6)

    def _pair(self, high: int, text: str, place: int) -> int:
        """The other half of a surrogate pair; where none comes the first is U+FFFD, as a tool gets it."""
        start = text[place : place + 2]
        if start in ("", "\\"):
            return -1
        if start == "\\u":
            low = self._code(text, place)
            if low is None:
                return -1
            if 0xDC00 <= low < 0xE000:
                return self._add(chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), place + 6)
        return self._add("\ufffd", place)

    @staticmethod
    def _code(text: str, place: int) -> int | None:
        """The number of an escape that begins here; None while it is not all there."""
        found = _HEX.match(text, place)
        if found is not None:
            return int(found[1], 16)
        digits = text[place + 2 : place + 6]
        if len(digits) == 4 or re.fullmatch("[0-9A-Fa-f]*", digits) is None:
            raise _Wrong(f"expected four hexadecimal digits after \\u, got {digits!r}")
        return None

    def _add(self, piece: str, end: int) -> int:
        self._pieces.append(piece)
        self._length += len(piece)
        return end

    def _show(self) -> None:
        """Bring the open string up to date in the value."""
        if self._mode != self._string or self._opens_key or self._length == self._shown:
            return
        if self._length <= FRESH or self._length - self._shown >= self._shown >> 4:
            self._pieces = ["".join(self._pieces)]
            self._shown = self._length
            self._replace(self._pieces[0])

    def _replace(self, text: str) -> None:
        """Put the open string's text where the string stands."""
        if not self._stack:
            self._root = text
        elif isinstance(self._stack[-1], dict):
            self._stack[-1][self._key] = text
        else:
            self._stack[-1][-1] = text
