"""What the model may see: custom messages mapped or left out, and any history made legal."""

from __future__ import annotations

import copy
import json
import logging
import operator
import pickle
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop import convert
from agentloop.convert import (
    NO_OUTPUT,
    NO_RESULT,
    LegalHistory,
    MessageView,
    convert_custom,
    default_convert,
    make_legal,
)
from agentloop.errors import ModelError
from agentloop.messages import (
    AssistantMessage,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    OpaqueMessage,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    assistant,
    user,
)
from tests.costs import calls, lines


@attrs.frozen
class Notice(CustomMessage):
    role: ClassVar[str] = "notice"
    text: str = "disk almost full"


@attrs.frozen
class Loud(Notice):
    role: ClassVar[str] = "loud"


def call(id: str = "a", name: str = "find", arguments: str = '{"q": 1}', **more: Any) -> ToolCall:
    return ToolCall(id, name, arguments, **more)


def result(id: str = "a", text: str = "found", name: str = "find", **more: Any) -> ToolResultMessage:
    return ToolResultMessage(id, name, text, **more)


def results(messages: Sequence[Any]) -> list[tuple[str, str]]:
    return [(m.tool_call_id, m.text) for m in messages if isinstance(m, ToolResultMessage)]


GO = user("go")


# ---------------------------------------------------------------- what legal means, said a second time


def problems(messages: Sequence[Any]) -> list[str]:
    """What a provider would refuse, found without the code under test."""
    found, owed, seen = [], [], set()
    for n, message in enumerate(messages):
        if isinstance(message, ToolResultMessage):
            if not owed or owed.pop(0) != (message.tool_call_id, message.tool_name):
                found.append(f"{n}: a result that is not due")
            allowed: tuple[type, ...] = (Text, Image, InlineData)
        else:
            if owed:
                found.append(f"{n}: results are missing: {owed}")
            owed = []
            allowed = (Text, Image, InlineData)
        if isinstance(message, AssistantMessage):
            allowed = (Text, Thinking, InlineThinking, ToolCall, InlineData)
            if message.stop_reason != "completed" or message.finish_reason in ("refusal", "content_filter"):
                found.append(f"{n}: a reply that must not be shown")
            owed = [(block.id, block.name) for block in message.content if isinstance(block, ToolCall)]
            for block in message.content:
                if isinstance(block, ToolCall):
                    if not block.id or block.id in seen:
                        found.append(f"{n}: the id {block.id!r} is empty or not unique")
                    seen.add(block.id)
                    if not isinstance(json.loads(block.arguments), dict) or not block.name:
                        found.append(f"{n}: arguments or name")
        elif not isinstance(message, UserMessage | ToolResultMessage):
            found.append(f"{n}: {type(message).__name__}")
        if not message.content:
            found.append(f"{n}: empty")
        for block in message.content:
            if not isinstance(block, allowed):
                found.append(f"{n}: {type(block).__name__}")
            if isinstance(block, Text) and not block.text.strip() and not block.fidelity:
                found.append(f"{n}: blank text")
    if owed:
        found.append(f"end: results are missing: {owed}")
    return found


IDS = st.sampled_from(["a", "b", "c", "a#2", ""])
TEXTS = st.sampled_from(["hi", "there", "", " \n", "\u200b"])
ARGUMENTS = st.sampled_from(
    ['{"q": 1}', "{}", "", " ", "[1]", "null", '"x"', '{"q": ', '{"q": NaN}', '{"q": "\\ud800"}']
)
FIDELITY = st.sampled_from([None, None, {"signature": "s", "a": [1]}])
CALLS = st.builds(ToolCall, IDS, st.sampled_from(["find", "save"]), ARGUMENTS, FIDELITY)
BLOCKS = st.one_of(
    st.builds(Text, TEXTS, FIDELITY),
    st.builds(Thinking, TEXTS, FIDELITY),
    CALLS,
    CALLS,
    st.sampled_from([Image("data:,x"), Image(""), InlineData("", "image/png"), InlineThinking("eA==", "image/png")]),
)
ASKING = st.one_of(st.builds(Text, TEXTS), st.builds(Text, TEXTS), BLOCKS)
REPLIES = st.builds(
    AssistantMessage,
    st.lists(BLOCKS, max_size=4),
    st.sampled_from(["completed", "completed", "completed", "aborted", "retryable", "fatal", None]),
    st.sampled_from(["stop", "tool_use", "length", "refusal", "content_filter", "pause", None]),
)
RESULTS = st.builds(ToolResultMessage, IDS, st.sampled_from(["find", "save"]), st.lists(ASKING, max_size=2))
USERS = st.builds(UserMessage, st.lists(ASKING, max_size=2))
HISTORIES = st.lists(st.one_of(USERS, REPLIES, RESULTS, RESULTS, st.just(Notice())), max_size=12)


