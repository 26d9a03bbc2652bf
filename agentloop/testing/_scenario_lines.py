"""A run's events and requests as the lines of the neutral scenario format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentloop.events import (
    AgentEnd,
    AgentStart,
    Event,
    MessageEnd,
    MessageStart,
    MessageUpdate,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
    TurnEnd,
    TurnStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    Image,
    InlineData,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

Line = dict[str, Any]

_SUBJECTS = {
    "unknown_tool": "<not_found>",
    "invalid_arguments": "<invalid_args>",
    "aborted": "<aborted>",
    "user_abort": "<aborted>",
    "not_stopped": "<aborted>",
    "blocked": "<blocked>",
    "cut_off": "<not_run_error>",
    "tool_error": "<empty_error>",
    "deadline": "<deadline>",
    "truncated": "<no_final_result>",
}
"""What a text is reduced to that the kernel made up, by the code that came with it."""
_FINISH = {"pause": "stop", None: "stop"}


class Lines:
    """Writes the lines of one run. Texts that the scenario does not contain are reduced to their subject."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._made_up: dict[str, str] = {}

    def know(self, text: str) -> str:
        """Note a text as the scenario's own; gives it back."""
        self._known.add(text)
        return text

    # ------------------------------------------------------------ events

    def event(self, event: Event) -> Line | None:
        """The line of an event; None for one that the format does not have."""
        match event:
            case AgentStart() | TurnStart():
                return {"type": event.type}
            case MessageStart(message=message) | MessageEnd(message=message):
                return {"type": event.type, **self.message(message, final=type(event) is MessageEnd)}
            case MessageUpdate(delta=delta):
                update = self._update(delta)
                return None if update is None else {"type": event.type, "kind": delta.type, **update}
            case ToolExecutionStart():
                return {"type": event.type, **_call(event), **arguments_of(event.arguments)}
            case ToolExecutionUpdate(partial_result=partial):
                text = (event.delta or "") if partial is None else self.result_text(partial.content, None)
                return {"type": event.type, **_call(event), "text": text}
            case ToolExecutionEnd(result=result, error_code=code):
                text = self.result_text(result.content, code)
                return {"type": event.type, **_call(event), "is_error": event.is_error, "text": text}
            case TurnEnd(message=message, tool_results=results):
                ends = [{"call": result.tool_call_id, "is_error": result.is_error} for result in results]
                return {
                    "type": event.type,
                    "stop_reason": None if message is None else _stop(message),
                    "tool_results": ends,
                }
            case AgentEnd(messages=messages):
                return {"type": event.type, "messages": len(messages)}
        return None

    def _update(self, delta: Any) -> Line | None:
        """The fields of an update; None for one without a line: a block that comes whole, or is closed early."""
        line: Line = {"index": delta.index}
        match delta:
            case TextStart() | ThinkingStart():
                return line
            case ToolCallStart():
                return {**line, "id": delta.id, "tool": delta.name}
            case TextDelta() | ThinkingDelta() | ToolCallDelta():
                return {**line, "delta": delta.text}
            case TextEnd(stop_reason="completed"):
                return {**line, "content": delta.block.text}
            case ThinkingEnd(stop_reason="completed"):
                return {**line, "content": delta.block.thinking}
            case ToolCallEnd(stop_reason="completed"):
                return {**line, **_tool_call(delta.block)}
        return None

    # ------------------------------------------------------------ messages

    def message(self, message: AgentMessage, *, final: bool = True) -> Line:
        """A message; of an unfinished reply without its end."""
        match message:
            case UserMessage():
                return {"role": "user", "text": "|".join(_texts(message.content))}
            case ToolResultMessage(tool_call_id=call, tool_name=tool):
                text = self.result_text(message.content, None)
                return {"role": "tool_result", "call": call, "tool": tool, "is_error": message.is_error, "text": text}
            case AssistantMessage():
                return self._reply(message, final)
            case OpaqueMessage(role=role, data=data):
                return {"role": role, "text": data.get("text", "")}
        return {"role": message.role, "text": repr(message)}

    def _reply(self, message: AssistantMessage, final: bool) -> Line:
        line: Line = {"role": "assistant", "text": "|".join(_texts(message.content))}
        thinking = [_thinking(block) for block in message.content if isinstance(block, Thinking)]
        calls = [_tool_call(block) for block in message.tool_calls]
        line |= {"thinking": thinking} if thinking else {}
        line |= {"tool_calls": calls} if calls else {}
        if final:
            line["stop_reason"] = _stop(message)
            words = message.error_message or message.error_code
            if words is not None:
                line["error"] = self.reduced(words, message.error_code or "unknown")
        return line

    def result_text(self, content: Sequence[Any], code: str | None) -> str:
        """The blocks of a result, joined with newlines."""
        blocks = [self.reduced(block.text, code) if isinstance(block, Text) else "[image]" for block in content]
        return "\n".join(blocks)

    def reduced(self, text: str, code: str | None) -> str:
        """The text, or the subject of one that the scenario does not contain. `code` None: as it was reduced before."""
        if text in self._known:
            return text
        if code is not None:
            self._made_up[text] = _subject(text, code)
        return self._made_up.get(text, "<other>")


def _subject(text: str, code: str) -> str:
    if code == "cut_off" and "output limit" in text:
        return "<length>"
    if code == "tool_error" and text.startswith("content["):
        return "<bad_result>"
    if code == "aborted" and "new message" in text:
        return "<skipped>"
    return _SUBJECTS.get(code, "<other>")


def _stop(message: AssistantMessage) -> str | None:
    """The format's stop reason: of a committed reply its finish reason."""
    if message.stop_reason == "completed":
        return _FINISH.get(message.finish_reason, message.finish_reason)
    return "aborted" if message.stop_reason == "aborted" else "error"


def _texts(content: Iterable[Any]) -> list[str]:
    texts = []
    for block in content:
        if isinstance(block, Text):
            texts.append(block.text)
        elif isinstance(block, Image | InlineData):
            texts.append("[image]")
    return texts


def _thinking(block: Thinking) -> Line:
    line: Line = {"text": block.thinking}
    if block.fidelity and "signature" in block.fidelity:
        line["signature"] = block.fidelity["signature"]
    return line


def _call(event: Any) -> Line:
    return {"call": event.tool_call_id, "tool": event.tool_name}


def _tool_call(call: ToolCall) -> Line:
    return {"id": call.id, "tool": call.name, **arguments_of(call.arguments)}


def arguments_of(text: str) -> Line:
    """The arguments as an object; text that is none stands beside an empty one."""
    try:
        return {"args": ToolCall("", "", text).parse()}
    except ValueError:
        return {"args": {}, "raw": text}


def strings_in(value: Any) -> Iterable[str]:
    """All strings in a JSON value, keys included."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item


def compact_json(value: Any) -> str:
    """JSON without spaces, as the scripted provider sends arguments."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
