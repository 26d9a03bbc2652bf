"""The battery holds every adapter of ours, and notices the ways in which one can be wrong."""

from __future__ import annotations

import gc
import json
import runpy
import unittest
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from agentloop.errors import ModelError
from agentloop.model import Finish, Model, ModelChunk, ModelRequest, UsageChunk
from agentloop.models.anthropic import Anthropic
from agentloop.models.gemini import Gemini
from agentloop.models.offline import OfflineModel
from agentloop.models.ollama import Ollama
from agentloop.models.openai_chat import OpenAIChat
from agentloop.models.openai_responses import OpenAIResponses
from agentloop.testing import CUT, STALL, ScriptedModel, call, text
from agentloop.testing.contract import (
    CHECKS,
    CannotPlay,
    Check,
    ContractBroken,
    Provider,
    Reply,
    WireProvider,
    check_model,
)

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------- our adapters


def events(*items: tuple[str | None, Any]) -> bytes:
    """Server-sent events, as their names and their data."""
    lines = [f"event: {name}\n" * (name is not None) + f"data: {json.dumps(data)}\n\n" for name, data in items]
    return "".join(lines).encode()


def halves(arguments: str) -> tuple[str, str]:
    return arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]


class ScriptedProvider(Provider):
    def __init__(self) -> None:
        self._made: list[ScriptedModel] = []

    def model(self, *replies: Reply) -> Model:
        played = [_script(reply) for reply in replies]
        self._made.append(ScriptedModel([*played, *[played[-1]] * 3]))
        return self._made[-1]

    def open_streams(self) -> int:
        return sum(model.open_streams for model in self._made)

    def sent(self) -> Sequence[str]:
        return [str(request.messages) for model in self._made for request in model.requests]


def _script(reply: Reply) -> list[Any]:
    if reply.error is not None:
        return [ModelError(reply.error, "refused", retry_after=reply.retry_after)]
    content: list[Any] = [text(*reply.text)] if reply.text else []
    content += [call(each.name, each.arguments, pieces=halves(each.arguments)) for each in reply.calls]
    ends = {
        "whole": [UsageChunk(reply.usage), Finish(reply.finish)],
        "cut": [CUT],
        "broken": [ModelError("network", "the connection broke")],
        "stall": [STALL],
        "garbage": [ModelError("malformed", "no JSON")],
    }
    return [*content[: None if reply.end == "whole" else 1], *ends[reply.end]]


class OfflineProvider(Provider):
    exact = False

    def model(self, *replies: Reply) -> Model:
        if any(reply.error or reply.end != "whole" for reply in replies):
            raise CannotPlay("fixed rules neither fail nor wait")
        return OfflineModel()

    def open_streams(self) -> int:
        return 0


class ChatProvider(WireProvider):
    def adapter(self, address: str) -> Model:
        return OpenAIChat("m", base_url=f"{address}/v1", api_key="k", provider="test")

    def body(self, reply: Reply) -> tuple[bytes, bytes]:
        def delta(finish: str | None = None, **fields: Any) -> tuple[None, Any]:
            return None, {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
            }

        content = [delta(content=piece) for piece in reply.text]
        for place, each in enumerate(reply.calls):
            first, second = halves(each.arguments)
            head = {"index": place, "id": each.id, "function": {"name": each.name, "arguments": first}}
            content += [
                delta(tool_calls=[head]),
                delta(tool_calls=[{"index": place, "function": {"arguments": second}}]),
            ]
        used = {"prompt_tokens": reply.usage.cache_write, "completion_tokens": reply.usage.output}
        finish = {"tool_use": "tool_calls"}.get(reply.finish, reply.finish)
        return events(*content), events(delta(finish), (None, {"choices": [], "usage": used})) + b"data: [DONE]\n\n"


class ExampleProvider(ChatProvider):
    """The adapter over plain httpx2 that stands among the examples."""

    def adapter(self, address: str) -> Model:
        pytest.importorskip("httpx2")
        example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "httpx2_transport.py"))
        return example["SmallChat"]("m", f"{address}/v1/chat/completions")  # type: ignore[no-any-return]