def legal_or_none(messages: list[Any]) -> tuple[Any, ...] | None:
    """None where nothing in the list is for a model: the one way in which these lists can be refused."""
    try:
        return make_legal(default_convert(messages))
    except ModelError as error:
        if error.code != "invalid_input" or "at least one message" not in error.message:
            raise
        return None


@given(HISTORIES)
def test_g16_any_list_becomes_legal_or_is_refused_as_empty(messages: list[Any]) -> None:
    """Whatever the list: the outcome is legal, or there is nothing in it that a model may see."""
    legal = legal_or_none(messages)
    assert legal is None or problems(legal) == []


@given(HISTORIES)
def test_g16_what_is_legal_stays_as_it_is(messages: list[Any]) -> None:
    """Making legal twice is making legal once, and hands on the same objects."""
    if (legal := legal_or_none(messages)) is None:
        return
    again = make_legal(legal)
    assert all(map(operator.is_, again, legal))
    assert len(again) == len(legal)


@given(HISTORIES)
def test_g16_nothing_is_invented_and_order_is_kept(messages: list[Any]) -> None:
    """User messages and replies come out in their order; a result is one that came, or the placeholder."""
    legal = legal_or_none(messages) or ()
    came = [m.text.strip() for m in messages if isinstance(m, UserMessage) and m.text.strip()]
    assert [m.text.strip() for m in legal if isinstance(m, UserMessage) and m.text.strip()] == came
    given_texts = {m.text.strip() for m in messages if isinstance(m, ToolResultMessage)} | {NO_RESULT, NO_OUTPUT}
    assert {text.strip() for _, text in results(legal)} <= given_texts | {""}


@example([assistant(call("a"), call("a"), call("a#2"))], [True] * 12, 0)
@example([assistant(call("a#2"), stop_reason="aborted"), assistant(call("a"), call("a"))], [True] * 12, 0)
@given(HISTORIES, st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 12))
def test_g16_the_growing_form_agrees_with_the_full_one(messages: list[Any], look: list[bool], start: int) -> None:
    """However a history grew and whenever it was looked at: same legal list, and views that were given away stay."""
    history = LegalHistory(messages[:start])
    shown: list[tuple[MessageView[Any], tuple[Any, ...]]] = []
    for end in range(start, len(messages) + 1):
        if look[min(end, 11)] or end >= len(messages):
            expected = legal_or_none(messages[:end])
            if expected is None:
                with pytest.raises(ModelError, match="at least one message"):
                    history.view()
            else:
                shown.append((history.view(), expected))
        if end < len(messages):
            history.append(messages[end])
    for view, expected in shown:
        assert view == expected
        assert tuple(view) == expected
    assert history.messages == messages


@given(HISTORIES)
def test_g17_fidelity_survives(messages: list[Any]) -> None:
    """Every block that is shown has the fidelity it came with, whatever else was repaired in its message."""
    came = [m for m in messages if isinstance(m, AssistantMessage)]
    known = {id(b.fidelity) for m in came for b in m.content if not isinstance(b, Image)}
    legal = legal_or_none(messages) or ()
    for message in legal:
        if isinstance(message, AssistantMessage):
            assert all(id(b.fidelity) in known for b in message.content if not isinstance(b, Image))
    kept = [b for m in legal if isinstance(m, AssistantMessage) for b in m.content if getattr(b, "fidelity", None)]
    due = [
        b
        for m in came
        if m.stop_reason == "completed" and m.finish_reason not in ("refusal", "content_filter")
        for b in m.content
        if getattr(b, "fidelity", None)
    ]
    assert [b.fidelity for b in kept] == [b.fidelity for b in due]


