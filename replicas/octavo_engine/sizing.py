"""How much of the machine one replica takes: threads, memory, KV blocks, number type.

Inside a container the node's own figures are wrong: what counts is the cgroup (v1 and v2) and the affinity
(https://github.com/vllm-project/vllm/issues/9113). ``Machine`` reads them; everything else here is a pure function.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo_api.errors import ConfigurationError, NotEnoughMemory
from octavo_api.settings import Dtype
from octavo_engine.models.config import ModelConfig

GIB = 2**30
MAX_DEFAULT_CACHE = 4 * GIB
MAX_BLOCKS = 2**18
"""The scheduler keeps an object for each block."""

LOGITS_BYTES = 64 * 2**20
"""Most memory that logits take at once; more rows go through the output head in slices."""

ITEM_SIZES = {Dtype.BFLOAT16: 2, Dtype.FLOAT32: 4}
"""Bytes of one number."""

MIN_BLOCKS = 2
"""What an explicit cache must hold at least."""

MIN_DEFAULT_TOKENS = 512
"""What the default cache must hold at least, where ``max_model_len`` is not shorter."""

_UNLIMITED = 2**60
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "avx512f"})
"""As ``/proc/cpuinfo`` names them, on x86 and on Arm. AVX-512 alone does not multiply bf16, but widens it on the way:
half the bytes are read, which gave 1.5 times the tokens of fp32 at 16 rows (benchmarks/throughput.py)."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """In bytes: what weights, one step's activations and the KV cache take; and the cache in blocks."""

    weights: int
    workspace: int
    cache: int
    num_blocks: int


class Machine:
    """Reads ``/proc`` and ``/sys/fs/cgroup`` under ``root``."""

    def __init__(
        self, root: Path = Path("/"), affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0))
    ) -> None:
        self._root = root
        self._affinity = affinity

    def usable_cpus(self) -> float:
        """Returns the CPUs of this process: its affinity, or the quota of its cgroup where that is less."""
        quotas = [*self._v2("cpu.max", _v2_quota), *self._v1_quotas()]
        return min([float(self._affinity()), *quotas])

    def memory_limit(self) -> int:
        """Returns the memory limit of this process's cgroup, or the machine's memory where that is less, in bytes."""
        v1 = self._folders("memory", self._sys / "memory")
        limits = [
            *self._v2("memory.max", _limit),
            *(value for folder in v1 if (value := _limit(_read(folder / "memory.limit_in_bytes"))) is not None),
        ]
        total = re.search(r"MemTotal:\s+(\d+) kB", _read(self._root / "proc/meminfo"))
        limits += [int(total[1]) * 1024] if total else []
        return int(min(limits, default=4 * GIB))

    def cpu_flags(self) -> frozenset[str]:
        """Returns the processor's features as ``/proc/cpuinfo`` lists them."""
        line = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(self._root / "proc/cpuinfo"), re.MULTILINE)
        return frozenset(line[1].split()) if line else frozenset()

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
        """Yields the cgroup's folder under ``mount`` and all above it, each of which may set a limit.

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
    """Returns the threads that compute: the setting, else the replica's CPUs, at most the usable ones; at least 1."""
    if setting is not None:
        return setting
    return max(1, int(min(usable_cpus, num_cpus or usable_cpus)))


def choose_dtype(setting: Dtype, cpu_flags: frozenset[str]) -> Dtype:
    """Returns bf16 for ``auto`` where it is the faster type, else fp32; an explicit type is taken as it is."""
    if setting is not Dtype.AUTO:
        return setting
    return Dtype.BFLOAT16 if cpu_flags & _BFLOAT16_FLAGS else Dtype.FLOAT32


def choose_max_model_len(setting: int | None, config: ModelConfig) -> int:
    """Returns the longest request; raises ``ConfigurationError`` where the model's positions do not reach as far."""
    if setting is None:
        return config.max_model_len
    if setting > config.max_model_len:
        raise ConfigurationError(
            f"engine.max_model_len: got {setting}, allowed: at most the model's {config.max_model_len}"
        )
    return setting


def plan_memory(
    config: ModelConfig,
    dtype: Dtype,
    *,
    block_size: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    cache_bytes: int | None,
    memory_limit: int,
    replicas_on_node: int,
) -> MemoryPlan:
    """Divides ``memory_limit`` (bytes, of all replicas on the node together) into weights, workspace and KV cache.

    The default cache is the lesser of 4 GiB and a quarter of the limit divided by the replicas, and shrinks to what
    weights leave. Raises ``NotEnoughMemory`` naming both numbers, ``ConfigurationError`` for a cache under two blocks.
    """
    item_size = ITEM_SIZES[dtype]
    block = config.block_bytes(block_size, item_size)
    if cache_bytes is not None and cache_bytes < MIN_BLOCKS * block:
        raise ConfigurationError(
            f"engine.kv_cache_memory_bytes: got {cache_bytes}, allowed: at least {MIN_BLOCKS * block}, "
            f"{MIN_BLOCKS} blocks of {block_size} tokens"
        )
    weights = config.num_parameters * item_size
    widest = config.q_size + 2 * config.kv_size + 3 * config.intermediate_size + 4 * config.hidden_size
    workspace = LOGITS_BYTES + max_num_batched_tokens * widest * item_size
    share = memory_limit // replicas_on_node
    left = share - weights - workspace
    least_blocks = max(MIN_BLOCKS, -(-min(max_model_len, MIN_DEFAULT_TOKENS) // block_size))
    least = least_blocks * block if cache_bytes is None else cache_bytes
    if left < least:
        raise NotEnoughMemory(
            f"memory: weights {weights / GIB:.2f} GiB, activations {workspace / GIB:.2f} GiB and a KV cache of "
            f"{least / GIB:.2f} GiB need {(weights + workspace + least) / GIB:.2f} GiB, the replica's limit is "
            f"{share / GIB:.2f} GiB; raise the limit or lower engine.kv_cache_memory_bytes, "
            f"engine.max_num_batched_tokens or the number of replicas on the node"
        )
    cache = min(MAX_DEFAULT_CACHE, share // 4, left) if cache_bytes is None else cache_bytes
    num_blocks = min(max(cache, least) // block, MAX_BLOCKS)
    return MemoryPlan(weights, workspace, num_blocks * block, num_blocks)


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
