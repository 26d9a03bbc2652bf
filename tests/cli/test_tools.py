"""The example tools give what they promise, stay below their folder, and bound what they give."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from agentloop.abort import AbortSignal
from agentloop.cli.tools import example_tools, inside
from agentloop.errors import InvalidArguments
from agentloop.messages import ToolResult
from agentloop.tools import Tool, ToolContext

pytestmark = pytest.mark.anyio


class Sink:
    """Collects what a tool reports."""

    def __init__(self) -> None:
        self.progressed: list[str] = []

    def progress(self, result: ToolResult) -> None:
        self.progressed.append(result.text)

    def output(self, text: str) -> Awaitable[None]:
        raise AssertionError("no example tool streams through its context")

    async def child(self, event: Any) -> None:
        raise AssertionError("no example tool runs a nested run")

    async def close(self, close: Any) -> None:
        raise AssertionError("no example tool runs a nested run")

    def closing_bound(self, seconds: float) -> None:
        raise AssertionError("no example tool runs a nested run")


@pytest.fixture
def anyio_backend() -> str:
    """None of them looks at the event loop but through anyio."""
    return "asyncio"


async def use(
    root: Path, name: str, *, sink: Sink | None = None, abort: AbortSignal | None = None, **arguments: Any
) -> Any:
    (tool,) = [tool for tool in example_tools(root) if tool.name == name]
    run = tool.prepare(arguments).bind(ToolContext("c", name, abort or AbortSignal(), sink or Sink()))
    value = run()
    if tool.kind == "async":
        return await value
    return "".join([piece async for piece in value]) if tool.kind == "stream" else value


def test_the_set(tmp_path: Path) -> None:
    """Five tools, each described, each safe to repeat; one is async, one streams, one runs in a thread."""
    tools = example_tools(tmp_path)
    assert [tool.name for tool in tools] == ["calculate", "current_time", "list_files", "read_file", "measure_file"]
    assert all(isinstance(tool, Tool) and tool.description and tool.label and tool.replay == "safe" for tool in tools)
    assert {tool.kind for tool in tools} == {"async", "sync", "stream"}


async def test_calculate(tmp_path: Path) -> None:
    """The calculator works out; arguments of another type are refused before it runs."""
    assert await use(tmp_path, "calculate", expression="12*7 + 3") == "87"
    with pytest.raises(InvalidArguments, match="expression"):
        await use(tmp_path, "calculate", expression=["1"])


async def test_current_time(tmp_path: Path) -> None:
    """The time comes in the zone asked for; an unknown or a hostile zone is a plain error."""
    assert (await use(tmp_path, "current_time", zone="utc")).endswith(" UTC")
    assert await use(tmp_path, "current_time")
    for zone in ("Nowhere/Land", "../../etc/passwd", "/etc/passwd", "a\0b"):
        with pytest.raises(ValueError, match="zone: expected a time zone"):
            await use(tmp_path, "current_time", zone=zone)


def tree(root: Path) -> None:
    (root / "docs").mkdir()
    (root / ".git").mkdir()
    for name in ("b.py", "a.py", "notes.txt", ".hidden.py", "docs/c.py", ".git/d.py"):
        (root / name).write_text("one two\nthree")


async def test_list_files(tmp_path: Path) -> None:
    """Names are sorted and relative, folders end in a slash, hidden ones are left out; patterns are obeyed."""
    tree(tmp_path)
    assert (await use(tmp_path, "list_files")).text == "a.py\nb.py\ndocs/\nnotes.txt"
    found = await use(tmp_path, "list_files", pattern="*.py", recursive=True)
    assert found.structured == ["a.py", "b.py", "docs/c.py"]
    assert (await use(tmp_path, "list_files", folder="docs")).text == "docs/c.py"
    assert (await use(tmp_path, "list_files", pattern="*.rs")).text == "[nothing matches *.rs]"
    with pytest.raises(ValueError, match=r"expected a folder, got 'a\.py'"):
        await use(tmp_path, "list_files", folder="a.py")


async def test_list_files_is_bounded(tmp_path: Path) -> None:
    """A folder of thousands gives its first 500 names, says how many more there are, and reports progress."""
    for n in range(1200):
        (tmp_path / f"{n:04}.txt").touch()
    sink = Sink()
    found = await use(tmp_path, "list_files", sink=sink)
    assert len(found.structured) == 500
    assert found.text.endswith("0499.txt\n[700 more]")
    assert sink.progressed == ["looked at 1000 entries, 1000 match"]


async def test_read_file(tmp_path: Path) -> None:
    """A file's text comes whole, odd bytes replaced; a large one is cut with a note; what is no text is an error."""
    tree(tmp_path)
    assert await use(tmp_path, "read_file", path="docs/c.py") == "one two\nthree"
    (tmp_path / "odd.txt").write_bytes(b"caf\xe9 \xe2\x82\xac \xe2\x82")
    assert await use(tmp_path, "read_file", path="odd.txt") == "caf\ufffd € \ufffd"
    (tmp_path / "large.txt").write_text("€" * 40_000)
    text = await use(tmp_path, "read_file", path="large.txt")
    assert text.endswith("\n[cut after 65536 of 120000 bytes]")
    assert text.startswith("€" * 21_845 + "\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    with pytest.raises(ValueError, match="expected text, got binary data of 6 bytes"):
        await use(tmp_path, "read_file", path="image.png")


async def test_measure_file(tmp_path: Path) -> None:
    """Lines, words and bytes are exact over block borders, and progress is shown."""
    (tmp_path / "a.txt").write_text("one two\nthree")
    sink = Sink()
    measured = await use(tmp_path, "measure_file", path="a.txt", sink=sink)
    assert measured.text == "2 lines, 3 words, 13 bytes"
    assert sink.progressed == ["13 of 13 bytes"]
    words = "word " * 200_000 + "\n"
    (tmp_path / "b.txt").write_text("x" + words)
    (tmp_path / "c.txt").touch()
    assert (await use(tmp_path, "measure_file", path="b.txt")).structured == {
        "lines": 1,
        "words": 200_000,
        "bytes": 1_000_002,
    }
    assert (await use(tmp_path, "measure_file", path="c.txt")).text == "0 lines, 0 words, 0 bytes"


@pytest.mark.parametrize("name", ["read_file", "measure_file"])
async def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    """A missing file, a folder and a pipe each give an error that says so; a pipe is never waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"none\.txt: there is no such file"):
        await use(tmp_path, name, path="none.txt")
    for path in ("pipe", "folder", "."):
        with pytest.raises(ValueError, match="expected a file"):
            await use(tmp_path, name, path=path)


async def test_nothing_leads_out(tmp_path: Path) -> None:
    """`..`, absolute paths and links out of the folder are refused by every file tool; links within are followed."""
    root = tmp_path / "work"
    root.mkdir()
    tree(root)
    (tmp_path / "secret.txt").write_text("secret")
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    (root / "outside").symlink_to(tmp_path)
    (root / "within.txt").symlink_to(root / "a.py")
    for path in (
        "../secret.txt",
        str(tmp_path / "secret.txt"),
        "out.txt",
        "outside/secret.txt",
        "docs/../../secret.txt",
    ):
        for name in ("read_file", "measure_file"):
            with pytest.raises(PermissionError, match="outside the working folder"):
                await use(root, name, path=path)
    with pytest.raises(PermissionError, match="outside the working folder"):
        await use(root, "list_files", folder="outside")
    assert await use(root, "read_file", path="within.txt") == "one two\nthree"
    listed = await use(root, "list_files", recursive=True)
    assert "secret" not in listed.text.replace("outside", "")


def test_a_path_with_a_null_byte(tmp_path: Path) -> None:
    """A path that no system takes is a plain error."""
    with pytest.raises(ValueError, match="expected a path"):
        inside(tmp_path, "a\0b")


async def test_an_abort_stops_the_work(tmp_path: Path) -> None:
    """A tool that runs in a thread looks at the abort signal."""
    tree(tmp_path)
    abort = AbortSignal()
    abort.abort()
    assert (await use(tmp_path, "list_files", abort=abort)).structured == []
    assert (await use(tmp_path, "measure_file", abort=abort, path="a.py")).structured["bytes"] == 0
