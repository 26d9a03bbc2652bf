import pytest
from hypothesis import given, settings
from .world import *
pytestmark = pytest.mark.anyio

@given(plan=plans())
async def test_all(plan, anyio_backend_name):
    async with nothing_left():
        world=World(plan)
        await world.play()
