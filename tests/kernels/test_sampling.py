import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels import LogitsPenalties, SamplingBatch
from octavo_kernels.reference import keep_likely

MINUS_INFINITY = -math.inf


@pytest.fixture(params=["cpu", "reference"])
def kernels(request):
    return request.getfixturevalue(request.param)


def batch_of(n, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, rows=None, seed=7, positions=None):
    return SamplingBatch(
        rows=torch.zeros(n, dtype=torch.int32) if rows is None else rows,
        temperature=torch.full((n,), float(temperature)),
        top_k=torch.full((n,), top_k, dtype=torch.int32),
        top_p=torch.full((n,), float(top_p)),
        min_p=torch.full((n,), float(min_p)),
        seeds=torch.full((n,), seed),
        choices=torch.zeros(n, dtype=torch.int32),
        positions=torch.arange(n) if positions is None else positions,
    )


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([5, 64, 1000, 5003]),
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 2, 50, 10**6]),
    st.sampled_from([1e-6, 0.3, 0.9, 0.9999, 1.0]),
    st.sampled_from([0.0, 1e-3, 0.5, 1.0]),
    st.sampled_from([0.01, 1.0, 8.0]),
    st.integers(0, 2**63 - 1),
)
def test_draws_equal_the_reference(cpu, reference, vocabulary, temperature, top_k, top_p, min_p, spread, seed):
    torch.manual_seed(seed % 2**31)
    logits = torch.randn(2, vocabulary) * spread
    batch = batch_of(
        6, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        rows=torch.tensor([0, 1, 0, 1, 0, 1], dtype=torch.int32),
    )  # fmt: skip
    assert cpu.sample(logits, batch).tolist() == reference.sample(logits, batch).tolist()


def test_a_draw_depends_on_its_seed_choice_and_position_alone(cpu):
    logits = torch.randn(3, 500)
    batch = batch_of(3, rows=torch.arange(3, dtype=torch.int32))
    together = cpu.sample(logits, batch).tolist()
    for i in range(3):
        alone = batch_of(1, positions=torch.tensor([i]))
        assert cpu.sample(logits[i : i + 1], alone).tolist() == [together[i]]


@pytest.mark.parametrize(
    ("filters", "kept"),
    [({}, 8), ({"top_k": 3}, 3), ({"top_p": 0.7}, None), ({"min_p": 0.2}, None), ({"top_k": 6, "top_p": 0.8}, None)],
)
def test_frequencies_follow_the_filtered_distribution(cpu, filters, kept):
    draws, temperature = 20_000, 0.7
    line = torch.tensor([1.0, 0.2, -0.5, 0.7, 0.0, -2.0, 0.4, -1.0])
    filtered = keep_likely(
        line / temperature, torch.tensor(filters.get("min_p", 0.0)), filters.get("top_k", 0),
        torch.tensor(filters.get("top_p", 1.0)),
    )  # fmt: skip
    expected = filtered.softmax(dim=-1) * draws
    drawn = cpu.sample(line.view(1, -1), batch_of(draws, temperature=temperature, **filters))
    counts = torch.bincount(drawn, minlength=8).float()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert kept is None or int(possible.sum()) == kept
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert statistic < 24.3  # chi-square, 7 degrees of freedom at most: 0.1 %


