"""What a failed request means: one classification of statuses, bodies, headers and exceptions, for every adapter.

Three doors, all giving a `ModelError`: `response_error` for an HTTP answer that is not a stream, `payload_error` for an
error object inside a stream that began well, `exception_error` for whatever an SDK or an HTTP library raised.

The order of the readings: 401 and signs of a wrong credential first (several providers answer a wrong key with 400),
then the statuses that say it all (408, 425, 429), then context and filter by code or words, then the status, then the
codes. The table of statuses is `agentloop.errors.code_for_status`; the words are data at the top of this file.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from agentloop.errors import RETRYABLE_CODES, ModelError, code_for_status

MAX_MESSAGE = 2_000
"""Longest error text that is kept, in characters: a proxy's HTML page is no message."""

MAX_PARSED = 1_000_000
"""Longest error body that is read as JSON, in bytes."""

_CREDENTIAL_CODES = frozenset({
    "invalid_api_key", "api_key_invalid", "incorrect_api_key", "missing_api_key", "no_api_key", "expired_api_key",
    "authentication_error", "invalid_authentication", "invalid_authentication_error", "unauthenticated", "unauthorized",
    "invalid_token", "access_token_expired", "access_token_type_unsupported", "invalidapikey",
})  # fmt: skip

_CONTEXT_CODES = frozenset({
    "context_length_exceeded", "model_context_window_exceeded", "context_window_exceeded", "exceed_context_size_error",
    "too_many_prompt_tokens", "input_too_long", "prompt_too_long", "request_too_large",
    "max_context_length_exceeded", "tokens_limit_reached", "model_max_prompt_tokens_exceeded",
})  # fmt: skip

_FILTER_CODES = re.compile(
    "content_?(?:filter|policy)|responsible_?ai_?policy|data_?inspection_?failed|prohibited_content|^safety$"
    "|moderation_blocked|(?:cyber|bio)_policy"
)

_CODES: Mapping[str, re.Pattern[str]] = {
    "rate_limit": re.compile(
        "rate_?limit|quota|exhausted|too_?many_?requests|throttl|usage_limit|(?:requests|tokens)$", re.IGNORECASE
    ),
    "overloaded": re.compile("overload|unavailable|slow_down|capacity|engine_busy|server_busy", re.IGNORECASE),
    "timeout": re.compile("time_?out|timed_out|deadline", re.IGNORECASE),
    "rejected": re.compile(
        "invalid|not_?found|permission|forbidden|unsupported|unimplemented|tool_use_failed|bad_?request|bad_image"
        "|precondition|out_of_range|already_exists|billing|credit|validation|too_(?:small|large|long)|parse_error|empty_"
        "|failed_to_download|moderation",
        re.IGNORECASE,
    ),
}
"""What a code or type means that an error names where no status says it, by what it holds. The first that fits counts;
all others are `network`."""

_CREDENTIAL_WORDS = re.compile(
    r"\b(?:invalid|incorrect|missing|wrong|expired|revoked|unknown|malformed|no) (?:or \w+ )?(?:bearer )?"
    r"(?:api[ _-]?key|authentication|credentials?|(?:access|bearer) token|auth(?:orization)? (?:header|token))"
    r"|(?:api[ _-]?key|x-api-key|credentials?|(?:access|bearer) token)\b[^.]{0,60}?\b"
    r"(?:(?:is|are|was) (?:not valid|invalid|missing|incorrect|expired|required|not provided)"
    r"|not valid|not found|has expired|expired|invalid)"
    r"|(?:api[ _-]?key|credentials?|(?:access|bearer) token)\b[^.]{0,30}\b(?:leaked|revoked|disabled)"
    r"|unregistered callers|login fail|authorization header is (?:badly|malformed)"
    r"|invalid user ?name or password|authentication fails|not authenticated|(?:didn't|did not) provide an api key"
    r"|could not (?:resolve|validate) (?:the )?(?:authentication|credentials)",
    re.IGNORECASE,
)

