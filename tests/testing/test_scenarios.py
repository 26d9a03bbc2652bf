"""The scenario runner: every field of the format does what it says, and the command line reports what it cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentloop.testing.scenarios import load, main, run_scenario

pytestmark = pytest.mark.anyio

Lines = list[dict[str, Any]]


async def play(**scenario: Any) -> Lines:
    lines: Lines = []
    await run_scenario({"name": "x", "prompts": ["go"], **scenario}, lines.append)
    return lines


def of(lines: Lines, *types: str) -> Lines:
    return [line for line in lines if line["type"] in types]


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"blocks": [{"type": "text", "deltas": [text]}], "stop": "stop", **fields}


def calls(*ids: str, tool: str = "work", stop: str = "tool_use", **fields: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_call", "id": id, "tool": tool, **({"args": {}} | fields)} for id in ids]
    return {"blocks": blocks, "stop": stop}


def work(*steps: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "work", **({"steps": list(steps)} if steps else {}), **fields}]


async def ends(*steps: Any, **fields: Any) -> dict[str, Any]:
    """The end of one call of a tool with these steps, without its type and name."""
    (end,) = of(await play(tools=work(*steps, **fields), responses=[calls("c"), says("bye")]), "tool_execution_end")
    return {name: value for name, value in end.items() if name in ("is_error", "text")}


async def test_blocks_and_requests() -> None:
    """Thinking with a signature, text, and a call; what the model is shown, system prompt and tools included."""
    blocks = [
        {"type": "thinking", "deltas": ["h", "m"], "signature": "s"},
        {"type": "text", "text": "one"},
        {"type": "tool_call", "id": "c", "tool": "work", "args": {"a": 1}},
    ]
    lines = await play(
        system="Be brief.", tools=work(), responses=[{"blocks": blocks, "stop": "tool_use"}, says("bye")]
    )
    first, second = of(lines, "request")
    assert first == {
        "type": "request",
        "n": 1,
        "system": "Be brief.",
        "tools": ["work"],
        "messages": [{"role": "user", "text": "go"}],
    }
    assert second["messages"][1] == {
        "role": "assistant",
        "text": "one",
        "thinking": [{"text": "hm", "signature": "s"}],
        "tool_calls": [{"id": "c", "tool": "work", "args": {"a": 1}}],
        "stop_reason": "tool_use",
    }
    updates = of(lines, "message_update")
    assert [(line["kind"], line["index"]) for line in updates[:10]] == [
        ("thinking_start", 0),
        ("thinking_delta", 0),
        ("thinking_delta", 0),
        ("thinking_end", 0),
        ("text_start", 1),
        ("text_delta", 1),
        ("text_end", 1),
        ("tool_call_start", 2),
        ("tool_call_delta", 2),
        ("tool_call_end", 2),
    ]
    assert updates[3]["content"] == "hm"
    assert updates[8]["delta"] == '{"a":1}'


async def test_arguments_as_text() -> None:
    """Arguments in pieces and arguments that are no JSON are sent as they are."""
    whole = calls("c", args={"a": 12}, deltas=['{"a"', ": 12}"])
    lines = await play(tools=work({"echo_args": True}), responses=[whole, calls("d", args_text='{"a'), says("bye")])
    deltas = [line["delta"] for line in of(lines, "message_update") if line["kind"] == "tool_call_delta"]
    assert deltas == ['{"a"', ": 12}", '{"a']
    first, second = of(lines, "tool_execution_end")
    assert (first["text"], second["text"]) == ('{"a":12}', "<invalid_args>")
    (start,) = [line for line in of(lines, "tool_execution_start") if line["call"] == "d"]
    assert (start["args"], start["raw"]) == ({}, '{"a')


@pytest.mark.parametrize(
    ("response", "stop", "error"),
    [
        (says("a", stop="length"), "length", None),
        (says("a", stop="error", error="bad key"), "error", "bad key"),
        (says("a", end="raise", error="reset"), "error", "reset"),
        (says("a", end="no_done"), "error", "<no_final_result>"),
        (says("a", end="no_done_with_message"), "stop", None),
        (says("a", no_start=True), "stop", None),
    ],
)
async def test_how_a_response_ends(response: dict[str, Any], stop: str, error: str | None) -> None:
    """Each way to end gives the reply its stop reason and, of a failure, its words."""
    (end,) = [line for line in of(await play(responses=[response]), "message_end") if line["role"] == "assistant"]
    assert (end["text"], end["stop_reason"], end.get("error")) == ("a", stop, error)


async def test_a_stream_that_cannot_be_opened() -> None:
    """`fail_start` leaves a turn without a reply, closed by events."""
    lines = await play(responses=[{"end": "fail_start", "error": "no route"}])
    assert [line["type"] for line in lines[-3:]] == ["turn_end", "agent_end", "result"]
    assert lines[-1]["outcome"] == "ok"
    assert lines[-3]["stop_reason"] is None


async def test_past_the_script() -> None:
    """A request too many gets an empty reply, and a line says so."""
    lines = await play(tools=work(), responses=[calls("c")])
    assert len(of(lines, "script_exhausted")) == 1
    assert (lines[-1]["requests"], lines[-1]["outcome"]) == (2, "ok")


async def test_a_stall_is_a_hang() -> None:
    """A stream that never ends hangs until the limit; the result is printed all the same."""
    lines = await play(responses=[says("a", end="stall")], limit_ms=5)
    assert lines[-1]["outcome"] == "hang"
    assert "messages" not in lines[-1]
    assert len(of(lines, "result")) == 1


TEXT = {"type": "text", "text": "t"}
IMAGE = {"type": "image", "data": "AA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ([], {"is_error": False, "text": "ok"}),
        ([{"return": "x"}], {"is_error": False, "text": "x"}),
        ([{"return": "x", "is_error": True}], {"is_error": True, "text": "x"}),
        ([{"return": None}], {"is_error": False, "text": "<other>"}),
        ([{"return_raw": {"a": 1}}], {"is_error": False, "text": "<other>"}),
        ([{"return_raw": {"content": [TEXT, IMAGE]}}], {"is_error": False, "text": "t\n[image]"}),
        ([{"return_raw": {"content": [TEXT, {"type": "video"}]}}], {"is_error": True, "text": "t\n<bad_result>"}),
        ([{"raise": "boom"}], {"is_error": True, "text": "boom"}),
        ([{"raise": ""}], {"is_error": True, "text": "<empty_error>"}),
        ([{"raise_value": "word"}], {"is_error": True, "text": "word"}),
        ([{"raise_value": {"code": 7}}], {"is_error": True, "text": '{"code":7}'}),
        ([{"mutate_args": {"b": 2}}, {"echo_args": True}], {"is_error": False, "text": '{"b":2}'}),
        ([{"update": "1"}, {"sleep_ms": 900}, {"return": "late"}], {"is_error": False, "text": "late"}),
    ],
)  # fmt: skip
async def test_steps_of_a_tool(steps: list[Any], end: dict[str, Any]) -> None:
    """Each step, and what comes of it; times cost nothing."""
    assert await ends(*steps) == end


async def test_steps_for_one_call() -> None:
    """`per_call` takes the place of the steps for the call it names."""
    tools = work({"return": "all"}, per_call={"b": [{"return": "mine"}]})
    lines = await play(tools=tools, responses=[calls("a", "b"), says("bye")])
    assert {line["call"]: line["text"] for line in of(lines, "tool_execution_end")} == {"a": "all", "b": "mine"}
    assert sorted(lines[-1]["executed"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"on_abort": "return", "abort_text": "half"}, "half"),
        ({"on_abort": "raise", "abort_text": "stopped"}, "stopped"),
        ({"on_abort": "return"}, "aborted"),
        ({}, "<aborted>"),
    ],
)
async def test_a_tool_at_an_abort(fields: dict[str, Any], text: str) -> None:
    """A tool that looks at the abort says its own word; one that ignores it is cut off."""
    tools = work({"hang": True}, **fields)
    at = {"point": "tool_start", "call": "c", "delay_ms": 10}
    lines = await play(tools=tools, responses=[calls("c")], abort={"at": at, "reason": "enough"})
    (end,) = of(lines, "tool_execution_end")
    assert end["text"] == text
    assert len(of(lines, "abort_called")) == 1
    assert (lines[-1]["outcome"], lines[-1]["tools_still_running"], lines[-1]["requests"]) == ("ok", 0, 1)


@pytest.mark.parametrize(
    "at",
    [
        {"point": "start"},
        {"point": "request", "response": 1},
        {"point": "model_event", "kind": "text_delta", "n": 2},
        {"point": "model_end"},
        {"point": "tool_end", "tool": "work"},
        {"point": "before_hook", "call": "c"},
        {"point": "after_hook"},
        {"point": "steering_poll", "n": 2},
        {"point": "follow_up_poll"},
        {"point": "event", "type": "message_end", "role": "tool_result", "call": "c"},
        {"point": "event", "kind": "tool_call_end", "call": "c"},
    ],
)
async def test_points(at: dict[str, Any]) -> None:
    """Every point is reached, once, and an abort there ends the run in events."""
    first = {"blocks": [{"type": "text", "deltas": ["a", "b"]}, *calls("c")["blocks"]], "stop": "tool_use"}
    lines = await play(tools=work(), responses=[first, says("bye")], abort=[{"at": at}])
    assert len(of(lines, "abort_called")) == 1
    assert lines[-1]["outcome"] == "ok"
    assert of(lines, "agent_end")


async def test_a_point_that_is_never_reached() -> None:
    """A filter that nothing fits, and a number that is not reached, do nothing."""
    aborts = [{"at": {"point": "tool_start", "call": "other"}}, {"at": {"point": "request", "n": 9}}]
    lines = await play(tools=work(), responses=[calls("c"), says("bye")], abort=aborts)
    assert not of(lines, "abort_called")
    assert lines[-1]["requests"] == 2


async def test_queues() -> None:
    """Messages join at their point; a poll takes all or one; failures of a poll end the run in events."""
    steering = [{"at": {"point": "tool_start"}, "messages": ["one", {"role": "user", "text": "two"}]}]
    responses = [calls("c"), says("a"), says("b"), says("c")]
    follow = [{"at": {"point": "start"}, "messages": ["later"]}]
    lines = await play(
        tools=work(), responses=responses, steering=steering, steering_mode="one_at_a_time", follow_ups=follow
    )
    polls = [(line["queue"], line["returned"]) for line in of(lines, "poll") if line["returned"]]
    assert polls == [("steering", 1), ("steering", 1), ("follow_up", 1)]
    assert [m["text"] for m in lines[-1]["messages"] if m["role"] == "user"] == ["go", "one", "two", "later"]
    lines = await play(responses=[says("a")], hooks={"steering_poll_raises": {"n": 1, "message": "gone"}})
    assert of(lines, "poll") == [{"type": "poll", "queue": "steering", "n": 1, "raises": True}]
    assert lines[-1]["outcome"] == "ok"


@pytest.mark.parametrize(
    ("fields", "result"),
    [({}, "<skipped>"), ({"interrupt_mode": "wait"}, "waited"), ({"steering_peek": False}, "waited")],
)
async def test_steering_and_waits(fields: dict[str, Any], result: str) -> None:
    """A pure wait is cut short by steering, unless it may not be or nobody can see the queue."""
    tools = work({"sleep_ms": 500}, {"return": "waited"}, interruptible=True)
    steering = [{"at": {"point": "tool_start", "delay_ms": 10}, "messages": ["come back"]}]
    lines = await play(tools=tools, responses=[calls("c"), says("ok")], steering=steering, **fields)
    assert [line["text"] for line in of(lines, "tool_execution_end")] == [result]


async def test_hooks() -> None:
    """Rules are found by call and tool; each effect of the two hooks around a call, and what they were shown."""
    hooks = {
        "before_tool_call": [
            {"call": "a", "block": True, "reason": "no"},
            {"call": "b", "replace_args": {"x": 1}, "delay_ms": 5},
            {"call": "c", "raise": "down"},
            {"tool": "other", "block": True},
        ],
        "after_tool_call": [{"call": "b", "content": "new", "is_error": True}, {"call": "d", "content": None}],
    }
    tools = work({"echo_args": True})
    lines = await play(tools=tools, responses=[calls("a", "b", "c", "d"), says("bye")], hooks=hooks)
    results = {line["call"]: (line["is_error"], line["text"]) for line in of(lines, "tool_execution_end")}
    assert results == {"a": (True, "no"), "b": (True, "new"), "c": (True, "down"), "d": (False, "<other>")}
    shown = [line for line in of(lines, "hook") if line["hook"] == "after_tool_call"]
    assert {line["call"]: line["text"] for line in shown} == {"b": '{"x":1}', "d": "{}"}
    assert sorted(lines[-1]["executed"]) == ["b", "d"]


async def test_transforms() -> None:
    """The history is pruned, added to, and converted for the request alone; a transform that raises ends the run."""
    context = [{"role": "user", "text": "q"}, {"role": "assistant", "text": "a"}, {"role": "notice", "text": "n"}]
    hooks = {
        "transform_context": {"drop_first": 2, "append": {"role": "user", "text": "extra"}},
        "convert_to_llm": {"as_user": ["notice"]},
    }
    lines = await play(context=context, hooks=hooks, responses=[says("a")])
    assert [m["text"] for m in of(lines, "request")[0]["messages"]] == ["n", "go", "extra"]
    assert [m["text"] for m in lines[-1]["messages"]] == ["go", "a"]
    assert lines[-1]["caller_context"] == {"before": 3, "after": 3}
    lines = await play(
        context=context, hooks={"transform_context": {"mutate_drop_first": 2}}, responses=[says("a"), says("b")]
    )
    assert [m["text"] for m in of(lines, "request")[0]["messages"]] == ["go"]
    assert of(lines, "hook") == [{"type": "hook", "hook": "transform_context", "messages": 4}]
    for name in ("transform_context", "convert_to_llm"):
        lines = await play(hooks={name: {"raise": "bug"}}, responses=[says("a")])
        assert (lines[-1]["outcome"], lines[-1]["requests"]) == ("ok", 0)


async def test_a_host_that_ends_the_run() -> None:
    """`stop_after_turn` counts turns, and leaves the queues as they are."""
    lines = await play(
        tools=work(), responses=[calls("a"), calls("b"), says("never")], hooks={"stop_after_turn": 2},
        follow_ups=[{"at": {"point": "start"}, "messages": ["later"]}],
    )  # fmt: skip
    assert lines[-1]["requests"] == 2
    assert lines[-1]["queues_left"] == {"steering": 0, "follow_up": 1}


async def test_sequential_and_terminate() -> None:
    """A tool that never runs beside another, a run in which none does, and an end that every result asks for."""
    slow = work({"sleep_ms": 50}, {"return": "x"}, sequential=True)
    for fields in ({"tools": slow}, {"tools": work({"sleep_ms": 50}, {"return": "x"}), "tool_execution": "sequential"}):
        lines = await play(responses=[calls("a", "b"), says("bye")], **fields)
        order = [(line["type"], line["call"]) for line in of(lines, "tool_execution_start", "tool_execution_end")]
        assert [call for _, call in order] == ["a", "a", "b", "b"]
    lines = await play(tools=work({"return": "x"}, terminate=True), responses=[calls("a", "b"), says("never")])
    assert lines[-1]["requests"] == 1


async def test_continue() -> None:
    """`continue` answers the context as it stands, runs what is open, and is rejected where there is nothing to do."""
    open_call = {"role": "assistant", "blocks": calls("c")["blocks"], "stop": "tool_use"}
    lines = await play(mode="continue", context=["q", open_call], tools=work(), responses=[says("ok")])
    assert lines[-1]["executed"] == ["c"]
    assert [m["role"] for m in lines[-1]["messages"]] == ["tool_result", "assistant"]
    for context in ([], ["q", {"role": "assistant", "text": "a"}]):
        lines = await play(mode="continue", context=context, responses=[says("never")])
        assert (lines[-1]["outcome"], lines[-1]["error"]) == ("rejected", "<cannot_continue>")


async def test_failed_replies_in_the_context() -> None:
    """A reply that failed is part of the context, and of no request."""
    failed = {"role": "assistant", "text": "half", "stop": "error", "error": "x"}
    lines = await play(context=["q", failed], responses=[says("ok")])
    assert [m["text"] for m in of(lines, "request")[0]["messages"]] == ["q", "go"]


async def test_readers() -> None:
    """A slow reader gets the same events; one that leaves stops the run; both are told in a line of their own."""
    tools = work({"sleep_ms": 60}, {"return": "x"})
    responses = [calls("c"), says("bye")]
    usual = await play(tools=tools, responses=responses)
    slow = await play(tools=tools, responses=responses, consumer={"delay_ms": 20, "pause_ms": 30})
    assert slow[0] == {"type": "reader", "delay_ms": 20, "pause_ms": 30}
    events = ("agent_", "turn_", "message_", "tool_execution_")
    assert [x for x in slow if x["type"].startswith(events)] == [x for x in usual if x["type"].startswith(events)]
    left = await play(tools=tools, responses=responses, consumer={"stop_after_events": 10, "linger_ms": 500})
    assert len([line for line in left if line["type"].startswith(events)]) == 10
    assert (left[-1]["outcome"], left[-1]["tools_still_running"], left[-1]["requests"]) == ("consumer_left", 0, 1)


async def test_deadline_and_gap() -> None:
    """The deadline is counted in the scenario's own time, in which a gap after each event passes."""
    lines = await play(responses=[says("a", gap_ms=100)], deadline_ms=250)
    (end,) = [line for line in of(lines, "message_end") if line["role"] == "assistant"]
    assert (end["stop_reason"], end["text"]) == ("aborted", "a")
    lines = await play(responses=[says("a", gap_ms=100)], deadline_ms=1000)
    assert lines[-1]["messages"][-1]["stop_reason"] == "stop"


