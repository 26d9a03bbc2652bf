"""Anthropic's Messages API: what goes out, what comes in, and that nothing is left of a stream however it ends."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Config, Context, agent_loop, tool
from agentloop.errors import ModelError
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
from agentloop.models._anthropic_events import EventReader
from agentloop.models._sdk import SdkStream
from agentloop.models.anthropic import Anthropic, request_body, request_headers, thinks_adaptively
from agentloop.testing.wire import Case, Play, WireServer, load_cases, play_case, run_model
from tests import adapters

MODEL = "claude-sonnet-4-0"
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "tide", "n": 1.0}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"z": None, "a": "ü", "encrypted": "E"}]}
REDACTED = {"type": "redacted_thinking", "data": "sealed"}


# ---------------------------------------------------------------- helpers


def reply(*blocks: Any, provider: str = "anthropic", model: str = MODEL, **fields: Any) -> AssistantMessage:
    return AssistantMessage(blocks, "completed", provider=provider, model=model, **{"finish_reason": "stop", **fields})


def result(call_id: str, *content: Any, **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id, "look", content, **fields)


def body(*messages: Any, system: str | None = None, tools: Any = (), **options: Any) -> dict[str, Any]:
    model = options.pop("model", MODEL)
    return request_body(ModelRequest(system, messages, tools, options), model=model)


def sent(*messages: Any) -> list[Any]:
    return body(*messages)["messages"]


def start(**usage: int) -> dict[str, Any]:
    message = {"id": "msg_1", "model": "claude-x", "stop_reason": None, "usage": usage}
    return {"type": "message_start", "message": message}


def opened(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(index: int, kind: str, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str = "end_turn", **fields: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **fields}, "usage": {"output_tokens": 7}}


def read(*events: Any, names: dict[str, str] | None = None) -> list[Any]:
    reader = EventReader(names)
    chunks = [chunk for event in events for chunk in reader.feed(event)]
    return [chunk for chunk in [*chunks, *reader.end()] if not isinstance(chunk, UsageChunk)]


def stream(*events: Any) -> bytes:
    lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return "".join(lines).encode()


def say(text: str = "Hello") -> tuple[Any, ...]:
    return (
        start(input_tokens=3),
        opened(0, type="text", text=""),
        piece(0, "text_delta", text=text),
        stop(0),
        ended(),
        {"type": "message_stop"},
    )


EVENTS = {"content-type": "text/event-stream"}


def adapter(address: str, **options: Any) -> Anthropic:
    return Anthropic(MODEL, base_url=address, api_key="test-key", **options)


# ---------------------------------------------------------------- events in


def test_text_and_thinking_come_piece_by_piece_and_their_fidelity_at_the_end() -> None:
    """Deltas are passed on as they come; a signature and citations arrive with an empty piece, then the block ends."""
    citation = {"type": "char_location", "cited_text": "tide", "end_char_index": 4}
    chunks = read(
        start(),
        opened(0, type="thinking", thinking="", signature=""),
        piece(0, "thinking_delta", thinking="let me"),
        piece(0, "signature_delta", signature="SIG"),
        piece(0, "signature_delta", signature="NED"),
        stop(0),
        opened(1, type="text", text="", citations=[]),
        piece(1, "text_delta", text="high "),
        piece(1, "citations_delta", citation=citation),
        piece(1, "text_delta", text="tide"),
        stop(1),
        ended(),
    )
    assert chunks[:-1] == [
        ThinkingChunk("let me", 0),
        ThinkingChunk("", 0, {"signature": "SIGNED"}),
        BlockEnd(0),
        TextChunk("high ", 1),
        TextChunk("tide", 1),
        TextChunk("", 1, {"citations": [citation]}),
        BlockEnd(1),
    ]
    assert chunks[-1].reason == "stop"


def test_text_that_stands_in_the_start_is_the_first_piece() -> None:
    """A block may begin with text in its start event."""
    chunks = read(opened(0, type="text", text="Hi"), piece(0, "text_delta", text="!"), stop(0))
    assert chunks == [TextChunk("Hi", 0), TextChunk("!", 0), BlockEnd(0)]


def test_a_block_without_pieces_is_a_block_all_the_same() -> None:
    """An empty text, and thinking that is hidden but signed, each keep their place."""
    chunks = read(
        opened(0, type="thinking", thinking=""), piece(0, "signature_delta", signature="S"), stop(0),
        opened(1, type="text", text=""), stop(1),
    )  # fmt: skip
    assert chunks == [
        ThinkingChunk("", 0, {"signature": "S"}), BlockEnd(0), TextChunk("", 1), BlockEnd(1),
    ]  # fmt: skip


def test_blocks_without_a_word_of_ours_come_whole_with_everything_they_hold() -> None:
    """Server tools, their results, redacted thinking and kinds that nobody knows are kept whole, order of keys included."""
    chunks = read(
        opened(0, **REDACTED), stop(0),
        opened(1, **{**SEARCH, "input": {}}),
        piece(1, "input_json_delta", partial_json='{"q": "tide",'),
        piece(1, "input_json_delta", partial_json=' "n": 1.0}'), stop(1),
        opened(2, **FOUND), stop(2),
        opened(3, type="compaction", content=None),
        piece(3, "compaction_delta", content="so "), piece(3, "compaction_delta", content="far"), stop(3),
        opened(4, type="hologram", frames=[1]), piece(4, "frame_delta", frames=[2, 3]), stop(4),
    )  # fmt: skip
    blocks = [chunk.block for chunk in chunks if isinstance(chunk, BlockChunk)]
    assert len(blocks) == len(chunks)
    assert blocks[0] == Thinking("", REDACTED)
    assert [block.fidelity for block in blocks[1:]] == [
        SEARCH, FOUND, {"type": "compaction", "content": "so far"}, {"type": "hologram", "frames": [1, 2, 3]},
    ]  # fmt: skip
    assert json.dumps(blocks[2].fidelity) == json.dumps(FOUND)
    assert all(block.text == "" for block in blocks[1:])


def test_a_call_opens_at_once_and_streams_its_arguments() -> None:
    """The start carries id, name and what else the block holds; empty fragments are passed on."""
    chunks = read(
        opened(0, type="tool_use", id="toolu_1", name="look", input={}, caller={"type": "direct"}),
        piece(0, "input_json_delta", partial_json=""),
        piece(0, "input_json_delta", partial_json='{"a": 1}'),
        stop(0),
        ended("tool_use"),
    )
    assert chunks[:-1] == [
        ToolCallChunk("", "toolu_1", "look", 0, {"caller": {"type": "direct"}}),
        ToolCallChunk("", index=0),
        ToolCallChunk('{"a": 1}', index=0),
        BlockEnd(0),
    ]
    assert chunks[-1].reason == "tool_use"


def test_a_reply_may_begin_with_blocks() -> None:
    """A reply that goes on where code waited for a call has its blocks in its first event, and may end with it."""
    first = start()
    ran = {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"stdout": "1"}}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}, "caller": {"type": "code", "tool_id": "s"}}
    first["message"] |= {"content": [ran, call], "stop_reason": "tool_use"}
    told = ToolCall("t", "f", '{"a":1}', {"caller": call["caller"]})
    *blocks, end = read(first)
    assert blocks == [BlockChunk(Text("", ran)), BlockChunk(told)]
    assert end.reason == "tool_use"
    assert read(first, opened(0, type="text", text=""), piece(0, "text_delta", text="a"), stop(0))[2:-1] == [
        TextChunk("a", 2),
        BlockEnd(2),
    ]


def test_an_input_that_came_with_the_start_counts_only_without_fragments() -> None:
    """A call made by the provider's code has its input in the start event; fragments override it."""
    whole = opened(0, type="tool_use", id="toolu_1", name="roll", input={"who": "ä", "n": 2})
    assert read(whole, stop(0)) == [BlockChunk(ToolCall("toolu_1", "roll", '{"who":"ä","n":2}'))]
    streamed = read(whole, piece(0, "input_json_delta", partial_json='{"n": 3}'), stop(0))
    assert streamed == [ToolCallChunk("", "toolu_1", "roll", 0), ToolCallChunk('{"n": 3}', index=0), BlockEnd(0)]


