"""`AgentInput`: what people may say to an agent, and the messages that it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from agentloop.context import agent_messages
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    ToolResultMessage,
    UserMessage,
    user,
)

__all__ = [
    "AgentInput",
    "input_messages",
]

AgentInput: TypeAlias = str | ContentBlock | AgentMessage | Iterable[str | ContentBlock | AgentMessage]
"""What can be said: a text, a block, a message, blocks with texts between them (one user message), or messages (a text
among them is a user message)."""


def input_messages(content: AgentInput) -> tuple[AgentMessage, ...]:
    """The messages that an `AgentInput` stands for. Raises `TypeError`, naming the place, for anything else."""
    if isinstance(content, ContentBlock):
        return (user(content),)
    if isinstance(content, str | UserMessage | AssistantMessage | ToolResultMessage | CustomMessage):
        return agent_messages(content)
    if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
        hint = "; user(…) makes a message" if isinstance(content, Mapping) else ""
        raise TypeError(f"content: expected text, content blocks or messages, got {type(content).__name__}{hint}")
    items: list[Any] = list(content)
    if any(isinstance(item, ContentBlock) for item in items):
        return (UserMessage(items),)  # its converter takes a list, and names the place
    return agent_messages(items)
