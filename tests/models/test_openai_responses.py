"""OpenAI's Responses API: what goes out, what comes in, and that nothing is left of a stream however it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from agentloop.models._responses_events import EventReader
from agentloop.models.openai_responses import Dialect, OpenAIResponses, request_body
from agentloop.testing.wire import Case, Play, WireServer, load_cases, play_case, run_model
from tests import adapters

MODEL = "gpt-5"
REASONING = {
    "id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}], "encrypted_content": "SEALED",
}  # fmt: skip
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"z": None, "query": "ü", "n": 1.0}}
CODE = {"id": "ci_1", "type": "code_interpreter_call", "code": "1", "container_id": "c", "outputs": None}


# ---------------------------------------------------------------- helpers


def reply(*blocks: Any, provider: str = "openai", model: str = MODEL, **fields: Any) -> AssistantMessage:
    return AssistantMessage(blocks, "completed", provider=provider, model=model, **{"finish_reason": "stop", **fields})


def result(call_id: str, *content: Any, **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id, "look", content, **fields)


def body(
    *messages: Any, system: str | None = None, tools: Any = (), dialect: Any = None, **options: Any
) -> dict[str, Any]:
    model = options.pop("model", MODEL)
    return request_body(ModelRequest(system, messages, tools, options), model=model, dialect=dialect)


def sent(*messages: Any, **options: Any) -> list[Any]:
    return body(*messages, **options)["input"]


def added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def piece(kind: str, index: int, delta: Any, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": delta, **fields}


def completed(*output: Any, kind: str = "completed", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 7, "total_tokens": 17}
    response = {"id": "resp_1", "model": "gpt-x", "status": kind, "output": list(output), "usage": usage, **fields}
    return {"type": f"response.{kind}", "response": response}


def message(*texts: str, id: str = "msg_1", **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "annotations": [], "text": text} for text in texts]
    return {"id": id, "type": "message", "status": "completed", "role": "assistant", "content": content, **fields}


def function(arguments: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "look",
        "arguments": arguments,
        **fields,
    }


def read(*events: Any, names: dict[str, str] | None = None) -> list[Any]:
    reader = EventReader(names)
    return [chunk for event in events for chunk in reader.feed(event)]


def stream(*events: Any) -> bytes:
    lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return "".join(lines).encode()


def say(text: str = "Hello") -> tuple[Any, ...]:
    return (
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        added(0, id="msg_1", type="message", role="assistant", content=[]),
        piece("output_text", 0, text, content_index=0),
        done(0, **message(text)),
        completed(),
    )


EVENTS = {"content-type": "text/event-stream"}


def adapter(address: str, **options: Any) -> OpenAIResponses:
    return OpenAIResponses(MODEL, base_url=address, api_key="test-key", **options)


# ---------------------------------------------------------------- events in


def test_a_text_comes_piece_by_piece_and_its_item_at_the_end() -> None:
    """Deltas are passed on as they come; id, phase and annotations are those of the finished item."""
    note = {"type": "url_citation", "url": "https://example.org", "start_index": 0, "end_index": 4}
    final = message("high tide", id="msg_2", phase="final_answer")
    final["content"][0]["annotations"] = [note]
    chunks = read(
        added(0, id="msg_1", type="message", role="assistant", content=[]),
        {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": {"type": "output_text"}},
        piece("output_text", 0, "high ", content_index=0),
        piece("output_text", 0, "tide", content_index=0),
        done(0, **final),
    )
    assert chunks == [
        TextChunk("high ", 0),
        TextChunk("tide", 0),
        TextChunk("", 0, {
            "id": "msg_2", "status": "completed", "phase": "final_answer", "part": {"annotations": [note]},
        }),
        BlockEnd(0),
    ]  # fmt: skip


def test_annotations_that_only_events_told_of_are_kept() -> None:
    """A provider whose finished item has none of them does not lose them."""
    note = {"type": "file_citation", "file_id": "f"}
    event = {"type": "response.output_text.annotation.added", "output_index": 0, "content_index": 0, "annotation": note}
    chunks = read(piece("output_text", 0, "x"), event, done(0, **message("x")))
    assert chunks[1].fidelity["part"] == {"annotations": [note]}


def test_the_parts_of_a_message_are_blocks_of_their_own() -> None:
    """A part ends where the next begins, so that the next is not held back; a refusal is a text that says so."""
    final = message("a")
    final["content"].append({"type": "refusal", "refusal": "no"})
    chunks = read(
        piece("output_text", 0, "a", content_index=0),
        piece("refusal", 0, "no", content_index=1),
        done(0, **final),
        completed(),
    )
    assert chunks[:3] == [TextChunk("a", 0), TextChunk("", 0), BlockEnd(0)]
    assert chunks[3] == TextChunk("no", 1)
    assert chunks[4].fidelity["part"] == {"type": "refusal"}
    assert chunks[-1].reason == "refusal"


def test_a_summary_has_a_blank_line_between_its_parts() -> None:
    """It comes with the first piece of the next part; the item as it ended is the block's fidelity."""
    chunks = read(
        added(0, id="rs_1", type="reasoning", summary=[], encrypted_content="EARLY"),
        piece("reasoning_summary_text", 0, "one", summary_index=0),
        piece("reasoning_summary_text", 0, "two", summary_index=1),
        piece("reasoning_summary_text", 0, "!", summary_index=1),
        done(0, **REASONING),
    )
    assert chunks == [
        ThinkingChunk("one", 0), ThinkingChunk("\n\ntwo", 0), ThinkingChunk("!", 0), ThinkingChunk("", 0, REASONING),
        BlockEnd(0),
    ]  # fmt: skip


