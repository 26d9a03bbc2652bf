"""The page of settings: it lists what there is, with the defaults that there are; so does the help of `Config`."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_overloads
from unittest.mock import Mock

import attrs
import pytest

import agentloop
import agentloop.testing
from agentloop import AbortSignal, Agent, Config, Context, Retry, Tool, Usage, tool
from agentloop.compaction import Summarize
from agentloop.config import HookAnswer, Hooks, SystemClock, new_call_id
from agentloop.models._shared import THINKING_LEVELS, CommonOptions
from agentloop.omni.custom import REGISTRY
from agentloop.omni.redact import mask_secrets
from agentloop.session import Session

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")

NAMES = {**vars(agentloop), "SystemClock": SystemClock, "new_call_id": new_call_id, "mask_secrets": mask_secrets,
         "time": time, "REGISTRY": REGISTRY}  # fmt: skip
"""What the page's defaults are written with."""

REQUIRED = attrs.NOTHING


def listed(section: str) -> dict[str, Any]:
    """The names of a section, each with its default; `**name` for one that takes the rest."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^- `(\**\w+)`: (.*?)(?=^- |^#|^\n|\Z)", text, re.MULTILINE | re.DOTALL)
    names = [name for name, _ in entries]
    assert len(set(names)) == len(names), f"{section}: twice"
    return {name: name if name.startswith("**") else default_of(words) for name, words in entries}


def default_of(words: str) -> Any:
    match = re.match(r"`[^`]+`(?:,\s[^,`]+)?,\s(?:(required)|default\s`([^`]+)`)\.\s", words)
    assert match is not None, f"expected type, unit, default: {words[:80]}"
    return REQUIRED if match[1] else eval(match[2], dict(NAMES))


def fields_of(cls: type) -> dict[str, Any]:
    found = {}
    for each in attrs.fields(cls):
        if each.init:
            factory = isinstance(each.default, attrs.Factory)  # type: ignore[arg-type]
            found[each.name] = each.default.factory() if factory else each.default
    return found


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            found[f"**{name}"] = f"**{name}"
        elif name != "self":
            found[name] = REQUIRED if each.default is inspect.Parameter.empty else each.default
    return found


SECTIONS: dict[str, dict[str, Any]] = {
    "Config": fields_of(Config),
    "Retry": fields_of(Retry),
    "Hooks": fields_of(Hooks),
    "HookAnswer": fields_of(HookAnswer),
    "Context": fields_of(Context),
    "Tool and @tool": fields_of(Tool),
    "Session.create": parameters_of(Session.create),
    "Session.open": parameters_of(Session.open),
    "Session.run": parameters_of(Session.run),
    "Agent": parameters_of(Agent),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_listed(section: str) -> None:
    """Names and defaults of the section are those of the class or signature, nothing more and nothing less."""
    page = listed(section)
    assert sorted(page) == sorted(SECTIONS[section])
    for name, default in SECTIONS[section].items():
        same = type(page[name]) is SystemClock if name == "clock" else page[name] == default
        assert same, f"{section}: {name}: the page says {page[name]!r}, the code {default!r}"


def test_there_is_no_other_section() -> None:
    """Each heading of the page is compared above."""
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == list(SECTIONS)


def test_the_options_of_a_request_are_listed() -> None:
    """The table has the common options of all adapters, and for `thinking` its levels."""
    (table,) = re.findall(r"^\| option \| value \|\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    rows = {name: value for names, value in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", names)}  # fmt: skip
    assert list(rows) and set(rows) == {each.name for each in attrs.fields(CommonOptions)} - {"extra"}
    assert tuple(re.findall(r'"(\w+)"', rows["thinking"])) == THINKING_LEVELS


def test_the_options_of_the_decorator() -> None:
    """`@tool` takes all of `Tool` but the function itself; what is not given comes from the function."""
    for overload in get_overloads(tool):
        options = parameters_of(overload)
        options.pop("function", None)
        fields = {name: default for name, default in fields_of(Tool).items() if name != "execute"}
        assert options == {name: None if default is REQUIRED else default for name, default in fields.items()}


def test_the_help_of_config_names_each_field() -> None:
    """Whoever asks Python finds every field there, and the way to the page."""
    said = inspect.getdoc(Config) or ""
    for name in fields_of(Config):
        assert f"`{name}`" in said, name
    assert "docs/configuration.md" in said


def wrong() -> Iterator[tuple[dict[str, Any], str]]:
    """Settings that cannot be, and the words that refuse them."""
    for name in ("approval_timeout", "tool_timeout", "idle_timeout"):
        yield {name: -1}, f"Config.{name}: expected a number from 0, or None, got -1"
    for name in ("max_parallel_tools", "max_result_characters", "max_turns"):
        yield {name: 0}, f"Config.{name}: expected a number from 1, or None, got 0"
        yield {name: "3"}, f"Config.{name}: expected a number from 1, or None, got '3'"
    yield {"deadline": "soon"}, "Config.deadline: expected a number, or None, got 'soon'"
    yield {"idle_timeout": float("nan")}, "Config.idle_timeout: expected a number from 0, or None, got nan"
    for name, lowest in (("max_cut_replies", 1), ("abort_grace", 0), ("run_ahead", 0)):
        yield {name: None}, f"Config.{name}: expected a number from {lowest}, got None"
    yield {"tool_execution": "serial"}, "Config.tool_execution: expected 'parallel' or 'sequential', got 'serial'"
    yield {"approval_order": ""}, "Config.approval_order: expected 'one_at_a_time' or 'all_at_once', got ''"
    yield {"hooks": [None]}, "Config.hooks[0]: expected Hooks, got NoneType"
    yield {"hooks": print}, "Config.hooks: expected a sequence of Hooks, got builtin_function_or_method"
    yield (
        {"model": agentloop.testing.ScriptedModel},
        "Config.model: expected a model, got the class ScriptedModel itself",
    )
    yield {"compaction": Summarize}, "Config.compaction: expected a compaction, got the class Summarize itself"
    yield {"compaction": 3}, "Config.compaction: expected a compaction, got 3"
    odd = SimpleNamespace(due=print, mode="summarise")
    yield {"compaction": odd}, "Config.compaction.mode: expected 'summarize' or 'discard', got 'summarise'"
    unsaid = SimpleNamespace(due=print)
    yield {"compaction": unsaid}, "Config.compaction.mode: expected 'summarize' or 'discard', got None"
    yield {"tool_source": []}, "Config.tool_source: expected a source of tools, such as McpServers([…]), got []"
    yield {"clock": None}, "Config.clock: expected a clock, got None"
    yield {"session_usage": 3}, "Config.session_usage: expected a Usage, got 3"
    yield {"options": "hot"}, "Config.options: expected a mapping of names to values, got 'hot'"
    yield {"retry": 3}, "Config.retry: expected a Retry or None, got 3"
    yield {"abort": "now"}, "Config.abort: expected an AbortSignal or None, got 'now'"
    callbacks = [name for name in fields_of(Config) if name.startswith(("get_", "before_", "after_"))]
    for name in (*callbacks, "approve", "convert_to_llm", "finish_turn", "prepare_request", "transform_context"):
        yield {name: "x"}, f"Config.{name}: expected a function or None, got 'x'"
    yield {"wait_for_steering": True}, "Config.wait_for_steering: expected a function or None, got True"


@pytest.mark.parametrize(("settings", "words"), list(wrong()))
def test_a_setting_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    """It is refused where it is written, by name, and not in the middle of a run."""
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(words)}$"):
        Config(**{"model": agentloop.testing.ScriptedModel([]), **settings})


def test_what_only_passes_for_a_value_is_no_setting() -> None:
    """A mock may have the class of what it stands for, and need not have what that has."""
    for name, kind in (("hooks", Hooks), ("retry", Retry), ("abort", AbortSignal), ("session_usage", Usage)):
        mock = Mock(spec=kind)
        with pytest.raises(TypeError, match=rf"^Config\.{name}.*: expected .*Mock"):
            Config(**{"model": agentloop.testing.ScriptedModel([]), name: [mock] if name == "hooks" else mock})
    with pytest.raises(TypeError, match=r"^tools\[0\]: expected a Tool \(use @tool\), got Mock$"):
        Context(tools=[Mock(spec=Tool)])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"waits": (1, -1)}, "Retry.waits[1]: expected seconds from 0, got -1"),
        ({"waits": ["2"]}, "Retry.waits[0]: expected seconds from 0, got '2'"),
        ({"max_wait": None}, "Retry.max_wait: expected seconds from 0, got None"),
    ],
)
def test_a_wait_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    """The ladder of a retry is refused likewise."""
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Retry(**settings)


@pytest.mark.parametrize("name", ["pre_tool_use", "user_prompt", "stop"])
def test_a_hook_that_cannot_be_called(name: str) -> None:
    """It would fail at each call and decide nothing: it is refused where it is written."""
    with pytest.raises(TypeError, match=f"^Hooks.{name}: expected a function or None, got 3$"):
        Hooks("guard", **{name: 3})  # type: ignore[arg-type]


def test_waits_that_are_no_list() -> None:
    """One number in the place of the waits is answered with how to write them."""
    with pytest.raises(
        TypeError, match=r"^Retry.waits: expected the seconds of each wait, such as \(2, 4, 8\), got 3$"
    ):
        Retry(3)  # type: ignore[arg-type]
