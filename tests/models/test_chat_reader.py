"""Chat Completions in, without a network: every dialect's chunks become ours."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ModelError
from agentloop.messages import InlineData, Usage
from agentloop.model import BlockChunk, BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk
from agentloop.models._chat_reader import FAILURES, FINISH_REASONS, Reader, merge_details, read_usage


def choice(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish, **more}]}


def read(*chunks: Any, marked: bool = False, **options: Any) -> list[Any]:
    reader = Reader(**options)
    out: list[Any] = []
    for chunk in chunks:
        out += reader.read(chunk)
    return out + reader.end(marked=marked)


def call(
    index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    fragment: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    fragment |= {} if index is None else {"index": index}
    fragment |= {} if id is None else {"id": id}
    return choice({"tool_calls": [fragment]})


STOP = choice(finish="stop")


def test_text() -> None:
    """Pieces come as they are; an empty one opens no block, but is a piece of one that is open."""
    chunks = read(choice({"role": "assistant", "content": ""}), choice({"content": "a"}), choice({"content": ""}), STOP)
    assert chunks == [TextChunk("a", 1), TextChunk("", 1), Finish("stop")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_ends_when_the_answer_begins(field: str) -> None:
    """Reasoning under any of its names is thinking, which ends when text begins and remembers the name."""
    chunks = read(choice({field: "hm"}), choice({"content": "", field: None}), choice({"content": "so"}), STOP)
    assert chunks == [
        ThinkingChunk("hm", 0),
        ThinkingChunk("", 0, {"field": field}),
        BlockEnd(0),
        TextChunk("so", 1),
        Finish("stop"),
    ]


def test_reasoning_under_two_names_counts_once() -> None:
    """The same text under two names is one piece."""
    chunks = read(choice({"reasoning_content": "x", "reasoning": "x"}), STOP)
    assert [chunk.thinking for chunk in chunks if isinstance(chunk, ThinkingChunk)] == ["x", ""]


def test_reasoning_that_goes_on_after_text_waits_behind_it() -> None:
    """Later reasoning does not end the text that is shown; an empty piece of ended reasoning opens nothing."""
    chunks = read(
        choice({"reasoning": "a"}), choice({"content": "b", "reasoning": ""}), choice({"reasoning": "c"}),
        choice({"content": "d", "reasoning": ""}), STOP,
    )  # fmt: skip
    ends = [chunk for chunk in chunks if isinstance(chunk, BlockEnd)]
    assert ends == [BlockEnd(0)]
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == "bd"
    assert "".join(chunk.thinking for chunk in chunks if isinstance(chunk, ThinkingChunk)) == "ac"


def test_reasoning_details_are_joined_and_kept() -> None:
    """Pieces of one entry are one entry of the block's fidelity, keys in the order in which they came."""
    chunks = read(
        choice({"reasoning": "ab", "reasoning_details": [{"type": "t", "text": "a", "index": 0}]}),
        choice({"reasoning": "", "reasoning_details": [{"type": "t", "text": "b", "index": 0, "signature": "s"}]}),
        choice({"content": "x"}),
        STOP,
    )
    (told,) = [chunk.fidelity for chunk in chunks if isinstance(chunk, ThinkingChunk) and chunk.fidelity]
    assert json.dumps(told["reasoning_details"]) == '[{"type": "t", "text": "ab", "index": 0, "signature": "s"}]'


def test_details_before_a_call_are_a_block_without_text() -> None:
    """Encrypted reasoning alone becomes thinking with nothing to show, before what it led to."""
    detail = {"type": "e", "data": "xyz"}
    chunks = read(choice({"reasoning": None, "reasoning_details": [detail]}), call(0, "c", "f", "{}"), STOP)
    assert chunks[:2] == [ThinkingChunk("", 0, {"reasoning_details": [detail]}), BlockEnd(0)]


def test_details_after_the_text_are_a_block_behind_it() -> None:
    """Encrypted reasoning after an answer without any other reasoning stands behind the answer."""
    detail = {"type": "e", "data": "xyz"}
    chunks = read(choice({"content": "x"}), choice({"content": "", "reasoning_details": [detail]}), STOP)
    assert chunks == [
        TextChunk("x", 1),
        TextChunk("", 1),
        ThinkingChunk("", 0, {"reasoning_details": [detail]}),
        Finish("stop"),
    ]