def test_reasoning_as_text_or_hidden() -> None:
    """Raw reasoning streams where there is no summary, beside one it is only kept; hidden reasoning comes whole."""
    raw = read(piece("reasoning_text", 0, "The ", content_index=0), piece("reasoning_text", 0, "tide", content_index=0))
    assert raw == [ThinkingChunk("The ", 0), ThinkingChunk("tide", 0)]
    both = read(piece("reasoning_summary_text", 0, "short", summary_index=0), piece("reasoning_text", 0, "long"))
    assert both == [ThinkingChunk("short", 0)]
    hidden = {**REASONING, "summary": []}
    assert read(added(0, id="rs_1", type="reasoning", summary=[]), done(0, **hidden)) == [
        BlockChunk(Thinking("", hidden))
    ]


def test_a_call_opens_at_once_and_streams_its_arguments() -> None:
    """The item's id and namespace are fidelity, its status is not; a finished item that differs is told."""
    streamed = [
        piece("function_call_arguments", 0, '{"a"'),
        piece("function_call_arguments", 0, ": 1}"),
        {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"a": 1}'},
    ]
    begun, final = (
        function(status="in_progress", namespace="n"),
        function('{"a": 1}', status="completed", namespace="n"),
    )
    assert read(added(0, **begun), *streamed, done(0, **final)) == [
        ToolCallChunk("", "call_1", "look", 0, {"id": "fc_1", "namespace": "n"}),
        ToolCallChunk('{"a"', index=0),
        ToolCallChunk(": 1}", index=0),
        BlockEnd(0),
    ]
    rotated = read(added(0, **begun), *streamed, done(0, **{**final, "id": "fc_2"}))
    assert rotated[3] == ToolCallChunk("", "call_1", None, 0, {"id": "fc_2", "namespace": "n"})


def test_arguments_that_did_not_stream_come_with_the_item() -> None:
    """A call whose arguments stand in its finished item only, or that was never announced, is whole all the same."""
    assert read(added(0, **function()), done(0, **function('{"a": 1}'))) == [
        ToolCallChunk("", "call_1", "look", 0, {"id": "fc_1"}),
        ToolCallChunk('{"a": 1}', index=0),
        BlockEnd(0),
    ]
    assert read(done(0, **function("{}")))[:2] == [
        ToolCallChunk("", "call_1", "look", 0, {"id": "fc_1"}),
        ToolCallChunk("{}", index=0),
    ]


def test_a_custom_call_has_its_input_as_arguments() -> None:
    """It is a call of ours, and its fidelity says of which kind."""
    item = {"id": "ct_1", "type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": ""}
    chunks = read(
        added(0, **item),
        piece("custom_tool_call_input", 0, "*** Begin"),
        done(0, **{**item, "input": "*** Begin"}),
        completed(),
    )
    assert chunks[0] == ToolCallChunk("", "call_1", "patch", 0, {"id": "ct_1", "type": "custom_tool_call", "input": ""})
    assert chunks[1].arguments == "*** Begin"
    assert chunks[2].fidelity["input"] == "*** Begin"
    assert chunks[-1].reason == "tool_use"


def test_items_without_a_word_of_ours_come_whole() -> None:
    """Built-in tools and kinds that nobody knows are kept as they ended, order of keys included."""
    unknown = {"type": "hologram", "frames": [1.0, None]}
    chunks = read(
        added(0, id="ws_1", type="web_search_call", status="in_progress"),
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "ws_1"},
        done(0, **SEARCH), added(1, type="hologram"), done(1, **unknown),
    )  # fmt: skip
    assert chunks == [BlockChunk(Text("", SEARCH)), BlockChunk(Text("", unknown))]
    assert json.dumps(chunks[0].block.fidelity) == json.dumps(SEARCH)


