"""`Context`: what a run starts from; and ready-made transforms of the history before a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from agentloop.messages import AgentMessage, CustomMessage, UserMessage, AssistantMessage, ToolResultMessage, user
from agentloop.tools import Tool


def agent_messages(value: str | AgentMessage | Iterable[AgentMessage | str]) -> tuple[AgentMessage, ...]:
    """A tuple of messages from what callers write; a string is a user message.

    Raises `TypeError`, naming the place, for anything else.
    """
    if isinstance(value, str):
        return (user(value),)
    if isinstance(value, UserMessage | AssistantMessage | ToolResultMessage | CustomMessage):
        return (value,)
    messages: list[AgentMessage] = []
    for index, message in enumerate(value):
        if isinstance(message, str):
            messages.append(user(message))
        elif isinstance(message, UserMessage | AssistantMessage | ToolResultMessage | CustomMessage):
            messages.append(message)
        else:
            raise TypeError(f"messages[{index}]: expected a message or text, got {type(message).__name__}")
    return tuple(messages)


def _tools(value: Iterable[Any]) -> tuple[Tool, ...]:
    tools = tuple(value)
    for index, item in enumerate(tools):
        if not isinstance(item, Tool):
            raise TypeError(f"tools[{index}]: expected a Tool (use @tool), got {type(item).__name__}")
    return tools


@attrs.frozen
class Context:
    """What a run starts from. The caller's: a run never changes it, and reports what it added in `AgentEnd.messages`."""

    system_prompt: str | None = None
    messages: tuple[AgentMessage, ...] = attrs.field(default=(), converter=agent_messages)
    tools: tuple[Tool, ...] = attrs.field(default=(), converter=_tools)
