"""What a recorded response says a reply must be, and where ours differs: pure functions over parsed files.

The expectations are read from the recording alone (`<case>.expected.json`, status, headers, body), by short tables of
their own here, never by the code under test.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.errors import RETRYABLE_CODES
from agentloop.messages import ContentBlock, Text, Thinking, ToolCall
from agentloop.testing._wire_codes import answer_code, asked_wait, payload_code, response_code
from agentloop.testing._wire_outcome import Count, Expected, Outcome
from agentloop.testing._wire_usage import usage_differences

# ---------------------------------------------------------------- streams


def stream_differences(api: str, expected: Expected, outcome: Outcome) -> list[str]:
    """Where a reply differs from a stream's `expected.json`, in words; empty when it is as expected."""
    found = _end_differences(api, expected, outcome)
    found += _block_differences(api, expected, outcome)
    found += usage_differences(api, expected, outcome)
    return found


FINISH: Mapping[str, Mapping[str, str]] = {
    "openai_chat": {
        "stop": "stop", "length": "length", "tool_calls": "tool_use", "function_call": "tool_use",
        "content_filter": "content_filter", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop",
        "max_tokens": "length", "model_length": "length", "tool_use": "tool_use", "sensitive": "content_filter",
        "safety": "content_filter", "refusal": "refusal",
    },
    "openai_responses": {"completed": "stop", "max_output_tokens": "length", "content_filter": "content_filter"},
    "anthropic_messages": {
        "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_use",
        "pause_turn": "pause", "compaction": "pause", "refusal": "refusal", "model_context_window_exceeded": "length",
    },
    "google_gemini": {
        "STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter", "RECITATION": "content_filter",
        "BLOCKLIST": "content_filter", "PROHIBITED_CONTENT": "content_filter", "SPII": "content_filter",
        "IMAGE_SAFETY": "content_filter", "IMAGE_PROHIBITED_CONTENT": "content_filter", "IMAGE_RECITATION": "content_filter",
    },
    "ollama_chat": {"stop": "stop", "length": "length"},
}  # fmt: skip
"""Stop reasons of the providers in our words; one that is not here is `unknown`."""

FAILURES: Mapping[str, Mapping[str, str]] = {
    "openai_responses": {"failed": "network"},
    "openai_chat": {"error": "network", "network_error": "network", "insufficient_system_resource": "overloaded"},
    "google_gemini": {
        "MALFORMED_FUNCTION_CALL": "malformed", "MALFORMED_RESPONSE": "malformed", "UNEXPECTED_TOOL_CALL": "malformed",
        "MISSING_THOUGHT_SIGNATURE": "rejected",
    },
}  # fmt: skip
"""Stop reasons that say that the reply failed, and how."""


def _end_differences(api: str, expected: Expected, outcome: Outcome) -> list[str]:
    code = _stream_failure(api, expected)
    if code is not None:
        if code == "content_filter" and outcome.finish is not None and outcome.finish.reason == code:
            return []  # a prompt that was blocked may be told either way
        sent = json.dumps([expected.get("errors"), expected.get("final_error")], ensure_ascii=False)
        return _error_differences(code, asked_wait({}, sent) if code in RETRYABLE_CODES else None, outcome)
    if outcome.error is not None or not outcome.committed:
        return [f"expected a complete reply, got {outcome.error or 'a reply that is not committed'}"]
    wanted, got = _finish_reasons(api, expected), outcome.finish.reason if outcome.finish else None
    return [] if got in wanted else [f"finish_reason: expected {' or '.join(sorted(wanted))}, got {got}"]


def _stream_failure(api: str, expected: Expected) -> str | None:
    """The error code that the stream must end with, or None."""
    for error in expected.get("errors", ()):
        if "payload" in error:  # else a remark on the recording itself
            return payload_code(error["payload"])
    if expected.get("final_error"):
        return payload_code({"error": expected["final_error"]})
    failed = FAILURES.get(api, {}).get(str(_stop_reason(expected)))
    if failed is not None:
        return failed
    if expected.get("stop_reason") is None:
        if api == "ollama_chat" and expected.get("usage_events"):  # `done`, of servers that gave no reason
            return None
        if (expected.get("prompt_feedback") or {}).get("blockReason"):
            return "content_filter"
        return None if expected.get("framing_info", {}).get("done_marker") else "truncated"
    return None


def _stop_reason(expected: Expected) -> Any:
    """The stop reason; where the last one sent is an empty text, the one before it that says something."""
    said = [sent["value"] for sent in expected.get("stop_reasons_sent", ()) if sent["value"]]
    return expected.get("stop_reason") or (said[-1] if said else None)


def _finish_reasons(api: str, expected: Expected) -> set[str]:
    details = expected.get("incomplete_details") or {}
    sent = str(details.get("reason") or _stop_reason(expected))
    words = FINISH.get(api, {})
    reason = words.get(sent) or words.get(sent.lower(), "unknown")
    kinds = [block.get("kind") or block["type"] for block in expected["blocks"]]
    if reason == "stop" and "refusal" in kinds:
        return {"refusal"}
    if reason == "stop" and "tool_call" in kinds:  # providers without a word of their own for it
        return {"stop", "tool_use"}
    return {reason}


