"""Docstrings in three styles, and broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop._schema.docstring import read_docstring

GOOGLE = """Find files.

    Looks everywhere:
    in every folder.

    Args:
        pattern (str | None, optional): What to look for,
            with wildcards.
        limit (Callable[[int], (int)]): At most
          this many.
        a line that is no entry
        deep: How deep: counted from 0.

    Returns:
        The paths.
    """

NUMPY = """Find files.

    Parameters
    ----------
    pattern : str, optional
        What to look for,
        with wildcards.

    nonsense that is no entry
    limit, deep : int
        A number.

    Returns
    -------
    list
        The paths.
    """

SPHINX = """Find files.

    More of it.

    :param str pattern: What to look for,
        with wildcards.
    :param limit: A number.
    :type limit: int
    :returns: the paths
    """


def test_google_style() -> None:
    """Types, continuation lines and colons in the text are understood; a line without a colon costs only itself."""
    found = read_docstring(GOOGLE)
    assert found.description == "Find files.\n\nLooks everywhere:\nin every folder."
    assert found.parameters == {
        "pattern": "What to look for, with wildcards.",
        "limit": "At most this many.",
        "deep": "How deep: counted from 0.",
    }


def test_numpy_style() -> None:
    """Headings with underlines, several names at once; a line that is no entry costs only itself."""
    found = read_docstring(NUMPY)
    assert found.description == "Find files."
    assert found.parameters == {
        "pattern": "What to look for, with wildcards.",
        "limit": "A number.",
        "deep": "A number.",
    }


def test_sphinx_style() -> None:
    """Fields, with the type before the name or not; types and returns are no parameters."""
    found = read_docstring(SPHINX)
    assert found.description == "Find files.\n\nMore of it."
    assert found.parameters == {"pattern": "What to look for, with wildcards.", "limit": "A number."}


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_no_docstring(text: str | None) -> None:
    """A function without words about it has an empty description."""
    assert read_docstring(text).description == ""


def test_ordinary_text_is_all_description() -> None:
    """Words such as `returns` or a colon at a line's end open no section of their own."""
    text = "Compute the sum.\n\nIt returns: what it must.\n@mention is kept."
    assert read_docstring(text).description == text


@given(st.text(alphabet="Args:\n ab()-@param.", max_size=300))
def test_any_text_is_read(text: str) -> None:
    """No text raises, and no parameter has a blank text."""
    assert all(value.strip() for value in read_docstring(text).parameters.values())


def test_long_docstrings_are_read_in_linear_time() -> None:
    """A hostile line of a million characters, in each style, is read at once (a quadratic reader would never end)."""
    for line in ("@param " + " " * 1_000_000, "Args:\n    x " + " " * 1_000_000, "Args:\n    x (" + "(" * 1_000_000):
        assert read_docstring(f"Sum.\n\n{line}").description.startswith("Sum.")
