"""What a hook may answer, judged by itself, and what its event tells."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentloop._callbacks import CallbackFailed
from agentloop._hooks import hook_answer, hook_event
from agentloop._values import MAX_INTEGER_BITS
from agentloop.config import HookAnswer
from agentloop.events import Hook

LONGEST = (1 << MAX_INTEGER_BITS) - 1


@pytest.mark.parametrize(
    "answer",
    [
        HookAnswer("allow"),
        HookAnswer(reason="r"),
        HookAnswer(message="m"),
        HookAnswer(output={"a": 1}),
        HookAnswer(reason=""),
    ],
)
def test_an_answer_that_says_anything_is_one(answer: HookAnswer) -> None:
    """A decision, a reason, a message or an output, an empty text too."""
    assert hook_answer(answer) is answer


def test_an_answer_that_says_nothing_is_none() -> None:
    """None, or a `HookAnswer` with no part."""
    assert hook_answer(None) is None
    assert hook_answer(HookAnswer()) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("allow", "expected a HookAnswer or None, got str"),
        (False, "expected a HookAnswer or None, got bool"),
        (HookAnswer(reason=7), "reason: expected a text or None, got int"),  # type: ignore[arg-type]
        (HookAnswer("allow", message=b"m"), "message: expected a text or None, got bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_answer_is_the_callbacks_failure(answer: Any, words: str) -> None:
    """The error says what was expected and what came."""
    with pytest.raises(CallbackFailed) as caught:
        hook_answer(answer)
    assert words in caught.value.text


@pytest.mark.parametrize("kind", ["pre_tool_use", "user_prompt", "stop"])
@pytest.mark.parametrize("decision", ["allow", "deny", "continue", "stop", "perhaps"])
def test_an_event_has_only_decisions_that_such_a_hook_has(kind: Any, decision: Any) -> None:
    """A call's hook allows or denies, a stop hook continues or stops, a prompt's decides nothing."""
    may = {"pre_tool_use": ("allow", "deny"), "stop": ("continue", "stop"), "user_prompt": ()}[kind]
    event = hook_event(kind, "h", HookAnswer(decision, "why"), "c1")
    assert event == Hook(kind, "h", decision if decision in may else None, "why", None, "c1")


def test_a_decision_that_is_dropped_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With what such a hook may say, and what it said; one that is no text by its class, which can be no decision."""
    hook_event("pre_tool_use", "guard", HookAnswer("block"))  # type: ignore[arg-type]
    odd = hook_answer(HookAnswer(type("allow", (), {})()))
    assert odd is not None and hook_event("stop", "odd", odd).decision is None
    hook_event("stop", "right", HookAnswer("continue"))
    assert caplog.messages == [
        "the pre_tool_use hook guard: decision: expected 'allow' or 'deny' or None, got 'block'; it is dropped",
        "the stop hook odd: decision: expected 'continue' or 'stop' or None, got '(allow)'; it is dropped",
    ]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (None, None),
        ({}, None),
        ([("a", 1)], None),
        ({"a": 1, "b": "t", "c": True, "d": None, "e": 1.5}, {"a": 1, "b": "t", "c": True, "d": None, "e": 1.5}),
        ({"a": LONGEST, "b": LONGEST + 1, "c": -LONGEST - 1}, {"a": LONGEST}),
        ({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.0}, {"d": 0.0}),
        ({"a": [1], "b": {"c": 1}, "d": b"x", "e": object(), "f": 2}, {"f": 2}),
        ({1: 2, None: 3, "a": 4}, {"a": 4}),
    ],
)
def test_of_an_output_only_scalars_are_told(output: Any, told: Any) -> None:
    """What can be written as a JSON number, text, truth value or null, under a key that is a text."""
    assert hook_event("stop", "h", HookAnswer(output=output)).output == told


def test_a_reason_is_made_valid() -> None:
    """Half a surrogate pair becomes the replacement; without a reason there is none, an empty one stays."""
    assert hook_event("stop", "h", HookAnswer(reason="a\ud83d")).reason == "a\ufffd"
    assert hook_event("stop", "h", HookAnswer("stop")).reason is None
    assert hook_event("stop", "h", HookAnswer(reason="")).reason == ""
    assert hook_event("stop", "h", HookAnswer("stop")).tool_call_id is None


@pytest.mark.parametrize(("raised", "leaves"), [(KeyboardInterrupt, True), (SystemExit, True), (RuntimeError, False)])
def test_an_output_that_fails_is_none_but_an_order_to_leave_is_one(raised: type[BaseException], leaves: bool) -> None:
    """It is for the record alone; a Ctrl-C that comes while it is read is not."""

    class Output(dict[str, Any]):
        def items(self) -> Any:
            raise raised

    answer = HookAnswer(reason="why", output=Output(a=1))
    if leaves:
        with pytest.raises(raised):
            hook_event("stop", "h", answer)
    else:
        assert hook_event("stop", "h", answer) == Hook("stop", "h", None, "why", {}, None)
