"""The sampler against a plain oracle in numpy, with logits given: the model's head is the identity here."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import RowJoin, RowWork
from octavo_engine.runner.draws import draws_of
from octavo_engine.runner.row_state import RowState
from octavo_engine.runner.sampler import NOT_FINITE, Sampler
from octavo_kernels.philox import gumbel, random_words

VOCABULARY = 24
EOS = 3


@dataclass(frozen=True)
class Config:
    vocab_size: int = VOCABULARY


class IdentityHead:
    """Stands for a model whose hidden states are its logits."""

    config = Config()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()


@pytest.fixture(scope="module", params=["reference", "cpu"])
def kernels(request, make_kernels):
    return make_kernels(request.param)


def sample(kernels, joins, logits, failed=None, fans=None, max_logits_bytes=2**26):
    """Samples once after all known tokens of each join; the logits of row ``i`` are ``logits[i]``."""
    rows = RowState(len(joins), 64, 16, VOCABULARY, frozenset({EOS}))
    for join in joins:
        rows.join(join)
    work = tuple(RowWork(j.row, len(j.token_ids) - 1, 1, choices=(fans or {}).get(j.row, (j.choice,))) for j in joins)
    failed = {} if failed is None else failed
    hidden = torch.tensor(np.asarray(logits), dtype=torch.float32)
    sampler = Sampler(IdentityHead(), kernels, rows, max_logits_bytes)
    return sampler.sample(hidden, draws_of(work), failed), rows


def joined(row=0, tokens=(5, 6), prompt_len=1, choice=0, **sampling):
    return RowJoin(row, tuple(tokens), prompt_len, (0,), SamplingParams(**{"seed": 0, **sampling}), choice)


def changed(logits: np.ndarray, join: RowJoin) -> np.ndarray:
    """The oracle of biases and penalties, one token at a time."""
    sampling, line = join.sampling, logits.astype(np.float64).copy()
    prompt, output = join.token_ids[: join.prompt_len], join.token_ids[join.prompt_len :]
    for token, bias in sampling.logit_bias.items():
        line[token] += bias
    if len(output) < sampling.min_tokens:
        for token in {EOS, *sampling.stop_token_ids}:
            line[token] = -math.inf
    for token in range(len(line)):
        if token in prompt or token in output:
            by = sampling.repetition_penalty
            line[token] = line[token] / by if line[token] > 0 else line[token] * by
        line[token] -= sampling.frequency_penalty * output.count(token)
        line[token] -= sampling.presence_penalty * (token in output)
    return line


def kept(line: np.ndarray, sampling: SamplingParams) -> set[int]:
    """The oracle of the filters: the tokens that may be drawn."""
    scaled = line / sampling.temperature
    alive = {int(token) for token in np.flatnonzero(np.isfinite(scaled))}
    best = max(scaled)
    alive = {token for token in alive if math.exp(scaled[token] - best) >= sampling.min_p}
    if sampling.top_k:
        order = sorted((scaled[token] for token in alive), reverse=True)
        least = order[min(sampling.top_k, len(order)) - 1]
        alive = {token for token in alive if scaled[token] >= least}
    total = sum(math.exp(scaled[token] - best) for token in alive)
    reached, chosen = 0.0, set()
    for token in sorted(alive, key=lambda token: (-scaled[token], token)):
        if reached >= sampling.top_p and chosen:
            break
        chosen.add(token)
        reached += math.exp(scaled[token] - best) / total
    return chosen


samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.9]),
        "top_k": st.sampled_from([0, 1, 4, 100]),
        "top_p": st.sampled_from([0.2, 0.85, 1.0]),
        "min_p": st.sampled_from([0.0, 0.07]),
        "seed": st.integers(0, 2**64 - 1),
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.6]),
        "presence_penalty": st.sampled_from([0.0, -1.0, 0.9]),
        "frequency_penalty": st.sampled_from([0.0, -0.4, 0.6]),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, -2.0, 3.5]), max_size=4),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=2).map(tuple),
        "logprobs": st.sampled_from([None, 0, 3]),
    }
)
histories = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8)


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(st.tuples(samplings, histories, st.integers(1, 8), st.integers(0, 3)), min_size=1, max_size=5),
    noise=st.integers(0, 2**32 - 1),
)
def test_sampler_agrees_with_the_oracle(kernels, rows, noise):
    logits = np.random.default_rng(noise).normal(0, 3, (len(rows), VOCABULARY)).astype(np.float32)
    joins = [
        joined(row, tokens, min(prompt_len, len(tokens)), choice, **sampling)
        for row, (sampling, tokens, prompt_len, choice) in enumerate(rows)
    ]
    sampled, state = sample(kernels, joins, logits)
    for entry, join, raw in zip(sampled, joins, logits, strict=True):
        line, position = changed(raw, join), len(join.token_ids)
        if join.sampling.temperature == 0:
            assert line[entry.token_id] == pytest.approx(max(line), abs=1e-4)
        else:
            allowed = kept(line, join.sampling)
            words = random_words(join.sampling.seed, join.choice, position, VOCABULARY)
            score = line / join.sampling.temperature + gumbel(words).numpy()
            assert entry.token_id in allowed
            assert score[entry.token_id] == pytest.approx(max(score[token] for token in allowed), abs=1e-3)
        assert state.token_ids[join.row, position] == entry.token_id
        if join.sampling.logprobs is None:
            assert entry.logprobs is None
            continue
        expected = raw - np.log(np.exp(raw.astype(np.float64)).sum())
        order = np.argsort(-expected, kind="stable")[: join.sampling.logprobs]
        assert entry.logprobs.token_id == entry.token_id
        assert entry.logprobs.logprob == pytest.approx(expected[entry.token_id], abs=1e-4)
        assert [token for token, _ in entry.logprobs.top] == order.tolist()
        assert [value for _, value in entry.logprobs.top] == pytest.approx(expected[order].tolist(), abs=1e-4)


def test_rows_without_finite_logits_fail_alone(kernels):
    logits = np.random.default_rng(0).normal(size=(5, VOCABULARY))
    logits[1] = math.nan
    logits[3, 7] = math.inf
    for temperature in (0.0, 1.0):
        joins = [joined(row, temperature=temperature) for row in range(5)]
        failed: dict[int, str] = {}
        sampled, _ = sample(kernels, joins, logits, failed)
        assert failed == {1: NOT_FINITE, 3: NOT_FINITE}
        alone = [sample(kernels, [replace(joins[row], row=0)], logits[[row]])[0][0] for row in (0, 2, 4)]
        assert [sampled[row].token_id for row in (0, 2, 4)] == [entry.token_id for entry in alone]


def test_a_fork_point_draws_for_every_choice_and_keeps_its_own(kernels):
    logits = np.random.default_rng(0).normal(size=(2, VOCABULARY))
    joins = [joined(0, choice=1), joined(1, temperature=0)]
    sampled, rows = sample(kernels, joins, logits, fans={0: (0, 1, 2)})
    assert [(entry.row, entry.choice) for entry in sampled] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    for choice in range(3):
        (alone,), _ = sample(kernels, [joined(0, choice=choice)], logits[:1])
        assert sampled[choice].token_id == alone.token_id
    assert rows.token_ids[0, 2] == sampled[1].token_id


def test_min_tokens_forbids_stops_until_it_is_reached(kernels):
    logits = np.zeros((1, VOCABULARY))
    logits[0, EOS], logits[0, 11], logits[0, 4] = 9, 8, 7
    for output, expected in ((0, 4), (1, 4), (2, EOS)):
        tokens = (5, *[6] * output)
        (entry,), _ = sample(kernels, [joined(0, tokens, temperature=0, min_tokens=2, stop_token_ids=(11,))], logits)
        assert entry.token_id == expected


def test_slices_of_logits_change_nothing(kernels):
    logits = np.random.default_rng(0).normal(size=(7, VOCABULARY))
    joins = [joined(row, seed=row, logprobs=2, presence_penalty=row / 10) for row in range(7)]
    whole, _ = sample(kernels, joins, logits, fans={2: (0, 1)})
    three_rows = 3 * 4 * VOCABULARY
    assert sample(kernels, joins, logits, fans={2: (0, 1)}, max_logits_bytes=three_rows)[0] == whole


def test_draws_follow_the_distribution(kernels):
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125, *[1e-9] * (VOCABULARY - 4)]]))
    counts = np.zeros(VOCABULARY)
    joins = [joined(row, seed=row) for row in range(100)]
    fans = {row: tuple(range(20)) for row in range(100)}
    for entry in sample(kernels, joins, logits.repeat(100, axis=0), fans=fans)[0]:
        counts[entry.token_id] += 1
    expected = np.array([1000, 500, 250, 250])
    # chi square with 3 degrees of freedom: 16.3 is exceeded once in a thousand, and the seeds are fixed
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.3
