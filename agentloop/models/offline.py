"""`OfflineModel`: the model that needs no network and no key, because it is no language model but a set of fixed rules.

It exists so that a first run shows everything: thinking, text in deltas, parallel calls, a second turn with their
results, a failing tool. It looks for a few things in the prompt (arithmetic, the time, files), asks for the tools of
`agentloop run` by name, and tells what they answered. Whatever it decides follows from the request alone, so the same
conversation always gives the same reply. It says what it is wherever it does not know better.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Any

import anyio
import attrs

from agentloop.messages import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage, Usage, UserMessage
from agentloop.model import (
    BlockEnd,
    Finish,
    ModelChunk,
    ModelRequest,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    UsageChunk,
)

__all__ = ["OfflineModel"]

WHAT_IT_IS = "I am agentloop's offline model: a set of fixed rules, not a language model."

HELP = f"""{WHAT_IT_IS} I understand only a few things:

- arithmetic: "what is 12*7 + 3?"
- the time: "what time is it in UTC?"
- files here: "list the Python files", "how many lines has README.md?", "read README.md"
- any tool by name: call NAME {{"argument": "value"}}

For everything else choose a real model, for example --model anthropic:NAME or --model openai:NAME."""

_READ_AT_MOST = 2_000
"""Characters of a prompt that are looked at: enough for a question, and a bound for the patterns below."""
_MEASURE_AT_MOST = 8
"""Files that one prompt may have measured."""
_QUOTE_LINES = 20
"""Lines of a file that a reply quotes."""


class OfflineModel:
    """A model callable of fixed rules; see the module's text.

    `pace` is a pause before each chunk (seconds), for somebody who watches. Its token counts are word counts.
    """

    provider = "offline"
    model = "fixed-rules"

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace

    async def __call__(self, request: ModelRequest, /) -> AsyncIterator[ModelChunk]:
        """Stream the reply that the rules give for this request."""
        reply = decide(request)
        for chunk in reply.chunks():
            if self.pace:
                await anyio.sleep(self.pace)
            yield chunk
        yield UsageChunk(Usage(0, _words_in(request), reply.words()))
        yield Finish("tool_use" if reply.calls else "stop")


@attrs.frozen
class Wish:
    """A `tool` that would help, by its name, with its `arguments` as JSON text."""

    tool: str
    arguments: str


@attrs.frozen
class Reply:
    """What the rules came to: some `thinking`, a `text`, or `calls`."""

    thinking: str
    text: str
    calls: tuple[ToolCall, ...] = ()

    def chunks(self) -> Iterator[ModelChunk]:
        """The reply as a stream: a delta a word, the calls one after the other."""
        for piece in _pieces(self.thinking):
            yield ThinkingChunk(piece)
        for piece in _pieces(self.text):
            yield TextChunk(piece)
        for call in self.calls:
            yield ToolCallChunk("", call.id, call.name)
            for piece in _pieces(call.arguments):
                yield ToolCallChunk(piece)
            yield BlockEnd()

    def words(self) -> int:
        """How many words it has."""
        return sum(len(text.split()) for text in (self.thinking, self.text, *[call.arguments for call in self.calls]))


def decide(request: ModelRequest) -> Reply:
    """The reply to a request: calls that would help, or what calls have answered, or what this model can do."""
    task = _Task.of(request.messages)
    measured = _measuring(task)
    wishes = [*[wish for prompt in task.fresh for wish in wishes_of(prompt)], *measured]
    offered = {tool.name for tool in request.tools}
    able = [wish for wish in wishes if wish.tool in offered]
    parts = [_outcome(call, result) for call, result in task.answered if not (measured and _is_list(call, result))]
    for name in sorted({wish.tool for wish in wishes} - offered):
        parts.append(f"That takes the tool `{name}`, which this run does not offer. {_offer(offered)}")
    if not able:
        return Reply("" if parts else "No rule of mine fits this.", "\n".join(parts) or HELP)
    first = 1 + sum(len(message.tool_calls) for message in request.messages if isinstance(message, AssistantMessage))
    calls = tuple([ToolCall(f"call_{n}", wish.tool, wish.arguments) for n, wish in enumerate(able, first)])
    return Reply(_reason(calls, first == 1), "\n".join(parts), calls)


def _offer(names: Collection[str]) -> str:
    return f"It offers {', '.join(sorted(names))}." if names else "It offers none."


def _reason(calls: Sequence[ToolCall], introduce: bool) -> str:
    names = list(dict.fromkeys(call.name for call in calls))
    reason = f"This needs {' and '.join(names)}{', side by side' if len(calls) > 1 else ''}."
    return f"{WHAT_IT_IS} {reason}" if introduce else reason


# ---------------------------------------------------------------- where the conversation stands


@attrs.frozen
class _Task:
    """What happened since the last reply that asked for nothing."""

    prompts: list[str]
    """Every prompt of the task."""
    fresh: list[str]
    """The prompts since the last reply."""
    answered: list[tuple[ToolCall, ToolResultMessage]]
    """The calls of the last reply with their results, in order."""

    @classmethod
    def of(cls, messages: Sequence[AgentMessage]) -> _Task:
        task = cls([], [], [])
        calls: dict[str, ToolCall] = {}
        for message in messages:
            if isinstance(message, AssistantMessage):
                calls = {call.id: call for call in message.tool_calls}
                task = cls(task.prompts if calls else [], [], [])
            elif isinstance(message, ToolResultMessage):
                call = calls.get(message.tool_call_id) or ToolCall(message.tool_call_id, message.tool_name)
                task.answered.append((call, message))
            elif isinstance(message, UserMessage) and message.text.strip():
                task.prompts.append(message.text[:_READ_AT_MOST])
                task.fresh.append(message.text[:_READ_AT_MOST])
        return task


def _measuring(task: _Task) -> list[Wish]:
    """The second step of "how many lines have the Python files": their names are known only now."""
    if not any(_COUNT.search(prompt) for prompt in task.prompts):
        return []
    listings = [result for call, result in task.answered if _is_list(call, result)]
    names = [name for result in listings for name in _listed(result) if not name.endswith("/")]
    return [_wish("measure_file", path=name) for name in names[:_MEASURE_AT_MOST]]


def _is_list(call: ToolCall, result: ToolResultMessage) -> bool:
    return call.name == "list_files" and not result.is_error


def _listed(result: ToolResultMessage) -> list[str]:
    if isinstance(result.structured, list):
        return [name for name in result.structured if isinstance(name, str)]
    return [line for line in result.text.splitlines() if line and not line.startswith("[")]


# ---------------------------------------------------------------- reading a prompt

_FILE = re.compile(r"(?<![\w./*-])[\w./-]*\w\.[A-Za-z]\w{0,7}\b")
_COUNT = re.compile(r"\b(?:how (?:many (?:lines|words)|long|big|large)|count|measure|size)\b", re.I)
_READ = re.compile(r"\b(?:read|show|open|cat|print|display)\b", re.I)
_LIST = re.compile(
    r"\b(?:list|which|what|how many|find|show|see|measure|count|lines|words)\b.*\b(?:files?|folder)\b|^\s*ls\b",
    re.I | re.S,
)
_FOLDER = re.compile(r"\b(?:in|under|inside|of)\s+(?:the\s+)?(?:(?:folder|directory)\s+)?[`'\"]?([\w.][\w./-]*)", re.I)
_NO_FOLDER = frozenset({
    "here", "this", "the", "it", "all", "each", "every", "there", "folder", "directory", "project", "current", "files",
    "file",
})  # fmt: skip
_DEEP = re.compile(r"\b(?:recursive(?:ly)?|everywhere|all folders|subfolders|all the way down)\b", re.I)
_CLAUSE = re.compile(r"[?!;\n]|[.,]\s|\b(?:and )?then\b")
_GLOB = re.compile(r"\*\.\w{1,8}\b")
_TIME = re.compile(r"\b(?:time|clock|date|today|what day)\b", re.I)
_ZONE = re.compile(r"\b(?:in|at)\s+((?i:utc|gmt)|[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+)\b")
_CALL = re.compile(r"^\s*call\s+([\w.-]+)\s*(.*)", re.I | re.S)
_NUMBERS = re.compile(r"\(*-?\d(?:[\d\s.()]|\*\*|[-+*/%^])*")
_KINDS = {
    "python": "*.py", "markdown": "*.md", "text": "*.txt", "json": "*.json", "csv": "*.csv", "toml": "*.toml",
    "yaml": "*.yaml", "html": "*.html", "rust": "*.rs", "javascript": "*.js", "typescript": "*.ts",
}  # fmt: skip
_OPERATORS = {
    "times": "*", "multiplied by": "*", "x": "*", "×": "*", "plus": "+", "minus": "-", "divided by": "/", "over": "/",
    "÷": "/", "to the power of": "**",
}  # fmt: skip
_OPERATOR = re.compile(rf"(?<=[\d)])\s*(?:{'|'.join(_OPERATORS)})\s*(?=[\d(-])", re.I)


def wishes_of(prompt: str) -> list[Wish]:
    """The tools that would help with a prompt, in the order of the rules, each wish once."""
    if match := _CALL.match(prompt):
        return [Wish(match[1], match[2].strip() or "{}")]
    files = [wish for clause in _CLAUSE.split(prompt) for wish in _files(clause)]
    return list(dict.fromkeys([*_sums(prompt), *_times(prompt), *files]))


def _wish(tool: str, **arguments: Any) -> Wish:
    return Wish(tool, json.dumps(arguments, ensure_ascii=False))


def _sums(prompt: str) -> Iterator[Wish]:
    text = _OPERATOR.sub(lambda match: f" {_OPERATORS[match[0].strip().lower()]} ", _FILE.sub(" ; ", prompt))
    for match in _NUMBERS.finditer(text):
        expression = match[0].strip().rstrip(" .+-*/%^(")
        if re.search(r"\d\s*\)*\s*[-+*/%^]", expression):
            yield _wish("calculate", expression=" ".join(expression.split()))


def _times(prompt: str) -> Iterator[Wish]:
    if _TIME.search(prompt):
        zone = _ZONE.search(prompt)
        yield _wish("current_time", **({"zone": zone[1]} if zone else {}))


def _files(prompt: str) -> Iterator[Wish]:
    paths = [path for path in _FILE.findall(prompt) if not path.startswith("*")]
    if paths and (_COUNT.search(prompt) or _READ.search(prompt)):
        tool = "measure_file" if _COUNT.search(prompt) else "read_file"
        yield from [_wish(tool, path=path) for path in paths[:_MEASURE_AT_MOST]]
    elif _LIST.search(prompt):
        words = prompt.lower().split()
        patterns = [*_GLOB.findall(prompt), *[_KINDS[word] for word in words if word in _KINDS]]
        folder = next((name for name in _FOLDER.findall(prompt) if name.lower() not in _NO_FOLDER), None)
        options = {"folder": folder.rstrip(".") or "."} if folder else {}
        deep = {"recursive": True} if _DEEP.search(prompt) else {}
        yield from [_wish("list_files", pattern=pattern, **options, **deep) for pattern in patterns or ["*"]]


# ---------------------------------------------------------------- telling what came back


def _outcome(call: ToolCall, result: ToolResultMessage) -> str:
    """A sentence about one call, from its arguments and its result."""
    if result.is_error:
        return f"{call.name} did not work: {result.text.strip()}"
    arguments = _arguments(call)
    match call.name:
        case "calculate":
            return f"{arguments.get('expression', 'It')} = {result.text.strip()}"
        case "current_time":
            return f"It is {result.text.strip()}."
        case "measure_file":
            return f"{arguments.get('path', 'The file')}: {result.text.strip()}"
        case "read_file":
            return f"{arguments.get('path', 'The file')}:\n\n{_quoted(result.text)}\n"
        case "list_files":
            return _listing(arguments, _listed(result))
    return f"{call.name} answered: {result.text.strip()}"


def _listing(arguments: dict[str, Any], names: list[str]) -> str:
    folder, pattern = arguments.get("folder", "."), arguments.get("pattern", "*")
    where = "this folder" if folder == "." else folder
    what = "" if pattern == "*" else f" match{'es' if len(names) < 2 else ''} {pattern}"
    if not names:
        return f"Nothing{what} in {where}." if what else f"There is nothing in {where}."
    count = "1 entry" if len(names) == 1 else f"{len(names)} entries"
    return f"{count}{what} in {where}:\n" + "\n".join(f"- {name}" for name in names)


def _quoted(text: str) -> str:
    lines = text.split("\n", _QUOTE_LINES)
    return "\n".join(f"> {line}" for line in lines[:_QUOTE_LINES]) + ("\n> …" if len(lines) > _QUOTE_LINES else "")


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        return call.parse()
    except ValueError:
        return {}


def _pieces(text: str) -> Iterable[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _words_in(request: ModelRequest) -> int:
    texts = [getattr(message, "text", "") for message in request.messages]
    return sum(len(text.split()) for text in [request.system_prompt or "", *texts])
