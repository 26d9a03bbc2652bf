"""How a history becomes legal: the builder behind `convert.make_legal` and `convert.LegalHistory`.

The numbers of rules are those of `convert.py`. One pass, each message looked at once. The results of a reply have their
places in the list from the moment their reply stands there, so that a result which comes later only fills its place.
"""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NoReturn, TypeVar, overload

import attrs

from agentloop._results import NO_OUTPUT
from agentloop._values import MAX_JSON_DEPTH, is_kind
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
)

log = logging.getLogger("agentloop.convert")

NO_RESULT: Final = "[no result is known: the call was not run, or it was stopped before it gave one]"

M = TypeVar("M", bound=AgentMessage)

_ASKING_BLOCKS = (Text, Image, InlineData)
_REPLY_BLOCKS = (Text, ToolCall, Thinking, InlineThinking, InlineData)
_UNSEEN = frozenset({"refusal", "content_filter"})


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
            return tuple([self._messages[place] for place in range(*index.indices(self._length))])
        place = index + self._length if index < 0 else index
        if 0 <= place < self._length:
            return self._messages[place]
        raise IndexError(f"expected an index below {self._length}, got {index}")

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


_ANSWERED: Final[list[int]] = []
_LEFT_OUT: Final[list[int]] = []
_LEFT_OUT_TAKEN: Final[list[int]] = []  # the latest reply with the id is left out, an earlier one has the id
_PENDING: Final = ToolResultMessage("", "", "")
_REPAIRS_TO_LOG = 10


