"""What `--model` and `--tools` mean: from the words of the command line to models and tools."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from agentloop.cli import UsageError
from agentloop.cli.tools import example_tools
from agentloop.errors import MissingExtra, ToolDefinitionError
from agentloop.model import Model
from agentloop.models.offline import OfflineModel
from agentloop.tools import Tool, tool

_ADAPTERS = {
    "openai": ("agentloop.models.openai_chat", "OpenAIChat", "OPENAI_API_KEY"),
    "openai-responses": ("agentloop.models.openai_responses", "OpenAIResponses", "OPENAI_API_KEY"),
    "anthropic": ("agentloop.models.anthropic", "Anthropic", "ANTHROPIC_API_KEY"),
}
"""By the word before the colon: module, class, and the variable that holds the key."""

MODELS_HELP = f"offline, or {', '.join(f'{name}:NAME' for name in _ADAPTERS)}"


def choose_model(words: str, base_url: str | None, *, pace: float = 0.0) -> Model:
    """The model of `--model`. Raises `UsageError`; `pace` is for somebody who watches the offline model."""
    provider, _, name = words.partition(":")
    if words == "offline":
        if base_url is not None:
            raise UsageError("--base-url: expected with a model of a provider, got it with the offline model")
        return OfflineModel(pace)
    if provider not in _ADAPTERS or not name:
        raise UsageError(f"--model: expected {MODELS_HELP}; got {words!r}")
    module, adapter, variable = _ADAPTERS[provider]
    options: dict[str, Any] = {}
    if base_url is not None:
        options = {"base_url": base_url, "api_key": os.environ.get(variable) or "none"}
    elif not os.environ.get(variable):
        raise UsageError(f"--model {words}: expected a key in {variable}, which is not set")
    try:
        return getattr(importlib.import_module(module), adapter)(name, **options)  # type: ignore[no-any-return]
    except (MissingExtra, ValueError) as error:
        raise UsageError(f"--model {words}: {error}") from None


def choose_tools(words: Sequence[str], *, examples: bool) -> tuple[Tool, ...]:
    """The tools of `--tools`, and the example tools unless another one has the name. Raises `UsageError`."""
    chosen: dict[str, Tool] = {}
    for word in words:
        for each in _tools_at(word):
            if each.name in chosen:
                raise UsageError(f"--tools {word}: expected tools of different names, got two named {each.name!r}")
            chosen[each.name] = each
    offered = {each.name: each for each in example_tools()} if examples else {}
    return tuple({**offered, **chosen}.values())


def _tools_at(word: str) -> Iterable[Tool]:
    """What stands at `MODULE:NAME` or `FILE.py:NAME`: a tool, a function, or several of them."""
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise UsageError(f"--tools: expected MODULE:NAME or FILE.py:NAME, got {word!r}")
    module = _imported(word, place)
    if not hasattr(module, name):
        raise UsageError(f"--tools {word}: {place} has no {name!r}")
    found = getattr(module, name)
    items = found if isinstance(found, Iterable) and not isinstance(found, str | bytes) else [found]
    return [_as_tool(word, item) for item in items]


def _as_tool(word: str, item: Any) -> Tool:
    if isinstance(item, Tool):
        return item
    if not isinstance(item, Callable):  # type: ignore[arg-type]  # the abstract class does for isinstance
        raise UsageError(f"--tools {word}: expected tools or functions, got {type(item).__name__}")
    try:
        return tool(item)
    except ToolDefinitionError as error:
        raise UsageError(f"--tools {word}: {error}") from None


def _imported(word: str, place: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a command that is installed does not look here by itself
    try:
        return _imported_file(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # whatever a module does when it is loaded
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UsageError(f"--tools {word}: cannot load {place} ({' '.join(what.split())})") from error


def _imported_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(module.__name__, module)  # annotations of its functions are looked up there
    spec.loader.exec_module(module)
    return module
