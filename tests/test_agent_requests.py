"""What an `Agent` asks is byte-stable: each request begins with the one before, for every adapter; also across models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, AssistantMessage, MessageUpdate, Retry, ToolExecutionStart, UserMessage, tool
from agentloop.model import ModelRequest, UsageChunk
from agentloop.models import anthropic, gemini, ollama, openai_chat, openai_responses
from agentloop.testing import CUT, STALL, ScriptedModel, VirtualClock, call, text, thinking
from agentloop.testing.strategies import model_scripts


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return f"seen {n}"


@tool
async def add(n: int = 0) -> str:
    """Add."""
    raise RuntimeError("cannot add")


def chat(request: ModelRequest) -> dict[str, Any]:
    return openai_chat.request_body(request, model="m", provider="p", quirks=openai_chat.ChatQuirks())


BODIES: dict[str, tuple[Callable[[ModelRequest], dict[str, Any]], str]] = {
    "openai_chat": (chat, "messages"),
    "openai_responses": (lambda request: openai_responses.request_body(request, model="m"), "input"),
    "anthropic": (lambda request: anthropic.request_body(request, model="m", provider="p"), "messages"),
    "gemini": (lambda request: gemini.request_body(request, model="m", provider="p"), "contents"),
    "ollama": (lambda request: ollama.request_body(request, model="m", provider="p"), "messages"),
}
"""For each adapter, its pure request and where in it the messages stand."""


def assert_each_begins_with_the_one_before(requests: list[ModelRequest], adapter: str) -> None:
    make, place = BODIES[adapter]
    before, rest = "", ""
    for number, request in enumerate(requests):
        body = make(request)
        stem = json.dumps(body.pop(place), ensure_ascii=False)
        assert stem.startswith(before), f"request {number} does not begin with the one before:\n{before}\n{stem}"
        assert number == 0 or json.dumps(body) == rest, f"request {number} differs outside of the messages"
        before, rest = stem.rstrip("]}"), json.dumps(body)


EVENTFUL: list[Any] = [
    [thinking("Let me see.", fidelity={"signature": "s1"}), text("Looking."), call("look", {"n": 1}), call("add")],
    ["broken", CUT],
    [call("look", '{"n": ', id="call_1"), call("nowhere", id="odd id!")],
    [text("Done."), text("Really.")],
    ["half a", STALL],
    [thinking("Again."), call("look", {"n": 2}), call("look", {"n": 3})],
    "after steering",
    "a follow-up",
]


def eventful_agent(model: ScriptedModel) -> Agent:
    """Calls, an error, a retry, a broken call, an abort, steering, a follow-up, over several prompts."""
    agent = Agent(model, system_prompt="Be brief.", tools=[look, add], retry=Retry(waits=(1,)), clock=VirtualClock())

    def act(event: Any) -> None:
        if isinstance(event, MessageUpdate) and event.message.text == "half a":
            agent.abort("enough")
        if isinstance(event, ToolExecutionStart) and event.arguments == '{"n": 3}':
            agent.steer("wait")

    agent.subscribe(act)
    return agent


async def eventful(model: ScriptedModel) -> Agent:
    agent = eventful_agent(model)
    await agent.prompt("first")
    await agent.prompt("second")
    agent.follow_up("and?")
    await agent.prompt("third")
    return agent


@pytest.mark.parametrize("adapter", BODIES)
def test_the_previous_request_is_a_prefix_of_the_next(adapter: str) -> None:
    """Through everything that happens to a conversation, for each adapter's own bytes."""
    model = ScriptedModel(EVENTFUL, provider="p", model="m")
    anyio.run(eventful, model)
    assert len(model.requests) == len(EVENTFUL)
    assert_each_begins_with_the_one_before(model.requests, adapter)


@given(
    script=model_scripts(), prompts=st.lists(st.sampled_from(["go", "on", ""]), min_size=1, max_size=3), data=st.data()
)
def test_the_previous_request_is_a_prefix_of_the_next_whatever_comes(
    script: Any, prompts: list[str], data: Any
) -> None:
    """The same for drawn scripts, steering and aborts."""
    model = ScriptedModel(script, past_end="stop", provider="p", model="m")
    agent = Agent(model, tools=[look, add], retry=Retry(waits=(1,)), clock=VirtualClock(), max_turns=6)
    count, steer_at, stop_at = 0, data.draw(st.integers(0, 40)), data.draw(st.integers(0, 60))

    def act(event: Any) -> None:
        nonlocal count
        count += 1
        if count == steer_at:
            agent.steer("steered")
        if count == stop_at:
            agent.abort()

    async def play() -> None:
        agent.subscribe(act)
        for prompt in prompts:
            await agent.prompt(["start", prompt])

    anyio.run(play)
    for adapter in BODIES:
        assert_each_begins_with_the_one_before(model.requests, adapter)


def test_a_change_outside_of_the_messages_is_seen() -> None:
    """The check itself fails for another system prompt and for a rewritten message."""
    model = ScriptedModel(["a", "b"], provider="p", model="m")
    agent = Agent(model, system_prompt="A")
    agent.run_sync("go")
    agent.system_prompt = "B"
    agent.run_sync("on")
    with pytest.raises(AssertionError):
        assert_each_begins_with_the_one_before(model.requests, "anthropic")
    first, second = model.requests
    second = attrs.evolve(second, system_prompt="A", messages=(UserMessage("gone"), *second.messages[1:]))
    with pytest.raises(AssertionError, match="does not begin"):
        assert_each_begins_with_the_one_before([first, second], "ollama")


@pytest.mark.parametrize("adapter", BODIES)
def test_a_model_switch_in_the_middle_of_a_task(adapter: str) -> None:
    """The new model gets the whole task, calls and results included, in its own words, and its requests are stable too."""
    first = ScriptedModel(
        [[thinking("Hm.", fidelity={"signature": "s"}), call("look", {"n": 1})]], provider="x", model="y"
    )
    second = ScriptedModel([[call("look", {"n": 2})], "done", "more"], provider="p", model="m")
    agent = Agent(first, tools=[look])
    agent.subscribe(lambda event: setattr(agent, "model", second) if isinstance(event, ToolExecutionStart) else None)
    agent.run_sync("go")
    agent.run_sync("on")
    assert (first.asked, len(second.requests)) == (1, 3)
    assert_each_begins_with_the_one_before(second.requests, adapter)
    make, place = BODIES[adapter]
    sent = json.dumps(make(second.requests[0])[place])
    assert "seen 1" in sent
    assert "Hm." not in sent
    replies = [message for message in agent.messages if isinstance(message, AssistantMessage)]
    assert [(reply.provider, reply.model) for reply in replies] == [("x", "y"), *[("p", "m")] * 3]


def test_tokens_over_a_model_switch_add_up() -> None:
    """Whoever was asked, each request is in the session's sum once."""
    from agentloop import Usage

    first = ScriptedModel([[UsageChunk(Usage(1, 2, 3)), call("look")]])
    second = ScriptedModel([[UsageChunk(Usage(10, 20, 30)), "done"]])
    agent = Agent(first, tools=[look])
    agent.subscribe(lambda event: setattr(agent, "model", second) if isinstance(event, ToolExecutionStart) else None)
    agent.run_sync("go")
    assert agent.state.usage == agent.state.session_usage == Usage(11, 22, 33)
