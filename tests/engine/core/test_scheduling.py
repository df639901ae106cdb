"""Division of the tokens of a step among sequences."""

import random

import pytest

from octavo_api.settings import EngineSettings, SchedulingPolicy
from octavo_engine.core.plan import StepOutput
from octavo_engine.core.scheduling.queue import PRIORITY_STEP_S, WaitingQueue
from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session


def test_decodes_come_first_and_a_long_prompt_fills_the_step():
    core = create_core(max_num_batched_tokens=32, long_prefill_token_threshold=16, num_blocks=512)
    session = Session(core).add(*create_requests(8, length=4, max_tokens=100))
    session.turn()
    session.add(new_request("long", random_prompt(320), max_tokens=1))
    for _ in range(20):
        plan = session.turn()
        assert [work.count for work in plan.work] == [1] * 8 + [16]
    session.run().assert_idle()


def test_decodes_are_not_stalled_by_an_unfinished_prompt_that_came_first():
    core = create_core(max_num_batched_tokens=16, num_blocks=512, scheduling_policy=SchedulingPolicy.PRIORITY)
    session = Session(core)
    session.add(new_request("short", random_prompt(3), priority=5, max_tokens=50))
    session.turn()
    session.add(new_request("long", random_prompt(300), priority=0, max_tokens=1))
    for _ in range(19):
        before = len(session.outputs["short", 0])
        session.turn()
        assert len(session.outputs["short", 0]) == before + 1


def test_short_prompts_behind_a_long_one_start_in_the_same_step():
    core = create_core(max_num_batched_tokens=64, long_prefill_token_threshold=16, num_blocks=512)
    session = Session(core).add(new_request("long", random_prompt(640), max_tokens=1))
    session.add(*create_requests(4, length=10, max_tokens=3))
    session.turn()
    assert all(len(session.outputs[i, 0]) == 1 for i in range(4))
    session.run().assert_idle()


@pytest.mark.parametrize(("threshold", "expected"), [(0, [64, 36]), (30, [30, 30, 30, 10]), (100, [64, 36])])
def test_chunks_are_bounded_by_threshold_and_budget(threshold, expected):
    core = create_core(long_prefill_token_threshold=threshold)
    session = Session(core).add(new_request("r", random_prompt(100), max_tokens=1))
    plans = []
    while core.has_unfinished:
        plans.append(session.turn())
    assert [plan.num_tokens for plan in plans] == expected
    assert [len(work.choices) for plan in plans for work in plan.work] == [0] * (len(expected) - 1) + [1]


def test_a_new_chunk_size_counts_from_the_next_plan():
    core = create_core(long_prefill_token_threshold=8)
    session = Session(core).add(new_request("r", random_prompt(100), max_tokens=1))
    assert session.turn().num_tokens == 8
    core.reconfigure(EngineSettings(long_prefill_token_threshold=20, max_num_queued_reqs=3))
    assert session.turn().num_tokens == 20
    session.run().assert_idle()


def test_a_prompt_waits_until_all_of_it_has_room():
    core = create_core(num_blocks=8, long_prefill_token_threshold=4)
    session = Session(core).add(new_request("first", random_prompt(20, 1), max_tokens=2))
    session.add(new_request("second", random_prompt(16, 2), max_tokens=2))
    session.turn()
    load = core.load()
    assert (load.num_requests_running, load.num_requests_waiting, load.kv_blocks_pinned) == (1, 1, 5)
    session.run().assert_idle()
    assert core.load().num_preemptions_total == 0


def test_a_request_that_does_not_fit_holds_back_later_ones():
    core = create_core(num_blocks=8)
    session = Session(core).add(new_request("a", random_prompt(12, 1), max_tokens=4))
    session.turn()
    session.add(new_request("wide", random_prompt(24, 2), max_tokens=4))
    session.add(new_request("narrow", random_prompt(4, 3), max_tokens=4))
    session.turn()
    assert core.load().num_requests_waiting == 2
    joins = []
    while core.has_unfinished:
        plan = session.turn()
        joins.extend(len(join.token_ids) for join in plan.joins)
    assert joins[:2] == [24, 4]


def test_waiting_requests_start_by_priority_then_arrival():
    core = create_core(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY)
    session = Session(core)
    for name, priority in [("c", 5), ("a", -1), ("d", 5), ("b", 0)]:
        session.add(new_request(name, random_prompt(4), priority=priority, max_tokens=2))
    session.run().assert_idle()
    assert [key[0] for key in session.by_choice] == ["a", "b", "c", "d"]


def test_first_come_first_served_ignores_priority():
    session = Session(create_core(max_num_seqs=1))
    for name, priority in [("a", 5), ("b", -1)]:
        session.add(new_request(name, random_prompt(4), priority=priority, max_tokens=2))
    session.run().assert_idle()
    assert [key[0] for key in session.by_choice] == ["a", "b"]