# ---------------------------------------------------------------- pairs


def test_a_legal_history_comes_back_as_the_same_objects() -> None:
    """Nothing is copied where nothing must change."""
    history = (GO, assistant("let me see", call("a"), call("b")), result("a"), result("b"), assistant("done"))
    assert all(map(operator.is_, make_legal(history), history))


def test_results_are_put_in_call_order() -> None:
    """Results in another order than their calls are reordered."""
    legal = make_legal([GO, assistant(call("a"), call("b")), result("b", "2"), result("a", "1")])
    assert results(legal) == [("a", "1"), ("b", "2")]


def test_what_stands_between_a_call_and_its_result_moves_behind_the_results(caplog: pytest.LogCaptureFixture) -> None:
    """Steering text, and later replies, stand behind the results of the earlier reply."""
    legal = make_legal(
        [GO, assistant(call("a")), user("wait"), assistant(call("b")), result("a", "1"), user("now"), result("b", "2")]
    )
    assert [getattr(m, "text", "") for m in legal] == ["go", "", "1", "wait", "", "2", "now"]
    for moved in ("messages[4]: the result of 'a' was moved", "messages[6]: the result of 'b' was moved"):
        assert moved in caplog.text


def test_a_result_without_its_call_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that stands before its call: that call is told that no result is known."""
    legal = make_legal([GO, result("x"), result("a", "early"), assistant(call("a"))])
    assert results(legal) == [("a", NO_RESULT)]
    assert "messages[1]: the result of 'x' has no call before it" in caplog.text


def test_an_unanswered_call_gets_a_result_that_says_so() -> None:
    """The placeholder is an error, and belongs to the call by id and name."""
    legal = make_legal([GO, assistant(call("a"), call("b", "save")), result("a", "1")])
    assert legal[3] == ToolResultMessage("b", "save", NO_RESULT, is_error=True, stop_reason="aborted")


def test_the_first_of_two_results_counts(caplog: pytest.LogCaptureFixture) -> None:
    """A second result for the same call is left out, also one that comes much later."""
    legal = make_legal([GO, assistant(call("a")), result("a", "1"), result("a", "2"), user("more"), result("a", "3")])
    assert results(legal) == [("a", "1")]
    for index in (3, 5):
        assert f"messages[{index}]: 'a' has a result already" in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        assistant("no", call("a"), stop_reason="aborted"),
        assistant("no", call("a"), stop_reason="retryable"),
        assistant("no", call("a"), stop_reason="fatal"),
        AssistantMessage(("no", call("a"))),
        assistant("no", call("a"), finish_reason="refusal"),
        assistant("no", call("a"), finish_reason="content_filter"),
    ],
)
def test_a_reply_that_must_not_be_shown_is_left_out_with_its_results(
    reply: AssistantMessage, caplog: pytest.LogCaptureFixture
) -> None:
    """Uncommitted, partial, refused or filtered; only the partial one is unusual enough for a warning."""
    assert make_legal([GO, reply, result("a", "cut off"), user("again")]) == (GO, user("again"))
    assert bool(caplog.records) == (reply.stop_reason is None)


def test_a_left_out_reply_does_not_own_its_ids() -> None:
    """The retry of a failed reply keeps the id that the provider gave it, and gets the result that follows it."""
    failed, again = assistant(call("a"), stop_reason="retryable"), assistant(call("a"))
    legal = make_legal([GO, failed, result("a", "cut off"), again, result("a", "found")])
    assert legal == (GO, again, result("a", "found"))


@pytest.mark.parametrize("reason", ["length", "pause", "unknown", "stop", None])
def test_other_finish_reasons_stay(reason: Any) -> None:
    """A reply that was cut by length or paused is part of the history, and so are its results."""
    reply = attrs.evolve(assistant("so far", call("a")), finish_reason=reason)
    assert make_legal([GO, reply, result("a", "cut off")])[1] is reply


# ---------------------------------------------------------------- ids


def test_one_id_for_every_call_is_made_unique_and_pairing_stays() -> None:
    """Case C101: a provider that uses one id all over; each result stands behind its own call, under its id."""
    messages = [GO]
    for n in range(3):
        messages += [assistant(call("a")), result("a", str(n))]
    legal = make_legal(messages)
    assert results(legal) == [("a", "0"), ("a#2", "1"), ("a#3", "2")]
    assert problems(legal) == []


def test_one_id_twice_in_a_reply() -> None:
    """Results are given to the calls in order."""
    legal = make_legal([GO, assistant(call("a"), call("a", "save")), result("a", "1"), result("a", "2", "save")])
    assert results(legal) == [("a", "1"), ("a#2", "2")]


def test_a_result_belongs_to_the_latest_call_of_its_id() -> None:
    """An earlier call of that id that was never answered does not take it."""
    legal = make_legal([GO, assistant(call("a")), assistant(call("a")), result("a", "1")])
    assert results(legal) == [("a", NO_RESULT), ("a#2", "1")]


def test_an_id_stays_taken_when_a_later_reply_with_it_is_left_out() -> None:
    """The failed reply between two others changes nothing about who owns the id."""
    failed = assistant(call("a"), stop_reason="retryable")
    legal = make_legal([GO, assistant(call("a")), result("a", "1"), failed, assistant(call("a")), result("a", "2")])
    assert results(legal) == [("a", "1"), ("a#2", "2")]


def test_made_ids_avoid_ids_that_come_later() -> None:
    """An id that a later call really has is not given to an earlier one."""
    messages = [GO, assistant(call("a"), call("a")), assistant(call("a#2")), result("a#2", "own")]
    assert results(make_legal(messages)) == [("a", NO_RESULT), ("a#3", NO_RESULT), ("a#2", "own")]


def test_a_missing_id_is_made() -> None:
    """Calls without an id, and their results in order."""
    legal = make_legal([GO, assistant(call(""), call("")), result("", "1"), result("", "2")])
    assert results(legal) == [("call#1", "1"), ("call#2", "2")]


def test_many_calls_of_one_id_take_linear_time() -> None:
    """The search for a free number does not start anew each time: ten times as much is ten times the work."""

    def steps(count: int) -> int:
        messages = [GO]
        for _ in range(count):
            messages += [assistant(call("a")), result("a")]
        return lines(lambda: make_legal(messages))

    assert steps(1_000) < 11 * steps(100)


def test_a_result_takes_the_name_of_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """Providers match results by name too; the call says which it is."""
    legal = make_legal([GO, assistant(call("a", "find")), result("a", "1", name="save")])
    assert legal[2] == result("a", "1", name="find")
    assert "messages[2]: a result of the tool 'save' for a call of 'find'" in caplog.text


# ---------------------------------------------------------------- content


@pytest.mark.parametrize(
    "arguments",
    ["", "  ", "null", "5", '"text"', "[]", '{"q"', '{"q": 1} x', '{"q": NaN}', '{"q": Infinity}', '{"q": "\\ud83d"}',
     '{"q":' * 201 + "1" + "}" * 201, "[" * 100_000, '{"q": ' + "9" * 5_000 + "}"],
)  # fmt: skip
def test_arguments_that_are_no_json_object_are_empty_in_the_request_only(arguments: str) -> None:
    """Case C162: the request has `{}`, the history what the model sent; and that is no repair to be logged."""
    history = LegalHistory([GO, assistant(call("a", arguments=arguments)), result("a", "error")])
    assert history.view()[1].content == (call("a", arguments="{}"),)
    assert history.messages[1] == assistant(call("a", arguments=arguments))


@pytest.mark.parametrize(
    "arguments",
    ["{}", ' {"q":\t1}\n', '{"q": "\\ud83d\\ude00 \\u0000 \\\\"}', '{"q": 1, "q": 2}', '{"q": 1e400}',
     '{"q":' * 200 + "1" + "}" * 200, json.dumps({"q": [[]] * 300}), json.dumps({"q": "x" * 100_000})],
)  # fmt: skip
def test_arguments_that_are_a_json_object_stay_as_sent(arguments: str) -> None:
    """Spacing, order and doubled keys included."""
    reply = assistant(call("a", arguments=arguments))
    assert make_legal([GO, reply, result("a")])[1] is reply


@pytest.mark.parametrize(
    "empty",
    [UserMessage(()), user(" \n"), UserMessage((Text(""), Text("\t"))), assistant(), assistant("\n\n"),
     assistant(Thinking(" ")), UserMessage((Image(""),)), assistant(InlineData("", "image/png"))],
)  # fmt: skip
def test_an_empty_message_is_left_out_and_logged(empty: Any, caplog: pytest.LogCaptureFixture) -> None:
    """White space alone is empty: the Anthropic API refuses it, and the history would be stuck for good."""
    assert make_legal([GO, empty, user("on")]) == (GO, user("on"))
    assert "messages[1]: an empty" in caplog.text


@pytest.mark.parametrize("block", [Text("", {"kind": "x"}), Thinking("", {"signature": "s"}), Thinking("hm")])
def test_a_block_with_fidelity_is_not_empty(block: Any) -> None:
    """It stands for a provider's block that the adapter wants back; thinking alone stays too."""
    assert make_legal([GO, assistant(block)]) == (GO, assistant(block))


