"""What an interrupted run leaves to the next: cases A and B, the order of a first input."""

from __future__ import annotations

from typing import ClassVar

import attrs
from hypothesis import given
from hypothesis import strategies as st

from agentloop.messages import (
    AgentMessage,
    AssistantMessage,
    CustomMessage,
    Image,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    assistant,
    user,
)
from agentloop.omni.carry import INTERRUPTED, carried_over, first_input


@attrs.frozen
class Note(CustomMessage):
    role: ClassVar[str] = "note"
    text: str


CALLS = assistant(ToolCall("a", "read", "{}"), ToolCall("b", "list", '{"d":1}'))
RESULT_A, RESULT_B = ToolResultMessage("a", "read", "one"), ToolResultMessage("b", "list", "two")


def cut(*blocks: Text | Thinking | ToolCall) -> AssistantMessage:
    return AssistantMessage(blocks, "aborted", error_code="user_abort")


def interrupted(id: str, name: str) -> ToolResultMessage:
    return ToolResultMessage(id, name, INTERRUPTED, is_error=True, stop_reason="aborted")


def text_of_last(messages: tuple[AgentMessage, ...]) -> str:
    last = messages[-1]
    assert isinstance(last, UserMessage)
    return last.text


def test_nothing_was_interrupted() -> None:
    """70: a complete conversation, and an input before its request, are as they are."""
    for messages in (
        (),
        (user("hi"),),
        (user("hi"), assistant("yo")),
        (user("hi"), CALLS, RESULT_A, RESULT_B, user("more")),
    ):
        assert carried_over(messages) == messages


def test_case_a() -> None:
    """70, 19 A: the reply was committed: finished results as they are, in call order, the others say that they were
    aborted; inputs stand behind."""
    steer = user("steer")
    assert carried_over((user("hi"), CALLS, RESULT_B, steer)) == (
        user("hi"),
        CALLS,
        interrupted("a", "read"),
        RESULT_B,
        steer,
    )
    assert carried_over((user("hi"), CALLS)) == (user("hi"), CALLS, interrupted("a", "read"), interrupted("b", "list"))


def test_case_b_as_in_the_sample() -> None:
    """70, 19 B: results of the turn before stay structured; thinking and half text become one flat block."""
    messages = (user("Look around."), CALLS, RESULT_A, RESULT_B, cut(Thinking("There are three."), Text("I see th")))
    carried = carried_over(messages)
    assert carried[:4] == messages[:4]
    assert text_of_last(carried) == (
        "[turn_aborted]\n  [thinking]There are three.[/thinking]\n  [text]I see th[/text]\n[/turn_aborted]"
    )
    assert len(carried) == 5


def test_case_b_of_a_first_turn() -> None:
    """19 B: input text, calls and their results go into the block, in order; images stand behind it (ours)."""
    image = Image("data:image/png;base64,AA")
    prompt = UserMessage((Text("Look."), image))
    own = ToolResultMessage("c", "read", "[not run]", is_error=True, stop_reason="aborted")
    carried = carried_over((prompt, cut(Text("Hm."), ToolCall("c", "read", '{"p":1}')), own))
    assert carried == (
        UserMessage(
            (
                Text(
                    "[turn_aborted]\n"
                    "  [user_input]Look.[/user_input]\n"
                    "  [text]Hm.[/text]\n"
                    '  [tool_call name="read" id="c"]{"p":1}[/tool_call]\n'
                    '  [tool_call_output id="c" status="aborted"][not run][/tool_call_output]\n'
                    "[/turn_aborted]"
                ),
                image,
            )
        ),
    )


def test_blocks_are_never_nested() -> None:
    """70: a block found in the input is unwrapped into the new one, the old form too; a text that only speaks of one
    is not."""
    once = carried_over((user("one"), cut(Text("1"))))
    twice = carried_over((*once, user("two"), cut(Text("2"))))
    expected = [
        "[turn_aborted]",
        "  [user_input]one[/user_input]",
        "  [text]1[/text]",
        "  [user_input]two[/user_input]",
        "  [text]2[/text]",
        "[/turn_aborted]",
    ]
    assert text_of_last(twice).split("\n") == expected
    old = user("<turn_retried>\n  [text]0[/text]\n</turn_retried>")
    assert "turn_retried" not in text_of_last(carried_over((old, cut(Text("1")))))
    talk = user("See [turn_aborted]\nx\n[/turn_aborted] there.")
    assert "[user_input]See [turn_aborted]" in text_of_last(carried_over((talk, cut(Text("1")))))


def test_failures_are_carried_like_interruptions() -> None:
    """65: a reply that failed is retold too; a request that failed without a reply leaves its input as it is."""
    for stop_reason in ("fatal", "retryable"):
        reply = AssistantMessage((Text("half"),), stop_reason)  # type: ignore[arg-type]
        assert text_of_last(carried_over((user("hi"), reply))).startswith("[turn_aborted]\n  [user_input]hi")
    assert carried_over((assistant("x"), user("hi"))) == (assistant("x"), user("hi"))


def test_custom_messages_and_later_inputs_stay() -> None:
    """An application's own messages stay, and what came behind the cut reply is not part of it."""
    carried = carried_over((user("hi"), Note("n"), cut(Text("half")), user("next")))
    assert carried[0] == Note("n")
    assert isinstance(carried[1], UserMessage)
    assert carried[2:] == (user("next"),)


_MESSAGES = st.sampled_from(
    [user("u"), assistant("a"), CALLS, RESULT_A, RESULT_B, cut(Text("c")), cut(ToolCall("z", "t", "{}")), Note("n")]
)


@given(st.lists(_MESSAGES, max_size=8))
def test_twice_is_once(messages: list[AgentMessage]) -> None:
    """Carrying over what is carried over changes nothing, unless an older reply was cut too."""
    carried = carried_over(messages)
    last = next((m for m in reversed(carried) if isinstance(m, AssistantMessage)), None)
    if last is None or last.stop_reason == "completed":
        assert carried_over(carried) == carried


def test_first_input() -> None:
    """13: summary, what was carried over, new input, in this order."""
    assert first_input([user("new")], summary=user("s"), carried=[RESULT_A]) == (user("s"), RESULT_A, user("new"))
    assert first_input([user("new")]) == (user("new"),)
