"""`Session`: the guarded door, runs one after the other, records, opening again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop import (
    AbortSignal,
    AgentEnd,
    ApprovalDecision,
    AssistantMessage,
    CompactionBegin,
    Hooks,
    Image,
    MessageEnd,
    MessageUpdate,
    ModelError,
    RequestBegin,
    RequestEnd,
    Retry,
    SessionBusy,
    TextDelta,
    ToolCallDelta,
    ToolExecutionEnd,
    ToolResultMessage,
    TraceLocked,
    TraceReadError,
    TraceWriteError,
    Usage,
    UserMessage,
    assistant,
    running,
    tool,
    user,
)
from agentloop.compaction import Summarize, TurnsReach
from agentloop.model import UsageChunk
from agentloop.omni.carry import INTERRUPTED
from agentloop.omni.records import (
    assistant_text,
    event_kind,
    image_url,
    is_complete_model_message,
    is_meta,
    is_partial,
    request_begin,
    user_text,
)
from agentloop.session import Session, SessionRun
from agentloop.testing import ScriptedModel
from agentloop.testing.scripted import STALL, call, text

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def allow(request: object) -> str:
    return "allow"


async def test_without_an_approve_callback_every_call_is_denied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The session is the guarded door: nobody to ask means no (the bare kernel would run the call). The log says it once."""
    model = ScriptedModel([[call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4})], "denied, then"])
    async with Session.create(tmp_path, model, tools=[add]) as session:
        events = [event async for event in session.run("1 + 2?")]
    result = next(message for message in session.messages if isinstance(message, ToolResultMessage))
    assert (result.text, result.stop_reason) == ("Tool call denied by user.", "aborted")
    assert isinstance(events[-1], AgentEnd) and events[-1].stop_reason == "completed"
    assert [record.getMessage() for record in caplog.records] == [
        "the session has no `approve`, so its calls are denied; the first is one of add"
    ]


async def test_what_is_allowed_runs(tmp_path: Path) -> None:
    """A run's own callback decides; it is asked once."""
    model = ScriptedModel([[call("add", {"a": 1, "b": 2})], "3"])
    asked = []
    async with Session.create(tmp_path, model, tools=[add]) as session:
        async for _ in session.run("1 + 2?", approve=lambda request: asked.append(request.arguments) or "allow"):
            pass
    assert [message.text for message in session.messages if isinstance(message, ToolResultMessage)] == ["3"]
    assert [json.loads(arguments) for arguments in asked] == [{"a": 1, "b": 2}]


async def test_a_lone_tool_is_no_list_of_tools(tmp_path: Path) -> None:
    """A session is made of it no more than a context is, nor opened or configured with it."""
    with pytest.raises(TypeError, match=r"^tools: expected a list of tools, got Tool$"):
        Session.create(tmp_path, ScriptedModel(), tools=add)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^tools: expected a list of tools, got Tool$"):
        Session.open("s", tmp_path, ScriptedModel(), tools=add)  # type: ignore[arg-type]
    async with Session.create(tmp_path, ScriptedModel()) as session:
        with pytest.raises(TypeError, match=r"^tools: expected a list of tools, got Tool$"):
            session.configure(tools=add)


async def test_a_session_goes_on_in_another_process(tmp_path: Path) -> None:
    """`open` gives back what `create` left: messages, tokens, the prompt; and the next run adds to it."""
    async with Session.create(tmp_path, ScriptedModel(["Noted."]), system_prompt="Be brief.", session_id="s1") as first:
        async for _ in first.run("My colour is blue."):
            pass
    model = ScriptedModel(["Blue."])
    async with Session.open("s1", tmp_path, model) as second:
        assert (second.messages, second.system_prompt) == (first.messages, "Be brief.")
        async for _ in second.run("Which colour?"):
            pass
    assert [message.text for message in model.requests[0].messages] == ["My colour is blue.", "Noted.", "Which colour?"]
    assert second.history().messages == second.messages


async def test_one_session_has_one_writer(tmp_path: Path) -> None:
    """Opened a second time elsewhere: the lock's error; closing gives the session free."""
    async with Session.create(tmp_path, ScriptedModel(["one"]), session_id="s1") as session:
        async for _ in session.run("go"):
            pass
        with pytest.raises(TraceLocked, match="session s1: expected no other writer"):
            Session.open("s1", tmp_path, ScriptedModel())
    async with Session.open("s1", tmp_path, ScriptedModel()):
        pass


