"""What a run looks like: live in a terminal, and plain in a pipe."""

from __future__ import annotations

import pytest

from agentloop.cli.plain import PlainPrinter
from agentloop.cli.terminal import TerminalPrinter
from agentloop.events import (
    AgentEnd,
    AgentStart,
    ApprovalRequest,
    ChildEvent,
    CompactionBegin,
    CompactionEnd,
    Event,
    Hook,
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
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import AssistantMessage, Text, Thinking, ToolCall, ToolResult, Usage, assistant, user
from agentloop.view import View

from .screens import FakeTerminal

EMPTY = AssistantMessage(())


class Live:
    """A terminal printer before a fake terminal, with a clock of its own."""

    def __init__(self, columns: int = 40, rows: int = 20, **options: bool) -> None:
        self.terminal = FakeTerminal(columns)
        self.view = View()
        self.printer = TerminalPrinter(self.terminal.write, lambda: (columns, rows), **options)  # type: ignore[arg-type]
        self.now = 0.0

    def show(self, *events: Event) -> Live:
        """Feed events, half a second apart, so that each is drawn."""
        for event in events:
            self.now += 0.5
            self.printer.show(self.view, self.view.feed(event, self.now), self.now)
        return self

    def close(self) -> str:
        self.printer.close(self.view, self.now)
        assert self.terminal.cursor_shown
        return self.terminal.text


def plain(*events: Event, prompts: bool = False) -> tuple[str, str]:
    """What plain output writes and notes."""
    written: list[str] = []
    noted: list[str] = []
    view, printer = View(), PlainPrinter(written.append, noted.append, prompts=prompts, prices=(1, 2, 0.5))
    for n, event in enumerate(events):
        printer.show(view, view.feed(event, n / 10), n / 10)
    printer.close(view, len(events) / 10)
    return "".join(written), "".join(noted)


def text(index: int, *pieces: str) -> list[Event]:
    return [
        MessageUpdate(TextStart(index)),
        *[MessageUpdate(TextDelta(index, piece)) for piece in pieces],
        MessageUpdate(TextEnd(index, Text("".join(pieces)))),
    ]


def thinking(index: int, *pieces: str) -> list[Event]:
    return [
        MessageUpdate(ThinkingStart(index)),
        *[MessageUpdate(ThinkingDelta(index, piece)) for piece in pieces],
        MessageUpdate(ThinkingEnd(index, Thinking("".join(pieces)))),
    ]


def call(index: int, id: str, name: str, arguments: str) -> list[Event]:
    return [
        MessageUpdate(ToolCallStart(index, id, name)),
        MessageUpdate(ToolCallEnd(index, ToolCall(id, name, arguments))),
    ]


OPENING: list[Event] = [
    AgentStart(), TurnStart(0), MessageStart(user("go")), MessageEnd(user("go")), RequestBegin(), MessageStart(EMPTY),
]  # fmt: skip
RUN: list[Event] = [
    *OPENING,
    *thinking(0, "Let me ", "see."),
    *call(1, "c", "add", '{"a": 1}'),
    MessageEnd(assistant(ToolCall("c", "add"))),
    TokenUsage(Usage(3, 5, 2), Usage(3, 5, 2)),
    RequestEnd(),
    ToolExecutionStart("c", "add", '{"a": 1}'),
    ToolExecutionUpdate("c", "add", ToolResult("half way")),
    ToolExecutionEnd("c", "add", ToolResult("three")),
    TurnEnd(),
    TurnStart(1),
    RequestBegin(),
    MessageStart(EMPTY),
    *text(0, "It is ", "three.\n", "Done."),
    MessageEnd(assistant("It is three.\nDone.")),
    RequestEnd(),
    TurnEnd(),
    AgentEnd(usage=Usage(3, 5, 2)),
]


def test_a_run_in_a_terminal() -> None:
    """Thinking, the locked card, the turn's line, the text and how it ended stay; nothing that moved does."""
    live = Live().show(*RUN)
    assert live.close() == (
        "Let me see.\n"
        '✓ add {"a": 1} · 1.0 s\n'
        "  three\n"
        "── turn 2 ─────────────────────────────\n"
        "It is three.\n"
        "Done.\n"
        "completed · 2 turns · 15 s · 8 tokens …"
    )


def test_a_run_in_a_pipe() -> None:
    """Plain output has the conversation in one stream, and what is about the run in the other; no escapes in either."""
    written, noted = plain(*RUN)
    assert written == (
        'thinking: Let me see.\n[add {"a": 1}]\n[add] done\n  three\n--- turn 2 ---\nIt is three.\nDone.\n'
    )
    assert noted == "completed · 2 turns · 3.0 s · 8 tokens in (3 cached), 2 out · 0.0000\n"
    assert "\x1b" not in written + noted


def test_what_moves() -> None:
    """While it goes on, the area shows the open line, open cards with progress, and a status line."""
    live = Live().show(*OPENING)
    assert "waiting for the model" in live.terminal.rows[-1]
    live.show(*text(0, "Hel")[:2])
    assert live.terminal.rows[-2] == "Hel"
    assert "writing" in live.terminal.rows[-1]
    live.show(*text(0, "Hel")[2:], *call(1, "c", "add", "{}"), *call(2, "d", "rm", "{}"), RequestEnd())
    assert live.terminal.rows[:3] == ["Hel", "· add", "· rm"]
    live.show(ToolExecutionStart("c", "add", "{}"), ToolExecutionUpdate("c", "add", ToolResult("10 %")))
    live.show(ApprovalRequest("d", "rm", '{"path": "x"}'))
    assert [row.strip() for row in live.terminal.rows[2:4]] == ["10 %", '? rm {"path": "x"}']
    assert "add · 1.0 s" in live.terminal.rows[1]
    assert "waiting for approval" in live.terminal.rows[-1]
    live.show(ToolExecutionUpdate("c", "add", None, "line one\nline two\n"))
    assert live.view.running["c"].output == "line one\nline two\n"


def test_nested_runs_are_shown_on_their_card() -> None:
    """A nested run is a line of its parent's card, while it runs and after; its text never mixes with the parent's."""
    live = Live().show(*OPENING, ToolExecutionStart("c", "ask", "{}"), SubagentStarted("child", "c"))
    live.show(*[ChildEvent(("child",), event) for event in [*OPENING, *text(0, "secret")[:2]]])
    assert "  child: writing" in live.terminal.rows
    live.show(ChildEvent(("child",), AgentEnd()), ToolExecutionEnd("c", "ask", ToolResult("ok")))
    live.show(AgentEnd())
    text_ = live.close()
    assert "  child: completed" in text_
    assert "secret" not in text_
    assert "secret" not in plain(*OPENING, ToolExecutionStart("c", "ask", "{}"), SubagentStarted("child", "c"))[0]


def test_a_retry_counts_down() -> None:
    """The wait is shown with its reason, and the reply that failed is said to be void once the next attempt begins."""
    failed: list[Event] = [
        *OPENING, *text(0, "half a reply\n"), MessageEnd(assistant("half a reply", stop_reason="retryable")),
        RequestEnd("retryable", 1, 4000, "overloaded", "try \x1b[31mlater"),
    ]  # fmt: skip
    live = Live(60).show(*failed)
    assert "try ␛[31mlater · attempt 2 in 4 s" in live.terminal.rows[-1]
    live.now += 3
    live.printer.tick(live.view, live.now)
    assert "attempt 2 in 1 s" in live.terminal.rows[-1]
    live.show(RequestBegin(2))
    assert live.terminal.rows[:2] == ["half a reply", "the reply above failed and is void"]
    written, noted = plain(*failed, RequestBegin(2))
    assert written == "half a reply\n\n"
    assert noted.splitlines()[:2] == ["try ␛[31mlater · attempt 2 in 4 s", "the reply above failed and is void"]


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (AgentEnd((), "fatal", "auth", "no key"), "fatal (auth): no key"),
        (AgentEnd((), "aborted", "user_abort", "enough"), "aborted (user_abort): enough"),
        (AgentEnd((), "retryable", "network", None), "retryable (network): no reason given"),
    ],
)
def test_how_it_ended(end: AgentEnd, line: str) -> None:
    """A run that did not complete says why, in one line, in both kinds of output."""
    assert line in Live(80).show(*OPENING, end).close().splitlines()
    assert line in plain(*OPENING, end)[1].splitlines()


