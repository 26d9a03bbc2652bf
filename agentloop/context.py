"""`Context`: what a run starts from; and ready-made transforms of the history before a request.

A transform is what `Config.transform_context` takes: it gets the history (a copy, custom messages included) and
returns what the request shall be made of. It runs once for each attempt; what is kept and shown stays as it is. Those
here never change what they are given, take linear time, and combine:

    Config(model=model, transform_context=compose(drop_thinking(), keep_last_turns(20), inject("Answer briefly.")))

They work by *turns*: a turn begins at a user message (several in a row begin one) and reaches to the next. A user
message that stands between a call and its result begins none, so that a call and its result are never parted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

import attrs

from agentloop._awaiting import Then, is_awaitable
from agentloop._frozen import field, frozen
from agentloop._values import is_kind
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    CustomMessage,
    InlineThinking,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentloop.tools import Tool

__all__ = [
    "Context",
    "agent_messages",
    "compose",
    "drop_thinking",
    "inject",
    "keep_last_turns",
    "map_role",
    "turn_starts",
    "within_tokens",
]

C = TypeVar("C", bound=CustomMessage)

_MESSAGES: Final[tuple[type[AgentMessage], ...]] = (UserMessage, AssistantMessage, ToolResultMessage, CustomMessage)


def agent_messages(value: str | AgentMessage | Iterable[AgentMessage | str]) -> tuple[AgentMessage, ...]:
    """A tuple of messages from what callers write; a string is a user message.

    Raises `TypeError`, naming the place, for anything else.
    """
    if isinstance(value, str):
        return (user(value),)
    if is_kind(value, _MESSAGES):
        return (value,)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):  # the keys of a dict would be its texts
        raise _no_message("messages", "messages", value)
    messages: list[AgentMessage] = []
    for index, message in enumerate(value):
        if isinstance(message, str):
            messages.append(user(message))
        elif is_kind(message, _MESSAGES):
            messages.append(message)
        else:
            raise _no_message(f"messages[{index}]", "a message", message)
    return tuple(messages)


def _no_message(where: str, expected: str, value: object) -> TypeError:
    hint = "; user(…) and assistant(…) make messages" if isinstance(value, Mapping) else ""
    return TypeError(f"{where}: expected {expected} or text, got {type(value).__name__}{hint}")


def _tools(value: Iterable[Any]) -> tuple[Tool, ...]:
    if not isinstance(value, Iterable):
        raise TypeError(f"tools: expected a list of tools, got {type(value).__name__}")
    tools = tuple(value)
    for index, item in enumerate(tools):
        if not is_kind(item, Tool):
            raise TypeError(f"tools[{index}]: expected a Tool (use @tool), got {type(item).__name__}")
    return tools


def different_tools(value: Iterable[Any], where: str = "tools") -> tuple[Tool, ...]:
    """Tools that are offered together. Raises `TypeError` for anything but tools, `ValueError` for a name that comes twice."""
    tools = _tools(value)
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise ValueError(f"{where}: expected one tool of each name, got two named {tool.name!r}")
        names.add(tool.name)
    return tools


def _system_prompt(context: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Refused when the context is made: later it would fail in an adapter, in words of the provider's."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"system_prompt: expected a text or None, got {type(value).__name__}")


@frozen
class Context:
    """What a run starts from. It is the caller's and a run never changes it: what a run adds is in `AgentEnd.messages`.

    Raises `TypeError`, naming the place, for anything that is not a text, message or tool.
    """

    system_prompt: str | None = field(default=None, validator=_system_prompt)
    """What every request begins with; None: nothing."""
    messages: tuple[AgentMessage, ...] = field(default=(), converter=agent_messages)
    """The history, oldest first; a text is a user message. It need not be legal for a provider: requests are made so."""
    tools: tuple[Tool, ...] = field(default=(), converter=_tools)
    """What the model may call; no two of one name."""


# ---------------------------------------------------------------- transforms

Transform: TypeAlias = Callable[[Sequence[AgentMessage]], Sequence[AgentMessage] | Awaitable[Sequence[AgentMessage]]]
"""History to what a request is made of, sync or async; `Config.transform_context` and `convert_to_llm` take one."""

SyncTransform: TypeAlias = Callable[[Sequence[AgentMessage]], Sequence[AgentMessage]]
"""A transform that needs no `await`: all those that are made here, and `compose` of such."""

Given: TypeAlias = str | AgentMessage | Iterable[AgentMessage | str] | None
"""What `map_role` takes from its function: a text (a user message), messages, or None (left out)."""


@overload
def compose(*transforms: SyncTransform) -> SyncTransform: ...
@overload
def compose(*transforms: Transform) -> Transform: ...
def compose(*transforms: Transform) -> Transform:
    """One transform from several, the first one first. Sync and async ones mix; if all are sync, so is the whole.

    Raises `TypeError`, naming the transform, if one returns something else than a sequence of messages (None, say,
    because it changed the list that it was given).

        compose(keep_last_turns(20), add_the_weather)  # the second may be an async function
    """
    return lambda messages: _apply(transforms, 0, messages)


def _apply(
    transforms: tuple[Transform, ...], first: int, messages: Sequence[AgentMessage]
) -> Sequence[AgentMessage] | Awaitable[Sequence[AgentMessage]]:
    for number in range(first, len(transforms)):
        result = transforms[number](messages)
        if is_awaitable(result):
            return Then(result, partial(_apply_rest, transforms, number))
        messages = _checked(result, transforms[number], number)
    return messages


def _apply_rest(
    transforms: tuple[Transform, ...], number: int, result: Any
) -> Sequence[AgentMessage] | Awaitable[Sequence[AgentMessage]]:
    return _apply(transforms, number + 1, _checked(result, transforms[number], number))


def _checked(result: Any, transform: Transform, number: int) -> Sequence[AgentMessage]:
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return result
    name = getattr(transform, "__name__", type(transform).__name__)
    raise TypeError(f"transforms[{number}] ({name}): expected a sequence of messages, got {type(result).__name__}")


def keep_last_turns(count: int) -> SyncTransform:
    """Only the last `count` turns, each whole; what stands before the first turn goes with the first. Raises `ValueError` for
    a count below 1.

    keep_last_turns(2)([user("a"), assistant("1"), user("b"), assistant("2"), user("c")])
    # (user("b"), assistant("2"), user("c"))
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1 turn, got {count}")

    def keep(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        return tuple(messages[_begin_of_last(count, messages) :])

    return keep


def within_tokens(budget: int, count: Callable[[AgentMessage], int]) -> SyncTransform:
    """The newest whole turns whose tokens add up to at most `budget`; the last turn always, however long it is.

    `count` gives the tokens of one message, as the caller counts them; it is asked from the newest message backwards,
    custom messages too (0, if the model does not see them), until the budget is used up. All older turns are left out:
    there are no gaps. Raises `ValueError` for a negative budget.

        within_tokens(100_000, lambda message: len(getattr(message, "text", "")) // 4)
    """
    if budget < 0:
        raise ValueError(f"budget: expected a number of tokens, got {budget}")

    def prune(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        starts = turn_starts(messages)
        kept, used, end = starts[-1] if starts else 0, 0, len(messages)
        for start in reversed(starts):
            used += sum(count(message) for message in messages[start:end])
            if used > budget:
                break
            kept = end = start
        return tuple(messages[kept:])

    return prune


def inject(
    messages: str | AgentMessage | Iterable[AgentMessage | str],
    position: Literal["start", "end", "before_last_user"] = "end",
) -> SyncTransform:
    """Put messages (a text is a user message) into each request, without their being kept or shown.

    `start` and `end` are those of the history; `before_last_user` is right before the last turn begins (at the start if
    there is no user message). What changes from request to request is best put at the end: providers cache the longest
    beginning that is the same. Raises `ValueError` for another position.

        inject("The user's time zone is UTC+2.", "start")
    """
    added = agent_messages(messages)
    if position not in ("start", "end", "before_last_user"):
        raise ValueError(f"position: expected start, end or before_last_user, got {position!r}")

    def put(history: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        place = 0 if position == "start" else len(history)
        if position == "before_last_user":
            begin = _begin_of_last(1, history)
            users = (index for index in range(begin, len(history)) if isinstance(history[index], UserMessage))
            place = next(users, 0)
        return (*history[:place], *added, *history[place:])

    return put


def drop_thinking(keep_turns: int = 1) -> SyncTransform:
    """Replies without their thinking, but for the last `keep_turns` turns; a reply of thinking alone is left out.

    Providers want the thinking of the current turn back unchanged, hence the default of 1. Raises `ValueError` for a
    negative number.

        drop_thinking()([user("a"), assistant(Thinking("hm"), "1"), user("b")])
        # (user("a"), assistant("1"), user("b"))
    """
    if keep_turns < 0:
        raise ValueError(f"keep_turns: expected 0 or more, got {keep_turns}")

    def drop(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        until = _begin_of_last(keep_turns, messages)
        thinned = [_without_thinking(message) for message in messages[:until]]
        return (*(message for message in thinned if message is not None), *messages[until:])

    return drop


def _without_thinking(message: AgentMessage) -> AgentMessage | None:
    if not isinstance(message, AssistantMessage):
        return message
    content = tuple([block for block in message.content if not isinstance(block, Thinking | InlineThinking)])
    if len(content) == len(message.content):
        return message
    return attrs.evolve(message, content=content) if content else None


@overload
def map_role(role: str, function: Callable[[Any], Given]) -> SyncTransform: ...
@overload
def map_role(role: type[C], function: Callable[[C], Given]) -> SyncTransform: ...
def map_role(role: str | type[CustomMessage], function: Callable[[Any], Given]) -> SyncTransform:
    """Turn the custom messages of one role (or class) into what `function` gives: a text, messages, or None (left out).

    All other messages stay. Several of these combine; `convert.convert_custom` does it for many roles at once.

        map_role(Notice, lambda notice: f"[notice] {notice.text}")
    """

    def matches(message: AgentMessage) -> bool:
        if isinstance(role, str):
            return isinstance(message, CustomMessage) and getattr(message, "role", None) == role
        return isinstance(message, role)

    def apply(messages: Sequence[AgentMessage]) -> Sequence[AgentMessage]:
        mapped: list[AgentMessage] = []
        for message in messages:
            if matches(message):
                given = function(message)
                mapped += () if given is None else agent_messages(given)
            else:
                mapped.append(message)
        return tuple(mapped)

    return apply


# ---------------------------------------------------------------- turns


def turn_starts(messages: Sequence[AgentMessage]) -> list[int]:
    """The indexes at which turns begin, ascending. The first is always 0; without messages the list is empty.

    A result belongs to the latest call before it that has its id, as in `convert.make_legal`.
    """
    reach = _last_results(messages)
    starts = [0] if messages else []
    covered = -1  # up to here, results of earlier calls are still to come
    in_beginning = True  # nothing but user messages since the turn began (or none yet)
    seen_user = False
    for index, message in enumerate(messages):
        if isinstance(message, UserMessage):
            if seen_user and not in_beginning and index > covered:
                starts.append(index)
            seen_user = in_beginning = True
        elif not isinstance(message, CustomMessage):
            in_beginning = False
        covered = max(covered, reach.get(index, -1))
    return starts


def _begin_of_last(count: int, messages: Sequence[AgentMessage]) -> int:
    """Where the last `count` turns begin; 0 if there are no more than that."""
    if count == 0:
        return len(messages)
    starts = turn_starts(messages)
    return starts[-count] if count <= len(starts) else 0


def _last_results(messages: Sequence[AgentMessage]) -> dict[int, int]:
    """For each reply whose calls have results, where the last of them stands."""
    reach: dict[int, int] = {}
    owner: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            owner.update((block.id, index) for block in message.content if isinstance(block, ToolCall))
        elif isinstance(message, ToolResultMessage) and message.tool_call_id in owner:
            reach[owner[message.tool_call_id]] = index
    return reach
