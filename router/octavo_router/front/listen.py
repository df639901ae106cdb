"""Listener of the HTTP server. It listens before the gateway serves anything, so a port in use is only an error."""

import socket

from octavo_api.startup.ports import listen

# The machine of a client is gone: noticed after 30 + 3 × 10 seconds, so that its request does not run on.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def listen_for_http(host: str, port: int) -> socket.socket:
    """Return a listening socket whose connections send keepalives.

    Raise the errors of ``octavo_api.startup.ports.listen``.
    """
    listener = listen("HTTP", host, port)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
    listener.setblocking(False)
    return listener
