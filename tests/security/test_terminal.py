"""What a stranger's text can do to a terminal: nothing, wherever it stands and whichever command shows it."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentloop.approval import Question
from agentloop.cli import main
from agentloop.cli._approve import shown
from agentloop.cli._files import events_of
from agentloop.cli._streams import JsonPrinter
from agentloop.cli._text import safe_json, wrapped
from agentloop.cli.plain import PlainPrinter
from agentloop.cli.run import _set_up_log
from agentloop.cli.terminal import TerminalPrinter
from agentloop.events import (
    AgentEnd,
    AgentStart,
    ApprovalRequest,
    Event,
    McpConnectBegin,
    McpConnectEnd,
    McpServerStatus,
    RequestBegin,
    RequestEnd,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnStart,
)
from agentloop.messages import ToolResult
from agentloop.view import View

EVIL = "\x1b]0;t\x07\x1b[2J\x9b2J\u202e\x7f\r\x00q"
COMMANDS = set("\x1b\x07\x9b\u202e\x7f\r\x00")
OURS = re.compile(r"\x1b\[\?25[lh]|\x1b\[J|\x1b\[\d*[Am]|\r(?=\x1b\[)")
RUN = Path(__file__).parents[2] / "fuzz/corpus/jsonl/run"


def harmless(text: str) -> bool:
    return not COMMANDS & set(OURS.sub("", text))


def strings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all strings in a JSON value."""
    if isinstance(value, str):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from strings(item, (*path, key))


def spoilt(record: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    copy: Any = json.loads(json.dumps(record))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] += EVIL
    return copy  # type: ignore[no-any-return]


LINES = [json.loads(line) for line in RUN.read_text().splitlines()]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_every_text_of_a_trace_in_every_command(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters, escapes and direction marks in any string of any record: no command prints one."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    for path in strings(LINES[number]):
        changed = [*LINES[:number], spoilt(LINES[number], path), *LINES[number + 1 :]]
        bad.write_text("".join(json.dumps(line) + "\n" for line in changed))
        for words in (
            ["replay"],
            ["check"],
            ["check", "--json"],
            ["diff", "--ids", str(good)],
            ["resume"],
            ["resume", "--json"],
        ):
            main([*words, str(bad)])
            printed = capsys.readouterr()
            assert harmless(printed.out), (words, path)
            assert harmless(printed.err), (words, path)
        assert harmless(drawn([event for event, _ in events_of([str(bad)])])), path


def drawn(events: list[Event]) -> str:
    """What both printers write for the events."""
    pieces: list[str] = []
    for printer in (
        TerminalPrinter(pieces.append, lambda: (60, 20), prompts=True),
        PlainPrinter(pieces.append, pieces.append, prompts=True),
    ):
        view = View()
        for now, event in enumerate(events):
            printer.show(view, view.feed(event, float(now)), float(now))
        printer.close(view, float(len(events)))
    return "".join(pieces)


def test_names_codes_and_words_of_errors() -> None:
    """Names of tools and MCP servers, error texts and error codes: shown, and harmless, in a terminal and in a pipe."""
    result = McpServerStatus(EVIL, "stdio", "fatal", 1, error_code="connect_failed", error_message=EVIL)
    printed = drawn([
        AgentStart(),
        TurnStart(0),
        McpConnectBegin([EVIL]),
        McpConnectEnd("fatal", [result], "connect_failed", EVIL),
        RequestBegin(1),
        RequestEnd("retryable", 1, 2_000, EVIL, EVIL),
        ApprovalRequest("c" + EVIL, EVIL, EVIL),
        ToolExecutionStart("c" + EVIL, EVIL, EVIL),
        ToolExecutionEnd("c" + EVIL, EVIL, ToolResult(EVIL), True, "fatal", EVIL),
        AgentEnd((), "fatal", EVIL, EVIL),
    ])  # fmt: skip
    assert "2J" in printed
    assert harmless(printed)


def test_a_question_shows_everything_and_obeys_nothing() -> None:
    """A question of approval writes what would move, hide or turn round the text as escapes: what is seen is what runs."""
    text = shown(Question("c", "run" + EVIL, '{"a": "' + EVIL + '\u200b"}', (EVIL,), "rules[0]: " + EVIL))
    assert harmless(text)
    assert "\\u001b" in text
    assert "\\u200b" in text
    assert text.count("\n") == 2


def test_names_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose name is an escape sequence: its name is said harmlessly, as is that of one which is not there."""
    file = tmp_path / "a\x1b[2J\x9b.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    for words in (["check", str(file)], ["check", f"{file}x"], ["replay", f"{file}x"], ["resume", f"{file}x"]):
        main(words)
        printed = capsys.readouterr()
        assert "a" in printed.out + printed.err
        assert harmless(printed.out + printed.err)


class _Watched(io.BytesIO):
    def __init__(self, watched: bool) -> None:
        super().__init__()
        self._watched = watched
        self.buffer = self

    def isatty(self) -> bool:
        return self._watched


@pytest.mark.parametrize("watched", [True, False])
def test_records_that_a_person_watches(watched: bool) -> None:
    """`run --json` in a terminal writes what a terminal obeys as JSON's own escapes; the records are the same."""
    out: Any = _Watched(watched)
    event = AgentEnd((), "fatal", "network", EVIL)
    JsonPrinter(out).show(event)
    text = out.getvalue().decode()
    assert json.loads(text)["payload"]["error_message"] == EVIL
    assert harmless(text) is watched


def test_escapes_of_json_keep_its_value() -> None:
    """What is escaped stays the same value, for every character that is."""
    text = "".join(map(chr, [*range(1, 0xA1), 0x202E, 0x2066, 0x1F600]))
    line = json.dumps(text, ensure_ascii=False)
    assert json.loads(safe_json(line)) == text
    assert harmless(safe_json(line))


def test_the_log_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """`--verbose`: log records come without commands to the terminal, and with their secrets masked."""
    log = logging.getLogger("agentloop")
    before = list(log.handlers), log.level
    try:
        _set_up_log(verbose=True)
        logging.getLogger("agentloop.x").warning("tool %s failed", EVIL + " sk-ant-" + "a1b2" * 8)
    finally:
        log.handlers[:], log.level = before
    printed = capsys.readouterr().err
    assert harmless(printed)
    assert "[masked anthropic key]" in printed


def test_a_line_that_never_fills_its_row() -> None:
    """Marks that take no column make rows all the same: a reply of nothing else is drawn in linear time."""
    rows = wrapped("\u0301" * 10_000, 80)
    assert max(map(len, rows)) <= 16 * 80
    assert "".join(rows) == "\u0301" * 10_000
