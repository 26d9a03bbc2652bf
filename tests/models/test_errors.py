"""The classification of failed requests: statuses, bodies, headers, exceptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import REQUEST_CODES, RETRYABLE_CODES, ModelError
from agentloop.models._errors import (
    MAX_MESSAGE,
    exception_error,
    header_wait,
    payload_error,
    read_body,
    response_error,
)
from agentloop.testing._wire_compare import error_differences, stream_differences
from agentloop.testing._wire_outcome import Outcome
from agentloop.testing.wire import load_cases

STATUSES = {
    400: "rejected",
    401: "auth",
    402: "rejected",
    403: "rejected",
    404: "rejected",
    408: "timeout",
    409: "rejected",
    413: "rejected",
    422: "rejected",
    425: "rate_limit",
    429: "rate_limit",
    500: "network",
    502: "network",
    503: "overloaded",
    504: "network",
    529: "overloaded",
}


@pytest.mark.parametrize(("status", "code"), STATUSES.items())
@pytest.mark.parametrize("body", [b"", b"{}", b'{"error": {"message": "no."}}', b"no.", b'"no."', b"[]", b"null"])
def test_status_decides_where_the_body_says_nothing(status: int, code: str, body: bytes) -> None:
    """Each status has its code, and the code says whether a retry is worth it."""
    error = response_error(status, {}, body)
    assert error.code == code
    assert error.retryable is (code in RETRYABLE_CODES)
    assert str(status) in error.message


BODIES = [
    # credentials, whatever the status
    (400, {"error": {"message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}}, "auth"),
    (400, {"error": "Incorrect API key given"}, "auth"),
    (403, {"error": {"code": "invalid_api_key", "message": "no"}}, "auth"),
    (500, {"error": {"type": "authentication_error", "message": "no"}}, "auth"),
    (429, {"error": {"message": "The API key is invalid"}}, "auth"),
    (400, {"detail": "Could not validate credentials"}, "auth"),
    (404, {"message": "Missing Authentication header"}, "auth"),
    # not every word about keys is one
    (429, {"error": {"message": "Rate limit reached for this API key"}}, "rate_limit"),
    (404, {"error": {"message": "model not found, or you have no access"}}, "rejected"),
    # context
    (400, {"error": {"code": "context_length_exceeded", "message": "no"}}, "context_too_long"),
    (400, {"error": {"message": "prompt is too long: 300 tokens > 200 maximum"}}, "context_too_long"),
    (400, {"error": {"message": "Your input exceeds the context window of this model."}}, "context_too_long"),
    (400, {"error": {"message": "This model's maximum context length is 100 tokens"}}, "context_too_long"),
    (
        400,
        {"error": {"message": "The input token count (9) exceeds the maximum number allowed (8)"}},
        "context_too_long",
    ),
    (413, {"error": {"message": "Request too large for model x"}}, "context_too_long"),
    (500, {"error": {"message": "the request exceeds the available context size"}}, "context_too_long"),
    (400, {"object": "error", "message": "Please reduce the length of the messages.", "code": 400}, "context_too_long"),
    (429, {"error": {"message": "Too many tokens per minute"}}, "rate_limit"),
    (429, {"error": {"message": "over the maximum context length per minute"}}, "rate_limit"),
    (408, {"error": {"code": "content_filter"}}, "timeout"),
    # filter
    (400, {"error": {"code": "content_filter", "message": "no"}}, "content_filter"),
    (400, {"error": {"innererror": {"code": "ResponsibleAIPolicyViolation"}, "message": "no"}}, "content_filter"),
    (403, {"error": {"message": "Your input was flagged by our moderation"}}, "content_filter"),
    (503, {"error": {"code": "content_filter"}}, "overloaded"),
    # shapes
    (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "rejected"),
    (400, [{"error": {"message": "API key expired"}}], "auth"),
    (400, {"errors": [{"message": "context window exceeded"}]}, "context_too_long"),
    (400, {"error": {"message": "Upstream failed", "metadata": {"raw": "prompt is too long"}}}, "context_too_long"),
    (400, {"error": {"metadata": {"raw": '{"error": {"message": "prompt is too long"}}'}}}, "context_too_long"),
    # the many words for one thing
    *(
        (400, {"message": words}, "context_too_long")
        for words in (
            "the input token count is 9 but the model only supports up to 8",
            "the total number of tokens in the prompt cannot exceed 8, got 9",
            "the number of input tokens 9 cannot exceed the total limit 8: input tokens exceed it",
            "max tokens of 8 exceeded",
            "Prompt exceeds max length",
            "Range of input length should be [1, 8]",
            "The prompt (9) is longer than the maximum model length of 8",
            "The input (9 tokens) is longer than the model's context length",
            "`inputs` tokens + `max_new_tokens` must be <= 8",
            "`inputs` must have less than 8 tokens",
            "reached context length of 8 tokens",
            "keeping the first 9 tokens overflows; load the model with a larger context length",
            "Input tokens exceed the configured limit of 8 tokens",
            "The maximum input length is 8 tokens",
            "Current length is 9 while limit is 8",
            "too many tokens in the prompt",
            "token limit exceeded",
            "your request exceeds the token limit: the request exceeds token limit",
            "the context window is full: context window full",
            "at most 8 input tokens",
            "the number of tokens exceeds 8, the context of this model",
            "The conversation is too long",
        )
    ),
    *(
        (400, {"message": words}, "content_filter")
        for words in (
            "Content exists risk",
            "considered high risk",
            "possibly unsafe or sensitive content in the input",
            "Content violates usage guidelines",
            "Your input was flagged for something",
        )
    ),
    (400, {"message": "the name get_context_length is invalid"}, "rejected"),
    (400, {"message": "the tool moderation_check has an invalid schema"}, "rejected"),
    (400, {"message": "max_tokens is 9, and the model can write 8 at most"}, "rejected"),
    (400, {"message": "Missing bearer authentication"}, "auth"),
    (400, {"message": "schema of 'f': the property 'content_filter' has no type"}, "rejected"),
    (403, {"error": {"message": "This API key was reported as leaked."}}, "auth"),
    (403, {"error": {"message": "Method doesn't allow unregistered callers"}}, "auth"),
    (403, {"error": {"message": "The API key that you gave us is invalid."}}, "auth"),
    (400, "bad request: Authorization header is badly formatted", "auth"),
    (403, {"error": {"message": "Your API key has no permission for this model"}}, "rejected"),
]


@pytest.mark.parametrize(("status", "body", "code"), BODIES)
def test_body_is_read_before_the_status(status: int, body: Any, code: str) -> None:
    """Credentials come before any other reading; context and filter before the status; every shape is found."""
    assert response_error(status, {}, json.dumps(body).encode()).code == code
    assert response_error(status, {}, body).code == code


PAYLOADS = [
    ({"error": {"message": "busy", "code": 503}}, "overloaded"),
    ({"error": {"message": "no", "code": "429"}}, "rate_limit"),
    ({"error": {"message": "no", "status_code": 400, "type": "server_error"}}, "rejected"),
    ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
    ({"error": {"type": "insufficient_quota", "message": "quota"}}, "rate_limit"),
    ({"error": {"type": "invalid_request_error", "message": "no"}}, "rejected"),
    ({"error": {"type": "invalid_request_error", "code": "context_length_exceeded"}}, "context_too_long"),
    ({"error": {"type": "server_error", "message": "no"}}, "network"),
    ({"error": {"type": "timeout", "message": "no"}}, "timeout"),
    ({"error": {"status": "UNAUTHENTICATED"}}, "auth"),
    ({"error": "something broke"}, "network"),
    ("something broke", "network"),
    ({}, "network"),
    ({"error": {"code": "image_parse_error", "message": "no"}}, "rejected"),
    ({"error": {"code": "image_content_policy_violation", "message": "no"}}, "content_filter"),
    ({"error": {"code": "cyber_policy", "message": "no"}}, "content_filter"),
    ({"error": {"message": "the model is loaded with context length of 8 tokens"}}, "context_too_long"),
    ({"error": {"code": "invalid_image_format", "message": "no"}}, "rejected"),
    ({"error": {"code": "vector_store_timeout", "message": "no"}}, "timeout"),
    ({"error": {"type": "service_tier_capacity_exceeded", "message": "no"}}, "overloaded"),
    ({"error": "busy", "error_type": "overloaded"}, "overloaded"),
    ({"error": {"type": "InternalServerError", "message": "no"}}, "network"),
]


@pytest.mark.parametrize("begin", ["data: ", "data:", "event: error\ndata: ", "event: error\r\ndata: "])
def test_refusal_in_the_shape_of_a_stream(begin: str) -> None:
    """A body that is one server-sent event is read like the object in it."""
    body = begin + '{"error": {"code": "context_length_exceeded", "message": "no"}}\n\n'
    error = response_error(400, {}, body.encode())
    assert (error.code, error.message) == ("context_too_long", "HTTP 400: no")


@pytest.mark.parametrize(("payload", "code"), PAYLOADS)
def test_error_inside_a_stream(payload: Any, code: str) -> None:
    """Without a status of its own, an error is placed by the status that it quotes, then by the codes that it names."""
    error = payload_error(payload)
    assert error.code == code
    assert error.message


WAITS = [
    ({"retry-after": "12"}, 12.0),
    ({"Retry-After": " 1.5 "}, 1.5),
    ({"retry-after-ms": "250"}, 0.25),
    ({"retry-after": "1", "retry-after-ms": "0"}, 1.0),
    ({"retry-after": "1", "retry-after-ms": "1200"}, 1.2),
    ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:27:30 GMT"}, 30.0),
    ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:29:00 GMT"}, 0.0),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-3"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": ""}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "wait"), WAITS)
def test_wait_of_the_headers(headers: dict[str, str], wait: float | None) -> None:
    """Seconds, milliseconds and dates are read; of two the longer counts; nonsense is none."""
    assert header_wait(headers) == wait
    assert response_error(429, headers, b"").retry_after == wait


def test_date_is_measured_from_the_given_time() -> None:
    """`now` stands in for the answer's date and the machine's clock."""
    assert header_wait({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=40.0) == 60.0


BODY_WAITS = [
    ({"error": {"message": "Please try again in 20ms."}}, 0.02),
    ({"error": {"message": "Please try again in 6m0.5s. Visit the page."}}, 360.5),
    ({"error": {"message": "Retry after 12 seconds"}}, 12.0),
    ({"error": {"message": "wait for 5 messages"}}, None),
    ({"error": {"retry_after": 3, "message": "no"}}, 3.0),
    ({"retryAfter": "4", "error": "no"}, 4.0),
    ({"error": {"metadata": {"retry_after_ms": 500}}}, 0.5),
    ({"error": {"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "39.5s"}]}}, 39.5),
    ({"error": {"details": [{"retryDelay": {"seconds": 2, "nanos": 500000000}}]}}, 2.5),
    ({"error": {"retry_after": True}}, None),
]


@pytest.mark.parametrize(("body", "wait"), BODY_WAITS)
def test_wait_of_the_body(body: Any, wait: float | None) -> None:
    """Fields in both spellings, Google's RetryInfo, and words are read."""
    assert response_error(429, {}, body).retry_after == wait


