"""The share of the machine that one replica takes: threads, memory, KV blocks, number type.

Inside a container the node's own figures are wrong. The cgroup (v1 and v2) and the affinity apply
(https://github.com/vllm-project/vllm/issues/9113). ``Machine`` reads them; everything else here is a pure function.
"""

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo_api.errors import ConfigurationError, NotEnoughMemory
from octavo_api.settings import Dtype
from octavo_engine.models.family import EMBEDDING
from octavo_engine.models.registry import tensors_of
from octavo_engine.weights.model_config import ModelConfig

GIB = 2**30
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

_UNLIMITED = 2**60


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


class Machine:
    """Reader of ``/proc`` and ``/sys/fs/cgroup`` under ``root``."""

    def __init__(
        self, root: Path = Path("/"), affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0))
    ) -> None:
        self._root = root
        self._affinity = affinity

    def usable_cpus(self) -> float:
        """Return the CPUs of this process: its affinity, or the quota of its cgroup if that is less."""
        quotas = [*self._v2("cpu.max", _v2_quota), *self._v1_quotas()]
        return min([float(self._affinity()), *quotas])

    def memory_limit(self) -> int:
        """Return the memory limit of this process's cgroup, or the machine's memory if that is less, in bytes."""
        v1 = self._folders("memory", self._sys / "memory")
        limits = [
            *self._v2("memory.max", _limit),
            *(value for folder in v1 if (value := _limit(_read(folder / "memory.limit_in_bytes"))) is not None),
        ]
        total = re.search(r"MemTotal:\s+(\d+) kB", _read(self._root / "proc/meminfo"))
        limits += [int(total[1]) * 1024] if total else []
        return int(min(limits, default=4 * GIB))

    @property
    def _sys(self) -> Path:
        return self._root / "sys/fs/cgroup"

    def _v2(self, name: str, parse: Callable[[str], float | None]) -> Iterator[float]:
        for folder in self._folders("", self._sys):
            if (value := parse(_read(folder / name))) is not None:
                yield value

    def _v1_quotas(self) -> Iterator[float]:
        for mount in ("cpu", "cpu,cpuacct"):
            for folder in self._folders("cpu", self._sys / mount):
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                if quota and period and int(quota) > 0 and int(period) > 0:
                    yield int(quota) / int(period)

    def _folders(self, controller: str, mount: Path) -> Iterator[Path]:
        """Yield the cgroup's folder under ``mount`` and all above it, each of which may set a limit.

        A container often sees its own cgroup as the mount itself, under a path that exists on the host alone.
        """
        for line in _read(self._root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller not in controllers.split(","):
                continue
            folder = mount / path.strip("/")
            yield folder
            while folder != mount:
                folder = folder.parent
                yield folder
            return
        yield mount


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


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _v2_quota(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _limit(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None
