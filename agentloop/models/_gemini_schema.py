"""A tool's JSON Schema as Gemini takes it: without references, where they can be resolved.

`parametersJsonSchema` of a function takes JSON Schema, but a `$ref` beside other keywords, or one into `$defs` below the
root, makes the API refuse the whole request; and it knows no `$schema`. What refers to itself has to stay as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentloop._values import thaw_json

MAX_NODES: Final = 10_000
"""Most values of a schema that is written out: definitions that use each other twice double with each step."""

_ROOT_ONLY = ("$schema", "$id", "$comment")
_DEFINITIONS = ("$defs", "definitions")


class _Unresolvable(Exception):
    """A reference to nowhere or outside, or too much to write out."""


def function_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its references written out; as it is, but for `$schema`, where they cannot be."""
    plain: dict[str, Any] = thaw_json(schema)
    for key in _ROOT_ONLY:
        plain.pop(key, None)
    try:
        written: dict[str, Any] = _Writer(plain).write(plain)
    except (_Unresolvable, RecursionError):  # what refers to itself meets one of the two bounds
        return plain
    for key in _DEFINITIONS:
        written.pop(key, None)
    return written


class _Writer:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MAX_NODES

    def write(self, node: Any) -> Any:
        """A copy of a part of the schema, references written out."""
        self._left -= 1
        if self._left < 0:
            raise _Unresolvable
        if isinstance(node, list):
            return [self.write(item) for item in node]
        if not isinstance(node, dict):
            return node
        target = node.get("$ref")
        if isinstance(target, str):
            beside = {key: value for key, value in node.items() if key != "$ref"}
            found = self.write(self._find(target))
            return {**found, **self.write(beside)} if isinstance(found, dict) else found
        skipped = _DEFINITIONS if node is self._root else ()
        return {key: self.write(value) for key, value in node.items() if key not in skipped}

    def _find(self, target: str) -> Any:
        """What a JSON pointer in the same document points at."""
        if not target.startswith("#"):
            raise _Unresolvable
        place: Any = self._root
        for step in target[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and step in place:
                place = place[step]
            elif isinstance(place, list) and step.isdigit() and int(step) < len(place):
                place = place[int(step)]
            else:
                raise _Unresolvable
        return place
