"""The tools of a scenario, and the callbacks around their calls."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import attrs

from agentloop.config import Block
from agentloop.messages import AgentMessage, InlineData, OpaqueMessage, Text, ToolResult, UserMessage
from agentloop.testing._scenario_lines import compact_json
from agentloop.testing._scenario_messages import Fields, message_of
from agentloop.testing._scenario_stage import Stage
from agentloop.tools import Tool, ToolContext, ToolInvocation

# ---------------------------------------------------------------- tools


class _Aborted(Exception):
    """The tool looks at the abort signal, and it fired."""


def tool_of(stage: Stage, given: Fields) -> Tool:
    """A scripted tool."""

    async def execute(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        return await _Call(stage, given, arguments, ctx).run()

    return Tool(
        given["name"],
        given.get("description", ""),
        given.get("schema") or {"type": "object"},
        execute,
        exclusive=bool(given.get("sequential")),
        interruptible=bool(given.get("interruptible")),
    )


class _Call:
    """One call of a scripted tool."""

    def __init__(self, stage: Stage, given: Fields, arguments: dict[str, Any], ctx: ToolContext) -> None:
        self._stage = stage
        self._given = given
        self._arguments = arguments
        self._ctx = ctx
        self._facts = {"call": ctx.tool_call_id, "tool": ctx.tool_name}

    async def run(self) -> Any:
        stage, given = self._stage, self._given
        stage.executed.append(self._ctx.tool_call_id)
        stage.running += 1
        stage.write({"type": "tool_invoked", **self._facts, "args": self._arguments})
        stage.reach("tool_start", **self._facts)
        steps = (given.get("per_call") or {}).get(self._ctx.tool_call_id, given.get("steps")) or [{"return": "ok"}]
        try:
            return await self._perform(steps)
        except _Aborted:
            text = given.get("abort_text", "aborted")
            stage.reach("tool_end", **self._facts)
            if given.get("on_abort") == "raise":
                raise RuntimeError(stage.lines.know(text)) from None
            return self._result({"return": text})
        finally:
            stage.running -= 1

    async def _perform(self, steps: list[Any]) -> Any:
        for step in steps:
            match step:
                case {"update": text}:
                    self._ctx.progress(text)
                case {"sleep_ms": milliseconds}:
                    await self._wait(functools.partial(self._stage.pause, milliseconds))
                case {"hang": True}:
                    await self._wait(anyio.sleep_forever)
                case {"mutate_args": changes}:
                    self._arguments.update(changes)
                case {"late_update": {"after_ms": delay, "text": text}}:
                    self._stage.later(delay, functools.partial(self._ctx.progress, text))
                case _:
                    self._stage.reach("tool_end", **self._facts)
                    return self._result(step)
        self._stage.reach("tool_end", **self._facts)
        return self._result({"return": "ok"})

    async def _wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait, and leave off at an abort if this tool looks at it."""
        if self._given.get("on_abort", "ignore") == "ignore":
            await wait()
            return
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                await self._ctx.abort.wait()
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await wait()
            group.cancel_scope.cancel()
        if self._ctx.abort.aborted:
            raise _Aborted

    def _result(self, step: Fields) -> Any:
        know, terminate = self._stage.lines.know, bool(step.get("terminate", self._given.get("terminate")))
        match step:
            case {"return": text}:
                return ToolResult(
                    () if text is None else know(text), is_error=bool(step.get("is_error")), terminate=terminate
                )
            case {"echo_args": True}:
                return ToolResult(know(compact_json(self._arguments)), terminate=terminate)
            case {"return_raw": {"content": list(content)}}:
                return [_raw_block(block) for block in content]
            case {"return_raw": value}:
                return value
            case {"raise": text}:
                raise RuntimeError(know(text)) if text else RuntimeError
            case {"raise_value": value}:
                raise RuntimeError(know(value if isinstance(value, str) else compact_json(value)))
        raise ValueError(f"tools.steps: expected a step of the format, got {step!r:.80}")


