"""Strategies for the values that a conversation is made of: JSON, texts, blocks, messages, usage, deltas.

All make what a kernel can produce: valid Unicode, JSON that can be written, usage whose parts are not negative. Short on
purpose: what matters is in the small cases.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from agentloop.events import (
    BlockAdded,
    Delta,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    JsonObject,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
)

__all__ = [
    "FINISH_REASONS",
    "STOP_REASONS",
    "argument_texts",
    "assistant_messages",
    "call_ids",
    "custom_messages",
    "deltas",
    "fidelities",
    "json_objects",
    "json_values",
    "messages",
    "model_blocks",
    "names",
    "texts",
    "tool_result_messages",
    "tool_results",
    "tool_specs",
    "usages",
    "user_blocks",
    "user_messages",
    "whole_blocks",
]

STOP_REASONS = ("completed", "aborted", "retryable", "fatal")
FINISH_REASONS = ("stop", "length", "tool_use", "refusal", "content_filter", "pause", "unknown")

_PIECES = (
    "a", "Hello, ", "world", "", " ", "\n", "naïve ☕", "😀", "e\u0301", "\u2028", '{"a": ', "\x00\x1b[2J", "data: [DONE]\n\n",
)  # fmt: skip


def texts() -> st.SearchStrategy[str]:
    """Short texts, odd ones among them: empty, control characters, line separators, beyond the basic plane."""
    return st.sampled_from(_PIECES) | st.text(max_size=6)


def names() -> st.SearchStrategy[str]:
    """Names of tools, as providers allow them."""
    return st.sampled_from(("look", "add", "read_file", "a-b", "Z9"))


_NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | texts() | _NUMBERS


def json_values(max_leaves: int = 4) -> st.SearchStrategy[Any]:
    """JSON values: nested, with integers beyond 64 bits, floats that look like integers, any key."""
    return st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts(), inner, max_size=2),
        max_leaves=max_leaves,
    )


def json_objects(max_leaves: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects with at least one key."""
    return st.dictionaries(texts(), json_values(max_leaves), min_size=1, max_size=2)


_FEW_OBJECTS: tuple[JsonObject, ...] = (
    {"signature": "c2ln"},
    {"phase": "commentary", "z": 1, "a": [1.0, 1, None]},
    {"": {"": {}}, "big": 2**64, "neg": -1e-9},
)


def fidelities() -> st.SearchStrategy[JsonObject | None]:
    """What a block carries for its adapter: mostly nothing."""
    return st.sampled_from((None, None, None, *_FEW_OBJECTS)) | json_objects()


def _maybe_json() -> st.SearchStrategy[Any]:
    return st.sampled_from((None, None, None, *_FEW_OBJECTS, [], {}, 0, False, "")) | json_values()


def argument_texts() -> st.SearchStrategy[str]:
    """Arguments of calls as models send them: JSON objects, nothing at all, cut or no JSON."""
    odd = ("{}", '{"a": 1}', "", "  ", '{"path": "a b.csv", "n": 1.0}', '{"a": "\\ud83d\\ude00"}', '{"a', "[1]", "null")
    return st.sampled_from(odd) | json_objects().map(lambda value: json.dumps(value, ensure_ascii=False))


def usages() -> st.SearchStrategy[Usage]:
    """Token counts; the total is the sum, or what a provider says it is."""
    small = st.sampled_from((0, 1, 7, 1200))
    return st.builds(Usage, small, small, small) | st.builds(Usage, small, small, small, st.integers(0, 5000))


def user_blocks() -> st.SearchStrategy[ContentBlock]:
    """Blocks of a user or a tool: text, images, data."""
    picture = st.sampled_from((Image("https://example.org/a.png"), Image("data:image/png;base64,AAAA")))
    return st.one_of(
        texts().map(Text), texts().map(Text), picture, st.just(InlineData("AAAA", "application/pdf"))
    )  # texts twice: they are what most messages are


def whole_blocks() -> st.SearchStrategy[ContentBlock]:
    """Blocks of a model that do not stream: data, or a provider's own block as an empty text with its fidelity."""
    return st.one_of(
        st.builds(InlineData, st.just("AAAA"), st.just("image/png"), fidelities()),
        st.builds(InlineThinking, st.just("AAAA"), st.just("image/png"), fidelities()),
        st.builds(Text, st.just(""), json_objects()),
    )


