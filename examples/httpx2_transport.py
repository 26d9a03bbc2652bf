"""A model adapter over plain `httpx2`: an OpenAI-compatible stream, with its errors, and closed however it is left.

Needs the package `httpx2` (it comes with the extra `mcp`).
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2

from agentloop import (
    AgentEnd,
    AssistantMessage,
    Config,
    Context,
    ModelError,
    ToolResultMessage,
    Usage,
    agent_loop,
    code_for_status,
    tool,
)
from agentloop.model import Finish, ModelChunk, ModelRequest, TextChunk, ToolCallChunk, UsageChunk
from agentloop.testing.wire import Play, WireServer

FINISH: dict[str, Any] = {"stop": "stop", "length": "length", "tool_calls": "tool_use"}


class SmallChat:
    def __init__(self, model: str, base_url: str, provider: str = "example") -> None:
        self.model, self.base_url, self.provider = model, base_url, provider

    async def __call__(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        body = {"model": self.model, "messages": messages(request), "stream": True, **request.options}
        body["tools"] = [{"type": "function", "function": {"name": each.name, "description": each.description,
                          "parameters": each.parameters}} for each in request.tools]  # fmt: skip
        try:
            async with httpx2.AsyncClient(timeout=60) as client, client.stream("POST", self.base_url, json=body) as got:
                if got.status_code != 200:
                    text, wait = (await got.aread()).decode(errors="replace"), got.headers.get("retry-after", "")
                    code = "context_too_long" if "context_length_exceeded" in text else code_for_status(got.status_code)
                    raise ModelError(code, text, retry_after=float(wait) if wait.isdigit() else None)
                events = aiter(httpx2.EventSource(got))
                try:
                    async for event in events:
                        for chunk in chunks(json.loads(event.data) if event.data != "[DONE]" else {}):
                            yield chunk
                finally:  # closing the response makes all generators inside end at their next step: none is left over
                    with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                        await got.aclose()
                        [_ async for _ in events]
        except httpx2.TimeoutException as error:
            raise ModelError("timeout", str(error)) from error
        except (ValueError, LookupError, TypeError, AttributeError, httpx2.SSEError) as error:
            raise ModelError("malformed", f"{type(error).__name__}: {error}") from error
        except httpx2.HTTPError as error:
            raise ModelError("network", f"{type(error).__name__}: {error}") from error


def chunks(event: dict[str, Any]) -> list[ModelChunk]:
    found: list[ModelChunk] = []
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        found += [TextChunk(delta["content"])] if delta.get("content") else []
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            found.append(
                ToolCallChunk(function.get("arguments") or "", call.get("id"), function.get("name"), call["index"])
            )
        found += [Finish(FINISH.get(choice["finish_reason"], "unknown"))] if choice.get("finish_reason") else []
    if used := event.get("usage"):
        found.append(UsageChunk(Usage(0, used["prompt_tokens"], used["completion_tokens"])))
    return found


def messages(request: ModelRequest) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    if request.system_prompt:
        sent.append({"role": "system", "content": request.system_prompt})
    for each in request.messages:
        match each:
            case ToolResultMessage():
                sent.append({"role": "tool", "tool_call_id": each.tool_call_id, "content": each.text})
            case AssistantMessage() if each.tool_calls:
                calls = [{"id": call.id, "type": "function", "function": {
                    "name": call.name, "arguments": call.arguments}} for call in each.tool_calls]  # fmt: skip
                sent.append({"role": "assistant", "content": each.text, "tool_calls": calls})
            case _:
                sent.append({"role": each.role, "content": each.text})
    return sent


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def reply(*deltas: dict[str, Any], finish: str) -> Play:
    choices = [*[{"delta": delta} for delta in deltas], {"delta": {}, "finish_reason": finish}]
    lines = [b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode() for choice in choices]
    return Play(b"".join(lines) + b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"})


async def main() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    with WireServer() as server:  # stands for the provider
        address = server.play(
            reply({"tool_calls": [call]}, finish="tool_calls"), reply({"content": "It is 5."}, finish="stop")
        )
        async for event in agent_loop("2 + 3?", Context(tools=[add]), Config(model=SmallChat("m", address))):
            if isinstance(event, AgentEnd):
                print(event.messages[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
