"""What would otherwise grow or grow old unseen: long functions and files, missing words, and the names that prose speaks of."""

from __future__ import annotations

import ast
import builtins
import io
import itertools
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


# ---------------------------------------------------------------- missing words

DOORS = [path for path in SOURCES if not any(part.startswith("_") for part in path.relative_to(ROOT).parts)]


def offered() -> Iterator[tuple[Path, str]]:
    """The names that public modules offer from other files, each with that file."""
    for door in DOORS:
        names = {node.value for node in NODES[door] if isinstance(node, ast.Constant)}  # `__all__` is among them
        for node in NODES[door]:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentloop."):
                file = ROOT.joinpath(*node.module.split(".")[1:]).with_suffix(".py")  # type: ignore[union-attr]
                yield from ((file, alias.name) for alias in node.names if alias.name in names)


OFFERED = set(offered())


def is_offered(path: Path, name: str) -> bool:
    """Whether a name of a file is there to be used."""
    return path in DOORS or (path, name) in OFFERED


def public_classes(path: Path) -> Iterator[ast.ClassDef]:
    """The classes of a file that are there to be used: all but the private ones, in a private file those that are offered."""
    for node in NODES[path]:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and is_offered(path, node.name):
            yield node


def public_fields(cls: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """The annotated fields of a class that are not private, and whether words stand under each."""
    for member, behind in itertools.zip_longest(cls.body, cls.body[1:]):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            name = member.target.id
            if not name.startswith("_") and "ClassVar" not in ast.unparse(member.annotation):
                yield name, isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)


PUBLIC = sorted({*DOORS, *(path for path, _ in OFFERED if path in SOURCES)})


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_field_has_words(path: Path) -> None:
    """What a field of a public class holds is said under it, or its class or module speaks of it by name."""
    module = ast.get_docstring(ast.parse(SOURCES[path])) or ""
    silent = [
        f"{cls.name}.{name}"
        for cls in public_classes(path)
        for name, has_words in public_fields(cls)
        if not has_words and f"`{name}`" not in module + (ast.get_docstring(cls) or "")
    ]
    assert silent == []


Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(path: Path) -> Iterator[tuple[str, Function, str]]:
    """The functions, and the methods of classes, that are there to be used (`__init__` too), each with the words about it."""
    module = NODES[path][0]
    assert isinstance(module, ast.Module)
    for owner in (module, *public_classes(path)):
        about = "" if owner is module else ast.get_docstring(owner) or ""
        for member in owner.body:
            if not isinstance(member, Function) or (member.name.startswith("_") and member.name != "__init__"):
                continue
            if owner is not module or is_offered(path, member.name):
                yield member.name, member, about + (ast.get_docstring(member) or "")


PLAIN = ("StopAsyncIteration", "NotImplementedError")
"""What every iterator raises at its end, and every method that a subclass has to bring."""


def raised(function: Function) -> Iterator[str]:
    """The classes of exceptions that a function raises in its own lines."""
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(error, ast.Name) and error.id[0].isupper():
                yield error.id


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_raised_is_said(path: Path) -> None:
    """The words about a public function, or about its class, name each exception that it raises itself."""
    given = path.relative_to(ROOT).as_posix() == "cli/tools.py"  # what its tools raise is told to a model
    silent = [
        f"{name}: {error}"
        for name, function, words in public_functions(path)
        for error in raised(function)
        if error not in words and error not in PLAIN and not (given and function.decorator_list)
    ]
    assert silent == []


TESTS = sorted(Path(__file__).parent.rglob("test_*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(Path(__file__).parent)))
def test_each_test_states_its_claim(path: Path) -> None:
    """In a docstring, which is a sentence that can be read without the name."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    tests = [node for node in nodes if isinstance(node, Function) and node.name.startswith("test")]
    claims = {test.name: (ast.get_docstring(test) or "").strip() for test in tests}
    assert {name: claim for name, claim in claims.items() if len(claim.split()) < 5} == {}


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
