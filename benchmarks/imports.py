"""W5: what `import agentloop` costs a fresh process, beyond a bare Python; one JSON line.

python -m benchmarks.imports 15
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATEMENTS = {"bare": "pass", "floor": "import asyncio, attrs, anyio", "agentloop": "import agentloop"}
UNWANTED = ("openai", "anthropic", "hypothesis", "argparse", "cattrs", "pydantic", "httpx", "numpy")


def _process(statement: str, byte_code: str) -> tuple[float, float]:
    """Milliseconds by the clock, and of CPU. Byte code is kept in a folder of its own, as an installation keeps it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = byte_code
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT, env=environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1e3, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def _modules(statement: str) -> list[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    ).stdout.split()


def _size_on_disk() -> dict[str, int]:
    """Bytes of the package and of what it depends on (extras left out), byte code not counted."""
    sizes = {"agentloop": sum(path.stat().st_size for path in (ROOT / "agentloop").rglob("*.py"))}
    todo = ["anyio", "attrs", "cattrs", "orjson"]
    while todo:
        name = todo.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        files = [found.locate_file(file) for file in found.files or () if file.suffix != ".pyc"]
        sizes[name] = sum(Path(str(file)).stat().st_size for file in files if Path(str(file)).is_file())
        needs = (need for need in found.requires or () if "extra ==" not in need)
        names = (re.match(r"[A-Za-z0-9._-]+", need) for need in needs)
        plain = [match.group().lower().replace("_", "-") for match in names if match]
        todo += [name for name in plain if name not in sizes]
    return sizes


def main(rounds: str) -> None:
    """Measure and print: medians of the processes, in turn, of each statement."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in STATEMENTS}
    with tempfile.TemporaryDirectory() as byte_code:
        for statement in STATEMENTS.values():
            _process(statement, byte_code)  # writes the byte code
        for _ in range(int(rounds)):
            for name, statement in STATEMENTS.items():
                times[name].append(_process(statement, byte_code))
    wall = {name: statistics.median(wall for wall, _ in pairs) for name, pairs in times.items()}
    cpu = {name: statistics.median(cpu for _, cpu in pairs) for name, pairs in times.items()}
    modules = {name: _modules(statement) for name, statement in STATEMENTS.items()}
    print(json.dumps({
        "workload": "W5",
        "ms": {name: wall[name] - wall["bare"] for name in ("floor", "agentloop")},
        "cpu_ms": {name: cpu[name] - cpu["bare"] for name in ("floor", "agentloop")},
        "modules": {name: len(names) for name, names in modules.items()},
        "unwanted": sorted({name.partition(".")[0] for name in modules["agentloop"]} & set(UNWANTED)),
        "bytes": _size_on_disk(),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
