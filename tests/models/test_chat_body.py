"""Chat Completions out, without a network: messages and options become a provider's body."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agentloop.errors import ModelError
from agentloop.messages import (
    AssistantMessage,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
    user,
)
from agentloop.model import ModelRequest
from agentloop.models._chat_body import request_body
from agentloop.models._chat_quirks import OPENAI, THINKING_TYPE, ChatQuirks, IdRule


def body(*messages: Any, quirks: ChatQuirks | None = None, provider: str = "p", **request: Any) -> dict[str, Any]:
    values = {"system_prompt": None, "tools": (), "options": {}} | request
    return request_body(
        ModelRequest(messages=messages, **values), model="m", provider=provider, quirks=quirks or ChatQuirks()
    )


def messages(*given: Any, **options: Any) -> list[dict[str, Any]]:
    return body(*given, **options)["messages"]  # type: ignore[no-any-return]


def reply(*content: Any, provider: str = "p", model: str = "m", **fields: Any) -> AssistantMessage:
    return AssistantMessage(content, "completed", "stop", provider=provider, model=model, **fields)


def test_smallest_request() -> None:
    """Model, messages, stream and the question for usage; nothing that was not asked for."""
    assert body(user("hi")) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_system_prompt() -> None:
    """It comes first, under the role that the provider takes."""
    assert messages(user("hi"), system_prompt="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    quirks = ChatQuirks(system_role="developer")
    assert messages(user("hi"), system_prompt="Be brief.", quirks=quirks)[0]["role"] == "developer"


def test_user_parts() -> None:
    """Texts and pictures are parts in their order; audio and documents have parts of their own."""
    message = UserMessage(
        (
            Text("look"),
            Image("https://example.org/a.png"),
            InlineData("AAAA", "image/png"),
            InlineData("BBBB", "audio/wav"),
            InlineData("CCCC", "application/pdf"),
        )
    )
    assert messages(message)[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
        {"type": "file", "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,CCCC"}},
    ]


@pytest.mark.parametrize("block", [InlineData("x", "video/mp4"), InlineThinking("x", "image/png")])
def test_what_the_api_has_no_place_for(block: Any) -> None:
    """It is refused before anything is sent, by name."""
    with pytest.raises(ModelError) as caught:
        body(UserMessage((block,)))
    assert caught.value.code == "unsupported"


def test_calls_and_results() -> None:
    """Arguments go back as they were sent, none as an empty object; results follow by id."""
    sent = messages(
        reply(Text("ok"), ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", "")),
        ToolResultMessage("c1", "f", (Text("one"), Text("two"))),
        ToolResultMessage("c2", "g", "failed", is_error=True),
    )
    assert sent == [
        {
            "role": "assistant",
            "content": "ok",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "c2", "content": "failed"},
    ]


def test_pictures_of_results_follow_the_last_result() -> None:
    """Results hold text only: pictures come in a user message behind all results, told by the tool's name."""
    sent = messages(
        reply(ToolCall("c1", "f"), ToolCall("c2", "g")),
        ToolResultMessage("c1", "f", (Image("https://example.org/a.png"),)),
        ToolResultMessage("c2", "g", "two"),
        user("and?"),
    )
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user", "user"]
    assert "1 attached" in sent[1]["content"]
    assert sent[3]["content"] == [
        {"type": "text", "text": "Attached to the result of f:"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]


def test_pictures_of_the_last_results() -> None:
    """They come also where nothing follows."""
    sent = messages(reply(ToolCall("c", "f")), ToolResultMessage("c", "f", (InlineData("A", "image/png"),)))
    assert sent[-1]["role"] == "user"


# ---------------------------------------------------------------- replies


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_own_reasoning_goes_back_under_its_name(field: str) -> None:
    """Reasoning of the same provider and model goes back under the name that it came under."""
    (sent,) = messages(reply(Thinking("hm", {"field": field}), Text("so")))
    assert sent == {"role": "assistant", "content": "so", field: "hm"}


def test_own_details_go_back_as_they_came() -> None:
    """Details of all blocks and of the message are one list; signatures of calls go back with them."""
    (sent,) = messages(
        reply(
            Thinking("hm", {"field": "reasoning", "reasoning_details": [{"type": "t", "index": 0, "text": "hm"}]}),
            ToolCall("c", "f", "{}", {"extra_content": {"s": 1}}),
            fidelity={"reasoning_details": [{"type": "t", "index": 0, "signature": "x"}]},
        )
    )
    assert sent["reasoning_details"] == [{"type": "t", "index": 0, "text": "hm", "signature": "x"}]
    assert sent["tool_calls"][0]["extra_content"] == {"s": 1}


def test_content_list_goes_back_as_a_list() -> None:
    """Thinking that came in a content list goes back in one, with the parts that we have no word for."""
    (sent,) = messages(reply(Thinking("hm", {"field": "content"}), Text("so"), Text("", {"parts": [{"type": "x"}]})))
    assert sent["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "so"},
        {"type": "x"},
    ]


@pytest.mark.parametrize("other", [{"provider": "q"}, {"model": "n"}])
@pytest.mark.parametrize("field", ["reasoning", "content"])
def test_foreign_reasoning_is_left_out(other: dict[str, str], field: str) -> None:
    """Nothing of another provider's or model's thinking and fidelity goes out; its text and calls do."""
    thinking = Thinking("hm", {"field": field, "reasoning_details": [{"type": "t"}], "reasoning_opaque": "o"})
    (sent,) = messages(reply(thinking, Text("so"), ToolCall("c", "f", "{}", {"extra_content": {"s": 1}}), **other))
    assert sent == {
        "role": "assistant",
        "content": "so",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert messages(reply(thinking, **other), user("x")) == [{"role": "user", "content": "x"}]


def test_a_provider_that_takes_no_reasoning_back() -> None:
    """Where it is known that a provider refuses it, none is sent."""
    (sent,) = messages(
        reply(Thinking("hm", {"field": "reasoning"}), Text("so")), quirks=ChatQuirks(echo_reasoning=False)
    )
    assert sent == {"role": "assistant", "content": "so"}


def test_refusals_are_left_out() -> None:
    """What a model refused to say is not said again."""
    assert messages(reply(Text("I won't", {"refusal": True})), user("x")) == [{"role": "user", "content": "x"}]


def test_text_in_several_blocks_is_one_content() -> None:
    """Text around a call is one text."""
    (sent,) = messages(reply(Text("a "), ToolCall("c", "f", "{}"), Text("b")))
    assert sent["content"] == "a b"


def test_nothing_said() -> None:
    """A reply of calls alone has no content."""
    (sent,) = messages(reply(ToolCall("c", "f", "{}")))
    assert sent["content"] is None


def test_picture_of_a_model_is_named() -> None:
    """A picture that a model made cannot stand on its own side; its place is kept."""
    (sent,) = messages(reply(Text("here: "), InlineData("A", "image/png")))
    assert sent["content"] == "here: [image/png]"


def test_speech_of_a_model_goes_back_as_its_transcript() -> None:
    """The text is what was said, so the sound needs no word of its own; without a transcript its place is kept."""
    sound = InlineData("A", "audio/pcm", {"audio": {"id": "audio-1"}})
    assert [each["content"] for each in messages(reply(Text("Hello"), sound), reply(sound))] == ["Hello", "[audio/pcm]"]


# ---------------------------------------------------------------- ids


def test_ids_are_mapped_where_they_must_be() -> None:
    """An id in the provider's alphabet stays; others become one, the same for the call and its result, each its own."""
    history = (
        reply(ToolCall("abcdefghi", "f"), ToolCall("call_1#2", "f"), ToolCall("call_1#3", "f")),
        ToolResultMessage("abcdefghi", "f", "a"),
        ToolResultMessage("call_1#2", "f", "b"),
        ToolResultMessage("call_1#3", "f", "c"),
    )
    rule = IdRule("[a-zA-Z0-9]{9}", "0-9a-z", 9)
    calls, *results = messages(*history, quirks=ChatQuirks(call_id=rule))
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids[0] == "abcdefghi"
    assert len(set(ids)) == 3
    assert all(len(own) == 9 and own.isalnum() for own in ids)
    assert [result["tool_call_id"] for result in results] == ids
    assert messages(*history)[0]["tool_calls"][1]["id"] == "call_1#2"


def test_mapped_ids_stay_the_same_as_a_history_grows() -> None:
    """A prefix of a history is sent with the same ids: caches depend on it."""
    long_id = "x" * 50
    history = (reply(ToolCall(long_id, "f")), ToolResultMessage(long_id, "f", "a"))
    first = messages(*history, quirks=OPENAI)
    second = messages(*history, reply(ToolCall("y" * 50, "f")), ToolResultMessage("y" * 50, "f", "b"), quirks=OPENAI)
    assert second[:2] == first
    assert len(first[0]["tool_calls"][0]["id"]) <= 40


# ---------------------------------------------------------------- tools and options


def test_tools() -> None:
    """Name, description and schema; an empty schema is that of an object without properties."""
    tools = (ToolSpec("f", "Does f.", {"type": "object", "properties": {"a": {}}}, label="F"), ToolSpec("g"))
    assert body(user("x"), tools=tools)["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "Does f.",
                "parameters": {"type": "object", "properties": {"a": {}}},
            },
        },
        {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
    ]


def options(given: dict[str, Any], quirks: ChatQuirks | None = None) -> dict[str, Any]:
    sent = body(user("x"), options=given, quirks=quirks)
    return {
        name: value for name, value in sent.items() if name not in ("model", "messages", "stream", "stream_options")
    }


def test_common_options() -> None:
    """The common ones are sent under the provider's names; None counts as not given."""
    given = {
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 9,
        "seed": 7,
        "stop": "x",
        "tool_choice": {"name": "f"},
        "parallel_tool_calls": False,
        "thinking": "low",
    }
    expected = {
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 9,
        "seed": 7,
        "stop": ["x"],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
    }
    assert options(given) == expected
    assert options({"temperature": None, "thinking": None}) == {}
    assert options({"max_tokens": 9, "thinking": "max"}, OPENAI) == {
        "max_completion_tokens": 9,
        "reasoning_effort": "xhigh",
    }
    assert options({"seed": 7}, ChatQuirks(names={"seed": "random_seed"})) == {"random_seed": 7}
    assert options({"tool_choice": "required"}) == {"tool_choice": "required"}


def test_other_options_go_into_the_body() -> None:
    """What is not common is sent as it is, over what the adapter would send."""
    given = {"logprobs": True, "metadata": {"a": [1]}, "stream_options": {"include_usage": False}}
    sent = body(user("x"), options=given)
    assert {name: sent[name] for name in given} == given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("seed", "x"),
        ("stop", [1]),
        ("stop", [""]),
        ("thinking", "much"),
        ("tool_choice", "f"),
        ("tool_choice", {"name": 1}),
        ("parallel_tool_calls", 1),
    ],
)
def test_options_of_a_wrong_type(name: str, value: Any) -> None:
    """They are refused before anything is sent; the text names the option."""
    with pytest.raises(ModelError, match=name) as caught:
        options({name: value})
    assert caught.value.code == "invalid_input"


def test_what_a_provider_cannot_do() -> None:
    """A common option that a provider lacks is an error, not silence; the text says what it knows."""
    with pytest.raises(ModelError, match="seed") as caught:
        options({"seed": 1}, ChatQuirks(names={"seed": None}))
    assert caught.value.code == "unsupported"
    no_minimum = attrs.evolve(ChatQuirks(), thinking={"low": {"reasoning_effort": "low"}})
    with pytest.raises(ModelError, match="its levels are low") as caught:
        options({"thinking": "off"}, no_minimum)
    assert caught.value.code == "unsupported"


def test_thinking_as_a_switch() -> None:
    """A provider that only knows on and off is on at every level but off."""
    quirks = ChatQuirks(thinking=THINKING_TYPE)
    assert options({"thinking": "high"}, quirks) == {"thinking": {"type": "enabled"}}
    assert options({"thinking": "off"}, quirks) == {"thinking": {"type": "disabled"}}


def test_usage_is_not_asked_for_where_that_is_refused() -> None:
    """A provider that does not know `stream_options` gets none."""
    assert "stream_options" not in body(user("x"), quirks=ChatQuirks(usage_option=False))
