"""Random requests, cancellations and failures on a pool that is much too small."""

import random

import pytest

from octavo_api.errors import DeadlineExceeded, EngineFailure
from octavo_api.finish_reason import FinishReason
from octavo_api.settings import SchedulingPolicy
from octavo_testing.engine.core_requests import VOCAB, create_core, new_request, random_prompt
from octavo_testing.engine.core_session import Session
from octavo_testing.engine.fake_runner import expected_output

NUM_REQUESTS = 64
NUM_BLOCKS, BLOCK, ROWS = 14, 4, 6


def random_request(rng, request_id, now):
    length = rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 20, 31])
    shared = random_prompt(32, seed=rng.randrange(3))
    tokens = shared[:length] if rng.random() < 0.6 else random_prompt(length, seed=1000 + request_id)
    n = rng.choice([1, 1, 1, 2, 3, 8])
    return new_request(
        request_id,
        tokens,
        priority=rng.randrange(3),
        cache_salt=rng.choice(["", "", "tenant"]),
        deadline=now + rng.randrange(1, 60) if rng.random() < 0.15 else None,
        n=n,
        max_tokens=min(rng.randrange(1, 24), NUM_BLOCKS * BLOCK - length),
        min_tokens=0,
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=tuple(rng.sample(range(VOCAB), 20)),
        prompt_logprobs=1 if rng.random() < 0.15 else None,
        logprobs=1 if rng.random() < 0.2 else None,
        seed=rng.randrange(2**64),
    )


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_everything_ends_once_with_the_right_tokens_and_nothing_leaks(seed, steps_in_flight):
    print("seed", seed)
    rng = random.Random(seed)
    chunk = rng.choice([0, 1, 3, BLOCK, BLOCK + 1])
    budget = rng.choice([ROWS, ROWS + 3, 32])
    core = create_core(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK,
        max_num_seqs=ROWS,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=chunk,
        scheduling_policy=rng.choice(list(SchedulingPolicy)),
        enable_prefix_caching=rng.random() < 0.8,
        steps_in_flight=steps_in_flight,
    )
    session = Session(core)
    longest = NUM_BLOCKS * BLOCK
    smallest_chunk = min(chunk or longest, budget - ROWS + 1)
    bound = longest // smallest_chunk + 4 * steps_in_flight + 4
    requests, cancelled, failed = {}, set(), set()
    progress, stalled = -1, 0
    while len(requests) < NUM_REQUESTS or core.has_unfinished or session.plans:
        while len(requests) < NUM_REQUESTS and rng.random() < 0.5:
            new = random_request(rng, len(requests), session.now)
            requests[new.request_id] = new
            session.add(new)
        if requests and rng.random() < 0.1:
            victim = rng.choice(list(requests.values()))
            choice = rng.choice([None, *range(victim.sampling.n)])
            choices = range(victim.sampling.n) if choice is None else [choice]
            cancelled.update((victim.request_id, c) for c in choices)
            session.abort(victim.request_id, choice)
            core.check_integrity()
        if rng.random() < 0.02 and session.force_preemption(rng.randrange(ROWS)):
            stalled = 0  # the first one may have lost its work, which the scheduler itself never lets happen
        if rng.random() < 0.01:
            core.reset_prefix_cache()
        if rng.random() < 0.01:
            session.runner.poisoned_rows.add(rng.randrange(ROWS))
        if session.plans and rng.random() < 0.01:
            failed.update(seq.request.id for seq, _ in core._steps.find(session.plans[0][0].step_id).by_row.values())
            session.fail()
            continue
        session.turn()
        reached = len(session.finished) + sum(map(len, session.outputs.values())) + len(requests)
        stalled = 0 if reached > progress else stalled + 1
        progress = max(progress, reached)
        assert stalled <= bound, f"no token and no end in {stalled} steps"
    session.assert_idle(salts=("", "tenant"))
    for new in requests.values():
        for choice in range(new.sampling.n):
            key = (new.request_id, choice)
            end, expected = session.finished[key], expected_output(new, choice)
            if end.finish_reason is FinishReason.ABORT:
                assert key in cancelled
            elif end.finish_reason is FinishReason.ERROR and isinstance(end.error, DeadlineExceeded):
                assert new.deadline is not None
            elif end.finish_reason is FinishReason.ERROR:
                assert isinstance(end.error, EngineFailure)
                assert new.request_id in failed or "not finite" in end.error.message
            else:
                assert session.outputs[key] == expected
            assert session.outputs[key] == expected[: len(session.outputs[key])]
        assert len(session.timings(new.request_id)) == 1
