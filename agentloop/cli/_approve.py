"""`--approve`: who decides whether a call may run. Asking is done in the terminal, one call at a time.

What is shown is what would run: every character that a terminal does not print stands as its JSON escape, and what was typed
before the question is thrown away. Anything but a clear yes runs nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread

from agentloop.approval import Approvals, Policy, Question
from agentloop.cli import UsageError
from agentloop.cli._streams import Output
from agentloop.errors import PolicyError

APPROVE_HELP: Final = (
    "who decides about calls: allow (the default: what is offered on the command line may run), ask (you, in the terminal),"
    " deny, or the file of a policy"
)
_SHOWN: Final = 2_000
"""Characters of the arguments that a question shows at first."""
_CHOICES: Final = {"y": "yes", "yes": "yes", "n": "no", "no": "no", "a": "always", "always": "always", "v": "view"}


class Pausing(Protocol):
    """What draws the run, and lets the terminal be for a while."""

    def paused(self) -> AbstractContextManager[None]:
        """A block in which it draws nothing."""
        ...


def add_approve_argument(parser: argparse.ArgumentParser) -> None:
    """The argument `--approve`."""
    parser.add_argument("--approve", default="allow", metavar="allow|ask|deny|FILE.toml", help=APPROVE_HELP)


def choose_approval(words: str, output: Output, printer: Pausing, *, on_screen: bool) -> Any:
    """The `Config.approve` of `--approve`; None: all calls run. Raises `UsageError` for a policy that cannot be read."""
    if words == "allow":
        return None
    policy = Policy(default=words) if words in ("ask", "deny") else _policy(words)
    if not _may_ask(policy):
        return policy
    if not _somebody_is_there(output, on_screen):
        output.note("approval: there is no terminal to ask in, so every call that would be asked about is denied\n")
        return policy
    terminal = Terminal(output, printer, on_screen=output.live and on_screen)
    approvals = Approvals(policy, on_question=lambda question: terminal.ask(question, approvals))
    return approvals


def _policy(name: str) -> Policy:
    try:
        return Policy.from_toml(Path(name))
    except PolicyError as error:
        raise UsageError(f"--approve {error}") from None
    except OSError as error:
        raise UsageError(
            f"--approve: expected allow, ask, deny or the file of a policy, got {name} ({error.strerror})"
        ) from None


def _may_ask(policy: Policy) -> bool:
    return "ask" in (policy.default, *[rule.verdict for rule in policy.rules])


def _somebody_is_there(output: Output, on_screen: bool) -> bool:
    """Whether a person can see a question and type an answer."""
    sees = (output.live and on_screen) or sys.stderr.isatty()
    return sees and sys.stdin is not None and sys.stdin.isatty()


class Terminal:
    """Asks in the terminal."""

    def __init__(self, output: Output, printer: Pausing, *, on_screen: bool) -> None:
        self._output = output
        self._printer = printer
        self._on_screen = on_screen
        self._turn = anyio.Lock()
        self._closed = False  # nobody types any more

    async def ask(self, question: Question, approvals: Approvals) -> None:
        """Ask about one call, and answer it. Cancelled (Ctrl-C), it leaves the terminal as it was."""
        async with self._turn:
            with self._printer.paused():
                choice = "no" if self._closed else await self._choice(question)
            approvals.answer(question, "deny" if choice == "no" else "allow", always=choice == "always")

    async def _choice(self, question: Question) -> str:
        self._say(shown(question))
        while True:
            _throw_away_what_was_typed()
            self._say(f"run it? [y]es, [n]o, [a]lways {visible(question.tool_name)} in this run: ")
            try:
                line = await _line()
            except BaseException:
                self._say("\n")
                raise
            if line is None:
                self._closed = True
                self._say("\nno answer: denied\n")
                return "no"
            choice = _CHOICES.get(line.strip().lower())
            if choice == "view":
                self._say(shown(question, whole=True))
            elif choice is not None:
                return choice

    def _say(self, text: str) -> None:
        if self._on_screen:
            self._output.write(text)
            self._output.flush()
        else:
            self._output.note(text)


def shown(question: Question, *, whole: bool = False) -> str:
    """The question's lines: where it comes from, the tool, the arguments, the rule that asks."""
    arguments = question.arguments
    text = visible(arguments if whole else arguments[:_SHOWN])
    if not whole and len(arguments) > _SHOWN:
        text += f"… ({len(arguments):,} characters, v shows all)"
    origin = "".join([f"{visible(id)}: " for id in question.origin])
    rule = f"  ({visible(question.reason)})\n" if question.reason and question.reason.startswith("rules[") else ""
    return f"? {origin}{visible(question.tool_name)} {text}\n{rule}"


def visible(text: str) -> str:
    """The text in one line, with each character that is not printed as itself written as its JSON escape."""
    if text.isprintable():
        return text
    return "".join([character if character.isprintable() else _escape(character) for character in text])


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join([f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2)])


def _throw_away_what_was_typed() -> None:
    try:
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except (ImportError, OSError, ValueError):  # no such terminal: then what was typed counts
        pass


async def _line() -> str | None:
    """The next line that is typed; None: the input has ended. Cancellable."""
    if os.name == "nt":
        text = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return text or None
    descriptor = sys.stdin.fileno()
    await anyio.wait_readable(descriptor)
    data = os.read(descriptor, 4_096)  # a terminal gives one line
    return data.decode("utf-8", "replace") if data else None
