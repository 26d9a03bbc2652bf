"""An input in the reading, and what waits for the record after it."""

from __future__ import annotations

from typing import Any

from agentloop.messages import ContentBlock, CustomMessage, ToolResultMessage
from agentloop.omni._types import Payload, Record


class Desk:
    """What waits for the next record; the readers of a stream share one, since the next record may be any session's."""

    __slots__ = ("busy", "held", "owing")

    def __init__(self) -> None:
        self.busy = False
        """Whether anything waits."""
        self.held: Record | None = None
        """A record that the one after it explains."""
        self.owing: Any = None
        """The reader of a session whose input has opened and was not given yet."""

    def hold(self, record: Record) -> None:
        """Keep a record until the next one is there."""
        self.held, self.busy = record, True

    def owe(self, reader: Any) -> None:
        """An input opens: its start is owed until its end, or until anything else happens."""
        self.owing, self.busy = reader, True

    def clear(self) -> Record | None:
        """Forget what waits; gives the held record."""
        held, self.held = self.held, None
        self.owing, self.busy = None, False
        return held


class Input:
    """A message of the user, of an application, or a result, in the reading: it is given whole at its end."""

    __slots__ = ("blocks", "explicit", "given", "header", "message", "role", "sender")

    def __init__(self, role: str, header: Payload | None) -> None:
        self.role = role
        self.explicit = header is not None
        self.header: Payload = header or {}
        self.blocks: list[ContentBlock] = []
        self.sender: str | None = self.header.get("sender")
        self.message: CustomMessage | ToolResultMessage | None = None
        """Where it is known before its end."""
        self.given = False
        """Whether its start is out."""
