"""The builder of the legal form where a whole history does not tell: views, logs, and what waits."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.convert import LegalHistory, MessageView, convert_custom, make_legal
from agentloop.errors import ModelError
from agentloop.messages import CustomMessage, Text, ToolCall, ToolResultMessage, assistant, user
from tests.costs import calls, lines

GO = user("go")


def call(id: str = "a", arguments: str = "{}") -> ToolCall:
    return ToolCall(id, "find", arguments)


def result(id: str = "a", text: str = "found") -> ToolResultMessage:
    return ToolResultMessage(id, "find", text)


def test_a_view_equals_what_holds_the_same_messages_and_nothing_else() -> None:
    """Length alone does not make it equal; of other kinds it says nothing."""
    view = LegalHistory([GO, assistant("1")]).view()
    assert view == [GO, assistant("1")]
    assert view != [GO, assistant("2")]
    assert view != [GO]
    assert (view == 7) is False
    assert MessageView.__eq__(view, 7) is NotImplemented


def test_results_in_call_order_are_no_repair(caplog: pytest.LogCaptureFixture) -> None:
    """However many calls a reply has, and however many such replies follow each other."""
    calls = [call("a"), call("b"), call("c")]
    first = [GO, assistant(*calls), result("a"), result("b"), result("c")]
    again = [assistant(call("d"), call("e")), result("d"), result("e"), user("more")]
    assert make_legal([*first, *again]) == (*first, *again)
    assert caplog.records == []


@pytest.mark.parametrize("order", ["ba", "bca", "acb", "cab"])
def test_results_out_of_call_order_are_a_repair(order: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log says that one was moved."""
    make_legal([GO, assistant(*[call(id) for id in "abc"[: len(order)]]), *[result(id) for id in order]])
    assert "was moved after its call" in caplog.text


def test_an_id_of_left_out_replies_alone_is_free(caplog: pytest.LogCaptureFixture) -> None:
    """However many such replies there were: the first reply that is shown keeps it."""
    left_out = [assistant(call(), stop_reason="aborted"), assistant(call(), stop_reason="fatal")]
    shown = (GO, assistant(call()), result())
    assert make_legal([GO, *left_out, *shown[1:]]) == shown
    assert caplog.records == []


def test_the_error_of_an_empty_request_says_how_many_there_were() -> None:
    """None at all, or only such as a model may not see."""
    for messages, count in (([], 0), ([user(" "), user("")], 2)):
        with pytest.raises(ModelError, match=f"got none among {count}$"):
            make_legal(messages)


MADE = [GO, assistant(call(), call()), result(text="1"), result(text="2")]
"""A history in which an id was made up (`a#2`)."""


def test_appending_never_fails_also_behind_a_made_id() -> None:
    """What is no message at all is refused by the view, with its place."""
    history = LegalHistory(MADE)
    wrong: Any = object()
    history.append(wrong)
    with pytest.raises(
        ModelError, match=r"messages\[4\]: expected a user, assistant or tool result message, got object"
    ):
        history.view()


def test_behind_a_made_id_only_a_call_of_that_id_builds_again() -> None:
    """Other replies, inputs and results cost the same however long the history is."""
    short, long = LegalHistory(MADE), LegalHistory(MADE)
    for number in range(200):
        long.extend([user("more"), assistant(call(f"x{number}")), result(f"x{number}")])
    for message in (user("more"), assistant(call("y")), result("y"), assistant("done")):
        many, few = (calls(lambda of=of, message=message: of.append(message)) for of in (long, short))
        assert abs(many - few) < 20


def test_a_made_id_avoids_those_of_its_own_reply(caplog: pytest.LogCaptureFixture) -> None:
    """Also of calls that come behind it, which keep theirs; the repair is logged."""
    history = LegalHistory([GO])
    history.append(assistant(call("a"), call("a"), call("a#2")))
    reply: Any = history.view()[1]
    assert [each.id for each in reply.content] == ["a", "a#3", "a#2"]
    history = LegalHistory([GO, assistant(call("a")), result("a")])
    history.append(assistant(call("a"), call("a#2")))
    reply = history.view()[3]
    assert [each.id for each in reply.content] == ["a#3", "a#2"]
    assert "messages[1]: the call id 'a' is taken or empty and became 'a#3'" in caplog.text


def test_the_first_problem_is_named() -> None:
    """Later ones wait until it is solved."""
    wrong: Any = [GO, 7, assistant(ToolCall("a", "", "{}")), 8]
    with pytest.raises(ModelError, match=r"invalid_input: messages\[1\]: "):
        make_legal(wrong)


def test_a_placeholder_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often the history is looked at while the result is missing."""
    history = LegalHistory([GO, assistant(call("a"), call("b")), result("a")])
    history.view()
    assert caplog.text.count("the call 'b' has no result and got a placeholder") == 1
    history.append(user("more"))
    history.view()
    assert caplog.text.count("placeholder") == 1


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_text_beside_others_is_left_out(blank: str) -> None:
    """Before and behind them, of the user and of the model."""
    for build in (user, assistant):
        assert make_legal([build("x", Text(blank)), build(Text(blank), "y")]) == (build("x"), build("y"))


@pytest.mark.parametrize("role", ["user", "assistant", "tool_result"])
def test_built_in_roles_are_not_mapped(role: str) -> None:
    """The error names the role."""
    with pytest.raises(TypeError, match=f"got the built-in role '{role}'"):
        convert_custom({role: lambda message: None})


def test_ids_of_appended_replies_are_taken() -> None:
    """Of those that are shown, of those that are not, and those that were made."""
    history = LegalHistory([GO])
    history.extend([assistant(call("x"), call("x")), assistant(call("z"), stop_reason="aborted")])
    assert history.call_ids == {"x", "x#2", "z"}


class Remark(CustomMessage):
    role = "remark of the legal form"


def test_custom_messages_stay_left_out_when_an_id_builds_the_history_again(caplog: pytest.LogCaptureFixture) -> None:
    """Those that it began with and those that came; the role is logged."""
    caplog.set_level("INFO")
    history = LegalHistory([Remark(), *MADE, Remark()])
    assert "custom messages of the role 'remark of the legal form' are not sent" in caplog.text
    history.append(assistant(call("a#2")))
    history.append(result("a#2", "3"))
    shown: Any = history.view()
    assert [type(message).__name__ for message in shown if isinstance(message, Remark)] == []
    assert [message.tool_call_id for message in shown if isinstance(message, ToolResultMessage)] == ["a", "a#3", "a#2"]


def test_the_next_made_id_is_found_at_once() -> None:
    """However many were made of the same id before."""
    costs = []
    history = LegalHistory([GO])
    for _ in range(60):
        reply = assistant(call("a"))
        costs.append(lines(lambda reply=reply: history.append(reply), "_legal.py"))
    assert costs[-1] <= costs[2]
