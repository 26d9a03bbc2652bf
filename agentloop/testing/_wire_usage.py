"""The tokens that a recorded response tells of, API by API, and whether ours are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentloop.messages import Usage
from agentloop.testing._wire_outcome import Expected, Outcome


def _chat_usage(usage: Expected) -> tuple[int, int, int]:
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    prompt_details = usage.get("prompt_tokens_details") or {}
    reported = prompt_details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens")
    cached = min(reported or 0, prompt)
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    unexplained = (usage.get("total_tokens") or 0) - prompt - completion
    return cached, prompt - cached, completion + max(unexplained, reasoning if reasoning > completion else 0)


def _responses_usage(usage: Expected) -> tuple[int, int, int]:
    given = usage.get("input_tokens") or 0
    cached = min((usage.get("input_tokens_details") or {}).get("cached_tokens") or 0, given)
    return cached, given - cached, usage.get("output_tokens") or 0


def _anthropic_usage(usage: Expected) -> tuple[int, int, int]:
    written = (usage.get("input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
    return usage.get("cache_read_input_tokens") or 0, written, usage.get("output_tokens") or 0


def _gemini_usage(usage: Expected) -> tuple[int, int, int]:
    cached = usage.get("cachedContentTokenCount") or 0
    prompt = (usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0)
    return (
        cached,
        max(prompt - cached, 0),
        (usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0),
    )


def _ollama_usage(usage: Expected) -> tuple[int, int, int]:
    return 0, usage.get("prompt_eval_count") or 0, usage.get("eval_count") or 0


_USAGE: Mapping[str, Callable[[Expected], tuple[int, int, int]]] = {
    "openai_chat": _chat_usage,
    "openai_responses": _responses_usage,
    "anthropic_messages": _anthropic_usage,
    "google_gemini": _gemini_usage,
    "ollama_chat": _ollama_usage,
}


def usage_differences(api: str, expected: Expected, outcome: Outcome) -> list[str]:
    """Where the usage differs from what was sent."""
    usage = outcome.usage
    if not expected.get("usage"):
        return [] if usage is None or usage == Usage() else [f"usage: none was sent, got {usage}"]
    wanted = Usage(*_USAGE[api](expected["usage"]))
    return [] if usage == wanted else [f"usage: expected {wanted}, got {usage}"]
