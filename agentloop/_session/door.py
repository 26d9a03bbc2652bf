"""The guarded door of a session: who decides whether a call may run, and who is asked about what somebody said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import attrs

from agentloop._awaiting import Then, is_awaitable
from agentloop._jsontext import json_text
from agentloop.config import Decision, Hooks, MaybeAwaitable
from agentloop.events import ApprovalRequest
from agentloop.messages import UserMessage
from agentloop.tools import ToolInvocation

log = logging.getLogger("agentloop.session")

Approve: TypeAlias = Callable[[ApprovalRequest], MaybeAwaitable[Decision]]
"""Whether a call may run; see `Config.approve`."""


class Door:
    """The approval of a session: what the trace says was allowed goes on, the callback decides the rest; without one
    everything is denied."""

    def __init__(self, approve: Approve | None, approved: Mapping[str, str]) -> None:
        self._approve = approve
        self._approved = approved
        self._told = False

    def policy(self, call: ToolInvocation) -> MaybeAwaitable[Decision | None]:
        """What needs no question: what the callback's own policy decides, then what was allowed with these very
        arguments (a call of the session itself: the ids of nested runs are others')."""
        # Looked up here: what fails in this forbids, as what fails when it is asked.
        policy = getattr(self._approve, "policy", None)
        verdict = None if policy is None else policy(call)
        if is_awaitable(verdict):
            return Then(verdict, partial(self._or_allowed, call))
        return self._or_allowed(call, verdict)

    def _or_allowed(self, call: ToolInvocation, verdict: Decision | None) -> Decision | None:
        known = None if getattr(call, "origin", ()) else self._approved.get(call.id)
        allowed = verdict is None and known is not None and known == json_text(call.arguments)
        return "allow" if allowed else verdict

    def __call__(self, request: ApprovalRequest) -> MaybeAwaitable[Decision]:
        if self._approve is not None:
            return self._approve(request)
        if not self._told:  # "denied by user" sends whoever forgot `approve` to look for a user
            self._told = True
            log.warning(
                "the session has no `approve`, so its calls are denied; the first is one of %s", request.tool_name
            )
        return "deny"


def without_summary(hooks: Iterable[Hooks], summary: UserMessage | None) -> tuple[Hooks, ...]:
    """Hooks that are not asked about a summary: nobody typed it."""
    if summary is None:
        return tuple(hooks)
    return tuple([each if each.user_prompt is None else _deaf_to(each, summary) for each in hooks])


def _deaf_to(hooks: Hooks, summary: UserMessage) -> Hooks:
    ask = hooks.user_prompt
    assert ask is not None

    def user_prompt(message: UserMessage) -> Any:
        return None if message == summary else ask(message)

    return attrs.evolve(hooks, user_prompt=user_prompt)
