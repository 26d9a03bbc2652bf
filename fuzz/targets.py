"""What is fuzzed: for each parser a function of bytes that raises when a promise of that parser is broken.

A target swallows the errors that the parser documents and nothing else. Where one thing can be read in two ways (whole, and
in pieces), both must give the same. No target needs atheris: the tests feed them the corpus and what once broke them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import anyio
import attrs

from agentloop._approval.automaton import Budget, TooCostly
from agentloop._approval.patterns import glob, regex
from agentloop._schema.docstring import read_docstring
from agentloop._schema.raw import SchemaCheck
from agentloop.approval import Policy
from agentloop.config import Config
from agentloop.context import Context
from agentloop.errors import InvalidArguments, ModelError, PolicyError, SseError, TraceReadError
from agentloop.loop import agent_loop
from agentloop.messages import user
from agentloop.model import ModelChunk, ModelRequest
from agentloop.models import _anthropic_events, _chat_reader, _gemini_events, _responses_events, ollama
from agentloop.models._framing import EventBytes
from agentloop.omni._lines import LineDecoder
from agentloop.omni.check import ProtocolChecker
from agentloop.omni.codec import Decoder, Encoder
from agentloop.omni.jsonl import dumps, loads
from agentloop.omni.reader import TraceReader
from agentloop.omni.redact import mask_secrets, mask_text
from agentloop.omni.resume import resume_file, to_json
from agentloop.omni.sse import Parser, ServerSentEvent, encode
from agentloop.partial import PartialArguments
from agentloop.testing.clock import VirtualClock
from agentloop.testing.scenarios import run_scenario
from agentloop.tools import ToolContext, tool
from agentloop.view import View

Target: TypeAlias = Callable[[bytes], None]

logging.getLogger("agentloop").addHandler(logging.NullHandler())


def _text(data: bytes) -> str:
    """Any bytes as text; half surrogate pairs can be among it, as they are in what models send."""
    return data.decode("utf-8", "surrogatepass") if _is_utf8(data) else data.decode("utf-8", "replace")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _pieces(data: bytes) -> Iterator[bytes]:
    """The bytes in pieces of sizes that the bytes themselves choose."""
    at = 0
    while at < len(data):
        size = 1 + data[at] % 7
        yield data[at : at + size]
        at += size


# ---------------------------------------------------------------- records, streams, traces


def sse(data: bytes) -> None:
    """Server-sent events: whole and in pieces the same events; what is JSON is carried by the encoder unchanged."""
    whole, cut = Parser(max_bytes=512), Parser(max_bytes=512)
    events, problem = _events(whole, [data])
    assert (events, problem) == _events(cut, _pieces(data))
    assert whole.last_event_id == cut.last_event_id
    assert whole.retry == cut.retry
    for event in events:
        with contextlib.suppress(SseError):
            record = event.record()
            [again] = Parser().feed(encode(record))
            assert dumps(again.record()) == dumps(record)


def _events(parser: Parser, pieces: Iterable[bytes]) -> tuple[list[ServerSentEvent], str | None]:
    """What the pieces give, and what is wrong with what comes then."""
    events: list[ServerSentEvent] = []
    try:
        for piece in (*pieces, b""):
            events += parser.feed(piece)
    except SseError as error:
        return events, str(error)
    return events, None


def jsonl(data: bytes) -> None:
    """Lines of records: what is read is written as what reads the same; a decoder takes every line that is an object."""
    decoder, encoder = LineDecoder(), Encoder()
    view = View()
    for number, line in enumerate(data.split(b"\n")):
        try:
            value = loads(line)
        except ValueError:
            continue
        assert loads(dumps(value)) == value
        if not (
            isinstance(value, dict) and isinstance(value.get("payload"), dict) and isinstance(value.get("type"), str)
        ):
            continue
        mask_secrets(value)
        for event in decoder.feed_line(line):
            view.feed(event, float(number))
            encoder.encode(event)
    for event in decoder.finish():
        view.feed(event, 0.0)
        encoder.encode(event)


def trace(data: bytes) -> None:
    """A trace file: read, checked and resumed whatever it holds."""
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        path = Path(folder, "s_001.jsonl")
        path.write_bytes(data)
        reader, checker, decoder = TraceReader(path, max_line=4_096), ProtocolChecker(), Decoder()
        for line, record in reader.numbered():
            checker.feed(line, record)
            decoder.feed(record)
        decoder.finish()
        for finding in checker.finish():
            str(finding)
        reader.report()
        with contextlib.suppress(TraceReadError):
            resumed = resume_file(path)
            resumed.settled()
            json.dumps(to_json(resumed))


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def redaction(data: bytes) -> None:
    """Masking: nothing is left that a second look would mask, and JSON text stays JSON text."""
    text = _text(data)
    masked = mask_text(text)
    assert mask_text(masked) == masked
    with contextlib.suppress(ValueError):
        json.loads(text)
        json.loads(masked)


# ---------------------------------------------------------------- arguments


def partial(data: bytes) -> None:
    """Arguments that stream: whole and in pieces the same value; a complete one is what a tool gets."""
    text = _text(data)
    whole, cut = PartialArguments(text), PartialArguments()
    at = 0
    while at < len(text):
        size = 1 + ord(text[at]) % 5
        cut.feed(text[at : at + size])
        assert cut.value is None or cut.problem or not cut.complete or cut.value == whole.value
        at += size
    assert (whole.value, whole.complete) == (cut.value, cut.complete)
    assert (whole.problem is None) == (cut.problem is None)
    if whole.complete and isinstance(whole.value, dict):
        assert _any_arguments.prepare(text).arguments == whole.value


@attrs.frozen
class Range:
    """Two numbers."""

    low: int
    high: float = 0.0


@tool
async def _typed_tool(
    ctx: ToolContext,
    name: str,
    count: int = 0,
    ratio: float = 0.0,
    on: bool = False,
    mode: Literal["a", 1, True, None] = None,
    ranges: list[Range] | None = None,
    either: int | list[int] | dict[str, Range] | str = 0,
    pair: tuple[int, str] | None = None,
    names: Annotated[set[str], "names"] = frozenset(),  # type: ignore[assignment]
    path: Path | None = None,
    extra: dict[str, Any] | None = None,
) -> str:
    """Takes what a model may send."""
    return "done"


_any_arguments = tool(lambda arguments: "done", name="anything", parameters={"type": "object"})


def arguments(data: bytes) -> None:
    """Arguments of a call: bound, or refused with words; what is bound is bound again unchanged."""
    text = _text(data)
    for each in (_typed_tool, _any_arguments):
        try:
            prepared = each.prepare(text)
        except InvalidArguments as error:
            if len(str(error)) > 20_000:
                raise AssertionError("expected bounded words about wrong arguments") from error
            continue
        again = each.prepare(prepared.text)
        assert again.text == prepared.text


def schema(data: bytes) -> None:
    """A foreign JSON Schema (the first line) and arguments for it (the rest): checked, or left unchecked and logged."""
    first, _, rest = data.partition(b"\n")
    try:
        parameters, given = json.loads(first), json.loads(rest or b"{}")
    except (ValueError, RecursionError):
        return
    if isinstance(parameters, dict) and isinstance(given, dict):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            SchemaCheck("foreign", parameters).check(given)


def docstring(data: bytes) -> None:
    """A docstring: never an error."""
    read = read_docstring(_text(data))
    assert all(isinstance(text, str) and text for text in read.parameters.values())


# ---------------------------------------------------------------- files of people


def policy(data: bytes) -> None:
    """A policy in TOML: read, or refused with its place; as plain data it reads the same, and it decides."""
    text = _text(data)
    try:
        made = Policy.from_toml(text)
    except PolicyError:
        return
    assert Policy.from_data(made.to_data()) == made
    assert made.decide("run", {"command": text[:200], "files": ["../a", {"b": 1}]}).word in _WORDS


_WORDS: Final = ("allow", "ask", "deny", "forbid")


def pattern(data: bytes) -> None:
    """A pattern (the first line) over a text (the rest): an answer, or the budget is used up."""
    first, _, rest = _text(data).partition("\n")
    for compiled in (glob, regex):
        with contextlib.suppress(ValueError, TooCostly):
            compiled(first).matches(rest, Budget(200_000))


def scenario(data: bytes) -> None:
    """A scenario file: run in virtual time, or refused with one of the errors that the command knows."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return

    async def bounded() -> None:
        with anyio.move_on_after(5):
            await run_scenario(value, lambda line: None)

    try:
        anyio.run(bounded)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    except ExceptionGroup as group:
        _, others = group.split((OSError, ValueError, KeyError, TypeError, AttributeError))
        if others is not None:
            raise others from None


