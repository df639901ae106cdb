"""Number of CPUs that this process may use."""

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def available_cpus() -> float:
    """Return the CPUs of the affinity mask or of the cgroup's quota, whichever is less."""
    return min(float(len(os.sched_getaffinity(0))), _quota())


def _quota() -> float:
    try:
        quota, period = _CGROUP_V2.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us, period_us = (int(path.read_text()) for path in _CGROUP_V1)
        return quota_us / period_us if quota_us > 0 else math.inf
    except (OSError, ValueError):
        return math.inf


def cpus_per_replica(cpus: float, replicas: int) -> float:
    """Return the CPUs of one of ``replicas``, rounded down so that all of them fit together."""
    return math.floor(cpus / max(replicas, 1) * 100) / 100
