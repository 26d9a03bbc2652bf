"""What a model may see of a history: custom messages mapped or left out, and the rest made legal for every provider.

The rules (`make_legal` applies them to any list, `LegalHistory` keeps them up while a run appends):

1.  Each call is followed by its result, in call order, directly after its reply; what stood between moves after them.
2.  A result belongs to the latest call before it that has its id (in one reply: to the first of them without a result).
    A result without such a call, and a second one, are left out: the first wins.
3.  A call without a result gets an error result that says so (`NO_RESULT`).
4.  A reply that was not committed (`stop_reason` is not `completed`), was refused or filtered is left out, with its
    results.
5.  No empty message. A block counts as empty if it is blank and has no `fidelity`: white space alone too, because the
    Anthropic API refuses a text without other characters, for good, once it is in a history. A result that is empty
    says `NO_OUTPUT`. Thinking alone is not empty: an adapter whose provider refuses it leaves it out.
6.  Arguments are the text that the model sent if that is a JSON object, else `{}`.
7.  Ids of calls are unique: the first owner keeps its id, then `id#2`, …; a missing one is made.
8.  A block where its role cannot have one (a call of the user, an image of the model) is left out.
9.  What cannot be made legal is `ModelError("invalid_input")`: no message at all, something that is not a message of the
    model's world, a call without a name.

Not done here: messages of one role in a row stay apart, and a history may begin with a reply. Providers disagree about
both, so adapters merge or reject as theirs asks.

Copies are made of what must change, and only of that. Repairs are logged as warnings, once a call; what a run itself
leaves behind (rules 4 to 6) is no repair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from agentloop._legal import NO_RESULT, LegalBuilder, MessageView, calls_of
from agentloop._results import NO_OUTPUT
from agentloop._values import is_kind, raise_order
from agentloop.errors import ModelError
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    CustomMessage,
    Message,
    ToolResultMessage,
    UserMessage,
    user,
)

__all__ = [
    "NO_OUTPUT",
    "NO_RESULT",
    "LegalHistory",
    "MessageView",
    "convert_custom",
    "default_convert",
    "make_legal",
]

log = logging.getLogger(__name__)


# ---------------------------------------------------------------- custom messages

_ROLES_TO_LOG = 1_000  # roles out of a decoder are data: a hostile file must not grow this without end
_logged_roles: set[str] = set()


def default_convert(messages: Iterable[AgentMessage]) -> tuple[Message, ...]:
    """The messages without custom ones: what a model sees when `Config.convert_to_llm` is None.

    Each custom role that is left out is logged (info) once in a process. What is no message at all is kept, so that
    `make_legal` can name it.
    """
    kept = []
    for message in messages:
        if isinstance(message, CustomMessage):
            _log_custom(message)
        else:
            kept.append(message)
    return tuple(kept)


def _log_custom(message: CustomMessage) -> None:
    role = _role(message)
    if role not in _logged_roles and len(_logged_roles) < _ROLES_TO_LOG:
        _logged_roles.add(role)
        log.info("custom messages of the role %r are not sent to the model (Config.convert_to_llm decides)", role)


def _role(message: CustomMessage) -> str:
    """Its role; the name of its class where it has none, or where its own code fails."""
    try:
        return str(getattr(message, "role", type(message).__name__))
    except BaseException as error:
        raise_order(error)
        return type(message).__name__


Mapped: TypeAlias = "str | Message | Iterable[str | Message] | None"
"""What a custom message becomes: a text (a user message), messages, or None (left out)."""


def convert_custom(
    functions: Mapping[str | type[CustomMessage], Callable[[Any], Mapped]],
) -> Callable[[Sequence[AgentMessage]], tuple[Message, ...]]:
    """A `Config.convert_to_llm` that maps custom messages by role or class; those of other roles are left out.

    A class also takes its subclasses; an entry for the role wins. A text that a function gives is a user message.

        Config(model=model, convert_to_llm=convert_custom({"notice": lambda notice: f"[notice] {notice.text}"}))

    What a function raises ends the attempt (`callback_failed`). Raises `TypeError` for a key that is neither a role of your
    own nor a class of custom messages.
    """
    for key in functions:
        if not (isinstance(key, str) or (isinstance(key, type) and issubclass(key, CustomMessage))):
            raise TypeError(f"functions: expected roles or classes of custom messages, got {key!r}")
        if key in ("user", "assistant", "tool_result"):
            raise TypeError(f"functions: expected roles or classes of custom messages, got the built-in role {key!r}")
    by_role = {key: function for key, function in functions.items() if isinstance(key, str)}
    by_class = {key: function for key, function in functions.items() if isinstance(key, type)}

    def function_for(message: CustomMessage) -> Callable[[Any], Mapped] | None:
        found = by_role.get(_role(message))
        return found or next((by_class[cls] for cls in type(message).__mro__ if cls in by_class), None)

    def convert(messages: Sequence[AgentMessage]) -> tuple[Message, ...]:
        converted: list[Any] = []
        for message in messages:
            function = function_for(message) if isinstance(message, CustomMessage) else None
            if function is None:
                converted.append(message)
            else:
                converted += _as_messages(function(message))
        return default_convert(converted)

    return convert


def _as_messages(value: Mapped) -> list[Any]:
    if value is None:
        return []
    alone = isinstance(value, str | bytes | Mapping | UserMessage | AssistantMessage | ToolResultMessage)
    items: Iterable[Any] = value if isinstance(value, Iterable) and not alone else (value,)
    return [user(item) if isinstance(item, str) else item for item in items]


# ---------------------------------------------------------------- the two forms


def make_legal(messages: Iterable[AgentMessage]) -> tuple[Message, ...]:
    """The messages, legal for every provider by the rules at the top of this module; for any list, in linear time.

    Logs one warning if something was repaired. Raises `ModelError("invalid_input")`, naming the place (`messages[3]`),
    for what cannot be made legal.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ModelError("invalid_input", f"messages: expected a sequence of messages, got {type(messages).__name__}")
    builder = _build(list(messages))
    builder.settle()
    return tuple(builder.out)


