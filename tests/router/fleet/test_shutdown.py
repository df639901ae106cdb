"""The end of the pool."""

import asyncio

import pytest

from octavo_api.errors import (
    Draining,
)
from octavo_testing.router.fake_replica import never


async def test_closing_the_pool_ends_every_request_with_draining(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    asked = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    await fleet.until(lambda: fleet.pool.queued_requests == 1 and a.submits)
    await fleet.pool.close()
    for task in asked:
        with pytest.raises(Draining):
            await task


async def test_a_request_that_comes_while_the_pool_closes_is_rejected(fleet):
    await fleet.start("a")
    closing = asyncio.create_task(fleet.pool.close())
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await fleet.ask()
    await closing
    with pytest.raises(Draining):
        await fleet.ask()