def test_details_after_ended_reasoning_belong_to_the_message() -> None:
    """What comes for thinking that has ended opens no second block: the message keeps it."""
    detail = {"type": "e", "data": "xyz"}
    chunks = read(choice({"reasoning": "a"}), choice({"content": "x"}), choice({"reasoning_details": [detail]}), STOP)
    assert chunks[-1] == Finish("stop", {"reasoning_details": [detail]})
    assert sum(isinstance(chunk, ThinkingChunk) for chunk in chunks) == 2


def test_opaque_reasoning() -> None:
    """`reasoning_opaque` is joined and kept beside `reasoning_text`."""
    chunks = read(choice({"reasoning_text": "a", "reasoning_opaque": "x"}), choice({"reasoning_opaque": "y"}), STOP)
    assert chunks[:3] == [
        ThinkingChunk("a", 0),
        ThinkingChunk("", 0),
        ThinkingChunk("", 0, {"field": "reasoning_text", "reasoning_opaque": "xy"}),
    ]


def test_content_lists() -> None:
    """Parts of a content list are thinking, text, or kept as they are; a list may turn into a text midway."""
    reference = {"type": "reference", "reference_ids": [1]}
    chunks = read(
        choice({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}),
        choice({"content": [{"type": "thinking", "thinking": "b"}, {"type": "text", "text": "c"}]}),
        choice({"content": "d"}),
        choice({"content": [reference]}),
        choice({"content": [reference]}),
        STOP,
    )
    assert [chunk.thinking for chunk in chunks if isinstance(chunk, ThinkingChunk)] == ["a", "b", ""]
    assert [chunk for chunk in chunks if isinstance(chunk, TextChunk)] == [
        TextChunk("c", 1),
        TextChunk("d", 1),
        TextChunk("", 3),
        TextChunk("", 3, {"parts": [reference, reference]}),
    ]


def test_call_in_pieces() -> None:
    """A call's pieces share an index; an id that is empty later changes nothing."""
    chunks = read(
        call(0, "c1", "f", ""), call(0, "", None, '{"a":'), call(0, "", None, "1}"), choice(finish="tool_calls")
    )
    assert chunks == [
        ToolCallChunk("", "c1", "f", 3),
        ToolCallChunk('{"a":', None, None, 3),
        ToolCallChunk("1}", None, None, 3),
        Finish("tool_use"),
    ]


def calls_of(*chunks: Any) -> list[tuple[str | None, str | None, str]]:
    """Id, name and arguments of each call, joined by index."""
    joined: dict[int | None, list[Any]] = {}
    for chunk in read(*chunks, STOP):
        if isinstance(chunk, ToolCallChunk):
            known = joined.setdefault(chunk.index, [None, None, ""])
            known[0], known[1], known[2] = known[0] or chunk.id, known[1] or chunk.name, known[2] + chunk.arguments
    return [tuple(known) for known in joined.values()]  # type: ignore[misc]


def test_which_call_a_piece_belongs_to() -> None:
    """By index, else by id, else the last; an index that comes again with another id and name is another call."""
    assert calls_of(call(0, "a", "f", "1"), call(1, "b", "g", "2"), call(0, None, None, "3")) == [
        ("a", "f", "13"),
        ("b", "g", "2"),
    ]
    assert calls_of(call(None, "a", "f", "1"), call(None, None, None, "2"), call(None, "b", "g", "3")) == [
        ("a", "f", "12"),
        ("b", "g", "3"),
    ]
    assert calls_of(call(None, "a", "f", "1"), call(None, "b", "g", "2"), call(None, "a", None, "3")) == [
        ("a", "f", "13"),
        ("b", "g", "2"),
    ]
    assert calls_of(call(0, "a", "f", "1"), call(0, "b", "g", "2"), call(0, None, None, "3")) == [
        ("a", "f", "1"),
        ("b", "g", "23"),
    ]
    assert calls_of(call(0, "a", "f", "1"), call(0, "b", None, "2")) == [("a", "f", "12")]
    assert calls_of(call(None, None, "f", "{}"), call(None, None, "g", "{}")) == [(None, "f", "{}"), (None, "g", "{}")]
    assert calls_of(call(None, "", "f", ""), call(None, "", None, "{}")) == [(None, "f", "{}")]


