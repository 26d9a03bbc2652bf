"""The Gemini API: what goes out, what comes in over the wire, and that every recorded request is rebuilt."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import ModelError
from agentloop.loop import agent_loop
from agentloop.messages import (
    AssistantMessage,
    CustomMessage,
    Image,
    InlineData,
    InlineThinking,
    Text,
    Thinking,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    Usage,
    UserMessage,
    user,
)
from agentloop.model import ModelRequest
from agentloop.models._gemini_schema import MAX_NODES, function_schema
from agentloop.models.gemini import NO_SIGNATURE, Gemini, request_body, request_url
from agentloop.models.registry import resolve
from agentloop.testing.wire import Case, Play, WireServer, load_cases, play_case, run_model
from agentloop.tools import tool
from tests import adapters

MODEL = "gemini-2.5-flash"
NEW = "gemini-3-flash-preview"
EVENTS = {"content-type": "text/event-stream"}
PICTURE = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}


# ---------------------------------------------------------------- helpers


def reply(*blocks: Any, provider: str = "google", model: str = MODEL, **fields: Any) -> AssistantMessage:
    return AssistantMessage(blocks, "completed", provider=provider, model=model, **{"finish_reason": "stop", **fields})


def result(call_id: str, *content: Any, name: str = "look", **fields: Any) -> ToolResultMessage:
    return ToolResultMessage(call_id, name, content, **fields)


def body(
    *messages: Any, system: str | None = None, tools: Any = (), model: str = MODEL, **options: Any
) -> dict[str, Any]:
    return request_body(ModelRequest(system, messages or (user("x"),), tools, options), model=model)


def contents(*messages: Any, **options: Any) -> Any:
    return body(*messages, **options)["contents"]


def parts(*messages: Any, **options: Any) -> Any:
    """The parts of the last content."""
    return contents(*messages, **options)[-1]["parts"]


def config(**options: Any) -> Any:
    return body(**options).get("generationConfig")


def refusal(*messages: Any, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        body(*messages, **options)
    return caught.value


def adapter(address: str, **options: Any) -> Gemini:
    return Gemini(options.pop("model", MODEL), base_url=address, api_key="test-key", **options)


def event(*parts: Any, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, **({"finishReason": reason} if reason else {})}
    return {"candidates": [candidate], "responseId": "r", **fields}


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(item).encode() + b"\r\n\r\n" for item in events)


def say(*texts: str) -> list[Any]:
    return [*(event({"text": text}) for text in texts), event(reason="STOP", usageMetadata={"promptTokenCount": 3})]


# ---------------------------------------------------------------- history out


def test_the_least_request() -> None:
    """Nothing is sent that nobody asked for."""
    assert body(user("Hi")) == {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}


def test_system_prompt_and_tools() -> None:
    """The prompt has a place of its own; a tool's schema goes as JSON Schema."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    made = body(user("Hi"), system="Be brief.", tools=[ToolSpec("look", "Look.", schema), ToolSpec("wait")])
    assert made["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert made["tools"][0]["functionDeclarations"][0] == {
        "name": "look", "description": "Look.", "parametersJsonSchema": schema,
    }  # fmt: skip
    assert "systemInstruction" not in body(user("Hi"), system="  ")


