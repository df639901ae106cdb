"""Retries: after a refusal, and after the loss of a replica."""

import asyncio

import pytest

from octavo_api.errors import (
    Draining,
    InvalidRequest,
    NoReplica,
    QueueFull,
    ReplicaLost,
)
from octavo_api.v1 import replica_pb2
from octavo_router.routing.route import Reason
from octavo_testing.router.fake_replica import ERROR, never, one_token, one_token_of_each


async def b_looks_busy(fleet):
    """Let the next request go to replica a."""
    fleet.replicas["b"].load.waiting_uncached_tokens = 10_000

    def waiting():
        return [each.load.waiting_uncached_tokens for each in fleet.pool.replicas() if each.load]

    await fleet.until(lambda: waiting() == [0, 10_000])


async def test_an_invalid_request_is_not_retried(fleet):
    a, b = await fleet.start("a", "b")
    for replica in (a, b):
        replica.refuse("InvalidRequest", "temperature: got 9, allowed: less")
    with pytest.raises(InvalidRequest, match="temperature: got 9"):
        await fleet.ask()
    assert len(a.submits) + len(b.submits) == 1


@pytest.mark.parametrize("kind", ["Draining", "QueueFull"])
async def test_a_refused_request_goes_to_another_replica(fleet, kind):
    a, _ = await fleet.start("a", "b")
    await b_looks_busy(fleet)
    a.refuse(kind)
    tokens, route = await fleet.ask()
    assert tokens == {0: [0, 1, 2]}
    assert (route.replica, route.reason) == ("b", Reason.RETRY)
    assert len(a.submits) == 1


async def test_if_every_replica_is_full_the_refusal_is_raised(fleet):
    a, b = await fleet.start("a", "b")
    for replica in (a, b):
        replica.refuse("QueueFull", "512 requests are waiting")
    with pytest.raises(QueueFull, match="512"):
        await fleet.ask()
    assert len(a.submits) == len(b.submits) == 1


async def test_the_refusal_of_a_single_replica_is_raised_at_once(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.CONNECT_GRACE_S", 30.0)
    (a,) = await fleet.start("a")
    a.refuse("QueueFull", "512 requests are waiting")
    began = fleet.now()
    with pytest.raises(QueueFull, match="512"):
        await fleet.ask()
    assert fleet.now() - began < 5


async def test_a_replica_lost_before_the_first_token_is_replaced(fleet):
    a, b = await fleet.start("a", "b")
    for replica in (a, b):
        replica.answer = never
    task = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: a.submits or b.submits)
    dying, other = (a, b) if a.submits else (b, a)
    other.answer = None
    await dying.die()
    tokens, route = await task
    assert tokens == {0: [0, 1, 2]}
    assert (route.replica, route.reason) == (other.name, Reason.RETRY)
    assert other.submits[0].token_ids == dying.submits[0].token_ids


async def test_tokens_that_were_not_read_do_not_prevent_a_retry(fleet):
    a, b = await fleet.start("a", "b")
    for replica in (a, b):
        replica.answer = one_token
    stream = await fleet.pool.open(fleet.request())
    await fleet.until(lambda: a.submits or b.submits)
    await asyncio.sleep(0.05)
    dying, other = (a, b) if a.submits else (b, a)
    other.answer = None
    await dying.die()
    await fleet.until(lambda: {each.name: each.state for each in fleet.pool.replicas()}[dying.name] == "connecting")
    assert (await fleet.read(stream))[0] == {0: [0, 1, 2]}


async def test_a_replica_lost_after_a_token_is_an_error_that_names_it(fleet):
    (a,) = await fleet.start("a")
    a.answer = one_token
    stream = await fleet.pool.open(fleet.request())
    assert list((await anext(stream))[0].token_ids) == [7]
    await a.die()
    with pytest.raises(ReplicaLost, match="replica a"):
        await anext(stream)
    assert fleet.at_rest()


async def test_a_buffered_answer_restarts_elsewhere_after_any_token(fleet):
    a, b = await fleet.start("a", "b")
    a.answer = b.answer = one_token
    stream = await fleet.pool.open(fleet.request(buffered=True))
    assert list((await anext(stream))[0].token_ids) == [7]
    dying, other = (a, b) if a.submits else (b, a)
    other.answer = None
    assert stream.restarts == 0
    await dying.die()
    assert (await fleet.read(stream))[0] == {0: [0, 1, 2]}
    assert stream.restarts == 1
    assert fleet.at_rest()


async def test_every_choice_of_a_buffered_answer_restarts_only_once(fleet):
    """Restart a request that kills its engine only once, so that it does not kill all engines."""
    a, b, c = await fleet.start("a", "b", "c")
    a.answer = b.answer = c.answer = one_token_of_each
    stream = await fleet.pool.open(fleet.request(n=2, buffered=True))
    await anext(stream)
    stream.abort_choice(0)
    dying = next(each for each in (a, b, c) if each.submits)
    await dying.die()
    second = []
    while not {0, 1} <= {output.choice for output in second}:
        second += await anext(stream)
    assert stream.restarts == 1
    await next(each for each in (a, b, c) if each.submits and each is not dying).die()
    with pytest.raises(ReplicaLost):
        await anext(stream)
    assert fleet.at_rest()


async def test_a_buffered_answer_restarts_if_its_engine_stops(fleet):
    a, b = await fleet.start("a", "b")
    taken = asyncio.Event()

    async def one_token_and_no_more(gateway, submit):
        await one_token(gateway, submit)
        await taken.wait()
        error = Draining("the replica has stopped").to_proto()
        gateway.send(outputs=[replica_pb2.Output(id=submit.id, finish_reason=ERROR, error=error)])

    a.answer = b.answer = one_token_and_no_more
    stream = await fleet.pool.open(fleet.request(buffered=True))
    assert list((await anext(stream))[0].token_ids) == [7]
    (b if a.submits else a).answer = None
    taken.set()
    assert (await fleet.read(stream))[0] == {0: [0, 1, 2]}
    assert fleet.at_rest()


async def test_an_earlier_refusal_is_forgotten_once_another_engine_answers(fleet):
    a, b = await fleet.start("a", "b")
    a.refuse("QueueFull")
    b.answer = one_token
    await b_looks_busy(fleet)
    stream = await fleet.pool.open(fleet.request(buffered=True))
    await anext(stream)
    assert a.submits
    await b.die()
    with pytest.raises(NoReplica):
        await anext(stream)
    assert fleet.at_rest()


async def test_a_single_replica_that_is_lost_has_no_replacement(fleet):
    (a,) = await fleet.start("a")
    a.answer = never
    task = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: a.submits)
    await a.die()
    with pytest.raises(NoReplica, match="tried a"):
        await task
    assert fleet.at_rest()


async def test_a_request_is_sent_to_at_most_three_replicas(fleet):
    replicas = await fleet.start("a", "b", "c", "d")
    for replica in replicas:
        replica.answer = never
    task = asyncio.create_task(fleet.ask())
    tried = []
    for _ in range(3):
        await fleet.until(lambda: any(each.submits for each in replicas if each not in tried))
        tried.append(next(each for each in replicas if each.submits and each not in tried))
        await tried[-1].die()
    with pytest.raises(ReplicaLost, match="3 replicas"):
        await task
