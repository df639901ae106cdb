"""The share of the machine that one process may use: CPUs and memory.

Inside a container the node's own figures are wrong. The cgroup (v1 and v2) and the affinity apply
(https://github.com/vllm-project/vllm/issues/9113).
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

GIB = 2**30
_UNLIMITED = 2**60


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