async def test_late_progress_is_dropped() -> None:
    """Progress after the return is no event."""
    tools = [
        {"name": "work", "per_call": {
            "a": [{"late_update": {"after_ms": 10, "text": "late"}}, {"return": "early"}],
            "b": [{"sleep_ms": 50}, {"update": "now"}, {"return": "x"}],
        }},
    ]  # fmt: skip
    lines = await play(tools=tools, responses=[calls("a", "b"), says("bye")])
    assert [line["text"] for line in of(lines, "tool_execution_update")] == ["now"]


async def test_what_is_not_supported() -> None:
    """A feature that the kernel does not have is one line, and nothing runs."""
    assert await play(asides=[{"at": {"point": "start"}, "messages": ["x"]}]) == [
        {"type": "unsupported", "features": ["asides"]}
    ]
    assert await play(responses=[says("a", false_start=[])]) != [{"type": "unsupported", "features": ["false_start"]}]
    assert await play(responses=[says("a", false_start=[{"type": "text", "text": "x"}])]) == [
        {"type": "unsupported", "features": ["false_start"]}
    ]


# ---------------------------------------------------------------- the command


@pytest.fixture
def anyio_backend() -> str:
    """The handed scenarios run on every backend; here one is enough."""
    return "asyncio"


@pytest.mark.parametrize("backend", ["asyncio", "trio", "uvloop"])
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str) -> None:
    """Several files are run one after the other, each ending in its result."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"name": "a", "prompts": ["hi"], "responses": [says("é")]}))
    assert main([str(path), str(path), "--backend", backend]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["outcome"] for line in lines if line["type"] == "result"] == ["ok", "ok"]
    assert lines[-1]["messages"][-1]["text"] == "é"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"prompts": 7}',
        '{"prompts": [7]}',
        '{"tools": [{}]}',
        '{"responses": [{"blocks": [{}]}], "prompts": ["x"]}',
    ],
)
def test_no_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A file that is no scenario is one line on standard error that names it, never a traceback."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    code = main([str(path)])
    out, err = capsys.readouterr()
    if code == 0:
        assert json.loads(out.splitlines()[-1])["type"] == "result"
    else:
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"{path}: ")


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is said so."""
    assert main([str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")
