"""Which error code a refusal or an error inside a stream stands for, and which wait it asks for: read from what was
recorded, by short tables of their own, never by the code under test."""

from __future__ import annotations

import email.utils
import json
import re
from collections.abc import Mapping
from typing import Any

from agentloop.errors import code_for_status


def answer_code(value: Any, text: str) -> str:
    """The code of an error under a status of success: an error object, a page of HTML, or nothing at all."""
    if value is None:
        return "malformed" if text.strip() else "truncated"
    return payload_code(value[0] if isinstance(value, list) and value else value)


_SIGNS = {
    "auth": r"(?:invalid|incorrect|missing|expired|wrong|no)[ _-](?:\w+ )?"
    r"(?:api[ _-]?key|authentication|credential|(?:access|bearer) token)"
    r"|(?:api[ _-]?key|credentials?)[ _](?:\w+ )?(?:is |was |has )?(?:not |in)?(?:valid|found|expired|missing)"
    r"|api[ _-]?key[^.]{1,40}(?:invalid|leaked|revoked)|provide an api key|access token expired"
    r"|unregistered callers|login fail|authorization header is badly"
    r"|authentication_error|authentication fails|unauthenticated|not authenticated|validate credentials",
    "context_too_long": r"context_length_exceeded|context[_ ](?:window|size)|maximum context|context length|context limit"
    r"|prompt[ _]is too long|(?:input|conversation) (?:is )?too long|too large for|request_too_large|prompt exceeds"
    r"|too_many_prompt_tokens|prompt_tokens_exceeded|exceeds the maximum number of tokens|token count"
    r"|length of (?:all |the )?(?:input )?messages|maximum (?:prompt|input|model) length|input length should"
    r"|input tokens exceed|model token limit|token limit exceeded|exceeds token limit|most \d+ input tokens"
    r"|(?:input )?tokens(?: in the prompt)?(?: \d+)? cannot exceed|tokens of \d+ exceeded"
    r"|tokens? exceeds?[^.]{0,80}(?:limit|context)|while limit is|too many tokens in|`inputs`[^.]{0,80}must",
    "content_filter": r"\"\w*content_(?:filter|policy)|\"(?:cyber|bio)_policy|content (?:filter|policy|management)"
    r"|responsibleaipolicy|\bmoderation\b|moderation_blocked|data_inspection|inappropriate|safety system"
    r"|(?:usage|content) (?:policy|guidelines)|exists risk|high risk|sensitive content|input was flagged",
}
"""Signs of the codes that outrank a status, in this order."""


def response_code(status: int, text: str) -> str:
    signs = [code for code, sign in _SIGNS.items() if re.search(sign, text, re.IGNORECASE)]
    if status == 401 or "auth" in signs:
        return "auth"
    if status in (408, 425, 429) or (status >= 500 and "context_too_long" not in signs):
        return code_for_status(status)
    return signs[0] if signs else code_for_status(status)


_NAMES = {
    "overloaded": r"overloaded|unavailable|slow_down|capacity",
    "rate_limit": r"rate_?limit|quota|exhausted|too_many_requests|throttl",
    "timeout": r"timeout|deadline",
    "rejected": r"invalid|not_?found|permission|unsupported|tool_use_failed|bad_?request|precondition|billing|validation"
    r"|too_(?:small|large|long)|failed_to_download|parse_error|empty_|forbidden",
}


def payload_code(payload: Any) -> str:
    """The code of an error inside a stream: a status that it quotes, else the codes that it names, else `network`."""
    error = payload.get("error", payload) if isinstance(payload, dict) else {}
    error = error if isinstance(error, dict) else {**payload, "message": str(error)}
    text = json.dumps(error, ensure_ascii=False)
    for status in (error.get("status_code"), error.get("code"), error.get("status")):
        if re.fullmatch("[45][0-9][0-9]", str(status)):
            return response_code(int(str(status)), text)
    named = " ".join(str(error.get(key) or "") for key in ("code", "type", "status", "error_type")).lower()
    signs = response_code(400, text)
    if signs == "auth":
        return signs
    found = [code for code, sign in _NAMES.items() if re.search(sign, named)]
    if found and found[0] != "rejected":
        return found[0]
    return signs if signs != "rejected" else "rejected" if found else "network"


def asked_wait(headers: Mapping[str, str], body: str) -> float | None:
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    waits = []
    if re.fullmatch(r"[\d.]+", lower.get("retry-after-ms", "")):
        waits.append(float(lower["retry-after-ms"]) / 1000)
    after = lower.get("retry-after", "")
    if re.fullmatch(r"[\d.]+", after):
        waits.append(float(after))
    elif after and "date" in lower:
        then, now = (email.utils.parsedate_to_datetime(value) for value in (after, lower["date"]))
        waits.append(max(0.0, (then - now).total_seconds()))
    delay = re.search(r'"retry_?delay": ?"([\d.]+)s"|"retry_?after(?:_seconds)?": ?"?([\d.]+)', body, re.IGNORECASE)
    if delay and not any(waits):
        waits.append(float(delay[1] or delay[2]))
    return max(waits, default=None)
