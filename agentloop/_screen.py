"""What stands on a screen: the items of a transcript, and the state around them. `view.py` makes it from events.

Fields that recur: `key` counts the items of a view and is never used twice; `started_at` and `ended_at` are times on the
clock of `View.feed`, in seconds, and None before they come; `error_code` and `error_message` are those of the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs

from agentloop._frozen import frozen
from agentloop.events import AgentEnd
from agentloop.messages import AgentMessage, ContentBlock, ToolResult, Usage

Activity: TypeAlias = Literal[
    "idle", "working", "connecting", "waiting_for_model", "thinking", "writing", "calling", "waiting_for_approval",
    "running_tools", "waiting_to_retry", "compacting",
]  # fmt: skip
"""What goes on, in a word; `idle` when no run is under way."""

_JOIN_AT = 512  # a long list of short pieces takes ten times the memory of its text


class Pieces:
    """Text that grows at its end."""

    __slots__ = ("_chunks", "_pieces")

    def __init__(self, text: str = "") -> None:
        self._chunks = [text]
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Add to the end; O(1)."""
        self._pieces.append(piece)
        if len(self._pieces) >= _JOIN_AT:
            self._chunks.append("".join(self._pieces))
            self._pieces.clear()

    def __str__(self) -> str:
        if self._pieces or len(self._chunks) > 1:
            self._chunks[:] = ["".join([*self._chunks, *self._pieces])]
            self._pieces.clear()
        return self._chunks[0]


@attrs.define(eq=False)
class Bubble:
    """A piece of the conversation."""

    key: int
    kind: Literal["user", "summary", "text", "thinking", "custom", "data"]
    """`summary` is a prompt that stands for a context that was compacted; `data` a block that is not a text."""
    open: bool = False
    """Whether it still grows."""
    cut: bool = False
    """Whether it was closed early, or belongs to a reply that failed."""
    content: ContentBlock | AgentMessage | None = None
    """The block or the message itself, once it is final."""
    _text: Pieces = attrs.field(factory=Pieces)

    @property
    def text(self) -> str:
        """The text so far. Put together on reading: read it once a frame, not once a delta."""
        return str(self._text)


@attrs.define(eq=False)
class ToolCard:
    """A tool call, from its first argument to its outcome: its `id`, and the `name` of its tool."""

    key: int
    id: str
    name: str
    state: Literal["written", "queued", "waiting_for_approval", "running", "locked"] = "written"
    """`written` while the model writes its arguments; `locked` once nothing more comes."""
    decision: Literal["allow", "deny", "forbidden"] | None = None
    """The answer of an approval, where there was one."""
    result: ToolResult | None = None
    """Progress while it runs (each replaces the one before), the result when it is locked."""
    is_error: bool = False
    """Whether it failed or did not run."""
    stop_reason: str | None = None
    """How it ended; None until it is locked."""
    error_code: str | None = None
    children: dict[str, Screen] = attrs.field(factory=dict)
    """The screens of nested runs, by session id, in the order in which they began."""
    started_at: float | None = None
    ended_at: float | None = None
    _arguments: Pieces = attrs.field(factory=Pieces)
    _output: Pieces = attrs.field(factory=Pieces)

    @property
    def arguments(self) -> str:
        """The arguments so far (JSON text); once it runs, those that run."""
        return str(self._arguments)

    @property
    def output(self) -> str:
        """What it has streamed of its output."""
        return str(self._output)

    @property
    def outcome(self) -> Literal["done", "failed", "stopped"] | None:
        """How it went, in a word; None until it is locked. `stopped`: aborted, denied, blocked."""
        if self.state != "locked":
            return None
        if self.stop_reason == "aborted":
            return "stopped"
        return "failed" if self.is_error else "done"

    def elapsed(self, now: float) -> float:
        """Seconds that it has run; 0 if it never began."""
        return _seconds(self.started_at, self.ended_at, now)


