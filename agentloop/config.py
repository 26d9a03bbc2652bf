"""`Config`: everything that a run may be told, with the defaults; and the small contracts that it is made of.

Callbacks may be sync or async. Each awaitable one runs in a task of its own; what it raises becomes events.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import anyio
import attrs

from agentloop._frozen import field, frozen
from agentloop._values import is_kind, meant, plain_text, valid_text
from agentloop.abort import AbortSignal
from agentloop.events import ApprovalRequest, McpConnectEnd, TurnEnd
from agentloop.messages import AgentMessage, AssistantMessage, ToolResult, Usage, UserMessage
from agentloop.model import Model, ModelRequest
from agentloop.tools import Tool, ToolInvocation

__all__ = [
    "Block",
    "Clock",
    "Compaction",
    "CompactionState",
    "Config",
    "Decision",
    "HookAnswer",
    "Hooks",
    "MaybeAwaitable",
    "Messages",
    "Retry",
    "SystemClock",
    "ToolSource",
    "new_call_id",
]

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]

Decision: TypeAlias = Literal["allow", "deny", "forbidden"]


class Clock(Protocol):
    """Where time comes from: every wait and every limit of a run uses it."""

    def now(self) -> float:
        """Seconds, from any origin, never going back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        ...


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop's clock."""
        await anyio.sleep(seconds)


def _waits(waits: Iterable[float]) -> tuple[float, ...]:
    if not isinstance(waits, Iterable):
        raise TypeError(f"Retry.waits: expected the seconds of each wait, such as (2, 4, 8), got {waits!r}")
    return tuple([_wait(wait, f"waits[{index}]") for index, wait in enumerate(waits)])


def _wait(wait: float, name: str = "max_wait") -> float:
    if not isinstance(wait, int | float) or not wait >= 0:
        raise ValueError(f"Retry.{name}: expected seconds from 0, got {wait!r}")
    return wait


@frozen
class Retry:
    """How often, and after which waits, a request that failed `retryable` is made again.

    A wait that the provider asks for (`ModelError.retry_after`) takes the place of the next one of `waits`. Raises
    `ValueError` and `TypeError` for waits that are no numbers of seconds from 0.
    """

    waits: tuple[float, ...] = field(default=(2.0, 4.0, 8.0, 16.0, 30.0), converter=_waits)
    """Seconds before the second, third, … attempt; empty: no retries."""
    max_wait: float = field(default=60.0, converter=_wait)
    """The longest wait, in seconds, that is made; where a longer one is asked for, the run ends `retryable` instead."""


@frozen
class Block:
    """What `before_tool_call` returns to stop a call: it does not run, and its result says `reason`. With `terminate`, that
    result asks to end the run, as a `ToolResult` with `terminate` does."""

    reason: str = field(default="", converter=valid_text)
    terminate: bool = field(default=False, converter=bool)


@frozen
class HookAnswer:
    """What a hook says."""

    decision: Literal["continue", "stop", "allow", "deny"] | None = None
    """`allow` and `deny` are answers of `pre_tool_use`, `continue` and `stop` of `stop`; `user_prompt` decides nothing."""
    reason: str | None = None
    """Why; a denied call's result says it."""
    message: str | None = None
    """The text that a `user_prompt` hook adds after the prompt, or that a `stop` hook goes on with (`continue`)."""
    output: Mapping[str, Any] | None = None
    """For the record: an object of texts, numbers, truth values and None; anything else in it is dropped."""