def test_a_cut_reply_ends_without_inventing_the_end_of_its_block() -> None:
    """Cut by length inside a tool's input: the fragments stay as they are; a cut server tool is marked, not repaired."""
    call = opened(0, type="tool_use", id="toolu_1", name="write", input={})
    chunks = read(call, piece(0, "input_json_delta", partial_json='{"text": "ha'), ended("max_tokens"))
    assert [type(chunk) for chunk in chunks] == [ToolCallChunk, ToolCallChunk, Finish]
    assert chunks[1].arguments == '{"text": "ha'
    assert chunks[2].reason == "length"
    search = opened(0, type="server_tool_use", id="srv_1", name="web_search", input={})
    cut = read(search, piece(0, "input_json_delta", partial_json='{"q": "ti'), ended("max_tokens"))
    assert cut[0].block.fidelity["partial_json"] == '{"q": "ti'
    assert sent(user("go"), reply("so", cut[0].block))[1]["content"] == [{"type": "text", "text": "so"}]


def test_the_signature_of_thinking_survives_a_reply_that_ends_inside_the_block() -> None:
    """What was held for the block's end comes before the finish when the end never does."""
    chunks = read(
        opened(0, type="thinking", thinking=""), piece(0, "thinking_delta", thinking="hm"),
        piece(0, "signature_delta", signature="S"), ended("max_tokens"),
    )  # fmt: skip
    assert chunks[:2] == [ThinkingChunk("hm", 0), ThinkingChunk("", 0, {"signature": "S"})]


@pytest.mark.parametrize(
    ("sent_reason", "ours"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("tool_use", "tool_use"),
        ("pause_turn", "pause"), ("refusal", "refusal"), ("model_context_window_exceeded", "length"),
        ("compaction", "pause"), ("something_new", "unknown"),
    ],
)  # fmt: skip
def test_stop_reasons(sent_reason: str, ours: str) -> None:
    """Each stop reason has a word of ours; a new one is `unknown`, kept as sent in the message's fidelity."""
    (finish,) = read(start(), ended(sent_reason))
    assert finish.reason == ours
    assert finish.fidelity["stop_reason"] == sent_reason


def test_the_message_keeps_what_belongs_to_no_block() -> None:
    """Ids, the sandbox, the reasons and the usage as sent are fidelity of the message."""
    container = {"id": "container_1", "expires_at": "2026-01-01T00:00:00.000000Z"}
    (finish,) = read(start(input_tokens=3, service_tier="standard"), ended(container=container, stop_sequence=None))
    assert finish.fidelity == {
        "id": "msg_1", "model": "claude-x", "stop_reason": "end_turn", "container": container,
        "usage": {"input_tokens": 3, "service_tier": "standard", "output_tokens": 7},
    }  # fmt: skip


