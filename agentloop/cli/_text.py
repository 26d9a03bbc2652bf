"""Text for a terminal: made harmless, measured, cut and wrapped. Nothing here takes more than linear time."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_HARMFUL: Mapping[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},  # shown as their pictures
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),  # eight-bit control sequences
    # Marks that change the direction of writing.
    **dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd"),
}


def safe(text: str) -> str:
    """The text with every control character but newline and tab made visible, so that no terminal obeys it."""
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\r\n", "\n").translate(_HARMFUL)


def row(text: str) -> str:
    """The text made safe and in one line, however long: the last thing that happens to it before a terminal."""
    return safe(text).replace("\n", " ").replace("\t", " ")


def safe_json(text: str) -> str:
    """A JSON text whose characters that a terminal would obey are written as the escapes that JSON has for them."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPED)


# JSON itself escapes those below 0x20.
_ESCAPED: Mapping[int, str] = {code: f"\\u{code:04x}" for code in _HARMFUL if code >= 0x20}


def one_line(text: str) -> str:
    """The text made safe, in one line, runs of white space as one space."""
    return " ".join(safe(text[:_ONE_LINE]).split())


_ONE_LINE = 4_000  # characters: more than any terminal shows in a line, so the rest of a huge text is not looked at


def width_of(text: str) -> int:
    """How many columns a text without line ends takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int, ellipsis: str = "…") -> str:
    """The text, or as much of its beginning as fits with an ellipsis after it."""
    if width_of(text) <= columns:
        return text
    room = columns - width_of(ellipsis)
    return text[: _fits(text, 0, room)] + ellipsis if room > 0 else ""


def wrapped(text: str, columns: int) -> list[str]:
    """The rows that a text without line ends takes; broken after a space where there is one, else within a word."""
    if len(text) <= _SIGNS_A_COLUMN * columns and width_of(text) <= columns:
        return [text]
    rows, start = [], 0
    while start < len(text):
        end = max(_fits(text, start, columns), start + 1)  # a character that is wider than the row has one to itself
        if end < len(text) and text[end] != " ":
            space = text.rfind(" ", start, end)
            end = space if space > start else end
        rows.append(text[start:end])
        start = end + 1 if text[end : end + 1] == " " else end
    return rows


_SIGNS_A_COLUMN = 16  # letters with marks, and pictures that are joined of several signs, have fewer


def _fits(text: str, start: int, columns: int) -> int:
    """Where a row that begins at `start` and takes at most `columns` ends. Signs that take no column are counted as well:
    a row of nothing else would have no end."""
    taken, index = 0, start
    most = min(len(text), start + _SIGNS_A_COLUMN * max(columns, 1))
    while index < most and (taken := taken + _columns(text[index])) <= columns:
        index += 1
    return index


def seconds(value: float) -> str:
    """A time as people read it: `0.4 s`, `12 s`, `3 min 05 s`."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 60:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s"


def counted(count: int, what: str) -> str:
    """`1 turn`, `2 turns`, `12,345 tokens`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
