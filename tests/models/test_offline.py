"""The offline model's rules: what it asks for, what it tells, and that it never claims to be more than it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    Text,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    assistant,
    user,
)
from agentloop.model import BlockEnd, Finish, ModelRequest, TextChunk, ThinkingChunk, ToolCallChunk, UsageChunk
from agentloop.models.offline import HELP, WHAT_IT_IS, OfflineModel, decide, wishes_of
from agentloop.testing import collect

ALL = ("calculate", "current_time", "list_files", "read_file", "measure_file")


def request(*messages: AgentMessage, tools: tuple[str, ...] = ALL) -> ModelRequest:
    return ModelRequest(None, messages, tuple(map(ToolSpec, tools)), {})


def wished(prompt: str) -> list[tuple[str, dict[str, Any]]]:
    return [(wish.tool, json.loads(wish.arguments)) for wish in wishes_of(prompt)]


@pytest.mark.parametrize(
    ("prompt", "expressions"),
    [
        ("what is 12*7 + 3?", ["12*7 + 3"]),
        ("What is 12 times 7?", ["12 * 7"]),
        ("(3+4)*2 and 2 to the power of 10, please.", ["(3+4)*2", "2 ** 10"]),
        ("How much is -5 + 3.5?", ["-5 + 3.5"]),
        ("10 divided by 4", ["10 / 4"]),
        ("in 2024, with 3 cats", []),
        ("read v1.2/notes-2.txt", []),
        ("((((((", []),
    ],
)
def test_sums(prompt: str, expressions: list[str]) -> None:
    """Arithmetic in signs or words is found; numbers alone and numbers in names are not."""
    assert [arguments["expression"] for tool, arguments in wished(prompt) if tool == "calculate"] == expressions


@pytest.mark.parametrize(
    ("prompt", "wishes"),
    [
        ("list the Python files here", [("list_files", {"pattern": "*.py"})]),
        ("List the CSV files", [("list_files", {"pattern": "*.csv"})]),
        ("which files are in docs?", [("list_files", {"pattern": "*", "folder": "docs"})]),
        ("find all *.md files everywhere", [("list_files", {"pattern": "*.md", "recursive": True})]),
        ("how many lines has README.md?", [("measure_file", {"path": "README.md"})]),
        ("count the words of a.txt and docs/b.txt", [("measure_file", {"path": p}) for p in ("a.txt", "docs/b.txt")]),
        ("please read docs/a.md", [("read_file", {"path": "docs/a.md"})]),
        ("what time is it?", [("current_time", {})]),
        ("what time is it in Europe/Berlin?", [("current_time", {"zone": "Europe/Berlin"})]),
        ('call add {"a": 1}', [("add", {"a": 1})]),
        ("call add", [("add", {})]),
        ("hello there", []),
        (
            "list the TOML files, then read a.txt. How many lines has b.txt?",
            [
                ("list_files", {"pattern": "*.toml"}),
                ("read_file", {"path": "a.txt"}),
                ("measure_file", {"path": "b.txt"}),
            ],
        ),
    ],
)
def test_other_wishes(prompt: str, wishes: list[tuple[str, dict[str, Any]]]) -> None:
    """Files, the time and calls by name are understood as the help text says."""
    assert wished(prompt) == wishes


def test_every_example_of_the_help_works() -> None:
    """What the help text offers is understood."""
    examples = [line.split(":", 1)[1] for line in HELP.splitlines() if line.startswith("- ")]
    quoted = [example for line in examples for example in line.split('"')[1::2] if "call" not in line]
    assert len(quoted) == 5
    for example in quoted:
        assert wishes_of(example), example


def test_parallel_calls_for_several_wishes() -> None:
    """One prompt with three wishes asks for all three at once, with ids of their own, and says so."""
    reply = decide(request(user("what is 2+2, what time is it, and list the files")))
    assert [call.name for call in reply.calls] == ["calculate", "current_time", "list_files"]
    assert [call.id for call in reply.calls] == ["call_1", "call_2", "call_3"]
    assert "side by side" in reply.thinking


def test_it_says_what_it_is() -> None:
    """At the first call and whenever no rule fits, a person reads that this is no language model."""
    assert WHAT_IT_IS in decide(request(user("what is 1+1"))).thinking
    assert decide(request(user("write a poem"))).text == HELP
    assert "not a language model" in WHAT_IT_IS
    assert WHAT_IT_IS in HELP
    assert decide(request()).text == HELP


def asked(*calls: ToolCall, text: str = "") -> AssistantMessage:
    return assistant(text, *calls)


def test_results_are_told() -> None:
    """Each result becomes a sentence, in call order, with what was asked."""
    sums = ToolCall("call_1", "calculate", '{"expression": "2+2"}')
    listing = ToolCall("call_2", "list_files", '{"pattern": "*.py"}')
    other = ToolCall("call_3", "add", "not json")
    reply = decide(
        request(
            user("…"),
            asked(sums, listing, other),
            ToolResultMessage("call_1", "calculate", "4"),
            ToolResultMessage("call_2", "list_files", "a.py\nb.py\n", structured=["a.py", "b.py"]),
            ToolResultMessage("call_3", "add", "3"),
        )
    )
    assert reply.text == "2+2 = 4\n2 entries match *.py in this folder:\n- a.py\n- b.py\nadd answered: 3"
    assert reply.calls == ()


def test_a_failure_is_explained() -> None:
    """A failed call is told with the tool's own words, beside the results of the others."""
    bad, good = ToolCall("a", "read_file", '{"path": "x.txt"}'), ToolCall("b", "calculate", '{"expression": "1+1"}')
    results = (
        ToolResultMessage("a", "read_file", "no such file: x.txt", is_error=True),
        ToolResultMessage("b", "calculate", "2"),
    )
    assert decide(request(user("…"), asked(bad, good), *results)).text == (
        "read_file did not work: no such file: x.txt\n1+1 = 2"
    )


