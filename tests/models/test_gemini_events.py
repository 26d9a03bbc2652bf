"""The events of the Gemini API become chunks: parts, signatures, calls, ends, and what these servers really do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ModelError
from agentloop.messages import InlineData, InlineThinking, Text, ToolCall, Usage
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)
from agentloop.models._gemini_events import EventReader
from tests import adapters


def event(*parts: Any, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [{**candidate, **fields.pop("candidate", {})}], **fields}


def call(name: str = "look", /, **fields: Any) -> dict[str, Any]:
    signature = {"thoughtSignature": fields.pop("signature")} if "signature" in fields else {}
    return {"functionCall": {"name": name, "args": {}, **fields}, **signature}


def read(*events: Any, names: dict[str, str] | None = None) -> list[Any]:
    reader = EventReader(names)
    chunks = [chunk for event in events for chunk in reader.feed(event)]
    return [*chunks, *reader.end()]


def failure(*events: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read(*events)
    return caught.value


# ---------------------------------------------------------------- text and thinking


def test_consecutive_texts_of_one_kind_are_one_block() -> None:
    """No index and no end stand between them; an empty piece inside of a block is a piece all the same."""
    thought = {"text": "hm", "thought": True}
    chunks = read(
        event(thought), event({"text": "", "thought": True}), event({"text": "a"}, {"text": "b"}), event({"text": ""})
    )
    assert chunks == [ThinkingChunk("hm"), ThinkingChunk(""), TextChunk("a"), TextChunk("b"), TextChunk("")]


def test_an_empty_part_opens_no_block() -> None:
    """Gemini sends such parts at will: before the first text, behind a call, with the finish reason."""
    chunks = read(
        event({"text": ""}),
        event({"text": "", "thought": True}, {}, {"thought": True}),
        event(call()),
        event({"text": ""}),
    )
    assert [type(chunk) for chunk in chunks] == [ToolCallChunk, BlockEnd]


def test_signatures_of_texts_say_which_part_was_signed() -> None:
    """At the end of the block, by place: the parts go back as they came."""
    chunks = read(
        event({"text": "ab"}),
        event({"text": "cd", "thoughtSignature": "S1"}),
        event({"text": "", "thoughtSignature": "S2"}),
        event(call()),
    )
    assert chunks[:4] == [
        TextChunk("ab"),
        TextChunk("cd"),
        TextChunk(""),
        TextChunk(
            "",
            fidelity={
                "parts": [
                    {"start": 2, "end": 4, "thoughtSignature": "S1"},
                    {"start": 4, "end": 4, "thoughtSignature": "S2"},
                ]
            },
        ),
    ]


def test_a_signature_in_an_empty_text_is_a_block_where_none_is_open() -> None:
    """Behind a call it has nowhere else to go."""
    chunks = read(event(call()), event({"text": "", "thoughtSignature": "S"}, reason="STOP"))
    assert chunks[2:4] == [
        TextChunk(""),
        TextChunk("", fidelity={"parts": [{"start": 0, "end": 0, "thoughtSignature": "S"}]}),
    ]


def test_places_count_utf_16_units() -> None:
    """A character outside the first plane may come in two halves; its length is two either way."""
    chunks = read(
        event({"text": "\ud83d"}),
        event({"text": "\ude00"}),
        event({"text": "é😀", "thoughtSignature": "S"}, reason="STOP"),
    )
    assert chunks[3].fidelity == {"parts": [{"start": 2, "end": 5, "thoughtSignature": "S"}]}


def test_a_signature_under_its_other_name_and_other_fields_are_kept() -> None:
    """Whatever else a text part holds goes back with it."""
    chunks = read(event({"text": "a", "thought_signature": "S", "partMetadata": {"k": 1}}, reason="STOP"))
    assert chunks[1].fidelity == {"parts": [{"start": 0, "end": 1, "thought_signature": "S", "partMetadata": {"k": 1}}]}


# ---------------------------------------------------------------- calls


def test_calls_come_whole_one_after_another() -> None:
    """Arguments keep their order; the id, if there is one, and the signature are fidelity."""
    chunks = read(
        event(call("add", args={"b": 2, "a": "ü"}, signature="S"), call("mul", id="own")),
        event(call("add", args=None), reason="STOP"),
    )
    assert chunks == [
        ToolCallChunk('{"b":2,"a":"ü"}', None, "add", fidelity={"thoughtSignature": "S"}),
        BlockEnd(),
        ToolCallChunk("{}", "own", "mul", fidelity={"functionCall": {"id": "own"}}),
        BlockEnd(),
        ToolCallChunk("{}", None, "add"),
        BlockEnd(),
        Finish("tool_use", {"finishReason": "STOP"}),
    ]


def test_names_of_tools_are_mapped_back() -> None:
    """A name that was made legal on the way out is ours again."""
    assert read(event(call("x_1")), names={"x_1": "x/1"})[0].name == "x/1"


def test_arguments_in_pieces_become_an_object() -> None:
    """Values at paths, texts in several pieces; where they came in any order the call comes whole at its end."""

    def more(*arguments: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return event({"functionCall": {"partialArgs": list(arguments), **fields}})

    chunks = read(
        event(
            {"functionCall": {"name": "cook", "willContinue": True}, "thoughtSignature": "S"},
            usageMetadata={"trafficType": "X"},
        ),
        more({"jsonPath": "$.dish.parts[1].name", "stringValue": "sa", "willContinue": True}, willContinue=True),
        more({"jsonPath": "$.dish.parts[1].name", "stringValue": "lt"}, willContinue=True),
        more(
            {"jsonPath": "$.dish.parts[0].grams", "numberValue": 5},
            {"jsonPath": "$['a.b'][0]", "boolValue": False},
            willContinue=True,
        ),
        more(
            {"jsonPath": '$["n"]', "nullValue": "NULL_VALUE"},
            {"jsonPath": "$.empty", "stringValue": ""},
            willContinue=True,
        ),
        event({"functionCall": {}}, reason="STOP"),
    )
    arguments = '{"dish":{"parts":[{"grams":5},{"name":"salt"}]},"a.b":[false],"n":null,"empty":""}'
    assert chunks == [
        UsageChunk(Usage()),
        BlockChunk(ToolCall("", "cook", arguments, {"thoughtSignature": "S"})),
        Finish("tool_use", {"usageMetadata": {"trafficType": "X"}, "finishReason": "STOP"}),
    ]


@pytest.mark.parametrize(
    "path", ["", "a", "$", "$[0]", "$.a..b", "$.a[", "$.a[x]", "$" + ".a" * 1_000, "$.a[99999999999]", 7]
)
def test_a_path_of_another_form_is_malformed(path: Any) -> None:
    """Also one without a bound."""
    argument = {"jsonPath": path, "stringValue": "x"}
    assert failure(event({"functionCall": {"name": "f", "partialArgs": [argument]}})).code == "malformed"


def test_an_index_that_is_huge_costs_nothing() -> None:
    """Lists are as long as the values that came."""
    argument = {"jsonPath": "$.a[999999999]", "stringValue": "x"}
    (chunk, *_) = read(event({"functionCall": {"name": "f", "partialArgs": [argument]}}))
    assert chunk.block.arguments == '{"a":["x"]}'


def test_a_streamed_call_without_an_end_ends_with_the_reply_or_the_next_part() -> None:
    """A new name is a new call; a text ends it too; a reply that was cut has none of it."""
    begun = {
        "functionCall": {"name": "f", "partialArgs": [{"jsonPath": "$.a", "stringValue": "1"}], "willContinue": True}
    }
    whole = BlockChunk(ToolCall("", "f", '{"a":"1"}'))
    assert read(event(begun), event(call("g")))[0] == whole
    assert read(event(begun), event({"text": "x"}))[:2] == [whole, TextChunk("x")]
    assert read(event(begun, reason="MAX_TOKENS"))[0] == whole
    assert read(event(begun)) == []


def test_a_call_without_a_name_is_malformed() -> None:
    """Nobody could run it, so the reply fails and is asked for again."""
    assert failure(event({"functionCall": {"args": {}}})).code == "malformed"


# ---------------------------------------------------------------- other parts


@pytest.mark.parametrize(
    "part",
    [
        {"executableCode": {"language": "PYTHON", "code": "1", "id": "x"}, "thoughtSignature": "S"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"toolType": "FILE_SEARCH"}, "thoughtSignature": "S"},
        {"toolResponse": {"id": "x"}},
        {"functionResponse": {"name": "f", "response": {}}},
        {"fileData": {"fileUri": "gs://x"}},
        {"somethingNew": {"z": 1, "a": [None]}},
        {"thoughtSignature": "S"},
        {"inlineData": {"data": "QQ=="}},
        {"inlineData": "odd"},
    ],
)
def test_parts_without_a_word_of_ours_survive_whole(part: dict[str, Any]) -> None:
    """As blocks without text, in their place between the texts."""
    chunks = read(event({"text": "a"}, part, {"text": "b"}, reason="STOP"))
    assert chunks[:3] == [TextChunk("a"), BlockChunk(Text("", part)), TextChunk("b")]


def test_data_that_the_model_made() -> None:
    """A picture is a block of its own, a thought's picture is thinking; what else the part held is fidelity."""
    blob = {"mimeType": "image/png", "data": "iVBO"}
    chunks = read(
        event({"inlineData": blob, "thoughtSignature": "S"}),
        event({"inlineData": {**blob, "displayName": "n"}, "thought": True}),
        event(reason="STOP"),
    )
    assert chunks[:2] == [
        BlockChunk(InlineData("iVBO", "image/png", {"thoughtSignature": "S"})),
        BlockChunk(InlineThinking("iVBO", "image/png", {"thought": True, "inlineData": {"displayName": "n"}})),
    ]


