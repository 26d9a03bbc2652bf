"""What all tests share: the backends, the folder of handed data, and the check that nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers

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


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves a thread or a socket; warnings are errors by the settings in pyproject.toml."""
    with leftovers.no_thread_and_no_socket():
        yield


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """No async test leaves a task: looked at while its event loop still runs, since its end would hide them."""
    leftovers.wrap(pyfuncitem)
    return (yield)
