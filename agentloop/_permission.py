"""What hooks and a policy say of a call before anybody is asked."""

from __future__ import annotations

import logging
from typing import Any, Literal, TypeAlias

from agentloop._callbacks import CallbackFailed, shown
from agentloop._hooks import hook_answer, hook_event
from agentloop._outcome import Call
from agentloop._run import Core
from agentloop._values import plain_text, thaw_json
from agentloop.config import HookAnswer
from agentloop.events import Hook
from agentloop.tools import ToolInvocation

log = logging.getLogger("agentloop")

Verdict: TypeAlias = Literal["allow", "deny", "forbidden"]


async def verdict_on(core: Core, call: Call) -> tuple[Verdict, str | None] | None:
    """The verdict, and the text of a refusal if it has its own; None: nobody decides, so whoever approves is asked.

    A hook's `allow` is not above a policy that forbids. Raises `Stopped` when a stop came first.
    """
    decided, failed = await _pre_tool_use(core, call)
    if decided is not None and decided.decision == "deny":
        return "deny", f"Tool call denied by the {decided.name} hook: {decided.reason or 'no reason given'}."
    if decided is None and failed and core.config.approve is None:
        return "deny", "Tool call denied: a hook that decides about it failed."
    verdict = await _policy(core, call)
    if decided is not None:  # it allows
        return ("forbidden" if verdict == "forbidden" else "allow"), None
    return None if verdict is None else (verdict, None)


async def _pre_tool_use(core: Core, call: Call) -> tuple[Hook | None, bool]:
    """Ask the hooks. The first answer that decides, and whether one has failed."""
    decided, failed = None, False
    for hooks in core.config.hooks:
        if hooks.pre_tool_use is None:
            continue
        try:
            answer = hook_answer(await core.call(hooks.pre_tool_use, call.invocation))
        except CallbackFailed as error:
            log.error("the pre_tool_use hook %s failed", hooks.name, exc_info=error.error)
            answer, failed = HookAnswer(reason=f"hook failed: {error.text}"), True
        if answer is None:
            continue
        event = hook_event("pre_tool_use", hooks.name, answer, call.call.id)
        failed = failed or (event.decision is None and answer.decision is not None)  # it meant to decide: "block", say
        core.emit(event)
        if decided is None and event.decision is not None:
            decided = event
    return decided, failed


async def _policy(core: Core, call: Call) -> Verdict | None:
    """What the policy of `approve` says; None: it leaves the question open, or there is none.

    It sees its own copy of what would run, whatever a hook did to the one that it was given. One that fails forbids.
    """
    try:
        policy = core.guard(getattr, core.config.approve, "policy", None)
        if policy is None:
            return None
        assert call.prepared is not None and call.tool is not None
        invocation = ToolInvocation(call.call.id, call.call.name, thaw_json(call.prepared.arguments), call.tool)
        verdict = await core.call(policy, invocation)
    except CallbackFailed as error:
        log.error("the approval policy failed; the call is forbidden", exc_info=error.error)
        return "forbidden"
    return None if verdict is None else _known(verdict)


def _known(verdict: Any) -> Verdict:
    said = plain_text(verdict)
    if said in ("allow", "deny", "forbidden"):
        return said  # type: ignore[return-value]  # one of these
    log.error("policy: expected None, 'allow', 'deny' or 'forbidden', got %s; the call is forbidden", shown(verdict))
    return "forbidden"
