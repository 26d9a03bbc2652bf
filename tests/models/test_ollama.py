"""Ollama's own API: what goes out, what comes in, and what its servers really do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import ModelError
from agentloop.loop import agent_loop
from agentloop.messages import (
    AssistantMessage,
    Image,
    InlineData,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
    user,
)
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.models.ollama import EventReader, Ollama, host_address, request_body
from agentloop.models.registry import resolve
from agentloop.testing.wire import Play, WireServer, load_cases, run_model
from agentloop.tools import tool
from tests import adapters

MODEL = "qwen3:8b"
LINES = {"content-type": "application/x-ndjson"}


# ---------------------------------------------------------------- helpers


def line(content: str | None = "", **message: Any) -> dict[str, Any]:
    return {"model": MODEL, "message": {"role": "assistant", "content": content, **message}, "done": False}


def call(name: str = "look", arguments: Any = None, **fields: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments or {}}, **fields}


def done(reason: str | None = "stop", **fields: Any) -> dict[str, Any]:
    said = {} if reason is None else {"done_reason": reason}
    return {**line(), "done": True, **said, "prompt_eval_count": 10, "eval_count": 5, **fields}


def read(*lines: Any) -> list[Any]:
    reader = EventReader()
    return [chunk for item in lines for chunk in reader.feed(item)]


def failure(*lines: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read(*lines)
    return caught.value


def reply(*blocks: Any, provider: str = "ollama", model: str = MODEL, **fields: Any) -> AssistantMessage:
    return AssistantMessage(blocks, "completed", provider=provider, model=model, **{"finish_reason": "stop", **fields})


def result(call_id: str, *content: Any, **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id, "look", content, **fields)


def body(*messages: Any, system: str | None = None, tools: Any = (), **options: Any) -> dict[str, Any]:
    return request_body(ModelRequest(system, messages or (user("x"),), tools, options), model=MODEL)


def sent(*messages: Any) -> Any:
    return body(*messages)["messages"]


def refusal(*messages: Any, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        body(*messages, **options)
    return caught.value


def ndjson(*lines: Any) -> bytes:
    return b"".join(json.dumps(item, ensure_ascii=False).encode() + b"\n" for item in lines)


def adapter(address: str, **options: Any) -> Ollama:
    return Ollama(MODEL, base_url=address, **options)


# ---------------------------------------------------------------- lines in


def test_thinking_then_text() -> None:
    """Each line's empty `content` is no text; the thinking ends where the text begins."""
    assert read(line(thinking="h"), line(thinking="m"), line("a"), line("b"), done()) == [
        ThinkingChunk("h", 0),
        ThinkingChunk("m", 0),
        BlockEnd(0),
        TextChunk("a", 1),
        TextChunk("b", 1),
        TextChunk("", 1),
        UsageChunk(Usage(0, 10, 5)),
        Finish("stop", {key: value for key, value in done().items() if key != "message"}),
    ]


def test_calls_come_whole_and_the_text_may_go_on() -> None:
    """What a call holds beside name and arguments is fidelity; the text around calls is one block."""
    calls = [
        call(arguments={"b": 1, "a": "ü"}),
        call("wait", id="call_1", function={"index": 1, "name": "wait", "arguments": {}}),
    ]
    chunks = read(line("a"), line("", tool_calls=calls), line("b"), done())
    assert chunks[:7] == [
        TextChunk("a", 0),
        TextChunk("", 0),
        ToolCallChunk('{"b":1,"a":"ü"}', None, "look", 1),
        BlockEnd(1),
        ToolCallChunk("{}", "call_1", "wait", 2, {"id": "call_1", "function": {"index": 1}}),
        BlockEnd(2),
        TextChunk("b", 0),
    ]
    assert chunks[-1].reason == "tool_use"


