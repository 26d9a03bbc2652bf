"""Content blocks, messages and the other values that a conversation is made of.

All are frozen, slotted and compared by value; sequences are tuples, JSON values are read-only copies. A `str` is accepted
wherever a list of text blocks is. `type` (and `role`) are class-level wire names, not fields.

Fields that recur: `content` is the blocks of a message, `mime_type` the type of its `data` (base64), `fidelity` what the
adapter that made a block or reply needs back unchanged, opaque to everybody else (None: nothing).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import attrs

from agentloop._frozen import field, frozen
from agentloop._values import freeze_json, frozen_json, frozen_object, is_kind, thaw_json, valid_text
from agentloop.errors import FinishReason, StopReason

__all__ = [
    "AgentMessage",
    "AssistantMessage",
    "ContentBlock",
    "CustomMessage",
    "Image",
    "InlineData",
    "InlineThinking",
    "Json",
    "JsonObject",
    "Message",
    "OpaqueMessage",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "ToolResultMessage",
    "ToolSpec",
    "Usage",
    "UserMessage",
    "assistant",
    "content_blocks",
    "json_type",
    "text_of",
    "user",
]

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, a list or a dict of such."""

JsonObject: TypeAlias = Mapping[str, Any]
"""A JSON object."""


# ---------------------------------------------------------------- content blocks


def _fidelity() -> Any:
    return field(default=None, converter=frozen_object)


@frozen
class Text:
    """`text` of the user or the model. An empty text with a `fidelity` stands for a block of a kind that only its provider
    knows."""

    type: ClassVar[str] = "text"
    text: str = field(converter=valid_text)
    fidelity: JsonObject | None = _fidelity()


@frozen
class Thinking:
    """The model's reasoning as text (`thinking`), where the provider shows it."""

    type: ClassVar[str] = "thinking"
    thinking: str = field(converter=valid_text)
    fidelity: JsonObject | None = _fidelity()


@frozen
class InlineThinking:
    """Reasoning that came as data (an image, say)."""

    type: ClassVar[str] = "inline_thinking"
    data: str = field(converter=valid_text)
    mime_type: str = field(converter=valid_text)
    fidelity: JsonObject | None = _fidelity()


