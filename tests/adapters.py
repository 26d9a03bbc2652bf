"""What the tests of adapters share: a library's exceptions, a client that raises them, recorded cases compared."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from agentloop.errors import REQUEST_CODES, ModelError
from agentloop.model import ModelChunk
from agentloop.testing._wire_compare import error_differences, stream_differences
from agentloop.testing.wire import Case, WireServer, play_case


def exceptions_of(*modules: ModuleType, address: str) -> list[Any]:
    """One instance of every exception class of these modules, as parameters of a test."""
    import httpx2

    request = httpx2.Request("POST", address)
    found = []
    for module in modules:
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if not issubclass(cls, Exception) or issubclass(cls, Warning) or cls.__module__ == "builtins":
                continue
            status = cls.status_code if isinstance(getattr(cls, "status_code", None), int) else 418
            values = {
                "request": request,
                "response": httpx2.Response(status, request=request),
                "body": None,
                "completion": type("Completion", (), {"usage": None})(),
                "unsent_messages": [],
            }
            wanted = list(inspect.signature(cls.__init__).parameters.values())[1:]
            needed = [p for p in wanted if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            words = [values.get(p.name, "it broke") for p in needed if p.kind is not p.KEYWORD_ONLY]
            named = {p.name: values.get(p.name, "it broke") for p in needed if p.kind is p.KEYWORD_ONLY}
            found.append(pytest.param(cls(*words, **named), id=f"{module.__name__}.{name}"))
    return found


class Broken:
    """A client whose every request raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def __aenter__(self) -> Broken:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    @property
    def chat(self) -> Broken:
        return self

    completions = chat

    def build_request(self, *args: Any, **options: Any) -> None:
        return None

    async def post(self, *args: Any, **options: Any) -> Any:
        raise self.error

    send = create = post


def take_away(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here to the end of the test the package is not installed."""
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *args, **options)

    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(builtins, "__import__", without)


def assert_read_or_refused(read: Callable[..., list[Any]], events: list[Any]) -> None:
    """Chunks or a `ModelError` with a code of requests come out of a reader, nothing else."""
    chunks, refused = list[Any](), None
    try:
        chunks = read(*events)
    except ModelError as error:
        refused = error.code
    assert refused is None or refused in REQUEST_CODES
    assert all(isinstance(chunk, ModelChunk) for chunk in chunks)


async def found_differences(cases: list[Case], chop: str = "") -> dict[str, list[str]]:
    """How the outcomes of recorded cases, cut as `chop` says, differ from what their bytes say; by name, those that do."""
    with WireServer() as server:
        found = {case.name: differences(case, await play_case(case, server, chop=chop)) for case in cases}
    return {name: differs for name, differs in found.items() if differs}


def differences(case: Case, outcome: Any) -> list[str]:
    """How the outcome of a recorded case differs from what its bytes say."""
    if case.entry["kind"] == "error":
        return error_differences(case.meta["status"], case.meta.get("headers") or {}, case.body, outcome)
    return stream_differences(case.api, case.expected, outcome)
