"""A request from open to its end, and all the ways in which it can end."""

import asyncio
import contextlib

import pytest

from octavo_api.errors import (
    CacheCapacityExceeded,
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailure,
    InvalidRequest,
    NoReplica,
    QueueFull,
    ReplicaLost,
)
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.fleet.replica_status import ReplicaAddress
from octavo_router.routing.route import Reason


def now():
    return asyncio.get_running_loop().time()


ERROR = sampling_pb2.FINISH_REASON_ERROR


async def never(gateway, submit):
    """Takes the request and says nothing."""


async def one_token(gateway, submit):
    gateway.send(outputs=[replica_pb2.Output(id=submit.id, token_ids=[7])])


async def a_token_of_each(gateway, submit):
    outputs = [replica_pb2.Output(id=submit.id, choice=choice, token_ids=[7]) for choice in range(submit.sampling.n)]
    gateway.send(outputs=outputs)


async def test_tokens_arrive_in_order_and_the_stream_ends(fleet):
    await fleet.start("a")
    tokens, route = await fleet.ask()
    assert tokens == {0: [0, 1, 2]}
    assert (route.replica, route.reason, route.policy) == ("a", Reason.COLD, "prefix")
    assert fleet.at_rest()


async def test_the_engine_gets_tokens_hashes_and_all_that_was_asked(fleet):
    (a,) = await fleet.start("a")
    await fleet.ask(fleet.request(40, priority=3, salt="tenant", temperature=0.5, seed=9, deadline=now() + 5))
    (submit,) = a.submits
    assert list(submit.token_ids) == list(range(40))
    assert len(submit.hashes) == 2 * 16
    assert (submit.priority, submit.cache_salt, submit.sampling.seed) == (3, "tenant", 9)
    assert 4 < submit.timeout_s <= 5


async def test_every_choice_arrives(fleet):
    await fleet.start("a")
    tokens, _ = await fleet.ask(fleet.request(n=3))
    assert tokens == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}


async def test_outputs_for_a_slow_reader_are_merged_and_none_is_lost(fleet):
    (a,) = await fleet.start("a")
    a.tokens = 50
    stream = await fleet.pool.open(fleet.request())
    await fleet.until(fleet.at_rest)
    turns = [outputs async for outputs in stream]
    assert [list(output.token_ids) for output in turns[0]] == [list(range(50))]
    assert len(turns) == 1


async def test_a_request_ends_when_its_last_output_arrives_not_when_it_is_read(fleet):
    await fleet.start("a", max_inflight_requests=1)
    unread = await fleet.pool.open(fleet.request())
    await fleet.until(fleet.at_rest)
    await fleet.ask()
    assert (await fleet.read(unread))[0] == {0: [0, 1, 2]}


async def test_closing_a_stream_aborts_it_in_the_engine_once(fleet):
    (a,) = await fleet.start("a")
    a.answer = one_token
    stream = await fleet.pool.open(fleet.request())
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    assert fleet.at_rest()
    await fleet.until(lambda: a.aborts)
    assert a.aborts == [(a.submits[0].id, None)]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_stream_that_ended_is_not_aborted(fleet):
    (a,) = await fleet.start("a")
    await fleet.ask()
    await asyncio.sleep(0.05)
    assert a.aborts == []


async def test_cancelling_the_reader_and_closing_leaves_nothing(fleet):
    (a,) = await fleet.start("a")
    a.answer = never
    task = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: a.submits)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fleet.at_rest()
    await fleet.until(lambda: a.aborts)


async def test_one_choice_is_aborted_and_the_others_go_on(fleet):
    (a,) = await fleet.start("a")
    a.step_s = 0.02
    a.tokens = 4
    stream = await fleet.pool.open(fleet.request(n=2))
    seen = {0: 0, 1: 0}
    async with contextlib.aclosing(stream):
        async for outputs in stream:
            for output in outputs:
                seen[output.choice] += len(output.token_ids)
            stream.abort_choice(0)
    assert seen[1] == 4
    assert seen[0] < 4
    await fleet.until(lambda: a.aborts == [(a.submits[0].id, 0)])


