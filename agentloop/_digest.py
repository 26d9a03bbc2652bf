"""What an answer is bound to: a digest of the tool's name and the arguments as they were shown."""

from __future__ import annotations

import hashlib


def shown_digest(tool_name: str, arguments: str) -> str:
    """The SHA-256, in hexadecimal, of name and arguments text; the same in every process and version of this package."""
    return hashlib.sha256(f"{len(tool_name)}:{tool_name}{arguments}".encode("utf-8", "surrogatepass")).hexdigest()
