"""uvicorn inside of a running event loop, on a socket that is bound already."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

KEEP_ALIVE_S = 75
"""Longer than common load balancers keep a connection idle (60 s): they close first, no request meets a closed end."""

STOP_S = 5.0
"""Within so long, requests whose connections were cut have cleaned up."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process that this server is a part of."""
        yield


class HttpServer:
    """One listener."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self.port: int = listener.getsockname()[1]
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def started(self) -> None:
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)

    async def drain(self, timeout_s: float) -> bool:
        """Closes the listener and idle connections; returns whether all answers ended in time."""
        self._server.should_exit = True
        done, _ = await asyncio.wait((self._serving,), timeout=timeout_s)
        return bool(done)

    async def stop(self) -> None:
        """Cuts what still runs: to the application it is as if the clients had gone."""
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        self._serving.cancel()
        await asyncio.wait((self._serving, *self._server.server_state.tasks), timeout=STOP_S)
