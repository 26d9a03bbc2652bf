"""Plans of single calls for generated streams: hooks, approval, start, updates, end, with values that agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import attrs

from agentloop._results import result_message
from agentloop.errors import ABORTED_CALL_CODES
from agentloop.events import (
    ApprovalDecision,
    ApprovalRequest,
    Event,
    Hook,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
)
from agentloop.messages import Text, ToolCall, ToolResult, ToolResultMessage
from agentloop.testing.strategies import values

Manner: TypeAlias = Literal["run", "refused", "cut_off", "aborted"]
"""How a call fares: as it likes; invalid or blocked; its reply broke off; stopped by an abort."""

_REFUSALS = ("unknown_tool", "invalid_arguments", "blocked")
_FAILURES = ("tool_error", "tool_timeout", "not_stopped")
_RESULTS = values.tool_results()
_TEXTS = values.texts()
_JSON = values.json_objects()


@attrs.define
class CallPlan:
    """The events of a call in order (its result message left out), and what is left of them."""

    call: ToolCall
    events: list[Event]
    asking: int
    """How many of the events keep call order: hooks and the request for approval."""
    end: ToolExecutionEnd

    @property
    def starting(self) -> int:
        """The number of events up to the start, which is included."""
        return 1 + next(place for place, event in enumerate(self.events) if isinstance(event, ToolExecutionStart))

    @property
    def result(self) -> ToolResultMessage:
        """The message that the model will see."""
        return result_message(self.end)


class CallPlanner:
    """Makes plans of calls. `nested(id)` gives the events of a nested run of that call, or none."""

    def __init__(
        self, draw: Callable[[Any], Any], pick: Callable[..., Any], nested: Callable[[str], list[Event]]
    ) -> None:
        self.draw = draw
        self.pick = pick
        self.nested = nested
        self.left_open = False
        """Whether calls that are aborted have a question open."""

    def plan(self, call: ToolCall, manner: Manner) -> CallPlan:
        """The events of one call."""
        if manner == "cut_off":
            code = self.pick("cut_off", "aborted")
            return self._made(call, [], 0, self._start(call, call.arguments), [], self._failed(code))
        if manner == "refused":
            return self._made(call, [], 0, self._start(call, call.arguments), [], self._failed(self.pick(*_REFUSALS)))
        arguments = self.pick(call.arguments, call.arguments, '{"path": "b"}')
        hooks: list[Event] = [self._hook(call) for _ in range(self.pick(0, 0, 0, 1, 2))]
        unanswered = manner == "aborted" and self.left_open
        asked = unanswered or self.pick(False, False, True)
        if asked:
            hooks.append(ApprovalRequest(call.id, call.name, arguments))
        decision = None if unanswered else self._decision(asked, bool(hooks))
        decided: list[Event] = []
        if decision is not None:
            decided.append(ApprovalDecision(decision, call.id, arguments if asked else self.pick(None, arguments)))
        start = self._start(call, arguments)
        if decision is not None and decision != "allow":
            code = "denied" if decision == "deny" else "forbidden"
            return self._made(call, hooks + decided, len(hooks), start, [], self._failed(code))
        if unanswered or (manner == "aborted" and self.pick(False, True)):
            return self._made(call, hooks + decided, len(hooks), start, [], self._failed("aborted"))
        return self._ran(call, hooks + decided, len(hooks), start, manner)

    def _decision(self, asked: bool, hooked: bool) -> Any:
        if asked:
            return self.pick("allow", "deny", "forbidden", "allow")
        return self.pick(None, "allow", "deny", "forbidden") if hooked else None

    def _hook(self, call: ToolCall) -> Hook:
        decision = self.pick(None, "allow", "deny")
        output = self.draw(_JSON) if self.pick(False, False, True) else None
        return Hook(
            "pre_tool_use", self.pick("guard", "log"), decision, self.pick(None, "hook failed: é"), output, call.id
        )

    def _start(self, call: ToolCall, arguments: str) -> ToolExecutionStart:
        return ToolExecutionStart(call.id, call.name, arguments)

    def _made(
        self, call: ToolCall, before: list[Event], asking: int, start: Event, updates: list[Event], outcome: Any
    ) -> CallPlan:
        result, stop_reason, code = outcome
        end = ToolExecutionEnd(call.id, call.name, result, result.is_error, stop_reason, code)
        return CallPlan(call, [*before, start, *updates, end], asking, end)

    def _failed(self, code: str) -> tuple[ToolResult, Any, str]:
        result = ToolResult(f"not run: {code}", is_error=True, terminate=self.pick(False, False, True))
        return result, "aborted" if code in ABORTED_CALL_CODES else "fatal", code

    def _ran(self, call: ToolCall, before: list[Event], asking: int, start: Event, manner: Manner) -> CallPlan:
        updates: list[Event] = []
        for _ in range(self.pick(0, 0, 1, 2)):
            updates.append(ToolExecutionUpdate(call.id, call.name, partial_result=self.draw(_RESULTS)))
        pieces = [self.draw(_TEXTS) for _ in range(self.pick(0, 0, 1, 3))]
        if "".join(pieces) or not pieces:
            updates += [ToolExecutionUpdate(call.id, call.name, delta=piece) for piece in pieces]
        else:
            pieces = []
        updates += self.nested(call.id)
        result: ToolResult = self.draw(_RESULTS)
        stop_reason, code = "completed", None
        if manner == "aborted":
            stop_reason, code = "aborted", "aborted"
        elif result.is_error:
            code = self.pick(*_FAILURES)
            stop_reason = self.pick("fatal", "aborted") if code == "not_stopped" else "fatal"
        if pieces:
            pictures = [block for block in result.content if not isinstance(block, Text)]
            result = attrs.evolve(result, content=(Text("".join(pieces)), *pictures))
        return self._made(call, before, asking, start, updates, (result, stop_reason, code))
