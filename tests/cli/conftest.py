import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

VOCAB_SIZE = 49152


@pytest.fixture
def free_ports(draw_ports: Callable[[int], list[int]]) -> tuple[int, int]:
    """Two ports that nothing listens on."""
    http, grpc = draw_ports(2)
    return http, grpc


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, f"the gateway has ended with {process.returncode}"
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


@pytest.fixture(scope="module")
def endpoint(draw_ports: Callable[[int], list[int]]) -> Iterator[str]:
    """URL of a real gateway with an engine whose tokens are made up, as plain processes."""
    engine_port, http_port, grpc_port = draw_ports(3)
    engine = [
        *("octavo_engine", "--synthetic", "--model", f"synthetic://{VOCAB_SIZE}"),
        *("--port", str(engine_port), "--replica", "e0", "--synthetic-step-ms", "10"),
    ]
    gateway = [
        *("octavo_router", "--http-port", str(http_port), "--grpc-port", str(grpc_port)),
        *("--replica", f"e0=127.0.0.1:{engine_port}"),
    ]
    processes = [
        subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for arguments in (engine, gateway)
    ]
    try:
        _wait_until_it_listens(http_port, processes[1])
        yield f"http://127.0.0.1:{http_port}"
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
