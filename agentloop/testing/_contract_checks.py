"""The checks of the adapter battery: one function a rule, its docstring the rule."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import attrs

from agentloop import grammar
from agentloop.abort import AbortSignal
from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import ModelError
from agentloop.events import AgentEnd, Event, MessageEnd, MessageUpdate, RequestEnd, TextDelta, ToolExecutionEnd
from agentloop.loop import agent_loop, running
from agentloop.messages import AssistantMessage, ToolCall, user
from agentloop.model import Finish, Model, ModelRequest, UsageChunk
from agentloop.testing._contract_parts import (
    CHUNKS,
    CannotPlay,
    Provider,
    Reply,
    all_closed,
    broken,
    chunks_of,
    close,
    no_generator_left,
    read,
    text_of,
)
from agentloop.testing.collect import collect
from agentloop.tools import Tool, tool

PIECES = ("Grüße", ", one\u2028line", "\u0085 \r\n\r\n", '"quoted\\" ', "\t😀 ", "data: [x]", " the end.")
"""What readers of streams trip over: characters of several bytes, separators that are no line ends, blank lines."""
WHOLE = Reply(PIECES)
STALLED = Reply(PIECES, end="stall")
CALL = ToolCall("call_1", "lookup", '{"city": "Köln", "days": [1, 2], "deep": {"a\\"b": null}}')
PROMPT = f"call lookup {CALL.arguments}"
RESULT = "rain and 17 degrees"
SOON = 5.0
"""Longest time, in seconds, in which text that was sent has to come out."""


@tool
async def lookup(city: str, days: list[int] | None = None, deep: dict[str, Any] | None = None) -> str:
    """The weather in a city."""
    return RESULT


def _request(prompt: str = "Hello", **options: Any) -> ModelRequest:
    return ModelRequest("Be brief.", [user(prompt)], [lookup.spec], options)


async def _run(model: Model, prompt: str = "Hello", *, tools: Sequence[Tool] = (), **config: Any) -> list[Event]:
    """One run, held against the grammar."""
    events = await collect(
        agent_loop(prompt, Context("Be brief.", (), tools), Config(model=model, retry=None, **config))
    )
    grammar.check(events)
    return events


def _reply(events: Sequence[Event]) -> AssistantMessage:
    """The run's only reply, committed."""
    replies = [event.message for event in events if isinstance(event, MessageEnd)]
    found = [message for message in replies if isinstance(message, AssistantMessage)]
    end = events[-1]
    if not isinstance(end, AgentEnd) or end.stop_reason != "completed":
        broken("a completed run", f"{getattr(end, 'error_code', None)}: {getattr(end, 'error_message', None)}")
    if len(found) != 1:
        broken("one reply", f"{len(found)}")
    return found[0]


def _deltas(events: Sequence[Event]) -> list[str]:
    return [e.delta.text for e in events if isinstance(e, MessageUpdate) and isinstance(e.delta, TextDelta)]


def _same(what: str, expected: Any, got: Any) -> None:
    if expected != got:
        broken(f"{what} {expected!r}", f"{got!r}")


# ---------------------------------------------------------------- what comes in


async def text(provider: Provider) -> None:
    """The reply's text is what the provider sent, character for character, as the joined deltas and in the message."""
    events = await _run(provider.model(WHOLE))
    reply = _reply(events)
    if provider.exact:
        _same("the text", "".join(PIECES), reply.text)
    if not reply.content:
        broken("a reply with content", "an empty one")
    _same("deltas that join to", reply.text, "".join(_deltas(events)))


async def chunks(provider: Provider) -> None:
    """A model yields chunks of `agentloop.model`; a whole reply has one `Finish`, and only usage comes after it."""
    reading = await read(provider.model(WHOLE), _request())
    if reading.error is not None:
        broken("a whole reply", f"{reading.error}")
    wrong = [type(chunk).__name__ for chunk in reading.chunks if not isinstance(chunk, CHUNKS)]
    _same("no other chunks than the model's:", [], wrong)
    ends = [place for place, chunk in enumerate(reading.chunks) if isinstance(chunk, Finish)]
    if len(ends) != 1:
        broken("one Finish", f"{len(ends)}")
    late = [type(chunk).__name__ for chunk in reading.chunks[ends[0] + 1 :] if not isinstance(chunk, UsageChunk)]
    _same("only UsageChunk after Finish, not", [], late)


async def streams(provider: Provider) -> None:
    """Text is passed on as it comes, not when the reply is over."""
    if not provider.exact:
        reading = await read(provider.model(WHOLE), _request())
        if sum(not isinstance(chunk, UsageChunk | Finish) for chunk in reading.chunks) < 2:
            broken("a reply in several chunks", "one")
        return
    seen = ""
    stream = chunks_of(provider.model(STALLED), _request())
    with anyio.move_on_after(SOON):
        async for chunk in stream:
            seen += text_of(chunk)
            if seen:
                break
    await close(stream)
    if not seen:
        broken("text while the stream is open", f"none within {SOON:g} s")


