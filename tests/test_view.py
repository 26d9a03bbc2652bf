"""What a person sees follows from the events, one change at a time."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pytest

from agentloop.events import (
    Abort,
    AgentEnd,
    AgentStart,
    ApprovalDecision,
    ApprovalRequest,
    BlockAdded,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Foreign,
    Hook,
    McpConnectBegin,
    McpConnectEnd,
    McpServerStatus,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    RequestBegin,
    RequestEnd,
    SubagentStarted,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    TokenUsage,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    ToolListReady,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    CustomMessage,
    InlineData,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    Usage,
    assistant,
    user,
)
from agentloop.view import Bubble, Change, CompactionCard, Notice, Separator, ToolCard, View


def show(*events: Event, view: View | None = None, at: float = 0.0) -> View:
    """A view that was fed these, a second after the other."""
    view = view or View()
    for n, event in enumerate(events):
        view.feed(event, at + n)
    return view


def whole(message: AgentMessage) -> list[Event]:
    return [MessageStart(message), MessageEnd(message)]


def text(index: int, *pieces: str, stop: Any = "completed") -> list[Event]:
    return [
        MessageUpdate(TextStart(index)),
        *[MessageUpdate(TextDelta(index, piece)) for piece in pieces],
        MessageUpdate(TextEnd(index, Text("".join(pieces)), stop)),
    ]


def call(index: int, id: str, name: str, *pieces: str, stop: Any = "completed") -> list[Event]:
    return [
        MessageUpdate(ToolCallStart(index, id, name)),
        *[MessageUpdate(ToolCallDelta(index, piece)) for piece in pieces],
        MessageUpdate(ToolCallEnd(index, ToolCall(id, name, "".join(pieces)), stop)),
    ]


EMPTY = AssistantMessage(())
OPENING: list[Event] = [AgentStart(), TurnStart(0), *whole(user("go")), ToolListReady(()), RequestBegin()]


def said(view: View) -> list[tuple[str, ...]]:
    """The transcript in short."""
    lines: list[tuple[str, ...]] = []
    for item in view.items:
        match item:
            case Bubble():
                lines.append((item.kind, item.text))
            case ToolCard():
                lines.append(("card", item.name, item.state))
            case Separator():
                lines.append(("turn", str(item.index)))
            case Notice():
                lines.append((item.kind, item.text))
            case CompactionCard():
                lines.append(("compaction", str(item.status)))
    return lines


def test_a_streamed_answer() -> None:
    """Prompt, thinking and text become bubbles in order; each delta says which bubble grew and by what."""
    view = show(*OPENING, MessageStart(EMPTY))
    assert view.activity == "waiting_for_model"
    (added,) = view.feed(MessageUpdate(ThinkingStart(0)), 9)
    assert (added.kind, view.activity) == ("added", "thinking")
    (grew,) = view.feed(MessageUpdate(ThinkingDelta(0, "hm")), 9)
    assert grew == Change("grew", added.item, "hm")
    (ended,) = view.feed(MessageUpdate(ThinkingEnd(0, Thinking("hm"))), 9)
    assert isinstance(ended.item, Bubble)
    assert (ended.kind, ended.item.open, ended.item.content) == ("changed", False, Thinking("hm"))
    view.feed(MessageUpdate(TextStart(1)), 9)
    assert view.activity == "writing"
    show(MessageUpdate(TextDelta(1, "Hel")), MessageUpdate(TextDelta(1, "lo")), view=view)
    assert said(view) == [("turn", "0"), ("user", "go"), ("thinking", "hm"), ("text", "Hello")]
    show(MessageUpdate(TextEnd(1, Text("Hello"))), MessageEnd(assistant("Hello")), RequestEnd(), view=view)
    assert view.activity == "working"
    assert not any(item.cut for item in view.items if isinstance(item, Bubble))


def test_a_card_through_its_states() -> None:
    """A card is written, queued, waits for approval, runs with progress, and is locked with its outcome."""
    view = show(*OPENING, MessageStart(EMPTY), *call(0, "c", "add", '{"a": 1', "}")[:-1])
    (card,) = [item for item in view.items if isinstance(item, ToolCard)]
    assert (card.state, card.arguments, card.outcome, view.activity) == ("written", '{"a": 1}', None, "calling")
    show(call(0, "c", "add", '{"a": 1', "}")[-1], MessageEnd(assistant(ToolCall("c", "add"))), RequestEnd(), view=view)
    assert card.state == "queued"
    view.feed(ApprovalRequest("c", "add", '{"a": 2}'), 20)
    assert (card.state, card.arguments) == ("waiting_for_approval", '{"a": 2}')
    assert (list(view.approvals), view.activity) == (["c"], "waiting_for_approval")
    view.feed(ApprovalDecision("allow", "c", '{"a": 2}'), 21)
    assert (card.state, card.decision, view.approvals) == ("queued", "allow", {})
    view.feed(ToolExecutionStart("c", "add", '{"a": 3}'), 22)
    assert (card.state, card.arguments, view.activity) == ("running", '{"a": 3}', "running_tools")
    view.feed(ToolExecutionUpdate("c", "add", ToolResult("half")), 23)
    assert card.result == ToolResult("half")
    assert view.feed(ToolExecutionUpdate("c", "add", delta="out"), 23) == (Change("grew", card, "out"),)
    assert card.elapsed(24) == 2
    view.feed(ToolExecutionEnd("c", "add", ToolResult("5")), 25)
    assert (card.state, card.outcome, card.output, card.elapsed(99)) == ("locked", "done", "out", 3)
    assert card.result == ToolResult("5")
    assert view.running == {}
    result = ToolResultMessage("c", "add", "5")
    assert [change for event in whole(result) for change in view.feed(event, 26)] == []


@pytest.mark.parametrize(
    ("error", "stop", "outcome"),
    [
        (False, "completed", "done"),
        (True, "fatal", "failed"),
        (True, "aborted", "stopped"),
        (False, "aborted", "stopped"),
    ],
)
def test_outcomes(error: bool, stop: Any, outcome: str) -> None:
    """Done, failed and stopped are told apart; a locked card keeps its outcome whatever comes late."""
    view = show(ToolExecutionStart("c", "f", "{}"), ToolExecutionEnd("c", "f", ToolResult("x"), error, stop))
    (card,) = view.items
    assert isinstance(card, ToolCard)
    assert card.outcome == outcome
    assert view.feed(ToolExecutionUpdate("c", "f", delta="late"), 9) == ()
    assert view.feed(ApprovalDecision("deny", "c"), 9) == ()
    assert (card.outcome, card.output, card.decision) == (outcome, "", None)


def test_a_denied_call_never_ran() -> None:
    """A refused call shows who refused and counts no running time before its start."""
    view = show(ApprovalRequest("c", "rm", "{}"), ApprovalDecision("forbidden", "c", "{}"))
    (card,) = view.items
    assert isinstance(card, ToolCard)
    assert (card.decision, card.elapsed(50)) == ("forbidden", 0)


def test_a_retry_takes_back_the_attempt() -> None:
    """The bubbles and cards of an attempt that failed stay, marked, until the next one begins; nothing else goes."""
    failed = RequestEnd("retryable", 1, 4000, "overloaded", "busy", Usage(0, 3, 1))
    attempt = [MessageStart(EMPTY), *text(0, "half"), *call(1, "c", "f", "{}"), *text(2, "cut", stop="retryable")]
    view = show(*OPENING, *attempt, MessageEnd(assistant("half", stop_reason="retryable")))
    view.feed(failed, 100)
    assert said(view)[2:] == [("text", "half"), ("card", "f", "queued"), ("text", "cut")]
    assert all(item.cut for item in view.items[2:] if isinstance(item, Bubble))
    assert view.retry is not None
    assert (view.retry.attempt, view.retry.error_code, view.activity) == (2, "overloaded", "waiting_to_retry")
    assert [view.retry.seconds_left(now) for now in (100, 103, 200)] == [4, 1, 0]
    gone = view.items[2:]
    assert [(change.kind, change.item) for change in view.feed(RequestBegin(2), 104)] == [("dropped", i) for i in gone]
    assert view.retry is None
    show(MessageStart(EMPTY), *text(0, "whole"), MessageEnd(assistant("whole")), RequestEnd("completed", 2), view=view)
    assert said(view) == [("turn", "0"), ("user", "go"), ("text", "whole")]


def test_a_committed_reply_is_never_dropped() -> None:
    """The next turn's request takes nothing back."""
    view = show(*OPENING, MessageStart(EMPTY), *text(0, "one"), MessageEnd(assistant("one")), RequestEnd(), TurnEnd())
    show(TurnStart(1), RequestBegin(), view=view)
    assert said(view) == [("turn", "0"), ("user", "go"), ("text", "one"), ("turn", "1")]


