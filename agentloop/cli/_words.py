"""What the screens say about cards, runs and failures: the same words in a terminal and in plain output."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.cli._text import counted, one_line, safe, seconds
from agentloop.events import AgentEnd
from agentloop.messages import Text, Usage
from agentloop.view import Activity, Screen, ToolCard

ACTIVITIES: dict[Activity, str] = {
    "idle": "idle",
    "working": "working",
    "connecting": "connecting to tool servers",
    "waiting_for_model": "waiting for the model",
    "thinking": "thinking",
    "writing": "writing",
    "calling": "writing a call",
    "waiting_for_approval": "waiting for approval",
    "running_tools": "running",
    "waiting_to_retry": "waiting to try again",
    "compacting": "compacting the context",
}
RESULT_LINES = 4
"""Lines of a result that a card shows."""


def doing_words(screen: Screen) -> str:
    """What goes on: `waiting for the model`, `running read_file, shell`, …"""
    words = ACTIVITIES[screen.activity]
    if screen.activity != "running_tools":
        return words
    return f"{words} {', '.join(dict.fromkeys(one_line(card.name) for card in screen.running.values()))}"


def interrupted_words(screen: Screen) -> str:
    """Where a record ends that has no end of its run; "" where it has one, and where no run is in it."""
    if screen.activity == "idle":
        return ""
    turn = "before the first turn" if screen.turn is None else f"in turn {screen.turn + 1}"
    return f"interrupted: the record ends {turn} ({doing_words(screen)}); the run has no end in it"


def call_words(card: ToolCard) -> str:
    """`name {"argument": "value"}` in one line; no arguments are not shown."""
    arguments = one_line(card.arguments)
    name = one_line(card.name)
    return name if arguments in ("", "{}") else f"{name} {arguments}"


def outcome_words(card: ToolCard) -> str:
    """How a locked card ended: `done`, `failed: tool_timeout`, `denied`, …"""
    if card.outcome == "done":
        return "done"
    if card.decision in ("deny", "forbidden"):
        return "denied" if card.decision == "deny" else "forbidden"
    word = "stopped" if card.outcome == "stopped" else "failed"
    return word if card.error_code in (None, "tool_error", "aborted") else f"{word}: {card.error_code}"


def result_lines(card: ToolCard) -> list[str]:
    """The first lines of what a card has to show, and how many more there are."""
    content = () if card.result is None else card.result.content
    text = "\n".join(block.text if isinstance(block, Text) else f"[{block.type}]" for block in content)
    text = text or card.output
    lines = [line.expandtabs(4) for line in safe(text[:_SHOWN]).split("\n") if line.strip()]
    more = text.count("\n") + 1 - RESULT_LINES
    return lines if len(lines) <= RESULT_LINES else [*lines[:RESULT_LINES], f"… {counted(more, 'more line')}"]


_SHOWN = 20_000  # characters of a result that are looked at for its first lines


def usage_words(usage: Usage, prices: Sequence[float] | None = None) -> str:
    """`1,234 tokens in (1,000 cached), 56 out`, and what they cost by `prices` (input, output, cached; a million)."""
    cached = f" ({usage.cache_read:,} cached)" if usage.cache_read else ""
    words = f"{counted(usage.cache_read + usage.cache_write, 'token')} in{cached}, {usage.output:,} out"
    if prices is None:
        return words
    price_in, price_out, price_cached = prices
    cost = usage.cache_write * price_in + usage.output * price_out + usage.cache_read * price_cached
    return f"{words} · {cost / 1e6:.4f}"


def summary_words(screen: Screen, now: float, prices: Sequence[float] | None = None) -> str:
    """The last line of a run: how it ended, its turns, time and tokens."""
    if screen.started_at is None:
        return f"no run began · {usage_words(screen.usage, prices)}"  # messages without a life around them
    ended = "not finished" if screen.end is None else screen.end.stop_reason
    turns = counted(0 if screen.turn is None else screen.turn + 1, "turn")
    return " · ".join([ended, turns, seconds(screen.elapsed(now)), usage_words(screen.usage, prices)])


def retry_words(screen: Screen, now: float) -> str:
    """The countdown of a retry; "" when none is waited for."""
    if screen.retry is None:
        return ""
    why = one_line(screen.retry.error_message or screen.retry.error_code or "the request failed")
    return f"{why} · attempt {screen.retry.attempt} in {screen.retry.seconds_left(now):.0f} s"


def failure_words(end: AgentEnd | None) -> str:
    """Why a run did not complete, in a line: `fatal (auth): …`; "" when it did, and when it has no end."""
    if end is None or end.stop_reason == "completed":
        return ""
    code = f" ({end.error_code})" if end.error_code else ""
    return f"{end.stop_reason}{code}: {one_line(end.error_message or 'no reason given')}"
