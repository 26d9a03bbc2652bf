"""Marked blocks in text: `[tag]`, a newline, the words, a newline, `[/tag]`; above all the summary of a context."""

from __future__ import annotations

from typing import Final

_OPENING, _CLOSING = "[context_summary]\n", "\n[/context_summary]"


def marked(tag: str, text: str) -> str:
    """The text as a marked block."""
    return f"[{tag}]\n{text}\n[/{tag}]"


def tag_pairs(tag: str) -> tuple[tuple[str, str], ...]:
    """What opens and what closes a block of that tag: the present form and the old one."""
    return (f"[{tag}]", f"[/{tag}]"), (f"<{tag}>", f"</{tag}>")


def marked_text(tag: str, text: str) -> str | None:
    """What stands in the first block of that tag, blank ends stripped; None without one. Reads the old `<tag>` too."""
    for opening, closing in tag_pairs(tag):
        start = text.find(opening)
        end = text.find(closing, start + len(opening)) if start >= 0 else -1
        if end >= 0:
            return text[start + len(opening) : end].strip()
    return None


_TAGS: Final = tag_pairs("summary")


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
    return marked("context_summary", text)


def is_context_summary(text: str) -> bool:
    """Whether the text is such an opening."""
    return text.startswith(_OPENING) and text.endswith(_CLOSING)
