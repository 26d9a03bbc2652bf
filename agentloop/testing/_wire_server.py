"""A loopback server that plays recorded responses, whole or cut anywhere, and says what it saw of the client.

    with WireServer() as server:
        address = server.play(Play(body, headers={"content-type": "text/event-stream"}, drop_at=400))
        ...                                     # a client asks at `address` + any path
        server.requests[-1].client_closed       # set once the client has closed its connection

Standard library and threads only, so that it is the same under every event loop. It binds 127.0.0.1 and a free port.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import random
import re
import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import attrs

_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding", "content-encoding", "connection", "server"})


@attrs.frozen
class Play:
    """One answer: `status`, `headers`, `body`. Positions count bytes of the body, before any coding."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    endpoint: str = ""
    """Regular expression that the path must contain; another path is answered with 404."""
    chop: str = ""
    """Where writes end: "" (one write), `event`, `line`, a number of bytes, `random` or `random:SEED`."""
    framing: Literal["chunked", "length", "close"] = "chunked"
    """How the client learns the end of the body: chunks, a length, or the end of the connection."""
    gzip: bool = False
    """Content coding; flushed at every write. A length is then unknown: chunks are sent."""
    drop_at: int | None = None
    """Break the connection after so many bytes: the client sees an incomplete body."""
    reset: bool = False
    """With `drop_at`: break it with a TCP reset."""
    end_at: int | None = None
    """End the body properly after so many bytes: cut, but nothing tells."""
    stall_at: int | None = None
    """After so many bytes send nothing more, until the client goes away or the server stops."""


@attrs.define(eq=False)
class SeenRequest:
    """What the server saw of one request: `method`, path, `query` and `body`."""

    method: str
    path: str
    """Without the part that names the play."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    sent: int = 0
    """Bytes of the body that were sent so far."""
    stalled: threading.Event = attrs.field(factory=threading.Event)
    """Set when `stall_at` is reached."""
    client_closed: threading.Event = attrs.field(factory=threading.Event)
    """Set when the client's end of the connection was seen closed."""
    answered: threading.Event = attrs.field(factory=threading.Event)
    """Set when the answer is over: it was sent, broken off, or the client left in the middle of it."""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def pieces(body: bytes, chop: str) -> list[bytes]:
    """The writes of a body: `""`, `event`, `line`, a number of bytes, `random` or `random:SEED` (1 to 40 bytes each).

    Raises `ValueError` for anything else.
    """
    ends = sorted({end for end in _ends(body, chop) if 0 < end < len(body)})
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]


def _ends(body: bytes, chop: str) -> Iterator[int]:
    if chop == "":
        return
    if chop in ("event", "line"):
        events = chop == "event" and re.search(rb"\r?\n\r?\n", body)
        for found in re.finditer(rb"\r\n\r\n|\n\n|\r\r" if events else rb"\r\n|\n|\r", body):
            yield found.end()
    elif re.fullmatch(r"random(:\d+)?", chop):
        chance, end = random.Random(int(chop.partition(":")[2] or 0)), 0
        while end < len(body):
            end += chance.randint(1, 40)
            yield end
    elif re.fullmatch(r"[1-9]\d*", chop):
        yield from range(int(chop), len(body), int(chop))
    else:
        raise ValueError(f"chop: expected event, line, a number of bytes, random or random:SEED, got {chop!r}")


