"""A gateway with its two front ends."""

import asyncio
from collections.abc import Awaitable
from functools import partial

from octavo_api.errors import StartupError
from octavo_api.settings import RouterSettings
from octavo_router.answers.gateway import Gateway
from octavo_router.fleet.engine_request import Pool
from octavo_router.front.keys import ApiKeys
from octavo_router.front.listen import listen_for_http
from octavo_router.front.tls import Certificate
from octavo_router.http.app import HttpApp
from octavo_router.http.uvicorn_server import HttpServer
from octavo_router.metrics import Metrics
from octavo_router.rpc.grpc_server import RpcServer
from octavo_text import ModelText

RENEW_S = 2.0
"""Seconds between two checks of the certificate's files."""


class GatewayServer:
    """One gateway: an HTTP and a gRPC listener over one pool. The owner of the pool closes it.

    ``app`` is the ASGI application, also for servers that mount it under a ``root_path``. The pool must have
    ``metrics`` as its observer, so that ``/metrics`` has the router's families. With a ``certificate`` both
    listeners accept TLS only.
    """

    def __init__(
        self,
        *,
        text: ModelText,
        served_name: str,
        settings: RouterSettings,
        pool: Pool,
        keys: ApiKeys | None = None,
        metrics: Metrics | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self.gateway = Gateway(text=text, served_name=served_name, settings=settings, pool=pool, observer=self.metrics)
        self.app = HttpApp(self.gateway, keys, self.metrics)
        self._keys = keys
        if keys is not None:
            keys.on_reload = partial(self.metrics.secret_reload, "api_keys")
        self._certificate = certificate
        self._renewing: asyncio.Task[None] | None = None
        self._http: HttpServer | None = None
        self._rpc: RpcServer | None = None

    @property
    def http_port(self) -> int:
        return self._http.port if self._http is not None else 0

    @property
    def grpc_port(self) -> int:
        return self._rpc.port if self._rpc is not None else 0

    @property
    def active_requests(self) -> int:
        return self.gateway.active_requests

    async def start(self, http_host: str, http_port: int, grpc_host: str, grpc_port: int) -> None:
        """Listen. Port 0 takes a free one. Raise ``PortInUse`` and leave no listener open."""
        listener = listen_for_http(http_host, http_port)
        rpc = RpcServer(self.gateway, self._keys, self.metrics, self._certificate)
        try:
            await rpc.start(grpc_host, grpc_port)
        except StartupError:
            listener.close()
            await rpc.stop()
            raise
        self._rpc = rpc
        self._http = HttpServer(self.app, listener, self._certificate.context if self._certificate else None)
        await self._http.started()
        if self._certificate is not None:
            self._renewing = asyncio.create_task(self._renew(self._certificate), name="certificate")

    async def drain(self, timeout_s: float) -> bool:
        """Take no new connections and requests, and wait for running ones. Return True if all of them ended in time.

        ``/ready`` and gRPC health fail from the first moment.
        """
        parts: list[Awaitable[bool]] = [self.gateway.drain(timeout_s)]
        if self._http is not None:
            parts.append(self._http.drain(timeout_s))
        if self._rpc is not None:
            parts.append(self._rpc.drain(timeout_s))
        return all(await asyncio.gather(*parts))

    async def stop(self) -> None:
        """End now. Requests that still run are aborted in the engines."""
        self.gateway.draining = True
        if self._renewing is not None:
            self._renewing.cancel()
        if self._rpc is not None:
            await self._rpc.stop()
        if self._http is not None:
            await self._http.stop()

    async def _renew(self, certificate: Certificate) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            applied = await asyncio.to_thread(certificate.refresh)
            if applied is not None:
                self.metrics.secret_reload("tls", applied)

    def reconfigure(self, settings: RouterSettings, *, served_name: str | None = None) -> None:
        """Apply settings to later requests. The pool has a ``reconfigure`` of its own."""
        self.gateway.settings = settings
        self.gateway.served_name = served_name or self.gateway.served_name
