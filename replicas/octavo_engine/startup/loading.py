"""Loading of an engine from a model's URI and settings: the only place where all choices meet."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import octavo_kernels
from octavo_api.errors import ConfigurationError
from octavo_api.settings import Dtype, EngineSettings
from octavo_api.startup.model_source import locate
from octavo_engine.core.config import CoreConfig
from octavo_engine.models.registry import load_model, num_parameters
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.startup.engine_plan import choose_threads, plan_engine
from octavo_engine.startup.machine import GIB, Machine
from octavo_engine.startup.memory_plan import LOGITS_BYTES

_TORCH = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT32: torch.float32}


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
    """Find, check, read and warm up the model; ``report`` receives the progress in words.

    ``num_cpus`` is the replica's share of the machine. ``memory_limit`` (bytes) is the replica's own.
    ``replicas_on_node`` replicas share the limits of the cgroup and the machine. Raises subclasses of ``StartupError``.
    All checks that need no weights run before any weight is read.
    """
    machine = machine or Machine()
    report(f"locating {model_uri}")
    plan = plan_engine(
        locate(model_uri, revision),
        settings,
        replicas_on_node=replicas_on_node,
        memory_limit=memory_limit,
        machine=machine,
    )
    config, memory, core_config = plan.checkpoint.config, plan.memory, plan.core_config
    threads = choose_threads(settings.num_threads, num_cpus, machine.usable_cpus())
    torch.set_num_threads(threads)
    try:
        kernels = octavo_kernels.for_device("cpu", num_threads=threads)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    report(
        f"{config.family}, {num_parameters(config) / 1e6:.0f}M parameters in {plan.dtype}, {threads} threads, "
        f"instruction set {kernels.instruction_set}, memory {memory.total / GIB:.2f} GiB, of which KV cache "
        f"{memory.cache / GIB:.2f} GiB in {memory.num_blocks} blocks"
    )
    model = load_model(plan.checkpoint, kernels, _TORCH[plan.dtype], core_config.max_model_len, report)
    runner = ModelRunner(
        model,
        kernels,
        num_blocks=memory.num_blocks,
        block_size=settings.block_size,
        num_rows=core_config.max_num_seqs,
        max_model_len=core_config.max_model_len,
        eos_token_ids=config.eos_token_ids,
        max_logits_bytes=LOGITS_BYTES,
    )
    report("warming up")
    runner.warm_up(report)
    return LoadedEngine(
        core_config=core_config,
        runner=runner,
        model_key=core_config.model_key,
        kv_dtype=core_config.kv_dtype,
        max_model_len=core_config.max_model_len,
        vocab_size=config.vocab_size,
        dtype=str(plan.dtype),
    )
