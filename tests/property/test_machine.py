"""The state machine that plays with the loop, on each backend."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import settings

from agentloop.testing.machine import LoopMachine


class UvloopMachine(LoopMachine):
    backend_options: ClassVar[dict[str, Any]] = {"use_uvloop": True}


class TrioMachine(LoopMachine):
    backend = "trio"


class TestOnAsyncio(LoopMachine.TestCase):
    """The machine finds nothing on asyncio."""


class TestOnUvloop(UvloopMachine.TestCase):
    """The machine finds nothing on uvloop."""


class TestOnTrio(TrioMachine.TestCase):
    """The machine finds nothing on trio."""


TestOnAsyncio.settings = TestOnUvloop.settings = TestOnTrio.settings = settings(
    settings.default, stateful_step_count=30
)
