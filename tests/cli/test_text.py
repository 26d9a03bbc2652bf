"""Text for a terminal is harmless, and takes the columns that it is said to take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.cli._text import counted, cut, one_line, safe, seconds, width_of, wrapped


def test_control_characters_are_made_visible() -> None:
    """No escape sequence, bell, carriage return, eight-bit control or change of direction reaches the terminal."""
    assert safe("\x1b[31mred\x1b[0m\a") == "␛[31mred␛[0m␇"
    assert safe("a\rb\r\nc\n\td") == "a␍b\nc\n\td"
    assert safe("\x9b31m \x7f \u202egpj.exe \u2066") == "\ufffd31m ␡ \ufffdgpj.exe \ufffd"
    assert safe("plain, and Ünïcode 漢字 👍🏽") == "plain, and Ünïcode 漢字 👍🏽"


@given(st.text())
def test_nothing_harmful_is_left(text: str) -> None:
    """Whatever the text: what is left of the control characters is newline and tab."""
    left = {character for character in safe(text) if ord(character) < 32 or 127 <= ord(character) < 160}
    assert left <= {"\n", "\t"}


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), st.integers(2, 20))
def test_wrapping_keeps_the_text(text: str, columns: int) -> None:
    """Every row fits, and the rows hold the text but for single spaces where they are broken."""
    rows = wrapped(text, columns)
    assert all(width_of(row) <= columns or len(row) == 1 for row in rows)
    position = 0
    for row in rows:
        if text[position : position + len(row)] != row:
            assert text[position] == " "
            position += 1
        assert text[position : position + len(row)] == row
        position += len(row)
    assert text[position:] in ("", " ")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), st.integers(1, 20))
def test_cutting_fits(text: str, columns: int) -> None:
    """A cut text fits, is whole if it did, and else ends in an ellipsis."""
    short = cut(text, columns)
    assert width_of(short) <= max(columns, 0)
    assert short == text if width_of(text) <= columns else short == "" or short.endswith("…")


def test_widths() -> None:
    """Wide characters take two columns, combining ones none."""
    assert width_of("漢字") == 4
    assert width_of("e\u0301") == 1
    assert wrapped("漢字漢字", 4) == ["漢字", "漢字"]
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert wrapped("", 4) == [""]


def test_a_long_line_wraps_in_linear_time() -> None:
    """A megabyte without a line end is no problem."""
    rows = wrapped("x" * 1_000_000, 79)
    assert len(rows) == 12_659
    assert one_line("y \n" * 1_000_000).startswith("y y y")


@pytest.mark.parametrize(("value", "words"), [(0, "0.0 s"), (9.94, "9.9 s"), (12.3, "12 s"), (185.2, "3 min 05 s")])
def test_times(value: float, words: str) -> None:
    """Times are short at every length."""
    assert seconds(value) == words


def test_counts() -> None:
    """Counts have their plural and their thousands."""
    assert [counted(n, "turn") for n in (0, 1, 12345)] == ["0 turns", "1 turn", "12,345 turns"]
