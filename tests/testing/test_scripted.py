"""The scripted model plays exactly what its script says."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agentloop.errors import ModelError
from agentloop.messages import UserMessage, user
from agentloop.model import (
    BlockEnd,
    Finish,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from agentloop.testing import CUT, STALL, ScriptedModel, VirtualClock, call, collect, sleep, text, thinking

pytestmark = pytest.mark.anyio


def request(*messages: UserMessage) -> ModelRequest:
    return ModelRequest(None, list(messages or [user("go")]), (), {})


async def play(model: ScriptedModel, **kwargs: Any) -> list[Any]:
    return await collect(model(request()), **kwargs)


async def test_each_request_gets_the_next_reply() -> None:
    """Replies come in order, whole, and finish with `stop` by themselves."""
    model = ScriptedModel(["one", [TextChunk("two"), "three"]])
    assert await play(model) == ["one", Finish("stop")]
    assert not model.exhausted
    assert await play(model) == [TextChunk("two"), "three", Finish("stop")]
    assert model.exhausted


async def test_blocks() -> None:
    """The builders give blocks whose pieces are deltas, and which are ended."""
    model = ScriptedModel([[thinking("a", "b", fidelity={"signature": "s"}), text("c", "d"), call("f", {"x": "é"})]])
    assert await play(model) == [
        ThinkingChunk("a"),
        ThinkingChunk("b", fidelity={"signature": "s"}),
        BlockEnd(),
        TextChunk("c"),
        TextChunk("d"),
        BlockEnd(),
        ToolCallChunk('{"x": "é"}', "call_1", "f"),
        BlockEnd(),
        Finish("tool_use"),
    ]


async def test_call_ids_are_counted_as_played() -> None:
    """Calls without an id are numbered over the whole script, so that a rerun gives the same ids; "" stays none."""
    script = [[call("f"), call("g", id="mine")], [call("f"), call("f", id="")]]
    for _ in range(2):
        model = ScriptedModel(script)
        chunks = [*await play(model), *await play(model)]
        assert [chunk.id for chunk in chunks if isinstance(chunk, ToolCallChunk)] == ["call_1", "mine", "call_3", None]


async def test_call_in_pieces() -> None:
    """Pieces of a call's arguments are chunks of their own, only the first of which has its name and id."""
    model = ScriptedModel([call("f", pieces=['{"x"', ": 1}"])])
    assert await play(model) == [
        ToolCallChunk('{"x"', "call_1", "f"),
        ToolCallChunk(": 1}"),
        BlockEnd(),
        Finish("tool_use"),
    ]


@pytest.mark.parametrize("failure", [ModelError("overloaded", "busy"), ValueError("bug"), KeyError])
async def test_exceptions_are_raised_where_they_stand(failure: Any) -> None:
    """What comes before an exception is sent, then it is raised as it is."""
    model, seen = ScriptedModel([["half", failure, "never"]]), []

    async def read() -> None:
        async for chunk in model(request()):
            seen.append(chunk)

    with pytest.raises(failure if isinstance(failure, type) else type(failure)):
        await read()
    assert seen == ["half"]
    assert model.open_streams == 0


async def test_cut_sends_no_finish() -> None:
    """`CUT` stops the stream without a `Finish`, wherever it stands."""
    assert await play(ScriptedModel([["half", [CUT], "never"]])) == ["half"]


async def test_what_follows_a_finish_is_played() -> None:
    """A script may go on after its `Finish`, and then no other one is added."""
    assert await play(ScriptedModel([[Finish("length"), "late"]])) == [Finish("length"), "late"]


async def test_stall_stays_open_until_closed() -> None:
    """A stalled stream sends nothing more, counts as open, and can be cancelled."""
    model = ScriptedModel([["half", STALL]])
    stream = model(request())
    assert await anext(stream) == "half"
    with anyio.move_on_after(0.01) as scope:
        await anext(stream)
    assert scope.cancelled_caught
    assert model.open_streams == 0


