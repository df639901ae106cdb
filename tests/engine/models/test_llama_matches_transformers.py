import copy
import random

import pytest
import torch

pytestmark = pytest.mark.model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CASES = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with its own head size": ("Llama", {"head_dim": 48}),
    "llama without groups": ("Llama", {"num_key_value_heads": 4}),
    "llama3 scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "linear scaling": ("Llama", {"rope_parameters": LINEAR}),
    "yarn scaling": ("Llama", {"rope_parameters": YARN}),
    "mistral, window shorter than the prompt": ("Mistral", {"sliding_window": 24}),
    "mistral without window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, window in some layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_logits_match(case, save_random, our_logits):
    family, changes = CASES[case]
    folder, theirs = save_random(family, **changes)
    draw = random.Random(1)
    prompts = [[draw.randrange(320) for _ in range(length)] for length in (1, 100, 16, 47)]
    for prompt, ours in zip(prompts, our_logits(folder, prompts), strict=True):
        expected = theirs(torch.tensor([prompt])).logits[0]
        assert expected.std() > 0.5
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)


@torch.inference_mode()
def test_bf16_is_as_close_to_fp32_as_that_of_transformers(save_random, our_logits):
    folder, theirs = save_random("Llama")
    prompt = list(range(100))
    expected = theirs(torch.tensor([prompt])).logits[0]
    rounded = copy.deepcopy(theirs).bfloat16()(torch.tensor([prompt])).logits[0].float()
    (ours,) = our_logits(folder, [prompt], torch.bfloat16)
    assert (ours - expected).square().mean() < 1.2 * (rounded - expected).square().mean()
