"""The offline entry: prompts as text or tokens, all together, and nothing left behind by a prompt that fails."""

import asyncio

import pytest

from octavo_api.errors import ConfigurationError, InvalidRequest, RequestError
from octavo_api.sampling import SamplingParams
from octavo_engine import LLM

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("embedded://smollm2", max_model_len=256, kv_cache_memory_bytes=2**26)


def test_text_and_its_tokens_give_one_answer(llm):
    (first,) = llm.generate([PROMPT], GREEDY)
    (second,) = llm.generate([first.prompt_token_ids], GREEDY)
    assert "Paris" in first.outputs[0].text
    assert second.outputs == first.outputs
    assert first.outputs[0].finish_reason in ("stop", "length")


def test_prompts_run_together_and_keep_their_order(llm):
    prompts = [PROMPT, "One, two, three,", "The sky is"]
    params = [
        GREEDY,
        SamplingParams(temperature=0, max_tokens=3),
        SamplingParams(n=2, seed=1, max_tokens=5, logprobs=1),
    ]
    together = llm.generate(prompts, params)
    alone = [llm.generate([prompt], one)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert [result.outputs for result in together] == [result.outputs for result in alone]
    assert [len(result.outputs) for result in together] == [1, 1, 2]
    assert all(len(output.logprobs) == len(output.token_ids) for output in together[2].outputs)


def test_a_prefix_stays_cached_between_calls(llm):
    prompt = list(range(1000, 1100))
    first, second = (llm.generate([prompt], GREEDY)[0] for _ in range(2))
    assert (first.cached_tokens, second.cached_tokens) == (0, 96)
    assert second.outputs == first.outputs


def test_a_prompt_that_cannot_run_ends_the_call_and_not_the_next(llm):
    with pytest.raises(RequestError, match="256"):
        llm.generate([PROMPT, [5] * 300], GREEDY)
    with pytest.raises(InvalidRequest, match="sampling: got '2 entries', allowed: one, or 1"):
        llm.generate([PROMPT], [GREEDY, GREEDY])
    assert "Paris" in llm.generate([PROMPT], GREEDY)[0].outputs[0].text


def test_it_runs_inside_of_an_event_loop(llm):
    async def ask() -> str:
        return llm.generate([PROMPT], GREEDY)[0].outputs[0].text

    assert "Paris" in asyncio.run(ask())


def test_a_wrong_setting_is_named():
    with pytest.raises(ConfigurationError, match=r"LLM\.max_num_seq: unknown field; did you mean max_num_seqs"):
        LLM("embedded://smollm2", max_num_seq=4)


def test_the_package_has_nothing_else():
    import octavo_engine

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        octavo_engine.Nothing  # noqa: B018