def test_a_failed_last_attempt_stays() -> None:
    """Where no attempt follows, what was said stays, marked as cut, with the reason, and a retry is offered."""
    view = show(
        *OPENING, MessageStart(EMPTY), *text(0, "half", stop="retryable"),
        MessageEnd(assistant("half", stop_reason="retryable")), RequestEnd("retryable", 1, None, "network", "gone"),
        TurnEnd(), AgentEnd((), "retryable", "network", "gone"),
    )  # fmt: skip
    assert said(view)[2:] == [("text", "half"), ("error", "gone")]
    assert view.can_retry
    assert view.activity == "idle"
    view.feed(AgentStart(), 50)
    assert not view.can_retry


def test_half_a_call_is_taken_back() -> None:
    """A call that was cut off has no card; the text before it stays."""
    view = show(*OPENING, MessageStart(EMPTY), *text(0, "so"), *call(1, "c", "f", '{"a', stop="aborted")[:-1])
    card = view.items[-1]
    assert view.feed(call(1, "c", "f", '{"a', stop="aborted")[-1], 9) == (Change("dropped", card),)
    assert said(view)[2:] == [("text", "so")]


def test_usage_adds_up() -> None:
    """Committed requests, failed attempts and the run's end add up; the session's figures are those reported."""
    view = show(*OPENING, RequestEnd("retryable", 1, 0, "network", "x", Usage(0, 7, 1)), RequestBegin(2))
    view.feed(TokenUsage(Usage(10, 10, 10), Usage(1, 5, 2)), 9)
    assert (view.usage, view.session_usage, view.context_tokens) == (Usage(1, 12, 3), Usage(10, 10, 10), 8)
    view.feed(AgentEnd(usage=Usage(1, 12, 4)), 20)
    assert view.usage == Usage(1, 12, 4)
    assert view.elapsed(99) == 20
    view.feed(AgentStart(), 200)
    assert (view.usage, view.elapsed(205)) == (Usage(), 5)


