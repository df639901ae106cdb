"""Limits of lengths and of numbers of requests."""

import asyncio

import pytest

from octavo_api.errors import (
    CacheCapacityExceeded,
    ContextLengthExceeded,
    QueueFull,
)
from octavo_api.settings import RouterSettings
from octavo_testing.router.fake_replica import never


async def test_a_request_above_the_context_length_names_both_numbers(fleet):
    (a,) = await fleet.start("a")
    with pytest.raises(ContextLengthExceeded, match=r"1200 prompt tokens.*1000"):
        await fleet.ask(fleet.request(1200))
    with pytest.raises(ContextLengthExceeded, match=r"900 prompt tokens.*200 output tokens = 1100.*1000") as raised:
        await fleet.ask(fleet.request(900, max_tokens=200))
    assert raised.value.param == "max_tokens"
    assert a.submits == []
    assert fleet.at_rest()


async def test_a_request_above_the_cache_capacity_names_both_numbers(fleet):
    a, b = fleet.create("a"), fleet.create("b")
    a.limits.kv_cache_tokens = 500
    await fleet.start("a", "b")
    assert fleet.pool.limits.kv_cache_tokens == 500
    with pytest.raises(CacheCapacityExceeded, match=r"600 prompt tokens.*500"):
        await fleet.ask(fleet.request(600))
    assert a.submits + b.submits == []


async def test_the_queue_is_bounded_and_first_come_first_served(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1, max_queued_requests=2)
    a.step_s = 0.02
    asked = [asyncio.create_task(fleet.ask(fleet.request(16 * (i + 1)))) for i in range(3)]
    await fleet.until(lambda: fleet.pool.queued_requests == 2)
    with pytest.raises(QueueFull, match="1 requests are running and 2 waiting") as raised:
        await fleet.ask()
    assert raised.value.retry_after_s >= 1
    await asyncio.gather(*asked)
    assert [len(submit.token_ids) for submit in a.submits] == [16, 32, 48]


async def test_settings_change_live(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    first = await fleet.pool.open(fleet.request())
    second = asyncio.create_task(fleet.pool.open(fleet.request()))
    await fleet.until(lambda: fleet.pool.queued_requests == 1)
    fleet.pool.reconfigure(RouterSettings(max_inflight_requests=2))
    await (await second).aclose()
    await first.aclose()
