"""One small stream of each API, made by hand: three pieces of text, then a call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from agentloop.model import Model
from agentloop.models.anthropic import Anthropic
from agentloop.models.gemini import Gemini
from agentloop.models.ollama import Ollama
from agentloop.models.openai_chat import OpenAIChat
from agentloop.models.openai_responses import OpenAIResponses
from agentloop.testing.wire import Play

PIECES = ("Grüß ", "dich, 世界 ", "😀!")
TEXT = "".join(PIECES)
ARGUMENTS = '{"city":"Köln"}'


@attrs.frozen
class Api:
    """How an adapter is made, and one reply of its API: three pieces of text, then a call."""

    name: str
    make: Callable[[str], Model]
    events: Sequence[bytes]
    whole: int
    """After so many events the reply is whole, whatever follows."""
    error: bytes
    """An event that says that the server is overloaded."""
    code: str = "overloaded"
    content_type: str = "text/event-stream"

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.events)

    def upto(self, count: int) -> int:
        """How many bytes the first events have."""
        return sum(map(len, self.events[:count]))

    def text(self, count: int) -> str:
        """The text in the first events."""
        return "".join(piece for piece in PIECES if any(escaped(piece) in event for event in self.events[:count]))

    def play(self, body: bytes | None = None, **options: Any) -> Play:
        """The reply as an answer of the server."""
        return Play(self.body if body is None else body, headers={"content-type": self.content_type}, **options)


def escaped(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def sse(name: str | None, **data: Any) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def chat() -> Api:
    def chunk(delta: Any, finish: str | None = None) -> bytes:
        return sse(
            None, object="chat.completion.chunk", choices=[{"index": 0, "delta": delta, "finish_reason": finish}]
        )

    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}
    events = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": piece}) for piece in PIECES),
        chunk({"tool_calls": [call]}),
        chunk({}, "tool_calls"),
        sse(None, object="chat.completion.chunk", choices=[], usage={"prompt_tokens": 3, "completion_tokens": 5}),
        b"data: [DONE]\n\n",
    ]
    error = sse(None, error={"message": "Overloaded", "code": 503})
    return Api("chat", lambda at: OpenAIChat("m", base_url=f"{at}/v1", api_key="k", provider="test"), events, 6, error)


def responses() -> Api:
    def event(kind: str, **data: Any) -> bytes:
        return sse(f"response.{kind}", type=f"response.{kind}", **data)

    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "look", "arguments": ""}
    usage = {"input_tokens": 3, "output_tokens": 5}
    events = [
        event("created", response={"id": "r", "status": "in_progress"}),
        event("output_item.added", output_index=0, item=message),
        *(
            event("output_text.delta", output_index=0, content_index=0, item_id="msg_1", delta=piece)
            for piece in PIECES
        ),
        event("output_item.done", output_index=0, item={**message, "status": "completed"}),
        event("output_item.added", output_index=1, item=call),
        event("function_call_arguments.delta", output_index=1, item_id="fc_1", delta=ARGUMENTS),
        event("output_item.done", output_index=1, item={**call, "status": "completed", "arguments": ARGUMENTS}),
        event("completed", response={"id": "r", "status": "completed", "output": [], "usage": usage}),
    ]
    error = sse("error", type="error", code="server_is_overloaded", message="Overloaded")
    return Api("responses", lambda at: OpenAIResponses("m", base_url=f"{at}/v1", api_key="k"), events, 10, error)


def messages() -> Api:
    def event(kind: str, **data: Any) -> bytes:
        return sse(kind, type=kind, **data)

    def delta(index: int, **data: Any) -> bytes:
        return event("content_block_delta", index=index, delta=data)

    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    events = [
        event("message_start", message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(delta(0, type="text_delta", text=piece) for piece in PIECES),
        event("content_block_stop", index=0),
        event("content_block_start", index=1, content_block=call),
        delta(1, type="input_json_delta", partial_json=ARGUMENTS),
        event("content_block_stop", index=1),
        event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
        event("message_stop"),
    ]
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    return Api("messages", lambda at: Anthropic("m", base_url=at, api_key="k"), events, 10, error)


def gemini() -> Api:
    def event(*parts: Any, **fields: Any) -> bytes:
        return sse(None, candidates=[{"content": {"role": "model", "parts": list(parts)}, **fields}], responseId="r",
                   usageMetadata={"promptTokenCount": 3, "candidatesTokenCount": 5})  # fmt: skip

    events = [
        *(event({"text": piece}) for piece in PIECES),
        event({"functionCall": {"name": "look", "args": json.loads(ARGUMENTS)}, "thoughtSignature": "S"}),
        event({"text": ""}, finishReason="STOP"),
    ]
    error = sse(None, error={"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"})
    return Api("gemini", lambda at: Gemini("m", base_url=at, api_key="k"), events, 5, error)


def gemini_array() -> Api:
    streamed = gemini()
    events = [event.removeprefix(b"data: ").strip() + b"\n,\n" for event in streamed.events]
    events = [b"[" + events[0], *events[1:-1], events[-1].removesuffix(b",\n") + b"]"]
    error = streamed.error.removeprefix(b"data: ").strip() + b"\n]"
    return attrs.evolve(streamed, name="gemini array", events=events, error=error, content_type="application/json")


def ollama() -> Api:
    def line(content: str = "", done: bool = False, **fields: Any) -> bytes:
        message = {"role": "assistant", "content": content, **fields.pop("message", {})}
        return (
            json.dumps({"model": "m", "message": message, "done": done, **fields}, ensure_ascii=False).encode() + b"\n"
        )

    call = {"function": {"name": "look", "arguments": json.loads(ARGUMENTS)}}
    events = [
        *(line(piece) for piece in PIECES),
        line(message={"tool_calls": [call]}),
        line(done=True, done_reason="stop", prompt_eval_count=3, eval_count=5),
    ]
    error = b'{"error":"the model runner has unexpectedly stopped"}\n'
    kind = "application/x-ndjson"
    return Api("ollama", lambda at: Ollama("m", base_url=at), events, 5, error, "network", kind)


APIS = [chat(), responses(), messages(), gemini(), gemini_array(), ollama()]