def test_parts_of_the_same_model_go_back_as_they_came() -> None:
    """Signed and unsigned stretches of a text apart, opaque parts in place, a call with its id and signature."""
    code = {"executableCode": {"code": "1"}, "thoughtSignature": "C"}
    sent = parts(
        reply(
            Thinking("a summary"),
            Thinking("hm!", {"parts": [{"start": 2, "end": 3, "thoughtSignature": "T"}]}),
            Text("a😀bc", {"parts": [{"start": 3, "end": 4, "thoughtSignature": "S"}, {"start": 5, "end": 5, "x": 1}]}),
            Text("", code),
            Text("plain"),
            ToolCall("made-up", "look", '{"b": 1, "a": 1.0}', {"thoughtSignature": "L", "functionCall": {"id": "own"}}),
            InlineData("iVBO", "image/png", {"thoughtSignature": "P", "inlineData": {"displayName": "n"}}),
            InlineThinking("iVBO", "image/png", {"thought": True}),
        )
    )
    assert sent == [
        {"text": "hm", "thought": True},
        {"text": "!", "thought": True, "thoughtSignature": "T"},
        {"text": "a😀"},
        {"text": "b", "thoughtSignature": "S"},
        {"text": "c"},
        {"text": "", "x": 1},
        code,
        {"text": "plain"},
        {"functionCall": {"id": "own", "name": "look", "args": {"b": 1, "a": 1.0}}, "thoughtSignature": "L"},
        {"inlineData": {"mimeType": "image/png", "data": "iVBO", "displayName": "n"}, "thoughtSignature": "P"},
        {**PICTURE, "thought": True},
    ]
    assert list(sent[8]["functionCall"]["args"]) == ["b", "a"]


@pytest.mark.parametrize("other", [{"provider": "vertex"}, {"model": "gemini-2.5-pro"}])
def test_thinking_and_fidelity_do_not_cross_models(other: dict[str, str]) -> None:
    """Of another's reply the texts and calls are told, without ids and signatures."""
    sent = parts(
        reply(
            Thinking("hm", {"parts": [{"start": 0, "end": 2, "thoughtSignature": "T"}]}),
            InlineThinking("iVBO", "image/png"),
            Text("a", {"parts": [{"start": 0, "end": 1, "thoughtSignature": "S"}]}),
            Text("", {"executableCode": {}}),
            InlineData("iVBO", "image/png"),
            ToolCall("c", "look", "", {"thoughtSignature": "L", "functionCall": {"id": "own"}}),
            **other,
        )
    )
    assert sent == [{"text": "a"}, {"text": "[image/png]"}, {"functionCall": {"name": "look", "args": {}}}]


def test_gemini_3_wants_a_mark_on_calls_that_another_model_made() -> None:
    """On the first of a reply; those of its own go as they came."""
    calls = (ToolCall("a", "look"), ToolCall("b", "look"))
    foreign = parts(reply(*calls), model=NEW)
    assert [part.get("thoughtSignature") for part in foreign] == [NO_SIGNATURE, None]
    assert all("thoughtSignature" not in part for part in parts(reply(*calls, model=NEW), model=NEW))
    assert all("thoughtSignature" not in part for part in parts(reply(*calls, model="other")))


def test_results_of_a_batch_stand_in_one_content_with_the_ids_that_the_api_gave() -> None:
    """A made-up id stays here; errors say so; what follows from the user joins them."""
    own = ToolCall("own#2", "look", "{}", {"functionCall": {"id": "own"}})
    history = (
        user("go"),
        reply(own, ToolCall("made", "look")),
        result("own#2", "1", "2"),
        result("made", "no", is_error=True),
        user("so?"),
    )
    assert contents(*history)[2:] == [
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "own", "name": "look", "response": {"output": "1\n2"}}},
                {"functionResponse": {"name": "look", "response": {"error": "no"}}},
                {"text": "so?"},
            ],
        }
    ]


def test_pictures_in_results_stand_inside_for_gemini_3() -> None:
    """As parts of the response; kinds that do not fit there, and addresses, follow it."""
    calls = reply(ToolCall("a", "look"), ToolCall("b", "look"), model=NEW)
    history = (
        calls,
        result("a", "see", InlineData("iVBO", "image/png"), InlineData("UklG", "audio/wav")),
        result("b", "ok"),
    )
    first, second, *media = parts(*history, model=NEW)
    assert first["functionResponse"]["parts"] == [PICTURE]
    assert first["functionResponse"]["response"] == {"output": "see\n[1 attached: see below]"}
    assert second == {"functionResponse": {"name": "look", "response": {"output": "ok"}}}
    assert media == [
        {"text": "Attached to the result of look:"},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}},
    ]


