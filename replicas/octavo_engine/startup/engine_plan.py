"""The plan of an engine from the model's headers, the settings and the machine, before anything is loaded."""

from dataclasses import dataclass

from octavo_api.settings import Dtype, EngineSettings
from octavo_api.startup.model_source import ModelFiles
from octavo_engine.core.config import CoreConfig
from octavo_engine.models.registry import open_checkpoint, tensors_of
from octavo_engine.sizing import Machine, MemoryPlan, choose_dtype, choose_max_model_len, plan_memory
from octavo_engine.weights.checkpoint import Checkpoint, check_tensors, ignorable


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
