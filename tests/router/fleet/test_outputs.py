"""Outputs of a request: order, merging, choices, and aborts by the reader."""

import asyncio
import contextlib

import pytest

from octavo_api.errors import (
    EngineFailure,
)
from octavo_router.routing.route import Reason
from octavo_testing.router.fake_replica import never, one_token


async def test_tokens_arrive_in_order_and_the_stream_ends(fleet):
    await fleet.start("a")
    tokens, route = await fleet.ask()
    assert tokens == {0: [0, 1, 2]}
    assert (route.replica, route.reason, route.policy) == ("a", Reason.COLD, "prefix")
    assert fleet.at_rest()


async def test_the_engine_receives_tokens_hashes_and_all_parameters(fleet):
    (a,) = await fleet.start("a")
    await fleet.ask(fleet.request(40, priority=3, salt="tenant", temperature=0.5, seed=9, deadline=fleet.now() + 5))
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


async def test_a_request_ends_when_its_last_output_arrives_not_when_read(fleet):
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


async def test_one_choice_is_aborted_and_the_others_continue(fleet):
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


async def test_an_unknown_kind_of_error_is_an_engine_failure(fleet):
    (a,) = await fleet.start("a")
    a.refuse("Meltdown", "it burnt")
    with pytest.raises(EngineFailure, match="it burnt"):
        await fleet.ask()


async def test_a_request_with_output_counts_only_in_the_replicas_report(fleet):
    (a,) = await fleet.start("a")
    a.answer = one_token
    stream = await fleet.pool.open(fleet.request())
    load = fleet.pool.members["a"].load
    assert (load.num_reservations, load.num_unreported) == (1, 1)
    await anext(stream)
    assert (load.num_reservations, load.num_unreported) == (1, 0)
    await stream.aclose()
    assert fleet.at_rest()
