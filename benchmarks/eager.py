"""What eager tools save: a reply with calls at its front that goes on streaming, with and without, on a virtual clock.

    python -m benchmarks.eager

Each row is one turn: the reply streams for so long in all, its calls are complete after so long, each of its tools takes so
long. The times are those of the run, not of this machine; the last line is real: what a reply without an eligible call costs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from agentloop import AgentEnd, Config, Context, agent_loop, tool
from agentloop.model import BlockEnd
from agentloop.testing import ScriptedModel, VirtualClock, call, sleep

ROWS = ((0.5, 4.0, 1.0, 1), (0.5, 4.0, 3.0, 4), (0.5, 1.0, 3.0, 4), (1.0, 1.0, 3.0, 1), (0.2, 2.0, 10.0, 2))
"""(calls complete after, reply lasts, a tool takes, calls), in seconds."""


async def turn(complete: float, lasts: float, takes: float, calls: int, eager: bool) -> float:
    """How long the run of one such turn (and a reply without calls) takes, in virtual seconds."""
    clock = VirtualClock()

    @tool(replay="safe")
    async def read(n: int) -> str:
        """Read for a while."""
        await clock.sleep(takes)
        return str(n)

    streamed = [step for n in range(calls) for step in (sleep(complete / calls), call("read", {"n": n}), BlockEnd())]
    model = ScriptedModel([[*streamed, sleep(lasts - complete)], "done"], clock=clock)
    async for event in agent_loop(["go"], Context(tools=[read]), Config(model=model, clock=clock, eager_tools=eager)):
        if isinstance(event, AgentEnd):
            event.raise_for_error()
    return clock.now()


async def overhead(eager: bool) -> float:
    """Real microseconds of a turn with four calls of an unsafe tool, which nothing can begin early."""

    @tool
    async def noop(x: int) -> str:
        """Do nothing."""
        return "ok"

    turns = 200
    model = ScriptedModel([[call("noop", {"x": n}) for n in range(4)]] * turns + ["done"])
    began = time.perf_counter()
    async for _ in agent_loop(["go"], Context(tools=[noop]), Config(model=model, eager_tools=eager)):
        pass
    return (time.perf_counter() - began) / turns * 1e6


async def main() -> None:
    """Print the table."""
    print("calls  complete  reply  tool   off     on   saved")
    for complete, lasts, takes, calls in ROWS:
        times = [await turn(complete, lasts, takes, calls, eager) for eager in (False, True)]
        saved: Any = 100 * (1 - times[1] / times[0])
        shown = f"{calls:5} {complete:7.1f} s {lasts:4.1f} s {takes:3.0f} s"
        print(f"{shown} {times[0]:4.1f} s {times[1]:4.1f} s  {saved:3.0f} %")
    rounds = [[await overhead(eager) for eager in (False, True)] for _ in range(9)]
    off, on = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"a turn in which nothing may begin early: {off:.0f} µs off, {on:.0f} µs on")


if __name__ == "__main__":
    asyncio.run(main())