class ResponsesProvider(WireProvider):
    def adapter(self, address: str) -> Model:
        return OpenAIResponses("m", base_url=f"{address}/v1", api_key="k")

    def body(self, reply: Reply) -> tuple[bytes, bytes]:
        content: list[Any] = []

        def add(kind: str, index: int, **fields: Any) -> None:
            content.append((f"response.{kind}", {"type": f"response.{kind}", "output_index": index, **fields}))

        if reply.text:
            item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
            add("output_item.added", 0, item=item)
            for piece in reply.text:
                add("output_text.delta", 0, item_id="msg_1", content_index=0, delta=piece)
            whole = [{"type": "output_text", "annotations": [], "text": "".join(reply.text)}]
            if reply.end == "whole":
                add("output_item.done", 0, item={**item, "status": "completed", "content": whole})
        for index, each in enumerate(reply.calls, len(reply.text) > 0):
            item = {"id": f"fc_{index}", "type": "function_call", "call_id": each.id, "name": each.name}
            add("output_item.added", index, item={**item, "arguments": ""})
            for half in halves(each.arguments):
                add("function_call_arguments.delta", index, item_id=item["id"], delta=half)
            add("output_item.done", index, item={**item, "status": "completed", "arguments": each.arguments})
        cut = reply.finish == "length"
        kind = "response.incomplete" if cut else "response.completed"
        used = {"input_tokens": reply.usage.cache_write, "output_tokens": reply.usage.output}
        response = {"id": "r", "status": kind[9:], "output": [], "usage": used}
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        return events(*content), events((kind, {"type": kind, "response": response}))


class AnthropicProvider(WireProvider):
    def adapter(self, address: str) -> Model:
        return Anthropic("m", base_url=address, api_key="k")

    def body(self, reply: Reply) -> tuple[bytes, bytes]:
        used = {"input_tokens": reply.usage.cache_write, "output_tokens": 1}
        items: list[Any] = [{"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": used}}]

        def block(index: int, opening: Mapping[str, Any], deltas: Sequence[Mapping[str, Any]], closed: bool) -> None:
            items.append({"type": "content_block_start", "index": index, "content_block": opening})
            items.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
            if closed:
                items.append({"type": "content_block_stop", "index": index})

        if reply.text:
            deltas = [{"type": "text_delta", "text": piece} for piece in reply.text]
            block(0, {"type": "text", "text": ""}, deltas, reply.end == "whole")
        for index, each in enumerate(reply.calls, len(reply.text) > 0):
            opening = {"type": "tool_use", "id": each.id, "name": each.name, "input": {}}
            block(
                index, opening, [{"type": "input_json_delta", "partial_json": h} for h in halves(each.arguments)], True
            )
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_use": "tool_use"}[reply.finish]
        usage = {"output_tokens": reply.usage.output}
        end = [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}, {"type": "message_stop"}]
        return events(*[(i["type"], i) for i in items]), events(*[(i["type"], i) for i in end])


class GeminiProvider(WireProvider):
    def adapter(self, address: str) -> Model:
        return Gemini("m", base_url=address, api_key="k")

    def body(self, reply: Reply) -> tuple[bytes, bytes]:
        def event(*parts: Any, **fields: Any) -> tuple[None, Any]:
            return None, {
                "candidates": [{"content": {"parts": list(parts), "role": "model"}, **fields}],
                "responseId": "r",
            }

        content = [event({"text": piece}) for piece in reply.text]
        for each in reply.calls:
            called = {"name": each.name, "args": json.loads(each.arguments)}
            content.append(event({"functionCall": {**called, "id": each.id} if each.id else called}))
        end = event(finishReason="MAX_TOKENS" if reply.finish == "length" else "STOP")
        used = {"promptTokenCount": reply.usage.cache_write, "candidatesTokenCount": reply.usage.output}
        return events(*content), events((None, {**end[1], "usageMetadata": used}))


