import json

import pytest
import torch

from octavo_api.errors import ModelError
from octavo_engine.models.registry import read_config
from octavo_engine.models.rope import inverse_frequencies
from octavo_engine.weights.hf_config import HfConfig
from octavo_engine.weights.model_config import RopeConfig, RopeKind

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def read(generation=None, **changes):
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value is not ...}
    return read_config(HfConfig(config, generation, where="config.json"))


def test_defaults_are_those_of_transformers():
    config = read(eos_token_id=2)
    assert (config.family, config.num_kv_heads, config.head_dim) == ("LlamaForCausalLM", 4, 32)
    assert (config.rope, config.max_model_len) == (RopeConfig(theta=10000.0), 256)
    assert not any((config.tie_word_embeddings, config.qkv_bias, config.output_bias, config.mlp_bias))
    assert config.sliding_windows == (None, None, None)
    assert config.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(2, None, {2}), ([2, 5], None, {2, 5}), (2, [7, 8], {7, 8}), (None, None, set()), (2, 9, {9})],
)
def test_eos_tokens_of_the_generation_config_take_precedence(config, generation, expected):
    defaults = {} if generation is None else {"eos_token_id": generation}
    assert read(defaults, eos_token_id=config).eos_token_ids == expected


def test_rope_in_the_form_of_transformers_4_and_5_is_the_same():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = read(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **scaling})
    new = read(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert old.rope == new.rope
    assert (old.rope.kind, old.rope.theta) == (RopeKind.LLAMA3, 5e5)
    oldest = read(rope_scaling={"type": "linear", "factor": 2.0})
    assert (oldest.rope.kind, oldest.max_model_len) == (RopeKind.LINEAR, 512)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "beta_fast": 16,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.5, "original_max_position_embeddings": 4096},
    ],
)
@pytest.mark.model
def test_frequencies_are_those_of_transformers(parameters, head_dim):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(**{**LLAMA, "head_dim": head_dim}, rope_parameters={"rope_theta": 1e6, **parameters})
    rotary = LlamaRotaryEmbedding(theirs)
    ours, scale = inverse_frequencies(read(head_dim=head_dim, rope_parameters=theirs.rope_parameters).rope, head_dim)
    torch.testing.assert_close(ours, rotary.inv_freq, rtol=1e-6, atol=0)
    assert scale == pytest.approx(rotary.attention_scaling)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architectures: got GPT2LMHeadModel, allowed: LlamaForCausalLM, M",
        ),
        ({"architectures": ...}, "architectures: got nothing, allowed: LlamaForCausalLM"),
        ({"hidden_size": ...}, "hidden_size: required, not given"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers: got '3', allowed: a positive integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: got 3, allowed: a divisor of 4"),
        ({"rms_norm_eps": -1}, "rms_norm_eps: got -1, allowed: a positive number"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', allowed: silu"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope_type: got 'longrope', allowed: default, linear, ",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_parameters: factor: required"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "allowed: one set for all layers"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: got 'gptq'"),
        ({"eos_token_id": "x"}, "eos_token_id: got 'x'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: got 1, allowed: true, false"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(ModelError) as caught:
        read(**changes)
    assert message in caught.value.message
    assert caught.value.message.startswith("config.json")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_file_that_is_no_json_object_is_named(text, tmp_path):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(HfConfig.read(tmp_path))


def test_windows_by_layer():
    assert read(architectures=["MistralForCausalLM"], sliding_window=64).sliding_windows == (64, 64, 64)
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "max_window_layers": 2}
    assert read(**qwen).sliding_windows == (None, None, None)
    assert read(**qwen, use_sliding_window=True).sliding_windows == (None, None, 64)
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert read(**qwen, use_sliding_window=True, layer_types=kinds).sliding_windows == (64, None, None)


@pytest.mark.model
def test_a_saved_configuration_is_read(tmp_path):
    import transformers

    transformers.Qwen2Config(vocab_size=99, architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "temperature": 0.7}))
    config = read_config(HfConfig.read(tmp_path))
    assert (config.vocab_size, config.qkv_bias, config.eos_token_ids) == (99, True, {1, 2})


@pytest.mark.model
def test_the_tokenizers_end_of_text_ends_an_answer_too(tmp_path):
    import transformers

    transformers.Qwen2Config(architectures=["Qwen2ForCausalLM"], eos_token_id=5).save_pretrained(tmp_path)
    tokenizer = {
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {"5": {"content": "x"}, "7": {"content": "<|im_end|>"}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert read_config(HfConfig.read(tmp_path)).eos_token_ids == {5, 7}
