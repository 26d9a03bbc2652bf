"""`python -m fuzz [TARGET…] [--seconds N]`: feed each target for a while, with atheris where it is installed.

Without atheris (`--plain`, or where it cannot be installed) a plain mutator of the corpus takes its place: slower at finding,
but it needs nothing. Each target runs in a process of its own. An input that breaks a promise is written to
`fuzz/found/TARGET/`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from fuzz import mutate

HERE = Path(__file__).parent
MAX_LENGTH = 4_096
SLOW = 5.0
"""Seconds that one input may take."""


def main(given: Sequence[str] | None = None) -> int:
    """The command."""
    known = sorted(path.name for path in mutate.CORPUS.iterdir())  # the targets are imported only once instrumented
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the parsers.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(known)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default: 60)")
    parser.add_argument("--plain", action="store_true", help="the plain mutator, also where atheris is installed")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    names = arguments.targets or known
    for name in names:
        if name not in known:
            parser.error(f"expected one of {', '.join(known)}, got {name}")
    plain = arguments.plain or importlib.util.find_spec("atheris") is None
    if arguments.here:
        return run_plain(names[0], arguments.seconds) if plain else run_atheris(names[0], arguments.seconds)
    failed = [name for name in names if not _in_a_process(name, arguments.seconds, plain)]
    print(f"broken: {', '.join(failed)}" if failed else "nothing broke", flush=True)
    return 1 if failed else 0


def _in_a_process(name: str, seconds: float, plain: bool) -> bool:
    command = [sys.executable, "-m", "fuzz", name, "--here", "--seconds", str(seconds), *(["--plain"] if plain else [])]
    return subprocess.run(command, cwd=HERE.parent, check=False).returncode == 0


def run_atheris(name: str, seconds: float) -> int:
    """One target under libFuzzer, guided by coverage."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["agentloop"]):
        from fuzz.targets import TARGETS
    for folder in (HERE / "found" / name, HERE / "work" / name):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={max(1, round(seconds))}", f"-max_len={MAX_LENGTH}", f"-timeout={round(SLOW)}", "-verbosity=0",
        "-print_final_stats=1", "-rss_limit_mb=4096", f"-artifact_prefix={HERE / 'found' / name}/",
    ]  # fmt: skip
    atheris.Setup([f"fuzz-{name}", *options, str(HERE / "work" / name), str(HERE / "corpus" / name)], TARGETS[name])
    atheris.Fuzz()
    return 0  # libFuzzer ends the process itself


def run_plain(name: str, seconds: float, seed: int = 0) -> int:
    """One target under the plain mutator. Returns 1, with the input kept, when a promise was broken."""
    from fuzz.targets import TARGETS

    target, generator, corpus = TARGETS[name], random.Random(seed), mutate.corpus(name)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutate.mutated(generator, corpus)[:MAX_LENGTH]
        begun = time.monotonic()
        try:
            target(data)
            if time.monotonic() - begun > SLOW:
                raise TimeoutError(f"expected an answer within {SLOW} s")
        except Exception:
            traceback.print_exc()
            folder = HERE / "found" / name
            folder.mkdir(parents=True, exist_ok=True)
            place = folder / f"crash-{hashlib.sha1(data).hexdigest()}"
            place.write_bytes(data)
            print(f"{name}: broke after {count} inputs: {place}", flush=True)
            return 1
        count += 1
    print(f"{name}: {count} inputs, nothing broke", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
