"""A process of its own for tests of approvals: `approval_worker.py FOLDER COMMAND`, its answer as JSON on one line.

`wait`: run until a person is needed, then leave. `hang`: the same, but wait for the answer for ever, after saying that it
waits. `allow` / `deny ID`: answer a question of the recorded session. `go_on`: open it and run to the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agentloop import tool
from agentloop.approval import Approvals, Condition, Policy, Question, Rule, until_waiting
from agentloop.omni.answers import open_questions, store_answer
from agentloop.omni.resume import resume_session
from agentloop.session import Session
from agentloop.testing import ScriptedModel, call, collect

FOLDER = Path(sys.argv[1])
ID = "waits_for_a_person"
POLICY = Policy([Rule("allow", where=[Condition("path", glob="ok*")])])


@tool
async def delete(path: str) -> str:
    """Delete a file (here: note it)."""
    with (FOLDER / "ran.txt").open("a") as file:
        file.write(f"{path}\n")
    return f"deleted {path}"


CALLS = [call("delete", {"path": path}, id=path) for path in ("a", "ok", "b")]


def say(**words: Any) -> None:
    """The answer of this process."""
    print(json.dumps(words), flush=True)


def told(question: Question) -> None:
    """It waits: say for what."""
    say(asked=question.tool_call_id)


async def first(leave: bool) -> None:
    """The run that needs a person."""
    approvals = Approvals(POLICY, on_question=told)
    model = ScriptedModel([CALLS])
    async with Session.create(
        FOLDER / "traces", model, tools=[delete], session_id=ID, approval_order="all_at_once"
    ) as session:
        run = session.run("clean up", approve=approvals)
        if not leave:
            await collect(run)
        left = until_waiting(run, order="all_at_once")
        await collect(left)
        say(waiting=[request.tool_call_id for request in left.waiting])


async def go_on() -> None:
    """The run after the answers."""
    approvals = Approvals(POLICY)
    model = ScriptedModel(["all done"])
    async with Session.open(ID, FOLDER / "traces", model, tools=[delete], approval_order="all_at_once") as session:
        events = until_waiting(session.run(approve=approvals), order="all_at_once", open_calls=session_calls(session))
        seen = [type(event).__name__ async for event in events]
        said = [getattr(message, "text", "") for message in session.messages]
        say(waiting=[request.tool_call_id for request in events.waiting], events=seen, messages=said)


def session_calls(session: Session) -> list[str]:
    """The open calls of the conversation."""
    answered = {getattr(message, "tool_call_id", None) for message in session.messages}
    calls = [each for message in session.messages for each in getattr(message, "tool_calls", ())]
    return [each.id for each in calls if each.id not in answered]


def answer(decision: Any, id: str) -> None:
    """An answer from this process."""
    questions = {question.tool_call_id: question for question in open_questions(resume_session(FOLDER / "traces", ID))}
    store_answer(FOLDER / "traces", ID, id, decision, questions[id].digest)
    say(answered=id, shown=questions[id].arguments)


match sys.argv[2:]:
    case ["wait"]:
        asyncio.run(first(leave=True))
    case ["hang"]:
        asyncio.run(first(leave=False))
    case ["go_on"]:
        asyncio.run(go_on())
    case [decision, id]:
        answer(decision, id)
