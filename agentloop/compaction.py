"""When and how a context is compacted: summarised by the model, or dropped.

    Config(model=…, compaction=Summarize(when=ContextReaches.of_window(200_000)))

A trigger is a function of `CompactionState` that gives the reason to compact now, or None. The loop asks it after each turn
that the run goes on from, and once when the run would end; `agentloop.loop.compact` needs none. All values here may serve
many runs at once (`Manual` serves the one that it was made for).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from agentloop._marks import context_summary, is_context_summary, summary_text, tagged_summary
from agentloop.config import Compaction, CompactionState
from agentloop.context import Context
from agentloop.messages import AssistantMessage, UserMessage, user

__all__ = [
    "INSTRUCTIONS",
    "Availability",
    "ContextReaches",
    "Discard",
    "Manual",
    "Reason",
    "Summarize",
    "Trigger",
    "TurnsReach",
    "all_of",
    "any_of",
    "availability",
    "mid_task",
    "never",
]

Reason: TypeAlias = Literal["context", "turns", "manual"]
"""Why a context is compacted; it stands in the events."""

Trigger: TypeAlias = Callable[[CompactionState], Reason | None]
"""When a context is compacted: the reason to do it now, or None. What it raises ends the run (`callback_failed`)."""

Availability: TypeAlias = Literal["ok", "unsupported", "empty", "just_compacted"]
"""Whether a compaction by hand can do anything, and if not, why."""

INSTRUCTIONS: Final = """\
Stop working on the task for a moment and write a summary of this conversation. It takes the place of everything above: \
whoever goes on from it sees nothing else. Keep what the work depends on:
- what was asked for, in the words of the person where the words matter, and what was decided since;
- what was done and found out: names, paths, numbers, results, and what was tried in vain;
- where the work stands now, and the next steps.
Call no tools. Write the summary between [summary] and [/summary], and nothing else."""
"""What the model is asked, unless `Summarize` is told otherwise."""


# ---------------------------------------------------------------- when


def _trigger(compaction: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value):
        name = type(compaction).__name__
        raise TypeError(f"{name}.{attribute.name}: expected a trigger such as ContextReaches(…), got {value!r}")


def _from_one(trigger: object, attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{type(trigger).__name__}.{attribute.name}: expected a number from 1, got {value!r}")


@attrs.frozen
class ContextReaches:
    """Due when the last request of this context came to `tokens` or more, as its provider reported (`Usage.total`).

    Leave room below the model's window: the request for the summary shows the whole context once more.
    """

    tokens: int = attrs.field(validator=_from_one)

    @classmethod
    def of_window(cls, window: int, fraction: float = 0.8) -> ContextReaches:
        """Due at this fraction of a model's context window, which is given in tokens.

        Raises `ValueError` for a window below 1, or a fraction that is not above 0 and at most 1.
        """
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"window: expected a number of tokens from 1, got {window!r}")
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction: expected a part above 0 and at most 1, got {fraction!r}")
        return cls(math.ceil(window * fraction))

    def __call__(self, state: CompactionState) -> Reason | None:
        """`context`, or None."""
        return "context" if state.context >= self.tokens else None


@attrs.frozen
class TurnsReach:
    """Due when this context has had `turns` committed requests or more, not counting those inside a compaction."""

    turns: int = attrs.field(validator=_from_one)

    def __call__(self, state: CompactionState) -> Reason | None:
        """`turns`, or None."""
        return "turns" if state.turns >= self.turns else None


class Manual:
    """Due when somebody has asked for it: `request()` from a button, a command, any thread, while a run goes on.

    The next check of a run takes the request, whatever becomes of it. Where no run goes on, use `agentloop.loop.compact`.
    """

    def __init__(self) -> None:
        """Not asked for yet."""
        self._wanted = False

    def __repr__(self) -> str:
        return f"<Manual, {'asked for' if self._wanted else 'not asked for'}>"

    def request(self) -> None:
        """Compact at the next opportunity. A second request before that changes nothing."""
        self._wanted = True

    def withdraw(self) -> bool:
        """Take the request back; False when there is none, or the run has taken it already."""
        wanted, self._wanted = self._wanted, False
        return wanted

    def __call__(self, state: CompactionState) -> Reason | None:
        """`manual`, once for each request."""
        return "manual" if self.withdraw() else None


def any_of(*triggers: Trigger) -> Trigger:
    """Due as soon as one of them is; the first that is due names the reason, and those after it are not asked."""

    def due(state: CompactionState) -> Reason | None:
        return next((reason for trigger in triggers if (reason := trigger(state)) is not None), None)

    return due


def all_of(*triggers: Trigger) -> Trigger:
    """Due when all of them are; the first names the reason. Asked in order up to the first that is not due.

    `all_of(ContextReaches(n), TurnsReach(2))` lets a context have a second turn however large it begins: without that,
    a context whose summary alone is over the limit is summarised in every turn.
    """

    def due(state: CompactionState) -> Reason | None:
        first: Reason | None = None
        for trigger in triggers:
            reason = trigger(state)
            if reason is None:
                return None
            first = first or reason
        return first

    return due


def mid_task(trigger: Trigger) -> Trigger:
    """Due when `trigger` is and the run goes on to a further turn, never when it would end: for conversations that are over
    with their run, where a last compaction would only cost a request."""

    def due(state: CompactionState) -> Reason | None:
        return None if state.at_end else trigger(state)

    return due


def never(state: CompactionState) -> Reason | None:
    """Never due: only `agentloop.loop.compact` compacts."""
    return None


def _due(when: Trigger, state: CompactionState) -> Reason | None:
    reason = when(state)
    if reason is not None and reason not in get_args(Reason):
        raise ValueError(f"when: expected 'context', 'turns', 'manual' or None, got {reason!r}")
    return reason


# ---------------------------------------------------------------- how


@attrs.frozen(kw_only=True)
class Summarize:
    """Ask the old context for a summary, which then stands for it (a `Compaction`).

    The request shows everything that the model has seen, tools and results of the last turn included, and then
    `instructions`. The summary is what stands between the first `[summary]` and `[/summary]` of the reply; without such
    a block it is the whole reply. It opens the new context as a user text `[context_summary]`.

    A reply that calls a tool, is blank, was refused, was cut off in the middle of the summary, or is longer than
    `max_characters` is of no use: the model is told so and asked again, as often as `Config.retry` has waits. Then, or
    when the request fails for good, the compaction is given up and the old context stays in force. A run that wanted a
    further turn then ends as the compaction did; one that was at its end anyway ends as it would have.

    `when` says when it is due. Raises `TypeError` and `ValueError` for settings that cannot be.
    """

    when: Trigger = attrs.field(default=never, validator=_trigger)
    instructions: str = INSTRUCTIONS
    max_characters: int | None = attrs.field(default=None, validator=attrs.validators.optional(_from_one))
    mode: Literal["summarize"] = attrs.field(default="summarize", init=False)
    """As `Compaction.mode`."""

    def __attrs_post_init__(self) -> None:
        """Refuse blank instructions: the model would be asked nothing."""
        if not self.instructions.strip():
            raise ValueError("Summarize.instructions: expected some text, got none")

    def due(self, state: CompactionState) -> Reason | None:
        """What `when` says. Raises `ValueError` for a reason that is none."""
        return _due(self.when, state)

    def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
        """The instructions; after an attempt that was of no use, a text that says why stands before them."""
        asked = user(self.instructions)
        if problem is None:
            return (asked,)
        return (user(f"Your last reply cannot be used as a summary: {problem}."), asked)

    def accept(self, reply: AssistantMessage) -> str | None:
        """The summary's text; None when the reply is of no use."""
        return None if self._unusable(reply) else summary_text(reply.text)

    def problem(self, reply: AssistantMessage) -> str:
        """Why a reply was of no use, in words for the model."""
        return self._unusable(reply) or "the reply held no summary"

    def summary(self, text: str) -> UserMessage:
        """The first message of the new context."""
        return user(context_summary(text))

    def _unusable(self, reply: AssistantMessage) -> str | None:
        if reply.finish_reason in ("refusal", "content_filter"):
            return "the reply was refused"
        if reply.finish_reason == "length" and not tagged_summary(reply.text):
            return "it was cut off by the output limit; write a shorter one"
        length = len(summary_text(reply.text))
        if length == 0:
            return "the reply held no text"
        if self.max_characters is not None and length > self.max_characters:
            return f"it has {length} characters; write one of at most {self.max_characters}"
        return None


