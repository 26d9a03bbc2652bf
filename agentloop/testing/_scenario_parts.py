"""What a scenario scripts: points in time, queues, the provider, tools and hooks."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.abc
import attrs

from agentloop.abort import AbortSignal
from agentloop.config import Block
from agentloop.errors import ModelError
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    InlineData,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelChunk,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from agentloop.testing._scenario_lines import Line, Lines, compact_json
from agentloop.testing.clock import VirtualClock
from agentloop.tools import Tool, ToolContext, ToolInvocation

Fields = Mapping[str, Any]
_FILTERS = ("call", "tool", "response", "type", "kind", "role")


class Stage:
    """The harness of one run: its clock, its output, its triggers, and what it counts."""

    def __init__(self, scenario: Fields, clock: VirtualClock, lines: Lines, write: Callable[[Line], None]) -> None:
        self.scenario = scenario
        self.clock = clock
        self.lines = lines
        self.write = write
        self.abort = AbortSignal()
        self.queues: dict[str, Queue] = {name: Queue(self, name) for name in ("steering", "follow_up")}
        self.executed: list[str] = []
        self.running = 0
        self.requests = 0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._triggers = [
            *self._aborts(),
            *self._joins("steering", "steering"),
            *self._joins("follow_ups", "follow_up"),
        ]

    def _aborts(self) -> list[_Trigger]:
        given = self.scenario.get("abort") or []
        aborts = [given] if isinstance(given, Mapping) else given
        return [_Trigger(each["at"], functools.partial(self._abort, each.get("reason"))) for each in aborts]

    def _abort(self, reason: str | None) -> None:
        self.write({"type": "abort_called"})
        self.abort.abort(reason)

    def _joins(self, field: str, name: str) -> list[_Trigger]:
        join = self.queues[name].join
        joins = self.scenario.get(field) or []
        return [_Trigger(each["at"], functools.partial(join, each["messages"])) for each in joins]

    def begin(self, tasks: anyio.abc.TaskGroup) -> None:
        """Take the group that delayed triggers run in, and pass the point `start`."""
        self._tasks = tasks
        self.reach("start")

    def reach(self, point: str, **facts: Any) -> None:
        """Pass a point: whatever waits for it happens, now or after its delay."""
        for trigger in self._triggers:
            if trigger.matches(point, facts):
                self.later(trigger.at.get("delay_ms"), trigger.action)

    def asks_for(self, point: str) -> bool:
        """Whether a trigger waits for this point."""
        return any(trigger.at.get("point") == point for trigger in self._triggers)

    def later(self, delay_ms: float | None, action: Callable[[], None]) -> None:
        """Do something after a delay, None: at once."""
        if delay_ms is None or self._tasks is None:
            action()
            return

        async def wait() -> None:
            await self.pause(delay_ms)
            action()

        self._tasks.start_soon(wait)

    async def pause(self, milliseconds: float | None) -> None:
        """Wait on the scenario's clock."""
        if milliseconds:
            await self.clock.sleep(milliseconds / 1000)


@attrs.define
class _Trigger:
    """Something that happens once, at the n-th passing of a point."""

    at: Fields
    action: Callable[[], None]
    seen: int = 0

    def matches(self, point: str, facts: Fields) -> bool:
        if self.at.get("point") != point:
            return False
        if any(name in self.at and self.at[name] != facts.get(name) for name in _FILTERS):
            return False
        self.seen += 1
        return bool(self.seen == self.at.get("n", 1))