async def test_a_second_run_is_a_clear_error(tmp_path: Path) -> None:
    """One run at a time: while one goes on, another is refused when it is made, and when it takes its first step."""
    async with Session.create(tmp_path, ScriptedModel(["one", "two"])) as session:
        early = session.run("early")
        run = session.run("one")
        await anext(run)
        with pytest.raises(SessionBusy, match="one at a time"):
            session.run("two")
        with pytest.raises(SessionBusy):
            await anext(early)
        with pytest.raises(SessionBusy):
            session.configure(max_turns=1)
        async for _ in run:
            pass
        assert [event.stop_reason async for event in session.run("two") if isinstance(event, AgentEnd)] == ["completed"]


async def test_records_are_the_run_as_streamed(tmp_path: Path) -> None:
    """`records` yields fragments and complete records; the complete ones are, timestamps included, those of the trace."""
    async with Session.create(tmp_path, ScriptedModel(["Hello."])) as session:
        records = [record async for record in session.records([user_text("Hi.")])]
        stored = session.history().records
    assert any(is_partial(record) for record in records)
    assert [record for record in records if not is_partial(record)] == list(stored[1:])
    assert [r["payload"]["text"] for r in records if is_complete_model_message(r)] == ["Hi.", "Hello."]


# ---------------------------------------------------------------- what a run leaves behind


async def test_a_reply_that_broke_off_is_told_as_text(tmp_path: Path) -> None:
    """Case B: left in the middle of a reply, by a plain `break`: the next request has the input, and what the reply had
    said, as one `[turn_aborted]` text; nothing of it is in the trace."""
    model = ScriptedModel([text("Once ", "upon"), "The end."])
    async with Session.create(tmp_path, model) as session:
        async for event in session.run("Tell me."):
            if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
                break
        del event
        told = "[turn_aborted]\n  [user_input]Tell me.[/user_input]\n  [text]Once [/text]\n[/turn_aborted]"
        assert session.messages == (user(told),)
        async for _ in session.run("Go on."):
            pass
        stored = [record["payload"].get("text") for record in session.history().records]
    assert [message.text for message in model.requests[1].messages] == [told, "Go on."]
    assert told not in stored and "Tell me." in stored


async def test_half_a_call_is_not_told(tmp_path: Path) -> None:
    """A call whose arguments broke off is no call; a reply that had nothing else leaves the input as it is."""
    model = ScriptedModel([call("add", pieces=['{"a": ', "1}"]), "So?"])
    async with Session.create(tmp_path, model, tools=[add]) as session:
        async for event in session.run("1 + 2?"):
            if isinstance(event, MessageUpdate) and isinstance(event.delta, ToolCallDelta):
                break
        assert session.messages == (user("1 + 2?"),)


async def test_a_call_that_had_ended_keeps_its_result(tmp_path: Path) -> None:
    """Case A: left while calls run: one that had ended keeps its result though the message of it was not shown yet, the
    other one is told as interrupted; in call order, and its tool was stopped."""
    stopped = []

    @tool
    async def wait() -> str:
        """Wait for ever."""
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(True)

    model = ScriptedModel([[call("wait"), call("add", {"a": 1, "b": 2})], "I see."])
    async with Session.create(tmp_path, model, tools=[wait, add]) as session:
        run = session.run("Both.", approve=allow)
        async for event in run:
            if isinstance(event, ToolExecutionEnd):
                break
        await run.aclose()
        assert stopped == [True]
        assert [message.text for message in session.messages[2:]] == [INTERRUPTED, "3"]
        assert [event.stop_reason async for event in session.run() if isinstance(event, AgentEnd)] == ["completed"]


