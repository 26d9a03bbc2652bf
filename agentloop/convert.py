"""What a model may see of a history: custom messages mapped or left out, and the rest made legal for every provider.

The rules (`make_legal` applies them to any list, `LegalHistory` keeps them up while a run appends):

1.  Each call is followed by its result, in call order, directly behind its reply; what stood between moves behind them.
2.  A result belongs to the latest call before it that has its id (in one reply: to the first of them without a result).
    A result without such a call, and a second one, are left out: the first wins.
3.  A call without a result gets an error result that says so (`NO_RESULT`).
4.  A reply that was not committed (`stop_reason` is not `completed`) or was refused or filtered is left out, with its results.
5.  No empty message. A block counts as empty if it is blank and has no `fidelity`: white space alone too, because the
    Anthropic API refuses a text without other characters, for good, once it is in a history. A result that is empty
    says `NO_OUTPUT`. Thinking alone is not empty: an adapter whose provider refuses it leaves it out.
6.  Arguments are the text that the model sent if that is a JSON object, else `{}`.
7.  Ids of calls are unique: the first owner keeps its id, then `id#2`, …; a missing one is made.
8.  A block where its role cannot have one (a call of the user, an image of the model) is left out.
9.  What cannot be made legal is `ModelError("invalid_input")`: no message at all, something that is no message of the
    model's world, a call without a name.

Not done here: messages of one role in a row stay apart, and a history may begin with a reply. Providers disagree about
both, so adapters merge or reject as theirs asks.

Copies are made of what must change, and only of that. Repairs are logged as warnings, once a call; what a run itself
leaves behind (rules 4 to 6) is no repair.
"""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, overload

import attrs

from agentloop._values import MAX_JSON_DEPTH
from agentloop.errors import ModelError
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    user,
)

logger = logging.getLogger(__name__)

NO_RESULT: Final = "[no result is known: the call was not run, or it was stopped before it gave one]"
"""The text of the result that stands for a missing one."""

NO_OUTPUT: Final = "[no output]"
"""The text of a result that has none."""

M = TypeVar("M", bound=AgentMessage)

_MODEL_MESSAGES = (UserMessage, AssistantMessage, ToolResultMessage)
_ASKING_BLOCKS = (Text, Image, InlineData)
_REPLY_BLOCKS = (Text, ToolCall, Thinking, InlineThinking, InlineData)
_UNSEEN = frozenset({"refusal", "content_filter"})


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
        logger.info("custom messages of the role %r are not sent to the model (Config.convert_to_llm decides)", role)


def _role(message: CustomMessage) -> str:
    return getattr(message, "role", type(message).__name__)


Mapped: TypeAlias = "str | Message | Iterable[str | Message] | None"
"""What a custom message becomes: a text (a user message), messages, or None (left out)."""


def convert_custom(
    functions: Mapping[str | type[CustomMessage], Callable[[Any], Mapped]],
) -> Callable[[Sequence[AgentMessage]], tuple[Message, ...]]:
    """A `Config.convert_to_llm` that maps custom messages by role or class; those of other roles are left out.

    A class also takes its subclasses; an entry for the exact role wins. A message that becomes a text is a user message.

        Config(model=model, convert_to_llm=convert_custom({"notice": lambda notice: f"[notice] {notice.text}"}))

    What a function raises ends the attempt (`callback_failed`).
    """
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
    if isinstance(value, str | UserMessage | AssistantMessage | ToolResultMessage) or not isinstance(value, Iterable):
        value = [value]
    return [user(item) if isinstance(item, str) else item for item in value]


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


