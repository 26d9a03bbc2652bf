"""The runner of scripted scenarios in the neutral JSON format: `python -m agentloop.testing.scenarios FILE…`.

Each file is one scenario: a scripted model, tools, hooks, queues, aborts and a reader. What happens is printed as one JSON
object a line, the last one of each scenario `{"type": "result", …}`. Time is virtual: a scenario that takes seconds takes
none, and comes out the same on a busy machine. Retries are off, the stream is read step by step (`run_ahead=0`), and a
message that joins the steering queue also wakes `wait_for_steering`. Scenarios with features that this kernel does not have
(`asides`, `false_start`) print one line `{"type": "unsupported", …}`.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from agentloop.config import Config
from agentloop.context import Context
from agentloop.events import AgentEnd, Event, MessageUpdate
from agentloop.loop import Run, agent_loop, agent_loop_continue
from agentloop.testing._scenario_lines import Line, Lines, strings_in
from agentloop.testing._scenario_messages import Fields, message_of
from agentloop.testing._scenario_provider import Provider
from agentloop.testing._scenario_stage import Stage
from agentloop.testing._scenario_tools import ScriptedHooks, tool_of
from agentloop.testing.clock import VirtualClock

__all__ = ["load", "run_scenario"]

DEFAULT_LIMIT_MS = 1500


async def run_scenario(scenario: Fields, write: Callable[[Line], None]) -> None:
    """Run one scenario and hand each line of its output to `write`. Raises `ValueError` for anything that is not a scenario."""
    features = [name for name in ("asides",) if scenario.get(name)]
    features += ["false_start" for response in scenario.get("responses") or [] if response.get("false_start")][:1]
    if features:
        write({"type": "unsupported", "features": features})
        return
    await _Show(scenario, write).play()


class _Show:
    """One scenario on its stage, and the reader in front of it."""

    def __init__(self, scenario: Fields, write: Callable[[Line], None]) -> None:
        self._scenario = scenario
        self._write = write
        self._clock = VirtualClock()
        self._lines = Lines(strings_in(scenario))
        self._stage = Stage(scenario, self._clock, self._lines, write)
        self._context = self._new_context()
        self._before = len(self._context.messages)
        self._reader: Fields = scenario.get("consumer") or {}
        self._outcome = "ok"
        self._error: str | None = None
        self._end: AgentEnd | None = None
        self._first_update: tuple[MessageUpdate, Any] | None = None

    def _new_context(self) -> Context:
        tools = [tool_of(self._stage, tool) for tool in self._scenario.get("tools") or []]
        messages = [message_of(message) for message in self._scenario.get("context") or []]
        return Context(self._scenario.get("system"), messages, tools)

    def _config(self) -> Config:
        scenario, stage, hooks = self._scenario, self._stage, ScriptedHooks(self._stage)
        peeks = scenario.get("steering_peek", True) and scenario.get("interrupt_mode") != "wait"
        deadline = scenario.get("deadline_ms")
        return Config(
            model=Provider(stage),
            clock=self._clock,
            retry=None,
            run_ahead=0,
            abort=stage.abort,
            deadline=None if deadline is None else deadline / 1000,
            tool_execution=scenario.get("tool_execution", "parallel"),
            get_steering_messages=stage.queues["steering"].poll,
            get_follow_up_messages=stage.queues["follow_up"].poll,
            wait_for_steering=stage.queues["steering"].wait if peeks else None,
            before_tool_call=hooks.before_tool_call,
            after_tool_call=hooks.after_tool_call,
            transform_context=hooks.transform_context,
            convert_to_llm=hooks.convert_to_llm,
            finish_turn=hooks.finish_turn,  # type: ignore[arg-type]  # "end" or None
        )

    def _new_run(self, config: Config) -> Run:
        if self._scenario.get("mode", "prompt") == "continue":
            return agent_loop_continue(self._context, config)
        prompts = [message_of(prompt) for prompt in self._scenario.get("prompts") or []]
        return agent_loop(prompts, self._context, config)

    async def play(self) -> None:
        """Run, read, and print the result."""
        run = self._new_run(self._config())
        if self._reader:
            self._write({"type": "reader", **self._reader})
        async with anyio.create_task_group() as tasks:
            self._stage.begin(tasks)
            tasks.start_soon(self._watch, tasks.cancel_scope)
            await self._read(run)
            self._result()
            await run.aclose()
            tasks.cancel_scope.cancel()

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Give up after the scenario's limit."""
        await self._stage.pause(self._scenario.get("limit_ms", DEFAULT_LIMIT_MS))
        self._outcome = "hang"
        self._result()
        scope.cancel()

    async def _read(self, run: Run) -> None:
        await self._stage.pause(self._reader.get("pause_ms"))
        seen = 0
        try:
            async for event in run:
                line = self._seen(event)
                if line is None:
                    continue
                seen += 1
                if seen == self._reader.get("stop_after_events"):
                    await self._leave(run)
                    return
                await self._stage.pause(self._reader.get("delay_ms"))
        except ValueError:
            self._outcome, self._error = "rejected", "<cannot_continue>"
        except Exception as error:
            self._outcome, self._error = "raised", self._lines.reduced(str(error), "unknown")

    async def _leave(self, run: Run) -> None:
        self._outcome = "consumer_left"
        self._write({"type": "reader", "left": True})
        await run.aclose()
        await self._stage.pause(self._reader.get("linger_ms"))

    def _seen(self, event: Event) -> Line | None:
        """The reader takes an event."""
        if isinstance(event, AgentEnd):
            self._end = event
        if isinstance(event, MessageUpdate) and self._first_update is None:
            self._first_update = (event, event.message)
        line = self._lines.event(event)
        if line is not None:
            self._write(line)
            facts = {name: line.get(name) for name in ("type", "kind", "role", "tool")}
            self._stage.reach("event", call=line.get("call", line.get("id")), **facts)
        return line

    def _result(self) -> None:
        stage = self._stage
        line: Line = {"type": "result", "outcome": self._outcome}
        if self._outcome == "ok" and self._end is not None:
            line["messages"] = [self._lines.message(message) for message in self._end.messages]
        if self._error is not None:
            line["error"] = self._error
        first = self._first_update
        self._write({
            **line,
            "executed": stage.executed,
            "requests": stage.requests,
            "tools_still_running": stage.running,
            "queues_left": {name: len(queue.waiting) for name, queue in stage.queues.items()},
            "caller_context": {"before": self._before, "after": len(self._context.messages)},
            "snapshots_stable": None if first is None else first[0].message == first[1],
        })  # fmt: skip


# ---------------------------------------------------------------- the command


def load(path: str | Path) -> Mapping[str, Any]:
    """Read a scenario file. Raises `OSError`, or `ValueError` naming the file."""
    try:
        scenario = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a JSON object, got text that is not JSON ({error})") from None
    if not isinstance(scenario, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(scenario).__name__}")
    return scenario


def _print(line: Line) -> None:
    sys.stdout.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 when every file was run, 2 when one could not be read."""
    parser = argparse.ArgumentParser(
        prog="python -m agentloop.testing.scenarios", description="Run scripted scenarios."
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--backend", choices=["asyncio", "trio", "uvloop"], default="asyncio")
    given = parser.parse_args(arguments)
    logging.getLogger("agentloop").addHandler(logging.NullHandler())  # the scripted failures are no news
    options: dict[str, Any] = {"backend": given.backend, "backend_options": {}}
    if given.backend == "uvloop":
        options = {"backend": "asyncio", "backend_options": {"use_uvloop": True}}
    for file in given.files:
        try:
            anyio.run(run_scenario, load(file), _print, **options)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"{file}: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