def _block_differences(api: str, expected: Expected, outcome: Outcome) -> list[str]:
    wanted = list(expected["blocks"])
    message, counts = outcome.message, outcome.tally.counts
    content = list(message.content) if message else []
    got = [(block, counts[index] if len(counts) >= len(content) else None) for index, block in enumerate(content)]
    if api in _RETURNING and len(got) > len(wanted):
        got = _joined(got)
    elif api == "anthropic_messages" and expected.get("stop_reason") and not expected.get("stop_reasons_sent"):
        got = got[len(got) - len(wanted) :]  # what stood in the first event with its reason is no block there
    elif api == "google_gemini" and len(got) > len(wanted):
        got = [(block, count) for block, count in got if not _unknown_part(block)]
    if not outcome.committed:  # what had only begun when the reply broke off is dropped
        while len(wanted) > len(got) and _only_begun(wanted[-1]):
            wanted.pop()
    if len(wanted) != len(got):
        shown = [f"{block['type']}{':' + block['kind'] if 'kind' in block else ''}" for block in wanted]
        return [f"blocks: expected {shown}, got {[type(block).__name__ for block, _ in got]}"]
    opaque = strings(message.fidelity) if message else set()
    found = []
    for index, (block, (ours, count)) in enumerate(zip(wanted, got, strict=True)):
        lenient = api in _RETURNING and not (outcome.committed and count and not count.ended)
        differences = [*_one_block(api, block, ours), *_count_differences(block, count, lenient)]
        if outcome.committed:  # of a reply that failed nothing goes back
            differences += _fidelity(block, ours, opaque)
        found += [f"blocks[{index}]: {difference}" for difference in differences]
    return found


_RETURNING = ("openai_chat", "ollama_chat")
"""APIs whose expectation has all thinking as one block, and all text: a reply may go back to either."""


def _only_begun(block: Expected) -> bool:
    return block["type"] in ("tool_call", "other") or not block.get("text")


def _unknown_part(block: ContentBlock) -> bool:
    """Whether a block is a part of a kind that the expectations pass over; an adapter keeps it."""
    fidelity = getattr(block, "fidelity", None) or {}
    known = ("executableCode", "codeExecutionResult", "inlineData", "fileData", "functionResponse", "toolCall",
             "toolResponse", "thoughtSignature", "thought_signature", "parts")  # fmt: skip
    return isinstance(block, Text) and not block.text and not any(key in fidelity for key in known)


def _joined(got: list[tuple[ContentBlock, Count | None]]) -> list[tuple[ContentBlock, Count | None]]:
    """Thinking as one block, and text as one: where a reply goes back to what it had ended, the expectation has it whole.

    Blocks with a fidelity of another kind (a refusal, a part that stands for itself) stay apart.
    """
    joined: list[tuple[ContentBlock, Count | None]] = []
    places: dict[object, int] = {}
    for block, count in got:
        fidelity = getattr(block, "fidelity", None) or {}
        apart = not isinstance(block, Text | Thinking) or "refusal" in fidelity or "parts" in fidelity
        place = places.setdefault((type(block), len(joined) if apart else None), len(joined))
        if place == len(joined):
            joined.append((block, count))
            continue
        first, before = joined[place]
        whole = {"first": getattr(first, "fidelity", None), "later": fidelity}
        if isinstance(first, Text) and isinstance(block, Text):
            first = Text(first.text + block.text, whole)
        elif isinstance(first, Thinking) and isinstance(block, Thinking):
            first = Thinking(first.thinking + block.thinking, whole)
        if before is not None and count is not None:
            before.deltas += count.deltas
            before.nonempty += count.nonempty
        joined[place] = (first, before)
    return joined


def _one_block(api: str, block: Expected, ours: ContentBlock) -> Iterator[str]:
    match block["type"], ours:
        case "text", Text(text=text):
            yield from _same("text", block["text"], text)
        case "thinking", Thinking(thinking=text):
            yield from _same("thinking", block["text"], text)
        case "tool_call", ToolCall(id=own, name=name, arguments=arguments):
            yield from _same("name", block["name"], name)
            if block.get("id") and own != block["id"] and not own.startswith(f"{block['id']}#"):
                yield f"id: expected {block['id']}, got {own}"
            yield from _same_arguments(api, block, arguments)
        case "other", Text(text=text):
            if block.get("kind") in ("refusal", "compaction") and text:
                yield from _same(block["kind"], block.get("text", ""), text)
        case "other", _:
            pass
        case kind, _:
            yield f"expected {kind}, got {type(ours).__name__}"


def _same_arguments(api: str, block: Expected, ours: str) -> Iterator[str]:
    if block.get("partial_args") or ours in (block.get("arguments"), block.get("arguments_json")):
        return
    whole = api in ("google_gemini", "ollama_chat") or block.get("arguments_sent_as_object")
    streamed = not whole and block.get("arguments", "").strip()
    if streamed or _parsed(ours or "{}") != (block.get("arguments_json") or {}):
        yield f"arguments: expected {block.get('arguments', block.get('arguments_json'))!r}, got {ours!r}"