def test_arguments_alone_begin_no_call() -> None:
    """Some count the arguments otherwise than the calls: without id and name a piece goes on with the last call."""
    assert calls_of(call(1, "a", "f", ""), call(0, None, None, "1"), call(0, None, None, "2")) == [("a", "f", "12")]
    assert calls_of(call(0, "a", "f", "1"), call(0, "b", "g", ""), call(1, None, None, "2")) == [
        ("a", "f", "1"),
        ("b", "g", "2"),
    ]
    assert calls_of(call(1, "a", "f", ""), call(0, None, None, "1"), call(0, "b", "g", "2")) == [
        ("a", "f", "1"),
        ("b", "g", "2"),
    ]


def test_arguments_as_an_object() -> None:
    """Arguments that come as JSON, not as text, become its text."""
    assert calls_of(call(0, "a", "f", {"x": "ä"})) == [("a", "f", '{"x":"ä"}')]


def test_extra_content_of_a_call_is_kept() -> None:
    """A signature that belongs to a call goes into its fidelity."""
    extra = {"google": {"thought_signature": "s"}}
    fragment = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}, "extra_content": extra}
    chunks = read(choice({"tool_calls": [fragment]}), STOP)
    assert chunks[0] == ToolCallChunk("{}", "a", "f", 3, {"extra_content": extra})


def test_old_function_call() -> None:
    """The call of the time before there could be several is a call."""
    chunks = read(
        choice({"function_call": {"name": "f", "arguments": ""}}),
        choice({"function_call": {"arguments": "{}"}}),
        choice(finish="function_call"),
    )
    assert chunks == [ToolCallChunk("", None, "f", 3), ToolCallChunk("{}", None, None, 3), Finish("tool_use")]


def test_text_ends_at_a_call_only_where_it_may() -> None:
    """Only with a provider that never goes back to text is the text ended when a call begins."""
    chunks = [choice({"content": "a"}), call(0, "c", "f", "{}"), choice({"content": " "}), STOP]
    assert BlockEnd(1) not in read(*chunks)
    assert read(*chunks, text_ends_at_call=True)[:3] == [
        TextChunk("a", 1),
        BlockEnd(1),
        ToolCallChunk("{}", "c", "f", 3),
    ]


def test_refusal() -> None:
    """A refusal is text that is marked, and the end of the reply says so."""
    chunks = read(choice({"refusal": ""}), choice({"refusal": "I "}), choice({"refusal": "won't"}), STOP)
    assert chunks == [
        TextChunk("I ", 2),
        TextChunk("won't", 2),
        TextChunk("", 2, {"refusal": True}),
        Finish("refusal"),
    ]


