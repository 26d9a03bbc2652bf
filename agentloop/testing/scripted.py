"""`ScriptedModel`: a model that plays a script, for tests and demonstrations.

    model = ScriptedModel([
        [thinking("Two numbers."), call("add", {"a": 1, "b": 2})],
        "The sum is 3.",
    ])

Each request gets the next reply of the script. A reply is a list of steps (or one step alone), played in order:

- a chunk of `agentloop.model`, or a `str`, which is a piece of text;
- a block: `text("…")`, `thinking("…")`, `call("name", {…})`;
- an exception, instance or class: raised (a `ModelError` is a provider's failure; a retry is a reply of its own);
- an `anyio.Event`, or anything else with an async `wait()`: awaited;
- `sleep(seconds)`: on the clock that the model was given;
- `STALL`: nothing ever comes again; `CUT`: the stream just stops, without its `Finish`;
- a function of the request, sync or async: called, and what it returns is played in its place (None: nothing); an async
  generator function is played piece by piece;
- a list of steps.

A reply that says neither `Finish` nor `CUT` is finished with `tool_use` if it holds a call, else with `stop`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import anyio
import attrs

from agentloop.config import Clock, SystemClock
from agentloop.errors import FinishReason, ModelError
from agentloop.messages import JsonObject
from agentloop.model import (
    BlockChunk,
    BlockEnd,
    Finish,
    ModelChunk,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)

__all__ = ["CUT", "STALL", "ScriptedCall", "ScriptedModel", "Sleep", "Step", "call", "sleep", "text", "thinking"]

_CHUNKS = (TextChunk, ThinkingChunk, ToolCallChunk, BlockEnd, BlockChunk, UsageChunk, Finish, str)


@attrs.frozen
class Sleep:
    """A step: a pause of `seconds` on the model's clock."""

    seconds: float


@attrs.frozen
class ScriptedCall:
    """A step, made by `call`: a call of the tool `name`, its arguments in `pieces` of JSON text.

    `id` None: it gets `call_1`, `call_2`, … as it is played. `fidelity` comes with the first piece.
    """

    name: str
    pieces: tuple[str, ...]
    id: str | None = None
    fidelity: JsonObject | None = None


class _Mark:
    """A step that has no content of its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


STALL: Final = _Mark("STALL")
"""A step: the stream stays open and nothing ever comes again."""
CUT: Final = _Mark("CUT")
"""A step: the stream stops here, as when a connection is closed before its time."""
_END: Final = _Mark("_END")

Step: TypeAlias = Any
"""What a reply is made of; the module's text lists what may be one."""


def text(*pieces: str, fidelity: JsonObject | None = None) -> list[ModelChunk]:
    """A block of text; each piece is a delta. `fidelity` comes with the last piece."""
    *first, last = pieces or ("",)
    return [*[TextChunk(piece) for piece in first], TextChunk(last, fidelity=fidelity), BlockEnd()]


def thinking(*pieces: str, fidelity: JsonObject | None = None) -> list[ModelChunk]:
    """A block of thinking; each piece is a delta. `fidelity` (a signature, say) comes with the last piece."""
    *first, last = pieces or ("",)
    return [*[ThinkingChunk(piece) for piece in first], ThinkingChunk(last, fidelity=fidelity), BlockEnd()]


def call(
    name: str,
    arguments: Mapping[str, Any] | str | None = None,
    *,
    id: str | None = None,
    pieces: Iterable[str] | None = None,
    fidelity: JsonObject | None = None,
) -> ScriptedCall:
    """A call. `arguments` is an object, or JSON text taken as it is; `pieces` sends such text in several deltas.

    `id` None gets `call_1`, `call_2`, … as the model plays it; "" is a call that really comes without one. Raises `TypeError`
    for a name that is not a text: a tool itself, say.
    """
    if not isinstance(name, str):
        raise TypeError(f"call: expected the name of a tool, got {type(name).__name__}")
    if pieces is None:
        whole = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        pieces = (whole,)
    return ScriptedCall(name, tuple(pieces), id, fidelity)


def sleep(seconds: float) -> Sleep:
    """A pause on the clock that the model was given."""
    return Sleep(seconds)


