"""One process of W6: events to lines and back, recorded to a file, resumed from it; one JSON line.

    python -m benchmarks.records deltas 10000 100000
    python -m benchmarks.records turns 50 500

`deltas` is the stream of W1, `turns` that of W2; the size is theirs, the unit is a record. The floor of writing is
`orjson.dumps` of the same records, that of reading `orjson.loads` of the same lines, that of recording one unbuffered
`os.write` of each line of the trace besides, and the run itself without a recorder.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from agentloop.events import Event
from agentloop.omni.codec import from_jsonl, jsonl
from agentloop.omni.recorder import record
from agentloop.omni.records import session_meta
from agentloop.omni.resume import resume_file
from agentloop.omni.trace import TraceWriter
from benchmarks import timing

WORKLOAD = {"deltas": "W1", "turns": "W2"}
VARIANT = {"deltas": "TextChunk", "turns": "agentloop"}
ROUNDS = 5
WARM_UP = {"deltas": 200, "turns": 5}


def events_of(stream: str, size: int) -> list[Event]:
    """The events of a run of the workload."""

    async def collect() -> list[Event]:
        return [event async for event in timing.VARIANTS[WORKLOAD[stream]][VARIANT[stream]](WORKLOAD[stream], size)]

    return asyncio.run(collect())


def seconds(work: Callable[[], Any]) -> float:
    """CPU time of one call, after a garbage collection."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


Works = dict[str, Callable[[], Any]]
"""By name: what is timed. The floor of `x` is `x floor`."""


def codec_works(events: Sequence[Event]) -> tuple[Works, int]:
    """The codec with its floors, and the number of records. Raises `SystemExit` if it loses anything."""
    lines = list(jsonl(events))
    records = [orjson.loads(line) for line in lines]
    if list(from_jsonl(lines)) != list(events):
        raise SystemExit("the codec is not lossless on this stream")
    return {
        "encode": lambda: deque(jsonl(events), maxlen=0),
        "encode floor": lambda: deque((orjson.dumps(record) for record in records), maxlen=0),
        "decode": lambda: deque(from_jsonl(lines), maxlen=0),
        "decode floor": lambda: deque(map(orjson.loads, lines), maxlen=0),
    }, len(lines)


async def _replay(events: Sequence[Event]) -> AsyncIterator[Event]:
    for event in events:
        yield event


def _record(events: Sequence[Event], traces: str) -> Path:
    """Record the events as a new session; gives its file."""

    async def recorded() -> Path:
        meta = session_meta(uuid.uuid4().hex, provider="none", model_id="scripted")
        with TraceWriter(traces, meta) as trace:
            await timing.drain(record(_replay(events), trace))
        assert trace.file is not None
        return trace.file

    return asyncio.run(recorded())


def recorder_works(events: Sequence[Event], traces: str) -> Works:
    """The recorder and the resume, with their floors: the same lines dumped and written, read and parsed."""
    file = _record(events, traces)
    lines = file.read_bytes().splitlines(keepends=True)
    stored = [orjson.loads(line) for line in lines]

    def floor() -> None:
        descriptor = os.open(Path(traces) / "floor.jsonl", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for one in stored:
            os.write(descriptor, orjson.dumps(one) + b"\n")
        os.close(descriptor)
        asyncio.run(timing.drain(_replay(events)))

    return {
        "record": lambda: _record(events, traces),
        "record floor": floor,
        "resume": lambda: resume_file(file),
        "resume floor": lambda: [orjson.loads(line) for line in file.read_bytes().splitlines()],
    }


def measure(works: Works, count: int) -> dict[str, float]:
    """Microseconds a record of each: the least of some rounds, in which they take turns."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, work in works.items():
            best[name] = min(best.get(name, float("inf")), seconds(work))
    return {name: least / count * 1e6 for name, least in best.items()}


def main(stream: str, *sizes: str) -> None:
    """Measure and print."""
    figures = {}
    for size in (WARM_UP[stream], *map(int, sizes)):
        events = events_of(stream, size)
        codec, count = codec_works(events)
        with tempfile.TemporaryDirectory() as traces:
            recorder = recorder_works(events, traces)
            figures[size] = measure(codec | recorder, count)
    del figures[WARM_UP[stream]]
    print(json.dumps({"workload": "W6", "stream": stream, "us": figures}))


if __name__ == "__main__":
    main(*sys.argv[1:])
