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
from agentloop.errors import ToolDefinitionError
from agentloop.model import Model
from agentloop.models.offline import OfflineModel
from agentloop.models.registry import PROVIDERS, resolve
from agentloop.tools import Tool, tool

MODELS_HELP = (
    "offline, local (a small model in this process, often wrong), or PROVIDER:NAME, "
    "for example openai:NAME or anthropic:NAME"
)


def choose_model(words: str, base_url: str | None, *, pace: float = 0.0) -> Model:
    """The model of `--model`. Raises `UsageError`; `pace` is for somebody who watches the offline model."""
    if words == "offline":
        if base_url is not None:
            raise UsageError("--base-url: expected with the model of a provider, got it with the offline model")
        return OfflineModel(pace)
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise UsageError(f"--base-url: expected an address that begins with http:// or https://, got {base_url!r}")
    try:
        return resolve(words, base_url, None if base_url is None else _stand_in(words))
    except (ValueError, ImportError) as error:
        raise UsageError(f"--{error}" if str(error).startswith("model:") else f"--model {words}: {error}") from None


def _stand_in(words: str) -> str | None:
    """A key for a server of one's own where there is none: it may ask for none, but some SDKs do."""
    provider = PROVIDERS.get(words.partition(":")[0])
    names = filter(None, (provider.key, provider.other_key)) if provider else ()
    held = [os.environ.get(name, "").strip() for name in names]
    return "none" if held and not any(held) else None


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
    except (Exception, SystemExit) as error:  # whatever a module does when it is loaded; a script may want to leave
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
