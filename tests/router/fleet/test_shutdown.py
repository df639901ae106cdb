"""The end of the pool: drain and close."""

import asyncio

import pytest

from octavo_api.errors import (
    Draining,
)
from octavo_testing.router.fake_replica import never


async def test_draining_finishes_accepted_requests_and_rejects_others(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.step_s = 0.05
    asked = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    await fleet.until(lambda: fleet.pool.queued_requests == 1)
    assert not await fleet.pool.drain(0.01)
    with pytest.raises(Draining):
        await fleet.ask()
    assert await fleet.pool.drain(20)
    assert [(await each)[0] for each in asked] == [{0: [0, 1, 2]}] * 2


async def test_closing_the_pool_ends_every_request_with_draining(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    asked = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    await fleet.until(lambda: fleet.pool.queued_requests == 1 and a.submits)
    await fleet.pool.close()
    for task in asked:
        with pytest.raises(Draining):
            await task