class WireServer:
    """The server; a context manager. Leaving it breaks what is still open and waits for every thread."""

    def __init__(self) -> None:
        self.requests: list[SeenRequest] = []
        """All requests, in order of arrival."""
        self._plays: dict[str, list[Play]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> WireServer:
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.wire = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self._http.shutdown()
        with self._lock:
            for connection in self._connections:
                _shut(connection)
        self._http.server_close()
        self._thread.join()

    def play(self, *plays: Play) -> str:
        """An address that answers with these plays, one after the other, the last one again and again."""
        with self._lock:
            token = f"play-{len(self._plays) + 1}"
            self._plays[token] = list(plays)
        return f"http://127.0.0.1:{self._http.server_address[1]}/{token}"

    def _next(self, token: str) -> Play | None:
        with self._lock:
            plays = self._plays.get(token)
            return None if not plays else plays.pop(0) if len(plays) > 1 else plays[0]

    def _saw(self, request: SeenRequest) -> None:
        with self._lock:
            self.requests.append(request)

    def _track(self, connection: socket.socket, opened: bool) -> None:
        with self._lock:
            (self._connections.add if opened else self._connections.discard)(connection)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        connection.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128
    wire: WireServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that goes away is what half of the plays are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    seen: SeenRequest | None = None
    closed_here = False

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.wire._track(self.connection, True)

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client went away while we wrote
            super().handle()  # returns when the client closed its end, or when we are to close

    def finish(self) -> None:
        self.server.wire._track(self.connection, False)
        if self.seen is not None and not (self.closed_here or self.server.wire._stopping.is_set()):
            self.seen.client_closed.set()
        with contextlib.suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        """Read the request, record it, answer with the next play of its address."""
        address = urlsplit(self.path)
        _, token, *rest = address.path.split("/", 2)
        self.seen = SeenRequest(
            self.command,
            "/" + "".join(rest),
            dict(parse_qsl(address.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            self._body(),
        )
        self.server.wire._saw(self.seen)
        play = self.server.wire._next(token)
        if play is None or not re.search(play.endpoint, self.seen.path):
            play = Play(b'{"error": {"message": "no recorded response answers at this path"}}', 404)
        try:
            self._answer(play, self.seen)
        finally:
            self.seen.answered.set()

    do_GET = do_POST

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, play: Play, seen: SeenRequest) -> None:
        framing = "chunked" if play.gzip and play.framing == "length" else play.framing
        limits = [play.drop_at, play.end_at, play.stall_at, len(play.body)]
        end = min(limit for limit in limits if limit is not None)
        broken = play.drop_at is not None or play.stall_at is not None
        self._head(play, framing, len(play.body) if broken else end)
        write = _Writer(self.wfile, framing == "chunked", play.gzip)
        for piece in pieces(play.body, play.chop):
            piece = piece[: end - seen.sent]
            write.body(piece)
            seen.sent += len(piece)
            if seen.sent >= end:
                break
        if play.stall_at is not None and play.stall_at == end:
            seen.stalled.set()
            self._wait_for_client()
            self.close_connection = True
        elif play.drop_at is not None:
            self._drop(play.reset)
        else:
            write.end()

    def _head(self, play: Play, framing: str, length: int) -> None:
        self.send_response_only(play.status)
        for name, value in play.headers.items():
            if name.lower() not in _FRAMING_HEADERS:
                self.send_header(name, value)
        if play.gzip:
            self.send_header("content-encoding", "gzip")
        if framing == "chunked":
            self.send_header("transfer-encoding", "chunked")
        elif framing == "length":
            self.send_header("content-length", str(length))
        else:
            self.send_header("connection", "close")
            self.close_connection = self.closed_here = True
        self.end_headers()
        self.wfile.flush()

    def _drop(self, reset: bool) -> None:
        self.close_connection = self.closed_here = True
        if reset:  # closing with unsent data lingering for zero seconds is what sends a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            _shut(self.connection)

    def _wait_for_client(self) -> None:
        """Until the client closes its end, or the server stops."""
        self.connection.settimeout(0.02)
        while not self.server.wire._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                if not self.connection.recv(4096):
                    return


class _Writer:
    """Writes pieces of a body in their framing and coding."""

    def __init__(self, out: Any, chunked: bool, gzip: bool) -> None:
        self._out = out
        self._chunked = chunked
        self._coder = zlib.compressobj(6, zlib.DEFLATED, 31) if gzip else None

    def body(self, piece: bytes) -> None:
        if self._coder is not None:
            piece = self._coder.compress(piece) + self._coder.flush(zlib.Z_SYNC_FLUSH)
        self._write(piece)

    def end(self) -> None:
        if self._coder is not None:
            self._write(self._coder.flush())
        if self._chunked:
            self._out.write(b"0\r\n\r\n")
        self._out.flush()

    def _write(self, piece: bytes) -> None:
        if piece:
            self._out.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self._chunked else piece)
            self._out.flush()
