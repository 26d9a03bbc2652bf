"""The runner for recorded responses: its server, what it finds, its command."""

from __future__ import annotations

import copy
import http.client
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ModelError
from agentloop.messages import AssistantMessage, InlineData, InlineThinking, Text, Thinking, ToolCall, Usage
from agentloop.model import BlockChunk, BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk
from agentloop.testing._wire_compare import error_differences, stream_differences
from agentloop.testing._wire_outcome import Outcome, Tally
from agentloop.testing.wire import ADAPTERS, Play, WireServer, load_cases, main, make_adapter, pieces, run_folder

BODY = b"data: one\n\ndata: two\r\n\r\n: three\n"


def ask(address: str, path: str = "/v1/x?a=b") -> http.client.HTTPResponse:
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.netloc, timeout=5)
    connection.request("POST", where.path + path, body=b'{"q": 1}', headers={"X-Name": "value"})
    response = connection.getresponse()
    response.connection = connection  # type: ignore[attr-defined]
    return response


def close(response: http.client.HTTPResponse) -> None:
    response.close()
    response.connection.close()  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the server


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("chop", ["", "event", "line", "1", "random"])
def test_the_body_arrives_whole(framing: Any, chop: str) -> None:
    """Whatever the framing and the chops, the client gets the body, the status and the headers."""
    with WireServer() as server:
        response = ask(server.play(Play(BODY, 299, {"x-own": "1", "content-length": "7"}, chop=chop, framing=framing)))
        assert (response.status, response.headers["x-own"], response.read()) == (299, "1", BODY)
        close(response)


def test_gzip() -> None:
    """A coded body is the same when it is decoded."""
    with WireServer() as server:
        response = ask(server.play(Play(BODY, gzip=True, chop="3")))
        assert response.headers["content-encoding"] == "gzip"
        assert zlib.decompress(response.read(), 31) == BODY
        close(response)


def test_what_the_server_saw() -> None:
    """A request is recorded whole, without the part of its path that names the play."""
    with WireServer() as server:
        close(ask(server.play(Play(BODY))))
        (seen,) = server.requests
        assert (seen.method, seen.path, seen.query, seen.json) == ("POST", "/v1/x", {"a": "b"}, {"q": 1})
        assert seen.headers["x-name"] == "value"
        assert seen.client_closed.wait(5)


def test_a_recorded_date_is_sent() -> None:
    """A wait until a date is measured from the answer's own."""
    with WireServer() as server:
        response = ask(server.play(Play(b"", 429, {"Date": "Mon, 10 Aug 2026 22:29:26 GMT"})))
        assert response.headers["date"] == "Mon, 10 Aug 2026 22:29:26 GMT"
        response.read()
        close(response)


def test_several_plays() -> None:
    """Plays of an address come in turn, the last one again; another path is refused."""
    with WireServer() as server:
        address = server.play(Play(b"1"), Play(b"2", endpoint="^/v1/x$"))
        answers = []
        for path in ("/v1/x", "/v1/x", "/v1/x", "/v1/y"):
            response = ask(address, path)
            answers.append((response.status, response.read()[:1]))
            close(response)
        assert answers == [(200, b"1"), (200, b"2"), (200, b"2"), (404, b"{")]


@pytest.mark.parametrize("reset", [False, True])
def test_drop(reset: bool) -> None:
    """A dropped connection is an incomplete body, or a reset, for the client."""
    with WireServer() as server:
        response = ask(server.play(Play(BODY, drop_at=10, reset=reset)))
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()
        close(response)
        assert server.requests[0].sent == 10
        assert not server.requests[0].client_closed.is_set()


def test_clean_end() -> None:
    """A body that ends early but cleanly looks whole."""
    with WireServer() as server:
        response = ask(server.play(Play(BODY, end_at=10)))
        assert response.read() == BODY[:10]
        close(response)


def test_stall() -> None:
    """A stalled body waits for the client, and the server sees it go."""
    with WireServer() as server:
        response = ask(server.play(Play(BODY, stall_at=10)))
        assert response.read(10) == BODY[:10]
        (seen,) = server.requests
        assert seen.stalled.wait(5)
        assert not seen.client_closed.is_set()
        close(response)
        assert seen.client_closed.wait(5)


