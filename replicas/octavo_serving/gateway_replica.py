"""The ``Gateway`` deployment: the router and both front doors.

The first door is the gateway's own HTTP and gRPC listeners. The second is Serve's proxy. The same ASGI application is
this deployment's ingress for that proxy. A gateway's process never loads torch.
"""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.serve.handle import DeploymentHandle

from octavo_api.resource.serve_config import GATEWAY, ApplicationArgs, Bind, GatewayUserConfig
from octavo_api.settings import RouterSettings
from octavo_api.startup import model_source
from octavo_serving import announcements, logs, ray_adapter
from octavo_serving.announcements import Announcement
from octavo_serving.doors.addresses import AddressPublisher
from octavo_serving.doors.front_door import FrontDoor
from octavo_serving.doors.ingress import with_doors, without_lifespan
from octavo_serving.membership import Membership
from octavo_serving.secrets import engine_secret
from octavo_serving.waking import Waker

if TYPE_CHECKING:
    from octavo_router.gateway_server import GatewayServer

logger = logging.getLogger("octavo_serving.gateway_replica")

_ENGINE_POLLS, _ENGINE_POLL_S = 100, 0.03
"""Polls for a first engine, and seconds of each. The ports open after 3 s at the latest, even without an engine."""


class GatewayReplica:
    """Replica that tokenizes, routes and answers.

    The router of the engine handle publishes Serve's announcements. The gateway reads its engine replicas from them.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, engine: DeploymentHandle[Any], args: ApplicationArgs
    ) -> None:
        self._replica = ray_adapter.replica_id().unique_id
        self._application = ray_adapter.application_name()
        packages = ("octavo_router", "octavo_serving")
        with logs.replica_logs(packages, self._application, GATEWAY, self._replica):
            await self._start(engine, args)

    async def _start(self, engine: DeploymentHandle[Any], args: ApplicationArgs) -> None:
        self._config = GatewayUserConfig.model_validate(ray_adapter.initial_user_config())
        self._loop = asyncio.get_running_loop()
        self._waker = Waker(lambda: ray_adapter.call_for_replica(engine))
        self._server = await self._build(args)
        self._members = Membership(self._loop, self._pool.update_replicas)
        self._engines = ray_adapter.mirror(engine)
        announcements.REGISTRY.subscribe(self._engines, self._replicas_changed)
        loopback = args.bind is Bind.LOOPBACK
        self._host = "127.0.0.1" if loopback else ray_adapter.own_address()
        self._schemes = ("https", "grpcs") if args.tls_folder else ("http", "grpc")
        self._door = FrontDoor(
            self._server,
            self._host if loopback else "0.0.0.0",
            args.http_port,
            args.grpc_port,
            name=f"gateway {self._replica}",
        )
        store = ray_adapter.Store(f"doors/{self._application}")
        self._addresses = AddressPublisher(store, self._replica, self._own_addresses)
        await self._wait_for_engine()
        await self._door.open()
        self._addresses.start()

    def _own_addresses(self) -> list[str]:
        """Return this gateway's addresses. They are empty while another gateway of this node has the ports."""
        ports = (self._server.http_port, self._server.grpc_port)
        return [f"{scheme}://{self._host}:{port}" for scheme, port in zip(self._schemes, ports, strict=True) if port]

    async def _wait_for_engine(self) -> None:
        """Wait until an engine is known, so that a gateway that takes over can answer at once. Continue without one."""
        for _ in range(_ENGINE_POLLS):
            if self._server.gateway.has_replica:
                return
            await asyncio.sleep(_ENGINE_POLL_S)

    async def _build(self, args: ApplicationArgs) -> "GatewayServer":
        from octavo_router.fleet.pool import ReplicaPool
        from octavo_router.front.keys import ApiKeys
        from octavo_router.front.tls import Certificate
        from octavo_router.gateway_server import GatewayServer
        from octavo_router.metrics import Metrics
        from octavo_text import ModelText

        files = await asyncio.to_thread(model_source.locate, args.model_uri, args.model_revision, weights=False)
        text = await asyncio.to_thread(ModelText.load, files)
        settings, metrics = self._settings(self._config), Metrics()
        secret = await asyncio.to_thread(engine_secret, self._application)
        self._pool = ReplicaPool(
            settings, gateway=self._replica, secret=secret, metrics=metrics, on_wanted=self._waker.wanted
        )
        self._pool.hold_requests(self._config.hold_requests)
        return GatewayServer(
            text=text,
            served_name=self._config.served_name,
            settings=settings,
            pool=self._pool,
            keys=ApiKeys.from_file(Path(args.api_key_file)) if args.api_key_file else None,
            metrics=metrics,
            certificate=Certificate.from_folder(Path(args.tls_folder)) if args.tls_folder else None,
        )

    @staticmethod
    def _settings(config: GatewayUserConfig) -> RouterSettings:
        return RouterSettings.read(config.settings, where="router")

    def _replicas_changed(self, running: tuple[Announcement, ...]) -> None:
        """Schedule the update of the replicas. The thread of Serve's router calls this."""
        self._loop.call_soon_threadsafe(self._update_replicas, running)

    def _update_replicas(self, running: tuple[Announcement, ...]) -> None:
        from octavo_router.fleet.replica_status import ReplicaAddress

        ready = [r for r in running if "port" in r.metadata]
        self._members.announce(
            {r.replica: ReplicaAddress(r.replica, r.metadata["host"], r.metadata["port"]) for r in ready}
        )

    def __serve_build_asgi_app__(self) -> Any:
        return without_lifespan(with_doors(self._server.app, self._addresses.all))

    async def check_health(self) -> None:
        self._door.check()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        config = GatewayUserConfig.model_validate(user_config)
        if config != self._config:
            settings = self._settings(config)
            self._server.reconfigure(settings, served_name=config.served_name)
            self._pool.reconfigure(settings)
            self._pool.hold_requests(config.hold_requests)
            self._config = config
            logger.info("gateway %s applied %s", self._replica, config.settings)

    async def __del__(self) -> None:
        """Wait for requests of this gateway's own listeners.

        Serve waits for the requests that came through its proxy.
        """
        if not hasattr(self, "_door"):
            return
        await self._addresses.close()
        drain_seconds = self._config.drain_seconds
        if not await self._door.close(drain_seconds):
            logger.warning("gateway %s aborts streams that did not end within %d s", self._replica, drain_seconds)
        announcements.REGISTRY.unsubscribe(self._engines, self._replicas_changed)
        self._waker.close()
        self._members.close()
        await self._pool.close()
