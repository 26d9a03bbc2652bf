"""Events to records and back, without loss.

`encode(events)` gives every record of the events; `for_stream` and `for_trace` say which of them go where. `decode` gives the
events back: all of them from the whole of the records, `trace_view(events)` from those of a trace. Any beginning of the
records gives a beginning of the events.

    records = encode(events)
    assert decode(records) == events
    assert decode(for_trace(records)) == trace_view(events)

As they come, one at a time: `Encoder.encode(event)` and `Decoder.feed(record)`, or as lines of JSON
`LineEncoder.lines(event)` and `LineDecoder.feed_line(line)`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from agentloop.events import (
    Abort,
    AgentEnd,
    BlockAdded,
    ChildEvent,
    CompactionEnd,
    Event,
    MessageUpdate,
    SubagentStarted,
    TextEnd,
    ThinkingEnd,
    ToolCallEnd,
    ToolExecutionUpdate,
)
from agentloop.omni._decode import Decoder
from agentloop.omni._encode import Encoder
from agentloop.omni._filters import StreamFilter, TraceFilter
from agentloop.omni._lines import LineDecoder, LineEncoder, from_jsonl, jsonl
from agentloop.omni._types import Clock, Record
from agentloop.omni.custom import REGISTRY, MessageRegistry, register_message

__all__ = [
    "REGISTRY",
    "Decoder",
    "Encoder",
    "LineDecoder",
    "LineEncoder",
    "MessageRegistry",
    "StreamFilter",
    "TraceFilter",
    "decode",
    "encode",
    "for_stream",
    "for_trace",
    "from_jsonl",
    "jsonl",
    "register_message",
    "trace_view",
]


def encode(events: Iterable[Event], clock: Clock = time.time) -> list[Record]:
    """Every record of the events, in order."""
    encoder = Encoder(clock)
    return [record for event in events for record in encoder.encode(event)]


def decode(records: Iterable[Record], registry: MessageRegistry = REGISTRY) -> list[Event]:
    """The events of the records, in order; never raises for what stands in them."""
    decoder = Decoder(registry)
    events = [event for record in records for event in decoder.feed(record)]
    return events + decoder.finish()


def for_stream(records: Iterable[Record]) -> Iterator[Record]:
    """Those that a consumer of the run is shown (`StreamFilter`)."""
    return filter(StreamFilter().keep, records)


def for_trace(records: Iterable[Record]) -> Iterator[Record]:
    """Those that a trace file holds (`TraceFilter`)."""
    return filter(TraceFilter().keep, records)


def trace_view(events: Iterable[Event]) -> Iterator[Event]:
    """The events as a trace tells them.

    Each block of a reply is one `BlockAdded`, a call that was cut is nothing; progress, streamed output, events of
    children and their metas are left out, and so is the `AgentEnd` (with its `Abort`) directly after a compaction that
    completed.
    """
    closed = False
    for event in events:
        kind = type(event)
        if kind is ChildEvent or kind is ToolExecutionUpdate:
            continue
        if isinstance(event, MessageUpdate):
            whole = _whole_block(event)
            if whole is not None:
                yield whole
        elif closed and kind in (Abort, AgentEnd):
            closed = kind is Abort
        else:
            closed = isinstance(event, CompactionEnd) and event.status == "completed"
            yield SubagentStarted(event.session_id, event.tool_call_id) if isinstance(event, SubagentStarted) else event


def _whole_block(event: MessageUpdate) -> MessageUpdate | None:
    delta = event.delta
    if isinstance(delta, BlockAdded):
        return event
    if not isinstance(delta, TextEnd | ThinkingEnd | ToolCallEnd):
        return None
    if isinstance(delta, ToolCallEnd) and delta.stop_reason != "completed":
        return None
    return MessageUpdate(BlockAdded(delta.index, delta.block), event._message)
