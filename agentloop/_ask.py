"""One attempt: prepare the request, read the model's stream, say how it ended.

The stream is entered, stepped and closed in one job. It feeds the assembler, which emits; the driver only watches: for the
job's end, a stop, and silence.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import AsyncGeneratorType
from typing import Any, Final

import anyio.lowlevel
import attrs

from agentloop._assemble import Assembler
from agentloop._awaiting import is_awaitable
from agentloop._callbacks import CallbackFailed, Stopped, attribute, looked_at
from agentloop._frozen import frozen
from agentloop._host import Job, close_shielded, was_cancelled
from agentloop._run import Core
from agentloop._toolset import same_tools
from agentloop._values import errors_of, is_kind, plain_text
from agentloop.convert import default_convert, make_legal
from agentloop.errors import RETRYABLE_CODES, ModelError, StopReason, code_for_status
from agentloop.events import Event, RequestBegin, RequestEnd, TokenUsage, ToolListReady
from agentloop.messages import AgentMessage, AssistantMessage, CustomMessage
from agentloop.model import ModelRequest
from agentloop.tools import error_text

log = logging.getLogger("agentloop")


@frozen
class _Failure:
    """How an attempt failed."""

    status: StopReason
    error_code: str | None
    error_message: str | None
    retry_after: float | None = None
    exception: BaseException | None = None


async def ask(core: Core, attempt: int, emit: Callable[[Event], None] | None = None) -> None:
    """Perform one attempt, from `RequestBegin` to `RequestEnd`. Starts and ends of blocks go through `emit` if given."""
    _announce_tools(core)
    core.outcomes.waited = core.outcomes.judged = False
    core.emit(RequestBegin(attempt))
    reading = _Reading(core, emit or core.emit_update)
    try:
        reading.request = await _prepare(core)
    except Stopped:
        failure: _Failure | None = _stopped(core)
    except CallbackFailed as error:
        failure = _Failure("fatal", "callback_failed", error.text, exception=error.error)
    except ModelError as error:
        failure = classify(error)
    else:
        failure = await reading.read()
    _end(core, attempt, reading.assembler, failure)


def _announce_tools(core: Core) -> None:
    if not core.tools_changed:
        return
    core.tools_changed = False
    specs = tuple([tool.spec for tool in core.tools.values()])
    if core.specs is None or not same_tools(specs, core.specs):
        core.specs = specs
        core.emit(ToolListReady(specs))


def _stopped(core: Core) -> _Failure:
    stop = core.outcomes.stop
    assert stop is not None
    return _Failure(stop.stop_reason, stop.error_code, stop.error_message)


# ---------------------------------------------------------------- before: the request


async def _prepare(core: Core) -> ModelRequest:
    """The request, after the caller's transforms. Raises `Stopped`, `CallbackFailed`, `ModelError` (`invalid_input`)."""
    await core.barrier()
    if core.look():
        raise Stopped
    config = core.config
    request = ModelRequest(
        core.system_prompt, await _messages(core), core.specs or (), config.options, core.signal, config.model
    )
    if config.prepare_request is None:
        return request
    try:
        changed = await core.call(config.prepare_request, request)
    except CallbackFailed as error:
        raise error.of("prepare_request", config.prepare_request) from None
    if changed is None:
        return request
    if not is_kind(changed, ModelRequest):
        raise CallbackFailed(
            TypeError(f"prepare_request: expected a ModelRequest or None, got {type(changed).__name__}")
        )
    messages = changed.messages
    if messages is not request.messages:
        messages = make_legal(core.guard(_items, messages))
    return attrs.evolve(changed, messages=messages, tools=request.tools, abort=core.signal)


async def _messages(core: Core) -> Sequence[AgentMessage]:
    config = core.config
    if config.transform_context is None and config.convert_to_llm is None and core.state.compaction is None:
        return core.history.view()
    messages: Any = [core.guard(_copy, message) for message in (*core.state.messages, *core.state.held)]
    if config.transform_context is not None:
        messages = await _shaped(core, "transform_context", config.transform_context, messages)
    if config.convert_to_llm is not None:
        messages = await _shaped(core, "convert_to_llm", config.convert_to_llm, messages)
    else:
        messages = default_convert(messages)
    return make_legal(messages)


def _copy(message: AgentMessage) -> AgentMessage:
    """Messages of this package cannot be changed; an application's own may."""
    return copy.deepcopy(message) if isinstance(message, CustomMessage) else message


