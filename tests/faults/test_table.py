"""The table of reported faults names tests that exist."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from .cases import CASES

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("number", list(CASES))
def test_each_fault_has_its_tests(number: str) -> None:
    """Every test that is named is a function of that file."""
    assert CASES[number]
    for node in CASES[number]:
        file, name = node.split("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        functions = {item.name for item in tree.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, node


def test_no_reported_fault_is_left_out(shared: Path) -> None:
    """Each number of the handed list is in the table."""
    handed = json.loads((shared / "cases" / "cases.json").read_text(encoding="utf-8"))
    assert {case["id"] for case in handed} == set(CASES)
