"""Preemption when the pool is empty: the choice of the victim, and the same tokens as without it."""

import pytest

from octavo_api.settings import EngineSettings, SchedulingPolicy
from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_the_last_in_order_is_preempted_and_resumes_in_its_place(policy):
    core = create_core(num_blocks=9, max_num_seqs=3, scheduling_policy=policy)
    requests = create_requests(4, length=11, max_tokens=12)
    session = Session(core).add(*requests)
    while not core.load().num_preemptions_total:
        session.turn()
    assert [seq.request.id for seq in core._scheduler.running] == [0, 1]
    assert core._scheduler.waiting.peek().request.id == 2
    session.run().assert_idle()
    assert list(session.finished) == [(i, 0) for i in range(4)]
    assert_expected(session, requests)
    assert session.timings(2)[0].num_preemptions > 0
    assert session.timings(0)[0].num_preemptions == 0


def test_the_least_urgent_request_is_preempted():
    core = create_core(num_blocks=8, max_num_seqs=2, scheduling_policy=SchedulingPolicy.PRIORITY)
    requests = [
        new_request("low", random_prompt(13, 1), priority=9, max_tokens=12),
        new_request("high", random_prompt(13, 2), priority=1, max_tokens=12),
    ]
    session = Session(core).add(requests[0])
    session.turn()
    session.add(requests[1]).run().assert_idle()
    assert session.timings("low")[0].num_preemptions > 0
    assert session.timings("high")[0].num_preemptions == 0
    assert_expected(session, requests)


def test_a_step_that_preempts_admits_no_request():
    core = create_core(num_blocks=9, max_num_seqs=3, scheduling_policy=SchedulingPolicy.PRIORITY)
    session = Session(core).add(*create_requests(3, length=11, max_tokens=12))
    session.turn()
    session.add(new_request("tiny", random_prompt(1), max_tokens=1, priority=-1))
    while not core.load().num_preemptions_total:
        plan = session.turn()
    assert plan.joins == ()
    session.run().assert_idle()


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_preemption_at_every_step_changes_no_token(every, caching, steps_in_flight):
    """Seeded sampling, penalties' inputs (all tokens) and shared prefixes included: the fake tokens depend on them."""
    core = create_core(enable_prefix_caching=caching, steps_in_flight=steps_in_flight, long_prefill_token_threshold=6)
    shared = random_prompt(12, 50)
    requests = [
        *create_requests(2, length=9, max_tokens=9),
        new_request("a", (*shared, 5), max_tokens=9),
        new_request("b", (*shared, 6, 7), max_tokens=9, n=2),
    ]
    session = Session(core).add(*requests)
    for turn in range(2000):
        if not core.has_unfinished and not session.plans:
            break
        if turn % every == every - 1:
            # never the first: it is what guarantees that all of them end
            running = [seq for seq in core._scheduler.running if seq.row is not None]
            if len(running) > 1:
                session.force_preemption(1 + turn % (len(running) - 1))
        session.turn()
    session.assert_idle()
    assert_expected(session, requests)
    assert core.load().num_preemptions_total > 0


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("step", range(14))
def test_one_preemption_at_any_step_of_a_lone_request_changes_no_token(step, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight, long_prefill_token_threshold=5)
    new = new_request("r", random_prompt(17), max_tokens=9, n=2, prompt_logprobs=0)
    session = Session(core).add(new)
    for _ in range(step):
        session.turn()
    session.force_preemption()
    session.run().assert_idle()
    assert_expected(session, [new])
    entries = [e for output in session.by_choice["r", 0] for e in output.prompt_logprobs]
    assert [e.token_id for e in entries] == list(new.token_ids[1:]), "each position once, in order"


def test_recomputed_tokens_are_those_that_the_cache_had_lost():
    core = create_core(num_blocks=64)
    session = Session(core).add(new_request("r", random_prompt(10), max_tokens=8))
    for _ in range(4):
        session.turn()
    assert session.force_preemption().num_discarded_tokens == 13
    session.turn()
    assert core.load().recomputed_tokens_total == 13 - 12
    session.run().assert_idle()


def test_a_second_look_into_the_cache_is_not_counted():
    core = create_core()
    session = Session(core).add(new_request("r", random_prompt(10), max_tokens=8))
    session.turn()
    session.force_preemption()
    session.run().assert_idle()
    load = core.load()
    assert (load.prefix_cache_queries_total, load.prefix_cache_hits_total) == (10, 0)
    assert session.by_choice["r", 0][0].cached_tokens == 0
    assert (load.prompt_tokens_total, load.generation_tokens_total) == (10, 8)


def test_with_a_plan_in_flight_one_victim_is_preempted_and_awaited():
    core = create_core(num_blocks=9, max_num_seqs=3, steps_in_flight=2)
    requests = create_requests(3, length=11, max_tokens=12)
    session = Session(core).add(*requests)
    while not core.load().num_preemptions_total:
        session.turn()
    assert core.load().num_preemptions_total == 1
    session.run().assert_idle()
    assert_expected(session, requests)


def test_prompt_logprobs_are_output_once_whatever_the_chunks():
    core = create_core(long_prefill_token_threshold=5)
    new = new_request("r", random_prompt(17), max_tokens=2, prompt_logprobs=0)
    session = Session(core).add(new)
    session.turn()
    session.force_preemption()
    core.reconfigure(EngineSettings(long_prefill_token_threshold=7, max_num_queued_reqs=1))
    session.run().assert_idle()
    outputs = session.by_choice["r", 0]
    assert [len(o.prompt_logprobs) for o in outputs if o.prompt_logprobs] == [5, 2, 7, 2]
    assert [e.token_id for o in outputs for e in o.prompt_logprobs] == list(new.token_ids[1:])
