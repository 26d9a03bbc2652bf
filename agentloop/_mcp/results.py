"""What an MCP server sends back for a call, as a `ToolResult`: every kind of content becomes blocks, nothing raises.

Data that a provider would refuse (no base64, a picture of a rare type, any other binary resource) would cost the run its
next request; it is told to the model in words and kept for the application in `details`.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any, Final

import mcp_types as types

from agentloop._jsontext import json_text
from agentloop._values import freeze_json
from agentloop.messages import ContentBlock, Image, InlineData, Text, ToolResult

_PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_MIME: Final = 100


def result_of(result: types.CallToolResult) -> ToolResult:
    """The result of a call. `structured` is the structured content, also as text where the server sent no other."""
    kept: list[Any] = []
    blocks = [_block(item, kept) for item in result.content]
    structured = result.structured_content
    try:
        structured = freeze_json(structured, "structured")
    except (TypeError, ValueError) as error:
        blocks.append(Text(f"[structured content that cannot be kept: {error}]"))
        structured = None
    if not blocks and structured is not None:
        blocks.append(Text(json_text(structured)))
    return ToolResult(tuple(blocks), _details(result, kept), structured, result.is_error)


def _details(result: types.CallToolResult, kept: list[Any]) -> dict[str, Any] | None:
    details: dict[str, Any] = {"content": kept} if kept else {}
    if result.meta:
        details["meta"] = dict(result.meta)
    try:
        freeze_json(details)
    except (TypeError, ValueError):  # what JSON has no word for is no information to anybody
        details.pop("meta", None)
    return details or None


def _block(item: types.ContentBlock, kept: list[Any]) -> ContentBlock:
    match item:
        case types.TextContent(text=text):
            return Text(text)
        case types.ImageContent(data=data, mime_type=mime_type):
            return _data("image", data, mime_type, kept)
        case types.AudioContent(data=data, mime_type=mime_type):
            return _data("audio", data, mime_type, kept)
        case types.ResourceLink():
            return Text(_link_text(item))
        case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
            return Text(f"[resource {uri}]\n{text}")
        case types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=blob, mime_type=kind)):
            return _data(f"resource {uri}", blob, kind or "application/octet-stream", kept)
    kept.append(item.model_dump(mode="json", by_alias=True, exclude_none=True))
    return Text(f"[content of the type {item.type}]")


def _data(what: str, data: str, mime_type: str, kept: list[Any]) -> ContentBlock:
    """A picture, sound or document as a block; anything else in words."""
    kind = mime_type.partition(";")[0].strip().lower()
    try:
        size = len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        kept.append({"mime_type": mime_type, "data": data})
        return Text(f"[{what} of the type {mime_type[:_MAX_MIME]}: its data is not base64]")
    if kind in _PICTURES:
        return Image(f"data:{kind};base64,{data}")
    if kind == "application/pdf" or kind.startswith("audio/"):
        return InlineData(data, kind)
    kept.append({"mime_type": mime_type, "data": data})
    return Text(f"[{what} of the type {mime_type[:_MAX_MIME]}, {size} bytes, not shown]")


def _link_text(link: types.ResourceLink) -> str:
    facts = [link.mime_type or "", f"{link.size} bytes" if link.size is not None else "", link.description or ""]
    said = ", ".join(fact for fact in facts if fact)
    return f"[resource {link.title or link.name}: {link.uri}{f' ({said})' if said else ''}]"


def progress_of(progress: float, total: float | None, message: str | None) -> ToolResult:
    """A progress notification for a card: its words, how far it is, and the numbers as `structured`."""
    numbers = {"progress": progress, "total": total}
    known = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
    far = f"{known['progress']:g}" if "progress" in known else ""
    if "total" in known:
        far += f" of {known['total']:g}"
    return ToolResult(f"{message} ({far})" if message and far else message or far, structured=known)
