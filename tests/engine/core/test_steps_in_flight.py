"""Plans made before the tokens of the plan ahead of them are known."""

import random

import pytest


def test_the_next_decode_is_planned_before_its_token_is_known(harness, create_core):
    core = create_core(steps_in_flight=2)
    new = harness.new_request("r", harness.prompt(6), max_tokens=4)
    session = harness.Session(core).add(new)
    first, second = session.schedule(), session.schedule()
    assert (first.work[0].start, first.work[0].count) == (0, 6)
    assert (second.work[0].start, second.work[0].count, second.joins) == (6, 1, ())
    assert session.schedule() is None, "two plans are in flight"
    session.run().assert_idle()
    harness.assert_expected(session, [new])
    assert session.num_plans == 4, "no plan is made beyond max_tokens"


def test_a_fork_point_is_sampled_for_all_choices_once(harness, create_core):
    session = harness.Session(create_core(steps_in_flight=2)).add(*harness.create_requests(1, n=3))
    assert session.schedule().work[0].choices == (0, 1, 2)
    assert session.schedule().work[0].choices == (0,)
    session.commit()
    assert sorted(work.choices for work in session.schedule().work) == [(0,), (1,), (2,)]
    session.run().assert_idle()


def test_a_step_planned_past_an_end_is_stale_and_keeps_its_blocks_until_it_is_committed(harness, create_core):
    tokens = harness.prompt(7)
    stop = harness.expected_output(harness.new_request("r", tokens))[0]
    core = create_core(steps_in_flight=2, num_blocks=4)
    new = harness.new_request("r", tokens, stop_token_ids=(stop,))
    session = harness.Session(core).add(new, harness.new_request("next", harness.prompt(12, 1), max_tokens=4))
    session.schedule()
    session.schedule()
    session.commit()
    session.collect()
    assert session.outputs["r", 0] == [stop]
    assert core.load().kv_blocks_pinned == 2
    assert session.schedule() is None, "the next prompt needs a block that a plan in flight writes"
    session.commit()
    session.collect()
    assert core.load().kv_blocks_pinned == 0
    session.run().assert_idle()
    assert session.outputs["r", 0] == [stop]


@pytest.mark.parametrize("seed", range(4))
def test_random_aborts_and_preemptions_give_the_tokens_of_one_step_at_a_time(harness, create_core, seed):
    print("seed", seed)
    ends = []
    for depth in (1, 2, 3):
        rng = random.Random(seed)
        core = create_core(steps_in_flight=depth, num_blocks=20)
        requests = harness.create_requests(12, length=11, n=2, max_tokens=12)
        session = harness.Session(core).add(*requests)
        while core.has_unfinished or session.plans:
            session.turn()
            if rng.random() < 0.3:
                session.force_preemption(rng.randrange(1, 8))
            if rng.random() < 0.1:
                core.abort(rng.randrange(12), rng.randrange(2))
        session.assert_idle()
        for new in requests:
            for choice in range(2):
                got = session.outputs[new.request_id, choice]
                assert got == harness.expected_output(new, choice)[: len(got)]
        ends.append(set(session.finished))
    assert ends[0] == ends[1] == ends[2]
