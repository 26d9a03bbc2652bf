"""Plays a folder of recorded provider responses to the adapters, through the real SDKs and the kernel, and compares.

    python -m agentloop.testing.wire DIR [--only PATTERN] [--api API] [--chop CHOP] [--backend asyncio|trio|uvloop]

prints one JSON line for each `stream` and `error` case, `{"case": …, "ok": …, "differences": […]}`; exit status 0
when all are ok. The folder holds `index.json` and, in a folder for each provider, `<case>.meta.json`, the body and, for
streams, `<case>.expected.json`. Nothing else is needed: a server of our own answers on 127.0.0.1.

A stream is ok when its blocks (kind, text, arguments, number of pieces), its end, its usage and its fidelity are as
expected; an error when its code, stop reason and wait are. A case of an API without an adapter is not ok.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import attrs

from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import ModelError
from agentloop.events import MessageEnd, RequestEnd
from agentloop.loop import agent_loop, running
from agentloop.messages import AgentMessage, AssistantMessage
from agentloop.model import Finish, Model, ModelChunk, ModelRequest, UsageChunk
from agentloop.testing._wire_compare import error_differences, stream_differences
from agentloop.testing._wire_outcome import Outcome
from agentloop.testing._wire_server import Play, SeenRequest, WireServer, pieces

__all__ = [
    "ADAPTERS",
    "Case",
    "Outcome",
    "Play",
    "Result",
    "SeenRequest",
    "Target",
    "WireServer",
    "load_cases",
    "make_adapter",
    "play_case",
    "run_folder",
    "run_model",
]


# ---------------------------------------------------------------- the adapters


@attrs.frozen
class Target:
    """Where an API's adapter is. It is made as `cls(model, base_url=…, api_key=…, provider=…, **options)`, with these
    `options`."""

    adapter: str
    """`module:class`; imported only when a case asks for it."""
    path: str = ""
    """What its base URL ends with."""
    endpoint: str = ""
    """Regular expression for the path that it asks at."""
    options: Mapping[str, Any] = attrs.field(factory=dict)


ADAPTERS: Mapping[str, Target] = {
    "openai_chat": Target("agentloop.models.openai_chat:OpenAIChat", "/v1", r"^/v1/chat/completions$"),
    "openai_responses": Target("agentloop.models.openai_responses:OpenAIResponses", "/v1", r"^/v1/responses$"),
    "anthropic_messages": Target("agentloop.models.anthropic:Anthropic", "", r"^/v1/messages$"),
    "google_gemini": Target("agentloop.models.gemini:Gemini", "", r":streamGenerateContent$"),
    "ollama_chat": Target("agentloop.models.ollama:Ollama", "", r"^/api/chat$"),
}
"""One line for each API; its name is the `api` of the cases."""


def make_adapter(
    api: str, base_url: str, *, model: str = "test-model", provider: str = "test", **options: Any
) -> Model:
    """The adapter for an API, pointed at a server. Raises `LookupError` when there is none."""
    target = ADAPTERS.get(api)
    if target is None:
        raise LookupError(f"no adapter for the API {api!r}")
    module, _, name = target.adapter.partition(":")
    try:
        adapter: Any = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise LookupError(f"no adapter for the API {api!r} ({module} does not exist)") from None
    made: Model = adapter(
        model, base_url=base_url + target.path, api_key="test-key", provider=provider, **{**target.options, **options}
    )
    return made


# ---------------------------------------------------------------- the cases

Json: TypeAlias = Any


@attrs.frozen
class Case:
    """One recorded response: its line of the index (`entry`) and its files in `folder`, read when asked for."""

    folder: Path
    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Provider and case, as in the index."""
        return str(self.entry["case"])

    @property
    def api(self) -> str:
        """The API that it speaks."""
        return str(self.entry["api"])

    @property
    def meta(self) -> Json:
        """Status, headers, request and conversation."""
        return self._json("meta")

    @property
    def expected(self) -> Json:
        """What a stream must come to."""
        return self._json("expected")

    @property
    def body(self) -> bytes:
        """The response body, byte for byte."""
        return self.folder.joinpath(self.entry["body"]).read_bytes()

    def play(self, **options: Any) -> Play:
        """The response as a play of the server; `options` are those of `Play`."""
        meta = self.meta
        endpoint = ADAPTERS[self.api].endpoint if self.api in ADAPTERS else ""
        return Play(self.body, meta["status"], meta.get("headers") or {}, endpoint, **options)

    def _json(self, kind: str) -> Json:
        return json.loads((self.folder / f"{self.name}.{kind}.json").read_bytes())


def load_cases(
    folder: str | Path,
    *,
    only: str | None = None,
    api: str | None = None,
    kinds: Iterable[str] = ("stream", "error"),
    longest: int | None = None,
) -> list[Case]:
    """The cases of a folder, in the order of its index. `only` is a shell pattern or a part of the name, `longest` a
    number of bytes."""
    folder = Path(folder)
    entries = json.loads((folder / "index.json").read_bytes())["cases"]
    return [
        Case(folder, entry)
        for entry in entries
        if entry["kind"] in set(kinds)
        and (api is None or entry["api"] == api)
        and (longest is None or entry["bytes"] <= longest)
        and (only is None or only in entry["case"] or fnmatch.fnmatch(entry["case"], only))
    ]


