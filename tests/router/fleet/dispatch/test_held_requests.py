"""Replicas that come when they are asked for: requests wait for the first one, are bounded, and are told in time."""

import asyncio
import time

import pytest

from octavo_api.errors import Draining, NoReplica
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.fleet.holding import HOLD_RETRY_AFTER_S

ERROR = sampling_pb2.FINISH_REASON_ERROR


def now():
    return asyncio.get_running_loop().time()


async def start_holding(fleet, *names, **settings):
    await fleet.start(*names, **settings)
    fleet.pool.hold_requests(True)


async def test_all_wait_for_the_first_replica_and_it_is_asked_for_once(fleet):
    await start_holding(fleet)
    asked = [asyncio.create_task(fleet.ask()) for _ in range(20)]
    await fleet.until(lambda: fleet.pool.queued_requests == 20)
    assert fleet.wanted == [True]
    replica = await fleet.make("a").start()
    fleet.pool.update_replicas([replica.address])
    assert {tokens[0][-1] for tokens, _ in await asyncio.gather(*asked)} == {2}
    assert fleet.wanted == [True, False]


async def test_no_more_wait_than_may_queue(fleet):
    await start_holding(fleet, max_queued_requests=2)
    waiting = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    await fleet.until(lambda: fleet.pool.queued_requests == 2)
    with pytest.raises(NoReplica, match="2 requests already wait") as refused:
        await fleet.ask()
    assert refused.value.retry_after_s == HOLD_RETRY_AFTER_S
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert (fleet.pool.queued_requests, fleet.wanted) == (0, [True, False])


async def test_a_queue_of_none_still_wakes_a_replica(fleet):
    await start_holding(fleet, max_queued_requests=0)
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.wanted == [True])
    replica = await fleet.make("a").start()
    fleet.pool.update_replicas([replica.address])
    await asked


async def test_who_waits_in_vain_is_told_before_the_deadline(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.HOLD_MARGIN_S", 5.0)
    await start_holding(fleet)
    deadline = now() + 5.3
    with pytest.raises(NoReplica, match="started within") as refused:
        await fleet.ask(fleet.request(deadline=deadline))
    assert now() < deadline
    assert refused.value.retry_after_s == HOLD_RETRY_AFTER_S
    assert fleet.wanted == [True, False]


async def test_a_loop_that_was_late_tells_who_waited_in_vain_the_same(fleet):
    await start_holding(fleet)
    asked = asyncio.create_task(fleet.ask(fleet.request(deadline=now() + 0.5)))
    await fleet.until(lambda: fleet.pool.queued_requests == 1)
    time.sleep(0.8)  # noqa: ASYNC251 - the blocking is the point
    with pytest.raises(NoReplica, match="started within"):
        await asked


async def test_a_request_that_the_last_replica_refuses_as_it_drains_waits_for_the_next(fleet):
    await start_holding(fleet, "a")
    a = fleet.replicas["a"]

    async def drain(gateway, submit):
        """As an engine that has just begun to drain: its load says so before its refusal does."""
        a.load.draining = True
        a.step()
        error = replica_pb2.Error(kind="Draining", message="the replica is draining")
        gateway.send(outputs=[replica_pb2.Output(id=submit.id, finish_reason=ERROR, error=error)])

    a.answer = drain
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.wanted == [True])
    replica = await fleet.make("b").start()
    fleet.pool.update_replicas([replica.address])
    _, route = await asked
    assert route.replica == "b"


async def test_a_request_waits_while_the_last_replica_drains(fleet):
    await start_holding(fleet, "a")
    fleet.replicas["a"].load.draining = True
    fleet.replicas["a"].step()
    await fleet.until(lambda: not any(each.routable for each in fleet.pool.replicas()))
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.wanted == [True])
    replica = await fleet.make("b").start()
    fleet.pool.update_replicas([replica.address])
    await asked


async def test_they_are_refused_when_replicas_do_not_come_by_themselves_any_more(fleet):
    await start_holding(fleet)
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.pool.queued_requests)
    fleet.pool.hold_requests(False)
    with pytest.raises(NoReplica, match="no engine replica is known"):
        await asked


@pytest.mark.parametrize("end", ["drain", "close"])
async def test_they_are_refused_by_a_gateway_that_goes(fleet, end):
    await start_holding(fleet)
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.pool.queued_requests)
    if end == "drain":
        assert await fleet.pool.drain(5)
    else:
        await fleet.pool.close()
    with pytest.raises(Draining):
        await asked