_CONTEXT_WORDS = re.compile(
    r"(?:prompt|input|context|conversation|request|messages?) (?:is |are |was )?too (?:long|large)"
    r"|(?:maximum|max|model'?s?|available|supported) context (?:length|window|size)"
    r"|context (?:length|window|size|limit)[^.]{0,40}(?:exceed|overflow|too)"
    r"|exceed[^.]{0,60}context (?:length|window|size|limit)"
    r"|length of (?:all )?messages is too long"
    r"|reduce (?:the length of (?:the |your )?(?:messages|prompt|input)|your message size)"
    r"|(?:input|prompt) token(?:s| count)\b[^.]{0,60}(?:exceed|only supports)"
    r"|tokens in the (?:prompt|input) (?:cannot|must not|may not) exceed|max tokens of \d+ exceeded"
    r"|(?:prompt|input) exceeds (?:the )?(?:max|model)|range of input length should be"
    r"|longer than the (?:maximum )?(?:model|context|input|prompt)(?:'s context)? length"
    r"|`inputs`[^.]{0,40}must (?:be <=|have less than) \d"
    r"|(?:larger|reached|exceeded|loaded with) context length"
    r"|exceed[^.]{0,60}(?:maximum|max|limit)[^.]{0,30}(?:input|prompt) tokens"
    r"|maximum (?:prompt|input) length|too many (?:(?:input|prompt) tokens|tokens in)|exceeded model token limit"
    r"|current length is \d+ while limit|at most \d+ (?:input|prompt) tokens|token limit exceeded"
    r"|(?:input|prompt|request)[^.]{0,20} exceeds? (?:the )?token limit|tokens? exceeds?[^.]{0,60}context|context window full"
    r"|greater than the context length"
    r"|too large for model with \d+ maximum context length",
    re.IGNORECASE,
)

_FILTER_WORDS = re.compile(
    r"content (?:management|safety|moderation) policy|content[ -]?filter|(?:inappropriate|sensitive) content"
    r"|content exists risk|considered high risk|input was flagged"
    r"|(?:flagged|blocked|rejected)[^.]{0,40}(?:safety|moderation|policy|inappropriate)"
    r"|violat\w+[^.]{0,40}(?:usage|content|safety) (?:polic|guideline)",
    re.IGNORECASE,
)