def test_leaving_breaks_what_is_open() -> None:
    """A server that is left while a client waits leaves no thread."""
    with WireServer() as server:
        response = ask(server.play(Play(BODY, stall_at=10)))
        assert server.requests[0].stalled.wait(5)
    with pytest.raises(http.client.IncompleteRead):
        response.read()
    close(response)


@given(st.binary(max_size=60), st.sampled_from(["", "event", "line", "1", "2", "5", "random", "random:3"]))
def test_pieces_lose_nothing(body: bytes, chop: str) -> None:
    """The pieces are the body, and none but that of an empty body is empty."""
    parts = pieces(body, chop)
    assert b"".join(parts) == body
    assert all(parts) or parts == [b""]


def test_pieces_end_where_they_should() -> None:
    """Events end after blank lines, lines after their ends, in every spelling."""
    assert pieces(BODY, "event") == [b"data: one\n\n", b"data: two\r\n\r\n", b": three\n"]
    assert pieces(b"a\r\nb\rc\nd", "line") == [b"a\r\n", b"b\r", b"c\n", b"d"]
    assert pieces(b"{}\n{}\n", "event") == [b"{}\n", b"{}\n"]
    assert pieces(b"abcde", "2") == [b"ab", b"cd", b"e"]


@pytest.mark.parametrize("chop", ["0", "-1", "words", "random:x"])
def test_unknown_chops(chop: str) -> None:
    """A chop that means nothing is refused."""
    with pytest.raises(ValueError, match=r"^chop: expected"):
        pieces(b"abc", chop)


# ---------------------------------------------------------------- counting


def test_counts_of_pieces() -> None:
    """Pieces are counted by index, or one after another; what only brings fidelity is none; an end makes a new block."""
    tally = Tally()
    for chunk in (
        ThinkingChunk("a", 0), ThinkingChunk("", 0, {"s": 1}), TextChunk("b", 1), TextChunk("", 1), ThinkingChunk("c", 0),
        BlockEnd(0), ThinkingChunk("d", 0), ToolCallChunk("", "i", "f", 2), ToolCallChunk("{}", index=2), Finish("stop"),
    ):  # fmt: skip
        tally.feed(chunk)
    assert [(count.kind, count.deltas, count.nonempty, count.openings) for count in tally.counts] == [
        ("thinking", 2, 2, 0),
        ("text", 2, 1, 0),
        ("thinking", 1, 1, 0),
        ("call", 2, 1, 1),
    ]


def test_counts_without_indexes() -> None:
    """Without an index a chunk goes on with the last block of its kind; another id is another call."""
    tally = Tally()
    for chunk in ("a", TextChunk("b"), ThinkingChunk("c"), "d", ToolCallChunk("1", "i", "f"), ToolCallChunk("2"),
                  ToolCallChunk("3", "j", "g"), BlockChunk(Text("e"))):  # fmt: skip
        tally.feed(chunk)
    assert [(count.kind, count.deltas) for count in tally.counts] == [
        ("text", 2), ("thinking", 1), ("text", 1), ("call", 2), ("call", 1), ("whole", 0),
    ]  # fmt: skip


# ---------------------------------------------------------------- comparing

EXPECTED: dict[str, Any] = {
    "blocks": [
        {"type": "thinking", "text": "hm", "deltas": 1, "nonempty_deltas": 1, "signature": "sig"},
        {"type": "text", "text": "ok", "deltas": 2, "nonempty_deltas": 1},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": '{"a":1}', "arguments_json": {"a": 1}, "deltas": 2,
         "nonempty_deltas": 1},
    ],
    "stop_reason": "tool_calls",
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    "errors": [],
}  # fmt: skip


def outcome(**changes: Any) -> Outcome:
    tally = Tally()
    for chunk in (
        ThinkingChunk("hm"),
        TextChunk("ok"),
        TextChunk(""),
        ToolCallChunk("", "c", "f"),
        ToolCallChunk("{}"),
    ):
        tally.feed(chunk)
    blocks = [Thinking("hm", {"s": "sig"}), Text("ok"), ToolCall("c", "f", '{"a":1}')]
    values = {
        "message": AssistantMessage(changes.pop("blocks", blocks), "completed", "tool_use"),
        "committed": True,
        "tally": tally,
        "finish": Finish("tool_use"),
        "usage": Usage(0, 3, 4),
    }
    return Outcome(**(values | changes))