# ---------------------------------------------------------------- providers


def _chat(events: Iterable[Any]) -> Iterator[ModelChunk]:
    reader = _chat_reader.Reader()
    for event in events:
        yield from reader.read(event)
    yield from reader.end()


def _reader_with_end(make: Callable[[], Any]) -> Callable[[Iterable[Any]], Iterator[ModelChunk]]:
    def chunks(events: Iterable[Any]) -> Iterator[ModelChunk]:
        reader = make()
        for event in events:
            yield from reader.feed(event)
        if hasattr(reader, "end"):
            yield from reader.end()

    return chunks


_READERS: Final[Mapping[str, Callable[[Iterable[Any]], Iterator[ModelChunk]]]] = {
    "chat": _chat,
    "responses": _reader_with_end(_responses_events.EventReader),
    "anthropic": _reader_with_end(_anthropic_events.EventReader),
    "gemini": _reader_with_end(_gemini_events.EventReader),
    "ollama": _reader_with_end(ollama.EventReader),
}


def framing(data: bytes) -> None:
    """The body of a streamed answer: whole and in pieces the same events, or the same refusal."""
    assert _framed([data]) == _framed(_pieces(data))


def _framed(pieces: Iterable[bytes]) -> tuple[str, bool]:
    reader, events, refused = EventBytes(), [], False
    try:
        for piece in pieces:
            for event in reader.feed(piece):
                events.append(event)  # those before a refusal count
        for event in reader.end():
            events.append(event)
    except ModelError:
        refused = True
    return repr(events), refused


