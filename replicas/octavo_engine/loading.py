"""From a model's URI and settings to an engine that is ready to run: the only place where all choices meet."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import octavo_kernels
from octavo_api.model_source import locate
from octavo_api.settings import EngineSettings
from octavo_engine.core.config import CoreConfig
from octavo_engine.models.registry import load_model
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.runner.sampler import LOGITS_BYTES
from octavo_engine.sizing import (
    GIB,
    Machine,
    choose_dtype,
    choose_max_model_len,
    choose_threads,
    plan_memory,
)
from octavo_engine.weights.checkpoint import open_checkpoint

_DTYPE_NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """All that the service needs. ``model_key`` is equal on every replica of the same weights in the same type."""

    core_config: CoreConfig
    runner: ModelRunner
    model_key: str
    kv_dtype: str
    max_model_len: int
    vocab_size: int
    dtype: str


def load_engine(
    model_uri: str,
    revision: str | None,
    settings: EngineSettings,
    *,
    num_cpus: float | None = None,
    replicas_on_node: int = 1,
    memory_limit: int | None = None,
    report: Callable[[str], None] = lambda _: None,
    machine: Machine | None = None,
) -> LoadedEngine:
    """Finds, checks, reads and warms the model up; ``report`` hears of the progress in words.

    ``num_cpus`` is the replica's share of the machine, ``memory_limit`` (bytes) is the replica's own; the cgroup's and
    the machine's are shared by ``replicas_on_node``. Raises subclasses of ``StartupError``; what can be refused is
    refused before any weight is read.
    """
    machine = machine or Machine()
    report(f"looking for {model_uri}")
    checkpoint = open_checkpoint(locate(model_uri, revision))
    config = checkpoint.config
    dtype = choose_dtype(settings.dtype, machine.cpu_flags())
    dtype_name = _DTYPE_NAMES[dtype]
    max_model_len = choose_max_model_len(settings.max_model_len, config)
    node_limit = machine.memory_limit()
    memory = plan_memory(
        config,
        dtype,
        block_size=settings.block_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        logits_bytes=LOGITS_BYTES,
        cache_bytes=settings.kv_cache_memory_bytes,
        memory_limit=node_limit if memory_limit is None else min(memory_limit * replicas_on_node, node_limit),
        replicas_on_node=replicas_on_node,
    )
    model_key = f"{checkpoint.fingerprint()}/{dtype_name}"
    core_config = CoreConfig(
        num_blocks=memory.num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        max_model_len=max_model_len,
        max_num_queued_reqs=settings.max_num_queued_reqs,
        enable_prefix_caching=settings.enable_prefix_caching,
        scheduling_policy=settings.scheduling_policy,
        eos_token_ids=config.eos_token_ids,
        model_key=model_key,
        kv_dtype=dtype_name,
        seed=settings.seed,
    )
    threads = choose_threads(settings.num_threads, num_cpus, machine.usable_cpus())
    report(
        f"{config.family}, {config.num_parameters / 1e6:.0f}M parameters in {dtype_name}, {threads} threads, "
        f"KV cache {memory.cache / GIB:.2f} GiB in {memory.num_blocks} blocks"
    )
    torch.set_num_threads(threads)
    kernels = octavo_kernels.for_device("cpu", batch_invariant=settings.batch_invariant, num_threads=threads)
    model = load_model(checkpoint, kernels, dtype, max_model_len, report)
    runner = ModelRunner(
        model,
        kernels,
        num_blocks=memory.num_blocks,
        block_size=settings.block_size,
        num_rows=settings.max_num_seqs,
        max_model_len=max_model_len,
        eos_token_ids=config.eos_token_ids,
    )
    report("warming up")
    runner.warm_up(report)
    return LoadedEngine(core_config, runner, model_key, dtype_name, max_model_len, config.vocab_size, dtype_name)