def test_images() -> None:
    """A picture's data is a block; an address alone is kept as it came."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    away = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    chunks = read(choice({"images": [image]}), choice({"images": [away]}), STOP)
    assert chunks[0] == BlockChunk(InlineData("AAAA", "image/png"))
    assert chunks[-2].fidelity == {"parts": [{"type": "image", "image": away}]}


def spoken(**audio: Any) -> dict[str, Any]:
    return choice({"audio": audio})


def test_speech() -> None:
    """What was said is text as it comes, the sound a block behind it, whose id and end stand beside it."""
    chunks = read(
        spoken(id="audio-1", transcript="Good "), spoken(transcript="day"), spoken(data="AAEC"), spoken(data="AwQF"),
        spoken(expires_at=1_700_000_000), STOP,
    )  # fmt: skip
    assert chunks == [
        TextChunk("Good ", -1),
        TextChunk("day", -1),
        BlockChunk(InlineData("AAECAwQF", "audio/pcm", {"audio": {"id": "audio-1", "expires_at": 1_700_000_000}})),
        Finish("stop"),
    ]


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["AAECA", "wQF"], "AAECAwQF"),  # one text, cut anywhere
        (["AAE=", "AgM="], "AAECAw=="),  # each piece a text of its own
        (["AAECAw", "=="], "AAECAw=="),
    ],
)
def test_speech_however_it_is_cut(pieces: list[str], whole: str) -> None:
    """The bytes of all pieces, in the format that was asked for."""
    chunks = read(*[spoken(data=piece) for piece in pieces], STOP, audio_format="wav")
    assert chunks[0] == BlockChunk(InlineData(whole, "audio/wav"))


def test_speech_that_ends_without_a_reason_is_whole() -> None:
    """A stream of speech may end with when it expires; one that was cut before is not whole."""
    assert read(spoken(data="AAEC"), spoken(expires_at=1))[-1] == Finish("stop")
    assert read(spoken(data="AAEC")) == []


@pytest.mark.parametrize(("pieces", "whole"), [(["AA"], "AA=="), (["AAE"], "AAE="), (["AAEC", "AwQ"], "AAECAwQ=")])
def test_speech_may_come_without_padding(pieces: list[str], whole: str) -> None:
    """The padding that a sender left out is put there: what keeps and sends the data takes it with padding."""
    chunks = read(*[spoken(data=piece) for piece in pieces], STOP, audio_format="wav")
    assert chunks[0] == BlockChunk(InlineData(whole, "audio/wav"))


@pytest.mark.parametrize("data", ["!!", "AAECA"])
def test_speech_that_is_no_base64_is_malformed(data: str) -> None:
    """It says what was expected."""
    with pytest.raises(ModelError, match=r"delta\.audio\.data: expected base64") as caught:
        read(spoken(data=data), STOP)
    assert caught.value.code == "malformed"


def test_annotations_and_extras_are_kept() -> None:
    """Annotations belong to the text, what a provider adds beside the reply to the message."""
    chunks = read(
        choice({"content": "a", "annotations": [1]}),
        choice({"annotations": [2]}) | {"citations": ["u"]},
        STOP,
    )
    assert chunks[-2:] == [TextChunk("", 1, {"annotations": [1, 2]}), Finish("stop", {"citations": ["u"]})]


def test_first_alternative_counts() -> None:
    """Of several choices the first is the reply."""
    chunk = {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}
    assert read(chunk, {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}, STOP) == [
        TextChunk("a", 1),
        Finish("stop"),
    ]


def test_an_answer_that_came_whole() -> None:
    """A server that does not stream is understood."""
    message = {
        "role": "assistant",
        "content": "a",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
    }
    whole = {
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1},
    }
    assert read(whole) == [
        TextChunk("a", 1),
        ToolCallChunk("{}", "c", "f", 3),
        UsageChunk(Usage(0, 1, 0)),
        Finish("tool_use"),
    ]


def test_a_stream_that_ends_with_the_whole_answer() -> None:
    """A last chunk that says again all that came adds nothing to it, but for its end and its usage."""
    again = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}]}
    assert read(choice({"content": "a"}), choice({"content": "b"}), again | {"usage": {"prompt_tokens": 1}}) == [
        TextChunk("a", 1),
        TextChunk("b", 1),
        UsageChunk(Usage(0, 1, 0)),
        Finish("stop"),
    ]


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(("word", "reason"), [*FINISH_REASONS.items(), ("STOP", "stop"), ("what", "unknown")])
def test_words_for_the_end(word: str, reason: str) -> None:
    """Each provider's word has its meaning; an unknown one is `unknown`."""
    assert read(choice({"content": "a"}, finish=word))[-1] == Finish(reason)  # type: ignore[arg-type]


def test_last_reason_counts() -> None:
    """A reason may be repeated or corrected, and content may follow it."""
    chunks = read(choice(finish="stop"), choice({"content": "a"}), choice(finish="length"), choice(finish=None))
    assert chunks == [TextChunk("a", 1), Finish("length")]


@pytest.mark.parametrize(("word", "code"), FAILURES.items())
def test_words_for_a_failure(word: str, code: str) -> None:
    """A reason that says that the reply failed is an error."""
    with pytest.raises(ModelError) as caught:
        read(choice({"content": "a"}), choice(finish=word))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("native", "code"),
    [
        ("MALFORMED_FUNCTION_CALL", "network"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("rate_limit_exceeded", "rate_limit"),
        ("overloaded_error", "overloaded"),
    ],
)
def test_a_gateway_quotes_the_word_for_a_failure(native: str, code: str) -> None:
    """What the provider behind it said is in the message, and decides where it says more than that it failed."""
    end = choice(finish="error")
    end["choices"][0]["native_finish_reason"] = native
    with pytest.raises(ModelError) as caught:
        read(choice({"content": "a"}), end)
    assert caught.value.code == code
    expected = f"the provider ended its reply with finish_reason 'error', native_finish_reason {native!r}"
    assert caught.value.message == expected