def test_only_the_first_alternative_counts() -> None:
    """Others have an index of their own, in the same event or in another."""
    other = {"content": {"parts": [{"text": "no"}]}, "index": 1, "finishReason": "STOP"}
    both = event({"text": "yes"})
    both["candidates"].append(other)
    assert read(both, {"candidates": [other]}) == [TextChunk("yes")]


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize(
    ("sent", "ours"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("IMAGE_PROHIBITED_CONTENT", "content_filter"),
        ("LANGUAGE", "unknown"),
        ("OTHER", "unknown"),
        ("NO_IMAGE", "unknown"),
        ("TOO_MANY_TOOL_CALLS", "unknown"),
        ("FINISH_REASON_UNSPECIFIED", "unknown"),
        ("SOMETHING_NEW", "unknown"),
    ],
)
def test_finish_reasons(sent: str, ours: str) -> None:
    """Each in our words, the provider's own in the fidelity."""
    assert read(event({"text": "a"}, reason=sent))[-1] == Finish(ours, {"finishReason": sent})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("MALFORMED_FUNCTION_CALL", "malformed"),
        ("UNEXPECTED_TOOL_CALL", "malformed"),
        ("MALFORMED_RESPONSE", "malformed"),
        ("MISSING_THOUGHT_SIGNATURE", "rejected"),
    ],
)
def test_reasons_that_are_failures(reason: str, code: str) -> None:
    """An empty reply with such a reason is none; the provider's words are told, whether asking again may help as well."""
    error = failure(event(reason=reason, candidate={"finishMessage": "print(default_api.look("}))
    assert (error.code, error.retryable) == (code, code == "malformed")
    assert reason in error.message
    assert "default_api.look" in error.message