async def ending(provider: Provider) -> None:
    """The reply says why it ended, in the words of `FinishReason`, and what it cost."""
    for finish in ("stop", "length"):
        reply = _reply(await _run(provider.model(attrs.evolve(WHOLE, finish=finish))))
        if reply.usage is None or reply.usage.output == 0:
            broken("usage in the reply", f"{reply.usage}")
        if not provider.exact:
            return
        _same("finish reason", finish, reply.finish_reason)
        _same("usage", WHOLE.usage, reply.usage)


async def names(provider: Provider) -> None:
    """`provider` and `model`, where a model has them, are texts: they go into its replies."""
    model = provider.model(WHOLE)
    for name in ("provider", "model"):
        value = getattr(model, name, None)
        if value is not None and not (isinstance(value, str) and value):
            broken(f"model.{name} to be a text", repr(value))


# ---------------------------------------------------------------- calls and turns


async def tool_round_trip(provider: Provider) -> None:
    """A call arrives whole, and its result goes out with the next request, of which there is one."""
    asked = len(provider.sent() or ())
    model = provider.model(Reply(("One moment. ",), (CALL,), finish="tool_use"), WHOLE)
    events = await _run(model, PROMPT, tools=[lookup])
    ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
    if len(ends) != 1 or ends[0].is_error:
        broken("one call that works", f"{[end.result.text for end in ends]}")
    calls = [c for e in events if isinstance(e, MessageEnd) for c in getattr(e.message, "tool_calls", ())]
    _same("a call of", "lookup", calls[0].name)
    _same("arguments", CALL.parse(), calls[0].parse())
    last = events[-1]
    text = getattr(last.messages[-1], "text", "") if isinstance(last, AgentEnd) else ""
    if getattr(last, "stop_reason", None) != "completed" or not text:
        broken("a second reply after the result", f"{last}")
    if (sent := provider.sent()) is not None:
        _same("requests, as many as turns:", 2, len(sent) - asked)
        if RESULT not in sent[-1]:
            broken(f"the result {RESULT!r} in the second request", sent[-1][:2_000])


async def parallel_calls(provider: Provider) -> None:
    """Several calls of one reply arrive in order, each with its own arguments."""
    if not provider.exact:
        raise CannotPlay("several calls on demand")
    wanted = [ToolCall(f"call_{n}", "lookup", f'{{"city": "{n}"}}') for n in (1, 2, 3)]
    model = provider.model(Reply((), wanted, finish="tool_use"), WHOLE)
    events = await _run(model, tools=[lookup])
    calls = [c for e in events if isinstance(e, MessageEnd) for c in getattr(e.message, "tool_calls", ())]
    _same("calls", [call.parse() for call in wanted], [call.parse() for call in calls])


async def second_turn(provider: Provider) -> None:
    """One model serves many requests, and what it said goes out with the next."""
    model = provider.model(WHOLE)
    first = _reply(await _run(model))
    history = Context("Be brief.", (user("Hello"), first))
    events = await collect(agent_loop("And then?", history, Config(model=model, retry=None)))
    grammar.check(events)
    second = _reply(events)
    if provider.exact:
        _same("the same text again", first.text, second.text)
    if provider.exact and (sent := provider.sent()) is not None and "the end." not in sent[-1]:
        broken("the first reply in the second request", sent[-1][:2_000])


async def side_by_side(provider: Provider) -> None:
    """Two requests may be under way at once: nothing of one reply gets into the other."""
    replies = [Reply(("one ", "two ", "three")), Reply(("a ", "b ", "c"))]
    model = provider.model(*replies)
    both, texts = _Meeting(2), []

    async def one() -> None:
        seen = ""
        async for chunk in chunks_of(model, _request()):
            seen += text_of(chunk)
            if seen:
                await both.meet()
        texts.append(seen)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    if provider.exact:
        _same("the texts", sorted("".join(reply.text) for reply in replies), sorted(texts))


class _Meeting:
    """Where tasks wait until all have come; whoever was there passes from then on."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._here: set[int] = set()
        self._all = anyio.Event()

    async def meet(self) -> None:
        task = anyio.get_current_task().id
        if task not in self._here:
            self._here.add(task)
            self._missing -= 1
        if self._missing <= 0:
            self._all.set()
        await self._all.wait()


async def request_untouched(provider: Provider) -> None:
    """A request belongs to the caller: its messages, tools and options stay as they are, lists and dicts included."""
    request = _request(max_tokens=64)
    before = copy.deepcopy((request.messages, request.tools, dict(request.options)))
    reading = await read(provider.model(WHOLE), request)
    if reading.error is not None:
        broken("a reply", f"{reading.error}")
    _same("messages, tools and options", before, (request.messages, request.tools, dict(request.options)))


# ---------------------------------------------------------------- failures

WAITS = {"rate_limit": 7.0, "overloaded": 7.0}


async def errors(provider: Provider) -> None:
    """A refused request is a `ModelError` with the right code, nothing before it; a wait that was asked for is passed
    on. It is asked once: retries are the loop's."""
    model_can = 0
    for code in ("auth", "rejected", "rate_limit", "overloaded", "network"):
        try:
            model = provider.model(Reply(error=code, retry_after=WAITS.get(code)))
        except CannotPlay:
            continue
        model_can += 1
        asked = len(provider.sent() or ())
        await _refused(model, code)
        if (sent := provider.sent()) is not None:
            _same(f"requests after {code}:", 1, len(sent) - asked)
        await all_closed(provider, "an error")
    if not model_can:
        raise CannotPlay("it never refuses")