async def test_waits_on_events_and_the_clock() -> None:
    """An event holds the reply up until it is set; a sleep passes on the model's own clock."""
    gate, clock = anyio.Event(), VirtualClock()
    model = ScriptedModel([["a", gate, sleep(3600), "b"]], clock=clock)
    stream = model(request())
    assert await anext(stream) == "a"
    gate.set()
    assert await anext(stream) == "b"
    assert clock.now() == 3600
    assert [chunk async for chunk in stream] == [Finish("stop")]


async def test_functions_of_the_request() -> None:
    """A function, sync or async, or a generator of either kind, is asked with the request and its answer played."""

    def echo(request: ModelRequest) -> str:
        return request.messages[-1].text  # type: ignore[union-attr]

    async def later(request: ModelRequest) -> Any:
        return [text("x"), lambda _: None]

    async def stream(request: ModelRequest) -> Any:
        yield "y"
        yield call("f")

    model = ScriptedModel([[echo, later, stream]])
    assert await play(model) == [
        "go",
        TextChunk("x"),
        BlockEnd(),
        "y",
        ToolCallChunk("{}", "call_1", "f"),
        BlockEnd(),
        Finish("tool_use"),
    ]


async def test_closing_closes_the_generators_of_the_script() -> None:
    """A stream that is closed early closes the script's own generators before `aclose` returns."""
    closed = []

    async def stream(request: ModelRequest) -> Any:
        try:
            yield "y"
            yield "z"
        finally:
            closed.append("inner")

    model = ScriptedModel([[stream, "never"]])
    await play(model, until=lambda chunk: chunk == "y")
    assert closed == ["inner"]
    assert model.open_streams == 0


async def test_requests_are_kept_as_they_stood() -> None:
    """A recorded request does not change when the list that it was made from does."""
    messages = [user("go")]
    model = ScriptedModel(["x", "y"])
    await collect(model(ModelRequest("system", messages, (), {"a": 1})))
    messages.append(user("later"))
    assert [kept.messages for kept in model.requests] == [(user("go"),)]
    assert model.requests[0].options == {"a": 1}


async def test_past_the_end_is_a_clear_failure() -> None:
    """One request too many is a failure that no retry repeats and that says how long the script is."""
    model = ScriptedModel(["only"])
    await play(model)
    with pytest.raises(ModelError, match="the script has 1 reply, this is request 2") as caught:
        await play(model)
    assert not caught.value.retryable


async def test_past_the_end_may_be_an_empty_stop() -> None:
    """With `past_end="stop"` the reply is empty, and whoever asked to know is told the request's number."""
    told: list[int] = []
    model = ScriptedModel([], past_end="stop", on_past_end=told.append)
    assert await play(model) == [Finish("stop")]
    assert told == [1]


async def test_a_wrong_step_says_what_it_is() -> None:
    """Something that is no step is named in the error, which no retry repeats: the next reply would hide it."""
    with pytest.raises(ModelError, match=r"expected a step .*, got int") as caught:
        await play(ScriptedModel([[1]]))
    assert (caught.value.code, caught.value.retryable) == ("invalid_input", False)


def test_a_call_is_of_a_name() -> None:
    """The tool itself in its place is refused where it is written."""
    with pytest.raises(TypeError, match=r"^call: expected the name of a tool, got function$"):
        call(test_a_call_is_of_a_name, {})  # type: ignore[arg-type]


def test_a_text_is_no_script() -> None:
    """A text alone would be a reply for each of its characters: it is refused, with what was meant."""
    with pytest.raises(TypeError, match=r"script: expected a list of replies, got a text; write \['hello'\]"):
        ScriptedModel("hello")


@pytest.mark.parametrize(("given", "kind"), [(b"hello", "bytes"), ({"text": "hello"}, "dict"), (3, "int")])
def test_what_is_no_list_is_no_script(given: Any, kind: str) -> None:
    """Bytes and mappings are iterables too, and their items no replies."""
    with pytest.raises(TypeError, match=rf"^script: expected a list of replies, got {kind}$"):
        ScriptedModel(given)


async def test_depth_is_no_limit() -> None:
    """A script nested a thousand deep plays like a flat one."""
    step: Any = "deep"
    for _ in range(5000):
        step = [step]
    assert await play(ScriptedModel([step])) == ["deep", Finish("stop")]
