"""The assembler by hand: chunks in, the events that come of each, and the message at the end."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from agentloop._assemble import Assembler
from agentloop.errors import ModelError
from agentloop.events import BlockAdded, MessageEnd, MessageStart
from agentloop.messages import AssistantMessage, InlineData, Text, Thinking, ToolCall, Usage
from agentloop.model import BlockChunk, BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk

HEADER = AssistantMessage((), provider="local", model="m")
DATA = InlineData("QUJD", "text/plain")
USAGE = Usage(1, 2, 3, 6)
STOP = Finish("stop")


class Bench:
    """An assembler with its events written down, each as a word or two."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.fast: list[str] = []
        self.ids: list[str | None] = []
        self.messages: list[Any] = []
        self.assembler = Assembler(HEADER, self.update, self.delta, self.claim, self.messages.append)

    def claim(self, id: str | None) -> str:
        self.ids.append(id)
        return id or f"made{len(self.ids)}"

    def update(self, event: Any) -> None:
        self.words.append(spelled(event.delta))

    def delta(self, event: Any) -> None:
        self.words.append(spelled(event.delta))
        self.fast.append(spelled(event.delta))

    def told(self, *chunks: Any) -> list[str]:
        """The events that these chunks bring."""
        self.words.clear()
        for chunk in chunks:
            self.assembler.feed(chunk)
        return list(self.words)

    def closed(self, stop_reason: Any = "retryable") -> list[str]:
        """The events of the reply's end."""
        self.words.clear()
        self.assembler.close(stop_reason, "truncated", "cut off")
        return list(self.words)

    @property
    def content(self) -> tuple[Any, ...]:
        message: Any = self.messages[-1].message
        return tuple(message.content)


def spelled(delta: Any) -> str:
    kind = type(delta).__name__.replace("ToolCall", "Call")
    if isinstance(delta, BlockAdded):
        return f"Added {delta.index}"
    if kind.endswith("Delta"):
        return f"{delta.index} {delta.text!r}"
    if kind.endswith("End"):
        return f"{kind} {delta.index} {delta.stop_reason}"
    return f"{kind} {delta.index}" + (f" {delta.id} {delta.name}" if kind == "CallStart" else "")


def call(arguments: str = "", **fields: Any) -> ToolCallChunk:
    return ToolCallChunk(arguments, **fields)


TEXT = ["TextStart 0", "0 'a'"]
BOTH = [*TEXT, "0 'b'", "TextEnd 0 completed"]


class Count(int):
    """A number that is not shown as one."""

    __repr__ = object.__repr__