def test_pictures_in_results_follow_them_for_those_before() -> None:
    """Behind the last result of the batch, with a word whose they are."""
    calls = reply(ToolCall("a", "look"), ToolCall("b", "look"))
    history = (calls, result("a", Image("data:image/png;base64,iVBO")), result("b", "ok"), user("so?"))
    sent = parts(*history)
    assert [list(part)[0] for part in sent] == ["functionResponse", "functionResponse", "text", "inlineData", "text"]
    assert sent[3] == PICTURE


def test_what_a_user_may_say() -> None:
    """Texts, pictures inline and by address, data of any kind, and parts of the caller's own."""
    own = {"fileData": {"fileUri": "https://x/f", "mimeType": "video/mp4"}}
    sent = parts(
        UserMessage(
            (
                Text("look"),
                Image("data:image/png;base64,iVBO"),
                Image("https://x.example/a.jpg?size=1"),
                Image("gs://bucket/odd"),
                InlineData("JVBE", "application/pdf"),
                Text("", own),
            )
        )
    )
    assert sent == [
        {"text": "look"},
        PICTURE,
        {"fileData": {"fileUri": "https://x.example/a.jpg?size=1", "mimeType": "image/jpeg"}},
        {"fileData": {"fileUri": "gs://bucket/odd"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}},
        own,
    ]


class Note(CustomMessage):
    role = "note"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (UserMessage((Text("a"), ToolCall("c", "look"))), "messages[0].content[1]"),
        (UserMessage((Image("ftp://x"),)), "messages[0].content[0]"),
        (Note(), "messages[0]"),
        (reply(), "messages"),
    ],
)
def test_what_cannot_go_out_is_named_with_its_place(message: Any, place: str) -> None:
    """The error names the message or block; it is raised before anything is sent."""
    error = refusal(message)
    assert error.code == "invalid_input"
    assert error.message.startswith(f"{place}:")


@pytest.mark.parametrize("arguments", ["", "  ", "[1]", "no", '{"a": NaN}', '{"a": 1e999}'])
def test_arguments_go_out_as_an_object(arguments: str) -> None:
    """Whatever a model wrote: a history with nonsense in it must not make every later request fail."""
    assert parts(reply(ToolCall("c", "look", arguments)))[0]["functionCall"]["args"] == {}


def test_names_that_the_api_cannot_have_are_made_legal_the_same_way_each_time() -> None:
    """Letters, digits, dots, colons, dashes; a letter first; our own name comes back."""
    names = ["a/b", "1st", "ok.name:x-y", "ü"]
    made = body(tools=[ToolSpec(name) for name in names])["tools"][0]["functionDeclarations"]
    sent = [function["name"] for function in made]
    assert sent[2] == "ok.name:x-y"
    assert all(name.replace("_", "a")[0].isalpha() and name.isascii() and len(name) <= 64 for name in sent)
    assert len(set(sent)) == 4
    history = (reply(ToolCall("c", "a/b")), result("c", "1", name="a/b"))
    call, response = (content["parts"][0] for content in contents(*history))
    assert call["functionCall"]["name"] == response["functionResponse"]["name"] == sent[0]


def test_a_request_is_the_same_from_turn_to_turn() -> None:
    """What was sent is the beginning of what is sent next; building it leaves the history alone."""
    history = [
        user("a"),
        reply(ToolCall("c", "look", "{}", {"functionCall": {"id": "i"}})),
        result("c", "1"),
        reply("b"),
        user("c"),
    ]
    before = repr(history)
    first, second = contents(*history[:3]), contents(*history)
    assert second[: len(first)] == first
    assert repr(history) == before


# ---------------------------------------------------------------- schemas