async def test_a_reply_without_its_commit_is_not_in_the_history(tmp_path: Path) -> None:
    """Left between the end of a reply and the end of its request: the trace does not have it committed, nor has the
    session; its call does not run."""
    model = ScriptedModel([["Adding.", call("add", {"a": 1, "b": 2})], "So?"])
    async with Session.create(tmp_path, model, tools=[add], session_id="s1") as session:
        run = session.run("1 + 2?", approve=allow)
        async for event in run:
            if isinstance(event, MessageEnd) and isinstance(event.message, AssistantMessage):
                break
        await run.aclose()
        (only,) = session.messages
        assert isinstance(only, UserMessage) and only.text.startswith("[turn_aborted]\n  [user_input]1 + 2?")
        assert '[tool_call name="add" id="call_1"]' in only.text
    async with Session.open("s1", tmp_path, model) as session:
        assert session.messages == (user("1 + 2?"),)


async def test_the_draft_of_a_summary_is_dropped(tmp_path: Path) -> None:
    """Left, or aborted, while a summary is written: the context stands as before, nothing of the draft is told; the next
    run closes the compaction in the trace first."""
    for way in ("leave", "abort"):
        abort = AbortSignal()
        model = ScriptedModel(["one", ["[summary]half", STALL], "two"])
        async with Session.create(tmp_path, model, compaction=Summarize()) as session:
            async for _ in session.run("go"):
                pass
            before = session.messages
            async for event in session.compact(abort=abort):
                if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
                    if way == "leave":
                        break
                    abort.abort()
            assert (session.messages, session.pending_summary) == (before, None)
            async for _ in session.run("on"):
                pass
            ends = [r["payload"] for r in session.history().records if event_kind(r) == "compaction_end"]
            assert [end["status"] for end in ends] == [{"leave": "retryable", "abort": "aborted"}[way]]


async def test_an_abort_is_carried_over(tmp_path: Path) -> None:
    """After an abort through the run's signal the next run tells what there was, and the trace has the abort."""
    abort, model = AbortSignal(), ScriptedModel([["Once ", STALL], "The end."])
    async with Session.create(tmp_path, model) as session:
        async for event in session.run("Tell me.", abort=abort):
            if isinstance(event, MessageUpdate) and isinstance(event.delta, TextDelta):
                abort.abort("enough")
        assert isinstance(event, AgentEnd) and (event.stop_reason, event.error_code) == ("aborted", "user_abort")
        assert session.messages[0].text.startswith("[turn_aborted]\n  [user_input]Tell me.[/user_input]\n  [text]Once")
        async for _ in session.run("Go on."):
            pass
        kinds = [record["payload"].get("type") for record in session.history().records]
    assert kinds.count("abort") == 1
    assert len(model.requests[1].messages) == 2


async def test_a_failure_is_carried_over(tmp_path: Path) -> None:
    """A request that failed for good: the input waits, and a run without a prompt asks again."""
    model = ScriptedModel([ModelError("auth", "who are you?"), "Hello."])
    async with Session.create(tmp_path, model) as session:
        ends = [event async for event in session.run("Hi.") if isinstance(event, AgentEnd)]
        assert [(end.stop_reason, end.error_code) for end in ends] == [("fatal", "auth")]
        assert session.messages == (user("Hi."),)
        async for _ in session.run():
            pass
    assert [message.text for message in session.messages] == ["Hi.", "Hello."]


async def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    """Without prompts and with nothing that waits the first step raises; the session is free afterwards."""
    async with Session.create(tmp_path, ScriptedModel(["Hello."])) as session:
        with pytest.raises(ValueError, match="nothing in the conversation waits"):
            await anext(session.run())
        async for _ in session.run("Hi."):
            pass
        with pytest.raises(ValueError, match="nothing in the conversation waits"):
            await anext(session.run([]))
        assert not session.is_running


async def test_a_session_that_is_closed_closes_its_run(tmp_path: Path) -> None:
    """`aclose` ends the run that goes on, whose iteration ends; afterwards the session refuses."""
    session = Session.create(tmp_path, ScriptedModel([text("Once ", "upon")]))
    run = session.run("Tell me.")
    await anext(run)
    await session.aclose()
    assert [event async for event in run] == []
    with pytest.raises(ValueError, match="expected an open session, got a closed one"):
        session.run("again")
    await session.aclose()


# ---------------------------------------------------------------- the disk