def test_the_last_reason_counts_and_text_behind_one_is_no_less_text() -> None:
    """Gemini 1 wrote STOP into each event."""
    chunks = read(event({"text": "a"}, reason="STOP"), event({"text": "b"}, reason="MAX_TOKENS"))
    assert chunks == [TextChunk("a"), TextChunk("b"), Finish("length", {"finishReason": "MAX_TOKENS"})]


def test_an_empty_reason_is_none() -> None:
    """Some write an empty reason into events that end nothing."""
    empty = event({"text": "a"}, candidate={"finishReason": ""})
    assert read(empty) == [TextChunk("a")]
    assert read(empty, event(reason="STOP"), empty)[-1] == Finish("stop", {"finishReason": "STOP"})


def test_a_stream_without_a_reason_was_cut() -> None:
    """Then there is no end, whatever else came."""
    assert read(event({"text": "a", "thoughtSignature": "S"}, usageMetadata={"promptTokenCount": 1})) == [
        UsageChunk(Usage(0, 1, 0)),
        TextChunk("a"),
    ]


def test_when_a_reply_is_settled() -> None:
    """With a reason, and a `responseId` that tells a server of today: those before gave each event a reason."""
    old, new = EventReader(), EventReader()
    list(old.feed(event({"text": "a"}, reason="STOP")))
    list(new.feed(event({"text": "a"}, responseId="r")))
    assert (old.settled, new.settled) == (False, False)
    list(new.feed(event(reason="STOP", responseId="r")))
    assert new.settled


