"""Child processes that are found again by a file, and ended by their ids."""

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class StartFailed(Exception):
    """A process ended early or was late; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Process:
    """``born`` is the kernel's start time of the process: an id alone may have been given to another since."""

    name: str
    pid: int
    born: int
    log: str

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        outlive: bool = False,
    ) -> Self:
        """Output goes to ``folder/NAME.log``. The child ends with this process, unless it is to outlive it."""
        log = folder / f"{name}.log"
        with log.open("ab") as out:
            child = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env=os.environ | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=None if outlive else _end_with_parent,
            )
        # Waited for by id, because another process may have to stop it.
        child.returncode = 0
        return cls(name, child.pid, _born(child.pid) or 0, str(log))

    @property
    def running(self) -> bool:
        """A zombie is not running: the parent reaps it here."""
        return alive(self.pid) and _born(self.pid) == self.born

    def send(self, number: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, first: signal.Signals = signal.SIGTERM, timeout_s: float = 10) -> float:
        """Stop it, and return the seconds until it was gone; kill it if it does not end in time."""
        began = time.monotonic()
        self.send(first)
        while self.running:
            if time.monotonic() - began > timeout_s:
                self.send(signal.SIGKILL)
            time.sleep(0.02)
        return time.monotonic() - began

    def tail(self, length: int = 2000) -> str:
        return Path(self.log).read_text(errors="replace")[-length:]

    def wait(self, what: str, condition: Callable[[], object], timeout_s: float = 60) -> None:
        """Wait until ``condition`` is true; raise ``StartFailed`` if the process ends first or time is up."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.running:
                raise StartFailed(f"{self.name} ended while it was waited for: {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.name}: not in {timeout_s:.0f} s: {what}\n{self.tail()}")
            time.sleep(0.05)


class PidFile:
    """The processes of one cluster, in the order of their start."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, process: Process) -> None:
        known = [*self.read(), process]
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps([asdict(p) for p in known], indent=1))
        partial.rename(self.path)

    def read(self) -> list[Process]:
        try:
            return [Process(**entry) for entry in json.loads(self.path.read_text())]
        except FileNotFoundError:
            return []

    def stop(self) -> None:
        """Stop the newest first: users of the API server end before it."""
        for process in reversed(self.read()):
            process.stop()
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts the processes of one cluster, and notes each in its folder's file.

    ``within`` is a command that runs another one elsewhere, as nsenter does.
    """

    folder: Path
    outlive: bool = False
    within: tuple[str, ...] = ()

    @property
    def pids(self) -> PidFile:
        return PidFile(self.folder / "pids.json")

    def start(self, name: str, *command: str | Path, **environment: str) -> Process:
        process = Process.start(
            name, [*self.within, *command], self.folder, environment=environment, outlive=self.outlive
        )
        self.pids.add(process)
        return process

    def check(self) -> None:
        """Raise ``StartFailed`` if one of them has ended."""
        for process in self.pids.read():
            if not process.running:
                raise StartFailed(f"{process.name} ended at once\n{process.tail()}")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nothing listens on.

    The kernel gives out higher ports and Ray's workers take lower ones, so these stay free until they are used.
    """
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().randrange(20_000, 30_000)
            try:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found


def listens(port: int) -> bool:
    """Return whether a process listens on a port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def beside_python(program: str) -> Path:
    """A program of the environment that this runs in."""
    return Path(sys.executable).parent / program


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie that is a child of this process is reaped."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return _born(pid) is not None


def _born(pid: int) -> int | None:
    """None for no process, and for one that has ended but is not reaped yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
