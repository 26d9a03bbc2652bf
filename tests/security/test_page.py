"""The page of threats: each of its lines names a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"


def lines() -> list[list[str]]:
    """The lines of the table: threat, what happens, test; the lines that head a part have a threat alone."""
    rows = [
        line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    cells = [[cell.strip() for cell in row] for row in rows[2:]]
    return [row for row in cells if not row[0].startswith("**")]


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_threat_has_its_test() -> None:
    """Every line says a threat, what happens and one test, and that test exists."""
    found = lines()
    assert len(found) > 40
    for row in found:
        assert len(row) == 3, row
        threat, happens, named = row
        assert threat
        assert happens
        match = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", named)
        assert match is not None, row
        assert match[2] in names_in(TESTS / match[1]), named


def test_no_test_of_hostility_is_unnamed() -> None:
    """Every test in `tests/security` about a threat stands in the table, or is one that guards the guard."""
    guards = {
        "test_escapes_of_json_keep_its_value", "test_a_secret_in_a_result_is_not_stored", "test_many_events_are_no_long_one",
        "test_opaque_reasoning_in_many_pieces", "test_dots_in_quotes_are_text",
        "test_every_folder_of_the_corpus_is_a_target", "test_the_command", "test_what_is_broken_is_found",
    }  # fmt: skip
    named = {row[2].strip("`").partition("::")[2] for row in lines()}
    for file in Path(__file__).parent.glob("test_*.py"):
        if file != Path(__file__):
            tests = {name for name in names_in(file) if name.startswith("test_")}
            assert tests <= named | guards, file
