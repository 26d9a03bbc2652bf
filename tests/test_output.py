"""What a running tool reports: streamed output, long and cut, and progress that nobody has taken yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentloop import Config, Context, ToolContext, ToolExecutionEnd, ToolExecutionUpdate, ToolResult, agent_loop, tool
from agentloop.grammar import check
from agentloop.messages import InlineData, Text
from agentloop.testing import ScriptedModel, call, collect

pytestmark = pytest.mark.anyio


async def played(work: Any, calls: int = 1, **changes: Any) -> tuple[list[ToolExecutionUpdate], list[ToolExecutionEnd]]:
    """The updates and ends of calls of this tool."""
    model = ScriptedModel([[call("work", id=f"c{number}") for number in range(calls)], "done"])
    events = await collect(agent_loop(["go"], Context(tools=[work]), Config(model=model, **changes)))
    check(events, outputs_kept=True)
    updates = [event for event in events if isinstance(event, ToolExecutionUpdate)]
    return updates, [event for event in events if isinstance(event, ToolExecutionEnd)]


@pytest.mark.parametrize("count", [1, 511, 512, 513, 1100, 1600])
async def test_many_pieces_are_one_text(count: int) -> None:
    """Each is told as it came, and the result's text is all of them in order, however many were joined on the way."""
    pieces = [f"{number} " for number in range(count)]

    @tool
    async def work(ctx: ToolContext) -> None:
        """Work."""
        for piece in pieces:
            await ctx.output(piece)

    updates, (end,) = await played(work)
    assert [update.delta for update in updates] == pieces
    assert end.result.text == "".join(pieces)


@pytest.mark.parametrize(
    ("pieces", "returned", "deltas"),
    [
        (["a\ud83d"], None, ["a", "\ufffd"]),
        (["a\ud83d", "\ude00"], None, ["a", "😀"]),
        (["a\ud83d", "b"], None, ["a", "\ufffdb"]),
        (["a\ud83d"], "a\ufffd!", ["a", "\ufffd", "!"]),
        (["a"], "other", ["a", "\nother"]),
        (["a"], "", ["a", "\n[no output]"]),
    ],
)
async def test_half_a_pair_at_the_end_of_the_output(pieces: list[str], returned: Any, deltas: list[str]) -> None:
    """It becomes the replacement when the output ends without the other half."""

    @tool
    async def work(ctx: ToolContext) -> Any:
        """Work."""
        for piece in pieces:
            await ctx.output(piece)
        return returned

    updates, (end,) = await played(work)
    if returned != "":
        assert [update.delta for update in updates] == deltas
    assert end.result.text == "".join([update.delta or "" for update in updates])


async def test_a_result_among_what_a_generator_yields_is_its_other_half() -> None:
    """Its blocks that are no text stand behind the output; the generator is closed before the call ends."""
    closed: list[str] = []
    data = InlineData("QUJD", "text/plain")

    @tool
    async def work() -> AsyncIterator[Any]:
        """Work."""
        try:
            yield "a"
            yield Text("b")
            yield ToolResult((data,), details={"n": 1})
            yield "c"
        finally:
            closed.append("closed")

    updates, (end,) = await played(work)
    assert [update.delta for update in updates] == ["a", "b", "c"]
    assert (end.result.content, end.result.details) == ((Text("abc"), data), {"n": 1})
    assert closed == ["closed"]


@pytest.mark.parametrize(("run_ahead", "bound"), [(0, 8), (8, 8), (12, 12)])
async def test_progress_that_nobody_took_is_replaced_by_the_newest(run_ahead: int, bound: int) -> None:
    """Of what one call reports at once as much as the bound is kept, the newest; the last one always."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        for number in range(30):
            ctx.progress(str(number))
        return "ok"

    updates, _ = await played(work, run_ahead=run_ahead)
    kept = [update.partial_result.text for update in updates if update.partial_result is not None]
    assert kept == [str(number) for number in range(30 - len(kept), 30)]
    assert len(kept) == bound


async def test_progress_replaces_that_of_its_own_call_only() -> None:
    """Another call's progress and all output stay."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        if ctx.tool_call_id == "c0":
            ctx.progress("first")
            ctx.output("streamed")
        else:
            for number in range(30):
                ctx.progress(str(number))
        return "streamed"

    updates, _ = await played(work, 2, run_ahead=0)
    first = [update for update in updates if update.tool_call_id == "c0"]
    assert [update.partial_result.text for update in first if update.partial_result is not None] == ["first"]
    assert [update.delta for update in first if update.delta is not None] == ["streamed"]