def _reply(name: str, data: bytes) -> None:
    """A provider's events, through the whole loop: the run ends, and keeps the grammar (the loop itself checks it)."""

    def events() -> Iterator[Any]:
        reader = EventBytes()
        yield from reader.feed(data)
        yield from reader.end()

    async def model(request: ModelRequest) -> AsyncIterator[ModelChunk]:
        for chunk in _READERS[name](events()):
            yield chunk

    async def run() -> None:
        config = Config(model=model, retry=None, clock=VirtualClock(), max_turns=1)
        context = Context(tools=[_any_arguments])
        view, encoder = View(), Encoder()
        async for event in agent_loop([user("go")], context, config):
            view.feed(event, 0.0)
            for record in encoder.encode(event):
                loads(dumps(record))

    with contextlib.suppress(ModelError):  # a reader raises nothing else
        list(_READERS[name](events()))
    anyio.run(run)


TARGETS: Final[Mapping[str, Target]] = {
    "sse": sse,
    "jsonl": jsonl,
    "trace": trace,
    "redaction": redaction,
    "partial": partial,
    "arguments": arguments,
    "schema": schema,
    "docstring": docstring,
    "policy": policy,
    "pattern": pattern,
    "scenario": scenario,
    "framing": framing,
    **{name: functools.partial(_reply, name) for name in _READERS},
}
"""Every target by its name, which is also the name of its folder in `fuzz/corpus`."""