def test_no_difference() -> None:
    """A reply that is as expected has none."""
    assert stream_differences("openai_chat", EXPECTED, outcome()) == []


DIFFERENT: dict[str, dict[str, Any]] = {
    "thinking:": {"blocks": [Thinking("h", {"s": "sig"}), Text("ok"), ToolCall("c", "f", '{"a":1}')]},
    "text:": {"blocks": [Thinking("hm", {"s": "sig"}), Text("o"), ToolCall("c", "f", '{"a":1}')]},
    "name:": {"blocks": [Thinking("hm", {"s": "sig"}), Text("ok"), ToolCall("c", "g", '{"a":1}')]},
    "id:": {"blocks": [Thinking("hm", {"s": "sig"}), Text("ok"), ToolCall("d", "f", '{"a":1}')]},
    "arguments:": {"blocks": [Thinking("hm", {"s": "sig"}), Text("ok"), ToolCall("c", "f", '{"a": 1}')]},
    "signature": {"blocks": [Thinking("hm", {"s": "si"}), Text("ok"), ToolCall("c", "f", '{"a":1}')]},
    "blocks:": {"blocks": [Text("ok"), ToolCall("c", "f", '{"a":1}')]},
    "expected thinking": {"blocks": [Text("hm"), Text("ok"), ToolCall("c", "f", '{"a":1}')]},
    "usage:": {"usage": Usage(1, 2, 4)},
    "finish_reason:": {"finish": Finish("stop")},
    "complete reply": {"error": ModelError("network", "gone"), "committed": False},
    "not committed": {"committed": False},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_each_difference_is_found(what: str) -> None:
    """A reply that differs in one thing is told of that thing."""
    found = stream_differences("openai_chat", EXPECTED, outcome(**DIFFERENT[what]))
    assert any(what in line for line in found)


@pytest.mark.parametrize("key", ["deltas", "nonempty_deltas"])
def test_numbers_of_pieces_are_compared(key: str) -> None:
    """Text in more or fewer pieces than were sent is a difference."""
    expected = copy.deepcopy(EXPECTED)
    expected["blocks"][1][key] += 1
    assert any(f"{key}: expected" in line for line in stream_differences("openai_chat", expected, outcome()))


def test_what_comes_back_is_joined() -> None:
    """Where a reply goes back to thinking or text that had ended, the recording has it as one block."""
    tally = Tally()
    for chunk in (ThinkingChunk("h", 0), BlockEnd(0), TextChunk("o", 1), ThinkingChunk("m", 0), BlockEnd(1),
                  TextChunk("k", 1), TextChunk("", 1), ToolCallChunk("{}", "c", "f", 2)):  # fmt: skip
        tally.feed(chunk)
    blocks = [Thinking("h", {"s": "sig"}), Text("o"), Thinking("m"), Text("k"), ToolCall("c", "f", '{"a":1}')]
    expected = copy.deepcopy(EXPECTED)
    expected["blocks"][0] |= {"deltas": 2, "nonempty_deltas": 2}
    expected["blocks"][1] |= {"deltas": 3, "nonempty_deltas": 2}
    expected["blocks"][2] |= {"deltas": 1}
    assert stream_differences("openai_chat", expected, outcome(blocks=blocks, tally=tally)) == []
    assert stream_differences("anthropic_messages", expected, outcome(blocks=blocks, tally=tally))
    blocks[3] = Text("k", {"refusal": True})
    assert stream_differences("openai_chat", expected, outcome(blocks=blocks, tally=tally))


def test_an_error_under_status_200() -> None:
    """An error answer whose status does not say so is placed by its body."""
    body = b'{"error": {"message": "no", "code": 429}}'
    assert error_differences(200, {}, body, Outcome(error=ModelError("rate_limit", "no"))) == []
    assert error_differences(200, {}, body, Outcome(error=ModelError("network", "no")))


def test_a_failed_stream() -> None:
    """A stream with an error in it must fail with its code, and a stream without an end be cut."""
    failing = EXPECTED | {"stop_reason": None, "errors": [{"payload": {"error": {"message": "no", "code": 503}}}]}
    failed = {"committed": False, "finish": None}
    assert stream_differences("openai_chat", failing, outcome(error=ModelError("overloaded", "x"), **failed)) == []
    assert stream_differences("openai_chat", failing, outcome(error=ModelError("network", "x"), **failed))
    assert stream_differences("openai_chat", failing, outcome())
    noted = EXPECTED | {"errors": [{"event": 3, "note": "a remark"}]}
    assert stream_differences("openai_chat", noted, outcome()) == []
    cut = EXPECTED | {"stop_reason": None}
    assert stream_differences("openai_chat", cut, outcome(**failed)) == []
    assert stream_differences("openai_chat", cut, outcome())


def test_the_wait_of_an_error_in_a_stream() -> None:
    """What an error inside a stream asks to wait is compared too."""
    detail = {"retryDelay": "7s"}
    failing = EXPECTED | {"errors": [{"payload": {"error": {"message": "no", "code": 429, "details": [detail]}}}]}

    def differences(wait: float | None) -> list[str]:
        error = ModelError("rate_limit", "no", retry_after=wait)
        return stream_differences("openai_chat", failing, outcome(error=error, committed=False, finish=None))

    assert differences(7.0) == []
    assert differences(None) and differences(6.0)


def test_what_had_only_begun_may_be_missing_from_a_reply_that_failed() -> None:
    """A block without content, a call or an item that was not whole when the stream broke off: an adapter has nothing
    to show of them. Text that came is no such block."""
    began: list[dict[str, Any]] = [
        {"type": "thinking", "text": "", "deltas": 0, "nonempty_deltas": 0},
        {"type": "other", "kind": "search", "payload": {}, "deltas": 0},
    ]
    for block in began:
        expected = EXPECTED | {"blocks": [*EXPECTED["blocks"], block]}
        cut = expected | {"stop_reason": None}
        assert stream_differences("openai_chat", cut, outcome(committed=False, finish=None)) == []
        assert stream_differences("openai_chat", expected, outcome())
    said = EXPECTED | {"stop_reason": None, "blocks": [*EXPECTED["blocks"], {"type": "text", "text": "b", "deltas": 1}]}
    assert stream_differences("openai_chat", said, outcome(committed=False, finish=None))


def test_empty_pieces_that_say_nothing() -> None:
    """Empty pieces of thinking that had ended need not be counted; where it had not they are."""
    expected = copy.deepcopy(EXPECTED)
    expected["blocks"][0]["deltas"] = 3
    assert stream_differences("openai_chat", expected, outcome())
    ended = outcome()
    ended.tally.counts[0].ended = True
    assert stream_differences("openai_chat", expected, ended) == []
    assert stream_differences("anthropic_messages", expected, ended)
    ended.tally.counts[0].nonempty = 2
    assert stream_differences("openai_chat", expected, ended)


@pytest.mark.parametrize(("last", "reason"), [("STOP", "stop"), ("", "stop"), ("MAX_TOKENS", "length")])
def test_words_for_the_end(last: str, reason: Any) -> None:
    """Capitals do not matter, and an empty word behind another says nothing."""
    sent = [{"value": "stop"}, {"value": last}]
    expected = {"stop_reason": last, "stop_reasons_sent": sent, "blocks": [], "errors": [], "usage": None}
    assert stream_differences("openai_chat", expected, Outcome(finish=Finish(reason), committed=True)) == []
    assert stream_differences("openai_chat", expected, Outcome(finish=Finish("unknown"), committed=True))


def test_a_failed_response_without_an_error() -> None:
    """A response that failed is no reply, whatever it says of why."""
    expected = {"stop_reason": "failed", "final_error": None, "blocks": [], "errors": [], "usage": None}
    assert stream_differences("openai_responses", expected, Outcome(error=ModelError("network", "no"))) == []
    assert stream_differences("openai_responses", expected, Outcome(finish=Finish("unknown"), committed=True))


def test_parts_that_expectations_pass_over() -> None:
    """An adapter keeps a part of a kind that nobody knows; one of a known kind counts."""
    expected = {
        "stop_reason": "STOP", "errors": [], "usage": None,
        "blocks": [{"type": "text", "text": "a", "deltas": 1, "nonempty_deltas": 1}],
    }  # fmt: skip

    def compared(part: dict[str, Any]) -> list[str]:
        message = AssistantMessage((Text("a"), Text("", part)), "completed", "stop")
        return stream_differences("google_gemini", expected, Outcome(message, True, finish=Finish("stop")))

    assert compared({"novelty": 1}) == []
    assert compared({"fileData": {}}) and compared({"thoughtSignature": "S"})


def test_what_did_not_come_in_pieces_has_no_number_of_them() -> None:
    """Arguments that came whole at a call's end may be told in any number of pieces."""
    expected = copy.deepcopy(EXPECTED)
    expected["blocks"][2] |= {"deltas": 0, "nonempty_deltas": 0}
    assert stream_differences("openai_chat", expected, outcome()) == []


def test_blocks_of_a_first_event() -> None:
    """Where the only stop reason stood in a stream's first event, blocks may have stood there too."""
    expected = EXPECTED | {"blocks": EXPECTED["blocks"][1:], "stop_reason": "tool_use", "stop_reasons_sent": []}
    expected["usage"] = {"input_tokens": 3, "output_tokens": 4}
    reply = outcome()
    assert stream_differences("anthropic_messages", expected, reply) == []
    assert stream_differences("anthropic_messages", expected | {"stop_reasons_sent": [{"value": "tool_use"}]}, reply)
    assert stream_differences("anthropic_messages", expected | {"blocks": EXPECTED["blocks"][:2]}, reply)


def test_arguments_that_were_no_text() -> None:
    """Arguments sent as an object have no text of their own to compare; sent as text in place of an object, that text."""
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": '{"a": 1}', "arguments_json": {"a": 1}}
    reply = outcome(blocks=[ToolCall("c", "f", '{"a":1}')])
    reply.tally.counts.clear()
    assert stream_differences("openai_chat", EXPECTED | {"blocks": [call]}, reply)
    sent = EXPECTED | {"blocks": [call | {"arguments_sent_as_object": True}]}
    assert stream_differences("openai_chat", sent, reply) == []
    text = EXPECTED | {"stop_reason": "stop", "usage": {"prompt_eval_count": 3, "eval_count": 4}}
    text["blocks"] = [{"type": "tool_call", "id": "c", "name": "f", "arguments_json": '{"a":1}'}]
    assert stream_differences("ollama_chat", text, reply) == []


def test_what_is_null_at_first_is_filled_in_later() -> None:
    """Null in the start of a block is no claim."""
    payload = {"type": "summary", "content": None, "secret": None, "kind": "k"}
    expected = {
        "stop_reason": "end_turn", "errors": [], "usage": None,
        "blocks": [{"type": "other", "kind": "summary", "payload": payload}],
    }  # fmt: skip

    def compared(kept: dict[str, Any]) -> list[str]:
        message = AssistantMessage((Text("", kept),), "completed", "stop")
        return stream_differences("anthropic_messages", expected, Outcome(message, True, finish=Finish("stop")))

    assert compared({"type": "summary", "content": "s", "secret": "x", "kind": "k"}) == []
    assert compared({"type": "summary", "content": "s", "secret": "x", "kind": "l"})


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "truncated"), (b"<html>Sign in</html>", "malformed"), (b'[{"error": {"code": 503}}]', "overloaded")],
)
def test_answers_that_are_no_stream(body: bytes, code: str) -> None:
    """Under a status of success: nothing is a cut, a page is malformed, a list holds the error."""
    assert error_differences(200, {}, body, Outcome(error=ModelError(code, "x"))) == []
    assert error_differences(200, {}, body, Outcome(error=ModelError("rejected", "x")))


