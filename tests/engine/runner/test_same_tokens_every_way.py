"""A request's tokens depend on the request alone, through the real core, runner and kernels with a tiny model.

``tests/engine/core/test_same_tokens.py`` shows the same for the core with a fake runner, and
``tests/engine/test_same_answer_every_way.py`` for the embedded model.
"""

import random

import pytest
import torch

from octavo_api.sampling import SamplingParams
from octavo_testing.engine.tiny_model import run, run_disturbed

WAYS = [("reference", torch.float32), ("cpu", torch.float32), ("cpu", torch.bfloat16)]


def requests(seed: int, count: int = 8, n: int = 1):
    draw = random.Random(seed)
    samplings = [
        {"temperature": 0},
        {"temperature": 0.9},
        {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 1.0, "logit_bias": {5: 4.0, 9: -100.0}, "min_tokens": 4, "logprobs": 3},
    ]
    return [
        (
            [draw.randrange(4, 512) for _ in range(draw.randint(1, 50))],
            SamplingParams(
                **samplings[number % len(samplings)], n=n, seed=draw.getrandbits(64), max_tokens=draw.randint(1, 20)
            ),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("backend", "dtype"), WAYS)
@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_a_disturbed_run_gives_the_tokens_of_a_run_alone(backend, dtype, steps_in_flight, n, make_runner):
    runner = make_runner(backend, dtype)
    for seed in range(3 if backend == "cpu" else 1):  # the reference is slow, and its kernels are not what is shipped
        wanted = requests(seed, n=n)
        mixed, load = run_disturbed(runner, wanted, seed=seed, steps_in_flight=steps_in_flight)
        assert load.num_preemptions_total > 0
        for number, request in enumerate(wanted):
            for (_, choice), alone in run(runner, [request]).items():
                answer = mixed[number, choice]
                assert answer.output == alone.output, f"seed {seed}, request {number}, choice {choice}"
                assert len(alone.output) == request[1].max_tokens
                assert [p.top for p in answer.logprobs] == [p.top for p in alone.logprobs] or backend == "reference"


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others(make_runner):
    runner = make_runner()
    prompt = list(range(10, 30))
    first, again, other = (
        run(runner, [(prompt, SamplingParams(seed=seed, max_tokens=16))])[0, 0].output for seed in (7, 7, 2**63 + 7)
    )
    assert first == again != other


def test_choices_of_one_request_differ(make_runner):
    sequences = run(make_runner(), [(list(range(10, 30)), SamplingParams(seed=7, n=4, max_tokens=16))])
    assert len({tuple(sequences[0, choice].output) for choice in range(4)}) == 4
