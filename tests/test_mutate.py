"""The mutator finds the faults that it says, one at a time, and leaves the rest of the module as it is."""

from __future__ import annotations

import ast

import pytest

from tools.mutate import Finder


def mutants(source: str) -> list[str]:
    return [mutant.text for mutant in Finder(ast.parse(source)).found]


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("a < b", ["a < b -> pass", "a < b -> a <= b"]),
        ("x = a is b", ["a is b -> a is not b"]),
        ("x = a + 1", ["a + 1 -> a - 1", "1 -> 2"]),
        ("x = a and b", ["a and b -> b", "a and b -> a", "a and b -> a or b"]),
        ("x = not a", ["not a -> a"]),
        ("x = True", ["True -> False"]),
        ("x = 'word'", ["'word' -> 'mutant'"]),
        ("x = 'two words'", []),
        ("if a: b = c", ["a -> not a"]),
        ("if a == b: c = d", ["a == b -> a != b"]),
        ("def f(): return a", ["a -> None"]),
        ("def f(): return None", []),
        ("a.b = c", ["a.b = c -> pass"]),
        ("a += b", ["a += b -> pass", "a += b -> a -= b"]),
        ("raise E", ["raise E -> pass"]),
        ("import a\nassert a == 1\nx: int\n'a docstring'\n__all__ = ['a']", []),
        ("X: TypeAlias = 'word'\nY = Literal['word']", []),
    ],
)
def test_the_faults_of_a_line(source: str, texts: list[str]) -> None:
    """Comparisons, sums, conditions, constants, returned values and statements; no words, imports or assertions."""
    assert sorted(mutants(source)) == sorted(texts)


def test_a_fault_changes_its_tree_only_when_it_is_told_to() -> None:
    """One at a time: finding them leaves the tree as it was."""
    tree = ast.parse("def f(a):\n    return a < 1\n")
    before = ast.dump(tree)
    found = Finder(tree).found
    assert ast.dump(tree) == before
    (swap,) = [mutant for mutant in found if mutant.text == "a < 1 -> a <= 1"]
    assert (swap.line, list(swap.lines), swap.in_function) == (2, [2], True)
    swap.change()
    assert ast.unparse(tree) == "def f(a):\n    return a <= 1"


def test_what_runs_at_import_is_told_apart() -> None:
    """Defaults and tables are no part of a function's code."""
    found = Finder(ast.parse("T = {1: 'a'}\ndef f(a=2):\n    return [3 for b in a]\n")).found
    assert {mutant.text: mutant.in_function for mutant in found} == {
        "1 -> 2": False,
        "'a' -> 'mutant'": False,
        "2 -> 3": False,
        "[3 for b in a] -> None": True,
        "3 -> 4": True,
    }