async def _shaped(core: Core, setting: str, function: Callable[..., Any], messages: Any) -> list[Any]:
    """The messages that a callback makes of those. Raises `CallbackFailed`, which names the setting, and `Stopped`."""
    try:
        value = await core.call(function, messages)
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
            return core.guard(_items, value)  # type: ignore[no-any-return]
    except CallbackFailed as error:
        raise error.of(setting, function) from None
    raise CallbackFailed(TypeError(f"{setting}: expected a sequence of messages, got {type(value).__name__}"))


def _items(values: Iterable[Any]) -> list[Any]:
    return [looked_at(value) for value in values]


# ---------------------------------------------------------------- the stream


_LATE: Final = 0.05
"""Seconds that an alarm may be late in an event loop that nobody holds up."""


class _Reading:
    """The reading of one stream."""

    __slots__ = ("assembler", "core", "doubted", "heard", "job", "over", "paused", "request", "stamp")

    request: ModelRequest
    job: Job

    def __init__(self, core: Core, emit: Callable[[Event], None]) -> None:
        self.core = core
        model = core.config.model
        header = AssistantMessage((), provider=_name(model, "provider"), model=_name(model, "model"))
        self.assembler = Assembler(header, emit, core.emit_delta, core.claim_id, core.emit)
        self.over = False  # nothing more is read
        self.paused = False  # it is the consumer who is waited for
        self.heard = False  # something came after `stamp`, nobody knows when
        self.doubted = False  # the alarm came late, so that something may be on its way
        self.stamp = 0.0  # when the provider was last heard of, as far as it matters

    async def read(self) -> _Failure | None:
        """Read the stream to its end; None if the reply is whole."""
        core = self.core
        model = self.request.model
        if model is not core.config.model:
            self.assembler.name(_name(model, "provider"), _name(model, "model"))
        idle = core.config.idle_timeout
        self.stamp = core.clock.now()
        if idle is not None:
            core.timers.set(self, self.stamp + idle)
        self.job = job = core.spawn(self._stream, tag="a model's stream")
        try:
            await core.until(self._settled)
            silent = not job.done and not core.look()
        finally:
            self.over = True
            core.timers.clear(self)
        await core.cancel_jobs((job,))
        return self._verdict(job, silent)

    def _settled(self) -> bool:
        return self.job.done or self.core.look() or self._silent()

    def _verdict(self, job: Job, silent: bool) -> _Failure | None:
        error = job.error
        if self.assembler.finish_reason is not None:
            if error is not None and not job.cancel_requested:
                log.warning("the model's stream failed after its Finish, which changes nothing", exc_info=error)
            return None
        if silent:
            waited = self.core.config.idle_timeout
            return classify(ModelError("timeout", f"the model sent nothing for {waited:g} s"))
        if self.core.look():
            return _stopped(self.core)
        if error is None:
            return classify(ModelError("truncated", "the model's stream ended without saying why (no Finish)"))
        return classify(error)

    def _silent(self) -> bool:
        """Whether nothing came for as long as `idle_timeout` while the provider was waited for."""
        core, idle = self.core, self.core.config.idle_timeout
        if idle is None or not core.timers.expired(self):
            return False
        now = core.clock.now()
        if self.paused or self.heard:
            self.heard = False
            self.stamp = now
        end = self.stamp + idle
        if end > now:
            self.doubted = False
        elif self.doubted:
            return not core.timers.soon
        elif now - end <= _LATE:
            return True
        else:  # something held up the event loop: what came meanwhile, over whatever relays, gets its turn first
            self.doubted = True  # the time is over, so this rings in a moment, by whatever clock
        core.timers.set(self, end)
        return False

    async def _stream(self, job: Job) -> None:
        """The job: everything of the provider's stream happens here."""
        core, feed = self.core, self.assembler.feed
        now, ahead, count = core.clock.now, core.config.run_ahead, 0
        abort = core.config.abort or core.signal
        stream: Any = await _open(self.request)
        try:
            if self.over or core.too_late():  # it took its time to open
                return
            async for chunk in stream:
                if self.over or abort.aborted:  # the driver may not have had its turn yet
                    break
                if core.taker is not None:
                    self.stamp, self.heard = now(), False
                else:  # to read the clock for each piece of a burst would cost more than the piece
                    self.heard = True
                feed(chunk)
                count += 1
                if count >= ahead:
                    count = 0
                    if core.closing:  # the front may still look as if it waited for more
                        break
                    if core.parked and not core.buffer:  # nothing came of the chunks, but others are to have their turn
                        await anyio.lowlevel.checkpoint()
                    else:
                        await self._room()
                    if core.look():  # somebody may have aborted meanwhile: nothing more is read
                        break
        finally:
            close = getattr(stream, "aclose", None)
            ended = type(stream) is AsyncGeneratorType and stream.ag_frame is None  # its end has closed it
            if close is not None and not ended:
                await close_shielded(close, job)

    async def _room(self) -> None:
        """Wait until the consumer has taken everything."""
        core = self.core
        self.paused = True
        waiter = core.host.waiter()
        core.room_waiters.append(waiter)
        await waiter.wait()
        self.paused = False
        self.stamp = core.clock.now()


