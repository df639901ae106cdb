"""Deadlines, in each state of a request."""

import pytest

from octavo_api.errors import (
    DeadlineExceeded,
)
from octavo_testing.router.fake_replica import never


async def test_the_deadline_ends_a_request_that_waits_for_admission(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    blocking = await fleet.pool.open(fleet.request())
    with pytest.raises(DeadlineExceeded):
        await fleet.ask(fleet.request(deadline=fleet.now() + 0.1))
    assert fleet.pool.queued_requests == 0
    await blocking.aclose()


async def test_the_deadline_ends_a_request_that_the_engine_does_not_answer(fleet):
    (a,) = await fleet.start("a")
    a.answer = never
    with pytest.raises(DeadlineExceeded):
        await fleet.ask(fleet.request(deadline=fleet.now() + 0.1))
    assert fleet.at_rest()
    await fleet.until(lambda: a.aborts)


async def test_a_request_past_its_deadline_is_not_sent(fleet):
    (a,) = await fleet.start("a")
    with pytest.raises(DeadlineExceeded):
        await fleet.ask(fleet.request(deadline=fleet.now() - 1))
    assert a.submits == []
