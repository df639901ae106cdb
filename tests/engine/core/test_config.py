"""The core's configuration from settings: each field by its name, and the live ones while requests run."""

from octavo_api.settings import EngineSettings
from octavo_engine.core.config import CoreConfig

FACTS = {"num_blocks": 8, "max_model_len": 64, "eos_token_ids": frozenset({2}), "model_key": "m", "kv_dtype": "none"}


def test_every_field_comes_from_its_setting_or_from_the_facts():
    settings = EngineSettings(block_size=48, max_num_batched_tokens=32, max_num_queued_reqs=3, seed=7)
    config = CoreConfig.from_settings(settings, **FACTS)
    assert (config.block_size, config.max_num_batched_tokens, config.max_num_queued_reqs, config.seed) == (48, 32, 3, 7)
    assert config.max_num_seqs == 32
    assert {name: getattr(config, name) for name in FACTS} == FACTS


def test_only_live_settings_apply_while_requests_run():
    config = CoreConfig.from_settings(EngineSettings(), **FACTS)
    changed = EngineSettings(long_prefill_token_threshold=9, max_num_queued_reqs=1, block_size=32, max_num_seqs=2)
    live = config.with_live(changed)
    assert (live.long_prefill_token_threshold, live.max_num_queued_reqs) == (9, 1)
    assert (live.block_size, live.max_num_seqs) == (config.block_size, config.max_num_seqs)
