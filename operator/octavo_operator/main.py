"""The operator's process: ``octavo operator``, or ``python -m octavo_operator.main``."""

import asyncio
import contextlib
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import aiohttp

from octavo_api.errors import ConfigurationError
from octavo_operator import logs, options
from octavo_operator.health import HealthServer, Limits
from octavo_operator.kube.api import HttpApi, load_configuration
from octavo_operator.kube.client import Kube
from octavo_operator.kube.errors import KubeError
from octavo_operator.kube.gather import together
from octavo_operator.loop.backoff import Backoff
from octavo_operator.loop.handlers import WATCHED, WatchTimes, registry, settings, watch_names
from octavo_operator.loop.queue import WorkQueue
from octavo_operator.loop.watch_ages import Watches
from octavo_operator.loop.watch_thread import run_kopf
from octavo_operator.metrics import Metrics
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key
from octavo_operator.options import Options
from octavo_operator.reconcile import Planner, Reconciler
from octavo_operator.serve.client import ServeClient

_log = logging.getLogger(__name__)

_KINDS_POLL_S = 30.0
_RESYNC_SPREAD = 0.2
"""Share of a resync's period over which its looks are spread."""
_RESTART_CAP_S = 30.0


class Operator:
    """Watches, queue, workers, resync and health, until it is cancelled."""

    def __init__(
        self,
        chosen: Options,
        *,
        plan: Planner,
        times: WatchTimes | None = None,
        limits: Limits | None = None,
        kinds_poll_s: float = _KINDS_POLL_S,
        serve: Callable[[aiohttp.ClientSession], ServeClient] | None = None,
    ) -> None:
        self._options = chosen
        self._plan = plan
        self._times = times or WatchTimes()
        self._limits = limits or Limits()
        self._kinds_poll_s = kinds_poll_s
        self._make_serve = serve or partial(ServeClient.over_http, wanted_version=chosen.defaults.ray_version)
        self.metrics = Metrics()
        self.watches = Watches()
        self.health: HealthServer | None = None
        self.queue: WorkQueue | None = None
        self._watching = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled.

        Raise ``ConfigurationError`` if no API server is known, ``OSError`` if a port is taken.
        """
        api = HttpApi(await load_configuration())
        try:
            async with aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar()) as session:
                await self._run(Kube(api, self._options.namespaces), self._make_serve(session))
        finally:
            await api.close()

    async def _run(self, kube: Kube, serve: ServeClient) -> None:
        reconciler = Reconciler(kube, serve, time, self._options.defaults, plan=self._plan, metrics=self.metrics)
        queue = self.queue = WorkQueue(reconciler.reconcile, workers=self._options.workers)
        self.health = HealthServer(
            self.watches,
            queue,
            self.metrics,
            health_port=self._options.health_port,
            metrics_port=self._options.metrics_port,
            limits=self._limits,
            host=self._options.bind_address,
            ready=self._watching.is_set,
        )
        async with self.health, asyncio.TaskGroup() as group:
            group.create_task(queue.run(), name="queue")
            group.create_task(self._resync(kube, queue), name="resync")
            group.create_task(self._watch(kube, queue, reconciler), name="watch")

    async def _watch(self, kube: Kube, queue: WorkQueue, reconciler: Reconciler) -> None:
        """Run kopf, and restart it when it ends: for a newly installed kind, or by an error that ends kopf."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(cap=_RESTART_CAP_S)
        while True:
            served = await self._served(kube, backoff)
            self.watches.expect(watch_names(served, self._options.namespaces))
            handlers = registry(served, partial(_in_loop, loop, queue.add), reconciler.wrote, self.watches)
            missing = [kind for kind in WATCHED if kind not in served]
            watching = run_kopf(handlers, settings(self._times), self._options.namespaces, self._watching.set)
            kinds = asyncio.create_task(self._await_kind(kube, missing), name="kinds")
            watch = asyncio.create_task(watching, name="kopf")
            try:
                await asyncio.wait([kinds, watch], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._watching.clear()
                kinds.cancel()
                watch.cancel()
                results = await asyncio.gather(watch, kinds, return_exceptions=True)
            if isinstance(results[0], Exception):
                _log.warning("the watches ended and are started again: %s: %s", type(results[0]).__name__, results[0])
                await asyncio.sleep(backoff.next("watch"))
            else:
                backoff.reset("watch")

    async def _served(self, kube: Kube, backoff: Backoff) -> list[Kind]:
        """Return the served kinds; retry until the API server answers."""
        while True:
            try:
                answers = await together(*(kube.served(kind) for kind in WATCHED))
            except KubeError as error:
                _log.warning("cannot ask which kinds are served: %s", error.message)
                await asyncio.sleep(max(backoff.next("kinds"), error.retry_after or 0.0))
                continue
            backoff.reset("kinds")
            return [kind for kind, served in zip(WATCHED, answers, strict=True) if served]

    async def _await_kind(self, kube: Kube, missing: Sequence[Kind]) -> None:
        """Wait until one of the missing kinds, for example KubeRay's, is installed. The watches must restart then."""
        if missing:
            _log.warning("not installed: %s; waiting for it", ", ".join(kind.kind for kind in missing))
        while True:
            await asyncio.sleep(self._kinds_poll_s)
            for kind in missing:
                with contextlib.suppress(KubeError):
                    if await kube.served(kind):
                        _log.info("%s is installed now", kind.kind)
                        return

    async def _resync(self, kube: Kube, queue: WorkQueue) -> None:
        """Queue a look at every deployment now and then, even if the watches report nothing."""
        period = self._options.resync_seconds
        while True:
            await asyncio.sleep(period * random.uniform(1 - _RESYNC_SPREAD, 1 + _RESYNC_SPREAD))
            try:
                keys = await kube.list_keys()
            except KubeError as error:
                _log.warning("no resync: %s", error.message)
                continue
            for key in keys:
                queue.add(key, random.uniform(0, period * _RESYNC_SPREAD))


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[Key], None], key: Key) -> None:
    loop.call_soon_threadsafe(call, key)


async def serve(chosen: Options, plan: Planner) -> None:
    """Run the operator until SIGTERM or SIGINT, which end it at once. The next start repeats the interrupted work."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(Operator(chosen, plan=plan).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Errors of the command line and a missing API server end it with one line and status 1."""
    try:
        chosen = options.read(sys.argv[1:] if arguments is None else arguments)
        logs.configure(chosen.log_level, as_json=chosen.log_format == "json")
        from octavo_operator.plan import plan

        asyncio.run(serve(chosen, plan))
    except (ConfigurationError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
