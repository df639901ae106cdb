"""Ray dashboards whose Serve runs nothing: one for each loopback address and path prefix, each with its own state.

``python -m octavo_testing.kube.serve_stub --port PORT``; the first request to an address creates its dashboard, and
DELETE removes it. The same fake answers the operator's own tests, where it is held to what a real Ray answers.
"""

import argparse
import asyncio
import contextlib
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from aiohttp import web
from yarl import URL

from octavo_testing.operator.fakes.serve_http import FakeServe
from octavo_testing.processes import Process, free_ports, listens

_API = "/api/"


@dataclass(frozen=True, slots=True)
class Stub:
    """``url`` is one dashboard of its own; ``dashboard`` is the operator's pattern for managed clusters."""

    url: str
    process: Process
    hosts: int

    @property
    def urls(self) -> list[str]:
        """Dashboards of as many Rays."""
        port = self.url.rpartition(":")[2]
        return [f"http://{_host(number)}:{port}" for number in range(self.hosts)]

    @property
    def dashboard(self) -> str:
        return f"{self.url}/{{namespace}}/{{cluster}}"

    def forget(self, namespace: str, cluster: str) -> None:
        """Drop the state of a cluster whose head is gone: a new head of the name starts empty."""
        httpx.delete(f"{self.url}/{namespace}/{cluster}{_API}", trust_env=False).raise_for_status()


@contextlib.contextmanager
def running_stub(folder: Path, *, speed: float = 50.0, hosts: int = 1) -> Iterator[Stub]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "octavo_testing.kube.serve_stub", f"--port={port}", f"--speed={speed}"]
    command.append(f"--hosts={hosts}")
    process = Process.start("serve-stub", command, folder)
    try:
        process.wait("listening", lambda: listens(port), 30)
        yield Stub(f"http://127.0.0.1:{port}", process, hosts)
    finally:
        process.stop()


def _host(number: int) -> str:
    return f"127.0.0.{number + 1}"


class Dashboards:
    """Creates a dashboard for each address and prefix, whose random numbers follow from both."""

    def __init__(self, port: int, speed: float) -> None:
        self._port = port
        self._speed = speed
        self._known: dict[str, FakeServe] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        prefix, found, rest = request.path.partition(_API)
        # What is no API is Serve's proxy, which is behind the address' own dashboard alone.
        path = _API + rest if found else request.path
        prefix = request.host + (prefix if found else "")
        if request.method == "DELETE" and not rest:
            self._known.pop(prefix, None)
            return web.Response()
        if prefix not in self._known:
            self._known[prefix] = await self._make(prefix.replace(f":{self._port}", ""))
        fake = self._known[prefix]
        answer: web.StreamResponse = await fake._handle(request.clone(rel_url=URL(path)))
        # The fake records all calls for its own tests.
        for memory in (fake.calls, fake.headers, fake.puts):
            memory.clear()
        return answer

    async def _make(self, address: str) -> FakeServe:
        seed = zlib.crc32(address.encode())
        print(f"dashboard {address}: seed {seed}", flush=True)
        fake = FakeServe(speed=self._speed, seed=seed)
        await fake.__aenter__()
        fake.port = self._port
        return fake


async def main(port: int, speed: float, hosts: int) -> None:
    app = web.Application(client_max_size=2**28)
    app.router.add_route("*", "/{path:.*}", Dashboards(port, speed).handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for number in range(hosts):
        await web.TCPSite(runner, _host(number), port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speed", type=float, default=50.0, help="times real time")
    parser.add_argument("--hosts", type=int, default=1, help="listen on 127.0.0.1 and so many less one after it")
    options = parser.parse_args()
    asyncio.run(main(options.port, options.speed, options.hosts))
