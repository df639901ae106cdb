"""Plans made before the tokens of the plan ahead of them are known."""

import random

import pytest

from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected
from octavo_testing.engine.fake_runner import expected_output


def test_the_next_decode_is_planned_before_its_token_is_known():
    core = create_core(steps_in_flight=2)
    new = new_request("r", random_prompt(6), max_tokens=4)
    session = Session(core).add(new)
    first, second = session.schedule(), session.schedule()
    assert (first.work[0].start, first.work[0].count) == (0, 6)
    assert (second.work[0].start, second.work[0].count, second.joins) == (6, 1, ())
    assert session.schedule() is None, "two plans are in flight"
    session.run().assert_idle()
    assert_expected(session, [new])
    assert session.num_plans == 4, "no plan is made beyond max_tokens"


def test_a_fork_point_is_sampled_for_all_choices_once():
    session = Session(create_core(steps_in_flight=2)).add(*create_requests(1, n=3))
    assert session.schedule().work[0].choices == (0, 1, 2)
    assert session.schedule().work[0].choices == (0,)
    session.commit()
    assert sorted(work.choices for work in session.schedule().work) == [(0,), (1,), (2,)]
    session.run().assert_idle()


def test_a_step_past_an_end_is_stale_and_keeps_its_blocks_until_commit():
    tokens = random_prompt(7)
    stop = expected_output(new_request("r", tokens))[0]
    core = create_core(steps_in_flight=2, num_blocks=4)
    new = new_request("r", tokens, stop_token_ids=(stop,))
    session = Session(core).add(new, new_request("next", random_prompt(12, 1), max_tokens=4))
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
def test_steps_in_flight_give_the_tokens_of_single_steps(seed):
    print("seed", seed)
    ends = []
    for depth in (1, 2, 3):
        rng = random.Random(seed)
        core = create_core(steps_in_flight=depth, num_blocks=20)
        requests = create_requests(12, length=11, n=2, max_tokens=12)
        session = Session(core).add(*requests)
        while core.has_unfinished or session.plans:
            session.turn()
            if rng.random() < 0.3:
                session.force_preemption(rng.randrange(1, 8))
            if rng.random() < 0.1:
                session.abort(rng.randrange(12), rng.randrange(2))
        session.assert_idle()
        for new in requests:
            for choice in range(2):
                got = session.outputs[new.request_id, choice]
                assert got == expected_output(new, choice)[: len(got)]
        ends.append(set(session.finished))
    assert ends[0] == ends[1] == ends[2]
