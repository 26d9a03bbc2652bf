"""A reply in the making: its message as it stood after any of its deltas."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from agentloop.events import (
    BlockAdded,
    Delta,
    MessageUpdate,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from agentloop.messages import AssistantMessage, InlineData, Text, Thinking, ToolCall
from agentloop.reply import Partial
from tests.costs import lines

HEADER = AssistantMessage((), "completed", provider="p", model="m")
DATA = InlineData("AAAA", "image/png")
STEPS: list[tuple[Delta, tuple[Any, ...]]] = [
    (ThinkingStart(0), (Thinking(""),)),
    (ThinkingDelta(0, "hm"), (Thinking("hm"),)),
    (ThinkingEnd(0, Thinking("hm", {"s": 1})), (Thinking("hm", {"s": 1}),)),
    (TextStart(1), (Thinking("hm", {"s": 1}), Text(""))),
    (TextDelta(1, "a"), (Thinking("hm", {"s": 1}), Text("a"))),
    (TextDelta(1, ""), (Thinking("hm", {"s": 1}), Text("a"))),
    (TextEnd(1, Text("a")), (Thinking("hm", {"s": 1}), Text("a"))),
    (BlockAdded(2, DATA), (Thinking("hm", {"s": 1}), Text("a"), DATA)),
    (ToolCallStart(3, "c", "look"), (Thinking("hm", {"s": 1}), Text("a"), DATA, ToolCall("c", "look", ""))),
    (ToolCallDelta(3, "{"), (Thinking("hm", {"s": 1}), Text("a"), DATA, ToolCall("c", "look", "{"))),
    (ToolCallEnd(3, ToolCall("c", "look", "{"), "aborted"), (Thinking("hm", {"s": 1}), Text("a"), DATA)),
]


OPEN = (TextStart, ThinkingStart, ToolCallStart, TextDelta, ThinkingDelta, ToolCallDelta)
"""After these a block is open."""
WORDS: dict[type, Any] = {
    Text: operator.attrgetter("text"),
    Thinking: operator.attrgetter("thinking"),
    ToolCall: operator.attrgetter("arguments"),
}


def test_each_update_keeps_the_message_as_it_stood() -> None:
    """Whenever it is read, also after the reply has grown; a call that was cut off is left out from its end on."""
    partial = Partial(HEADER)
    updates = [partial.update(delta) for delta, _ in STEPS]
    for update, (delta, content) in zip(updates, STEPS, strict=True):
        assert update.delta is delta
        assert update.message.content == content
    assert (updates[-1].message.provider, updates[-1].message.model) == ("p", "m")


def test_what_it_says_of_itself_is_its_last_update() -> None:
    """`message`, `content` (what has ended and counts) and `text` (of the open block) at every step."""
    partial = Partial(HEADER)
    for delta, content in STEPS:
        update = partial.update(delta)
        assert partial.message() == update.message
        is_open = isinstance(delta, OPEN)
        assert partial.content() == (content[:-1] if is_open else content)
        assert partial.text == (WORDS[type(content[-1])](content[-1]) if is_open else "")


@pytest.mark.parametrize("said", ["AB", "A", "abc"])
def test_a_block_may_end_with_other_words_than_its_pieces(said: str) -> None:
    """What was shown stays what was shown: before the end the pieces count, from the end on the block."""
    partial = Partial(HEADER)
    deltas = (TextStart(0), TextDelta(0, "a"), TextDelta(0, "b"), TextEnd(0, Text(said)))
    updates = [partial.update(delta) for delta in deltas]
    assert [update.message.text for update in updates] == ["", "a", "ab", said]


def test_only_calls_have_to_be_complete() -> None:
    """A text that was broken off counts, a call only if it is whole."""
    partial = Partial(HEADER)
    whole = ToolCall("c", "look", "{}")
    for delta in (TextStart(0), TextEnd(0, Text("a"), "aborted"), ToolCallStart(1, "c", "look"), ToolCallEnd(1, whole)):
        partial.update(delta)
    assert partial.content() == (Text("a"), whole)


def test_an_update_without_its_message_says_so() -> None:
    """One that nobody's reply gave has none to build."""
    with pytest.raises(AttributeError, match="without its message"):
        MessageUpdate(TextDelta(0, "x")).message  # noqa: B018


def test_many_pieces_cost_no_more_than_their_sum() -> None:
    """Ten times the pieces, ten times the work; and each update stays small."""

    def work(pieces: int) -> int:
        def grow() -> None:
            partial = Partial(HEADER)
            partial.update(TextStart(0))
            for _ in range(pieces):
                partial.grow(TextDelta(0, "x"))
            assert len(partial.text) == pieces

        return lines(grow)

    assert work(5_000) < 11 * work(500)


def test_many_pieces_are_kept_as_few_and_told_as_they_came() -> None:
    """Each update has what had come by then; from the block's end on its text is the block's own, and no second copy."""
    pieces = [f"{number};" for number in range(1_300)]
    partial = Partial(HEADER)
    partial.update(ThinkingStart(0))
    partial.update(ThinkingEnd(0, Thinking("")))
    partial.update(TextStart(1))
    updates = [partial.grow(TextDelta(1, piece)) for piece in pieces]
    for count in (1, 511, 512, 513, 1_024, 1_025, 1_300):
        assert updates[count - 1].message.content[1] == Text("".join(pieces[:count]))
    whole = "".join(pieces)
    assert partial.text == whole
    partial.update(TextEnd(1, Text(whole)))
    (_, shown) = updates[-1].message.content
    assert isinstance(shown, Text)
    assert shown.text is whole
    assert updates[512].message.content[1] == Text("".join(pieces[:513]))
