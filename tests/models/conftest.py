"""What the tests of adapters get: a server that answers as a provider would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentloop.testing.wire import WireServer


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    """One for a file."""
    with WireServer() as running:
        yield running
