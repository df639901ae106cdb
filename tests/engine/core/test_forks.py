"""Several choices of one prompt."""

import pytest

from octavo_api.finish_reason import FinishReason
from octavo_testing.engine.core_requests import create_core, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected, run_to_completion
from octavo_testing.engine.fake_runner import expected_output


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_the_prompt_is_computed_once_and_shared(length, max_tokens, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight)
    new = new_request("r", random_prompt(length), n=4, max_tokens=max_tokens)
    session = run_to_completion(core, [new])
    assert_expected(session, [new])
    assert session.runner.num_computed <= length + 4 * max_tokens
    assert core.load().recomputed_tokens_total == 0
    assert core.load().prompt_tokens_total == length
    partial = length % 4 and max_tokens > 1
    assert session.runner.num_copies == (3 if partial else 0), "the first writers copy, the last one need not"


def test_the_blocks_of_a_prompt_are_held_once():
    core = create_core(num_blocks=64)
    session = Session(core).add(new_request("r", random_prompt(40), n=4, max_tokens=8))
    session.turn()
    session.turn()
    assert core.load().kv_blocks_pinned == 10 + 4
    session.run().assert_idle()


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_more_choices_than_rows_end_all_the_same(rows, steps_in_flight):
    core = create_core(max_num_seqs=rows, steps_in_flight=steps_in_flight)
    first = new_request("r", random_prompt(10), n=8, max_tokens=6)
    later = new_request("later", random_prompt(5, 1), max_tokens=3)
    session = Session(core).add(first)
    session.turn()
    session.add(later)
    while ("later", 0) not in session.outputs:
        session.turn()
    assert core.load().num_requests_waiting == 0, "waiting choices go before later requests"
    session.run().assert_idle()
    assert_expected(session, [first, later])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("turns", range(7))
@pytest.mark.parametrize("choice", [0, 1, 3])
def test_one_choice_aborted_stalls_none_of_the_others(choice, turns, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight, long_prefill_token_threshold=4)
    new = new_request("r", random_prompt(10), n=4, max_tokens=9)
    session = Session(core).add(new)
    for _ in range(turns):
        session.turn()
    while len(session.plans) < steps_in_flight:
        session.schedule()
    session.abort("r", choice)
    session.abort("r", choice)
    session.run().assert_idle()
    for other in range(4):
        expected = expected_output(new, other)
        if other == choice:
            assert session.finished["r", other].finish_reason is FinishReason.ABORT
            assert session.outputs["r", other] == expected[: len(session.outputs["r", other])]
        else:
            assert session.finished["r", other].finish_reason is FinishReason.LENGTH
            assert session.outputs["r", other] == expected
    assert len(session.timings("r")) == 1


def test_choices_that_end_with_their_first_token_need_no_row():
    core = create_core(max_num_seqs=1)
    new = new_request("r", random_prompt(9), n=5, max_tokens=1)
    session = run_to_completion(core, [new])
    assert session.num_plans == 1
    assert_expected(session, [new])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_the_first_choice_may_end_at_once_while_others_go_on(steps_in_flight):
    base = new_request("r", random_prompt(10), n=3, max_tokens=8)
    first = expected_output(base, 0)[0]
    new = new_request("r", random_prompt(10), n=3, max_tokens=8, stop_token_ids=(first,))
    session = run_to_completion(create_core(steps_in_flight=steps_in_flight), [new])
    assert session.outputs["r", 0] == [first]
    assert_expected(session, [new])


@pytest.mark.parametrize(("caching", "recomputed"), [(True, 10 - 8), (False, 10)])
def test_a_choice_that_waited_for_a_row_recomputes_uncached_tokens(caching, recomputed):
    core = create_core(max_num_seqs=1, enable_prefix_caching=caching)
    run_to_completion(core, [new_request("r", random_prompt(10), n=2, max_tokens=3)])
    load = core.load()
    assert (load.recomputed_tokens_total, load.num_preemptions_total) == (recomputed, 0)


def test_the_last_output_alone_carries_the_timing():
    new = new_request("r", random_prompt(10), n=3, max_tokens=4)
    session = Session(create_core(long_prefill_token_threshold=5))
    session.now = 10.0
    session.add(new).run().assert_idle()
    assert next(reversed(session.finished.values())).timing is not None
    (timing,) = session.timings("r")
    assert (timing.queue_s, timing.prefill_s, timing.decode_s) == (1.0, 1.0, 3.0)
