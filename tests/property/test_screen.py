"""Laws of the screen: what it shows follows from the events, its changes tell everything, and no order of events breaks it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentloop.cli._text import safe
from agentloop.cli.plain import PlainPrinter
from agentloop.cli.terminal import TerminalPrinter
from agentloop.events import (
    AgentEnd,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    MessageEnd,
    RequestBegin,
    RequestEnd,
    ToolExecutionEnd,
    TurnStart,
)
from agentloop.messages import AssistantMessage, Text, Thinking, UserMessage
from agentloop.omni.codec import trace_view
from agentloop.testing.strategies import streams
from agentloop.view import Bubble, Change, CompactionCard, Notice, Separator, ToolCard, View


def show(events: list[Event]) -> View:
    view = View()
    for n, event in enumerate(events):
        view.feed(event, float(n))
    return view


def conversation(events: list[Event]) -> list[tuple[str, str]]:
    """A plain reading of the same: prompts and replies, those of an attempt until the turn's next one begins."""
    said: list[tuple[str, str]] = []
    attempt: int | None = None
    compacting = False
    for event in events:
        match event:
            case CompactionBegin() | CompactionEnd():
                compacting = isinstance(event, CompactionBegin)
            case _ if compacting:
                pass
            case TurnStart() | RequestEnd(status="completed"):
                attempt = None
            case RequestBegin():
                del said[len(said) if attempt is None else attempt :]
                attempt = len(said)
            case MessageEnd(message=UserMessage() as message):
                said.append(("user", message.text))
            case MessageEnd(message=AssistantMessage() as message):
                said += [("text", block.text) for block in message.content if isinstance(block, Text)]
                said += [("thinking", block.thinking) for block in message.content if isinstance(block, Thinking)]
    return sorted(pair for pair in said if pair[1])


def shown(view: View) -> list[tuple[str, str]]:
    bubbles = [item for item in view.items if isinstance(item, Bubble) and item.kind not in ("custom", "data")]
    pairs = [("user" if bubble.kind == "summary" else bubble.kind, bubble.text) for bubble in bubbles]
    return sorted(pair for pair in pairs if pair[1])


@given(streams(foreign=True, depth=2))
def test_a_run_is_shown_whole(events: list[Event]) -> None:
    """At the end every prompt and every reply that counts is shown, exactly, and nothing of an attempt that does not."""
    assert shown(show(events)) == conversation(events)


@given(streams(foreign=True, depth=2))
def test_nothing_is_left_open(events: list[Event]) -> None:
    """When a run has ended, every bubble is closed, every card of a call that ended is locked, and nothing goes on."""
    view = show(events)
    assert view.activity == "idle"
    assert (view.running, view.approvals, view.retry) == ({}, {}, None)
    assert not [item for item in view.items if isinstance(item, Bubble) and item.open]
    ended = {event.tool_call_id for event in events if isinstance(event, ToolExecutionEnd)}
    cards = [item for item in view.items if isinstance(item, ToolCard)]
    assert {card.id for card in cards if card.state == "locked"} >= {card.id for card in cards} & ended
    (end,) = [event for event in events if isinstance(event, AgentEnd)]
    assert view.usage == end.usage
    assert view.can_retry == (end.stop_reason == "retryable")


@given(streams(foreign=True, depth=2))
def test_changes_tell_everything(events: list[Event]) -> None:
    """Who only follows the changes has the same items, in the same order, with the same texts."""
    view = View()
    mirror: dict[int, list[str]] = {}
    for n, event in enumerate(events):
        for change in view.feed(event, float(n)):
            if not change.origin:
                follow(mirror, change)
    assert list(mirror) == [item.key for item in view.items]
    for item in view.items:
        if isinstance(item, Bubble):
            assert "".join(mirror[item.key]) == item.text


def follow(mirror: dict[int, list[str]], change: Change) -> None:
    key = change.item.key
    if change.kind == "added":
        assert key not in mirror
        mirror[key] = [change.item.text if isinstance(change.item, Bubble) else ""]
    elif change.kind == "dropped":
        del mirror[key]
    else:
        assert key in mirror
        mirror[key].append(change.text if change.kind == "grew" else "")


def outline(view: View) -> list[Any]:
    """The transcript without what a trace leaves out."""
    lines: list[Any] = []
    for item in view.items:
        match item:
            case Bubble(kind=kind):
                lines += [(kind, item.text)] if item.text or kind in ("custom", "data", "user") else []
            case ToolCard(name=name, state=state):
                lines.append((name, state, item.outcome, item.arguments))
            case Separator(index=index):
                lines.append(index)
            case CompactionCard(status=status):
                lines.append((status, outline(item.inner) if isinstance(item.inner, View) else None))
            case Notice(text=text):
                lines.append(text)
    return lines


@given(streams(depth=0))
def test_a_trace_shows_what_the_stream_showed(events: list[Event]) -> None:
    """A trace, which has no fragments and no progress, gives the same transcript; but for the end that it leaves out."""
    streamed, traced = outline(show(events)), outline(show(list(trace_view(events))))
    assert traced in (streamed, streamed[:-1])


@given(streams(foreign=True, depth=2), st.data())
def test_no_order_breaks_it(events: list[Event], data: st.DataObject) -> None:
    """A stream with holes, or in another order, never raises."""
    kept = data.draw(st.lists(st.sampled_from(events), max_size=60))
    start = data.draw(st.integers(0, len(events)))
    for broken in (kept, events[start:], events[start:] + events[:start]):
        show(broken)


@given(streams(foreign=True, depth=2), st.integers(4, 80), st.integers(2, 30))
def test_whatever_is_shown_can_be_printed(events: list[Event], columns: int, rows: int) -> None:
    """Both printers take every stream; neither lets a control character through, and the plain one shows every reply."""
    view = View()
    terminal: list[str] = []
    written: list[str] = []
    noted: list[str] = []
    printers = (
        TerminalPrinter(terminal.append, lambda: (columns, rows), colours=False, prompts=True),
        PlainPrinter(written.append, noted.append, prompts=True),
    )
    for n, event in enumerate(events):
        changes = view.feed(event, float(n))
        for printer in printers:
            printer.show(view, changes, float(n))
    for printer in printers:
        printer.close(view, float(len(events)))
    plain = "".join(written)
    for text in (plain, "".join(noted)):
        assert not [character for character in text if character < " " and character not in "\n\t"]
    for kind, text in conversation(events):
        assert kind == "user" or safe(text) in plain
    obeyed = ("\x1b[J", "\x1b[?25l", "\x1b[?25h", *[f"\x1b[{n}A" for n in range(1, rows + 1)])
    left = "".join(terminal)
    for sequence in obeyed:
        left = left.replace(sequence, "")
    assert "\x1b" not in left


@given(streams(depth=2))
def test_children_stay_in_their_cards(events: list[Event]) -> None:
    """An event of a nested run changes the screen of that run, and of the run itself only the card that holds it."""
    view = View()
    for n, event in enumerate(events):
        before = len(view.items)
        changes = view.feed(event, float(n))
        if isinstance(event, ChildEvent):
            assert len(view.items) == before
            assert all(
                change.origin or (change.kind == "changed" and isinstance(change.item, ToolCard)) for change in changes
            )
            assert all(change.origin == event.origin[: len(change.origin)] for change in changes)
