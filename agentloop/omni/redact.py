"""Secrets out of records before they are stored: well-known shapes of keys, tokens and private keys become a mask.

Only shapes that are a secret and nothing else are masked, so that words, hashes and ids stay as they are. What a
provider gave as opaque (`fidelity`) and base64 data are left alone: changed, they would be of no use. The work is
linear: a pattern begins at a fixed word that does not stand inside a longer one, and no part of it has two ways to
match.
"""

from __future__ import annotations

import re
from typing import Any, Final

import attrs

from agentloop.omni.records import Record

MASK_START: Final = "[masked "
"""How every mask begins: `[masked github token]`. It holds no quote and no backslash, so JSON text stays JSON text."""


@attrs.frozen
class _Shape:
    name: str
    words: tuple[str, ...]  # the pattern cannot match a text that holds none of them
    pattern: re.Pattern[str]
    mask: str  # a template: what the pattern calls `keep` stays before it


def _shape(name: str, words: str, pattern: str) -> _Shape:
    keep = r"\g<keep>" if "?P<keep>" in pattern else ""
    return _Shape(name, tuple(words.split("|")), re.compile(pattern), f"{keep}{MASK_START}{name}]")


def _key(name: str, word: str, rest: str) -> _Shape:
    """A secret that begins with a fixed word, which is not the end of a longer one."""
    return _shape(name, word, rf"(?<![A-Za-z0-9_-]){re.escape(word)}{rest}")


_BREAK = r"(?:\s|\\{1,8}[nr])"  # a line break, also escaped in JSON text, also in JSON text inside of such
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----)){0,20000}+-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"  # whole
    rf"|{_BREAK}*+(?:[A-Za-z0-9+/=]{{16,}}+{_BREAK}*+)*+)"  # cut off
)

_SHAPES: Final = (
    _key("anthropic key", "sk-ant-", r"[A-Za-z0-9_-]{16,}+"),
    _key("openrouter key", "sk-or-", r"[A-Za-z0-9_-]{16,}+"),
    _key("api key", "sk-", r"(?=[A-Za-z_-]*+[0-9])[A-Za-z0-9_-]{20,}+"),
    _shape("stripe key", "k_live_|k_test_", r"(?<![A-Za-z0-9_-])[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+"),
    _key("google key", "AIza", r"[A-Za-z0-9_-]{35,}+"),
    _key("google token", "ya29.", r"[A-Za-z0-9_-]{20,}+"),
    _key("groq key", "gsk_", r"[A-Za-z0-9]{20,}+"),
    _key("xai key", "xai-", r"[A-Za-z0-9]{20,}+"),
    _key("perplexity key", "pplx-", r"[A-Za-z0-9]{20,}+"),
    _key("hugging face token", "hf_", r"[A-Za-z0-9]{20,}+"),
    _key("replicate token", "r8_", r"[A-Za-z0-9]{20,}+"),
    _shape("github token", "ghp_|gho_|ghu_|ghs_|ghr_", r"(?<![A-Za-z0-9_-])gh[pousr]_[A-Za-z0-9]{30,}+"),
    _key("github token", "github_pat_", r"[A-Za-z0-9_]{30,}+"),
    _key("gitlab token", "glpat-", r"[A-Za-z0-9_-]{20,}+"),
    _key("npm token", "npm_", r"[A-Za-z0-9]{30,}+"),
    _key("pypi token", "pypi-AgE", r"[A-Za-z0-9_-]{30,}+"),
    _shape(
        "slack token",
        "xoxa-|xoxb-|xoxe-|xoxo-|xoxp-|xoxr-|xoxs-",
        r"(?<![A-Za-z0-9_-])xox[abeoprs]-(?=[A-Za-z-]*+[0-9])[A-Za-z0-9-]{10,}+",
    ),
    _shape("aws key id", "AKIA|ASIA", r"(?<![A-Za-z0-9_-])A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape(
        "aws secret key",
        "ecret_access_key|ecretAccessKey|ECRET_ACCESS_KEY",
        r"(?P<keep>(?i:secret_access_key|secretaccesskey)[\"'\\:=\s]{1,16}+)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
    ),
    _key("json web token", "eyJ", r"[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"),
    _shape(
        "bearer token",
        "earer |EARER ",
        r"(?P<keep>(?<![A-Za-z0-9])(?i:bearer) {1,4}+)(?=[A-Za-z._~+/-]*+[0-9])[A-Za-z0-9._~+/-]{16,}+=*+",
    ),
    _shape("password", "://", r"(?P<keep>://[^\s:/?#@\"'\\]{1,64}+:)[^\s/@\"'\\]{1,256}+(?=@)"),
    _shape("private key", "PRIVATE KEY", _PRIVATE_KEY),
)

_WORDS: Final = tuple({word for shape in _SHAPES for word in shape.words} - {"sk-ant-", "sk-or-"})  # `sk-` covers them
_BYTES: Final = tuple(word.encode() for word in _WORDS)

_OPAQUE: Final = frozenset({"fidelity", "tool_call_id", "session_id", "timestamp", "type"})


def may_hold_secret(line: bytes) -> bool:
    """A fast look at a record's JSON text: False when no shape can stand in it."""
    return any(word in line for word in _BYTES)


def mask_text(text: str) -> str:
    """The text with every secret of a known shape replaced by a mask that says what it was."""
    for shape in _SHAPES:
        for word in shape.words:
            if word in text:
                text = shape.pattern.sub(shape.mask, text)
                break
    return text


def mask_secrets(record: Record) -> Record:
    """A copy of the record with the secrets in its strings masked: the default of what stores records."""
    copy = dict(record)
    open_nodes: list[Any] = [copy]  # no recursion: a record of a foreign file may be deep
    while open_nodes:
        node = open_nodes.pop()
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if key in _OPAQUE or _is_data(node, key, value):
                continue
            if isinstance(value, str):
                node[key] = mask_text(value)
            elif isinstance(value, dict | list):
                child = _masked_keys(value) if isinstance(value, dict) else list(value)
                node[key] = child
                open_nodes.append(child)
    return copy


def _is_data(node: Any, key: Any, value: Any) -> bool:
    """Base64: the data of a block, or a `data:` URL."""
    if not isinstance(value, str):
        return False
    return (key == "data" and "mime_type" in node) or (value.startswith("data:") and ";base64," in value[:200])


def _masked_keys(value: dict[str, Any]) -> dict[str, Any]:
    """A copy whose keys hold no secret; two that become equal stay two."""
    masked: dict[str, Any] = {}
    for key, item in value.items():
        name = fresh = mask_text(key)
        number = 2
        while fresh != key and fresh in masked:
            fresh, number = f"{name} {number}", number + 1
        masked[fresh] = item
    return masked
