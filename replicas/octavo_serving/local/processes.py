"""End of exactly the processes that this process and its children started, found by parentage, never by name."""

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies, so that no descendant is lost."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> set[int]:
    """Return the process ids of children, grandchildren and so on, except zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(entry)):
            state, parent = stat
            if state != "Z":
                children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    frontier = [pid]
    while frontier:
        new = [child for parent in frontier for child in children.get(parent, ()) if child not in found]
        found.update(new)
        frontier = new
    return found


def end_descendants(*, spare: Iterable[int] = (), grace_s: float = 3.0) -> set[int]:
    """Send SIGTERM, wait ``grace_s`` seconds, send SIGKILL. Return the processes that were alive at the start.

    Call ``adopt_orphans`` first. Processes that start during the call are ended too. Processes in ``spare`` and
    their descendants are not ended.
    """
    spared = set(spare)
    alive = _wanted(spared)
    began = set(alive)
    _signal(alive, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while alive and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        _reap()
        alive = _wanted(spared)
    while alive:
        _signal(alive, signal.SIGKILL)
        time.sleep(_POLL_S)
        _reap()
        alive = _wanted(spared)
    _reap()
    return began


def _wanted(spared: set[int]) -> set[int]:
    return descendants(os.getpid()) - spared - {child for pid in spared for child in descendants(pid)}


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    """Collect the exit of adopted processes, for which no other code waits."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _stat(entry: Path) -> tuple[str, int] | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1])