# ---------------------------------------------------------------- one run


@attrs.frozen
class _Tap:
    """The adapter, with an eye on what it yields and raises."""

    target: Any
    outcome: Outcome

    @property
    def provider(self) -> str | None:
        return getattr(self.target, "provider", None)

    @property
    def model(self) -> str | None:
        return getattr(self.target, "model", None)

    def __call__(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        return self._watched(self.target(request))

    async def _watched(self, chunks: AsyncIterator[ModelChunk]) -> AsyncIterator[ModelChunk]:
        try:
            async for chunk in chunks:
                self.outcome.tally.feed(chunk)
                if isinstance(chunk, Finish):
                    self.outcome.finish = chunk
                elif isinstance(chunk, UsageChunk):
                    self.outcome.usage = chunk.usage
                yield chunk
        except ModelError as error:
            self.outcome.error = error
            raise
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()


async def run_model(
    model: Model,
    messages: Sequence[AgentMessage | str] = ("Hello",),
    *,
    system_prompt: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Outcome:
    """One request of one model through the kernel, without retries; failures are part of the outcome."""
    outcome = Outcome()
    config = Config(model=_Tap(model, outcome), retry=None, max_turns=1, options=options or {})
    async with running(agent_loop(messages, Context(system_prompt), config)) as events:
        async for event in events:
            match event:
                case MessageEnd(message=AssistantMessage() as reply):
                    outcome.message = reply
                case RequestEnd(status=status):
                    outcome.committed = status == "completed"
                case _:
                    pass
    return outcome


# ---------------------------------------------------------------- the folder


@attrs.frozen
class Result:
    """What the `case` of this name came to; no `differences`: it is ok."""

    case: str
    differences: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def line(self) -> str:
        """The JSON line."""
        record = {"case": self.case, "ok": self.ok, "differences": list(self.differences)}
        return json.dumps(record, ensure_ascii=False)


async def play_case(case: Case, server: WireServer, *, limit: float = 30.0, **options: Any) -> Outcome:
    """Play one case to its adapter; `options` are those of `Play`. Raises `LookupError` when there is no adapter,
    `TimeoutError` after `limit` seconds."""
    address = server.play(case.play(**options))
    provider = case.name.partition("/")[0]
    model = make_adapter(case.api, address, model=str(case.entry.get("model") or "test-model"), provider=provider)
    with anyio.fail_after(limit):
        return await run_model(model)


async def check_case(case: Case, server: WireServer, **options: Any) -> Result:
    """Play one case and compare; whatever goes wrong is a difference."""
    try:
        outcome = await play_case(case, server, **options)
        if case.entry["kind"] == "error":
            meta = case.meta
            found = error_differences(meta["status"], meta.get("headers") or {}, case.body, outcome)
        else:
            found = stream_differences(case.api, case.expected, outcome)
    except Exception as error:  # a runner of many cases tells of each and goes on
        found = [f"{type(error).__name__}: {error}"]
    return Result(case.name, tuple(found))


BACKENDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


def run_folder(
    folder: str | Path,
    *,
    only: str | None = None,
    api: str | None = None,
    chop: str = "",
    backend: str = "asyncio",
    longest: int | None = None,
    report: Callable[[Result], object] | None = None,
) -> list[Result]:
    """Run a folder's `stream` and `error` cases; `report` gets each result as it comes.

    `only`, `api` and `longest` choose as in `load_cases`; `chop` is that of `Play`, `backend` one of `BACKENDS`.
    """

    async def run() -> list[Result]:
        results = []
        with WireServer() as server:
            for case in load_cases(folder, only=only, api=api, longest=longest):
                results.append(await check_case(case, server, chop=chop))
                if report is not None:
                    report(results[-1])
        return results

    name, backend_options = BACKENDS[backend]
    return anyio.run(run, backend=name, backend_options=backend_options)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agentloop.testing.wire", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", metavar="DIR", help="a folder with index.json and a folder for each provider")
    parser.add_argument("--only", metavar="PATTERN", help="shell pattern, or a part of the case's name")
    parser.add_argument("--api", help=f"one of {', '.join(ADAPTERS)}")
    parser.add_argument("--chop", default="", help="event, line, a number of bytes, random or random:SEED")
    parser.add_argument("--backend", choices=list(BACKENDS), default="asyncio")
    given = parser.parse_args(arguments)
    try:
        pieces(b"", given.chop)
    except ValueError as error:
        parser.error(str(error))
    try:
        load_cases(given.folder)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"{given.folder}: expected a folder with an index.json of cases ({type(error).__name__}: {error})")
    logging.getLogger("agentloop").addHandler(logging.NullHandler())  # failures are results here
    results = run_folder(
        given.folder,
        only=given.only,
        api=given.api,
        chop=given.chop,
        backend=given.backend,
        report=lambda result: print(result.line, flush=True),
    )
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
