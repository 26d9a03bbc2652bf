"""Names of MCP tools as every provider takes them: letters, digits, `_` and `-`, at most 64, no two alike.

A server may name its tools as it likes. What providers take in common (OpenAI's `^[a-zA-Z0-9_-]{1,64}$`; Gemini wants a
letter or `_` first) is stricter, so other characters become `_`, and a name that is too long, or that another tool
already has, ends in a piece of the hash of the server's and the tool's own name. A name once given stays, whatever the
order of later lists.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

MAX_NAME: Final = 64
_HASH: Final = 8
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


class Names:
    """The names that were given so far."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def give(self, server: str, tool: str, prefix: str | None) -> str:
        """The name of a server's tool, always the same one."""
        key = (server, tool)
        if key not in self._given:
            name = legal_name((f"{server}__" if prefix is None else prefix) + tool)
            if len(name) > MAX_NAME or name in self._taken:
                name = f"{name[: MAX_NAME - _HASH - 1]}_{_hash(server, tool)}"
            self._taken.add(name)
            self._given[key] = name
        return self._given[key]


def legal_name(name: str) -> str:
    """The name in the characters that all providers take, of any length."""
    legal = _FOREIGN.sub("_", name)
    return legal if legal[:1].isalpha() or legal[:1] == "_" else f"_{legal}"


def _hash(server: str, tool: str) -> str:
    text = f"{server}\0{tool}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:_HASH]
