"""The ``octavo`` command and the plain processes of engine and gateway, run as users run them."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo_serving.local.processes import descendants
from octavo_testing.processes import Process, free_ports, listens
from octavo_testing.waiting import eventually

OCTAVO = (sys.executable, "-c", "from octavo_cli.main import main; main()")
VOCAB_SIZE = 49152


@dataclass
class Up:
    """A running ``octavo up``."""

    process: subprocess.Popen[str]
    ports: tuple[int, int]
    output: Path
    folders_before: set[Path]

    @classmethod
    def start(cls, output: Path, ports: tuple[int, int], *arguments: str) -> "Up":
        """Start it in a process group of its own; its output goes to a file."""
        before = run_folders()
        command = [*OCTAVO, "up", "--port", str(ports[0]), "--grpc-port", str(ports[1]), *arguments]
        with output.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, text=True, start_new_session=True)
        return cls(process, ports, output, before)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, timeout_s: float = 100.0) -> None:
        def shown() -> bool:
            ended = self.process.poll() is not None
            said = self.said()
            assert text in said or not ended, said
            return text in said

        eventually(lambda: f"{text!r} in {self.said()}", shown, timeout_s)

    def left_behind(self) -> list[str]:
        """Return what should be gone: folders and ports."""
        left = [str(folder) for folder in run_folders() - self.folders_before]
        return left + [f"port {port}" for port in self.ports if listens(port)]

    def end(self) -> None:
        """Kill all its processes, and remove its folders."""
        for pid in {*descendants(self.process.pid), self.process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for folder in run_folders() - self.folders_before:
            shutil.rmtree(folder)


def run_folders() -> set[Path]:
    """Return the folders of all runs of ``octavo up``."""
    return {folder for folder in Path("/tmp").glob("octavo-*") if (folder / "ray-token").exists()}


@contextlib.contextmanager
def synthetic_endpoint(folder: Path) -> Iterator[str]:
    """URL of a gateway with an engine whose tokens are made up, as plain processes."""
    engine_port, http_port, grpc_port = free_ports(3)
    engine = [
        *("octavo_engine", "--synthetic", "--model", f"synthetic://{VOCAB_SIZE}"),
        *("--port", str(engine_port), "--replica", "e0", "--synthetic-step-ms", "10"),
    ]
    gateway = [
        *("octavo_router", "--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        *("--replica", f"e0=127.0.0.1:{engine_port}"),
    ]
    processes = [Process.start(words[0], [sys.executable, "-m", *words], folder) for words in (engine, gateway)]
    try:
        processes[1].wait("its port", lambda: listens(http_port))
        yield f"http://127.0.0.1:{http_port}"
    finally:
        for process in processes:
            process.stop(signal.SIGKILL)