class OllamaProvider(WireProvider):
    headers: ClassVar[Mapping[str, str]] = {"content-type": "application/x-ndjson"}

    def adapter(self, address: str) -> Model:
        return Ollama("m", base_url=address)

    def body(self, reply: Reply) -> tuple[bytes, bytes]:
        lines = [{"message": {"content": piece}, "done": False} for piece in reply.text]
        for each in reply.calls:
            called = {"id": each.id, "function": {"name": each.name, "arguments": json.loads(each.arguments)}}
            lines.append({"message": {"content": "", "tool_calls": [called]}, "done": False})
        used = {"prompt_eval_count": reply.usage.cache_write, "eval_count": reply.usage.output}
        reason = "length" if reply.finish == "length" else "stop"
        end = {"message": {"content": ""}, "done": True, "done_reason": reason, **used}
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines), json.dumps(end).encode() + b"\n"


PROVIDERS = [
    ScriptedProvider,
    OfflineProvider,
    ChatProvider,
    ResponsesProvider,
    AnthropicProvider,
    GeminiProvider,
    OllamaProvider,
    ExampleProvider,
]


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.__name__.removesuffix("Provider"))
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    made = request.param()
    if isinstance(made, WireProvider):
        with made:
            yield made
    else:
        yield made


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_adapter(provider: Provider, check: Check) -> None:
    """Every adapter keeps every rule, and leaves nothing that warns when it is collected."""
    await check(provider)
    if check.name.startswith("closed"):
        gc.collect()


async def test_a_list_of_findings() -> None:
    """Without a test runner the checks give a list, in their order: kept, or skipped with the reason."""
    findings = await check_model(OfflineProvider())
    assert [finding.check for finding in findings] == [check.name for check in CHECKS]
    assert {finding.outcome for finding in findings} == {"kept", "skipped"}
    assert str(findings[1]) == "kept    text"
    assert "skipped cut: this provider never does that (fixed rules neither fail nor wait)" in map(str, findings)


# ---------------------------------------------------------------- adapters that are wrong

KEPT: list[Any] = []
"""Streams that a wrong adapter left to somebody else."""


