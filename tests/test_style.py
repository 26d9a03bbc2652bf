"""What would otherwise grow or grow old unseen: the length of functions and files, and the names that prose speaks of."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentloop

ROOT = Path(agentloop.__file__).parent
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
NODES = {path: list(ast.walk(ast.parse(source))) for path, source in SOURCES.items()}

LONGEST_FILE = 500
LONG_FILES = {"events.py"}
"""One closed union, each event with what precedes and follows it: whoever learns the protocol reads it as a whole."""

LONG_FUNCTIONS = {
    "reducer.State.__init__", "_run.Core.__init__", "_frozen._compiled_init", "session.Session.create",
    "session.Session.open", "subagent.subagent",
}  # fmt: skip
"""Those of over 40 lines: fields with what each means, or a signature and a docstring that says each of its parameters."""


def functions() -> Iterator[tuple[str, int]]:
    """The name of each function of the package, and how many lines it has."""

    def inside(node: ast.AST, name: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                assert child.end_lineno is not None
                yield f"{name}.{child.name}", child.end_lineno - child.lineno + 1
            own = getattr(child, "name", None)
            yield from inside(child, f"{name}.{own}" if isinstance(own, str) else name)

    for path, nodes in NODES.items():
        yield from inside(nodes[0], ".".join(path.relative_to(ROOT).with_suffix("").parts))


def test_functions_are_short() -> None:
    """Half of them have at most 8 lines, and over 40 only those that are named here."""
    lines = dict(functions())
    assert statistics.median(lines.values()) <= 8
    assert {name for name, length in lines.items() if length > 40} == LONG_FUNCTIONS


def test_a_file_is_no_place_to_put_things() -> None:
    """At most so many lines, but for those that are named here."""
    long = {path.relative_to(ROOT).as_posix() for path, text in SOURCES.items() if text.count("\n") > LONGEST_FILE}
    assert long == LONG_FILES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_opens_with_its_purpose(path: Path) -> None:
    """The first line of its docstring is a sentence."""
    said = ast.get_docstring(ast.parse(SOURCES[path])) or ""
    assert re.match(r"\S.*?[.:](\s|$)", said, re.DOTALL), path


# ---------------------------------------------------------------- names in prose

FOREIGN = {
    "AsyncAzureOpenAI", "Auth", "Class", "Doc", "GenerateContentResponse", "HOME", "PATH", "TOMLDecodeError",
    "cachedContent", "previous_response_id", "safetySettings", "stdio_client", "to_dict",
}  # fmt: skip
"""Names in prose that are of other libraries, of a provider's API, of the environment, or stand for any name."""


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and docstrings of a file, each with its line."""
    for node in NODES[path]:
        for said in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(said, ast.Expr)
                and isinstance(said.value, ast.Constant)
                and isinstance(said.value.value, str)
            ):
                yield said.lineno, said.value.value
    for token in tokenize.generate_tokens(io.StringIO(SOURCES[path]).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def code_names() -> set[str]:
    """All names that code of the package has, and words of its texts."""
    names = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
    for path, source in SOURCES.items():
        names.update(path.relative_to(ROOT).with_suffix("").parts)
        said = {text for _, text in prose(path)}
        for node in NODES[path]:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in said:
                names.update(re.findall(r"\w+", node.value))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        names.update(token.string for token in tokens if token.type == tokenize.NAME)
    return names


def test_names_in_prose_are_names_in_code() -> None:
    """What a comment or docstring puts into backticks is there; one that was renamed or has gone is found here."""
    known = code_names()
    found = {
        (str(path.relative_to(ROOT)), line, name)
        for path in SOURCES
        for line, text in prose(path)
        for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)(?:\([^`]*\))?`(?!`)", text)
        if not known.issuperset(filter(None, name.split(".")))
    }
    assert {name for _, _, name in found} == FOREIGN, sorted(found)
