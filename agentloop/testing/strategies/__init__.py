"""Hypothesis strategies: values, replies, whole legal event streams, and scripts for models.

    @given(streams())
    def test_nothing_is_lost(events):
        assert decode(encode(events)) == events

What `streams` makes passes both levels of `agentloop.grammar.check`. Needs the extra `testing` (hypothesis).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentloop.errors import MissingExtra, StopReason

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "hypothesis":
        raise  # it is there but broken: its own words help more
    raise MissingExtra("hypothesis", "testing") from error

from agentloop.events import Event, Foreign
from agentloop.testing.strategies._replies import ReplyMaker
from agentloop.testing.strategies._runs import RunMaker
from agentloop.testing.strategies._scripts import chunks, failures, model_replies, model_scripts, whole_calls
from agentloop.testing.strategies.values import (
    argument_texts,
    assistant_messages,
    call_ids,
    custom_messages,
    deltas,
    fidelities,
    json_objects,
    json_values,
    messages,
    model_blocks,
    names,
    texts,
    tool_result_messages,
    tool_results,
    tool_specs,
    usages,
    user_blocks,
    user_messages,
    whole_blocks,
)

__all__ = [
    "argument_texts",
    "assistant_messages",
    "call_ids",
    "chunks",
    "custom_messages",
    "deltas",
    "failures",
    "fidelities",
    "json_objects",
    "json_values",
    "messages",
    "model_blocks",
    "model_replies",
    "model_scripts",
    "names",
    "replies",
    "streams",
    "texts",
    "tool_result_messages",
    "tool_results",
    "tool_specs",
    "usages",
    "user_blocks",
    "user_messages",
    "whole_blocks",
    "whole_calls",
]

_UP_TO = [st.integers(0, most) for most in range(24)]
_RECORDS = st.dictionaries(texts(), json_values(3), max_size=2).map(lambda record: {"type": "x_unknown", **record})


def _picker(draw: Callable[[Any], Any]) -> Callable[..., Any]:
    """`pick(a, b, …)`: one of them, by choice of hypothesis; it shrinks towards the first."""

    def pick(*options: Any) -> Any:
        return options[0] if len(options) == 1 else options[draw(_UP_TO[len(options) - 1])]

    return pick


@st.composite
def replies(draw: Any, status: StopReason = "completed") -> list[Event]:
    """The events of one reply, from its `MessageStart` to its `MessageEnd`.

    With another `status` than `completed` it broke off: its last blocks may be closed early, a half call is left out.
    """
    pick = _picker(draw)
    numbers = iter(range(1, 100))
    maker = ReplyMaker(draw, pick, lambda: f"call_{next(numbers)}")
    error = (None, None) if status == "completed" else ("network", "reset")
    return maker.reply(status, draw(usages()), error)


@st.composite
def streams(draw: Any, *, foreign: bool = False, depth: int = 1, custom: bool = True) -> list[Event]:
    """The events of one run, from `AgentStart` to `AgentEnd`: legal, complete, and all derived values in agreement.

    Everything that the grammar allows comes: open calls, inputs with hooks, connections, retries, replies that broke off,
    calls side by side with hooks, approvals, progress and output, nested runs up to `depth` (some cut short), compactions
    that succeed and that are given up, pauses, limits, aborts at every kind of place. `custom=False` leaves out custom
    messages; `foreign=True` strews in records of unknown kinds.
    """
    pick = _picker(draw)
    events = RunMaker(draw, pick, depth=depth, custom=custom).run()
    if foreign:
        for _ in range(pick(1, 2, 3)):
            events.insert(draw(st.integers(0, len(events))), Foreign(draw(_RECORDS)))
    return events
