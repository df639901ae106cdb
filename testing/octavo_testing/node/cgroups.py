"""The node's own cgroup, in every hierarchy of the machine: all of its pods are below it."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

NAME = "octavo-node"


def hierarchies() -> list[Path]:
    """Return the machine's mounts: one for each controller (v1), one for all (v2), or both."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    halves = [line.split(" - ") for line in mounts]
    return [Path(left.split()[4]) for left, right in halves if right.split()[0] in ("cgroup", "cgroup2")]


def folders() -> list[Path]:
    """Return the node's existing cgroups."""
    return [folder for root in hierarchies() if (folder := root / NAME).is_dir()]


def processes() -> set[int]:
    """Return the ids of all processes in the node's pods."""
    found: set[int] = set()
    for folder in folders():
        for path in folder.rglob("cgroup.procs"):
            # It may go while it is read; and of a v2 group in threaded mode there is nothing to read.
            with contextlib.suppress(OSError):
                found.update(map(int, path.read_text().split()))
    return found


def make() -> None:
    """Create the root cgroup, which a kubelet requires and does not create."""
    for root in hierarchies():
        folder = root / NAME
        folder.mkdir(exist_ok=True)
        # A new group of cpuset has none, and takes no process without.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (folder / file).exists() and not (folder / file).read_text().strip():
                (folder / file).write_text((root / file).read_text())


def remove(timeout_s: float = 30) -> list[Path]:
    """Remove the node's cgroups after their processes have ended; return the remaining ones."""
    deadline = time.monotonic() + timeout_s
    while (left := folders()) and time.monotonic() < deadline:
        for folder in left:
            for path in (*_below(folder), folder):
                with contextlib.suppress(OSError):
                    path.rmdir()
        time.sleep(0.05)
    return left


def _below(folder: Path) -> Iterator[Path]:
    """Deepest first."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.is_dir():
                yield from _below(path)
                yield path
