"""Scripts of models for property tests of the loop: replies as lists of chunks, well-behaved and not."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from agentloop.errors import REQUEST_CODES, ModelError
from agentloop.messages import ToolCall
from agentloop.model import BlockChunk, BlockEnd, Finish, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk
from agentloop.testing.scripted import CUT
from agentloop.testing.strategies import values

_HALVES = ("\ud83d", "\ude00", "a\ud83d", "\ude00b", "\ud800\ud800")
"""Halves of surrogate pairs: some join with the next piece, some stay alone."""

_INDEXES = st.sampled_from((None, None, None, 0, 1, 2))


_PIECES = values.texts() | st.sampled_from(_HALVES)
_FIDELITIES = values.fidelities()
_ARGUMENTS = values.argument_texts()
_BOOLEANS = st.booleans()
_IDS = st.sampled_from(("call_1", "call_2", "fn", "", None))
_ENDS = st.sampled_from(("finish", "finish", "late", "raise", "cut"))
_REASONS = st.sampled_from((None, None, *values.FINISH_REASONS))
_CUTS = [st.integers(0, most) for most in range(9)]


def _call_chunks(names: st.SearchStrategy[str]) -> st.SearchStrategy[ToolCallChunk]:
    fragments = st.sampled_from(("", "{", "}", '{"a": 1}', '"path": "é"', "[", "\ud83d", "\ude00"))
    ids = st.sampled_from((None, None, "", "call_1", "call_2", "fn"))
    return st.builds(ToolCallChunk, fragments, ids, st.none() | names, _INDEXES, _FIDELITIES)


@cache
def chunks(tool_names: tuple[str, ...] = ("look", "add")) -> st.SearchStrategy[Any]:
    """Any one chunk but `Finish`: text, thinking and calls with and without index and id, block ends, data, usage."""
    names = st.sampled_from((*tool_names, "no_such_tool"))
    whole = values.whole_blocks() | st.builds(ToolCall, values.call_ids(), names, _ARGUMENTS)
    return st.one_of(
        _PIECES,
        st.builds(TextChunk, _PIECES, _INDEXES, _FIDELITIES),
        st.builds(ThinkingChunk, _PIECES, _INDEXES, _FIDELITIES),
        _call_chunks(names),
        st.builds(BlockEnd, _INDEXES),
        st.builds(BlockChunk, whole),
        st.builds(UsageChunk, values.usages()),
    )


@cache
def _names(tool_names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from((*tool_names, "no_such_tool"))


@st.composite
def whole_calls(draw: Any, tool_names: tuple[str, ...] = ("look", "add")) -> list[Any]:
    """One call as providers send it: its start with id and name, then its arguments in pieces."""
    index = draw(_INDEXES)
    text = draw(_ARGUMENTS)
    cut = draw(_CUTS[min(len(text), 8)])
    start = ToolCallChunk(id=draw(_IDS), name=draw(_names(tool_names)), index=index)
    fragments = [ToolCallChunk(piece, index=index) for piece in (text[:cut], text[cut:])]
    return [start, *fragments, *([BlockEnd(index)] if draw(_BOOLEANS) else [])]


@cache
def _bodies(tool_names: tuple[str, ...]) -> st.SearchStrategy[list[Any]]:
    part = st.one_of(chunks(tool_names).map(lambda chunk: [chunk]), whole_calls(tool_names))
    return st.lists(part, max_size=5).map(lambda parts: [chunk for part in parts for chunk in part])


@cache
def failures() -> st.SearchStrategy[BaseException]:
    """What a model may raise: every code of a request, with and without a wait, and exceptions of others."""
    known = st.builds(
        ModelError,
        st.sampled_from(sorted(REQUEST_CODES)),
        st.sampled_from(("failed", "")),
        retryable=st.sampled_from((None, None, True, False)),
        retry_after=st.sampled_from((None, None, 0.0, 1.5)),
    )
    foreign = st.sampled_from((ConnectionResetError, TimeoutError, RuntimeError, KeyError, ExceptionGroup))
    return known | foreign.map(lambda kind: kind("g", [ValueError("x")]) if kind is ExceptionGroup else kind("odd"))


@st.composite
def model_replies(draw: Any, tool_names: tuple[str, ...] = ("look", "add"), broken: bool = True) -> list[Any]:
    """The chunks of one reply, ended by `Finish` (perhaps with more after it), by an exception, or by `CUT`.

    `broken=False`: only replies that finish.
    """
    body = draw(_bodies(tool_names))
    end = draw(_ENDS) if broken else "finish"
    if end == "raise":
        return [*body, draw(failures())]
    if end == "cut":
        return [*body, CUT]
    calls = any(isinstance(chunk, ToolCallChunk) for chunk in body)
    reason = draw(_REASONS)
    finish = Finish(reason or ("tool_use" if calls else "stop"), draw(_FIDELITIES))
    return [*body, finish, *([draw(chunks(tool_names))] if end == "late" else [])]


def model_scripts(
    tool_names: tuple[str, ...] = ("look", "add"), *, max_size: int = 5, broken: bool = True
) -> st.SearchStrategy[list[list[Any]]]:
    """Scripts for `ScriptedModel`: a list of replies, the last of them a plain one, so that most runs end by themselves.

    Calls are of `tool_names`, or of a tool that does not exist. `broken=False` leaves out failures and streams that are
    cut; ids may still repeat, arguments be no JSON, and surrogate pairs be split.
    """
    replies = st.lists(model_replies(tool_names, broken), max_size=max_size - 1)
    return replies.map(lambda script: [*script, ["done", Finish("stop")]])
