"""Every adapter against every way in which a stream can fail: cut anywhere, dropped, ended early, silent, refused late.

Whatever happens, the events of the run are legal, the text is what had come, the code says what happened, the connection
is closed and nothing is left to the garbage collector. The streams are small ones made by hand.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import anyio
import attrs
import pytest

from agentloop.config import Config
from agentloop.context import Context
from agentloop.events import AgentEnd, Event, MessageUpdate, RequestEnd, TextDelta
from agentloop.grammar import check
from agentloop.loop import agent_loop
from agentloop.messages import AssistantMessage, user
from agentloop.models import _sdk
from agentloop.testing import VirtualClock
from agentloop.testing._contract_parts import no_generator_left
from agentloop.testing.wire import Play, SeenRequest, WireServer
from tests.streams import APIS, ARGUMENTS, TEXT, Api

pytestmark = pytest.mark.anyio

# ---------------------------------------------------------------- one run


@attrs.define
class Ran:
    """What a run came to."""

    events: list[Event]
    seen: SeenRequest

    @property
    def text(self) -> str:
        """The text as it was streamed."""
        deltas = [event.delta for event in self.events if isinstance(event, MessageUpdate)]
        return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))

    @property
    def code(self) -> str | None:
        """The request's error code; None: it completed."""
        (end,) = [event for event in self.events if isinstance(event, RequestEnd)]
        return end.error_code

    @property
    def reply(self) -> AssistantMessage | None:
        """The reply, committed or not."""
        replies = [message for message in self.end.messages if isinstance(message, AssistantMessage)]
        return replies[0] if replies else None

    @property
    def end(self) -> AgentEnd:
        """The last event."""
        assert isinstance(self.events[-1], AgentEnd)
        return self.events[-1]


async def run(server: WireServer, api: Api, play: Play, **config: Any) -> Ran:
    """One request through the kernel; its events are held against both levels of the grammar."""
    asked = len(server.requests)
    with no_generator_left():
        model = api.make(server.play(play))
        loop = agent_loop([user("Hello")], Context(), Config(model=model, retry=None, max_turns=1, **config))
        events = [event async for event in loop]
    check(events)
    assert len(server.requests) == asked + 1  # no retry of the library's own
    ran = Ran(events, server.requests[-1])
    assert await anyio.to_thread.run_sync(ran.seen.answered.wait, 5)
    return ran


async def closed_by_client(ran: Ran) -> bool:
    return await anyio.to_thread.run_sync(ran.seen.client_closed.wait, 5)


@pytest.fixture(params=APIS, ids=lambda api: api.name.replace(" ", "-"))
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.param
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running
    gc.collect()  # what was left would warn here, and warnings are errors


on_one_backend = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For what is the adapter's alone, whatever the event loop."""


# ---------------------------------------------------------------- nothing fails


@pytest.mark.parametrize(
    ("chop", "gzip"),
    [*((chop, False) for chop in ("", "1", "2", "event", "line", "random:1", "random:2")), ("", True), ("3", True)],
)
async def test_the_bytes_may_be_cut_anywhere(server: WireServer, api: Api, chop: str, gzip: bool) -> None:
    """At every byte, in characters and between CR and LF, compressed or not: the same reply, and the connection closed."""
    ran = await run(server, api, api.play(chop=chop, gzip=gzip))
    assert (ran.text, ran.code) == (TEXT, None)
    assert ran.reply is not None
    (call,) = ran.reply.tool_calls
    assert (call.name, call.arguments, ran.reply.finish_reason) == ("look", ARGUMENTS, "tool_use")
    assert ran.reply.usage is not None
    assert (ran.reply.usage.cache_write, ran.reply.usage.output) == (3, 5)
    assert await closed_by_client(ran)


@pytest.mark.parametrize("framing", ["length", "close"])
@on_one_backend
async def test_the_end_of_the_body_is_told_in_other_ways(server: WireServer, api: Api, framing: Any) -> None:
    """By its length, or by the end of the connection."""
    ran = await run(server, api, api.play(framing=framing))
    assert (ran.text, ran.code) == (TEXT, None)


# ---------------------------------------------------------------- the connection fails


def ends(api: Api) -> Iterator[tuple[int, int]]:
    """After each event: how many events are whole, and where."""
    for count in range(len(api.events) + 1):
        yield count, api.upto(count)


def places(api: Api) -> Iterator[tuple[int, int]]:
    """After each event, and inside of the next."""
    for count, at in ends(api):
        yield count, at
        if count < len(api.events):
            yield count, at + 9


def assert_broken(api: Api, ran: Ran, whole: int, code: str) -> None:
    """The text of the events that were whole; a failure with this code, unless the reply was whole."""
    assert ran.text == api.text(whole)
    if whole >= api.whole:
        assert ran.code is None
        return
    assert (ran.code, ran.end.stop_reason) == (code, "retryable")
    if ran.reply is not None:
        assert (ran.reply.text, ran.reply.stop_reason, ran.reply.error_code) == (ran.text, "retryable", code)


async def test_dropped_at_every_event(server: WireServer, api: Api) -> None:
    """The text so far stays, and asking again is worth it."""
    for whole, at in places(api):
        ran = await run(server, api, api.play(drop_at=at, chop="event"))
        assert_broken(api, ran, whole, "network")


@on_one_backend
async def test_dropped_while_compressed(server: WireServer, api: Api) -> None:
    """What was flushed can be read; the end of the coding is missing as well."""
    for whole, at in ends(api):
        ran = await run(server, api, api.play(drop_at=at, chop="event", gzip=True))
        assert_broken(api, ran, whole, "network")


