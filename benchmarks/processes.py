"""Starts engines and a gateway as plain processes on this machine, and ends them by their ids."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Stack:
    """A gateway and its engines. ``url`` is the HTTP endpoint, ``grpc`` the target of the gRPC one."""

    url: str
    grpc: str
    gateway: subprocess.Popen[bytes]
    engines: tuple[subprocess.Popen[bytes], ...]


@contextlib.contextmanager
def stack(
    *, replicas: int = 1, engine: Sequence[str] = (), router: Sequence[str] = (), timeout_s: float = 180
) -> Iterator[Stack]:
    """Yields a stack that answers; ``engine`` and ``router`` are ``key=value`` settings.

    Raises ``RuntimeError`` with the end of the log where a process ends early.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        secret = Path(folder, "secret")
        secret.write_text("benchmark")
        ports = [free_port() for _ in range(replicas)]
        engines = tuple(
            ends.enter_context(_process(Path(folder, f"engine-{i}.log"), _engine(i, port, secret, engine)))
            for i, port in enumerate(ports)
        )
        http, grpc = free_port(), free_port()
        command = ["octavo_router", "--model", "embedded://smollm2", "--served-name", "smollm2"]
        for i, port in enumerate(ports):
            command += ["--replica", f"engine-{i}=127.0.0.1:{port}"]
        command += ["--http-port", str(http), "--grpc-port", str(grpc), "--secret-file", str(secret)]
        gateway = ends.enter_context(_process(Path(folder, "gateway.log"), command + _settings(router)))
        _wait_ready(f"http://127.0.0.1:{http}/ready", [gateway, *engines], Path(folder), timeout_s)
        yield Stack(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", gateway, engines)


def _engine(number: int, port: int, secret: Path, settings: Sequence[str]) -> list[str]:
    command = ["octavo_engine", "--model", "embedded://smollm2", "--replica", f"engine-{number}"]
    return [*command, "--port", str(port), "--secret-file", str(secret), *_settings(settings)]


def _settings(pairs: Sequence[str]) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


@contextlib.contextmanager
def _process(log: Path, module_and_arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", *module_and_arguments], stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(url: str, processes: list[subprocess.Popen[bytes]], logs: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            break
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.1)
    tails = "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(logs.glob("*.log")))
    raise RuntimeError(f"{url} does not answer\n{tails}")