class MessageView(Sequence[M]):
    """A read-only view of the first messages of a list that only grows: nothing is copied, nothing in it ever changes.

    Equal to any tuple, list or view with the same messages; a slice is a tuple; copied and pickled as a tuple.
    """

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[M], length: int) -> None:
        self._messages = messages
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[M]:
        return islice(self._messages, self._length)

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[M, ...]: ...
    def __getitem__(self, index: int | slice) -> M | tuple[M, ...]:
        if isinstance(index, slice):
            return tuple([self._messages[n] for n in range(*index.indices(self._length))])
        position = index + self._length if index < 0 else index
        if 0 <= position < self._length:
            return self._messages[position]
        raise IndexError(f"message {index} of {self._length}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list | MessageView):
            return NotImplemented
        return self._length == len(other) and all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"MessageView({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (tuple, (tuple(self),))


class LegalHistory:
    """A history that grows while a run goes on, and its legal form beside it, each kept up at a constant cost a message.

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
        self._kept.append(message)
        if isinstance(message, CustomMessage):
            _log_custom(message)
        elif self._builder.must_rename(message):
            self._builder = _build(self._kept, drop_custom=True)
        else:
            self._builder.append(len(self._kept) - 1, message)

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
        """The ids that a new call must not take: of all calls, as they came and as they were renamed. Takes linear time."""
        return self._builder.call_ids()


# ---------------------------------------------------------------- how it is done


def _build(messages: list[Any], drop_custom: bool = False) -> _Builder:
    replies = [message for message in messages if isinstance(message, AssistantMessage)]
    builder = _Builder({call.id for reply in replies for call in _calls(reply)})
    for index, message in enumerate(messages):
        if drop_custom and isinstance(message, CustomMessage):
            _log_custom(message)
        else:
            builder.append(index, message)
    return builder


def _calls(reply: AssistantMessage) -> list[ToolCall]:
    return [block for block in reply.content if isinstance(block, ToolCall)]


_ANSWERED: Final[list[int]] = []
_LEFT_OUT: Final[list[int]] = []
_PENDING: Final = ToolResultMessage("", "", "")
_REPAIRS_TO_LOG = 10


class _Builder:
    """The legal form of the messages so far. A reply's results have their places (`slots`) in `out` from the start."""

    def __init__(self, ids: set[str]) -> None:
        self.out: list[Message] = []
        self._shown = 0  # so much of `out` stands in views: it must not change in place
        self._next = 0  # where in `out` a message in good order stands
        self._ids = ids  # as they came; names that are made avoid them
        self._used: set[str] = set()
        self._made: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._slots: dict[
            str, list[int]
        ] = {}  # id as it came -> places of results of its latest reply, the first one last
        self._pending: dict[int, ToolCall] = {}
        self._problem: str | None = None
        self._received = 0
        self._repairs: list[str] = []
        self._repaired = 0

    # -- messages in

    def append(self, index: int, message: object) -> None:
        self._received += 1
        if isinstance(message, ToolResultMessage):
            self._add_result(index, message)
        elif isinstance(message, AssistantMessage):
            self._add_reply(index, message)
        elif isinstance(message, UserMessage):
            self._add_user(index, message)
        else:
            self._refuse(
                f"messages[{index}]: expected a user, assistant or tool result message, got {type(message).__name__}"
                + (" (Config.convert_to_llm left a custom message in)" if isinstance(message, CustomMessage) else "")
            )

    def must_rename(self, message: object) -> bool:
        """Whether a call of this message brings an id that was already made up for another one."""
        return (
            bool(self._made)
            and isinstance(message, AssistantMessage)
            and any(call.id in self._made for call in _calls(message))
        )

    def _add_user(self, index: int, message: UserMessage) -> None:
        content = self._clean(index, message.content, _ASKING_BLOCKS)
        if content:
            self._put(message if content is message.content else attrs.evolve(message, content=content))
        else:
            self._repair(f"messages[{index}]: an empty user message was left out")

    def _add_reply(self, index: int, message: AssistantMessage) -> None:
        if message.stop_reason != "completed" or message.finish_reason in _UNSEEN:
            if message.stop_reason is None:
                self._repair(f"messages[{index}]: a reply without a stop_reason is partial and was left out")
            self._slots.update((call.id, _LEFT_OUT) for call in _calls(message))
            return
        content = self._clean(index, message.content, _REPLY_BLOCKS)
        sent = [block for block in content if isinstance(block, ToolCall)]
        if sent:
            calls = [self._legal_call(index, call) for call in sent]
            if not all(map(operator.is_, calls, sent)):
                legal = iter(calls)
                content = tuple([next(legal) if isinstance(block, ToolCall) else block for block in content])
            self._put(message if content is message.content else attrs.evolve(message, content=content))
            self._reserve(sent, calls)
        elif content:
            self._put(message if content is message.content else attrs.evolve(message, content=content))
        else:
            self._repair(f"messages[{index}]: an empty reply was left out")

    def _add_result(self, index: int, message: ToolResultMessage) -> None:
        slots = self._slots.get(message.tool_call_id)
        if not slots:
            if slots is None:
                self._repair(f"messages[{index}]: the result of {message.tool_call_id!r} has no call before it")
            elif slots is _ANSWERED:
                self._repair(f"messages[{index}]: {message.tool_call_id!r} has a result already; the first one counts")
            return
        place = slots.pop()
        if not slots:
            self._slots[message.tool_call_id] = _ANSWERED
        if place == self._next:
            self._next += 1
        else:
            self._repair(f"messages[{index}]: the result of {message.tool_call_id!r} was moved behind its call")
        if place < self._shown:
            self.out, self._shown = list(self.out), 0
        self.out[place] = self._legal_result(index, message, *self._owner(place))

    # -- parts

    def _put(self, message: Message) -> None:
        self.out.append(message)
        self._next = len(self.out)

    def _reserve(self, sent: list[ToolCall], calls: list[ToolCall]) -> None:
        first = len(self.out)
        self.out += [_PENDING] * len(calls)
        slots: dict[str, list[int]] = {}
        for number in range(len(calls) - 1, -1, -1):
            slots.setdefault(sent[number].id, []).append(first + number)
        self._slots.update(slots)
        self._pending.update(enumerate(calls, first))

    def _owner(self, place: int) -> tuple[str, str]:
        call = self._pending.pop(place, None)
        if call is not None:
            return call.id, call.name
        shown = self.out[place]
        assert isinstance(shown, ToolResultMessage), "a slot holds a placeholder until its result comes"
        return shown.tool_call_id, shown.tool_name

    def _legal_result(self, index: int, message: ToolResultMessage, call_id: str, name: str) -> ToolResultMessage:
        content = self._clean(index, message.content, _ASKING_BLOCKS) or (Text(NO_OUTPUT),)
        if content is message.content and message.tool_call_id == call_id and message.tool_name == name:
            return message
        if message.tool_name != name:
            self._repair(f"messages[{index}]: a result of the tool {message.tool_name!r} for a call of {name!r}")
        return attrs.evolve(message, content=content, tool_call_id=call_id, tool_name=name)

    def _legal_call(self, index: int, call: ToolCall) -> ToolCall:
        if not call.name:
            self._refuse(f"messages[{index}]: expected the name of a tool in the call {call.id!r}, got none")
        self._ids.add(call.id)
        call_id = self._unique(call.id)
        arguments = call.arguments if _is_object(call.arguments) else "{}"
        if call_id == call.id and arguments is call.arguments:
            return call
        if call_id != call.id:
            self._repair(f"messages[{index}]: the call id {call.id!r} is taken or empty and became {call_id!r}")
        return attrs.evolve(call, id=call_id, arguments=arguments)

    def _unique(self, call_id: str) -> str:
        if call_id and call_id not in self._used:
            self._used.add(call_id)
            return call_id
        number = self._numbers.get(call_id, 2 if call_id else 1)
        while (made := f"{call_id or 'call'}#{number}") in self._used or made in self._ids:
            number += 1
        self._numbers[call_id] = number + 1
        self._used.add(made)
        self._made.add(made)
        return made

    def _clean(
        self, index: int, content: tuple[ContentBlock, ...], allowed: tuple[type, ...]
    ) -> tuple[ContentBlock, ...]:
        kept = [block for block in content if isinstance(block, allowed) and not _is_empty(block)]
        if len(kept) == len(content):
            return content
        for number, block in enumerate(content):
            if not isinstance(block, allowed):
                self._repair(f"messages[{index}].content[{number}]: a {type(block).__name__} cannot stand there")
        return tuple(kept)

    def _repair(self, what: str) -> None:
        self._repaired += 1
        if len(self._repairs) < _REPAIRS_TO_LOG:
            self._repairs.append(what)

    def _refuse(self, problem: str) -> None:
        self._problem = self._problem or problem

    # -- messages out

    def view(self) -> MessageView[Message]:
        self.settle()
        self._shown = len(self.out)
        return MessageView(self.out, self._shown)

    def settle(self) -> None:
        """Put placeholders where results are missing, log, and raise what cannot be made legal."""
        if self._pending:
            for place, call in self._pending.items():
                self.out[place] = ToolResultMessage(call.id, call.name, NO_RESULT, is_error=True, stop_reason="aborted")
                self._repair(f"the call {call.id!r} has no result and got a placeholder")
            self._pending.clear()
        if self._repaired:
            self._log()
        if self._problem is not None:
            _invalid(self._problem)
        if not self.out:
            _invalid(f"messages: expected at least one message that a model may see, got none of {self._received}")

    def call_ids(self) -> frozenset[str]:
        return frozenset(self._ids | self._used)

    def _log(self) -> None:
        more = self._repaired - len(self._repairs)
        logger.warning(
            "the messages of a request were repaired: %s%s",
            "; ".join(self._repairs),
            f"; and {more} more" if more else "",
        )
        self._repairs, self._repaired = [], 0


def _invalid(problem: str) -> NoReturn:
    raise ModelError("invalid_input", problem)


def _is_empty(block: ContentBlock) -> bool:
    if isinstance(block, ToolCall):
        return False
    if isinstance(block, Image):
        return _is_blank(block.url)
    if block.fidelity:
        return False
    if isinstance(block, Text):
        return _is_blank(block.text)
    return _is_blank(block.thinking) if isinstance(block, Thinking) else not block.data


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


# ---------------------------------------------------------------- arguments

_CACHED_LENGTH = 512


def _is_object(text: str) -> bool:
    """Whether the text is a JSON object that any encoder can write again: strict, and no deeper than `MAX_JSON_DEPTH`."""
    if text == "{}":
        return True
    return _check_short(text) if len(text) <= _CACHED_LENGTH else _check(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_strict = json.JSONDecoder(parse_constant=_no_constant)


def _check(text: str) -> bool:
    try:
        value = _strict.decode(text)
        if "\\" in text:
            json.dumps(value, ensure_ascii=False).encode()  # an escape may stand for half of a surrogate pair
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (text.count("[") + text.count("{") <= MAX_JSON_DEPTH or _is_shallow(value))


_check_short = lru_cache(maxsize=2_048)(_check)  # with callbacks, the same calls are looked at before every request


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return True
    return False
