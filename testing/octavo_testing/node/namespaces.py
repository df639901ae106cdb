"""The namespaces of a node: processes, mounts, network. One process holds them; when it is killed, the kernel ends
every other process in them and takes the mounts and the links away.
"""

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from octavo_testing.node import cgroups
from octavo_testing.processes import Launcher, Process, StartFailed, alive

_KUBELET_SETS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Settings of the whole machine that a kubelet changes: the node sees files in their place."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """``init`` is process 1 inside."""

    init: int

    @property
    def enter(self) -> tuple[str, ...]:
        """A command that runs another one inside."""
        return ("nsenter", f"--target={self.init}", "--mount", "--net", "--pid", "--")

    def run(self, *command: str | Path, timeout_s: float = 120) -> str:
        """Return standard output; raise ``StartFailed`` if the exit status is not 0."""
        words = [str(part) for part in command]
        done = subprocess.run(
            [*self.enter, *words], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise StartFailed(f"{' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def processes(self) -> list[int]:
        """Ids of all that run inside, as this machine knows them; pods have namespaces of their own again."""
        ours = _namespace(self.init)
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return sorted({pid for pid in numbers if ours is not None and _namespace(pid) == ours} | cgroups.processes())


def make(launcher: Launcher) -> Namespaces:
    """Their own /run, /var/log and /var/lib hide the machine's: what is written there lands in the node's folder."""
    holder = launcher.start(
        "namespaces",
        *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
        # An ignored signal is inherited: so the kernel reaps whatever is left to process 1.
        *("env", "--ignore-signal=CHLD", "sleep", "infinity"),
    )
    holder.wait("a process inside", lambda: _child(holder) is not None, 10)
    init = _child(holder)
    assert init is not None
    namespaces = Namespaces(init)
    holder.wait("namespaces of its own", lambda: _asleep(init), 10)
    folder = launcher.folder
    for name in ("log", "lib/upper", "lib/work", "sys"):
        (folder / name).mkdir(parents=True)
    script = [
        "set -eu",
        "mount -t tmpfs -o mode=755 octavo-node /run",
        f"mount --bind {folder}/log /var/log",
        f"mount -t overlay -o lowerdir=/var/lib,upperdir={folder}/lib/upper,workdir={folder}/lib/work none /var/lib",
    ]
    for setting in _KUBELET_SETS:
        real = Path("/proc/sys", setting)
        if real.exists():
            cover = folder / "sys" / real.name
            cover.write_text(real.read_text())
            script.append(f"mount --bind {cover} {real}")
    namespaces.run("sh", "-c", "\n".join(script))
    return namespaces


def end(holder: Process) -> None:
    """Kill the process that holds them, and return when all processes in them have ended."""
    init = _child(holder)
    inside = Namespaces(init).processes() if init is not None and holder.running else []
    holder.stop(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in inside) and time.monotonic() < deadline:
        time.sleep(0.02)


def of(holder: Process) -> Namespaces | None:
    """Return the namespaces that a process holds, or None if it has ended."""
    init = _child(holder) if holder.running else None
    return Namespaces(init) if init is not None else None


def _child(holder: Process) -> int | None:
    try:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


def _asleep(init: int) -> bool:
    """Return whether ``sleep`` runs: all mounts of unshare exist then."""
    return Path(f"/proc/{init}/comm").read_text().strip() == "sleep"


def _namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:
        return None