@pytest.mark.parametrize("policy", ["fail", "warn"])
async def test_a_record_that_cannot_be_written(policy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`fail`: the step raises, no tool runs whose start could not be written, the session is idle and goes on when the
    disk does; `warn`: the run goes on and says so once."""
    ran = []

    @tool
    async def note() -> str:
        """Leave a note."""
        ran.append(True)
        return "noted"

    full = False

    def redact(record: Any) -> Any:
        if full:
            raise OSError(28, "No space left on device")
        return record

    model = ScriptedModel([call("note"), "done", "again"])
    async with Session.create(tmp_path, model, tools=[note], policy=policy, redact=redact) as session:
        run = session.run("go", approve=allow)
        async for event in run:
            if isinstance(event, ApprovalDecision):
                full = True
                break
        if policy == "fail":
            with pytest.raises(TraceWriteError, match="No space left"):
                await anext(run)
            assert (ran, session.is_running) == ([], False)
        else:
            ends = [event.stop_reason async for event in run if isinstance(event, AgentEnd)]
            assert (ran, ends) == ([True], ["completed"])
            assert sum("its trace is not complete" in record.message for record in caplog.records) == 1
        full = False
        async for event in session.run("Go on.", approve=allow):
            assert not isinstance(event, AgentEnd) or event.stop_reason == "completed"


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """`create` raises `TraceWriteError` at once, before there is a run."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceWriteError, match="expected to lock the session"):
        Session.create(tmp_path / "file", ScriptedModel())


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a" * 129, ".hidden", "nul\0"])
async def test_ids_that_cannot_be_part_of_a_name(name: str, tmp_path: Path) -> None:
    """No id leads out of the folder, in `create` or `open`; nothing is made on the disk."""
    with pytest.raises(ValueError, match="session_id: expected 1 to 128 of"):
        Session.create(tmp_path / "t", ScriptedModel(), session_id=name)
    with pytest.raises(ValueError, match="session_id: expected 1 to 128 of"):
        Session.open(name, tmp_path / "t", ScriptedModel())
    assert not (tmp_path / "t").exists()


async def test_sessions_that_are_there_and_that_are_not(tmp_path: Path) -> None:
    """`create` refuses an id that has files, `open` one that has none; neither keeps a lock or makes a folder."""
    with pytest.raises(TraceReadError, match="session s1: expected a trace"):
        Session.open("s1", tmp_path / "t", ScriptedModel())
    assert not (tmp_path / "t").exists()
    async with Session.create(tmp_path / "t", ScriptedModel(["one"]), session_id="s1") as session:
        async for _ in session.run("go"):
            pass
    with pytest.raises(TraceWriteError, match="expected a new session, got one with files"):
        Session.create(tmp_path / "t", ScriptedModel(), session_id="s1")
    async with Session.open("s1", tmp_path / "t", ScriptedModel()):
        pass


async def test_a_session_without_a_run_leaves_nothing(tmp_path: Path) -> None:
    """Nothing is written before the first record of a run."""
    async with Session.create(tmp_path, ScriptedModel()) as session:
        assert session.path is None
    assert files_in(tmp_path) == []


async def test_secrets_are_masked(tmp_path: Path) -> None:
    """What is stored went through the redaction; what is streamed and kept in memory did not."""
    key = "sk-ant-" + "a1B2" * 12
    async with Session.create(tmp_path, ScriptedModel(["Noted."])) as session:
        shown = [record async for record in session.records(f"My key is {key}.")]
        assert session.path is not None and key not in session.path.read_text("utf-8")
    assert key in str(shown) and key in str(session.messages)


# ---------------------------------------------------------------- what may be given, what may be changed


async def test_prompts_of_all_kinds(tmp_path: Path) -> None:
    """Text, blocks (with texts between them one message), messages and records, alone and mixed."""
    image = Image("https://example.org/a.png")
    cases: list[tuple[Any, list[Any]]] = [
        ("a", [user("a")]),
        (["a", "b"], [user("a"), user("b")]),
        (image, [user(image)]),
        (["look", image, "well?"], [user("look", image, "well?")]),
        ([user("a"), "b"], [user("a"), user("b")]),
        (user_text("a"), [user("a")]),
        ([user_text("a"), image_url(image.url), "b"], [user("a", image), user("b")]),
        ([user_text("a", sender="server")], [user("a", sender="server")]),
    ]
    for given, expected in cases:
        async with Session.create(tmp_path, ScriptedModel(["ok"])) as session:
            async for _ in session.run(given):
                pass
        assert list(session.messages[:-1]) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "prompts: expected text, blocks, messages or records, got int"),
        (b"a", "got bytes"),
        (["a", None], r"prompts\[1\]: expected text, a block, a message or a record"),
        ([assistant("a")], r"prompts\[0\]: .* got AssistantMessage"),
        (ToolResultMessage("c", "t", "x"), r"prompts\[0\]: .* got ToolResultMessage"),
        (assistant_text("a"), r"prompts\[0\]: expected a complete record of the user's side, got 'text'"),
        (request_begin(), "got 'request_begin'"),
        ({"type": "model_msg"}, r"prompts\[0\]: expected a record, got one with a problem"),
        ({"role": "user", "content": "a"}, r"; user\(…\) and user_text\(…\) make prompts$"),
    ],
)
async def test_what_is_no_prompt(given: Any, words: str, tmp_path: Path) -> None:
    """It is said where it is given, and the session stays as it was."""
    async with Session.create(tmp_path, ScriptedModel()) as session:
        with pytest.raises((TypeError, ValueError), match=words):
            session.run(given)
        assert (session.messages, session.is_running) == ((), False)


