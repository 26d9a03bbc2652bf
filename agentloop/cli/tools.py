"""The example tools of `agentloop run`: arithmetic, the time, and looking at files below the working folder.

All of them only read. File tools stay below their root: a path that leads out of it, through `..`, an absolute path or
a symbolic link, is refused. What they give back is bounded, whatever the files are like.
"""

from __future__ import annotations

import codecs
import datetime
import fnmatch
import os
import stat
import zoneinfo
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import anyio.to_thread

from agentloop.cli._arithmetic import evaluate
from agentloop.messages import ToolResult
from agentloop.tools import Tool, ToolContext, tool

_LIST_AT_MOST = 500
_WALK_AT_MOST = 50_000
_READ_AT_MOST = 64 * 1024
_PIECE = 4 * 1024
_BLOCK = 256 * 1024


def example_tools(root: Path | None = None) -> tuple[Tool, ...]:
    """The tools, confined to `root` (the working folder as it is now)."""
    folder = (root or Path.cwd()).resolve()
    return (calculate, current_time, _list_files(folder), _read_file(folder), _measure_file(folder))


@tool(label="Calculator", replay="safe")
async def calculate(expression: Annotated[str, "for example (3 + 4) * 2 ** 10"]) -> str:
    """Work out an arithmetic expression of numbers with + - * / // % ** and brackets."""
    return evaluate(expression)


@tool(label="Clock", replay="safe")
async def current_time(zone: Annotated[str, "a time zone such as UTC or Europe/Berlin"] = "local") -> str:
    """The date and time now."""
    if zone == "local":
        now = datetime.datetime.now().astimezone()
    else:
        try:
            now = datetime.datetime.now(zoneinfo.ZoneInfo(zone.upper() if zone.upper() in ("UTC", "GMT") else zone))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"zone: expected a time zone such as UTC or Europe/Berlin, got {zone!r}") from None
    return now.strftime("%A, %Y-%m-%d %H:%M:%S %Z")


def _list_files(root: Path) -> Tool:
    @tool(label="List files", replay="safe")
    def list_files(
        ctx: ToolContext,
        folder: Annotated[str, "below the working folder"] = ".",
        pattern: Annotated[str, "names to list, for example *.py"] = "*",
        recursive: Annotated[bool, "whether to look into folders as well"] = False,
    ) -> ToolResult:
        """List the files and folders in a folder, sorted; names that begin with a dot are left out."""
        start = inside(root, folder)
        if not start.is_dir():
            raise ValueError(f"folder: expected a folder, got {folder!r}")
        names: list[str] = []
        for seen, path in enumerate(_walk(start, recursive)):
            if seen >= _WALK_AT_MOST or ctx.abort.aborted:
                break
            if fnmatch.fnmatch(path.name, pattern):
                names.append(path.relative_to(root).as_posix() + ("/" if path.is_dir() else ""))
            if seen % 1_000 == 999:
                ctx.progress(f"looked at {seen + 1} entries, {len(names)} match")
        names.sort()
        lines = names[:_LIST_AT_MOST]
        if len(names) > len(lines):
            return ToolResult("\n".join([*lines, f"[{len(names) - len(lines)} more]"]), structured=lines)
        return ToolResult("\n".join(lines) or f"[nothing matches {pattern}]", structured=lines)

    return list_files


def _walk(start: Path, recursive: bool) -> Iterator[Path]:
    """Entries without a leading dot; links are not followed, folders that cannot be read are left out."""
    for folder, folders, files in os.walk(start):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from [Path(folder, name) for name in [*folders, *files] if not name.startswith(".")]
        if not recursive:
            return


def _read_file(root: Path) -> Tool:
    @tool(label="Read file", replay="safe")
    async def read_file(path: Annotated[str, "below the working folder"]) -> AsyncIterator[str]:
        """The text of a file, at most its first 64 KiB."""
        data, size = await anyio.to_thread.run_sync(_first_bytes, inside(root, path))
        if b"\0" in data[:1024]:
            raise ValueError(f"{path}: expected text, got binary data of {size} bytes")
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for at in range(0, len(data), _PIECE):
            yield decode(data[at : at + _PIECE])
        yield decode(b"", size <= len(data))
        if size > len(data):
            yield f"\n[cut after {len(data)} of {size} bytes]"

    return read_file


def _first_bytes(path: Path) -> tuple[bytes, int]:
    with _open_regular(path) as file:
        return file.read(_READ_AT_MOST), os.fstat(file.fileno()).st_size


def _measure_file(root: Path) -> Tool:
    @tool(label="Measure file", replay="safe")
    def measure_file(path: Annotated[str, "below the working folder"], ctx: ToolContext) -> ToolResult:
        """Count the lines, words and bytes of a file."""
        lines = words = size = 0
        last = b"\n"
        with _open_regular(inside(root, path)) as file:
            total = os.fstat(file.fileno()).st_size
            while (block := file.read(_BLOCK)) and size <= total and not ctx.abort.aborted:
                lines += block.count(b"\n")
                words += len(block.split()) - (not last.isspace() and not block[:1].isspace())
                size += len(block)
                last = block[-1:]
                ctx.progress(f"{size} of {total} bytes")
        lines += last != b"\n"
        counts = {"lines": lines, "words": words, "bytes": size}
        return ToolResult(", ".join(_counted(count, what) for what, count in counts.items()), structured=counts)

    return measure_file


def _counted(count: int, what: str) -> str:
    return f"{count} {what[:-1] if count == 1 else what}"


def inside(root: Path, path: str) -> Path:
    """The real path of `path` below `root`. Raises `PermissionError` for a path that leads out of it, `ValueError` for one that
    cannot be a path."""
    if "\0" in path:
        raise ValueError(f"path: expected a path, got {path!r}")
    real = (root / path).resolve()
    if not real.is_relative_to(root):
        raise PermissionError(f"{path}: outside the working folder")
    return real


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file; never waits for the other end of a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.name}: there is no such file") from None
    except OSError as error:
        raise OSError(f"{path.name}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name}: expected a file, got a folder or a device")
    return open(descriptor, "rb")
