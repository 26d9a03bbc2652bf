"""What a hook may answer, and the event that tells of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import attrs

from agentloop._callbacks import CallbackFailed
from agentloop._values import MAX_INTEGER_BITS, is_kind, plain_text, raise_order, valid_text
from agentloop.config import HookAnswer
from agentloop.events import Hook

log = logging.getLogger("agentloop")


def hook_answer(value: Any) -> HookAnswer | None:
    """What a hook said, its decision a word or None; None: nothing. Raises `CallbackFailed` for any other answer."""
    if value is None:
        return None
    if not is_kind(value, HookAnswer):
        raise CallbackFailed(TypeError(f"expected a HookAnswer or None, got {type(value).__name__}"))
    for field in ("reason", "message"):
        text = getattr(value, field)
        if text is not None and plain_text(text) is None:
            raise CallbackFailed(TypeError(f"{field}: expected a text or None, got {type(text).__name__}"))
    texts: dict[str, Any] = {field: plain_text(getattr(value, field)) for field in ("decision", "reason", "message")}
    if value.decision is not None and texts["decision"] is None:
        # Not a decision that any hook has: it is reported as such.
        texts["decision"] = f"({type(value.decision).__name__})"
    if any(getattr(value, field) is not text for field, text in texts.items()):
        value = attrs.evolve(value, **texts)  # plain texts from here on: a subclass may fail when it is compared
    said = any(field is not None for field in (value.decision, value.reason, value.message, value.output))
    return value if said else None


_HOOK_DECISIONS = {"pre_tool_use": ("allow", "deny"), "stop": ("continue", "stop")}


def hook_event(kind: Any, name: str, answer: HookAnswer, call_id: str | None = None) -> Hook:
    """The event of a hook's answer: decisions that such a hook has not are dropped, of its output only scalars are kept."""
    has = _HOOK_DECISIONS.get(kind, ())
    decision: Any = answer.decision if answer.decision in has else None
    if decision is None and answer.decision is not None:
        expected, got = " or ".join((*map(repr, has), "None")), str.__repr__(answer.decision)
        log.warning("the %s hook %s: decision: expected %s, got %s; it is dropped", kind, name, expected, got)
    output = {key: value for key, value in _items(answer.output) if type(key) is str and _is_scalar(value)}
    reason = None if answer.reason is None else valid_text(answer.reason)
    return Hook(kind, name, decision, reason, output, call_id)


def _items(output: Any) -> list[tuple[Any, Any]]:
    """It is for the record alone: what fails to say what it holds holds nothing."""
    try:
        return list(output.items()) if isinstance(output, Mapping) else []
    except BaseException as error:
        raise_order(error)
        return []


def _is_scalar(value: Any) -> bool:
    """Whether a JSON number, text, truth value or null, as it can be written."""
    if type(value) is int:
        return value.bit_length() <= MAX_INTEGER_BITS
    return value is None or type(value) in (str, bool) or (type(value) is float and math.isfinite(value))
