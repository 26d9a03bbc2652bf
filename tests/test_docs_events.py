"""The page of events: every event, message and block with its fields, and every code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

import agentloop
from agentloop import Delta, Event, FinishReason
from agentloop.errors import ERROR_CODES, RETRYABLE_CODES
from agentloop.events import McpServerStatus
from agentloop.messages import ContentBlock, Message, OpaqueMessage, ToolResult, Usage

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "events.md").read_text(encoding="utf-8")
LISTED = {
    name: tuple(field.strip() for field in fields.split(",") if field.strip())
    for entry in re.findall(r"^- (.*?)(?=^- |^#|^\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for name, fields in re.findall(r"`([A-Z]\w+)\(([\w,\s]*)\)`", entry)
}
EXPECTED: list[Any] = [
    *get_args(Event), *get_args(Delta), *get_args(Message), *get_args(ContentBlock), McpServerStatus, OpaqueMessage,
    ToolResult, Usage,
]  # fmt: skip


def fields_of(cls: type) -> tuple[str, ...]:
    return tuple(each.alias for each in attrs.fields(cls) if each.init)


@pytest.mark.parametrize("cls", EXPECTED, ids=lambda cls: cls.__name__)
def test_every_class_is_listed_with_its_fields(cls: type) -> None:
    """All fields, in their order; and the class can be imported from the package."""
    assert LISTED[cls.__name__] == fields_of(cls)
    assert getattr(agentloop, cls.__name__) is cls


def test_nothing_else_is_listed() -> None:
    """Each class of the page is compared above."""
    assert set(LISTED) == {cls.__name__ for cls in EXPECTED}


def test_every_code_is_listed() -> None:
    """Each once, and those that are asked again are marked as such."""
    _, text = PAGE.split("## Codes\n")
    heads = [line.split(": ", 1)[0] for line in text.splitlines() if line.startswith("- ")] + [text.split("\n\n")[-1]]
    codes = [code for head in heads for code in re.findall(r"`([a-z_]+)`", head)]
    assert sorted(codes) == sorted(ERROR_CODES)
    assert set(re.findall(r"`([a-z_]+)` ↻", text)) == RETRYABLE_CODES


def test_every_finish_reason_is_listed() -> None:
    """The entry of `AssistantMessage` names them."""
    (entry,) = re.findall(r"^- `AssistantMessage\(.*?(?=^- )", PAGE, re.MULTILINE | re.DOTALL)
    assert set(get_args(FinishReason)) <= set(re.findall(r"`(\w+)`", entry))