def test_usage_is_the_start_overridden_by_what_the_last_delta_says() -> None:
    """Fields that are null override nothing; written cache counts as other input; each report is passed on."""
    reader = EventReader()
    first = start(input_tokens=10, cache_creation_input_tokens=4, cache_read_input_tokens=100, output_tokens=1)
    assert list(reader.feed(first)) == [UsageChunk(Usage(100, 14, 1))]
    delta = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": None, "output_tokens": 9}}
    assert list(reader.feed(delta)) == [UsageChunk(Usage(100, 14, 9))]


def test_a_stop_reason_of_the_first_event_ends_nothing_that_still_comes() -> None:
    """The reply goes on past a report of usage, and is whole with the end of its message, though the stream stay open."""
    first = start(input_tokens=3)
    first["message"]["stop_reason"] = "end_turn"
    usage = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 1}}
    reader = EventReader()
    chunks = [chunk for event in (first, usage, opened(0, type="text", text="Hi")) for chunk in reader.feed(event)]
    assert TextChunk("Hi", 0) in chunks
    assert not any(isinstance(chunk, Finish) for chunk in chunks)
    assert not reader.settled
    (finish,) = reader.feed({"type": "message_stop"})
    assert isinstance(finish, Finish)
    assert finish.reason == "stop"
    assert reader.settled
    assert list(reader.end()) == []


def test_only_a_stop_reason_ends_a_reply() -> None:
    """Without one there is no finish, whatever else came: the kernel calls the reply cut."""
    assert not [chunk for chunk in read(*say()[:4], {"type": "message_stop"}) if isinstance(chunk, Finish)]
    assert len([chunk for chunk in read(*say(), ended("max_tokens")) if isinstance(chunk, Finish)]) == 1


def test_events_that_nobody_knows_change_nothing() -> None:
    """Pings, new kinds of events, deltas of a block that never began and events without a type are passed over."""
    noise = [{"type": "ping"}, {"type": "weather"}, {}, piece(9, "input_json_delta", partial_json="{"), stop(9)]
    assert read(*[event for real in say() for event in (*noise, real)]) == read(*say())


def test_text_of_a_block_that_never_began_is_not_lost() -> None:
    """A text delta without a start opens a block of its own."""
    assert read(piece(4, "text_delta", text="lost?"))[0] == TextChunk("lost?", 0)


def test_an_index_that_is_used_again_is_another_block() -> None:
    """The earlier block ends where the index is opened again."""
    chunks = read(opened(0, type="text", text="a"), opened(0, type="text", text="b"), stop(0))
    assert chunks == [TextChunk("a", 0), BlockEnd(0), TextChunk("b", 1), BlockEnd(1)]


def test_an_error_event_is_what_it_says() -> None:
    """An error inside a stream that began well has the code of its type."""
    reader = EventReader()
    with pytest.raises(ModelError, match="Overloaded") as caught:
        reader.feed({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert (caught.value.code, caught.value.retryable) == ("overloaded", True)


@pytest.mark.parametrize(
    "event",
    [
        None, [], "x", 7, {"type": "message_start"}, {"type": "content_block_start", "index": 0},
        {"type": "content_block_delta", "index": 0, "delta": None}, opened(0, type="tool_use"),
        opened(0, type="text", text=5), {"type": []}, opened([], type="text"),
    ],
)  # fmt: skip
def test_an_event_of_a_wrong_shape_is_malformed(event: Any) -> None:
    """No exception of the interpreter leaves the reader."""
    with pytest.raises(ModelError) as caught:
        read(event, stop(0))
    assert caught.value.code == "malformed"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3) | st.sampled_from(["text", "tool_use"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "id"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["message_start", "content_block_start", "content_block_delta", "message_delta"])},
            optional=dict.fromkeys(("index", "message", "content_block", "delta", "usage"), JSON),
        ),
        max_size=5,
    )
)
def test_whatever_a_server_sends_only_model_errors_come_out(events: list[Any]) -> None:
    """Events of known kinds with hostile content are read, or refused with a `ModelError`."""
    adapters.assert_read_or_refused(read, events)


def test_many_small_pieces_cost_no_more_than_their_sum() -> None:
    """Signatures, inputs and citations are joined once, at the end: the work grows with what was sent."""
    count = 20_000
    reader = EventReader()
    reader.feed(opened(0, type="server_tool_use", id="s", name="w", input={}))
    for number in range(count):
        reader.feed(piece(0, "input_json_delta", partial_json='{"a": "' if number == 0 else "x"))
    reader.feed(piece(0, "input_json_delta", partial_json='"}'))
    (chunk,) = reader.feed(stop(0))
    assert len(chunk.block.fidelity["input"]["a"]) == count - 1


def test_names_of_tools_are_mapped_back() -> None:
    """A tool whose name the provider cannot have is called by its own name again."""
    tools = [ToolSpec("mcp:files.read"), ToolSpec("look")]
    request = body(user("go"), tools=tools)
    made, kept = (tool["name"] for tool in request["tools"])
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made)
    assert kept == "look"
    chosen = body(user("go"), tools=tools, tool_choice={"name": "mcp:files.read"})
    assert chosen["tool_choice"]["name"] == made
    chunks = read(opened(0, type="tool_use", id="t", name=made, input={}), names={made: "mcp:files.read"})
    assert chunks[0].name == "mcp:files.read"


# ---------------------------------------------------------------- history out


