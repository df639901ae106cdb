"""uvicorn inside of a running event loop, on a socket that is bound already."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KEEP_ALIVE_S = 75
"""Maximum seconds that an idle connection stays open.

Common load balancers close an idle connection after 60 s. They close first, so no request meets a closed connection.
"""

STOP_S = 5.0
"""Maximum seconds for requests to clean up after their connections were cut."""


HEAD_S = 30.0
"""Maximum seconds for a request's headers to arrive."""

MAX_HEAD_BYTES = 64 * 1024
"""Maximum bytes of request line and headers. The check follows each read, so one more read may pass."""


class _Protocol(HttpToolsProtocol):
    """Protocol that bounds the time and the size of a request's head.

    uvicorn bounds neither, and both cost memory before the check of any key.
    """

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._watch_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._forget_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        began_in_head = self._in_head
        super().data_received(data)
        if began_in_head and self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"Request line and headers: allowed: at most {MAX_HEAD_BYTES} bytes.")

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._too_slow)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:  # the answer to the request before it is still being sent
            self._watch_head()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that this server is a part of."""
        yield


class HttpServer:
    """One listener, with TLS if there is a context for it."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        config.ssl = tls
        self.port: int = listener.getsockname()[1]
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    async def started(self) -> None:
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)

    async def drain(self, timeout_s: float) -> bool:
        """Close the listener and idle connections. Return True if all answers ended in time."""
        self._server.should_exit = True
        done, _ = await asyncio.wait((self._serving,), timeout=timeout_s)
        return bool(done)

    async def stop(self) -> None:
        """Cut the connections that still run. The application sees the same as if the clients had gone."""
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        self._serving.cancel()
        await asyncio.wait((self._serving, *self._server.server_state.tasks), timeout=STOP_S)