def model_blocks(ids: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[ContentBlock]:
    """Blocks of a model; `ids` makes the ids of calls."""
    calls = st.builds(ToolCall, ids or call_ids(), names(), argument_texts(), fidelities())
    texts_with = st.builds(Text, texts(), fidelities())
    return st.one_of(texts_with, st.builds(Thinking, texts(), fidelities()), calls, whole_blocks())


def call_ids() -> st.SearchStrategy[str]:
    """Ids of calls as providers make them, equal ones among them."""
    return st.sampled_from(("call_1", "call_2", "toolu_01", "c#2", "fn")) | st.text(min_size=1, max_size=4)


def user_messages() -> st.SearchStrategy[UserMessage]:
    """Messages of a person or on their behalf, an empty one among them."""
    senders = st.sampled_from((None, None, None, "harness", "parent_agent"))
    return st.builds(UserMessage, st.lists(user_blocks(), max_size=2).map(tuple), senders)


def custom_messages() -> st.SearchStrategy[CustomMessage]:
    """An application's own messages, of roles that nobody registered."""
    return st.builds(OpaqueMessage, st.sampled_from(("notice", "status", "x/y")), json_objects())


def tool_result_messages() -> st.SearchStrategy[ToolResultMessage]:
    """Results of calls."""
    return st.builds(
        ToolResultMessage,
        call_ids(),
        names(),
        st.lists(user_blocks(), min_size=1, max_size=2).map(tuple),
        _maybe_json(),
        _maybe_json(),
        st.booleans(),
        st.sampled_from(STOP_REASONS),
    )


def assistant_messages() -> st.SearchStrategy[AssistantMessage]:
    """Replies, committed or not."""
    committed = st.builds(
        AssistantMessage,
        st.lists(model_blocks(), min_size=1, max_size=3, unique_by=_call_id).map(tuple),
        st.just("completed"),
        st.sampled_from(FINISH_REASONS),
        st.none() | usages(),
        st.sampled_from((None, "scripted")),
        st.sampled_from((None, "m-1")),
        fidelity=fidelities(),
    )
    broken = st.builds(
        AssistantMessage,
        st.lists(model_blocks(), max_size=2, unique_by=_call_id).map(tuple),
        st.sampled_from(STOP_REASONS[1:]),
        error_code=st.sampled_from((None, "network", "truncated")),
        error_message=st.none() | texts(),
    )
    return committed | broken


def _call_id(block: ContentBlock) -> object:
    return block.id if isinstance(block, ToolCall) else object()


def messages() -> st.SearchStrategy[AgentMessage]:
    """Any message."""
    return st.one_of(user_messages(), assistant_messages(), tool_result_messages(), custom_messages())


def tool_results() -> st.SearchStrategy[ToolResult]:
    """What a tool returns; never empty."""
    content = st.lists(user_blocks(), min_size=1, max_size=2).map(tuple)
    return st.builds(ToolResult, content, _maybe_json(), _maybe_json(), st.booleans(), st.booleans())


def tool_specs() -> st.SearchStrategy[ToolSpec]:
    """Tools as a model is told of them."""
    schemas = st.sampled_from(({}, {"type": "object", "properties": {"a": {"type": "integer", "maximum": 1.0}}}))
    return st.builds(ToolSpec, names(), texts(), schemas, st.sampled_from((None, "Look")))


def deltas(index: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[Delta]:
    """Any single delta (streams of them in legal order are `replies`)."""
    at = index or st.integers(0, 3)
    ends = st.sampled_from(STOP_REASONS)
    call = st.builds(ToolCall, call_ids(), names(), argument_texts(), fidelities())
    return st.one_of(
        st.builds(TextStart, at),
        st.builds(TextDelta, at, texts()),
        st.builds(TextEnd, at, st.builds(Text, texts(), fidelities()), ends),
        st.builds(ThinkingStart, at),
        st.builds(ThinkingDelta, at, texts()),
        st.builds(ThinkingEnd, at, st.builds(Thinking, texts(), fidelities()), ends),
        st.builds(ToolCallStart, at, call_ids(), names()),
        st.builds(ToolCallDelta, at, texts()),
        st.builds(ToolCallEnd, at, call, ends),
        st.builds(BlockAdded, at, whole_blocks()),
    )