def test_the_least_request() -> None:
    """A prompt alone: no system, no tools, no sampling; `max_tokens` because the API wants one."""
    assert body(user("Hello")) == {
        "model": MODEL,
        "max_tokens": 8_192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "stream": True,
    }


def test_system_prompt_and_tools() -> None:
    """A blank system prompt is none; a tool without a schema takes an empty object."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = body(user("x"), system="Be brief.", tools=[ToolSpec("add", "Adds.", schema), ToolSpec("now")])
    assert request["system"] == [{"type": "text", "text": "Be brief."}]
    assert request["tools"] == [
        {"name": "add", "description": "Adds.", "input_schema": schema},
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
    ]
    assert "system" not in body(user("x"), system=" \n")


def test_a_reply_of_the_same_model_goes_back_as_it_came() -> None:
    """Signed and redacted thinking, server tools, citations, callers: in place, byte for byte."""
    blocks = (
        Thinking("why", {"signature": "SIG"}), Thinking("", REDACTED), Text("I look."), Text("", SEARCH), Text("", FOUND),
        Text("high", {"citations": [{"b": 1, "a": 2}]}), ToolCall("t1", "look", '{"n": 1.0}', {"caller": {"type": "direct"}}),
    )  # fmt: skip
    content = sent(user("go"), reply(*blocks), result("t1", "ok"))[1]["content"]
    wanted = [
        {"type": "thinking", "thinking": "why", "signature": "SIG"}, REDACTED, {"type": "text", "text": "I look."}, SEARCH,
        FOUND, {"type": "text", "text": "high", "citations": [{"b": 1, "a": 2}]},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"n": 1.0}, "caller": {"type": "direct"}},
    ]  # fmt: skip
    assert json.dumps(content) == json.dumps(wanted)


@pytest.mark.parametrize("other", [{"provider": "openai"}, {"model": "claude-other"}])
def test_thinking_and_fidelity_do_not_cross_models(other: dict[str, str]) -> None:
    """Another provider's or model's reply goes out as its text and calls alone."""
    blocks = (
        Thinking("why", {"signature": "SIG"}), Thinking("", REDACTED), Text("", SEARCH), Text("high", {"citations": [1]}),
        ToolCall("t1", "look", "{}", {"caller": {"type": "direct"}}), InlineData("QQ==", "image/png"),
    )  # fmt: skip
    assert sent(user("go"), reply(*blocks, **other), result("t1", "ok"))[1]["content"] == [
        {"type": "text", "text": "high"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
    ]


def test_thinking_without_a_signature_goes_back_only_to_those_who_never_sign() -> None:
    """Claude refuses unsigned thinking (it was cut); others that speak this API want theirs back."""
    message = reply(Thinking("hm", {"signature": ""}), "so")
    assert sent(user("x"), message, user("y"))[1]["content"] == [{"type": "text", "text": "so"}]
    other = attrs.evolve(message, model="kimi-k2")
    content = body(user("x"), other, user("y"), model="kimi-k2")["messages"][1]["content"]
    assert content[0] == {"type": "thinking", "thinking": "hm", "signature": ""}


def test_a_reply_does_not_end_with_thinking() -> None:
    """The API refuses thinking at the end of a reply; a reply of thinking alone is left out, its neighbours joined."""
    signed = Thinking("hm", {"signature": "S"})
    assert sent(user("a"), reply("so", signed), user("b"))[1]["content"] == [{"type": "text", "text": "so"}]
    only = sent(user("a"), reply(signed), user("b"))
    assert only == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


def test_messages_of_one_role_in_a_row_are_one() -> None:
    """Results of a batch and the prompt behind them are one message, results first; a paused reply goes on."""
    messages = sent(
        user("go"), reply(ToolCall("a", "look"), ToolCall("b", "look")), result("a", "1"), result("b", "2"), user("and?"),
    )  # fmt: skip
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [part["type"] for part in messages[2]["content"]] == ["tool_result", "tool_result", "text"]
    paused = sent(user("go"), reply(Text("", SEARCH)), reply(Text("", FOUND), "there"), user("ok"))
    assert paused[1]["content"] == [SEARCH, FOUND, {"type": "text", "text": "there"}]


def test_blank_text_needs_a_neighbour() -> None:
    """White space goes out beside a text with more in it (it may be meant), never alone; an empty text never."""
    assert sent(user("x"), reply("a", " \n", "b"), user("y"))[1]["content"][1] == {"type": "text", "text": " \n"}
    assert sent(user("x"), reply(Text(" "), ToolCall("t", "look")), result("t", "1"))[1]["content"] == [
        {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    ]
    assert sent(user("x"), reply(" "), user(""), user("y")) == [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}
    ]
    with pytest.raises(ModelError, match="got none"):
        sent(user(" "))


def test_a_reply_at_the_end_has_no_white_space_behind_it() -> None:
    """The API refuses it there; anywhere else the text is as it was."""
    assert sent(user("x"), reply("Dear "))[1]["content"] == [{"type": "text", "text": "Dear"}]
    assert sent(user("x"), reply("Dear "), user("y"))[1]["content"] == [{"type": "text", "text": "Dear "}]
    assert sent(user("x"), reply("Dear ", " \n"))[1]["content"] == [{"type": "text", "text": "Dear"}]


def test_a_reply_that_another_one_goes_on_with_stays_as_it_was_sent() -> None:
    """It stood last in the request before, trimmed: were it not trimmed now, that request would be no beginning of this one."""
    signed = Thinking("hm", {"signature": "S"})
    first = sent(user("x"), reply("Dear ", signed))
    assert first[1]["content"] == [{"type": "text", "text": "Dear"}]
    then = sent(user("x"), reply("Dear ", signed), reply("Ann, ", signed), user("y"))
    assert then[1]["content"] == [{"type": "text", "text": "Dear"}, {"type": "text", "text": "Ann, "}]


def test_results_with_errors_pictures_and_documents() -> None:
    """A result holds text, pictures and documents; only an error says so."""
    png, pdf = InlineData("QQ==", "image/png"), InlineData("Qg==", "application/pdf")
    block = {"type": "search_result", "source": "https://example.org", "content": []}
    (part,) = sent(
        user("go"), reply(ToolCall("a", "look")), result("a", "see", png, pdf, Text("", block), is_error=True)
    )[2]["content"]
    assert part == {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "Qg=="}},
            block,
        ],
        "is_error": True,
    }


def test_pictures_by_address_and_inline() -> None:
    """A web address stays one, a `data:` URL becomes its data, text data a document."""
    note = base64.b64encode("grüß".encode()).decode()
    parts = sent(
        user(Image("https://x.org/a.png"), Image("data:image/gif;base64,QQ=="), InlineData(note, "text/markdown"))
    )
    assert [part["source"] for part in parts[0]["content"]] == [
        {"type": "url", "url": "https://x.org/a.png"},
        {"type": "base64", "media_type": "image/gif", "data": "QQ=="},
        {"type": "text", "media_type": "text/plain", "data": "grüß"},
    ]


@pytest.mark.parametrize(
    ("block", "code", "words"),
    [
        (InlineData("QQ==", "audio/wav"), "unsupported", "images, PDF and text, got audio/wav"),
        (InlineData("?", "text/plain"), "invalid_input", "expected base64 of UTF-8 text"),
        (Image("file:///etc/passwd"), "invalid_input", "expected a web or data URL"),
        (Thinking("x"), "invalid_input", "expected text, an image or data, got a thinking block"),
    ],
)
def test_what_cannot_go_out_is_named_with_its_place(block: Any, code: str, words: str) -> None:
    """The error says what was expected, what came and where."""
    with pytest.raises(ModelError, match=words) as caught:
        sent(user("first"), UserMessage(("a", block)))
    assert caught.value.code == code
    assert "messages[1].content[1]" in str(caught.value)


def test_arguments_go_out_as_an_object() -> None:
    """Arguments that are no JSON object, or no JSON at all, become an empty object; order and numbers stay."""
    inputs = ['{"b": 1.0, "a": 1}', "", "[1]", '{"cut', '{"x": NaN}']
    calls = [ToolCall(f"t{n}", "look", text) for n, text in enumerate(inputs)]
    content = sent(user("go"), reply(*calls), *[result(call.id, "1") for call in calls])[1]["content"]
    assert json.dumps([part["input"] for part in content]) == '[{"b": 1.0, "a": 1}, {}, {}, {}, {}]'


def test_ids_are_made_legal_the_same_way_each_time() -> None:
    """An id outside the provider's alphabet is replaced, in call and result alike, and stays what it is from turn to turn."""
    history = [user("go"), reply(ToolCall("fc:1#2", "look")), result("fc:1#2", "1")]
    first = sent(*history)
    made = first[1]["content"][0]["id"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", made)
    assert first[2]["content"][0]["tool_use_id"] == made
    later = sent(*history, reply(ToolCall("ok_1", "look")), result("ok_1", "2"))
    assert later[:3] == first
    assert later[3]["content"][0]["id"] == "ok_1"


def test_a_sandbox_is_named_while_its_code_waits_for_results() -> None:
    """A call made by the provider's code needs the sandbox of its reply; other replies do not bring theirs."""
    kept = {"container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}}
    call = ToolCall("a", "roll", "{}", {"caller": {"type": "code_execution_20250825", "tool_id": "srv_1"}})
    waiting = [user("go"), reply(call, fidelity=kept), result("a", "6")]
    assert body(*waiting)["container"] == "container_1"
    assert body(*waiting, container="mine")["container"] == "mine"
    assert "container" not in body(user("go"), reply("done", fidelity=kept), user("more"))
    assert "container" not in body(*waiting, reply("done"), user("more"))
    assert "container" not in body(*waiting, model="claude-other")


def test_a_message_that_is_none_of_the_model_s_world_is_named() -> None:
    """An adapter that is used without the kernel says where a custom message stands."""
    with pytest.raises(ModelError, match=r"messages\[1\]: expected a user, assistant or tool result message, got str"):
        sent(user("x"), "y")


# ---------------------------------------------------------------- options


def test_common_options_in_the_provider_s_words() -> None:
    """Temperature, lengths, stops and the choice of a tool."""
    tools = [ToolSpec("look")]
    request = body(
        user("x"), tools=tools, temperature=0.5, top_p=0.9, max_tokens=100, stop="END", tool_choice="required",
        parallel_tool_calls=False, top_k=5,
    )  # fmt: skip
    assert request["temperature"] == 0.5
    assert request["top_p"] == 0.9
    assert request["max_tokens"] == 100
    assert request["stop_sequences"] == ["END"]
    assert request["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert request["top_k"] == 5
    assert body(user("x"), tools=tools, tool_choice={"name": "look"})["tool_choice"] == {"type": "tool", "name": "look"}
    assert body(user("x"), tools=tools, tool_choice="none", parallel_tool_calls=True)["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in body(user("x"), tool_choice="auto")


def test_what_the_provider_cannot_do_is_said_before_it_is_asked() -> None:
    """A seed is `unsupported`, a nonsense value `invalid_input`."""
    with pytest.raises(ModelError) as caught:
        body(user("x"), seed=1)
    assert caught.value.code == "unsupported"
    for wrong in ({"cache": "forever"}, {"thinking": "much"}, {"max_tokens": 500, "thinking": "low"}):
        with pytest.raises(ModelError) as caught:
            body(user("x"), **wrong)
        assert caught.value.code == "invalid_input"


@pytest.mark.parametrize(
    ("model", "adaptive"),
    [
        ("claude-3-7-sonnet-20250219", False), ("claude-3-5-haiku-latest", False), ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-1-20250805", False), ("claude-sonnet-4-5@20250929", False), ("claude-opus-4-6", True),
        ("anthropic.claude-sonnet-4-6-v1:0", True), ("anthropic/claude-opus-4.7", True), ("claude-sonnet-5", True),
        ("claude-fable-5-20260101", True), ("claude-mythos-preview", True), ("kimi-k2", False), ("claude-2.1", False),
    ],
)  # fmt: skip
def test_which_models_take_an_effort(model: str, adaptive: bool) -> None:
    """Claude from 4.6 on thinks by effort, older models by a budget, other makers' by a budget."""
    assert thinks_adaptively(model) is adaptive


def test_thinking_levels() -> None:
    """A level is a budget below `max_tokens`, or an effort; `off` says so; the API's own object goes as it is."""
    high = body(user("x"), thinking="high")
    assert high["thinking"] == {"type": "enabled", "budget_tokens": 16_384}
    assert high["max_tokens"] == 8_192 + 16_384
    tight = body(user("x"), thinking="max", max_tokens=4_000)
    assert 1_024 <= tight["thinking"]["budget_tokens"] < tight["max_tokens"] == 4_000
    assert body(user("x"), thinking="low", max_tokens=1_100)["thinking"]["budget_tokens"] == 1_024
    new = body(user("x"), thinking="minimal", model="claude-opus-4-6")
    assert new["thinking"]["type"] == "adaptive"
    assert new["output_config"] == {"effort": "low"}
    assert body(user("x"), thinking="off")["thinking"] == {"type": "disabled"}
    own = {"type": "enabled", "budget_tokens": 2_000}
    assert body(user("x"), thinking=own)["thinking"] == own
    assert "thinking" not in body(user("x"))


def test_tools_of_the_provider() -> None:
    """They stand behind the caller's; one with the name of a tool takes the place of its description."""
    computer = {"type": "computer_20250124", "name": "computer", "display_width_px": 10}
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = body(user("x"), tools=[ToolSpec("computer", "ours"), ToolSpec("look")], provider_tools=[search, computer])
    assert request["tools"] == [
        computer, {"name": "look", "input_schema": {"type": "object", "properties": {}}}, search,
    ]  # fmt: skip


def test_betas_are_a_header() -> None:
    """Names of betas are joined into the one header that the API reads."""
    assert request_headers({"betas": ("a-1", "b-2")}) == {"anthropic-beta": "a-1,b-2"}
    assert request_headers({"betas": "a-1"}) == {"anthropic-beta": "a-1"}
    assert request_headers({}) == {}


def test_cache_marks_stand_on_what_stays() -> None:
    """System prompt (or the last tool) and the last two inputs are marked, at most four in all."""
    history = [user("go"), reply(ToolCall("a", "look")), result("a", "1")]
    request = body(*history, system="Be brief.", tools=[ToolSpec("look")], cache="1h")
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert request["system"][0]["cache_control"] == mark
    assert "cache_control" not in request["tools"][0]
    assert [message["content"][-1].get("cache_control") for message in request["messages"]] == [mark, None, mark]
    assert body(*history, tools=[ToolSpec("look")], cache=True)["tools"][0]["cache_control"] == {"type": "ephemeral"}
    assert json.dumps(request).count("cache_control") == 3


def test_a_request_is_the_same_from_turn_to_turn() -> None:
    """Without the marks each request begins with the one before it, byte for byte."""
    history = [
        user("go"), reply(Thinking("hm", {"signature": "S"}), ToolCall("bad id", "x.y", '{"b":1,"a":2}')),
        result("bad id", "1"), reply("one ", " "), user("more"), reply("two"), user("end"),
    ]  # fmt: skip
    previous = ""
    for length in (1, 3, 5, 7):
        request = body(*history[:length], system="s", tools=[ToolSpec("x.y")])
        text = json.dumps([request["system"], request["tools"], request["messages"]])[:-2]
        assert text.startswith(previous)
        previous = text


def test_building_a_request_leaves_the_history_alone() -> None:
    """Marks and repairs are made on copies."""
    block = Text("", {"type": "document", "title": "t"})
    message = reply(Text("", SEARCH), "x ")
    history = (user(block), message)
    before = repr(history)
    body(*history, cache=True)
    assert repr(history) == before


# ---------------------------------------------------------------- over the wire


@pytest.mark.anyio
async def test_a_reply_over_the_wire(server: WireServer) -> None:
    """The real SDK asks at the API's path with our body and betas, and its events become the reply."""
    address = server.play(Play(stream(*say("Grüß dich")), headers=EVENTS, chop="1"))
    outcome = await run_model(adapter(address, betas=("x-1",)), options={"temperature": 0.5})
    assert outcome.message is not None
    assert outcome.message.text == "Grüß dich"
    assert outcome.usage == Usage(0, 3, 7)
    seen = server.requests[-1]
    assert seen.path == "/v1/messages"
    assert seen.headers["anthropic-beta"] == "x-1"
    assert "test-key" in seen.headers.get("authorization", "") + seen.headers.get("x-api-key", "")
    assert seen.json["temperature"] == 0.5


@pytest.mark.anyio
async def test_a_run_sends_signed_thinking_back_with_the_result(server: WireServer) -> None:
    """Through the kernel: the reply carries who made it, so its thinking and its call's own fields go back."""
    asks = [
        start(input_tokens=3),
        opened(0, type="thinking", thinking="", signature=""),
        piece(0, "thinking_delta", thinking="hm"),
        piece(0, "signature_delta", signature="SIG"),
        stop(0),
        opened(1, type="tool_use", id="toolu_1", name="double", input={}, caller={"type": "direct"}),
        piece(1, "input_json_delta", partial_json='{"n": 2}'),
        stop(1),
        ended("tool_use"),
    ]
    plays = [Play(stream(*asks), headers=EVENTS), Play(stream(*say("4")), headers=EVENTS)]

    @tool
    def double(n: int) -> str:
        """Double a number."""
        return str(2 * n)

    config = Config(model=adapter(server.play(*plays)))
    events = [event async for event in agent_loop([user("2 twice?")], Context(tools=(double,)), config)]
    assert events[-1].stop_reason == "completed"
    assert server.requests[-1].json["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "SIG"},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "double",
                    "input": {"n": 2},
                    "caller": {"type": "direct"},
                },
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "4"}]}],
        },
    ]


