"""`--trace DIR`: a run recorded as a session of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from agentloop.cli import UsageError
from agentloop.cli._text import safe
from agentloop.errors import TraceError
from agentloop.events import Event
from agentloop.model import Model
from agentloop.omni.recorder import record
from agentloop.omni.records import model_identity, new_session_id, session_meta
from agentloop.omni.trace import TraceWriter

Events: TypeAlias = AsyncGenerator[Event, None]


@contextmanager
def tracing(
    folder: str | None, model: Model, system_prompt: str | None, note: Callable[[str], None] | None
) -> Iterator[Callable[[Events], Events]]:
    """Within the block: what makes a stream of events a recorded one; the stream itself without a folder. Where it was
    recorded is said through `note`.

    Raises `UsageError` for a folder that cannot be written in.
    """
    if folder is None:
        yield lambda events: events
        return
    meta = session_meta(
        new_session_id(),
        **model_identity(model),
        system_prompt=system_prompt or "",
        workspace=str(Path.cwd()),
    )
    try:
        writer = TraceWriter(folder, meta)
    except (TraceError, OSError) as error:
        raise UsageError(f"--trace {folder}: {error}") from None
    with writer:
        yield lambda events: record(events, writer)
        if writer.file is not None and note is not None:
            note(safe(f"trace: {writer.file}\n"))