async def test_aborting_the_last_choice_ends_the_stream(fleet):
    (a,) = await fleet.start("a")
    a.answer = one_token
    stream = await fleet.pool.open(fleet.request())
    await anext(stream)
    stream.abort_choice(0)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert fleet.at_rest()
    await fleet.until(lambda: a.aborts)


async def test_what_the_request_itself_caused_is_raised_and_not_tried_elsewhere(fleet):
    a, b = await fleet.start("a", "b")
    for replica in (a, b):
        replica.refuse("InvalidRequest", "temperature: got 9, allowed: less")
    with pytest.raises(InvalidRequest, match="temperature: got 9"):
        await fleet.ask()
    assert len(a.submits) + len(b.submits) == 1


async def test_an_unknown_kind_of_error_is_an_engine_failure(fleet):
    (a,) = await fleet.start("a")
    a.refuse("Meltdown", "it burnt")
    with pytest.raises(EngineFailure, match="it burnt"):
        await fleet.ask()


async def b_looks_busy(fleet):
    """So that a request goes to a first."""
    fleet.replicas["b"].load.waiting_uncached_tokens = 10_000

    def waiting():
        return [each.load.waiting_uncached_tokens for each in fleet.pool.replicas() if each.load]

    await fleet.until(lambda: waiting() == [0, 10_000])


@pytest.mark.parametrize("kind", ["Draining", "QueueFull"])
async def test_a_replica_without_room_sends_the_request_to_another(fleet, kind):
    a, _ = await fleet.start("a", "b")
    await b_looks_busy(fleet)
    a.refuse(kind)
    tokens, route = await fleet.ask()
    assert tokens == {0: [0, 1, 2]}
    assert (route.replica, route.reason) == ("b", Reason.RETRY)
    assert len(a.submits) == 1


async def test_where_every_replica_is_full_the_refusal_itself_is_raised(fleet):
    a, b = await fleet.start("a", "b")
    for replica in (a, b):
        replica.refuse("QueueFull", "512 requests are waiting")
    with pytest.raises(QueueFull, match="512"):
        await fleet.ask()
    assert len(a.submits) == len(b.submits) == 1


