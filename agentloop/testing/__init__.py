"""What tests of agents need: a scripted model, a virtual clock, and ways to look at what a run yields.

Importing this needs nothing but the core. The strategies (`agentloop.testing.strategies`) need hypothesis.
"""

from __future__ import annotations

from agentloop.testing.clock import VirtualClock, wait_all_blocked
from agentloop.testing.collect import collect, collect_sync
from agentloop.testing.scripted import (
    CUT,
    STALL,
    ScriptedCall,
    ScriptedModel,
    call,
    sleep,
    text,
    thinking,
)
from agentloop.testing.snapshot import snapshot

__all__ = [
    "CUT",
    "STALL",
    "ScriptedCall",
    "ScriptedModel",
    "VirtualClock",
    "call",
    "collect",
    "collect_sync",
    "sleep",
    "snapshot",
    "text",
    "thinking",
    "wait_all_blocked",
]
