"""What a caller may write as a prompt: text, blocks, messages, records; here all become messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from agentloop.events import MessageEnd
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentloop.omni.codec import decode
from agentloop.omni.custom import REGISTRY, MessageRegistry
from agentloop.omni.records import Record, check_record, is_complete_model_message

Prompt: TypeAlias = str | ContentBlock | AgentMessage | Record
"""One part of what a run is given. A text is a message of its own; blocks in a row are one message, and so are records
(`user_text("…")`, `image_url("…")`, …) in a row."""

Prompts: TypeAlias = Prompt | Iterable[Prompt]

_BLOCKS: Final = (Text, Image, InlineData)
_NEVER: Final = (AssistantMessage, ToolResultMessage, Thinking, InlineThinking, ToolCall)


def prompt_messages(given: Prompts, registry: MessageRegistry = REGISTRY) -> tuple[AgentMessage, ...]:
    """The messages that are meant. Raises `TypeError` or `ValueError`, naming the place, for what is no prompt."""
    single = isinstance(given, (str, Mapping, UserMessage, CustomMessage, *_BLOCKS, *_NEVER))
    parts: Iterable[Any] = (given,) if single else given  # type: ignore[assignment]
    messages: list[AgentMessage] = []
    blocks: list[ContentBlock] = []
    records: list[Record] = []

    def flush() -> None:
        if blocks:
            messages.append(user(*blocks))
        if records:
            messages.extend(_decoded(records, registry))
        blocks.clear()
        records.clear()

    for index, part in enumerate(parts):
        if (not isinstance(part, _BLOCKS) and blocks) or (not isinstance(part, Mapping) and records):
            flush()
        if isinstance(part, str):
            messages.append(user(part))
        elif isinstance(part, _BLOCKS):
            blocks.append(part)
        elif isinstance(part, Mapping):
            records.append(_checked(dict(part), index))
        elif isinstance(part, UserMessage | CustomMessage):
            messages.append(part)
        else:
            raise TypeError(
                f"prompts[{index}]: expected text, a block, a message or a record of the user's side,"
                f" got {type(part).__name__}"
            )
    flush()
    return tuple(messages)


def _checked(record: Record, index: int) -> Record:
    problems = check_record(record)
    if problems:
        raise ValueError(f"prompts[{index}]: expected a record, got one with a problem: {problems[0]}")
    payload = record["payload"]
    if not is_complete_model_message(record) or payload.get("role") != "user" or payload["type"] == "tool_call_output":
        kind = payload.get("type") or record["type"]
        raise ValueError(f"prompts[{index}]: expected a complete record of the user's side, got {kind!r}")
    return {key: value for key, value in record.items() if key != "origin"}


def _decoded(records: list[Record], registry: MessageRegistry) -> list[AgentMessage]:
    return [event.message for event in decode(records, registry) if isinstance(event, MessageEnd)]
