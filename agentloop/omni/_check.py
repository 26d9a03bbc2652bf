"""What is wrong with a record, found by reading the types of its payload.

The rules are the classes of `_types.py` and the few in `_RULES` that a type cannot say. Kinds, fields and roles that
we do not know are fine: they are kept and written back. The old spelling is read first, so that it is no problem either.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import attrs

from agentloop.messages import json_type
from agentloop.omni._event_types import EVENTS
from agentloop.omni._legacy import modernise
from agentloop.omni._types import COMPLETE, PARTIALS, SessionMetaPayload

Check = Callable[[Any, str], Iterator["Problem"]]


@attrs.frozen
class Problem:
    """One thing that is wrong with a record: where, what was expected, what was there."""

    path: str
    """From the record: `payload.tools[0].name`; empty for the record itself."""
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path or 'record'}: expected {self.expected}, got {self.got}"


def shown(value: Any) -> str:
    """A value in a few words: its JSON type, and a short text or number itself."""
    if isinstance(value, str) and len(value) <= 40:
        return repr(value)
    if isinstance(value, bool | int | float):
        return "true" if value is True else "false" if value is False else repr(value)
    return json_type(value)


def _typed(kind: type, words: str) -> Check:
    def check(value: Any, path: str) -> Iterator[Problem]:
        if type(value) is not kind and (kind is not dict or not isinstance(value, dict)):
            yield Problem(path, words, shown(value))

    return check


def _anything(value: Any, path: str) -> Iterator[Problem]:
    return iter(())


_PLAIN: Final[dict[Any, Check]] = {
    str: _typed(str, "a string"),
    int: _typed(int, "an integer"),
    bool: _typed(bool, "true or false"),
    type(None): _typed(type(None), "null"),
    Any: _anything,
}


@cache
def _checker(kind: Any) -> Check:
    """The check of a type: plain, literal, list, object, union or a TypedDict."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_typeddict(kind):
        return _object_checker(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return _literal_checker(get_args(kind))
    if origin is list:
        return _list_checker(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return _union_checker(get_args(kind))
    return _typed(dict, "an object")


def _literal_checker(values: tuple[Any, ...]) -> Check:
    words = values[0] if len(values) == 1 else "one of " + ", ".join(map(str, values))

    def check(value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, str) or value not in values:
            yield Problem(path, words, shown(value))

    return check


def _list_checker(kind: Any) -> Check:
    item_check = _checker(kind)

    def check(value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield Problem(path, "an array", shown(value))
            return
        for index, item in enumerate(value):
            yield from item_check(item, f"{path}[{index}]")

    return check


def _union_checker(kinds: tuple[Any, ...]) -> Check:
    checks = [_checker(kind) for kind in kinds]

    def check(value: Any, path: str) -> Iterator[Problem]:
        found = [next(check(value, path), None) for check in checks]
        if all(found):
            yield Problem(path, " or ".join(problem.expected for problem in found if problem), shown(value))

    return check


def _object_checker(kind: Any) -> Check:
    fields = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        fields.append((name, optional, _checker(get_args(hint)[0] if optional else hint)))

    def check(value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield Problem(path, "an object", shown(value))
            return
        for name, optional, field_check in fields:
            if name in value:
                yield from field_check(value[name], f"{path}.{name}")
            elif not optional:
                yield Problem(f"{path}.{name}", "a value", "nothing")

    return check


# ---------------------------------------------------------------- rules beyond types


_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


def _no_error_when_completed(payload: dict[str, Any]) -> Iterator[Problem]:
    if payload.get("status", payload.get("stop_reason")) == "completed":
        for name in ("error_code", "error_message"):
            if payload.get(name) is not None:
                yield Problem(f"payload.{name}", "nothing on a completed record", shown(payload[name]))


def _images_of_completed(payload: dict[str, Any]) -> Iterator[Problem]:
    images = payload.get("images")
    if images == []:
        yield Problem("payload.images", "at least one image, or no such field", "an empty array")
    elif images and payload.get("stop_reason", "completed") != "completed":
        yield Problem("payload.images", "nothing on an output that is not completed", "an array")


def _output_not_empty(payload: dict[str, Any]) -> Iterator[Problem]:
    if payload.get("output") == "":
        yield Problem("payload.output", "a text that is not empty ([no output])", "''")


def _no_fidelity(payload: dict[str, Any]) -> Iterator[Problem]:
    if "fidelity" in payload:
        yield Problem("payload.fidelity", "nothing on this kind", shown(payload["fidelity"]))


_RULES: Final[dict[str, tuple[Callable[[dict[str, Any]], Iterator[Problem]], ...]]] = {
    "request_end": (_no_error_when_completed,),
    "mcp_connect_end": (_no_error_when_completed,),
    "compaction_end": (_no_error_when_completed,),
    "agent_end": (_no_error_when_completed,),
    "message_end": (_no_error_when_completed,),
    "tool_call_output": (_images_of_completed, _output_not_empty, _no_fidelity),
    "image_url": (_no_fidelity,),
    **dict.fromkeys(PARTIALS, (_no_fidelity,)),
}


def _envelope_problems(record: dict[str, Any]) -> Iterator[Problem]:
    stamp = record.get("timestamp")
    if not isinstance(stamp, str) or not _TIMESTAMP.fullmatch(stamp):
        got = "nothing" if "timestamp" not in record else shown(stamp)
        yield Problem("timestamp", "UTC with milliseconds, like 2026-09-01T02:00:00.137Z", got)
    if not isinstance(record.get("type"), str):
        yield Problem("type", "a string", shown(record["type"]) if "type" in record else "nothing")
    if "origin" in record:
        origin = record["origin"]
        if not isinstance(origin, list) or not origin or not all(isinstance(hop, str) for hop in origin):
            yield Problem("origin", "at least one session id, or no such field", shown(origin))


def _schema(record: dict[str, Any], payload: dict[str, Any]) -> tuple[str, type | None]:
    """The kind of the payload and its class; None for a kind that we do not know."""
    envelope, kind = record.get("type"), payload.get("type")
    if envelope == "session_meta":
        return "session_meta", SessionMetaPayload
    if not isinstance(kind, str):
        return "", None
    if envelope == "model_msg":
        return kind, COMPLETE.get(kind) or PARTIALS.get(kind)
    return kind, EVENTS.get(kind) if envelope == "event_msg" else None


def check_record(record: Any) -> list[Problem]:
    """What is wrong with one record, as the protocol has it; an empty list when nothing is.

    Unknown kinds, fields and roles are fine. Order between records is not looked at.
    """
    if not isinstance(record, dict):
        return [Problem("", "an object", shown(record))]
    problems = list(_envelope_problems(record))
    if not isinstance(record.get("payload"), dict):
        got = shown(record["payload"]) if "payload" in record else "nothing"
        return [*problems, Problem("payload", "an object", got)]
    payload = modernise(record)["payload"]
    kind, schema = _schema(record, payload)
    if record.get("type") == "model_msg" and not kind:
        problems.append(Problem("payload.type", "a string", shown(payload["type"]) if "type" in payload else "nothing"))
    if schema is not None:
        problems += _checker(schema)(payload, "payload")
    if payload.get("fidelity") == {}:
        problems.append(Problem("payload.fidelity", "an object that is not empty, or no such field", "{}"))
    for rule in _RULES.get(kind, ()) if schema is not None else ():
        problems += rule(payload)
    return problems


# ---------------------------------------------------------------- the fast answer


def _expression(kind: Any, value: str, scope: dict[str, Any]) -> str:
    """Source of a test that the value has the JSON type; words of a closed list may be any string."""
    plain = {str: "str", int: "int", bool: "bool"}
    if kind in plain:
        return f"type({value}) is {plain[kind]}"
    if kind is type(None):
        return f"{value} is None"
    if is_typeddict(kind):
        name = f"fits_{len(scope)}"
        scope[name] = predicate_of(kind)
        return f"{name}({value})"
    origin = get_origin(kind)
    if origin is Literal:
        return f"type({value}) is str"
    if origin is list:
        item = _expression(get_args(kind)[0], "item", scope)
        return f"(isinstance({value}, list) and all([{item} for item in {value}]))"
    if origin in (Union, types.UnionType):
        return "(" + " or ".join(_expression(part, value, scope) for part in get_args(kind)) + ")"
    return f"isinstance({value}, dict)"


@cache
def predicate_of(kind: Any) -> Callable[[Any], bool]:
    """A fast test whether an object has the fields of a TypedDict, of JSON types as they should be."""
    scope: dict[str, Any] = {}
    tests: list[str] = []
    all_optional = True
    for name, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        field = get_args(hint)[0] if optional else hint
        if name == "type":
            continue  # whoever asks has looked at it
        all_optional = all_optional and optional
        if field is Any:
            tests += [] if optional else [f"{name!r} in record"]
        elif optional:
            tests.append(f"((value := record.get({name!r})) is None or {_expression(field, 'value', scope)})")
        else:
            tests.append(_expression(field, f"record.get({name!r})", scope))
    test = " and ".join(tests) or "True"
    if all_optional:
        test = f"len(record) == 1 or ({test})"  # nothing but its type
    # The source is made of our own field names.
    exec(f"def fits(record):\n    return isinstance(record, dict) and ({test})", scope)
    return scope["fits"]  # type: ignore[no-any-return]


def predicate(kind: str) -> Callable[[Any], bool]:
    """A fast test whether a payload of this known kind has every required field, and JSON types as they should be."""
    return predicate_of(COMPLETE.get(kind) or PARTIALS.get(kind) or EVENTS[kind])
