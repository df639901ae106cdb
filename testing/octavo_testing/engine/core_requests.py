"""Configurations of the core and requests for it, small and with fixed seeds."""

import random

from octavo_api.sampling import SamplingParams
from octavo_api.settings import SchedulingPolicy
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.request import NewRequest

VOCAB = 997
EOS = 0
BLOCK = 4


def create_config(**changes):
    values = {
        "num_blocks": 64,
        "block_size": BLOCK,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0,
        "max_model_len": 4096,
        "max_num_queued_reqs": 1000,
        "enable_prefix_caching": True,
        "scheduling_policy": SchedulingPolicy.FCFS,
        "eos_token_ids": frozenset({EOS}),
        "model_key": "test",
        "kv_dtype": "float32",
        "seed": 1,
        "steps_in_flight": 1,
    }
    values.update(changes)
    return CoreConfig(**values)


def create_core(**changes):
    return EngineCore(create_config(**changes))


def random_prompt(length, seed=0):
    rng = random.Random(seed)
    return tuple(rng.randrange(1, VOCAB) for _ in range(length))


def new_request(request_id, tokens, *, priority=0, cache_salt="", deadline=None, hashes=None, **sampling):
    sampling.setdefault("max_tokens", 8)
    sampling.setdefault("seed", 7)
    sampling.setdefault("ignore_eos", True)
    return NewRequest(request_id, tokens, hashes, SamplingParams(**sampling), priority, cache_salt, deadline)


def create_requests(count, length=10, *, first_id=0, same_prompt=False, **options):
    """Return requests ``0 .. count - 1``, each with a prompt of its own unless ``same_prompt``."""
    return [
        new_request(first_id + i, random_prompt(length, 0 if same_prompt else first_id + i + 1), **options)
        for i in range(count)
    ]
