"""What a model is: a callable that takes a request and gives an async iterator of chunks.

    async def echo(request: ModelRequest) -> AsyncIterator[ModelChunk]:
        yield "You said: " + request.messages[-1].text
        yield Finish("stop")

That is a whole transport. The kernel opens and closes the blocks, makes ids unique, classifies failures and owns retries;
an adapter only says what came. It may raise `ModelError`; any other exception is classified by the kernel. Attributes
`provider` and `model` of the callable, if it has them, go into its replies.

The iterator is entered, stepped and closed (`aclose`, where it has one) by one and the same task.

Fields that recur in chunks: `index` is the provider's own number of the block that a piece belongs to; None: the open
block of its kind, or a new one. `fidelity` is what the adapter wants back with that block in later requests; the pieces'
objects are put together key by key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from agentloop._frozen import field, frozen
from agentloop._values import frozen_object
from agentloop.abort import AbortSignal
from agentloop.errors import FinishReason
from agentloop.messages import AgentMessage, ContentBlock, JsonObject, ToolSpec, Usage

__all__ = [
    "BlockChunk",
    "BlockEnd",
    "Finish",
    "Model",
    "ModelChunk",
    "ModelRequest",
    "TextChunk",
    "ThinkingChunk",
    "ToolCallChunk",
    "UsageChunk",
]


@frozen
class TextChunk:
    """A piece of text. An empty `text` is a delta all the same."""

    type: ClassVar[str] = "text_chunk"
    text: str
    index: int | None = None
    fidelity: JsonObject | None = field(default=None, converter=frozen_object)


@frozen
class ThinkingChunk:
    """A piece of `thinking`."""

    type: ClassVar[str] = "thinking_chunk"
    thinking: str
    index: int | None = None
    fidelity: JsonObject | None = field(default=None, converter=frozen_object)


@frozen
class ToolCallChunk:
    """A fragment of a call: `arguments` is a piece of JSON text, as sent.

    The first non-empty `id` and `name` count, and may come late. With `index` None, an id that is not the open call's
    opens a new call.
    """

    type: ClassVar[str] = "tool_call_chunk"
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    index: int | None = None
    fidelity: JsonObject | None = field(default=None, converter=frozen_object)


@frozen
class BlockEnd:
    """The provider says that the block is whole; with `index` None, the open one."""

    type: ClassVar[str] = "block_end"
    index: int | None = None


@frozen
class BlockChunk:
    """A `block` that does not stream, whole."""

    type: ClassVar[str] = "block_chunk"
    block: ContentBlock


@frozen
class UsageChunk:
    """`usage` is the tokens of this request so far; of several such chunks the last one counts."""

    type: ClassVar[str] = "usage_chunk"
    usage: Usage


@frozen
class Finish:
    """The reply is whole; `reason` says why it ended. Only usage is read after it. A stream that ends without a `Finish` was
    cut off."""

    type: ClassVar[str] = "finish"
    reason: FinishReason
    fidelity: JsonObject | None = field(default=None, converter=frozen_object)
    """Goes to the message (not to a block)."""


ModelChunk: TypeAlias = TextChunk | ThinkingChunk | ToolCallChunk | BlockEnd | BlockChunk | UsageChunk | Finish | str
"""What a model yields. A plain `str` is a `TextChunk`."""


@frozen
class ModelRequest:
    """What a model is asked. `messages` are legal for every provider: each call is followed by its result, none is empty.
    `tools` is what the model may call."""

    system_prompt: str | None
    """What stands above the messages; None: nothing."""
    messages: Sequence[AgentMessage]
    """User, assistant and tool result messages; read-only."""
    tools: Sequence[ToolSpec]
    options: Mapping[str, Any]
    """Parameters for the adapter (temperature, thinking level, …), as `Config.options` gives them."""
    abort: AbortSignal = field(factory=AbortSignal, eq=False, repr=False)
    """Fires when the run stops. An adapter need not look at it: its task is cancelled as well."""
    model: Model | None = field(default=None, eq=False, repr=False)
    """Who is asked; `Config.prepare_request` may replace it for this one request."""


class Model(Protocol):
    """A model callable. An async generator function with one parameter is one."""

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Ask; the iterator gives the reply's chunks and is closed by the kernel."""
        ...
