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
from octavo_operator.kube.gather import gather_all
from octavo_operator.loop.backoff import Backoff
from octavo_operator.loop.handlers import WATCHED, WatchTimes, build_registry, kopf_settings, watch_names
from octavo_operator.loop.queue import WorkQueue
from octavo_operator.loop.watch_ages import WatchAges
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
"""Share of the resync period over which its reconciles are spread."""
_RESTART_CAP_S = 30.0


class Operator:
    """Watches, queue, workers, resync and health server of one process."""

    def __init__(
        self,
        chosen: Options,
        *,
        plan: Planner,
        times: WatchTimes | None = None,
        limits: Limits | None = None,
        kinds_poll_s: float = _KINDS_POLL_S,
        connect_serve: Callable[[aiohttp.ClientSession], ServeClient] | None = None,
    ) -> None:
        self._options = chosen
        self._plan = plan
        self._times = times or WatchTimes()
        self._limits = limits or Limits()
        self._kinds_poll_s = kinds_poll_s
        self._connect_serve = connect_serve or partial(
            ServeClient.over_http, required_version=chosen.defaults.ray_version
        )
        self.metrics = Metrics()
        self.watches = WatchAges()
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
                await self._run(Kube(api, self._options.namespaces), self._connect_serve(session))
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
            installed = await self._installed_kinds(kube, backoff)
            self.watches.expect_only(watch_names(installed, self._options.namespaces))
            handlers = build_registry(
                installed, partial(_call_in_loop, loop, queue.add), reconciler.is_own_write, self.watches
            )
            missing = [kind for kind in WATCHED if kind not in installed]
            watching = run_kopf(handlers, kopf_settings(self._times), self._options.namespaces, self._watching.set)
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
                _log.warning("the watches failed and restart: %s: %s", type(results[0]).__name__, results[0])
                await asyncio.sleep(backoff.next("watch"))
            else:
                backoff.reset("watch")

    async def _installed_kinds(self, kube: Kube, backoff: Backoff) -> list[Kind]:
        """Return the installed kinds; retry until the API server answers."""
        while True:
            try:
                answers = await gather_all(*(kube.kind_installed(kind) for kind in WATCHED))
            except KubeError as error:
                _log.warning("cannot list the installed kinds, retrying: %s", error.message)
                await asyncio.sleep(max(backoff.next("kinds"), error.retry_after or 0.0))
                continue
            backoff.reset("kinds")
            return [kind for kind, is_installed in zip(WATCHED, answers, strict=True) if is_installed]

    async def _await_kind(self, kube: Kube, missing: Sequence[Kind]) -> None:
        """Wait until one of the missing kinds, for example KubeRay's, is installed. The watches must restart then."""
        if missing:
            _log.warning(
                "not installed: %s; the operator waits for the installation", ", ".join(kind.kind for kind in missing)
            )
        while True:
            await asyncio.sleep(self._kinds_poll_s)
            for kind in missing:
                with contextlib.suppress(KubeError):
                    if await kube.kind_installed(kind):
                        _log.info("%s is installed now", kind.kind)
                        return

    async def _resync(self, kube: Kube, queue: WorkQueue) -> None:
        """Queue every deployment periodically, even if the watches report nothing."""
        period = self._options.resync_seconds
        while True:
            await asyncio.sleep(period * random.uniform(1 - _RESYNC_SPREAD, 1 + _RESYNC_SPREAD))
            try:
                keys = await kube.list_keys()
            except KubeError as error:
                _log.warning("cannot list the deployments for a resync: %s", error.message)
                continue
            for key in keys:
                queue.add(key, random.uniform(0, period * _RESYNC_SPREAD))


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[Key], None], key: Key) -> None:
    loop.call_soon_threadsafe(call, key)


async def run_operator(chosen: Options, plan: Planner) -> None:
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
        chosen = options.parse_options(sys.argv[1:] if arguments is None else arguments)
        logs.configure(chosen.log_level, as_json=chosen.log_format == "json")
        from octavo_operator.plan import plan

        asyncio.run(run_operator(chosen, plan))
    except (ConfigurationError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
