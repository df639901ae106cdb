"""A Ray on this machine that another user runs, as external mode finds it: dashboard, token, Serve's proxy."""

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from octavo_serving.local.processes import adopt_orphans, descendants
from octavo_testing.processes import Process, alive, beside_python, free_ports

_PORTS = (
    "port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "runtime-env-agent-port",
    "ray-client-server-port",
)
_FOREIGN = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_RUNTIME_ENV_HOOK", "RAY_TMPDIR")


@dataclass(frozen=True, slots=True)
class RayHost:
    """``proxy_url`` is Serve's own HTTP proxy, once something is deployed."""

    folder: Path
    process: Process
    dashboard_url: str
    proxy_url: str
    token: str

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of Serve itself, which are fixed when it starts."""
        port = int(self.proxy_url.rpartition(":")[2])
        return {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}

    def serve(self, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return Serve's configuration, after a PUT of ``body`` if there is one."""
        if body is not None:
            self._call("PUT", body)
        return dict(self._call("GET", None))

    def applications(self) -> dict[str, Any]:
        return dict(self.serve()["applications"])

    def end(self) -> None:
        """End Ray and all its processes at once."""
        _end(self.process)

    def _call(self, method: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.dashboard_url}/api/serve/applications/"
        answer = httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False)
        answer.raise_for_status()
        return answer.json() if answer.content else {}


@contextlib.contextmanager
def running(*, cpus: int = 4, environment: Mapping[str, str] | None = None, timeout_s: float = 90) -> Iterator[RayHost]:
    """Run a head with a Serve that has no application; it ends with this block."""
    # Short, because Ray puts unix sockets below it.
    folder = Path(tempfile.mkdtemp(prefix="octavo-ray-", dir="/tmp"))
    host: RayHost | None = None
    adopt_orphans()
    try:
        host = _start(folder, cpus, environment or {}, timeout_s)
        yield host
    finally:
        if host is not None:
            host.end()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, cpus: int, environment: Mapping[str, str], timeout_s: float) -> RayHost:
    *ports, proxy = free_ports(len(_PORTS) + 1)
    flags = dict(zip(_PORTS, ports, strict=True))
    token = secrets.token_hex(16)
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(token)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    process = Process.start(
        "ray",
        [
            beside_python("ray"),
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
            "--node-ip-address=127.0.0.1",
            "--dashboard-host=127.0.0.1",
            f"--num-cpus={cpus}",
            f"--temp-dir={folder / 'ray'}",
            "--object-store-memory=100000000",
            *(f"--{name}={port}" for name, port in flags.items()),
        ],
        folder,
        environment={
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
            # As in an image: what `python3` means there is Ray's own.
            "PATH": os.pathsep.join((str(beside_python("ray").parent), os.environ["PATH"])),
            **environment,
        },
    )
    host = RayHost(
        folder,
        process,
        f"http://127.0.0.1:{flags['dashboard-port']}",
        f"http://127.0.0.1:{proxy}",
        token,
    )
    try:
        process.wait("the dashboard", lambda: _answers(host), timeout_s)
        host.serve({**host.settings, "applications": []})
    except BaseException:
        _end(process)
        raise
    return host


def _answers(host: RayHost) -> bool:
    try:
        host.serve()
    except httpx.HTTPError:
        return False
    return True


def _end(process: Process) -> None:
    """End all processes of Ray by their ids; orphans come to this process."""
    family = {process.pid} | descendants(process.pid)
    for number, grace_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + grace_s
        while (family := {pid for pid in family if alive(pid)}) and time.monotonic() < deadline:
            time.sleep(0.05)
