"""The same workloads through other people's loops, side by side in one run: ratios to `floor2`, the least honest kernel.

    python -m benchmarks.peers                        all peers, all workloads, medians of five fresh processes
    python -m benchmarks.peers W1 W4 --only agno,pi   some
    python -m benchmarks.peers --quick                small sizes, one process each
    python -m benchmarks.peers --json results.json    what was measured, to a file as well
    python -m benchmarks.peers.plot results.json      the picture of it, as SVG

The first run makes an environment for each peer, in `AGENTLOOP_PEERS` or the user's cache folder; it needs pip, and npm for
the two that are not Python. A peer that cannot be had is left out, and the reason said. Run it on Python 3.13 to compare
with `docs/performance.md`: the peers get the Python that runs the command.

| workload | what | sizes |
| --- | --- | --- |
| W1 | one turn, one text of N deltas of 8 characters | 10,000 · 100,000 |
| W2 | T turns of 4 parallel calls to an async no-op tool, then a text | 100 · 500 |
| W3 | one call whose one string argument arrives in N deltas, then a text | 10,000 |
| W4 | N runs at once, each 20 deltas, 4 calls, 20 deltas, the model yielding to the scheduler before each delta | 1,000 |
| import | a fresh process that imports what a program would, less one that imports nothing | |

Each peer is driven through its public stream, by a model of its own kind that says the same pieces; tracing, telemetry,
printing and limits on turns are off, nothing is stored. What a delta costs so includes the peer's own chunk objects, which
each adapter for it pays. All figures are CPU time: helper threads of node and bun count, sleeping does not.
"""
