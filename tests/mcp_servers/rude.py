"""A server that misbehaves as its argument says. Plain JSON lines, no SDK: it starts quickly and may say anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

HOW = sys.argv[1]
OBJECT: dict[str, Any] = {"type": "object"}


def say(**fields: Any) -> None:
    """Send a message; byte by byte, and with the line ends of another system, if that is how."""
    line = json.dumps({"jsonrpc": "2.0", **fields}).encode()
    if HOW == "trickle":
        for byte in b"\r\n" + line + b"\r\n":
            os.write(1, bytes([byte]))
    else:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()


def main() -> None:
    """Answer until the input ends."""
    on_start()
    for line in sys.stdin:
        message = json.loads(line)
        match message["method"]:
            case "initialize":
                initialize(message)
            case "server/discover":
                discover(message["id"])
            case "tools/list":
                list_tools(message["id"])
            case "tools/call":
                progress(message["params"]["_meta"]["progressToken"])
                call(message["id"], message["params"]["arguments"].get("do", ""))
            case "notifications/cancelled":
                print(f"cancelled {message['params']['requestId']}", file=sys.stderr, flush=True)
            case "subscriptions/listen":
                say(id=message["id"], error={"code": -32601, "message": "no"})
    if HOW == "deaf":
        time.sleep(600)


def on_start() -> None:
    """What goes wrong before a word is said."""
    print(f"starting as {HOW}", file=sys.stderr, flush=True)
    match HOW:
        case "hang":
            time.sleep(600)
        case "exit":
            print("no \x1b[31mlicence\x1b[0m found", file=sys.stderr)
            sys.exit(7)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        case "orphan":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        case "noisy":
            print("Welcome!\n\n[1, 2]\n{}\n\xff", flush=True)
            os.write(1, b"\xff\xfe\n")
        case "flood":
            while True:
                os.write(1, b"no message\n" * 1000)
        case "endless":
            while True:
                os.write(1, b"x" * 10_000)


def initialize(message: Any) -> None:
    """The handshake."""
    if HOW == "modern":
        error = {"code": -32022, "message": "too old", "data": {"supported": ["2026-07-28"], "requested": "old"}}
        say(id=message["id"], error=error)
        return
    version = message["params"]["protocolVersion"]
    info = {"name": "rude", "version": "1"}
    capabilities = {"tools": {"listChanged": True}}
    say(id=message["id"], result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})


def discover(id: Any) -> None:
    """The newer handshake."""
    found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    say(id=id, result={**found, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})


def list_tools(id: Any) -> None:
    """One tool, or a list that is none."""
    name = "x" * 80 if HOW == "names" else "act"
    tools: list[Any] = [{"name": name, "inputSchema": OBJECT}]
    if HOW == "bad-list":
        tools = [{"name": "act", "inputSchema": "anything"}]
    if HOW == "names":
        tools += [{"name": "x" * 81, "inputSchema": OBJECT}, {"name": "a.b", "inputSchema": OBJECT}]
        tools += [{"name": "a_b", "inputSchema": OBJECT}, {"name": "a.b", "inputSchema": OBJECT}]
    say(id=id, result={"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})


def progress(token: Any) -> None:
    """Say that a call has begun."""
    say(method="notifications/progress", params={"progressToken": token, "progress": 0})


def call(id: Any, do: str) -> None:
    """Do as told."""
    match do:
        case "die":
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "pid":
            text = str(os.getpid())
        case "hang":
            return
        case "nonsense":
            say(id=id, result={"content": "no list"})
            return
        case "refuse":
            say(id=id, error={"code": -32602, "message": "unknown row"})
            return
        case "huge":
            text = "x" * 200_000
        case "noise":
            print("debug: here", flush=True)
            text = "heard"
        case _:
            text = "done"
    say(id=id, result={"content": [{"type": "text", "text": text}], "resultType": "complete"})


main()