def _name(model: Any, name: str) -> str | None:
    return plain_text(attribute(model, name))  # it is only for the record


async def _open(request: ModelRequest) -> Any:
    model: Any = request.model
    stream = model(request)
    if is_awaitable(stream):
        stream = await stream
    if not hasattr(type(stream), "__aiter__"):
        raise ModelError("malformed", f"model: expected an async iterator of chunks, got {type(stream).__name__}")
    return stream


# ---------------------------------------------------------------- after: how it ended


def classify(error: BaseException) -> _Failure:
    """Say what a failure of the model is: its own word, else a status, a time-out, bad data; else `network`."""
    while is_kind(error, BaseExceptionGroup) and len(held := errors_of(error)) == 1:
        error = held[0]
    if is_kind(error, ModelError) and (said := _said(error)) is not None:
        return said
    http_status = _status(error)
    if http_status is not None and http_status >= 400:
        code = code_for_status(http_status)
    elif is_kind(error, TimeoutError):
        code = "timeout"
    elif is_kind(error, json.JSONDecodeError) or is_kind(error, UnicodeError):
        code = "malformed"
    else:
        code = "network"
    text = "the model's stream was cancelled from inside" if was_cancelled(error) else error_text(error)
    own = ModelError(code, text)
    return _Failure("retryable" if own.retryable else "fatal", code, text, None, error)


def _said(error: ModelError) -> _Failure | None:
    """What it says itself, which may be less than ours do: a class of its own need not call theirs. None without a code."""
    code, message = plain_text(attribute(error, "code")), plain_text(attribute(error, "message"))
    if code is None:
        return None
    retryable = attribute(error, "retryable")
    again = retryable if is_kind(retryable, bool) else code in RETRYABLE_CODES
    message = error_text(error) if message is None else message
    return _Failure("retryable" if again else "fatal", code, message, attribute(error, "retry_after"), error)


def _status(error: BaseException) -> int | None:
    status = attribute(error, "status_code")
    return int.__int__(status) if is_kind(status, int) else None


def _end(core: Core, attempt: int, assembler: Assembler, failure: _Failure | None) -> None:
    """Close the reply and the request."""
    usage = assembler.usage
    if failure is None:
        core.failure = None
        reply = assembler.close("completed")
        if reply is not None:
            _keep(core, reply)
        if usage is not None:
            core.emit(TokenUsage(core.state.session_usage + usage, usage))
        core.emit(RequestEnd("completed", attempt))
        return
    assembler.close(failure.status, failure.error_code, failure.error_message)
    core.failure = failure.exception
    wait = _wait(core, attempt, failure)
    if failure.exception is not None:
        text = "the model's request failed (%s: %s)"
        if wait is None:
            log.error(text, failure.error_code, failure.error_message, exc_info=_traceback(failure.exception))
        else:
            log.warning(text + "; the next attempt comes in %d ms", failure.error_code, failure.error_message, wait)
    core.emit(RequestEnd(failure.status, attempt, wait, failure.error_code, failure.error_message, usage))


def _traceback(error: BaseException) -> BaseException | None:
    """What an error's log record shows of it. A `ModelError` says in its words what a provider refused; its traceback, of an
    SDK as a rule, is for those who look for it."""
    return None if is_kind(error, ModelError) and not log.isEnabledFor(logging.DEBUG) else error


def _keep(core: Core, reply: AssistantMessage) -> None:
    """A committed reply joins the history that requests show, with the compaction's inputs it answers."""
    if core.state.compaction is not None:
        core.history.extend(core.state.held)
    core.history.append(reply)


def _wait(core: Core, attempt: int, failure: _Failure) -> int | None:
    """The wait before the next attempt, in milliseconds; None: no further attempt."""
    retry = core.config.retry
    if failure.status != "retryable" or attempt > len(retry.waits) or core.look():
        return None
    asked = _seconds(failure.retry_after)
    wait = retry.waits[attempt - 1] if asked is None else asked
    return None if wait > retry.max_wait or wait == math.inf else round(wait * 1000)


def _seconds(asked: Any) -> float | None:
    """The wait that a provider asked for; None where that is no number."""
    if not (is_kind(asked, int) or is_kind(asked, float)):
        return None
    try:
        seconds = int.__float__(asked) if is_kind(asked, int) else float.__float__(asked)
    except OverflowError:
        seconds = math.inf
    return None if math.isnan(seconds) else max(seconds, 0.0)
