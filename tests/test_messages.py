"""Values of messages: what a call's arguments say."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import attrs
import pytest

from agentloop import Block
from agentloop.messages import (
    AgentMessage,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    UserMessage,
    assistant,
    user,
)


def parsed(arguments: str) -> object:
    return ToolCall("c", "f", arguments).parse()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("", {}),
        (" \n", {}),
        ('{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\N{GRINNING FACE}"}),
        ('{"a": "x\\ud800y", "\\udc00": 1}', {"a": "x\ufffdy", "\ufffd": 1}),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_the_arguments_of_a_call(arguments: str, value: object) -> None:
    """Blank text is no arguments; what is parsed can always be written as UTF-8 again."""
    assert parsed(arguments) == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{", "text that is not JSON"),
        ("[1]", "expected a JSON object, got an array"),
        ("null", "expected a JSON object, got null"),
        ('{"a": NaN}', r"arguments\.a: expected a JSON number, got nan"),
        ('{"a": 1e999}', r"arguments\.a: expected a JSON number, got inf"),
        ('{"a": ' + "[" * 250 + "]" * 250 + "}", "levels of nesting"),
        ('{"a": ' + "[" * 100_000 + "}", "deeper nesting|not JSON"),
    ],
)
def test_arguments_that_are_no_object_say_so(arguments: str, words: str) -> None:
    """The error says what was expected and what came."""
    with pytest.raises(ValueError, match=words):
        parsed(arguments)


@pytest.mark.parametrize("value", [b"abc", None, 7, ["a"]])
@pytest.mark.parametrize(
    "make",
    [
        Text,
        Thinking,
        Image,
        lambda value: InlineThinking(value, "image/png"),
        lambda value: InlineData("YQ==", value),
        lambda value: ToolCall("i", "f", value),
        Block,
    ],
)
def test_what_is_no_text_makes_no_block(make: Any, value: Any) -> None:
    """It is refused where it enters, bytes as well: in an event it would break whoever reads it."""
    with pytest.raises(TypeError, match=f"expected text, got {type(value).__name__}"):
        make(value)


@attrs.frozen
class Notice(CustomMessage):
    role: ClassVar[str] = "notice"
    text: str


@dataclasses.dataclass
class Card(CustomMessage):
    role: ClassVar[str] = "card"
    text: str
    title: str = ""


class Mark(CustomMessage):
    role = "mark"


def test_every_message_has_a_text() -> None:
    """A history can be read without asking which message is whose: an application's own says what it likes, or nothing."""
    history: list[AgentMessage] = [
        user("a"),
        assistant("b"),
        ToolResultMessage("c", "f", ("d",)),
        Notice("e"),
        Card("f"),
    ]
    assert [message.text for message in [*history, Mark(), OpaqueMessage("seen", {"text": "no"})]] == [
        "a", "b", "d", "e", "f", "", "",
    ]  # fmt: skip
    with pytest.raises(TypeError):
        Card()  # type: ignore[call-arg]  # its text has no default


@pytest.mark.parametrize(
    ("said", "is_so"), [(1, True), ("yes", True), ([0], True), (0, False), (None, False), ("", False)]
)
def test_what_is_said_in_the_place_of_true_or_false_is_one_of_them(said: Any, is_so: bool) -> None:
    """A record of it says `true` or `false`, and what was read is equal to what was written."""
    result = ToolResult("x", is_error=said, terminate=said)
    message = ToolResultMessage("c", "work", "x", is_error=said)
    assert [result.is_error, result.terminate, message.is_error, Block(terminate=said).terminate] == [is_so] * 4
    assert type(result.is_error) is type(result.terminate) is type(message.is_error) is bool


def test_a_second_block_is_no_sender() -> None:
    """Blocks are given in a list, or to `user`: a block, or anything else that is no text, would only pass for who speaks."""
    for sender, got in ((Image("https://x/y.png"), "Image"), (Text("b"), "Text")):
        with pytest.raises(
            TypeError, match=f"^sender: expected a text or None, got {got}; blocks of one content are given in a list"
        ):
            UserMessage("a", sender)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^sender: expected a text or None, got int$"):
        UserMessage("a", sender=5)  # type: ignore[arg-type]
    assert user("a", Image("https://x/y.png")).content == (Text("a"), Image("https://x/y.png"))
    assert UserMessage("a", "harness").sender == "harness"
