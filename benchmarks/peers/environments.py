"""An environment of its own for each peer, in a cache folder outside the repository; a reason where one cannot be had."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT = 900.0
"""Seconds that one installation may take."""


@attrs.frozen(kw_only=True)
class Peer:
    """Somebody's loop: who drives it, what must be installed for it, what a program of its own would import.

    `runtime` is "here" (this interpreter), "python" (an environment made from it), "node" or "bun".
    """

    name: str
    driver: str
    runtime: str
    packages: tuple[str, ...] = ()
    imports: str = ""
    overrides: dict[str, str] = attrs.field(factory=dict)


RUNTIMES = {"node": "24.21.0", "bun": "1.4.5"}
"""What runs the peers that are not Python: programs that come as npm packages, one for each system."""

PEERS = (
    Peer(name="floor2", driver="drive_floor2", runtime="here", imports="import asyncio, attrs"),
    Peer(name="agentloop", driver="drive_agentloop", runtime="here", imports="import agentloop"),
    Peer(
        name="pi (node)",
        driver="drive_pi.mjs",
        runtime="node",
        packages=("@earendil-works/pi-agent-core@1.6.0",),
        imports="@earendil-works/pi-agent-core/dist/index.js",
    ),
    Peer(
        name="oh-my-pi (bun)",
        driver="drive_omp.mjs",
        runtime="bun",
        packages=("@oh-my-pi/pi-agent-core@18.2.11",),
        imports="@oh-my-pi/pi-agent-core/src/index.ts",
        overrides={"@oh-my-pi/pi-natives": "18.2.3", "@oh-my-pi/pi-utils": "18.2.3"},
    ),
    Peer(
        name="strands",
        driver="drive_strands",
        runtime="python",
        packages=("strands-agents==1.62.0",),
        imports="import strands, strands.models",
    ),
    Peer(
        name="openai-agents",
        driver="drive_openai_agents",
        runtime="python",
        packages=("openai-agents==0.24.0",),
        imports="import agents",
    ),
    Peer(name="agno", driver="drive_agno", runtime="python", packages=("agno==3.1.10",), imports="import agno.agent"),
    Peer(
        name="langchain",
        driver="drive_langchain",
        runtime="python",
        packages=("langchain==1.5.2", "langgraph==1.2.24"),
        imports="import langchain.agents, langchain_core.language_models.chat_models",
    ),
    Peer(
        name="agent-framework",
        driver="drive_agent_framework",
        runtime="python",
        packages=("agent-framework-core==1.23.0",),
        imports="from agent_framework import Agent, BaseChatClient",
    ),
    Peer(
        name="pydantic-ai",
        driver="drive_pydantic_ai",
        runtime="python",
        packages=("pydantic-ai-slim==2.68.0",),
        imports="import pydantic_ai, pydantic_ai.models.function",
    ),
    Peer(
        name="google-adk",
        driver="drive_google_adk",
        runtime="python",
        packages=("google-adk==2.13.0",),
        imports="from google.adk.agents import LlmAgent; from google.adk.runners import InMemoryRunner",
    ),
)
"""Who is measured, the quick ones first, at the newest versions of November 2026."""


class Absent(Exception):
    """The peer cannot be had here; the text says why."""


@attrs.frozen(kw_only=True)
class Environment:
    """A peer that can be run: the words before the workload, and the folder of its packages (None: this interpreter)."""

    peer: Peer
    command: tuple[str, ...]
    folder: Path | None = None

    def importing(self, nothing: bool = False) -> list[str]:
        """The command of a process that imports the peer and ends; with `nothing`, of one that only ends."""
        program, peer = self.command[0], self.peer
        if self.folder is None or peer.runtime == "python":
            return [program, "-c", "pass" if nothing else peer.imports]
        code = "0" if nothing else f"await import({json.dumps(str(self.folder / 'node_modules' / peer.imports))})"
        return [program, *(["--input-type=module"] if peer.runtime == "node" else []), "-e", code]

    def variables(self) -> dict[str, str]:
        """The environment of its processes: this repository is seen by those of this interpreter alone; byte code is kept."""
        dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "NODE_OPTIONS")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, "PYTHONHASHSEED": "0"} | ({"PYTHONPATH": str(ROOT)} if self.peer.runtime == "here" else {})


def cache_folder() -> Path:
    """`AGENTLOOP_PEERS`, or a folder of ours in the user's cache."""
    if named := os.environ.get("AGENTLOOP_PEERS"):
        return Path(named).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentloop-peers"


def environment(peer: Peer, newest: bool = False) -> Environment:
    """Make it, unless it is there already. With `newest`, the pinned versions are dropped. Raises `Absent`."""
    if peer.runtime == "here":
        return Environment(peer=peer, command=(sys.executable, str(HERE / "run_peer.py"), peer.driver))
    packages = tuple(_unpinned(package) for package in peer.packages) if newest else peer.packages
    if peer.runtime == "python":
        folder = _folder(peer, (*packages, platform.python_version()))
        _once(folder, lambda: _python_packages(folder, packages))
        return Environment(
            peer=peer, folder=folder, command=(str(_python_of(folder)), str(HERE / "run_peer.py"), peer.driver)
        )
    overrides = {} if newest else peer.overrides
    folder = _folder(peer, (*packages, *overrides.values()))
    _once(folder, lambda: _node_packages(folder, packages, overrides))
    program = _program(peer.runtime)
    return Environment(
        peer=peer,
        folder=folder,
        command=(str(program), "--expose-gc", str(HERE / "run_peer.mjs"), peer.driver, str(folder)),
    )


def _unpinned(package: str) -> str:
    at = package.rfind("@")
    return package[:at] if at > 0 else package.partition("==")[0]


def _folder(peer: Peer, parts: Sequence[str]) -> Path:
    name = "".join(letter for letter in peer.name.replace(" ", "-") if letter.isalnum() or letter == "-")
    return cache_folder() / f"{name}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:10]}"


def _once(folder: Path, make: Callable[[], None]) -> None:
    """Make the folder, and mark it when all of it is there: half an installation is begun again."""
    if (folder / "complete").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make()
    (folder / "complete").touch()


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _python_packages(folder: Path, packages: Sequence[str]) -> None:
    _do([sys.executable, "-m", "venv", str(folder)], folder)
    _do([str(_python_of(folder)), "-m", "pip", "install", "--quiet", *packages], folder)


def _node_packages(folder: Path, packages: Sequence[str], overrides: dict[str, str]) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module", "overrides": overrides}))
    _do([_npm(), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *packages], folder)


def _program(runtime: str) -> Path:
    system = {"win32": "win"}.get(sys.platform, sys.platform) if runtime == "node" else platform.system().lower()
    arm = platform.machine() in ("arm64", "aarch64")
    if runtime == "node":
        package = f"node-{system}-{'arm64' if arm else 'x64'}"
    else:
        package = f"@oven/bun-{system}-{'aarch64' if arm else 'x64'}"
    folder = cache_folder() / f"{runtime}-{RUNTIMES[runtime]}"
    _once(folder, lambda: _node_packages(folder, [f"{package}@{RUNTIMES[runtime]}"], {}))
    return folder / "node_modules" / package / "bin" / (f"{runtime}.exe" if os.name == "nt" else runtime)


def _npm() -> str:
    if (found := shutil.which("npm")) is None:
        raise Absent("npm is not installed")
    return found


def _do(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise Absent(f"{Path(command[0]).name} took over {TIMEOUT:g} s") from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
        raise Absent(f"{Path(command[0]).name}: {wrong[-1].strip()[:160]}")
