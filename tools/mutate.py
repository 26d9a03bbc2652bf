"""Mutation testing of one module: small faults are put into it, one at a time, and its tests must notice each.

    python -m tools.mutate agentloop/_decide.py tests/test_decide.py tests/test_batches.py

The tests are collected once and run once, traced, to learn which of them reach which line. Then each mutant runs in a
fork of that process, with the functions it changes exchanged, against the tests that reach its line, fastest first, until
one fails. A mutant of what runs at import (a table, a default) gets a process of its own. No file is changed.

Left out: annotations, docstrings, imports, assertions, decorators, and the words of texts.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib.util
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

SWAPS: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
NEGATING = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose swap is their negation."""
LEFT_OUT = frozenset({"annotation", "returns", "decorator_list", "bases", "ctx", "type_params"})
"""Fields that say nothing about what the code does (or about its tests)."""
NOWHERE = open(os.devnull, "w")  # noqa: SIM115 (open while the process lives)


class Mutant(NamedTuple):
    """One fault. `change` puts it into the tree that it was found in."""

    line: int
    lines: range
    """The lines of its statement: a test that runs one of them may notice."""
    text: str
    in_function: bool
    change: Callable[[], None]


class Finder:
    """Finds every mutant of a tree."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[Mutant] = []
        self._statement: ast.stmt = ast.Pass(lineno=1, end_lineno=1)
        self._in_function = False
        self._visit(tree)

    def _visit(self, node: ast.AST) -> None:
        for field, value in ast.iter_fields(node):
            if field in LEFT_OUT:
                continue
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if isinstance(child, ast.AST) and not _says_nothing(child):
                    self._child(node, field, index if isinstance(value, list) else None, child)

    def _child(self, parent: ast.AST, field: str, index: int | None, child: ast.AST) -> None:
        before = self._statement, self._in_function
        if isinstance(child, ast.stmt):
            self._statement = child
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body":
            self._in_function = True
        for other in _replacements(parent, field, child):
            self._add(parent, field, index, child, other)
        self._visit(child)
        self._statement, self._in_function = before

    def _add(self, parent: ast.AST, field: str, index: int | None, child: ast.AST, other: ast.AST) -> None:
        whole = parent if isinstance(child, ast.operator | ast.cmpop | ast.boolop) else child
        if isinstance(whole, ast.expr | ast.stmt):
            ast.copy_location(other, whole)
        old = ast.unparse(whole).splitlines()[0]

        def put(new: ast.AST) -> None:
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new

        put(other)
        new = ast.unparse(other if whole is child else parent).splitlines()[0]
        put(child)
        line = getattr(whole, "lineno", self._statement.lineno)
        self.found.append(
            Mutant(line, _lines(self._statement), f"{old} -> {new}", self._in_function, lambda: put(other))
        )


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    last = max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, last + 1)


def _says_nothing(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.Call(func=ast.Name(id="TypeVar") | ast.Attribute(attr="getLogger")):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")):
            return True
        case ast.FunctionDef(decorator_list=decorators):
            return any(isinstance(each, ast.Name) and each.id == "overload" for each in decorators)
    return False


def _replacements(parent: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    if type(node) in SWAPS:
        yield SWAPS[type(node)]()
    is_test = field in ("test", "ifs", "guard")
    if is_test and not isinstance(node, ast.UnaryOp) and not _negated_by_swap(node):
        yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]
    if isinstance(parent, ast.Return) and not (isinstance(node, ast.Constant) and node.value in (None, False, True)):
        yield ast.Constant(None)
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BoolOp(values=values) if len(values) > 1:
            for left_out in range(len(values)):
                rest = [value for place, value in enumerate(values) if place != left_out]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if value.replace("_", "").isalnum():
            yield ast.Constant("mutant")
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple(), *_]):
            yield ast.Pass()


def _negated_by_swap(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], NEGATING)


# ---------------------------------------------------------------- running


class Runner:
    """A pytest plugin that runs the mutants in place of the tests."""

    def __init__(self, options: argparse.Namespace, out: Any) -> None:
        self.options = options
        self.out = out
        self.path = options.module.resolve()
        self.tree = ast.parse(self.path.read_text("utf-8"))
        self.lines: dict[str, set[int]] = {}
        self.seconds: dict[str, float] = {}
        self.counts = {"killed": 0, "timed out": 0, "survived": 0, "unreached": 0}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what runs on another backend than the first."""
        if not self.options.all_backends:
            items[:] = [item for item in items if "trio" not in item.name and "uvloop" not in item.name]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Trace the tests, then try the mutants."""
        import hypothesis

        usual = hypothesis.settings.default
        hypothesis.settings.register_profile(
            "mutate", parent=usual, database=None, derandomize=True, max_examples=self.options.examples
        )
        hypothesis.settings.load_profile("mutate")
        self._learn(session.items)
        self.items = sorted((item for item in session.items if item.nodeid in self.seconds), key=self._seconds_of)
        mutants = Finder(self.tree).found
        chosen = [mutant for mutant in mutants if not self.options.lines or mutant.line in self.options.lines]
        if self.options.share < 1:
            chosen = sorted(random.Random(0).sample(chosen, round(len(chosen) * self.options.share)))
        self._say(f"{len(chosen)} of {len(mutants)} mutants, {len(self.items)} tests")
        for mutant in chosen:
            result = self._try(mutant)
            self.counts[result] += 1
            if result != "killed":
                self._say(f"{result}: {self.options.module}:{mutant.line}: {mutant.text}")
        figures = " | ".join(str(figure) for figure in (len(chosen), *self.counts.values()))
        self._say(f"| {self.options.module.name} | {len(mutants)} | {figures} |")
        return True

    def _say(self, line: str) -> None:
        print(line, file=self.out, flush=True)

    def _seconds_of(self, item: pytest.Item) -> float:
        return self.seconds[item.nodeid]

    def _learn(self, items: Sequence[pytest.Item]) -> None:
        """Which lines each test runs and how long it takes, found in a fork."""
        with tempfile.NamedTemporaryFile() as file:
            child = os.fork()
            if child == 0:
                learned = _traced(items, str(self.path))
                Path(file.name).write_bytes(pickle.dumps(learned))
                os._exit(0)
            _wait(child, 3600)
            passed, failed = pickle.loads(Path(file.name).read_bytes())
        for name in failed:
            self._say(f"left out, fails without a mutant: {name}")
        for name, (lines, seconds) in passed.items():
            self.lines[name] = lines
            self.seconds[name] = seconds

    def _try(self, mutant: Mutant) -> str:
        reaching = [
            item
            for item in self.items
            if self.options.afresh or not mutant.in_function or not self.lines[item.nodeid].isdisjoint(mutant.lines)
        ]
        if not reaching:
            return "unreached"
        budget = self.options.budget
        items = []
        for item in reaching:
            budget -= self._seconds_of(item)
            items.append(item)
            if budget < 0:
                break
        seconds = sum(self._seconds_of(item) for item in items) * 4 + 5
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
            os.setpgid(0, 0)
            try:
                self._run(mutant, items)
            finally:
                os._exit(70)
        ended = _wait(child, 15 + seconds * 3)
        return "timed out" if ended is None or ended < 0 else "survived" if ended == 0 else "killed"

    def _run(self, mutant: Mutant, items: Sequence[pytest.Item]) -> None:
        """In the fork: put the mutant in place and run the tests until one fails."""
        mutant.change()
        try:
            code = compile(ast.fix_missing_locations(self.tree), str(self.path), "exec")
            exchanged = mutant.in_function and not self.options.afresh and _exchange(code)
        except (SyntaxError, ValueError):
            exchanged = False
        if exchanged:
            os._exit(0 if _all_pass(items) else 1)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mutant.py").write_text(ast.unparse(self.tree), "utf-8")
            Path(folder, "names").write_text("\n".join(item.nodeid for item in items), "utf-8")
            arguments = [str(self.options.module), *self.options.tests, "--alone", folder]
            os._exit(
                subprocess.run([sys.executable, "-m", "tools.mutate", *arguments], stdout=subprocess.DEVNULL).returncode
            )


def _traced(items: Sequence[pytest.Item], path: str) -> tuple[dict[str, tuple[set[int], float]], list[str]]:
    lines: set[int] = set()

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        lines.add(frame.f_lineno)
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return local(frame, event, argument) if frame.f_code.co_filename == path else None

    threading.settrace(trace)
    passed: dict[str, tuple[set[int], float]] = {}
    failed = []
    for item in items:
        lines.clear()
        began = time.process_time()
        sys.settrace(trace)
        good = _all_pass([item])
        sys.settrace(None)
        if good:
            passed[item.nodeid] = (set(lines), time.process_time() - began)
        else:
            failed.append(item.nodeid)
    return passed, failed


class _Failures:
    """Whether a report was a failure."""

    seen = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seen = self.seen or report.failed


def _all_pass(items: Sequence[pytest.Item]) -> bool:
    if not items:
        return True
    manager = items[0].config.pluginmanager
    failures = _Failures()
    manager.register(failures)
    terminal: Any = manager.getplugin("terminalreporter")
    terminal._tw._file = NOWHERE
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if failures.seen:
            return False
    manager.unregister(failures)
    return True


def _exchange(module: CodeType) -> bool:
    """Give every living function of the module its code in the mutant; False if that cannot be done."""
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _inner(module)}
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == module.co_filename:
            code = function.__code__
            new = codes.get((code.co_qualname, code.co_firstlineno))
            if new is None or new.co_freevars != code.co_freevars:
                return False
            function.__code__ = new
    return True


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _wait(child: int, seconds: float) -> int | None:
    """The exit code of a child (negative: the signal that ended it); None if it had to be stopped."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except ProcessLookupError:  # it has no group of its own yet, or is gone
            continue
    os.waitpid(child, 0)
    return None


class _Alone:
    """Imports the mutant in the module's place and runs the named tests only, in their order."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.path = folder / "mutant.py"
        self.order = {name: place for place, name in enumerate((folder / "names").read_text("utf-8").splitlines())}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_file_location(name, self.path) if name == self.name else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="the file that is changed")
    parser.add_argument("tests", nargs="+", help="files of tests")
    parser.add_argument("--share", type=float, default=1.0, help="try this share of the mutants, chosen at random")
    parser.add_argument("--lines", type=int, nargs="*", help="only mutants of these lines")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of tests that a mutant must survive")
    parser.add_argument("--afresh", action="store_true", help="a process for each mutant: its functions run at import")
    parser.add_argument("--examples", type=int, default=30, help="examples of each drawn test")
    parser.add_argument("--all-backends", action="store_true", help="also the tests on uvloop and trio")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *options.tests]
    if options.alone is not None:
        alone = _Alone(".".join(options.module.with_suffix("").parts), options.alone)
        sys.meta_path.insert(0, alone)
        return int(pytest.main(arguments, plugins=[alone]))
    with os.fdopen(os.dup(1), "w") as out:
        return int(pytest.main(arguments, plugins=[Runner(options, out)]))


if __name__ == "__main__":
    sys.exit(main())
