"""Memory of the parts of an engine, and the choices that it depends on."""

from dataclasses import replace

import pytest

from octavo_api.errors import ConfigurationError, NotEnoughMemory
from octavo_api.settings import Dtype
from octavo_engine.models.registry import num_parameters
from octavo_engine.startup.engine_plan import choose_dtype, choose_max_model_len, choose_threads
from octavo_engine.startup.machine import GIB
from octavo_engine.startup.memory_plan import PROCESS_BYTES, plan_memory
from octavo_engine.weights.model_config import ModelConfig, RopeConfig

SMOLLM2 = ModelConfig(
    family="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    max_model_len=8192,
    rope=RopeConfig(),
    tie_word_embeddings=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    sliding_windows=(None,) * 30,
    eos_token_ids=frozenset({2}),
)


@pytest.mark.parametrize(
    ("setting", "num_cpus", "usable", "expected"),
    [
        (None, None, 8.0, 8),
        (None, 4.0, 64.0, 4),
        (None, 16.0, 2.5, 2),
        (None, 0.5, 64.0, 1),
        (None, 4.0, 0.5, 1),
        (3, 8.0, 2.0, 3),
    ],
)
def test_threads(setting, num_cpus, usable, expected):
    assert choose_threads(setting, num_cpus, usable) == expected


def test_dtype_auto_is_bfloat16_and_an_explicit_type_is_kept():
    assert choose_dtype(Dtype.AUTO) is Dtype.BFLOAT16
    assert choose_dtype(Dtype.FLOAT32) is Dtype.FLOAT32


def test_max_model_len_is_the_models_or_less():
    assert choose_max_model_len(None, SMOLLM2) == 8192
    assert choose_max_model_len(100, SMOLLM2) == 100
    with pytest.raises(ConfigurationError, match=r"max_model_len: got 8193, allowed: at most the model's 8192"):
        choose_max_model_len(8193, SMOLLM2)


def memory(dtype=Dtype.FLOAT32, config=SMOLLM2, **changes):
    values = {
        "block_size": 16,
        "max_model_len": 8192,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
        "cache_bytes": None,
        "memory_limit": 64 * GIB,
        "replicas_on_node": 1,
    }
    return plan_memory(config, dtype, **{**values, **changes})


def test_weights_and_blocks_are_counted_in_their_dtype():
    assert num_parameters(SMOLLM2) == 134_515_008
    rotary = 8192 * 64 * 4
    for dtype, size in ((Dtype.FLOAT32, 4), (Dtype.BFLOAT16, 2)):
        # Padding and the fp32 biases of the packed layers are less than 1 %.
        assert 1 < (memory(dtype).weights - rotary) / (size * 134_515_008) < 1.01
    assert SMOLLM2.block_bytes(16, 4) == 30 * 2 * 3 * 16 * 64 * 4


def test_untied_embeddings_count_twice():
    untied = replace(SMOLLM2, tie_word_embeddings=False)
    assert num_parameters(untied) - num_parameters(SMOLLM2) == 49152 * 576


@pytest.mark.parametrize(
    ("limit", "replicas", "expected"),
    [(64 * GIB, 1, 4 * GIB), (8 * GIB, 1, 2 * GIB), (24 * GIB, 4, 3 * GIB // 2)],
)
def test_default_cache_is_a_quarter_of_the_share_and_at_most_4_gib(limit, replicas, expected):
    plan = memory(memory_limit=limit, replicas_on_node=replicas)
    block = SMOLLM2.block_bytes(16, 4)
    assert plan.num_blocks == expected // block
    assert plan.cache == plan.num_blocks * block


def test_the_default_cache_shrinks_to_the_memory_beside_the_weights():
    limit = GIB * 17 // 10
    plan = memory(memory_limit=limit)
    assert limit - SMOLLM2.block_bytes(16, 4) < plan.total <= limit
    assert 0 < plan.cache < limit // 4


def test_an_explicit_cache_size_is_kept():
    block = SMOLLM2.block_bytes(16, 4)
    assert memory(cache_bytes=7 * block + 5).num_blocks == 7


def test_too_small_a_cache_is_refused():
    with pytest.raises(ConfigurationError, match=r"kv_cache_memory_bytes: got 65536, allowed: at least 1474560"):
        memory(cache_bytes=65536)


@pytest.mark.parametrize("cache", [None, 4 * GIB])
def test_not_enough_memory_names_both_numbers(cache):
    with pytest.raises(NotEnoughMemory, match=r"need \d\.\d\d GiB, the replica's limit is 0\.50 GiB"):
        memory(memory_limit=2 * GIB, replicas_on_node=4, cache_bytes=cache)


def test_row_buffers_are_counted():
    rows = memory(max_num_seqs=8192, max_model_len=2**17).rows
    assert rows == 8192 * 4 * (2**17 + 1 + 2**17 // 16)
    with pytest.raises(NotEnoughMemory, match=r"buffers of 8192 sequences 4\.25 GiB"):
        memory(max_num_seqs=8192, max_model_len=2**17, memory_limit=4 * GIB)


@pytest.mark.parametrize("field", ["weights", "rows", "workspace", "cache"])
def test_the_total_counts_every_part(field):
    plan = memory()
    assert replace(plan, **{field: getattr(plan, field) + 7}).total == plan.total + 7
    assert plan.total > PROCESS_BYTES
