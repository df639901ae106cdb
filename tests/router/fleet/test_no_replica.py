"""Requests without a replica to go to, if replicas do not start on demand."""

import asyncio

import pytest

from octavo_api.errors import (
    NoReplica,
)
from octavo_router.fleet.replica_status import ReplicaAddress
from octavo_testing.processes import free_ports


async def test_without_any_known_replica_a_request_is_rejected_at_once(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.CONNECT_GRACE_S", 30.0)
    await fleet.start()
    began = fleet.now()
    with pytest.raises(NoReplica, match="no engine replica is known") as raised:
        await fleet.ask()
    assert raised.value.retry_after_s
    assert fleet.now() - began < 5


async def test_a_request_waits_a_moment_for_a_connecting_replica(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.CONNECT_GRACE_S", 20.0)
    a = fleet.create("a")
    await a.start()
    await fleet.start()
    fleet.pool.update_replicas([a.address])
    assert (await fleet.ask())[0] == {0: [0, 1, 2]}


async def test_a_request_does_not_wait_long_for_an_unreachable_replica(fleet):
    await fleet.start()
    fleet.pool.update_replicas([ReplicaAddress("a", "127.0.0.1", *free_ports(1))])
    with pytest.raises(NoReplica, match="a: connecting"):
        async with asyncio.timeout(20):
            await fleet.ask()