@pytest.mark.parametrize(
    ("api", "stop", "sent"),
    [
        ("openai_responses", "completed", {"input_tokens": 3, "output_tokens": None}),
        ("openai_responses", "completed", {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}),
        ("google_gemini", "STOP", {"promptTokenCount": 3, "cachedContentTokenCount": 4}),
    ],
)
def test_usage_with_holes(api: str, stop: str, sent: dict[str, Any]) -> None:
    """What a usage leaves out is nothing, and no number of tokens is below zero."""
    expected = {"stop_reason": stop, "blocks": [], "errors": [], "usage": sent}
    found = stream_differences(api, expected, Outcome(finish=Finish("stop"), committed=True, usage=Usage(9, 9, 9)))
    assert len(found) == 1
    assert "usage: expected" in found[0]
    assert "=-" not in found[0]


def test_a_prompt_that_was_blocked() -> None:
    """Only a reason says that a prompt was blocked; other feedback leaves a stream without an end a cut one."""
    blocked = {"stop_reason": None, "blocks": [], "errors": [], "prompt_feedback": {"blockReason": "SAFETY"}}
    assert stream_differences("google_gemini", blocked, Outcome(error=ModelError("content_filter", "no"))) == []
    cut = blocked | {"prompt_feedback": {"safetyRatings": []}}
    assert stream_differences("google_gemini", cut, Outcome()) == []
    assert stream_differences("google_gemini", blocked, Outcome())


