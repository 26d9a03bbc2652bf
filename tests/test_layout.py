"""Imports go one way: the layers as data, read over every file (function-level and typing imports included)."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

import agentloop

ROOT = Path(agentloop.__file__).parent

LAYERS: dict[str, str] = {
    "values": "errors messages abort _awaiting _frozen _values _stepped _marks _digest",
    "protocol": "events reply grammar reducer _grammar",
    "contracts": "model tools context convert config partial _schema _legal _results _jsontext",
    "host": "_host",
    "driver": "loop _decide _drive _run _callbacks _ask _eager _execute _tool_job _outcome _permission _hooks _toolset _timers"
    " _sink _assemble",
    "shells": "view _screen compaction agent _agent approval _approval",
    "omni": "omni",
    "sessions": "session subagent _session",
    "models": "models",
    "mcp": "mcp _mcp",
    "testing": "testing",
    "cli": "cli __main__",
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}

KERNEL = {"values", "protocol", "contracts", "host", "driver"}
ALLOWED: dict[str, set[str]] = {
    "values": {"values"},
    "protocol": {"values", "protocol"},
    "contracts": {"values", "protocol", "contracts"},
    "host": set(),
    "driver": KERNEL,
    "shells": KERNEL | {"shells"},
    "omni": {"values", "protocol", "contracts", "host", "omni"},
    "sessions": KERNEL | {"shells", "sessions", "omni"},
    "models": {"values", "contracts", "models"},
    "mcp": {"values", "protocol", "contracts", "host", "mcp"},
    "testing": KERNEL | {"shells", "omni", "testing", "models"},  # models: `wire` loads the adapter of a case lazily
    "cli": set(LAYERS),
}


def imports(path: Path) -> Iterator[str]:
    """The package's own modules that a file imports, by their first name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "agentloop":
            names = [f"agentloop.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.startswith("agentloop."):
                yield name.split(".")[1]


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
DOORS = [path for path in FILES if not any(part.startswith("_") for part in path.relative_to(ROOT).parts)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    """A file imports only from its own layer and those that the table allows."""
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    layer = LAYER_OF[first]
    found = {name: LAYER_OF.get(name, "the root") for name in imports(path)}
    wrong = {name: other for name, other in found.items() if other not in ALLOWED[layer] and other != "the root"}
    assert wrong == {}


def test_the_page_shows_these_layers() -> None:
    """The table of docs/architecture.md has the layers in this order, each with its files, and a layer imports from those
    above it alone."""
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8").split("## The way")[0]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("`") for row in rows] == list(LAYERS)
    for (layer, names), row in zip(LAYERS.items(), rows, strict=True):
        if layer not in names.split():  # else it is a folder, of which the page shows the files
            assert set(re.findall(r"`([a-z_]+)/?`", " ".join(row[1:-1]))) == set(names.split()), layer
    order = list(LAYERS)
    assert all(ALLOWED[layer] <= set(order[: place + 1]) for place, layer in enumerate(order))


BACKENDS = {
    "_host.py": "jobs, waiters and timers of a run",
    "models/_held.py": "what comes of an SDK's own clean-up",
    "testing/clock.py": "when every task waits",
    "testing/machine.py": "a run stepped by hand",
}
"""The files that know asyncio from trio, and what they know. What starts a task of its own does it through the host."""


def test_few_files_know_the_backends() -> None:
    """No other file imports asyncio or trio."""
    found = set()
    for path in FILES:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        if {name.split(".")[0] for name in names} & {"asyncio", "trio"}:
            found.add(path.relative_to(ROOT).as_posix())
    assert found == set(BACKENDS)


def test_a_log_has_the_name_of_a_door() -> None:
    """What a file behind a door logs is found under the door's name, what the driver logs under the package's."""
    doors = {".".join(["agentloop", *path.relative_to(ROOT).with_suffix("").parts]) for path in DOORS}
    for path in FILES:
        for found in re.findall(r"^log = logging.getLogger\((.+)\)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            own = ".".join(["agentloop", *path.relative_to(ROOT).with_suffix("").parts])
            name = own if found == "__name__" else ast.literal_eval(found)
            driver = LAYER_OF.get(path.stem) == "driver"
            assert name in (["agentloop"] if driver else doors), path


def test_the_root_is_cheap() -> None:
    """`import agentloop` loads no SDK, no cattrs, no argparse, no hypothesis."""
    heavy = ["openai", "anthropic", "mcp", "cattrs", "argparse", "hypothesis", "jsonschema", "jsonschema_rs"]
    code = f"import sys, agentloop; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_type_checker_sees_the_whole_surface(tmp_path: Path) -> None:
    """`from agentloop import *` as well: a checker reads no list that is put together at run time."""
    user = tmp_path / "user.py"
    user.write_text("from agentloop import *\n\nblock: ContentBlock = Text('a')\nrun = agent_loop\nnot_there\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", user.name]
    where = os.environ | {"MYPYPATH": str(ROOT.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=where)
    problems = [line for line in done.stdout.splitlines() if line.startswith(user.name)]
    assert problems == ['user.py:5: error: Name "not_there" is not defined  [name-defined]'], done.stdout


def test_the_surface_is_one_list() -> None:
    """The root's `__all__` is the union of its modules' lists, without doubles, and each name is there."""
    from agentloop import abort, agent, config, context, errors, events, loop, messages, reply, tools

    parts = [*abort.__all__, *agent.__all__, *config.__all__, *context.__all__, *errors.__all__, *events.__all__]
    parts += [*loop.__all__, *messages.__all__, *reply.__all__, *tools.__all__]
    assert sorted(agentloop.__all__) == sorted([*parts, "__version__"])
    assert len(set(agentloop.__all__)) == len(agentloop.__all__)
    assert [name for name in agentloop.__all__ if not hasattr(agentloop, name)] == []


@pytest.mark.parametrize("path", [path for path in DOORS if "cli" not in path.parts], ids=lambda path: path.stem)
def test_a_door_says_what_it_offers(path: Path) -> None:
    """Each public module lists its names, and every one of them is there, with words that say what it is for."""
    module = importlib.import_module(".".join(["agentloop", *path.relative_to(ROOT).with_suffix("").parts]))
    assert module.__all__
    values = {name: getattr(module, name) for name in module.__all__}
    assert [
        name for name, value in values.items() if isinstance(value, type | FunctionType) and not value.__doc__
    ] == []


def test_the_tree_of_errors_is_the_one_printed() -> None:
    """Every exception class stands in the docstring of `errors`, and nothing else does."""
    from agentloop import errors

    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert errors.__doc__ is not None
    tree = errors.__doc__.split("The tree:")[1]
    printed = {match[1] for line in tree.splitlines() if (match := re.match(r"[ │├└─]+([A-Z]\w+)", line))}
    assert printed == classes