def test_thinking_behind_text_is_a_block_of_its_own() -> None:
    """Nothing is held back for it."""
    assert read(line("a"), line("", thinking="hm"), line("b")) == [
        TextChunk("a", 0),
        BlockEnd(0),
        ThinkingChunk("hm", 1),
        BlockEnd(1),
        TextChunk("b", 2),
    ]


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        ("iVBORw0KGgo=", "image/png"), ("/9j/4AAQ", "image/jpeg"), ("R0lGODlh", "image/gif"), ("UklGRgAA", "image/webp"),
        ("AAAA", "application/octet-stream"),
    ],
)  # fmt: skip
def test_pictures_of_the_model_are_kept(data: str, mime_type: str) -> None:
    """Each is a block of data; its kind is what its first bytes say, for the API says nothing of it."""
    chunks = read(line("a", images=[data]), line(images=data), line(images=None), done())
    assert chunks[1:4] == [
        BlockChunk(InlineData(data, mime_type)),
        TextChunk("", 0),
        BlockChunk(InlineData(data, mime_type)),
    ]


def test_what_has_no_word_of_ours_is_kept_with_the_reply() -> None:
    """Whatever else a message holds (speech, say): nothing that came is lost; what is empty says nothing."""
    lines = [line("a", audio={"data": "AAAA"}), line("b", audio={"data": "BBBB"}, mood="calm", spare=None, more=[])]
    finish = read(*lines, done())[-1]
    assert finish.fidelity["message"] == {"audio": [{"data": "AAAA"}, {"data": "BBBB"}], "mood": ["calm"]}
    assert "message" not in read(line("a"), done())[-1].fidelity


def test_no_reply_is_given_up_for_a_number_that_json_cannot_say() -> None:
    """A server in Python may write NaN beside it, which is kept as null; in arguments it stays: it is what the model said."""
    nan, infinity = float("nan"), float("inf")
    odd = call("look", id="c1", score=nan, arguments={"n": infinity})
    chunks = read(
        line("a", score=[nan]),
        line(tool_calls=[odd]),
        done(rate=-infinity, prompt_eval_count=nan, deep={"a": [nan, 1.5]}),
    )
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextChunk)][0] == "a"
    (called,) = [chunk for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    assert (called.arguments, called.id) == ('{"n":Infinity}', "c1")
    end = chunks[-1]
    assert isinstance(end, Finish)
    assert end.fidelity is not None
    assert (end.fidelity["rate"], end.fidelity["deep"]) == (None, {"a": [None, 1.5]})
    assert end.fidelity["message"] == {"score": [[None]]}
    assert UsageChunk(Usage(0, 0, 5)) in chunks


def test_a_last_line_of_a_wrong_shape_ends_no_reply() -> None:
    """The reply is whole only once its end was told: what is wrong with that line is raised, not passed over."""
    reader = EventReader()
    with pytest.raises(ModelError) as caught:
        list(reader.feed({"message": {"content": "a"}, "done": True, "done_reason": 5}))
    assert (caught.value.code, reader.settled) == ("malformed", False)


def test_arguments_that_came_as_text_stay_as_they_are() -> None:
    """Some servers that speak this API write them as OpenAI's does."""
    assert read(line(tool_calls=[call(arguments='{"a": 1}')]))[0].arguments == '{"a": 1}'


@pytest.mark.parametrize(
    ("sent_reason", "ours"),
    [("stop", "stop"), ("length", "length"), ("load", "unknown"), ("new", "unknown"), (None, "unknown")],
)
def test_reasons(sent_reason: str | None, ours: str) -> None:
    """Each in our words; older servers gave none."""
    assert read(line("a"), done(sent_reason))[-1].reason == ours


def test_a_stream_without_done_was_cut() -> None:
    """Then there is no end."""
    assert read(line("a")) == [TextChunk("a", 0)]


def test_usage_counts_what_was_evaluated() -> None:
    """A prompt that was cached whole is not counted by the server."""
    assert read({"done": True, "eval_count": 3})[0] == UsageChunk(Usage(0, 0, 3))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("an error was encountered while running the model: unexpected EOF", "network"),
        ("model requires more system memory (9 GiB) than is available", "network"),
        ({"message": "busy", "code": 503}, "overloaded"),
        ("unauthorized: invalid api key", "auth"),
    ],
)
def test_an_error_in_the_stream(error: Any, code: str) -> None:
    """A line of its own under status 200, before or behind content."""
    assert failure({"error": error}).code == code
    assert failure(line("a"), {"error": error}).code == code