def test_blank_blocks_beside_others_are_left_out() -> None:
    """A blank line between thinking and call, say; the rest stays in order, and nothing is logged."""
    reply = assistant(Thinking("hm", {"signature": "s"}), "\n\n", call("a"))
    legal = make_legal([GO, reply, result("a")])
    assert legal[1] == assistant(Thinking("hm", {"signature": "s"}), call("a"))


@pytest.mark.parametrize("content", ["", " ", ("\n", "")])
def test_an_empty_result_says_so(content: Any) -> None:
    """A result is never left out for being empty: its call needs it."""
    legal = make_legal([GO, assistant(call("a")), ToolResultMessage("a", "find", content, is_error=True)])
    assert legal[2] == ToolResultMessage("a", "find", NO_OUTPUT, is_error=True)


def test_blocks_where_they_cannot_stand_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A call of the user, an image of the model, thinking in a result."""
    messages = [
        UserMessage((Text("go"), call("a"))),
        assistant(Image("data:,x"), "seen", call("b")),
        ToolResultMessage("b", "find", (Thinking("hm"),)),
    ]
    legal = make_legal(messages)
    assert legal == (GO, assistant("seen", call("b")), result("b", NO_OUTPUT))
    for place in ("messages[0].content[1]: a ToolCall", "messages[1].content[0]: an? Image", "messages[2].content[0]"):
        assert place.replace("an? ", "a ") in caplog.text


# ---------------------------------------------------------------- what cannot be made legal


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages: expected at least one message"),
        ([result("a")], "messages: expected at least one message that a model may see, got none among 1"),
        (None, "messages: expected a sequence of messages, got NoneType"),
        ("go", "messages: expected a sequence of messages, got str"),
        ({"role": "user"}, "messages: expected a sequence of messages, got dict"),
        ([GO, "go"], "messages[1]: expected a user, assistant or tool result message, got str"),
        ([GO, None], "messages[1]: expected a user, assistant or tool result message, got NoneType"),
        ([GO, {"role": "user"}], "messages[1]: expected a user, assistant or tool result message, got dict"),
        (
            [GO, GO, Notice()],
            "messages[2]: expected a user, assistant or tool result message, got Notice (convert_to_llm",
        ),
        ([GO, assistant(call("a", ""))], "messages[1]: expected the name of a tool in the call 'a'"),
    ],
)
def test_what_cannot_be_made_legal_is_invalid_input_and_names_the_place(messages: Any, place: str) -> None:
    """A definite failure, with the index and the type."""
    with pytest.raises(ModelError) as caught:
        make_legal(messages)
    assert (caught.value.code, caught.value.retryable) == ("invalid_input", False)
    assert place in caught.value.message


def test_a_growing_history_raises_when_it_is_looked_at() -> None:
    """Appending never fails; each look says what is wrong."""
    history = LegalHistory()
    with pytest.raises(ModelError, match="at least one message"):
        history.view()
    history.append(GO)
    assert history.view() == (GO,)
    history.append(assistant(call("a", "")))
    for _ in range(2):
        with pytest.raises(ModelError, match=r"messages\[1\].*name"):
            history.view()


def test_repairs_are_one_warning_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """A broken transform cannot flood the log."""
    make_legal([GO, *[result(f"r{n}") for n in range(1_000)]])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "and 990 more" in caplog.text
    assert len(caplog.text) < 3_000


def test_a_growing_history_logs_each_repair_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is looked at."""
    history = LegalHistory([GO, result("x")])
    for _ in range(3):
        history.view()
    assert len(caplog.records) == 1


