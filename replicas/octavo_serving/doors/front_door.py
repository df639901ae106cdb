"""The application's ports on a node.

One gateway of a node listens on them. Another gateway on that node is a standby, reachable through Serve's proxy only.
The standby opens the ports as soon as they are free: when their holder drains in a rolling update, or dies.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from octavo_api.errors import PortInUse

if TYPE_CHECKING:
    from octavo_router.gateway_server import GatewayServer

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
_REPEAT_WARNING_S = 60.0


class FrontDoor:
    """Listeners of a server, opened once their ports are free."""

    def __init__(self, server: "GatewayServer", host: str, http_port: int, grpc_port: int, *, name: str) -> None:
        self._server = server
        self._host = host
        self._http_port = http_port
        self._grpc_port = grpc_port
        self._name = name
        self._standby: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen, or become a standby until the ports are free."""
        blocked = await self._try_to_listen()
        if blocked is not None:
            logger.warning("%s is a standby until its ports are free: %s", self._name, blocked)
            self._standby = asyncio.create_task(self._retry_until_listening())

    def check(self) -> None:
        """Raise the error that ended the wait for the ports, if any."""
        if self._standby is not None and self._standby.done() and not self._standby.cancelled():
            self._standby.result()

    async def close(self, timeout_s: float) -> bool:
        """Close the listeners at once and wait for running streams. Return True if all of them ended."""
        if self._standby is not None:
            self._standby.cancel()
            await asyncio.wait([self._standby])
        ended = await self._server.drain(timeout_s)
        await self._server.stop()
        return ended

    async def _try_to_listen(self) -> PortInUse | None:
        try:
            await self._server.start(self._host, self._http_port, self._host, self._grpc_port)
        except PortInUse as error:
            return error
        logger.info("%s listens on %s, HTTP %d, gRPC %d", self._name, self._host, self._http_port, self._grpc_port)
        return None

    async def _retry_until_listening(self) -> None:
        waited = 0.0
        while blocked := await self._try_to_listen():
            await asyncio.sleep(_RETRY_S)
            waited += _RETRY_S
            if waited >= _REPEAT_WARNING_S:
                logger.warning("%s is still a standby: %s", self._name, blocked)
                waited = 0.0
