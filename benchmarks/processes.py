"""Engines and a gateway as plain processes on this machine."""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_testing.processes import Process, free_ports
from octavo_testing.web import answers


@dataclass(frozen=True, slots=True)
class Stack:
    """A gateway and its engines. ``url`` is the HTTP endpoint, ``grpc`` the target of the gRPC one."""

    url: str
    grpc: str
    gateway: Process
    engines: tuple[Process, ...]


@contextlib.contextmanager
def stack(
    *, replicas: int = 1, engine: Sequence[str] = (), router: Sequence[str] = (), timeout_s: float = 180
) -> Iterator[Stack]:
    """Yield a stack that answers; ``engine`` and ``router`` are ``key=value`` settings.

    Raises ``StartFailed`` with the end of the log if a process ends early.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        secret = folder / "secret"
        secret.write_text("benchmark")
        http, grpc, *ports = free_ports(2 + replicas)

        def start(process: str, *arguments: str) -> Process:
            started = Process.start(process, [sys.executable, "-m", *arguments, f"--secret-file={secret}"], folder)
            ends.callback(started.stop, signal.SIGINT)
            return started

        engines = tuple(
            start(
                f"engine-{i}",
                *("octavo_engine", "--model=embedded://smollm2", f"--replica=engine-{i}", f"--port={port}"),
                *_settings(engine),
            )
            for i, port in enumerate(ports)
        )
        gateway = start(
            "gateway",
            *("octavo_router", "--model=embedded://smollm2", "--served-name=smollm2"),
            *(f"--replica=engine-{i}=127.0.0.1:{port}" for i, port in enumerate(ports)),
            *(f"--http-port={http}", f"--grpc-port={grpc}"),
            *_settings(router),
        )
        for process in (*engines, gateway):
            process.wait("a ready gateway", lambda: answers(f"http://127.0.0.1:{http}/ready"), timeout_s)
        yield Stack(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", gateway, engines)


def _settings(pairs: Sequence[str]) -> list[str]:
    return [f"--set={pair}" for pair in pairs]