class LegalBuilder:
    """The legal form of the messages so far (`out`). `ids` are those of the calls to come, as far as they are known."""

    __slots__ = (
        "_ids", "_next", "_numbers", "_pending", "_problem", "_received", "_repaired", "_repairs", "_shown", "_slots",
        "made", "out",
    )  # fmt: skip

    def __init__(self, ids: dict[str, None]) -> None:
        self.out: list[Message] = []
        self._shown = 0  # so much of `out` stands in views: it must not change in place
        self._next = 0  # the place in `out` where a message in good order stands
        self._ids = ids
        self._slots: dict[str, list[int]] = {}
        """Id as it came → free places for results of the latest reply that has it, the first one last."""
        self._pending: dict[int, ToolCall] = {}
        self.made: dict[str, None] = {}  # as `ids`: an empty set takes 150 bytes more
        """Ids that were made up."""
        self._numbers: dict[str, int] = {}
        self._problem: str | None = None
        self._received = 0
        self._repairs: list[str] = []
        self._repaired = 0

    # ------------------------------------------------ messages in

    def append(self, index: int, message: object) -> None:
        """Take the message that stands at `index` of the caller's list; never raises."""
        self._received = index + 1
        if is_kind(message, ToolResultMessage):
            self._add_result(index, message)
        elif is_kind(message, AssistantMessage):
            self._add_reply(index, message)
        elif is_kind(message, UserMessage):
            self._add_user(index, message)
        else:
            self._refuse(
                f"messages[{index}]: expected a user, assistant or tool result message, got {type(message).__name__}"
                + (" (convert_to_llm left a custom message in)" if is_kind(message, CustomMessage) else "")
            )

    def must_rename(self, message: object) -> bool:
        """Whether this message has a call whose id was already made up for another one: build again, knowing it."""
        return is_kind(message, AssistantMessage) and any(call.id in self.made for call in calls_of(message.content))

    def _add_user(self, index: int, message: UserMessage) -> None:
        content = self._clean(index, message.content, _ASKING_BLOCKS)
        if content:
            self._put(message, content)
        else:
            self._repair(f"messages[{index}]: an empty user message was left out")

    def _add_reply(self, index: int, message: AssistantMessage) -> None:
        if message.stop_reason != "completed" or message.finish_reason in _UNSEEN:
            self._leave_out(index, message)
            return
        content = self._clean(index, message.content, _REPLY_BLOCKS)
        if not content:
            self._repair(f"messages[{index}]: an empty reply was left out")
            return
        sent = calls_of(content)
        if not sent:
            self._put(message, content)
            return
        calls = self._reserve(index, sent)
        if calls != sent:
            legal = iter(calls)
            content = tuple([next(legal) if isinstance(block, ToolCall) else block for block in content])
        self._put(message, content)
        self._pending.update(enumerate(calls, len(self.out)))
        self.out += [_PENDING] * len(calls)

    def _leave_out(self, index: int, message: AssistantMessage) -> None:
        if message.stop_reason is None:
            self._repair(f"messages[{index}]: a reply without a stop_reason is partial and was left out")
        for call in calls_of(message.content):
            self._slots[call.id] = _LEFT_OUT_TAKEN if self._is_taken(call.id) else _LEFT_OUT

    def _add_result(self, index: int, message: ToolResultMessage) -> None:
        sent_id = message.tool_call_id
        places = self._slots.get(sent_id)
        if not places:
            if places is None:
                self._repair(f"messages[{index}]: the result of {sent_id!r} has no call before it and was left out")
            elif places is _ANSWERED:
                self._repair(f"messages[{index}]: {sent_id!r} has a result already; this one was left out")
            return
        place = places.pop()
        if not places:
            self._slots[sent_id] = _ANSWERED
        if place == self._next:
            self._next += 1
        else:
            self._repair(f"messages[{index}]: the result of {sent_id!r} was moved after its call")
        if place < self._shown:
            self.out, self._shown = list(self.out), 0
        self.out[place] = self._legal_result(index, message, place)

    # ------------------------------------------------ their parts

    def _put(self, message: UserMessage | AssistantMessage, content: tuple[ContentBlock, ...]) -> None:
        self.out.append(message if content is message.content else attrs.evolve(message, content=content))
        self._next = len(self.out)

    def _is_taken(self, call_id: str) -> bool:
        places = self._slots.get(call_id)
        return places is not None and places is not _LEFT_OUT

    def _reserve(self, index: int, sent: list[ToolCall]) -> list[ToolCall]:
        """The calls of a reply, legal, with places for their results."""
        first, calls, doubled, named = len(self.out) + 1, [], set[str](), False
        for place, call in enumerate(sent, first):
            call_id = call.id
            places = self._slots.get(call_id)
            free = call_id != "" and (places is None or places is _LEFT_OUT)
            if not (free or named):
                named = True
                self._ids.update(
                    [(other.id, None) for other in sent]
                )  # a name that is made must avoid the later ones too
            calls.append(self._legal_call(index, call, free))
            if places and places[0] >= first:  # the id stands twice in this very reply
                places.append(place)
                doubled.add(call_id)
            else:
                self._slots[call_id] = [place]
        for call_id in doubled:
            self._slots[call_id].reverse()
        return calls

    def _legal_result(self, index: int, message: ToolResultMessage, place: int) -> ToolResultMessage:
        call = self._pending.pop(place, None)
        if call is not None:
            call_id, name = call.id, call.name
        else:  # a placeholder stood there
            shown = self.out[place]
            assert isinstance(shown, ToolResultMessage), "a place for a result holds a result"
            call_id, name = shown.tool_call_id, shown.tool_name
        content = self._clean(index, message.content, _ASKING_BLOCKS) or (Text(NO_OUTPUT),)
        if content is message.content and message.tool_call_id == call_id and message.tool_name == name:
            return message
        if message.tool_name != name:
            self._repair(f"messages[{index}]: a result of the tool {message.tool_name!r} for a call of {name!r}")
        return attrs.evolve(message, content=content, tool_call_id=call_id, tool_name=name)

    def _legal_call(self, index: int, call: ToolCall, free: bool) -> ToolCall:
        if not call.name:
            self._refuse(f"messages[{index}]: expected the name of a tool in the call {call.id!r}, got none")
        call_id, arguments = call.id, call.arguments
        if not free:
            call_id = self._make_id(call_id)
            self._repair(f"messages[{index}]: the call id {call.id!r} is taken or empty and became {call_id!r}")
        if not (_check_short(arguments) if len(arguments) <= _CACHED_LENGTH else _check(arguments)):
            arguments = "{}"
        if free and arguments is call.arguments:
            return call
        return attrs.evolve(call, id=call_id, arguments=arguments)

    def _make_id(self, call_id: str) -> str:
        number = self._numbers.get(call_id, 2 if call_id else 1)
        while (made := f"{call_id or 'call'}#{number}") in self.made or made in self._slots or made in self._ids:
            number += 1
        self._numbers[call_id] = number + 1
        self.made[made] = None
        return made

    def _clean(
        self, index: int, content: tuple[ContentBlock, ...], allowed: tuple[type, ...]
    ) -> tuple[ContentBlock, ...]:
        """The blocks that this role may have and that are not empty; the same tuple if that is all of them."""
        for block in content:  # most contents are texts and calls, and fine
            kind = type(block)
            if kind is Text:
                text = block.text  # type: ignore[union-attr]
                if not text or text.isspace():
                    break
            elif kind is not ToolCall or allowed is not _REPLY_BLOCKS:
                break
        else:
            return content
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

    # ------------------------------------------------ the list out

    def view(self) -> MessageView[Message]:
        """A view of what there is, settled."""
        self.settle()
        self._shown = len(self.out)
        return MessageView(self.out, self._shown)

    def settle(self) -> None:
        """Put placeholders where results are missing, log the repairs, raise what cannot be made legal."""
        if self._pending:
            for place, call in self._pending.items():
                self.out[place] = ToolResultMessage(call.id, call.name, NO_RESULT, is_error=True, stop_reason="aborted")
                self._repair(f"the call {call.id!r} has no result and got a placeholder")
            self._pending.clear()
        if self._repaired:
            self._log()
        if self._problem is not None:
            raise ModelError("invalid_input", self._problem)
        if not self.out:
            raise ModelError(
                "invalid_input",
                f"messages: expected at least one message that a model may see, got none among {self._received}",
            )

    def call_ids(self) -> frozenset[str]:
        """The ids of all calls, as they came and as they are shown."""
        return frozenset((*self._ids, *self._slots, *self.made))

    def _log(self) -> None:
        more = self._repaired - len(self._repairs)
        what = "; ".join(self._repairs) + (f"; and {more} more" if more else "")
        log.warning("the messages of a request were repaired: %s", what)
        self._repairs, self._repaired = [], 0