@attrs.define(eq=False)
class Separator:
    """A turn begins: that with this `index`, from 0."""

    key: int
    index: int


@attrs.define(eq=False)
class Notice:
    """Something to know that is no part of the conversation, in words (`text`)."""

    key: int
    kind: Literal["error", "aborted", "mcp", "hook"]
    """What it is about: a failed run, an abort, a server of tools, a hook."""
    text: str
    code: str | None = None
    """The error code, where there is one."""


@attrs.define(eq=False)
class CompactionCard:
    """A compaction, with the `mode` and `reason` of its `CompactionBegin`; its own exchange with the model stands in
    `inner`, not in the conversation."""

    key: int
    mode: str
    reason: str
    inner: Screen
    status: str | None = None
    """How it ended; None while it goes on."""


Item: TypeAlias = Bubble | ToolCard | Separator | Notice | CompactionCard
"""What the transcript is made of."""


@frozen
class Change:
    """What one event did to one item."""

    kind: Literal["added", "grew", "changed", "dropped"]
    """`dropped`: it is no longer on the screen, since a retry made it void."""
    item: Item
    """As it is now."""
    text: str = ""
    """With `grew`: what was added to the bubble's text, the card's arguments or its output."""
    origin: tuple[str, ...] = ()
    """Session ids of the nested runs whose item it is, outermost first; () for the run itself."""


@attrs.frozen
class RetryWait:
    """The wait before a further attempt, and why the last one failed."""

    attempt: int
    """Number of the attempt that comes."""
    due: float
    """When it comes, on the clock of `feed`."""
    error_code: str | None
    error_message: str | None

    def seconds_left(self, now: float) -> float:
        """For a countdown; never below 0."""
        return max(0.0, self.due - now)


class Screen:
    """What a person sees of a run (or of several, one after the other). To be read; only its `View` changes it."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        """The transcript. What a retry made void is taken out."""
        self.approvals: dict[str, ToolCard] = {}
        """Cards that wait for an answer, by call id, in the order of the questions."""
        self.running: dict[str, ToolCard] = {}
        """Cards that run, by call id."""
        self.retry: RetryWait | None = None
        """The wait that is under way: show a countdown, and a button that ends it (`Run.skip_wait`)."""
        self.end: AgentEnd | None = None
        """How the last run ended; None while one is under way and before the first."""
        self.usage = Usage()
        """Tokens of the run so far, failed attempts included."""
        self.session_usage = Usage()
        """Tokens of the session so far, as last reported."""
        self.context_tokens = 0
        """Tokens of the last reported request: how full the context is."""
        self.turn: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self._open: Bubble | ToolCard | None = None  # the block of the reply that grows
        self._requesting = False
        self._connecting = False
        self._compaction: CompactionCard | None = None

    @property
    def can_retry(self) -> bool:
        """Whether a retry button makes sense: the run ended with a failure that may pass."""
        return self.end is not None and self.end.stop_reason == "retryable"

    @property
    def activity(self) -> Activity:
        """What goes on, for a spinner."""
        if self.started_at is None or self.end is not None:
            return "idle"
        if self.approvals:
            return "waiting_for_approval"
        if self.retry is not None:
            return "waiting_to_retry"
        if self._compaction is not None:
            return "compacting"
        if self._open is not None:
            return _WRITING.get(getattr(self._open, "kind", ""), "calling")
        if self._requesting:
            return "waiting_for_model"
        if self.running:
            return "running_tools"
        return "connecting" if self._connecting else "working"

    def elapsed(self, now: float) -> float:
        """Seconds since the run began, or that it took."""
        return _seconds(self.started_at, self.ended_at, now)


_WRITING: Mapping[str, Activity] = {"text": "writing", "thinking": "thinking"}


def _seconds(started_at: float | None, ended_at: float | None, now: float) -> float:
    if started_at is None:
        return 0.0
    return (now if ended_at is None else ended_at) - started_at
