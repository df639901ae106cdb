import math

import pytest
import torch

from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import BlockCopy, RowJoin, RowWork, StepPlan
from octavo_engine.runner.sampler import NOT_FINITE
from octavo_testing.engine.tiny_model import run

GREEDY = SamplingParams(temperature=0, seed=0, max_tokens=8)


def plan(*, leaves=(), copies=(), joins=(), work=()):
    return StepPlan(0, tuple(leaves), tuple(copies), tuple(joins), tuple(work))


def all_logits(runner, tokens):
    """Logits at each position, from a forward pass over blocks of its own."""
    kernels = runner._kernels
    count = torch.tensor([len(tokens)], dtype=torch.int32)
    table = torch.arange(1900, 1912, dtype=torch.int32).view(1, -1)
    meta = kernels.plan_attention(
        torch.tensor([0, len(tokens)], dtype=torch.int32), count, table, block_size=16, num_kv_heads=2
    )
    hidden = runner._model.forward(torch.tensor(tokens, dtype=torch.int32), runner.kv_cache.unbind(1), meta, None)
    return runner._model.logits(hidden)


def test_a_step_of_chunks_alone_samples_nothing_and_writes_the_cache(make_runner):
    runner = make_runner()
    tokens = tuple(range(20, 40))
    first = plan(joins=[RowJoin(3, tokens, 20, (5, 6, 7), GREEDY, 0)], work=[RowWork(3, 0, 13)])
    assert runner.execute(first).sampled == ()
    (entry,) = runner.execute(plan(work=[RowWork(3, 13, 7, choices=(0,))])).sampled
    assert entry.token_id == all_logits(runner, tokens)[-1].argmax()


def test_an_empty_plan_only_changes_rows(make_runner):
    runner = make_runner()
    runner.kv_cache[9] = 1.5
    assert runner.execute(plan(copies=[BlockCopy(9, 10)], leaves=[0])).sampled == ()
    assert (runner.kv_cache[10] == 1.5).all()


@pytest.mark.parametrize("chunk", [1, 7, 8, 9, 30])
def test_prompt_logprobs_cover_every_prompt_position_after_the_first(chunk, make_runner):
    runner = make_runner()
    prompt = [(7 * i) % 500 + 4 for i in range(30)]
    sampling = SamplingParams(temperature=0, seed=0, max_tokens=3, prompt_logprobs=4)
    seen = {}
    join = RowJoin(0, tuple(prompt), len(prompt), (1, 2, 3, 4), sampling, 0)
    for start in range(0, 30, chunk):
        count = min(chunk, 30 - start)
        choices = (0,) if start + count == 30 else ()
        work = RowWork(0, start, count, choices=choices, prompt_logprobs=True)
        output = runner.execute(plan(joins=[join] if start == 0 else [], work=[work]))
        seen.update(enumerate(output.prompt_logprobs.get(0, ()), start + 1))
    assert sorted(seen) == list(range(1, 30))
    expected = all_logits(runner, prompt).log_softmax(-1)
    for position, entry in seen.items():
        line = expected[position - 1]
        assert entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(line[prompt[position]].item(), abs=1e-4)
        assert [token for token, _ in entry.top] == line.topk(4).indices.tolist()


def test_rows_keep_nothing_of_earlier_requests(make_runner):
    runner = make_runner()
    biased = SamplingParams(seed=1, logit_bias={9: 100.0}, min_tokens=8, max_tokens=8, repetition_penalty=2.0)
    prompt = list(range(50, 70))
    before = run(runner, [(prompt, GREEDY)])[0, 0].output
    run(runner, [(prompt, biased)] * 12)
    assert run(runner, [(prompt, GREEDY)] * 12)[11, 0].output == before


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_sequence_whose_cache_is_poisoned_fails_alone(backend, make_runner):
    runner = make_runner(backend)
    prompts = [tuple(range(20 + i, 36 + i)) for i in range(3)]
    joins = [RowJoin(i, prompt, 16, (3 * i, 3 * i + 1, 3 * i + 2), GREEDY, 0) for i, prompt in enumerate(prompts)]
    runner.execute(plan(joins=joins, work=[RowWork(i, 0, 15) for i in range(3)]))
    runner.kv_cache[3] = math.nan
    output = runner.execute(plan(work=[RowWork(i, 15, 1, choices=(0,)) for i in range(3)]))
    assert output.failed == {1: NOT_FINITE}
    for entry in output.sampled:
        assert entry.token_id == all_logits(runner, prompts[entry.row])[-1].argmax()
    assert [entry.row for entry in output.sampled] == [0, 2]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_stale_numbers_behind_a_sequence_in_its_last_block_are_never_read(backend, make_runner):
    runner = make_runner(backend)
    prompt = list(range(20, 31))
    expected = run(runner, [(prompt, GREEDY)])[0, 0].output
    runner.kv_cache.fill_(math.nan)
    assert run(runner, [(prompt, GREEDY)])[0, 0].output == expected


def test_warm_up_may_be_repeated_and_leaves_no_trace(make_runner):
    runner = make_runner()
    prompt = list(range(20, 31))
    expected = run(runner, [(prompt, GREEDY)])[0, 0].output
    runner.warm_up()
    runner.warm_up()
    assert run(runner, [(prompt, GREEDY)])[0, 0].output == expected
