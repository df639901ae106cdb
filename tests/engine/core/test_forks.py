"""Several choices of one prompt."""

import pytest

from octavo_api.finish_reason import FinishReason


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_the_prompt_is_computed_once_and_shared(harness, create_core, length, max_tokens, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight)
    new = harness.new_request("r", harness.prompt(length), n=4, max_tokens=max_tokens)
    session = harness.run_to_completion(core, [new])
    harness.assert_expected(session, [new])
    assert session.runner.num_computed <= length + 4 * max_tokens
    assert core.load().recomputed_tokens_total == 0
    assert core.load().prompt_tokens_total == length
    partial = length % 4 and max_tokens > 1
    assert session.runner.num_copies == (3 if partial else 0), "the first writers copy, the last one need not"


def test_the_blocks_of_a_prompt_are_held_once(harness, create_core):
    core = create_core(num_blocks=64)
    session = harness.Session(core).add(harness.new_request("r", harness.prompt(40), n=4, max_tokens=8))
    session.turn()
    session.turn()
    assert core.load().kv_blocks_pinned == 10 + 4
    session.run().assert_idle()


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_more_choices_than_rows_end_all_the_same(harness, create_core, rows, steps_in_flight):
    core = create_core(max_num_seqs=rows, steps_in_flight=steps_in_flight)
    first = harness.new_request("r", harness.prompt(10), n=8, max_tokens=6)
    later = harness.new_request("later", harness.prompt(5, 1), max_tokens=3)
    session = harness.Session(core).add(first)
    session.turn()
    session.add(later)
    while ("later", 0) not in session.outputs:
        session.turn()
    assert core.load().num_requests_waiting == 0, "waiting choices go before later requests"
    session.run().assert_idle()
    harness.assert_expected(session, [first, later])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("turns", range(7))
@pytest.mark.parametrize("choice", [0, 1, 3])
def test_one_choice_aborted_stalls_none_of_the_others(harness, create_core, choice, turns, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight, long_prefill_token_threshold=4)
    new = harness.new_request("r", harness.prompt(10), n=4, max_tokens=9)
    session = harness.Session(core).add(new)
    for _ in range(turns):
        session.turn()
    while len(session.plans) < steps_in_flight:
        session.schedule()
    core.abort("r", choice)
    core.abort("r", choice)
    session.run().assert_idle()
    for other in range(4):
        expected = harness.expected_output(new, other)
        if other == choice:
            assert session.finished["r", other].finish_reason is FinishReason.ABORT
            assert session.outputs["r", other] == expected[: len(session.outputs["r", other])]
        else:
            assert session.finished["r", other].finish_reason is FinishReason.LENGTH
            assert session.outputs["r", other] == expected
    assert len(session.timings("r")) == 1


def test_choices_that_end_with_their_first_token_need_no_row(harness, create_core):
    core = create_core(max_num_seqs=1)
    new = harness.new_request("r", harness.prompt(9), n=5, max_tokens=1)
    session = harness.run_to_completion(core, [new])
    assert session.num_plans == 1
    harness.assert_expected(session, [new])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_the_first_choice_may_end_at_once_while_others_go_on(harness, create_core, steps_in_flight):
    base = harness.new_request("r", harness.prompt(10), n=3, max_tokens=8)
    first = harness.expected_output(base, 0)[0]
    new = harness.new_request("r", harness.prompt(10), n=3, max_tokens=8, stop_token_ids=(first,))
    session = harness.run_to_completion(create_core(steps_in_flight=steps_in_flight), [new])
    assert session.outputs["r", 0] == [first]
    harness.assert_expected(session, [new])


@pytest.mark.parametrize(("caching", "recomputed"), [(True, 10 - 8), (False, 10)])
def test_a_choice_that_waited_for_a_row_computes_again_what_the_cache_has_not(
    harness, create_core, caching, recomputed
):
    core = create_core(max_num_seqs=1, enable_prefix_caching=caching)
    harness.run_to_completion(core, [harness.new_request("r", harness.prompt(10), n=2, max_tokens=3)])
    load = core.load()
    assert (load.recomputed_tokens_total, load.num_preemptions_total) == (recomputed, 0)


def test_the_last_output_alone_carries_the_timing(harness, create_core):
    new = harness.new_request("r", harness.prompt(10), n=3, max_tokens=4)
    session = harness.Session(create_core(long_prefill_token_threshold=5))
    session.now = 10.0
    session.add(new).run().assert_idle()
    assert next(reversed(session.finished.values())).timing is not None
    (timing,) = session.timings("r")
    assert (timing.queue_s, timing.prefill_s, timing.decode_s) == (1.0, 1.0, 3.0)