def test_a_reason_that_is_a_failure() -> None:
    """Gemini ends a reply that came to nothing with a reason of its own; the adapter must say so."""
    expected = {"stop_reason": "MALFORMED_FUNCTION_CALL", "blocks": [], "errors": [], "usage": None}
    failed = Outcome(error=ModelError("malformed", "MALFORMED_FUNCTION_CALL"))
    assert stream_differences("google_gemini", expected, failed) == []
    ended = Outcome(finish=Finish("unknown"), committed=True)
    assert stream_differences("google_gemini", expected, ended) == ["error_code: expected malformed, got a reply"]


def test_an_end_without_a_reason() -> None:
    """Old servers of Ollama's API said `done` and no more; without even that the stream was cut."""
    expected: dict[str, Any] = {"stop_reason": None, "blocks": [], "errors": [], "usage": {}, "usage_events": [1]}
    whole = Outcome(finish=Finish("unknown"), committed=True)
    assert stream_differences("ollama_chat", expected, whole) == []
    assert stream_differences("ollama_chat", {**expected, "usage_events": []}, whole) != []


@pytest.mark.parametrize("kind", [InlineData, InlineThinking])
def test_data_that_a_model_made(kind: Any) -> None:
    """It is compared whole: the data itself and what the part held beside it."""
    part = {"thought": True, "inlineData": {"mimeType": "image/png", "data": "QQ==", "displayName": "n"}}
    expected = {
        "stop_reason": "STOP", "errors": [], "usage": None,
        "blocks": [{"type": "other", "kind": "inlineData", "payload": part, "signature": "S"}],
    }  # fmt: skip

    def compared(data: str, **beside: Any) -> list[str]:
        block = kind(
            data, "image/png", {"thought": True, "thoughtSignature": "S", "inlineData": {"displayName": "n"}, **beside}
        )
        message = AssistantMessage((block,), "completed", "stop")
        return stream_differences("google_gemini", expected, Outcome(message, True, finish=Finish("stop")))

    assert compared("QQ==") == []
    assert len(compared("Qg==")) == len(compared("QQ==", thought=False)) == 1


