"""What a walk found, as the kernel's messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    Text,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from agentloop.omni._blocks import block_from, output_content
from agentloop.omni._legacy import modernise
from agentloop.omni._plain import usage_from
from agentloop.omni._types import Payload, Record
from agentloop.omni._walk import Item, Walk
from agentloop.omni.custom import MessageRegistry


def messages_of(items: Iterable[Item], walk: Walk, registry: MessageRegistry) -> list[AgentMessage]:
    """The messages that the items are blocks of, in order."""
    messages: list[AgentMessage] = []
    for _, group in groupby(items, key=lambda item: (id(item.message), item.payload.get("role"))):
        blocks = list(group)
        if blocks[0].is_output:
            messages += [result_of(item) for item in blocks]
        elif blocks[0].payload.get("role") == "assistant":
            messages.append(_reply(blocks, walk.meta))
        else:
            messages += _inputs(blocks, registry)
    return messages


def _payload(item: Item) -> Payload:
    return modernise(item.record)["payload"]  # type: ignore[no-any-return]


def _reply(items: list[Item], meta: Record | None) -> AssistantMessage:
    """A committed reply. Where the writer has no lifecycle the meta says whose it is."""
    message = items[0].message
    start, end = message.start, message.end
    told: Payload = meta["payload"] if meta is not None and not start else {}
    blocks = [_block(item) for item in items]
    calls = any(isinstance(block, ToolCall) for block in blocks)
    counts = end.get("usage") or message.usage
    return AssistantMessage(
        blocks,
        "completed",
        end.get("finish_reason") or ("tool_use" if calls else "stop"),
        None if counts is None else usage_from(counts),
        end.get("provider", start.get("provider")) or _text(told.get("provider")),
        end.get("model", start.get("model")) or _text(told.get("model_id")),
        fidelity=end.get("fidelity"),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _block(item: Item) -> ContentBlock:
    return block_from(_payload(item))


def _inputs(items: list[Item], registry: MessageRegistry) -> list[AgentMessage]:
    """One message of the user's, or an application's own."""
    messages: list[AgentMessage] = []
    blocks: list[ContentBlock] = []
    sender = items[0].message.start.get("sender")
    for item in items:
        payload = _payload(item)
        if payload["type"] == "custom_message":
            messages.append(registry.message(payload["role"], payload["data"]))
        else:
            blocks.append(_block(item))
            sender = sender or _text(payload.get("sender"))
    return [UserMessage(blocks, sender), *messages] if blocks else messages


def result_of(item: Item) -> ToolResultMessage:
    """The result that an output is; `tool_execution_end`, or the head of a result that came as an input, says the
    rest."""
    payload, start = _payload(item), item.message.start
    stop_reason = payload.get("stop_reason", "completed")
    told = item.end or (start if "tool_name" in start else {})
    return ToolResultMessage(
        payload["tool_call_id"],
        item.call.name if item.call is not None else "",
        _output(payload),
        told.get("details"),
        told.get("structured"),
        told.get("is_error", stop_reason != "completed"),
        stop_reason,
    )


def _output(payload: Payload) -> tuple[ContentBlock, ...]:
    """The blocks of an output; where what stands under `x` makes no sense, what the protocol's own fields say."""
    try:
        return output_content(payload)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return output_content({name: value for name, value in payload.items() if name != "x"})


def usage_of(counts: Payload | None) -> Usage:
    """The counts as a value; zero for none."""
    return Usage() if counts is None else usage_from(counts)


def error_result(call_id: str, name: str, text: str, stop_reason: Any) -> ToolResultMessage:
    """A result that says why there is none."""
    return ToolResultMessage(call_id, name, (Text(text),), is_error=True, stop_reason=stop_reason)
