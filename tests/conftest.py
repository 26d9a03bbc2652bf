"""What all tests share: the backends, the folder of handed data, and the check that nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "slow", parent=settings.get_profile("default"), max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "2000"))
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

BACKENDS: dict[str, Any] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture(params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Every async test runs on all three."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return BACKENDS[request.param]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of handed scenarios, recorded responses and traces beside the project."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "README.md").exists():
        pytest.skip("needs the folder ../shared beside the project (scenarios, recorded responses, sample traces)")
    return folder
