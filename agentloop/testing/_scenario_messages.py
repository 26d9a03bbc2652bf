"""Messages and blocks as a scenario writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentloop.testing._scenario_lines import compact_json

Fields = Mapping[str, Any]


def message_of(given: Any) -> AgentMessage:
    """A message of the format. Raises `ValueError` for what is none."""
    if isinstance(given, str):
        return user(given)
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise ValueError(f"message: expected a string or an object with a role, got {given!r:.80}")
    text = given.get("text") or ""
    match given["role"]:
        case "user":
            return UserMessage(text)
        case "assistant":
            return _reply_of(given, text)
        case "tool_result":
            failed = bool(given.get("is_error"))
            return ToolResultMessage(given["call"], given["tool"], text, is_error=failed)
    return OpaqueMessage(given["role"], {"text": text})


def _reply_of(given: Fields, text: str) -> AssistantMessage:
    content = [block_of(block) for block in given["blocks"]] if "blocks" in given else text
    stop = given.get("stop", "stop")
    if stop in ("error", "aborted"):
        return AssistantMessage(content, "fatal" if stop == "error" else "aborted", error_message=given.get("error"))
    return AssistantMessage(content, "completed", stop)


def block_of(block: Fields) -> ContentBlock:
    """A block of the format, whole."""
    text = "".join(deltas_of(block))
    match block.get("type"):
        case "text":
            return Text(text)
        case "thinking":
            return Thinking(text, signature(block))
        case "tool_call":
            return ToolCall(block["id"], block["tool"], text)
    raise ValueError(f"block.type: expected text, thinking or tool_call, got {block.get('type')!r}")


def deltas_of(block: Fields) -> list[str]:
    """The pieces in which a block comes."""
    if "deltas" in block:
        return list(block["deltas"])
    if block.get("type") == "tool_call":
        return [block["args_text"] if "args_text" in block else compact_json(block.get("args", {}))]
    return [block.get("text", "")]


def signature(block: Fields) -> dict[str, Any] | None:
    """The fidelity of a block that is signed."""
    return {"signature": block["signature"]} if "signature" in block else None
