"""Serve's HAProxy mode as the second door."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_testing.processes import free_ports

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """HAProxy's sockets get 40 characters more, and may have 97."""
    with tempfile.TemporaryDirectory(prefix="ha-", dir="/tmp") as folder:
        yield Path(folder)


def test_haproxy_mode(short_folder: Path) -> None:
    stats, metrics, fallback_http, fallback_grpc = free_ports(4)
    # Ranges apart from all that is drawn, below those of Ray's workers.
    first_http, first_grpc = 9_400, 9_430
    flags = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "60",
        "RAY_SERVE_HAPROXY_STATS_PORT": stats,
        "RAY_SERVE_HAPROXY_METRICS_PORT": metrics,
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": fallback_http,
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": fallback_grpc,
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": first_http,
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": first_http + 20,
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": first_grpc,
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": first_grpc + 20,
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": short_folder / "haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": short_folder / "admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": short_folder / "metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": short_folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": short_folder / "server-state",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).with_name("haproxy_mode.py")],
        env={**os.environ, **{name: str(value) for name, value in flags.items()}},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "1 passed" in done.stdout
