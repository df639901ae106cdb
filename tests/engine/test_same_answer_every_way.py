"""The embedded model: whatever happens around a request, its tokens and their log probabilities are equal, bit for
bit. ``tests/engine/test_instruction_sets.py`` does the same across instruction sets.
"""

import dataclasses
import random
from collections.abc import Callable

import pytest

from octavo_api.sampling import SamplingParams
from octavo_api.settings import EngineSettings
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.request import NewRequest

pytestmark = pytest.mark.model

NUM_REQUESTS = 32
NUM_PREEMPTED = 16
ALONE = (0, 1, 2, 3)

type_of_answer = tuple[tuple[int, ...], tuple[float, ...]]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest):
    from octavo_engine.startup.loading import load_engine

    settings = EngineSettings.read(
        {
            "dtype": request.param,
            "kv_cache_memory_bytes": 2**28,
            "max_num_seqs": NUM_REQUESTS,
            "max_model_len": 512,
        },
        where="engine",
    )
    return load_engine("embedded://smollm2", None, settings)


@pytest.fixture(scope="module")
def requests() -> list[NewRequest]:
    rng = random.Random(7)
    shared = [rng.randrange(100, 49152) for _ in range(33)]
    samplings = (
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 11},
        {"temperature": 0.8, "seed": 12, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"temperature": 0.7, "seed": 13, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    )
    made = []
    for index in range(NUM_REQUESTS):
        own = [rng.randrange(100, 49152) for _ in range(rng.randint(3, 40))]
        sampling = SamplingParams(max_tokens=rng.randint(8, 20), logprobs=1, ignore_eos=True, **samplings[index % 4])
        made.append(NewRequest(f"r{index}", tuple(shared[: rng.choice((0, 16, 33))] + own), None, sampling))
    return made


def answers(
    engine,
    requests: list[NewRequest],
    *,
    core: EngineCore | None = None,
    before_plan: Callable[[EngineCore], None] = lambda core: None,
    **changes: object,
) -> dict[object, type_of_answer]:
    """Runs all of ``requests`` to their end; ``before_plan`` may disturb the core."""
    core = core or EngineCore(dataclasses.replace(engine.core_config, **changes))
    tokens: dict[object, list[int]] = {new.request_id: [] for new in requests}
    logprobs: dict[object, list[float]] = {new.request_id: [] for new in requests}
    plans = []
    for new in requests:
        core.add_request(new, 0.0)
    while core.has_unfinished:
        before_plan(core)
        while (plan := core.schedule(0.0)) is not None:
            plans.append(plan)
        core.commit(engine.runner.execute(plans.pop(0)), 0.0)
        core.check_integrity()
        for output in core.take_outputs():
            assert output.error is None
            tokens[output.request_id] += output.token_ids
            logprobs[output.request_id] += [entry.logprob for entry in output.logprobs]
    assert core.load().kv_blocks_pinned == 0
    return {key: (tuple(tokens[key]), tuple(logprobs[key])) for key in tokens}


@pytest.fixture(scope="module")
def expected(engine, requests) -> dict[object, type_of_answer]:
    """All of them in one batch of 32, prompts in one chunk, nothing cached."""
    found = answers(engine, requests, long_prefill_token_threshold=0, enable_prefix_caching=False)
    for new in requests:
        assert len(found[new.request_id][0]) == new.sampling.max_tokens
    return found


def test_alone_or_in_a_batch_of_32(engine, requests, expected):
    for index in ALONE:
        assert answers(engine, [requests[index]])[f"r{index}"] == expected[f"r{index}"]


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, 0])
def test_in_chunks_of_any_size(engine, requests, expected, chunk):
    assert engine.core_config.block_size == 16
    assert answers(engine, requests, long_prefill_token_threshold=chunk) == expected


def test_with_a_cold_or_a_warm_cache(engine, requests, expected):
    core = EngineCore(engine.core_config)
    assert answers(engine, requests, core=core) == expected
    cold_hits = core.load().prefix_cache_hits_total
    again = [dataclasses.replace(new, request_id=f"again-{new.request_id}") for new in requests]
    warm = answers(engine, again, core=core)
    assert core.load().prefix_cache_hits_total > cold_hits + 16 * NUM_REQUESTS
    assert {key: warm[f"again-{key}"] for key in expected} == expected


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_with_a_preemption_before_every_step(engine, requests, expected, steps_in_flight):
    rng = random.Random(1)

    def preempt(core: EngineCore) -> None:
        scheduler = core._scheduler
        running = [seq for seq in scheduler.running if seq.row is not None]
        # Never the first, whose progress is what the scheduler promises.
        for victim in [seq for seq in running[1:] if rng.random() < 0.25]:
            scheduler.running.remove(victim)
            scheduler._preempt(victim)

    config = dataclasses.replace(engine.core_config, steps_in_flight=steps_in_flight, enable_prefix_caching=False)
    core = EngineCore(config)
    few = requests[:NUM_PREEMPTED]  # each prompt is computed many times over
    found = answers(engine, few, core=core, before_plan=preempt)
    assert found == {new.request_id: expected[new.request_id] for new in few}
    assert core.load().num_preemptions_total > 2 * NUM_PREEMPTED


def test_with_a_pool_that_runs_dry(engine, requests, expected):
    core = EngineCore(dataclasses.replace(engine.core_config, num_blocks=24))
    assert answers(engine, requests, core=core) == expected
    assert core.load().num_preemptions_total > 0


def test_with_two_plans_in_flight(engine, requests, expected):
    assert answers(engine, requests, steps_in_flight=2) == expected