def search(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"ws_{number}", "type": "web_search_call", **fields}


def test_items_that_end_in_another_order_stand_in_theirs() -> None:
    """A provider runs its tools at once: whichever ends first, the blocks stand as the items do."""
    begun = [added(number, **search(number)) for number in (0, 1, 2)]
    events = [*begun, *(done(number, **search(number, status="completed")) for number in (2, 0, 1))]
    told = [BlockChunk(Text("", search(number, status="completed"))) for number in (0, 1, 2)]
    assert read(*events) == told
    assert read(*events[:4]) == []
    assert read(*events[:5]) == told[:1]


def test_what_is_whole_does_not_wait_for_what_never_ends() -> None:
    """Where text begins, or the reply ends, items before it that are whole come out; the text never waits."""
    begun = [added(number, **search(number)) for number in (0, 1)]
    events = [*begun, done(1, **search(1, status="completed"))]
    whole = BlockChunk(Text("", search(1, status="completed")))
    assert read(*events, piece("output_text", 2, "a")) == [whole, TextChunk("a", 0)]
    assert whole in read(*events, completed())
    spoken = [added(0, **message()), piece("output_text", 0, "a", content_index=0)]
    running = [added(1, **search(1)), added(2, **search(2)), done(2, **search(2)), piece("output_text", 0, "b")]
    assert read(*spoken, *running) == [TextChunk("a", 0), TextChunk("b", 0)]


def test_what_only_the_final_response_holds_is_not_lost() -> None:
    """Items that the stream began and never ended, or never told of, are read from the response, once each."""
    chunks = read(
        added(0, id="ws_1", type="web_search_call"), piece("output_text", 1, "hi", item_id="msg_1"),
        completed(SEARCH, message("hi"), function("{}")),
    )  # fmt: skip
    kinds = [type(chunk).__name__ for chunk in chunks]
    assert kinds == [
        "TextChunk", "BlockChunk", "TextChunk", "BlockEnd", "ToolCallChunk", "ToolCallChunk", "BlockEnd", "UsageChunk",
        "Finish",
    ]  # fmt: skip
    assert read(*say()[:-1], completed(message("Hello")))[:-2] == read(*say())[:-2]
    assert [chunk for chunk in read(done(0, **SEARCH), completed(SEARCH)) if isinstance(chunk, BlockChunk)] == [
        BlockChunk(Text("", SEARCH))
    ]
    shifted = [added(1, **message()), piece("output_text", 1, "x"), done(1, **message("x")), completed(message("x"))]
    assert [type(chunk) for chunk in read(*shifted)] == [TextChunk, TextChunk, BlockEnd, UsageChunk, Finish]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (completed(), "stop"),
        (completed(kind="incomplete", incomplete_details={"reason": "max_output_tokens"}), "length"),
        (completed(kind="incomplete", incomplete_details={"reason": "content_filter"}), "content_filter"),
        (completed(kind="incomplete", incomplete_details={"reason": "new"}), "unknown"),
        (completed(kind="incomplete"), "unknown"),
    ],
)
def test_ends(event: Any, reason: str) -> None:
    """Usage, then the finish in our words; what belongs to no block is the message's fidelity."""
    usage, finish = read(event)
    assert usage == UsageChunk(Usage(4, 6, 7))
    assert finish.reason == reason
    assert finish.fidelity["id"] == "resp_1"
    assert finish.fidelity["usage"]["total_tokens"] == 17


def test_a_reply_with_calls_asks_for_tools() -> None:
    """Unless it was cut: then that is the reason."""
    assert read(done(0, **function("{}")), completed())[-1].reason == "tool_use"
    cut = completed(kind="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert read(added(0, **function()), piece("function_call_arguments", 0, '{"a'), cut)[-1].reason == "length"


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, "rate_limit"),
        ({"type": "error", "error": {"type": "insufficient_quota", "message": "no"}}, "rate_limit"),
        ({"type": "error", "code": None, "message": "it broke"}, "network"),
        (completed(kind="failed", error={"code": "server_error", "message": "it broke"}), "network"),
        (completed(kind="failed", error={"code": "context_length_exceeded", "message": "x"}), "context_too_long"),
        (completed(kind="failed", error={"code": "invalid_prompt", "message": "x"}), "rejected"),
        (completed(kind="failed", error=None), "network"),
    ],
)
def test_errors_inside_a_stream(event: Any, code: str) -> None:
    """An error event and a failed response have the code of what they say; what was used is told first."""
    chunks: list[Any] = []
    with pytest.raises(ModelError) as caught:
        chunks.extend(EventReader().feed(event))
    assert caught.value.code == code
    assert chunks == ([UsageChunk(Usage(4, 6, 7))] if "response" in event else [])