def test_what_belongs_to_no_block_is_kept_with_the_message() -> None:
    """Grounding and citations come in pieces and are joined, of all else the last one counts."""
    chunks = read(
        event(
            {"text": "a"},
            candidate={"citationMetadata": {"citationSources": [{"uri": "1"}]}, "safetyRatings": [1]},
            modelVersion="m",
        ),
        event(
            {"text": "b"},
            candidate={
                "citationMetadata": {"citationSources": [{"uri": "2"}]},
                "safetyRatings": [2],
                "avgLogprobs": -0.5,
            },
        ),
        event(reason="STOP", candidate={"groundingMetadata": {"webSearchQueries": ["q"]}, "finishMessage": None}),
        {"promptFeedback": {"safetyRatings": []}},
    )
    assert chunks[-1].fidelity == {
        "modelVersion": "m",
        "citationMetadata": {"citationSources": [{"uri": "1"}, {"uri": "2"}]},
        "safetyRatings": [2],
        "avgLogprobs": -0.5,
        "finishReason": "STOP",
        "groundingMetadata": {"webSearchQueries": ["q"]},
        "promptFeedback": {"safetyRatings": []},
    }


def test_metadata_that_is_said_anew_is_not_doubled() -> None:
    """Some streams repeat what they said and add to it."""
    one, two = [{"uri": "1"}], [{"uri": "1"}, {"uri": "2"}]
    chunks = read(
        *(event(candidate={"groundingMetadata": {"groundingChunks": list(part)}}) for part in (one, two, two)),
        event(reason="STOP"),
    )
    assert chunks[-1].fidelity["groundingMetadata"] == {"groundingChunks": two}


def test_usage() -> None:
    """Thinking is output, tool prompts and what was not cached are input; the last one counts."""
    sent = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 80,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 30,
        "totalTokenCount": 157,
    }
    assert read(event(usageMetadata=sent)) == [UsageChunk(Usage(80, 27, 50))]
    assert read(event(usageMetadata={"trafficType": "ON_DEMAND"})) == [UsageChunk(Usage())]
    assert read(event(usageMetadata={"promptTokenCount": 1, "cachedContentTokenCount": 2})) == [
        UsageChunk(Usage(2, 0, 0))
    ]


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("error", "code", "wait"),
    [
        ({"code": 503, "status": "UNAVAILABLE", "message": "busy"}, "overloaded", None),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "39s"}]}, "rate_limit", 39.0),
        ({"code": 400, "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}, "auth", None),
        ({"code": 400, "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."},
         "context_too_long", None),
        ({"code": 500, "status": "INTERNAL"}, "network", None),
        ({"status": "DEADLINE_EXCEEDED"}, "timeout", None),
        ("odd", "network", None),
    ],
)  # fmt: skip
def test_an_error_in_the_stream(error: Any, code: str, wait: float | None) -> None:
    """Under status 200, alone or in an array, behind content or not."""
    for shape in ({"error": error}, [{"error": error}]):
        caught = failure(event({"text": "a"}), shape)
        assert (caught.code, caught.retry_after) == (code, wait)