class LegalHistory:
    """A history that grows while a run goes on, and its legal form beside it, at a constant cost a message.

    `append` takes whatever a run keeps, in order: inputs, committed replies, their results, custom messages (kept, but
    not in the legal form). At every moment `view()` equals `make_legal(default_convert(messages))`. Appending never
    fails: what cannot be made legal is raised by `view()`.

    A result that comes late (its call was already shown with a placeholder) costs one copy of the list: a view that was
    given away does not change.
    """

    __slots__ = ("_builder", "_kept")

    def __init__(self, messages: Iterable[AgentMessage] = ()) -> None:
        self._kept = list(messages)
        self._builder = _build(self._kept, drop_custom=True)

    def append(self, message: AgentMessage) -> None:
        """Add a message at the end; amortised constant time."""
        kept, builder = self._kept, self._builder
        kept.append(message)
        if isinstance(message, CustomMessage):
            _log_custom(message)
        elif builder.made and builder.must_rename(message):
            self._builder = _build(kept, drop_custom=True)
        else:
            builder.append(len(kept) - 1, message)

    def extend(self, messages: Iterable[AgentMessage]) -> None:
        """Add several."""
        for message in messages:
            self.append(message)

    @property
    def messages(self) -> MessageView[AgentMessage]:
        """All that was kept, as it came; a view that does not grow."""
        return MessageView(self._kept, len(self._kept))

    def view(self) -> MessageView[Message]:
        """What the model may see, for one request; constant time.

        Raises `ModelError("invalid_input")` as `make_legal` does, also while there is nothing to send.
        """
        return self._builder.view()

    @property
    def call_ids(self) -> frozenset[str]:
        """The ids that a new call must not take: of all calls, as they came and as they are shown. Linear time."""
        return self._builder.call_ids()


def _build(messages: list[Any], drop_custom: bool = False) -> LegalBuilder:
    replies = [message for message in messages if is_kind(message, AssistantMessage)]
    builder = LegalBuilder({call.id: None for reply in replies for call in calls_of(reply.content)})
    for index, message in enumerate(messages):
        if drop_custom and isinstance(message, CustomMessage):
            _log_custom(message)
        else:
            builder.append(index, message)
    return builder
