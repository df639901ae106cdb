"""A request's tokens and log probabilities depend on the request alone, bit for bit, with the embedded model.

``tests/engine/core/test_same_tokens.py`` shows it for the core with a fake runner, and
``tests/engine/runner/test_same_tokens_every_way.py`` for a tiny model. ``tests/engine/test_instruction_sets.py`` does
the same across instruction sets.
"""

import dataclasses
import random
from collections.abc import Callable

import pytest

from octavo_api.sampling import SamplingParams
from octavo_api.settings import EngineSettings
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.request import NewRequest
from octavo_engine.llm_engine import LLMEngine
from octavo_testing.engine.preemption import preempt, running_sequences

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


def create_engine(engine, **changes: object) -> LLMEngine:
    return LLMEngine(dataclasses.replace(engine.core_config, **changes), engine.runner)


def answers(
    engine,
    requests: list[NewRequest],
    *,
    llm_engine: LLMEngine | None = None,
    before_plan: Callable[[EngineCore], None] = lambda core: None,
    **changes: object,
) -> dict[object, type_of_answer]:
    """Run all of ``requests`` to their end; ``before_plan`` may disturb the core."""
    llm_engine = llm_engine or create_engine(engine, **changes)
    core = llm_engine.core
    tokens: dict[object, list[int]] = {new.request_id: [] for new in requests}
    logprobs: dict[object, list[float]] = {new.request_id: [] for new in requests}
    for new in requests:
        llm_engine.add_request(new)
    while llm_engine.has_unfinished_requests:
        before_plan(core)
        for output in llm_engine.step():
            assert output.error is None
            tokens[output.request_id] += output.token_ids
            logprobs[output.request_id] += [entry.logprob for entry in output.logprobs]
        core.check_integrity()
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
    llm_engine = create_engine(engine)
    core = llm_engine.core
    assert answers(engine, requests, llm_engine=llm_engine) == expected
    cold_hits = core.load().prefix_cache_hits_total
    again = [dataclasses.replace(new, request_id=f"again-{new.request_id}") for new in requests]
    warm = answers(engine, again, llm_engine=llm_engine)
    assert core.load().prefix_cache_hits_total > cold_hits + 16 * NUM_REQUESTS
    assert {key: warm[f"again-{key}"] for key in expected} == expected


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_with_a_preemption_before_every_step(engine, requests, expected, steps_in_flight):
    rng = random.Random(1)

    def disturb(core: EngineCore) -> None:
        # Never the first, whose progress is what the scheduler promises.
        for victim in [seq for seq in running_sequences(core)[1:] if rng.random() < 0.25]:
            preempt(core, victim)

    llm_engine = create_engine(engine, steps_in_flight=steps_in_flight, enable_prefix_caching=False)
    few = requests[:NUM_PREEMPTED]  # each prompt is computed many times over
    found = answers(engine, few, llm_engine=llm_engine, before_plan=disturb)
    assert found == {new.request_id: expected[new.request_id] for new in few}
    assert llm_engine.core.load().num_preemptions_total > 2 * NUM_PREEMPTED


def test_with_a_pool_that_runs_dry(engine, requests, expected):
    llm_engine = create_engine(engine, num_blocks=24)
    assert answers(engine, requests, llm_engine=llm_engine) == expected
    assert llm_engine.core.load().num_preemptions_total > 0


def test_with_two_plans_in_flight(engine, requests, expected):
    assert answers(engine, requests, steps_in_flight=2) == expected
