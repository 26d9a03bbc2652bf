"""The text of a context's summary: found in a model's reply, marked as the message that stands for the context."""

from __future__ import annotations

from typing import Final

_TAGS: Final = (("[summary]", "[/summary]"), ("<summary>", "</summary>"))
_OPENING, _CLOSING = "[context_summary]\n", "\n[/context_summary]"


def summary_text(text: str) -> str:
    """The summary in a model's reply: the first `[summary]` block that is not blank; else the text without the tags;
    else the text. The old `<summary>` form is read too."""
    words = tagged_summary(text)
    if words:
        return words
    bare = text
    for tag in (tag for pair in _TAGS for tag in pair):
        bare = bare.replace(tag, "")
    return bare.strip() or text.strip()


def tagged_summary(text: str) -> str:
    """What stands in the first block of `[summary]` (or the old `<summary>`) that is not blank; empty without one."""
    for opening, closing in _TAGS:
        at = 0
        while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start)) >= 0:
            words = text[start + len(opening) : end].strip()
            if words:
                return words
            at = end + len(closing)
    return ""


def context_summary(text: str) -> str:
    """The summary as the text that opens the new context."""
    return f"{_OPENING}{text}{_CLOSING}"


def is_context_summary(text: str) -> bool:
    """Whether the text is such an opening."""
    return text.startswith(_OPENING) and text.endswith(_CLOSING)
