"""`--session ID`: a prompt as the next task of a recorded session, which is made where there is none."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

import attrs

from agentloop.cli import UsageError
from agentloop.cli._files import add_traces_argument
from agentloop.cli._streams import Output
from agentloop.cli._text import safe
from agentloop.cli._tracing import tracing
from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import TraceError
from agentloop.events import ApprovalRequest, Event
from agentloop.loop import agent_loop
from agentloop.messages import user
from agentloop.omni.trace import trace_files
from agentloop.session import PER_RUN, Session
from agentloop.tools import ToolInvocation

Start: TypeAlias = Callable[[str | None], AsyncGenerator[Event, None]]
"""Makes the run on a prompt; None: on what waits in the session."""

_NO_SETTING: Final = ("model", "approve", *PER_RUN)
"""Fields of `Config` that a session is given otherwise."""


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Where a run is recorded."""
    parser.add_argument("--trace", metavar="DIR", help="record the run as a session of its own in this folder")
    parser.add_argument(
        "--session",
        metavar="ID",
        help="go on with this session, or begin it: letters, digits, _ and -; the folder is that of --traces",
    )
    add_traces_argument(parser)


@contextmanager
def recorded(arguments: argparse.Namespace, config: Config, context: Context, output: Output) -> Iterator[Start]:
    """Within the block: what makes the run that the arguments ask for, recorded if they ask for it.

    Raises `UsageError` for a session that cannot be opened or a folder that cannot be written in.
    """
    if arguments.session is None:
        note = None if arguments.quiet else output.note
        with tracing(arguments.trace, config.model, context.system_prompt, note) as wrap:
            yield lambda prompt: wrap(agent_loop([] if prompt is None else [user(prompt)], context, config))
        return
    if arguments.trace is not None:
        raise UsageError("--session: expected no --trace beside it (a session has its place below --traces)")
    session = _session(arguments.session, arguments.traces, config, context)
    try:
        yield lambda prompt: _run(session, prompt, config)
    finally:
        session.close()
    if session.path is not None and not arguments.quiet:
        output.note(safe(f"session {session.id}: {session.path}\n"))


def _run(session: Session, prompt: str | None, config: Config) -> AsyncGenerator[Event, None]:
    if prompt is None and not session.waits:
        raise UsageError(f"session {session.id}: expected a PROMPT: nothing in it waits to be gone on with")
    approve = AllowAll() if config.approve is None else config.approve
    return session.run(() if prompt is None else prompt, approve=approve, abort=config.abort)


def _session(session_id: str, traces: str, config: Config, context: Context) -> Session:
    settings: dict[str, Any] = {
        field.name: getattr(config, field.name) for field in attrs.fields(Config) if field.name not in _NO_SETTING
    }
    settings |= {"tools": context.tools, "system_prompt": context.system_prompt}
    try:
        if trace_files(traces, session_id):
            return Session.open(session_id, traces, config.model, **settings)
        return Session.create(traces, config.model, session_id=session_id, **settings)
    except (TraceError, ValueError, OSError) as error:
        raise UsageError(f"--session {session_id}: {error}") from None


class AllowAll:
    """What is offered on the command line may run, as without a session: nobody is asked."""

    def policy(self, call: ToolInvocation) -> Literal["allow"]:
        """No question."""
        return "allow"

    def __call__(self, request: ApprovalRequest) -> Literal["allow"]:
        """Never asked."""
        return "allow"
