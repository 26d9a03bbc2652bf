"""What a docstring says about a function and its parameters, in the styles of Google, NumPy and Sphinx.

A line that does not follow its style is left out; the good ones around it stay.
"""

from __future__ import annotations

import inspect
import re

from agentloop._frozen import field, frozen

_PARAMETER_SECTIONS = frozenset({
    "args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters", "attributes",
})  # fmt: skip
_OTHER_SECTIONS = frozenset({
    "returns", "return", "yields", "yield", "raises", "raise", "receives", "warns", "see also", "references", "todo",
})  # fmt: skip
_NAME = r"\*{0,2}(\w+)"
_NUMPY_ENTRY = r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?"
_FIELD = (
    r"[:@](?:(param|parameter|arg|argument|key|keyword|attribute|ivar)|type|vartype|returns?|rtype|raises?|except|yields?)"
    r"(?:\s([^:]*))?:(.*)"
)


@frozen
class Docstring:
    """The description without its sections, and the text of each parameter that has one."""

    description: str = ""
    parameters: dict[str, str] = field(factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring; never raises, and takes time linear in its length."""
    if not text or not text.strip():
        return Docstring()
    lines = inspect.cleandoc(text).split("\n")
    description: list[str] = []
    parameters: dict[str, str] = {}
    index, in_description = 0, True
    while index < len(lines):
        style, name = _opening(lines, index)
        if style is None:
            if in_description:
                description.append(lines[index])
            index += 1
            continue
        in_description = False
        end = _field_end(lines, index) if style == "field" else _section_end(lines, index, style)
        if style == "field":
            _read_field(lines[index:end], parameters)
        elif name in _PARAMETER_SECTIONS:
            body = lines[index + (2 if style == "numpy" else 1) : end]
            (_read_numpy if style == "numpy" else _read_google)(body, parameters)
        index = end
    return Docstring("\n".join(description).strip(), {name: text for name, text in parameters.items() if text})


def _opening(lines: list[str], index: int) -> tuple[str | None, str]:
    """Which style opens a section or field at this line, and the section's name."""
    line = lines[index]
    name = line.strip().removesuffix(":").lower()
    if name in _PARAMETER_SECTIONS or name in _OTHER_SECTIONS:
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        if len(following) >= 3 and not following.strip("-"):
            return "numpy", name
        if line.rstrip().endswith(":"):
            return "google", name
    if re.match(_FIELD, line):
        return "field", ""
    return None, ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _section_end(lines: list[str], start: int, style: str) -> int:
    """The line after a section: Google's ends where the indentation does, NumPy's at the next heading."""
    base = _indent(lines[start])
    index = start + (2 if style == "numpy" else 1)
    while index < len(lines):
        line = lines[index]
        if style == "google" and line.strip() and _indent(line) <= base:
            break
        if _opening(lines, index)[0] in ("numpy", "google") and _indent(line) <= base:
            break
        index += 1
    return index


def _field_end(lines: list[str], start: int) -> int:
    index = start + 1
    while index < len(lines) and lines[index].strip() and _indent(lines[index]) > _indent(lines[start]):
        index += 1
    return index


def _read_field(lines: list[str], parameters: dict[str, str]) -> None:
    match = re.match(_FIELD, lines[0])
    if match is None or match[1] is None or not (match[2] or "").split():
        return
    name = match[2].split()[-1].lstrip("*")  # a type may stand before the name
    parameters[name] = _joined([match[3], *lines[1:]])


def _read_google(lines: list[str], parameters: dict[str, str]) -> None:
    entry_indent = next((_indent(line) for line in lines if line.strip()), 0)
    name: str | None = None
    for line in lines:
        if line.strip() and _indent(line) <= entry_indent:
            name, text = _google_entry(line.strip())
            if name is not None:
                parameters[name] = text
        elif name is not None:
            parameters[name] = _joined([parameters[name], line])


def _google_entry(line: str) -> tuple[str | None, str]:
    """Name and text of `name: text` or `name (type): text`; no name where the line is neither."""
    match = re.match(_NAME, line)
    if match is None:
        return None, ""
    end = match.end()
    while line[end : end + 1] == " ":
        end += 1
    if line[end : end + 1] == "(":
        end = _closing(line, end)
    rest = line[end:].lstrip()
    return (match[1], rest[1:].strip()) if rest.startswith(":") else (None, "")


def _closing(line: str, start: int) -> int:
    """The index after the bracket that closes the one at `start`, or the line's end."""
    depth = 0
    for index in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[index], 0)
        if depth == 0:
            return index + 1
    return len(line)


def _read_numpy(lines: list[str], parameters: dict[str, str]) -> None:
    entry_indent = next((_indent(line) for line in lines if line.strip()), 0)
    names: list[str] = []
    for line in lines:
        if line.strip() and _indent(line) <= entry_indent:
            match = re.fullmatch(_NUMPY_ENTRY, line.strip())
            names = re.split(r"\s*,\s*", match[1]) if match else []
        else:
            for name in names:
                parameters[name] = _joined([parameters.get(name, ""), line])


def _joined(lines: list[str]) -> str:
    return " ".join([line.strip() for line in lines if line.strip()])