@pytest.mark.parametrize(
    "item",
    [
        7, None, [], "x", {"message": "x"}, line(7), line(thinking=[]), line(tool_calls=[7]), line(tool_calls=[{}]),
        line(tool_calls=[{"function": {}}]), line(tool_calls=7), done(7), line(tool_calls=[call(7)]),
        line(images=[7]), line(images=7),
    ],
)  # fmt: skip
def test_a_line_of_a_wrong_shape_is_malformed(item: Any) -> None:
    """The reply fails with a code, and not with what reading it raised."""
    assert failure(item).code == "malformed"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "stop", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "content", "thinking", "tool_calls", "function", "name", "arguments"]), inner
        )
    ),
    max_leaves=8,
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["message", "done", "done_reason", "error", "eval_count"]), JSON), max_size=4
    )
)
def test_whatever_a_server_sends_only_model_errors_come_out(lines: list[Any]) -> None:
    """Hostile content is read or refused, never anything else."""
    adapters.assert_read_or_refused(read, lines)


# ---------------------------------------------------------------- history out


def test_the_least_request() -> None:
    """Nothing is sent that nobody asked for."""
    assert body(user("Hi")) == {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_a_conversation() -> None:
    """Prompt, thinking of the same model, calls as objects with their own id, results by name and id."""
    kept = {"id": "call_1", "function": {"index": 0}}
    history = (
        user("go"),
        reply(
            Thinking("hm"),
            Text("a"),
            ToolCall("call_1#2", "look", '{"a": 1}', kept),
            Text("b"),
            ToolCall("made", "look"),
        ),
        result("call_1#2", "1", "2"),
        result("made", "no", is_error=True),
    )
    assert body(*history, system="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "ab",
            "thinking": "hm",
            "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": "look", "arguments": {"a": 1}}},
                {"function": {"name": "look", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "1\n2", "tool_name": "look", "tool_call_id": "call_1"},
        {"role": "tool", "content": "no", "tool_name": "look"},
    ]