class ScriptedModel:
    """A model callable that plays `replies`, one a request; `help(agentloop.testing.scripted)` says what a reply may be.

    `requests` holds what it was asked with, the first one first: `model.requests[0].messages`.

    Past the end it fails (`invalid_input`, which no retry repeats), or with `past_end="stop"` gives an empty `stop`
    reply; `on_past_end(n)` is told the number of such a request (from 1). `keep_requests=False` keeps none (long runs).
    Raises `TypeError` for `replies` that are no list.
    """

    def __init__(
        self,
        replies: Iterable[Step] = (),
        *,
        past_end: Literal["fail", "stop"] = "fail",
        on_past_end: Callable[[int], None] | None = None,
        keep_requests: bool = True,
        clock: Clock | None = None,
        provider: str = "scripted",
        model: str = "script",
    ) -> None:
        if isinstance(replies, str):  # an iterable too: each character would be a reply
            raise TypeError(f"script: expected a list of replies, got a text; write [{replies[:40]!r}]")
        if isinstance(replies, bytes | Mapping) or not isinstance(replies, Iterable):
            raise TypeError(f"script: expected a list of replies, got {type(replies).__name__}")
        self.replies = list(replies)
        """The script. It may be added to while a run goes on."""
        self.requests: list[ModelRequest] = []
        """What was asked, as it stood then: one for each attempt."""
        self.asked = 0
        """How many requests there were."""
        self.open_streams = 0
        """Streams that were begun and not yet closed; 0 once a run is over."""
        self.provider = provider
        self.model = model
        self._past_end = past_end
        self._on_past_end = on_past_end
        self._keep_requests = keep_requests
        self._clock = clock or SystemClock()
        self._calls = 0

    def __repr__(self) -> str:
        return f"<ScriptedModel asked {self.asked} of {len(self.replies)}>"

    @property
    def exhausted(self) -> bool:
        """Whether each reply was asked for."""
        return self.asked >= len(self.replies)

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Begin the next reply. The request is noted at once, its stream begins with its first step."""
        number = self.asked
        self.asked += 1
        if self._keep_requests:
            self.requests.append(attrs.evolve(request, messages=tuple(request.messages), tools=tuple(request.tools)))
        return self._stream(request, self.replies[number] if number < len(self.replies) else self._late(number + 1))

    def _late(self, number: int) -> Step:
        if self._on_past_end is not None:
            self._on_past_end(number)
        if self._past_end == "stop":
            return Finish("stop")
        count = len(self.replies)
        replies = "1 reply" if count == 1 else f"{count} replies"
        return ModelError("invalid_input", f"the script has {replies}, this is request {number}")

    async def _stream(self, request: ModelRequest, reply: Step) -> AsyncIterator[ModelChunk]:
        self.open_streams += 1
        sources: list[Iterator[Step] | AsyncIterator[Step]] = [iter((reply,))]
        finish: FinishReason | None = "stop"
        try:
            while sources:
                step = await _next(sources[-1])
                if step is _END:
                    sources.pop()
                elif step is CUT:
                    return
                elif isinstance(step, _CHUNKS):
                    finish = _finish_after(step, finish)
                    yield step
                else:
                    sources.append(await self._open(step, request))
            if finish is not None:
                yield Finish(finish)
        finally:
            self.open_streams -= 1
            await _close(sources)

    async def _open(self, step: Step, request: ModelRequest) -> Iterator[Step] | AsyncIterator[Step]:
        """Perform a step that is not a chunk; gives the steps that it stands for."""
        if isinstance(step, ScriptedCall):
            return iter(self._call_chunks(step))
        if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
            raise step
        if isinstance(step, Sleep):
            await self._clock.sleep(step.seconds)
        elif step is STALL:
            await anyio.sleep_forever()
        elif callable(step):
            return await _called(step, request)
        elif hasattr(step, "wait"):
            await step.wait()
        elif isinstance(step, Iterable) and not isinstance(step, bytes | Mapping):
            return iter(step)
        else:
            expected = "script: expected a step (help(agentloop.testing.scripted) lists them)"
            raise ModelError("invalid_input", f"{expected}, got {type(step).__name__}")  # which no retry repeats
        return iter(())

    def _call_chunks(self, step: ScriptedCall) -> list[ModelChunk]:
        self._calls += 1
        id = f"call_{self._calls}" if step.id is None else step.id or None
        first, *rest = step.pieces or ("",)
        opening = ToolCallChunk(first, id, step.name, fidelity=step.fidelity)
        return [opening, *[ToolCallChunk(piece) for piece in rest], BlockEnd()]


def _finish_after(chunk: ModelChunk, finish: FinishReason | None) -> FinishReason | None:
    """How a reply that holds this chunk ends by itself; None: the script said how."""
    if type(chunk) is Finish or finish is None:
        return None
    return "tool_use" if type(chunk) is ToolCallChunk else finish


async def _called(step: Callable[[ModelRequest], Any], request: ModelRequest) -> Iterator[Step] | AsyncIterator[Step]:
    value = step(request)
    if inspect.isawaitable(value):
        value = await value
    if isinstance(value, AsyncIterator):
        return value
    return iter(() if value is None else (value,))


async def _next(source: Iterator[Step] | AsyncIterator[Step]) -> Step:
    if isinstance(source, AsyncIterator):
        return await anext(source, _END)
    return next(source, _END)


async def _close(sources: list[Iterator[Step] | AsyncIterator[Step]]) -> None:
    """Close the generators of the script that are still open, the innermost first."""
    for source in reversed(sources):
        if isinstance(source, AsyncGenerator):
            await source.aclose()
        elif isinstance(source, Generator):
            source.close()
