"""What a caller may write as a prompt: text, blocks, messages, records; here all become messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

from agentloop.events import MessageEnd
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
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

Prompt: TypeAlias = str | Text | Image | InlineData | UserMessage | CustomMessage | Record
"""One part of what a run is given. Texts and blocks in a row are one user message, if there is a block among them, else each
text is one; records (`user_text("…")`, `image_url("…")`, …) in a row are what they stand for."""

Prompts: TypeAlias = Prompt | Iterable[Prompt]

_BLOCKS: Final = (Text, Image, InlineData)
_WHOLE: Final = (UserMessage, CustomMessage)
_NEVER: Final = (AssistantMessage, ToolResultMessage, Thinking, InlineThinking, ToolCall)

_Kind: TypeAlias = Literal["words", "records", "message"]


def prompt_messages(given: Prompts, registry: MessageRegistry = REGISTRY) -> tuple[AgentMessage, ...]:
    """The messages that are meant. Raises `TypeError` or `ValueError`, naming the place, for anything that is not a prompt."""
    single = isinstance(given, (str, Mapping, *_BLOCKS, *_WHOLE, *_NEVER))
    if not single and (isinstance(given, bytes) or not isinstance(given, Iterable)):
        raise TypeError(f"prompts: expected text, blocks, messages or records, got {type(given).__name__}")
    parts: list[Any] = [given] if single else list(given)  # type: ignore[arg-type]
    kinds = [_kind(part, index) for index, part in enumerate(parts)]
    messages: list[AgentMessage] = []
    for kind, group in groupby(range(len(parts)), key=kinds.__getitem__):
        members = {index: parts[index] for index in group}
        if kind == "words":
            messages += _spoken(list(members.values()))
        elif kind == "records":
            messages += _recorded(members, registry)
        else:
            messages += members.values()
    return tuple(messages)


def _kind(part: Any, index: int) -> _Kind:
    if isinstance(part, (str, *_BLOCKS)):
        return "words"
    if isinstance(part, Mapping):
        return "records"
    if isinstance(part, _WHOLE):
        return "message"
    raise TypeError(
        f"prompts[{index}]: expected text, a block, a message or a record of the user's side, got {type(part).__name__}"
    )


def _spoken(parts: list[Any]) -> list[AgentMessage]:
    together = any(isinstance(part, _BLOCKS) for part in parts)
    return [user(*parts)] if together else [user(part) for part in parts]


def _recorded(members: Mapping[int, Record], registry: MessageRegistry) -> list[AgentMessage]:
    records = [_checked(dict(record), index) for index, record in members.items()]
    return [event.message for event in decode(records, registry) if isinstance(event, MessageEnd)]


def _checked(record: Record, index: int) -> Record:
    problems = check_record(record)
    if problems:
        hint = "" if "payload" in record else "; user(…) and user_text(…) make prompts"
        raise ValueError(f"prompts[{index}]: expected a record, got one with a problem: {problems[0]}{hint}")
    payload = record["payload"]
    if not is_complete_model_message(record) or payload.get("role") != "user" or payload["type"] == "tool_call_output":
        kind = payload.get("type") or record["type"]
        raise ValueError(f"prompts[{index}]: expected a complete record of the user's side, got {kind!r}")
    return {key: value for key, value in record.items() if key != "origin"}