async def _refused(model: Model, code: str) -> None:
    reading = await read(model, _request())
    if reading.error is None:
        broken(f"a ModelError ({code})", "none")
    _same("no chunk before an error:", [], reading.chunks)
    _same("error code", code, reading.error.code)
    if code in WAITS:
        _same("retry_after", WAITS[code], reading.error.retry_after)
    if not reading.error.message.strip():
        broken("an error with words", "none")


async def context_too_long(provider: Provider) -> None:
    """A prompt that is too long has its own code, so that a compaction can help."""
    await _refused(provider.model(Reply(error="context_too_long")), "context_too_long")


async def cut(provider: Provider) -> None:
    """A stream that ends without the provider's mark of an end is cut off: no `Finish`, and the attempt `truncated`."""
    model = provider.model(Reply(PIECES, end="cut"))
    events = await _run(model)
    ends = [event for event in events if isinstance(event, RequestEnd)]
    _same("the attempt's error code", ["truncated"], [end.error_code for end in ends])
    _same("the text until then", "".join(PIECES), "".join(_deltas(events)))


async def broken_off(provider: Provider) -> None:
    """A connection that fails in the middle is a failure that may be tried again, never a foreign exception."""
    await _failed(provider, Reply(PIECES, end="broken"), "a broken connection")


async def garbage(provider: Provider) -> None:
    """Bytes that are not of the provider's format are a failure that may be tried again, never a foreign exception."""
    await _failed(provider, Reply(PIECES, end="garbage"), "garbage")


async def _failed(provider: Provider, reply: Reply, what: str) -> None:
    reading = await read(provider.model(reply), _request())
    if any(isinstance(chunk, Finish) for chunk in reading.chunks):
        broken(f"no Finish after {what}", "one")
    if reading.error is not None and not reading.error.retryable:
        broken("a retryable error", f"{reading.error}")
    if not "".join(PIECES).startswith(reading.text):
        broken("the text that was sent, or the beginning of it", repr(reading.text))
    await all_closed(provider, what)


# ---------------------------------------------------------------- leaving


async def closed_at_the_end(provider: Provider) -> None:
    """A reply that was read to its end leaves no stream and no async generator open."""
    with no_generator_left():
        await read(provider.model(WHOLE), _request())
    await all_closed(provider, "the end of a reply")


async def closed_when_left(provider: Provider) -> None:
    """Closing the iterator in the middle of a reply closes the provider's stream and every async generator inside."""
    model = provider.model(STALLED if provider.exact else WHOLE)
    with no_generator_left():
        stream = chunks_of(model, _request())
        async for chunk in stream:
            if text_of(chunk) or not provider.exact:
                break
        await close(stream)
    await all_closed(provider, "closing the iterator")


async def closed_when_cancelled(provider: Provider) -> None:
    """A cancellation of the task that steps the iterator comes through as one, and the stream is closed."""
    with anyio.CancelScope() as scope:
        stream = chunks_of(provider.model(STALLED), _request())
        try:
            async for chunk in stream:
                if text_of(chunk):
                    scope.cancel()
        except ModelError as error:
            broken("the cancellation to pass", f"{error}")
        finally:
            with anyio.CancelScope(shield=True):
                await close(stream)
    if not scope.cancelled_caught:
        broken("the cancellation to pass", "it was swallowed")
    await all_closed(provider, "a cancellation")


async def closed_when_aborted(provider: Provider) -> None:
    """An abort ends the run in the middle of a reply, and the stream is closed."""
    abort = AbortSignal()
    events = []
    async with running(agent_loop("Hello", Context(), Config(model=provider.model(STALLED), abort=abort))) as run:
        async for event in run:
            events.append(event)
            if isinstance(event, MessageUpdate):
                abort.abort("enough")
    grammar.check(events)
    _same("the run", "aborted", getattr(events[-1], "stop_reason", None))
    await all_closed(provider, "an abort")


async def closed_unstarted(provider: Provider) -> None:
    """An iterator that was never stepped costs nothing: closing it leaves nothing open."""
    model = provider.model(WHOLE)
    await close(model(_request()))
    await all_closed(provider, "closing an iterator that was never stepped")


ALL: Sequence[Callable[[Provider], Awaitable[None]]] = (
    names, text, chunks, streams, ending, tool_round_trip, parallel_calls, second_turn, side_by_side, request_untouched,
    errors, context_too_long, cut, broken_off, garbage, closed_at_the_end, closed_when_left, closed_when_cancelled,
    closed_when_aborted, closed_unstarted,
)  # fmt: skip