def test_references_in_a_schema_are_written_out() -> None:
    """With what stands beside them; definitions and dialect are gone then."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/P", "description": "here"},
            "b": {"type": "array", "items": {"$ref": "#/definitions/Q~1x"}},
            "c": {"anyOf": [{"$ref": "#/properties/a"}, {"type": "null"}]},
            "$ref": {"type": "string"},
        },
        "$defs": {"P": {"type": "object", "properties": {"q": {"$ref": "#/definitions/Q~1x"}}}},
        "definitions": {"Q/x": {"enum": [1]}},
    }
    point = {"type": "object", "properties": {"q": {"enum": [1]}}, "description": "here"}
    assert function_schema(schema) == {
        "type": "object",
        "properties": {
            "a": point,
            "b": {"type": "array", "items": {"enum": [1]}},
            "c": {"anyOf": [point, {"type": "null"}]},
            "$ref": {"type": "string"},
        },
    }


def doubling(steps: int) -> dict[str, Any]:
    both = {
        str(n): {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}, "b": {"$ref": f"#/$defs/{n + 1}"}}}
        for n in range(steps)
    }
    return {"$ref": "#/$defs/0", "$defs": {**both, str(steps): {}}}


def chain(steps: int) -> dict[str, Any]:
    return {
        "$ref": "#/$defs/0",
        "$defs": {**{str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(steps)}, str(steps): {}},
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"next": {"$ref": "#"}}},
        {"$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}}}, "properties": {"t": {"$ref": "#/$defs/T"}}},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": {"a": {"$ref": "https://example.org/schema.json"}}},
        doubling(40),
        chain(2_000),
        {"enum": list(range(MAX_NODES))},
    ],
    ids=["itself", "a tree", "nowhere", "outside", "doubling", "a long chain", "large"],
)
def test_what_cannot_be_written_out_stays(schema: dict[str, Any]) -> None:
    """Recursion, dangling references, and what would become too large."""
    assert function_schema({"$schema": "x", **schema}) == schema


# ---------------------------------------------------------------- options


def test_common_options_in_the_provider_s_words() -> None:
    """Each in its place; all others go into the body, the configurations laid over ours."""
    made = body(
        user("x"),
        tools=[ToolSpec("look")],
        temperature=0.5,
        top_p=0.9,
        max_tokens=100,
        seed=3,
        stop="END",
        tool_choice="required",
        parallel_tool_calls=True,
        safetySettings=[{"category": "C", "threshold": "BLOCK_NONE"}],
        generationConfig={"topK": 5, "temperature": 1},
        toolConfig={"includeServerSideToolInvocations": True},
        provider_tools=[{"googleSearch": {}}],
        cachedContent=None,
    )
    assert made["generationConfig"] == {
        "temperature": 1, "topP": 0.9, "maxOutputTokens": 100, "stopSequences": ["END"], "seed": 3, "topK": 5,
    }  # fmt: skip
    assert made["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}, "includeServerSideToolInvocations": True}
    assert made["safetySettings"] == [{"category": "C", "threshold": "BLOCK_NONE"}]
    assert [list(entry) for entry in made["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert "cachedContent" not in made


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ({"name": "look"}, {"mode": "ANY", "allowedFunctionNames": ["look"]}),
    ],
)
def test_tool_choices(choice: Any, sent: Any) -> None:
    """In the provider's words, and only where there are tools."""
    assert body(tools=[ToolSpec("look")], tool_choice=choice)["toolConfig"] == {"functionCallingConfig": sent}
    assert "toolConfig" not in body(tool_choice=choice)


@pytest.mark.parametrize(
    ("model", "level", "sent"),
    [
        ("gemini-2.5-flash", "off", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "minimal", {"thinkingBudget": 512}),
        ("gemini-2.5-flash", "high", {"thinkingBudget": 24_576}),
        ("gemini-2.5-flash-lite", "max", {"thinkingBudget": 24_576}),
        ("gemini-2.5-pro", "low", {"thinkingBudget": 1_024}),
        ("gemini-2.5-pro", "max", {"thinkingBudget": 32_768}),
        ("gemini-3-pro-preview", "minimal", {"thinkingLevel": "low"}),
        ("gemini-3-pro-preview", "max", {"thinkingLevel": "high"}),
        ("gemini-3.1-pro-preview", "medium", {"thinkingLevel": "medium"}),
        ("gemini-3-flash-preview", "minimal", {"thinkingLevel": "minimal"}),
        ("gemini-4.5-flash", "medium", {"thinkingLevel": "medium"}),
        ("gemini-flash-latest", "high", {"thinkingLevel": "high"}),
        ("gemini-2.0-flash", "off", None),
    ],
)
def test_thinking_levels(model: str, level: str, sent: dict[str, Any] | None) -> None:
    """A budget where the model knows budgets, a level where it knows levels; thoughts are shown."""
    shown = {} if level == "off" else {"includeThoughts": True}
    assert config(model=model, thinking=level) == (None if sent is None else {"thinkingConfig": {**shown, **sent}})


