"""Types of the standard library that are written as text in JSON. Loaded when an annotation names one of their modules."""

from __future__ import annotations

import datetime
import decimal
import pathlib
import uuid
from typing import Any

from agentloop._jsontext import number_in
from agentloop._schema.scalars import ParsedText


def parsed_text(annotation: type) -> ParsedText | None:
    """The shape of such a type (of a path, of any subclass too); None for any other."""
    if issubclass(annotation, pathlib.PurePath):
        return ParsedText("a path", {}, annotation)
    return _SHAPES.get(annotation)


def _decimal(text: str) -> decimal.Decimal:
    if number_in(text) is None or text != text.strip():
        raise ValueError("no number")
    return decimal.Decimal(text)


_SHAPES: dict[Any, ParsedText] = {
    datetime.datetime: ParsedText(
        "a date and time such as 2026-01-31T09:30:00Z", {"format": "date-time"}, datetime.datetime.fromisoformat
    ),
    datetime.date: ParsedText("a date such as 2026-01-31", {"format": "date"}, datetime.date.fromisoformat),
    datetime.time: ParsedText("a time such as 09:30:00", {"format": "time"}, datetime.time.fromisoformat),
    uuid.UUID: ParsedText("a UUID", {"format": "uuid"}, uuid.UUID),
    decimal.Decimal: ParsedText(
        "a decimal number as text",
        {"pattern": "^-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?$"},
        _decimal,
        numeric=True,
    ),
}
