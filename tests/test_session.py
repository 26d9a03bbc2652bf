"""`Session`: the guarded door, runs one after the other, records, opening again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop import (
    AgentEnd,
    SessionBusy,
    ToolResultMessage,
    TraceLocked,
    tool,
)
from agentloop.omni.records import is_complete_model_message, is_partial, user_text
from agentloop.session import Session
from agentloop.testing import ScriptedModel
from agentloop.testing.scripted import call

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def allow(request: object) -> str:
    return "allow"


async def test_without_an_approve_callback_every_call_is_denied(tmp_path: Path) -> None:
    """The session is the guarded door: nobody to ask means no (the bare kernel would run the call)."""
    model = ScriptedModel([[call("add", {"a": 1, "b": 2})], "denied, then"])
    async with Session.create(tmp_path, model, tools=[add]) as session:
        events = [event async for event in session.run("1 + 2?")]
    result = next(message for message in session.messages if isinstance(message, ToolResultMessage))
    assert (result.text, result.stop_reason) == ("Tool call denied by user.", "aborted")
    assert isinstance(events[-1], AgentEnd) and events[-1].stop_reason == "completed"


async def test_what_is_allowed_runs(tmp_path: Path) -> None:
    """A run's own callback decides; it is asked once."""
    model = ScriptedModel([[call("add", {"a": 1, "b": 2})], "3"])
    asked = []
    async with Session.create(tmp_path, model, tools=[add]) as session:
        async for _ in session.run("1 + 2?", approve=lambda request: asked.append(request.arguments) or "allow"):
            pass
    assert [message.text for message in session.messages if isinstance(message, ToolResultMessage)] == ["3"]
    assert [json.loads(arguments) for arguments in asked] == [{"a": 1, "b": 2}]


async def test_a_session_goes_on_in_another_process(tmp_path: Path) -> None:
    """`open` gives back what `create` left: messages, tokens, the prompt; and the next run adds to it."""
    async with Session.create(tmp_path, ScriptedModel(["Noted."]), system_prompt="Be brief.", session_id="s1") as first:
        async for _ in first.run("My colour is blue."):
            pass
    model = ScriptedModel(["Blue."])
    async with Session.open("s1", tmp_path, model) as second:
        assert (second.messages, second.system_prompt) == (first.messages, "Be brief.")
        async for _ in second.run("Which colour?"):
            pass
    assert [message.text for message in model.requests[0].messages] == ["My colour is blue.", "Noted.", "Which colour?"]
    assert second.history().messages == second.messages


async def test_one_session_has_one_writer(tmp_path: Path) -> None:
    """Opened a second time elsewhere: the lock's error; closing gives the session free."""
    async with Session.create(tmp_path, ScriptedModel(["one"]), session_id="s1") as session:
        async for _ in session.run("go"):
            pass
        with pytest.raises(TraceLocked, match="session s1: expected no other writer"):
            Session.open("s1", tmp_path, ScriptedModel())
    async with Session.open("s1", tmp_path, ScriptedModel()):
        pass


async def test_a_second_run_is_a_clear_error(tmp_path: Path) -> None:
    """One run at a time: while one goes on, another is refused when it is made, and when it takes its first step."""
    async with Session.create(tmp_path, ScriptedModel(["one", "two"])) as session:
        early = session.run("early")
        run = session.run("one")
        await anext(run)
        with pytest.raises(SessionBusy, match="one at a time"):
            session.run("two")
        with pytest.raises(SessionBusy):
            await anext(early)
        with pytest.raises(SessionBusy):
            session.configure(max_turns=1)
        async for _ in run:
            pass
        assert [event.stop_reason async for event in session.run("two") if isinstance(event, AgentEnd)] == ["completed"]


async def test_records_are_the_run_as_streamed(tmp_path: Path) -> None:
    """`records` yields fragments and complete records; the complete ones are, timestamps included, those of the trace."""
    async with Session.create(tmp_path, ScriptedModel(["Hello."])) as session:
        records = [record async for record in session.records([user_text("Hi.")])]
        stored = session.history().records
    assert any(is_partial(record) for record in records)
    assert [record for record in records if not is_partial(record)] == list(stored[1:])
    assert [r["payload"]["text"] for r in records if is_complete_model_message(r)] == ["Hi.", "Hello."]
