"""Whatever the company, the chunks, preemptions, forks and plans ahead: a request's tokens are its own."""

import random

import pytest
import torch

from octavo_api.sampling import SamplingParams

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
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_random_plans_give_the_tokens_of_a_run_alone(backend, dtype, depth, n, make_runner, play):
    runner = make_runner(backend, dtype)
    for seed in range(3 if backend == "cpu" else 1):  # the reference is slow, and its kernels are not what is shipped
        wanted = requests(seed, n=n)
        alone = {
            (number, choice): sequence
            for number, request in enumerate(wanted)
            for (_, choice), sequence in play(runner, [request]).items()
        }
        mixed = play(runner, wanted, seed=seed, depth=depth)
        for key, sequence in alone.items():
            assert mixed[key].output == sequence.output, f"seed {seed}, request and choice {key}"
            assert len(sequence.output) == sequence.sampling.max_tokens
            assert [p.top for p in mixed[key].logprobs] == [p.top for p in sequence.logprobs] or backend == "reference"


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others(make_runner, play):
    runner = make_runner()
    prompt = list(range(10, 30))
    first, again, other = (
        play(runner, [(prompt, SamplingParams(seed=seed, max_tokens=16))])[0, 0].output for seed in (7, 7, 2**63 + 7)
    )
    assert first == again != other


def test_choices_of_one_request_differ(make_runner, play):
    sequences = play(make_runner(), [(list(range(10, 30)), SamplingParams(seed=7, n=4, max_tokens=16))])
    assert len({tuple(sequences[0, choice].output) for choice in range(4)}) == 4