@pytest.mark.parametrize(
    ("result", "is_error", "stop", "code", "words"),
    [
        ("boom", True, "fatal", "tool_error", "failed"),
        ("slow", True, "fatal", "tool_timeout", "failed: tool_timeout"),
        ("no", True, "aborted", "blocked", "stopped: blocked"),
    ],
)
def test_how_a_card_ended(result: str, is_error: bool, stop: str, code: str, words: str) -> None:
    """A card that is locked says how it went, and why where there is more to say than the result does."""
    events: list[Event] = [
        ToolExecutionStart("c", "f", "{}"), ToolExecutionEnd("c", "f", ToolResult(result), is_error, stop, code)  # type: ignore[arg-type]
    ]  # fmt: skip
    assert f"[f] {words}\n  {result}\n" in plain(*events)[0]
    assert f"f · {words} · 0.5 s" in Live(60).show(*events).close()


def test_long_text_wraps_and_goes_up() -> None:
    """Words are not torn, rows that are full become final, wide characters are counted as wide."""
    live = Live(20).show(*OPENING, *text(0, "one two three four five six seven 漢字漢字漢字漢字漢字 end"))
    live.show(AgentEnd())
    assert live.close().splitlines()[:4] == ["one two three four", "five six seven", "漢字漢字漢字漢字漢", "字 end"]


