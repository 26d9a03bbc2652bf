"""What the loop itself costs: workloads with an in-process scripted model, each against a floor in the same process.

    python -m benchmarks              all, full sizes, medians of five fresh processes each
    python -m benchmarks W1 W2        some
    python -m benchmarks --quick      small sizes, one process each: does it run, and roughly how fast
    python -m benchmarks --json       one JSON object instead of the table
    python -m benchmarks --check      exit 1 if a limit of `report.LIMITS` is broken
    python -m benchmarks --against benchmarks/baseline-3.13.json    exit 1 if a ratio is 15 % above the recorded one
    python -m benchmarks --record benchmarks/baseline-3.13.json     record the ratios; those of other workloads stay
    python -m benchmarks.peers        the same workloads through other people's loops

| workload | what | unit |
| --- | --- | --- |
| W1 | one turn, one text of N deltas of 8 characters, every event consumed; as `str` and as `TextChunk` | delta |
| W2 | T turns of 4 parallel calls to an async no-op tool with `{"x": 3}`, then a text | turn |
| W3 | one call whose one string argument arrives in N deltas, then a text | delta |
| W4 | many runs at once, each 20 deltas, 4 calls, 20 deltas, the model yielding to the scheduler before each delta | run |
| W5 | `import agentloop` in a fresh process beyond bare Python; modules; size on disk | |
| W6 | events to records to JSON lines and back; a trace through the recorder to a file; of turns of calls too | record |
| W7 | `Agent` with two subscribers over W1; the view over W1 | delta |
| W8 | memory: growth of the peak over W1 and W2 with a consumer that keeps nothing; many idle runs | byte |

`floor` is the work without any framework: a bare async generator that yields one frozen object a delta (W1, W3), or a
hand-written loop without events (W2, W4). `floor2` is the smallest honest kernel: a model generator, and a loop generator
that accumulates and yields typed events. Ratios are to `floor2`; *growth* is the cost of a unit at the larger size over
that at the smaller. Times are CPU times; they vary between machines and Python versions, the ratios much less.
"""