def _a_function(of: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refused when the config is made: later it would end the run, or deny a call, far from the setting that is wrong."""
    if value is not None and not callable(value):
        raise TypeError(f"{type(of).__name__}.{attribute.name}: expected a function or None, got {value!r}")


@frozen
class Hooks:
    """A named set of hooks. Each answer becomes a `Hook` event right before what it decides; a hook that raises is an event
    with the reason `hook failed: …` and decides nothing.

    `pre_tool_use` is asked about each call, `user_prompt` about each prompt that a person wrote, `stop` when the run would end.
    """

    name: str
    """What events and denials call the set."""
    pre_tool_use: Callable[[ToolInvocation], MaybeAwaitable[HookAnswer | None]] | None = field(
        default=None, validator=_a_function
    )
    user_prompt: Callable[[UserMessage], MaybeAwaitable[HookAnswer | None]] | None = field(
        default=None, validator=_a_function
    )
    stop: Callable[[TurnEnd], MaybeAwaitable[HookAnswer | None]] | None = field(default=None, validator=_a_function)


class ToolSource(Protocol):
    """Where tools come from that need a connection (MCP servers). The three methods are called in one and the same task, of
    the run's own.

    A source whose `close` needs longer than `Config.abort_grace` says so in an attribute `closing_bound` (seconds).
    """

    servers: Sequence[str]
    """Their names, for `McpConnectBegin`."""

    async def connect(self) -> tuple[McpConnectEnd, Sequence[Tool]]:
        """Connect all; a server that fails costs only its own tools. Called once, in the first turn."""
        ...

    async def changed(self) -> Sequence[Tool] | None:
        """The new list if it changed since it was last given, else None. Asked between turns; returns at once."""
        ...

    async def close(self) -> None:
        """Disconnect; called once when the run ends, however it ends, if `connect` was called."""
        ...


@frozen
class CompactionState:
    """What a compaction decides on."""

    context: int
    """`total` of the last reported request of this context, in tokens."""
    turns: int
    """Committed requests of this context."""
    at_end: bool
    """Whether the run would end now (else: before a further turn)."""
    messages: Sequence[AgentMessage]
    """The history as it stands; read-only."""


class Compaction(Protocol):
    """How and when a context is summarised or dropped. The loop runs it; this decides.

    The loop asks `due` before a turn (not the first) and after the last; with a reason, it emits `CompactionBegin` and, if
    `mode` is `summarize`, asks the old context with `prompt(…)`. `accept` gives the summary's text, or None when the reply is
    of no use: that counts as a failed attempt on the ladder of `Config.retry`. The summary is the next turn's first input.

    A compaction may have a method `problem(reply) -> str` as well: it says, for the next `prompt`, why `accept` gave None.
    """

    @property
    def mode(self) -> Literal["summarize", "discard"]:
        """Whether the model is asked for a summary, or the context is dropped."""
        ...

    def due(self, state: CompactionState) -> Literal["context", "turns", "manual"] | None:
        """The reason to compact now, or None."""
        ...

    def prompt(self, attempt: int, problem: str | None) -> Sequence[UserMessage]:
        """The inputs of an attempt (from 1); `problem` says what was wrong with the reply before, or is None."""
        ...

    def accept(self, reply: AssistantMessage) -> str | None:
        """The summary's text, never blank; None: unusable."""
        ...

    def summary(self, text: str) -> UserMessage:
        """The message that stands for the old context."""
        ...


def _hooks(hooks: Sequence[Hooks] | None) -> tuple[Hooks, ...]:
    if hooks is not None and not isinstance(hooks, Iterable):
        raise TypeError(f"Config.hooks: expected a sequence of Hooks, got {type(hooks).__name__}")
    found = tuple(hooks or ())
    for index, item in enumerate(found):
        if not is_kind(item, Hooks):
            raise TypeError(f"Config.hooks[{index}]: expected Hooks, got {type(item).__name__}")
    return found


def _retry(retry: Retry | None) -> Retry:
    if retry is not None and not is_kind(retry, Retry):
        raise TypeError(f"Config.retry: expected a Retry or None, got {retry!r}")
    return Retry(waits=()) if retry is None else retry


def _a_model(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refused when the config is made: later it would be a failed request, which is retried for a minute."""
    if isinstance(value, type) and not (hasattr(value, "__aiter__") or hasattr(value, "__await__")):
        raise TypeError(f"Config.model: expected a model, got the class {value.__name__} itself")
    if not callable(value):
        hint = f"; agentloop.models.registry.resolve({value!r}) gives one" if isinstance(value, str) else ""
        raise TypeError(f"Config.model: expected a callable that takes a ModelRequest, got {value!r}{hint}")


_Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _number(lowest: float | None = None, *, or_none: bool = True) -> _Validator:
    """Refused when the config is made: later it would break a run off in its middle, or never be reached."""
    expected = f"a number{'' if lowest is None else f' from {lowest}'}{', or None' if or_none else ''}"

    def check(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        try:
            fits = (value is None and or_none) or value >= (-math.inf if lowest is None else lowest)
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(f"Config.{attribute.name}: expected {expected}, got {value!r}")

    return check


def _one_of(*words: str) -> _Validator:
    """Refused when the config is made: later a misspelt word would mean the other one."""

    def check(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in words:
            raise ValueError(f"Config.{attribute.name}: expected {' or '.join(map(repr, words))}, got {value!r}")

    return check


def _with_methods(expected: str, *names: str, or_none: bool = True) -> _Validator:
    """Refused when the config is made: an object without these methods, or a class in the place of an instance."""

    def check(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None and or_none:
            return
        if isinstance(value, type):
            raise TypeError(f"Config.{attribute.name}: expected {expected}, got the class {value.__name__} itself")
        if not all(callable(getattr(value, name, None)) for name in names):
            raise TypeError(f"Config.{attribute.name}: expected {expected}, got {value!r}")

    return check


def _a_compaction(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refused at once: its events would else tell, and a trace hold, a mode that there is not."""
    _with_methods("a compaction", "due")(config, attribute, value)
    if value is not None and plain_text(mode := getattr(value, "mode", None)) not in ("summarize", "discard"):
        raise ValueError(f"Config.compaction.mode: expected 'summarize' or 'discard', got {mode!r}")


def _of(kind: type, expected: str) -> _Validator:
    """Refused when the config is made, for the same reason."""

    def check(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not is_kind(value, kind):
            raise TypeError(f"Config.{attribute.name}: expected {expected}, got {value!r}")

    return check


def _a_signal(config: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refused when the config is made: later the run would break off at its first step."""
    if value is not None and not is_kind(value, AbortSignal):
        raise TypeError(f"Config.{attribute.name}: expected an AbortSignal or None, got {value!r}")


def new_call_id() -> str:
    """A random id for a call that came without one."""
    return "call_" + uuid.uuid4().hex[:24]


Messages: TypeAlias = Iterable[AgentMessage | str]


@frozen(kw_only=True)
class Config:
    """How a run goes. Only `model` is required. Times are seconds of `clock`; None: no limit.

    - The request: `model` is asked; `transform_context`, `convert_to_llm` and `prepare_request` shape what it is shown,
      `get_tools` what it may call, `options` go to its adapter.
    - What is said meanwhile: `get_steering_messages` after each turn, `get_follow_up_messages` when the run would end;
      `wait_for_steering` cuts waiting tools short.
    - Each call: `before_tool_call`, `hooks` and `approve` (`approval_order`, `approval_timeout`) say whether it runs,
      `after_tool_call` what its result is. `tool_execution`, `max_parallel_tools` and `eager_tools` say when it runs,
      `tool_timeout` and `max_result_characters` how long it and its result may be. `tool_source` brings tools of servers.
    - The end: `finish_turn` and the hooks' `stop` are asked; `max_turns`, `max_cut_replies`, `deadline` and `abort` end it,
      with `abort_grace` for what still works.
    - Failures and length: `retry` and `idle_timeout` of a request, `compaction` of a context that grew too long.
    - The rest: `run_ahead` bounds what is read ahead, `session_usage` is where token counts start, `clock` and `new_id`
      are where time and ids come from, `taken_ids` may not be given again.

    Each field with its default, its unit, when it is asked, and what holds if it raises, hangs or returns nonsense:
    `docs/configuration.md`. The kernel never changes a config; one may serve many runs at once. Raises `TypeError` and
    `ValueError` for settings that cannot be.
    """

    model: Model = field(validator=_a_model)
    """Who is asked. An attempt that fails is a `RequestEnd`; what it raises never leaves the run."""

    convert_to_llm: Callable[[Sequence[AgentMessage]], MaybeAwaitable[Sequence[AgentMessage]]] | None = field(
        default=None, validator=_a_function
    )
    """History to what the model may see; once an attempt, on a copy. Default: custom messages are dropped."""
    transform_context: Callable[[Sequence[AgentMessage]], MaybeAwaitable[Sequence[AgentMessage]]] | None = field(
        default=None, validator=_a_function
    )
    """Before `convert_to_llm`: prune, inject, rewrite; once an attempt, on a copy."""
    prepare_request: Callable[[ModelRequest], MaybeAwaitable[ModelRequest | None]] | None = field(
        default=None, validator=_a_function
    )
    """May replace system prompt, messages, model and options of this one request; never the tools, never the history."""
    get_tools: Callable[[], MaybeAwaitable[Iterable[Tool] | None]] | None = field(default=None, validator=_a_function)
    """Asked before each attempt: the tools from here on in the place of the context's (a tool source's stay), or None for no
    change. What is not a list of tools of different names, and what it raises, ends the run (`callback_failed`)."""

    get_steering_messages: Callable[[], MaybeAwaitable[Messages | None]] | None = field(
        default=None, validator=_a_function
    )
    """What was said while the run went on: asked before the first request and after each turn. What it gives always becomes
    events, also if the run then ends."""
    get_follow_up_messages: Callable[[], MaybeAwaitable[Messages | None]] | None = field(
        default=None, validator=_a_function
    )
    """Asked when the run would end: with messages it goes on."""
    wait_for_steering: Callable[[], Awaitable[None]] | None = field(default=None, validator=_a_function)
    """Returns when steering messages wait, without taking them. Calls of `interruptible` tools are then cut short."""

    before_tool_call: Callable[[ToolInvocation], MaybeAwaitable[Block | dict[str, Any] | None]] | None = field(
        default=None, validator=_a_function
    )
    """Asked first about each valid call: None lets it on, a `Block` answers it, other arguments are validated anew. If it
    fails, the call is blocked."""
    after_tool_call: Callable[[ToolInvocation, ToolResult], MaybeAwaitable[ToolResult | None]] | None = field(
        default=None, validator=_a_function
    )
    """May replace the result of a call that ran. If it fails, the result is an error."""
    finish_turn: Callable[[TurnEnd], MaybeAwaitable[Literal["end", "ask"] | None]] | None = field(
        default=None, validator=_a_function
    )
    """Asked after each turn: `end` the run here, `ask` the model once more, or None for what would come anyway."""
    approve: Callable[[ApprovalRequest], MaybeAwaitable[Decision]] | None = field(default=None, validator=_a_function)
    """Whether a call may run. An attribute `policy(call) -> Decision | None` of it is asked first: what it decides needs no
    question, None leaves it open; its `forbidden` outranks a hook's `allow`, and a policy that fails forbids."""
    hooks: Sequence[Hooks] = field(default=(), converter=_hooks)
    """Asked in this order; see `Hooks`."""
    approval_order: Literal["one_at_a_time", "all_at_once"] = field(
        default="one_at_a_time", validator=_one_of("one_at_a_time", "all_at_once")
    )
    """Whether a question waits for the answer to the one before."""
    approval_timeout: float | None = field(default=None, validator=_number(0))
    """Longest wait for an answer of `approve`; then the call is denied."""

    tool_execution: Literal["parallel", "sequential"] = field(
        default="parallel", validator=_one_of("parallel", "sequential")
    )
    """Whether the calls of a reply run side by side. Their results stand in call order either way."""
    eager_tools: bool = False
    """A call of a tool marked `replay="safe"` may start as soon as it is complete, while the reply still streams; its events
    come as ever. If the reply then fails or is cut off, the result is dropped, and a retry may run the tool again. Such a tool
    may thus have run without a `ToolExecutionStart`, but never before the consumer came back after its `ToolCallEnd`. Nothing
    starts early where `approve`, `before_tool_call` or a `pre_tool_use` hook is set, nor after a call that may not."""
    max_parallel_tools: int | None = field(default=None, validator=_number(1))
    """How many calls may run at a time; the others wait for their turn, in call order."""
    tool_timeout: float | None = field(default=None, validator=_number(0))
    """Longest time of a call whose tool has no `timeout` of its own; then its result is an error."""
    max_result_characters: int | None = field(default=None, validator=_number(1))
    """Longest text of a call's result, in characters: all its text blocks together, without images and other data, `details`
    and `structured`. A longer one is cut before `after_tool_call` sees it, and ends with a line that says how long it was;
    a call that streams goes on, and the rest of its output is dropped. Streamed output, what the call then returns or raises,
    and what `after_tool_call` gives are each measured alone; words of the kernel's own are not."""

    retry: Retry = field(default=Retry(), converter=_retry)
    """None: no retries."""
    idle_timeout: float | None = field(default=120.0, validator=_number(0))
    """Longest silence of a model's stream, counted only while the run waits for it; then the attempt fails (`timeout`)."""
    deadline: float | None = field(default=None, validator=_number())
    """Longest time of the run, counted from its first step; then it ends `aborted`."""
    max_turns: int | None = field(default=None, validator=_number(1))
    """How many turns may ask the model; if the last of them asks for more, the run ends `fatal`."""
    max_cut_replies: int = field(default=3, validator=_number(1, or_none=False))
    """So many replies in a row whose calls were cut off by the output limit end the run (`fatal`)."""

    abort: AbortSignal | None = field(default=None, validator=_a_signal)
    """Stops the run, from any thread."""
    abort_grace: float = field(default=0.25, validator=_number(0, or_none=False))
    """How long what is to stop may still take: first by itself, then once more after it was cancelled."""
    run_ahead: int = field(default=64, validator=_number(0, or_none=False))
    """Chunks of the model's stream that may be read ahead of the consumer; 0: step by step."""

    compaction: Compaction | None = field(default=None, validator=_a_compaction)
    """When and how a context that grew too long is summarised or dropped; `agentloop.compaction` has some."""
    tool_source: ToolSource | None = field(
        default=None, validator=_with_methods("a source of tools, such as McpServers([…])", "connect", "close")
    )
    """Tools that need a connection; `agentloop.mcp.McpServers` is one."""
    session_usage: Usage = field(default=Usage(), validator=_of(Usage, "a Usage"))
    """Where `TokenUsage.session` starts."""
    taken_ids: Collection[str] = ()
    """Ids that no new call may get, beside those of the context: ids of earlier calls that the context no longer shows."""
    clock: Clock = field(factory=SystemClock, validator=_with_methods("a clock", "now", "sleep", or_none=False))
    """Where time comes from; `agentloop.testing.VirtualClock` for tests."""
    new_id: Callable[[], str] = new_call_id
    """Makes the id of a call that came without one."""
    options: Mapping[str, Any] = field(factory=dict, validator=_of(Mapping, "a mapping of names to values"))
    """Parameters for the adapter (temperature, thinking level, …), passed on as they are."""


def check_settings(where: str, given: Iterable[str], own: Iterable[str] = ()) -> None:
    """Raises `TypeError`, with what may have been meant, for a name that is not a field of `Config`; `own` are names that
    `where` knows beside those."""
    fields = attrs.fields_dict(Config)
    for name in given:
        if name not in fields:
            raise TypeError(f"{where}: expected a field of Config, got {name!r}{meant(name, [*fields, *own])}")