_UNIT = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h)(?![a-z])"
_WAIT_WORDS = re.compile(
    rf"(?:try again|retry|available again|wait|reset)\w{{0,20}}[^.\d]{{0,40}}((?:\d+(?:\.\d+)?\s*{_UNIT}\s*)+)",
    re.IGNORECASE,
)
_WAIT_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milli|h|m|s)", re.IGNORECASE)
_WAIT_UNITS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TAGS = re.compile(r"<(?:script|style)\b.*?(?:</(?:script|style)\s*>|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL)


@attrs.frozen
class ErrorFacts:
    """What an error body says: its words, every code or type it names (lower case), a status of its own, a wait."""

    message: str
    codes: frozenset[str]
    status: int | None
    retry_after: float | None


# ---------------------------------------------------------------- the three doors


def response_error(
    status: int, headers: Mapping[str, str] | None = None, body: Any = None, *, now: float | None = None
) -> ModelError:
    """The error of an HTTP answer. `body` is bytes, text or parsed JSON; `headers` need not be lower case.

    A wait in the headers wins over one in the body, a field of the body over its words. `now` (seconds since the epoch)
    is what an HTTP date in `retry-after` is measured from; default: the answer's own `date`, else this machine's clock.
    """
    facts = read_body(body)
    code = _code(status, facts)
    text = facts.message or "the provider sent an empty body"
    wait = header_wait(headers or {}, now)
    if not wait and facts.retry_after is not None:  # a zero says nothing
        wait = facts.retry_after
    return _error(code, f"HTTP {status}: {text}", wait)


def payload_error(payload: Any, *, message: str = "") -> ModelError:
    """The error of an error object inside a stream: by a status it quotes or the codes it names, else `network`.

    `message` stands in where the object has no words of its own.
    """
    facts = read_body(payload)
    text = facts.message or message or "the provider reported an error without words"
    return _error(_code(facts.status, facts), text, facts.retry_after)


def exception_error(error: BaseException) -> ModelError:
    """The error of an exception of an SDK, an HTTP library or the operating system, by the names of its classes.

    Classes are recognised by name so that no SDK must be installed or loaded. What has a response is read like one;
    what cannot be placed is `network`. The original should be chained: `raise exception_error(error) from error`.
    """
    error = _leaf(error)
    if isinstance(error, ModelError):
        return error
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    body = getattr(error, "body", None)
    if isinstance(status, int) and status >= 400:
        return response_error(status, getattr(response, "headers", None), _content(response, body))
    if body:  # an SDK's error for an error object inside a stream
        return payload_error(body, message=_words(error))
    names = {cls.__name__ for cls in type(error).__mro__}
    for code, known in _EXCEPTIONS:
        if names & known:
            return ModelError(code, _words(error))
    words = _words(error)
    return ModelError("auth" if _CREDENTIAL_WORDS.search(words) else "network", words)


_EXCEPTIONS: tuple[tuple[str, frozenset[str]], ...] = (
    ("timeout", frozenset({"APITimeoutError", "TimeoutException", "TimeoutError", "TooSlowError"})),
    ("auth", frozenset({"SubjectTokenProviderError", "OAuthError", "AuthenticationError", "WorkloadIdentityError",
                        "CredentialsError"})),
    ("content_filter", frozenset({"ContentFilterFinishReasonError"})),
    ("truncated", frozenset({"LengthFinishReasonError"})),
    ("rejected", frozenset({"UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "TooManyRedirects"})),
    ("malformed", frozenset({"JSONDecodeError", "UnicodeError", "DecodingError", "ValidationError", "SSEError",
                             "APIResponseValidationError", "APIWebhookValidationError", "RecursionError",
                             "InvalidWebhookSignatureError"})),
)  # fmt: skip
"""Names of exception classes (of any base counts) and what they mean, in this order; all others are `network`."""


# ---------------------------------------------------------------- what a body says


def read_body(body: Any) -> ErrorFacts:
    """Read an error body of any provider: JSON of a dozen shapes, plain text, HTML, nothing."""
    value = _parsed(body)
    if not isinstance(value, dict | list):
        return ErrorFacts(_plain("" if value is None else str(value)), frozenset(), None, None)
    message, codes, status, waits = "", set(), None, []
    for entry in _objects(value):
        message = message or _message(entry)
        if words := _quoted_words(entry.get("raw")):  # a gateway's own words say little, those it quotes say it all
            message = words if words in message or not message else f"{message}: {words}"
        for key in ("code", "type", "status", "reason", "error", "error_type", "status_code", "http_status"):
            known = entry.get(key)
            if isinstance(known, str) and not known.strip().isdigit():
                codes.add(known.strip().lower())
            elif status is None and (number := _status(known)):
                status = number
        waits.append(_field_wait(entry))
    wait = _longest(*waits)
    text = _plain(message) or _plain(_compact(value))
    return ErrorFacts(text, frozenset(codes), status, _word_wait(message) if wait is None else wait)


def _parsed(body: Any) -> Any:
    if isinstance(body, bytes | bytearray | memoryview):
        body = bytes(body[:MAX_PARSED]).decode("utf-8", "replace")
    if not isinstance(body, str):
        return body
    text = body.strip()
    sent = _EVENT_DATA.search(text) if text[:6] in ("data: ", "event:", "data:{") else None
    value = _json_or_none(text if sent is None else sent.group(1))
    return text if value is None else value


_EVENT_DATA = re.compile(r"^data: ?(\{.*)$", re.MULTILINE)
"""A refusal may come in the shape of the stream that was asked for."""


def _json_or_none(text: str) -> Any:
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text[:MAX_PARSED])
    return None


def _quoted_words(raw: Any) -> str:
    """What a provider said whose error a gateway passes on as text, be it JSON or plain."""
    if not isinstance(raw, str):
        return ""
    value = _json_or_none(raw.strip())
    return next(filter(None, map(_message, _objects(value))), "") if value else raw.strip()


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects of an error body that may say something, outermost first; bounded in depth and number."""
    queue = deque([(value, 0)])
    for _ in range(200):
        if not queue:
            return
        item, depth = queue.popleft()
        inside: list[Any] = item[:16] if isinstance(item, list) else []
        if isinstance(item, dict):
            yield item
            inside = [item.get(key) for key in _NESTED]
        if depth < 6:
            queue.extend((entry, depth + 1) for entry in inside if isinstance(entry, dict | list))


_NESTED = ("error", "errors", "innererror", "details", "metadata", "detail", "response", "base_resp")


def _message(entry: Mapping[str, Any]) -> str:
    for key in ("message", "msg", "error_description", "error", "detail", "raw", "status_msg"):
        text = entry.get(key)
        if isinstance(text, str) and text.strip():
            return text.strip()
    return ""


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdigit() and len(value.strip()) == 3:
        value = int(value)
    return value if type(value) is int and 400 <= value <= 599 else None


def _plain(text: str) -> str:
    """The words of a body: an HTML page without its tags, blanks folded, cut to `MAX_MESSAGE`."""
    head = text[: 20 * MAX_MESSAGE]
    if re.match(r"\s*(?:<!doctype|<html|<\?xml|<head|<body)", head, re.IGNORECASE):
        head = "(an HTML page) " + " ".join(_TAGS.sub(" ", head).split())
    text = head.strip()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _compact(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"an error object ({type(value).__name__}) that cannot be shown"
    return "" if text in ("{}", "[]") else text


def _code(status: int | None, facts: ErrorFacts) -> str:
    if status == 401 or facts.codes & _CREDENTIAL_CODES or _CREDENTIAL_WORDS.search(facts.message):
        return "auth"
    if status in (408, 425, 429):
        return code_for_status(status)
    if status is None:
        if facts.status:
            return _code(facts.status, facts)
        known = [code for code, pattern in _CODES.items() if any(map(pattern.search, facts.codes))]
        if known and known[0] != "rejected":
            return known[0]
    if facts.codes & _CONTEXT_CODES or _CONTEXT_WORDS.search(facts.message):
        return "context_too_long"
    if (status is None or status < 500) and (
        any(map(_FILTER_CODES.search, facts.codes)) or _FILTER_WORDS.search(facts.message)
    ):
        return "content_filter"
    if status is None:
        return "rejected" if "rejected" in known else "network"
    return code_for_status(status)


def _error(code: str, message: str, retry_after: float | None) -> ModelError:
    return ModelError(code, message, retry_after=retry_after if code in RETRYABLE_CODES else None)


# ---------------------------------------------------------------- how long to wait


def header_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The wait in seconds that `retry-after` (seconds or an HTTP date) or `retry-after-ms` asks for, else None.

    Where both are sent the longer one counts: a zero beside a positive wait has been seen, and waiting too little costs
    a further refusal.
    """
    lower = {str(key).lower(): str(value).strip() for key, value in headers.items()}
    milliseconds = _seconds(lower.get("retry-after-ms"))
    return _longest(None if milliseconds is None else milliseconds / 1000, _header_time(lower, now))


def _header_time(headers: Mapping[str, str], now: float | None) -> float | None:
    value = headers.get("retry-after", "")
    seconds = _seconds(value)
    if seconds is not None or not value:
        return seconds
    try:
        then = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    if now is None:
        try:
            now = email.utils.parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            now = time.time()
    return max(0.0, then - now)


def _field_wait(entry: Mapping[str, Any]) -> float | None:
    """A wait among the fields: `retry_after` in both spellings, `…_ms`, Google's RetryInfo (`"retryDelay": "39s"`)."""
    for key in ("retry_after", "retryAfter", "retry-after", "retry_after_seconds", "retryAfterSeconds"):
        wait = _seconds(entry.get(key))
        if wait is not None:
            return wait
    for key in ("retry_after_ms", "retryAfterMs"):
        wait = _seconds(entry.get(key))
        if wait is not None:
            return wait / 1000
    delay = entry.get("retryDelay", entry.get("retry_delay"))
    if isinstance(delay, dict):  # the protocol buffer's own form: {"seconds": 39, "nanos": 0}
        seconds, nanos = _seconds(delay.get("seconds", 0)), _seconds(delay.get("nanos", 0))
        return None if seconds is None else seconds + (nanos or 0.0) / 1e9
    return _seconds(delay.removesuffix("s")) if isinstance(delay, str) else None


def _word_wait(message: str) -> float | None:
    """A wait in the words: `try again in 1m2.5s`, `retry after 12 seconds`, `in 20ms`."""
    found = _WAIT_WORDS.search(message[:MAX_MESSAGE])
    if not found:
        return None
    parts = _WAIT_PART.findall(found.group(1))
    wait = sum(float(number) * _WAIT_UNITS[unit.lower()] for number, unit in parts)
    return wait if math.isfinite(wait) else None


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _longest(*waits: float | None) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


# ---------------------------------------------------------------- exceptions


def _leaf(error: BaseException) -> BaseException:
    """The first exception inside groups of exceptions (trio wraps what happens in a nursery)."""
    for _ in range(16):
        if not isinstance(error, BaseExceptionGroup):
            break
        error = error.exceptions[0]
    return error


def _content(response: Any, body: Any) -> Any:
    """The whole body where it was read; an SDK's `body` may be only a part of it."""
    try:
        return response.content or body
    except Exception:  # a streamed body that nobody read
        return body


def _words(error: BaseException) -> str:
    """What an exception says, with its class and the cause that an SDK hides (`Connection error.`)."""
    text = str(error).strip() or type(error).__name__
    cause = error.__cause__
    if cause is not None and str(cause).strip() and str(cause).strip() not in text:
        text = f"{text} ({type(cause).__name__}: {str(cause).strip()})"
    return _plain(text if type(error).__name__ in text else f"{type(error).__name__}: {text}")