def test_an_error_answer() -> None:
    """Code, stop reason and wait are compared."""
    headers = {"Retry-After": "3"}

    def differences(error: ModelError | None) -> list[str]:
        return error_differences(429, headers, b"{}", Outcome(error=error))

    assert differences(ModelError("rate_limit", "x", retry_after=3.0)) == []
    assert any("retry_after" in line for line in differences(ModelError("rate_limit", "x", retry_after=2.0)))
    assert any("retry_after" in line for line in differences(ModelError("rate_limit", "x")))
    assert any("error_code" in line for line in differences(ModelError("overloaded", "x", retry_after=3.0)))
    assert any(
        "stop_reason" in line for line in differences(ModelError("rate_limit", "x", retryable=False, retry_after=3.0))
    )
    assert differences(None)


# ---------------------------------------------------------------- the folder and the command


def make_folder(folder: Path, **changes: Any) -> Path:
    """A folder with one stream, one error, one answer that is not run, and one of an API that nobody speaks."""
    body = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    expected = {
        "blocks": [{"type": "text", "text": "hi", "deltas": 1, "nonempty_deltas": 1}],
        "stop_reason": "stop",
        "usage": None,
        "errors": [],
    } | changes
    (folder / "some").mkdir(parents=True)
    entries = []
    for name, api, kind, status, content in (
        ("stream", "openai_chat", "stream", 200, body),
        ("error", "openai_chat", "error", 404, b'{"error": {"message": "no such model"}}'),
        ("whole", "openai_chat", "json", 200, b"{}"),
        ("strange", "smoke_signals", "stream", 200, body),
    ):
        entries.append({"case": f"some/{name}", "api": api, "kind": kind, "status": status, "model": "m",
                        "body": f"some/{name}.txt", "bytes": len(content)})  # fmt: skip
        kind_of_content = "text/event-stream" if kind == "stream" else "application/json"
        meta = {"status": status, "headers": {"content-type": kind_of_content}, "request": {}}
        (folder / f"some/{name}.meta.json").write_text(json.dumps(meta))
        (folder / f"some/{name}.txt").write_bytes(content)
        (folder / f"some/{name}.expected.json").write_text(json.dumps(expected))
    (folder / "index.json").write_text(json.dumps({"cases": entries}))
    return folder