def test_events_that_nobody_knows_change_nothing() -> None:
    """New kinds of events and events without a type are passed over."""
    noise = [{"type": "response.weather", "output_index": 7}, {}, {"type": "ping"}]
    assert read(*[event for real in say() for event in (*noise, real)]) == read(*say())


def test_only_a_final_response_ends_a_reply() -> None:
    """Without one there is no finish: the kernel calls the reply cut."""
    assert not [chunk for chunk in read(*say()[:-1]) if isinstance(chunk, Finish)]


@pytest.mark.parametrize(
    "event",
    [
        None, [], "x", {"type": "response.output_item.added"}, {"type": "response.output_item.done", "item": None},
        {"type": "response.completed"}, {"type": "response.completed", "response": {"output": [1]}},
        piece("output_text", 0, 5), piece("output_text", [], "x"), done(0, **function(arguments=[])),
        {"type": "response.output_text.annotation.added", "output_index": 0}, {"type": []},
    ],
)  # fmt: skip
def test_an_event_of_a_wrong_shape_is_malformed(event: Any) -> None:
    """No exception of the interpreter leaves the reader."""
    with pytest.raises(ModelError) as caught:
        read(event)
    assert caught.value.code == "malformed"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["message", "reasoning", "function_call", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "content"]), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = [
    "output_item.added", "output_item.done", "content_part.added", "output_text.delta", "reasoning_text.delta",
    "function_call_arguments.delta", "completed", "failed",
]  # fmt: skip


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from([f"response.{kind}" for kind in KINDS])},
            optional=dict.fromkeys(("output_index", "item", "part", "delta", "response", "content_index"), JSON),
        ),
        max_size=5,
    )
)
def test_whatever_a_server_sends_only_model_errors_come_out(events: list[Any]) -> None:
    """Events of known kinds with hostile content are read, or refused with a `ModelError`."""
    adapters.assert_read_or_refused(read, events)


def test_names_of_tools_are_mapped_back() -> None:
    """A tool whose name the provider cannot have is called by its own name again."""
    made, kept = (
        tool["name"] for tool in body(user("go"), tools=[ToolSpec("mcp:files.read"), ToolSpec("look")])["tools"]
    )
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made)
    assert kept == "look"
    assert read(added(0, **function(name=made)), names={made: "mcp:files.read"})[0].name == "mcp:files.read"


# ---------------------------------------------------------------- history out


def test_the_least_request() -> None:
    """A prompt alone: nothing is stored, reasoning is asked for encrypted, nothing is chained."""
    assert body(user("Hello")) == {
        "model": MODEL,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
    }


