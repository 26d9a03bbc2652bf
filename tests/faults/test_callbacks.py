"""Whatever a callback raises or returns, the run stays legal and ends with an event (G18)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Block, Config, Context, ToolExecutionEnd, agent_loop, tool
from agentloop.testing import ScriptedModel, call, collect
from tests.leftovers import nothing_left

from .bench import NONSENSE, RAISED, Bad, HostileText, NamelessError, Plain, Proxy, outcome

pytestmark = pytest.mark.anyio

CALLBACKS = (
    "model", "transform_context", "convert_to_llm", "prepare_request", "get_steering_messages",
    "get_follow_up_messages", "before_tool_call", "after_tool_call", "finish_turn", "approve", "policy",
    "pre_tool_use", "user_prompt", "stop", "due", "prompt", "accept", "summary", "servers", "connect", "changed",
    "close", "tool", "piece",
)  # fmt: skip
NEVER_ASYNC = ("servers", "piece")
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"


async def test_the_plain_run_asks_every_callback() -> None:
    """What is replaced below is really called, and harmless it does no harm."""
    plain = Plain()
    events = await plain.play()
    assert outcome(events) == ("completed", None)
    assert set(CALLBACKS) <= set(plain.called)


def some(kinds: Iterable[str], backend: Any, name: str) -> list[str]:
    """All in the slow profile, else a third of them, another one for each backend and callback."""
    kinds = list(kinds)
    if SLOW:
        return kinds
    turn = len(name) + (2 if backend[0] == "trio" else int(backend[1]["use_uvloop"]))
    return kinds[turn % 3 :: 3]


@pytest.mark.parametrize("name", CALLBACKS)
async def test_nonsense_is_borne(name: str, anyio_backend: Any) -> None:
    """A callback that returns what it should not ends the run, the attempt or the call with an event, and no more."""
    async with nothing_left():
        for kind in some(NONSENSE, anyio_backend, name):
            plain = Plain()
            plain.replaced[name] = lambda *args, kind=kind: NONSENSE[kind]()
            await plain.play()
            assert name in plain.called, kind


async def test_a_word_of_a_class_of_its_own_is_that_word() -> None:
    """What is hostile about such a text is left out, wherever it is compared."""
    given: dict[str, Any] = {
        "approve": lambda request: HostileText("deny"),
        "finish_turn": lambda end: HostileText("end"),
        "new_id": lambda: HostileText("mine"),
        "before_tool_call": lambda call: None if call.id == "mine" else Block(HostileText("why")),
    }
    calls = [call("work", id=""), call("work", id="other")]
    events = await Plain().play(model=ScriptedModel([calls]), hooks=[], **given)
    ends = [event for event in events if isinstance(event, ToolExecutionEnd)]
    assert [(end.tool_call_id, end.error_code) for end in ends] == [("mine", "denied"), ("other", "blocked")]
    assert ends[1].result.text == "why"
    assert outcome(events) == ("completed", None)


@pytest.mark.parametrize("made", [Proxy, lambda: None, lambda: 5])
async def test_a_maker_of_ids_that_gives_none_is_done_without(made: Any) -> None:
    """Whatever it gives in the place of a text; the call is named by the kernel, and runs."""
    events = await Plain().play(new_id=made, model=ScriptedModel([[call("work", id="")]], past_end="stop"))
    assert [event.tool_call_id for event in events if isinstance(event, ToolExecutionEnd)] == ["call"]


FAILED = ("fatal", "callback_failed")
UNBOUND: dict[str, tuple[tuple[str, str | None], str | None]] = {
    "transform_context": (FAILED, None),
    "convert_to_llm": (FAILED, None),
    "prepare_request": (FAILED, None),
    "get_tools": (FAILED, None),
    "get_steering_messages": (FAILED, None),
    "get_follow_up_messages": (FAILED, None),
    "finish_turn": (FAILED, None),
    "before_tool_call": (("completed", None), "blocked"),
    "after_tool_call": (("completed", None), "tool_error"),
    "approve": (("completed", None), "forbidden"),  # already where it is asked for its policy
}
"""How the run ends, and the code of its first call, where such a callback fails."""


class Unbound(Proxy):
    """A lazy proxy whose object cannot be had: it can be called, and neither that nor any look at it succeeds."""

    def __call__(self, *args: Any) -> Any:
        raise Bad("there is no object")


@pytest.mark.parametrize("setting", UNBOUND)
async def test_a_callback_that_fails_to_say_its_name_is_a_failed_callback(setting: str) -> None:
    """It ends the run, the attempt or the call as one that raises does."""
    events = await Plain().play(**{setting: Unbound()})
    codes = [event.error_code for event in events if isinstance(event, ToolExecutionEnd)]
    ends, code = UNBOUND[setting]
    assert (outcome(events), codes[0] if codes else None) == (ends, code)


async def test_a_wait_for_steering_that_fails_to_say_its_name_is_a_failed_callback() -> None:
    """It is asked for while a call runs that may be interrupted, and ends the run; the call is answered."""

    @tool(interruptible=True)
    async def wait() -> str:
        """Wait."""
        await anyio.sleep_forever()
        raise AssertionError("it was not cancelled")

    config = Config(model=ScriptedModel([[call("wait")]]), wait_for_steering=Unbound())
    with anyio.fail_after(20):
        events = await collect(agent_loop(["go"], Context(tools=[wait]), config))
    assert outcome(events) == FAILED
    assert [event.error_code for event in events if isinstance(event, ToolExecutionEnd)] == ["aborted"]


@pytest.mark.parametrize("name", CALLBACKS)
async def test_an_error_that_fails_to_say_its_class_is_a_failure_like_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes an event, and ends no event loop: what is raised is told by its real class, not by what it says of itself."""
    monkeypatch.setattr(logging.getLogger("agentloop"), "disabled", True)  # `logging` itself cannot print it

    def callback(*args: Any) -> Any:
        raise NamelessError

    async with nothing_left():
        plain = Plain()
        plain.replaced[name] = callback
        await plain.play()
        assert name in plain.called


async def test_an_order_to_leave_in_a_group_leaves_out_of_a_thread_too() -> None:
    """As out of a tool that is awaited: `KeyboardInterrupt` and `SystemExit` are no error results."""

    @tool
    def work() -> str:
        """Work."""
        raise BaseExceptionGroup("group", [Bad("one"), SystemExit(3)])

    config = Config(model=ScriptedModel([[call("work")]]))
    with anyio.fail_after(20), pytest.raises(SystemExit, match="3"):
        await collect(agent_loop(["go"], Context(tools=[work]), config))


@pytest.mark.parametrize("name", CALLBACKS)
async def test_whatever_is_raised_becomes_an_event(name: str, anyio_backend: Any) -> None:
    """An exception of any class, raised at once or after a checkpoint, never leaves the run."""

    def now(kind: str) -> Any:
        def callback(*args: Any) -> Any:
            raise RAISED[kind]()

        return callback

    def later(kind: str) -> Any:
        async def callback(*args: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            raise RAISED[kind]()

        return callback

    async with nothing_left():
        for kind in some(RAISED, anyio_backend, name):
            for make in (now,) if name in NEVER_ASYNC else (now, later):
                plain = Plain()
                plain.replaced[name] = make(kind)
                await plain.play()
                assert name in plain.called, kind
