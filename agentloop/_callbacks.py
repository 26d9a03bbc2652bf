"""How a callback of the caller's may end without an answer: a failure that names its setting, an interrupt, a stop."""

from __future__ import annotations

from typing import Any

from agentloop._values import plain_text, raise_order
from agentloop.tools import error_text


class Closed(BaseException):
    """The consumer has left: unwinds the driver. Never leaves it."""


class Stopped(Exception):
    """A stop came while a callback was awaited; the driver decides what it means."""


class CallbackFailed(Exception):
    """A callback of the caller's raised; `error` is what it raised, `text` its words, never blank."""

    def __init__(self, error: BaseException, text: str | None = None) -> None:
        self.error = error
        self.text = error_text(error) if text is None else text

    def of(self, setting: str, function: Any) -> CallbackFailed:
        """The same, told with the setting and the function: a bare `'key'` says nothing about where it comes from."""
        return CallbackFailed(self.error, f"{named(setting, function)} {raised(self.error)}")


def named(setting: str, function: Any) -> str:
    """A callback in words: its setting, and the function that stands there where that has a name of its own."""
    name = plain_text(attribute(function, "__name__"))
    return setting if name in (None, "<lambda>", setting.split()[-1]) else f"{setting} ({name})"


def attribute(value: Any, name: str) -> Any:
    """An attribute of a foreign object; None where there is none, or reading it fails (a lazy proxy without its object)."""
    try:
        return getattr(value, name, None)
    except BaseException as error:
        raise_order(error)
        return None


def raised(error: BaseException) -> str:
    """What was raised, with its class: the words alone may be no more than a key."""
    kind, text = type(error).__name__, error_text(error)
    return f"raised {kind}" if text == kind else f"raised {kind}: {text}"


def shown(answer: Any) -> str:
    """A wrong answer as an error's text shows it: a text as it is, anything else by its class."""
    said = plain_text(answer)
    return type(answer).__name__ if said is None else repr(said)


def looked_at(value: Any) -> Any:
    """The value, if it can say what it is: a lazy proxy whose object cannot be had raises wherever that is asked."""
    isinstance(value, type)
    return value