def test_a_gateway_quotes_the_same_word() -> None:
    """Then there is nothing to add; a word that is no failure's is not looked at."""
    for native, finish in (("error", "error"), ("ERROR", "Error")):
        end = choice(finish=finish)
        end["choices"][0]["native_finish_reason"] = native
        with pytest.raises(ModelError, match=r": the provider ended its reply with finish_reason 'error'$"):
            read(choice({"content": "a"}), end)
    end = choice(finish="stop")
    end["choices"][0]["native_finish_reason"] = "error"
    assert read(choice({"content": "a"}), end) == [TextChunk("a", 1), Finish("stop")]


def test_without_a_reason_the_reply_is_cut_unless_the_end_is_marked() -> None:
    """No reason and no mark: no `Finish`. The mark alone is a whole reply."""
    assert read(choice({"content": "a"}), choice(finish="")) == [TextChunk("a", 1)]
    assert read(choice({"content": "a"}), marked=True) == [TextChunk("a", 1), Finish("unknown")]


def test_no_reply_is_given_up_for_a_number_that_json_cannot_say() -> None:
    """A server in Python may write NaN into what is kept beside it: null stands there."""
    nan = float("nan")
    delta = {"content": "a", "annotations": [{"score": nan}]}
    last = {**choice(finish="stop"), "search_results": [{"score": nan, "url": "u"}]}
    assert read(choice(delta), last) == [
        TextChunk("a", 1),
        TextChunk("", 1, {"annotations": [{"score": None}]}),
        Finish("stop", {"search_results": [{"score": None, "url": "u"}]}),
    ]


# ---------------------------------------------------------------- errors and nonsense


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "no", "code": 400}},
        {"object": "error", "message": "no", "code": 400},
        {"message": "no", "code": 400},
        {"choices": [], "error": {"message": "no", "code": 400}},
        {"choices": [{"index": 0, "error": {"message": "no", "code": 400}}]},
        {"choices": [{"index": 0, "finish_reason": "error", "error": {"message": "no", "code": 400}}]},
        {"choices": [{"index": 0, "finish_reason": "error"}], "error": {"message": "no", "code": 400}},
    ],
)
def test_errors_inside_a_stream(chunk: Any) -> None:
    """An error object is an error wherever it stands."""
    with pytest.raises(ModelError) as caught:
        Reader().read(chunk)
    assert caught.value.code == "rejected"


def test_an_error_beside_a_choice_may_be_a_text() -> None:
    """The words of a text that stands where an error object does are kept."""
    with pytest.raises(ModelError) as caught:
        Reader().read({"choices": [{"index": 0, "finish_reason": "error", "error": "the upstream is overloaded"}]})
    assert caught.value.message == "the upstream is overloaded"


def test_a_number_beside_words_tells_of_an_error() -> None:
    """Where choices are missing, a number beside words that is not zero is an error; zero says that all went well."""
    with pytest.raises(ModelError) as caught:
        Reader().read({"choices": None, "base_resp": {"status_code": 1004, "status_msg": "login fail: no key"}})
    assert (caught.value.code, caught.value.message) == ("auth", "login fail: no key")
    fine = {"base_resp": {"status_code": 0, "status_msg": ""}}
    assert read(choice({"content": "a"}) | fine, {"choices": None} | fine, STOP) == [TextChunk("a", 1), Finish("stop")]


@pytest.mark.parametrize(
    "chunk",
    [
        None,
        "x",
        [1],
        {"choices": "x"},
        {"choices": [1]},
        choice() | {"choices": [{"delta": "x"}]},
        choice({"content": 5}),
        choice({"content": [5]}),
        choice({"tool_calls": {"a": 1}}),
        choice({"tool_calls": [1]}),
        choice({"reasoning_details": 5}),
    ],
)
def test_what_is_no_chunk(chunk: Any) -> None:
    """Nonsense is `malformed`, and the text says what was expected."""
    with pytest.raises(ModelError, match="expected") as caught:
        Reader().read(chunk)
    assert caught.value.code == "malformed"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