def test_system_prompt_and_tools() -> None:
    """Tools are not strict, whatever their schema; one without a schema takes an empty object."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = body(user("x"), system="Be brief.", tools=[ToolSpec("add", "Adds.", schema), ToolSpec("now")])
    assert request["instructions"] == "Be brief."
    assert request["tools"] == [
        {"type": "function", "name": "add", "description": "Adds.", "parameters": schema, "strict": False},
        {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False},
    ]


def test_a_reply_of_the_same_model_goes_back_as_it_came() -> None:
    """Where the provider stores, every item goes back with its id, in place, byte for byte."""
    texts = ({"id": "msg_1", "phase": "commentary", "part": {"annotations": [{"b": 1, "a": 2}]}}, {"id": "msg_1"})
    blocks = (
        Thinking("why", REASONING), Text("I look. ", texts[0]), Text("Now.", texts[1]), Text("", SEARCH), Text("", CODE),
        ToolCall("call_1", "look", '{"n": 1.0}', {"id": "fc_1"}),
    )  # fmt: skip
    items = sent(user("go"), reply(*blocks), result("call_1", "ok"), store=True)[1:]
    parts = [
        {"type": "output_text", "text": "I look. ", "annotations": [{"b": 1, "a": 2}]},
        {"type": "output_text", "text": "Now."},
    ]
    wanted = [
        REASONING, {"type": "message", "role": "assistant", "id": "msg_1", "phase": "commentary", "content": parts}, SEARCH,
        CODE,
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"n": 1.0}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
    ]  # fmt: skip
    assert json.dumps(items) == json.dumps(wanted)


def test_nothing_stored_no_ids() -> None:
    """OpenAI gets no ids back that it would look up; items that are nothing without theirs keep them."""
    text = Text("so", {"id": "msg_1", "status": "completed", "phase": "final_answer"})
    blocks = (Thinking("why", REASONING), Text("", SEARCH), Text("", CODE), text)
    items = sent(user("go"), reply(*blocks))[1:]
    assert [item.get("id") for item in items] == [None, None, "ci_1", None]
    assert items[0]["encrypted_content"] == "SEALED"
    assert items[3] == {
        "type": "message", "role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "so"}],
    }  # fmt: skip
    other = reply(*blocks, provider="xai")
    kept = sent(user("go"), other, dialect=Dialect("xai"))[1:]
    assert [item.get("id") for item in kept] == ["rs_1", "ws_1", "ci_1", "msg_1"]


@pytest.mark.parametrize("other", [{"provider": "anthropic"}, {"model": "gpt-4o"}])
def test_reasoning_and_fidelity_do_not_cross_models(other: dict[str, str]) -> None:
    """Another provider's or model's reply goes out as its text and calls alone."""
    blocks = (
        Thinking("why", REASONING), Text("", SEARCH), Text("so", {"id": "msg_1", "phase": "x"}),
        ToolCall("call_1", "look", "{}", {"id": "fc_1"}), InlineData("QQ==", "image/png"),
    )  # fmt: skip
    assert sent(user("go"), reply(*blocks, **other), result("call_1", "ok"))[1:3] == [
        {"role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
    ]


def test_reasoning_needs_to_be_readable_and_followed() -> None:
    """Without its content nobody could read it; without what it led to the API refuses it."""
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    raw = {**bare, "content": [{"type": "reasoning_text", "text": "hm"}]}
    text = Text("so", {"id": "msg_1"})

    def kinds(*blocks: Any, **options: Any) -> list[Any]:
        return [
            (item.get("type"), item.get("id")) for item in sent(user("x"), reply(*blocks), user("y"), **options)[1:-1]
        ]

    assert kinds(Thinking("", bare), text) == [("message", None)]
    assert kinds(Thinking("", bare), text, store=True) == [("reasoning", "rs_1"), ("message", "msg_1")]
    assert kinds(Thinking("hm", raw), text) == [("reasoning", None), ("message", None)]
    assert kinds(Thinking("", REASONING)) == []
    assert kinds(text, Thinking("", REASONING), store=True) == [("message", "msg_1")]
    assert kinds(Thinking("", bare), "cut", store=True) == [(None, None)]
    assert kinds(Thinking("", REASONING), "cut", store=True) == [("reasoning", None), (None, None)]


def test_custom_calls_and_their_results() -> None:
    """A custom call goes back with its input, which no JSON is, and its result is a custom one."""
    kept = {"id": "ct_1", "type": "custom_tool_call", "input": "*** Begin"}
    items = sent(user("go"), reply(ToolCall("call_1", "patch", "{}", kept)), result("call_1", "ok"), store=True)[1:]
    assert items == [
        {"input": "*** Begin", "id": "ct_1", "type": "custom_tool_call", "call_id": "call_1", "name": "patch"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"},
    ]


def test_results_with_pictures_and_files() -> None:
    """One text is a string, anything more a list of parts."""
    history = [user("go"), reply(ToolCall("a", "look"))]
    assert sent(*history, result("a", "1"))[-1]["output"] == "1"
    many = sent(*history, result("a", "1", InlineData("QQ==", "image/png"), InlineData("Qg==", "application/pdf")))
    assert many[-1]["output"] == [
        {"type": "input_text", "text": "1"},
        {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "auto"},
        {"type": "input_file", "filename": "file.pdf", "file_data": "data:application/pdf;base64,Qg=="},
    ]


def test_the_caller_s_own_items_and_parts() -> None:
    """An item of the caller's stands where it was put; a part goes into the message around it."""
    answer = {"type": "tool_search_output", "call_id": "c", "tools": []}
    file = {"type": "input_file", "file_id": "file_1"}
    items = sent(UserMessage((Text("", answer), "see", Text("", file), Image("https://x.org/a.png"))))
    assert items == [
        answer,
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                file,
                {"type": "input_image", "image_url": "https://x.org/a.png", "detail": "auto"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("block", "code", "words"),
    [
        (InlineData("QQ==", "audio/wav"), "unsupported", "text, images and files, got audio/wav"),
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


def test_a_message_that_is_none_of_the_model_s_world_is_named() -> None:
    """An adapter that is used without the kernel says where a custom message stands."""
    with pytest.raises(ModelError, match=r"messages\[1\]: expected a user, assistant or tool result message, got str"):
        sent(user("x"), "y")


def test_arguments_go_out_as_they_were_sent() -> None:
    """Text for text; blank arguments are an empty object."""
    calls = [ToolCall("a", "look", '{"b": 1.0,  "a":1}'), ToolCall("b", "look", " ")]
    items = sent(user("go"), reply(*calls), result("a", "1"), result("b", "2"))[1:3]
    assert [item["arguments"] for item in items] == ['{"b": 1.0,  "a":1}', "{}"]


def test_ids_that_are_too_long_are_shortened_the_same_way_each_time() -> None:
    """In call and result alike; what the provider takes stays as it is."""
    long = "resp_" + "x" * 60 + ":call_0#2"
    history = [
        user("go"),
        reply(ToolCall(long, "look"), ToolCall("ok#2", "look")),
        result(long, "1"),
        result("ok#2", "2"),
    ]
    items = sent(*history)
    made = items[1]["call_id"]
    assert len(made) <= 64
    assert items[3]["call_id"] == made
    assert items[2]["call_id"] == items[4]["call_id"] == "ok#2"
    assert sent(*history, user("more"))[:5] == items


def test_a_request_is_the_same_from_turn_to_turn() -> None:
    """Each request begins with the one before it, byte for byte."""
    history = [
        user("go"), reply(Thinking("why", REASONING), ToolCall("bad id", "x.y", '{"b":1}')), result("bad id", "1"),
        reply(Text("one", {"id": "msg_1"})), user("more"), reply("two"), user("end"),
    ]  # fmt: skip
    previous = ""
    for length in (1, 3, 5, 7):
        request = body(*history[:length], system="s", tools=[ToolSpec("x.y")])
        text = json.dumps([request["instructions"], request["tools"], request["input"]])[:-2]
        assert text.startswith(previous)
        previous = text


# ---------------------------------------------------------------- options


def test_common_options_in_the_provider_s_words() -> None:
    """Temperature, lengths, the choice of a tool; what nobody knows goes through."""
    request = body(
        user("x"), tools=[ToolSpec("look")], temperature=0.5, top_p=0.9, max_tokens=100, tool_choice={"name": "look"},
        parallel_tool_calls=False, service_tier="flex",
    )  # fmt: skip
    assert request["temperature"] == 0.5
    assert request["top_p"] == 0.9
    assert request["max_output_tokens"] == 100
    assert request["tool_choice"] == {"type": "function", "name": "look"}
    assert request["parallel_tool_calls"] is False
    assert request["service_tier"] == "flex"
    assert body(user("x"), tools=[ToolSpec("look")], tool_choice="required")["tool_choice"] == "required"
    assert "tool_choice" not in body(user("x"), tool_choice="auto")


@pytest.mark.parametrize("option", [{"seed": 1}, {"stop": "END"}])
def test_what_the_provider_cannot_do_is_said_before_it_is_asked(option: dict[str, Any]) -> None:
    """The API has neither seed nor stop texts."""
    with pytest.raises(ModelError) as caught:
        body(user("x"), **option)
    assert caught.value.code == "unsupported"


def test_thinking_levels() -> None:
    """A level is an effort, shown as a summary unless that is not wanted."""
    assert body(user("x"), thinking="high")["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body(user("x"), thinking="max")["reasoning"]["effort"] == "xhigh"
    assert body(user("x"), thinking="off")["reasoning"] == {"effort": "none"}
    assert body(user("x"), thinking="low", dialect=Dialect(summary=None))["reasoning"] == {"effort": "low"}
    assert "reasoning" not in body(user("x"))


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ("gpt-5", True),
        ("o4-mini", True),
        ("gpt-4o", False),
        ("openai/gpt-4.1", False),
        ("grok-4", True),
        ("gpt-3.5-turbo", False),
    ],
)
def test_who_is_asked_for_encrypted_reasoning(model: str, asks: bool) -> None:
    """Models that have none refuse the question; the adapter can be told either way."""
    assert ("include" in body(user("x"), model=model)) is asks
    told = body(user("x"), model=model, dialect=Dialect(encrypted_reasoning=not asks))
    assert ("include" in told) is not asks


def test_store_and_include() -> None:
    """`store` may be true or left out; what the caller includes comes beside ours."""
    assert body(user("x"), store=True)["store"] is True
    assert "store" not in body(user("x"), dialect=Dialect(store=None))
    more = body(user("x"), include=["web_search_call.action.sources"])["include"]
    assert more == ["reasoning.encrypted_content", "web_search_call.action.sources"]


def test_tools_of_the_provider() -> None:
    """They stand behind the caller's; one with the name of a tool takes the place of its description."""
    patch = {"type": "custom", "name": "patch"}
    search = {"type": "web_search"}
    request = body(user("x"), tools=[ToolSpec("patch", "ours")], provider_tools=[search, patch])
    assert request["tools"] == [patch, search]


# ---------------------------------------------------------------- over the wire


@pytest.mark.anyio
async def test_a_reply_over_the_wire(server: WireServer) -> None:
    """The real SDK asks at the API's path with our body, and its events become the reply."""
    address = server.play(Play(stream(*say("Grüß dich")), headers=EVENTS, chop="1"))
    outcome = await run_model(adapter(address), options={"temperature": 0.5})
    assert outcome.message is not None
    assert outcome.message.text == "Grüß dich"
    assert outcome.usage == Usage(4, 6, 7)
    seen = server.requests[-1]
    assert seen.path == "/responses"
    assert seen.headers["authorization"] == "Bearer test-key"
    assert seen.json["temperature"] == 0.5


@pytest.mark.anyio
async def test_the_end_mark_leaves_nothing_behind(server: WireServer) -> None:
    """At `[DONE]` the SDK leaves its own loop; what it left is closed (trio would warn)."""
    outcome = await run_model(adapter(server.play(Play(stream(*say()) + b"data: [DONE]\n\n", headers=EVENTS))))
    assert outcome.committed


@pytest.mark.anyio
async def test_an_error_in_the_middle_keeps_what_came(server: WireServer) -> None:
    """The SDK raises out of its own loop then; the text stays and nothing is left to the collector."""
    events = [*say()[:3], {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "slow down"}}]
    outcome = await run_model(adapter(server.play(Play(stream(*events), headers=EVENTS))))
    assert outcome.error is not None
    assert outcome.error.code == "rate_limit"
    assert outcome.message is not None
    assert outcome.message.text == "Hello"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("play", "code"),
    [
        (Play(b'{"error": {"code": "server_error"}}', headers={"content-type": "application/json"}), "network"),
        (Play(b"data: {\n\n", headers=EVENTS), "malformed"),
        (Play(b"data: \xff\n\n", headers=EVENTS), "malformed"),
    ],
)
async def test_answers_that_are_no_stream(server: WireServer, play: Play, code: str | None) -> None:
    """An error under status 200, broken JSON, what is not UTF-8: each has its code."""
    outcome = await run_model(adapter(server.play(play)))
    assert not outcome.committed
    assert (outcome.error.code if outcome.error else None) == code


