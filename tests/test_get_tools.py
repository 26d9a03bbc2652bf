"""`Config.get_tools`: the tools may change from one request to the next."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    CompactionEnd,
    Config,
    Context,
    MessageEnd,
    RequestBegin,
    RequestEnd,
    Tool,
    ToolExecutionEnd,
    ToolListReady,
    agent_loop,
    compact,
    user,
)
from agentloop.compaction import Summarize
from agentloop.grammar import check
from agentloop.testing import ScriptedModel, VirtualClock, call, collect

pytestmark = pytest.mark.anyio


def named(name: str) -> Tool:
    async def execute(arguments: dict[str, Any]) -> str:
        return f"{name} ran"

    return Tool(name, f"The tool {name}.", {"type": "object"}, execute)


async def played(model: ScriptedModel, get_tools: Any) -> tuple[list[Any], AgentEnd]:
    config = Config(model=model, get_tools=get_tools, clock=VirtualClock())
    events = await collect(agent_loop(["go"], Context(tools=[named("old")]), config))
    check(events)
    end = events[-1]
    assert isinstance(end, AgentEnd)
    return events, end


async def test_the_tools_change_with_the_next_request() -> None:
    """What is offered is what is dispatched; the list is told again only where it differs; None changes nothing."""
    lists = iter([None, [named("new")], [named("new")]])
    model = ScriptedModel([[call("old")], [call("old"), call("new")], "done"])
    events, _ = await played(model, lambda: next(lists))
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["old"], ["new"], ["new"]]
    assert [[spec.name for spec in e.tools] for e in events if isinstance(e, ToolListReady)] == [["old"], ["new"]]
    assert [e.error_code for e in events if isinstance(e, ToolExecutionEnd)] == [None, "unknown_tool", None]


async def test_a_schema_that_only_python_calls_equal_is_another_one() -> None:
    """`true` in the place of `1`: the model is told, and its arguments are held against the new schema."""

    def taking(value: Any) -> list[Tool]:
        properties = {"x": {"const": value}}
        return [attrs.evolve(named("old"), parameters={"type": "object", "properties": properties}, execute=ran)]

    async def ran(arguments: dict[str, Any]) -> str:
        return "ran"

    lists = iter([taking(1), taking(True), taking(True)])
    model = ScriptedModel([[call("old", {"x": 1})], [call("old", {"x": True})], "done"])
    events, _ = await played(model, lambda: next(lists))
    told = [e.tools[0].parameters["properties"]["x"]["const"] for e in events if isinstance(e, ToolListReady)]
    assert list(map(repr, told)) == ["1", "True"]
    assert [e.error_code for e in events if isinstance(e, ToolExecutionEnd)] == [None, None]


async def test_it_is_asked_again_for_a_retry() -> None:
    """A retry is a request like any other."""
    model = ScriptedModel([ConnectionError("gone"), [call("new")], "done"])
    lists = iter([None, [named("new")], None])
    _, end = await played(model, lambda: next(lists))
    assert end.stop_reason == "completed"
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["old"], ["new"], ["new"]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([named("a"), named("a")], "get_tools: tools: expected one tool of each name, got two named 'a'"),
        (["a"], "get_tools: tools[0]: expected a Tool (use @tool), got str"),
        (KeyError("nowhere"), "get_tools raised KeyError: 'nowhere'"),
    ],
)
async def test_nonsense_ends_the_run_before_a_request(given: Any, words: str) -> None:
    """What cannot be a list of tools, or an exception, ends the run, and the model is not asked."""

    async def get_tools() -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    model = ScriptedModel(["never"])
    _, end = await played(model, get_tools)
    assert (end.stop_reason, end.error_code, model.asked) == ("fatal", "callback_failed", 0)
    assert end.error_message == words


async def test_functions_that_cannot_be_compared_are_others() -> None:
    """A tool's function may be any object, also one whose comparison is no truth value."""

    class Odd:
        def __call__(self, arguments: dict[str, Any]) -> str:
            return "odd"

        def __eq__(self, other: object) -> Any:
            class Both:
                def __bool__(self) -> bool:
                    raise ValueError("neither true nor false")

            return Both() if isinstance(other, Odd) else NotImplemented

        __hash__ = object.__hash__

    def odd() -> Tool:
        return Tool("odd", "Odd.", {"type": "object"}, Odd())

    lists = iter([[odd()], [odd()]])
    events, end = await played(ScriptedModel([[call("odd")], "done"]), lambda: next(lists))
    assert end.stop_reason == "completed"
    assert [event.result.text for event in events if isinstance(event, ToolExecutionEnd)] == ["odd"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stop_between_the_prompt_of_a_compaction_and_its_attempt(fails: bool) -> None:
    """An attempt that a prompt announced begins and ends, without a request; a stop before that shows neither (G21)."""
    abort = AbortSignal()

    def get_tools() -> Any:
        if fails:
            raise OSError("no tools")

    model = ScriptedModel(["the summary"])
    config = Config(model=model, get_tools=get_tools, abort=abort, compaction=Summarize(), clock=VirtualClock())
    events = []
    async for event in compact(Context(messages=[user("before")]), config):
        events.append(event)
        if isinstance(event, MessageEnd) and not fails:
            abort.abort("enough")
    check(events)
    kinds = [type(event).__name__ for event in events if isinstance(event, RequestBegin | RequestEnd | CompactionEnd)]
    assert kinds == [*(() if fails else ("RequestBegin", "RequestEnd")), "CompactionEnd"]
    assert events[-1].error_code == ("callback_failed" if fails else "compaction_interrupted")
    assert model.requests == []
