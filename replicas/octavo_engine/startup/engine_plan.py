"""The plan of an engine from the model's headers, the settings and the machine, before anything is loaded."""

from dataclasses import dataclass

from octavo_api.errors import ConfigurationError
from octavo_api.settings import Dtype, EngineSettings
from octavo_api.startup.model_source import ModelFiles
from octavo_engine.core.config import CoreConfig
from octavo_engine.models.registry import open_checkpoint, tensors_of
from octavo_engine.startup.machine import Machine
from octavo_engine.startup.memory_plan import MemoryPlan, plan_memory
from octavo_engine.weights.checkpoint import Checkpoint, check_tensors, ignorable
from octavo_engine.weights.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Checkpoint, number type, memory and core configuration of an engine.

    ``dtype`` is never ``auto``. ``core_config.model_key`` is equal on every replica of the same weights and type.
    """

    checkpoint: Checkpoint
    dtype: Dtype
    memory: MemoryPlan
    core_config: CoreConfig


def plan_engine(
    files: ModelFiles,
    settings: EngineSettings,
    *,
    replicas_on_node: int = 1,
    memory_limit: int | None = None,
    machine: Machine | None = None,
) -> EnginePlan:
    """Plan an engine from headers, without weights.

    ``memory_limit`` is the replica's own, in bytes; all replicas on the node share the machine's. Raises
    ``ModelError``, ``ConfigurationError`` or ``NotEnoughMemory`` if the engine could not start.
    """
    machine = machine or Machine()
    checkpoint = open_checkpoint(files)
    config = checkpoint.config
    check_tensors(checkpoint, tensors_of(config), ignorable(config))
    dtype = choose_dtype(settings.dtype)
    max_model_len = choose_max_model_len(settings.max_model_len, config)
    node_limit = machine.memory_limit()
    memory = plan_memory(
        config,
        dtype,
        block_size=settings.block_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.num_seqs,
        cache_bytes=settings.kv_cache_memory_bytes,
        memory_limit=node_limit if memory_limit is None else min(memory_limit * replicas_on_node, node_limit),
        replicas_on_node=replicas_on_node,
    )
    core_config = CoreConfig.from_settings(
        settings,
        num_blocks=memory.num_blocks,
        max_model_len=max_model_len,
        eos_token_ids=config.eos_token_ids,
        model_key=f"{checkpoint.fingerprint()}/{dtype}",
        kv_dtype=str(dtype),
    )
    return EnginePlan(checkpoint, dtype, memory, core_config)


def choose_threads(setting: int | None, num_cpus: float | None, usable_cpus: float) -> int:
    """Return the threads that compute: the setting, else the replica's CPUs, at most the usable ones; at least 1."""
    if setting is not None:
        return setting
    return max(1, int(min(usable_cpus, num_cpus or usable_cpus)))


def choose_dtype(setting: Dtype) -> Dtype:
    """Return bf16 for ``auto`` on every processor: all replicas of a deployment give the same tokens."""
    return Dtype.BFLOAT16 if setting is Dtype.AUTO else setting


def choose_max_model_len(setting: int | None, config: ModelConfig) -> int:
    """Return the longest request; raise ``ConfigurationError`` if it exceeds the model's positions."""
    if setting is None:
        return config.max_model_len
    if setting > config.max_model_len:
        raise ConfigurationError(
            f"engine.max_model_len: got {setting}, allowed: at most the model's {config.max_model_len}"
        )
    return setting