def _raw_block(block: Any) -> Any:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image", "data": data, "mimeType": mime_type}:
            return InlineData(data, mime_type)
    return block


# ---------------------------------------------------------------- hooks


class ScriptedHooks:
    """The callbacks of a scenario. Those that it does not script are None."""

    def __init__(self, stage: Stage) -> None:
        hooks = stage.scenario.get("hooks") or {}
        self._stage = stage
        self._rules_before = hooks.get("before_tool_call") or []
        self._rules_after = hooks.get("after_tool_call") or []
        self._transform: Fields = hooks.get("transform_context") or {}
        self._convert: Fields = hooks.get("convert_to_llm") or {}
        self._turns_left = hooks.get("stop_after_turn") or 0
        asked = stage.asks_for
        self.before_tool_call = self._before if self._rules_before or asked("before_hook") else None
        self.after_tool_call = self._after if self._rules_after or asked("after_hook") else None
        self.transform_context = self._transformed if self._transform else None
        self.convert_to_llm = self._converted if self._convert else None
        self.finish_turn = self._finish_turn if self._turns_left else None

    async def _before(self, call: ToolInvocation) -> Block | dict[str, Any] | None:
        self._stage.write({"type": "hook", "hook": "before_tool_call", "call": call.id, "args": dict(call.arguments)})
        rule = await self._asked("before_hook", self._rules_before, call)
        if rule.get("block"):
            return Block(self._stage.lines.know(rule.get("reason") or ""), bool(rule.get("terminate")))
        return dict(rule["replace_args"]) if "replace_args" in rule else None

    async def _after(self, call: ToolInvocation, result: ToolResult) -> ToolResult | None:
        text = self._stage.lines.result_text(result.content, "tool_error")
        line = {"type": "hook", "hook": "after_tool_call", "call": call.id, "is_error": result.is_error, "text": text}
        self._stage.write(line)
        rule = await self._asked("after_hook", self._rules_after, call)
        changes: dict[str, Any] = {name: rule[name] for name in ("is_error", "terminate") if name in rule}
        if "content" in rule:
            changes["content"] = () if rule["content"] is None else (Text(rule["content"]),)
        return attrs.evolve(result, **changes) if changes else None

    async def _asked(self, point: str, rules: list[Fields], call: ToolInvocation) -> Fields:
        """The first rule for this call ({}: none), after its delay. Raises what it says."""
        facts = {"call": call.id, "tool": call.name}
        self._stage.reach(point, **facts)
        matching = (rule for rule in rules if all(rule.get(name, fact) == fact for name, fact in facts.items()))
        rule = next(matching, {})
        await self._stage.pause(rule.get("delay_ms"))
        if "raise" in rule:
            raise RuntimeError(self._stage.lines.know(rule["raise"]))
        return rule

    def _transformed(self, messages: Any) -> list[AgentMessage]:
        hook = self._transform
        self._stage.write({"type": "hook", "hook": "transform_context", "messages": len(messages)})
        if "raise" in hook:
            raise RuntimeError(hook["raise"])
        if "mutate_drop_first" in hook:
            del messages[: hook["mutate_drop_first"]]
        kept = list(messages)[hook.get("drop_first", 0) :]
        return [*kept, message_of(hook["append"])] if "append" in hook else kept

    def _converted(self, messages: Any) -> list[AgentMessage]:
        if "raise" in self._convert:
            raise RuntimeError(self._convert["raise"])
        as_user = self._convert.get("as_user") or []
        converted: list[AgentMessage] = []
        for message in messages:
            if not isinstance(message, OpaqueMessage):
                converted.append(message)
            elif message.role in as_user:
                converted.append(UserMessage(message.data.get("text", "")))
        return converted

    def _finish_turn(self, _: Any) -> str | None:
        self._turns_left -= 1
        return "end" if self._turns_left == 0 else None