async def test_what_changes_between_runs(tmp_path: Path) -> None:
    """Model, tools, system prompt and options of the next run; the trace shows the tools, and the model by its replies;
    after a compaction the next file's head names both. One opened again asks the recorded model."""
    first = ScriptedModel(["one", "[summary]short[/summary]"], model="first")
    second = ScriptedModel(["two", "three"], model="second")
    async with Session.create(tmp_path, first, session_id="s1", system_prompt="A", compaction=Summarize()) as session:
        async for _ in session.run("go"):
            pass
        async for _ in session.compact():
            pass
        assert session.messages == () and session.pending_summary is not None
        session.configure(model=second, tools=[add], system_prompt="B", options={"thinking": "high"})
        async for _ in session.run("on"):
            pass
        assert session.pending_summary is None, "a run has taken it"
        metas = [record["payload"] for record in session.history().records if is_meta(record)]
    asked = second.requests[0]
    assert (asked.system_prompt, dict(asked.options), [spec.name for spec in asked.tools]) == (
        "B", {"thinking": "high"}, ["add"],
    )  # fmt: skip
    assert [message.text for message in asked.messages] == ["[context_summary]\nshort\n[/context_summary]", "on"]
    assert [(meta["model_id"], meta["system_prompt"]) for meta in metas] == [("first", "A"), ("second", "B")]
    names = []
    async with Session.open(
        "s1", tmp_path, resolve=lambda name: names.append(name) or second, system_prompt="C"
    ) as session:
        assert (names, session.system_prompt, session.model) == (["scripted:second"], "B", second)


async def test_settings_that_are_not_the_callers(tmp_path: Path) -> None:
    """What belongs to one run, or to the session itself, and what there is not, is refused; the lock is not kept."""
    for wrong, words in (
        ({"abort": AbortSignal()}, r"^abort: .* belongs to one run: session.run\(…, abort=…\)$"),
        ({"session_usage": Usage()}, "^session_usage: .* the session counts itself$"),
        ({"no_such": 1}, "^Session: expected a field of Config, got 'no_such'$"),
        ({"max_turn": 1}, r"got 'max_turn' \(did you mean max_turns\?\)$"),
    ):
        with pytest.raises(TypeError, match=words):
            Session.create(tmp_path, ScriptedModel(), session_id="s1", **wrong)
    with pytest.raises(ValueError, match="policy: expected fail or warn") as refused:
        Session.create(tmp_path, ScriptedModel(), session_id="s1", policy="maybe")  # type: ignore[arg-type]
    Session.create(tmp_path, ScriptedModel(), session_id="s1").close()  # while somebody has the error
    assert refused.value is not None
    async with Session.create(tmp_path, ScriptedModel(["one"]), session_id="s1") as session:
        with pytest.raises(TypeError, match=r"^Session: .* got 'sytem_prompt' \(did you mean system_prompt\?\)$"):
            session.configure(sytem_prompt="Be brief.")
        async for _ in session.run("go"):
            pass
    with pytest.raises(ValueError, match="model: expected a model, or a function that gives scripted:script"):
        Session.open("s1", tmp_path)
    async with Session.open("s1", tmp_path, ScriptedModel()):
        pass