@attrs.frozen(kw_only=True)
class Discard:
    """Drop the old context and begin with an empty one, without asking anybody (a `Compaction`). `when` says when it is due.

    It happens only when the run would end, or by `agentloop.loop.compact`: never in the middle of a task.
    """

    when: Trigger = attrs.field(default=never, validator=_trigger)
    mode: Literal["discard"] = attrs.field(default="discard", init=False)
    """As `Compaction.mode`."""

    def due(self, state: CompactionState) -> Reason | None:
        """What `when` says. Raises `ValueError` for a reason that is none."""
        return _due(self.when, state)

    def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
        """Nothing is asked."""
        return ()

    def accept(self, reply: AssistantMessage) -> str | None:
        """No reply is a summary."""
        return None

    def summary(self, text: str) -> UserMessage:
        """Nothing stands for a context that was dropped; a text that is given all the same is marked as a summary."""
        return user(context_summary(text))


# ---------------------------------------------------------------- by hand


def availability(context: Context, compaction: Compaction | None) -> Availability:
    """Whether `agentloop.loop.compact(context, …)` can do anything: look before you call.

    `unsupported`: there is no compaction. `empty`: the context has no committed turn. `just_compacted`: the same, in a
    context that begins with a summary. `ok`: it can.
    """
    if compaction is None:
        return "unsupported"
    for message in context.messages:
        if isinstance(message, AssistantMessage) and message.stop_reason == "completed":
            return "ok"
    opened = any(isinstance(message, UserMessage) and is_context_summary(message.text) for message in context.messages)
    return "just_compacted" if opened else "empty"