@attrs.define
class Wrong:
    """An adapter with a fault: `chunks` stands between a right one and the caller."""

    inner: ScriptedModel
    provider: Any = "wrong"
    model: Any = "wrong"

    def __call__(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        return self.chunks(request)

    async def right(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        stream = self.inner(request)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        try:
            async for chunk in self.right(request):
                yield chunk
        except ModelError as error:
            raise self.failing(error) from error

    def failing(self, error: ModelError) -> Exception:
        return ModelError(error.code, error.message, retry_after=error.retry_after)


class Nameless(Wrong):
    """Its name is a number."""

    caught: ClassVar = "names"

    def __init__(self, inner: ScriptedModel) -> None:
        super().__init__(inner, provider=7)


class LosesLines(Wrong):
    """It splits at what is no line end of the format."""

    caught: ClassVar = "text"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        async for chunk in self.right(request):
            yield attrs.evolve(chunk, text="".join(chunk.text.splitlines())) if hasattr(chunk, "text") else chunk


class FinishesTwice(Wrong):
    """It says the end twice."""

    caught: ClassVar = "chunks"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        async for chunk in self.right(request):
            yield chunk
            if isinstance(chunk, Finish):
                yield chunk


class TalksOn(Wrong):
    """It has more to say after its end."""

    caught: ClassVar = "chunks"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        async for chunk in self.right(request):
            yield chunk
        yield "and another thing"


class Buffers(Wrong):
    """It waits for the whole reply."""

    caught: ClassVar = "streams"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        for chunk in [chunk async for chunk in self.right(request)]:
            yield chunk


class Free(Wrong):
    """It counts no tokens."""

    caught: ClassVar = "ending"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        async for chunk in self.right(request):
            if not isinstance(chunk, UsageChunk):
                yield chunk


class AlwaysStops(Wrong):
    """Whatever the reason of an end, it calls it `stop`."""

    caught: ClassVar = "ending"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        async for chunk in self.right(request):
            yield Finish("stop") if isinstance(chunk, Finish) else chunk


class ForgetsResults(Wrong):
    """It sends the prompts alone."""

    caught: ClassVar = "tool_round_trip"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        prompts = [message for message in request.messages if message.role == "user"]
        async for chunk in self.right(attrs.evolve(request, messages=prompts)):
            yield chunk


class MixesCalls(Wrong):
    """It takes all calls for one."""

    caught: ClassVar = "parallel_calls"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        whole = [chunk async for chunk in self.right(request)]
        calls = [chunk for chunk in whole if hasattr(chunk, "arguments")]
        for chunk in whole:
            yield attrs.evolve(chunk, id=calls[0].id, index=0) if chunk in calls else chunk


@attrs.define
class OnlyOnce(Wrong):
    """It is used up after one request."""

    caught: ClassVar = "second_turn"
    used: bool = False

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        if self.used:
            raise ModelError("network", "the connection is closed")
        self.used = True
        async for chunk in self.right(request):
            yield chunk


@attrs.define
class SharesItsBuffer(Wrong):
    """Its buffer belongs to the adapter instead of the request."""

    caught: ClassVar = "side_by_side"
    buffer: str = ""

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        said = 0
        async for chunk in self.right(request):
            if hasattr(chunk, "text"):
                self.buffer += chunk.text
                yield self.buffer[said:]
                said = len(self.buffer)
            else:
                yield chunk
        self.buffer = ""


class TakesOptions(Wrong):
    """It takes from the caller's options what it has read."""

    caught: ClassVar = "request_untouched"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        request.options.pop("max_tokens", None)  # type: ignore[attr-defined]
        async for chunk in self.right(request):
            yield chunk


class AddsAMessage(Wrong):
    """It appends to the caller's messages."""

    caught: ClassVar = "request_untouched"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        if isinstance(request.messages, list):
            request.messages.append(request.messages[0])
        async for chunk in self.right(request):
            yield chunk


class Foreign(Wrong):
    """It lets the exceptions of its library through."""

    caught: ClassVar = "errors"

    def failing(self, error: ModelError) -> Exception:
        return OSError(str(error))


class OneCode(Wrong):
    """All failures are one to it."""

    caught: ClassVar = "errors"

    def failing(self, error: ModelError) -> Exception:
        return ModelError("network", error.message, retry_after=error.retry_after)


class Hurries(Wrong):
    """It does not pass on how long to wait."""

    caught: ClassVar = "errors"

    def failing(self, error: ModelError) -> Exception:
        return ModelError(error.code, error.message)


class Retries(Wrong):
    """It asks again by itself."""

    caught: ClassVar = "errors"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        try:
            async for chunk in self.right(request):
                yield chunk
        except ModelError:
            async for chunk in self.right(request):
                yield chunk


class NoRoomUnknown(Wrong):
    """A context that is too long is just a rejected request to it."""

    caught: ClassVar = "context_too_long"

    def failing(self, error: ModelError) -> Exception:
        return ModelError("rejected", error.message) if error.code == "context_too_long" else error


class AlwaysWhole(Wrong):
    """It takes the end of the stream for the end of the reply."""

    caught: ClassVar = "cut"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        ended = False
        async for chunk in self.right(request):
            ended = ended or isinstance(chunk, Finish)
            yield chunk
        if not ended:
            yield Finish("stop")


class GivesUp(Wrong):
    """A broken connection is the end of the matter to it."""

    caught: ClassVar = "broken_off"

    def failing(self, error: ModelError) -> Exception:
        return ModelError("rejected", error.message) if "broke" in error.message else error


class TripsOverGarbage(Wrong):
    """What it cannot read raises as its parser does."""

    caught: ClassVar = "garbage"

    def failing(self, error: ModelError) -> Exception:
        return ValueError(error.message) if error.code == "malformed" else error


class LeavesAtTheEnd(Wrong):
    """It has heard enough once the end was said."""

    caught: ClassVar = "closed_at_the_end"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        stream = self.inner(request)
        KEPT.append(stream)
        async for chunk in stream:
            yield chunk
            if isinstance(chunk, Finish):
                return


class LeavesItOpen(Wrong):
    """It never closes the generator that it reads."""

    caught: ClassVar = "closed_when_left"


class KeepsTheStream(Wrong):
    """Somebody else holds the stream, and nobody closes it."""

    caught: ClassVar = "closed_when_left"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        stream = self.inner(request)
        KEPT.append(stream)
        while (chunk := await anext(stream, None)) is not None:
            yield chunk


class IgnoresAborts(Wrong):
    """It gives its connection back at the end of a reply, and only there."""

    caught: ClassVar = "closed_when_aborted"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        self.inner.open_streams += 1
        async for chunk in self.right(request):
            yield chunk
        self.inner.open_streams -= 1


class Swallows(Wrong):
    """It takes a cancellation for a failure of the provider."""

    caught: ClassVar = "closed_when_cancelled"

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        stream = self.right(request)
        try:
            async for chunk in stream:
                yield chunk
        except anyio.get_cancelled_exc_class() as error:
            raise ModelError("network", "it ended") from error
        finally:
            with anyio.CancelScope(shield=True):
                await stream.aclose()  # type: ignore[attr-defined]


@attrs.define
class BeginsAtOnce(Wrong):
    """It opens its stream before anybody asks for a chunk."""

    caught: ClassVar = "closed_unstarted"

    def __call__(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        self.inner.open_streams += 1
        return self.chunks(request)

    async def chunks(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        stream = self.right(request)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            self.inner.open_streams -= 1
            await stream.aclose()  # type: ignore[attr-defined]


WRONG: Sequence[Any] = [
    Nameless, LosesLines, FinishesTwice, TalksOn, Buffers, Free, AlwaysStops, ForgetsResults, MixesCalls, OnlyOnce,
    SharesItsBuffer, TakesOptions, AddsAMessage, Foreign, OneCode, Hurries, Retries, NoRoomUnknown, AlwaysWhole,
    GivesUp, TripsOverGarbage, LeavesAtTheEnd, IgnoresAborts, LeavesItOpen, KeepsTheStream, Swallows, BeginsAtOnce,
]  # fmt: skip


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
async def test_a_wrong_adapter_is_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is noticed by the check that stands for it, which names its rule."""
    monkeypatch.setattr("agentloop.testing._contract_parts.CLOSE_BOUND", 0.05)
    monkeypatch.setattr("agentloop.testing._contract_checks.SOON", 0.05)

    class WrongProvider(ScriptedProvider):
        def model(self, *replies: Reply) -> Model:
            return wrong(super().model(*replies))  # type: ignore[no-any-return]

    check = next(check for check in CHECKS if check.name == wrong.caught)
    with pytest.raises(ContractBroken, match=rf"^{wrong.caught}: expected .*, got .*\. {check.rule[:10]}"):
        await check(WrongProvider())
    while KEPT:
        await KEPT.pop().aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_that_never_ends_is_a_breach() -> None:
    """An adapter that hangs breaks the rule instead of holding up the tests."""

    class Hangs(ScriptedProvider):
        def model(self, *replies: Reply) -> Model:
            return ScriptedModel([STALL])

    check = next(check for check in CHECKS if check.name == "text")
    with pytest.raises(ContractBroken, match=r"expected an end, got none within 0\.05 s"):
        await check(Hangs(), limit=0.05)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_cannot_be_played_is_skipped() -> None:
    """A check of what a provider never does says so, as a skip, not as kept."""
    check = next(check for check in CHECKS if check.name == "cut")
    with pytest.raises(unittest.SkipTest, match="fixed rules"):
        await check(OfflineProvider())


def test_a_provider_without_its_methods_says_which() -> None:
    """What a provider of one's own has to bring is named, not only missed."""
    for missed, name in (
        (lambda: Provider().model(), "Provider.model"),
        (lambda: Provider().open_streams(), "Provider.open_streams"),
        (lambda: WireProvider().adapter(""), "WireProvider.adapter"),
        (lambda: WireProvider().body(Reply()), "WireProvider.body"),
    ):
        with pytest.raises(NotImplementedError, match=f"^{name}: expected a method of your own$"):
            missed()


def test_each_check_has_its_wrong_adapter() -> None:
    """No check goes without an adapter that it catches."""
    assert {wrong.caught for wrong in WRONG} == {check.name for check in CHECKS}
