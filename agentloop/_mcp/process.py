"""An MCP server as a child process: its pipes as streams of messages, the tail of its errors, and its certain end.

Our own in place of the SDK's `stdio_client`, which knows no bound for a line or for noise, reads a long line in quadratic
time, gives the server our terminal for its errors and may take six seconds to close. A plain `subprocess.Popen` and pipes
that the event loop watches need no child watcher: nothing warns on any backend when a loop ends, and the last resort, a
kill and a wait, works without an event loop. POSIX only: elsewhere pipes cannot be watched.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from agentloop._mcp.servers import StdioServer

PATIENCE: Final = 0.5
"""Seconds for each of: leaving by itself once its input is closed, after SIGTERM, after SIGKILL."""
_CHUNK: Final = 64 * 1024
_TAIL: Final = 2 * 1024
_NOISE: Final = 1024 * 1024
"""Bytes on standard output that are no messages, between two messages, before the server is given up."""
_POLL: Final = 0.005

Received = MemoryObjectSendStream[SessionMessage | Exception]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class _Unbearable(Exception):
    """The server breaks a bound; the text says which."""


class ServerProcess:
    """One process of a server. `on_over` is called when nothing more can come from it."""

    def __init__(self, server: StdioServer, on_over: Callable[[], None]) -> None:
        """Start it. Raises `OSError` or `ValueError` when that fails."""
        self._server = server
        self._on_over = on_over
        self._errors = b""
        self._noise = 0
        self._last_noise = b""
        self._problem = ""
        self._over = anyio.Event()
        self._how = ""
        self._flushed = anyio.Event()
        self._process = subprocess.Popen(
            [server.command, *server.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=get_default_environment() | dict(server.env),
            cwd=server.cwd,
            start_new_session=True,
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in pipes if pipe is not None)
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)

    def account(self, problem: str) -> str:
        """Why it is over: what the session saw of it, how it ended by itself, what it last said."""
        how = self._problem or self._how
        words = f"{problem}; it {how}" if problem and how else problem or how or "closed its output"
        if self._last_noise:
            words += f"; on its standard output, where only messages belong: {_shown(self._last_noise)}"
        if self._errors.strip():
            words += f"; its standard error ends:\n{_shown(self._errors)}"
        return words

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """What comes in and what goes out; leaving it ends the process, cancelled or not."""
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](64)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read_messages, received)
                group.start_soon(self._read_errors)
                group.start_soon(self._write_messages, to_send)
                group.start_soon(self._watch)
                try:
                    yield incoming, outgoing
                finally:
                    outgoing.close()
                    with anyio.CancelScope(shield=True):
                        await self._stop()
                    group.cancel_scope.cancel()
        finally:
            self._kill()  # the last resort, when the event loop itself ends and lets nothing be awaited
            for stream in (received, incoming, outgoing, to_send):
                stream.close()

    # ------------------------------------------------------------ reading

    async def _read_messages(self, received: Received) -> None:
        pieces: list[bytes] = []
        size = 0
        with received:
            try:
                while chunk := await _read(self._stdout):
                    *lines, rest = chunk.split(b"\n")
                    for line in lines:
                        self._check_size(size + len(line))
                        await self._line(b"".join([*pieces, line]), received)
                        pieces, size = [], 0
                    pieces.append(rest)
                    size += len(rest)
                    self._check_size(size)
                self._note_noise(b"".join(pieces))
            except _Unbearable as error:
                self._problem = str(error)
            except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # it is over all the same
            finally:
                self._note_end()

    def _note_end(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._on_over()

    async def _watch(self) -> None:
        """Notice its end also where a child of its own keeps the pipes open."""
        await self._exit()
        with anyio.move_on_after(PATIENCE):  # what it said last is read first
            await self._over.wait()
        self._note_end()

    async def _exit(self) -> None:
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it is reaped already, or the kernel knows no such thing
                descriptor = os.pidfd_open(self._process.pid)
                try:
                    await anyio.wait_readable(descriptor)
                finally:
                    os.close(descriptor)
        while self._process.poll() is None:  # noqa: ASYNC110  # where the kernel does not tell
            await anyio.sleep(PATIENCE)

    def _check_size(self, size: int) -> None:
        if size > self._server.max_message:
            raise _Unbearable(f"sent a message of more than {self._server.max_message} bytes")

    async def _line(self, line: bytes, received: Received) -> None:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._note_noise(line)
            return
        self._noise, self._last_noise = 0, b""
        await received.send(SessionMessage(message))

    def _note_noise(self, line: bytes) -> None:
        if not line.strip():
            return
        self._noise += len(line)
        self._last_noise = line[:_TAIL]
        if self._noise > _NOISE:
            raise _Unbearable(f"wrote more than {_NOISE} bytes that are no MCP messages")

    async def _read_errors(self) -> None:
        with suppress(OSError, anyio.ClosedResourceError):
            while chunk := await _read(self._stderr):
                self._errors = (self._errors + chunk)[-_TAIL:]

    def _drain_errors(self) -> None:
        """What it wrote last, without waiting."""
        with suppress(OSError):
            while chunk := os.read(self._stderr, _CHUNK):
                self._errors = (self._errors + chunk)[-_TAIL:]

    # ------------------------------------------------------------ writing

    async def _write_messages(self, to_send: MemoryObjectReceiveStream[SessionMessage]) -> None:
        with to_send, suppress(OSError, anyio.ClosedResourceError):
            async for message in to_send:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._write(text.encode("utf-8", "replace") + b"\n")
        self._flushed.set()

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._stdin)

    # ------------------------------------------------------------ the end

    async def _stop(self) -> None:
        """Close its input, as the protocol says, then become insistent."""
        by_itself = self._over.is_set()
        if self._process.poll() is None:
            with anyio.move_on_after(PATIENCE / 2):
                await self._flushed.wait()
        anyio.notify_closing(self._stdin)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        ended = await self._exited()
        if by_itself:
            self._how = _how(self._process.returncode)
        if not ended:
            self._signal(signal.SIGTERM)
            if not await self._exited():
                self._signal(signal.SIGKILL)
                await self._exited()
        self._drain_errors()

    async def _exited(self) -> bool:
        # Polling: on asyncio 3.11 waiting for a process also waits for its pipes, which a grandchild may hold open.
        end = anyio.current_time() + PATIENCE
        while self._process.poll() is None:
            if anyio.current_time() >= end:
                return False
            await anyio.sleep(_POLL)
        return True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _kill(self) -> None:
        """End and reap it, and whatever it left in its group; waits for nothing but the kernel."""
        self._signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


async def _read(descriptor: int) -> bytes:
    """Some bytes; none at the end."""
    while True:
        await anyio.wait_readable(descriptor)
        with suppress(BlockingIOError):
            return os.read(descriptor, _CHUNK)


def _shown(data: bytes) -> str:
    """The end of a text in one piece, without what would steer a terminal."""
    text = data.decode("utf-8", "replace").strip()
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)


def _how(code: int | None) -> str:
    if code is None:
        return "closed its output and did not end by itself"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by the signal {-code}"