@pytest.mark.parametrize(
    ("chunks", "words", "content"),
    [
        # pieces of one kind without an index go on with the open block; another kind ends it
        (["a", "b"], BOTH, (Text("ab"),)),
        ([TextChunk("a"), TextChunk("b")], BOTH, (Text("ab"),)),
        ([TextChunk("a"), "b"], BOTH, (Text("ab"),)),
        ([TextChunk("a", 3), TextChunk("b", 3)], BOTH, (Text("ab"),)),
        ([TextChunk("a", 3), TextChunk("b")], BOTH, (Text("ab"),)),
        ([ThinkingChunk("a", 3), ThinkingChunk("b")],
         ["ThinkingStart 0", "0 'a'", "0 'b'", "ThinkingEnd 0 completed"], (Thinking("ab"),)),
        ([ThinkingChunk("a"), ThinkingChunk("b")],
         ["ThinkingStart 0", "0 'a'", "0 'b'", "ThinkingEnd 0 completed"], (Thinking("ab"),)),
        (["a", ThinkingChunk("b"), "c"],
         [*TEXT, "TextEnd 0 completed", "ThinkingStart 1", "1 'b'", "ThinkingEnd 1 completed",
          "TextStart 2", "2 'c'", "TextEnd 2 completed"], (Text("a"), Thinking("b"), Text("c"))),
        ([ThinkingChunk("a"), TextChunk("b"), call(id="i", name="f"), TextChunk("c")], None,
         (Thinking("a"), Text("b"), ToolCall("i", "f", ""), Text("c"))),
        ([TextChunk("a"), TextChunk("\ud83d"), TextChunk("\ude00")],
         [*TEXT, "0 ''", "0 '😀'", "TextEnd 0 completed"], (Text("a😀"),)),
        ([TextChunk("a"), TextChunk("\ud83d"), TextChunk("b")],
         [*TEXT, "0 ''", "0 '\ufffdb'", "TextEnd 0 completed"], (Text("a\ufffdb"),)),
        (["", ""], ["TextStart 0", "0 ''", "0 ''", "TextEnd 0 completed"], (Text(""),)),
        # fidelity is added key by key
        ([TextChunk("a", fidelity={"x": 1}), TextChunk("b", fidelity={"y": 2})], BOTH, (Text("ab", {"x": 1, "y": 2}),)),
        (["a", TextChunk("b", fidelity={"y": 2})], BOTH, (Text("ab", {"y": 2}),)),
        ([ThinkingChunk("a", fidelity={"x": 1})],
         ["ThinkingStart 0", "0 'a'", "ThinkingEnd 0 completed"], (Thinking("a", {"x": 1}),)),
        # half a pair waits for the other half; a lone half becomes the replacement, in its place
        (["a", "\ud83d", "\ude00b"], [*TEXT, "0 ''", "0 '😀b'", "TextEnd 0 completed"], (Text("a😀b"),)),
        (["a\ud83d", "b"], ["TextStart 0", "0 'a'", "0 '\ufffdb'", "TextEnd 0 completed"], (Text("a\ufffdb"),)),
        ([TextChunk("a\ud83d"), TextChunk("b")],
         ["TextStart 0", "0 'a'", "0 '\ufffdb'", "TextEnd 0 completed"], (Text("a\ufffdb"),)),
        (["a\ud83d"], [*TEXT, "0 '\ufffd'", "TextEnd 0 completed"], (Text("a\ufffd"),)),
        ([TextChunk("a"), TextChunk("é")], [*TEXT, "0 'é'", "TextEnd 0 completed"], (Text("aé"),)),
        # calls: an empty first fragment only opens; what came before the name is one delta
        ([call(id="i", name="f")], ["CallStart 0 i f", "CallEnd 0 completed"], (ToolCall("i", "f", ""),)),
        ([call("{", id="i", name="f"), call("}")],
         ["CallStart 0 i f", "0 '{'", "0 '}'", "CallEnd 0 completed"], (ToolCall("i", "f", "{}"),)),
        ([call(id="i", name="f"), call("{}", id="i"), call("")],
         ["CallStart 0 i f", "0 '{}'", "0 ''", "CallEnd 0 completed"], (ToolCall("i", "f", "{}"),)),
        ([call("{", id="i"), call("}"), call(name="f"), call(" ")],
         ["CallStart 0 i f", "0 '{}'", "0 ' '", "CallEnd 0 completed"], (ToolCall("i", "f", "{} "),)),
        ([call(name="f"), call("{}", id="late")],
         ["CallStart 0 made1 f", "0 '{}'", "CallEnd 0 completed"], (ToolCall("made1", "f", "{}"),)),
        ([call(id="i", name="f", fidelity={"x": 1}), call(name="g", id="", fidelity={"y": 2})],
         ["CallStart 0 i f", "0 ''", "CallEnd 0 completed"], (ToolCall("i", "f", "", {"x": 1, "y": 2}),)),
        ([call("{"), call("}", id="i", name="f")],
         ["CallStart 0 i f", "0 '{'", "0 '}'", "CallEnd 0 completed"], (ToolCall("i", "f", "{}"),)),
        ([call("{}", id="i", name="f"), BlockEnd(), call("[", id="j"), call("]", name="g")],
         ["CallStart 0 i f", "0 '{}'", "CallEnd 0 completed", "CallStart 1 j g", "1 '['", "1 ']'", "CallEnd 1 completed"],
         (ToolCall("i", "f", "{}"), ToolCall("j", "g", "[]"))),
        ([TextChunk("a", 0), ThinkingChunk("t"), BlockEnd(), TextChunk("b", 0), BlockEnd(0), ThinkingChunk("u")], None,
         (Text("ab"), Thinking("t"), Thinking("u"))),
        ([TextChunk("a", 0), TextChunk("x", 1), BlockEnd(1), TextChunk("y", 2), BlockEnd(0), TextChunk("z", 1)],
         [*TEXT, "TextEnd 0 completed", "TextStart 1", "1 'x'", "TextEnd 1 completed", "TextStart 2", "2 'y'",
          "TextEnd 2 completed", "TextStart 3", "3 'z'", "TextEnd 3 completed"], None),
        ([TextChunk("a", 0), TextChunk("x", 1), BlockEnd(1), TextChunk("y", 1), BlockEnd(1), BlockEnd(0),
          TextChunk("z", 1)],
         [*TEXT, "TextEnd 0 completed", "TextStart 1", "1 'x'", "TextEnd 1 completed", "TextStart 2", "2 'y'",
          "TextEnd 2 completed", "TextStart 3", "3 'z'", "TextEnd 3 completed"], None),
        ([call(id="i", name="f"), call("{}", fidelity={"x": 1})],
         ["CallStart 0 i f", "0 '{}'", "CallEnd 0 completed"], (ToolCall("i", "f", "{}", {"x": 1}),)),
        ([call("\ud83d", id="i", name="f"), call("\ude00")],
         ["CallStart 0 i f", "0 ''", "0 '😀'", "CallEnd 0 completed"], (ToolCall("i", "f", "😀"),)),
        # another id without an index opens another call; with an index the block is that of the index
        ([call("{}", id="i", name="f"), call("[]", id="j", name="g")],
         ["CallStart 0 i f", "0 '{}'", "CallEnd 0 completed", "CallStart 1 j g", "1 '[]'", "CallEnd 1 completed"],
         (ToolCall("i", "f", "{}"), ToolCall("j", "g", "[]"))),
        ([call("{", id="i", name="f", index=0), call("}", id="j", index=0)],
         ["CallStart 0 i f", "0 '{'", "0 '}'", "CallEnd 0 completed"], (ToolCall("i", "f", "{}"),)),
        ([call("{}", id="i", name="f"), "a", call(id="j", name="g")],
         ["CallStart 0 i f", "0 '{}'", "CallEnd 0 completed", "TextStart 1", "1 'a'", "TextEnd 1 completed",
          "CallStart 2 j g", "CallEnd 2 completed"], (ToolCall("i", "f", "{}"), Text("a"), ToolCall("j", "g", ""))),
        ([call("{}", id="i", name="f"), BlockEnd(), call("[]", name="g")],
         ["CallStart 0 i f", "0 '{}'", "CallEnd 0 completed", "CallStart 1 made2 g", "1 '[]'", "CallEnd 1 completed"],
         (ToolCall("i", "f", "{}"), ToolCall("made2", "g", "[]"))),
        ([call("{}", id="i", name="f", index=0), BlockEnd(0), call("[]", id="j", name="g", index=1)],
         ["CallStart 0 i f", "0 '{}'", "CallEnd 0 completed", "CallStart 1 j g", "1 '[]'", "CallEnd 1 completed"],
         (ToolCall("i", "f", "{}"), ToolCall("j", "g", "[]"))),
        # interleaved blocks: the open one is shown, others are held and come as one delta
        ([TextChunk("a", 0), TextChunk("x", 1), TextChunk("b", 0), TextChunk("y", 1)],
         [*BOTH, "TextStart 1", "1 'xy'", "TextEnd 1 completed"], (Text("ab"), Text("xy"))),
        ([TextChunk("a", 0), TextChunk("x", 1), BlockEnd(1), BlockEnd(0), TextChunk("z", 1)],
         [*TEXT, "TextEnd 0 completed", "TextStart 1", "1 'x'", "TextEnd 1 completed", "TextStart 2", "2 'z'",
          "TextEnd 2 completed"], (Text("a"), Text("x"), Text("z"))),
        ([TextChunk("a", 0), TextChunk("x", 1), BlockEnd(), TextChunk("b", 0), BlockEnd(0), TextChunk("y", 1)],
         [*TEXT, "TextEnd 0 completed", "TextStart 1", "1 'x'", "1 'y'", "TextEnd 1 completed", "TextStart 2", "2 'b'",
          "TextEnd 2 completed"], (Text("a"), Text("xy"), Text("b"))),
        ([TextChunk("a", 0), call("{}", id="i", index=1), BlockEnd(0), call(name="f", index=1)],
         [*TEXT, "TextEnd 0 completed", "CallStart 1 i f", "1 '{}'", "CallEnd 1 completed"],
         (Text("a"), ToolCall("i", "f", "{}"))),
        ([TextChunk("a", 0), "x", ThinkingChunk("t"), TextChunk("b", 0), BlockEnd(0)], None, (Text("axb"), Thinking("t"))),
        ([TextChunk("a", 0), ThinkingChunk("t"), call("{}", id="i", name="f")], None,
         (Text("a"), Thinking("t"), ToolCall("i", "f", "{}"))),
        ([TextChunk("a", 0), ThinkingChunk("t"), call("{}", id="i", name="f"), ThinkingChunk("u")], None,
         (Text("a"), Thinking("t"), ToolCall("i", "f", "{}"), Thinking("u"))),
        # whole blocks end what has no index, wait behind what has one
        (["a", BlockChunk(DATA)], [*TEXT, "TextEnd 0 completed", "Added 1"], (Text("a"), DATA)),
        ([TextChunk("a", 0), BlockChunk(DATA), TextChunk("b", 0)], [*BOTH, "Added 1"], (Text("ab"), DATA)),
        ([TextChunk("a", 0), BlockChunk(DATA), TextChunk("x", 1), BlockEnd(0)],
         [*TEXT, "TextEnd 0 completed", "Added 1", "TextStart 2", "2 'x'", "TextEnd 2 completed"],
         (Text("a"), DATA, Text("x"))),
        ([BlockChunk(Text("whole")), BlockChunk(ToolCall("i", "f", "{}", {"x": 1}))], ["Added 0", "Added 1"],
         (Text("whole"), ToolCall("i", "f", "{}", {"x": 1}))),
        ([BlockChunk(ToolCall("", "f", "{}"))], ["Added 0"], (ToolCall("made1", "f", "{}"),)),
        ([BlockChunk(Text("whole")), "a"], ["Added 0", "TextStart 1", "1 'a'", "TextEnd 1 completed"],
         (Text("whole"), Text("a"))),
        # an end of nothing changes nothing
        ([BlockEnd(), BlockEnd(4), "a", BlockEnd(4), "b"], BOTH, (Text("ab"),)),
    ],
)  # fmt: skip
def test_chunks_become_blocks(chunks: list[Any], words: list[str] | None, content: tuple[Any, ...] | None) -> None:
    """One block at a time, nothing lost, the open one never held back; `Finish` completes all of it."""
    bench = Bench()
    told = bench.told(*chunks, STOP)
    assert bench.closed("completed") == []
    assert words is None or told == words
    assert content is None or bench.content == content
    assert [type(event) for event in bench.messages] == [MessageStart, MessageEnd]


