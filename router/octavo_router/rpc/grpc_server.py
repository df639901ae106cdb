"""The gRPC listener: inference, health and reflection."""

import asyncio
import contextlib

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo_api.errors import PortInUse
from octavo_api.startup.ports import require_free
from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_router.answers.gateway import Gateway
from octavo_router.front.keys import ApiKeys
from octavo_router.front.tls import Certificate
from octavo_router.metrics import Metrics
from octavo_router.rpc.inference import InferenceServicer

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH_INTERVAL_S = 0.2

_Status = health_pb2.HealthCheckResponse


class RpcServer:
    """One listener, with TLS if there is a certificate.

    Health is SERVING only while the gateway would accept a request.
    """

    def __init__(
        self, gateway: Gateway, keys: ApiKeys | None, metrics: Metrics, certificate: Certificate | None = None
    ) -> None:
        self.port = 0
        self._certificate = certificate
        self._gateway = gateway
        self._server = grpc.aio.server(
            options=[
                # Otherwise two servers would share the port and the requests without an error.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", gateway.settings.max_body_bytes),
                # A client out of reach: its request must not run on.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ]
        )
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        servicer = InferenceServicer(gateway, keys, metrics)
        inference_pb2_grpc.add_InferenceServicer_to_server(servicer, self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._watching: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Port 0 takes a free one. Raise ``PortInUse``."""
        require_free("gRPC", host, port)
        try:
            self.port = self._listen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise PortInUse(f"gRPC: cannot listen on {host}:{port}: {error}") from None
        await self._set_health()
        await self._server.start()
        self._watching = asyncio.create_task(self._watch())

    def _listen(self, address: str) -> int:
        if self._certificate is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._certificate.credentials())

    async def drain(self, timeout_s: float) -> bool:
        """Send GOAWAY. Running calls may end until ``timeout_s`` seconds have passed. Then they are cancelled."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._health.enter_graceful_shutdown()
        await self._stop_watching()
        await self._server.stop(timeout_s)
        return loop.time() < deadline

    async def stop(self) -> None:
        await self._stop_watching()
        await self._server.stop(None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            await self._set_health()

    async def _set_health(self) -> None:
        status = _Status.SERVING if self._gateway.ready else _Status.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