async def test_reset_at_every_event(server: WireServer, api: Api) -> None:
    """A reset throws away what was not read yet: the text is some beginning."""
    for whole, at in ends(api):
        ran = await run(server, api, api.play(drop_at=at, reset=True))
        assert api.text(whole).startswith(ran.text)
        assert ran.code == "network" or (ran.code is None and whole >= api.whole)


@on_one_backend
async def test_dropped_inside_a_body_of_known_length(server: WireServer, api: Api) -> None:
    """The length that was promised does not come."""
    ran = await run(server, api, api.play(drop_at=api.upto(2), framing="length"))
    assert_broken(api, ran, 2, "network")


async def test_ended_early_but_cleanly_at_every_event(server: WireServer, api: Api) -> None:
    """Nothing tells but the missing end of the reply."""
    for whole, at in places(api):
        ran = await run(server, api, api.play(end_at=at))
        assert_broken(api, ran, whole, "truncated")


async def test_no_answer_at_all(server: WireServer, api: Api) -> None:
    """The connection breaks before the first byte of the body, or nobody listens."""
    ran = await run(server, api, api.play(b"", drop_at=0))
    assert (ran.text, ran.code, ran.reply) == ("", "network", None)
    events = [
        event
        async for event in agent_loop(["Hello"], Context(), Config(model=api.make("http://127.0.0.1:9"), retry=None))
    ]
    check(events)
    assert (events[-1].error_code, events[-1].stop_reason) == ("network", "retryable")


# ---------------------------------------------------------------- the server falls silent


async def test_silence_after_every_event(server: WireServer, api: Api) -> None:
    """The run's idle time-out ends the wait, on a clock that jumps when the text has come; the connection is closed."""
    for whole in range(api.whole):
        with anyio.fail_after(20):
            ran = await run_into_silence(server, api, whole)
        assert_broken(api, ran, whole, "timeout")
        assert await closed_by_client(ran)


async def run_into_silence(server: WireServer, api: Api, whole: int) -> Ran:
    """A run whose stream stays open after so many events."""
    clock = VirtualClock(autojump_threshold=None)
    asked, arrived, text = len(server.requests), anyio.Event(), ""
    events: list[Event] = []

    async def jump() -> None:
        await arrived.wait()
        while len(server.requests) == asked or not server.requests[-1].stalled.is_set():  # noqa: ASYNC110  # a thread's
            await anyio.sleep(0.002)
        while True:  # a piece may still be on its way: then the wait begins anew
            clock.jump(61)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(jump)
        model = api.make(server.play(api.play(stall_at=api.upto(whole), chop="event")))
        if not api.text(whole):
            arrived.set()
        async for event in agent_loop(
            ["Hello"], Context(), Config(model=model, retry=None, idle_timeout=60, clock=clock)
        ):
            events.append(event)
            if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
                text += event.delta.text
                if text == api.text(whole):
                    arrived.set()
        group.cancel_scope.cancel()
    check(events)
    return Ran(events, server.requests[-1])


async def test_silence_behind_the_whole_reply(server: WireServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that neither marks the end nor closes costs a bounded wait, also without a time-out, and not the reply."""
    monkeypatch.setattr(_sdk, "TRAILING_BOUND", 0.05)
    for whole in range(api.whole, len(api.events) + 1):
        with anyio.fail_after(20):
            ran = await run(server, api, api.play(stall_at=api.upto(whole), chop="event"))
        assert_broken(api, ran, whole, "timeout")
        assert await closed_by_client(ran)


# ---------------------------------------------------------------- the server refuses late


@on_one_backend
async def test_an_error_after_every_event(server: WireServer, api: Api) -> None:
    """An error in the stream is what it says, and what came before it stays."""
    for whole in range(1, api.whole):
        ran = await run(server, api, api.play(b"".join(api.events[:whole]) + api.error))
        assert_broken(api, ran, whole, api.code)
        assert await closed_by_client(ran)


@on_one_backend
async def test_an_error_instead_of_the_first_event(server: WireServer, api: Api) -> None:
    """Under status 200: as if it had been refused."""
    error = b"[" + api.error if api.name == "gemini array" else api.error
    ran = await run(server, api, api.play(error))
    assert (ran.text, ran.code, ran.reply) == ("", api.code, None)


@on_one_backend
@pytest.mark.parametrize("junk", [b"event: x\ndata: {\n\n", b"event: x\ndata: \xff\xfe\n\n"], ids=["half", "no-utf-8"])
async def test_what_is_no_event_after_content(server: WireServer, api: Api, junk: bytes) -> None:
    """Broken JSON, or bytes that are no UTF-8, between the events."""
    for whole in (2, api.whole - 1):
        ran = await run(server, api, api.play(b"".join([*api.events[:whole], junk, *api.events[whole:]])))
        assert_broken(api, ran, whole, "malformed")


@on_one_backend
@pytest.mark.parametrize(
    "junk",
    [
        b"data: {\n\n",
        b"data: \xff\n\n",
        b"data: null\n\n",
        b'data: {"choices": 3, "candidates": 3}\n\n',
        b"<html>",
        None,
    ],
    ids=["half", "no-utf-8", "null", "misread", "page", "error"],
)
async def test_what_is_no_event_behind_the_whole_reply(server: WireServer, api: Api, junk: bytes | None) -> None:
    """Nor a late error: nothing is given up for it."""
    for whole in range(api.whole, len(api.events) + 1):
        events = [*api.events[:whole], api.error if junk is None else junk, *api.events[whole:]]
        ran = await run(server, api, api.play(b"".join(events)))
        assert (ran.text, ran.code) == (TEXT, None)
        assert ran.reply is not None
        assert [call.arguments for call in ran.reply.tool_calls] == [ARGUMENTS]
        assert await closed_by_client(ran)