def test_a_folder(tmp_path: Path) -> None:
    """Streams and errors are run, whole answers are not, and an API without an adapter is not ok."""
    results = run_folder(make_folder(tmp_path))
    assert [(result.case, result.ok) for result in results] == [
        ("some/stream", True),
        ("some/error", True),
        ("some/strange", False),
    ]
    assert "smoke_signals" in results[-1].differences[0]


def test_choosing_cases(tmp_path: Path) -> None:
    """By a part of the name or a pattern, by API, by length."""
    folder = make_folder(tmp_path)

    def chosen(**options: Any) -> list[str]:
        return [case.name for case in load_cases(folder, **options)]

    assert chosen(only="strea") == ["some/stream"]
    assert chosen(only="some/st*") == ["some/stream", "some/strange"]
    assert chosen(api="smoke_signals") == ["some/strange"]
    assert chosen(longest=50) == ["some/error"]
    assert chosen(kinds=["json"]) == ["some/whole"]


def test_broken_files_cost_only_their_case(tmp_path: Path) -> None:
    """A case whose files are missing or damaged is not ok, says why, and the next ones are run."""
    folder = make_folder(tmp_path)
    (folder / "some/stream.expected.json").write_text("{")
    (folder / "some/error.meta.json").unlink()
    first, second, _ = run_folder(folder)
    assert not first.ok
    assert "JSONDecodeError" in first.differences[0]
    assert not second.ok
    assert "FileNotFoundError" in second.differences[0]


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_the_command(tmp_path: Path, backend: str) -> None:
    """One JSON line a case, an exit status that tells, nothing on the error output."""
    folder = make_folder(tmp_path)
    command = [sys.executable, "-W", "error", "-m", "agentloop.testing.wire", str(folder), "--backend", backend]
    done = subprocess.run(
        [*command, "--api", "openai_chat", "--chop", "1"], capture_output=True, text=True, check=False
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"case": "some/stream", "ok": True, "differences": []},
        {"case": "some/error", "ok": True, "differences": []},
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A difference is exit status 1."""
    folder = make_folder(tmp_path, stop_reason="length")
    assert main([str(folder), "--only", "stream"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["differences"] == ["finish_reason: expected length, got stop"]


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--chop", "0"], [".", "--backend", "x"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is none, a chop or a backend that means nothing: a usage error that says so."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


def test_no_adapter() -> None:
    """Making an adapter for an API that nobody speaks is a clear error."""
    with pytest.raises(LookupError, match="smoke_signals"):
        make_adapter("smoke_signals", "http://127.0.0.1:1")
    assert set(ADAPTERS) == {"openai_chat", "openai_responses", "anthropic_messages", "google_gemini", "ollama_chat"}