@frozen
class ToolCall:
    """The model asks for the tool `name`. `arguments` is the JSON text exactly as the model sent it; `id`, unique in a run,
    names the call in its events and its result."""

    type: ClassVar[str] = "tool_call"
    id: str
    name: str
    arguments: str = field(default="", converter=valid_text)
    fidelity: JsonObject | None = _fidelity()

    def parse(self) -> dict[str, Any]:
        """The arguments as an object; blank text is no arguments, `{}`.

        Lone surrogates become U+FFFD, as in everything that is sent. Raises `ValueError` when the text is not JSON (NaN
        counts as such, and so do nesting or numbers too large to be written again) or not an object at the top.
        """
        if not self.arguments.strip():
            return {}
        try:
            value = json.loads(self.arguments)
        except RecursionError:
            raise ValueError("arguments: expected JSON of a sane depth, got deeper nesting") from None
        except ValueError as error:
            raise ValueError(f"arguments: expected a JSON object, got text that is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise ValueError(f"arguments: expected a JSON object, got {json_type(value)}")
        return thaw_json(freeze_json(value, "arguments"))  # type: ignore[no-any-return]


@frozen
class Image:
    """An image from the user or a tool: `url` is a web address or a `data:` URL."""

    type: ClassVar[str] = "image_url"
    url: str = field(converter=valid_text)


@frozen
class InlineData:
    """Data of any MIME type, from the user, a tool or the model (a picture or audio that a model made)."""

    type: ClassVar[str] = "inline_data"
    data: str = field(converter=valid_text)
    mime_type: str = field(converter=valid_text)
    fidelity: JsonObject | None = _fidelity()


ContentBlock: TypeAlias = Text | Thinking | InlineThinking | ToolCall | Image | InlineData
"""What a message is made of."""

_BLOCKS: Final[tuple[type[ContentBlock], ...]] = (Text, Thinking, InlineThinking, ToolCall, Image, InlineData)


def json_type(value: Any) -> str:
    """How JSON calls the type of a value, with its article: `a string`, `an object`, `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "an array" if isinstance(value, list) else type(value).__name__


def content_blocks(value: str | ContentBlock | Iterable[ContentBlock | str]) -> tuple[ContentBlock, ...]:
    """A tuple of blocks from what callers write: a text, a block, or an iterable of both. An empty text is no block.

    Raises `TypeError`, naming the place, for anything else.
    """
    if type(value) is tuple:  # as it is nearly always
        for block in value:
            if not issubclass(type(block), _BLOCKS):
                break
        else:
            return value
    if isinstance(value, str):
        return (Text(value),) if value else ()
    if is_kind(value, _BLOCKS):
        return (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise TypeError(f"content: expected text or content blocks, got {type(value).__name__}")
    blocks: list[ContentBlock] = []
    for index, block in enumerate(value):
        if isinstance(block, str):
            blocks.append(Text(block))
        elif is_kind(block, _BLOCKS):
            blocks.append(block)
        else:
            raise TypeError(f"content[{index}]: expected a content block or text, got {type(block).__name__}")
    return tuple(blocks)


def _sender(message: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Said at once: a second block that was meant to be content stands there, and would not be said to the model."""
    if value is not None and not is_kind(value, str):
        hint = "; blocks of one content are given in a list, or to user(…)" if is_kind(value, _BLOCKS) else ""
        raise TypeError(f"sender: expected a text or None, got {type(value).__name__}{hint}")


def text_of(content: Iterable[Any]) -> str:
    """The text of the text blocks, joined without anything between them."""
    return "".join(block.text for block in content if isinstance(block, Text))


# ---------------------------------------------------------------- messages


def _all_of(usage: Usage) -> int:
    return usage.cache_read + usage.cache_write + usage.output


@frozen
class Usage:
    """Tokens of one request, or of several added up. All input is `cache_read + cache_write`; `total` is the sum of the other
    three when it is not given."""

    cache_read: int = 0
    """Input that the provider served from its cache."""
    cache_write: int = 0
    """All other input, whether the provider caches it or not."""
    output: int = 0
    """Output, thinking included."""
    total: int = field(default=attrs.Factory(_all_of, takes_self=True))

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.output + other.output,
            self.total + other.total,
        )


@frozen
class UserMessage:
    """What a person, or a program on their behalf, says to the model. `sender` names that program; None: a person."""

    role: ClassVar[str] = "user"
    content: tuple[ContentBlock, ...] = field(converter=content_blocks)
    sender: str | None = field(default=None, validator=_sender)

    @property
    def text(self) -> str:
        """The joined text blocks."""
        return text_of(self.content)


@frozen
class AssistantMessage:
    """A model's reply. While it streams, `stop_reason`, `finish_reason` and `usage` are None.

    The reply is *committed* when `stop_reason` is `completed`: it counts, and later requests show it.
    """

    role: ClassVar[str] = "assistant"
    content: tuple[ContentBlock, ...] = field(converter=content_blocks)
    stop_reason: StopReason | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    provider: str | None = None
    """Who made it (`openai`, say), as the model callable's attribute of this name says."""
    model: str | None = None
    """Which model, likewise."""
    error_code: str | None = None
    """Why the request failed: one of `errors.ERROR_CODES`."""
    error_message: str | None = None
    """The same in words."""
    fidelity: JsonObject | None = _fidelity()

    @property
    def text(self) -> str:
        """The joined text blocks, thinking left out."""
        return text_of(self.content)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The complete calls, in order."""
        return tuple([block for block in self.content if type(block) is ToolCall])


@frozen
class ToolResultMessage:
    """What the call `tool_call_id` of the tool `tool_name` gave back, as the model will see it."""

    role: ClassVar[str] = "tool_result"
    tool_call_id: str
    tool_name: str
    content: tuple[ContentBlock, ...] = field(converter=content_blocks)
    details: Json = field(default=None, converter=frozen_json)
    """For the application: never sent to a model."""
    structured: Json = field(default=None, converter=frozen_json)
    """The result as JSON, where the tool has a structured one."""
    is_error: bool = field(default=False, converter=bool)
    """Whether the call failed or did not run; the content then says why."""
    stop_reason: StopReason = "completed"
    """`completed`; `aborted`: stopped or not allowed; `fatal`: it failed."""

    @property
    def text(self) -> str:
        """The joined text blocks."""
        return text_of(self.content)


class _NoText:
    """The empty text of a message that has no field `text`; a subclass's field, attribute or property takes its place."""

    def __get__(self, message: object, owner: type) -> str:
        if message is None:
            raise AttributeError("text")  # else a dataclass would take it for the default of its own field
        return ""


