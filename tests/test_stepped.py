"""What is stepped by hand: the rest of an async generator's methods, and what a wrapper passes on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentloop._stepped import Wrapper

pytestmark = pytest.mark.anyio


class Numbers(Wrapper[int]):
    """Gives what another iterator gives."""

    def __init__(self, events: AsyncIterator[int]) -> None:
        self._events = events

    async def __anext__(self) -> int:
        return await self._events.__anext__()


class Endless:
    """An iterator that has an `__anext__` and nothing else."""

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> int:
        return 1


class Run(Endless):
    """One that can do what a run can, and notes what it is asked."""

    def __init__(self, waits: bool) -> None:
        self.asked: list[str] = []
        self._waits = waits

    async def aclose(self) -> None:
        self.asked.append("aclose")

    def keep_alive(self) -> None:
        self.asked.append("keep_alive")

    def skip_wait(self) -> bool:
        self.asked.append("skip_wait")
        return self._waits


@pytest.mark.parametrize("waits", [True, False])
async def test_what_a_run_can_do_is_passed_on(waits: bool) -> None:
    """Each of the three reaches the wrapped run, and `skip_wait` says what that says."""
    run = Run(waits)
    wrapper = Numbers(run)
    wrapper.keep_alive()
    assert wrapper.skip_wait() is waits
    await wrapper.aclose()
    assert run.asked == ["keep_alive", "skip_wait", "aclose"]


async def test_around_a_plain_iterator_they_do_nothing() -> None:
    """No wait is going on there, and nothing is to be closed."""
    wrapper = Numbers(Endless())
    wrapper.keep_alive()
    assert wrapper.skip_wait() is False
    await wrapper.aclose()
    assert aiter(wrapper) is wrapper
    assert await wrapper.asend(None) == 1
