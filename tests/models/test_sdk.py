"""What stands around an SDK: loading it, and closing what it leaves."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import pytest

from agentloop.errors import MissingExtra
from agentloop.models._held import close_shielded
from agentloop.models._sdk import load_sdk


def test_a_broken_sdk_is_not_a_missing_one(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK that is not there names the extra; one that fails to import says why itself."""
    with pytest.raises(MissingExtra, match=r"agentloop\[some\]"):
        load_sdk("no_such_sdk_here", "some")
    (tmp_path / "broken_sdk_here.py").write_text("import what_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        load_sdk("broken_sdk_here", "some")
    assert "broken_sdk_here" not in sys.modules


@pytest.mark.anyio
async def test_closing_is_shielded_bounded_and_silent() -> None:
    """A close runs also while its task is cancelled, gives up after its bound, and its failure is nobody's."""
    closed = []

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        closed.append(True)

    async def fail() -> None:
        raise OSError("gone")

    with anyio.CancelScope() as scope:
        scope.cancel()
        await close_shielded(close)
    assert closed == [True]
    await close_shielded(fail)
    await close_shielded(anyio.sleep_forever, bound=0.01)