@pytest.mark.parametrize(
    ("model", "level"),
    [
        ("gemini-2.5-pro", "off"),
        ("gemini-3-flash-preview", "off"),
        ("gemini-3-pro-preview", "medium"),
        ("gemini-2.0-flash", "low"),
        ("gemini-1.5-pro", "max"),
    ],
)
def test_levels_that_a_model_cannot_do_are_refused_before_it_is_asked(model: str, level: str) -> None:
    """The error is `unsupported`, and names the model."""
    error = refusal(model=model, thinking=level)
    assert error.code == "unsupported"
    assert model in error.message


def test_thinking_may_be_the_api_s_own_object() -> None:
    """What the levels cannot say goes to the API unchanged."""
    assert config(thinking={"thinkingBudget": -1}) == {"thinkingConfig": {"thinkingBudget": -1}}


def test_one_call_at_a_time_cannot_be_asked_for() -> None:
    """The API has no word for it."""
    assert refusal(parallel_tool_calls=False).code == "unsupported"
    assert refusal(thinking="much").code == "invalid_input"


def test_where_a_request_goes() -> None:
    """Below the address, by model; one with a slash says its collection itself."""
    assert request_url("gemini-3-pro", None).startswith(
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro:"
    )
    assert (
        request_url("tunedModels/a b", "https://x.example/v1/")
        == "https://x.example/v1/tunedModels/a%20b:streamGenerateContent?alt=sse"
    )
    assert (
        request_url("m?x#y", "https://x.example") == "https://x.example/models/m%3Fx%23y:streamGenerateContent?alt=sse"
    )


# ---------------------------------------------------------------- over the wire


@pytest.mark.anyio
async def test_a_reply_over_the_wire(server: WireServer) -> None:
    """Asked at the API's path with the key in its header, and the events become the reply."""
    address = server.play(Play(sse(*say("Grüß ", "dich")), headers=EVENTS, chop="1"))
    outcome = await run_model(adapter(address, options={"temperature": 0.5}), options={"seed": 1})
    assert outcome.message is not None
    assert (outcome.message.text, outcome.message.provider, outcome.message.model) == ("Grüß dich", "google", MODEL)
    assert outcome.usage == Usage(0, 3, 0)
    seen = server.requests[-1]
    assert (seen.path, seen.query) == (f"/models/{MODEL}:streamGenerateContent", {"alt": "sse"})
    assert seen.headers["x-goog-api-key"] == "test-key"
    assert seen.json["generationConfig"] == {"temperature": 0.5, "seed": 1}


@pytest.mark.anyio
async def test_an_array_is_a_stream_as_well(server: WireServer) -> None:
    """A server that does not know `alt=sse` sends an array, or one object where it does not stream."""
    for answer in (say("Hi", "!"), event({"text": "Hi!"}, reason="STOP")):
        play = Play(json.dumps(answer, indent=2).encode(), headers={"content-type": "application/json"}, chop="5")
        outcome = await run_model(adapter(server.play(play)))
        assert outcome.message is not None
        assert (outcome.message.text, outcome.committed) == ("Hi!", True)