@pytest.mark.anyio
async def test_a_server_that_does_not_stream(server: WireServer) -> None:
    """A whole response in JSON is read like its events."""
    answer = completed(REASONING, message("Hi"), function('{"a": 1}'))["response"]
    play = Play(json.dumps(answer).encode(), headers={"content-type": "application/json"})
    outcome = await run_model(adapter(server.play(play)))
    assert outcome.message is not None
    assert [type(block) for block in outcome.message.content] == [Thinking, Text, ToolCall]
    assert outcome.message.content[0] == Thinking("why", REASONING)
    assert outcome.message.finish_reason == "tool_use"


@pytest.mark.anyio
async def test_a_missing_key_is_auth(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK finds no key, says so in an exception of its own, and the run hears `auth`."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    outcome = await run_model(OpenAIResponses(MODEL, base_url=server.play(Play(stream(*say()), headers=EVENTS))))
    assert outcome.error is not None
    assert outcome.error.code == "auth"


# ---------------------------------------------------------------- recorded responses


def recorded(folder: Path, kinds: tuple[str, ...] = ("stream", "error")) -> list[Case]:
    return load_cases(folder / "wire", api="openai_responses", kinds=kinds)


@pytest.mark.anyio
async def test_every_recorded_response(shared: Path) -> None:
    """Each stream and error of the API, through the SDK and whole, is what its bytes say."""
    cases = recorded(shared)
    assert len(cases) >= 40
    assert await adapters.found_differences(cases) == {}


@pytest.mark.anyio
@pytest.mark.parametrize("chop", ["7", "random:1"])
async def test_recorded_responses_chopped(shared: Path, chop: str) -> None:
    """Where the network cuts the bytes changes nothing (the smaller streams)."""
    cases = [case for case in recorded(shared, ("stream",)) if case.entry["bytes"] < 9_000]
    assert len(cases) >= 8
    assert await adapters.found_differences(cases, chop) == {}


def test_every_recorded_follow_up_is_rebuilt(shared: Path) -> None:
    """From our messages of the earlier replies each recorded client's next request comes out again, ids and all."""
    talks: dict[str, list[Case]] = {}
    for case in recorded(shared, ("stream", "json")):
        if case.entry["conversation"]:
            talks.setdefault(case.name.rpartition("-")[0], []).append(case)
    assert anyio.run(rebuild, list(talks.values())) >= 16


async def rebuild(talks: list[list[Case]]) -> int:
    """Go through conversations, turn by turn; the number of requests that were compared."""
    compared = 0
    with WireServer() as running:
        for turns in talks:
            history: list[Any] = []
            known = 0
            for case in sorted(turns, key=lambda case: case.entry["conversation"]["turn"]):
                request = case.meta["request"]["body"]
                said = [item for item in request["input"] if item.get("role") not in ("system", "developer")]
                if known:
                    news = list(said[known:])
                    while news and not given_by_user(news[0]):  # the reply, which is ours to rebuild
                        news.pop(0)
                    history += inputs(news)
                    assert_rebuilt(request, said, history, case)
                    compared += 1
                else:
                    history += inputs(said)
                outcome = await play_case(case, running)
                assert outcome.message is not None
                history.append(outcome.message)
                known = len(said)
    return compared


def given_by_user(item: Any) -> bool:
    return item.get("role") == "user" or item.get("type", "").endswith("_output")


def inputs(items: list[Any]) -> list[Any]:
    """The user's side of recorded items, as an application would have given it."""
    found: list[Any] = []
    for item in items:
        assert given_by_user(item), item
        if item.get("type") == "function_call_output":
            found.append(ToolResultMessage(item["call_id"], "tool", (item["output"],)))
        elif item.get("role") == "user":
            content = item["content"]
            found.append(user(content) if isinstance(content, str) else user(*[part["text"] for part in content]))
        else:
            found.append(UserMessage((Text("", item),)))
    return found


def assert_rebuilt(request: Any, wanted: list[Any], history: list[Any], case: Case) -> None:
    renamed = same_ids(history)
    store = request.get("store", True)
    made = request_body(
        ModelRequest(None, renamed, (), {"store": store}),
        model=case.entry["model"],
        dialect=Dialect(case.name.partition("/")[0]),
    )["input"]
    if not any(not given_by_user(item) for item in wanted):  # this client asked anew instead
        made, wanted = made[:1], wanted[:1]
    if "encrypted content" in (case.entry["conversation"].get("request_lacks_from_previous_turn") or ()):
        made = [item for item in made if item.get("type") != "reasoning"]
    assert len(made) == len(wanted), case.name
    for index, (mine, theirs) in enumerate(zip(made, wanted, strict=True)):
        assert holds(plain(mine), plain(theirs)), f"{case.name} input[{index}]"


def same_ids(history: list[Any]) -> list[Any]:
    """One client wrote the response's id before a call's; ours are the provider's own. Results follow their calls."""
    calls = [call.id for message in history if isinstance(message, AssistantMessage) for call in message.tool_calls]
    fixed = []
    for message in history:
        if isinstance(message, ToolResultMessage):
            own = next(call for call in calls if message.tool_call_id.endswith(call))
            message = ToolResultMessage(own, message.tool_name, message.content)
        fixed.append(message)
    return fixed


def plain(item: Any) -> Any:
    """An item without what clients write differently: a lone string, the type of a message."""
    item = dict(item)
    if "role" in item:
        item.pop("type", None)
        content = item["content"]
        kind = "input_text" if item["role"] == "user" else "output_text"
        item["content"] = [{"type": kind, "text": content}] if isinstance(content, str) else content
    if "call_id" in item:
        item["call_id"] = item["call_id"].rpartition(":")[2]
    return {key: value for key, value in item.items() if value is not None}


def holds(ours: Any, theirs: Any) -> bool:
    """Whether ours says all that theirs does; it may say more (a status, annotations)."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(key in ours and holds(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(holds, ours, theirs))
    if isinstance(theirs, str) and isinstance(ours, str):
        return ours.translate(MARKS) == theirs.translate(MARKS)
    return bool(ours == theirs)


MARKS = str.maketrans("–—‘’“”", "--''\"\"")  # one recorder wrote typographic marks as plain ones


def test_no_reply_is_given_up_for_a_number_that_json_cannot_say() -> None:
    """A server in Python may write NaN beside it, which is kept as null."""
    nan = float("nan")
    said = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [nan]}
    chunks = read(
        done(0, type="message", id="m", role="assistant", content=[said], score=nan),
        done(1, type="reasoning", id="r", summary=[], score=nan),
        done(2, **function("{}", score=nan)),
        done(3, type="file_search_call", id="s", results=[{"score": nan}]),
        completed(service_tier=nan),
    )
    text = [chunk.fidelity for chunk in chunks if isinstance(chunk, TextChunk)][-1]
    assert (text["score"], text["part"]["logprobs"]) == (None, [None])
    thinking, search = [chunk.block.fidelity for chunk in chunks if isinstance(chunk, BlockChunk)]
    assert (thinking["score"], search["results"]) == (None, [{"score": None}])
    assert [chunk.fidelity for chunk in chunks if isinstance(chunk, ToolCallChunk)][0] == {"id": "fc_1", "score": None}
    assert chunks[-1].fidelity["service_tier"] is None
