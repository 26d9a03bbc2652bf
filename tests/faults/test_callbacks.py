"""Whatever a callback raises or returns, the run stays legal and ends with an event (G18)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import anyio.lowlevel
import pytest

from .bench import NONSENSE, RAISED, Bad, Plain, Proxy, nothing_left, outcome

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


SETTINGS = (
    "transform_context", "convert_to_llm", "prepare_request", "get_tools", "get_steering_messages",
    "get_follow_up_messages", "wait_for_steering", "before_tool_call", "after_tool_call", "finish_turn", "approve",
)  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
async def test_a_callback_that_fails_to_say_its_name_is_a_failed_callback(setting: str) -> None:
    """A lazy proxy whose object cannot be had: it can be called, and neither that nor any look at it succeeds."""

    class Unbound(Proxy):
        def __call__(self, *args: Any) -> Any:
            raise Bad("there is no object")

    await Plain().play(**{setting: Unbound()})


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
