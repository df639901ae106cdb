import pytest

from octavo_testing.router.fleet import Fleet


@pytest.fixture
async def fleet():
    """A fleet that must be at rest at the end of the test."""
    fleet = Fleet()
    yield fleet
    if fleet.pool is not None:
        await fleet.until(fleet.at_rest)
    await fleet.close()