def test_which_wait_counts() -> None:
    """Headers before the body, its fields before its words; a zero in the headers says nothing."""
    body = {"error": {"retry_after": 3, "message": "Try again in 9s."}}
    assert response_error(429, {"retry-after": "1"}, body).retry_after == 1.0
    assert response_error(429, {"retry-after": "0"}, body).retry_after == 3.0
    assert response_error(429, {}, body).retry_after == 3.0
    assert response_error(429, {"retry-after": "0"}, b"{}").retry_after == 0.0


def test_no_wait_where_a_retry_is_not_worth_it() -> None:
    """A fatal error asks for no wait, whatever its headers say."""
    assert response_error(400, {"retry-after": "5"}, b"").retry_after is None


def test_html_is_told_as_text() -> None:
    """A proxy's page becomes its words, without tags or scripts."""
    page = b"<!DOCTYPE html><html><head><script>x < 1</script><title>502 Bad</title></head><body><h1>Gateway</h1>"
    error = response_error(502, {}, page)
    assert error.code == "network"
    assert "502 Bad Gateway" in error.message
    assert "<" not in error.message
    assert "script" not in error.message


def test_long_words_are_cut() -> None:
    """An error text has an end."""
    assert len(read_body({"error": {"message": "x" * 50_000}}).message) == MAX_MESSAGE


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text() | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["error", "code", "message", "type", "status", "details", "retry_after", "retryDelay"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_body_becomes_an_error(body: Any) -> None:
    """Whatever stands in a body, it is read without a failure and gives a known code."""
    assert response_error(400, {}, body).code in REQUEST_CODES
    assert payload_error(body).code in REQUEST_CODES


def test_deep_bodies_are_bounded() -> None:
    """Nesting costs neither the stack nor the time."""
    assert response_error(500, {}, b"[" * 100_000).code == "network"
    deep: Any = {"message": "deep"}
    for _ in range(5_000):
        deep = {"error": deep}
    assert response_error(500, {}, deep).code == "network"


class APITimeoutError(Exception):
    """Named like an SDK's."""


class DecodingError(Exception):
    """Named like an HTTP library's."""


class UnsupportedProtocol(Exception):
    """Named like an HTTP library's."""


EXCEPTIONS = [
    (APITimeoutError("late"), "timeout"),
    (TimeoutError(), "timeout"),
    (ConnectionResetError("reset"), "network"),
    (OSError("no route"), "network"),
    (DecodingError("gzip"), "malformed"),
    (UnsupportedProtocol("ftp"), "rejected"),
    (json.JSONDecodeError("bad", "x", 0), "malformed"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "malformed"),
    (RecursionError("deep"), "malformed"),
    (TypeError("Could not resolve authentication method"), "auth"),
    (RuntimeError("what is this"), "network"),
    (ExceptionGroup("group", [TimeoutError("late")]), "timeout"),
]


@pytest.mark.parametrize(("error", "code"), EXCEPTIONS, ids=lambda value: type(value).__name__)
def test_exceptions_by_the_names_of_their_classes(error: BaseException, code: str) -> None:
    """An exception is placed by its class or a base of it; what cannot be placed is the network's; none is wordless."""
    found = exception_error(error)
    assert found.code == code
    assert found.message


def test_model_error_stays_itself() -> None:
    """What is classified already is not classified again."""
    error = ModelError("unsupported", "no")
    assert exception_error(error) is error


def test_cause_is_told() -> None:
    """An SDK's `Connection error.` hides the reason; the text says it."""
    error = RuntimeError("Connection error.")
    error.__cause__ = OSError("name not known")
    assert "name not known" in exception_error(error).message


@pytest.mark.parametrize(("status", "body", "code"), BODIES)
def test_second_opinion_on_answers(status: int, body: Any, code: str) -> None:
    """The reading that recorded answers are held against agrees, though it shares no line with this one."""
    outcome = Outcome(error=response_error(status, {}, body))
    assert error_differences(status, {}, json.dumps(body).encode(), outcome) == []


@pytest.mark.parametrize(("payload", "code"), PAYLOADS)
def test_second_opinion_on_payloads(payload: Any, code: str) -> None:
    """The same for errors inside a stream."""
    expected = {"blocks": [], "errors": [{"payload": payload}]}
    assert stream_differences("openai_chat", expected, Outcome(error=payload_error(payload))) == []


def test_shared_error_bodies(shared: Any) -> None:
    """Every recorded error answer has the code and the wait that the table of codes gives it."""
    cases = load_cases(shared / "wire", kinds=["error"])
    assert cases
    for case in cases:
        meta = case.meta
        found = response_error(meta["status"], meta["headers"], case.body)
        assert error_differences(meta["status"], meta["headers"], case.body, Outcome(error=found)) == [], case.name
