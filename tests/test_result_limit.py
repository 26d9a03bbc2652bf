"""`Config.max_result_characters`: what is too long for a history is cut, and says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Config, Context, ToolContext, ToolExecutionEnd, ToolExecutionUpdate, ToolResult, agent_loop, tool
from agentloop._results import cut_result
from agentloop.grammar import check
from agentloop.messages import Image, InlineData, Text, ToolResultMessage
from agentloop.testing import ScriptedModel, VirtualClock, call, collect

pytestmark = pytest.mark.anyio

NOTE = "[Cut off: these are the first {} of {} characters.]"


async def result_of(work: Any, limit: int | None, *, kept: bool = True, **config: Any) -> tuple[ToolResult, list[str]]:
    """The result of one call of a tool, and the deltas of its output. The grammar of the run is checked."""
    model = ScriptedModel([call("work"), "done"])
    run = agent_loop("go", Context(tools=[work]), Config(model=model, max_result_characters=limit, **config))
    events = await collect(run)
    check(events, outputs_kept=kept)
    [end] = [event for event in events if isinstance(event, ToolExecutionEnd)]
    [message] = [message for message in model.requests[-1].messages if isinstance(message, ToolResultMessage)]
    assert message.content == end.result.content
    return end.result, [event.delta for event in events if isinstance(event, ToolExecutionUpdate) if event.delta]


async def test_a_result_within_the_limit_or_without_one_is_whole() -> None:
    """None is the default, and a limit that is just reached cuts nothing."""
    assert Config(model=ScriptedModel()).max_result_characters is None

    @tool
    async def work() -> str:
        """Work."""
        return "x" * 1_000

    for limit in (None, 1_000):
        result, _ = await result_of(work, limit)
        assert result == ToolResult("x" * 1_000)


async def test_a_longer_result_is_cut_with_a_text_that_says_so() -> None:
    """The beginning stays, a line behind it says how long it was; it is no error, and the structured value stays."""

    @tool
    async def work() -> dict[str, str]:
        """Work."""
        return {"key": "x" * 100}

    result, _ = await result_of(work, 10)
    assert result.text == '{"key":"xx\n' + NOTE.format(10, 110)
    assert not result.is_error
    assert result.structured == {"key": "x" * 100}


async def test_an_exception_text_is_cut() -> None:
    """An error with a huge text is still that error."""

    @tool
    async def work() -> str:
        """Work."""
        raise ValueError("y" * 100)

    result, _ = await result_of(work, 10)
    assert result.is_error
    assert result.text == "y" * 10 + "\n" + NOTE.format(10, 100)


async def test_words_of_the_kernel_are_not_cut() -> None:
    """A limit shorter than what the kernel has to say leaves that whole."""

    @tool
    async def work() -> str:
        """Work."""
        await anyio.sleep_forever()
        return ""

    result, _ = await result_of(work, 1, clock=VirtualClock(), tool_timeout=5)
    assert result.text == "The tool timed out after 5 s."


@pytest.mark.parametrize("how", ["stream", "output", "thread"])
async def test_streamed_output_is_cut_and_the_tool_goes_on(how: str) -> None:
    """No delta past the limit, the note as a last one; the tool runs to its end, and the count is of all it gave."""
    ended = []

    async def stream() -> AsyncIterator[str]:
        """Stream."""
        for _ in range(1_000):
            yield "abc"
        ended.append(how)

    async def output(ctx: ToolContext) -> None:
        """Stream."""
        for _ in range(1_000):
            await ctx.output("abc")
        ended.append(how)

    def thread(ctx: ToolContext) -> None:
        """Stream."""
        for _ in range(1_000):
            ctx.output("abc")
        ended.append(how)

    work = tool({"stream": stream, "output": output, "thread": thread}[how], name="work")
    result, deltas = await result_of(work, 10)
    assert ended == [how]
    assert deltas == ["abc", "abc", "abc", "a", "\n" + NOTE.format(10, 3_000)]
    assert result.text == "".join(deltas)


@pytest.mark.parametrize(
    ("streamed", "returned", "expected"),
    [
        ("abc", "abcdefghijklm", "abcdefghij\n" + NOTE.format(10, 13)),  # repeats what it streamed, and goes on
        ("x" * 20, "x" * 20, "x" * 10 + "\n" + NOTE.format(10, 20)),  # repeats what was cut
        ("x" * 20, "x" * 15, "x" * 10 + "\n" + NOTE.format(10, 20)),  # a part of it
        ("x" * 20, "x" * 30, "x" * 10 + "\n" + NOTE.format(10, 30)),  # repeats it and goes on
        ("x" * 20, "exit code 1", "x" * 10 + "\n" + NOTE.format(10, 20) + "\nexit code \n" + NOTE.format(10, 11)),
        ("x" * 20, "ok", "x" * 10 + "\n" + NOTE.format(10, 20) + "\nok"),
        ("x" * 20, None, "x" * 10 + "\n" + NOTE.format(10, 20)),
        ("x" * 9 + "\ud83d", None, "x" * 9 + "\ufffd"),
        ("x" * 10 + "\ud83d", None, "x" * 10 + "\n" + NOTE.format(10, 11)),
    ],
)
async def test_output_and_what_is_returned_behind_it(streamed: str, returned: str | None, expected: str) -> None:
    """Both are measured alone; a value that repeats the output adds nothing twice."""

    @tool
    async def work(ctx: ToolContext) -> str | None:
        """Work."""
        await ctx.output(streamed)
        return returned

    result, deltas = await result_of(work, 10)
    assert result.text == expected == "".join(deltas)


async def test_output_cut_then_an_error() -> None:
    """What it raised stands behind the cut output, and is not lost with it."""

    @tool
    async def work(ctx: ToolContext) -> str:
        """Work."""
        await ctx.output("x" * 20)
        raise ValueError("disk full")

    result, deltas = await result_of(work, 10)
    assert result.is_error
    assert result.text == "x" * 10 + "\n" + NOTE.format(10, 20) + "\ndisk full" == "".join(deltas)


async def test_after_tool_call_sees_the_cut_and_is_cut_too() -> None:
    """What a hook makes of a result is held to the limit as well."""
    seen = []

    @tool
    async def work() -> str:
        """Work."""
        return "x" * 20

    def after(invocation: Any, result: ToolResult) -> ToolResult:
        seen.append(result.text)
        return ToolResult("z" * 30)

    result, _ = await result_of(work, 10, kept=False, after_tool_call=after)
    assert seen == ["x" * 10 + "\n" + NOTE.format(10, 20)]
    assert result.text == "z" * 10 + "\n" + NOTE.format(10, 30)


async def test_a_tool_whose_output_is_dropped_lets_the_others_work() -> None:
    """A stream that never waits is stepped in turn with everything else, also past the limit where nothing fills up."""
    turns = 0

    @tool
    async def work() -> AsyncIterator[str]:
        """Stream without a wait of its own."""
        for _ in range(1_000):
            yield "x"

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as group:
        group.start_soon(neighbour)
        await result_of(work, 10)
        assert turns > 900
        group.cancel_scope.cancel()


blocks = st.one_of(
    st.text(max_size=8).map(Text),
    st.just(Image("https://example.org/a.png")),
    st.just(InlineData("AAAA", "image/png")),
)


@given(content=st.lists(blocks, max_size=6), limit=st.integers(1, 20))
def test_the_text_of_all_blocks_together_is_held_to_the_limit(content: list[Any], limit: int) -> None:
    """The kept text is the beginning of the whole, and everything that is no text stays."""
    result = ToolResult(tuple(content))
    cut = cut_result(result, limit)
    whole = result.text
    if len(whole) <= limit:
        assert cut == result
        return
    note = NOTE.format(limit, len(whole))
    assert cut.text in (f"{whole[:limit]}\n{note}", f"{whole[:limit]}{note}")
    others = [block for block in content if not isinstance(block, Text)]
    assert [block for block in cut.content if not isinstance(block, Text)] == others


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(limit: int) -> None:
    """A limit that would leave nothing is a mistake."""
    with pytest.raises(ValueError, match="max_result_characters"):
        Config(model=ScriptedModel(), max_result_characters=limit)


async def test_what_comes_when_the_limit_is_reached_is_no_delta() -> None:
    """Output that is dropped leaves no empty piece behind."""

    @tool
    async def work(ctx: ToolContext) -> None:
        """Work."""
        for piece in ("x" * 10, "y", "z"):
            await ctx.output(piece)

    model = ScriptedModel([call("work"), "done"])
    events = await collect(agent_loop("go", Context(tools=[work]), Config(model=model, max_result_characters=10)))
    deltas = [event.delta for event in events if isinstance(event, ToolExecutionUpdate)]
    assert deltas == ["x" * 10, "\n" + NOTE.format(10, 12)]
