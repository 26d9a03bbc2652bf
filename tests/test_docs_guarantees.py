"""The page of guarantees: each has its number, its sentence and a test that there is; no other number is spoken of."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
ROWS = re.findall(
    r"^\| (G\d\d) \| (.+) \| `([\w/]+\.py)::(test_\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
NUMBERS = [number for number, *_ in ROWS]


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_they_are_counted() -> None:
    """From G01 on, without a gap; every line of the tables is one."""
    assert [f"G{number:02}" for number in range(1, 31)] == NUMBERS
    assert len(re.findall(r"^\| G", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == len(NUMBERS)


def test_each_names_a_test_of_its_number() -> None:
    """The test exists, and its name begins with the number of the guarantee."""
    for number, _, file, name in ROWS:
        assert name.startswith(f"test_{number.lower()}_"), name
        assert name in names_in(ROOT / "tests" / file), name


def test_no_other_number_is_spoken_of() -> None:
    """What code, pages and tests call G and two digits, names of tests included, stands on the page."""
    files = [path for folder in ("agentloop", "tests", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()]
    spoken = {
        found.upper()
        for path in (*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
        if path.suffix in (".py", ".md")
        for found in re.findall(r"\bG\d\d\b|(?<=test_)g\d\d(?=_)", path.read_text(encoding="utf-8"))
    }
    assert spoken == set(NUMBERS)