class TestEdges:
    def test_ties_with_the_kth_are_kept(self, kernels):
        drawn = kernels.sample(torch.tensor([[3.0, 1.0, 3.0, 3.0, 0.0]]), batch_of(200, top_k=2))
        assert set(drawn.tolist()) == {0, 2, 3}

    def test_the_least_top_p_keeps_the_best_token_alone(self, kernels):
        drawn = kernels.sample(torch.tensor([[0.0, 0.1, 0.0]]), batch_of(50, top_p=1e-9))
        assert set(drawn.tolist()) == {1}

    def test_min_p_of_one_keeps_the_best_tokens(self, kernels):
        drawn = kernels.sample(torch.tensor([[0.0, 2.0, 2.0, 1.9]]), batch_of(100, min_p=1.0))
        assert set(drawn.tolist()) == {1, 2}

    def test_top_k_beyond_the_vocabulary_keeps_all(self, kernels):
        drawn = kernels.sample(torch.zeros(1, 4), batch_of(100, top_k=9))
        assert set(drawn.tolist()) == {0, 1, 2, 3}

    def test_temperature_zero_takes_the_first_of_the_largest(self, kernels):
        assert kernels.sample(torch.tensor([[1.0, 4.0, 4.0]]), batch_of(1, temperature=0)).tolist() == [1]

    def test_forbidden_tokens_are_never_drawn(self, kernels):
        logits = torch.full((1, 300), MINUS_INFINITY)
        logits[0, [7, 200]] = torch.tensor([0.0, 1.0])
        for filters in ({}, {"top_k": 5}, {"top_p": 0.99999}, {"min_p": 1e-6}):
            assert set(kernels.sample(logits, batch_of(100, **filters)).tolist()) <= {7, 200}

    def test_rows_without_a_finite_logit_give_a_token(self, kernels):
        logits = torch.full((2, 64), MINUS_INFINITY)
        logits[1, 3] = math.nan
        assert kernels.argmax(logits).tolist() == [0, 0]
        for filters in ({}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}):
            assert kernels.sample(logits, batch_of(1, **filters)).tolist() == [0]

    def test_nan_never_wins(self, kernels):
        logits = torch.zeros(1, 130)
        logits[0, [0, 64, 129]] = math.nan
        logits[0, 100] = 9.0
        assert kernels.argmax(logits).tolist() == [100]
        drawn = set(kernels.sample(logits, batch_of(200)).tolist())
        assert not drawn & {0, 64, 129}

    def test_nothing_to_draw_gives_nothing(self, kernels):
        assert kernels.sample(torch.zeros(1, 4), batch_of(0)).shape == (0,)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5), st.sampled_from([1, 63, 64, 65, 1000]), st.integers(0, 2**31))
def test_argmax_takes_the_first_of_the_largest(cpu, rows, vocabulary, seed):
    logits = torch.randint(0, 5, (rows, vocabulary), generator=torch.Generator().manual_seed(seed)).float()
    expected = [line.index(max(line)) for line in logits.tolist()]
    assert cpu.argmax(logits).tolist() == expected


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.sampled_from([5, 700]), st.integers(0, 5), st.integers(0, 2**31))
def test_log_probabilities_match_the_reference(cpu, reference, rows, vocabulary, k, seed):
    torch.manual_seed(seed)
    logits, tokens = torch.randn(rows, vocabulary).mul(4).round(), torch.randint(0, vocabulary, (rows,))
    for mine, theirs in zip(
        cpu.token_logprobs(logits, tokens, k), reference.token_logprobs(logits, tokens, k), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2**31))
def test_penalties_match_the_reference(cpu, reference, count, seed):
    torch.manual_seed(seed)
    logits = torch.randn(4, 50)
    bias_lens = torch.randint(0, 4, (count,))
    total = int(bias_lens.sum())
    num_tokens = torch.randint(1, 20, (count,), dtype=torch.int32)
    penalties = LogitsPenalties(
        rows=torch.randperm(4)[:count].int(),
        repetition=torch.rand(count) + 0.5,
        presence=torch.randn(count),
        frequency=torch.randn(count),
        token_ids=torch.randint(0, 50, (6, 20), dtype=torch.int32),
        history_rows=torch.randint(0, 6, (count,), dtype=torch.int32),
        prompt_lens=(num_tokens * torch.rand(count)).int(),
        num_tokens=num_tokens,
        bias_start=torch.cat([torch.zeros(1), bias_lens.cumsum(0)]).int(),
        bias_ids=torch.randint(0, 50, (total,), dtype=torch.int32),
        bias_values=torch.where(torch.rand(total) < 0.3, MINUS_INFINITY, torch.randn(total)),
    )
    mine, theirs = logits.clone(), logits.clone()
    cpu.apply_penalties(mine, penalties)
    reference.apply_penalties(theirs, penalties)
    torch.testing.assert_close(mine, theirs)
    assert not mine.isnan().any()


def test_a_repeated_token_pays_by_its_use(kernels):
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    kernels.apply_penalties(
        logits,
        LogitsPenalties(
            rows=zero, repetition=2 * one, presence=0.5 * one, frequency=0.25 * one,
            token_ids=torch.tensor([[0, 1, 2, 2]], dtype=torch.int32), history_rows=zero,
            prompt_lens=zero + 2, num_tokens=zero + 4, bias_start=torch.tensor([0, 1], dtype=torch.int32),
            bias_ids=zero + 3, bias_values=one * MINUS_INFINITY,
        ),
    )  # fmt: skip
    # prompt tokens: repetition alone; token 2, used twice in the output: halved, then 2 * 0.25 and 0.5
    assert logits.tolist() == [[1.0, -4.0, -0.5, MINUS_INFINITY]]
