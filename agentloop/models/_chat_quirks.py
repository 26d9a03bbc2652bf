"""How the providers that speak Chat Completions differ, as data: what a request to each may say and how.

A quirk is a value here and never a branch on a provider's name in the adapter. The table of providers that uses these
values is in `agentloop.models.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

Fragments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""For each thinking level what goes into the request's body; a level that is missing cannot be had."""


def _levels(
    off: Any = None, minimal: Any = None, low: Any = None, medium: Any = None, high: Any = None, max: Any = None
) -> Fragments:
    levels = {"off": off, "minimal": minimal, "low": low, "medium": medium, "high": high, "max": max}
    return {level: fragment for level, fragment in levels.items() if fragment is not None}


def _effort(**words: str) -> Fragments:
    """Levels by the words of `reasoning_effort`."""
    return _levels(**{level: {"reasoning_effort": word} for level, word in words.items()})


def _switch(on: Mapping[str, Any], off: Mapping[str, Any]) -> Fragments:
    """A provider that only knows thinking or none: every level but `off` is on."""
    return _levels(off=off, minimal=on, low=on, medium=on, high=on, max=on)


EFFORT = _effort(off="none", minimal="minimal", low="low", medium="medium", high="high", max="xhigh")
EFFORT_TO_HIGH = _effort(off="none", minimal="low", low="low", medium="medium", high="high", max="high")
EFFORT_LOW_HIGH = _effort(minimal="low", low="low", medium="high", high="high", max="high")
EFFORT_NONE_HIGH = _effort(off="none", minimal="high", low="high", medium="high", high="high", max="high")
REASONING_OBJECT = _levels(
    off={"reasoning": {"enabled": False}},
    minimal={"reasoning": {"effort": "minimal"}},
    low={"reasoning": {"effort": "low"}},
    medium={"reasoning": {"effort": "medium"}},
    high={"reasoning": {"effort": "high"}},
    max={"reasoning": {"effort": "xhigh"}},
)
THINKING_TYPE = _switch({"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}})
ENABLE_THINKING = _switch({"enable_thinking": True}, {"enable_thinking": False})
CHAT_TEMPLATE = _switch(
    {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": False}}
)


@attrs.frozen
class IdRule:
    """Which ids of calls a provider takes: the pattern they match whole, and what one made to fit may hold."""

    pattern: str = r"[!-~]{1,64}"
    alphabet: str = "0-9A-Za-z_-"
    length: int = 40


@attrs.frozen
class ChatQuirks:
    """What is special about a provider. The defaults are what most take."""

    names: Mapping[str, str | None] = attrs.field(factory=dict)
    """The provider's own name of a common option (`{"seed": "random_seed"}`); None: it cannot do it."""
    thinking: Fragments = EFFORT_TO_HIGH
    """What each level of thinking adds to the body."""
    usage_option: bool = True
    """Whether it takes `stream_options` and needs it to report usage."""
    system_role: str = "system"
    """The role of the message with the system prompt."""
    call_id: IdRule = IdRule()
    """Which ids of calls it takes."""
    echo_reasoning: bool = True
    """Whether it takes the reasoning of its own earlier replies back."""
    text_ends_at_call: bool = False
    """Its replies never go on with text once a call began: the text can be ended, and the call shown as it comes. Where
    this is not known the call is held until the reply ends, so that a reply's text stays one block."""


OPENAI = ChatQuirks(
    names={"max_tokens": "max_completion_tokens"},
    thinking=EFFORT,
    call_id=IdRule(r"[!-~]{1,40}"),
    text_ends_at_call=True,
)