def calls_of(content: tuple[ContentBlock, ...]) -> list[ToolCall]:
    """The calls among the blocks, in order."""
    return [block for block in content if isinstance(block, ToolCall)]


def _is_empty(block: ContentBlock) -> bool:
    if isinstance(block, ToolCall):
        return False
    if isinstance(block, Image):
        return is_blank(block.url)
    if block.fidelity:
        return False
    if isinstance(block, Text):
        return is_blank(block.text)
    return is_blank(block.thinking) if isinstance(block, Thinking) else not block.data


def is_blank(text: str) -> bool:
    """Whether the text is empty or white space alone."""
    return not text or text.isspace()


# ---------------------------------------------------------------- arguments

_CACHED_LENGTH = 512


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"expected JSON, got {name}")


_strict = json.JSONDecoder(parse_constant=_no_constant)


def _check(text: str) -> bool:
    """Whether the text is a JSON object that any encoder can write again: strict, at most `MAX_JSON_DEPTH` deep."""
    try:
        value = _strict.decode(text)
        if "\\" in text:  # an escape may stand for half of a surrogate pair, which no encoder takes
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and (text.count("[") + text.count("{") <= MAX_JSON_DEPTH or _is_shallow(value))


_check_short = lru_cache(maxsize=2_048)(_check)  # with callbacks, the same calls are looked at before every request


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        items = [item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent)]
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return True
    return False
