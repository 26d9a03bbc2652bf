"""Content blocks and tool results as JSON objects, and back: the part that encoder and decoder share.

A block is written as the payload of its record without `role` and `stop_reason`, so that it looks the same wherever it
stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from agentloop._results import NO_OUTPUT
from agentloop.errors import StopReason
from agentloop.messages import (
    ContentBlock,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    text_of,
)
from agentloop.omni._types import Payload


def block_payload(block: ContentBlock, role: str, stop_reason: StopReason = "completed") -> Payload:
    """The payload of the complete record of a block."""
    payload = _PAYLOADS[type(block)](block, role, stop_reason)
    fidelity = getattr(block, "fidelity", None)
    if fidelity is not None:
        payload["fidelity"] = fidelity
    return payload


_PAYLOADS: Final[dict[type, Callable[[Any, str, StopReason], Payload]]] = {
    Text: lambda block, role, reason: {"type": "text", "role": role, "text": block.text, "stop_reason": reason},
    Thinking: lambda block, role, reason: {
        "type": "thinking",
        "role": role,
        "thinking": block.thinking,
        "stop_reason": reason,
    },
    InlineThinking: lambda block, role, reason: {
        "type": "inline_thinking",
        "role": role,
        "data": block.data,
        "mime_type": block.mime_type,
        "stop_reason": reason,
    },
    ToolCall: lambda block, role, reason: {
        "type": "tool_call",
        "role": role,
        "name": block.name,
        "arguments": block.arguments,
        "tool_call_id": block.id,
        "stop_reason": reason,
    },
    Image: lambda block, role, reason: {
        "type": "image_url",
        "role": role,
        "image_url": block.url,
        "stop_reason": reason,
    },
    InlineData: lambda block, role, reason: {
        "type": "inline_data",
        "role": role,
        "data": block.data,
        "mime_type": block.mime_type,
        "stop_reason": reason,
    },
}


def block_object(block: ContentBlock) -> Payload:
    """A block as an object that says everything about it."""
    payload = block_payload(block, "")
    del payload["role"], payload["stop_reason"]
    return payload


READERS: Final[dict[str, Callable[[Payload], ContentBlock]]] = {
    "text": lambda payload: Text(payload["text"], payload.get("fidelity")),
    "thinking": lambda payload: Thinking(payload["thinking"], payload.get("fidelity")),
    "inline_thinking": lambda payload: InlineThinking(payload["data"], payload["mime_type"], payload.get("fidelity")),
    "tool_call": lambda payload: ToolCall(
        payload["tool_call_id"], payload["name"], payload["arguments"], payload.get("fidelity")
    ),
    "image_url": lambda payload: Image(payload["image_url"]),
    "inline_data": lambda payload: InlineData(payload["data"], payload["mime_type"], payload.get("fidelity")),
}
"""How the complete payload of each kind becomes a block."""


def block_from(payload: Payload) -> ContentBlock:
    """The block of an object. One of a kind that we do not know is kept whole, as an empty text's fidelity.

    Raises `TypeError` (or `KeyError`, `AttributeError`) where a field is missing, or of another type.
    """
    read = READERS.get(payload["type"])
    if read is None:
        return Text("", {"block": payload})
    block = read(payload)
    if any(type(getattr(block, name)) is not str for name in _WORDS[type(block)]):
        raise TypeError(f"a field of a {payload['type']} does not fit")
    return block


_WORDS: Final[dict[type[ContentBlock], tuple[str, ...]]] = {
    Text: ("text",),
    Thinking: ("thinking",),
    InlineThinking: ("data", "mime_type"),
    ToolCall: ("id", "name", "arguments"),
    Image: ("url",),
    InlineData: ("data", "mime_type"),
}
"""Fields of blocks that are text; what stands in an object of ours nobody else has looked at."""


# ---------------------------------------------------------------- tool results


def is_plain(content: Sequence[ContentBlock], stop_reason: StopReason) -> bool:
    """Whether `output` and `images` say it all: one text, then `data:` images, these on a completed output only."""
    if not content:
        return False
    first = content[0]
    if type(first) is not Text or not first.text or first.fidelity is not None:
        return False
    return len(content) == 1 or (stop_reason == "completed" and all(map(_is_data_image, content[1:])))


def _is_data_image(block: ContentBlock) -> bool:
    return type(block) is Image and block.url.startswith("data:")


def output_images(content: Iterable[ContentBlock], stop_reason: StopReason) -> list[str]:
    """The images that other readers can show, as `data:` URLs; none unless the output is completed."""
    images: list[str] = []
    for block in content if stop_reason == "completed" else ():
        if type(block) is Image and block.url.startswith("data:"):
            images.append(block.url)
        elif type(block) is InlineData and block.mime_type.startswith("image/"):
            images.append(f"data:{block.mime_type};base64,{block.data}")
    return images


def output_payload(tool_call_id: str, content: Sequence[ContentBlock], stop_reason: StopReason) -> Payload:
    """The payload of `tool_call_output`; the blocks stand under `x` where the protocol's fields do not say them all."""
    plain = is_plain(content, stop_reason)
    if plain and len(content) == 1:
        return {
            "type": "tool_call_output",
            "role": "user",
            "output": content[0].text,  # type: ignore[union-attr]  # plain content begins with a text
            "tool_call_id": tool_call_id,
            "stop_reason": stop_reason,
        }
    payload: Payload = {"type": "tool_call_output", "role": "user", "output": text_of(content) or NO_OUTPUT}
    images = output_images(content, stop_reason)
    if images:
        payload["images"] = images
    payload["tool_call_id"] = tool_call_id
    payload["stop_reason"] = stop_reason
    if not plain:
        payload["x"] = {"content": [block_object(block) for block in content]}
    return payload


def output_content(payload: Payload) -> tuple[ContentBlock, ...]:
    """The blocks of a `tool_call_output`."""
    extra = payload.get("x")
    if extra and "content" in extra:
        return tuple([block_from(block) for block in extra["content"]])
    images = payload.get("images")
    text = Text(payload["output"])
    return (text, *map(Image, images)) if images else (text,)


def result_object(result: ToolResult) -> Payload:
    """A tool's result as an object; what is absent or false is left out."""
    payload: Payload = {"content": [block_object(block) for block in result.content]}
    if result.details is not None:
        payload["details"] = result.details
    if result.structured is not None:
        payload["structured"] = result.structured
    if result.is_error:
        payload["is_error"] = True
    if result.terminate:
        payload["terminate"] = True
    return payload


def result_from(payload: Payload) -> ToolResult:
    """The result of an object."""
    return ToolResult(
        [block_from(block) for block in payload["content"]],
        payload.get("details"),
        payload.get("structured"),
        payload.get("is_error") is True,
        payload.get("terminate") is True,
    )