def test_a_running_request_continues_beside_more_urgent_ones():
    core = create_core(max_num_seqs=2, num_blocks=64, scheduling_policy=SchedulingPolicy.PRIORITY)
    session = Session(core).add(new_request("low", random_prompt(3), priority=9, max_tokens=30))
    session.turn()
    waiting = new_request("lowest", random_prompt(3), priority=10, max_tokens=2)
    session.add(waiting)
    for i in range(29):
        session.add(new_request(i, random_prompt(4, i), priority=0, max_tokens=2))
        session.turn()
    assert ("low", 0) in session.finished
    session.run().assert_idle()
    assert len(session.outputs["lowest", 0]) == 2


def test_a_prompt_never_waits_behind_a_later_one():
    """First come, first served: the wait is bounded by the work that was there before."""
    core = create_core(max_num_seqs=2, num_blocks=16)
    session = Session(core).add(*create_requests(3, length=9, max_tokens=5))
    starts = []
    for i in range(40):
        session.add(new_request(100 + i, random_prompt(2, i), max_tokens=1))
        plan = session.turn()
        starts.extend(join.token_ids[: join.prompt_len] for join in plan.joins)
    session.run().assert_idle()
    assert starts[:3] == [new.token_ids for new in create_requests(3, length=9)]


def test_rows_are_reused_in_the_plan_that_leaves_them():
    session = Session(create_core(max_num_seqs=1)).add(*create_requests(3, max_tokens=1))
    first, second = session.turn(), session.turn()
    assert first.leaves == ()
    assert second.leaves == (first.joins[0].row,) == (second.joins[0].row,)
    session.run().assert_idle()


def test_nothing_to_do_is_no_plan():
    core = create_core(steps_in_flight=2)
    assert core.schedule(0.0) is None
    session = Session(core).add(new_request("r", random_prompt(3), max_tokens=1))
    assert session.schedule() is not None
    assert session.schedule() is None, "the only token it may have is being sampled"
    session.commit()
    assert not core.has_unfinished


def test_commits_come_in_the_order_of_plans():
    session = Session(create_core(steps_in_flight=2)).add(*create_requests(1))
    first, second = session.schedule(), session.schedule()
    outputs = [session.runner.execute(first), session.runner.execute(second)]
    with pytest.raises(ValueError, match="step_id: got 1, allowed: the oldest step in flight, 0"):
        session.core.commit(outputs[1], 0.0)
    session.core.commit(outputs[0], 0.0)
    session.core.commit(outputs[1], 0.0)
    with pytest.raises(ValueError, match="None"):
        session.core.commit(outputs[1], 0.0)


def test_an_output_that_lacks_a_token_is_rejected_and_can_still_fail():
    session = Session(create_core()).add(*create_requests(1))
    plan = session.schedule()
    with pytest.raises(ValueError, match="got 0 tokens"):
        session.core.commit(StepOutput(plan.step_id, ()), 0.0)
    session.fail()
    session.run().assert_idle()


def test_load_counts_waiting_requests_and_tokens_to_compute():
    core = create_core(max_num_seqs=2, max_num_batched_tokens=20, num_blocks=128)
    warm = random_prompt(41, 9)
    session = Session(core).add(new_request("w", warm, max_tokens=1)).run().assert_idle()
    session.add(*create_requests(2, length=100))
    session.add(new_request("warm", warm), new_request("cold", random_prompt(30, 77)))
    session.turn()
    load = core.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (1, 3)
    assert load.running_prefill_tokens == 80
    assert load.waiting_uncached_tokens == 100 + 1 + 30
    assert load.step_tokens == 20
    core.reset_prefix_cache()
    assert core.load().waiting_uncached_tokens == 100 + 41 + 30
    session.run().assert_idle()


@pytest.mark.parametrize("priority", [1, 3])
def test_a_stream_of_urgent_requests_starves_no_request(priority):
    session = Session(create_core(max_num_seqs=2, scheduling_policy=SchedulingPolicy.PRIORITY), check=False)
    first_id = 0
    while first_id < 500 and ("patient", 0) not in session.finished:
        session.add(*create_requests(4 - session.core.load().num_requests_waiting, first_id=first_id, max_tokens=4))
        first_id += 4
        if first_id == 8:
            session.add(new_request("patient", random_prompt(4), priority=priority, max_tokens=2))
        session.turn()
    waited = session.timings("patient")[0].queue_s
    assert PRIORITY_STEP_S * priority <= waited <= PRIORITY_STEP_S * priority + 10


def test_a_queue_returns_the_smallest_key_and_drops_removed_sequences():
    core = create_core(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY)
    core.add_request(new_request("first", random_prompt(2)), 0.0)
    core.schedule(0.0)
    rng = random.Random(0)
    for i in range(500):
        core.add_request(new_request(i, random_prompt(2), priority=rng.randrange(9)), 0.0)
    queue = core._scheduler.waiting
    assert isinstance(queue, WaitingQueue)
    taken = rng.sample(range(500), 480)
    for i in taken:
        core.abort(i, 0.0)
    assert len(queue) == 20
    expected = sorted(seq.key for seq in queue)
    found = []
    while (seq := queue.peek()) is not None:
        found.append(seq.key)
        queue.discard(seq)
    assert found == expected
    assert queue.uncached_tokens == 0
