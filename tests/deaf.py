"""Code of a caller's that does not hear when it is told to stop."""

from __future__ import annotations

import asyncio

import anyio


async def deaf_until(release: anyio.Event) -> None:
    """Wait for the event and hear nothing else: no scope's cancellation, and none of asyncio's own."""
    with anyio.CancelScope(shield=True):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
