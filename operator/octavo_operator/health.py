"""``/healthz``, ``/readyz`` and ``/metrics``. ``/healthz`` fails only for problems that a restart would solve."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from octavo_operator.loop.queue import WorkQueue
from octavo_operator.loop.watch_ages import WatchAges
from octavo_operator.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum seconds of silence, of a watch and of the queue, before a health check fails."""

    watch_s: float = 240.0
    """A watch that receives nothing reconnects after 70 s; retries of a failing list come within 60 s."""
    queue_s: float = 420.0
    """The queue cancels a reconcile after 300 s."""


def failed_checks(watches: WatchAges, queue: WorkQueue, limits: Limits) -> list[str]:
    """Return one line for each problem that a restart would solve."""
    found = [
        f"the watch of {name} has received nothing for {age:.0f} s"
        for name, age in sorted(watches.ages().items())
        if age > limits.watch_s
    ]
    if (lag := queue.lag()) > limits.queue_s:
        found.append(f"a reconcile has waited or run for {lag:.0f} s")
    return found


class HealthServer:
    """Server of both, on their ports, or on one port if they are equal. Port 0 takes a free one."""

    def __init__(
        self,
        watches: WatchAges,
        queue: WorkQueue,
        metrics: Metrics,
        *,
        health_port: int,
        metrics_port: int,
        limits: Limits,
        host: str = "",
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._watches = watches
        self._queue = queue
        self._metrics = metrics
        self._limits = limits
        self._ready = ready
        self._host = host or None
        routes = {health_port: [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]}
        routes.setdefault(metrics_port, []).append(web.get("/metrics", self._metrics_page))
        self._routes = routes
        self._stack = AsyncExitStack()
        self.ports: dict[int, int] = {}
        """Bound port by requested port."""

    async def __aenter__(self) -> Self:
        """Start both servers; raise ``OSError`` if a port is taken."""
        async with AsyncExitStack() as stack:
            for port, routes in self._routes.items():
                app = web.Application()
                app.add_routes(routes)
                runner = web.AppRunner(app, access_log=None)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                site = web.TCPSite(runner, self._host, port)
                await site.start()
                # Port 0 is another one for each family.
                self.ports[port] = min(runner.addresses, key=len)[1]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _healthz(self, _: web.Request) -> web.Response:
        found = failed_checks(self._watches, self._queue, self._limits)
        return web.Response(status=500 if found else 200, text="\n".join(found) or "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(status=200 if ready else 503, text="ok" if ready else "the watches have not started yet")

    async def _metrics_page(self, _: web.Request) -> web.Response:
        self._metrics.queue_depth.set(len(self._queue))
        self._metrics.queue_lag.set(self._queue.lag())
        self._metrics.watch_age.clear()
        for name, age in self._watches.ages().items():
            self._metrics.watch_age.labels(name).set(age)
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"})