def test_a_legal_history_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What a run leaves behind by itself is no repair."""
    make_legal([GO, assistant("x", "\n", call("a", arguments="")), result("a"), assistant("no", stop_reason="aborted")])
    assert caplog.records == []


# ---------------------------------------------------------------- custom messages


@pytest.fixture
def _roles() -> Iterator[None]:
    known = set(convert._logged_roles)
    convert._logged_roles.clear()
    yield
    convert._logged_roles.clear()
    convert._logged_roles.update(known)


@pytest.mark.usefixtures("_roles")
def test_g15_custom_messages_are_left_out_and_each_role_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once a role, whichever of the two forms meets it, however often."""
    caplog.set_level(logging.INFO)
    messages = [GO, Notice(), OpaqueMessage("chart", {"x": 1}), Notice("again")]
    for _ in range(3):
        assert default_convert(messages) == (GO,)
    history = LegalHistory(messages)
    history.extend([Notice(), Loud()])
    assert history.view() == (GO,)
    assert len(history.messages) == 6
    logged = [record.getMessage() for record in caplog.records]
    assert [text.split("'")[1] for text in logged] == ["notice", "chart", "loud"]


@pytest.mark.usefixtures("_roles")
def test_roles_that_are_data_do_not_fill_the_memory() -> None:
    """A file with a million roles costs no more than a thousand entries."""
    default_convert([OpaqueMessage(f"r{n}", {}) for n in range(1_500)])
    assert len(convert._logged_roles) == 1_000