@pytest.mark.parametrize("other", [{"provider": "lab"}, {"model": "llama3"}])
def test_thinking_and_fidelity_do_not_cross_models(other: dict[str, str]) -> None:
    """Of another's reply the text and the calls are told; one of thinking alone is left out."""
    blocks = (Thinking("hm"), InlineData("iVBO", "image/png"), ToolCall("c", "look", "", {"id": "c"}))
    assert sent(user("x"), reply(*blocks, **other), reply(Thinking("hm"), **other))[1:] == [
        {"role": "assistant", "content": "[image/png]", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    ]


def test_pictures_are_data_beside_the_text() -> None:
    """Of users and of tools alike."""
    assert sent(
        user("see", Image("data:image/png;base64,iVBO"), InlineData("R0lG", "image/gif"), "this"),
        reply(ToolCall("c", "look")),
        result("c", InlineData("iVBO", "image/png")),
    )[::2] == [
        {"role": "user", "content": "see\nthis", "images": ["iVBO", "R0lG"]},
        {"role": "tool", "content": "", "images": ["iVBO"], "tool_name": "look"},
    ]


@pytest.mark.parametrize(
    ("message", "code", "place"),
    [
        (user(Image("https://x.example/a.png")), "unsupported", "messages[0].content[0]: .*address"),
        (user(InlineData("JVBE", "application/pdf")), "unsupported", "messages[0].content[0]: .*application/pdf"),
        (UserMessage((ToolCall("c", "look"),)), "invalid_input", "messages[0].content[0]"),
        (reply(), "invalid_input", "messages"),
    ],
)
def test_what_cannot_go_out_is_named_with_its_place(message: Any, code: str, place: str) -> None:
    """The error names the message or block; it is raised before anything is sent."""
    error = refusal(message)
    assert error.code == code
    begin, _, word = place.partition(": .*")
    assert error.message.startswith(begin)
    assert word in error.message


def test_common_options_in_the_provider_s_words() -> None:
    """Model parameters have a place of their own; all others go into the body."""
    made = body(
        temperature=0.5, top_p=0.9, max_tokens=100, seed=3, stop=["a", "b"], thinking="low", keep_alive="10m",
        format={"type": "object"}, options={"num_ctx": 8192, "seed": 4},
    )  # fmt: skip
    assert made["options"] == {
        "temperature": 0.5,
        "top_p": 0.9,
        "num_predict": 100,
        "seed": 4,
        "stop": ["a", "b"],
        "num_ctx": 8192,
    }
    assert (made["think"], made["keep_alive"], made["format"]) == ("low", "10m", {"type": "object"})


@pytest.mark.parametrize(
    ("level", "think"),
    [("off", False), ("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "max")],
)
def test_thinking_levels(level: str, think: Any) -> None:
    """A switch and four levels; nothing where none is asked for."""
    assert body(thinking=level)["think"] == think
    assert "think" not in body()


def test_tools_and_their_choice() -> None:
    """The model chooses; none is the same as no tools."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [ToolSpec("look", "Look.", schema), ToolSpec("wait")]
    assert body(tools=tools, tool_choice="auto")["tools"][0] == {
        "type": "function", "function": {"name": "look", "description": "Look.", "parameters": schema},
    }  # fmt: skip
    assert "tools" not in body(tools=tools, tool_choice="none")
    assert refusal(tools=tools, tool_choice="required").code == "unsupported"
    assert refusal(tools=tools, tool_choice={"name": "look"}).code == "unsupported"
    assert refusal(parallel_tool_calls=False).code == "unsupported"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://localhost:11434"),
        ("box", "http://box:11434"),
        ("box:80", "http://box:80"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("http://box", "http://box:80"),
        ("https://box.example/under/", "https://box.example:443/under"),
        ("http://[::1]:9", "http://[::1]:9"),
        (":9", "http://127.0.0.1:9"),
    ],
)
def test_the_address_in_the_environment(host: str, address: str) -> None:
    """As Ollama's own programs read it."""
    assert host_address(host) == address


# ---------------------------------------------------------------- over the wire


@pytest.mark.anyio
async def test_a_reply_over_the_wire(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at the API's path; a key is sent where one was given, that of the environment to no other address."""
    monkeypatch.setenv("OLLAMA_API_KEY", "secret-key")
    play = Play(ndjson(line(thinking="hm"), line("Grüß "), line("dich"), done()), headers=LINES, chop="1")
    address = server.play(play)
    outcome = await run_model(adapter(address, options={"keep_alive": 0}))
    assert outcome.message is not None
    assert outcome.message.content == (Thinking("hm"), Text("Grüß dich"))
    assert (outcome.message.provider, outcome.message.model) == ("ollama", MODEL)
    seen = server.requests[-1]
    assert (seen.path, seen.json["keep_alive"]) == ("/api/chat", 0)
    assert "authorization" not in seen.headers
    await run_model(adapter(address, api_key="mine\n"))
    assert server.requests[-1].headers["authorization"] == "Bearer mine"
    monkeypatch.setenv("OLLAMA_HOST", address)
    await run_model(Ollama(MODEL))
    assert server.requests[-1].headers["authorization"] == "Bearer secret-key"


@pytest.mark.anyio
async def test_a_run_answers_calls_without_ids(server: WireServer) -> None:
    """Through the kernel: two calls of one tool, text behind them, results in order."""
    asks = [
        line(thinking="hm"),
        line("I ask."),
        line("", tool_calls=[call("double", {"n": 2}), call("double", {"n": 3})]),
        line(""),
        done(),
    ]
    plays = [Play(ndjson(*asks), headers=LINES), Play(ndjson(line("4, 6"), done()), headers=LINES)]

    @tool
    def double(n: int) -> str:
        """Double a number."""
        return str(2 * n)

    run = agent_loop([user("twice?")], Context(tools=(double,)), Config(model=adapter(server.play(*plays))))
    events = [item async for item in run]
    assert events[-1].stop_reason == "completed"
    assert server.requests[-1].json["messages"][1:] == [
        {
            "role": "assistant",
            "content": "I ask.",
            "thinking": "hm",
            "tool_calls": [
                {"function": {"name": "double", "arguments": {"n": 2}}},
                {"function": {"name": "double", "arguments": {"n": 3}}},
            ],
        },
        {"role": "tool", "content": "4", "tool_name": "double"},
        {"role": "tool", "content": "6", "tool_name": "double"},
    ]


@pytest.mark.anyio
async def test_a_server_that_does_not_stream(server: WireServer) -> None:
    """One object is a stream of one line."""
    answer = {**done(), "message": {"role": "assistant", "content": "Hi", "tool_calls": [call()]}}
    outcome = await run_model(adapter(server.play(Play(json.dumps(answer, indent=1).encode()))))
    assert outcome.message is not None
    assert (outcome.message.text, outcome.message.finish_reason) == ("Hi", "tool_use")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"error":"model \'x\' not found"}', 404, "rejected"),
        (b'{"error":"\\"x\\" does not support tools"}', 400, "rejected"),
        (b'{"error":"invalid think value: "odd" (must be ...)"}', 400, "rejected"),
        (b'{"error":"unauthorized"}', 401, "auth"),
        (b'{"error":"server busy, please try again.  maximum pending requests exceeded"}', 503, "overloaded"),
        (b'{"error":"llama runner process has terminated"}', 500, "network"),
        (b'{"error":"the prompt is too long; exceeds the context length of the model"}', 400, "context_too_long"),
    ],
)
async def test_refusals(server: WireServer, body: bytes, status: int, code: str) -> None:
    """By status and words; not all of them are JSON."""
    outcome = await run_model(adapter(server.play(Play(body, status))))
    assert outcome.error is not None
    assert outcome.error.code == code


@pytest.mark.anyio
async def test_nobody_is_there() -> None:
    """A server that does not run is the network's failure, and worth another try."""
    outcome = await run_model(adapter("http://127.0.0.1:9"))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("network", True)


@pytest.mark.anyio
async def test_the_registry_knows_it(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, at the address of the environment; a colon in a model's name is its own."""
    monkeypatch.setenv("OLLAMA_HOST", server.play(Play(ndjson(line("a"), done()))))
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    outcome = await run_model(resolve(f"ollama:{MODEL}"))
    assert outcome.committed
    assert server.requests[-1].json["model"] == MODEL
    with pytest.raises(ValueError, match="OLLAMA_API_KEY"):
        resolve("ollama-cloud:gpt-oss")


# ---------------------------------------------------------------- recorded responses


@pytest.mark.anyio
@pytest.mark.parametrize("chop", ["", "random:5"])
async def test_every_recorded_response(shared: Path, chop: str) -> None:
    """Blocks, deltas, end, usage and fidelity of every stream, however it is cut."""
    assert await differences(shared, chop) == {}


def test_recorded_responses_cut_at_every_byte(shared: Path) -> None:
    """Byte by byte through the connection, on one event loop."""
    assert anyio.run(differences, shared, "1") == {}


async def differences(shared: Path, chop: str) -> object:
    cases = load_cases(shared / "wire", api="ollama_chat")
    assert len(cases) >= 2
    return await adapters.found_differences(cases, chop)