async def test_one_replica_that_is_full_raises_its_refusal_at_once(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.CONNECT_GRACE_S", 30.0)
    (a,) = await fleet.start("a")
    a.refuse("QueueFull", "512 requests are waiting")
    began = now()
    with pytest.raises(QueueFull, match="512"):
        await fleet.ask()
    assert now() - began < 5


async def test_a_replica_that_dies_before_the_first_token_is_replaced(fleet):
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


async def test_tokens_that_nobody_has_seen_do_not_prevent_a_retry(fleet):
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


async def test_a_replica_that_dies_after_a_token_is_an_error_that_names_it(fleet):
    (a,) = await fleet.start("a")
    a.answer = one_token
    stream = await fleet.pool.open(fleet.request())
    assert list((await anext(stream))[0].token_ids) == [7]
    await a.die()
    with pytest.raises(ReplicaLost, match="replica a"):
        await anext(stream)
    assert fleet.at_rest()


async def test_an_answer_that_is_shown_whole_is_begun_again_elsewhere_after_any_token(fleet):
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


async def test_every_choice_of_a_whole_answer_is_begun_again_and_once_only(fleet):
    """A request that kills its engine does not kill them all."""
    a, b, c = await fleet.start("a", "b", "c")
    a.answer = b.answer = c.answer = a_token_of_each
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


async def test_a_whole_answer_whose_engine_stops_is_begun_again_elsewhere(fleet):
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


async def test_a_refusal_of_before_says_nothing_once_another_engine_has_begun_to_answer(fleet):
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


async def test_a_replica_that_dies_with_no_other_to_take_over(fleet):
    (a,) = await fleet.start("a")
    a.answer = never
    task = asyncio.create_task(fleet.ask())
    await fleet.until(lambda: a.submits)
    await a.die()
    with pytest.raises(NoReplica, match="tried a"):
        await task
    assert fleet.at_rest()


async def test_three_replicas_may_die_and_no_more(fleet):
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


async def test_nobody_is_there(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.CONNECT_GRACE_S", 30.0)
    await fleet.start()
    began = now()
    with pytest.raises(NoReplica, match="no engine replica is known") as raised:
        await fleet.ask()
    assert raised.value.retry_after_s
    assert now() - began < 5


async def test_a_request_waits_a_moment_for_a_replica_that_is_being_dialled(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.holding.CONNECT_GRACE_S", 20.0)
    a = fleet.make("a")
    await a.start()
    await fleet.start()
    fleet.pool.update_replicas([a.address])
    assert (await fleet.ask())[0] == {0: [0, 1, 2]}


async def test_a_request_does_not_wait_long_for_one_that_does_not_answer(fleet, draw_ports):
    await fleet.start()
    fleet.pool.update_replicas([ReplicaAddress("a", "127.0.0.1", *draw_ports(1))])
    with pytest.raises(NoReplica, match="a: connecting"):
        async with asyncio.timeout(20):
            await fleet.ask()


async def test_the_deadline_ends_a_request_that_waits_for_admission(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    blocking = await fleet.pool.open(fleet.request())
    with pytest.raises(DeadlineExceeded):
        await fleet.ask(fleet.request(deadline=now() + 0.1))
    assert fleet.pool.queued_requests == 0
    await blocking.aclose()


async def test_the_deadline_ends_a_request_that_the_engine_forgot(fleet):
    (a,) = await fleet.start("a")
    a.answer = never
    with pytest.raises(DeadlineExceeded):
        await fleet.ask(fleet.request(deadline=now() + 0.1))
    assert fleet.at_rest()
    await fleet.until(lambda: a.aborts)


async def test_the_request_timeout_is_a_deadline_for_all(fleet):
    (a,) = await fleet.start("a", request_timeout_seconds=1)
    a.answer = never
    with pytest.raises(DeadlineExceeded):
        await fleet.ask()


async def test_a_deadline_that_has_passed_sends_nothing(fleet):
    (a,) = await fleet.start("a")
    with pytest.raises(DeadlineExceeded):
        await fleet.ask(fleet.request(deadline=now() - 1))
    assert a.submits == []


async def test_what_no_replica_could_answer_is_refused_with_both_numbers(fleet):
    (a,) = await fleet.start("a")
    with pytest.raises(ContextLengthExceeded, match=r"1200 prompt tokens.*1000"):
        await fleet.ask(fleet.request(1200))
    with pytest.raises(ContextLengthExceeded, match=r"900 prompt tokens.*200 output tokens = 1100.*1000") as raised:
        await fleet.ask(fleet.request(900, max_tokens=200))
    assert raised.value.param == "max_tokens"
    assert a.submits == []
    assert fleet.at_rest()


async def test_what_no_cache_could_hold_is_refused_with_both_numbers(fleet):
    a, b = fleet.make("a"), fleet.make("b")
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


async def test_draining_lets_the_accepted_end_and_refuses_the_rest(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.step_s = 0.05
    asked = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    await fleet.until(lambda: fleet.pool.queued_requests == 1)
    assert not await fleet.pool.drain(0.01)
    with pytest.raises(Draining):
        await fleet.ask()
    assert await fleet.pool.drain(20)
    assert [(await each)[0] for each in asked] == [{0: [0, 1, 2]}] * 2


async def test_closing_the_pool_ends_everything_with_a_reason(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    asked = [asyncio.create_task(fleet.ask()) for _ in range(2)]
    await fleet.until(lambda: fleet.pool.queued_requests == 1 and a.submits)
    await fleet.pool.close()
    for task in asked:
        with pytest.raises(Draining):
            await task


async def test_settings_change_live(fleet):
    (a,) = await fleet.start("a", max_inflight_requests=1)
    a.answer = never
    first = await fleet.pool.open(fleet.request())
    second = asyncio.create_task(fleet.pool.open(fleet.request()))
    await fleet.until(lambda: fleet.pool.queued_requests == 1)
    fleet.pool.reconfigure(fleet.pool._settings.model_copy(update={"max_inflight_requests": 2}))
    await (await second).aclose()
    await first.aclose()