@pytest.mark.anyio
async def test_a_stream_that_was_never_read_is_closed_as_well(server: WireServer) -> None:
    """The connection ends with the stream although the client lives on."""
    import anthropic

    address = server.play(Play(stream(*say()), headers=EVENTS, stall_at=200))
    async with anthropic.AsyncAnthropic(base_url=address, api_key="mine") as client:
        events = await client.post(
            "/v1/messages", cast_to=object, body={}, stream=True, stream_cls=anthropic.AsyncStream[object]
        )
        await SdkStream(events).close()
        assert await anyio.to_thread.run_sync(server.requests[-1].client_closed.wait, 5)


@pytest.mark.anyio
async def test_an_error_in_the_middle_keeps_what_came(server: WireServer) -> None:
    """The SDK raises out of its own loop then; the text stays and nothing is left to the collector."""
    events = [*say()[:3], {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}]
    outcome = await run_model(adapter(server.play(Play(stream(*events), headers=EVENTS))))
    assert outcome.error is not None
    assert outcome.error.code == "overloaded"
    assert outcome.message is not None
    assert outcome.message.text == "Hello"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("play", "code"),
    [
        (Play(b'{"error": {"type": "overloaded_error"}}', headers={"content-type": "application/json"}), "overloaded"),
        (Play(b"event: message_start\ndata: {\n\n", headers=EVENTS), "malformed"),
        (Play(b"event: message_start\ndata: \xff\n\n", headers=EVENTS), "malformed"),
    ],
)
async def test_answers_that_are_no_stream(server: WireServer, play: Play, code: str | None) -> None:
    """An error under status 200, broken JSON, what is not UTF-8: each has its code."""
    outcome = await run_model(adapter(server.play(play)))
    assert not outcome.committed
    assert (outcome.error.code if outcome.error else None) == code