def _count_differences(block: Expected, count: Count | None, lenient: bool) -> Iterator[str]:
    """`lenient`: empty pieces that came when the block was over, or beside an error, may be left out."""
    if count is None or count.whole or not block.get("deltas") or "nonempty_deltas" not in block:
        return  # what did not come in pieces may be told in any number of them
    if block["type"] == "other":
        return
    yield from _same("nonempty_deltas", block["nonempty_deltas"], count.nonempty)
    if block["type"] == "tool_call" and block["deltas"] == count.deltas - count.openings:
        return
    if lenient and count.deltas <= block["deltas"]:
        return
    yield from _same("deltas", block["deltas"], count.deltas)


def _same(what: str, wanted: Any, got: Any) -> Iterator[str]:
    if wanted != got:
        yield f"{what}: expected {_short(wanted)}, got {_short(got)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]} ({len(text)} characters)"


# ---------------------------------------------------------------- fidelity


def _fidelity(block: Expected, ours: ContentBlock, opaque: set[str]) -> Iterator[str]:
    """What must come back to the provider is somewhere in the block's fidelity, whatever the adapter calls it."""
    fidelity = getattr(ours, "fidelity", None)
    held = strings(fidelity) | opaque
    for what, text in _secrets(block):
        if text not in held:
            yield f"fidelity: {what} is missing ({_short(text)})"
    for what in ("citations", "annotations"):
        wanted = block.get(what)
        if isinstance(wanted, list) and not any(value == wanted for value in _values(fidelity)):
            yield f"fidelity: {what} are missing"
    if "payload" in block and not _holds_payload(block, ours):
        yield f"fidelity: the block's payload is missing ({_short(block['payload'])})"


def _secrets(block: Expected) -> Iterator[tuple[str, str]]:
    for what in ("signature", "encrypted_content"):
        if block.get(what):
            yield what, block[what]
    for text in block.get("more_signatures", ()):
        yield "signature", text
    for detail in block.get("reasoning_details", ()):
        for what in ("data", "signature", "text", "summary"):
            if detail.get(what):
                yield f"reasoning_details.{what}", detail[what]


def _holds_payload(block: Expected, ours: Any) -> bool:
    payload = block["payload"]
    candidates = [value for value in _values(getattr(ours, "fidelity", None)) if isinstance(value, dict)]
    if hasattr(ours, "data"):  # what a model made, shown or in its thinking
        beside = dict(ours.fidelity or {})
        blob = {**beside.pop("inlineData", {}), "mimeType": ours.mime_type, "data": ours.data}
        candidates.append({**beside, "inlineData": blob})
    if isinstance(payload, dict) and payload.get("_omitted"):
        return any(_hash(value) == payload["canonical_sha256"] for value in candidates)
    streamed = _parsed(block.get("arguments") or "")
    wanted = {key: value for key, value in payload.items() if value is not None}  # null is filled in later
    wanted = {**wanted, **({"input": streamed} if "input" in payload and streamed is not None else {})}
    if block.get("text"):  # what the start event had is overridden by what was streamed
        wanted.pop("content", None)
    return any(all(key in value and value[key] == wanted[key] for key in wanted) for value in candidates)


def _hash(value: Mapping[str, Any]) -> str:
    bare = {key: item for key, item in value.items() if key != "thoughtSignature"}
    return hashlib.sha256(
        json.dumps(bare, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _values(value: Any) -> Iterator[Any]:
    """A JSON value and all that is inside it."""
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def strings(value: Any) -> set[str]:
    """All texts inside a JSON value."""
    return {item for item in _values(value) if isinstance(item, str)}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


# ---------------------------------------------------------------- errors


def error_differences(status: int, headers: Mapping[str, str], body: bytes, outcome: Outcome) -> list[str]:
    """Where the error of an HTTP answer differs from the table of codes, in words."""
    text = body.decode("utf-8", "replace")
    value = _parsed(text)
    shown = text if value is None else json.dumps(value, ensure_ascii=False)
    code = response_code(status, shown) if status >= 400 else answer_code(value, text)
    return _error_differences(code, asked_wait(headers, shown) if code in RETRYABLE_CODES else None, outcome)


def _error_differences(code: str, wait: float | None, outcome: Outcome) -> list[str]:
    error = outcome.error
    if error is None and code == "truncated" and not outcome.committed:
        return []  # the stream just stopped: it is the kernel that calls this a cut
    if error is None:
        return [f"error_code: expected {code}, got a reply"]
    wanted, got = "retryable" if code in RETRYABLE_CODES else "fatal", "retryable" if error.retryable else "fatal"
    found = [*_same("error_code", code, error.code), *_same("stop_reason", wanted, got)]
    if wait is not None or not re.search("retry|again|wait", error.message, re.IGNORECASE):
        found += _same("retry_after", wait, error.retry_after)
    return found
