"""A tool's result whose data an API does not take: it is told in words, for every adapter, and ends no request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentloop.errors import ModelError
from agentloop.messages import Image, InlineData, Text, ToolCall, ToolResultMessage, assistant, user
from agentloop.model import ModelRequest
from agentloop.models import anthropic, gemini, ollama, openai_chat, openai_responses


def chat(request: ModelRequest) -> dict[str, Any]:
    return openai_chat.request_body(request, model="m", provider="p", quirks=openai_chat.ChatQuirks())


Body = Callable[[ModelRequest], dict[str, Any]]
ADAPTERS: dict[str, tuple[Body, InlineData | Image]] = {
    "openai_chat": (chat, InlineData("QQ==", "video/mp4")),
    "openai_responses": (
        lambda request: openai_responses.request_body(request, model="m"),
        InlineData("QQ==", "audio/wav"),
    ),
    "anthropic": (
        lambda request: anthropic.request_body(request, model="m", provider="p"),
        InlineData("QQ==", "audio/wav"),
    ),
    "gemini": (lambda request: gemini.request_body(request, model="m", provider="p"), Image("file:///a.png")),
    "ollama": (
        lambda request: ollama.request_body(request, model="m", provider="p"),
        InlineData("QQ==", "audio/wav"),
    ),
}
"""For each adapter, its pure request and a block that its API has no place for."""


@pytest.mark.parametrize("adapter", list(ADAPTERS))
def test_a_result_that_cannot_be_sent_is_told_in_words(adapter: str) -> None:
    """The text beside it is there, the block is named with its kind and the reason; in a user's message it is an error."""
    body, block = ADAPTERS[adapter]
    history = (
        user("play it"),
        assistant(ToolCall("c1", "play", "{}")),
        ToolResultMessage("c1", "play", (Text("Recorded."), block)),
    )
    sent = json.dumps(body(ModelRequest(None, history, (), {})))
    kind = block.mime_type if isinstance(block, InlineData) else block.type
    assert "Recorded." in sent
    assert f"[left out, {kind}: " in sent
    assert "result.content" not in sent
    with pytest.raises(ModelError):
        body(ModelRequest(None, (user("see", block),), (), {}))