@pytest.mark.anyio
async def test_a_server_that_does_not_stream(server: WireServer) -> None:
    """A whole message in JSON is read like its events."""
    answer = {
        "type": "message", "id": "m", "model": "c", "stop_reason": "tool_use", "usage": {"input_tokens": 2, "output_tokens": 5},
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "S"}, REDACTED, {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}},
        ],
    }  # fmt: skip
    play = Play(json.dumps(answer).encode(), headers={"content-type": "application/json"})
    outcome = await run_model(adapter(server.play(play)))
    assert outcome.message is not None
    assert outcome.message.content == (
        Thinking("hm", {"signature": "S"}), Thinking("", REDACTED), Text("Hi"), ToolCall("t", "look", '{"a":1}'),
    )  # fmt: skip
    assert outcome.message.finish_reason == "tool_use"
    assert outcome.usage == Usage(0, 2, 5)


@pytest.mark.anyio
async def test_a_missing_key_is_auth(server: WireServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The SDK finds no key, says so in an exception of its own, and the run hears `auth`."""
    for name in list(os.environ):
        if name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    outcome = await run_model(Anthropic(MODEL, base_url=server.play(Play(stream(*say()), headers=EVENTS))))
    assert outcome.error is not None
    assert outcome.error.code == "auth"


# ---------------------------------------------------------------- recorded responses


def recorded(folder: Path, kinds: tuple[str, ...] = ("stream", "error")) -> list[Case]:
    return load_cases(folder / "wire", api="anthropic_messages", kinds=kinds)


@pytest.mark.anyio
async def test_every_recorded_response(shared: Path) -> None:
    """Each stream and error of the API, through the SDK and whole, is what its bytes say."""
    cases = recorded(shared)
    assert len(cases) >= 35
    assert await adapters.found_differences(cases) == {}


@pytest.mark.anyio
@pytest.mark.parametrize("chop", ["3", "random:1"])
async def test_recorded_responses_chopped(shared: Path, chop: str) -> None:
    """Where the network cuts the bytes changes nothing (the smaller streams)."""
    limit = 2_600 if chop == "3" else 6_500
    cases = [case for case in recorded(shared, ("stream",)) if case.entry["bytes"] < limit]
    assert len(cases) > 12
    assert await adapters.found_differences(cases, chop) == {}


def test_every_recorded_follow_up_is_rebuilt(shared: Path) -> None:
    """From our messages of the earlier replies each recorded client's next request comes out again, ids and all."""
    talks: dict[str, list[Case]] = {}
    for case in recorded(shared, ("stream", "json")):
        if case.entry["conversation"]:
            talks.setdefault(case.entry["conversation"]["id"], []).append(case)
    assert anyio.run(rebuild, list(talks.values())) >= 11


async def rebuild(talks: list[list[Case]]) -> int:
    """Go through conversations, turn by turn; the number of requests that were compared."""
    compared = 0
    with WireServer() as running:
        for turns in talks:
            history: list[Any] = []
            known = 0
            for case in sorted(turns, key=lambda case: case.entry["conversation"]["turn"]):
                request = case.meta["request"]["body"]
                history += inputs(request["messages"][known:])
                if known:
                    assert_rebuilt(request, history, case)
                    compared += 1
                outcome = await play_case(case, running)
                assert outcome.message is not None
                history.append(outcome.message)
                known = len(request["messages"]) + 1
    return compared


def inputs(messages: list[Any]) -> list[Any]:
    """The user's side of recorded messages, as an application would have given it."""
    found: list[Any] = []
    for message in messages:
        assert message["role"] == "user"
        blocks = message["content"]
        for block in blocks if isinstance(blocks, list) else [{"type": "text", "text": blocks}]:
            if block["type"] == "tool_result":
                content = block["content"]
                content = [content] if isinstance(content, str) else [given_block(part) for part in content]
                found.append(
                    ToolResultMessage(block["tool_use_id"], "tool", content, is_error=block.get("is_error", False))
                )
            else:
                found.append(user(given_block(block)))
    return found


def given_block(block: Any) -> Any:
    if block["type"] == "image":
        return InlineData(block["source"]["data"], block["source"]["media_type"])
    return block["text"]


def assert_rebuilt(request: Any, history: list[Any], case: Case) -> None:
    made = request_body(
        ModelRequest(None, history, (), {}), model=request["model"], provider=case.name.partition("/")[0]
    )["messages"]
    wanted = [plain(message) for message in request["messages"]]
    ours = [plain(message) for message in made]
    if not any(message["role"] == "assistant" for message in wanted):  # this client asked anew instead
        ours, wanted = ours[:1], wanted[:1]
    if "text" in (case.entry["conversation"].get("request_lacks_from_previous_turn") or ()):
        for message in ours:
            if message["role"] == "assistant":
                message["content"] = [part for part in message["content"] if part["type"] != "text"]
    assert len(ours) == len(wanted), case.name
    for index, (mine, theirs) in enumerate(zip(ours, wanted, strict=True)):
        assert same(mine, theirs), f"{case.name} messages[{index}]"


def plain(message: Any) -> Any:
    """A message without what clients write differently: a lone string, an absent false, blanks, marks of the cache."""
    content = message["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    kept = []
    for block in blocks:
        block = {
            key: value
            for key, value in block.items()
            if key not in ("cache_control", "caller") and value not in (None, [])
        }
        if block["type"] == "text" and not block["text"].strip():
            continue
        if block["type"] == "tool_result":
            if isinstance(block["content"], str):
                block["content"] = [{"type": "text", "text": block["content"]}]
            if block.get("is_error") is False:
                del block["is_error"]
        kept.append(block)
    return {"role": message["role"], "content": kept}


def same(ours: Any, theirs: Any) -> bool:
    """Equal; where the recorder cut long strings, up to the cut."""
    if ours == theirs:
        return True
    if isinstance(theirs, str) and (cut := re.fullmatch(r"(.*)\.\.\.\[cut: (\d+) characters\]", theirs, re.DOTALL)):
        return isinstance(ours, str) and ours.startswith(cut[1]) and len(ours) == int(cut[2])
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict)
            and ours.keys() == theirs.keys()
            and all(same(ours[key], theirs[key]) for key in theirs)
        )
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return isinstance(ours, str) and isinstance(theirs, str) and ascii_marks(ours) == ascii_marks(theirs)


def ascii_marks(text: str) -> str:
    """One recorder wrote typographic dashes and quotes as plain ones."""
    return text.translate(str.maketrans("–—‘’“”…", "--''\"\"."))


def test_no_reply_is_given_up_for_a_number_that_json_cannot_say() -> None:
    """A server in Python may write NaN beside it, which is kept as null; in arguments it stays: it is what the model said."""
    nan = float("nan")
    chunks = read(
        start(),
        opened(0, type="text", text="a", score=nan),
        stop(0),
        opened(1, type="web_search_tool_result", content=[{"score": nan}]),
        stop(1),
        opened(2, type="tool_use", id="c", name="n", input={"a": nan}, score=nan),
        stop(2),
        ended(container={"score": nan}),
    )
    opaque, call_ = [chunk.block for chunk in chunks if isinstance(chunk, BlockChunk)]
    assert [chunk.fidelity for chunk in chunks if isinstance(chunk, TextChunk)] == [None, {"score": None}]
    assert opaque.fidelity == {"type": "web_search_tool_result", "content": [{"score": None}]}
    assert (call_.arguments, call_.fidelity) == ('{"a":NaN}', {"score": None})
    assert chunks[-1].fidelity["container"] == {"score": None}