def test_default_convert_leaves_what_is_no_message_for_the_error() -> None:
    """A wrong type is named, not silently dropped."""
    with pytest.raises(ModelError, match=r"messages\[1\].*got int"):
        make_legal(default_convert([GO, 5]))  # type: ignore[list-item]


def test_convert_custom_maps_by_role_and_class() -> None:
    """Texts, messages, several, none; a subclass goes with its class, the role of its own wins, others are left out."""
    history = [GO, Notice("one"), Loud("two"), OpaqueMessage("chart", {}), OpaqueMessage("other", {}), assistant("ok")]
    mapped = convert_custom(
        {
            Notice: lambda notice: f"[notice] {notice.text}",
            "chart": lambda chart: [user("a chart"), "and its text"],
        }
    )(history)
    assert mapped == (
        GO,
        user("[notice] one"),
        user("[notice] two"),
        user("a chart"),
        user("and its text"),
        assistant("ok"),
    )
    assert convert_custom({Notice: lambda _: "x", "loud": lambda _: None})(history[1:3]) == (user("x"),)


@pytest.mark.parametrize("key", ["user", "tool_result", UserMessage, 5])
def test_convert_custom_refuses_what_is_no_custom_role(key: Any) -> None:
    """A mapping that could never apply is an error when it is made, not a silence later."""
    with pytest.raises(TypeError, match="functions: expected roles or classes of custom messages"):
        convert_custom({key: lambda message: "x"})


def test_convert_custom_result_of_a_wrong_type_is_invalid_input() -> None:
    """What the function gives is looked at like anything else."""
    with pytest.raises(ModelError, match=r"messages\[1\].*got int"):
        make_legal(convert_custom({"notice": lambda _: 5})([GO, Notice()]))  # type: ignore[arg-type,return-value]
    with pytest.raises(ModelError, match=r"messages\[1\].*got dict"):
        make_legal(convert_custom({"notice": lambda _: {"role": "user"}})([GO, Notice()]))


