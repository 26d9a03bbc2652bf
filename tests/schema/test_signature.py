"""How functions are looked into: what is inside, how it runs, where the context goes."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest

from agentloop._schema.signature import context_parameter, display_name, inner_function, kind_of
from agentloop.errors import ToolDefinitionError


async def plain(arguments: Any) -> None: ...


class Thing:
    async def method(self, arguments: Any) -> None: ...

    def __call__(self, arguments: Any) -> None: ...


class Inner:
    def __init__(self) -> None:
        self.function = plain

    __call__ = functools.partialmethod(Thing.__call__)


def test_the_function_inside() -> None:
    """Through partials, methods and objects, however they are nested."""
    assert inner_function(functools.partial(functools.partial(plain))) is plain
    assert inner_function(functools.partial(Thing().method, 1)) is Thing.method
    assert inner_function(Thing()) is Thing.__call__
    assert inner_function(staticmethod(plain)) is plain
    assert inner_function(print) is print
    assert inner_function(Thing) is Thing


def test_kinds_of_odd_callables() -> None:
    """A class is called, a built-in too; what is marked as a coroutine function is awaited."""
    assert kind_of(Thing) == "sync"
    assert kind_of(print) == "sync"
    assert kind_of(functools.partial(Thing().method)) == "async"
    if sys.version_info >= (3, 12):
        import inspect

        def marked(arguments: Any) -> Any:
            return plain(arguments)

        assert kind_of(inspect.markcoroutinefunction(marked)) == "async"


def test_names_for_errors() -> None:
    """The function's, through partials; an object's class where it has none."""
    assert display_name(functools.partial(plain)) == "plain"
    assert display_name(Thing().method) == "method"
    assert display_name(Thing()) == "Thing"


def test_where_the_context_goes() -> None:
    """A built-in whose signature nobody knows gets what every tool may get."""
    assert context_parameter(plain) is None
    assert context_parameter(lambda arguments, context: None) == "second"
    assert context_parameter(lambda arguments, n=1, *, ctx=None: None) == "keyword"
    assert context_parameter(max) == "second"
    with pytest.raises(ToolDefinitionError, match="nothing: expected a function of"):
        context_parameter(functools.partial(nothing))


def nothing() -> None: ...