def test_many_cards_fit_on_a_low_screen() -> None:
    """The area is never higher than the screen, however many calls run."""
    live = Live(40, rows=8).show(*[ToolExecutionStart(f"c{n}", "f", "{}") for n in range(20)])
    assert len(live.terminal.rows) <= 8
    assert "  and 16 more" in live.terminal.rows


def test_hostile_text_is_harmless() -> None:
    """Escapes in text, arguments, names, results and reasons are shown, not obeyed; the fake terminal would fail."""
    bad = "\x1b[2J\x1b]0;title\x07\x9b31m\r"
    events: list[Event] = [
        *OPENING, *thinking(0, bad), *text(1, bad, bad), *call(2, "c", bad, bad), ToolExecutionStart("c", bad, bad),
        ToolExecutionUpdate("c", bad, ToolResult(bad)), ToolExecutionUpdate("c", bad, None, bad),
        ToolExecutionEnd("c", bad, ToolResult(bad), True, "fatal", "tool_error"),
        Hook("pre_tool_use", bad, "deny", bad), AgentEnd((), "fatal", "auth", bad),
    ]  # fmt: skip
    assert "␛[2J␛]0;title␇" in Live(200).show(*events).close()
    written, noted = plain(*events, prompts=True)
    assert "\x1b" not in written + noted
    assert "\x9b" not in written + noted
    assert "\r" not in written + noted


def test_prompts_are_shown_on_request() -> None:
    """A replay shows the user's side as well."""
    events: list[Event] = [*OPENING[:4], AgentEnd()]
    assert "> go" in Live(prompts=True).show(*events).close()
    assert "go" not in Live().show(*events).close()
    assert plain(*events, prompts=True)[0] == "> go\n"


def test_compaction_and_hooks_are_notes() -> None:
    """A compaction's own exchange is not shown, that there was one is."""
    events: list[Event] = [
        AgentStart(), CompactionBegin("context", "summarize"), RequestBegin(), MessageStart(EMPTY), *text(0, "private"),
        CompactionEnd("context", "summarize"), Hook("stop", "guard", "continue", "not yet"), AgentEnd(),
    ]  # fmt: skip
    shown = Live(60).show(*events).close()
    assert "compaction (context): completed" in shown
    assert "hook: stop hook guard: continue: not yet" in shown
    assert "private" not in shown
    written, noted = plain(*events)
    assert written == ""
    assert "compaction (context): begins\ncompaction (context): completed\nhook: stop hook guard" in noted


def test_a_result_is_shown_in_part() -> None:
    """A card shows the first lines of a result and counts the rest; blocks that are no text are named."""
    many = ToolResult("\n".join(f"line {n}" for n in range(100)))
    written, _ = plain(ToolExecutionStart("c", "f", "{}"), ToolExecutionEnd("c", "f", many))
    assert written.endswith("  line 0\n  line 1\n  line 2\n  line 3\n  … 96 more lines\n")


def test_without_colours() -> None:
    """Without colours no style is written; the cursor's movements stay."""
    live = Live(colours=False).show(*RUN)
    live.close()
    assert "m" not in {
        token[-1] for token in live.terminal.raw.split("\x1b")[1:] if token[0] == "[" and token[1:2].isdigit()
    }


def test_few_drawings() -> None:
    """A thousand deltas within a tenth of a second are drawn once or twice, not a thousand times."""
    live = Live(80)
    live.show(*OPENING, MessageUpdate(TextStart(0)))
    before = live.terminal.raw.count("\x1b[J")
    for n in range(1000):
        now = live.now + n / 10_000
        live.printer.show(live.view, live.view.feed(MessageUpdate(TextDelta(0, "x")), now), now)
    assert live.terminal.raw.count("\x1b[J") - before <= 2
