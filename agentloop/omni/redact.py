"""Secrets out of records before they are stored: well-known shapes of keys, tokens and private keys become a mask.

Only shapes that are a secret and nothing else are masked, so that words, hashes and ids stay as they are. What a
provider gave as opaque (`fidelity`) and base64 data are left alone: changed, they would be of no use. The work is
linear: a pattern begins at a fixed word that does not stand inside a longer one, and no part of it has two ways to
match.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, Final

import attrs

from agentloop.omni.records import Record

__all__ = ["MASK_START", "MaskLog", "mask_secrets", "mask_text"]

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
        r"(?<![A-Za-z0-9_-])xox[abeoprs]-(?=[A-Za-z-]*+[0-9])[A-Za-z0-9-]{15,}+",
    ),
    _shape("aws key id", "AKIA|ASIA", r"(?<![A-Za-z0-9_-])A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _shape(
        "aws secret key",
        "ecret_access_key|ecretAccessKey|ECRET_ACCESS_KEY",
        r"(?P<keep>(?:[Ss]ecret_access_key|[Ss]ecretAccessKey|SECRET_ACCESS_KEY)[\"'\\:=\s]{1,16}+)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
    ),
    _key("json web token", "eyJ", r"[A-Za-z0-9_-]{17,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"),
    _shape(
        "bearer token",
        "earer |EARER ",
        r"(?P<keep>(?<![A-Za-z0-9])(?:[Bb]earer|BEARER) {1,4}+)(?=[A-Za-z._~+/-]*+[0-9])[A-Za-z0-9._~+/-]{16,}+=*+",
    ),
    _shape("password", "://", r"(?P<keep>://[^\s:/?#@\"'\\]{1,64}+:)[^\s/@\"'\\]{1,256}+(?=@)"),
    _shape("private key", "PRIVATE KEY", _PRIVATE_KEY),
)

# ---------------------------------------------------------------- a fast look

_RUN: Final = 20  # the shortest secret that is one word: an AWS key id
_TOKEN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_AS_RUNS: Final = bytes(97 if byte in _TOKEN else 32 for byte in range(256))
_LONG_RUN: Final = b"a" * _RUN
_LONG_WORD: Final = re.compile(rf"[A-Za-z0-9_-]{{{_RUN},}}+")
_BEGINNINGS: Final = (
    "sk-", "sk_live_", "sk_test_", "rk_live_", "rk_test_", "AIza", "gsk_", "xai-", "pplx-", "hf_", "r8_", "ghp_", "gho_",
    "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "pypi-AgE", "xox", "AKIA", "ASIA", "eyJ",
)  # fmt: skip


def _may_hold(text: str) -> bool:
    """False when no shape can stand in the text. Costs less than writing it."""
    if "@" in text and "://" in text:
        return True
    if len(text) < _RUN:
        return False
    if "earer " in text or "EARER " in text or "PRIVATE KEY" in text:
        return True
    if len(text) > 50 and ("ecret_access_key" in text or "ecretAccessKey" in text or "ECRET_ACCESS_KEY" in text):
        return True
    if _LONG_RUN not in text.encode("utf-8", "surrogatepass").translate(_AS_RUNS):
        return False
    return "ya29." in text or any(match[0].startswith(_BEGINNINGS) for match in _LONG_WORD.finditer(text))


_FLAT: Final = frozenset({
    "arguments", "decision", "error_code", "error_message", "finish_reason", "index", "is_error", "model", "name", "output",
    "provider", "request", "role", "sender", "session", "status", "stop_reason", "terminate", "text", "thinking",
    "tool_call_id", "tool_name", "type", "usage",
})  # fmt: skip
"""Fields of the frequent records: in a payload of no others only the values are looked at."""
_COUNTS: Final = frozenset({"cache_read", "cache_write", "output", "total"})


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(name in _COUNTS and type(value[name]) is int for name in value)


def _may_be_masked(record: Record) -> bool:
    """False when no shape can stand in a string of the record that may be masked."""
    payload: Any = record.get("payload")
    ours = len(record) == 3 and "timestamp" in record and "type" in record and isinstance(payload, dict)
    if ours and payload.keys() <= _FLAT:
        for key, value in payload.items():
            if isinstance(value, str):
                if (len(value) >= _RUN or "@" in value) and key not in _OPAQUE and _may_hold(value):
                    return True
            elif isinstance(value, dict | list) and not _is_counts(value):  # another writer's, where a word is due
                break
        else:
            return False
    return any(map(_may_hold, _texts(record)))


def _texts(record: Record) -> Iterator[str]:
    """Every string of a record that may be masked, keys included."""
    open_nodes: list[Any] = [record]
    while open_nodes:
        node = open_nodes.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(key, str) and node is not record:
                yield key
            if key in _OPAQUE or _is_data(node, key, value):
                continue
            if isinstance(value, str):
                yield value
            elif isinstance(value, dict | list):
                open_nodes.append(value)


# ---------------------------------------------------------------- masking

_OPAQUE: Final = frozenset({"fidelity", "tool_call_id", "session_id", "timestamp", "type"})


def mask_text(text: str) -> str:
    """The text with every secret of a known shape replaced by a mask that says what it was."""
    for shape in _SHAPES:
        for word in shape.words:
            if word in text:
                text = shape.pattern.sub(shape.mask, text)
                break
    return text


def mask_secrets(record: Record) -> Record:
    """The record with the secrets in its strings masked: a copy, or itself when it holds none. The default of what
    stores records."""
    if not _may_be_masked(record):
        return record
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


class MaskLog(logging.Filter):
    """Masks the secrets in log records, tracebacks included. Add it to a handler: `handler.addFilter(MaskLog())`.

    What is logged may quote a provider, a tool or an exception, and with it a secret. The record itself is changed, so a
    handler that comes later sees the masks even without the filter.
    """

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the words and the traceback; no record is held back."""
        record.msg, record.args = mask_text(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = mask_text(record.exc_text)
        if record.stack_info:
            record.stack_info = mask_text(record.stack_info)
        return True


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
