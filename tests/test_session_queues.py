"""What is said to a session meanwhile: steering and follow-ups, in its own queues, of which nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentloop import AbortSignal, AgentEnd, Event, MessageEnd, MessageStart, MessageUpdate, UserMessage, tool, user
from agentloop.omni.records import user_text
from agentloop.session import Session, SessionRun
from agentloop.testing import ScriptedModel
from agentloop.testing.scripted import STALL, call

pytestmark = pytest.mark.anyio


@tool
def look() -> str:
    """Look."""
    return "seen"


def said(model: ScriptedModel, request: int) -> list[str]:
    """The texts of a person in a request."""
    return [message.text for message in model.requests[request].messages if isinstance(message, UserMessage)]


def shown(event: Event) -> str | None:
    """The text of an input whose start this is."""
    return event.message.text if isinstance(event, MessageStart) and isinstance(event.message, UserMessage) else None


async def until(run: SessionRun, text: str) -> None:
    """Step up to the start of an input, and leave."""
    async for event in run:
        if shown(event) == text:
            break
    await run.aclose()


async def test_steering_rides_the_next_request_and_a_follow_up_goes_on(tmp_path: Path) -> None:
    """Steered during a call: behind its result, in the same run; a follow-up when the run would end; both are recorded
    once, and one at a time unless `all` is set."""
    model = ScriptedModel([[call("look")], "Turning.", "Right.", "Also done."])
    async with Session.create(tmp_path, model, tools=[look], session_id="s1") as session:
        async for event in session.run("Go.", approve=lambda request: "allow"):
            if shown(event) == "Go.":
                session.steer(["Left.", user_text("Right.")])
                session.follow_up("And then?")
                assert session.queued("steering") == (user("Left."), user("Right."))
        assert isinstance(event, AgentEnd) and event.stop_reason == "completed"
        assert [said(model, n) for n in range(3)] == [
            ["Go.", "Left."], ["Go.", "Left.", "Right."], ["Go.", "Left.", "Right.", "And then?"],
        ]  # fmt: skip
        assert (session.queued("steering"), session.queued("follow_up")) == ((), ())
        assert session.history().messages == session.messages


async def test_what_no_run_took_waits_for_the_next(tmp_path: Path) -> None:
    """Aborted with a message in the queue: it is still there, and the next run takes it behind its prompt; it may be taken
    back before."""
    abort, model = AbortSignal(), ScriptedModel([["Once ", STALL], "The end.", "More."])
    async with Session.create(tmp_path, model) as session:
        async for event in session.run("Tell me.", abort=abort):
            if isinstance(event, MessageUpdate) and not abort.aborted:
                session.steer(["Shorter!", "Never mind."])
                abort.abort()
        assert session.queued("steering") == (user("Shorter!"), user("Never mind."))
        session.set_queue_mode("steering", "all")
        session.follow_up("Taken back.")
        assert session.take_back("follow_up") == (user("Taken back."),)
        async for _ in session.run("Go on."):
            pass
        assert said(model, 1)[1:] == ["Go on.", "Shorter!", "Never mind."]


async def test_without_a_prompt_what_is_queued_is_the_prompt(tmp_path: Path) -> None:
    """An idle session that is steered has something to go on with; afterwards it has not."""
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with Session.create(tmp_path, model) as session:
        session.follow_up("second")
        session.steer("first")
        async for _ in session.run():
            pass
        assert [getattr(message, "text", "") for message in session.messages] == ["first", "One.", "second", "Two."]
        with pytest.raises(ValueError, match="nothing in the conversation waits"):
            await anext(session.run())


@pytest.mark.parametrize("queue", ["steering", "follow_up"])
async def test_left_right_behind_the_start_of_a_message(queue: Any, tmp_path: Path) -> None:
    """Taken and shown, but left before its end: it is in the conversation, and not in the queue as well; taken and not
    shown, it is in the queue, in its old place, and not in the conversation."""
    model = ScriptedModel(["One.", "Two."] * 3)
    async with Session.create(tmp_path / "shown", model) as session:
        (session.steer if queue == "steering" else session.follow_up)(["a", "b"])
        await until(session.run("Go."), "a")
        assert [m.text for m in session.messages if isinstance(m, UserMessage)] == ["Go.", "a"]
        assert session.queued(queue) == (user("b"),)
    async with Session.create(tmp_path / "unshown", model) as session:
        session.set_queue_mode(queue, "all")
        (session.steer if queue == "steering" else session.follow_up)(["a", "b"])
        await until(session.run("Go."), "a")
        assert session.queued(queue) == (user("b"),)


async def test_a_run_that_is_stopped_before_it_shows_its_prompt_gives_it_back(tmp_path: Path) -> None:
    """Aborted before its first turn, with a queued message as its prompt: that waits again."""
    abort = AbortSignal()
    abort.abort()
    async with Session.create(tmp_path, ScriptedModel()) as session:
        session.steer("first")
        events = [event async for event in session.run(abort=abort)]
        assert not any(isinstance(event, MessageEnd) for event in events)
        assert session.queued("steering") == (user("first"),)


async def test_a_callback_of_ones_own_takes_the_place_of_a_queue(tmp_path: Path) -> None:
    """A session that was given `get_steering_messages` asks it, and says so when it is steered; the other queue is its own."""
    taken = [["from the callback"], []]
    model = ScriptedModel(["One.", "Two."])
    mine: Any = {"get_steering_messages": lambda: taken.pop(0) if taken else []}
    async with Session.create(tmp_path, model, **mine) as session:
        with pytest.raises(TypeError, match="got one with get_steering_messages"):
            session.steer("lost?")
        session.follow_up("later")
        async for _ in session.run("Go."):
            pass
    assert said(model, 1) == ["Go.", "from the callback", "later"]


async def test_what_is_no_prompt_is_refused_when_it_is_said(tmp_path: Path) -> None:
    """Not when it is taken; and nothing of it is queued."""
    async with Session.create(tmp_path, ScriptedModel()) as session:
        wrong: Any = ["fine", 7]
        with pytest.raises(TypeError, match=r"prompts\[1\]"):
            session.steer(wrong)
        assert session.queued("steering") == ()
