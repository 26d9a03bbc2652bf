"""What came of a recorded response: its chunks, counted block by block, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from agentloop.errors import ModelError
from agentloop.messages import AssistantMessage, Usage
from agentloop.model import BlockChunk, BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk

Expected = Mapping[str, Any]


@attrs.define(eq=False)
class Count:
    """How one block came: its pieces, those of them with text, and whether it came whole instead."""

    kind: str
    index: int | None = None
    own_id: str | None = None
    deltas: int = 0
    nonempty: int = 0
    openings: int = 0
    """Empty pieces of a call that carry its id or name: some count them as deltas, some do not."""
    whole: bool = False
    ended: bool = False


class Tally:
    """Counts the pieces of each block as an adapter yields them, before the kernel joins what it has to hold back."""

    def __init__(self) -> None:
        self.counts: list[Count] = []
        """In order of the blocks' first pieces."""

    def feed(self, chunk: Any) -> None:
        """Take one chunk."""
        match chunk:
            case str():
                self._piece("text", None, chunk, None)
            case TextChunk(text=text, index=index, fidelity=fidelity):
                self._piece("text", index, text, fidelity)
            case ThinkingChunk(thinking=text, index=index, fidelity=fidelity):
                self._piece("thinking", index, text, fidelity)
            case ToolCallChunk(arguments=text, index=index, id=own_id, name=name):
                count = self._count("call", index, own_id)
                count.deltas += 1
                count.nonempty += text != ""
                count.openings += text == "" and bool(own_id or name)
            case BlockChunk():
                self.counts.append(Count("whole", whole=True, ended=True))
            case BlockEnd(index=index):
                for count in self.counts:
                    count.ended = count.ended or count.index == index
            case _:
                pass

    def _piece(self, kind: str, index: int | None, text: str, fidelity: Any) -> None:
        count = self._count(kind, index, None)
        if text or not fidelity:  # a piece that only brings fidelity is none of the provider's deltas
            count.deltas += 1
            count.nonempty += text != ""

    def _count(self, kind: str, index: int | None, own_id: str | None) -> Count:
        candidates = self.counts[-1:] if index is None else self.counts
        for count in candidates:
            another = index is None and own_id is not None and count.own_id not in (None, own_id)
            if count.kind == kind and count.index == index and not count.ended and not another:
                count.own_id = count.own_id or own_id
                return count
        self.counts.append(Count(kind, index, own_id))
        return self.counts[-1]


@attrs.define
class Outcome:
    """What an adapter made of one response."""

    message: AssistantMessage | None = None
    """The reply, committed or not; None when it had no content."""
    committed: bool = False
    """Whether the request ended `completed`."""
    tally: Tally = attrs.field(factory=Tally)
    """Its chunks, counted block by block."""
    finish: Finish | None = None
    """The chunk that said why the reply ended; None: there was none."""
    usage: Usage | None = None
    """As the last `UsageChunk` says; None without one."""
    error: ModelError | None = None
    """What the adapter raised."""