@pytest.mark.parametrize(
    ("chunks", "words", "content"),
    [
        (["a"], ["TextEnd 0 retryable"], (Text("a"),)),
        (["a\ud83d"], ["0 '\ufffd'", "TextEnd 0 retryable"], (Text("a\ufffd"),)),
        ([call("{", id="i", name="f")], ["CallEnd 0 retryable"], ()),
        (["a", call("{", id="i")], [], (Text("a"),)),
        ([TextChunk("a", 0), TextChunk("x", 1), ThinkingChunk("t", 2)],
         ["TextEnd 0 retryable", "TextStart 1", "1 'x'", "TextEnd 1 retryable", "ThinkingStart 2", "2 't'",
          "ThinkingEnd 2 retryable"], (Text("a"), Text("x"), Thinking("t"))),
        ([TextChunk("a", 0), TextChunk("x", 1), BlockEnd(1)],
         ["TextEnd 0 retryable", "TextStart 1", "1 'x'", "TextEnd 1 completed"], (Text("a"), Text("x"))),
        ([TextChunk("a", 0), call("{", id="i", name="f", index=1), call("{}", id="j", name="g", index=2), BlockEnd(2)],
         ["TextEnd 0 retryable", "CallStart 1 j g", "1 '{}'", "CallEnd 1 completed"], (Text("a"), ToolCall("j", "g", "{}"))),
        ([TextChunk("a", 0), call("{}", id="i", index=1), BlockEnd(1)], ["TextEnd 0 retryable"], (Text("a"),)),
        ([call("{", id="i", index=0), TextChunk("x", 1)], ["TextStart 0", "0 'x'", "TextEnd 0 retryable"], (Text("x"),)),
        ([TextChunk("a", 0), BlockChunk(DATA)], ["TextEnd 0 retryable", "Added 1"], (Text("a"), DATA)),
        ([TextChunk("a", 0), BlockChunk(ToolCall("i", "f", "{}"))],
         ["TextEnd 0 retryable", "Added 1"], (Text("a"), ToolCall("i", "f", "{}"))),
    ],
)  # fmt: skip
def test_a_reply_that_breaks_off_keeps_what_was_said(
    chunks: list[Any], words: list[str], content: tuple[Any, ...]
) -> None:
    """What is open is cut, what was held comes as start, delta, end; a call that is not whole is left out."""
    bench = Bench()
    bench.told(*chunks)
    assert bench.closed() == words
    assert bench.content == content
    message: Any = bench.messages[-1].message
    assert (message.stop_reason, message.error_code, message.error_message) == ("retryable", "truncated", "cut off")
    assert bench.closed() == []


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([call("{}", id="i", name="f"), BlockEnd(), call("}")], "a fragment came for a tool call that had ended"),
        ([call("{}", id="i", name="f", index=0), BlockEnd(0), call("}", id="i", index=0)],
         "a fragment came for a tool call that had ended"),
        ([call("{}", id="i"), STOP], "a tool call ended without a name"),
        ([call("{}", id="i"), "a"], "a tool call ended without a name"),
        ([BlockChunk(ToolCall("i", "", "{}"))], "a tool call came without a name"),
        ([BlockChunk(7)], "BlockChunk.block: "),
        ([call(id=7)], "ToolCallChunk.id: expected a text or None, got int"),
        ([call(name=b"f", id="i")], "ToolCallChunk.name: expected a text or None, got bytes"),
        ([TextChunk("a", "x")], "index: expected a whole number or None, got str"),
        ([TextChunk("a", 0), TextChunk(b"x", 1)], "TextChunk.text: expected a text, got bytes"),
        ([TextChunk("a", 0), TextChunk(b"x", 0)], "TextChunk.text: expected a text, got bytes"),
        ([TextChunk(None)], "TextChunk.text: expected a text, got NoneType"),
        ([ThinkingChunk("a"), ThinkingChunk(None)], "ThinkingChunk.thinking: expected a text, got NoneType"),
        ([call(id="i", name="f"), call({"a": 1})], "ToolCallChunk.arguments: expected a text, got dict"),
        (["a", TextChunk(7)], "TextChunk.text: expected a text, got int"),
        ([call(b"{}", id="i", name="f")], "ToolCallChunk.arguments: expected a text, got bytes"),
        ([BlockChunk(ToolCall(["i"], "f", "{}"))], "ToolCall.id: expected a text or None, got list"),
        ([BlockChunk(ToolCall("i", 7, "{}"))], "ToolCall.name: expected a text or None, got int"),
        ([UsageChunk(Usage(1, 2, 3, 6.5))], "UsageChunk.usage: expected a Usage of whole numbers, got Usage(1, 2, 3, float)"),
        ([UsageChunk(Usage(1, 2, 2**64, 3))], "UsageChunk.usage: expected a Usage of whole numbers, got Usage(1, 2, int, 3)"),
        ([UsageChunk(7)], "UsageChunk.usage: expected a Usage of whole numbers, got int"),
        ([Finish("done")], "Finish.reason: expected one of stop, length"),
        ([Finish(7)], "got int"),
        ([7], "expected a model chunk or text, got int"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_malformed(chunks: list[Any], words: str) -> None:
    """The error names what was expected and what came; only the last chunk raises it."""
    bench = Bench()
    bench.told(*chunks[:-1])
    with pytest.raises(ModelError) as caught:
        bench.assembler.feed(chunks[-1])
    assert (caught.value.code, words in str(caught.value)) == ("malformed", True), str(caught.value)


def test_the_id_and_the_name_of_a_whole_call_are_made_valid() -> None:
    """As those of one that streams: no event holds half a pair."""
    bench = Bench()
    bench.told(BlockChunk(ToolCall("i\ud83d", "f\ud83d", "{}")), STOP)
    bench.closed("completed")
    assert bench.content == (ToolCall("i\ufffd", "f\ufffd", "{}"),)


class Odd(str):
    """A text that is equal to none, itself included."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


@pytest.mark.parametrize("id", ["i\ud800", Odd("i")], ids=["half a character", "a class of its own"])
def test_an_id_that_comes_with_every_fragment_is_that_of_one_call(id: str) -> None:
    """It is compared as it is kept: valid Unicode, and a plain text."""
    bench = Bench()
    bench.told(call('{"a"', id=id, name="f"), call(":1", id=id), call("}", id=id), STOP)
    bench.closed("completed")
    assert [(block.id, block.arguments) for block in bench.content] == [(id.replace("\ud800", "\ufffd"), '{"a":1}')]


def test_a_count_of_a_class_of_its_own_is_a_plain_number() -> None:
    """A record has a place for whole numbers alone."""
    bench = Bench()
    bench.told(UsageChunk(Usage(True, Count(5), 2, Count(8))))
    usage = bench.assembler.usage
    assert usage == Usage(1, 5, 2, 8)
    assert {type(count) for count in attrs.astuple(usage)} == {int}


def test_after_the_finish_only_usage_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """All else is dropped with a warning; the last usage counts; the reply keeps its reason and fidelity."""
    bench = Bench()
    assert bench.told(UsageChunk(Usage()), "a", Finish("length", {"x": 1})) == [*TEXT, "TextEnd 0 completed"]
    assert bench.told("b", Finish("stop"), call(id="i", name="f"), None, UsageChunk(USAGE)) == []
    dropped = [record.message for record in caplog.records]
    assert dropped == [
        f"dropped a {kind} that came after the model's Finish"
        for kind in ("str", "Finish", "ToolCallChunk", "NoneType")
    ]
    assert bench.assembler.usage == USAGE
    message = bench.assembler.close("completed")
    expected = AssistantMessage((Text("a"),), "completed", "length", USAGE, "local", "m", fidelity={"x": 1})
    assert message == expected
    assert bench.messages == [MessageStart(HEADER), MessageEnd(expected)]


def test_a_reply_that_does_not_end_after_its_finish_is_malformed() -> None:
    """256 chunks may come there, of whatever kind; the reply is what it was all the same."""
    bench = Bench()
    bench.told("a", Finish("stop"), *[UsageChunk(USAGE)] * 128, *["b"] * 128)
    with pytest.raises(ModelError, match="the stream does not end after its Finish"):
        bench.assembler.feed(UsageChunk(Usage()))
    bench.closed("completed")
    assert (bench.content, bench.assembler.usage) == ((Text("a"),), USAGE)


def test_a_reply_without_content_is_none() -> None:
    """Nothing is opened for it; of a reply that was not committed the reason is left out."""
    bench = Bench()
    assert bench.told(UsageChunk(USAGE), STOP) == []
    assert (bench.assembler.close("completed"), bench.messages, bench.assembler.partial) == (None, [], None)
    bench = Bench()
    bench.told("a", Finish("stop"))
    message = bench.assembler.close("aborted", "deadline")
    assert message is not None
    assert (message.finish_reason, message.stop_reason, message.error_code) == (None, "aborted", "deadline")


def test_who_answers_may_be_said_before_the_first_chunk() -> None:
    """The header of the message and the message itself carry the names."""
    bench = Bench()
    bench.assembler.name("other", "n")
    bench.told("a", STOP)
    bench.closed("completed")
    assert [(event.message.provider, event.message.model) for event in bench.messages] == [("other", "n")] * 2


def test_a_subclass_of_a_chunk_is_that_chunk() -> None:
    """A str of a class of its own, say."""

    class Piece(str):
        __slots__ = ()

    assert Bench().told(Piece("a"), Piece("b")) == [*TEXT, "0 'b'"]


@pytest.mark.parametrize(
    "make", [lambda piece: piece, TextChunk, ThinkingChunk, lambda piece: call(piece, id="i", name="f")]
)
def test_a_piece_of_a_class_of_its_own_is_plain_text(make: Any) -> None:
    """ASCII or not, first or further: a class of its own may have another length, or none of the methods that text has."""

    class Piece(str):
        def __len__(self) -> int:
            return 7

        def isascii(self) -> bool:
            raise RuntimeError

    deltas: list[Any] = []
    bench = Bench()
    assembler = Assembler(HEADER, bench.update, deltas.append, bench.claim, bench.messages.append)
    for piece in ("a", "b", "é", "\ud83d", "\ude00", "c"):
        assembler.feed(make(Piece(piece)))
    texts = [event.delta.text for event in deltas]
    assert texts == ["a", "b", "é", "", "😀", "c"]
    assert {type(text) for text in texts} == {str}


def test_pieces_take_the_short_way_and_starts_and_ends_the_other() -> None:
    """Every delta, and nothing else, goes through the function for deltas; ids are claimed as they were sent, once a call."""
    bench = Bench()
    words = bench.told("a", TextChunk("b"), ThinkingChunk("c"), call("{", id="i", name="f"), call("é"), "\ud83d", STOP)
    assert bench.fast == [word for word in words if word[0].isdigit()]
    assert bench.ids == ["i"]
    bench.assembler = Assembler(HEADER, bench.update, bench.delta, bench.claim, bench.messages.append)
    bench.told(BlockChunk(ToolCall("", "f", "{}")), call(id="", name="g"))
    assert bench.ids == ["i", None, None]


@pytest.mark.parametrize(
    ("chunks", "slow"),
    [
        (["a", "b", TextChunk("c"), "d"], ["a"]),
        ([TextChunk("a", 3), TextChunk("b", 3), TextChunk("c"), "d"], ["a"]),
        ([TextChunk("a", 3), TextChunk("b", 4), "c"], ["a", "b"]),
        (["a", "é", TextChunk("é"), TextChunk("b", fidelity={"x": 1})], ["a", "é", "é", "b"]),
        (["a\ud83d", "b", "c"], ["a\ud83d", "b"]),
        ([ThinkingChunk("a"), "b", TextChunk("c")], ["a", "b"]),
    ],
)
def test_a_plain_piece_of_the_open_text_takes_no_slow_way(chunks: list[Any], slow: list[str]) -> None:
    """Only what opens a block, waits, is not plain ASCII or carries fidelity is looked at closely."""

    class Watched(Assembler):
        __slots__ = ("closely",)

        def _piece(self, kind: type, text: str, index: int | None, fidelity: Any) -> None:
            self.closely.append(text)
            super()._piece(kind, text, index, fidelity)

    def ignore(event: Any) -> None:
        pass

    assembler = Watched(HEADER, ignore, ignore, str, ignore)
    assembler.closely = []
    for chunk in chunks:
        assembler.feed(chunk)
    assert assembler.closely == slow
