"""What an interrupted run leaves to the next one, in the living process: pure functions over messages.

None of it is streamed or recorded: after a crash the file alone tells, and gives the raw input back (`resume`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Image,
    InlineData,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from agentloop.omni.records import marked

__all__ = ["INTERRUPTED", "carried_over", "first_input"]

INTERRUPTED: Final = "[interrupted: tool aborted by user]"
"""The result of a call that an interruption left without one."""

_BLOCK: Final = re.compile(r"\s*(?:\[(turn_aborted|turn_retried)\]|<(turn_aborted|turn_retried)>)\n")


def carried_over(messages: Sequence[AgentMessage]) -> tuple[AgentMessage, ...]:
    """The messages of a session as the next run has them, after a run that may have been interrupted or have failed.

    *The last reply was committed* (A): its calls without a result get one that says so; all else is as it is. *It was
    not* (B): results in its input stay, since they answer the turn before; input, thinking, text, calls and their
    results become one user text `[turn_aborted]`, an older such block is unwrapped into it, and images stand after
    it. *No reply since the last input*: as it is. An application's own messages stay.
    """
    last = max((n for n, message in enumerate(messages) if isinstance(message, AssistantMessage)), default=None)
    if last is None:
        return tuple(messages)
    reply = messages[last]
    assert isinstance(reply, AssistantMessage)
    if reply.stop_reason == "completed":
        return _answered(messages, last, reply)
    begin = last
    while begin > 0 and not _is_committed(messages[begin - 1]):
        begin -= 1
    own = {call.id for call in reply.tool_calls}
    end = last + 1
    while end < len(messages) and _answers(messages[end], own):
        end += 1
    retold = (*messages[:begin], *_retold(messages[begin:end], own), *messages[end:])
    before = messages[begin - 1] if begin else None
    return _answered(retold, begin - 1, before) if isinstance(before, AssistantMessage) else retold


def first_input(
    new: Iterable[AgentMessage], *, summary: UserMessage | None = None, carried: Iterable[AgentMessage] = ()
) -> tuple[AgentMessage, ...]:
    """What the first request after a resume begins with, in this order: the summary that no turn took, what was
    carried over, the new input."""
    return (*(() if summary is None else (summary,)), *carried, *new)


def _is_committed(message: AgentMessage) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason == "completed"


def _answers(message: AgentMessage, calls: set[str]) -> bool:
    return isinstance(message, ToolResultMessage) and message.tool_call_id in calls


def _answered(messages: Sequence[AgentMessage], last: int, reply: AssistantMessage) -> tuple[AgentMessage, ...]:
    """Each call of the reply with its result, in call order, right after it."""
    results = {m.tool_call_id: m for m in messages[last + 1 :] if isinstance(m, ToolResultMessage)}
    if all(call.id in results for call in reply.tool_calls):
        return tuple(messages)
    answers = [results.get(call.id) or _interrupted(call) for call in reply.tool_calls]
    placed = {call.id for call in reply.tool_calls}
    behind = [m for m in messages[last + 1 :] if not _answers(m, placed)]
    return (*messages[: last + 1], *answers, *behind)


def _interrupted(call: ToolCall) -> ToolResultMessage:
    return ToolResultMessage(call.id, call.name, (Text(INTERRUPTED),), is_error=True, stop_reason="aborted")


# ---------------------------------------------------------------- a turn retold as text


def _retold(messages: Sequence[AgentMessage], own: set[str]) -> list[AgentMessage]:
    """Results of the turn before and an application's own messages as they are, the rest as one user message."""
    kept: list[AgentMessage] = []
    lines: list[str] = []
    images: list[ContentBlock] = []
    for message in messages:
        if isinstance(message, CustomMessage) or (
            isinstance(message, ToolResultMessage) and message.tool_call_id not in own
        ):
            kept.append(message)
            continue
        lines += _lines(message)
        if not isinstance(message, AssistantMessage):
            images += [block for block in message.content if isinstance(block, Image | InlineData)]
    block = [Text(marked("turn_aborted", "\n".join(lines)))] if lines else []
    return [*kept, UserMessage((*block, *images))] if block or images else kept


def _lines(message: UserMessage | AssistantMessage | ToolResultMessage) -> list[str]:
    if isinstance(message, ToolResultMessage):
        head = f'tool_call_output id="{message.tool_call_id}" status="{message.stop_reason}"'
        return [f"  [{head}]{message.text}[/tool_call_output]"]
    lines: list[str] = []
    for block in message.content:
        if isinstance(block, Text) and isinstance(message, UserMessage):
            lines += _unwrapped(block.text) or _line("user_input", block.text)
        elif isinstance(block, Text):
            lines += _line("text", block.text)
        elif isinstance(block, Thinking):
            lines += _line("thinking", block.thinking)
        elif isinstance(block, ToolCall):
            lines.append(f'  [tool_call name="{block.name}" id="{block.id}"]{block.arguments}[/tool_call]')
    return lines


def _line(tag: str, text: str) -> list[str]:
    return [f"  [{tag}]{text}[/{tag}]"] if text else []


def _unwrapped(text: str) -> list[str]:
    """What stands in a text that is exactly one block of an interrupted turn (the old `<tag>` form too); else
    nothing."""
    match = _BLOCK.match(text)
    if match is None:
        return []
    tag = match[1] or match[2]
    for closing in (f"\n[/{tag}]", f"\n</{tag}>"):
        inner = text[match.end() - 1 :].rstrip()
        if inner.endswith(closing):
            return inner[1 : -len(closing)].split("\n") if len(inner) > len(closing) else []
    return []