def test_children_have_screens_of_their_own() -> None:
    """A nested run is drawn inside the card of the call that runs it, to any depth, never beside its parent's text."""
    view = show(ToolExecutionStart("c", "ask", "{}"), SubagentStarted("s", "c"))
    inner: list[Event] = [AgentStart(), ToolExecutionStart("d", "ask", "{}"), SubagentStarted("t", "d")]
    deep: list[Event] = [*OPENING, MessageStart(EMPTY), *text(0, "deep")]
    show(*[ChildEvent(("s",), event) for event in inner], *[ChildEvent(("s", "t"), event) for event in deep], view=view)
    (card,) = view.items
    assert isinstance(card, ToolCard)
    (nested,) = card.children["s"].items
    assert isinstance(nested, ToolCard)
    child = nested.children["t"]
    assert isinstance(child, View)
    assert said(child) == [("turn", "0"), ("user", "go"), ("text", "deep")]
    changes = view.feed(ChildEvent(("s", "t"), MessageUpdate(TextStart(1))), 9)
    assert [(change.kind, change.origin) for change in changes] == [
        ("added", ("s", "t")),
        ("changed", ("s",)),
        ("changed", ()),
    ]
    assert view.feed(ChildEvent(("unknown",), AgentStart()), 9) == ()


def test_two_children_at_once() -> None:
    """Children of parallel calls do not mix."""
    view = show(*[ToolExecutionStart(c, "ask", "{}") for c in "ab"], *[SubagentStarted(f"s{c}", c) for c in "ab"])
    for c in "abab":
        show(*[ChildEvent((f"s{c}",), event) for event in whole(user(f"for {c}"))], view=view)
    for card in view.items:
        assert isinstance(card, ToolCard)
        child = card.children[f"s{card.id}"]
        assert isinstance(child, View)
        assert said(child) == [("user", f"for {card.id}")] * 2


