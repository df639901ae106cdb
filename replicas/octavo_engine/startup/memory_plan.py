"""Division of a replica's memory: weights, buffers, workspace, KV blocks."""

import math
from dataclasses import dataclass

from octavo_api.errors import ConfigurationError, NotEnoughMemory
from octavo_api.settings import Dtype
from octavo_engine.models.family import EMBEDDING
from octavo_engine.models.registry import tensors_of
from octavo_engine.startup.machine import GIB
from octavo_engine.weights.model_config import ModelConfig

MAX_DEFAULT_CACHE = 4 * GIB
MAX_BLOCKS = 2**18
"""Maximum number of blocks, because the scheduler keeps an object for each."""

PROCESS_BYTES = 896 * 2**20
"""Bytes of an engine's process without a model.

Measured: 594 MiB for Python and torch, 230 MiB for the compiler and its code, and up to 70 MiB for Ray's worker.
"""

LOGITS_BYTES = 64 * 2**20
"""Maximum bytes of logits at once; more rows go through the output head in slices."""

ITEM_SIZES = {Dtype.BFLOAT16: 2, Dtype.FLOAT32: 4}
"""Bytes of one number, by number type."""

PANEL_WIDTH = 48
"""Maximum outputs in one panel of a packed weight, over all instruction sets.

It is a constant here because the import of the kernels takes seconds.
"""

MIN_BLOCKS = 2
"""Minimum number of blocks of an explicit cache."""

MIN_DEFAULT_TOKENS = 512
"""Minimum number of tokens of the default cache, unless ``max_model_len`` is shorter."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one replica in bytes, and its KV cache in blocks.

    ``weights`` counts each packed copy with its padding, and the rotary table. ``rows`` are the token buffers and block
    tables of all sequences. ``workspace`` is one step's activations and logits. ``total`` counts the process too.
    """

    weights: int
    rows: int
    workspace: int
    cache: int
    num_blocks: int

    @property
    def total(self) -> int:
        return PROCESS_BYTES + self.weights + self.rows + self.workspace + self.cache


def packed_bytes(out_features: int, in_features: int, item_size: int) -> int:
    """Return the most bytes of a weight ``[out, in]`` packed for the kernels, and of its fp32 bias."""
    padded = -(-out_features // PANEL_WIDTH) * PANEL_WIDTH
    return padded * (in_features + in_features % 2) * item_size + padded * 4


def weight_bytes(config: ModelConfig, item_size: int, max_model_len: int) -> int:
    """Return the bytes of the loaded model: packed linear layers, embeddings, norms and the rotary table.

    Matrices that are packed as one are counted one by one, so the result has the maximum of padding.
    """
    total = max_model_len * config.head_dim * 4
    for name, shape in tensors_of(config).items():
        looked_up_only = name == EMBEDDING and not config.tie_word_embeddings
        if len(shape) == 2 and not looked_up_only:
            total += packed_bytes(*shape, item_size)
        else:
            total += math.prod(shape) * item_size
    return total


def row_bytes(max_num_seqs: int, max_model_len: int, block_size: int) -> int:
    """Return the bytes of the token buffers and block tables, which ``runner.row_state`` makes for every sequence."""
    return max_num_seqs * 4 * (max_model_len + 1 + -(-max_model_len // block_size))


def workspace_bytes(config: ModelConfig, item_size: int, max_num_batched_tokens: int) -> int:
    """Return the bytes of one step: activations, the fp32 copy of a product's operand, logits and their copy."""
    widest = config.q_size + 2 * config.kv_size + 3 * config.intermediate_size + 4 * config.hidden_size
    operand = max(config.hidden_size, config.intermediate_size, config.q_size)
    return 2 * LOGITS_BYTES + max_num_batched_tokens * (widest * item_size + operand * 4)


def plan_memory(
    config: ModelConfig,
    dtype: Dtype,
    *,
    block_size: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    cache_bytes: int | None,
    memory_limit: int,
    replicas_on_node: int,
) -> MemoryPlan:
    """Divide ``memory_limit`` (bytes, of all replicas on the node together) among the parts of a ``MemoryPlan``.

    The default cache is the lesser of 4 GiB and a quarter of the limit divided by the replicas. It shrinks to the
    memory that the other parts leave. Raises ``NotEnoughMemory`` naming every part, and ``ConfigurationError`` for a
    cache under two blocks.
    """
    item_size = ITEM_SIZES[dtype]
    block = config.block_bytes(block_size, item_size)
    if cache_bytes is not None and cache_bytes < MIN_BLOCKS * block:
        raise ConfigurationError(
            f"engine.kv_cache_memory_bytes: got {cache_bytes}, allowed: at least {MIN_BLOCKS * block}, "
            f"{MIN_BLOCKS} blocks of {block_size} tokens"
        )
    weights = weight_bytes(config, item_size, max_model_len)
    rows = row_bytes(max_num_seqs, max_model_len, block_size)
    workspace = workspace_bytes(config, item_size, max_num_batched_tokens)
    share = memory_limit // replicas_on_node
    needed = PROCESS_BYTES + weights + rows + workspace
    least_blocks = max(MIN_BLOCKS, -(-min(max_model_len, MIN_DEFAULT_TOKENS) // block_size))
    least = least_blocks * block if cache_bytes is None else cache_bytes
    if needed + least > share:
        raise NotEnoughMemory(
            f"memory: the process {PROCESS_BYTES / GIB:.2f} GiB, weights {weights / GIB:.2f} GiB, buffers of "
            f"{max_num_seqs} sequences {rows / GIB:.2f} GiB, activations {workspace / GIB:.2f} GiB and a KV cache of "
            f"{least / GIB:.2f} GiB need {(needed + least) / GIB:.2f} GiB, the replica's limit is "
            f"{share / GIB:.2f} GiB; raise the limit or lower engine.kv_cache_memory_bytes, engine.max_num_seqs, "
            f"engine.max_num_batched_tokens or the number of replicas on the node"
        )
    cache = min(MAX_DEFAULT_CACHE, share // 4, share - needed) if cache_bytes is None else cache_bytes
    num_blocks = min(max(cache, least) // block, MAX_BLOCKS)
    return MemoryPlan(weights, rows, workspace, num_blocks * block, num_blocks)