class Queue:
    """A queue of messages that the loop polls."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._one = stage.scenario.get(f"{name}_mode") == "one_at_a_time"
        self._fails: Fields = (stage.scenario.get("hooks") or {}).get(f"{name}_poll_raises") or {}
        self._polls = 0
        self._arrived = anyio.Event()
        self.waiting: list[AgentMessage] = []

    def join(self, messages: list[Any]) -> None:
        """Messages join the queue."""
        self.waiting += map(message_of, messages)
        self._arrived.set()

    async def wait(self) -> None:
        """Return when something waits; takes nothing."""
        while not self.waiting:
            self._arrived = anyio.Event()
            await self._arrived.wait()

    def poll(self) -> list[AgentMessage]:
        """Take what waits, as much as one poll takes."""
        self._polls += 1
        line = {"type": "poll", "queue": self._name, "n": self._polls}
        self._stage.reach(f"{self._name}_poll")
        if self._fails.get("n") == self._polls:
            self._stage.write({**line, "raises": True})
            raise RuntimeError(self._fails.get("message", ""))
        count = 1 if self._one else len(self.waiting)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self._stage.write({**line, "returned": len(taken)})
        return taken


# ---------------------------------------------------------------- messages


def message_of(given: Any) -> AgentMessage:
    """A message of the format. Raises `ValueError` for what is none."""
    if isinstance(given, str):
        return user(given)
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise ValueError(f"message: expected a string or an object with a role, got {given!r:.80}")
    text = given.get("text") or ""
    match given["role"]:
        case "user":
            return UserMessage(text)
        case "assistant":
            return _reply_of(given, text)
        case "tool_result":
            failed = bool(given.get("is_error"))
            return ToolResultMessage(given["call"], given["tool"], text, is_error=failed)
    return OpaqueMessage(given["role"], {"text": text})


def _reply_of(given: Fields, text: str) -> AssistantMessage:
    content = [block_of(block) for block in given["blocks"]] if "blocks" in given else text
    stop = given.get("stop", "stop")
    if stop in ("error", "aborted"):
        return AssistantMessage(content, "fatal" if stop == "error" else "aborted", error_message=given.get("error"))
    return AssistantMessage(content, "completed", stop)


def block_of(block: Fields) -> ContentBlock:
    """A block of the format, whole."""
    text = "".join(_deltas(block))
    match block.get("type"):
        case "text":
            return Text(text)
        case "thinking":
            return Thinking(text, _signature(block))
        case "tool_call":
            return ToolCall(block["id"], block["tool"], text)
    raise ValueError(f"block.type: expected text, thinking or tool_call, got {block.get('type')!r}")


def _deltas(block: Fields) -> list[str]:
    if "deltas" in block:
        return list(block["deltas"])
    if block.get("type") == "tool_call":
        return [block["args_text"] if "args_text" in block else compact_json(block.get("args", {}))]
    return [block.get("text", "")]


def _signature(block: Fields) -> dict[str, Any] | None:
    return {"signature": block["signature"]} if "signature" in block else None


# ---------------------------------------------------------------- the provider


class Provider:
    """The scripted model: the n-th request gets the n-th response; past the end an empty `stop`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._responses = stage.scenario.get("responses") or []

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Note the request, then stream its response."""
        stage = self._stage
        stage.requests = number = stage.requests + 1
        line: Line = {"type": "request", "n": number}
        if request.system_prompt is not None:
            line["system"] = request.system_prompt
        line["tools"] = [tool.name for tool in request.tools]
        line["messages"] = [stage.lines.message(message) for message in request.messages]
        stage.write(line)
        stage.reach("request", response=number)
        if number > len(self._responses):
            stage.write({"type": "script_exhausted"})
            return self._stream({}, number)
        response = self._responses[number - 1]
        if response.get("end") == "fail_start":
            raise ModelError("rejected", response.get("error", ""), retryable=False)
        return self._stream(response, number)

    async def _stream(self, response: Fields, number: int) -> AsyncIterator[ModelChunk]:
        stage, gap = self._stage, response.get("gap_ms")
        whole = bool(response.get("no_start"))
        steps = [("start", None), *[step for block in response.get("blocks") or [] for step in _steps(block, whole)]]
        for kind, chunk in steps:
            stage.reach("model_event", response=number, type=kind, kind=kind)
            if chunk is not None:
                yield chunk
            await stage.pause(gap)
        if response.get("end") == "stall":
            await anyio.sleep_forever()
        stage.reach("model_end", response=number)
        if response.get("end") == "raise" or response.get("stop") in ("error", "aborted"):
            raise ModelError("rejected", response.get("error", ""), retryable=False)
        if response.get("end") != "no_done":
            yield Finish(response.get("stop", "stop"))


def _steps(block: Fields, whole: bool) -> list[tuple[str, ModelChunk | None]]:
    """The provider's events for a block, each with the chunk that an adapter makes of it."""
    if whole:
        return [(block["type"], BlockChunk(block_of(block)))]
    kind = block["type"]
    steps: list[tuple[str, ModelChunk | None]] = [(f"{kind}_start", None)]
    deltas = _deltas(block) or [""]
    for n, delta in enumerate(deltas):
        steps.append((f"{kind}_delta", _chunk(block, delta, first=n == 0, last=n == len(deltas) - 1)))
    if not block.get("incomplete"):
        steps.append((f"{kind}_end", BlockEnd()))
    return steps


def _chunk(block: Fields, delta: str, *, first: bool, last: bool) -> ModelChunk:
    match block["type"]:
        case "text":
            return TextChunk(delta)
        case "thinking":
            return ThinkingChunk(delta, fidelity=_signature(block) if last else None)
    return ToolCallChunk(delta, block.get("id") if first else None, block["tool"] if first else None)


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