def test_a_blocked_prompt_is_a_failure_with_the_provider_s_words() -> None:
    """There is no reply; what was counted is told first."""
    reader = EventReader()
    chunks = reader.feed(
        {
            "promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "no"},
            "usageMetadata": {"promptTokenCount": 3},
        }
    )
    assert next(chunks) == UsageChunk(Usage(0, 3, 0))
    with pytest.raises(ModelError, match="PROHIBITED_CONTENT: no") as caught:
        next(chunks)
    assert (caught.value.code, caught.value.retryable) == ("content_filter", False)


@pytest.mark.parametrize(
    "sent",
    [
        7, "x", None, True, {"candidates": 7}, {"candidates": ["x"]}, event(7), event({"functionCall": "x"}),
        {"candidates": [{"content": {"parts": {"text": "a"}}}]}, {"candidates": [{"content": "x"}]},
        event({"functionCall": {"name": 7}}), event({"functionCall": {"name": "f", "id": 7}}),
        {"usageMetadata": "x"}, {"promptFeedback": "x"},
        event({"functionCall": {"name": "f", "partialArgs": [{}]}}),
    ],
)  # fmt: skip
def test_an_event_of_a_wrong_shape_is_malformed(sent: Any) -> None:
    """It says what came, and nothing else than a `ModelError` comes out."""
    assert failure(sent).code == "malformed"


def test_no_reply_is_given_up_for_a_number_that_json_cannot_say() -> None:
    """Gemini was seen to write `"avgLogprobs": NaN`. Null is kept of it; in arguments it stays: it is what the model said."""
    nan, infinity = float("nan"), float("inf")
    called = {"functionCall": {"name": "f", "args": {"n": nan}, "rate": infinity}, "score": nan}
    data = {"inlineData": {"data": "AA==", "mimeType": "image/png", "rate": nan}}
    parts = [{"text": "a", "score": nan}, called, {"new": [infinity]}, data]
    chunks = read(event(*parts, candidate={"avgLogprobs": nan}, reason="STOP"))
    kept = [chunk.fidelity for chunk in chunks if getattr(chunk, "fidelity", None)]
    assert kept[0] == {"parts": [{"start": 0, "end": 1, "score": None}]}
    assert kept[1] == {"score": None, "functionCall": {"rate": None}}
    assert kept[-1]["avgLogprobs"] is None
    blocks = [chunk.block.fidelity for chunk in chunks if isinstance(chunk, BlockChunk)]
    assert blocks == [{"new": [None]}, {"inlineData": {"rate": None}}]
    assert [chunk.arguments for chunk in chunks if isinstance(chunk, ToolCallChunk)] == ['{"n":NaN}']


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "STOP", "$.a[0]", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["text", "functionCall", "name", "args", "partialArgs", "jsonPath", "willContinue", "inlineData",
                         "index", "parts", "content", "finishReason", "thought", "groundingMetadata", "error"]),
        inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(
    st.lists(
        st.fixed_dictionaries(
            {"candidates": st.lists(JSON, max_size=2)},
            optional={"error": JSON, "usageMetadata": JSON, "promptFeedback": JSON},
        )
        | JSON,
        max_size=4,
    )
)
def test_whatever_a_server_sends_only_model_errors_come_out(events: list[Any]) -> None:
    """Hostile content of known shapes is read or refused, never anything else."""
    adapters.assert_read_or_refused(read, events)


def test_many_small_parts_cost_no_more_than_their_sum() -> None:
    """Signed texts, pieces of one argument, and citations: each is kept once, and joined at the end."""
    count = 20_000
    reader = EventReader()
    piece = {"jsonPath": "$.a", "stringValue": "x", "willContinue": True}
    list(reader.feed(event({"functionCall": {"name": "f", "willContinue": True}})))
    for _ in range(count):
        list(reader.feed(event({"functionCall": {"partialArgs": [piece], "willContinue": True}})))
    for number in range(count):
        cited = {"citationMetadata": {"citationSources": [number]}}
        list(reader.feed(event({"text": "x", "thoughtSignature": "S"}, candidate=cited)))
    *_, signed, finish = [*reader.feed(event(reason="STOP")), *reader.end()]
    assert len(signed.fidelity["parts"]) == count
    assert len(finish.fidelity["citationMetadata"]["citationSources"]) == count