@pytest.mark.anyio
async def test_a_run_sends_signatures_back_with_the_result(server: WireServer) -> None:
    """Through the kernel: two calls without ids, one signed, and their results by their order."""
    asks = [
        event({"text": "hm", "thought": True}),
        event(
            {"functionCall": {"name": "double", "args": {"n": 2}}, "thoughtSignature": "SIG"},
            {"functionCall": {"name": "double", "args": {"n": 3}}},
            reason="STOP",
        ),
    ]
    plays = [Play(sse(*asks), headers=EVENTS), Play(sse(*say("4, 6")), headers=EVENTS)]

    @tool
    def double(n: int) -> str:
        """Double a number."""
        return str(2 * n)

    run = agent_loop([user("twice?")], Context(tools=(double,)), Config(model=adapter(server.play(*plays), model=NEW)))
    events = [item async for item in run]
    assert events[-1].stop_reason == "completed"
    assert server.requests[-1].json["contents"][1:] == [
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "double", "args": {"n": 2}}, "thoughtSignature": "SIG"},
                {"functionCall": {"name": "double", "args": {"n": 3}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "double", "response": {"output": "4"}}},
                {"functionResponse": {"name": "double", "response": {"output": "6"}}},
            ],
        },
    ]


@pytest.mark.anyio
async def test_an_error_behind_content_keeps_what_came(server: WireServer) -> None:
    """In an event, in the array, or as plain JSON behind the events."""
    error = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy", "details": [{"retryDelay": "4s"}]}}
    before = event({"text": "Hello"})
    for content in (
        sse(before, error),
        json.dumps([before, error]).encode(),
        sse(before) + json.dumps(error, indent=2).encode(),
    ):
        outcome = await run_model(adapter(server.play(Play(content, headers=EVENTS))))
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retry_after) == ("overloaded", 4.0)
        assert outcome.message is not None
        assert outcome.message.text == "Hello"


@pytest.mark.anyio
async def test_a_connection_that_breaks_behind_the_end_changes_nothing(server: WireServer) -> None:
    """The last event was there; in the streams of old, which end many times, a break is a break."""
    content = sse(*say("Hi"))
    outcome = await run_model(adapter(server.play(Play(content, headers=EVENTS, drop_at=len(content)))))
    assert outcome.committed
    old = content.replace(b'"responseId": "r"', b'"other": "r"')
    outcome = await run_model(adapter(server.play(Play(old, headers=EVENTS, drop_at=len(old)))))
    assert outcome.error is not None
    assert outcome.error.code == "network"