CHUNKS = (TextChunk, ThinkingChunk, ToolCallChunk, BlockEnd, BlockChunk, UsageChunk, Finish)
REASONING_FIELDS = ["reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "reasoning_opaque"]
OTHER_FIELDS = ["content", "refusal", "annotations", "images", "audio", "tool_calls", "function_call", "role"]
FIELDS = REASONING_FIELDS + OTHER_FIELDS
hostile = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "index": json_values,
                    "delta": st.dictionaries(st.sampled_from(FIELDS), json_values),
                    "finish_reason": json_values,
                },
            ),
            max_size=2,
        ),
        "usage": json_values,
        "x_groq": json_values,
        "error": json_values,
    },
)


@given(st.lists(hostile, max_size=4))
def test_nothing_but_a_model_error_leaves(chunks: list[Any]) -> None:
    """Whatever JSON comes, the reader gives chunks or a `ModelError`."""
    reader = Reader()
    with contextlib.suppress(ModelError):
        for chunk in chunks:
            assert all(isinstance(made, CHUNKS) for made in reader.read(chunk))
        assert isinstance(reader.end(marked=True)[-1], Finish)


# ---------------------------------------------------------------- usage

USAGES = [
    ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}, Usage(0, 10, 3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(4, 6, 3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "prompt_cache_hit_tokens": 4}, Usage(4, 6, 3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 4}, Usage(4, 6, 3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 40}}, Usage(10, 0, 3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 20}, Usage(0, 10, 10)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13,
      "completion_tokens_details": {"reasoning_tokens": 2}}, Usage(0, 10, 3)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13,
      "completion_tokens_details": {"reasoning_tokens": 7}}, Usage(0, 10, 10)),
    ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 20,
      "completion_tokens_details": {"reasoning_tokens": 7}}, Usage(0, 10, 10)),
    ({"prompt_tokens": None, "completion_tokens": "3", "total_tokens": -1, "prompt_tokens_details": None}, Usage()),
    ({"prompt_tokens": 1e300, "completion_tokens": True}, Usage()),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "usage"), USAGES)
def test_usage(sent: Any, usage: Usage) -> None:
    """Cached input is told apart; reasoning counts as output also where the provider leaves it out; nonsense is zero."""
    assert read_usage(sent) == usage


@pytest.mark.parametrize("sent", [None, {}, [], "x", 5])
def test_no_usage(sent: Any) -> None:
    """What is no usage object gives none."""
    assert read_usage(sent) is None


def test_where_usage_stands() -> None:
    """In a chunk without choices, in every chunk, or in an extension; the last counts, and what repeats is told once."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    more = {"prompt_tokens": 1, "completion_tokens": 2}
    chunks = read(STOP | {"usage": usage}, {"choices": [], "usage": usage}, {"choices": [], "x_groq": {"usage": more}})
    assert chunks == [UsageChunk(Usage(0, 1, 1)), UsageChunk(Usage(0, 1, 2)), Finish("stop")]


# ---------------------------------------------------------------- reasoning details

details = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from("ab")},
        optional={
            "index": st.integers(0, 1),
            "id": st.sampled_from([None, "x", "y"]),
            "text": st.text(max_size=2),
            "signature": st.text(max_size=2),
            "format": st.sampled_from(["f", "g"]),
        },
    ),
    max_size=8,
)


@given(details)
def test_joining_details_loses_nothing_and_is_done_once(given_details: list[dict[str, Any]]) -> None:
    """No character of a piece is lost, entries of a kind keep their order, and joining again changes nothing."""
    merged = merge_details(given_details)
    assert merge_details(merged) == merged
    for key in ("text", "signature"):
        for kind in "ab":
            before = sorted("".join(piece.get(key, "") for piece in given_details if piece["type"] == kind))
            after = sorted("".join(piece.get(key, "") for piece in merged if piece["type"] == kind))
            assert before == after


def test_details_of_several_ids_stay_apart() -> None:
    """Entries that differ in their id alone are two; a piece without an id goes on with the first."""
    pieces = [{"type": "t", "id": "x", "text": "a"}, {"type": "t", "id": "y", "text": "b"}, {"type": "t", "text": "c"},
              {"type": "t", "id": "y", "text": "d"}]  # fmt: skip
    assert merge_details(pieces) == [{"type": "t", "id": "x", "text": "ac"}, {"type": "t", "id": "y", "text": "bd"}]