def test_a_compaction_stands_apart() -> None:
    """A compaction's own prompt, reply and calls stand in its card; its summary is shown as one."""
    summary = user("so far: …")
    view = show(*OPENING, MessageStart(EMPTY), *text(0, "one"), MessageEnd(assistant("one")), RequestEnd(), TurnEnd())
    begin = CompactionBegin("context", "summarize", 900, 3)
    exchange: list[Event] = [*whole(user("summarise")), RequestBegin(), MessageStart(EMPTY), *text(0, "so far")]
    show(begin, *exchange, view=view)
    assert view.activity == "compacting"
    show(MessageEnd(assistant("so far")), TokenUsage(Usage(0, 9, 9), Usage(0, 9, 9)), RequestEnd(), view=view)
    show(CompactionEnd("context", "summarize", summary=summary), TurnStart(1), *whole(summary), view=view)
    assert said(view)[3:] == [("compaction", "completed"), ("turn", "1"), ("summary", "so far: …")]
    (card,) = [item for item in view.items if isinstance(item, CompactionCard)]
    assert isinstance(card.inner, View)
    assert said(card.inner) == [("user", "summarise"), ("text", "so far")]
    assert view.usage == Usage(0, 9, 9)


def test_a_retry_inside_a_compaction() -> None:
    """A failed attempt of a compaction is taken back inside its card, and the wait is the screen's."""
    view = show(
        AgentStart(), CompactionBegin("manual", "summarize"), RequestBegin(), MessageStart(EMPTY), *text(0, "x")
    )
    view.feed(RequestEnd("retryable", 1, 2000, "network", "gone"), 50)
    (card,) = view.items
    assert isinstance(card, CompactionCard)
    assert card.inner.retry is not None
    assert card.inner.retry.seconds_left(51) == 1
    view.feed(RequestBegin(2), 52)
    assert card.inner.items == []
    assert card.inner.retry is None


@attrs.frozen
class Notification(CustomMessage):
    role: ClassVar[str] = "notification"
    words: str


def test_what_is_no_text() -> None:
    """Custom messages and data are bubbles that carry their value; a provider's own empty block is not shown."""
    image = InlineData("AAAA", "image/png")
    view = show(
        *whole(Notification("disk full")), RequestBegin(), MessageStart(EMPTY), MessageUpdate(BlockAdded(0, image))
    )
    show(MessageUpdate(BlockAdded(1, Text("", {"server": 1}))), view=view)
    assert [item.content for item in view.items if isinstance(item, Bubble)] == [Notification("disk full"), image]


def test_notices() -> None:
    """Hooks, servers that failed and how a run ended are told beside the conversation."""
    view = show(AgentStart(), McpConnectBegin(("db", "web")))
    assert view.activity == "connecting"
    servers = (
        McpServerStatus("db", "stdio", "fatal", 5, error_code="connect_failed", error_message="no such file"),
        McpServerStatus("web", "http", "completed", 5),
    )
    show(
        McpConnectEnd("fatal", servers), Hook("pre_tool_use", "guard", "deny", "not here"), Foreign({"type": "x"}),
        Abort("user_abort", "enough"), AgentEnd((), "aborted", "user_abort", "enough"), view=view,
    )  # fmt: skip
    assert said(view) == [
        ("mcp", "db: no such file"),
        ("hook", "pre_tool_use hook guard: deny: not here"),
        ("aborted", "enough"),
    ]
    assert not view.can_retry


def test_a_trace_without_partials() -> None:
    """Whole blocks, as a decoded trace has them, show the same as the stream did."""
    streamed = show(*OPENING, MessageStart(EMPTY), *text(0, "hi"), *call(1, "c", "f", "{}"))
    blocks = [MessageUpdate(BlockAdded(0, Text("hi"))), MessageUpdate(BlockAdded(1, ToolCall("c", "f", "{}")))]
    whole_blocks = show(*OPENING, MessageStart(EMPTY), *blocks)
    bare = show(*OPENING, MessageStart(EMPTY), MessageEnd(assistant("hi", ToolCall("c", "f", "{}"))))
    assert said(streamed) == said(whole_blocks) == said(bare)
    card = bare.items[-1]
    assert isinstance(card, ToolCard)
    assert card.arguments == "{}"