# ---------------------------------------------------------------- growing


def turn(number: int) -> list[Any]:
    ids = [f"c{number}-{k}" for k in range(4)]
    return [assistant(*[call(id) for id in ids]), *[result(id) for id in ids]]


def test_g14_a_turn_costs_the_same_however_long_the_history_is() -> None:
    """Appending a turn and looking at the history takes as many steps at 2,000 turns as at the first."""
    history = LegalHistory([GO])
    steps = []
    for number in range(2_000):
        messages = turn(number)
        steps.append(calls(lambda messages=messages: (history.extend(messages), history.view())))
    assert min(steps[:10]) == min(steps[-10:])  # the least of ten: a garbage collection may call something too
    assert max(steps) < 2 * min(steps)


def test_g14_a_view_copies_nothing() -> None:
    """Looking at a history of 25,000 messages takes next to no memory."""
    history = LegalHistory([GO])
    early = history.view()
    for number in range(5_000):
        history.extend(turn(number))
        history.view()
    assert early._messages is history.view()._messages
    tracemalloc.start()
    try:
        views = [history.view() for _ in range(10)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(views[0]) == 25_001
    assert peak < 10_000


def test_open_calls_of_a_context_are_answered_in_the_request_and_later_really() -> None:
    """A placeholder while nothing ran them; the real result, in its place, when a run of open calls gave it."""
    history = LegalHistory([GO, assistant(call("a"), call("b")), result("b", "2")])
    asked = history.view()
    assert results(asked) == [("a", NO_RESULT), ("b", "2")]
    history.append(result("a", "1"))
    assert results(history.view()) == [("a", "1"), ("b", "2")]
    assert results(asked) == [("a", NO_RESULT), ("b", "2")]


def test_a_new_id_that_was_made_up_before_renames_the_earlier_call() -> None:
    """Messages, events and requests agree on the ids of a run; what gives way is the made-up one."""
    history = LegalHistory([GO, assistant(call("a")), result("a", "1"), assistant(call("a")), result("a", "2")])
    before = history.view()
    history.extend([assistant(call("a#2")), result("a#2", "3")])
    assert results(history.view()) == [("a", "1"), ("a#3", "2"), ("a#2", "3")]
    assert results(before) == [("a", "1"), ("a#2", "2")]


def test_call_ids_are_those_that_came_and_those_that_were_made() -> None:
    """Those of replies that are not shown too: ids are unique in the context and the run."""
    history = LegalHistory([GO, assistant(call("a"), call("a")), assistant(call("z"), stop_reason="aborted")])
    assert history.call_ids == {"a", "a#2", "z"}


def test_a_view_is_a_read_only_sequence() -> None:
    """By index, slice, iteration, comparison, membership; it does not grow, and copies are tuples."""
    history = LegalHistory([GO, assistant("1")])
    view, kept = history.view(), history.messages
    history.append(user("more"))
    assert len(view) == len(kept) == 2
    assert kept == view
    assert (view[0], view[-1], view[-2]) == (GO, assistant("1"), GO)
    assert view[:] == view == (GO, assistant("1")) == tuple(view)
    assert view == [GO, assistant("1")]
    assert view[::-1] == tuple(reversed(view)) == (assistant("1"), GO)
    assert view != history.view()
    assert view != "go"
    assert hash(view) == hash((GO, assistant("1")))
    assert assistant("1") in view
    assert user("more") not in view
    assert view.index(assistant("1")) == 1
    for wrong in (2, -3):
        with pytest.raises(IndexError, match="below 2"):
            view[wrong]
    for change in ("append", "__setitem__", "__delitem__", "sort"):
        assert not hasattr(view, change)
    assert copy.deepcopy(view) == pickle.loads(pickle.dumps(view)) == copy.copy(view) == (GO, assistant("1"))
    assert repr(view).startswith("MessageView([UserMessage(")
