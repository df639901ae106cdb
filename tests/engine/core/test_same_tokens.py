"""A request's tokens depend on the request alone, in the core with a fake runner.

``tests/engine/runner/test_same_tokens_every_way.py`` shows the same with the real runner and a tiny model, and
``tests/engine/test_same_answer_every_way.py`` with the embedded model.
"""

import pytest

from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected, run_to_completion

CHUNKS = [0, 1, 7, 4, 5]


def mixed_requests():
    shared = random_prompt(16, 3)
    return [
        new_request("one", random_prompt(1)),
        new_request("block", random_prompt(4, 1)),
        new_request("odd", random_prompt(23, 2), max_tokens=17),
        new_request("shared", shared, n=3, max_tokens=6),
        new_request("longer", (*shared, 9), max_tokens=6),
        new_request("twin", (*shared, 9), max_tokens=6, logprobs=1),
        new_request("scored", (*shared, 9), max_tokens=6, prompt_logprobs=1),
        new_request("fork", random_prompt(7, 4), n=4, max_tokens=5),
    ]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("caching", [True, False])
def test_in_company_in_chunks_cold_and_warm(caching, chunk, steps_in_flight):
    requests = mixed_requests()
    core = create_core(
        enable_prefix_caching=caching, long_prefill_token_threshold=chunk, steps_in_flight=steps_in_flight
    )
    cold = run_to_completion(core, requests)
    assert_expected(cold, requests)
    warm = Session(core)
    warm.runner, warm.mirror = cold.runner, cold.mirror
    warm.add(*requests).run().assert_idle()
    assert_expected(warm, requests)
    assert (core.load().prefix_cache_hits_total > 0) == caching


def test_alone():
    for new in mixed_requests():
        assert_expected(run_to_completion(create_core(), [new]), [new])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("num_blocks", [11, 12, 14, 18])
def test_in_a_pool_that_is_too_small(num_blocks, steps_in_flight):
    requests = mixed_requests()
    core = create_core(num_blocks=num_blocks, steps_in_flight=steps_in_flight)
    assert_expected(run_to_completion(core, requests), requests)
    assert core.load().num_preemptions_total > 0


def test_the_same_prompt_twice_around_multiples_of_the_block():
    for length in range(1, 14):
        core = create_core()
        first, second = create_requests(2, length=length, same_prompt=True)
        session = run_to_completion(core, [first])
        session.add(second).run().assert_idle()
        assert_expected(session, [first, second])
        assert session.by_choice[1, 0][0].cached_tokens == (length - 1) // 4 * 4