@pytest.mark.anyio
async def test_a_missing_key_is_auth(server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which variables hold one; a key in the environment goes to Google alone."""
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    outcome = await run_model(Gemini(MODEL))
    assert outcome.error is not None
    assert outcome.error.code == "auth"
    assert "GEMINI_API_KEY or GOOGLE_API_KEY" in outcome.error.message
    monkeypatch.setenv("GOOGLE_API_KEY", "secret-key")
    await run_model(Gemini(MODEL, base_url=server.play(Play(sse(*say("x")), headers=EVENTS))))
    assert "secret-key" not in str(server.requests[-1].headers)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["gemini", "google"])
async def test_the_registry_knows_it_and_both_variables(
    server: WireServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Under the name of the API and under that of the provider; the first variable that is set counts."""
    address = server.play(Play(sse(*say("x")), headers=EVENTS))
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    outcome = await run_model(resolve(f"{name}:{MODEL}", base_url=address))
    assert outcome.message is not None
    assert (outcome.message.provider, outcome.message.model) == ("google", MODEL)
    assert server.requests[-1].headers["x-goog-api-key"] == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    await run_model(resolve(f"{name}:{MODEL}", base_url=address))
    assert server.requests[-1].headers["x-goog-api-key"] == "first"


def test_the_callable_says_who_it_is() -> None:
    """Provider and model are attributes, and it is no coroutine function."""
    model = Gemini(MODEL, base_url="http://127.0.0.1:1")
    assert (model.provider, model.model) == ("google", MODEL)
    assert repr(model) == f"Gemini({MODEL!r}, provider='google')"
    assert not inspect.iscoroutinefunction(model.__call__)


# ---------------------------------------------------------------- recorded responses


def recorded(folder: Path, kinds: tuple[str, ...] = ("stream", "error")) -> list[Case]:
    return load_cases(folder / "wire", api="google_gemini", kinds=kinds)


@pytest.mark.anyio
async def test_every_recorded_response(shared: Path) -> None:
    """Blocks, deltas, end, usage and fidelity of every stream, code and wait of every error."""
    cases = recorded(shared)
    assert len(cases) >= 35
    assert await adapters.found_differences(cases) == {}


@pytest.mark.anyio
@pytest.mark.parametrize("chop", ["event", "random:3"])
async def test_recorded_responses_chopped(shared: Path, chop: str) -> None:
    """Wherever the network cuts the bytes, nothing changes."""
    assert await adapters.found_differences([case for case in recorded(shared) if len(case.body) < 60_000], chop) == {}


def test_the_smallest_recorded_responses_cut_at_every_byte(shared: Path) -> None:
    """Byte by byte through the connection, on one event loop."""
    cases = [case for case in recorded(shared) if len(case.body) < 3_000]
    assert len(cases) >= 8
    assert anyio.run(adapters.found_differences, cases, "1") == {}


def test_every_recorded_follow_up_is_rebuilt(shared: Path) -> None:
    """From our messages of the earlier replies each recorded client's next contents come out again."""
    talks: dict[str, list[Case]] = {}
    for case in recorded(shared, ("stream", "json")):
        if case.entry["conversation"]:
            talks.setdefault(case.name.rpartition("-")[0], []).append(case)
    assert anyio.run(rebuild, list(talks.values())) >= 12


async def rebuild(talks: list[list[Case]]) -> int:
    """Go through conversations, turn by turn; the number of requests that were compared."""
    compared = 0
    with WireServer() as running:
        for turns in talks:
            history: list[Any] = []
            known = 0
            for case in sorted(turns, key=lambda case: case.entry["conversation"]["turn"]):
                said = case.meta["request"]["body"]["contents"]
                news = said[known + 1 :] if known else said
                history += [message for content in news for message in given(content, history)]
                provider, model = case.name.partition("/")[0], case.entry["model"]
                made = request_body(ModelRequest(None, history, (), {}), model=model, provider=provider)["contents"]
                assert plain(made) == plain(said), case.name
                compared += known > 0
                outcome = await play_case(case, running)
                assert outcome.message is not None
                history.append(outcome.message)
                known = len(said)
    return compared


def given(content: Any, history: list[Any]) -> Iterator[Any]:
    """The user's side of recorded contents, as an application would have given it."""
    assert content["role"] == "user"
    calls = iter(history[-1].tool_calls if history and isinstance(history[-1], AssistantMessage) else ())
    for part in content["parts"]:
        if "text" in part:
            yield user(part["text"])
        else:
            name = (part.get("functionResponse") or part["function_response"])["name"]
            yield ToolResultMessage(next(calls).id, name, ("done",))


def plain(contents: Any) -> Any:
    """Contents without what clients write differently: names of fields, ids that they made up, how a result is told,
    and a text without anything."""
    camel = {"function_call": "functionCall", "function_response": "functionResponse"}
    made = []
    for content in contents:
        parts = []
        for part in content["parts"]:
            part = {camel.get(key, key): value for key, value in part.items()}
            if "functionCall" in part:
                part["functionCall"] = own(part["functionCall"])
            if "functionResponse" in part:
                part["functionResponse"] = own({**part["functionResponse"], "response": None})
            if "thoughtSignature" in part:  # one client wrote the base64 of URLs
                part["thoughtSignature"] = part["thoughtSignature"].translate(str.maketrans("-_", "+/"))
            if any(part.get("thoughtSignature", "") == before.get("thoughtSignature") for before in parts):
                del part["thoughtSignature"]  # another wrote the first call's to those beside it
            if part != {"text": ""}:
                parts.append(part)
        made.append({"role": content["role"], "parts": parts})
    return made


def own(value: dict[str, Any]) -> dict[str, Any]:
    """Without an id of a client's making: the API's have eight letters and digits."""
    return {key: item for key, item in value.items() if key != "id" or len(str(item)) == 8}
