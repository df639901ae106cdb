"""Replicas that start on demand: requests wait for the first one, in bounded number and time."""

import asyncio
import time

import pytest

from octavo_api.errors import Draining, NoReplica
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.fleet.holding import HOLD_RETRY_AFTER_S

ERROR = sampling_pb2.FINISH_REASON_ERROR


async def start_holding(fleet, *names, **settings):
    await fleet.start(*names, **settings)
    fleet.pool.hold_requests(True)


async def test_all_requests_wait_for_the_first_replica_wanted_once(fleet):
    await start_holding(fleet)
    asked = [asyncio.create_task(fleet.ask()) for _ in range(20)]
    await fleet.until(lambda: fleet.pool.queued_requests == 20)
    assert fleet.wanted == [True]
    replica = await fleet.create("a").start()
    fleet.pool.update_replicas([replica.address])
    assert {tokens[0][-1] for tokens, _ in await asyncio.gather(*asked)} == {2}
    assert fleet.wanted == [True, False]


async def test_the_number_of_held_requests_is_bounded(fleet):
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


async def test_a_queue_of_length_zero_still_starts_a_replica(fleet):
    await start_holding(fleet, max_queued_requests=0)
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.wanted == [True])
    replica = await fleet.create("a").start()
    fleet.pool.update_replicas([replica.address])
    await asked


async def test_a_request_held_in_vain_is_rejected_before_its_deadline(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.HOLD_MARGIN_S", 5.0)
    await start_holding(fleet)
    deadline = fleet.now() + 5.3
    with pytest.raises(NoReplica, match="started within") as refused:
        await fleet.ask(fleet.request(deadline=deadline))
    assert fleet.now() < deadline
    assert refused.value.retry_after_s == HOLD_RETRY_AFTER_S
    assert fleet.wanted == [True, False]


async def test_a_late_event_loop_rejects_a_held_request_the_same_way(fleet):
    await start_holding(fleet)
    asked = asyncio.create_task(fleet.ask(fleet.request(deadline=fleet.now() + 0.5)))
    await fleet.until(lambda: fleet.pool.queued_requests == 1)
    time.sleep(0.8)  # noqa: ASYNC251 - the blocking is the point
    with pytest.raises(NoReplica, match="started within"):
        await asked


async def test_a_request_refused_by_the_last_draining_replica_waits(fleet):
    await start_holding(fleet, "a")
    a = fleet.replicas["a"]

    async def drain(gateway, submit):
        """Drain as an engine does: the load reports it before the refusal."""
        a.load.draining = True
        a.step()
        error = replica_pb2.Error(kind="Draining", message="the replica is draining")
        gateway.send(outputs=[replica_pb2.Output(id=submit.id, finish_reason=ERROR, error=error)])

    a.answer = drain
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.wanted == [True])
    replica = await fleet.create("b").start()
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
    replica = await fleet.create("b").start()
    fleet.pool.update_replicas([replica.address])
    await asked


async def test_held_requests_are_rejected_when_holding_ends(fleet):
    await start_holding(fleet)
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.pool.queued_requests)
    fleet.pool.hold_requests(False)
    with pytest.raises(NoReplica, match="no engine replica is known"):
        await asked


async def test_held_requests_are_rejected_when_the_pool_closes(fleet):
    await start_holding(fleet)
    asked = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: fleet.pool.queued_requests)
    await fleet.pool.close()
    with pytest.raises(Draining):
        await asked
