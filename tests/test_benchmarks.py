"""The benchmarks: each variant does the whole work, and the report says what was measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentloop.errors import GrammarError
from agentloop.events import TurnStart
from agentloop.grammar import Checker
from agentloop.omni.codec import encode


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    from benchmarks import report

    return report


@pytest.fixture
def timing(report: ModuleType) -> ModuleType:
    from benchmarks import timing

    return timing


@pytest.mark.parametrize(
    ("workload", "variant"),
    [
        *[("W1", variant) for variant in ("floor", "floor2", "str", "TextChunk")],
        *[(workload, variant) for workload in ("W2", "W3", "W4") for variant in ("floor", "floor2", "agentloop")],
        *[("W7", variant) for variant in ("floor", "floor2", "Agent", "view")],
    ],
)
def test_each_variant_does_the_whole_work(timing: ModuleType, workload: str, variant: str) -> None:
    """All characters, all results, the tool saw its whole argument; less is refused."""
    timing.check(workload, variant, 7)

    full = timing.VARIANTS[workload][variant]
    timing.VARIANTS[workload][variant] = lambda workload, size: full("W1", 1)
    try:
        with pytest.raises(SystemExit, match=f"{workload} {variant} 7: saw"):
            timing.check(workload, variant, 7)
    finally:
        timing.VARIANTS[workload][variant] = full


def test_times_are_a_unit_of_each_variant_at_each_size(timing: ModuleType) -> None:
    """Sizes and variants in the order in which they were asked for."""
    costs = timing.measure("W2", [2, 3], rounds=1)
    assert list(costs) == [2, 3]
    assert all(list(cost) == ["floor", "floor2", "agentloop"] and min(cost.values()) > 0 for cost in costs.values())


@pytest.fixture
def guarantees(report: ModuleType) -> ModuleType:
    from benchmarks import guarantees

    return guarantees


def test_a_guarantee_that_is_switched_off_is_back_afterwards(guarantees: ModuleType, timing: ModuleType) -> None:
    """Without each, and without all, the run does the whole work; outside, an event that may not come is refused."""
    for names in (*[(name,) for name in guarantees.GUARANTEES], tuple(guarantees.GUARANTEES)):
        with guarantees.off(names):
            timing.check("W2", "agentloop", 7)
    with guarantees.off(guarantees.GUARANTEES):
        Checker().feed(TurnStart(3))
    with pytest.raises(GrammarError):
        Checker().feed(TurnStart(3))


def test_what_guarantees_cost_is_told_of_each(guarantees: ModuleType) -> None:
    """A figure of the floor, of all, without each, without all."""
    costs = guarantees.measure(turns=2, rounds=1)
    assert list(costs) == ["floor2", "all", *guarantees.GUARANTEES, "all three"]
    assert min(costs.values()) > 0


def run(ours: float, floor2: float, larger: float) -> dict[str, Any]:
    small = {"floor": 1.0, "floor2": floor2, "agentloop": ours}
    return {"us": {"10": small, "100": {**small, "agentloop": larger}}}


def test_ratios_and_growths_are_medians_of_what_each_process_saw(report: ModuleType) -> None:
    """A process on a slow machine has slow floors too; only the largest size is held against the limits."""
    small, large = report.timing_rows("W2", [run(4, 1, 4), run(80, 10, 96), run(9, 1, 12)])
    assert (small.value, small.floor2, small.ratio, small.growth, small.over) == (9, 1, 8, None, "")
    assert (large.value, large.ratio, large.growth, large.over) == (12, 9.6, 1.2, "ratio, growth")


def test_growth_that_the_floor_has_too_is_not_held_against_the_loop(report: ModuleType) -> None:
    """It is printed as it was; only what goes beyond `floor2`'s own growth is over."""

    def grown(floor2: float) -> dict[str, Any]:
        small = {"floor": 1.0, "floor2": 1.0, "agentloop": 4.0}
        return {"us": {"10": small, "100": {**small, "floor2": floor2, "agentloop": 6.0}}}

    assert [(row.growth, row.over) for row in report.timing_rows("W2", [grown(1.4)])][1] == (1.5, "")
    assert [(row.growth, row.over) for row in report.timing_rows("W2", [grown(0.5)])][1] == (1.5, "ratio, growth")


def test_limits_of_imports_and_memory(report: ModuleType) -> None:
    """Over the limit is said with what it is that is over."""
    imports = {"ms": {"floor": 80, "agentloop": 181}, "cpu_ms": {"floor": 80, "agentloop": 170}}
    imports |= {
        "modules": {"floor": 100, "agentloop": 150},
        "unwanted": ["cattrs"],
        "bytes": {"agentloop": 5, "anyio": 6},
    }
    rows = report.import_rows(imports)
    assert [(row.value, row.over) for row in rows] == [(181, "time"), (170, ""), (150, "cattrs"), (11, "")]
    rows = report.memory_rows(
        {
            ("W2", "agentloop", 10): [1_000],
            ("W2", "floor2", 10): [500],
            ("W2", "agentloop", 20): [1_900, 2_000, 2_500],
            ("W2", "floor2", 20): [1_000],
            ("W2", "agentloop", 80): [15_200],
            ("W2", "floor2", 80): [4_000],
            ("idle", "agentloop", 10): [500_000],
            ("idle", "floor2", 10): [20_000],
        }
    )
    assert [(row.value, row.floor2, row.growth, row.over) for row in rows] == [
        (100, 50, None, ""),
        (100, 50, None, ""),
        (190, 50, 2.2, "growth"),
        (50_000, 2_000, None, "bytes"),
    ]


def test_the_table_lines_up(report: ModuleType) -> None:
    """One line a row below the head, with numbers that a person can read."""
    lines = report.table(report.timing_rows("W2", [run(4, 1, 12_345.6)])).splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "W2 agentloop 10 4.00 µs 1.00 1.00 4.00 6.00 4.00",
        "W2 agentloop 100 12,346 µs 1.00 1.00 12,346 3,086 6.00 4.00 over: ratio, growth",
    ]
    assert len({line.index("µs") for line in lines[1:]}) == 1


@pytest.mark.parametrize("stream", ["deltas", "turns"])
def test_records_are_written_read_recorded_and_resumed(report: ModuleType, stream: str, tmp_path: Path) -> None:
    """What is timed of W6 does its work: nothing is lost in the codec, the file holds the trace, resume reads it."""
    from benchmarks import records as w6

    events = w6.events_of(stream, 1)
    codec, count = w6.codec_works(events)
    recorder = w6.recorder_works(events, str(tmp_path))
    file = recorder["record"]()
    assert count == len(encode(events))
    assert recorder["resume"]().messages == events[-1].messages
    assert len(file.read_bytes().splitlines()) == len(recorder["resume floor"]())
    rows = report.record_rows([{"stream": stream, "us": {1: w6.measure(codec | recorder, count)}}])
    assert [row.variant.partition(",")[0] for row in rows] == ["encode", "decode", "record", "resume"]