async def test_counters_go_on(tmp_path: Path) -> None:
    """Tokens add up over runs and processes; the turns of a context count for its compaction over runs too."""

    def reply(words: str) -> list[Any]:
        return [words, UsageChunk(Usage(1, 2, 3))]

    async with Session.create(tmp_path, ScriptedModel([reply("one")]), session_id="s1") as session:
        async for _ in session.run("go"):
            pass
        assert session.usage == Usage(1, 2, 3)
    model = ScriptedModel([reply("two"), reply("[summary]short[/summary]")])
    when = TurnsReach(2)
    async with Session.open("s1", tmp_path, model, compaction=Summarize(when=when)) as session:
        begins = [event async for event in session.run("on") if isinstance(event, CompactionBegin)]
        assert [(begin.reason, begin.turns, begin.context) for begin in begins] == [("turns", 2, 6)]
        assert session.usage == Usage(3, 6, 9)


async def test_a_summary_is_no_prompt_of_a_person(tmp_path: Path) -> None:
    """`user_prompt` hooks are asked about what somebody said, not about the summary that leads a run."""
    heard = []
    hooks = Hooks("ears", user_prompt=lambda message: heard.append(message.text))
    model = ScriptedModel(["one", "[summary]short[/summary]", "two"])
    async with Session.create(tmp_path, model, hooks=[hooks], compaction=Summarize()) as session:
        async for _ in session.run("go"):
            pass
        async for _ in session.compact():
            pass
        async for _ in session.run("on"):
            pass
    assert heard == ["go", "on"]


# ---------------------------------------------------------------- the run as an object


async def test_a_run_is_like_the_kernels(tmp_path: Path) -> None:
    """Inside `running` a step may time out and the run goes on; a wait for a retry can be skipped; two steps at once are
    a clear error."""
    gate = anyio.Event()
    model = ScriptedModel([[gate, "late"], ModelError("network", "gone"), "back"])
    async with Session.create(tmp_path, model, retry=Retry(waits=(60.0,))) as session:
        async with running(session.run("go")) as run:
            with anyio.move_on_after(0.05):
                async for _ in run:
                    pass
            assert session.is_running
            gate.set()
            async for _ in run:
                pass
        assert session.messages[-1].text == "late"
        run = session.run("again")
        skipped = []
        async for event in run:
            if isinstance(event, RequestEnd) and event.retry_in_ms is not None:
                async with anyio.create_task_group() as group:
                    group.start_soon(_skip, run, skipped)
                    following = await anext(run)
                assert isinstance(following, RequestBegin)
        assert skipped == [True] and session.messages[-1].text == "back"


async def _skip(run: SessionRun, skipped: list[bool]) -> None:
    while not run.skip_wait():
        await anyio.lowlevel.checkpoint()
    skipped.append(True)


async def test_two_steps_at_once(tmp_path: Path) -> None:
    """The second step is refused, the first one is not hurt."""
    gate = anyio.Event()
    async with Session.create(tmp_path, ScriptedModel([[gate, "late"]])) as session:
        run = session.run("go")
        events: list[Any] = []

        async def read() -> None:
            events.extend([event async for event in run])

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="stepped already"):
                await anext(run)
            gate.set()
    assert isinstance(events[-1], AgentEnd)


async def test_nothing_happens_before_the_first_step(tmp_path: Path) -> None:
    """A run that is never stepped asks nobody, writes nothing, and does not keep the session busy."""
    model = ScriptedModel(["one"])
    async with Session.create(tmp_path, model) as session:
        never = session.run("never")
        async for _ in session.run("go"):
            pass
        await never.aclose()
        assert [event async for event in never] == []
    assert model.asked == 1


async def test_a_setting_is_no_attribute(tmp_path: Path) -> None:
    """Set on the session it would do nothing; `configure` changes it."""
    model = ScriptedModel([])
    async with Session.create(tmp_path, model) as session:
        for name, value in (("max_turns", 3), ("tools", []), ("model", model)):
            with pytest.raises(AttributeError, match=name):
                setattr(session, name, value)
        session.configure(max_turns=3)