def test_counting_takes_a_second_step() -> None:
    """ "How many lines have the Python files" lists first, then measures what was listed, then tells the measures."""
    prompt = user("how many lines have the Python files?")
    first = decide(request(prompt))
    assert [call.name for call in first.calls] == ["list_files"]
    history = [prompt, asked(*first.calls), ToolResultMessage("call_1", "list_files", "a.py\nsub/\nb.py")]
    second = decide(request(*history))
    assert [call.arguments for call in second.calls] == ['{"path": "a.py"}', '{"path": "b.py"}']
    assert [call.id for call in second.calls] == ["call_2", "call_3"]
    assert second.text == ""
    history += [asked(*second.calls), *[ToolResultMessage(call.id, call.name, "10 lines") for call in second.calls]]
    assert decide(request(*history)).text == "a.py: 10 lines\nb.py: 10 lines"


def test_an_empty_listing_is_told() -> None:
    """Nothing to measure ends the second step with a plain word."""
    call = ToolCall("call_1", "list_files", '{"pattern": "*.rs"}')
    result = ToolResultMessage("call_1", "list_files", "[nothing]", structured=[])
    assert (
        decide(request(user("count the Rust files"), asked(call), result)).text
        == "Nothing matches *.rs in this folder."
    )


def test_tools_that_are_not_offered() -> None:
    """A wish for a tool that the run does not offer is named with what there is, and the others are still called."""
    reply = decide(request(user("what is 1+1 and what time is it?"), tools=("current_time",)))
    assert reply.text == "That takes the tool `calculate`, which this run does not offer. It offers current_time."
    assert [call.name for call in reply.calls] == ["current_time"]
    bare = decide(request(user("1+1"), tools=()))
    assert (bare.calls, bare.text.endswith("It offers none.")) == ((), True)


def test_a_message_in_between_is_answered_too() -> None:
    """A prompt that came in while tools ran gets its own calls, and their results are not forgotten."""
    call = ToolCall("call_1", "calculate", '{"expression": "1+1"}')
    reply = decide(request(user("1+1"), asked(call), ToolResultMessage("call_1", "calculate", "2"), user("and 3*3?")))
    assert reply.text == "1+1 = 2"
    assert [call.arguments for call in reply.calls] == ['{"expression": "3*3"}']


def test_an_old_task_is_over() -> None:
    """What an earlier answer has told is not told again."""
    call = ToolCall("call_1", "calculate", '{"expression": "1+1"}')
    old = [user("1+1"), asked(call), ToolResultMessage("call_1", "calculate", "2"), assistant("1+1 = 2")]
    assert decide(request(*old, user("hm"))).text == HELP


def test_a_long_file_is_quoted_in_part() -> None:
    """A reply quotes the first lines of a file and says that there is more."""
    call = ToolCall("c", "read_file", '{"path": "a.txt"}')
    result = ToolResultMessage("c", "read_file", "\n".join(map(str, range(100))))
    lines = decide(request(user("read a.txt"), asked(call), result)).text.splitlines()
    assert lines[:3] == ["a.txt:", "", "> 0"]
    assert lines[-2:] == ["> 19", "> …"]


@pytest.mark.anyio
async def test_the_stream() -> None:
    """Thinking, text and calls come in several deltas that join to the reply; usage and a finish stand at the end."""
    reply = decide(request(user("1+1"), tools=("calculate",)))
    chunks = await collect(OfflineModel()(request(user("1+1"), tools=("calculate",))))
    thoughts = [chunk.thinking for chunk in chunks if isinstance(chunk, ThinkingChunk)]
    assert len(thoughts) > 5
    assert "".join(thoughts) == reply.thinking
    calls = [chunk for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    assert "".join(chunk.arguments for chunk in calls) == reply.calls[0].arguments
    assert isinstance(chunks[-3], BlockEnd)
    assert isinstance(chunks[-2], UsageChunk)
    assert chunks[-1] == Finish("tool_use")


@pytest.mark.anyio
async def test_deterministic() -> None:
    """The same request gives the same chunks, and text in deltas joins to the help."""
    first, second = [await collect(OfflineModel()(request(user("hello")))) for _ in range(2)]
    assert first == second
    assert "".join(chunk.text for chunk in first if isinstance(chunk, TextChunk)) == HELP
    assert first[-1] == Finish("stop")


def test_a_huge_prompt_is_read_in_part() -> None:
    """Only the beginning of a prompt is looked at: a megabyte of brackets takes no time and no rule."""
    assert decide(request(user(Text("(" * 1_000_000 + "1+1")))).text == HELP
    assert decide(request(user(Text("list " * 200_000)))).text == HELP