class CustomMessage:
    """Base of an application's own messages: shown and stored like any other, seen by the model only if the
    application's `convert_to_llm` says how.

    Subclass it (best as a frozen attrs class) and set `role` to a name of your own:

        @frozen
        class Notice(CustomMessage):
            role: ClassVar[str] = "notice"
            text: str
    """

    __slots__ = ()
    role: ClassVar[str]
    if TYPE_CHECKING:
        text: Any  # a `str`, and so for type checkers too: a subclass may make it a field or a property
        """The text that it shows; empty unless the application's class says."""
    else:
        text = _NoText()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        role = cls.__dict__.get("role")
        if role in ("user", "assistant", "tool_result"):
            raise TypeError(f"{cls.__name__}.role: expected a name of your own, got the built-in role {role!r}")


@frozen
class OpaqueMessage(CustomMessage):
    """A custom message that a decoder read and whose `role` nobody registered: `data` is kept and written back unchanged."""

    role: str  # type: ignore[misc]  # the one custom message whose role is data
    data: JsonObject = field(converter=frozen_json)


Message: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage
"""What a model may see."""

AgentMessage: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage | CustomMessage
"""What an application shows and stores: a message of the model's world or one of its own."""


def user(*content: str | ContentBlock, sender: str | None = None) -> UserMessage:
    """A user message from texts and blocks."""
    return UserMessage(content_blocks([block for block in content if block != ""]), sender)


def assistant(
    *content: str | ContentBlock,
    stop_reason: StopReason = "completed",
    finish_reason: FinishReason | None = None,
    usage: Usage | None = None,
) -> AssistantMessage:
    """A committed reply from texts and blocks; `finish_reason` defaults to `tool_use` with calls, else `stop`."""
    blocks = content_blocks([block for block in content if block != ""])
    if finish_reason is None and stop_reason == "completed":
        finish_reason = "tool_use" if any(isinstance(block, ToolCall) for block in blocks) else "stop"
    return AssistantMessage(blocks, stop_reason, finish_reason, usage)


# ---------------------------------------------------------------- tools, as a conversation sees them


@frozen
class ToolResult:
    """What a tool may return where a plain value does not say enough, and what its events carry."""

    content: tuple[ContentBlock, ...] = field(default=(), converter=content_blocks)
    details: Json = field(default=None, converter=frozen_json)
    """For the application: shown and stored, never sent to a model."""
    structured: Json = field(default=None, converter=frozen_json)
    """The result as JSON, where the tool has a structured one."""
    is_error: bool = field(default=False, converter=bool)
    """Whether the model is to read it as a failure."""
    terminate: bool = field(default=False, converter=bool)
    """Ask to end the run after this batch; it ends only if every result of the batch asks."""

    @property
    def text(self) -> str:
        """The joined text blocks."""
        return text_of(self.content)


@frozen
class ToolSpec:
    """A tool as a model is told of it: its `name`, its `description`, and the JSON Schema of its arguments object
    (`parameters`)."""

    name: str
    description: str = ""
    parameters: JsonObject = field(factory=dict, converter=frozen_json)
    label: str | None = None
    """A name for people, never sent to a model."""