def test_messages_alone() -> None:
    """A conversation of which only messages are known shows its results on the cards of their calls."""
    call_, result = ToolCall("c", "f", "{}"), ToolResultMessage("c", "f", "no", is_error=True, stop_reason="fatal")
    view = show(*whole(user("go")), *whole(assistant(call_)), *whole(result))
    assert said(view) == [("user", "go"), ("card", "f", "locked")]
    card = view.items[-1]
    assert isinstance(card, ToolCard)
    assert (card.outcome, card.result) == ("failed", ToolResult("no", is_error=True))


def test_open_calls_run_without_their_reply() -> None:
    """A run that begins with calls of an earlier reply shows their cards all the same."""
    view = show(AgentStart(), TurnStart(0), ToolExecutionStart("c", "f", '{"a": 1}'))
    card = view.items[-1]
    assert isinstance(card, ToolCard)
    assert (card.name, card.arguments, card.state) == ("f", '{"a": 1}', "running")


def test_an_id_that_is_used_again() -> None:
    """A call with the id of one that has ended (of another run, say) gets a card of its own."""
    once: list[Event] = [ToolExecutionStart("c", "f", "{}"), ToolExecutionEnd("c", "f", ToolResult("x"))]
    assert said(show(*once, *once)) == [("card", "f", "locked")] * 2


def test_a_run_that_broke_off() -> None:
    """What a killed run left open does not go on in the next one, and neither does its attempt."""
    view = show(*OPENING, ToolExecutionStart("c", "f", "{}"), ApprovalRequest("d", "g", "{}"), McpConnectBegin(()))
    show(MessageUpdate(TextStart(0)), MessageUpdate(TextDelta(0, "half")), view=view)
    view.feed(AgentStart(), 50)
    assert (view.running, view.approvals, view.activity, view.elapsed(51)) == ({}, {}, "working", 1)
    show(TurnStart(0), RequestBegin(), view=view)
    assert ("text", "half") in said(view)


def test_any_order_is_borne() -> None:
    """Events in an order that no run has never raise: a screen shows what it can."""
    events: list[Event] = [
        *OPENING, MessageStart(EMPTY), *text(0, "a"), *call(1, "c", "f", "{}"), RequestEnd(),
        ToolExecutionStart("c", "f", "{}"), SubagentStarted("s", "c"), ChildEvent(("s",), AgentStart()),
        ToolExecutionEnd("c", "f", ToolResult("x")), CompactionBegin("manual", "discard"),
        CompactionEnd("manual", "discard"), AgentEnd(),
    ]  # fmt: skip
    for skip in range(len(events)):
        show(*events[skip:])
        show(*events[:skip], *events[skip + 1 :])
        show(*events[::-1][skip:])
    assert len(show(*events).items) == 5


def test_the_same_events_give_the_same_screen() -> None:
    """The reducer is a function of events and times: two views fed alike agree, keys included."""
    events = [*OPENING, MessageStart(EMPTY), *text(0, "a", "b"), *call(1, "c", "f", "{}")]
    first, second = show(*events), show(*events)
    assert said(first) == said(second)
    assert [item.key for item in first.items] == [item.key for item in second.items]
    assert len({item.key for item in first.items}) == len(first.items)


def test_a_long_text_is_exact_however_often_it_is_read() -> None:
    """Thousands of pieces join to the text, whether it is read once at the end or again and again."""
    pieces = [f"{n} " for n in range(5000)]
    read, unread = [show(*OPENING, MessageStart(EMPTY), MessageUpdate(TextStart(0))) for _ in range(2)]
    for n, piece in enumerate(pieces):
        for view in (read, unread):
            view.feed(MessageUpdate(TextDelta(0, piece)), 0)
        if n % 700 == 0:
            assert said(read)[-1] == ("text", "".join(pieces[: n + 1]))
    assert said(read)[-1] == said(unread)[-1] == ("text", "".join(pieces))


def test_a_piece_of_text_without_its_bubble_is_left_out() -> None:
    """After a hole in the stream a text delta may meet an open card, or nothing: it never raises, and changes nothing."""
    view = View()
    for opened in ([], [ToolCallStart(0, "c", "look")]):
        for delta in (*opened, TextDelta(1, "a"), ThinkingDelta(1, "b")):
            changes = view.feed(MessageUpdate(delta), 0.0)
            assert bool(changes) == isinstance(delta, ToolCallStart)
